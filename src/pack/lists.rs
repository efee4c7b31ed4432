//! Packing and unpacking by encoded lists: decoded, checked and copied in one pass.

use super::pieces::copy_piece;
use crate::plan::{Decoder, LIST_PIECES, Limits, Refusal, Section, WINDOW};
use crate::region::copy::{self, RowPair, RowQueue};
use crate::region::{Region, Rights};
use ring_abi::Status;

/// Follows lists of somebody who is not trusted. Private memory for one window of rows; allocated once.
#[derive(Debug)]
pub struct ListPacker {
    rows: Box<[RowPair; WINDOW]>,
    /// Empty between calls.
    queue: RowQueue,
}

impl Default for ListPacker {
    fn default() -> Self {
        ListPacker { rows: Box::new([RowPair::default(); WINDOW]), queue: RowQueue::new() }
    }
}

impl ListPacker {
    /// Copies the pieces of a list into a slot, one behind the other, and writes its zeros there. `region` finds the memory
    /// that a handle names. Gives the bytes in the slot.
    ///
    /// # Errors
    /// What is wrong with the list, by the number of the piece. Pieces before it may have been copied; nothing outside the
    /// regions was read, nothing outside the slot written.
    ///
    /// # Safety
    /// `slot` is mapped for writing for `slot_bytes` bytes, and nobody has a Rust reference to them.
    pub unsafe fn pack<'r>(
        &mut self,
        list: &[u8],
        region: impl FnMut(u32) -> Option<&'r Region>,
        slot: *mut u8,
        slot_bytes: u32,
    ) -> Result<u32, Refusal> {
        // SAFETY: the caller's promise.
        unsafe { self.run(Way::Pack, list, region, slot, slot_bytes) }
    }

    /// The mirror image of [`pack`](Self::pack): from a slot to the pieces of a list, in which there are no zeros.
    ///
    /// # Errors
    /// As for `pack`.
    ///
    /// # Safety
    /// `slot` is mapped for reading for `slot_bytes` bytes, and nobody has a Rust reference to the regions' memory.
    pub unsafe fn unpack<'r>(
        &mut self,
        list: &[u8],
        region: impl FnMut(u32) -> Option<&'r Region>,
        slot: *const u8,
        slot_bytes: u32,
    ) -> Result<u32, Refusal> {
        // SAFETY: the caller's promise; unpacking does not write to the slot.
        unsafe { self.run(Way::Unpack, list, region, slot.cast_mut(), slot_bytes) }
    }

    /// Drops what a panic has left.
    pub(super) fn forget(&mut self) {
        self.queue = RowQueue::new();
    }

    /// # Safety
    /// As for [`pack`](Self::pack) or [`unpack`](Self::unpack), by the way.
    pub(super) unsafe fn run<'r>(
        &mut self,
        way: Way,
        list: &[u8],
        mut region: impl FnMut(u32) -> Option<&'r Region>,
        slot: *mut u8,
        slot_bytes: u32,
    ) -> Result<u32, Refusal> {
        let limits = Limits { bytes: slot_bytes, pieces: LIST_PIECES, zeros: way == Way::Pack };
        let needed = if way == Way::Pack { Rights::READ } else { Rights::WRITE };
        let mut decoder = Decoder::new(list, limits)?;
        let mut in_slot = 0;
        loop {
            let mut found = None;
            let first_piece = decoder.pieces();
            let section = decoder.next_section(|handle| {
                found = region(handle);
                found.map(Region::bytes)
            })?;
            let (Some(section), Some(region)) = (section, found) else { return Ok(in_slot) };
            if !region.rights().covers(needed) {
                let detail = section.region().into();
                return Err(Refusal { status: Status::NO_RIGHT, piece: first_piece, detail });
            }
            let there = region.as_ptr();
            // SAFETY: the decoder gives only pieces that lie in the region, and never more bytes than the slot has.
            unsafe {
                match section.uniform() {
                    Some((len, 1, _)) => self.rows(way, &section, len, there, slot, &mut in_slot)?,
                    _ => self.pieces(way, &section, there, slot, &mut in_slot)?,
                }
            }
        }
    }

    /// Pieces of one length, a window at a time.
    ///
    /// # Safety
    /// The section's pieces that pass its checks lie in the memory from `region` on, and all of its bytes in the slot from
    /// `in_slot` on.
    unsafe fn rows(
        &mut self,
        way: Way,
        section: &Section<'_>,
        len: u32,
        region: *mut u8,
        slot: *mut u8,
        in_slot: &mut u32,
    ) -> Result<(), Refusal> {
        let mut from = 0;
        while from < section.count() {
            let count = (section.count() - from).min(WINDOW as u32);
            let rows = &mut self.rows[..count as usize];
            let mut here = u64::from(*in_slot);
            section.offsets(from, rows, |row, there| {
                *row = match way {
                    Way::Pack => RowPair { src: there, dst: here },
                    Way::Unpack => RowPair { src: here, dst: there },
                };
                here += u64::from(len);
            })?;
            let (src, dst) = way.ends(region, slot);
            // SAFETY: the caller's promise for the rows, which have been checked.
            unsafe { copy::copy_rows(src, dst, rows, len as usize) };
            *in_slot = here as u32;
            from += count;
        }
        Ok(())
    }

    /// Any pieces.
    ///
    /// # Safety
    /// As for [`rows`](Self::rows).
    unsafe fn pieces(
        &mut self,
        way: Way,
        section: &Section<'_>,
        region: *mut u8,
        slot: *mut u8,
        in_slot: &mut u32,
    ) -> Result<(), Refusal> {
        let mut outcome = Ok(());
        for piece in section.pieces() {
            let piece = match piece {
                Ok(piece) => piece,
                Err(refusal) => {
                    outcome = Err(refusal);
                    break;
                }
            };
            let here = slot.wrapping_add(*in_slot as usize);
            let there = region.wrapping_add(piece.offset as usize);
            *in_slot += piece.len;
            let (src, dst) = way.ends(there, here);
            // SAFETY: the caller's promise for pieces that have been checked; the queue is flushed below. There are zeros
            // only where the slot is written.
            unsafe {
                match piece.zero {
                    true => copy::zero_range(here, piece.len as usize),
                    false => copy_piece(src, dst, piece.len, &mut self.queue),
                }
            }
        }
        // SAFETY: as above.
        unsafe { self.queue.flush() };
        outcome
    }
}

