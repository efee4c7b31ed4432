//! The owner's side of all its links: commands in, packing and bulk writes out.

mod commands;
mod link;

use super::LinkState;
use super::batch::NONE;
use super::messages::{Chunk, ChunkId, Landing, Origin, Reply, Request, WorkFault, WorkId};
use super::slots::{Lease, Slots};
use super::works::WORKS_MAX;
use crate::plan::Fault;
use link::{Command, Link, Step};
use std::collections::VecDeque;

/// Answers the commands of the requesters of all links.
///
/// Events go in by the methods; after each, [`next_action`](Self::next_action) is called until it gives nothing. All
/// storage is allocated by [`new`](Self::new). Events that name what is not known (any more) are counted and change
/// nothing. A requester that breaks the rules loses its link and harms no other.
#[derive(Debug)]
pub struct Owner {
    limits: OwnerLimits,
    links: Box<[Link]>,
    slots: Slots,
    /// Link and command of each leased slot.
    holders: Box<[(usize, u32)]>,
    /// Commands of all links that wait for a lease.
    waiting: u32,
    /// The link that is served next when a slot is free.
    next_to_lease: usize,
    /// Links that may have something to say or to post.
    listed: VecDeque<usize>,
    links_opened: u64,
    /// Not later than the end of any waiting command's patience.
    next_deadline_ns: u64,
    counters: OwnerCounters,
}

/// One of the owner's links. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u64);

/// What bounds the owner's side.
#[derive(Clone, Copy, Debug)]
pub struct OwnerLimits {
    /// Links at once, at most 65,536.
    pub links: u32,
    /// Packing slots, of all links: P of the pool.
    pub slots: u32,
    /// Landing slots that each link may use, for WRITE to a fragmented destination.
    pub link_slots: u32,
    /// Commands that each link may have here; one more breaks it.
    pub commands: u32,
    /// Operations outstanding on each link: bulk writes, and the messages behind them. 2 to 65,536, else the nearest. The
    /// other messages are at most one per command and one per cancel; they need room besides.
    pub queue_depth: u32,
    /// How long a command waits for a slot before it is refused.
    pub patience_ns: u64,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerAction {
    /// READ: check and pack the chunk into a slot. [`Owner::packed`] follows.
    Pack { link: LinkId, id: ChunkId, chunk: Chunk, lease: Lease },
    /// READ: post the bulk write, and [`Reply::Done`] behind it by the same doorbell; the last of the two is signalled.
    /// [`Owner::completed`] or [`Owner::post_failed`] follows.
    PostBulk { link: LinkId, id: ChunkId, chunk: Chunk, origin: Origin, landing: Landing, work: WorkId },
    /// WRITE: check and unpack the chunk from a landing slot of the link. [`Owner::unpacked`] follows.
    Unpack { link: LinkId, id: ChunkId, chunk: Chunk, slot: u32 },
    /// Send this to the requester.
    Send { link: LinkId, reply: Reply },
    /// The lists of a chunk that [`Owner::request`] took are not needed any more.
    Drop { link: LinkId, id: ChunkId, chunk: Chunk },
    /// The link has failed, or its requester breaks the rules: break it, so that nothing that was posted on it may be
    /// carried out afterwards, in either direction. Then say [`Owner::quiesced`].
    Break { link: LinkId },
    /// Nothing of a broken link is under way: nobody here writes to or reads from what its batches named, and its landing
    /// slots are not used any more. The last thing said of it.
    Closed { link: LinkId },
}

/// What has been counted since the machine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerCounters {
    /// Bulk writes posted, a doorbell each, signalled.
    pub doorbells: u64,
    /// Messages, those behind bulk writes not included.
    pub messages: u64,
    /// Commands refused for want of a slot.
    pub refused: u64,
    /// Links broken because of what their requesters did.
    pub violations: u64,
    /// Completions and failed posts that named nothing outstanding.
    pub stale_completions: u64,
    /// Reports of packing and unpacking that named nothing under way.
    pub stale_tasks: u64,
}

