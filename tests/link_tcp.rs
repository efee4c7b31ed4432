//! The TCP link between two engines: what is posted happens, once and in whole, whatever the network does.

mod linked;
mod seeded;

use linked::wire::{Manner, Wire};
use linked::{Side, contents, end, filled, limits, local, narrow, pair, pattern, poll_until, region, remote, within};
use scatter_ring::link::tcp::Limits;
use scatter_ring::link::{
    BadOperation, Failure, GrantId, LocalPiece, MESSAGE_BYTES_MAX, Operation, PIECES_MAX, PostError, Reason,
    RemotePiece, Revoked, Transport, Use,
};

use scatter_ring::region::{Region, Rights};
use seeded::{Random, cases};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BOTH: Rights = Rights::READ_WRITE;

/// More in release, where the same takes less.
fn scaled(debug: u64, release: u64) -> u64 {
    if cfg!(debug_assertions) { debug } else { release }
}

/// One side of a random run: what it has, and what it must have in the end.
struct Player {
    source: Arc<Region>,
    into: Arc<Region>,
    /// Of the other side's memory.
    source_there: GrantId,
    into_there: GrantId,
    expected: Vec<u8>,
    /// Bytes of `into` that an operation has been given.
    taken: u64,
    sent: Vec<Vec<Vec<u8>>>,
    next_id: u64,
}

const MEMORY: u64 = 256 << 10;

fn players(a: &Side, b: &Side) -> [Player; 2] {
    let sources = [1, 2].map(|seed| filled(&pattern(MEMORY as usize, seed)));
    let into = [region(MEMORY), region(MEMORY)];
    let grant = |side: &Side, memory: &Arc<Region>, rights| {
        side.link.grants().grant(memory.clone(), 0, MEMORY, rights, Use::Many).unwrap()
    };
    let granted = [(a, 0), (b, 1)]
        .map(|(side, i)| [grant(side, &sources[i], Rights::READ), grant(side, &into[i], Rights::WRITE)]);
    [0, 1].map(|i| Player {
        source: sources[i].clone(),
        into: into[i].clone(),
        source_there: granted[1 - i][0],
        into_there: granted[1 - i][1],
        expected: vec![0; MEMORY as usize],
        taken: 0,
        sent: vec![Vec::new(); a.link.lanes()],
        next_id: 0,
    })
}

/// Cuts `len` bytes into pieces.
fn cut(len: u64, random: &mut Random) -> Vec<u64> {
    let mut pieces = Vec::new();
    let mut left = len;
    let longest = random.pick(&[3, 50, 1000, 100_000]);
    while left > 0 && pieces.len() < PIECES_MAX - 1 {
        let piece = 1 + random.below(left.min(longest));
        pieces.push(piece);
        left -= piece;
    }
    pieces.extend((left > 0).then_some(left));
    pieces
}

/// Where the pieces of a transfer are: of a source anywhere, of a destination in `taken` bytes that no other one has.
fn places(lens: &[u64], from: u64, random: &mut Random) -> Vec<(u64, u32)> {
    let mut at = from;
    let mut place = |len: &u64| {
        at += len;
        (at - len, *len as u32)
    };
    let mut places: Vec<_> = lens.iter().map(&mut place).collect();
    for i in 1..places.len() {
        // The order of the pieces is any; their places stay disjoint.
        places.swap(i, random.below(i as u64 + 1) as usize);
    }
    places
}

fn bytes_of(memory: &[u8], places: &[(u64, u32)]) -> Vec<u8> {
    places.iter().flat_map(|(at, len)| memory[*at as usize..][..*len as usize].iter().copied()).collect()
}

fn put(memory: &mut [u8], places: &[(u64, u32)], mut bytes: &[u8]) {
    for (at, len) in places {
        let (now, rest) = bytes.split_at(*len as usize);
        memory[*at as usize..][..now.len()].copy_from_slice(now);
        bytes = rest;
    }
}

