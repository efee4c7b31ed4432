// The ring: one producer, one consumer, 64-byte entries, no lock and no system call. Part of scatter_ring.hpp.
//
// Words that another process writes at any time are read and written by the compiler's __atomic builtins. They work on
// plain memory, which is what a mapping is: std::atomic_ref would be the word for it and comes with C++20, and to call
// foreign memory a std::atomic is undefined. An entry is copied as eight relaxed words: no undefined behaviour,
// whatever the other side does meanwhile.
//
// Each side keeps its own position private, and a cached copy of the other's; what stands in shared memory is output
// only. A position of the other side that is impossible is an error, never a loop bound.
//
// Every ordering that matters has a label, and each label a partner at the other end, in the engine:
//
//   here                                     partner there             so that
//   T1  Producer::publish   release, SQ tail  T2 (takes descriptors)    entries are written before they can be seen
//   H2  Producer::look      acquire, SQ head  H1 (frees descriptors)    slots are written after they were seen free
//   T2  Consumer::look      acquire, CQ tail  T1 (publishes spans)      spans are read after they were seen
//   H1  Consumer::release   release, CQ head  H2 (looks for room)       spans are read before their slots are free
//   W1  Waker::must_wake    fence             W2 (goes to sleep)        the sleeper sees the tail or the waker the word
//   W2  Sleeper::prepare    fence             W1 (wakes)                the same
//   S2  stop_seen           acquire, stop     S1 (ends the session)     what came before the stop is seen after it
#ifndef SCATTER_RING_RING_HPP
#define SCATTER_RING_RING_HPP

#include "../scatter_ring_abi.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace scatter_ring {

using Descriptor = ::scatter_ring_descriptor;
using Extension = ::scatter_ring_extension;
using FragmentRecord = ::scatter_ring_fragment_record;
using Span = ::scatter_ring_span;

namespace detail {

using Word = std::uint64_t;
inline constexpr unsigned entry_words = SCATTER_RING_ENTRY_BYTES / sizeof(Word);

/// The first slot, the words of both positions, and how many slots there are, a power of two.
struct RingWords {
    Word *slots = nullptr;
    Word *head = nullptr;
    Word *tail = nullptr;
    std::uint32_t capacity = 0;

    /// The slot of a position, which is masked: every position has one.
    Word *slot(std::uint64_t position) const noexcept { return slots + (position & (capacity - 1)) * entry_words; }
};

enum class Pushed : std::uint8_t { done, full, bad_position };

/// Writes entries and publishes them, many at a time.
class Producer {
public:
    Producer() noexcept = default;
    Producer(const RingWords &words, std::uint64_t start) noexcept
        : words_(words), tail_(start), published_(start), cached_head_(start) {}

    /// Writes one entry into the next free slot. The consumer does not see it before publish().
    template <class Entry> Pushed push(const Entry &entry) noexcept {
        static_assert(sizeof(Entry) == SCATTER_RING_ENTRY_BYTES && std::is_trivially_copyable<Entry>::value,
                      "an entry");
        if (tail_ - cached_head_ == words_.capacity) {
            std::uint32_t free = 0;
            if (!look(free)) {
                return Pushed::bad_position;
            }
            if (free == 0) {
                return Pushed::full;
            }
        }
        Word values[entry_words];
        std::memcpy(values, &entry, sizeof values);
        Word *slot = words_.slot(tail_);
        for (unsigned i = 0; i < entry_words; i++) {
            __atomic_store_n(slot + i, values[i], __ATOMIC_RELAXED);
        }
        tail_ += 1;
        return Pushed::done;
    }

    /// Shows everything pushed so far to the consumer.
    void publish() noexcept {
        if (published_ != tail_) {
            __atomic_store_n(words_.tail, tail_, __ATOMIC_RELEASE); // T1, with T2
            published_ = tail_;
        }
    }

    /// Free slots, by a fresh look at the consumer's head. False: that head is impossible.
    bool look(std::uint32_t &free) noexcept {
        const std::uint64_t seen = __atomic_load_n(words_.head, __ATOMIC_ACQUIRE); // H2, with H1
        if (seen - cached_head_ > published_ - cached_head_) {
            return false;
        }
        cached_head_ = seen;
        free = static_cast<std::uint32_t>(words_.capacity - (tail_ - cached_head_));
        return true;
    }

    /// Forgets what was pushed and not published.
    void take_back() noexcept { tail_ = published_; }

    /// Changes the first word of an entry that was pushed and not published.
    void rewrite_first_word(std::uint64_t position, Word value) noexcept {
        __atomic_store_n(words_.slot(position), value, __ATOMIC_RELAXED);
    }

