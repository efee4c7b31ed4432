//! One link of an owner: its commands, from their coming to their answer.

use super::super::LinkState;
use super::super::batch::NONE;
use super::super::list::{Linked, List};
use super::super::messages::{BatchId, Chunk, ChunkId, Landing, Origin, Reply, WorkId};
use super::super::slab::Slab;
use super::super::slots::Lease;
use super::super::works::Works;
use super::{LinkId, OwnerAction, OwnerCounters, OwnerLimits};

/// All that is known of a link. Its storage is used again by the next one.
#[derive(Debug)]
pub(super) struct Link {
    /// `None` if there is no such link.
    pub id: Option<LinkId>,
    pub state: LinkState,
    pub commands: Slab<Command>,
    /// Bulk writes posted, by their commands. Its room is what bounds them.
    pub works: Works<u32>,
    /// Commands that count against the limit.
    pub counted: u32,
    /// Landing slots that hold a chunk.
    pub landings: Box<[bool]>,
    /// Commands that wait for a lease, the oldest first.
    pub waiting: List,
    /// Commands whose bulk write waits for room in the queue.
    pub ready: List,
    /// Commands that it is to be said of that they are to be unpacked.
    pub landed: List,
    pub replies: List,
    /// Commands that are over.
    pub over: List,
    /// It is among the links that may have something to say.
    pub is_listed: bool,
}

#[derive(Debug)]
pub(super) struct Command {
    pub id: ChunkId,
    /// `None`: not a command but the answer to a cancel.
    pub chunk: Option<Chunk>,
    pub step: Step,
    /// READ: where the bulk write goes. WRITE: the slot of this side that holds the chunk.
    pub landing: Landing,
    pub is_write: bool,
    pub lease: Option<Lease>,
    pub since_ns: u64,
    /// It is not to be carried out any more, and is not answered by itself.
    pub is_cancelled: bool,
    pub is_counted: bool,
    pub next: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// For a lease, for the queue, or to be said: nothing of it is under way.
    Waits,
    Packs,
    Unpacks,
    Posted,
    /// To be answered.
    Answers(Reply),
    Over,
}

impl Linked for Command {
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}

impl Command {
    pub fn is_live(&self) -> bool {
        !matches!(self.step, Step::Answers(_) | Step::Over)
    }
}

impl Link {
    pub fn new(limits: &OwnerLimits) -> Link {
        let posted = limits.queue_depth / POSTED_TOGETHER;
        // Twice the commands: as many cancels may come together.
        let room = limits.commands.saturating_mul(2).saturating_add(posted);
        Link {
            id: None,
            state: LinkState::Up,
            commands: Slab::new(room),
            works: Works::new(posted),
            counted: 0,
            landings: vec![false; limits.link_slots as usize].into(),
            waiting: List::EMPTY,
            ready: List::EMPTY,
            landed: List::EMPTY,
            replies: List::EMPTY,
            over: List::EMPTY,
            is_listed: false,
        }
    }

    /// What is to be said or posted next.
    pub fn next_action(&mut self, counters: &mut OwnerCounters) -> Option<OwnerAction> {
        let link = self.id?;
        if self.state == LinkState::Failed {
            self.state = LinkState::Breaking;
            return Some(OwnerAction::Break { link });
        }
        while let Some(at) = self.replies.pop(&mut self.commands) {
            let Some(command) = self.commands.get_mut(at) else { continue };
            let step = std::mem::replace(&mut command.step, Step::Over);
            self.over.push(&mut self.commands, at);
            if let (Step::Answers(reply), LinkState::Up) = (step, self.state) {
                counters.messages += 1;
                return Some(OwnerAction::Send { link, reply });
            }
        }
        while let Some(at) = self.over.pop(&mut self.commands) {
            let Some(over) = self.commands.remove(at) else { continue };
            if let Some(chunk) = over.chunk {
                return Some(OwnerAction::Drop { link, id: over.id, chunk });
            }
        }
        match self.state {
            LinkState::Up => self.next_task().or_else(|| self.next_post(counters)),
            LinkState::Quiesced if self.commands.len() == 0 => {
                self.id = None;
                Some(OwnerAction::Closed { link })
            }
            _ => None,
        }
    }

    fn next_task(&mut self) -> Option<OwnerAction> {
        let at = self.landed.pop(&mut self.commands)?;
        let command = self.commands.get_mut(at)?;
        command.step = Step::Unpacks;
        let Landing::Slot(slot) = command.landing else { return None };
        Some(OwnerAction::Unpack { link: self.id?, id: command.id, chunk: command.chunk?, slot })
    }

    fn next_post(&mut self, counters: &mut OwnerCounters) -> Option<OwnerAction> {
        let at = self.ready.first()?;
        let work: WorkId = self.works.add(at)?;
        self.ready.pop(&mut self.commands);
        counters.doorbells += 1;
        let command = self.commands.get_mut(at)?;
        command.step = Step::Posted;
        // Its requester may see it done before its completion is seen here.
        self.counted -= u32::from(std::mem::take(&mut command.is_counted));
        let origin = command.lease.map_or(Origin::Source, |lease| Origin::Slot(lease.slot));
        let (id, chunk, landing) = (command.id, command.chunk?, command.landing);
        Some(OwnerAction::PostBulk { link: self.id?, id, chunk, origin, landing, work })
    }

    /// A command's bulk write waits for the queue.
    pub fn make_ready(&mut self, at: u32) {
        if let Some(command) = self.commands.get_mut(at) {
            command.step = Step::Waits;
            self.ready.push(&mut self.commands, at);
        }
    }

    /// A message for the requester that answers no command. False if there is no room.
    pub fn answer_cancel(&mut self, batch: BatchId) -> bool {
        let answer = Command {
            id: ChunkId { batch, number: 0 },
            chunk: None,
            step: Step::Answers(Reply::Drained(batch)),
            landing: Landing::Destination,
            is_write: false,
            lease: None,
            since_ns: 0,
            is_cancelled: false,
            is_counted: false,
            next: NONE,
        };
        let Ok(at) = self.commands.insert(answer) else { return false };
        self.replies.push(&mut self.commands, at);
        true
    }

    /// True if something of a cancelled batch is under way.
    pub fn is_draining(&self, batch: BatchId) -> bool {
        self.commands.iter().any(|(_, c)| c.id.batch == batch && c.is_cancelled && c.is_live())
    }

    /// Ends a command of which nothing is under way. The last one of a cancelled batch answers the cancel.
    pub fn end(&mut self, at: u32, reply: Option<Reply>) {
        let Some(command) = self.commands.get_mut(at) else { return };
        command.step = Step::Over;
        self.counted -= u32::from(std::mem::take(&mut command.is_counted));
        let (batch, is_cancelled) = (command.id.batch, command.is_cancelled);
        if let (true, Landing::Slot(slot)) = (command.is_write, command.landing)
            && let Some(landing) = self.landings.get_mut(slot as usize)
        {
            *landing = false;
        }
        let reply = match is_cancelled {
            true if self.is_draining(batch) => None,
            true => Some(Reply::Drained(batch)),
            false => reply,
        };
        match reply {
            Some(reply) if self.state == LinkState::Up => {
                if let Some(command) = self.commands.get_mut(at) {
                    command.step = Step::Answers(reply);
                }
                self.replies.push(&mut self.commands, at);
            }
            _ => self.over.push(&mut self.commands, at),
        }
    }
}

/// A bulk write and the message behind it.
const POSTED_TOGETHER: u32 = 2;
