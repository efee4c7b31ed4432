//! What the tests of hostile clients share.

use super::RawClient;
use ring_abi::{Descriptor, Flags, Opcode, Span};
use std::time::{Duration, Instant};

/// Memory of this process between two pages that nobody may touch.
pub struct Guarded {
    whole: *mut libc::c_void,
    pages: usize,
}

// SAFETY: the pointer names memory that the value owns; it is used by the copy routines and by `bytes` only.
unsafe impl Send for Guarded {}

const PAGE: usize = 4096;

impl Guarded {
    pub fn new(pages: usize) -> Guarded {
        let (bytes, private) = ((pages + 2) * PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let whole = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, private, -1, 0) };
        assert_ne!(whole, libc::MAP_FAILED);
        let memory = Guarded { whole, pages };
        memory.protect(libc::PROT_READ | libc::PROT_WRITE);
        memory
    }

    pub fn base(&self) -> *mut u8 {
        self.whole.wrapping_byte_add(PAGE).cast()
    }

    pub fn len(&self) -> usize {
        self.pages * PAGE
    }

    /// A touch that its protection forbids ends the process: that is how a test fails here.
    pub fn protect(&self, protection: i32) {
        // SAFETY: pages of ours.
        assert_eq!(unsafe { libc::mprotect(self.base().cast(), self.len(), protection) }, 0);
    }

    pub fn fill(&self, byte: u8) {
        // SAFETY: memory of ours, to which no reference exists.
        unsafe { std::ptr::write_bytes(self.base(), byte, self.len()) };
    }

    /// A copy of what is there now.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        // SAFETY: memory of ours; what is copied while somebody writes is not looked at.
        unsafe { std::ptr::copy_nonoverlapping(self.base(), bytes.as_mut_ptr(), self.len()) };
        bytes
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: mapped by us, and nobody uses it any more.
        unsafe { libc::munmap(self.whole, (self.pages + 2) * PAGE) };
    }
}

/// A batch of one plain range.
pub fn range(src: (u32, u64), dst: (u32, u64), len: u32) -> Descriptor {
    Descriptor {
        opcode: Opcode::READ.0,
        flags: Flags::LAST,
        src_region: src.0,
        src_offset: src.1,
        dst_region: dst.0,
        dst_offset: dst.1,
        len,
        count: 1,
        ..Descriptor::ZERO
    }
}

pub const NOP: Descriptor = Descriptor { opcode: Opcode::NOP.0, flags: Flags::LAST, ..Descriptor::ZERO };

impl RawClient {
    pub fn submit(&mut self, d: &Descriptor) {
        assert!(self.try_push(&d.to_entry()), "the submission ring is full");
        self.publish();
    }

    /// One batch of one descriptor, waited for.
    pub fn done(&mut self, d: &Descriptor) -> Span {
        self.submit(d);
        self.wait()
    }
}

/// Stops another thread's loop also when this one panics.
pub struct StopsOnDrop<'a>(pub &'a std::sync::atomic::AtomicBool);

impl Drop for StopsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Release);
    }
}

/// Waits for something that another thread or process does, for ten seconds at most.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "after 10 s still not: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// File descriptors of this process. One test at a time can count them: see [`alone`].
pub fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Memory files that this process has mapped.
pub fn mapped_memory_files() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}

/// Held by tests that count what the process has, and by those that would be counted.
pub fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
