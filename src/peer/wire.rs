//! The messages of the handshake, byte by byte. All numbers are little-endian, every message has one fixed size.
//!
//! | message      | bytes | from      | says                                                                       |
//! | ------------ | ----: | --------- | -------------------------------------------------------------------------- |
//! | HELLO        |   128 | initiator | what it is, what it can, which key it means, a nonce                       |
//! | HELLO_ANSWER |   128 | responder | the same                                                                   |
//! | PROOF        |    40 | initiator | a MAC over both HELLOs and its role                                        |
//! | PROOF_ANSWER |    40 | responder | the same, of its role                                                      |
//! | JOIN         |    72 | initiator | on a further socket: which connection, which lane, a MAC by its session key |
//! | JOIN_ANSWER  |    40 | responder | a MAC over that JOIN                                                       |
//! | REFUSAL      |    24 | either    | a code; the reader has the text for it. The socket is closed               |
//!
//! Without keys UNPROVEN and UNPROVEN_ANSWER stand in the places of PROOF and PROOF_ANSWER, with a digest that proves
//! nothing but that both saw the same bytes.
//!
//! The header, the version behind it in HELLO and JOIN, and REFUSAL keep their places in every version.

use super::{Identity, KeyId};

/// The first 8 bytes of every message: magic, kind, size.
pub(super) const HEADER_BYTES: usize = 8;
/// Enough of HELLO and JOIN to know the version.
pub(super) const VERSION_BYTES: usize = 12;
pub(super) const HELLO_BYTES: usize = 128;
pub(super) const PROOF_BYTES: usize = HEADER_BYTES + MAC_BYTES;
pub(super) const JOIN_BYTES: usize = 72;
pub(super) const REFUSAL_BYTES: usize = 24;
pub(super) const MAC_BYTES: usize = 32;
/// What of JOIN is under its MAC.
pub(super) const JOIN_CLAIM_BYTES: usize = JOIN_BYTES - MAC_BYTES;

const MAGIC: [u8; 4] = *b"SRPR";

/// A version of the peer protocol. Both sides must have the same major; the lower minor is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Another one is another protocol.
    pub major: u16,
    /// A higher one adds what feature bits then offer.
    pub minor: u16,
}

/// How much a side is ready for. What holds on a connection is the smaller of both in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a staging slot, at least 1.
    pub slot_bytes: u64,
    /// Staging slots for one peer, at least 1.
    pub slots: u32,
    /// Commands of one peer outstanding, at least 1.
    pub commands: u32,
    /// Sockets of one connection, 1 to [`LANES_MAX`].
    pub lanes: u16,
}

/// Sockets of one connection at most.
pub const LANES_MAX: u16 = 16;

impl Limits {
    /// The smaller of both in each.
    #[must_use]
    pub fn min(self, other: Limits) -> Limits {
        Limits {
            slot_bytes: self.slot_bytes.min(other.slot_bytes),
            slots: self.slots.min(other.slots),
            commands: self.commands.min(other.commands),
            lanes: self.lanes.min(other.lanes),
        }
    }

    /// True if something can be moved under them.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.slot_bytes > 0 && self.slots > 0 && self.commands > 0 && (1..=LANES_MAX).contains(&self.lanes)
    }
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Hello = 1,
    HelloAnswer = 2,
    Proof = 3,
    ProofAnswer = 4,
    Unproven = 5,
    UnprovenAnswer = 6,
    Join = 7,
    JoinAnswer = 8,
    Refusal = 9,
}

impl Kind {
    fn from_wire(kind: u16) -> Option<Kind> {
        let all = [
            Kind::Hello,
            Kind::HelloAnswer,
            Kind::Proof,
            Kind::ProofAnswer,
            Kind::Unproven,
            Kind::UnprovenAnswer,
            Kind::Join,
            Kind::JoinAnswer,
            Kind::Refusal,
        ];
        all.into_iter().find(|known| *known as u16 == kind)
    }

