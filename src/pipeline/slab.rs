//! Storage that is allocated once.

/// Values under small numbers; never grows.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Box<[Option<T>]>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub fn new(capacity: u32) -> Slab<T> {
        Slab { slots: (0..capacity).map(|_| None).collect(), free: (0..capacity).rev().collect() }
    }

    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Values that can still be stored.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The number of the stored value, or the value back if the slab is full.
    pub fn insert(&mut self, value: T) -> Result<u32, T> {
        match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = Some(value);
                Ok(at)
            }
            None => Err(value),
        }
    }

    pub fn remove(&mut self, at: u32) -> Option<T> {
        let value = self.slots.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(value)
    }

    pub fn get(&self, at: u32) -> Option<&T> {
        self.slots.get(at as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.slots.get_mut(at as usize)?.as_mut()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(at, slot)| Some((at as u32, slot.as_ref()?)))
    }
}
