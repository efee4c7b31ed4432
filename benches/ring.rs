//! The ring beside its peers: rtrb (a ring between threads) and io_uring's NOP (a submission to the kernel).
//!
//! Two sides, neither pinned, on whatever cores there are: every wait gives its core away now and then. The last lines
//! compare with rtrb in pairs of runs, since two groups of criterion lie a minute apart.

use criterion::{Criterion, Throughput};
use ring_abi::Entry;
use scatter_ring::ring::{self, Consumer, HeapWords, Producer, Words};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const CAPACITY: u32 = 4096;
const BATCH: u64 = 32;
/// Entries of one criterion iteration.
const RUN: u64 = 64 * BATCH;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    throughput(&mut criterion);
    round_trip(&mut criterion);
    criterion.final_summary();
    let smoke = std::env::args().any(|arg| arg == "--test");
    // The figures of a smoke run mean nothing.
    paired(if smoke { 1 } else { 31 }, if smoke { RUN } else { 4_000_000 });
}

/// Publish and consume, 32 entries at a time.
fn throughput(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("publish and consume 64 B, batches of 32");
    group.throughput(Throughput::Elements(RUN));
    let mut threads = ring::heap(CAPACITY, 0);
    group.bench_function("threads", |b| b.iter_custom(|n| ours(&mut threads, n * RUN)));
    let mut processes = processes::Pair::new();
    group.bench_function("processes", |b| b.iter_custom(|n| processes.run(n * RUN)));
    drop(processes);
    let mut peer = rtrb::RingBuffer::new(CAPACITY as usize);
    group.bench_function("rtrb, threads", |b| b.iter_custom(|n| theirs(&mut peer, n * RUN)));
    group.finish();
}

/// Runs of all three in turn, and the medians of the ratios of their rates to rtrb's.
fn paired(pairs: usize, entries: u64) {
    let mut ring = ring::heap(CAPACITY, 0);
    let mut peer = rtrb::RingBuffer::new(CAPACITY as usize);
    ours(&mut ring, entries);
    theirs(&mut peer, entries);
    let mut times = Vec::new();
    for pair in 0..pairs {
        // Whoever comes later must not be so every time.
        let (mut threads, mut rtrb) = (Duration::ZERO, Duration::ZERO);
        for turn in 0..2 {
            if turn == pair % 2 { threads = ours(&mut ring, entries) } else { rtrb = theirs(&mut peer, entries) }
        }
        // A process of its own for each run: it spins while it has nothing to do.
        let mut processes = processes::Pair::new();
        processes.run(u64::from(2 * CAPACITY));
        times.push([threads, processes.run(entries), rtrb]);
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let rtrb = median(times.iter().map(|t| t[2].as_nanos() as f64 / entries as f64).collect());
    for (name, which) in [("threads", 0), ("processes", 1)] {
        let nanos = median(times.iter().map(|t| t[which].as_nanos() as f64 / entries as f64).collect());
        let ratio = median(times.iter().map(|t| t[2].as_secs_f64() / t[which].as_secs_f64()).collect());
        println!("paired: ours/rtrb {ratio:.2}, {name}, in throughput ({nanos:.2} and {rtrb:.2} ns, {pairs} pairs)");
    }
}

/// What is moved: no word of it is known beforehand.
#[inline]
fn entry(n: u64) -> Entry {
    [n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7]
}

/// A use of every word.
#[inline]
fn sum(sum: u64, entry: &Entry) -> u64 {
    entry.iter().fold(sum, |sum, word| sum.wrapping_add(*word))
}

fn pause(spins: &mut u32) {
    *spins += 1;
    if spins.is_multiple_of(64) { thread::yield_now() } else { std::hint::spin_loop() }
}

/// Runs `consume` on a thread of its own and `produce` on this one; from when both run until both have ended.
fn timed(produce: impl FnOnce(), consume: impl FnOnce() + Send) -> Duration {
    let ready = AtomicU64::new(0);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            ready.store(1, Ordering::Release);
            consume();
        });
        let mut spins = 0;
        while ready.load(Ordering::Acquire) == 0 {
            pause(&mut spins);
        }
        let start = Instant::now();
        produce();
        other.join().unwrap();
        start.elapsed()
    })
}