    pub fn bytes(self) -> usize {
        match self {
            Kind::Hello | Kind::HelloAnswer => HELLO_BYTES,
            Kind::Proof | Kind::ProofAnswer | Kind::Unproven | Kind::UnprovenAnswer | Kind::JoinAnswer => PROOF_BYTES,
            Kind::Join => JOIN_BYTES,
            Kind::Refusal => REFUSAL_BYTES,
        }
    }

    fn header(self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        put(&mut header, 0, MAGIC);
        put(&mut header, 4, (self as u16).to_le_bytes());
        put(&mut header, 6, (self.bytes() as u16).to_le_bytes());
        header
    }
}

/// What a header announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub kind: Kind,
    /// As the header says; not to be trusted.
    pub bytes: u16,
}

impl Header {
    /// `None` if this is no message of a peer.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let is_ours = take::<4>(bytes, 0) == MAGIC;
        let kind = Kind::from_wire(u16::from_le_bytes(take(bytes, 4)))?;
        is_ours.then_some(Header { kind, bytes: u16::from_le_bytes(take(bytes, 6)) })
    }
}

/// The version behind the header of HELLO and JOIN.
pub(super) fn version(bytes: &[u8; VERSION_BYTES]) -> Version {
    Version { major: u16::from_le_bytes(take(bytes, 8)), minor: u16::from_le_bytes(take(bytes, 10)) }
}

/// What a side says of itself, HELLO or HELLO_ANSWER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub version: Version,
    pub layouts: [u16; 4],
    pub offers: u64,
    pub requires: u64,
    pub limits: Limits,
    pub epoch: u64,
    pub identity: Identity,
    /// `None`: without a proof.
    pub key: Option<KeyId>,
    pub nonce: [u8; 32],
}

const WITHOUT_KEY: u16 = 0;
const WITH_KEY: u16 = 1;

impl Hello {
    pub fn to_bytes(self, kind: Kind) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        put(&mut bytes, 0, kind.header());
        put(&mut bytes, 8, self.version.major.to_le_bytes());
        put(&mut bytes, 10, self.version.minor.to_le_bytes());
        put(&mut bytes, 12, if self.key.is_some() { WITH_KEY } else { WITHOUT_KEY }.to_le_bytes());
        put(&mut bytes, 14, self.limits.lanes.to_le_bytes());
        for (n, size) in self.layouts.into_iter().enumerate() {
            put(&mut bytes, 16 + 2 * n, size.to_le_bytes());
        }
        put(&mut bytes, 24, self.offers.to_le_bytes());
        put(&mut bytes, 32, self.requires.to_le_bytes());
        put(&mut bytes, 40, self.limits.slot_bytes.to_le_bytes());
        put(&mut bytes, 48, self.limits.slots.to_le_bytes());
        put(&mut bytes, 52, self.limits.commands.to_le_bytes());
        put(&mut bytes, 56, self.epoch.to_le_bytes());
        put(&mut bytes, 64, self.identity.0);
        put(&mut bytes, 80, self.key.map_or([0; 16], |key| key.0));
        put(&mut bytes, 96, self.nonce);
        bytes
    }

    /// Reads what is behind the header. `None` if it does not say clearly whether there is to be a proof.
    pub fn parse(bytes: &[u8; HELLO_BYTES]) -> Option<Hello> {
        let key = KeyId(take(bytes, 80));
        let key = match u16::from_le_bytes(take(bytes, 12)) {
            WITHOUT_KEY if key.0 == [0; 16] => None,
            WITH_KEY => Some(key),
            _ => return None,
        };
        Some(Hello {
            version: Version { major: u16::from_le_bytes(take(bytes, 8)), minor: u16::from_le_bytes(take(bytes, 10)) },
            layouts: [16, 18, 20, 22].map(|at| u16::from_le_bytes(take(bytes, at))),
            offers: u64::from_le_bytes(take(bytes, 24)),
            requires: u64::from_le_bytes(take(bytes, 32)),
            limits: Limits {
                slot_bytes: u64::from_le_bytes(take(bytes, 40)),
                slots: u32::from_le_bytes(take(bytes, 48)),
                commands: u32::from_le_bytes(take(bytes, 52)),
                lanes: u16::from_le_bytes(take(bytes, 14)),
            },
            epoch: u64::from_le_bytes(take(bytes, 56)),
            identity: Identity(take(bytes, 64)),
            key,
            nonce: take(bytes, 96),
        })
    }
}

