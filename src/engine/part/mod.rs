//! A part of a batch that goes one way over one connection: transfers in, planned parcels out.
//!
//! The first descriptors of a part wait until there is enough to decide by: its end, [`DECIDE_BYTES`], or a moment in which
//! none came. Then they are planned as they come, and each parcel leaves when it is full.

mod desk;

pub(super) use desk::{Desk, Desks};

use super::remote::{NoPart, PartId, Remotes, SeatId};
use crate::cost::{Decision, Geometry, Situation, window_segments};
use crate::pipeline::{BatchId, LINK_LOST, TransferId};
use crate::plan::{Class, Direction, Fault, Rules, Transfer, Work, survey};
use crate::region::Region;
use desk::{Queued, Way};
use ring_abi::Route;
use std::collections::VecDeque;
use std::sync::Arc;

/// One part, from its first descriptor until nothing of it is under way. Its storage is used again.
#[derive(Debug)]
pub(super) struct Part {
    pub id: PartId,
    pub seat: SeatId,
    pub direction: Direction,
    /// What the ledger counts, in ring order.
    pub flights: Vec<Flight>,
    /// Transfers that are not planned yet.
    queue: VecDeque<Queued>,
    /// Regions of this side that it uses, by handle.
    regions: Vec<(u32, Arc<Region>)>,
    desk: Option<Box<Desk>>,
    batch: Option<BatchId>,
    /// What the decision is taken by.
    work: Work,
    last: Last,
    last_added_ns: u64,
    /// Since when the connection has no room for what comes next. `None`: it has.
    refused_ns: Option<u64>,
    /// Bytes that its batch is said to have; 0: not said.
    hint_bytes: u64,
    rules: Rules,
    decision: Option<(Geometry, Decision, u64)>,
    state: State,
    /// Time spent on planning; that of single ranges is not measured.
    pub plan_ns: u64,
    /// Flights from this number on are not all planned, and will not be.
    dropped_from: u32,
    /// The first failure, with the number of its flight.
    fault: Option<(u32, Fault)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// More transfers may come.
    Open,
    /// No more will; they are planned.
    Whole,
    /// The connection has them all.
    Closed,
    /// Nothing more of it is started.
    GivenUp,
}

/// Descriptors, one or several in a row, that have their outcome together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub transfer: TransferId,
    /// What will be in place when it is done.
    pub bytes: u64,
}

/// Where the last single range ended on either side, so that adjacent ones count as one piece.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    ends: [u64; 2],
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Something was done.
    Moved,
    /// Nothing can be done now.
    Idle,
    /// Nothing of it is under way, nor will be.
    Over,
}

/// From so much on a decision does not change much.
const DECIDE_BYTES: u64 = 64 << 10;
/// A part that got nothing for so long is decided on as it is.
const DECIDE_AFTER_NS: u64 = 5_000;
/// One that was decided on, and got nothing for so long, ends: a client that stalls in the middle of a batch keeps no
/// connection from others, and no memory from its owner.
const OPEN_NS: u64 = 1_000_000;
/// What goes on is taken to become so many times as much, if nobody says how much it will be.
const GROWTH: u64 = 16;
/// Transfers that wait in one part.
const QUEUE: usize = 256;
/// Regions of this side in one part.
const REGIONS: usize = 16;
/// Most bytes that the poller carries by itself, on lane 0.
const SMALL_BYTES: u64 = 512 << 10;
/// Fragments planned in one turn: about ten microseconds.
pub(super) const FRAGMENTS_PER_TURN: u32 = 8192;

const NO_RULES: Rules =
    Rules { direct_from_bytes: 0, chunk_bytes: 1, first_chunk_bytes: 1, window_operations: 1, window_bytes: u32::MAX };

