/*
 * Many batches of single rows, every completion accounted for: with the C library, by the raw ring.
 * Arguments: socket, name of the table, descriptors (0: for ever).
 */
#include <inttypes.h>
#include <scatter_ring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_ROWS 4096u
#define ROW_WORDS 8u
#define ROW_BYTES 64u
#define ROWS_MAX 64u
#define WINDOW 32u

static scatter_ring_error error;

static void need(int32_t status) {
    if (status < 0) {
        fprintf(stderr, "storm: %s\n", error.message);
        exit(1);
    }
}

static void claim(bool holds, const char *what, uint64_t batch) {
    if (!holds) {
        fprintf(stderr, "storm: batch %" PRIu64 ": %s\n", batch, what);
        exit(1);
    }
}

static uint32_t rows_of(uint64_t batch) { return 1 + (uint32_t)(batch * 37 % ROWS_MAX); }
static uint64_t row_of(uint64_t batch, uint32_t i) { return (batch * 131 + i * UINT64_C(17)) % TABLE_ROWS; }
static uint64_t place_of(uint64_t batch, uint32_t i) { return batch % WINDOW * ROWS_MAX + i; }

static uint64_t *out;
static uint32_t expected[WINDOW]; /* Descriptors of the batch in each place of the window, 0 for none. */

static void verify(const scatter_ring_span *span) {
    uint64_t batch = span->user_data;
    uint32_t *rows = &expected[batch % WINDOW];
    claim(span->status == SCATTER_RING_STATUS_OK, scatter_ring_status_text(span->status), batch);
    claim(scatter_ring_span_is_batch_done(span) && !scatter_ring_span_is_held(span), "not done", batch);
    claim(*rows != 0 && span->count == *rows, "completed twice, or in part", batch);
    claim(span->bytes == *rows * (uint64_t)ROW_BYTES, "another number of bytes", batch);
    for (uint32_t i = 0; i < *rows; i++)
        for (uint32_t word = 0; word < ROW_WORDS; word++)
            claim(out[place_of(batch, i) * ROW_WORDS + word] == row_of(batch, i) * ROW_WORDS + word, "a wrong row", batch);
    *rows = 0;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    uint64_t total = strtoull(argv[3], NULL, 10), submitted = 0, completed = 0, bytes = 0, batches = 0;
    scatter_ring_client *client;
    scatter_ring_region *table, *region;
    need(scatter_ring_client_attach(argv[1], NULL, &client, &error));
    need(scatter_ring_region_open(client, argv[2], SCATTER_RING_RIGHTS_READ, &table, &error));
    need(scatter_ring_region_allocate(client, WINDOW * ROWS_MAX * ROW_BYTES, &region, &error));
    out = scatter_ring_region_data(region);
    puts("begun");
    fflush(stdout);
    while (total == 0 || completed < total) {
        while ((total == 0 || submitted < total) && expected[batches % WINDOW] == 0) {
            uint32_t rows = rows_of(batches);
            if (total != 0 && rows > total - submitted)
                rows = (uint32_t)(total - submitted);
            scatter_ring_descriptor batch[ROWS_MAX];
            for (uint32_t i = 0; i < rows; i++)
                batch[i] = (scatter_ring_descriptor){
                    .opcode = SCATTER_RING_OPCODE_READ, .len = ROW_BYTES, .count = 1, .user_data = batches,
                    .flags = i + 1 == rows ? SCATTER_RING_FLAGS_LAST : 0,
                    .src_region = scatter_ring_region_handle(table), .src_offset = row_of(batches, i) * ROW_BYTES,
                    .dst_region = scatter_ring_region_handle(region), .dst_offset = place_of(batches, i) * ROW_BYTES};
            for (uint32_t pushed = 0; pushed < rows;) {
                int32_t more = scatter_ring_client_push(client, batch + pushed, rows - pushed, &error);
                need(more);
                need(scatter_ring_client_submit(client, &error));
                pushed += (uint32_t)more;
            }
            expected[batches++ % WINDOW] = rows;
            submitted += rows;
        }
        scatter_ring_span spans[WINDOW];
        need(scatter_ring_client_wait_any(client, -1, &error));
        int32_t count = scatter_ring_client_reap(client, spans, WINDOW, &error);
        need(count);
        for (int32_t i = 0; i < count; i++) {
            verify(&spans[i]);
            completed += spans[i].count;
            bytes += spans[i].bytes;
        }
    }
    printf("done %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", batches, completed, bytes);
    scatter_ring_region_free(region);
    scatter_ring_region_free(table);
    scatter_ring_client_free(client);
    return 0;
}
