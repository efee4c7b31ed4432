//! A caller plans, chunk by chunk, as long as its machine has room.

use super::super::job::{Feed, Step};
use super::super::wire::ns;
use super::super::world::{DECIDE_NS, DESCRIPTOR_NS, REAP_NS, World};
use super::super::{BarStage, Outcome, Submit};
use crate::pipeline::{Chunk, LINK_LOST};
use crate::plan::Direction;

impl World<'_> {
    /// Begins with the next batch, or plans the next chunk of the one that has begun.
    pub(super) fn plan(&mut self, c: usize, at_ns: u64) -> u64 {
        if self.callers[c].feed.is_none() {
            return self.begin(c, at_ns);
        }
        let row_ns = match self.run.submit {
            Submit::Index => self.run.profile.requester.plan_ns,
            Submit::Rows => DESCRIPTOR_NS,
        };
        let caller = &mut self.callers[c];
        let Some((batch, feed)) = &mut caller.feed else { return at_ns };
        let batch = *batch;
        let Some(id) = caller.batches[batch].id else { return at_ns };
        let part = feed.part();
        let (step, looked) = feed.next(&mut caller.chunk, self.run.submit);
        let after_ns = at_ns + ns(looked as f64 * row_ns);
        self.tally.planned(c, at_ns, after_ns);
        match step {
            Ok(Step::Chunk) => {
                let head = self.head(c);
                let caller = &mut self.callers[c];
                match caller.machine.add(id, head) {
                    Some(id) => self.tally.bar(c, 1 + c, id, BarStage::Plan, at_ns, after_ns),
                    None => {
                        caller.drop_lists(head.lists);
                        caller.feed = None;
                    }
                }
            }
            Ok(Step::End) => {
                caller.machine.close(id);
                caller.feed = None;
            }
            Err(fault) => {
                caller.batches[batch].outcome.get_or_insert(Outcome::Failed);
                caller.batches[batch].fault = Some((part, fault));
                caller.machine.cancel(id, after_ns);
                caller.feed = None;
            }
        }
        after_ns
    }

    fn begin(&mut self, c: usize, at_ns: u64) -> u64 {
        let caller = &mut self.callers[c];
        let Some(batch) = caller.next_batch() else { return at_ns };
        let after_ns = at_ns + DECIDE_NS;
        self.tally.begun(c, after_ns);
        caller.account.begin(batch, after_ns);
        match caller.machine.begin(self.run.job.direction, self.choice.slots.max(1)) {
            Some(id) => {
                caller.batches[batch].id = Some(id);
                caller.feed = Some((batch, Feed::new(self.run.job, caller.rules)));
            }
            // The link is not up.
            None => {
                caller.batches[batch].outcome = Some(Outcome::Failed);
                caller.batches[batch].finished_ns = after_ns + REAP_NS;
                caller.account.end(batch, false, Some((0, LINK_LOST)), after_ns);
            }
        }
        after_ns
    }

    /// What the machine is told of the chunk that was just planned.
    fn head(&mut self, c: usize) -> Chunk {
        let caller = &mut self.callers[c];
        let chunk = &caller.chunk;
        // Zeros are one piece that is nowhere: they can only be packed.
        let src_pieces = if chunk.src.contiguous().is_some() { 1 } else { chunk.src.pieces().max(2) };
        let dst_pieces = chunk.dst.pieces();
        let max_sge = self.run.profile.link.max_sge;
        let direction = self.run.job.direction;
        // Counting operations one by one costs far more than planning them. This is the number unless both sides have
        // pieces of different lengths; where bytes are moved it has to be right.
        let operations = if self.memory.is_some() {
            chunk.operations(direction, max_sge).count() as u32
        } else {
            let remote = if direction == Direction::Read { src_pieces } else { dst_pieces }.max(1);
            remote.saturating_mul(src_pieces.max(dst_pieces).div_ceil(remote).div_ceil(max_sge.max(1)))
        };
        let packer = if direction == Direction::Read { &chunk.src } else { &chunk.dst };
        let mut head = Chunk {
            route: chunk.route,
            bytes: chunk.bytes,
            src_pieces,
            dst_pieces,
            operations: operations.max(1),
            command_bytes: packer.encoded().len() as u32,
            lists: 0,
        };
        if self.memory.is_some() {
            head.lists = self.callers[c].keep_lists();
        }
        head
    }
}
