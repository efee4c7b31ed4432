// A warm producer makes no system call while the engine is awake: the kernel kills it at the first one. Needs a daemon,
// and the second argument says which of the four programs to be: raw, batch, control, asleep.
//
// Behind the filter nothing may be printed: checks end the process with a code.

#include "scatter_ring.hpp"

#include <cstdio>
#include <cstdlib>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

namespace sr = scatter_ring;

constexpr std::uint64_t table_rows = 4096, out_rows = 2048, row_bytes = 264, per_batch = 32, in_flight = 8;

enum Code { bad_push = 11, bad_submit, bad_reap, bad_span, span_twice, bad_bytes };

[[noreturn]] static void leave(int code) {
    ::syscall(SYS_exit_group, code);
    std::abort();
}

/// From here on this process may only exit.
static void forbid_system_calls() {
#if defined(__x86_64__)
    constexpr std::uint32_t arch = 0xC000003E;
#elif defined(__aarch64__)
    constexpr std::uint32_t arch = 0xC00000B7;
#endif
    ::sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, arch, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    ::sock_fprog program{sizeof steps / sizeof steps[0], steps};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        std::perror("seccomp");
        std::exit(3);
    }
}

/// The row of the table that is moved as number `i`, and its bytes.
static std::uint64_t number(std::uint64_t i) { return (i * 0x9E3779B97F4A7C15) >> 32 & (table_rows - 1); }
static unsigned char byte_of(std::uint64_t row, std::uint64_t i) {
    return static_cast<unsigned char>((row >> (i % 2 * 8)) ^ i);
}

struct Stage {
    sr::Client client;
    sr::Region table = client.allocate(table_rows * row_bytes);
    sr::Region out = client.allocate(out_rows * row_bytes);
    sr::Batch builder = client.batch();
    /// Batches by number, modulo a power of two, that are under way.
    bool under_way[2 * in_flight] = {};
    /// Ring position of the next batch.
    std::uint64_t position = 0;

    explicit Stage(const char *socket) : client(sr::Client::attach(socket)) {
        const auto bytes = table.view<unsigned char>();
        for (std::uint64_t i = 0; i < bytes.size(); i++) {
            bytes[i] = byte_of(i / row_bytes, i % row_bytes);
        }
    }

    void push_raw(std::uint64_t from) {
        sr::Error error;
        for (std::uint64_t i = from; i < from + per_batch; i++) {
            sr::Descriptor descriptor{};
            descriptor.opcode = SCATTER_RING_OPCODE_READ;
            descriptor.flags = i + 1 == from + per_batch ? SCATTER_RING_FLAGS_LAST : 0;
            descriptor.len = row_bytes;
            descriptor.src_region = table.handle();
            descriptor.dst_region = out.handle();
            descriptor.src_offset = number(i) * row_bytes;
            descriptor.dst_offset = i % out_rows * row_bytes;
            descriptor.count = 1;
            descriptor.user_data = position;
            if (!client.push(descriptor, error)) {
                leave(bad_push);
            }
        }
        if (!client.submit(error)) {
            leave(bad_submit);
        }
    }

    void push_batch(std::uint64_t from) {
        sr::Error error;
        builder.user_data(position);
        for (std::uint64_t i = from; i < from + per_batch; i++) {
            if (!builder.read(table, number(i) * row_bytes, out, i % out_rows * row_bytes, row_bytes, error)) {
                leave(bad_push);
            }
        }
        if (!builder.submit(error)) {
            leave(bad_submit);
        }
    }

    /// Moves rows `from .. from + count`, and checks every span and what lies in the buffer at the end.
    void work(std::uint64_t from, std::uint64_t count, void (Stage::*push)(std::uint64_t)) {
        std::uint64_t pushed = 0, done = 0;
        sr::Error error;
        while (done < count) {
            if (pushed < count && pushed - done < in_flight * per_batch) {
                mark(position, true);
                (this->*push)(from + pushed);
                position += per_batch;
                pushed += per_batch;
            }
            sr::Span span;
            if (client.reap(span, error)) {
                const bool right = span.status == SCATTER_RING_STATUS_OK &&
                                   span.flags == SCATTER_RING_SPAN_FLAGS_BATCH_DONE && span.count == per_batch &&
                                   span.bytes == per_batch * row_bytes && span.user_data == span.first;
                if (!right) {
                    leave(bad_span);
                }
                mark(span.first, false);
                done += per_batch;
            } else if (error) {
                leave(bad_reap);
            }
        }
        const auto bytes = out.view<unsigned char>(0, sr::Region::all, error);
        for (std::uint64_t i = from + count - out_rows; i < from + count; i++) {
            for (std::uint64_t k = 0; k < row_bytes; k++) {
                if (bytes[i % out_rows * row_bytes + k] != byte_of(number(i), k)) {
                    leave(bad_bytes);
                }
            }
        }
    }

    void mark(std::uint64_t first, bool on) {
        bool &batch = under_way[first / per_batch % (2 * in_flight)];
        if (batch == on || first % per_batch != 0) {
            leave(span_twice);
        }
        batch = on;
    }
};

int main(int argc, char **argv) {
    if (argc != 4) {
        std::fprintf(stderr, "usage: %s SOCKET raw|batch|control|asleep DESCRIPTORS\n", argv[0]);
        return 2;
    }
    const std::string what = argv[2];
    const std::uint64_t descriptors = std::strtoull(argv[3], nullptr, 10), warm_up = 32 * out_rows;
    Stage stage(argv[1]);
    const auto push = what == "batch" ? &Stage::push_batch : &Stage::push_raw;
    stage.work(0, warm_up, push);
    if (what == "asleep") {
        ::usleep(200000);
    }
    forbid_system_calls();
    if (what == "control") {
        ::syscall(SYS_getpid);
    }
    stage.work(warm_up, descriptors, push);
    leave(0);
}
