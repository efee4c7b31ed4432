//! Commands: what they do, what they are refused for, and what is left behind.

use super::*;
use crate::link::{LocalPiece, RemotePiece};

const READ_WRITE: Rights = Rights::READ_WRITE;

/// An engine with a peer that has opened a region.
fn opened(lanes: usize, rights: Rights) -> (Engine, Peer, Arc<Region>, u32) {
    let mut engine = Engine::new(config());
    let mut peer = engine.connect(lanes);
    let memory = region(256 << 10);
    fill(&memory, 1);
    let (number, _) = engine.open(&mut peer, &memory, rights);
    (engine, peer, memory, number)
}

/// What pieces say, one behind the other.
fn naive(memory: &Region, pieces: &[(u32, Option<u64>, u32)]) -> Vec<u8> {
    let piece = |(_, offset, len): &(u32, Option<u64>, u32)| {
        offset.map_or(vec![0; *len as usize], |offset| bytes_of(memory, offset, *len))
    };
    pieces.iter().flat_map(piece).collect()
}

fn total(pieces: &[(u32, Option<u64>, u32)]) -> u32 {
    pieces.iter().map(|(_, _, len)| len).sum()
}

fn pack(peer: &mut Peer, lane: usize, id: ChunkId, bytes: u32, list: &[u8]) -> Arc<Region> {
    let (memory, landing) = peer.landing(bytes.max(1));
    peer.say(lane, &Message::Pack { id, bytes, landing, list });
    memory
}

