//! The ledger of batches, driven as a session drives it and compared with the model, event by event.

mod model;
mod planned;
mod seeded;

use model::{Memory, Model, Region};
use planned::{Planned, fault, plan};
use ring_abi::{Descriptor, Entry, Extension, Field, Flags, IndexKind, Opcode, SPANS_PER_BATCH, Span, Stage, Status};
use scatter_ring::pipeline::{Ledger, Postponed, Readiness, TransferId};
use scatter_ring::plan::Fault;
use seeded::{Random, cases};
use std::collections::{BTreeMap, VecDeque};

const SRC: u32 = 0x1001;
const DST: u32 = 0x1002;
const INDEX: u32 = 0x1003;
const BYTES: usize = 64;
/// Entries of the index region; from `BAD_FROM` on they lead nowhere.
const BAD_FROM: u32 = 8;
const STARTS: [u64; 6] =
    [0, u64::MAX - 5, u64::MAX - 40, u32::MAX as u64 - 5, i32::MAX as u64 - 5, i64::MAX as u64 - 5];

#[test]
fn every_batch_gets_the_spans_that_the_model_gives_it() {
    cases(20_000, |random| {
        let mut pair = Pair::new(random);
        for _ in 0..24 + random.below(40) {
            pair.any_event(random);
        }
        pair.run_to_the_end(random);
        let (found, expected) = (pair.spans_by_batch(&pair.log), pair.spans_by_batch(&pair.expected));
        for first in &pair.batches {
            assert_eq!(found[first], expected[first], "the batch {first} slots behind the start");
        }
    });
}

#[test]
fn a_batch_is_no_success_if_a_transfer_was_given_up_although_nothing_failed() {
    let mut ledger = Ledger::new(1, 2);
    ledger.begin(0);
    ledger.took(1, 0, false, 0);
    let given_up = ledger.start(0);
    ledger.took(1, 0, true, 0);
    let done = ledger.start(0);
    ledger.abandon(given_up, None, 0);
    ledger.finish(done, 8, 0);
    assert_eq!(ledger.next_outcome(), None);
}

#[test]
fn times_count_from_the_first_descriptor_taken() {
    let mut ledger = Ledger::new(1, 1);
    ledger.begin(0);
    ledger.took(1, 0, false, 10);
    let id = ledger.start(12);
    ledger.took(1, 0, true, 30);
    ledger.complete(0, false, 30);
    ledger.finish(id, 8, 50);
    let span = ledger.next_outcome().expect("all is done").span;
    assert_eq!((span.queue_ns, span.window_ns, span.total_ns), (2, 38, 40));
}

/// The model and a ledger on the same ring.
struct Pair {
    model: Model,
    expected: Vec<Span>,
    ledger: Ledger,
    log: Vec<Span>,
    cq_capacity: u32,
    unreaped: u32,
    reserved: u32,
    /// What the ledger's side has not taken, and the position of the first of it.
    queue: VecDeque<Entry>,
    head: u64,
    half: Option<Descriptor>,
    at_fence: Option<(Descriptor, Option<Entry>)>,
    /// Transfers in flight by the number of their descriptor, and how they will end.
    flights: BTreeMap<u64, (TransferId, Result<u64, Fault>)>,
    /// NOTIFYs that are not sent, by the number of their descriptor.
    postponed: BTreeMap<u64, Postponed>,
    memory: Memory,
    start: u64,
    /// Distances of the batches' first slots from the start, as pushed.
    batches: Vec<u64>,
    pushed: u64,
    batch_is_open: bool,
    /// Slots that were made up and not pushed.
    script: VecDeque<Entry>,
    now_ns: u64,
}

