//! What clients may take from an engine, and that everything done and refused is counted: R35, R45.

mod support;

use ring_abi::{Descriptor, Features, Flags, Kind, Message, Opcode, Span, Status};
use rustix::fd::AsFd;
use scatter_ring::client::{Client, Setup};
use scatter_ring::engine::{Config, Counters, Engine, Limits, RunningEngine};
use scatter_ring::region::{Huge, Region, Rights};
use scatter_ring::ring::Words;
use scatter_ring::sync::Ordering;
use std::time::Duration;
use support::hostile::{NOP, eventually, range};
use support::{Random, RawClient};

fn engine(limits: Limits) -> RunningEngine {
    Engine::new(&Config { workers: 1, limits, ..Config::default() }).unwrap().start().unwrap()
}

fn attach(engine: &RunningEngine) -> RawClient {
    RawClient::attach(engine.connect().unwrap(), 64, 64, 0)
}

/// Asserts that nobody can attach now, with this text.
fn full(engine: &RunningEngine, text: &str) {
    let error = Client::over(engine.connect().unwrap(), &Setup::default()).unwrap_err().to_string();
    assert!(error.contains(text), "{error}");
}

/// Asserts that an answer is LIMIT_EXCEEDED with this text.
fn over(answer: &Message, text: &str) {
    assert_eq!((answer.status, answer.name()), (Status::LIMIT_EXCEEDED, text));
}

fn register(client: &mut RawClient, bytes: u64) -> Message {
    let (_region, fd) = Region::allocate(bytes, Huge::Never).unwrap();
    client.ask(Kind::REGISTER, &[bytes, 3], "", &[fd.as_fd()])
}

fn refused(engine: &RunningEngine, status: Status) -> u64 {
    Counters::of(&engine.counters().refused, status)
}

fn ended(engine: &RunningEngine, status: Status) -> u64 {
    Counters::of(&engine.counters().sessions_ended, status)
}

#[test]
fn sessions_are_limited_for_all_and_for_each_user_until_one_ends() {
    for (sessions, sessions_per_user, text) in [
        (2, 10, "2 sessions are attached already (limit sessions)"),
        (10, 2, "has 2 sessions already (limit sessions_per_user)"),
    ] {
        let engine = engine(Limits { sessions, sessions_per_user, ..Limits::default() });
        let first = attach(&engine);
        let mut second = attach(&engine);
        full(&engine, text);
        full(&engine, text);
        assert_eq!(refused(&engine, Status::LIMIT_EXCEEDED), 2);
        assert_eq!(second.done(&NOP).status(), Status::OK);
        drop(first);
        eventually("the place is free", || ended(&engine, Status::OK) == 1);
        attach(&engine);
        assert_eq!(engine.counters().sessions, 3);
    }
}

#[test]
fn rings_have_at_most_so_many_slots() {
    let engine = engine(Limits { ring_slots: 64, ..Limits::default() });
    for (sq, cq, text) in [
        (128, 64, "SQ capacity 128: at most 64 (limit ring_slots)"),
        (64, 1 << 20, "CQ capacity 1048576: at most 64 (limit ring_slots)"),
    ] {
        let socket = engine.connect().unwrap();
        socket.send(&Message::hello(Features(Features::LOCAL), sq, cq, 0), &[]).unwrap();
        over(&socket.receive(true).unwrap().unwrap().message, text);
    }
    assert_eq!(attach(&engine).done(&NOP).status(), Status::OK);
}

#[test]
fn regions_and_names_are_counted_and_given_back() {
    let engine = engine(Limits { regions: 3, ..Limits::default() });
    let mut client = attach(&engine);
    let (_memory, handle) = client.memory(4096, Rights::READ_WRITE);
    for name in ["a", "b", "c"] {
        assert_eq!(client.ask(Kind::EXPORT, &[handle.into(), 1], name, &[]).status, Status::OK);
    }
    over(&client.ask(Kind::EXPORT, &[handle.into(), 1], "d", &[]), "3 names (limit regions)");
    let opened = client.ask(Kind::OPEN, &[1], "a", &[]).args[0];
    let (_memory, _other) = client.memory(4096, Rights::READ_WRITE);
    over(&client.ask(Kind::OPEN, &[1], "a", &[]), "3 regions (limit regions)");
    over(&register(&mut client, 4096), "3 regions (limit regions)");
    assert_eq!(client.ask(Kind::CLOSE, &[opened], "", &[]).status, Status::OK);
    assert_eq!(register(&mut client, 4096).status, Status::OK);
    // With the region its names go.
    assert_eq!(client.ask(Kind::CLOSE, &[handle.into()], "", &[]).status, Status::OK);
    let (_memory, handle) = client.memory(4096, Rights::READ_WRITE);
    assert_eq!(client.ask(Kind::EXPORT, &[handle.into(), 1], "d", &[]).status, Status::OK);
    assert_eq!((refused(&engine, Status::LIMIT_EXCEEDED), engine.counters().regions), (3, 4));
}

