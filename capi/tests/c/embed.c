/* An engine in this process, malloc'ed memory that it adopts, and clients that read and write rows of it. */
#include "check.h"

#include <stdatomic.h>

static scatter_ring_engine *engine;
static unsigned char *table;
/* For a socket. */
static const char *directory;

static atomic_int sessions_begun;

/* Called by a thread of the engine. */
static void write_log(void *context, int32_t level, const char *message) {
    CHECK(context == &sessions_begun && level >= SCATTER_RING_LOG_ERROR && level <= SCATTER_RING_LOG_INFO);
    if (strncmp(message, "session begun session=", 22) == 0)
        sessions_begun++;
}

static void the_log_is_written_once(void) {
    REFUSED(scatter_ring_set_log(NULL, NULL, SCATTER_RING_LOG_INFO, &error), SCATTER_RING_STATUS_INVALID_SETTING,
            "callback is NULL");
    REFUSED(scatter_ring_set_log(write_log, NULL, 4, &error), SCATTER_RING_STATUS_INVALID_SETTING, "level 4");
    DO(scatter_ring_set_log(write_log, &sessions_begun, SCATTER_RING_LOG_INFO, &error));
    REFUSED(scatter_ring_set_log(write_log, NULL, SCATTER_RING_LOG_INFO, &error), SCATTER_RING_STATUS_NOT_ALLOWED,
            "already");
}

static void rows_of_adopted_memory_arrive(void) {
    scatter_ring_client *client;
    scatter_ring_region *opened, *out;
    DO(scatter_ring_client_attach_engine(engine, NULL, &client, &error));
    DO(scatter_ring_region_open(client, "table", SCATTER_RING_RIGHTS_READ, &opened, &error));
    CHECK(scatter_ring_region_bytes(opened) == ROWS * ROW_BYTES);
    CHECK(scatter_ring_region_data(opened) == NULL);
    CHECK(scatter_ring_region_rights(opened) == SCATTER_RING_RIGHTS_READ);
    const uint32_t numbers[] = {7, 3, 999, 7};
    DO(scatter_ring_region_allocate(client, 4 * ROW_BYTES, &out, &error));
    scatter_ring_outcome outcome;
    DO(scatter_ring_client_read_rows(client, opened, ROW_BYTES, numbers, 4, out, 0, &outcome, &error));
    CHECK(outcome.bytes == 4 * ROW_BYTES && outcome.reusable == 1);
    CHECK(scatter_ring_route_name(outcome.route) != NULL && outcome.total_ns > 0);
    const unsigned char *got = scatter_ring_region_data(out);
    for (int i = 0; i < 4; i++)
        CHECK(is_row(got + i * ROW_BYTES, numbers[i]));

    /* The table is this process's: a client that may not write it cannot. */
    REFUSED(scatter_ring_client_write_rows(client, opened, ROW_BYTES, numbers, 4, out, 0, NULL, &error),
            SCATTER_RING_STATUS_NO_RIGHT, "dst_region");
    CHECK(error.descriptor == 0 && error.field == SCATTER_RING_FIELD_DST_REGION && error.reusable == 1);
    CHECK(error.stage == SCATTER_RING_STAGE_PLAN && error.peer == 0);

    scatter_ring_client_info info;
    DO(scatter_ring_client_get_info(client, &info, &error));
    CHECK((info.features & SCATTER_RING_FEATURES_LOCAL) != 0 && info.sq_capacity == 4096 && info.cq_capacity == 1024);

    /* In any order: what is still needed stays. */
    scatter_ring_client_free(client);
    scatter_ring_region_free(out);
    scatter_ring_region_free(opened);
}

static void written_rows_are_in_adopted_memory(void) {
    unsigned char *target = calloc(ROWS, ROW_BYTES);
    scatter_ring_adopted *adopted;
    DO(scatter_ring_engine_adopt(engine, "target", target, ROWS * ROW_BYTES, SCATTER_RING_RIGHTS_WRITE, &adopted,
                                 &error));
    CHECK(!scatter_ring_adopted_is_shareable(adopted));
    scatter_ring_client *client;
    scatter_ring_region *opened, *from;
    DO(scatter_ring_client_attach_engine(engine, NULL, &client, &error));
    DO(scatter_ring_region_open(client, "target", SCATTER_RING_RIGHTS_WRITE, &opened, &error));
    DO(scatter_ring_region_allocate(client, 3 * ROW_BYTES, &from, &error));
    fill_rows(scatter_ring_region_data(from), 3);
    const uint32_t numbers[] = {500, 0, 999};
    DO(scatter_ring_client_write_rows(client, opened, ROW_BYTES, numbers, 3, from, 0, NULL, &error));
    for (uint32_t i = 0; i < 3; i++)
        CHECK(is_row(target + numbers[i] * ROW_BYTES, i));
    CHECK(target[ROW_BYTES] == 0);

    scatter_ring_adopted_release(adopted);
    free(target);
    REFUSED(scatter_ring_client_write_rows(client, opened, ROW_BYTES, numbers, 3, from, 0, NULL, &error),
            SCATTER_RING_STATUS_REGION_GONE, "the region is gone");
    scatter_ring_region *none = from;
    REFUSED(scatter_ring_region_open(client, "target", SCATTER_RING_RIGHTS_WRITE, &none, &error),
            SCATTER_RING_STATUS_NAME_UNKNOWN, "no such export");
    CHECK(none == NULL);
    scatter_ring_region_free(from);
    scatter_ring_region_free(opened);
    scatter_ring_client_free(client);
}