impl Owner {
    /// With room for what the limits say.
    #[must_use]
    pub fn new(limits: &OwnerLimits) -> Owner {
        let queue_depth = limits.queue_depth.clamp(2, WORKS_MAX);
        let limits = OwnerLimits { queue_depth, links: limits.links.min(LINKS_MAX), ..*limits };
        Owner {
            limits,
            links: (0..limits.links).map(|_| Link::new(&limits)).collect(),
            slots: Slots::new(limits.slots),
            holders: vec![(usize::MAX, NONE); limits.slots as usize].into(),
            waiting: 0,
            next_to_lease: 0,
            listed: VecDeque::with_capacity(limits.links as usize),
            links_opened: 0,
            next_deadline_ns: u64::MAX,
            counters: OwnerCounters::default(),
        }
    }

    /// A link to a requester is there; `None` if there is no room for it.
    pub fn open(&mut self) -> Option<LinkId> {
        let at = self.links.iter().position(|link| link.id.is_none())?;
        let id = LinkId(self.links_opened << 16 | at as u64);
        self.links_opened = self.links_opened.wrapping_add(1);
        let link = self.links.get_mut(at)?;
        link.id = Some(id);
        link.state = LinkState::Up;
        Some(id)
    }

    /// A requester's message. True: its chunk was taken, and its lists are kept until [`Drop`](OwnerAction::Drop). False:
    /// it has none, or it was not taken.
    pub fn request(&mut self, link: LinkId, request: Request, now_ns: u64) -> bool {
        let Some(at) = self.find(link) else { return false };
        if self.links.get(at).is_none_or(|known| known.state != LinkState::Up) {
            return false;
        }
        let is_allowed = match request {
            Request::Pack { id, chunk, landing } => self.take_pack(at, id, chunk, landing, now_ns),
            Request::Unpack { id, chunk, slot } => self.take_unpack(at, id, chunk, slot),
            Request::Cancel { batch } => self.cancel(at, batch),
        };
        if !is_allowed {
            self.counters.violations += 1;
            self.down(link);
        }
        self.list(at);
        is_allowed && !matches!(request, Request::Cancel { .. })
    }

    /// A [`Pack`](OwnerAction::Pack) has ended: the slot holds the chunk, or the chunk may not be packed.
    pub fn packed(&mut self, link: LinkId, id: ChunkId, lease: Lease, result: Result<(), Fault>) {
        let (at, number) = self.holders.get(lease.slot as usize).copied().unwrap_or((usize::MAX, NONE));
        let is_it = |c: &&Command| c.id == id && c.lease == Some(lease) && c.step == Step::Packs;
        let known = self.links.get_mut(at).filter(|known| known.id == Some(link));
        let Some((known, is_cancelled)) = known.and_then(|known| {
            let is_cancelled = known.commands.get(number).filter(is_it)?.is_cancelled;
            Some((known, is_cancelled))
        }) else {
            self.counters.stale_tasks += 1;
            return;
        };
        match result {
            Ok(()) if !is_cancelled && known.state == LinkState::Up => known.make_ready(number),
            Ok(()) => self.end(at, number, None),
            Err(fault) => self.end(at, number, Some(Reply::Failed(id, fault))),
        }
        self.list(at);
    }

    /// An [`Unpack`](OwnerAction::Unpack) has ended: the bytes are in place, or may not be put there.
    pub fn unpacked(&mut self, link: LinkId, id: ChunkId, slot: u32, result: Result<(), Fault>) {
        let is_it = |c: &Command| c.id == id && c.landing == Landing::Slot(slot) && c.step == Step::Unpacks;
        let found = self.find(link).and_then(|at| {
            let (number, _) = self.links.get(at)?.commands.iter().find(|(_, c)| is_it(c))?;
            Some((at, number))
        });
        let Some((at, number)) = found else {
            self.counters.stale_tasks += 1;
            return;
        };
        let reply = match result {
            Ok(()) => Reply::Done(id),
            Err(fault) => Reply::Failed(id, fault),
        };
        self.end(at, number, Some(reply));
    }

