//! Outcome codes, their names and their texts.

use core::fmt;

/// The outcome of descriptors, or the reason of a refusal: 0 or a negative code.
///
/// Codes keep their meaning for ever; a code that this version does not know prints as a number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Status(pub i32);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Status = Status($code);)*

            /// Every code of this version with its name and text, in the order of the codes.
            pub const ALL: &'static [(Status, &'static str, &'static str)] =
                &[$((Status($code), stringify!($name), $text)),*];
        }
    };
}

statuses! {
    /// Done: every byte is in place.
    OK = 0, "done";
    /// The opcode has no meaning.
    INVALID_OPCODE = -1, "unknown opcode";
    /// A flag has no meaning, or none here, or two flags contradict each other.
    INVALID_FLAGS = -2, "unknown flag, or a flag that does not belong here";
    /// A field that this opcode does not use, or a reserved one, is not 0.
    INVALID_FIELD = -3, "a field that must be 0 is not";
    /// The index kinds have no meaning.
    INVALID_INDEX_KIND = -4, "unknown index kind";
    /// `count` or `inner_count` is 0.
    INVALID_COUNT = -5, "a count of 0";
    /// Fragments would overlap at the destination: its step is smaller than the length.
    INVALID_STRIDE = -6, "the destination's step is smaller than the length";
    /// An index array is not naturally aligned.
    MISALIGNED_INDEX = -7, "the index array is not aligned";
    /// BEGIN, FENCE, CANCEL, NOTIFY or EXTENSION where it cannot stand.
    BAD_SEQUENCE = -8, "cannot stand at this place of a batch";
    /// The handle names no region of this session: never registered, closed, or of another session.
    UNKNOWN_REGION = -9, "no such region in this session";
    /// The owner of an opened region has unregistered it or is gone, or the memory of a region is lost: its file was cut
    /// short, or a page of it could not be had.
    REGION_GONE = -10, "the region is gone: withdrawn by its owner, or its file was cut short";
    /// The region does not grant reading or writing.
    NO_RIGHT = -11, "the region does not grant this access";
    /// An offset, a row number or a fragment lies outside its region.
    OUT_OF_RANGE = -12, "outside the region";
    /// Known, but this engine cannot do it.
    UNSUPPORTED = -13, "not supported by this engine";
    /// More slots in one batch than its spans can count: the session has ended.
    BATCH_TOO_LONG = -14, "too many descriptors in one batch";
    /// CANCEL named no batch that is under way.
    NOT_FOUND = -15, "no such batch under way";
    /// Ended by a CANCEL.
    CANCELLED = -16, "cancelled";
    /// Ended by its deadline.
    TIMED_OUT = -17, "timed out";
    /// Not done, because an earlier descriptor of the batch ended it.
    NOT_DONE = -18, "not done: the batch ended before it";
    /// Memory could not be read or written (a page could not be had).
    FAULT = -19, "memory fault";
    /// The engine failed inside; the session is not affected.
    INTERNAL = -20, "internal error of the engine";

    /// A ring position that is impossible; the session has ended.
    BAD_RING = -32, "impossible ring position";
    /// A message on the attach socket that is not understood; the session has ended.
    BAD_MESSAGE = -33, "message not understood";
    /// The other side's ABI version or entry sizes differ.
    VERSION_MISMATCH = -34, "ABI version does not match";
    /// A feature was asked for that the engine does not have.
    MISSING_FEATURE = -35, "feature not available";
    /// A configured limit would be exceeded.
    LIMIT_EXCEEDED = -36, "limit exceeded";
    /// The kernel gave no memory.
    NO_MEMORY = -37, "no memory";
    /// A capacity, a size or a start position is not allowed.
    INVALID_SETTING = -38, "setting not allowed";
    /// A file descriptor is not what a region needs.
    BAD_FD = -39, "file descriptor not usable as a region";
    /// An exported name is already taken.
    NAME_TAKEN = -40, "name already exported";
    /// Nothing is exported under this name.
    NAME_UNKNOWN = -41, "no such export";
    /// The engine is stopping.
    STOPPING = -42, "engine is stopping";
    /// The other side is not allowed to attach, or the one who is to be notified takes no notifications.
    NOT_ALLOWED = -43, "not allowed";
    /// There is no connection to the engine that was asked for, and none could be made.
    PEER_UNREACHABLE = -44, "no connection to the peer";

    /// Client side only: the engine is gone.
    ENGINE_LOST = -64, "engine lost";
    /// Client side only: a forked child used its parent's session.
    FORKED = -65, "session belongs to the parent process";
}

impl Status {
    /// True for [`Status::OK`].
    #[must_use]
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }

    /// The name of the code, as in the constants.
    ///
    /// ```
    /// assert_eq!(ring_abi::Status::OUT_OF_RANGE.name(), Some("OUT_OF_RANGE"));
    /// assert_eq!(ring_abi::Status(-9999).name(), None);
    /// ```
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        Self::ALL.iter().find(|entry| entry.0 == self).map(|entry| entry.1)
    }

    /// A few words for people.
    #[must_use]
    pub fn text(self) -> &'static str {
        Self::ALL.iter().find(|entry| entry.0 == self).map_or("unknown status", |entry| entry.2)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{} ({name})", self.text()),
            None => write!(f, "unknown status {}", self.0),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Status({})", self.0),
        }
    }
}
