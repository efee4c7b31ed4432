/* Awaits batches in an event loop that has something else to do. Argument: the socket of `scatter-ring serve`.

       cc event_loop.c $(pkg-config --cflags --libs scatter_ring) -o event_loop */
#include <poll.h>
#include <scatter_ring.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define BATCHES 100u
#define ROWS 32u
#define ROW_BYTES 264u
#define TABLE_ROWS 1000u

static scatter_ring_error error;

static void need(int32_t status) {
    if (status < 0) {
        fprintf(stderr, "event_loop: %s\n", error.message);
        exit(1);
    }
}

/* Submits all batches. Each has its own part of `out` and its own row numbers. */
static void submit(scatter_ring_client *client, scatter_ring_ticket **tickets) {
    scatter_ring_region *table, *out, *index;
    need(scatter_ring_region_allocate(client, TABLE_ROWS * ROW_BYTES, &table, &error));
    need(scatter_ring_region_allocate(client, BATCHES * ROWS * ROW_BYTES, &out, &error));
    need(scatter_ring_region_allocate(client, BATCHES * ROWS * sizeof(uint32_t), &index, &error));
    uint32_t *numbers = scatter_ring_region_data(index);
    for (uint32_t i = 0; i < BATCHES * ROWS; i++)
        numbers[i] = i * 7 % TABLE_ROWS;
    scatter_ring_batch *batch;
    need(scatter_ring_batch_new(client, &batch, &error));
    for (uint32_t i = 0; i < BATCHES; i++) {
        scatter_ring_rows rows = {.table = table, .row_bytes = ROW_BYTES, .index = index, .count = ROWS,
                                  .index_offset = i * ROWS * sizeof(uint32_t),
                                  .buffer = out, .buffer_offset = i * ROWS * ROW_BYTES};
        need(scatter_ring_batch_clear(batch, &error));
        need(scatter_ring_batch_read_rows(batch, &rows, &error));
        need(scatter_ring_batch_submit(client, batch, &tickets[i], &error));
    }
    /* What is under way keeps the memory. */
    scatter_ring_batch_free(batch);
    scatter_ring_region_free(index);
    scatter_ring_region_free(out);
    scatter_ring_region_free(table);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return fprintf(stderr, "usage: event_loop SOCKET\n"), 2;
    scatter_ring_client *client;
    scatter_ring_ticket *tickets[BATCHES];
    need(scatter_ring_client_attach(argv[1], NULL, &client, &error));
    submit(client, tickets);

    const struct itimerspec every_ms = {.it_interval.tv_nsec = 1000000, .it_value.tv_nsec = 1000000};
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    timerfd_settime(timer, 0, &every_ms, NULL);
    struct pollfd fds[] = {{.fd = scatter_ring_client_fd(client), .events = POLLIN}, {.fd = timer, .events = POLLIN}};
    uint64_t bytes = 0, beats = 0;
    for (uint32_t done = 0; done < BATCHES || beats == 0;) {
        /* 0: something has come already, so this does not sleep. */
        int32_t sleeps = scatter_ring_client_arm(client, &error);
        need(sleeps);
        poll(fds, 2, sleeps ? -1 : 0);
        need(scatter_ring_client_disarm(client, &error));
        uint64_t ticks = 0;
        if (read(timer, &ticks, sizeof ticks) > 0)
            beats += ticks;
        scatter_ring_outcome outcome;
        while (done < BATCHES) {
            int32_t status = scatter_ring_client_wait(client, tickets[done], 0, &outcome, &error);
            need(status);
            if (status == SCATTER_RING_PENDING)
                break;
            bytes += outcome.bytes;
            scatter_ring_ticket_free(tickets[done++]);
        }
    }
    close(timer);
    scatter_ring_client_free(client);
    if (bytes != (uint64_t)BATCHES * ROWS * ROW_BYTES)
        return 1;
    printf("%u batches, %u rows, heartbeat went on\n", BATCHES, BATCHES * ROWS);
    return 0;
}
