//! The requester half: carries parts of this engine's batches over one connection.
//!
//! Events are taken here and in `answers`, without the line; `acting` carries out what the machine wants.

mod acting;
mod answers;
mod carried;
mod parts;
mod window;

use super::asked::Asked;
use super::line::{self, BATCHES, COMMANDS, QUEUE_DEPTH, WINDOW};
use super::parcel::Parcel;
use super::slots::SlotMemory;
use super::{NoPart, PartId, RemoteConfig};
use crate::link::{GrantId, Grants};
use crate::pack::ListTask;
use crate::pipeline::{BatchId, Chunk, Requester, RequesterLimits, WorkId};
use crate::plan::Direction;
use crate::region::RegionError;
use carried::{Carried, Table};
use parts::{Fence, Part};
use ring_abi::Route;
use window::{Pieces, Stretch};

pub use acting::Hands;
pub use parts::Moved;
pub use window::Zeros;

/// The requester half of a connection.
pub struct Asking {
    machine: Requester,
    parts: Vec<Part>,
    chunks: Table,
    /// Parcels that sessions have taken for this connection, and not added.
    promised: usize,
    /// Operations of the link.
    posted: Vec<Posted>,
    slots: SlotMemory,
    zeros: Zeros,
    /// Landing slots of the owner. `None` until it has named them: nothing begins before.
    owner_slots: Option<OwnerSlots>,
    #[expect(clippy::vec_box, reason = "tasks go round by pointer")]
    tasks: Vec<Box<ListTask>>,
    grants: Grants,
    /// By lane: operations and commands whose end is to come by it.
    awaited: Box<[u32]>,
    /// The lane of the next large chunk, counted without lane 0.
    next_lane: usize,
    pieces: Pieces,
    /// Zeros that the poller may still write in this turn.
    zero_budget: u32,
    /// A task was run on this thread, and more may be to be done.
    has_run: bool,
    limits: RequesterLimits,
    /// Doorbells of the machine so far.
    posts: u64,
    /// What was measured since it was taken last.
    sample: Option<(Moved, u64)>,
}

/// Where WRITEs land at the owner.
#[derive(Clone, Copy, Debug)]
struct OwnerSlots {
    grant: GrantId,
    slot_bytes: u32,
}

/// A doorbell of the machine that is under way.
#[derive(Clone, Copy, Debug)]
struct Posted {
    work: WorkId,
    chunk: u32,
    lane: usize,
    /// Of a window: what is still to be posted. `None`: a bulk write.
    rest: Option<Stretch>,
    /// READ: zeros that are to be written before that.
    zeros: Option<Stretch>,
    /// Its number among all.
    number: u64,
    /// The link has it. False: there is something to do before it has.
    is_out: bool,
}

impl Asking {
    /// # Errors
    /// If there is no memory for slots.
    pub fn new(config: &RemoteConfig, lanes: usize, grants: &Grants, zeros: &Zeros) -> Result<Asking, RegionError> {
        let chunks = line::chunks(config);
        let limits = RequesterLimits {
            batches: BATCHES,
            chunks,
            queue_depth: QUEUE_DEPTH,
            window: WINDOW,
            slots: config.slots,
            owner_slots: 0,
            commands: COMMANDS,
            acknowledge_ns: ACKNOWLEDGE_NS,
        };
        let mut slots = SlotMemory::new(config.slots, config.slot_bytes)?;
        slots.register(grants.domain(), true).map_err(RegionError::Device)?;
        Ok(Asking {
            machine: Requester::new(&limits),
            parts: Vec::with_capacity(BATCHES as usize),
            chunks: Table::new(chunks),
            promised: 0,
            posted: Vec::with_capacity((chunks + QUEUE_DEPTH / WINDOW) as usize),
            slots,
            zeros: zeros.clone(),
            owner_slots: None,
            tasks: (0..config.slots).map(|_| Box::default()).collect(),
            grants: grants.clone(),
            awaited: vec![0; lanes].into(),
            next_lane: 0,
            pieces: Pieces::new(),
            zero_budget: 0,
            has_run: false,
            limits,
            posts: 0,
            sample: None,
        })
    }