/// Packs it, and asks again as long as there is no slot. Gives what landed, and the packing's time.
#[track_caller]
fn packed(
    engine: &mut Engine,
    peer: &mut Peer,
    lane: usize,
    id: ChunkId,
    bytes: u32,
    list: &[u8],
) -> (Arc<Region>, u32) {
    let mut memory = pack(peer, lane, id, bytes, list);
    loop {
        match peer.answer(engine, id) {
            (by, Heard::Done(_, _, pack_ns)) => {
                assert_eq!(by, lane);
                return (memory, pack_ns);
            }
            (_, Heard::Refused(_)) => memory = pack(peer, lane, id, bytes, list),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_is_packed_lands_before_the_answer_on_the_lane_of_the_command() {
    for lanes in [1, 3] {
        let (mut engine, mut peer, memory, number) = opened(lanes, Rights::READ);
        let shapes: [&[(u32, Option<u64>, u32)]; 5] = [
            &[(number, Some(77), 1000)],
            &[(number, Some(0), SLOT_BYTES)],
            &[(number, Some(5), 3), (number, Some(100_000), 200), (number, Some(0), 1)],
            &[(number, None, 300)],
            &[(number, Some(9), 100), (number, None, 50), (number, Some(9), 100)],
        ];
        for i in 0..shapes.len() * 3 {
            let shape = shapes[i % 5];
            let id = chunk(1, i as u32);
            let (landed, pack_ns) = packed(&mut engine, &mut peer, i % lanes, id, total(shape), &list(shape));
            assert_eq!(pack_ns > 0, i % 5 > 1, "one piece is not packed");
            let expected = naive(&memory, shape);
            assert_eq!(bytes_of(&landed, 0, expected.len() as u32), expected, "shape {}", i % 5);
            assert_eq!(bytes_of(&landed, expected.len() as u64, 8), [0; 8], "behind it");
        }
        engine.until(&mut [&mut peer], |engine, _| engine.remotes.serving.left() == (0, 0));
    }
}

#[test]
fn what_has_landed_is_unpacked_before_the_answer() {
    for lanes in [1, 3] {
        let (mut engine, mut peer, memory, number) = opened(lanes, Rights::WRITE);
        let slots = peer.slots();
        let bytes = region(SLOT_BYTES.into());
        for i in 0..20u32 {
            fill(&bytes, (i + 2).into());
            let (lane, slot, id) = (i as usize % lanes, i % 2, chunk(2, i));
            let pieces =
                [(number, Some(3), 100), (number, Some(150_000), 5000), (number, Some(u64::from(i) * 7000 + 200), 13)];
            let from = LocalPiece::of_region(&bytes, 0, total(&pieces)).unwrap();
            let to = RemotePiece { grant: slots, offset: u64::from(slot * SLOT_BYTES), len: total(&pieces) };
            let write = Operation::Write { id: 5, from: &[from], to: &[to], acknowledged: false };
            peer.link.post(lane, &[write]).unwrap();
            peer.say(lane, &Message::Unpack { id, bytes: total(&pieces), slot, list: &list(&pieces) });
            let (by, answer) = peer.answer(&mut engine, id);
            assert!(matches!(answer, Heard::Done(_, _, 1..)) && by == lane, "{answer:?}");
            assert_eq!(naive(&memory, &pieces), bytes_of(&bytes, 0, total(&pieces)));
        }
        engine.until(&mut [&mut peer], |engine, _| engine.remotes.serving.left() == (0, 0));
    }
}

#[test]
fn what_cannot_be_done_fails_by_itself() {
    let (mut engine, mut peer, _, number) = opened(2, Rights::READ);
    let withdrawn = region(4096);
    let (gone, _) = engine.open(&mut peer, &withdrawn, READ_WRITE);
    engine.remotes.withdraw(&withdrawn);
    let writable = region(4096);
    let (write_only, _) = engine.open(&mut peer, &writable, Rights::WRITE);
    let two = |number, offset| list(&[(number, Some(offset), 8), (number, Some(0), 8)]);
    let cases = [
        (list(&[(number, Some(0), 16)]), 16, Status::OK),
        (two(number, 64), 16, Status::OK),
        (list(&[(number + 99, Some(0), 16)]), 16, Status::REGION_GONE),
        (list(&[(gone, Some(0), 16)]), 16, Status::REGION_GONE),
        (list(&[(write_only, Some(0), 16)]), 16, Status::NO_RIGHT),
        (two(write_only, 64), 16, Status::NO_RIGHT),
        (list(&[(number, Some((256 << 10) - 15), 16)]), 16, Status::OUT_OF_RANGE),
        (two(number, (256 << 10) - 7), 16, Status::OUT_OF_RANGE),
        (list(&[(number, Some(0), 16)]), 17, Status::BAD_MESSAGE),
        (list(&[(number, Some(0), 16)]), 15, Status::LIMIT_EXCEEDED),
        (two(number, 64), 17, Status::BAD_MESSAGE),
        (two(number, 64), 15, Status::LIMIT_EXCEEDED),
        (two(number, 64), 0, Status::LIMIT_EXCEEDED),
        (Vec::new(), 0, Status::BAD_MESSAGE),
        (Vec::new(), 10, Status::BAD_MESSAGE),
        (vec![7; 40], 10, Status::INVALID_FIELD),
        (list(&[(number, Some(0), SLOT_BYTES), (number, Some(0), 1)]), SLOT_BYTES + 1, Status::LIMIT_EXCEEDED),
    ];
    for (i, (list, bytes, status)) in cases.iter().enumerate() {
        let id = chunk(3, i as u32);
        let landed = pack(&mut peer, i % 2, id, *bytes, list);
        let (lane, answer) = peer.answer(&mut engine, id);
        assert_eq!(lane, i % 2);
        match answer {
            Heard::Done(..) => assert!(status.is_ok(), "case {i}"),
            Heard::Failed(_, fault) => {
                assert_eq!(fault.status, *status, "case {i}");
                assert_eq!(bytes_of(&landed, 0, 8), [0; 8], "case {i}: bytes of what failed");
            }
            other => panic!("case {i}: {other:?}"),
        }
    }
    engine.until(&mut [&mut peer], |engine, _| engine.remotes.serving.left() == (0, 0));
    assert!(!peer.is_down);
}

#[test]
fn what_cannot_be_unpacked_fails_by_itself() {
    let (mut engine, mut peer, memory, number) = opened(2, READ_WRITE);
    let (read_only, _) = engine.open(&mut peer, &memory, Rights::READ);
    let before = bytes_of(&memory, 0, 4096);
    let cases = [
        (vec![(read_only, Some(0), 16)], 16, Status::NO_RIGHT),
        (vec![(number + 99, Some(0), 16)], 16, Status::REGION_GONE),
        (vec![(number, None, 16)], 16, Status::INVALID_FIELD),
        (vec![(number, Some(0), 16)], 17, Status::BAD_MESSAGE),
        (vec![(number, Some((256 << 10) - 15), 16)], 16, Status::OUT_OF_RANGE),
        (vec![(number, Some(8000), SLOT_BYTES + 1)], SLOT_BYTES + 1, Status::LIMIT_EXCEEDED),
    ];
    for (i, (pieces, bytes, status)) in cases.iter().enumerate() {
        let id = chunk(4, i as u32);
        peer.say(i % 2, &Message::Unpack { id, bytes: *bytes, slot: 0, list: &list(pieces) });
        let (lane, answer) = peer.answer(&mut engine, id);
        assert!(matches!(answer, Heard::Failed(_, fault) if fault.status == *status), "case {i}: {answer:?}");
        assert_eq!(lane, i % 2);
    }
    assert_eq!(bytes_of(&memory, 0, 4096), before);
    engine.until(&mut [&mut peer], |engine, _| engine.remotes.serving.left() == (0, 0));
    assert!(!peer.is_down);
}

#[test]
fn a_region_that_is_withdrawn_while_its_commands_travel_fails_them() {
    let (mut engine, mut peer, memory, number) = opened(2, READ_WRITE);
    // The control thread says so to everybody who maps it, before it tells the poller.
    memory.withdraw();
    let two = list(&[(number, Some(64), 8), (number, Some(0), 8)]);
    for (i, list) in [list(&[(number, Some(0), 16)]), two.clone()].iter().enumerate() {
        let id = chunk(1, i as u32);
        let landed = pack(&mut peer, 1, id, 16, list);
        let (_, answer) = peer.answer(&mut engine, id);
        assert!(matches!(answer, Heard::Failed(_, fault) if fault.status == Status::REGION_GONE), "{answer:?}");
        assert_eq!(bytes_of(&landed, 0, 16), [0; 16]);
    }
    peer.say(0, &Message::Unpack { id: chunk(2, 0), bytes: 16, slot: 0, list: &two });
    let (_, answer) = peer.answer(&mut engine, chunk(2, 0));
    assert!(matches!(answer, Heard::Failed(_, fault) if fault.status == Status::REGION_GONE), "{answer:?}");
    engine.remotes.withdraw(&memory);
    engine.until(&mut [&mut peer], |engine, _| !engine.remotes.uses(&memory));
    assert_eq!(Arc::strong_count(&memory), 1);
    assert!(!peer.is_down);
}

#[test]
fn a_region_is_in_use_as_long_as_a_command_is_at_it() {
    let mut engine = Engine::new(RemoteConfig { slot_bytes: 8 << 20, ..config() });
    let mut peer = engine.connect(2);
    let (packed, plain, kept) = (region(8 << 20), region(8 << 20), region(64));
    let (of_packed, _) = engine.open(&mut peer, &packed, Rights::READ);
    let (of_plain, _) = engine.open(&mut peer, &plain, Rights::READ);
    // More than the kernels hold for who does not read.
    let bytes = 8 << 20;
    let list_of_two = list(&[(of_packed, Some(1), bytes - 1), (of_packed, Some(0), 1)]);
    let landings = [peer.landing(bytes), peer.landing(bytes)];
    peer.say(0, &Message::Pack { id: chunk(1, 0), bytes, landing: landings[0].1, list: &list_of_two });
    peer.say(
        0,
        &Message::Pack { id: chunk(1, 1), bytes, landing: landings[1].1, list: &list(&[(of_plain, Some(0), bytes)]) },
    );
    engine.until(&mut [], |engine, _| engine.remotes.serving.left() == (2, 1));
    for memory in [&packed, &plain] {
        engine.remotes.withdraw(memory);
        assert!(engine.remotes.uses(memory));
    }
    assert!(!engine.remotes.uses(&kept));
    (0..2).for_each(|i| assert!(matches!(peer.answer(&mut engine, chunk(1, i)), (0, Heard::Done(..)))));
    engine.until(&mut [&mut peer], |engine, _| !engine.remotes.uses(&packed) && !engine.remotes.uses(&plain));
}

#[test]
fn a_piece_of_any_length_is_written_from_where_it_lies() {
    let (mut engine, mut peer, memory, number) = opened(2, Rights::READ);
    let bytes = 200_000;
    let landed = pack(&mut peer, 1, chunk(1, 0), bytes, &list(&[(number, Some(11), bytes)]));
    assert!(matches!(peer.answer(&mut engine, chunk(1, 0)), (1, Heard::Done(..))));
    assert_eq!(bytes_of(&landed, 0, bytes), bytes_of(&memory, 11, bytes));
}

#[test]
fn a_command_that_gets_no_slot_is_refused_and_none_of_its_bytes_come() {
    let mut engine = Engine::new(RemoteConfig { owner_slots: 1, slot_bytes: 8 << 20, ..config() });
    let (mut first, mut second) = (engine.connect(2), engine.connect(2));
    let memory = region(8 << 20);
    let (number, _) = engine.open(&mut first, &memory, Rights::READ);
    let (number_of_second, _) = engine.open(&mut second, &memory, Rights::READ);
    // More than the kernels hold for a peer that does not read: the slot stays leased.
    let half = 4 << 20;
    let halves = list(&[(number, Some(half), half as u32), (number, Some(0), half as u32)]);
    let (landed, landing) = first.landing(8 << 20);
    // Lane 0 moves only when it is polled.
    first.say(0, &Message::Pack { id: chunk(1, 0), bytes: 8 << 20, landing, list: &halves });
    engine.until(&mut [], |engine, _| engine.remotes.serving.left().1 == 1);
    let small = list(&[(number_of_second, Some(9), 1), (number_of_second, Some(0), 1)]);
    let refused = pack(&mut second, 1, chunk(1, 0), 2, &small);
    assert_eq!(second.answer(&mut engine, chunk(1, 0)), (1, Heard::Refused(chunk(1, 0))));
    assert_eq!(bytes_of(&refused, 0, 2), [0, 0]);
    // When the slot is free again it can be had.
    assert!(matches!(first.answer(&mut engine, chunk(1, 0)), (0, Heard::Done(..))));
    assert_eq!(bytes_of(&landed, 1, 1), bytes_of(&memory, half + 1, 1));
    pack(&mut second, 1, chunk(1, 1), 2, &small);
    assert!(matches!(second.answer(&mut engine, chunk(1, 1)), (1, Heard::Done(..))));
    engine.until(&mut [&mut first, &mut second], |engine, _| engine.remotes.serving.left() == (0, 0));
}

#[test]
fn a_cancel_counts_when_it_has_come_by_every_lane_and_is_answered_on_each() {
    let (mut engine, mut peer, _, number) = opened(3, Rights::READ);
    let batch = BatchId(8);
    let pieces = list(&[(number, Some(0), 60_000), (number, Some(61_000), 5)]);
    peer.say(1, &Message::Cancel { batch });
    peer.say(0, &Message::Cancel { batch });
    // A command that was on its way by another lane.
    pack(&mut peer, 2, chunk(8, 0), 60_005, &pieces);
    assert!(matches!(peer.answer(&mut engine, chunk(8, 0)), (2, Heard::Done(..))));
    let is_drained = |(_, bytes): &(usize, Vec<u8>)| matches!(Message::read(bytes), Ok(Message::Drained { .. }));
    assert!(!peer.heard.iter().any(is_drained));
    peer.say(2, &Message::Cancel { batch });
    let mut lanes: Vec<usize> = (0..3)
        .map(|_| {
            let (lane, heard) = peer.next_by(&mut engine, |message| matches!(message, Message::Drained { .. }));
            assert_eq!(heard, Heard::Drained(batch));
            lane
        })
        .collect();
    lanes.sort_unstable();
    assert_eq!(lanes, [0, 1, 2]);
    assert_eq!(engine.remotes.serving.left(), (0, 0));
}

#[test]
fn behind_the_end_of_a_cancel_nothing_more_comes() {
    for round in 0..20 {
        let (mut engine, mut peer, _, number) = opened(2, Rights::READ);
        let pieces = list(&[(number, Some(0), 60_000), (number, Some(61_000), 5)]);
        let mut landed = Vec::new();
        for number in 0..8 {
            landed.push(pack(&mut peer, number as usize % 2, chunk(8, number), 60_005, &pieces));
            if round % 2 == 0 {
                engine.poll();
            }
        }
        (0..2).for_each(|lane| peer.say(lane, &Message::Cancel { batch: BatchId(8) }));
        for _ in 0..2 {
            peer.next(&mut engine, |message| matches!(message, Message::Drained { .. }));
        }
        landed.iter().for_each(|region| region.write_at(0, &[0xAB; 60_005]).unwrap());
        let begun = Instant::now();
        engine.until(&mut [&mut peer], |_, _| begun.elapsed() > Duration::from_millis(3));
        assert!(landed.iter().all(|region| bytes_of(region, 0, 60_005) == [0xAB; 60_005]));
        assert_eq!(engine.remotes.serving.left(), (0, 0));
    }
}

#[test]
fn the_poller_packs_a_turn_at_a_time() {
    let config = RemoteConfig { owner_slots: 32, ..config() };
    let mut engine = Engine::new(config);
    let mut peer = engine.connect(1);
    let memory = region(256 << 10);
    let (number, _) = engine.open(&mut peer, &memory, Rights::READ);
    let pieces = list(&[(number, Some(0), 65_000), (number, Some(100_000), 500)]);
    let landed: Vec<_> = (0..8).map(|i| pack(&mut peer, 0, chunk(1, i), 65_500, &pieces)).collect();
    std::thread::sleep(Duration::from_millis(20));
    engine.poll();
    let leased = engine.remotes.serving.left().1;
    assert!((1..=5).contains(&leased) && engine.remotes.has_work(), "{leased} in one turn");
    for i in 0..8 {
        assert!(!matches!(peer.answer(&mut engine, chunk(1, i)), (0, Heard::Failed(..))));
    }
    assert_eq!(landed.len(), 8);
    engine.until(&mut [&mut peer], |engine, _| engine.remotes.serving.left() == (0, 0));
}

#[test]
fn a_connection_that_is_cut_leaves_nothing_behind() {
    for round in 0..40u64 {
        let (mut engine, mut peer, memory, number) = opened(3, READ_WRITE);
        let other = engine.connect(2);
        let pieces = list(&[(number, Some(0), 60_000), (number, Some(61_000), 5)]);
        let slots = peer.slots();
        for i in 0..10u32 {
            let lane = i as usize % 3;
            match (round + u64::from(i)) % 3 {
                0 => _ = pack(&mut peer, lane, chunk(1, i), 60_005, &pieces),
                1 => _ = pack(&mut peer, lane, chunk(1, i), 60_000, &list(&[(number, Some(0), 60_000)])),
                _ if i < 6 => {
                    let from = LocalPiece::of_region(&memory, 0, 60_005).unwrap();
                    let slot = i / 3;
                    let to = RemotePiece { grant: slots, offset: u64::from(slot * SLOT_BYTES), len: 60_005 };
                    let write = Operation::Write { id: 5, from: &[from], to: &[to], acknowledged: false };
                    let _ = peer.link.post(lane, &[write]);
                    peer.say(lane, &Message::Unpack { id: chunk(2, i), bytes: 60_005, slot, list: &pieces });
                }
                _ => {}
            }
            for _ in 0..round % 5 {
                engine.poll();
                peer.poll();
            }
        }
        for _ in 0..round {
            engine.poll();
        }
        let seat = peer.seat;
        match round % 3 {
            0 => peer.link.shut_down(),
            1 => engine.until(&mut [&mut peer], |_, peers| peers[0].link.is_quiet() || !peers[0].poll()),
            _ => engine.remotes.end(seat),
        }
        drop(peer);
        engine.until(&mut [], |engine, _| engine.counters.ended == 1);
        assert_eq!(engine.remotes.serving.left(), (0, 0));
        assert!(!engine.remotes.uses(&memory));
        assert_eq!(Arc::strong_count(&memory), 1, "somebody keeps it");
        let down = |event: &&Event| matches!(event, Event::PeerDown { seat: gone, .. } if *gone == seat);
        assert_eq!(engine.events.iter().filter(down).count(), 1);
        assert!(!engine.remotes.is_quiet(), "the other connection is there");
        drop(other);
    }
}
