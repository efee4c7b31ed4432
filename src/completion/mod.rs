//! Spans on their way into the completion ring.
//!
//! The ring cannot overflow: a batch is taken only when [`SPANS_PER_BATCH`] places are free, which are reserved for it
//! until it has had its last span. (3FS's USRBIO bounds its work by free completion slots in the same way.)

use crate::pipeline::Outcome;
use crate::ring::{BadPosition, Producer, PushError, Waker, Words};
use crate::sync::AtomicU64;
use ring_abi::{Command, SPANS_PER_BATCH};

/// The engine's end of one completion ring.
#[derive(Debug)]
pub struct Completions<W> {
    cq: Producer<W>,
    /// Free places that batches under way may still use.
    reserved: u32,
    /// Places that were neither used nor reserved when last looked at.
    known_free: u32,
    waker: Waker,
}

impl<W: Words> Completions<W> {
    /// Of an empty ring.
    pub fn new(cq: Producer<W>) -> Self {
        Completions { cq, reserved: 0, known_free: 0, waker: Waker::default() }
    }

    /// Reserves the places of one batch; false if they are not free.
    ///
    /// # Errors
    /// If the client's head is impossible.
    #[inline]
    pub fn reserve(&mut self) -> Result<bool, BadPosition> {
        if self.known_free < SPANS_PER_BATCH {
            self.known_free = self.cq.free()? - self.reserved;
            if self.known_free < SPANS_PER_BATCH {
                return Ok(false);
            }
        }
        self.known_free -= SPANS_PER_BATCH;
        self.reserved += SPANS_PER_BATCH;
        Ok(true)
    }

    /// Writes a span; it is seen after the next [`publish`](Self::publish).
    ///
    /// # Errors
    /// If the client's head is impossible. The place was reserved, so the ring is not full.
    #[inline]
    pub fn push(&mut self, outcome: &Outcome) -> Result<(), PushError> {
        self.cq.push(&outcome.span.to_entry())?;
        self.reserved -= 1 + outcome.frees;
        self.known_free += outcome.frees;
        Ok(())
    }

    /// Writes a command for an owner, in whose ring there are no spans; it is seen after the next
    /// [`publish`](Self::publish).
    ///
    /// # Errors
    /// If the owner's head is impossible, or it has not freed the places of commands that it has answered.
    pub fn push_command(&mut self, command: &Command) -> Result<(), PushError> {
        self.cq.push(&command.to_entry())
    }

    /// Shows the spans to the client; true if it sleeps and is to be woken.
    #[must_use]
    #[inline]
    pub fn publish(&mut self, client_sleep: &AtomicU64) -> bool {
        if self.cq.published() == self.cq.position() {
            return false;
        }
        self.cq.publish();
        self.waker.must_wake(client_sleep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring;
    use ring_abi::Span;

    fn outcome(frees: u32) -> Outcome {
        Outcome { span: Span::ZERO, frees }
    }

    #[test]
    fn a_batch_is_refused_while_its_places_are_not_free() {
        let (cq, mut client) = ring::heap(8, u64::MAX - 3);
        let asleep = AtomicU64::new(0);
        let mut completions = Completions::new(cq);
        assert_eq!(
            (completions.reserve(), completions.reserve(), completions.reserve()),
            (Ok(true), Ok(true), Ok(false))
        );
        completions.push(&outcome(3)).unwrap();
        assert!(!completions.publish(&asleep));
        // 4 reserved by the second batch, 1 used by the unread span.
        assert_eq!(completions.reserve(), Ok(false));
        client.pop().unwrap().unwrap();
        client.release();
        assert_eq!(completions.reserve(), Ok(true));
    }

    #[test]
    fn an_impossible_head_is_an_error() {
        let (cq, client) = ring::heap(4, 0);
        let mut completions = Completions::new(cq);
        client.words().head().store(1, crate::sync::Ordering::Relaxed);
        assert!(completions.reserve().is_err());
    }
}
