//! What busy clients can put before another one's descriptor, counted in descriptors, pieces and bytes: R11, R8.

mod support;

use ring_abi::{Descriptor, Flags, IndexKind, Opcode, Span, SpanFlags, Status};
use scatter_ring::engine::{Config, Engine, Limits};
use scatter_ring::region::{Region, Rights};
use scatter_ring::ring::Words;
use scatter_ring::sync::Ordering::Relaxed;
use std::collections::HashSet;
use std::time::{Duration, Instant};
use support::RawClient;
use support::hostile::{NOP, alone, range};

/// What one ring may be served in one turn, as the engine documents it: so many slots taken ...
const SLOTS_PER_TURN: u64 = 256;
/// ... each of which may be a row that is copied at once ...
const ROW_BYTES_MAX: u64 = 4096;
/// ... and so many bytes copied for longer transfers, of which the last task may go beyond by as much.
const TASK_BYTES: u64 = 256 << 10;
/// Pieces are counted as at least 16 bytes, missing fragments that are looked up one by one as 64, and a task has at most
/// 8192 pieces.
const PIECES_PER_TURN: u64 = TASK_BYTES / 16 + 8192;
const MISSING_PER_TURN: u64 = TASK_BYTES / 64 + 1;
const ROW_BYTES_PER_TURN: u64 = SLOTS_PER_TURN * ROW_BYTES_MAX;
const BYTES_PER_TURN: u64 = 2 * TASK_BYTES;

/// A client that keeps its ring full of one descriptor.
struct Flooder {
    client: RawClient,
    _memory: Region,
    flood: Flood,
    descriptor: Descriptor,
    /// It never takes a span.
    stalled: bool,
    taken_before: u64,
    finished: u64,
}

#[derive(Clone, Copy)]
struct Flood {
    what: &'static str,
    /// From a region of [`FLOOD_BYTES`] with its handle, which has row numbers or records in front.
    descriptor: fn(u32) -> Descriptor,
    /// What a descriptor has of what its turns are limited by, and that limit.
    units: u64,
    per_turn: u64,
}

const FLOOD_BYTES: u64 = 8 << 20;
/// Index words and records are in front of this.
const DATA: u64 = 2 << 20;
const LARGE: u32 = 2 << 20;
/// All-ones words, behind each other.
const MISSING: u64 = 1 << 20;
const PIECES: u32 = 40_000;

const FLOODS: [Flood; 12] = [
    Flood { what: "NOPs", descriptor: |_| NOP, units: 1, per_turn: SLOTS_PER_TURN },
    Flood { what: "rows", descriptor: |h| range((h, DATA), (h, 2 * DATA), 264), units: 1, per_turn: SLOTS_PER_TURN },
    Flood {
        what: "the longest rows",
        descriptor: |h| range((h, DATA), (h, 2 * DATA), 4096),
        units: 4096,
        per_turn: ROW_BYTES_PER_TURN,
    },
    Flood {
        what: "large ranges",
        descriptor: |h| range((h, DATA), (h, 2 * DATA), LARGE),
        units: LARGE as u64,
        per_turn: BYTES_PER_TURN,
    },
    Flood {
        what: "large ranges behind fences",
        descriptor: |h| Descriptor { flags: Flags::LAST | Flags::FENCE, ..range((h, DATA), (h, 2 * DATA), LARGE) },
        units: LARGE as u64,
        per_turn: BYTES_PER_TURN,
    },
    Flood {
        what: "batches without an end",
        descriptor: |h| Descriptor { flags: 0, ..range((h, DATA), (h, 2 * DATA), 264) },
        units: 1,
        per_turn: SLOTS_PER_TURN,
    },
    Flood {
        what: "rows by number",
        descriptor: |h| Descriptor { dst_stride: 128, ..indexed(h, 0, 128, PIECES / 4) },
        units: 128 * PIECES as u64 / 4,
        per_turn: BYTES_PER_TURN,
    },
    Flood {
        what: "fragments of a byte",
        descriptor: |h| Descriptor {
            index_kind: IndexKind::pack(IndexKind::Fragments, IndexKind::Fragments),
            len: 0,
            src_stride: 0,
            dst_stride: 0,
            ..indexed(h, 0, 0, PIECES)
        },
        units: PIECES as u64,
        per_turn: PIECES_PER_TURN,
    },
    Flood {
        what: "pieces of a byte",
        descriptor: |h| Descriptor {
            count: PIECES,
            src_stride: 3,
            dst_stride: 2,
            ..range((h, DATA), (h, 2 * DATA), 1)
        },
        units: PIECES as u64,
        per_turn: PIECES_PER_TURN,
    },
    Flood {
        what: "missing rows",
        descriptor: |h| Descriptor {
            flags: Flags::LAST | Flags::MISSING_SKIP,
            dst_stride: 8,
            ..indexed(h, MISSING, 8, PIECES)
        },
        units: PIECES as u64,
        per_turn: PIECES_PER_TURN,
    },
    Flood {
        what: "missing rows that are wide",
        descriptor: |h| Descriptor {
            flags: Flags::LAST | Flags::MISSING_SKIP,
            // The destinations' numbers, behind the sources', are all 0: see `Flooder::new`.
            index_kind: IndexKind::pack(IndexKind::U32, IndexKind::U32),
            dst_stride: 1 << 20,
            ..indexed(h, MISSING + 4 * u64::from(PIECES), 1 << 20, PIECES)
        },
        units: PIECES as u64,
        per_turn: MISSING_PER_TURN,
    },
    Flood {
        what: "nonsense",
        descriptor: |h| Descriptor { opcode: 99, ..range((h, DATA), (h, 2 * DATA), 264) },
        units: 1,
        per_turn: SLOTS_PER_TURN,
    },
];

