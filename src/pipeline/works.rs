//! What was posted and not completed.

use super::messages::WorkId;
use super::slab::Slab;

/// Bounded by what 16 bits of a [`WorkId`] can number; its other 48 last for years at a million doorbells a second.
#[derive(Debug)]
pub(super) struct Works<T> {
    posted: Slab<(WorkId, T)>,
    /// How many there have been.
    count: u64,
}

/// Most that can be outstanding.
pub(super) const WORKS_MAX: u32 = 1 << 16;

impl<T> Works<T> {
    pub fn new(capacity: u32) -> Works<T> {
        Works { posted: Slab::new(capacity.min(WORKS_MAX)), count: 0 }
    }

    /// A name for what is about to be posted, `None` if there is no room.
    pub fn add(&mut self, value: T) -> Option<WorkId> {
        let at = self.posted.insert((WorkId(0), value)).ok()?;
        let id = WorkId(self.count << 16 | u64::from(at));
        self.count = self.count.wrapping_add(1);
        self.posted.get_mut(at)?.0 = id;
        Some(id)
    }

    /// What has that name, once.
    pub fn take(&mut self, id: WorkId) -> Option<T> {
        let at = id.0 as u32 % WORKS_MAX;
        self.posted.get(at).filter(|(known, _)| *known == id)?;
        self.posted.remove(at).map(|(_, value)| value)
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        for at in 0..self.posted.capacity() {
            self.posted.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_good_once() {
        let mut works = Works::new(1);
        let first = works.add('a').unwrap();
        assert_eq!(works.add('b'), None);
        assert_eq!(works.take(first), Some('a'));
        let second = works.add('c').unwrap();
        assert_eq!(works.take(first), None);
        assert_eq!(works.take(WorkId(u64::MAX)), None);
        assert_eq!(works.take(second), Some('c'));
    }
}
