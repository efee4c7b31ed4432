//! How an engine runs, and what its clients may take from it.

use crate::region::Trust;
use std::time::Duration;

/// How an engine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Copy workers besides the poller.
    pub workers: usize,
    /// How long the poller and the workers spin, yielding, before they sleep. About what a wake-up costs is right: less
    /// and every pause costs a wake-up, more and an idle engine burns a core for longer.
    pub spin: Duration,
    /// Users besides the engine's own and root whose processes may attach. With any of them the socket's directory may be
    /// open to a group (0750), and the socket is.
    pub users: Vec<u32>,
    /// Whose memory files are accepted. [`Trust::SameUser`] needs [`guard_process`](super::guard_process) before.
    pub trust: Trust,
    /// What clients may take.
    pub limits: Limits,
}

/// What clients may take from an engine. What goes beyond is refused with
/// [`LIMIT_EXCEEDED`](ring_abi::Status::LIMIT_EXCEEDED) and a text that names the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sessions at a time, at most 65,536. Each is one ring pair, of one thread of a client.
    pub sessions: usize,
    /// Of these, sessions of one user.
    pub sessions_per_user: usize,
    /// Slots of either ring of a session.
    pub ring_slots: u32,
    /// Regions of a session, registered and opened, at most 4,096; and names that it can give.
    pub regions: u32,
    /// Bytes of the regions that a session has registered. Opened regions count for their owner.
    pub region_bytes: u64,
    /// Batches of a session under way.
    pub batches: u32,
    /// Bytes of transfers whose batch has an outcome and that may still be written (HELD, not yet RELEASED). A session
    /// with more ends.
    pub held_bytes: u64,
}

impl Default for Config {
    /// One worker less than there are processors, at most 4; 50 us; this user and root only; sealed files only.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Config {
            workers: (processors - 1).min(4),
            spin: Duration::from_micros(50),
            users: Vec::new(),
            trust: Trust::Sealed,
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    /// 64 sessions; rings of 65,536 slots; 4,096 regions of as many bytes as a machine can have; 1,024 batches; 1 GiB held.
    fn default() -> Self {
        Limits {
            sessions: 64,
            sessions_per_user: 64,
            ring_slots: 1 << 16,
            regions: ring_abi::Handle::INDEX_MAX + 1,
            region_bytes: 1 << 56,
            batches: 1024,
            held_bytes: 1 << 30,
        }
    }
}
