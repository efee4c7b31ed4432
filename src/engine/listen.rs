//! The Unix socket that clients find.

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Gid;
use std::io;
use std::path::{Path, PathBuf};

/// Why a path cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The directory is somebody else's, or open to others.
    #[error("{path}: {reason}; use a directory of your own with mode 0700 (0750 if other users may attach)")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Something that is not a socket of ours is at the path.
    #[error("{path}: {reason}")]
    Occupied {
        /// The socket's path.
        path: PathBuf,
        /// What is there.
        reason: &'static str,
    },
    /// The kernel refused.
    #[error("{path}: {operation}: {source}")]
    System {
        /// The path.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A listening socket at `path`. A socket that a killed engine left there is removed. `shared`: the directory may be open
/// to its group, which then can connect.
pub(super) fn bind(path: &Path, shared: bool) -> Result<OwnedFd, ListenError> {
    let failed = |operation| move |errno| system(path, operation, errno);
    let directory = directory_of(path);
    match rustix::fs::mkdir(directory, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(errno) => return Err(system(directory, "mkdir", errno)),
    }
    let group = check_directory(directory, shared)?;
    let address = SocketAddrUnix::new(path).map_err(failed("socket path"))?;
    if is_taken(path)? {
        remove_stale(path, &address)?;
    }
    let socket = socket().map_err(failed("socket"))?;
    rustix::net::bind(&socket, &address).map_err(failed("bind"))?;
    if let Some(group) = group {
        rustix::fs::chown(path, None, Some(group)).map_err(failed("chown"))?;
        rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP).map_err(failed("chmod"))?;
    }
    rustix::net::listen(&socket, 64).map_err(failed("listen"))?;
    Ok(socket)
}

/// Whether an engine of this user could listen at `path`, as far as can be seen without making anything. That another
/// engine serves there now is no reason against it. `shared`: other users may attach ([`Config::users`](super::Config)).
///
/// # Errors
/// What is wrong with the path, its directory, or what is there.
pub fn check_listen(path: &Path, shared: bool) -> Result<(), ListenError> {
    SocketAddrUnix::new(path).map_err(|errno| system(path, "socket path", errno))?;
    let directory = directory_of(path);
    match rustix::fs::lstat(directory) {
        Ok(_) => {
            check_directory(directory, shared)?;
            is_taken(path).map(|_| ())
        }
        // It would be made.
        Err(rustix::io::Errno::NOENT) => {
            let parent = directory_of(directory);
            let writable = rustix::fs::access(parent, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK);
            writable.map_err(|errno| system(directory, "mkdir", errno))
        }
        Err(errno) => Err(system(directory, "lstat", errno)),
    }
}

fn system(path: &Path, operation: &'static str, errno: rustix::io::Errno) -> ListenError {
    ListenError::System { path: path.to_owned(), operation, source: errno.into() }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// The group that the directory is open to, if it is.
fn check_directory(directory: &Path, shared: bool) -> Result<Option<Gid>, ListenError> {
    let wrong = |reason| ListenError::Directory { path: directory.to_owned(), reason };
    let stat = rustix::fs::lstat(directory).map_err(|_| wrong("cannot be looked at"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(wrong("is not a directory (a link does not count)"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(wrong("belongs to another user"));
    }
    let group = Gid::from_raw(stat.st_gid);
    match stat.st_mode & 0o077 {
        0 => Ok(None),
        0o050 if shared => Ok(Some(group)),
        _ => Err(wrong("is open to other users")),
    }
}

/// Whether there is a socket of this user at the path.
fn is_taken(path: &Path) -> Result<bool, ListenError> {
    let occupied = |reason| ListenError::Occupied { path: path.to_owned(), reason };
    let Ok(stat) = rustix::fs::lstat(path) else { return Ok(false) };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(occupied("exists and is not a socket"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(occupied("is a socket of another user"));
    }
    Ok(true)
}

fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), ListenError> {
    let occupied = |reason| ListenError::Occupied { path: path.to_owned(), reason };
    let probe = socket().map_err(|_| occupied("cannot be probed"))?;
    match rustix::net::connect(&probe, address) {
        Err(rustix::io::Errno::CONNREFUSED) => {
            rustix::fs::unlink(path).map_err(|_| occupied("is a dead socket that cannot be removed"))
        }
        _ => Err(occupied("another engine serves there")),
    }
}
