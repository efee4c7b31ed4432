//! Remote memory operations over TCP sockets: what RDMA does, in software.
//!
//! A link is some sockets ("lanes") to one other engine. Each lane carries frames in both directions, in order; lanes are
//! not ordered among each other. Lane 0 is driven by [`post`](Transport::post) and [`poll`](Transport::poll) themselves and is for what is small;
//! every other lane has a thread of its own on either side, which also packs and unpacks what it sends and what has come
//! ([`run`](Transport::run)). Payload goes from memory to the socket and from the socket to memory with no copy in between.
//!
//! ```text
//! post ──▶ lane 0: sendmsg ─────────────────▶ socket ──▶ recvmsg :lane 0 ──▶ poll
//! post ──ring──▶ thread of lane 1: sendmsg ──▶ socket ──▶ recvmsg :thread of lane 1 ──ring──▶ poll
//!                                  ▲                       │
//!                  grants, regions ┘                       └▶ grants, regions
//! ```
//!
//! The other side is authenticated, and may still send any bytes at any time. It reaches what is granted and nothing else,
//! and makes nothing grow: all storage is made with the link. What no honest side sends ends the link.
//!
//! That an operation has completed without having been acknowledged says that its source may be reused, and no more. What
//! the kernels hold when a link ends may still arrive at the other side until that ends the link too.

mod frame;
mod job;
mod lane;
mod port;
mod receive;
mod send;
mod socket;
mod thread;

use super::{Bell, DESCRIPTORS, Event, GrantId, Grants, Mover, Operation, PostError, Reason, Transport, check};
use crate::pack::ListTask;
use crate::region::ForkGuard;
use crate::sync::{AtomicU64, Ordering};
use job::{News, Order};
use lane::Lane;
use port::{Driver, Port};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thread::LaneThread;

/// A connection to another engine. Used by one thread at a time, the poller; its [`Grants`] may be used by any.
pub struct Link {
    ports: Vec<Port>,
    grants: Grants,
    is_down: bool,
    /// Why it is down, until that is told.
    untold: Option<Reason>,
    fork: Arc<ForkGuard>,
    started: Instant,
}

/// How much there can be of everything. Both sides of a link must be given the same [`unanswered`](Self::unanswered).
#[derive(Clone, Debug)]
pub struct Limits {
    /// Operations and messages of a lane that have been posted and not completed.
    pub operations: u32,
    /// Reads and acknowledged writes of a lane that the other side has not answered. More of them wait here.
    pub unanswered: u32,
    /// Messages of a lane that have come and were not polled. More of them wait in the socket.
    pub messages: u32,
    /// Tasks of a lane that have not come back.
    pub tasks: u32,
    /// Grants of the link.
    pub grants: u32,
    /// How long the thread of a lane looks for work, yielding, before it sleeps.
    pub spin: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            operations: 64,
            unanswered: 16,
            messages: 4,
            tasks: 64,
            grants: 4096,
            spin: Duration::from_micros(100),
        }
    }
}

/// What a lane has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounters {
    /// Calls of sendmsg.
    pub sends: u64,
    /// Calls of recvmsg.
    pub receives: u64,
    /// Bytes of payload that came for memory that was taken back, or lost.
    pub drained_bytes: u64,
}

/// Each word is written by whoever drives the lane.
#[derive(Debug, Default)]
struct Counters {
    sends: AtomicU64,
    receives: AtomicU64,
    drained_bytes: AtomicU64,
    heard_ns: AtomicU64,
    spoke_ns: AtomicU64,
    sent_posts: AtomicU64,
}

