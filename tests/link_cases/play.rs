//! Random operations of both sides, against a model of the memory.

use super::{Connect, Width, scaled};
use crate::linked::{Side, contents, filled, local, pattern, poll_until, region, remote, until};
use crate::seeded::{Random, cases};
use scatter_ring::link::{GrantId, LocalPiece, Operation, PIECES_MAX, PostError, RemotePiece, Transport};
use scatter_ring::region::{Region, Rights};
use std::sync::Arc;

pub fn random_operations_of_both_sides_leave_the_memory_that_a_model_has(connect: &impl Connect) {
    cases(scaled(4, 60), |random| {
        let lanes = 1 + random.below(3) as usize;
        let (a, b) = connect.pair(lanes, random.pick(&[Width::Wide, Width::Narrow]));
        play(a, b, &mut |_| {}, random, 30);
    });
}

/// One side of a random run: what it has, and what it must have in the end.
pub struct Player {
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

fn players<L: Transport>(a: &mut Side<L>, b: &mut Side<L>) -> [Player; 2] {
    let source = |side: &Side<L>, seed| side.own(filled(&pattern(MEMORY as usize, seed)));
    let sources = [source(a, 1), source(b, 2)];
    let into = [a.own(region(MEMORY)), b.own(region(MEMORY))];
    let of_a = [a.lets(b, &sources[0], Rights::READ), a.lets(b, &into[0], Rights::WRITE)];
    let of_b = [b.lets(a, &sources[1], Rights::READ), b.lets(a, &into[1], Rights::WRITE)];
    let granted = [of_a, of_b];
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
/// `pump` is what is to be done besides polling.
pub fn play<L: Transport>(
    mut a: Side<L>,
    mut b: Side<L>,
    pump: &mut dyn FnMut(&mut Random),
    random: &mut Random,
    turns: u64,
) {
    let lanes = a.link.lanes();
    let mut players = players(&mut a, &mut b);
    let mut sides = [a, b];
    let mut step = |sides: &mut [Side<L>; 2], random: &mut Random| {
        pump(random);
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
        until(|| match sides[me].link.post(lane, &operations) {
            Err(PostError::Full) => {
                step(&mut sides, random);
                false
            }
            answer => {
                answer.unwrap();
                true
            }
        });
        if random.once_in(3) {
            step(&mut sides, random);
        }
    }
    for (me, lane) in (0..2).flat_map(|me| (0..lanes).map(move |lane| (me, lane))) {
        // Delivered behind the writes of the lane, so that these are in place.
        players[me].sent[lane].push(vec![9]);
        until(|| {
            step(&mut sides, random);
            sides[me].link.post(lane, &[Operation::Send { bytes: &[9], names: None }]).is_ok()
        });
    }
    until(|| {
        step(&mut sides, random);
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
