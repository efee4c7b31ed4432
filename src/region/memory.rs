//! Regions: memory that descriptors can name.

use super::guard::Watched;
use super::pages::take_pages;
use super::registered::Registered;
use super::{Backing, Rights, copy};
use crate::verbs::VerbsError;
use memmap2::{MmapOptions, MmapRaw};
use ring_abi::Status;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory with a length and rights. It stays mapped as long as the value lives; its contents may change at any time.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    bytes: u64,
    rights: Rights,
    withdrawn: AtomicBool,
    /// Its pages may go away: nothing keeps its file as long as it is.
    may_be_lost: bool,
    /// Before the mapping, because it is dropped before it.
    pub(super) registered: Registered,
    /// `None` for adopted memory. Before the mapping, because it is dropped before it.
    watched: Option<Watched>,
    map: Option<MmapRaw>,
    /// Behind the mapping, because it is dropped behind it.
    _lease: Option<Lease>,
    /// What others can map it from, if it is kept for them.
    file: Option<Backing>,
}

/// A socket whose end says that memory of another process is not mapped here any more.
#[derive(Debug)]
struct Lease(OwnedFd);

impl Drop for Lease {
    fn drop(&mut self) {
        // A forked child may have it too. Fails if the other side is gone.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

// SAFETY: the base pointer is used by the copy routines only, which expect concurrent changes.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// Why memory cannot become a region, or a range of one cannot be copied.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// Not a memory file that keeps its size.
    #[error("not usable as a region: {0}")]
    BadFd(&'static str),
    /// No bytes.
    #[error("a region of 0 bytes")]
    Empty,
    /// More bytes than the file has.
    #[error("a region of {bytes} bytes at {offset} of a file of {file_bytes}")]
    BadSize {
        /// First byte asked for.
        offset: u64,
        /// Asked for.
        bytes: u64,
        /// Found.
        file_bytes: u64,
    },
    /// A range outside the region.
    #[error("range of {len} bytes at {offset} is outside a region of {bytes} bytes")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the region.
        bytes: u64,
    },
    /// The region does not grant this.
    #[error("the region does not grant {0}")]
    NoRight(&'static str),
    /// Its file was cut short, or a page of it could not be had, while it was mapped.
    #[error("the region is lost: its file was cut short, or has no memory for a page")]
    Lost,
    /// As many regions as a process can have are mapped.
    #[error("too many regions are mapped in this process")]
    TooMany,
    /// An RDMA device does not take it.
    #[error("not registered: {0}")]
    Device(#[source] VerbsError),
    /// The kernel refused.
    #[error("{operation}: {source}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl RegionError {
    /// The code for it in an attach reply.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            RegionError::BadFd(_) => Status::BAD_FD,
            RegionError::Empty | RegionError::BadSize { .. } => Status::INVALID_SETTING,
            RegionError::OutOfRange { .. } => Status::OUT_OF_RANGE,
            RegionError::NoRight(_) => Status::NO_RIGHT,
            RegionError::Lost => Status::REGION_GONE,
            RegionError::TooMany => Status::LIMIT_EXCEEDED,
            RegionError::Device(_) | RegionError::System { .. } => Status::NO_MEMORY,
        }
    }
}

/// Which pages [`Region::allocate`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Huge {
    /// 2 MiB pages from the reserved pool if it has enough for the whole region, else 4 KiB pages.
    #[default]
    IfReserved,
    /// 4 KiB pages.
    Never,
}

/// Bytes of a reserved huge page on x86-64 and on aarch64 with 4 KiB base pages.
const HUGE_BYTES: u64 = 2 << 20;

/// The user half of a 57-bit address space: no region is longer.
const BYTES_MAX: u64 = 1 << 56;

impl Region {
    /// New memory: a memory file sealed against shrinking, all pages present, and its descriptor for others to map.
    /// The contents are 0.
    ///
    /// # Errors
    /// If `bytes` is 0 or the kernel has no memory for it.
    pub fn allocate(bytes: u64, huge: Huge) -> Result<(Region, OwnedFd), RegionError> {
        if bytes == 0 {
            return Err(RegionError::Empty);
        }
        // The kernel would take all that there is before it says no.
        let machine = rustix::system::sysinfo();
        let machine_bytes =
            (machine.totalram as u64 + machine.totalswap as u64).saturating_mul(machine.mem_unit.into());
        if bytes > machine_bytes {
            let source = io::Error::from(io::ErrorKind::OutOfMemory);
            return Err(RegionError::System { operation: "more than this machine has", source });
        }
        if huge == Huge::IfReserved && bytes >= HUGE_BYTES {
            let rounded = bytes.next_multiple_of(HUGE_BYTES);
            if let Ok(made) = Self::allocate_file(bytes, rounded, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB) {
                return Ok(made);
            }
        }
        Self::allocate_file(bytes, bytes, MemfdFlags::empty())
    }

