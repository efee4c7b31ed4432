//! A caller's host: its poller plans and drives the requester's machine.

mod act;
mod planning;

use super::account::Account;
use super::flow::Lists;
use super::job::Feed;
use super::owner::commands;
use super::poller::Poller;
use super::random::Random;
use super::task::Task;
use super::wire::{Nic, ns};
use super::world::{ACTIONS, HANDOVER_NS, Input, REAP_NS, World};
use super::{Outcome, Run};
use crate::cost::{Choice, window_operations, window_segments};
use crate::pipeline::{BatchId, Chunk, LinkId, Requester, RequesterLimits};
use crate::plan::{self, Fault, Rules};
use std::collections::VecDeque;
use std::rc::Rc;

/// A caller, its poller, its device and its end of a link.
pub struct Caller<'a> {
    pub poller: Poller<Input>,
    pub nic: Nic,
    pub machine: Requester,
    pub link: LinkId,
    /// What lands later on its link is not carried out.
    pub dead_ns: u64,
    /// Its link was broken, and its machine knows that.
    quiet: bool,
    /// Writes and messages that have not been carried, in order: of the caller, of the owner.
    pub posted: [VecDeque<usize>; 2],
    /// When the last one arrived, here and at the owner: completions, messages.
    pub arrived_ns: [[u64; 2]; 2],
    pub batches: Vec<Batch>,
    pub account: Account,
    rules: Rules,
    feed: Option<(usize, Feed<'a>)>,
    /// The lists of chunks under way, where bytes are really moved.
    lists: Vec<Lists>,
    /// Planned into.
    chunk: plan::Chunk,
}

/// One of a caller's batches.
#[derive(Debug, Default)]
pub struct Batch {
    /// Once it has begun.
    pub id: Option<BatchId>,
    pub outcome: Option<Outcome>,
    /// How often it was said to be finished.
    pub finished: u32,
    pub finished_ns: u64,
    pub fault: Option<(usize, Fault)>,
    /// Chunks done, by route.
    pub direct: bool,
    pub gathered: bool,
}

impl<'a> Caller<'a> {
    pub fn new(run: &'a Run<'a>, choice: Choice, link: LinkId, random: &mut Random) -> Caller<'a> {
        let batches = run.batches.max(1);
        let slots = choice.slots.max(1);
        let window = window_operations(&run.profile.link);
        let limits = RequesterLimits {
            batches: batches.min(BATCHES),
            chunks: slots.saturating_mul(4).saturating_add(CHUNKS),
            queue_depth: run.profile.link.queue_depth,
            window,
            slots: slots.saturating_mul(batches.min(BATCHES)),
            owner_slots: slots,
            commands: commands(run, choice),
            acknowledge_ns: ACKNOWLEDGE_NS,
        };
        let rules = Rules {
            direct_from_bytes: choice.direct_from_bytes,
            chunk_bytes: choice.chunk_bytes.max(1),
            first_chunk_bytes: choice.first_chunk_bytes().max(1),
            window_operations: window_segments(&run.job.work(), &run.told, choice),
            window_bytes: u32::MAX,
        };
        Caller {
            poller: Poller::new(&run.profile.effects, random),
            nic: Nic::new(&run.profile.link),
            machine: Requester::new(&limits),
            link,
            dead_ns: u64::MAX,
            quiet: false,
            posted: [VecDeque::new(), VecDeque::new()],
            arrived_ns: [[0; 2]; 2],
            batches: (0..batches).map(|_| Batch::default()).collect(),
            account: Account::new(run.job, batches),
            rules,
            feed: None,
            lists: Vec::new(),
            chunk: plan::Chunk::new(),
        }
    }

    /// The number of a batch that the machine knows by this name.
    pub fn batch_of(&self, id: BatchId) -> Option<usize> {
        self.batches.iter().position(|batch| batch.id == Some(id))
    }

    /// The batch to be planned next.
    fn next_batch(&self) -> Option<usize> {
        self.batches.iter().position(|batch| batch.id.is_none() && batch.outcome.is_none())
    }

    fn wants_to_plan(&self) -> bool {
        match &self.feed {
            Some(_) => self.machine.has_chunk_room(),
            None => self.next_batch().is_some() && self.machine.has_batch_room(),
        }
    }

    fn lists_of(&self, chunk: &Chunk) -> Lists {
        self.lists.get(chunk.lists as usize).cloned().flatten()
    }

    /// Keeps the lists of the chunk that was just planned, and says where.
    fn keep_lists(&mut self) -> u32 {
        let lists = Some(Rc::new(self.chunk.clone()));
        let at = self.lists.iter().position(Option::is_none).unwrap_or_else(|| {
            self.lists.push(None);
            self.lists.len() - 1
        });
        self.lists[at] = lists;
        at as u32
    }

    fn drop_lists(&mut self, lists: u32) {
        if let Some(kept) = self.lists.get_mut(lists as usize) {
            *kept = None;
        }
    }

    pub fn lists_left(&self) -> usize {
        self.lists.iter().flatten().count()
    }
}

