//! Memory of a peer, as clients of this engine have opened it.

use super::SeatId;
use crate::link::GrantId;
use std::sync::atomic::{AtomicBool, Ordering};

/// A region of another engine, by what both sides call it on one connection.
#[derive(Debug)]
pub struct Remote {
    /// The connection. When that has ended the region is gone for good: it is opened anew on the next one.
    pub seat: SeatId,
    /// Its number in lists.
    pub number: u32,
    /// The same for operations.
    pub grant: GrantId,
    /// Its length.
    pub bytes: u64,
    gone: AtomicBool,
}

impl Remote {
    /// As OPENED named it.
    pub fn new(seat: SeatId, number: u32, grant: GrantId, bytes: u64) -> Remote {
        Remote { seat, number, grant, bytes, gone: AtomicBool::new(false) }
    }

    /// Its owner has withdrawn it, or the connection is gone: new use is refused.
    pub fn withdraw(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// True if new use is refused.
    #[inline]
    pub fn is_withdrawn(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}
