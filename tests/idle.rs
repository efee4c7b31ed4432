//! An engine with nothing to do costs nothing, and is there at once when there is something.

mod support;

use ring_abi::{Descriptor, Flags, Opcode};
use scatter_ring::client::{Client, Region, Setup};
use scatter_ring::engine::{Config, Engine, RunningEngine};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use support::{Random, RawClient};

/// What a processor may be busy in an idle second, in parts of it.
const IDLE: f64 = 0.01;
/// The same while a client does not reap, so that the engine has to look after it by itself.
const STALLED: f64 = 0.03;

const SPIN: Duration = Duration::from_micros(500);

/// A wake that was lost is noticed after a second by the client, and never by the engine.
const LATE: Duration = Duration::from_millis(900);

const ROUNDS: u32 = 50;

#[test]
fn an_idle_engine_takes_no_time() {
    let (_alone, engine) = engine();
    let mut pair = Pair::new(&engine, SPIN);
    pair.round(1, 4096);
    let busy = busy_after_a_second();
    assert!(busy < IDLE, "{:.2} % of a processor", 100.0 * busy);
    pair.round(2, 4096);
}

#[test]
fn sixteen_idle_clients_take_no_time() {
    let (_alone, engine) = engine();
    let mut pairs: Vec<Pair> = (0..16).map(|_| Pair::new(&engine, SPIN)).collect();
    pairs.iter_mut().for_each(|pair| pair.round(1, 4096));
    let busy = busy_after_a_second();
    assert!(busy < IDLE, "{:.2} % of a processor", 100.0 * busy);
    pairs.iter_mut().for_each(|pair| pair.round(2, 4096));
}

/// The engine cannot take the client's next batch before a span was reaped, and nobody rings when one was.
#[test]
fn a_client_that_does_not_reap_takes_little_time() {
    let (_alone, engine) = engine();
    let mut client = RawClient::attach(engine.connect().unwrap(), 64, 16, 0);
    let nop = Descriptor { opcode: Opcode::NOP.0, flags: Flags::LAST, ..Descriptor::ZERO };
    (0..64).for_each(|_| assert!(client.try_push(&nop.to_entry())));
    client.publish();
    let busy = busy_after_a_second();
    assert!(busy < STALLED, "{:.2} % of a processor", 100.0 * busy);
    for position in 0..64 {
        assert_eq!(client.wait().first, position);
    }
}

/// Pauses end about when the engine or the client goes to sleep, and long after.
#[test]
fn every_batch_after_a_pause_is_answered() {
    let (_alone, engine) = engine();
    for client_spin in [Duration::ZERO, SPIN, 4 * SPIN] {
        let mut pair = Pair::new(&engine, client_spin);
        let mut random = Random(client_spin.as_nanos() as u64);
        for round in 0..ROUNDS {
            let pause = if random.one_in(2) {
                Duration::from_micros(random.below(3000))
            } else {
                SPIN - Duration::from_micros(100) + Duration::from_micros(random.below(200))
            };
            pause_for(pause, random.one_in(2));
            // A short batch is answered before its client sleeps, a long one is not.
            let bytes = random.pick(&[64, 4096, Pair::BYTES]);
            pair.round(round as u8, bytes);
        }
    }
}

fn pause_for(time: Duration, asleep: bool) {
    if asleep {
        return std::thread::sleep(time);
    }
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// A client and memory for it.
struct Pair {
    client: Client,
    from: Region,
    to: Region,
}

impl Pair {
    const BYTES: u64 = 4 << 20;

    fn new(engine: &RunningEngine, spin: Duration) -> Pair {
        let client = Client::over(engine.connect().unwrap(), &Setup { spin, ..Setup::default() }).unwrap();
        let (from, to) = (client.allocate(Self::BYTES).unwrap(), client.allocate(Self::BYTES).unwrap());
        Pair { client, from, to }
    }

    /// One batch, which must come and be right.
    fn round(&mut self, number: u8, bytes: u64) {
        let mark = [number; 64];
        self.from.write_at(bytes - 64, &mark).unwrap();
        let start = Instant::now();
        let mut batch = self.client.batch();
        batch.read(&self.from, 0, &self.to, 0, bytes).unwrap();
        let ticket = batch.submit().unwrap();
        let outcome = self.client.wait_timeout(&ticket, Duration::from_secs(10)).unwrap();
        assert_eq!(outcome.expect("an outcome within 10 s").bytes, bytes);
        assert!(start.elapsed() < LATE, "round {number} of {bytes} bytes took {:?}: a wake was lost", start.elapsed());
        let mut seen = [0; 64];
        self.to.read_at(bytes - 64, &mut seen).unwrap();
        assert_eq!(seen, mark);
    }
}

/// An engine with a worker; one at a time, because the time of the whole process is measured.
fn engine() -> (MutexGuard<'static, ()>, RunningEngine) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let engine = Engine::new(&Config { workers: 1, spin: SPIN, ..Config::default() }).unwrap();
    (alone, engine.start().unwrap())
}

/// How busy this process keeps a processor, all its threads together, over two seconds that begin in one second.
fn busy_after_a_second() -> f64 {
    std::thread::sleep(Duration::from_secs(1));
    let (cpu, wall) = (cpu_time(), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    (cpu_time() - cpu).as_secs_f64() / wall.elapsed().as_secs_f64()
}

/// Processor time of all threads of this process so far, in user mode and in the kernel.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists, and the kernel writes one `timespec`.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
