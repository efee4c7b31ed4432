//! What a client promises, against an engine that plays by the rules.

mod fake;

use fake::{eventually, meet, setup};
use ring_abi::{Descriptor, Field, Flags, Kind, Opcode, Span, SpanFlags, Stage, Status};
use rustix::event::{PollFd, PollFlags};
use scatter_ring::client::{BatchError, Client, ClientError, PushError, Setup};
use scatter_ring::region::{Huge, Region as Memory, Rights};
use scatter_ring::ring::Sleeper;
use std::time::{Duration, Instant};

const NOW: Duration = Duration::ZERO;

fn nop() -> Descriptor {
    Descriptor { opcode: Opcode::NOP.0, ..Descriptor::ZERO }
}

fn failed(first: u64, status: Status, flags: u16) -> Span {
    Span { first, count: 1, status: status.0, flags, stage: Stage::PACK.0, field: Field::SRC_OFFSET.0, ..Span::ZERO }
}

fn readable(client: &Client) -> bool {
    let fd = client.as_fd();
    let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&none)).unwrap() > 0
}

#[test]
fn rows_come_out_of_a_table_and_go_back_by_one_call() {
    let (mut client, fake) = meet(&Setup::default());
    let engine = fake.work_in_background();
    let (table, out) = (client.allocate(16 * 100).unwrap(), client.allocate(1 << 20).unwrap());
    for row in 0..100u8 {
        table.write_at(16 * u64::from(row), &[row; 16]).unwrap();
    }
    let outcome = client.read_rows(&table, 16, &[7, 0, 99, 7], &out, 5).unwrap();
    assert_eq!((outcome.status, outcome.bytes, outcome.reusable), (Status::OK, 64, true));
    let mut rows = [0; 64];
    out.read_at(5, &mut rows).unwrap();
    assert_eq!(rows.to_vec(), [[7; 16], [0; 16], [99; 16], [7; 16]].concat());

    client.write_rows(&table, 16, &[50, 51], &out, 5).unwrap();
    table.read_at(16 * 51, &mut rows[..16]).unwrap();
    assert_eq!(rows[..16], [0; 16]);

    let many: Vec<u32> = (0..30_000).map(|i| i % 50).collect();
    assert_eq!(client.read_rows(&table, 16, &many, &out, 0).unwrap().bytes, 480_000);
    out.read_at(16 * 29_999, &mut rows[..16]).unwrap();
    assert_eq!(rows[..16], [49; 16]);
    assert_eq!(client.read_rows(&table, 16, &[], &out, 0).unwrap().bytes, 0);
    assert_eq!(client.read(&table, 0, &out, 0, 100).unwrap().bytes, 100);
    assert_eq!(client.write(&out, 0, &table, 0, 10).unwrap().bytes, 10);
    drop(client);
    engine.join().unwrap();
}

#[test]
fn memory_that_a_batch_writes_cannot_be_looked_at_and_what_it_reads_cannot_be_written() {
    let (mut client, mut fake) = meet(&setup(64, 64));
    let (from, to) = (client.allocate(64).unwrap(), client.allocate(64).unwrap());
    let mut batch = client.batch();
    batch.read(&from, 0, &to, 0, 64).unwrap();
    let ticket = batch.submit().unwrap();
    let mut bytes = [0; 8];
    from.read_at(0, &mut bytes).expect("two may read");
    assert!(matches!(from.write_at(0, &bytes), Err(ClientError::Busy)));
    assert!(matches!(to.read_at(0, &mut bytes), Err(ClientError::Busy)));
    assert!(matches!(to.write_at(0, &bytes), Err(ClientError::Busy)));
    assert!(matches!(client.close(&from), Err(ClientError::Busy)));
    assert!(matches!(client.close(&to), Err(ClientError::Busy)));
    assert!(client.wait_timeout(&ticket, NOW).unwrap().is_none());
    fake.done(0, 1);
    client.wait(&ticket).unwrap();
    to.read_at(0, &mut bytes).unwrap();
    from.write_at(0, &bytes).unwrap();
    client.close(&to).unwrap();
    assert!(matches!(client.close(&to), Err(ClientError::Closed)));
    let mut batch = client.batch();
    let refused = batch.read(&from, 0, &to, 0, 1).unwrap_err();
    assert_eq!((refused.status, refused.field), (Status::UNKNOWN_REGION, Field::DST_REGION));
    drop(batch);
    assert!(!from.is_busy(), "a batch that has never been still holds");
}

