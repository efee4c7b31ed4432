//! Messages on the attach socket (`SOCK_SEQPACKET`, so that a message is a packet).
//!
//! The client asks and the engine answers, one answer per question, in any order. File descriptors travel with the
//! message that names them.
//!
//! ```text
//!   0 | kind u16 | 0 u16 | status i32 |
//!   8 | request u64                   |  the answer carries its question's
//!  16 | args, eight u64               |
//!  80 | name_bytes u32 | 0 u32        |
//!  88 | name, 168 bytes               |  UTF-8; in a refusal a text for people
//! ```
//!
//! What stands in args, in this order, with 0 behind it; what the words mean stands at each [`Kind`]. `*`: with a name.
//!
//! ```text
//! kind               question                       answer                        descriptors
//!  1 HELLO           MAGIC, ABI word, features,     ABI word, features,           submit area, complete area,
//!                    capacities, start position     capacities, epoch             doorbell, wake socket
//!  2 REGISTER        bytes, rights, offset; file    handle
//!  3 EXPORT        * handle, rights
//!  4 OPEN          * rights, peer or 0              handle, bytes, rights
//!  5 CLOSE           handle
//!  6 CANCEL          position
//!  7 STAGE           slots, bytes of each           slots, bytes of each          slots, lists
//!  8 LEND            bytes, rights                  handle
//!  9 CONNECT       *                                peer
//! 10 NOTIFICATIONS                                  slots, bytes of each          buffer
//! 11 FETCH           token (two words), region      offset, bytes, rights         file
//! ```

use crate::{Features, Status};

/// Bytes of every message.
pub const MESSAGE_BYTES: usize = 256;
/// Longest name of an export, in bytes.
pub const NAME_BYTES_MAX: usize = 168;
/// A request number that asks for no answer.
pub const NO_ANSWER: u64 = u64::MAX;
/// File descriptors that can come with one message.
pub const MESSAGE_FDS_MAX: usize = 4;

/// What a message is about; answers have [`Kind::ANSWER`] set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Kind(pub u16);

impl Kind {
    /// First message of a connection. args: [`crate::MAGIC`]; ABI major | minor << 16 | descriptor bytes << 32 |
    /// span bytes << 48; features needed; SQ capacity | CQ capacity << 32; start position.
    /// Answer: ABI as above; features offered; capacities; epoch. Descriptors: submit area, complete area, doorbell
    /// (eventfd), wake socket.
    pub const HELLO: Kind = Kind(1);
    /// Makes memory a region of this session. args: bytes; rights; offset, bytes into the file, any number. Descriptor:
    /// the memory file. Answer: handle.
    pub const REGISTER: Kind = Kind(2);
    /// Gives a region a name by which others can open it. args: handle; rights. name.
    pub const EXPORT: Kind = Kind(3);
    /// Opens an export. args: rights wanted; whose export it is: the number of a peer, as CONNECT gave it, or 0 for this
    /// engine. name. Answer: handle; bytes; rights.
    pub const OPEN: Kind = Kind(4);
    /// Ends a registration or an opening. args: handle. Answered when nobody touches the memory any more.
    pub const CLOSE: Kind = Kind(5);
    /// Cancels a batch. args: position of its first descriptor.
    pub const CANCEL: Kind = Kind(6);
    /// Makes this an owner session: see [`staged`](crate::staged). Must come before any descriptor; comes once. args:
    /// slots; bytes per slot. Answer: slots and bytes per slot, as granted: not more. Descriptors: slots, lists.
    pub const STAGE: Kind = Kind(7);
    /// Makes memory that the engine cannot map a region of this owner session. args: bytes; rights. Answer: handle.
    pub const LEND: Kind = Kind(8);
    /// Asks for a notification buffer: without one a client is sent no [events](crate::SpanFlags::EVENT). Comes once, and
    /// not from an owner session. No args. Answer: slots, as many as the completion ring has; bytes of each,
    /// [`NOTIFY_BYTES_MAX`](crate::NOTIFY_BYTES_MAX). Descriptor: the buffer, which can only be mapped for reading.
    pub const NOTIFICATIONS: Kind = Kind(10);
    /// Asks for a connection to another engine, a peer. name: its endpoint as text. Answered when there is a connection, or
    /// when it has been tried for some seconds in vain. Answer: the peer's number, not 0; the same for every session of this
    /// engine, as long as the engine runs.
    pub const CONNECT: Kind = Kind(9);
    /// From another engine on this host, as the first and only message of a connection: asks for the memory file of a region
    /// that a peer has opened here. args: the token that its connection was told, two words; the region's number there.
    /// Answer: offset, bytes into the file; bytes; rights. Descriptor: the file. The connection stays open for as long as the
    /// memory is mapped: its end says that nobody over there touches it any more.
    pub const FETCH: Kind = Kind(11);
    /// Set in the answer to a message of that kind.
    pub const ANSWER: u16 = 0x8000;

    /// The kind of the answer.
    #[must_use]
    pub const fn answer(self) -> Kind {
        Kind(self.0 | Self::ANSWER)
    }
}

