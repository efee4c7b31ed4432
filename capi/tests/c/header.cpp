// The header in C++: it compiles without warnings, its functions have C's names, and a handle fits a smart pointer.
#include <scatter_ring.h>

#include <cstdio>
#include <cstring>
#include <memory>

static_assert(sizeof(scatter_ring_descriptor) == 64 && sizeof(scatter_ring_span) == 64, "the ABI's sizes");
static_assert(sizeof(scatter_ring_error::message) == SCATTER_RING_ERROR_MESSAGE_BYTES, "the message's room");

int main() {
    scatter_ring_error error;
    scatter_ring_engine_config config = {};
    config.size = sizeof config;
    scatter_ring_engine *made = nullptr;
    if (scatter_ring_engine_create(&config, &made, &error) < 0) {
        std::fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    std::unique_ptr<scatter_ring_engine, decltype(&scatter_ring_engine_free)> engine(made, scatter_ring_engine_free);
    if (std::strcmp(scatter_ring_version(), VERSION) != 0)
        return 1;
    std::puts("ok");
    return 0;
}
