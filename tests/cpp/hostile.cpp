// What the C++ producer makes of an engine that is wrong: an error, never a crash, never a wrong release; and what it
// puts into the ring. Needs no daemon.

#include "fake.hpp"

#include <sys/syscall.h>

namespace sr = scatter_ring;
using namespace std::chrono_literals;

static sr::Setup rings(std::uint32_t sq, std::uint32_t cq) {
    sr::Setup setup;
    setup.sq_capacity = sq;
    setup.cq_capacity = cq;
    return setup;
}

static sr::Client meet(Fake &fake, const sr::Setup &setup) { return sr::Client::over(fake.client_socket, setup); }

static sr::Span ok(std::uint64_t first, std::uint32_t count) {
    sr::Span span{};
    span.first = first;
    span.count = count;
    span.flags = SCATTER_RING_SPAN_FLAGS_BATCH_DONE;
    return span;
}

template <class Change> static sr::Span but(sr::Span span, Change change) {
    change(span);
    return span;
}

static sr::Descriptor nop(std::uint32_t flags = 0) {
    sr::Descriptor descriptor{};
    descriptor.opcode = SCATTER_RING_OPCODE_NOP;
    descriptor.flags = static_cast<std::uint16_t>(flags);
    return descriptor;
}

/// A client with two batches of two descriptors each under way, which write `memory`.
struct UnderWay {
    Fake fake;
    sr::Client client;
    sr::Region memory;
    sr::Ticket tickets[2];

    UnderWay() : client(meet(fake, rings(16, 32))), memory(client.allocate(64)) {
        sr::Batch batch = client.batch();
        for (sr::Ticket &ticket : tickets) {
            batch.read(memory, 0, memory, 8, 8);
            batch.read(memory, 0, memory, 8, 8);
            ticket = batch.submit();
        }
    }

    void check_over() {
        sr::Error error;
        CHECK(!client.submit(error) && error.kind() == sr::ErrorKind::broken);
        CHECK_SAYS(error.message(), "the session has ended because the engine broke its protocol: ");
        CHECK(!client.allocate(64, error) && error.status() == SCATTER_RING_STATUS_BAD_RING);
        CHECK(memory.is_busy());
    }
};

CLAIM(spans_that_cannot_be_end_the_session_and_release_nothing) {
    const sr::Span part = but(ok(0, 1), [](sr::Span &s) { s.flags = 0; });
    const sr::Span held = but(ok(0, 2), [](sr::Span &s) {
        s.status = SCATTER_RING_STATUS_TIMED_OUT;
        s.flags = SCATTER_RING_SPAN_FLAGS_HELD | SCATTER_RING_SPAN_FLAGS_BATCH_DONE;
    });
    const sr::Span released = but(sr::Span{}, [](sr::Span &s) { s.flags = SCATTER_RING_SPAN_FLAGS_RELEASED; });
    const struct {
        const char *what;
        std::vector<sr::Span> spans;
    } cases[] = {
        {"too many slots", {ok(0, 3)}},
        {"too few for a batch that is done", {ok(0, 1)}},
        {"not done with all slots", {but(ok(0, 2), [](sr::Span &s) { s.flags = 0; })}},
        {"no slots", {but(ok(0, 0), [](sr::Span &s) { s.flags = 0; })}},
        {"not from the start", {ok(1, 1)}},
        {"not from the start, and not done", {but(part, [](sr::Span &s) { s.first = 1; })}},
        {"the same slot twice", {part, part}},
        {"over two batches", {ok(0, 4)}},
        {"before the first position", {ok(UINT64_MAX, 1)}},
        {"behind the last position", {ok(4, 1)}},
        {"far away", {ok(std::uint64_t{1} << 63, UINT32_MAX)}},
        {"done twice", {ok(2, 2), ok(2, 2)}},
        {"done twice, the first batch", {ok(0, 2), ok(0, 2)}},
        {"a release of nothing held", {released}},
        {"a release of nothing at all", {but(released, [](sr::Span &s) { s.first = 9; })}},
        {"a release of the middle", {held, but(released, [](sr::Span &s) { s.first = 1; })}},
        {"a release with slots", {held, but(released, [](sr::Span &s) { s.count = 1; })}},
        {"a release that is also an outcome", {held, but(released, [](sr::Span &s) { s.flags |= 1; })}},
        {"a status above 0", {but(ok(0, 2), [](sr::Span &s) { s.status = 1; })}},
        {"an unknown flag", {but(ok(0, 2), [](sr::Span &s) { s.flags |= 1 << 9; })}},
    };
    for (const auto &one : cases) {
        for (const bool by_reap : {false, true}) {
            UnderWay it;
            for (const sr::Span &span : one.spans) {
                it.fake.span(span);
            }
            sr::Error error;
            sr::Span span;
            for (int i = 0; by_reap && i < 3 && !error; i++) {
                it.client.reap(span, error);
            }
            CHECK(!by_reap || error.kind() == sr::ErrorKind::broken);
            bool seen = false;
            for (const sr::Ticket &ticket : it.tickets) {
                it.client.wait(ticket, error);
                seen = seen || error.status() == SCATTER_RING_STATUS_BAD_RING;
            }
            if (!seen) {
                fail(__FILE__, __LINE__, one.what, "was believed");
            }
            it.check_over();
        }
    }
}

