//! What peers are started with.

use super::handshake::Local;
use super::{EndpointError, Identity, Keys, Limits, VERSION, socket};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// How an engine meets others.
#[derive(Debug)]
pub struct Config {
    /// Which engine this is: random, another each time it starts.
    pub identity: Identity,
    /// Where to listen; nowhere by default. Port 0 lets the kernel choose. Without keys only loopback addresses.
    pub listen: Vec<SocketAddr>,
    /// What others are told to connect to. If empty, what is listened on.
    pub advertise: Vec<SocketAddr>,
    /// `None`: nobody proves anything, and only loopback addresses are used.
    pub keys: Option<Keys>,
    /// How much this engine is ready for, per peer.
    pub limits: Limits,
    /// Feature bits offered.
    pub offers: u64,
    /// Feature bits without which there is no connection.
    pub requires: u64,
    /// The kernel's congestion control for connections, by name. `None`: the system's choice.
    pub congestion: Option<String>,
    /// Connections that may exist, those included that were given out and have not been dropped.
    pub connections_max: usize,
}

/// Why peers cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Anybody on the network could connect.
    #[error("{0} can be reached from other hosts: listening there needs a key file (or listen on 127.0.0.1)")]
    NeedsKey(SocketAddr),
    /// The kernel does not let this address be listened on.
    #[error("listening on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// No such congestion control, or not for this user.
    #[error("congestion control {name:?}: {source}; see /proc/sys/net/ipv4/tcp_allowed_congestion_control")]
    Congestion {
        /// As it was asked for.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A limit of 0, or too many lanes.
    #[error("limits under which nothing can be moved: {0:?}")]
    Limits(Limits),
    /// The addresses make no endpoint.
    #[error("what others are told to connect to: {0}")]
    Endpoint(#[from] EndpointError),
    /// The kernel refused.
    #[error("{operation}: {source}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Config {
    /// An engine that listens nowhere, without keys.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new() -> Result<Config, StartError> {
        let mut identity = Identity([0; 16]);
        getrandom::fill(&mut identity.0)
            .map_err(|error| StartError::System { operation: "random numbers", source: error.into() })?;
        Ok(Config {
            identity,
            listen: Vec::new(),
            advertise: Vec::new(),
            keys: None,
            limits: Limits { slot_bytes: 256 << 10, slots: 16, commands: 64, lanes: 2 },
            offers: 0,
            requires: 0,
            congestion: None,
            connections_max: 1024,
        })
    }

    pub(super) fn local(&self) -> Local {
        Local {
            identity: self.identity,
            version: VERSION,
            layouts: LAYOUTS,
            offers: self.offers,
            requires: self.requires,
            limits: self.limits,
        }
    }

    /// Whether peers could be started with it, as far as can be seen without listening.
    ///
    /// # Errors
    /// As [`Peers::start`](super::Peers::start).
    pub fn check(&self) -> Result<(), StartError> {
        if !self.limits.is_usable() {
            return Err(StartError::Limits(self.limits));
        }
        if self.keys.is_none()
            && let Some(address) = self.listen.iter().find(|address| !is_loopback(address.ip()))
        {
            return Err(StartError::NeedsKey(*address));
        }
        if let Some(name) = &self.congestion {
            socket::check_congestion(name)
                .map_err(|errno| StartError::Congestion { name: name.clone(), source: errno.into() })?;
        }
        Ok(())
    }
}

/// True for addresses that only this host reaches; also for one of IPv4 written as one of IPv6.
pub(super) fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Bytes of what engines send each other later: a descriptor, a span, a record of an irregular fragment, a piece
/// record.
const LAYOUTS: [u16; 4] = [
    ring_abi::ENTRY_BYTES as u16,
    size_of::<ring_abi::Span>() as u16,
    size_of::<ring_abi::FragmentRecord>() as u16,
    size_of::<ring_abi::PieceRecord>() as u16,
];
