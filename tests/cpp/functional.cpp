// Every operation of the C++ producer against a naive loop, and what it says of wrong use. Needs a daemon.

#include "check.hpp"

#include <array>
#include <atomic>
#include <new>
#include <thread>
#include <type_traits>

#include <sys/wait.h>

namespace sr = scatter_ring;
using namespace std::chrono_literals;

// ---- Types ----

template <class T>
constexpr bool is_move_only =
    std::is_nothrow_move_constructible<T>::value && std::is_nothrow_move_assignable<T>::value &&
    !std::is_copy_constructible<T>::value && !std::is_copy_assignable<T>::value;
static_assert(is_move_only<sr::Client>, "one producer");
static_assert(is_move_only<sr::Batch>, "one builder");
static_assert(is_move_only<sr::Ticket>, "one who asks");
static_assert(std::is_copy_constructible<sr::Region>::value && std::is_nothrow_move_constructible<sr::Region>::value,
              "a handle");
static_assert(std::is_aggregate<sr::Rows>::value && std::is_aggregate<sr::Blocks>::value &&
                  std::is_aggregate<sr::Ranges>::value && std::is_aggregate<sr::Tile>::value &&
                  std::is_aggregate<sr::Setup>::value,
              "fields with names");

// ---- Allocations are counted ----

static std::atomic<std::uint64_t> allocations{0};

// Not inlined: GCC would take the pair for a mismatched one.
__attribute__((noinline)) void *operator new(std::size_t bytes) {
    allocations += 1;
    if (void *memory = std::malloc(bytes)) {
        return memory;
    }
    std::abort();
}
__attribute__((noinline)) void operator delete(void *memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }

// ---- Helpers ----

static sr::Setup small(std::uint32_t sq, std::uint32_t cq) {
    sr::Setup setup;
    setup.sq_capacity = sq;
    setup.cq_capacity = cq;
    return setup;
}

static sr::Client attach(const sr::Setup &setup = {}) { return sr::Client::attach(socket_path(), setup); }

static std::uint8_t byte_of(std::uint64_t i) { return static_cast<std::uint8_t>(i * 7 + (i >> 8) * 13); }

static sr::Region pattern(sr::Client &client, std::uint64_t bytes) {
    sr::Region region = client.allocate(bytes);
    auto view = region.view<std::uint8_t>();
    for (std::size_t i = 0; i < view.size(); i++) {
        view[i] = byte_of(i);
    }
    return region;
}

static std::vector<std::uint8_t> bytes_of(const sr::Region &region) {
    std::vector<std::uint8_t> bytes(region.bytes());
    region.read_at(0, bytes.data(), bytes.size());
    return bytes;
}

/// Carries a call out that must fail, and gives the error.
template <class Call> static sr::Error refusal(Call call) {
    try {
        call();
    } catch (const sr::Exception &exception) {
        CHECK(std::string(exception.what()) == exception.error().message());
        CHECK((dynamic_cast<const sr::BatchException *>(&exception) != nullptr) ==
              (exception.error().batch() != nullptr));
        return exception.error();
    }
    fail(__FILE__, __LINE__, "a call that fails", "");
}

static void ignore(bool) {}

static sr::Descriptor nop(std::uint32_t flags = 0) {
    sr::Descriptor descriptor{};
    descriptor.opcode = SCATTER_RING_OPCODE_NOP;
    descriptor.flags = static_cast<std::uint16_t>(flags);
    return descriptor;
}

static sr::Extension extension_of(std::uint32_t count, std::uint32_t src_stride, std::uint32_t dst_stride) {
    sr::Extension extension{};
    extension.opcode = SCATTER_RING_OPCODE_EXTENSION;
    extension.inner_count = count;
    extension.inner_src_stride = src_stride;
    extension.inner_dst_stride = dst_stride;
    return extension;
}

// ---- Every operation against a naive loop ----

/// A buffer, what it must contain when its batch is done, and the batch.
struct Lane {
    static constexpr std::uint32_t bytes_each = 16 << 10;
    static constexpr std::uint32_t table_bytes = 64 << 10;

    sr::Region buffer;
    std::vector<std::uint8_t> expected;
    std::uint64_t moved = 0;
    sr::Ticket ticket;

    /// Copies the piece in the naive way.
    void expect(std::uint64_t from, std::uint64_t to, std::uint64_t length) {
        for (std::uint64_t i = 0; i < length; i++) {
            expected[to + i] = byte_of(from + i);
        }
        moved += length;
    }
    void expect_zero(std::uint64_t to, std::uint64_t length) {
        for (std::uint64_t i = 0; i < length; i++) {
            expected[to + i] = 0;
        }
        moved += length;
    }
};

/// One operation of each kind into the 16 KiB of a lane from `base` on.
struct Operations {
    sr::Client &client;
    const sr::Region &table;
    Random &random;

    void ranges(sr::Batch &batch, Lane &lane, std::uint64_t base, bool writes) {
        for (std::uint32_t i = 0; i < 20; i++) {
            const std::uint32_t length = 1 + random.below(300), from = random.below(Lane::table_bytes - length);
            const std::uint64_t to = base + 400 * i;
            writes ? batch.write(table, from, lane.buffer, to, length)
                   : batch.read(table, from, lane.buffer, to, length);
            lane.expect(from, to, length);
        }
    }

    template <class Number> sr::Region numbers(const std::vector<Number> &list) {
        sr::Region index = client.index_region(list.size() * sizeof(Number));
        index.write_at(0, list.data(), list.size() * sizeof(Number));
        return index;
    }

