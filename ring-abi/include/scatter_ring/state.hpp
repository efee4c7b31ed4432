// One session: writing descriptors, taking spans, sleeping until there are some, and the rare questions. Part of
// scatter_ring.hpp; Client and Batch are what the program sees of it.
#ifndef SCATTER_RING_STATE_HPP
#define SCATTER_RING_STATE_HPP

#include "notify.hpp"
#include "pending.hpp"

#include <algorithm>

namespace scatter_ring {

namespace detail {

/// Why there is no session any more.
struct Ended {
    enum class Why : std::uint8_t {
        not_yet,
        stopped, ///< The engine said so.
        gone,    ///< The engine's ends of the sockets are closed.
        broken,  ///< The engine did what it must not.
        closed,  ///< The program has closed the client.
    };
    Why why = Why::not_yet;
    std::int32_t reason = 0;
    const char *what = "";

    std::int32_t status() const noexcept {
        switch (why) {
        case Why::stopped: return reason;
        case Why::broken: return SCATTER_RING_STATUS_BAD_RING;
        default: return SCATTER_RING_STATUS_ENGINE_LOST;
        }
    }

    void say(Error &error) const noexcept {
        if (why == Why::broken) {
            error.set(ErrorKind::broken, SCATTER_RING_STATUS_BAD_RING,
                      "the session has ended because the engine broke its protocol: %s", what);
        } else if (why == Why::closed) {
            error.set(ErrorKind::closed, SCATTER_RING_STATUS_ENGINE_LOST, "this client was closed");
        } else {
            error.set(ErrorKind::ended, status(), "the session has ended: %s", StatusText(status()).text);
        }
    }
};

/// What has to stand before the first descriptor of a batch.
struct Opening {
    bool begins = false;
    bool fence = false;
    std::uint64_t deadline_ns = 0;
    std::uint32_t hint_fragments = 0;
    std::uint64_t hint_bytes = 0;
};

/// The batch that is being built.
///
/// Its youngest descriptor is in the ring and not published: LAST goes on it if no other follows.
struct Building {
    /// Its number, unique in the session; 0: there is none.
    std::uint64_t serial = 0;
    /// In its place for a batch that nobody builds any more and that has no LAST yet.
    static constexpr std::uint64_t left_open = ~std::uint64_t{0} - 1;
    /// Its record.
    std::uint32_t index = 0;
    std::uint64_t first = 0;
    /// The position at which a descriptor takes more than writing it: at the start of the batch, behind an extension,
    /// and where a batch that is longer than the ring publishes next.
    std::uint64_t turn_at = 0;
    /// Where it publishes next, if it does not fit into the ring.
    bool publishes = false;
    std::uint64_t publish_at = 0;
    /// The first word of the youngest descriptor.
    Word youngest = 0;
    /// Its slots: 0 before the first one, else 1 or 2.
    std::uint8_t youngest_slots = 0;
    /// Slots that are no descriptors of the program: BEGIN and extensions.
    std::uint64_t others = 0;
    Opening opening;
};

inline Word first_word(const Descriptor &descriptor) noexcept {
    Word word;
    std::memcpy(&word, &descriptor, sizeof word);
    return word;
}

constexpr Word flag_in_word(std::uint32_t flag) noexcept { return static_cast<Word>(flag) << 16; }

inline Descriptor nop() noexcept {
    Descriptor descriptor{};
    descriptor.opcode = SCATTER_RING_OPCODE_NOP;
    return descriptor;
}

/// How many times a long batch publishes on its way through the ring: the engine works on one part while the next is
/// written.
inline constexpr std::uint32_t publishes_per_ring = 8;
/// Looks at the ring between two yields of the processor. The engine is often woken on the core of the one who waits,
/// and cannot run while that one spins.
inline constexpr unsigned pauses = 16;
/// Longest sleep without a look at the ring, in case an engine forgets to wake.
inline constexpr nanoseconds sleep_max = std::chrono::seconds(1);
/// Longest sleep of a producer whose ring is full: nobody wakes it.
inline constexpr nanoseconds full_sleep = std::chrono::microseconds(200);
/// A client that never sleeps does not meet the end of its wake socket: it looks for it when nothing has come for so
/// long.
inline constexpr nanoseconds quiet_max = std::chrono::milliseconds(500);
/// So many looks at an empty ring come before the first one that is timed.
inline constexpr unsigned looks_without_clock = 8;
/// Most wake-ups taken from the socket in one go.
inline constexpr unsigned wakes_max = 64;

/// What a client is made of, shared by it and its batches.
struct State {
    std::shared_ptr<Session> session = std::make_shared<Session>();
    Areas areas;
    Fd doorbell;
    Fd wake;
    Waker waker;
    /// System calls made to wake the engine.
    std::uint64_t doorbells = 0;
    Sleeper sleeper;
    nanoseconds spin{};
    Pending pending;
    Building building;
    std::uint64_t last_serial = 0;
    /// Spans that no ticket accounts for, taken while waiting for something else.
    Queue<Span> backlog;
    /// Not there: not asked for.
    std::unique_ptr<Notifications> notifications;
    /// True once something was pushed without a batch.
    bool raw_used = false;
    /// True while what was pushed so has no LAST yet.
    bool raw_open = false;
    /// True while something was published since the last look at the engine's sleep word.
    bool not_rung = false;
    /// For row numbers and records: Client::index_region().
    std::vector<Region> index_pool;
    /// How often something was looked for since the last time that it came, and since when that goes on.
    unsigned looks_in_vain = 0;
    Clock::time_point quiet_since{};
    Ended ended;
    /// Number of the next question on the attach socket.
    std::uint64_t requests = 1;
    /// Questions whose answers came too late, if ever.
    std::vector<std::uint64_t> given_up;

