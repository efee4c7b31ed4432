//! Registered memory for frames: what is sent, and what is received.

use super::SetupError;
use super::frame::FRAME_BYTES_MAX;
use crate::region::{Huge, Region};
use crate::verbs::{Piece, ProtectionDomain, QueuePair, VerbsError};
use std::collections::VecDeque;
use std::sync::Arc;

/// Buffers of one length, one behind the other.
#[derive(Debug)]
struct Buffers {
    region: Region,
    key: u32,
}

impl Buffers {
    fn new(domain: &Arc<ProtectionDomain>, count: u32) -> Result<Buffers, SetupError> {
        let bytes = u64::from(count) * FRAME_BYTES_MAX as u64;
        let (region, _) = Region::allocate(bytes, Huge::Never).map_err(SetupError::Memory)?;
        region.register(domain)?;
        let key = region.local_key().ok_or(SetupError::NoKey)?;
        Ok(Buffers { region, key })
    }

    fn offset(&self, buffer: u32) -> u64 {
        u64::from(buffer) * FRAME_BYTES_MAX as u64
    }

    fn at(&self, buffer: u32) -> *mut u8 {
        self.region.as_ptr().wrapping_add(self.offset(buffer) as usize)
    }
}

/// What sends are made from. They are taken and given back in one order, that of the queue pair.
#[derive(Debug)]
pub(super) struct Sends {
    buffers: Buffers,
    count: u32,
    next: u32,
    out: u32,
}

impl Sends {
    pub fn new(domain: &Arc<ProtectionDomain>, count: u32) -> Result<Sends, SetupError> {
        Ok(Sends { buffers: Buffers::new(domain, count)?, count, next: 0, out: 0 })
    }

    pub fn has_room(&self) -> bool {
        self.out < self.count
    }

    /// Copies a frame into a buffer, which there [is](Self::has_room). `None`: it is too long, or there is none.
    pub fn fill(&mut self, frame: &[u8]) -> Option<Piece> {
        if frame.len() > FRAME_BYTES_MAX || !self.has_room() {
            return None;
        }
        let buffer = self.next;
        self.buffers.region.write_at(self.buffers.offset(buffer), frame).ok()?;
        self.next = (self.next + 1) % self.count;
        self.out += 1;
        Some(Piece::new(self.buffers.at(buffer), frame.len() as u32, self.buffers.key))
    }

    /// The send that has the oldest buffer is over.
    pub fn give_back(&mut self) {
        self.out = self.out.saturating_sub(1);
    }

    /// The youngest buffers were not posted.
    pub fn take_back(&mut self, count: u32) {
        self.out = self.out.saturating_sub(count);
        self.next = (self.next + self.count - count % self.count) % self.count;
    }
}

/// What frames come into.
#[derive(Debug)]
pub(super) struct Receives {
    buffers: Buffers,
    /// By buffer: how often it was posted, counted from a number that no other link's began with.
    times: Box<[u32]>,
    /// The buffers that are posted, in their order, which is that in which the device fills and flushes them.
    posted: VecDeque<u16>,
    /// So many of the first ones were passed over.
    lacking: usize,
    lane: usize,
}

/// What a completion says of the receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Came {
    pub buffer: usize,
    /// Others were posted before it, and have not come: what was sent to them is lost.
    pub is_early: bool,
}

/// The bit of a request's number that says that it is a receive.
pub(super) const RECEIVE: u64 = 1 << 63;
/// Where the lane stands in it.
pub(super) const LANE_SHIFT: u32 = 56;

impl Receives {
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        lane: usize,
        count: u32,
        generation: u32,
    ) -> Result<Receives, SetupError> {
        let (times, posted) = (vec![generation; count as usize].into(), VecDeque::with_capacity(count as usize));
        Ok(Receives { buffers: Buffers::new(domain, count)?, times, posted, lacking: 0, lane })
    }

    pub fn post_all(&mut self, queue_pair: &mut QueuePair) -> Result<(), VerbsError> {
        (0..self.times.len()).try_for_each(|buffer| self.post(queue_pair, buffer))
    }

    /// Posts a buffer that is not posted.
    pub fn post(&mut self, queue_pair: &mut QueuePair, buffer: usize) -> Result<(), VerbsError> {
        let Some(times) = self.times.get_mut(buffer) else { return Ok(()) };
        *times = times.wrapping_add(1);
        let id = self.id(buffer);
        let at = self.buffers.at(buffer as u32);
        // SAFETY: the buffer is registered, and kept until every receive has come home; if that cannot be known it is
        // leaked. It is read by copying only, when its receive is over.
        unsafe { queue_pair.post_receive(id, at, FRAME_BYTES_MAX as u32, self.buffers.key)? };
        self.posted.push_back(buffer as u16);
        Ok(())
    }

    /// A completion has come for a receive of this number. `None`: no such receive is posted.
    pub fn came(&mut self, id: u64) -> Option<Came> {
        let buffer = (id & 0xFFFF) as usize;
        if buffer >= self.times.len() || id != self.id(buffer) {
            return None;
        }
        let place = self.posted.iter().position(|posted| usize::from(*posted) == buffer)?;
        self.posted.remove(place);
        // One of those that were passed over has come late; or others are passed over now.
        self.lacking = if place < self.lacking { self.lacking - 1 } else { place };
        Some(Came { buffer, is_early: place > 0 })
    }

    /// What the device calls a buffer.
    fn id(&self, buffer: usize) -> u64 {
        let times = self.times.get(buffer).copied().unwrap_or(0);
        RECEIVE | (self.lane as u64) << LANE_SHIFT | u64::from(times) << 16 | buffer as u64
    }

    /// Copies what has come.
    pub fn read(&self, buffer: usize, len: usize, into: &mut Vec<u8>) -> bool {
        into.resize(len.min(FRAME_BYTES_MAX), 0);
        len <= FRAME_BYTES_MAX && self.buffers.region.read_at(self.buffers.offset(buffer as u32), into).is_ok()
    }

    /// One that was posted before another one that has come home has not.
    pub fn lacks_one(&self) -> bool {
        self.lacking > 0
    }

    /// Receives that have not come home.
    pub fn len(&self) -> u64 {
        self.posted.len() as u64
    }

    /// All receives have come home.
    pub fn are_home(&self) -> bool {
        self.posted.is_empty()
    }
}
