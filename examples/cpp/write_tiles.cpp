// Writes a tile of a matrix into the middle of another one. Argument: the socket of `scatter-ring serve`.
//
//     c++ -std=c++17 -I ring-abi/include examples/cpp/write_tiles.cpp -o write_tiles

#include "scatter_ring.hpp"

#include <cstdio>
#include <stdexcept>

/// Both matrices: 64 rows of 512 bytes.
constexpr std::uint32_t rows = 64, row_bytes = 512;
/// The tile: 128 bytes of each row, from column 32 here to column 192 there.
constexpr std::uint32_t tile_bytes = 128, from = 32, to = 192;

static void run(const char *socket) {
    auto client = scatter_ring::Client::attach(socket);
    const auto mine = client.allocate(rows * row_bytes), other = client.allocate(rows * row_bytes);
    const auto before = mine.view<std::uint8_t>();
    for (std::size_t i = 0; i < before.size(); i++) {
        before[i] = static_cast<std::uint8_t>(i % 251);
    }

    // One descriptor for all pieces. A batch can have any number of them.
    auto batch = client.batch();
    batch.write_tile({mine, from, row_bytes, other, to, row_bytes, tile_bytes, rows});
    const auto ticket = batch.submit();
    const auto outcome = client.wait(ticket);

    const auto after = other.view<std::uint8_t>();
    for (std::size_t i = 0; i < after.size(); i++) {
        const std::size_t column = i % row_bytes;
        const bool inside = column >= to && column < to + tile_bytes;
        if (after[i] != (inside ? before[i - to + from] : 0)) {
            throw std::runtime_error("the tile is not where it belongs, or something else has changed");
        }
    }
    std::printf("%u pieces, %llu bytes, verified\n", rows, static_cast<unsigned long long>(outcome.bytes));
}

int main(int argc, char **argv) {
    try {
        run(argc == 2 ? argv[1] : throw std::runtime_error("usage: write_tiles SOCKET"));
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