/// What a player posts, kept alive until it is.
enum Posted {
    Write(u64, Vec<LocalPiece>, Vec<RemotePiece>, bool),
    Read(u64, Vec<RemotePiece>, Vec<LocalPiece>),
    Send(Vec<u8>),
}

impl Posted {
    fn operation(&self) -> Operation<'_> {
        match self {
            Posted::Write(id, from, to, acknowledged) => {
                Operation::Write { id: *id, from, to, acknowledged: *acknowledged }
            }
            Posted::Read(id, from, to) => Operation::Read { id: *id, from, to },
            Posted::Send(bytes) => Operation::Send { bytes, names: None },
        }
    }
}

/// A random operation of player `me`, or `None`: there is no room left in the memory.
fn random_operation(players: &mut [Player; 2], me: usize, lane: usize, random: &mut Random) -> Option<Posted> {
    if random.once_in(4) {
        let end = random.pick(&[2, 100, 65_537]);
        let message = pattern(random.below(end) as usize, random.word());
        players[me].sent[lane].push(message.clone());
        return Some(Posted::Send(message));
    }
    let writes = random.once_in(2);
    let (source, into) = if writes { (me, 1 - me) } else { (1 - me, me) };
    let longest = random.pick(&[1, 100, 5000, 40_000]);
    let len = 1 + random.below(longest);
    if players[into].taken + len > MEMORY {
        return None;
    }
    let at = players[into].taken;
    players[into].taken += len;
    let from = places(&cut(len, random), random.below(MEMORY - len + 1), random);
    let to = places(&cut(len, random), at, random);
    let bytes = bytes_of(&contents(&players[source].source), &from);
    put(&mut players[into].expected, &to, &bytes);
    let player = &mut players[me];
    player.next_id += 1;
    let here = |memory: &Arc<Region>, places: &[(u64, u32)]| -> Vec<LocalPiece> {
        places.iter().map(|(at, len)| local(memory, *at, *len)).collect()
    };
    let there = |grant, places: &[(u64, u32)]| -> Vec<RemotePiece> {
        places.iter().map(|(at, len)| remote(grant, *at, *len)).collect()
    };
    Some(if writes {
        let (from, to) = (here(&player.source, &from), there(player.into_there, &to));
        Posted::Write(player.next_id, from, to, random.once_in(2))
    } else {
        Posted::Read(player.next_id, there(player.source_there, &from), here(&player.into, &to))
    })
}

/// Posts random operations on both sides until the memory is used up, and compares everything.
fn play(a: Side, b: Side, wires: &mut [Wire], random: &mut Random, turns: u64) {
    let mut sides = [a, b];
    let lanes = sides[0].link.lanes();
    let mut players = players(&sides[0], &sides[1]);
    let step = |sides: &mut [Side; 2], wires: &mut [Wire], random: &mut Random| {
        wires.iter_mut().for_each(|wire| wire.pump(random));
        sides.iter_mut().for_each(|side| {
            side.poll();
        });
        assert_eq!((sides[0].down, sides[1].down), (None, None));
    };
    for _ in 0..turns {
        let (me, lane) = (random.below(2) as usize, random.below(lanes as u64) as usize);
        let posted: Vec<_> =
            (0..1 + random.below(4)).filter_map(|_| random_operation(&mut players, me, lane, random)).collect();
        let operations: Vec<_> = posted.iter().map(Posted::operation).collect();
        linked::until(|| match sides[me].link.post(lane, &operations) {
            Err(PostError::Full) => {
                step(&mut sides, wires, random);
                false
            }
            answer => {
                answer.unwrap();
                true
            }
        });
        if random.once_in(3) {
            step(&mut sides, wires, random);
        }
    }
    for (me, lane) in (0..2).flat_map(|me| (0..lanes).map(move |lane| (me, lane))) {
        // Delivered behind the writes of the lane, so that these are in place.
        players[me].sent[lane].push(vec![9]);
        linked::until(|| {
            step(&mut sides, wires, random);
            sides[me].link.post(lane, &[Operation::Send { bytes: &[9], names: None }]).is_ok()
        });
    }
    linked::until(|| {
        step(&mut sides, wires, random);
        (0..2).all(|me| {
            let messages: usize = players[1 - me].sent.iter().map(Vec::len).sum();
            sides[me].completed.len() as u64 == players[me].next_id && sides[me].received.len() == messages
        })
    });
    for me in 0..2 {
        assert!(sides[me].completed.values().all(Result::is_ok));
        assert!(contents(&players[me].into) == players[me].expected, "memory of side {me}");
        for lane in 0..lanes {
            let on_lane = sides[me].received.iter().filter(|(by, _)| *by == lane).map(|(_, bytes)| bytes);
            assert!(on_lane.eq(&players[1 - me].sent[lane]), "messages of lane {lane}");
        }
    }
    let [mut a, mut b] = sides;
    a.link.shut_down();
    b.link.shut_down();
    poll_until(&mut a, &mut b, |a, b| a.link.is_quiet() && b.link.is_quiet());
}

