//! Other engines: authenticated connections to them, listened for and dialled.
//!
//! [`Peers::start`] starts one thread that listens and dials. It proves to each other engine that both have the same
//! key ([`Keys`]), puts the sockets of a connection together, and gives them out as [`Connected`]; what is sent on them
//! then is no matter of this module. It never waits for anybody: a peer that says nothing holds its socket's slot, and
//! that until a deadline.
//!
//! Two engines have one connection, whoever dialled. If both dial at once, the engine with the lower [`Identity`]
//! decides: it keeps its own connection from the moment that it has sent its proof, and takes the other's until then.
//! The other engine takes whatever is proven to it.
//!
//! Who has a key is trusted to be whichever engine it says. Without keys only loopback addresses are listened on and
//! dialled, and every user of the host can connect. Nothing is encrypted.

mod base64;
mod config;
mod counters;
mod dialler;
mod endpoint;
mod events;
mod exchange;
mod handshake;
mod keys;
mod listener;
mod mac;
mod message;
mod refusal;
mod side;
mod socket;
mod table;
mod thread;
mod wire;

pub use config::{Config, StartError};
pub use counters::Counters;
pub use endpoint::{ADDRESSES_MAX, ENDPOINT_BYTES_MAX, Endpoint, EndpointError, Identity};
pub use events::{Connected, Event, Events, Failure, Hold};
pub use exchange::End;
pub use handshake::{Agreed, Initiator, InitiatorStep, Joiner, Local, Responder, ResponderStep, Role, SessionKey};
pub use keys::{KEY_BYTES, Key, KeyError, KeyId, Keys, make_key_file};
pub use message::{BadMessage, MESSAGE_BYTES_MAX, Message};
pub use refusal::Refusal;
pub use wire::{JoinClaim, LANES_MAX, Limits, Version};

use events::{Letter, Post};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The version of the peer protocol.
pub const VERSION: Version = Version { major: 1, minor: 0 };

/// A feature: an engine on the same host may map what it opens, and be told how (HERE).
pub const MAP_MEMORY: u64 = 1 << 0;

/// A feature: an engine has an RDMA device and may use it. Who dialled and who listened then find out, over the first socket
/// of the connection and before anything else, whether both can reach each other by it.
pub const VERBS: u64 = 1 << 1;

/// The thread that listens and dials. It stops when this is dropped; connections given out stay.
#[derive(Debug)]
pub struct Peers {
    post: Post,
    thread: Option<JoinHandle<()>>,
    identity: Identity,
    endpoint: Option<Endpoint>,
    counters: Arc<Mutex<Counters>>,
}

impl Peers {
    /// Listens where the configuration says, and starts.
    ///
    /// # Errors
    /// An address other than loopback without a key, an address that cannot be listened on, a congestion control that
    /// the kernel does not have, limits of 0.
    pub fn start(config: Config) -> Result<(Peers, Events), StartError> {
        let counters = Arc::new(Mutex::new(Counters::default()));
        let identity = config.identity;
        let started = thread::Thread::prepare(config, counters.clone())?;
        let thread::Prepared { thread, events, post, endpoint } = started;
        let thread = std::thread::Builder::new()
            .name("scatter-peer".to_owned())
            .spawn(move || thread.run())
            .map_err(|source| StartError::System { operation: "starting a thread", source })?;
        Ok((Peers { post, thread: Some(thread), identity, endpoint, counters }, events))
    }

    /// This engine.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// How others reach this engine; `None` if it listens nowhere, or on every address and is not told which to name.
    #[must_use]
    pub fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_ref()
    }

    /// Wants a connection to that engine from now on, also after a loss. An [`Event`] says when there is one, and when
    /// the engine has been tried a few times in vain. Who asks while it is known to be unreachable is told at once.
    pub fn connect(&self, endpoint: Endpoint) {
        self.post.send(Letter::Connect(endpoint));
    }

    /// Dials that engine no more. A connection that was given out stays.
    pub fn forget(&self, identity: Identity) {
        self.post.send(Letter::Forget(identity));
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.post.send(Letter::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; there is nothing to be done about it here.
            let _ = thread.join();
        }
    }
}
