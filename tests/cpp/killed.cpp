// A producer that works until it is killed, or until its engine is. Needs a daemon; prints "working" once it does.
//
// With the second argument `engine` it expects its engine to be killed, and checks that each call says so.

#include "check.hpp"

namespace sr = scatter_ring;

/// Batches of all kinds without an end, some of them longer than the ring, while regions come and go.
static void work(sr::Client &client, sr::Error &error) {
    Random random{static_cast<std::uint64_t>(::getpid())};
    constexpr std::uint32_t bytes = 1 << 20;
    const sr::Region from = client.allocate(bytes, error), to = client.allocate(bytes, error);
    CHECK_FINE(error);
    client.export_as(from, "killed-" + std::to_string(::getpid()), sr::Rights::read, error);
    CHECK_FINE(error);
    std::printf("working\n");
    std::fflush(stdout);
    sr::Batch batch = client.batch();
    std::vector<sr::Ticket> tickets(8);
    for (std::size_t round = 0; !error; round++) {
        sr::Ticket &ticket = tickets[round % tickets.size()];
        if (ticket) {
            client.wait(ticket, error);
        }
        const std::uint32_t count = random.one_in(10) ? 400 : 1 + random.below(40);
        for (std::uint32_t i = 0; i < count && !error; i++) {
            const std::uint32_t length = 1 + random.below(2000);
            batch.read(from, random.below(bytes - length), to, random.below(bytes - length), length, error);
        }
        if (!error) {
            ticket = batch.submit(error);
        }
        if (!error && random.one_in(8)) {
            const sr::Region brief = client.allocate(4096, error);
        }
    }
}

int main(int argc, char **argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: %s SOCKET [engine]\n", argv[0]);
        return 2;
    }
    sr::Error error;
    sr::Setup setup;
    setup.sq_capacity = 128;
    setup.cq_capacity = 64;
    sr::Client client = sr::Client::attach(argv[1], setup, error);
    CHECK_FINE(error);
    work(client, error);
    CHECK(error.status() == SCATTER_RING_STATUS_ENGINE_LOST);
    CHECK_SAYS(error.message(), "engine lost (ENGINE_LOST)");
    if (argc > 2) {
        sr::Error after;
        sr::Span span;
        CHECK(!client.allocate(64, after) && after.status() == SCATTER_RING_STATUS_ENGINE_LOST);
        CHECK(!client.submit(after) && after.status() == SCATTER_RING_STATUS_ENGINE_LOST);
        while (client.reap(span, after)) {
        }
        CHECK(after.kind() == sr::ErrorKind::ended && !client.arm());
        // The kernel closes what a killed process had in any order: the listener may be the last.
        for (int i = 0; i < 1000 && after.kind() != sr::ErrorKind::nobody_listens; i++) {
            CHECK(!sr::Client::attach(argv[1], setup, after));
            ::usleep(10000);
        }
        CHECK(after.kind() == sr::ErrorKind::nobody_listens);
        std::printf("%s\n", error.message());
        return 0;
    }
    return 1;
}
