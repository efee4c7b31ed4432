//! The requester's side of one link: batches of planned chunks in, operations and messages out.

mod ending;
mod state;
mod turns;

use super::batch::NONE;
use super::list::List;
use super::messages::{BatchId, Chunk, ChunkId, Landing, Origin, Reply, Request, WorkFault, WorkId};
use super::slab::Slab;
use super::slots::{Lease, Slots};
use super::works::{WORKS_MAX, Works};
use crate::plan::{Direction, Fault};
use ring_abi::Route;
pub(super) use state::LinkState;
use state::{Batch, ChunkState, Step, Wait, Work};
use turns::Turns;

/// Carries the chunks of batches over one connection, each by its route, within the limits.
///
/// Events go in by the methods; after each, [`next_action`](Self::next_action) is called until it gives nothing. All
/// storage is allocated by [`new`](Self::new). Events that name what is not known (any more) are counted and change
/// nothing. A new connection gets a new machine.
#[derive(Debug)]
pub struct Requester {
    limits: RequesterLimits,
    state: LinkState,
    batches: Slab<Batch>,
    /// No batch lies here or behind: what is not there need not be looked at.
    batches_end: u32,
    chunks: Slab<ChunkState>,
    works: Works<Work>,
    /// Operations of them.
    outstanding: u32,
    slots: Slots,
    /// The chunk in each slot.
    holders: Box<[u32]>,
    /// Landing slots of the owner that are free.
    landings: Vec<u32>,
    /// Chunks that are commands at the owner.
    commands: Vec<u32>,
    /// Chunks in the lists of all batches, by what they wait for.
    waiting: [u32; Wait::ALL.len()],
    /// Chunks whose end is to be said.
    ended: List,
    /// Failures that are to be said.
    unsaid: u32,
    turns: Turns,
    batches_begun: u64,
    /// Not later than any deadline of a batch that drains.
    next_deadline_ns: u64,
    /// Something of a batch may be to be said.
    has_news: bool,
    /// There is nothing to do until another event comes.
    is_settled: bool,
    counters: RequesterCounters,
}

