//! A session's transfers with a side at a peer: into parts, and from their outcome to the ledger's.

use super::part::{FRAGMENTS_PER_TURN, Flight, Part, Step};
use super::remote::{News, PartId, Remote, Remotes, Times};
use super::rows::Popped;
use super::session::{Clock, Session, Shared, State};
use crate::pipeline::{LINK_LOST, Ledger, Stages};
use crate::plan::{Direction, Transfer};
use crate::region::Region;
use crate::ring::BadPosition;
use ring_abi::{Entry, Flags, IndexKind, Opcode, Route};
use std::sync::Arc;

/// A transfer between memory of this engine and memory of a peer.
pub(super) struct RemoteTransfer {
    pub transfer: Transfer,
    pub remote: Arc<Remote>,
    pub local: Arc<Region>,
    pub direction: Direction,
    pub index: Option<Arc<Region>>,
    /// The route that its descriptor asks for; NONE: any.
    pub forced: Route,
}

/// The parts of one session.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// In the order of their beginning.
    #[expect(clippy::vec_box, reason = "parts come from the middle, and go round by pointer")]
    under_way: Vec<Box<Part>>,
    #[expect(clippy::vec_box, reason = "as above")]
    unused: Vec<Box<Part>>,
    begun: u64,
    /// Bytes that the open batch is said to have.
    pub hint_bytes: u64,
    /// What single ranges have named last. Good for the rest of a turn.
    rows: Option<Rows>,
    /// The next descriptor has to wait until a part has moved.
    waits: bool,
}

/// Single ranges between one pair of regions that go into one part.
#[derive(Debug)]
struct Rows {
    /// As in the descriptors: opcode alone, both handles.
    opcode: u32,
    handles: u64,
    bytes: [u64; 2],
    part: u64,
    /// As the planner gets them, but for offsets and length.
    single: Transfer,
}

/// Parts of a session under way.
const PARTS: usize = 32;
/// Parts of a batch that transfers may still be added to.
const OPEN_PARTS: usize = 4;
/// Flights that are left for what needs its own.
const FLIGHTS_KEPT: usize = 16;

impl Parts {
    /// True if the next descriptor has to wait.
    pub fn are_full(&self) -> bool {
        self.waits
            || self.under_way.len() + OPEN_PARTS > PARTS
            || self.under_way.iter().any(|part| part.is_open() && part.is_full())
    }

    pub fn are_over(&self) -> bool {
        self.under_way.is_empty()
    }

    /// True if a part waits for nothing but time.
    pub fn have_work(&self) -> bool {
        self.under_way.iter().any(|part| part.waits_for_time())
    }

    pub fn uses(&self, region: &Arc<Region>) -> bool {
        self.under_way.iter().any(|part| part.uses(region))
    }

    /// True while a part goes over the connection that the region is reached by.
    pub fn use_remote(&self, remote: &Remote) -> bool {
        self.under_way.iter().any(|part| part.seat == remote.seat)
    }

    /// The open batch has had its last descriptor, or a part has to end for another reason.
    pub fn complete(&mut self) {
        self.under_way.iter_mut().for_each(|part| part.complete());
        (self.rows, self.hint_bytes) = (None, 0);
    }

    /// A turn begins: regions may have been taken away since the last one.
    pub fn forget_rows(&mut self) {
        self.rows = None;
    }

    /// Bytes that may still be written for transfers whose batch has its outcome, and for those that go with them.
    pub fn held_bytes(&self, ledger: &Ledger, remotes: &Remotes) -> u64 {
        let is_held = |part: &Part| part.flights.iter().any(|flight| ledger.is_held(flight.transfer));
        self.under_way.iter().filter(|part| is_held(part)).map(|part| part.outstanding_bytes(remotes)).sum()
    }

    /// When a part ends because nothing is added to it, `u64::MAX` for never.
    pub fn next_timer_ns(&self) -> u64 {
        self.under_way.iter().map(|part| part.next_timer_ns()).min().unwrap_or(u64::MAX)
    }

    /// Since when the part waits for its connection that has waited for the longest.
    pub fn refused_since_ns(&self) -> Option<u64> {
        self.under_way.iter().filter_map(|part| part.refused_since_ns()).min()
    }