impl<'a> World<'a> {
    pub fn caller_turn(&mut self, c: usize) {
        let poller = &mut self.callers[c].poller;
        poller.woken = false;
        let mut at_ns = poller.begins(self.now_ns, &self.run.profile.effects, &mut self.random);
        match poller.inbox.pop_front() {
            Some(input) => at_ns = self.caller_takes(c, input, at_ns),
            None if self.callers[c].wants_to_plan() => at_ns = self.plan(c, at_ns),
            None => {}
        }
        self.callers[c].machine.advance(at_ns);
        let mut actions = 0;
        while let Some(action) = self.callers[c].machine.next_action() {
            at_ns = self.caller_does(c, action, at_ns);
            actions += 1;
            if actions == ACTIONS {
                self.tally.cut_off = true;
                return;
            }
        }
        let caller = &mut self.callers[c];
        self.tally.caller_peak = self.tally.caller_peak.max(caller.machine.leased_peak());
        caller.poller.free_ns = at_ns;
        let timer_ns = caller.machine.next_timer_ns();
        let goes_on = !caller.poller.inbox.is_empty() || caller.wants_to_plan();
        self.set_timer(1 + c, timer_ns);
        if goes_on {
            self.wake(1 + c, at_ns);
        }
    }

    fn caller_takes(&mut self, c: usize, input: Input, at_ns: u64) -> u64 {
        let after_ns = at_ns + ns(self.run.profile.link.completion_ns);
        let caller = &mut self.callers[c];
        let machine = &mut caller.machine;
        match input {
            Input::Completed { work, result, .. } => {
                machine.completed(work, result, after_ns);
                if result.is_err() && self.run.faults.errors_break {
                    machine.down();
                }
                after_ns
            }
            Input::Reply(reply) => {
                machine.reply(reply, after_ns);
                after_ns
            }
            Input::PostFailed { work, posted, .. } => {
                machine.post_failed(work, posted);
                at_ns
            }
            Input::Task(Task::Copy(done), result) => {
                if done.packs {
                    machine.packed(done.id, done.lease, result, at_ns + HANDOVER_NS);
                } else {
                    machine.unpacked(done.id, done.lease, result, at_ns + HANDOVER_NS);
                }
                at_ns + HANDOVER_NS
            }
            Input::Down { .. } => {
                machine.down();
                at_ns
            }
            Input::Quiesced { .. } => {
                machine.quiesced();
                caller.quiet = true;
                at_ns
            }
            Input::Cancel { batch } => {
                self.cancel(c, batch, at_ns);
                at_ns
            }
            Input::Timer | Input::Request { .. } | Input::Task(..) => at_ns,
        }
    }

    fn cancel(&mut self, c: usize, batch: usize, at_ns: u64) {
        let caller = &mut self.callers[c];
        let state = &mut caller.batches[batch];
        if state.outcome.is_some() {
            return;
        }
        state.outcome = Some(Outcome::Cancelled);
        caller.account.cancel(batch, at_ns);
        if caller.feed.as_ref().is_some_and(|(planned, _)| *planned == batch) {
            caller.feed = None;
        }
        match state.id {
            Some(id) => caller.machine.cancel(id, at_ns),
            None => {
                state.finished_ns = at_ns + REAP_NS;
                caller.account.end(batch, false, None, at_ns);
            }
        }
    }
}

/// Batches of a caller under way at once.
pub const BATCHES: u32 = 2;
/// Chunks that may be planned ahead of those that have a slot. Long pieces may come behind many small ones, and are to
/// travel while those are packed.
const CHUNKS: u32 = 64;
/// How long a cancelled batch may take to end.
const ACKNOWLEDGE_NS: u64 = 5_000_000;
