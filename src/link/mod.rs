//! Links: memory of another engine, named by grants and moved by operations that complete.
//!
//! One side grants pieces of its regions, the other posts operations that name them. A link knows nothing of batches,
//! plans or chunks, and does not look into the tasks that it has its lanes run. What is here is what every transport has
//! in common, in the words of RDMA verbs: an operation is a work request, [`Transport::post`] is the doorbell, and an event
//! is a completion.

mod bell;
mod channel;
mod cores;
mod grants;
pub mod tcp;
pub mod verbs;

pub use bell::Bell;
pub use grants::{GrantError, Grants, Revoked, Use};

use crate::pack::ListTask;
use crate::region::{Region, Rights};
use rustix::fd::BorrowedFd;
use std::sync::Arc;

/// A connection to another engine: some lanes, each of which carries operations and messages in order. Used by one thread
/// at a time, the poller; its [`Grants`] may be used by any.
pub trait Transport: Send {
    /// What the other side may touch.
    fn grants(&self) -> &Grants;

    /// Lanes.
    fn lanes(&self) -> usize;

    /// Starts operations on a lane, in their order: all of them or none. They leave together, by as few doorbells as they
    /// fit in.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was taken.
    fn post(&mut self, lane: usize, operations: &[Operation<'_>]) -> Result<(), PostError> {
        self.queue(lane, operations)?;
        self.ring(lane);
        Ok(())
    }

    /// [`post`](Self::post) without the doorbell: they leave together with what is queued until [`ring`](Self::ring).
    ///
    /// # Errors
    /// As `post`.
    fn queue(&mut self, lane: usize, operations: &[Operation<'_>]) -> Result<(), PostError>;

    /// The doorbell of a lane: what was queued is begun.
    fn ring(&mut self, lane: usize);

    /// Has a task run: on the lane's thread, on lane 0 at once. It comes back by [`Event::Ran`], also if the link goes
    /// down. The tasks of a lane run in their order; what is posted behind them does not wait for them.
    ///
    /// # Errors
    /// The task, if the link is down, there is no such lane, or as many as there may be have not come back from it.
    fn run(&mut self, lane: usize, task: Box<ListTask>) -> Result<(), Box<ListTask>>;

    /// Operations that a lane has room for.
    fn room(&self, lane: usize) -> usize;

    /// Moves what can be moved by this thread, without waiting, and says what has happened on all lanes. True: something
    /// has, and there may be more at once.
    fn poll(&mut self, event: &mut dyn FnMut(Event<'_>)) -> bool;

    /// True if [`poll`](Self::poll) has something to say that no descriptor shows: to be asked when the poller has
    /// announced its sleep.
    fn has_news(&mut self) -> bool;

    /// True if operations can name this grant of the other side. Else only what the other side itself does reaches its
    /// memory.
    fn reaches(&self, grant: GrantId) -> bool;

    /// What shows that there is something to poll, to be waited for edge by edge; the first one also that there is room, if
    /// it [wants to send](Self::wants_to_send). None once they are closed.
    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; DESCRIPTORS];

    /// True if there is something to send that the first of the [descriptors](Self::descriptors) had no room for.
    fn wants_to_send(&self) -> bool;

    /// Ends the link. Nothing that was posted, here or there, touches memory of this side any more once the link
    /// [is quiet](Self::is_quiet); poll until then.
    fn shut_down(&mut self);

    /// True once the link is down, no lane touches anything any more, and everything has been told.
    fn is_quiet(&self) -> bool;

    /// Who moves the bytes.
    fn mover(&self) -> Mover;

    /// It is down, and what was posted may be carried out at any time, for ever: it will never be quiet, and its memory is
    /// never to be used again.
    fn is_stuck(&self) -> bool {
        false
    }

    /// When something last came by a lane, by [`now_ns`](Self::now_ns); 0 if never.
    fn lane_heard_ns(&self, lane: usize) -> u64;

    /// When something last left by a lane, by [`now_ns`](Self::now_ns); 0 if never.
    fn lane_sent_ns(&self, lane: usize) -> u64;

    /// True if some of what was posted to a lane has not left. Answers to the other side do not count. Of a lane with a
    /// thread it may be said a moment too long.
    fn is_sending(&self, lane: usize) -> bool;

    /// Nanoseconds since the link was made.
    fn now_ns(&self) -> u64;
}

/// Who moves the bytes of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mover {
    /// The processors of both sides, piece by piece.
    Processors,
    /// A device, while the processors do something else.
    Device {
        /// Of its port; 0 if it does not say.
        bits_per_s: u64,
        /// Pieces of this side in one request that reads.
        read_pieces: u32,
        /// The same of one that writes.
        write_pieces: u32,
        /// Requests of a lane that may be under way.
        depth: u32,
    },
}

/// Descriptors of a link, at most.
pub const DESCRIPTORS: usize = 3;

/// Memory that the other side may touch. Never given out twice on a connection: index in the low half, generation in the
/// high half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantId(pub u64);

/// A run of bytes of the other side's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemotePiece {
    /// The other side's grant.
    pub grant: GrantId,
    /// First byte, from the start of what is granted.
    pub offset: u64,
    /// Bytes, 1 at least.
    pub len: u32,
}

/// A run of bytes of this side's memory.
#[derive(Clone, Debug)]
pub struct LocalPiece {
    at: *mut u8,
    len: u32,
    /// What this side's RDMA device calls the memory, if it is registered with it.
    key: Option<u32>,
    /// `None`: a slot, which the caller keeps.
    region: Option<Arc<Region>>,
}

// SAFETY: the pointer is used by system calls only, which expect others to write there at the same time.
unsafe impl Send for LocalPiece {}

impl LocalPiece {
    /// Bytes of a region, which is kept until the operation has completed. `None`: they are not inside.
    #[must_use]
    pub fn of_region(region: &Arc<Region>, offset: u64, len: u32) -> Option<LocalPiece> {
        let end = offset.checked_add(len.into())?;
        let at = region.as_ptr().wrapping_add(offset as usize);
        let key = region.local_key();
        (end <= region.bytes()).then(|| LocalPiece { at, len, key, region: Some(region.clone()) })
    }

    /// Bytes of memory that the caller keeps, as a staging slot.
    ///
    /// # Safety
    /// They stay mapped for reading, and for writing if they are the destination of a read, until the operation that
    /// names them has completed or the link is quiet. Nobody has a Rust reference to bytes that a read will write.
    #[must_use]
    pub unsafe fn of_slot(at: *mut u8, len: u32) -> LocalPiece {
        LocalPiece { at, len, key: None, region: None }
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// What this side's device calls it.
    fn key(&self) -> Option<u32> {
        self.key
    }

    /// True if it has no bytes: no operation takes it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Why an operation that needs `wanted` cannot use it.
    fn refusal(&self, wanted: Rights) -> Option<BadOperation> {
        let region = self.region.as_ref()?;
        if !region.rights().covers(wanted) {
            Some(BadOperation::NoRight)
        } else if region.is_withdrawn() || region.is_lost() {
            Some(BadOperation::RegionGone)
        } else {
            None
        }
    }

    fn may_be_lost(&self) -> bool {
        self.region.as_ref().is_some_and(|region| region.may_be_lost())
    }

    fn is_lost(&self) -> bool {
        self.region.as_ref().is_some_and(|region| region.is_lost())
    }
}

/// What one side asks for. At most [`PIECES_MAX`] pieces on either side, [`OPERATION_BYTES_MAX`] bytes in all, and as many
/// bytes on one side as on the other; how they are cut into pieces may differ.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Bytes from here to there.
    Write {
        /// Comes back in [`Event::Completed`].
        id: u64,
        /// Where they are.
        from: &'a [LocalPiece],
        /// Where they go.
        to: &'a [RemotePiece],
        /// Completes when the bytes are in place over there, and not as soon as the source may be reused.
        acknowledged: bool,
    },
    /// Bytes from there to here. Completes when they are in place.
    Read {
        /// Comes back in [`Event::Completed`].
        id: u64,
        /// Where they are.
        from: &'a [RemotePiece],
        /// Where they go.
        to: &'a [LocalPiece],
    },
    /// A message, delivered behind what was posted to the same lane before. It has no completion.
    Send {
        /// At most [`MESSAGE_BYTES_MAX`]; copied by the post.
        bytes: &'a [u8],
        /// A grant that it names for the first time: the other side can use it once it has the message.
        names: Option<GrantId>,
    },
}

/// What a link has to say.
#[derive(Debug)]
pub enum Event<'a> {
    /// An operation has its outcome, its only one. The memory on this side is not touched any more.
    Completed {
        /// The operation's.
        id: u64,
        /// Success is for all of its bytes.
        result: Result<(), Failure>,
    },
    /// A message.
    Received {
        /// The lane that it came by.
        lane: usize,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// The end of a grant that was in use when it was revoked. The other side does not touch its memory any more.
    Revoked {
        /// The grant.
        grant: GrantId,
        /// See [`Revoked::Now`].
        spoiled: bool,
    },
    /// A task is back, the only time: it has run, or the lane was down before it began, which its result says.
    Ran(Box<ListTask>),
    /// The link is down, which is said once. Operations that have no outcome yet fail from here on.
    Down(Reason),
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Memory of this side went away while it was used.
    #[error("a region of this side was lost")]
    Lost,
    /// Memory of the other side went away while it was used.
    #[error("a region of the other side was lost")]
    LostThere,
    /// The other side has taken a grant back, or it was for one use and had it.
    #[error("the other side has taken its grant back")]
    Revoked,
    /// The link is down: whether the other side has done it is not known.
    #[error("the link is down")]
    Down,
}

/// Why a link is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The other side has closed it.
    #[error("closed by the other side")]
    Closed,
    /// The system says so: reset, timed out, or another error of the socket.
    #[error("broken: {0}")]
    System(rustix::io::Errno),
    /// The other side does what it may not.
    #[error("the other side broke the protocol: {0}")]
    Violation(&'static str),
    /// A work request has failed, which ends its queue pair.
    #[error("{}", request_failed(*status, *vendor))]
    Request {
        /// The device's, as of `ibv_wc_status`.
        status: u32,
        /// What the device's vendor knows of it.
        vendor: u32,
    },
    /// The RDMA device does not do what it is to do.
    #[error("the RDMA device has failed: {0}")]
    Device(&'static str),
    /// This side has shut it down.
    #[error("shut down")]
    ShutDown,
    /// A thread of this side has ended: a defect here.
    #[error("a lane's thread ended unexpectedly")]
    Defect,
}

fn request_failed(status: u32, vendor: u32) -> String {
    format!("an RDMA request failed: {} (vendor's code {vendor})", crate::verbs::WcStatus(status))
}

impl From<Violation> for Reason {
    fn from(violation: Violation) -> Reason {
        Reason::Violation(violation.0)
    }
}

/// Why a post was refused. Nothing of it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The lane has no room for so many operations: poll, and post again.
    #[error("the lane's queue is full")]
    Full,
    /// The link is down.
    #[error("the link is down")]
    Down,
    /// There is no such lane.
    #[error("there is no such lane")]
    NoLane,
    /// An operation is not possible.
    #[error("operation {index}: {why}")]
    Bad {
        /// Which of the post.
        index: usize,
        /// What is wrong with it.
        why: BadOperation,
    },
}

/// What is wrong with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOperation {
    /// No pieces, or more than [`PIECES_MAX`].
    #[error("from 1 to {PIECES_MAX} pieces are possible")]
    PieceCount,
    /// A piece without bytes.
    #[error("a piece has no bytes")]
    EmptyPiece,
    /// More bytes on one side than on the other.
    #[error("the two sides have different lengths")]
    LengthsDiffer,
    /// Longer than [`OPERATION_BYTES_MAX`] or [`MESSAGE_BYTES_MAX`].
    #[error("too long")]
    TooLong,
    /// A region of this side does not grant it.
    #[error("a region does not grant it")]
    NoRight,
    /// A region of this side is withdrawn or lost.
    #[error("a region is withdrawn or lost")]
    RegionGone,
    /// Memory of either side that the devices do not reach: it is not registered, or the other side has not said where it
    /// is.
    #[error("memory that is not registered with the device")]
    NoKey,
}

/// What is wrong with an operation, if anything is.
fn check(operation: &Operation<'_>) -> Result<(), BadOperation> {
    let (local, remote, wanted) = match *operation {
        Operation::Write { from, to, .. } => (from, to, Rights::READ),
        Operation::Read { from, to, .. } => (to, from, Rights::WRITE),
        Operation::Send { bytes, .. } if bytes.len() > MESSAGE_BYTES_MAX => return Err(BadOperation::TooLong),
        Operation::Send { .. } => return Ok(()),
    };
    let possible = 1..=PIECES_MAX;
    if !possible.contains(&local.len()) || !possible.contains(&remote.len()) {
        return Err(BadOperation::PieceCount);
    }
    if local.iter().any(LocalPiece::is_empty) || remote.iter().any(|piece| piece.len == 0) {
        return Err(BadOperation::EmptyPiece);
    }
    let here: u64 = local.iter().map(|piece| u64::from(piece.len())).sum();
    let there: u64 = remote.iter().map(|piece| u64::from(piece.len)).sum();
    if here != there {
        return Err(BadOperation::LengthsDiffer);
    }
    if here > OPERATION_BYTES_MAX {
        return Err(BadOperation::TooLong);
    }
    local.iter().find_map(|piece| piece.refusal(wanted)).map_or(Ok(()), Err)
}

/// What no honest side does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Violation(&'static str);

/// Pieces of an operation on either side.
pub const PIECES_MAX: usize = 1024;
/// Bytes of an operation.
pub const OPERATION_BYTES_MAX: u64 = 1 << 30;
/// Bytes of a message: a full list of a chunk's pieces, which has 64 KiB, and what says what is to be done with it.
pub const MESSAGE_BYTES_MAX: usize = (64 << 10) + 128;
