// The client: one session with an engine. Part of scatter_ring.hpp.
#ifndef SCATTER_RING_CLIENT_HPP
#define SCATTER_RING_CLIENT_HPP

#include "batch.hpp"

namespace scatter_ring {

/// One session with an engine: a ring pair and the memory registered with it.
///
/// To be used by one thread at a time, its batches and tickets too; it may be moved to another one between two calls. A
/// program with several threads attaches several times. When the client is closed or dropped its session ends, whatever
/// is under way. In a forked child every call fails.
class Client {
public:
    /// One that is attached to nothing: every call fails.
    Client() noexcept = default;
    Client(Client &&) noexcept = default;
    Client &operator=(Client &&other) noexcept {
        if (this != &other) {
            close();
            state_ = std::move(other.state_);
        }
        return *this;
    }
    Client(const Client &) = delete;
    Client &operator=(const Client &) = delete;
    ~Client() { close(); }

    // ---- Attaching ----

    /// Attaches to the engine that listens at `path`. Not attached, and an error, if nobody listens there, it is not
    /// permitted, or the versions differ.
    static Client attach(const std::string &path, const Setup &setup, Error &error) noexcept {
        error.clear();
        detail::Fd socket = detail::connect_to(path.c_str(), path.size(), error);
        return socket ? meet(std::move(socket), setup, error) : Client();
    }

    /// Attaches over a connected socket, for an engine in this process. Takes the descriptor over, whatever becomes of
    /// it.
    static Client over(int socket, const Setup &setup, Error &error) noexcept {
        error.clear();
        return meet(detail::Fd(socket), setup, error);
    }

    /// True if it was attached and not moved from.
    explicit operator bool() const noexcept { return state_ != nullptr; }

    /// Ends the session. Regions stay readable; every other call fails from now on.
    void close() noexcept {
        if (state_ != nullptr) {
            state_->end(detail::Ended::Why::closed);
        }
    }

    /// What the engine offers: bits of SCATTER_RING_FEATURES_*.
    std::uint64_t features() const noexcept { return state_ ? state_->areas.header.features : 0; }
    /// How often the engine slept and this client had to wake it by a system call.
    std::uint64_t doorbells() const noexcept { return state_ ? state_->doorbells : 0; }
    /// Descriptors that the submission ring holds.
    std::uint32_t sq_capacity() const noexcept { return state_ ? state_->areas.header.sq_capacity : 0; }
    /// Spans that the completion ring holds.
    std::uint32_t cq_capacity() const noexcept { return state_ ? state_->areas.header.cq_capacity : 0; }

    // ---- Memory ----

    /// New memory of this process, all 0, that batches may read and write, of reserved 2 MiB pages where there are
    /// enough.
    Region allocate(std::uint64_t bytes, Error &error) noexcept {
        auto memory = std::make_shared<detail::Memory>();
        detail::Fd file;
        detail::MappedPart part;
        if (!usable(error) || !detail::make_memory(file, part, bytes, error)) {
            return Region();
        }
        hand_over(*memory, std::move(part), bytes, Rights::read_write, true);
        return state_->registered(std::move(memory), file.get(), 0, error);
    }

    /// `bytes` bytes of a memory file, from byte `offset` of it on, which may be any: what descriptors may do with them
    /// is `rights`. The file must be open for writing if `rights` say so, and sealed against shrinking (F_SEAL_SHRINK),
    /// unless the engine trusts its own user. The descriptor stays the caller's and may be closed after.
    Region register_fd(int fd, std::uint64_t offset, std::uint64_t bytes, Rights rights, Error &error) noexcept {
        if (!usable(error)) {
            return Region();
        }
        auto memory = std::make_shared<detail::Memory>();
        detail::MappedPart part;
        // This process may always read its own memory, and write it where the file allows, whatever descriptors may do.
        bool writable = detail::map_own_file(part, fd, offset, bytes, true, error);
        if (!writable && error.status() == SCATTER_RING_STATUS_BAD_FD && rights == Rights::read) {
            error.clear();
            detail::map_own_file(part, fd, offset, bytes, false, error);
        }
        if (error) {
            return Region();
        }
        hand_over(*memory, std::move(part), bytes, rights, writable);
        return state_->registered(std::move(memory), fd, offset, error);
    }