#[test]
fn bytes_of_regions_are_given_back_when_a_region_is_closed_and_not_before() {
    let engine = engine(Limits { region_bytes: 64 << 10, ..Limits::default() });
    let (mut client, mut other) = (attach(&engine), attach(&engine));
    let (_first, handle) = client.memory(48 << 10, Rights::READ_WRITE);
    let text = "20480 bytes more than the 49152 of its regions: at most 65536 (limit region_bytes)";
    over(&register(&mut client, 20 << 10), text);
    assert_eq!(register(&mut client, 16 << 10).status, Status::OK);
    // Each session has its own share, and opened regions are their owner's.
    assert_eq!(register(&mut other, 64 << 10).status, Status::OK);
    assert_eq!(client.ask(Kind::EXPORT, &[handle.into(), 3], "shared", &[]).status, Status::OK);
    assert_eq!(other.ask(Kind::OPEN, &[3], "shared", &[]).status, Status::OK);

    assert_eq!(client.ask(Kind::CLOSE, &[handle.into()], "", &[]).status, Status::OK);
    assert_eq!(register(&mut client, 48 << 10).status, Status::OK);
    over(&register(&mut client, 1), "1 bytes more than the 65536 of its regions: at most 65536 (limit region_bytes)");
}

#[test]
fn what_a_refused_region_would_have_had_is_not_counted() {
    let engine = engine(Limits { region_bytes: 64 << 10, regions: 1, ..Limits::default() });
    let mut client = attach(&engine);
    for _ in 0..100 {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(client.ask(Kind::REGISTER, &[60 << 10, 3], "", &[reader.as_fd()]).status, Status::BAD_FD);
    }
    let handle = register(&mut client, 4096).args[0];
    for _ in 0..100 {
        over(&register(&mut client, 60 << 10), "1 regions (limit regions)");
    }
    assert_eq!(client.ask(Kind::CLOSE, &[handle], "", &[]).status, Status::OK);
    assert_eq!(register(&mut client, 64 << 10).status, Status::OK);
}

#[test]
fn a_batch_beyond_the_limit_waits_for_one_before_it() {
    const BYTES: u64 = 16 << 20;
    // Without workers the poller copies a part a turn, and takes the second batch in the first: if it may.
    let order = |batches| {
        let config = Config { workers: 0, limits: Limits { batches, ..Limits::default() }, ..Config::default() };
        let engine = Engine::new(&config).unwrap().start().unwrap();
        let mut client = attach(&engine);
        let (_src, src) = client.memory(BYTES, Rights::READ);
        let (_dst, dst) = client.memory(BYTES, Rights::WRITE);
        assert!(client.try_push(&range((src, 0), (dst, 0), BYTES as u32).to_entry()));
        client.submit(&NOP);
        [client.wait().first, client.wait().first]
    };
    assert_eq!(order(1), [0, 1]);
    assert_eq!(order(2), [1, 0]);
}

/// Begins a long transfer that a worker has, cancels its batch, and returns how the session goes on.
fn with_bytes_held(held_bytes: u64) -> Result<(), Status> {
    const BYTES: u64 = 32 << 20;
    let config = Config { workers: 1, limits: Limits { held_bytes, ..Limits::default() }, ..Config::default() };
    let mut engine = Engine::new(&config).unwrap();
    let mut client = RawClient::attach(engine.connect().unwrap(), 64, 64, 0);
    let (_src, src) = client.memory(BYTES, Rights::READ);
    let (_dst, dst) = client.memory(BYTES, Rights::WRITE);
    client.submit(&range((src, 0), (dst, 0), BYTES as u32));
    while client.areas.sq.free().unwrap() < 64 {
        engine.poll_once();
    }
    client.submit(&Descriptor { opcode: Opcode::CANCEL.0, flags: Flags::LAST, ..Descriptor::ZERO });
    loop {
        engine.poll_once();
        if let Some(reason) = client.stopped() {
            return Err(reason);
        }
        let is_over = |span: Span| span.first == 0 && (span.is_released() || !span.is_held());
        if client.reap().is_some_and(is_over) {
            return Ok(());
        }
    }
}

