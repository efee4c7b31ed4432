//! What is known of the batches and chunks of a link.

use super::super::list::{Linked, List};
use super::super::messages::{BatchId, Chunk, ChunkId};
use super::super::slots::Lease;
use crate::plan::{Direction, Fault};

/// What chunks wait for. Each list of a batch is served in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// A slot of this side.
    Slot,
    /// WRITE: a landing slot of the owner.
    Landing,
    /// One of the commands that the owner takes at once.
    Command,
    /// Room in the queue for a bulk write.
    Bulk,
    /// Room in the queue for the next window.
    Window,
    /// READ: to be said that it is to be unpacked.
    Unpack,
}

impl Wait {
    pub const ALL: [Wait; 6] = [Wait::Slot, Wait::Landing, Wait::Command, Wait::Bulk, Wait::Window, Wait::Unpack];
}

#[derive(Debug)]
pub(super) struct Batch {
    pub id: BatchId,
    pub direction: Direction,
    /// Most slots of this side, and most chunks at the owner: P.
    pub slots: u32,
    /// Number of the next chunk.
    pub next_number: u32,
    /// All chunks have been added.
    pub is_closed: bool,
    /// Failed or cancelled: nothing new starts.
    pub is_stopped: bool,
    /// The failure that is still to be said.
    pub unsaid: Option<(u32, Fault)>,
    pub cancel: Cancel,
    /// When what the link carries of a stopped batch has to have ended.
    pub deadline_ns: u64,
    /// Chunks whose end was not said.
    pub chunks: u32,
    /// Doorbells whose completion has not come.
    pub works: u32,
    /// Chunks with a place at the owner: a landing slot, a command, or both.
    pub places: u32,
    pub leased: u32,
    pub waits: [List; Wait::ALL.len()],
}

/// Where the cancel of a batch stands that has chunks at the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cancel {
    None,
    ToSend,
    /// Its answer is awaited, even if all its chunks were answered before.
    Sent,
}

impl Batch {
    pub fn new(id: BatchId, direction: Direction, slots: u32) -> Batch {
        Batch {
            id,
            direction,
            slots,
            next_number: 0,
            is_closed: false,
            is_stopped: false,
            unsaid: None,
            cancel: Cancel::None,
            deadline_ns: u64::MAX,
            chunks: 0,
            works: 0,
            places: 0,
            leased: 0,
            waits: [List::EMPTY; Wait::ALL.len()],
        }
    }

    /// True if all its chunks are known to be done.
    pub fn is_done(&self) -> bool {
        self.is_closed && !self.is_stopped && self.chunks == 0
    }

    /// True if the link still carries something of it, although it was stopped.
    pub fn is_draining(&self) -> bool {
        self.is_stopped && (self.works > 0 || self.places > 0 || self.cancel == Cancel::Sent)
    }

    /// True if it can be said that nothing of it is under way.
    pub fn is_over(&self) -> bool {
        self.chunks == 0 && (self.is_done() || self.is_stopped && !self.is_draining())
    }
}

#[derive(Debug)]
pub(super) struct ChunkState {
    pub id: ChunkId,
    pub chunk: Chunk,
    /// Where its batch is.
    pub batch: u32,
    pub step: Step,
    /// It goes by windows: planned so, or refused by the owner.
    pub is_direct: bool,
    /// Operations posted so far, of the direct route.
    pub posted: u32,
    /// Doorbells whose completion has not come.
    pub works: u32,
    /// The slot of this side.
    pub lease: Option<Lease>,
    /// WRITE: the landing slot of the owner.
    pub landing: Option<u32>,
    /// It is one of the commands at the owner.
    pub is_command: bool,
    /// The owner refused it.
    pub is_refused: bool,
    /// It cannot be done any more.
    pub is_spoiled: bool,
    pub next: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// In the batch's list. A direct chunk may have windows under way meanwhile.
    Waits,
    /// A worker packs it.
    Packs,
    /// A worker unpacks it.
    Unpacks,
    /// All that was to be posted or sent for it was; completions or replies are awaited.
    Moves,
    /// Its end is to be said.
    Ended { done: bool },
}

impl ChunkState {
    /// True if a packed chunk does not land where its bytes belong.
    pub fn lands_in_slot(&self) -> bool {
        self.chunk.dst_pieces > 1
    }

    /// True if its bytes have to be packed.
    pub fn is_packed(&self) -> bool {
        self.chunk.src_pieces > 1
    }

    /// Operations of the direct route that were not posted.
    pub fn unposted(&self) -> u32 {
        if self.is_direct { self.chunk.operations.saturating_sub(self.posted) } else { 0 }
    }
}

impl Linked for ChunkState {
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}

/// What a doorbell posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub chunk: u32,
    pub operations: u32,
    /// The first of the chunk's operations, of a window.
    pub first: u32,
}

/// Whether the link can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum LinkState {
    Up,
    /// That it is to be broken has not been said.
    Failed,
    /// What was posted may still be carried out.
    Breaking,
    /// Nothing can be carried out any more.
    Quiesced,
}
