//! Handles with generations, so that a handle that was closed names nothing rather than its successor.

use ring_abi::Handle;

/// The regions of one session by handle.
///
/// A slot whose generations are used up is retired: a handle value is given out once.
///
/// ```
/// use scatter_ring::region::HandleTable;
/// let mut table = HandleTable::new(2);
/// let a = table.insert('a').unwrap();
/// assert_eq!(table.get(a), Some(&'a'));
/// assert_eq!(table.remove(a), Some('a'));
/// let b = table.insert('b').unwrap();
/// assert_eq!(a.index(), b.index());
/// assert_eq!((table.get(a), table.get(b)), (None, Some(&'b')));
/// ```
#[derive(Debug)]
pub struct HandleTable<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    limit: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> HandleTable<T> {
    /// An empty table of at most `limit` entries (and at most [`Handle::INDEX_MAX`] + 1).
    #[must_use]
    pub fn new(limit: u32) -> Self {
        HandleTable { slots: Vec::new(), free: Vec::new(), limit: limit.min(Handle::INDEX_MAX + 1) }
    }

    /// Stores a value under a handle that was never given out before, or gives it back if the table is full.
    pub fn insert(&mut self, value: T) -> Result<Handle, T> {
        let mut value = Some(value);
        self.insert_with(|_| value.take().expect("called once")).ok_or_else(|| value.expect("not called"))
    }

    /// The same for a value that knows its handle.
    pub fn insert_with(&mut self, make: impl FnOnce(Handle) -> T) -> Option<Handle> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if (self.slots.len() as u32) < self.limit => {
                self.slots.push(Slot { generation: 0, value: None });
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[index as usize];
        slot.generation += 1;
        let handle = Handle::new(index, slot.generation).expect("retired slots are not in the free list");
        slot.value = Some(make(handle));
        Some(handle)
    }

    /// Stores a value under a handle that another table gave out.
    pub fn insert_as(&mut self, handle: Handle, value: T) {
        let index = handle.index() as usize;
        while self.slots.len() <= index {
            self.slots.push(Slot { generation: 0, value: None });
        }
        self.slots[index] = Slot { generation: handle.generation(), value: Some(value) };
    }

    /// The value of a handle that has not been removed.
    #[must_use]
    #[inline]
    pub fn get(&self, handle: Handle) -> Option<&T> {
        let slot = self.slots.get(handle.index() as usize)?;
        if slot.generation == handle.generation() { slot.value.as_ref() } else { None }
    }

    /// The same, to change it.
    #[inline]
    pub fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        let slot = self.slots.get_mut(handle.index() as usize)?;
        if slot.generation == handle.generation() { slot.value.as_mut() } else { None }
    }

    /// Takes the value out; the handle names nothing from now on.
    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        let slot = self.slots.get_mut(handle.index() as usize)?;
        if slot.generation != handle.generation() {
            return None;
        }
        let value = slot.value.take()?;
        if slot.generation < Handle::GENERATION_MAX {
            self.free.push(handle.index());
        }
        Some(value)
    }

    /// Every value with its handle.
    pub fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(index, slot)| Some((Handle::new(index as u32, slot.generation)?, slot.value.as_ref()?)))
    }

    /// Values stored.
    #[must_use]
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// True if none is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_whose_generations_are_used_up_is_retired() {
        let mut table = HandleTable::new(1);
        for generation in 1..=Handle::GENERATION_MAX {
            let handle = table.insert(()).expect("generations left");
            assert_eq!(handle.generation(), generation);
            table.remove(handle);
        }
        assert!(table.insert(()).is_err(), "the only slot is retired");
    }

    #[test]
    fn no_handle_reaches_a_later_value_of_its_slot() {
        let mut table = HandleTable::new(4);
        let mut old: Vec<Handle> = Vec::new();
        for i in 0..10_000u32 {
            let handle = table.insert(i).unwrap();
            assert!(old.iter().all(|o| table.get(*o).is_none()), "an old handle names a value");
            assert_eq!(table.get(handle), Some(&i));
            assert_eq!(table.remove(handle), Some(i));
            assert_eq!(table.remove(handle), None);
            old.push(handle);
            if old.len() > 64 {
                old.remove(0);
            }
        }
    }
}
