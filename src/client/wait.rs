//! Completions: taking spans, and sleeping until there are some.

use super::notify::FULL;
use super::{BatchError, Client, ClientError, Ended, Outcome, Ticket};
use crate::attach::poll;
use crate::ring::stop_seen;
use crate::sync::spin_loop;
use ring_abi::{Span, SpanFlags, Status};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::time::{Duration, Instant};

/// Looks at the ring between two yields of the processor. The engine is often woken on the core of the one who waits,
/// and cannot run while that one spins.
const PAUSES: u32 = 16;

/// Longest sleep without a look at the ring, in case an engine forgets to wake.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Longest sleep of a producer whose ring is full: nobody wakes it.
const FULL_SLEEP: Duration = Duration::from_micros(200);

/// A client that never sleeps does not meet the end of its wake socket: it looks for it when nothing has come for so long.
const QUIET_MAX: Duration = Duration::from_millis(500);

/// So many looks at an empty ring come before the first one that is timed.
const LOOKS_WITHOUT_CLOCK: u32 = 8;

/// Most wake-ups taken from the socket in one go.
const WAKES_MAX: usize = 64;

impl Client {
    /// The next span. Makes no system call, except that it looks twice a second whether the engine is still there while
    /// nothing comes. Notifications are no spans: see [`next_notification`](Self::next_notification).
    ///
    /// Batches that have a [`Ticket`] are kept account of as well, so that it does not matter whether spans are taken here
    /// or by a wait. (But a wait keeps the spans that tickets account for: here come those that no wait took.)
    ///
    /// An engine that was killed is so noticed by every way to use a client: this, [`push`](Self::push), the waits, and
    /// [`disarm`](Self::disarm).
    ///
    /// # Errors
    /// The session has ended, and every span that was published before has been taken. Or
    /// [`NotificationsFull`](ClientError::NotificationsFull).
    pub fn reap(&mut self) -> Result<Option<Span>, ClientError> {
        if self.session.is_child() {
            return Err(ClientError::Forked);
        }
        if let Some(span) = self.backlog.pop_front() {
            return Ok(Some(span));
        }
        // First the stop word: what was published before the stop is then seen.
        let stopped = stop_seen(&self.areas.stop);
        if let Some((span, _)) = self.take()? {
            self.areas.cq.release();
            return Ok(Some(span));
        }
        // Notifications may have been taken.
        self.areas.cq.release();
        if let Some(reason) = stopped {
            self.end(Ended::Stopped(reason));
        }
        self.usable()?;
        self.not_stuck()?;
        self.nothing_came();
        Ok(None)
    }

    fn not_stuck(&mut self) -> Result<(), ClientError> {
        if self.is_stuck() { Err(ClientError::NotificationsFull) } else { Ok(()) }
    }

    /// Waits for the outcome of a batch. A batch that ended with its buffers still held
    /// ([`reusable`](BatchError::reusable) is false) has its outcome: see [`wait_released`](Self::wait_released).
    ///
    /// ```no_run
    /// # use scatter_ring::client::Client;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut client = Client::attach("/run/scatter-ring/socket")?;
    /// let (from, to) = (client.allocate(4096)?, client.allocate(4096)?);
    /// let mut batch = client.batch();
    /// batch.read(&from, 0, &to, 1024, 512)?;
    /// let ticket = batch.submit()?;
    /// assert_eq!(client.wait(&ticket)?.bytes, 512);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// What the batch failed with, or why the session ended before it did; or
    /// [`LIMIT_EXCEEDED`](Status::LIMIT_EXCEEDED) about no descriptor, as long as notifications that nobody takes are in the
    /// way ([`next_notification`](Self::next_notification)): the batch is still under way.
    pub fn wait(&mut self, ticket: &Ticket) -> Result<Outcome, BatchError> {
        loop {
            if let Some(outcome) = self.wait_for(ticket, None)? {
                return Ok(outcome);
            }
        }
    }

