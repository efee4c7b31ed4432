//! Claim: an entry is read after it was written, and its slot is written again after it was read.

#![cfg(scatter_ring_loom)]

use loom::thread;
use loom_tests::{entry, killed_by, model, traced};
use scatter_ring::sync::spin_loop;

/// Three entries through one slot: each hand-over goes both ways.
fn one_slot() {
    model(None, 10_000, || {
        let (mut producer, mut consumer) = traced(1, u64::MAX);
        let sender = thread::spawn(move || {
            for n in 0..3 {
                while producer.push(&entry(n)).is_err() {
                    spin_loop();
                }
                producer.publish();
            }
        });
        for n in 0..3 {
            let arrived = loop {
                match consumer.pop().unwrap() {
                    Some(arrived) => break arrived,
                    None => spin_loop(),
                }
            };
            assert_eq!(arrived, entry(n));
            consumer.release();
        }
        sender.join().unwrap();
    });
}

#[test]
fn every_access_of_a_slot_is_ordered() {
    one_slot();
}

#[test]
fn a_relaxed_store_of_the_tail_is_a_race() {
    killed_by("T1", "Causality violation", one_slot);
}

#[test]
fn a_relaxed_load_of_the_tail_is_a_race() {
    killed_by("T2", "Causality violation", one_slot);
}

#[test]
fn a_relaxed_store_of_the_head_is_a_race() {
    killed_by("H1", "Causality violation", one_slot);
}

#[test]
fn a_relaxed_load_of_the_head_is_a_race() {
    killed_by("H2", "Causality violation", one_slot);
}
