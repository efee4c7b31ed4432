//! Bytes that are really moved, at the times at which the hardware would.

use super::task::Copying;
use super::{Job, Part, Run};
use crate::cost::Choice;
use crate::plan::{self, Decoder, Direction, Fault, LIST_PIECES, Limits, List, Missing};
use ring_abi::{Field, IndexKind, Stage};

/// All memory of a run: for each batch its source and its destination, and the staging slots of both sides.
pub struct Memory {
    spaces: Vec<Vec<Space>>,
    owner_slots: Vec<Vec<u8>>,
    /// Of each caller: its own slots, and its landing slots at the owner.
    caller_slots: Vec<[Vec<Vec<u8>>; 2]>,
}

/// One batch's memory.
struct Space {
    src: Vec<u8>,
    dst: Vec<u8>,
    /// What the destination is to be.
    want: Vec<u8>,
    /// It was called reusable, and has other contents since then.
    reused: bool,
    wrong: bool,
}

/// A place in the memory of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Src { batch: usize, offset: u64 },
    Dst { batch: usize, offset: u64 },
    OwnerSlot(u32),
    CallerSlot(u32),
    LandingSlot(u32),
    Zeros,
}

/// Bytes on their way from one place to another.
#[derive(Clone, Debug)]
pub struct Move {
    pub from: Place,
    pub to: Place,
    pub len: usize,
    /// Once they were read.
    pub bytes: Vec<u8>,
}

impl Move {
    fn new(from: Place, to: Place, len: u64) -> Move {
        Move { from, to, len: len as usize, bytes: Vec::new() }
    }

    /// A whole chunk. Where there is no slot, the list says where it is: one piece.
    pub fn bulk(chunk: &plan::Chunk, batch: usize, from: Option<Place>, to: Option<Place>, bytes: u64) -> Vec<Move> {
        let src = || chunk.src.contiguous().map(|(_, offset)| Place::Src { batch, offset });
        let dst = || chunk.dst.contiguous().map(|(_, offset)| Place::Dst { batch, offset });
        match (from.or_else(src), to.or_else(dst)) {
            (Some(from), Some(to)) => vec![Move::new(from, to, bytes)],
            _ => Vec::new(),
        }
    }

    /// Some operations of the direct route.
    pub fn direct(
        chunk: &plan::Chunk,
        batch: usize,
        direction: Direction,
        max_sge: u32,
        operations: std::ops::Range<usize>,
    ) -> Vec<Move> {
        let counts: Vec<usize> = chunk.operations(direction, max_sge).map(|one| one.segments as usize).collect();
        let up_to = |n: usize| counts.iter().take(n).sum::<usize>();
        let (skip, end) = (up_to(operations.start), up_to(operations.end));
        let segments = chunk.segments().filter(|one| !(one.zero && direction == Direction::Read));
        let moved = segments.skip(skip).take(end - skip).map(|one| {
            let from = if one.zero { Place::Zeros } else { Place::Src { batch, offset: one.src } };
            Move::new(from, Place::Dst { batch, offset: one.dst }, one.len.into())
        });
        moved.collect()
    }
}

impl Memory {
    pub fn new(run: &Run, choice: Choice, callers: usize) -> Memory {
        let slots = choice.slots.max(1) as usize;
        let slot = vec![0; choice.chunk_bytes as usize];
        let batches = run.batches.max(1) as usize;
        let space = |caller: usize, batch: usize| Space::new(run.job, (caller * batches + batch) as u64);
        let owner = run.owner_slots.map_or(slots * callers, |slots| slots as usize);
        Memory {
            spaces: (0..callers).map(|caller| (0..batches).map(|batch| space(caller, batch)).collect()).collect(),
            owner_slots: vec![slot.clone(); owner],
            caller_slots: (0..callers)
                .map(|_| [vec![slot.clone(); slots * batches], vec![slot.clone(); slots]])
                .collect(),
        }
    }

