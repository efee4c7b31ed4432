//! The owner's host.

use super::bulk::Bulk;
use super::flow::{Flow, Lists, Message};
use super::memory::Place;
use super::poller::Poller;
use super::random::Random;
use super::task::{Copying, Task};
use super::wire::{Nic, ns};
use super::world::{ACTIONS, HANDOVER_NS, Input, World};
use super::{Host, Run};
use crate::cost::Choice;
use crate::pipeline::{Chunk, ChunkId, Landing, Lease, LinkId, Origin, Owner, OwnerAction, OwnerLimits};
use crate::pipeline::{Reply, Request, WorkId};
use std::collections::BTreeMap;

/// The owner: one machine for all links, one poller, one device.
pub struct OwnerHost {
    pub poller: Poller<Input>,
    pub nic: Nic,
    pub machine: Owner,
    /// Of the chunks that the machine has, where bytes are really moved.
    pub lists: BTreeMap<(usize, ChunkId), Lists>,
}

impl OwnerHost {
    pub fn new(run: &Run, choice: Choice, random: &mut Random) -> OwnerHost {
        let slots = choice.slots.max(1);
        let limits = OwnerLimits {
            links: run.callers.max(1),
            slots: run.owner_slots.unwrap_or(slots.saturating_mul(run.callers.max(1))),
            link_slots: slots,
            commands: commands(run, choice),
            queue_depth: run.profile.link.queue_depth.max(2),
            patience_ns: PATIENCE_NS,
        };
        OwnerHost {
            poller: Poller::new(&run.profile.effects, random),
            nic: Nic::new(&run.profile.link),
            machine: Owner::new(&limits),
            lists: BTreeMap::new(),
        }
    }

    pub fn open(&mut self) -> Option<LinkId> {
        self.machine.open()
    }
}

/// Commands that a caller may have at the owner.
pub fn commands(run: &Run, choice: Choice) -> u32 {
    choice.slots.max(1).saturating_mul(run.batches.clamp(1, super::caller::BATCHES))
}

