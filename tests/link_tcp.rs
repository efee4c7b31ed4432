//! The TCP link between two engines: what is posted happens, once and in whole, whatever the network does.

mod link_cases;
mod linked;
mod listed;
mod seeded;

use link_cases::play::play;
use link_cases::{Connect, Width, scaled};
use linked::wire::{Manner, Wire};
use linked::{Side, contents, end, filled, limits, local, narrow, pair, pattern, poll_until, region, remote};
use scatter_ring::link::tcp::{Limits, Link};
use scatter_ring::link::{Failure, GrantId, Operation, Revoked, Transport, Use};

use scatter_ring::region::{Region, Rights};
use seeded::{Random, cases};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BOTH: Rights = Rights::READ_WRITE;

/// Sockets with send buffers of so many bytes.
#[derive(Clone)]
struct Sockets(Option<usize>);

impl Connect for Sockets {
    type Link = Link;

    fn pair(&self, lanes: usize, width: Width) -> (Side, Side) {
        pair(lanes, &if width == Width::Wide { limits() } else { narrow() }, self.0)
    }

    fn longest_bytes(&self) -> u64 {
        // Small ones are slow.
        if self.0.is_some() { 2 << 20 } else { scaled(2 << 20, 64 << 20) }
    }

    fn sleepers(&self, lanes: usize) -> (Side, Side) {
        pair(lanes, &Limits { spin: Duration::ZERO, ..limits() }, self.0)
    }
}

link_cases!(over_sockets, Sockets(None));
link_cases!(over_small_sockets, Sockets(Some(1)));

#[test]
fn a_wire_that_dribbles_coalesces_and_delays_changes_nothing() {
    cases(scaled(4, 30), |random| {
        let lanes = 1 + random.below(3) as usize;
        let limits = random.pick(&[limits as fn() -> Limits, narrow])();
        let manner = random.pick(&[Manner::Dribble, Manner::Pieces(100), Manner::Pieces(4096), Manner::Coalesce(500)]);
        let turns = if manner == Manner::Dribble { 4 } else { 20 };
        let (a, b, mut wires) = Wire::pair(lanes, &limits, random.pick(&[None, Some(1)]), manner);
        play(a, b, &mut |random| wires.iter_mut().for_each(|wire| wire.pump(random)), random, turns);
    });
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