    ~State() { session->end(); }

    // ---- The session and its end ----

    bool is_child() const noexcept { return session->is_child(); }
    bool is_over() const noexcept { return ended.why != Ended::Why::not_yet; }

    /// False, and an error, once the session has ended or in a forked child.
    bool usable(Error &error) const noexcept {
        if (is_child()) {
            set_forked(error);
            return false;
        }
        if (is_over()) {
            ended.say(error);
            return false;
        }
        return true;
    }

    /// Notes why the session has ended: the first reason stays.
    __attribute__((cold)) void end(Ended::Why why, std::int32_t reason = 0, const char *what = "") noexcept {
        if (!is_over()) {
            ended.why = why;
            ended.reason = reason;
            ended.what = what;
            session->end();
        }
    }

    __attribute__((cold)) void broken(const char *what) noexcept { end(Ended::Why::broken, 0, what); }

    /// The error of a batch whose session has ended.
    void set_lost(std::uint64_t position, bool reusable, Error &error) const noexcept {
        error.set_batch(whole(is_child() ? SCATTER_RING_STATUS_FORKED : ended.status(), position, reusable));
    }

    // ---- Publishing ----

    /// Shows the engine what was pushed, and rings its doorbell if it sleeps.
    void publish() noexcept {
        if (areas.sq.position() != areas.sq.published()) {
            areas.sq.publish();
            not_rung = true;
        }
        if (not_rung) {
            not_rung = false;
            if (waker.must_wake(areas.engine_sleep)) {
                ring_doorbell();
            }
        }
    }

    __attribute__((cold)) void ring_doorbell() noexcept {
        doorbells += 1;
        const std::uint64_t one = 1;
        while (::write(doorbell.get(), &one, sizeof one) < 0) {
            // A counter that is full is a doorbell that was rung.
            if (errno == EAGAIN) {
                return;
            }
            if (errno != EINTR) {
                return broken("a doorbell that cannot be rung");
            }
        }
    }

    // ---- The raw producer ----

    template <class Entry> Pushed push_raw(const Entry &entry) noexcept {
        const Pushed pushed = areas.sq.push(entry);
        raw_used = raw_used || pushed == Pushed::done;
        return pushed;
    }

