//! A decision allocates nothing: the poller takes one for each batch.

mod seeded;
mod situations;

use scatter_ring::cost::{Accuracy, Chooser, Geometry, LinkMeasurements, choose};
use situations::{any_situation, any_work};
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

#[test]
fn a_decision_and_a_measurement_allocate_nothing() {
    let mut chooser = Chooser::new();
    let mut accuracy = Accuracy::new();
    seeded::cases(500, |random| {
        let (work, mut situation) = (any_work(random), any_situation(random));
        let mut measured = LinkMeasurements::new(situation.link);
        let before = ALLOCATIONS.get();
        for ns in [900u32, 40_000, 3_000_000] {
            let decision = chooser.choose(&work, &situation);
            chooser.measured(Geometry::of(&work, situation.direction), &decision, f64::from(ns));
            accuracy.record(decision.predicted.total_ns, choose(&work, &situation).direct_ns);
            measured.window(1 << 20, 4, ns.into());
            measured.window(64_000, 1000, ns.into());
            measured.single(64, ns.into());
            measured.chunk(ns.into());
            situation.link = measured.profile();
            assert!(accuracy.median_ratio().is_some() && accuracy.worst_ratio().is_some());
        }
        assert_eq!(ALLOCATIONS.get() - before, 0);
    });
}
