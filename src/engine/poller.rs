//! The poller: turns for every session, and sleep when there is nothing to do.

use super::crowd::Crowd;
use super::mail::{Command, Event, Outbox};
use super::memory::Memory;
use super::notify::{self, Desk as NoticeDesk};
use super::remote::{News, RemoteConfig, Remotes};
use super::session::{Clock, Session, Shared, State};
use super::staged::Stagings;
use crate::link::Bell;
use crate::pack::{PollerBell, Window, Workers};
use crate::region::copy::RowQueue;
use crate::region::{ForkGuard, Region};
use crate::ring::{PushError, Sleeper};
use crate::sync::AtomicU64;
use crossbeam_utils::CachePadded;
use ring_abi::{Handle, Status};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// Serves the rings of all sessions, from one thread at a time.
pub(super) struct Poller {
    /// Before the sessions, so that workers have stopped when regions go, even if a panic takes the poller down.
    shared: Shared,
    sessions: Vec<Option<Session>>,
    /// Where sessions are, by their numbers.
    places: HashMap<u64, usize>,
    commands: Receiver<Command>,
    outbox: Outbox,
    /// Regions taken away from a session that a transfer still uses.
    withdrawing: Vec<Withdrawing>,
    /// Regions taken away from peers, with the control thread's number for it.
    leaving: Vec<(Arc<Region>, u64)>,
    /// The same, for all connections.
    ending: Option<u64>,
    clock: Clock,
    epoll: OwnedFd,
    /// Rung by the control thread and by workers.
    bell: Arc<OwnedFd>,
    worker_sleep: Arc<CachePadded<AtomicU64>>,
    sleeper: Sleeper,
    spin: Duration,
    /// Between two looks at sessions that wait for their clients.
    blocked_wait: Duration,
    is_stopped: bool,
    /// Sessions that have not come to an end by themselves are ended, on the engine's clock.
    stop_ns: u64,
    /// Last, so that it speaks when the workers have stopped.
    _farewell: Farewell,
}

/// Tells the control thread that the poller is gone.
struct Farewell(Outbox);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.send(Event::PollerGone);
    }
}

struct Withdrawing {
    slot: usize,
    session: u64,
    handle: Handle,
    memory: Memory,
}

/// Marks the bell among the doorbells in epoll events.
const BELL: u64 = u64::MAX;
/// While a session waits for its client to reap spans there is no bell for it; look again after so long.
const BLOCKED_WAIT: Duration = Duration::from_millis(1);
/// It doubles with every look that finds nothing, up to this: a client waits about as long as it has stalled.
const BLOCKED_WAIT_MAX: Duration = Duration::from_millis(16);
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Pauses between two yields of a spinning poller: the client it waits for may be on this core.
const PAUSES_PER_YIELD: u32 = 16;

