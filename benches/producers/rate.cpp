// What a descriptor costs the raw producer in C++: NOPs in batches of 32, pushed, submitted and reaped. rate.rs is the
// same in Rust. Arguments: the socket of `scatter-ring serve`, and how many descriptors.
//
//     c++ -std=c++17 -O3 -I ring-abi/include benches/producers/rate.cpp -o rate

#include "scatter_ring.hpp"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

constexpr std::uint64_t per_batch = 32;
/// Batches under way: a quarter of a ring of descriptors, and an eighth of what the spans have room for.
constexpr std::uint64_t in_flight = 32;

static void work(scatter_ring::Client &client, std::uint64_t descriptors) {
    std::uint64_t pushed = 0, done = 0;
    while (done < descriptors) {
        while (pushed < descriptors && pushed - done < in_flight * per_batch) {
            for (std::uint64_t i = 0; i < per_batch; i++) {
                scatter_ring::Descriptor descriptor{};
                descriptor.opcode = SCATTER_RING_OPCODE_NOP;
                descriptor.flags = i + 1 == per_batch ? SCATTER_RING_FLAGS_LAST : 0;
                descriptor.user_data = pushed + i;
                if (!client.push(descriptor)) {
                    throw std::runtime_error("the ring is full");
                }
            }
            client.submit();
            pushed += per_batch;
        }
        scatter_ring::Span span;
        while (client.reap(span)) {
            if (span.status != SCATTER_RING_STATUS_OK || span.count != per_batch) {
                throw std::runtime_error("a span that is no success");
            }
            done += span.count;
        }
    }
}

static void run(const char *socket, std::uint64_t descriptors) {
    auto client = scatter_ring::Client::attach(socket);
    descriptors = (descriptors + per_batch - 1) / per_batch * per_batch;
    work(client, std::min<std::uint64_t>(descriptors, 1 << 17));
    const auto start = std::chrono::steady_clock::now();
    work(client, descriptors);
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    std::printf("cpp ns_per_descriptor %.2f\n", time.count() / static_cast<double>(descriptors));
}

int main(int argc, char **argv) {
    try {
        const char *usage = "usage: rate SOCKET DESCRIPTORS";
        run(argc == 3 ? argv[1] : throw std::runtime_error(usage), std::strtoull(argv[2], nullptr, 10));
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
