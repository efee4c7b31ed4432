//! What a client can do to an engine through the pages that they share: R1, R3, R4, R6, R8, R10.

mod support;

use ring_abi::{Descriptor, Flags, FragmentRecord, IndexKind, Opcode, Span, SpanFlags, Status};
use scatter_ring::engine::{Config, Engine};
use scatter_ring::region::{Region, Rights};
use scatter_ring::ring::Words;
use scatter_ring::sync::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::hostile::{Guarded, NOP, StopsOnDrop, eventually, range};
use support::{Random, RawClient};

fn engine(workers: usize) -> Engine {
    Engine::new(&Config { workers, ..Config::default() }).unwrap()
}

/// An engine that this thread drives, until a span comes.
fn poll_for(engine: &mut Engine, client: &mut RawClient) -> Span {
    for _ in 0..100_000 {
        engine.poll_once();
        if let Some(span) = client.reap() {
            return span;
        }
    }
    panic!("no span; stopped: {:?}", client.stopped());
}

const ROWS: u64 = 64;
const ROW_BYTES: u32 = 48;
const STRIDE: u32 = 64;
const GAP: u8 = 0xEE;

/// Index words of one batch of each kind: at 0 and 4096 two arrays for U32 and U64 on both sides, at 8192 the records.
fn write_words(index: &Region, random: &mut Random) {
    let good = random.below(ROWS);
    let bad = random.pick(&[ROWS, ROWS + 1, 1 << 20, u64::from(u32::MAX), u64::MAX, u64::MAX / 64 + 1]);
    let number = if random.one_in(300) { bad } else { good };
    let at = random.below(2 * ROWS);
    let write = |offset: u64, bytes: &[u8]| index.write_at(offset, bytes).unwrap();
    match random.below(4) {
        0 => write(4 * at, &(number as u32).to_le_bytes()),
        1 => write(4096 + 8 * at, &number.to_le_bytes()),
        _ => {
            let record = 8192 + 24 * (at / 2);
            let offset = number.saturating_mul(STRIDE.into());
            match random.below(3) {
                0 => write(record, &offset.to_le_bytes()),
                1 => write(record + 8, &offset.to_le_bytes()),
                _ => {
                    // Longer than the whole region, so that no place of it is right.
                    let len = if number == good { ROW_BYTES } else { random.pick(&[1 << 13, u32::MAX]) };
                    write(record + 16, &u64::from(len).to_le_bytes());
                }
            }
        }
    }
}

/// A watcher has no better proof than guard pages: a fragment that was checked and then read again would be followed
/// out of them sooner or later.
#[test]
fn row_numbers_that_change_while_they_are_followed_lead_nowhere_else() {
    let (src, dst, bystander) = (Guarded::new(1), Guarded::new(1), Guarded::new(1));
    assert_eq!(src.len() as u64, ROWS * u64::from(STRIDE));
    [(&src, 0x11), (&dst, GAP), (&bystander, 0xB5)].iter().for_each(|(memory, byte)| memory.fill(*byte));
    let engine = engine(1).start().unwrap();
    let adopt = |name: &str, memory: &Guarded, rights| {
        // SAFETY: the memory lives until the engine has stopped, and no reference to it is ever made.
        unsafe { engine.adopt(name, memory.base(), memory.len() as u64, rights) }.unwrap()
    };
    let _adopted = [
        adopt("src", &src, Rights::READ),
        adopt("dst", &dst, Rights::READ_WRITE),
        adopt("by", &bystander, Rights::READ_WRITE),
    ];
    let mut client = RawClient::attach(engine.connect().unwrap(), 64, 64, 0);
    let mut open = |name, rights: Rights| {
        let answer = client.ask(ring_abi::Kind::OPEN, &[rights.bits()], name, &[]);
        assert_eq!(answer.status, Status::OK);
        answer.args[0] as u32
    };
    let (src_handle, dst_handle) = (open("src", Rights::READ), open("dst", Rights::READ_WRITE));
    let (index, index_handle) = client.memory(16 << 10, Rights::READ_WRITE);
    for i in 0..ROWS {
        let record = FragmentRecord { src: i * 64, dst: i * 64, len: ROW_BYTES, reserved: 0 };
        let words = record.to_words().map(u64::to_le_bytes).concat();
        index.write_at(8192 + 24 * i, &words).unwrap();
    }
    let base = Descriptor {
        count: ROWS as u32,
        len: ROW_BYTES,
        src_stride: STRIDE,
        dst_stride: STRIDE,
        index_region: index_handle,
        ..range((src_handle, 0), (dst_handle, 0), ROW_BYTES)
    };
    let both = |kind| IndexKind::pack(kind, kind);
    let shapes = [
        Descriptor { index_kind: both(IndexKind::U32), ..base },
        Descriptor { index_kind: both(IndexKind::U64), index_offset: 4096, ..base },
        Descriptor {
            index_kind: both(IndexKind::Fragments),
            index_offset: 8192,
            len: 0,
            src_stride: 0,
            dst_stride: 0,
            ..base
        },
    ];
    let stop = AtomicBool::new(false);
    let mut seen = [[0u32; 2]; 3];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(1);
            while !stop.load(Ordering::Relaxed) {
                write_words(&index, &mut random);
            }
        });
        let _stops = StopsOnDrop(&stop);
        let end =
            Instant::now() + if cfg!(debug_assertions) { Duration::from_millis(1500) } else { Duration::from_secs(10) };
        while Instant::now() < end {
            for shape in shapes.iter().cycle().take(15) {
                assert!(client.try_push(&Descriptor { user_data: shape.index_offset / 4096, ..*shape }.to_entry()));
            }
            client.publish();
            for _ in 0..15 {
                let span = client.wait();
                let ok = span.status().is_ok();
                assert!(ok || span.status() == Status::OUT_OF_RANGE, "{span:?}");
                seen[span.user_data as usize][usize::from(ok)] += 1;
            }
        }
    });
    assert!(seen.as_flattened().iter().all(|n| *n > 0), "not every outcome was met: {seen:?}");
    for (i, row) in dst.bytes().chunks(STRIDE as usize).enumerate() {
        let (row, gap) = row.split_at(ROW_BYTES as usize);
        assert!(gap.iter().all(|byte| *byte == GAP), "written behind row {i}");
        assert!(row.iter().all(|byte| [GAP, 0x11].contains(byte)), "row {i} has bytes from elsewhere");
    }
    assert!(bystander.bytes().iter().all(|byte| *byte == 0xB5), "a bystander was written to");
    assert!(src.bytes().iter().all(|byte| *byte == 0x11), "the source was written to");
}

