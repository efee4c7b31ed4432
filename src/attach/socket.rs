//! Messages with file descriptors over a Unix socket.

use super::AttachError;
use ring_abi::{MESSAGE_BYTES, MESSAGE_FDS_MAX, Message};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// Most file descriptors that the kernel lets travel with one packet. There is room for all of them: those that find none
/// are closed by the kernel, on this thread, and see [`without_linger`] for what that can do.
const PACKET_FDS_MAX: usize = 253;

/// More packets than a socket's queue holds.
const QUEUE_PACKETS_MAX: u32 = 1024;

/// One end of an attach connection.
#[derive(Debug)]
pub struct Socket(OwnedFd);

/// A message and the file descriptors that came with it.
#[derive(Debug)]
pub struct Received {
    /// The message.
    pub message: Message,
    /// At most [`MESSAGE_FDS_MAX`], all close-on-exec.
    pub fds: Vec<OwnedFd>,
}

impl Socket {
    /// A connected `SOCK_SEQPACKET` socket.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Socket {
        Socket(fd)
    }

    /// Two connected ends, for a client and an engine in one process.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn pair() -> Result<(Socket, Socket), AttachError> {
        let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(AttachError::system("socketpair"))?;
        Ok((Socket(a), Socket(b)))
    }

    /// Sends one message without waiting: a peer that does not read its answers gets none.
    ///
    /// # Errors
    /// [`AttachError::Closed`] if the other side is gone; [`AttachError::System`], also if its queue is full.
    pub fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<(), AttachError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(AttachError::BadMessage("too many file descriptors"));
        }
        let bytes = message.to_bytes();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, flags) {
            Ok(_) => Ok(()),
            Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => Err(AttachError::Closed),
            Err(e) => Err(AttachError::system("sendmsg")(e)),
        }
    }

    /// Receives one message, waiting for it if `wait` is set. `Ok(None)`: nothing there now.
    ///
    /// # Errors
    /// [`AttachError::Closed`] at the end of the connection; [`AttachError::BadMessage`] for anything that is not one
    /// whole message with at most [`MESSAGE_FDS_MAX`] descriptors. Descriptors that came with it are closed.
    pub fn receive(&self, wait: bool) -> Result<Option<Received>, AttachError> {
        // One byte more than a message, so that a longer packet shows.
        let mut bytes = [0; MESSAGE_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let got = loop {
            match rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Ok(got) => break got,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(rustix::io::Errno::CONNRESET) => return Err(AttachError::Closed),
                Err(e) => return Err(AttachError::system("recvmsg")(e)),
            }
        };
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                fds.extend(rights.inspect(without_linger));
            }
        }
        if got.bytes == 0 {
            return Err(AttachError::Closed);
        }
        if got.flags.contains(ReturnFlags::CTRUNC) || fds.len() > MESSAGE_FDS_MAX {
            return Err(AttachError::BadMessage("too many file descriptors"));
        }
        let message = Message::from_bytes(&bytes[..got.bytes]).map_err(|e| AttachError::BadMessage(e.0))?;
        Ok(Some(Received { message, fds }))
    }

    /// Ends the connection. What the other side has sent and nobody has read is received and closed here, and not by the
    /// kernel.
    pub(crate) fn discard(self) {
        // Fails if the other side has done it.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
        for _ in 0..QUEUE_PACKETS_MAX {
            // An empty packet looks like the end.
            if let Ok(None) = self.receive(false) {
                break;
            }
        }
    }
}

/// Closing a TCP socket that has data to send waits if its last owner asked for that, for as long as he asked: anybody
/// can send such a socket and so stop the thread that closes it.
fn without_linger(fd: &OwnedFd) {
    // Fails for what is not a socket.
    let _ = rustix::net::sockopt::set_socket_linger(fd, None);
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> OwnedFd {
        socket.0
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
