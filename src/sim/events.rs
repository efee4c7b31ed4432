//! What is going to happen, in order of time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Events to come. Those of the same time happen in the order in which they were added.
#[derive(Debug)]
pub struct Events<E> {
    heap: BinaryHeap<Event<E>>,
    added: u64,
}

#[derive(Debug)]
struct Event<E> {
    at_ns: u64,
    number: u64,
    what: E,
}

impl<E> Events<E> {
    pub fn new() -> Events<E> {
        Events { heap: BinaryHeap::new(), added: 0 }
    }

    pub fn add(&mut self, at_ns: u64, what: E) {
        self.added += 1;
        self.heap.push(Event { at_ns, number: self.added, what });
    }

    /// The next one, and its time.
    pub fn next(&mut self) -> Option<(u64, E)> {
        self.heap.pop().map(|event| (event.at_ns, event.what))
    }
}

impl<E> Ord for Event<E> {
    /// The heap gives its greatest: the earliest.
    fn cmp(&self, other: &Event<E>) -> Ordering {
        (other.at_ns, other.number).cmp(&(self.at_ns, self.number))
    }
}

impl<E> PartialOrd for Event<E> {
    fn partial_cmp(&self, other: &Event<E>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Event<E> {
    fn eq(&self, other: &Event<E>) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Event<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_in_which_they_were_added() {
        let mut events = Events::new();
        for (at, what) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b')] {
            events.add(at, what);
        }
        let order: Vec<(u64, char)> = std::iter::from_fn(|| events.next()).collect();
        assert_eq!(order, [(1, 'a'), (1, 'b'), (5, 'c'), (5, 'd')]);
    }
}
