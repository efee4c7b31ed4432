// What other clients tell this one. Part of scatter_ring.hpp.
#ifndef SCATTER_RING_NOTIFY_HPP
#define SCATTER_RING_NOTIFY_HPP

#include "ring.hpp"
#include "system.hpp"

namespace scatter_ring {

/// What another client has sent by Batch::notify(): the data of its batch is in place.
struct Notification {
    /// The other's Batch::user_data().
    std::uint64_t user_data = 0;
    /// What the other has given as such: in most cases where in the region the data is.
    std::uint64_t offset = 0;
    /// A copy of what it sent along.
    std::uint32_t payload_bytes = 0;
    unsigned char payload[SCATTER_RING_NOTIFY_BYTES_MAX];
};

namespace detail {

/// Notifications that were taken out of the ring and not asked for yet.
class Notifications {
public:
    Notifications(Mapping buffer, std::uint32_t capacity)
        : buffer_(std::move(buffer)), capacity_(capacity), payloads_(std::size_t{capacity} * slot_bytes) {}

    bool is_empty() const noexcept { return kept_.empty(); }
    bool is_full() const noexcept { return kept_.size() == capacity_; }

    /// Copies the notification out that a span at this position of the completion ring is about. To be called before
    /// the span's place is released. What is wrong with it, or nullptr.
    const char *keep(const Span &span, std::uint64_t position) {
        if (span.bytes > slot_bytes) {
            return "a notification that is too long";
        }
        if (is_full()) {
            return "a span that has become a notification";
        }
        if (span.flags != SCATTER_RING_SPAN_FLAGS_EVENT || span.count != 0 || span.status != SCATTER_RING_STATUS_OK) {
            return "an event that is no notification";
        }
        const auto bytes = static_cast<std::uint32_t>(span.bytes);
        std::memcpy(payload(next_), buffer_.at((position & (capacity_ - 1)) * slot_bytes), bytes);
        kept_.push_back(Kept{span.user_data, span.first, next_, bytes});
        next_ = (next_ + 1) & (capacity_ - 1);
        return nullptr;
    }

    bool take(Notification &out) noexcept {
        if (kept_.empty()) {
            return false;
        }
        const Kept kept = kept_.front();
        kept_.pop_front();
        out.user_data = kept.user_data;
        out.offset = kept.offset;
        out.payload_bytes = kept.payload_bytes;
        std::memcpy(out.payload, payload(kept.slot), kept.payload_bytes);
        return true;
    }

    static constexpr std::size_t slot_bytes = SCATTER_RING_NOTIFY_BYTES_MAX;

private:
    struct Kept {
        std::uint64_t user_data;
        std::uint64_t offset;
        /// Where its payload is.
        std::uint32_t slot;
        std::uint32_t payload_bytes;
    };

    unsigned char *payload(std::uint32_t slot) noexcept { return payloads_.data() + slot * slot_bytes; }

    /// Written by the engine.
    Mapping buffer_;
    std::uint32_t capacity_;
    std::vector<unsigned char> payloads_;
    Queue<Kept> kept_;
    /// Where the next payload goes.
    std::uint32_t next_ = 0;
};

} // namespace detail
} // namespace scatter_ring

#endif
