//! What the pipelines of the two sides say to each other, and what they know of a chunk.

use crate::plan::Fault;
use ring_abi::{Field, Route, Stage, Status};

/// One batch of one link, as its requester numbers them. Never used twice on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchId(pub u64);

/// One chunk of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkId {
    /// The batch.
    pub batch: BatchId,
    /// Counted from 0 in the order of planning.
    pub number: u32,
}

/// What is known of a planned chunk without looking at its lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// DIRECT or GATHER.
    pub route: Route,
    /// Payload.
    pub bytes: u32,
    /// Pieces of the source's list. 1: contiguous, and posted from where it lies. Zeros lie nowhere and can only be
    /// packed: a chunk of nothing else has at least 2.
    pub src_pieces: u32,
    /// Pieces of the destination's list. 1: contiguous, and written to where it belongs.
    pub dst_pieces: u32,
    /// Operations of the direct route, at least 1. A gathered chunk has them as well: it goes that way when its owner
    /// refuses it.
    pub operations: u32,
    /// Bytes of the encoded list that the owner gets.
    pub command_bytes: u32,
    /// The buffer that has its lists; opaque here.
    pub lists: u32,
}

/// Where a packed chunk is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// Where its bytes belong: that is one piece.
    Destination,
    /// A staging slot of the receiving side, to be unpacked from there.
    Slot(u32),
}

/// Where a bulk write reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Where the bytes are: that is one piece.
    Source,
    /// A staging slot of the sending side, packed.
    Slot(u32),
}

/// From the requester to the owner, in order with bulk writes of the same direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// READ: pack this chunk and write it there.
    Pack {
        /// Which.
        id: ChunkId,
        /// Its sizes.
        chunk: Chunk,
        /// Where to.
        landing: Landing,
    },
    /// WRITE: the chunk lies in this slot of yours; unpack it.
    Unpack {
        /// Which.
        id: ChunkId,
        /// Its sizes.
        chunk: Chunk,
        /// One of those that this link may use.
        slot: u32,
    },
    /// Start nothing more of this batch, and say when nothing of it is under way.
    Cancel {
        /// Which.
        batch: BatchId,
    },
}

/// From the owner to the requester, in order with bulk writes of the same direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// READ: the chunk's bytes are there, before this. WRITE: it is unpacked.
    Done(ChunkId),
    /// No staging for it: ask in another way. Nothing of it was or will be written.
    Refused(ChunkId),
    /// It cannot be done. Nothing more of it will be written.
    Failed(ChunkId, Fault),
    /// Nothing of the batch is under way any more, nor will be: the answer to a cancel.
    Drained(BatchId),
}

/// What one doorbell posted: operations whose last one is signalled. Never used twice: a completion that comes again or
/// late names one that is not known any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkId(pub u64);

/// What a device says of posted operations that it could not carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkFault {
    /// The first of the doorbell's operations that failed, counted from 0.
    pub operation: u32,
    /// The device's code for it.
    pub status: u32,
}

impl WorkFault {
    /// As a fault of the batch; `first` is the chunk's operation that the doorbell began with.
    pub(super) fn fault(self, first: u32) -> Fault {
        let fault = Fault::new(Status::FAULT, Stage::WINDOW, Field::NONE, self.status.into());
        Fault { fragment: first.saturating_add(self.operation), ..fault }
    }
}

/// Why a batch fails whose link is lost: the owner of its memory cannot be reached any more.
pub const LINK_LOST: Fault = Fault::new(Status::REGION_GONE, Stage::WINDOW, Field::NONE, 0);
