//! What the copy workers do, and how long it takes them.

use super::Effects;
use super::wire::ns;
use super::world::{Input, World};
use crate::cost::CopyProfile;
use crate::pipeline::{Chunk, ChunkId, Lease};
use crate::plan::Fault;
use ring_abi::{Field, Stage, Status};

use super::flow::Lists;

/// What a processor does.
#[derive(Clone, Debug)]
pub enum Task {
    /// Moves some bytes of a flow, where no device does.
    Transfer { flow: usize, bytes: u64, operations: u32 },
    /// Packs or unpacks.
    Copy(Copying),
}

/// Packing or unpacking of a chunk.
#[derive(Clone, Debug)]
pub struct Copying {
    pub packs: bool,
    pub host: usize,
    /// Number of the caller whose chunk it is.
    pub link: usize,
    pub id: ChunkId,
    pub chunk: Chunk,
    pub lease: Lease,
    pub lists: Lists,
    pub asked_ns: u64,
    pub started_ns: u64,
}

impl Task {
    fn host(&self) -> Option<usize> {
        match self {
            Task::Transfer { .. } => None,
            Task::Copy(copying) => Some(copying.host),
        }
    }
}

impl World<'_> {
    /// Hands a copy to the workers of its host.
    pub fn hand_over(&mut self, copying: Copying) {
        self.processors.add(Some(copying.host), Task::Copy(copying));
        self.start_tasks();
    }

    pub fn start_tasks(&mut self) {
        while let Some((mut task, busy)) = self.processors.start() {
            let takes_ns = match &mut task {
                Task::Transfer { bytes, operations, .. } => self.transfer_ns(*bytes, *operations),
                Task::Copy(copying) => {
                    copying.started_ns = self.now_ns.max(copying.asked_ns);
                    self.tally.copy_begins(copying, self.now_ns);
                    copying.started_ns - self.now_ns + self.copy_ns(copying, busy)
                }
            };
            self.events.add(self.now_ns.saturating_add(takes_ns), super::world::Event::TaskEnd(task));
        }
    }

    pub fn task_ended(&mut self, task: Task) {
        self.processors.ended(task.host());
        match &task {
            Task::Transfer { flow, bytes, operations } => self.moved(*flow, *bytes, *operations),
            Task::Copy(copying) => {
                let result = self.copy(copying);
                let host = copying.host;
                self.tally.copy_ends(copying, self.now_ns);
                self.poller(host).inbox.push_back(Input::Task(task, result));
                self.wake(host, self.now_ns);
            }
        }
        self.start_tasks();
    }

    /// Really moves the bytes, if that is asked for.
    fn copy(&mut self, copying: &Copying) -> Result<(), Fault> {
        let faults = &self.run.faults;
        let refused = faults.pack_fails_at == Some(self.tally.copies) || self.random.happens(faults.pack_fails);
        self.tally.copies += 1;
        if refused {
            return Err(Fault::new(Status::OUT_OF_RANGE, Stage::PACK, Field::SRC_OFFSET, 0));
        }
        let Some(memory) = &mut self.memory else { return Ok(()) };
        let batch = self.callers[copying.link].batch_of(copying.id.batch);
        memory.copy(copying, batch)
    }

    /// The longest of what the worker needs and of what the memory of its host leaves to it.
    fn copy_ns(&mut self, copying: &Copying, busy: u32) -> u64 {
        let profile = self.run.profile;
        let copies = if copying.host == 0 { &profile.owner } else { &profile.requester };
        let pieces = if copying.packs { copying.chunk.src_pieces } else { copying.chunk.dst_pieces };
        let table_bytes = self.tally.table_bytes[usize::from(!copying.packs)];
        let bytes = u64::from(copying.chunk.bytes);
        let alone = worker_ns(copies, &profile.effects, bytes, pieces, table_bytes);
        let shared = bytes as f64 * f64::from(busy) / profile.effects.memory_bytes_per_ns;
        let cold = if self.tally.is_first_use(copying) { profile.effects.first_touch_ns_per_byte } else { 0.0 };
        ns(alone.max(shared) + bytes as f64 * cold)
    }
}

/// How long one worker packs or unpacks that has the memory for itself, in ns.
pub fn worker_ns(copies: &CopyProfile, effects: &Effects, bytes: u64, pieces: u32, table_bytes: u64) -> f64 {
    let walks = if pieces > 1 { doublings(table_bytes, effects.translation_reach_bytes) } else { 0.0 };
    let piece_ns = copies.piece_ns + copies.decode_ns + walks * effects.translation_ns;
    beyond_cache(bytes, effects) * bytes as f64 / copies.bytes_per_ns + f64::from(pieces) * piece_ns
}

/// How much longer the bytes of a chunk take for not fitting the cache.
pub fn beyond_cache(bytes: u64, effects: &Effects) -> f64 {
    let beyond = bytes.saturating_sub(effects.cache_bytes);
    if beyond == 0 { 1.0 } else { 1.0 + effects.beyond_cache * (beyond as f64 / bytes as f64) }
}

/// How often `reach` is to be doubled to cover so many bytes; linear between whole numbers, so that it is the same on every
/// machine.
fn doublings(bytes: u64, reach: u64) -> f64 {
    let times = bytes / reach.max(1);
    if times == 0 {
        return 0.0;
    }
    let whole = times.ilog2();
    let rest = bytes as f64 / reach.max(1) as f64 / (1u64 << whole) as f64 - 1.0;
    f64::from(whole) + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translation_grows_with_the_doublings_of_the_table() {
        let of = |bytes| doublings(bytes, 1 << 20);
        assert_eq!([of(0), of(1 << 19), of(1 << 20), of(1 << 21), of(1 << 30)], [0.0, 0.0, 0.0, 1.0, 10.0]);
        assert_eq!(of(3 << 20), 1.5);
        assert_eq!(doublings(u64::MAX, u64::MAX), 0.0);
    }

    #[test]
    fn only_the_bytes_beyond_the_cache_take_longer() {
        let effects = Effects { cache_bytes: 100, beyond_cache: 0.5, ..Effects::NONE };
        assert_eq!(beyond_cache(100, &effects), 1.0);
        assert_eq!(beyond_cache(200, &effects), 1.25);
        assert_eq!(beyond_cache(u64::MAX, &Effects::NONE), 1.0);
    }
}
