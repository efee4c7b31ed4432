// Describing a batch. Part of scatter_ring.hpp.
#ifndef SCATTER_RING_BATCH_HPP
#define SCATTER_RING_BATCH_HPP

#include "shapes.hpp"
#include "state.hpp"

#include <initializer_list>

namespace scatter_ring {

/// A batch that is being built: one logical operation of any number of descriptors.
///
/// Descriptors are written into the ring as they come, and shown to the engine by submit(). A batch that is longer than
/// the ring is shown part by part, and a call then waits until the engine has taken some.
///
/// submit() leaves the builder empty, ready for the next batch: one builder, kept, does for all batches of a client. It
/// allocates nothing once there were as many batches under way as there ever are. One batch of a client is built at a
/// time.
///
/// Dropped without submit(), a batch of which the engine has seen nothing has never been. One of which it has seen a
/// part is ended with a NOP: the part may be carried out. One that outlives its client says that the client was closed.
///
/// A call that fails adds nothing: a region of another client, or a closed one; or the session has ended. (With
/// ErrorKind::notifications_full a range of more than 1 GiB may have added the first of its two descriptors; to
/// describe it again does no harm.) Everything else is for the engine to check, and is part of the outcome.
class Batch {
public:
    Batch(Batch &&other) noexcept
        : state_(std::move(other.state_)), serial_(std::exchange(other.serial_, not_begun)),
          user_data_(other.user_data_), late_(other.late_), opening_(other.opening_) {}
    Batch &operator=(Batch &&other) noexcept {
        std::swap(state_, other.state_);
        std::swap(serial_, other.serial_);
        std::swap(user_data_, other.user_data_);
        std::swap(late_, other.late_);
        std::swap(opening_, other.opening_);
        return *this;
    }
    Batch(const Batch &) = delete;
    Batch &operator=(const Batch &) = delete;
    ~Batch() { clear(); }

    /// The batch times out if it has no outcome this long after the engine took its first descriptor. To be called
    /// before the first descriptor: a later one makes submit() fail.
    Batch &deadline(std::chrono::nanoseconds time) noexcept {
        opening_.begins = true;
        opening_.deadline_ns = time.count() > 0 ? static_cast<std::uint64_t>(time.count()) : 1;
        return checked_first();
    }

    /// How much is to come, for the engine's planning; it need not be exact. As deadline(), before the first
    /// descriptor.
    Batch &hint(std::uint32_t fragments, std::uint64_t bytes) noexcept {
        opening_.begins = true;
        opening_.hint_fragments = fragments;
        opening_.hint_bytes = bytes;
        return checked_first();
    }

    /// The batch starts after all earlier ones have their outcome and release, whatever it is, and later ones do not
    /// overtake it. As deadline(), before the first descriptor.
    Batch &fence() noexcept {
        opening_.fence = true;
        return checked_first();
    }

    /// What the span or Outcome hands back: of the descriptors that follow.
    Batch &user_data(std::uint64_t user_data) noexcept {
        user_data_ = user_data;
        return *this;
    }

    /// `length` bytes from `src` (usually opened) to `dst`. More than 1 GiB takes two descriptors.
    bool read(const Region &src, std::uint64_t src_offset, const Region &dst, std::uint64_t dst_offset,
              std::uint64_t length, Error &error) noexcept {
        return range(SCATTER_RING_OPCODE_READ, src, src_offset, dst, dst_offset, length, error);
    }

    /// The same with the words turned round: from `src` (mine) to `dst` (the other).
    bool write(const Region &src, std::uint64_t src_offset, const Region &dst, std::uint64_t dst_offset,
               std::uint64_t length, Error &error) noexcept {
        return range(SCATTER_RING_OPCODE_WRITE, src, src_offset, dst, dst_offset, length, error);
    }

    /// Rows out of a table, by number, into a buffer.
    bool read_rows(const Rows &rows, Error &error) noexcept {
        return indexed(detail::reading(rows), rows.table, rows.buffer, rows.index, error);
    }
    /// Rows out of a buffer into a table, by number.
    bool write_rows(const Rows &rows, Error &error) noexcept {
        return indexed(detail::writing(rows), rows.buffer, rows.table, rows.index, error);
    }

    /// Blocks by number on both sides, into mine.
    bool read_blocks(const Blocks &blocks, Error &error) noexcept {
        return indexed(detail::descriptor_of(SCATTER_RING_OPCODE_READ, blocks), blocks.src, blocks.dst, blocks.index,
                       error);
    }
    /// Blocks by number on both sides, out of mine.
    bool write_blocks(const Blocks &blocks, Error &error) noexcept {
        return indexed(detail::descriptor_of(SCATTER_RING_OPCODE_WRITE, blocks), blocks.src, blocks.dst, blocks.index,
                       error);
    }

