/* Every shape of a batch moves the bytes that it says. A batch is recorded once and submitted as often as is wanted. */
#include "check.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES (1u << 20)

static scatter_ring_client *client;
static scatter_ring_batch *batch;
static scatter_ring_region *src, *dst, *index_memory;
static unsigned char *from, *to, *expected;

static void start_anew(void) {
    DO(scatter_ring_batch_clear(batch, &error));
    memset(to, 0xaa, BYTES);
    memset(expected, 0xaa, BYTES);
}

/* Submits the batch, and waits for it. */
static scatter_ring_outcome done(void) {
    scatter_ring_ticket *ticket;
    scatter_ring_outcome outcome;
    DO(scatter_ring_batch_submit(client, batch, &ticket, &error));
    DO(scatter_ring_client_wait(client, ticket, -1, &outcome, &error));
    CHECK(outcome.position == scatter_ring_ticket_position(ticket));
    CHECK(scatter_ring_client_wait_released(client, ticket, 0, &error) == 0);
    scatter_ring_ticket_free(ticket);
    CHECK(memcmp(to, expected, BYTES) == 0);
    return outcome;
}

static void a_range(void) {
    start_anew();
    DO(scatter_ring_batch_set_user_data(batch, 77, &error));
    DO(scatter_ring_batch_read(batch, src, 100, dst, 200, 300, &error));
    DO(scatter_ring_batch_write(batch, src, 5000, dst, 6000, 1, &error));
    memcpy(expected + 200, from + 100, 300);
    expected[6000] = from[5000];
    scatter_ring_outcome outcome = done();
    CHECK(outcome.bytes == 301 && outcome.user_data == 77);
}

