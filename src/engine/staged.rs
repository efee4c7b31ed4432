//! Transfers with a side that the engine cannot map: chunk by chunk through the slots of its owner.
//!
//! A chunk takes a slot of the source's owner if that side is lent, and one of the destination's owner if that side is:
//! PACK by the one, a copy by the poller, UNPACK by the other. A transfer takes both slots or none, takes them before it
//! empties others, and begins few chunks a turn: so a slot that one session frees is offered to all others before that
//! one can have it again. A transfer that needs two slots of one owner claims them where others take them one by one.
//!
//! A chunk is kept in the slot of the owner that is last to touch it, the *keeper*.

use super::memory::Memory;
use super::session::{Clock, Session, Shared, State};
use super::staging::{Note, Staging};
use crate::pack::{Expansion, Pieces, Refusal, Side, TASK_BYTES, copy_segments, segments};
use crate::pipeline::TransferId;
use crate::plan::{Fault, Transfer};
use crate::region::Region;
use crate::region::copy::RowQueue;
use ring_abi::staged::SLOT_BYTES_MAX;
use ring_abi::{CommandOp, Field, Stage, Status};
use std::collections::HashMap;
use std::sync::Arc;

/// One transfer on its way.
#[derive(Debug)]
pub(super) struct StagedRun {
    expansion: Expansion,
    ends: Ends,
    /// Slots of the keeper with chunks that are not done, a bit each.
    in_flight: u64,
    /// Chunks so far.
    chunks: u32,
    bytes: u64,
    given_up: bool,
    /// It has claimed the slots that its owner has free next.
    claims: bool,
    fault: Option<Fault>,
}

/// What a transfer is between.
#[derive(Debug)]
struct Ends {
    src: Memory,
    dst: Memory,
    /// The session whose slots keep the chunks.
    keeper: u64,
}

/// What the poller has for all of them.
#[derive(Debug, Default)]
pub(super) struct Stagings {
    /// The slots of owner sessions.
    by_session: HashMap<u64, Box<Staging>>,
    pieces: Pieces,
}

/// What is left of a session's turn.
struct Budget {
    chunks: u32,
    bytes: u64,
}

/// Chunks begun in one turn of a session: few, so that the owner hears of the first before the next are looked up.
const CHUNKS_PER_TURN: u32 = 2;

/// The first chunk of a transfer is so long, the next twice as long, up to a slot: the copy on the other side of the slot
/// can begin early.
const FIRST_CHUNK_BYTES: u32 = 64 << 10;

impl Stagings {
    pub fn insert(&mut self, session: u64, staging: Box<Staging>) {
        self.by_session.insert(session, staging);
    }

    pub fn get_mut(&mut self, session: u64) -> Option<&mut Staging> {
        self.by_session.get_mut(&session).map(Box::as_mut)
    }

    /// Takes the slots of a session that ends. What chunks in them have of other owners goes back.
    pub fn remove(&mut self, session: u64) -> Option<Box<Staging>> {
        let mut staging = self.by_session.remove(&session)?;
        for (owner, slot) in staging.take_sources() {
            if let Some(source) = self.get_mut(owner) {
                source.let_go(slot);
            }
        }
        Some(staging)
    }

    /// True while an owner has a command about its region.
    pub fn is_named(&self, memory: &Memory) -> bool {
        let owner = memory.lent().and_then(|lent| Some((self.by_session.get(&lent.owner)?, lent.handle)));
        owner.is_some_and(|(staging, handle)| staging.is_named(handle))
    }
}

impl StagedRun {
    /// Between two regions that are not both mapped.
    pub fn new(transfer: Transfer, src: Memory, dst: Memory, index: Option<Arc<Region>>) -> StagedRun {
        let keeper = dst.lent().or(src.lent()).map_or(0, |lent| lent.owner);
        let ends = Ends { src, dst, keeper };
        let expansion = Expansion::new(transfer, index);
        StagedRun { expansion, ends, in_flight: 0, chunks: 0, bytes: 0, given_up: false, claims: false, fault: None }
    }

    /// True if this memory is read or written by it.
    pub fn uses(&self, memory: &Memory) -> bool {
        let is_index =
            memory.mapped().zip(self.expansion.index()).is_some_and(|(region, index)| Arc::ptr_eq(region, index));
        is_index || self.ends.src.is(memory) || self.ends.dst.is(memory)
    }

    /// Nothing more of it is to be started.
    fn give_up(&mut self) {
        self.given_up |= !self.is_drained();
    }

