//! Two engines find out whether they can work together and whether they have the same key. No I/O: bytes in, bytes out.
//!
//! ```text
//! initiator                                      responder
//!     │ HELLO ─────────────────────────────────────▶ │  versions, features, limits, which key, a nonce
//!     │ ◀────────────────────────────── HELLO_ANSWER │
//!     │ PROOF ─────────────────────────────────────▶ │  HMAC(key, "initiator", both HELLOs)
//!     │ ◀────────────────────────────── PROOF_ANSWER │  HMAC(key, "responder", both HELLOs)
//! ```
//!
//! Both nonces are under both MACs, so that a recorded handshake is worth nothing, and the role, so that a proof sent
//! back to its maker is worth nothing. The responder sends no MAC before it has seen a right one. Who reads along can
//! still read what is sent later: the key keeps strangers out, it encrypts nothing.

use super::exchange::{End, Exchange};
use super::mac::{self, Use};
use super::side::Side;
use super::wire::{self, HELLO_BYTES, JOIN_BYTES, JOIN_CLAIM_BYTES, JoinClaim, Kind, PROOF_BYTES};
use super::{Identity, Key, Keys, Limits, Refusal, Version};
use std::fmt;
use zeroize::Zeroizing;

/// What an engine says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// Which engine it is.
    pub identity: Identity,
    /// Which version it speaks.
    pub version: Version,
    /// Bytes of what is sent later, by kind: both sides must agree.
    pub layouts: [u16; 4],
    /// Features that it can.
    pub offers: u64,
    /// Features without which it cannot work.
    pub requires: u64,
    /// How much it is ready for.
    pub limits: Limits,
}

/// What two engines agreed on, each side's view.
#[derive(Clone, Debug)]
pub struct Agreed {
    /// What this side was.
    pub role: Role,
    /// The other engine.
    pub identity: Identity,
    /// This side's number of the connection, never used before by this engine. What the other sends must name it.
    pub epoch: u64,
    /// The other side's number of it.
    pub peer_epoch: u64,
    /// The lower of both versions.
    pub version: Version,
    /// Features that both offer.
    pub features: u64,
    /// The smaller of both in each.
    pub limits: Limits,
    /// Known to these two sides of this connection.
    pub session: SessionKey,
}

/// Who began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This side connected.
    Initiator,
    /// The other side did.
    Responder,
}

/// Proves that a further socket belongs to a connection. Without keys it is made from the nonces alone, and keeps out
/// only who has not read along.
#[derive(Clone)]
pub struct SessionKey(pub(super) Zeroizing<[u8; 32]>);

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey")
    }
}

/// The side that connected.
#[derive(Debug)]
pub struct Initiator {
    side: Side,
    state: InitiatorState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InitiatorState {
    AwaitsHello,
    Greeted,
    Committed,
    Over,
}

/// What became of bytes that the initiator got.
#[derive(Debug)]
pub enum InitiatorStep {
    /// More are needed.
    Wait,
    /// This engine answers, says HELLO_ANSWER. [`prove`](Initiator::prove) goes on.
    Greeted(Identity),
    /// It has proven itself.
    Agreed(Agreed),
}

impl Initiator {
    /// Begins. `nonce`: 32 bytes of the system's random source, never used before. `epoch`: a number that this engine
    /// has not used before.
    #[must_use]
    pub fn new(local: &Local, key: Option<&Key>, epoch: u64, nonce: [u8; 32], now_ns: u64) -> Initiator {
        let mut side = Side::new(local, epoch, nonce, now_ns);
        side.use_key(key);
        let hello = side.hello().to_bytes(Kind::Hello);
        side.transcript[..HELLO_BYTES].copy_from_slice(&hello);
        side.exchange.queue(&hello);
        Initiator { side, state: InitiatorState::AwaitsHello }
    }

