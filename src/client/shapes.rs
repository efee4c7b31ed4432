//! The shapes that one descriptor can have, with names.

use super::Region;
use ring_abi::{Descriptor, Flags, IndexKind, Opcode};

/// Rows of a table, named by an array of row numbers, and a buffer where they lie in the order of that array.
///
/// ```no_run
/// # use scatter_ring::client::{Batch, BatchError, Missing, Region, Rows};
/// # fn example(mut batch: Batch<'_>, table: &Region, index: &Region, out: &Region) -> Result<(), BatchError> {
/// // 1,000 rows of 264 B out of a table whose rows start every 512 B; all-ones numbers give rows of zeroes.
/// batch.read_rows(&Rows { table_stride: 512, missing: Missing::Zero, ..Rows::new(table, 264, index, 1000, out) })?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The table.
    pub table: &'a Region,
    /// Where its row 0 starts.
    pub table_offset: u64,
    /// Bytes from one row of the table to the next.
    pub table_stride: u32,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Where the row numbers are. They must stay as they are until the batch is done.
    pub index: &'a Region,
    /// Where the first row number is, a multiple of its size.
    pub index_offset: u64,
    /// How they are written.
    pub numbers: RowNumbers,
    /// How many rows.
    pub count: u32,
    /// The buffer.
    pub buffer: &'a Region,
    /// Where the first row lies in it.
    pub buffer_offset: u64,
    /// Bytes from one row of the buffer to the next.
    pub buffer_stride: u32,
    /// What a row number of all ones means. Only when reading.
    pub missing: Missing,
}

/// How row numbers are written in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RowNumbers {
    /// `u32`, little-endian.
    #[default]
    U32,
    /// `u64`, little-endian.
    U64,
}

/// What a row number of all ones means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Missing {
    /// A row number like any other: outside the table.
    #[default]
    Refuse,
    /// The row's place in the buffer is filled with 0.
    Zero,
    /// The row's place in the buffer is left as it is.
    Skip,
}

impl RowNumbers {
    fn kind(self) -> IndexKind {
        match self {
            RowNumbers::U32 => IndexKind::U32,
            RowNumbers::U64 => IndexKind::U64,
        }
    }
}

impl Missing {
    fn flag(self) -> u16 {
        match self {
            Missing::Refuse => 0,
            Missing::Zero => Flags::MISSING_ZERO,
            Missing::Skip => Flags::MISSING_SKIP,
        }
    }
}

impl<'a> Rows<'a> {
    /// `count` rows by `u32` numbers, everything packed and starting at 0.
    #[must_use]
    pub fn new(table: &'a Region, row_bytes: u32, index: &'a Region, count: u32, buffer: &'a Region) -> Rows<'a> {
        Rows {
            table,
            table_offset: 0,
            table_stride: row_bytes,
            row_bytes,
            index,
            index_offset: 0,
            numbers: RowNumbers::U32,
            count,
            buffer,
            buffer_offset: 0,
            buffer_stride: row_bytes,
            missing: Missing::Refuse,
        }
    }

    /// Out of the table into the buffer.
    pub(super) fn reading(&self) -> Descriptor {
        Descriptor {
            opcode: Opcode::READ.0,
            index_kind: IndexKind::pack(self.numbers.kind(), IndexKind::None),
            src_region: self.table.handle().0,
            src_offset: self.table_offset,
            src_stride: self.table_stride,
            dst_region: self.buffer.handle().0,
            dst_offset: self.buffer_offset,
            dst_stride: self.buffer_stride,
            ..self.common()
        }
    }

    /// Out of the buffer into the table.
    pub(super) fn writing(&self) -> Descriptor {
        Descriptor {
            opcode: Opcode::WRITE.0,
            index_kind: IndexKind::pack(IndexKind::None, self.numbers.kind()),
            src_region: self.buffer.handle().0,
            src_offset: self.buffer_offset,
            src_stride: self.buffer_stride,
            dst_region: self.table.handle().0,
            dst_offset: self.table_offset,
            dst_stride: self.table_stride,
            ..self.common()
        }
    }

    fn common(&self) -> Descriptor {
        Descriptor {
            flags: self.missing.flag(),
            len: self.row_bytes,
            count: self.count,
            index_region: self.index.handle().0,
            index_offset: self.index_offset,
            ..Descriptor::ZERO
        }
    }
}

/// Blocks to blocks, by number on both sides: pages of a KV cache into the pages of another one.
///
/// ```no_run
/// # use scatter_ring::client::{Batch, BatchError, Blocks, Region};
/// # fn example(mut batch: Batch<'_>, cache: &Region, mine: &Region, index: &Region) -> Result<(), BatchError> {
/// // Blocks 3, 9 and 4 to the places 0, 1 and 7: the numbers of both sides lie one behind the other.
/// let numbers: Vec<u8> = [3u32, 9, 4, 0, 1, 7].iter().flat_map(|number| number.to_le_bytes()).collect();
/// index.write_at(0, &numbers).unwrap();
/// batch.read_blocks(&Blocks::new(cache, mine, 64 << 10, index, 3))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    /// Where from.
    pub src: &'a Region,
    /// Where its block 0 starts.
    pub src_offset: u64,
    /// Bytes from one block to the next there.
    pub src_stride: u32,
    /// Where to.
    pub dst: &'a Region,
    /// Where its block 0 starts.
    pub dst_offset: u64,
    /// Bytes from one block to the next there, at least `block_bytes`.
    pub dst_stride: u32,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Where the block numbers are: `count` of the source and then, without a gap, `count` of the destination. They must
    /// stay as they are until the batch is done.
    pub index: &'a Region,
    /// Where the first number is. Both arrays must be aligned to the size of a number.
    pub index_offset: u64,
    /// How they are written.
    pub numbers: RowNumbers,
    /// How many blocks.
    pub count: u32,
    /// What a source number of all ones means.
    pub missing: Missing,
}