    /// Memory that this process has mapped from a memory file, shared: the file is found by the mapping, and
    /// registered. Nothing is copied or mapped again. It must stay mapped as long as a handle of the region exists.
    Region adopt(void *base, std::uint64_t bytes, Rights rights, Error &error) noexcept {
        if (!usable(error)) {
            return Region();
        }
        if (bytes == 0 || base == nullptr) {
            detail::set_empty(error);
            return Region();
        }
        detail::Backing backing;
        if (!detail::find_backing(base, bytes, backing)) {
            error.set_system("reading /proc/self/maps", errno);
            return Region();
        }
        if (!backing.file) {
            error.set(ErrorKind::private_memory, SCATTER_RING_STATUS_BAD_FD,
                      "this memory is private to the process, or its file cannot be found: take memory from "
                      "Client::allocate, or map "
                      "a memory file (memfd_create) shared");
            return Region();
        }
        auto memory = std::make_shared<detail::Memory>();
        memory->base = static_cast<std::byte *>(base);
        memory->bytes = bytes;
        memory->rights = rights;
        memory->writable = rights != Rights::read;
        return state_->registered(std::move(memory), backing.file.get(), backing.offset, error);
    }

    /// Memory that somebody else has exported under this name (1 to 168 bytes of UTF-8), for batches only.
    Region open(const std::string &name, Rights rights, Error &error) noexcept {
        return open_at(Peer{}, name, rights, error);
    }

    /// Memory that a client of a peer, or the peer itself, has exported under this name, as if it were this engine's. A
    /// peer that is lost takes its regions with it: batches then fail with REGION_GONE, and the export is opened anew
    /// when there is a connection again.
    Region open_at(Peer peer, const std::string &name, Rights rights, Error &error) noexcept {
        if (!usable(error) || !check_name(name, error)) {
            return Region();
        }
        detail::Message asked = detail::question(SCATTER_RING_KIND_OPEN, 0);
        asked.args[0] = static_cast<std::uint64_t>(rights);
        asked.args[1] = peer.number;
        detail::set_name(asked, name.c_str());
        detail::Received answer;
        if (!state_->ask(asked, -1, answer, error)) {
            return Region();
        }
        auto memory = std::make_shared<detail::Memory>();
        memory->handle = state_->handle_in(answer.message, error);
        if (memory->handle == 0) {
            return Region();
        }
        memory->session = state_->session;
        memory->bytes = answer.message.args[1];
        memory->peer = peer;
        const std::uint64_t granted = answer.message.args[2], wanted = static_cast<std::uint64_t>(rights);
        if (memory->bytes == 0 || granted == 0 || (granted & ~static_cast<std::uint64_t>(Rights::read_write)) != 0 ||
            (wanted & ~granted) != 0) {
            state_->broken("an opened region without bytes or without the rights asked for");
            state_->ended.say(error);
            return Region();
        }
        memory->rights = static_cast<Rights>(granted);
        return Region(std::move(memory));
    }

    /// Another engine, by its endpoint's text: what `scatter-ring serve` prints when it listens for peers. Returns when
    /// this client's engine has a connection to it, at once if it has one; the engine keeps it, and dials again when it
    /// is lost.
    Peer connect(const std::string &endpoint, Error &error) noexcept {
        const std::size_t first = endpoint.find_first_not_of(" \t\r\n"), last = endpoint.find_last_not_of(" \t\r\n");
        const std::string text = first == std::string::npos ? "" : endpoint.substr(first, last - first + 1);
        if (!usable(error)) {
            return Peer{};
        }
        if (!is_text(text)) {
            error.set(ErrorKind::refused, SCATTER_RING_STATUS_INVALID_SETTING,
                      "%s: an endpoint has 1 to %u bytes of UTF-8, none of them 0, this one %zu: it is the text that "
                      "the other engine gives out",
                      detail::StatusText(SCATTER_RING_STATUS_INVALID_SETTING).text,
                      static_cast<unsigned>(SCATTER_RING_NAME_BYTES_MAX), text.size());
            return Peer{};
        }
        detail::Message asked = detail::question(SCATTER_RING_KIND_CONNECT, 0);
        detail::set_name(asked, text.c_str());
        detail::Received answer;
        // The engine answers before this side gives up.
        if (!state_->ask(asked, -1, answer, error)) {
            return Peer{};
        }
        if (answer.message.args[0] == 0) {
            state_->broken("an answer without a peer's number");
            state_->ended.say(error);
        }
        return Peer{answer.message.args[0]};
    }