    /// Rows of 24 bytes, 40 apart in the table, 32 apart in the buffer; some are missing.
    template <class Number> void read_rows(sr::Batch &batch, Lane &lane, std::uint64_t base, sr::Missing missing) {
        std::vector<Number> list(100);
        for (std::size_t i = 0; i < list.size(); i++) {
            const bool gone = missing != sr::Missing::refuse && random.one_in(4);
            list[i] = gone ? static_cast<Number>(~Number{0}) : static_cast<Number>(random.below(1000));
            const std::uint64_t to = base + 8 + 32 * i;
            if (!gone) {
                lane.expect(16 + 40 * static_cast<std::uint64_t>(list[i]), to, 24);
            } else if (missing == sr::Missing::zero) {
                lane.expect_zero(to, 24);
            }
        }
        const sr::Region index = numbers(list);
        sr::Rows rows = sr::Rows::packed(table, 24, index, 100, lane.buffer);
        rows.table_offset = 16;
        rows.table_stride = 40;
        rows.buffer_offset = base + 8;
        rows.buffer_stride = 32;
        rows.numbers = sizeof(Number) == 4 ? sr::Numbers::u32 : sr::Numbers::u64;
        rows.missing = missing;
        batch.read_rows(rows);
    }

    /// Rows of 40 bytes, 48 apart in the buffer, to places 44 apart that no two have in common.
    void write_rows(sr::Batch &batch, Lane &lane, std::uint64_t base) {
        std::vector<std::uint64_t> list(100);
        for (std::size_t i = 0; i < list.size(); i++) {
            list[i] = (i * 37 + 11) % 101;
            lane.expect(64 + 48 * i, base + 44 * list[i], 40);
        }
        const sr::Region index = numbers(list);
        sr::Rows rows = sr::Rows::packed(lane.buffer, 40, index, 100, table);
        rows.numbers = sr::Numbers::u64;
        rows.table_offset = base;
        rows.table_stride = 44;
        rows.buffer_offset = 64;
        rows.buffer_stride = 48;
        batch.write_rows(rows);
    }

    void blocks(sr::Batch &batch, Lane &lane, std::uint64_t base, bool writes) {
        constexpr std::uint32_t count = 32, bytes = 128;
        std::vector<std::uint32_t> list(2 * count);
        for (std::uint32_t i = 0; i < count; i++) {
            list[i] = random.below(256);
            list[count + i] = (i * 5 + 3) % count;
            lane.expect(256 + 200 * list[i], base + 160 * list[count + i], bytes);
        }
        const sr::Region index = numbers(list);
        sr::Blocks blocks = sr::Blocks::packed(table, lane.buffer, bytes, index, count);
        blocks.src_offset = 256;
        blocks.src_stride = 200;
        blocks.dst_offset = base;
        blocks.dst_stride = 160;
        writes ? batch.write_blocks(blocks) : batch.read_blocks(blocks);
    }

    void records(sr::Batch &batch, Lane &lane, std::uint64_t base, bool writes) {
        std::vector<sr::FragmentRecord> list(30);
        for (std::uint32_t i = 0; i < list.size(); i++) {
            const std::uint32_t length = random.below(200), from = random.below(Lane::table_bytes - 500);
            list[i] = sr::FragmentRecord{from, 256 * i, length, 0};
            lane.expect(300 + from, base + 256 * i, length);
        }
        const sr::Region index = numbers(list);
        sr::Ranges ranges = sr::Ranges::packed(table, lane.buffer, index, 30);
        ranges.src_offset = 300;
        ranges.dst_offset = base;
        writes ? batch.write_ranges(ranges) : batch.read_ranges(ranges);
    }

    void tile(sr::Batch &batch, Lane &lane, std::uint64_t base, bool writes) {
        const sr::Tile tile{table, 100, 700, lane.buffer, base + 3, 150, 129, 64};
        for (std::uint64_t i = 0; i < tile.count; i++) {
            lane.expect(100 + 700 * i, base + 3 + 150 * i, 129);
        }
        writes ? batch.write_tile(tile) : batch.read_tile(tile);
    }

    /// 8 fragments of 4 pieces of 10 bytes.
    void extended(sr::Batch &batch, Lane &lane, std::uint64_t base) {
        sr::Descriptor descriptor{};
        descriptor.opcode = SCATTER_RING_OPCODE_READ;
        descriptor.src_region = table.handle();
        descriptor.dst_region = lane.buffer.handle();
        descriptor.src_offset = 7;
        descriptor.src_stride = 1000;
        descriptor.dst_offset = base;
        descriptor.dst_stride = 200;
        descriptor.len = 10;
        descriptor.count = 8;
        for (std::uint64_t i = 0; i < 8; i++) {
            for (std::uint64_t k = 0; k < 4; k++) {
                lane.expect(7 + 1000 * i + 33 * k, base + 200 * i + 12 * k, 10);
            }
        }
        batch.push_extended(descriptor, extension_of(4, 33, 12), {&table, &lane.buffer});
    }

    /// One of them, by number.
    void one(std::uint32_t which, sr::Batch &batch, Lane &lane, std::uint64_t base) {
        switch (which) {
        case 0: return ranges(batch, lane, base, false);
        case 1: return ranges(batch, lane, base, true);
        case 2: return read_rows<std::uint32_t>(batch, lane, base, sr::Missing::refuse);
        case 3: return read_rows<std::uint32_t>(batch, lane, base, sr::Missing::zero);
        case 4: return read_rows<std::uint64_t>(batch, lane, base, sr::Missing::skip);
        case 5: return write_rows(batch, lane, base);
        case 6: return blocks(batch, lane, base, false);
        case 7: return blocks(batch, lane, base, true);
        case 8: return records(batch, lane, base, false);
        case 9: return records(batch, lane, base, true);
        case 10: return tile(batch, lane, base, false);
        case 11: return tile(batch, lane, base, true);
        case 12: return extended(batch, lane, base);
        default: return batch.push(nop());
        }
    }
    static constexpr std::uint32_t kinds = 14;
};

static void check_lane(sr::Client &client, Lane &lane) {
    const sr::Outcome outcome = client.wait(lane.ticket);
    CHECK(outcome.bytes == lane.moved && outcome.reusable && outcome.position == lane.ticket.position());
    CHECK(bytes_of(lane.buffer) == lane.expected);
    lane.moved = 0;
}

