//! Queue pairs of reliable connections, and their states.

use super::abi::{self, ibv_ah_attr, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr, ibv_sge};
use super::cm::CmId;
use super::completion::{CompletionQueue, SharedQueue, missing};
use super::error::VerbsError;
use super::library::Library;
use super::memory::{Access, ProtectionDomain};
use super::post::{PostBatch, PostStorage};
use super::values::{Gid, Mtu};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

/// A queue pair of a reliable connection. It has one owner, who posts to it.
///
/// Dropping it destroys it. That says nothing about requests that are under way: first bring it to the error state and
/// take what it flushes.
pub struct QueuePair {
    raw: NonNull<ibv_qp>,
    number: u32,
    caps: QueuePairCaps,
    /// The connection that made it, if one did.
    id: Option<Arc<CmId>>,
    domain: Arc<ProtectionDomain>,
    // Both queues end there.
    _completions: Arc<SharedQueue>,
}

// SAFETY: the functions of libibverbs may be called from any thread.
unsafe impl Send for QueuePair {}

/// How much a queue pair can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueuePairCaps {
    /// Requests that are posted and not completed.
    pub send_requests: u32,
    /// Receives that are posted and not completed.
    pub receive_requests: u32,
    /// Pieces of local memory in a request.
    pub send_pieces: u32,
    /// Pieces of local memory in a receive.
    pub receive_pieces: u32,
    /// Bytes that a request can carry itself.
    pub inline_bytes: u32,
}

/// The way to the peer's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The own port, from 1.
    pub port: u8,
    /// The peer's address in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// The peer's GID, and how it is reached; always on Ethernet, between subnets on InfiniBand.
    pub global: Option<GlobalPath>,
    /// The service level of InfiniBand, or the priority of Ethernet.
    pub service_level: u8,
}

/// The part of a way that goes by GIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GlobalPath {
    /// The peer's.
    pub gid: Gid,
    /// The own GID's place in the table of the port.
    pub own_index: u8,
    /// How many routers it may pass.
    pub hop_limit: u8,
    /// The traffic class, or type of service.
    pub traffic_class: u8,
}

/// What a queue pair must know to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtrSettings {
    /// The most that packets carry; the same at both ends.
    pub path_mtu: Mtu,
    /// The number of the peer's queue pair.
    pub dest_qp: u32,
    /// The first packet number that the peer sends.
    pub rq_psn: u32,
    /// READs of the peer that are served at a time.
    pub max_dest_rd_atomic: u8,
    /// How long the peer waits when there is no receive, as a number of the verbs: 12 is 0.64 ms.
    pub min_rnr_timer: u8,
    /// The way to the peer.
    pub path: Path,
}

/// What a queue pair must know to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtsSettings {
    /// After how long a packet is sent again: 4.096 us times two to the power of this. 0 waits for ever.
    pub timeout: u8,
    /// How often a packet is sent again, to 7. Some devices never give up with 7.
    pub retry_count: u8,
    /// The same when the peer has no receive; 7 never gives up.
    pub rnr_retry: u8,
    /// The first packet number that is sent.
    pub sq_psn: u32,
    /// Own READs that are under way at a time; not more than the peer serves.
    pub max_rd_atomic: u8,
}

