/* What can be done wrong is a status with a message that says what to do. */
#include "check.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define INVALID SCATTER_RING_STATUS_INVALID_SETTING

static scatter_ring_engine *engine;
static scatter_ring_client *client, *stranger;
static scatter_ring_region *region;

static void null_is_named(void) {
    scatter_ring_region *none;
    scatter_ring_batch *batch;
    scatter_ring_ticket *ticket;
    const uint32_t row = 0;
    REFUSED(scatter_ring_engine_create(NULL, NULL, &error), INVALID, "engine is NULL");
    REFUSED(scatter_ring_engine_listen(NULL, "/tmp/x", &error), INVALID, "engine is NULL");
    REFUSED(scatter_ring_engine_listen(engine, NULL, &error), INVALID, "path is NULL");
    REFUSED(scatter_ring_client_attach(NULL, NULL, &stranger, &error), INVALID, "path is NULL");
    REFUSED(scatter_ring_region_allocate(NULL, 1, &none, &error), INVALID, "client is NULL");
    REFUSED(scatter_ring_region_allocate(client, 1, NULL, &error), INVALID, "region is NULL");
    REFUSED(scatter_ring_engine_adopt(engine, "x", NULL, 1, 1, NULL, &error), INVALID, "adopted is NULL");
    REFUSED(scatter_ring_batch_new(NULL, &batch, &error), INVALID, "client is NULL");
    REFUSED(scatter_ring_batch_submit(client, NULL, &ticket, &error), INVALID, "batch is NULL");
    REFUSED(scatter_ring_client_wait(client, NULL, 0, NULL, &error), INVALID, "ticket is NULL");
    REFUSED(scatter_ring_client_push(client, NULL, 3, &error), INVALID, "descriptors is NULL, with a count of 3");
    REFUSED(scatter_ring_client_reap(client, NULL, 3, &error), INVALID, "spans is NULL");
    REFUSED(scatter_ring_client_read_rows(client, region, 1, NULL, 1, region, 0, NULL, &error), INVALID,
            "rows is NULL");
    REFUSED(scatter_ring_client_read_rows(client, NULL, 1, &row, 1, region, 0, NULL, &error), INVALID, "table is NULL");
    REFUSED(scatter_ring_region_export(client, region, NULL, 1, &error), INVALID, "name is NULL");
    REFUSED(scatter_ring_region_export(client, region, "\xff", 1, &error), INVALID, "not UTF-8");
    DO(scatter_ring_batch_new(client, &batch, &error));
    scatter_ring_rows rows = {.table = region, .row_bytes = 1, .count = 1, .buffer = region};
    REFUSED(scatter_ring_batch_read_rows(batch, &rows, &error), INVALID, "rows.index is NULL");
    REFUSED(scatter_ring_batch_read_rows(batch, NULL, &error), INVALID, "rows is NULL");
    rows.index = region;
    rows.numbers = 3;
    REFUSED(scatter_ring_batch_read_rows(batch, &rows, &error), INVALID, "SCATTER_RING_INDEX_KIND_U64");
    rows.numbers = 0;
    rows.missing = 9;
    REFUSED(scatter_ring_batch_read_rows(batch, &rows, &error), INVALID, "SCATTER_RING_MISSING_REFUSE");
    scatter_ring_batch_free(batch);
    /* Without a place for the error, and nothing to free. */
    CHECK(scatter_ring_engine_listen(NULL, NULL, NULL) == INVALID);
    CHECK(scatter_ring_client_fd(NULL) == INVALID && scatter_ring_region_handle(NULL) == 0);
    CHECK(scatter_ring_region_data(NULL) == NULL && scatter_ring_region_bytes(NULL) == 0);
    CHECK(scatter_ring_ticket_position(NULL) == 0 && scatter_ring_owner_is_lost(NULL));
    CHECK(!scatter_ring_region_is_busy(NULL) && !scatter_ring_adopted_is_shareable(NULL));
    scatter_ring_engine_free(NULL);
    scatter_ring_client_free(NULL);
    scatter_ring_region_free(NULL);
    scatter_ring_batch_free(NULL);
    scatter_ring_ticket_free(NULL);
    scatter_ring_adopted_release(NULL);
    scatter_ring_lent_release(NULL);
    scatter_ring_owner_free(NULL);
}

