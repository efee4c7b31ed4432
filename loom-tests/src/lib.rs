//! What the models share. Everything here exists only under `--cfg scatter_ring_loom`; see `ci/loom.sh`.
//!
//! loom runs a model once for every interleaving and, for every load, once for every value that the memory model lets it
//! see. Three of its limits shape the models:
//!
//! - It runs the threads one at a time, so a load never sees a store that comes later in that run. That a slot is read
//!   before it is overwritten (H1, H2) therefore cannot show as a wrong value; `traced` states it as a data race.
//! - It treats SeqCst accesses as AcqRel. SeqCst fences are right, and the ring uses nothing else.
//! - It forgets what a thread has loaded when another thread loads the same word before it stores. No model depends on
//!   a thread that sees one word of the other side twice without an edge in between.

#![cfg(scatter_ring_loom)]

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::{Condvar, Mutex};
use ring_abi::Entry;
use scatter_ring::ring::{self, Consumer, HeapWords, Producer, Words};
use scatter_ring::sync::{Arc, AtomicU64, with_mutant};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64 as StdAtomicU64, Ordering};

/// Explores `body`, with at most `preemptions` switches away from a thread that could have gone on (`None`: without a
/// bound), and requires that there were at least `least` executions, so that a model that has become trivial is seen.
///
/// # Panics
/// If an execution panics or deadlocks, or if there were too few.
pub fn model(preemptions: Option<usize>, least: u64, body: impl Fn() + Send + Sync + 'static) {
    let executions = std::sync::Arc::new(StdAtomicU64::new(0));
    let counter = executions.clone();
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 10_000;
    builder.check(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        body();
    });
    let executions = executions.load(Ordering::Relaxed);
    println!("{executions} executions");
    assert!(executions >= least, "only {executions} executions, {least} expected: has the model become trivial?");
}

/// Requires that `model` fails, with `symptom` in its panic message, when the ordering of `label` is weakened.
///
/// # Panics
/// If the mutant survives, or dies of something else.
pub fn killed_by(label: &'static str, symptom: &str, model: fn()) {
    let Err(panic) = with_mutant(label, || catch_unwind(AssertUnwindSafe(model))) else {
        panic!("no execution showed that {label} was weakened");
    };
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("");
    assert!(text.contains(symptom), "the mutant of {label} died, but not of {symptom:?}: {text}");
}

/// The entry that the models push as the `n`-th: no word of it is a slot's initial 0, nor of another entry.
#[must_use]
pub fn entry(n: u64) -> Entry {
    [n + 1; 8]
}

/// Something of loom's that is not dropped by a panic: after a deadlock loom cannot run the destructors of its own
/// types any more, a second panic would abort the process, and a mutant could not be caught.
#[derive(Debug)]
pub struct Kept<T>(ManuallyDrop<T>);

/// Keeps `value` from being dropped by a panic.
pub fn kept<T>(value: T) -> Kept<T> {
    Kept(ManuallyDrop::new(value))
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Kept<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Clone> Clone for Kept<T> {
    fn clone(&self) -> Self {
        kept(T::clone(self))
    }
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.0) }
        }
    }
}

/// What a sleeper really sleeps on (an eventfd, a socket): a ring that comes first is kept, several count as one.
///
/// Not loom's `park`: an `unpark` would also end the wait for another thread's end.
#[derive(Debug)]
pub struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

/// A bell for two threads.
#[must_use]
pub fn bell() -> Kept<Arc<Bell>> {
    kept(Arc::new(Bell { rung: Mutex::new(false), changed: Condvar::new() }))
}

impl Bell {
    /// Wakes the sleeper.
    pub fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    /// Sleeps until the bell is rung.
    pub fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// `N` words that are 0: sleep words, a stop word.
#[must_use]
pub fn words<const N: usize>() -> Kept<Arc<[AtomicU64; N]>> {
    kept(Arc::new(core::array::from_fn(|_| AtomicU64::new(0))))
}

/// [`ring::heap`].
#[must_use]
pub fn heap(capacity: u32, start: u64) -> (Kept<Producer<HeapWords>>, Kept<Consumer<HeapWords>>) {
    let (producer, consumer) = ring::heap(capacity, start);
    (kept(producer), kept(consumer))
}

/// A ring whose slots are watched by loom: each access through [`Words::slot`] is also a plain, not atomic, write (by
/// the producer) or read (by the consumer) of a cell of its own, so that two accesses without an edge between them are
/// a data race.
#[must_use]
pub fn traced(capacity: u32, start: u64) -> (Kept<Producer<Traced>>, Kept<Consumer<Traced>>) {
    let block = Arc::new(Block {
        head: AtomicU64::new(start),
        tail: AtomicU64::new(start),
        slots: (0..capacity).map(|_| core::array::from_fn(|_| AtomicU64::new(0))).collect(),
        cells: (0..capacity).map(|_| UnsafeCell::new(())).collect(),
    });
    let writer = Traced { block: block.clone(), writes: true };
    (kept(Producer::new(writer, start)), kept(Consumer::new(Traced { block, writes: false }, start)))
}

/// One side's view of a [`traced`] ring.
#[derive(Debug)]
pub struct Traced {
    block: Arc<Block>,
    writes: bool,
}

#[derive(Debug)]
struct Block {
    head: AtomicU64,
    tail: AtomicU64,
    slots: Box<[[AtomicU64; 8]]>,
    cells: Box<[UnsafeCell<()>]>,
}

impl Words for Traced {
    fn capacity(&self) -> u32 {
        self.block.slots.len() as u32
    }

    fn head(&self) -> &AtomicU64 {
        &self.block.head
    }

    fn tail(&self) -> &AtomicU64 {
        &self.block.tail
    }

    fn slot(&self, position: u64) -> &[AtomicU64; 8] {
        let index = position as usize & (self.block.slots.len() - 1);
        if self.writes {
            self.block.cells[index].with_mut(|_| ());
        } else {
            self.block.cells[index].with(|_| ());
        }
        &self.block.slots[index]
    }
}
