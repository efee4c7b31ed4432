//! Memory of a file that goes away under its mapping: the fault is that memory's alone.
//!
//! Touching a page that the file does not have any more, or that the kernel cannot provide, raises SIGBUS, which ends
//! the process. In a process that [`install`]ed the guard the handler does three things instead: it marks the mapping as
//! lost, puts private zero pages in the place of all of it, and returns. The copy that faulted goes on, reads zeroes or
//! writes to nowhere, and is thrown away, because whoever copied looks at the mark afterwards
//! ([`Region::is_lost`](super::Region::is_lost)).
//!
//! The mark comes first: a thread that reads zeroes without a fault of its own must find it. For two threads of Rust that
//! is the edge L1-L2 of [`crate::mappings`]; here the zeroes come by way of the page tables, and the kernel orders them
//! behind the mark: no thread uses the new pages before the old ones' translations are gone on its processor.

use crate::mappings::Mappings;
use libc::{c_int, c_void, siginfo_t};
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

/// As many as a process can map by default (`vm.max_map_count` is 65,530).
const MAPPINGS_MAX: usize = 1 << 16;

/// In static memory: the handler allocates nothing and waits for nobody.
static MAPPINGS: Mappings<MAPPINGS_MAX> = Mappings::new();

/// What SIGBUS did before. Set before the handler can run.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

static INSTALLED: Mutex<bool> = Mutex::new(false);

/// A mapping in the table, until it is dropped: before the memory is unmapped, when nobody uses it any more.
#[derive(Debug)]
pub(super) struct Watched {
    place: usize,
}

impl Watched {
    /// `None`: the table is full.
    pub fn new(base: *mut u8, bytes: usize) -> Option<Watched> {
        MAPPINGS.enter(base.addr() as u64, bytes as u64).map(|place| Watched { place })
    }

    #[inline]
    pub fn is_lost(&self) -> bool {
        MAPPINGS.is_lost(self.place)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        MAPPINGS.leave(self.place);
    }
}

/// How many mappings of this process have been lost so far. Who copies without looking at each region looks here, after
/// the copy, and at the regions if it has moved.
#[must_use]
#[inline]
pub fn faults() -> u64 {
    MAPPINGS.faults()
}

/// Regions of this process that are mapped from files.
#[must_use]
pub fn mappings() -> usize {
    MAPPINGS.len()
}

/// True once [`install`] has succeeded.
#[must_use]
pub fn is_installed() -> bool {
    *INSTALLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes SIGBUS over, for good. A fault in memory that is no region does what it would have done before. Calling it
/// again does nothing.
///
/// # Errors
/// What the kernel says.
pub fn install() -> io::Result<()> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *installed {
        return Ok(());
    }
    // SAFETY: every field of it may be 0.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only, into a place for the answer.
    succeeded(unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) })?;
    BEFORE.get_or_init(|| before);
    let mut ours = before;
    ours.sa_sigaction = on_sigbus as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
    // On the stack that a thread has for signals, if it has one: some languages' threads have little room on their own.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `ours` is a valid action, whose handler does only what a handler may.
    succeeded(unsafe {
        libc::sigemptyset(&raw mut ours.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut())
    })?;
    *installed = true;
    Ok(())
}

fn succeeded(answer: c_int) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn on_sigbus(_signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // SAFETY: errno is this thread's own, and the kernel passes a valid `info`, which has an address if the code says
    // that the kernel raised it.
    unsafe {
        let errno = *libc::__errno_location();
        let is_fault = (*info).si_code > 0;
        if !(is_fault && replace((*info).si_addr().addr() as u64)) {
            fall_back(is_fault);
        }
        *libc::__errno_location() = errno;
    }
}

/// Puts zero pages in the place of the mapping that has this address. False: there is none, or no memory.
fn replace(address: u64) -> bool {
    let Some(found) = MAPPINGS.find(address) else { return false };
    MAPPINGS.lose(found.place);
    let base = std::ptr::without_provenance_mut(found.base as usize);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the mapping is a region's, which leaves the table before it is unmapped, and the thread that faulted is
    // using it. Nobody has a Rust reference into it.
    let zeroes = unsafe { libc::mmap(base, found.bytes as usize, access, flags, -1, 0) };
    zeroes != libc::MAP_FAILED
}

/// The fault is raised again when the handler returns, and then meets what SIGBUS did before. A signal that somebody
/// sent is not, so it is sent once more.
///
/// # Safety
/// Only in the handler.
unsafe fn fall_back(is_fault: bool) {
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: it was the action before ours; both calls may be made in a handler.
    unsafe {
        libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut());
        if !is_fault {
            libc::raise(libc::SIGBUS);
        }
    }
}
