//! The batch rules as an executable model: slow, small and meant to be obviously right. An engine is compared with it;
//! where the two differ, the model decides.
//!
//! The model has no threads and no clock. Its caller says when a descriptor is taken, when a transfer ends and what
//! time it is, and so chooses one of the orders that the rules leave open.
//!
//! # Framing
//!
//! A *slot* is one 64-byte entry of the submission ring; positions count slots, free-running, and wrap.
//!
//! - A descriptor takes one slot, or two with EXTENDED. It is taken only when all its slots are there.
//! - A batch is the descriptors up to and with the one that carries LAST. Framing looks at LAST and EXTENDED only,
//!   whatever the opcode and whatever is wrong with the descriptor; it never looks at the flags of a second slot.
//! - Spans count slots. A descriptor's second slot belongs to it even if it is no EXTENSION.
//! - Descriptors are taken in ring order. Those that come after a batch's failure or outcome, up to LAST, are
//!   discarded: taken and framed, not checked, not executed.
//!
//! The checks of one descriptor are in [`check`], the copying is in [`memory`].
//!
//! # Completion places
//!
//! A batch's first descriptor is taken only if [`SPANS_PER_BATCH`] places of the completion ring are free: its capacity
//! less the spans not yet reaped, less the places that other batches have reserved and not used. The batch reserves
//! that many; those it did not need return when it is *finished*: its BATCH_DONE span is published and, if a span of
//! it was HELD, its RELEASED span too. So publishing a span never waits.
//!
//! # Outcome
//!
//! Transfers of one or several batches run at the same time and end in any order. NOP, BEGIN, CANCEL and transfers of
//! length 0 end when they start, and a NOTIFY as described below. Spans of one batch are published in the order of their positions, RELEASED apart.
//!
//! - **Success** (LAST is taken, everything is done): one span over all slots, OK, BATCH_DONE.
//! - **Failure**: the failing descriptor is the one with the lowest position. Once a failure is known nothing of the
//!   batch starts; what is in flight drains, and if an earlier one fails meanwhile that one is the failing descriptor.
//!   Then: *done*, the descriptors before it (OK, omitted if there are none), and *failing*, it alone. When LAST is
//!   taken: *not done*, the rest (NOT_DONE, omitted if there is none).
//! - **Deadline or cancel** of a batch without an outcome and without a known failure: at once *done*, the longest
//!   prefix of completed descriptors (omitted if empty), and *ended*, the other descriptors taken so far (TIMED_OUT or
//!   CANCELLED, stage WAIT; omitted if there are none). When LAST is taken: *not done*, the rest. If *ended* was omitted
//!   the rest carries TIMED_OUT or CANCELLED instead of NOT_DONE, so that no batch looks successful that was not.
//! - **Deadline while a failed batch drains**: the failure is reported at once. If descriptors before the failing one
//!   are still in flight, *done* is the longest completed prefix and *failing* reaches from there to the failing
//!   descriptor: so the descriptor that fragment, field and detail are about is always the last one of its span.
//! - BATCH_DONE is on the batch's last outcome span: the one that covers the LAST slot.
//! - HELD is on every span that is published at the moment when a batch ends while transfers of it are in flight. Such
//!   a transfer may still write; its result is ignored. When all have drained a RELEASED span follows: the batch's
//!   `first` and status, count 0, everything else 0. It may come before or after the *not done* span.
//!
//! A deadline has passed at `time of the first descriptor taken + deadline`, that instant included; 0 is none. Which of
//! two things that are due in the same instant is seen first is open: here the clock is only looked at by
//! [`Model::tick`].
//!
//! # Fields of a span
//!
//! - `bytes`: what the covered descriptors wrote to destinations, if the status is OK (filling with zeros is writing,
//!   skipping is not), else 0. What is in the destinations of descriptors that are not OK is undefined.
//! - `user_data`: of the last covered descriptor.
//! - `route`: in an OK span DIRECT if a covered descriptor was ever in flight, else NONE. 0 in others.
//! - In other than OK spans: stage, field, fragment, detail of the [`Failure`]. In NOT_DONE, TIMED_OUT and CANCELLED
//!   spans the field is NONE, fragment and detail are 0; the stage of NOT_DONE is NONE.
//! - Times are 0 in this model.
//!
//! # Fence
//!
//! FENCE stands on a batch's first descriptor. That descriptor is taken and checked; places and deadline count from
//! then. Unless its check fails, it does not start, and nothing behind it is taken, until all earlier batches are
//! finished. A check, a deadline or a cancel that ends the batch meanwhile opens the ring again: its other descriptors
//! are discarded, and later batches do not wait for earlier ones because of it.
//!
//! # Cancel
//!
//! The target is the batch whose first slot has the given position, other than the CANCEL's own, and which is under
//! way: taken, no outcome, no known failure. It ends as CANCELLED, and the CANCEL is OK with 0 bytes. Without such a
//! batch the CANCEL fails: NOT_FOUND, stage TAKE, field SRC_OFFSET, the position as detail. From the ring a batch
//! cannot be cancelled before its LAST, since what follows belongs to it; the attach socket ([`Model::cancel`]) can.
//!
//! # Notify
//!
//! A NOTIFY is its batch's last descriptor. It is *due* when all others of the batch are done; then it is sent, with the
//! payload as it is at that moment, by [`Model::deliver`]. It is done when whoever is to be told has it, with 0 bytes.
//! Whoever has no room for it makes it wait, for any time, and is told once or not at all. If its batch fails or ends
//! before, it is never sent. Who takes no notifications, or is gone, makes it the failing descriptor: NOT_ALLOWED or
//! REGION_GONE, stage COMMAND, field DST_REGION, the handle as detail.
//!
//! It is no transfer: nothing of this ring's buffers is written by it, so that it makes no span HELD and gives no route.
//!
//! Not modelled: BATCH_TOO_LONG, FAULT, INTERNAL, regions of peers, the gather route, the places that notifications to
//! this ring's own client take in its completion ring.

