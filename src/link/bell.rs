//! How threads of links wake the poller.

use crate::region::ForkGuard;
use crate::ring::Waker;
use crate::sync::AtomicU64;
use crossbeam_utils::CachePadded;
use rustix::fd::OwnedFd;
use std::sync::Arc;

/// How the thread of a lane wakes the poller: the poller's sleep word, and an eventfd that only this process has.
#[derive(Clone, Debug)]
pub struct Bell {
    /// Announced by the poller before it sleeps: see [`Sleeper`](crate::ring::Sleeper). It then asks
    /// [`Transport::has_news`](super::Transport::has_news) once more.
    pub sleep: Arc<CachePadded<AtomicU64>>,
    /// Written when the poller sleeps.
    pub bell: Arc<OwnedFd>,
    /// A forked child has no threads to wait for.
    pub fork: Arc<ForkGuard>,
}

/// A thread's end of it; rings when the thread ends, however it does.
pub(super) struct Ringer {
    bell: Bell,
    waker: Waker,
}

impl Ringer {
    pub fn new(bell: Bell) -> Ringer {
        Ringer { bell, waker: Waker::default() }
    }

    pub fn ring(&mut self) {
        if self.waker.must_wake(&self.bell.sleep) {
            // Fails only if the counter is full, which wakes as well.
            let _ = rustix::io::write(&*self.bell.bell, &1u64.to_ne_bytes());
        }
    }
}

impl Drop for Ringer {
    fn drop(&mut self) {
        self.ring();
    }
}
