//! Operations and messages: what is posted happens, once and in whole.

use super::{Connect, Width, scaled};
use crate::linked::{Side, contents, end, filled, local, pattern, poll_until, region, remote, until, within};
use crate::seeded::{Random, cases};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::AsFd;
use scatter_ring::link::{
    BadOperation, LocalPiece, MESSAGE_BYTES_MAX, Operation, PIECES_MAX, PostError, Reason, Transport,
};
use scatter_ring::region::{Region, Rights};
use scatter_ring::ring::Sleeper;
use std::sync::Arc;
use std::time::Duration;

const BOTH: Rights = Rights::READ_WRITE;
const LANES: usize = 3;

pub fn operations_of_as_many_pieces_as_there_can_be_are_carried_out(connect: &impl Connect) {
    for (lane, read) in [(0, false), (0, true), (1, false), (1, true)] {
        let (mut a, mut b) = connect.pair(2, Width::Wide);
        let bytes = pattern(PIECES_MAX * 3, 5);
        let (from, to) = (a.own(filled(&bytes)), a.own(region(bytes.len() as u64)));
        let grant = b.lets(&mut a, if read { &from } else { &to }, BOTH);
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

pub fn both_sides_sending_more_than_the_link_holds_is_no_deadlock(connect: &impl Connect) {
    const CHUNKS: u64 = 16;
    for lane in [0, 1] {
        let connect = connect.clone();
        within(Duration::from_secs(60), move || {
            let bytes = scaled(16 << 20, 64 << 20);
            let chunk = (bytes / CHUNKS) as u32;
            let (mut a, mut b) = connect.pair(2, Width::Wide);
            let (from_a, into_a) = (a.own(region(bytes)), region(bytes));
            let (from_b, into_b) = (b.own(region(bytes)), region(bytes));
            for from in [&from_a, &from_b] {
                from.write_at(bytes - 5, &[1, 2, 3, 4, 5]).unwrap();
            }
            let grants = [b.lets(&mut a, &into_b, Rights::WRITE), a.lets(&mut b, &into_a, Rights::WRITE)];
            for (side, grant, from) in [(&mut a, grants[0], &from_a), (&mut b, grants[1], &from_b)] {
                for i in 0..CHUNKS {
                    let at = i * u64::from(chunk);
                    let (from, to) = ([local(from, at, chunk)], [remote(grant, at, chunk)]);
                    // The first ones fill the link: nobody receives yet.
                    let write = Operation::Write { id: i, from: &from, to: &to, acknowledged: true };
                    side.link.post(lane, &[write]).unwrap();
                }
            }
            poll_until(&mut a, &mut b, |a, b| [a, b].iter().all(|side| side.completed.len() == 16));
            for side in [&a, &b] {
                assert!(side.completed.values().all(Result::is_ok));
            }
            for to in [into_a, into_b] {
                let mut end = [0; 5];
                to.read_at(bytes - 5, &mut end).unwrap();
                assert_eq!(end, [1, 2, 3, 4, 5]);
            }
            end(&mut a, &mut b);
        });
    }
}

pub fn a_post_is_refused_in_whole_and_says_why(connect: &impl Connect) {
    let (mut a, mut b) = connect.pair(1, Width::Narrow);
    let memory = a.own(region(8192));
    let grant = b.lets(&mut a, &memory, BOTH);
    let (ten, there) = ([local(&memory, 0, 10)], [remote(grant, 0, 10)]);
    let good = Operation::Write { id: 1, from: &ten, to: &there, acknowledged: true };
    let (many, empty) = (vec![local(&memory, 0, 1); PIECES_MAX + 1], [local(&memory, 0, 0)]);
    let (eleven, none) = ([remote(grant, 0, 11)], [remote(grant, 0, 0)]);
    let long = vec![0; MESSAGE_BYTES_MAX + 1];
    let (_, fd) = Region::allocate(8192, scatter_ring::region::Huge::Never).unwrap();
    let read_only = Arc::new(Region::of_own_fd(&fd, 0, 8192, Rights::READ).unwrap());
    let read_only = [local(&read_only, 0, 10)];
    let withdrawn = a.own(region(10));
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
    assert_eq!((a.link.room(0), a.link.is_sending(0)), (4, false), "something of a refused post was taken");
    a.link.post(0, &[good]).unwrap();
    poll_until(&mut a, &mut b, |a, _| a.completed.len() == 1);
    end(&mut a, &mut b);
    assert_eq!(a.link.post(0, &[good]), Err(PostError::Down));
    assert_eq!((a.down, b.down.is_some(), a.link.room(0)), (Some(Reason::ShutDown), true, 4));
}

pub fn more_reads_than_are_answered_at_a_time_wait_and_are_carried_out(connect: &impl Connect) {
    let (mut a, mut b) = connect.pair(2, Width::Wide);
    let (from, to) = (filled(&pattern(6400, 3)), a.own(region(6400)));
    let grant = b.lets(&mut a, &from, Rights::READ);
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

pub fn a_link_that_is_shut_down_under_way_completes_everything_and_touches_nothing(connect: &impl Connect) {
    cases(scaled(20, 200), |random| {
        let UnderWay { mut a, mut b, mine, theirs, count } = under_way(connect, random, 3);
        a.link.shut_down();
        until(|| {
            a.poll();
            a.link.is_quiet()
        });
        assert_eq!((a.completed.len() as u64, a.down), (count, Some(Reason::ShutDown)));
        is_let_alone(&mut b, &mine, &theirs);
        drop((a, b));
        assert_eq!(Arc::strong_count(&theirs), 1, "a grant keeps memory");
    });
}

pub fn a_link_that_is_dropped_under_way_touches_nothing_any_more(connect: &impl Connect) {
    cases(scaled(12, 100), |random| {
        let UnderWay { a, mut b, mine, theirs, .. } = under_way(connect, random, 2);
        drop(a);
        is_let_alone(&mut b, &mine, &theirs);
    });
}

/// Operations that `a` posted, none or some of them done, between memory of its own and that of `b`.
struct UnderWay<L> {
    a: Side<L>,
    b: Side<L>,
    mine: Arc<Region>,
    theirs: Arc<Region>,
    count: u64,
}

fn under_way<C: Connect>(connect: &C, random: &mut Random, lanes: usize) -> UnderWay<C::Link> {
    const BYTES: u64 = 1 << 20;
    let (mut a, mut b) = connect.pair(lanes, Width::Wide);
    let (mine, theirs) = (a.own(region(BYTES)), region(BYTES));
    let grant = b.lets(&mut a, &theirs, BOTH);
    let count = 1 + random.below(20);
    for id in 0..count {
        let (here, there) = ([local(&mine, 0, BYTES as u32)], [remote(grant, 0, BYTES as u32)]);
        let operation = if random.once_in(2) {
            Operation::Read { id, from: &there, to: &here }
        } else {
            Operation::Write { id, from: &here, to: &there, acknowledged: random.once_in(2) }
        };
        a.link.post(random.below(lanes as u64) as usize, &[operation]).unwrap();
    }
    for _ in 0..random.below(10) {
        a.poll();
        b.poll();
    }
    UnderWay { a, b, mine, theirs, count }
}

/// Once the other side has ended: what is written to the memory now stays, and no operation keeps any of it.
fn is_let_alone<L: Transport>(b: &mut Side<L>, mine: &Arc<Region>, theirs: &Arc<Region>) {
    mine.write_at(0, &vec![3; mine.bytes() as usize]).unwrap();
    until(|| {
        b.poll();
        b.link.is_quiet()
    });
    theirs.write_at(0, &vec![4; theirs.bytes() as usize]).unwrap();
    std::thread::yield_now();
    assert!(contents(mine).iter().all(|byte| *byte == 3) && contents(theirs).iter().all(|byte| *byte == 4));
    assert_eq!((Arc::strong_count(mine), Arc::strong_count(theirs)), (1, 2), "an operation keeps memory");
}

pub fn every_queue_runs_round_many_times(connect: &impl Connect) {
    const SLOT: u64 = 64;
    for width in [Width::Narrow, Width::Wide] {
        let (mut a, mut b) = connect.pair(2, width);
        let (source, into) = (a.own(region(SLOT)), a.own(region(SLOT)));
        let theirs = region(SLOT);
        let grant = b.lets(&mut a, &theirs, BOTH);
        let (here, there) = ([local(&source, 0, SLOT as u32)], [remote(grant, 0, SLOT as u32)]);
        let back = [local(&into, 0, SLOT as u32)];
        for round in 0..scaled(1000, 10_000) {
            let lane = round as usize % 2;
            let bytes = pattern(SLOT as usize, round);
            source.write_at(0, &bytes).unwrap();
            let write = Operation::Write { id: 2 * round, from: &here, to: &there, acknowledged: round % 3 == 0 };
            let read = Operation::Read { id: 2 * round + 1, from: &there, to: &back };
            a.post(lane, &[write, Operation::Send { bytes: &bytes, names: None }, read], &mut b);
            poll_until(&mut a, &mut b, |a, b| a.completed.len() == 2 && b.received.len() == 1);
            assert!(a.completed.drain().all(|(id, result)| id / 2 == round && result == Ok(())));
            assert_eq!(b.received.pop(), Some((lane, bytes.clone())));
            assert_eq!((contents(&theirs), contents(&into)), (bytes.clone(), bytes));
        }
        end(&mut a, &mut b);
    }
}

pub fn messages_of_every_length_come_whole_and_in_order(connect: &impl Connect) {
    for width in [Width::Narrow, Width::Wide] {
        let (mut a, mut b) = connect.pair(2, width);
        // Both at once, as many as they may, before either looks.
        for round in 0..20 {
            let mut sent = [0, 0];
            for (side, sent) in [&mut a, &mut b].into_iter().zip(&mut sent) {
                while side.link.post(1, &[Operation::Send { bytes: &[round], names: None }]).is_ok() {
                    *sent += 1;
                }
            }
            poll_until(&mut a, &mut b, |a, b| [b.received.len(), a.received.len()] == sent);
            a.received.clear();
            b.received.clear();
        }
        let edges = [0, 1, 63, 64, 65, 4095, 4096, 4097, MESSAGE_BYTES_MAX - 1, MESSAGE_BYTES_MAX];
        let lens = (0..300).chain(edges).chain((0..40).map(|i| i * MESSAGE_BYTES_MAX / 40));
        let messages: Vec<_> = (0..).zip(lens).map(|(seed, len)| pattern(len, seed)).collect();
        for lane in 0..2 {
            for message in &messages {
                a.post(lane, &[Operation::Send { bytes: message, names: None }], &mut b);
                // And the other way, where nobody has said that there is room again.
                b.post(lane, &[Operation::Send { bytes: message, names: None }], &mut a);
            }
            let count = messages.len();
            poll_until(&mut a, &mut b, |a, b| a.received.len() == count && b.received.len() == count);
            for side in [&mut a, &mut b] {
                assert!(side.received.drain(..).eq(messages.iter().map(|message| (lane, message.clone()))));
            }
        }
        // One way only, so that nothing comes back by itself.
        let one = [Operation::Send { bytes: b"again", names: None }];
        (0..500).for_each(|_| a.post(1, &one, &mut b));
        poll_until(&mut a, &mut b, |_, b| b.received.len() == 500);
        end(&mut a, &mut b);
    }
}

/// Whoever has a message may use what was written before it on the same lane, at once.
pub fn writes_are_in_place_when_the_message_behind_them_has_come(connect: &impl Connect) {
    const BYTES: u64 = 100_000;
    const PARTS: u64 = 8;
    let (mut a, mut b) = connect.pair(2, Width::Wide);
    let (source, into) = (a.own(region(BYTES)), region(BYTES));
    let grant = b.lets(&mut a, &into, Rights::WRITE);
    for round in 0..scaled(40, 300) {
        let lane = round as usize % 2;
        let bytes = pattern(BYTES as usize, round);
        source.write_at(0, &bytes).unwrap();
        let part = (BYTES / PARTS) as u32;
        let pieces: Vec<_> = (0..PARTS)
            .map(|i| i * u64::from(part))
            .map(|at| ([local(&source, at, part)], [remote(grant, at, part)]))
            .collect();
        let mut operations: Vec<_> =
            (0..).zip(&pieces).map(|(id, (from, to))| Operation::Write { id, from, to, acknowledged: false }).collect();
        operations.push(Operation::Send { bytes: b"there", names: None });
        a.link.post(lane, &operations).unwrap();
        until(|| {
            a.poll();
            b.poll();
            !b.received.is_empty()
        });
        assert!(contents(&into) == bytes, "round {round}: it has the message and not the bytes");
        b.received.clear();
        poll_until(&mut a, &mut b, |a, _| a.completed.len() as u64 == PARTS);
        a.completed.clear();
    }
    end(&mut a, &mut b);
}

/// What is done is in place at the moment that it is said, whatever was posted behind it.
pub fn what_is_said_to_be_done_is_in_place(connect: &impl Connect) {
    const BYTES: u64 = 100_000;
    let (mut a, mut b) = connect.pair(1, Width::Wide);
    let (source, into) = (a.own(region(BYTES)), a.own(region(BYTES)));
    let (theirs, from) = (region(BYTES), region(BYTES));
    let write_to = b.lets(&mut a, &theirs, Rights::WRITE);
    let read_from = b.lets(&mut a, &from, Rights::READ);
    for round in 0..scaled(40, 300) {
        let bytes = [2 * round, 2 * round + 1].map(|seed| pattern(BYTES as usize, seed));
        source.write_at(0, &bytes[0]).unwrap();
        from.write_at(0, &bytes[1]).unwrap();
        let (here, there) = ([local(&source, 0, BYTES as u32)], [remote(write_to, 0, BYTES as u32)]);
        let (far, back) = ([remote(read_from, 0, BYTES as u32)], [local(&into, 0, BYTES as u32)]);
        let read = Operation::Read { id: 1, from: &far, to: &back };
        let write = Operation::Write { id: 2, from: &here, to: &there, acknowledged: true };
        let behind = Operation::Send { bytes: b"behind", names: None };
        a.link.post(0, &if round % 2 == 0 { [read, write, behind] } else { [write, read, behind] }).unwrap();
        let mut done = 0;
        until(|| {
            a.poll();
            if done < a.completed.len() {
                done = a.completed.len();
                let is_done = |id| a.completed.contains_key(&id);
                assert!(!is_done(1) || contents(&into) == bytes[1], "round {round}: the READ");
                assert!(!is_done(2) || contents(&theirs) == bytes[0], "round {round}: the WRITE");
            }
            b.poll();
            done == 2 && !b.received.is_empty()
        });
        assert!(a.completed.drain().all(|(_, result)| result == Ok(())));
        b.received.clear();
    }
    end(&mut a, &mut b);
}

pub fn a_sleeping_poller_is_woken_by_the_lanes(connect: &impl Connect) {
    let (mut a, mut b) = connect.sleepers(2);
    let mut sleeper = Sleeper::default();
    for round in 0..scaled(500, 5000) {
        a.link.post(1, &[Operation::Send { bytes: &round.to_le_bytes(), names: None }]).unwrap();
        // Its own poller does not sleep: it may wait for room at the other side, which has said so already.
        until(|| {
            a.poll();
            !a.link.is_sending(1)
        });
        while b.received.is_empty() {
            sleeper.prepare(&b.bell.sleep);
            if !b.link.has_news() {
                let bell = Some(b.bell.bell.as_fd());
                let fds = bell.into_iter().chain(b.link.descriptors().into_iter().flatten());
                let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
                let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
                assert!(rustix::event::poll(&mut fds, Some(&limit)).unwrap() > 0, "nobody rang");
                let _ = rustix::io::read(&*b.bell.bell, &mut [0; 8]);
            }
            sleeper.awake(&b.bell.sleep);
            b.poll();
        }
        assert_eq!(b.received.pop(), Some((1, round.to_le_bytes().to_vec())));
        a.poll();
    }
    assert!(b.link.lane_heard_ns(1) > 0 && b.link.lane_heard_ns(1) <= b.link.now_ns());
    end(&mut a, &mut b);
}

pub fn a_lane_says_when_it_heard_and_when_it_sent(connect: &impl Connect) {
    let (mut a, mut b) = connect.pair(LANES, Width::Wide);
    fn times<L: Transport>(side: &Side<L>) -> Vec<(u64, u64)> {
        (0..LANES + 1).map(|lane| (side.link.lane_heard_ns(lane), side.link.lane_sent_ns(lane))).collect()
    }
    // Two links may have greeted each other: that is to be over.
    fn is_silent<L: Transport>(side: &Side<L>) -> bool {
        (0..LANES).all(|lane| !side.link.is_sending(lane))
    }
    poll_until(&mut a, &mut b, |a, b| is_silent(a) && is_silent(b));
    assert_eq!((times(&a)[LANES], times(&b)[LANES]), ((0, 0), (0, 0)));
    for lane in 0..LANES {
        let before = [(times(&a), a.link.now_ns()), (times(&b), b.link.now_ns())];
        a.link.post(lane, &[Operation::Send { bytes: b"ping", names: None }]).unwrap();
        poll_until(&mut a, &mut b, |_, b| !b.received.is_empty());
        b.received.clear();
        // The receiver may have it before the sender's thread has noted that it was sent.
        poll_until(&mut a, &mut b, |a, _| times(a)[lane].1 > before[0].1);
        let after = [(times(&a), a.link.now_ns()), (times(&b), b.link.now_ns())];
        assert!(after[1].0[lane].0 > before[1].1 && after[1].0[lane].0 <= after[1].1);
        assert!(after[0].0[lane].1 <= after[0].1);
        // Nothing else has changed.
        let mut expected = [before[0].0.clone(), before[1].0.clone()];
        (expected[0][lane].1, expected[1][lane].0) = (after[0].0[lane].1, after[1].0[lane].0);
        assert_eq!([&after[0].0, &after[1].0], [&expected[0], &expected[1]]);
    }
    end(&mut a, &mut b);
}