/// A message that is a MAC: all but HELLO, JOIN and REFUSAL.
pub(super) fn proof(kind: Kind, mac: [u8; MAC_BYTES]) -> [u8; PROOF_BYTES] {
    let mut bytes = [0; PROOF_BYTES];
    put(&mut bytes, 0, kind.header());
    put(&mut bytes, HEADER_BYTES, mac);
    bytes
}

/// What JOIN claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinClaim {
    /// Who began the connection.
    pub identity: Identity,
    /// Its epoch of the connection.
    pub epoch: u64,
    /// 1 to lanes - 1: the first socket is lane 0.
    pub lane: u16,
    /// Sockets that the connection will have.
    pub lanes: u16,
}

impl JoinClaim {
    /// What is under the MAC.
    pub(super) fn to_bytes(self, version: Version) -> [u8; JOIN_CLAIM_BYTES] {
        let mut bytes = [0; JOIN_CLAIM_BYTES];
        put(&mut bytes, 0, Kind::Join.header());
        put(&mut bytes, 8, version.major.to_le_bytes());
        put(&mut bytes, 10, version.minor.to_le_bytes());
        put(&mut bytes, 12, self.lane.to_le_bytes());
        put(&mut bytes, 14, self.lanes.to_le_bytes());
        put(&mut bytes, 16, self.epoch.to_le_bytes());
        put(&mut bytes, 24, self.identity.0);
        bytes
    }

    pub(super) fn parse(bytes: &[u8; JOIN_BYTES]) -> JoinClaim {
        JoinClaim {
            lane: u16::from_le_bytes(take(bytes, 12)),
            lanes: u16::from_le_bytes(take(bytes, 14)),
            epoch: u64::from_le_bytes(take(bytes, 16)),
            identity: Identity(take(bytes, 24)),
        }
    }
}

/// REFUSAL, as this version of the protocol says it.
pub(super) fn refusal(code: u16, version: Version, detail: u64) -> [u8; REFUSAL_BYTES] {
    let mut bytes = [0; REFUSAL_BYTES];
    put(&mut bytes, 0, Kind::Refusal.header());
    put(&mut bytes, 8, code.to_le_bytes());
    put(&mut bytes, 10, version.major.to_le_bytes());
    put(&mut bytes, 12, version.minor.to_le_bytes());
    put(&mut bytes, 16, detail.to_le_bytes());
    bytes
}

/// The code, the version and the detail of a REFUSAL.
pub(super) fn parse_refusal(bytes: &[u8; REFUSAL_BYTES]) -> (u16, Version, u64) {
    let version = Version { major: u16::from_le_bytes(take(bytes, 10)), minor: u16::from_le_bytes(take(bytes, 12)) };
    (u16::from_le_bytes(take(bytes, 8)), version, u64::from_le_bytes(take(bytes, 16)))
}

/// `N` bytes at `at`. Every caller reads inside a message of fixed size; zeros stand for what would be outside.
fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *place = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_its_own_place_in_hello() {
        let mut bytes: [u8; HELLO_BYTES] = std::array::from_fn(|n| n as u8);
        put(&mut bytes, 0, Kind::Hello.header());
        put(&mut bytes, 12, WITH_KEY.to_le_bytes());
        let hello = Hello::parse(&bytes).unwrap();
        assert_eq!(hello.to_bytes(Kind::Hello), bytes, "a byte is lost or taken twice");
    }

    #[test]
    fn every_field_has_its_own_place_in_join() {
        let mut bytes: [u8; JOIN_BYTES] = std::array::from_fn(|n| n as u8);
        put(&mut bytes, 0, Kind::Join.header());
        let version = version(bytes.first_chunk().unwrap());
        assert_eq!(JoinClaim::parse(&bytes).to_bytes(version), bytes[..JOIN_CLAIM_BYTES]);
    }
}
