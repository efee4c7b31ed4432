//! Which files become regions: a client's memory files, this process's own, and files that its operator serves.

use super::backing::check_no_device_memory;
use super::guard;
use super::memory::{Part, check_part, system};
use super::{Region, RegionError, Rights};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FileType, OFlags, SealFlags, Stat};

/// Which files of a client become regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Trust {
    /// Memory files sealed against shrinking, which cannot go away under their mapping.
    #[default]
    Sealed,
    /// Also memory files without a seal (files of a tmpfs, as in /dev/shm, too), from processes of the engine's own user,
    /// who owns the file. One that is cut short is [lost](Region::is_lost). Needs
    /// [`guard_process`](crate::engine::guard_process).
    SameUser,
}

/// The type of a file system of huge pages, as `fstatfs` names it.
const HUGETLBFS_MAGIC: rustix::fs::FsWord = 0x9584_58f6;

impl Region {
    /// `bytes` bytes of somebody's memory file, from any byte `offset` of it on.
    ///
    /// # Errors
    /// If it is not a memory file that is trusted so, is opened with fewer rights than asked for, is too small, or
    /// cannot be mapped.
    pub fn from_fd(
        fd: impl AsFd,
        offset: u64,
        bytes: u64,
        rights: Rights,
        trust: Trust,
    ) -> Result<Region, RegionError> {
        let fd = fd.as_fd();
        let seals = check_mode(fd, rights)?;
        let is_sealed = seals.contains(SealFlags::SHRINK);
        if !is_sealed && trust == Trust::Sealed {
            return Err(RegionError::BadFd(
                "not sealed against shrinking: seal it (F_SEAL_SHRINK), or run the engine with trust = same-uid",
            ));
        }
        if !is_sealed && !guard::is_installed() {
            return Err(RegionError::BadFd(
                "not sealed against shrinking, and the engine's process has not called guard_process: seal it",
            ));
        }
        if !is_sealed && regular(fd)?.st_uid != rustix::process::geteuid().as_raw() {
            return Err(RegionError::BadFd("not sealed against shrinking, and another user's"));
        }
        Self::map_memory_file(fd, offset, bytes, rights, is_sealed)
    }

    /// The same of a memory file of this process's own, which needs no seal: who cuts it short harms himself only.
    ///
    /// # Errors
    /// As [`from_fd`](Self::from_fd).
    pub fn of_own_fd(fd: impl AsFd, offset: u64, bytes: u64, rights: Rights) -> Result<Region, RegionError> {
        let fd = fd.as_fd();
        let seals = check_mode(fd, rights)?;
        Self::map_memory_file(fd, offset, bytes, rights, seals.contains(SealFlags::SHRINK))
    }

    fn map_memory_file(
        fd: BorrowedFd<'_>,
        offset: u64,
        bytes: u64,
        rights: Rights,
        is_sealed: bool,
    ) -> Result<Region, RegionError> {
        let stat = regular(fd)?;
        check_part(offset, bytes, stat.st_size as u64)?;
        const BLOCK_BYTES: u64 = 512;
        let all_there = (stat.st_blocks as u64).saturating_mul(BLOCK_BYTES) >= stat.st_size as u64;
        // Of huge pages that are not there yet, or are not there any more, nobody has promised that there are enough.
        let filesystem = rustix::fs::fstatfs(fd).map_err(system("fstatfs"))?;
        let is_huge = filesystem.f_type == HUGETLBFS_MAGIC;
        let part = Part { offset, bytes, page_bytes: filesystem.f_bsize as u64 };
        Self::map(fd, part, rights, all_there, !is_sealed || is_huge)
    }

    /// All of a file of any file system, for reading. With `populate` all of it is read now.
    ///
    /// # Errors
    /// If the guard is not [installed](super::guard::install) or it is not a regular file with bytes in it.
    pub fn of_file(fd: impl AsFd, populate: bool) -> Result<Region, RegionError> {
        let fd = fd.as_fd();
        if !guard::is_installed() {
            return Err(RegionError::BadFd("a file may be cut short: this process must call guard_process first"));
        }
        let stat = regular(fd)?;
        let bytes = stat.st_size as u64;
        check_part(0, bytes, bytes)?;
        let page_bytes = rustix::fs::fstatfs(fd).map_err(system("fstatfs"))?.f_bsize as u64;
        Self::map(fd, Part { offset: 0, bytes, page_bytes }, Rights::READ, populate, true)
    }
}

/// The seals of a memory file that may be mapped with these rights.
fn check_mode(fd: BorrowedFd<'_>, rights: Rights) -> Result<SealFlags, RegionError> {
    let mode = rustix::fs::fcntl_getfl(fd).map_err(|_| RegionError::BadFd("its mode cannot be read"))?;
    if mode.contains(OFlags::PATH) {
        return Err(RegionError::BadFd("opened as a path only"));
    }
    // First, because only memory files have seals: a file of another kind could make other calls wait.
    let Ok(seals) = rustix::fs::fcntl_get_seals(fd) else {
        check_no_device_memory(fd)?;
        return Err(RegionError::BadFd("not a memory file (no seals)"));
    };
    if rights.write && mode & OFlags::ACCMODE != OFlags::RDWR {
        return Err(RegionError::BadFd("not open for writing"));
    }
    if rights.write && seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err(RegionError::BadFd("sealed against writing"));
    }
    Ok(seals)
}

fn regular(fd: BorrowedFd<'_>) -> Result<Stat, RegionError> {
    let stat = rustix::fs::fstat(fd).map_err(system("fstat"))?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if is_regular { Ok(stat) } else { Err(RegionError::BadFd("not a regular file")) }
}
