//! Other engines, as a client knows them.

use super::{Client, ClientError};
use crate::attach::AttachError;
use ring_abi::{Kind, NAME_BYTES_MAX, Status};
use std::num::NonZero;

/// Another engine that this client's engine is connected to, or was. A number: every client of the same engine has the same
/// for it, and a client of another engine has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(NonZero<u64>);

impl Peer {
    /// The number: not 0.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

impl Client {
    /// Another engine, by its endpoint's text: [`engine::Engine::endpoint`](crate::engine::Engine::endpoint), or what
    /// `scatter-ring serve` prints when it listens for peers. Returns when this client's engine has a connection to it, at
    /// once if it has one; it keeps it, for all its clients, and dials again when it is lost.
    ///
    /// ```no_run
    /// # use scatter_ring::client::Client;
    /// # use scatter_ring::region::Rights;
    /// # let endpoint = "";
    /// let client = Client::attach("/run/scatter-ring/socket")?;
    /// let peer = client.connect(endpoint)?;
    /// let table = client.open_at(peer, "embeddings", Rights::READ)?;
    /// # Ok::<(), scatter_ring::client::ClientError>(())
    /// ```
    ///
    /// # Errors
    /// [`PEER_UNREACHABLE`](Status::PEER_UNREACHABLE), with the reason, if there is no connection after some attempts or 5 s;
    /// [`UNSUPPORTED`](Status::UNSUPPORTED) if the engine has no peers; [`NOT_ALLOWED`](Status::NOT_ALLOWED) if it is
    /// another user's; [`INVALID_SETTING`](Status::INVALID_SETTING) for a text that is no endpoint.
    pub fn connect(&self, endpoint: &str) -> Result<Peer, ClientError> {
        let endpoint = endpoint.trim();
        check_endpoint(endpoint)?;
        // The engine answers before this side gives up.
        let answer = self.ask(Kind::CONNECT, &[], endpoint, &[])?;
        let number = NonZero::new(answer.args[0]);
        number.map(Peer).ok_or_else(|| self.broken("an answer without a peer's number"))
    }
}

fn check_endpoint(endpoint: &str) -> Result<(), ClientError> {
    let bytes = endpoint.len();
    let text = match bytes {
        0 => "an endpoint is needed: the text that the other engine gives out".to_owned(),
        1..=NAME_BYTES_MAX => return Ok(()),
        _ => format!(
            "an endpoint of {bytes} bytes; a client can send {NAME_BYTES_MAX}: let the other engine advertise fewer addresses"
        ),
    };
    Err(AttachError::Refused { status: Status::INVALID_SETTING, text }.into())
}
