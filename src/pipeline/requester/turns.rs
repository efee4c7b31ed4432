//! What is done next, and whose turn it is.
//!
//! A gathered chunk gets what it needs one after the other, always in this order: a slot, a landing slot, a command, room
//! in the queue. Whoever holds one of them gives it back without needing another, so that nobody waits for ever. Each is
//! handed out to the batches in turn, and a batch that has the turn for the queue but needs more room than there is keeps
//! it: a window does not starve behind smaller posts.

use super::super::messages::{Landing, Origin, Request, WorkId};
use super::state::{Batch, Cancel, LinkState, Step, Wait, Work};
use super::{Requester, RequesterAction};
use crate::plan::Direction;

/// What came of a batch's turn.
enum Turn {
    Act(RequesterAction),
    /// A chunk waits for the next thing.
    Moved,
    /// There is none left of what it needs.
    Blocked,
    /// It needs nothing, or has all that it may have.
    Nothing,
}

/// The next batch of each round.
#[derive(Debug, Default)]
pub(super) struct Turns {
    slot: u32,
    landing: u32,
    command: u32,
    queue: u32,
    unpack: u32,
}

impl Requester {
    /// What is to be done next; nothing until another event comes.
    pub fn next_action(&mut self) -> Option<RequesterAction> {
        if self.is_settled {
            return None;
        }
        let action = self.say().or_else(|| self.start());
        self.is_settled = action.is_none();
        action
    }

    /// What has happened.
    fn say(&mut self) -> Option<RequesterAction> {
        if self.state == LinkState::Failed {
            self.state = LinkState::Breaking;
            return Some(RequesterAction::Break);
        }
        if let Some(failed) = self.say_failure() {
            return Some(failed);
        }
        if let Some(at) = self.ended.pop(&mut self.chunks) {
            let ended = self.chunks.remove(at)?;
            if let Some(batch) = self.batches.get_mut(ended.batch) {
                batch.chunks -= 1;
                self.has_news |= batch.chunks == 0;
            }
            let (id, chunk) = (ended.id, ended.chunk);
            let is_done = ended.step == Step::Ended { done: true };
            return Some(match is_done {
                true => RequesterAction::ChunkDone { id, chunk },
                false => RequesterAction::ChunkDropped { id, chunk },
            });
        }
        if self.has_news {
            let news = (0..self.batches.capacity()).find_map(|at| self.say_of_batch(at));
            self.has_news = news.is_some();
            return news;
        }
        None
    }

    fn say_failure(&mut self) -> Option<RequesterAction> {
        if self.unsaid == 0 {
            return None;
        }
        self.unsaid -= 1;
        (0..self.batches.capacity()).find_map(|at| {
            let batch = self.batches.get_mut(at)?;
            let (chunk, fault) = batch.unsaid.take()?;
            Some(RequesterAction::Failed { batch: batch.id, chunk, fault })
        })
    }

    fn say_of_batch(&mut self, at: u32) -> Option<RequesterAction> {
        let batch = self.batches.get_mut(at)?;
        if batch.cancel == Cancel::ToSend && self.state == LinkState::Up {
            // Its chunks may have been answered since it was stopped.
            batch.cancel = if batch.places > 0 { Cancel::Sent } else { Cancel::None };
            if batch.cancel == Cancel::Sent {
                self.counters.messages += 1;
                return Some(RequesterAction::Send(Request::Cancel { batch: batch.id }));
            }
        }
        if !batch.is_over() {
            return None;
        }
        let finished = RequesterAction::Finished { batch: batch.id, done: !batch.is_stopped };
        self.batches.remove(at);
        while self.batches_end > 0 && self.batches.get(self.batches_end - 1).is_none() {
            self.batches_end -= 1;
        }
        Some(finished)
    }

