//! The service manager: systemd, or whoever else gave this process a socket to say how it is (`NOTIFY_SOCKET`).
//!
//! The crate for it, sd-notify, cannot send to abstract addresses, which the protocol allows.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells it one state, as lines `NAME=VALUE` of the protocol. Without a manager this does nothing.
pub fn tell(state: &str) {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&address, state) {
        tracing::warn!(?error, "the service manager cannot be told");
    }
}

fn send(address: &OsStr, state: &str) -> io::Result<()> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read must not hold this process up.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}