fn ours((producer, consumer): &mut (Producer<HeapWords>, Consumer<HeapWords>), entries: u64) -> Duration {
    timed(
        || produce(producer, entries),
        || {
            let mut left = entries;
            let mut spins = 0;
            while left > 0 {
                match consume(consumer) {
                    0 => pause(&mut spins),
                    n => left -= n,
                }
            }
        },
    )
}

fn produce<W: Words>(producer: &mut Producer<W>, entries: u64) {
    let mut spins = 0;
    for first in (0..entries).step_by(BATCH as usize) {
        let mut next = first;
        while next < first + BATCH {
            match producer.push_many((next..first + BATCH).map(entry)).unwrap() {
                0 => pause(&mut spins),
                n => next += u64::from(n),
            }
        }
        producer.publish();
    }
}

/// Takes what there is and says how much it was.
fn consume<W: Words>(consumer: &mut Consumer<W>) -> u64 {
    let mut total = 0;
    let count = consumer.pop_many(CAPACITY, |entry| total = sum(total, &entry)).unwrap();
    consumer.release();
    black_box(total);
    u64::from(count)
}

fn theirs((producer, consumer): &mut (rtrb::Producer<Entry>, rtrb::Consumer<Entry>), entries: u64) -> Duration {
    timed(
        || {
            let mut spins = 0;
            for first in (0..entries).step_by(BATCH as usize) {
                let mut fill = || {
                    let chunk = producer.write_chunk_uninit(BATCH as usize)?;
                    Ok::<_, rtrb::chunks::ChunkError>(chunk.fill_from_iter((first..first + BATCH).map(entry)))
                };
                while fill().is_err() {
                    pause(&mut spins);
                }
            }
        },
        || {
            let (mut left, mut spins) = (entries, 0);
            while left > 0 {
                let available = consumer.slots();
                if available == 0 {
                    pause(&mut spins);
                    continue;
                }
                let chunk = consumer.read_chunk(available).unwrap();
                black_box(chunk.into_iter().fold(0, |total, entry| sum(total, &entry)));
                left -= available as u64;
            }
        },
    )
}

/// One entry there and one back, with a thread that answers.
fn round_trip(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("round trip at depth one");
    let (mut there, mut arrived) = ring::heap(CAPACITY, 0);
    let (mut answer, mut back) = ring::heap(CAPACITY, 0);
    group.bench_function("threads", |b| {
        b.iter_custom(|n| {
            timed(
                || {
                    for i in 0..n {
                        there.push(&entry(i)).unwrap();
                        there.publish();
                        wait(|| back.pop().unwrap());
                        back.release();
                    }
                },
                || {
                    for _ in 0..n {
                        let question = wait(|| arrived.pop().unwrap());
                        arrived.release();
                        answer.push(&question).unwrap();
                        answer.publish();
                    }
                },
            )
        })
    });
    let (mut there, mut arrived) = rtrb::RingBuffer::<Entry>::new(CAPACITY as usize);
    let (mut answer, mut back) = rtrb::RingBuffer::<Entry>::new(CAPACITY as usize);
    group.bench_function("rtrb, threads", |b| {
        b.iter_custom(|n| {
            timed(
                || {
                    for i in 0..n {
                        there.push(entry(i)).unwrap();
                        wait(|| back.pop().ok());
                    }
                },
                || {
                    for _ in 0..n {
                        let question = wait(|| arrived.pop().ok());
                        answer.push(question).unwrap();
                    }
                },
            )
        })
    });
    match io_uring::IoUring::new(64) {
        Ok(mut kernel) => {
            group.bench_function("io_uring NOP", |b| b.iter(|| nop(&mut kernel)));
        }
        Err(error) => println!("SKIPPED: io_uring NOP: this kernel or sandbox refuses io_uring_setup: {error}"),
    }
    group.finish();
}

