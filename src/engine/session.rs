//! One client's ring pair in the poller: descriptors in, copies, spans out.

use super::config::Limits;
use super::memory::Memory;
use super::notify::{Desk as NoticeDesk, Notices};
use super::part::Desks;
use super::parts::Parts;
use super::remote::{Remote, Remotes};
use super::rows::{Pair, SLOTS_PER_RELEASE, Streak};
use super::staged::{StagedRun, Stagings};
use super::start::Checked;
use crate::attach::{EngineAreas, RingWords};
use crate::completion::Completions;
use crate::pack::{Cut, Done, RowList, Run, TASK_BYTES, Window, Workers};
use crate::pipeline::{Ledger, TransferId};
use crate::region::copy::RowQueue;
use crate::region::{HandleTable, Rights, SharedPages, Word, guard};
use crate::ring::{self, BadPosition, Consumer, PushError, Sleeper};
use crate::stats::{self, Stats};
use ring_abi::{BATCH_SLOTS_MAX, Descriptor, Entry, Flags, Handle, SPANS_PER_BATCH, Span, Status};
use rustix::fd::OwnedFd;
use rustix::net::SendFlags;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// A session as the poller has it.
#[derive(Debug)]
pub(super) struct Session {
    pub id: u64,
    /// Its place in the poller.
    pub slot: u32,
    pub(super) sq: Consumer<RingWords>,
    pub(super) completions: Completions<RingWords>,
    client_sleep: Word,
    engine_sleep: Word,
    stop: Word,
    sleeper: Sleeper,
    /// Rung by the client, watched by the poller, never read.
    pub doorbell: OwnedFd,
    wake: OwnedFd,
    pub(super) regions: HandleTable<Granted>,
    pub(super) ledger: Ledger,
    /// Transfers in flight, under their ledger numbers.
    pub(super) runs: Box<[Option<Run>]>,
    /// Their numbers in ring order; those that have nothing left to cut leave.
    pub(super) to_cut: VecDeque<u32>,
    /// Those that go through staging slots, under their ledger numbers, and these in ring order.
    pub(super) staged: Box<[Option<StagedRun>]>,
    pub(super) staged_order: VecDeque<u32>,
    /// Those that peers carry.
    pub(super) parts: Parts,
    /// NOTIFYs on their way.
    pub(super) notices: Notices,
    /// Where its client finds what it is told; without it it is told nothing.
    pub(super) events: Option<Arc<SharedPages>>,
    pub(super) streak: Streak,
    /// A descriptor whose extension slot has not come yet.
    half: Option<Descriptor>,
    /// The first descriptor of a batch that waits at its fence.
    at_fence: Option<(Descriptor, Option<Entry>)>,
    /// Mappings of this process that had been lost when it last looked.
    faults: u64,
    pub state: State,
    /// An owner session: its rings carry commands and results.
    pub is_owner: bool,
    pub(super) start_position: u64,
    /// It was left with work that it could not do yet: completion places or a fence.
    pub is_blocked: bool,
    held_bytes_max: u64,
    pub(super) stats: Arc<Stats>,
    /// Slots whose outcome was shown, and bytes that were said to be in place.
    pub shown: Shown,
}

/// What became of a session, for the log.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shown {
    pub descriptors: u64,
    pub bytes: u64,
    /// Batches without an outcome when it ended.
    pub batches_cut: u64,
    /// Why it was ended, if not by its client's end of file.
    pub reason: Option<Status>,
}

/// Whether a session takes descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Serving,
    /// No batch is begun any more; those under way are carried on.
    Finishing,
    /// What is in flight drains; then it is given back to the control thread.
    Draining,
}

/// A region as a session may use it.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    /// `None`: withdrawn by its owner, and nobody uses it any more.
    pub memory: Option<Memory>,
    pub rights: Rights,
    /// The session that is told by a NOTIFY about it, 0 for memory of the engine's process and of peers.
    pub exporter: u64,
    /// What its connection calls it, if it is a peer's, mapped or not: NOTIFYs go there.
    pub remote: Option<Arc<Remote>>,
}

/// What wakes either side of a session.
pub(super) struct Wires {
    /// Rung by the client.
    pub doorbell: OwnedFd,
    /// The client's end of file.
    pub wake: OwnedFd,
}