    /// What can be started.
    fn start(&mut self) -> Option<RequesterAction> {
        if self.state != LinkState::Up {
            return None;
        }
        self.round(|turns| &mut turns.unpack, &[Wait::Unpack], Self::unpack)
            .or_else(|| self.round(|turns| &mut turns.slot, &[Wait::Slot], Self::lease))
            .or_else(|| self.round(|turns| &mut turns.landing, &[Wait::Landing], Self::reserve_landing))
            .or_else(|| self.round(|turns| &mut turns.command, &[Wait::Command], Self::command))
            .or_else(|| self.round(|turns| &mut turns.queue, &[Wait::Bulk, Wait::Window], Self::post))
    }

    /// Gives the batches their turn, from the one that is next, until one acts or has to wait.
    fn round(
        &mut self,
        next: fn(&mut Turns) -> &mut u32,
        waits: &[Wait],
        turn: fn(&mut Self, u32) -> Turn,
    ) -> Option<RequesterAction> {
        let count = self.batches_end;
        let mut idle = 0;
        while idle < count && waits.iter().any(|wait| self.waiting[*wait as usize] > 0) {
            let at = Some(*next(&mut self.turns)).filter(|at| *at < count).unwrap_or(0);
            let (after, action) = match turn(self, at) {
                Turn::Blocked => {
                    *next(&mut self.turns) = at;
                    return None;
                }
                Turn::Act(action) => (0, Some(action)),
                Turn::Moved => (0, None),
                Turn::Nothing => (idle + 1, None),
            };
            *next(&mut self.turns) = at + 1;
            if action.is_some() {
                return action;
            }
            idle = after;
        }
        None
    }

    fn unpack(&mut self, at: u32) -> Turn {
        let Some(first) = self.first(at, Wait::Unpack) else { return Turn::Nothing };
        self.take_first(at, Wait::Unpack, Step::Unpacks);
        match self.chunks.get(first).and_then(|c| Some((c.id, c.chunk, c.lease?))) {
            Some((id, chunk, lease)) => Turn::Act(RequesterAction::Unpack { id, chunk, lease }),
            None => Turn::Nothing,
        }
    }

    fn lease(&mut self, at: u32) -> Turn {
        let Some(first) = self.first(at, Wait::Slot) else { return Turn::Nothing };
        let Some(batch) = self.batches.get_mut(at).filter(|b| b.leased < b.slots) else { return Turn::Nothing };
        let Some(lease) = self.slots.lease() else { return Turn::Blocked };
        batch.leased += 1;
        let direction = batch.direction;
        self.holders[lease.slot as usize] = first;
        let Some(chunk) = self.chunks.get_mut(first) else { return Turn::Nothing };
        chunk.lease = Some(lease);
        let (id, planned) = (chunk.id, chunk.chunk);
        self.take_first(at, Wait::Slot, Step::Packs);
        match direction {
            Direction::Read => self.wait(first, Wait::Command),
            Direction::Write => return Turn::Act(RequesterAction::Pack { id, chunk: planned, lease }),
        }
        Turn::Moved
    }

    fn reserve_landing(&mut self, at: u32) -> Turn {
        let Some(first) = self.first(at, Wait::Landing) else { return Turn::Nothing };
        let Some(batch) = self.batches.get_mut(at).filter(|b| b.places < b.slots) else { return Turn::Nothing };
        let Some(landing) = self.landings.pop() else { return Turn::Blocked };
        batch.places += 1;
        if let Some(chunk) = self.chunks.get_mut(first) {
            chunk.landing = Some(landing);
        }
        self.take_first(at, Wait::Landing, Step::Moves);
        self.wait(first, Wait::Command);
        Turn::Moved
    }

    fn command(&mut self, at: u32) -> Turn {
        let Some(first) = self.first(at, Wait::Command) else { return Turn::Nothing };
        let Some(batch) = self.batches.get_mut(at) else { return Turn::Nothing };
        // A WRITE has its place by the landing slot.
        let is_read = batch.direction == Direction::Read;
        if is_read && batch.places >= batch.slots {
            return Turn::Nothing;
        }
        if self.commands.len() >= self.limits.commands as usize {
            return Turn::Blocked;
        }
        batch.places += u32::from(is_read);
        self.commands.push(first);
        let Some(chunk) = self.chunks.get_mut(first) else { return Turn::Nothing };
        chunk.is_command = true;
        let landing = chunk.lease.map_or(Landing::Destination, |lease| Landing::Slot(lease.slot));
        let request = Request::Pack { id: chunk.id, chunk: chunk.chunk, landing };
        self.take_first(at, Wait::Command, Step::Moves);
        if is_read {
            self.counters.messages += 1;
            return Turn::Act(RequesterAction::Send(request));
        }
        self.wait(first, Wait::Bulk);
        Turn::Moved
    }

