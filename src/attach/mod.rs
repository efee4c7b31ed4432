//! How a client and an engine on one host meet: a Unix socket, four file descriptors, two mapped areas.
//!
//! After [`Kind::HELLO`](ring_abi::Kind::HELLO) was answered, the socket carries only rare requests (registering,
//! exporting, opening, closing, cancelling). Work goes through the rings.
//!
//! Two more file descriptors of a session wake its two sides, and neither can be used to block the engine:
//!
//! * the doorbell, an eventfd that the client writes and the engine watches edge-triggered and never reads;
//! * the wake socket, to which the engine sends without blocking. The client's end is one descriptor to wait on, and its
//!   end-of-file means that the engine is gone.

mod areas;
mod hello;
mod socket;

pub use areas::{ClientAreas, EngineAreas, RingWords};
pub(crate) use hello::{
    ANSWER_LIMIT, Greeted, connect, connect_within, granted, handle, hello, poll, receive_until, send_until,
};
pub use socket::{Received, Socket};

use crate::region::RegionError;
use ring_abi::Status;
use std::io;
use std::path::PathBuf;

/// Why attaching, or a request on the attach socket, failed.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The other side refused, and says why.
    #[error("{status}{}{text}", if text.is_empty() { "" } else { ": " })]
    Refused {
        /// The code.
        status: Status,
        /// What and where, for people.
        text: String,
    },
    /// No socket at this path.
    #[error("no socket at {}: is `scatter-ring serve` running, and is this its path?", path.display())]
    NoSocket {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A socket that nobody listens on.
    #[error("nobody listens at {} (connection refused): is `scatter-ring serve` running?", path.display())]
    NobodyListens {
        /// The socket.
        path: PathBuf,
    },
    /// The socket or its directory is not accessible.
    #[error(
        "not permitted to use {}: run as the user of the engine, or get access to the socket and its directory",
        path.display()
    )]
    NotPermitted {
        /// The socket.
        path: PathBuf,
    },
    /// The engine speaks another version of the ABI.
    #[error("the engine speaks ABI {engine}, this process {client}: use the same scatter-ring version on both sides")]
    Version {
        /// The engine's version, if it said.
        engine: String,
        /// This library's.
        client: String,
    },
    /// The engine has not answered in time.
    #[error("the engine did not answer within {seconds} s")]
    NoAnswer {
        /// How long it was given.
        seconds: u64,
    },
    /// The other side sent something that this version does not understand.
    #[error("not understood: {0}")]
    BadMessage(&'static str),
    /// The other side has closed the socket.
    #[error("the other side is gone")]
    Closed,
    /// Memory could not be allocated, mapped or used.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The kernel refused.
    #[error("{operation}: {source}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl AttachError {
    pub(crate) fn system(operation: &'static str) -> impl FnOnce(rustix::io::Errno) -> AttachError {
        move |errno| AttachError::System { operation, source: errno.into() }
    }

    pub(crate) fn io(operation: &'static str) -> impl FnOnce(io::Error) -> AttachError {
        move |source| AttachError::System { operation, source }
    }

    /// The code for it.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            AttachError::Refused { status, .. } => *status,
            AttachError::NoSocket { .. } | AttachError::NobodyListens { .. } | AttachError::NoAnswer { .. } => {
                Status::ENGINE_LOST
            }
            AttachError::NotPermitted { .. } => Status::NOT_ALLOWED,
            AttachError::Version { .. } => Status::VERSION_MISMATCH,
            AttachError::BadMessage(_) => Status::BAD_MESSAGE,
            AttachError::Closed => Status::ENGINE_LOST,
            AttachError::Region(e) => e.status(),
            AttachError::System { .. } => Status::NO_MEMORY,
        }
    }
}
