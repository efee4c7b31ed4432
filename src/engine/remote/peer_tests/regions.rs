//! Regions that either side opens.

use super::*;
use crate::engine::mail::PeerExport;
use crate::engine::remote::{Here, Remote};
use crate::link::{LocalPiece, RemotePiece};
use crate::peer::MAP_MEMORY;

/// Takes the peer's part in an opening of this side's.
fn open_there(
    engine: &mut Engine,
    peer: &mut Peer,
    request: u64,
    number: u32,
    bytes: u64,
) -> Result<Arc<Remote>, Status> {
    engine.remotes.open(peer.seat, request, "theirs", Rights::READ);
    assert_eq!(
        peer.next(engine, |message| matches!(message, Message::Open { name: "theirs", .. })),
        Heard::Open(request)
    );
    let status = if number == 0 { Status::NAME_UNKNOWN } else { Status::OK };
    let grant = if number == 0 { 0 } else { 55 };
    peer.say(0, &Message::Opened { request, status, number, grant, bytes, text: "why" });
    answer(engine, peer, request)
}

fn answer(engine: &mut Engine, peer: &mut Peer, wanted: u64) -> Result<Arc<Remote>, Status> {
    match engine.event(&mut [peer]) {
        Event::RemoteOpened { request, answer } => {
            assert_eq!(request, wanted);
            answer.map_err(|(status, _)| status)
        }
        _ => panic!("another event"),
    }
}

#[test]
fn an_opened_region_is_granted_with_its_rights_until_it_is_closed() {
    let mut engine = Engine::new(config());
    let mut peer = engine.connect(2);
    let memory = region(4096);
    fill(&memory, 3);
    let (read_only, grant) = engine.open(&mut peer, &memory, Rights::READ);
    let (both, _) = engine.open(&mut peer, &memory, Rights::READ_WRITE);
    assert!(both > read_only);
    let into = region(4096);
    let read = |peer: &mut Peer, id| {
        let to = LocalPiece::of_region(&into, 0, 100).unwrap();
        let from = RemotePiece { grant, offset: 3, len: 100 };
        peer.link.post(1, &[Operation::Read { id, from: &[from], to: &[to] }]).unwrap();
    };
    read(&mut peer, 1);
    engine.until(&mut [&mut peer], |_, peers| peers[0].completed == [(1, true)]);
    assert_eq!(bytes_of(&into, 0, 100), bytes_of(&memory, 3, 100));
    assert!(engine.remotes.uses(&memory));
    peer.say(0, &Message::Close { number: both });
    peer.say(0, &Message::Close { number: read_only });
    engine.until(&mut [&mut peer], |engine, _| !engine.remotes.uses(&memory));
    assert_eq!(Arc::strong_count(&memory), 1);
    read(&mut peer, 2);
    engine.until(&mut [&mut peer], |_, peers| peers[0].completed.len() == 2);
    assert_eq!(peer.completed[1], (2, false), "it is closed");
    assert!(!peer.is_down);
}

#[test]
fn a_withdrawn_region_is_used_no_more_and_the_peer_is_told_once() {
    let mut engine = Engine::new(config());
    let (mut peer, mut other) = (engine.connect(2), engine.connect(2));
    let (memory, kept) = (region(4096), region(4096));
    let (number, grant) = engine.open(&mut peer, &memory, Rights::READ);
    let (of_other, _) = engine.open(&mut other, &memory, Rights::READ);
    let (kept_number, _) = engine.open(&mut peer, &kept, Rights::READ);
    engine.remotes.withdraw(&memory);
    engine.remotes.withdraw(&memory);
    engine.until(&mut [&mut peer, &mut other], |engine, _| !engine.remotes.uses(&memory));
    assert!(engine.remotes.uses(&kept));
    let is_it = |message: &Message<'_>| matches!(message, Message::Withdrawn { .. });
    assert_eq!(peer.next(&mut engine, is_it), Heard::Withdrawn(number));
    assert_eq!(other.next(&mut engine, is_it), Heard::Withdrawn(of_other));
    // Who has not heard of it asks for it still; who has, closes it.
    let to = LocalPiece::of_region(&region(64), 0, 10).unwrap();
    let from = RemotePiece { grant, offset: 0, len: 10 };
    peer.link.post(1, &[Operation::Read { id: 1, from: &[from], to: &[to] }]).unwrap();
    engine.until(&mut [&mut peer], |_, peers| peers[0].completed == [(1, false)]);
    peer.say(0, &Message::Close { number });
    let (again, _) = engine.open(&mut peer, &kept, Rights::READ);
    assert!(again > kept_number, "numbers come once");
    assert!(!peer.heard.iter().any(|(_, bytes)| is_it(&Message::read(bytes).unwrap())) && !peer.is_down);
    // The place of one that the peer has closed is gone; it may not close it again.
    peer.say(0, &Message::Close { number });
    engine.until(&mut [&mut peer], |engine, _| engine.counters.violations == 1);
}

