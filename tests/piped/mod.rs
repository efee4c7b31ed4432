//! Two hosts in small: real bytes, wires that keep their order, workers and devices that take any time. It drives the
//! machines of both sides, in random order, and holds them to their rules after every event.

// Each test file that shares this module uses another part of it.
#![allow(dead_code)]

mod batch;
mod end;
mod events;
mod rules;

use end::{End, Item};

use crate::seeded::Random;
use scatter_ring::pipeline::{ChunkId, Lease, LinkId, Owner, OwnerAction, OwnerLimits, RequesterLimits, WorkId};

/// One owner and its links.
pub struct World {
    pub owner: Owner,
    pub owner_limits: OwnerLimits,
    pub ends: Vec<End>,
    /// Packing slots of the owner.
    pub pool: Vec<Vec<u8>>,
    pub owner_tasks: Vec<OwnerTask>,
    pub now_ns: u64,
    pub faults: Faults,
    /// Operations, packs and unpacks so far, and the one that fails whatever `faults` says.
    pub elements: u64,
    pub fails_at: Option<u64>,
    /// Bad completions and reports that were told to the owner on purpose.
    pub expected_stale: u64,
}

/// A worker of the owner is at it.
#[derive(Clone, Copy, Debug)]
pub enum OwnerTask {
    Pack { link: LinkId, id: ChunkId, lease: Lease },
    Unpack { link: LinkId, id: ChunkId, slot: u32 },
}

/// What goes wrong: each once in so many times, 0 for never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Operations of windows and bulk writes.
    pub operation: u64,
    /// Packing and unpacking, at both sides.
    pub task: u64,
    /// A completion or a message is lost.
    pub lost: u64,
    /// A completion or a reply comes again.
    pub again: u64,
    /// Doorbells of which not all is posted.
    pub post: u64,
    /// Events: a batch is cancelled.
    pub cancel: u64,
    /// Events: a link fails.
    pub down: u64,
    /// Events: made-up completions and replies.
    pub made_up: u64,
}

impl World {
    pub fn new(links: u32, requester: &RequesterLimits, owner: &OwnerLimits, faults: Faults) -> World {
        let mut machine = Owner::new(owner);
        let ends = (0..links).map(|_| End::new(machine.open().expect("there is room"), requester, owner)).collect();
        World {
            owner: machine,
            owner_limits: *owner,
            ends,
            pool: vec![vec![0; SLOT_BYTES]; owner.slots as usize],
            owner_tasks: Vec::new(),
            now_ns: 0,
            faults,
            elements: 0,
            fails_at: None,
            expected_stale: 0,
        }
    }

    /// Carries out what the machines want, until they want nothing.
    pub fn settle(&mut self, random: &mut Random) {
        loop {
            let mut is_quiet = true;
            for at in 0..self.ends.len() {
                while let Some(action) = self.ends[at].requester.next_action() {
                    is_quiet = false;
                    self.ends[at].act(action, &self.faults, random);
                }
            }
            while let Some(action) = self.owner.next_action() {
                is_quiet = false;
                self.act_as_owner(action, random);
            }
            if is_quiet {
                break;
            }
        }
        self.check();
    }

    fn act_as_owner(&mut self, action: OwnerAction, random: &mut Random) {
        match action {
            OwnerAction::Pack { link, id, lease, chunk } => {
                assert!(chunk.src_pieces > 1, "it needs no packing");
                self.check_pool_slot(lease.slot);
                self.owner_tasks.push(OwnerTask::Pack { link, id, lease });
            }
            OwnerAction::Unpack { link, id, slot, .. } => self.owner_tasks.push(OwnerTask::Unpack { link, id, slot }),
            OwnerAction::PostBulk { link, id, origin, landing, work, .. } => {
                let end = self.end(link);
                assert!(!end.drained.contains(&id.batch), "a write after Drained");
                end.owner_posted.push((work, id, origin));
                end.answer(id);
                assert!(
                    end.owner_posted.len() * 2 <= self.owner_limits.queue_depth as usize,
                    "more than the queue holds"
                );
                let is_bad = once_in(random, self.faults.post);
                let end = self.end(link);
                if is_bad && !end.is_quiet {
                    let posted = random.small(2);
                    if posted == 1 {
                        end.back.push_back(Item::Bulk { id, origin, landing, work: None });
                    } else {
                        end.owner_posted.pop();
                    }
                    self.owner.post_failed(link, work, posted);
                } else {
                    end.back.push_back(Item::Bulk { id, origin, landing, work: Some(work) });
                }
            }
            OwnerAction::Send { link, reply } => {
                let end = self.end(link);
                end.check_reply_is_allowed(reply);
                end.back.push_back(Item::Reply(reply));
            }
            OwnerAction::Drop { link, id, .. } => {
                let end = self.end(link);
                let at = end.kept.iter().position(|kept| *kept == id).expect("dropped once, and taken before");
                end.kept.swap_remove(at);
            }
            OwnerAction::Break { link } => {
                let end = self.end(link);
                end.is_breaking = true;
                end.take_down();
            }
            OwnerAction::Closed { link } => {
                assert!(!self.owner_tasks.iter().any(|task| task.link() == link), "a worker is at it");
                let end = self.end(link);
                assert!(end.is_quiet && end.kept.is_empty() && !end.is_closed);
                end.is_closed = true;
            }
        }
    }

    /// True if the next operation or task fails; it does so once in so many times.
    pub fn is_bad(&mut self, times: u64, random: &mut Random) -> bool {
        self.elements += 1;
        once_in(random, times) || self.fails_at == Some(self.elements)
    }

    pub fn end(&mut self, link: LinkId) -> &mut End {
        self.ends.iter_mut().find(|end| end.link == link).expect("a link that was opened")
    }
}

impl OwnerTask {
    pub fn link(&self) -> LinkId {
        match self {
            OwnerTask::Pack { link, .. } | OwnerTask::Unpack { link, .. } => *link,
        }
    }
}

/// True once in so many times, never for 0.
pub fn once_in(random: &mut Random, times: u64) -> bool {
    times != 0 && random.once_in(times)
}

/// Most bytes of a chunk.
pub const SLOT_BYTES: usize = 32;

/// One that was never given.
pub const UNKNOWN_WORK: WorkId = WorkId(u64::MAX);
