//! Sleeping without a lost wake-up, and the end of a session.
//!
//! The protocol is io_uring's SQPOLL one. The waker stores (a tail), fences, and loads the sleep word; the sleeper
//! stores the sleep word, fences, and loads (the tail) again. The two fences are totally ordered, so at least one of
//! the two sees what the other stored. Without either fence both can miss it: that bug was shipped twice
//! (axboe/liburing#541, tokio-rs/io-uring#197).
//!
//! A sleep word is 0 while its owner is awake, else a number that is new for each sleep. The number lets the waker
//! wake once for each sleep instead of once for each publish.

use crate::sync::{AtomicU64, Ordering, at, fence_at};
use ring_abi::Status;

/// The side that publishes and may have to wake the other.
#[derive(Debug, Default)]
pub struct Waker {
    answered: u64,
}

impl Waker {
    /// To be called after a publish: true if the other side sleeps, or is about to, and has not been woken yet for
    /// this sleep. The caller then wakes it.
    #[must_use]
    #[inline]
    pub fn must_wake(&mut self, sleep_word: &AtomicU64) -> bool {
        fence_at("W1", Ordering::SeqCst);
        let word = sleep_word.load(Ordering::Relaxed);
        if word == 0 || word == self.answered {
            return false;
        }
        self.answered = word;
        true
    }
}

/// The side that sleeps.
#[derive(Debug, Default)]
pub struct Sleeper {
    sleeps: u64,
}

impl Sleeper {
    /// Announces a sleep. The caller must look for work once more after it, and sleep only if there is none.
    pub fn prepare(&mut self, sleep_word: &AtomicU64) {
        self.announce(sleep_word);
        Self::announced();
    }

    /// The same for an owner of several words, who announces on all of them and fences once: see
    /// [`announced`](Self::announced).
    pub fn announce(&mut self, sleep_word: &AtomicU64) {
        self.sleeps += 1;
        sleep_word.store(self.sleeps, Ordering::Relaxed);
    }

    /// To be called after the last [`announce`](Self::announce), before looking for work once more.
    pub fn announced() {
        fence_at("W2", Ordering::SeqCst);
    }

    /// Awake again.
    #[inline]
    pub fn awake(&self, sleep_word: &AtomicU64) {
        sleep_word.store(0, Ordering::Relaxed);
    }
}

/// Ends a session: the other side will see `reason` after everything that was published before.
pub fn stop(stop_word: &AtomicU64, reason: Status) {
    stop_word.store(ring_abi::stop_word(reason), at("S1", Ordering::Release));
}

/// Why the session has ended, if it has. Entries that are still in the ring were published before that.
#[must_use]
pub fn stop_seen(stop_word: &AtomicU64) -> Option<Status> {
    ring_abi::stop_reason(stop_word.load(at("S2", Ordering::Acquire)))
}