impl Pair {
    fn new(random: &mut Random) -> Pair {
        let cq_capacity = random.pick(&[4, 8, 64]);
        let start = random.pick(&STARTS);
        let memory = memory();
        Pair {
            model: Model::new(memory.regions.clone(), cq_capacity, start),
            expected: Vec::new(),
            // A batch that is not finished has at least one place.
            ledger: Ledger::new(cq_capacity, random.pick(&[1, 3, 64])),
            log: Vec::new(),
            cq_capacity,
            unreaped: 0,
            reserved: 0,
            queue: VecDeque::new(),
            head: start,
            half: None,
            at_fence: None,
            flights: BTreeMap::new(),
            postponed: BTreeMap::new(),
            memory,
            start,
            batches: Vec::new(),
            pushed: 0,
            batch_is_open: false,
            script: VecDeque::new(),
            now_ns: random.pick(&[0, 1 << 40, u64::MAX - 4000]),
        }
    }

    fn any_event(&mut self, random: &mut Random) {
        self.now_ns += random.below(3);
        match random.below(20) {
            0..6 => self.push_a_slot(random),
            6..12 => self.take(random.once_in(3)),
            12..15 => self.end_any_transfer(random),
            15 | 16 => {
                self.now_ns += random.pick(&[0, 0, 24]);
                self.tick();
            }
            17 if random.once_in(2) => self.cancel(random),
            17 => self.deliver_any(random),
            18 => self.reap(),
            _ => (0..4).for_each(|_| self.push_a_slot(random)),
        }
        self.settle();
    }

    /// Completes the last batch, and takes and ends everything.
    fn run_to_the_end(&mut self, random: &mut Random) {
        while !self.script.is_empty() {
            self.push_a_slot(random);
        }
        if self.batch_is_open {
            let nop = Descriptor { opcode: Opcode::NOP.0, flags: Flags::LAST, ..Descriptor::ZERO };
            self.push(nop.to_entry());
        }
        while !self.model.is_idle() {
            let before = (self.head, self.flights.len(), self.expected.len());
            self.take(false);
            self.settle();
            self.end_any_transfer(random);
            self.settle();
            self.deliver_any(random);
            self.settle();
            self.reap();
            let after = (self.head, self.flights.len(), self.expected.len());
            assert!(before != after, "stuck");
        }
        self.reap();
        assert!(
            self.flights.is_empty() && self.postponed.is_empty() && self.queue.is_empty() && !self.ledger.is_open()
        );
        assert_eq!(self.reserved, 0);
    }

    fn push_a_slot(&mut self, random: &mut Random) {
        if self.script.is_empty() {
            let targets: Vec<u64> = self.batches.iter().rev().take(3).map(|b| self.start.wrapping_add(*b)).collect();
            let (d, second) = any_descriptor(random, !self.batch_is_open, &targets);
            if !self.batch_is_open {
                self.batches.push(self.pushed);
            }
            self.batch_is_open = d.flags & Flags::LAST == 0;
            self.script.push_back(d.to_entry());
            self.script.extend(second.filter(|_| d.flags & Flags::EXTENDED != 0));
        }
        let entry = self.script.pop_front().expect("made up just now");
        self.push(entry);
    }

    fn push(&mut self, entry: Entry) {
        self.model.push(entry);
        self.queue.push_back(entry);
        self.pushed += 1;
    }

    /// One descriptor, by both. With `at_once` a transfer ends when it is taken, as a single row does.
    fn take(&mut self, at_once: bool) {
        if !self.ledger.has_transfer_room(1) && self.half.is_none() {
            return; // The model knows no such limit.
        }
        let position = self.head.wrapping_sub(u64::from(self.half.is_some()));
        let taken = self.take_from_queue(at_once);
        assert_eq!(self.model.take(self.now_ns), taken.is_some());
        if taken == Some(Taken::AtOnce) {
            self.model.complete(position, self.now_ns);
        }
    }

