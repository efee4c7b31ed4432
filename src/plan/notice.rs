//! What a NOTIFY asks for.

use super::Fault;
use ring_abi::{Field, Stage, Status};

/// Tells somebody that the data is there: a NOTIFY whose own fields make sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Handle of the payload's region, 0 without one.
    pub src_region: u32,
    /// Bytes from its start.
    pub src_offset: u64,
    /// Bytes of the payload, at most [`NOTIFY_BYTES_MAX`](ring_abi::NOTIFY_BYTES_MAX).
    pub len: u32,
    /// Handle of a region: who has exported it is told.
    pub dst_region: u32,
    /// Handed over.
    pub offset: u64,
    /// Handed over.
    pub user_data: u64,
}

impl Notice {
    /// Checks it against the regions that it names. `payload` gives the length of the payload's region and is not asked if
    /// there is no payload; `told` says who is to be told. Both say why not.
    ///
    /// # Errors
    /// The first rule that it breaks. That both regions are there comes before what they allow.
    pub fn check<T>(
        &self,
        payload: impl FnOnce(u32) -> Result<u64, Status>,
        told: impl FnOnce(u32) -> Result<T, Status>,
    ) -> Result<T, Fault> {
        let plan = |field, handle: u32| move |status| Fault::new(status, Stage::PLAN, field, handle.into());
        let payload =
            (self.len > 0).then(|| payload(self.src_region).map_err(plan(Field::SRC_REGION, self.src_region)));
        let told = told(self.dst_region).map_err(plan(Field::DST_REGION, self.dst_region));
        let missing = [payload.and_then(Result::err), told.as_ref().err().copied()];
        let is_missing = |fault: &Fault| matches!(fault.status, Status::UNKNOWN_REGION | Status::REGION_GONE);
        if let Some(fault) = missing.into_iter().flatten().find(is_missing) {
            return Err(fault);
        }
        if let Some(bytes) = payload.transpose()? {
            let inside = self.src_offset.checked_add(self.len.into()).is_some_and(|end| end <= bytes);
            if !inside {
                return Err(Fault::new(Status::OUT_OF_RANGE, Stage::PLAN, Field::SRC_OFFSET, self.src_offset));
            }
        }
        told
    }

    /// The fault of one that cannot be delivered.
    #[must_use]
    pub fn refused(&self, status: Status) -> Fault {
        Fault::new(status, Stage::COMMAND, Field::DST_REGION, self.dst_region.into())
    }
}
