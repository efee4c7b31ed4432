//! TCP sockets with the settings that every connection between engines has.

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};
use std::net::SocketAddr;
use std::time::Duration;

/// A listening socket.
pub(super) fn listen(address: SocketAddr, congestion: Option<&str>) -> Result<OwnedFd, Errno> {
    let socket = open(address)?;
    // Connections of an engine that ran before may still be closing.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        // An address that is listened on is that address, whatever the system's default.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    // Accepted sockets inherit it, and have it from their first segment.
    set_congestion(&socket, congestion)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// The address that a socket has, with the port that the kernel chose.
pub(super) fn local_address(socket: &OwnedFd) -> Result<SocketAddr, Errno> {
    SocketAddr::try_from(rustix::net::getsockname(socket)?).map_err(|_| Errno::AFNOSUPPORT)
}

/// The next connection of a listener, `None` if none waits.
pub(super) fn accept(listener: &OwnedFd) -> Result<Option<OwnedFd>, Errno> {
    match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => Ok(Some(socket)),
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => Err(errno),
        // None waits, or what waited has failed before it was taken (accept(2) names a dozen ways): epoll says if there
        // are more.
        Err(_) => Ok(None),
    }
}

/// A socket that is connecting. It becomes writable when it has, or has failed: [`connected`] tells.
pub(super) fn connect(address: SocketAddr, congestion: Option<&str>) -> Result<OwnedFd, Errno> {
    let socket = open(address)?;
    set_congestion(&socket, congestion)?;
    settle(&socket)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

/// Whether it has connected yet. On loopback a socket can connect to itself, where nobody listens at a port that the
/// kernel may give away: nobody listens there then either.
pub(super) fn connected(socket: &OwnedFd) -> Result<bool, Errno> {
    sockopt::socket_error(socket)??;
    match peer_address(socket) {
        Some(peer) if peer == local_address(socket)? => Err(Errno::CONNREFUSED),
        peer => Ok(peer.is_some()),
    }
}

/// Who is at the other end.
pub(super) fn peer_address(socket: &OwnedFd) -> Option<SocketAddr> {
    rustix::net::getpeername(socket).ok().flatten().and_then(|address| SocketAddr::try_from(address).ok())
}

/// Whether the kernel knows a congestion control of that name and lets this user have it.
pub(super) fn check_congestion(name: &str) -> Result<(), Errno> {
    set_congestion(&open(([127, 0, 0, 1], 0).into())?, Some(name))
}

/// Reads what is there: `None` if nothing is, 0 at the end.
pub(super) fn receive(socket: &OwnedFd, into: &mut [u8]) -> Result<Option<usize>, Errno> {
    match rustix::net::recv(socket, into, RecvFlags::DONTWAIT) {
        Ok((bytes, _)) => Ok(Some(bytes)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Sends what there is room for.
pub(super) fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    match rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        other => other,
    }
}

/// Says that nothing more is sent, behind what was.
pub(super) fn finish(socket: &OwnedFd) {
    // One that is not connected any more has finished.
    let _ = rustix::net::shutdown(socket, Shutdown::Write);
}

fn open(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// Small messages leave at once, and a peer that has gone silent is found out.
pub(super) fn settle(socket: impl AsFd) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_tcp_user_timeout(&socket, SILENCE_MS)?;
    sockopt::set_tcp_keepidle(&socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(&socket, KEEPALIVE)?;
    sockopt::set_socket_keepalive(&socket, true)
}

fn set_congestion(socket: &OwnedFd, name: Option<&str>) -> Result<(), Errno> {
    name.map_or(Ok(()), |name| sockopt::set_tcp_congestion(socket, name))
}

const BACKLOG: i32 = 128;
/// Data that is not acknowledged, or probes that are not answered, for so long break a connection (R32).
const SILENCE_MS: u32 = 3000;
/// A connection on which nothing happens is probed this often.
const KEEPALIVE: Duration = Duration::from_secs(1);