fn indexed(handle: u32, index_offset: u64, len: u32, count: u32) -> Descriptor {
    Descriptor {
        opcode: Opcode::READ.0,
        index_kind: IndexKind::pack(IndexKind::U32, IndexKind::None),
        index_region: handle,
        index_offset,
        count,
        src_stride: len,
        ..range((handle, DATA), (handle, 2 * DATA), len)
    }
}

impl Flooder {
    fn new(engine: &Engine, flood: Flood, stalled: bool) -> Flooder {
        let mut client = RawClient::attach(engine.connect().unwrap(), 1024, 4096, 0);
        let (memory, handle) = client.memory(FLOOD_BYTES, Rights::READ_WRITE);
        if flood.what.starts_with("fragments") {
            let records: Vec<u8> = (0..PIECES).flat_map(|i| record(2 * u64::from(i))).collect();
            memory.write_at(0, &records).unwrap();
        } else {
            memory.write_at(MISSING, &[0xFF; 8 * PIECES as usize]).unwrap();
        }
        let descriptor = (flood.descriptor)(handle);
        Flooder { client, _memory: memory, flood, descriptor, stalled, taken_before: 0, finished: 0 }
    }

    /// Its ring is full again, and it has taken all of its spans.
    fn flood(&mut self) {
        while self.client.try_push(&self.descriptor.to_entry()) {}
        self.client.publish();
        while !self.stalled
            && let Some(span) = self.client.reap()
        {
            let nonsense = self.flood.what == "nonsense";
            assert_eq!(span.status() == Status::OK, !nonsense, "{}: {span:?}", self.flood.what);
            self.finished += u64::from(span.count);
        }
        self.taken_before = self.taken();
    }

    /// Slots that the engine has taken from its ring.
    fn taken(&self) -> u64 {
        self.client.areas.sq.words().head().load(Relaxed)
    }

    fn check(&self, turns: u64) {
        let what = self.flood.what;
        let now = self.taken() - self.taken_before;
        assert!(now <= SLOTS_PER_TURN, "{what}: {now} slots of one ring in one turn");
        let (done, most) = (self.finished * self.flood.units, turns * self.flood.per_turn);
        assert!(done <= most, "{what}: {done} in {turns} turns, and no more than {most} are right");
    }
}

/// A fragment record of one byte.
fn record(offset: u64) -> impl Iterator<Item = u8> {
    let record = ring_abi::FragmentRecord { src: offset, dst: offset, len: 1, reserved: 0 };
    record.to_words().into_iter().flat_map(u64::to_le_bytes)
}

/// A client with a little to do, all of it verified.
struct Prober {
    client: RawClient,
    memory: Region,
    handle: u32,
    probes: u64,
}

impl Prober {
    fn new(client: RawClient) -> Prober {
        let mut client = client;
        let (memory, handle) = client.memory(8192, Rights::READ_WRITE);
        Prober { client, memory, handle, probes: 0 }
    }

    fn submit(&mut self) {
        self.probes += 1;
        self.memory.write_at(0, &self.probes.to_le_bytes()).unwrap();
        self.client.submit(&range((self.handle, 0), (self.handle, 4096), 64));
    }

