//! What a client makes of an engine that is wrong: an error, never a panic, never a wrong release.

mod fake;

use fake::{Fake, Manners, meet, meet_with, ok, setup};
use ring_abi::{Descriptor, Extension, Flags, Handle, Opcode, Span, SpanFlags, Status};
use scatter_ring::attach::AttachError;
use scatter_ring::client::{Client, ClientError, PushError, Region, Setup, Ticket};
use scatter_ring::region::Rights;
use scatter_ring::sync::Ordering;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

const NOP: Descriptor = Descriptor { opcode: Opcode::NOP.0, flags: Flags::LAST, ..Descriptor::ZERO };

const RELEASED: Span = Span { flags: SpanFlags::RELEASED, ..Span::ZERO };

/// A client with two batches of two descriptors each under way, which write `Region`.
fn under_way() -> (Client, Fake, Region, [Ticket; 2]) {
    let (mut client, fake) = meet(&setup(16, 32));
    let memory = client.allocate(64).unwrap();
    let tickets = std::array::from_fn(|_| {
        let mut batch = client.batch();
        batch.read(&memory, 0, &memory, 8, 8).unwrap();
        batch.read(&memory, 0, &memory, 8, 8).unwrap();
        batch.submit().unwrap()
    });
    (client, fake, memory, tickets)
}

#[test]
fn spans_that_cannot_be_end_the_session_and_release_nothing() {
    let part = Span { flags: 0, ..ok(0, 1) };
    let held = Span { status: -17, flags: SpanFlags::HELD | SpanFlags::BATCH_DONE, ..ok(0, 2) };
    let cases: &[(&str, &[Span])] = &[
        ("too many slots", &[ok(0, 3)]),
        ("too few for a batch that is done", &[ok(0, 1)]),
        ("not done with all slots", &[Span { flags: 0, ..ok(0, 2) }]),
        ("no slots", &[Span { flags: 0, ..ok(0, 0) }]),
        ("not from the start", &[ok(1, 1)]),
        ("the same slot twice", &[part, part]),
        ("over two batches", &[ok(0, 4)]),
        ("before the first position", &[ok(u64::MAX, 1)]),
        ("behind the last position", &[ok(4, 1)]),
        ("far away", &[ok(1 << 63, u32::MAX)]),
        ("done twice", &[ok(2, 2), ok(2, 2)]),
        ("done twice, the first batch", &[ok(0, 2), ok(0, 2)]),
        ("a release of nothing held", &[RELEASED]),
        ("a release of nothing at all", &[Span { first: 9, ..RELEASED }]),
        ("a release of the middle", &[held, Span { first: 1, ..RELEASED }]),
        ("a release with slots", &[held, Span { count: 1, ..RELEASED }]),
        ("a release that is also an outcome", &[held, Span { flags: SpanFlags::RELEASED | 1, ..RELEASED }]),
        ("a status above 0", &[Span { status: 1, ..ok(0, 2) }]),
        ("an unknown flag", &[Span { flags: 1 << 9 | 1, ..ok(0, 2) }]),
    ];
    for (what, spans) in cases {
        for by_reap in [false, true] {
            let (mut client, mut fake, memory, [first, second]) = under_way();
            spans.iter().for_each(|span| fake.span(*span));
            if by_reap {
                let error = std::iter::repeat_with(|| client.reap()).take(3).find_map(Result::err);
                assert!(matches!(error, Some(ClientError::Broken(_))), "{what}: {error:?}");
            }
            let errors = [client.wait(&first), client.wait(&second)].map(|outcome| outcome.err().map(|e| e.status));
            assert!(errors.contains(&Some(Status::BAD_RING)), "{what}: {errors:?}");
            assert!(memory.is_busy(), "{what}: released");
            assert!(matches!(client.submit(), Err(ClientError::Broken(_))), "{what}: the session goes on");
            assert!(matches!(client.allocate(64), Err(ClientError::Broken(_))), "{what}: the session goes on");
        }
    }
}

#[test]
fn a_batch_cannot_be_done_before_its_last_descriptor_was_shown() {
    let (mut client, mut fake) = meet(&setup(4, 16));
    let mut batch = client.batch();
    let memoryless = ring_abi::Descriptor { opcode: ring_abi::Opcode::NOP.0, ..ring_abi::Descriptor::ZERO };
    // A full ring: the next one has to wait until the engine has taken some.
    for _ in 0..4 {
        batch.push(&memoryless, &[]).unwrap();
    }
    fake.done(0, 1);
    let error = batch.push(&memoryless, &[]).unwrap_err();
    assert_eq!((error.status, error.reusable), (Status::BAD_RING, false));
}

