//! Memory that more than one process sees.
//!
//! Together with the links, the only module that maps or casts memory. Shared pages are never behind a Rust reference,
//! with one exception: the words of a ring are atomics, and a `&AtomicU64` may be shared with anybody. Everything else
//! is copied in and out by raw pointer in [`copy`].
//!
//! * [`SharedPages`]: the two areas of a ring pair.
//! * [`Region`]: memory that descriptors can name, with its length and [`Rights`].
//! * [`HandleTable`]: handles with generations.
//! * [`ForkGuard`]: tells a forked child from its parent.
//! * [`guard`]: a page that goes away is a lost region and not the end of the process.
//! * [`find_backing`]: the file behind memory that is mapped already.

mod backing;
#[doc(hidden)]
pub mod copy;
mod file;
mod fork;
pub mod guard;
mod handles;
mod memory;
mod pages;
mod registered;

pub use backing::{Backing, check_no_device_memory, find_backing};
pub use file::Trust;
pub use fork::ForkGuard;
pub(crate) use fork::forget_threads;
pub use handles::HandleTable;
pub use memory::{Huge, Region, RegionError};
pub use pages::{SharedPages, Slots, Word};

use ring_abi::rights;

/// What a region grants. In attach messages it is a number: see [`ring_abi::rights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rights {
    /// May be a source, or hold an index array.
    pub read: bool,
    /// May be a destination.
    pub write: bool,
}

impl Rights {
    /// Reading only.
    pub const READ: Rights = Rights { read: true, write: false };
    /// Writing only.
    pub const WRITE: Rights = Rights { read: false, write: true };
    /// Both.
    pub const READ_WRITE: Rights = Rights { read: true, write: true };

    /// As a number.
    #[must_use]
    pub const fn bits(self) -> u64 {
        (if self.read { rights::READ } else { 0 }) | if self.write { rights::WRITE } else { 0 }
    }

    /// The rights of a number, or `None` if another bit is set, or none.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Option<Rights> {
        if bits == 0 || bits & !rights::KNOWN != 0 {
            return None;
        }
        Some(Rights { read: bits & rights::READ != 0, write: bits & rights::WRITE != 0 })
    }

    /// True if `self` grants all that `wanted` asks for.
    #[must_use]
    pub const fn covers(self, wanted: Rights) -> bool {
        (self.read || !wanted.read) && (self.write || !wanted.write)
    }
}
