/* Reads scattered rows of a table that this program exports itself. Argument: the socket of `scatter-ring serve`.

       cc read_rows.c $(pkg-config --cflags --libs scatter_ring) -o read_rows */
#include <scatter_ring.h>
#include <stdio.h>
#include <unistd.h>

#define ROWS 1000u
#define ROW_BYTES 264u
#define COUNT 4u

static scatter_ring_error error;

/* Byte j of row i is i + j. */
static unsigned char byte_of(uint32_t row, uint32_t j) {
    return (unsigned char)(row + j);
}

/* Whoever has the table: allocates it, fills it, and gives it a name. */
static int32_t export_table(scatter_ring_client *owner, const char *name, scatter_ring_region **table) {
    int32_t status = scatter_ring_region_allocate(owner, ROWS * ROW_BYTES, table, &error);
    if (status < 0)
        return status;
    unsigned char *bytes = scatter_ring_region_data(*table);
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t j = 0; j < ROW_BYTES; j++)
            bytes[i * ROW_BYTES + j] = byte_of(i, j);
    return scatter_ring_region_export(owner, *table, name, SCATTER_RING_RIGHTS_READ, &error);
}

/* Whoever wants rows of it, in most cases another process: opens it by its name. */
static int32_t read_rows(scatter_ring_client *client, const char *name, const uint32_t *numbers,
                         scatter_ring_region **table, scatter_ring_region **out, scatter_ring_outcome *outcome) {
    int32_t status = scatter_ring_region_open(client, name, SCATTER_RING_RIGHTS_READ, table, &error);
    if (status == 0)
        status = scatter_ring_region_allocate(client, COUNT * ROW_BYTES, out, &error);
    if (status == 0)
        status = scatter_ring_client_read_rows(client, *table, ROW_BYTES, numbers, COUNT, *out, 0, outcome, &error);
    return status;
}

static int32_t verified(const unsigned char *out, const uint32_t *numbers) {
    for (uint32_t i = 0; i < COUNT; i++) {
        for (uint32_t j = 0; j < ROW_BYTES; j++) {
            if (out[i * ROW_BYTES + j] != byte_of(numbers[i], j)) {
                snprintf(error.message, sizeof error.message, "row %u is wrong at place %u", numbers[i], i);
                return -1;
            }
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: read_rows SOCKET\n");
        return 2;
    }
    const uint32_t numbers[COUNT] = {7, 3, 999, 7};
    char name[64];
    snprintf(name, sizeof name, "example-table-%d", (int)getpid());
    scatter_ring_client *owner = NULL, *client = NULL;
    scatter_ring_region *table = NULL, *opened = NULL, *out = NULL;
    scatter_ring_outcome outcome;

    int32_t status = scatter_ring_client_attach(argv[1], NULL, &owner, &error);
    if (status == 0)
        status = export_table(owner, name, &table);
    if (status == 0)
        status = scatter_ring_client_attach(argv[1], NULL, &client, &error);
    if (status == 0)
        status = read_rows(client, name, numbers, &opened, &out, &outcome);
    if (status == 0)
        status = verified(scatter_ring_region_data(out), numbers);
    if (status == 0)
        printf("%u rows, %llu bytes, verified\n", COUNT, (unsigned long long)outcome.bytes);
    else
        fprintf(stderr, "read_rows: %s\n", error.message);

    scatter_ring_region_free(out);
    scatter_ring_region_free(opened);
    scatter_ring_region_free(table);
    scatter_ring_client_free(client);
    scatter_ring_client_free(owner);
    return status == 0 ? 0 : 1;
}
