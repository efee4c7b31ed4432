//! The side that writes entries.

use super::{BadPosition, Words, checked};
use crate::sync::{Ordering, at};
use core::cell::Cell;
use core::marker::PhantomData;
use ring_abi::Entry;

/// Writes entries and publishes them, many at a time.
///
/// `Send` but not `Sync`: one thread at a time.
///
/// ```
/// use scatter_ring::ring;
/// let (mut producer, mut consumer) = ring::heap(4, u64::MAX - 1);
/// producer.push(&[1; 8]).unwrap();
/// assert_eq!(consumer.pop().unwrap(), None); // not published yet
/// producer.publish();
/// assert_eq!(consumer.pop().unwrap(), Some([1; 8]));
/// ```
#[derive(Debug)]
pub struct Producer<W> {
    words: W,
    capacity: u64,
    /// Next free position. Ahead of `published` by what was pushed and not published.
    tail: u64,
    /// What the shared tail says.
    published: u64,
    /// The consumer's head when it was last looked at; the real one is here or further.
    cached_head: u64,
    one_thread: PhantomData<Cell<()>>,
}

/// Why an entry was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// Every slot holds an entry that the consumer has not released.
    #[error("ring is full")]
    Full,
    /// The consumer's position is impossible.
    #[error(transparent)]
    BadPosition(#[from] BadPosition),
}

impl<W: Words> Producer<W> {
    /// The producer of an empty ring whose head and tail are `start`.
    pub fn new(words: W, start: u64) -> Self {
        let capacity = u64::from(words.capacity());
        Producer { words, capacity, tail: start, published: start, cached_head: start, one_thread: PhantomData }
    }

    /// Writes one entry into the next free slot. The consumer does not see it before [`publish`](Self::publish).
    ///
    /// # Errors
    /// [`PushError::Full`] if no slot is free; the entry was not written.
    #[inline]
    pub fn push(&mut self, entry: &Entry) -> Result<(), PushError> {
        if self.tail.wrapping_sub(self.cached_head) == self.capacity && self.free()? == 0 {
            return Err(PushError::Full);
        }
        for (word, value) in self.words.slot(self.tail).iter().zip(entry) {
            word.store(*value, Ordering::Relaxed);
        }
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Pushes entries while there are any and a slot is known to be free, and says how many. Looks at the consumer's
    /// head only if none is. The rest stays in the iterator that the caller can pass by reference.
    ///
    /// Faster than a loop of [`push`](Self::push), which stores its position to this struct between any two entries.
    ///
    /// # Errors
    /// [`BadPosition`] if the consumer's head is impossible; nothing was pushed.
    ///
    /// ```
    /// let (mut producer, _consumer) = scatter_ring::ring::heap(2, 0);
    /// let mut entries = (0..3).map(|i| [i; 8]);
    /// assert_eq!(producer.push_many(&mut entries), Ok(2));
    /// assert_eq!(entries.next(), Some([2; 8]));
    /// ```
    #[inline]
    pub fn push_many(&mut self, entries: impl IntoIterator<Item = Entry>) -> Result<u32, BadPosition> {
        let mut free = self.capacity - self.tail.wrapping_sub(self.cached_head);
        if free == 0 {
            free = u64::from(self.free()?);
        }
        let first = self.tail;
        let mut entries = entries.into_iter();
        let mut count = 0;
        while count < free {
            let Some(entry) = entries.next() else { break };
            for (word, value) in self.words.slot(first.wrapping_add(count)).iter().zip(entry) {
                word.store(value, Ordering::Relaxed);
            }
            count += 1;
        }
        self.tail = first.wrapping_add(count);
        Ok(count as u32)
    }

    /// Shows everything pushed so far to the consumer.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.tail {
            self.words.tail().store(self.tail, at("T1", Ordering::Release));
            self.published = self.tail;
        }
    }

    /// Free slots, by a fresh look at the consumer's head.
    ///
    /// # Errors
    /// [`BadPosition`] if that head is impossible.
    pub fn free(&mut self) -> Result<u32, BadPosition> {
        let seen = self.words.head().load(at("H2", Ordering::Acquire));
        let range = self.published.wrapping_sub(self.cached_head);
        self.cached_head = checked("head", seen, self.cached_head, range)?;
        Ok((self.capacity - self.tail.wrapping_sub(self.cached_head)) as u32)
    }

    /// Forgets what was pushed and not published, and says how many entries that was.
    pub fn take_back(&mut self) -> u64 {
        let n = self.tail.wrapping_sub(self.published);
        self.tail = self.published;
        n
    }

    /// Position that the next entry will have.
    #[must_use]
    #[inline]
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// Position behind the last published entry.
    #[must_use]
    #[inline]
    pub fn published(&self) -> u64 {
        self.published
    }

    /// The ring's words.
    pub fn words(&self) -> &W {
        &self.words
    }
}
