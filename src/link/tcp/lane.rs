//! A lane: one socket, and what is under way on it in both directions. Driven by whoever calls [`Lane::step`], never waits.

use super::super::grants::Grants;
use super::super::{GrantId, Reason};
use super::job::{Buffer, Job, News, Order};
use super::receive::Receiving;
use super::send::Sending;
use super::socket::{Socket, Vectors};
use super::{Counters, Limits};
use crate::pack::{ListPacker, ListTask};
use crate::sync::Ordering;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

pub(super) struct Lane {
    /// `None` once it has stopped.
    pub(super) socket: Option<Socket>,
    pub(super) grants: Grants,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    /// Not begun.
    tasks: VecDeque<Box<ListTask>>,
    packer: ListPacker,
    /// Never grows: there are only so many jobs, tasks and buffers.
    pub(super) news: VecDeque<News>,
    pub(super) vectors: Vectors,
    /// What the call that is being made uses. Empty between two calls.
    pub(super) pinned: Vec<GrantId>,
    /// A revocation is over, and the poller does not know yet.
    pub(super) has_ended: bool,
    counters: Arc<Counters>,
    started: Instant,
}

impl Lane {
    pub fn new(socket: Socket, grants: Grants, limits: &Limits, counters: Arc<Counters>, started: Instant) -> Lane {
        Lane {
            socket: Some(socket),
            grants,
            sending: Sending::new(limits),
            receiving: Receiving::new(limits),
            tasks: VecDeque::with_capacity(limits.tasks as usize),
            packer: ListPacker::default(),
            news: VecDeque::with_capacity((limits.operations + limits.messages + limits.tasks) as usize + 2),
            vectors: Vectors::new(),
            pinned: Vec::with_capacity(super::super::PIECES_MAX),
            has_ended: false,
            counters,
            started,
        }
    }

    pub fn obey(&mut self, order: Order) {
        match order {
            Order::Post(job) => self.sending.queue.push_back(job),
            Order::Run(task) => self.tasks.push_back(task),
            Order::Read(buffer) => self.receiving.spare.push(buffer),
            Order::Stop => self.stop(None),
        }
    }

    /// Receives and sends what can be without waiting. True: something moved, and more may.
    pub fn step(&mut self) -> bool {
        self.attempt(|lane| Ok(lane.receive()? | lane.send()?))
    }

    /// Runs the task that was given first. One only: what is to be sent and received does not wait for all of them.
    pub fn run_task(&mut self) {
        if let Some(mut task) = self.tasks.pop_front() {
            task.run(&mut self.packer);
            self.news.push_back(News::Ran(task));
        }
    }

    /// Only sends.
    pub fn flush(&mut self) -> bool {
        self.attempt(Lane::send)
    }

    fn attempt(&mut self, act: impl FnOnce(&mut Lane) -> Result<bool, Reason>) -> bool {
        if self.socket.is_none() {
            return false;
        }
        act(self).unwrap_or_else(|reason| {
            self.stop(Some(reason));
            true
        })
    }

    /// Touches nothing from here on, in either direction.
    pub fn stop(&mut self, why: Option<Reason>) {
        let Some(socket) = self.socket.take() else { return };
        self.unpin();
        socket.abort();
        self.sending.clear();
        self.receiving.clear();
        self.news.extend(why.map(Reason::into));
        self.news.extend(self.tasks.drain(..).map(News::Ran));
        self.news.push_back(News::Quiet);
    }

    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// The two system calls, and nothing else, move bytes; both are counted here.
    pub(super) fn call(
        &mut self,
        act: impl FnOnce(&mut Socket, &Vectors) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let Some(socket) = &mut self.socket else { return Err(Errno::NOTCONN) };
        let moved = act(socket, &self.vectors);
        self.counters.sends.store(socket.sends, Ordering::Relaxed);
        self.counters.receives.store(socket.receives, Ordering::Relaxed);
        self.unpin();
        moved
    }

    fn unpin(&mut self) {
        self.has_ended |= self.grants.unpin(&mut self.pinned);
    }

    pub(super) fn heard(&self) {
        self.counters.heard_ns.store(self.now_ns(), Ordering::Relaxed);
        self.counters.drained_bytes.store(self.receiving.drained_bytes, Ordering::Relaxed);
    }

    /// The kernel has taken bytes.
    pub(super) fn spoke(&self) {
        self.counters.spoke_ns.store(self.now_ns(), Ordering::Relaxed);
        self.counters.sent_posts.store(self.sending.sent_posts, Ordering::Relaxed);
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    pub(super) fn done(&mut self, mut job: Box<Job>, result: Result<(), super::super::Failure>) {
        // The memory is given up here and not when the poller looks.
        job.local.clear();
        self.news.push_back(News::Done(job, result));
    }

    pub(super) fn message(&mut self, buffer: Buffer) {
        self.news.push_back(News::Message(buffer));
    }
}

impl From<Reason> for News {
    fn from(reason: Reason) -> News {
        News::Down(reason)
    }
}
