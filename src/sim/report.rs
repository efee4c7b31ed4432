//! What a simulated run took.

use crate::cost::{Choice, Decision};
use ring_abi::Route;

/// What a run took. Simulated: no figure of it is a measurement.
#[derive(Clone, Debug)]
pub struct Report {
    /// From before the first descriptor is written until the client has read the last span, of the slowest caller.
    pub total_ns: u64,
    /// From the first bulk post to the last data completion, of all callers. `None` if there was no such post.
    pub window_ns: Option<u64>,
    /// Where the time went, of the first caller.
    pub stages: Stages,
    /// Doorbells rung by both sides for data, of the first caller.
    pub doorbells: u64,
    /// Operations posted by both sides for data, of the first caller.
    pub operations: u64,
    /// Those of them that were signalled.
    pub signalled: u64,
    /// Most staging memory of one side of one caller that was leased at once.
    pub staging_peak_bytes: u64,
    /// How the bytes went: what was carried out, not what was chosen, where they differ.
    pub chosen: Route,
    /// The plan.
    pub choice: Choice,
    /// What the planner expected.
    pub predicted: Decision,
    /// How the first caller's batch ended.
    pub outcome: Outcome,
    /// Until the end of each caller.
    pub callers_ns: Vec<u64>,
    /// What was under way when, of the first caller; empty unless asked for.
    pub timeline: Vec<Bar>,
    /// What is to hold in every run, whatever goes wrong in it.
    pub audit: Audit,
}

/// What is to hold in every run, whatever goes wrong in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Batches that were said to be finished more or less often than once.
    pub not_finished_once: u32,
    /// Batches whose spans do not cover each of their descriptors once.
    pub spans_wrong: u32,
    /// Slots still leased when everything was over, of all sides.
    pub leases_left: u32,
    /// Lists of chunks still kept when everything was over. 0 if no bytes were moved.
    pub lists_left: u32,
    /// Slots leased at once beyond what the plan allows.
    pub slots_beyond: u32,
    /// Whether all bytes of every batch that is done were compared and right. `None` if no bytes were moved.
    pub bytes_right: Option<bool>,
    /// Bytes written into memory that had been called reusable.
    pub late_writes: u64,
    /// Events that came when everything was to be over: the run was cut off there.
    pub cut_off: bool,
}

/// Where the time of a run went. `None`: there was no such stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// From the submit until planning begins.
    pub queue_ns: Option<u64>,
    /// The poller's time of planning.
    pub plan_ns: Option<u64>,
    /// From sending the first command until its owner begins on it.
    pub command_ns: Option<u64>,
    /// How long commands waited at the owner for a slot and a worker: the longest.
    pub owner_queue_ns: Option<u64>,
    /// Time in which at least one worker packed or unpacked.
    pub pack_ns: Option<u64>,
    /// From the last data in place until the client has read the last span.
    pub complete_ns: Option<u64>,
}

/// How a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All bytes are in place.
    Done,
    /// It failed.
    Failed,
    /// It was cancelled, by the client or by its deadline.
    Cancelled,
}

/// Something that was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Number of the chunk.
    pub chunk: u32,
    /// What was done with it.
    pub stage: BarStage,
    /// Whose poller, worker or NIC.
    pub host: Host,
    /// From then.
    pub from_ns: u64,
    /// Until then.
    pub to_ns: u64,
}

/// What is done with a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarStage {
    /// It waits for a slot and a worker.
    Queue,
    /// The requester's poller plans it.
    Plan,
    /// Its command is under way.
    Command,
    /// A worker packs it.
    Pack,
    /// Its bytes are on the wire.
    Wire,
    /// A worker unpacks it.
    Unpack,
}

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// Who asked.
    Requester,
    /// Whose memory is remote.
    Owner,
}