    __attribute__((cold)) void not_pushed(Pushed pushed, Error &error) noexcept {
        if (pushed == Pushed::full) {
            nothing_came();
        } else {
            broken("an impossible position of the submission ring");
        }
        if (is_over()) {
            ended.say(error);
        }
    }

    /// What a raw descriptor may not stand in the middle of.
    bool may_push_raw(Error &error) noexcept {
        if (is_child()) {
            set_forked(error);
            return false;
        }
        if (building.serial == Building::left_open) {
            abandon();
            if (building.serial == Building::left_open && !not_stuck(error)) {
                return false;
            }
        }
        if (building.serial != 0) {
            error.set(ErrorKind::sequence, SCATTER_RING_STATUS_BAD_SEQUENCE,
                      "a batch of this client is being built: submit or drop it before the next one, or before pushing "
                      "raw descriptors");
            return false;
        }
        return true;
    }

    // ---- The batch that is being built ----

    /// Begins a batch. Publishes what raw pushes have left unpublished.
    bool start_batch(const Opening &opening, Error &error) {
        if (!usable(error) || !may_push_raw(error)) {
            return false;
        }
        publish();
        if (raw_open) {
            error.set(
                ErrorKind::sequence, SCATTER_RING_STATUS_BAD_SEQUENCE,
                "raw descriptors without LAST stand before this batch: push one with SCATTER_RING_FLAGS_LAST first");
            return false;
        }
        const std::uint64_t first = areas.sq.position();
        building = Building{};
        building.index = pending.start(first);
        building.serial = ++last_serial;
        building.first = building.turn_at = first;
        building.opening = opening;
        return true;
    }

    /// Adds a descriptor to the batch.
    bool add(const Descriptor &descriptor, Error &error) noexcept {
        if (areas.sq.position() != building.turn_at && areas.sq.push(descriptor) == Pushed::done) {
            building.youngest = first_word(descriptor);
            return true;
        }
        return add_slowly(descriptor, nullptr, error);
    }

    __attribute__((cold, noinline)) bool add_slowly(Descriptor descriptor, const Extension *extension,
                                                    Error &error) noexcept {
        if (building.youngest_slots == 0 && !open_batch(descriptor, error)) {
            return false;
        }
        const bool extended = extension != nullptr;
        const std::uint32_t number = count();
        if (!push_waiting(descriptor, extension, error)) {
            return false;
        }
        if (extended != (building.youngest_slots == 2)) {
            pending[building.index].toggles.push_back(number);
        }
        building.others += extended ? 1 : 0;
        building.youngest = first_word(descriptor);
        building.youngest_slots = extended ? 2 : 1;
        // Without either there is no turn any more: this position is behind.
        building.turn_at = extended ? areas.sq.position() : building.publishes ? building.publish_at : building.first;
        return true;
    }

    /// Descriptors that the program has pushed to the batch.
    std::uint32_t count() const noexcept {
        return static_cast<std::uint32_t>(areas.sq.position() - building.first - building.others);
    }

    /// What stands before the first descriptor.
    bool open_batch(Descriptor &descriptor, Error &error) noexcept {
        const Opening &opening = building.opening;
        const auto fence = static_cast<std::uint16_t>(opening.fence ? SCATTER_RING_FLAGS_FENCE : 0);
        if (!opening.begins) {
            descriptor.flags = static_cast<std::uint16_t>(descriptor.flags | fence);
            return true;
        }
        // Once, also if what comes behind it has to be tried again.
        if (pending[building.index].begins) {
            return true;
        }
        Descriptor begin{};
        begin.opcode = SCATTER_RING_OPCODE_BEGIN;
        begin.flags = fence;
        begin.count = opening.hint_fragments;
        begin.src_offset = opening.hint_bytes;
        begin.dst_offset = opening.deadline_ns;
        if (!push_waiting(begin, nullptr, error)) {
            return false;
        }
        pending[building.index].begins = true;
        building.others = 1;
        return true;
    }

