//! Two links in one process, and wires between them that do what networks do.

// Each test file that shares this module uses another part of it.
#![allow(dead_code)]

pub mod raw;
pub mod wire;

use crossbeam_utils::CachePadded;
use rustix::event::EventfdFlags;
use rustix::fd::OwnedFd;
use scatter_ring::link::tcp::{Limits, Link};
use scatter_ring::link::{
    Bell, Event, Failure, GrantId, LocalPiece, Operation, PostError, Reason, RemotePiece, Transport, Use,
};

use scatter_ring::pack::ListTask;
use scatter_ring::region::{ForkGuard, Huge, Region, Rights};
use scatter_ring::sync::AtomicU64;
use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A link and everything that it has said.
pub struct Side<L = Link> {
    pub link: L,
    pub bell: Bell,
    pub completed: HashMap<u64, Result<(), Failure>>,
    pub received: Vec<(usize, Vec<u8>)>,
    pub revoked: Vec<(GrantId, bool)>,
    #[expect(clippy::vec_box, reason = "tasks go round by pointer")]
    pub ran: Vec<Box<ListTask>>,
    pub down: Option<Reason>,
}

impl Side {
    pub fn new(sockets: Vec<TcpStream>, limits: &Limits) -> Side {
        let bell = bell();
        let link = Link::new(sockets.into_iter().map(OwnedFd::from).collect(), limits, &bell).unwrap();
        Side::of(link, bell)
    }
}

impl<L: Transport> Side<L> {
    pub fn of(link: L, bell: Bell) -> Side<L> {
        Side {
            link,
            bell,
            completed: HashMap::new(),
            received: Vec::new(),
            revoked: Vec::new(),
            ran: Vec::new(),
            down: None,
        }
    }

    /// Its process is gone without a word: nothing of it is waited for.
    pub fn die(self) {
        for fd in self.link.descriptors().into_iter().flatten() {
            // Of a socket the other side sees the end; what is none has none.
            let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
        }
        std::mem::forget(self);
    }

    /// Memory that the link's own operations can use.
    pub fn own(&self, region: Arc<Region>) -> Arc<Region> {
        if let Some(domain) = self.link.grants().domain() {
            region.register(domain).unwrap();
        }
        region
    }

    /// Lets the other side use all of a region, and tells it by a message if it has to know of it.
    pub fn lets(&mut self, other: &mut Side<L>, memory: &Arc<Region>, rights: Rights) -> GrantId {
        self.lets_range(other, memory, (0, memory.bytes()), rights)
    }

    pub fn lets_range(
        &mut self,
        other: &mut Side<L>,
        memory: &Arc<Region>,
        (offset, bytes): (u64, u64),
        rights: Rights,
    ) -> GrantId {
        let grant = self.link.grants().grant(memory.clone(), offset, bytes, rights, Use::Many).unwrap();
        if other.link.reaches(grant) {
            return grant;
        }
        self.post(0, &[Operation::Send { bytes: b"granted", names: Some(grant) }], other);
        poll_until(self, other, |_, other| other.received.last().is_some_and(|(_, bytes)| bytes == b"granted"));
        other.received.pop();
        assert!(other.link.reaches(grant));
        grant
    }

    /// Every operation has one completion, and the link goes down once.
    pub fn poll(&mut self) -> bool {
        let Side { link, completed, received, revoked, ran, down, .. } = self;
        link.poll(&mut |event| match event {
            Event::Completed { id, result } => {
                assert!(completed.insert(id, result).is_none(), "a second completion of {id}");
            }
            Event::Received { lane, bytes } => received.push((lane, bytes.to_vec())),
            Event::Revoked { grant, spoiled } => revoked.push((grant, spoiled)),
            Event::Ran(task) => ran.push(task),
            Event::Down(reason) => assert!(down.replace(reason).is_none(), "down twice"),
        })
    }