#[test]
fn a_session_with_too_many_bytes_held_ends() {
    // The worker may be done before the batch is: then nothing is held.
    let ends = |held_bytes| (0..50).find_map(|_| with_bytes_held(held_bytes).err());
    assert_eq!(ends(1), Some(Status::LIMIT_EXCEEDED));
    assert_eq!(with_bytes_held(1 << 30), Ok(()));
}

#[test]
fn what_was_done_is_counted_exactly() {
    let engine = engine(Limits::default());
    let mut client = attach(&engine);
    let (_memory, handle) = client.memory(1 << 20, Rights::READ_WRITE);
    let mut random = Random(1);
    let (mut descriptors, mut bytes, mut good, mut bad) = (0, 0, 0, [0; 2]);
    for _ in 0..if cfg!(debug_assertions) { 500 } else { 20_000 } {
        let slots = 1 + random.below(20);
        let failing = random.one_in(3).then(|| random.below(slots));
        for i in 0..slots {
            let len = random.below(4096) as u32;
            let mut d = range((handle, 0), (handle, 1 << 19), len);
            d.flags *= u16::from(i + 1 == slots);
            match failing {
                Some(at) if at == i && slots.is_multiple_of(2) => d.src_region = 0,
                Some(at) if at == i => (d.src_offset, d.len) = (1 << 20, 1),
                _ => {}
            }
            assert!(client.try_push(&d.to_entry()));
        }
        client.publish();
        descriptors += slots;
        let mut covered = 0;
        while covered < slots {
            let span = client.wait();
            if span.is_released() {
                continue;
            }
            covered += u64::from(span.count);
            bytes += span.bytes;
        }
        match failing {
            None => good += 1,
            Some(_) => bad[usize::from(slots.is_multiple_of(2))] += 1,
        }
    }
    let counters = engine.counters();
    assert_eq!((counters.descriptors, counters.bytes), (descriptors, bytes));
    let [out_of_range, unknown] = bad;
    assert!(good > 0 && unknown > 0 && out_of_range > 0 && bytes > 0);
    let expected = [(Status::OK, good), (Status::UNKNOWN_REGION, unknown), (Status::OUT_OF_RANGE, out_of_range)];
    assert_eq!(counters.batches, expected);
    assert_eq!((counters.batches_cut, counters.sessions_cut, counters.refused), (0, 0, vec![]));
}

/// Begins a batch that gets no LAST, and returns when the engine has taken it.
fn begin(client: &mut RawClient) {
    client.submit(&Descriptor { opcode: Opcode::NOP.0, ..Descriptor::ZERO });
    eventually("the slot is taken", || client.areas.sq.free().unwrap() == 64);
}

#[test]
fn batches_without_an_outcome_are_cut_by_their_clients_end_and_by_a_stop() {
    let engine = engine(Limits::default());
    let mut clients: Vec<RawClient> = (0..4).map(|_| attach(&engine)).collect();
    clients.iter_mut().take(3).for_each(begin);
    drop(clients.remove(0));
    eventually("the first has ended", || ended(&engine, Status::OK) == 1);
    let cut = |counters: &Counters| (counters.batches_cut, counters.sessions_cut);
    assert_eq!(cut(&engine.counters()), (1, 1));
    // The second gets its LAST in time.
    let mut second = clients.remove(0);
    let finishes = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(second.done(&NOP).status(), Status::OK);
        second.wait_stopped()
    });
    let counters = engine.stop_within(Duration::from_millis(500));
    assert_eq!(finishes.join().unwrap(), Status::STOPPING);
    assert_eq!(cut(&counters), (2, 2));
    assert_eq!(counters.batches, [(Status::OK, 1)]);
    assert_eq!(counters.sessions_ended, [(Status::OK, 1), (Status::STOPPING, 3)]);
    assert!(clients.iter().all(|client| client.stopped() == Some(Status::STOPPING)));
}

