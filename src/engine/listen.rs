//! The Unix socket that clients find.

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::path::{Path, PathBuf};

/// Why a path cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The directory is somebody else's, or open to others.
    #[error("{path}: {reason}; use a directory of your own with mode 0700")]
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

/// A listening socket at `path`. A socket that a killed engine left there is removed.
pub(super) fn bind(path: &Path) -> Result<OwnedFd, ListenError> {
    let system = |operation| {
        let path = path.to_owned();
        move |errno: rustix::io::Errno| ListenError::System { path, operation, source: errno.into() }
    };
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    check_directory(directory)?;
    let address = SocketAddrUnix::new(path).map_err(system("socket path"))?;
    remove_stale(path, &address)?;
    let socket = socket().map_err(system("socket"))?;
    rustix::net::bind(&socket, &address).map_err(system("bind"))?;
    rustix::net::listen(&socket, 64).map_err(system("listen"))?;
    Ok(socket)
}

fn socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn check_directory(directory: &Path) -> Result<(), ListenError> {
    let wrong = |reason| ListenError::Directory { path: directory.to_owned(), reason };
    match rustix::fs::mkdir(directory, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(errno) => {
            let path = directory.to_owned();
            return Err(ListenError::System { path, operation: "mkdir", source: errno.into() });
        }
    }
    let stat = rustix::fs::lstat(directory).map_err(|_| wrong("cannot be looked at"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(wrong("is not a directory (a link does not count)"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(wrong("belongs to another user"));
    }
    if stat.st_mode & 0o077 != 0 {
        return Err(wrong("is open to other users"));
    }
    Ok(())
}

fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), ListenError> {
    let occupied = |reason| ListenError::Occupied { path: path.to_owned(), reason };
    let Ok(stat) = rustix::fs::lstat(path) else { return Ok(()) };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(occupied("exists and is not a socket"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(occupied("is a socket of another user"));
    }
    let probe = socket().map_err(|_| occupied("cannot be probed"))?;
    match rustix::net::connect(&probe, address) {
        Err(rustix::io::Errno::CONNREFUSED) => {
            rustix::fs::unlink(path).map_err(|_| occupied("is a dead socket that cannot be removed"))
        }
        _ => Err(occupied("another engine serves there")),
    }
}
