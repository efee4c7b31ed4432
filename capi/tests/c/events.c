/* The ring without an account, an event loop's file descriptor, notifications, deadlines and cancels. */
#include "check.h"

#include <poll.h>

#define BYTES (1u << 16)

static scatter_ring_engine *engine;

static scatter_ring_client *attached(uint32_t notifications) {
    scatter_ring_client_setup setup = {.size = sizeof setup, .sq_capacity = 16, .notifications = notifications};
    scatter_ring_client *client;
    DO(scatter_ring_client_attach_engine(engine, &setup, &client, &error));
    return client;
}

static void raw_descriptors_are_pushed_and_their_spans_reaped(void) {
    scatter_ring_client *client = attached(0);
    scatter_ring_region *src, *dst;
    DO(scatter_ring_region_allocate(client, BYTES, &src, &error));
    DO(scatter_ring_region_allocate(client, BYTES, &dst, &error));
    unsigned char *from = scatter_ring_region_data(src), *to = scatter_ring_region_data(dst);
    for (uint32_t i = 0; i < BYTES; i++)
        from[i] = (unsigned char)(i * 7 + (i >> 8));

    /* 1000 batches of two descriptors, 64 bytes each: more than the ring holds. */
    enum { COUNT = 2000 };
    static scatter_ring_descriptor descriptors[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        scatter_ring_descriptor descriptor = {.opcode = SCATTER_RING_OPCODE_READ, .len = 64, .count = 1};
        descriptor.flags = i % 2 == 1 ? SCATTER_RING_FLAGS_LAST : 0;
        descriptor.src_region = scatter_ring_region_handle(src);
        descriptor.dst_region = scatter_ring_region_handle(dst);
        descriptor.src_offset = (COUNT - 1 - i) % (BYTES / 64) * 64;
        descriptor.dst_offset = i % (BYTES / 64) * 64;
        descriptor.user_data = i;
        descriptors[i] = descriptor;
    }
    uint32_t pushed = 0, completed = 0;
    uint64_t bytes = 0;
    scatter_ring_span spans[8];
    while (completed < COUNT) {
        int32_t count = scatter_ring_client_push(client, descriptors + pushed, COUNT - pushed, &error);
        DO(count);
        pushed += (uint32_t)count;
        DO(scatter_ring_client_submit(client, &error));
        count = scatter_ring_client_reap(client, spans, 8, &error);
        DO(count);
        for (int32_t i = 0; i < count; i++) {
            CHECK(spans[i].status == SCATTER_RING_STATUS_OK && scatter_ring_span_is_batch_done(&spans[i]));
            CHECK(spans[i].count == 2 && spans[i].user_data == spans[i].first + 1);
            completed += spans[i].count;
            bytes += spans[i].bytes;
        }
        if (count == 0)
            DO(scatter_ring_client_wait_any(client, -1, &error));
    }
    CHECK(bytes == COUNT * 64);
    for (uint32_t i = COUNT - BYTES / 64; i < COUNT; i++)
        CHECK(memcmp(to + i % (BYTES / 64) * 64, from + (COUNT - 1 - i) % (BYTES / 64) * 64, 64) == 0);

    scatter_ring_extension extension = {.opcode = SCATTER_RING_OPCODE_EXTENSION, .inner_count = 2,
                                        .inner_src_stride = 64, .inner_dst_stride = 64};
    scatter_ring_descriptor last = descriptors[1];
    CHECK(scatter_ring_client_push_extended(client, &last, &extension, &error) == 1);
    CHECK(scatter_ring_client_wait_any(client, -1, &error) == 0);
    CHECK(scatter_ring_client_reap(client, spans, 8, &error) == 1 && spans[0].bytes == 128);
    CHECK(scatter_ring_client_wait_any(client, 0, &error) == SCATTER_RING_PENDING);
    CHECK(scatter_ring_client_reap(client, spans, 8, &error) == 0);
    CHECK(!scatter_ring_region_is_busy(dst));
    scatter_ring_region_free(src);
    scatter_ring_region_free(dst);
    scatter_ring_client_free(client);
}