CLAIM(each_operation_moves_what_a_naive_loop_moves) {
    sr::Client client = attach();
    Random random{1};
    const sr::Region table = pattern(client, Lane::table_bytes);
    Operations operations{client, table, random};
    Lane lane{client.allocate(Lane::bytes_each), std::vector<std::uint8_t>(Lane::bytes_each), 0, {}};
    sr::Batch batch = client.batch();
    for (std::uint32_t which = 0; which < Operations::kinds; which++) {
        operations.one(which, batch, lane, 0);
        lane.ticket = batch.user_data(which).submit();
        check_lane(client, lane);
    }
}

/// In mixed batches, several under way, for the given rings.
static void mixed(const sr::Setup &setup, std::uint64_t seed, int rounds) {
    sr::Client client = attach(setup);
    Random random{seed};
    const sr::Region table = pattern(client, Lane::table_bytes);
    Operations operations{client, table, random};
    std::vector<Lane> lanes;
    for (int i = 0; i < 3; i++) {
        lanes.push_back(
            Lane{client.allocate(8 * Lane::bytes_each), std::vector<std::uint8_t>(8 * Lane::bytes_each), 0, {}});
    }
    sr::Batch batch = client.batch();
    for (int round = 0; round < rounds; round++) {
        Lane &lane = lanes[static_cast<std::size_t>(round) % lanes.size()];
        if (lane.ticket) {
            check_lane(client, lane);
        }
        const std::uint32_t count = 1 + random.below(8);
        if (random.one_in(2)) {
            batch.hint(count, 1000).deadline(60s);
        }
        if (random.one_in(4)) {
            batch.fence();
        }
        for (std::uint32_t i = 0; i < count; i++) {
            operations.one(random.below(Operations::kinds), batch, lane, i * std::uint64_t{Lane::bytes_each});
        }
        lane.ticket = batch.submit();
    }
    for (Lane &lane : lanes) {
        check_lane(client, lane);
    }
}

CLAIM(mixed_batches_move_what_a_naive_loop_moves) { mixed(sr::Setup(), 2, 150); }

CLAIM(batches_longer_than_the_ring_are_shown_part_by_part) {
    mixed(small(16, 16), 3, 60);
    mixed(small(4, 8), 4, 30);
    // Only extensions, which need two places each and step over the place to publish.
    sr::Client client = attach(small(8, 8));
    const sr::Region table = pattern(client, Lane::table_bytes);
    Random random{5};
    Operations operations{client, table, random};
    Lane lane{client.allocate(100 * 2048), std::vector<std::uint8_t>(100 * 2048), 0, {}};
    sr::Batch batch = client.batch();
    for (std::uint64_t i = 0; i < 100; i++) {
        operations.extended(batch, lane, 2048 * i);
    }
    lane.ticket = batch.submit();
    check_lane(client, lane);
}

CLAIM(positions_go_on_where_they_wrap) {
    for (const std::uint64_t start : {UINT64_MAX - 20, std::uint64_t{UINT32_MAX} - 20, std::uint64_t{1} << 63}) {
        sr::Setup setup = small(16, 16);
        setup.start_position = start;
        mixed(setup, start, 40);
        sr::Client client = attach(setup);
        sr::Span span;
        for (std::uint64_t i = 0; i < 100; i++) {
            sr::Descriptor descriptor = nop(SCATTER_RING_FLAGS_LAST);
            descriptor.user_data = i;
            CHECK(client.push(descriptor));
            client.submit();
            CHECK(client.wait_any(10s) && client.reap(span));
            CHECK(span.first == start + i && span.user_data == i && span.status == SCATTER_RING_STATUS_OK);
        }
    }
}

CLAIM(one_call_reads_and_writes_ranges_and_rows) {
    sr::Client client = attach();
    const sr::Region table = pattern(client, 1000 * 264), out = client.allocate(3 * 264),
                     back = client.allocate(1000 * 264);
    const std::uint32_t rows[] = {7, 0, 999};
    CHECK(client.read_rows(table, 264, rows, 3, out).bytes == 3 * 264);
    for (std::uint64_t i = 0; i < 3; i++) {
        for (std::uint64_t j = 0; j < 264; j++) {
            CHECK(bytes_of(out)[i * 264 + j] == byte_of(rows[i] * 264 + j));
        }
    }
    CHECK(client.write_rows(back, 264, rows, 3, out).bytes == 3 * 264);
    CHECK(bytes_of(back)[999 * 264 + 5] == byte_of(999 * 264 + 5) && bytes_of(back)[264] == 0);
    CHECK(client.read(table, 100, out, 0, 500).bytes == 500 && bytes_of(out)[499] == byte_of(599));
    CHECK(client.write(out, 0, back, 264, 500).bytes == 500 && bytes_of(back)[264] == byte_of(100));
    CHECK(client.read_rows(table, 264, rows, 0, out).bytes == 0);
}

// ---- The raw producer ----

CLAIM(raw_descriptors_are_reaped_once_each_and_a_full_ring_is_no_failure) {
    sr::Client client = attach(small(8, 8));
    const sr::Region table = pattern(client, 4096), out = client.allocate(4096);
    std::uint64_t pushed = 0, done = 0, full = 0;
    std::vector<int> seen(1000);
    while (done < seen.size()) {
        sr::Descriptor descriptor = nop(pushed % 3 == 2 || pushed + 1 == seen.size() ? SCATTER_RING_FLAGS_LAST : 0);
        descriptor.opcode = SCATTER_RING_OPCODE_READ;
        descriptor.src_region = table.handle();
        descriptor.dst_region = out.handle();
        descriptor.src_offset = descriptor.dst_offset = 4 * pushed;
        descriptor.len = 4;
        descriptor.count = 1;
        if (pushed < seen.size() && client.push(descriptor)) {
            pushed += 1;
            continue;
        }
        full += pushed < seen.size() ? 1 : 0;
        client.publish();
        client.submit();
        sr::Span span;
        while (client.reap(span)) {
            CHECK(span.status == SCATTER_RING_STATUS_OK && scatter_ring_span_is_batch_done(&span) &&
                  span.bytes == 4 * span.count);
            for (std::uint32_t i = 0; i < span.count; i++) {
                seen[span.first + i] += 1;
                done += 1;
            }
        }
    }
    CHECK(full > 0);
    CHECK(seen == std::vector<int>(seen.size(), 1));
    CHECK(std::memcmp(bytes_of(table).data(), bytes_of(out).data(), 4000) == 0);
    sr::Extension extension{};
    extension.opcode = SCATTER_RING_OPCODE_EXTENSION;
    CHECK(client.push_extended(nop(SCATTER_RING_FLAGS_LAST), extension));
    client.submit();
    sr::Span span;
    CHECK(client.wait_any(10s) && client.reap(span) && span.count == 2);
}