    /// The part that a transfer goes into: its place.
    fn place(&mut self, wanted: &RemoteTransfer, handle: u32, id: PartId) -> usize {
        let goes_there =
            |part: &Part| part.is_open() && part.seat == wanted.remote.seat && part.direction == wanted.direction;
        if let Some(at) = self.under_way.iter().position(|part| goes_there(part)) {
            if self.under_way[at].keep(handle, &wanted.local) {
                return at;
            }
            self.under_way[at].complete();
        }
        if self.under_way.iter().filter(|part| part.is_open()).count() >= OPEN_PARTS
            && let Some(oldest) = self.under_way.iter_mut().find(|part| part.is_open())
        {
            oldest.complete();
        }
        let mut part = self.unused.pop().unwrap_or_else(|| Box::new(Part::new()));
        self.begun += 1;
        part.start(PartId { part: self.begun, ..id }, wanted.remote.seat, wanted.direction, self.hint_bytes);
        // A new part has room for a region.
        part.keep(handle, &wanted.local);
        self.under_way.push(part);
        self.under_way.len() - 1
    }
}

impl Session {
    pub(super) fn start_remote(&mut self, wanted: RemoteTransfer, now_ns: u64) {
        let shape = &wanted.transfer.shape;
        let (here, there) = if wanted.direction == Direction::Read { (1, 0) } else { (0, 1) };
        let handles = u64::from(shape.regions[0]) | u64::from(shape.regions[1]) << 32;
        let is_single = shape.count == 1 && shape.inner_count == 1 && shape.kinds == [IndexKind::None; 2];
        let id = PartId { slot: self.slot, session: self.id, part: 0 };
        let at = self.parts.place(&wanted, shape.regions[here], id);
        let part = &mut self.parts.under_way[at];
        // Single ranges come by the hundred thousand: those of a run have their outcome together.
        let joins = is_single || !self.ledger.has_transfer_room(FLIGHTS_KEPT);
        if joins && part.flights.last().is_some_and(|last| self.ledger.follows(last.transfer)) {
            self.ledger.complete(0, false, now_ns);
        } else {
            part.flights.push(Flight { transfer: self.ledger.start(now_ns), bytes: 0 });
        }
        let mut transfer = wanted.transfer;
        transfer.shape.regions[there] = wanted.remote.number;
        if is_single && wanted.forced == Route::NONE {
            let opcode = if wanted.direction == Direction::Read { Opcode::READ } else { Opcode::WRITE };
            let mut bytes = [wanted.local.bytes(); 2];
            bytes[there] = wanted.remote.bytes;
            let part = part.id.part;
            self.parts.rows = Some(Rows { opcode: opcode.0.into(), handles, bytes, part, single: transfer });
        }
        self.parts.under_way[at].add(transfer, wanted.index, wanted.forced, now_ns);
    }

    /// Takes single ranges like the one before, up to the end of the batch or to the first slot that is something else: that
    /// slot is returned. `None`: the next slot goes the long way.
    pub(super) fn rows_for_peer(
        &mut self,
        most: u32,
        shared: &mut Shared,
        now_ns: u64,
    ) -> Result<Option<Popped>, BadPosition> {
        let Some(rows) = &mut self.parts.rows else { return Ok(None) };
        let found = self.parts.under_way.iter_mut().find(|part| part.id.part == rows.part);
        let Some(part) = found else { return Ok(None) };
        let Some(flight) = part.flights.last().filter(|last| self.ledger.follows(last.transfer)) else {
            return Ok(None);
        };
        let transfer = flight.transfer;
        // The one before has come the long way, and is before them.
        let mut budget = FRAGMENTS_PER_TURN;
        part.step(&mut shared.remotes, &mut shared.desks, now_ns, &mut budget);
        let Some(mut singles) = part.singles() else { return Ok(None) };
        let mut popped = Popped::default();
        while popped.count < most && !popped.last {
            if !singles.has_room(&mut shared.remotes) {
                self.parts.waits = true;
                break;
            }
            let Some(entry) = self.sq.pop()? else { break };
            if !rows.take(&entry) {
                popped.other = Some(entry);
                break;
            }
            singles.plan(&rows.single, &mut shared.remotes);
            popped.count += 1;
            popped.bytes += u64::from(rows.single.shape.len);
            popped.last_user_data = entry[7];
            popped.last = entry[0] & u64::from(Flags::LAST) << 16 != 0;
        }
        if popped.count > 0 {
            part.added(now_ns);
            let flight = part.flights.iter_mut().find(|flight| flight.transfer == transfer);
            flight.into_iter().for_each(|flight| flight.bytes = flight.bytes.saturating_add(popped.bytes));
            self.ledger.took(popped.count, popped.last_user_data, popped.last, now_ns);
            self.ledger.complete(0, false, now_ns);
        }
        if popped.last {
            self.parts.complete();
        } else if popped.other.is_some() {
            self.parts.rows = None;
        }
        Ok(Some(popped))
    }