impl World<'_> {
    pub fn owner_turn(&mut self) {
        self.owner.poller.woken = false;
        let mut at_ns = self.owner.poller.begins(self.now_ns, &self.run.profile.effects, &mut self.random);
        if let Some(input) = self.owner.poller.inbox.pop_front() {
            at_ns = self.owner_takes(input, at_ns);
        }
        self.owner.machine.advance(at_ns);
        let mut actions = 0;
        while let Some(action) = self.owner.machine.next_action() {
            at_ns = self.owner_does(action, at_ns);
            actions += 1;
            if actions == ACTIONS {
                self.tally.cut_off = true;
                return;
            }
        }
        self.tally.owner_peak = self.owner.machine.leased_peak();
        self.owner.poller.free_ns = at_ns;
        self.set_timer(0, self.owner.machine.next_timer_ns());
        if !self.owner.poller.inbox.is_empty() {
            self.wake(0, at_ns);
        }
    }

    fn owner_takes(&mut self, input: Input, at_ns: u64) -> u64 {
        let after_ns = at_ns + ns(self.run.profile.link.completion_ns);
        match input {
            Input::Request { link, request, lists } => {
                let after_ns = if self.random.happens(self.run.faults.stalls) {
                    after_ns.saturating_add(self.run.faults.stall_ns)
                } else {
                    after_ns
                };
                let id = match request {
                    Request::Pack { id, .. } | Request::Unpack { id, .. } => Some(id),
                    Request::Cancel { .. } => None,
                };
                let taken = self.owner.machine.request(self.callers[link].link, request, after_ns);
                if let Some(id) = id.filter(|_| taken) {
                    self.tally.command_begins(link, id, after_ns);
                    if self.memory.is_some() {
                        self.owner.lists.insert((link, id), lists);
                    }
                }
                after_ns
            }
            Input::Completed { link, work, result } => {
                self.owner.machine.completed(self.callers[link].link, work, result);
                let fatal = result.is_err() && self.run.faults.errors_break;
                if fatal {
                    self.owner.machine.down(self.callers[link].link);
                }
                after_ns
            }
            Input::PostFailed { link, work, posted } => {
                self.owner.machine.post_failed(self.callers[link].link, work, posted);
                at_ns
            }
            Input::Task(Task::Copy(done), result) => {
                let link = self.callers[done.link].link;
                if done.packs {
                    self.owner.machine.packed(link, done.id, done.lease, result);
                } else {
                    self.owner.machine.unpacked(link, done.id, done.lease.slot, result);
                }
                at_ns + HANDOVER_NS
            }
            Input::Down { link } => {
                self.owner.machine.down(self.callers[link].link);
                at_ns
            }
            Input::Quiesced { link } => {
                self.owner.machine.quiesced(self.callers[link].link);
                at_ns
            }
            Input::Timer | Input::Reply(_) | Input::Task(..) | Input::Cancel { .. } => at_ns,
        }
    }

    fn link_number(&self, link: LinkId) -> Option<usize> {
        self.callers.iter().position(|caller| caller.link == link)
    }

    fn owner_does(&mut self, action: OwnerAction, at_ns: u64) -> u64 {
        let doorbell_ns = ns(self.run.profile.link.doorbell_ns);
        match action {
            OwnerAction::Pack { link, id, chunk, lease } => self.owner_copies(link, id, chunk, lease, true, at_ns),
            OwnerAction::Unpack { link, id, chunk, slot } => {
                self.owner_copies(link, id, chunk, Lease { slot, generation: 0 }, false, at_ns)
            }
            OwnerAction::PostBulk { link, id, chunk, origin, landing, work } => {
                let at_ns = at_ns + doorbell_ns + ns(self.run.profile.link.chunk_fixed_ns);
                if let Some(link) = self.link_number(link) {
                    self.owner_posts(link, id, chunk, (origin, landing), work, at_ns);
                }
                at_ns
            }
            OwnerAction::Send { link, reply } => {
                if let Some(link) = self.link_number(link) {
                    self.post(Flow::message(link, 0, Message::Reply(reply)), at_ns + doorbell_ns);
                }
                at_ns + doorbell_ns
            }
            OwnerAction::Drop { link, id, .. } => {
                if let Some(link) = self.link_number(link) {
                    self.owner.lists.remove(&(link, id));
                }
                at_ns
            }
            OwnerAction::Break { link } => {
                if let Some(link) = self.link_number(link) {
                    self.break_link(link, Host::Owner, at_ns);
                }
                at_ns
            }
            OwnerAction::Closed { link } => {
                let is_write = !self.is_read();
                if let (Some(link), Some(memory)) = (self.link_number(link), &mut self.memory)
                    && is_write
                {
                    memory.close(link);
                }
                at_ns
            }
        }
    }

    fn owner_copies(&mut self, link: LinkId, id: ChunkId, chunk: Chunk, lease: Lease, packs: bool, at_ns: u64) -> u64 {
        let at_ns = at_ns + HANDOVER_NS;
        if let Some(link) = self.link_number(link) {
            let lists = self.owner.lists.get(&(link, id)).cloned().flatten();
            let (asked_ns, started_ns) = (at_ns, at_ns);
            self.hand_over(Copying { packs, host: 0, link, id, chunk, lease, lists, asked_ns, started_ns });
        }
        at_ns
    }

    /// READ: the bulk write, and the reply behind it.
    fn owner_posts(
        &mut self,
        link: usize,
        id: ChunkId,
        chunk: Chunk,
        (origin, landing): (Origin, Landing),
        work: WorkId,
        at_ns: u64,
    ) {
        let from = match origin {
            Origin::Source => None,
            Origin::Slot(slot) => Some(Place::OwnerSlot(slot)),
        };
        let to = match landing {
            Landing::Destination => None,
            Landing::Slot(slot) => Some(Place::CallerSlot(slot)),
        };
        let lists = self.owner.lists.get(&(link, id)).cloned().flatten();
        let message = Message::Reply(Reply::Done(id));
        self.post_bulk(Bulk { link, host: 0, id, chunk, from, to, lists, message: Some(message), work }, at_ns);
    }
}

/// How long a command waits for a slot before it is refused: far longer than a chunk takes.
const PATIENCE_NS: u64 = 500_000;