CLAIM(the_steady_state_allocates_nothing) {
    sr::Client client = attach();
    const sr::Region table = pattern(client, 64 << 10), out = client.allocate(64 << 10), index = client.allocate(4096);
    sr::Batch batch = client.batch();
    const auto work = [&](int rounds, std::size_t under_way) {
        std::array<sr::Ticket, 32> tickets;
        for (int round = 0; round < rounds; round++) {
            sr::Ticket &ticket = tickets[static_cast<std::size_t>(round) % under_way];
            if (ticket) {
                CHECK(client.wait(ticket).reusable);
            }
            batch.hint(32, 1000).user_data(5);
            for (std::uint64_t i = 0; i < 32; i++) {
                batch.read(table, 64 * i, out, 64 * i, 64);
            }
            sr::Rows rows = sr::Rows::packed(table, 16, index, 100, out);
            rows.buffer_offset = 32 << 10;
            batch.read_rows(rows);
            ticket = batch.submit();
        }
        for (sr::Ticket &ticket : tickets) {
            CHECK(!ticket || client.wait(ticket).reusable);
        }
        for (int i = 0; i < rounds; i++) {
            CHECK(client.push(nop(SCATTER_RING_FLAGS_LAST)));
            client.submit();
            sr::Span span;
            while (!client.reap(span)) {
            }
        }
        const std::uint32_t numbers[] = {1, 2, 3};
        client.read_rows(table, 16, numbers, 3, out);
    };
    // As many batches at a time as there ever are, and more.
    work(200, 32);
    const std::uint64_t before = allocations;
    work(500, 8);
    CHECK(allocations == before);
    // The count counts.
    CHECK(client.allocate(1) && allocations > before);
}

// ---- Memory ----

