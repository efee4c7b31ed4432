// The shapes that one descriptor can have, with names. Part of scatter_ring.hpp.
//
// Each is an aggregate: with C++20 its fields are named where it is made (Rows{.table = table, .row_bytes = 264, ...}),
// before that packed() makes one whose other fields are then assigned.
#ifndef SCATTER_RING_SHAPES_HPP
#define SCATTER_RING_SHAPES_HPP

#include "region.hpp"

namespace scatter_ring {

/// How row numbers, or block numbers, are written in memory; little-endian.
enum class Numbers : std::uint8_t { u32 = SCATTER_RING_INDEX_KIND_U32, u64 = SCATTER_RING_INDEX_KIND_U64 };

/// What a number of all ones (SCATTER_RING_MISSING_U32, SCATTER_RING_MISSING_U64) means.
enum class Missing : std::uint8_t {
    refuse, ///< A number like any other: outside the table.
    zero,   ///< Its place at the destination is filled with 0.
    skip,   ///< Its place at the destination is left as it is.
};

/// Rows of a table, named by an array of row numbers, and a buffer where they lie in the order of that array.
struct Rows {
    /// The table, and where its row 0 starts.
    const Region &table;
    std::uint64_t table_offset = 0;
    /// Bytes from one row of the table to the next; 0: `row_bytes`, they lie packed.
    std::uint32_t table_stride = 0;
    /// Bytes of a row.
    std::uint32_t row_bytes = 0;
    /// Where the row numbers are. They must stay as they are until the batch is done.
    const Region &index;
    /// Where the first row number is, a multiple of its size.
    std::uint64_t index_offset = 0;
    Numbers numbers = Numbers::u32;
    /// How many rows.
    std::uint32_t count = 0;
    /// The buffer, and where the first row lies in it.
    const Region &buffer;
    std::uint64_t buffer_offset = 0;
    /// Bytes from one row of the buffer to the next; 0: `row_bytes`, they lie packed.
    std::uint32_t buffer_stride = 0;
    /// Only when reading.
    Missing missing = Missing::refuse;

    /// `count` rows by 32-bit numbers, everything packed and starting at 0.
    static Rows packed(const Region &table, std::uint32_t row_bytes, const Region &index, std::uint32_t count,
                       const Region &buffer) noexcept {
        return Rows{table, 0, 0, row_bytes, index, 0, Numbers::u32, count, buffer, 0, 0, Missing::refuse};
    }
};

/// Blocks of equal size, named by two arrays of block numbers: those of the source, and behind them those of the
/// destination. So lie the pages of a paged cache.
struct Blocks {
    /// Where from, and where its block 0 starts.
    const Region &src;
    std::uint64_t src_offset = 0;
    /// Bytes from one block of the source to the next; 0: `block_bytes`, they lie packed.
    std::uint32_t src_stride = 0;
    /// Where to, and where its block 0 starts.
    const Region &dst;
    std::uint64_t dst_offset = 0;
    /// Bytes from one block of the destination to the next; 0: `block_bytes`, they lie packed.
    std::uint32_t dst_stride = 0;
    /// Bytes of a block.
    std::uint32_t block_bytes = 0;
    /// Where the block numbers are: `count` of the source, then `count` of the destination. They must stay as they are
    /// until the batch is done.
    const Region &index;
    /// Where the first number is, a multiple of its size.
    std::uint64_t index_offset = 0;
    Numbers numbers = Numbers::u32;
    /// How many blocks.
    std::uint32_t count = 0;
    /// What a source number of all ones means.
    Missing missing = Missing::refuse;

    /// `count` blocks by 32-bit numbers, everything packed and starting at 0.
    static Blocks packed(const Region &src, const Region &dst, std::uint32_t block_bytes, const Region &index,
                         std::uint32_t count) noexcept {
        return Blocks{src, 0, 0, dst, 0, 0, block_bytes, index, 0, Numbers::u32, count, Missing::refuse};
    }
};

/// Ranges of different lengths, named by an array of FragmentRecord.
struct Ranges {
    /// Where from; the records' `src` counts from `src_offset` on.
    const Region &src;
    std::uint64_t src_offset = 0;
    /// Where to; the records' `dst` counts from `dst_offset` on.
    const Region &dst;
    std::uint64_t dst_offset = 0;
    /// Where the records are, 24 bytes each. They must stay as they are until the batch is done.
    const Region &records;
    /// Where the first one is, a multiple of 8.
    std::uint64_t records_offset = 0;
    /// How many.
    std::uint32_t count = 0;

