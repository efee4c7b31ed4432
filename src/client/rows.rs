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
            index_kind: IndexKind::pack(self.kind(), IndexKind::None),
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
            index_kind: IndexKind::pack(IndexKind::None, self.kind()),
            src_region: self.buffer.handle().0,
            src_offset: self.buffer_offset,
            src_stride: self.buffer_stride,
            dst_region: self.table.handle().0,
            dst_offset: self.table_offset,
            dst_stride: self.table_stride,
            ..self.common()
        }
    }

    fn kind(&self) -> IndexKind {
        match self.numbers {
            RowNumbers::U32 => IndexKind::U32,
            RowNumbers::U64 => IndexKind::U64,
        }
    }

    fn common(&self) -> Descriptor {
        Descriptor {
            flags: match self.missing {
                Missing::Refuse => 0,
                Missing::Zero => Flags::MISSING_ZERO,
                Missing::Skip => Flags::MISSING_SKIP,
            },
            len: self.row_bytes,
            count: self.count,
            index_region: self.index.handle().0,
            index_offset: self.index_offset,
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
