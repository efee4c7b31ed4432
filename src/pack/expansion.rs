//! A transfer as pieces, a chunk at a time, for memory that goes through staging slots.

use super::lookup::{index_arrays, load_numbers, load_record};
use crate::plan::{Fault, Place, Transfer};
use crate::region::Region;
use ring_abi::IndexKind;
use ring_abi::staged::PIECES_MAX;
use std::sync::Arc;

/// One contiguous piece, by its offsets in the two regions. Both ends have been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Bytes from the start of the source region; nothing if it is `zero`.
    pub src: u64,
    /// Bytes from the start of the destination region.
    pub dst: u64,
    /// Bytes.
    pub len: u32,
    /// It has no source: the destination is filled with 0.
    pub zero: bool,
}

/// The pieces of one chunk, and what is needed to find them. One per thread that expands; allocated once.
#[derive(Debug)]
pub struct Pieces {
    list: Vec<Piece>,
    bytes: u32,
    /// The fragment of the first piece.
    fragment: u32,
    /// Pieces that were looked at, also those that were missing or became part of the one before.
    seen: u32,
    half: Box<[u32; NUMBERS]>,
    numbers: [Box<[u64; NUMBERS]>; 2],
}

/// A transfer that is expanded into pieces, in the order of its fragments. Keeps the index region mapped.
#[derive(Debug)]
pub struct Expansion {
    transfer: Transfer,
    index: Option<Arc<Region>>,
    /// Next fragment to look up.
    next: u32,
    /// What is left of the fragment before it.
    rest: Option<Rest>,
    fault: Option<Fault>,
}

/// What is left of one fragment: pieces of `len` bytes, of which `byte` bytes of piece `piece` are out.
#[derive(Clone, Copy, Debug)]
struct Rest {
    fragment: u32,
    src: u64,
    dst: u64,
    zero: bool,
    pieces: u32,
    len: u32,
    strides: [u32; 2],
    piece: u32,
    byte: u32,
}

/// Index words copied at a time.
const NUMBERS: usize = 1024;

/// Pieces looked at for one chunk, whatever comes of them: bounds the time where they are tiny or missing.
const SEEN_MAX: u32 = 4 * PIECES_MAX;

/// A piece up to this length goes into the next chunk rather than into two: rows of one length stay rows of one length.
const WHOLE_BYTES: u32 = 16 << 10;

impl Pieces {
    /// The pieces.
    #[must_use]
    pub fn as_slice(&self) -> &[Piece] {
        &self.list
    }

    /// Bytes of all of them.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// The fragment that the first one belongs to.
    #[must_use]
    pub fn fragment(&self) -> u32 {
        self.fragment
    }

    fn clear(&mut self) {
        self.list.clear();
        self.bytes = 0;
        self.seen = 0;
    }

    fn room(&self) -> u32 {
        PIECES_MAX - self.list.len() as u32
    }

    /// Adds a piece, which there must be room for, to the one before if it goes on there at both ends.
    #[inline]
    fn push(&mut self, piece: Piece, fragment: u32) {
        self.bytes += piece.len;
        self.seen += 1;
        match self.list.last_mut() {
            None => self.fragment = fragment,
            Some(last) => {
                let end = u64::from(last.len);
                let goes_on = last.dst + end == piece.dst
                    && last.zero == piece.zero
                    && (piece.zero || last.src + end == piece.src);
                if goes_on {
                    last.len += piece.len;
                    return;
                }
            }
        }
        self.list.push(piece);
    }
}

impl Default for Pieces {
    fn default() -> Self {
        let numbers = || Box::new([0; NUMBERS]);
        Pieces {
            list: Vec::with_capacity(PIECES_MAX as usize),
            bytes: 0,
            fragment: 0,
            seen: 0,
            half: Box::new([0; NUMBERS]),
            numbers: [numbers(), numbers()],
        }
    }
}

impl Expansion {
    /// Nothing of it looked up yet.
    #[must_use]
    pub fn new(transfer: Transfer, index: Option<Arc<Region>>) -> Expansion {
        Expansion { transfer, index, next: 0, rest: None, fault: None }
    }