/* Sleeps until the client has something, at most for ten seconds. */
static void sleep_in_poll(scatter_ring_client *client) {
    int sleeps = scatter_ring_client_arm(client, &error);
    DO(sleeps);
    if (sleeps) {
        struct pollfd wake = {.fd = scatter_ring_client_fd(client), .events = POLLIN};
        CHECK(poll(&wake, 1, 10000) == 1);
    }
    DO(scatter_ring_client_disarm(client, &error));
}

static void a_notification_wakes_a_loop_that_sleeps(void) {
    scatter_ring_client *sender = attached(0), *receiver = attached(1);
    scatter_ring_region *inbox, *other, *mine;
    DO(scatter_ring_region_allocate(receiver, BYTES, &inbox, &error));
    DO(scatter_ring_region_export(receiver, inbox, "inbox", SCATTER_RING_RIGHTS_WRITE, &error));
    DO(scatter_ring_region_open(sender, "inbox", SCATTER_RING_RIGHTS_WRITE, &other, &error));
    DO(scatter_ring_region_allocate(sender, BYTES, &mine, &error));
    DO(scatter_ring_region_write(mine, 0, "the data", 9, &error));
    DO(scatter_ring_region_write(mine, 100, "the payload", 12, &error));
    scatter_ring_notification told;
    CHECK(scatter_ring_client_next_notification(receiver, &told, &error) == SCATTER_RING_PENDING);
    CHECK(scatter_ring_client_wait_notification(receiver, 1000, &told, &error) == SCATTER_RING_PENDING);
    REFUSED(scatter_ring_client_next_notification(sender, &told, &error), SCATTER_RING_STATUS_NOT_ALLOWED,
            "scatter_ring_client_setup.notifications");

    scatter_ring_batch *batch;
    DO(scatter_ring_batch_new(sender, &batch, &error));
    DO(scatter_ring_batch_write(batch, mine, 0, other, 4096, 9, &error));
    DO(scatter_ring_batch_set_user_data(batch, 9, &error));
    DO(scatter_ring_batch_notify(batch, other, 4096, mine, 100, 12, &error));
    REFUSED(scatter_ring_batch_write(batch, mine, 0, other, 0, 9, &error), SCATTER_RING_STATUS_BAD_SEQUENCE,
            "ends with its notification");
    REFUSED(scatter_ring_batch_notify(batch, other, 4096, NULL, 0, 0, &error), SCATTER_RING_STATUS_BAD_SEQUENCE,
            "clear it");
    scatter_ring_ticket *ticket;
    for (int i = 0; i < 2; i++) {
        DO(scatter_ring_batch_submit(sender, batch, &ticket, &error));
        DO(scatter_ring_client_wait(sender, ticket, -1, NULL, &error));
        scatter_ring_ticket_free(ticket);
        sleep_in_poll(receiver);
        CHECK(scatter_ring_client_next_notification(receiver, &told, &error) == 0);
        CHECK(told.user_data == 9 && told.offset == 4096 && told.payload_bytes == 12);
        CHECK(memcmp(told.payload, "the payload", 12) == 0);
        CHECK(strcmp((char *)scatter_ring_region_data(inbox) + 4096, "the data") == 0);
    }
    DO(scatter_ring_batch_clear(batch, &error));
    DO(scatter_ring_batch_notify(batch, other, 1, NULL, 0, 0, &error));
    DO(scatter_ring_batch_submit(sender, batch, &ticket, &error));
    CHECK(scatter_ring_client_wait_notification(receiver, -1, &told, &error) == 0);
    CHECK(told.payload == NULL && told.payload_bytes == 0 && told.offset == 1);
    scatter_ring_ticket_free(ticket);
    scatter_ring_batch_free(batch);
    scatter_ring_region_free(mine);
    scatter_ring_region_free(other);
    scatter_ring_region_free(inbox);
    scatter_ring_client_free(sender);
    scatter_ring_client_free(receiver);
}

