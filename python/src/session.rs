//! One session with an engine, shared by the threads and event loops of a Python program.
//!
//! The client of the Rust library is for one thread at a time, so it stands behind a lock. Nobody needs the GIL while he
//! has the lock, and nobody sleeps with it. Who sleeps:
//!
//! * one thread at a time at the client's file descriptor ([`State::sleeps`]); others that wait follow it;
//! * event loops, each at a [`Wakeup`] of its own.
//!
//! Whoever takes spans out of the ring may take those that another one sleeps for, and then nudges all sleepers. Whoever
//! gives the lock back while somebody sleeps announces the sleep anew ([`State::settle`]): his own work may have taken the
//! engine's wake-up. So whenever the lock is free, either the engine will wake a sleeper, or every sleeper was nudged.

use crate::engine::Running;
use crate::errors::Failure;
use crate::memory::Memories;
use crate::state::State;
use crate::wakeup::Wakeup;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use scatter_ring::client::{Client, ClientError, Setup};
use scatter_ring::region::ForkGuard;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// What is shared by everything that belongs to one session: clients, memory, transfers.
pub struct Session {
    /// No other has it, nor will have.
    pub number: u64,
    /// Asked before the lock: a child has the lock as it was when it was forked.
    fork: ForkGuard,
    state: Mutex<State>,
    /// For the threads that follow the one that sleeps.
    changed: Condvar,
    /// The client's descriptor.
    wake: OwnedFd,
    /// Wakes the thread that sleeps at it.
    bell: OwnedFd,
    spin: Duration,
    pub memories: Memories,
    /// An engine of this process lives as long as its clients.
    pub engine: Option<Arc<Running>>,
}

/// The lock. Giving it back keeps the promise to those who sleep.
pub struct Locked<'s> {
    /// `None` only while it is dropped.
    state: Option<MutexGuard<'s, State>>,
    session: &'s Session,
}

static NUMBER: AtomicU64 = AtomicU64::new(1);

/// Between two looks for a signal that Python has to handle.
const SLICE: Duration = Duration::from_millis(100);

/// A sleep where the engine cannot be asked for a wake-up: something came just now, or notifications that nobody takes are
/// in the way.
const BLIND: Duration = Duration::from_micros(100);

/// Looks at the ring between two yields of the processor.
const PAUSES: u32 = 64;

impl Session {
    pub fn new(client: Client, setup: &Setup, engine: Option<Arc<Running>>) -> Result<Arc<Session>, Failure> {
        let system = |operation| move |source| Failure::Attach(ClientError::System { operation, source });
        Ok(Arc::new(Session {
            fork: ForkGuard::new().map_err(system("fork guard"))?,
            wake: client.as_fd().try_clone_to_owned().map_err(system("dup"))?,
            bell: bell().map_err(system("eventfd"))?,
            state: Mutex::new(State::new(client, setup)),
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            changed: Condvar::new(),
            spin: setup.spin,
            memories: Memories::default(),
            engine,
        }))
    }

    pub fn is_child(&self) -> bool {
        self.fork.is_child()
    }

    pub fn wake_fd(&self) -> &OwnedFd {
        &self.wake
    }