#[test]
fn a_stop_waits_no_longer_than_there_is_work() {
    let engine = engine(Limits::default());
    let mut client = attach(&engine);
    client.done(&NOP);
    let limit = Duration::from_secs(3600);
    let (sender, stopped) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(engine.stop_within(limit)).unwrap());
    let counters = stopped.recv_timeout(Duration::from_secs(10)).expect("it waits for nothing");
    assert_eq!((counters.batches_cut, counters.descriptors), (0, 1));
}

/// What a client does, and why it is refused.
type Refused = (Status, fn(&mut RawClient, u64) -> Message);

#[test]
fn each_kind_of_refusal_has_its_counter() {
    const KINDS: &[Refused] = &[
        (Status::INVALID_SETTING, |client, _| client.ask(Kind::OPEN, &[1, 0, 1], "x", &[])),
        (Status::UNSUPPORTED, |client, _| client.ask(Kind::OPEN, &[1, 1], "x", &[])),
        (Status::UNKNOWN_REGION, |client, _| client.ask(Kind::CLOSE, &[77], "", &[])),
        (Status::NO_RIGHT, |client, read_only| client.ask(Kind::EXPORT, &[read_only, 3], "x", &[])),
        (Status::BAD_FD, |client, _| client.ask(Kind::REGISTER, &[4096, 1], "", &[])),
        (Status::NAME_TAKEN, |client, read_only| client.ask(Kind::EXPORT, &[read_only, 1], "taken", &[])),
        (Status::NAME_UNKNOWN, |client, _| client.ask(Kind::OPEN, &[1], "none", &[])),
        (Status::LIMIT_EXCEEDED, |client, _| register(client, 2 << 20)),
    ];
    let engine = engine(Limits { region_bytes: 1 << 20, ..Limits::default() });
    let mut client = attach(&engine);
    let (_memory, read_only) = client.memory(4096, Rights::READ);
    let read_only = u64::from(read_only);
    assert_eq!(client.ask(Kind::EXPORT, &[read_only, 1], "taken", &[]).status, Status::OK);
    for (i, (status, refuse)) in KINDS.iter().enumerate() {
        let times = 1 + i as u64;
        (0..times).for_each(|_| assert_eq!(refuse(&mut client, read_only).status, *status));
        assert_eq!(refused(&engine, *status), times, "{status}");
    }
    for (status, change) in [
        (Status::BAD_MESSAGE, (|args| args[0] += 1) as fn(&mut [u64; 8])),
        (Status::VERSION_MISMATCH, |args| args[1] ^= 1 << 40),
        (Status::MISSING_FEATURE, |args| args[2] |= 1 << 60),
    ] {
        let mut hello = Message::hello(Features(Features::LOCAL), 64, 64, 0);
        change(&mut hello.args);
        let socket = engine.connect().unwrap();
        socket.send(&hello, &[]).unwrap();
        assert_eq!(socket.receive(true).unwrap().unwrap().message.status, status);
        assert_eq!(refused(&engine, status), 1, "{status}");
    }
    let all = engine.counters().refused;
    assert_eq!(all.len(), KINDS.len() + 3, "{all:?}");
}

#[test]
fn each_way_to_lose_a_session_has_its_counter() {
    let engine = engine(Limits::default());
    let mut client = attach(&engine);
    client.send(Kind(999), &[], "", &[]);
    assert_eq!(client.wait_stopped(), Status::BAD_MESSAGE);
    let client = attach(&engine);
    client.areas.sq.words().tail().store(1 << 40, Ordering::Release);
    rustix::io::write(&client.doorbell, &1u64.to_ne_bytes()).unwrap();
    assert_eq!(client.wait_stopped(), Status::BAD_RING);
    drop(attach(&engine));
    let expected = [(Status::OK, 1), (Status::BAD_RING, 1), (Status::BAD_MESSAGE, 1)];
    eventually("all three have ended", || engine.counters().sessions_ended == expected);
    assert_eq!(engine.counters().sessions, 3);
}

/// An engine that refuses whoever connects has closed before it hears HELLO.
#[test]
fn a_client_hears_why_it_was_refused_also_if_that_came_before_its_hello() {
    let (ours, theirs) = scatter_ring::attach::Socket::pair().unwrap();
    let answer = Message::new(Kind::HELLO, 0, [0; 8]).answer(Status::NOT_ALLOWED, [0; 8]).with_name("because");
    theirs.send(&answer, &[]).unwrap();
    drop(theirs);
    let error = Client::over(ours, &Setup::default()).unwrap_err().to_string();
    assert!(error.contains("because"), "{error}");
}
