//! NOTIFY: after a batch's data is in place, and never otherwise, somebody is told, once.

mod support;

use ring_abi::Stage as AbiStage;
use ring_abi::{Descriptor, Field, Flags, Kind, NOTIFY_BYTES_MAX, Opcode, Span, SpanFlags, Status};
use scatter_ring::client::{Client, ClientError, PushError, Region, Setup};
use scatter_ring::engine::{Config, Engine, Limits, PeerSettings, RunningEngine};
use scatter_ring::region::{self, Rights, SharedPages};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::hostile::{NOP, eventually, range};
use support::{RawClient, not_run};

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));
const SLOT_BYTES: usize = NOTIFY_BYTES_MAX as usize;

fn engine() -> RunningEngine {
    Engine::new(&Config { workers: 1, ..Config::default() }).unwrap().start().unwrap()
}

/// Two engines that know each other: the second has the receivers.
fn engines() -> (RunningEngine, RunningEngine) {
    let start = |listen: &[&str]| {
        let listen = listen.iter().map(|address| address.parse().unwrap()).collect();
        let peers = PeerSettings { listen, lanes: 2, slots: 4, owner_slots: 4, ..PeerSettings::default() };
        Engine::new(&Config { workers: 1, peers: Some(peers), ..Config::default() }).unwrap().start().unwrap()
    };
    (start(&[]), start(&["127.0.0.1:0"]))
}

fn client(engine: &RunningEngine) -> Client {
    Client::over(engine.connect().unwrap(), &Setup::default()).unwrap()
}

fn receiver(engine: &RunningEngine, cq_capacity: u32) -> Client {
    let setup = Setup { notifications: true, cq_capacity, spin: Duration::ZERO, ..Setup::default() };
    Client::over(engine.connect().unwrap(), &setup).unwrap()
}

/// The exported region as another client has it, of the same engine or of one that is connected to it.
fn opened(client: &mut Client, owner: &RunningEngine, name: &str) -> Region {
    match owner.endpoint() {
        None => client.open(name, Rights::READ_WRITE).unwrap(),
        Some(endpoint) => {
            let peer = client.connect(&endpoint.to_string()).unwrap();
            client.open_at(peer, name, Rights::READ_WRITE).unwrap()
        }
    }
}

const PIECE: u64 = 256;

/// The data of a batch, which no other batch has.
fn piece(number: u64) -> Vec<u8> {
    (0..PIECE).map(|i| (number * 31 + i * 7 + 1) as u8).collect()
}

fn data_is_there_when_it_is_told(sender: &RunningEngine, owner: &RunningEngine, count: u64) {
    let mut told = receiver(owner, 64);
    let inbox = told.allocate(count * PIECE).unwrap();
    told.export(&inbox, "inbox", Rights::READ_WRITE).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut client = client(sender);
            let inbox = opened(&mut client, owner, "inbox");
            let from = client.allocate(count * PIECE).unwrap();
            let numbers = client.allocate(count * 8).unwrap();
            for number in 0..count {
                from.write_at(number * PIECE, &piece(number)).unwrap();
                numbers.write_at(number * 8, &number.to_le_bytes()).unwrap();
            }
            let mut tickets = std::collections::VecDeque::new();
            for number in 0..count {
                // The fence keeps them in order; without it batches may end in any. With a deadline a failing test ends too.
                let mut batch = client.batch().fence().deadline(LIMIT.unwrap());
                batch.write(&from, number * PIECE, &inbox, number * PIECE, PIECE / 2).unwrap();
                let half = number * PIECE + PIECE / 2;
                batch.write(&from, half, &inbox, half, PIECE / 2).unwrap();
                batch.user_data(number);
                tickets.push_back(batch.notify(&inbox, number * PIECE, Some((&numbers, number * 8, 8))).unwrap());
                if tickets.len() == 32 {
                    client.wait(&tickets.pop_front().unwrap()).unwrap();
                }
            }
            for ticket in tickets {
                assert_eq!(client.wait(&ticket).unwrap().bytes, PIECE);
            }
        });
        for number in 0..count {
            let told = told.wait_notification(LIMIT).unwrap().expect("it comes in time");
            assert_eq!((told.user_data, told.offset), (number, number * PIECE));
            assert_eq!(told.payload, number.to_le_bytes());
            let mut bytes = vec![0; PIECE as usize];
            inbox.read_at(number * PIECE, &mut bytes).unwrap();
            assert!(bytes == piece(number), "told of {number} before its data was there");
        }
    });
    assert!(told.next_notification().unwrap().is_none(), "somebody is told twice");
    assert_eq!(owner.counters().notifications, count);
}

#[test]
fn data_is_in_place_when_its_client_is_told_and_they_come_in_order() {
    let engine = engine();
    data_is_there_when_it_is_told(&engine, &engine, 1000);
}

