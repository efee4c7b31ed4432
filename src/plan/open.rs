//! A chunk that is being filled.

use super::Chunk;
use super::list::Lane;
use super::numbers::followers_u32;
use super::pending::{Pending, Scratch};
use super::window::{Geometry, Window};
use ring_abi::Route;

/// A chunk, its limits, and the segments that are to be encoded next.
#[derive(Debug)]
pub(super) struct Open {
    pub chunk: Chunk,
    pub pending: Pending,
    limit_bytes: u32,
    limit_segments: u32,
    segments: u32,
}

/// The fragments that are added to one side at once.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fragments<'a> {
    /// At equal distances, the first one here.
    Tile(u64),
    /// By words, counted from this offset on.
    Rows(u64, &'a [u32]),
    /// Zeros.
    Zeros,
}

impl Open {
    pub fn new(route: Route) -> Open {
        let chunk = Chunk { route, ..Chunk::new() };
        Open { chunk, pending: Pending::new(), limit_bytes: u32::MAX, limit_segments: u32::MAX, segments: 0 }
    }

    pub fn clear(&mut self) {
        self.pending.clear();
        self.clear_chunk();
    }

    pub fn set_limits(&mut self, bytes: u32, segments: u32) {
        (self.limit_bytes, self.limit_segments) = (bytes.max(1), segments.max(1));
        self.note_room();
    }

    pub fn limit_bytes(&self) -> u32 {
        self.limit_bytes
    }

    /// Swaps the chunk for another one, which becomes an empty one of the same route.
    pub fn swap(&mut self, chunk: &mut Chunk) {
        std::mem::swap(&mut self.chunk, chunk);
        self.chunk.route = chunk.route;
        self.clear_chunk();
    }

    fn clear_chunk(&mut self) {
        self.chunk.clear();
        self.segments = 0;
        self.note_room();
    }

    pub fn is_empty(&self) -> bool {
        self.chunk.bytes == 0
    }

    /// True if not even a byte can be added.
    pub fn is_full(&self) -> bool {
        self.bytes_left() == 0 || self.segments >= self.limit_segments || self.entries_left(1) == 0
    }

    pub fn bytes_left(&self) -> u32 {
        self.limit_bytes.saturating_sub(self.chunk.bytes)
    }

    /// Tells what is pending when to be encoded: when it fills the chunk.
    fn note_room(&mut self) {
        self.pending.set_due(self.bytes_left(), self.limit_segments.saturating_sub(self.segments));
    }

    /// A unit of so many bytes that does not fit begins the next chunk, unless it is long or would be alone there anyway.
    pub fn waits(&self, bytes: u64) -> bool {
        self.is_full() || (!self.is_empty() && bytes <= WHOLE_BYTES)
    }

    /// Encodes what is pending; false if some is left and the chunk is full.
    pub fn flush(&mut self, regions: [u32; 2], scratch: &mut Scratch) -> bool {
        while !self.pending.is_empty() {
            if self.is_full() {
                return false;
            }
            // One by itself needs no entry.
            let entries = self.entries_left(PLAIN_BYTES).max(1);
            let (count, bytes) =
                self.pending.fitting(self.bytes_left(), entries.min(self.limit_segments - self.segments));
            if count > 0 {
                let taken = self.pending.take(count, bytes);
                self.chunk.note_first(taken.mark);
                self.chunk.bytes += bytes;
                let [src, dst] = taken.offsets;
                scratch.encode(&mut self.chunk.src, regions[0], src, taken.lens);
                scratch.encode(&mut self.chunk.dst, regions[1], dst, taken.lens);
                self.segments += count;
                self.note_room();
                continue;
            }
            if self.waits(self.pending.front_len().into()) {
                return false;
            }
            let len = self.bytes_left();
            let ([src, dst], mark) = self.pending.split(len);
            let src = if src == u64::MAX { Fragments::Zeros } else { Fragments::Tile(src) };
            let lanes = regions.map(|region| Lane { region, base: 0, step: 0, len, inner_count: 1, inner_step: 0 });
            self.append(lanes, [src, Fragments::Tile(dst)], 1, 1, [true; 2], mark);
        }
        true
    }