    fn allocate_file(bytes: u64, file_bytes: u64, flags: MemfdFlags) -> Result<(Region, OwnedFd), RegionError> {
        let fd =
            rustix::fs::memfd_create("scatter-ring-region", flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .map_err(system("memfd_create"))?;
        rustix::fs::ftruncate(&fd, file_bytes).map_err(system("ftruncate"))?;
        // Pages that cannot be had are an error now, and not a SIGBUS at the first touch.
        take_pages(&fd, file_bytes).map_err(system("fallocate"))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).map_err(system("fcntl_add_seals"))?;
        // A client that gets the file can punch holes into it, and then the pool of huge pages may be empty.
        let may_be_lost = flags.contains(MemfdFlags::HUGETLB);
        let page_bytes = if may_be_lost { HUGE_BYTES } else { 1 };
        let part = Part { offset: 0, bytes, page_bytes };
        let region = Self::map(fd.as_fd(), part, Rights::READ_WRITE, true, may_be_lost)?;
        Ok((region, fd))
    }

    /// `populate`: page tables are filled now, so that copying takes no faults. Only for a file that has its pages: else
    /// this would allocate them, as many as somebody says, for a file that costs him nothing.
    pub(super) fn map(
        fd: BorrowedFd<'_>,
        part: Part,
        rights: Rights,
        populate: bool,
        may_be_lost: bool,
    ) -> Result<Region, RegionError> {
        // Whole pages, from the one that has the first byte: the kernel does not map or unmap part of a huge one. The
        // region itself is not rounded.
        let skipped = part.offset % part.page_bytes.max(1);
        let mapped_bytes = (skipped + part.bytes).next_multiple_of(part.page_bytes.max(1));
        let mut options = MmapOptions::new();
        options.offset(part.offset - skipped).len(mapped_bytes as usize);
        if populate {
            options.populate();
        }
        let map = if rights.write { options.map_raw(&fd) } else { options.map_raw_read_only(&fd) };
        let map = map.map_err(|source| RegionError::System { operation: "mmap", source })?;
        let watched = Watched::new(map.as_mut_ptr(), map.len()).ok_or(RegionError::TooMany)?;
        let base = NonNull::new(map.as_mut_ptr().wrapping_add(skipped as usize)).expect("a mapping is not at 0");
        Ok(Region { may_be_lost, watched: Some(watched), map: Some(map), ..Region::at(base, part.bytes, rights) })
    }

    /// Keeps the file, a descriptor more, so that another process can map the same bytes: from this byte of the file on. A
    /// file that is no memory file is not kept.
    #[must_use]
    pub(crate) fn with_file(mut self, file: OwnedFd, offset: u64) -> Region {
        // Only they have seals.
        self.file = rustix::fs::fcntl_get_seals(&file).is_ok().then_some(Backing { file, offset });
        self
    }

    /// Shuts the socket down when the memory has been unmapped.
    #[must_use]
    pub(crate) fn leased_by(mut self, socket: OwnedFd) -> Region {
        self._lease = Some(Lease(socket));
        self
    }

    /// Its file for another process, open for no more than these rights, which the region has to have. `None`: it has none,
    /// or none was kept.
    ///
    /// # Errors
    /// No descriptor is left, or there is no /proc.
    pub(crate) fn file_for(&self, rights: Rights) -> io::Result<Option<Backing>> {
        let Some(Backing { file, offset }) = &self.file else { return Ok(None) };
        let file = if rights.write {
            rustix::io::fcntl_dupfd_cloexec(file, 0)?
        } else {
            // Another description of the same file: the mode of this one cannot be taken from a duplicate.
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?
        };
        Ok(Some(Backing { file, offset: *offset }))
    }

    /// Memory that this process already has.
    ///
    /// # Safety
    /// `base .. base + bytes` must be readable, and writable if `rights` say so, until the region is dropped. Nobody may
    /// hold a Rust reference to memory of it while a descriptor may write to it.
    ///
    /// # Errors
    /// If `bytes` is 0 or `base` is null.
    pub unsafe fn adopt(base: *mut u8, bytes: u64, rights: Rights) -> Result<Region, RegionError> {
        check_part(0, bytes, BYTES_MAX)?;
        let base = NonNull::new(base).ok_or(RegionError::Empty)?;
        Ok(Region::at(base, bytes, rights))
    }

