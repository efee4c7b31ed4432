//! What is planned: a part of a batch that takes one route.

use super::list::{List, ListPieces};
use super::section::ListPiece;
use super::work::Direction;
use ring_abi::Route;
use std::iter::Peekable;

/// A part of a batch: the same bytes as a list of source pieces and as a list of destination pieces. Its buffers are
/// allocated once and swapped with a planner's ([`Planner::take`](super::Planner::take)).
#[derive(Clone, Debug)]
pub struct Chunk {
    /// Where the bytes are. Zeros may be among them.
    pub src: List,
    /// Where they go.
    pub dst: List,
    /// DIRECT or GATHER.
    pub route: Route,
    /// Payload.
    pub bytes: u32,
    /// The transfer that its first segment begins with, by [`Planner::number`](super::Planner::number). That segment may
    /// go on from the chunk before.
    pub transfer: u32,
    /// Number of the fragment of that transfer.
    pub fragment: u32,
}

/// A run of a chunk's bytes that is contiguous on both sides: an operation of the direct route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Handle of the source region.
    pub src_region: u32,
    /// Bytes from its start; 0 if `zero`.
    pub src: u64,
    /// Handle of the destination region.
    pub dst_region: u32,
    /// Bytes from its start.
    pub dst: u64,
    /// Bytes, at least 1.
    pub len: u32,
    /// It has no source: the destination is to be filled with 0.
    pub zero: bool,
}

/// An operation of the direct route: one range at the remote side, some pieces at the local one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Handle of the remote region.
    pub region: u32,
    /// Bytes from its start.
    pub offset: u64,
    /// Bytes.
    pub bytes: u32,
    /// How many of the chunk's segments, from the one behind the operation before, it moves. READ: zeros are in no
    /// operation, and skipped.
    pub segments: u32,
}

impl Chunk {
    /// An empty one.
    #[must_use]
    pub fn new() -> Chunk {
        Chunk { src: List::new(), dst: List::new(), route: Route::NONE, bytes: 0, transfer: 0, fragment: 0 }
    }

    /// Its segments, neighbours that are adjacent on both sides merged.
    #[must_use]
    pub fn segments(&self) -> Segments<'_> {
        Segments { src: self.src.iter(), dst: self.dst.iter(), left: [None; 2], merged: None }
    }

    /// Its operations by the direct route. Each is contiguous at the remote side (READ: the source, WRITE: the destination)
    /// and has up to `max_sge` local pieces (at least 1).
    #[must_use]
    pub fn operations(&self, direction: Direction, max_sge: u32) -> Operations<'_> {
        Operations { segments: self.segments().peekable(), direction, max_sge }
    }

    /// While it is empty: what it begins with.
    pub(super) fn note_first(&mut self, mark: u64) {
        if self.bytes == 0 {
            (self.transfer, self.fragment) = ((mark >> 32) as u32, mark as u32);
        }
    }

    pub(super) fn clear(&mut self) {
        self.src.clear();
        self.dst.clear();
        self.bytes = 0;
    }
}

impl Default for Chunk {
    fn default() -> Self {
        Chunk::new()
    }
}

/// See [`Chunk::segments`].
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    src: ListPieces<'a>,
    dst: ListPieces<'a>,
    /// What is left of the piece that each side is at.
    left: [Option<ListPiece>; 2],
    /// Grows until what follows is not adjacent.
    merged: Option<Segment>,
}

impl Segments<'_> {
    /// The next run that is one piece on both sides as they are spelled.
    fn part(&mut self) -> Option<Segment> {
        let mut src = self.left[0].take().or_else(|| self.src.next())?;
        let mut dst = self.left[1].take().or_else(|| self.dst.next())?;
        let len = src.len.min(dst.len);
        let part = Segment {
            src_region: src.region,
            src: src.offset,
            dst_region: dst.region,
            dst: dst.offset,
            len,
            zero: src.zero,
        };
        for (piece, left) in [&mut src, &mut dst].into_iter().zip(&mut self.left) {
            piece.len -= len;
            if !piece.zero {
                piece.offset += u64::from(len);
            }
            *left = (piece.len > 0).then_some(*piece);
        }
        Some(part)
    }
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        loop {
            let Some(part) = self.part() else { return self.merged.take() };
            let Some(merged) = &mut self.merged else {
                self.merged = Some(part);
                continue;
            };
            let end = u64::from(merged.len);
            let src_goes_on = merged.src_region == part.src_region
                && merged.zero == part.zero
                && (part.zero || merged.src + end == part.src);
            let dst_goes_on = merged.dst_region == part.dst_region && merged.dst + end == part.dst;
            if !(src_goes_on && dst_goes_on) {
                return self.merged.replace(part);
            }
            // A chunk's bytes are counted in 32 bits.
            merged.len += part.len;
        }
    }
}

/// See [`Chunk::operations`].
#[derive(Clone, Debug)]
pub struct Operations<'a> {
    segments: Peekable<Segments<'a>>,
    direction: Direction,
    max_sge: u32,
}

impl Iterator for Operations<'_> {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        let direction = self.direction;
        let is_local = |segment: &Segment| direction == Direction::Read && segment.zero;
        let remote = |segment: &Segment| match direction {
            Direction::Read => (segment.src_region, segment.src),
            Direction::Write => (segment.dst_region, segment.dst),
        };
        let first = self.segments.find(|segment| !is_local(segment))?;
        let (region, offset) = remote(&first);
        let mut operation = Operation { region, offset, bytes: first.len, segments: 1 };
        while operation.segments < self.max_sge {
            let end = (region, offset + u64::from(operation.bytes));
            let Some(next) = self.segments.next_if(|next| !is_local(next) && remote(next) == end) else { break };
            operation.bytes += next.len;
            operation.segments += 1;
        }
        Some(operation)
    }
}