    /// True when all pieces are in chunks, or no more will be.
    fn is_cut(&self) -> bool {
        self.given_up || self.fault.is_some() || self.expansion.is_exhausted()
    }

    fn is_drained(&self) -> bool {
        self.is_cut() && self.in_flight == 0
    }

    /// Most bytes that may still be written.
    pub fn outstanding_bytes(&self) -> u64 {
        u64::from(self.in_flight.count_ones()) * u64::from(SLOT_BYTES_MAX)
    }

    /// Which of its mapped regions is lost, if one is: what was copied is then worth nothing.
    fn lost(&self) -> Option<Fault> {
        let sides = [self.ends.src.mapped(), self.ends.dst.mapped(), self.expansion.index()];
        let fields = [Field::SRC_REGION, Field::DST_REGION, Field::INDEX_REGION];
        let which = sides.iter().position(|region| region.is_some_and(|region| region.is_lost()))?;
        let handle = self.expansion.handles()[which];
        Some(Fault::new(Status::REGION_GONE, Stage::PACK, fields[which], handle.into()))
    }

    /// Bytes written, or the lowest fragment that could not be done. `Ok(None)`: it was given up.
    fn result(&self) -> Result<Option<u64>, Fault> {
        if let Some(fault) = self.lost() {
            return Err(fault);
        }
        let faults = [self.fault, self.expansion.fault()];
        match faults.into_iter().flatten().min_by_key(|fault| fault.fragment) {
            Some(fault) => Err(fault),
            None => Ok((!self.given_up).then_some(self.bytes)),
        }
    }

    fn fail(&mut self, fault: Fault) {
        if self.fault.is_none_or(|known| fault.fragment < known.fragment) {
            self.fault = Some(fault);
        }
    }

    /// Begins chunks while there are slots for them. True if anything was done.
    fn begin(&mut self, stagings: &mut Stagings, queue: &mut RowQueue, budget: &mut Budget) -> bool {
        let mut busy = false;
        while budget.chunks > 0 && budget.bytes > 0 && !self.is_cut() && self.ends.have_room(stagings, self.claims) {
            budget.chunks -= 1;
            busy = true;
            self.begin_chunk(stagings, queue, budget);
            self.unclaim(stagings);
        }
        if !busy && !self.is_cut() {
            self.claim(stagings);
        }
        busy
    }

    /// Two slots of one owner are hardly ever free at once where others take them one by one. Between two owners nothing
    /// is claimed: who waits for the one would keep the other's slots empty.
    fn claim(&mut self, stagings: &mut Stagings) {
        if let (Some(src), Some(dst)) = (self.ends.src.lent(), self.ends.dst.lent())
            && src.owner == dst.owner
            && !self.claims
        {
            self.claims = stagings.get_mut(src.owner).is_some_and(Staging::claim);
        }
    }

    /// True if it had a claim: others may have waited for the slots.
    fn unclaim(&mut self, stagings: &mut Stagings) -> bool {
        let claimed = std::mem::take(&mut self.claims);
        if claimed && let Some(staging) = stagings.get_mut(self.ends.keeper) {
            staging.unclaim();
        }
        claimed
    }

    /// Goes on with chunks whose owners have answered, and lets go of those that nobody waits for. True if anything was
    /// done. `ending`: its session ends, and nobody waits for what owners still do.
    fn settle(&mut self, stagings: &mut Stagings, queue: &mut RowQueue, budget: &mut Budget, ending: bool) -> bool {
        if stagings.get_mut(self.ends.keeper).is_none() {
            self.fail(self.ends.gone(&self.expansion, stagings));
            self.in_flight = 0;
            return true;
        }
        let mut busy = false;
        if self.ends.source_is_gone(stagings) && self.fault.is_none() {
            self.fail(self.ends.gone(&self.expansion, stagings));
            busy = true;
        }
        // What is copied from or to a lost region is worth nothing, and what is written costs this process memory.
        if self.fault.is_none()
            && let Some(fault) = self.lost()
        {
            self.fail(fault);
            busy = true;
        }
        if self.given_up || self.fault.is_some() {
            busy |= self.let_go(stagings, ending);
        }
        let mut left = self.in_flight;
        while left != 0 && budget.bytes > 0 {
            let slot = left.trailing_zeros();
            left &= left - 1;
            busy |= self.go_on(slot, stagings, queue, budget).is_some();
        }
        busy
    }