    /// Memory with nothing to unmap, give back or watch.
    fn at(base: NonNull<u8>, bytes: u64, rights: Rights) -> Region {
        let (withdrawn, registered) = (AtomicBool::new(false), Registered::default());
        let (may_be_lost, watched, map, file) = (false, None, None, None);
        Region { base, bytes, rights, withdrawn, may_be_lost, registered, watched, map, _lease: None, file }
    }

    /// The whole pages that it lies in, of its own mapping; of adopted memory only itself.
    pub(super) fn pages(&self) -> (*mut u8, usize) {
        self.map.as_ref().map_or((self.as_ptr(), self.bytes as usize), |map| (map.as_mut_ptr(), map.len()))
    }

    /// Bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What it grants.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The first byte. Only to be read and written by means that expect others to write at the same time.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Refuses new use: [`is_withdrawn`](Self::is_withdrawn) is true from now on. What is under way goes on.
    pub fn withdraw(&self) {
        self.withdrawn.store(true, Ordering::Release);
    }

    /// True once the owner has withdrawn it.
    #[must_use]
    #[inline]
    pub fn is_withdrawn(&self) -> bool {
        self.withdrawn.load(Ordering::Acquire)
    }

    /// True if its pages may go away, so that who copies must ask [`is_lost`](Self::is_lost) before he says that it is
    /// done. Of other regions that can be said of many at once: only broken memory takes their pages.
    #[must_use]
    #[inline]
    pub fn may_be_lost(&self) -> bool {
        self.may_be_lost
    }

    /// True once a page of its file could not be had: all of it reads as 0 from then on, and what is written to it goes
    /// nowhere. To be asked after a copy: if it is false, then what was copied is what the file had.
    ///
    /// In a process without the [guard](super::guard) it is never true, and such a fault ends the process.
    #[must_use]
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.watched.as_ref().is_some_and(Watched::is_lost)
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], [`RegionError::NoRight`], [`RegionError::Lost`].
    ///
    /// ```
    /// use scatter_ring::region::{Huge, Region};
    /// let (region, _fd) = Region::allocate(4096, Huge::Never)?;
    /// region.write_at(4092, &[1, 2, 3, 4])?;
    /// let mut out = [9; 4];
    /// region.read_at(4092, &mut out)?;
    /// assert_eq!(out, [1, 2, 3, 4]);
    /// assert!(region.read_at(4093, &mut out).is_err());
    /// # Ok::<(), scatter_ring::region::RegionError>(())
    /// ```
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), RegionError> {
        if !self.rights.read {
            return Err(RegionError::NoRight("reading"));
        }
        let at = self.range(offset, out.len() as u64)?;
        // SAFETY: `range` checked that the source lies in the region, which stays mapped while `self` is borrowed; the
        // destination is an exclusive slice, which a region cannot overlap.
        unsafe { copy::copy_range(at, out.as_mut_ptr(), out.len()) };
        self.not_lost()
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], [`RegionError::NoRight`], [`RegionError::Lost`].
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), RegionError> {
        if !self.rights.write {
            return Err(RegionError::NoRight("writing"));
        }
        let at = self.range(offset, data.len() as u64)?;
        // SAFETY: as in `read_at`, the other way round.
        unsafe { copy::copy_range(data.as_ptr(), at, data.len()) };
        self.not_lost()
    }

    fn not_lost(&self) -> Result<(), RegionError> {
        if self.is_lost() { Err(RegionError::Lost) } else { Ok(()) }
    }

    fn range(&self, offset: u64, len: u64) -> Result<*mut u8, RegionError> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.bytes);
        if !inside {
            return Err(RegionError::OutOfRange { offset, len, bytes: self.bytes });
        }
        // SAFETY: the offset is inside the region.
        Ok(unsafe { self.base.as_ptr().add(offset as usize) })
    }
}

/// Which bytes of a file become a region, and the size of the pages that its file system maps.
pub(super) struct Part {
    pub offset: u64,
    pub bytes: u64,
    pub page_bytes: u64,
}

pub(super) fn system(operation: &'static str) -> impl FnOnce(rustix::io::Errno) -> RegionError {
    move |errno| RegionError::System { operation, source: errno.into() }
}

pub(super) fn check_part(offset: u64, bytes: u64, file_bytes: u64) -> Result<(), RegionError> {
    if bytes == 0 {
        return Err(RegionError::Empty);
    }
    let fits = offset.checked_add(bytes).is_some_and(|end| end <= file_bytes.min(BYTES_MAX));
    if fits { Ok(()) } else { Err(RegionError::BadSize { offset, bytes, file_bytes }) }
}
