//! A peer that is authenticated and means harm: whatever it sends, it reaches what it was granted and nothing else, and the
//! link ends or the bytes go nowhere. And memory that goes away while it is sent.

mod counting;
mod linked;
mod seeded;

use linked::raw::{ACK, Frame, KINDS, READ, REPLY, RawPeer, SEND, WRITE_ACKNOWLEDGED};
use linked::{Side, contents, end, filled, limits, local, narrow, pair, pattern, poll_until, region, remote};
use rustix::fd::OwnedFd;
use rustix::fs::MemfdFlags;
use scatter_ring::link::tcp::Limits;
use scatter_ring::link::{Failure, GrantId, Operation, Reason, Revoked, Transport, Use};

use scatter_ring::region::{Region, Rights, guard};
use seeded::{Random, cases};
use std::sync::Arc;

const BYTES: u64 = 4096;
/// What is granted of the victim's memory: this many bytes in its middle.
const GRANTED: u64 = 1000;
const FROM: u64 = 1500;

struct Victim {
    side: Side,
    peer: RawPeer,
    memory: Arc<Region>,
    grants: [GrantId; 4],
    next_id: u64,
}

const WRITABLE: usize = 0;
const READABLE: usize = 1;
const ONCE: usize = 2;
const REVOKED: usize = 3;