#[test]
fn random_operations_of_both_sides_leave_the_memory_that_a_model_has() {
    cases(scaled(20, 300), |random| {
        let lanes = 1 + random.below(3) as usize;
        let limits = random.pick(&[limits as fn() -> Limits, narrow])();
        let (a, b) = pair(lanes, &limits, random.pick(&[None, Some(1), Some(30_000)]));
        play(a, b, &mut [], random, 30);
    });
}

#[test]
fn a_wire_that_dribbles_coalesces_and_delays_changes_nothing() {
    cases(scaled(8, 100), |random| {
        let lanes = 1 + random.below(3) as usize;
        let limits = random.pick(&[limits as fn() -> Limits, narrow])();
        let manner = random.pick(&[Manner::Dribble, Manner::Pieces(100), Manner::Pieces(4096), Manner::Coalesce(500)]);
        let turns = if manner == Manner::Dribble { 4 } else { 20 };
        let (a, b, mut wires) = Wire::pair(lanes, &limits, random.pick(&[None, Some(1)]), manner);
        play(a, b, &mut wires, random, turns);
    });
}

#[test]
fn operations_of_as_many_pieces_as_there_can_be_are_carried_out() {
    for (lane, read) in [(0, false), (0, true), (1, false), (1, true)] {
        let (mut a, mut b) = pair(2, &limits(), Some(1));
        let bytes = pattern(PIECES_MAX * 3, 5);
        let (from, to) = (filled(&bytes), region(bytes.len() as u64));
        let memory = if read { &from } else { &to };
        let grant = b.link.grants().grant(memory.clone(), 0, bytes.len() as u64, BOTH, Use::Once).unwrap();
        let there: Vec<_> = (0..PIECES_MAX as u64).map(|i| remote(grant, i * 3, 3)).collect();
        let here = if read { &to } else { &from };
        let here: Vec<_> = (0..PIECES_MAX as u64).map(|i| local(here, i * 3, 3)).collect();
        let operation = if read {
            Operation::Read { id: 1, from: &there, to: &here }
        } else {
            Operation::Write { id: 1, from: &here, to: &there, acknowledged: true }
        };
        a.link.post(lane, &[operation]).unwrap();
        poll_until(&mut a, &mut b, |a, _| a.completed.contains_key(&1));
        assert_eq!(a.completed[&1], Ok(()));
        assert!(contents(&to) == bytes);
        end(&mut a, &mut b);
    }
}

