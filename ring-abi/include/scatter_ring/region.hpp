// Regions: memory that descriptors can name. Part of scatter_ring.hpp.
#ifndef SCATTER_RING_REGION_HPP
#define SCATTER_RING_REGION_HPP

#include "attach.hpp"
#include "backing.hpp"

#include <memory>

namespace scatter_ring {

/// What a region grants.
enum class Rights : std::uint64_t {
    read = SCATTER_RING_RIGHTS_READ,   ///< May be a source, or hold an index array.
    write = SCATTER_RING_RIGHTS_WRITE, ///< May be a destination.
    read_write = SCATTER_RING_RIGHTS_READ | SCATTER_RING_RIGHTS_WRITE,
};

/// Elements in memory: a pointer and how many. With C++20 a `std::span` can be made of it.
template <class T> struct View {
    T *first = nullptr;
    std::size_t count = 0;

    T *data() const noexcept { return first; }
    std::size_t size() const noexcept { return count; }
    T *begin() const noexcept { return first; }
    T *end() const noexcept { return first + count; }
    T &operator[](std::size_t i) const noexcept { return first[i]; }
};

namespace detail {

struct State;

/// What a client's regions need of its session, also after the client is gone.
class Session {
public:
    ~Session() {
        for (Unsent *next = unsent_; next != nullptr;) {
            delete std::exchange(next, next->next);
        }
    }

    bool open(Fd socket, Error &error) noexcept {
        socket_ = std::move(socket);
        if (!guard_.open()) {
            error.set_system("fork guard", errno);
            return false;
        }
        return true;
    }

    int socket() const noexcept { return socket_.get(); }
    bool is_child() const noexcept { return guard_.is_child(); }

    /// Nothing is asked any more, and the engine sees the end of the connection.
    void end() noexcept {
        if (!is_child() && !__atomic_exchange_n(&over_, true, __ATOMIC_ACQ_REL)) {
            // Regions that outlive the client share the connection, so it is ended and not only closed.
            ::shutdown(socket_.get(), SHUT_RDWR);
        }
    }

    /// Ends a registration that nobody can name any more. Never waits: what cannot be sent now goes with the next
    /// request.
    void close_later(std::uint32_t handle) noexcept {
        if (is_child() || __atomic_load_n(&over_, __ATOMIC_ACQUIRE)) {
            return;
        }
        Message message = question(SCATTER_RING_KIND_CLOSE, SCATTER_RING_NO_ANSWER);
        message.args[0] = handle;
        const Sent sent = send_message(socket_.get(), message, -1);
        if (sent != Sent::no_room && sent != Sent::failed) {
            return;
        }
        // Any thread may drop a region: the list is pushed to by all, and taken as a whole.
        auto *unsent = new Unsent{handle, __atomic_load_n(&unsent_, __ATOMIC_RELAXED)};
        while (
            !__atomic_compare_exchange_n(&unsent_, &unsent->next, unsent, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
        }
    }

    void close_unsent() noexcept {
        for (Unsent *next = __atomic_exchange_n(&unsent_, nullptr, __ATOMIC_ACQUIRE); next != nullptr;) {
            Unsent *unsent = std::exchange(next, next->next);
            close_later(unsent->handle);
            delete unsent;
        }
    }

private:
    /// A close that the socket's queue had no room for.
    struct Unsent {
        std::uint32_t handle;
        Unsent *next;
    };

    ForkGuard guard_;
    Fd socket_;
    bool over_ = false;
    Unsent *unsent_ = nullptr;
};

/// What the handles of one region share.
struct Memory {
    std::shared_ptr<Session> session;
    std::uint32_t handle = 0;
    std::uint64_t bytes = 0;
    Rights rights = Rights::read_write;
    Peer peer;
    /// nullptr: opened, the bytes are elsewhere.
    std::byte *base = nullptr;
    bool writable = true;
    /// Of memory that was mapped here.
    Mapping mapping;
    /// Batches under way that read it, and that write it. Written by the client, read by everybody.
    std::uint32_t readers = 0;
    std::uint32_t writers = 0;
    /// The last batch that was counted in `readers`, and in `writers`: each batch is counted once. The client's alone.
    std::uint64_t last_reader = 0;
    std::uint64_t last_writer = 0;
    bool closed = false;

    Memory() = default;
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    ~Memory() {
        if (session && handle != 0 && !closed) {
            session->close_later(handle);
        }
    }
};

inline void set_forked(Error &error) noexcept {
    error.set(ErrorKind::forked, SCATTER_RING_STATUS_FORKED,
              "this session belongs to the parent process: attach again in the child");
}

} // namespace detail

/// Memory that the batches of one client can name. A cheap handle: copies are the same memory.
///
/// While a batch that uses it is under way the memory stays, whatever the program drops: the batch has a handle of its
/// own. That is why this is a shared handle and not a unique one. When the last handle is dropped and no batch uses the
/// memory any more, the engine is told to forget it. A region may be used and dropped by any thread; a default-made one
/// names nothing.
class Region {
public:
    Region() noexcept = default;

    explicit operator bool() const noexcept { return memory_ != nullptr; }
    /// Bytes; 0 if it names nothing.
    std::uint64_t bytes() const noexcept { return memory_ ? memory_->bytes : 0; }
    /// What its descriptors may do.
    Rights rights() const noexcept { return memory_ ? memory_->rights : Rights::read; }
    /// The number by which descriptors name it; 0 if it names nothing.
    std::uint32_t handle() const noexcept { return memory_ ? memory_->handle : 0; }
    /// The peer whose memory it is, if it was opened of one.
    std::optional<Peer> peer() const noexcept {
        return memory_ && memory_->peer.number != 0 ? std::optional<Peer>(memory_->peer) : std::nullopt;
    }

