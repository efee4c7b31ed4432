//! Where the bytes of an operation come from and where they go: pieces in one run, in any order, or with gaps, on either side.

use super::{Connect, OPERATIONS, Width, scaled};
use crate::linked::{Side, contents, end, filled, local, pattern, poll_until, region, remote};
use crate::seeded::Random;
use scatter_ring::link::{GrantId, LocalPiece, Operation, RemotePiece, Transport};
use scatter_ring::region::{Region, Rights};
use std::sync::Arc;

/// How the bytes of an operation lie on one side.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// One piece.
    Whole,
    /// Pieces one behind the other.
    Run,
    /// Pieces of one length with gaps, as rows of a table.
    Rows,
    /// Pieces of any length, in any order.
    Scattered,
}

const SHAPES: [Shape; 4] = [Shape::Whole, Shape::Run, Shape::Rows, Shape::Scattered];

/// Offset and length of pieces with so many bytes in all, in memory of twice as many and a little.
fn places(shape: Shape, bytes: u64, pieces: u64, random: &mut Random) -> Vec<(u64, u32)> {
    let pieces = pieces.min(bytes);
    let mut lens = vec![bytes / pieces; pieces as usize];
    lens[0] += bytes % pieces;
    if matches!(shape, Shape::Scattered) {
        for i in 1..lens.len() {
            let moved = random.below(lens[i]);
            lens[i] -= moved;
            lens[i - 1] += moved;
        }
    }
    let mut at = random.below(8);
    let mut place = |len: u64| {
        let here = at;
        at += len;
        if matches!(shape, Shape::Rows | Shape::Scattered) {
            at += len.min(bytes / pieces);
        }
        (here, len as u32)
    };
    let mut places: Vec<_> = match shape {
        Shape::Whole => vec![place(bytes)],
        _ => lens.iter().map(|len| place(*len)).collect(),
    };
    if matches!(shape, Shape::Scattered) {
        for i in 1..places.len() {
            places.swap(i, random.below(i as u64 + 1) as usize);
        }
    }
    places
}

fn room(bytes: u64) -> u64 {
    2 * bytes + 16
}

fn here(memory: &Arc<Region>, places: &[(u64, u32)]) -> Vec<LocalPiece> {
    places.iter().map(|(at, len)| local(memory, *at, *len)).collect()
}

fn there(grant: GrantId, places: &[(u64, u32)]) -> Vec<RemotePiece> {
    places.iter().map(|(at, len)| remote(grant, *at, *len)).collect()
}

/// Memory into which the bytes at `from` have been put at `to`.
fn moved(source: &[u8], from: &[(u64, u32)], to: &[(u64, u32)]) -> Vec<u8> {
    let mut bytes = from.iter().flat_map(|(at, len)| &source[*at as usize..][..*len as usize]);
    let mut memory = vec![0; source.len()];
    for (at, len) in to {
        memory[*at as usize..][..*len as usize].fill_with(|| *bytes.next().unwrap());
    }
    memory
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Read,
    Write,
    Acknowledged,
}

const KINDS: [Kind; 3] = [Kind::Read, Kind::Write, Kind::Acknowledged];

/// Carries out one operation of each kind on a lane, and looks at all of the memory.
fn carry_out<L: Transport>(sides: &mut [Side<L>; 2], lane: usize, bytes: u64, shapes: [Shape; 2], random: &mut Random) {
    let [a, b] = sides;
    let most = random.pick(&[2, 10, 200]);
    let pieces = 1 + random.below(most);
    let [from, to] = shapes.map(|shape| places(shape, bytes, pieces, random));
    let source = pattern(room(bytes) as usize, random.word());
    for kind in KINDS {
        let (mine, theirs) = match kind {
            Kind::Read => (a.own(region(room(bytes))), filled(&source)),
            _ => (a.own(filled(&source)), region(room(bytes))),
        };
        let grant = b.lets(a, &theirs, Rights::READ_WRITE);
        match kind {
            Kind::Read => {
                let (from, to) = (there(grant, &from), here(&mine, &to));
                a.post(lane, &[Operation::Read { id: 1, from: &from, to: &to }], b);
            }
            _ => {
                let (from, to) = (here(&mine, &from), there(grant, &to));
                let acknowledged = matches!(kind, Kind::Acknowledged);
                a.post(lane, &[Operation::Write { id: 1, from: &from, to: &to, acknowledged }], b);
                // Behind it, so that it is in place.
                a.post(lane, &[Operation::Send { bytes: b"behind", names: None }], b);
                poll_until(a, b, |_, b| !b.received.is_empty());
                b.received.clear();
            }
        }
        poll_until(a, b, |a, _| !a.completed.is_empty());
        assert_eq!(a.completed.remove(&1), Some(Ok(())));
        let into = if matches!(kind, Kind::Read) { &mine } else { &theirs };
        let expected = moved(&source, &from, &to);
        assert!(contents(into) == expected, "{kind:?} of {bytes} bytes, {pieces} pieces, {shapes:?}, lane {lane}");
        b.link.grants().revoke(grant).unwrap();
    }
}

