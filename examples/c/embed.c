/* An engine in this process, which serves malloc'ed memory to a client of the same process: no daemon is needed. Given
   a path for a socket as its argument, it serves clients of other processes too.

       cc embed.c $(pkg-config --cflags --libs scatter_ring) -o embed */
#include <scatter_ring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 1000u
#define ROW_BYTES 264u

static scatter_ring_error error;

static void need(int32_t status) {
    if (status < 0) {
        fprintf(stderr, "embed: %s\n", error.message);
        exit(1);
    }
}

int main(int argc, char **argv) {
    unsigned char *table = malloc(ROWS * ROW_BYTES);
    if (table == NULL)
        return 1;
    for (uint32_t i = 0; i < ROWS * ROW_BYTES; i++)
        table[i] = (unsigned char)(i / ROW_BYTES + i % ROW_BYTES);

    scatter_ring_engine_config config = {.size = sizeof config, .workers = 1};
    scatter_ring_engine *engine;
    scatter_ring_adopted *adopted;
    need(scatter_ring_engine_create(&config, &engine, &error));
    need(scatter_ring_engine_adopt(engine, "table", table, ROWS * ROW_BYTES, SCATTER_RING_RIGHTS_READ, &adopted,
                                   &error));
    if (argc > 1)
        need(scatter_ring_engine_listen(engine, argv[1], &error));

    /* A client, as it would be in any other process. One for each thread. */
    scatter_ring_client *client;
    scatter_ring_region *opened, *out;
    need(scatter_ring_client_attach_engine(engine, NULL, &client, &error));
    need(scatter_ring_region_open(client, "table", SCATTER_RING_RIGHTS_READ, &opened, &error));
    need(scatter_ring_region_allocate(client, 2 * ROW_BYTES, &out, &error));
    const uint32_t numbers[] = {999, 7};
    need(scatter_ring_client_read_rows(client, opened, ROW_BYTES, numbers, 2, out, 0, NULL, &error));
    const unsigned char *got = scatter_ring_region_data(out);
    int right = memcmp(got, table + 999 * ROW_BYTES, ROW_BYTES) == 0 &&
                memcmp(got + ROW_BYTES, table + 7 * ROW_BYTES, ROW_BYTES) == 0;

    /* What does not exist is said in words. */
    const uint32_t outside = 1000;
    int32_t status = scatter_ring_client_read_rows(client, opened, ROW_BYTES, &outside, 1, out, 0, NULL, &error);
    printf("row 1000: %s: %s\n", scatter_ring_status_name(status), error.message);

    scatter_ring_region_free(out);
    scatter_ring_region_free(opened);
    scatter_ring_client_free(client);
    /* From here on nobody touches the table. */
    scatter_ring_adopted_release(adopted);
    free(table);
    need(scatter_ring_engine_stop(engine, UINT64_C(1000000000), NULL, &error));
    scatter_ring_engine_free(engine);
    if (right)
        printf("2 rows, %u bytes, verified\n", 2 * ROW_BYTES);
    return right ? 0 : 1;
}