impl Victim {
    fn new(limits: &Limits) -> Victim {
        let (side, peer) = RawPeer::new(limits);
        let memory = filled(&[0xEE; BYTES as usize]);
        let grants = [
            (Rights::WRITE, Use::Many),
            (Rights::READ, Use::Many),
            (Rights::WRITE, Use::Once),
            (Rights::WRITE, Use::Many),
        ]
        .map(|(rights, usage)| side.link.grants().grant(memory.clone(), FROM, GRANTED, rights, usage).unwrap());
        assert_eq!(side.link.grants().revoke(grants[REVOKED]), Ok(Revoked::Now { spoiled: false }));
        Victim { side, peer, memory, grants, next_id: 0 }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn give(&mut self, bytes: &[u8]) {
        self.peer.give(&mut self.side, bytes);
    }

    fn assert_untouched(&self, what: &dyn std::fmt::Debug) {
        let memory = contents(&self.memory);
        let (before, rest) = memory.split_at(FROM as usize);
        let after = &rest[GRANTED as usize..];
        assert!(before.iter().chain(after).all(|byte| *byte == 0xEE), "written outside the grant: {what:?}");
    }

    #[track_caller]
    fn assert_violation(&self, what: &str) {
        assert!(matches!(self.side.down, Some(Reason::Violation(_))), "{what}: {:?}", self.side.down);
    }
}

/// A frame that is right.
fn good_frame(victim: &mut Victim, random: &mut Random) -> Frame {
    let id = victim.id();
    let (offset, len) = (random.below(GRANTED - 100), 1 + random.small(100));
    match random.below(5) {
        0 => Frame::read(id, &[(victim.grants[READABLE], offset, len)]),
        1 => Frame::send(id, &vec![1; random.below(200) as usize]),
        which => {
            let grant = victim.grants[[WRITABLE, ONCE, REVOKED][which as usize - 2]];
            let pieces: Vec<_> = (0..1 + random.below(3)).map(|_| (grant, offset, len)).collect();
            let mut frame = Frame::write(id, &pieces, &vec![0xBB; pieces.len() * len as usize]);
            if random.once_in(3) {
                frame.kind = WRITE_ACKNOWLEDGED;
            }
            frame
        }
    }
}

/// Makes something of it wrong.
fn spoil(frame: &mut Frame, random: &mut Random) {
    let wild = [0, 1, 2, 1025, 65_535, 1 << 31, u32::MAX.into(), 1 << 40, u64::MAX, u64::MAX - 999];
    let word = random.pick(&wild);
    let piece = random.below(frame.pieces.len().max(1) as u64) as usize;
    match random.below(10) {
        0 => frame.kind = random.pick(&KINDS),
        1 => frame.kind = word as u8,
        2 => frame.flags = word as u8,
        3 => frame.count = word as u16,
        4 => frame.status = word as u32,
        5 => frame.id = word,
        6 => frame.length = word,
        7 => frame.trailer = frame.trailer.map(|(_, id)| (word as u32, id)),
        _ => {
            let Some(piece) = frame.pieces.get_mut(piece) else { return };
            match random.below(4) {
                0 => piece.0 = word,
                1 => piece.1 = word,
                2 => piece.2 = word as u32,
                _ => piece.3 = word as u32,
            }
        }
    }
}

#[test]
fn whatever_a_peer_sends_it_writes_where_it_may_and_nothing_is_allocated_for_it() {
    let count = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    let (mut frames, mut downs) = (0u64, 0u64);
    let mut victim = Victim::new(&narrow());
    cases(count, |random| {
        if victim.side.down.is_some() {
            victim.assert_untouched(&"the last frame");
            downs += 1;
            victim = Victim::new(&narrow());
        }
        let mut frame = good_frame(&mut victim, random);
        let mut bytes = frame.bytes();
        match random.below(12) {
            0 => {
                spoil(&mut frame, random);
                bytes = frame.bytes();
            }
            1 => {
                let bit = random.below(bytes.len() as u64 * 8);
                bytes[bit as usize / 8] ^= 1 << (bit % 8);
            }
            2 if random.once_in(10) => bytes.iter_mut().for_each(|byte| *byte = random.word() as u8),
            _ => {}
        }
        victim.side.received.clear();
        let before = counting::own_bytes();
        victim.give(&bytes);
        // What the test itself keeps of a message, and reads of an answer.
        assert!(counting::own_bytes() - before < 256 << 10, "allocated for {frame:?}");
        frames += 1;
    });
    victim.assert_untouched(&"the last frame");
    println!("{frames} frames, {downs} links ended");
    // Of most frames nothing is wrong, and a wrong one is seldom harmless.
    assert!(count < 1000 || (downs > frames / 50 && downs < frames / 3), "{downs} of {frames}");
}

#[test]
fn each_thing_that_a_peer_may_not_do_ends_the_link() {
    type Make = fn(&mut Victim) -> Vec<Frame>;
    let cases: [(&str, Make); 18] = [
        ("a piece behind its grant", |v| vec![Frame::write(0, &[(v.grants[WRITABLE], 901, 100)], &[0; 100])]),
        ("a piece before its grant", |v| vec![Frame::write(0, &[(v.grants[WRITABLE], u64::MAX, 100)], &[0; 100])]),
        ("the second piece outside", |v| {
            vec![Frame::write(0, &[(v.grants[WRITABLE], 0, 50), (v.grants[WRITABLE], 960, 50)], &[0; 100])]
        }),
        ("writing what is for reading", |v| vec![Frame::write(0, &[(v.grants[READABLE], 0, 100)], &[0; 100])]),
        ("reading what is for writing", |v| vec![Frame::read(0, &[(v.grants[WRITABLE], 0, 100)])]),
        ("reading outside", |v| vec![Frame::read(0, &[(v.grants[READABLE], 999, 2)])]),
        ("a grant that never was", |_| vec![Frame::write(0, &[(GrantId(1 << 32 | 77), 0, 10)], &[0; 10])]),
        ("a grant that may be one day", |v| {
            vec![Frame::write(0, &[(GrantId(v.grants[WRITABLE].0 + (1 << 32)), 0, 10)], &[0; 10])]
        }),
        ("reading a grant that never was", |_| vec![Frame::read(0, &[(GrantId(0), 0, 10)])]),
        ("a frame twice", |v| vec![Frame::write(0, &[(v.grants[WRITABLE], 0, 10)], &[0; 10]); 2]),
        ("a frame too early", |_| vec![Frame::send(1, b"x")]),
        ("an old frame", |_| vec![Frame::send(0, b"x"), Frame::send(1, b"y"), Frame::send(0, b"x")]),
        ("an acknowledgement of nothing", |_| vec![Frame::new(ACK, 0)]),
        ("a reply to nothing", |_| vec![Frame { kind: REPLY, ..Frame::send(0, &[1; 10]) }]),
        ("a refusal of nothing", |_| vec![Frame { status: 2, ..Frame::new(REPLY, 0) }]),
        ("a message that says it is lost", |_| vec![Frame { trailer: Some((1, 0)), ..Frame::send(0, b"x") }]),
        ("a length that is not the pieces'", |v| {
            vec![Frame { length: 99, ..Frame::write(0, &[(v.grants[WRITABLE], 0, 100)], &[0; 100]) }]
        }),
        ("more questions than were agreed on", |v| {
            // In one write, and nobody takes the answers.
            vec![Frame { length: 1000, ..Frame::read(0, &[(v.grants[READABLE], 0, 1000)]) }]
        }),
    ];
    for (what, make) in cases {
        let mut victim = Victim::new(&narrow());
        let mut frames = make(&mut victim);
        if what.starts_with("more questions") {
            frames = (0..40).map(|id| Frame { id, ..frames[0].clone() }).collect();
        }
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::bytes).collect();
        victim.give(&bytes);
        victim.assert_violation(what);
        victim.assert_untouched(&what);
        linked::until(|| {
            victim.side.poll();
            victim.side.link.is_quiet()
        });
    }
}

