//! Claim: no side ever sees more entries, or more free slots, than there are, however its view lags.

#![cfg(scatter_ring_loom)]

use loom::thread;
use loom_tests::{entry, model, traced};
use scatter_ring::ring::PushError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Each side looks a few times without waiting for the other. The truth is counted beside the ring, in words that loom
/// does not know: they order nothing.
#[test]
fn neither_side_believes_more_than_is_true() {
    model(None, 50_000, || {
        let (mut producer, mut consumer) = traced(2, u64::MAX);
        let published = Arc::new(AtomicU64::new(0));
        let released = Arc::new(AtomicU64::new(0));
        let truth = (published.clone(), released.clone());
        let sender = thread::spawn(move || {
            let (published, released) = truth;
            let mut pushed = 0;
            for _ in 0..3 {
                let free = u64::from(producer.free().unwrap());
                assert!(free <= 2 + released.load(Ordering::Relaxed) - pushed, "more free than was released");
                match producer.push(&entry(pushed)) {
                    Ok(()) => {
                        pushed += 1;
                        published.store(pushed, Ordering::Relaxed);
                        producer.publish();
                    }
                    Err(error) => {
                        assert_eq!(error, PushError::Full);
                        assert!(pushed >= 2, "full with a slot that was never used");
                    }
                }
            }
            pushed
        });
        let mut popped = 0;
        for _ in 0..3 {
            let available = u64::from(consumer.available().unwrap());
            assert!(available <= published.load(Ordering::Relaxed) - popped, "more entries than were published");
            if let Some(arrived) = consumer.pop().unwrap() {
                assert_eq!(arrived, entry(popped));
                popped += 1;
                released.store(popped, Ordering::Relaxed);
                consumer.release();
            }
        }
        let pushed = sender.join().unwrap();
        assert!(popped <= pushed);
        // After the join nothing lags any more.
        assert_eq!(u64::from(consumer.available().unwrap()), pushed - popped);
    });
}

/// Two entries in two slots: the third push is refused until a release is seen, and succeeds then.
#[test]
fn a_full_ring_takes_an_entry_once_a_slot_is_released() {
    model(None, 4, || {
        let (mut producer, mut consumer) = traced(2, u64::MAX - 1);
        producer.push(&entry(0)).unwrap();
        producer.push(&entry(1)).unwrap();
        producer.publish();
        let sender = thread::spawn(move || {
            let refused = producer.push(&entry(2)) == Err(PushError::Full);
            producer.publish();
            (producer, refused)
        });
        assert_eq!(consumer.pop().unwrap(), Some(entry(0)));
        consumer.release();
        let (mut producer, refused) = sender.join().unwrap();
        if refused {
            producer.push(&entry(2)).unwrap();
            producer.publish();
        }
        assert_eq!(producer.push(&entry(3)), Err(PushError::Full));
        assert_eq!(consumer.pop().unwrap(), Some(entry(1)));
        assert_eq!(consumer.pop().unwrap(), Some(entry(2)));
        assert_eq!(consumer.pop().unwrap(), None);
    });
}
