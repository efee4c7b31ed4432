//! What a handle can name: memory that the engine maps, or memory that its owner packs and unpacks.

use crate::plan::Extent;
use crate::region::Region;
use ring_abi::Handle;
use std::sync::Arc;

/// Memory of a region.
#[derive(Clone, Debug)]
pub(super) enum Memory {
    Mapped(Arc<Region>),
    Lent(Arc<Lent>),
}

/// Memory of an owner session, which the engine cannot reach.
#[derive(Debug)]
pub(super) struct Lent {
    /// The session that it was lent by.
    pub owner: u64,
    /// What that session calls it.
    pub handle: Handle,
    pub bytes: u64,
}

impl Memory {
    /// True if both are the same region.
    pub fn is(&self, other: &Memory) -> bool {
        match (self, other) {
            (Memory::Mapped(a), Memory::Mapped(b)) => Arc::ptr_eq(a, b),
            (Memory::Lent(a), Memory::Lent(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// A number that no other region has while this one is kept.
    pub fn key(&self) -> usize {
        match self {
            Memory::Mapped(region) => Arc::as_ptr(region).addr(),
            Memory::Lent(lent) => Arc::as_ptr(lent).addr(),
        }
    }

    #[inline]
    pub fn mapped(&self) -> Option<&Arc<Region>> {
        match self {
            Memory::Mapped(region) => Some(region),
            Memory::Lent(_) => None,
        }
    }

    pub fn lent(&self) -> Option<&Arc<Lent>> {
        match self {
            Memory::Mapped(_) => None,
            Memory::Lent(lent) => Some(lent),
        }
    }

    pub fn extent(&self) -> Extent {
        match self {
            Memory::Mapped(region) => Extent { bytes: region.bytes(), misalignment: region.as_ptr().addr() as u64 % 8 },
            Memory::Lent(lent) => Extent { bytes: lent.bytes, misalignment: 0 },
        }
    }

    /// Refuses new use. Lent memory is refused once its sessions have been told, a turn later.
    pub fn withdraw(&self) {
        if let Memory::Mapped(region) = self {
            region.withdraw();
        }
    }

    #[inline]
    pub fn is_withdrawn(&self) -> bool {
        self.mapped().is_some_and(|region| region.is_withdrawn())
    }

    /// True if its losing a page is nothing unheard of: see [`Region::may_be_lost`].
    pub fn may_be_lost(&self) -> bool {
        self.mapped().is_some_and(|region| region.may_be_lost())
    }

    /// True once the file of mapped memory has lost a page.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.mapped().is_some_and(|region| region.is_lost())
    }
}