    /// Ranges of different lengths, into mine.
    bool read_ranges(const Ranges &ranges, Error &error) noexcept {
        return indexed(detail::descriptor_of(SCATTER_RING_OPCODE_READ, ranges), ranges.src, ranges.dst, ranges.records,
                       error);
    }
    /// Ranges of different lengths, out of mine.
    bool write_ranges(const Ranges &ranges, Error &error) noexcept {
        return indexed(detail::descriptor_of(SCATTER_RING_OPCODE_WRITE, ranges), ranges.src, ranges.dst, ranges.records,
                       error);
    }

    /// Pieces at even distances, into mine.
    bool read_tile(const Tile &tile, Error &error) noexcept {
        error.clear();
        return transfer(detail::descriptor_of(SCATTER_RING_OPCODE_READ, tile), tile.src, tile.dst, error);
    }
    /// Pieces at even distances, out of mine.
    bool write_tile(const Tile &tile, Error &error) noexcept {
        error.clear();
        return transfer(detail::descriptor_of(SCATTER_RING_OPCODE_WRITE, tile), tile.src, tile.dst, error);
    }

    /// Any descriptor, with the regions whose handles it carries. user_data() is not used.
    ///
    /// A handle that is none of the regions is refused, and so are LAST (the batch puts it where it belongs) and
    /// EXTENDED.
    bool push(const Descriptor &descriptor, std::initializer_list<const Region *> regions, Error &error) noexcept {
        error.clear();
        return may_carry(descriptor, SCATTER_RING_FLAGS_LAST | SCATTER_RING_FLAGS_EXTENDED, error) &&
               hold_all(descriptor, regions, error) && state_->add(descriptor, error);
    }

    /// The same with an inner repeat: every fragment becomes `extension.inner_count` pieces. EXTENDED is set here.
    bool push_extended(const Descriptor &descriptor, const Extension &extension,
                       std::initializer_list<const Region *> regions, Error &error) noexcept {
        error.clear();
        if (!may_carry(descriptor, SCATTER_RING_FLAGS_LAST, error) || !hold_all(descriptor, regions, error)) {
            return false;
        }
        Descriptor extended = descriptor;
        extended.flags = static_cast<std::uint16_t>(extended.flags | SCATTER_RING_FLAGS_EXTENDED);
        return state_->add_slowly(extended, &extension, error);
    }

    /// Ends the batch and shows it to the engine. An empty batch is one NOP. The ticket is empty if it fails: the
    /// session has ended; or deadline(), hint() or fence() came too late, or raw descriptors without LAST stand before
    /// the batch, and then nothing was submitted. With ErrorKind::notifications_full the batch is as it was: it can be
    /// submitted once they were taken.
    Ticket submit(Error &error) noexcept {
        error.clear();
        if (!begun(error)) {
            return Ticket();
        }
        if (late_) {
            error.set(ErrorKind::sequence, SCATTER_RING_STATUS_BAD_SEQUENCE,
                      "deadline, hint and fence come before the first descriptor of a batch");
            clear();
            return Ticket();
        }
        Ticket ticket = state_->finish(user_data_, error);
        if (!is_begun()) {
            clear();
        }
        return ticket;
    }

    /// Ends the batch and submits it; when all of it is done, the client that exported `other` is told: it gets
    /// user_data() and `offset` (of any meaning). See Client::next_notification(). If the batch fails or ends before,
    /// nobody is told.
    ///
    /// While the other client has no room for it the batch waits, as long as its deadline() allows. It fails with
    /// NOT_ALLOWED if that client takes no notifications, with REGION_GONE if it is gone. If the other client is one of
    /// another engine, a batch that ends while the notification is on its way to it may have told it.
    Ticket notify(const Region &other, std::uint64_t offset, Error &error) noexcept {
        return notify(other, offset, Region(), 0, 0, error);
    }

    /// The same with a payload of at most 4096 bytes, as they are when the batch is done.
    Ticket notify(const Region &other, std::uint64_t offset, const Region &payload, std::uint64_t payload_offset,
                  std::uint32_t payload_bytes, Error &error) noexcept {
        error.clear();
        Descriptor descriptor =
            detail::descriptor_of(SCATTER_RING_OPCODE_NOTIFY, payload_bytes > 0 ? payload : Region(), other);
        descriptor.dst_offset = offset;
        descriptor.src_offset = payload_bytes > 0 ? payload_offset : 0;
        descriptor.len = payload_bytes;
        descriptor.user_data = user_data_;
        // What is told of is not touched, but it has to stay open.
        const bool held = begun(error) && hold(other, false, SCATTER_RING_FIELD_DST_REGION, error) &&
                          (payload_bytes == 0 || hold(payload, false, SCATTER_RING_FIELD_SRC_REGION, error));
        return held && state_->add(descriptor, error) ? submit(error) : Ticket();
    }

