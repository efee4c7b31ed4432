//! The ring: one producer, one consumer, 64-byte entries, no lock and no system call.
//!
//! The same code runs both rings of a session over shared memory, the rings between the poller and its copy workers over
//! the heap, and the loom models. It borrows its words ([`Words`]) and owns only positions.
//!
//! Each side keeps its own position private and a cached copy of the other's; what stands in shared memory is output
//! only. A position of the other side that is impossible is an error ([`BadPosition`]), never a loop bound.
//!
//! # Orderings
//!
//! Every ordering that matters has a label. The two ends of an edge share it; each label has a mutant in `loom-tests`
//! that a model kills. L and M are those of [`crate::mappings`].
//!
//! | label | one end                                     | other end                                  | so that |
//! |-------|---------------------------------------------|--------------------------------------------|---------|
//! | T1    | [`Producer::publish`]: Release store, tail  | T2                                         | entries are written before they can be seen |
//! | T2    | [`Consumer::available`]: Acquire load, tail | T1                                         | entries are read after they were seen |
//! | H1    | [`Consumer::release`]: Release store, head  | H2                                         | entries are read before their slots are free |
//! | H2    | [`Producer::free`]: Acquire load, head      | H1                                         | slots are written after they were seen free |
//! | W1    | [`Waker::must_wake`]: fence, after the tail | W2                                         | either the sleeper sees the tail or the waker sees the sleep word |
//! | W2    | [`Sleeper::prepare`]: fence, before re-check | W1                                        | the same |
//! | S1    | [`stop`]: Release store, stop word          | S2                                         | what was published before the stop is seen after it |
//! | S2    | [`stop_seen`]: Acquire load, stop word      | S1                                         | the same |
//! | L1    | `Mappings::lose`: Release fence             | L2                                         | who read what stands in a lost mapping's place sees that it is lost |
//! | L2    | `Mappings::is_lost`, `faults`: Acquire fence | L1                                        | the same |
//! | M1    | `Mappings::enter`: Release store, base      | M2                                         | a base is read with its own length |
//! | M2    | `Mappings::find`: Acquire load, base        | M1                                         | the same |
//! | M3    | `Mappings::enter`: Release store, length    | M4                                         | a length is not taken for that of the mapping before it |
//! | M4    | `Mappings::find`: Acquire load, length      | M3                                         | the same |
//! | M5    | `Mappings::leave`: Release store, base      | M6                                         | a place's next mapping comes after the one before it, and is not lost |
//! | M6    | `Mappings::enter`: Acquire exchange, base   | M5                                         | the same |

mod consumer;
mod heap;
mod producer;
mod wake;

pub use consumer::Consumer;
pub use heap::{HeapWords, heap};
pub use producer::{Producer, PushError};
pub use wake::{Sleeper, Waker, stop, stop_seen};

use crate::sync::AtomicU64;

// One thread per side is for the compiler to see to.
#[cfg(not(scatter_ring_loom))]
mod sides {
    use super::{Consumer, HeapWords, Producer};
    static_assertions::assert_impl_all!(Producer<HeapWords>: Send);
    static_assertions::assert_not_impl_any!(Producer<HeapWords>: Sync, Clone);
    static_assertions::assert_impl_all!(Consumer<HeapWords>: Send);
    static_assertions::assert_not_impl_any!(Consumer<HeapWords>: Sync, Clone);
}

/// The words of one ring, wherever they are.
///
/// An implementation returns the same words at every call. `slot` masks the position itself, so that no position can
/// name a slot that does not exist.
pub trait Words {
    /// Slots, a power of two.
    fn capacity(&self) -> u32;
    /// Position of the oldest entry. Written by the consumer only.
    fn head(&self) -> &AtomicU64;
    /// Position of the next free slot. Written by the producer only.
    fn tail(&self) -> &AtomicU64;
    /// The slot of a position.
    fn slot(&self, position: u64) -> &[AtomicU64; 8];
}

/// The other side's position cannot be: it is ahead of what was published, behind what was seen before, or further
/// away than the ring is long. Nothing of the ring can be believed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("impossible {which} {seen}: must lie from {least} to {least} + {range}")]
pub struct BadPosition {
    /// `head` or `tail`.
    pub which: &'static str,
    /// What the other side wrote.
    pub seen: u64,
    /// The least position that it could have written.
    pub least: u64,
    /// How far ahead of `least` it could be.
    pub range: u64,
}

/// `seen` if it lies in `least ..= least + range`, in wrapping arithmetic.
#[inline]
fn checked(which: &'static str, seen: u64, least: u64, range: u64) -> Result<u64, BadPosition> {
    if seen.wrapping_sub(least) <= range { Ok(seen) } else { Err(BadPosition { which, seen, least, range }) }
}
