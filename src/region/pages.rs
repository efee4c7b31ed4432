//! The areas of a ring pair: a memory file, mapped, seen as atomic words.

use super::copy;
use crate::sync::AtomicU64;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes of a file that are allocated in one call: a huge page, or many others.
const PART_BYTES: u64 = 2 << 20;

/// Allocates a file's pages.
///
/// Part by part: a kernel may end a call at any signal, and what that call had allocated is then given back.
pub(super) fn take_pages(fd: &OwnedFd, bytes: u64) -> rustix::io::Result<()> {
    let mut at = 0;
    while at < bytes {
        let part = PART_BYTES.min(bytes - at);
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(fd, FallocateFlags::empty(), at, part))?;
        at += part;
    }
    Ok(())
}

/// A mapping of a memory file: atomic words, through [`Word`] and [`Slots`], and [blocks](SharedPages::block) of bytes for
/// the copy routines.
#[derive(Debug)]
pub struct SharedPages {
    map: MmapRaw,
}

impl SharedPages {
    /// A new memory file of `bytes` bytes, all of them allocated, mapped for reading and writing.
    ///
    /// `seals` are added after the mapping; with [`SealFlags::FUTURE_WRITE`] nobody else can map it for writing.
    ///
    /// # Errors
    /// What the kernel says; out of memory is an error here, and never a SIGBUS later.
    pub fn create(name: &str, bytes: usize, seals: SealFlags) -> io::Result<(Arc<SharedPages>, OwnedFd)> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, bytes as u64)?;
        take_pages(&fd, bytes as u64)?;
        let map = MmapOptions::new().len(bytes).populate().map_raw(&fd)?;
        rustix::fs::fcntl_add_seals(&fd, seals | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Arc::new(SharedPages { map }), fd))
    }

    /// The mapping of a file that the other side created.
    ///
    /// # Errors
    /// If the file is not sealed against shrinking (its pages could vanish under us), is smaller than `bytes`, or
    /// cannot be mapped so.
    pub fn map(fd: impl AsFd, bytes: usize, writable: bool) -> io::Result<Arc<SharedPages>> {
        if !rustix::fs::fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "area is not sealed against shrinking"));
        }
        let file_bytes = rustix::fs::fstat(&fd)?.st_size;
        if (file_bytes as u64) < bytes as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "area is smaller than its header says"));
        }
        let fd = fd.as_fd();
        let mut options = MmapOptions::new();
        options.len(bytes).populate();
        let map = if writable { options.map_raw(&fd)? } else { options.map_raw_read_only(&fd)? };
        Ok(Arc::new(SharedPages { map }))
    }

    /// Bytes mapped.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.map.len()
    }

    /// The first of `bytes` bytes from an offset on, for the copy routines, as long as the mapping lives.
    ///
    /// # Panics
    /// If they are not inside.
    #[must_use]
    pub fn block(&self, offset: usize, bytes: usize) -> *mut u8 {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes());
        assert!(inside, "{bytes} bytes at {offset} of {}", self.bytes());
        self.map.as_mut_ptr().wrapping_add(offset)
    }

    /// Copies words in, for the other side to read once it has been told.
    ///
    /// # Panics
    /// If there is no room for them behind the offset.
    pub fn write_words(&self, offset: usize, words: &[u64]) {
        let to = self.block(offset, size_of_val(words));
        // SAFETY: `block` has checked the range, which the callers of `create` write and which nobody has a reference to.
        unsafe { copy::copy_range(words.as_ptr().cast(), to, size_of_val(words)) };
    }

    /// Copies bytes in, as [`write_words`](Self::write_words).
    ///
    /// # Panics
    /// As there.
    pub fn write_bytes(&self, offset: usize, bytes: &[u8]) {
        let to = self.block(offset, bytes.len());
        // SAFETY: as in `write_words`.
        unsafe { copy::copy_range(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies bytes out that the other side has written.
    ///
    /// # Panics
    /// If there are not so many behind the offset.
    pub fn read_bytes(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.block(offset, bytes.len());
        // SAFETY: `block` has checked the range, which is mapped as long as `self` is there; the destination is an exclusive
        // slice, which shared pages cannot overlap.
        unsafe { copy::copy_range(from.cast_const(), bytes.as_mut_ptr(), bytes.len()) };
    }

    /// The word at a byte offset.
    ///
    /// # Panics
    /// If it is not aligned or not inside: offsets are the ABI's, never the other side's.
    #[must_use]
    pub fn word(self: &Arc<Self>, offset: usize) -> Word {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes(), "word at {offset} of {}", self.bytes());
        // SAFETY: the offset is inside the mapping, as just checked.
        let at = unsafe { self.map.as_mut_ptr().add(offset) };
        Word { at: NonNull::new(at.cast()).expect("a mapping is not at 0"), _pages: self.clone() }
    }

    /// `capacity` slots from a byte offset on.
    ///
    /// # Panics
    /// If they are not aligned or not inside, or the capacity is not a power of two.
    #[must_use]
    pub fn slots(self: &Arc<Self>, offset: usize, capacity: u32) -> Slots {
        assert!(capacity.is_power_of_two() && offset.is_multiple_of(64), "{capacity} slots at {offset}");
        assert!(offset + capacity as usize * 64 <= self.bytes(), "{capacity} slots at {offset} of {}", self.bytes());
        // SAFETY: the offset is inside the mapping, as just checked.
        let first = unsafe { self.map.as_mut_ptr().add(offset) };
        let first = NonNull::new(first.cast()).expect("a mapping is not at 0");
        Slots { first, mask: capacity as usize - 1, _pages: self.clone() }
    }
}

/// One shared word; keeps its mapping. Storing to a word of a read-only mapping is a SIGSEGV: the ring's two sides store
/// only to the words that are theirs.
#[derive(Clone, Debug)]
pub struct Word {
    at: NonNull<AtomicU64>,
    _pages: Arc<SharedPages>,
}

impl Deref for Word {
    type Target = AtomicU64;

    #[inline]
    fn deref(&self) -> &AtomicU64 {
        // SAFETY: aligned, inside a mapping that `_pages` keeps, and only ever accessed as an atomic by this process;
        // what other processes do to it an atomic must expect.
        unsafe { self.at.as_ref() }
    }
}

// SAFETY: a `Word` is a `&AtomicU64` that keeps its target alive.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

/// The slots of a ring; keeps its mapping.
#[derive(Clone, Debug)]
pub struct Slots {
    first: NonNull<[AtomicU64; 8]>,
    mask: usize,
    _pages: Arc<SharedPages>,
}

impl Slots {
    /// Slots, a power of two.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.mask as u32 + 1
    }

    /// The slot of a position, which is masked: every position has one.
    #[must_use]
    #[inline]
    pub fn get(&self, position: u64) -> &[AtomicU64; 8] {
        // SAFETY: the masked position is below the capacity, whose slots lie inside the mapping that `_pages` keeps;
        // they are only ever accessed as atomics.
        unsafe { self.first.add(position as usize & self.mask).as_ref() }
    }
}

// SAFETY: `Slots` is a `&[[AtomicU64; 8]]` that keeps its target alive.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}
