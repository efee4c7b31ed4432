//! Remote memory operations over TCP sockets: what RDMA does, in software.
//!
//! A link is some sockets ("lanes") to one other engine. Each lane carries frames in both directions, in order; lanes are
//! not ordered among each other. Lane 0 is driven by [`Link::post`] and [`Link::poll`] themselves and is for what is small;
//! every other lane has a thread of its own on either side, which also packs and unpacks what it sends and what has come
//! ([`Link::run`]). Payload goes from memory to the socket and from the socket to memory with no copy in between.
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

mod channel;
mod cores;
mod frame;
mod grants;
mod job;
mod lane;
mod port;
mod receive;
mod send;
mod socket;
mod thread;

pub use grants::{GrantError, Grants, Revoked, Use};

use super::{Event, Operation, PostError, Reason};
use crate::pack::ListTask;
use crate::region::ForkGuard;
use crate::sync::{AtomicU64, Ordering};
use crossbeam_utils::CachePadded;
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

/// How the thread of a lane wakes the poller: the poller's sleep word, and an eventfd that only this process has.
#[derive(Clone, Debug)]
pub struct Bell {
    /// Announced by the poller before it sleeps: see [`Sleeper`](crate::ring::Sleeper). It then asks
    /// [`Link::has_news`] once more.
    pub sleep: Arc<CachePadded<AtomicU64>>,
    /// Written when the poller sleeps.
    pub bell: Arc<OwnedFd>,
    /// A forked child has no threads to wait for.
    pub fork: Arc<ForkGuard>,
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

    /// What the other side may touch.
    #[must_use]
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Lanes.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.ports.len()
    }

    /// Starts operations on a lane, in their order: all of them or none. They leave together, in as few system calls as
    /// they fit in.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was taken.
    pub fn post(&mut self, lane: usize, operations: &[Operation<'_>]) -> Result<(), PostError> {
        self.queue(lane, operations)?;
        self.ring(lane);
        Ok(())
    }

    /// [`post`](Self::post) without the doorbell: they leave together with what is queued until [`ring`](Self::ring).
    ///
    /// # Errors
    /// As `post`.
    pub fn queue(&mut self, lane: usize, operations: &[Operation<'_>]) -> Result<(), PostError> {
        if self.is_down {
            return Err(PostError::Down);
        }
        let port = self.ports.get_mut(lane).ok_or(PostError::NoLane)?;
        for (index, operation) in operations.iter().enumerate() {
            job::check(operation).map_err(|why| PostError::Bad { index, why })?;
        }
        if port.room() < operations.len() {
            return Err(PostError::Full);
        }
        operations.iter().for_each(|operation| port.post(operation));
        Ok(())
    }

    /// The doorbell of a lane: what was queued is begun.
    pub fn ring(&mut self, lane: usize) {
        self.ports.get_mut(lane).into_iter().for_each(Port::ring);
    }

    /// Has a task run: on the lane's thread, on lane 0 at once. It comes back by [`Event::Ran`], also if the link goes
    /// down. The tasks of a lane run in their order; what is posted behind them does not wait for them, and between two of
    /// them the lane sends and receives.
    ///
    /// # Errors
    /// The task, if the link is down, there is no such lane, or as many as [`Limits::tasks`] have not come back from it.
    pub fn run(&mut self, lane: usize, task: Box<ListTask>) -> Result<(), Box<ListTask>> {
        match self.ports.get_mut(lane) {
            Some(port) if !self.is_down => port.run(task),
            _ => Err(task),
        }
    }

    /// Operations that a lane has room for.
    #[must_use]
    pub fn room(&self, lane: usize) -> usize {
        self.ports.get(lane).map_or(0, Port::room)
    }

    /// Moves what can be moved on lane 0, without waiting, and says what has happened on all lanes. True: something has,
    /// and there may be more at once.
    pub fn poll(&mut self, event: &mut impl FnMut(Event<'_>)) -> bool {
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

    /// True if [`poll`](Self::poll) has something to say that no descriptor shows: to be asked when the poller has
    /// announced its sleep.
    pub fn has_news(&mut self) -> bool {
        let threads = self.ports.iter_mut().any(|port| match &mut port.driver {
            Driver::Thread(thread) => !thread.news.is_empty() || thread.is_finished(),
            Driver::Here(lane) => !lane.news.is_empty(),
            Driver::Ended => false,
        });
        threads || self.grants.has_ended() || self.untold.is_some()
    }

    /// Lane 0's socket, to wait for what can be received, and for room if it [wants to send](Self::wants_to_send). `None`
    /// once it is closed.
    #[must_use]
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.here().and_then(Lane::socket)
    }

    /// True if lane 0 has something to send that the socket had no room for.
    #[must_use]
    pub fn wants_to_send(&self) -> bool {
        self.here().is_some_and(|lane| lane.sending.is_full())
    }

    /// Ends the link. Nothing that was posted, here or there, touches memory of this side any more once the link
    /// [is quiet](Self::is_quiet); poll until then.
    pub fn shut_down(&mut self) {
        self.go_down(Reason::ShutDown);
    }

    /// True once the link is down, no lane touches anything any more, and everything has been told.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let ended = self.ports.iter().all(|port| matches!(port.driver, Driver::Ended));
        ended && self.untold.is_none() && !self.grants.has_ended()
    }

    /// When bytes last came by any lane, by [`now_ns`](Self::now_ns). For a heartbeat to be built on.
    #[must_use]
    pub fn last_heard_ns(&self) -> u64 {
        self.ports.iter().map(|port| port.counters.heard_ns.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// When bytes last came by a lane, by [`now_ns`](Self::now_ns); 0 if never.
    #[must_use]
    pub fn lane_heard_ns(&self, lane: usize) -> u64 {
        self.ports.get(lane).map_or(0, |port| port.counters.heard_ns.load(Ordering::Relaxed))
    }

    /// When the kernel last took bytes for a lane, by [`now_ns`](Self::now_ns); 0 if never.
    #[must_use]
    pub fn lane_sent_ns(&self, lane: usize) -> u64 {
        self.ports.get(lane).map_or(0, |port| port.counters.spoke_ns.load(Ordering::Relaxed))
    }

    /// True if some of what was posted to a lane is not with the kernel: the lane has not come to it, the socket has no
    /// room, or the other side owes as many answers as there can be. Answers to the other side do not count. Of a lane
    /// with a thread it may be said a moment too long.
    #[must_use]
    pub fn is_sending(&self, lane: usize) -> bool {
        self.ports.get(lane).is_some_and(Port::is_sending)
    }

    /// Nanoseconds since the link was made.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
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

    fn poll_lane(&mut self, lane: usize, event: &mut impl FnMut(Event<'_>)) -> bool {
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

    fn tell_down(&mut self, event: &mut impl FnMut(Event<'_>)) {
        self.untold.take().into_iter().for_each(|reason| event(Event::Down(reason)));
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
