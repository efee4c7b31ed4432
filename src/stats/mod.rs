//! What an engine has done and what it has refused, in numbers.
//!
//! Each counter has one writer, the poller or the control thread, and any number of readers: relaxed words, no
//! read-modify-write. They run from the engine's start and never go back.

use crate::sync::{AtomicU64, Ordering};
use crossbeam_utils::CachePadded;
use ring_abi::{Span, SpanFlags, Status};
use std::array::from_fn;

/// The counters of an engine.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// Written by the poller.
    pub served: CachePadded<Served>,
    /// Written by the control thread.
    pub attached: CachePadded<Attached>,
}

/// What the poller counts.
#[derive(Debug, Default)]
pub(crate) struct Served {
    descriptors: AtomicU64,
    bytes: AtomicU64,
    batches: ByStatus,
    pub batches_cut: AtomicU64,
    pub sessions_cut: AtomicU64,
    pub notifications: AtomicU64,
}

/// What the control thread counts.
#[derive(Debug, Default)]
pub(crate) struct Attached {
    pub sessions: AtomicU64,
    pub ended: ByStatus,
    pub refused: ByStatus,
    pub regions: AtomicU64,
    pub peers_connected: AtomicU64,
    pub peers_by_verbs: AtomicU64,
    pub peers_by_tcp: AtomicU64,
    pub peers_fell_back: AtomicU64,
    pub peers_not_set_up: AtomicU64,
    pub regions_registered: AtomicU64,
    pub regions_not_registered: AtomicU64,
    pub peers_stuck: AtomicU64,
    pub peers_ended: AtomicU64,
    pub peers_violated: AtomicU64,
    pub peers_unreachable: AtomicU64,
    pub peer_opens_refused: AtomicU64,
    pub peer_regions_mapped: AtomicU64,
    pub peer_files_given: AtomicU64,
}

/// A counter for each status.
#[derive(Debug)]
pub(crate) struct ByStatus([AtomicU64; STATUSES]);

/// Codes are 0 to -65; the last place is for those of a later version.
const STATUSES: usize = 67;

impl Default for ByStatus {
    fn default() -> Self {
        ByStatus(from_fn(|_| AtomicU64::new(0)))
    }
}

impl ByStatus {
    pub fn count(&self, status: Status) {
        let place = usize::try_from(status.0.wrapping_neg()).map_or(STATUSES - 1, |code| code.min(STATUSES - 1));
        add(&self.0[place], 1);
    }

    fn read(&self) -> Vec<(Status, u64)> {
        let read = self.0.iter().zip(0..).map(|(count, code): (_, i32)| (Status(-code), count.load(Ordering::Relaxed)));
        read.filter(|(_, count)| *count > 0).collect()
    }
}

impl Served {
    /// A span that a client is shown.
    pub fn count(&self, span: &Span) {
        if span.flags & SpanFlags::RELEASED != 0 {
            return;
        }
        add(&self.descriptors, span.count.into());
        add(&self.bytes, span.bytes);
        let status = span.status();
        let is_outcome =
            if status.is_ok() { span.flags & SpanFlags::BATCH_DONE != 0 } else { status != Status::NOT_DONE };
        if is_outcome {
            self.batches.count(status);
        }
    }
}

