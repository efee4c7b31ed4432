//! The engine against the executable model: same descriptors, same spans, same bytes.

mod model;
mod nic;
mod seeded;
mod support;

use model::{Model, Region as ModelRegion};
use nic::{Drive, Network, Profile};
use ring_abi::SpanFlags;
use ring_abi::{Descriptor, Extension, Flags, FragmentRecord, IndexKind, Kind, NOTIFY_BYTES_MAX, Opcode, Route, Span};
use scatter_ring::engine::{Config, Engine, PeerSettings, PeerTransport, RunningEngine, VerbsLibrary};
use scatter_ring::owner::{self, Lent, Owner};
use scatter_ring::region::{Region, Rights, SharedPages};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::hostile::Guarded;
use support::{Random, RawClient};

const SRC_BYTES: u64 = 96 << 10;
const DST_BYTES: u64 = 96 << 10;
const INDEX_BYTES: u64 = 32 << 10;
/// Every descriptor of a case has a part of the destination of its own, so that the bytes are defined.
const PART_BYTES: u64 = 4 << 10;

/// What the descriptors of a case can name, and the same memory in the model.
struct Stage {
    client: RawClient,
    /// Where its client finds what it is told.
    events: Arc<SharedPages>,
    memory: Vec<Region>,
    handles: Vec<u32>,
    start: u64,
    /// Source and destination, where they are lent.
    lent: Vec<Private>,
    /// Who has them, where they are a peer's.
    owner: Option<RawClient>,
}

/// Memory of this process that is lent, and seen as a region to fill and to compare it.
struct Private {
    _lent: Lent,
    _memory: Guarded,
}

const SRC: usize = 0;
const DST: usize = 1;
const INDEX: usize = 2;
const READ_ONLY: usize = 3;
const WRITE_ONLY: usize = 4;

impl Stage {
    fn new(socket: scatter_ring::attach::Socket, start: u64) -> Stage {
        let mut client = RawClient::attach(socket, 64, 64, start);
        let kinds = [
            (SRC_BYTES, Rights::READ_WRITE),
            (DST_BYTES, Rights::READ_WRITE),
            (INDEX_BYTES, Rights::READ),
            (4096, Rights::READ),
            (4096, Rights::WRITE),
        ];
        client.send(Kind::NOTIFICATIONS, &[], "", &[]);
        let buffer = client.socket.receive(true).unwrap().unwrap().fds;
        let events = SharedPages::map(&buffer[0], 64 * NOTIFY_BYTES_MAX as usize, false).unwrap();
        let (memory, handles) = kinds.iter().map(|(bytes, rights)| client.memory(*bytes, *rights)).unzip();
        Stage { client, events, memory, handles, start, lent: Vec::new(), owner: None }
    }

    /// Puts a region into private memory that an owner packs and unpacks.
    fn lend(&mut self, which: usize, owner: &Owner) {
        let (name, bytes) = (format!("region {which}"), self.memory[which].bytes());
        // A spoiled descriptor must not find what the model does not have.
        self.client.ask(Kind::CLOSE, &[self.handles[which].into()], "", &[]);
        let memory = Guarded::new(bytes as usize / 4096);
        // SAFETY: the memory outlives what is lent of it and the region; there are no references to it.
        let (lent, region) = unsafe {
            let lent = owner.lend(&name, memory.base(), bytes, Rights::READ_WRITE).unwrap();
            (lent, Region::adopt(memory.base(), bytes, Rights::READ_WRITE).unwrap())
        };
        let opened = self.client.ask(Kind::OPEN, &[Rights::READ_WRITE.bits()], &name, &[]);
        self.handles[which] = opened.args[0] as u32;
        self.memory[which] = region;
        self.lent.push(Private { _lent: lent, _memory: memory });
    }

