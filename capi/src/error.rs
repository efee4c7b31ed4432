//! What went wrong, for C: a status, and a structure with the rest of it.

use ring_abi::Status;
use rust::client::{BatchError, ClientError, Peer, PushError};
use rust::engine::EngineError;
use rust::owner::OwnerError;
use std::ffi::c_char;
use std::fmt::{self, Display, Write};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returned by a wait whose time is up, and by a look at something that has not come: not an error.
pub const SCATTER_RING_PENDING: i32 = 1;

/// Bytes of scatter_ring_error.message, its NUL counted.
pub const SCATTER_RING_ERROR_MESSAGE_BYTES: usize = 256;

/// Why a call failed. The caller allocates it, or passes NULL; a call that fails fills all of it, one that succeeds
/// leaves it as it was. Plain data: copy it, keep it, pass it to another thread.
#[repr(C)]
pub struct scatter_ring_error {
    /// What the call has returned: SCATTER_RING_STATUS_..., below 0.
    pub status: i32,
    /// Which field of the descriptor is wrong: SCATTER_RING_FIELD_..., see scatter_ring_field_name(). 0: none.
    pub field: u32,
    /// Which descriptor of the batch failed, counted from 0 in the order in which they were added. All before it are
    /// done, none behind it is. -1: the error is about no descriptor.
    pub descriptor: i64,
    /// Which fragment of that descriptor, counted from 0.
    pub fragment: u32,
    /// Where it failed: SCATTER_RING_STAGE_..., see scatter_ring_stage_name().
    pub stage: u8,
    /// 0: the batch's buffers may still be written: scatter_ring_client_wait_released() says when that ends. 1: they
    /// may be used again, or the error is about no batch.
    pub reusable: u8,
    /// 0.
    pub reserved: [u8; 2],
    /// The value at fault: an offset in bytes, a row number, a handle, flag bits.
    pub detail: u64,
    /// Bytes in place by the descriptors before it.
    pub bytes_done: u64,
    /// Ring position of that descriptor.
    pub position: u64,
    /// The peer whose memory the batch used, as scatter_ring_client_connect_peer() gave it. 0: none, or several.
    pub peer: u64,
    /// What failed and what to do about it: UTF-8, ends with a NUL; cut behind a whole character if it is too long.
    pub message: [c_char; SCATTER_RING_ERROR_MESSAGE_BYTES],
}

/// Why a call failed, before somebody asks for it in words.
pub enum Failure {
    /// An argument, or the way of a call, that this library refuses by itself.
    Misuse(Status, String),
    Batch(BatchError),
    Client(ClientError),
    Engine(EngineError),
    Owner(OwnerError),
    Push(PushError),
    Panicked,
}

/// Runs the body of a function: what it says is returned to C, what goes wrong is written down.
pub fn run(error: Option<&mut MaybeUninit<scatter_ring_error>>, body: impl FnOnce() -> Result<i32, Failure>) -> i32 {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(code)) => return code,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::Panicked,
    };
    if let Some(error) = error {
        error.write(failure.written());
    }
    failure.status().0
}

/// An argument that cannot be.
pub fn invalid(text: impl Into<String>) -> Failure {
    Failure::Misuse(Status::INVALID_SETTING, text.into())
}

impl Failure {
    pub fn status(&self) -> Status {
        match self {
            Failure::Misuse(status, _) => *status,
            Failure::Batch(error) => error.status,
            Failure::Client(error) => error.status(),
            Failure::Engine(error) => engine_status(error),
            Failure::Owner(error) => error.status(),
            Failure::Push(PushError::Full) => Status::LIMIT_EXCEEDED,
            Failure::Push(PushError::Ended(status)) => *status,
            Failure::Push(PushError::Forked) => Status::FORKED,
            Failure::Panicked => Status::INTERNAL,
        }
    }