impl Link {
    /// A link over connected TCP sockets, whose other ends are the lanes of one other link in the same order. Starts a
    /// thread for every lane but the first.
    ///
    /// # Errors
    /// If there is no lane, a limit is 0, a descriptor is no TCP socket, or a thread cannot be started.
    pub fn new(lanes: Vec<OwnedFd>, limits: &Limits, bell: &Bell) -> io::Result<Link> {
        let Limits { operations, unanswered, messages, tasks, grants, .. } = *limits;
        let least = operations.min(unanswered).min(messages).min(tasks).min(grants);
        if lanes.is_empty() || least == 0 || operations.max(messages).max(tasks) > COUNT_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a link needs a lane, and limits within its range",
            ));
        }
        let (grants, started) = (Grants::new(limits.grants), Instant::now());
        let mut link =
            Link { ports: Vec::new(), grants, is_down: false, untold: None, fork: bell.fork.clone(), started };
        let threads = lanes.len() - 1;
        for (number, fd) in lanes.into_iter().enumerate() {
            let counters = Arc::new(Counters::default());
            let socket = socket::Socket::new(fd)?;
            let lane = Lane::new(socket, link.grants.clone(), limits, counters.clone(), started);
            let driver = if number == 0 {
                Driver::Here(Box::new(lane))
            } else {
                Driver::Thread(LaneThread::start(lane, (number, threads), limits, bell.clone())?)
            };
            link.ports.push(Port::new(driver, limits, counters));
        }
        Ok(link)
    }

    /// When bytes last came by any lane, by [`now_ns`](Self::now_ns). For a heartbeat to be built on.
    #[must_use]
    pub fn last_heard_ns(&self) -> u64 {
        self.ports.iter().map(|port| port.counters.heard_ns.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// What a lane has done so far.
    #[must_use]
    pub fn counters(&self, lane: usize) -> LaneCounters {
        self.ports.get(lane).map_or_else(LaneCounters::default, |port| {
            let Counters { sends, receives, drained_bytes, .. } = &*port.counters;
            let [sends, receives, drained_bytes] =
                [sends, receives, drained_bytes].map(|word| word.load(Ordering::Relaxed));
            LaneCounters { sends, receives, drained_bytes }
        })
    }

    fn here(&self) -> Option<&Lane> {
        match &self.ports.first()?.driver {
            Driver::Here(lane) => Some(lane),
            _ => None,
        }
    }

    fn poll_lane(&mut self, lane: usize, event: &mut dyn FnMut(Event<'_>)) -> bool {
        let mut moved = false;
        let mut was_finished = false;
        match &mut self.ports[lane].driver {
            Driver::Here(lane) => moved = lane.step(),
            // Asked before the news are looked through: a thread that has ended well has said so.
            Driver::Thread(thread) => was_finished = thread.is_finished(),
            Driver::Ended => return false,
        }
        while let Some(news) = self.ports[lane].take_news() {
            moved = true;
            match news {
                News::Done(job, result) => self.ports[lane].done(job, result, event),
                News::Ran(task) => self.ports[lane].ran(task, event),
                News::Message(buffer) => {
                    event(Event::Received { lane, bytes: &buffer.bytes[..buffer.len] });
                    self.ports[lane].give(Order::Read(buffer));
                    self.ports[lane].ring();
                }
                News::Down(reason) => {
                    self.go_down(reason);
                    self.tell_down(event);
                }
                News::Quiet => self.ports[lane].end(event),
            }
        }
        if was_finished && !matches!(self.ports[lane].driver, Driver::Ended) {
            self.go_down(Reason::Defect);
            self.tell_down(event);
            self.ports[lane].end(event);
        }
        moved
    }

    fn go_down(&mut self, reason: Reason) {
        if self.is_down {
            return;
        }
        (self.is_down, self.untold) = (true, Some(reason));
        for port in &mut self.ports {
            port.give(Order::Stop);
            port.ring();
        }
    }

    fn tell_down(&mut self, event: &mut dyn FnMut(Event<'_>)) {
        self.untold.take().into_iter().for_each(|reason| event(Event::Down(reason)));
    }
}

impl Transport for Link {
    fn grants(&self) -> &Grants {
        &self.grants
    }

    fn lanes(&self) -> usize {
        self.ports.len()
    }

    fn queue(&mut self, lane: usize, operations: &[Operation<'_>]) -> Result<(), PostError> {
        if self.is_down {
            return Err(PostError::Down);
        }
        let port = self.ports.get_mut(lane).ok_or(PostError::NoLane)?;
        for (index, operation) in operations.iter().enumerate() {
            check(operation).map_err(|why| PostError::Bad { index, why })?;
        }
        if port.room() < operations.len() {
            return Err(PostError::Full);
        }
        operations.iter().for_each(|operation| port.post(operation));
        Ok(())
    }

    fn ring(&mut self, lane: usize) {
        self.ports.get_mut(lane).into_iter().for_each(Port::ring);
    }

    fn run(&mut self, lane: usize, task: Box<ListTask>) -> Result<(), Box<ListTask>> {
        match self.ports.get_mut(lane) {
            Some(port) if !self.is_down => port.run(task),
            _ => Err(task),
        }
    }

    fn room(&self, lane: usize) -> usize {
        self.ports.get(lane).map_or(0, Port::room)
    }

    fn poll(&mut self, event: &mut dyn FnMut(Event<'_>)) -> bool {
        self.tell_down(event);
        let mut moved = false;
        for lane in 0..self.ports.len() {
            moved |= self.poll_lane(lane, event);
        }
        while let Some((grant, spoiled)) = self.grants.take_ended() {
            event(Event::Revoked { grant, spoiled });
            moved = true;
        }
        moved
    }

    fn has_news(&mut self) -> bool {
        let threads = self.ports.iter_mut().any(|port| match &mut port.driver {
            Driver::Thread(thread) => !thread.news.is_empty() || thread.is_finished(),
            Driver::Here(lane) => !lane.news.is_empty(),
            Driver::Ended => false,
        });
        threads || self.grants.has_ended() || self.untold.is_some()
    }

    fn mover(&self) -> Mover {
        Mover::Processors
    }

    fn reaches(&self, _: GrantId) -> bool {
        true
    }

    /// Lane 0's socket.
    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; DESCRIPTORS] {
        [self.here().and_then(Lane::socket), None, None]
    }

    fn wants_to_send(&self) -> bool {
        self.here().is_some_and(|lane| lane.sending.is_full())
    }

    fn shut_down(&mut self) {
        self.go_down(Reason::ShutDown);
    }

    fn is_quiet(&self) -> bool {
        let ended = self.ports.iter().all(|port| matches!(port.driver, Driver::Ended));
        ended && self.untold.is_none() && !self.grants.has_ended()
    }

    fn lane_heard_ns(&self, lane: usize) -> u64 {
        self.ports.get(lane).map_or(0, |port| port.counters.heard_ns.load(Ordering::Relaxed))
    }

    fn lane_sent_ns(&self, lane: usize) -> u64 {
        self.ports.get(lane).map_or(0, |port| port.counters.spoke_ns.load(Ordering::Relaxed))
    }

    fn is_sending(&self, lane: usize) -> bool {
        self.ports.get(lane).is_some_and(Port::is_sending)
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.fork.is_child() {
            return;
        }
        self.go_down(Reason::ShutDown);
        self.ports.iter_mut().for_each(|port| port.end(&mut |_| {}));
    }
}

/// Operations, messages or tasks of a lane.
const COUNT_MAX: u32 = 1 << 16;