/// The engine's clock: ns since it was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(Instant);

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// What the sessions of one poller share.
pub(super) struct Shared {
    pub workers: Workers,
    pub window: Window,
    pub rows: RowQueue,
    /// Empty lists of rows for workers.
    pub lists: Vec<Box<RowList>>,
    pub stagings: Stagings,
    pub remotes: Remotes,
    pub notices: NoticeDesk,
    /// Not in use.
    pub desks: Desks,
}

/// Slots taken from one ring in one turn: what a busy client can put before another one's descriptor.
pub(super) const SLOTS_PER_TURN: u32 = 256;
/// Spans count the slots of a batch in 32 bits. Checked once a turn.
const SLOTS_PER_BATCH_MAX: u64 = BATCH_SLOTS_MAX as u64 - 2 * SLOTS_PER_TURN as u64;
/// Transfers of one ring in flight.
const TRANSFERS: u32 = 64;
/// Batches of one ring under way, at most.
const BATCHES: u32 = 1024;

impl Session {
    pub fn new(
        id: u64,
        areas: EngineAreas,
        wires: Wires,
        cq_capacity: u32,
        limits: &Limits,
        stats: Arc<Stats>,
    ) -> Session {
        let Wires { doorbell, wake } = wires;
        let batches = (cq_capacity / SPANS_PER_BATCH).min(limits.batches).clamp(1, BATCHES);
        Session {
            id,
            slot: 0,
            start_position: areas.sq.position(),
            sq: areas.sq,
            completions: Completions::new(areas.cq),
            client_sleep: areas.client_sleep,
            engine_sleep: areas.engine_sleep,
            stop: areas.stop,
            sleeper: Sleeper::default(),
            doorbell,
            wake,
            regions: HandleTable::new(Handle::INDEX_MAX + 1),
            ledger: Ledger::new(batches, TRANSFERS),
            runs: (0..TRANSFERS).map(|_| None).collect(),
            to_cut: VecDeque::with_capacity(TRANSFERS as usize),
            staged: (0..TRANSFERS).map(|_| None).collect(),
            staged_order: VecDeque::with_capacity(TRANSFERS as usize),
            parts: Parts::default(),
            notices: Notices::new(batches),
            events: None,
            streak: Streak::default(),
            half: None,
            at_fence: None,
            faults: guard::faults(),
            state: State::Serving,
            is_owner: false,
            is_blocked: false,
            held_bytes_max: limits.held_bytes,
            stats,
            shown: Shown::default(),
        }
    }

    /// Looks how far the client has published. A turn takes nothing beyond that: between the look and the turn the poller
    /// obeys commands, so that a region which was granted before a descriptor was published is known to it.
    ///
    /// # Errors
    /// If the client's tail is impossible.
    pub fn look(&mut self) -> Result<(), BadPosition> {
        if self.state != State::Draining && self.sq.known() == 0 {
            self.sq.available()?;
        }
        Ok(())
    }

    /// One turn: takes descriptors, runs tasks, publishes spans. True if anything was done.
    ///
    /// # Errors
    /// If the client's positions are impossible; the session is then to be ended.
    pub fn serve(&mut self, slot: u32, shared: &mut Shared, clock: Clock) -> Result<bool, PushError> {
        if self.is_owner {
            return Ok(self.take_results(&mut shared.stagings)?);
        }
        let now_ns = clock.now_ns();
        self.ledger.expire(now_ns);
        let mut busy = false;
        if self.state != State::Draining {
            busy |= self.take(slot, shared, clock, now_ns)?;
        }
        busy |= self.run_tasks(slot, shared, clock);
        busy |= self.run_staged(shared, clock);
        busy |= self.run_parts(shared, clock, now_ns);
        if self.ledger.open_slots() > SLOTS_PER_BATCH_MAX {
            self.end(Status::BATCH_TOO_LONG);
        }
        if self.held_bytes(&shared.remotes) > self.held_bytes_max {
            self.end(Status::LIMIT_EXCEEDED);
        }
        // Nothing is shown after the stop: what the ledger says of transfers that were given up is not what was done.
        if self.state != State::Draining {
            self.publish()?;
        }
        Ok(busy)
    }