pub fn bytes_of_every_shape_go_where_they_belong(connect: &impl Connect) {
    let mut random = Random::from_seed(5);
    for width in [Width::Wide, Width::Narrow] {
        let (a, b) = connect.pair(2, width);
        let mut sides = [a, b];
        for bytes in [1, 7, 100, 4096, 4097, 32 << 10, scaled(70_000, 300_000)] {
            for (from, to) in SHAPES.iter().flat_map(|from| SHAPES.map(|to| (*from, to))) {
                carry_out(&mut sides, random.below(2) as usize, bytes, [from, to], &mut random);
            }
        }
        let [mut a, mut b] = sides;
        end(&mut a, &mut b);
    }
}

pub fn long_operations_go_where_they_belong(connect: &impl Connect) {
    let (a, b) = connect.pair(2, Width::Wide);
    let mut random = Random::from_seed(6);
    let mut sides = [a, b];
    // Longer than a request of a device may be.
    for shapes in [[Shape::Whole; 2], [Shape::Scattered, Shape::Whole], [Shape::Rows, Shape::Scattered]] {
        carry_out(&mut sides, 1, (1 << 20) + 1, shapes, &mut random);
    }
    carry_out(&mut sides, 1, connect.longest_bytes(), [Shape::Whole; 2], &mut random);
    let [mut a, mut b] = sides;
    end(&mut a, &mut b);
}

pub fn one_to_thirty_three_operations_of_one_post_are_carried_out(connect: &impl Connect) {
    const EACH: u32 = 1000;
    let mut random = Random::from_seed(7);
    for (width, most) in [(Width::Wide, 33), (Width::Narrow, u64::from(OPERATIONS))] {
        let (mut a, mut b) = connect.pair(2, width);
        for count in 1..=most {
            let bytes = count * u64::from(EACH);
            let source = pattern(bytes as usize, count);
            let (mine, into) = (a.own(filled(&source)), a.own(region(bytes)));
            let theirs = region(bytes);
            let grant = b.lets(&mut a, &theirs, Rights::READ_WRITE);
            let lane = random.below(2) as usize;
            let ranges = (0..count).map(|i| i * u64::from(EACH));
            let there: Vec<_> = ranges.clone().map(|at| [remote(grant, at, EACH)]).collect();
            let from: Vec<_> = ranges.clone().map(|at| [local(&mine, at, EACH)]).collect();
            let back: Vec<_> = ranges.map(|at| [local(&into, at, EACH)]).collect();
            let writes: Vec<_> = (0..)
                .zip(from.iter().zip(&there))
                .map(|(id, (from, to))| Operation::Write { id, from, to, acknowledged: id + 1 == count })
                .collect();
            a.post(lane, &writes, &mut b);
            poll_until(&mut a, &mut b, |a, _| a.completed.len() as u64 == count);
            let reads: Vec<_> = (count..)
                .zip(there.iter().zip(&back))
                .map(|(id, (from, to))| Operation::Read { id, from, to })
                .collect();
            a.post(lane, &reads, &mut b);
            poll_until(&mut a, &mut b, |a, _| a.completed.len() as u64 == 2 * count);
            assert!(a.completed.drain().all(|(_, result)| result == Ok(())), "{count}");
            assert!(contents(&theirs) == source && contents(&into) == source, "{count}");
            b.link.grants().revoke(grant).unwrap();
        }
        end(&mut a, &mut b);
    }
}