#[test]
fn a_region_is_open_before_it_is_withdrawn() {
    let mut engine = Engine::new(config());
    let mut peer = engine.connect(1);
    peer.say(0, &Message::Open { request: 7, rights: 1, name: "x" });
    let Event::PeerAsks { seat, .. } = engine.event(&mut [&mut peer]) else { panic!("another event") };
    let memory = region(64);
    engine.remotes.opened(
        seat,
        7,
        Ok(PeerExport { region: memory.clone(), rights: Rights::READ, exporter: 0, exposed: None }),
    );
    engine.remotes.withdraw(&memory);
    peer.heard.clear();
    engine.until(&mut [&mut peer], |_, peers| peers[0].heard.iter().filter(|(_, bytes)| bytes[0] != 13).count() == 2);
    let said = peer.heard.iter().map(|(_, bytes)| heard(&Message::read(bytes).unwrap()));
    let said: Vec<_> = said.filter(|heard| !matches!(heard, Heard::Ping(_))).collect();
    assert!(matches!(said[..], [Heard::Opened { number: 1, .. }, Heard::Withdrawn(1)]), "{said:?}");
}

#[test]
fn what_the_control_thread_refuses_is_told_with_its_words() {
    let mut engine = Engine::new(config());
    let mut peer = engine.connect(1);
    peer.say(0, &Message::Open { request: 7, rights: 1, name: "" });
    let Event::PeerAsks { seat, request: 7, .. } = engine.event(&mut [&mut peer]) else { panic!("another event") };
    engine.remotes.opened(seat, 8, Err((Status::NO_RIGHT, String::new())));
    engine.remotes.opened(seat, 7, Err((Status::NAME_UNKNOWN, "no such name".to_owned())));
    engine.remotes.opened(seat, 7, Err((Status::NO_RIGHT, "twice".to_owned())));
    engine.until(&mut [&mut peer], |_, peers| peers[0].heard.iter().any(|(_, bytes)| bytes.ends_with(b"no such name")));
    let refused = Heard::Opened { status: Status::NAME_UNKNOWN, number: 0, grant: 0, bytes: 0 };
    let is_it = |message: &Message<'_>| matches!(message, Message::Opened { .. });
    assert_eq!(peer.next(&mut engine, is_it), refused);
    // A region that is withdrawn while it is asked for.
    let gone = region(64);
    gone.withdraw();
    peer.say(0, &Message::Open { request: 9, rights: 1, name: "x" });
    let _ = engine.event(&mut [&mut peer]);
    engine.remotes.opened(
        seat,
        9,
        Ok(PeerExport { region: gone.clone(), rights: Rights::READ, exporter: 0, exposed: None }),
    );
    let refused = Heard::Opened { status: Status::REGION_GONE, number: 0, grant: 0, bytes: 0 };
    assert_eq!(peer.next(&mut engine, is_it), refused);
    assert_eq!(Arc::strong_count(&gone), 1);
}

#[test]
fn a_peer_may_open_many_and_many_are_withdrawn_at_once() {
    let mut engine = Engine::new(config());
    let mut peer = engine.connect(1);
    let memory = region(4096);
    let numbers: Vec<u32> = (0..500).map(|_| engine.open(&mut peer, &memory, Rights::READ).0).collect();
    engine.remotes.withdraw(&memory);
    for number in numbers {
        let is_it = |message: &Message<'_>| matches!(message, Message::Withdrawn { .. });
        assert_eq!(peer.next(&mut engine, is_it), Heard::Withdrawn(number));
    }
    assert!(!engine.remotes.uses(&memory));
}

#[test]
fn an_opening_of_this_side_is_answered_once() {
    let mut engine = Engine::new(config());
    let mut peer = engine.connect(2);
    let remote = open_there(&mut engine, &mut peer, 5, 3, 1000).unwrap();
    assert_eq!((remote.seat, remote.number, remote.grant, remote.bytes), (peer.seat, 3, GrantId(55), 1000));
    assert_eq!(open_there(&mut engine, &mut peer, 6, 0, 0).unwrap_err(), Status::NAME_UNKNOWN);
    let other = open_there(&mut engine, &mut peer, 7, 9, 1 << 56).unwrap();
    peer.say(0, &Message::Withdrawn { number: 3 });
    let Event::RemoteWithdrawn(withdrawn) = engine.event(&mut [&mut peer]) else { panic!("another event") };
    assert!(Arc::ptr_eq(&withdrawn, &remote) && remote.is_withdrawn() && !other.is_withdrawn());
    for (remote, number) in [(&other, 9), (&remote, 3)] {
        engine.remotes.close_region(remote);
        engine.remotes.close_region(remote);
        let is_it = |message: &Message<'_>| matches!(message, Message::Close { .. });
        assert_eq!(peer.next(&mut engine, is_it), Heard::Close(number));
        assert!(!peer.heard.iter().any(|(_, bytes)| is_it(&Message::read(bytes).unwrap())));
    }
    // It was on its way when the region was closed.
    peer.say(0, &Message::Withdrawn { number: 9 });
    assert!(open_there(&mut engine, &mut peer, 8, 10, 1).is_ok());
}

