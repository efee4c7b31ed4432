//! The two system calls that move bytes.
//!
//! They take addresses and not slices: shared pages are never behind a Rust reference, and a page that is not there is an
//! answer of the kernel (EFAULT) and no fault of this process.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::time::Duration;

/// A connected TCP socket. Never waits, whatever mode its open file has.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    pub sends: u64,
    pub receives: u64,
}

impl Socket {
    pub fn new(fd: OwnedFd) -> std::io::Result<Socket> {
        // Frames are sent as they are complete: there is nothing to wait for.
        rustix::net::sockopt::set_tcp_nodelay(&fd, true)?;
        Ok(Socket { fd, sends: 0, receives: 0 })
    }

    /// How many bytes the kernel took.
    pub fn send(&mut self, from: &Vectors) -> Result<usize, Errno> {
        self.sends += 1;
        let message = from.message();
        loop {
            // SAFETY: `message` names `from`'s addresses, which the kernel only reads; those that are not mapped it answers with
            // an error. Whoever put them there keeps the memory until this returns.
            let sent = unsafe {
                libc::sendmsg(self.fd.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
            };
            match answer(sent) {
                Err(Errno::INTR) => {}
                other => return other,
            }
        }
    }

    /// How many bytes the kernel gave; 0 at the end of the stream.
    pub fn receive(&mut self, to: &Vectors) -> Result<usize, Errno> {
        self.receives += 1;
        let mut message = to.message();
        loop {
            // SAFETY: `message` names memory that whoever put it into `to` may write, keeps until this returns, and has no
            // reference to; the kernel answers addresses that are not mapped with an error.
            let received = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
            match answer(received) {
                Err(Errno::INTR) => {}
                other => return other,
            }
        }
    }

    /// Closes it so that what the kernel still has to send is thrown away. The other side sees that also if a forked child
    /// has the socket too.
    pub fn abort(self) {
        // Fails only where the other side was faster.
        let _ = rustix::net::connect_unspec(&self.fd);
        // Without it the kernel would only go on for a while with bytes that nobody counts on.
        let _ = rustix::net::sockopt::set_socket_linger(&self.fd, Some(Duration::ZERO));
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn answer(value: isize) -> Result<usize, Errno> {
    usize::try_from(value).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// The addresses of one call. Empty between two calls.
#[derive(Debug)]
pub(super) struct Vectors {
    list: Vec<libc::iovec>,
    bytes: usize,
    limits: Limits,
}

/// A call is never longer, so that a revocation does not wait for long.
#[derive(Clone, Copy, Debug)]
struct Limits {
    count: usize,
    bytes: usize,
    /// No piece reaches beyond the page that it begins in.
    in_page: bool,
}

const USUAL: Limits = Limits { count: 256, bytes: 512 << 10, in_page: false };
/// What a call that failed with EFAULT is repeated with, until it is known which memory it was.
const CAREFUL: Limits = Limits { count: 1, bytes: PAGE_BYTES, in_page: true };
const PAGE_BYTES: usize = 4096;

// SAFETY: addresses of memory that any thread may pass to the kernel; what keeps it moves along with them.
unsafe impl Send for Vectors {}

impl Vectors {
    pub fn new() -> Vectors {
        Vectors { list: Vec::with_capacity(USUAL.count), bytes: 0, limits: USUAL }
    }

    /// Empties the list; the next call is made page by page if it is to be `careful`.
    pub fn start(&mut self, careful: bool) {
        self.list.clear();
        self.bytes = 0;
        self.limits = if careful { CAREFUL } else { USUAL };
    }

    /// Adds as much as there is room for. False: it was not all, and nothing may follow in this call.
    pub fn add(&mut self, at: *mut u8, bytes: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        if self.list.len() == self.limits.count {
            return false;
        }
        let mut taken = bytes.min(self.limits.bytes - self.bytes);
        if self.limits.in_page {
            taken = taken.min(PAGE_BYTES - at.addr() % PAGE_BYTES);
        }
        if taken > 0 {
            self.list.push(libc::iovec { iov_base: at.cast(), iov_len: taken });
            self.bytes += taken;
        }
        taken == bytes
    }

    /// Adds memory that is read only.
    pub fn add_slice(&mut self, slice: &[u8]) -> bool {
        self.add(slice.as_ptr().cast_mut(), slice.len())
    }

    /// Pieces that there is room for.
    pub fn room(&self) -> usize {
        self.limits.count - self.list.len()
    }

    /// Bytes that there is room for.
    pub fn bytes_room(&self) -> usize {
        self.limits.bytes - self.bytes
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn mark(&self) -> (usize, usize) {
        (self.list.len(), self.bytes)
    }

    /// Takes back what was added since [`mark`](Self::mark).
    pub fn back_to(&mut self, (count, bytes): (usize, usize)) {
        self.list.truncate(count);
        self.bytes = bytes;
    }

    fn message(&self) -> libc::msghdr {
        // SAFETY: all of its fields may be 0.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.list.as_ptr().cast_mut();
        message.msg_iovlen = self.list.len() as _;
        message
    }
}