    pub fn begin(&mut self, direction: Direction, slots: u32, is_small: bool, part: PartId) -> Result<BatchId, NoPart> {
        if self.owner_slots.is_none() {
            return Err(NoPart::Busy);
        }
        let batch = self.machine.begin(direction, slots.clamp(1, self.limits.slots)).ok_or(NoPart::Busy)?;
        self.parts.push(Part::new(batch, part, direction, is_small));
        Ok(batch)
    }

    /// Keeps a place for a parcel of a part. False: there is none, or the part has its share of them: who plans first must not
    /// keep others out.
    pub fn promise(&mut self, batch: BatchId) -> bool {
        let share = (self.limits.chunks / self.parts.len().max(1) as u32).max(SHARE_MIN);
        let has_share = self.parts.iter().any(|part| part.batch == batch && part.chunks < share);
        let is_free = has_share && self.machine.has_chunk_room() && self.promised < self.chunks.room();
        self.promised += usize::from(is_free);
        is_free
    }

    /// A parcel that had a place was not used.
    pub fn unpromise(&mut self) {
        self.promised = self.promised.saturating_sub(1);
    }

    /// Takes a parcel that has a place, or gives it back: the part has ended.
    pub fn add(&mut self, batch: BatchId, parcel: Box<Parcel>, asked: &Asked) -> Result<(), Box<Parcel>> {
        self.unpromise();
        let (Some(part), Some(at)) = (self.parts.iter().position(|part| part.batch == batch), self.chunks.next())
        else {
            return Err(parcel);
        };
        let head = self.head(&parcel, self.parts[part].direction, at, asked);
        let Some(id) = self.machine.add(batch, head) else { return Err(parcel) };
        let lane = self.lane(self.parts[part].is_small);
        self.parts[part].bytes += u64::from(head.bytes);
        self.parts[part].chunks += 1;
        self.chunks.put(Carried {
            id,
            parcel,
            lane,
            is_asked: false,
            landing: None,
            revoking: None,
            went_direct: false,
            lease: None,
            fault: None,
            asked_ns: 0,
        });
        Ok(())
    }

    pub fn close(&mut self, batch: BatchId) {
        self.machine.close(batch);
    }

    pub fn cancel(&mut self, batch: BatchId, now_ns: u64) {
        if let Some(part) = self.part_mut(batch) {
            part.is_stopped = true;
        }
        self.machine.cancel(batch, now_ns);
    }

    /// Bytes of a part's chunks that are not finished.
    pub fn outstanding_bytes(&self, batch: BatchId) -> u64 {
        self.parts.iter().find(|part| part.batch == batch).map_or(0, |part| part.bytes)
    }

    /// The link is down: nothing new starts.
    pub fn down(&mut self) {
        self.machine.down();
    }

    /// The link is quiet: nobody is at any landing any more.
    pub fn quiesced(&mut self) {
        for (_, carried) in self.chunks.iter_mut() {
            let revoking = carried.revoking.take().map(|revoking| revoking.grant);
            // Unknown if its end was told before.
            carried.landing.take().or(revoking).into_iter().for_each(|grant| _ = self.grants.revoke(grant));
            carried.is_asked = false;
        }
        self.posted.clear();
        self.awaited.fill(0);
        self.machine.quiesced();
    }

    /// Doorbells so far.
    pub fn posts(&self) -> u64 {
        self.posts
    }

    /// The number of the first doorbell that is under way, or of the next one.
    pub fn oldest_post(&self) -> u64 {
        self.posted.iter().map(|posted| posted.number).min().unwrap_or(self.posts)
    }

    fn next_post(&mut self) -> u64 {
        self.posts += 1;
        self.posts - 1
    }

    /// The owner has named its landing slots.
    pub fn knows_slots(&self) -> bool {
        self.owner_slots.is_some()
    }

    /// True when nothing of any part is left.
    pub fn is_over(&self) -> bool {
        self.parts.is_empty() && self.chunks.len() == 0
    }

    /// There is something to do that no event will show.
    pub fn has_work(&self) -> bool {
        self.has_run
    }

    /// Something is to come by a lane.
    pub fn awaits(&self, lane: usize) -> bool {
        let drains = |part: &Part| matches!(part.fence, Fence::Lanes(lanes) if lanes & 1 << lane != 0);
        let is_new = lane == 0 && !self.knows_slots();
        is_new || self.awaited.get(lane).is_some_and(|count| *count > 0) || self.parts.iter().any(drains)
    }

