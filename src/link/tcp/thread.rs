//! A lane with a thread of its own, fed and answering by rings on the heap.

use super::channel::{Receiver, Sender, channel};
use super::job::{News, Order};
use super::lane::Lane;
use super::{Bell, Limits};
use crate::ring::{Sleeper, Waker};
use crate::sync::AtomicU64;
use crossbeam_utils::CachePadded;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The poller's side.
pub(super) struct LaneThread {
    orders: Sender<Order>,
    pub news: Receiver<News>,
    waker: Waker,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

struct Shared {
    /// The thread's.
    sleep: CachePadded<AtomicU64>,
    /// Rung when it sleeps.
    doorbell: OwnedFd,
}

impl LaneThread {
    pub fn start(lane: Lane, number: usize, limits: &Limits, bell: Bell) -> io::Result<LaneThread> {
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { sleep: CachePadded::new(AtomicU64::new(0)), doorbell });
        // Room for all that there is: every job and every buffer, and a stop, or the two last news.
        let capacity = limits.operations + limits.messages + 2;
        let (orders, orders_in) = channel(capacity);
        let (news_out, news) = channel(capacity);
        let mut worker = Worker {
            lane,
            orders: orders_in,
            news: news_out,
            sleeper: Sleeper::default(),
            shared: shared.clone(),
            ringer: Ringer { bell, waker: Waker::default() },
            spin: limits.spin,
        };
        let name = format!("scatter-lane-{number}");
        let thread = std::thread::Builder::new().name(name).spawn(move || worker.run())?;
        Ok(LaneThread { orders, news, waker: Waker::default(), shared, thread })
    }

    pub fn give(&mut self, order: Order) {
        // There is room, because each order is a job, a buffer or the only stop. A thread that is gone needs none.
        let _ = self.orders.put(order);
    }

    /// Shows what was given, and wakes the thread if it sleeps.
    pub fn ring(&mut self) {
        self.orders.publish();
        if self.waker.must_wake(&self.shared.sleep) {
            // Fails only if the counter is full, which wakes as well.
            let _ = rustix::io::write(&self.shared.doorbell, &1u64.to_ne_bytes());
        }
    }

    /// True once the thread has come to its end, by itself or by a panic.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end of a thread that is about to end.
    pub fn join(self) {
        // A panic has been noticed by the missing `Quiet`.
        let _ = self.thread.join();
    }
}

/// How a lane's thread wakes the poller; rings when the thread ends, however it does.
struct Ringer {
    bell: Bell,
    waker: Waker,
}

impl Ringer {
    fn ring(&mut self) {
        if self.waker.must_wake(&self.bell.sleep) {
            let _ = rustix::io::write(&*self.bell.bell, &1u64.to_ne_bytes());
        }
    }
}

impl Drop for Ringer {
    fn drop(&mut self) {
        self.ring();
    }
}

/// The thread's side.
struct Worker {
    lane: Lane,
    orders: Receiver<Order>,
    news: Sender<News>,
    sleeper: Sleeper,
    shared: Arc<Shared>,
    spin: Duration,
    /// Last, so that it rings when everything else is given up.
    ringer: Ringer,
}

impl Worker {
    fn run(&mut self) {
        let mut idle_since: Option<Instant> = None;
        loop {
            while let Some(order) = self.orders.take() {
                self.lane.obey(order);
            }
            let moved = self.lane.step();
            let told = self.tell();
            if self.lane.socket().is_none() {
                return;
            }
            if moved || told {
                idle_since = None;
                continue;
            }
            // Whoever it waits for may be on this core.
            std::thread::yield_now();
            if idle_since.get_or_insert_with(Instant::now).elapsed() >= self.spin {
                self.sleep();
                idle_since = None;
            }
        }
    }

    fn tell(&mut self) -> bool {
        let has_ended = std::mem::take(&mut self.lane.has_ended);
        let any = has_ended || !self.lane.news.is_empty();
        for news in self.lane.news.drain(..) {
            // There is room, as for orders.
            let _ = self.news.put(news);
        }
        if any {
            self.news.publish();
            self.ringer.ring();
        }
        any
    }

    fn sleep(&mut self) {
        self.sleeper.prepare(&self.shared.sleep);
        if self.orders.is_empty() {
            self.wait();
        }
        self.sleeper.awake(&self.shared.sleep);
        let mut rung = [0; 8];
        let _ = rustix::io::read(&self.shared.doorbell, &mut rung);
    }

    fn wait(&self) {
        let Some(socket) = self.lane.socket() else { return };
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, self.lane.receiving.is_open());
        wanted.set(PollFlags::OUT, self.lane.sending.is_full());
        let mut fds = [PollFd::new(&self.shared.doorbell, PollFlags::IN), PollFd::from_borrowed_fd(socket, wanted)];
        // An error is no different from having been woken: the next step finds out.
        let _ = rustix::event::poll(&mut fds, None);
    }
}