impl Part {
    pub fn new() -> Part {
        Part {
            id: PartId { slot: 0, session: 0, part: 0 },
            seat: SeatId(0),
            direction: Direction::Read,
            flights: Vec::new(),
            queue: VecDeque::with_capacity(QUEUE),
            regions: Vec::with_capacity(REGIONS),
            desk: None,
            batch: None,
            work: Work::default(),
            last: Last::default(),
            last_added_ns: 0,
            refused_ns: None,
            hint_bytes: 0,
            rules: NO_RULES,
            decision: None,
            state: State::Open,
            plan_ns: 0,
            dropped_from: u32::MAX,
            fault: None,
        }
    }

    /// Makes it a new one. `hint_bytes`: what its batch is said to have.
    pub fn start(&mut self, id: PartId, seat: SeatId, direction: Direction, hint_bytes: u64) {
        self.flights.clear();
        self.queue.clear();
        self.regions.clear();
        (self.id, self.seat, self.direction, self.hint_bytes) = (id, seat, direction, hint_bytes);
        (self.work, self.last) = (Work::default(), Last::default());
        (self.batch, self.decision, self.fault, self.state) = (None, None, None, State::Open);
        (self.dropped_from, self.plan_ns, self.refused_ns) = (u32::MAX, 0, None);
    }

    /// True if transfers may still be added.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// No more transfers come.
    pub fn complete(&mut self) {
        if self.state == State::Open {
            self.state = State::Whole;
        }
    }

    /// True if the next transfer has to wait.
    pub fn is_full(&self) -> bool {
        self.queue.len() >= QUEUE
    }

    /// Keeps a region of this side. False: it goes into another part.
    pub fn keep(&mut self, handle: u32, region: &Arc<Region>) -> bool {
        match self.regions.iter().find(|(known, _)| *known == handle) {
            // A handle may have come to name something else.
            Some((_, known)) => Arc::ptr_eq(known, region),
            None if self.regions.len() == REGIONS => false,
            None => {
                self.regions.push((handle, region.clone()));
                true
            }
        }
    }

    /// True if it was not decided on, and there is something to decide. What the connection has no room for waits for that.
    pub fn waits_for_time(&self) -> bool {
        let is_undecided = self.batch.is_none() && self.refused_ns.is_none();
        is_undecided && self.state == State::Open && !self.queue.is_empty()
    }

    /// When it [ends](Self::end_if_stalled) if nothing is added, `u64::MAX` for never.
    pub fn next_timer_ns(&self) -> u64 {
        let is_bare = self.state == State::Open && self.batch.is_some() && self.queue.is_empty();
        if is_bare { self.last_added_ns.saturating_add(OPEN_NS) } else { u64::MAX }
    }

    /// Ends it if its client has added nothing for long. What comes later goes into another part.
    pub fn end_if_stalled(&mut self, now_ns: u64) {
        if self.next_timer_ns() <= now_ns {
            self.complete();
            // How long its client took says nothing of the connection.
            self.decision = None;
        }
    }

    /// Its client has more for it.
    pub fn added(&mut self, now_ns: u64) {
        self.last_added_ns = now_ns;
    }

    /// The connection has no room for what comes next, or has it.
    fn refused(&mut self, is_refused: bool, now_ns: u64) {
        self.refused_ns = if is_refused { self.refused_ns.or(Some(now_ns)) } else { None };
    }

    /// Since when it waits for room on its connection. `None`: it does not.
    pub fn refused_since_ns(&self) -> Option<u64> {
        self.refused_ns
    }

    pub fn uses(&self, region: &Arc<Region>) -> bool {
        let is_it = |known: &Arc<Region>| Arc::ptr_eq(known, region);
        let as_index = |queued: &Queued| queued.index.as_ref().is_some_and(is_it);
        self.regions.iter().any(|(_, known)| is_it(known)) || self.queue.iter().any(as_index)
    }

