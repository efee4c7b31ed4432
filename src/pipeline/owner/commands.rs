//! How the commands of all links come, get their slots, and end.

use super::super::batch::NONE;
use super::super::list::List;
use super::super::messages::{BatchId, Chunk, ChunkId, Landing, Reply, WorkId};
use super::link::{Command, Step};
use super::{LinkId, Owner, OwnerAction};

impl Owner {
    /// READ. False if the requester may not ask this.
    pub(super) fn take_pack(&mut self, at: usize, id: ChunkId, chunk: Chunk, landing: Landing, now_ns: u64) -> bool {
        // A bulk write goes to one place.
        if landing == Landing::Destination && chunk.dst_pieces > 1 {
            return false;
        }
        let Some(number) = self.take(at, Command { since_ns: now_ns, ..command(id, chunk, landing) }) else {
            return false;
        };
        let Some(link) = self.links.get_mut(at) else { return false };
        if chunk.src_pieces <= 1 {
            link.make_ready(number);
            return true;
        }
        link.waiting.push(&mut link.commands, number);
        self.waiting += 1;
        self.next_deadline_ns = self.next_deadline_ns.min(now_ns.saturating_add(self.limits.patience_ns));
        true
    }

    /// WRITE. False if the requester may not ask this.
    pub(super) fn take_unpack(&mut self, at: usize, id: ChunkId, chunk: Chunk, slot: u32) -> bool {
        let is_free = |landings: &[bool]| landings.get(slot as usize) == Some(&false);
        if !self.links.get(at).is_some_and(|link| is_free(&link.landings)) {
            return false;
        }
        let unpack = Command { is_write: true, ..command(id, chunk, Landing::Slot(slot)) };
        let Some(number) = self.take(at, unpack) else { return false };
        let Some(link) = self.links.get_mut(at) else { return false };
        if let Some(landing) = link.landings.get_mut(slot as usize) {
            *landing = true;
        }
        link.landed.push(&mut link.commands, number);
        true
    }

    /// Nothing more of the batch starts, and when nothing of it is under way its requester is told. False if it was told
    /// to before and still is at it.
    pub(super) fn cancel(&mut self, at: usize, batch: BatchId) -> bool {
        let Some(link) = self.links.get_mut(at) else { return false };
        if link.is_draining(batch) {
            return false;
        }
        for number in 0..link.commands.capacity() {
            if let Some(command) = link.commands.get_mut(number).filter(|c| c.id.batch == batch && c.is_live()) {
                command.is_cancelled = true;
            }
        }
        if !link.is_draining(batch) {
            return link.answer_cancel(batch);
        }
        self.end_waiting(at, |command| command.is_cancelled);
        true
    }

    fn take(&mut self, at: usize, command: Command) -> Option<u32> {
        let limit = self.limits.commands;
        let link = self.links.get_mut(at).filter(|link| link.counted < limit)?;
        let is_known = link.commands.iter().any(|(_, known)| known.id == command.id && known.chunk.is_some());
        if is_known || link.is_draining(command.id.batch) {
            return None;
        }
        let number = link.commands.insert(command).ok()?;
        link.counted += 1;
        Some(number)
    }

    /// Ends the commands that wait for something, of one link, that are to be ended.
    pub(super) fn end_waiting(&mut self, at: usize, is_to_end: fn(&Command) -> bool) {
        let Some(link) = self.links.get_mut(at) else { return };
        let mut lists =
            [&mut link.waiting, &mut link.ready, &mut link.landed].map(|l| std::mem::replace(l, List::EMPTY));
        for (which, list) in lists.iter_mut().enumerate() {
            while let Some(link) = self.links.get_mut(at)
                && let Some(number) = list.pop(&mut link.commands)
            {
                if link.commands.get(number).is_some_and(is_to_end) {
                    self.waiting -= u32::from(which == 0);
                    self.end(at, number, None);
                    continue;
                }
                let kept = [&mut link.waiting, &mut link.ready, &mut link.landed];
                kept[which].push(&mut link.commands, number);
            }
        }
        self.list(at);
    }

    /// Ends a command of which nothing is under way.
    pub(super) fn end(&mut self, at: usize, number: u32, reply: Option<Reply>) {
        let Some(link) = self.links.get_mut(at) else { return };
        if let Some(lease) = link.commands.get_mut(number).and_then(|command| command.lease.take()) {
            self.slots.give_back(lease);
        }
        link.end(number, reply);
        self.list(at);
    }

    /// The command of a posted bulk write, which is outstanding no more.
    pub(super) fn take_work(&mut self, link: LinkId, work: WorkId) -> Option<(usize, u32)> {
        let at = self.find(link);
        let taken = at.and_then(|at| Some((at, self.links.get_mut(at)?.works.take(work)?)));
        self.counters.stale_completions += u64::from(taken.is_none());
        taken
    }

    /// Refuses what has waited too long for a slot.
    pub(super) fn refuse_overdue(&mut self, at: usize, now_ns: u64) {
        while let Some(link) = self.links.get_mut(at)
            && let Some(number) = link.waiting.first()
            && let Some(command) = link.commands.get(number)
        {
            let (id, deadline_ns) = (command.id, command.since_ns.saturating_add(self.limits.patience_ns));
            if now_ns < deadline_ns {
                self.next_deadline_ns = self.next_deadline_ns.min(deadline_ns);
                return;
            }
            link.waiting.pop(&mut link.commands);
            self.waiting -= 1;
            self.counters.refused += 1;
            self.end(at, number, Some(Reply::Refused(id)));
        }
    }

    /// Leases a slot to the command that has waited longest of the link whose turn it is.
    pub(super) fn lease(&mut self) -> Option<OwnerAction> {
        if self.waiting == 0 {
            return None;
        }
        let count = self.links.len();
        let turns = (0..count).map(|k| (self.next_to_lease + k) % count);
        let at = turns.into_iter().find(|at| self.links.get(*at).is_some_and(|link| link.waiting.first().is_some()))?;
        let lease = self.slots.lease()?;
        self.next_to_lease = (at + 1) % count;
        self.waiting -= 1;
        let link = self.links.get_mut(at)?;
        let number = link.waiting.pop(&mut link.commands)?;
        if let Some(holder) = self.holders.get_mut(lease.slot as usize) {
            *holder = (at, number);
        }
        let command = link.commands.get_mut(number)?;
        command.lease = Some(lease);
        command.step = Step::Packs;
        Some(OwnerAction::Pack { link: link.id?, id: command.id, chunk: command.chunk?, lease })
    }

    /// The link may have something to say or to post.
    pub(super) fn list(&mut self, at: usize) {
        if let Some(link) = self.links.get_mut(at)
            && !std::mem::replace(&mut link.is_listed, true)
        {
            self.listed.push_back(at);
        }
    }
}

fn command(id: ChunkId, chunk: Chunk, landing: Landing) -> Command {
    Command {
        id,
        chunk: Some(chunk),
        step: Step::Waits,
        landing,
        is_write: false,
        lease: None,
        since_ns: 0,
        is_cancelled: false,
        is_counted: true,
        next: NONE,
    }
}
