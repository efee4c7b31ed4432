/* Two engines in one process that meet over loopback TCP: a client of one reads what the other has adopted. */
#include "check.h"

static scatter_ring_engine *engine_for_peers(uint32_t no_mapping) {
    const char *address = "127.0.0.1:0";
    scatter_ring_engine_config config = {.size = sizeof config, .workers = 1, .peer_listen = &address,
                                         .peer_listen_count = 1, .peer_transport = SCATTER_RING_TRANSPORT_TCP,
                                         .peer_lanes = 1, .peer_no_mapping = no_mapping};
    scatter_ring_engine *engine;
    DO(scatter_ring_engine_create(&config, &engine, &error));
    return engine;
}

int main(void) {
    scatter_ring_engine *far = engine_for_peers(1), *near = engine_for_peers(1);
    unsigned char *table = malloc(ROWS * ROW_BYTES);
    fill_rows(table, ROWS);
    scatter_ring_adopted *adopted;
    DO(scatter_ring_engine_adopt(far, "table", table, ROWS * ROW_BYTES, SCATTER_RING_RIGHTS_READ, &adopted, &error));

    char endpoint[2048];
    REFUSED(scatter_ring_engine_endpoint(far, endpoint, 4, &error), SCATTER_RING_STATUS_INVALID_SETTING, "its NUL");
    int32_t length = scatter_ring_engine_endpoint(far, endpoint, sizeof endpoint, &error);
    DO(length);
    CHECK((size_t)length == strlen(endpoint) && length > 0);
    DO(scatter_ring_engine_connect_peer(near, endpoint, &error));

    scatter_ring_client *client;
    uint64_t peer, again;
    DO(scatter_ring_client_attach_engine(near, NULL, &client, &error));
    DO(scatter_ring_client_connect_peer(client, endpoint, &peer, &error));
    DO(scatter_ring_client_connect_peer(client, endpoint, &again, &error));
    CHECK(peer != 0 && peer == again);
    scatter_ring_region *opened, *out;
    DO(scatter_ring_region_open_at(client, peer, "table", SCATTER_RING_RIGHTS_READ, &opened, &error));
    DO(scatter_ring_region_allocate(client, 4 * ROW_BYTES, &out, &error));
    uint32_t numbers[] = {7, 3, 999, 7};
    DO(scatter_ring_client_read_rows(client, opened, ROW_BYTES, numbers, 4, out, 0, NULL, &error));
    const unsigned char *got = scatter_ring_region_data(out);
    for (int i = 0; i < 4; i++)
        CHECK(is_row(got + i * ROW_BYTES, numbers[i]));

    /* A failure says whose memory it was about. */
    numbers[2] = 1000;
    REFUSED(scatter_ring_client_read_rows(client, opened, ROW_BYTES, numbers, 4, out, 0, NULL, &error),
            SCATTER_RING_STATUS_OUT_OF_RANGE, "fragment 2");
    CHECK(error.peer == peer && error.fragment == 2 && error.descriptor == 0);
    scatter_ring_counters counters;
    DO(scatter_ring_engine_counters(far, &counters, &error));
    CHECK(counters.peers_connected == 1);

    /* The end of the other engine is the end of its memory, not of this one. */
    DO(scatter_ring_engine_stop(far, 0, NULL, &error));
    numbers[2] = 0;
    int32_t status = scatter_ring_client_read_rows(client, opened, ROW_BYTES, numbers, 4, out, 0, NULL, &error);
    CHECK(status == SCATTER_RING_STATUS_REGION_GONE && error.peer == peer);
    DO(scatter_ring_client_read(client, out, 0, out, ROW_BYTES, ROW_BYTES, NULL, &error));
    scatter_ring_region_free(out);
    scatter_ring_region_free(opened);
    scatter_ring_client_free(client);
    scatter_ring_engine_free(near);
    scatter_ring_engine_free(far);
    scatter_ring_adopted_release(adopted);
    free(table);
    puts("ok");
    return 0;
}
