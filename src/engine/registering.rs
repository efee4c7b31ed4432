//! Memory that this engine's RDMA device reaches by itself.
//!
//! A region is registered once, when the first client that has it also uses a peer by RDMA verbs, or when a peer opens it by
//! them: before anybody can name it in a transfer, and never on the poller. What the device does not take (too much locked
//! memory, pages that cannot be written) is packed instead, which is said and counted.

use super::control::Control;
use super::exports::Held;
use super::remote::SeatId;
use crate::region::{Region, Rights};
use crate::stats;
use crate::verbs::{MemoryRegion, ProtectionDomain, VerbsError};
use std::sync::Arc;
use std::time::Instant;

/// Registering so much takes a while, which is said.
const LONG_BYTES: u64 = 1 << 30;

impl Control {
    /// A client has opened memory of a peer that a device reaches: the device is to reach all memory of the client's too.
    pub(super) fn register_session(&mut self, id: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if std::mem::replace(&mut session.uses_device, true) {
            return;
        }
        let mapped = |held: &Held| held.memory.as_ref().and_then(|memory| memory.mapped()).cloned();
        let regions: Vec<Arc<Region>> = session.handles.iter().filter_map(|(_, held)| mapped(held)).collect();
        regions.iter().for_each(|region| self.register_region(region));
    }

    /// A client has got a region.
    pub(super) fn register_for(&mut self, id: u64, region: &Arc<Region>) {
        if self.sessions.get(&id).is_some_and(|session| session.uses_device) {
            self.register_region(region);
        }
    }

    /// A peer opens a region, perhaps by a connection of which its device reaches it by itself: what lets it, until the poller
    /// has it too.
    pub(super) fn expose(&mut self, seat: SeatId, region: &Arc<Region>, rights: Rights) -> Option<Arc<MemoryRegion>> {
        let domain = self.peering.as_ref()?.domain_of(seat)?;
        self.register_region(region);
        let shared = region.share(&domain, rights);
        shared.map_err(|error| self.not_registered(region, &error)).ok()
    }

    fn register_region(&mut self, region: &Arc<Region>) {
        let domain: Option<Arc<ProtectionDomain>> = self.peering.as_ref().and_then(|peering| peering.domain());
        let Some(domain) = domain.filter(|_| region.local_key().is_none()) else { return };
        let (started, bytes) = (Instant::now(), region.bytes());
        if bytes >= LONG_BYTES {
            tracing::info!(bytes, "registering a region with the RDMA device");
        }
        match region.register(&domain) {
            Ok(()) => {
                stats::add(&self.stats.attached.regions_registered, 1);
                if bytes >= LONG_BYTES {
                    tracing::info!(bytes, seconds = started.elapsed().as_secs_f32(), "registered");
                }
            }
            Err(error) => self.not_registered(region, &error),
        }
    }

    /// A connection's device has not given back what was posted to it.
    pub(super) fn peer_stuck(&mut self, seat: SeatId) {
        self.peer_down(seat, false);
        stats::add(&self.stats.attached.peers_stuck, 1);
        tracing::error!(
            epoch = seat.0,
            "the RDMA device does not give back what was posted to it: memory that a connection \
            used may still be written, and is not used again until this process ends"
        );
    }

    fn not_registered(&mut self, region: &Arc<Region>, error: &VerbsError) {
        stats::add(&self.stats.attached.regions_not_registered, 1);
        if let Some(unsaid) = self.pace.next(Instant::now()) {
            tracing::warn!(bytes = region.bytes(), reason = %error, unsaid,
                "a region is not registered with the RDMA device: what is moved of it is packed");
        }
    }
}
