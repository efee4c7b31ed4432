// What is known about each batch: what its spans have said so far, and what it holds. Part of scatter_ring.hpp.
//
// The engine may be wrong. Each span is compared with what can be true of the batch that it names, and anything else is
// an error that ends the session: a wrong span releases nothing.
#ifndef SCATTER_RING_PENDING_HPP
#define SCATTER_RING_PENDING_HPP

#include "region.hpp"

namespace scatter_ring {

class Client;

/// The stages of a batch. A stage longer than four seconds reads as that.
struct Times {
    std::chrono::nanoseconds queue{};   ///< From the first descriptor taken to the first work started.
    std::chrono::nanoseconds plan{};    ///< Planning.
    std::chrono::nanoseconds command{}; ///< Commands to a peer.
    std::chrono::nanoseconds pack{};    ///< Packing.
    std::chrono::nanoseconds window{};  ///< From the first bulk operation to the last data in place.
    std::chrono::nanoseconds total{};   ///< From the first descriptor taken to the completion.
};

/// A batch that is done: every byte is in place. Anything else is an error of kind ErrorKind::batch.
struct Outcome {
    /// Ring position of the batch's first descriptor.
    std::uint64_t position = 0;
    /// Bytes written to destinations.
    std::uint64_t bytes = 0;
    /// Of the batch's last descriptor.
    std::uint64_t user_data = 0;
    /// How the bytes travelled: one of SCATTER_RING_ROUTE_*.
    std::uint8_t route = 0;
    /// True when nobody writes to the batch's buffers any more.
    bool reusable = true;
    /// Where the time went.
    Times times;
};

/// Names one submitted batch. Dropping it gives up the outcome, not the batch. A default-made one names nothing.
class Ticket {
public:
    Ticket() noexcept = default;
    Ticket(Ticket &&) noexcept = default;
    Ticket &operator=(Ticket &&) noexcept = default;
    Ticket(const Ticket &) = delete;
    Ticket &operator=(const Ticket &) = delete;

    explicit operator bool() const noexcept { return alive_ != nullptr; }
    /// Ring position of the batch's first descriptor, as in Span::first.
    std::uint64_t position() const noexcept { return first_; }

private:
    friend class Client;
    friend struct detail::State;

    Ticket(std::uint32_t index, std::uint64_t first, std::shared_ptr<const char> alive) noexcept
        : index_(index), first_(first), alive_(std::move(alive)) {}

    std::uint32_t index_ = 0;
    std::uint64_t first_ = 0;
    /// Shared with the batch's record, which is kept as long as somebody can ask for it.
    std::shared_ptr<const char> alive_;
};

namespace detail {

/// A batch's count on a region; the region stays as long as it lives.
///
/// One that is dropped without release() leaves the region busy for good: the session ended before the batch did, and
/// nobody can say when the memory is left alone.
struct Hold {
    std::shared_ptr<Memory> memory;
    bool writes;

    void release() noexcept { __atomic_fetch_sub(writes ? &memory->writers : &memory->readers, 1u, __ATOMIC_ACQ_REL); }
};

/// One batch.
class Record {
public:
    /// Of its first descriptor.
    std::uint64_t first = 0;
    /// Slots, once its LAST is published.
    std::uint64_t slots = unknown;
    /// True if its first slot is a BEGIN.
    bool begins = false;
    /// Numbers of the descriptors at which one with an extension follows one without, or the other way round.
    std::vector<std::uint32_t> toggles;
    std::vector<Hold> holds;
    std::shared_ptr<const char> alive = std::make_shared<const char>('\0');

    static constexpr std::uint64_t unknown = ~std::uint64_t{0};

    /// For the batch that starts here.
    void start(std::uint64_t position) noexcept {
        first = position;
        slots = unknown;
        begins = held_ = released_ = failed_ = done_ = false;
        covered_ = bytes_ = 0;
        peer_ = Peer{};
        peers_ = 0;
        toggles.clear();
    }

    void hold(const std::shared_ptr<Memory> &memory, bool writes) {
        holds.push_back(Hold{memory, writes});
        if (memory->peer.number != 0 && memory->peer != peer_) {
            peer_ = memory->peer;
            peers_ += 1;
        }
    }

    void release() noexcept {
        for (Hold &hold : holds) {
            hold.release();
        }
        holds.clear();
    }

