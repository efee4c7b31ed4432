//! The parts of batches that go over a connection.

use super::super::{PartId, Times};
use crate::pipeline::BatchId;
use crate::plan::Direction;

/// A batch of the requester's machine.
#[derive(Debug)]
pub struct Part {
    pub batch: BatchId,
    pub id: PartId,
    pub direction: Direction,
    pub is_small: bool,
    /// It has failed or was cancelled: nothing new starts.
    pub is_stopped: bool,
    pub fence: Fence,
    /// Chunks that are not finished, and their bytes.
    pub chunks: u32,
    pub bytes: u64,
    pub moved: Moved,
    pub started_ns: Option<u64>,
    pub times: Times,
}

/// What the connection has carried of a part.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved {
    pub bytes: u64,
    /// Pieces of direct operations, and bulk writes.
    pub operations: u64,
}

/// Where the answer to a CANCEL stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// None was sent, or all is answered.
    None,
    /// DRAINED has not come by these lanes.
    Lanes(u32),
    /// It has; so many landings are revoked, and a lane is at them still.
    Revoking(u32),
}

impl Part {
    pub fn new(batch: BatchId, id: PartId, direction: Direction, is_small: bool) -> Part {
        Part {
            batch,
            id,
            direction,
            is_small,
            is_stopped: false,
            fence: Fence::None,
            chunks: 0,
            bytes: 0,
            moved: Moved::default(),
            started_ns: None,
            times: Times::default(),
        }
    }

    pub fn started(&mut self, now_ns: u64) {
        self.started_ns.get_or_insert(now_ns);
    }
}