    fn take_from_queue(&mut self, at_once: bool) -> Option<Taken> {
        while self.may_take() {
            let entry = self.queue.pop_front()?;
            self.head = self.head.wrapping_add(1);
            if let Some(d) = self.half.take() {
                return Some(self.take_descriptor(&d, Some(&entry), at_once));
            }
            let d = Descriptor::from_entry(&entry);
            if d.flags & Flags::EXTENDED == 0 {
                return Some(self.take_descriptor(&d, None, at_once));
            }
            self.half = Some(d);
        }
        None
    }

    fn may_take(&mut self) -> bool {
        if self.half.is_some() {
            return true;
        }
        if self.ledger.is_open() {
            return !self.ledger.is_fenced();
        }
        if self.queue.is_empty() || self.free_places() < SPANS_PER_BATCH {
            return false;
        }
        assert!(self.ledger.has_batch_room());
        self.reserved += SPANS_PER_BATCH;
        self.ledger.begin(self.head);
        true
    }

    fn take_descriptor(&mut self, d: &Descriptor, second: Option<&Entry>, at_once: bool) -> Taken {
        let is_first = self.ledger.is_at_first();
        let is_discarded = self.ledger.is_discarding();
        let slots = 1 + u32::from(second.is_some());
        self.ledger.took(slots, d.user_data, d.flags & Flags::LAST != 0, self.now_ns);
        if is_discarded {
            return Taken::Other;
        }
        let waits = is_first && d.flags & Flags::FENCE != 0 && self.ledger.fence();
        match plan(d, second, is_first, &self.memory) {
            Err(fault) => self.ledger.fail(fault, self.now_ns),
            Ok(planned) => {
                if let Planned::Begin { deadline_ns } = planned {
                    self.ledger.set_deadline(deadline_ns);
                }
                if waits {
                    self.at_fence = Some((*d, second.copied()));
                } else {
                    let position = self.head.wrapping_sub(slots.into());
                    return self.start(&planned, d, second, position, at_once);
                }
            }
        }
        Taken::Other
    }

    fn start(&mut self, p: &Planned, d: &Descriptor, second: Option<&Entry>, position: u64, at_once: bool) -> Taken {
        match p {
            Planned::Nothing | Planned::Begin { .. } => self.ledger.complete(0, false, self.now_ns),
            Planned::Cancel { target } => {
                if self.ledger.cancel_from_ring(*target, self.now_ns) {
                    self.ledger.complete(0, false, self.now_ns);
                } else {
                    let fault = Fault::new(Status::NOT_FOUND, Stage::TAKE, Field::SRC_OFFSET, *target);
                    self.ledger.fail(fault, self.now_ns);
                }
            }
            Planned::Transfer(_) => {
                let result = self.memory.transfer(d, second.map(Extension::from_entry).as_ref()).map_err(fault);
                if let Ok(bytes) = result
                    && at_once
                {
                    self.ledger.complete(bytes, true, self.now_ns);
                    return Taken::AtOnce;
                }
                let id = self.ledger.start(self.now_ns);
                self.flights.insert(position.wrapping_sub(self.start), (id, result));
            }
            Planned::Notify(_) => {
                self.postponed.insert(position.wrapping_sub(self.start), self.ledger.postpone());
            }
        }
        Taken::Other
    }

    fn end_any_transfer(&mut self, random: &mut Random) {
        let in_flight: Vec<u64> = self.flights.keys().copied().collect();
        assert_eq!(in_flight.len(), self.model.in_flight().len());
        if in_flight.is_empty() {
            return;
        }
        let distance = random.pick(&in_flight);
        let position = self.start.wrapping_add(distance);
        let (id, result) = self.flights.remove(&distance).expect("picked just now");
        let counts = self.ledger.may_go_on(id);
        assert_eq!(counts, self.model.counts(position));
        self.model.complete(position, self.now_ns);
        match result {
            _ if !counts && random.once_in(2) => self.ledger.abandon(id, None, self.now_ns),
            Ok(bytes) => self.ledger.finish(id, bytes, self.now_ns),
            Err(fault) => self.ledger.abandon(id, Some(fault), self.now_ns),
        }
    }