    /// Gives a region a name by which other clients of the engine, and its peers, can open it, with these rights at
    /// most.
    bool export_as(const Region &region, const std::string &name, Rights rights, Error &error) noexcept {
        if (!usable(error) || !state_->check_mine(region, error) || !check_name(name, error)) {
            return false;
        }
        detail::Message asked = detail::question(SCATTER_RING_KIND_EXPORT, 0);
        asked.args[0] = region.handle();
        asked.args[1] = static_cast<std::uint64_t>(rights);
        detail::set_name(asked, name.c_str());
        detail::Received answer;
        return state_->ask(asked, -1, answer, error);
    }

    /// Ends a registration or an opening, and returns when nobody touches the memory any more. All handles of the
    /// region are useless for batches from then on. Fails while a batch of this client uses it.
    bool close(const Region &region, Error &error) noexcept {
        if (!usable(error) || !state_->check_mine(region, error)) {
            return false;
        }
        if (region.is_busy()) {
            Region::set_busy(error);
            return false;
        }
        region.memory_->closed = true;
        detail::Message asked = detail::question(SCATTER_RING_KIND_CLOSE, 0);
        asked.args[0] = region.handle();
        detail::Received answer;
        return state_->ask(asked, -1, answer, error);
    }

    /// At least so many bytes for row numbers, block numbers or records, that no batch uses any more and no other
    /// handle names: out of a pool that the client keeps, else new. What is written there is for one batch; then take
    /// it anew.
    Region index_region(std::uint64_t bytes, Error &error) noexcept {
        if (!usable(error)) {
            return Region();
        }
        const auto sole = [](const Region &kept) { return kept.memory_.use_count() == 1; };
        for (const Region &kept : state_->index_pool) {
            // A batch that uses it has a handle too.
            if (kept.bytes() >= bytes && sole(kept) && !kept.memory_->closed) {
                return kept;
            }
        }
        constexpr std::uint64_t least = 64 << 10;
        constexpr std::size_t most_kept = 64;
        std::uint64_t rounded = least;
        while (rounded < bytes && rounded <= UINT64_MAX / 2) {
            rounded *= 2;
        }
        Region made = allocate(std::max(rounded, bytes), error);
        if (!made) {
            return made;
        }
        // A larger one is of use wherever a smaller one is.
        const auto smaller = std::find_if(state_->index_pool.begin(), state_->index_pool.end(), sole);
        if (smaller != state_->index_pool.end()) {
            *smaller = made;
        } else if (state_->index_pool.size() < most_kept) {
            state_->index_pool.push_back(made);
        }
        return made;
    }

    // ---- Batches ----

    /// A builder of batches. Nothing happens before its first descriptor.
    Batch batch() noexcept { return Batch(state_); }

    /// Waits for the outcome of a batch. A batch that ended with its buffers still held (BatchError::reusable is false)
    /// has its outcome: see wait_released().
    ///
    /// Fails with what the batch failed with, or why the session ended before it did; or, as long as notifications that
    /// nobody takes are in the way, with ErrorKind::notifications_full: the batch is still under way.
    Outcome wait(const Ticket &ticket, Error &error) noexcept {
        for (;;) {
            const std::optional<Outcome> outcome = wait_for(ticket, forever, error);
            if (outcome || error) {
                return outcome.value_or(Outcome());
            }
        }
    }

    /// The same, at most for some time: empty, without an error, if the batch is still under way.
    std::optional<Outcome> wait_for(const Ticket &ticket, std::chrono::nanoseconds timeout, Error &error) noexcept {
        if (!check(ticket, error)) {
            return std::nullopt;
        }
        state_->wait_until(timeout, [&] {
            state_->pump();
            return record_of(ticket)->is_done();
        });
        return outcome_of(ticket, error);
    }

    /// The same without waiting. Makes no system call, except that it looks twice a second whether the engine is still
    /// there while nothing comes.
    std::optional<Outcome> try_outcome(const Ticket &ticket, Error &error) noexcept {
        return wait_for(ticket, std::chrono::nanoseconds::zero(), error);
    }