#[test]
fn a_held_batch_keeps_its_memory_until_it_is_released() {
    let (mut client, mut fake) = meet(&setup(64, 64));
    let (from, to) = (client.allocate(64).unwrap(), client.allocate(64).unwrap());
    let mut batch = client.batch();
    batch.read(&from, 0, &to, 0, 64).unwrap();
    let ticket = batch.submit().unwrap();
    fake.span(failed(0, Status::TIMED_OUT, SpanFlags::BATCH_DONE | SpanFlags::HELD));
    let error = client.wait(&ticket).unwrap_err();
    assert_eq!((error.status, error.reusable), (Status::TIMED_OUT, false));
    assert!(error.to_string().ends_with("timed out (TIMED_OUT), value 0; buffers may still be written"), "{error}");
    assert!(to.is_busy());
    drop((from, to));
    assert!(!client.wait_released(&ticket, Some(Duration::from_millis(2))).unwrap());
    assert_eq!(fake.office.closes(), 0, "closed while it may still be written");
    fake.span(Span { first: 0, status: Status::TIMED_OUT.0, flags: SpanFlags::RELEASED, ..Span::ZERO });
    assert!(client.wait_released(&ticket, None).unwrap());
    assert!(client.wait(&ticket).unwrap_err().reusable);
    eventually("the last handles' CLOSE", || fake.office.closes() == 2);
}

#[test]
fn the_doorbell_rings_once_for_a_sleeping_engine_and_never_for_one_awake() {
    let (mut client, fake) = meet(&setup(8, 8));
    let rung = || {
        let mut count = [0; 8];
        let flags = rustix::fs::fcntl_getfl(&fake.doorbell).unwrap() | rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(&fake.doorbell, flags).unwrap();
        rustix::io::read(&fake.doorbell, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    };
    client.batch().submit().unwrap();
    assert_eq!(rung(), 0);
    let mut sleeper = Sleeper::default();
    sleeper.prepare(&fake.areas.engine_sleep);
    client.batch().submit().unwrap();
    client.batch().submit().unwrap();
    assert_eq!(rung(), 1);
    sleeper.prepare(&fake.areas.engine_sleep);
    client.batch().submit().unwrap();
    assert_eq!(rung(), 1);
}

#[test]
fn a_sleeping_wait_is_woken_and_an_event_loop_has_one_descriptor() {
    let (mut client, mut fake) = meet(&Setup { spin: NOW, ..setup(8, 8) });
    let ticket = client.batch().submit().unwrap();
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        fake.done(0, 1);
        fake
    });
    let start = Instant::now();
    client.wait(&ticket).unwrap();
    assert!(start.elapsed() < Duration::from_millis(500), "not woken");
    let mut fake = late.join().unwrap();
    assert_eq!(fake.wakes, 1);

    client.batch().submit().unwrap();
    assert!(!client.wait_any(Some(Duration::from_millis(1))).unwrap());
    assert!(client.arm());
    assert!(!readable(&client));
    fake.done(1, 1);
    assert!(readable(&client));
    client.disarm();
    assert!(!readable(&client));
    assert!(!client.arm(), "there is a span");
    assert!(client.wait_any(None).unwrap());
    assert_eq!(client.reap().unwrap().map(|span| span.first), Some(1));
    assert_eq!(client.reap().unwrap(), None);
}

#[test]
fn a_dead_engine_ends_every_wait_after_what_it_has_published() {
    let (mut client, mut fake) = meet(&Setup { spin: NOW, ..setup(8, 8) });
    let memory = client.allocate(64).unwrap();
    let first = client.batch().submit().unwrap();
    let mut batch = client.batch();
    batch.read(&memory, 0, &memory, 0, 8).unwrap();
    let second = batch.submit().unwrap();
    let death = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(10));
        fake.done(0, 1);
        fake.die();
        fake
    });
    let error = client.wait(&second).unwrap_err();
    assert_eq!((error.status, error.reusable), (Status::ENGINE_LOST, false));
    client.wait(&first).expect("published before the end");
    assert!(client.wait_released(&second, None).is_err());
    assert!(matches!(client.wait_any(None), Err(ClientError::Ended(Status::ENGINE_LOST))));
    assert!(matches!(client.reap(), Err(ClientError::Ended(Status::ENGINE_LOST))));
    assert!(client.batch().submit().is_err());
    assert!(client.allocate(64).is_err() && client.submit().is_err() && !client.arm());
    assert!(memory.is_busy(), "nobody knows when the memory is left alone");
    death.join().unwrap();
}

#[test]
fn a_stop_says_why_the_session_ended() {
    let (mut client, mut fake) = meet(&setup(8, 8));
    let (first, second) = (client.batch().submit().unwrap(), client.batch().submit().unwrap());
    fake.done(0, 1);
    fake.stop(Status::STOPPING);
    assert_eq!(client.reap().unwrap().map(|span| span.first), Some(0));
    assert!(matches!(client.reap(), Err(ClientError::Ended(Status::STOPPING))));
    assert_eq!(client.wait(&second).unwrap_err().status, Status::STOPPING);
    client.wait(&first).unwrap();
}