#[test]
fn data_is_in_place_when_a_client_of_another_engine_is_told() {
    let (here, there) = engines();
    data_is_there_when_it_is_told(&here, &there, 1000);
}

fn payloads_and_numbers_come_as_they_were(sender: &RunningEngine, owner: &RunningEngine) {
    let mut told = receiver(owner, 16);
    let inbox = told.allocate(64).unwrap();
    told.export(&inbox, "inbox", Rights::READ_WRITE).unwrap();
    let mut client = client(sender);
    let inbox = opened(&mut client, owner, "inbox");
    let bytes: Vec<u8> = (0..8192u32).map(|i| (i % 251) as u8).collect();
    let from = client.allocate(8192).unwrap();
    from.write_at(0, &bytes).unwrap();
    // More than the ring has places, so that each slot is used again.
    for (turn, len) in [0, 1, 7, 8, 4095, 4096].into_iter().cycle().take(100).enumerate() {
        let at = if len == 4096 { 4096 } else { turn };
        let (offset, user_data) = (u64::MAX - turn as u64, turn as u64 * 0x0101_0101_0101_0101);
        let mut batch = client.batch();
        batch.user_data(user_data);
        let ticket = batch.notify(&inbox, offset, Some((&from, at as u64, len))).unwrap();
        let outcome = client.wait(&ticket).unwrap();
        assert_eq!((outcome.bytes, outcome.user_data, outcome.reusable), (0, user_data, true));
        let told = told.wait_notification(LIMIT).unwrap().unwrap();
        assert_eq!((told.offset, told.user_data), (offset, user_data));
        assert!(told.payload == &bytes[at..at + len as usize], "{len} bytes at {at}");
    }
    let ticket = client.batch().notify(&inbox, 5, None).unwrap();
    client.wait(&ticket).unwrap();
    assert_eq!(told.wait_notification(LIMIT).unwrap().unwrap().payload, b"");
    let ticket = client.batch().notify(&inbox, 0, Some((&from, 0, NOTIFY_BYTES_MAX + 1))).unwrap();
    let error = client.wait(&ticket).unwrap_err();
    assert_eq!((error.status, error.field, error.detail), (Status::INVALID_FIELD, Field::LEN, 4097));
    assert!(told.next_notification().unwrap().is_none());
}

#[test]
fn payloads_of_all_lengths_come_as_they_were() {
    let engine = engine();
    payloads_and_numbers_come_as_they_were(&engine, &engine);
}

#[test]
fn payloads_of_all_lengths_come_to_another_engine_as_they_were() {
    let (here, there) = engines();
    payloads_and_numbers_come_as_they_were(&here, &there);
}

#[test]
fn the_payload_is_what_the_batch_itself_has_brought() {
    let engine = engine();
    let mut told = receiver(&engine, 16);
    let (table, here) = (told.allocate(8 << 20).unwrap(), told.allocate(8 << 20).unwrap());
    for turn in 1..20u8 {
        table.write_at((8 << 20) - 1, &[turn]).unwrap();
        let mut batch = told.batch();
        // Long enough for a worker.
        batch.read(&table, 0, &here, 0, 8 << 20).unwrap();
        let ticket = batch.notify(&table, 0, Some((&here, (8 << 20) - 1, 1))).unwrap();
        told.wait(&ticket).unwrap();
        assert_eq!(told.next_notification().unwrap().unwrap().payload, [turn], "told itself before its data was there");
    }
}

#[test]
fn a_batch_that_fails_or_is_ended_tells_nobody() {
    let engine = engine();
    let mut told = receiver(&engine, 16);
    let inbox = told.allocate(1 << 20).unwrap();
    told.export(&inbox, "inbox", Rights::READ).unwrap();
    let mut client = client(&engine);
    // For reading only: telling needs no right to write.
    let inbox = client.open("inbox", Rights::READ).unwrap();
    let (from, to) = (client.allocate(64 << 20).unwrap(), client.allocate(64 << 20).unwrap());
    let mut statuses = Vec::new();
    for what in 0..3 {
        for _ in 0..20 {
            let mut batch = client.batch();
            if what == 1 {
                batch = batch.deadline(Duration::from_micros(50));
            }
            batch.read(&from, 0, &to, 0, if what == 0 { 1 << 20 } else { 64 << 20 }).unwrap();
            if what == 0 {
                batch.read(&from, 64 << 20, &to, 0, 1).unwrap();
            }
            batch.user_data(what);
            let ticket = batch.notify(&inbox, 0, None).unwrap();
            if what == 2 {
                client.cancel(&ticket).unwrap();
            }
            let status = client.wait(&ticket).map_or_else(|error| error.status, |outcome| outcome.status);
            statuses.push(status);
            assert!(client.wait_released(&ticket, LIMIT).unwrap());
            let came = told.next_notification().unwrap().map(|told| told.user_data);
            assert_eq!(came.is_some(), status.is_ok(), "{status}");
        }
    }
    assert!(statuses[..20].iter().all(|status| *status == Status::OUT_OF_RANGE));
    for wanted in [Status::TIMED_OUT, Status::CANCELLED] {
        if !statuses.contains(&wanted) {
            not_run(&format!("no batch was {wanted} in time"));
        }
    }
    let last = client.batch().notify(&inbox, 7, None).unwrap();
    client.wait(&last).unwrap();
    assert_eq!(told.next_notification().unwrap().unwrap().offset, 7);
}

