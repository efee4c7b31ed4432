//! What clients are promised of the spans, whatever the order of events: counted from the log of published spans.
//!
//! - Every slot of a batch that is done is covered by exactly one span, RELEASED apart, in the order of positions.
//! - At most `SPANS_PER_BATCH` spans a batch, and exactly one if it succeeded.
//! - BATCH_DONE is on exactly one span, the last outcome span.
//! - RELEASED follows if and only if a span was HELD, once nothing of the batch is in flight any more.
//! - The completion ring does not overflow.

use ring_abi::{SPANS_PER_BATCH, Span};

use super::Model;

impl Model {
    /// Panics if what was published so far breaks a promise that is made to clients.
    pub fn assert_invariants(&self) {
        let mut attributed = 0;
        for batch in &self.batches {
            let belongs = |s: &&Span| s.first.wrapping_sub(batch.first) < batch.slots();
            let spans: Vec<&Span> = self.log.iter().filter(belongs).collect();
            attributed += spans.len();
            assert!(spans.len() <= SPANS_PER_BATCH as usize, "too many spans: {spans:#?}");

            let mut covered = 0;
            for span in spans.iter().filter(|s| !s.is_released()) {
                assert!(span.count > 0, "a span over nothing: {span:?}");
                assert_eq!(span.first, batch.first.wrapping_add(covered), "a gap or an overlap: {spans:#?}");
                covered += u64::from(span.count);
                let ends_batch = batch.last_taken && covered == batch.slots();
                assert_eq!(span.is_batch_done(), ends_batch, "BATCH_DONE is on the last one only: {spans:#?}");
                assert!(span.status().is_ok() || (span.bytes == 0 && span.route == 0), "{span:?}");
            }
            let outcomes: Vec<_> = spans.iter().filter(|s| !s.is_released()).collect();
            let is_done = outcomes.iter().any(|s| s.is_batch_done());
            if is_done {
                assert_eq!(covered, batch.slots(), "slots without an outcome: {spans:#?}");
            }
            if is_done && outcomes.iter().all(|s| s.status().is_ok()) {
                assert_eq!(outcomes.len(), 1, "a success is one span: {spans:#?}");
            }

            let held = spans.iter().any(|s| s.is_held());
            let released = spans.iter().filter(|s| s.is_released()).count();
            assert_eq!(released, usize::from(held && !batch.in_flight()), "RELEASED follows HELD: {spans:#?}");
            assert!(held || !is_done || !batch.in_flight(), "buffers in use behind an outcome that does not say so");
            for span in spans.iter().filter(|s| s.is_released()) {
                assert_eq!((span.first, span.count), (batch.first, 0));
                assert!(outcomes.iter().any(|s| s.status == span.status), "{spans:#?}");
            }
        }
        assert_eq!(attributed, self.log.len(), "a span of no batch");
        let reserved: u32 = self.batches.iter().filter(|b| !b.is_finished()).map(|b| SPANS_PER_BATCH - b.spans).sum();
        assert!(self.unreaped.len() as u32 + reserved <= self.cq_capacity, "the completion ring overflows");
        assert!(self.batches.iter().rev().skip(1).all(|b| b.last_taken), "an open batch that is not the last");
    }
}
