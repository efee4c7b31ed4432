//! What happens: wires, workers, devices, callers, time.

use super::batch::{Run, any_chunks};
use super::end::{End, Item, Posted, Task};
use super::{OwnerTask, UNKNOWN_WORK, World, once_in};
use crate::seeded::Random;
use ring_abi::{Field, Stage, Status};
use scatter_ring::pipeline::{BatchId, Chunk, ChunkId, Landing, Origin, Reply, Request, WorkFault, WorkId};
use scatter_ring::plan::{Direction, Fault};

/// What a worker reports of a chunk that it may not pack.
const FAULT: Fault = Fault::new(Status::OUT_OF_RANGE, Stage::PACK, Field::SRC_OFFSET, 7);

impl World {
    /// One event of any kind that can happen now, if its turn comes.
    pub fn any_event(&mut self, random: &mut Random) {
        let at = random.below(self.ends.len() as u64) as usize;
        match random.below(16) {
            0 => self.begin_any(at, random),
            1 | 2 => drop(self.add(at, random)),
            3..15 => drop(self.any_step(at, random)),
            _ => self.advance(random.below(30)),
        }
        self.settle(random);
        self.any_fault(at, random);
        self.settle(random);
    }

    pub fn begin_any(&mut self, at: usize, random: &mut Random) {
        let direction = random.pick(&[Direction::Read, Direction::Write]);
        let (slots, chunks) = (random.pick(&[0, 1, 2, 8]), any_chunks(random, 8));
        self.begin(at, direction, slots, &chunks, random);
    }

    pub fn begin(&mut self, at: usize, direction: Direction, slots: u32, chunks: &[Chunk], random: &mut Random) {
        let end = &mut self.ends[at];
        if let Some(id) = end.requester.begin(direction, slots) {
            assert!(!end.is_quiet);
            end.runs.push(Run::new(id, direction, slots, chunks, random));
        }
    }

    /// Adds a chunk of any batch, or closes it behind the last. False if it could not.
    pub fn add(&mut self, at: usize, random: &mut Random) -> bool {
        let end = &mut self.ends[at];
        let open = |run: &&mut Run| !run.is_closed && run.finished.is_none();
        let count = end.runs.iter_mut().filter(open).count() as u64;
        if count == 0 {
            return false;
        }
        let which = random.below(count) as usize;
        let run = end.runs.iter_mut().filter(open).nth(which).expect("counted above");
        let Some(planned) = run.chunks.get(run.added as usize) else {
            end.requester.close(run.id);
            run.is_closed = true;
            return true;
        };
        let (has_room, is_stopped) = (end.requester.has_chunk_room(), run.is_stopped());
        let added = end.requester.add(run.id, planned.chunk);
        match added {
            Some(id) => {
                assert!(has_room && !is_stopped && id == ChunkId { batch: run.id, number: run.added });
                run.added += 1;
            }
            None => assert!(!has_room || is_stopped),
        }
        added.is_some()
    }

    /// A wire, a worker or a device of one link gets on. False if it has nothing to do.
    pub fn any_step(&mut self, at: usize, random: &mut Random) -> bool {
        match random.below(6) {
            0 => self.step_forward(at, random),
            1 => self.step_back(at, random),
            2 => self.complete(at, random),
            3 => self.complete_at_owner(at, random),
            4 => self.run_task(at, random),
            _ => self.run_owner_task(random),
        }
    }

    fn step_forward(&mut self, at: usize, random: &mut Random) -> bool {
        let Some(item) = self.ends[at].forward.pop_front() else { return false };
        match item {
            Item::Window { id, first, count, work } => {
                let bad = (0..count).find(|_| self.is_bad(self.faults.operation, random));
                let end = &mut self.ends[at];
                (first..first + bad.unwrap_or(count)).for_each(|operation| end.run(id.batch).copy(id, operation));
                end.will_complete(work, bad);
            }
            Item::Bulk { id, origin, landing, work } => self.write_in_bulk(at, id, origin, landing, work, random),
            Item::Request(request) if !once_in(random, self.faults.lost) => self.deliver(at, request),
            Item::Request(_) => {}
            Item::Reply(_) => panic!("it goes the other way"),
        }
        true
    }