    /// Bytes have been read into the [room](Self::room).
    ///
    /// # Errors
    /// How the handshake ended.
    pub fn filled(&mut self, bytes: usize, now_ns: u64) -> Result<InitiatorStep, End> {
        let side = &mut self.side;
        let due: &[Kind] = match self.state {
            InitiatorState::AwaitsHello => &[Kind::HelloAnswer],
            InitiatorState::Committed => &[side.kinds()[1]],
            InitiatorState::Greeted | InitiatorState::Over => &[],
        };
        match side.exchange.filled(bytes, now_ns, due)? {
            None => Ok(InitiatorStep::Wait),
            Some(Kind::HelloAnswer) => {
                let bytes = *side.exchange.message();
                let hello = side.check(&bytes, Some(side.key))?;
                side.transcript[HELLO_BYTES..].copy_from_slice(&bytes);
                self.state = InitiatorState::Greeted;
                Ok(InitiatorStep::Greeted(hello.identity))
            }
            Some(_) => {
                side.check_proof(Use::ResponderProof)?;
                self.state = InitiatorState::Over;
                side.agreed(Role::Initiator).map(InitiatorStep::Agreed)
            }
        }
    }

    /// Sends the proof. From here on the responder may take the connection for agreed.
    pub fn prove(&mut self) {
        if self.state == InitiatorState::Greeted {
            self.state = InitiatorState::Committed;
            let mac = self.side.make(Use::InitiatorProof);
            self.side.exchange.queue(&wire::proof(self.side.kinds()[0], mac));
            self.side.exchange.expect_next();
        }
    }

    /// True from [`prove`](Self::prove) on.
    #[must_use]
    pub fn is_committed(&self) -> bool {
        matches!(self.state, InitiatorState::Committed | InitiatorState::Over)
    }

    /// Who answers, as far as it has said so.
    #[must_use]
    pub fn peer(&self) -> Option<Identity> {
        self.side.peer.map(|hello| hello.identity)
    }
}

/// The side that was connected to.
#[derive(Debug)]
pub struct Responder {
    side: Side,
    state: ResponderState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponderState {
    AwaitsHello,
    AwaitsProof,
    Proven,
    AsksToJoin,
    Over,
}

/// What became of bytes that the responder got.
#[derive(Debug)]
pub enum ResponderStep {
    /// More are needed.
    Wait,
    /// This engine has proven itself. [`accept`](Responder::accept) or [`refuse`](Responder::refuse) goes on.
    Proven(Identity),
    /// The socket says that it belongs to a connection. [`admit`](Responder::admit) or [`refuse`](Responder::refuse).
    Join(JoinClaim),
}

impl Responder {
    /// Begins, as [`Initiator::new`].
    #[must_use]
    pub fn new(local: &Local, epoch: u64, nonce: [u8; 32], now_ns: u64) -> Responder {
        Responder { side: Side::new(local, epoch, nonce, now_ns), state: ResponderState::AwaitsHello }
    }

    /// Bytes have been read into the [room](Self::room). `keys`: either of them will do.
    ///
    /// # Errors
    /// How the handshake ended.
    pub fn filled(&mut self, bytes: usize, keys: Option<&Keys>, now_ns: u64) -> Result<ResponderStep, End> {
        let side = &mut self.side;
        let due: &[Kind] = match self.state {
            ResponderState::AwaitsHello => &[Kind::Hello, Kind::Join],
            ResponderState::AwaitsProof => &[side.kinds()[0]],
            ResponderState::Proven | ResponderState::AsksToJoin | ResponderState::Over => &[],
        };
        match side.exchange.filled(bytes, now_ns, due)? {
            None => Ok(ResponderStep::Wait),
            Some(Kind::Hello) => {
                let bytes = *side.exchange.message();
                let hello = side.check(&bytes, None)?;
                match (keys, hello.key) {
                    (None, None) => side.use_key(None),
                    (Some(keys), Some(id)) => match keys.find(id) {
                        Some(key) => side.use_key(Some(key)),
                        None => return Err(side.exchange.refuse(Refusal::KeyUnknown)),
                    },
                    _ => return Err(side.exchange.refuse(Refusal::KeyMissing)),
                }
                let answer = side.hello().to_bytes(Kind::HelloAnswer);
                side.transcript[..HELLO_BYTES].copy_from_slice(&bytes);
                side.transcript[HELLO_BYTES..].copy_from_slice(&answer);
                side.exchange.queue(&answer);
                side.exchange.expect_next();
                self.state = ResponderState::AwaitsProof;
                Ok(ResponderStep::Wait)
            }
            Some(Kind::Join) => {
                self.state = ResponderState::AsksToJoin;
                Ok(ResponderStep::Join(JoinClaim::parse(side.exchange.message())))
            }
            Some(_) => {
                let peer = side.check_proof(Use::InitiatorProof)?;
                self.state = ResponderState::Proven;
                Ok(ResponderStep::Proven(peer.identity))
            }
        }
    }