    /// `count` ranges, everything starting at 0.
    static Ranges packed(const Region &src, const Region &dst, const Region &records, std::uint32_t count) noexcept {
        return Ranges{src, 0, dst, 0, records, 0, count};
    }
};

/// `count` pieces of `len` bytes at even distances on both sides.
struct Tile {
    /// Where from, and where the first piece starts there.
    const Region &src;
    std::uint64_t src_offset = 0;
    /// Bytes from one piece to the next there.
    std::uint32_t src_stride = 0;
    /// Where to, and where the first piece lands there.
    const Region &dst;
    std::uint64_t dst_offset = 0;
    /// Bytes from one piece to the next there, at least `len`.
    std::uint32_t dst_stride = 0;
    /// Bytes of a piece.
    std::uint32_t len = 0;
    /// How many pieces.
    std::uint32_t count = 0;
};

namespace detail {

constexpr std::uint8_t kind_of(Numbers numbers) noexcept { return static_cast<std::uint8_t>(numbers); }

constexpr std::uint16_t flags_of(Missing missing) noexcept {
    return static_cast<std::uint16_t>(missing == Missing::zero   ? SCATTER_RING_FLAGS_MISSING_ZERO
                                      : missing == Missing::skip ? SCATTER_RING_FLAGS_MISSING_SKIP
                                                                 : 0);
}

constexpr std::uint32_t stride_or(std::uint32_t stride, std::uint32_t length) noexcept {
    return stride != 0 ? stride : length;
}

inline Descriptor descriptor_of(unsigned opcode, const Region &src, const Region &dst) noexcept {
    Descriptor descriptor{};
    descriptor.opcode = static_cast<std::uint8_t>(opcode);
    descriptor.src_region = src.handle();
    descriptor.dst_region = dst.handle();
    return descriptor;
}

inline Descriptor reading(const Rows &rows) noexcept {
    Descriptor descriptor = descriptor_of(SCATTER_RING_OPCODE_READ, rows.table, rows.buffer);
    descriptor.index_kind = scatter_ring_index_kind_pack(kind_of(rows.numbers), SCATTER_RING_INDEX_KIND_NONE);
    descriptor.flags = flags_of(rows.missing);
    descriptor.len = rows.row_bytes;
    descriptor.src_offset = rows.table_offset;
    descriptor.src_stride = stride_or(rows.table_stride, rows.row_bytes);
    descriptor.dst_offset = rows.buffer_offset;
    descriptor.dst_stride = stride_or(rows.buffer_stride, rows.row_bytes);
    descriptor.count = rows.count;
    descriptor.index_region = rows.index.handle();
    descriptor.index_offset = rows.index_offset;
    return descriptor;
}

inline Descriptor writing(const Rows &rows) noexcept {
    Descriptor descriptor = reading(rows);
    descriptor.opcode = SCATTER_RING_OPCODE_WRITE;
    descriptor.index_kind = scatter_ring_index_kind_pack(SCATTER_RING_INDEX_KIND_NONE, kind_of(rows.numbers));
    std::swap(descriptor.src_region, descriptor.dst_region);
    std::swap(descriptor.src_offset, descriptor.dst_offset);
    std::swap(descriptor.src_stride, descriptor.dst_stride);
    return descriptor;
}

inline Descriptor descriptor_of(unsigned opcode, const Blocks &blocks) noexcept {
    Descriptor descriptor = descriptor_of(opcode, blocks.src, blocks.dst);
    descriptor.index_kind = scatter_ring_index_kind_pack(kind_of(blocks.numbers), kind_of(blocks.numbers));
    descriptor.flags = flags_of(blocks.missing);
    descriptor.len = blocks.block_bytes;
    descriptor.src_offset = blocks.src_offset;
    descriptor.src_stride = stride_or(blocks.src_stride, blocks.block_bytes);
    descriptor.dst_offset = blocks.dst_offset;
    descriptor.dst_stride = stride_or(blocks.dst_stride, blocks.block_bytes);
    descriptor.count = blocks.count;
    descriptor.index_region = blocks.index.handle();
    descriptor.index_offset = blocks.index_offset;
    return descriptor;
}

inline Descriptor descriptor_of(unsigned opcode, const Ranges &ranges) noexcept {
    Descriptor descriptor = descriptor_of(opcode, ranges.src, ranges.dst);
    descriptor.index_kind =
        scatter_ring_index_kind_pack(SCATTER_RING_INDEX_KIND_FRAGMENTS, SCATTER_RING_INDEX_KIND_FRAGMENTS);
    descriptor.src_offset = ranges.src_offset;
    descriptor.dst_offset = ranges.dst_offset;
    descriptor.count = ranges.count;
    descriptor.index_region = ranges.records.handle();
    descriptor.index_offset = ranges.records_offset;
    return descriptor;
}

inline Descriptor descriptor_of(unsigned opcode, const Tile &tile) noexcept {
    Descriptor descriptor = descriptor_of(opcode, tile.src, tile.dst);
    descriptor.len = tile.len;
    descriptor.src_offset = tile.src_offset;
    descriptor.src_stride = tile.src_stride;
    descriptor.dst_offset = tile.dst_offset;
    descriptor.dst_stride = tile.dst_stride;
    descriptor.count = tile.count;
    return descriptor;
}

} // namespace detail
} // namespace scatter_ring

#endif