    /// Pushes a descriptor of the batch, with its extension if it has one, and waits for free slots if need be. What is
    /// published meanwhile is what stands before it.
    bool push_waiting(const Descriptor &descriptor, const Extension *extension, Error &error) noexcept {
        const std::uint32_t step = std::max(areas.header.sq_capacity / publishes_per_ring, std::uint32_t{1});
        const std::uint64_t position = areas.sq.position();
        // Descriptors with extensions can step over the place.
        if (building.publishes && position - building.publish_at < ~std::uint64_t{0} / 2) {
            publish();
            building.publish_at = position + step;
        }
        const std::uint32_t slots = extension != nullptr ? 2 : 1;
        std::uint32_t free = 0;
        // Both or neither: one of two would be published while the other waits.
        if (!areas.sq.look(free) || free < slots) {
            if (!make_room(slots)) {
                // While notifications are in the way the batch goes on as soon as somebody takes them.
                if (is_over() || not_stuck(error)) {
                    set_lost(building.first, areas.sq.published() == building.first, error);
                }
                return false;
            }
            building.publishes = true;
            building.publish_at = position + step;
        }
        // There is room.
        if (areas.sq.push(descriptor) != Pushed::done ||
            (extension != nullptr && areas.sq.push(*extension) != Pushed::done)) {
            broken("an impossible position of the submission ring");
            set_lost(building.first, areas.sq.published() == building.first, error);
            return false;
        }
        return true;
    }

    /// Ends the batch with LAST and publishes it. It goes on if notifications are in the way; every other error ends
    /// it.
    Ticket finish(std::uint64_t user_data, Error &error) noexcept {
        if (is_over()) {
            set_lost(building.first, areas.sq.published() == building.first, error);
            abandon();
            return Ticket();
        }
        // All of it was shown if it has waited in vain for room for more: LAST needs another descriptor then.
        const bool is_shown = areas.sq.position() == areas.sq.published();
        Descriptor last = nop();
        last.user_data = user_data;
        if ((building.youngest_slots == 0 || is_shown) && !add_slowly(last, nullptr, error)) {
            if (is_over()) {
                abandon();
            }
            return Ticket();
        }
        Ticket ticket(building.index, building.first, pending[building.index].alive);
        publish_last();
        return ticket;
    }

    /// Puts LAST on the youngest descriptor, which nobody has seen yet, and shows it.
    void publish_last() noexcept {
        const std::uint64_t end_position = areas.sq.position();
        areas.sq.rewrite_first_word(end_position - building.youngest_slots,
                                    building.youngest | flag_in_word(SCATTER_RING_FLAGS_LAST));
        // Known before the engine can see LAST, and so before a span can say that the batch is done.
        pending[building.index].slots = end_position - building.first;
        building.serial = 0;
        publish();
    }

    /// Takes the batch that is being built back if nothing of it was published, else ends it.
    __attribute__((cold)) void abandon() noexcept {
        if (building.serial == 0 || is_child()) {
            return;
        }
        areas.sq.take_back();
        Error ignored;
        if (areas.sq.position() == building.first) {
            pending.take_back(building.index);
        } else if (push_waiting(nop(), nullptr, ignored)) {
            building.youngest = first_word(nop());
            building.youngest_slots = 1;
            publish_last();
        } else if (!is_over()) {
            // Notifications are in the way. Whoever pushes or waits next tries again.
            building.serial = Building::left_open;
            return;
        }
        building.serial = 0;
    }

    /// Where a descriptor that is refused before it was pushed would have been.
    __attribute__((cold)) void refuse(std::int32_t status, std::uint32_t field, std::uint64_t value,
                                      Error &error) const noexcept {
        BatchError refusal = whole(status, areas.sq.position(), true);
        refusal.descriptor = count();
        refusal.field = field;
        refusal.detail = value;
        error.set_batch(refusal);
    }

    // ---- Taking spans ----

    enum class Taken : std::uint8_t { nothing, accounted, other };

