//! Writing descriptors into the ring: the batch that is being built, and the raw producer.

use super::memory::Hold;
use super::notify::FULL;
use super::pending::Ticket;
use super::{Batch, BatchError, Client, ClientError, Ended, PushError};
use crate::ring::{self, Words};
use crate::sync::Ordering::Relaxed;
use ring_abi::{Descriptor, Entry, Extension, Field, Flags, Opcode, Status};
use std::sync::atomic::AtomicU64;

/// The batch that is being built.
///
/// Its youngest descriptor is in the ring and not published: LAST goes on it if no other follows. It lives in the client
/// and not in its guard, so that a guard that was forgotten instead of dropped leaves nothing behind that a later call
/// does not clear.
#[derive(Debug, Default)]
pub(super) struct Building {
    active: bool,
    /// Its record.
    index: u32,
    /// Its number, unique in the process.
    pub serial: u64,
    pub first: u64,
    /// The position at which a descriptor takes more than writing it: at the start of the batch, behind an extension,
    /// and where a batch that is longer than the ring publishes next.
    turn_at: u64,
    /// Where it publishes next; `None` as long as it fits into the ring.
    publish_at: Option<u64>,
    /// The first word of the youngest descriptor.
    youngest: u64,
    /// Its slots: 0 before the first one, else 1 or 2.
    youngest_slots: u8,
    /// Slots that are no descriptors of the program: BEGIN and extensions.
    others: u64,
    /// Hints and deadline.
    pub begin: Option<Descriptor>,
    pub fence: bool,
    pub user_data: u64,
    /// What was wrong with a call that could not say so.
    pub refused: Option<BatchError>,
}

/// How many times a long batch publishes on its way through the ring: the engine works on one part while the next is
/// written.
const PUBLISHES_PER_RING: u64 = 8;

/// Numbers batches, starting at 1: regions are new with 0.
static SERIAL: AtomicU64 = AtomicU64::new(1);

const fn flag(flag: u16) -> u64 {
    (flag as u64) << 16
}

const NOP: Entry = Descriptor { opcode: Opcode::NOP.0, ..Descriptor::ZERO }.to_entry();