CLAIM(a_batch_cannot_be_done_before_its_last_descriptor_was_shown) {
    Fake fake;
    sr::Client client = meet(fake, rings(4, 16));
    sr::Batch batch = client.batch();
    for (int i = 0; i < 4; i++) {
        batch.push(nop());
    }
    fake.span(ok(0, 1));
    // The ring is full: the next one has to wait, and takes the span.
    sr::Error error;
    CHECK(!batch.push(nop(), {}, error) && error.status() == SCATTER_RING_STATUS_BAD_RING && !error.batch()->reusable);
}

CLAIM(impossible_positions_end_the_session) {
    UnderWay it;
    it.fake.lie(SCATTER_RING_COMPLETE_TAIL, std::uint64_t{1} << 40);
    sr::Error error;
    it.client.wait(it.tickets[0], error);
    CHECK(error.status() == SCATTER_RING_STATUS_BAD_RING);
    CHECK(!it.client.submit(error));
    CHECK_SAYS(error.message(), "an impossible position of the completion ring");
    it.check_over();
    for (const std::uint64_t head : {std::uint64_t{3}, UINT64_MAX, std::uint64_t{1} << 63}) {
        Fake fake;
        sr::Client client = meet(fake, rings(4, 16));
        fake.lie(SCATTER_RING_COMPLETE_HEAD, head);
        sr::Batch batch = client.batch();
        bool failed = false;
        for (int i = 0; i < 9 && !failed; i++) {
            failed = !batch.push(nop(), {}, error);
        }
        CHECK(failed && error.status() == SCATTER_RING_STATUS_BAD_RING);
    }
    Fake fake;
    sr::Client client = meet(fake, rings(4, 16));
    fake.lie(SCATTER_RING_COMPLETE_HEAD, 17);
    for (int i = 0; i < 5; i++) {
        client.push(nop(SCATTER_RING_FLAGS_LAST), error);
    }
    CHECK(error.kind() == sr::ErrorKind::broken);
    CHECK_SAYS(error.message(), "an impossible position of the submission ring");
}

CLAIM(random_spans_words_and_positions_never_crash) {
    Random random{7};
    for (int round = 0; round < 150; round++) {
        UnderWay it;
        sr::Error error;
        for (int i = 0; i < 30; i++) {
            sr::Span span{};
            auto *bytes = reinterpret_cast<unsigned char *>(&span);
            for (std::size_t k = 0; k < sizeof span; k++) {
                bytes[k] = static_cast<unsigned char>(random.one_in(3) ? random.below(256) : 0);
            }
            if (random.one_in(2)) {
                span.first = random.below(6);
                span.count = random.below(4);
                span.flags = static_cast<std::uint16_t>(random.below(16));
            }
            it.fake.span(span);
            if (random.one_in(10)) {
                const std::size_t words[] = {SCATTER_RING_COMPLETE_HEAD, SCATTER_RING_COMPLETE_TAIL,
                                             SCATTER_RING_COMPLETE_STOP_WORD, SCATTER_RING_COMPLETE_SLEEP_WORD};
                it.fake.lie(words[random.below(4)], random.one_in(2) ? random.next() : random.below(40));
            }
            it.client.reap(span, error);
            it.client.try_outcome(it.tickets[random.below(2)], error);
            it.client.push(nop(SCATTER_RING_FLAGS_LAST), error);
            it.client.submit(error);
        }
    }
}

