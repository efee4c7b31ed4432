//! Bulk writes, of either side.

use super::flow::{Flow, Lists, Message, Way};
use super::memory::{Move, Place};
use super::task::beyond_cache;
use super::world::{Input, World};
use crate::pipeline::{Chunk, ChunkId, WorkId};
use crate::plan::Direction;

/// A bulk write of either side.
pub struct Bulk {
    pub link: usize,
    pub host: usize,
    pub id: ChunkId,
    pub chunk: Chunk,
    /// A slot, or where the bytes are.
    pub from: Option<Place>,
    /// A slot, or where the bytes belong.
    pub to: Option<Place>,
    pub lists: Lists,
    pub message: Option<Message>,
    pub work: WorkId,
}

impl World<'_> {
    /// Posts a bulk write and what goes behind it with one doorbell.
    pub fn post_bulk(&mut self, bulk: Bulk, at_ns: u64) {
        let operations = 1 + u32::from(bulk.message.is_some());
        let bytes = u64::from(bulk.chunk.bytes);
        let effects = &self.run.profile.effects;
        let slower = if bulk.from.is_some() { beyond_cache(bytes, effects) } else { 1.0 };
        let moves = match (&bulk.lists, self.callers[bulk.link].batch_of(bulk.id.batch)) {
            (Some(lists), Some(batch)) => Move::bulk(lists, batch, bulk.from, bulk.to, bytes),
            _ => Vec::new(),
        };
        self.tally.posted(bulk.link, operations, at_ns);
        let mut flow = Flow {
            link: bulk.link,
            host: bulk.host,
            is_read: false,
            operations,
            bytes: bytes + bulk.message.as_ref().map_or(0, Message::bytes),
            slower,
            work: Some(bulk.work),
            message: bulk.message,
            chunk: Some(bulk.id),
            fails: self.random.happens(self.run.faults.completions.error),
            moves,
            way: Way::default(),
        };
        if self.random.happens(self.run.faults.post_fails) {
            let posted = self.random.up_to(u64::from(operations - 1)) as u32;
            let input = Input::PostFailed { link: bulk.link, work: bulk.work, posted };
            self.poller(bulk.host).inbox.push_back(input);
            // The write alone may have been posted.
            (flow.work, flow.message) = (None, None);
            if posted == 0 {
                return;
            }
        }
        self.post(flow, at_ns);
    }

    pub fn is_read(&self) -> bool {
        self.run.job.direction == Direction::Read
    }
}