    /// The lock. Waits for it: not to be called with the GIL.
    pub fn lock(&self) -> Result<Locked<'_>, Failure> {
        if self.is_child() {
            return Err(Failure::Forked);
        }
        self.locked(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn locked<'s>(&'s self, state: MutexGuard<'s, State>) -> Result<Locked<'s>, Failure> {
        if state.is_closed() {
            return Err(Failure::Closed("the client"));
        }
        Ok(Locked { state: Some(state), session: self })
    }

    /// Uses the client for something short, with the GIL if the lock is free.
    pub fn with<R: Send>(
        &self,
        py: Python<'_>,
        use_it: impl FnOnce(&mut Locked<'_>) -> Result<R, Failure> + Send,
    ) -> Result<R, Failure> {
        if self.is_child() {
            return Err(Failure::Forked);
        }
        match self.state.try_lock() {
            Ok(state) => use_it(&mut self.locked(state)?),
            Err(TryLockError::Poisoned(poisoned)) => use_it(&mut self.locked(poisoned.into_inner())?),
            Err(TryLockError::WouldBlock) => py.detach(|| use_it(&mut self.lock()?)),
        }
    }

    /// Uses the client for what may take time, without the GIL.
    pub fn without_gil<R: Send>(
        &self,
        py: Python<'_>,
        use_it: impl FnOnce(&mut Locked<'_>) -> Result<R, Failure> + Send,
    ) -> Result<R, Failure> {
        py.detach(|| use_it(&mut self.lock()?))
    }

    /// Ends the session. Whoever waits is told.
    pub fn close(&self) {
        if self.is_child() {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let client = state.close();
        state.nudge(self);
        drop(state);
        drop(client);
    }

    /// Wakes the threads that wait. `sleeps`: one of them does so at the client's descriptor.
    pub fn wake_threads(&self, sleeps: bool) {
        self.changed.notify_all();
        if sleeps {
            ring(&self.bell);
        }
    }

    /// Waits, without the GIL, until there is something: `None` after `timeout`. Signals are handled meanwhile.
    pub fn wait<T: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<Duration>,
        mut ready: impl FnMut(&mut State) -> Option<T> + Send,
    ) -> PyResult<Option<T>> {
        let start = Instant::now();
        // A time so far away that it cannot be told is none.
        let until = timeout.and_then(|timeout| start.checked_add(timeout));
        loop {
            let slice = Instant::now() + SLICE;
            let end = until.map_or(slice, |until| until.min(slice));
            if let Some(found) = py.detach(|| self.wait_slice(start + self.spin, end, &mut ready))? {
                return Ok(Some(found));
            }
            py.check_signals()?;
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(None);
            }
        }
    }

    /// `None`: not until `end`, or interrupted by a signal.
    fn wait_slice<T>(
        &self,
        spin_until: Instant,
        end: Instant,
        ready: &mut impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        let mut looks = 0u32;
        loop {
            let mut locked = self.lock()?;
            let ended = locked.take_spans();
            if let Some(found) = ready(&mut locked) {
                return Ok(Some(found));
            }
            ended?;
            looks += 1;
            if !looks.is_multiple_of(PAUSES) {
                drop(locked);
                std::hint::spin_loop();
                continue;
            }
            let now = Instant::now();
            if now >= end {
                return Ok(None);
            }
            if now < spin_until {
                drop(locked);
                std::thread::yield_now();
            } else if locked.sleeps {
                locked.follow(end - now);
            } else if !locked.sleep(end - now)? {
                return Ok(None);
            }
            // After a sleep the next look decides at once.
            looks = looks.wrapping_sub(1);
        }
    }
}

impl Session {
    /// False: interrupted by a signal.
    fn poll(&self, time: Duration) -> bool {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let mut fds = [PollFd::new(&self.wake, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
        let polled = poll(&mut fds, Some(&time));
        if !fds[1].revents().is_empty() {
            silence(&self.bell);
        }
        polled.is_ok()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

pub fn bell() -> std::io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

pub fn ring(bell: &OwnedFd) {
    // A counter that is full is a bell that was rung.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

pub fn silence(bell: &OwnedFd) {
    // Fails if nobody has rung.
    let _ = rustix::io::read(bell, &mut [0; 8]);
}

impl<'s> Locked<'s> {
    /// Takes what there is in the ring, also for others. An error: the session has ended, and this was the last of it.
    pub fn take_spans(&mut self) -> Result<(), Failure> {
        let session = self.session;
        let took = self.take();
        // Of an end everybody has to know.
        if !matches!(took, Ok(false)) && self.somebody_sleeps() {
            self.nudge(session);
        }
        took.map(drop).map_err(Failure::from)
    }

    /// Sleeps at the client's descriptor. False: interrupted.
    fn sleep(mut self, time: Duration) -> Result<bool, Failure> {
        let announced = self.client()?.arm();
        self.sleeps = true;
        let session = self.session;
        drop(self.unsettled());
        let finished = session.poll(if announced { time } else { time.min(BLIND) });
        let state = session.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut locked = Locked { state: Some(state), session };
        locked.sleeps = false;
        // The wake-ups that are taken may have been meant for event loops: giving the lock back sees to them.
        locked.awake();
        // Somebody else has to sleep at the descriptor if this thread does not do so again.
        session.changed.notify_all();
        Ok(finished)
    }

    /// Sleeps until the thread that sleeps at the client's descriptor says something.
    fn follow(self, time: Duration) {
        let session = self.session;
        // This thread has left the ring as it was.
        let waited = session.changed.wait_timeout(self.unsettled(), time);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// The lock, for somebody who gives it back in another way.
    fn unsettled(mut self) -> MutexGuard<'s, State> {
        self.state.take().expect("it is there until it is dropped")
    }

    /// Has an event loop woken when there is something. False: there is something already, or the session has ended.
    pub fn add_wakeup(&mut self, wakeup: &Arc<Wakeup>) -> bool {
        self.remove_wakeup(wakeup);
        let announced = self.client().is_ok_and(Client::arm);
        if announced {
            self.wakeups.push(wakeup.clone());
        }
        announced
    }

    pub fn remove_wakeup(&mut self, wakeup: &Arc<Wakeup>) {
        self.wakeups.retain(|other| !Arc::ptr_eq(other, wakeup));
    }

    /// Takes the engine's wake-ups from the descriptor. Others may have slept for them: giving the lock back announces their
    /// sleep anew. Waking them for nothing would have them do the same to this one, for ever.
    pub fn awake(&mut self) {
        if let Ok(client) = self.client() {
            client.disarm();
        }
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("it is there until it is dropped")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("it is there until it is dropped")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if let Some(state) = &mut self.state {
            state.settle(self.session);
        }
    }
}