#[test]
fn impossible_positions_end_the_session() {
    let (mut client, fake, memory, [first, _]) = under_way();
    scatter_ring::ring::Words::tail(fake.areas.cq.words()).store(1 << 40, Ordering::Release);
    assert_eq!(client.wait(&first).unwrap_err().status, Status::BAD_RING);
    assert!(matches!(client.reap(), Err(ClientError::Broken(_))) && memory.is_busy());

    let (mut client, fake) = meet(&setup(4, 16));
    scatter_ring::ring::Words::head(fake.areas.sq.words()).store(3, Ordering::Release);
    let mut batch = client.batch();
    let nop = ring_abi::Descriptor { opcode: ring_abi::Opcode::NOP.0, ..ring_abi::Descriptor::ZERO };
    let error = (0..9).find_map(|_| batch.push(&nop, &[]).err()).expect("an impossible head");
    assert_eq!(error.status, Status::BAD_RING);
}

#[test]
fn wrong_answers_on_the_socket_end_the_session() {
    let twists: [fn(&mut ring_abi::Message); 5] = [
        |answer| answer.request += 1,
        |answer| answer.kind = ring_abi::Kind::HELLO.answer(),
        |answer| answer.args[0] = 0,
        |answer| answer.args[0] = u64::MAX,
        |answer| answer.args[0] = u64::from(Handle::INDEX_MAX),
    ];
    for twist in twists {
        let (mut client, fake) = meet(&setup(8, 8));
        *fake.office.twist.lock().unwrap() = Some(twist);
        client.allocate(64).unwrap_err();
        assert!(matches!(client.submit(), Err(ClientError::Broken(_))));
    }
    let (client, fake) = meet(&setup(8, 8));
    *fake.office.twist.lock().unwrap() = Some(|answer| answer.args[2] = 1);
    assert!(client.open("table", Rights::READ_WRITE).is_err(), "fewer rights than asked for");
}

#[test]
fn a_refusal_keeps_the_session_and_its_text() {
    let (client, fake) = meet(&setup(8, 8));
    *fake.office.twist.lock().unwrap() = Some(|answer| {
        *answer = answer.with_name("at most 64 regions");
        answer.status = Status::LIMIT_EXCEEDED;
    });
    let error = client.allocate(64).unwrap_err();
    assert_eq!(error.to_string(), "limit exceeded (LIMIT_EXCEEDED): at most 64 regions");
    *fake.office.twist.lock().unwrap() = None;
    client.allocate(64).unwrap();
}

#[test]
fn events_of_nobody_are_passed_on_and_too_many_of_them_end_the_session() {
    let (mut client, mut fake) = meet(&setup(4, 4));
    let event = Span { flags: SpanFlags::EVENT, ..Span::ZERO };
    fake.span(event);
    assert_eq!(client.reap().unwrap(), Some(event));
    let ticket = client.batch().submit().unwrap();
    for _ in 0..1000 {
        if client.wait_timeout(&ticket, Duration::ZERO).is_err() {
            return assert!(matches!(client.submit(), Err(ClientError::Broken(_))));
        }
        (0..4).for_each(|_| fake.span(event));
    }
    panic!("the client keeps any number of events");
}

#[test]
fn a_notification_buffer_that_does_not_come_ends_the_session() {
    let (mut client, _fake) = meet(&setup(4, 4));
    assert!(matches!(client.enable_notifications(), Err(ClientError::Broken(_))));
    assert!(matches!(client.submit(), Err(ClientError::Broken(_))));
}

