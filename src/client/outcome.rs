//! What a successful batch says.

use ring_abi::{Route, Span, Status};
use std::time::Duration;

/// A batch that is done: every byte is in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// [`Status::OK`]: anything else is a [`BatchError`](super::BatchError).
    pub status: Status,
    /// Ring position of the batch's first descriptor.
    pub position: u64,
    /// Bytes written to destinations.
    pub bytes: u64,
    /// Of the batch's last descriptor.
    pub user_data: u64,
    /// How the bytes travelled.
    pub route: Route,
    /// Where the time went.
    pub times: Times,
    /// True when nobody writes to the batch's buffers any more.
    pub reusable: bool,
}

/// The stages of a batch. A stage longer than four seconds reads as that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Times {
    /// From the first descriptor taken to the first work started.
    pub queue: Duration,
    /// Planning.
    pub plan: Duration,
    /// Commands to a peer.
    pub command: Duration,
    /// Packing.
    pub pack: Duration,
    /// From the first bulk operation to the last data in place.
    pub window: Duration,
    /// From the first descriptor taken to the completion.
    pub total: Duration,
}

impl Times {
    /// The times of a span that is a success.
    pub(super) fn of(span: &Span) -> Times {
        let time = |ns| Duration::from_nanos(u64::from(ns));
        Times {
            queue: time(span.queue_ns),
            plan: time(span.plan_ns),
            command: time(span.command_ns),
            pack: time(span.pack_ns),
            window: time(span.window_ns),
            total: time(span.total_ns),
        }
    }
}