    /// The NOTIFYs that can be sent now; those of batches that have ended are forgotten.
    fn due(&mut self) -> Vec<u64> {
        let ledger = &self.ledger;
        self.postponed.retain(|_, postponed| ledger.readiness(*postponed) != Readiness::Never);
        let due = self.postponed.iter().filter(|(_, postponed)| ledger.readiness(**postponed) == Readiness::Due);
        due.map(|(distance, _)| self.start.wrapping_add(*distance)).collect()
    }

    fn deliver_any(&mut self, random: &mut Random) {
        let due = self.due();
        if due.is_empty() {
            return;
        }
        let position = random.pick(&due);
        let postponed = self.postponed.remove(&position.wrapping_sub(self.start)).expect("picked just now");
        let refused = random.once_in(4).then_some(Status::REGION_GONE);
        self.model.deliver(position, refused, self.now_ns);
        let fault = refused.map(|status| Fault::new(status, Stage::COMMAND, Field::DST_REGION, DST.into()));
        self.ledger.conclude(postponed, fault.map_or(Ok(()), Err), self.now_ns);
        assert_eq!(self.ledger.readiness(postponed), Readiness::Never);
        // Whoever tries again by mistake changes nothing.
        self.ledger.conclude(postponed, Ok(()), self.now_ns);
    }

    fn tick(&mut self) {
        self.model.tick(self.now_ns);
        self.ledger.expire(self.now_ns);
        let next_ns = self.ledger.next_deadline_ns();
        assert!(next_ns > self.now_ns, "a caller that sleeps until {next_ns} does not sleep");
    }

    fn cancel(&mut self, random: &mut Random) {
        let recent = self.batches.len().saturating_sub(4);
        let firsts: Vec<u64> = self.batches[recent..].iter().map(|b| self.start.wrapping_add(*b)).collect();
        if firsts.is_empty() {
            return;
        }
        let target = random.pick(&firsts).wrapping_add(u64::from(random.once_in(8)));
        let found = self.model.cancel(target, self.now_ns) == Status::OK;
        assert_eq!(self.ledger.cancel(target, self.now_ns), found);
    }

    fn reap(&mut self) {
        let spans = self.model.reap();
        assert_eq!(spans.len() as u32, self.unreaped);
        self.expected.extend(spans);
        self.unreaped = 0;
    }

    /// What a session does between two events: pass the fence, publish.
    fn settle(&mut self) {
        if self.at_fence.is_some() && !self.ledger.is_fenced() {
            let (d, second) = self.at_fence.take().expect("looked at just now");
            if self.ledger.pass_fence() {
                let planned = plan(&d, second.as_ref(), true, &self.memory).expect("it was well-formed before");
                let slots = 1 + u64::from(second.is_some());
                self.start(&planned, &d, second.as_ref(), self.head.wrapping_sub(slots), false);
            }
        }
        while let Some(outcome) = self.ledger.next_outcome() {
            self.unreaped += 1;
            self.reserved -= 1 + outcome.frees;
            self.log.push(outcome.span);
        }
        assert_eq!(self.due(), self.model.due());
        let reserved_for_half = if self.half.is_some() && self.ledger.is_at_first() { SPANS_PER_BATCH } else { 0 };
        assert_eq!(self.free_places() + reserved_for_half, self.model.free_places());
        let next_ns = u128::from(self.ledger.next_deadline_ns());
        assert!(self.model.next_deadline_ns().is_none_or(|deadline| next_ns <= deadline));
    }

    fn free_places(&self) -> u32 {
        self.cq_capacity - self.unreaped - self.reserved
    }