#[test]
fn both_sides_sending_more_than_the_sockets_hold_is_no_deadlock() {
    const BYTES: u64 = 64 << 20;
    const CHUNK: u32 = 4 << 20;
    for lane in [0, 1] {
        within(Duration::from_secs(60), move || {
            let (mut a, mut b) = pair(2, &limits(), None);
            let memory = [0, 1].map(|_| [region(BYTES), region(BYTES)]);
            memory.iter().for_each(|[from, _]| from.write_at(BYTES - 5, &[1, 2, 3, 4, 5]).unwrap());
            let grant = |side: &Side, [_, to]: &[Arc<Region>; 2]| {
                side.link.grants().grant(to.clone(), 0, BYTES, Rights::WRITE, Use::Many).unwrap()
            };
            let grants = [grant(&b, &memory[1]), grant(&a, &memory[0])];
            for (side, (grant, [from, _])) in [&mut a, &mut b].into_iter().zip(grants.iter().zip(&memory)) {
                for i in 0..BYTES / u64::from(CHUNK) {
                    let at = i * u64::from(CHUNK);
                    let (from, to) = ([local(from, at, CHUNK)], [remote(*grant, at, CHUNK)]);
                    // The first ones fill the socket: nobody receives yet.
                    side.link
                        .post(lane, &[Operation::Write { id: i, from: &from, to: &to, acknowledged: true }])
                        .unwrap();
                }
            }
            poll_until(&mut a, &mut b, |a, b| [a, b].iter().all(|side| side.completed.len() == 16));
            for side in [&a, &b] {
                assert!(side.completed.values().all(Result::is_ok));
            }
            for [_, to] in &memory {
                let mut end = [0; 5];
                to.read_at(BYTES - 5, &mut end).unwrap();
                assert_eq!(end, [1, 2, 3, 4, 5]);
            }
        });
    }
}

#[test]
fn a_post_is_refused_in_whole_and_says_why() {
    let (mut a, mut b) = pair(1, &narrow(), None);
    let memory = region(8192);
    let grant = b.link.grants().grant(memory.clone(), 0, 8192, BOTH, Use::Many).unwrap();
    let (ten, there) = ([local(&memory, 0, 10)], [remote(grant, 0, 10)]);
    let good = Operation::Write { id: 1, from: &ten, to: &there, acknowledged: true };
    let (many, empty) = (vec![local(&memory, 0, 1); PIECES_MAX + 1], [local(&memory, 0, 0)]);
    let (eleven, none) = ([remote(grant, 0, 11)], [remote(grant, 0, 0)]);
    let long = vec![0; MESSAGE_BYTES_MAX + 1];
    let (_, fd) = Region::allocate(8192, scatter_ring::region::Huge::Never).unwrap();
    let read_only = Arc::new(Region::of_own_fd(&fd, 0, 8192, Rights::READ).unwrap());
    let read_only = [local(&read_only, 0, 10)];
    let withdrawn = region(10);
    let gone = [local(&withdrawn, 0, 10)];
    withdrawn.withdraw();
    let huge = vec![remote(grant, 0, u32::MAX); 2];
    // SAFETY: refused before anything is touched.
    let slots = vec![unsafe { LocalPiece::of_slot(memory.as_ptr(), u32::MAX) }; 2];
    for (operation, why) in [
        (Operation::Write { id: 2, from: &[], to: &there, acknowledged: false }, BadOperation::PieceCount),
        (Operation::Read { id: 2, from: &[], to: &ten }, BadOperation::PieceCount),
        (Operation::Read { id: 2, from: &there, to: &many }, BadOperation::PieceCount),
        (Operation::Read { id: 2, from: &there, to: &empty }, BadOperation::EmptyPiece),
        (Operation::Read { id: 2, from: &none, to: &ten }, BadOperation::EmptyPiece),
        (Operation::Read { id: 2, from: &eleven, to: &ten }, BadOperation::LengthsDiffer),
        (Operation::Write { id: 2, from: &ten, to: &eleven, acknowledged: true }, BadOperation::LengthsDiffer),
        (Operation::Read { id: 2, from: &huge, to: &slots }, BadOperation::TooLong),
        (Operation::Send { bytes: &long, names: None }, BadOperation::TooLong),
        (Operation::Read { id: 2, from: &there, to: &read_only }, BadOperation::NoRight),
        (Operation::Write { id: 2, from: &gone, to: &there, acknowledged: true }, BadOperation::RegionGone),
    ] {
        assert_eq!(a.link.post(0, &[good, operation]), Err(PostError::Bad { index: 1, why }), "{why}");
    }
    assert_eq!(LocalPiece::of_region(&memory, 8190, 3).map(|piece| piece.len()), None);
    assert_eq!(a.link.post(1, &[good]), Err(PostError::NoLane));
    assert_eq!(a.link.post(0, &[good; 5]), Err(PostError::Full), "more than there is room for");
    assert_eq!((a.link.room(0), a.link.counters(0).sends), (4, 0), "something of a refused post was taken");
    a.link.post(0, &[good]).unwrap();
    poll_until(&mut a, &mut b, |a, _| a.completed.len() == 1);
    end(&mut a, &mut b);
    assert_eq!(a.link.post(0, &[good]), Err(PostError::Down));
    assert_eq!((a.down, b.down.is_some(), a.link.room(0)), (Some(Reason::ShutDown), true, 4));
}

