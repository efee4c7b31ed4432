//! What the library has to say while it runs, for a program's own log.

use crate::args::given;
use crate::error::{Failure, invalid, run, scatter_ring_error};
use ring_abi::Status;
use std::ffi::{CString, c_char, c_void};
use std::fmt::{Debug, Write};
use std::mem::MaybeUninit;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Something is lost: a thread has died.
pub const SCATTER_RING_LOG_ERROR: i32 = 1;
/// Something is not as it was asked for, and goes on in another way.
pub const SCATTER_RING_LOG_WARN: i32 = 2;
/// Who came and went, and which way was taken.
pub const SCATTER_RING_LOG_INFO: i32 = 3;

/// Gets one line of the log: what has happened, and its values as name=value. The message is UTF-8 and is the
/// library's: valid during the call.
pub type scatter_ring_log_callback = Option<extern "C" fn(context: *mut c_void, level: i32, message: *const c_char)>;

struct Log {
    callback: extern "C" fn(*mut c_void, i32, *const c_char),
    context: *mut c_void,
    level: Level,
}

// SAFETY: the context is handed back to the program, which is told that any thread may do so.
unsafe impl Send for Log {}
// SAFETY: as above.
unsafe impl Sync for Log {}

/// Has the library's log written by a function of the program, until the process ends. Without it nothing is written.
///
/// @param callback Called by any thread of the library, by several at a time. It must return soon, and must not call
/// functions of this library.
/// @param context Handed to the callback as it is; stays the caller's.
/// @param level What is written: SCATTER_RING_LOG_ERROR, or up to SCATTER_RING_LOG_WARN or SCATTER_RING_LOG_INFO.
/// @return 0; SCATTER_RING_STATUS_NOT_ALLOWED if there is one already, SCATTER_RING_STATUS_INVALID_SETTING for NULL or
/// another level.
///
/// Threads: any. Fork: a child inherits it.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_set_log(
    callback: scatter_ring_log_callback,
    context: *mut c_void,
    level: i32,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let level = match level {
            SCATTER_RING_LOG_ERROR => Level::ERROR,
            SCATTER_RING_LOG_WARN => Level::WARN,
            SCATTER_RING_LOG_INFO => Level::INFO,
            other => return Err(invalid(format!("level {other}: one of SCATTER_RING_LOG_ERROR, _WARN, _INFO"))),
        };
        let log = Log { callback: given(callback, "callback")?, context, level };
        let taken = |_| Failure::Misuse(Status::NOT_ALLOWED, "this process's log is written already".into());
        tracing::subscriber::set_global_default(log).map_err(taken)?;
        Ok(0)
    })
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.level
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let text = line.message + &line.values;
        // No value should have a NUL; one that has is cut there.
        let text = CString::new(text).unwrap_or_else(|error| {
            let end = error.nul_position();
            CString::new(&error.into_vec()[..end]).unwrap_or_default()
        });
        let level = match *event.metadata().level() {
            Level::ERROR => SCATTER_RING_LOG_ERROR,
            Level::WARN => SCATTER_RING_LOG_WARN,
            _ => SCATTER_RING_LOG_INFO,
        };
        (self.callback)(self.context, level, text.as_ptr());
    }

    // There are events only.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    values: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.values, " {name}={value:?}"),
        };
    }
}
