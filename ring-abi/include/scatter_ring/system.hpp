// What is asked of the kernel: descriptors, mappings, the fork guard, waiting. Part of scatter_ring.hpp.
#ifndef SCATTER_RING_SYSTEM_HPP
#define SCATTER_RING_SYSTEM_HPP

#include "error.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace scatter_ring {

/// For a wait that ends only with what is waited for.
inline constexpr std::chrono::nanoseconds forever = std::chrono::nanoseconds::max();

namespace detail {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

/// A file descriptor, closed at the end.
class Fd {
public:
    Fd() noexcept = default;
    explicit Fd(int fd) noexcept : fd_(fd) {}
    Fd(Fd &&other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd &operator=(Fd &&other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    Fd(const Fd &) = delete;
    Fd &operator=(const Fd &) = delete;
    ~Fd() {
        if (fd_ >= 0) {
            ::close(fd_);
        }
    }

    int get() const noexcept { return fd_; }
    explicit operator bool() const noexcept { return fd_ >= 0; }

private:
    int fd_ = -1;
};

/// A mapping, unmapped at the end.
class Mapping {
public:
    Mapping() noexcept = default;
    Mapping(Mapping &&other) noexcept
        : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Mapping &operator=(Mapping &&other) noexcept {
        std::swap(base_, other.base_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;
    ~Mapping() {
        if (base_ != nullptr) {
            ::munmap(base_, bytes_);
        }
    }

    /// False: `errno` says why. `fd` may be -1 for private memory without a file.
    bool map(int fd, std::uint64_t offset, std::size_t bytes, int protection, int flags) noexcept {
        void *base = ::mmap(nullptr, bytes, protection, flags, fd, static_cast<off_t>(offset));
        if (base == MAP_FAILED) {
            return false;
        }
        *this = Mapping();
        base_ = base;
        bytes_ = bytes;
        return true;
    }

    std::byte *at(std::uint64_t offset) const noexcept { return static_cast<std::byte *>(base_) + offset; }
    std::size_t bytes() const noexcept { return bytes_; }
    explicit operator bool() const noexcept { return base_ != nullptr; }

private:
    void *base_ = nullptr;
    std::size_t bytes_ = 0;
};

/// A page that the kernel wipes in a forked child, so that a child is told from its parent without a system call.
///
/// A child shares its parent's rings and sockets; two producers on one ring would corrupt it.
class ForkGuard {
public:
    /// False: `errno` says why.
    bool open() noexcept {
        constexpr std::size_t page_bytes = 4096;
        if (!page_.map(-1, 0, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS)) {
            return false;
        }
        if (::madvise(page_.at(0), page_bytes, MADV_WIPEONFORK) != 0) {
            return false;
        }
        auto *word = reinterpret_cast<std::uint64_t *>(page_.at(0));
        __atomic_store_n(word, parent, __ATOMIC_RELAXED);
        word_ = word;
        return true;
    }

    /// True in a process that was forked from the one that opened it.
    bool is_child() const noexcept { return __atomic_load_n(word_, __ATOMIC_RELAXED) == 0; }

private:
    static constexpr std::uint64_t parent = 1;

    Mapping page_;
    /// Before it is opened nobody is a child.
    const std::uint64_t *word_ = &parent;
};

/// The time that is so far away. One so far away that it cannot be told is the end of time.
inline Clock::time_point deadline_after(nanoseconds time) noexcept {
    const Clock::time_point now = Clock::now();
    return time >= Clock::time_point::max() - now ? Clock::time_point::max() : now + time;
}

/// Waits for a descriptor, at most so long. Returns early when a signal comes. False: it cannot be waited for.
inline bool poll_for(int fd, short events, nanoseconds time) noexcept {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
    ::timespec limit{};
    limit.tv_sec = static_cast<time_t>(seconds.count());
    limit.tv_nsec = static_cast<long>((time - seconds).count());
    ::pollfd one{fd, events, 0};
    return ::ppoll(&one, 1, &limit, nullptr) >= 0 || errno == EINTR;
}

/// The other side of a socket is gone. Takes nothing from it.
inline bool is_hung_up(int fd) noexcept {
    ::pollfd one{fd, 0, 0};
    return ::poll(&one, 1, 0) > 0 && (one.revents & POLLHUP) != 0;
}

/// Tells the processor that this is a loop that waits.
inline void spin_once() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

inline std::uint64_t next_multiple(std::uint64_t n, std::uint64_t of) noexcept { return (n + of - 1) / of * of; }

/// First in, first out. Grows, and never gives memory back: in the steady state it allocates nothing.
template <class T> class Queue {
    static_assert(std::is_trivially_copyable<T>::value, "slots are left as they are");

public:
    bool empty() const noexcept { return size_ == 0; }
    std::size_t size() const noexcept { return size_; }
    T &operator[](std::size_t i) noexcept { return slots_[(head_ + i) & (slots_.size() - 1)]; }
    const T &operator[](std::size_t i) const noexcept { return slots_[(head_ + i) & (slots_.size() - 1)]; }
    T &front() noexcept { return (*this)[0]; }

    void push_back(const T &value) {
        reserve(size_ + 1);
        size_ += 1;
        (*this)[size_ - 1] = value;
    }

    void pop_front() noexcept {
        head_ += 1;
        size_ -= 1;
    }

    void pop_back() noexcept { size_ -= 1; }

    /// Keeps those for which `keep` says so.
    template <class Keep> void retain(Keep keep) noexcept {
        std::size_t kept = 0;
        for (std::size_t i = 0; i < size_; i++) {
            if (keep((*this)[i])) {
                (*this)[kept] = (*this)[i];
                kept += 1;
            }
        }
        size_ = kept;
    }

    /// Room for so many.
    void reserve(std::size_t count) {
        if (count > slots_.size()) {
            std::size_t most = slots_.empty() ? 16 : slots_.size();
            while (most < count) {
                most *= 2;
            }
            std::vector<T> larger(most);
            for (std::size_t i = 0; i < size_; i++) {
                larger[i] = (*this)[i];
            }
            slots_ = std::move(larger);
            head_ = 0;
        }
    }

private:
    std::vector<T> slots_;
    std::size_t head_ = 0;
    std::size_t size_ = 0;
};

} // namespace detail
} // namespace scatter_ring

#endif