    /// Takes up to a turn's worth of slots.
    fn take(&mut self, slot: u32, shared: &mut Shared, clock: Clock, now_ns: u64) -> Result<bool, BadPosition> {
        self.is_blocked = false;
        let before = self.sq.position();
        let progress = self.pass_fence(now_ns);
        let taken = self.take_slots(slot, shared, clock, now_ns);
        // Also if the ring turned out to be broken: rows that stayed in the queue would be copied in another session's
        // turn, when the regions of this one may be unmapped.
        // SAFETY: the rows were checked against regions of this session, and regions are dropped between turns only.
        unsafe { shared.rows.flush() };
        self.sq.release();
        let moved = self.sq.position() != before;
        if moved && self.has_lost_for_good() {
            // Rows of this turn count as done, and may not be.
            self.stop(Status::REGION_GONE);
        }
        taken.map(|()| progress | moved)
    }

    /// True if memory that nobody can take away is gone: the machine's memory is broken, or full. It is looked for once a
    /// turn and not once a row, which is why nothing of that turn can be shown.
    fn has_lost_for_good(&mut self) -> bool {
        let faults = guard::faults();
        if faults == self.faults {
            return false;
        }
        self.faults = faults;
        let mut regions = self.regions.iter().filter_map(|(_, granted)| granted.memory.as_ref());
        regions.any(|region| region.is_lost() && !region.may_be_lost())
    }

    fn take_slots(&mut self, slot: u32, shared: &mut Shared, clock: Clock, now_ns: u64) -> Result<(), BadPosition> {
        let mut pair = Pair::default();
        self.parts.forget_rows();
        let mut budget = SLOTS_PER_TURN;
        let mut since_release = 0;
        while budget > 0 && self.may_take()? && self.sq.known() > 0 {
            let may_be_row = self.half.is_none() && !self.ledger.is_discarding();
            let entry = if may_be_row {
                self.take_rows(slot, &mut pair, &mut budget, shared, clock, now_ns)?
            } else {
                self.sq.pop()?
            };
            let Some(entry) = entry else { continue };
            budget = budget.saturating_sub(1);
            self.take_slot(&entry, now_ns);
            since_release += 1;
            if since_release % SLOTS_PER_RELEASE == 0 {
                self.sq.release();
            }
        }
        self.streak.went_on(&pair);
        Ok(())
    }

    /// True if the next slot can be taken now; reserves for a new batch what it needs.
    fn may_take(&mut self) -> Result<bool, BadPosition> {
        if self.half.is_some() {
            return Ok(true);
        }
        if self.parts.are_full() {
            self.is_blocked = true;
            return Ok(false);
        }
        if self.ledger.is_open() {
            let blocked = self.ledger.is_fenced() || !self.ledger.has_transfer_room(1);
            self.is_blocked |= blocked;
            return Ok(!blocked);
        }
        if self.sq.known() == 0 || self.state == State::Finishing {
            return Ok(false);
        }
        if !self.ledger.has_batch_room() || !self.ledger.has_transfer_room(1) || !self.completions.reserve()? {
            self.is_blocked = true;
            return Ok(false);
        }
        // The reservation belongs to the batch that begins with the slot that is there.
        self.ledger.begin(self.sq.position());
        Ok(true)
    }

    fn take_slot(&mut self, entry: &Entry, now_ns: u64) {
        if let Some(descriptor) = self.half.take() {
            return self.take_descriptor(&descriptor, Some(entry), now_ns);
        }
        let descriptor = Descriptor::from_entry(entry);
        if descriptor.flags & Flags::EXTENDED != 0 {
            self.half = Some(descriptor);
        } else {
            self.take_descriptor(&descriptor, None, now_ns);
        }
    }

    fn take_descriptor(&mut self, d: &Descriptor, extension: Option<&Entry>, now_ns: u64) {
        let first = self.ledger.is_at_first();
        let discarding = self.ledger.is_discarding();
        let slots = 1 + u32::from(extension.is_some());
        let last = d.flags & Flags::LAST != 0;
        self.ledger.took(slots, d.user_data, last, now_ns);
        if discarding {
            return self.parts.complete();
        }
        let fenced = first && d.flags & Flags::FENCE != 0 && self.ledger.fence();
        match self.check(d, extension, first) {
            Err(fault) => {
                self.ledger.fail(fault, now_ns);
                self.parts.complete();
            }
            Ok(checked) => {
                if let Checked::Begin { deadline_ns, hint_bytes } = &checked {
                    self.ledger.set_deadline(*deadline_ns);
                    self.parts.hint_bytes = *hint_bytes;
                }
                if fenced {
                    self.at_fence = Some((*d, extension.copied()));
                } else {
                    self.start(checked, now_ns);
                }
            }
        }
        if last {
            self.parts.complete();
        }
    }