// By hand, turn by turn.

/// An engine that is driven by the test, and clients that do what they are told.
struct Stage {
    engine: Engine,
}

impl Stage {
    fn new() -> Stage {
        Stage { engine: Engine::new(&Config { workers: 0, ..Config::default() }).unwrap() }
    }

    fn client(&self, cq_capacity: u32) -> RawClient {
        RawClient::attach(self.engine.connect().unwrap(), 64, cq_capacity, u64::MAX - 5)
    }

    /// With a notification buffer, and a region that is exported by this name.
    fn receiver(&self, cq_capacity: u32, name: &str) -> (RawClient, u32, Arc<SharedPages>) {
        let mut client = self.client(cq_capacity);
        let buffer = buffer(&mut client, cq_capacity).1;
        let (_, handle) = client.memory(64, Rights::READ_WRITE);
        assert_eq!(client.ask(Kind::EXPORT, &[handle.into(), 3], name, &[]).status, Status::OK);
        (client, handle, buffer)
    }

    /// The answer to a question that may need the poller.
    fn answer(&mut self, client: &RawClient) -> Status {
        let mut answer = None;
        eventually("it is answered", || {
            self.engine.poll_once();
            answer = client.socket.receive(false).unwrap();
            answer.is_some()
        });
        answer.unwrap().message.status
    }

    fn turns(&mut self) {
        (0..8).for_each(|_| _ = self.engine.poll_once());
    }
}

/// Asks for the notification buffer.
fn buffer(client: &mut RawClient, cq_capacity: u32) -> (OwnedFd, Arc<SharedPages>) {
    client.send(Kind::NOTIFICATIONS, &[], "", &[]);
    let received = client.socket.receive(true).unwrap().unwrap();
    assert_eq!(received.message.status, Status::OK, "{}", received.message.name());
    assert_eq!(received.message.args[..3], [cq_capacity.into(), 4096, 0]);
    let [file] = <[OwnedFd; 1]>::try_from(received.fds).unwrap();
    let pages = SharedPages::map(&file, cq_capacity as usize * SLOT_BYTES, false).unwrap();
    (file, pages)
}

fn open(client: &mut RawClient, name: &str) -> u32 {
    let answer = client.ask(Kind::OPEN, &[Rights::READ.bits()], name, &[]);
    assert_eq!(answer.status, Status::OK, "{}", answer.name());
    answer.args[0] as u32
}

fn notify(region: u32, user_data: u64) -> Descriptor {
    let (opcode, flags) = (Opcode::NOTIFY.0, Flags::LAST);
    Descriptor { opcode, flags, dst_region: region, dst_offset: user_data + 1, user_data, ..Descriptor::ZERO }
}

fn deadline(ns: u64) -> Descriptor {
    Descriptor { opcode: Opcode::BEGIN.0, dst_offset: ns, ..Descriptor::ZERO }
}

/// All spans that are there.
fn reap(client: &mut RawClient) -> Vec<Span> {
    std::iter::from_fn(|| client.reap()).collect()
}

fn event(user_data: u64) -> Span {
    Span { first: user_data + 1, user_data, flags: SpanFlags::EVENT, ..Span::ZERO }
}

fn statuses(spans: &[Span]) -> Vec<(u64, Status, u16)> {
    spans.iter().map(|span| (span.user_data, span.status(), span.flags)).collect()
}

const DONE: u16 = SpanFlags::BATCH_DONE;

#[test]
fn who_does_not_reap_makes_those_wait_who_tell_him_and_nobody_else() {
    let mut stage = Stage::new();
    let (mut stalled, _, _) = stage.receiver(8, "stalled");
    let (mut other, _, _) = stage.receiver(8, "other");
    let mut client = stage.client(256);
    let (to_stalled, to_other) = (open(&mut client, "stalled"), open(&mut client, "other"));
    for number in 0..12 {
        client.submit(&notify(to_stalled, number));
    }
    for number in 100..105 {
        client.submit(&notify(to_other, number));
    }
    client.submit(&NOP);
    stage.turns();
    let done: Vec<u64> = reap(&mut client).iter().map(|span| span.user_data).collect();
    let expected: Vec<u64> = (0..8).chain(100..105).chain([0]).collect();
    assert_eq!(sorted(done), sorted(expected));
    assert_eq!(reap(&mut other), (100..105).map(event).collect::<Vec<_>>());
    // Each place that is freed takes one, and those that wait keep their order.
    assert_eq!(stalled.reap(), Some(event(0)));
    stage.turns();
    assert_eq!(statuses(&reap(&mut client)), [(8, Status::OK, DONE)]);
    assert_eq!(reap(&mut stalled), (1..9).map(event).collect::<Vec<_>>());
    stage.turns();
    assert_eq!(reap(&mut stalled), (9..12).map(event).collect::<Vec<_>>());
    assert_eq!(reap(&mut client).len(), 3);
    // And he is served himself, while he is told of much.
    for number in 0..100 {
        client.submit(&notify(to_stalled, number));
        stalled.submit(&Descriptor { user_data: 1000 + number, ..NOP });
        stage.turns();
        reap(&mut client);
        let spans = reap(&mut stalled);
        assert!(spans.iter().any(|span| span.user_data == 1000 + number), "{spans:?}");
    }
}