    /// WRITE.
    fn write_in_bulk(
        &mut self,
        at: usize,
        id: ChunkId,
        origin: Origin,
        landing: Landing,
        work: Option<WorkId>,
        random: &mut Random,
    ) {
        let has_message = landing != Landing::Destination;
        let bad = self.is_bad(self.faults.operation, random).then(|| random.small(1 + u32::from(has_message)));
        let end = &mut self.ends[at];
        if bad != Some(0) {
            let bytes = match origin {
                Origin::Source => end.run(id.batch).packed(id),
                Origin::Slot(slot) => end.slots[slot as usize].clone(),
            };
            match landing {
                Landing::Destination => end.run(id.batch).unpack(id, &bytes),
                Landing::Slot(slot) => end.landings[slot as usize] = bytes,
            }
        }
        end.will_complete(work, bad);
        // A device may call a message bad that has arrived.
        if let Landing::Slot(slot) = landing
            && (work.is_some() && bad.is_none() || bad == Some(1) && work.is_some() && random.once_in(2))
        {
            let chunk = end.run(id.batch).planned(id).chunk;
            self.deliver(at, Request::Unpack { id, chunk, slot });
        }
    }

    fn deliver(&mut self, at: usize, request: Request) {
        let link = self.ends[at].link;
        let is_taken = self.owner.request(link, request, self.now_ns);
        match request {
            Request::Pack { id, .. } | Request::Unpack { id, .. } if is_taken => self.ends[at].kept.push(id),
            _ => assert!(!is_taken || !matches!(request, Request::Cancel { .. })),
        }
    }

    fn step_back(&mut self, at: usize, random: &mut Random) -> bool {
        let Some(item) = self.ends[at].back.pop_front() else { return false };
        match item {
            Item::Bulk { id, origin, landing, work } => {
                let bad = self.is_bad(self.faults.operation, random).then(|| random.small(2));
                let end = &mut self.ends[at];
                if bad != Some(0) {
                    let bytes = match origin {
                        Origin::Source => end.run(id.batch).packed(id),
                        Origin::Slot(slot) => self.pool[slot as usize].clone(),
                    };
                    match landing {
                        Landing::Destination => end.run(id.batch).unpack(id, &bytes),
                        Landing::Slot(slot) => end.slots[slot as usize] = bytes,
                    }
                }
                if let Some(work) = work {
                    let result = bad.map_or(Ok(()), |operation| Err(WorkFault { operation, status: 9 }));
                    end.owner_completions.push((work, result));
                    // A device may call a message bad that has arrived.
                    if bad.is_none() || bad == Some(1) && self.faults.operation > 0 && random.once_in(2) {
                        end.tell(Reply::Done(id), self.now_ns);
                    }
                }
            }
            Item::Reply(reply) if !once_in(random, self.faults.lost) => {
                let end = &mut self.ends[at];
                end.tell(reply, self.now_ns);
                if once_in(random, self.faults.again) {
                    end.old_replies.push(reply);
                }
            }
            Item::Reply(_) => {}
            Item::Window { .. } | Item::Request(_) => panic!("it goes the other way"),
        }
        true
    }

    fn complete(&mut self, at: usize, random: &mut Random) -> bool {
        let end = &mut self.ends[at];
        if end.completions.is_empty() {
            return false;
        }
        let which = random.below(end.completions.len() as u64) as usize;
        let (work, result) = end.completions.swap_remove(which);
        if !once_in(random, self.faults.lost) {
            end.tell_completion(work, result, self.now_ns);
        }
        if once_in(random, self.faults.again) {
            end.old_completions.push((work, result));
        }
        true
    }

    fn complete_at_owner(&mut self, at: usize, random: &mut Random) -> bool {
        let end = &mut self.ends[at];
        if end.owner_completions.is_empty() {
            return false;
        }
        let which = random.below(end.owner_completions.len() as u64) as usize;
        let (work, result) = end.owner_completions.swap_remove(which);
        if once_in(random, self.faults.lost) {
            return true;
        }
        let known = end.owner_posted.iter().position(|(posted, ..)| *posted == work).expect("posted");
        end.owner_posted.swap_remove(known);
        self.owner.completed(end.link, work, result);
        if once_in(random, self.faults.again) {
            self.owner.completed(end.link, work, result);
            self.expected_stale += 1;
        }
        true
    }

