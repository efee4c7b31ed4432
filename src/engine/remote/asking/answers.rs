//! What comes by the link for the requester half.

use super::super::line::COMMANDS;
use super::super::seat::Violation;
use super::carried::{Answer, Revoking};
use super::parts::Fence;
use super::window::gone;
use super::{Asking, OwnerSlots};
use crate::link::{Failure, GrantId, Revoked};
use crate::pack::ListTask;
use crate::peer::Message;
use crate::pipeline::{BatchId, ChunkId, LINK_LOST, Reply, Requester, WorkFault};
use crate::plan::{Direction, Fault};
use ring_abi::{Field, Stage, Status};

impl Asking {
    /// DONE, REFUSED, FAILED, DRAINED or SLOTS.
    pub fn received(&mut self, lane: usize, message: Message<'_>, now_ns: u64) -> Result<(), Violation> {
        match message {
            Message::Done { id, queue_ns, pack_ns } => {
                let at = self.asked_by(lane, id)?;
                let asked_ns = self.chunks.get(at).map_or(0, |carried| carried.asked_ns);
                if let Some(part) = self.part_of(at) {
                    let times = &mut part.times;
                    if times.command_ns == 0 {
                        let at_owner_ns = u64::from(queue_ns) + u64::from(pack_ns);
                        times.command_ns = now_ns.saturating_sub(asked_ns).saturating_sub(at_owner_ns);
                    }
                    times.owner_queue_ns = times.owner_queue_ns.max(queue_ns.into());
                    times.pack_ns += u64::from(pack_ns);
                }
                self.answered(at, Answer::Done, now_ns);
            }
            Message::Refused { id } => {
                let at = self.asked_by(lane, id)?;
                if self.part_of(at).is_some_and(|part| part.direction == Direction::Write) {
                    return Err(Violation("an UNPACK was refused"));
                }
                self.answered(at, Answer::Refused, now_ns);
            }
            Message::Failed { id, fault } => {
                let at = self.asked_by(lane, id)?;
                self.answered(at, Answer::Failed(fault), now_ns);
            }
            Message::Drained { batch } => self.drained(lane, batch, now_ns)?,
            Message::Slots { grant, slots, slot_bytes } => self.take_slots(lane, grant, slots, slot_bytes)?,
            _ => return Err(Violation("a message for the other half")),
        }
        Ok(())
    }

    /// An operation of the link has ended.
    pub fn completed(&mut self, work: u64, result: Result<(), Failure>, now_ns: u64) {
        let Some(which) = self.posted.iter().position(|posted| posted.work.0 == work) else { return };
        let posted = self.posted[which];
        self.await_less(posted.lane);
        let is_stopped = self.part_of(posted.chunk).is_none_or(|part| part.is_stopped);
        let is_left = posted.rest.is_some_and(|rest| !rest.is_over());
        if result.is_ok() && is_left && !is_stopped {
            self.posted[which].is_out = false;
            return;
        }
        self.posted.swap_remove(which);
        let outcome = result.map_err(|failure| self.note(posted.chunk, fault_of(failure)));
        self.machine.completed(posted.work, outcome, now_ns);
    }

    /// A task has come back.
    pub fn ran(&mut self, mut task: Box<ListTask>, now_ns: u64) {
        let at = task.id as u32;
        let (result, ns) = (task.result(), task.ns());
        task.finish();
        self.tasks.push(task);
        let Some(carried) = self.chunks.get_mut(at) else { return };
        let Some(lease) = carried.lease.take() else { return };
        let (id, bytes) = (carried.id, carried.parcel.chunk.bytes);
        let outcome = match result {
            Ok(copied) if copied == bytes => Ok(()),
            Ok(copied) => Err(Fault::new(Status::INTERNAL, Stage::PACK, Field::NONE, copied.into())),
            // The lane did not come to it, because the link is down.
            Err(refusal) if refusal.status == Status::NOT_DONE => Err(LINK_LOST),
            Err(refusal) => Err(Fault::new(refusal.status, Stage::PACK, Field::NONE, refusal.detail)),
        };
        let Some(part) = self.part_of(at) else { return };
        part.times.pack_ns += u64::from(ns);
        match part.direction {
            Direction::Write => self.machine.packed(id, lease, outcome, now_ns),
            Direction::Read => self.machine.unpacked(id, lease, outcome, now_ns),
        }
    }

    /// A landing is not written to any more.
    pub fn revoked(&mut self, grant: GrantId, spoiled: bool, now_ns: u64) {
        let is_it = |revoking: &Revoking| revoking.grant == grant;
        let Some(at) = self.chunks.iter().find(|(_, c)| c.revoking.as_ref().is_some_and(is_it)).map(|(at, _)| at)
        else {
            return;
        };
        let Some(carried) = self.chunks.get_mut(at) else { return };
        let batch = carried.id.batch;
        if let Some(Revoking { answer: Some(answer), is_whole, .. }) = carried.revoking.take() {
            self.conclude(at, answer, is_whole && !spoiled, now_ns);
        }
        if let Some(part) = self.part_mut(batch)
            && let Fence::Revoking(left) = part.fence
        {
            part.fence = Fence::Revoking(left.saturating_sub(1));
            self.pass_fence(batch, now_ns);
        }
    }