fn sorted(mut numbers: Vec<u64>) -> Vec<u64> {
    numbers.sort_unstable();
    numbers
}

#[test]
fn a_notify_that_waits_ends_with_its_batch_and_holds_nothing() {
    let mut stage = Stage::new();
    let (mut stalled, _, _) = stage.receiver(4, "stalled");
    let mut client = stage.client(64);
    let region = open(&mut client, "stalled");
    (0..4).for_each(|number| client.submit(&notify(region, number)));
    stage.turns();
    assert_eq!(reap(&mut client).len(), 4);
    let first = client.areas.sq.position();
    client.submit(&notify(region, 4));
    assert!(client.try_push(&deadline(1_000_000).to_entry()));
    client.submit(&notify(region, 5));
    client.submit(&notify(region, 6));
    stage.turns();
    client.send(Kind::CANCEL, &[first], "", &[]);
    let start = Instant::now();
    let mut spans = Vec::new();
    while spans.len() < 3 {
        stage.engine.poll_once();
        spans.extend(reap(&mut client));
        assert!(start.elapsed() < LIMIT.unwrap(), "{spans:?}");
    }
    assert_eq!(client.answer().status, Status::OK);
    let ended = |number, status| spans.iter().any(|s| statuses(&[*s]) == [(number, status, DONE)]);
    assert!(ended(4, Status::CANCELLED) && ended(5, Status::TIMED_OUT), "{spans:?}");
    assert!(spans.iter().all(|span| !span.is_held()), "{spans:?}");
    // The third waits on, and those that have ended do not come.
    assert_eq!(reap(&mut stalled), (0..4).map(event).collect::<Vec<_>>());
    stage.turns();
    assert_eq!(reap(&mut stalled), [event(6)]);
    assert_eq!(statuses(&reap(&mut client)), [(6, Status::OK, DONE)]);
}

#[test]
fn a_fence_waits_for_a_notify_that_waits() {
    let mut stage = Stage::new();
    let (mut stalled, _, _) = stage.receiver(4, "stalled");
    let mut client = stage.client(64);
    let region = open(&mut client, "stalled");
    (0..5).for_each(|number| client.submit(&notify(region, number)));
    client.submit(&Descriptor { flags: Flags::LAST | Flags::FENCE, ..notify(region, 5) });
    client.submit(&NOP);
    stage.turns();
    assert_eq!(reap(&mut client).len(), 4);
    reap(&mut stalled);
    stage.turns();
    // What is behind the fence begins when it is passed, and may end first.
    let spans = reap(&mut client);
    assert_eq!(spans.len(), 3);
    let at = |number| spans.iter().position(|span| span.user_data == number).unwrap();
    assert!(at(4) < at(5) && at(4) < at(0));
    assert_eq!(reap(&mut stalled), [event(4), event(5)]);
}

#[test]
fn who_cannot_be_told_makes_the_notify_fail() {
    let mut stage = Stage::new();
    let (stalled, handle, _) = stage.receiver(4, "stalled");
    let (mut deaf, mut client) = (stage.client(4), stage.client(64));
    let (_, own) = deaf.memory(64, Rights::READ);
    assert_eq!(deaf.ask(Kind::EXPORT, &[own.into(), 1], "deaf", &[]).status, Status::OK);
    let (to_stalled, to_deaf) = (open(&mut client, "stalled"), open(&mut client, "deaf"));
    let refused = |client: &mut RawClient, number, handle: u32, status| {
        let spans = reap(client);
        assert_eq!(statuses(&spans), [(number, status, DONE)]);
        assert_eq!((spans[0].field(), spans[0].detail()), (Field::DST_REGION, handle.into()));
        AbiStage(spans[0].stage)
    };
    client.submit(&notify(to_deaf, 0));
    stage.turns();
    assert_eq!(refused(&mut client, 0, to_deaf, Status::NOT_ALLOWED), AbiStage::COMMAND);
    // He dies while four are before him and one waits; and when he is gone.
    (0..5).for_each(|number| client.submit(&notify(to_stalled, number)));
    stage.turns();
    assert_eq!(reap(&mut client).len(), 4);
    drop((stalled, handle));
    let start = Instant::now();
    let spans = loop {
        stage.engine.poll_once();
        let spans = reap(&mut client);
        if !spans.is_empty() {
            break spans;
        }
        assert!(start.elapsed() < LIMIT.unwrap(), "it waits for one who is gone");
    };
    assert_eq!(statuses(&spans), [(4, Status::REGION_GONE, DONE)]);
    client.submit(&notify(to_stalled, 5));
    eventually("the region is gone", || {
        stage.engine.poll_once();
        !reap(&mut client).is_empty()
    });
}