    /// Waits until the buffers of a batch are reusable, whatever its outcome: false, without an error, if they are not
    /// after `timeout`. Fails if the session ended before that: nobody can say when the memory is left alone.
    bool wait_released(const Ticket &ticket, std::chrono::nanoseconds timeout, Error &error) noexcept {
        if (!check(ticket, error)) {
            return false;
        }
        state_->wait_until(timeout, [&] {
            state_->pump();
            return record_of(ticket)->is_over();
        });
        if (record_of(ticket)->is_over()) {
            return true;
        }
        if (state_->is_over()) {
            state_->set_lost(ticket.position(), false, error);
        } else {
            state_->not_stuck(error);
        }
        return false;
    }

    /// Cancels a batch, by the attach socket: this also works while the ring is full. False, without an error: it is
    /// not under way, or is ending already. The batch's outcome then says what came of it.
    bool cancel(const Ticket &ticket, Error &error) noexcept {
        if (!check(ticket, error) || !usable(error)) {
            return false;
        }
        detail::Message asked = detail::question(SCATTER_RING_KIND_CANCEL, 0);
        asked.args[0] = ticket.position();
        detail::Received answer;
        const bool cancelled = state_->ask(asked, -1, answer, error);
        if (error.kind() == ErrorKind::refused && error.status() == SCATTER_RING_STATUS_NOT_FOUND) {
            error.clear();
        }
        return cancelled;
    }

    // ---- One call for one operation: describe, submit, wait ----

    /// Reads one range, and waits.
    Outcome read(const Region &src, std::uint64_t src_offset, const Region &dst, std::uint64_t dst_offset,
                 std::uint64_t length, Error &error) noexcept {
        Batch one = batch();
        return one.read(src, src_offset, dst, dst_offset, length, error) ? submit_and_wait(one, error) : Outcome();
    }

    /// Writes one range, and waits.
    Outcome write(const Region &src, std::uint64_t src_offset, const Region &dst, std::uint64_t dst_offset,
                  std::uint64_t length, Error &error) noexcept {
        Batch one = batch();
        return one.write(src, src_offset, dst, dst_offset, length, error) ? submit_and_wait(one, error) : Outcome();
    }

    /// Reads rows of `row_bytes` bytes of a packed table, by number, to `out_offset` of `out` and behind it, and waits.
    /// The numbers are copied. No rows are an empty batch.
    Outcome read_rows(const Region &table, std::uint32_t row_bytes, const std::uint32_t *rows, std::uint32_t count,
                      const Region &out, std::uint64_t out_offset, Error &error) noexcept {
        return by_rows(table, row_bytes, rows, count, out, out_offset, &Batch::read_rows, error);
    }

    /// Writes rows that lie packed at `from_offset` of `from` into a packed table, by number, and waits.
    Outcome write_rows(const Region &table, std::uint32_t row_bytes, const std::uint32_t *rows, std::uint32_t count,
                       const Region &from, std::uint64_t from_offset, Error &error) noexcept {
        return by_rows(table, row_bytes, rows, count, from, from_offset, &Batch::write_rows, error);
    }

    // ---- The raw producer ----
    //
    // Descriptors as they are: no allocation, no account of what they use, and no system call while the engine is
    // awake. Until the spans of its batch say that the batch is done and released, the regions that a descriptor names
    // must stay open and their memory must not be used for anything else.

    /// Writes one descriptor to the ring. Its spans come from reap() and have no ticket. The last one of each batch
    /// carries SCATTER_RING_FLAGS_LAST. False, without an error, if no slot is free: submit(), reap(), and try again.
    bool push(const Descriptor &descriptor, Error &error) noexcept {
        error.clear();
        if (!may_push(error)) {
            return false;
        }
        const detail::Pushed pushed = state_->push_raw(descriptor);
        if (pushed != detail::Pushed::done) {
            state_->not_pushed(pushed, error);
            return false;
        }
        state_->raw_open = (descriptor.flags & SCATTER_RING_FLAGS_LAST) == 0;
        return true;
    }

