//! Telling a forked child from its parent without a system call: what was opened belongs to the process that opened it.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// The calling process's number, kept up to date by a handler that runs in every forked child.
static CURRENT: AtomicU32 = AtomicU32::new(0);

/// The process that something belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process(u32);

impl Process {
    /// The calling one.
    pub fn current() -> Process {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            remember();
            // SAFETY: the handler only stores a number, which a forked child may do.
            let refused = unsafe { libc::pthread_atfork(None, None, Some(remember)) };
            assert_eq!(refused, 0, "no memory for a fork handler");
        });
        Process(CURRENT.load(Ordering::Relaxed))
    }

    /// False in a process that was forked from it.
    #[inline]
    pub fn is_current(self) -> bool {
        self.0 == CURRENT.load(Ordering::Relaxed)
    }
}

extern "C" fn remember() {
    CURRENT.store(std::process::id(), Ordering::Relaxed);
}