/* More than a descriptor can say: a row of pieces, and a rest. */
static void a_long_range(void) {
    const uint64_t gib = UINT64_C(1) << 30;
    scatter_ring_region *far, *near;
    int fd = memfd_create("sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)(3 * gib)) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    DO(scatter_ring_region_register(client, fd, 0, 3 * gib, SCATTER_RING_RIGHTS_READ, &far, &error));
    DO(scatter_ring_region_allocate(client, 4096, &near, &error));
    close(fd);
    /* It ends behind its destination's end: all of it is refused by its first piece. */
    start_anew();
    DO(scatter_ring_batch_read(batch, far, 0, near, 0, 2 * gib + 5, &error));
    DO(scatter_ring_batch_read(batch, far, 3 * gib - 1, near, 0, 2, &error));
    scatter_ring_ticket *ticket;
    DO(scatter_ring_batch_submit(client, batch, &ticket, &error));
    REFUSED(scatter_ring_client_wait(client, ticket, -1, NULL, &error), SCATTER_RING_STATUS_OUT_OF_RANGE, "dst_offset");
    CHECK(error.descriptor == 0 && error.bytes_done == 0);
    scatter_ring_ticket_free(ticket);
    start_anew();
    REFUSED(scatter_ring_batch_read(batch, far, 0, near, 0, UINT64_MAX, &error), SCATTER_RING_STATUS_INVALID_SETTING,
            "more than a range can have");
    scatter_ring_region_free(far);
    scatter_ring_region_free(near);
}

static void rows_with_strides_and_missing_ones(void) {
    uint64_t *numbers = scatter_ring_region_data(index_memory);
    numbers[1] = 9;
    numbers[2] = SCATTER_RING_MISSING_U64;
    numbers[3] = 0;
    scatter_ring_rows rows = {.table = src, .table_offset = 64, .table_stride = 512, .row_bytes = 100,
                              .index = index_memory, .index_offset = 8, .numbers = SCATTER_RING_INDEX_KIND_U64,
                              .count = 3, .buffer = dst, .buffer_offset = 1000, .buffer_stride = 128,
                              .missing = SCATTER_RING_MISSING_ZERO};
    start_anew();
    DO(scatter_ring_batch_read_rows(batch, &rows, &error));
    memcpy(expected + 1000, from + 64 + 9 * 512, 100);
    memset(expected + 1128, 0, 100);
    memcpy(expected + 1256, from + 64, 100);
    CHECK(done().bytes == 300);

    rows.missing = SCATTER_RING_MISSING_SKIP;
    start_anew();
    DO(scatter_ring_batch_read_rows(batch, &rows, &error));
    memcpy(expected + 1000, from + 64 + 9 * 512, 100);
    memcpy(expected + 1256, from + 64, 100);
    done();
}

static void written_rows(void) {
    uint32_t *numbers = scatter_ring_region_data(index_memory);
    numbers[0] = 40;
    numbers[1] = 4;
    scatter_ring_rows rows = {.table = dst, .row_bytes = 256, .index = index_memory, .count = 2, .buffer = src,
                              .buffer_offset = 10};
    start_anew();
    DO(scatter_ring_batch_write_rows(batch, &rows, &error));
    memcpy(expected + 40 * 256, from + 10, 256);
    memcpy(expected + 4 * 256, from + 266, 256);
    CHECK(done().bytes == 512);
}

static void blocks_of_both_sides(void) {
    const uint32_t numbers[] = {3, 1, 2, 0, 8, 4};
    memcpy(scatter_ring_region_data(index_memory), numbers, sizeof numbers);
    scatter_ring_blocks blocks = {.src = src, .src_offset = 7, .dst = dst, .dst_offset = 9, .block_bytes = 4096,
                                  .dst_stride = 5000, .count = 3, .index = index_memory};
    for (int writes = 0; writes < 2; writes++) {
        start_anew();
        if (writes)
            DO(scatter_ring_batch_write_blocks(batch, &blocks, &error));
        else
            DO(scatter_ring_batch_read_blocks(batch, &blocks, &error));
        for (int i = 0; i < 3; i++)
            memcpy(expected + 9 + numbers[3 + i] * 5000, from + 7 + numbers[i] * 4096, 4096);
        CHECK(done().bytes == 3 * 4096);
    }
}

static void ranges_of_any_lengths(void) {
    const scatter_ring_fragment_record records[] = {{.src = 0, .dst = 9000, .len = 11},
                                                    {.src = 500, .dst = 0, .len = 1},
                                                    {.src = 20000, .dst = 30000, .len = 4000}};
    memcpy(scatter_ring_region_data(index_memory), records, sizeof records);
    scatter_ring_ranges ranges = {.src = src, .src_offset = 3, .dst = dst, .dst_offset = 5, .records = index_memory,
                                  .count = 3};
    for (int writes = 0; writes < 2; writes++) {
        start_anew();
        if (writes)
            DO(scatter_ring_batch_write_ranges(batch, &ranges, &error));
        else
            DO(scatter_ring_batch_read_ranges(batch, &ranges, &error));
        for (int i = 0; i < 3; i++)
            memcpy(expected + 5 + records[i].dst, from + 3 + records[i].src, records[i].len);
        CHECK(done().bytes == 4012);
    }
}

static void tiles(void) {
    scatter_ring_tile tile = {.src = src, .src_offset = 32, .src_stride = 512, .dst = dst, .dst_offset = 192,
                              .dst_stride = 1024, .len = 128, .count = 64};
    for (int writes = 0; writes < 2; writes++) {
        start_anew();
        if (writes)
            DO(scatter_ring_batch_write_tile(batch, &tile, &error));
        else
            DO(scatter_ring_batch_read_tile(batch, &tile, &error));
        for (int i = 0; i < 64; i++)
            memcpy(expected + 192 + i * 1024, from + 32 + i * 512, 128);
        CHECK(done().bytes == 64 * 128);
    }
}

static void many_descriptors_in_one_call(void) {
    /* More than the ring holds. */
    enum { COUNT = 200 };
    scatter_ring_descriptor descriptors[COUNT];
    memset(descriptors, 0, sizeof descriptors);
    start_anew();
    for (uint32_t i = 0; i < COUNT; i++) {
        descriptors[i].opcode = SCATTER_RING_OPCODE_READ;
        descriptors[i].len = 16;
        descriptors[i].count = 1;
        descriptors[i].src_region = scatter_ring_region_handle(src);
        descriptors[i].dst_region = scatter_ring_region_handle(dst);
        descriptors[i].src_offset = i * 100;
        descriptors[i].dst_offset = i * 16;
        descriptors[i].user_data = i;
        memcpy(expected + i * 16, from + i * 100, 16);
    }
    scatter_ring_region *regions[] = {dst, src};
    DO(scatter_ring_batch_push(batch, descriptors, COUNT, regions, 2, &error));

    /* And one with an inner repeat. */
    scatter_ring_descriptor descriptor = descriptors[COUNT - 1];
    descriptor.src_offset = 50000;
    descriptor.dst_offset = 60000;
    scatter_ring_extension extension = {.opcode = SCATTER_RING_OPCODE_EXTENSION, .inner_count = 4,
                                        .inner_src_stride = 1000, .inner_dst_stride = 64};
    DO(scatter_ring_batch_push_extended(batch, &descriptor, &extension, regions, 2, &error));
    for (int i = 0; i < 4; i++)
        memcpy(expected + 60000 + i * 64, from + 50000 + i * 1000, 16);
    DO(scatter_ring_batch_set_hint(batch, COUNT + 4, COUNT * 16 + 64, &error));
    DO(scatter_ring_batch_set_fence(batch, 1, &error));
    DO(scatter_ring_batch_set_deadline(batch, UINT64_C(60000000000), &error));
    scatter_ring_outcome outcome = done();
    CHECK(outcome.bytes == COUNT * 16 + 64 && outcome.user_data == COUNT - 1);

    /* The same once more, and what fails is counted as it was added. */
    memset(to, 0xaa, BYTES);
    CHECK(done().bytes == COUNT * 16 + 64);
    DO(scatter_ring_batch_read(batch, src, BYTES, dst, 0, 1, &error));
    scatter_ring_ticket *ticket;
    DO(scatter_ring_batch_submit(client, batch, &ticket, &error));
    REFUSED(scatter_ring_client_wait(client, ticket, -1, NULL, &error), SCATTER_RING_STATUS_OUT_OF_RANGE, "src_offset");
    CHECK(error.descriptor == COUNT + 1 && error.bytes_done == COUNT * 16 + 64 && error.detail == BYTES);
    scatter_ring_ticket_free(ticket);
}

static void a_batch_can_be_under_way_more_than_once(void) {
    start_anew();
    DO(scatter_ring_batch_read(batch, src, 0, dst, 0, BYTES, &error));
    memcpy(expected, from, BYTES);
    scatter_ring_ticket *tickets[3];
    for (int i = 0; i < 3; i++)
        DO(scatter_ring_batch_submit(client, batch, &tickets[i], &error));
    for (int i = 2; i >= 0; i--) {
        DO(scatter_ring_client_wait(client, tickets[i], -1, NULL, &error));
        scatter_ring_ticket_free(tickets[i]);
    }
    CHECK(memcmp(to, expected, BYTES) == 0);
}

static void an_empty_batch_is_done(void) {
    start_anew();
    CHECK(done().bytes == 0);
}

static void memory_for_an_index_is_given_again(void) {
    scatter_ring_region *first, *second;
    DO(scatter_ring_region_for_index(client, 4096, &first, &error));
    DO(scatter_ring_region_for_index(client, 4096, &second, &error));
    uint32_t handle = scatter_ring_region_handle(first);
    CHECK(handle != scatter_ring_region_handle(second));
    scatter_ring_region_free(first);
    DO(scatter_ring_region_for_index(client, 4096, &first, &error));
    CHECK(handle == scatter_ring_region_handle(first));
    scatter_ring_region_free(first);
    scatter_ring_region_free(second);
}

int main(void) {
    scatter_ring_engine *engine;
    DO(scatter_ring_engine_create(NULL, &engine, &error));
    scatter_ring_client_setup setup = {.size = sizeof setup, .sq_capacity = 64, .cq_capacity = 64,
                                       .start_position = UINT64_MAX - 100};
    DO(scatter_ring_client_attach_engine(engine, &setup, &client, &error));
    DO(scatter_ring_batch_new(client, &batch, &error));
    DO(scatter_ring_region_allocate(client, BYTES, &src, &error));
    DO(scatter_ring_region_allocate(client, BYTES, &dst, &error));
    DO(scatter_ring_region_allocate(client, 4096, &index_memory, &error));
    from = scatter_ring_region_data(src);
    to = scatter_ring_region_data(dst);
    expected = malloc(BYTES);
    for (uint32_t i = 0; i < BYTES; i++)
        from[i] = (unsigned char)((i * UINT32_C(2654435761)) >> 24);
    a_range();
    a_long_range();
    rows_with_strides_and_missing_ones();
    written_rows();
    blocks_of_both_sides();
    ranges_of_any_lengths();
    tiles();
    many_descriptors_in_one_call();
    a_batch_can_be_under_way_more_than_once();
    an_empty_batch_is_done();
    memory_for_an_index_is_given_again();
    free(expected);
    scatter_ring_batch_free(batch);
    scatter_ring_region_free(src);
    scatter_ring_region_free(dst);
    scatter_ring_region_free(index_memory);
    scatter_ring_client_free(client);
    scatter_ring_engine_free(engine);
    puts("ok");
    return 0;
}