#[test]
fn opened_memory_is_elsewhere_and_registered_memory_is_here() {
    let (client, fake) = meet(&setup(8, 8));
    let opened = client.open("table", Rights::READ).unwrap();
    assert_eq!((opened.bytes(), opened.rights(), opened.as_ptr()), (4096, Rights::READ, None));
    assert!(matches!(opened.read_at(0, &mut [0]), Err(ClientError::NotLocal)));
    assert!(matches!(opened.write_at(0, &[0]), Err(ClientError::NotLocal)));
    let (memory, fd) = Memory::allocate(4096, Huge::Never).unwrap();
    let mine = client.register(&fd, 4096, Rights::READ).unwrap();
    mine.write_at(9, &[1]).expect("its owner may write what descriptors may not");
    memory.read_at(9, &mut [0]).unwrap();
    client.export(&mine, "name", Rights::READ).unwrap();
    let asked = fake.office.asked.lock().unwrap().last().copied().unwrap();
    assert_eq!((asked.kind, asked.name(), asked.args[1]), (Kind::EXPORT, "name", 1));
    assert!(client.export(&mine, &"n".repeat(169), Rights::READ).is_err());
    assert!(client.register(&fd, 4097, Rights::READ).is_err());
    drop(mine.clone());
    assert_eq!(fake.office.closes(), 0);
    drop(mine);
    eventually("the CLOSE of the last handle", || fake.office.closes() == 1);
}

#[test]
fn regions_and_tickets_of_another_client_are_refused() {
    let ((mut a, _fake_a), (mut b, _fake_b)) = (meet(&setup(8, 8)), meet(&setup(8, 8)));
    let (mine, foreign) = (a.allocate(64).unwrap(), b.allocate(64).unwrap());
    assert_eq!(mine.handle(), foreign.handle(), "the same number, or this test shows nothing");
    let mut batch = a.batch();
    let refused = batch.read(&mine, 0, &foreign, 0, 1).unwrap_err();
    assert_eq!(
        (refused.status, refused.field, refused.descriptor),
        (Status::UNKNOWN_REGION, Field::DST_REGION, Some(0))
    );
    let named = Descriptor { src_region: 5, ..nop() };
    assert_eq!(batch.push(&named, &[&mine]).unwrap_err().field, Field::SRC_REGION);
    assert_eq!(batch.push(&Descriptor { flags: Flags::LAST, ..nop() }, &[]).unwrap_err().status, Status::INVALID_FLAGS);
    let ticket = batch.submit().unwrap();
    assert_eq!(b.wait(&ticket).unwrap_err().status, Status::NOT_FOUND);
    assert!(matches!(b.cancel(&ticket), Err(ClientError::Foreign)));
    assert!(matches!(a.close(&foreign), Err(ClientError::Foreign)));
}

#[test]
fn a_forked_child_touches_nothing_of_its_parent() {
    let (mut client, mut fake) = meet(&setup(8, 8));
    let memory = client.allocate(64).unwrap();
    let ticket = client.batch().submit().unwrap();
    let forked = |error: BatchError| error.status == Status::FORKED;
    let mut batch = client.batch();
    batch.push(&nop(), &[]).unwrap();
    let mut child_batch = Some(batch);
    in_a_child(|| {
        let mut batch = child_batch.take().unwrap();
        batch.push(&nop(), &[]).is_err_and(forked) && batch.submit().is_err_and(forked)
    });
    let batch = child_batch.take().unwrap();
    drop(child_batch);
    let second = batch.submit().unwrap();
    let mut all = Some((client, memory, ticket));
    in_a_child(|| {
        let (mut client, memory, ticket) = all.take().unwrap();
        let mut refused = client.batch().submit().is_err_and(forked);
        refused &= client.wait(&ticket).is_err_and(forked) && client.wait_released(&ticket, None).is_err_and(forked);
        // SAFETY: the descriptor names no memory.
        refused &= unsafe { client.push(&nop()) } == Err(PushError::Forked);
        refused &= matches!(client.reap(), Err(ClientError::Forked));
        refused &= matches!(client.submit(), Err(ClientError::Forked));
        refused &= matches!(client.wait_any(None), Err(ClientError::Forked)) && !client.arm();
        refused &= matches!(client.allocate(64), Err(ClientError::Forked));
        refused &= matches!(memory.read_at(0, &mut [0]), Err(ClientError::Forked));
        refused &= matches!(client.cancel(&ticket), Err(ClientError::Forked));
        client.disarm();
        drop((memory, ticket, client));
        refused
    });
    let (mut client, _memory, ticket) = all.take().unwrap();
    assert_eq!(fake.take_all().len(), 2);
    fake.done(0, 1);
    fake.done(1, 1);
    client.wait(&ticket).unwrap();
    client.wait(&second).unwrap();
    let _more = client.allocate(64).unwrap();
    assert_eq!(fake.office.closes(), 0, "the child closed its parent's region");
}

/// Runs a check in a forked child and expects it to hold there.
fn in_a_child(check: impl FnOnce() -> bool) {
    // SAFETY: the child only makes calls that take no lock of another thread, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let holds = check();
        // SAFETY: always allowed.
        unsafe { libc::_exit(if holds { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `child` is a child of this process, `status` a place for its status.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "a call went through in the child");
}
