//! One direction of a connection: reads, and passes on.

use super::{Connection, Effect, Ends, Line, Way, lock};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes read at a time.
const BLOCK_BYTES: usize = 256 << 10;
/// Less than this is kept in memory of its own size.
const SMALL_BYTES: usize = 16 << 10;
/// Bytes that are kept, like in a network: little, but all that a delay holds.
const KEPT_BYTES_MAX: usize = 1 << 20;
const DELAYED_BYTES_MAX: usize = 64 << 20;
/// A sleep is too long for less than this.
const SPIN_MAX: Duration = Duration::from_millis(1);
/// So long after something came a short delay is kept without a sleep.
const SPIN_AFTER: Duration = Duration::from_micros(200);
/// Single bytes sent in one turn.
const DRIBBLES_PER_TURN: u32 = 64;
/// The bit that is turned over.
const FLIPPED: u8 = 0x10;

/// What a direction is to do.
#[derive(Default)]
pub(super) struct Orders {
    delay: Duration,
    coalesce: Option<(usize, Duration)>,
    swallow: bool,
    deaf: bool,
    slow: Option<(usize, Duration)>,
    dribble: u64,
    stalled_until: Option<Instant>,
    repeat: usize,
    flip: bool,
    finish: bool,
    /// Effects by the number of bytes that have come before, the nearest last.
    marks: Vec<(u64, Effect)>,
}

impl Orders {
    /// What is left to the pump are the ends of both directions.
    pub(super) fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Plain => *self = Orders { marks: std::mem::take(&mut self.marks), ..Orders::default() },
            Effect::Delay(time) => self.delay = time,
            Effect::Coalesce { bytes, time } => self.coalesce = Some((bytes, time)),
            Effect::Swallow => self.swallow = true,
            Effect::Deaf => self.deaf = true,
            Effect::Slow { bytes, pause } => self.slow = Some((bytes, pause)),
            Effect::Dribble(bytes) => self.dribble = bytes,
            Effect::Stall(time) => self.stalled_until = Some(Instant::now() + time),
            Effect::Repeat(bytes) => self.repeat = bytes,
            Effect::Flip => self.flip = true,
            Effect::Finish => self.finish = true,
            Effect::Cut | Effect::Reset => {}
        }
    }

    pub(super) fn mark(&mut self, at: u64, effect: Effect) {
        let place = self.marks.partition_point(|mark| mark.0 > at);
        self.marks.insert(place, (at, effect));
    }

    fn kept_bytes_max(&self) -> usize {
        if self.delay.is_zero() { KEPT_BYTES_MAX } else { DELAYED_BYTES_MAX }
    }
}

/// Something on its way.
struct Item {
    came: Instant,
    due: Instant,
    what: What,
}

enum What {
    Bytes {
        bytes: Vec<u8>,
        at: usize,
        end: usize,
        /// It has been held back long enough.
        is_coalesced: bool,
    },
    Effect(Effect),
    /// Nothing more comes.
    End,
}

pub(super) struct Pump {
    connection: Arc<Connection>,
    ends: Arc<Ends>,
    way: Way,
    queue: VecDeque<Item>,
    kept_bytes: usize,
    /// Blocks to read into.
    spare: Vec<Vec<u8>>,
    /// What is to come once more.
    copy: Vec<u8>,
    has_ended: bool,
    /// The receiving side was told that nothing more comes.
    is_finished: bool,
    /// Reads only from then on.
    reads_at: Option<Instant>,
    /// What it would do if it could: read more, write what is due.
    wants_more: bool,
    is_blocked: bool,
    last_came: Instant,
}

impl Pump {
    pub(super) fn new(connection: Arc<Connection>, ends: Arc<Ends>, way: Way) -> Pump {
        Pump {
            connection,
            ends,
            way,
            queue: VecDeque::new(),
            kept_bytes: 0,
            spare: Vec::new(),
            copy: Vec::new(),
            has_ended: false,
            is_finished: false,
            reads_at: None,
            wants_more: false,
            is_blocked: false,
            last_came: Instant::now(),
        }
    }

    pub(super) fn run(mut self) {
        let connection = self.connection.clone();
        let line = &connection.lines[self.way as usize];
        while !connection.is_over.load(Ordering::Acquire) {
            let mut orders = lock(&line.orders);
            if orders.finish {
                orders.finish = false;
                self.finish();
            }
            let now = Instant::now();
            let has_taken = self.take(line, &mut orders, now);
            let has_given = self.give(line, &mut orders, now);
            if self.has_ended && self.queue.is_empty() {
                return;
            }
            if !has_taken && !has_given {
                let until = self.next_turn(&orders, now);
                let is_short = !orders.delay.is_zero() && orders.delay < SPIN_MAX;
                drop(orders);
                self.wait(until, is_short, now);
            }
        }
    }

