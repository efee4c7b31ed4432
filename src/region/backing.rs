//! Finding the file behind memory that is mapped already, and which files stand for memory of a device.

use super::RegionError;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FsWord, Mode, OFlags};
use std::io;
use std::os::fd::RawFd;

/// Where memory of this process comes from.
#[derive(Debug)]
pub struct Backing {
    /// The file, open for what the mapping allows.
    pub file: OwnedFd,
    /// Byte of the file that the memory begins with.
    pub offset: u64,
}

/// The file that `base .. base + bytes` is mapped from, if all of it is one shared mapping, or several adjacent ones of
/// one file that go on where the one before ends. `None`: it is private, of several files, or its file cannot be opened
/// any more.
///
/// The file is one that this process has open, else the kernel is asked for it, which it grants to few processes.
/// Shared memory that never had a file (`MAP_SHARED | MAP_ANONYMOUS`) counts as without one.
///
/// # Errors
/// If `/proc/self/maps` cannot be read.
pub fn find_backing(base: *const u8, bytes: u64) -> io::Result<Option<Backing>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let Some(found) = covering(&maps, base.addr() as u64, bytes) else { return Ok(None) };
    let file = match opened_already(&found.identity, found.writable)? {
        Some(file) => Some(file),
        None => from_the_kernel(&found),
    };
    Ok(file.map(|file| Backing { file, offset: found.offset }))
}

/// Refuses memory of a GPU, or of another device that hands out its memory as a dma-buf. What a NIC writes there may be
/// seen by the device later than its completion says, so that a transfer would be called done before it is; as long as
/// nothing flushes it before, it is better not had.
///
/// # Errors
/// [`RegionError::BadFd`], with a text that says so.
pub fn check_no_device_memory(file: impl AsFd) -> Result<(), RegionError> {
    let file = file.as_fd();
    // Only of what the kernel names so: the file system of another file could make the next call wait.
    let name = rustix::fs::readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new());
    if !name.is_ok_and(|name| name.to_bytes().starts_with(DMA_BUF_NAME)) {
        return Ok(());
    }
    // Who cannot say what he is, under this name, is none of ours either.
    let magic = rustix::fs::fstatfs(file).map_or(DMA_BUF_MAGIC, |filesystem| filesystem.f_type);
    refuse_device_memory(magic)
}

fn refuse_device_memory(magic: FsWord) -> Result<(), RegionError> {
    if magic == DMA_BUF_MAGIC { Err(RegionError::BadFd(DEVICE_MEMORY)) } else { Ok(()) }
}

/// The type of the file system of dma-bufs, as `fstatfs` names it, and how their names begin.
const DMA_BUF_MAGIC: FsWord = 0x444d_4142;
const DMA_BUF_NAME: &[u8] = b"/dmabuf:";
const DEVICE_MEMORY: &str = "memory of a GPU or of another device (a dma-buf): what is written there cannot be flushed \
     before a transfer is called done, and it is refused until it can be; use memory of the host";

/// A file as `/proc/self/maps` names it: device and inode.
type Identity = (u64, u64);

struct Covered {
    identity: Identity,
    writable: bool,
    /// Of the range's first byte in the file.
    offset: u64,
    /// Its first mapping, as the kernel names it.
    name: String,
}

/// One line of `/proc/self/maps`.
struct Mapping<'a> {
    name: &'a str,
    start: u64,
    end: u64,
    access: &'a str,
    offset: u64,
    identity: Identity,
    path: &'a str,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Mapping<'a>> {
        let mut words = line.splitn(6, ' ');
        let (name, access, offset, device, inode) =
            (words.next()?, words.next()?, words.next()?, words.next()?, words.next()?);
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let ((start, end), (major, minor)) = (name.split_once('-')?, device.split_once(':')?);
        let device = rustix::fs::makedev(hex(major)? as u32, hex(minor)? as u32);
        let path = words.next().unwrap_or("").trim_start();
        let (start, end, offset, inode) = (hex(start)?, hex(end)?, hex(offset)?, inode.parse().ok()?);
        Some(Mapping { name, start, end, access, offset, identity: (device, inode), path })
    }

    fn is_shared_file(&self) -> bool {
        self.access.ends_with('s') && self.identity.1 != 0 && !self.path.starts_with("/dev/zero")
    }
}

