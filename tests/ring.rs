//! The ring as a library user and a hostile neighbour see it. The interleavings are explored in `loom-tests`.

use proptest::prelude::*;
use ring_abi::Entry;
use scatter_ring::ring::{self, BadPosition, Consumer, Producer, PushError, Sleeper, Waker, Words};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Entries of the long runs.
const MANY: u64 = if cfg!(miri) {
    500
} else if cfg!(debug_assertions) {
    20_000
} else {
    1_000_000
};

/// Start positions just below each width at which a narrower counter would wrap.
const STARTS: [u64; 5] =
    [u64::MAX - 1000, u32::MAX as u64 - 1000, i32::MAX as u64 - 1000, i64::MAX as u64 - 1000, u16::MAX as u64 - 1000];

/// An entry that depends on its position in every word.
fn entry(position: u64) -> Entry {
    core::array::from_fn(|i| (position ^ (i as u64) << 56).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// Lets the other thread go on: always on a machine with few cores, and often enough under Miri.
fn pause(spins: &mut u32) {
    *spins += 1;
    if spins.is_multiple_of(64) || cfg!(miri) {
        thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// Words that a test can overwrite and that count how often each position's slot was asked for.
#[derive(Clone)]
struct Watched(Arc<Shared>);

struct Shared {
    head: AtomicU64,
    tail: AtomicU64,
    slots: Vec<[AtomicU64; 8]>,
    /// The position whose fetches `fetched[0]` counts.
    start: u64,
    fetched: Vec<AtomicU32>,
}

impl Watched {
    fn new(capacity: u32, start: u64, watched: usize) -> Watched {
        Watched(Arc::new(Shared {
            head: AtomicU64::new(start),
            tail: AtomicU64::new(start),
            slots: (0..capacity).map(|_| Default::default()).collect(),
            start,
            fetched: (0..watched).map(|_| AtomicU32::new(0)).collect(),
        }))
    }

    fn fetches(&self) -> Vec<u32> {
        self.0.fetched.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

impl Words for Watched {
    fn capacity(&self) -> u32 {
        self.0.slots.len() as u32
    }

    fn head(&self) -> &AtomicU64 {
        &self.0.head
    }

    fn tail(&self) -> &AtomicU64 {
        &self.0.tail
    }

    fn slot(&self, position: u64) -> &[AtomicU64; 8] {
        let nth = position.wrapping_sub(self.0.start) as usize;
        if let Some(count) = self.0.fetched.get(nth) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        &self.0.slots[position as usize % self.0.slots.len()]
    }
}

/// Positions without a wrap, as the naive oracle counts them: the ring starts in the middle of what a u128 can count.
const MIDDLE: u128 = 1 << 100;

/// The position in `least ..= most` that reads as `seen`, if there is one.
fn oracle(seen: u64, least: u128, most: u128) -> Option<u128> {
    (least..=most).find(|position| *position as u64 == seen)
}

/// Anything, but mostly close to where the ring is.
fn near() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => (0u64..40).prop_map(|n| n.wrapping_sub(20)),
        1 => prop::sample::select(vec![1u64 << 16, 1 << 31, 1 << 32, 1 << 63, (1 << 32) - 1, u64::MAX - 1]),
        1 => any::<u64>(),
    ]
}

fn starts() -> impl Strategy<Value = u64> {
    prop_oneof![
        prop::sample::select(vec![0, 1 << 16, 1 << 31, 1 << 32, 1 << 63])
            .prop_flat_map(|edge: u64| { (0u64..20).prop_map(move |n| edge.wrapping_sub(n)) }),
        any::<u64>(),
    ]
}

fn config() -> ProptestConfig {
    let cases = if cfg!(miri) {
        4
    } else if cfg!(debug_assertions) {
        1_000
    } else {
        20_000
    };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// R3, R4. Every step writes a tail, believable or not, and takes up to `pops` entries.
    #[test]
    fn a_tail_is_taken_exactly_if_it_is_possible_and_nothing_beyond_the_capacity_is_popped(
        start in starts(),
        log_capacity in 0u32..4,
        steps in prop::collection::vec((near(), 0usize..12, any::<bool>()), 1..12),
    ) {
        let words = Watched::new(1 << log_capacity, start, 0);
        let capacity = u128::from(words.capacity());
        let mut consumer = Consumer::new(words.clone(), start);
        let mut released = MIDDLE + u128::from(start);
        let (mut head, mut tail) = (released, released);
        for (offset, pops, release) in steps {
            let seen = (tail as u64).wrapping_add(offset);
            words.0.tail.store(seen, Ordering::Relaxed);
            match oracle(seen, tail, released + capacity) {
                Some(position) => {
                    tail = position;
                    prop_assert_eq!(consumer.available(), Ok((tail - head) as u32));
                }
                None => {
                    let error = consumer.available().unwrap_err();
                    prop_assert_eq!((error.which, error.seen, error.least), ("tail", seen, tail as u64));
                }
            }
            for _ in 0..pops {
                prop_assert_eq!(consumer.position(), head as u64);
                prop_assert_eq!(consumer.known(), (tail - head) as u32);
                match consumer.pop() {
                    Ok(Some(_)) => head += 1,
                    Ok(None) => prop_assert_eq!(head, tail),
                    // Only once the entries that were seen before the bad tail are used up.
                    Err(_) => prop_assert!(head == tail && oracle(seen, tail, released + capacity).is_none()),
                }
                prop_assert!(head <= tail && tail - released <= capacity);
            }
            if release {
                consumer.release();
                released = head;
            }
            prop_assert_eq!(words.0.head.load(Ordering::Relaxed), released as u64);
        }
    }

    /// R3, R4, the other side.
    #[test]
    fn a_head_is_taken_exactly_if_it_is_possible_and_nothing_beyond_the_capacity_is_pushed(
        start in starts(),
        log_capacity in 0u32..4,
        steps in prop::collection::vec((near(), 0usize..12, any::<bool>()), 1..12),
    ) {
        let words = Watched::new(1 << log_capacity, start, 0);
        let capacity = u128::from(words.capacity());
        let mut producer = Producer::new(words.clone(), start);
        let mut published = MIDDLE + u128::from(start);
        let (mut head, mut tail) = (published, published);
        for (offset, pushes, publish) in steps {
            let seen = (head as u64).wrapping_add(offset);
            words.0.head.store(seen, Ordering::Relaxed);
            let possible = oracle(seen, head, published);
            match possible {
                Some(position) => {
                    head = position;
                    prop_assert_eq!(producer.free(), Ok((capacity - (tail - head)) as u32));
                }
                None => {
                    let error = producer.free().unwrap_err();
                    prop_assert_eq!((error.which, error.seen, error.least), ("head", seen, head as u64));
                }
            }
            for _ in 0..pushes {
                prop_assert_eq!(producer.position(), tail as u64);
                let full = tail - head == capacity;
                match producer.push(&entry(tail as u64)) {
                    Ok(()) => {
                        prop_assert!(!full);
                        tail += 1;
                    }
                    Err(PushError::Full) => prop_assert!(full && possible.is_some()),
                    Err(PushError::BadPosition(_)) => prop_assert!(full && possible.is_none()),
                }
            }
            if publish {
                producer.publish();
                published = tail;
            } else {
                prop_assert_eq!(u128::from(producer.take_back()), tail - published);
                tail = published;
            }
            prop_assert_eq!(words.0.tail.load(Ordering::Relaxed), published as u64);
            prop_assert_eq!(producer.published(), published as u64);
        }
    }
}

proptest! {
    #![proptest_config(config())]

    /// With whole entries offered, some left over, and everything in between.
    #[test]
    fn many_at_once_is_the_same_as_one_by_one(
        start in starts(),
        log_capacity in 0u32..4,
        steps in prop::collection::vec((0u64..12, 0u32..12, any::<bool>()), 1..12),
    ) {
        let (mut many_in, mut many_out) = ring::heap(1 << log_capacity, start);
        let (mut single_in, mut single_out) = ring::heap(1 << log_capacity, start);
        let mut next = 0;
        for (pushes, pops, flush) in steps {
            let mut offered = (next..next + pushes).map(entry);
            // Once more, since the first may have used up only what was known to be free.
            let pushed = many_in.push_many(&mut offered).unwrap() + many_in.push_many(&mut offered).unwrap();
            let singles = (next..next + pushes).take_while(|n| single_in.push(&entry(*n)).is_ok()).count();
            prop_assert_eq!(pushed as usize, singles);
            prop_assert_eq!(offered.count() as u64, pushes - u64::from(pushed), "taken out of the iterator and lost");
            next += u64::from(pushed);
            many_in.publish();
            single_in.publish();
            let (mut popped, mut expected) = (Vec::new(), Vec::new());
            let first = many_out.pop_many(pops, |entry| popped.push(entry)).unwrap();
            let second = many_out.pop_many(pops - first, |entry| popped.push(entry)).unwrap();
            prop_assert_eq!(popped.len(), (first + second) as usize);
            (0..pops).for_each(|_| expected.extend(single_out.pop().unwrap()));
            prop_assert_eq!(popped, expected);
            prop_assert_eq!(many_out.position(), single_out.position());
            if flush {
                many_out.release();
                single_out.release();
            }
        }
    }
}

#[test]
fn many_at_once_stops_at_an_impossible_position() {
    let words = Watched::new(4, 0, 8);
    words.0.tail.store(5, Ordering::Relaxed);
    let mut consumer = Consumer::new(words.clone(), 0);
    assert!(consumer.pop_many(9, |_| panic!("nothing can be believed")).is_err());
    words.0.head.store(1, Ordering::Relaxed);
    let mut producer = Producer::new(words.clone(), 0);
    assert_eq!(producer.push_many([[1; 8]; 9]), Ok(4));
    assert!(producer.push_many([[1; 8]; 9]).is_err());
    assert_eq!(words.fetches(), [1, 1, 1, 1, 0, 0, 0, 0]);
}

#[test]
fn an_entry_is_not_fetched_again_after_a_panic() {
    let words = Watched::new(4, 0, 4);
    words.0.tail.store(3, Ordering::Relaxed);
    let mut consumer = Consumer::new(words.clone(), 0);
    let popped =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| consumer.pop_many(3, |_| panic!("expected"))));
    assert!(popped.is_err());
    assert_eq!(consumer.pop_many(3, |_| ()), Ok(0));
    assert_eq!(words.fetches(), [1, 0, 0, 0]);
}

#[test]
fn every_tail_of_a_small_ring_is_judged_right_on_both_sides_of_the_wrap() {
    for ahead in -70_000i64..70_000 {
        if cfg!(miri) && ahead.abs() > 8 {
            continue;
        }
        let words = Watched::new(4, u64::MAX, 0);
        let seen = u64::MAX.wrapping_add(ahead as u64);
        words.0.tail.store(seen, Ordering::Relaxed);
        let judged = Consumer::new(words, u64::MAX).available();
        let bad = BadPosition { which: "tail", seen, least: u64::MAX, range: 4 };
        assert_eq!(judged, if (0..=4).contains(&ahead) { Ok(ahead as u32) } else { Err(bad) });
    }
}

#[test]
fn an_impossible_position_says_what_was_seen_and_what_could_be() {
    let words = Watched::new(4, 7, 0);
    words.0.tail.store(12, Ordering::Relaxed);
    let error = Consumer::new(words, 7).pop().unwrap_err();
    assert_eq!(error.to_string(), "impossible tail 12: must lie from 7 to 7 + 4");
}

/// R5.
#[test]
fn entries_arrive_across_every_wrap() {
    for start in STARTS {
        let (mut producer, mut consumer) = ring::heap(64, start);
        let (mut pushed, mut popped) = (0, 0);
        for round in 0.. {
            if popped >= MANY {
                break;
            }
            // Batches of 1 to 64, so that they lie anywhere in the ring.
            for _ in 0..=round % 64 {
                match producer.push(&entry(start.wrapping_add(pushed))) {
                    Ok(()) => pushed += 1,
                    Err(error) => {
                        assert_eq!((error, pushed - popped), (PushError::Full, 64));
                        break;
                    }
                }
            }
            producer.publish();
            assert_eq!(producer.published(), start.wrapping_add(pushed));
            for _ in 0..=(round * 7 + 3) % 61 {
                match consumer.pop().unwrap() {
                    Some(arrived) => {
                        assert_eq!(arrived, entry(start.wrapping_add(popped)));
                        popped += 1;
                    }
                    None => assert_eq!(popped, pushed),
                }
            }
            consumer.release();
        }
    }
}

/// R5: for each way in which a full ring can lie across the wrap.
#[test]
fn a_ring_is_full_with_exactly_its_capacity_wherever_the_wrap_is() {
    for edge in [0, 1u64 << 16, 1 << 31, 1 << 32, 1 << 63] {
        for before in 0..=8 {
            let start = edge.wrapping_sub(before);
            let (mut producer, mut consumer) = ring::heap(8, start);
            for lap in 0..3u64 {
                for n in 0..8 {
                    assert_eq!(producer.free().unwrap(), 8 - n);
                    producer.push(&entry(lap * 8 + u64::from(n))).unwrap();
                }
                assert_eq!(producer.push(&entry(99)), Err(PushError::Full));
                producer.publish();
                assert_eq!(consumer.available().unwrap(), 8);
                for n in 0..8 {
                    assert_eq!(consumer.pop().unwrap(), Some(entry(lap * 8 + n)));
                }
                assert_eq!(consumer.pop().unwrap(), None);
                assert_eq!(producer.push(&entry(99)), Err(PushError::Full), "popped, but not released");
                consumer.release();
                assert_eq!(producer.position(), start.wrapping_add((lap + 1) * 8));
                assert_eq!(consumer.position(), producer.position());
            }
        }
    }
}

/// R1: the ring asks for a slot once and copies it; nothing makes it look again.
#[test]
fn each_published_entry_is_fetched_once_and_never_again() {
    let many = MANY.min(20_000);
    let start = u64::MAX - many / 2;
    let words = Watched::new(8, start, many as usize + 8);
    let mut consumer = Consumer::new(words.clone(), start);
    // The producer is played by the test, so that only the consumer's fetches are counted.
    let mut published = 0;
    let mut popped = 0;
    while popped < many {
        while published < (popped + 8).min(many) {
            let position = start.wrapping_add(published);
            for (word, value) in words.0.slots[position as usize % 8].iter().zip(entry(position)) {
                word.store(value, Ordering::Relaxed);
            }
            published += 1;
            words.0.tail.store(start.wrapping_add(published), Ordering::Release);
            consumer.available().unwrap();
        }
        let mut copies = Vec::new();
        if popped % 3 == 0 {
            consumer.pop_many(3, |copy| copies.push(copy)).unwrap();
        } else {
            (0..1 + popped % 8).for_each(|_| copies.extend(consumer.pop().unwrap()));
        }
        for copy in copies {
            let position = start.wrapping_add(popped);
            // What a hostile producer writes after the copy changes nothing.
            words.0.slots[position as usize % 8].iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
            assert_eq!(copy, entry(position));
            popped += 1;
        }
        consumer.release();
    }
    assert_eq!(consumer.pop().unwrap(), None);
    let (taken, beyond) = words.fetches().into_iter().enumerate().partition::<Vec<_>, _>(|(n, _)| *n < many as usize);
    assert!(taken.iter().all(|(_, count)| *count == 1));
    assert!(beyond.iter().all(|(_, count)| *count == 0), "a position was fetched that was never published");
}

#[test]
fn what_was_taken_back_is_never_seen() {
    let (mut producer, mut consumer) = ring::heap(4, u64::MAX - 1);
    producer.push(&entry(0)).unwrap();
    producer.publish();
    for n in 1..4 {
        producer.push(&entry(n)).unwrap();
    }
    assert_eq!(producer.push(&entry(4)), Err(PushError::Full));
    assert_eq!(producer.take_back(), 3);
    assert_eq!(producer.take_back(), 0);
    assert_eq!(producer.free().unwrap(), 3);
    producer.publish();
    assert_eq!(consumer.available().unwrap(), 1);
    producer.push(&entry(5)).unwrap();
    producer.publish();
    assert_eq!(consumer.pop().unwrap(), Some(entry(0)));
    assert_eq!(consumer.pop().unwrap(), Some(entry(5)));
    assert_eq!(consumer.pop().unwrap(), None);
}

#[test]
fn publishing_and_releasing_nothing_change_nothing() {
    let words = Watched::new(4, 10, 0);
    let mut producer = Producer::new(words.clone(), 10);
    let mut consumer = Consumer::new(words.clone(), 10);
    // Had they stored, these values would be gone.
    words.0.tail.store(77, Ordering::Relaxed);
    words.0.head.store(88, Ordering::Relaxed);
    producer.publish();
    consumer.release();
    assert_eq!(words.0.tail.load(Ordering::Relaxed), 77);
    assert_eq!(words.0.head.load(Ordering::Relaxed), 88);
}

#[test]
fn a_pushed_entry_is_not_seen_before_it_is_published() {
    let (mut producer, mut consumer) = ring::heap(2, 0);
    producer.push(&entry(0)).unwrap();
    assert_eq!(consumer.available().unwrap(), 0);
    assert_eq!(consumer.pop().unwrap(), None);
    producer.publish();
    assert_eq!(consumer.known(), 0);
    assert_eq!(consumer.pop().unwrap(), Some(entry(0)));
}

#[test]
fn a_ring_of_one_slot_alternates() {
    let (mut producer, mut consumer) = ring::heap(1, u64::MAX);
    for n in 0..4 {
        producer.push(&entry(n)).unwrap();
        assert_eq!(producer.push(&entry(n)), Err(PushError::Full));
        producer.publish();
        assert_eq!(consumer.pop().unwrap(), Some(entry(n)));
        consumer.release();
    }
}

#[test]
#[should_panic(expected = "capacity 6 is not a power of two")]
fn a_capacity_that_is_no_power_of_two_is_refused() {
    let _ = ring::heap(6, 0);
}

#[test]
fn two_threads_agree_on_a_checksum() {
    let many = if cfg!(any(miri, debug_assertions)) { MANY } else { 100_000_000 };
    let start = u64::MAX - many / 2;
    let (mut producer, mut consumer) = ring::heap(32, start);
    let add = |sum: u64, entry: &Entry| entry.iter().fold(sum, |sum, word| sum.rotate_left(5).wrapping_add(*word));
    let sender = thread::spawn(move || {
        let (mut sum, mut spins) = (0, 0);
        for n in 0..many {
            let next = entry(n);
            while let Err(error) = producer.push(&next) {
                assert_eq!(error, PushError::Full);
                producer.publish();
                pause(&mut spins);
            }
            sum = add(sum, &next);
            if n % 5 == 0 {
                producer.publish();
            }
        }
        producer.publish();
        sum
    });
    let (mut sum, mut popped, mut spins) = (0, 0, 0);
    while popped < many {
        match consumer.pop().unwrap() {
            Some(next) => {
                sum = add(sum, &next);
                popped += 1;
                if popped % 3 == 0 {
                    consumer.release();
                }
            }
            None => {
                consumer.release();
                pause(&mut spins);
            }
        }
    }
    assert_eq!(sum, sender.join().unwrap());
}

/// The next entry. Sleeps at once when there is none.
fn next<W: Words>(consumer: &mut Consumer<W>, sleeper: &mut Sleeper, word: &AtomicU64, sleeps: &AtomicU64) -> Entry {
    loop {
        if let Some(entry) = consumer.pop().unwrap() {
            consumer.release();
            return entry;
        }
        sleeper.prepare(word);
        sleeps.fetch_add(1, Ordering::Relaxed);
        if consumer.available().unwrap() == 0 {
            let since = Instant::now();
            thread::park_timeout(Duration::from_secs(60));
            assert!(since.elapsed() < Duration::from_secs(60), "lost wake-up");
        }
        sleeper.awake(word);
    }
}

/// R7: both sides sleep whenever they have nothing to do.
#[test]
fn no_wake_up_is_lost_in_many_sleeps() {
    let (mut submit, mut submitted) = ring::heap(4, u64::MAX - 100);
    let (mut complete, mut completed) = ring::heap(4, u32::MAX as u64 - 100);
    // The engine's sleep word, the client's, and the sleeps of both.
    let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)]);
    let (engine_words, client) = (words.clone(), thread::current());
    let engine = thread::spawn(move || {
        let [engine_word, client_word, sleeps] = &*engine_words;
        let (mut sleeper, mut waker) = (Sleeper::default(), Waker::default());
        loop {
            let submission = next(&mut submitted, &mut sleeper, engine_word, sleeps);
            complete.push(&submission).unwrap();
            complete.publish();
            if waker.must_wake(client_word) {
                client.unpark();
            }
            if submission == [0; 8] {
                break;
            }
        }
    });
    let [engine_word, client_word, sleeps] = &*words;
    let (mut sleeper, mut waker) = (Sleeper::default(), Waker::default());
    let mut cycle = 1;
    while cycle != 0 {
        cycle = if sleeps.load(Ordering::Relaxed) < MANY { cycle + 1 } else { 0 };
        submit.push(&[cycle; 8]).unwrap();
        submit.publish();
        if waker.must_wake(engine_word) {
            engine.thread().unpark();
        }
        // So that the answer sometimes comes while the sleep is announced.
        for _ in 0..cycle % 64 * 8 {
            std::hint::spin_loop();
        }
        assert_eq!(next(&mut completed, &mut sleeper, client_word, sleeps), [cycle; 8]);
    }
    engine.join().unwrap();
}