CLAIM(wrong_answers_on_the_socket_end_the_session) {
    void (*const twists[])(Message &) = {
        [](Message &answer) { answer.request += 1; },
        [](Message &answer) { answer.kind = SCATTER_RING_KIND_HELLO | SCATTER_RING_KIND_ANSWER; },
        [](Message &answer) { answer.args[0] = 0; },
        [](Message &answer) { answer.args[0] = UINT64_MAX; },
        [](Message &answer) { answer.args[0] = SCATTER_RING_HANDLE_INDEX_MAX; },
        [](Message &answer) { answer.reserved = 1; },
        [](Message &answer) { answer.name_bytes = 169; },
        [](Message &answer) { answer.name[167] = 'x'; },
    };
    for (const auto twist : twists) {
        Fake fake;
        sr::Client client = meet(fake, rings(8, 8));
        fake.twist(twist);
        sr::Error error;
        CHECK(!client.allocate(64, error) && error);
        CHECK(!client.submit(error) && error.kind() == sr::ErrorKind::broken);
    }
    Fake fake;
    sr::Client client = meet(fake, rings(8, 8));
    fake.twist([](Message &answer) { answer.args[2] = SCATTER_RING_RIGHTS_READ; });
    sr::Error error;
    CHECK(!client.open("table", sr::Rights::read_write, error));
    CHECK_SAYS(error.message(), "without the rights asked for");
}

CLAIM(a_refusal_keeps_the_session_and_its_text) {
    Fake fake;
    sr::Client client = meet(fake, rings(8, 8));
    fake.twist([](Message &answer) {
        answer.status = SCATTER_RING_STATUS_LIMIT_EXCEEDED;
        answer.name_bytes = 18;
        std::memcpy(answer.name, "at most 64 regions", 18);
    });
    sr::Error error;
    CHECK(!client.allocate(64, error) && error.kind() == sr::ErrorKind::refused);
    CHECK(std::string(error.message()) == "limit exceeded (LIMIT_EXCEEDED): at most 64 regions");
    fake.twist(nullptr);
    CHECK(client.allocate(64, error) && !error);
}

CLAIM(a_text_with_a_zero_byte_is_refused_and_not_cut) {
    Fake fake;
    sr::Client client = meet(fake, rings(8, 8));
    const std::string text("/nowhere\0/socket", 16);
    sr::Error error;
    CHECK(!sr::Client::attach(text, sr::Setup(), error) && error.system_error() == EINVAL);
    CHECK(client.connect(text, error) == sr::Peer{} && error.status() == SCATTER_RING_STATUS_INVALID_SETTING);
    CHECK(!client.open(text, sr::Rights::read, error) && error.status() == SCATTER_RING_STATUS_INVALID_SETTING);
    CHECK(fake.asked().empty());
}

