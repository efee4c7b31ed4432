//! One link: its requester, its two wires, and what is on the way.

use super::batch::Run;
use super::{Faults, SLOT_BYTES, once_in};
use crate::seeded::Random;
use scatter_ring::pipeline::{
    BatchId, ChunkId, Landing, Lease, LinkId, Origin, OwnerLimits, Reply, Request, Requester, RequesterAction,
    RequesterLimits, WorkFault, WorkId,
};
use std::collections::VecDeque;

pub struct End {
    pub link: LinkId,
    pub requester: Requester,
    pub limits: RequesterLimits,
    pub runs: Vec<Run>,
    /// Slots of the requester.
    pub slots: Vec<Vec<u8>>,
    /// Landing slots of the owner.
    pub landings: Vec<Vec<u8>>,
    /// From the requester to the owner, and back.
    pub forward: VecDeque<Item>,
    pub back: VecDeque<Item>,
    pub tasks: Vec<Task>,
    /// Posted by the requester and not completed.
    pub posted: Vec<Posted>,
    pub completions: Vec<(WorkId, Result<(), WorkFault>)>,
    pub owner_posted: Vec<(WorkId, ChunkId, Origin)>,
    pub owner_completions: Vec<(WorkId, Result<(), WorkFault>)>,
    /// Chunks at the owner: the requester's slot that one lands in, the owner's slot that one lands in.
    pub asked: Vec<(ChunkId, Option<u32>, Option<u32>)>,
    /// Batches whose cancel was sent and not answered.
    pub cancels: Vec<BatchId>,
    /// Chunks whose lists the owner has.
    pub kept: Vec<ChunkId>,
    /// Chunks that the owner has answered.
    pub answered: Vec<ChunkId>,
    /// Batches of which the owner has said that they are drained.
    pub drained: Vec<BatchId>,
    /// Delivered or lost, and to be delivered again or late.
    pub old_completions: Vec<(WorkId, Result<(), WorkFault>)>,
    pub old_replies: Vec<Reply>,
    pub stale_completions: u64,
    pub stale_replies: u64,
    pub refused: u64,
    /// The requester knows that the link is down.
    pub is_down: bool,
    pub is_breaking: bool,
    pub is_quiet: bool,
    pub is_closed: bool,
    pub breaks: u32,
}

/// Rung for by the requester.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    pub work: WorkId,
    pub id: ChunkId,
    pub operations: u32,
    /// The slot that is read.
    pub slot: Option<u32>,
    /// Its completion will not come.
    pub is_partial: bool,
}

/// On a wire.
#[derive(Clone, Copy, Debug)]
pub enum Item {
    /// Operations of a chunk; without a name if its completion will not come.
    Window {
        id: ChunkId,
        first: u32,
        count: u32,
        work: Option<WorkId>,
    },
    /// A bulk write with what goes behind it.
    Bulk {
        id: ChunkId,
        origin: Origin,
        landing: Landing,
        work: Option<WorkId>,
    },
    Request(Request),
    Reply(Reply),
}

/// A worker of the requester is at it.
#[derive(Clone, Copy, Debug)]
pub enum Task {
    Pack { id: ChunkId, lease: Lease },
    Unpack { id: ChunkId, lease: Lease },
}

impl End {
    pub fn new(link: LinkId, limits: &RequesterLimits, owner: &OwnerLimits) -> End {
        assert!(limits.owner_slots <= owner.link_slots && limits.commands <= owner.commands);
        End {
            link,
            requester: Requester::new(limits),
            limits: *limits,
            runs: Vec::new(),
            slots: vec![vec![0; SLOT_BYTES]; limits.slots as usize],
            landings: vec![vec![0; SLOT_BYTES]; limits.owner_slots as usize],
            forward: VecDeque::new(),
            back: VecDeque::new(),
            tasks: Vec::new(),
            posted: Vec::new(),
            completions: Vec::new(),
            owner_posted: Vec::new(),
            owner_completions: Vec::new(),
            asked: Vec::new(),
            cancels: Vec::new(),
            kept: Vec::new(),
            answered: Vec::new(),
            drained: Vec::new(),
            old_completions: Vec::new(),
            old_replies: Vec::new(),
            stale_completions: 0,
            stale_replies: 0,
            refused: 0,
            is_down: false,
            is_breaking: false,
            is_quiet: false,
            is_closed: false,
            breaks: 0,
        }
    }

    pub fn run(&mut self, batch: BatchId) -> &mut Run {
        self.runs.iter_mut().find(|run| run.id == batch).expect("a batch that was begun")
    }

