//! Spans on their way into the completion ring.
//!
//! The ring cannot overflow: a batch is taken only when [`SPANS_PER_BATCH`] places are free, which are reserved for it
//! until it has had its last span. (3FS's USRBIO bounds its work by free completion slots in the same way.) Events take
//! places that nobody has reserved, and wait where there are none; of events and batches that both wait neither keeps the
//! other out.

use crate::pipeline::Outcome;
use crate::ring::{BadPosition, Producer, PushError, Waker, Words};
use crate::sync::AtomicU64;
use ring_abi::{Command, SPANS_PER_BATCH, Span};

/// The engine's end of one completion ring.
#[derive(Debug)]
pub struct Completions<W> {
    cq: Producer<W>,
    /// Free places that batches under way may still use.
    reserved: u32,
    /// Places that were neither used nor reserved when last looked at.
    known_free: u32,
    /// A batch, or an event, found no places.
    batch_waits: bool,
    event_waits: bool,
    /// Who got places last, where both want some.
    event_was_last: bool,
    waker: Waker,
}

impl<W: Words> Completions<W> {
    /// Of an empty ring.
    pub fn new(cq: Producer<W>) -> Self {
        Completions {
            cq,
            reserved: 0,
            known_free: 0,
            batch_waits: false,
            event_waits: false,
            event_was_last: false,
            waker: Waker::default(),
        }
    }

    /// Reserves the places of one batch; false if they are not free.
    ///
    /// # Errors
    /// If the client's head is impossible.
    #[inline]
    pub fn reserve(&mut self) -> Result<bool, BadPosition> {
        // An event that waits, and is there still, has come when it is asked for the next time.
        let event_is_next = self.event_waits && !self.event_was_last && !self.has_free(SPANS_PER_BATCH + 1)?;
        if event_is_next || !self.has_free(SPANS_PER_BATCH)? {
            (self.batch_waits, self.event_waits) = (true, self.event_waits && !event_is_next);
            return Ok(false);
        }
        (self.batch_waits, self.event_was_last) = (false, false);
        self.known_free -= SPANS_PER_BATCH;
        self.reserved += SPANS_PER_BATCH;
        Ok(true)
    }

    /// The position that an event pushed now will have. `None`: there is no place for it. Places become free one by one:
    /// once an event has come before a batch that waits, the next ones leave the batch what it waits for.
    ///
    /// # Errors
    /// If the client's head is impossible.
    pub fn event_position(&mut self) -> Result<Option<u64>, BadPosition> {
        let left = if self.batch_waits && self.event_was_last { SPANS_PER_BATCH } else { 0 };
        self.event_waits = !self.has_free(1 + left)?;
        Ok((!self.event_waits).then(|| self.cq.position()))
    }

    /// Writes an event, for which there must be [a place](Self::event_position); it is seen after the next
    /// [`publish`](Self::publish).
    ///
    /// # Errors
    /// If the client's head is impossible, or there is no place.
    pub fn push_event(&mut self, event: &Span) -> Result<(), PushError> {
        self.known_free = self.known_free.checked_sub(1).ok_or(PushError::Full)?;
        self.event_was_last = true;
        self.cq.push(&event.to_entry())
    }

    #[inline]
    fn has_free(&mut self, places: u32) -> Result<bool, BadPosition> {
        if self.known_free < places {
            self.known_free = self.cq.free()? - self.reserved;
        }
        Ok(self.known_free >= places)
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
    fn an_event_takes_a_place_that_no_batch_has_reserved() {
        let (cq, mut client) = ring::heap(8, u64::MAX - 1);
        let mut completions = Completions::new(cq);
        let event = |completions: &mut Completions<_>| {
            let position = completions.event_position().unwrap()?;
            completions.push_event(&Span::ZERO).unwrap();
            Some(position)
        };
        assert_eq!(completions.reserve(), Ok(true));
        let positions: Vec<_> = std::iter::from_fn(|| event(&mut completions)).collect();
        assert_eq!(positions, [u64::MAX - 1, u64::MAX, 0, 1]);
        assert_eq!(completions.push_event(&Span::ZERO), Err(PushError::Full), "without a place");
        for _ in 0..4 {
            completions.push(&outcome(0)).expect("its places were reserved");
        }
        assert_eq!(event(&mut completions), None);
        assert!(!completions.publish(&AtomicU64::new(0)));
        client.pop().unwrap().unwrap();
        client.release();
        assert_eq!(event(&mut completions), Some(6));
    }

    #[test]
    fn neither_events_nor_batches_that_wait_keep_the_others_out() {
        for (capacity, spans, at_once) in
            [(4, 1, 1), (4, 4, 4), (8, 1, 1), (8, 4, 1), (8, 4, 8), (64, 1, 64), (64, 4, 1)]
        {
            let (cq, mut client) = ring::heap(capacity, 0);
            let asleep = AtomicU64::new(0);
            let mut completions = Completions::new(cq);
            let (mut batches, mut events) = (0, 0);
            // Whoever has a batch or an event always has another one.
            for _ in 0..400 {
                while completions.reserve().unwrap() {
                    batches += 1;
                }
                if completions.reserved > 0 {
                    (1..spans).for_each(|_| completions.push(&outcome(0)).unwrap());
                    completions.push(&outcome(4 - spans)).unwrap();
                }
                while completions.event_position().unwrap().is_some() {
                    completions.push_event(&Span::ZERO).unwrap();
                    events += 1;
                }
                assert!(!completions.publish(&asleep));
                (0..at_once).for_each(|_| _ = client.pop().unwrap());
                client.release();
            }
            let found = format!("{capacity} places, {spans} spans: {batches} batches, {events} events");
            assert!(batches > 30 && events > 30, "{found}");
        }
    }

    #[test]
    fn a_batch_does_not_wait_for_an_event_that_does_not_come_any_more() {
        let (cq, mut client) = ring::heap(4, 0);
        let mut completions = Completions::new(cq);
        assert_eq!(completions.reserve(), Ok(true));
        assert_eq!(completions.event_position(), Ok(None));
        completions.push(&outcome(3)).unwrap();
        assert!(!completions.publish(&AtomicU64::new(0)));
        client.pop().unwrap();
        client.release();
        assert_eq!((completions.reserve(), completions.reserve()), (Ok(false), Ok(true)));
    }

    #[test]
    fn an_impossible_head_is_an_error() {
        let (cq, client) = ring::heap(4, 0);
        let mut completions = Completions::new(cq);
        client.words().head().store(1, crate::sync::Ordering::Relaxed);
        assert!(completions.reserve().is_err());
    }
}