    /// On the poller's clock, `u64::MAX` for never.
    pub fn next_timer_ns(&self) -> u64 {
        self.machine.next_timer_ns().unwrap_or(u64::MAX)
    }

    /// Most bytes of a gathered chunk.
    pub fn slot_bytes(&self) -> u32 {
        self.owner_slots.map_or(self.slots.slot_bytes(), |there| there.slot_bytes.min(self.slots.slot_bytes()))
    }

    /// What a part has moved, and in how many nanoseconds, once.
    pub fn take_sample(&mut self) -> Option<(Moved, u64)> {
        self.sample.take()
    }

    #[cfg(test)]
    pub fn counters(&self) -> crate::pipeline::RequesterCounters {
        self.machine.counters()
    }

    #[cfg(test)]
    pub fn check_idle(&self) {
        assert!(self.parts.is_empty() && self.chunks.len() == 0 && self.posted.is_empty() && self.promised == 0);
        assert_eq!((self.machine.batches(), self.machine.leased(), self.machine.outstanding()), (0, 0, 0));
        assert_eq!(self.tasks.len(), self.limits.slots as usize, "tasks");
        assert!(self.awaited.iter().all(|count| *count == 0), "awaited: {:?}", self.awaited);
        let counters = self.machine.counters();
        assert_eq!([counters.stale_completions, counters.stale_replies, counters.stale_tasks], [0; 3], "stale");
    }

    /// What the machine is told of a chunk.
    fn head(&self, parcel: &Parcel, direction: Direction, at: u32, asked: &Asked) -> Chunk {
        let chunk = &parcel.chunk;
        // Zeros are one piece that is nowhere: they can only be packed.
        let src_pieces = if chunk.src.contiguous().is_some() { 1 } else { chunk.src.pieces().max(2) };
        let is_read = direction == Direction::Read;
        let is_reached = |end: Option<(u32, u64)>, is_local| {
            end.is_none_or(|(region, _)| !self.grants.are_of_device() || is_reached(region, is_local, parcel, asked))
        };
        // What no device reaches is packed and unpacked, as pieces are. The owner knows that of its sources itself.
        let src_pieces =
            if is_read || is_reached(chunk.src.contiguous(), true) { src_pieces } else { src_pieces.max(2) };
        let dst_pieces = chunk.dst.pieces();
        let dst_pieces = if is_reached(chunk.dst.contiguous(), is_read) { dst_pieces } else { dst_pieces.max(2) };
        let (packer, other) = match direction {
            Direction::Read => (&chunk.src, &chunk.dst),
            Direction::Write => (&chunk.dst, &chunk.src),
        };
        debug_assert!(!other.encoded().is_empty() || chunk.bytes == 0);
        let fits = chunk.bytes <= self.slot_bytes();
        Chunk {
            route: if fits { chunk.route } else { Route::DIRECT },
            bytes: chunk.bytes,
            src_pieces,
            dst_pieces,
            // Counting segments costs more than planning them. There are no fewer, and the last window takes what is left.
            operations: src_pieces.max(dst_pieces),
            command_bytes: packer.encoded().len() as u32,
            lists: at,
        }
    }

    /// Small parts are carried by the poller itself; the chunks of others go round over the lanes that have threads.
    fn lane(&mut self, is_small: bool) -> usize {
        let threads = self.awaited.len() - 1;
        if is_small || threads == 0 {
            return 0;
        }
        self.next_lane = (self.next_lane + 1) % threads;
        1 + self.next_lane
    }

    fn part_mut(&mut self, batch: BatchId) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| part.batch == batch)
    }

    /// The part that a chunk belongs to.
    fn part_of(&mut self, at: u32) -> Option<&mut Part> {
        let batch = self.chunks.get(at)?.id.batch;
        self.part_mut(batch)
    }
}

/// True if devices reach a region that a chunk's list names.
fn is_reached(region: u32, is_local: bool, parcel: &Parcel, asked: &Asked) -> bool {
    match is_local {
        true => parcel.region(region).is_some_and(|region| region.local_key().is_some()),
        false => asked.remote(region).is_some_and(|remote| remote.is_reached()),
    }
}

/// How long what the link carries of a failed or cancelled part may take to end.
const ACKNOWLEDGE_NS: u64 = 1_000_000_000;
/// Chunks that a part may have whatever others have: enough to keep two lanes busy.
const SHARE_MIN: u32 = 8;
