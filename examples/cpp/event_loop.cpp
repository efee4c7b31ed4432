// Awaits batches in an event loop that has something else to do meanwhile. Argument: the socket of `scatter-ring
// serve`.
//
//     c++ -std=c++17 -I ring-abi/include examples/cpp/event_loop.cpp -o event_loop

#include "scatter_ring.hpp"

#include <cstdio>
#include <stdexcept>

#include <sys/epoll.h>
#include <sys/timerfd.h>

constexpr std::uint32_t batches = 100, rows_each = 32, rows = batches * rows_each, row_bytes = 264;

static void run(const char *socket) {
    auto client = scatter_ring::Client::attach(socket);
    const auto table = client.allocate(1000 * row_bytes), out = client.allocate(rows * row_bytes);
    const auto index = client.allocate(rows * sizeof(std::uint32_t));
    const auto numbers = index.view<std::uint32_t>();
    for (std::uint32_t i = 0; i < rows; i++) {
        numbers[i] = i * 7 % 1000;
    }

    // All batches are under way at once. Each has its own part of `out` and its own row numbers.
    std::vector<scatter_ring::Ticket> tickets;
    auto batch = client.batch();
    for (std::uint32_t i = 0; i < batches; i++) {
        auto part = scatter_ring::Rows::packed(table, row_bytes, index, rows_each, out);
        part.index_offset = i * rows_each * sizeof(std::uint32_t);
        part.buffer_offset = i * rows_each * row_bytes;
        batch.read_rows(part);
        tickets.push_back(batch.submit());
    }

    // The loop: what the engine has to say, and a heartbeat every millisecond.
    const int heartbeat = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC), loop = ::epoll_create1(EPOLL_CLOEXEC);
    const ::itimerspec each_ms{{0, 1000000}, {0, 1000000}};
    ::timerfd_settime(heartbeat, 0, &each_ms, nullptr);
    for (const int fd : {heartbeat, client.fd()}) {
        ::epoll_event event{EPOLLIN, {}};
        event.data.fd = fd;
        ::epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event);
    }
    std::uint64_t bytes = 0, beats = 0;
    for (std::size_t done = 0; done < tickets.size() || beats == 0;) {
        for (; done < tickets.size(); done++) {
            const auto outcome = client.try_outcome(tickets[done]);
            if (!outcome) {
                break;
            }
            bytes += outcome->bytes;
        }
        // While there is nothing to take, the engine will wake the loop; until then the loop may sleep.
        const bool idle = client.arm() || done == tickets.size();
        ::epoll_event events[2];
        const int count = ::epoll_wait(loop, events, 2, idle ? -1 : 0);
        client.disarm();
        for (int i = 0; i < count; i++) {
            std::uint64_t ticks = 0;
            if (events[i].data.fd == heartbeat && ::read(heartbeat, &ticks, sizeof ticks) > 0) {
                beats += ticks;
            }
        }
    }
    if (bytes != rows * row_bytes) {
        throw std::runtime_error(std::to_string(bytes) + " bytes have arrived");
    }
    std::printf("%u batches, %u rows, heartbeat went on\n", batches, rows);
}

int main(int argc, char **argv) {
    try {
        run(argc == 2 ? argv[1] : throw std::runtime_error("usage: event_loop SOCKET"));
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
