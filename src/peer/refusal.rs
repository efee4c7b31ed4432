//! Why a side does not go on.

use super::wire::{self, REFUSAL_BYTES};
use super::{VERBS, Version};

/// Why a handshake ended. It travels as a code; the text is the reader's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// What came is no message of the handshake, or not one that belongs here.
    #[error("a message that does not belong here")]
    BadMessage,
    /// Another major version.
    #[error("the other side has version {}.{} of the peer protocol", .0.major, .0.minor)]
    Version(Version),
    /// The sizes of what is sent differ.
    #[error("the sizes of the messages differ")]
    Layout,
    /// A side lacks features that the other requires.
    #[error("required features are missing: {0:#x}{named}", named = named(*.0))]
    Features(u64),
    /// A limit of 0, or too many lanes.
    #[error("limits under which nothing can be moved")]
    Limits,
    /// The initiator means a key that the responder does not have.
    #[error("the responder does not have this key")]
    KeyUnknown,
    /// One side has keys and the other has none.
    #[error("one side has a key and the other has none")]
    KeyMissing,
    /// The proof is not that of the key, the role and these two HELLOs.
    #[error("the proof of the key is wrong")]
    ProofWrong,
    /// An engine that was led to itself.
    #[error("the other side is this engine itself")]
    OwnIdentity,
    /// Another connection of the same two engines survives.
    #[error("another connection between these engines is kept")]
    Crossed,
    /// Too many connections.
    #[error("too many connections")]
    TooMany,
    /// A JOIN for a connection that is not being put together, or for a lane that is taken.
    #[error("no connection waits for this lane")]
    NoLane,
    /// The deadline has passed.
    #[error("the handshake took too long")]
    TimedOut,
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    Stopping,
    /// A code of a later minor version.
    #[error("refused with code {0}, which this version does not know")]
    Unknown(u16),
}

/// Those that an engine may require, for people.
fn named(features: u64) -> &'static str {
    if features & VERBS != 0 { " (RDMA verbs)" } else { "" }
}

impl Refusal {
    /// How many kinds there are.
    pub const KINDS: usize = 15;

    /// A number less than [`KINDS`](Self::KINDS), the same for each refusal of a kind.
    #[must_use]
    pub fn kind(&self) -> usize {
        match self {
            Refusal::Unknown(_) => 0,
            known => usize::from(known.code()),
        }
    }

    /// True if trying again soon is of no use: a person has to change something.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        use Refusal::*;
        match self {
            Version(_) | Layout | Features(_) | Limits | KeyUnknown | KeyMissing | ProofWrong | OwnIdentity => true,
            BadMessage | Crossed | TooMany | NoLane | TimedOut | Stopping | Unknown(_) => false,
        }
    }

    /// As it is sent by a side of version `own`.
    pub(super) fn to_bytes(self, own: Version) -> [u8; REFUSAL_BYTES] {
        let detail = if let Refusal::Features(missing) = self { missing } else { 0 };
        wire::refusal(self.code(), own, detail)
    }

    pub(super) fn parse(bytes: &[u8; REFUSAL_BYTES]) -> Refusal {
        let (code, version, detail) = wire::parse_refusal(bytes);
        let all = [
            Refusal::BadMessage,
            Refusal::Version(version),
            Refusal::Layout,
            Refusal::Features(detail),
            Refusal::Limits,
            Refusal::KeyUnknown,
            Refusal::KeyMissing,
            Refusal::ProofWrong,
            Refusal::OwnIdentity,
            Refusal::Crossed,
            Refusal::TooMany,
            Refusal::NoLane,
            Refusal::TimedOut,
            Refusal::Stopping,
        ];
        all.into_iter().find(|known| known.code() == code).unwrap_or(Refusal::Unknown(code))
    }

    fn code(&self) -> u16 {
        match self {
            Refusal::BadMessage => 1,
            Refusal::Version(_) => 2,
            Refusal::Layout => 3,
            Refusal::Features(_) => 4,
            Refusal::Limits => 5,
            Refusal::KeyUnknown => 6,
            Refusal::KeyMissing => 7,
            Refusal::ProofWrong => 8,
            Refusal::OwnIdentity => 9,
            Refusal::Crossed => 10,
            Refusal::TooMany => 11,
            Refusal::NoLane => 12,
            Refusal::TimedOut => 13,
            Refusal::Stopping => 14,
            Refusal::Unknown(code) => *code,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_arrives_as_it_was_sent_and_unknown_codes_stay_numbers() {
        let own = Version { major: 3, minor: 4 };
        for code in 0..=u16::MAX {
            let refusal = Refusal::parse(&wire::refusal(code, own, 77));
            assert_eq!(Refusal::parse(&refusal.to_bytes(own)), refusal);
            assert_eq!(refusal.code(), code);
            assert!(refusal.kind() < Refusal::KINDS);
            assert_eq!(matches!(refusal, Refusal::Unknown(_)), !(1..15).contains(&code));
        }
    }
}