/// Counts up a word of which the caller is the only writer.
pub(crate) fn add(word: &AtomicU64, n: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// What an engine has done since it started.
///
/// ```
/// use scatter_ring::client::{Client, Setup};
/// use scatter_ring::engine::{Config, Engine};
///
/// let engine = Engine::new(&Config::default())?.start()?;
/// let mut client = Client::over(engine.connect()?, &Setup::default())?;
/// let (from, to) = (client.allocate(4096)?, client.allocate(4096)?);
/// client.read(&from, 0, &to, 0, 4096)?;
/// let counters = engine.counters();
/// assert_eq!((counters.bytes, counters.sessions, counters.regions), (4096, 1, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sessions that began.
    pub sessions: u64,
    /// Sessions that have ended, by reason: [`Status::OK`] is a client that has gone by itself.
    pub sessions_ended: Vec<(Status, u64)>,
    /// Connections and questions that were refused, by reason.
    pub refused: Vec<(Status, u64)>,
    /// Regions that were registered.
    pub regions: u64,
    /// Ring slots whose outcome was shown to their client.
    pub descriptors: u64,
    /// Bytes that clients were told are in place.
    pub bytes: u64,
    /// Batches that have ended, by outcome.
    pub batches: Vec<(Status, u64)>,
    /// Batches that had no outcome when their session ended: their client died, or a stop did not wait for them.
    pub batches_cut: u64,
    /// Sessions that ended with such batches.
    pub sessions_cut: u64,
    /// Notifications that were put before clients.
    pub notifications: u64,
    /// Regions that the RDMA device reaches by itself.
    pub regions_registered: u64,
    /// Regions that it does not take: what is moved of them is packed.
    pub regions_not_registered: u64,
    /// Connections whose RDMA device has not given everything back after their end: their memory is never used again.
    pub peers_stuck: u64,
    /// Connections to other engines that began, whoever dialled.
    pub peers_connected: u64,
    /// Of those, by RDMA verbs.
    pub peers_by_verbs: u64,
    /// Of those, over TCP.
    pub peers_by_tcp: u64,
    /// Of those, over TCP although this engine has an RDMA device and may use it: the other side has none, or it did not work.
    pub peers_fell_back: u64,
    /// Connections that ended before they could be used, because RDMA verbs did not work and TCP was not allowed, or because
    /// the other side did not do its part.
    pub peers_not_set_up: u64,
    /// Of those, ended: lost, or another connection took their place.
    pub peers_ended: u64,
    /// Of those, ended because the other engine did what no engine does.
    pub peers_violated: u64,
    /// Times that an engine that was asked for could not be reached.
    pub peers_unreachable: u64,
    /// Openings of exports that other engines asked for and were refused.
    pub peer_opens_refused: u64,
    /// Exports of engines on this host that were mapped here when a client opened them.
    pub peer_regions_mapped: u64,
    /// Times that the file of an export was given to an engine on this host.
    pub peer_files_given: u64,
}

impl Counters {
    /// The count for one status in one of the lists.
    #[must_use]
    pub fn of(list: &[(Status, u64)], status: Status) -> u64 {
        list.iter().find(|(found, _)| *found == status).map_or(0, |(_, count)| *count)
    }
}

impl Stats {
    pub fn read(&self) -> Counters {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        Counters {
            sessions: load(&self.attached.sessions),
            sessions_ended: self.attached.ended.read(),
            refused: self.attached.refused.read(),
            regions: load(&self.attached.regions),
            descriptors: load(&self.served.descriptors),
            bytes: load(&self.served.bytes),
            batches: self.served.batches.read(),
            batches_cut: load(&self.served.batches_cut),
            sessions_cut: load(&self.served.sessions_cut),
            notifications: load(&self.served.notifications),
            peers_connected: load(&self.attached.peers_connected),
            peers_by_verbs: load(&self.attached.peers_by_verbs),
            peers_by_tcp: load(&self.attached.peers_by_tcp),
            peers_fell_back: load(&self.attached.peers_fell_back),
            peers_not_set_up: load(&self.attached.peers_not_set_up),
            regions_registered: load(&self.attached.regions_registered),
            regions_not_registered: load(&self.attached.regions_not_registered),
            peers_stuck: load(&self.attached.peers_stuck),
            peers_ended: load(&self.attached.peers_ended),
            peers_violated: load(&self.attached.peers_violated),
            peers_unreachable: load(&self.attached.peers_unreachable),
            peer_opens_refused: load(&self.attached.peer_opens_refused),
            peer_regions_mapped: load(&self.attached.peer_regions_mapped),
            peer_files_given: load(&self.attached.peer_files_given),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_this_version_has_a_place_of_its_own() {
        let counts = ByStatus::default();
        Status::ALL.iter().for_each(|(status, ..)| counts.count(*status));
        assert_eq!(counts.read(), Status::ALL.iter().map(|(status, ..)| (*status, 1)).collect::<Vec<_>>());
        counts.count(Status(-9999));
        counts.count(Status(7));
        counts.count(Status(i32::MIN));
        assert_eq!(counts.read().last(), Some(&(Status(1 - STATUSES as i32), 3)));
    }

    #[test]
    fn a_failed_batch_is_one_batch_and_all_its_slots() {
        let served = Served::default();
        let span = |count, status: Status, bytes, flags| Span { count, status: status.0, bytes, flags, ..Span::ZERO };
        served.count(&span(3, Status::OK, 30, 0));
        served.count(&span(1, Status::OUT_OF_RANGE, 0, 0));
        served.count(&span(6, Status::NOT_DONE, 0, SpanFlags::BATCH_DONE));
        served.count(&span(0, Status::OK, 0, SpanFlags::RELEASED));
        served.count(&span(2, Status::OK, 20, SpanFlags::BATCH_DONE));
        let stats = Stats { served: CachePadded::new(served), ..Stats::default() }.read();
        assert_eq!((stats.descriptors, stats.bytes), (12, 50));
        assert_eq!(stats.batches, [(Status::OK, 1), (Status::OUT_OF_RANGE, 1)]);
    }
}
