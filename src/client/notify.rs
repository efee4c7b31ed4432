//! What other clients tell this one.

use super::{Client, ClientError, Ended};
use crate::region::SharedPages;
use crate::ring::stop_seen;
use ring_abi::{Kind, NOTIFY_BYTES_MAX, Span, SpanFlags, Status};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// What another client has sent by [`Batch::notify`](super::Batch::notify): the data of its batch is in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification<'c> {
    /// The other's [`user_data`](super::Batch::user_data).
    pub user_data: u64,
    /// What the other has given as such: in most cases where in the region the data is.
    pub offset: u64,
    /// At most 4096 bytes; a copy, in private memory.
    pub payload: &'c [u8],
}

/// Notifications that were taken out of the ring and not asked for yet.
#[derive(Debug)]
pub(super) struct Notifications {
    /// Written by the engine.
    buffer: Arc<SharedPages>,
    kept: VecDeque<Kept>,
    payloads: Box<[u8]>,
    /// Where the next payload goes.
    next: usize,
}

#[derive(Debug)]
struct Kept {
    user_data: u64,
    offset: u64,
    /// Where its payload is.
    slot: usize,
    payload_bytes: usize,
}

const SLOT_BYTES: usize = NOTIFY_BYTES_MAX as usize;

impl Notifications {
    fn new(buffer: Arc<SharedPages>, capacity: usize) -> Notifications {
        Notifications {
            buffer,
            kept: VecDeque::with_capacity(capacity),
            payloads: vec![0; capacity * SLOT_BYTES].into(),
            next: 0,
        }
    }

    pub fn is_full(&self) -> bool {
        self.kept.len() * SLOT_BYTES == self.payloads.len()
    }

    /// Copies the notification out that a span at this position of the completion ring is about. To be called before the
    /// span's place is released, and not while it is full.
    ///
    /// # Errors
    /// It says something that cannot be.
    pub fn keep(&mut self, span: &Span, position: u64) -> Result<(), &'static str> {
        let payload_bytes = usize::try_from(span.bytes).ok().filter(|bytes| *bytes <= SLOT_BYTES);
        let Some(payload_bytes) = payload_bytes else { return Err("a notification that is too long") };
        if self.is_full() {
            return Err("a span that has become a notification");
        }
        if span.flags != SpanFlags::EVENT || span.count != 0 || !span.status().is_ok() {
            return Err("an event that is no notification");
        }
        let slots = self.payloads.len() / SLOT_BYTES;
        let from = position as usize & (slots - 1);
        let to = &mut self.payloads[self.next * SLOT_BYTES..][..payload_bytes];
        self.buffer.read_bytes(from * SLOT_BYTES, to);
        self.kept.push_back(Kept { user_data: span.user_data, offset: span.first, slot: self.next, payload_bytes });
        self.next = (self.next + 1) & (slots - 1);
        Ok(())
    }

    fn take(&mut self) -> Option<Notification<'_>> {
        let Kept { user_data, offset, slot, payload_bytes } = self.kept.pop_front()?;
        Some(Notification { user_data, offset, payload: &self.payloads[slot * SLOT_BYTES..][..payload_bytes] })
    }
}

impl Client {
    /// Asks the engine for what other clients tell this one, from now on; the same as
    /// [`Setup::notifications`](super::Setup::notifications). Takes 4 KiB for each place of the completion ring, on both
    /// sides.
    ///
    /// # Errors
    /// The engine refuses (a limit, for example), or is of a version that has no notifications.
    pub fn enable_notifications(&mut self) -> Result<(), ClientError> {
        self.usable()?;
        if self.notifications.is_some() {
            return Ok(());
        }
        let capacity = self.areas.header.cq_capacity as usize;
        let received = self.ask_for_files(Kind::NOTIFICATIONS)?;
        let [slots, slot_bytes, ..] = received.message.args;
        let [file] = &received.fds[..] else {
            return Err(self.broken("a notification buffer comes with one file descriptor"));
        };
        if slots != capacity as u64 || slot_bytes != u64::from(NOTIFY_BYTES_MAX) {
            return Err(self.broken("a notification buffer of another size"));
        }
        let buffer = SharedPages::map(file, capacity * SLOT_BYTES, false)
            .map_err(|source| ClientError::System { operation: "mapping the notification buffer", source })?;
        self.notifications = Some(Notifications::new(buffer, capacity));
        Ok(())
    }