    /// Adds a transfer to the flight that was added last. Its regions are named as lists are to name them.
    pub fn add(&mut self, transfer: Transfer, index: Option<Arc<Region>>, forced: Route, now_ns: u64) {
        let flight = self.flights.len().saturating_sub(1) as u32;
        if self.batch.is_none() && (index.is_none() || !self.queue.is_empty()) {
            self.last.survey(&transfer, &mut self.work);
        }
        self.added(now_ns);
        self.queue.push_back(Queued { transfer, index, flight, forced, next: 0, is_loaded: false });
    }

    /// Goes on with deciding and planning, for so many fragments at most.
    pub fn step(&mut self, remotes: &mut Remotes, desks: &mut Desks, now_ns: u64, budget: &mut u32) -> Step {
        match self.state {
            State::GivenUp if self.batch.is_none() => return Step::Over,
            State::GivenUp | State::Closed => return Step::Idle,
            State::Open | State::Whole => {}
        }
        if self.batch.is_none() && !self.is_due(now_ns) {
            return Step::Idle;
        }
        let mut desk = self.desk.take().or_else(|| desks.pop()).unwrap_or_default();
        let stepped = self.step_at(&mut desk, remotes, now_ns, budget);
        match stepped {
            Ok(step) if matches!(self.state, State::Open | State::Whole) => {
                self.desk = Some(desk);
                return step;
            }
            // What was planned before goes on.
            Err((flight, fault)) if self.batch.is_some() => {
                self.note_fault(flight, fault);
                self.drop_from(flight);
                self.desk = Some(desk);
                return Step::Moved;
            }
            Err((flight, fault)) => {
                self.note_fault(flight, fault);
                self.drop_from(0);
                self.state = State::GivenUp;
            }
            Ok(_) => {}
        }
        desk.clear(remotes);
        desks.push(desk);
        Step::Moved
    }

    fn step_at(
        &mut self,
        desk: &mut Desk,
        remotes: &mut Remotes,
        now_ns: u64,
        budget: &mut u32,
    ) -> Result<Step, (u32, Fault)> {
        if self.batch.is_none() {
            self.begin(desk, remotes, now_ns)?;
        }
        let Some(batch) = self.batch else { return Ok(Step::Idle) };
        let mut has_room = true;
        let mut way = Way { remotes, seat: self.seat, batch, regions: &self.regions };
        let before = *budget;
        while let Some(queued) = self.queue.front_mut().filter(|_| *budget > 0) {
            let flight = queued.flight;
            let at_flight = |fault| (flight, fault);
            desk.load(queued).map_err(at_flight)?;
            let planned = desk.plan(queued, self.rules, &mut way).map_err(at_flight)?;
            let Some((count, bytes)) = planned else {
                has_room = false;
                break;
            };
            *budget = budget.saturating_sub(count.max(1));
            if let Some(flight) = self.flights.get_mut(flight as usize) {
                flight.bytes = flight.bytes.saturating_add(bytes);
            }
            if queued.next >= queued.transfer.shape.count {
                self.queue.pop_front();
            }
        }
        if self.state == State::Whole && self.queue.is_empty() {
            has_room = desk.finish(&mut way);
            if has_room {
                way.remotes.close(self.seat, batch);
                self.state = State::Closed;
            }
        }
        self.refused(!has_room, now_ns);
        Ok(if *budget != before { Step::Moved } else { Step::Idle })
    }

    /// True if it is time to decide.
    fn is_due(&self, now_ns: u64) -> bool {
        let has_enough = self.hint_bytes > 0 || self.surveyed_bytes() >= DECIDE_BYTES || self.is_full();
        let waits = now_ns.saturating_sub(self.last_added_ns) >= DECIDE_AFTER_NS;
        let is_long = self.queue.front().is_some_and(|first| first.index.is_some());
        self.state == State::Whole || (!self.queue.is_empty() && (has_enough || is_long || waits))
    }