    /// Looks up the next pieces and takes the slots for them, which [there must be](Ends::have_room). `None`: there was
    /// nothing to be done for the fragments that were looked up.
    fn begin_chunk(&mut self, stagings: &mut Stagings, queue: &mut RowQueue, budget: &mut Budget) -> Option<()> {
        let limit = FIRST_CHUNK_BYTES.saturating_mul(1 << self.chunks.min(8)).min(self.ends.slot_bytes(stagings)?);
        let Stagings { by_session, pieces } = stagings;
        self.expansion.next_chunk(limit, pieces);
        let list = pieces.as_slice();
        if list.is_empty() {
            return None;
        }
        self.chunks = self.chunks.saturating_add(1);
        let mut source = None;
        if let Some(lent) = self.ends.src.lent() {
            let staging = by_session.get_mut(&lent.owner)?;
            let slot = staging.lease()?;
            staging.list(CommandOp::PACK, slot, lent.handle, list);
            staging.send(slot);
            source = Some((lent.owner, slot));
        }
        let mut keeper = source.map(|(_, slot)| slot);
        if let Some(lent) = self.ends.dst.lent() {
            let staging = by_session.get_mut(&lent.owner)?;
            let slot = staging.lease()?;
            staging.list(CommandOp::UNPACK, slot, lent.handle, list);
            keeper = Some(slot);
        }
        let (slot, staging) = (keeper?, by_session.get_mut(&self.ends.keeper)?);
        self.in_flight |= 1 << slot;
        let base = staging.slot(slot);
        let note = staging.note(slot);
        segments(list, self.ends.src.lent().is_none(), self.ends.dst.lent().is_none(), &mut note.segments);
        note.source = source.filter(|_| self.ends.dst.lent().is_some());
        note.bytes = pieces.bytes();
        note.fragment = pieces.fragment();
        if let Memory::Mapped(src) = &self.ends.src {
            budget.bytes = budget.bytes.saturating_sub(note.bytes.into());
            let (from, to) = (Side::Region(src.as_ptr().cast_const()), Side::Slot(base));
            // SAFETY: the pieces were checked against the source, which the run keeps mapped, and fit into the slot, which
            // the staging keeps mapped.
            unsafe { copy_segments(from, to, &note.segments, queue) };
            staging.send(slot);
        }
        Some(())
    }

    /// Goes on with a chunk if the owner that it waits for has answered; `None` if not.
    fn go_on(&mut self, slot: u32, stagings: &mut Stagings, queue: &mut RowQueue, budget: &mut Budget) -> Option<()> {
        let keeper = self.ends.keeper;
        let source = stagings.get_mut(keeper)?.note(slot).source;
        let (owner, its_slot) = source.unwrap_or((keeper, slot));
        let staging = stagings.get_mut(owner)?;
        let answer = staging.answer(its_slot)?;
        let packed = staging.slot(its_slot).cast_const();
        let staging = stagings.get_mut(keeper)?;
        let base = staging.slot(slot);
        let note = staging.note(slot);
        let (bytes, is_packing) = (u64::from(note.bytes), self.ends.is_packing(note));
        if let Err(refusal) = answer {
            let fault = self.ends.refused(&self.expansion, &refusal, is_packing, note.fragment);
            self.fail(fault);
            self.end_chunk(slot, stagings);
            return Some(());
        }
        if is_packing {
            let to = self.ends.dst.mapped().map_or(Side::Slot(base), |dst| Side::Region(dst.as_ptr()));
            budget.bytes = budget.bytes.saturating_sub(bytes);
            // SAFETY: the pieces were checked against the destination, if it is mapped, which the run keeps so; they lie
            // in the slot and fit into the other one, which their stagings keep mapped.
            unsafe { copy_segments(Side::Slot(packed), to, &note.segments, queue) };
        }
        if let Some((owner, slot_there)) = note.source.take() {
            staging.send(slot);
            stagings.get_mut(owner)?.let_go(slot_there);
            return Some(());
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.end_chunk(slot, stagings);
        Some(())
    }

    /// Lets go of chunks: of those that still come to be packed, and if `all` of those that are unpacked too, into memory
    /// that nobody waits for any more. True if there was any.
    fn let_go(&mut self, stagings: &mut Stagings, all: bool) -> bool {
        let before = self.in_flight;
        let mut left = before;
        while left != 0 {
            let slot = left.trailing_zeros();
            left &= left - 1;
            let Some(staging) = stagings.get_mut(self.ends.keeper) else { return false };
            if all || self.ends.is_packing(staging.note(slot)) {
                self.end_chunk(slot, stagings);
            }
        }
        self.in_flight != before
    }

    fn end_chunk(&mut self, slot: u32, stagings: &mut Stagings) {
        self.in_flight &= !(1 << slot);
        let Some(staging) = stagings.get_mut(self.ends.keeper) else { return };
        let source = staging.note(slot).source.take();
        staging.let_go(slot);
        if let Some((owner, slot)) = source
            && let Some(staging) = stagings.get_mut(owner)
        {
            staging.let_go(slot);
        }
    }
}

impl Ends {
    /// True while a chunk waits for the owner of the source.
    fn is_packing(&self, note: &Note) -> bool {
        self.dst.lent().is_none() || note.source.is_some()
    }

