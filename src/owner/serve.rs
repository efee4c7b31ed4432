//! The thread that packs and unpacks.

use super::Shared;
use crate::attach::{ClientAreas, poll};
use crate::pack::{Packer, Refusal};
use crate::region::SharedPages;
use crate::ring::{Sleeper, Waker, stop_seen};
use crate::sync::spin_loop;
use ring_abi::staged::LIST_BYTES;
use ring_abi::{Command, CommandResult, Status};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Looks at the ring between two yields of the processor: the engine may be on this core.
const PAUSES_PER_YIELD: u32 = 16;

/// Longest sleep without a look at the ring, in case an engine forgets to wake.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Staging memory, as the engine granted it.
pub(super) struct Slots {
    pub slots: Arc<SharedPages>,
    pub lists: Arc<SharedPages>,
    pub count: u32,
    pub bytes: u32,
}

/// What the thread has.
pub(super) struct Server {
    shared: Arc<Shared>,
    areas: ClientAreas,
    doorbell: OwnedFd,
    wake: Arc<OwnedFd>,
    slots: Slots,
    spin: Duration,
    packer: Packer,
    sleeper: Sleeper,
    waker: Waker,
}

/// The session is over: the engine is gone, has ended it, or breaks the protocol.
struct Over;

impl Server {
    pub fn new(
        shared: Arc<Shared>,
        areas: ClientAreas,
        doorbell: OwnedFd,
        wake: Arc<OwnedFd>,
        slots: Slots,
        spin: Duration,
    ) -> Server {
        let (packer, sleeper, waker) = (Packer::default(), Sleeper::default(), Waker::default());
        Server { shared, areas, doorbell, wake, slots, spin, packer, sleeper, waker }
    }

    /// Serves until the session is over or the owner is dropped.
    pub fn run(mut self) {
        let _lost = LostAtEnd(self.shared.clone());
        let mut idle_since: Option<Instant> = None;
        let mut pauses = 0u32;
        loop {
            match self.serve_one() {
                Ok(true) => {
                    idle_since = None;
                    continue;
                }
                Ok(false) => {}
                Err(Over) => return,
            }
            pauses = pauses.wrapping_add(1);
            if !pauses.is_multiple_of(PAUSES_PER_YIELD) {
                spin_loop();
                continue;
            }
            std::thread::yield_now();
            let now = Instant::now();
            if now - *idle_since.get_or_insert(now) < self.spin {
                continue;
            }
            idle_since = None;
            if self.sleep().is_err() {
                return;
            }
        }
    }

    /// Takes a command and answers it. False: there is none.
    fn serve_one(&mut self) -> Result<bool, Over> {
        let Some(entry) = self.areas.cq.pop().map_err(|_| Over)? else { return Ok(false) };
        // Before the answer, so that there is a place for the command that follows it.
        self.areas.cq.release();
        if self.shared.table.is_stopped() {
            return Err(Over);
        }
        let command = Command::from_entry(&entry);
        let outcome = self.carry_out(&command);
        let Refusal { status, piece, detail } =
            outcome.err().unwrap_or(Refusal { status: Status::OK, piece: 0, detail: 0 });
        let result = CommandResult { chunk: command.chunk, status, piece, detail };
        // The engine has no more commands under way than there are places.
        self.areas.sq.push(&result.to_entry()).map_err(|_| Over)?;
        self.areas.sq.publish();
        if self.waker.must_wake(&self.areas.engine_sleep) {
            // Fails only if the counter is full, which wakes as well.
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
        Ok(true)
    }

    fn carry_out(&mut self, command: &Command) -> Result<(), Refusal> {
        if command.slot >= self.slots.count {
            return Err(Refusal { status: Status::INVALID_SETTING, piece: 0, detail: command.slot.into() });
        }
        let refusal = Refusal { status: Status::UNKNOWN_REGION, piece: 0, detail: command.region.into() };
        let work = self.shared.table.begin(command.region).ok_or(refusal)?;
        let (slot, bytes) = (command.slot as usize, self.slots.bytes as usize);
        let memory = self.slots.slots.block(slot * bytes, bytes);
        let list = self.slots.lists.block(slot * LIST_BYTES, LIST_BYTES).cast_const();
        // SAFETY: both blocks lie in mappings that `self` keeps, the first one of them mapped for writing; a list is
        // aligned as its mapping is. What lenders owe covers the region while the work is under way.
        unsafe { self.packer.run(command, &work.region, memory, self.slots.bytes, list) }
    }

    fn sleep(&mut self) -> Result<(), Over> {
        self.sleeper.prepare(&self.areas.client_sleep);
        let idle = self.areas.cq.available() == Ok(0) && stop_seen(&self.areas.stop).is_none();
        if idle && !self.shared.table.is_stopped() {
            // What goes wrong here shows when the socket is read.
            let _ = poll(self.wake.as_fd(), PollFlags::IN, SLEEP_MAX);
        }
        self.sleeper.awake(&self.areas.client_sleep);
        if stop_seen(&self.areas.stop).is_some() || self.shared.table.is_stopped() {
            return Err(Over);
        }
        self.drain_wake()
    }

    fn drain_wake(&self) -> Result<(), Over> {
        let mut bytes = [0; 64];
        loop {
            match rustix::net::recv(&*self.wake, &mut bytes, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Ok((_, n)) if n > 0 => {}
                // The end of the engine.
                Ok(_) | Err(_) => return Err(Over),
            }
        }
    }
}

/// Tells everybody that the thread has ended, however it did.
struct LostAtEnd(Arc<Shared>);

impl Drop for LostAtEnd {
    fn drop(&mut self) {
        self.0.table.lose();
        // The engine sees the end of a session that is not served any more.
        let _ = rustix::net::shutdown(&self.0.socket, rustix::net::Shutdown::Both);
    }
}