    /// Carries out one action of the requester.
    pub fn act(&mut self, action: RequesterAction, faults: &Faults, random: &mut Random) {
        match action {
            RequesterAction::Post { id, first, count, work, .. } => {
                self.check_may_start(id);
                assert!(count >= 1 && count <= self.limits.window);
                self.post(
                    Posted { work, id, operations: count, slot: None, is_partial: false },
                    faults,
                    random,
                    |work, posted| match work {
                        None if posted == 0 => None,
                        _ => Some(Item::Window { id, first, count: posted, work }),
                    },
                );
            }
            RequesterAction::Pack { id, lease, .. } => {
                self.check_may_start(id);
                self.check_slot_is_free(lease.slot);
                self.tasks.push(Task::Pack { id, lease });
            }
            RequesterAction::PostBulk { id, origin, landing, work, .. } => {
                self.check_may_start(id);
                let slot = if let Origin::Slot(slot) = origin { Some(slot) } else { None };
                let operations =
                    if let Landing::Slot(landing) = landing { self.ask(id, None, Some(landing)) } else { 1 };
                self.post(Posted { work, id, operations, slot, is_partial: false }, faults, random, |work, posted| {
                    (posted > 0).then_some(Item::Bulk { id, origin, landing, work })
                });
            }
            RequesterAction::Unpack { id, lease, .. } => {
                self.check_may_start(id);
                assert!(!self.tasks.iter().any(|task| task.lease().slot == lease.slot));
                self.tasks.push(Task::Unpack { id, lease });
            }
            RequesterAction::Send(request) => {
                match request {
                    Request::Pack { id, landing, .. } => {
                        self.check_may_start(id);
                        let slot = if let Landing::Slot(slot) = landing { Some(slot) } else { None };
                        self.ask(id, slot, None);
                    }
                    Request::Cancel { batch } => {
                        assert!(self.run(batch).is_stopped() && !self.cancels.contains(&batch));
                        self.cancels.push(batch);
                    }
                    Request::Unpack { .. } => panic!("it goes behind a bulk write"),
                }
                self.forward.push_back(Item::Request(request));
            }
            RequesterAction::Break => {
                self.breaks += 1;
                assert!(self.breaks == 1 && !self.is_quiet);
                self.is_breaking = true;
                self.is_down = true;
            }
            RequesterAction::ChunkDone { id, .. } => self.end_chunk(id, true),
            RequesterAction::ChunkDropped { id, .. } => self.end_chunk(id, false),
            RequesterAction::Failed { batch, chunk, .. } => {
                let run = self.run(batch);
                assert!(!run.is_stopped() && run.finished.is_none(), "said once, and not of a cancelled one");
                assert!(chunk < run.added || run.added == 0);
                run.has_failed = true;
            }
            RequesterAction::Finished { batch, done } => self.finish(batch, done),
        }
    }

    fn post(
        &mut self,
        posted: Posted,
        faults: &Faults,
        random: &mut Random,
        item: impl Fn(Option<WorkId>, u32) -> Option<Item>,
    ) {
        if !once_in(random, faults.post) {
            self.posted.push(posted);
            self.forward.extend(item(Some(posted.work), posted.operations));
            return;
        }
        let operations = random.small(posted.operations);
        // They are outstanding until the link is quiet.
        self.posted.push(Posted { operations, is_partial: true, ..posted });
        self.forward.extend(item(None, operations));
        self.requester.post_failed(posted.work, operations);
        self.is_down = true;
    }

    fn ask(&mut self, id: ChunkId, slot: Option<u32>, landing: Option<u32>) -> u32 {
        if let Some(slot) = slot {
            self.check_slot_is_free(slot);
        }
        if let Some(landing) = landing {
            assert!(!self.asked.iter().any(|(_, _, known)| *known == Some(landing)), "the landing slot is in use");
        }
        self.asked.push((id, slot, landing));
        assert!(self.asked.len() <= self.limits.commands as usize);
        let of_batch = self.asked.iter().filter(|(known, ..)| known.batch == id.batch).count();
        assert!(of_batch <= self.run(id.batch).slots as usize, "more than P at the owner");
        2
    }

    fn end_chunk(&mut self, id: ChunkId, done: bool) {
        let is_of_it = |item: &Item| matches!(item, Item::Window { id: i, .. } | Item::Bulk { id: i, .. } if *i == id);
        assert!(!self.forward.iter().chain(&self.back).any(is_of_it), "{id:?} is on a wire");
        assert!(!self.asked.iter().any(|(known, ..)| *known == id), "{id:?} is at the owner");
        assert!(!self.tasks.iter().any(|task| task.id() == id), "a worker has {id:?}");
        let run = self.run(id.batch);
        assert!(run.finished.is_none());
        if done {
            run.assert_is_in_place(id);
        }
        let before = run.chunks[id.number as usize].done.replace(done);
        assert_eq!(before, None, "{id:?} ends again");
    }

    fn finish(&mut self, batch: BatchId, done: bool) {
        assert!(!self.asked.iter().any(|(known, ..)| known.batch == batch), "something of it is at the owner");
        let run = self.run(batch);
        assert_eq!(run.finished, None, "it finishes once");
        assert_eq!(done, !run.is_stopped());
        let added = &run.chunks[..run.added as usize];
        assert!(added.iter().all(|chunk| chunk.done.is_some() && (!done || chunk.done == Some(true))));
        assert!(!done || run.is_closed);
        run.finished = Some(done);
    }
}

impl Task {
    pub fn id(&self) -> ChunkId {
        match self {
            Task::Pack { id, .. } | Task::Unpack { id, .. } => *id,
        }
    }

    pub fn lease(&self) -> Lease {
        match self {
            Task::Pack { lease, .. } | Task::Unpack { lease, .. } => *lease,
        }
    }
}
