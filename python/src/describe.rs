//! From arguments to descriptors. Whatever can be wrong with them is found here, before anything is submitted.

use crate::array::Array;
use crate::errors::Failure;
use crate::memory::Memory;
use crate::numbers::{Filling, Integers, Lengths, Records};
use crate::session::Session;
use crate::side::{Pieces, Side, check_dtypes};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use ring_abi::{Descriptor, Entry, Flags, IndexKind, NOTIFY_BYTES_MAX, Opcode, Status};
use std::sync::Arc;

/// One operation of a batch.
pub enum Op {
    /// Of no rows, or no bytes.
    Nothing,
    Range {
        write: bool,
        src: Arc<Memory>,
        src_offset: u64,
        dst: Arc<Memory>,
        dst_offset: u64,
        bytes: u64,
    },
    Transfer {
        descriptor: Descriptor,
        src: Arc<Memory>,
        dst: Arc<Memory>,
        index: Index,
    },
    /// Ends its batch.
    Notify {
        other: Arc<Memory>,
        offset: u64,
        user_data: u64,
        payload: Vec<u8>,
    },
    Raw(Raw),
}

/// Where the numbers of a transfer are.
pub enum Index {
    None,
    InPlace(Arc<Memory>),
    /// Nowhere yet.
    Filling(Filling),
}

/// Descriptors that the caller has made.
pub struct Raw {
    pub array: Array,
    pub count: usize,
    /// Whose handles they carry.
    pub memories: Vec<Arc<Memory>>,
}

/// Which way bytes go, and so which side has to be this process's to be useful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Read,
    Write,
}

impl Way {
    fn opcode(self) -> u8 {
        if self == Way::Read { Opcode::READ.0 } else { Opcode::WRITE.0 }
    }
}

/// What the operations by number have in common.
pub struct Distances {
    pub offset: u64,
    pub stride: Option<u64>,
}

/// From `missing=`.
pub fn missing_flag(missing: Option<&Bound<'_, PyAny>>) -> PyResult<u16> {
    let Some(missing) = missing else { return Ok(0) };
    match missing.extract::<String>().as_deref() {
        Ok("zero") => Ok(Flags::MISSING_ZERO),
        Ok("skip") => Ok(Flags::MISSING_SKIP),
        _ => Err(PyValueError::new_err("missing: scatter_ring.ZERO, scatter_ring.SKIP or None")),
    }
}

/// Rows of `table` by number, and the buffer where they lie in the order of the numbers.
pub fn rows(
    session: &Arc<Session>,
    way: Way,
    (table, ids, distances): (&Bound<'_, PyAny>, &Bound<'_, PyAny>, &Distances),
    buffer: &Bound<'_, PyAny>,
    row_bytes: Option<u64>,
    missing: u16,
) -> PyResult<Op> {
    let buffer_name = if way == Way::Read { "out" } else { "rows" };
    let table = Side::new(session, table, "table", way == Way::Write)?;
    let buffer = Side::new(session, buffer, buffer_name, way == Way::Read)?;
    check_dtypes(&table, &buffer)?;
    let ids = Integers::of(ids, "ids")?;
    let row_bytes = piece_bytes("row_bytes", row_bytes, &table, &buffer)?;
    let in_table = table.pieces(row_bytes, distances.offset, distances.stride)?;
    let in_buffer = buffer.pieces(row_bytes, 0, None)?;
    check_room(&buffer, &in_buffer, ids.count)?;
    if !table.is_whole() {
        ids.check_below(in_table.count, missing != 0, "table")?;
    }
    if ids.count == 0 {
        return Ok(Op::Nothing);
    }
    let (kind, count) = (ids.index_kind(), ids.count);
    let (index, index_offset) = index_of(session, ids)?;
    let descriptor = Descriptor { flags: missing, index_offset, count: count as u32, ..Descriptor::ZERO };
    Ok(match way {
        Way::Read => transfer(way, descriptor, [kind, IndexKind::None], (table, in_table), (buffer, in_buffer), index),
        Way::Write => transfer(way, descriptor, [IndexKind::None, kind], (buffer, in_buffer), (table, in_table), index),
    })
}