#[test]
fn more_reads_than_the_other_side_answers_at_a_time_wait_and_are_carried_out() {
    let limits = Limits { operations: 64, unanswered: 1, ..limits() };
    let (mut a, mut b) = pair(2, &limits, None);
    let (from, to) = (filled(&pattern(6400, 3)), region(6400));
    let grant = b.link.grants().grant(from.clone(), 0, 6400, Rights::READ, Use::Many).unwrap();
    for lane in [0, 1] {
        let pieces: Vec<_> = (0..64).map(|i| ([remote(grant, i * 100, 100)], [local(&to, i * 100, 100)])).collect();
        let id = |i| i as u64 + 100 * lane as u64;
        let reads: Vec<_> =
            pieces.iter().enumerate().map(|(i, (from, to))| Operation::Read { id: id(i), from, to }).collect();
        a.link.post(lane, &reads).unwrap();
        assert_eq!(a.link.post(lane, &reads[..1]), Err(PostError::Full));
        poll_until(&mut a, &mut b, |a, _| a.completed.len() == 64 * (lane + 1));
        assert_eq!((a.down, b.down), (None, None));
        assert!(a.completed.values().all(Result::is_ok));
        assert!(contents(&to) == contents(&from));
    }
    end(&mut a, &mut b);
}

#[test]
fn a_post_of_sixteen_small_operations_is_one_system_call() {
    let (mut a, mut b) = pair(1, &limits(), None);
    let (from, to) = (filled(&pattern(1600, 3)), region(1600));
    let grant = b.link.grants().grant(to.clone(), 0, 1600, Rights::WRITE, Use::Many).unwrap();
    let pieces: Vec<_> = (0..15).map(|i| ([local(&from, i * 100, 100)], [remote(grant, i * 100, 100)])).collect();
    let mut operations: Vec<_> =
        (0u64..).zip(&pieces).map(|(id, (from, to))| Operation::Write { id, from, to, acknowledged: false }).collect();
    operations.push(Operation::Send { bytes: b"done", names: None });
    for round in 1..=3 {
        a.link.post(0, &operations).unwrap();
        assert_eq!(a.link.counters(0).sends, round, "calls for {round} posts");
        poll_until(&mut a, &mut b, |a, b| a.completed.len() == 15 && b.received.len() == 1);
        assert_eq!(b.received.remove(0), (0, b"done".to_vec()));
        assert_eq!(contents(&to)[..1500], contents(&from)[..1500]);
        a.completed.clear();
        to.write_at(0, &[0; 1600]).unwrap();
    }
    assert_eq!(b.link.counters(0).sends, 0, "nothing of it wants an answer");
    end(&mut a, &mut b);
}

