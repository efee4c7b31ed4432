//! What can go wrong, in sentences.

use super::Peer;
use crate::attach::AttachError;
use crate::region::RegionError;
use ring_abi::{Field, Span, Stage, Status};
use std::fmt;
use std::io;

/// Why a session could not be set up, or a request was not granted.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Attaching failed, or a request was refused by the engine, not answered in time or not understood.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// Memory cannot be used as a region, or a range is outside it.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A batch that is under way uses the region.
    #[error("a batch that is under way still uses this region: wait for it (or for its release) first")]
    Busy,
    /// The region's bytes are not in this process.
    #[error(
        "the region was opened, not allocated or registered here: its bytes can only be read and written by batches"
    )]
    NotLocal,
    /// Memory that no other process can map.
    #[error(
        "this memory is private to the process, or its file cannot be found: lend it (owner::Owner::lend), or take \
         memory from Client::allocate"
    )]
    PrivateMemory,
    /// The region was closed.
    #[error("the region was closed")]
    Closed,
    /// The region or ticket belongs to another client.
    #[error("this belongs to another client")]
    Foreign,
    /// A forked child used its parent's session.
    #[error("this session belongs to the parent process: attach again in the child")]
    Forked,
    /// Nobody takes the notifications that have come, and they are in the way of everything else.
    #[error("notifications that nobody takes are in the way: take them (Client::next_notification)")]
    NotificationsFull,
    /// Notifications were not asked for.
    #[error("notifications are off: set Setup::notifications, or call Client::enable_notifications")]
    NotificationsOff,
    /// The engine has ended the session, or is gone.
    #[error("the session has ended: {0}")]
    Ended(Status),
    /// The engine did something that the protocol does not allow; the session has ended.
    #[error("the session has ended because the engine broke its protocol: {0}")]
    Broken(&'static str),
    /// The kernel refused.
    #[error("{operation}: {source}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl ClientError {
    /// The code for it.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            ClientError::Busy => Status::NOT_ALLOWED,
            ClientError::Attach(e) => e.status(),
            ClientError::Region(e) => e.status(),
            ClientError::NotLocal => Status::NO_RIGHT,
            ClientError::PrivateMemory => Status::BAD_FD,
            ClientError::Closed | ClientError::Foreign => Status::UNKNOWN_REGION,
            ClientError::Forked => Status::FORKED,
            ClientError::NotificationsFull => Status::LIMIT_EXCEEDED,
            ClientError::NotificationsOff => Status::NOT_ALLOWED,
            ClientError::Ended(status) => *status,
            ClientError::Broken(_) => Status::BAD_RING,
            ClientError::System { .. } => Status::NO_MEMORY,
        }
    }
}

/// Why a raw descriptor was not taken by [`Client::push`](super::Client::push).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// No free slot: [`submit`](super::Client::submit), [`reap`](super::Client::reap), and try again.
    #[error("ring is full")]
    Full,
    /// The session has ended.
    #[error("the session has ended: {0}")]
    Ended(Status),
    /// A forked child used its parent's session.
    #[error("this session belongs to the parent process: attach again in the child")]
    Forked,
}

/// Why a batch failed, or was not submitted.
///
/// ```
/// use scatter_ring::client::BatchError;
/// use ring_abi::{Field, Stage, Status};
/// let error = BatchError {
///     status: Status::OUT_OF_RANGE,
///     descriptor: Some(3),
///     position: 3,
///     fragment: 17,
///     field: Field::SRC_OFFSET,
///     detail: 99_999,
///     stage: Stage::PACK,
///     bytes_done: 0,
///     reusable: true,
///     peer: None,
/// };
/// assert_eq!(
///     error.to_string(),
///     "descriptor 3 of the batch, fragment 17, src_offset: outside the region (OUT_OF_RANGE), value 99999; \
///      buffers are reusable"
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchError {
    /// The outcome of the batch.
    pub status: Status,
    /// Which descriptor failed, counted in the order in which they were pushed to the batch. All before it are done,
    /// none after it. `None`: it is about the batch as a whole.
    pub descriptor: Option<u32>,
    /// The ring position of that descriptor.
    pub position: u64,
    /// Which of its fragments.
    pub fragment: u32,
    /// Which of its fields.
    pub field: Field,
    /// The offending value: an offset, a row number, a handle, flag bits.
    pub detail: u64,
    /// Where it failed.
    pub stage: Stage,
    /// Bytes in place by the descriptors before it.
    pub bytes_done: u64,
    /// False while somebody may still write to the batch's buffers:
    /// [`Client::wait_released`](super::Client::wait_released).
    pub reusable: bool,
    /// The peer whose memory the batch was about. `None`: it was about no peer's, or about that of several.
    pub peer: Option<Peer>,
}

impl BatchError {
    /// An error that is about no descriptor.
    pub(super) const fn whole(status: Status, position: u64, reusable: bool) -> BatchError {
        BatchError {
            status,
            descriptor: None,
            position,
            fragment: 0,
            field: Field::NONE,
            detail: 0,
            stage: Stage::NONE,
            bytes_done: 0,
            reusable,
            peer: None,
        }
    }

    /// A descriptor that this side already refuses; nothing of it was submitted.
    pub(super) const fn refused(
        status: Status,
        descriptor: u32,
        position: u64,
        field: Field,
        detail: u64,
    ) -> BatchError {
        BatchError { descriptor: Some(descriptor), field, detail, ..Self::whole(status, position, true) }
    }

    /// What the failing span of a batch says.
    pub(super) const fn of_span(span: &Span, descriptor: Option<u32>, bytes_done: u64, reusable: bool) -> BatchError {
        BatchError {
            status: span.status(),
            descriptor,
            position: span.first,
            fragment: span.fragment(),
            field: span.field(),
            detail: span.detail(),
            stage: Stage(span.stage),
            bytes_done,
            reusable,
            peer: None,
        }
    }
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.descriptor {
            Some(descriptor) => write!(f, "descriptor {descriptor} of the batch")?,
            None => f.write_str("the batch")?,
        }
        // In the other failures no fragment was looked at, and its number is 0.
        let by_fragment = matches!(self.field, Field::SRC_OFFSET | Field::DST_OFFSET) || self.fragment > 0;
        if by_fragment && self.descriptor.is_some() {
            write!(f, ", fragment {}", self.fragment)?;
        }
        let field = self.field.name().filter(|_| self.descriptor.is_some() && !self.status.is_ok());
        if let Some(name) = field {
            write!(f, ", {name}")?;
        }
        write!(f, ": {}", self.status)?;
        if field.is_some() {
            write!(f, ", value {}", self.detail)?;
        }
        f.write_str(if self.reusable { "; buffers are reusable" } else { "; buffers may still be written" })
    }
}

impl std::error::Error for BatchError {}
