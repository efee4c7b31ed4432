//! The batches of one ring.

use super::batch::{Batch, Flight, FlightState, NONE, Phase, Stages, Taken, Travelled};
use super::slab::Slab;
use crate::plan::Fault;
use ring_abi::{SPANS_PER_BATCH, Span, SpanFlags, Status};
use std::collections::VecDeque;

/// Keeps account of every descriptor taken from one ring until its batch has had its last span.
///
/// For each descriptor the caller says [`took`](Self::took), then exactly one of [`complete`](Self::complete),
/// [`start`](Self::start), [`postpone`](Self::postpone) or [`fail`](Self::fail), unless the batch [has ended](Self::is_discarding) or waits at a
/// fence. All storage is allocated by [`new`](Self::new).
#[derive(Debug)]
pub struct Ledger {
    batches: Slab<Batch>,
    flights: Slab<Flight>,
    /// The batch whose LAST has not been taken.
    open: Option<u32>,
    /// Not later than any deadline of a batch under way.
    next_deadline_ns: u64,
    outcomes: VecDeque<Outcome>,
    /// Transfers in flight whose batch has its outcome.
    held: u32,
}

/// A span to be published, and how many of its batch's reserved places it gives back unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The span.
    pub span: Span,
    /// Places given back besides the one that the span uses.
    pub frees: u32,
}

/// A transfer in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferId(pub u32);

/// A batch's last descriptor that is done behind all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Postponed {
    batch: u32,
    /// Its batch's first position, which no other batch in that place has while anybody remembers.
    first: u64,
}

/// Whether a postponed descriptor can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Others of its batch are not done.
    Early,
    /// All others are done.
    Due,
    /// Its batch has failed or ended: it will never be.
    Never,
}

impl Ledger {
    /// Room for so many batches under way and so many transfers in flight.
    #[must_use]
    pub fn new(batches: u32, transfers: u32) -> Ledger {
        Ledger {
            batches: Slab::new(batches),
            flights: Slab::new(transfers),
            open: None,
            next_deadline_ns: u64::MAX,
            outcomes: VecDeque::with_capacity((batches * SPANS_PER_BATCH) as usize),
            held: 0,
        }
    }

