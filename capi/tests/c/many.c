/* Many descriptors through one client, raw and in batches, every one accounted for. Arguments: a socket, and how many;
   0: until the end of this process. */
#include "check.h"

#define PER_BATCH 32u
#define UNDER_WAY 64u
#define SLOTS 4096u
#define SLOT_BYTES 64u

static scatter_ring_client *client;
static scatter_ring_region *src, *dst;
static uint64_t *from, *to;

/* What is moved as number n is slot n * 7 of the source, to slot n of the destination. */
static scatter_ring_descriptor descriptor(uint64_t number) {
    scatter_ring_descriptor made = {.opcode = SCATTER_RING_OPCODE_READ, .len = SLOT_BYTES, .count = 1};
    made.src_region = scatter_ring_region_handle(src);
    made.dst_region = scatter_ring_region_handle(dst);
    made.src_offset = number * 7 % SLOTS * SLOT_BYTES;
    made.dst_offset = number % SLOTS * SLOT_BYTES;
    made.user_data = number;
    return made;
}

static void check_slots(uint64_t end) {
    for (uint64_t number = end < SLOTS ? 0 : end - SLOTS; number < end; number++)
        CHECK(to[number % SLOTS * (SLOT_BYTES / 8)] == number * 7 % SLOTS);
    memset(to, 0, SLOTS * SLOT_BYTES);
}

/* Raw: each span is compared with what was pushed, and each batch comes once. */
static void raw(uint64_t count) {
    static unsigned char is_under_way[2 * UNDER_WAY];
    scatter_ring_descriptor descriptors[PER_BATCH];
    scatter_ring_span spans[16];
    uint64_t batches = count / PER_BATCH, pushed = 0, done = 0;
    while (done < batches) {
        if (pushed < batches && pushed - done < UNDER_WAY) {
            for (uint32_t i = 0; i < PER_BATCH; i++)
                descriptors[i] = descriptor(pushed * PER_BATCH + i);
            descriptors[PER_BATCH - 1].flags = SCATTER_RING_FLAGS_LAST;
            int32_t taken = scatter_ring_client_push(client, descriptors, PER_BATCH, &error);
            DO(taken);
            CHECK(taken == (int32_t)PER_BATCH);
            DO(scatter_ring_client_submit(client, &error));
            CHECK(is_under_way[pushed % (2 * UNDER_WAY)]++ == 0);
            pushed++;
        }
        int32_t taken = scatter_ring_client_reap(client, spans, 16, &error);
        DO(taken);
        for (int32_t i = 0; i < taken; i++) {
            CHECK(spans[i].status == 0 && spans[i].count == PER_BATCH && spans[i].bytes == PER_BATCH * SLOT_BYTES);
            CHECK(spans[i].user_data % PER_BATCH == PER_BATCH - 1 && spans[i].user_data / PER_BATCH < pushed);
            CHECK(is_under_way[spans[i].user_data / PER_BATCH % (2 * UNDER_WAY)]-- == 1);
            done++;
        }
    }
    CHECK(scatter_ring_client_wait_any(client, 0, &error) == SCATTER_RING_PENDING);
}

/* The same with batches and tickets. */
static void recorded(uint64_t count) {
    scatter_ring_batch *batch;
    scatter_ring_ticket *tickets[UNDER_WAY];
    scatter_ring_region *regions[] = {src, dst};
    scatter_ring_descriptor descriptors[PER_BATCH];
    DO(scatter_ring_batch_new(client, &batch, &error));
    uint64_t batches = count / PER_BATCH;
    for (uint64_t number = 0; number < batches + UNDER_WAY; number++) {
        if (number >= UNDER_WAY && number - UNDER_WAY < batches) {
            scatter_ring_outcome outcome;
            DO(scatter_ring_client_wait(client, tickets[number % UNDER_WAY], -1, &outcome, &error));
            CHECK(outcome.bytes == PER_BATCH * SLOT_BYTES);
            CHECK(outcome.user_data == (number - UNDER_WAY) * PER_BATCH + PER_BATCH - 1);
            scatter_ring_ticket_free(tickets[number % UNDER_WAY]);
        }
        if (number < batches) {
            for (uint32_t i = 0; i < PER_BATCH; i++)
                descriptors[i] = descriptor(number * PER_BATCH + i);
            DO(scatter_ring_batch_clear(batch, &error));
            DO(scatter_ring_batch_push(batch, descriptors, PER_BATCH, regions, 2, &error));
            DO(scatter_ring_batch_submit(client, batch, &tickets[number % UNDER_WAY], &error));
        }
    }
    scatter_ring_batch_free(batch);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    uint64_t count = strtoull(argv[2], NULL, 10) / (2 * PER_BATCH) * PER_BATCH;
    int is_for_ever = count == 0;
    if (is_for_ever)
        count = 100 * PER_BATCH;
    DO(scatter_ring_client_attach(argv[1], NULL, &client, &error));
    DO(scatter_ring_region_allocate(client, SLOTS * SLOT_BYTES, &src, &error));
    DO(scatter_ring_region_allocate(client, SLOTS * SLOT_BYTES, &dst, &error));
    DO(scatter_ring_region_export(client, src, "many", SCATTER_RING_RIGHTS_READ, &error));
    from = scatter_ring_region_data(src);
    to = scatter_ring_region_data(dst);
    for (uint64_t i = 0; i < SLOTS; i++)
        from[i * (SLOT_BYTES / 8)] = i;
    do {
        raw(count);
        check_slots(count);
        recorded(count);
        check_slots(count);
    } while (is_for_ever);
    scatter_ring_region_free(src);
    scatter_ring_region_free(dst);
    scatter_ring_client_free(client);
    printf("%" PRIu64 " descriptors\n", 2 * count);
    return 0;
}