    /// Takes one span from the ring. Notifications before it are kept. Nothing, too, once the engine broke its
    /// protocol.
    Taken take(Span &span) {
        if (ended.why == Ended::Why::broken) {
            return Taken::nothing;
        }
        for (;;) {
            if (is_shut()) {
                return Taken::nothing;
            }
            const std::uint64_t position = areas.cq.position();
            switch (areas.cq.pop(span)) {
            case Popped::none: return Taken::nothing;
            case Popped::bad_position: broken("an impossible position of the completion ring"); return Taken::nothing;
            case Popped::done: looks_in_vain = 0;
            }
            if ((span.flags & SCATTER_RING_SPAN_FLAGS_EVENT) == 0) {
                break;
            }
            if (notifications == nullptr) {
                return Taken::other;
            }
            if (const char *fault = notifications->keep(span, position)) {
                broken(fault);
                return Taken::nothing;
            }
        }
        const char *fault = "a span about nothing that was submitted";
        const std::uint64_t published = areas.sq.published();
        switch (pending.note(span, published, fault)) {
        case Noted::done: return Taken::accounted;
        case Noted::about_none:
            if (is_raw(span, published)) {
                return Taken::other;
            }
            break;
        case Noted::impossible: break;
        }
        broken(fault);
        return Taken::nothing;
    }

    /// True if a raw producer may have pushed what the span is about.
    bool is_raw(const Span &span, std::uint64_t published) const noexcept {
        const std::uint64_t behind = published - span.first;
        const std::uint64_t all = published - areas.header.start_position;
        return raw_used && behind >= std::max(span.count, std::uint32_t{1}) && behind <= all;
    }

    /// Takes every span there is. Those that no ticket accounts for are kept for Client::reap().
    void pump() {
        const std::size_t backlog_max = 4 * (std::size_t{areas.header.cq_capacity} + areas.header.sq_capacity);
        // The engine may publish as fast as this takes: one ring's worth at a time.
        for (std::uint32_t i = 0; i < areas.header.cq_capacity; i++) {
            Span span;
            const Taken taken = take(span);
            if (taken == Taken::nothing) {
                break;
            }
            if (taken == Taken::other && backlog.size() < backlog_max) {
                backlog.push_back(span);
            } else if (taken == Taken::other) {
                broken("more spans than anybody reaps");
            }
        }
        areas.cq.release();
    }

    bool has_spans() noexcept {
        std::uint32_t count = 0;
        // An impossible position is something to see for the one who takes the spans.
        return !areas.cq.look(count) || count > 0;
    }

    // ---- Notifications ----

    bool has_notification() const noexcept { return notifications != nullptr && !notifications->is_empty(); }

    /// True if the next span in the ring is an event.
    bool event_is_next() noexcept {
        Span span;
        return areas.cq.peek(span) == Popped::done && (span.flags & SCATTER_RING_SPAN_FLAGS_EVENT) != 0;
    }

    /// True if nothing more can be taken from the ring, because a notification is next and nobody takes those before
    /// it.
    bool is_stuck() noexcept { return notifications != nullptr && notifications->is_full() && event_is_next(); }

    /// True if nothing may be taken from the ring: there is no room for a notification, and no span is next. (A ring
    /// that is empty now may have a notification when it is popped.)
    bool is_shut() noexcept {
        if (notifications == nullptr || !notifications->is_full()) {
            return false;
        }
        Span span;
        const Popped next = areas.cq.peek(span);
        // An impossible position is for the pop to find.
        return next == Popped::none || (next == Popped::done && (span.flags & SCATTER_RING_SPAN_FLAGS_EVENT) != 0);
    }

    bool not_stuck(Error &error) noexcept {
        if (is_stuck()) {
            error.set(ErrorKind::notifications_full, SCATTER_RING_STATUS_LIMIT_EXCEEDED,
                      "notifications that nobody takes are in the way: take them (Client::next_notification)");
            return false;
        }
        return true;
    }

