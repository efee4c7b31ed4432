//! Regions that an RDMA device reaches by itself.

use super::{Region, Rights};
use crate::verbs::{Access, MemoryRegion, ProtectionDomain, VerbsError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// What a device knows of a region. Taken back before the region is unmapped, because the region drops it first.
#[derive(Debug, Default)]
pub(super) struct Registered {
    /// For requests of this side: no peer reaches anything by it.
    local: OnceLock<MemoryRegion>,
    /// For peers, by rights: one registration for all that have been given the same. Each keeps it as long as they have it.
    shared: Mutex<Vec<(Rights, Weak<MemoryRegion>)>>,
}

impl Region {
    /// Has a device reach the region for this side's own operations. Done once; every other call changes nothing. Pages of
    /// a large region are brought in by several threads, which is most of what this takes.
    ///
    /// # Errors
    /// What the device or the kernel says: too much locked memory, or memory that cannot be written, which no device
    /// registers here.
    pub fn register(&self, domain: &Arc<ProtectionDomain>) -> Result<(), VerbsError> {
        if self.registered.local.get().is_some() {
            return Ok(());
        }
        self.bring_in();
        let access = if self.rights().write { Access::LOCAL_WRITE } else { Access::NONE };
        // All of its pages, because libibverbs tells the kernel not to give them to forked children, which can only be said of
        // whole ones. It keeps count: other registrations inside find that said.
        let (at, bytes) = self.pages();
        // SAFETY: the pages are mapped as long as the region is there, which owns the registration; there are no Rust
        // references to their bytes.
        let made = unsafe { MemoryRegion::register(domain, at, bytes, access)? };
        // If another thread was faster, this one's is taken back.
        let _ = self.registered.local.set(made);
        Ok(())
    }

    /// What this side's device calls the region, if it is registered.
    #[must_use]
    #[inline]
    pub fn local_key(&self) -> Option<u32> {
        self.registered.local.get().map(MemoryRegion::lkey)
    }

    /// A registration of all of the region by which peers reach it with these rights. Whoever has it keeps it; peers reach
    /// the region until the last one is dropped.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn share(&self, domain: &Arc<ProtectionDomain>, rights: Rights) -> Result<Arc<MemoryRegion>, VerbsError> {
        let mut shared = self.registered.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|(_, known)| known.strong_count() > 0);
        let known = shared.iter().find(|(known, _)| *known == rights).and_then(|(_, known)| known.upgrade());
        if let Some(known) = known {
            return Ok(known);
        }
        let made = Arc::new(self.register_range(domain, 0, self.bytes(), remote_access(rights))?);
        shared.push((rights, Arc::downgrade(&made)));
        Ok(made)
    }

    /// A registration of some of the region by which a peer reaches it with these rights, and nothing else.
    ///
    /// # Errors
    /// As [`register`](Self::register). The range must lie inside.
    pub(crate) fn expose(
        &self,
        domain: &Arc<ProtectionDomain>,
        (offset, bytes): (u64, u64),
        rights: Rights,
    ) -> Result<MemoryRegion, VerbsError> {
        self.register_range(domain, offset, bytes, remote_access(rights))
    }

    fn register_range(
        &self,
        domain: &Arc<ProtectionDomain>,
        offset: u64,
        bytes: u64,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        debug_assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes()), "outside the region");
        let at = self.as_ptr().wrapping_add(offset as usize);
        // SAFETY: the range is mapped as long as the region is there, which either owns the registration or is kept by who
        // does; there are no Rust references to its bytes.
        unsafe { MemoryRegion::register(domain, at, bytes as usize, access) }
    }

    /// Brings the pages of a long region in, so that registering it does not do that on one core.
    fn bring_in(&self) {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(BRING_IN_THREADS);
        if self.bytes() < BRING_IN_BYTES || threads < 2 {
            return;
        }
        let advice = if self.rights().write {
            rustix::mm::Advice::LinuxPopulateWrite
        } else {
            rustix::mm::Advice::LinuxPopulateRead
        };
        let page = rustix::param::page_size() as u64;
        let share = (self.bytes() / threads as u64).next_multiple_of(page);
        let first = self.as_ptr().addr() as u64;
        let skipped = first.next_multiple_of(page) - first;
        std::thread::scope(|scope| {
            for i in 0..threads as u64 {
                let from = skipped + i * share;
                let len = share.min(self.bytes().saturating_sub(from)) & !(page - 1);
                let at = self.as_ptr().wrapping_add(from as usize) as usize;
                // SAFETY: whole pages of this region's own mapping, whose contents do not change by it. What cannot be brought
                // in is left to the registration, which will say why.
                let bring = move || _ = unsafe { rustix::mm::madvise(at as *mut _, len as usize, advice) };
                if len > 0 {
                    scope.spawn(bring);
                }
            }
        });
    }
}

/// What a device lets a peer do.
fn remote_access(rights: Rights) -> Access {
    let read = if rights.read { Access::REMOTE_READ } else { Access::NONE };
    let write = if rights.write { Access::REMOTE_WRITE } else { Access::NONE };
    read | write
}

/// From here on it is worth some threads.
const BRING_IN_BYTES: u64 = 256 << 20;
const BRING_IN_THREADS: usize = 8;
