//! What one batch moves, and how its descriptors say so.

use super::{NEAR_BYTES, TABLE_BYTES, ZONE_BYTES};
use crate::seeded::Random;
use ring_abi::{Descriptor, Flags, IndexKind, Opcode};
use scatter_ring::client::{Batch, Region};

/// Of the region for row numbers: two arrays.
pub const INDEX_BYTES: u64 = 64 << 10;

/// Most pieces of a batch, so that their numbers fit.
const PIECES_MAX: u64 = 4000;

#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub far: u64,
    pub near: u64,
    pub len: u64,
}

#[derive(Clone)]
pub struct Job {
    /// To the owner, or from it.
    pub writes: bool,
    pub pieces: Vec<Piece>,
    /// For what is written.
    pub seed: u64,
    shape: Shape,
    route: u16,
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    /// A descriptor for each piece.
    Ranges,
    /// Rows of the owner's memory by number; packed on this side.
    Rows { len: u32 },
    /// Rows by number on both sides.
    Pages { len: u32 },
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (pieces, bytes) = (self.pieces.len(), self.bytes());
        write!(f, "{:?}, {pieces} pieces, {bytes} bytes, writes: {}, route: {}", self.shape, self.writes, self.route)
    }
}

impl Job {
    /// Rows by number, single rows by descriptors, large pieces, and rows scattered on both sides.
    pub fn any(random: &mut Random, writes: bool) -> Job {
        let job = match random.below(4) {
            0 => Self::rows(random, writes, [8, 64, 264, 1000, 4096]),
            1 => Self::ranges(random, writes, 300, 640),
            2 => Self::ranges(random, writes, 4, 512 << 10),
            _ => Self::pages(random, writes),
        };
        Job { route: random.pick(&[0, 0, Flags::DIRECT, Flags::GATHER]), ..job }
    }

    pub fn gathered(random: &mut Random, writes: bool) -> Job {
        Job { route: Flags::GATHER, ..Self::rows(random, writes, [64, 264, 1000, 2000, 4096]) }
    }

    /// READ of rows of one length.
    pub fn gathered_rows(random: &mut Random, row_bytes: u32) -> Job {
        Job { route: Flags::GATHER, ..Self::rows(random, false, [row_bytes; 5]) }
    }

    /// Large enough to be under way for a while.
    pub fn large(random: &mut Random, writes: bool) -> Job {
        let pieces = (0..NEAR_BYTES >> 19).map(|i| Piece { far: i << 19, near: i << 19, len: 1 << 19 }).collect();
        Job { writes, pieces, seed: random.word(), shape: Shape::Ranges, route: 0 }
    }

    /// The same, by a route.
    pub fn by(self, route: u16) -> Job {
        Job { route, ..self }
    }

    fn rows(random: &mut Random, writes: bool, lens: [u32; 5]) -> Job {
        let len = random.pick(&lens);
        let count = 1 + random.below(PIECES_MAX.min(ZONE_BYTES / u64::from(len) / 2));
        let numbers = far_numbers(random, writes, count, len.into());
        let pieces = numbers.into_iter().zip(0..).map(|(far, near)| piece(far, near, len.into())).collect();
        Job { writes, pieces, seed: random.word(), shape: Shape::Rows { len }, route: 0 }
    }

    fn pages(random: &mut Random, writes: bool) -> Job {
        let len = random.pick(&[128, 512, 4096, 16 << 10]);
        let count = 1 + random.below(PIECES_MAX.min(ZONE_BYTES / u64::from(len) / 2));
        let far = far_numbers(random, writes, count, len.into());
        let near = shuffled(random, count);
        let pieces = far.into_iter().zip(near).map(|(far, near)| piece(far, near, len.into())).collect();
        Job { writes, pieces, seed: random.word(), shape: Shape::Pages { len }, route: 0 }
    }