static void settings_that_cannot_be_are_named(void) {
    scatter_ring_engine *none;
    scatter_ring_engine_config config = {.workers = 1};
    REFUSED(scatter_ring_engine_create(&config, &none, &error), INVALID, "sizeof(scatter_ring_engine_config)");
    CHECK(none == NULL);
    config.size = sizeof config;
    config.workers = -2;
    REFUSED(scatter_ring_engine_create(&config, &none, &error), INVALID, "workers -2");
    config.workers = 0;
    const char *address = "localhost";
    config.peer_listen = &address;
    config.peer_listen_count = 1;
    REFUSED(scatter_ring_engine_create(&config, &none, &error), INVALID, "\"localhost\" is no address with a port");
    address = "0.0.0.0:0";
    REFUSED(scatter_ring_engine_create(&config, &none, &error), INVALID, "every address");
    address = "127.0.0.1:0";
    config.peer_lanes = 17;
    REFUSED(scatter_ring_engine_create(&config, &none, &error), INVALID, "lanes: 17, must be from 1 to 16");
    config.peer_lanes = 0;
    config.peer_transport = 3;
    REFUSED(scatter_ring_engine_create(&config, &none, &error), INVALID, "SCATTER_RING_TRANSPORT_");
    config.peer_transport = 0;
    config.peer_key_file = "/nowhere/key";
    REFUSED(scatter_ring_engine_create(&config, &none, &error), INVALID, "key file");

    /* A program that was compiled with a later header, and sets what is not known here. */
    struct {
        scatter_ring_client_setup known;
        uint64_t later;
    } setup = {.known = {.size = sizeof setup}, .later = 0};
    scatter_ring_client *attached;
    DO(scatter_ring_client_attach_engine(engine, &setup.known, &attached, &error));
    scatter_ring_client_free(attached);
    setup.later = 1;
    REFUSED(scatter_ring_client_attach_engine(engine, &setup.known, &attached, &error), SCATTER_RING_STATUS_UNSUPPORTED,
            "does not know");
    /* And one with an earlier header, whose structure was shorter. */
    scatter_ring_client_setup shorter = {.size = offsetof(scatter_ring_client_setup, spin_ns), .sq_capacity = 8,
                                         .notifications = 77};
    DO(scatter_ring_client_attach_engine(engine, &shorter, &attached, &error));
    scatter_ring_client_free(attached);
    shorter.sq_capacity = 7;
    REFUSED(scatter_ring_client_attach_engine(engine, &shorter, &attached, &error), INVALID, "setting not allowed");
    REFUSED(scatter_ring_client_attach("/nowhere/socket", NULL, &attached, &error), SCATTER_RING_STATUS_ENGINE_LOST,
            "is `scatter-ring serve` running");
    REFUSED(scatter_ring_client_over(-1, NULL, &attached, &error), SCATTER_RING_STATUS_BAD_FD, "-1 is no open file");
    REFUSED(scatter_ring_client_over(12345, NULL, &attached, &error), SCATTER_RING_STATUS_BAD_FD, "no open file");
    scatter_ring_owner *owner;
    REFUSED(scatter_ring_owner_attach("/nowhere/socket", &owner, &error), SCATTER_RING_STATUS_ENGINE_LOST, "serve");
    REFUSED(scatter_ring_engine_listen(engine, "/tmp/socket", &error), SCATTER_RING_STATUS_NOT_ALLOWED, "0700");
}