/// What is done by a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the pieces of the list into a slot.
    Pack,
    /// From a slot to the pieces of the list.
    Unpack,
}

impl Way {
    /// From where to where.
    fn ends(self, region: *mut u8, slot: *mut u8) -> (*const u8, *mut u8) {
        match self {
            Way::Pack => (region, slot),
            Way::Unpack => (slot, region),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Chunk, Numbers, Planner, Progress, Rules, Transfer};

    /// The source list of single ranges, as offset and length, of region 1.
    fn list(ranges: &[(u64, u32)]) -> Vec<u8> {
        let rules = Rules {
            direct_from_bytes: u32::MAX,
            chunk_bytes: 4096,
            first_chunk_bytes: 4096,
            window_operations: 1,
            window_bytes: u32::MAX,
        };
        let (mut planner, mut chunk) = (Planner::new(), Chunk::new());
        planner.begin(rules);
        for (i, (offset, len)) in ranges.iter().enumerate() {
            let mut transfer = Transfer { src_max: Some(0), dst_max: Some(0), ..Transfer::NOTHING };
            (transfer.shape.regions, transfer.shape.offsets) = ([1, 2, 0], [*offset, 1000 * i as u64, 0]);
            (transfer.shape.count, transfer.shape.len) = (1, *len);
            assert_eq!(planner.add(&transfer, 0, Numbers::COUNTED), Ok(Progress::Taken));
        }
        planner.finish();
        assert!(planner.take(&mut chunk));
        chunk.src.encoded().to_vec()
    }

    #[test]
    fn what_a_list_may_not_touch_is_refused_by_its_number_and_not_touched() {
        const BYTES: usize = 64;
        let refused = |status, piece, detail| Err(Refusal { status, piece, detail });
        let outside = |piece, detail| refused(Status::OUT_OF_RANGE, piece, detail);
        let run = |list: &[u8], rights: Rights, slot_bytes: u32, way: Way| {
            let (mut memory, mut slot) = ([7u8; BYTES + 8], [9u8; BYTES + 8]);
            // SAFETY: region and slot are memory of this call, which nothing else refers to meanwhile.
            let outcome = unsafe {
                let region = Region::adopt(memory.as_mut_ptr(), BYTES as u64, rights).unwrap();
                let find = |handle| (handle == 1).then_some(&region);
                ListPacker::default().run(way, list, find, slot.as_mut_ptr(), slot_bytes)
            };
            assert_eq!((memory[BYTES], slot[slot_bytes as usize]), (7, 9), "behind the end");
            (outcome, memory == [7; BYTES + 8], slot == [9; BYTES + 8])
        };
        for way in [Way::Pack, Way::Unpack] {
            let all = |list: &[u8]| run(list, Rights::READ_WRITE, BYTES as u32, way).0;
            assert_eq!(all(&list(&[(0, 8), (56, 8), (40, 8)])), Ok(24));
            // ROWS, MIXED, PLAIN, and a TILE.
            assert_eq!(all(&list(&[(0, 8), (57, 8), (40, 8)])), outside(1, 57));
            assert_eq!(all(&list(&[(0, 8), (40, 4), (61, 4)])), outside(2, 61));
            assert_eq!(all(&list(&[(0, 8), (1 << 40, 8), (3, 9)])), outside(1, 1 << 40));
            assert_eq!(all(&list(&[(0, 8), (30, 8), (60, 8)])), outside(2, 60));
            assert_eq!(all(&list(&[(0, 32), (1, 32), (0, 1)])), refused(Status::LIMIT_EXCEEDED, 0, 65));
            let mut of_another = list(&[(0, 8)]);
            of_another[8] = 5;
            assert_eq!(all(&of_another), refused(Status::UNKNOWN_REGION, 0, 5));
        }
        for (way, rights) in [(Way::Pack, Rights::WRITE), (Way::Unpack, Rights::READ)] {
            let (outcome, region, slot) = run(&list(&[(0, 8)]), rights, BYTES as u32, way);
            assert_eq!(outcome, refused(Status::NO_RIGHT, 0, 1));
            assert!(region && slot);
        }
        let (outcome, region, slot) = run(&list(&[(0, 8), (57, 8)]), Rights::READ_WRITE, 8, Way::Pack);
        assert_eq!(outcome, refused(Status::LIMIT_EXCEEDED, 0, 16));
        assert!(region && slot);
    }
}
