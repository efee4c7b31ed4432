//! Values from one thread to another, in order, by the heap ring.
//!
//! The ring says which places are filled; the values stand beside it, each in a place of its own behind a lock that nobody
//! ever waits for, because a place is its sender's or its receiver's and never both's.

use crate::ring::{self, Consumer, HeapWords, Producer};
use std::sync::{Arc, Mutex, PoisonError};

type Places<T> = Arc<[Mutex<Option<T>>]>;

pub(super) struct Sender<T> {
    ring: Producer<HeapWords>,
    places: Places<T>,
}

pub(super) struct Receiver<T> {
    ring: Consumer<HeapWords>,
    places: Places<T>,
}

/// Room for at least `capacity` values.
pub(super) fn channel<T>(capacity: u32) -> (Sender<T>, Receiver<T>) {
    let capacity = capacity.next_power_of_two();
    let (producer, consumer) = ring::heap(capacity, 0);
    let places: Places<T> = (0..capacity).map(|_| Mutex::new(None)).collect();
    (Sender { ring: producer, places: places.clone() }, Receiver { ring: consumer, places })
}

fn place<T>(places: &Places<T>, position: u64) -> &Mutex<Option<T>> {
    &places[position as usize & (places.len() - 1)]
}

impl<T> Sender<T> {
    /// Puts a value in; it is not seen before [`publish`](Self::publish). A value without a place is given back.
    pub fn put(&mut self, value: T) -> Result<(), T> {
        if !self.ring.free().is_ok_and(|free| free > 0) {
            return Err(value);
        }
        *place(&self.places, self.ring.position()).lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        // There is room, as was seen.
        let _ = self.ring.push(&[0; 8]);
        Ok(())
    }

    pub fn publish(&mut self) {
        self.ring.publish();
    }
}

impl<T> Receiver<T> {
    pub fn take(&mut self) -> Option<T> {
        let position = self.ring.position();
        self.ring.pop().ok()??;
        let value = place(&self.places, position).lock().unwrap_or_else(PoisonError::into_inner).take();
        self.ring.release();
        value
    }

    pub fn is_empty(&mut self) -> bool {
        self.ring.available().is_ok_and(|available| available == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_cross_in_order_and_none_is_lost_when_it_is_full() {
        let (mut sender, mut receiver) = channel::<Box<u32>>(3);
        let receiving = std::thread::spawn(move || {
            for expected in 0..10_000 {
                let value = loop {
                    match receiver.take() {
                        Some(value) => break value,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(*value, expected);
            }
            assert!(receiver.is_empty());
        });
        for i in 0..10_000 {
            let mut value = Box::new(i);
            while let Err(back) = sender.put(value) {
                value = back;
                std::thread::yield_now();
            }
            sender.publish();
        }
        receiving.join().unwrap();
    }

    #[test]
    fn what_is_not_published_is_not_seen() {
        let (mut sender, mut receiver) = channel(2);
        sender.put(1).unwrap();
        assert!(receiver.is_empty() && receiver.take().is_none());
        sender.publish();
        assert_eq!(receiver.take(), Some(1));
    }
}