#[test]
fn random_words_in_its_pages_end_the_session_that_wrote_them_and_no_other() {
    let engine = engine(1).start().unwrap();
    let mut other = RawClient::attach(engine.connect().unwrap(), 64, 64, 0);
    let (src, src_handle) = other.memory(1 << 16, Rights::READ_WRITE);
    let (dst, dst_handle) = other.memory(1 << 16, Rights::READ_WRITE);
    let mut random = Random(3);
    let mut served = 0u64;
    for round in 0..30u64 {
        let start = random.pick(&[0, u64::MAX - 5, u64::from(u32::MAX) - 5]);
        let mut evil = RawClient::attach(engine.connect().unwrap(), 64, 64, start);
        let (_memory, handle) = evil.memory(4096, Rights::READ_WRITE);
        let (sq, cq, sleep) = (evil.areas.sq.words().clone(), evil.areas.cq.words().clone(), &evil.areas.client_sleep);
        let good = range((handle, 0), (handle, 2048), 64).to_entry();
        while evil.stopped().is_none() {
            for _ in 0..50 {
                let word = if random.one_in(2) { random.next() } else { start.wrapping_add(random.below(100)) };
                match random.below(8) {
                    0 if random.one_in(30) => sq.tail().store(word, Relaxed),
                    1 if random.one_in(30) => cq.head().store(word, Relaxed),
                    2 => sleep.store(word, Relaxed),
                    3 => {
                        let tail = sq.tail().load(Relaxed);
                        sq.tail().store(tail.wrapping_add(random.below(3)), Relaxed);
                    }
                    _ => {
                        let slot = sq.slot(random.next());
                        for (to, from) in slot.iter().zip(good) {
                            to.store(if random.one_in(9) { random.next() } else { from }, Relaxed);
                        }
                    }
                }
            }
            // A session that sleeps looks at nothing.
            rustix::io::write(&evil.doorbell, &1u64.to_ne_bytes()).unwrap();
            let pattern = [random.next() as u8; 300];
            src.write_at(8 * round, &pattern).unwrap();
            let span = other.done(&range((src_handle, 8 * round), (dst_handle, 11), 300));
            assert_eq!((span.status(), span.bytes), (Status::OK, 300));
            let mut bytes = [0; 300];
            dst.read_at(11, &mut bytes).unwrap();
            assert_eq!(bytes, pattern, "round {round}");
            served += 1;
        }
        assert_eq!(evil.stopped(), Some(Status::BAD_RING), "round {round}");
    }
    assert!(served >= 30 && other.stopped().is_none());
}