    /// Position that the next entry will have.
    std::uint64_t position() const noexcept { return tail_; }
    /// Position behind the last published entry.
    std::uint64_t published() const noexcept { return published_; }

private:
    RingWords words_;
    std::uint64_t tail_ = 0;
    std::uint64_t published_ = 0;
    std::uint64_t cached_head_ = 0;
};

enum class Popped : std::uint8_t { done, none, bad_position };

/// Copies entries out, each once, and releases their slots, many at a time.
class Consumer {
public:
    Consumer() noexcept = default;
    Consumer(const RingWords &words, std::uint64_t start) noexcept
        : words_(words), head_(start), released_(start), cached_tail_(start) {}

    /// Copies the next entry out. Its slot stays taken until release().
    Popped pop(Span &out) noexcept {
        const Popped popped = peek(out);
        head_ += popped == Popped::done ? 1u : 0u;
        return popped;
    }

    /// Copies the next entry out and leaves it there. Another copy of it may differ, if the producer does what it must
    /// not.
    Popped peek(Span &out) noexcept {
        if (head_ == cached_tail_) {
            std::uint32_t count = 0;
            if (!look(count)) {
                return Popped::bad_position;
            }
            if (count == 0) {
                return Popped::none;
            }
        }
        const Word *slot = words_.slot(head_);
        Word values[entry_words];
        for (unsigned i = 0; i < entry_words; i++) {
            values[i] = __atomic_load_n(slot + i, __ATOMIC_RELAXED);
        }
        static_assert(sizeof(Span) == sizeof values, "a span is an entry");
        std::memcpy(&out, values, sizeof out);
        return Popped::done;
    }

    /// Gives the slots of everything popped so far back to the producer.
    void release() noexcept {
        if (released_ != head_) {
            __atomic_store_n(words_.head, head_, __ATOMIC_RELEASE); // H1, with H2
            released_ = head_;
        }
    }

    /// Entries that can be popped, by a fresh look at the producer's tail. False: that tail is impossible.
    bool look(std::uint32_t &count) noexcept {
        const std::uint64_t seen = __atomic_load_n(words_.tail, __ATOMIC_ACQUIRE); // T2, with T1
        // The producer may have filled every slot that it saw released, and never takes an entry back.
        if (seen - cached_tail_ > words_.capacity - (cached_tail_ - released_)) {
            return false;
        }
        cached_tail_ = seen;
        count = static_cast<std::uint32_t>(cached_tail_ - head_);
        return true;
    }

    /// Position of the next entry to pop.
    std::uint64_t position() const noexcept { return head_; }

private:
    RingWords words_;
    std::uint64_t head_ = 0;
    std::uint64_t released_ = 0;
    std::uint64_t cached_tail_ = 0;
};

/// GCC's thread sanitizer does not know it, and need not: its other end is in another process.
inline void fence() noexcept {
#if defined(__SANITIZE_THREAD__) && !defined(__clang__) && __GNUC__ >= 11
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#if defined(__SANITIZE_THREAD__) && !defined(__clang__) && __GNUC__ >= 11
#pragma GCC diagnostic pop
#endif
}

/// The side that publishes and may have to wake the other.
///
/// The waker stores (a tail), fences, and loads the sleep word; the sleeper stores the sleep word, fences, and loads
/// (the tail) again. The two fences are totally ordered, so at least one of the two sees what the other stored.
class Waker {
public:
    /// To be called after a publish: true if the other side sleeps, or is about to, and has not been woken for this
    /// sleep.
    bool must_wake(const Word *sleep_word) noexcept {
        fence(); // W1, with W2
        const Word word = __atomic_load_n(sleep_word, __ATOMIC_RELAXED);
        if (word == 0 || word == answered_) {
            return false;
        }
        answered_ = word;
        return true;
    }

private:
    Word answered_ = 0;
};

/// The side that sleeps.
class Sleeper {
public:
    /// Announces a sleep. The caller must look for work once more after it, and sleep only if there is none.
    void prepare(Word *sleep_word) noexcept {
        sleeps_ += 1;
        __atomic_store_n(sleep_word, sleeps_, __ATOMIC_RELAXED);
        fence(); // W2, with W1
    }

    /// Awake again.
    static void awake(Word *sleep_word) noexcept { __atomic_store_n(sleep_word, Word{0}, __ATOMIC_RELAXED); }

private:
    Word sleeps_ = 0;
};

/// True once the engine has ended the session, and why. Entries that are still in the ring were published before that.
inline bool stop_seen(const Word *stop_word, std::int32_t &reason) noexcept {
    return scatter_ring_stop_reason(__atomic_load_n(stop_word, __ATOMIC_ACQUIRE), &reason); // S2, with S1
}

} // namespace detail
} // namespace scatter_ring

#endif
