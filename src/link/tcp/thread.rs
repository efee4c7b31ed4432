//! A lane with a thread of its own, fed and answering by rings on the heap.

use super::super::bell::{Bell, Ringer};
use super::super::channel::{Receiver, Sender, channel};
use super::super::cores::take_share;
use super::Limits;
use super::job::{News, Order};
use super::lane::Lane;
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
    /// It leaves what it was not given in time.
    thread: JoinHandle<Receiver<Order>>,
}

struct Shared {
    /// The thread's.
    sleep: CachePadded<AtomicU64>,
    /// Rung when it sleeps.
    doorbell: OwnedFd,
}

impl LaneThread {
    /// `number`: from 1, of so many threads of the link.
    pub fn start(lane: Lane, (number, threads): (usize, usize), limits: &Limits, bell: Bell) -> io::Result<LaneThread> {
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { sleep: CachePadded::new(AtomicU64::new(0)), doorbell });
        // Room for all that there is: every job, task and buffer, and a stop, or the two last news.
        let capacity = limits.operations + limits.messages + limits.tasks + 2;
        let (orders, orders_in) = channel(capacity);
        let (news_out, news) = channel(capacity);
        let mut worker = Worker {
            lane,
            orders: orders_in,
            news: news_out,
            sleeper: Sleeper::default(),
            shared: shared.clone(),
            ringer: Ringer::new(bell),
            spin: limits.spin,
        };
        let name = format!("scatter-lane-{number}");
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            take_share(number - 1, threads);
            worker.run();
            worker.orders
        })?;
        Ok(LaneThread { orders, news, waker: Waker::default(), shared, thread })
    }

    pub fn give(&mut self, order: Order) {
        // There is room, because each order is a job, a task, a buffer or the only stop.
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

    /// Waits for the end of a thread that is about to end. What it was given and has not seen is there to be taken.
    pub fn join(self) -> Option<Receiver<Order>> {
        // A panic has been noticed by the missing `Quiet`.
        self.thread.join().ok()
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
        while self.lane.socket().is_some() {
            if self.turn() {
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

    /// All that was given is taken first, so that an end is not behind tasks; of them one is run. True: something was done,
    /// and there may be more.
    fn turn(&mut self) -> bool {
        while let Some(order) = self.orders.take() {
            self.lane.obey(order);
        }
        let moved = self.lane.step();
        // What has come may be waited for longer than a task takes.
        let told = self.tell();
        self.lane.run_task();
        moved | told | self.tell()
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

#[cfg(test)]
mod tests {
    use super::super::super::Operation;
    use super::super::super::grants::Grants;
    use super::super::Counters;
    use super::super::job::Job;
    use super::super::socket::Socket;
    use super::*;
    use crate::pack::{ListTask, Way};
    use crate::region::{ForkGuard, Huge, Region};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    #[test]
    fn a_lane_sends_and_tells_between_two_tasks() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _far = listener.accept().unwrap();
        let limits = Limits::default();
        let doorbell = || rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let sleep = || CachePadded::new(AtomicU64::new(0));
        let fork = Arc::new(ForkGuard::new().unwrap());
        let counters = Arc::new(Counters::default());
        let socket = Socket::new(near.into()).unwrap();
        let (mut give, orders) = channel(8);
        let (news, mut hear) = channel(8);
        let bell = Bell { sleep: Arc::new(sleep()), bell: Arc::new(doorbell()), fork };
        let mut worker = Worker {
            lane: Lane::new(socket, Grants::new(1), &limits, counters, Instant::now()),
            orders,
            news,
            sleeper: Sleeper::default(),
            shared: Arc::new(Shared { sleep: sleep(), doorbell: doorbell() }),
            ringer: Ringer::new(bell),
            spin: limits.spin,
        };
        let slots = Arc::new(Region::allocate(4096, Huge::Never).unwrap().0);
        for id in 0..3 {
            let mut task = Box::new(ListTask::new());
            task.id = id;
            task.set(Way::Pack, &[], (slots.clone(), 0), 0).unwrap();
            assert!(give.put(Order::Run(task)).is_ok());
        }
        give.publish();
        let mut turn = |worker: &mut Worker| {
            let any = worker.turn();
            let news: Vec<_> = std::iter::from_fn(|| hear.take()).collect();
            assert_eq!(any, !news.is_empty());
            let name = |news| match news {
                News::Ran(task) if task.result().is_ok() => format!("ran {}", task.id),
                News::Ran(task) => format!("back {}", task.id),
                News::Done(..) => "sent".to_owned(),
                other => format!("{other:?}"),
            };
            news.into_iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(turn(&mut worker), ["ran 0"]);
        let mut job = Job::for_posts(0);
        job.post(&Operation::Send { bytes: b"now", names: None });
        assert!(give.put(Order::Post(job)).is_ok());
        give.publish();
        assert_eq!(turn(&mut worker), ["sent", "ran 1"]);
        assert!(give.put(Order::Stop).is_ok());
        give.publish();
        assert_eq!(turn(&mut worker), ["back 2", "Quiet"]);
        assert_eq!(turn(&mut worker), [""; 0]);
    }
}