#[test]
fn a_large_write_is_a_call_on_either_side_for_each_time_the_socket_is_full() {
    let (mut a, mut b) = pair(1, &limits(), None);
    const BYTES: u32 = 64 << 10;
    let (from, to) = (filled(&pattern(BYTES as usize, 3)), region(BYTES.into()));
    let grant = b.link.grants().grant(to.clone(), 0, BYTES.into(), Rights::WRITE, Use::Many).unwrap();
    let write = Operation::Write {
        id: 1,
        from: &[local(&from, 0, BYTES)],
        to: &[remote(grant, 0, BYTES)],
        acknowledged: false,
    };
    a.link.post(0, &[write]).unwrap();
    assert_eq!(a.link.counters(0).sends, 1);
    assert_eq!(a.completed.len(), 0, "said before it was polled");
    a.poll();
    assert_eq!(a.completed.get(&1), Some(&Ok(())), "its source may be reused");
    poll_until(&mut a, &mut b, |_, _| contents(&to) == contents(&from));
    end(&mut a, &mut b);
}

#[test]
fn once_revoked_is_said_nothing_is_written() {
    const BYTES: u64 = 1 << 20;
    const CHUNK: u32 = 256 << 10;
    let (mut a, mut b) = pair(2, &limits(), None);
    let (memory, source) = (region(BYTES), filled(&vec![0xAA; BYTES as usize]));
    let mut later = 0;
    let mut case = 0u64;
    let marks = [0x11, 0x22].map(|mark| vec![mark; BYTES as usize]);
    cases(1000, |random| {
        case += 1;
        let lane = usize::from(!random.once_in(8));
        let grant = a.link.grants().grant(memory.clone(), 0, BYTES, Rights::WRITE, Use::Many).unwrap();
        let chunks = 1 + random.below(4);
        for i in 0..chunks {
            let at = i * u64::from(CHUNK);
            let (from, to) = ([local(&source, at, CHUNK)], [remote(grant, at, CHUNK)]);
            let acknowledged = random.once_in(2);
            b.link.post(lane, &[Operation::Write { id: i, from: &from, to: &to, acknowledged }]).unwrap();
        }
        b.link.post(lane, &[Operation::Send { bytes: &[1], names: None }]).unwrap();
        // When a byte in the middle has come, a call is likely to be moving those behind it.
        let (place, start) = (random.below(chunks * u64::from(CHUNK)), Instant::now());
        let mut byte = [0];
        while byte != [0xAA] && start.elapsed() < Duration::from_millis(20) {
            if lane == 0 {
                a.poll();
                b.poll();
            }
            memory.read_at(place, &mut byte).unwrap();
        }
        if a.link.grants().revoke(grant).unwrap() == Revoked::Later {
            later += 1;
            poll_until(&mut a, &mut b, |a, _| a.revoked.iter().any(|(revoked, _)| *revoked == grant));
        }
        let mark = &marks[case as usize % 2];
        memory.write_at(0, mark).unwrap();
        poll_until(&mut a, &mut b, |a, b| a.received.len() == 1 && b.completed.len() as u64 == chunks);
        assert!(contents(&memory) == *mark, "written after it was said to be revoked");
        assert!(b.completed.values().all(|result| matches!(result, Ok(()) | Err(Failure::Revoked))));
        a.received.clear();
        a.revoked.clear();
        b.completed.clear();
    });
    assert!(a.link.grants().is_empty() && a.down.is_none());
    println!("{later} of {case} revocations met a call");
    let alone = std::thread::available_parallelism().is_ok_and(|threads| threads.get() == 1);
    assert!(later > 0 || case < 1000 || alone, "no revocation met a call: nothing was tested");
    end(&mut a, &mut b);
}

