//! The ring without an account of what it uses, and the file descriptor for an event loop.

use crate::args::{array, array_mut, given, timeout};
use crate::client::{enter, scatter_ring_client};
use crate::error::{Failure, SCATTER_RING_PENDING, run, scatter_ring_error};
use ring_abi::{Descriptor, Extension, Flags, Span, Status};
use rust::client::PushError;
use std::ffi::c_int;
use std::mem::MaybeUninit;

/// Writes descriptors to the ring as they are, many in one call: no allocation, no system call, no account of what
/// they use. The last one of each batch carries SCATTER_RING_FLAGS_LAST. Nothing is seen by the engine before
/// scatter_ring_client_submit().
///
/// The caller answers for the memory: the regions that are named must stay open, and their memory must not be used for
/// anything else, until the spans of the batch say that it is done and released.
///
/// @param descriptors `count` of them, copied.
/// @return How many were written: fewer than `count` if the ring is full (then submit, reap, and push the rest). Below
/// 0: why the session has ended; SCATTER_RING_STATUS_INVALID_FLAGS for EXTENDED, which
/// scatter_ring_client_push_extended() writes. With an error, none was written.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_push(
    client: Option<&scatter_ring_client>,
    descriptors: *const Descriptor,
    count: usize,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        // SAFETY: so many descriptors of the caller's, says the header.
        let descriptors = unsafe { array(descriptors, count.min(i32::MAX as usize), "descriptors") }?;
        if let Some(at) = descriptors.iter().position(|descriptor| descriptor.flags & Flags::EXTENDED != 0) {
            let text = format!("descriptor {at}: EXTENDED needs an extension: scatter_ring_client_push_extended");
            return Err(Failure::Misuse(Status::INVALID_FLAGS, text));
        }
        let client = &mut enter(client)?.client;
        let mut pushed = 0;
        for descriptor in descriptors {
            // SAFETY: what a raw producer owes is said in this function's comment.
            match unsafe { client.push(descriptor) } {
                Ok(()) => pushed += 1,
                Err(PushError::Full) => break,
                // Those before it were written, and nobody will ever see them.
                Err(error) => return Err(error.into()),
            }
        }
        Ok(pushed)
    })
}

/// Writes one descriptor with its extension to the ring: both or neither. Otherwise as scatter_ring_client_push().
///
/// @param descriptor, extension Copied. EXTENDED is set here.
/// @return 1; 0 if the ring has no room for two; below 0: why the session has ended.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_push_extended(
    client: Option<&scatter_ring_client>,
    descriptor: Option<&Descriptor>,
    extension: Option<&Extension>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let (descriptor, extension) = (given(descriptor, "descriptor")?, given(extension, "extension")?);
        // SAFETY: what a raw producer owes is said in the comment of `scatter_ring_client_push`.
        match unsafe { enter(client)?.client.push_extended(descriptor, extension) } {
            Ok(()) => Ok(1),
            Err(PushError::Full) => Ok(0),
            Err(error) => Err(error.into()),
        }
    })
}

/// Shows the engine what was pushed, and wakes it if it sleeps: no system call while it is awake.
///
/// @return 0, or why the session has ended.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_submit(
    client: Option<&scatter_ring_client>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        enter(client)?.client.submit()?;
        Ok(0)
    })
}

/// Takes completion spans, many in one call. Makes no system call, except that it looks twice a second whether the
/// engine is still there while nothing comes. Batches that have a ticket are kept account of as well.
///
/// @param spans Room for `capacity` spans, the caller's, filled from the start.
/// @return How many, 0 if there is none now. Below 0: the session has ended, and every span that was published before
/// has been taken.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_reap(
    client: Option<&scatter_ring_client>,
    spans: *mut Span,
    capacity: usize,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        // SAFETY: room for so many spans of the caller's, says the header.
        let spans = unsafe { array_mut(spans.cast::<MaybeUninit<Span>>(), capacity.min(i32::MAX as usize), "spans") }?;
        let client = &mut enter(client)?.client;
        let mut taken = 0;
        for place in spans {
            match client.reap() {
                Ok(Some(span)) => place.write(span),
                Ok(None) => break,
                // What was taken comes first; the next call says the same again.
                Err(_) if taken > 0 => break,
                Err(error) => return Err(error.into()),
            };
            taken += 1;
        }
        Ok(taken)
    })
}

/// Waits until scatter_ring_client_reap() has something to say. Submits what was pushed.
///
/// @param timeout_ns How long at most, in ns. 0: only looks. Below 0: as long as it takes.
/// @return 0: it has. SCATTER_RING_PENDING (1): not yet. Below 0: why the session has ended.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_wait_any(
    client: Option<&scatter_ring_client>,
    timeout_ns: i64,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let some = enter(client)?.client.wait_any(timeout(timeout_ns))?;
        Ok(if some { 0 } else { SCATTER_RING_PENDING })
    })
}

/// One file descriptor for poll, epoll or any other event loop: readable when the engine has woken this client, or is
/// gone. scatter_ring_client_arm(), wait for it to be readable, scatter_ring_client_disarm(), then look at what is
/// awaited until there is nothing more: scatter_ring_client_wait() with 0 ns, scatter_ring_client_reap(),
/// scatter_ring_client_next_notification().
///
/// @return The file descriptor, which stays the client's: it must be neither read nor closed.
/// SCATTER_RING_STATUS_INVALID_SETTING for NULL.
///
/// Threads: any. Fork: of no use in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_fd(client: Option<&scatter_ring_client>) -> c_int {
    client.map_or(Status::INVALID_SETTING.0, scatter_ring_client::wake)
}

/// Announces a sleep: the engine then makes the file descriptor readable at its next span or notification.
///
/// @return 1: sleep now. 0: do not, there is something to take already. Below 0: why the session has ended.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_arm(
    client: Option<&scatter_ring_client>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let client = &mut enter(client)?.client;
        // What was pushed and not submitted would never wake anybody; and a session that has ended is said to be so.
        client.submit()?;
        Ok(client.arm().into())
    })
}

/// Awake again: takes the wake-ups from the file descriptor, and notices the end of the engine, which the next call
/// reports.
///
/// @return 0, or a status below 0.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_disarm(
    client: Option<&scatter_ring_client>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        enter(client)?.client.disarm();
        Ok(0)
    })
}