    /// Slots that the engine can have seen.
    std::uint64_t known_slots(std::uint64_t published) const noexcept {
        return slots != unknown ? slots : published - first;
    }

    /// Takes note of a span; what is wrong with it, or nullptr.
    const char *apply(const Span &span, std::uint64_t published) noexcept {
        const bool is_held = scatter_ring_span_is_held(&span), is_done = scatter_ring_span_is_batch_done(&span);
        if (scatter_ring_span_is_released(&span)) {
            const bool plausible = held_ && !released_ && span.first == first;
            if (!plausible || span.count != 0 || span.flags != SCATTER_RING_SPAN_FLAGS_RELEASED) {
                return "a release of a batch that is not held";
            }
            released_ = true;
            release();
            return nullptr;
        }
        const std::uint64_t covered = covered_ + span.count;
        if (span.count == 0 || span.first != first + covered_ || covered > known_slots(published)) {
            return "a span that covers descriptors twice, or none, or too many";
        }
        if (done_ || is_done != (slots == covered)) {
            return "a batch that is done before its last descriptor, or not with it";
        }
        if (span.status > 0 || (is_held && released_) || (span.flags & ~SCATTER_RING_SPAN_FLAGS_KNOWN) != 0) {
            return "a span with an impossible status or flag";
        }
        covered_ = covered;
        held_ = held_ || is_held;
        done_ = is_done;
        last_ = span;
        if (span.status == SCATTER_RING_STATUS_OK) {
            bytes_ = bytes_ + span.bytes < bytes_ ? ~std::uint64_t{0} : bytes_ + span.bytes;
        } else if (!failed_) {
            failed_ = true;
            failure_ = span;
        }
        return nullptr;
    }

    bool is_done() const noexcept { return done_; }
    bool is_reusable() const noexcept { return !held_ || released_; }
    /// True when its outcome is known and nobody writes to its buffers any more.
    bool is_over() const noexcept { return done_ && is_reusable(); }

    /// The outcome of a batch that is done; an error if it failed.
    Outcome outcome(Error &error) const noexcept {
        Outcome outcome;
        if (failed_) {
            error.set_batch(failure());
            return outcome;
        }
        outcome.position = first;
        outcome.bytes = bytes_;
        outcome.user_data = last_.user_data;
        outcome.route = last_.route;
        outcome.reusable = is_reusable();
        outcome.times = {nanoseconds(last_.queue_ns), nanoseconds(last_.plan_ns),   nanoseconds(last_.command_ns),
                         nanoseconds(last_.pack_ns),  nanoseconds(last_.window_ns), nanoseconds(last_.total_ns)};
        return outcome;
    }

private:
    BatchError failure() const noexcept {
        // The descriptor at fault is the last one that its span covers; a deadline or a cancel names the first one that
        // was not completed.
        const std::uint32_t behind = failure_.stage == SCATTER_RING_STAGE_WAIT ? 0 : failure_.count - 1;
        BatchError error;
        error.status = failure_.status;
        error.descriptor = descriptor_at(failure_.first + behind);
        error.position = failure_.first;
        error.fragment = scatter_ring_span_fragment(&failure_);
        error.field = failure_.field;
        error.detail = scatter_ring_span_detail(&failure_);
        error.stage = failure_.stage;
        error.bytes_done = bytes_;
        error.reusable = is_reusable();
        error.peer = peers_ == 1 ? std::optional<Peer>(peer_) : std::nullopt;
        return error;
    }

    /// The number of the pushed descriptor at a position. Empty: the BEGIN that the library put in front.
    std::optional<std::uint32_t> descriptor_at(std::uint64_t position) const noexcept {
        std::uint64_t slot = position - first;
        if (begins && slot == 0) {
            return std::nullopt;
        }
        slot -= begins ? 1 : 0;
        std::uint64_t descriptor = 0, slots_each = 1;
        for (const std::uint32_t toggle : toggles) {
            const std::uint64_t run = (toggle - descriptor) * slots_each;
            if (slot < run) {
                break;
            }
            slot -= run;
            descriptor = toggle;
            slots_each = 3 - slots_each;
        }
        return static_cast<std::uint32_t>(descriptor + slot / slots_each);
    }

