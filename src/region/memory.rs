//! Regions: memory that descriptors can name.

use super::{Rights, copy};
use memmap2::{MmapOptions, MmapRaw};
use ring_abi::Status;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, FileType, MemfdFlags, OFlags, SealFlags};
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
    /// `None` for adopted memory.
    _map: Option<MmapRaw>,
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
    #[error("a region of {bytes} bytes from a file of {file_bytes}")]
    BadSize {
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
            RegionError::System { .. } => Status::NO_MEMORY,
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
        let system = |operation| move |e: rustix::io::Errno| RegionError::System { operation, source: e.into() };
        let fd =
            rustix::fs::memfd_create("scatter-ring-region", flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .map_err(system("memfd_create"))?;
        rustix::fs::ftruncate(&fd, file_bytes).map_err(system("ftruncate"))?;
        // Pages that cannot be had are an error now, and not a SIGBUS at the first touch.
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, file_bytes).map_err(system("fallocate"))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).map_err(system("fcntl_add_seals"))?;
        let region = Self::map(fd.as_fd(), bytes, Rights::READ_WRITE, true)?;
        Ok((region, fd))
    }

    /// The first `bytes` bytes of somebody's memory file.
    ///
    /// # Errors
    /// If it is not a memory file sealed against shrinking, is opened with fewer rights than asked for, is too small, or
    /// cannot be mapped.
    pub fn from_fd(fd: impl AsFd, bytes: u64, rights: Rights) -> Result<Region, RegionError> {
        let fd = fd.as_fd();
        let mode = rustix::fs::fcntl_getfl(fd).map_err(|_| RegionError::BadFd("its mode cannot be read"))?;
        if mode.contains(OFlags::PATH) {
            return Err(RegionError::BadFd("opened as a path only"));
        }
        // First, because only memory files have seals: a file of another kind could make the calls below wait.
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| RegionError::BadFd("not a memory file (no seals)"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(RegionError::BadFd("not sealed against shrinking (F_SEAL_SHRINK)"));
        }
        if rights.write && mode & OFlags::ACCMODE != OFlags::RDWR {
            return Err(RegionError::BadFd("not open for writing"));
        }
        if rights.write && seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(RegionError::BadFd("sealed against writing"));
        }
        let stat = rustix::fs::fstat(fd).map_err(|_| RegionError::BadFd("fstat failed"))?;
        check_size(bytes, stat.st_size as u64)?;
        const BLOCK_BYTES: u64 = 512;
        let all_there = (stat.st_blocks as u64).saturating_mul(BLOCK_BYTES) >= bytes;
        Self::map(fd, bytes, rights, all_there)
    }

    /// All of a regular file of any file system, for reading. What others write to the file is seen. `populate`: all of it
    /// is read now, and not when it is first touched.
    ///
    /// # Errors
    /// If it is not a regular file, is empty, or cannot be mapped.
    pub fn of_file(file: impl AsFd, populate: bool) -> Result<Region, RegionError> {
        let stat = rustix::fs::fstat(&file).map_err(|_| RegionError::BadFd("fstat failed"))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(RegionError::BadFd("not a regular file"));
        }
        check_size(stat.st_size as u64, BYTES_MAX)?;
        Self::map(file.as_fd(), stat.st_size as u64, Rights::READ, populate)
    }

    /// `populate`: page tables are filled now, so that copying takes no faults. Only for a file that has its pages: else
    /// this would allocate them, as many as somebody says, for a file that costs him nothing.
    fn map(fd: BorrowedFd<'_>, bytes: u64, rights: Rights, populate: bool) -> Result<Region, RegionError> {
        // Whole pages: the kernel does not unmap part of a huge one. The region itself is not rounded.
        let page_bytes = rustix::fs::fstat(fd).map_or(1, |stat| stat.st_blksize as u64);
        let mut options = MmapOptions::new();
        options.len(bytes.next_multiple_of(page_bytes.max(1)) as usize);
        if populate {
            options.populate();
        }
        let map = if rights.write { options.map_raw(&fd) } else { options.map_raw_read_only(&fd) };
        let map = map.map_err(|source| RegionError::System { operation: "mmap", source })?;
        let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is not at 0");
        Ok(Region { base, bytes, rights, withdrawn: AtomicBool::new(false), _map: Some(map) })
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
        check_size(bytes, BYTES_MAX)?;
        let base = NonNull::new(base).ok_or(RegionError::Empty)?;
        Ok(Region { base, bytes, rights, withdrawn: AtomicBool::new(false), _map: None })
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

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], [`RegionError::NoRight`].
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
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], [`RegionError::NoRight`].
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), RegionError> {
        if !self.rights.write {
            return Err(RegionError::NoRight("writing"));
        }
        let at = self.range(offset, data.len() as u64)?;
        // SAFETY: as in `read_at`, the other way round.
        unsafe { copy::copy_range(data.as_ptr(), at, data.len()) };
        Ok(())
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

fn check_size(bytes: u64, file_bytes: u64) -> Result<(), RegionError> {
    if bytes == 0 {
        return Err(RegionError::Empty);
    }
    if bytes > file_bytes.min(BYTES_MAX) {
        return Err(RegionError::BadSize { bytes, file_bytes });
    }
    Ok(())
}