impl Poller {
    pub fn new(
        workers: usize,
        spin: Duration,
        fork: Arc<ForkGuard>,
        commands: Receiver<Command>,
        outbox: Outbox,
        remote: Option<RemoteConfig>,
    ) -> io::Result<Poller> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll::add(&epoll, &*bell, EventData::new_u64(BELL), EventFlags::IN)?;
        let worker_sleep = Arc::new(CachePadded::new(AtomicU64::new(0)));
        let lane_bell = Bell { sleep: worker_sleep.clone(), bell: bell.clone(), fork: fork.clone() };
        let poller_bell = PollerBell { sleep: worker_sleep.clone(), bell: bell.clone(), fork };
        let workers = Workers::start(workers, spin, &poller_bell)?;
        let lists = (0..workers.tasks_max()).map(|_| Box::default()).collect();
        Ok(Poller {
            sessions: Vec::new(),
            places: HashMap::new(),
            shared: Shared {
                workers,
                window: Window::default(),
                rows: RowQueue::new(),
                lists,
                stagings: Stagings::default(),
                remotes: Remotes::new(&remote.unwrap_or_default(), lane_bell, outbox.clone()),
                notices: NoticeDesk::default(),
                desks: Vec::new(),
            },
            commands,
            _farewell: Farewell(outbox.clone()),
            outbox,
            withdrawing: Vec::new(),
            leaving: Vec::new(),
            ending: None,
            clock: Clock::start(),
            epoll,
            bell,
            worker_sleep,
            sleeper: Sleeper::default(),
            spin,
            blocked_wait: BLOCKED_WAIT,
            is_stopped: false,
            stop_ns: u64::MAX,
        })
    }

    /// Rung after a command was sent.
    pub fn bell(&self) -> Arc<OwnedFd> {
        self.bell.clone()
    }

    /// For links that are made elsewhere.
    pub fn link_bell(&self) -> Bell {
        self.shared.remotes.bell()
    }

    /// Serves until it is told to stop and everything has drained.
    pub fn run(&mut self) {
        let mut idle_since: Option<Instant> = None;
        let mut crowd = Crowd::default();
        let mut pauses = 0u32;
        while !self.is_finished() {
            if self.poll_once() {
                idle_since = None;
                self.blocked_wait = BLOCKED_WAIT;
                continue;
            }
            pauses = pauses.wrapping_add(1);
            // Lanes have threads, and looking at lane 0 is a system call.
            let yields_at_once = self.shared.remotes.are_connected();
            if !yields_at_once && !pauses.is_multiple_of(PAUSES_PER_YIELD) {
                crate::sync::spin_loop();
                continue;
            }
            let before = Instant::now();
            std::thread::yield_now();
            crowd.yielded(before, yields_at_once);
            if before - *idle_since.get_or_insert(before) >= self.spin {
                if self.sleep() {
                    idle_since = None;
                    self.blocked_wait = BLOCKED_WAIT;
                } else {
                    // It woke by itself, to look after a client that stalls. If one turn finds nothing it sleeps on: to
                    // spin after each look would keep this core busy for as long as the client stalls.
                    pauses = PAUSES_PER_YIELD - 1;
                    self.blocked_wait = BLOCKED_WAIT_MAX.min(2 * self.blocked_wait);
                }
            }
        }
    }

    /// One turn for every session. True if anything was done.
    pub fn poll_once(&mut self) -> bool {
        let mut busy = self.collect_results();
        busy |= self.poll_remotes();
        for session in self.sessions.iter_mut().flatten() {
            if session.look().is_err() {
                session.end(Status::BAD_RING);
            }
        }
        busy |= self.obey_commands();
        let (first, count) = (self.longest_refused(), self.sessions.len());
        for slot in (first..count).chain(0..first) {
            let Some(session) = &mut self.sessions[slot] else { continue };
            match session.serve(slot as u32, &mut self.shared, self.clock) {
                Ok(did) => busy |= did,
                Err(PushError::BadPosition(_)) => session.end(Status::BAD_RING),
                Err(PushError::Full) => session.end(Status::INTERNAL),
            }
        }
        busy |= self.notify();
        if self.is_stopped {
            self.end_finished();
        }
        self.send_commands();
        self.report_withdrawn();
        self.give_back_drained();
        busy
    }

    /// Sends the NOTIFYs of batches that are done but for these.
    fn notify(&mut self) -> bool {
        let Poller { sessions, places, shared: Shared { notices, remotes, .. }, clock, .. } = self;
        let mut busy = false;
        for slot in 0..sessions.len() {
            busy |= notify::send_due(sessions, slot, places, notices, remotes, *clock);
        }
        busy
    }

    /// The session whose turn is first: what waits for a connection gets its room in the order in which it came.
    fn longest_refused(&self) -> usize {
        let since = |session: &Option<Session>| session.as_ref().and_then(|session| session.parts.refused_since_ns());
        let refused = self.sessions.iter().enumerate().filter_map(|(slot, session)| Some((since(session)?, slot)));
        refused.min().map_or(0, |(_, slot)| slot)
    }

    /// Sends owners what this round's turns have for them.
    fn send_commands(&mut self) {
        for session in self.sessions.iter_mut().flatten().filter(|session| session.is_owner) {
            let Some(staging) = self.shared.stagings.get_mut(session.id) else { continue };
            if session.state == State::Serving && session.send_commands(staging).is_err() {
                session.end(Status::BAD_RING);
            }
        }
    }

    pub fn is_finished(&self) -> bool {
        self.is_stopped && self.sessions.iter().all(Option::is_none) && self.shared.remotes.is_quiet()
    }

    /// Moves what peers send and get, and tells sessions what came of their parts.
    fn poll_remotes(&mut self) -> bool {
        let mut busy = self.shared.remotes.poll(self.clock.now_ns());
        let Poller { sessions, places, .. } = self;
        self.shared.remotes.deliver(&mut |session, told| notify::tell(sessions, places, session, told));
        while let Some(news) = self.shared.remotes.next_news() {
            busy = true;
            let part = news.about();
            let session = self.sessions.get_mut(part.slot as usize).and_then(Option::as_mut);
            if let Some(session) = session.filter(|session| session.id == part.session) {
                match news {
                    News::Notified { notice, status } => session.notified(notice.part, status, self.clock.now_ns()),
                    _ => session.part_news(&news, &mut self.shared, self.clock),
                }
            }
        }
        busy
    }

    fn collect_results(&mut self) -> bool {
        let mut any = false;
        while let Some(done) = self.shared.workers.take_result() {
            any = true;
            let slot = (done.id >> 16) as usize;
            if let Some(Some(session)) = self.sessions.get_mut(slot) {
                session.came_back(&done, &mut self.shared.lists, self.clock);
            }
        }
        any
    }

    fn obey_commands(&mut self) -> bool {
        let mut any = false;
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => return any,
                Err(TryRecvError::Disconnected) => {
                    self.stop(Duration::ZERO);
                    return any;
                }
            }
            any = true;
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Attach(session) => self.attach(*session),
            Command::Stage { session: id, staging } => {
                if let Some((_, session)) = self.find(id) {
                    match session.become_owner() {
                        Ok(()) => self.shared.stagings.insert(id, staging),
                        Err(reason) => session.end(reason),
                    }
                }
            }
            Command::Notifications { session, buffer } => {
                if let Some((_, session)) = self.find(session) {
                    session.take_events(buffer);
                }
            }
            Command::Grant { session, handle, granted } => {
                if let Some((_, session)) = self.find(session) {
                    session.grant(handle, granted);
                }
            }
            Command::Withdraw { session: id, handle, leave_mark } => {
                let found =
                    self.find(id).and_then(|(slot, session)| Some((slot, session.withdraw(handle, leave_mark)?)));
                match found {
                    Some((slot, memory)) => self.withdrawing.push(Withdrawing { slot, session: id, handle, memory }),
                    // Taken away before, by its owner: if transfers still use it, the report that comes after them
                    // answers this as well.
                    None if self.withdrawing.iter().any(|w| (w.session, w.handle) == (id, handle)) => {}
                    None => self.outbox.send(Event::Withdrawn { session: id, handle }),
                }
            }
            Command::Cancel { session: id, request, first } => {
                let now_ns = self.clock.now_ns();
                let status = self.find(id).map_or(Status::NOT_FOUND, |(_, session)| session.cancel(first, now_ns));
                self.outbox.send(Event::Cancelled { session: id, request, status });
            }
            Command::Detach { session, reason } => {
                if let Some((_, session)) = self.find(session) {
                    session.end(reason);
                }
            }
            Command::PeerUp(connected, link) => {
                self.shared.remotes.attach(connected, link, &self.epoll);
            }
            Command::PeerEnd(seat) => self.shared.remotes.end(seat),
            Command::RemoteOpen { seat, request, name, rights } => {
                self.shared.remotes.open(seat, request, &name, rights);
            }
            Command::RemoteClose(remote) => self.shared.remotes.close_region(&remote),
            Command::PeerOpened { seat, request, answer } => self.shared.remotes.opened(seat, request, answer),
            Command::PeerHere { seat, here } => self.shared.remotes.say_where(seat, here),
            Command::PeerFetch { seat, number, session } => {
                let found = self.shared.remotes.opened_as(seat, number);
                self.outbox.send(Event::PeerFetches { session, found });
            }
            Command::PeerWithdraw { region, ticket } => {
                self.shared.remotes.withdraw(&region);
                self.leaving.push((region, ticket));
            }
            Command::Stop { within, peers } => {
                self.stop(within);
                self.ending = peers.or(self.ending);
            }
        }
    }

    fn attach(&mut self, mut session: Session) {
        let slot = match self.sessions.iter().position(Option::is_none) {
            Some(slot) => slot,
            None => {
                self.sessions.push(None);
                self.sessions.len() - 1
            }
        };
        // Edge-triggered and never read: a client that shares the eventfd cannot make a read of ours block.
        let events = EventFlags::IN | EventFlags::ET;
        if epoll::add(&self.epoll, &session.doorbell, EventData::new_u64(slot as u64), events).is_err() {
            // No memory for it: the client sees its session end.
            return self.outbox.send(Event::Detached(Box::new(session), None));
        }
        session.slot = slot as u32;
        self.places.insert(session.id, slot);
        self.sessions[slot] = Some(session);
    }

    fn find(&mut self, id: u64) -> Option<(usize, &mut Session)> {
        let slot = *self.places.get(&id)?;
        Some((slot, self.sessions.get_mut(slot)?.as_mut()?))
    }

    fn stop(&mut self, within: Duration) {
        self.is_stopped = true;
        let within_ns = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        self.stop_ns = self.stop_ns.min(self.clock.now_ns().saturating_add(within_ns));
        self.sessions.iter_mut().flatten().for_each(Session::finish);
    }

    /// Ends the sessions that have nothing under way, and all of them when the time for that is over.
    fn end_finished(&mut self) {
        let is_over = self.clock.now_ns() >= self.stop_ns;
        // Others' batches may need the owners.
        let owners_only = self.sessions.iter().flatten().all(|session| session.is_owner);
        for session in self.sessions.iter_mut().flatten() {
            let is_done = if session.is_owner { owners_only } else { session.is_finished() };
            if is_over || is_done {
                session.end(Status::STOPPING);
            }
        }
        // Peers are served as long as clients are.
        if self.sessions.iter().all(Option::is_none) {
            self.shared.remotes.stop();
        }
    }

    /// Tells the control thread of regions that nobody uses any more in a session they were taken from.
    fn report_withdrawn(&mut self) {
        let (sessions, stagings, outbox) = (&self.sessions, &self.shared.stagings, &self.outbox);
        self.withdrawing.retain(|w| {
            let uses = sessions[w.slot].as_ref().is_some_and(|s| s.id == w.session && s.uses(&w.memory));
            // Commands about lent memory, which may stay without an answer for ever, only matter to who lent it.
            let is_owner = w.memory.lent().is_some_and(|lent| lent.owner == w.session);
            let in_use = uses || is_owner && stagings.is_named(&w.memory);
            if !in_use {
                outbox.send(Event::Withdrawn { session: w.session, handle: w.handle });
            }
            in_use
        });
        let (remotes, outbox) = (&self.shared.remotes, &self.outbox);
        self.leaving.retain(|(region, ticket)| {
            let in_use = remotes.uses(region);
            if !in_use {
                outbox.send(Event::PeersLeft { ticket: *ticket });
            }
            in_use
        });
        if remotes.is_quiet()
            && let Some(ticket) = self.ending.take()
        {
            outbox.send(Event::PeersLeft { ticket });
        }
    }

    fn give_back_drained(&mut self) {
        for slot in &mut self.sessions {
            if let Some(session) = slot.take_if(|session| session.is_drained()) {
                // Fails only if the doorbell was never added.
                let _ = epoll::delete(&self.epoll, &session.doorbell);
                self.places.remove(&session.id);
                let staging = self.shared.stagings.remove(session.id);
                self.outbox.send(Event::Detached(Box::new(session), staging));
            }
        }
    }

    /// Sleeps until a client, the control thread or a worker rings, or a deadline passes. False: nobody rang.
    fn sleep(&mut self) -> bool {
        self.sleeper.announce(&self.worker_sleep);
        for session in self.sessions.iter_mut().flatten() {
            session.announce_sleep();
        }
        Sleeper::announced();
        self.shared.remotes.watch(&self.epoll);
        let has_work = self.shared.workers.have_result()
            || self.shared.remotes.has_work()
            || self.sessions.iter_mut().flatten().any(Session::has_work);
        let rung = has_work || self.wait_for_bells();
        self.sleeper.awake(&self.worker_sleep);
        for session in self.sessions.iter().flatten() {
            session.awake();
        }
        rung
    }

    fn wait_for_bells(&mut self) -> bool {
        let now_ns = self.clock.now_ns();
        let deadlines = self.sessions.iter().flatten().map(Session::next_deadline_ns);
        let deadline = deadlines.min().unwrap_or(u64::MAX).min(self.stop_ns).min(self.shared.remotes.next_timer_ns());
        let mut wait = (deadline != u64::MAX).then(|| Duration::from_nanos(deadline.saturating_sub(now_ns)));
        let waits = |s: &Session| s.is_blocked || s.notices.are_stuck;
        if self.sessions.iter().flatten().any(|s| waits(s) && s.state != State::Draining) {
            wait = Some(wait.map_or(self.blocked_wait, |w| w.min(self.blocked_wait)));
        }
        let timeout = wait.map(|w| Timespec { tv_sec: w.as_secs() as i64, tv_nsec: w.subsec_nanos().into() });
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 64];
        // `epoll_pwait` counts in milliseconds, and `epoll_pwait2` is refused in many a container and unknown to valgrind:
        // `ppoll` does the waiting. What interrupts it makes a short wait.
        let mut ready = [PollFd::new(&self.epoll, PollFlags::IN)];
        if rustix::event::poll(&mut ready, timeout.as_ref()) == Ok(0) {
            return false;
        }
        let woken = epoll::wait(&self.epoll, &mut events, Some(&AT_ONCE)).unwrap_or(0);
        if events[..woken].iter().any(|event| event.data.u64() == BELL) {
            let mut count = [0; 8];
            // Non-blocking, and nobody else reads it.
            let _ = rustix::io::read(&*self.bell, &mut count);
        }
        woken > 0
    }
}