#[test]
fn a_hello_that_does_not_fit_is_refused_with_a_sentence() {
    let refused = |twist: fn(&mut ring_abi::Message)| {
        let (client, _fake) = meet_with(&setup(8, 8), Manners { twist, ..Manners::default() });
        client.expect_err("refused").to_string()
    };
    let text = refused(|answer| answer.args[0] += 1);
    assert!(text.starts_with("the engine speaks ABI 2.0") && text.contains("same scatter-ring version"), "{text}");
    let text = refused(|answer| {
        answer.status = Status::VERSION_MISMATCH;
        answer.args[0] = 0;
    });
    assert!(text.contains("of another version"), "{text}");
    assert!(refused(|answer| answer.args[3] += 1).contains("epoch"));
    assert!(refused(|answer| answer.args[2] += 1).contains("capacity"));
    assert!(refused(|answer| answer.args[1] = 0).contains("MISSING_FEATURE"));
    assert!(refused(|answer| answer.request = 5).contains("HELLO"));
    assert!(refused(|answer| answer.status = Status::NOT_ALLOWED).contains("NOT_ALLOWED"));
    let (client, _fake) = meet_with(&setup(8, 8), Manners { start: 1, ..Manners::default() });
    assert!(matches!(client, Err(ClientError::Attach(AttachError::BadMessage(_)))));
    let (client, _fake) = meet_with(&setup(8, 8), Manners { swaps: true, ..Manners::default() });
    assert!(client.expect_err("refused").to_string().contains("a doorbell or a wake socket that is something else"));
}

#[test]
fn a_region_that_was_granted_too_late_is_given_back() {
    static IS_LATE: AtomicBool = AtomicBool::new(false);
    let (client, fake) = meet(&setup(8, 8));
    *fake.office.twist.lock().unwrap() = Some(|_| {
        while !IS_LATE.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let refused = client.allocate(64).unwrap_err();
    assert!(matches!(refused, ClientError::Attach(AttachError::NoAnswer { .. })), "{refused}");
    IS_LATE.store(true, Ordering::Release);
    let _second = client.allocate(64).unwrap();
    let since = Instant::now();
    while fake.office.closes() == 0 {
        assert!(since.elapsed() < Duration::from_secs(10), "the first one stays registered");
        std::thread::yield_now();
    }
}

#[test]
fn attaching_to_nobody_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let text = |path: &std::path::Path| Client::attach(path).unwrap_err().to_string();
    assert!(text(&path).contains("no socket at") && text(&path).contains("`scatter-ring serve` running"));
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(text(&path).contains("is `scatter-ring serve` running?"), "{}", text(&path));
    // The superuser is permitted everything.
    if !rustix::process::geteuid().is_root() {
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o000)).unwrap();
        assert!(text(&path).contains("not permitted"));
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    }
}

/// How long a dead engine may stay unnoticed. Some 500 ms in fact.
const LIMIT: Duration = Duration::from_secs(5);

/// A way to use a client: what it says of the session's end, once it does.
type Way = fn(&mut Client, &Ticket) -> Option<Status>;

/// None of them ever waits at the wake socket, whose end says it.
#[test]
fn a_client_that_never_sleeps_notices_that_its_engine_is_gone() {
    let ways: [(&str, Way); 5] = [
        ("a wait that spins", |client, ticket| client.wait(ticket).err().map(|error| error.status)),
        ("looks at a batch", |client, ticket| {
            client.wait_timeout(ticket, Duration::ZERO).err().map(|error| error.status)
        }),
        ("reaps", |client, _| client.reap().err().map(|error| error.status())),
        ("pushes into a full ring", |client, _| {
            // SAFETY: the descriptor names no memory.
            let pushed = unsafe { client.push(&NOP) };
            pushed.err().filter(|error| *error != PushError::Full).map(ended)
        }),
        ("pushes tiles into a full ring", |client, _| {
            // SAFETY: the descriptor names no memory.
            let pushed = unsafe { client.push_extended(&NOP, &Extension::new(1, 0, 0)) };
            pushed.err().filter(|error| *error != PushError::Full).map(ended)
        }),
    ];
    for (what, way) in ways {
        let (mut client, fake) = meet(&Setup { spin: 2 * LIMIT, ..setup(4, 16) });
        let ticket = client.batch().submit().unwrap();
        drop(fake);
        let start = Instant::now();
        let status = std::iter::repeat_with(|| way(&mut client, &ticket))
            .take_while(|_| start.elapsed() < LIMIT)
            .find_map(|status| status);
        assert_eq!(status, Some(Status::ENGINE_LOST), "{what}");
        assert!(start.elapsed() < LIMIT, "{what}: only when it slept");
        assert_eq!(client.wait(&ticket).unwrap_err().status, Status::ENGINE_LOST, "{what}");
    }
}

fn ended(error: PushError) -> Status {
    let PushError::Ended(status) = error else { panic!("{error}") };
    status
}