CLAIM(memory_files_and_memory_that_is_mapped_already_become_regions) {
    sr::Client client = attach();
    const int file = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    constexpr std::size_t bytes = 64 << 10;
    CHECK(file >= 0 && ::ftruncate(file, bytes) == 0);
    sr::Error error;
    CHECK(!client.register_fd(file, 0, bytes, sr::Rights::read_write, error));
    CHECK_SAYS(error.message(), "not sealed against shrinking");
    CHECK(::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    void *mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(mapped != MAP_FAILED);
    const sr::Region whole = client.register_fd(file, 0, bytes, sr::Rights::read_write);
    const sr::Region part = client.register_fd(file, 5001, 3000, sr::Rights::read_write);
    const sr::Region adopted = client.adopt(static_cast<char *>(mapped) + 4096, 8192, sr::Rights::read_write);
    for (std::size_t i = 0; i < bytes; i++) {
        static_cast<std::uint8_t *>(mapped)[i] = byte_of(i);
    }
    CHECK(bytes_of(whole)[777] == byte_of(777) && bytes_of(part)[10] == byte_of(5011));
    CHECK(adopted.data() == static_cast<std::byte *>(mapped) + 4096);
    // The engine sees the same bytes under each of the three.
    const sr::Region out = client.allocate(3000);
    client.read(part, 1000, out, 0, 2000);
    CHECK(bytes_of(out)[0] == byte_of(6001));
    client.write(out, 0, adopted, 100, 50);
    CHECK(static_cast<std::uint8_t *>(mapped)[4196] == byte_of(6001));
    // Only for reading.
    const int again = ::open(("/proc/self/fd/" + std::to_string(file)).c_str(), O_RDONLY | O_CLOEXEC);
    const sr::Region read_only = client.register_fd(again, 0, bytes, sr::Rights::read);
    CHECK_SAYS(refusal([&] { read_only.write_at(0, "x", 1); }).message(), "does not grant writing");
    CHECK_SAYS(refusal([&] { client.register_fd(again, 0, bytes, sr::Rights::write); }).message(),
               "not open for writing");
    CHECK_SAYS(refusal([&] { client.register_fd(file, 1, bytes, sr::Rights::read); }).message(),
               "a region of 65536 bytes at 1 of a file of 65536");
    CHECK_SAYS(refusal([&] { client.register_fd(0, 0, 1, sr::Rights::read); }).message(), "not a memory file");
    std::vector<char> heap(8192);
    const sr::Error error_heap = refusal([&] { client.adopt(heap.data(), heap.size(), sr::Rights::read); });
    CHECK(error_heap.kind() == sr::ErrorKind::private_memory);
    CHECK_SAYS(error_heap.message(), "private to the process");
    CHECK_SAYS(refusal([&] { client.allocate(0); }).message(), "a region of 0 bytes");
    CHECK_SAYS(refusal([&] { client.allocate(std::uint64_t{1} << 50); }).message(), "more than this machine has");
    ::close(file);
    ::close(again);
    CHECK(client.close(adopted, error));
    ::munmap(mapped, bytes);
}

CLAIM(views_are_typed_bounded_and_aligned) {
    sr::Client client = attach();
    const sr::Region region = client.allocate(4096);
    auto numbers = region.view<std::uint32_t>(8, 4);
    numbers[3] = 0x01020304;
    CHECK(numbers.size() == 4 && region.view<std::uint8_t>()[20] == 4 && region.view<std::uint64_t>().size() == 512);
    CHECK(region.view<std::uint8_t>(4096).size() == 0);
    CHECK_SAYS(refusal([&] { region.view<std::uint32_t>(2); }).message(), "not aligned for elements of 4 bytes");
    CHECK_SAYS(refusal([&] { region.view<std::uint32_t>(4093, 1); }).message(), "outside a region of 4096 bytes");
    CHECK_SAYS(refusal([&] { region.view<std::uint32_t>(5000); }).message(), "outside a region of 4096 bytes");
    CHECK_SAYS(refusal([&] { region.write_at(4090, "12345678", 8); }).message(), "range of 8 bytes at 4090");
}

CLAIM(an_export_is_opened_by_another_client_with_no_more_than_its_rights) {
    sr::Client owner = attach(), guest = attach();
    const sr::Region table = pattern(owner, 4096);
    const std::string name = "cpp-table-" + std::to_string(::getpid());
    owner.export_as(table, name, sr::Rights::read);
    const sr::Region opened = guest.open(name, sr::Rights::read);
    CHECK(opened.bytes() == 4096 && opened.rights() == sr::Rights::read && opened.data() == nullptr && !opened.peer());
    const sr::Region out = guest.allocate(4096);
    guest.read(opened, 0, out, 0, 4096);
    CHECK(bytes_of(out) == bytes_of(table));
    CHECK_SAYS(refusal([&] { guest.open(name, sr::Rights::write); }).message(), "NO_RIGHT");
    CHECK_SAYS(refusal([&] { guest.open("no such table", sr::Rights::read); }).message(),
               "no such export (NAME_UNKNOWN)");
    CHECK_SAYS(refusal([&] { owner.export_as(table, name, sr::Rights::read); }).message(), "NAME_TAKEN");
    CHECK_SAYS(refusal([&] { guest.open(std::string(200, 'x'), sr::Rights::read); }).message(),
               "a name has 1 to 168 bytes");
    CHECK_SAYS(refusal([&] { bytes_of(opened); }).message(), "the region was opened");
    CHECK(refusal([&] { guest.write(out, 0, opened, 0, 1); }).status() == SCATTER_RING_STATUS_NO_RIGHT);
    CHECK_SAYS(refusal([&] { guest.connect("nonsense"); }).message(), "(");
    CHECK_SAYS(refusal([&] { guest.connect(" "); }).message(), "an endpoint has 1 to 168 bytes");
    owner.close(table);
    CHECK(refusal([&] { guest.read(opened, 0, out, 0, 1); }).status() == SCATTER_RING_STATUS_REGION_GONE);
}

CLAIM(a_region_that_the_program_drops_stays_until_its_batch_is_done) {
    sr::Client client = attach();
    const sr::Region out = client.allocate(1 << 20);
    sr::Ticket ticket;
    {
        const sr::Region table = pattern(client, 1 << 20);
        sr::Batch batch = client.batch();
        batch.read(table, 0, out, 0, 1 << 20);
        ticket = batch.submit();
    }
    CHECK(client.wait(ticket).bytes == 1 << 20);
    CHECK(bytes_of(out)[99999] == byte_of(99999));
}

CLAIM(regions_may_be_dropped_by_any_thread_while_the_client_works) {
    sr::Client client = attach();
    const sr::Region from = pattern(client, 4096), to = client.allocate(4096);
    for (int round = 0; round < 10; round++) {
        std::vector<sr::Region> regions;
        sr::Batch batch = client.batch();
        for (int i = 0; i < 40; i++) {
            regions.push_back(client.allocate(4096));
            batch.read(from, 0, regions.back(), 0, 4096);
        }
        const sr::Ticket ticket = batch.submit();
        std::thread other([dropped = std::move(regions)]() mutable {
            for (sr::Region &region : dropped) {
                ::sched_yield();
                region = sr::Region();
            }
        });
        CHECK(client.wait(ticket).bytes == 40 * 4096);
        CHECK(client.read(from, 0, to, 0, 4096).bytes == 4096);
        other.join();
    }
}

// ---- Waiting ----

CLAIM(a_wait_with_a_limit_a_look_and_a_release_say_what_they_know) {
    // A full notification queue keeps a batch under way for as long as is wanted.
    sr::Setup setup = small(16, 4);
    setup.notifications = true;
    sr::Client told = attach(setup), teller = attach();
    const sr::Region inbox = told.allocate(4096);
    const std::string name = "cpp-inbox-" + std::to_string(::getpid());
    told.export_as(inbox, name, sr::Rights::write);
    const sr::Region other = teller.open(name, sr::Rights::write), text = teller.allocate(4096);
    text.write_at(100, "hello", 5);
    sr::Batch batch = teller.batch();
    for (std::uint64_t i = 0; i < 4; i++) {
        sr::Ticket ticket = batch.user_data(i).notify(other, 1000 + i, text, 100, static_cast<std::uint32_t>(i));
        CHECK(teller.wait(ticket).reusable);
    }
    sr::Ticket waits = batch.user_data(4).notify(other, 1004);
    CHECK(!teller.try_outcome(waits) && !teller.wait_for(waits, 1ms) && !teller.wait_released(waits, 1ms));
    CHECK(text.is_busy() == false && other.is_busy());
    CHECK_SAYS(refusal([&] { teller.close(other); }).message(), "a batch that is under way still uses this region");
    sr::Ticket cancelled = batch.notify(other, 1005);
    // The engine may not have taken it yet.
    while (!teller.cancel(cancelled)) {
        CHECK(!teller.try_outcome(cancelled));
    }
    const sr::Error error = refusal([&] { teller.wait(cancelled); });
    CHECK(error.status() == SCATTER_RING_STATUS_CANCELLED && error.batch()->stage == SCATTER_RING_STAGE_WAIT);
    CHECK(!teller.cancel(cancelled));
    sr::Ticket late = batch.deadline(1ms).notify(other, 1006);
    CHECK(refusal([&] { teller.wait(late); }).status() == SCATTER_RING_STATUS_TIMED_OUT);
    CHECK(teller.wait_released(late));
    sr::Notification notification;
    for (std::uint64_t i = 0; i < 5; i++) {
        CHECK(told.wait_notification(notification, 10s));
        CHECK(notification.user_data == i && notification.offset == 1000 + i && notification.payload_bytes == i % 4);
        CHECK(std::memcmp(notification.payload, "hello", notification.payload_bytes) == 0);
    }
    CHECK(teller.wait(waits).user_data == 4);
    CHECK(!told.next_notification(notification) && !told.wait_notification(notification, 1ms));
    CHECK_SAYS(refusal([&] { ignore(teller.next_notification(notification)); }).message(), "notifications are off");
}

CLAIM(a_notification_that_comes_between_two_looks_at_a_full_client_stays_in_the_ring) {
    constexpr std::uint64_t count = 300;
    sr::Setup setup = small(16, 4);
    setup.notifications = true;
    sr::Client told = attach(setup);
    const sr::Region inbox = told.allocate(64);
    const std::string name = "cpp-busy-inbox-" + std::to_string(::getpid());
    told.export_as(inbox, name, sr::Rights::read);
    std::thread other([&] {
        sr::Client teller = attach();
        const sr::Region opened = teller.open(name, sr::Rights::read);
        sr::Batch batch = teller.batch();
        for (std::uint64_t i = 0; i < count; i++) {
            const sr::Ticket ticket = batch.notify(opened, i);
            teller.wait(ticket);
        }
    });
    sr::Notification notification;
    sr::Span span;
    for (std::uint64_t next = 0; next < count;) {
        sr::Error error;
        CHECK(!told.reap(span, error));
        CHECK(!error || error.kind() == sr::ErrorKind::notifications_full);
        // The last ones do not fill it any more.
        if ((error || next + 8 >= count) && told.next_notification(notification)) {
            CHECK(notification.offset == next);
            next += 1;
        }
    }
    other.join();
}

/// A client with four notifications that it has not taken and four more in its ring, so that nothing else comes
/// through.
struct Stuffed {
    sr::Client told, teller;
    sr::Region inbox;

    explicit Stuffed(const char *prefix) : teller(attach()) {
        sr::Setup setup = small(4, 4);
        setup.notifications = true;
        told = attach(setup);
        inbox = told.allocate(64);
        const std::string name = prefix + std::to_string(::getpid());
        told.export_as(inbox, name, sr::Rights::read);
        const sr::Region opened = teller.open(name, sr::Rights::read);
        sr::Batch tells = teller.batch();
        sr::Error error;
        for (std::uint64_t i = 0; i < 8; i++) {
            const sr::Ticket ticket = tells.notify(opened, i);
            teller.wait(ticket);
            sr::Span span;
            told.reap(span, error);
        }
        check_in_the_way(error);
    }

    static void check_in_the_way(const sr::Error &error) {
        CHECK(error.kind() == sr::ErrorKind::notifications_full);
        CHECK_SAYS(error.message(), "notifications that nobody takes are in the way");
    }

    void take_all() {
        sr::Notification notification;
        for (std::uint64_t i = 0; i < 8; i++) {
            CHECK(told.next_notification(notification) && notification.offset == i);
        }
    }
};

CLAIM(notifications_that_are_in_the_way_of_a_long_batch_can_be_taken_and_it_goes_on) {
    Stuffed it("cpp-inbox-a-");
    // The ring is full behind the batch's BEGIN.
    for (int i = 0; i < 3; i++) {
        CHECK(it.told.push(nop(SCATTER_RING_FLAGS_LAST)));
    }
    sr::Descriptor descriptor = nop();
    descriptor.opcode = SCATTER_RING_OPCODE_READ;
    descriptor.src_region = descriptor.dst_region = it.inbox.handle();
    descriptor.dst_offset = 32;
    descriptor.len = descriptor.count = 1;
    sr::Batch batch = it.told.batch();
    batch.hint(2, 0);
    sr::Error error;
    CHECK(!batch.push_extended(descriptor, extension_of(1, 0, 0), {&it.inbox}, error));
    it.check_in_the_way(error);
    it.take_all();
    batch.push_extended(descriptor, extension_of(1, 0, 0), {&it.inbox});
    sr::Descriptor wrong = nop();
    wrong.count = 1;
    batch.push(wrong);
    const sr::Error failed = refusal([&] { it.told.wait(batch.submit()); });
    CHECK(failed.status() == SCATTER_RING_STATUS_INVALID_FIELD && failed.batch()->descriptor == 1u);
}

CLAIM(a_batch_that_was_shown_while_it_waited_in_vain_is_ended_by_one_descriptor_more) {
    Stuffed it("cpp-inbox-b-");
    sr::Batch batch = it.told.batch();
    batch.user_data(9);
    for (std::uint64_t i = 0; i < 4; i++) {
        batch.read(it.inbox, i, it.inbox, 32 + i, 1);
    }
    sr::Error error;
    CHECK(!batch.read(it.inbox, 4, it.inbox, 36, 1, error));
    it.check_in_the_way(error);
    CHECK(!batch.submit(error));
    it.check_in_the_way(error);
    it.take_all();
    const sr::Ticket ticket = batch.submit();
    const sr::Outcome outcome = it.told.wait(ticket);
    CHECK(outcome.bytes == 4 && outcome.user_data == 9 && !it.inbox.is_busy());
}

CLAIM(a_batch_that_is_dropped_while_notifications_are_in_the_way_is_ended_before_the_next_one) {
    Stuffed it("cpp-inbox-c-");
    sr::Error error;
    {
        sr::Batch batch = it.told.batch();
        for (std::uint64_t i = 0; i < 4; i++) {
            batch.read(it.inbox, i, it.inbox, 32 + i, 1);
        }
        CHECK(!batch.read(it.inbox, 4, it.inbox, 36, 1, error));
    }
    CHECK(!it.told.push(nop(SCATTER_RING_FLAGS_LAST), error));
    it.check_in_the_way(error);
    CHECK(!it.told.batch().submit(error));
    it.check_in_the_way(error);
    CHECK(it.inbox.is_busy());
    it.take_all();
    const sr::Ticket ticket = it.told.batch().submit();
    CHECK(it.told.wait(ticket).position == 5);
    CHECK(!it.inbox.is_busy());
}

CLAIM(a_batch_that_is_dropped_while_notifications_are_in_the_way_is_ended_by_whoever_waits) {
    Stuffed it("cpp-inbox-d-");
    sr::Error error;
    {
        sr::Batch batch = it.told.batch();
        for (std::uint64_t i = 0; i < 4; i++) {
            batch.read(it.inbox, i, it.inbox, 32 + i, 1);
        }
        CHECK(!batch.read(it.inbox, 4, it.inbox, 36, 1, error));
    }
    it.take_all();
    CHECK(it.inbox.is_busy());
    sr::Span span;
    CHECK(it.told.wait_any(10s) && it.told.reap(span));
    CHECK(span.status == SCATTER_RING_STATUS_OK && span.count == 5 && !it.inbox.is_busy());
}

CLAIM(one_descriptor_wakes_an_event_loop) {
    sr::Setup setup;
    setup.spin = 0us;
    sr::Client client = attach(setup);
    const sr::Region from = pattern(client, 1 << 16), to = client.allocate(1 << 16);
    sr::Batch batch = client.batch();
    int slept = 0;
    for (int i = 0; i < 50; i++) {
        batch.read(from, 0, to, 0, 1 << 16);
        sr::Ticket ticket = batch.submit();
        std::optional<sr::Outcome> outcome;
        while (!(outcome = client.try_outcome(ticket))) {
            if (client.arm()) {
                ::pollfd one{client.fd(), POLLIN, 0};
                CHECK(::poll(&one, 1, 10000) == 1);
                slept += 1;
            }
            client.disarm();
        }
        CHECK(outcome->bytes == 1 << 16 && outcome->times.total.count() > 0);
    }
    CHECK(slept > 0);
}

// ---- Wrong use, each with what it says ----

CLAIM(a_failing_descriptor_is_named_with_its_fragment_field_and_value) {
    sr::Client client = attach();
    const sr::Region table = pattern(client, 100 * 264), out = client.allocate(100 * 264),
                     index = client.allocate(4096);
    const std::uint32_t numbers[] = {1, 2, 100};
    index.write_at(0, numbers, sizeof numbers);
    sr::Batch batch = client.batch();
    batch.hint(4, 1000).read(table, 0, out, 0, 100);
    batch.read_rows(sr::Rows::packed(table, 264, index, 3, out));
    const sr::Ticket ticket = batch.submit();
    const sr::Error error = refusal([&] { client.wait(ticket); });
    const sr::BatchError &what = *error.batch();
    CHECK(what.status == SCATTER_RING_STATUS_OUT_OF_RANGE && what.descriptor == 1u && what.fragment == 2 &&
          what.reusable);
    CHECK(what.field == SCATTER_RING_FIELD_SRC_OFFSET && what.position == ticket.position() + 2 &&
          what.bytes_done == 100);
    CHECK_SAYS(error.message(),
               "descriptor 1 of the batch, fragment 2, src_offset: outside the region (OUT_OF_RANGE), value ");
    CHECK_SAYS(error.message(), "; buffers are reusable");
    // The session goes on.
    CHECK(client.read(table, 0, out, 0, 1).bytes == 1);
}

CLAIM(what_is_used_after_its_end_or_by_another_says_so) {
    sr::Client client = attach(), other = attach();
    const sr::Region mine = client.allocate(4096), closed = client.allocate(4096), foreign = other.allocate(4096);
    client.close(closed);
    sr::Batch batch = client.batch();
    const auto names = [](const sr::Error &error, const char *field) {
        CHECK(error.status() == SCATTER_RING_STATUS_UNKNOWN_REGION);
        CHECK_SAYS(error.message(), field);
        CHECK_SAYS(error.message(), ": no such region in this session (UNKNOWN_REGION)");
    };
    names(refusal([&] { batch.read(closed, 0, mine, 0, 1); }), "src_region");
    names(refusal([&] { batch.read(mine, 0, foreign, 0, 1); }), "dst_region");
    names(refusal([&] { batch.read_rows(sr::Rows::packed(mine, 8, sr::Region(), 1, mine)); }), "index_region");
    sr::Descriptor descriptor = nop();
    descriptor.src_region = mine.handle();
    names(refusal([&] { batch.push(descriptor, {&closed}); }), "src_region");
    CHECK_SAYS(refusal([&] { batch.push(nop(SCATTER_RING_FLAGS_LAST)); }).message(), "flags: unknown flag");
    CHECK_SAYS(refusal([&] { batch.read(mine, 0, mine, 8, ~std::uint64_t{0}); }).message(), "len: outside the region");
    // What was refused is not in the batch.
    batch.read(mine, 0, mine, 64, 32);
    const sr::Ticket ticket = batch.submit();
    CHECK(client.wait(ticket).bytes == 32);
    CHECK_SAYS(refusal([&] { other.wait(ticket); }).message(), "this ticket belongs to another client");
    CHECK_SAYS(refusal([&] { client.wait(sr::Ticket()); }).message(), "this ticket names no batch");
    CHECK_SAYS(refusal([&] { client.close(closed); }).message(), "the region was closed");
    CHECK_SAYS(refusal([&] { client.close(foreign); }).message(), "this region belongs to another client");
    CHECK_SAYS(refusal([&] { client.export_as(sr::Region(), "x", sr::Rights::read); }).message(), "names no memory");
    sr::Client moved = std::move(client);
    CHECK_SAYS(refusal([&] { client.allocate(1); }).message(), "this client is attached to nothing");
    CHECK_SAYS(refusal([&] { client.submit(); }).message(), "this client is attached to nothing");
    // The batch goes with the session.
    batch.read(mine, 0, mine, 64, 32);
    CHECK(moved.wait(batch.submit()).bytes == 32);
    moved.close();
    CHECK_SAYS(refusal([&] { moved.allocate(1); }).message(), "this client was closed");
    CHECK_SAYS(refusal([&] { moved.submit(); }).message(), "this client was closed");
    sr::Span span;
    CHECK_SAYS(refusal([&] { ignore(moved.reap(span)); }).message(), "this client was closed");
    CHECK(refusal([&] { batch.submit(); }).status() == SCATTER_RING_STATUS_ENGINE_LOST);
    CHECK(!moved.arm());
    CHECK(bytes_of(mine).size() == 4096);
    // Whatever outlives its client.
    sr::Batch orphan = attach().batch();
    CHECK_SAYS(refusal([&] { orphan.submit(); }).message(), "client was closed");
    sr::Batch begun = other.batch();
    begun.read(foreign, 0, foreign, 8, 8);
    other = sr::Client();
    CHECK_SAYS(refusal([&] { begun.submit(); }).message(), "engine lost (ENGINE_LOST); buffers are reusable");
}

CLAIM(what_comes_at_the_wrong_time_says_so_and_nothing_is_submitted) {
    sr::Client client = attach();
    const sr::Region memory = client.allocate(4096);
    sr::Batch batch = client.batch(), second = client.batch();
    batch.read(memory, 0, memory, 8, 8);
    CHECK_SAYS(refusal([&] { second.read(memory, 0, memory, 8, 8); }).message(),
               "a batch of this client is being built");
    CHECK_SAYS(refusal([&] { ignore(client.push(nop())); }).message(), "a batch of this client is being built");
    batch.deadline(1s);
    CHECK_SAYS(refusal([&] { batch.submit(); }).message(), "come before the first descriptor");
    CHECK(!memory.is_busy());
    CHECK(client.push(nop()));
    CHECK_SAYS(refusal([&] { batch.read(memory, 0, memory, 8, 8); }).message(), "raw descriptors without LAST");
    CHECK(client.push(nop(SCATTER_RING_FLAGS_LAST)));
    {
        sr::Batch dropped = client.batch();
        dropped.read(memory, 0, memory, 8, 8);
        CHECK(memory.is_busy());
        CHECK(refusal([&] { bytes_of(memory); }).kind() == sr::ErrorKind::busy);
        CHECK_SAYS(refusal([&] { memory.write_at(0, "x", 1); }).message(),
                   "a batch that is under way still uses this region");
    }
    CHECK(!memory.is_busy());
    // An empty batch is a NOP; a wait leaves a batch that is being built alone.
    const sr::Ticket empty = batch.user_data(3).submit();
    batch.read(memory, 0, memory, 8, 8);
    CHECK(client.wait(empty).bytes == 0);
    CHECK(client.wait(batch.submit()).bytes == 8);
    sr::Span span;
    CHECK(client.reap(span) && span.count == 2 && !client.reap(span));
}

CLAIM(a_forked_child_is_refused_everything_and_harms_nothing) {
    sr::Client client = attach();
    const sr::Region memory = client.allocate(4096);
    sr::Batch batch = client.batch();
    batch.read(memory, 0, memory, 64, 8);
    const sr::Ticket ticket = client.batch().submit(*std::make_unique<sr::Error>());
    CHECK(!ticket); // A batch is being built.
    const pid_t child = ::fork();
    if (child == 0) {
        const auto forked = [](const sr::Error &error) {
            CHECK(error.kind() == sr::ErrorKind::forked && error.status() == SCATTER_RING_STATUS_FORKED);
            CHECK_SAYS(error.message(), "this session belongs to the parent process: attach again in the child");
        };
        sr::Span span;
        sr::Notification notification;
        forked(refusal([&] { client.allocate(64); }));
        forked(refusal([&] { ignore(client.push(nop(SCATTER_RING_FLAGS_LAST))); }));
        forked(refusal([&] { client.submit(); }));
        forked(refusal([&] { ignore(client.reap(span)); }));
        forked(refusal([&] { client.wait(ticket); }));
        forked(refusal([&] { client.wait_any(); }));
        forked(refusal([&] { ignore(client.next_notification(notification)); }));
        forked(refusal([&] { batch.read(memory, 0, memory, 64, 8); }));
        forked(refusal([&] { batch.submit(); }));
        forked(refusal([&] { memory.write_at(0, "x", 1); }));
        CHECK(!client.arm());
        {
            // Whatever is dropped here.
            const sr::Client gone = std::move(client);
            const sr::Region region = memory;
        }
        sr::Client own = attach();
        CHECK(own.read(own.allocate(64), 0, own.allocate(64), 0, 64).bytes == 64);
        std::_Exit(0);
    }
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(client.wait(batch.submit()).bytes == 8);
    memory.write_at(0, "x", 1);
}

CLAIM(attaching_to_nobody_says_what_to_do) {
    sr::Error error;
    CHECK(!sr::Client::attach("/nowhere/socket", {}, error) && error.kind() == sr::ErrorKind::no_socket);
    CHECK_SAYS(error.message(), "no socket at /nowhere/socket: is `scatter-ring serve` running");
    CHECK(!sr::Client::attach(std::string(300, 'x'), {}, error));
    CHECK_SAYS(error.message(), "the socket's path");
    CHECK(!sr::Client::attach("/dev/null", {}, error));
    CHECK_SAYS(error.message(), "nobody listens at /dev/null (connection refused): is `scatter-ring serve` running?");
    CHECK(!sr::Client::attach(socket_path(), small(3, 8), error));
    CHECK_SAYS(error.message(), "INVALID_SETTING");
}

int main(int argc, char **argv) { return check_claims(argc, argv); }
