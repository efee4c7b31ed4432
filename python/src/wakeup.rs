//! How an event loop sleeps: at one file descriptor, which is readable when the engine has woken the client, or when somebody
//! else has taken something out of the ring.

use crate::errors::Failure;
use crate::session::{Session, bell, ring, silence};
use pyo3::prelude::*;
use rustix::event::epoll;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// One event loop's. It stays valid, and silent, after the client was closed.
pub struct Wakeup {
    bell: OwnedFd,
    /// Of the bell and the client's descriptor.
    both: OwnedFd,
}

impl Wakeup {
    fn new(client: impl AsFd) -> io::Result<Wakeup> {
        let bell = bell()?;
        let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for fd in [bell.as_fd(), client.as_fd()] {
            epoll::add(&both, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(Wakeup { bell, both })
    }

    pub fn nudge(&self) {
        ring(&self.bell);
    }
}

/// For `scatter_ring._asyncio` only. Does not keep the session.
#[pyclass(name = "Wakeup", module = "scatter_ring._native", frozen)]
pub struct PyWakeup {
    session: Weak<Session>,
    wakeup: Arc<Wakeup>,
    /// How much had been taken from the ring when the loop looked last.
    seen: AtomicU64,
}

impl PyWakeup {
    pub fn new(session: &Arc<Session>) -> PyResult<PyWakeup> {
        let wakeup = Arc::new(Wakeup::new(session.wake_fd())?);
        Ok(PyWakeup { session: Arc::downgrade(session), wakeup, seen: AtomicU64::new(0) })
    }
}

#[pymethods]
impl PyWakeup {
    /// Readable when there is something to look for.
    fn fileno(&self) -> i32 {
        self.wakeup.both.as_raw_fd()
    }

    /// True if nobody can wait any more.
    #[getter]
    fn over(&self) -> bool {
        self.session.strong_count() == 0
    }

    /// Announces a sleep. False: do not sleep, something was taken since the last `awake`, or can be.
    fn arm(&self, py: Python<'_>) -> bool {
        let Some(session) = self.session.upgrade() else { return false };
        let armed = session.with(py, |locked| {
            let unseen = locked.taken() != self.seen.load(Ordering::Relaxed);
            Ok(!unseen && locked.add_wakeup(&self.wakeup))
        });
        armed.unwrap_or(false)
    }

    /// Awake again: takes what there is. Then look for whatever is waited for.
    fn awake(&self, py: Python<'_>) {
        silence(&self.wakeup.bell);
        let Some(session) = self.session.upgrade() else { return };
        let looked: Result<(), Failure> = session.with(py, |locked| {
            locked.remove_wakeup(&self.wakeup);
            locked.awake();
            let ended = locked.take_spans();
            self.seen.store(locked.taken(), Ordering::Relaxed);
            ended
        });
        // Who waits is told by what he looks for.
        drop(looked);
    }

    /// Nobody waits any more.
    fn rest(&self, py: Python<'_>) {
        let Some(session) = self.session.upgrade() else { return };
        let _ = session.with(py, |locked| {
            locked.remove_wakeup(&self.wakeup);
            Ok(())
        });
    }
}
