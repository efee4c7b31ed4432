//! Telling a forked child from its parent without a system call.

use crate::sync::{AtomicU64, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::ptr::NonNull;
use std::thread::JoinHandle;

/// A page that the kernel wipes in a forked child.
///
/// A child shares its parent's rings and sockets; two producers on one ring would corrupt it. So every call of a session
/// asks this first.
#[derive(Debug)]
pub struct ForkGuard {
    word: NonNull<AtomicU64>,
}

const PAGE_BYTES: usize = 4096;

impl ForkGuard {
    /// A guard of the calling process.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new() -> io::Result<ForkGuard> {
        // SAFETY: a fresh private mapping at an address of the kernel's choice.
        let page = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                PAGE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        let guard = ForkGuard { word: NonNull::new(page.cast()).expect("a mapping is not at 0") };
        // SAFETY: the page was mapped just now and nobody else knows it.
        unsafe { rustix::mm::madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork)? };
        guard.word().store(1, Ordering::Relaxed);
        Ok(guard)
    }

    /// True in a process that was forked from the one that made the guard.
    #[must_use]
    #[inline]
    pub fn is_child(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 0
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the start of a page that lives as long as `self`, used as an atomic only.
        unsafe { self.word.as_ref() }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody can hold a reference into it any more.
        let _ = unsafe { rustix::mm::munmap(self.word.as_ptr().cast(), PAGE_BYTES) };
    }
}

/// Lets the handles of threads go in a child, which has none of these threads. Dropping one would detach the thread that
/// has this address here: one that the child has started since, because the memory of those that are gone is used again.
pub(crate) fn forget_threads<T>(threads: impl IntoIterator<Item = JoinHandle<T>>) {
    threads.into_iter().for_each(std::mem::forget);
}

// SAFETY: the guard is a `&AtomicU64` that keeps its target alive.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}