#[test]
fn many_openings_wait_for_each_other_and_all_end_with_the_connection() {
    let mut engine = Engine::new(config());
    let mut peer = engine.connect(1);
    (0..300).for_each(|request| engine.remotes.open(peer.seat, request, "theirs", Rights::READ));
    for request in 0..150 {
        let is_it = |message: &Message<'_>| matches!(message, Message::Open { .. });
        assert_eq!(peer.next(&mut engine, is_it), Heard::Open(request), "in their order");
        let number = request as u32 + 1;
        peer.say(0, &Message::Opened { request, status: Status::OK, number, grant: 1, bytes: 10, text: "" });
    }
    let remotes: Vec<_> = (0..150).map(|request| answer(&mut engine, &mut peer, request).unwrap()).collect();
    peer.link.shut_down();
    let mut refused: Vec<u64> = (150..300)
        .map(|_| match engine.event(&mut [&mut peer]) {
            Event::RemoteOpened { request, answer: Err((Status::REGION_GONE, _)) } => request,
            _ => panic!("another event"),
        })
        .collect();
    refused.sort_unstable();
    assert_eq!(refused, (150..300).collect::<Vec<_>>());
    assert!(remotes.iter().all(|remote| remote.is_withdrawn()));
    engine.until_quiet(&mut [&mut peer]);
    engine.remotes.open(peer.seat, 1000, "theirs", Rights::READ);
    let Event::PeerDown { .. } = engine.event(&mut []) else { panic!("another event") };
    assert!(matches!(engine.event(&mut []), Event::RemoteOpened { request: 1000, answer: Err(_) }));
}

#[test]
fn who_maps_memory_says_once_where_it_is() {
    let mut engine = Engine::new(config());
    engine.features = MAP_MEMORY;
    let mut peer = engine.connect(2);
    let here = Here { host: [1; 16], token: [2; 16], path: "/run/socket".to_owned() };
    engine.remotes.say_where(peer.seat, here.clone());
    let told = |message: &Message<'_>| *message == Message::Here { host: [1; 16], token: [2; 16], path: "/run/socket" };
    assert_eq!(peer.next_by(&mut engine, told), (0, Heard::Other));
    peer.say(0, &Message::Here { host: [3; 16], token: [4; 16], path: "/there" });
    let Event::PeerHere { seat, here } = engine.event(&mut [&mut peer]) else { panic!("another event") };
    assert_eq!((seat, here), (peer.seat, Here { host: [3; 16], token: [4; 16], path: "/there".to_owned() }));
    peer.say(0, &Message::Here { host: [3; 16], token: [4; 16], path: "/there" });
    engine.until(&mut [&mut peer], |engine, _| engine.counters.violations == 1);
    let mut other = engine.connect(2);
    other.say(1, &Message::Here { host: [3; 16], token: [4; 16], path: "/there" });
    engine.until(&mut [&mut other], |engine, _| engine.counters.violations == 2);
}

#[test]
fn a_region_is_found_by_its_number_while_the_peer_has_it_open() {
    let mut engine = Engine::new(config());
    let mut peer = engine.connect(1);
    let memory = region(4096);
    let (first, _) = engine.open(&mut peer, &memory, Rights::READ);
    let (second, _) = engine.open(&mut peer, &memory, Rights::READ_WRITE);
    let found = |engine: &mut Engine, number| {
        let found = engine.remotes.opened_as(SeatId(1), number);
        found.map(|(region, rights)| (Arc::ptr_eq(&region, &memory), rights))
    };
    assert_eq!(found(&mut engine, first), Some((true, Rights::READ)));
    assert_eq!(found(&mut engine, second), Some((true, Rights::READ_WRITE)));
    assert_eq!(found(&mut engine, second + 1), None);
    assert!(engine.remotes.opened_as(SeatId(2), first).is_none());
    peer.say(0, &Message::Close { number: first });
    engine.until(&mut [&mut peer], |engine, _| engine.remotes.opened_as(SeatId(1), first).is_none());
    engine.remotes.withdraw(&memory);
    assert_eq!(found(&mut engine, second), None);
}

#[test]
fn the_control_thread_hears_once_of_a_region_that_its_owner_withdraws() {
    let mut engine = Engine::new(config());
    let mut peer = engine.connect(1);
    let remote = open_there(&mut engine, &mut peer, 5, 3, 1000).unwrap();
    (0..3).for_each(|_| peer.say(0, &Message::Withdrawn { number: 3 }));
    let Event::RemoteWithdrawn(withdrawn) = engine.event(&mut [&mut peer]) else { panic!("another event") };
    assert!(Arc::ptr_eq(&withdrawn, &remote) && remote.is_withdrawn());
    // The next thing that it hears is of another one.
    assert_eq!(open_there(&mut engine, &mut peer, 6, 0, 0).unwrap_err(), Status::NAME_UNKNOWN);
}