impl<'a> Blocks<'a> {
    /// `count` blocks by `u32` numbers, everything packed and starting at 0.
    #[must_use]
    pub fn new(src: &'a Region, dst: &'a Region, block_bytes: u32, index: &'a Region, count: u32) -> Blocks<'a> {
        Blocks {
            src,
            src_offset: 0,
            src_stride: block_bytes,
            dst,
            dst_offset: 0,
            dst_stride: block_bytes,
            block_bytes,
            index,
            index_offset: 0,
            numbers: RowNumbers::U32,
            count,
            missing: Missing::Refuse,
        }
    }

    pub(super) fn descriptor(&self, opcode: Opcode) -> Descriptor {
        Descriptor {
            opcode: opcode.0,
            index_kind: IndexKind::pack(self.numbers.kind(), self.numbers.kind()),
            flags: self.missing.flag(),
            len: self.block_bytes,
            src_region: self.src.handle().0,
            src_offset: self.src_offset,
            src_stride: self.src_stride,
            dst_region: self.dst.handle().0,
            dst_offset: self.dst_offset,
            dst_stride: self.dst_stride,
            count: self.count,
            index_region: self.index.handle().0,
            index_offset: self.index_offset,
            ..Descriptor::ZERO
        }
    }
}

/// Ranges of any lengths, anywhere on both sides: the members of a stored object.
///
/// ```no_run
/// # use scatter_ring::client::{Batch, BatchError, Ranges, Region};
/// # use ring_abi::FragmentRecord;
/// # fn example(mut batch: Batch<'_>, object: &Region, mine: &Region, records: &Region) -> Result<(), BatchError> {
/// // 5 bytes from 100 to 0, and 7 bytes from 4,000 to 8.
/// for (i, (src, dst, len)) in [(100, 0, 5), (4_000, 8, 7)].into_iter().enumerate() {
///     let record = FragmentRecord { src, dst, len, reserved: 0 };
///     records.write_at(24 * i as u64, &record.to_words().map(u64::to_le_bytes).concat()).unwrap();
/// }
/// batch.read_ranges(&Ranges::new(object, mine, records, 2))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Ranges<'a> {
    /// Where from.
    pub src: &'a Region,
    /// What the records' `src` counts from.
    pub src_offset: u64,
    /// Where to.
    pub dst: &'a Region,
    /// What the records' `dst` counts from.
    pub dst_offset: u64,
    /// Where the [`FragmentRecord`](ring_abi::FragmentRecord)s are. They must stay as they are until the batch is done.
    pub records: &'a Region,
    /// Where the first one is, a multiple of 8.
    pub records_offset: u64,
    /// How many ranges.
    pub count: u32,
}

impl<'a> Ranges<'a> {
    /// `count` ranges, everything starting at 0.
    #[must_use]
    pub fn new(src: &'a Region, dst: &'a Region, records: &'a Region, count: u32) -> Ranges<'a> {
        Ranges { src, src_offset: 0, dst, dst_offset: 0, records, records_offset: 0, count }
    }

    pub(super) fn descriptor(&self, opcode: Opcode) -> Descriptor {
        Descriptor {
            opcode: opcode.0,
            index_kind: IndexKind::pack(IndexKind::Fragments, IndexKind::Fragments),
            src_region: self.src.handle().0,
            src_offset: self.src_offset,
            dst_region: self.dst.handle().0,
            dst_offset: self.dst_offset,
            count: self.count,
            index_region: self.records.handle().0,
            index_offset: self.records_offset,
            ..Descriptor::ZERO
        }
    }
}

/// `count` pieces of `len` bytes at even distances on both sides.
#[derive(Clone, Copy, Debug)]
pub struct Tile<'a> {
    /// Where from.
    pub src: &'a Region,
    /// Where the first piece starts there.
    pub src_offset: u64,
    /// Bytes from one piece to the next there.
    pub src_stride: u32,
    /// Where to.
    pub dst: &'a Region,
    /// Where the first piece lands there.
    pub dst_offset: u64,
    /// Bytes from one piece to the next there, at least `len`.
    pub dst_stride: u32,
    /// Bytes of a piece.
    pub len: u32,
    /// How many pieces.
    pub count: u32,
}

impl Tile<'_> {
    pub(super) fn descriptor(&self, opcode: Opcode) -> Descriptor {
        Descriptor {
            opcode: opcode.0,
            len: self.len,
            src_region: self.src.handle().0,
            src_offset: self.src_offset,
            src_stride: self.src_stride,
            dst_region: self.dst.handle().0,
            dst_offset: self.dst_offset,
            dst_stride: self.dst_stride,
            count: self.count,
            ..Descriptor::ZERO
        }
    }
}
