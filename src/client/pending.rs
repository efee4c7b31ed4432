//! What is known about each batch: what its spans have said so far, and what it holds.
//!
//! The engine may be wrong. Each span is compared with what can be true of the batch that it names, and anything else
//! is an error that ends the session: a wrong span releases nothing.

use super::memory::Hold;
use super::{BatchError, Outcome, Peer, Times};
use ring_abi::{Route, Span, SpanFlags, Stage, Status};
use std::collections::VecDeque;
use std::sync::Arc;

/// Names one submitted batch. Dropping it gives up the outcome, not the batch.
#[derive(Debug)]
pub struct Ticket {
    index: u32,
    first: u64,
    /// Shared with the batch's record, which is kept as long as somebody can ask for it.
    alive: Arc<()>,
}

impl Ticket {
    /// Ring position of the batch's first descriptor, as in [`Span::first`].
    #[must_use]
    pub fn position(&self) -> u64 {
        self.first
    }
}

/// One batch.
#[derive(Debug)]
pub(super) struct Record {
    alive: Arc<()>,
    pub first: u64,
    /// Slots; `None` until its LAST is published.
    pub slots: Option<u64>,
    /// True if its first slot is a BEGIN.
    pub begins: bool,
    /// Numbers of the descriptors at which one with an extension follows one without, or the other way round.
    pub toggles: Vec<u32>,
    holds: Vec<Hold>,
    /// The peers whose memory it uses.
    peers: Peers,
    covered: u64,
    bytes: u64,
    held: bool,
    released: bool,
    /// The first span that was not a success.
    failure: Option<Span>,
    last: Span,
    done: bool,
}

/// How many peers the memory of a batch belongs to.
#[derive(Clone, Copy, Debug)]
enum Peers {
    None,
    One(Peer),
    Several,
}

/// All batches of a client.
///
/// Records are reused: there is no allocation per batch once there are as many as are used at a time.
#[derive(Debug, Default)]
pub(super) struct Pending {
    records: Vec<Record>,
    /// Records that nobody uses or can ask for.
    free: Vec<u32>,
    /// Records of ended batches whose ticket may still live.
    ended: VecDeque<u32>,
    /// Batches that have not ended, by position; ended ones among them are marked until they are swept out.
    order: VecDeque<Key>,
    dead: usize,
}

#[derive(Debug)]
struct Key {
    first: u64,
    index: u32,
}

const DEAD: u32 = u32::MAX;

/// How many ended records a new batch looks at for one whose ticket is gone.
const TRIES: usize = 4;

impl Pending {
    /// A record for the batch that starts at `first`, behind all others.
    pub fn start(&mut self, first: u64) -> u32 {
        let index = self.unused();
        let record = &mut self.records[index as usize];
        record.first = first;
        record.slots = None;
        record.begins = false;
        record.toggles.clear();
        record.peers = Peers::None;
        (record.covered, record.bytes) = (0, 0);
        (record.held, record.released, record.done) = (false, false, false);
        record.failure = None;
        self.order.push_back(Key { first, index });
        index
    }

    fn unused(&mut self) -> u32 {
        for _ in 0..TRIES.min(self.ended.len()) {
            let Some(index) = self.ended.pop_front() else { break };
            if Arc::strong_count(&self.records[index as usize].alive) == 1 {
                self.free.push(index);
            } else {
                self.ended.push_back(index);
            }
        }
        if let Some(index) = self.free.pop() {
            return index;
        }
        self.records.push(Record {
            alive: Arc::new(()),
            first: 0,
            slots: None,
            begins: false,
            toggles: Vec::new(),
            holds: Vec::with_capacity(4),
            peers: Peers::None,
            covered: 0,
            bytes: 0,
            held: false,
            released: false,
            failure: None,
            last: Span::ZERO,
            done: false,
        });
        self.records.len() as u32 - 1
    }

    /// Forgets the youngest batch, of which nothing was published.
    pub fn take_back(&mut self, index: u32) {
        self.order.pop_back();
        self.records[index as usize].release();
        self.free.push(index);
    }

    pub fn ticket(&self, index: u32) -> Ticket {
        let record = &self.records[index as usize];
        Ticket { index, first: record.first, alive: record.alive.clone() }
    }

    pub fn record_mut(&mut self, index: u32) -> &mut Record {
        &mut self.records[index as usize]
    }

    /// The record of a ticket, if it is one of these.
    pub fn get(&self, ticket: &Ticket) -> Option<&Record> {
        self.records.get(ticket.index as usize).filter(|record| Arc::ptr_eq(&record.alive, &ticket.alive))
    }