    /// Pieces of any length up to that of a place, each in a place of its own.
    fn ranges(random: &mut Random, writes: bool, count_max: u64, place_bytes: u64) -> Job {
        let count = 1 + random.below(count_max);
        let (far_places, near_places) = (shuffled(random, count), shuffled(random, count));
        let mut a_piece = |(far, near): (u64, u64)| {
            let len = 1 + random.below(place_bytes);
            let mut within = || random.below(place_bytes - len + 1);
            let near = near * place_bytes + within();
            let far = if writes { far * place_bytes + within() } else { random.below(TABLE_BYTES - len) };
            Piece { far, near, len }
        };
        let pieces = far_places.into_iter().zip(near_places).map(&mut a_piece).collect();
        Job { writes, pieces, seed: random.word(), shape: Shape::Ranges, route: 0 }
    }

    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len).sum()
    }

    /// What the index region has to contain: the source's numbers, then the destination's.
    pub fn index_words(&self) -> Vec<u8> {
        let numbers = |of: fn(&Piece) -> u64| self.pieces.iter().map(move |piece| (of(piece) / piece.len) as u32);
        let (far, near) = (numbers(|piece| piece.far), numbers(|piece| piece.near));
        let words: Vec<u32> = match (self.shape, self.writes) {
            (Shape::Ranges, _) => Vec::new(),
            (Shape::Rows { .. }, _) => far.collect(),
            (Shape::Pages { .. }, false) => far.chain(near).collect(),
            (Shape::Pages { .. }, true) => near.chain(far).collect(),
        };
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    /// `far`: the region there, and where its numbers begin.
    pub fn describe(&self, batch: &mut Batch<'_>, far: (&Region, u64), near: &Region, index: &Region) {
        let (far, far_at) = far;
        let (src, dst) = if self.writes { (near, far) } else { (far, near) };
        let blank = Descriptor {
            opcode: if self.writes { Opcode::WRITE.0 } else { Opcode::READ.0 },
            flags: self.route,
            src_region: src.handle().0,
            dst_region: dst.handle().0,
            count: 1,
            ..Descriptor::ZERO
        };
        let kinds = match (self.shape, self.writes) {
            (Shape::Ranges, _) => {
                for Piece { far, near, len } in &self.pieces {
                    let (src_offset, dst_offset) = turned(self.writes, far_at + far, *near);
                    let range = Descriptor { len: *len as u32, src_offset, dst_offset, ..blank };
                    batch.push(&range, &[src, dst]).unwrap();
                }
                return;
            }
            (Shape::Rows { .. }, false) => (IndexKind::U32, IndexKind::None),
            (Shape::Rows { .. }, true) => (IndexKind::None, IndexKind::U32),
            (Shape::Pages { .. }, _) => (IndexKind::U32, IndexKind::U32),
        };
        let (Shape::Rows { len } | Shape::Pages { len }) = self.shape else { return };
        let (src_offset, dst_offset) = turned(self.writes, far_at, 0);
        let indexed = Descriptor {
            index_kind: IndexKind::pack(kinds.0, kinds.1),
            index_region: index.handle().0,
            len,
            src_stride: len,
            dst_stride: len,
            count: self.pieces.len() as u32,
            src_offset,
            dst_offset,
            ..blank
        };
        batch.push(&indexed, &[src, dst, index]).unwrap();
    }
}

/// Source and destination.
fn turned(writes: bool, far: u64, near: u64) -> (u64, u64) {
    if writes { (near, far) } else { (far, near) }
}

fn piece(far: u64, near: u64, len: u64) -> Piece {
    Piece { far: far * len, near: near * len, len }
}

/// Rows there: any of the table; or of the zone, each once.
fn far_numbers(random: &mut Random, writes: bool, count: u64, len: u64) -> Vec<u64> {
    if !writes {
        return (0..count).map(|_| random.below(TABLE_BYTES / len)).collect();
    }
    let mut numbers = shuffled(random, (2 * count).min(ZONE_BYTES / len));
    numbers.truncate(count as usize);
    numbers
}

fn shuffled(random: &mut Random, count: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..count).collect();
    for i in 1..numbers.len() {
        numbers.swap(i, random.below(i as u64 + 1) as usize);
    }
    numbers
}