#[test]
fn nobody_can_be_told_of_memory_that_is_the_engines_own() {
    let engine = engine();
    let memory = support::hostile::Guarded::new(1);
    // SAFETY: the memory outlives the engine's use of it, and there are no references to it.
    let adopted = unsafe { engine.adopt("own", memory.base(), 4096, Rights::READ_WRITE) }.unwrap();
    let mut client = client(&engine);
    let own = client.open("own", Rights::READ).unwrap();
    let ticket = client.batch().notify(&own, 0, None).unwrap();
    let error = client.wait(&ticket).unwrap_err();
    assert_eq!((error.status, error.field, error.stage), (Status::UNSUPPORTED, Field::DST_REGION, AbiStage::PLAN));
    adopted.close();
}

#[test]
fn regions_can_be_closed_while_a_notify_that_names_them_waits() {
    let mut stage = Stage::new();
    let (mut stalled, handle, _) = stage.receiver(4, "stalled");
    let mut client = stage.client(64);
    let region = open(&mut client, "stalled");
    let (_, payload) = client.memory(64, Rights::READ);
    (0..4).for_each(|number| client.submit(&notify(region, number)));
    client.submit(&Descriptor { len: 8, src_region: payload, ..notify(region, 4) });
    client.submit(&notify(region, 5));
    stage.turns();
    assert_eq!(reap(&mut client).len(), 4);
    // The payload by its own client, and what is told of by its exporter.
    client.send(Kind::CLOSE, &[payload.into()], "", &[]);
    assert_eq!(stage.answer(&client), Status::OK);
    stage.turns();
    let spans = reap(&mut client);
    assert_eq!((spans.len(), spans[0].user_data, spans[0].field()), (1, 4, Field::SRC_REGION));
    assert_eq!(AbiStage(spans[0].stage), AbiStage::PLAN);
    assert!(is_closed(spans[0].status()));
    stalled.send(Kind::CLOSE, &[handle.into()], "", &[]);
    assert_eq!(stage.answer(&stalled), Status::OK);
    stage.turns();
    assert_eq!(statuses(&reap(&mut client)), [(5, Status::REGION_GONE, DONE)]);
}

/// Said of a handle that was closed; the other one while that goes on.
fn is_closed(status: Status) -> bool {
    status == Status::UNKNOWN_REGION || status == Status::REGION_GONE
}

#[test]
fn a_payload_is_at_the_start_of_the_slot_of_its_spans_position() {
    let mut stage = Stage::new();
    let (mut told, _, pages) = stage.receiver(4, "told");
    let mut client = stage.client(64);
    let region = open(&mut client, "told");
    let (memory, payload) = client.memory(4096, Rights::READ);
    for number in 0..20u64 {
        memory.write_at(0, &[number as u8; 4096]).unwrap();
        let len = 1 + number as u32 * 200;
        client.submit(&Descriptor { len, src_region: payload, src_offset: 1, ..notify(region, number) });
        // A span of a batch of his own in between: its slot stays as it is.
        told.submit(&NOP);
        stage.turns();
        let mut events = 0;
        loop {
            let position = told.areas.cq.position();
            let Some(entry) = told.areas.cq.pop().unwrap() else { break };
            let span = Span::from_entry(&entry);
            if span.flags == SpanFlags::EVENT {
                events += 1;
                let mut bytes = vec![0; SLOT_BYTES];
                pages.read_bytes((position & 3) as usize * SLOT_BYTES, &mut bytes);
                assert_eq!(span, Span { bytes: len.into(), ..event(number) });
                assert!(bytes[..len as usize].iter().all(|byte| *byte == number as u8), "{number}");
            }
            told.areas.cq.release();
        }
        assert_eq!(events, 1);
        reap(&mut client);
    }
}

// The notification buffer.