    std::uint64_t covered_ = 0;
    std::uint64_t bytes_ = 0;
    /// The last peer whose memory it uses, and how many times that was another one than before.
    Peer peer_;
    std::uint32_t peers_ = 0;
    bool held_ = false;
    bool released_ = false;
    bool failed_ = false;
    bool done_ = false;
    /// The first span that was not a success.
    Span failure_{};
    Span last_{};
};

enum class Noted : std::uint8_t { done, about_none, impossible };

/// All batches of a client.
///
/// Records are reused: there is no allocation per batch once there are as many as are used at a time.
class Pending {
public:
    /// A record for the batch that starts at `first`, behind all others.
    std::uint32_t start(std::uint64_t first) {
        const std::uint32_t index = unused();
        records_[index].start(first);
        order_.push_back(Key{first, index});
        return index;
    }

    /// Forgets the youngest batch, of which nothing was published.
    void take_back(std::uint32_t index) {
        order_.pop_back();
        records_[index].release();
        free_.push_back(index);
    }

    Record &operator[](std::uint32_t index) noexcept { return records_[index]; }

    /// The record with this index, if it is still the one of a ticket; else nullptr.
    const Record *get(std::uint32_t index, const std::shared_ptr<const char> &alive) const noexcept {
        return index < records_.size() && records_[index].alive == alive ? &records_[index] : nullptr;
    }

    /// Takes note of a span. `fault` says what cannot be.
    Noted note(const Span &span, std::uint64_t published, const char *&fault) {
        std::size_t at = 0;
        if (!find(span.first, published, at)) {
            return Noted::about_none;
        }
        const std::uint32_t index = order_[at].index;
        Record &record = records_[index];
        fault = record.apply(span, published);
        if (fault != nullptr) {
            return Noted::impossible;
        }
        if (record.is_over()) {
            record.release();
            order_[at].index = dead_mark;
            dead_ += 1;
            ended_.push_back(index);
            sweep();
        }
        return Noted::done;
    }

private:
    struct Key {
        std::uint64_t first;
        std::uint32_t index;
    };

    static constexpr std::uint32_t dead_mark = ~std::uint32_t{0};
    /// How many ended records a new batch looks at for one whose ticket is gone.
    static constexpr unsigned tries = 4;
    /// As many marks stay in the order, whatever its length.
    static constexpr std::size_t dead_most = 64;

    std::uint32_t unused() {
        for (unsigned i = 0; i < tries && !ended_.empty(); i++) {
            const std::uint32_t index = ended_.front();
            ended_.pop_front();
            if (records_[index].alive.use_count() == 1) {
                free_.push_back(index);
            } else {
                ended_.push_back(index);
            }
        }
        if (!free_.empty()) {
            const std::uint32_t index = free_.back();
            free_.pop_back();
            return index;
        }
        records_.emplace_back();
        records_.back().holds.reserve(4);
        // From here on only another record takes more memory.
        free_.reserve(records_.capacity());
        ended_.reserve(records_.capacity());
        order_.reserve(2 * records_.capacity() + dead_most + 1);
        return static_cast<std::uint32_t>(records_.size() - 1);
    }

    /// The place in the order of the batch that a position belongs to.
    bool find(std::uint64_t position, std::uint64_t published, std::size_t &at) const noexcept {
        if (order_.empty()) {
            return false;
        }
        const std::uint64_t base = order_[0].first, distance = position - base;
        std::size_t low = 0, high = order_.size();
        while (low < high) {
            const std::size_t middle = low + (high - low) / 2;
            if (order_[middle].first - base <= distance) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        // The first one lies at distance 0, so that there is one before.
        at = low - 1;
        const Key key = order_[at];
        return key.index != dead_mark && position - key.first < records_[key.index].known_slots(published);
    }

    void sweep() noexcept {
        while (!order_.empty() && order_.front().index == dead_mark) {
            order_.pop_front();
            dead_ -= 1;
        }
        // One batch that takes long must not keep the marks of all that came after it.
        if (dead_ > dead_most && dead_ * 2 > order_.size()) {
            order_.retain([](const Key &key) { return key.index != dead_mark; });
            dead_ = 0;
        }
    }

    std::vector<Record> records_;
    /// Records that nobody uses or can ask for.
    std::vector<std::uint32_t> free_;
    /// Records of ended batches whose ticket may still live.
    Queue<std::uint32_t> ended_;
    /// Batches that have not ended, by position; ended ones among them are marked until they are swept out.
    Queue<Key> order_;
    std::size_t dead_ = 0;
};

} // namespace detail
} // namespace scatter_ring

#endif
