//! The side that reads entries.

use super::{BadPosition, Words, checked};
use crate::sync::{Ordering, at};
use core::cell::Cell;
use core::marker::PhantomData;
use ring_abi::Entry;

/// Copies entries out, each once, and releases their slots, many at a time.
///
/// `Send` but not `Sync`: one thread at a time.
///
/// ```
/// use scatter_ring::ring;
/// let (mut producer, mut consumer) = ring::heap(4, 0);
/// for i in 0..4 {
///     producer.push(&[i; 8]).unwrap();
/// }
/// producer.publish();
/// assert_eq!(consumer.available().unwrap(), 4);
/// assert_eq!(consumer.pop().unwrap(), Some([0; 8]));
/// assert_eq!(producer.free().unwrap(), 0); // popped, but not released
/// consumer.release();
/// assert_eq!(producer.free().unwrap(), 1);
/// ```
#[derive(Debug)]
pub struct Consumer<W> {
    words: W,
    capacity: u64,
    /// Position of the next entry to copy out. Ahead of `released` by what was popped and not released.
    head: u64,
    /// What the shared head says.
    released: u64,
    /// The producer's tail when it was last looked at; the real one is here or further.
    cached_tail: u64,
    one_thread: PhantomData<Cell<()>>,
}

impl<W: Words> Consumer<W> {
    /// The consumer of an empty ring whose head and tail are `start`.
    pub fn new(words: W, start: u64) -> Self {
        let capacity = u64::from(words.capacity());
        Consumer { words, capacity, head: start, released: start, cached_tail: start, one_thread: PhantomData }
    }

    /// Copies the next entry out, or `None` if nothing is published. Its slot stays taken until
    /// [`release`](Self::release).
    ///
    /// # Errors
    /// [`BadPosition`] if the producer's tail is impossible.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<Entry>, BadPosition> {
        if self.head == self.cached_tail && self.available()? == 0 {
            return Ok(None);
        }
        let slot = self.words.slot(self.head);
        let entry = core::array::from_fn(|i| slot[i].load(Ordering::Relaxed));
        self.head = self.head.wrapping_add(1);
        Ok(Some(entry))
    }

    /// Copies the next entry out and leaves it there, or `None` if nothing is published. Another copy of it may differ, if the
    /// producer does what it must not.
    ///
    /// # Errors
    /// [`BadPosition`] if the producer's tail is impossible.
    pub fn peek(&mut self) -> Result<Option<Entry>, BadPosition> {
        let entry = self.pop()?;
        self.head = self.head.wrapping_sub(u64::from(entry.is_some()));
        Ok(entry)
    }

    /// Hands at most `most` entries that are known to be there to `take`, each copied out once, and says how many.
    /// Looks at the producer's tail only if none is known. Their slots stay taken until [`release`](Self::release).
    ///
    /// # Errors
    /// [`BadPosition`] if the producer's tail is impossible; nothing was popped.
    ///
    /// ```
    /// let (mut producer, mut consumer) = scatter_ring::ring::heap(4, 0);
    /// producer.push_many((0..3).map(|i| [i; 8])).unwrap();
    /// producer.publish();
    /// let mut window = Vec::new();
    /// assert_eq!(consumer.pop_many(2, |entry| window.push(entry)), Ok(2));
    /// assert_eq!(window, [[0; 8], [1; 8]]);
    /// ```
    #[inline]
    pub fn pop_many(&mut self, most: u32, mut take: impl FnMut(Entry)) -> Result<u32, BadPosition> {
        if self.head == self.cached_tail {
            self.available()?;
        }
        let count = self.known().min(most);
        let first = self.head;
        // Before the loop, so that no entry is fetched twice should `take` panic.
        self.head = first.wrapping_add(u64::from(count));
        for i in 0..u64::from(count) {
            let slot = self.words.slot(first.wrapping_add(i));
            take(core::array::from_fn(|i| slot[i].load(Ordering::Relaxed)));
        }
        Ok(count)
    }

    /// Gives the slots of everything popped so far back to the producer.
    #[inline]
    pub fn release(&mut self) {
        if self.released != self.head {
            self.words.head().store(self.head, at("H1", Ordering::Release));
            self.released = self.head;
        }
    }

    /// Entries that can be popped, by a fresh look at the producer's tail.
    ///
    /// # Errors
    /// [`BadPosition`] if that tail is impossible.
    #[inline]
    pub fn available(&mut self) -> Result<u32, BadPosition> {
        let seen = self.words.tail().load(at("T2", Ordering::Acquire));
        // The producer may have filled every slot that it saw released, and never takes an entry back.
        let known = self.cached_tail.wrapping_sub(self.released);
        self.cached_tail = checked("tail", seen, self.cached_tail, self.capacity - known)?;
        Ok(self.cached_tail.wrapping_sub(self.head) as u32)
    }

    /// Entries that can be popped as far as was last seen, without a look at the producer's tail.
    #[must_use]
    #[inline]
    pub fn known(&self) -> u32 {
        self.cached_tail.wrapping_sub(self.head) as u32
    }

    /// Position of the next entry to pop.
    #[must_use]
    #[inline]
    pub fn position(&self) -> u64 {
        self.head
    }

    /// The ring's words.
    pub fn words(&self) -> &W {
        &self.words
    }
}