    /// A bulk write and the message behind it have been carried out; or one has failed, and neither can be carried out
    /// any more. Nothing here waits for a completion with a clock: one that never comes keeps its slot until the link is
    /// broken, which its requester does when the answer to a cancel does not come.
    pub fn completed(&mut self, link: LinkId, work: WorkId, result: Result<(), WorkFault>) {
        let Some((at, number)) = self.take_work(link, work) else { return };
        let id = self.links.get(at).and_then(|known| known.commands.get(number)).map(|command| command.id);
        let reply = match (result, id) {
            (Err(fault), Some(id)) => Some(Reply::Failed(id, fault.fault(0))),
            _ => None,
        };
        self.end(at, number, reply);
    }

    /// Only the first `posted` operations of a doorbell were posted, so no completion will come: breaks the link.
    pub fn post_failed(&mut self, link: LinkId, work: WorkId, posted: u32) {
        let Some((at, number)) = self.take_work(link, work) else { return };
        self.down(link);
        // A write that was posted may be carried out still: the command stays as it is until the link is quiet.
        if posted == 0 {
            self.end(at, number, None);
        }
    }

    /// The link failed: nothing new starts on it, and it is broken for good.
    pub fn down(&mut self, link: LinkId) {
        let Some(at) = self.find(link) else { return };
        let Some(known) = self.links.get_mut(at).filter(|known| known.state == LinkState::Up) else { return };
        known.state = LinkState::Failed;
        self.end_waiting(at, |_| true);
    }

    /// The link is broken, and nothing that was posted on it can be carried out any more. What a worker still packs or
    /// unpacks keeps its slot until that is reported; then the link is [`Closed`](OwnerAction::Closed).
    pub fn quiesced(&mut self, link: LinkId) {
        let Some(at) = self.find(link) else { return };
        self.down(link);
        let Some(known) = self.links.get_mut(at) else { return };
        known.state = LinkState::Quiesced;
        known.works.clear();
        for number in 0..known.commands.capacity() {
            let command = self.links.get(at).and_then(|known| known.commands.get(number));
            if command.is_some_and(|command| command.step == Step::Posted) {
                self.end(at, number, None);
            }
        }
        self.list(at);
    }

    /// Time has passed.
    pub fn advance(&mut self, now_ns: u64) {
        if now_ns < self.next_deadline_ns {
            return;
        }
        self.next_deadline_ns = u64::MAX;
        for at in 0..self.links.len() {
            self.refuse_overdue(at, now_ns);
        }
    }

    /// When [`advance`](Self::advance) will next have something to do. Never later than that; maybe earlier.
    #[must_use]
    pub fn next_timer_ns(&self) -> Option<u64> {
        (self.next_deadline_ns != u64::MAX).then_some(self.next_deadline_ns)
    }

    /// What is to be done next; nothing until another event comes.
    pub fn next_action(&mut self) -> Option<OwnerAction> {
        while let Some(at) = self.listed.front().copied() {
            let known = self.links.get_mut(at)?;
            if let Some(action) = known.next_action(&mut self.counters) {
                return Some(action);
            }
            known.is_listed = false;
            self.listed.pop_front();
        }
        self.lease()
    }

    /// What has been counted.
    #[must_use]
    pub fn counters(&self) -> OwnerCounters {
        self.counters
    }

    /// Packing slots in use.
    #[must_use]
    pub fn leased(&self) -> u32 {
        self.slots.leased()
    }

    /// Most packing slots that were in use at once.
    #[must_use]
    pub fn leased_peak(&self) -> u32 {
        self.slots.peak()
    }

    /// Commands of a link that have not been answered; bulk writes that were posted are not counted.
    #[must_use]
    pub fn commands(&self, link: LinkId) -> u32 {
        self.find(link).and_then(|at| self.links.get(at)).map_or(0, |known| known.counted)
    }

    fn find(&self, link: LinkId) -> Option<usize> {
        let at = (link.0 % u64::from(LINKS_MAX)) as usize;
        self.links.get(at).filter(|known| known.id == Some(link)).map(|_| at)
    }
}

const LINKS_MAX: u32 = 1 << 16;
