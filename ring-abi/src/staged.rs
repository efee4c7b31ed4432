//! Owner sessions: memory that the engine cannot map is packed and unpacked by the process that owns it.
//!
//! A session that has asked [`Kind::STAGE`](crate::Kind::STAGE) gets two more memory files. *Slots* are staging memory
//! that both sides write: slot `s` starts at `s * slot_bytes`. *Lists* are written by the engine and can only be mapped
//! read-only by the owner: list `s` starts at `s` times [`LIST_BYTES`] and says what belongs into slot `s`.
//!
//! From then on the session's completion ring carries [`Command`]s and its submission ring [`CommandResult`]s. A command
//! says which pieces of a lent region lie in a slot, one behind the other without gaps:
//!
//! ```text
//! command                                      result
//!  0 | op | 0 (3 bytes) |      slot       |     0 |               chunk               |
//!  8 |               chunk                |     8 |     status      |      piece      |
//! 16 |     region      |   piece_bytes    |    16 |               detail              |
//! 24 |      count      |        0         |    24 |            0 (40 bytes)           |
//! 32 |             0 (32 bytes)           |
//! ```
//!
//! With `piece_bytes` the slot's list holds `count` offsets into the region, u64, of pieces of so many bytes. Without
//! (0) it holds `count` [`PieceRecord`]s. Commands may be answered in any order, each once. A slot and its list stay as
//! they are from the command to its result. Zero-filled fragments need no encoding: the engine puts the zeros into the
//! slot.

use crate::descriptor::{high, low, pair};
use crate::{Entry, Status};

/// Least and most slots of an owner session; transfers between two lent regions need two.
pub const SLOTS_MIN: u32 = 2;
/// See [`SLOTS_MIN`].
pub const SLOTS_MAX: u32 = 64;
/// Least and most bytes of a slot; a multiple of 4096.
pub const SLOT_BYTES_MIN: u32 = 64 << 10;
/// See [`SLOT_BYTES_MIN`].
pub const SLOT_BYTES_MAX: u32 = 1 << 20;
/// Pieces that one list can hold.
pub const PIECES_MAX: u32 = 4096;
/// Bytes of the list of one slot.
pub const LIST_BYTES: usize = PIECES_MAX as usize * size_of::<PieceRecord>();

/// Which way a [`Command`] goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct CommandOp(pub u8);

impl CommandOp {
    /// Pieces of the region into the slot.
    pub const PACK: CommandOp = CommandOp(1);
    /// The slot into pieces of the region.
    pub const UNPACK: CommandOp = CommandOp(2);
}

/// From the engine to an owner: one entry of the completion ring.
///
/// ```
/// use ring_abi::{Command, CommandOp};
/// let command =
///     Command { op: CommandOp::PACK, slot: 3, chunk: 9, region: 0x1002, piece_bytes: 264, count: 992 };
/// assert_eq!(Command::from_entry(&command.to_entry()), command);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Which way.
    pub op: CommandOp,
    /// The slot, and its list.
    pub slot: u32,
    /// The engine's number for it, handed back in the result; no number is used twice.
    pub chunk: u64,
    /// Handle of the lent region, as the answer to [`Kind::LEND`](crate::Kind::LEND) gave it.
    pub region: u32,
    /// Bytes of every piece; 0: the list holds records.
    pub piece_bytes: u32,
    /// Pieces.
    pub count: u32,
}

impl Command {
    /// The eight words that go into a slot of the ring.
    #[must_use]
    pub const fn to_entry(&self) -> Entry {
        let head = self.op.0 as u64 | (self.slot as u64) << 32;
        [head, self.chunk, pair(self.region, self.piece_bytes), self.count as u64, 0, 0, 0, 0]
    }

    /// The command that the words of a slot spell.
    #[must_use]
    pub const fn from_entry(entry: &Entry) -> Command {
        Command {
            op: CommandOp(entry[0] as u8),
            slot: high(entry[0]),
            chunk: entry[1],
            region: low(entry[2]),
            piece_bytes: high(entry[2]),
            count: low(entry[3]),
        }
    }
}

/// From an owner to the engine: one entry of the submission ring.
///
/// ```
/// use ring_abi::{CommandResult, Status};
/// let result = CommandResult { chunk: 9, status: Status::OUT_OF_RANGE, piece: 17, detail: 1 << 40 };
/// assert_eq!(CommandResult::from_entry(&result.to_entry()), Some(result));
/// assert_eq!(CommandResult::from_entry(&[9, 0, 0, 0, 0, 0, 0, 1]), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandResult {
    /// Of the command.
    pub chunk: u64,
    /// OK, or why it could not be done: UNKNOWN_REGION if the memory was taken back.
    pub status: Status,
    /// The first piece that could not be copied, 0 on success.
    pub piece: u32,
    /// The offending value: an offset, a handle; 0 on success.
    pub detail: u64,
}

impl CommandResult {
    /// The eight words that go into a slot of the ring.
    #[must_use]
    pub const fn to_entry(&self) -> Entry {
        [self.chunk, pair(self.status.0 as u32, self.piece), self.detail, 0, 0, 0, 0, 0]
    }

    /// The result that the words of a slot spell, `None` if a reserved word is not 0.
    #[must_use]
    pub const fn from_entry(entry: &Entry) -> Option<CommandResult> {
        if entry[3] | entry[4] | entry[5] | entry[6] | entry[7] != 0 {
            return None;
        }
        Some(CommandResult {
            chunk: entry[0],
            status: Status(low(entry[1]) as i32),
            piece: high(entry[1]),
            detail: entry[2],
        })
    }
}

/// One piece of a list of pieces of different lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct PieceRecord {
    /// Bytes from the start of the region.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = {
    assert!(size_of::<PieceRecord>() == 16 && align_of::<PieceRecord>() == 8);
    assert!(core::mem::offset_of!(PieceRecord, len) == 8);
    assert!(core::mem::offset_of!(PieceRecord, reserved) == 12);
    assert!(LIST_BYTES == 64 << 10);
};

impl PieceRecord {
    /// The two words of the record.
    #[must_use]
    #[inline]
    pub const fn to_words(&self) -> [u64; 2] {
        [self.offset, pair(self.len, self.reserved)]
    }

    /// The record that two words spell.
    #[must_use]
    #[inline]
    pub const fn from_words(words: [u64; 2]) -> PieceRecord {
        PieceRecord { offset: words[0], len: low(words[1]), reserved: high(words[1]) }
    }
}

/// True for a number of slots and a slot size that an owner may ask for.
#[must_use]
pub const fn is_staging(slots: u64, slot_bytes: u64) -> bool {
    slots >= SLOTS_MIN as u64
        && slots <= SLOTS_MAX as u64
        && slot_bytes >= SLOT_BYTES_MIN as u64
        && slot_bytes <= SLOT_BYTES_MAX as u64
        && slot_bytes.is_multiple_of(4096)
}
