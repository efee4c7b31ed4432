//! Connections of rdma_cm.

use super::abi;
use super::context::Context;
use std::ptr::NonNull;
use std::sync::Arc;

/// One end of a connection.
pub struct CmId {
    raw: NonNull<abi::rdma_cm_id>,
    context: Arc<Context>,
}

impl CmId {
    pub(super) fn destroy_queue_pair(&self) {
        if let Ok(cm) = self.context.library().cm() {
            // SAFETY: its queue pair is there, and nobody uses it after this.
            unsafe { (cm.rdma_destroy_qp)(self.raw.as_ptr()) };
        }
    }
}
