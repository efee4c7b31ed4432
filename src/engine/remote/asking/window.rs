//! The direct route: a window of a chunk's segments as one operation of the link.

use super::super::asked::Asked;
use super::super::parcel::Parcel;
use crate::link::{LocalPiece, OPERATION_BYTES_MAX, PIECES_MAX, RemotePiece};
use crate::plan::{Direction, Fault, Segment};
use crate::region::{Region, Rights};
use crate::verbs::{ProtectionDomain, VerbsError};
use ring_abi::{Field, Stage, Status};
use std::sync::Arc;

/// Segments of a chunk that are to be posted. Those that do not fit into one operation of the link go by the next one, when
/// the first has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The next segment, counted without those that are on no wire.
    pub next: u32,
    /// Bytes of it that were posted.
    pub skip: u32,
    /// Behind the last; all ones: up to the end.
    pub end: u32,
}

/// The pieces of an operation. Allocated once.
#[derive(Debug)]
pub struct Pieces {
    pub local: Vec<LocalPiece>,
    pub remote: Vec<RemotePiece>,
}

/// Zeros to send: memory that nobody writes to.
#[derive(Clone, Debug)]
pub struct Zeros(Arc<Region>);

const ZEROS: [u8; 4096] = [0; 4096];

impl Stretch {
    /// All of them.
    pub const ALL: Stretch = Stretch { next: 0, skip: 0, end: u32::MAX };

    pub fn is_over(&self) -> bool {
        self.next >= self.end
    }
}

impl Pieces {
    pub fn new() -> Pieces {
        Pieces { local: Vec::with_capacity(PIECES_MAX), remote: Vec::with_capacity(PIECES_MAX) }
    }

    pub fn clear(&mut self) {
        self.local.clear();
        self.remote.clear();
    }

    /// Takes as much of a stretch as one operation can have, and moves it on. Nothing taken: it is at its end.
    ///
    /// # Errors
    /// Memory that is gone.
    pub fn cut(
        &mut self,
        parcel: &Parcel,
        direction: Direction,
        stretch: &mut Stretch,
        asked: &Asked,
        zeros: &Zeros,
    ) -> Result<(), Fault> {
        self.clear();
        let is_on_wire = |segment: &Segment| !(segment.zero && direction == Direction::Read);
        let segments = parcel.chunk.segments().filter(is_on_wire);
        let count = (stretch.end - stretch.next) as usize;
        let mut bytes = 0;
        for segment in segments.skip(stretch.next as usize).take(count) {
            while stretch.skip < segment.len {
                let most = if segment.zero { zeros.bytes() } else { u32::MAX };
                let left = u32::try_from(OPERATION_BYTES_MAX - bytes).unwrap_or(u32::MAX);
                let len = (segment.len - stretch.skip).min(most).min(left);
                if len == 0 || self.local.len() == PIECES_MAX {
                    return Ok(());
                }
                self.push(parcel, direction, &segment, (stretch.skip, len), asked, zeros)?;
                stretch.skip += len;
                bytes += u64::from(len);
            }
            (stretch.next, stretch.skip) = (stretch.next + 1, 0);
        }
        stretch.end = stretch.next;
        Ok(())
    }

    fn push(
        &mut self,
        parcel: &Parcel,
        direction: Direction,
        segment: &Segment,
        (skip, len): (u32, u32),
        asked: &Asked,
        zeros: &Zeros,
    ) -> Result<(), Fault> {
        let (src, dst) = (segment.src + u64::from(skip), segment.dst + u64::from(skip));
        let (local, remote) = match direction {
            Direction::Read => ((segment.dst_region, dst), (segment.src_region, src)),
            Direction::Write => ((segment.src_region, src), (segment.dst_region, dst)),
        };
        let piece = if segment.zero { zeros.piece(len) } else { local_piece(parcel, local, len) }?;
        self.remote.push(remote_piece(asked, remote, len)?);
        self.local.push(piece);
        Ok(())
    }
}

impl Zeros {
    pub fn new(region: Arc<Region>) -> Zeros {
        Zeros(region)
    }

    /// Has a device send them.
    ///
    /// # Errors
    /// What the device says.
    pub fn register(&self, domain: &Arc<ProtectionDomain>) -> Result<(), VerbsError> {
        self.0.register(domain)
    }

    fn bytes(&self) -> u32 {
        u32::try_from(self.0.bytes()).unwrap_or(u32::MAX)
    }

    fn piece(&self, len: u32) -> Result<LocalPiece, Fault> {
        LocalPiece::of_region(&self.0, 0, len).ok_or(DEFECT)
    }
}

/// Memory of this side, by the client's handle.
pub fn local_piece(parcel: &Parcel, (handle, offset): (u32, u64), len: u32) -> Result<LocalPiece, Fault> {
    let region = parcel.region(handle).ok_or(gone(handle))?;
    LocalPiece::of_region(region, offset, len).ok_or(DEFECT)
}

/// Memory of the other side, by its number in lists.
pub fn remote_piece(asked: &Asked, (number, offset): (u32, u64), len: u32) -> Result<RemotePiece, Fault> {
    let remote = asked.remote(number).filter(|remote| !remote.is_withdrawn()).ok_or(gone(number))?;
    Ok(RemotePiece { grant: remote.grant, offset, len })
}

/// READ: writes a chunk's zeros, which nobody sends, and moves the stretch on. No more than `budget` bytes, which it takes
/// them from: with that used up there may be more.
///
/// # Errors
/// Memory that is gone.
pub fn fill_zeros(parcel: &Parcel, stretch: &mut Stretch, budget: &mut u32) -> Result<(), Fault> {
    for segment in parcel.chunk.segments().filter(|segment| segment.zero).skip(stretch.next as usize) {
        let usable = |region: &&Arc<Region>| !region.is_withdrawn() && region.rights().covers(Rights::WRITE);
        let region = parcel.region(segment.dst_region).filter(usable).ok_or(gone(segment.dst_region))?;
        while stretch.skip < segment.len {
            let len = (segment.len - stretch.skip).min(ZEROS.len() as u32).min(*budget);
            if len == 0 {
                return Ok(());
            }
            let at = segment.dst + u64::from(stretch.skip);
            region.write_at(at, &ZEROS[..len as usize]).map_err(|_| gone(segment.dst_region))?;
            stretch.skip += len;
            *budget -= len;
        }
        (stretch.next, stretch.skip) = (stretch.next + 1, 0);
    }
    stretch.end = stretch.next;
    Ok(())
}

/// A region is not there any more.
pub const fn gone(region: u32) -> Fault {
    Fault::new(Status::REGION_GONE, Stage::WINDOW, Field::NONE, region as u64)
}

/// What planning makes sure of is not so.
pub const DEFECT: Fault = Fault::new(Status::INTERNAL, Stage::WINDOW, Field::NONE, 0);
