//! What no engine does ends the connection of who does it, and nobody else's.

use super::*;

/// Does it on a connection with an open region, and expects that to end while another one goes on.
fn ends(what: &str, lanes: usize, act: impl FnOnce(&mut Engine, &mut Peer, u32)) {
    let mut engine = Engine::new(config());
    let (mut peer, mut other) = (engine.connect(lanes), engine.connect(2));
    let memory = region(256 << 10);
    fill(&memory, 2);
    let (number, _) = engine.open(&mut peer, &memory, Rights::READ_WRITE);
    let (of_other, _) = engine.open(&mut other, &memory, Rights::READ);
    act(&mut engine, &mut peer, number);
    let begun = Instant::now();
    while engine.counters.ended == 0 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{what}: it goes on");
        engine.poll();
        peer.poll();
        other.poll();
    }
    assert_eq!(engine.counters.violations, 1, "{what}");
    assert_eq!(engine.remotes.serving.left(), (0, 0), "{what}");
    let (landed, landing) = other.landing(100);
    let list = list(&[(of_other, Some(1), 50), (of_other, Some(1000), 50)]);
    other.say(1, &Message::Pack { id: chunk(1, 1), bytes: 100, landing, list: &list });
    assert!(matches!(other.answer(&mut engine, chunk(1, 1)), (1, Heard::Done(..))), "{what}");
    assert_eq!(bytes_of(&landed, 0, 50), bytes_of(&memory, 1, 50));
    peer.link.shut_down();
    engine.until(&mut [&mut peer], |_, peers| peers[0].link.is_quiet());
}

/// Says it.
fn says(what: &str, lane: usize, message: &Message<'_>) {
    ends(what, 2, |_, peer, _| peer.say(lane, message));
}

#[test]
fn messages_out_of_place() {
    let id = chunk(1, 1);
    says(
        "no OPEN waits",
        0,
        &Message::Opened { request: 1, status: Status::OK, number: 1, grant: 1, bytes: 1, text: "" },
    );
    says("nothing is open there", 0, &Message::Withdrawn { number: 1 });
    says("no region", 0, &Message::Withdrawn { number: 0 });
    says("not open", 0, &Message::Close { number: 99 });
    says("no rights", 0, &Message::Open { request: 1, rights: 0, name: "a" });
    says("strange rights", 0, &Message::Open { request: 1, rights: 4, name: "a" });
    says("regions by another lane", 1, &Message::Open { request: 1, rights: 1, name: "a" });
    says("regions by another lane", 1, &Message::Withdrawn { number: 1 });
    says("no PING waits", 0, &Message::Pong { number: 77 });
    says("slots twice", 0, &Message::Slots { grant: 1, slots: 1, slot_bytes: 4096 });
    says("no command was given", 0, &Message::Done { id, queue_ns: 0, pack_ns: 0 });
    says("no NOTIFY waits", 0, &Message::Notified { request: 1, status: Status::OK });
    let notify = Message::Notify { request: 1, number: 1, user_data: 0, offset: 0, payload: &[] };
    says("notifications by another lane", 1, &notify);
    says("no cancel", 0, &Message::Drained { batch: BatchId(1) });
    says("no memory is mapped", 0, &Message::Here { host: [1; 16], token: [2; 16], path: "/here" });
}

#[test]
fn two_at_once_where_one_is_taken() {
    ends("two PINGs", 1, |engine, peer, _| {
        // Both are there before the first is answered.
        peer.say(0, &Message::Ping { number: 1 });
        peer.say(0, &Message::Ping { number: 2 });
        wait_for_bytes(engine);
    });
    ends("two OPENs of one number", 2, |_, peer, _| {
        (0..2).for_each(|_| peer.say(0, &Message::Open { request: 1, rights: 1, name: "a" }));
    });
    ends("a CLOSE twice", 2, |_, peer, number| (0..2).for_each(|_| peer.say(0, &Message::Close { number })));
    ends("a CANCEL of what is being cancelled", 1, |engine, peer, number| {
        let list = list(&[(number, Some(0), 200_000)]);
        // What the peer does not take keeps the batch alive.
        for i in 0..60 {
            let (_, landing) = peer.landing(200_000);
            peer.say(0, &Message::Pack { id: chunk(1, i), bytes: 200_000, landing, list: &list });
        }
        (0..2).for_each(|_| peer.say(0, &Message::Cancel { batch: BatchId(1) }));
        engine.until(&mut [], |engine, _| engine.counters.violations == 1);
    });
    ends("a CANCEL twice by a lane", 2, |_, peer, _| {
        (0..2).for_each(|_| peer.say(0, &Message::Cancel { batch: BatchId(1) }));
    });
}

/// Loopback delivers within this.
fn wait_for_bytes(_: &mut Engine) {
    std::thread::sleep(Duration::from_millis(20));
}

#[test]
fn more_than_is_taken() {
    ends("OPENs", 2, |_, peer, _| {
        (0..100).for_each(|request| peer.say(0, &Message::Open { request, rights: 1, name: "a" }));
    });
    ends("CANCELs", 2, |_, peer, _| (0..17).for_each(|batch| peer.say(0, &Message::Cancel { batch: BatchId(batch) })));
}

#[test]
fn commands_that_may_not_be_given() {
    let unpack = |peer: &mut Peer, id, slot, number| {
        let list = list(&[(number, Some(0), 1000), (number, Some(5000), 1000)]);
        peer.say(0, &Message::Unpack { id, bytes: 2000, slot, list: &list });
    };
    ends("no such slot", 1, |_, peer, number| unpack(peer, chunk(1, 1), 2, number));
    ends("a slot in use", 1, |engine, peer, number| {
        unpack(peer, chunk(1, 1), 0, number);
        unpack(peer, chunk(1, 2), 0, number);
        wait_for_bytes(engine);
    });
    ends("a chunk in use", 1, |engine, peer, number| {
        unpack(peer, chunk(1, 1), 0, number);
        unpack(peer, chunk(1, 1), 1, number);
        wait_for_bytes(engine);
    });
}