    /// The chunk whose command the owner may answer by this lane, at this time.
    fn asked_by(&self, lane: usize, id: ChunkId) -> Result<u32, Violation> {
        let at = self.chunks.find(id).ok_or(Violation("an answer to nothing that was asked"))?;
        match self.chunks.get(at) {
            Some(carried) if carried.is_asked && carried.lane == lane => Ok(at),
            Some(carried) if carried.is_asked => Err(Violation("an answer by another lane")),
            _ => Err(Violation("an answer to nothing that was asked")),
        }
    }

    /// The owner has answered a command, and may not write to its landing any more.
    fn answered(&mut self, at: u32, answer: Answer, now_ns: u64) {
        let Some(carried) = self.chunks.get_mut(at) else { return };
        carried.is_asked = false;
        let (lane, landing) = (carried.lane, carried.landing.take());
        self.await_less(lane);
        let Some(grant) = landing else { return self.conclude(at, answer, true, now_ns) };
        let is_whole = self.grants.is_filled(grant);
        match self.grants.revoke(grant) {
            Ok(Revoked::Now { spoiled }) => self.conclude(at, answer, is_whole && !spoiled, now_ns),
            Ok(Revoked::Later) => {
                if let Some(carried) = self.chunks.get_mut(at) {
                    carried.revoking = Some(Revoking { grant, answer: Some(answer), is_whole });
                }
            }
            Err(_) => self.conclude(at, answer, false, now_ns),
        }
    }

    /// `is_whole`: all of the landing was written, or there is none.
    fn conclude(&mut self, at: u32, answer: Answer, is_whole: bool, now_ns: u64) {
        let Some(carried) = self.chunks.get_mut(at) else { return };
        let id = carried.id;
        let reply = match answer {
            Answer::Done if is_whole => Reply::Done(id),
            // Memory of either side went away while it was written.
            Answer::Done => Reply::Failed(id, gone(0)),
            Answer::Refused => Reply::Refused(id),
            Answer::Failed(fault) => Reply::Failed(id, fault),
        };
        self.machine.reply(reply, now_ns);
    }

    /// Counts when it has come by the last lane: then nothing of the batch is under way anywhere.
    fn drained(&mut self, lane: usize, batch: BatchId, now_ns: u64) -> Result<(), Violation> {
        let part = self.part_mut(batch).ok_or(Violation("DRAINED of no batch"))?;
        let Fence::Lanes(lanes) = part.fence else { return Err(Violation("DRAINED without CANCEL")) };
        if lanes & 1 << lane == 0 {
            return Err(Violation("DRAINED twice"));
        }
        let left = lanes & !(1 << lane);
        part.fence = Fence::Lanes(left);
        if left != 0 {
            return Ok(());
        }
        let later = self.revoke_landings(batch);
        if let Some(part) = self.part_mut(batch) {
            part.fence = Fence::Revoking(later);
        }
        self.pass_fence(batch, now_ns);
        Ok(())
    }

    /// Takes back what the owner might write to for a batch; gives how many of those a lane is at.
    fn revoke_landings(&mut self, batch: BatchId) -> u32 {
        let (mut later, grants, awaited) = (0, &self.grants, &mut self.awaited);
        for (_, carried) in self.chunks.iter_mut().filter(|(_, carried)| carried.id.batch == batch) {
            if std::mem::take(&mut carried.is_asked) {
                awaited[carried.lane] -= 1;
            }
            if let Some(grant) = carried.landing.take()
                && grants.revoke(grant) == Ok(Revoked::Later)
            {
                carried.revoking = Some(Revoking { grant, answer: None, is_whole: false });
            }
            later += u32::from(carried.revoking.is_some());
        }
        later
    }

    fn pass_fence(&mut self, batch: BatchId, now_ns: u64) {
        if let Some(part) = self.part_mut(batch).filter(|part| part.fence == Fence::Revoking(0)) {
            part.fence = Fence::None;
            self.machine.reply(Reply::Drained(batch), now_ns);
        }
    }

    /// The owner names its landing slots, which it does before anything else.
    fn take_slots(&mut self, lane: usize, grant: u64, slots: u32, slot_bytes: u32) -> Result<(), Violation> {
        if self.owner_slots.is_some() {
            return Err(Violation("SLOTS twice"));
        }
        if lane != 0 || slots == 0 || slot_bytes == 0 {
            return Err(Violation("SLOTS of nothing, or by another lane"));
        }
        self.owner_slots = Some(OwnerSlots { grant: GrantId(grant), slot_bytes });
        self.limits.owner_slots = slots.min(COMMANDS);
        // Nothing has begun before.
        self.machine = Requester::new(&self.limits);
        Ok(())
    }

    /// This side knows why a chunk fails.
    pub(super) fn note(&mut self, at: u32, fault: Fault) -> WorkFault {
        if let Some(carried) = self.chunks.get_mut(at) {
            carried.fault.get_or_insert(fault);
        }
        WorkFault { operation: 0, status: 0 }
    }

    pub(super) fn await_less(&mut self, lane: usize) {
        if let Some(count) = self.awaited.get_mut(lane) {
            *count = count.saturating_sub(1);
        }
    }
}

/// Why an operation has failed, for who asked for the batch.
fn fault_of(failure: Failure) -> Fault {
    match failure {
        Failure::Down => LINK_LOST,
        Failure::Lost | Failure::LostThere | Failure::Revoked => gone(0),
    }
}