impl QueuePair {
    /// A queue pair in its first state. Requests give completions only if they ask for one.
    ///
    /// # Errors
    /// Domain and completion queue are of different devices, the device does not allow so much, or what the library says.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        completions: &CompletionQueue,
        caps: QueuePairCaps,
    ) -> Result<QueuePair, VerbsError> {
        const CALL: &str = "ibv_create_qp";
        let mut settings = init_settings(CALL, domain, completions, caps)?;
        let create = domain.context().library().verbs().ibv_create_qp;
        // SAFETY: domain and completion queue are open, and stay so.
        let raw = unsafe { create(domain.raw(), &raw mut settings) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last(CALL))?;
        // SAFETY: made just now, for this domain and these completions.
        Ok(unsafe { QueuePair::of(raw, None, settings.cap, domain, completions) })
    }

    /// # Safety
    /// `raw` is a new queue pair of the domain, whose queues end in `completions`; made by `id`, if there is one.
    pub(super) unsafe fn of(
        raw: NonNull<ibv_qp>,
        id: Option<Arc<CmId>>,
        cap: ibv_qp_cap,
        domain: &Arc<ProtectionDomain>,
        completions: &CompletionQueue,
    ) -> QueuePair {
        // SAFETY: the library filled it.
        let number = unsafe { (*raw.as_ptr()).qp_num };
        let (domain, _completions) = (Arc::clone(domain), Arc::clone(completions.shared()));
        QueuePair { raw, number, caps: QueuePairCaps::of(&cap), id, domain, _completions }
    }

    /// Its number, by which the peer and completions name it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// How much it can hold: at least what was asked for.
    #[must_use]
    pub fn caps(&self) -> QueuePairCaps {
        self.caps
    }

    /// Pieces of local memory in a READ, which some devices limit further.
    #[must_use]
    pub fn read_pieces(&self) -> u32 {
        self.caps.send_pieces.min(self.domain.context().limits().read_pieces)
    }

    /// Its protection domain.
    #[must_use]
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Ties it to a port. Receives can be posted then. Not for one that rdma_cm made.
    ///
    /// # Errors
    /// What the library says.
    pub fn to_init(&mut self, port: u8, access: Access) -> Result<(), VerbsError> {
        let mut settings = no_settings(abi::IBV_QPS_INIT);
        settings.port_num = port;
        settings.qp_access_flags = access.bits();
        let mask = abi::IBV_QP_STATE | abi::IBV_QP_PKEY_INDEX | abi::IBV_QP_PORT | abi::IBV_QP_ACCESS_FLAGS;
        self.modify("ibv_modify_qp to INIT", settings, mask)
    }

    /// Ties it to its peer. It receives then, and cannot send yet. Not for one that rdma_cm made.
    ///
    /// # Errors
    /// What the library says.
    pub fn to_rtr(&mut self, to: &RtrSettings) -> Result<(), VerbsError> {
        let mut settings = no_settings(abi::IBV_QPS_RTR);
        settings.path_mtu = to.path_mtu.0;
        settings.dest_qp_num = to.dest_qp;
        settings.rq_psn = to.rq_psn;
        settings.max_dest_rd_atomic = to.max_dest_rd_atomic;
        settings.min_rnr_timer = to.min_rnr_timer;
        settings.ah_attr = to.path.attributes();
        let mask = abi::IBV_QP_STATE
            | abi::IBV_QP_AV
            | abi::IBV_QP_PATH_MTU
            | abi::IBV_QP_DEST_QPN
            | abi::IBV_QP_RQ_PSN
            | abi::IBV_QP_MAX_DEST_RD_ATOMIC
            | abi::IBV_QP_MIN_RNR_TIMER;
        self.modify("ibv_modify_qp to RTR", settings, mask)
    }

    /// It can send then. Not for one that rdma_cm made.
    ///
    /// # Errors
    /// What the library says.
    pub fn to_rts(&mut self, to: &RtsSettings) -> Result<(), VerbsError> {
        let mut settings = no_settings(abi::IBV_QPS_RTS);
        settings.timeout = to.timeout;
        settings.retry_cnt = to.retry_count;
        settings.rnr_retry = to.rnr_retry;
        settings.sq_psn = to.sq_psn;
        settings.max_rd_atomic = to.max_rd_atomic;
        let mask = abi::IBV_QP_STATE
            | abi::IBV_QP_SQ_PSN
            | abi::IBV_QP_TIMEOUT
            | abi::IBV_QP_RETRY_CNT
            | abi::IBV_QP_RNR_RETRY
            | abi::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("ibv_modify_qp to RTS", settings, mask)
    }

    /// Stops it: what is posted is flushed with an error. When this returns, something may still be under way; what was
    /// flushed has ended.
    ///
    /// # Errors
    /// What the library says.
    pub fn to_error(&mut self) -> Result<(), VerbsError> {
        self.modify("ibv_modify_qp to ERR", no_settings(abi::IBV_QPS_ERR), abi::IBV_QP_STATE)
    }

    /// Posts room for one message of the peer.
    ///
    /// # Safety
    /// `at..at + bytes` is memory registered with `lkey`, and stays so until the receive has completed. The device
    /// writes it in that time: nobody has a Rust reference to it.
    ///
    /// # Errors
    /// The queue is full, or what the library says. The receive is then not posted.
    pub unsafe fn post_receive(&mut self, id: u64, at: *mut u8, bytes: u32, lkey: u32) -> Result<(), VerbsError> {
        const CALL: &str = "ibv_post_recv";
        self.check(CALL)?;
        let mut piece = ibv_sge { addr: at.expose_provenance() as u64, length: bytes, lkey };
        let mut request = ibv_recv_wr { wr_id: id, next: std::ptr::null_mut(), sg_list: &raw mut piece, num_sge: 1 };
        let mut bad = std::ptr::null_mut();
        let raw = self.raw();
        // SAFETY: the queue pair is open, so its context has an operation table. The request is copied before the call
        // returns; the caller vouches for the memory.
        let returned = unsafe {
            let post = (*(*raw).context).ops.post_recv.ok_or_else(|| missing(CALL))?;
            post(raw, &raw mut request, &raw mut bad)
        };
        VerbsError::check(CALL, returned)
    }

    /// Opens a batch of requests, which [`submit`](PostBatch::submit) posts with one call.
    pub fn start<'q>(&'q mut self, storage: &'q mut PostStorage) -> PostBatch<'q> {
        PostBatch::new(self, storage)
    }

    /// True if it was made by a connection of rdma_cm.
    #[must_use]
    pub fn is_of_cm(&self) -> bool {
        self.id.is_some()
    }

    pub(super) fn raw(&self) -> *mut ibv_qp {
        self.raw.as_ptr()
    }

    #[inline]
    pub(super) fn check(&self, call: &'static str) -> Result<(), VerbsError> {
        self.library().check(call)
    }

    fn library(&self) -> &Arc<Library> {
        self.domain.context().library()
    }

    fn modify(&mut self, call: &'static str, mut settings: ibv_qp_attr, mask: u32) -> Result<(), VerbsError> {
        self.check(call)?;
        let modify = self.library().verbs().ibv_modify_qp;
        // SAFETY: the queue pair is open, and the structure has the size of the library's.
        VerbsError::check(call, unsafe { modify(self.raw(), &raw mut settings, mask as i32) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !self.library().is_ours() {
            return;
        }
        match &self.id {
            Some(id) => id.destroy_queue_pair(),
            None => {
                // SAFETY: it was made by this library, and nobody uses it after this.
                unsafe { (self.library().verbs().ibv_destroy_qp)(self.raw()) };
            }
        }
    }
}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuePair").field("number", &self.number).field("caps", &self.caps).finish_non_exhaustive()
    }
}