/// What bounds the requester's side of a link.
#[derive(Clone, Copy, Debug)]
pub struct RequesterLimits {
    /// Batches under way at once.
    pub batches: u32,
    /// Chunks that were planned and are not finished, of all batches.
    pub chunks: u32,
    /// Operations outstanding, Q: those of windows, bulk writes, and messages behind bulk writes. 1 to 65,536, else the
    /// nearest. The other messages are at most one per gathered chunk outstanding and one per batch; they need room
    /// besides.
    pub queue_depth: u32,
    /// Most operations of one doorbell, 1 to `queue_depth`, else the nearest; at most half of it if one window is to be
    /// posted while the one before it is under way.
    pub window: u32,
    /// Staging slots of this side: READ lands there where the destination is fragmented, WRITE packs there.
    pub slots: u32,
    /// Landing slots of the owner that this link may use, for WRITE to a fragmented destination.
    pub owner_slots: u32,
    /// Gathered chunks outstanding at the owner.
    pub commands: u32,
    /// How long what the link carries of a failed or cancelled batch may take to end, the answer to a cancel included,
    /// before the link is broken.
    pub acknowledge_ns: u64,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequesterAction {
    /// Direct: post operations `first .. first + count` of the chunk with one doorbell, the last one signalled.
    /// [`Requester::completed`] or [`Requester::post_failed`] follows.
    Post { id: ChunkId, chunk: Chunk, first: u32, count: u32, work: WorkId },
    /// WRITE: pack the chunk from its source into a slot of this side. [`Requester::packed`] follows.
    Pack { id: ChunkId, chunk: Chunk, lease: Lease },
    /// WRITE: post the bulk write. If it lands in a slot, [`Request::Unpack`] goes behind it by the same doorbell. The
    /// last of what is posted is signalled. [`Requester::completed`] or [`Requester::post_failed`] follows.
    PostBulk { id: ChunkId, chunk: Chunk, origin: Origin, landing: Landing, work: WorkId },
    /// READ: unpack the chunk from a slot of this side to its destination. [`Requester::unpacked`] follows.
    Unpack { id: ChunkId, chunk: Chunk, lease: Lease },
    /// Send this to the owner.
    Send(Request),
    /// Break the link: nothing that was posted on it may be carried out afterwards, in either direction. Then say
    /// [`Requester::quiesced`].
    Break,
    /// The chunk's bytes are where they belong; its lists are not needed any more.
    ChunkDone { id: ChunkId, chunk: Chunk },
    /// The chunk was given up, and nothing of it is under way; its lists are not needed any more.
    ChunkDropped { id: ChunkId, chunk: Chunk },
    /// The batch has failed with this, at this chunk; nothing more of it will be started. Said once, at once.
    Failed { batch: BatchId, chunk: u32, fault: Fault },
    /// Nothing of the batch is under way: nobody writes to or reads from its memory on this side, nor, unless the link
    /// was broken, on the owner's. The last thing said of a batch, which is unknown from here on. `done`: every chunk
    /// was, and it neither failed nor was cancelled.
    ///
    /// Behind a broken link the owner's workers may still be at what they were told before. Its memory, where a WRITE
    /// goes, is free when the owner has said [`Closed`](super::OwnerAction::Closed), and not earlier.
    Finished { batch: BatchId, done: bool },
}

/// What has been counted since the machine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequesterCounters {
    /// Windows and bulk writes posted.
    pub doorbells: u64,
    /// Operations of them, the messages behind bulk writes included.
    pub operations: u64,
    /// Signalled operations: one of each doorbell.
    pub signalled: u64,
    /// Messages, those behind bulk writes not included.
    pub messages: u64,
    /// Chunks that the owner refused; they went direct.
    pub refused: u64,
    /// Completions and failed posts that named nothing outstanding.
    pub stale_completions: u64,
    /// Replies that named nothing asked for.
    pub stale_replies: u64,
    /// Reports of packing and unpacking that named nothing under way.
    pub stale_tasks: u64,
}

impl Requester {
    /// With room for what the limits say.
    #[must_use]
    pub fn new(limits: &RequesterLimits) -> Requester {
        let queue_depth = limits.queue_depth.clamp(1, WORKS_MAX);
        let limits = RequesterLimits { queue_depth, window: limits.window.clamp(1, queue_depth), ..*limits };
        Requester {
            limits,
            state: LinkState::Up,
            batches: Slab::new(limits.batches),
            batches_end: 0,
            chunks: Slab::new(limits.chunks),
            works: Works::new(queue_depth),
            outstanding: 0,
            slots: Slots::new(limits.slots),
            holders: vec![NONE; limits.slots as usize].into(),
            landings: (0..limits.owner_slots).rev().collect(),
            commands: Vec::with_capacity(limits.commands as usize),
            waiting: [0; Wait::ALL.len()],
            ended: List::EMPTY,
            unsaid: 0,
            turns: Turns::default(),
            batches_begun: 0,
            next_deadline_ns: u64::MAX,
            has_news: false,
            is_settled: true,
            counters: RequesterCounters::default(),
        }
    }

    /// True if another batch can begin.
    #[must_use]
    pub fn has_batch_room(&self) -> bool {
        self.state == LinkState::Up && !self.batches.is_full()
    }

    /// True if another chunk can be added.
    #[must_use]
    pub fn has_chunk_room(&self) -> bool {
        self.state == LinkState::Up && !self.chunks.is_full()
    }

    /// Begins a batch that may use so many slots of this side at once, and have so many chunks at the owner: P of its
    /// plan. `None` if there is no room or the link is not up.
    pub fn begin(&mut self, direction: Direction, slots: u32) -> Option<BatchId> {
        if !self.has_batch_room() {
            return None;
        }
        let id = BatchId(self.batches_begun);
        let at = self.batches.insert(Batch::new(id, direction, slots)).ok()?;
        self.batches_end = self.batches_end.max(at + 1);
        self.batches_begun = self.batches_begun.wrapping_add(1);
        Some(id)
    }