    /// True if the slots of one more chunk are free, and not claimed by another transfer.
    fn have_room(&self, stagings: &Stagings, claims: bool) -> bool {
        let lent = || self.src.lent().into_iter().chain(self.dst.lent());
        lent().all(|one| {
            // Both may be of one owner.
            let needed = lent().filter(|other| other.owner == one.owner).count();
            stagings
                .by_session
                .get(&one.owner)
                .is_some_and(|staging| staging.free_slots() >= needed && (claims || !staging.is_claimed()))
        })
    }

    /// Bytes of the smaller slot.
    fn slot_bytes(&self, stagings: &Stagings) -> Option<u32> {
        let lent = self.src.lent().into_iter().chain(self.dst.lent());
        lent.filter_map(|lent| Some(stagings.by_session.get(&lent.owner)?.slot_bytes())).min()
    }

    fn source_is_gone(&self, stagings: &Stagings) -> bool {
        self.src.lent().is_some_and(|lent| !stagings.by_session.contains_key(&lent.owner))
    }

    /// The fault of a transfer whose owner is gone: the source's if it is that one.
    fn gone(&self, expansion: &Expansion, stagings: &Stagings) -> Fault {
        let is_src = self.source_is_gone(stagings);
        let field = if is_src { Field::SRC_REGION } else { Field::DST_REGION };
        Fault::new(Status::REGION_GONE, Stage::PACK, field, expansion.handles()[usize::from(!is_src)].into())
    }

    /// The fault of a chunk that its owner refuses. What owners say is not passed on as it is: a status of theirs could
    /// mean something else to the one who asked.
    fn refused(&self, expansion: &Expansion, refusal: &Refusal, is_packing: bool, fragment: u32) -> Fault {
        let field = if is_packing { Field::SRC_REGION } else { Field::DST_REGION };
        let handle = expansion.handles()[usize::from(!is_packing)].into();
        let (status, detail) = match refusal.status {
            Status::UNKNOWN_REGION => (Status::REGION_GONE, handle),
            _ => (Status::FAULT, refusal.detail),
        };
        Fault { fragment, ..Fault::new(status, Stage::PACK, field, detail) }
    }
}

impl Session {
    pub(super) fn start_staged(&mut self, id: TransferId, run: StagedRun) {
        self.ledger.gathers(id);
        self.staged[id.0 as usize] = Some(run);
        self.staged_order.push_back(id.0);
    }

    /// Goes on with the transfers that go through slots, for a turn's worth of chunks and bytes.
    pub(super) fn run_staged(&mut self, shared: &mut Shared, clock: Clock) -> bool {
        let mut budget = Budget { chunks: CHUNKS_PER_TURN, bytes: TASK_BYTES };
        let ending = self.state == State::Draining;
        let mut busy = false;
        for id in &self.staged_order {
            let Some(run) = self.staged[*id as usize].as_mut() else { continue };
            if ending || !self.ledger.may_go_on(TransferId(*id)) {
                run.give_up();
            }
            busy |= run.begin(&mut shared.stagings, &mut shared.rows, &mut budget);
        }
        // After all of them: a slot that becomes free now is for the sessions that follow.
        for id in &self.staged_order {
            let id = *id;
            let Some(run) = self.staged[id as usize].as_mut() else { continue };
            busy |= run.settle(&mut shared.stagings, &mut shared.rows, &mut budget, ending);
            busy |= run.is_cut() && run.unclaim(&mut shared.stagings);
            if let Some(run) = self.staged[id as usize].take_if(|run| run.is_drained()) {
                busy = true;
                let (id, now_ns) = (TransferId(id), clock.now_ns());
                match run.result() {
                    Ok(Some(bytes)) => self.ledger.finish(id, bytes, now_ns),
                    Ok(None) => self.ledger.abandon(id, None, now_ns),
                    Err(fault) => self.ledger.abandon(id, Some(fault), now_ns),
                }
            }
        }
        let staged = &self.staged;
        self.staged_order.retain(|id| staged[*id as usize].is_some());
        busy
    }
}
