//! The shapes that one descriptor can have, as structures of C.

use crate::args::given;
use crate::error::{Failure, invalid};
use crate::region::scatter_ring_region;
use ring_abi::{Descriptor, Flags, IndexKind, Opcode};

/// A row number of all ones is a number like any other: outside the table.
pub const SCATTER_RING_MISSING_REFUSE: u32 = 0;
/// A row number of all ones fills its row's place in the destination with 0.
pub const SCATTER_RING_MISSING_ZERO: u32 = 1;
/// A row number of all ones leaves its row's place in the destination as it is.
pub const SCATTER_RING_MISSING_SKIP: u32 = 2;

/// Rows of a table, named by an array of row numbers, and a buffer where they lie in the order of that array. Set what
/// is not 0; table, row_bytes, index, count and buffer are needed. Everything is in bytes.
#[repr(C)]
pub struct scatter_ring_rows<'a> {
    /// The table.
    pub table: Option<&'a scatter_ring_region>,
    /// Where its row 0 starts.
    pub table_offset: u64,
    /// From one row of the table to the next. 0: row_bytes.
    pub table_stride: u32,
    /// Of a row.
    pub row_bytes: u32,
    /// Where the row numbers are. They must stay as they are until the batch is done.
    pub index: Option<&'a scatter_ring_region>,
    /// Where the first row number is, a multiple of its size.
    pub index_offset: u64,
    /// How row numbers are written: SCATTER_RING_INDEX_KIND_U32 or SCATTER_RING_INDEX_KIND_U64, little-endian. 0: U32.
    pub numbers: u32,
    /// How many rows, at least 1.
    pub count: u32,
    /// The buffer.
    pub buffer: Option<&'a scatter_ring_region>,
    /// Where the first row lies in it.
    pub buffer_offset: u64,
    /// From one row of the buffer to the next. 0: row_bytes.
    pub buffer_stride: u32,
    /// What a row number of all ones means when rows are read: SCATTER_RING_MISSING_...
    pub missing: u32,
}

/// Blocks of one region to blocks of another, both by number: the pages of two paged KV caches, for example.
/// Everything is in bytes.
#[repr(C)]
pub struct scatter_ring_blocks<'a> {
    /// Where from.
    pub src: Option<&'a scatter_ring_region>,
    /// Where its block 0 starts.
    pub src_offset: u64,
    /// Where to.
    pub dst: Option<&'a scatter_ring_region>,
    /// Where its block 0 starts.
    pub dst_offset: u64,
    /// From one block to the next at the source. 0: block_bytes.
    pub src_stride: u32,
    /// From one block to the next at the destination, at least block_bytes. 0: block_bytes.
    pub dst_stride: u32,
    /// Of a block.
    pub block_bytes: u32,
    /// How many blocks, at least 1.
    pub count: u32,
    /// Where the block numbers are: `count` of the source, and behind them `count` of the destination. They must stay
    /// as they are until the batch is done.
    pub index: Option<&'a scatter_ring_region>,
    /// Where the first block number is, a multiple of its size.
    pub index_offset: u64,
    /// How block numbers are written: SCATTER_RING_INDEX_KIND_U32 or SCATTER_RING_INDEX_KIND_U64. 0: U32.
    pub numbers: u32,
    /// What a source number of all ones means: SCATTER_RING_MISSING_...
    pub missing: u32,
}

/// Ranges of any lengths, each described by a scatter_ring_fragment_record in memory. Everything is in bytes.
#[repr(C)]
pub struct scatter_ring_ranges<'a> {
    /// Where from.
    pub src: Option<&'a scatter_ring_region>,
    /// Added to every record's `src`.
    pub src_offset: u64,
    /// Where to.
    pub dst: Option<&'a scatter_ring_region>,
    /// Added to every record's `dst`.
    pub dst_offset: u64,
    /// Where the records are. They must stay as they are until the batch is done.
    pub records: Option<&'a scatter_ring_region>,
    /// Where the first record is, a multiple of 8.
    pub records_offset: u64,
    /// How many records, at least 1.
    pub count: u32,
    /// 0.
    pub reserved: u32,
}