static void memory_that_cannot_be_a_region_says_why(void) {
    scatter_ring_region *none;
    scatter_ring_adopted *adopted;
    static char array[4096];
    REFUSED(scatter_ring_region_allocate(client, 0, &none, &error), INVALID, "0 bytes");
    REFUSED(scatter_ring_region_adopt(client, array, sizeof array, SCATTER_RING_RIGHTS_READ, &none, &error),
            SCATTER_RING_STATUS_BAD_FD, "scatter_ring_owner_lend");
    REFUSED(scatter_ring_region_adopt(client, array, SIZE_MAX, SCATTER_RING_RIGHTS_READ, &none, &error), INVALID,
            "no memory is so long");
    REFUSED(scatter_ring_engine_adopt(engine, "a", NULL, 1, 1, &adopted, &error), INVALID, "memory is NULL");
    REFUSED(scatter_ring_engine_adopt(engine, "a", array, 0, 1, &adopted, &error), INVALID, "0 bytes");
    REFUSED(scatter_ring_engine_adopt(engine, "a", array, 1, 4, &adopted, &error), INVALID, "SCATTER_RING_RIGHTS_READ");
    DO(scatter_ring_engine_adopt(engine, "a", array, 1, 1, &adopted, &error));
    scatter_ring_adopted *again;
    REFUSED(scatter_ring_engine_adopt(engine, "a", array, 1, 1, &again, &error), SCATTER_RING_STATUS_NAME_TAKEN,
            "already exported");
    REFUSED(scatter_ring_region_open(client, "a", SCATTER_RING_RIGHTS_WRITE, &none, &error),
            SCATTER_RING_STATUS_NO_RIGHT, "access");
    scatter_ring_adopted_release(adopted);
    REFUSED(scatter_ring_region_register(client, -1, 0, 1, 1, &none, &error), SCATTER_RING_STATUS_BAD_FD, "-1");
    int fd = memfd_create("unsealed", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
    REFUSED(scatter_ring_region_register(client, fd, 0, 4096, 1, &none, &error), SCATTER_RING_STATUS_BAD_FD, "seal");
    REFUSED(scatter_ring_region_register(client, fd, 0, 8192, 1, &none, &error), INVALID, "of a file of 4096");
    close(fd);
    REFUSED(scatter_ring_engine_serve_file(engine, "f", "/dev/null", 0, &error), SCATTER_RING_STATUS_BAD_FD,
            "/dev/null");
    char byte;
    REFUSED(scatter_ring_region_read(region, 4096, &byte, 1, &error), SCATTER_RING_STATUS_OUT_OF_RANGE, "outside");
    REFUSED(scatter_ring_region_open_at(client, 5, "a", 1, &none, &error), INVALID, "5 is no peer of this client");
    uint64_t peer;
    REFUSED(scatter_ring_client_connect_peer(client, "x", &peer, &error), SCATTER_RING_STATUS_UNSUPPORTED, "supported");
    REFUSED(scatter_ring_engine_connect_peer(engine, "x", &error), INVALID, "not an endpoint");
    char endpoint[64];
    REFUSED(scatter_ring_engine_endpoint(engine, endpoint, sizeof endpoint, &error), SCATTER_RING_STATUS_UNSUPPORTED,
            "peer_listen");
}

static void what_is_another_clients_or_closed_is_refused(void) {
    DO(scatter_ring_client_attach_engine(engine, NULL, &stranger, &error));
    scatter_ring_region *theirs;
    scatter_ring_batch *batch;
    scatter_ring_ticket *ticket;
    const int32_t unknown = SCATTER_RING_STATUS_UNKNOWN_REGION;
    DO(scatter_ring_region_allocate(stranger, 4096, &theirs, &error));
    DO(scatter_ring_batch_new(client, &batch, &error));
    REFUSED(scatter_ring_batch_read(batch, theirs, 0, region, 0, 1, &error), unknown,
            "the source: this belongs to another client");
    REFUSED(scatter_ring_batch_read(batch, region, 0, theirs, 0, 1, &error), unknown, "the destination");
    REFUSED(scatter_ring_region_close(client, theirs, &error), unknown, "another client");
    REFUSED(scatter_ring_region_export(client, theirs, "x", 1, &error), unknown, "another client");
    REFUSED(scatter_ring_client_read(client, theirs, 0, region, 0, 1, NULL, &error), unknown, "src_region");
    REFUSED(scatter_ring_batch_submit(stranger, batch, &ticket, &error), unknown, "another client");
    CHECK(ticket == NULL);

    scatter_ring_descriptor descriptor = {.opcode = SCATTER_RING_OPCODE_READ, .flags = SCATTER_RING_FLAGS_LAST};
    REFUSED(scatter_ring_batch_push(batch, &descriptor, 1, NULL, 0, &error), SCATTER_RING_STATUS_INVALID_FLAGS,
            "descriptor 0: LAST");
    descriptor.flags = SCATTER_RING_FLAGS_EXTENDED;
    REFUSED(scatter_ring_client_push(client, &descriptor, 1, &error), SCATTER_RING_STATUS_INVALID_FLAGS,
            "scatter_ring_client_push_extended");
    descriptor.flags = 0;
    descriptor.src_region = 12345;
    REFUSED(scatter_ring_batch_push(batch, &descriptor, 1, &region, 1, &error), unknown,
            "none of the given regions has the handle 12345");

    DO(scatter_ring_batch_read(batch, region, 0, region, 100, 50, &error));
    DO(scatter_ring_batch_submit(client, batch, &ticket, &error));
    REFUSED(scatter_ring_client_wait(stranger, ticket, -1, NULL, &error), SCATTER_RING_STATUS_NOT_FOUND,
            "no such batch");
    REFUSED(scatter_ring_client_cancel(stranger, ticket, &error), unknown, "another client");
    DO(scatter_ring_client_wait(client, ticket, -1, NULL, &error));
    scatter_ring_ticket_free(ticket);
    DO(scatter_ring_region_close(client, region, &error));
    REFUSED(scatter_ring_region_close(client, region, &error), unknown, "closed");
    REFUSED(scatter_ring_batch_submit(client, batch, &ticket, &error), unknown, "closed");
    DO(scatter_ring_batch_clear(batch, &error));
    REFUSED(scatter_ring_batch_read(batch, region, 0, region, 0, 1, &error), unknown, "closed");
    scatter_ring_batch_free(batch);
    scatter_ring_region_free(theirs);
    scatter_ring_client_free(stranger);
}

static void *wait_for_ever(void *unused) {
    scatter_ring_error mine;
    int32_t status;
    /* The other one may be in its call at this moment. */
    while ((status = scatter_ring_client_wait_any(stranger, -1, &mine)) == SCATTER_RING_STATUS_NOT_ALLOWED)
        usleep(1000);
    CHECK(status < 0);
    CHECK(strstr(mine.message, "the session has ended") != NULL);
    return unused;
}

static void a_second_thread_is_refused(void) {
    scatter_ring_engine *other;
    DO(scatter_ring_engine_create(NULL, &other, &error));
    DO(scatter_ring_client_attach_engine(other, NULL, &stranger, &error));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_for_ever, NULL) == 0);
    scatter_ring_client_info info;
    while (scatter_ring_client_get_info(stranger, &info, &error) == 0)
        usleep(1000);
    REFUSED(scatter_ring_client_get_info(stranger, &info, &error), SCATTER_RING_STATUS_NOT_ALLOWED,
            "another thread is in a call with this client");
    DO(scatter_ring_engine_stop(other, 0, NULL, &error));
    CHECK(pthread_join(thread, NULL) == 0);
    scatter_ring_client_free(stranger);
    scatter_ring_engine_free(other);
}

