//! A planned chunk on its way over a link, and the pool of them.

use super::SeatId;
use crate::plan::Chunk;
use crate::region::Region;
use std::sync::Arc;

/// A planned chunk, with the memory of this side that its lists name. Goes round between sessions, which plan into it,
/// and the connection that carries it; its buffers are allocated once.
#[derive(Debug, Default)]
pub struct Parcel {
    /// The lists. Regions of this side are named by the client's handles, regions of the owner by their numbers there.
    pub chunk: Chunk,
    /// The regions of this side that the lists may name, by handle.
    pub regions: Vec<(u32, Arc<Region>)>,
    /// The connection that it takes a chunk's place on, until it is added or given back.
    pub(super) place: Option<SeatId>,
}

impl Parcel {
    /// The region of this side that a list names.
    pub fn region(&self, handle: u32) -> Option<&Arc<Region>> {
        self.regions.iter().find(|(known, _)| *known == handle).map(|(_, region)| region)
    }
}

/// The parcels of an engine: as many as its connections have chunks.
#[derive(Debug, Default)]
pub(super) struct Parcels {
    #[expect(clippy::vec_box, reason = "parcels go round by pointer")]
    free: Vec<Box<Parcel>>,
    /// How many have to go, because their connections have.
    surplus: usize,
}

impl Parcels {
    /// Makes those of a connection.
    pub fn add(&mut self, count: u32) {
        let kept = self.surplus.min(count as usize);
        self.surplus -= kept;
        self.free.extend((kept..count as usize).map(|_| Box::default()));
    }

    /// A connection has gone.
    pub fn remove(&mut self, count: u32) {
        self.surplus += count as usize;
        let now = self.surplus.min(self.free.len());
        self.free.truncate(self.free.len() - now);
        self.surplus -= now;
    }

    /// One that holds nothing.
    pub fn take(&mut self) -> Option<Box<Parcel>> {
        self.free.pop()
    }

    /// Takes one back, and lets go of its memory.
    pub fn give_back(&mut self, mut parcel: Box<Parcel>) {
        parcel.regions.clear();
        parcel.place = None;
        match self.surplus.checked_sub(1) {
            Some(surplus) => self.surplus = surplus,
            None => self.free.push(parcel),
        }
    }

    /// Those that nobody has.
    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_goes_takes_its_parcels_with_it_as_they_come_back() {
        let mut parcels = Parcels::default();
        parcels.add(2);
        parcels.add(3);
        let out: Vec<_> = (0..4).map(|_| parcels.take().unwrap()).collect();
        parcels.remove(3);
        assert_eq!((parcels.free(), parcels.surplus), (0, 2));
        parcels.add(1);
        out.into_iter().for_each(|parcel| parcels.give_back(parcel));
        assert_eq!((parcels.free(), parcels.surplus), (3, 0));
        parcels.remove(3);
        assert!(parcels.take().is_none());
    }
}
