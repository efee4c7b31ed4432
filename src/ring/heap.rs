//! A ring in the memory of one process: between the poller and its copy workers, and in tests.

use super::{Consumer, Producer, Words};
use crate::sync::{Arc, AtomicU64};
use crossbeam_utils::CachePadded;

/// The words of a ring on the heap, shared by its two sides.
#[derive(Clone, Debug)]
pub struct HeapWords(Arc<Block>);

#[derive(Debug)]
struct Block {
    /// Written by the consumer, read by the producer.
    head: CachePadded<AtomicU64>,
    /// Written by the producer, read by the consumer.
    tail: CachePadded<AtomicU64>,
    slots: Box<[Slot]>,
}

/// A line of its own for every slot, so that both sides do not meet in one while the ring is nearly empty.
#[derive(Debug)]
#[repr(align(64))]
struct Slot([AtomicU64; 8]);

/// A ring on the heap with both its positions at `start`.
///
/// # Panics
/// If `capacity` is not a power of two.
///
/// ```
/// let (mut tx, mut rx) = scatter_ring::ring::heap(2, 0);
/// tx.push(&[7; 8]).unwrap();
/// tx.publish();
/// assert_eq!(rx.pop().unwrap(), Some([7; 8]));
/// ```
#[must_use]
pub fn heap(capacity: u32, start: u64) -> (Producer<HeapWords>, Consumer<HeapWords>) {
    assert!(capacity.is_power_of_two(), "capacity {capacity} is not a power of two");
    let words = HeapWords(Arc::new(Block {
        head: CachePadded::new(AtomicU64::new(start)),
        tail: CachePadded::new(AtomicU64::new(start)),
        slots: (0..capacity).map(|_| Slot(core::array::from_fn(|_| AtomicU64::new(0)))).collect(),
    }));
    (Producer::new(words.clone(), start), Consumer::new(words, start))
}

impl Words for HeapWords {
    fn capacity(&self) -> u32 {
        self.0.slots.len() as u32
    }

    #[inline]
    fn head(&self) -> &AtomicU64 {
        &self.0.head
    }

    #[inline]
    fn tail(&self) -> &AtomicU64 {
        &self.0.tail
    }

    #[inline]
    fn slot(&self, position: u64) -> &[AtomicU64; 8] {
        &self.0.slots[position as usize & (self.0.slots.len() - 1)].0
    }
}