impl Client {
    /// A new batch. Nothing happens without [`Batch::submit`].
    ///
    /// Publishes what [`push`](Self::push) has left unpublished.
    pub fn batch(&mut self) -> Batch<'_> {
        if !self.session.is_child() {
            self.abandon();
            if self.building.active {
                return Batch::of(self);
            }
            self.publish();
            let first = self.areas.sq.position();
            self.building = Building {
                active: true,
                index: self.pending.start(first),
                serial: SERIAL.fetch_add(1, Relaxed),
                first,
                turn_at: first,
                ..Building::default()
            };
            if self.raw_open {
                self.building.refused = Some(BatchError::whole(Status::BAD_SEQUENCE, first, true));
            }
        }
        Batch::of(self)
    }

    /// Adds a descriptor to the batch.
    #[inline]
    pub(super) fn add(&mut self, entry: &Entry) -> Result<(), BatchError> {
        if self.areas.sq.position() != self.building.turn_at && self.areas.sq.push(entry).is_ok() {
            self.building.youngest = entry[0];
            return Ok(());
        }
        self.add_slowly(*entry, None)
    }

    #[cold]
    pub(super) fn add_slowly(&mut self, mut entry: Entry, extension: Option<Entry>) -> Result<(), BatchError> {
        if self.building.youngest_slots == 0 {
            self.begin(&mut entry)?;
        }
        let (extended, descriptor) = (extension.is_some(), self.count());
        self.push_waiting(&entry, extension.as_ref())?;
        if extended != (self.building.youngest_slots == 2) {
            self.pending.record_mut(self.building.index).toggles.push(descriptor);
        }
        let position = self.areas.sq.position();
        let building = &mut self.building;
        building.others += u64::from(extended);
        building.youngest = entry[0];
        building.youngest_slots = 1 + u8::from(extended);
        // Without either there is no turn any more: this position is behind.
        building.turn_at = if extended { position } else { building.publish_at.unwrap_or(building.first) };
        Ok(())
    }

    /// Descriptors that the program has pushed to the batch.
    fn count(&self) -> u32 {
        let slots = self.areas.sq.position().wrapping_sub(self.building.first);
        slots.wrapping_sub(self.building.others) as u32
    }

    /// True once the program has pushed a descriptor to the batch.
    pub(super) fn has_begun(&self) -> bool {
        self.building.youngest_slots > 0
    }

    /// The batch that is being built keeps a region.
    pub(super) fn hold_for_batch(&mut self, hold: Hold) {
        self.pending.record_mut(self.building.index).hold(hold);
    }

    fn begin(&mut self, entry: &mut Entry) -> Result<(), BatchError> {
        if let Some(refused) = self.building.refused {
            return Err(refused);
        }
        let fence = if self.building.fence { flag(Flags::FENCE) } else { 0 };
        match self.building.begin {
            // Once, also if what comes behind it has to be tried again.
            Some(_) if self.building.others == 1 => Ok(()),
            Some(begin) => {
                let mut begin = begin.to_entry();
                begin[0] |= fence;
                self.push_waiting(&begin, None)?;
                self.pending.record_mut(self.building.index).begins = true;
                self.building.others = 1;
                Ok(())
            }
            None => {
                entry[0] |= fence;
                Ok(())
            }
        }
    }

    /// Pushes a descriptor of the batch, with its extension if it has one, and waits for free slots if need be. What is
    /// published meanwhile is what stands before it.
    fn push_waiting(&mut self, entry: &Entry, extension: Option<&Entry>) -> Result<(), BatchError> {
        let step = (u64::from(self.areas.header.sq_capacity) / PUBLISHES_PER_RING).max(1);
        let position = self.areas.sq.position();
        // Descriptors with extensions can step over the place.
        if self.building.publish_at.is_some_and(|at| position.wrapping_sub(at) < u64::MAX / 2) {
            self.publish();
            self.building.publish_at = Some(position.wrapping_add(step));
        }
        let slots = 1 + u32::from(extension.is_some());
        match self.areas.sq.free() {
            Ok(free) if free >= slots => {}
            // Both or neither: one of two would be published while the other waits.
            _ => {
                self.make_room(slots).map_err(|error| self.lost(&error))?;
                self.building.publish_at = Some(position.wrapping_add(step));
            }
        }
        for entry in std::iter::once(entry).chain(extension) {
            // There is room.
            if self.areas.sq.push(entry).is_err() {
                let error = self.broken("an impossible position of the submission ring");
                return Err(self.lost(&error));
            }
        }
        Ok(())
    }

    /// The error of a batch whose session has ended while it was built.
    fn lost(&self, error: &ClientError) -> BatchError {
        let untouched = self.areas.sq.published() == self.building.first;
        BatchError::whole(error.status(), self.building.first, untouched)
    }

    /// Ends the batch with LAST and publishes it.
    pub(super) fn finish(&mut self) -> Result<Ticket, BatchError> {
        if let Err(error) = self.usable() {
            let error = self.lost(&error);
            self.abandon();
            return Err(error);
        }
        if let Some(refused) = self.building.refused {
            self.abandon();
            return Err(refused);
        }
        // All of it was shown if it has waited in vain for room for more: LAST needs another descriptor then.
        let is_shown = self.areas.sq.position() == self.areas.sq.published();
        if !self.has_begun() || is_shown {
            let nop = Descriptor { opcode: Opcode::NOP.0, user_data: self.building.user_data, ..Descriptor::ZERO };
            self.add_slowly(nop.to_entry(), None)?;
        }
        let ticket = self.pending.ticket(self.building.index);
        self.publish_last();
        Ok(ticket)
    }

    /// Puts LAST on the youngest descriptor, which nobody has seen yet, and shows it.
    fn publish_last(&mut self) {
        let end = self.areas.sq.position();
        let youngest = end.wrapping_sub(u64::from(self.building.youngest_slots));
        let head = self.building.youngest | flag(Flags::LAST);
        self.areas.sq.words().slot(youngest)[0].store(head, Relaxed);
        // Known before the engine can see LAST, and so before a span can say that the batch is done.
        self.pending.record_mut(self.building.index).slots = Some(end.wrapping_sub(self.building.first));
        self.building.active = false;
        self.publish();
    }

    /// Takes the batch that is being built back if nothing of it was published, else ends it.
    pub(super) fn abandon(&mut self) {
        if !self.building.active || self.session.is_child() {
            return;
        }
        self.areas.sq.take_back();
        if self.areas.sq.position() == self.building.first {
            self.pending.take_back(self.building.index);
        } else if self.push_waiting(&NOP, None).is_ok() {
            (self.building.youngest, self.building.youngest_slots) = (NOP[0], 1);
            self.publish_last();
        } else if self.ended.get().is_none() {
            return self.leave_open();
        }
        self.building.active = false;
    }

    /// The batch cannot be ended, because notifications are in the way: whoever comes next tries again, and is refused as
    /// long as they are.
    #[cold]
    fn leave_open(&mut self) {
        let position = self.areas.sq.position();
        self.building.refused = Some(BatchError::whole(FULL, position, true));
        // As before the first descriptor, where it is looked whether the batch is refused.
        (self.building.turn_at, self.building.youngest_slots) = (position, 0);
    }

    /// Shows the engine what was pushed, and rings its doorbell if it sleeps.
    pub(super) fn publish(&mut self) {
        if self.areas.sq.position() == self.areas.sq.published() {
            return;
        }
        self.areas.sq.publish();
        if self.waker.must_wake(&self.areas.engine_sleep) {
            self.doorbells += 1;
            match rustix::io::retry_on_intr(|| rustix::io::write(&self.doorbell, &1u64.to_ne_bytes())) {
                // A counter that is full is a doorbell that was rung.
                Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
                Err(_) => self.end(Ended::Broken("a doorbell that cannot be rung")),
            }
        }
    }

    /// Publishes what was pushed by [`push`](Self::push): no system call while the engine is awake.
    ///
    /// # Errors
    /// The session has ended.
    pub fn submit(&mut self) -> Result<(), ClientError> {
        self.usable()?;
        self.abandon();
        self.publish();
        self.usable()
    }

    /// Writes one descriptor to the ring as it is: no allocation, no system call, no account of what it uses. Its spans
    /// come from [`reap`](Self::reap) and have no ticket. The last descriptor of each batch carries [`Flags::LAST`].
    ///
    /// ```no_run
    /// # use scatter_ring::client::Client;
    /// # use ring_abi::{Descriptor, Flags, Opcode};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut client = Client::attach("/run/scatter-ring/socket")?;
    /// let nop = Descriptor { opcode: Opcode::NOP.0, flags: Flags::LAST, user_data: 7, ..Descriptor::ZERO };
    /// // SAFETY: the descriptor names no memory.
    /// unsafe { client.push(&nop)? };
    /// client.submit()?;
    /// client.wait_any(None)?;
    /// assert_eq!(client.reap()?.unwrap().user_data, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// Until the spans of its batch say that the batch is done and released, the regions that it names must stay open,
    /// their memory must not be used for anything else, and no reference to it may exist.
    ///
    /// # Errors
    /// [`PushError::Full`], or the session has ended.
    #[inline]
    pub unsafe fn push(&mut self, descriptor: &Descriptor) -> Result<(), PushError> {
        debug_assert!(descriptor.flags & Flags::EXTENDED == 0, "an extended descriptor without its extension");
        self.push_entry(&descriptor.to_entry())?;
        self.raw_open = descriptor.flags & Flags::LAST == 0;
        Ok(())
    }

    /// The same for a descriptor with an extension: both or neither are written. Sets [`Flags::EXTENDED`].
    ///
    /// # Safety
    /// As [`push`](Self::push).
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub unsafe fn push_extended(&mut self, descriptor: &Descriptor, extension: &Extension) -> Result<(), PushError> {
        // Room for both first: this also finds out why there is none.
        let room = self.areas.sq.free();
        if room.is_ok_and(|free| free < 2) && !self.session.is_child() {
            return Err(self.not_pushed(ring::PushError::Full));
        }
        let extended = Descriptor { flags: descriptor.flags | Flags::EXTENDED, ..*descriptor };
        self.push_entry(&extended.to_entry())?;
        self.push_entry(&extension.to_entry())?;
        self.raw_open = descriptor.flags & Flags::LAST == 0;
        Ok(())
    }

    #[inline]
    fn push_entry(&mut self, entry: &Entry) -> Result<(), PushError> {
        if self.session.is_child() {
            return Err(PushError::Forked);
        }
        if self.building.active {
            self.abandon();
            if self.building.active {
                return Err(self.not_pushed(ring::PushError::Full));
            }
        }
        match self.areas.sq.push(entry) {
            Ok(()) => {
                self.raw_used = true;
                Ok(())
            }
            Err(error) => Err(self.not_pushed(error)),
        }
    }

    #[cold]
    fn not_pushed(&mut self, error: ring::PushError) -> PushError {
        match error {
            ring::PushError::Full => self.nothing_came(),
            ring::PushError::BadPosition(_) => {
                self.end(Ended::Broken("an impossible position of the submission ring"));
            }
        }
        self.ended.get().map_or(PushError::Full, |ended| PushError::Ended(ended.status()))
    }

    /// Where a descriptor that is refused before it was pushed would have been.
    #[cold]
    pub(super) fn refusal(&self, status: Status, field: Field, detail: u64) -> BatchError {
        BatchError::refused(status, self.count(), self.areas.sq.position(), field, detail)
    }
}