/// Blocks by number on both sides.
pub fn blocks(
    session: &Arc<Session>,
    way: Way,
    (src, src_ids, src_distances): (&Bound<'_, PyAny>, &Bound<'_, PyAny>, &Distances),
    (dst, dst_ids, dst_distances): (&Bound<'_, PyAny>, &Bound<'_, PyAny>, &Distances),
    block_bytes: Option<u64>,
    missing: u16,
) -> PyResult<Op> {
    let (src, dst) = (Side::new(session, src, "src", false)?, Side::new(session, dst, "dst", true)?);
    check_dtypes(&src, &dst)?;
    let (src_ids, dst_ids) = (Integers::of(src_ids, "src_ids")?, Integers::of(dst_ids, "dst_ids")?);
    if src_ids.count != dst_ids.count {
        let (from, to) = (src_ids.count, dst_ids.count);
        return Err(PyValueError::new_err(format!("{from} src_ids and {to} dst_ids: each block has one of both")));
    }
    let block_bytes = piece_bytes("block_bytes", block_bytes, &src, &dst)?;
    let in_src = src.pieces(block_bytes, src_distances.offset, src_distances.stride)?;
    let in_dst = dst.pieces(block_bytes, dst_distances.offset, dst_distances.stride)?;
    if !src.is_whole() {
        src_ids.check_below(in_src.count, missing != 0, "src")?;
    }
    if !dst.is_whole() {
        dst_ids.check_below(in_dst.count, false, "dst")?;
    }
    if src_ids.count == 0 {
        return Ok(Op::Nothing);
    }
    let (kinds, count) = ([src_ids.index_kind(), dst_ids.index_kind()], src_ids.count as u32);
    let filling = Filling::Numbers(vec![src_ids, dst_ids]);
    let descriptor = Descriptor { flags: missing, index_offset: filling.offset(), count, ..Descriptor::ZERO };
    Ok(transfer(way, descriptor, kinds, (src, in_src), (dst, in_dst), Index::Filling(filling)))
}

/// Ranges of any lengths; without offsets they lie one behind the other.
pub fn ranges(
    session: &Arc<Session>,
    way: Way,
    (src, src_offsets): (&Bound<'_, PyAny>, Option<&Bound<'_, PyAny>>),
    (dst, dst_offsets): (&Bound<'_, PyAny>, Option<&Bound<'_, PyAny>>),
    lengths: &Bound<'_, PyAny>,
) -> PyResult<Op> {
    let (src, dst) = (Side::new(session, src, "src", false)?, Side::new(session, dst, "dst", true)?);
    let src_offsets = src_offsets.map(|offsets| Integers::of(offsets, "src_offsets")).transpose()?;
    let dst_offsets = dst_offsets.map(|offsets| Integers::of(offsets, "dst_offsets")).transpose()?;
    let lengths = match lengths.extract::<u64>() {
        Ok(length) => Lengths::All(length),
        Err(_) => Lengths::Each(Integers::of(lengths, "lengths")?),
    };
    let each = if let Lengths::Each(lengths) = &lengths { Some(lengths) } else { None };
    let given = [src_offsets.as_ref(), dst_offsets.as_ref(), each];
    let counts: Vec<usize> = given.into_iter().flatten().map(|numbers| numbers.count).collect();
    let Some(&count) = counts.first() else {
        return Err(PyValueError::new_err("how many ranges? Give src_offsets, dst_offsets or lengths as an array"));
    };
    if counts.iter().any(|other| *other != count) {
        return Err(PyValueError::new_err("src_offsets, dst_offsets and lengths: not of one length"));
    }
    if count == 0 {
        return Ok(Op::Nothing);
    }
    let (src_bytes, dst_bytes) = (src.bytes()?, dst.bytes()?);
    let records = Records { count, src_offsets, dst_offsets, lengths, src_bytes, dst_bytes };
    let descriptor = Descriptor {
        opcode: way.opcode(),
        index_kind: IndexKind::pack(IndexKind::Fragments, IndexKind::Fragments),
        src_region: src.memory.region.handle().0,
        src_offset: src.offset,
        dst_region: dst.memory.region.handle().0,
        dst_offset: dst.offset,
        count: count as u32,
        ..Descriptor::ZERO
    };
    let index = Index::Filling(Filling::Records(Box::new(records)));
    Ok(Op::Transfer { descriptor, src: src.memory, dst: dst.memory, index })
}