    /// True if nothing more comes.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.fault.is_some() || (self.rest.is_none() && self.next == self.transfer.shape.count)
    }

    /// The lowest fragment that cannot be done; the pieces of those before it have come.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// The region of its numbers or records.
    #[must_use]
    pub fn index(&self) -> Option<&Arc<Region>> {
        self.index.as_ref()
    }

    /// Handles of source, destination and index.
    #[must_use]
    pub fn handles(&self) -> [u32; 3] {
        self.transfer.shape.regions
    }

    /// Replaces what is in `out` by the next pieces, of at most `limit` bytes. There may be none although more is to
    /// come: so many fragments were missing that the rest is left for the next call.
    pub fn next_chunk(&mut self, limit: u32, out: &mut Pieces) {
        out.clear();
        while out.seen < SEEN_MAX && !self.is_exhausted() {
            if self.rest.is_some() {
                if self.cut_rest(limit, out) {
                    return;
                }
                continue;
            }
            let shape = &self.transfer.shape;
            if shape.kinds[0] == IndexKind::Fragments {
                if out.bytes == limit || out.room() == 0 {
                    return;
                }
                self.look_up(out, Self::record);
                continue;
            }
            let whole = u64::from(limit - out.bytes) / shape.fragment_bytes();
            let whole = whole.min(u64::from(out.room() / shape.inner_count)) as u32;
            match whole {
                0 if out.bytes == limit || out.room() == 0 => return,
                0 => self.look_up(out, Self::single),
                _ => self.uniform(whole, out),
            }
        }
    }

    /// Puts out what fits of the fragment that was begun; true if the chunk is full.
    fn cut_rest(&mut self, limit: u32, out: &mut Pieces) -> bool {
        while let Some(rest) = &mut self.rest {
            if rest.piece == rest.pieces || rest.len == 0 {
                self.rest = None;
                return false;
            }
            let (left, room) = (rest.len - rest.byte, limit - out.bytes);
            let waits = left > room && left <= WHOLE_BYTES && !out.list.is_empty();
            if room == 0 || out.room() == 0 || waits || out.seen >= SEEN_MAX {
                return true;
            }
            let len = left.min(room);
            let at = |start: u64, side: usize| {
                start + u64::from(rest.piece) * u64::from(rest.strides[side]) + u64::from(rest.byte)
            };
            let src = if rest.zero { 0 } else { at(rest.src, 0) };
            out.push(Piece { src, dst: at(rest.dst, 1), len, zero: rest.zero }, rest.fragment);
            rest.byte += len;
            if rest.byte == rest.len {
                rest.byte = 0;
                rest.piece += 1;
            }
        }
        false
    }

    /// Begins the next fragment.
    fn look_up(&mut self, out: &mut Pieces, how: fn(&Self, u32, &mut Pieces) -> Result<Option<Rest>, Fault>) {
        let fragment = self.next;
        self.next += 1;
        out.seen += 1;
        match how(self, fragment, out) {
            Ok(rest) => self.rest = rest,
            Err(fault) => self.fault = Some(Fault { fragment, ..fault }),
        }
    }

    /// `count` fragments and fewer, all pieces of which fit.
    fn uniform(&mut self, count: u32, out: &mut Pieces) {
        let shape = self.transfer.shape;
        let from = self.next;
        let count = count.min(shape.count - from).min(NUMBERS as u32);
        self.load_numbers(from, count as usize, out);
        for i in 0..count {
            let numbers = [out.numbers[0][i as usize], out.numbers[1][i as usize]];
            match self.transfer.place(numbers) {
                Ok(Some(Place { src, dst, zero })) => {
                    for k in 0..u64::from(shape.inner_count) {
                        let src = src + if zero { 0 } else { k * u64::from(shape.inner_strides[0]) };
                        let dst = dst + k * u64::from(shape.inner_strides[1]);
                        out.push(Piece { src, dst, len: shape.len, zero }, from + i);
                    }
                }
                Ok(None) => out.seen += 1,
                Err(fault) => {
                    self.fault = Some(Fault { fragment: from + i, ..fault });
                    break;
                }
            }
        }
        self.next = from + count;
    }

    /// One fragment that is larger than what is left of the chunk.
    fn single(&self, fragment: u32, out: &mut Pieces) -> Result<Option<Rest>, Fault> {
        let shape = &self.transfer.shape;
        self.load_numbers(fragment, 1, out);
        let Some(Place { src, dst, zero }) = self.transfer.place([out.numbers[0][0], out.numbers[1][0]])? else {
            return Ok(None);
        };
        let (pieces, len, strides) = (shape.inner_count, shape.len, shape.inner_strides);
        Ok(Some(Rest { fragment, src, dst, zero, pieces, len, strides, piece: 0, byte: 0 }))
    }

    /// One irregular fragment.
    fn record(&self, fragment: u32, _: &mut Pieces) -> Result<Option<Rest>, Fault> {
        // SAFETY: planning checked that the array of `count` records is aligned and inside the index region.
        let record = unsafe { load_record(&self.transfer, self.index_arrays()[0], fragment) }?;
        let [src, dst, _] = self.transfer.shape.offsets;
        let (src, dst) = (src + record.src, dst + record.dst);
        let (len, strides) = (record.len, [0, 0]);
        Ok(Some(Rest { fragment, src, dst, zero: false, pieces: 1, len, strides, piece: 0, byte: 0 }))
    }

    /// Copies the numbers of `n` fragments, each word once.
    fn load_numbers(&self, from: u32, n: usize, out: &mut Pieces) {
        for (side, array) in self.index_arrays().into_iter().enumerate() {
            let (half, numbers) = (&mut out.half[..n], &mut out.numbers[side][..n]);
            // SAFETY: planning checked that the array of `count` numbers is aligned and inside the index region, and
            // `from + n` is at most `count`.
            unsafe { load_numbers(self.transfer.shape.kinds[side], array, from, half, numbers) };
        }
    }

    fn index_arrays(&self) -> [*const u8; 2] {
        index_arrays(self.index.as_deref(), &self.transfer.shape)
    }
}