    /// Puts regions into another engine, which this client's engine is connected to.
    fn move_to_peer(&mut self, which: &[usize], peer: &RunningEngine) {
        let endpoint = peer.endpoint().unwrap().to_string();
        let number = self.client.ask(Kind::CONNECT, &[], &endpoint, &[]).args[0];
        let mut owner = RawClient::attach(peer.connect().unwrap(), 4, 4, 0);
        for which in which {
            let (name, bytes) = (format!("region {which}"), self.memory[*which].bytes());
            self.client.ask(Kind::CLOSE, &[self.handles[*which].into()], "", &[]);
            let (memory, handle) = owner.memory(bytes, Rights::READ_WRITE);
            owner.ask(Kind::EXPORT, &[handle.into(), Rights::READ_WRITE.bits()], &name, &[]);
            let opened = self.client.ask(Kind::OPEN, &[Rights::READ_WRITE.bits(), number], &name, &[]);
            (self.memory[*which], self.handles[*which]) = (memory, opened.args[0] as u32);
        }
        self.owner = Some(owner);
    }

    /// Fills the memory from a seed, and makes a model that starts the same.
    fn fill(&mut self, random: &mut Random) -> Model {
        let rights = [(true, true), (true, true), (true, false), (true, false), (false, true)];
        let mut regions = Vec::new();
        for (which, region) in self.memory.iter().enumerate() {
            let mut bytes = vec![0; region.bytes() as usize];
            for word in bytes.chunks_exact_mut(8) {
                word.copy_from_slice(&random.next().to_le_bytes());
            }
            region.write_at(0, &bytes).unwrap();
            let (read, write) = rights[which];
            regions.push(ModelRegion {
                handle: self.handles[which],
                bytes,
                read,
                write,
                gone: false,
                engines_own: false,
            });
        }
        Model::new(regions, 64, self.start)
    }