    /// Takes note of a span. `Ok(false)`: it is about none of these batches.
    ///
    /// # Errors
    /// It says something that cannot be.
    pub fn note(&mut self, span: &Span, published: u64) -> Result<bool, &'static str> {
        let Some(at) = self.find(span.first, published) else { return Ok(false) };
        let index = self.order[at].index;
        let record = &mut self.records[index as usize];
        record.apply(span, published)?;
        if record.is_over() {
            record.release();
            self.order[at].index = DEAD;
            self.dead += 1;
            self.ended.push_back(index);
            self.sweep();
        }
        Ok(true)
    }

    /// The place in `order` of the batch that a position belongs to.
    fn find(&self, position: u64, published: u64) -> Option<usize> {
        let base = self.order.front()?.first;
        let distance = position.wrapping_sub(base);
        let at = self.order.partition_point(|key| key.first.wrapping_sub(base) <= distance).checked_sub(1)?;
        let key = &self.order[at];
        if key.index == DEAD {
            return None;
        }
        (position.wrapping_sub(key.first) < self.records[key.index as usize].known_slots(published)).then_some(at)
    }

    fn sweep(&mut self) {
        while self.order.front().is_some_and(|key| key.index == DEAD) {
            self.order.pop_front();
            self.dead -= 1;
        }
        // One batch that takes long must not keep the marks of all that came after it.
        if self.dead > 64 && self.dead * 2 > self.order.len() {
            self.order.retain(|key| key.index != DEAD);
            self.dead = 0;
        }
    }
}

impl Record {
    /// The batch keeps a region.
    pub fn hold(&mut self, hold: Hold) {
        self.peers = match (self.peers, hold.peer()) {
            (Peers::None, Some(peer)) => Peers::One(peer),
            (Peers::One(one), Some(other)) if one != other => Peers::Several,
            (so_far, _) => so_far,
        };
        self.holds.push(hold);
    }

    /// Slots that the engine can have seen.
    fn known_slots(&self, published: u64) -> u64 {
        self.slots.unwrap_or_else(|| published.wrapping_sub(self.first))
    }

    fn apply(&mut self, span: &Span, published: u64) -> Result<(), &'static str> {
        if span.is_released() {
            let plausible = self.held && !self.released && span.first == self.first;
            if !plausible || span.count != 0 || span.flags != SpanFlags::RELEASED {
                return Err("a release of a batch that is not held");
            }
            self.released = true;
            self.release();
            return Ok(());
        }
        let covered = self.covered + u64::from(span.count);
        if span.count == 0
            || span.first != self.first.wrapping_add(self.covered)
            || covered > self.known_slots(published)
        {
            return Err("a span that covers descriptors twice, or none, or too many");
        }
        if self.done || span.is_batch_done() != (self.slots == Some(covered)) {
            return Err("a batch that is done before its last descriptor, or not with it");
        }
        if span.status > 0 || (span.is_held() && self.released) || span.flags & !SpanFlags::KNOWN != 0 {
            return Err("a span with an impossible status or flag");
        }
        self.covered = covered;
        self.held |= span.is_held();
        self.done = span.is_batch_done();
        self.last = *span;
        if span.status().is_ok() {
            self.bytes = self.bytes.saturating_add(span.bytes);
        } else if self.failure.is_none() {
            self.failure = Some(*span);
        }
        Ok(())
    }

    /// True when its outcome is known.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// True when its outcome is known and nobody writes to its buffers any more.
    pub fn is_over(&self) -> bool {
        self.done && self.is_reusable()
    }

    pub fn is_reusable(&self) -> bool {
        !self.held || self.released
    }

    fn release(&mut self) {
        self.holds.drain(..).for_each(Hold::release);
    }

    /// The outcome, once it is known.
    pub fn outcome(&self) -> Option<Result<Outcome, BatchError>> {
        if !self.done {
            return None;
        }
        if let Some(span) = &self.failure {
            // The descriptor at fault is the last one that its span covers; a deadline or a cancel names the first one
            // that was not completed.
            let offset = if span.stage == Stage::WAIT.0 { 0 } else { span.count - 1 };
            let position = span.first.wrapping_add(offset.into());
            let error = BatchError::of_span(span, self.descriptor(position), self.bytes, self.is_reusable());
            let peer = if let Peers::One(peer) = self.peers { Some(peer) } else { None };
            return Some(Err(BatchError { peer, ..error }));
        }
        let last = &self.last;
        Some(Ok(Outcome {
            status: Status::OK,
            position: self.first,
            bytes: self.bytes,
            user_data: last.user_data,
            route: Route(last.route),
            times: Times::of(last),
            reusable: self.is_reusable(),
        }))
    }

    /// The number of the pushed descriptor at a position. `None`: the BEGIN that the library put in front.
    fn descriptor(&self, position: u64) -> Option<u32> {
        let mut slot = position.wrapping_sub(self.first).checked_sub(u64::from(self.begins))?;
        let mut descriptor = 0;
        let mut slots_each = 1;
        for toggle in &self.toggles {
            let run = u64::from(toggle - descriptor) * slots_each;
            if slot < run {
                break;
            }
            slot -= run;
            descriptor = *toggle;
            slots_each = 3 - slots_each;
        }
        u32::try_from(u64::from(descriptor) + slot / slots_each).ok()
    }
}