    /// A bulk write goes before windows: what it holds is wanted by others.
    fn post(&mut self, at: u32) -> Turn {
        if let Some(first) = self.first(at, Wait::Bulk) {
            return self.post_bulk(at, first);
        }
        match self.first(at, Wait::Window) {
            Some(first) => self.post_window(at, first),
            None => Turn::Nothing,
        }
    }

    fn post_bulk(&mut self, at: u32, first: u32) -> Turn {
        let Some(state) = self.chunks.get(first) else { return Turn::Nothing };
        let (id, chunk) = (state.id, state.chunk);
        let origin = state.lease.map_or(Origin::Source, |lease| Origin::Slot(lease.slot));
        let landing = state.landing.map_or(Landing::Destination, Landing::Slot);
        let operations = if landing == Landing::Destination { 1 } else { 2 };
        let Some(work) = self.ring_doorbell(Work { chunk: first, operations, first: 0 }) else { return Turn::Blocked };
        self.take_first(at, Wait::Bulk, Step::Moves);
        Turn::Act(RequesterAction::PostBulk { id, chunk, origin, landing, work })
    }

    fn post_window(&mut self, at: u32, first: u32) -> Turn {
        let Some(state) = self.chunks.get(first) else { return Turn::Nothing };
        let (id, chunk, posted) = (state.id, state.chunk, state.posted);
        let count = state.unposted().min(self.limits.window);
        let is_last = count == state.unposted();
        let work = Work { chunk: first, operations: count, first: posted };
        let Some(work) = self.ring_doorbell(work) else { return Turn::Blocked };
        if let Some(state) = self.chunks.get_mut(first) {
            state.posted = posted.saturating_add(count);
        }
        if is_last {
            self.take_first(at, Wait::Window, Step::Moves);
        }
        Turn::Act(RequesterAction::Post { id, chunk, first: posted, count, work })
    }

    fn first(&self, at: u32, wait: Wait) -> Option<u32> {
        self.batches.get(at).and_then(|batch: &Batch| batch.waits[wait as usize].first())
    }

    /// Puts a chunk that is in no list into one of its batch.
    pub(super) fn wait(&mut self, at: u32, wait: Wait) {
        let Some(chunk) = self.chunks.get_mut(at) else { return };
        chunk.step = Step::Waits;
        if let Some(batch) = self.batches.get_mut(chunk.batch) {
            batch.waits[wait as usize].push(&mut self.chunks, at);
            self.waiting[wait as usize] += 1;
        }
        self.is_settled = false;
    }

    /// Takes the first chunk out of a batch's list.
    pub(super) fn take_first(&mut self, batch: u32, wait: Wait, then: Step) -> Option<u32> {
        let at = self.batches.get_mut(batch)?.waits[wait as usize].pop(&mut self.chunks)?;
        self.waiting[wait as usize] -= 1;
        self.chunks.get_mut(at)?.step = then;
        Some(at)
    }

    /// Counts a doorbell, if there is room in the queue for its operations.
    fn ring_doorbell(&mut self, work: Work) -> Option<WorkId> {
        let outstanding = self.outstanding.saturating_add(work.operations);
        if outstanding > self.limits.queue_depth {
            return None;
        }
        let id = self.works.add(work)?;
        self.outstanding = outstanding;
        self.counters.doorbells += 1;
        self.counters.signalled += 1;
        self.counters.operations += u64::from(work.operations);
        if let Some(chunk) = self.chunks.get_mut(work.chunk) {
            chunk.works += 1;
            if let Some(batch) = self.batches.get_mut(chunk.batch) {
                batch.works += 1;
            }
        }
        Some(id)
    }
}
