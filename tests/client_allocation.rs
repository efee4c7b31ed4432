//! Once warm, a client allocates nothing per batch.

mod fake;

use fake::{Fake, meet, setup};
use scatter_ring::client::{Client, Region};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Eight batches under way at a time, of 40 descriptors each, their outcomes waited for or not.
fn round(client: &mut Client, fake: &mut Fake, memory: &Region) {
    let tickets: [_; 8] = std::array::from_fn(|_| {
        let mut batch = client.batch().hint(40, 320);
        for i in 0..40 {
            batch.read(memory, 0, memory, 8 * i, 8).unwrap();
        }
        batch.submit().unwrap()
    });
    let taken = fake.areas.sq.available().unwrap();
    for _ in 0..taken {
        fake.areas.sq.pop().unwrap();
    }
    fake.areas.sq.release();
    tickets.iter().rev().for_each(|ticket| fake.done(ticket.position(), 41));
    for ticket in tickets.iter().step_by(2) {
        client.wait(ticket).unwrap();
    }
}

#[test]
fn a_warm_client_allocates_nothing_per_batch() {
    let (mut client, mut fake) = meet(&setup(512, 64));
    let memory = client.allocate(4096).unwrap();
    (0..4).for_each(|_| round(&mut client, &mut fake, &memory));
    let before = ALLOCATIONS.get();
    (0..50).for_each(|_| round(&mut client, &mut fake, &memory));
    assert_eq!(ALLOCATIONS.get() - before, 0);
}