// Each test file that shares this module uses another part of it.
#![allow(dead_code)]

pub mod check;
mod invariants;
pub mod memory;

use std::collections::VecDeque;

use ring_abi::{Descriptor, Entry, Extension, Field, Flags, Opcode, Route, SPANS_PER_BATCH, Span, SpanFlags};
use ring_abi::{Stage, Status};

pub use memory::{Memory, Region};

/// Why a descriptor is not OK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub status: Status,
    pub stage: Stage,
    pub field: Field,
    pub fragment: u32,
    pub detail: u64,
}

impl Failure {
    const NOT_DONE: Failure = Failure::ended(Status::NOT_DONE, Stage::NONE);

    const fn ended(status: Status, stage: Stage) -> Failure {
        Failure { status, stage, field: Field::NONE, fragment: 0, detail: 0 }
    }
}

/// What a descriptor that passed its checks has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// NOP, BEGIN, transfers of length 0.
    Nothing,
    /// CANCEL of the batch that starts at this position.
    Cancel(u64),
    /// A READ or WRITE.
    Transfer(Descriptor, Option<Extension>),
    /// A NOTIFY.
    Notify(Descriptor),
}

/// What somebody was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub region: u32,
    pub offset: u64,
    pub user_data: u64,
    pub payload: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Behind a fence.
    Waiting(Work),
    InFlight(Descriptor, Option<Extension>),
    /// A NOTIFY that was not sent, or is not there yet.
    Unsent(Descriptor),
    Done {
        bytes: u64,
        was_in_flight: bool,
    },
    /// Failed, or its result does not count.
    Void,
}

/// A descriptor that was taken.
#[derive(Clone, Copy, Debug)]
struct Taken {
    position: u64,
    slots: u32,
    user_data: u64,
    state: State,
}

#[derive(Clone, Debug)]
struct Batch {
    first: u64,
    taken: Vec<Taken>,
    last_taken: bool,
    deadline_ns: Option<u128>,
    /// Known, not necessarily reported: an index into `taken`.
    failure: Option<(usize, Failure)>,
    /// The batch has its outcome: this status.
    outcome: Option<Status>,
    /// Descriptors that spans were published for.
    reported: usize,
    /// What is said of the descriptors that come after the outcome.
    tail: Failure,
    spans: u32,
    batch_done: bool,
    held: bool,
    released: bool,
}

