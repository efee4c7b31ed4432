//! Completion queues, and what is in them.

use super::abi::{self, ibv_comp_channel, ibv_cq, ibv_wc};
use super::context::{Context, set_nonblocking};
use super::error::VerbsError;
use super::values::{WcOpcode, WcStatus};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// A descriptor that says when a completion queue has something new.
pub struct CompletionChannel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: the functions of libibverbs may be called from any thread, on the same object too.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// A new one, which does not block.
    ///
    /// # Errors
    /// What the library says.
    pub fn new(context: &Arc<Context>) -> Result<Arc<CompletionChannel>, VerbsError> {
        const CALL: &str = "ibv_create_comp_channel";
        context.check(CALL)?;
        // SAFETY: the context is open, and stays so.
        let raw = unsafe { (context.library().verbs().ibv_create_comp_channel)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last(CALL))?;
        let channel = CompletionChannel { raw, context: Arc::clone(context) };
        set_nonblocking(channel.fd())?;
        Ok(Arc::new(channel))
    }

    /// Readable after a completion queue with [`request_notification`](CompletionQueue::request_notification) got an
    /// entry, until [`take_events`](CompletionChannel::take_events).
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }

    /// Takes the events that are there, and says how many. It does not wait.
    ///
    /// Ask for notification again, and then poll once more before waiting: what completed in between gives no event.
    ///
    /// # Errors
    /// What the library says.
    pub fn take_events(&self) -> Result<u32, VerbsError> {
        const CALL: &str = "ibv_get_cq_event";
        self.context.check(CALL)?;
        let verbs = self.context.library().verbs();
        for taken in 0..EVENTS_MAX {
            let (mut queue, mut user) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: the channel is open and does not block.
            let returned = unsafe { (verbs.ibv_get_cq_event)(self.raw.as_ptr(), &raw mut queue, &raw mut user) };
            match VerbsError::check(CALL, returned) {
                Err(error) if error.is_empty() => return Ok(taken),
                other => other?,
            }
            // SAFETY: a queue cannot be destroyed before its events are acknowledged, so it is still there.
            unsafe { (verbs.ibv_ack_cq_events)(queue, 1) };
        }
        Ok(EVENTS_MAX)
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        if self.context.library().is_ours() {
            // SAFETY: completion queues keep their channel alive, so there are none left.
            unsafe { (self.context.library().verbs().ibv_destroy_comp_channel)(self.raw.as_ptr()) };
        }
    }
}

impl std::fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionChannel").finish_non_exhaustive()
    }
}

/// Where requests of many queue pairs end. It has one owner, who polls it; the queue pairs keep it alive.
#[derive(Debug)]
pub struct CompletionQueue {
    shared: Arc<SharedQueue>,
}

/// The part of a completion queue that its queue pairs keep.
pub(super) struct SharedQueue {
    raw: NonNull<ibv_cq>,
    depth: u32,
    context: Arc<Context>,
    // Dropped after the queue.
    _channel: Option<Arc<CompletionChannel>>,
}

// SAFETY: the functions of libibverbs may be called from any thread, on the same object too.
unsafe impl Send for SharedQueue {}
// SAFETY: as above.
unsafe impl Sync for SharedQueue {}

impl CompletionQueue {
    /// A queue of at least so many entries. It must have one for everything that can complete: the device gives up when
    /// it has nowhere to put an entry.
    ///
    /// # Errors
    /// The device does not allow so many, or what the library says.
    pub fn new(
        context: &Arc<Context>,
        depth: u32,
        channel: Option<&Arc<CompletionChannel>>,
    ) -> Result<CompletionQueue, VerbsError> {
        const CALL: &str = "ibv_create_cq";
        context.check(CALL)?;
        let entries =
            i32::try_from(depth).map_err(|_| VerbsError::invalid(CALL, "more entries than can be asked for"))?;
        if channel.is_some_and(|channel| !Arc::ptr_eq(&channel.context, context)) {
            return Err(VerbsError::invalid(CALL, "the channel is of another device"));
        }
        let raw_channel = channel.map_or(std::ptr::null_mut(), |channel| channel.raw.as_ptr());
        let create = context.library().verbs().ibv_create_cq;
        // SAFETY: context and channel are open, and stay so. Every device has a vector 0.
        let raw = unsafe { create(context.raw(), entries, std::ptr::null_mut(), raw_channel, 0) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last(CALL))?;
        // SAFETY: the library filled it.
        let depth = u32::try_from(unsafe { (*raw.as_ptr()).cqe }).unwrap_or(depth);
        let shared = SharedQueue { raw, depth, context: Arc::clone(context), _channel: channel.cloned() };
        Ok(CompletionQueue { shared: Arc::new(shared) })
    }