#[test]
fn a_position_that_cannot_be_ends_the_session_before_anything_is_taken() {
    for start in [0, 3, u64::MAX - 1, u64::from(u32::MAX), i64::MAX as u64] {
        for ahead in [17, 18, 1 << 32, 1 << 63, u64::MAX, u64::MAX - 15] {
            let mut engine = engine(0);
            let mut client = RawClient::attach(engine.connect().unwrap(), 16, 16, start);
            let (memory, handle) = client.memory(4096, Rights::READ_WRITE);
            memory.write_at(0, &[7; 64]).unwrap();
            for _ in 0..16 {
                assert!(client.try_push(&range((handle, 0), (handle, 1024), 64).to_entry()));
            }
            // The descriptors are good; only the tail is not.
            client.areas.sq.words().tail().store(start.wrapping_add(ahead), Relaxed);
            eventually("the poller has the session and ends it", || {
                engine.poll_once();
                client.stopped() == Some(Status::BAD_RING)
            });
            let mut bytes = [0; 64];
            memory.read_at(1024, &mut bytes).unwrap();
            assert_eq!((bytes, client.reap()), ([0; 64], None), "start {start}, tail +{ahead}");
        }
    }
}

/// The second batch of a turn is a small row, which waits in a queue that all sessions share; then the completion ring's
/// head turns out to be impossible. The row must not stay in the queue when the memory it names is unmapped.
#[test]
fn what_a_broken_session_left_in_the_row_queue_is_not_copied_later() {
    let mut engine = engine(0);
    let mut evil = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    let (memory, handle) = evil.memory(4096, Rights::READ_WRITE);
    memory.write_at(0, &[7; 64]).unwrap();
    evil.submit(&NOP);
    eventually("the first batch is done", || {
        engine.poll_once();
        evil.areas.cq.available().unwrap() == 1
    });
    evil.areas.cq.words().head().store(1 << 40, Relaxed);
    for _ in 0..3 {
        assert!(evil.try_push(&range((handle, 0), (handle, 1024), 64).to_entry()));
    }
    evil.publish();
    eventually("the session has ended", || {
        engine.poll_once();
        evil.stopped() == Some(Status::BAD_RING)
    });
    let mut bytes = [0; 64];
    memory.read_at(1024, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 64], "a row that was taken is still in the queue");
    // Would be the end of this process if the queue had kept the row.
    let mut end = [0];
    eventually("the engine has let go of everything", || {
        rustix::net::recv(&evil.wake, &mut end[..], rustix::net::RecvFlags::DONTWAIT).is_ok_and(|(n, _)| n == 0)
    });
    let mut other = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    let (_memory, handle) = other.memory(4096, Rights::READ_WRITE);
    other.submit(&range((handle, 0), (handle, 1024), 64));
    assert!(poll_for(&mut engine, &mut other).status().is_ok());
}

/// The end of a session gives transfers up in the middle. Whatever the client can still reap must not say that they are
/// done.
#[test]
fn a_transfer_that_the_end_of_its_session_gives_up_is_never_called_done() {
    const BYTES: u32 = 64 << 20;
    for by_message in [true, false] {
        let mut engine = engine(0);
        let mut client = RawClient::attach(engine.connect().unwrap(), 8, 16, 0);
        let (src, from) = client.memory(BYTES.into(), Rights::READ_WRITE);
        let (dst, to) = client.memory(BYTES.into(), Rights::READ_WRITE);
        src.write_at(u64::from(BYTES) - 1, &[1]).unwrap();
        client.submit(&NOP);
        client.submit(&range((from, 0), (to, 0), BYTES));
        eventually("the first batch is done, and so the other one has begun", || {
            engine.poll_once();
            client.areas.cq.available().unwrap() == 1
        });
        if by_message {
            client.send(ring_abi::Kind(99), &[], "", &[]);
            eventually("the engine has ended the session", || {
                // Slowly: the control thread has to read the message before 256 turns have copied everything.
                std::thread::sleep(Duration::from_millis(1));
                engine.poll_once();
                client.stopped().is_some()
            });
            // What is in flight drains.
            for _ in 0..100 {
                engine.poll_once();
            }
        }
        drop(engine);
        let mut last = [0];
        dst.read_at(u64::from(BYTES) - 1, &mut last).unwrap();
        assert_eq!(last, [0], "the transfer was too short for this test");
        assert!(client.reap().is_some_and(|span| span.first == 0), "what was done before is shown");
        assert_eq!(client.reap(), None, "a transfer that was given up has a span");
    }
}