/// One message, either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is about.
    pub kind: Kind,
    /// Of an answer: OK or why not.
    pub status: Status,
    /// The client's number for the question.
    pub request: u64,
    /// Meaning by kind; 0 where there is none.
    pub args: [u64; 8],
    /// UTF-8, then 0. In a refusal a text for people.
    name: [u8; NAME_BYTES_MAX],
    /// Bytes of the name.
    name_bytes: u32,
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadMessage(pub &'static str);

impl core::fmt::Display for BadMessage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.0)
    }
}

impl core::error::Error for BadMessage {}

impl Message {
    /// A question.
    #[must_use]
    pub const fn new(kind: Kind, request: u64, args: [u64; 8]) -> Message {
        Message { kind, status: Status::OK, request, args, name: [0; NAME_BYTES_MAX], name_bytes: 0 }
    }

    /// The first message of a connection.
    #[must_use]
    pub const fn hello(features: Features, sq_capacity: u32, cq_capacity: u32, start_position: u64) -> Message {
        let capacities = crate::descriptor::pair(sq_capacity, cq_capacity);
        Self::new(Kind::HELLO, 0, [crate::MAGIC, abi_word(), features.0, capacities, start_position, 0, 0, 0])
    }

    /// The answer to `self`.
    #[must_use]
    pub const fn answer(&self, status: Status, args: [u64; 8]) -> Message {
        let mut answer = Self::new(self.kind.answer(), self.request, args);
        answer.status = status;
        answer
    }

    /// With this name, cut at the last whole character that fits.
    #[must_use]
    pub fn with_name(mut self, name: &str) -> Message {
        let mut n = name.len().min(NAME_BYTES_MAX);
        while !name.is_char_boundary(n) {
            n -= 1;
        }
        self.name = [0; NAME_BYTES_MAX];
        self.name[..n].copy_from_slice(&name.as_bytes()[..n]);
        self.name_bytes = n as u32;
        self
    }

    /// The name, or the text of a refusal.
    #[must_use]
    pub fn name(&self) -> &str {
        core::str::from_utf8(&self.name[..self.name_bytes as usize]).unwrap_or("")
    }

    /// The bytes on the socket.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut b = [0; MESSAGE_BYTES];
        b[..2].copy_from_slice(&self.kind.0.to_le_bytes());
        b[4..8].copy_from_slice(&self.status.0.to_le_bytes());
        b[8..16].copy_from_slice(&self.request.to_le_bytes());
        for (chunk, arg) in b[16..80].chunks_exact_mut(8).zip(self.args) {
            chunk.copy_from_slice(&arg.to_le_bytes());
        }
        b[80..84].copy_from_slice(&self.name_bytes.to_le_bytes());
        b[88..].copy_from_slice(&self.name);
        b
    }

    /// The message that these bytes spell.
    ///
    /// # Errors
    /// A wrong length, a reserved byte in use, a name that is too long or not UTF-8.
    ///
    /// ```
    /// use ring_abi::{Kind, Message};
    /// let m = Message::new(Kind::OPEN, 7, [1, 0, 0, 0, 0, 0, 0, 0]).with_name("table");
    /// let back = Message::from_bytes(&m.to_bytes()).unwrap();
    /// assert_eq!((back, back.name()), (m, "table"));
    /// assert!(Message::from_bytes(&m.to_bytes()[1..]).is_err());
    /// ```
    pub fn from_bytes(bytes: &[u8]) -> Result<Message, BadMessage> {
        let b: &[u8; MESSAGE_BYTES] = bytes.try_into().map_err(|_| BadMessage("a message has 256 bytes"))?;
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| b[at + i]));
        let half = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| b[at + i]));
        if b[2..4] != [0; 2] || half(84) != 0 {
            return Err(BadMessage("a reserved byte is not 0"));
        }
        let name_bytes = half(80);
        let mut name = [0; NAME_BYTES_MAX];
        name.copy_from_slice(&b[88..]);
        match name.split_at_checked(name_bytes as usize) {
            None => return Err(BadMessage("a name is too long")),
            Some((_, rest)) if rest.iter().any(|byte| *byte != 0) => {
                return Err(BadMessage("a reserved byte is not 0"));
            }
            Some((used, _)) if core::str::from_utf8(used).is_err() => {
                return Err(BadMessage("a name is not UTF-8"));
            }
            Some(_) => {}
        }
        Ok(Message {
            kind: Kind(u16::from_le_bytes([b[0], b[1]])),
            status: Status(half(4) as i32),
            request: word(8),
            args: core::array::from_fn(|i| word(16 + 8 * i)),
            name,
            name_bytes,
        })
    }
}

/// ABI version and entry sizes in one word, as HELLO and its answer carry it.
#[must_use]
pub const fn abi_word() -> u64 {
    crate::ABI_MAJOR as u64
        | (crate::ABI_MINOR as u64) << 16
        | (crate::ENTRY_BYTES as u64) << 32
        | (crate::ENTRY_BYTES as u64) << 48
}

/// True if a side with this word can work with this version: all but the minor version equal.
#[must_use]
pub const fn abi_matches(word: u64) -> bool {
    const MINOR: u64 = 0xFFFF << 16;
    word & !MINOR == abi_word() & !MINOR
}
