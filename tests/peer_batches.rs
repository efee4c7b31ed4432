//! How batches with sides at peers are cut into parts: published in pieces, of many regions, of many owners, with local rows
//! between, by forced routes, with deadlines and fences. Every byte is looked at.

mod support;

use ring_abi::{Descriptor, Flags, IndexKind, Kind, Opcode, Route, Span, SpanFlags, Status};
use scatter_ring::engine::{Config, Engine, PeerSettings, RunningEngine};
use scatter_ring::region::{Region, Rights};
use std::time::{Duration, Instant};
use support::hostile::range;
use support::{Random, RawClient};

const ROW: u32 = 264;
const ROWS: u64 = 2000;
const BYTES: u64 = ROW as u64 * ROWS;
const UNTOUCHED: u8 = 0xEE;

fn engine() -> RunningEngine {
    let listen = vec![([127, 0, 0, 1], 0).into()];
    let peers = PeerSettings { listen, slot_bytes: 64 << 10, ..PeerSettings::default() };
    Engine::new(&Config { workers: 1, peers: Some(peers), ..Config::default() }).unwrap().start().unwrap()
}

/// A table and a sink in the memory of another engine's client.
struct Owner {
    table: u32,
    sink: u32,
    contents: Vec<u8>,
    sink_memory: Region,
    _client: RawClient,
    _engine: RunningEngine,
}

/// A client whose descriptors go out as it is told.
struct Scene {
    client: RawClient,
    near: Region,
    near_handle: u32,
    owners: Vec<Owner>,
    _engine: RunningEngine,
}

impl Scene {
    fn new(owners: u64) -> Scene {
        let engine = engine();
        let mut client = RawClient::attach(engine.connect().unwrap(), 1024, 1024, 0);
        let (near, near_handle) = client.memory(BYTES, Rights::READ_WRITE);
        let owners = (0..owners).map(|number| Owner::new(&mut client, number)).collect();
        let scene = Scene { client, near, near_handle, owners, _engine: engine };
        scene.clear();
        scene
    }

    fn clear(&self) {
        self.near.write_at(0, &[UNTOUCHED; BYTES as usize]).unwrap();
    }

    /// A row of an owner's table to a row of this side's memory.
    fn row(&self, owner: usize, from: u64, to: u64) -> Descriptor {
        let row = u64::from(ROW);
        let range = range((self.owners[owner].table, from * row), (self.near_handle, to * row), ROW);
        Descriptor { flags: 0, user_data: to, ..range }
    }

    fn push(&mut self, descriptor: &Descriptor) {
        let start = Instant::now();
        while !self.client.try_push(&descriptor.to_entry()) {
            assert!(start.elapsed() < Duration::from_secs(10), "the ring stays full");
            self.client.publish();
            std::thread::yield_now();
        }
    }

    /// All of them as one batch, at once.
    fn run(&mut self, descriptors: &[Descriptor]) -> Vec<Span> {
        for (at, descriptor) in descriptors.iter().enumerate() {
            let last = if at + 1 == descriptors.len() { Flags::LAST } else { 0 };
            self.push(&Descriptor { flags: descriptor.flags | last, ..*descriptor });
        }
        self.client.publish();
        self.spans()
    }

    /// The spans of the next batch, up to its last one.
    fn spans(&mut self) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        loop {
            let span = self.client.wait();
            spans.push(span);
            let is_held = spans.iter().any(|span| span.flags & SpanFlags::HELD != 0);
            let awaited = if is_held { SpanFlags::RELEASED } else { SpanFlags::BATCH_DONE };
            if span.flags & awaited != 0 {
                return spans;
            }
        }
    }

    /// Row `to` of this side's memory is what it is to be: row `from` of the owner, or untouched.
    #[track_caller]
    fn assert_row(&self, to: u64, from: Option<(usize, u64)>) {
        let row = u64::from(ROW);
        let mut got = vec![0; ROW as usize];
        self.near.read_at(to * row, &mut got).unwrap();
        let is_right = match from {
            Some((owner, from)) => got == self.owners[owner].contents[(from * row) as usize..][..ROW as usize],
            None => got.iter().all(|byte| *byte == UNTOUCHED),
        };
        assert!(is_right, "row {to}");
    }
}