#[test]
fn answers_are_for_the_first_question_that_has_none() {
    type Make = fn(u64) -> Frame;
    let cases: [(&str, Make); 7] = [
        ("another number", |_| Frame { id: 1, ..Frame::new(ACK, 0) }),
        ("another kind", |_| Frame { length: 10, trailer: Some((0, 0)), payload: vec![0; 10], ..Frame::new(REPLY, 0) }),
        ("the other one's", |_| Frame {
            length: 10,
            trailer: Some((0, 1)),
            payload: vec![0; 10],
            ..Frame::new(REPLY, 1)
        }),
        ("an unknown status", |_| Frame { status: 3, ..Frame::new(ACK, 0) }),
        ("a length", |_| Frame { length: 1, ..Frame::new(ACK, 0) }),
        ("an old one", |id| Frame::new(ACK, id.wrapping_sub(1))),
        ("a later one", |id| Frame::new(ACK, id + (1 << 32))),
    ];
    for (what, make) in cases {
        let mut victim = Victim::new(&narrow());
        let memory = region(10);
        let there = [remote(GrantId(1 << 32), 0, 10)];
        let here = [local(&memory, 0, 10)];
        let write = Operation::Write { id: 7, from: &here, to: &there, acknowledged: true };
        victim.side.link.post(0, &[write, Operation::Read { id: 8, from: &there, to: &here }]).unwrap();
        victim.give(&make(0).bytes());
        victim.assert_violation(what);
        linked::until(|| {
            victim.side.poll();
            victim.side.link.is_quiet()
        });
        let completed = &victim.side.completed;
        assert_eq!(
            (completed.len(), completed[&7], completed[&8]),
            (2, Err(Failure::Down), Err(Failure::Down)),
            "{what}"
        );
        assert_eq!(contents(&memory), [0; 10]);
    }
    // And both when they are right, with what their statuses say.
    for (ack, reply, results) in [
        (0, 0, [Ok(()), Ok(())]),
        (1, 1, [Err(Failure::LostThere), Err(Failure::LostThere)]),
        (2, 2, [Err(Failure::Revoked), Err(Failure::Revoked)]),
    ] {
        let mut victim = Victim::new(&narrow());
        let (memory, there) = (region(10), [remote(GrantId(1 << 32), 0, 10)]);
        let here = [local(&memory, 0, 10)];
        let write = Operation::Write { id: 7, from: &here, to: &there, acknowledged: true };
        victim.side.link.post(0, &[write, Operation::Read { id: 8, from: &there, to: &here }]).unwrap();
        victim.give(&Frame { status: ack, ..Frame::new(ACK, 0) }.bytes());
        let payload = Frame { length: 10, payload: vec![5; 10], trailer: Some((reply, 1)), ..Frame::new(REPLY, 1) };
        victim.give(&payload.bytes()[..57]);
        assert_eq!(victim.side.completed.len(), 1, "a read is done before its last byte");
        victim.give(&payload.bytes()[57..58]);
        assert_eq!(victim.side.completed.len(), 1, "a read is done before its trailer");
        victim.give(&payload.bytes()[58..]);
        assert_eq!([7, 8].map(|id| victim.side.completed[&id]), results);
        assert_eq!(victim.side.down, None);
    }
}

