//! First-in first-out lists through the values of a slab, without storage of their own.

use super::batch::NONE;
use super::slab::Slab;

/// A value that can be in one list at a time.
pub(super) trait Linked {
    /// Where the number of the next value is kept; the list's alone.
    fn next(&mut self) -> &mut u32;
}

/// Values of one slab, in the order of coming.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub const EMPTY: List = List { head: NONE, tail: NONE };

    /// The value that has waited longest.
    pub fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// Puts a value that is in no list behind the others.
    pub fn push<T: Linked>(&mut self, slab: &mut Slab<T>, at: u32) {
        let Some(value) = slab.get_mut(at) else { return };
        *value.next() = NONE;
        match slab.get_mut(self.tail) {
            Some(tail) => *tail.next() = at,
            None => self.head = at,
        }
        self.tail = at;
    }

    pub fn pop<T: Linked>(&mut self, slab: &mut Slab<T>) -> Option<u32> {
        let at = self.first()?;
        self.head = slab.get_mut(at).map_or(NONE, |value| *value.next());
        if self.head == NONE {
            self.tail = NONE;
        }
        Some(at)
    }
}
