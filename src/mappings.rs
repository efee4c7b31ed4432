//! Which memory of this process is mapped from files, and may therefore fault: see `region::guard`.
//!
//! A signal handler looks it up while other threads map and unmap, so it is made of atomics and of nothing else. It
//! belongs to `region`, and stands here so that loom can explore it: its orderings are in the table of [`crate::ring`].

use crate::sync::{AtomicU64, Ordering, at, fence_at};

/// At most `N` mappings. Every method but [`enter`](Self::enter) and [`leave`](Self::leave) may be called by a signal
/// handler.
#[derive(Debug)]
pub struct Mappings<const N: usize> {
    places: [Place; N],
    /// Where to look for a free place: the one after the last that was taken.
    next: AtomicU64,
    faults: AtomicU64,
}

#[derive(Debug, Default)]
struct Place {
    /// Address of the first byte; [`FREE`] or [`TAKEN`], which are no addresses of mappings.
    base: AtomicU64,
    bytes: AtomicU64,
    /// 1 once it has faulted.
    lost: AtomicU64,
}

/// A mapping that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its place.
    pub place: usize,
    /// Address of its first byte.
    pub base: u64,
    /// Its bytes.
    pub bytes: u64,
}

const FREE: u64 = 0;
const TAKEN: u64 = 1;

impl<const N: usize> Mappings<N> {
    /// No mappings.
    #[cfg(not(scatter_ring_loom))]
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it is made for a static")]
    pub const fn new() -> Self {
        let places =
            [const { Place { base: AtomicU64::new(FREE), bytes: AtomicU64::new(0), lost: AtomicU64::new(0) } }; N];
        Mappings { places, next: AtomicU64::new(0), faults: AtomicU64::new(0) }
    }

    /// No mappings; loom's atomics cannot be made by a `const fn`.
    #[cfg(scatter_ring_loom)]
    #[expect(clippy::new_without_default, reason = "as the real one")]
    pub fn new() -> Self {
        let places = core::array::from_fn(|_| Place::default());
        Mappings { places, next: AtomicU64::new(0), faults: AtomicU64::new(0) }
    }

    /// Enters a mapping, which is not lost. `None`: there is no free place.
    pub fn enter(&self, base: u64, bytes: u64) -> Option<usize> {
        let from = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        let place = (0..N).map(|i| from.wrapping_add(i) % N).find(|place| {
            let base = &self.places[*place].base;
            base.compare_exchange(FREE, TAKEN, at("M6", Ordering::Acquire), Ordering::Relaxed).is_ok()
        })?;
        let entry = &self.places[place];
        entry.bytes.store(bytes, at("M3", Ordering::Release));
        entry.base.store(base, at("M1", Ordering::Release));
        Some(place)
    }

    /// Takes a mapping out, which nobody uses any more, and before its addresses can become somebody else's.
    pub fn leave(&self, place: usize) {
        let entry = &self.places[place];
        entry.lost.store(0, Ordering::Relaxed);
        entry.base.store(FREE, at("M5", Ordering::Release));
    }

    /// The mapping that has this address. Mappings that come or go meanwhile may be missed.
    pub fn find(&self, address: u64) -> Option<Found> {
        (0..N).find_map(|place| {
            let entry = &self.places[place];
            let base = entry.base.load(at("M2", Ordering::Acquire));
            let bytes = entry.bytes.load(at("M4", Ordering::Acquire));
            // If the length is that of a later mapping, the base has changed before.
            let is_whole = entry.base.load(Ordering::Relaxed) == base;
            let is_there = base > TAKEN && is_whole && address.wrapping_sub(base) < bytes;
            is_there.then_some(Found { place, base, bytes })
        })
    }

    /// Marks a mapping as lost. The caller puts other memory in its place afterwards.
    pub fn lose(&self, place: usize) {
        self.places[place].lost.store(1, Ordering::Relaxed);
        self.faults.fetch_add(1, Ordering::Relaxed);
        fence_at("L1", Ordering::Release);
    }

    /// True once a mapping is lost. Who has copied out of it asks afterwards: what he has copied is of the file if this
    /// is false.
    #[inline]
    pub fn is_lost(&self, place: usize) -> bool {
        fence_at("L2", Ordering::Acquire);
        self.places[place].lost.load(Ordering::Relaxed) != 0
    }

    /// How many mappings have been lost. To be asked as [`is_lost`](Self::is_lost) is.
    #[inline]
    pub fn faults(&self) -> u64 {
        fence_at("L2", Ordering::Acquire);
        self.faults.load(Ordering::Relaxed)
    }

    /// Mappings that are there.
    pub fn len(&self) -> usize {
        self.places.iter().filter(|entry| entry.base.load(Ordering::Relaxed) != FREE).count()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(all(test, not(scatter_ring_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_takes_no_more_and_a_place_that_is_free_again_is_found() {
        let table = Mappings::<3>::new();
        let places = [0, 1, 2].map(|i| table.enter(4096 * (i + 1), 4096).expect("room"));
        assert_eq!((table.enter(1 << 20, 1), table.len()), (None, 3));
        table.leave(places[1]);
        let again = table.enter(1 << 20, 1).expect("a place was given back");
        assert_eq!((again, table.enter(1 << 21, 1)), (places[1], None));
        places.into_iter().for_each(|place| table.leave(place));
        assert!(table.is_empty());
    }

    #[test]
    fn an_address_is_found_from_the_first_byte_to_the_last() {
        let table = Mappings::<4>::new();
        let (low, high) = (table.enter(0x10_000, 0x1000).unwrap(), table.enter(u64::MAX - 0xFFF, 0x1000).unwrap());
        let at = |address| table.find(address).map(|found| found.place);
        assert_eq!([0xFFFF, 0x10_000, 0x10_FFF, 0x11_000].map(at), [None, Some(low), Some(low), None]);
        assert_eq!([u64::MAX - 0x1000, u64::MAX - 0xFFF, u64::MAX, 0, 1].map(at)[1..3], [Some(high); 2]);
        assert_eq!([at(0), at(1), at(u64::MAX - 0x1000)], [None; 3]);
        table.leave(low);
        assert_eq!(at(0x10_000), None);
    }

    #[test]
    fn only_the_mapping_that_faulted_is_lost_and_not_the_next_one_of_its_place() {
        let table = Mappings::<2>::new();
        let (a, b) = (table.enter(0x1000, 0x1000).unwrap(), table.enter(0x2000, 0x1000).unwrap());
        table.lose(a);
        assert_eq!((table.is_lost(a), table.is_lost(b), table.faults()), (true, false, 1));
        table.leave(a);
        let next = table.enter(0x3000, 0x1000).unwrap();
        assert_eq!((next, table.is_lost(next), table.faults()), (a, false, 1));
    }
}