    fn run_task(&mut self, at: usize, random: &mut Random) -> bool {
        if self.ends[at].tasks.is_empty() {
            return false;
        }
        let result = if self.is_bad(self.faults.task, random) { Err(FAULT) } else { Ok(()) };
        let end = &mut self.ends[at];
        let which = random.below(end.tasks.len() as u64) as usize;
        let task = end.tasks.swap_remove(which);
        match task {
            Task::Pack { id, lease } => {
                end.slots[lease.slot as usize] = end.run(id.batch).packed(id);
                end.requester.packed(id, lease, result, self.now_ns);
            }
            Task::Unpack { id, lease } => {
                let bytes = std::mem::take(&mut end.slots[lease.slot as usize]);
                end.run(id.batch).unpack(id, &bytes);
                end.requester.unpacked(id, lease, result, self.now_ns);
            }
        }
        true
    }

    /// After the link is gone an owner's worker harms nobody: its requester has been told that the outcome is unknown.
    fn run_owner_task(&mut self, random: &mut Random) -> bool {
        if self.owner_tasks.is_empty() {
            return false;
        }
        let which = random.below(self.owner_tasks.len() as u64) as usize;
        let task = self.owner_tasks.swap_remove(which);
        let result = if self.is_bad(self.faults.task, random) { Err(FAULT) } else { Ok(()) };
        let end = self.ends.iter_mut().find(|end| end.link == task.link()).expect("its link");
        match task {
            OwnerTask::Pack { link, id, lease } => {
                if !end.is_quiet {
                    self.pool[lease.slot as usize] = end.run(id.batch).packed(id);
                }
                self.owner.packed(link, id, lease, result);
            }
            OwnerTask::Unpack { link, id, slot } => {
                if !end.is_quiet {
                    let bytes = std::mem::take(&mut end.landings[slot as usize]);
                    end.run(id.batch).unpack(id, &bytes);
                }
                self.owner.unpacked(link, id, slot, result);
            }
        }
        true
    }

    fn advance(&mut self, by_ns: u64) {
        self.now_ns += by_ns;
        self.owner.advance(self.now_ns);
        self.ends.iter_mut().for_each(|end| end.requester.advance(self.now_ns));
    }

    fn any_fault(&mut self, at: usize, random: &mut Random) {
        let faults = self.faults;
        let end = &mut self.ends[at];
        if once_in(random, faults.cancel) && !end.runs.is_empty() {
            let which = random.below(end.runs.len() as u64) as usize;
            end.cancel(which, self.now_ns);
        }
        if once_in(random, faults.again) {
            if let Some((work, result)) = end.old_completions.pop() {
                end.tell_completion(work, result, self.now_ns);
            }
            if let Some(reply) = end.old_replies.pop() {
                end.tell(reply, self.now_ns);
            }
        }
        if once_in(random, faults.made_up) {
            let id = ChunkId { batch: BatchId(random.below(4)), number: random.small(9) };
            // One that is at the owner is the owner's to answer.
            if !end.asked.iter().any(|(known, ..)| *known == id) {
                let reply = random.pick(&[Reply::Done(id), Reply::Refused(id), Reply::Failed(id, FAULT)]);
                end.tell(reply, self.now_ns);
            }
            end.tell_completion(UNKNOWN_WORK, Ok(()), self.now_ns);
        }
        if once_in(random, faults.down) {
            if random.once_in(2) {
                end.take_down();
            } else {
                self.owner.down(end.link);
            }
        }
        if self.ends[at].is_breaking && random.once_in(4) {
            self.quiesce(at);
        }
    }

    /// Nothing on the wires of a broken link is carried out any more.
    fn quiesce(&mut self, at: usize) {
        let end = &mut self.ends[at];
        if end.is_quiet {
            return;
        }
        end.is_quiet = true;
        end.forward.clear();
        end.back.clear();
        end.old_completions.append(&mut end.completions);
        end.posted.clear();
        end.owner_completions.clear();
        end.owner_posted.clear();
        end.asked.clear();
        end.cancels.clear();
        end.requester.quiesced();
        self.owner.quiesced(end.link);
    }