    /// The first byte in this process; nullptr for an opened region. Valid as long as a handle of the region exists.
    ///
    /// A batch that is under way writes there, or reads there, at any time: look at is_busy(), or wait for the batch.
    std::byte *data() const noexcept { return memory_ ? memory_->base : nullptr; }

    /// True while a batch uses it.
    bool is_busy() const noexcept { return memory_ && (count(memory_->readers) > 0 || count(memory_->writers) > 0); }

    /// `count` elements from byte `offset` on, or as many as there are. As data(): not to be touched while a batch may.
    template <class T> View<T> view(std::uint64_t offset, std::size_t count_wanted, Error &error) const noexcept {
        error.clear();
        if (!is_local(error)) {
            return {};
        }
        const std::uint64_t rest = offset <= memory_->bytes ? memory_->bytes - offset : 0;
        const std::size_t elements = count_wanted == all ? static_cast<std::size_t>(rest / sizeof(T)) : count_wanted;
        if (offset > memory_->bytes || elements > rest / sizeof(T)) {
            set_out_of_range(offset, elements, sizeof(T), error);
            return {};
        }
        std::byte *first = memory_->base + offset;
        if (reinterpret_cast<std::uintptr_t>(first) % alignof(T) != 0) {
            error.set(ErrorKind::memory, SCATTER_RING_STATUS_INVALID_SETTING,
                      "byte %" PRIu64 " of the region is not aligned for elements of %zu bytes", offset, sizeof(T));
            return {};
        }
        return View<T>{reinterpret_cast<T *>(first), elements};
    }

    /// Copies bytes out. Fails while a batch that writes the region is under way.
    bool read_at(std::uint64_t offset, void *out, std::size_t length, Error &error) const noexcept {
        error.clear();
        if (!is_local(error) || !is_inside(offset, length, error)) {
            return false;
        }
        if (count(memory_->writers) > 0) {
            set_busy(error);
            return false;
        }
        if (length > 0) {
            std::memcpy(out, memory_->base + offset, length);
        }
        return true;
    }

    /// Copies bytes in. Fails while a batch that reads or writes the region is under way.
    bool write_at(std::uint64_t offset, const void *data, std::size_t length, Error &error) const noexcept {
        error.clear();
        if (!is_local(error) || !is_inside(offset, length, error)) {
            return false;
        }
        if (!memory_->writable) {
            error.set(ErrorKind::memory, SCATTER_RING_STATUS_NO_RIGHT, "the region does not grant writing");
            return false;
        }
        if (is_busy()) {
            set_busy(error);
            return false;
        }
        if (length > 0) {
            std::memcpy(memory_->base + offset, data, length);
        }
        return true;
    }

    /// For view(): as many elements as there are.
    static constexpr std::size_t all = static_cast<std::size_t>(-1);

#if SCATTER_RING_EXCEPTIONS
    template <class T> View<T> view(std::uint64_t offset = 0, std::size_t count_wanted = all) const {
        return detail::throwing([&](Error &error) { return view<T>(offset, count_wanted, error); });
    }
    void read_at(std::uint64_t offset, void *out, std::size_t length) const {
        detail::throwing([&](Error &error) { return read_at(offset, out, length, error); });
    }
    void write_at(std::uint64_t offset, const void *data, std::size_t length) const {
        detail::throwing([&](Error &error) { return write_at(offset, data, length, error); });
    }
#endif

private:
    friend class Client;
    friend class Batch;
    friend struct detail::State;

    explicit Region(std::shared_ptr<detail::Memory> memory) noexcept : memory_(std::move(memory)) {}

    static std::uint32_t count(const std::uint32_t &users) noexcept {
        return __atomic_load_n(&users, __ATOMIC_ACQUIRE);
    }

    bool is_local(Error &error) const noexcept {
        if (memory_ == nullptr) {
            error.set(ErrorKind::closed, SCATTER_RING_STATUS_UNKNOWN_REGION, "this region names no memory");
        } else if (memory_->session->is_child()) {
            detail::set_forked(error);
        } else if (memory_->base == nullptr) {
            error.set(ErrorKind::not_local, SCATTER_RING_STATUS_NO_RIGHT,
                      "the region was opened, not allocated or registered here: its bytes can only be read and written "
                      "by batches");
        }
        return !error;
    }

    bool is_inside(std::uint64_t offset, std::uint64_t length, Error &error) const noexcept {
        if (offset > memory_->bytes || length > memory_->bytes - offset) {
            set_out_of_range(offset, length, 1, error);
            return false;
        }
        return true;
    }

    void set_out_of_range(std::uint64_t offset, std::uint64_t elements, std::uint64_t size,
                          Error &error) const noexcept {
        error.set(ErrorKind::memory, SCATTER_RING_STATUS_OUT_OF_RANGE,
                  "range of %" PRIu64 " bytes at %" PRIu64 " is outside a region of %" PRIu64 " bytes", elements * size,
                  offset, memory_->bytes);
    }

    static void set_busy(Error &error) noexcept {
        error.set(ErrorKind::busy, SCATTER_RING_STATUS_NOT_ALLOWED,
                  "a batch that is under way still uses this region: wait for it (or for its release) first");
    }

    std::shared_ptr<detail::Memory> memory_;
};

} // namespace scatter_ring

#endif
