//! Staging slots, and the right to use one.

/// The right to use one slot until it is [given back](Slots::give_back). A slot's number comes again with another
/// generation, so that who speaks of an old lease is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Number of the slot.
    pub slot: u32,
    /// How often it was leased before, modulo 2^32.
    pub generation: u32,
}

/// The slots of one pool.
#[derive(Debug)]
pub struct Slots {
    /// The one given back last is leased first: it is the warmest in the caches.
    free: Vec<u32>,
    slots: Box<[Slot]>,
    peak: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    is_leased: bool,
    generation: u32,
}

impl Slots {
    /// So many free slots.
    #[must_use]
    pub fn new(slots: u32) -> Slots {
        let slot = Slot { is_leased: false, generation: 0 };
        Slots { free: (0..slots).rev().collect(), slots: vec![slot; slots as usize].into(), peak: 0 }
    }

    /// One that is free.
    pub fn lease(&mut self) -> Option<Lease> {
        let number = self.free.pop()?;
        let slot = self.slots.get_mut(number as usize)?;
        slot.is_leased = true;
        let lease = Lease { slot: number, generation: slot.generation };
        self.peak = self.peak.max(self.leased());
        Some(lease)
    }

    /// Ends a lease; false, and nothing happens, if it is not one that holds.
    pub fn give_back(&mut self, lease: Lease) -> bool {
        let Some(slot) = self.slots.get_mut(lease.slot as usize) else { return false };
        if !slot.is_leased || slot.generation != lease.generation {
            return false;
        }
        *slot = Slot { is_leased: false, generation: slot.generation.wrapping_add(1) };
        self.free.push(lease.slot);
        true
    }

    /// Leased now.
    #[must_use]
    pub fn leased(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    /// Most that were leased at once.
    #[must_use]
    pub fn peak(&self) -> u32 {
        self.peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_once_and_an_old_one_ends_nothing() {
        let mut slots = Slots::new(1);
        let first = slots.lease().unwrap();
        assert_eq!(slots.lease(), None);
        assert!(slots.give_back(first));
        assert!(!slots.give_back(first), "it is free");
        let second = slots.lease().unwrap();
        assert_eq!(second.slot, first.slot);
        assert!(!slots.give_back(first), "another holds the slot");
        assert!(slots.give_back(second));
        assert!(!slots.give_back(Lease { slot: 1, generation: 0 }), "there is no such slot");
        assert_eq!((slots.leased(), slots.peak()), (0, 1));
    }
}