CLAIM(a_text_that_is_not_utf8_is_refused_before_it_costs_the_session) {
    Fake fake;
    sr::Client client = meet(fake, rings(8, 8));
    sr::Error error;
    for (const char *wrong :
         {"caf\xE9", "\xFF", "\xC3", "\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xE2\x82", "\xC3\xC3",
          "\xE2\x82\xC0", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80"}) {
        CHECK(!client.open(wrong, sr::Rights::read, error));
        CHECK_SAYS(error.message(), "a name has 1 to 168 bytes of UTF-8");
        CHECK(client.connect(wrong, error) == sr::Peer{} && error.status() == SCATTER_RING_STATUS_INVALID_SETTING);
    }
    CHECK(fake.asked().empty());
    for (const char *right : {"a", "caf\xC3\xA9", "\xC2\x80", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                              "\xEF\xBF\xBF", "\xF0\x90\x80\x80z", "\xF4\x8F\xBF\xBF"}) {
        CHECK(client.open(right, sr::Rights::read, error));
    }
    fake.twist([](Message &answer) {
        answer.status = SCATTER_RING_STATUS_LIMIT_EXCEEDED;
        answer.name_bytes = 1;
        answer.name[0] = '\xFF';
    });
    CHECK(!client.open("a", sr::Rights::read, error));
    CHECK_SAYS(error.message(), "a name is not UTF-8");
}

/// A kernel that every call is interrupted in by a signal, unless it is short and repeated.
static std::uint64_t interrupted = 0;

extern "C" int fallocate(int fd, int mode, off_t offset, off_t length) {
    static bool again = true;
    again = !again;
    if (interrupted > 0 && (length > 4 << 20 || !again)) {
        interrupted += 1;
        errno = EINTR;
        return -1;
    }
    return static_cast<int>(::syscall(SYS_fallocate, fd, mode, offset, length));
}

CLAIM(memory_is_allocated_although_signals_come) {
    Fake fake;
    sr::Client client = meet(fake, rings(8, 8));
    interrupted = 1;
    const sr::Region memory = client.allocate((16 << 20) + 5);
    CHECK(memory && interrupted > 4);
    interrupted = 0;
    CHECK(memory.view<unsigned char>()[(16 << 20) + 4] == 0);
}

CLAIM(no_bytes_are_copied_to_and_from_nowhere) {
    Fake fake;
    sr::Client client = meet(fake, rings(8, 8));
    const sr::Region memory = client.allocate(64);
    std::vector<char> none;
    memory.read_at(64, none.data(), none.size());
    memory.write_at(64, none.data(), none.size());
}

CLAIM(a_region_that_was_granted_too_late_is_given_back) {
    std::atomic<bool> is_late{false};
    Fake fake;
    sr::Client client = meet(fake, rings(8, 8));
    fake.twist([&](Message &) {
        while (!is_late) {
            std::this_thread::sleep_for(1ms);
        }
    });
    sr::Error error;
    CHECK(!client.allocate(64, error) && error.kind() == sr::ErrorKind::no_answer);
    is_late = true;
    const sr::Region second = client.allocate(64);
    CHECK(second.handle() == (2 | 1 << 12));
    for (int ms = 0; ms < 10000 && fake.asked().size() < 3; ms++) {
        std::this_thread::sleep_for(1ms);
    }
    CHECK(fake.closed() == (1 | 1 << 12));
}

CLAIM(a_hello_that_does_not_fit_is_refused_with_a_sentence) {
    const auto refused = [](const Manners &manners, const char *part, bool notifications = false) {
        Fake fake(manners);
        sr::Setup setup = rings(8, 8);
        setup.notifications = notifications;
        sr::Error error;
        CHECK(!sr::Client::over(fake.client_socket, setup, error));
        CHECK_SAYS(error.message(), part);
    };
    const auto by_answer = [&](void (*answer)(Message &), const char *part) {
        Manners manners;
        manners.answer = answer;
        refused(manners, part);
    };
    by_answer([](Message &a) { a.args[0] += 1; },
              "the engine speaks ABI 2.0 with entries of 64 bytes, this process 1.");
    by_answer([](Message &a) { a.args[0] += 1; }, "use the same scatter-ring version on both sides");
    by_answer(
        [](Message &a) {
            a.status = SCATTER_RING_STATUS_VERSION_MISMATCH;
            a.args[0] = 0;
        },
        "of another version");
    by_answer([](Message &a) { a.args[3] += 1; }, "epoch");
    by_answer([](Message &a) { a.args[2] = 16 | std::uint64_t{8} << 32; }, "capacity");
    by_answer([](Message &a) { a.args[2] = 3 | std::uint64_t{8} << 32; }, "a ring capacity is not allowed");
    by_answer([](Message &a) { a.args[1] = 0; }, "MISSING_FEATURE");
    by_answer([](Message &a) { a.request = 5; }, "HELLO");
    by_answer([](Message &a) { a.status = SCATTER_RING_STATUS_NOT_ALLOWED; }, "not allowed (NOT_ALLOWED)");
    const auto by_header = [&](void (*header)(::scatter_ring_header &), const char *part) {
        Manners manners;
        manners.header = header;
        refused(manners, part);
    };
    by_header([](::scatter_ring_header &h) { h.magic ^= 1; }, "header: magic");
    by_header([](::scatter_ring_header &h) { h.abi_major += 1; },
              "ABI version does not match (VERSION_MISMATCH): header: abi_major");
    by_header([](::scatter_ring_header &h) { h.spans_offset = 1 << 30; }, "header: spans_offset");
    by_header([](::scatter_ring_header &h) { h.sq_tail_offset = 8; }, "header: sq_tail_offset");
    by_header([](::scatter_ring_header &h) { h.sq_capacity = 1 << 20; }, "disagree on a capacity");
    by_header([](::scatter_ring_header &h) { h.cq_capacity = 0; }, "header: cq_capacity");
    by_header([](::scatter_ring_header &h) { h.epoch = 0; }, "header: epoch");
    by_header([](::scatter_ring_header &h) { h.start_position = 1; },
              "the rings do not start where they were asked to");
    Manners manners;
    manners.sealed = false;
    refused(manners, "it is not sealed against shrinking");
    manners = Manners();
    manners.missing_bytes = 1;
    refused(manners, "smaller than its header says");
    manners = Manners();
    manners.fds = 3;
    refused(manners, "comes with four file descriptors");
    manners.fds = 5;
    refused(manners, "too many file descriptors");
    refused(Manners(), "the engine lacks the feature bits 0x8", true);
    // A doorbell that nobody listens at ends who rings it by a signal.
    int pipe[2];
    CHECK(::pipe2(pipe, O_CLOEXEC) == 0 && ::close(pipe[0]) == 0);
    manners = Manners();
    manners.doorbell = pipe[1];
    refused(manners, "a doorbell or a wake socket that is something else");
    std::swap(manners.doorbell, manners.wake);
    refused(manners, "a doorbell or a wake socket that is something else");
    ::close(pipe[1]);
    manners = Manners();
    manners.doorbell = Fake().client_socket;
    refused(manners, "a doorbell or a wake socket that is something else");
    ::close(manners.doorbell);
}

CLAIM(events_of_nobody_are_passed_on_and_too_many_of_them_end_the_session) {
    Fake fake;
    sr::Client client = meet(fake, rings(4, 4));
    const sr::Span event = but(sr::Span{}, [](sr::Span &s) { s.flags = SCATTER_RING_SPAN_FLAGS_EVENT; });
    fake.span(event);
    sr::Span span{};
    CHECK(client.reap(span) && span.flags == SCATTER_RING_SPAN_FLAGS_EVENT);
    const sr::Ticket ticket = client.batch().submit();
    sr::Error error;
    for (int i = 0; i < 1000 && !error; i++) {
        client.try_outcome(ticket, error);
        for (int k = 0; k < 4 && !error; k++) {
            fake.span(event);
        }
    }
    CHECK(!client.submit(error) && error.kind() == sr::ErrorKind::broken);
    Fake other;
    sr::Client hopeful = meet(other, rings(4, 4));
    CHECK(!hopeful.enable_notifications(error) && error.kind() == sr::ErrorKind::broken);
}

CLAIM(a_client_that_never_sleeps_notices_that_its_engine_is_gone) {
    using Way = void (*)(sr::Client &, const sr::Ticket &, sr::Error &);
    const Way ways[] = {
        [](sr::Client &client, const sr::Ticket &ticket, sr::Error &error) { client.wait(ticket, error); },
        [](sr::Client &client, const sr::Ticket &ticket, sr::Error &error) { client.try_outcome(ticket, error); },
        [](sr::Client &client, const sr::Ticket &, sr::Error &error) {
            sr::Span span;
            client.reap(span, error);
        },
        [](sr::Client &client, const sr::Ticket &, sr::Error &error) {
            client.push(nop(SCATTER_RING_FLAGS_LAST), error);
        },
        [](sr::Client &client, const sr::Ticket &, sr::Error &error) {
            client.push_extended(nop(SCATTER_RING_FLAGS_LAST), sr::Extension{}, error);
        },
    };
    for (const Way way : ways) {
        Fake fake;
        sr::Setup setup = rings(4, 16);
        setup.spin = 10s;
        sr::Client client = meet(fake, setup);
        const sr::Ticket ticket = client.batch().submit();
        fake.die();
        sr::Error error;
        const auto start = std::chrono::steady_clock::now();
        while (!error && std::chrono::steady_clock::now() - start < 5s) {
            way(client, ticket, error);
        }
        CHECK(error.status() == SCATTER_RING_STATUS_ENGINE_LOST);
        CHECK_SAYS(error.message(), "engine lost (ENGINE_LOST)");
        client.wait(ticket, error);
        CHECK(error.status() == SCATTER_RING_STATUS_ENGINE_LOST && !error.batch()->reusable);
    }
}

CLAIM(a_session_that_the_engine_ends_gives_its_last_spans_and_then_the_reason) {
    UnderWay it;
    it.fake.span(ok(0, 2));
    it.fake.lie(SCATTER_RING_COMPLETE_STOP_WORD, scatter_ring_stop_word(SCATTER_RING_STATUS_STOPPING));
    it.client.wait(it.tickets[0]);
    sr::Error error;
    it.client.wait(it.tickets[1], error);
    CHECK(std::string(error.message()) == "the batch: engine is stopping (STOPPING); buffers may still be written");
    CHECK(!it.client.allocate(1, error));
    CHECK(std::string(error.message()) == "the session has ended: engine is stopping (STOPPING)");
}

CLAIM(held_buffers_stay_busy_until_they_are_released) {
    Fake fake;
    sr::Client client = meet(fake, rings(16, 32));
    sr::Region memory = client.allocate(64);
    sr::Batch batch = client.batch();
    batch.read(memory, 0, memory, 8, 8);
    const sr::Ticket ticket = batch.submit();
    fake.span(but(ok(0, 1), [](sr::Span &s) {
        s.status = SCATTER_RING_STATUS_TIMED_OUT;
        s.stage = SCATTER_RING_STAGE_WAIT;
        s.field = SCATTER_RING_FIELD_NONE;
        s.flags = SCATTER_RING_SPAN_FLAGS_HELD | SCATTER_RING_SPAN_FLAGS_BATCH_DONE;
    }));
    sr::Error error;
    client.wait(ticket, error);
    CHECK(std::string(error.message()) ==
          "descriptor 0 of the batch: timed out (TIMED_OUT); buffers may still be written");
    CHECK(memory.is_busy() && !client.wait_released(ticket, 0ns));
    memory = sr::Region();
    CHECK(fake.asked().size() == 1);
    fake.span(but(sr::Span{}, [](sr::Span &s) { s.flags = SCATTER_RING_SPAN_FLAGS_RELEASED; }));
    CHECK(client.wait_released(ticket));
    // Only now is the memory given back.
    while (fake.asked().size() < 2) {
        std::this_thread::yield();
    }
    CHECK(fake.asked()[1] == SCATTER_RING_KIND_CLOSE);
}

CLAIM(a_release_may_come_before_the_end_of_a_batch) {
    Fake fake;
    sr::Client client = meet(fake, rings(16, 32));
    const sr::Region memory = client.allocate(64);
    sr::Batch batch = client.batch();
    batch.read(memory, 0, memory, 8, 8);
    batch.read(memory, 0, memory, 8, 8);
    const sr::Ticket ticket = batch.submit();
    fake.span(but(ok(0, 1), [](sr::Span &s) {
        s.status = SCATTER_RING_STATUS_CANCELLED;
        s.flags = SCATTER_RING_SPAN_FLAGS_HELD;
    }));
    CHECK(!client.try_outcome(ticket) && memory.is_busy());
    fake.span(but(sr::Span{}, [](sr::Span &s) { s.flags = SCATTER_RING_SPAN_FLAGS_RELEASED; }));
    CHECK(!client.try_outcome(ticket) && !memory.is_busy());
    fake.span(but(ok(1, 1), [](sr::Span &s) { s.status = SCATTER_RING_STATUS_NOT_DONE; }));
    sr::Error error;
    client.wait(ticket, error);
    CHECK(error.status() == SCATTER_RING_STATUS_CANCELLED && error.batch()->reusable);
}

// ---- What a batch puts into the ring ----

static std::vector<sr::Descriptor> taken(Fake &fake) {
    std::vector<sr::Descriptor> all;
    sr::Descriptor descriptor;
    while (fake.take(descriptor)) {
        all.push_back(descriptor);
    }
    return all;
}

CLAIM(a_sleep_of_the_engine_is_answered_once_and_by_submit) {
    Fake fake;
    sr::Client client = meet(fake, rings(16, 16));
    const auto push = [&] { CHECK(client.push(nop(SCATTER_RING_FLAGS_LAST))); };
    push();
    client.submit();
    CHECK(client.doorbells() == 0);
    fake.lie(SCATTER_RING_COMPLETE_SLEEP_WORD, 1);
    push();
    client.publish();
    CHECK(client.doorbells() == 0 && taken(fake).size() == 2);
    client.submit();
    CHECK(client.doorbells() == 1);
    push();
    client.submit();
    client.submit();
    CHECK(client.doorbells() == 1);
    fake.lie(SCATTER_RING_COMPLETE_SLEEP_WORD, 2);
    client.batch().submit();
    CHECK(client.doorbells() == 2);
}

CLAIM(a_batch_carries_begin_fence_last_and_user_data_and_splits_long_ranges) {
    Fake fake;
    sr::Client client = meet(fake, rings(64, 64));
    const sr::Region a = client.open("a", sr::Rights::read_write), b = client.open("b", sr::Rights::read_write);
    sr::Batch batch = client.batch();
    batch.deadline(3us).hint(9, 99).fence().user_data(5);
    batch.read(a, 1, b, 2, 3);
    batch.write(a, 7, b, 9, (std::uint64_t{3} << 30) + 5);
    batch.read(a, 0, b, 0, std::uint64_t{2} << 30);
    batch.push_extended(nop(), sr::Extension{}, {});
    batch.submit();
    const auto all = taken(fake);
    CHECK(all.size() == 7);
    CHECK(all[0].opcode == SCATTER_RING_OPCODE_BEGIN && all[0].flags == SCATTER_RING_FLAGS_FENCE && all[0].count == 9);
    CHECK(all[0].src_offset == 99 && all[0].dst_offset == 3000);
    CHECK(all[1].opcode == SCATTER_RING_OPCODE_READ && all[1].src_region == a.handle() &&
          all[1].dst_region == b.handle());
    CHECK(all[1].src_offset == 1 && all[1].dst_offset == 2 && all[1].len == 3 && all[1].count == 1 &&
          all[1].user_data == 5);
    CHECK(all[2].opcode == SCATTER_RING_OPCODE_WRITE && all[2].len == 1u << 30 && all[2].count == 3 &&
          all[2].src_offset == 7);
    CHECK(all[2].src_stride == 1u << 30 && all[2].dst_stride == 1u << 30 && all[2].dst_offset == 9);
    CHECK(all[3].len == 5 && all[3].src_offset == 7 + (std::uint64_t{3} << 30) &&
          all[3].dst_offset == 9 + (std::uint64_t{3} << 30));
    CHECK(all[4].len == 1u << 30 && all[4].count == 2);
    CHECK(all[5].flags == (SCATTER_RING_FLAGS_LAST | SCATTER_RING_FLAGS_EXTENDED));
    // The builder is as new.
    batch.submit();
    const auto next = taken(fake);
    CHECK(next.size() == 1 && next[0].opcode == SCATTER_RING_OPCODE_NOP && next[0].flags == SCATTER_RING_FLAGS_LAST &&
          next[0].user_data == 0);
}

CLAIM(a_batch_longer_than_the_ring_is_shown_before_the_ring_is_full_again) {
    Fake fake;
    sr::Client client = meet(fake, rings(16, 16));
    sr::Batch batch = client.batch();
    for (int i = 0; i < 16; i++) {
        batch.push(nop());
    }
    CHECK(taken(fake).empty());
    std::thread engine([&] {
        sr::Descriptor descriptor;
        for (int i = 0; i < 16;) {
            i += fake.take(descriptor) ? 1 : 0;
        }
    });
    batch.push(nop());
    engine.join();
    // From here on an eighth of the ring at a time.
    batch.push(nop());
    CHECK(taken(fake).empty());
    batch.push(nop());
    CHECK(taken(fake).size() == 2);
}

CLAIM(a_dropped_batch_has_never_been_unless_a_part_was_shown) {
    Fake fake;
    sr::Client client = meet(fake, rings(4, 16));
    const sr::Region memory = client.allocate(64);
    {
        sr::Batch batch = client.batch();
        batch.read(memory, 0, memory, 8, 8);
    }
    client.batch().submit();
    CHECK(taken(fake).size() == 1 && !memory.is_busy());
    fake.span(ok(0, 1));
    {
        sr::Batch batch = client.batch();
        std::thread engine([&] {
            sr::Descriptor descriptor;
            for (int i = 0; i < 4;) {
                i += fake.take(descriptor) ? 1 : 0;
            }
        });
        for (int i = 0; i < 7; i++) {
            batch.read(memory, 0, memory, 8, 8);
        }
        engine.join();
    }
    const auto rest = taken(fake);
    CHECK(!rest.empty() && rest.back().opcode == SCATTER_RING_OPCODE_NOP &&
          rest.back().flags == SCATTER_RING_FLAGS_LAST);
    CHECK(memory.is_busy());
    fake.span(ok(1, static_cast<std::uint32_t>(4 + rest.size())));
    sr::Span span;
    while (client.reap(span)) {
    }
    CHECK(!memory.is_busy());
}

CLAIM(an_error_counts_descriptors_as_the_program_does) {
    Fake fake;
    sr::Client client = meet(fake, rings(64, 64));
    sr::Batch batch = client.batch();
    batch.hint(1, 1);
    for (int i = 0; i < 6; i++) {
        i % 3 == 2 ? batch.push(nop()) : batch.push_extended(nop(), sr::Extension{}, {});
    }
    const sr::Ticket ticket = batch.submit();
    // Slots: BEGIN, 2, 2, 1, 2, 2, 1. The failing one is descriptor 4, at slot 8.
    fake.span(but(ok(0, 8), [](sr::Span &s) {
        s.flags = 0;
        s.bytes = 640;
    }));
    fake.span(but(ok(8, 2), [](sr::Span &s) {
        s.flags = 0;
        s.status = SCATTER_RING_STATUS_OUT_OF_RANGE;
        s.stage = SCATTER_RING_STAGE_PACK;
        s.field = SCATTER_RING_FIELD_SRC_OFFSET;
        s.queue_ns = 17;
        s.plan_ns = 99999;
    }));
    fake.span(but(ok(10, 1), [](sr::Span &s) { s.status = SCATTER_RING_STATUS_NOT_DONE; }));
    sr::Error error;
    client.wait(ticket, error);
    CHECK(std::string(error.message()) == "descriptor 4 of the batch, fragment 17, src_offset: outside the region "
                                          "(OUT_OF_RANGE), value 99999; buffers are reusable");
    CHECK(error.batch()->position == 8 && error.batch()->bytes_done == 640 &&
          error.batch()->stage == SCATTER_RING_STAGE_PACK);
}

CLAIM(an_error_names_the_one_peer_whose_memory_a_batch_used) {
    Fake fake;
    sr::Client client = meet(fake, rings(64, 64));
    const sr::Region one = client.open_at(sr::Peer{5}, "a", sr::Rights::read),
                     two = client.open_at(sr::Peer{6}, "a", sr::Rights::read);
    const sr::Region mine = client.allocate(64);
    CHECK(one.peer() == sr::Peer{5} && !mine.peer());
    std::uint64_t position = 0;
    const auto peer_of = [&](std::initializer_list<const sr::Region *> sources) {
        sr::Batch batch = client.batch();
        for (const sr::Region *source : sources) {
            batch.read(*source, 0, mine, 0, 1);
        }
        const sr::Ticket ticket = batch.submit();
        fake.span(but(ok(position, static_cast<std::uint32_t>(sources.size())),
                      [](sr::Span &s) { s.status = SCATTER_RING_STATUS_REGION_GONE; }));
        position += sources.size();
        sr::Error error;
        client.wait(ticket, error);
        return error.batch()->peer;
    };
    CHECK(peer_of({&one, &mine, &one}) == sr::Peer{5} && !peer_of({&one, &two, &one}) && !peer_of({&mine}));
}

int main() {
    char program[] = "hostile", socket[] = "";
    char *arguments[] = {program, socket};
    return check_claims(2, arguments);
}