    /// The same for a descriptor with an extension: both or neither are written. Sets SCATTER_RING_FLAGS_EXTENDED.
    bool push_extended(const Descriptor &descriptor, const Extension &extension, Error &error) noexcept {
        error.clear();
        if (!may_push(error)) {
            return false;
        }
        // Room for both first: this also finds out why there is none.
        std::uint32_t free = 0;
        const bool possible = state_->areas.sq.look(free);
        if (!possible || free < 2) {
            state_->not_pushed(possible ? detail::Pushed::full : detail::Pushed::bad_position, error);
            return false;
        }
        Descriptor extended = descriptor;
        extended.flags = static_cast<std::uint16_t>(extended.flags | SCATTER_RING_FLAGS_EXTENDED);
        state_->push_raw(extended);
        state_->push_raw(extension);
        state_->raw_open = (descriptor.flags & SCATTER_RING_FLAGS_LAST) == 0;
        return true;
    }

    /// Shows the engine what was pushed, and does not wake it if it sleeps: submit() has to follow.
    void publish() noexcept {
        if (state_ != nullptr && !state_->is_child() && state_->building.serial == 0 &&
            state_->areas.sq.position() != state_->areas.sq.published()) {
            state_->areas.sq.publish();
            state_->not_rung = true;
        }
    }

    /// Publishes what was pushed, and wakes the engine if it sleeps: no system call while it is awake. A batch that is
    /// being built is not touched.
    bool submit(Error &error) noexcept {
        if (!usable(error)) {
            return false;
        }
        publish_pushed();
        return usable(error);
    }

    /// Takes the next span: false, without an error, if there is none now. Makes no system call, except that it looks
    /// twice a second whether the engine is still there while nothing comes. Notifications are no spans: see
    /// next_notification().
    ///
    /// Batches that have a Ticket are kept account of as well, so that it does not matter whether spans are taken here
    /// or by a wait. (But a wait keeps the spans that tickets account for: here come those that no wait took.)
    ///
    /// Fails if the session has ended, and every span that was published before has been taken; or with
    /// ErrorKind::notifications_full.
    bool reap(Span &span, Error &error) noexcept {
        error.clear();
        if (state_ == nullptr || state_->is_child()) {
            return usable(error);
        }
        if (!state_->backlog.empty()) {
            span = state_->backlog.front();
            state_->backlog.pop_front();
            return true;
        }
        // First the stop word: what was published before the stop is then seen.
        std::int32_t reason = 0;
        const bool stopped = detail::stop_seen(state_->areas.stop, reason);
        const bool some = state_->take(span) != detail::State::Taken::nothing;
        // Also without a span: notifications may have been taken.
        state_->areas.cq.release();
        if (some) {
            return true;
        }
        if (stopped) {
            state_->end(detail::Ended::Why::stopped, reason);
        }
        if (usable(error) && state_->not_stuck(error)) {
            state_->nothing_came();
        }
        return false;
    }

    // ---- Waiting for anything, and event loops ----

    /// Waits until reap() has something to say: false, without an error, if it has nothing after `timeout`.
    bool wait_any(std::chrono::nanoseconds timeout, Error &error) noexcept {
        error.clear();
        if (state_ == nullptr || state_->is_child()) {
            return usable(error);
        }
        // A session that has ended is reported behind what came before its end.
        publish_pushed();
        const bool some = state_->wait_until(timeout, [&] {
            // Notifications are not what it waits for.
            state_->keep_events();
            return !state_->backlog.empty() || state_->has_spans();
        });
        return some || (usable(error) && false);
    }

    /// One file descriptor for epoll or any other event loop: readable when the engine has woken this client, or is
    /// gone; -1 if it is attached to nothing.
    ///
    /// arm(), wait for it to be readable, disarm(), look at the tickets (or reap() until there is nothing), and the
    /// same with next_notification() if notifications are on. Never read from it.
    int fd() const noexcept { return state_ ? state_->wake.get() : -1; }

    /// Announces a sleep, so that the engine wakes this client at its next span or notification. False: do not sleep,
    /// there is something to take already, or the session has ended.
    [[nodiscard]] bool arm() noexcept {
        Error ignored;
        if (!usable(ignored)) {
            return false;
        }
        std::int32_t reason = 0;
        state_->sleeper.prepare(state_->areas.client_sleep);
        const bool idle = state_->backlog.empty() && !state_->has_notification() && !state_->has_spans() &&
                          !detail::stop_seen(state_->areas.stop, reason);
        if (!idle) {
            detail::Sleeper::awake(state_->areas.client_sleep);
        }
        return idle;
    }

    /// Awake again: takes the wake-ups from the descriptor, and notices the end of the engine.
    void disarm() noexcept {
        if (state_ != nullptr && !state_->is_child()) {
            detail::Sleeper::awake(state_->areas.client_sleep);
            state_->drain_wake();
        }
    }