    /// Lets everything come to its end. What was lost is cancelled; if that does not help, time passes.
    pub fn run_to_the_end(&mut self, random: &mut Random) {
        for _ in 0..100_000 {
            self.settle(random);
            let count = self.ends.len();
            let is_added = (0..count).any(|at| self.add(at, random));
            let steps: Vec<fn(&mut World, usize, &mut Random) -> bool> = vec![
                World::step_forward,
                World::step_back,
                World::complete,
                World::complete_at_owner,
                World::run_task,
                |world, _, random| world.run_owner_task(random),
            ];
            let first = random.below(steps.len() as u64) as usize;
            let is_moved =
                (0..count).any(|at| (0..steps.len()).any(|k| steps[(first + k) % steps.len()](self, at, random)));
            if !is_added && !is_moved && !self.unblock() {
                self.check_is_over();
                return;
            }
        }
        panic!("it does not come to an end");
    }

    /// Nothing happens any more by itself. False if that is as it should be.
    fn unblock(&mut self) -> bool {
        if let Some(at) = self.ends.iter().position(|end| end.is_breaking && !end.is_quiet) {
            self.quiesce(at);
            return true;
        }
        let timers = self.ends.iter().filter_map(|end| end.requester.next_timer_ns());
        if let Some(next_ns) = timers.chain(self.owner.next_timer_ns()).min() {
            self.advance(next_ns.saturating_sub(self.now_ns));
            return true;
        }
        let unfinished = |run: &Run| run.finished.is_none();
        for end in &mut self.ends {
            if let Some(which) = end.runs.iter().position(unfinished) {
                assert!(self.faults.lost > 0, "stuck: {:?}", end.requester);
                assert!(!end.runs[which].is_stopped(), "a stopped batch ends by itself");
                end.cancel(which, self.now_ns);
                return true;
            }
            // Its completions are lost, or the requester does not know that its messages are.
            if !end.is_quiet && (!end.owner_posted.is_empty() || self.owner.commands(end.link) > 0) {
                assert!(self.faults.lost > 0, "stuck: {:?}", self.owner);
                self.owner.down(end.link);
                return true;
            }
        }
        false
    }
}

impl End {
    pub fn take_down(&mut self) {
        self.requester.down();
        self.is_down = true;
    }

    pub fn cancel(&mut self, which: usize, now_ns: u64) {
        let run = &mut self.runs[which];
        self.requester.cancel(run.id, now_ns);
        let is_done = run.is_closed && run.chunks.iter().all(|chunk| chunk.done.is_some());
        if run.finished.is_none() && !run.has_failed && !is_done {
            run.is_cancelled = true;
        }
    }

    fn will_complete(&mut self, work: Option<WorkId>, bad: Option<u32>) {
        if let Some(work) = work {
            self.completions.push((work, bad.map_or(Ok(()), |operation| Err(WorkFault { operation, status: 9 }))));
        }
    }

    fn tell_completion(&mut self, work: WorkId, result: Result<(), WorkFault>, now_ns: u64) {
        let known = self.posted.iter().position(|posted: &Posted| posted.work == work && !posted.is_partial);
        match known {
            Some(at) => drop(self.posted.swap_remove(at)),
            None => self.stale_completions += 1,
        }
        self.requester.completed(work, result, now_ns);
    }

    fn tell(&mut self, reply: Reply, now_ns: u64) {
        match reply {
            Reply::Done(id) | Reply::Refused(id) | Reply::Failed(id, _) => {
                let known = self.asked.iter().position(|(asked, ..)| *asked == id);
                match known {
                    Some(at) => drop(self.asked.swap_remove(at)),
                    None => self.stale_replies += 1,
                }
                self.refused += u64::from(known.is_some() && matches!(reply, Reply::Refused(_)));
            }
            Reply::Drained(batch) => match self.cancels.iter().position(|cancelled| *cancelled == batch) {
                Some(at) => {
                    self.cancels.swap_remove(at);
                    self.asked.retain(|(id, ..)| id.batch != batch);
                }
                None => self.stale_replies += 1,
            },
        }
        self.requester.reply(reply, now_ns);
    }
}