static void *wait_a_little(void *unused) {
    usleep(10000);
    return unused;
}

static void in_a_forked_child_everything_is_refused_and_the_parent_goes_on(void) {
    const int32_t forked = SCATTER_RING_STATUS_FORKED;
    scatter_ring_batch *batch;
    scatter_ring_ticket *ticket, *other;
    scatter_ring_adopted *adopted;
    scatter_ring_owner *owner;
    static char memory[4096];
    DO(scatter_ring_owner_attach_engine(engine, &owner, &error));
    DO(scatter_ring_region_allocate(client, 4096, &region, &error));
    DO(scatter_ring_engine_adopt(engine, "kept", memory, sizeof memory, 1, &adopted, &error));
    DO(scatter_ring_batch_new(client, &batch, &error));
    DO(scatter_ring_batch_read(batch, region, 0, region, 100, 50, &error));
    DO(scatter_ring_batch_submit(client, batch, &ticket, &error));
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char byte;
        scatter_ring_span span;
        scatter_ring_region *none;
        scatter_ring_client *attached;
        scatter_ring_counters counters;
        scatter_ring_descriptor nop = {.opcode = SCATTER_RING_OPCODE_NOP, .flags = SCATTER_RING_FLAGS_LAST};
        REFUSED(scatter_ring_batch_submit(client, batch, &other, &error), forked, "attach again in the child");
        REFUSED(scatter_ring_client_wait(client, ticket, 0, NULL, &error), forked, "parent");
        REFUSED(scatter_ring_client_push(client, &nop, 1, &error), forked, "parent");
        REFUSED(scatter_ring_client_submit(client, &error), forked, "parent");
        REFUSED(scatter_ring_client_reap(client, &span, 1, &error), forked, "parent");
        REFUSED(scatter_ring_client_arm(client, &error), forked, "parent");
        REFUSED(scatter_ring_region_allocate(client, 1, &none, &error), forked, "parent");
        REFUSED(scatter_ring_region_read(region, 0, &byte, 1, &error), forked, "parent");
        REFUSED(scatter_ring_engine_counters(engine, &counters, &error), forked, "create one in the child");
        REFUSED(scatter_ring_client_attach_engine(engine, NULL, &attached, &error), forked, "parent");
        REFUSED(scatter_ring_engine_stop(engine, 0, NULL, &error), forked, "parent");
        /* One of its own is as good as any, also if what is the parent's is freed later: this must not touch threads
         * of the child, which have the places of the parent's. */
        scatter_ring_engine *own;
        scatter_ring_owner *lender;
        pthread_t thread;
        DO(scatter_ring_engine_create(NULL, &own, &error));
        DO(scatter_ring_owner_attach_engine(own, &lender, &error));
        DO(scatter_ring_client_attach_engine(own, NULL, &attached, &error));
        CHECK(pthread_create(&thread, NULL, wait_a_little, NULL) == 0);
        scatter_ring_ticket_free(ticket);
        scatter_ring_batch_free(batch);
        scatter_ring_region_free(region);
        scatter_ring_client_free(client);
        scatter_ring_adopted_release(adopted);
        scatter_ring_owner_free(owner);
        scatter_ring_engine_free(engine);
        CHECK(pthread_join(thread, NULL) == 0);
        scatter_ring_client_free(attached);
        scatter_ring_owner_free(lender);
        DO(scatter_ring_engine_stop(own, 0, NULL, &error));
        scatter_ring_engine_free(own);
        fflush(stdout);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    DO(scatter_ring_client_wait(client, ticket, -1, NULL, &error));
    scatter_ring_ticket_free(ticket);
    DO(scatter_ring_batch_submit(client, batch, &ticket, &error));
    DO(scatter_ring_client_wait(client, ticket, -1, NULL, &error));
    scatter_ring_region *opened;
    DO(scatter_ring_region_open(client, "kept", 1, &opened, &error));
    scatter_ring_region_free(opened);
    scatter_ring_ticket_free(ticket);
    scatter_ring_batch_free(batch);
    scatter_ring_region_free(region);
    scatter_ring_adopted_release(adopted);
    scatter_ring_owner_free(owner);
}

int main(void) {
    DO(scatter_ring_engine_create(NULL, &engine, &error));
    DO(scatter_ring_client_attach_engine(engine, NULL, &client, &error));
    DO(scatter_ring_region_allocate(client, 4096, &region, &error));
    null_is_named();
    settings_that_cannot_be_are_named();
    memory_that_cannot_be_a_region_says_why();
    what_is_another_clients_or_closed_is_refused();
    scatter_ring_region_free(region);
    a_second_thread_is_refused();
    in_a_forked_child_everything_is_refused_and_the_parent_goes_on();
    scatter_ring_client_free(client);
    scatter_ring_engine_free(engine);
    puts("ok");
    return 0;
}
