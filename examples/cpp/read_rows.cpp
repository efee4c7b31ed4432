// Reads scattered rows out of a table that this program exports itself. Argument: the socket of `scatter-ring serve`.
//
//     c++ -std=c++17 -I ring-abi/include examples/cpp/read_rows.cpp -o read_rows

#include "scatter_ring.hpp"

#include <cstdio>
#include <iterator>
#include <stdexcept>

#include <unistd.h>

constexpr std::uint32_t rows = 1000, row_bytes = 264;

/// Byte `j` of row `i` is `i + j`.
static std::uint8_t byte_of(std::size_t i, std::size_t j) { return static_cast<std::uint8_t>(i + j); }

static void run(const char *socket) {
    // Whoever has the table: allocates it, fills it, and gives it a name.
    auto owner = scatter_ring::Client::attach(socket);
    const auto mine = owner.allocate(rows * row_bytes);
    const auto bytes = mine.view<std::uint8_t>();
    for (std::size_t i = 0; i < bytes.size(); i++) {
        bytes[i] = byte_of(i / row_bytes, i % row_bytes);
    }
    const std::string name = "example-table-" + std::to_string(::getpid());
    owner.export_as(mine, name, scatter_ring::Rights::read);

    // Whoever wants rows of it, in most cases another process: opens it by its name.
    auto client = scatter_ring::Client::attach(socket);
    const auto table = client.open(name, scatter_ring::Rights::read);
    const std::uint32_t numbers[] = {7, 3, 999, 7};
    const auto out = client.allocate(std::size(numbers) * row_bytes);
    const auto outcome = client.read_rows(table, row_bytes, numbers, std::size(numbers), out);

    const auto got = out.view<std::uint8_t>();
    for (std::size_t i = 0; i < got.size(); i++) {
        if (got[i] != byte_of(numbers[i / row_bytes], i % row_bytes)) {
            throw std::runtime_error("row " + std::to_string(numbers[i / row_bytes]) + " is wrong");
        }
    }
    std::printf("%zu rows, %llu bytes, verified\n", std::size(numbers), static_cast<unsigned long long>(outcome.bytes));
}

int main(int argc, char **argv) {
    try {
        run(argc == 2 ? argv[1] : throw std::runtime_error("usage: read_rows SOCKET"));
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
