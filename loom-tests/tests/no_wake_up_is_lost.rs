//! Claim: who sleeps with something to do is woken. A lost wake-up is a deadlock of the model.

#![cfg(scatter_ring_loom)]

use loom::thread;
use loom_tests::{Bell, bell, entry, heap, killed_by, model, words};
use ring_abi::Entry;
use scatter_ring::ring::{Consumer, HeapWords, Producer, PushError, Sleeper, Waker};
use scatter_ring::sync::AtomicU64;

/// The next entry; sleeps while there is none.
fn next(consumer: &mut Consumer<HeapWords>, sleeper: &mut Sleeper, word: &AtomicU64, bell: &Bell) -> Entry {
    loop {
        if let Some(entry) = consumer.pop().unwrap() {
            consumer.release();
            return entry;
        }
        sleeper.prepare(word);
        if consumer.available().unwrap() == 0 {
            bell.sleep();
        }
        sleeper.awake(word);
    }
}

fn send(producer: &mut Producer<HeapWords>, entry: &Entry, waker: &mut Waker, word: &AtomicU64, bell: &Bell) {
    producer.push(entry).unwrap();
    producer.publish();
    if waker.must_wake(word) {
        bell.ring();
    }
}

/// The engine sleeps on a submission ring; two submissions, so that it may sleep twice.
fn engine_sleeps() {
    model(None, 50_000, || {
        let (mut producer, mut consumer) = heap(2, u64::MAX);
        let (word, bell) = (words::<1>(), bell());
        let (client_word, client_bell) = (word.clone(), bell.clone());
        let client = thread::spawn(move || {
            let mut waker = Waker::default();
            send(&mut producer, &entry(0), &mut waker, &client_word[0], &client_bell);
            send(&mut producer, &entry(1), &mut waker, &client_word[0], &client_bell);
        });
        let mut sleeper = Sleeper::default();
        assert_eq!(next(&mut consumer, &mut sleeper, &word[0], &bell), entry(0));
        assert_eq!(next(&mut consumer, &mut sleeper, &word[0], &bell), entry(1));
        client.join().unwrap();
    });
}

/// There and back: the engine sleeps on the submission ring, the client on the completion ring.
fn both_sleep() {
    model(None, 2_000, || {
        let (mut submit, mut submitted) = heap(2, u64::MAX);
        let (mut complete, mut completed) = heap(2, u64::MAX);
        let (words, engine_bell, client_bell) = (words::<2>(), bell(), bell());
        let others = (words.clone(), engine_bell.clone(), client_bell.clone());
        let engine = thread::spawn(move || {
            let (words, engine_bell, client_bell) = others;
            let submission = next(&mut submitted, &mut Sleeper::default(), &words[0], &engine_bell);
            send(&mut complete, &submission, &mut Waker::default(), &words[1], &client_bell);
        });
        send(&mut submit, &entry(0), &mut Waker::default(), &words[0], &engine_bell);
        assert_eq!(next(&mut completed, &mut Sleeper::default(), &words[1], &client_bell), entry(0));
        engine.join().unwrap();
    });
}

/// A producer sleeps on a full ring; the consumer wakes it after a release.
fn full_ring() {
    model(None, 60, || {
        let (mut producer, mut consumer) = heap(1, u64::MAX);
        producer.push(&entry(0)).unwrap();
        producer.publish();
        let (word, bell) = (words::<1>(), bell());
        let (consumer_word, consumer_bell) = (word.clone(), bell.clone());
        let reader = thread::spawn(move || {
            assert_eq!(consumer.pop().unwrap(), Some(entry(0)));
            consumer.release();
            if Waker::default().must_wake(&consumer_word[0]) {
                consumer_bell.ring();
            }
        });
        let mut sleeper = Sleeper::default();
        while producer.push(&entry(1)) == Err(PushError::Full) {
            sleeper.prepare(&word[0]);
            if producer.free().unwrap() == 0 {
                bell.sleep();
            }
            sleeper.awake(&word[0]);
        }
        reader.join().unwrap();
    });
}

/// The owner of two rings announces on both and fences once; a client on each, both with the owner's bell.
fn two_rings() {
    // Three threads: without a bound it does not end. With 2 the mutants already die.
    model(Some(3), 15_000, || {
        let (words, bell) = (words::<2>(), bell());
        let mut consumers = Vec::new();
        for side in 0..2 {
            let (mut producer, consumer) = heap(1, u64::MAX);
            consumers.push(consumer);
            let (words, bell) = (words.clone(), bell.clone());
            thread::spawn(move || {
                send(&mut producer, &entry(side), &mut Waker::default(), &words[side as usize], &bell);
            });
        }
        let mut sleeper = Sleeper::default();
        let mut arrived = [None; 2];
        loop {
            for (consumer, place) in consumers.iter_mut().zip(&mut arrived) {
                if let Some(entry) = consumer.pop().unwrap() {
                    assert_eq!(place.replace(entry), None);
                    consumer.release();
                }
            }
            if arrived.iter().all(Option::is_some) {
                break;
            }
            words.iter().for_each(|word| sleeper.announce(word));
            Sleeper::announced();
            if consumers.iter_mut().all(|consumer| consumer.available().unwrap() == 0) {
                bell.sleep();
            }
            words.iter().for_each(|word| sleeper.awake(word));
        }
        assert_eq!(arrived, [Some(entry(0)), Some(entry(1))]);
    });
}

#[test]
fn an_engine_that_sleeps_on_submissions_is_woken() {
    engine_sleeps();
}

#[test]
fn an_engine_and_a_client_that_wait_for_each_other_are_woken() {
    both_sleep();
}

#[test]
fn a_producer_that_sleeps_on_a_full_ring_is_woken() {
    full_ring();
}

#[test]
fn the_owner_of_two_rings_is_woken_by_either() {
    two_rings();
}

#[test]
fn a_waker_without_its_fence_loses_a_wake_up() {
    killed_by("W1", "deadlock", engine_sleeps);
    killed_by("W1", "deadlock", both_sleep);
    killed_by("W1", "deadlock", full_ring);
    killed_by("W1", "deadlock", two_rings);
}

#[test]
fn a_sleeper_without_its_fence_loses_a_wake_up() {
    killed_by("W2", "deadlock", engine_sleeps);
    killed_by("W2", "deadlock", both_sleep);
    killed_by("W2", "deadlock", full_ring);
    killed_by("W2", "deadlock", two_rings);
}