#[test]
fn a_frame_that_is_cut_off_anywhere_touches_its_grant_at_most() {
    let mut victim = Victim::new(&narrow());
    let write = Frame::write(0, &[(victim.grants[WRITABLE], 0, 60), (victim.grants[WRITABLE], 60, 40)], &[0xBB; 100]);
    let whole = write.bytes();
    for len in 0..=whole.len() {
        victim.give(&whole[..len]);
        let _ = victim.peer.socket.shutdown(std::net::Shutdown::Both);
        linked::until(|| {
            victim.side.poll();
            victim.side.link.is_quiet()
        });
        assert!(matches!(victim.side.down, Some(Reason::Closed | Reason::System(_))), "{:?}", victim.side.down);
        victim.assert_untouched(&len);
        let written = contents(&victim.memory).iter().filter(|byte| **byte == 0xBB).count();
        assert_eq!(written, len.saturating_sub(72).min(100));
        // What did not come to its end is not to be used.
        let spoiled = (72..whole.len()).contains(&len);
        assert_eq!(victim.side.link.grants().revoke(victim.grants[WRITABLE]), Ok(Revoked::Now { spoiled }), "{len}");
        victim = Victim::new(&narrow());
    }
}

#[test]
fn bytes_for_what_is_revoked_in_the_middle_go_nowhere_and_are_counted() {
    let mut victim = Victim::new(&limits());
    let grant = victim.grants[WRITABLE];
    let write = Frame { kind: WRITE_ACKNOWLEDGED, ..Frame::write(0, &[(grant, 0, 1000)], &[0xBB; 1000]) };
    let bytes = write.bytes();
    victim.give(&bytes[..448]);
    assert_eq!(victim.side.link.grants().revoke(grant), Ok(Revoked::Now { spoiled: true }));
    victim.memory.write_at(FROM, &[0xEE; GRANTED as usize]).unwrap();
    victim.peer.socket.set_nonblocking(false).unwrap();
    std::io::Write::write_all(&mut victim.peer.socket, &bytes[448..]).unwrap();
    linked::until(|| {
        victim.side.poll();
        victim.side.link.counters(0).sends == 1
    });
    let mut answer = [0; 48];
    std::io::Read::read_exact(&mut victim.peer.socket, &mut answer).unwrap();
    assert_eq!(answer[..8], [ACK, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(contents(&victim.memory), [0xEE; BYTES as usize]);
    assert_eq!(victim.side.link.counters(0).drained_bytes, 600);
    // A grant that is not the one revoked, but of the same frame, is said to be spoiled.
    let other = victim.side.link.grants().grant(victim.memory.clone(), 0, 8, Rights::WRITE, Use::Many).unwrap();
    let both = Frame::write(1, &[(other, 0, 4), (grant, 0, 4)], &[0xBB; 8]);
    victim.peer.socket.set_nonblocking(true).unwrap();
    victim.give(&both.bytes());
    assert_eq!(victim.side.link.grants().is_spoiled(other), Ok(true));
    assert_eq!(contents(&victim.memory), [0xEE; BYTES as usize]);
}

#[test]
fn a_message_waits_for_its_reader_and_none_is_lost() {
    let mut victim = Victim::new(&narrow());
    let frames: Vec<u8> = (0..50).flat_map(|id| Frame::send(id, &[id as u8; 300]).bytes()).collect();
    victim.give(&frames);
    let received: Vec<_> = victim.side.received.iter().map(|(_, bytes)| bytes.clone()).collect();
    assert_eq!(received, (0..50).map(|id| vec![id; 300]).collect::<Vec<_>>());
    victim.give(&Frame::send(50, &[]).bytes());
    assert_eq!(victim.side.received.last(), Some(&(0, Vec::new())));
    assert_eq!((SEND, READ), (4, 3));
}

/// Memory whose file is cut short after so many bytes.
fn cut_short(bytes: u64, left: u64) -> (Arc<Region>, OwnedFd) {
    let (region, fd) = can_be_cut(bytes);
    rustix::fs::ftruncate(&fd, left).unwrap();
    (region, fd)
}

fn can_be_cut(bytes: u64) -> (Arc<Region>, OwnedFd) {
    guard::install().unwrap();
    let fd = rustix::fs::memfd_create("cut", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    let region = Region::of_own_fd(&fd, 0, bytes, Rights::READ_WRITE).unwrap();
    assert!(region.may_be_lost());
    region.write_at(0, &pattern(bytes as usize, 9)).unwrap();
    (Arc::new(region), fd)
}

#[test]
fn memory_that_is_lost_in_the_middle_fails_its_operation_and_nothing_else() {
    const LONG: u64 = 1 << 20;
    for (lane, left) in [0, 1].into_iter().flat_map(|lane| [0, 4096, 300 << 10, LONG - 4096].map(|left| (lane, left))) {
        let (mut a, mut b) = pair(2, &limits(), None);
        let good = filled(&pattern(1000, 4));
        let target = region(LONG + 2000);
        let grant = |side: &Side, memory: &Arc<Region>| {
            side.link.grants().grant(memory.clone(), 0, memory.bytes(), Rights::READ_WRITE, Use::Many).unwrap()
        };
        let (lost, _fd) = cut_short(LONG, left);
        let into = [0, 1, 2].map(|_| grant(&b, &target));
        let small = [local(&good, 0, 1000)];
        let long = [local(&lost, 0, LONG as u32)];
        let to = [remote(into[0], 0, 1000), remote(into[1], 1000, LONG as u32), remote(into[2], LONG + 1000, 1000)];
        // The source of a write.
        for acknowledged in [false, true] {
            let write = |id, from, to| Operation::Write { id, from, to, acknowledged };
            let writes = [write(1, &small, &to[..1]), write(2, &long, &to[1..2]), write(3, &small, &to[2..])];
            a.link.post(lane, &writes).unwrap();
            a.link.post(lane, &[Operation::Send { bytes: b"behind", names: None }]).unwrap();
            poll_until(&mut a, &mut b, |a, b| a.completed.len() == 3 && b.received.len() == 1);
            let results = [1, 2, 3].map(|id| a.completed[&id]);
            assert_eq!(results, [Ok(()), Err(Failure::Lost), Ok(())], "{left} bytes are left");
            let spoiled = into.map(|id| b.link.grants().is_spoiled(id).unwrap());
            assert_eq!(spoiled, [false, true, false], "the receiver takes zeros for what was sent");
            assert!(contents(&target)[LONG as usize + 1000..] == contents(&good));
            a.completed.clear();
            b.received.clear();
        }
        // The source of a read, and the destinations of both.
        let (lost_there, _fd) = cut_short(LONG, left);
        let from_lost = [remote(grant(&b, &lost_there), 0, LONG as u32)];
        let fine = region(LONG);
        let (here, there) = ([local(&fine, 0, LONG as u32)], [remote(into[0], 0, LONG as u32)]);
        a.link.post(lane, &[Operation::Read { id: 1, from: &from_lost, to: &here }]).unwrap();
        a.link.post(lane, &[Operation::Read { id: 2, from: &there, to: &long }]).unwrap();
        let write = Operation::Write { id: 3, from: &here, to: &from_lost, acknowledged: true };
        a.link.post(lane, &[write, Operation::Read { id: 4, from: &there, to: &here }]).unwrap();
        poll_until(&mut a, &mut b, |a, _| a.completed.len() == 4);
        let results = [1, 2, 3, 4].map(|id| a.completed[&id]);
        let expected = [Err(Failure::LostThere), Err(Failure::Lost), Err(Failure::LostThere), Ok(())];
        assert_eq!(results, expected, "{left} bytes are left");
        assert_eq!((a.down, b.down), (None, None));
        end(&mut a, &mut b);
    }
}

#[test]
fn how_it_went_is_said_when_the_kernel_has_all_of_what_may_be_lost() {
    let (mut a, mut b) = pair(1, &limits(), None);
    let (source, _fd) = can_be_cut(1000);
    let target = region(1000);
    let grant = b.link.grants().grant(target.clone(), 0, 1000, Rights::WRITE, Use::Many).unwrap();
    let (from, to) = ([local(&source, 0, 1000)], [remote(grant, 0, 1000)]);
    a.link.post(0, &[Operation::Write { id: 1, from: &from, to: &to, acknowledged: false }]).unwrap();
    assert_eq!(a.link.counters(0).sends, 2, "payload and trailer are two calls");
    poll_until(&mut a, &mut b, |a, _| a.completed.contains_key(&1));
    assert_eq!(a.completed[&1], Ok(()));
    poll_until(&mut a, &mut b, |_, _| contents(&target) == contents(&source));
    end(&mut a, &mut b);
}

/// Another thread faults first: what the kernel then finds in the memory's place are zeros, and no error.
#[test]
fn memory_that_somebody_else_finds_lost_in_the_middle_fails_its_operation() {
    const LONG: u64 = 1 << 20;
    #[derive(Debug, PartialEq)]
    enum Lost {
        WriteFrom,
        WriteTo,
        ReadFrom,
        ReadTo,
    }
    for which in [Lost::WriteFrom, Lost::WriteTo, Lost::ReadFrom, Lost::ReadTo] {
        let (mut a, mut b) = pair(1, &limits(), Some(1));
        let (lost, fd) = can_be_cut(LONG);
        let fine = region(LONG);
        let there_is_lost = matches!(which, Lost::WriteTo | Lost::ReadFrom);
        let (mine, theirs) = if there_is_lost { (&fine, &lost) } else { (&lost, &fine) };
        let grant = b.link.grants().grant(theirs.clone(), 0, LONG, Rights::READ_WRITE, Use::Many).unwrap();
        let (here, there) = ([local(mine, 0, LONG as u32)], [remote(grant, 0, LONG as u32)]);
        let is_write = matches!(which, Lost::WriteFrom | Lost::WriteTo);
        let operation = if is_write {
            Operation::Write { id: 1, from: &here, to: &there, acknowledged: true }
        } else {
            Operation::Read { id: 1, from: &there, to: &here }
        };
        a.link.post(0, &[operation]).unwrap();
        let under_way = |side: &Side| side.link.counters(0).receives > 20;
        poll_until(&mut a, &mut b, |a, b| under_way(if is_write { b } else { a }));
        assert!(a.completed.is_empty(), "the test is too late");
        rustix::fs::ftruncate(&fd, 0).unwrap();
        assert!(lost.read_at(0, &mut [0]).is_err() && lost.is_lost());
        poll_until(&mut a, &mut b, |a, _| !a.completed.is_empty());
        let failure = if there_is_lost { Failure::LostThere } else { Failure::Lost };
        assert_eq!(a.completed[&1], Err(failure), "{which:?}");
        assert_eq!(b.link.grants().is_spoiled(grant), Ok(is_write), "{which:?}");
        end(&mut a, &mut b);
    }
}