    /// Adds a planned chunk. `None`, and the chunk's lists stay with the caller: there is no room, or the batch is closed,
    /// failed, cancelled or unknown. A gathered chunk that can never have what it needs within the limits goes direct.
    pub fn add(&mut self, batch: BatchId, chunk: Chunk) -> Option<ChunkId> {
        let at = self.find(batch).filter(|_| self.has_chunk_room())?;
        let known = self.batches.get(at).filter(|b| !b.is_closed && !b.is_stopped)?;
        let (direction, id) = (known.direction, ChunkId { batch, number: known.next_number });
        let next_number = id.number.checked_add(1)?;
        let state = ChunkState {
            id,
            chunk: Chunk { operations: chunk.operations.max(1), ..chunk },
            batch: at,
            step: Step::Moves,
            is_direct: chunk.route != Route::GATHER || !self.can_gather(known, &chunk),
            posted: 0,
            works: 0,
            lease: None,
            landing: None,
            is_command: false,
            is_refused: false,
            is_spoiled: false,
            next: NONE,
        };
        let first = match direction {
            _ if state.is_direct => Wait::Window,
            Direction::Read if state.lands_in_slot() => Wait::Slot,
            Direction::Read => Wait::Command,
            Direction::Write if state.is_packed() => Wait::Slot,
            Direction::Write if state.lands_in_slot() => Wait::Landing,
            Direction::Write => Wait::Bulk,
        };
        let added = self.chunks.insert(state).ok()?;
        if let Some(known) = self.batches.get_mut(at) {
            known.next_number = next_number;
            known.chunks += 1;
        }
        self.wait(added, first);
        Some(id)
    }

    /// No more chunks will be added to the batch.
    pub fn close(&mut self, batch: BatchId) {
        if let Some(batch) = self.find(batch).and_then(|at| self.batches.get_mut(at)) {
            batch.is_closed = true;
            self.has_news = true;
            self.is_settled = false;
        }
    }

    /// Starts nothing more of the batch; [`Finished`](RequesterAction::Finished) follows when nothing of it is under way.
    /// A batch whose chunks are all done, or that has failed, is not affected.
    pub fn cancel(&mut self, batch: BatchId, now_ns: u64) {
        let Some(at) = self.find(batch) else { return };
        if self.batches.get(at).is_some_and(|b| !b.is_done()) {
            self.stop(at, now_ns);
        }
    }

    /// A [`Pack`](RequesterAction::Pack) has ended: the slot holds the chunk, or the chunk cannot be packed.
    pub fn packed(&mut self, id: ChunkId, lease: Lease, result: Result<(), Fault>, now_ns: u64) {
        let Some(at) = self.end_task(id, lease, Step::Packs) else { return };
        match result {
            Ok(()) if self.is_stopped(at) => self.give_up(at),
            Ok(()) => self.wait_packed(at),
            Err(fault) => self.spoil(at, fault, now_ns),
        }
    }

    /// An [`Unpack`](RequesterAction::Unpack) has ended: the bytes are in place, or they cannot be put there.
    pub fn unpacked(&mut self, id: ChunkId, lease: Lease, result: Result<(), Fault>, now_ns: u64) {
        let Some(at) = self.end_task(id, lease, Step::Unpacks) else { return };
        match result {
            Ok(()) => self.settle(at),
            Err(fault) => self.spoil(at, fault, now_ns),
        }
    }