    /// Takes the notifications that are next in the ring.
    void keep_events() {
        while (notifications != nullptr && !notifications->is_full() && event_is_next()) {
            const std::uint64_t position = areas.cq.position();
            Span span;
            if (areas.cq.pop(span) != Popped::done) {
                break;
            }
            if (const char *fault = notifications->keep(span, position)) {
                broken(fault);
                break;
            }
        }
        areas.cq.release();
    }

    // ---- Waiting ----

    /// Spins, then sleeps, until something is ready, the session has ended, or the time is up.
    template <class Ready> bool wait_until(nanoseconds timeout, Ready ready) {
        if (ready()) {
            return true;
        }
        const Clock::time_point start = Clock::now();
        const Clock::time_point deadline = deadline_after(timeout);
        for (;;) {
            // First the stop word: what was published before the stop is then seen.
            std::int32_t reason = 0;
            const bool stopped = stop_seen(areas.stop, reason);
            const bool over = is_over();
            if (ready()) {
                return true;
            }
            if (stopped) {
                end(Ended::Why::stopped, reason);
            }
            if (over || stopped || is_stuck()) {
                return false;
            }
            nothing_came();
            const Clock::time_point now = Clock::now();
            if (now >= deadline) {
                return false;
            }
            if (now - start < spin) {
                pause();
            } else {
                sleep(std::min<nanoseconds>(deadline - now, sleep_max));
            }
        }
    }

    void pause() noexcept {
        for (unsigned i = 0; i < pauses; i++) {
            spin_once();
            if (has_spans()) {
                return;
            }
        }
        ::sched_yield();
    }

    void sleep(nanoseconds time) noexcept {
        std::int32_t reason = 0;
        sleeper.prepare(areas.client_sleep);
        if (!has_spans() && !stop_seen(areas.stop, reason)) {
            poll_wake(time);
        }
        Sleeper::awake(areas.client_sleep);
        drain_wake();
    }

    void poll_wake(nanoseconds time) noexcept {
        if (!poll_for(wake.get(), POLLIN, time)) {
            broken("a wake socket that cannot be waited for");
        }
    }

    /// To be called when there is nothing to take. If that has been so for long, looks whether the engine is still
    /// there; its end is reported by the next call, which first takes what was published before.
    void nothing_came() noexcept {
        looks_in_vain += looks_in_vain < ~0u ? 1 : 0;
        // Whoever finds something now and then does not read a clock for it.
        if (looks_in_vain < looks_without_clock) {
            return;
        }
        const Clock::time_point now = Clock::now();
        if (looks_in_vain == looks_without_clock) {
            quiet_since = now;
        }
        if (now - quiet_since < quiet_max) {
            return;
        }
        quiet_since = now;
        // The wake-ups stay in the socket, for whoever waits at it.
        if (is_hung_up(wake.get())) {
            end(Ended::Why::gone);
        }
    }

    void drain_wake() noexcept {
        for (unsigned i = 0; i < wakes_max; i++) {
            char bytes[64];
            const ssize_t got = ::recv(wake.get(), bytes, sizeof bytes, MSG_DONTWAIT);
            if (got == 0 || (got < 0 && errno == ECONNRESET)) {
                return end(Ended::Why::gone);
            }
            if (got < 0 && errno == EAGAIN) {
                return;
            }
            if (got < 0 && errno != EINTR) {
                return broken("a wake socket that cannot be read");
            }
        }
    }

    /// Publishes what was pushed, and waits until the submission ring has free slots, while completions are taken.
    /// False: the session has ended, or notifications are in the way.
    __attribute__((cold)) bool make_room(std::uint32_t slots) noexcept {
        publish();
        const Clock::time_point start = Clock::now();
        for (;;) {
            std::uint32_t free = 0;
            if (!areas.sq.look(free)) {
                broken("an impossible position of the submission ring");
                return false;
            }
            if (free >= slots) {
                return !is_over();
            }
            std::int32_t reason = 0;
            const bool stopped = stop_seen(areas.stop, reason);
            pump();
            if (stopped) {
                end(Ended::Why::stopped, reason);
            }
            if (is_over() || is_stuck()) {
                return false;
            }
            nothing_came();
            if (Clock::now() - start < spin) {
                pause();
            } else {
                poll_wake(full_sleep);
                drain_wake();
            }
        }
    }

