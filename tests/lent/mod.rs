//! What the tests of lent memory share.

// Each of them uses another part of it.
#![allow(dead_code)]

use crate::support::hostile::Guarded;
use crate::support::{Random, RawClient};
use ring_abi::{Descriptor, Kind, Opcode, Span, Status};
use scatter_ring::engine::{Config, Engine, RunningEngine};
use scatter_ring::owner::{Lent, Owner};
use scatter_ring::region::Rights;
use std::time::Duration;

pub fn engine() -> RunningEngine {
    Engine::new(&Config { workers: 1, ..Config::default() }).unwrap().start().unwrap()
}

pub fn cases(release: u64, debug: u64) -> u64 {
    if cfg!(debug_assertions) { debug } else { release }
}

/// Private memory of this process between guard pages, lent under a name.
pub struct Private {
    pub lent: Option<Lent>,
    pub memory: Guarded,
}

impl Private {
    pub fn lend(owner: &Owner, name: &str, pages: usize) -> Private {
        let memory = Guarded::new(pages);
        // SAFETY: the memory outlives what is lent of it, and nobody has a reference to it.
        let lent = unsafe { owner.lend(name, memory.base(), memory.len() as u64, Rights::READ_WRITE) }.unwrap();
        Private { lent: Some(lent), memory }
    }

    pub fn fill(&self, random: &mut Random) {
        let bytes: Vec<u8> = (0..self.memory.len() / 8).flat_map(|_| random.next().to_le_bytes()).collect();
        self.write(0, &bytes);
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.memory.len());
        // SAFETY: inside memory of ours, to which no reference exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.base().add(offset), bytes.len()) };
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // Before its memory goes.
        self.lent = None;
    }
}

pub fn open(client: &mut RawClient, name: &str) -> u32 {
    let answer = client.ask(Kind::OPEN, &[3], name, &[]);
    assert_eq!(answer.status, Status::OK, "{}", answer.name());
    answer.args[0] as u32
}

pub fn client(engine: &RunningEngine) -> RawClient {
    RawClient::attach(engine.connect().unwrap(), 64, 64, 0)
}

pub const BYTES: u64 = 1 << 20;

/// A batch with a deadline. Its BEGIN is done whatever becomes of the rest, and has a span of its own then.
pub fn deadline(client: &mut RawClient, d: &Descriptor, after: Duration) {
    let begin = Descriptor { opcode: Opcode::BEGIN.0, dst_offset: after.as_nanos() as u64, ..Descriptor::ZERO };
    assert!(client.try_push(&begin.to_entry()) && client.try_push(&d.to_entry()));
    client.publish();
}

/// How such a batch ends if it does not succeed.
pub fn ending(client: &mut RawClient) -> Span {
    let begun = client.wait();
    assert!(begun.status().is_ok() && begun.count == 1, "{begun:?}");
    client.wait()
}