static void an_attach_socket_is_a_file_descriptor_that_can_be_handed_over(void) {
    int fd = scatter_ring_engine_connect(engine, &error);
    CHECK(fd >= 0);
    scatter_ring_client *client;
    DO(scatter_ring_client_over(fd, NULL, &client, &error));
    scatter_ring_region *region;
    DO(scatter_ring_region_allocate(client, 4096, &region, &error));
    DO(scatter_ring_region_write(region, 100, "hello", 6, &error));
    char text[6];
    DO(scatter_ring_region_read(region, 100, text, 6, &error));
    CHECK(strcmp(text, "hello") == 0);
    scatter_ring_region_free(region);
    scatter_ring_client_free(client);
}

static void other_processes_attach_by_a_path(void) {
    char path[108];
    snprintf(path, sizeof path, "%s/engine/socket", directory);
    DO(scatter_ring_engine_listen(engine, path, &error));
    scatter_ring_client *client;
    scatter_ring_client_setup setup = {.size = sizeof setup, .sq_capacity = 16, .cq_capacity = 16};
    DO(scatter_ring_client_attach(path, &setup, &client, &error));
    scatter_ring_client_info info;
    DO(scatter_ring_client_get_info(client, &info, &error));
    CHECK(info.sq_capacity == 16);
    /* What could not be adopted by the engine of another process can be lent to it. */
    scatter_ring_owner *owner;
    scatter_ring_lent *lent;
    DO(scatter_ring_owner_attach(path, &owner, &error));
    DO(scatter_ring_owner_lend(owner, "lent", table, ROWS * ROW_BYTES, SCATTER_RING_RIGHTS_READ, &lent, &error));
    scatter_ring_region *opened, *out;
    DO(scatter_ring_region_open(client, "lent", SCATTER_RING_RIGHTS_READ, &opened, &error));
    DO(scatter_ring_region_allocate(client, ROW_BYTES, &out, &error));
    const uint32_t number = 123;
    DO(scatter_ring_client_read_rows(client, opened, ROW_BYTES, &number, 1, out, 0, NULL, &error));
    CHECK(is_row(scatter_ring_region_data(out), 123));
    CHECK(!scatter_ring_owner_is_lost(owner));
    scatter_ring_lent_release(lent);
    scatter_ring_owner_free(owner);
    scatter_ring_region_free(out);
    scatter_ring_region_free(opened);
    scatter_ring_client_free(client);
}

static void the_counters_know_it_and_a_stopped_engine_says_so(void) {
    scatter_ring_counters counters;
    DO(scatter_ring_engine_counters(engine, &counters, &error));
    CHECK(counters.sessions >= 4 && counters.bytes >= 7 * ROW_BYTES && counters.batches_failed == 2);
    scatter_ring_client *client;
    DO(scatter_ring_client_attach_engine(engine, NULL, &client, &error));
    DO(scatter_ring_engine_stop(engine, UINT64_C(1000000000), &counters, &error));
    CHECK(counters.batches_cut == 0 && sessions_begun > 0);
    REFUSED(scatter_ring_engine_stop(engine, 0, NULL, &error), SCATTER_RING_STATUS_STOPPING, "stopped before");
    REFUSED(scatter_ring_engine_counters(engine, &counters, &error), SCATTER_RING_STATUS_STOPPING, "was stopped");
    CHECK(scatter_ring_client_submit(client, &error) <= 0);
    CHECK(scatter_ring_client_wait_any(client, -1, &error) < 0);
    CHECK(strstr(error.message, "the session has ended") != NULL);
    scatter_ring_client_free(client);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    directory = argv[1];
    CHECK(strcmp(scatter_ring_version(), VERSION) == 0);
    the_log_is_written_once();
    table = malloc(ROWS * ROW_BYTES);
    fill_rows(table, ROWS);
    scatter_ring_engine_config config = {.size = sizeof config, .workers = 1};
    DO(scatter_ring_engine_create(&config, &engine, &error));
    scatter_ring_adopted *adopted;
    DO(scatter_ring_engine_adopt(engine, "table", table, ROWS * ROW_BYTES, SCATTER_RING_RIGHTS_READ, &adopted, &error));
    rows_of_adopted_memory_arrive();
    written_rows_are_in_adopted_memory();
    an_attach_socket_is_a_file_descriptor_that_can_be_handed_over();
    other_processes_attach_by_a_path();
    the_counters_know_it_and_a_stopped_engine_says_so();
    scatter_ring_engine_free(engine);
    scatter_ring_adopted_release(adopted);
    free(table);
    puts("ok");
    return 0;
}