    fn at(&mut self, link: usize, place: Place, len: usize) -> Option<&mut [u8]> {
        let (bytes, offset) = match place {
            Place::Src { batch, offset } => (&mut self.spaces.get_mut(link)?.get_mut(batch)?.src, offset as usize),
            Place::Dst { batch, offset } => (&mut self.spaces.get_mut(link)?.get_mut(batch)?.dst, offset as usize),
            Place::OwnerSlot(slot) => (self.owner_slots.get_mut(slot as usize)?, 0),
            Place::CallerSlot(slot) => (self.caller_slots.get_mut(link)?[0].get_mut(slot as usize)?, 0),
            Place::LandingSlot(slot) => (self.caller_slots.get_mut(link)?[1].get_mut(slot as usize)?, 0),
            Place::Zeros => return None,
        };
        bytes.get_mut(offset..offset.checked_add(len)?)
    }

    /// Reads what a flow carries.
    pub fn take(&mut self, link: usize, moves: &mut [Move]) {
        for one in moves {
            one.bytes = match one.from {
                Place::Zeros => vec![0; one.len],
                from => self.at(link, from, one.len).map_or(Vec::new(), |bytes| bytes.to_vec()),
            };
        }
    }

    /// Writes it. What lies outside of all memory would be a fault of the plan: it is not written, and missed afterwards.
    pub fn put(&mut self, link: usize, moves: &[Move]) {
        for one in moves {
            if let Some(to) = self.at(link, one.to, one.bytes.len()) {
                to.copy_from_slice(&one.bytes);
            }
        }
    }

    /// What a worker does: the pieces of the list into the slot, or out of it.
    ///
    /// # Errors
    /// A piece that may not be touched.
    pub fn copy(&mut self, task: &Copying, batch: Option<usize>) -> Result<(), Fault> {
        let (Some(chunk), Some(batch)) = (&task.lists, batch) else { return Ok(()) };
        let slot = match (task.host, task.packs) {
            (0, true) => Place::OwnerSlot(task.lease.slot),
            (0, false) => Place::LandingSlot(task.lease.slot),
            _ => Place::CallerSlot(task.lease.slot),
        };
        let list: &List = if task.packs { &chunk.src } else { &chunk.dst };
        let Some(space) = self.spaces.get(task.link).and_then(|spaces| spaces.get(batch)) else { return Ok(()) };
        let granted = if task.packs { space.src.len() } else { space.dst.len() } as u64;
        let limits = Limits { bytes: chunk.bytes, pieces: LIST_PIECES, zeros: task.packs };
        let fault = |refusal: plan::Refusal| {
            let fault = Fault::new(refusal.status, Stage::PACK, Field::NONE, refusal.detail);
            Fault { fragment: refusal.piece, ..fault }
        };
        let mut decoder = Decoder::new(list.encoded(), limits).map_err(fault)?;
        let mut done = 0;
        while let Some(section) = decoder.next_section(|_| Some(granted)).map_err(fault)? {
            for piece in section.pieces() {
                let piece = piece.map_err(fault)?;
                self.copy_piece(task, batch, &piece, slot, done);
                done += piece.len as usize;
            }
        }
        Ok(())
    }

    fn copy_piece(&mut self, task: &Copying, batch: usize, piece: &plan::ListPiece, slot: Place, done: usize) {
        let (len, offset) = (piece.len as usize, piece.offset);
        let in_slot = done..done + len;
        if task.packs {
            let bytes = if piece.zero {
                vec![0; len]
            } else {
                self.at(task.link, Place::Src { batch, offset }, len).map_or(Vec::new(), |bytes| bytes.to_vec())
            };
            if let Some(slot) = self.at(task.link, slot, in_slot.end).filter(|_| bytes.len() == len) {
                slot[in_slot].copy_from_slice(&bytes);
            }
        } else {
            let bytes = self.at(task.link, slot, in_slot.end).map_or(Vec::new(), |slot| slot[in_slot].to_vec());
            if let Some(to) = self.at(task.link, Place::Dst { batch, offset }, bytes.len()) {
                to.copy_from_slice(&bytes);
            }
        }
    }

    /// What no operation of a direct READ brings: zeros.
    pub fn zero(&mut self, link: usize, batch: usize, chunk: &plan::Chunk) {
        for one in chunk.segments().filter(|one| one.zero) {
            if let Some(to) = self.at(link, Place::Dst { batch, offset: one.dst }, one.len as usize) {
                to.fill(0);
            }
        }
    }

    /// The batch is over: looks at the destination if it is done, and uses its memory for something else, which nobody may
    /// touch from here on.
    pub fn release(&mut self, link: usize, batch: usize, done: bool) {
        if let Some(space) = self.spaces.get_mut(link).and_then(|spaces| spaces.get_mut(batch)) {
            space.wrong |= done && !space.reused && space.dst != space.want;
            space.src.fill(0xEE);
            space.reuse();
        }
    }

