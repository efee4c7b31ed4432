//! NOTIFYs, with a peer that says what it likes.

use super::*;
use crate::engine::notify::Told;
use crate::engine::remote::{News, NoPart, PartId, Remote};
use std::collections::VecDeque;

const NOTICE: PartId = PartId { slot: 1, session: 2, part: 3 };
const TOLD: Told<'static> = Told { user_data: 7, offset: 8, payload: b"payload" };

fn notified(request: u64, status: Status) -> Message<'static> {
    Message::Notified { request, status }
}

#[test]
fn a_peers_notify_reaches_who_has_exported_the_region_and_is_answered_with_what_came_of_it() {
    let mut engine = Engine::new(config());
    let mut peer = engine.connect(2);
    let (number, _) = engine.open(&mut peer, &region(4096), Rights::READ);
    let answers = [Ok(()), Err(Status::NOT_DONE), Err(Status::NOT_ALLOWED), Ok(())];
    let mut coming: VecDeque<Result<(), Status>> = answers.into();
    for (request, answer) in (10..).zip(answers) {
        let payload = vec![request as u8; 1000 + request as usize];
        peer.say(0, &Message::Notify { request, number, user_data: 1, offset: request, payload: &payload });
        let mut told = 0;
        engine.until(&mut [&mut peer], |engine, _| {
            engine.remotes.deliver(&mut |session, what| {
                assert_eq!((session, what.user_data, what.offset), (EXPORTER, 1, request));
                assert!(what.payload == payload);
                told += 1;
                coming.pop_front().unwrap()
            });
            told == 1
        });
        let heard = peer.next(&mut engine, |message| matches!(message, Message::Notified { .. }));
        assert_eq!(heard, Heard::Notified(request, answer.err().unwrap_or(Status::OK)));
    }
    // Of what is not open nobody is told.
    peer.say(0, &Message::Close { number });
    peer.say(0, &Message::Notify { request: 1, number, user_data: 0, offset: 0, payload: &[] });
    let mut heard = None;
    engine.until(&mut [&mut peer], |engine, peers| {
        engine.remotes.deliver(&mut |_, _| panic!("told of what was closed"));
        heard = peers[0].heard.iter().find_map(|(_, bytes)| match Message::read(bytes) {
            Ok(Message::Notified { request, status }) => Some((request, status)),
            _ => None,
        });
        heard.is_some()
    });
    assert_eq!(heard, Some((1, Status::REGION_GONE)));
}

/// Sends a NOTIFY, and gives the number by which it is to be answered.
fn notify(engine: &mut Engine, peer: &mut Peer, remote: &Remote) -> u64 {
    engine.remotes.notify(remote, &TOLD, NOTICE).unwrap();
    match peer.next(engine, |message| matches!(message, Message::Notify { .. })) {
        Heard::Notify { request, number, payload_bytes } => {
            assert_eq!((number, payload_bytes), (remote.number, TOLD.payload.len()));
            request
        }
        other => panic!("{other:?}"),
    }
}

fn news(engine: &mut Engine, peer: &mut Peer) -> Status {
    let mut found = None;
    engine.until(&mut [peer], |engine, _| {
        found = engine.remotes.next_news();
        found.is_some()
    });
    match found {
        Some(News::Notified { notice: NOTICE, status }) => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_peer_says_of_a_notify_is_told_once_and_no_more_than_it_may_say() {
    let mut engine = Engine::new(config());
    let mut peer = engine.connect(2);
    let remote = Remote::new(peer.seat, 4, GrantId(1), 64, false);
    for (said, told) in [
        (Status::OK, Status::OK),
        (Status::NOT_DONE, Status::NOT_DONE),
        (Status::NOT_ALLOWED, Status::NOT_ALLOWED),
        (Status::TIMED_OUT, Status::INTERNAL),
        (Status(-9999), Status::INTERNAL),
    ] {
        let request = notify(&mut engine, &mut peer, &remote);
        peer.say(0, &notified(request, said));
        assert_eq!(news(&mut engine, &mut peer), told);
    }
    // No more at once than the other side takes, and all of them end with the connection.
    let mut sent = 0;
    while engine.remotes.notify(&remote, &TOLD, NOTICE).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, line::NOTICES);
    assert_eq!(engine.remotes.notify(&remote, &TOLD, NOTICE), Err(NoPart::Busy));
    engine.remotes.end(peer.seat);
    for _ in 0..sent {
        assert_eq!(news(&mut engine, &mut peer), Status::REGION_GONE);
    }
    assert_eq!(engine.remotes.notify(&remote, &TOLD, NOTICE), Err(NoPart::Gone));
    engine.until_quiet(&mut [&mut peer]);
    assert!(engine.remotes.next_news().is_none());
}

#[test]
fn a_peer_that_answers_no_notify_is_found_dead() {
    let mut engine = Engine::new(RemoteConfig { dead_after_ns: 200_000_000, ..config() });
    let mut peer = engine.connect(2);
    // The one PING that every connection begins with is answered: else it would be dead without a NOTIFY.
    let (lane, ping) = peer.next_by(&mut engine, |message| matches!(message, Message::Ping { .. }));
    let Heard::Ping(number) = ping else { panic!("{ping:?}") };
    peer.say(lane, &Message::Pong { number });
    let quiet = Instant::now();
    engine.until(&mut [&mut peer], |_, _| quiet.elapsed() > Duration::from_millis(400));
    assert!(!peer.is_down);
    let remote = Remote::new(peer.seat, 4, GrantId(1), 64, false);
    engine.remotes.notify(&remote, &TOLD, NOTICE).unwrap();
    let begun = Instant::now();
    let found = loop {
        engine.poll();
        // It takes what comes, and says nothing more.
        peer.poll();
        if let Some(found) = engine.remotes.next_news() {
            break found;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "it waits for ever");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(matches!(found, News::Notified { status: Status::REGION_GONE, .. }));
}
