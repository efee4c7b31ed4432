//! Files that are cut short while peers use them: a transfer of what is lost fails, and says so (R15, R16, R31).

mod support;

use ring_abi::{Flags, Status};
use scatter_ring::client::{Client, Region, Setup};
use scatter_ring::engine::{Config, Engine, PeerSettings, RunningEngine, guard_process};
use scatter_ring::region::{Rights, Trust};
use std::fs::File;
use std::time::{Duration, Instant};

const ROW: u64 = 264;
const ROWS: u64 = 4000;
const BYTES: u64 = ROW * ROWS;

fn start() -> RunningEngine {
    let peers = PeerSettings { listen: vec!["127.0.0.1:0".parse().unwrap()], ..PeerSettings::default() };
    let config = Config { workers: 1, peers: Some(peers), trust: Trust::SameUser, ..Config::default() };
    Engine::new(&config).unwrap().start().unwrap()
}

fn attach(engine: &RunningEngine) -> Client {
    Client::over(engine.connect().unwrap(), &Setup::default()).unwrap()
}

/// Byte `i` of a table; never 0, which is what lost pages have.
fn byte(i: u64) -> u8 {
    (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8 | 1
}

fn bytes(from: u64, len: u64) -> Vec<u8> {
    (from..from + len).map(byte).collect()
}

/// A memory file that nothing keeps from being cut short.
fn file(content: &[u8]) -> File {
    let file: File =
        rustix::fs::memfd_create("cut short", rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING)
            .unwrap()
            .into();
    std::os::unix::fs::FileExt::write_all_at(&file, content, 0).unwrap();
    file
}

fn pauses(n: u64) {
    let until = Instant::now() + Duration::from_micros((n * 397) % 4000);
    while Instant::now() < until {
        std::thread::yield_now();
    }
}

const ROUTES: [u16; 3] = [0, Flags::DIRECT, Flags::GATHER];

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Table,
    Sink,
    Near,
    Index,
}

struct Stage {
    user: Client,
    table: Region,
    sink: Region,
    near: Region,
    index: Region,
    /// What is cut short.
    file: File,
    _owner: (Client, Region),
}

/// An owner with a table and a sink, and a client with near memory and an index, one of which is a file.
fn stage(a: &RunningEngine, b: &RunningEngine, what: What, round: u64) -> Stage {
    let (owner, user) = (attach(a), attach(b));
    let (of_table, of_sink) = (format!("table {what:?} {round}"), format!("sink {what:?} {round}"));
    let table = bytes(0, BYTES);
    let numbers: Vec<u8> = (0..ROWS as u32).flat_map(|i| ((i * 7919 + 1) % ROWS as u32).to_ne_bytes()).collect();
    let content = match what {
        What::Table => table.clone(),
        What::Sink | What::Near => vec![0; BYTES as usize],
        What::Index => numbers.clone(),
    };
    let file = file(&content);
    let make = |client: &Client, here: What, content: &[u8]| {
        if here == what {
            return client.register(&file, content.len() as u64, Rights::READ_WRITE).unwrap();
        }
        let region = client.allocate(content.len() as u64).unwrap();
        region.write_at(0, content).unwrap();
        region
    };
    let (own_table, own_sink) = (make(&owner, What::Table, &table), make(&owner, What::Sink, &vec![0; BYTES as usize]));
    owner.export(&own_table, &of_table, Rights::READ).unwrap();
    owner.export(&own_sink, &of_sink, Rights::READ_WRITE).unwrap();
    let (near, index) = (make(&user, What::Near, &vec![0; BYTES as usize]), make(&user, What::Index, &numbers));
    let peer = user.connect(&a.endpoint().unwrap().to_string()).unwrap();
    let table = user.open_at(peer, &of_table, Rights::READ).unwrap();
    let sink = user.open_at(peer, &of_sink, Rights::READ_WRITE).unwrap();
    drop(own_table);
    Stage { user, table, sink, near, index, file, _owner: (owner, own_sink) }
}

fn number(i: u64) -> u64 {
    (i * 7919 + 1) % ROWS
}