fn covering(maps: &str, base: u64, bytes: u64) -> Option<Covered> {
    let end = base.checked_add(bytes)?;
    let mut found: Option<Covered> = None;
    let mut covered = base;
    for mapping in maps.lines().filter_map(Mapping::parse).filter(|m| m.end > base && m.start < end) {
        let offset = mapping.offset + covered.checked_sub(mapping.start)?;
        let writable = mapping.access.contains('w');
        if !mapping.is_shared_file() {
            return None;
        }
        match &found {
            None => {
                found = Some(Covered { identity: mapping.identity, writable, offset, name: mapping.name.to_owned() });
            }
            Some(first) if mapping.start != covered || mapping.identity != first.identity => return None,
            Some(first) if offset != first.offset + (covered - base) || writable != first.writable => return None,
            Some(_) => {}
        }
        covered = mapping.end;
    }
    found.filter(|_| covered >= end)
}

/// A duplicate of a descriptor that this process has of the file.
fn opened_already(identity: &Identity, writable: bool) -> io::Result<Option<OwnedFd>> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()) else { continue };
        // SAFETY: a number that was open a moment ago. If another thread has closed it, or opened something else under it,
        // the duplicate shows that; nothing is done to the original.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        // What is closed by now, or cannot be duplicated, is not what is looked for.
        let Ok(fd) = rustix::io::fcntl_dupfd_cloexec(fd, 0) else { continue };
        if is_of(&fd, identity) && allows(&fd, writable) {
            return Ok(Some(fd));
        }
    }
    Ok(None)
}

fn is_of(fd: impl AsFd, identity: &Identity) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == *identity)
}

fn allows(fd: impl AsFd, writable: bool) -> bool {
    let Ok(mode) = rustix::fs::fcntl_getfl(fd) else { return false };
    let access = mode & OFlags::ACCMODE;
    !mode.contains(OFlags::PATH) && (access == OFlags::RDWR || (!writable && access == OFlags::RDONLY))
}