    /// Posts, and polls both sides while the lane is full.
    pub fn post(&mut self, lane: usize, operations: &[Operation<'_>], other: &mut Side<L>) {
        until(|| {
            self.poll();
            other.poll();
            match self.link.post(lane, operations) {
                Err(PostError::Full) => false,
                answer => {
                    answer.unwrap();
                    true
                }
            }
        });
    }
}

pub fn bell() -> Bell {
    Bell {
        sleep: Arc::new(CachePadded::new(AtomicU64::new(0))),
        bell: Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()),
        fork: Arc::new(ForkGuard::new().unwrap()),
    }
}

pub fn limits() -> Limits {
    Limits::default()
}

/// Few of everything, so that every limit is met.
pub fn narrow() -> Limits {
    Limits { operations: 4, unanswered: 2, messages: 1, tasks: 2, grants: 16, spin: Duration::from_micros(20) }
}

/// Two connected sockets, with send buffers of so many bytes. Receive buffers smaller than a segment of the loopback would
/// only be waiting for TCP's timers.
pub fn sockets(buffer_bytes: Option<usize>) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let b = listener.accept().unwrap().0;
    if let Some(bytes) = buffer_bytes {
        for socket in [&a, &b] {
            rustix::net::sockopt::set_socket_send_buffer_size(socket, bytes).unwrap();
            rustix::net::sockopt::set_socket_recv_buffer_size(socket, bytes.max(128 << 10)).unwrap();
        }
    }
    (a, b)
}

pub fn pair(lanes: usize, limits: &Limits, buffer_bytes: Option<usize>) -> (Side, Side) {
    let (a, b) = (0..lanes).map(|_| sockets(buffer_bytes)).unzip();
    (Side::new(a, limits), Side::new(b, limits))
}

/// How long something may take that takes no time: for those who expect that it hangs, less than half a minute.
const PATIENCE: &str = "SCATTER_RING_PATIENCE_S";

/// Repeats until it is true, for half a minute at most.
#[track_caller]
pub fn until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    let seconds = std::env::var(PATIENCE).ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(30);
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(seconds), "it hangs");
        std::thread::yield_now();
    }
}

#[track_caller]
pub fn poll_until<L: Transport>(a: &mut Side<L>, b: &mut Side<L>, mut done: impl FnMut(&Side<L>, &Side<L>) -> bool) {
    until(|| {
        a.poll();
        b.poll();
        done(a, b)
    });
}

/// Shuts one side down, and waits until both are quiet.
#[track_caller]
pub fn end<L: Transport>(a: &mut Side<L>, b: &mut Side<L>) {
    a.link.shut_down();
    poll_until(a, b, |a, b| a.link.is_quiet() && b.link.is_quiet());
}

/// Runs it on a thread: one that blocks for ever is a failure and not the end of the run.
pub fn within(limit: Duration, run: impl FnOnce() + Send + 'static) {
    let (told, hears) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        run();
        let _ = told.send(());
    });
    match hears.recv_timeout(limit) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it blocks"),
        _ => thread.join().unwrap(),
    }
}

pub fn region(bytes: u64) -> Arc<Region> {
    Arc::new(Region::allocate(bytes, Huge::Never).unwrap().0)
}

pub fn filled(bytes: &[u8]) -> Arc<Region> {
    let region = region(bytes.len() as u64);
    region.write_at(0, bytes).unwrap();
    region
}

pub fn contents(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.bytes() as usize];
    region.read_at(0, &mut bytes).unwrap();
    bytes
}

pub fn local(region: &Arc<Region>, offset: u64, len: u32) -> LocalPiece {
    LocalPiece::of_region(region, offset, len).unwrap()
}

pub fn remote(grant: GrantId, offset: u64, len: u32) -> RemotePiece {
    RemotePiece { grant, offset, len }
}

/// Bytes that are never 0, and seldom alike at two places.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8 | 1
    };
    (0..len).map(|_| byte()).collect()
}