    /// True if the next descriptor belongs to a batch that has begun.
    #[must_use]
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// True if no batch is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.batches.len() == 0
    }

    /// Batches under way that have no outcome.
    #[must_use]
    pub fn running(&self) -> u32 {
        self.batches.iter().filter(|(_, b)| b.phase != Phase::Ended && b.taken != b.first).count() as u32
    }

    /// Transfers in flight whose batch has its outcome: what they write to is HELD.
    #[must_use]
    #[inline]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// True if this is one of them.
    #[must_use]
    pub fn is_held(&self, id: TransferId) -> bool {
        let batch = self.flights.get(id.0).and_then(|flight| self.batches.get(flight.batch));
        batch.is_some_and(|batch| batch.phase == Phase::Ended)
    }

    /// True if another batch can begin.
    #[must_use]
    pub fn has_batch_room(&self) -> bool {
        !self.batches.is_full()
    }

    /// True if so many more transfers can start.
    #[must_use]
    #[inline]
    pub fn has_transfer_room(&self, transfers: usize) -> bool {
        self.flights.room() >= transfers
    }

    /// True if descriptors of the open batch are only counted, because it has ended or is ending.
    #[must_use]
    #[inline]
    pub fn is_discarding(&self) -> bool {
        self.open.and_then(|at| self.batches.get(at)).is_some_and(|b| b.phase != Phase::Running)
    }

    /// True if the open batch waits at its fence for earlier batches.
    #[must_use]
    #[inline]
    pub fn is_fenced(&self) -> bool {
        self.batches.len() > 1
            && self.open.and_then(|at| self.batches.get(at)).is_some_and(|b| b.fenced && b.phase == Phase::Running)
    }

    /// Slots taken of the open batch.
    #[must_use]
    pub fn open_slots(&self) -> u64 {
        self.open.and_then(|at| self.batches.get(at)).map_or(0, |b| b.taken.wrapping_sub(b.first))
    }

    /// True if nothing of the open batch has been taken.
    #[must_use]
    pub fn is_at_first(&self) -> bool {
        self.open.and_then(|at| self.batches.get(at)).is_some_and(|b| b.taken == b.first)
    }

    /// Puts a fence before the open batch, whose first descriptor was taken; true if it has to wait there.
    pub fn fence(&mut self) -> bool {
        let waits = self.batches.len() > 1;
        if let Some(batch) = self.open_batch() {
            batch.fenced = waits;
        }
        waits
    }

    /// Takes the fence away; false if the batch that waited there has ended.
    pub fn pass_fence(&mut self) -> bool {
        match self.open_batch() {
            Some(batch) if batch.fenced && batch.phase == Phase::Running => {
                batch.fenced = false;
                true
            }
            _ => false,
        }
    }

    /// When [`expire`](Self::expire) will next have something to do, `u64::MAX` for never.
    #[must_use]
    pub fn next_deadline_ns(&self) -> u64 {
        self.next_deadline_ns
    }

    /// Begins a batch at a position. The caller has reserved its completion places.
    ///
    /// # Panics
    /// If there is no room or a batch is open: the caller asked before.
    pub fn begin(&mut self, first: u64) {
        assert!(self.open.is_none(), "the open batch has not had its LAST");
        let batch = Batch {
            first,
            taken: first,
            complete: false,
            phase: Phase::Running,
            current: Taken { position: first, slots: 0, user_data: 0 },
            taken_ns: 0,
            started_ns: None,
            deadline_ns: None,
            fenced: false,
            done_to: first,
            done_bytes: 0,
            done_user_data: 0,
            head: NONE,
            tail: NONE,
            in_flight: 0,
            failure: None,
            done_by: Travelled::default(),
            stages: Stages::default(),
            spans: 0,
            end_status: Status::OK,
            tail_status: Status::NOT_DONE,
        };
        let at = self.batches.insert(batch).expect("the caller asked has_batch_room");
        self.open = Some(at);
    }

    /// Counts a descriptor of the open batch.
    ///
    /// # Panics
    /// If no batch is open.
    #[inline]
    pub fn took(&mut self, slots: u32, user_data: u64, last: bool, now_ns: u64) {
        let at = self.open.expect("a batch was begun");
        let batch = self.batches.get_mut(at).expect("the open batch exists");
        if batch.taken == batch.first {
            batch.taken_ns = now_ns;
        }
        batch.current = Taken { position: batch.taken, slots, user_data };
        batch.taken = batch.taken.wrapping_add(slots.into());
        batch.complete = last;
        if last && batch.phase == Phase::Ended {
            self.open = None;
            self.close(at, 0, now_ns);
        } else if last && batch.phase == Phase::Failing {
            self.open = None;
        }
    }

    /// The deadline of the open batch, counted from its first descriptor. 0 is none.
    pub fn set_deadline(&mut self, after_ns: u64) {
        if let Some(batch) = self.open_batch()
            && after_ns != 0
        {
            let deadline = batch.taken_ns.saturating_add(after_ns);
            batch.deadline_ns = Some(deadline);
            self.next_deadline_ns = self.next_deadline_ns.min(deadline);
        }
    }

    /// The descriptor taken last is done: `bytes` are in place. `moves` says that it was a transfer of some bytes.
    #[inline]
    pub fn complete(&mut self, bytes: u64, moves: bool, now_ns: u64) {
        let Some(at) = self.open else { return };
        let batch = self.batches.get_mut(at).expect("the open batch exists");
        if batch.started_ns.is_none() {
            batch.started_ns = Some(now_ns);
        }
        let current = batch.current;
        let complete = batch.complete;
        let travelled = Travelled { direct: moves, gathered: false };
        match self.flights.get_mut(batch.tail) {
            Some(tail) => {
                tail.travels.add(travelled);
                tail.followers_end = current.end();
                tail.followers_bytes = tail.followers_bytes.saturating_add(bytes);
                tail.followers_user_data = current.user_data;
            }
            None => {
                batch.done_by.add(travelled);
                batch.done_to = current.end();
                batch.done_bytes = batch.done_bytes.saturating_add(bytes);
                batch.done_user_data = current.user_data;
            }
        }
        if complete {
            self.open = None;
            self.settle(at, now_ns);
        }
    }

    /// The descriptor taken last has become a transfer that takes time.
    ///
    /// # Panics
    /// If there is no room: the caller asked [`has_transfer_room`](Self::has_transfer_room).
    pub fn start(&mut self, now_ns: u64) -> TransferId {
        let at = self.open.expect("a batch was begun");
        let batch = self.batches.get_mut(at).expect("the open batch exists");
        batch.started_ns.get_or_insert(now_ns);
        batch.in_flight += 1;
        let flight = Flight {
            batch: at,
            taken: batch.current,
            state: FlightState::InFlight,
            bytes: 0,
            travels: Travelled { direct: true, gathered: false },
            followers_end: batch.current.end(),
            followers_bytes: 0,
            followers_user_data: batch.current.user_data,
            next: NONE,
        };
        let id = self.flights.insert(flight).expect("the caller asked has_transfer_room");
        match self.flights.get_mut(batch.tail) {
            Some(tail) => tail.next = id,
            None => batch.head = id,
        }
        batch.tail = id;
        if batch.complete {
            self.open = None;
        }
        TransferId(id)
    }

    /// The descriptor taken last, which ends its batch, is to be done behind all others: [`conclude`](Self::conclude) it when
    /// it [is due](Self::readiness). It is no transfer, and holds nothing.
    ///
    /// # Panics
    /// If no batch is open, or its LAST has not been taken.
    pub fn postpone(&mut self) -> Postponed {
        let at = self.open.take().expect("a batch was begun");
        let batch = self.batches.get(at).expect("the open batch exists");
        assert!(batch.complete, "only the last descriptor can be done behind all others");
        Postponed { batch: at, first: batch.first }
    }

    /// Whether a postponed descriptor can be done now.
    #[must_use]
    pub fn readiness(&self, postponed: Postponed) -> Readiness {
        let batch = self.batches.get(postponed.batch).filter(|batch| batch.first == postponed.first);
        match batch {
            Some(batch) if batch.phase == Phase::Running && batch.done_to == batch.current.position => Readiness::Due,
            Some(batch) if batch.phase == Phase::Running => Readiness::Early,
            _ => Readiness::Never,
        }
    }

    /// A postponed descriptor that is due is done, or cannot be.
    pub fn conclude(&mut self, postponed: Postponed, result: Result<(), Fault>, now_ns: u64) {
        if self.readiness(postponed) != Readiness::Due {
            return;
        }
        let at = postponed.batch;
        let Some(batch) = self.batches.get_mut(at) else { return };
        batch.started_ns.get_or_insert(now_ns);
        match result {
            Ok(()) => (batch.done_to, batch.done_user_data) = (batch.current.end(), batch.current.user_data),
            Err(fault) => (batch.failure, batch.phase) = (Some((batch.current, fault)), Phase::Failing),
        }
        self.settle(at, now_ns);
    }

    /// A transfer that was just [started](Self::start) goes through staging slots.
    pub fn gathers(&mut self, id: TransferId) {
        self.travelled(id, false, true);
    }

    /// How a transfer's bytes have travelled.
    pub fn travelled(&mut self, id: TransferId, direct: bool, gathered: bool) {
        if let Some(flight) = self.flights.get_mut(id.0) {
            flight.travels = Travelled { direct, gathered };
        }
    }

    /// Where a transfer's time was spent.
    pub fn spent(&mut self, id: TransferId, stages: &Stages) {
        let batch = self.flights.get(id.0).map(|flight| flight.batch);
        if let Some(batch) = batch.and_then(|at| self.batches.get_mut(at)) {
            batch.stages.or(stages);
        }
    }

    /// True if this transfer is the last one in flight of the open batch: what [completes](Self::complete) now is shown as
    /// done when it is.
    #[must_use]
    #[inline]
    pub fn follows(&self, id: TransferId) -> bool {
        self.open.and_then(|at| self.batches.get(at)).is_some_and(|batch| batch.tail == id.0)
    }

    /// The descriptor taken last cannot be done.
    pub fn fail(&mut self, fault: Fault, now_ns: u64) {
        let Some(at) = self.open else { return };
        let batch = self.batches.get_mut(at).expect("the open batch exists");
        batch.failure = Some((batch.current, fault));
        batch.phase = Phase::Failing;
        if batch.complete {
            self.open = None;
        }
        self.settle(at, now_ns);
    }

    /// True if more of a transfer may be started: its batch runs, or a later descriptor of it has failed.
    #[must_use]
    #[inline]
    pub fn may_go_on(&self, id: TransferId) -> bool {
        let Some(flight) = self.flights.get(id.0) else { return false };
        let Some(batch) = self.batches.get(flight.batch) else { return false };
        match (batch.phase, &batch.failure) {
            (Phase::Running, _) => true,
            (Phase::Failing, Some((failed, _))) => {
                let before = |position: u64| position.wrapping_sub(batch.first);
                before(flight.taken.position) < before(failed.position)
            }
            _ => false,
        }
    }

    /// A transfer is done: `bytes` are in place and nothing of it is in flight.
    pub fn finish(&mut self, id: TransferId, bytes: u64, now_ns: u64) {
        self.drained(id, FlightState::Done, bytes, None, now_ns);
    }

    /// A transfer has failed or was given up, and nothing of it is in flight.
    pub fn abandon(&mut self, id: TransferId, fault: Option<Fault>, now_ns: u64) {
        self.drained(id, FlightState::Undone, 0, fault, now_ns);
    }

    /// Ends the batch that starts at `first` with [`Status::CANCELLED`], if it is under way and has no outcome yet. One of
    /// which nothing was taken is not under way: its first descriptor may lack its second slot still.
    pub fn cancel(&mut self, first: u64, now_ns: u64) -> bool {
        let is_target = |b: &Batch| b.first == first && b.taken != first && b.phase == Phase::Running;
        let found = self.batches.iter().find(|(_, b)| is_target(b));
        let Some((at, _)) = found else { return false };
        self.end(at, Status::CANCELLED, now_ns);
        true
    }

    /// The same for a CANCEL that is the open batch's descriptor: it does not find its own batch.
    pub fn cancel_from_ring(&mut self, first: u64, now_ns: u64) -> bool {
        if self.open_batch().is_some_and(|own| own.first == first) {
            return false;
        }
        self.cancel(first, now_ns)
    }

    /// Ends every batch whose deadline has passed.
    pub fn expire(&mut self, now_ns: u64) {
        if now_ns < self.next_deadline_ns {
            return;
        }
        loop {
            let due = self.batches.iter().find(|(_, b)| b.is_due(now_ns)).map(|(at, _)| at);
            let Some(at) = due else { break };
            self.end(at, Status::TIMED_OUT, now_ns);
        }
        let deadlines = self.batches.iter().filter(|(_, b)| b.phase != Phase::Ended).filter_map(|(_, b)| b.deadline_ns);
        self.next_deadline_ns = deadlines.min().unwrap_or(u64::MAX);
    }

    /// The next span to publish.
    #[inline]
    pub fn next_outcome(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }

    fn open_batch(&mut self) -> Option<&mut Batch> {
        self.batches.get_mut(self.open?)
    }

    fn drained(&mut self, id: TransferId, state: FlightState, bytes: u64, fault: Option<Fault>, now_ns: u64) {
        let Some(flight) = self.flights.get_mut(id.0) else { return };
        flight.state = state;
        flight.bytes = bytes;
        let (at, taken) = (flight.batch, flight.taken);
        let batch = self.batches.get_mut(at).expect("a batch outlives its transfers");
        batch.in_flight -= 1;
        if batch.phase == Phase::Ended {
            self.flights.remove(id.0);
            self.held -= 1;
            if batch.in_flight == 0 {
                self.release(at, now_ns);
            }
            return;
        }
        if let Some(fault) = fault {
            let from_first = |t: &Taken| t.position.wrapping_sub(batch.first);
            if batch.failure.as_ref().is_none_or(|(known, _)| from_first(&taken) < from_first(known)) {
                batch.failure = Some((taken, fault));
            }
            batch.phase = Phase::Failing;
        }
        self.advance_done(at);
        self.settle(at, now_ns);
    }

    /// Moves the end of the completed prefix over what is completed at the front of the list.
    fn advance_done(&mut self, at: u32) {
        let Some(batch) = self.batches.get_mut(at) else { return };
        while self.flights.get(batch.head).is_some_and(|f| f.state == FlightState::Done) {
            let flight = self.flights.remove(batch.head).expect("looked at just now");
            batch.done_by.add(flight.travels);
            batch.done_to = flight.followers_end;
            batch.done_bytes = batch.done_bytes.saturating_add(flight.bytes).saturating_add(flight.followers_bytes);
            batch.done_user_data = flight.followers_user_data;
            batch.head = flight.next;
        }
        if batch.head == NONE {
            batch.tail = NONE;
        }
    }

    /// Gives the outcome of a batch that has come to its end by itself.
    fn settle(&mut self, at: u32, now_ns: u64) {
        let Some(batch) = self.batches.get(at) else { return };
        if batch.in_flight > 0 {
            return;
        }
        match batch.phase {
            // A transfer may have been given up because its session ends: then there is no outcome, least of all a success.
            Phase::Running if batch.complete && batch.done_to == batch.taken => {
                let span = batch.success(now_ns);
                self.emit(at, span);
                self.batches.get_mut(at).expect("looked at above").phase = Phase::Ended;
                self.retire(at);
            }
            Phase::Failing => self.end_failed(at, now_ns),
            _ => {}
        }
    }

    /// Ends a batch by a deadline or a cancel, at once; one that is failing already ends with its failure.
    fn end(&mut self, at: u32, status: Status, now_ns: u64) {
        let Some(batch) = self.batches.get(at) else { return };
        if batch.phase == Phase::Failing {
            return self.end_failed(at, now_ns);
        }
        let stopped = batch.stopped(status, now_ns);
        self.emit_done(at, now_ns);
        self.finish_outcome(at, stopped, status, now_ns);
    }

    /// Gives the spans of a failed batch. What is still in flight (a deadline does not wait for it) makes them HELD.
    fn end_failed(&mut self, at: u32, now_ns: u64) {
        let Some(batch) = self.batches.get(at) else { return };
        let Some(failing) = batch.failing(now_ns) else { return };
        let status = failing.status();
        self.emit_done(at, now_ns);
        self.finish_outcome(at, Some(failing), status, now_ns);
    }

    fn emit_done(&mut self, at: u32, now_ns: u64) {
        let Some(batch) = self.batches.get(at) else { return };
        if let Some(done) = batch.done(now_ns) {
            self.emit(at, done);
        }
    }

    /// Emits the span that says how the batch ended and, if LAST is known, the rest.
    fn finish_outcome(&mut self, at: u32, ending: Option<Span>, status: Status, now_ns: u64) {
        let Some(batch) = self.batches.get_mut(at) else { return };
        batch.phase = Phase::Ended;
        batch.end_status = status;
        // Where everything taken before the end had been completed, the tail alone says that the batch did not succeed.
        batch.tail_status = if ending.is_some() { Status::NOT_DONE } else { status };
        let mut next = batch.head;
        batch.head = NONE;
        batch.tail = NONE;
        let (complete, taken, held) = (batch.complete, batch.taken, batch.held());
        self.held += batch.in_flight;
        let covered = ending.as_ref().map_or(batch.done_to, |s| s.first.wrapping_add(s.count.into()));
        while let Some(flight) = self.flights.get(next) {
            let after = flight.next;
            if flight.state != FlightState::InFlight {
                self.flights.remove(next);
            }
            next = after;
        }
        if let Some(mut span) = ending {
            if complete && covered == taken {
                span.flags |= SpanFlags::BATCH_DONE;
            }
            self.emit(at, span);
        }
        if complete {
            if self.open == Some(at) {
                self.open = None;
            }
            self.close(at, held, now_ns);
        }
    }

    /// LAST is known of a batch that has ended: what no span covers yet is not done. `held` is HELD if it ends only now,
    /// with transfers in flight.
    fn close(&mut self, at: u32, held: u16, now_ns: u64) {
        let Some(batch) = self.batches.get(at) else { return };
        if let Some(rest) = batch.rest(held, now_ns) {
            self.emit(at, rest);
        }
        self.retire(at);
    }

    /// Nothing is in flight any more of a batch that has ended before.
    fn release(&mut self, at: u32, now_ns: u64) {
        let Some(batch) = self.batches.get(at) else { return };
        let span = batch.released(now_ns);
        self.emit(at, span);
        self.retire(at);
    }

    fn emit(&mut self, at: u32, span: Span) {
        let batch = self.batches.get_mut(at).expect("the caller looked");
        batch.spans += 1;
        if span.flags & SpanFlags::RELEASED == 0 {
            batch.done_to = span.first.wrapping_add(span.count.into());
        }
        self.outcomes.push_back(Outcome { span, frees: 0 });
    }

    /// Forgets a batch that has had its last span, and gives its unused places back with that span.
    fn retire(&mut self, at: u32) {
        let Some(batch) = self.batches.get(at) else { return };
        if !batch.complete || batch.in_flight > 0 {
            return;
        }
        let frees = SPANS_PER_BATCH - batch.spans;
        self.batches.remove(at);
        if let Some(last) = self.outcomes.back_mut() {
            last.frees += frees;
        }
    }
}
