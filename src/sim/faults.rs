//! What goes wrong in a run.

/// What goes wrong, by rates out of 1,000 drawn from the run's seed, and at given times. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Completions of either side. An error is of an operation that was not carried out.
    pub completions: Unreliable,
    /// Replies of the owner. An error is a chunk that the owner reports as failed.
    pub replies: Unreliable,
    /// Whether a device stops at the first operation that fails, as reliable connections do: the link is down then.
    pub errors_break: bool,
    /// How late a late one, or the second of two, is.
    pub late_ns: u64,
    /// Doorbells of which only a part is posted, out of 1,000.
    pub post_fails: u32,
    /// Packing or unpacking tasks that refuse a piece, out of 1,000.
    pub pack_fails: u32,
    /// The task that refuses a piece, counted from 0 over both sides.
    pub pack_fails_at: Option<u32>,
    /// Messages before which the owner's poller stalls, out of 1,000.
    pub stalls: u32,
    /// For how long.
    pub stall_ns: u64,
    /// When the link goes down.
    pub down_at_ns: Option<u64>,
    /// When the client cancels.
    pub cancel_at_ns: Option<u64>,
    /// When the batch's deadline passes; a batch that lost a completion ends by it. `None`: never.
    pub deadline_ns: Option<u64>,
}

/// How often something of a kind goes wrong, each out of 1,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unreliable {
    /// It never comes.
    pub lost: u32,
    /// It comes late.
    pub late: u32,
    /// It comes again.
    pub duplicate: u32,
    /// It says that it failed.
    pub error: u32,
}
