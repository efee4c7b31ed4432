//! Getting out of the way of a client that shares the poller's core.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::time::{Duration, Instant};

/// Notices that somebody else wants the poller's core, and moves the poller to the next one.
///
/// A kernel often wakes a client on the core of the one who woke it, above all in virtual machines, and leaves the two
/// there for a tenth of a second and longer, handing the core to each other while another one is idle: threads that yield
/// and never sleep are seldom moved. Each hand-over costs microseconds on the way of every batch. The poller can tell by
/// how long its yields take.
#[derive(Debug)]
pub(super) struct Crowd {
    long_yields: u32,
    /// What yields to somebody who works have taken since then.
    lost: Duration,
    since: Option<Instant>,
    /// Not to move again before. Where all cores are busy moving does not help.
    not_before: Option<Instant>,
    wait: Duration,
}

/// Longer than a yield to nobody takes, shorter than two changes of threads.
const LONG: Duration = Duration::from_nanos(1500);
/// Longer than a yield to somebody who looks and yields in turn takes, shorter than one to somebody who works.
const WORK: Duration = Duration::from_micros(8);
/// So long is looked how much of the time others have worked on the poller's core, and so many parts of it are too much.
const LOOK: Duration = Duration::from_millis(2);
const LOST_PARTS: u32 = 8;
/// So many long yields in a row are no accident.
const LONG_YIELDS: u32 = 4;
/// The least time between two moves; doubled with each one that follows at once.
const WAIT_MIN: Duration = Duration::from_micros(500);
/// The longest time between two moves.
const WAIT_MAX: Duration = Duration::from_secs(2);

impl Default for Crowd {
    fn default() -> Self {
        Crowd { long_yields: 0, lost: Duration::ZERO, since: None, not_before: None, wait: WAIT_MIN }
    }
}

impl Crowd {
    /// To be called after each yield, with the time before it. Between peers the two pollers are what is not to share a core:
    /// both work at the same time, and a client that waits is in nobody's way.
    pub fn yielded(&mut self, before: Instant, has_peers: bool) {
        let after = Instant::now();
        let is_crowded = if has_peers { self.has_lost(before, after) } else { self.has_waited(before, after) };
        if !is_crowded || self.not_before.is_some_and(|then| after < then) {
            return;
        }
        let quiet_for_long = self.not_before.is_none_or(|then| after - then > self.wait);
        self.wait = if quiet_for_long { WAIT_MIN } else { WAIT_MAX.min(2 * self.wait) };
        self.not_before = Some(after + self.wait);
        move_to_next_core();
    }

    fn has_waited(&mut self, before: Instant, after: Instant) -> bool {
        self.long_yields = if after - before >= LONG { self.long_yields + 1 } else { 0 };
        let has_waited = self.long_yields >= LONG_YIELDS;
        if has_waited {
            self.long_yields = 0;
        }
        has_waited
    }

    fn has_lost(&mut self, before: Instant, after: Instant) -> bool {
        let took = after - before;
        self.lost += if took >= WORK { took } else { Duration::ZERO };
        let looked = after - *self.since.get_or_insert(before);
        if looked < LOOK {
            return false;
        }
        let lost = std::mem::take(&mut self.lost);
        self.since = None;
        lost * LOST_PARTS > looked
    }
}

/// Moves the calling thread to the next core that it may run on, and leaves it free to be moved on.
fn move_to_next_core() {
    // Where the kernel does not tell or does not let us, the poller stays where it is.
    let Ok(allowed) = sched_getaffinity(None) else { return };
    // Not rustix's, which reads the vDSO by itself and ends a process that runs under valgrind, where there is none.
    // SAFETY: the call has no arguments and no effect.
    let Ok(here) = usize::try_from(unsafe { libc::sched_getcpu() }) else { return };
    let next = (1..CpuSet::MAX_CPU).map(|i| (here + i) % CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
    let Some(next) = next.filter(|next| *next != here) else { return };
    let mut only = CpuSet::new();
    only.set(next);
    if sched_setaffinity(None, &only).is_ok() {
        // What was allowed a moment ago still is.
        let _ = sched_setaffinity(None, &allowed);
    }
}
