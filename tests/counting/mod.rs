//! The allocator of a test binary that says what is allocated: it counts, and passes everything on to the system's.

// Each test file that shares this module uses another part of it.
#![allow(dead_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OWN_ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static OWN_BYTES: Cell<u64> = const { Cell::new(0) };
}

/// Allocations of all threads so far.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Allocations of this thread so far.
pub fn own_allocations() -> u64 {
    OWN_ALLOCATIONS.get()
}

/// Bytes that this thread has asked for so far.
pub fn own_bytes() -> u64 {
    OWN_BYTES.get()
}

fn count(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    // A thread that ends has lost its counts before its last allocations.
    let _ = OWN_ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
    let _ = OWN_BYTES.try_with(|n| n.set(n.get() + bytes as u64));
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes);
        // SAFETY: the caller keeps the contract.
        unsafe { System.realloc(at, layout, bytes) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // An allocation that is freed was counted when it was made.
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(at, layout) }
    }
}