    /// The next notification, if one has come. Makes no system call.
    ///
    /// Those of one batch after the other of the same client come in the order in which these batches ended. A client that
    /// does not take them keeps as many as its completion ring has places, and so does the engine for it; then who sends more
    /// waits, and so do this client's own batches: [`NotificationsFull`](ClientError::NotificationsFull).
    ///
    /// ```no_run
    /// # use scatter_ring::client::{Client, Setup};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let setup = Setup { notifications: true, ..Setup::default() };
    /// let mut client = Client::attach_with("/run/scatter-ring/socket", &setup)?;
    /// let inbox = client.allocate(1 << 20)?;
    /// client.export(&inbox, "inbox", scatter_ring::region::Rights::WRITE)?;
    /// while let Some(told) = client.wait_notification(None)? {
    ///     println!("{} bytes at {}", told.user_data, told.offset);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Notifications are not [enabled](Self::enable_notifications); or the session has ended, and every notification that
    /// came before has been taken.
    pub fn next_notification(&mut self) -> Result<Option<Notification<'_>>, ClientError> {
        self.takes_notifications()?;
        // First the stop word: what was published before the stop is then seen.
        let stopped = stop_seen(&self.areas.stop);
        self.pump();
        if !self.has_notification() {
            if let Some(reason) = stopped {
                self.end(Ended::Stopped(reason));
            }
            self.usable()?;
            self.nothing_came();
        }
        Ok(self.notifications.as_mut().and_then(Notifications::take))
    }

    /// The same, and waits for it: `None` if none has come after `timeout`.
    ///
    /// # Errors
    /// As [`next_notification`](Self::next_notification).
    pub fn wait_notification(&mut self, timeout: Option<Duration>) -> Result<Option<Notification<'_>>, ClientError> {
        self.takes_notifications()?;
        // What was pushed may be what the other waits for; a session that has ended is reported behind what came before.
        let _ = self.submit();
        let came = self.wait_until(timeout, |client| {
            client.pump();
            client.has_notification()
        });
        if !came {
            self.usable()?;
        }
        Ok(self.notifications.as_mut().and_then(Notifications::take))
    }

    fn takes_notifications(&self) -> Result<(), ClientError> {
        if self.session.is_child() {
            return Err(ClientError::Forked);
        }
        if self.notifications.is_none() { Err(ClientError::NotificationsOff) } else { Ok(()) }
    }

    /// True if one was taken out of the ring and not asked for.
    pub(super) fn has_notification(&self) -> bool {
        self.notifications.as_ref().is_some_and(|notifications| !notifications.kept.is_empty())
    }

    /// Takes the notifications that are next in the ring.
    pub(super) fn keep_events(&mut self) {
        while self.notifications.as_ref().is_some_and(|notifications| !notifications.is_full()) && self.event_is_next()
        {
            let position = self.areas.cq.position();
            let Ok(Some(entry)) = self.areas.cq.pop() else { break };
            // Of a broken engine whoever looks for spans next says so.
            if self.keep(&Span::from_entry(&entry), position).is_err() {
                break;
            }
        }
        self.areas.cq.release();
    }

    /// Keeps what an event says; false: notifications were not asked for.
    pub(super) fn keep(&mut self, span: &Span, position: u64) -> Result<bool, ClientError> {
        let Some(notifications) = &mut self.notifications else { return Ok(false) };
        notifications.keep(span, position).map(|()| true).map_err(|what| self.broken(what))
    }

    /// True if nothing more can be taken from the ring, because a notification is next and nobody takes those that came
    /// before.
    pub(super) fn is_stuck(&mut self) -> bool {
        self.notifications.as_ref().is_some_and(Notifications::is_full) && self.event_is_next()
    }

    /// True if nothing may be taken from the ring: there is no room for a notification, and no span is next. (A ring that is
    /// empty now may have a notification when it is popped.)
    pub(super) fn is_shut(&mut self) -> bool {
        self.notifications.as_ref().is_some_and(Notifications::is_full) && {
            let entry = self.areas.cq.peek();
            // An impossible position is for the pop to find.
            entry.is_ok_and(|entry| entry.is_none_or(|entry| Span::from_entry(&entry).flags & SpanFlags::EVENT != 0))
        }
    }

    /// True if the next span in the ring is an event.
    fn event_is_next(&mut self) -> bool {
        let entry = self.areas.cq.peek();
        entry.is_ok_and(|entry| entry.is_some_and(|entry| Span::from_entry(&entry).flags & SpanFlags::EVENT != 0))
    }
}

/// The status of a wait that notifications are in the way of.
pub(super) const FULL: Status = Status::LIMIT_EXCEEDED;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::SealFlags;

    fn event(bytes: u64) -> Span {
        Span { bytes, flags: SpanFlags::EVENT, ..Span::ZERO }
    }

    #[test]
    fn as_many_are_kept_as_there_are_places_and_each_place_is_used_again() {
        let (buffer, _file) = SharedPages::create("test", 4 * SLOT_BYTES, SealFlags::empty()).unwrap();
        let mut notifications = Notifications::new(buffer.clone(), 4);
        let mut taken = 0;
        for number in 0..50u64 {
            let position = number.wrapping_sub(9);
            buffer.write_bytes((position & 3) as usize * SLOT_BYTES, &[number as u8; SLOT_BYTES]);
            let span = Span { user_data: number, ..event(if number % 2 == 0 { 4096 } else { number }) };
            assert_eq!(notifications.keep(&span, position), Ok(()));
            if number % 4 == 3 {
                assert!(notifications.is_full());
                assert!(notifications.keep(&span, position).is_err(), "more than there is room for");
                while let Some(told) = notifications.take() {
                    assert_eq!(told.user_data, taken);
                    assert_eq!(told.payload.len() as u64, if taken.is_multiple_of(2) { 4096 } else { taken });
                    assert!(told.payload.iter().all(|byte| *byte == taken as u8));
                    taken += 1;
                }
                assert_eq!(taken, number + 1);
            }
        }
    }

    #[test]
    fn what_no_engine_says_is_an_error() {
        let (buffer, _file) = SharedPages::create("test", 4 * SLOT_BYTES, SealFlags::empty()).unwrap();
        let mut notifications = Notifications::new(buffer, 4);
        for span in [
            event(4097),
            event(u64::MAX),
            event(1 << 32),
            Span { count: 1, ..event(1) },
            Span { status: Status::NOT_DONE.0, ..event(1) },
            Span { flags: SpanFlags::EVENT | SpanFlags::HELD, ..event(1) },
            Span { flags: 0, ..event(1) },
        ] {
            assert!(notifications.keep(&span, 0).is_err(), "{span:?}");
        }
        assert!(notifications.take().is_none());
    }
}
