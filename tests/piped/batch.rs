//! Batches: what is to be moved, and what has become of it.

use crate::seeded::Random;
use ring_abi::Route;
use scatter_ring::pipeline::{BatchId, Chunk, ChunkId};
use scatter_ring::plan::Direction;

/// One batch with its memory.
pub struct Run {
    pub id: BatchId,
    pub direction: Direction,
    /// P.
    pub slots: u32,
    pub src: Vec<u8>,
    pub dst: Vec<u8>,
    /// In the order of adding; the number of a chunk is its place.
    pub chunks: Vec<Planned>,
    pub added: u32,
    pub is_closed: bool,
    pub is_cancelled: bool,
    pub has_failed: bool,
    pub finished: Option<bool>,
}

/// One chunk with its lists.
pub struct Planned {
    pub chunk: Chunk,
    pub pieces: Vec<Piece>,
    /// How it ended.
    pub done: Option<bool>,
}

#[derive(Clone, Copy)]
pub struct Piece {
    pub src: usize,
    pub dst: usize,
    pub bytes: usize,
}

impl Run {
    /// With chunks whose pieces lie in any order where they are not contiguous.
    pub fn new(id: BatchId, direction: Direction, slots: u32, chunks: &[Chunk], random: &mut Random) -> Run {
        let mut planned = Vec::new();
        let mut start = 0;
        for chunk in chunks {
            let count = chunk.operations as usize;
            let bytes = chunk.bytes as usize / count;
            let places = |pieces: u32, random: &mut Random| {
                let mut order: Vec<usize> = (0..count).map(|k| start + k * bytes).collect();
                if pieces > 1 {
                    (1..count).for_each(|k| order.swap(k, random.below(k as u64 + 1) as usize));
                }
                order
            };
            let (src, dst) = (places(chunk.src_pieces, random), places(chunk.dst_pieces, random));
            let pieces = src.iter().zip(&dst).map(|(src, dst)| Piece { src: *src, dst: *dst, bytes }).collect();
            planned.push(Planned { chunk: *chunk, pieces, done: None });
            start += chunk.bytes as usize;
        }
        let src = (0..start).map(|_| random.word() as u8 | 1).collect();
        Run {
            id,
            direction,
            slots,
            src,
            dst: vec![0; start],
            chunks: planned,
            added: 0,
            is_closed: false,
            is_cancelled: false,
            has_failed: false,
            finished: None,
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.is_cancelled || self.has_failed
    }

    pub fn planned(&self, id: ChunkId) -> &Planned {
        &self.chunks[id.number as usize]
    }

    /// The bytes of a chunk in the order of its list. Nobody may look at them after the chunk's end.
    pub fn packed(&self, id: ChunkId) -> Vec<u8> {
        let planned = self.planned(id);
        assert!(planned.done.is_none() && self.finished.is_none(), "{id:?} is read after its end");
        planned.pieces.iter().flat_map(|p| &self.src[p.src..p.src + p.bytes]).copied().collect()
    }

    /// Puts a packed chunk where its bytes belong.
    pub fn unpack(&mut self, id: ChunkId, bytes: &[u8]) {
        let mut from = 0;
        for operation in 0..self.planned(id).pieces.len() {
            let piece = self.planned(id).pieces[operation];
            self.write(id, piece, &bytes[from..from + piece.bytes]);
            from += piece.bytes;
        }
    }

    /// One operation of the direct route.
    pub fn copy(&mut self, id: ChunkId, operation: u32) {
        let piece = self.planned(id).pieces[operation as usize];
        let bytes = self.src[piece.src..piece.src + piece.bytes].to_vec();
        self.write(id, piece, &bytes);
    }

    fn write(&mut self, id: ChunkId, piece: Piece, bytes: &[u8]) {
        assert!(self.finished.is_none(), "{id:?} is written after its batch has finished");
        assert!(self.planned(id).done.is_none(), "{id:?} is written after its end");
        self.dst[piece.dst..piece.dst + piece.bytes].copy_from_slice(bytes);
    }

    pub fn assert_is_in_place(&self, id: ChunkId) {
        for (operation, piece) in self.planned(id).pieces.iter().enumerate() {
            let (src, dst) = (&self.src[piece.src..][..piece.bytes], &self.dst[piece.dst..][..piece.bytes]);
            assert_eq!(src, dst, "piece {operation} of {id:?}");
        }
    }
}

/// Some chunks of both routes and of all four shapes.
pub fn any_chunks(random: &mut Random, most: u64) -> Vec<Chunk> {
    let hybrid = random.small(3);
    let count = random.below(most + 1);
    (0..count)
        .map(|_| {
            let operations = 1 + random.small(6);
            let is_direct = hybrid == 0 || hybrid == 1 && random.once_in(2);
            let contiguous = if operations == 1 { 0 } else { 1 };
            Chunk {
                route: if is_direct { Route::DIRECT } else { Route::GATHER },
                bytes: operations * (1 + random.small(4)),
                src_pieces: if contiguous == 0 || random.once_in(2) { 1 } else { operations },
                dst_pieces: if contiguous == 0 || random.once_in(2) { 1 } else { operations },
                operations,
                command_bytes: 4 * operations,
                lists: 0,
            }
        })
        .collect()
}