    /// How many entries it has; at least as many as were asked for.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.shared.depth
    }

    /// Its device.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.shared.context
    }

    /// Takes what has completed, as much as fits. No system call on most devices.
    ///
    /// # Errors
    /// The queue has failed, or holds more than was asked for. Nothing that it could say later is to be trusted.
    pub fn poll<'c>(&mut self, into: &'c mut [Completion]) -> Result<&'c [Completion], VerbsError> {
        const CALL: &str = "ibv_poll_cq";
        self.shared.context.check(CALL)?;
        let room = i32::try_from(into.len()).unwrap_or(i32::MAX);
        let queue = self.shared.raw.as_ptr();
        // SAFETY: the queue is open, so its context has an operation table. A completion has the layout of a work
        // completion, of which there is room for that many, and any bytes are one.
        let count = unsafe {
            let poll = (*(*queue).context).ops.poll_cq.ok_or_else(|| missing(CALL))?;
            poll(queue, room, into.as_mut_ptr().cast())
        };
        match usize::try_from(count) {
            Ok(count) if count <= into.len() => Ok(&into[..count]),
            Ok(_) => Err(VerbsError::invalid(CALL, "the device gave more completions than were asked for")),
            Err(_) => Err(VerbsError::invalid(CALL, "the completion queue has failed")),
        }
    }

    /// Asks for one event on the channel when the next entry comes.
    ///
    /// # Errors
    /// What the library says.
    pub fn request_notification(&self) -> Result<(), VerbsError> {
        const CALL: &str = "ibv_req_notify_cq";
        self.shared.context.check(CALL)?;
        let queue = self.shared.raw.as_ptr();
        // SAFETY: the queue is open, so its context has an operation table.
        let returned = unsafe {
            let request = (*(*queue).context).ops.req_notify_cq.ok_or_else(|| missing(CALL))?;
            request(queue, 0)
        };
        VerbsError::check(CALL, returned)
    }

    pub(super) fn shared(&self) -> &Arc<SharedQueue> {
        &self.shared
    }
}

impl SharedQueue {
    pub fn raw(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        if self.context.library().is_ours() {
            // SAFETY: queue pairs keep their completion queue alive, so there are none left.
            unsafe { (self.context.library().verbs().ibv_destroy_cq)(self.raw()) };
        }
    }
}

impl std::fmt::Debug for SharedQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedQueue").field("depth", &self.depth).finish_non_exhaustive()
    }
}

/// What a completion queue says of a request that has ended.
///
/// Of one that failed the device fills four fields only, so the others are reached through
/// [`success`](Completion::success).
///
/// ```compile_fail,E0599
/// # use scatter_ring::verbs::Completion;
/// fn bytes(completion: &Completion) -> u32 {
///     completion.byte_len() // Of a completion that may be an error.
/// }
/// ```
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Completion(ibv_wc);

/// A completion of a request that succeeded.
#[derive(Clone, Copy)]
pub struct Success<'c>(&'c ibv_wc);

impl Completion {
    /// Room for one.
    pub const EMPTY: Completion = Completion(ibv_wc {
        wr_id: 0,
        status: abi::IBV_WC_GENERAL_ERR,
        opcode: 0,
        vendor_err: 0,
        byte_len: 0,
        imm_data: 0,
        qp_num: 0,
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    });

    /// The number that was given with the request.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// How it ended.
    #[must_use]
    pub fn status(&self) -> WcStatus {
        WcStatus(self.0.status)
    }

    /// The number of its queue pair.
    #[must_use]
    pub fn queue_pair(&self) -> u32 {
        self.0.qp_num
    }

    /// What the device's vendor knows of an error.
    #[must_use]
    pub fn vendor_error(&self) -> u32 {
        self.0.vendor_err
    }

    /// The rest, if it succeeded.
    #[must_use]
    pub fn success(&self) -> Option<Success<'_>> {
        (self.status() == WcStatus::SUCCESS).then_some(Success(&self.0))
    }
}

impl Success<'_> {
    /// What the request was.
    #[must_use]
    pub fn opcode(&self) -> WcOpcode {
        WcOpcode(self.0.opcode)
    }

    /// Of a receive: how many bytes came. A device may say anything; compare it with what was posted.
    #[must_use]
    pub fn byte_len(&self) -> u32 {
        self.0.byte_len
    }
}

impl std::fmt::Debug for Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("Completion");
        f.field("id", &self.id()).field("status", &self.status()).field("queue_pair", &self.queue_pair());
        match self.success() {
            Some(success) => f.field("opcode", &success.opcode()).field("byte_len", &success.byte_len()),
            None => f.field("vendor_error", &self.vendor_error()),
        };
        f.finish()
    }
}

pub(super) fn missing(call: &'static str) -> VerbsError {
    VerbsError::invalid(call, "the device has no such operation")
}

/// The most that one call takes. What is left keeps the descriptor readable.
const EVENTS_MAX: u32 = 64;
