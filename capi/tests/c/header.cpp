// The library's header in C++, beside the header-only producer: the engine is the library's, the client needs no library.
#include <scatter_ring.h>
#include <scatter_ring.hpp>

#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

static_assert(sizeof(scatter_ring_descriptor) == 64 && sizeof(scatter_ring_span) == 64, "the ABI's sizes");
static_assert(sizeof(scatter_ring_error::message) == SCATTER_RING_ERROR_MESSAGE_BYTES, "the message's room");

constexpr std::uint32_t rows = 1000, row_bytes = 264;

static scatter_ring_error error;

static std::int32_t succeeded(std::int32_t status) {
    if (status < 0)
        throw std::runtime_error(error.message);
    return status;
}

static void run() {
    std::vector<std::uint8_t> table(rows * row_bytes);
    for (std::size_t i = 0; i < table.size(); i++)
        table[i] = static_cast<std::uint8_t>(i / row_bytes + i % row_bytes);

    scatter_ring_engine_config config = {};
    config.size = sizeof config;
    scatter_ring_engine *made = nullptr;
    succeeded(scatter_ring_engine_create(&config, &made, &error));
    std::unique_ptr<scatter_ring_engine, decltype(&scatter_ring_engine_free)> engine(made, scatter_ring_engine_free);
    scatter_ring_adopted *adopted = nullptr;
    succeeded(scatter_ring_engine_adopt(made, "table", table.data(), table.size(), SCATTER_RING_RIGHTS_READ, &adopted,
                                        &error));
    {
        auto client = scatter_ring::Client::over(succeeded(scatter_ring_engine_connect(made, &error)));
        const auto opened = client.open("table", scatter_ring::Rights::read);
        const std::uint32_t numbers[] = {7, 3, 999, 7};
        const auto out = client.allocate(4 * row_bytes);
        client.read_rows(opened, row_bytes, numbers, 4, out);
        const auto got = out.view<std::uint8_t>();
        for (std::size_t i = 0; i < got.size(); i++)
            if (got[i] != table[numbers[i / row_bytes] * row_bytes + i % row_bytes])
                throw std::runtime_error("a row is wrong");
    }
    scatter_ring_adopted_release(adopted);
}

int main() {
    try {
        if (std::strcmp(scatter_ring_version(), VERSION) != 0)
            throw std::runtime_error("another version");
        run();
    } catch (const std::exception &exception) {
        std::fprintf(stderr, "%s\n", exception.what());
        return 1;
    }
    std::puts("ok");
    return 0;
}