/* A receiver that takes no notifications in keeps a batch under way for as long as is wanted. */
static void a_batch_that_does_not_end_is_timed_out_or_cancelled(void) {
    scatter_ring_client_setup setup = {.size = sizeof setup, .cq_capacity = 4, .notifications = 1};
    scatter_ring_client *sender = attached(0), *receiver;
    DO(scatter_ring_client_attach_engine(engine, &setup, &receiver, &error));
    scatter_ring_region *inbox, *other;
    DO(scatter_ring_region_allocate(receiver, BYTES, &inbox, &error));
    DO(scatter_ring_region_export(receiver, inbox, "full", SCATTER_RING_RIGHTS_WRITE, &error));
    DO(scatter_ring_region_open(sender, "full", SCATTER_RING_RIGHTS_WRITE, &other, &error));
    scatter_ring_batch *batch;
    DO(scatter_ring_batch_new(sender, &batch, &error));
    DO(scatter_ring_batch_notify(batch, other, 0, NULL, 0, 0, &error));
    int32_t status;
    scatter_ring_ticket *ticket;
    for (int i = 0;; i++) {
        CHECK(i < 1000);
        DO(scatter_ring_batch_submit(sender, batch, &ticket, &error));
        status = scatter_ring_client_wait(sender, ticket, 300 * 1000 * 1000, NULL, &error);
        DO(status);
        if (status == SCATTER_RING_PENDING)
            break;
        scatter_ring_ticket_free(ticket);
    }
    CHECK(scatter_ring_client_wait(sender, ticket, 0, NULL, &error) == SCATTER_RING_PENDING);
    CHECK(scatter_ring_client_wait(sender, ticket, 1000, NULL, &error) == SCATTER_RING_PENDING);
    CHECK(scatter_ring_client_wait_released(sender, ticket, 0, &error) == SCATTER_RING_PENDING);
    CHECK(scatter_ring_region_is_busy(other));
    REFUSED(scatter_ring_region_close(sender, other, &error), SCATTER_RING_STATUS_NOT_ALLOWED,
            "still uses this region");
    /* The engine may not have taken it yet. */
    while ((status = scatter_ring_client_cancel(sender, ticket, &error)) == SCATTER_RING_STATUS_NOT_FOUND)
        CHECK(scatter_ring_client_wait(sender, ticket, 1000000, NULL, &error) == SCATTER_RING_PENDING);
    DO(status);
    REFUSED(scatter_ring_client_wait(sender, ticket, -1, NULL, &error), SCATTER_RING_STATUS_CANCELLED, "cancelled");
    CHECK(scatter_ring_client_wait_released(sender, ticket, -1, &error) == 0);
    REFUSED(scatter_ring_client_cancel(sender, ticket, &error), SCATTER_RING_STATUS_NOT_FOUND, "has ended");
    scatter_ring_ticket_free(ticket);

    DO(scatter_ring_batch_set_deadline(batch, 1000 * 1000, &error));
    DO(scatter_ring_batch_submit(sender, batch, &ticket, &error));
    REFUSED(scatter_ring_client_wait(sender, ticket, -1, NULL, &error), SCATTER_RING_STATUS_TIMED_OUT, "timed out");
    CHECK(error.stage == SCATTER_RING_STAGE_WAIT);
    scatter_ring_ticket_free(ticket);
    scatter_ring_batch_free(batch);
    scatter_ring_region_free(other);
    scatter_ring_region_free(inbox);
    scatter_ring_client_free(receiver);
    scatter_ring_client_free(sender);
}

int main(void) {
    DO(scatter_ring_engine_create(NULL, &engine, &error));
    raw_descriptors_are_pushed_and_their_spans_reaped();
    a_notification_wakes_a_loop_that_sleeps();
    a_batch_that_does_not_end_is_timed_out_or_cancelled();
    scatter_ring_engine_free(engine);
    puts("ok");
    return 0;
}