impl Batch {
    fn slots(&self) -> u64 {
        self.taken.iter().map(|t| u64::from(t.slots)).sum()
    }

    fn in_flight(&self) -> bool {
        self.taken.iter().any(|t| matches!(t.state, State::InFlight(..)))
    }

    /// The NOTIFY that is to be sent now: an index into `taken`.
    fn due(&self) -> Option<usize> {
        let t = self.done_prefix();
        let is_next = matches!(self.taken.get(t)?.state, State::Unsent(_));
        (is_next && self.is_under_way()).then_some(t)
    }

    fn waits_for_fence(&self) -> bool {
        self.taken.iter().any(|t| matches!(t.state, State::Waiting(_)))
    }

    fn is_finished(&self) -> bool {
        self.batch_done && (!self.held || self.released)
    }

    /// Neither an outcome nor a known failure: what a cancel can still end.
    fn is_under_way(&self) -> bool {
        self.outcome.is_none() && self.failure.is_none()
    }

    /// How many descriptors from the first on are done.
    fn done_prefix(&self) -> usize {
        self.taken.iter().take_while(|t| matches!(t.state, State::Done { .. })).count()
    }
}

/// One ring pair, its memory and everything that ever happened on it.
#[derive(Clone, Debug)]
pub struct Model {
    pub memory: Memory,
    cq_capacity: u32,
    /// Descriptors that were pushed and not taken. Unbounded here.
    queue: VecDeque<Entry>,
    /// Position of the first of them.
    head: u64,
    /// All batches of this ring in ring order, finished ones too. Only the last can be without its LAST.
    batches: Vec<Batch>,
    unreaped: VecDeque<Span>,
    /// Every span that was ever published.
    log: Vec<Span>,
    /// Who was told what, in that order.
    pub told: Vec<Told>,
    now_ns: u64,
}

impl Model {
    pub fn new(regions: Vec<Region>, cq_capacity: u32, start_position: u64) -> Model {
        Model {
            memory: Memory { regions },
            cq_capacity,
            queue: VecDeque::new(),
            head: start_position,
            batches: Vec::new(),
            unreaped: VecDeque::new(),
            log: Vec::new(),
            told: Vec::new(),
            now_ns: 0,
        }
    }

    /// Appends a slot to the submission queue.
    pub fn push(&mut self, entry: Entry) {
        self.queue.push_back(entry);
    }

    /// Takes the next descriptor if all its slots are there and neither a fence nor a lack of places holds the ring.
    pub fn take(&mut self, now_ns: u64) -> bool {
        self.look_at_clock(now_ns);
        if self.batches.iter().any(Batch::waits_for_fence) {
            return false;
        }
        let Some(entry) = self.queue.front() else { return false };
        let descriptor = Descriptor::from_entry(entry);
        let slots = if descriptor.flags & Flags::EXTENDED != 0 { 2 } else { 1 };
        if self.queue.len() < slots {
            return false;
        }
        let starts_batch = self.batches.last().is_none_or(|b| b.last_taken);
        if starts_batch {
            if self.free_places() < SPANS_PER_BATCH {
                return false;
            }
            self.open_batch();
        }
        let second = (slots == 2).then(|| self.queue[1]);
        self.queue.drain(..slots);
        self.take_into_open_batch(&descriptor, second.as_ref(), starts_batch);
        self.settle();
        true
    }

    /// Positions of the transfers in flight, in ring order.
    pub fn in_flight(&self) -> Vec<u64> {
        let all = self.batches.iter().flat_map(|b| &b.taken);
        all.filter(|t| matches!(t.state, State::InFlight(..))).map(|t| t.position).collect()
    }

    /// True if the result of the transfer in flight at `position` still matters: one whose result does not may be given
    /// up.
    pub fn counts(&self, position: u64) -> bool {
        let (b, t) = self.find_in_flight(position).expect("no transfer in flight at this position");
        let batch = &self.batches[b];
        batch.outcome.is_none() && batch.failure.is_none_or(|(k, _)| t < k)
    }

