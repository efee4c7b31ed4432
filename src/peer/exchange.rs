//! Messages in and out of one socket, in buffers of fixed size: never a byte more is read than the message that is due.

use super::Refusal;
use super::wire::{self, HEADER_BYTES, HELLO_BYTES, Header, Kind, REFUSAL_BYTES, VERSION_BYTES, Version};

/// How a handshake ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum End {
    /// This side refused. A message that says so is [to be sent](super::Responder::output).
    #[error("refused: {0}")]
    Ours(Refusal),
    /// The other side refused, or says so.
    #[error("refused by the other side: {0}")]
    Theirs(Refusal),
}

/// One message that is arriving and the bytes that wait to be sent.
#[derive(Debug)]
pub(super) struct Exchange {
    version: Version,
    inbox: [u8; HELLO_BYTES],
    have: usize,
    /// Bytes of the message up to where it must be looked at: the header, the version, the whole. 0 when nothing is
    /// due.
    want: usize,
    outbox: [u8; OUTBOX_BYTES],
    queued: usize,
    sent: usize,
    deadline_ns: u64,
}

impl Exchange {
    pub fn new(version: Version, deadline_ns: u64) -> Exchange {
        Exchange {
            version,
            inbox: [0; HELLO_BYTES],
            have: 0,
            want: HEADER_BYTES,
            outbox: [0; OUTBOX_BYTES],
            queued: 0,
            sent: 0,
            deadline_ns,
        }
    }

    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Where the next bytes go. Empty when nothing more is expected.
    pub fn room(&mut self) -> &mut [u8] {
        self.inbox.get_mut(self.have..self.want).unwrap_or_default()
    }

    /// `bytes` have been read into the [room](Self::room): the kind of message if one is there as a whole. `due`: the
    /// kinds that belong here. No kind but those is looked into, and no version but this one.
    pub fn filled(&mut self, bytes: usize, now_ns: u64, due: &[Kind]) -> Result<Option<Kind>, End> {
        if now_ns >= self.deadline_ns {
            return Err(self.refuse(Refusal::TimedOut));
        }
        if bytes > self.room().len() {
            return Err(self.refuse(Refusal::BadMessage));
        }
        self.have += bytes;
        if self.have < self.want || self.want == 0 {
            return Ok(None);
        }
        let Some(header) = self.inbox.first_chunk::<HEADER_BYTES>().and_then(Header::parse) else {
            return Err(self.refuse(Refusal::BadMessage));
        };
        let kind = header.kind;
        match self.want {
            HEADER_BYTES if kind == Kind::Refusal => self.want = REFUSAL_BYTES,
            HEADER_BYTES if !due.contains(&kind) => return Err(self.refuse(Refusal::BadMessage)),
            HEADER_BYTES if matches!(kind, Kind::Hello | Kind::HelloAnswer | Kind::Join) => self.want = VERSION_BYTES,
            HEADER_BYTES => self.want_whole(header)?,
            VERSION_BYTES => {
                let theirs = self.inbox.first_chunk().map(wire::version);
                if let Some(theirs) = theirs.filter(|theirs| theirs.major != self.version.major) {
                    return Err(self.refuse(Refusal::Version(theirs)));
                }
                self.want_whole(header)?;
            }
            _ if kind == Kind::Refusal => {
                self.want = 0;
                let refusal = self.inbox.first_chunk().map_or(Refusal::BadMessage, Refusal::parse);
                return Err(End::Theirs(refusal));
            }
            _ => {
                self.want = 0;
                return Ok(Some(kind));
            }
        }
        Ok(None)
    }

    /// The message that is there as a whole.
    pub fn message<const N: usize>(&self) -> &[u8; N] {
        self.inbox.first_chunk().unwrap_or(&[0; N])
    }

    /// Another message is due.
    pub fn expect_next(&mut self) {
        self.have = 0;
        self.want = HEADER_BYTES;
    }

    /// Bytes to be sent.
    pub fn output(&self) -> &[u8] {
        self.outbox.get(self.sent..self.queued).unwrap_or_default()
    }

    /// So many of them have been sent.
    pub fn sent(&mut self, bytes: usize) {
        self.sent = self.sent.saturating_add(bytes).min(self.queued);
    }

    /// Puts a message behind what waits to be sent. There is room for the largest and a refusal: more is never waiting,
    /// since each message is the answer to the one before.
    pub fn queue(&mut self, message: &[u8]) {
        self.outbox.copy_within(self.sent..self.queued, 0);
        self.queued -= self.sent;
        self.sent = 0;
        if let Some(place) = self.outbox.get_mut(self.queued..self.queued + message.len()) {
            place.copy_from_slice(message);
            self.queued += message.len();
        }
    }

    /// Ends the exchange with a refusal.
    pub fn refuse(&mut self, refusal: Refusal) -> End {
        self.want = 0;
        self.queue(&refusal.to_bytes(self.version));
        End::Ours(refusal)
    }

    /// A message of another size than this version's is not read.
    fn want_whole(&mut self, header: Header) -> Result<(), End> {
        if usize::from(header.bytes) != header.kind.bytes() {
            return Err(self.refuse(Refusal::Layout));
        }
        self.want = header.kind.bytes();
        Ok(())
    }
}

const OUTBOX_BYTES: usize = HELLO_BYTES + REFUSAL_BYTES;
