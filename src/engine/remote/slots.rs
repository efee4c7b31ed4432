//! Slot memory: what chunks are packed into, and what they land in.

use crate::link::LocalPiece;
use crate::region::{Huge, Region, RegionError, Rights};
use crate::verbs::{MemoryRegion, ProtectionDomain, VerbsError};
use std::sync::Arc;

/// Slots of one length, one behind the other, in memory of this engine's own. New for every connection that writes to it,
/// so that no peer finds what another one left there.
#[derive(Debug)]
pub struct SlotMemory {
    region: Arc<Region>,
    slots: u32,
    slot_bytes: u32,
    /// By which a peer's device writes to them.
    exposed: Option<Arc<MemoryRegion>>,
}

impl SlotMemory {
    /// All pages of it are there.
    ///
    /// # Errors
    /// If either is 0, or the kernel has no memory.
    pub fn new(slots: u32, slot_bytes: u32) -> Result<SlotMemory, RegionError> {
        let (region, _) = Region::allocate(u64::from(slots) * u64::from(slot_bytes), Huge::IfReserved)?;
        Ok(SlotMemory { region: Arc::new(region), slots, slot_bytes, exposed: None })
    }

    /// Has this side's device reach the slots, and, if a peer writes to them, the peer's. Without a device nothing is done.
    ///
    /// # Errors
    /// What the device says.
    pub fn register(&mut self, domain: Option<&Arc<ProtectionDomain>>, for_peer: bool) -> Result<(), VerbsError> {
        let Some(domain) = domain else { return Ok(()) };
        self.region.register(domain)?;
        if for_peer {
            self.exposed = Some(self.region.share(domain, Rights::WRITE)?);
        }
        Ok(())
    }

    /// See [`register`](Self::register).
    pub fn exposed(&self) -> Option<&Arc<MemoryRegion>> {
        self.exposed.as_ref()
    }

    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub fn slot_bytes(&self) -> u32 {
        self.slot_bytes
    }

    /// Where a slot begins.
    pub fn at(&self, slot: u32) -> Option<(Arc<Region>, u64)> {
        (slot < self.slots).then(|| (self.region.clone(), u64::from(slot) * u64::from(self.slot_bytes)))
    }

    /// The first bytes of a slot, for an operation. `None` if it has fewer.
    pub fn piece(&self, slot: u32, bytes: u32) -> Option<LocalPiece> {
        let (region, offset) = self.at(slot).filter(|_| bytes <= self.slot_bytes)?;
        LocalPiece::of_region(&region, offset, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_lie_one_behind_the_other_and_end_where_they_end() {
        let memory = SlotMemory::new(3, 5000).unwrap();
        assert_eq!(memory.region().bytes(), 15_000);
        assert_eq!(
            [0, 1, 2].map(|slot| memory.at(slot).map(|(_, offset)| offset)),
            [Some(0), Some(5000), Some(10_000)]
        );
        assert!(memory.at(3).is_none() && memory.at(u32::MAX).is_none());
        assert_eq!(memory.piece(2, 5000).map(|piece| piece.len()), Some(5000));
        assert!(memory.piece(2, 5001).is_none() && memory.piece(0, 5001).is_none(), "into the next slot");
        assert!(SlotMemory::new(0, 5000).is_err() && SlotMemory::new(1, 0).is_err());
    }
}
