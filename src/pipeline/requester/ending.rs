//! How chunks, batches and the link end.

use super::super::batch::NONE;
use super::super::messages::{BatchId, ChunkId, LINK_LOST};
use super::super::slots::Lease;
use super::Requester;
use super::state::{Batch, Cancel, ChunkState, LinkState, Step, Wait};
use crate::plan::{Direction, Fault};

impl Requester {
    /// The link failed: nothing new starts, and it is broken for good.
    pub fn down(&mut self) {
        if self.state == LinkState::Up {
            self.state = LinkState::Failed;
            self.is_settled = false;
        }
    }

    /// The link is broken, and nothing that was posted on it, here or by the owner, can be carried out any more. Every
    /// batch ends; what a worker still packs or unpacks keeps its slot, and its batch, until that is reported.
    pub fn quiesced(&mut self) {
        self.state = LinkState::Quiesced;
        self.is_settled = false;
        self.has_news = true;
        self.works.clear();
        self.outstanding = 0;
        for at in 0..self.batches.capacity() {
            let lowest = self.chunks.iter().filter(|(_, chunk)| chunk.batch == at).map(|(_, c)| c.id.number).min();
            let Some(batch) = self.batches.get_mut(at).filter(|batch| !batch.is_done()) else { continue };
            batch.cancel = Cancel::None;
            batch.works = 0;
            self.fail(at, lowest.unwrap_or(0), LINK_LOST, u64::MAX);
            if let Some(batch) = self.batches.get_mut(at) {
                batch.cancel = Cancel::None;
            }
        }
        for at in 0..self.chunks.capacity() {
            self.return_place(at);
            let Some(chunk) = self.chunks.get_mut(at) else { continue };
            chunk.works = 0;
            if chunk.step == Step::Moves {
                self.give_up(at);
            }
        }
    }

    /// The first failure of a batch stops it.
    fn fail(&mut self, at: u32, chunk: u32, fault: Fault, now_ns: u64) {
        let Some(batch) = self.batches.get_mut(at).filter(|batch| !batch.is_stopped) else { return };
        batch.unsaid = Some((chunk, fault));
        self.unsaid += 1;
        self.stop(at, now_ns);
    }

    /// Starts nothing more of a batch. What waits is given up; what is under way ends by itself.
    pub(super) fn stop(&mut self, at: u32, now_ns: u64) {
        let Some(batch) = self.batches.get_mut(at).filter(|batch| !batch.is_stopped) else { return };
        batch.is_stopped = true;
        for wait in Wait::ALL {
            while let Some(chunk) = self.take_first(at, wait, Step::Moves) {
                self.return_place(chunk);
                self.give_up(chunk);
            }
        }
        self.has_news = true;
        self.is_settled = false;
        let Some(batch) = self.batches.get_mut(at) else { return };
        if batch.places > 0 {
            batch.cancel = Cancel::ToSend;
        }
        if batch.is_draining() {
            batch.deadline_ns = now_ns.saturating_add(self.limits.acknowledge_ns);
            self.next_deadline_ns = self.next_deadline_ns.min(batch.deadline_ns);
        }
    }

    /// A chunk cannot be done, and its batch fails.
    pub(super) fn spoil(&mut self, at: u32, fault: Fault, now_ns: u64) {
        let Some(chunk) = self.chunks.get_mut(at) else { return };
        chunk.is_spoiled = true;
        let (batch, number) = (chunk.batch, chunk.id.number);
        self.fail(batch, number, fault, now_ns);
        self.settle(at);
    }

    /// A chunk will not be done, because its batch has stopped.
    pub(super) fn give_up(&mut self, at: u32) {
        if let Some(chunk) = self.chunks.get_mut(at) {
            chunk.is_spoiled = true;
            self.settle(at);
        }
    }

    /// Ends a chunk of which nothing is under way.
    pub(super) fn settle(&mut self, at: u32) {
        self.is_settled = false;
        let is_stopped = self.is_stopped(at);
        let Some(chunk) = self.chunks.get_mut(at) else { return };
        if chunk.step != Step::Moves || chunk.works > 0 || chunk.is_command {
            return;
        }
        let goes_direct = chunk.is_refused && !chunk.is_direct && !chunk.is_spoiled;
        if goes_direct && !is_stopped {
            return self.go_direct(at);
        }
        chunk.step = Step::Ended { done: !chunk.is_spoiled && !goes_direct };
        self.return_lease(at);
        self.ended.push(&mut self.chunks, at);
    }