impl Owner {
    fn new(user: &mut RawClient, number: u64) -> Owner {
        let engine = engine();
        let mut client = RawClient::attach(engine.connect().unwrap(), 4, 4, 0);
        let mut random = Random(number);
        let contents: Vec<u8> = (0..BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect();
        let (table_memory, table) = client.memory(BYTES, Rights::READ_WRITE);
        let (sink_memory, sink) = client.memory(BYTES, Rights::READ_WRITE);
        table_memory.write_at(0, &contents).unwrap();
        let peer = user.ask(Kind::CONNECT, &[], &engine.endpoint().unwrap().to_string(), &[]).args[0];
        let [table, sink] = [("table", table), ("sink", sink)].map(|(name, handle)| {
            client.ask(Kind::EXPORT, &[handle.into(), Rights::READ_WRITE.bits()], name, &[]);
            let opened = user.ask(Kind::OPEN, &[Rights::READ_WRITE.bits(), peer], name, &[]);
            assert_eq!(opened.status, Status::OK, "{}", opened.name());
            opened.args[0] as u32
        });
        Owner { table, sink, contents, sink_memory, _client: client, _engine: engine }
    }
}

/// A success of so many descriptors, that says how many bytes there were.
#[track_caller]
fn assert_done(spans: &[Span], descriptors: usize, bytes: u64) {
    assert!(spans.iter().all(|span| span.status().is_ok()), "{spans:?}");
    assert_eq!(spans.iter().map(|span| u64::from(span.count)).sum::<u64>(), descriptors as u64, "{spans:?}");
    assert_eq!(spans.iter().map(|span| span.bytes).sum::<u64>(), bytes, "{spans:?}");
}

fn begin(fragments: u32, bytes: u64, deadline_ns: u64) -> Descriptor {
    let opcode = Opcode::BEGIN.0;
    Descriptor { opcode, count: fragments, src_offset: bytes, dst_offset: deadline_ns, ..Descriptor::ZERO }
}

const NOP: Descriptor = Descriptor { opcode: Opcode::NOP.0, ..Descriptor::ZERO };

#[test]
fn rows_that_come_slowly_are_moved_before_their_batch_is_complete_or_with_its_end() {
    let mut scene = Scene::new(1);
    let mut random = Random(3);
    for round in 0..20 {
        scene.clear();
        let rows = 1 + random.below(60);
        let from: Vec<u64> = (0..rows).map(|_| random.below(ROWS)).collect();
        for to in 0..rows {
            scene.push(&scene.row(0, from[to as usize], to));
            if random.one_in(3) {
                scene.client.publish();
            }
            if random.one_in(5) {
                // Longer than an open part waits for more.
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        scene.client.publish();
        if round % 2 == 0 {
            // They are decided on and on their way although the batch may go on.
            std::thread::sleep(Duration::from_millis(1));
        }
        let spans = scene.run(&[NOP]);
        assert_done(&spans, rows as usize + 1, rows * u64::from(ROW));
        (0..rows).for_each(|to| scene.assert_row(to, Some((0, from[to as usize]))));
        scene.assert_row(rows, None);
    }
}

#[test]
fn a_batch_may_say_whatever_it_likes_of_how_much_will_come() {
    let mut scene = Scene::new(1);
    for (fragments, bytes) in
        [(1, 1), (100, 100 * u64::from(ROW)), (u32::MAX, u64::MAX), (0, u64::MAX / 2), (1000, 0), (0, 4 << 30)]
    {
        for rows in [1, 100, 900] {
            scene.clear();
            let mut batch = vec![begin(fragments, bytes, 0)];
            batch.extend((0..rows).map(|to| scene.row(0, (to * 997) % ROWS, to)));
            let spans = scene.run(&batch);
            assert_done(&spans, batch.len(), rows * u64::from(ROW));
            (0..rows).for_each(|to| scene.assert_row(to, Some((0, (to * 997) % ROWS))));
        }
    }
}

#[test]
fn a_batch_may_use_more_memories_of_this_side_than_one_part_takes() {
    let mut scene = Scene::new(1);
    let memories: Vec<(Region, u32)> = (0..40).map(|_| scene.client.memory(8192, Rights::READ_WRITE)).collect();
    for used in [16, 17, 33, 40] {
        let mut batch = Vec::new();
        // Three times around, so that parts are met again that have been completed.
        for (to, (_, handle)) in (0..3).flat_map(|turn| memories[..used].iter().map(move |memory| (turn, memory))) {
            let offset = to * u64::from(ROW);
            let from = batch.len() as u64;
            batch.push(Descriptor { dst_region: *handle, dst_offset: offset, ..scene.row(0, from, 0) });
        }
        let spans = scene.run(&batch);
        assert_done(&spans, batch.len(), batch.len() as u64 * u64::from(ROW));
        for (from, d) in batch.iter().enumerate() {
            let (memory, _) = memories.iter().find(|(_, handle)| *handle == d.dst_region).unwrap();
            let mut got = vec![0; ROW as usize];
            memory.read_at(d.dst_offset, &mut got).unwrap();
            assert!(got == scene.owners[0].contents[from * ROW as usize..][..ROW as usize], "row {from} of {used}");
        }
    }
}

#[test]
fn a_batch_may_have_sides_at_more_owners_than_may_be_open_at_once() {
    const OWNERS: usize = 6;
    let mut scene = Scene::new(OWNERS as u64);
    let mut random = Random(5);
    for used in [4, 5, OWNERS] {
        scene.clear();
        let mut batch = Vec::new();
        let from: Vec<(usize, u64)> = (0..300).map(|to| (to % used, random.below(ROWS))).collect();
        for (to, (owner, row)) in from.iter().enumerate() {
            batch.push(scene.row(*owner, *row, to as u64));
            if to % 7 == 0 {
                // To another one, from memory that the batch does not change.
                let (row, at) = (u64::from(ROW), to as u64 + 500);
                let (dst_region, dst_offset) = (scene.owners[(owner + 1) % used].sink, at * row);
                let (src_region, src_offset) = (scene.near_handle, at * row);
                let opcode = Opcode::WRITE.0;
                let range = Descriptor { opcode, src_region, src_offset, dst_region, dst_offset, ..batch[0] };
                batch.push(range);
            }
        }
        let spans = scene.run(&batch);
        assert_done(&spans, batch.len(), batch.len() as u64 * u64::from(ROW));
        from.iter().zip(0..).for_each(|(from, to)| scene.assert_row(to, Some(*from)));
        for (to, (owner, _)) in from.iter().enumerate().step_by(7) {
            let mut got = vec![0; ROW as usize];
            let sink = &scene.owners[(owner + 1) % used].sink_memory;
            sink.read_at((to as u64 + 500) * u64::from(ROW), &mut got).unwrap();
            assert!(got.iter().all(|byte| *byte == UNTOUCHED), "row {to}");
        }
    }
}

#[test]
fn rows_of_this_engine_and_of_a_peer_in_turns_are_one_batch_however_many_they_are() {
    let mut scene = Scene::new(1);
    let (here, handle) = scene.client.memory(BYTES, Rights::READ_WRITE);
    here.write_at(0, &vec![0x11; BYTES as usize]).unwrap();
    // More than transfers may be in flight; more than the ring takes.
    for rows in [63, 64, 65, 300, 1500] {
        scene.clear();
        let batch: Vec<Descriptor> = (0..rows)
            .map(|to| {
                let there = scene.row(0, ROWS - 1 - to, to);
                if to % 2 == 0 { there } else { Descriptor { src_region: handle, ..there } }
            })
            .collect();
        let spans = scene.run(&batch);
        assert_done(&spans, batch.len(), rows * u64::from(ROW));
        for to in 0..rows {
            if to % 2 == 0 {
                scene.assert_row(to, Some((0, ROWS - 1 - to)));
            } else {
                let mut got = vec![0; ROW as usize];
                scene.near.read_at(to * u64::from(ROW), &mut got).unwrap();
                assert!(got.iter().all(|byte| *byte == 0x11), "row {to}");
            }
        }
    }
}

#[test]
fn each_descriptor_goes_by_the_route_that_it_asks_for() {
    let mut scene = Scene::new(1);
    let mut random = Random(9);
    let mut run = |flags: &mut dyn FnMut(u64) -> u16, rows: u64| {
        scene.clear();
        let from: Vec<u64> = (0..rows).map(|_| random.below(ROWS)).collect();
        let forced = |to: u64, flags: u16| Descriptor { flags, ..scene.row(0, from[to as usize], to) };
        let batch: Vec<Descriptor> = (0..rows).map(|to| forced(to, flags(to))).collect();
        let spans = scene.run(&batch);
        assert_done(&spans, batch.len(), rows * u64::from(ROW));
        (0..rows).for_each(|to| scene.assert_row(to, Some((0, from[to as usize]))));
        let routes: Vec<Route> = spans.iter().filter(|span| span.bytes > 0).map(|span| Route(span.route)).collect();
        routes
    };
    for rows in [1, 2, 100, 700] {
        let only = |routes: &[Route], route| routes.iter().all(|found| *found == route);
        assert!(only(&run(&mut |_| Flags::DIRECT, rows), Route::DIRECT), "{rows} rows");
        assert!(only(&run(&mut |_| Flags::GATHER, rows), Route::GATHER), "{rows} rows");
    }
    let both = run(&mut |to| if to % 2 == 0 { Flags::DIRECT } else { Flags::GATHER }, 200);
    assert!(
        both.contains(&Route::HYBRID) || both.contains(&Route::DIRECT) && both.contains(&Route::GATHER),
        "{both:?}"
    );
    run(&mut |to| [0, Flags::DIRECT, Flags::GATHER][(to / 10 % 3) as usize], 600);
}

#[test]
fn a_deadline_in_the_middle_of_a_batch_that_comes_slowly_ends_it_and_nothing_of_it_is_begun_later() {
    let mut scene = Scene::new(1);
    for rows in [1, 40] {
        scene.clear();
        scene.push(&begin(0, 0, 3_000_000));
        (0..rows).for_each(|to| scene.push(&scene.row(0, to, to)));
        scene.client.publish();
        // No LAST has come: time alone ends it. What was done by then may be all that came; then the rest says how it ended.
        let mut spans = vec![scene.client.wait()];
        (100..100 + rows).for_each(|to| scene.push(&scene.row(0, to, to)));
        scene.push(&Descriptor { flags: Flags::LAST, ..NOP });
        scene.client.publish();
        let has = |spans: &[Span], flag: u16| spans.iter().any(|span| span.flags & flag != 0);
        while !has(&spans, SpanFlags::BATCH_DONE) || has(&spans, SpanFlags::HELD) && !has(&spans, SpanFlags::RELEASED) {
            spans.push(scene.client.wait());
        }
        assert!(spans.iter().any(|span| span.status() == Status::TIMED_OUT), "{spans:?}");
        let outcomes = spans.iter().filter(|span| span.flags & SpanFlags::BATCH_DONE != 0).count();
        assert_eq!(outcomes, 1, "{spans:?}");
        assert_eq!(spans.iter().map(|span| u64::from(span.count)).sum::<u64>(), 2 * rows + 2, "{spans:?}");
        // What came behind its end was not looked at, and the next batch is as any.
        let spans = scene.run(&[scene.row(0, 7, 500)]);
        assert_done(&spans, 1, ROW.into());
        scene.assert_row(500, Some((0, 7)));
        (100..100 + rows).for_each(|to| scene.assert_row(to, None));
    }
}

#[test]
fn a_remote_descriptor_at_a_fence_that_is_a_batch_of_its_own_waits_for_what_is_before_it() {
    let mut scene = Scene::new(2);
    for round in 0..30 {
        scene.clear();
        let (row, rows) = (u64::from(ROW), 1 + round * 40);
        // Into this side's memory from one owner; and from there, behind a fence, to the other.
        (0..rows).for_each(|to| {
            let last = if to + 1 == rows { Flags::LAST } else { 0 };
            scene.push(&Descriptor { flags: last, ..scene.row(0, rows - 1 - to, to) });
        });
        let (opcode, flags) = (Opcode::WRITE.0, Flags::FENCE | Flags::LAST);
        let all = range((scene.near_handle, 0), (scene.owners[1].sink, 0), (rows * row) as u32);
        scene.push(&Descriptor { opcode, flags, ..all });
        // And back, behind the next one.
        let back = range((scene.owners[1].sink, 0), (scene.near_handle, 0), (rows * row) as u32);
        scene.push(&Descriptor { flags, ..back });
        scene.client.publish();
        assert_done(&scene.spans(), rows as usize, rows * row);
        assert_done(&scene.spans(), 1, rows * row);
        assert_done(&scene.spans(), 1, rows * row);
        let mut got = vec![0; (rows * row) as usize];
        scene.owners[1].sink_memory.read_at(0, &mut got).unwrap();
        for to in 0..rows {
            let from = (rows - 1 - to) * row;
            let is_right =
                got[(to * row) as usize..][..ROW as usize] == scene.owners[0].contents[from as usize..][..ROW as usize];
            assert!(is_right, "row {to} of {rows}");
            scene.assert_row(to, Some((0, rows - 1 - to)));
        }
    }
}

#[test]
fn a_batch_that_fails_before_its_end_says_so_when_what_is_before_has_its_end() {
    let mut scene = Scene::new(2);
    let (index, index_region) = scene.client.memory(4096, Rights::READ);
    index.write_at(0, &(ROWS as u32).to_le_bytes()).unwrap();
    let index_kind = IndexKind::pack(IndexKind::U32, IndexKind::None);
    let any = scene.row(1, 0, 0);
    // Found when it is taken; and when it is planned, in another part than what is before.
    let unknown = Descriptor { dst_region: u32::MAX, ..any };
    let outside = Descriptor { index_kind, index_region, src_stride: ROW, ..any };
    for (wrong, status) in [(unknown, Status::UNKNOWN_REGION), (outside, Status::OUT_OF_RANGE)] {
        for rows in [1, 100] {
            scene.clear();
            (0..rows).for_each(|to| scene.push(&scene.row(0, to, to)));
            scene.push(&wrong);
            scene.client.publish();
            // LAST comes when the client has heard of it.
            let mut spans = vec![scene.client.wait()];
            while spans.iter().all(|span| span.status().is_ok()) {
                spans.push(scene.client.wait());
            }
            assert_eq!(spans.last().unwrap().status(), status, "{spans:?}");
            assert_eq!((spans[0].count, spans[0].bytes), (rows as u32, rows * u64::from(ROW)), "{spans:?}");
            (0..rows).for_each(|to| scene.assert_row(to, Some((0, to))));
            let rest = scene.run(&[scene.row(0, 0, 500)]);
            assert_eq!(rest.iter().map(|span| span.status()).collect::<Vec<_>>(), [Status::NOT_DONE], "{rest:?}");
            scene.assert_row(500, None);
        }
    }
}