    fn written(&self) -> scatter_ring_error {
        let mut error = scatter_ring_error {
            status: self.status().0,
            field: 0,
            descriptor: -1,
            fragment: 0,
            stage: 0,
            reusable: 1,
            reserved: [0; 2],
            detail: 0,
            bytes_done: 0,
            position: 0,
            peer: 0,
            message: [0; SCATTER_RING_ERROR_MESSAGE_BYTES],
        };
        if let Failure::Batch(batch) = self {
            error.field = batch.field.0;
            error.descriptor = batch.descriptor.map_or(-1, i64::from);
            error.fragment = batch.fragment;
            error.stage = batch.stage.0;
            error.reusable = batch.reusable.into();
            error.detail = batch.detail;
            error.bytes_done = batch.bytes_done;
            error.position = batch.position;
            error.peer = batch.peer.map_or(0, Peer::number);
        }
        write_message(&mut error.message, self);
        error
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Misuse(_, text) => f.write_str(text),
            Failure::Batch(error) => error.fmt(f),
            Failure::Client(ClientError::PrivateMemory) => f.write_str(
                "this memory is private to the process, or its file cannot be found: lend it \
                 (scatter_ring_owner_lend), or take memory from scatter_ring_region_allocate",
            ),
            Failure::Client(ClientError::NotificationsFull) => f.write_str(
                "notifications that nobody takes are in the way: take them (scatter_ring_client_next_notification)",
            ),
            Failure::Client(ClientError::NotificationsOff) => {
                f.write_str("notifications are off: set scatter_ring_client_setup.notifications when you attach")
            }
            Failure::Client(error) => error.fmt(f),
            Failure::Engine(error) => error.fmt(f),
            Failure::Owner(error) => error.fmt(f),
            Failure::Push(error) => error.fmt(f),
            Failure::Panicked => f.write_str(
                "a bug in scatter-ring: what was used by this call may be half changed and can only be freed; stderr \
                 says where",
            ),
        }
    }
}

/// The code for why an engine cannot do something.
fn engine_status(error: &EngineError) -> Status {
    match error {
        EngineError::System { .. } => Status::NO_MEMORY,
        EngineError::Listen(_) => Status::NOT_ALLOWED,
        EngineError::Region(error) | EngineError::File { source: error, .. } => error.status(),
        EngineError::Refused(status) => *status,
        EngineError::PeerSetting(_) | EngineError::Key(_) | EngineError::Peers(_) => Status::INVALID_SETTING,
        EngineError::NoVerbs(_) => Status::UNSUPPORTED,
        EngineError::Stopped => Status::STOPPING,
    }
}

/// Writes a text and the NUL behind it. What does not fit is cut off behind a whole character.
fn write_message(message: &mut [c_char; SCATTER_RING_ERROR_MESSAGE_BYTES], text: &impl Display) {
    struct Cut<'a> {
        rest: &'a mut [c_char],
        is_full: bool,
    }
    impl Write for Cut<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            if self.is_full {
                return Ok(());
            }
            let most = text.len().min(self.rest.len());
            let fits = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            self.is_full = fits < text.len();
            let (to, rest) = std::mem::take(&mut self.rest).split_at_mut(fits);
            to.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte as c_char);
            self.rest = rest;
            Ok(())
        }
    }
    // The last byte stays NUL.
    let rest = &mut message[..SCATTER_RING_ERROR_MESSAGE_BYTES - 1];
    let _ = write!(Cut { rest, is_full: false }, "{text}");
}

impl From<BatchError> for Failure {
    fn from(error: BatchError) -> Failure {
        Failure::Batch(error)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        Failure::Client(error)
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        Failure::Engine(error)
    }
}

impl From<OwnerError> for Failure {
    fn from(error: OwnerError) -> Failure {
        Failure::Owner(error)
    }
}

impl From<PushError> for Failure {
    fn from(error: PushError) -> Failure {
        Failure::Push(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_of(text: &str) -> Vec<u8> {
        let mut message = [0; SCATTER_RING_ERROR_MESSAGE_BYTES];
        write_message(&mut message, &text);
        assert_eq!(message[SCATTER_RING_ERROR_MESSAGE_BYTES - 1], 0);
        message.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect()
    }

    #[test]
    fn a_message_is_cut_behind_a_whole_character() {
        assert_eq!(message_of("short"), b"short");
        for pad in 250..=256 {
            let text = "x".repeat(pad) + "äöü";
            let cut = String::from_utf8(message_of(&text)).expect("whole characters");
            assert!(text.starts_with(&cut) && cut.len() >= 254.min(text.len()), "{pad}: {}", cut.len());
        }
    }

    #[test]
    fn a_panic_is_a_status_and_says_so() {
        let mut error = MaybeUninit::uninit();
        let status = run(Some(&mut error), || panic!("on purpose"));
        // SAFETY: a call that fails has written all of it.
        let error = unsafe { error.assume_init() };
        assert_eq!((status, error.status), (Status::INTERNAL.0, Status::INTERNAL.0));
        assert_eq!((error.descriptor, error.reusable), (-1, 1));
    }
}
