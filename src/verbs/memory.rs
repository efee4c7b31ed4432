//! Protection domains and registered memory.

use super::abi::{self, ibv_mr, ibv_pd};
use super::context::Context;
use super::error::VerbsError;
use std::ops::BitOr;
use std::ptr::NonNull;
use std::sync::Arc;

/// What belongs together: queue pairs reach the memory of their own domain only.
pub struct ProtectionDomain {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: the functions of libibverbs may be called from any thread, on the same object too.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// A new one.
    ///
    /// # Errors
    /// What the library says.
    pub fn new(context: &Arc<Context>) -> Result<Arc<ProtectionDomain>, VerbsError> {
        const CALL: &str = "ibv_alloc_pd";
        context.check(CALL)?;
        // SAFETY: the context is open, and stays so.
        let raw = unsafe { (context.library().verbs().ibv_alloc_pd)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last(CALL))?;
        Ok(Arc::new(ProtectionDomain { raw, context: Arc::clone(context) }))
    }

    /// Its device.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        if self.context.library().is_ours() {
            // SAFETY: memory and queue pairs of it keep it alive, so there are none left.
            unsafe { (self.context.library().verbs().ibv_dealloc_pd)(self.raw()) };
        }
    }
}

impl std::fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProtectionDomain").field("context", &self.context).finish_non_exhaustive()
    }
}

/// What a device may do with registered memory, besides reading it for its own requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access(u32);

impl Access {
    /// Nothing else.
    pub const NONE: Access = Access(0);
    /// Own READs and receives write it.
    pub const LOCAL_WRITE: Access = Access(abi::IBV_ACCESS_LOCAL_WRITE);
    /// The peer may write it. Local writing comes with it, because devices demand that.
    pub const REMOTE_WRITE: Access = Access(abi::IBV_ACCESS_REMOTE_WRITE | abi::IBV_ACCESS_LOCAL_WRITE);
    /// The peer may read it.
    pub const REMOTE_READ: Access = Access(abi::IBV_ACCESS_REMOTE_READ);

    /// As the library takes it.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }
}

impl BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// Registered memory. Dropping it takes the registration back.
pub struct MemoryRegion {
    raw: NonNull<ibv_mr>,
    lkey: u32,
    rkey: u32,
    registered: bool,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: the functions of libibverbs may be called from any thread, on the same object too.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers memory: its pages stay where they are, and count as locked memory of this user.
    ///
    /// # Safety
    /// `at..at + bytes` is mapped, and stays mapped until the registration is taken back. With any access but
    /// [`Access::NONE`] a device or a peer may read or write it at any time until then: nobody has a Rust reference to it
    /// while that may happen.
    ///
    /// # Errors
    /// What the library says: the limit of locked memory; memory that may not be written; a length of 0.
    pub unsafe fn register(
        domain: &Arc<ProtectionDomain>,
        at: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        const CALL: &str = "ibv_reg_mr";
        domain.context.check(CALL)?;
        let register = domain.context.library().verbs().ibv_reg_mr;
        // SAFETY: the caller vouches for the memory.
        let raw = unsafe { register(domain.raw(), at.cast(), bytes, access.0 as i32) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last(CALL))?;
        // SAFETY: the library filled it, and it stays until it is deregistered.
        let (lkey, rkey) = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        Ok(MemoryRegion { raw, lkey, rkey, registered: true, domain: Arc::clone(domain) })
    }

    /// Names the memory in own requests.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Names it in requests of the peer. Who has it can use it: it is not for logs.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The domain that it belongs to.
    #[must_use]
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Takes the registration back. It does not wait for what is under way.
    ///
    /// # Errors
    /// What the library says. The memory is then still registered, and must stay mapped for ever.
    pub fn deregister(mut self) -> Result<(), VerbsError> {
        self.take_back()
    }

    fn take_back(&mut self) -> Result<(), VerbsError> {
        const CALL: &str = "ibv_dereg_mr";
        if !std::mem::take(&mut self.registered) {
            return Ok(());
        }
        self.domain.context.check(CALL)?;
        // SAFETY: it was registered by this library, and nobody uses it after this.
        VerbsError::check(CALL, unsafe { (self.domain.context.library().verbs().ibv_dereg_mr)(self.raw.as_ptr()) })
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let _ = self.take_back();
    }
}

impl std::fmt::Debug for MemoryRegion {
    /// Without its keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryRegion").finish_non_exhaustive()
    }
}