/// Pieces of one size at even distances.
pub fn tile(
    session: &Arc<Session>,
    way: Way,
    (src, src_distances): (&Bound<'_, PyAny>, &Distances),
    (dst, dst_distances): (&Bound<'_, PyAny>, &Distances),
    count: Option<u64>,
    bytes: Option<u64>,
) -> PyResult<Op> {
    let (src, dst) = (Side::new(session, src, "src", false)?, Side::new(session, dst, "dst", true)?);
    check_dtypes(&src, &dst)?;
    let bytes = piece_bytes("piece_bytes", bytes, &src, &dst)?;
    let in_src = src.pieces(bytes, src_distances.offset, src_distances.stride)?;
    let in_dst = dst.pieces(bytes, dst_distances.offset, dst_distances.stride)?;
    let count = match count {
        Some(count) => count,
        None => match (has_rows(&src), has_rows(&dst)) {
            (true, true) if in_src.count != in_dst.count => {
                return Err(PyValueError::new_err(format!(
                    "src has {} pieces of {bytes} B, dst {}: say which count is meant",
                    in_src.count, in_dst.count
                )));
            }
            (true, _) => in_src.count,
            (_, true) => in_dst.count,
            _ => return Err(PyValueError::new_err("count is needed: neither src nor dst is an array of pieces")),
        },
    };
    check_room(&src, &in_src, count as usize)?;
    check_room(&dst, &in_dst, count as usize)?;
    let Ok(count) = u32::try_from(count) else {
        return Err(PyValueError::new_err(format!("{count} pieces: one tile has at most 2**32 - 1")));
    };
    if count == 0 {
        return Ok(Op::Nothing);
    }
    let descriptor = Descriptor { count, ..Descriptor::ZERO };
    Ok(transfer(way, descriptor, [IndexKind::None; 2], (src, in_src), (dst, in_dst), Index::None))
}

/// One range.
pub fn range(
    session: &Arc<Session>,
    way: Way,
    (src, src_offset): (&Bound<'_, PyAny>, u64),
    (dst, dst_offset): (&Bound<'_, PyAny>, u64),
    bytes: Option<u64>,
) -> PyResult<Op> {
    let (src, dst) = (Side::new(session, src, "src", false)?, Side::new(session, dst, "dst", true)?);
    let rest = |side: &Side, offset: u64| {
        let all = side.bytes()?;
        let rest = all.checked_sub(offset);
        rest.ok_or_else(|| PyValueError::new_err(format!("{}: offset {offset} of {all} B", side.what)))
    };
    let (src_rest, dst_rest) = (rest(&src, src_offset)?, rest(&dst, dst_offset)?);
    let bytes = bytes.unwrap_or(if way == Way::Read { dst_rest } else { src_rest });
    for (side, offset, rest) in [(&src, src_offset, src_rest), (&dst, dst_offset, dst_rest)] {
        if bytes > rest {
            let all = rest + offset;
            return Err(PyValueError::new_err(format!("{}: too short: {bytes} B at {offset} of {all} B", side.what)));
        }
    }
    if bytes == 0 {
        return Ok(Op::Nothing);
    }
    let (src_offset, dst_offset) = (src.offset + src_offset, dst.offset + dst_offset);
    let (src, dst) = (src.memory, dst.memory);
    Ok(Op::Range { write: way == Way::Write, src, src_offset, dst, dst_offset, bytes })
}

/// A message to the client that exported `other`.
pub fn notify(
    session: &Arc<Session>,
    other: &Bound<'_, PyAny>,
    offset: u64,
    user_data: u64,
    payload: &[u8],
) -> PyResult<Op> {
    // Any right will do.
    let other = Side::new(session, other, "region", false).or_else(|_| Side::new(session, other, "region", true))?;
    if payload.len() > NOTIFY_BYTES_MAX as usize {
        let bytes = payload.len();
        return Err(PyValueError::new_err(format!("payload: {bytes} B; at most {NOTIFY_BYTES_MAX} are carried")));
    }
    Ok(Op::Notify { other: other.memory, offset, user_data, payload: payload.to_vec() })
}

/// Descriptors of 64 bytes each.
pub fn raw(session: &Arc<Session>, descriptors: &Bound<'_, PyAny>) -> PyResult<Op> {
    let array = Array::of(descriptors, "descriptors")?;
    let bytes = array.contiguous_bytes("descriptors")?;
    let (shape, item_bytes) = (&array.layout.shape, array.layout.item_bytes);
    if item_bytes != size_of::<Entry>() && !(item_bytes == 1 && shape.last() == Some(&size_of::<Entry>())) {
        return Err(PyTypeError::new_err("descriptors: an array of scatter_ring.DESCRIPTOR_DTYPE, 64 B each"));
    }
    let count = bytes / size_of::<Entry>();
    if count == 0 {
        return Ok(Op::Nothing);
    }
    let mut raw = Raw { array, count, memories: Vec::new() };
    raw.resolve(session)?;
    Ok(Op::Raw(raw))
}

impl Raw {
    /// One of them. Looked at once: another thread may write to the array meanwhile.
    pub fn entry(&self, which: usize) -> Entry {
        debug_assert!(which < self.count);
        // SAFETY: the array has `count` entries, packed, and is kept.
        unsafe { (self.array.address as *const Entry).add(which).read_unaligned() }
    }

    /// Finds the memory that they name.
    fn resolve(&mut self, session: &Arc<Session>) -> PyResult<()> {
        let mut extension = false;
        for which in 0..self.count {
            let descriptor = Descriptor::from_entry(&self.entry(which));
            if std::mem::replace(&mut extension, false) {
                continue;
            }
            extension = descriptor.flags & Flags::EXTENDED != 0;
            let last = which + 1 + usize::from(extension) >= self.count;
            if descriptor.flags & Flags::LAST != 0 && !last {
                return Err(PyValueError::new_err(format!(
                    "descriptors[{which}] carries LAST: all of them are one batch, submit others for themselves"
                )));
            }
            let named = [descriptor.src_region, descriptor.dst_region, descriptor.index_region];
            for (handle, field) in named.into_iter().zip(["src_region", "dst_region", "index_region"]) {
                if handle == 0 || self.memories.iter().any(|memory| memory.region.handle().0 == handle) {
                    continue;
                }
                let found = session.memories.of_handle(handle).filter(|memory| !memory.is_closed());
                let text = || format!("descriptors[{which}].{field}: {handle} is no open memory of this client");
                self.memories.push(found.ok_or_else(|| Failure::region(Status::UNKNOWN_REGION, text()))?);
            }
        }
        if extension {
            return Err(PyValueError::new_err("the last descriptor is EXTENDED, and has no extension behind it"));
        }
        Ok(())
    }
}

fn has_rows(side: &Side) -> bool {
    side.layout.as_ref().is_some_and(|layout| layout.shape.len() >= 2)
}

/// The size of a row, block or piece: as given, else that of the side that has rows of one.
fn piece_bytes(name: &str, given: Option<u64>, a: &Side, b: &Side) -> PyResult<u64> {
    if let Some(bytes) = given {
        return if bytes > 0 { Ok(bytes) } else { Err(PyValueError::new_err(format!("{name}: 0"))) };
    }
    let sizes = [a, b].map(|side| has_rows(side).then(|| side.rows()).transpose().map(Option::flatten));
    let [of_a, of_b] = sizes;
    match (of_a?, of_b?) {
        (Some(in_a), Some(in_b)) if in_a.bytes != in_b.bytes => Err(PyValueError::new_err(format!(
            "{} has rows of {} B, {} of {} B",
            a.what, in_a.bytes, b.what, in_b.bytes
        ))),
        (Some(rows), _) | (_, Some(rows)) => Ok(rows.bytes as u64),
        _ => match (&a.layout, &b.layout) {
            // Two arrays of single elements.
            (Some(in_a), Some(in_b)) if in_a.item_bytes == in_b.item_bytes && a.dtype() == b.dtype() => {
                Ok(in_a.item_bytes as u64)
            }
            _ => Err(PyValueError::new_err(format!(
                "{name} is needed: neither {} nor {} is an array of two or more dimensions, whose rows would say it",
                a.what, b.what
            ))),
        },
    }
}

fn check_room(side: &Side, pieces: &Pieces, count: usize) -> PyResult<()> {
    if pieces.count >= count as u64 {
        return Ok(());
    }
    let (what, room, bytes) = (side.what, pieces.count, pieces.bytes);
    Err(PyValueError::new_err(format!("{what}: too short: room for {room} of {count} pieces of {bytes} B")))
}

fn index_of(session: &Arc<Session>, ids: Integers) -> PyResult<(Index, u64)> {
    Ok(match ids.in_place(session)? {
        Some((memory, offset)) => (Index::InPlace(memory), offset),
        None => (Index::Filling(Filling::Numbers(vec![ids])), 0),
    })
}

fn transfer(
    way: Way,
    descriptor: Descriptor,
    [src_kind, dst_kind]: [IndexKind; 2],
    (src, in_src): (Side, Pieces),
    (dst, in_dst): (Side, Pieces),
    index: Index,
) -> Op {
    let descriptor = Descriptor {
        opcode: way.opcode(),
        index_kind: IndexKind::pack(src_kind, dst_kind),
        len: in_src.bytes,
        src_region: src.memory.region.handle().0,
        src_offset: in_src.offset,
        src_stride: in_src.stride,
        dst_region: dst.memory.region.handle().0,
        dst_offset: in_dst.offset,
        dst_stride: in_dst.stride,
        ..descriptor
    };
    Op::Transfer { descriptor, src: src.memory, dst: dst.memory, index }
}