fn wait<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let mut spins = 0;
    loop {
        match look() {
            Some(found) => return black_box(found),
            None => pause(&mut spins),
        }
    }
}

fn nop(ring: &mut io_uring::IoUring) {
    let operation = io_uring::opcode::Nop::new().build();
    // SAFETY: a NOP names no memory.
    unsafe { ring.submission().push(&operation) }.unwrap();
    ring.submit_and_wait(1).unwrap();
    assert_eq!(ring.completion().next().unwrap().result(), 0);
}

/// The same between two processes, over memory that both map.
mod processes {
    use super::{CAPACITY, consume, pause, produce};
    use scatter_ring::ring::{Consumer, Producer, Words};
    use std::io::Error;
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    /// As in the real areas: each shared word has 128 bytes of its own, and the slots begin where they do there.
    #[repr(C, align(4096))]
    struct Area {
        tail: Line,
        head: Line,
        stop: Line,
        unused: [u8; ring_abi::submit::SLOTS - 3 * size_of::<Line>()],
        slots: Slots,
    }

    #[repr(C, align(128))]
    struct Line(AtomicU64);

    #[repr(C, align(64))]
    struct Slots([[AtomicU64; 8]; CAPACITY as usize]);

    #[derive(Clone, Copy)]
    struct Mapped(&'static Area);

    impl Words for Mapped {
        fn capacity(&self) -> u32 {
            CAPACITY
        }

        #[inline]
        fn head(&self) -> &AtomicU64 {
            &self.0.head.0
        }

        #[inline]
        fn tail(&self) -> &AtomicU64 {
            &self.0.tail.0
        }

        #[inline]
        fn slot(&self, position: u64) -> &[AtomicU64; 8] {
            &self.0.slots.0[position as usize % CAPACITY as usize]
        }
    }

    /// A producer here and a process that consumes until it is told to stop.
    pub struct Pair {
        producer: Producer<Mapped>,
        child: libc::pid_t,
    }

    impl Pair {
        pub fn new() -> Pair {
            let words = Mapped(map());
            // SAFETY: the child only touches the mapping and its own stack, and calls nothing that could hold a lock
            // of a thread that exists in the parent only.
            let child = unsafe { libc::fork() };
            assert!(child >= 0, "fork: {}", Error::last_os_error());
            if child == 0 {
                // SAFETY: takes numbers only.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                let mut consumer = Consumer::new(words, 0);
                let mut spins = 0;
                while words.0.stop.0.load(Ordering::Relaxed) == 0 {
                    if consume(&mut consumer) == 0 {
                        pause(&mut spins);
                    }
                }
                // SAFETY: ends this process without running what the parent has registered for its own end.
                unsafe { libc::_exit(0) }
            }
            Pair { producer: Producer::new(words, 0), child }
        }

        /// Until the other process has released the last of `entries`.
        pub fn run(&mut self, entries: u64) -> Duration {
            let start = Instant::now();
            produce(&mut self.producer, entries);
            let mut spins = 0;
            while self.producer.free().unwrap() < CAPACITY {
                pause(&mut spins);
            }
            start.elapsed()
        }
    }

    impl Drop for Pair {
        fn drop(&mut self) {
            self.producer.words().0.stop.0.store(1, Ordering::Relaxed);
            // SAFETY: our own child, waited for once; a null status is allowed.
            unsafe { libc::waitpid(self.child, null_mut(), 0) };
        }
    }

    /// An area of zeros that a forked child shares.
    fn map() -> &'static Area {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place that the kernel chooses.
        let at = unsafe { libc::mmap(null_mut(), size_of::<Area>(), access, kind, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "mmap: {}", Error::last_os_error());
        // SAFETY: as long as the area, page-aligned, never unmapped, and zeros are valid atomics; every access of
        // either process is atomic.
        unsafe { &*at.cast::<Area>() }
    }
}