    /// Forgets the batch, as if it were dropped, and leaves the builder empty.
    void clear() noexcept {
        if (is_begun()) {
            state_->abandon();
        }
        serial_ = not_begun;
        late_ = false;
        opening_ = detail::Opening{};
        user_data_ = 0;
    }

#if SCATTER_RING_EXCEPTIONS
    void read(const Region &src, std::uint64_t src_offset, const Region &dst, std::uint64_t dst_offset,
              std::uint64_t length) {
        detail::throwing([&](Error &error) { return read(src, src_offset, dst, dst_offset, length, error); });
    }
    void write(const Region &src, std::uint64_t src_offset, const Region &dst, std::uint64_t dst_offset,
               std::uint64_t length) {
        detail::throwing([&](Error &error) { return write(src, src_offset, dst, dst_offset, length, error); });
    }
    void read_rows(const Rows &rows) {
        detail::throwing([&](Error &error) { return read_rows(rows, error); });
    }
    void write_rows(const Rows &rows) {
        detail::throwing([&](Error &error) { return write_rows(rows, error); });
    }
    void read_blocks(const Blocks &blocks) {
        detail::throwing([&](Error &error) { return read_blocks(blocks, error); });
    }
    void write_blocks(const Blocks &blocks) {
        detail::throwing([&](Error &error) { return write_blocks(blocks, error); });
    }
    void read_ranges(const Ranges &ranges) {
        detail::throwing([&](Error &error) { return read_ranges(ranges, error); });
    }
    void write_ranges(const Ranges &ranges) {
        detail::throwing([&](Error &error) { return write_ranges(ranges, error); });
    }
    void read_tile(const Tile &tile) {
        detail::throwing([&](Error &error) { return read_tile(tile, error); });
    }
    void write_tile(const Tile &tile) {
        detail::throwing([&](Error &error) { return write_tile(tile, error); });
    }
    void push(const Descriptor &descriptor, std::initializer_list<const Region *> regions = {}) {
        detail::throwing([&](Error &error) { return push(descriptor, regions, error); });
    }
    void push_extended(const Descriptor &descriptor, const Extension &extension,
                       std::initializer_list<const Region *> regions = {}) {
        detail::throwing([&](Error &error) { return push_extended(descriptor, extension, regions, error); });
    }
    Ticket submit() {
        return detail::throwing([&](Error &error) { return submit(error); });
    }
    Ticket notify(const Region &other, std::uint64_t offset) {
        return detail::throwing([&](Error &error) { return notify(other, offset, error); });
    }
    Ticket notify(const Region &other, std::uint64_t offset, const Region &payload, std::uint64_t payload_offset,
                  std::uint32_t payload_bytes) {
        return detail::throwing(
            [&](Error &error) { return notify(other, offset, payload, payload_offset, payload_bytes, error); });
    }
#endif

private:
    friend class Client;

    explicit Batch(std::shared_ptr<detail::State> state) noexcept : state_(std::move(state)) {}

    /// Longest piece of a range: longer ranges are described as a row of such pieces.
    static constexpr std::uint32_t piece_bytes = std::uint32_t{1} << 30;
    /// A number that no batch has; that of none is another one, in detail::Building.
    static constexpr std::uint64_t not_begun = ~std::uint64_t{0};

    bool is_begun() const noexcept { return state_ != nullptr && serial_ == state_->building.serial; }

    /// Begins the batch at its first descriptor. Without the look at the process a child that inherited the batch would
    /// write into its parent's ring.
    bool begun(Error &error) noexcept { return (is_begun() && !state_->is_child()) || begin(error); }

    __attribute__((cold, noinline)) bool begin(Error &error) noexcept {
        if (state_ == nullptr) {
            error.set(ErrorKind::closed, SCATTER_RING_STATUS_ENGINE_LOST,
                      "this batch is of no client: it was moved from");
            return false;
        }
        if (!state_->start_batch(opening_, error)) {
            return false;
        }
        serial_ = state_->building.serial;
        return true;
    }

