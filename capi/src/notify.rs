//! What other clients tell this one.

use crate::args::{given, timeout};
use crate::client::{enter, scatter_ring_client};
use crate::error::{SCATTER_RING_PENDING, run, scatter_ring_error};
use rust::client::Notification;
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// What another client has sent with scatter_ring_batch_notify(): the data of its batch is in place.
#[repr(C)]
pub struct scatter_ring_notification {
    /// The other's user data.
    pub user_data: u64,
    /// What the other has given as such: in most cases where in the region the data is.
    pub offset: u64,
    /// A copy of what was sent, the client's: valid until the next call with this client. NULL if it is empty.
    pub payload: *const c_void,
    /// Bytes of it, at most 4096.
    pub payload_bytes: usize,
}

impl From<Notification<'_>> for scatter_ring_notification {
    fn from(told: Notification<'_>) -> scatter_ring_notification {
        let payload = if told.payload.is_empty() { std::ptr::null() } else { told.payload.as_ptr().cast() };
        scatter_ring_notification {
            user_data: told.user_data,
            offset: told.offset,
            payload,
            payload_bytes: told.payload.len(),
        }
    }
}

/// The next notification, if one has come. Makes no system call. Needs scatter_ring_client_setup.notifications.
///
/// A client that does not take them keeps as many as its completion ring has places, and so does the engine for it;
/// then who sends more waits, and so do this client's own batches.
///
/// @param notification The caller's, filled if there is one; its payload stays the client's.
/// @return 0: one has come. SCATTER_RING_PENDING (1): none. SCATTER_RING_STATUS_NOT_ALLOWED if they are off; or why
/// the session has ended, when every one that came before has been taken.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_next_notification(
    client: Option<&scatter_ring_client>,
    notification: Option<&mut MaybeUninit<scatter_ring_notification>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let place = given(notification, "notification")?;
        let mut entered = enter(client)?;
        Ok(told(place, entered.client.next_notification()?))
    })
}

/// The same, and waits for it.
///
/// @param timeout_ns How long at most, in ns. 0: only looks. Below 0: as long as it takes.
/// @param notification As of scatter_ring_client_next_notification().
/// @return As scatter_ring_client_next_notification().
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_wait_notification(
    client: Option<&scatter_ring_client>,
    timeout_ns: i64,
    notification: Option<&mut MaybeUninit<scatter_ring_notification>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let place = given(notification, "notification")?;
        let mut entered = enter(client)?;
        Ok(told(place, entered.client.wait_notification(timeout(timeout_ns))?))
    })
}

fn told(place: &mut MaybeUninit<scatter_ring_notification>, told: Option<Notification<'_>>) -> i32 {
    told.map_or(SCATTER_RING_PENDING, |told| {
        place.write(told.into());
        0
    })
}