    /// Goes on with all parts. True if anything was done.
    pub(super) fn run_parts(&mut self, shared: &mut Shared, clock: Clock, now_ns: u64) -> bool {
        let waits = std::mem::take(&mut self.parts.waits);
        if self.parts.under_way.is_empty() {
            return false;
        }
        if self.ledger.is_discarding() || !self.ledger.has_transfer_room(1) {
            // What is complete ends: then the outcome can be told, or there is room.
            self.parts.complete();
        }
        let ending = self.state == State::Draining;
        let (mut busy, mut budget) = (false, FRAGMENTS_PER_TURN);
        let mut at = 0;
        while let Some(part) = self.parts.under_way.get_mut(at) {
            match part.flights.iter().position(|flight| ending || !self.ledger.may_go_on(flight.transfer)) {
                Some(0) => part.give_up(&mut shared.remotes, now_ns),
                Some(number) => part.drop_from(number as u32),
                None => {}
            }
            // That there is no room for more is no fault of the client.
            if !waits {
                part.end_if_stalled(now_ns);
            }
            let began_ns = clock.now_ns();
            match part.step(&mut shared.remotes, &mut shared.desks, now_ns, &mut budget) {
                Step::Over => {
                    busy = true;
                    self.end_part(at, false, &Times::default(), shared, clock);
                    continue;
                }
                Step::Moved => {
                    busy = true;
                    part.plan_ns += clock.now_ns().saturating_sub(began_ns);
                }
                Step::Idle => {}
            }
            at += 1;
        }
        busy
    }

    /// What a connection says of a part.
    pub(super) fn part_news(&mut self, news: &News, shared: &mut Shared, clock: Clock) {
        let Some(at) = self.parts.under_way.iter().position(|known| known.id == news.about()) else { return };
        match news {
            News::Failed { transfer, fault, .. } => self.parts.under_way[at].note_fault(*transfer, *fault),
            News::Finished { done, times, .. } => self.end_part(at, *done, times, shared, clock),
            News::Notified { .. } => {}
        }
    }

    fn end_part(&mut self, at: usize, done: bool, times: &Times, shared: &mut Shared, clock: Clock) {
        let mut part = self.parts.under_way.remove(at);
        let now_ns = clock.now_ns();
        if done && !part.has_failed() {
            part.measured(&mut shared.remotes, now_ns);
        }
        for (number, flight) in part.flights.iter().enumerate() {
            if done && part.has_planned(number) {
                let Times { command_ns, pack_ns, window_ns, .. } = *times;
                // Without a chunk all rows were skipped, which is told as it is of memory of this engine.
                if times.direct_chunks + times.gathered_chunks > 0 {
                    self.ledger.travelled(flight.transfer, times.direct_chunks > 0, times.gathered_chunks > 0);
                }
                self.ledger.spent(flight.transfer, &Stages { plan_ns: part.plan_ns, command_ns, pack_ns, window_ns });
                self.ledger.finish(flight.transfer, flight.bytes, now_ns);
                continue;
            }
            // What nobody gave up has ended because of the connection.
            let is_lost = !part.has_failed() && number == 0 && self.ledger.may_go_on(flight.transfer);
            let fault = part.fault_of(number).or(is_lost.then_some(LINK_LOST));
            self.ledger.abandon(flight.transfer, fault, now_ns);
        }
        part.give_back(&mut shared.remotes, &mut shared.desks);
        self.parts.unused.push(part);
    }
}

impl Rows {
    /// True if the slot is such a range; it is then in `single`.
    #[inline]
    fn take(&mut self, entry: &Entry) -> bool {
        // Opcode, index kinds and flags in one; then count and index region, and index offset.
        let kind = entry[0] as u32 & !(u32::from(Flags::LAST) << 16);
        let len = (entry[0] >> 32) as u32;
        let fits = |side: usize| {
            let end = entry[2 + side].checked_add(len.into());
            end.is_some_and(|end| end <= self.bytes[side])
        };
        let is_row = kind == self.opcode && entry[1] == self.handles && entry[4] == 1 && entry[5] == 0;
        if !is_row || len == 0 || !fits(0) || !fits(1) {
            return false;
        }
        let shape = &mut self.single.shape;
        (shape.offsets[0], shape.offsets[1], shape.len) = (entry[2], entry[3], len);
        true
    }
}