/// Pieces at even distances on both sides: a tile of a matrix. Everything is in bytes, and a stride of 0 is a stride
/// of 0.
#[repr(C)]
pub struct scatter_ring_tile<'a> {
    /// Where from.
    pub src: Option<&'a scatter_ring_region>,
    /// Where the first piece starts there.
    pub src_offset: u64,
    /// Where to.
    pub dst: Option<&'a scatter_ring_region>,
    /// Where the first piece lands there.
    pub dst_offset: u64,
    /// From one piece to the next at the source.
    pub src_stride: u32,
    /// From one piece to the next at the destination, at least `len` if there are two.
    pub dst_stride: u32,
    /// Of a piece.
    pub len: u32,
    /// How many pieces, at least 1.
    pub count: u32,
}

/// A descriptor, and the regions whose handles it carries: source, destination, index.
pub struct Shape<'a> {
    pub descriptor: Descriptor,
    pub src: &'a scatter_ring_region,
    pub dst: &'a scatter_ring_region,
    pub index: Option<&'a scatter_ring_region>,
}

impl<'a> Shape<'a> {
    fn new(
        descriptor: Descriptor,
        src: &'a scatter_ring_region,
        dst: &'a scatter_ring_region,
        index: Option<&'a scatter_ring_region>,
    ) -> Shape<'a> {
        let handle = |region: &scatter_ring_region| region.0.region.handle().0;
        let descriptor = Descriptor {
            src_region: handle(src),
            dst_region: handle(dst),
            index_region: index.map_or(0, handle),
            ..descriptor
        };
        Shape { descriptor, src, dst, index }
    }
}

impl<'a> scatter_ring_rows<'a> {
    /// Out of the table into the buffer.
    pub fn reading(&self) -> Result<Shape<'a>, Failure> {
        let descriptor = Descriptor {
            opcode: Opcode::READ.0,
            index_kind: IndexKind::pack(index_kind(self.numbers)?, IndexKind::None),
            flags: missing_flag(self.missing)?,
            src_offset: self.table_offset,
            src_stride: or(self.table_stride, self.row_bytes),
            dst_offset: self.buffer_offset,
            dst_stride: or(self.buffer_stride, self.row_bytes),
            ..self.common()
        };
        let [table, buffer, index] = self.regions()?;
        Ok(Shape::new(descriptor, table, buffer, Some(index)))
    }

    /// Out of the buffer into the table.
    pub fn writing(&self) -> Result<Shape<'a>, Failure> {
        let descriptor = Descriptor {
            opcode: Opcode::WRITE.0,
            index_kind: IndexKind::pack(IndexKind::None, index_kind(self.numbers)?),
            flags: missing_flag(self.missing)?,
            src_offset: self.buffer_offset,
            src_stride: or(self.buffer_stride, self.row_bytes),
            dst_offset: self.table_offset,
            dst_stride: or(self.table_stride, self.row_bytes),
            ..self.common()
        };
        let [table, buffer, index] = self.regions()?;
        Ok(Shape::new(descriptor, buffer, table, Some(index)))
    }

    fn common(&self) -> Descriptor {
        Descriptor { len: self.row_bytes, count: self.count, index_offset: self.index_offset, ..Descriptor::ZERO }
    }

    fn regions(&self) -> Result<[&'a scatter_ring_region; 3], Failure> {
        Ok([given(self.table, "rows.table")?, given(self.buffer, "rows.buffer")?, given(self.index, "rows.index")?])
    }
}

impl<'a> scatter_ring_blocks<'a> {
    pub fn shape(&self, opcode: Opcode) -> Result<Shape<'a>, Failure> {
        let kind = index_kind(self.numbers)?;
        let descriptor = Descriptor {
            opcode: opcode.0,
            index_kind: IndexKind::pack(kind, kind),
            flags: missing_flag(self.missing)?,
            len: self.block_bytes,
            src_offset: self.src_offset,
            src_stride: or(self.src_stride, self.block_bytes),
            dst_offset: self.dst_offset,
            dst_stride: or(self.dst_stride, self.block_bytes),
            count: self.count,
            index_offset: self.index_offset,
            ..Descriptor::ZERO
        };
        let (src, dst) = (given(self.src, "blocks.src")?, given(self.dst, "blocks.dst")?);
        Ok(Shape::new(descriptor, src, dst, Some(given(self.index, "blocks.index")?)))
    }
}

