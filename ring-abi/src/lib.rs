//! The bytes that a scatter-ring client and a scatter-ring engine share.
//!
//! All integers are little-endian and naturally aligned. Reserved bytes are 0 when written and must be 0 when read.
//!
//! # Descriptor, 64 bytes
//!
//! ```text
//!        0        1        2        3        4        5        6        7
//!  0 | opcode | index  |      flags      |               len                |
//!  8 |            src_region             |            dst_region            |
//! 16 |                               src_offset                             |
//! 24 |                               dst_offset                             |
//! 32 |               count               |           index_region           |
//! 40 |                              index_offset                            |
//! 48 |            src_stride             |            dst_stride            |
//! 56 |                               user_data                              |
//! ```
//!
//! # Extension, 64 bytes: the slot behind a descriptor that carries [`Flags::EXTENDED`]
//!
//! ```text
//!  0 | opcode |         0 (3 bytes)      |           inner_count            |
//!  8 |         inner_src_stride          |         inner_dst_stride         |
//! 16 |                              0 (48 bytes)                            |
//! ```
//!
//! # Span, 64 bytes
//!
//! ```text
//!  0 |                                 first                                |
//!  8 |               count               |              status              |
//! 16 |                                 bytes                                |
//! 24 |                               user_data                              |
//! 32 |      flags      |  route |  stage |       queue_ns / fragment        |
//! 40 |       plan_ns / detail, low       |     command_ns / detail, high    |
//! 48 |              pack_ns              |             window_ns            |
//! 56 |             total_ns              |           field / 0              |
//! ```
//!
//! # The two areas of a ring pair
//!
//! One memory file per writer, so that page protection alone says who may write what.
//!
//! ```text
//! submit area, written by the client      complete area, written by the engine
//!    0  SQ tail   u64                         0  Header
//!  128  CQ head   u64                       256  SQ head       u64
//!  256  sleep word u64                      384  CQ tail       u64
//! 4160  descriptors                         512  sleep word    u64
//!                                           640  stop word     u64
//!                                          4160  spans
//! ```
//!
//! Each word that is written while others read it has 128 bytes of its own: two cache lines, since neighbouring lines
//! are fetched in pairs on current x86 processors.
//!
//! # The notification buffer
//!
//! For who asks for it ([`Kind::NOTIFICATIONS`]): a third memory file, written by the engine, with a slot of
//! [`NOTIFY_BYTES_MAX`] bytes for each place of the completion ring. The payload of the event at position `p` is in slot
//! `p & (capacity - 1)`. Whoever consumes the span consumes the slot: there are no further positions.
//!
//! # Positions
//!
//! A position is a free-running `u64`. Entry `p` lives in slot `p & (capacity - 1)`. `head` is the position of the
//! oldest entry and is written by the consumer; `tail` is the position of the next free one and is written by the
//! producer. `tail - head` in wrapping arithmetic is the number of entries, and never exceeds the capacity.
//!
//! # This crate
//!
//! Everything here is plain data: sizes, offsets, codes and texts. There is no `unsafe`, no allocation and no
//! dependency, so that a producer in any language can be checked against it. For C and C++ the same stands in
//! `include/scatter_ring_abi.h`, which a test makes from this crate: change the bytes here, and only here.

#![no_std]
#![forbid(unsafe_code)]

mod area;
mod descriptor;
mod message;
pub mod rights;
mod span;
pub mod staged;
mod status;

pub use area::{HEADER_WORDS, Header, complete, stop_reason, stop_word, submit};
pub use descriptor::{
    Descriptor, Extension, Field, Flags, FragmentRecord, Handle, IndexKind, NOTIFY_BYTES_MAX, Opcode,
};
pub use message::{
    BadMessage, Kind, MESSAGE_BYTES, MESSAGE_FDS_MAX, Message, NAME_BYTES_MAX, NO_ANSWER, abi_matches, abi_word,
};
pub use span::{Route, Span, SpanFlags, Stage};
pub use staged::{Command, CommandOp, CommandResult, PieceRecord};
pub use status::Status;

/// The first eight bytes of a complete area: `SCATRING` read as a little-endian integer.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SCATRING");

/// Grows when a producer or a consumer of an older version would misread the bytes. Must match exactly.
pub const ABI_MAJOR: u16 = 1;

/// Grows when something was added that an older side can ignore.
pub const ABI_MINOR: u16 = 0;

/// Bytes of every ring entry: descriptor, extension, span.
pub const ENTRY_BYTES: usize = 64;

/// A ring entry as the eight words that are moved atomically.
pub type Entry = [u64; ENTRY_BYTES / 8];

/// Least and most entries of either ring; a capacity is a power of two in this range.
pub const CAPACITY_MIN: u32 = 4;
/// See [`CAPACITY_MIN`].
pub const CAPACITY_MAX: u32 = 1 << 20;

/// Spans that one batch can need: done, failing, not done, released. So many places in the completion ring are
/// reserved before a batch is taken, which is why that ring cannot overflow.
pub const SPANS_PER_BATCH: u32 = 4;

/// Slots that the spans of one batch can count. A session whose batch comes near it is ended.
pub const BATCH_SLOTS_MAX: u32 = u32::MAX;

/// A row number of all ones, which [`Flags::MISSING_ZERO`] and [`Flags::MISSING_SKIP`] give a meaning.
pub const MISSING_U32: u32 = u32::MAX;
/// The same for 64-bit row numbers.
pub const MISSING_U64: u64 = u64::MAX;

/// What an engine offers and a client asks for. A client refuses an engine that lacks a feature it needs; an engine
/// refuses a client that asks for a bit it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Features(pub u64);

impl Features {
    /// READ and WRITE between regions mapped on this host.
    pub const LOCAL: u64 = 1 << 0;
    /// Index arrays ([`IndexKind`] other than NONE).
    pub const INDEX: u64 = 1 << 1;
    /// Inner repeats by an EXTENSION slot.
    pub const EXTENSION: u64 = 1 << 2;
    /// The NOTIFY opcode, and [`Kind::NOTIFICATIONS`].
    pub const NOTIFY: u64 = 1 << 3;
    /// Regions of other engines: [`Kind::CONNECT`], and [`Kind::OPEN`] with the number of a peer.
    pub const PEERS: u64 = 1 << 4;
    /// Memory that is packed and unpacked by the process that owns it: [`Kind::STAGE`], [`Kind::LEND`].
    pub const STAGED: u64 = 1 << 5;
    /// Every bit with a meaning in this version.
    pub const KNOWN: u64 = Self::LOCAL | Self::INDEX | Self::EXTENSION | Self::NOTIFY | Self::PEERS | Self::STAGED;

    /// The bits of `self` that `other` does not have.
    #[must_use]
    pub const fn missing_in(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }

    /// True when no bit is set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}
