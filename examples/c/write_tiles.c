/* Writes a tile of a matrix into the middle of another one. Argument: the socket of `scatter-ring serve`.

       cc write_tiles.c $(pkg-config --cflags --libs scatter_ring) -o write_tiles */
#include <scatter_ring.h>
#include <stdio.h>
#include <stdlib.h>

/* Both matrices: 64 rows of 512 bytes. */
#define ROWS 64u
#define ROW_BYTES 512u

/* The tile: 128 bytes of each row, from column 32 here to column 192 there. */
#define TILE_BYTES 128u
#define FROM 32u
#define TO 192u

static scatter_ring_error error;

/* Ends a program that cannot go on. The kernel takes back what it has, and the engine sees that it has gone. */
static void need(int32_t status) {
    if (status < 0) {
        fprintf(stderr, "write_tiles: %s\n", error.message);
        exit(1);
    }
}

/* Everything but the tile is 0. */
static int is_written(const unsigned char *mine, const unsigned char *other) {
    for (uint32_t row = 0; row < ROWS; row++) {
        for (uint32_t column = 0; column < ROW_BYTES; column++) {
            int inside = column >= TO && column < TO + TILE_BYTES;
            unsigned char expected = inside ? mine[row * ROW_BYTES + column - TO + FROM] : 0;
            if (other[row * ROW_BYTES + column] != expected)
                return 0;
        }
    }
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: write_tiles SOCKET\n");
        return 2;
    }
    scatter_ring_client *client;
    scatter_ring_region *mine, *other;
    need(scatter_ring_client_attach(argv[1], NULL, &client, &error));
    need(scatter_ring_region_allocate(client, ROWS * ROW_BYTES, &mine, &error));
    need(scatter_ring_region_allocate(client, ROWS * ROW_BYTES, &other, &error));
    unsigned char *bytes = scatter_ring_region_data(mine);
    for (uint32_t i = 0; i < ROWS * ROW_BYTES; i++)
        bytes[i] = (unsigned char)(i % 251);

    /* One descriptor for all pieces. A batch can have any number of them, and be submitted as often as is wanted. */
    scatter_ring_tile tile = {.src = mine, .src_offset = FROM, .src_stride = ROW_BYTES,
                              .dst = other, .dst_offset = TO, .dst_stride = ROW_BYTES,
                              .len = TILE_BYTES, .count = ROWS};
    scatter_ring_batch *batch;
    scatter_ring_ticket *ticket;
    scatter_ring_outcome outcome;
    need(scatter_ring_batch_new(client, &batch, &error));
    need(scatter_ring_batch_write_tile(batch, &tile, &error));
    need(scatter_ring_batch_submit(client, batch, &ticket, &error));
    need(scatter_ring_client_wait(client, ticket, -1, &outcome, &error));

    int written = is_written(bytes, scatter_ring_region_data(other));
    if (written)
        printf("%u pieces, %llu bytes, verified\n", ROWS, (unsigned long long)outcome.bytes);
    else
        fprintf(stderr, "write_tiles: the tile is not where it belongs, or something else has changed\n");
    scatter_ring_ticket_free(ticket);
    scatter_ring_batch_free(batch);
    scatter_ring_region_free(other);
    scatter_ring_region_free(mine);
    scatter_ring_client_free(client);
    return written ? 0 : 1;
}