    /// Spans without their times, each batch's in their order.
    fn spans_by_batch(&self, spans: &[Span]) -> BTreeMap<u64, Vec<Span>> {
        let mut by_batch: BTreeMap<u64, Vec<Span>> = BTreeMap::new();
        for span in spans {
            let distance = span.first.wrapping_sub(self.start);
            let batch = self.batches.partition_point(|first| *first <= distance) - 1;
            let mut timeless = Span { pack_ns: 0, window_ns: 0, total_ns: 0, ..*span };
            if span.status().is_ok() {
                (timeless.queue_ns, timeless.plan_ns, timeless.command_ns) = (0, 0, 0);
            }
            by_batch.entry(self.batches[batch]).or_default().push(timeless);
        }
        by_batch
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// A transfer that has ended already.
    AtOnce,
    Other,
}

fn memory() -> Memory {
    let index = (0..BYTES as u32 / 4).flat_map(|i| if i < BAD_FROM { i } else { 1000 + i }.to_le_bytes()).collect();
    let region = |handle, bytes| Region { handle, bytes, read: true, write: true, gone: false, engines_own: false };
    let index = Region { write: false, ..region(INDEX, index) };
    Memory { regions: vec![region(SRC, vec![1; BYTES]), region(DST, vec![0; BYTES]), index] }
}

/// A descriptor, mostly good, and a slot to stand behind it if it is EXTENDED.
fn any_descriptor(random: &mut Random, is_first: bool, targets: &[u64]) -> (Descriptor, Option<Entry>) {
    let read = Descriptor {
        opcode: Opcode::READ.0,
        len: 1 + random.small(4),
        src_region: SRC,
        dst_region: DST,
        count: 1 + random.small(4),
        src_stride: 4,
        dst_stride: 4,
        ..Descriptor::ZERO
    };
    let by_index = Descriptor {
        index_kind: IndexKind::pack(IndexKind::U32, IndexKind::None),
        index_region: INDEX,
        index_offset: 4 * random.below(5),
        ..read
    };
    let begin = Descriptor { opcode: Opcode::BEGIN.0, dst_offset: random.below(48), ..Descriptor::ZERO };
    let cancel = Descriptor { opcode: Opcode::CANCEL.0, flags: Flags::LAST, ..Descriptor::ZERO };
    let nop = Descriptor { opcode: Opcode::NOP.0, ..Descriptor::ZERO };
    let mut d = match random.below(16) {
        0 => nop,
        1 => Descriptor { len: 0, ..read },
        2 => Descriptor { index_offset: 4 * u64::from(BAD_FROM - 2), count: 4, ..by_index },
        3 if random.once_in(2) => Descriptor { src_offset: BYTES as u64, ..read },
        4 if random.once_in(4) => Descriptor { opcode: random.pick(&[0, 2, 6, 7, 9]), ..Descriptor::ZERO },
        5 if is_first && !targets.is_empty() => {
            Descriptor { src_offset: random.pick(targets).wrapping_add(u64::from(random.once_in(8))), ..cancel }
        }
        6..8 => Descriptor { flags: Flags::EXTENDED, ..read },
        8 => by_index,
        14 | 15 if random.once_in(3) => {
            let (opcode, flags) = (Opcode::NOTIFY.0, Flags::LAST);
            Descriptor { opcode, flags, len: 4, src_region: SRC, dst_region: DST, dst_offset: 7, ..Descriptor::ZERO }
        }
        9 if is_first => Descriptor { dst_offset: random.pick(&[0, u64::MAX, u64::MAX / 2]), ..begin },
        9..12 if is_first => begin,
        _ => read,
    };
    if random.once_in(3) {
        d.flags |= Flags::LAST;
    }
    if random.once_in(if is_first { 4 } else { 100 }) {
        d.flags |= Flags::FENCE;
    }
    d.user_data = random.word();
    let opcode = if random.once_in(12) { Opcode::NOP.0 } else { Opcode::EXTENSION.0 };
    (d, Some(Extension { opcode, ..Extension::new(1 + random.small(2), 2, 8) }.to_entry()))
}
