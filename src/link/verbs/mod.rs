//! Remote memory operations by RDMA verbs: the device of one side reads and writes the memory of the other.
//!
//! A link is some queue pairs ("lanes") to one other engine, each of which carries its requests out in order; lanes are not
//! ordered among each other. All of them are posted to and polled by who uses the link; every lane but the first has a
//! thread that packs and unpacks.
//!
//! ```text
//! queue ──▶ waiting ──ring: work requests, one ibv_post_send for a window──▶ device ══▶ memory of the other side
//!                                                                             │
//! poll  ◀── operations that are done ◀── flight: what a completion covers ◀── ibv_poll_cq
//! ```
//!
//! What the other side may touch it learns from messages: a [`Transport`] sends the key of a grant with the message that
//! names it. Messages are sends, and nobody sends without a receive at the other side (`credits`). A message is delivered
//! behind the writes that were posted to its lane before, which are then in place: nothing here looks at memory to find out
//! whether something has come.
//!
//! A link ends with all of its queue pairs in the error state. Memory is free when every request and every receive has come
//! home, and not before; a device that stops saying so for [`HOME_NS`] has it for ever: nothing of the
//! link is freed then, and [`Transport::is_stuck`] says so.

mod addresses;
mod buffers;
pub mod connect;
mod credits;
mod endpoint;
mod flight;
mod frame;
mod job;
mod lane;
pub mod nic;
mod packers;
mod silence;
mod there;

pub use endpoint::{Endpoint, SetupError};

use super::{DESCRIPTORS, Event, GrantId, Grants, Mover, Operation, PostError, Reason, Transport};
use crate::pack::{ListPacker, ListTask};
use crate::region::ForkGuard;
use crate::verbs::{Completion, CompletionChannel, CompletionQueue};
use buffers::{LANE_SHIFT, RECEIVE};
use job::refusal;
use lane::{Desk, Lane, Stale};
use nic::Nic;
use packers::Packer;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use silence::Silence;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};
use there::{Key, There};

/// How much there can be of everything.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Operations and messages of a lane that have been posted and not completed.
    pub operations: u32,
    /// Receives of a lane, each of which has room for any message; 4 to 255. What is sent has as many buffers.
    pub messages: u32,
    /// Tasks of a lane that have not come back.
    pub tasks: u32,
    /// Grants of the link, on either side.
    pub grants: u32,
    /// Work requests of a lane that are under way.
    pub depth: u32,
    /// Work requests of one doorbell.
    pub window: u32,
    /// One of so many work requests is signalled, besides the last of each doorbell; at most half of `depth`.
    pub signal_every: u32,
    /// How long the thread of a lane looks for work, yielding, before it sleeps.
    pub spin: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            operations: 64,
            messages: 16,
            tasks: 64,
            grants: 4096,
            depth: 128,
            window: 32,
            signal_every: 32,
            spin: Duration::from_micros(100),
        }
    }
}

/// A connection to another engine. Used by one thread at a time, the poller.
pub struct Link {
    /// Leaked if their memory is never known to be free.
    lanes: ManuallyDrop<Vec<Lane>>,
    queue: ManuallyDrop<CompletionQueue>,
    channel: Arc<CompletionChannel>,
    nic: Arc<Nic>,
    /// Of all lanes but the first.
    packers: Vec<Packer>,
    /// Of the first lane: they were run when they were given.
    ran: VecDeque<Box<ListTask>>,
    tasks_max: usize,
    /// Requests of a lane that may be under way.
    depth: u32,
    packer: ListPacker,
    grants: Grants,
    there: There,
    /// Only its end is looked for, which is the other side's.
    control: Option<OwnedFd>,
    /// The same, as the device's connection manager tells it.
    disconnects: Option<Box<dyn Disconnects>>,
    desk: Desk,
    bytes: Vec<u8>,
    completions: Box<[Completion]>,
    /// Completions that were taken and not looked at.
    fetched: usize,
    is_armed: bool,
    is_down: bool,
    /// Since something came home.
    silence: Silence,
    is_stuck: bool,
    /// Why it is down, until that is told.
    untold: Option<Reason>,
    looked_ns: u64,
    counters: LinkCounters,
    fork: Arc<ForkGuard>,
    started: Instant,
}