    bool range(unsigned opcode, const Region &src, std::uint64_t src_offset, const Region &dst,
               std::uint64_t dst_offset, std::uint64_t length, Error &error) noexcept {
        error.clear();
        if (length > piece_bytes) {
            const std::uint64_t pieces = length / piece_bytes;
            if (pieces > UINT32_MAX) {
                if (begun(error)) {
                    state_->refuse(SCATTER_RING_STATUS_OUT_OF_RANGE, SCATTER_RING_FIELD_LEN, length, error);
                }
                return false;
            }
            const Tile tile{src,        src_offset,  piece_bytes, dst,
                            dst_offset, piece_bytes, piece_bytes, static_cast<std::uint32_t>(pieces)};
            if (!transfer(detail::descriptor_of(opcode, tile), src, dst, error)) {
                return false;
            }
            const std::uint64_t moved = pieces * piece_bytes;
            length -= moved;
            if (length == 0) {
                return true;
            }
            src_offset = src_offset + moved < moved ? UINT64_MAX : src_offset + moved;
            dst_offset = dst_offset + moved < moved ? UINT64_MAX : dst_offset + moved;
        }
        Descriptor descriptor = detail::descriptor_of(opcode, src, dst);
        descriptor.len = static_cast<std::uint32_t>(length);
        descriptor.src_offset = src_offset;
        descriptor.dst_offset = dst_offset;
        descriptor.count = 1;
        return transfer(descriptor, src, dst, error);
    }

    /// Pushes a descriptor whose handles are those of the two regions.
    bool transfer(Descriptor descriptor, const Region &src, const Region &dst, Error &error) noexcept {
        if (!begun(error) || !hold(src, false, SCATTER_RING_FIELD_SRC_REGION, error) ||
            !hold(dst, true, SCATTER_RING_FIELD_DST_REGION, error)) {
            return false;
        }
        descriptor.user_data = user_data_;
        return state_->add(descriptor, error);
    }

    bool indexed(const Descriptor &descriptor, const Region &src, const Region &dst, const Region &index,
                 Error &error) noexcept {
        error.clear();
        return begun(error) && hold(index, false, SCATTER_RING_FIELD_INDEX_REGION, error) &&
               transfer(descriptor, src, dst, error);
    }

    bool may_carry(const Descriptor &descriptor, std::uint32_t refused_flags, Error &error) noexcept {
        if (!begun(error)) {
            return false;
        }
        if ((descriptor.flags & refused_flags) != 0) {
            state_->refuse(SCATTER_RING_STATUS_INVALID_FLAGS, SCATTER_RING_FIELD_FLAGS, descriptor.flags, error);
            return false;
        }
        return true;
    }

    bool hold_all(const Descriptor &descriptor, std::initializer_list<const Region *> regions, Error &error) noexcept {
        const struct {
            std::uint32_t handle;
            bool writes;
            std::uint32_t field;
        } named[] = {
            {descriptor.src_region, false, SCATTER_RING_FIELD_SRC_REGION},
            {descriptor.dst_region, true, SCATTER_RING_FIELD_DST_REGION},
            {descriptor.index_region, false, SCATTER_RING_FIELD_INDEX_REGION},
        };
        for (const auto &one : named) {
            if (one.handle == 0) {
                continue;
            }
            const auto found = std::find_if(regions.begin(), regions.end(),
                                            [&](const Region *region) { return region->handle() == one.handle; });
            if (found == regions.end()) {
                state_->refuse(SCATTER_RING_STATUS_UNKNOWN_REGION, one.field, one.handle, error);
                return false;
            }
            if (!hold(**found, one.writes, one.field, error)) {
                return false;
            }
        }
        return true;
    }

    /// The region stays, and is busy, until the batch is released.
    bool hold(const Region &region, bool writes, std::uint32_t field, Error &error) noexcept {
        const detail::Memory *memory = region.memory_.get();
        if (memory != nullptr && memory->session == state_->session &&
            (writes ? memory->last_writer : memory->last_reader) == serial_) {
            return true;
        }
        return hold_first(region, writes, field, error);
    }

    __attribute__((cold, noinline)) bool hold_first(const Region &region, bool writes, std::uint32_t field,
                                                    Error &error) noexcept {
        const std::shared_ptr<detail::Memory> &memory = region.memory_;
        if (memory == nullptr || memory->session != state_->session || memory->closed) {
            state_->refuse(SCATTER_RING_STATUS_UNKNOWN_REGION, field, region.handle(), error);
            return false;
        }
        __atomic_fetch_add(writes ? &memory->writers : &memory->readers, 1u, __ATOMIC_ACQ_REL);
        (writes ? memory->last_writer : memory->last_reader) = serial_;
        state_->pending[state_->building.index].hold(memory, writes);
        return true;
    }

    /// What has to stand before the first descriptor and comes later makes submit() fail.
    Batch &checked_first() noexcept {
        late_ = late_ || (is_begun() && state_->building.youngest_slots > 0);
        if (is_begun()) {
            state_->building.opening = opening_;
        }
        return *this;
    }

    std::shared_ptr<detail::State> state_;
    std::uint64_t serial_ = not_begun;
    std::uint64_t user_data_ = 0;
    bool late_ = false;
    detail::Opening opening_;
};

} // namespace scatter_ring

#endif