    /// The same, at most for some time: `None` if the batch is still under way.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_timeout(&mut self, ticket: &Ticket, timeout: Duration) -> Result<Option<Outcome>, BatchError> {
        self.wait_for(ticket, Some(timeout))
    }

    fn wait_for(&mut self, ticket: &Ticket, timeout: Option<Duration>) -> Result<Option<Outcome>, BatchError> {
        self.check(ticket)?;
        self.wait_until(timeout, |client| {
            client.pump();
            client.is_done(ticket)
        });
        match (self.outcome(ticket), self.ended.get()) {
            (Some(outcome), _) => outcome.map(Some),
            (None, Some(ended)) => Err(BatchError::whole(ended.status(), ticket.position(), false)),
            (None, None) if self.is_stuck() => Err(BatchError::whole(FULL, ticket.position(), false)),
            (None, None) => Ok(None),
        }
    }

    /// Waits until the buffers of a batch are reusable, whatever its outcome: false if they are not after `timeout`.
    ///
    /// # Errors
    /// The session ended before that: nobody can say when the memory is left alone. Or as [`wait`](Self::wait), about
    /// notifications.
    pub fn wait_released(&mut self, ticket: &Ticket, timeout: Option<Duration>) -> Result<bool, BatchError> {
        self.check(ticket)?;
        let over = |client: &Self| client.pending.get(ticket).is_some_and(super::pending::Record::is_over);
        self.wait_until(timeout, |client| {
            client.pump();
            over(client)
        });
        match self.ended.get() {
            Some(ended) if !over(self) => Err(BatchError::whole(ended.status(), ticket.position(), false)),
            None if !over(self) && self.is_stuck() => Err(BatchError::whole(FULL, ticket.position(), false)),
            _ => Ok(over(self)),
        }
    }

    /// Waits until [`reap`](Self::reap) has something to say: false if it has nothing after `timeout`.
    ///
    /// # Errors
    /// As [`reap`](Self::reap).
    pub fn wait_any(&mut self, timeout: Option<Duration>) -> Result<bool, ClientError> {
        if self.session.is_child() {
            return Err(ClientError::Forked);
        }
        let some = |client: &mut Self| {
            // Notifications are not what it waits for.
            client.keep_events();
            !client.backlog.is_empty() || client.has_spans()
        };
        // A session that has ended is reported behind what came before its end.
        let _ = self.submit();
        if self.wait_until(timeout, some) {
            return Ok(true);
        }
        self.usable().map(|()| false)
    }

    /// What came of a batch, as far as it is known from the spans that were taken: by [`reap`](Self::reap), or by any wait.
    /// `None`: it is under way, or another client's. Does not look at the ring, so that who waits for many batches takes
    /// spans once and then asks for each.
    ///
    /// A batch whose buffers were still held is asked for again: once they are released,
    /// [`reusable`](BatchError::reusable) is true.
    #[must_use]
    pub fn outcome(&self, ticket: &Ticket) -> Option<Result<Outcome, BatchError>> {
        self.pending.get(ticket).and_then(super::pending::Record::outcome)
    }

    /// Places of the completion ring that were taken since the session began: spans and notifications, by whatever call. Who
    /// shares a client sees by it that a call, also one that submits, took what somebody else sleeps for.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.areas.cq.position().wrapping_sub(self.areas.header.start_position)
    }

    /// One file descriptor for epoll, asyncio or tokio: readable when the engine has woken this client, or is gone.
    ///
    /// [`arm`](Self::arm), wait for it to be readable, [`disarm`](Self::disarm), [`reap`](Self::reap) until there is
    /// nothing, and the same with [`next_notification`](Self::next_notification) if notifications are on.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Announces a sleep, so that the engine wakes this client at its next span or notification. False: do not sleep, there
    /// is something to take already.
    #[must_use = "false means that there is something to reap already"]
    pub fn arm(&mut self) -> bool {
        if self.usable().is_err() {
            return false;
        }
        self.sleeper.prepare(&self.areas.client_sleep);
        let idle = self.backlog.is_empty()
            && !self.has_notification()
            && !self.has_spans()
            && stop_seen(&self.areas.stop).is_none();
        if !idle {
            self.sleeper.awake(&self.areas.client_sleep);
        }
        idle
    }

    /// Awake again: takes the wake-ups from the descriptor, and notices the end of the engine.
    pub fn disarm(&mut self) {
        if self.session.is_child() {
            return;
        }
        self.sleeper.awake(&self.areas.client_sleep);
        self.drain_wake();
    }

    /// Takes what there is, and announces a sleep of somebody who waits for outcomes only. False: the session has ended, or
    /// notifications are in the way, and there will be nothing to wake for.
    pub(super) fn doze(&mut self) -> bool {
        loop {
            let stopped = stop_seen(&self.areas.stop);
            self.pump();
            if let Some(reason) = stopped {
                self.end(Ended::Stopped(reason));
            }
            if self.usable().is_err() || self.is_stuck() {
                return false;
            }
            self.sleeper.prepare(&self.areas.client_sleep);
            if !self.has_spans() && stop_seen(&self.areas.stop).is_none() {
                return true;
            }
            self.rouse();
        }
    }

    /// Awake again, without a look at the descriptor.
    pub(super) fn rouse(&self) {
        self.sleeper.awake(&self.areas.client_sleep);
    }

    /// True if the outcome of a batch is known, or it is another client's.
    #[inline]
    pub(super) fn is_done(&self, ticket: &Ticket) -> bool {
        self.pending.get(ticket).is_none_or(super::pending::Record::is_done)
    }

    fn check(&mut self, ticket: &Ticket) -> Result<(), BatchError> {
        if self.session.is_child() {
            return Err(BatchError::whole(Status::FORKED, ticket.position(), false));
        }
        if self.pending.get(ticket).is_none() {
            return Err(BatchError::whole(Status::NOT_FOUND, ticket.position(), false));
        }
        // A session that has ended is reported by the wait, after what came before its end.
        let _ = self.submit();
        Ok(())
    }

    /// Takes one span from the ring, and says whether a ticket accounts for it. Notifications before it are kept.
    fn take(&mut self) -> Result<Option<(Span, bool)>, ClientError> {
        if let Some(ended @ Ended::Broken(_)) = self.ended.get() {
            return Err(ended.into());
        }
        let span = loop {
            if self.is_shut() {
                return Ok(None);
            }
            let position = self.areas.cq.position();
            let span = match self.areas.cq.pop() {
                Ok(Some(entry)) => {
                    self.looks_in_vain = 0;
                    Span::from_entry(&entry)
                }
                Ok(None) => return Ok(None),
                Err(_) => return Err(self.broken("an impossible position of the completion ring")),
            };
            if span.flags & SpanFlags::EVENT == 0 {
                break span;
            }
            if !self.keep(&span, position)? {
                return Ok(Some((span, false)));
            }
        };
        let published = self.areas.sq.published();
        match self.pending.note(&span, published) {
            Ok(true) => Ok(Some((span, true))),
            Ok(false) if self.is_raw(&span, published) => Ok(Some((span, false))),
            Ok(false) => Err(self.broken("a span about nothing that was submitted")),
            Err(what) => Err(self.broken(what)),
        }
    }

    /// True if a raw producer may have pushed what the span is about.
    fn is_raw(&self, span: &Span, published: u64) -> bool {
        let behind = published.wrapping_sub(span.first);
        let all = published.wrapping_sub(self.areas.header.start_position);
        self.raw_used && behind >= u64::from(span.count.max(1)) && behind <= all
    }

    /// Takes every span there is. Those that no ticket accounts for are kept for [`reap`](Self::reap).
    pub(super) fn pump(&mut self) {
        // The engine may publish as fast as this takes: one ring's worth at a time.
        for _ in 0..self.areas.header.cq_capacity {
            match self.take() {
                Ok(Some((_, true))) => {}
                Ok(Some((span, false))) if self.backlog.len() < self.backlog_max() => self.backlog.push_back(span),
                Ok(Some(_)) => drop(self.broken("more spans than anybody reaps")),
                Ok(None) | Err(_) => break,
            }
        }
        self.areas.cq.release();
    }

    fn backlog_max(&self) -> usize {
        4 * (self.areas.header.cq_capacity as usize + self.areas.header.sq_capacity as usize)
    }

    fn has_spans(&mut self) -> bool {
        // An impossible position is something to see for the one who takes the spans.
        self.areas.cq.available() != Ok(0)
    }

    /// Spins, then sleeps, until something is ready, the session has ended, or the time is up.
    pub(super) fn wait_until(&mut self, timeout: Option<Duration>, mut ready: impl FnMut(&mut Self) -> bool) -> bool {
        if ready(self) {
            return true;
        }
        let start = Instant::now();
        // A time so far away that it cannot be told is none.
        let deadline = timeout.and_then(|timeout| start.checked_add(timeout));
        loop {
            let stopped = stop_seen(&self.areas.stop);
            let over = self.ended.get().is_some();
            if ready(self) {
                return true;
            }
            if let Some(reason) = stopped {
                self.end(Ended::Stopped(reason));
            }
            if over || stopped.is_some() || self.is_stuck() {
                return false;
            }
            self.nothing_came();
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return false;
            }
            if now - start < self.spin {
                self.pause();
            } else {
                self.sleep(deadline.map_or(SLEEP_MAX, |deadline| (deadline - now).min(SLEEP_MAX)));
            }
        }
    }

    fn pause(&mut self) {
        for _ in 0..PAUSES {
            spin_loop();
            if self.has_spans() {
                return;
            }
        }
        std::thread::yield_now();
    }

    fn sleep(&mut self, time: Duration) {
        self.sleeper.prepare(&self.areas.client_sleep);
        if !self.has_spans() && stop_seen(&self.areas.stop).is_none() {
            self.poll_wake(time);
        }
        self.sleeper.awake(&self.areas.client_sleep);
        self.drain_wake();
    }

    fn poll_wake(&self, time: Duration) {
        if poll(self.wake.as_fd(), PollFlags::IN, time).is_err() {
            self.end(Ended::Broken("a wake socket that cannot be waited for"));
        }
    }

    /// To be called when there is nothing to take. If that has been so for long, looks whether the engine is still there;
    /// its end is reported by the next call, which first takes what was published before.
    pub(super) fn nothing_came(&mut self) {
        self.looks_in_vain = self.looks_in_vain.saturating_add(1);
        // Whoever finds something now and then does not read a clock for it.
        if self.looks_in_vain < LOOKS_WITHOUT_CLOCK {
            return;
        }
        let now = Instant::now();
        if self.looks_in_vain == LOOKS_WITHOUT_CLOCK {
            self.quiet_since = Some(now);
        }
        if self.quiet_since.is_none_or(|since| now - since < QUIET_MAX) {
            return;
        }
        self.quiet_since = Some(now);
        // The wake-ups stay in the socket, for whoever waits at it.
        let mut wake = [PollFd::new(&self.wake, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        if rustix::event::poll(&mut wake, Some(&at_once)).is_ok() && wake[0].revents().contains(PollFlags::HUP) {
            self.end(Ended::Gone);
        }
    }

    fn drain_wake(&mut self) {
        let mut bytes = [0; 64];
        for _ in 0..WAKES_MAX {
            match rustix::net::recv(&self.wake, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(Errno::CONNRESET) => return self.end(Ended::Gone),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => return self.end(Ended::Broken("a wake socket that cannot be read")),
            }
        }
    }

    /// Publishes what was pushed, and waits until the submission ring has free slots, while completions are taken.
    #[cold]
    pub(super) fn make_room(&mut self, slots: u32) -> Result<(), ClientError> {
        self.publish();
        let start = Instant::now();
        loop {
            match self.areas.sq.free() {
                Ok(free) if free < slots => {}
                Ok(_) => return self.usable(),
                Err(_) => return Err(self.broken("an impossible position of the submission ring")),
            }
            let stopped = stop_seen(&self.areas.stop);
            self.pump();
            if let Some(reason) = stopped {
                self.end(Ended::Stopped(reason));
            }
            self.usable()?;
            self.not_stuck()?;
            self.nothing_came();
            if start.elapsed() < self.spin {
                self.pause();
            } else {
                self.poll_wake(FULL_SLEEP);
                self.drain_wake();
            }
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
