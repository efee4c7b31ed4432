// Reads a table of another engine until that engine is killed. Needs a daemon with peers; arguments: its socket, and
// the endpoint of another one that serves a table "rows" of 64 KiB, byte i of which is i modulo 251. Prints "reading"
// once it does.

#include "check.hpp"

namespace sr = scatter_ring;

int main(int argc, char **argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: %s SOCKET ENDPOINT\n", argv[0]);
        return 2;
    }
    sr::Error error;
    sr::Client client = sr::Client::attach(argv[1], {}, error);
    CHECK_FINE(error);
    const sr::Peer peer = client.connect(std::string(" ") + argv[2] + "\n", error);
    CHECK_FINE(error);
    CHECK(peer.number != 0 && client.connect(argv[2], error) == peer);
    const sr::Region table = client.open_at(peer, "rows", sr::Rights::read, error);
    CHECK_FINE(error);
    CHECK(table.bytes() == 64 << 10 && table.peer() == peer && table.data() == nullptr);
    CHECK(!client.open_at(peer, "nothing", sr::Rights::read, error) &&
          error.status() == SCATTER_RING_STATUS_NAME_UNKNOWN);
    CHECK(!client.open_at(sr::Peer{999}, "rows", sr::Rights::read, error) && error);
    const sr::Region out = client.allocate(64 << 10, error);
    CHECK_FINE(error);
    const std::uint32_t rows[] = {5, 0, 255, 77};
    for (bool told = false;; told = true) {
        client.read_rows(table, 256, rows, 4, out, 0, error);
        if (error) {
            break;
        }
        const auto got = out.view<std::uint8_t>(0, 4 * 256, error);
        for (std::size_t i = 0; i < got.size(); i++) {
            CHECK(got[i] == (rows[i / 256] * 256 + i % 256) % 251);
        }
        if (!told) {
            std::printf("reading\n");
            std::fflush(stdout);
        }
    }
    CHECK(error.batch() != nullptr && error.batch()->peer == peer);
    CHECK(error.status() == SCATTER_RING_STATUS_REGION_GONE);
    std::printf("%s\n", error.message());
}
