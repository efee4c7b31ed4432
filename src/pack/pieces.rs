//! Pieces and staging slots: the list that an owner gets, and the copies on both sides of a slot.

use super::Piece;
use crate::plan::Refusal;
use crate::region::copy::{self, ROW_MAX, RowPair, RowQueue};
use crate::region::{Region, Rights};
use ring_abi::staged::PIECES_MAX;
use ring_abi::{Command, CommandOp, PieceRecord, Status};

/// A run of a chunk's bytes that is contiguous where it is not in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    at: u64,
    len: u32,
    zero: bool,
}

/// Where the bytes of a chunk are on one side of a copy.
#[derive(Clone, Copy, Debug)]
pub enum Side<P> {
    /// One behind the other, in a slot.
    Slot(P),
    /// Where each segment says, from the base of a region.
    Region(P),
}

/// The segments of a chunk for a copy between its slot and a mapped region, or between two slots if neither is mapped.
/// Replaces what is in `out`.
pub fn segments(pieces: &[Piece], src_is_mapped: bool, dst_is_mapped: bool, out: &mut Vec<Segment>) {
    out.clear();
    let mut in_slot = 0;
    for piece in pieces {
        let at = match (src_is_mapped && !piece.zero, dst_is_mapped) {
            (true, _) => piece.src,
            (false, true) => piece.dst,
            (false, false) => in_slot,
        };
        in_slot += u64::from(piece.len);
        match out.last_mut() {
            Some(last) if last.zero == piece.zero && last.at + u64::from(last.len) == at => last.len += piece.len,
            _ => out.push(Segment { at, len: piece.len, zero: piece.zero }),
        }
    }
}

/// Copies a chunk's segments, and writes its zeros. A slot that an owner has packed has no zeros in it, a slot that it is
/// to unpack has them.
///
/// # Safety
/// Each side is mapped for as many bytes as the segments have, or for every segment of them, for as long as the call
/// takes, the destination for writing.
pub unsafe fn copy_segments(src: Side<*const u8>, dst: Side<*mut u8>, segments: &[Segment], queue: &mut RowQueue) {
    let (mut read, mut written) = (0, 0);
    for segment in segments {
        let to = match dst {
            Side::Slot(slot) => slot.wrapping_add(written),
            Side::Region(base) => base.wrapping_add(segment.at as usize),
        };
        let len = segment.len as usize;
        written += len;
        if segment.zero {
            // SAFETY: the caller's promise.
            unsafe { copy::zero_range(to, len) };
            continue;
        }
        let from = match src {
            Side::Slot(slot) => slot.wrapping_add(read),
            Side::Region(base) => base.wrapping_add(segment.at as usize),
        };
        read += len;
        // SAFETY: the caller's promise, for the queue until it is flushed below.
        unsafe { copy_piece(from, to, segment.len, queue) };
    }
    // SAFETY: as above.
    unsafe { queue.flush() };
}