fn from_the_kernel(found: &Covered) -> Option<OwnedFd> {
    let access = if found.writable { OFlags::RDWR } else { OFlags::RDONLY };
    let path = format!("/proc/self/map_files/{}", found.name);
    let fd = rustix::fs::open(path, access | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()).ok()?;
    // Another thread may have mapped something else there meanwhile.
    is_of(&fd, &found.identity).then_some(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::{MmapOptions, MmapRaw};
    use rustix::fs::MemfdFlags;
    use std::io::Write;

    const BYTES: u64 = 16 << 12;

    fn memory_file() -> OwnedFd {
        let fd = rustix::fs::memfd_create("backing", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, BYTES).unwrap();
        fd
    }

    fn shared(fd: &OwnedFd) -> MmapRaw {
        MmapOptions::new().len(BYTES as usize).map_raw(fd).unwrap()
    }

    /// Whether the range is found to be this file's, from this byte on.
    fn finds(map: *const u8, from: u64, bytes: u64, fd: &OwnedFd) -> bool {
        let stat = rustix::fs::fstat(fd).unwrap();
        find_backing(map.wrapping_add(from as usize), bytes).unwrap().is_some_and(|found| {
            allows(&found.file, true) && is_of(&found.file, &(stat.st_dev, stat.st_ino)) && found.offset == from
        })
    }

    /// R33. Few machines have something that makes a dma-buf; its file system has this number on all.
    #[test]
    fn memory_of_a_device_is_refused_and_the_text_says_why() {
        let refusal = refuse_device_memory(0x444d_4142).unwrap_err();
        assert_eq!(refusal.status(), ring_abi::Status::BAD_FD);
        for part in ["GPU", "dma-buf", "flushed before a transfer is called done", "until"] {
            assert!(refusal.to_string().contains(part), "{refusal}");
        }
        const TMPFS: FsWord = 0x0102_1994;
        const HUGETLBFS: FsWord = 0x9584_58f6;
        assert!([TMPFS, HUGETLBFS, 0].into_iter().all(|magic| refuse_device_memory(magic).is_ok()));
        let (pipe, _other_end) = std::io::pipe().unwrap();
        assert!(check_no_device_memory(memory_file()).is_ok() && check_no_device_memory(pipe).is_ok());
    }

    #[test]
    fn a_memory_file_is_found_from_any_byte_of_it() {
        let fd = memory_file();
        let map = shared(&fd);
        for (from, bytes) in [(0, BYTES), (0, 1), (4097, 100), (BYTES - 1, 1)] {
            assert!(finds(map.as_ptr(), from, bytes, &fd), "{bytes} bytes at {from}");
        }
        assert!(find_backing(map.as_ptr(), BYTES + (1 << 40)).unwrap().is_none(), "it ends before");
        assert!(find_backing(map.as_ptr(), u64::MAX).unwrap().is_none());
    }

    #[test]
    fn a_file_of_a_tmpfs_without_a_name_is_found() {
        let Ok(file) = tempfile::tempfile_in("/dev/shm") else {
            let _ = writeln!(std::io::stderr(), "NOT RUN: there is no /dev/shm here");
            return;
        };
        file.set_len(BYTES).unwrap();
        let fd = OwnedFd::from(file);
        assert!(finds(shared(&fd).as_ptr(), 4096, 4096, &fd));
    }

    #[test]
    fn private_memory_has_no_file_that_others_could_map() {
        let fd = memory_file();
        // SAFETY: a private mapping; nobody else writes to it.
        let private = unsafe { MmapOptions::new().len(BYTES as usize).map_copy(&fd) }.unwrap();
        assert!(find_backing(private.as_ptr(), BYTES).unwrap().is_none(), "a private mapping of a file");
        let anonymous = MmapOptions::new().len(BYTES as usize).map_anon().unwrap();
        assert!(find_backing(anonymous.as_ptr(), BYTES).unwrap().is_none());
        let heap = vec![0u8; 4096];
        assert!(find_backing(heap.as_ptr(), 4096).unwrap().is_none());
    }

    #[test]
    fn adjacent_mappings_count_as_one_if_the_file_goes_on() {
        let line =
            |range: &str, offset: &str, inode| format!("{range} rw-s {offset} 00:01 {inode}    /memfd:x (deleted)\n");
        let whole = |maps: &[String]| covering(&maps.concat(), 0x1800, 0x1000).map(|found| found.offset);
        let (first, next) = (line("1000-2000", "5000", 7), line("2000-3000", "6000", 7));
        assert_eq!(whole(&[first.clone(), next.clone()]), Some(0x5800));
        for (what, second) in [
            ("a gap", line("2001-3000", "6000", 7)),
            ("another part of the file", line("2000-3000", "7000", 7)),
            ("another file", line("2000-3000", "6000", 8)),
            ("a private one", next.replace("rw-s", "rw-p")),
            ("one for reading", next.replace("rw-s", "r--s")),
            ("nothing", String::new()),
        ] {
            assert_eq!(whole(&[first.clone(), second]), None, "{what}");
        }
        assert_eq!(whole(&[next]), None, "it begins too late");
    }

    #[test]
    fn a_file_that_nobody_has_open_is_asked_for_from_the_kernel() {
        let fd = memory_file();
        let map = shared(&fd);
        rustix::io::pwrite(&fd, &[7; 8], 4096).unwrap();
        drop(fd);
        let Some(found) = find_backing(map.as_ptr().wrapping_add(4096), 8).unwrap() else {
            let _ = writeln!(std::io::stderr(), "NOT RUN: this process may not open /proc/self/map_files");
            return;
        };
        let mut bytes = [0; 8];
        rustix::io::pread(&found.file, &mut bytes, found.offset).unwrap();
        assert_eq!(bytes, [7; 8]);
    }
}