#[test]
fn a_client_cannot_get_write_access_to_its_notification_buffer() {
    let stage = Stage::new();
    let mut client = stage.client(8);
    let (file, _) = buffer(&mut client, 8);
    let bytes = 8 * SLOT_BYTES;
    assert!(SharedPages::map(&file, bytes, true).is_err(), "mapped for writing");
    assert!(rustix::io::pwrite(&file, &[1], 0).is_err(), "written through the file");
    assert!(rustix::fs::ftruncate(&file, 0).is_err(), "shrunk");
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    assert!(rustix::fs::fallocate(&file, punch, 0, 4096).is_err(), "punched");
    assert!(rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::empty()).is_err(), "sealed anew");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    if let Ok(again) = std::fs::OpenOptions::new().read(true).write(true).open(path) {
        assert!(SharedPages::map(&again, bytes, true).is_err(), "mapped for writing through a new open");
        assert!(rustix::io::pwrite(&again, &[1], 0).is_err(), "written through a new open");
    }
    // SAFETY: a fresh read-only mapping of ours, of which only the protection is changed; nothing is accessed.
    let upgraded = unsafe {
        let map = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(map, libc::MAP_FAILED);
        libc::mprotect(map, bytes, libc::PROT_READ | libc::PROT_WRITE)
    };
    assert_ne!(upgraded, 0, "made writable");
    // Nor can it be a region to write to.
    let answer = client.ask(Kind::REGISTER, &[4096, Rights::READ_WRITE.bits()], "", &[file.as_fd()]);
    assert_ne!(answer.status, Status::OK);
}

#[test]
fn a_notification_buffer_is_asked_for_once_within_limits_and_not_by_owners() {
    let limits = Limits { region_bytes: 8 * 4096, ..Limits::default() };
    let engine = Engine::new(&Config { workers: 0, limits, ..Config::default() }).unwrap();
    let attach = |cq| RawClient::attach(engine.connect().unwrap(), 8, cq, 0);
    let status = |client: &mut RawClient, kind, args: &[u64]| client.ask(kind, args, "", &[]).status;
    assert_eq!(status(&mut attach(16), Kind::NOTIFICATIONS, &[]), Status::LIMIT_EXCEEDED);
    let mut client = attach(8);
    assert_eq!(status(&mut client, Kind::NOTIFICATIONS, &[1]), Status::INVALID_SETTING);
    buffer(&mut client, 8);
    let (_, file) = region::Region::allocate(64, region::Huge::Never).unwrap();
    assert_eq!(client.ask(Kind::REGISTER, &[64, 1], "", &[file.as_fd()]).status, Status::LIMIT_EXCEEDED);
    client.send(Kind::NOTIFICATIONS, &[], "", &[]);
    let mut engine = engine;
    eventually("who asks twice is shown out", || {
        engine.poll_once();
        client.stopped() == Some(Status::BAD_MESSAGE)
    });

    let stage = Stage::new();
    let mut owner = stage.client(8);
    assert_eq!(status(&mut owner, Kind::STAGE, &[2, 64 << 10]), Status::OK);
    assert_eq!(status(&mut owner, Kind::NOTIFICATIONS, &[]), Status::NOT_ALLOWED);
    let mut client = stage.client(8);
    buffer(&mut client, 8);
    assert_eq!(status(&mut client, Kind::STAGE, &[2, 64 << 10]), Status::NOT_ALLOWED);
}

// The client.

#[test]
fn notifications_that_come_while_a_batch_is_awaited_are_kept() {
    let engine = engine();
    let mut told = receiver(&engine, 8);
    let inbox = told.allocate(64).unwrap();
    told.export(&inbox, "inbox", Rights::READ).unwrap();
    let mut client = client(&engine);
    let inbox = client.open("inbox", Rights::READ).unwrap();
    let mut tell = |number| {
        let ticket = client.batch().notify(&inbox, number, None).unwrap();
        client.wait_timeout(&ticket, Duration::from_millis(if number < 16 { 20_000 } else { 20 })).unwrap().is_some()
    };
    for number in 0..8 {
        assert!(tell(number));
        let ticket = told.batch().submit().unwrap();
        told.wait(&ticket).unwrap();
    }
    assert_eq!(told.reap().unwrap(), None, "a notification is no span");
    assert!(!told.wait_any(Some(Duration::ZERO)).unwrap());
    assert!(!told.arm(), "there is something to take");
    // As many again are kept by the engine, and are in the way of what comes behind them.
    assert!((8..16).all(&mut tell));
    assert!(!tell(16));
    let ticket = told.batch().submit().unwrap();
    let error = told.wait(&ticket).unwrap_err();
    assert_eq!((error.status, error.descriptor), (Status::LIMIT_EXCEEDED, None));
    assert!(matches!(told.reap(), Err(ClientError::NotificationsFull)));
    assert!(matches!(told.wait_any(None).and_then(|_| told.reap()), Err(ClientError::NotificationsFull)));
    for number in 0..17 {
        assert_eq!(told.wait_notification(LIMIT).unwrap().unwrap().offset, number);
    }
    told.wait(&ticket).unwrap();
    assert!(told.next_notification().unwrap().is_none());
}

