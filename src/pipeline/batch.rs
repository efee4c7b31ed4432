//! What is known of one batch.

use crate::plan::Fault;
use ring_abi::{Route, Status};

/// End of a list.
pub(super) const NONE: u32 = u32::MAX;

/// One batch from its first descriptor taken to its last span.
#[derive(Debug)]
pub(super) struct Batch {
    /// Position of its first slot.
    pub first: u64,
    /// Position behind its last slot taken so far.
    pub taken: u64,
    /// LAST has been taken.
    pub complete: bool,
    pub phase: Phase,
    /// The descriptor taken last.
    pub current: Taken,
    pub taken_ns: u64,
    /// When its first work started.
    pub started_ns: Option<u64>,
    pub deadline_ns: Option<u64>,
    /// Its first descriptor waits for all earlier batches.
    pub fenced: bool,
    /// All descriptors before this position are completed; once spans are given, covered.
    pub done_to: u64,
    pub done_bytes: u64,
    pub done_user_data: u64,
    /// Transfers in flight, and those completed out of order behind them: a list in ring order.
    pub head: u32,
    pub tail: u32,
    pub in_flight: u32,
    pub failure: Option<(Taken, Fault)>,
    /// How the completed descriptors' bytes travelled.
    pub done_by: Travelled,
    pub stages: Stages,
    /// Spans so far.
    pub spans: u32,
    /// How it ended early; repeated by the RELEASED span.
    pub end_status: Status,
    /// The status of what is left up to LAST.
    pub tail_status: Status,
}

/// The ways that bytes took, of none or of many descriptors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Travelled {
    pub direct: bool,
    pub gathered: bool,
}

impl Travelled {
    pub fn add(&mut self, more: Travelled) {
        self.direct |= more.direct;
        self.gathered |= more.gathered;
    }

    pub fn route(self) -> Route {
        match (self.direct, self.gathered) {
            (false, false) => Route::NONE,
            (true, false) => Route::DIRECT,
            (false, true) => Route::GATHER,
            (true, true) => Route::HYBRID,
        }
    }
}

/// Where the time of what went over a connection was spent, in ns; 0 is not known. Stages overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// Planning.
    pub plan_ns: u64,
    /// Until the owner started on the first command.
    pub command_ns: u64,
    /// Packing and unpacking, on both sides.
    pub pack_ns: u64,
    /// From the first post or command to the last byte in place.
    pub window_ns: u64,
}

impl Stages {
    /// What is under way at the same time takes as long as the longest.
    pub(super) fn or(&mut self, other: &Stages) {
        self.plan_ns = self.plan_ns.max(other.plan_ns);
        self.command_ns = self.command_ns.max(other.command_ns);
        self.pack_ns = self.pack_ns.max(other.pack_ns);
        self.window_ns = self.window_ns.max(other.window_ns);
    }
}

/// Where a batch stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its descriptors are carried out.
    Running,
    /// One has failed; what is in flight drains.
    Failing,
    /// Its outcome is given; what is left are descriptors up to LAST, and the release.
    Ended,
}

/// One descriptor with its extension.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub position: u64,
    pub slots: u32,
    pub user_data: u64,
}

impl Taken {
    pub fn end(&self) -> u64 {
        self.position.wrapping_add(self.slots.into())
    }
}

/// A descriptor whose transfer takes time, and the completed ones right behind it.
#[derive(Debug)]
pub(super) struct Flight {
    pub batch: u32,
    pub taken: Taken,
    pub state: FlightState,
    pub bytes: u64,
    /// Of it, and of its followers.
    pub travels: Travelled,
    /// Descriptors behind this one, up to the next one of the list, that completed at once.
    pub followers_end: u64,
    pub followers_bytes: u64,
    pub followers_user_data: u64,
    pub next: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlightState {
    InFlight,
    Done,
    /// Failed, or given up because its batch had ended.
    Undone,
}