#[test]
fn a_grant_for_one_use_takes_one_operation_and_one_that_is_revoked_fails_a_read() {
    for lane in [0, 1] {
        let (mut a, mut b) = pair(2, &limits(), None);
        let memory = filled(&[7; 100]);
        let grant = |usage| b.link.grants().grant(memory.clone(), 0, 100, BOTH, usage).unwrap();
        let (once, many) = (grant(Use::Once), grant(Use::Many));
        b.link.grants().revoke(grant(Use::Many)).unwrap();
        let revoked = GrantId(many.0 + 1);
        let mine = region(100);
        let here = [local(&mine, 0, 50), local(&mine, 50, 50)];
        let there = |grant| [remote(grant, 0, 50), remote(grant, 50, 50)];
        let read = |id, from| Operation::Read { id, from, to: &here };
        let write = |id, to| Operation::Write { id, from: &here, to, acknowledged: true };
        let (once, many, revoked) = (there(once), there(many), there(revoked));
        a.link.post(lane, &[read(1, &once), read(2, &once), write(3, &once), read(4, &revoked)]).unwrap();
        a.link.post(lane, &[write(5, &revoked), read(6, &many), read(7, &many)]).unwrap();
        poll_until(&mut a, &mut b, |a, _| a.completed.len() == 7);
        let failed: Vec<_> = (1..=7).filter(|id| a.completed[id] == Err(Failure::Revoked)).collect();
        assert_eq!((failed, a.completed[&1]), (vec![2, 3, 4, 5], Ok(())));
        assert_eq!(contents(&mine), [7; 100]);
        assert_eq!(b.link.counters(lane).drained_bytes, 200);
        end(&mut a, &mut b);
    }
}

/// Posts a conversation of everything, and returns what comes of it.
fn converse(a: &mut Side, b: &mut Side, memory: &[Arc<Region>; 2], grant: GrantId) {
    let [here, there] = memory;
    here.write_at(0, &pattern(300, 1)).unwrap();
    there.write_at(300, &pattern(100, 2)).unwrap();
    let write = |id, at: u64, acknowledged| {
        (id, [local(here, at, 60), local(here, at + 60, 40)], [remote(grant, at, 100)], acknowledged)
    };
    let writes = [write(1, 0, true), write(2, 100, false), write(3, 200, true)];
    let mut operations: Vec<_> = writes
        .iter()
        .map(|(id, from, to, acknowledged)| Operation::Write { id: *id, from, to, acknowledged: *acknowledged })
        .collect();
    operations.insert(1, Operation::Send { bytes: b"hello", names: None });
    let (from, to) = ([remote(grant, 300, 30), remote(grant, 330, 70)], [local(here, 300, 100)]);
    operations.push(Operation::Read { id: 4, from: &from, to: &to });
    a.link.post(0, &operations).unwrap();
    // It may have been cut already.
    let _ = b.link.post(0, &[Operation::Send { bytes: b"good day", names: None }]);
}

#[test]
fn cut_at_any_byte_every_operation_has_one_outcome_which_is_true() {
    let run = |cut: Option<(usize, u64)>, seed: u64| {
        let mut random = Random::from_seed(seed);
        let (mut a, mut b, mut wires) = Wire::pair(1, &narrow_but_for_posts(), None, Manner::Pieces(40));
        if let Some((way, bytes)) = cut {
            wires[0].cut_after(way, bytes);
        }
        let memory = [region(400), region(400)];
        let grant = b.link.grants().grant(memory[1].clone(), 0, 400, BOTH, Use::Many).unwrap();
        converse(&mut a, &mut b, &memory, grant);
        linked::until(|| {
            wires[0].pump(&mut random);
            a.poll();
            b.poll();
            let is_over = a.completed.len() == 4 && a.received.len() == 1;
            if cut.is_some() { a.down.is_some() && b.down.is_some() } else { is_over }
        });
        linked::until(|| {
            a.link.shut_down();
            b.link.shut_down();
            a.poll();
            b.poll();
            a.link.is_quiet() && b.link.is_quiet()
        });
        assert_eq!(a.completed.len(), 4, "cut {cut:?}");
        for (id, at) in [(1, 0), (3, 200)] {
            let in_place = contents(&memory[1])[at..at + 100] == contents(&memory[0])[at..at + 100];
            assert!(a.completed[&id].is_err() || in_place, "cut {cut:?}: {id} is said to be done");
        }
        let read = contents(&memory[0])[300..] == contents(&memory[1])[300..];
        assert!(a.completed[&4].is_err() || read, "cut {cut:?}: the read is said to be done");
        assert!(a.completed.values().all(|result| matches!(result, Ok(()) | Err(Failure::Down))));
        wires[0].passed()
    };
    for (way, whole) in run(None, 0).into_iter().enumerate() {
        for bytes in 0..=whole {
            run(Some((way, bytes)), bytes);
        }
    }
}

