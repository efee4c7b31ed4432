//! The only file that names `core::sync` or `loom`.
//!
//! Everything lock-free in this crate is written against these names, so that the source that ships is the source that
//! loom explores. An ordering that matters is written with a label, `at("T", Release)`; under loom a model can weaken
//! the ordering of one label (a mutant) and must then fail.

#[cfg(not(scatter_ring_loom))]
pub use real::*;

#[cfg(scatter_ring_loom)]
pub use model::*;

pub use core::sync::atomic::Ordering;

#[cfg(not(scatter_ring_loom))]
mod real {
    pub use core::hint::spin_loop;
    pub use core::sync::atomic::AtomicU64;
    pub use std::sync::Arc;

    use super::Ordering;

    /// `ordering`. The label ties it to its partner in the table of [`crate::ring`] and to the mutant that weakens it.
    #[inline(always)]
    pub const fn at(_label: &'static str, ordering: Ordering) -> Ordering {
        ordering
    }

    /// A fence with a label.
    #[inline(always)]
    pub fn fence_at(_label: &'static str, ordering: Ordering) {
        core::sync::atomic::fence(ordering);
    }
}

#[cfg(scatter_ring_loom)]
mod model {
    pub use loom::sync::Arc;
    pub use loom::sync::atomic::AtomicU64;

    use super::Ordering;
    use std::cell::Cell;

    /// loom runs the threads of a model one at a time: a spinning one must let the others go on.
    pub fn spin_loop() {
        loom::thread::yield_now();
    }

    std::thread_local! {
        // All threads of a model run on the OS thread of its test.
        static MUTANT: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Runs `body` with the ordering of `label` weakened to Relaxed, or its fence left out.
    pub fn with_mutant<R>(label: &'static str, body: impl FnOnce() -> R) -> R {
        struct Reset;
        impl Drop for Reset {
            fn drop(&mut self) {
                MUTANT.set(None);
            }
        }
        MUTANT.set(Some(label));
        let _reset = Reset;
        body()
    }

    /// `ordering`, or Relaxed in the mutant of this label.
    pub fn at(label: &'static str, ordering: Ordering) -> Ordering {
        if MUTANT.get() == Some(label) { Ordering::Relaxed } else { ordering }
    }

    /// A fence, left out in the mutant of this label.
    pub fn fence_at(label: &'static str, ordering: Ordering) {
        if MUTANT.get() != Some(label) {
            loom::sync::atomic::fence(ordering);
        }
    }
}