impl QueuePairCaps {
    fn of(cap: &ibv_qp_cap) -> QueuePairCaps {
        QueuePairCaps {
            send_requests: cap.max_send_wr,
            receive_requests: cap.max_recv_wr,
            send_pieces: cap.max_send_sge,
            receive_pieces: cap.max_recv_sge,
            inline_bytes: cap.max_inline_data,
        }
    }
}

impl Path {
    fn attributes(&self) -> ibv_ah_attr {
        // SAFETY: integers, for which 0 is a value.
        let mut attributes = unsafe { MaybeUninit::<ibv_ah_attr>::zeroed().assume_init() };
        attributes.port_num = self.port;
        attributes.dlid = self.lid;
        attributes.sl = self.service_level;
        if let Some(global) = self.global {
            attributes.is_global = 1;
            attributes.grh.dgid.raw = global.gid.0;
            attributes.grh.sgid_index = global.own_index;
            attributes.grh.hop_limit = global.hop_limit;
            attributes.grh.traffic_class = global.traffic_class;
        }
        attributes
    }
}

/// What a new queue pair of both kinds is made with.
pub(super) fn init_settings(
    call: &'static str,
    domain: &Arc<ProtectionDomain>,
    completions: &CompletionQueue,
    caps: QueuePairCaps,
) -> Result<ibv_qp_init_attr, VerbsError> {
    domain.context().check(call)?;
    if !Arc::ptr_eq(domain.context(), completions.shared().context()) {
        return Err(VerbsError::invalid(call, "the completion queue is of another device"));
    }
    let queue = completions.shared().raw();
    Ok(ibv_qp_init_attr {
        qp_context: std::ptr::null_mut(),
        send_cq: queue,
        recv_cq: queue,
        srq: std::ptr::null_mut(),
        cap: ibv_qp_cap {
            max_send_wr: caps.send_requests,
            max_recv_wr: caps.receive_requests,
            max_send_sge: caps.send_pieces,
            max_recv_sge: caps.receive_pieces,
            max_inline_data: caps.inline_bytes,
        },
        qp_type: abi::IBV_QPT_RC,
        sq_sig_all: 0,
    })
}

fn no_settings(state: u32) -> ibv_qp_attr {
    // SAFETY: integers, for which 0 is a value.
    let mut settings = unsafe { MaybeUninit::<ibv_qp_attr>::zeroed().assume_init() };
    settings.qp_state = state;
    settings
}