impl<'a> scatter_ring_ranges<'a> {
    pub fn shape(&self, opcode: Opcode) -> Result<Shape<'a>, Failure> {
        let descriptor = Descriptor {
            opcode: opcode.0,
            index_kind: IndexKind::pack(IndexKind::Fragments, IndexKind::Fragments),
            src_offset: self.src_offset,
            dst_offset: self.dst_offset,
            count: self.count,
            index_offset: self.records_offset,
            ..Descriptor::ZERO
        };
        let (src, dst) = (given(self.src, "ranges.src")?, given(self.dst, "ranges.dst")?);
        Ok(Shape::new(descriptor, src, dst, Some(given(self.records, "ranges.records")?)))
    }
}

impl<'a> scatter_ring_tile<'a> {
    pub fn shape(&self, opcode: Opcode) -> Result<Shape<'a>, Failure> {
        let descriptor = Descriptor {
            opcode: opcode.0,
            len: self.len,
            src_offset: self.src_offset,
            src_stride: self.src_stride,
            dst_offset: self.dst_offset,
            dst_stride: self.dst_stride,
            count: self.count,
            ..Descriptor::ZERO
        };
        Ok(Shape::new(descriptor, given(self.src, "tile.src")?, given(self.dst, "tile.dst")?, None))
    }
}

/// One side of a range.
pub type Place<'a> = (&'a scatter_ring_region, u64);

/// Longest piece of a range, in bytes. Not for the header: that has what is `pub`.
pub(crate) const PIECE_BYTES: u32 = 1 << 30;

/// `len` bytes from one region to another.
pub fn range<'a>(opcode: Opcode, (src, src_offset): Place<'a>, (dst, dst_offset): Place<'a>, len: u32) -> Shape<'a> {
    let descriptor = Descriptor { opcode: opcode.0, len, count: 1, src_offset, dst_offset, ..Descriptor::ZERO };
    Shape::new(descriptor, src, dst, None)
}

/// The start of a range that is longer than one descriptor can say: a row of pieces, and how many bytes that is.
pub fn pieces<'a>(
    opcode: Opcode,
    (src, src_offset): Place<'a>,
    (dst, dst_offset): Place<'a>,
    len: u64,
) -> Result<(Shape<'a>, u64), Failure> {
    let pieces = len / u64::from(PIECE_BYTES);
    let count = u32::try_from(pieces).map_err(|_| invalid(format!("{len} bytes: more than a range can have")))?;
    let (src_stride, dst_stride) = (PIECE_BYTES, PIECE_BYTES);
    let row = Descriptor {
        count,
        src_stride,
        dst_stride,
        ..range(opcode, (src, src_offset), (dst, dst_offset), PIECE_BYTES).descriptor
    };
    Ok((Shape { descriptor: row, src, dst, index: None }, pieces * u64::from(PIECE_BYTES)))
}

fn or(stride: u32, packed: u32) -> u32 {
    if stride == 0 { packed } else { stride }
}

fn index_kind(numbers: u32) -> Result<IndexKind, Failure> {
    match numbers {
        0 => Ok(IndexKind::U32),
        kind if kind == IndexKind::U32 as u32 => Ok(IndexKind::U32),
        kind if kind == IndexKind::U64 as u32 => Ok(IndexKind::U64),
        other => Err(invalid(format!("numbers {other}: SCATTER_RING_INDEX_KIND_U32 or SCATTER_RING_INDEX_KIND_U64"))),
    }
}

fn missing_flag(missing: u32) -> Result<u16, Failure> {
    match missing {
        SCATTER_RING_MISSING_REFUSE => Ok(0),
        SCATTER_RING_MISSING_ZERO => Ok(Flags::MISSING_ZERO),
        SCATTER_RING_MISSING_SKIP => Ok(Flags::MISSING_SKIP),
        other => Err(invalid(format!("missing {other}: one of SCATTER_RING_MISSING_REFUSE, _ZERO, _SKIP"))),
    }
}