    /// Decides, and begins on the connection; without a batch afterwards there is no room now.
    fn begin(&mut self, desk: &mut Desk, remotes: &mut Remotes, now_ns: u64) -> Result<(), (u32, Fault)> {
        if let Some(first) = self.queue.front_mut().filter(|first| first.index.is_some() && !first.is_loaded) {
            let flight = first.flight;
            desk.load(first).map_err(|fault| (flight, fault))?;
            survey(&first.transfer, desk.numbers(), &mut self.work);
        }
        let lost = (0, LINK_LOST);
        let (chooser, situation) = remotes.judge(self.seat, self.direction).ok_or(lost)?;
        let work = self.expected_work();
        let decision = chooser.choose(&work, &situation);
        self.decision = Some((Geometry::of(&work, self.direction), decision, now_ns));
        self.rules = rules(&work, &decision, &situation);
        let is_small = self.state == State::Whole && self.surveyed_bytes() <= SMALL_BYTES;
        // Where nothing is gathered by choice, a descriptor may still ask for it.
        let slots = if decision.choice.slots == 0 { situation.budget.slots_max } else { decision.choice.slots };
        let begun = remotes.begin(self.seat, self.direction, slots, is_small, self.id);
        self.refused(begun == Err(NoPart::Busy), now_ns);
        match begun {
            Ok(batch) => self.batch = Some(batch),
            Err(NoPart::Busy) => return Ok(()),
            Err(NoPart::Gone) => return Err(lost),
        }
        desk.planner.begin(self.rules);
        Ok(())
    }

    fn surveyed_bytes(&self) -> u64 {
        self.work.classes().fold(0, |sum, (_, class)| class.bytes.saturating_add(sum))
    }

    /// What the part will be, as far as anybody can tell.
    fn expected_work(&self) -> Work {
        let surveyed = self.surveyed_bytes().max(1);
        match self.state {
            State::Whole => self.work,
            _ if self.hint_bytes > 0 => scaled(&self.work, self.hint_bytes.div_ceil(surveyed)),
            _ => scaled(&self.work, GROWTH),
        }
    }

    /// Single ranges may be planned here, one by one and without a wait: see [`Singles::plan`].
    pub fn singles(&mut self) -> Option<Singles<'_>> {
        let is_ready = self.state == State::Open && self.queue.is_empty();
        let (batch, desk) = (self.batch.filter(|_| is_ready)?, self.desk.as_mut()?);
        let flight = self.flights.len().saturating_sub(1) as u32;
        desk.planner.number(flight);
        Some(Singles { desk, seat: self.seat, batch, regions: &self.regions })
    }

    /// Nothing more of it is started.
    pub fn give_up(&mut self, remotes: &mut Remotes, now_ns: u64) {
        if self.state == State::GivenUp {
            return;
        }
        self.state = State::GivenUp;
        self.drop_from(0);
        if let Some(batch) = self.batch {
            remotes.cancel(self.seat, batch, now_ns);
        }
    }

    /// Nothing more is started of flights from this number on: an earlier descriptor of the batch has failed, or this one.
    pub fn drop_from(&mut self, flight: u32) {
        let planned = self.queue.iter().position(|queued| queued.flight >= flight);
        if let Some(at) = planned {
            self.dropped_from = self.dropped_from.min(self.queue[at].flight);
            self.queue.truncate(at);
        }
        self.complete();
    }

    /// True if all of a flight was planned.
    pub fn has_planned(&self, flight: usize) -> bool {
        (flight as u64) < self.dropped_from.into()
    }

    /// Keeps the first failure.
    pub fn note_fault(&mut self, flight: u32, fault: Fault) {
        self.fault.get_or_insert((flight, fault));
    }

    /// The failure of a flight.
    pub fn fault_of(&self, flight: usize) -> Option<Fault> {
        self.fault.filter(|(failed, _)| *failed as usize == flight).map(|(_, fault)| fault)
    }

    pub fn has_failed(&self) -> bool {
        self.fault.is_some()
    }

    /// It is over: what it planned with is for others.
    pub fn give_back(&mut self, remotes: &mut Remotes, desks: &mut Desks) {
        if let Some(mut desk) = self.desk.take() {
            desk.clear(remotes);
            desks.push(desk);
        }
        // Regions are to be let go at once.
        self.regions.clear();
        self.queue.clear();
    }

    /// It is done: what that took is worth knowing for the next decision.
    pub fn measured(&self, remotes: &mut Remotes, now_ns: u64) {
        if let Some((geometry, decision, begun_ns)) = &self.decision
            && let Some((chooser, _)) = remotes.judge(self.seat, self.direction)
        {
            chooser.measured(*geometry, decision, now_ns.saturating_sub(*begun_ns) as f64);
        }
    }

    /// Bytes that may still be written.
    pub fn outstanding_bytes(&self, remotes: &Remotes) -> u64 {
        self.batch.map_or(0, |batch| remotes.outstanding_bytes(self.seat, batch))
    }
}