/// Descriptors with every mixture of edges, against arithmetic that cannot overflow.
#[test]
fn no_mixture_of_edges_reaches_outside_a_region() {
    const BYTES: u64 = 4096;
    const EDGES: [u64; 9] = [0, 1, BYTES - 1, BYTES, BYTES + 1, 1 << 31, u32::MAX as u64, 1 << 63, u64::MAX];
    let edges32: Vec<u32> = EDGES.iter().filter_map(|edge| u32::try_from(*edge).ok()).chain([64]).collect();
    let mut engine = engine(0);
    let mut client = RawClient::attach(engine.connect().unwrap(), 64, 64, 0);
    let (src, from) = client.memory(BYTES, Rights::READ_WRITE);
    // Behind it in the same file is what nobody was granted.
    let (file, fd) = Region::allocate(2 * BYTES, scatter_ring::region::Huge::Never).unwrap();
    let registered = client.ask(ring_abi::Kind::REGISTER, &[BYTES, 3], "", &[std::os::fd::AsFd::as_fd(&fd)]);
    let to = registered.args[0] as u32;
    src.write_at(0, &[7; BYTES as usize]).unwrap();
    let mut met = [0u32; 2];
    let mut batches = Vec::new();
    for offset in EDGES {
        for len in &edges32 {
            for count in &edges32 {
                for stride in &edges32 {
                    let plain = range((from, 0), (to, 0), *len);
                    let plain = Descriptor { count: *count, src_stride: 0, dst_stride: *len, ..plain };
                    batches.push(Descriptor { src_offset: offset, src_stride: *stride, ..plain });
                    batches.push(Descriptor { dst_offset: offset, dst_stride: *stride, ..plain });
                }
            }
        }
        batches.extend(EDGES.map(|other| range((from, offset), (to, other), 1)));
    }
    for d in &batches {
        client.submit(d);
        let span = poll_for(&mut engine, &mut client);
        let inside = |offset: u64, stride: u32| {
            let end = u128::from(offset) + u128::from(d.count - 1) * u128::from(stride) + u128::from(d.len);
            end <= u128::from(BYTES)
        };
        let expected = if d.count == 0 {
            Status::INVALID_COUNT
        } else if d.count > 1 && d.dst_stride < d.len {
            Status::INVALID_STRIDE
        } else if d.len == 0 || (inside(d.src_offset, d.src_stride) && inside(d.dst_offset, d.dst_stride)) {
            Status::OK
        } else {
            Status::OUT_OF_RANGE
        };
        assert_eq!(span.status(), expected, "{d:?}");
        met[usize::from(expected.is_ok())] += 1;
    }
    assert!(met.iter().all(|n| *n > 50), "{met:?}");
    let mut behind = [1; BYTES as usize];
    file.read_at(BYTES, &mut behind).unwrap();
    assert_eq!(behind, [0; BYTES as usize], "written behind the region");
}

/// How long the poller's thread has run, in clock ticks.
fn poller_ticks() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_poller = |path: &std::path::PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "scatter-poll")
    };
    let pollers = tasks.filter(is_poller).filter_map(|path| std::fs::read_to_string(path.join("stat")).ok());
    pollers.map(|stat| stat.rsplit(')').next().unwrap().split(' ').skip(12).take(2).map(ticks).sum::<u64>()).sum()
}

fn ticks(field: &str) -> u64 {
    field.parse().unwrap()
}

#[test]
#[ignore = "counts processor time: run by itself, with --ignored"]
fn an_engine_whose_client_does_not_reap_sleeps() {
    let engine = engine(0).start().unwrap();
    let mut client = RawClient::attach(engine.connect().unwrap(), 4096, 64, 0);
    for _ in 0..4096 {
        assert!(client.try_push(&NOP.to_entry()));
    }
    client.publish();
    eventually("the completion ring is full", || client.areas.cq.available().unwrap() > 60);
    let before = poller_ticks();
    std::thread::sleep(Duration::from_secs(1));
    let spent = poller_ticks() - before;
    assert!(spent < 30, "the poller ran for {spent} of 100 ticks");
}