    /// The transfer in flight at `position` ends: it is executed on the memory now.
    pub fn complete(&mut self, position: u64, now_ns: u64) {
        self.look_at_clock(now_ns);
        let (b, t) = self.find_in_flight(position).expect("no transfer in flight at this position");
        let State::InFlight(descriptor, extension) = self.batches[b].taken[t].state else { unreachable!() };
        let result = self.memory.transfer(&descriptor, extension.as_ref());
        let batch = &mut self.batches[b];
        batch.taken[t].state = match result {
            Ok(bytes) => State::Done { bytes, was_in_flight: true },
            Err(_) => State::Void,
        };
        if let Err(failure) = result
            && batch.outcome.is_none()
            && batch.failure.is_none_or(|(k, _)| t < k)
        {
            batch.failure = Some((t, failure));
        }
        self.settle();
    }

    /// Positions of the NOTIFYs that are to be sent now, in ring order.
    pub fn due(&self) -> Vec<u64> {
        self.batches.iter().filter_map(|batch| Some(batch.taken[batch.due()?].position)).collect()
    }

    /// The NOTIFY at `position`, which is due, has been sent: it is there, or whoever was to be told takes none or is
    /// gone.
    pub fn deliver(&mut self, position: u64, refused: Option<Status>, now_ns: u64) {
        self.look_at_clock(now_ns);
        let found = self.batches.iter().enumerate().find_map(|(b, batch)| {
            let t = batch.due()?;
            (batch.taken[t].position == position).then_some((b, t))
        });
        let (b, t) = found.expect("no NOTIFY is due at this position");
        let State::Unsent(d) = self.batches[b].taken[t].state else { unreachable!() };
        let handle = u64::from(d.dst_region);
        let refused = refused.map(|status| Failure {
            status,
            stage: Stage::COMMAND,
            field: Field::DST_REGION,
            fragment: 0,
            detail: handle,
        });
        let batch = &mut self.batches[b];
        match check::check_notify(&d, &self.memory).err().or(refused) {
            Some(failure) => {
                batch.taken[t].state = State::Void;
                batch.failure = Some((t, failure));
            }
            None => {
                batch.taken[t].state = State::Done { bytes: 0, was_in_flight: false };
                let payload = match d.len {
                    0 => Vec::new(),
                    len => self.memory.region(d.src_region).bytes[d.src_offset as usize..][..len as usize].to_vec(),
                };
                let (region, offset, user_data) = (d.dst_region, d.dst_offset, d.user_data);
                self.told.push(Told { region, offset, user_data, payload });
            }
        }
        self.settle();
    }

    /// Looks at the clock: ends the batches whose deadline has passed.
    pub fn tick(&mut self, now_ns: u64) {
        self.look_at_clock(now_ns);
        for b in 0..self.batches.len() {
            let batch = &self.batches[b];
            if batch.outcome.is_some() || batch.deadline_ns.is_none_or(|deadline| u128::from(now_ns) < deadline) {
                continue;
            }
            match batch.failure {
                Some((k, failure)) => self.end(b, batch.done_prefix(), k + 1, failure),
                None => self.end_early(b, Status::TIMED_OUT),
            }
        }
        self.settle();
    }

    /// Ends the batch whose first slot is at `first`, as the attach socket does.
    pub fn cancel(&mut self, first: u64, now_ns: u64) -> Status {
        self.look_at_clock(now_ns);
        let Some(target) = self.batches.iter().position(|b| b.first == first && b.is_under_way()) else {
            return Status::NOT_FOUND;
        };
        self.end_early(target, Status::CANCELLED);
        self.settle();
        Status::OK
    }

    /// Takes the published spans out of the completion ring; their places are free again.
    pub fn reap(&mut self) -> Vec<Span> {
        self.unreaped.drain(..).collect()
    }

    /// Takes everything that can be taken and completes it, in order, until nothing moves.
    pub fn run(&mut self, now_ns: u64) {
        loop {
            while self.take(now_ns) {}
            if let Some(&position) = self.due().first() {
                self.deliver(position, None, now_ns);
                continue;
            }
            let Some(&position) = self.in_flight().first() else { return };
            self.complete(position, now_ns);
        }
    }

