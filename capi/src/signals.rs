//! Threads of a library must not take the signals of the program that it is in.

use std::mem::MaybeUninit;

/// As long as it lives, threads that this one starts, and those that they start, block all signals but those that a
/// fault brings to the thread that has made it.
pub struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    pub fn new() -> Blocked {
        let mut set = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: both sets are written before they are read; none of the calls fails with these arguments.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
            for fault in [libc::SIGBUS, libc::SIGSEGV, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS] {
                libc::sigdelset(set.as_mut_ptr(), fault);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), before.as_mut_ptr());
            Blocked { before: before.assume_init() }
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is one that the kernel has given.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}
