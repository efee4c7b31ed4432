//! What a handle can name: memory that the engine maps, memory that its owner packs and unpacks, or memory of a peer.

use super::remote::Remote;
use crate::plan::Extent;
use crate::region::Region;
use ring_abi::Handle;
use std::sync::Arc;

/// Memory of a region.
#[derive(Clone, Debug)]
pub(super) enum Memory {
    Mapped(Arc<Region>),
    Lent(Arc<Lent>),
    Remote(Arc<Remote>),
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
            (Memory::Remote(a), Memory::Remote(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// A number that no other region has while this one is kept.
    pub fn key(&self) -> usize {
        match self {
            Memory::Mapped(region) => Arc::as_ptr(region).addr(),
            Memory::Lent(lent) => Arc::as_ptr(lent).addr(),
            Memory::Remote(remote) => Arc::as_ptr(remote).addr(),
        }
    }

    #[inline]
    pub fn mapped(&self) -> Option<&Arc<Region>> {
        match self {
            Memory::Mapped(region) => Some(region),
            Memory::Lent(_) | Memory::Remote(_) => None,
        }
    }

    pub fn lent(&self) -> Option<&Arc<Lent>> {
        match self {
            Memory::Lent(lent) => Some(lent),
            Memory::Mapped(_) | Memory::Remote(_) => None,
        }
    }

    #[inline]
    pub fn remote(&self) -> Option<&Arc<Remote>> {
        match self {
            Memory::Remote(remote) => Some(remote),
            Memory::Mapped(_) | Memory::Lent(_) => None,
        }
    }

    pub fn extent(&self) -> Extent {
        match self {
            Memory::Mapped(region) => Extent { bytes: region.bytes(), misalignment: region.as_ptr().addr() as u64 % 8 },
            Memory::Lent(lent) => Extent { bytes: lent.bytes, misalignment: 0 },
            Memory::Remote(remote) => Extent { bytes: remote.bytes, misalignment: 0 },
        }
    }

    /// Refuses new use. Lent memory is refused once its sessions have been told, a turn later.
    pub fn withdraw(&self) {
        match self {
            Memory::Mapped(region) => region.withdraw(),
            Memory::Remote(remote) => remote.withdraw(),
            Memory::Lent(_) => {}
        }
    }

    #[inline]
    pub fn is_withdrawn(&self) -> bool {
        match self {
            Memory::Mapped(region) => region.is_withdrawn(),
            Memory::Remote(remote) => remote.is_withdrawn(),
            Memory::Lent(_) => false,
        }
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