    // ---- Notifications ----

    /// Asks the engine for what other clients tell this one, from now on; the same as Setup::notifications. Takes 4 KiB
    /// for each place of the completion ring, on both sides.
    bool enable_notifications(Error &error) noexcept {
        if (!usable(error) || state_->notifications != nullptr) {
            return !error;
        }
        const std::uint32_t capacity = cq_capacity();
        constexpr std::size_t slot_bytes = detail::Notifications::slot_bytes;
        detail::Received answer;
        if (!state_->ask(detail::question(SCATTER_RING_KIND_NOTIFICATIONS, 0), -1, answer, error)) {
            return false;
        }
        const char *fault = answer.fd_count != 1 ? "a notification buffer comes with one file descriptor"
                            : answer.message.args[0] != capacity || answer.message.args[1] != slot_bytes
                                ? "a notification buffer of another size"
                                : nullptr;
        if (fault != nullptr) {
            state_->broken(fault);
            state_->ended.say(error);
            return false;
        }
        detail::Mapping buffer;
        if (!detail::map_area(buffer, answer.fds[0].get(), capacity * slot_bytes, false, "the notification buffer",
                              error)) {
            return false;
        }
        state_->notifications = std::make_unique<detail::Notifications>(std::move(buffer), capacity);
        return true;
    }

    /// The next notification: false, without an error, if none has come. Makes no system call.
    ///
    /// Those of one batch after the other of the same client come in the order in which these batches ended. A client
    /// that does not take them keeps as many as its completion ring has places, and so does the engine for it; then who
    /// sends more waits, and so do this client's own batches: ErrorKind::notifications_full.
    bool next_notification(Notification &notification, Error &error) noexcept {
        if (!takes_notifications(error)) {
            return false;
        }
        std::int32_t reason = 0;
        const bool stopped = detail::stop_seen(state_->areas.stop, reason);
        state_->pump();
        if (state_->notifications->take(notification)) {
            return true;
        }
        if (stopped) {
            state_->end(detail::Ended::Why::stopped, reason);
        }
        if (usable(error)) {
            state_->nothing_came();
        }
        return false;
    }

