//! A client that does what it is told, also what no client should do: the attach protocol and the two areas, without
//! the library's `client`.

// Each test file that shares this module uses another part of it.
#![allow(dead_code)]

pub mod hostile;
pub mod log;

use ring_abi::{Entry, Features, Kind, Message, Span, Status};
use scatter_ring::attach::{ClientAreas, Socket};
use scatter_ring::region::{Huge, Region, Rights};
use scatter_ring::ring::{Waker, stop_seen};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

pub struct RawClient {
    pub socket: Socket,
    pub areas: ClientAreas,
    pub doorbell: OwnedFd,
    pub wake: OwnedFd,
    pub waker: Waker,
    pub features: Features,
    requests: u64,
}

impl RawClient {
    pub fn attach(socket: Socket, sq_capacity: u32, cq_capacity: u32, start: u64) -> RawClient {
        socket.send(&Message::hello(Features(Features::LOCAL), sq_capacity, cq_capacity, start), &[]).unwrap();
        let received = socket.receive(true).unwrap().expect("an answer");
        assert_eq!(received.message.status, Status::OK, "{}", received.message.name());
        let [submit, complete, doorbell, wake]: [OwnedFd; 4] = received.fds.try_into().unwrap();
        let areas = ClientAreas::map(&submit, &complete, sq_capacity, cq_capacity).unwrap();
        let features = Features(received.message.args[1]);
        RawClient { socket, areas, doorbell, wake, waker: Waker::default(), features, requests: 1 }
    }

    /// Asks and waits for the answer.
    pub fn ask(&mut self, kind: Kind, args: &[u64], name: &str, fds: &[BorrowedFd<'_>]) -> Message {
        self.send(kind, args, name, fds);
        self.answer()
    }

    pub fn send(&mut self, kind: Kind, args: &[u64], name: &str, fds: &[BorrowedFd<'_>]) {
        let mut all = [0; 8];
        all[..args.len()].copy_from_slice(args);
        let question = Message::new(kind, self.requests, all).with_name(name);
        self.requests += 1;
        self.socket.send(&question, fds).unwrap();
    }

    pub fn answer(&mut self) -> Message {
        self.socket.receive(true).unwrap().expect("an answer").message
    }

    /// New memory of `bytes` bytes and its handle.
    pub fn memory(&mut self, bytes: u64, rights: Rights) -> (Region, u32) {
        let (region, fd) = Region::allocate(bytes, Huge::Never).unwrap();
        let answer = self.ask(Kind::REGISTER, &[bytes, rights.bits()], "", &[fd.as_fd()]);
        assert_eq!(answer.status, Status::OK, "{}", answer.name());
        (region, answer.args[0] as u32)
    }

    pub fn try_push(&mut self, entry: &Entry) -> bool {
        self.areas.sq.push(entry).is_ok()
    }

    /// Publishes, and rings if the engine sleeps.
    pub fn publish(&mut self) {
        self.areas.sq.publish();
        if self.waker.must_wake(&self.areas.engine_sleep) {
            rustix::io::write(&self.doorbell, &1u64.to_ne_bytes()).unwrap();
        }
    }

    pub fn reap(&mut self) -> Option<Span> {
        let entry = self.areas.cq.pop().expect("the engine's tail is possible")?;
        self.areas.cq.release();
        Some(Span::from_entry(&entry))
    }

    /// Waits for the next span, for ten seconds at most.
    pub fn wait(&mut self) -> Span {
        let start = Instant::now();
        loop {
            if let Some(span) = self.reap() {
                return span;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "no span after 10 s; stopped: {:?}", self.stopped());
            std::thread::yield_now();
        }
    }

    pub fn stopped(&self) -> Option<Status> {
        stop_seen(&self.areas.stop)
    }

    /// Waits until the engine has ended the session, for ten seconds at most.
    pub fn wait_stopped(&self) -> Status {
        let start = Instant::now();
        loop {
            if let Some(reason) = self.stopped() {
                return reason;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "the session goes on");
            std::thread::yield_now();
        }
    }
}

/// Says so past the test harness, which shows what a passing test prints to nobody.
pub fn not_run(what: &str) {
    let _ = writeln!(std::io::stderr(), "NOT RUN: {what}");
}

/// True if a compiler can be run.
pub fn is_compiler(name: &str) -> bool {
    Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Says what is not run for want of a compiler; where `SCATTER_RING_NEEDS_COMPILERS` is 1 that is a failure.
pub fn no_compiler(what: &str) {
    let is_needed = std::env::var_os("SCATTER_RING_NEEDS_COMPILERS").is_some_and(|value| value == "1");
    assert!(!is_needed, "{what}");
    not_run(what);
}

/// A small generator (splitmix64): tests are repeatable from their seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
