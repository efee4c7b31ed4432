//! Claim: every published entry arrives whole, once and in order, whatever wraps meanwhile.

#![cfg(scatter_ring_loom)]

use loom::thread;
use loom_tests::{entry, heap, killed_by, model};
use scatter_ring::ring::PushError;
use scatter_ring::sync::spin_loop;

/// Three entries through two slots: slot 1, slot 0, slot 1 again, at positions `u64::MAX`, 0 and 1.
fn across_the_wrap() {
    model(None, 10_000, || {
        let (mut producer, mut consumer) = heap(2, u64::MAX);
        let sender = thread::spawn(move || {
            for n in 0..3 {
                while let Err(error) = producer.push(&entry(n)) {
                    assert_eq!(error, PushError::Full);
                    spin_loop();
                }
                producer.publish();
            }
        });
        let mut expected = 0;
        while expected < 3 {
            match consumer.pop().unwrap() {
                Some(arrived) => {
                    assert_eq!(arrived, entry(expected), "stale or torn entry");
                    expected += 1;
                    consumer.release();
                }
                None => spin_loop(),
            }
        }
        sender.join().unwrap();
        assert_eq!(consumer.pop().unwrap(), None);
        assert_eq!(consumer.position(), 2);
    });
}

/// Two batches of two: published at once, released at once.
fn in_batches() {
    model(None, 300, || {
        let (mut producer, mut consumer) = heap(2, u64::MAX);
        let sender = thread::spawn(move || {
            let mut entries = (0..4).map(entry);
            for _ in 0..2 {
                let mut pushed = 0;
                while pushed < 2 {
                    match producer.push_many(entries.by_ref().take(2 - pushed)).unwrap() {
                        0 => spin_loop(),
                        n => pushed += n as usize,
                    }
                }
                producer.publish();
            }
        });
        let mut expected = 0;
        while expected < 4 {
            let check = |arrived| {
                assert_eq!(arrived, entry(expected), "stale or torn entry");
                expected += 1;
            };
            if consumer.pop_many(2, check).unwrap() == 0 {
                spin_loop();
            }
            consumer.release();
        }
        sender.join().unwrap();
        assert_eq!(consumer.available().unwrap(), 0);
    });
}

#[test]
fn one_by_one() {
    across_the_wrap();
}

#[test]
fn published_and_released_in_batches() {
    in_batches();
}

#[test]
fn a_relaxed_store_of_the_tail_is_seen() {
    killed_by("T1", "stale or torn entry", across_the_wrap);
}

#[test]
fn a_relaxed_load_of_the_tail_is_seen() {
    killed_by("T2", "stale or torn entry", across_the_wrap);
}