#[test]
fn a_client_that_does_not_reap_loses_no_completion_and_gets_none_twice() {
    let engine = engine(1).start().unwrap();
    for start in [0, u64::MAX - 3000] {
        let mut client = RawClient::attach(engine.connect().unwrap(), 8192, 16, start);
        let (_memory, handle) = client.memory(1 << 20, Rights::READ_WRITE);
        let mut pushed = 0;
        let mut seen = std::collections::HashSet::new();
        for round in 0..4 {
            while client.try_push(&range((handle, 0), (handle, 1 << 19), 32 << (pushed % 8)).to_entry()) {
                pushed += 1;
            }
            client.publish();
            // A quarter of the ring: batches are taken only with places for all that they may have to say.
            eventually("the engine has done what it can", || client.areas.cq.available().unwrap() >= 13);
            let until = if round == 3 { pushed } else { pushed / 2 };
            while seen.len() < until {
                let span = client.wait();
                assert_eq!((span.count, span.status(), span.flags), (1, Status::OK, SpanFlags::BATCH_DONE));
                assert!(span.first.wrapping_sub(start) < pushed as u64, "{span:?}");
                assert!(seen.insert(span.first), "twice: {span:?}");
            }
        }
        assert!(pushed > 15_000, "{pushed}");
        assert_eq!(client.reap(), None);
    }
}

fn malformed_count() -> u64 {
    let default = if cfg!(debug_assertions) { 100_000 } else { 10_000_000 };
    std::env::var("SCATTER_RING_MALFORMED").map_or(default, |n| n.parse().expect("a number"))
}

/// Set SCATTER_RING_MALFORMED to have more of them.
#[test]
fn a_descriptor_without_a_meaning_has_exactly_one_error_and_the_ring_goes_on() {
    let mut engine = engine(0);
    let mut client = RawClient::attach(engine.connect().unwrap(), 256, 256, u64::from(u32::MAX) - 10);
    let (memory, handle) = client.memory(1 << 16, Rights::READ_WRITE);
    let (_read_only, no_writing) = client.memory(4096, Rights::READ);
    memory.write_at(0, &[9; 1 << 16]).unwrap();
    let mut random = Random(17);
    let mut position = u64::from(u32::MAX) - 10;
    let mut sent = 0;
    while sent < malformed_count() {
        let mut expected = Vec::new();
        for _ in 0..50 {
            let (d, extension) = malformed(&mut random, handle, no_writing);
            assert!(client.try_push(&d.to_entry()));
            if d.flags & Flags::EXTENDED != 0 {
                assert!(client.try_push(&[extension; 8]));
            }
            expected.push((position, 1 + u32::from(d.flags & Flags::EXTENDED != 0), d));
            position = position.wrapping_add(expected.last().unwrap().1.into());
        }
        sent += 50;
        client.publish();
        for (first, count, d) in expected {
            let span = poll_for(&mut engine, &mut client);
            let as_expected = (span.first, span.count, span.flags) == (first, count, SpanFlags::BATCH_DONE);
            assert!(as_expected && span.status() != Status::OK && span.bytes == 0, "{d:?}: {span:?}");
        }
    }
    client.submit(&range((handle, 0), (handle, 4096), 4096));
    assert_eq!(poll_for(&mut engine, &mut client).status(), Status::OK);
    engine.poll_once();
    assert_eq!((client.reap(), client.stopped()), (None, None));
    let mut bytes = vec![0; 1 << 16];
    memory.read_at(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 9));
}

/// A batch of one descriptor that is wrong in at least one way, and the words of its second slot if it has one.
fn malformed(random: &mut Random, handle: u32, no_writing: u32) -> (Descriptor, u64) {
    let good = range((handle, 0), (handle, 4096), 64);
    let flags = Flags::LAST | random.next() as u16 & !Flags::EXTENDED;
    let d = match random.below(12) {
        0 => Descriptor { opcode: random.pick(&[0, 5, 7, 8, 9, 77, 255]), ..good },
        1 => Descriptor { flags: Flags::LAST | 1 << (7 + random.below(9)), ..good },
        2 => Descriptor { index_kind: random.pick(&[0x04, 0x13, 0x31, 0x03, 0x30, 0x44, 0xFF]), ..good },
        3 => Descriptor { src_region: random.pick(&[0, handle ^ 1 << 12, u32::MAX, handle + 7]), ..good },
        4 => Descriptor { dst_region: random.pick(&[no_writing, 0, handle.wrapping_mul(3)]), ..good },
        5 => Descriptor { src_offset: (1 << 16) - random.below(64), ..good },
        6 => Descriptor { dst_offset: u64::MAX - random.below(100), ..good },
        7 => Descriptor { index_region: handle, ..good },
        8 => Descriptor { count: 2, dst_stride: random.below(64) as u32, ..good },
        9 => Descriptor { opcode: Opcode::CANCEL.0, ..good },
        10 => return (Descriptor { flags: Flags::LAST | Flags::EXTENDED, ..good }, random.next() & !0xFF | 1),
        _ => {
            let words = std::array::from_fn(|_| random.next() | 1 << random.below(64));
            Descriptor { flags, ..Descriptor::from_entry(&words) }
        }
    };
    (d, 0)
}