    fn check(&self, span: Option<Span>, what: &str) {
        let span = span.unwrap_or_else(|| panic!("{what}: not served in its turn"));
        assert_eq!((span.status(), span.bytes), (Status::OK, 64), "{what}");
        let mut bytes = [0; 8];
        self.memory.read_at(4096, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), self.probes, "{what}");
    }
}

/// An engine that this thread drives: one poll is one turn of every ring.
fn probe(floods: &[(Flood, bool)], turns: u64, what: &str) {
    let mut engine = Engine::new(&Config { workers: 0, ..Config::default() }).unwrap();
    let mut flooders: Vec<Flooder> =
        floods.iter().map(|(flood, stalled)| Flooder::new(&engine, *flood, *stalled)).collect();
    let mut prober = Prober::new(RawClient::attach(engine.connect().unwrap(), 8, 8, 0));
    // Everybody has been seen.
    engine.poll_once();
    for turn in 1..=turns {
        flooders.iter_mut().for_each(Flooder::flood);
        prober.submit();
        engine.poll_once();
        let span = prober.client.reap();
        prober.check(span, what);
        flooders.iter().for_each(|flooder| flooder.check(turn + 1));
    }
    for flooder in flooders.iter().filter(|flooder| !flooder.stalled) {
        let what = flooder.flood.what;
        assert!(flooder.finished > 0 || what == "batches without an end" && flooder.taken() > 0, "{what}: no flood");
    }
}

#[test]
fn a_descriptor_waits_for_one_turn_of_each_busy_ring_whatever_they_are_full_of() {
    let _alone = alone();
    let turns = if cfg!(debug_assertions) { 30 } else { 1000 };
    for flood in FLOODS {
        probe(&[(flood, false); 3], turns, flood.what);
    }
    let all: Vec<_> = FLOODS.iter().map(|flood| (*flood, false)).collect();
    probe(&all, turns, "all floods at once");
}

#[test]
fn clients_that_do_not_reap_change_nothing_for_others() {
    let _alone = alone();
    let turns = if cfg!(debug_assertions) { 30 } else { 1000 };
    let stalled: Vec<_> = FLOODS.iter().map(|flood| (*flood, true)).collect();
    probe(&stalled, turns, "stalled");
    let half: Vec<_> = FLOODS.iter().enumerate().map(|(i, flood)| (*flood, i % 2 == 0)).collect();
    probe(&half, turns, "stalled and busy");
}

/// Resident memory of this process that it shares with nobody.
fn private_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let (_, private) = status.split_once("RssAnon:").unwrap();
    private.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

/// Ten seconds and a hundred thousand submissions in release.
#[test]
fn a_reader_that_stalls_for_long_loses_nothing_and_costs_nobody_anything() {
    let _alone = alone();
    let (submissions, stall) =
        if cfg!(debug_assertions) { (8_000, Duration::from_millis(500)) } else { (100_000, Duration::from_secs(10)) };
    let limits = Limits { ring_slots: 1 << 17, ..Limits::default() };
    let engine = Engine::new(&Config { workers: 1, limits, ..Config::default() }).unwrap().start().unwrap();
    let mut stalled = RawClient::attach(engine.connect().unwrap(), 1 << 17, 64, 0);
    let (_memory, handle) = stalled.memory(1 << 20, Rights::READ_WRITE);
    for i in 0..submissions {
        let len = 32 << (i % 12);
        assert!(stalled.try_push(&range((handle, 0), (handle, 1 << 19), len).to_entry()));
    }
    stalled.publish();
    let mut prober = Prober::new(RawClient::attach(engine.connect().unwrap(), 8, 8, 0));
    let start = Instant::now();
    let mut before = None;
    while start.elapsed() < stall {
        prober.submit();
        let span = prober.client.wait();
        prober.check(Some(span), "while another one stalls");
        before.get_or_insert_with(private_bytes);
    }
    let (before, after) = (before.unwrap(), private_bytes());
    assert!(after < before + (1 << 20), "{before} bytes before the stall, {after} behind it");
    let mut seen = HashSet::new();
    while seen.len() < submissions as usize {
        let span = stalled.wait();
        assert_eq!((span.count, span.status(), span.flags), (1, Status::OK, SpanFlags::BATCH_DONE));
        assert!(span.first < submissions && seen.insert(span.first), "twice, or never submitted: {span:?}");
    }
    assert_eq!(stalled.reap(), None);
}