/// # Safety
/// Both ends are mapped until the queue is flushed, and nobody has a reference to the destination.
pub(super) unsafe fn copy_piece(from: *const u8, to: *mut u8, len: u32, queue: &mut RowQueue) {
    if len as usize <= ROW_MAX {
        // SAFETY: the caller's promise.
        unsafe { queue.push(from, to, len) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { copy::copy_range(from, to, len as usize) };
    }
}

/// Writes an owner's list of one side of a chunk, and says how it is to be read: bytes of every piece (0: records), and
/// how many pieces. Zeros have no source, so that the source's list is without them.
pub fn owner_list(pieces: &[Piece], is_source: bool, words: &mut Vec<u64>) -> (u32, u32) {
    words.clear();
    let listed = pieces.iter().filter(|piece| !is_source || !piece.zero);
    let offset = |piece: &Piece| if is_source { piece.src } else { piece.dst };
    let first_bytes = listed.clone().next().map_or(0, |piece| piece.len);
    if listed.clone().all(|piece| piece.len == first_bytes) {
        words.extend(listed.map(offset));
        return (first_bytes, words.len() as u32);
    }
    for piece in listed {
        words.extend(PieceRecord { offset: offset(piece), len: piece.len, reserved: 0 }.to_words());
    }
    (0, words.len() as u32 / 2)
}

/// Carries commands out, in the process that owns the memory. Private memory for one window of a list.
#[derive(Debug)]
pub struct Packer {
    words: Box<[u64; WORDS]>,
    rows: Box<[RowPair; WORDS]>,
    /// Empty between commands.
    queue: RowQueue,
}

/// List words copied at a time.
const WORDS: usize = 1024;

impl Default for Packer {
    fn default() -> Self {
        Packer { words: Box::new([0; WORDS]), rows: Box::new([RowPair::default(); WORDS]), queue: RowQueue::new() }
    }
}

impl Packer {
    /// Packs or unpacks. Each word of the list is copied once and checked against the region and the slot.
    ///
    /// # Errors
    /// What is wrong with the command or its list; pieces before the wrong one may have been copied.
    ///
    /// # Safety
    /// `slot` is mapped for reading and writing for `slot_bytes` bytes, `list` is mapped for reading for
    /// [`LIST_BYTES`](ring_abi::staged::LIST_BYTES) bytes and aligned to 8. Nobody has a Rust reference to the region's
    /// memory or the slot's that this would change.
    pub unsafe fn run(
        &mut self,
        command: &Command,
        region: &Region,
        slot: *mut u8,
        slot_bytes: u32,
        list: *const u8,
    ) -> Result<(), Refusal> {
        let refuse = |status, detail: u64| Err(Refusal { status, piece: 0, detail });
        let needed = match command.op {
            CommandOp::PACK => Rights::READ,
            CommandOp::UNPACK => Rights::WRITE,
            CommandOp(other) => return refuse(Status::INVALID_OPCODE, other.into()),
        };
        if !region.rights().covers(needed) {
            return refuse(Status::NO_RIGHT, command.region.into());
        }
        let equal_bytes = u64::from(command.count) * u64::from(command.piece_bytes);
        if command.count > PIECES_MAX || equal_bytes > slot_bytes.into() {
            return refuse(Status::INVALID_COUNT, command.count.into());
        }
        // SAFETY: the caller's promise; count and bytes have been checked.
        unsafe {
            match command.piece_bytes {
                0 => self.records(command, region, slot, slot_bytes, list),
                _ => self.equal(command, region, slot, list),
            }
        }
    }

    /// # Safety
    /// As [`run`](Self::run), for pieces of one length that all lie in the slot and in the list.
    unsafe fn equal(
        &mut self,
        command: &Command,
        region: &Region,
        slot: *mut u8,
        list: *const u8,
    ) -> Result<(), Refusal> {
        let len = u64::from(command.piece_bytes);
        let (count, mut from) = (command.count as usize, 0);
        while from < count {
            let n = WORDS.min(count - from);
            let words = &mut self.words[..n];
            // SAFETY: inside the list.
            unsafe { copy::load_u64s(list.add(8 * from), words) };
            if let Some(i) = words.iter().position(|offset| !fits(*offset, len, region)) {
                return Err(outside(from + i, words[i]));
            }
            let base = from as u64 * len;
            let pack = command.op == CommandOp::PACK;
            for ((row, offset), in_slot) in self.rows.iter_mut().zip(words).zip((0..).map(|i| base + i * len)) {
                *row =
                    if pack { RowPair { src: *offset, dst: in_slot } } else { RowPair { src: in_slot, dst: *offset } };
            }
            let (src, dst) = if pack { (region.as_ptr(), slot) } else { (slot, region.as_ptr()) };
            // SAFETY: the offsets have been checked against the region, and all pieces lie in the slot.
            unsafe { copy::copy_rows(src, dst, &self.rows[..n], len as usize) };
            from += n;
        }
        Ok(())
    }

    /// # Safety
    /// As [`run`](Self::run), for a list of records.
    unsafe fn records(
        &mut self,
        command: &Command,
        region: &Region,
        slot: *mut u8,
        slot_bytes: u32,
        list: *const u8,
    ) -> Result<(), Refusal> {
        let mut in_slot = 0u32;
        let (count, mut from) = (command.count as usize, 0);
        let mut outcome = Ok(());
        'all: while from < count {
            let n = (WORDS / 2).min(count - from);
            // SAFETY: inside the list.
            unsafe { copy::load_u64s(list.add(16 * from), &mut self.words[..2 * n]) };
            for i in 0..n {
                let record = PieceRecord::from_words([self.words[2 * i], self.words[2 * i + 1]]);
                let end = in_slot.checked_add(record.len).filter(|end| *end <= slot_bytes);
                let inside = record.reserved == 0 && fits(record.offset, record.len.into(), region);
                let Some(end) = end.filter(|_| inside) else {
                    outcome = Err(outside(from + i, record.offset));
                    break 'all;
                };
                let there = region.as_ptr().wrapping_add(record.offset as usize);
                let here = slot.wrapping_add(in_slot as usize);
                let (src, dst) = if command.op == CommandOp::PACK { (there, here) } else { (here, there) };
                // SAFETY: just checked on both sides; flushed below.
                unsafe { copy_piece(src, dst, record.len, &mut self.queue) };
                in_slot = end;
            }
            from += n;
        }
        // SAFETY: as above.
        unsafe { self.queue.flush() };
        outcome
    }
}

fn fits(offset: u64, len: u64, region: &Region) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= region.bytes())
}