#[test]
fn a_long_batch_that_notifications_are_in_the_way_of_is_ended_when_they_are_taken() {
    for submits in [false, true] {
        let engine = engine();
        let setup = Setup { notifications: true, sq_capacity: 8, cq_capacity: 4, ..Setup::default() };
        let mut told = Client::over(engine.connect().unwrap(), &setup).unwrap();
        let inbox = told.allocate(64).unwrap();
        told.export(&inbox, "inbox", Rights::READ).unwrap();
        let mut client = client(&engine);
        let opened = client.open("inbox", Rights::READ).unwrap();
        // What the ring holds. The client keeps as many.
        let mut tell = |number| {
            let ticket = client.batch().notify(&opened, number, None).unwrap();
            client.wait(&ticket).unwrap();
        };
        (0..4).for_each(&mut tell);
        let ticket = told.batch().submit().unwrap();
        told.wait(&ticket).unwrap();
        (4..8).for_each(&mut tell);

        let mut batch = told.batch();
        let nop = Descriptor { opcode: Opcode::NOP.0, ..Descriptor::ZERO };
        let error = (0..100).find_map(|_| batch.push(&nop, &[]).err()).expect("no room for a hundred");
        assert_eq!(error.status, Status::LIMIT_EXCEEDED);
        match submits {
            true => assert_eq!(batch.submit().unwrap_err().status, Status::LIMIT_EXCEEDED),
            false => drop(batch),
        }
        // Nothing can be said before the engine has the end of it.
        let mut next = told.batch().hint(1, 1);
        assert_eq!(next.push(&nop, &[]).unwrap_err().status, Status::LIMIT_EXCEEDED);
        assert_eq!(next.submit().unwrap_err().status, Status::LIMIT_EXCEEDED);
        // SAFETY: the descriptor names no memory.
        assert_eq!(unsafe { told.push(&nop) }, Err(PushError::Full));
        for number in 0..8 {
            assert_eq!(told.next_notification().unwrap().unwrap().offset, number);
        }
        let mut batch = told.batch();
        batch.user_data(5);
        (0..100).for_each(|_| batch.push(&Descriptor { user_data: 5, ..nop }, &[]).unwrap());
        let ticket = batch.submit().unwrap();
        assert_eq!(told.wait(&ticket).unwrap().user_data, 5);
    }
}

#[test]
fn one_that_comes_between_two_looks_at_a_full_client_stays_in_the_ring() {
    const COUNT: u64 = 500;
    let engine = engine();
    let mut told = receiver(&engine, 4);
    let inbox = told.allocate(64).unwrap();
    told.export(&inbox, "inbox", Rights::READ).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = client(&engine);
            let inbox = client.open("inbox", Rights::READ).unwrap();
            for number in 0..COUNT {
                let ticket = client.batch().notify(&inbox, number, None).unwrap();
                client.wait(&ticket).unwrap();
            }
        });
        let mut next = 0;
        while next < COUNT {
            let full = match told.reap() {
                Ok(None) => false,
                Err(ClientError::NotificationsFull) => true,
                other => panic!("{other:?} after {next}"),
            };
            // The last ones do not fill it any more.
            if (full || next + 8 >= COUNT)
                && let Some(notification) = told.next_notification().unwrap()
            {
                assert_eq!(notification.offset, next);
                next += 1;
            }
        }
    });
}

#[test]
fn an_engine_that_sleeps_finds_out_when_there_is_room() {
    let engine = engine();
    let mut told = receiver(&engine, 4);
    let inbox = told.allocate(64).unwrap();
    told.export(&inbox, "inbox", Rights::READ).unwrap();
    let mut client = client(&engine);
    let inbox = client.open("inbox", Rights::READ).unwrap();
    for number in 0..4 {
        let ticket = client.batch().notify(&inbox, number, None).unwrap();
        client.wait(&ticket).unwrap();
    }
    // One that waits, and nothing else that would keep the engine awake.
    let _waiting = client.batch().notify(&inbox, 4, None).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    for number in 0..5 {
        // Nothing rings: the engine looks by itself.
        assert_eq!(told.wait_notification(LIMIT).unwrap().expect("it is found").offset, number);
    }
}

#[test]
fn who_sleeps_is_woken_and_who_has_not_asked_is_told_so() {
    let engine = engine();
    let mut told = receiver(&engine, 8);
    let inbox = told.allocate(64).unwrap();
    told.export(&inbox, "inbox", Rights::READ).unwrap();
    let mut client = client(&engine);
    assert!(matches!(client.next_notification(), Err(ClientError::NotificationsOff)));
    let inbox = client.open("inbox", Rights::READ).unwrap();
    let waiting = std::thread::spawn(move || {
        let told = told.wait_notification(None).unwrap().unwrap();
        told.offset
    });
    std::thread::sleep(Duration::from_millis(20));
    let ticket = client.batch().notify(&inbox, 9, None).unwrap();
    client.wait(&ticket).unwrap();
    assert_eq!(waiting.join().unwrap(), 9);
    // The client is gone with its thread: its region is, soon.
    eventually("it is gone", || {
        let ticket = client.batch().notify(&inbox, 9, None).unwrap();
        client.wait(&ticket).is_err_and(|error| error.status == Status::REGION_GONE)
    });
    let mut lonely = receiver(&engine, 4);
    assert!(lonely.wait_notification(Some(Duration::from_millis(1))).unwrap().is_none());
    lonely.enable_notifications().unwrap();
    engine.stop();
    assert!(matches!(lonely.wait_notification(None), Err(ClientError::Ended(Status::STOPPING))));
}