/// The short way of single ranges into a part.
pub(super) struct Singles<'a> {
    desk: &'a mut Desk,
    seat: SeatId,
    batch: BatchId,
    regions: &'a [(u32, Arc<Region>)],
}

impl Singles<'_> {
    /// True if another one can be planned.
    #[inline]
    pub fn has_room(&mut self, remotes: &mut Remotes) -> bool {
        self.desk.has_spares(self.seat, self.batch, remotes)
    }

    /// Plans one, for which there is room.
    #[inline]
    pub fn plan(&mut self, single: &Transfer, remotes: &mut Remotes) {
        let Singles { desk, seat, batch, regions } = self;
        desk.plan_single(single, &mut Way { remotes, seat: *seat, batch: *batch, regions });
    }
}

impl Last {
    /// Adds a transfer whose index nobody has looked at: its fragments are taken to be anywhere.
    fn survey(&mut self, transfer: &Transfer, work: &mut Work) {
        let shape = &transfer.shape;
        let starts = [shape.offsets[0], shape.offsets[1]];
        let is_single = shape.count == 1 && shape.inner_count == 1;
        let follows = [0, 1].map(|side| is_single && self.ends[side] == starts[side]);
        let fragments = u64::from(shape.count);
        let pieces = fragments * u64::from(shape.inner_count);
        let bytes = fragments.saturating_mul(shape.fragment_bytes());
        self.ends = starts.map(|start| start.wrapping_add(bytes));
        work.add(&Class {
            fragments,
            segments: pieces.max(1),
            src_pieces: pieces - u64::from(follows[0]),
            dst_pieces: pieces - u64::from(follows[1]),
            bytes,
        });
    }
}

fn rules(work: &Work, decision: &Decision, situation: &Situation) -> Rules {
    let (choice, slot_bytes) = (decision.choice, situation.budget.chunk_bytes_max.max(1));
    let chunk_bytes = if choice.chunk_bytes == 0 { slot_bytes } else { choice.chunk_bytes.min(slot_bytes) };
    Rules {
        direct_from_bytes: choice.direct_from_bytes,
        chunk_bytes,
        first_chunk_bytes: if choice.chunk_bytes == 0 {
            chunk_bytes
        } else {
            choice.first_chunk_bytes().min(chunk_bytes)
        },
        window_operations: window_segments(work, situation, choice),
        // Each window goes by one lane.
        window_bytes: slot_bytes,
    }
}

fn scaled(work: &Work, by: u64) -> Work {
    let mut all = Work::default();
    for (_, class) in work.classes() {
        // The first piece of a side that is one piece stays one.
        let pieces = |pieces: u64| if pieces <= 1 { pieces } else { pieces.saturating_mul(by) };
        all.add(&Class {
            fragments: class.fragments.saturating_mul(by),
            segments: class.segments.saturating_mul(by),
            src_pieces: pieces(class.src_pieces),
            dst_pieces: pieces(class.dst_pieces),
            bytes: class.bytes.saturating_mul(by),
        });
    }
    all
}