    /// How many whole fragments of a window there is room for.
    pub fn fragments_left(&self, geometry: &Geometry) -> u32 {
        let Geometry { inner_count, lanes, .. } = geometry;
        let bytes = u64::from(self.bytes_left()) / geometry.fragment_bytes();
        let segments = self.limit_segments.saturating_sub(self.segments) / inner_count;
        let pieces = [&self.chunk.src, &self.chunk.dst].into_iter().zip(lanes);
        let pieces = pieces.map(|(list, lane)| list.pieces_left() / lane.inner_count).min().unwrap_or(0);
        (bytes as u32).min(segments).min(pieces).min(self.entries_left(ROW_BYTES))
    }

    /// Adds `count` fragments, which there is room for, of `inner_count` segments each.
    pub fn append(
        &mut self,
        lanes: [Lane; 2],
        fragments: [Fragments<'_>; 2],
        count: u32,
        inner_count: u32,
        scattered: [bool; 2],
        mark: u64,
    ) {
        self.chunk.note_first(mark);
        let bytes = lanes[1].len * lanes[1].inner_count * count;
        self.chunk.bytes += bytes;
        self.segments += count * inner_count;
        self.note_room();
        for side in 0..2 {
            let list = if side == 0 { &mut self.chunk.src } else { &mut self.chunk.dst };
            let lane = &lanes[side];
            match fragments[side] {
                Fragments::Zeros => list.push_zeros(lane.region, bytes),
                Fragments::Tile(offset) => list.push_tile(lane, offset, count),
                Fragments::Rows(base, words) => {
                    let step = lane.adjacent_step().filter(|_| !scattered[side]);
                    list.push_rows(lane, base, words, step.map_or(0, |step| followers_u32(words, step)));
                }
            }
        }
    }

    /// Adds what there is room for of the fragment that a window is at; false if nothing is.
    pub fn append_part(&mut self, window: &mut Window, zero: bool, numbers: [u64; 2]) -> bool {
        let Geometry { len, inner_count, inner_steps, lanes, .. } = window.geometry;
        let at = |side: usize| {
            let piece = u64::from(window.piece) * u64::from(inner_steps[side]);
            lanes[side].at(numbers[side]) + piece + u64::from(window.byte)
        };
        let src = if zero { Fragments::Zeros } else { Fragments::Tile(at(0)) };
        let fragments = [src, Fragments::Tile(at(1))];
        let lane = |len: u32| {
            [0, 1].map(|side| Lane {
                region: lanes[side].region,
                base: 0,
                step: inner_steps[side],
                len,
                inner_count: 1,
                inner_step: 0,
            })
        };
        let mark = window.mark();
        let whole = Geometry { len, inner_count: 1, inner_steps, lanes: lane(len) };
        let pieces = self.fragments_left(&whole).min(inner_count - window.piece);
        if window.byte == 0 && pieces > 0 {
            self.append(whole.lanes, fragments, pieces, 1, [true; 2], mark);
            window.piece += pieces;
        } else {
            let left = len - window.byte;
            if self.is_full() || (left > self.bytes_left() && self.waits(left.into())) {
                return false;
            }
            let some = left.min(self.bytes_left());
            self.append(lane(some), fragments, 1, 1, [true; 2], mark);
            window.byte += some;
            if window.byte == len {
                (window.byte, window.piece) = (0, window.piece + 1);
            }
        }
        if window.piece == inner_count {
            (window.piece, window.at) = (0, window.at + 1);
        }
        true
    }

    fn entries_left(&self, entry_bytes: usize) -> u32 {
        self.chunk.src.entries_left(entry_bytes).min(self.chunk.dst.entries_left(entry_bytes))
    }
}

/// A unit up to this length goes into the next chunk rather than into two: rows of one length stay rows of one length.
const WHOLE_BYTES: u64 = 16 << 10;

/// Payload bytes of an entry, at most, and of an entry of rows.
const PLAIN_BYTES: usize = 16;
const ROW_BYTES: usize = 4;