    // ---- Questions ----

    /// One question and its answer.
    bool ask(Message asked, int fd, Received &answer, Error &error) noexcept {
        if (!usable(error)) {
            return false;
        }
        session->close_unsent();
        asked.request = requests;
        requests += 1;
        const Clock::time_point until = Clock::now() + answer_limit;
        const bool answered =
            send_until(session->socket(), asked, fd, until, error) && answer_to(asked, until, answer, error);
        if (answered) {
            return is_granted(answer.message, error);
        }
        if (error.kind() == ErrorKind::ended) {
            end(Ended::Why::gone);
        } else if (error.kind() == ErrorKind::bad_message) {
            broken("an answer that is not understood");
        }
        return false;
    }

    bool answer_to(const Message &asked, Clock::time_point until, Received &out, Error &error) noexcept {
        for (;;) {
            Received received;
            if (!receive_until(session->socket(), received, until, error)) {
                if (error.kind() == ErrorKind::no_answer) {
                    given_up.push_back(asked.request);
                }
                return false;
            }
            const Message &answer = received.message;
            if (answer.request == asked.request && answer.kind == (asked.kind | SCATTER_RING_KIND_ANSWER)) {
                out = std::move(received);
                return true;
            }
            const auto late = std::find(given_up.begin(), given_up.end(), answer.request);
            if (late == given_up.end()) {
                set_bad_message(error, "an answer to nothing that was asked");
                return false;
            }
            given_up.erase(late);
            give_back(answer);
        }
    }

    /// What nobody waits for any more must not stay registered or open.
    void give_back(const Message &answer) noexcept {
        const bool has_region = answer.kind == (SCATTER_RING_KIND_REGISTER | SCATTER_RING_KIND_ANSWER) ||
                                answer.kind == (SCATTER_RING_KIND_OPEN | SCATTER_RING_KIND_ANSWER);
        if (has_region && answer.status == SCATTER_RING_STATUS_OK && answer.args[0] <= UINT32_MAX) {
            session->close_later(static_cast<std::uint32_t>(answer.args[0]));
        }
    }

    /// The region that an answer is about; 0, and an error, if it is about none.
    std::uint32_t handle_in(const Message &answer, Error &error) noexcept {
        const std::uint64_t handle = answer.args[0];
        if (handle > UINT32_MAX || scatter_ring_handle_generation(static_cast<std::uint32_t>(handle)) == 0) {
            broken("an answer without a region handle");
            ended.say(error);
            return 0;
        }
        return static_cast<std::uint32_t>(handle);
    }

    /// Registers memory that is mapped here.
    Region registered(std::shared_ptr<Memory> memory, int fd, std::uint64_t offset, Error &error) noexcept {
        Message asked = question(SCATTER_RING_KIND_REGISTER, 0);
        asked.args[0] = memory->bytes;
        asked.args[1] = static_cast<std::uint64_t>(memory->rights);
        asked.args[2] = offset;
        Received answer;
        if (!ask(asked, fd, answer, error)) {
            return Region();
        }
        memory->handle = handle_in(answer.message, error);
        memory->session = session;
        return memory->handle != 0 ? Region(std::move(memory)) : Region();
    }

    bool check_mine(const Region &region, Error &error) const noexcept {
        if (!usable(error)) {
            return false;
        }
        if (!region || region.memory_->session != session) {
            error.set(ErrorKind::foreign, SCATTER_RING_STATUS_UNKNOWN_REGION,
                      region ? "this region belongs to another client" : "this region names no memory");
        } else if (region.memory_->closed) {
            error.set(ErrorKind::closed, SCATTER_RING_STATUS_UNKNOWN_REGION, "the region was closed");
        }
        return !error;
    }
};

} // namespace detail
} // namespace scatter_ring

#endif
