//! Memory of a peer, as clients of this engine have opened it.

use super::SeatId;
use crate::link::GrantId;
use crate::region::Region;
use ring_abi::Route;
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
    /// A device of this side does what is done at it. Then memory of this side has to be registered as well.
    pub by_device: bool,
    /// By device, and none reaches it: its owner packs and unpacks.
    unreached: AtomicBool,
}

impl Remote {
    /// As OPENED named it.
    pub fn new(seat: SeatId, number: u32, grant: GrantId, bytes: u64, by_device: bool) -> Remote {
        let [gone, unreached] = [false; 2].map(AtomicBool::new);
        Remote { seat, number, grant, bytes, gone, by_device, unreached }
    }

    /// Its owner has withdrawn it, or the connection is gone: new use is refused.
    pub fn withdraw(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// No device reaches it.
    pub fn set_unreached(&self) {
        self.unreached.store(true, Ordering::Relaxed);
    }

    /// True if operations can name it.
    pub fn is_reached(&self) -> bool {
        !self.unreached.load(Ordering::Relaxed)
    }

    /// The route of a transfer between it and memory of this side, of which its descriptor asks for `forced`: what devices
    /// do not reach is packed.
    pub fn route(&self, local: &Region, forced: Route) -> Route {
        let is_reached = !self.by_device || (self.is_reached() && local.local_key().is_some());
        if forced == Route::NONE && !is_reached { Route::GATHER } else { forced }
    }

    /// True if new use is refused.
    #[inline]
    pub fn is_withdrawn(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}