    fn from(&self) -> &TcpStream {
        &self.ends.sockets[self.way as usize]
    }

    fn to(&self) -> &TcpStream {
        &self.ends.sockets[self.way.other() as usize]
    }

    /// Reads once. True if something came.
    fn take(&mut self, line: &Line, orders: &mut Orders, now: Instant) -> bool {
        let is_early = self.reads_at.is_some_and(|at| now < at);
        let is_full = self.kept_bytes >= orders.kept_bytes_max();
        self.wants_more = !(self.has_ended || orders.deaf || is_full || is_early);
        if !self.wants_more {
            return false;
        }
        let mut block = self.spare.pop().unwrap_or_else(|| vec![0; BLOCK_BYTES]);
        let most = self.most(line, orders);
        match self.from().read(&mut block[..most]) {
            Ok(0) => {
                self.has_ended = true;
                self.push(What::End, orders, now);
            }
            Ok(count) => self.took(block, count, line, orders, now),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.spare.push(block);
                return false;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => self.connection.end(Effect::Reset),
        }
        true
    }

    /// Bytes until something else is to be done.
    fn most(&self, line: &Line, orders: &Orders) -> usize {
        let to_mark = orders.marks.last().map_or(u64::MAX, |mark| mark.0 - line.taken.load(Ordering::Acquire));
        let to_mark = usize::try_from(to_mark).unwrap_or(usize::MAX);
        let to_repeat = if orders.repeat > 0 { orders.repeat } else { usize::MAX };
        let slowly = orders.slow.map_or(usize::MAX, |(bytes, _)| bytes);
        BLOCK_BYTES.min(to_mark).min(to_repeat).min(slowly)
    }

    fn took(&mut self, mut block: Vec<u8>, count: usize, line: &Line, orders: &mut Orders, now: Instant) {
        self.last_came = now;
        if orders.flip {
            orders.flip = false;
            block[0] ^= FLIPPED;
        }
        if orders.repeat > 0 {
            orders.repeat -= count;
            self.copy.extend(&block[..count]);
        }
        if let Some((_, pause)) = orders.slow {
            self.reads_at = Some(now + pause);
        }
        if orders.swallow || self.is_finished {
            self.spare.push(block);
        } else if count < SMALL_BYTES {
            self.push_bytes(block[..count].to_vec(), count, orders, now);
            self.spare.push(block);
        } else {
            self.push_bytes(block, count, orders, now);
        }
        if orders.repeat == 0 && !self.copy.is_empty() {
            let copy = std::mem::take(&mut self.copy);
            self.push_bytes(copy.clone(), copy.len(), orders, now);
        }
        let taken = line.taken.fetch_add(count as u64, Ordering::AcqRel) + count as u64;
        while let Some((_, effect)) = orders.marks.pop_if(|mark| mark.0 <= taken) {
            if effect.is_late() {
                self.push(What::Effect(effect), orders, now);
            } else {
                orders.apply(effect);
            }
        }
    }

    fn push_bytes(&mut self, bytes: Vec<u8>, end: usize, orders: &Orders, now: Instant) {
        self.kept_bytes += end;
        self.push(What::Bytes { bytes, at: 0, end, is_coalesced: false }, orders, now);
    }

    fn push(&mut self, what: What, orders: &Orders, now: Instant) {
        self.queue.push_back(Item { came: now, due: now + orders.delay, what });
    }

    /// Passes on what is due. True if anything was.
    fn give(&mut self, line: &Line, orders: &mut Orders, now: Instant) -> bool {
        self.is_blocked = false;
        if orders.stalled_until.is_some_and(|until| now < until) {
            return false;
        }
        let Some(front) = self.queue.front() else { return false };
        if now < front.due || self.is_held(orders, now) {
            return false;
        }
        if orders.coalesce.is_some() {
            self.coalesce();
        }
        match &self.queue[0].what {
            What::Bytes { .. } => self.write(line, orders),
            What::Effect(effect) if effect.ends_all() => {
                self.connection.end(*effect);
                true
            }
            What::Effect(effect) => {
                orders.apply(*effect);
                self.queue.pop_front();
                true
            }
            What::End => {
                self.finish();
                self.queue.pop_front();
                true
            }
        }
    }

    /// True for bytes that wait for others.
    fn is_held(&self, orders: &Orders, now: Instant) -> bool {
        let (Some((bytes, time)), Some(front)) = (orders.coalesce, self.queue.front()) else { return false };
        let is_fresh = matches!(front.what, What::Bytes { is_coalesced: false, .. });
        is_fresh && !self.has_ended && self.kept_bytes < bytes && now < front.came + time
    }

