//! What a caller's machine wants is carried out.

use super::super::bulk::Bulk;
use super::super::flow::{Flow, Message, Way};
use super::super::memory::{Move, Place};
use super::super::task::Copying;
use super::super::wire::ns;
use super::super::world::{HANDOVER_NS, Input, REAP_NS, World};
use super::super::{Host, Outcome};
use crate::pipeline::{BatchId, Chunk, ChunkId, LINK_LOST, Landing, Lease, Origin, Request, RequesterAction, WorkId};
use crate::plan::{Direction, Fault};
use std::ops::Range;

impl World<'_> {
    pub(super) fn caller_does(&mut self, c: usize, action: RequesterAction, at_ns: u64) -> u64 {
        let doorbell_ns = ns(self.run.profile.link.doorbell_ns);
        match action {
            RequesterAction::Post { id, chunk, first, count, work } => {
                self.caller_posts(c, id, &chunk, first..first.saturating_add(count), work, at_ns + doorbell_ns);
                at_ns + doorbell_ns
            }
            RequesterAction::Pack { id, chunk, lease } => self.caller_copies(c, id, chunk, lease, true, at_ns),
            RequesterAction::Unpack { id, chunk, lease } => self.caller_copies(c, id, chunk, lease, false, at_ns),
            RequesterAction::PostBulk { id, chunk, origin, landing, work } => {
                let at_ns = at_ns + doorbell_ns + ns(self.run.profile.link.chunk_fixed_ns);
                let lists = self.callers[c].lists_of(&chunk);
                let from = match origin {
                    Origin::Source => None,
                    Origin::Slot(slot) => Some(Place::CallerSlot(slot)),
                };
                let (to, message) = match landing {
                    Landing::Destination => (None, None),
                    Landing::Slot(slot) => {
                        let message = Message::Request(Request::Unpack { id, chunk, slot }, lists.clone());
                        self.tally.command_sent(c, id, at_ns);
                        (Some(Place::LandingSlot(slot)), Some(message))
                    }
                };
                self.post_bulk(Bulk { link: c, host: 1 + c, id, chunk, from, to, lists, message, work }, at_ns);
                at_ns
            }
            RequesterAction::Send(request) => {
                let mut lists = None;
                if let Request::Pack { id, chunk, .. } = request {
                    lists = self.callers[c].lists_of(&chunk);
                    self.tally.command_sent(c, id, at_ns + doorbell_ns);
                }
                self.post(Flow::message(c, 1 + c, Message::Request(request, lists)), at_ns + doorbell_ns);
                at_ns + doorbell_ns
            }
            RequesterAction::Break => {
                self.break_link(c, Host::Requester, at_ns);
                at_ns
            }
            RequesterAction::ChunkDone { id, chunk } => {
                self.callers[c].drop_lists(chunk.lists);
                self.tally.chunk_done(&mut self.callers[c], id, &chunk);
                at_ns
            }
            RequesterAction::ChunkDropped { chunk, .. } => {
                self.callers[c].drop_lists(chunk.lists);
                at_ns
            }
            RequesterAction::Failed { batch, fault, .. } => {
                self.failed(c, batch, fault);
                at_ns
            }
            RequesterAction::Finished { batch, done } => {
                self.finished(c, batch, done, at_ns);
                at_ns
            }
        }
    }

    fn failed(&mut self, c: usize, id: BatchId, fault: Fault) {
        let caller = &mut self.callers[c];
        let Some(batch) = caller.batch_of(id) else { return };
        caller.batches[batch].outcome.get_or_insert(Outcome::Failed);
        caller.batches[batch].fault.get_or_insert((0, fault));
        if caller.feed.as_ref().is_some_and(|(planned, _)| *planned == batch) {
            caller.feed = None;
        }
    }

    fn finished(&mut self, c: usize, id: BatchId, done: bool, at_ns: u64) {
        let caller = &mut self.callers[c];
        let Some(batch) = caller.batch_of(id) else { return };
        let state = &mut caller.batches[batch];
        state.finished += 1;
        state.finished_ns = at_ns + REAP_NS;
        if done {
            state.outcome.get_or_insert(Outcome::Done);
            caller.account.end(batch, true, None, at_ns);
        } else {
            state.outcome.get_or_insert(Outcome::Failed);
            let fault = state.fault.unwrap_or((0, LINK_LOST));
            caller.account.end(batch, false, Some(fault), at_ns);
        }
        let unreachable = caller.quiet && self.run.job.direction == Direction::Write && !done;
        match &mut self.memory {
            Some(memory) if unreachable => memory.release_source(c, batch),
            Some(memory) => memory.release(c, batch, done),
            None => {}
        }
    }

    fn caller_copies(&mut self, c: usize, id: ChunkId, chunk: Chunk, lease: Lease, packs: bool, at_ns: u64) -> u64 {
        let at_ns = at_ns + HANDOVER_NS;
        let lists = self.callers[c].lists_of(&chunk);
        let (asked_ns, started_ns) = (at_ns, at_ns);
        self.hand_over(Copying { packs, host: 1 + c, link: c, id, chunk, lease, lists, asked_ns, started_ns });
        at_ns
    }

    /// The direct route: a window of operations with one doorbell.
    fn caller_posts(&mut self, c: usize, id: ChunkId, chunk: &Chunk, operations: Range<u32>, work: WorkId, at_ns: u64) {
        let count = operations.end - operations.start;
        let mut posted = count;
        if self.random.happens(self.run.faults.post_fails) {
            posted = self.random.up_to(u64::from(count.saturating_sub(1))) as u32;
            self.callers[c].poller.inbox.push_back(Input::PostFailed { link: c, work, posted });
        }
        let up_to = |n: u32| u64::from(chunk.bytes) * u64::from(n) / u64::from(chunk.operations.max(1));
        let mut moves = Vec::new();
        let mut bytes = up_to(operations.start + posted) - up_to(operations.start);
        if let Some(batch) = self.callers[c].batch_of(id.batch)
            && let Some(lists) = self.callers[c].lists_of(chunk)
        {
            let direction = self.run.job.direction;
            let max_sge = self.run.profile.link.max_sge;
            let range = operations.start as usize..(operations.start + posted) as usize;
            moves = Move::direct(&lists, batch, direction, max_sge, range);
            bytes = moves.iter().map(|moved| moved.len as u64).sum();
            // Zeros are not on the wire; the poller writes them.
            if let Some(memory) = &mut self.memory
                && operations.start == 0
                && direction == Direction::Read
            {
                memory.zero(c, batch, &lists);
            }
        }
        self.tally.posted(c, posted, at_ns);
        if posted == 0 {
            return;
        }
        let flow = Flow {
            link: c,
            host: 1 + c,
            is_read: self.is_read(),
            operations: posted,
            bytes,
            slower: 1.0,
            work: (posted == count).then_some(work),
            message: None,
            chunk: Some(id),
            fails: self.random.happens(self.run.faults.completions.error),
            moves,
            way: Way::default(),
        };
        self.post(flow, at_ns);
    }
}