// Other engines.

#[test]
fn a_client_of_another_engine_that_has_no_room_makes_who_tells_it_wait() {
    let (here, there) = engines();
    let mut told = receiver(&there, 4);
    let inbox = told.allocate(64).unwrap();
    told.export(&inbox, "inbox", Rights::READ_WRITE).unwrap();
    let deaf = client(&there);
    let nothing = deaf.allocate(64).unwrap();
    deaf.export(&nothing, "deaf", Rights::READ_WRITE).unwrap();
    let mut client = client(&here);
    let (inbox, deaf) = (opened(&mut client, &there, "inbox"), opened(&mut client, &there, "deaf"));
    let ticket = client.batch().notify(&deaf, 0, None).unwrap();
    assert_eq!(client.wait(&ticket).unwrap_err().status, Status::NOT_ALLOWED);
    for number in 0..4 {
        let ticket = client.batch().notify(&inbox, number, None).unwrap();
        client.wait(&ticket).unwrap();
    }
    let late = client.batch().deadline(Duration::from_millis(30)).notify(&inbox, 99, None).unwrap();
    let error = client.wait(&late).unwrap_err();
    assert_eq!((error.status, error.reusable), (Status::TIMED_OUT, true));
    let waiting = client.batch().notify(&inbox, 4, None).unwrap();
    assert!(client.wait_timeout(&waiting, Duration::from_millis(20)).unwrap().is_none());
    // Others are served meanwhile.
    let ticket = client.batch().notify(&deaf, 0, None).unwrap();
    assert_eq!(client.wait(&ticket).unwrap_err().status, Status::NOT_ALLOWED);
    for number in 0..5 {
        assert_eq!(told.wait_notification(LIMIT).unwrap().unwrap().offset, number);
    }
    client.wait(&waiting).unwrap();
    // Many at once, more than a connection has on their way.
    let tickets: Vec<_> = (0..200).map(|number| client.batch().fence().notify(&inbox, number, None).unwrap()).collect();
    for number in 0..200 {
        assert_eq!(told.wait_notification(LIMIT).unwrap().unwrap().offset, number);
    }
    tickets.iter().for_each(|ticket| _ = client.wait(ticket).unwrap());
    let tickets: Vec<_> = (0..200).map(|number| client.batch().notify(&inbox, number, None).unwrap()).collect();
    let mut came: Vec<u64> = (0..200).map(|_| told.wait_notification(LIMIT).unwrap().unwrap().offset).collect();
    came.sort_unstable();
    assert!(came.into_iter().eq(0..200));
    tickets.iter().for_each(|ticket| _ = client.wait(ticket).unwrap());
    // The engine dies with one that waits.
    for number in 0..4 {
        let ticket = client.batch().notify(&inbox, number, None).unwrap();
        client.wait(&ticket).unwrap();
    }
    let waiting = client.batch().notify(&inbox, 4, None).unwrap();
    assert!(client.wait_timeout(&waiting, Duration::from_millis(20)).unwrap().is_none());
    there.stop();
    assert_eq!(client.wait(&waiting).unwrap_err().status, Status::REGION_GONE);
}

#[test]
fn rows_of_a_batch_are_in_place_before_the_notify_behind_them() {
    let mut stage = Stage::new();
    let (mut told, _, _) = stage.receiver(8, "told");
    let mut client = stage.client(64);
    let region = open(&mut client, "told");
    let (from, src) = client.memory(4096, Rights::READ);
    let (to, dst) = client.memory(4096, Rights::WRITE);
    stage.turns();
    for number in 0..50u64 {
        from.write_at(0, &[number as u8; 4096]).unwrap();
        for row in 0..10 {
            let row = Descriptor { flags: 0, ..range((src, row * 64), (dst, row * 64), 64) };
            assert!(client.try_push(&row.to_entry()));
        }
        client.submit(&notify(region, number));
        stage.engine.poll_once();
        assert_eq!(reap(&mut told), [event(number)], "in the same turn");
        let mut bytes = [0; 640];
        to.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [number as u8; 640]);
        let spans = reap(&mut client);
        assert_eq!((statuses(&spans), spans[0].bytes), (vec![(number, Status::OK, DONE)], 640));
    }
}
