//! What the two sides of a handshake have in common.

use super::exchange::{End, Exchange};
use super::handshake::HANDSHAKE_NS;
use super::mac::{self, Use};
use super::wire::{HELLO_BYTES, Hello, Kind, MAC_BYTES, PROOF_BYTES};
use super::{Agreed, Key, KeyId, Local, Refusal, Role, SessionKey, Version};
use std::fmt;
use zeroize::Zeroizing;

/// What both sides have.
pub(super) struct Side {
    pub exchange: Exchange,
    local: Local,
    epoch: u64,
    nonce: [u8; 32],
    pub key: Option<KeyId>,
    /// Zeros without a key.
    secret: Zeroizing<[u8; 32]>,
    pub peer: Option<Hello>,
    pub transcript: [u8; 2 * HELLO_BYTES],
}

impl fmt::Debug for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Side").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Side {
    pub fn new(local: &Local, epoch: u64, nonce: [u8; 32], now_ns: u64) -> Side {
        Side {
            exchange: Exchange::new(local.version, now_ns.saturating_add(HANDSHAKE_NS)),
            local: *local,
            epoch,
            nonce,
            key: None,
            secret: Zeroizing::default(),
            peer: None,
            transcript: [0; 2 * HELLO_BYTES],
        }
    }

    pub fn use_key(&mut self, key: Option<&Key>) {
        self.key = key.map(Key::id);
        self.secret = Zeroizing::new(key.map_or([0; 32], |key| *key.secret()));
    }

    pub fn hello(&self) -> Hello {
        let Local { identity, version, layouts, offers, requires, limits } = self.local;
        Hello {
            version,
            layouts,
            offers,
            requires,
            limits,
            epoch: self.epoch,
            identity,
            key: self.key,
            nonce: self.nonce,
        }
    }

    /// Initiator's and responder's messages after the HELLOs.
    pub fn kinds(&self) -> [Kind; 2] {
        match self.key {
            Some(_) => [Kind::Proof, Kind::ProofAnswer],
            None => [Kind::Unproven, Kind::UnprovenAnswer],
        }
    }

    /// Whether this side can work with one that says this. `key`: the one that the other must mean, if that is settled.
    pub fn check(&mut self, bytes: &[u8; HELLO_BYTES], key: Option<Option<KeyId>>) -> Result<Hello, End> {
        let Some(hello) = Hello::parse(bytes) else { return Err(self.exchange.refuse(Refusal::BadMessage)) };
        let missing = (self.local.requires & !hello.offers) | (hello.requires & !self.local.offers);
        let refusal = if hello.identity == self.local.identity {
            Some(Refusal::OwnIdentity)
        } else if hello.layouts != self.local.layouts {
            Some(Refusal::Layout)
        } else if missing != 0 {
            Some(Refusal::Features(missing))
        } else if !hello.limits.is_usable() {
            Some(Refusal::Limits)
        } else if key.is_some_and(|key| key.is_some() != hello.key.is_some()) {
            Some(Refusal::KeyMissing)
        } else if key.is_some_and(|key| key != hello.key) {
            Some(Refusal::KeyUnknown)
        } else {
            None
        };
        self.peer = Some(hello);
        refusal.map_or(Ok(hello), |refusal| Err(self.exchange.refuse(refusal)))
    }

    pub fn make(&self, made_for: Use) -> [u8; MAC_BYTES] {
        mac::make(&self.secret, made_for, &[&self.transcript])
    }

    pub fn check_proof(&mut self, made_for: Use) -> Result<Hello, End> {
        let message: &[u8; PROOF_BYTES] = self.exchange.message();
        let is_right =
            message.last_chunk().is_some_and(|proof| mac::is_right(&self.secret, made_for, &[&self.transcript], proof));
        match self.peer {
            Some(peer) if is_right => Ok(peer),
            _ => Err(self.exchange.refuse(Refusal::ProofWrong)),
        }
    }

    pub fn agreed(&mut self, role: Role) -> Result<Agreed, End> {
        let Some(peer) = self.peer else { return Err(self.exchange.refuse(Refusal::BadMessage)) };
        Ok(Agreed {
            role,
            identity: peer.identity,
            epoch: self.epoch,
            peer_epoch: peer.epoch,
            version: Version {
                major: self.local.version.major,
                minor: self.local.version.minor.min(peer.version.minor),
            },
            features: self.local.offers & peer.offers,
            limits: self.local.limits.min(peer.limits),
            session: SessionKey(Zeroizing::new(self.make(Use::SessionKey))),
        })
    }
}