    /// Makes one piece of all bytes at the front.
    fn coalesce(&mut self) {
        let is_bytes = |item: &Item| matches!(item.what, What::Bytes { is_coalesced: false, .. });
        if !self.queue.front().is_some_and(is_bytes) {
            return;
        }
        let (came, due) = (self.queue[0].came, self.queue[0].due);
        let mut all = Vec::with_capacity(self.kept_bytes);
        while self.queue.front().is_some_and(is_bytes) {
            if let Some(Item { what: What::Bytes { bytes, at, end, .. }, .. }) = self.queue.pop_front() {
                all.extend(&bytes[at..end]);
            }
        }
        let end = all.len();
        let what = What::Bytes { bytes: all, at: 0, end, is_coalesced: true };
        self.queue.push_front(Item { came, due, what });
    }

    fn write(&mut self, line: &Line, orders: &mut Orders) -> bool {
        let turns = if orders.dribble > 0 { DRIBBLES_PER_TURN } else { 1 };
        for turn in 0..turns {
            if orders.dribble > 0 && self.has_unsent() {
                return turn > 0;
            }
            let Some(Item { what: What::Bytes { bytes, at, end, .. }, .. }) = self.queue.front() else { return true };
            let most = if orders.dribble > 0 { 1 } else { end - at };
            match self.to().write(&bytes[*at..*at + most]) {
                Ok(count) => self.wrote(count, line, orders),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    return turn > 0;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.connection.end(Effect::Reset);
                    return true;
                }
            }
        }
        true
    }

    fn wrote(&mut self, count: usize, line: &Line, orders: &mut Orders) {
        orders.dribble = orders.dribble.saturating_sub(count as u64);
        line.passed.fetch_add(count as u64, Ordering::AcqRel);
        self.kept_bytes -= count;
        if let Some(Item { what: What::Bytes { bytes, at, end, .. }, .. }) = self.queue.front_mut() {
            *at += count;
            if at == end {
                if bytes.len() == BLOCK_BYTES {
                    self.spare.push(std::mem::take(bytes));
                }
                self.queue.pop_front();
            }
        }
    }

    /// True while the kernel holds bytes back, with which it would send those that come next.
    fn has_unsent(&self) -> bool {
        /// Bytes that have not been sent yet.
        const SIOCOUTQNSD: libc::Ioctl = 0x894B;
        let mut bytes: libc::c_int = 0;
        // SAFETY: the kernel writes one int.
        let answer = unsafe { libc::ioctl(self.to().as_raw_fd(), SIOCOUTQNSD, &raw mut bytes) };
        answer == 0 && bytes > 0
    }

    /// Nothing that comes from now on is passed on.
    fn finish(&mut self) {
        let _ = self.to().shutdown(Shutdown::Write);
        self.is_finished = true;
        self.queue.retain(|item| matches!(item.what, What::End | What::Effect(Effect::Cut | Effect::Reset)));
        self.kept_bytes = 0;
    }

    /// When there is something to do that no socket tells of.
    fn next_turn(&self, orders: &Orders, now: Instant) -> Option<Instant> {
        let front = self.queue.front().filter(|_| !self.is_blocked).map(|front| match orders.coalesce {
            Some((_, time)) if self.is_held(orders, now) => front.due.max(front.came + time),
            _ => front.due,
        });
        let front = front.map(|at| orders.stalled_until.map_or(at, |until| at.max(until)));
        let reads_at = self.reads_at.filter(|at| now < *at);
        [front, reads_at].into_iter().flatten().min()
    }

    fn wait(&self, until: Option<Instant>, is_short: bool, now: Instant) {
        let time = until.map(|until| until.saturating_duration_since(now));
        if time.is_some_and(|time| time < SPIN_MAX) || is_short && now < self.last_came + SPIN_AFTER {
            return std::thread::yield_now();
        }
        // What is left of the time is spun.
        let time = time.map(|time| time - SPIN_MAX / 2);
        let time = time.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() });
        let bell = &self.ends.bells[self.way as usize];
        let mut fds = vec![PollFd::new(bell, PollFlags::IN)];
        if self.wants_more {
            fds.push(PollFd::new(self.from(), PollFlags::IN));
        }
        if self.is_blocked {
            fds.push(PollFd::new(self.to(), PollFlags::OUT));
        }
        let _ = rustix::event::poll(&mut fds, time.as_ref());
        let mut count = [0; 8];
        let _ = rustix::io::read(bell, &mut count);
    }
}
