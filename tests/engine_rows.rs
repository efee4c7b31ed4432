//! Long batches that are written row by row: a worker helps with them, and nobody can tell.

mod support;

use ring_abi::{Descriptor, Field, Flags, Opcode, Status};
use scatter_ring::client::{Client, Region, Setup};
use scatter_ring::engine::{Config, Engine, RunningEngine};
use scatter_ring::region::Rights;
use support::{Random, RawClient};

const ROWS: u64 = 20_000;
const ROW_BYTES: u64 = 72;

fn stage(workers: usize) -> (RunningEngine, Client, [Region; 2], [Region; 2]) {
    let engine = Engine::new(&Config { workers, ..Config::default() }).unwrap().start().unwrap();
    let client = Client::over(engine.connect().unwrap(), &Setup::default()).unwrap();
    let region = || client.allocate(ROWS * ROW_BYTES).unwrap();
    let (from, to) = ([region(), region()], [region(), region()]);
    let mut random = Random(1);
    for table in &from {
        let bytes: Vec<u8> = (0..ROWS * ROW_BYTES).map(|_| random.next() as u8).collect();
        table.write_at(0, &bytes).unwrap();
    }
    (engine, client, from, to)
}

/// Row `i`: which of the two regions, from where, how many bytes. It goes to place `i`.
fn row(i: u64) -> (usize, u64, u64) {
    let mut random = Random(i);
    // Runs of one pair of regions that are long enough for a worker, and short ones.
    let which = (i / 3_000 % 2) as usize ^ usize::from(i % 5_000 < 7);
    (which, random.below(ROWS) * ROW_BYTES, 1 + random.below(ROW_BYTES))
}

fn compare(rows: u64, from: &[Region; 2], to: &[Region; 2]) {
    let (mut expected, mut got) = ([0; ROW_BYTES as usize], [0; ROW_BYTES as usize]);
    for i in 0..rows {
        let (which, at, len) = row(i);
        let len = len as usize;
        from[which].read_at(at, &mut expected[..len]).unwrap();
        to[which].read_at(i * ROW_BYTES, &mut got[..len]).unwrap();
        assert_eq!(got[..len], expected[..len], "row {i}");
    }
}

#[test]
fn every_row_of_a_long_batch_arrives_with_and_without_workers() {
    for workers in [0, 1, 2] {
        let (_engine, mut client, from, to) = stage(workers);
        let mut bytes = 0;
        let mut batch = client.batch();
        for i in 0..ROWS {
            let (which, at, len) = row(i);
            batch.read(&from[which], at, &to[which], i * ROW_BYTES, len).unwrap();
            bytes += len;
        }
        let ticket = batch.submit().unwrap();
        assert_eq!(client.wait(&ticket).unwrap().bytes, bytes);
        compare(ROWS, &from, &to);
    }
}

#[test]
fn a_wrong_row_late_in_a_long_batch_is_named_and_all_before_it_are_done() {
    const WRONG: u64 = 15_001;
    for workers in [0, 1, 2] {
        let (_engine, mut client, from, to) = stage(workers);
        let mut bytes = 0;
        let mut batch = client.batch();
        for i in 0..ROWS {
            let (which, at, len) = row(i);
            let at = if i == WRONG { ROWS * ROW_BYTES } else { at };
            batch.read(&from[which], at, &to[which], i * ROW_BYTES, len).unwrap();
            bytes += if i < WRONG { len } else { 0 };
        }
        let ticket = batch.submit().unwrap();
        let error = client.wait(&ticket).unwrap_err();
        assert_eq!((error.status, error.field), (Status::OUT_OF_RANGE, Field::SRC_OFFSET), "{error}");
        assert_eq!((error.descriptor, error.bytes_done), (Some(WRONG as u32), bytes), "{error}");
        assert!(error.reusable, "{error}");
        compare(WRONG, &from, &to);
    }
}

/// A list for a worker takes the place of a transfer, and so may the descriptor behind it, which is taken at once.
#[test]
fn rows_for_a_worker_leave_a_place_for_the_descriptor_behind_them() {
    const BIG: u32 = 32 << 20;
    // All places but one. Each transfer is long enough to be in flight to the end of this test.
    const TRANSFERS: u64 = 63;
    // The first turn in which a worker is asked for help begins with this row: turns take 256 slots.
    const FIRST_OF_LIST: u64 = 9 * 256 - TRANSFERS;
    let mut engine = Engine::new(&Config { workers: 1, ..Config::default() }).unwrap();
    let mut client = RawClient::attach(engine.connect().unwrap(), 4096, 1024, 0);
    let (_src, src) = client.memory(BIG.into(), Rights::READ);
    let (_dst, dst) = client.memory(BIG.into(), Rights::READ_WRITE);
    let range = |from: u32, len: u32, flags: u16| Descriptor {
        opcode: Opcode::READ.0,
        flags,
        len,
        src_region: from,
        dst_region: dst,
        count: 1,
        ..Descriptor::ZERO
    };
    for _ in 0..TRANSFERS {
        assert!(client.try_push(&range(src, BIG, Flags::LAST).to_entry()));
    }
    for row in 0..FIRST_OF_LIST + 128 {
        let from = if row == FIRST_OF_LIST + 10 { dst } else { src };
        assert!(client.try_push(&range(from, 8, 0).to_entry()));
    }
    client.publish();
    for _ in 0..16 {
        // The worker has done what it had, so that there is room for a list.
        std::thread::sleep(std::time::Duration::from_millis(2));
        engine.poll_once();
    }
    assert_eq!(client.stopped(), None);
}
