//! A fixed amount of work on one thread, for counting instructions: `ci/instructions.sh` runs it under callgrind.
//!
//! Each side's part is a function that is not inlined, so that its inclusive count can be told from the other's.

use ring_abi::{Descriptor, Flags, Opcode};
use scatter_ring::client::{Client, Region, Rows, Setup};
use scatter_ring::engine::{Config, Engine};
use scatter_ring::region::copy::Isa;
use std::time::Duration;

/// Single-row descriptors, by either way of pushing.
const DESCRIPTORS: u64 = 100_000;
/// Descriptors per batch: what the ring holds, less than it.
const PER_BATCH: u64 = 1000;
/// Rows by an index.
const INDEXED: u64 = 400_000;
const PER_INDEX: u64 = 4000;
const ROW_BYTES: u64 = 264;
const ROWS: u64 = 4096;

struct Stage {
    engine: Engine,
    client: Client,
    table: Region,
    out: Region,
    index: Region,
}

fn main() {
    let engine = Engine::new(&Config { workers: 0, ..Config::default() }).expect("an engine");
    let socket = engine.connect().expect("a socket");
    let client = Client::over(socket, &Setup { spin: Duration::ZERO, ..Setup::default() }).expect("a client");
    let table = client.allocate(ROWS * ROW_BYTES).expect("a table");
    let out = client.allocate(ROWS * ROW_BYTES).expect("a buffer");
    let index = client.allocate(4 * ROWS).expect("an index");
    let numbers: Vec<u8> = (0..ROWS).flat_map(|i| (number(i) as u32).to_le_bytes()).collect();
    index.write_at(0, &numbers).expect("room for the numbers");
    let mut stage = Stage { engine, client, table, out, index };
    let kind = std::env::args().nth(1).unwrap_or_default();
    let (all, per_batch, push): (u64, u64, fn(&mut Stage, u64)) = match kind.as_str() {
        "raw" => (DESCRIPTORS, PER_BATCH, raw_push),
        "batch" => (DESCRIPTORS, PER_BATCH, batch_push),
        "index" => (INDEXED, PER_INDEX, index_push),
        _ => panic!("which count: raw, batch or index"),
    };
    for from in (0..all).step_by(per_batch as usize) {
        push(&mut stage, from);
        engine_take(&mut stage.engine);
        client_reap(&mut stage.client, per_batch);
    }
    println!("isa {:?}", Isa::best());
    println!("rows {all}");
    println!("batches {}", all / per_batch);
}

#[inline(never)]
fn raw_push(stage: &mut Stage, from: u64) {
    for i in from..from + PER_BATCH {
        let descriptor = Descriptor {
            opcode: Opcode::READ.0,
            flags: if i + 1 == from + PER_BATCH { Flags::LAST } else { 0 },
            len: ROW_BYTES as u32,
            src_region: stage.table.handle().0,
            dst_region: stage.out.handle().0,
            src_offset: number(i) * ROW_BYTES,
            dst_offset: i % ROWS * ROW_BYTES,
            count: 1,
            ..Descriptor::ZERO
        };
        // SAFETY: the regions stay open, and nobody looks at the buffer.
        unsafe { stage.client.push(&descriptor) }.expect("room in the ring");
    }
    stage.client.submit().expect("a session");
}

#[inline(never)]
fn batch_push(stage: &mut Stage, from: u64) {
    let mut batch = stage.client.batch();
    for i in from..from + PER_BATCH {
        let (src, dst) = (number(i) * ROW_BYTES, i % ROWS * ROW_BYTES);
        batch.read(&stage.table, src, &stage.out, dst, ROW_BYTES).expect("room in the ring");
    }
    batch.submit().expect("a session");
}

#[inline(never)]
fn index_push(stage: &mut Stage, _from: u64) {
    let rows = Rows::new(&stage.table, ROW_BYTES as u32, &stage.index, PER_INDEX as u32, &stage.out);
    let mut batch = stage.client.batch();
    batch.read_rows(&rows).expect("room in the ring");
    batch.submit().expect("a session");
}

/// Turns until there is nothing to do; the last of them finds nothing.
#[inline(never)]
fn engine_take(engine: &mut Engine) {
    while engine.poll_once() {}
}

#[inline(never)]
fn client_reap(client: &mut Client, rows: u64) {
    let span = client.reap().expect("a session").expect("a span");
    assert!(span.status().is_ok() && span.bytes == rows * ROW_BYTES, "a wrong span: {span:?}");
}

/// The row of the table that is moved as number `i`.
fn number(i: u64) -> u64 {
    i * 2_654_435_761 % ROWS
}