fn narrow_but_for_posts() -> Limits {
    Limits { operations: 8, ..narrow() }
}

#[test]
fn a_link_that_is_shut_down_under_way_completes_everything_and_touches_nothing() {
    const BYTES: u64 = 1 << 20;
    cases(scaled(100, 1000), |random| {
        let (mut a, mut b) = pair(3, &limits(), None);
        let (mine, theirs) = (region(BYTES), region(BYTES));
        let grant = b.link.grants().grant(theirs.clone(), 0, BYTES, BOTH, Use::Many).unwrap();
        let count = 1 + random.below(20);
        for id in 0..count {
            let (here, there) = ([local(&mine, 0, BYTES as u32)], [remote(grant, 0, BYTES as u32)]);
            let operation = if random.once_in(2) {
                Operation::Read { id, from: &there, to: &here }
            } else {
                Operation::Write { id, from: &here, to: &there, acknowledged: random.once_in(2) }
            };
            a.link.post(random.below(3) as usize, &[operation]).unwrap();
        }
        for _ in 0..random.below(10) {
            a.poll();
            b.poll();
        }
        a.link.shut_down();
        linked::until(|| {
            a.poll();
            a.link.is_quiet()
        });
        assert_eq!((a.completed.len() as u64, a.down), (count, Some(Reason::ShutDown)));
        mine.write_at(0, &vec![3; BYTES as usize]).unwrap();
        linked::until(|| {
            b.poll();
            b.link.is_quiet()
        });
        theirs.write_at(0, &vec![4; BYTES as usize]).unwrap();
        std::thread::yield_now();
        assert!(contents(&mine).iter().all(|byte| *byte == 3) && contents(&theirs).iter().all(|byte| *byte == 4));
        assert_eq!((Arc::strong_count(&mine), Arc::strong_count(&theirs)), (1, 2), "an operation keeps memory");
        drop((a, b));
        assert_eq!(Arc::strong_count(&theirs), 1, "a grant keeps memory");
    });
}

#[test]
fn a_sleeping_poller_is_woken_by_the_lanes() {
    let (mut a, mut b) = pair(2, &Limits { spin: Duration::ZERO, ..limits() }, None);
    let mut sleeper = scatter_ring::ring::Sleeper::default();
    for round in 0..scaled(500, 5000) {
        a.link.post(1, &[Operation::Send { bytes: &round.to_le_bytes(), names: None }]).unwrap();
        while b.received.is_empty() {
            sleeper.prepare(&b.bell.sleep);
            if !b.link.has_news() {
                let mut fds = [rustix::event::PollFd::new(&*b.bell.bell, rustix::event::PollFlags::IN)];
                let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
                assert_eq!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1), "nobody rang");
                rustix::io::read(&*b.bell.bell, &mut [0; 8]).unwrap();
            }
            sleeper.awake(&b.bell.sleep);
            b.poll();
        }
        assert_eq!(b.received.pop(), Some((1, round.to_le_bytes().to_vec())));
        a.poll();
    }
    let heard = b.link.last_heard_ns();
    assert!(heard > 0 && heard <= b.link.now_ns() && a.link.last_heard_ns() == 0);
    end(&mut a, &mut b);
}