fn outside(piece: usize, offset: u64) -> Refusal {
    Refusal { status: Status::OUT_OF_RANGE, piece: piece as u32, detail: offset }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 64;
    const SLOT_BYTES: u32 = 128;

    /// Runs a command on a region of 64 bytes that all are 7 and a slot of 128 bytes that all are 9, and gives both.
    fn run(command: Command, rights: Rights, list: &[u64]) -> (Result<(), Refusal>, [u8; LEN], [u8; 128]) {
        let (mut memory, mut slot) = ([7; LEN], [9; SLOT_BYTES as usize]);
        let mut words = vec![0; ring_abi::staged::LIST_BYTES / 8];
        words[..list.len()].copy_from_slice(list);
        // SAFETY: region, slot and list are memory of this call, which nothing else refers to meanwhile.
        let outcome = unsafe {
            let region = Region::adopt(memory.as_mut_ptr(), LEN as u64, rights).unwrap();
            Packer::default().run(&command, &region, slot.as_mut_ptr(), SLOT_BYTES, words.as_ptr().cast())
        };
        (outcome, memory, slot)
    }

    fn pack(piece_bytes: u32, count: u32) -> Command {
        Command { op: CommandOp::PACK, slot: 0, chunk: 0, region: 5, piece_bytes, count }
    }

    fn record(offset: u64, len: u32, reserved: u32) -> [u64; 2] {
        PieceRecord { offset, len, reserved }.to_words()
    }

    #[test]
    fn pieces_outside_the_region_or_the_slot_are_refused_by_number_and_not_touched() {
        let refused = |status, piece, detail| Err(Refusal { status, piece, detail });
        let outside = |piece, detail| refused(Status::OUT_OF_RANGE, piece, detail);
        for op in [CommandOp::PACK, CommandOp::UNPACK] {
            let run = |command: Command, list: &[u64]| run(Command { op, ..command }, Rights::READ_WRITE, list).0;
            assert_eq!(run(pack(8, 3), &[0, 56, 57]), outside(2, 57));
            assert_eq!(run(pack(8, 1), &[u64::MAX - 3]), outside(0, u64::MAX - 3));
            assert_eq!(run(pack(65, 1), &[0]), outside(0, 0));
            assert_eq!(run(pack(8, 17), &[0; 17]), refused(Status::INVALID_COUNT, 0, 17));
            assert_eq!(run(pack(0, 4097), &[]), refused(Status::INVALID_COUNT, 0, 4097));
            assert_eq!(run(pack(u32::MAX, u32::MAX), &[]), refused(Status::INVALID_COUNT, 0, u32::MAX.into()));
            let list = |last| [record(0, 64, 0), record(60, 4, 0), last].concat();
            assert_eq!(run(pack(0, 3), &list(record(61, 4, 0))), outside(2, 61));
            assert_eq!(run(pack(0, 3), &list(record(0, 61, 0))), outside(2, 0));
            assert_eq!(run(pack(0, 3), &list(record(0, 4, 1))), outside(2, 0));
            assert_eq!(run(pack(0, 3), &list(record(u64::MAX, 1, 0))), outside(2, u64::MAX));
            assert_eq!(run(pack(0, 3), &list(record(0, 60, 0))), Ok(()));
        }
        for (op, rights) in [(CommandOp::PACK, Rights::WRITE), (CommandOp::UNPACK, Rights::READ)] {
            let (outcome, memory, slot) = run(Command { op, ..pack(8, 1) }, rights, &[0]);
            assert_eq!(outcome, refused(Status::NO_RIGHT, 0, 5));
            assert!(memory == [7; LEN] && slot == [9; 128]);
        }
        let unknown = Command { op: CommandOp(3), ..pack(8, 1) };
        assert_eq!(run(unknown, Rights::READ_WRITE, &[0]).0, refused(Status::INVALID_OPCODE, 0, 3));
    }

    #[test]
    fn lists_are_short_where_lengths_are_equal_and_leave_zeros_out_at_the_source() {
        let piece = |src, dst, len, zero| Piece { src, dst, len, zero };
        let mut pieces = vec![piece(5, 100, 8, false), piece(0, 200, 8, true), piece(9, 300, 8, false)];
        let mut words = Vec::new();
        assert_eq!((owner_list(&pieces, true, &mut words), &words[..]), ((8, 2), &[5, 9][..]));
        assert_eq!((owner_list(&pieces, false, &mut words), &words[..]), ((8, 3), &[100, 200, 300][..]));
        pieces[2].len = 4;
        assert_eq!(owner_list(&pieces, true, &mut words), (0, 2));
        assert_eq!(words, [record(5, 8, 0), record(9, 4, 0)].concat());
        pieces.retain(|piece| piece.zero);
        assert_eq!((owner_list(&pieces, true, &mut words), words.len()), ((0, 0), 0));
    }
}