    fn write_index(&self, model: &mut Model, offset: u64, bytes: &[u8]) {
        self.memory[INDEX].write_at(offset, bytes).unwrap();
        let region = model.memory.region_mut(self.handles[INDEX]);
        region.bytes[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
    }

    /// A transfer that is right, into part `part` of the destination.
    fn transfer(&self, random: &mut Random, model: &mut Model, part: u64) -> (Descriptor, Option<Extension>) {
        let opcode = random.pick(&[Opcode::READ, Opcode::WRITE]).0;
        let base = Descriptor {
            opcode,
            src_region: self.handles[SRC],
            dst_region: self.handles[DST],
            dst_offset: part * PART_BYTES,
            user_data: random.next(),
            ..Descriptor::ZERO
        };
        if random.one_in(3) {
            let len = 1 + random.below(PART_BYTES) as u32;
            let src_offset = random.below(SRC_BYTES - u64::from(len));
            return (Descriptor { count: 1, len, src_offset, ..base }, None);
        }
        let count = 1 + random.below(40) as u32;
        // An index array of its own too: it must not change while the batch runs.
        let index_offset = part * 1024 + random.below(8) * 8;
        if random.one_in(4) {
            return (self.records(random, model, Descriptor { count, index_offset, ..base }), None);
        }
        let inner = if random.one_in(3) { 1 + random.below(4) as u32 } else { 1 };
        let len = random.below(PART_BYTES / u64::from(count * inner)).max(1) as u32;
        let extension = Extension::new(inner, len + random.below(9) as u32, len);
        let kinds = [IndexKind::None, IndexKind::U32, IndexKind::U64];
        let (src_kind, dst_kind) = (random.pick(&kinds), random.pick(&kinds));
        let src_stride = random.below(200) as u32;
        let src_rows = (SRC_BYTES - u64::from(extension.inner_src_stride * inner + len)) / u64::from(src_stride.max(1));
        let mut index = Vec::new();
        let mut flags = 0;
        if src_kind != IndexKind::None && random.one_in(3) {
            flags |= random.pick(&[Flags::MISSING_ZERO, Flags::MISSING_SKIP]);
        }
        let last_row = src_rows.min(4000);
        let src_numbers: Vec<u64> = (0..count)
            .map(|_| if flags != 0 && random.one_in(4) { u64::MAX } else { random.below(last_row) })
            .collect();
        let mut dst_numbers: Vec<u64> = (0..u64::from(count)).collect();
        for i in (1..dst_numbers.len()).rev() {
            dst_numbers.swap(i, random.below(i as u64 + 1) as usize);
        }
        for (kind, numbers) in [(src_kind, &src_numbers), (dst_kind, &dst_numbers)] {
            for number in numbers {
                match kind {
                    IndexKind::U32 => index.extend((*number as u32).to_le_bytes()),
                    IndexKind::U64 => index.extend(number.to_le_bytes()),
                    _ => {}
                }
            }
        }
        let indexed = !index.is_empty();
        // An odd number of 32-bit source entries leaves 64-bit destination entries misaligned: that is for the checks.
        self.write_index(model, index_offset, &index);
        let descriptor = Descriptor {
            index_kind: IndexKind::pack(src_kind, dst_kind),
            flags,
            len,
            count,
            index_region: if indexed { self.handles[INDEX] } else { 0 },
            index_offset: if indexed { index_offset } else { 0 },
            src_stride,
            dst_stride: len * inner,
            ..base
        };
        (descriptor, (inner > 1 || random.one_in(8)).then_some(extension))
    }

    fn records(&self, random: &mut Random, model: &mut Model, base: Descriptor) -> Descriptor {
        let step = PART_BYTES / u64::from(base.count);
        let mut index = Vec::new();
        for i in 0..u64::from(base.count) {
            let len = random.below(step + 1) as u32;
            let record = FragmentRecord { src: random.below(SRC_BYTES - step), dst: i * step, len, reserved: 0 };
            index.extend(record.to_words().iter().flat_map(|word| word.to_le_bytes()));
        }
        self.write_index(model, base.index_offset, &index);
        let index_kind = IndexKind::pack(IndexKind::Fragments, IndexKind::Fragments);
        Descriptor { index_kind, index_region: self.handles[INDEX], ..base }
    }

    /// Breaks a field, or not.
    fn spoil(&self, random: &mut Random, d: &mut Descriptor) {
        const EDGES: [u64; 9] = [0, 1, 7, 4095, 4096, 1 << 31, u32::MAX as u64, 1 << 63, u64::MAX];
        let edge = random.pick(&EDGES);
        match random.below(18) {
            0 => d.opcode = random.below(256) as u8,
            1 => d.index_kind = random.below(256) as u8,
            2 => {
                // Gathering is refused by the model only between regions of one host.
                let kept = if self.owner.is_some() { Flags::GATHER } else { 0 } | Flags::LAST | Flags::EXTENDED;
                d.flags ^= 1 << random.below(16) & !kept;
            }
            3 => d.len = edge as u32,
            4 => d.src_region = random.pick(&[0, edge as u32, self.handles[WRITE_ONLY], self.handles[READ_ONLY]]),
            5 => d.dst_region = random.pick(&[0, edge as u32, self.handles[READ_ONLY]]),
            6 => d.src_offset = edge,
            7 => d.dst_offset = edge.max(DST_BYTES),
            8 => d.count = edge as u32,
            9 => d.index_region = random.pick(&[0, edge as u32, self.handles[WRITE_ONLY]]),
            10 => d.index_offset = edge,
            11 => d.src_stride = edge as u32,
            12 => d.dst_stride = edge as u32,
            13 => d.opcode = random.pick(&[Opcode::NOP, Opcode::BEGIN, Opcode::CANCEL, Opcode::NOTIFY]).0,
            14 => d.flags |= Flags::FENCE,
            _ => {}
        }
    }
}

impl Stage {
    /// A NOTIFY to this client itself, mostly right.
    fn notify(&self, random: &mut Random) -> Descriptor {
        let len = random.pick(&[0, 1, 64, NOTIFY_BYTES_MAX, NOTIFY_BYTES_MAX + 1]);
        let region = random.pick(&[READ_ONLY, READ_ONLY, READ_ONLY, WRITE_ONLY]);
        Descriptor {
            opcode: Opcode::NOTIFY.0,
            len,
            src_region: if len > 0 || random.one_in(9) { self.handles[region] } else { 0 },
            src_offset: u64::from(len > 0 && random.one_in(9)),
            dst_region: if random.one_in(9) { 7 } else { self.handles[INDEX] },
            dst_offset: random.next(),
            user_data: random.next(),
            ..Descriptor::ZERO
        }
    }
}

/// One descriptor of a case, for the message of a failure and for knowing which bytes are defined.
struct Sent {
    position: u64,
    part: u64,
}

/// One batch after another, pushed while the engine takes them; then everything is compared.
fn run_case(stage: &mut Stage, seed: u64, mut turn: impl FnMut()) {
    let mut random = Random(seed);
    let mut model = stage.fill(&mut random);
    let mut sent = Vec::new();
    let mut entries = Vec::new();
    let mut position = stage.start;
    let parts = DST_BYTES / PART_BYTES;
    // A spoiled descriptor may write anywhere that it is allowed to: spans are compared then, and not bytes.
    let spoils = random.one_in(2);
    let batches = 1 + random.below(4);
    for batch in 0..batches {
        let descriptors = 1 + random.below(parts / batches - 1);
        for i in 0..descriptors {
            let part = sent.len() as u64;
            let (mut d, mut extension) = stage.transfer(&mut random, &mut model, part);
            let spoiled = spoils && random.one_in(6);
            if spoiled {
                stage.spoil(&mut random, &mut d);
            } else if i == 0 && random.one_in(3) {
                d = Descriptor {
                    opcode: Opcode::BEGIN.0,
                    dst_offset: 60_000_000_000,
                    flags: random.pick(&[0, Flags::FENCE]),
                    user_data: d.user_data,
                    ..Descriptor::ZERO
                };
                extension = None;
            }
            if i == 0 && batch > 0 && random.one_in(4) {
                d.flags |= Flags::FENCE;
            }
            if i + 1 == descriptors {
                if random.one_in(3) {
                    (d, extension) = (stage.notify(&mut random), None);
                }
                d.flags |= Flags::LAST;
            }
            if extension.is_some() {
                d.flags |= Flags::EXTENDED;
            }
            sent.push(Sent { position, part });
            entries.push(d.to_entry());
            position = position.wrapping_add(1);
            if let Some(mut extension) = extension {
                if spoiled && random.one_in(8) {
                    extension.opcode = random.below(256) as u8;
                }
                if spoiled && random.one_in(8) {
                    extension.reserved_words[random.below(6) as usize] = 1;
                }
                entries.push(extension.to_entry());
                position = position.wrapping_add(1);
            }
        }
    }
    for entry in &entries {
        model.push(*entry);
    }
    model.run(0);
    model.assert_invariants();
    let expected: Vec<Span> = model.reap();
    let (mut seen, mut told) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut next = 0;
    while seen.len() < expected.len() || next < entries.len() {
        while next < entries.len() && stage.client.try_push(&entries[next]) {
            next += 1;
        }
        stage.client.publish();
        turn();
        stage.reap(&mut seen, &mut told);
        assert!(Instant::now() < deadline, "seed {seed}: {} of {} spans came", seen.len(), expected.len());
    }
    stage.start = position;
    // Batches end in any order.
    let expected_told = model.told.iter().map(|t| (t.offset, t.user_data, t.payload.clone())).collect();
    assert!(sorted(told) == sorted(expected_told), "seed {seed}: other notifications");
    assert_eq!(by_position(&seen), by_position(&expected), "seed {seed}");
    if !spoils {
        compare_bytes(stage, &model, &sent, &expected, seed);
    }
}

fn sorted(mut told: Vec<(u64, u64, Vec<u8>)>) -> Vec<(u64, u64, Vec<u8>)> {
    told.sort_unstable();
    told
}

impl Stage {
    /// Takes spans, and what this client is told: offset, user data, payload.
    fn reap(&mut self, spans: &mut Vec<Span>, told: &mut Vec<(u64, u64, Vec<u8>)>) {
        loop {
            let position = self.client.areas.cq.position();
            let Some(entry) = self.client.areas.cq.pop().unwrap() else { break };
            let span = Span::from_entry(&entry);
            if span.flags & SpanFlags::EVENT == 0 {
                spans.push(span);
                continue;
            }
            let mut payload = vec![0; span.bytes as usize];
            self.events.read_bytes((position & 63) as usize * NOTIFY_BYTES_MAX as usize, &mut payload);
            told.push((span.first, span.user_data, payload));
        }
        self.client.areas.cq.release();
    }
}

/// Spans in the order of their positions, without what depends on time or says which way the bytes took.
fn by_position(spans: &[Span]) -> BTreeMap<(u64, bool), Span> {
    let timeless = |span: &Span| {
        let mut span = Span { total_ns: 0, pack_ns: 0, window_ns: 0, ..*span };
        if span.route != Route::NONE.0 {
            span.route = Route::DIRECT.0;
        }
        if span.status().is_ok() {
            (span.queue_ns, span.plan_ns, span.command_ns) = (0, 0, 0);
        }
        ((span.first, span.flags & SpanFlags::RELEASED != 0), span)
    };
    let map: BTreeMap<_, _> = spans.iter().map(timeless).collect();
    assert_eq!(map.len(), spans.len(), "two spans of one position: {spans:?}");
    map
}

/// The parts of descriptors that an OK span covers must be what the model has.
fn compare_bytes(stage: &Stage, model: &Model, sent: &[Sent], spans: &[Span], seed: u64) {
    let covered =
        |position: u64| spans.iter().any(|s| s.status().is_ok() && position.wrapping_sub(s.first) < u64::from(s.count));
    let expected = &model.memory.region(stage.handles[DST]).bytes;
    for s in sent.iter().filter(|s| covered(s.position)) {
        let mut bytes = vec![0; PART_BYTES as usize];
        let offset = s.part * PART_BYTES;
        stage.memory[DST].read_at(offset, &mut bytes).unwrap();
        let same = bytes == expected[offset as usize..(offset + PART_BYTES) as usize];
        assert!(same, "seed {seed}: other bytes in part {} (position {})", s.part, s.position);
    }
}

fn cases(release: u64, debug: u64) -> u64 {
    if cfg!(debug_assertions) { debug } else { release }
}

fn seeds(count: u64) -> impl Iterator<Item = u64> {
    match std::env::var("SCATTER_RING_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("SCATTER_RING_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..count,
    }
}

#[test]
fn an_engine_without_workers_does_what_the_model_does() {
    let config = Config { workers: 0, ..Config::default() };
    for start in [0, u64::MAX - 300, u64::from(u32::MAX) - 300, i32::MAX as u64 - 300, u64::from(u16::MAX) - 300] {
        let mut engine = Engine::new(&config).unwrap();
        let mut stage = Stage::new(engine.connect().unwrap(), start);
        for seed in seeds(cases(10_000, 300)) {
            run_case(&mut stage, seed ^ start, || {
                engine.poll_once();
            });
        }
    }
}

#[test]
fn a_running_engine_with_workers_does_what_the_model_does() {
    let config = Config { workers: 2, ..Config::default() };
    let engine = Engine::new(&config).unwrap().start().unwrap();
    let mut stage = Stage::new(engine.connect().unwrap(), 0);
    for seed in seeds(cases(10_000, 300)) {
        run_case(&mut stage, seed, std::thread::yield_now);
    }
}

/// Which regions are lent: the rest is mapped.
fn lent_regions_do_what_the_model_does(which: &[usize]) {
    let engine = Engine::new(&Config { workers: 1, ..Config::default() }).unwrap().start().unwrap();
    let setup = owner::Setup { slots: 2, slot_bytes: 64 << 10, ..owner::Setup::default() };
    let owner = Owner::over(engine.connect().unwrap(), &setup).unwrap();
    let mut stage = Stage::new(engine.connect().unwrap(), 0);
    which.iter().for_each(|which| stage.lend(*which, &owner));
    for seed in seeds(cases(5_000, 150)) {
        run_case(&mut stage, seed, std::thread::yield_now);
    }
}

#[test]
fn transfers_from_lent_memory_do_what_the_model_does() {
    lent_regions_do_what_the_model_does(&[SRC]);
}

#[test]
fn transfers_to_lent_memory_do_what_the_model_does() {
    lent_regions_do_what_the_model_does(&[DST]);
}

#[test]
fn transfers_between_lent_memory_do_what_the_model_does() {
    lent_regions_do_what_the_model_does(&[SRC, DST]);
}

/// Which regions are a peer's: the rest is here. The settings of both engines say how they reach each other.
fn regions_of_a_peer_do_what_the_model_does(which: &[usize], settings: [PeerSettings; 2]) {
    let [there, here] = settings.map(|settings| {
        // Both are on this host, and would map each other's memory.
        let peers = Some(PeerSettings { map_memory: false, slot_bytes: 64 << 10, ..settings });
        Engine::new(&Config { workers: 1, peers, ..Config::default() }).unwrap().start().unwrap()
    });
    let mut stage = Stage::new(here.connect().unwrap(), 0);
    stage.move_to_peer(which, &there);
    for seed in seeds(cases(2_000, 200)) {
        run_case(&mut stage, seed, std::thread::yield_now);
    }
    assert_eq!(here.counters().peer_regions_mapped, 0);
}

fn by_sockets(lanes: u16, slots: u32) -> [PeerSettings; 2] {
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let here = PeerSettings { lanes, slots, owner_slots: slots, ..PeerSettings::default() };
    [PeerSettings { listen, ..here.clone() }, here]
}

/// The same, by devices that this process plays.
fn by_devices(network: &Network, lanes: u16, slots: u32) -> [PeerSettings; 2] {
    let mut number = 0;
    by_sockets(lanes, slots).map(|settings| {
        number += 1;
        PeerSettings {
            transport: PeerTransport::Verbs,
            device: Some(network.device(number - 1).to_owned()),
            verbs_library: Some(VerbsLibrary(network.library())),
            ..settings
        }
    })
}

#[test]
fn transfers_from_a_peer_do_what_the_model_does() {
    regions_of_a_peer_do_what_the_model_does(&[SRC], by_sockets(3, 16));
}

#[test]
fn transfers_to_a_peer_do_what_the_model_does() {
    regions_of_a_peer_do_what_the_model_does(&[DST], by_sockets(3, 16));
}

#[test]
fn transfers_to_and_from_a_peer_over_one_socket_and_with_one_slot_do_what_the_model_does() {
    regions_of_a_peer_do_what_the_model_does(&[SRC], by_sockets(1, 1));
    regions_of_a_peer_do_what_the_model_does(&[DST], by_sockets(1, 1));
}

#[test]
fn transfers_from_and_to_a_peer_by_devices_do_what_the_model_does() {
    for (lanes, slots) in [(3, 16), (1, 1)] {
        let network = Network::new(Profile::rxe(), Drive::Thread, 3);
        regions_of_a_peer_do_what_the_model_does(&[SRC], by_devices(&network, lanes, slots));
        regions_of_a_peer_do_what_the_model_does(&[DST], by_devices(&network, lanes, slots));
        network.assert_clean();
    }
}
