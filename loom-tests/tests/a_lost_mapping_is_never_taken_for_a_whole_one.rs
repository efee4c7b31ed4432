//! Claim: who has read what stands in a lost mapping's place sees that it is lost; the table that says so never mixes
//! two mappings that have had one place.

#![cfg(scatter_ring_loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use loom_tests::{kept, killed_by, model};
use scatter_ring::mappings::{Found, Mappings};
use scatter_ring::sync::{AtomicU64, Ordering, spin_loop};

/// One thread faults: it marks the mapping and puts zeroes in its place. Another one copies out of it without a fault of
/// its own, and looks after that.
fn copying() {
    model(None, 4, || {
        let table = kept(Arc::new(Mappings::<1>::new()));
        let memory = kept(Arc::new(AtomicU64::new(7)));
        let place = table.enter(4096, 10).unwrap();
        let (faulting, zeroed) = (table.clone(), memory.clone());
        let fault = thread::spawn(move || {
            faulting.lose(place);
            zeroed.store(0, Ordering::Relaxed);
        });
        let copied = memory.load(Ordering::Relaxed);
        let (lost, faults) = (table.is_lost(place), table.faults());
        assert!(copied == 7 || (lost && faults == 1), "zeroes taken for the file's bytes");
        fault.join().unwrap();
        assert!(table.is_lost(place));
    });
}

/// One place has two mappings one after the other, while a handler looks an address up.
fn looking_up(address: u64) {
    model(None, 20, move || {
        let table = kept(Arc::new(Mappings::<1>::new()));
        let mapping = table.clone();
        let maps = thread::spawn(move || {
            let place = mapping.enter(4096, 10).unwrap();
            mapping.leave(place);
            mapping.enter(8192, 5000).unwrap();
        });
        if let Some(found) = table.find(address) {
            assert_eq!(found, Found { place: 0, base: 8192, bytes: 5000 }, "a mixture of two mappings");
        }
        maps.join().unwrap();
    });
}

/// An address that the first mapping would have if it were as long as the second.
fn behind_the_first() {
    looking_up(4096 + 100);
}

fn in_the_second() {
    looking_up(8192 + 5);
}

/// Another thread's mapping gets the place of one that was lost.
fn next_in_place() {
    model(None, 4, || {
        let table = kept(Arc::new(Mappings::<1>::new()));
        let user = kept(Arc::new(UnsafeCell::new(())));
        let first = table.enter(4096, 10).unwrap();
        let (losing, first_user) = (table.clone(), user.clone());
        let loses = thread::spawn(move || {
            losing.lose(first);
            first_user.with_mut(|_| ());
            losing.leave(first);
        });
        let next = loop {
            match table.enter(8192, 10) {
                Some(next) => break next,
                None => spin_loop(),
            }
        };
        user.with_mut(|_| ());
        assert!(!table.is_lost(next), "lost before anybody used it");
        loses.join().unwrap();
    });
}

#[test]
fn zeroes_are_never_taken_for_the_files_bytes() {
    copying();
}

#[test]
fn two_mappings_of_one_place_are_not_mixed() {
    behind_the_first();
    in_the_second();
}

#[test]
fn the_next_mapping_of_a_place_is_whole() {
    next_in_place();
}

#[test]
fn a_mark_without_its_fence_is_missed() {
    killed_by("L1", "zeroes taken", copying);
    killed_by("L2", "zeroes taken", copying);
}

#[test]
fn a_relaxed_base_comes_with_another_length() {
    killed_by("M1", "a mixture", in_the_second);
    killed_by("M2", "a mixture", in_the_second);
}

#[test]
fn a_relaxed_length_comes_with_another_base() {
    killed_by("M3", "a mixture", behind_the_first);
    killed_by("M4", "a mixture", behind_the_first);
}

#[test]
fn a_relaxed_hand_over_of_a_place_is_a_race() {
    killed_by("M5", "Causality violation", next_in_place);
    killed_by("M6", "Causality violation", next_in_place);
}