    /// All operations of a [`Post`](RequesterAction::Post) or [`PostBulk`](RequesterAction::PostBulk) have been carried
    /// out; or one has failed, and none of them can be carried out any more. A device that stops at the first failure is
    /// reported by [`down`](Self::down) besides.
    pub fn completed(&mut self, work: WorkId, result: Result<(), WorkFault>, now_ns: u64) {
        let Some(posted) = self.works.take(work) else {
            self.counters.stale_completions += 1;
            return;
        };
        self.is_settled = false;
        self.outstanding -= posted.operations;
        let Some(chunk) = self.chunks.get_mut(posted.chunk) else { return };
        chunk.works -= 1;
        if let Some(batch) = self.batches.get_mut(chunk.batch) {
            batch.works -= 1;
            self.has_news |= batch.is_stopped;
        }
        // A packed chunk has been read out of its slot; a direct one has none.
        self.return_lease(posted.chunk);
        match result {
            Ok(()) => self.settle(posted.chunk),
            // The owner may have got the message behind a bulk write all the same: its answer is still awaited.
            Err(fault) => self.spoil(posted.chunk, fault.fault(posted.first), now_ns),
        }
    }

    /// Only the first `posted` operations of a doorbell were posted, so the signalled one is not among them and no
    /// completion will come: breaks the link.
    pub fn post_failed(&mut self, work: WorkId, posted: u32) {
        let Some(meant) = self.works.take(work) else {
            self.counters.stale_completions += 1;
            return;
        };
        // What was posted counts, and its chunk waits, until the link is quiet.
        let unposted = meant.operations.saturating_sub(posted);
        self.outstanding -= unposted;
        self.counters.operations -= u64::from(unposted);
        self.counters.signalled -= 1;
        self.down();
    }

    /// The owner's message. It is believed only if it answers what is outstanding.
    pub fn reply(&mut self, reply: Reply, now_ns: u64) {
        let is_known = match reply {
            Reply::Done(id) => self.answered(id).map(|at| self.landed(at)),
            Reply::Refused(id) => self.answered(id).map(|at| self.refused(at)),
            Reply::Failed(id, fault) => self.answered(id).map(|at| self.spoil(at, fault, now_ns)),
            Reply::Drained(batch) => self.drained(batch),
        };
        self.counters.stale_replies += u64::from(is_known.is_none());
    }

    /// Time has passed.
    pub fn advance(&mut self, now_ns: u64) {
        if now_ns < self.next_deadline_ns {
            return;
        }
        let draining = self.batches.iter().filter(|(_, batch)| batch.is_draining());
        self.next_deadline_ns = draining.map(|(_, batch)| batch.deadline_ns).min().unwrap_or(u64::MAX);
        if self.next_deadline_ns <= now_ns {
            self.down();
        }
    }

    /// When [`advance`](Self::advance) will next have something to do. Never later than that; maybe earlier.
    #[must_use]
    pub fn next_timer_ns(&self) -> Option<u64> {
        (self.state == LinkState::Up && self.next_deadline_ns != u64::MAX).then_some(self.next_deadline_ns)
    }

    /// What has been counted.
    #[must_use]
    pub fn counters(&self) -> RequesterCounters {
        self.counters
    }

    /// Batches that are not finished.
    #[must_use]
    pub fn batches(&self) -> u32 {
        self.batches.len() as u32
    }

    /// Operations outstanding.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Slots of this side in use.
    #[must_use]
    pub fn leased(&self) -> u32 {
        self.slots.leased()
    }

    /// Most slots of this side that were in use at once.
    #[must_use]
    pub fn leased_peak(&self) -> u32 {
        self.slots.peak()
    }

    /// True if a gathered chunk of this batch can have all that it needs.
    fn can_gather(&self, batch: &Batch, chunk: &Chunk) -> bool {
        let slots = batch.slots.min(self.limits.slots) > 0;
        let commands = batch.slots.min(self.limits.commands) > 0;
        let (packed, lands) = (chunk.src_pieces > 1, chunk.dst_pieces > 1);
        match batch.direction {
            Direction::Read => commands && (slots || !lands),
            Direction::Write => {
                let landing = commands && self.limits.owner_slots > 0 && self.limits.queue_depth > 1;
                (slots || !packed) && (landing || !lands)
            }
        }
    }

    fn find(&self, batch: BatchId) -> Option<u32> {
        self.batches.iter().find(|(_, known)| known.id == batch).map(|(at, _)| at)
    }
}