/// Connections that were made by a connection manager, and end by it.
pub trait Disconnects: Send {
    /// Readable when there is something to [look at](Self::is_over).
    fn fd(&self) -> BorrowedFd<'_>;
    /// Looks without waiting; true once one of them is over.
    fn is_over(&mut self) -> bool;
}

/// What a lane has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounters {
    /// Calls of `ibv_post_send`.
    pub doorbells: u64,
    /// Work requests that were posted by them.
    pub requests: u64,
    /// Those that were signalled.
    pub signalled: u64,
    /// Completions of its send queue.
    pub sent: u64,
    /// Completions of its receives.
    pub received: u64,
}

/// What a link has seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Completions that could not be true, and changed nothing.
    pub stale: u64,
    /// Requests and receives of which the device has never told, and which ended with their queue pair.
    pub untold: u64,
    /// Calls of `ibv_poll_cq` that gave any.
    pub polls: u64,
}

/// A device that has given nothing back for so long after a link's end will not give back the rest.
pub const HOME_NS: u64 = 2_000_000_000;

impl Link {
    /// The device that it uses.
    #[must_use]
    pub fn nic(&self) -> &Arc<Nic> {
        &self.nic
    }

    /// What a lane has done so far.
    #[must_use]
    pub fn lane_counters(&self, lane: usize) -> LaneCounters {
        self.lanes.get(lane).map_or_else(LaneCounters::default, |lane| lane.counters)
    }

    /// What the link has seen so far.
    #[must_use]
    pub fn counters(&self) -> LinkCounters {
        self.counters
    }

    /// Ties its end to that of a connected stream socket, which the other side closes when it is gone; nothing of it is read.
    /// It is shut down with the link.
    pub fn end_with(&mut self, control: OwnedFd) {
        self.control = Some(control);
    }

    /// Takes what has completed, unless some is left from before. True: there is something.
    fn fetch(&mut self) -> bool {
        if self.fetched == 0 {
            match self.queue.poll(&mut self.completions) {
                Ok(completions) => self.fetched = completions.len(),
                Err(_) => self.go_down(Reason::Device("its completion queue has failed")),
            }
            self.counters.polls += u64::from(self.fetched > 0);
        }
        self.fetched > 0
    }