/// Reads or writes all rows while the file is cut; no success is a wrong one.
fn cut_while(what: What, writes: bool) {
    guard_process().unwrap();
    let (a, b) = (start(), start());
    let rounds = if cfg!(debug_assertions) { 10 } else { 100 };
    let (mut done, mut gone) = (0, 0);
    for round in 0..rounds {
        let mut stage = stage(&a, &b, what, round);
        if writes && what != What::Near {
            stage.near.write_at(0, &bytes(0, BYTES)).unwrap();
        } else if writes {
            std::os::unix::fs::FileExt::write_all_at(&stage.file, &bytes(0, BYTES), 0).unwrap();
        }
        let file = stage.file.try_clone().unwrap();
        let route = ROUTES[(round % 3) as usize];
        let cutter = std::thread::spawn(move || {
            pauses(round);
            let len = file.metadata().unwrap().len();
            // A page that is cut in two stays, with zeros at its end.
            file.set_len(len * (round % 5) / 5 / 4096 * 4096).unwrap();
        });
        let mut is_over = false;
        let since = Instant::now();
        while !is_over {
            assert!(since.elapsed() < Duration::from_secs(20), "{what:?}: what is lost is never noticed");
            let mut batch = stage.user.batch();
            let (src, dst) = if writes { (&stage.near, &stage.sink) } else { (&stage.table, &stage.near) };
            let d = ring_abi::Descriptor {
                opcode: ring_abi::Opcode::READ.0,
                flags: route,
                index_kind: if writes {
                    ring_abi::IndexKind::pack(ring_abi::IndexKind::None, ring_abi::IndexKind::U32)
                } else {
                    ring_abi::IndexKind::pack(ring_abi::IndexKind::U32, ring_abi::IndexKind::None)
                },
                src_region: src.handle().0,
                dst_region: dst.handle().0,
                index_region: stage.index.handle().0,
                len: ROW as u32,
                count: ROWS as u32,
                src_stride: ROW as u32,
                dst_stride: ROW as u32,
                ..ring_abi::Descriptor::ZERO
            };
            batch.push(&d, &[src, dst, &stage.index]).unwrap();
            let ticket = batch.submit().unwrap();
            match stage.user.wait_timeout(&ticket, Duration::from_secs(10)) {
                Ok(Some(_)) => {
                    done += 1;
                    // What can be lost by this process's own looking is not looked at.
                    if what == What::Table || what == What::Index {
                        let to = if writes { &stage._owner.1 } else { &stage.near };
                        let mut got = vec![0; BYTES as usize];
                        to.read_at(0, &mut got).unwrap();
                        for i in 0..ROWS {
                            let (src, dst) = if writes { (i, number(i)) } else { (number(i), i) };
                            let row = &got[(dst * ROW) as usize..][..ROW as usize];
                            assert!(row == bytes(src * ROW, ROW), "{what:?}, round {round}: a wrong success, row {i}");
                        }
                        to.write_at(0, &vec![0; BYTES as usize]).unwrap();
                    }
                    is_over = cutter.is_finished() && what != What::Table && since.elapsed() > Duration::from_secs(1);
                    assert!(!is_over, "{what:?}, round {round}, writes {writes}: success after the cut");
                }
                Ok(None) => panic!("no outcome"),
                Err(error) => {
                    assert_eq!(error.status, Status::REGION_GONE, "{what:?}, writes {writes}, route {route}: {error}");
                    gone += 1;
                    is_over = true;
                }
            }
        }
        cutter.join().unwrap();
    }
    println!("{what:?} {writes}: {done} done, {gone} gone");
}

#[test]
fn a_table_that_is_cut_short_while_a_peer_reads_it_is_gone() {
    cut_while(What::Table, false);
}

#[test]
fn memory_that_is_cut_short_while_a_peer_writes_to_it_is_gone() {
    cut_while(What::Sink, true);
}

#[test]
fn near_memory_that_is_cut_short_is_gone() {
    cut_while(What::Near, false);
    cut_while(What::Near, true);
}

#[test]
fn an_index_that_is_cut_short_while_it_is_planned_is_gone() {
    cut_while(What::Index, false);
    cut_while(What::Index, true);
}
