//! What a run is measured by.

use super::caller::Caller;
use super::task::Copying;
use super::{Audit, Bar, BarStage, Host, Outcome, Report, Run, Stages};
use crate::cost::{Choice, Decision};
use crate::pipeline::{Chunk, ChunkId};
use ring_abi::Route;
use std::collections::{HashMap, HashSet};

/// What is noted while a run goes on. Stages are those of the first caller's first batch.
#[derive(Debug, Default)]
pub struct Tally {
    pub cut_off: bool,
    pub last_data_ns: u64,
    /// Packing and unpacking tasks so far.
    pub copies: u32,
    pub caller_peak: u32,
    pub owner_peak: u32,
    /// What the numbers of each side reach over.
    pub table_bytes: [u64; 2],
    records: bool,
    first_post_ns: Option<u64>,
    stages: Stages,
    operations: u64,
    doorbells: u64,
    /// Commands of the first caller: when they were sent, and when the owner took them.
    commands: HashMap<ChunkId, [u64; 2]>,
    /// Workers that pack or unpack, and since when at least one does.
    copying: u32,
    copying_since_ns: u64,
    used: HashSet<(usize, usize, bool, u32)>,
    bars: Vec<Bar>,
}

impl Tally {
    pub fn new(run: &Run) -> Tally {
        let reach = |side| run.job.parts.iter().map(|part| part.table_bytes(side)).max().unwrap_or(0);
        Tally { table_bytes: [reach(0), reach(1)], records: run.record, ..Tally::default() }
    }

    pub fn begun(&mut self, caller: usize, at_ns: u64) {
        if caller == 0 {
            self.stages.queue_ns.get_or_insert(at_ns);
        }
    }

    pub fn planned(&mut self, caller: usize, from_ns: u64, to_ns: u64) {
        if caller == 0 {
            *self.stages.plan_ns.get_or_insert(0) += to_ns - from_ns;
        }
    }

    pub fn command_sent(&mut self, caller: usize, id: ChunkId, at_ns: u64) {
        if caller == 0 {
            self.commands.insert(id, [at_ns, at_ns]);
        }
    }

    pub fn command_begins(&mut self, caller: usize, id: ChunkId, at_ns: u64) {
        if caller != 0 {
            return;
        }
        let Some(times) = self.commands.get_mut(&id) else { return };
        times[1] = at_ns;
        let sent_ns = times[0];
        self.stages.command_ns.get_or_insert(at_ns - sent_ns);
        self.bar(caller, 0, id, BarStage::Command, sent_ns, at_ns);
    }

    /// Operations for data, with one doorbell.
    pub fn posted(&mut self, caller: usize, operations: u32, at_ns: u64) {
        self.first_post_ns.get_or_insert(at_ns);
        if caller == 0 {
            self.doorbells += 1;
            self.operations += u64::from(operations);
        }
    }

    pub fn chunk_done(&mut self, caller: &mut Caller, id: ChunkId, chunk: &Chunk) {
        let Some(batch) = caller.batch_of(id.batch) else { return };
        caller.batches[batch].direct |= chunk.route == Route::DIRECT;
        caller.batches[batch].gathered |= chunk.route == Route::GATHER;
    }

    pub fn copy_begins(&mut self, task: &Copying, now_ns: u64) {
        if task.link != 0 {
            return;
        }
        if self.copying == 0 {
            self.copying_since_ns = now_ns;
        }
        self.copying += 1;
        let asked_ns = match self.commands.get(&task.id) {
            Some([_, begun_ns]) if task.host == 0 => *begun_ns,
            _ => task.asked_ns,
        };
        if task.host == 0 {
            let waited_ns = task.started_ns.saturating_sub(asked_ns);
            self.stages.owner_queue_ns = self.stages.owner_queue_ns.max(Some(waited_ns));
        }
        self.bar(task.link, task.host, task.id, BarStage::Queue, asked_ns, task.started_ns);
    }

    pub fn copy_ends(&mut self, task: &Copying, now_ns: u64) {
        if task.link != 0 {
            return;
        }
        self.copying -= 1;
        if self.copying == 0 {
            *self.stages.pack_ns.get_or_insert(0) += now_ns - self.copying_since_ns;
        }
        let stage = if task.packs { BarStage::Pack } else { BarStage::Unpack };
        self.bar(task.link, task.host, task.id, stage, task.started_ns, now_ns);
    }

    /// True if the slot of a task was not used before.
    pub fn is_first_use(&mut self, task: &Copying) -> bool {
        self.used.insert((task.host, if task.host == 0 { 0 } else { task.link }, task.packs, task.lease.slot))
    }

    pub fn bar(&mut self, caller: usize, host: usize, id: ChunkId, stage: BarStage, from_ns: u64, to_ns: u64) {
        if self.records && caller == 0 && from_ns < to_ns {
            let host = if host == 0 { Host::Owner } else { Host::Requester };
            self.bars.push(Bar { chunk: id.number, stage, host, from_ns, to_ns });
        }
    }

    pub fn report(mut self, choice: Choice, predicted: Decision, callers: &[Caller], audit: Audit) -> Report {
        let ends = |caller: &Caller| caller.batches.iter().map(|batch| batch.finished_ns).max().unwrap_or(0);
        let callers_ns: Vec<u64> = callers.iter().map(ends).collect();
        let first = callers.first().and_then(|caller| caller.batches.first());
        let chosen = match first.map_or((false, false), |batch| (batch.direct, batch.gathered)) {
            (true, true) => Route::HYBRID,
            (false, true) => Route::GATHER,
            (true, false) => Route::DIRECT,
            (false, false) => Route::NONE,
        };
        let end_ns = first.map_or(0, |batch| batch.finished_ns);
        if self.last_data_ns > 0 {
            self.stages.complete_ns = end_ns.checked_sub(self.last_data_ns);
        }
        self.bars.sort_by_key(|bar| (bar.from_ns, bar.chunk));
        Report {
            total_ns: callers_ns.iter().copied().max().unwrap_or(0),
            window_ns: self.first_post_ns.and_then(|from_ns| self.last_data_ns.checked_sub(from_ns)),
            stages: self.stages,
            doorbells: self.doorbells,
            operations: self.operations,
            signalled: self.doorbells,
            staging_peak_bytes: u64::from(self.caller_peak.max(self.owner_peak)) * u64::from(choice.chunk_bytes),
            chosen,
            choice,
            predicted,
            outcome: first.and_then(|batch| batch.outcome).unwrap_or(Outcome::Failed),
            callers_ns,
            timeline: self.bars,
            audit,
        }
    }
}