    fn take_completions(&mut self, event: &mut dyn FnMut(Event<'_>)) {
        let now_ns = self.now_ns();
        for at in 0..std::mem::take(&mut self.fetched) {
            let completion = self.completions[at];
            match self.take_completion(&completion, now_ns, event) {
                Ok(()) => self.silence.end(),
                Err(Stale) => self.counters.stale += 1,
            }
        }
    }

    fn take_completion(
        &mut self,
        completion: &Completion,
        now_ns: u64,
        event: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), Stale> {
        let id = completion.id();
        let number = (id >> LANE_SHIFT) as usize & (LANES_MAX - 1);
        let lane = self.lanes.get_mut(number).ok_or(Stale)?;
        if id & RECEIVE == 0 {
            let broken = lane.sent(id & ((1 << LANE_SHIFT) - 1), completion, now_ns, event)?;
            lane.counters.sent += 1;
            broken.into_iter().for_each(|reason| self.go_down(reason));
            return Ok(());
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        let received = lane.received(completion, now_ns, &mut bytes);
        if received.is_ok() {
            lane.counters.received += 1;
        }
        if let Ok(Some(came)) = &received {
            let heard = came.and_then(|()| self.hear(number, &bytes, event));
            heard.unwrap_or_else(|reason| self.go_down(reason));
        }
        self.bytes = bytes;
        received.map(|_| ())
    }

    fn hear(&mut self, number: usize, bytes: &[u8], event: &mut dyn FnMut(Event<'_>)) -> Result<(), Reason> {
        // What comes behind a violation is not believed.
        let Some(lane) = self.lanes.get_mut(number).filter(|_| !self.is_down) else { return Ok(()) };
        let heard = lane.hear(bytes, event).map_err(Reason::from)?;
        heard.key.map_or(Ok(()), |key| self.there.learn(key)).map_err(Reason::from)?;
        if let Some(bytes) = heard.message {
            event(Event::Received { lane: number, bytes });
        }
        Ok(())
    }

    fn pump(&mut self, lane: usize) {
        let Link { lanes, there, grants, desk, .. } = self;
        let Some(lane) = lanes.get_mut(lane) else { return };
        let key_of = |grant: GrantId| {
            grants.key(grant).map(|key| Key {
                grant,
                address: key.address,
                bytes: key.bytes,
                remote_key: key.remote_key.unwrap_or(0),
                is_usable: key.remote_key.is_some(),
            })
        };
        if let Err(reason) = lane.pump(there, &key_of, desk) {
            self.go_down(reason);
        }
    }

    fn take_tasks(&mut self, event: &mut dyn FnMut(Event<'_>)) -> bool {
        let mut any = false;
        let here = self.ran.drain(..);
        let there = self.packers.iter_mut().flat_map(|packer| std::iter::from_fn(move || packer.take()));
        for task in here.chain(there) {
            any = true;
            event(Event::Ran(task));
        }
        any
    }

    /// The other side's end is seen by a descriptor that costs a system call to look at.
    fn look(&mut self) {
        let now_ns = self.now_ns();
        if self.is_down || now_ns.saturating_sub(self.looked_ns) < LOOK_NS {
            return;
        }
        self.looked_ns = now_ns;
        if self.disconnects.as_mut().is_some_and(|disconnects| disconnects.is_over()) {
            return self.go_down(Reason::Closed);
        }
        // Whatever lies before it to be read.
        let has_ended = self.control.as_ref().is_some_and(|control| {
            let mut fds = [PollFd::new(control, PollFlags::RDHUP)];
            rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|found| found > 0)
        });
        if has_ended {
            self.go_down(Reason::Closed);
        }
        if self.packers.iter().any(Packer::is_over) {
            self.go_down(Reason::Defect);
        }
    }

    fn go_down(&mut self, reason: Reason) {
        if self.is_down {
            return;
        }
        (self.is_down, self.untold) = (true, Some(reason));
        self.silence.end();
        self.lanes.iter_mut().for_each(Lane::stop);
        self.packers.iter_mut().for_each(Packer::stop);
        // The other side sees the end at once, whatever its device does.
        let shut = |control| rustix::net::shutdown(control, rustix::net::Shutdown::Both);
        let _ = self.control.as_ref().map(shut);
    }

    fn tell_down(&mut self, event: &mut dyn FnMut(Event<'_>)) {
        self.untold.take().into_iter().for_each(|reason| event(Event::Down(reason)));
    }

    /// Looks which lanes have everything back.
    fn wind_up(&mut self, event: &mut dyn FnMut(Event<'_>)) {
        if !self.is_down {
            return;
        }
        let now_ns = self.now_ns();
        self.counters.untold += self.lanes.iter_mut().map(|lane| lane.wind_up(now_ns, event)).sum::<u64>();
        let is_late = self.silence.lasts(now_ns, HOME_NS);
        self.is_stuck |= is_late && !self.lanes.iter().all(Lane::has_ended);
    }

    fn are_packers_quiet(&self) -> bool {
        self.packers.iter().all(Packer::is_quiet)
    }
}

impl Transport for Link {
    fn grants(&self) -> &Grants {
        &self.grants
    }

    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn queue(&mut self, lane: usize, operations: &[Operation<'_>]) -> Result<(), PostError> {
        if self.is_down {
            return Err(PostError::Down);
        }
        let lane = self.lanes.get_mut(lane).ok_or(PostError::NoLane)?;
        for (index, operation) in operations.iter().enumerate() {
            refusal(operation, &self.there).map_err(|why| PostError::Bad { index, why })?;
        }
        if lane.room() < operations.len() {
            return Err(PostError::Full);
        }
        operations.iter().for_each(|operation| lane.queue(operation));
        Ok(())
    }

    fn ring(&mut self, lane: usize) {
        if !self.is_down {
            self.pump(lane);
        }
    }

    fn run(&mut self, lane: usize, mut task: Box<ListTask>) -> Result<(), Box<ListTask>> {
        if self.is_down || lane >= self.lanes.len() {
            return Err(task);
        }
        if let Some(packer) = lane.checked_sub(1).and_then(|lane| self.packers.get_mut(lane)) {
            return packer.run(task);
        }
        if self.ran.len() == self.tasks_max {
            return Err(task);
        }
        task.run(&mut self.packer);
        self.ran.push_back(task);
        Ok(())
    }

    fn room(&self, lane: usize) -> usize {
        self.lanes.get(lane).map_or(0, Lane::room)
    }

    fn poll(&mut self, event: &mut dyn FnMut(Event<'_>)) -> bool {
        self.tell_down(event);
        if std::mem::take(&mut self.is_armed) {
            // What it says is found out by polling; it only must not stay readable.
            let _ = self.channel.take_events();
        }
        let came = self.fetch();
        self.take_completions(event);
        let ran = self.take_tasks(event);
        self.look();
        if came && !self.is_down {
            (0..self.lanes.len()).for_each(|lane| self.pump(lane));
        }
        self.tell_down(event);
        self.wind_up(event);
        came | ran
    }

    fn has_news(&mut self) -> bool {
        // Asked for first: what completes after that is announced, and what completed before is found now.
        if !self.is_armed && self.queue.request_notification().is_err() {
            self.go_down(Reason::Device("it does not announce completions (ibv_req_notify_cq)"));
        }
        self.is_armed = true;
        let is_winding_up = self.is_down && !self.is_quiet() && !self.is_stuck;
        let packed = self.packers.iter_mut().any(Packer::has_news) && !self.is_down;
        self.fetch() || packed || is_winding_up || self.untold.is_some() || !self.ran.is_empty()
    }

    fn reaches(&self, grant: GrantId) -> bool {
        self.there.reaches(grant)
    }

    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; DESCRIPTORS] {
        let disconnects = self.disconnects.as_ref().map(|disconnects| disconnects.fd());
        [Some(self.channel.fd()), disconnects, self.control.as_ref().map(|control| control.as_fd())]
    }

    fn wants_to_send(&self) -> bool {
        false
    }

    fn shut_down(&mut self) {
        self.go_down(Reason::ShutDown);
    }

    fn is_quiet(&self) -> bool {
        let ended = self.is_down && self.lanes.iter().all(Lane::has_ended) && self.are_packers_quiet();
        ended && self.untold.is_none() && self.ran.is_empty()
    }

    fn mover(&self) -> Mover {
        let (read_pieces, write_pieces) = self.lanes.first().map_or((1, 1), Lane::pieces);
        Mover::Device { bits_per_s: self.nic.bits_per_s, read_pieces, write_pieces, depth: self.depth }
    }

    /// The device has not given everything back in time.
    fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    fn lane_heard_ns(&self, lane: usize) -> u64 {
        self.lanes.get(lane).map_or(0, |lane| lane.heard_ns)
    }

    fn lane_sent_ns(&self, lane: usize) -> u64 {
        self.lanes.get(lane).map_or(0, |lane| lane.sent_ns)
    }

    fn is_sending(&self, lane: usize) -> bool {
        self.lanes.get(lane).is_some_and(Lane::is_sending)
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if !self.fork.is_child() {
            self.go_down(Reason::ShutDown);
            while !self.lanes.iter().all(Lane::has_ended) && !self.is_stuck {
                self.fetch();
                self.take_completions(&mut |_| {});
                self.wind_up(&mut |_| {});
                std::thread::yield_now();
            }
            self.packers.drain(..).for_each(Packer::join);
        }
        if self.lanes.iter().all(Lane::has_ended) {
            // SAFETY: neither is used after this. Queue pairs are dropped before their completion queue.
            unsafe {
                ManuallyDrop::drop(&mut self.lanes);
                ManuallyDrop::drop(&mut self.queue);
            }
        }
    }
}

/// Version of what lanes say to each other.
const WORDS: u16 = 1;
/// The longest frame, which both sides have to have room for.
const MESSAGE_BYTES: u32 = frame::FRAME_BYTES_MAX as u32;
const LANES_MAX: usize = 64;
const COMPLETIONS_PER_POLL: usize = 64;
/// How often the other side's end is looked for while there is other work.
const LOOK_NS: u64 = 1_000_000;