    /// The same, and waits for it: false, without an error, if none has come after `timeout`.
    bool wait_notification(Notification &notification, std::chrono::nanoseconds timeout, Error &error) noexcept {
        if (!takes_notifications(error)) {
            return false;
        }
        // What was pushed may be what the other waits for; a session that has ended is reported behind what came
        // before.
        publish_pushed();
        state_->wait_until(timeout, [&] {
            state_->pump();
            return state_->has_notification();
        });
        return state_->notifications->take(notification) || (usable(error) && false);
    }

#if SCATTER_RING_EXCEPTIONS
    static Client attach(const std::string &path, const Setup &setup = {}) {
        return detail::throwing([&](Error &error) { return attach(path, setup, error); });
    }
    static Client over(int socket, const Setup &setup = {}) {
        return detail::throwing([&](Error &error) { return over(socket, setup, error); });
    }
    Region allocate(std::uint64_t bytes) {
        return detail::throwing([&](Error &error) { return allocate(bytes, error); });
    }
    Region register_fd(int fd, std::uint64_t offset, std::uint64_t bytes, Rights rights) {
        return detail::throwing([&](Error &error) { return register_fd(fd, offset, bytes, rights, error); });
    }
    Region adopt(void *base, std::uint64_t bytes, Rights rights) {
        return detail::throwing([&](Error &error) { return adopt(base, bytes, rights, error); });
    }
    Region open(const std::string &name, Rights rights) {
        return detail::throwing([&](Error &error) { return open(name, rights, error); });
    }
    Region open_at(Peer peer, const std::string &name, Rights rights) {
        return detail::throwing([&](Error &error) { return open_at(peer, name, rights, error); });
    }
    Peer connect(const std::string &endpoint) {
        return detail::throwing([&](Error &error) { return connect(endpoint, error); });
    }
    void export_as(const Region &region, const std::string &name, Rights rights) {
        detail::throwing([&](Error &error) { return export_as(region, name, rights, error); });
    }
    void close(const Region &region) {
        detail::throwing([&](Error &error) { return close(region, error); });
    }
    Region index_region(std::uint64_t bytes) {
        return detail::throwing([&](Error &error) { return index_region(bytes, error); });
    }
    Outcome wait(const Ticket &ticket) {
        return detail::throwing([&](Error &error) { return wait(ticket, error); });
    }
    std::optional<Outcome> wait_for(const Ticket &ticket, std::chrono::nanoseconds timeout) {
        return detail::throwing([&](Error &error) { return wait_for(ticket, timeout, error); });
    }
    std::optional<Outcome> try_outcome(const Ticket &ticket) {
        return detail::throwing([&](Error &error) { return try_outcome(ticket, error); });
    }
    bool wait_released(const Ticket &ticket, std::chrono::nanoseconds timeout = forever) {
        return detail::throwing([&](Error &error) { return wait_released(ticket, timeout, error); });
    }
    bool cancel(const Ticket &ticket) {
        return detail::throwing([&](Error &error) { return cancel(ticket, error); });
    }
    Outcome read(const Region &src, std::uint64_t src_offset, const Region &dst, std::uint64_t dst_offset,
                 std::uint64_t length) {
        return detail::throwing([&](Error &error) { return read(src, src_offset, dst, dst_offset, length, error); });
    }
    Outcome write(const Region &src, std::uint64_t src_offset, const Region &dst, std::uint64_t dst_offset,
                  std::uint64_t length) {
        return detail::throwing([&](Error &error) { return write(src, src_offset, dst, dst_offset, length, error); });
    }
    Outcome read_rows(const Region &table, std::uint32_t row_bytes, const std::uint32_t *rows, std::uint32_t count,
                      const Region &out, std::uint64_t out_offset = 0) {
        return detail::throwing(
            [&](Error &error) { return read_rows(table, row_bytes, rows, count, out, out_offset, error); });
    }
    Outcome write_rows(const Region &table, std::uint32_t row_bytes, const std::uint32_t *rows, std::uint32_t count,
                       const Region &from, std::uint64_t from_offset = 0) {
        return detail::throwing(
            [&](Error &error) { return write_rows(table, row_bytes, rows, count, from, from_offset, error); });
    }
    [[nodiscard]] bool push(const Descriptor &descriptor) {
        return detail::throwing([&](Error &error) { return push(descriptor, error); });
    }
    [[nodiscard]] bool push_extended(const Descriptor &descriptor, const Extension &extension) {
        return detail::throwing([&](Error &error) { return push_extended(descriptor, extension, error); });
    }
    void submit() {
        detail::throwing([&](Error &error) { return submit(error); });
    }
    [[nodiscard]] bool reap(Span &span) {
        return detail::throwing([&](Error &error) { return reap(span, error); });
    }
    bool wait_any(std::chrono::nanoseconds timeout = forever) {
        return detail::throwing([&](Error &error) { return wait_any(timeout, error); });
    }
    void enable_notifications() {
        detail::throwing([&](Error &error) { return enable_notifications(error); });
    }
    [[nodiscard]] bool next_notification(Notification &notification) {
        return detail::throwing([&](Error &error) { return next_notification(notification, error); });
    }
    bool wait_notification(Notification &notification, std::chrono::nanoseconds timeout = forever) {
        return detail::throwing([&](Error &error) { return wait_notification(notification, timeout, error); });
    }
#endif

private:
    static Client meet(detail::Fd socket, const Setup &setup, Error &error) noexcept {
        Client client;
        auto state = std::make_shared<detail::State>();
        detail::Greeted greeted;
        if (!state->session->open(std::move(socket), error) ||
            !detail::say_hello(state->session->socket(), setup, greeted, error)) {
            return client;
        }
        state->areas = std::move(greeted.areas);
        state->doorbell = std::move(greeted.doorbell);
        state->wake = std::move(greeted.wake);
        state->spin = setup.spin;
        client.state_ = std::move(state);
        if (setup.notifications && !client.enable_notifications(error)) {
            client.state_ = nullptr;
        }
        return client;
    }

    static void hand_over(detail::Memory &memory, detail::MappedPart part, std::uint64_t bytes, Rights rights,
                          bool writable) noexcept {
        memory.base = part.mapping.at(part.skipped);
        memory.mapping = std::move(part.mapping);
        memory.bytes = bytes;
        memory.rights = rights;
        memory.writable = writable;
    }

