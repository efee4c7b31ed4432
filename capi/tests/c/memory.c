/* Memory files, mapped memory and files of a disk are regions too, and can be opened by what they are called. */
#include "check.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES (ROWS * ROW_BYTES)

static scatter_ring_engine *engine;
static scatter_ring_client *client;

/* A row of a region, by a read of its own. */
static void has_row(scatter_ring_region *table, uint32_t number) {
    scatter_ring_region *out;
    DO(scatter_ring_region_allocate(client, ROW_BYTES, &out, &error));
    DO(scatter_ring_client_read_rows(client, table, ROW_BYTES, &number, 1, out, 0, NULL, &error));
    CHECK(is_row(scatter_ring_region_data(out), number));
    scatter_ring_region_free(out);
}

static void a_sealed_memory_file_is_registered_and_may_be_closed(void) {
    int fd = memfd_create("table", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, 4096 + BYTES) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    scatter_ring_region *table;
    DO(scatter_ring_region_register(client, fd, 4096, BYTES, SCATTER_RING_RIGHTS_READ, &table, &error));
    CHECK(close(fd) == 0);
    fill_rows(scatter_ring_region_data(table), ROWS);
    has_row(table, 321);
    /* What descriptors may not do the program may: the memory is its own. */
    REFUSED(scatter_ring_client_read(client, table, 0, table, ROW_BYTES, ROW_BYTES, NULL, &error),
            SCATTER_RING_STATUS_NO_RIGHT, "dst_region");
    scatter_ring_region_free(table);
}

static void mapped_memory_is_found_by_its_file(void) {
    int fd = memfd_create("mapped", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, BYTES) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    unsigned char *mapped = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(mapped != MAP_FAILED && close(fd) == 0);
    fill_rows(mapped, ROWS);
    scatter_ring_region *table;
    DO(scatter_ring_region_adopt(client, mapped, BYTES, SCATTER_RING_RIGHTS_READ | SCATTER_RING_RIGHTS_WRITE, &table,
                                 &error));
    CHECK(scatter_ring_region_data(table) == mapped);
    has_row(table, 999);
    DO(scatter_ring_region_close(client, table, &error));
    scatter_ring_region_free(table);

    scatter_ring_adopted *adopted;
    DO(scatter_ring_engine_adopt(engine, "mapped", mapped, BYTES, SCATTER_RING_RIGHTS_READ, &adopted, &error));
    CHECK(scatter_ring_adopted_is_shareable(adopted));
    scatter_ring_adopted_release(adopted);
    CHECK(munmap(mapped, BYTES) == 0);
}

static void an_unsealed_file_is_accepted_by_an_engine_that_trusts_its_user(void) {
    scatter_ring_engine_config config = {.size = sizeof config, .workers = -1, .trust_same_user = 1};
    scatter_ring_engine *trusting;
    scatter_ring_client *trusted;
    scatter_ring_region *table;
    DO(scatter_ring_engine_create(&config, &trusting, &error));
    DO(scatter_ring_client_attach_engine(trusting, NULL, &trusted, &error));
    int fd = memfd_create("unsealed", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, BYTES) == 0);
    DO(scatter_ring_region_register(trusted, fd, 0, BYTES, SCATTER_RING_RIGHTS_READ, &table, &error));
    close(fd);
    scatter_ring_region_free(table);
    scatter_ring_client_free(trusted);
    scatter_ring_engine_free(trusting);
}

static void a_file_is_served(const char *directory) {
    char path[128];
    snprintf(path, sizeof path, "%s/table", directory);
    unsigned char *rows = malloc(BYTES);
    fill_rows(rows, ROWS);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fwrite(rows, 1, BYTES, file) == BYTES && fclose(file) == 0);
    free(rows);
    DO(scatter_ring_guard_process(&error));
    DO(scatter_ring_guard_process(&error));
    DO(scatter_ring_engine_serve_file(engine, "file", path, 1, &error));
    REFUSED(scatter_ring_engine_serve_file(engine, "file", path, 0, &error), SCATTER_RING_STATUS_NAME_TAKEN, "already");
    scatter_ring_region *table;
    DO(scatter_ring_region_open(client, "file", SCATTER_RING_RIGHTS_READ, &table, &error));
    has_row(table, 17);
    scatter_ring_region_free(table);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    scatter_ring_engine_config config = {.size = sizeof config, .workers = 1};
    DO(scatter_ring_engine_create(&config, &engine, &error));
    DO(scatter_ring_client_attach_engine(engine, NULL, &client, &error));
    a_sealed_memory_file_is_registered_and_may_be_closed();
    mapped_memory_is_found_by_its_file();
    an_unsealed_file_is_accepted_by_an_engine_that_trusts_its_user();
    a_file_is_served(argv[1]);
    scatter_ring_client_free(client);
    scatter_ring_engine_free(engine);
    puts("ok");
    return 0;
}
