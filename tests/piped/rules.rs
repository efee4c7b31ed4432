//! What must hold at any time.

use super::end::{End, Item};
use super::{OwnerTask, World};
use scatter_ring::pipeline::{ChunkId, Origin, Reply};

impl World {
    pub fn check(&self) {
        assert!(self.owner.leased() <= self.owner_limits.slots);
        for end in &self.ends {
            assert!(end.requester.leased() <= end.limits.slots);
            assert_eq!(end.requester.outstanding(), end.posted.iter().map(|posted| posted.operations).sum::<u32>());
            assert!(end.requester.outstanding() <= end.limits.queue_depth);
            assert!(self.owner.commands(end.link) <= self.owner_limits.commands);
            let counters = end.requester.counters();
            assert_eq!(counters.stale_replies, end.stale_replies, "replies that are not to be believed");
            assert_eq!(counters.stale_completions, end.stale_completions, "completions that are not to be believed");
            assert_eq!(counters.stale_tasks, 0);
            assert_eq!(counters.refused, end.refused);
            let slots = end.slots_in_use();
            for run in end.runs.iter().filter(|run| run.finished.is_none()) {
                let leased = slots.iter().filter(|(_, id)| id.batch == run.id).count();
                assert!(leased <= run.slots as usize, "more than P slots");
            }
        }
        let counters = self.owner.counters();
        assert_eq!((counters.violations, counters.stale_tasks), (0, 0));
        assert_eq!(counters.stale_completions, self.expected_stale);
    }

    /// Nothing is left of anything.
    pub fn check_is_over(&self) {
        assert_eq!(self.owner.leased(), 0);
        for end in &self.ends {
            assert_eq!((end.requester.leased(), end.requester.batches()), (0, 0));
            assert!(end.runs.iter().all(|run| run.finished.is_some()));
            assert!(end.kept.is_empty() && end.asked.is_empty() && end.tasks.is_empty());
            assert_eq!(self.owner.commands(end.link), 0);
            assert_eq!(end.is_quiet, end.is_closed);
            for run in &end.runs {
                assert!(!end.is_quiet || run.finished == Some(true) || run.is_stopped());
            }
        }
    }

    /// A packing slot of the owner that is leased holds nothing that anybody needs.
    pub fn check_pool_slot(&self, slot: u32) {
        let packs = |task: &OwnerTask| matches!(task, OwnerTask::Pack { lease, .. } if lease.slot == slot);
        assert!(!self.owner_tasks.iter().any(packs), "a worker packs into the slot");
        let reads = |end: &End| end.owner_posted.iter().any(|(_, _, origin)| *origin == Origin::Slot(slot));
        assert!(!self.ends.iter().any(reads), "the slot is being read");
    }
}

impl End {
    pub fn check_may_start(&mut self, id: ChunkId) {
        assert!(!self.is_down && !self.is_quiet, "nothing starts on a link that is broken");
        let run = self.run(id.batch);
        assert!(!run.is_stopped() && run.finished.is_none(), "nothing more of {id:?} starts");
        assert!(run.planned(id).done.is_none());
    }

    /// A slot of the requester that is leased holds nothing that anybody needs.
    pub fn check_slot_is_free(&self, slot: u32) {
        assert!(!self.slots_in_use().iter().any(|(used, _)| *used == slot), "slot {slot} is in use");
    }

    /// Slots that somebody reads or writes, and for what.
    fn slots_in_use(&self) -> Vec<(u32, ChunkId)> {
        let tasks = self.tasks.iter().map(|task| (task.lease().slot, task.id()));
        let posted = self.posted.iter().filter_map(|posted| Some((posted.slot?, posted.id)));
        let asked = self.asked.iter().filter_map(|(id, slot, _)| Some(((*slot)?, *id)));
        tasks.chain(posted).chain(asked).collect()
    }

    /// A chunk is answered once.
    pub fn answer(&mut self, id: ChunkId) {
        assert!(!self.answered.contains(&id), "{id:?} is answered again");
        self.answered.push(id);
    }

    /// Drained is the last that the owner says of a batch.
    pub fn check_reply_is_allowed(&mut self, reply: Reply) {
        let (Reply::Done(ChunkId { batch, .. })
        | Reply::Refused(ChunkId { batch, .. })
        | Reply::Failed(ChunkId { batch, .. }, _)
        | Reply::Drained(batch)) = reply;
        assert!(!self.drained.contains(&batch), "{reply:?} after Drained");
        match reply {
            Reply::Done(id) | Reply::Refused(id) => self.answer(id),
            // Or its bulk write has failed, with which the answer went.
            Reply::Failed(id, _) if !self.answered.contains(&id) => self.answer(id),
            _ => {}
        }
        if matches!(reply, Reply::Drained(_)) {
            assert!(!self.owner_posted.iter().any(|(_, id, _)| id.batch == batch), "a write of it is posted");
            let is_of_it = |item: &Item| matches!(item, Item::Bulk { id, .. } if id.batch == batch);
            assert!(!self.back.iter().any(is_of_it));
            self.drained.push(batch);
        }
    }
}
