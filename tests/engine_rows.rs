//! Long batches that are written row by row: a worker helps with them, and nobody can tell.

mod support;

use ring_abi::{Field, Status};
use scatter_ring::client::{Client, Region, Setup};
use scatter_ring::engine::{Config, Engine, RunningEngine};
use support::Random;

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