    /// The owner has refused the chunk, and nothing of it is under way.
    fn go_direct(&mut self, at: u32) {
        self.return_lease(at);
        if let Some(chunk) = self.chunks.get_mut(at) {
            chunk.is_direct = true;
        }
        self.wait(at, Wait::Window);
    }

    /// The chunk that the owner answers, which is a command there no more.
    pub(super) fn answered(&mut self, id: ChunkId) -> Option<u32> {
        let was_sent = |chunk: &&ChunkState| chunk.id == id && chunk.step == Step::Moves;
        let find = |at: &&u32| self.chunks.get(**at).as_ref().is_some_and(was_sent);
        let at = self.commands.iter().find(find).copied()?;
        self.return_place(at);
        Some(at)
    }

    /// READ: the bytes are in their slot or in place. WRITE: they are in place.
    pub(super) fn landed(&mut self, at: u32) {
        let Some(chunk) = self.chunks.get(at) else { return };
        let is_read = self.batches.get(chunk.batch).is_some_and(|batch| batch.direction == Direction::Read);
        match is_read && chunk.lease.is_some() {
            true if self.is_stopped(at) => self.give_up(at),
            true => self.wait(at, Wait::Unpack),
            false => self.settle(at),
        }
    }

    pub(super) fn refused(&mut self, at: u32) {
        self.counters.refused += 1;
        if let Some(chunk) = self.chunks.get_mut(at) {
            chunk.is_refused = true;
            self.settle(at);
        }
    }

    /// The owner's answer to a cancel: nothing of the batch is under way there.
    pub(super) fn drained(&mut self, batch: BatchId) -> Option<()> {
        let at = self.find(batch)?;
        let batch = self.batches.get_mut(at).filter(|batch| batch.cancel == Cancel::Sent)?;
        batch.cancel = Cancel::None;
        self.has_news = true;
        self.is_settled = false;
        for chunk in 0..self.chunks.capacity() {
            if self.chunks.get(chunk).is_some_and(|c| c.batch == at && c.is_command) {
                self.return_place(chunk);
                self.give_up(chunk);
            }
        }
        Some(())
    }

    /// The chunk whose slot a worker has packed or unpacked, if it does that.
    pub(super) fn end_task(&mut self, id: ChunkId, lease: Lease, step: Step) -> Option<u32> {
        let is_it = |c: &&mut ChunkState| c.id == id && c.lease == Some(lease) && c.step == step;
        let holder = self.holders.get(lease.slot as usize).copied().unwrap_or(NONE);
        let Some(chunk) = self.chunks.get_mut(holder).filter(is_it) else {
            self.counters.stale_tasks += 1;
            return None;
        };
        chunk.step = Step::Moves;
        self.is_settled = false;
        Some(holder)
    }

    /// A packed chunk waits for the owner's slot or, if it lands where it belongs, for the queue.
    pub(super) fn wait_packed(&mut self, at: u32) {
        let lands_in_slot = self.chunks.get(at).is_some_and(ChunkState::lands_in_slot);
        self.wait(at, if lands_in_slot { Wait::Landing } else { Wait::Bulk });
    }

    pub(super) fn is_stopped(&self, at: u32) -> bool {
        let batch = self.chunks.get(at).and_then(|chunk| self.batches.get(chunk.batch));
        batch.is_none_or(|batch: &Batch| batch.is_stopped)
    }

    pub(super) fn return_lease(&mut self, at: u32) {
        let Some(chunk) = self.chunks.get_mut(at) else { return };
        let Some(lease) = chunk.lease.take() else { return };
        if let Some(batch) = self.batches.get_mut(chunk.batch) {
            batch.leased -= 1;
        }
        self.slots.give_back(lease);
    }

    /// Takes back what a chunk has at the owner: a landing slot, a command, or both.
    fn return_place(&mut self, at: u32) {
        let Some(chunk) = self.chunks.get_mut(at) else { return };
        if !chunk.is_command && chunk.landing.is_none() {
            return;
        }
        if let Some(landing) = chunk.landing.take() {
            self.landings.push(landing);
        }
        if std::mem::take(&mut chunk.is_command)
            && let Some(index) = self.commands.iter().position(|command| *command == at)
        {
            self.commands.swap_remove(index);
        }
        if let Some(batch) = self.batches.get_mut(chunk.batch) {
            batch.places -= 1;
            self.has_news |= batch.is_stopped;
        }
    }
}
