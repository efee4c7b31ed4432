//! Claim: who sees a stop sees everything that was published before it, and a stop wakes a sleeper.

#![cfg(scatter_ring_loom)]

use loom::thread;
use loom_tests::{bell, entry, heap, killed_by, model, words};
use ring_abi::Status;
use scatter_ring::ring::{Sleeper, Waker, stop, stop_seen};
use scatter_ring::sync::spin_loop;

/// Two entries, then the stop. The other side drains the ring once more after it saw the stop.
fn against_push() {
    model(None, 200, || {
        let (mut producer, mut consumer) = heap(2, u64::MAX);
        let word = words::<1>();
        let stop_word = word.clone();
        let stopping = thread::spawn(move || {
            for n in 0..2 {
                producer.push(&entry(n)).unwrap();
                producer.publish();
            }
            stop(&stop_word[0], Status::BAD_RING);
        });
        let mut arrived = 0;
        loop {
            let reason = stop_seen(&word[0]);
            while let Some(next) = consumer.pop().unwrap() {
                assert_eq!(next, entry(arrived));
                arrived += 1;
                consumer.release();
            }
            match reason {
                Some(reason) => break assert_eq!(reason, Status::BAD_RING),
                None => spin_loop(),
            }
        }
        assert_eq!(arrived, 2, "published before the stop, but not seen after it");
        stopping.join().unwrap();
    });
}

/// The stop comes while the other side goes to sleep on an empty ring.
fn against_sleep() {
    model(None, 60, || {
        let (words, bell) = (words::<2>(), bell());
        let (stopping_words, stopping_bell) = (words.clone(), bell.clone());
        let stopping = thread::spawn(move || {
            let [stop_word, sleep_word] = &**stopping_words;
            stop(stop_word, Status::STOPPING);
            if Waker::default().must_wake(sleep_word) {
                stopping_bell.ring();
            }
        });
        let [stop_word, sleep_word] = &**words;
        let mut sleeper = Sleeper::default();
        while stop_seen(stop_word).is_none() {
            sleeper.prepare(sleep_word);
            if stop_seen(stop_word).is_none() {
                bell.sleep();
            }
            sleeper.awake(sleep_word);
        }
        assert_eq!(stop_seen(stop_word), Some(Status::STOPPING));
        stopping.join().unwrap();
    });
}

#[test]
fn nothing_published_before_a_stop_is_missed() {
    against_push();
}

#[test]
fn a_stop_wakes_a_sleeper() {
    against_sleep();
}

#[test]
fn a_relaxed_store_of_the_stop_word_is_seen() {
    killed_by("S1", "published before the stop", against_push);
}

#[test]
fn a_relaxed_load_of_the_stop_word_is_seen() {
    killed_by("S2", "published before the stop", against_push);
}

#[test]
fn a_stop_without_a_fence_loses_a_wake_up() {
    killed_by("W1", "deadlock", against_sleep);
    killed_by("W2", "deadlock", against_sleep);
}