    /// The same, but the destination belongs to an owner that cannot be reached: only it knows when nobody writes there.
    pub fn release_source(&mut self, link: usize, batch: usize) {
        if let Some(space) = self.spaces.get_mut(link).and_then(|spaces| spaces.get_mut(batch)) {
            space.src.fill(0xEE);
        }
    }

    /// The owner has closed a link: nobody writes to what was reached over it.
    pub fn close(&mut self, link: usize) {
        self.spaces.get_mut(link).into_iter().flatten().for_each(Space::reuse);
    }

    /// Whether every batch that was done had the right bytes, and how many bytes were written to memory afterwards.
    pub fn verdict(&self) -> (bool, u64) {
        let spaces = || self.spaces.iter().flatten();
        let late = |space: &Space| space.dst.iter().zip(0..).filter(|(byte, at)| **byte != reused(*at)).count();
        let late = spaces().filter(|space| space.reused).map(|space| late(space) as u64).sum();
        (spaces().all(|space| !space.wrong), late)
    }
}

impl Space {
    fn reuse(&mut self) {
        if !self.reused {
            self.reused = true;
            self.dst.iter_mut().zip(0..).for_each(|(byte, at)| *byte = reused(at));
        }
    }

    fn new(job: &Job, salt: u64) -> Space {
        let extent = |side: usize| job.parts.iter().map(|part| part.extent(side)).max().unwrap_or(0) as usize;
        let src: Vec<u8> = (0..extent(0) as u64).map(|at| contents(at, salt)).collect();
        let dst = vec![0xD5; extent(1)];
        let mut want = dst.clone();
        for part in &job.parts {
            part.apply(&src, &mut want);
        }
        Space { src, dst, want, reused: false, wrong: false }
    }
}

impl Part {
    /// Bytes of a side's region from its start to the end of the last one that is touched.
    pub fn extent(&self, side: usize) -> u64 {
        let shape = &self.transfer.shape;
        let numbers = if side == 0 { &self.src } else { &self.dst };
        let largest = if shape.kinds[side] == IndexKind::None {
            shape.count.saturating_sub(1)
        } else {
            numbers.iter().copied().filter(|number| side == 1 || !self.is_missing(*number)).max().unwrap_or(0)
        };
        let inner = u64::from(shape.inner_count.saturating_sub(1)) * u64::from(shape.inner_strides[side]);
        shape.offsets[side] + u64::from(largest) * u64::from(shape.strides[side]) + inner + u64::from(shape.len)
    }

    fn is_missing(&self, number: u32) -> bool {
        self.transfer.shape.missing != Missing::Row && number == u32::MAX
    }

    /// The transfer, fragment by fragment.
    fn apply(&self, src: &[u8], dst: &mut [u8]) {
        let shape = &self.transfer.shape;
        let number = |numbers: &[u32], i: u32| numbers.get(i as usize).copied().unwrap_or(i);
        for i in 0..shape.count {
            let (from, to) = (number(&self.src, i), number(&self.dst, i));
            let missing = !self.src.is_empty() && self.is_missing(from);
            if missing && shape.missing == Missing::Skip {
                continue;
            }
            for inner in 0..shape.inner_count {
                let at = |side: usize, number: u32| {
                    let offset = u64::from(number) * u64::from(shape.strides[side]);
                    (shape.offsets[side] + offset + u64::from(inner) * u64::from(shape.inner_strides[side])) as usize
                };
                let len = shape.len as usize;
                let to = &mut dst[at(1, to)..][..len];
                if missing { to.fill(0) } else { to.copy_from_slice(&src[at(0, from)..][..len]) }
            }
        }
    }
}

/// Of a source; no two sources are alike, and neither has any of the other values in here.
fn contents(at: u64, salt: u64) -> u8 {
    let word = (at / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(salt.wrapping_mul(0xd1b5_4a32_d192_ed03));
    word.to_le_bytes()[(at % 8) as usize] ^ (word >> 29) as u8
}

/// Of a destination that is used for something else.
fn reused(at: u64) -> u8 {
    (at as u8).wrapping_mul(31) ^ 0x5A
}
