//! The poller's side of a lane, whoever drives it.

use super::super::{Event, Failure, Operation};
use super::job::{Job, News, Order};
use super::lane::Lane;
use super::thread::LaneThread;
use super::{Counters, Limits};
use crate::pack::ListTask;
use crate::sync::Ordering;
use std::sync::Arc;

pub(super) struct Port {
    pub driver: Driver,
    #[expect(clippy::vec_box, reason = "jobs go round by pointer")]
    free: Vec<Box<Job>>,
    /// By the number of a job: what is to be said of it, even if the lane cannot.
    held: Box<[Held]>,
    /// Posts so far.
    posted: u64,
    /// Tasks that there is room for.
    task_room: u32,
    pub counters: Arc<Counters>,
}

pub(super) enum Driver {
    Here(Box<Lane>),
    Thread(LaneThread),
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Nothing,
    Message,
    Operation(u64),
}

impl Port {
    pub fn new(driver: Driver, limits: &Limits, counters: Arc<Counters>) -> Port {
        Port {
            driver,
            free: (0..limits.operations).rev().map(Job::for_posts).collect(),
            held: vec![Held::Nothing; limits.operations as usize].into(),
            posted: 0,
            task_room: limits.tasks,
            counters,
        }
    }

    /// Operations that there is room for.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Gives an operation to the lane; there is [room](Self::room).
    pub fn post(&mut self, operation: &Operation<'_>) {
        let Some(mut job) = self.free.pop() else { return };
        job.post(operation);
        self.held[job.number as usize] = match operation {
            Operation::Write { id, .. } | Operation::Read { id, .. } => Held::Operation(*id),
            Operation::Send { .. } => Held::Message,
        };
        self.posted += 1;
        self.give(Order::Post(job));
    }

    /// Some of what was posted is not with the kernel.
    pub fn is_sending(&self) -> bool {
        let is_ended = matches!(self.driver, Driver::Ended);
        !is_ended && self.counters.sent_posts.load(Ordering::Relaxed) < self.posted
    }

    pub fn give(&mut self, order: Order) {
        match &mut self.driver {
            Driver::Here(lane) => lane.obey(order),
            Driver::Thread(thread) => thread.give(order),
            Driver::Ended => {}
        }
    }

    /// The doorbell: what was given is begun.
    pub fn ring(&mut self) {
        match &mut self.driver {
            // What comes of it is told by `poll`.
            Driver::Here(lane) => _ = lane.flush(),
            Driver::Thread(thread) => thread.ring(),
            Driver::Ended => {}
        }
    }

    pub fn run(&mut self, task: Box<ListTask>) -> Result<(), Box<ListTask>> {
        if self.task_room == 0 {
            return Err(task);
        }
        match &mut self.driver {
            Driver::Here(lane) if lane.socket.is_some() => {
                lane.obey(Order::Run(task));
                lane.run_task();
            }
            Driver::Thread(thread) => {
                thread.give(Order::Run(task));
                thread.ring();
            }
            // It has said its last news.
            Driver::Here(_) | Driver::Ended => return Err(task),
        }
        self.task_room -= 1;
        Ok(())
    }

    pub fn ran(&mut self, task: Box<ListTask>, event: &mut dyn FnMut(Event<'_>)) {
        self.task_room += 1;
        event(Event::Ran(task));
    }

    pub fn take_news(&mut self) -> Option<News> {
        match &mut self.driver {
            Driver::Here(lane) => lane.news.pop_front(),
            Driver::Thread(thread) => thread.news.take(),
            Driver::Ended => None,
        }
    }

    pub fn done(&mut self, job: Box<Job>, result: Result<(), Failure>, event: &mut dyn FnMut(Event<'_>)) {
        let held = std::mem::replace(&mut self.held[job.number as usize], Held::Nothing);
        self.free.push(job);
        if let Held::Operation(id) = held {
            event(Event::Completed { id, result });
        }
    }

    /// The lane has stopped. What it has not done it never will.
    pub fn end(&mut self, event: &mut dyn FnMut(Event<'_>)) {
        if let Driver::Thread(thread) = std::mem::replace(&mut self.driver, Driver::Ended)
            && let Some(mut unseen) = thread.join()
        {
            while let Some(order) = unseen.take() {
                if let Order::Run(task) = order {
                    self.ran(task, event);
                }
            }
        }
        for held in &mut self.held {
            if let Held::Operation(id) = std::mem::replace(held, Held::Nothing) {
                event(Event::Completed { id, result: Err(Failure::Down) });
            }
        }
    }
}