    /// What a message can carry.
    static bool is_text(const std::string &text) noexcept {
        return !text.empty() && text.size() <= SCATTER_RING_NAME_BYTES_MAX && text.find('\0') == std::string::npos &&
               detail::is_utf8(text.data(), text.size());
    }

    static bool check_name(const std::string &name, Error &error) noexcept {
        if (!is_text(name)) {
            error.set(ErrorKind::refused, SCATTER_RING_STATUS_INVALID_SETTING,
                      "%s: a name has 1 to %u bytes of UTF-8, none of them 0",
                      detail::StatusText(SCATTER_RING_STATUS_INVALID_SETTING).text,
                      static_cast<unsigned>(SCATTER_RING_NAME_BYTES_MAX));
        }
        return !error;
    }

    bool usable(Error &error) const noexcept {
        error.clear();
        if (state_ == nullptr) {
            error.set(ErrorKind::closed, SCATTER_RING_STATUS_ENGINE_LOST,
                      "this client is attached to nothing: it was moved from, or attaching failed");
            return false;
        }
        return state_->usable(error);
    }

    bool may_push(Error &error) const noexcept {
        if (state_ != nullptr && !state_->is_child() && state_->building.serial == 0) {
            return true;
        }
        return usable(error) && state_->may_push_raw(error);
    }

    /// Shows what raw pushes have left unpublished, and ends what was left open; what stands in the ring of a batch
    /// that is being built is the batch's.
    void publish_pushed() noexcept {
        if (state_->building.serial == detail::Building::left_open) {
            state_->abandon();
        }
        if (state_->building.serial == 0) {
            state_->publish();
        }
    }

    const detail::Record *record_of(const Ticket &ticket) const noexcept {
        return state_->pending.get(ticket.index_, ticket.alive_);
    }

    bool check(const Ticket &ticket, Error &error) noexcept {
        error.clear();
        if (state_ == nullptr || state_->is_child()) {
            return usable(error);
        }
        if (!ticket || record_of(ticket) == nullptr) {
            error.set(ErrorKind::foreign, SCATTER_RING_STATUS_NOT_FOUND,
                      ticket ? "this ticket belongs to another client" : "this ticket names no batch");
            return false;
        }
        // A session that has ended is reported by the wait, after what came before its end.
        publish_pushed();
        return true;
    }

    std::optional<Outcome> outcome_of(const Ticket &ticket, Error &error) noexcept {
        const detail::Record *record = record_of(ticket);
        if (record->is_done()) {
            const Outcome outcome = record->outcome(error);
            return error ? std::nullopt : std::optional<Outcome>(outcome);
        }
        if (state_->is_over()) {
            state_->set_lost(ticket.position(), false, error);
        } else {
            state_->not_stuck(error);
        }
        return std::nullopt;
    }

    Outcome submit_and_wait(Batch &batch_built, Error &error) noexcept {
        const Ticket ticket = batch_built.submit(error);
        return ticket ? wait(ticket, error) : Outcome();
    }

    Outcome by_rows(const Region &table, std::uint32_t row_bytes, const std::uint32_t *rows, std::uint32_t count,
                    const Region &buffer, std::uint64_t buffer_offset,
                    bool (Batch::*describe)(const Rows &, Error &) noexcept, Error &error) noexcept {
        Batch one = batch();
        if (count > 0) {
            const Region index = index_region(std::uint64_t{4} * count, error);
            if (!index || !index.write_at(0, rows, std::size_t{4} * count, error)) {
                return Outcome();
            }
            Rows shape = Rows::packed(table, row_bytes, index, count, buffer);
            shape.buffer_offset = buffer_offset;
            if (!(one.*describe)(shape, error)) {
                return Outcome();
            }
        }
        return submit_and_wait(one, error);
    }

    bool takes_notifications(Error &error) const noexcept {
        error.clear();
        if (state_ == nullptr || state_->is_child()) {
            return usable(error);
        }
        if (state_->notifications == nullptr) {
            error.set(ErrorKind::notifications_off, SCATTER_RING_STATUS_NOT_ALLOWED,
                      "notifications are off: set Setup::notifications, or call Client::enable_notifications");
            return false;
        }
        return true;
    }

    /// Shared with the batches, which may outlive the client and then say that it was closed.
    std::shared_ptr<detail::State> state_;
};

} // namespace scatter_ring

#endif
