//! Threads that pack and unpack: one for each lane but the first. The device moves what they have packed.

use super::super::bell::{Bell, Ringer};
use super::super::channel::{Receiver, Sender, channel};
use super::super::cores::take_share;
use crate::pack::{ListPacker, ListTask};
use crate::ring::{Sleeper, Waker};
use crate::sync::{AtomicU64, Ordering};
use crossbeam_utils::CachePadded;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The poller's side of one of them.
pub(super) struct Packer {
    orders: Sender<Order>,
    done: Receiver<Box<ListTask>>,
    waker: Waker,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
    /// Tasks that have not come back.
    out: u32,
    tasks_max: u32,
}

enum Order {
    Run(Box<ListTask>),
    Stop,
}

struct Shared {
    /// The thread's.
    sleep: CachePadded<AtomicU64>,
    /// Rung when it sleeps.
    doorbell: OwnedFd,
    /// Not 0: tasks that have not begun are given back as they are.
    is_stopped: AtomicU64,
}

impl Packer {
    /// `number`: from 0, of so many threads of the link.
    ///
    /// # Errors
    /// The kernel has no descriptor or no thread for it.
    pub fn start((number, threads): (usize, usize), tasks: u32, spin: Duration, bell: &Bell) -> io::Result<Packer> {
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared =
            Arc::new(Shared { sleep: CachePadded::new(AtomicU64::new(0)), doorbell, is_stopped: AtomicU64::new(0) });
        let (orders, orders_in) = channel(tasks + 1);
        let (done_out, done) = channel(tasks);
        let mut worker = Worker {
            orders: orders_in,
            done: done_out,
            sleeper: Sleeper::default(),
            shared: shared.clone(),
            spin,
            ringer: Ringer::new(bell.clone()),
        };
        let thread = std::thread::Builder::new().name(format!("scatter-pack-{number}")).spawn(move || {
            take_share(number, threads);
            worker.run();
        })?;
        Ok(Packer { orders, done, waker: Waker::default(), shared, thread, out: 0, tasks_max: tasks })
    }

    /// Has a task run.
    ///
    /// # Errors
    /// The task: as many as there may be have not come back.
    pub fn run(&mut self, task: Box<ListTask>) -> Result<(), Box<ListTask>> {
        if self.out == self.tasks_max {
            return Err(task);
        }
        match self.orders.put(Order::Run(task)) {
            Ok(()) => {
                self.out += 1;
                self.ring();
                Ok(())
            }
            Err(Order::Run(task)) => Err(task),
            Err(Order::Stop) => Ok(()),
        }
    }

    /// A task that has run.
    pub fn take(&mut self) -> Option<Box<ListTask>> {
        let is_over = self.is_over();
        let task = self.done.take();
        // What a thread that has ended has not given back does not come: it has ended by a defect.
        self.out = if task.is_none() && is_over { 0 } else { self.out - u32::from(task.is_some()) };
        task
    }

    /// Something can be taken, or the thread has ended, which it does by itself only for a defect.
    pub fn has_news(&mut self) -> bool {
        !self.done.is_empty() || self.thread.is_finished()
    }

    /// The thread is to end. What it was given and has not begun comes back.
    pub fn stop(&mut self) {
        self.shared.is_stopped.store(1, Ordering::Relaxed);
        // There is one place more than tasks.
        let _ = self.orders.put(Order::Stop);
        self.ring();
    }

    /// The thread has ended.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// It has, and every task has been [taken](Self::take).
    pub fn is_quiet(&self) -> bool {
        self.is_over() && self.out == 0
    }

    /// Waits for the end of a thread that was [stopped](Self::stop).
    pub fn join(self) {
        // That it panicked has been noticed by its end.
        let _ = self.thread.join();
    }

    fn ring(&mut self) {
        self.orders.publish();
        if self.waker.must_wake(&self.shared.sleep) {
            // Fails only if the counter is full, which wakes as well.
            let _ = rustix::io::write(&self.shared.doorbell, &1u64.to_ne_bytes());
        }
    }
}

struct Worker {
    orders: Receiver<Order>,
    done: Sender<Box<ListTask>>,
    sleeper: Sleeper,
    shared: Arc<Shared>,
    spin: Duration,
    /// Last, so that it rings when everything else is given up.
    ringer: Ringer,
}

impl Worker {
    fn run(&mut self) {
        let mut packer = ListPacker::default();
        let mut idle_since: Option<Instant> = None;
        loop {
            match self.orders.take() {
                Some(Order::Run(mut task)) => {
                    if self.shared.is_stopped.load(Ordering::Relaxed) == 0 {
                        task.run(&mut packer);
                    }
                    // There is a place for each task.
                    let _ = self.done.put(task);
                    self.done.publish();
                    self.ringer.ring();
                    idle_since = None;
                }
                Some(Order::Stop) => return,
                None => {
                    // Whoever it waits for may be on this core.
                    std::thread::yield_now();
                    if idle_since.get_or_insert_with(Instant::now).elapsed() >= self.spin {
                        self.sleep();
                        idle_since = None;
                    }
                }
            }
        }
    }

    fn sleep(&mut self) {
        self.sleeper.prepare(&self.shared.sleep);
        if self.orders.is_empty() {
            let mut fds = [PollFd::new(&self.shared.doorbell, PollFlags::IN)];
            // An error is no different from having been woken.
            let _ = rustix::event::poll(&mut fds, None);
        }
        self.sleeper.awake(&self.shared.sleep);
        let mut rung = [0; 8];
        let _ = rustix::io::read(&self.shared.doorbell, &mut rung);
    }
}