    /// Starts the descriptor that waited at a fence, once nothing is before it. True if it did.
    fn pass_fence(&mut self, now_ns: u64) -> bool {
        if self.at_fence.is_none() || self.ledger.is_fenced() {
            return false;
        }
        let Some((descriptor, extension)) = self.at_fence.take() else { return false };
        if !self.ledger.pass_fence() {
            return true; // A deadline or a cancel has ended the batch meanwhile.
        }
        // Regions may have been closed while it waited.
        match self.check(&descriptor, extension.as_ref(), true) {
            Err(fault) => self.ledger.fail(fault, now_ns),
            Ok(checked) => self.start(checked, now_ns),
        }
        if descriptor.flags & Flags::LAST != 0 {
            self.parts.complete();
        }
        true
    }

    /// Cuts transfers into tasks, gives the long ones' to workers and runs the others here, for a turn's worth of bytes.
    fn run_tasks(&mut self, slot: u32, shared: &mut Shared, clock: Clock) -> bool {
        // As many bytes as could be copied meanwhile: for a lookup, and for each piece of a task, which is a cache line
        // or two even where a piece is a byte, or missing.
        const COST_OF_ANY: u64 = 64;
        const COST_OF_PIECE: u64 = 16;
        let mut copied = 0;
        let mut busy = false;
        while copied < TASK_BYTES
            && let Some(&id) = self.to_cut.front()
        {
            busy = true;
            let run = self.runs[id as usize].as_mut().expect("a run that is to be cut exists");
            if !self.ledger.may_go_on(TransferId(id)) {
                run.give_up();
            }
            match run.cut(task_id(slot, id)) {
                Some(Cut::Task(task)) if run.is_long() && shared.workers.have_room() => {
                    shared.workers.give(&task);
                }
                Some(Cut::Task(task)) => {
                    // SAFETY: the run keeps its regions mapped; planning has checked the transfer against them.
                    let done = unsafe { task.run_caught(&mut shared.window) };
                    run.came_back(&done);
                    copied += done.bytes.max(task.pieces() * COST_OF_PIECE) + COST_OF_ANY;
                }
                Some(Cut::Missing) => copied += COST_OF_ANY,
                Some(Cut::Row { src, dst, len }) => {
                    // SAFETY: checked when it was cut; flushed below, while the run keeps its regions.
                    unsafe { shared.rows.push(src, dst, len) };
                    copied += u64::from(len) + COST_OF_ANY;
                }
                None => {
                    // SAFETY: as above, before the run and its regions go.
                    unsafe { shared.rows.flush() };
                    self.to_cut.pop_front();
                    self.finish_if_drained(id, clock);
                }
            }
        }
        // SAFETY: as above.
        unsafe { shared.rows.flush() };
        busy
    }

    /// Takes the result of a task that a worker had.
    pub fn came_back(&mut self, done: &Done, lists: &mut Vec<Box<RowList>>, clock: Clock) {
        let id = done.id & 0xFFFF;
        if let Some(run) = self.runs[id as usize].as_mut() {
            run.came_back(done);
            lists.extend(run.take_rows());
            if !self.to_cut.contains(&id) {
                self.finish_if_drained(id, clock);
            }
        }
    }

    fn finish_if_drained(&mut self, id: u32, clock: Clock) {
        let drained = self.runs[id as usize].take_if(|run| run.is_drained());
        let Some(run) = drained else { return };
        let (transfer, now_ns) = (TransferId(id), clock.now_ns());
        match run.result() {
            Err(fault) => self.ledger.abandon(transfer, Some(fault), now_ns),
            Ok(_) if !run.was_cut_whole() => self.ledger.abandon(transfer, None, now_ns),
            Ok(bytes) => self.ledger.finish(transfer, bytes, now_ns),
        }
    }

    /// Shows finished spans to the client, and wakes it if it sleeps.
    pub fn publish(&mut self) -> Result<(), PushError> {
        while let Some(outcome) = self.ledger.next_outcome() {
            self.completions.push(&outcome)?;
            self.stats.served.count(&outcome.span);
            self.shown.count(&outcome.span);
        }
        self.show_completions();
        Ok(())
    }

    pub(super) fn show_completions(&mut self) {
        if self.completions.publish(&self.client_sleep) {
            self.wake_client();
        }
    }