#[test]
fn bytes_that_are_no_message() {
    for bytes in [
        &[][..],
        &[0],
        &[99; 16],
        &[1; 16],
        &[3, 0, 0, 0, 0, 0, 0, 0, 1],
        &[13, 1, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8],
    ] {
        ends("nonsense", 2, |_, peer, _| peer.say_bytes(1, bytes));
    }
}

#[test]
fn random_words_end_one_connection_or_none() {
    for seed in 0..60u64 {
        let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = |below: u64| {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word % below
        };
        let mut engine = Engine::new(config());
        let (mut peer, mut other) = (engine.connect(2), engine.connect(1));
        let memory = region(256 << 10);
        let (number, _) = engine.open(&mut peer, &memory, Rights::READ_WRITE);
        for _ in 0..60 {
            let id = chunk(random(3), random(6) as u32);
            let (bytes, lane) = (random(70_000) as u32, random(2) as usize);
            let pieces = [
                (random(3) as u32 + number - 1, Some(random(300_000)), bytes / 2),
                (number, Some(random(200_000)), bytes - bytes / 2),
            ];
            let list = list(&pieces[..1 + random(2) as usize]);
            let landing = if random(4) == 0 { random(100) } else { peer.landing(bytes.max(1)).1 };
            let message = match random(30) {
                0..=12 => Message::Pack { id, bytes, landing, list: &list },
                13..=22 => Message::Unpack { id, bytes, slot: random(3) as u32, list: &list },
                23..=24 => Message::Cancel { batch: id.batch },
                25 => Message::Open { request: random(5), rights: random(5), name: "x" },
                26 => Message::Close { number: random(4) as u32 },
                27 => Message::Ping { number: random(9) },
                28 => Message::Drained { batch: id.batch },
                _ => Message::Failed { id, fault: crate::pipeline::LINK_LOST },
            };
            if random(8) > 0 || matches!(message, Message::Pack { .. } | Message::Unpack { .. }) {
                peer.say(lane, &message);
            }
            for _ in 0..random(4) {
                engine.poll();
                peer.poll();
            }
        }
        peer.link.shut_down();
        engine.until(&mut [&mut peer, &mut other], |engine, _| engine.counters.ended == 1);
        assert_eq!(engine.remotes.serving.left(), (0, 0), "seed {seed}");
        assert!(!engine.remotes.uses(&memory), "seed {seed}");
        other.say(0, &Message::Ping { number: 5 });
        assert_eq!(other.next(&mut engine, |message| matches!(message, Message::Pong { .. })), Heard::Pong(5));
    }
}

#[test]
fn a_peer_that_is_silent_is_dead_where_something_is_awaited() {
    let mut engine = Engine::new(RemoteConfig { dead_after_ns: 60_000_000, ..config() });
    let (peer, mut other) = (engine.connect(2), engine.connect(2));
    // The first PING is answered by the other one, and by this one never.
    other.next(&mut engine, |message| matches!(message, Message::Ping { .. }));
    let first = |(_, bytes): &(usize, Vec<u8>)| matches!(Message::read(bytes), Ok(Message::Ping { .. }));
    assert!(!other.heard.iter().any(first));
    other.say(1, &Message::Pong { number: 1 });
    engine.until(&mut [&mut other], |engine, _| engine.counters.ended == 1);
    assert_eq!(engine.counters.violations, 0);
    let begun = Instant::now();
    engine.until(&mut [&mut other], |_, _| begun.elapsed() > Duration::from_millis(150));
    assert_eq!(engine.counters.ended, 1, "nothing is awaited of the other");
    drop(peer);
}

#[test]
fn a_peer_that_takes_nothing_is_dead_and_one_that_answers_pings_is_not() {
    // By the first lane, which moves only when it is polled.
    let dead_after_ns = 100_000_000;
    let mut engine = Engine::new(RemoteConfig { dead_after_ns, slot_bytes: 8 << 20, ..config() });
    let (mut peer, mut other) = (engine.connect(2), engine.connect(2));
    peer.say(1, &Message::Pong { number: 1 });
    other.say(1, &Message::Pong { number: 1 });
    let memory = region(8 << 20);
    let (number, _) = engine.open(&mut peer, &memory, Rights::READ);
    engine.remotes.open(other.seat, 1, "never answered", Rights::READ);
    let (_, landing) = peer.landing(8 << 20);
    let list = list(&[(number, Some(0), 8 << 20)]);
    peer.say(0, &Message::Pack { id: chunk(1, 0), bytes: 8 << 20, landing, list: &list });
    let mut answered = 0;
    let mut answer = |peer: &mut Peer| {
        let pings: Vec<_> =
            peer.heard.drain(..).map(|(lane, bytes)| (lane, heard(&Message::read(&bytes).unwrap()))).collect();
        for (lane, heard) in pings {
            // The first one was answered above.
            if let Heard::Ping(number @ 2..) = heard {
                answered += 1;
                peer.say(lane, &Message::Pong { number });
            }
        }
    };
    let begun = Instant::now();
    other.heard.clear();
    engine.until(&mut [&mut other], |engine, peers| {
        answer(peers[0]);
        engine.counters.ended == 1 && begun.elapsed() > Duration::from_millis(250)
    });
    assert!(answered > 1, "a lane on which an OPEN waits is asked again and again");
    assert_eq!(engine.counters.violations, 0);
    drop((peer, other));
}