    /// Takes a connection that is proven, and proves this side.
    ///
    /// # Errors
    /// Nothing is proven.
    pub fn accept(&mut self) -> Result<Agreed, End> {
        if self.state != ResponderState::Proven {
            return Err(self.refuse(Refusal::BadMessage));
        }
        self.state = ResponderState::Over;
        let mac = self.side.make(Use::ResponderProof);
        self.side.exchange.queue(&wire::proof(self.side.kinds()[1], mac));
        self.side.agreed(Role::Responder)
    }

    /// Takes a socket that asks to join a connection with this session key.
    ///
    /// # Errors
    /// The proof is wrong.
    pub fn admit(&mut self, session: &SessionKey) -> Result<(), End> {
        let join: [u8; JOIN_BYTES] = *self.side.exchange.message();
        let (claim, proof) = join.split_at(JOIN_CLAIM_BYTES);
        let is_right = proof.try_into().is_ok_and(|proof| mac::is_right(&session.0, Use::Join, &[claim], proof));
        if self.state != ResponderState::AsksToJoin || !is_right {
            return Err(self.refuse(Refusal::ProofWrong));
        }
        self.state = ResponderState::Over;
        let answer = mac::make(&session.0, Use::JoinAnswer, &[&join]);
        self.side.exchange.queue(&wire::proof(Kind::JoinAnswer, answer));
        Ok(())
    }

    /// Ends the handshake.
    pub fn refuse(&mut self, refusal: Refusal) -> End {
        self.state = ResponderState::Over;
        self.side.exchange.refuse(refusal)
    }
}

/// A socket that joins a connection which this side initiated.
#[derive(Debug)]
pub struct Joiner {
    exchange: Exchange,
    session: SessionKey,
    join: [u8; JOIN_BYTES],
}

impl Joiner {
    /// Begins. `own`: this engine. The deadline is that of the whole connection.
    #[must_use]
    pub fn new(agreed: &Agreed, own: &Local, lane: u16, deadline_ns: u64) -> Joiner {
        let claim = JoinClaim { identity: own.identity, epoch: agreed.epoch, lane, lanes: agreed.limits.lanes };
        let claim = claim.to_bytes(own.version);
        let mut join = [0; JOIN_BYTES];
        join[..JOIN_CLAIM_BYTES].copy_from_slice(&claim);
        join[JOIN_CLAIM_BYTES..].copy_from_slice(&mac::make(&agreed.session.0, Use::Join, &[&claim]));
        let mut exchange = Exchange::new(own.version, deadline_ns);
        exchange.queue(&join);
        Joiner { exchange, session: agreed.session.clone(), join }
    }

    /// Bytes have been read into the [room](Self::room): true when the socket has joined.
    ///
    /// # Errors
    /// How the handshake ended.
    pub fn filled(&mut self, bytes: usize, now_ns: u64) -> Result<bool, End> {
        if self.exchange.filled(bytes, now_ns, &[Kind::JoinAnswer])?.is_none() {
            return Ok(false);
        }
        let message: &[u8; PROOF_BYTES] = self.exchange.message();
        let is_right = |proof| mac::is_right(&self.session.0, Use::JoinAnswer, &[&self.join], proof);
        if message.last_chunk().is_some_and(is_right) {
            return Ok(true);
        }
        Err(self.exchange.refuse(Refusal::ProofWrong))
    }
}

/// The same four calls for each side of each handshake.
macro_rules! exchanges {
    ($($side:ty: $($path:ident).+;)*) => {$(
        impl $side {
            /// Where the next bytes go: never more than the message that is due. Empty when none is.
            pub fn room(&mut self) -> &mut [u8] {
                self.$($path).+.room()
            }

            /// Bytes to be sent, also after an end.
            #[must_use]
            pub fn output(&self) -> &[u8] {
                self.$($path).+.output()
            }

            /// So many of them have been sent.
            pub fn sent(&mut self, bytes: usize) {
                self.$($path).+.sent(bytes);
            }

            /// When it must be over.
            #[must_use]
            pub fn deadline_ns(&self) -> u64 {
                self.$($path).+.deadline_ns()
            }
        }
    )*};
}

exchanges! {
    Initiator: side.exchange;
    Responder: side.exchange;
    Joiner: exchange;
}

/// How long a handshake may take, from its first byte to the last, however slowly they come.
pub(super) const HANDSHAKE_NS: u64 = 5_000_000_000;