    /// Never blocks: the socket's own mode is not relied on. A full socket has bytes enough to wake the client.
    fn wake_client(&self) {
        let _ = rustix::net::send(&self.wake, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// No batch is to be begun any more. Owners go on: the batches of others may need them.
    pub fn finish(&mut self) {
        if self.state == State::Serving && !self.is_owner {
            self.state = State::Finishing;
        }
    }

    /// True if it was told to finish and has.
    pub fn is_finished(&self) -> bool {
        self.state == State::Finishing && self.ledger.is_empty()
    }

    /// Most bytes that transfers may still write whose batch has its outcome.
    fn held_bytes(&self, remotes: &Remotes) -> u64 {
        if self.ledger.held() == 0 {
            return 0;
        }
        let held = |id: u32| self.ledger.is_held(TransferId(id));
        let runs = self.runs.iter().map(|run| run.as_ref().map(Run::outstanding_bytes));
        let staged = self.staged.iter().map(|run| run.as_ref().map(StagedRun::outstanding_bytes));
        let bytes = runs.zip(0..).chain(staged.zip(0..)).filter(|(_, id)| held(*id)).filter_map(|(bytes, _)| bytes);
        bytes.sum::<u64>().saturating_add(self.parts.held_bytes(&self.ledger, remotes))
    }

    /// Ends the session: nothing more is taken or shown, what is in flight drains.
    pub fn end(&mut self, reason: Status) {
        if self.state == State::Draining {
            return;
        }
        // What has been done is shown, if the client's position allows it.
        let _ = self.publish();
        self.stop(reason);
    }

    fn stop(&mut self, reason: Status) {
        self.state = State::Draining;
        self.shown.reason = Some(reason);
        self.shown.batches_cut = self.ledger.running().into();
        stats::add(&self.stats.served.batches_cut, self.shown.batches_cut);
        stats::add(&self.stats.served.sessions_cut, u64::from(self.shown.batches_cut > 0));
        for run in self.runs.iter_mut().flatten() {
            run.give_up();
        }
        self.notices.clear();
        // A client that ended its connection may still look at its ring.
        ring::stop(&self.stop, if reason.is_ok() { Status::STOPPING } else { reason });
        self.wake_client();
    }

    pub fn is_drained(&self) -> bool {
        let has_runs = self.runs.iter().any(Option::is_some) || !self.staged_order.is_empty();
        self.state == State::Draining && !has_runs && self.parts.are_over()
    }

    pub fn announce_sleep(&mut self) {
        self.sleeper.announce(&self.engine_sleep);
    }

    pub fn awake(&self) {
        self.sleeper.awake(&self.engine_sleep);
    }

    /// To be asked after a sleep was announced: is there anything that a turn would do?
    pub fn has_work(&mut self) -> bool {
        let takes = self.state == State::Serving || (self.state == State::Finishing && self.ledger.is_open());
        // Time alone lets a part go on.
        self.parts.have_work() || takes && !self.is_blocked && !matches!(self.sq.available(), Ok(0))
    }

    /// When the next turn must come at the latest, on the engine's clock.
    pub fn next_deadline_ns(&self) -> u64 {
        self.ledger.next_deadline_ns().min(self.parts.next_timer_ns())
    }

    pub fn cancel(&mut self, first: u64, now_ns: u64) -> Status {
        if self.ledger.cancel(first, now_ns) { Status::OK } else { Status::NOT_FOUND }
    }

    pub fn grant(&mut self, handle: Handle, granted: Granted) {
        self.regions.insert_as(handle, granted);
    }

    /// Takes a region away from new descriptors.
    pub fn withdraw(&mut self, handle: Handle, leave_mark: bool) -> Option<Memory> {
        let memory = self.regions.get_mut(handle)?.memory.take();
        if !leave_mark {
            self.regions.remove(handle);
        }
        memory
    }

    pub fn uses(&self, memory: &Memory) -> bool {
        let run_uses = |run: &Run| memory.mapped().is_some_and(|region| run.uses(region));
        let has_part = match memory {
            Memory::Mapped(region) => self.parts.uses(region),
            Memory::Remote(remote) => self.parts.use_remote(remote),
            Memory::Lent(_) => false,
        };
        has_part || self.runs.iter().flatten().any(run_uses) || self.staged.iter().flatten().any(|run| run.uses(memory))
    }
}

impl Shown {
    fn count(&mut self, span: &Span) {
        if !span.is_released() {
            self.descriptors += u64::from(span.count);
            self.bytes += span.bytes;
        }
    }
}

pub(super) fn task_id(slot: u32, transfer: u32) -> u32 {
    slot << 16 | transfer
}