    /// True if all pushed slots were taken and all batches are finished.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.batches.iter().all(Batch::is_finished)
    }

    /// Completion places that are neither used nor reserved.
    pub fn free_places(&self) -> u32 {
        let reserved: u32 = self.batches.iter().filter(|b| !b.is_finished()).map(|b| SPANS_PER_BATCH - b.spans).sum();
        self.cq_capacity - self.unreaped.len() as u32 - reserved
    }

    /// The soonest deadline of a batch without an outcome, which a tick is not to miss.
    pub fn next_deadline_ns(&self) -> Option<u128> {
        self.batches.iter().filter(|b| b.outcome.is_none()).filter_map(|b| b.deadline_ns).min()
    }

    fn look_at_clock(&mut self, now_ns: u64) {
        assert!(now_ns >= self.now_ns, "time runs backwards");
        self.now_ns = now_ns;
    }

    fn find_in_flight(&self, position: u64) -> Option<(usize, usize)> {
        for (b, batch) in self.batches.iter().enumerate() {
            for (t, taken) in batch.taken.iter().enumerate() {
                if taken.position == position && matches!(taken.state, State::InFlight(..)) {
                    return Some((b, t));
                }
            }
        }
        None
    }

    fn open_batch(&mut self) {
        self.batches.push(Batch {
            first: self.head,
            taken: Vec::new(),
            last_taken: false,
            deadline_ns: None,
            failure: None,
            outcome: None,
            reported: 0,
            tail: Failure::NOT_DONE,
            spans: 0,
            batch_done: false,
            held: false,
            released: false,
        });
    }

    fn take_into_open_batch(&mut self, descriptor: &Descriptor, second: Option<&Entry>, is_first: bool) {
        let b = self.batches.len() - 1;
        let has_to_wait = descriptor.flags & Flags::FENCE != 0 && self.batches[..b].iter().any(|e| !e.is_finished());
        let slots = if second.is_some() { 2 } else { 1 };
        let batch = &mut self.batches[b];
        let t = batch.taken.len();
        batch.taken.push(Taken { position: self.head, slots, user_data: descriptor.user_data, state: State::Void });
        batch.last_taken = descriptor.flags & Flags::LAST != 0;
        self.head = self.head.wrapping_add(u64::from(slots));
        if !batch.is_under_way() {
            return; // discarded
        }
        match check::check(descriptor, second, is_first, &self.memory) {
            Err(failure) => batch.failure = Some((t, failure)),
            Ok(work) => {
                if descriptor.opcode == Opcode::BEGIN.0 && descriptor.dst_offset != 0 {
                    batch.deadline_ns = Some(u128::from(self.now_ns) + u128::from(descriptor.dst_offset));
                }
                if has_to_wait {
                    batch.taken[t].state = State::Waiting(work);
                } else {
                    self.start(b, t, work);
                }
            }
        }
    }

    fn start(&mut self, b: usize, t: usize, work: Work) {
        let done = State::Done { bytes: 0, was_in_flight: false };
        self.batches[b].taken[t].state = match work {
            Work::Nothing => done,
            Work::Transfer(descriptor, extension) => State::InFlight(descriptor, extension),
            Work::Notify(descriptor) => State::Unsent(descriptor),
            Work::Cancel(target) => {
                match self.batches[..b].iter().position(|e| e.first == target && e.is_under_way()) {
                    Some(e) => {
                        self.end_early(e, Status::CANCELLED);
                        done
                    }
                    None => {
                        let failure = check::at_take(Status::NOT_FOUND, Field::SRC_OFFSET, target);
                        self.batches[b].failure = Some((t, failure));
                        State::Void
                    }
                }
            }
        };
    }

    /// Draws all conclusions that can be drawn now.
    fn settle(&mut self) {
        for b in 0..self.batches.len() {
            // Only a batch with nothing unfinished before it can start here, and everything before it is settled.
            let waiting = self.batches[b].waits_for_fence() && self.batches[..b].iter().all(Batch::is_finished);
            if waiting && let State::Waiting(work) = self.batches[b].taken[0].state {
                self.start(b, 0, work);
            }
            let batch = &self.batches[b];
            if batch.outcome.is_none() && !batch.in_flight() && !batch.waits_for_fence() {
                if let Some((k, failure)) = batch.failure {
                    self.end(b, k, k + 1, failure);
                } else if batch.last_taken && batch.done_prefix() == batch.taken.len() {
                    self.succeed(b);
                }
            }
            let batch = &self.batches[b];
            if batch.outcome.is_some() && batch.last_taken && !batch.batch_done {
                self.publish_outcome(b, batch.taken.len(), Err(batch.tail), false);
            }
            let batch = &self.batches[b];
            if batch.held && !batch.in_flight() && !batch.released {
                self.publish_release(b);
            }
        }
    }

    fn succeed(&mut self, b: usize) {
        self.batches[b].outcome = Some(Status::OK);
        self.publish_outcome(b, self.batches[b].taken.len(), Ok(()), false);
    }

    /// Deadline or cancel of a batch that is under way.
    fn end_early(&mut self, b: usize, status: Status) {
        let (prefix, all) = (self.batches[b].done_prefix(), self.batches[b].taken.len());
        self.end(b, prefix, all, Failure::ended(status, Stage::WAIT));
    }

    /// Ends a batch: descriptors `..done` are OK, `done..end` have `failure`, the rest is not done.
    fn end(&mut self, b: usize, done: usize, end: usize, failure: Failure) {
        let batch = &mut self.batches[b];
        for taken in &mut batch.taken {
            if matches!(taken.state, State::Waiting(_) | State::Unsent(_)) {
                taken.state = State::Void;
            }
        }
        let held = batch.in_flight();
        batch.outcome = Some(failure.status);
        batch.tail = if done == end { failure } else { Failure::NOT_DONE };
        self.publish_outcome(b, done, Ok(()), held);
        self.publish_outcome(b, end, Err(failure), held);
        let batch = &self.batches[b];
        if batch.last_taken {
            self.publish_outcome(b, batch.taken.len(), Err(batch.tail), held);
        }
    }

    /// Publishes a span over the descriptors that were not reported yet, up to `end`, if there are any.
    fn publish_outcome(&mut self, b: usize, end: usize, outcome: Result<(), Failure>, held: bool) {
        let batch = &mut self.batches[b];
        let covered = &batch.taken[batch.reported..end];
        let (Some(first), Some(last)) = (covered.first(), covered.last()) else { return };
        let mut span = Span {
            first: first.position,
            count: covered.iter().map(|t| t.slots).sum(),
            user_data: last.user_data,
            ..Span::ZERO
        };
        match outcome {
            Ok(()) => {
                for taken in covered {
                    let State::Done { bytes, was_in_flight } = taken.state else { panic!("not done: {taken:?}") };
                    span.bytes += bytes;
                    if was_in_flight {
                        span.route = Route::DIRECT.0;
                    }
                }
            }
            Err(failure) => {
                span.status = failure.status.0;
                span.stage = failure.stage.0;
                span.field = failure.field.0;
                span.queue_ns = failure.fragment;
                span.plan_ns = failure.detail as u32;
                span.command_ns = (failure.detail >> 32) as u32;
            }
        }
        batch.reported = end;
        if batch.last_taken && end == batch.taken.len() {
            span.flags |= SpanFlags::BATCH_DONE;
            batch.batch_done = true;
        }
        if held {
            span.flags |= SpanFlags::HELD;
            batch.held = true;
        }
        self.publish(b, span);
    }

    fn publish_release(&mut self, b: usize) {
        let batch = &mut self.batches[b];
        batch.released = true;
        let status = batch.outcome.expect("only a batch with an outcome is held").0;
        let span = Span { first: batch.first, status, flags: SpanFlags::RELEASED, ..Span::ZERO };
        self.publish(b, span);
    }

    fn publish(&mut self, b: usize, span: Span) {
        self.batches[b].spans += 1;
        self.unreaped.push_back(span);
        self.log.push(span);
    }
}
