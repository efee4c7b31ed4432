//! NOTIFYs: those of a session's batches on their way, and events for its own client.
//!
//! A NOTIFY waits here until all else of its batch is done. Then the poller, between the turns of sessions, copies the
//! payload out and puts it, with an event span, before the client that is to be told; or it goes to the engine of that
//! client, whose poller does the same. Whoever has no room is asked again; nothing is kept for him.

use super::memory::Memory;
use super::remote::{NoPart, PartId, Remote, Remotes, SeatId};
use super::session::{Clock, Session, State};
use crate::pipeline::{Postponed, Readiness};
use crate::plan::{Fault, Notice};
use crate::region::{Rights, SharedPages};
use crate::ring::PushError;
use crate::stats;
use ring_abi::{Field, Handle, NOTIFY_BYTES_MAX, Span, SpanFlags, Stage, Status};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The NOTIFYs of one session.
#[derive(Debug)]
pub(super) struct Notices {
    /// In ring order, no more than batches under way.
    waiting: VecDeque<Waiting>,
    /// How many have gone to peers.
    sent: u64,
    /// One has to be tried again, and no bell will ring for it.
    pub are_stuck: bool,
}

#[derive(Debug)]
struct Waiting {
    postponed: Postponed,
    notice: Notice,
    way: Way,
    /// How long to wait when there is no room the next time.
    pause_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// To be sent when it is due, and not before this time.
    Unsent { from_ns: u64 },
    /// With a peer's engine, by this number.
    Sent(u64),
}

/// Who is told.
pub(super) enum Recipient {
    Session(u64),
    Peer(Arc<Remote>),
}

/// Where one may find no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Session(u64),
    Seat(SeatId),
}

impl Recipient {
    fn place(&self) -> Place {
        match self {
            Recipient::Session(id) => Place::Session(*id),
            Recipient::Peer(remote) => Place::Seat(remote.seat),
        }
    }
}

/// What somebody is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told<'a> {
    pub user_data: u64,
    pub offset: u64,
    pub payload: &'a [u8],
}

/// What the poller has for all of them.
#[derive(Debug)]
pub(super) struct Desk {
    payload: Box<[u8; NOTIFY_BYTES_MAX as usize]>,
    /// Clients, and connections, that had no room for one: further ones of the same session do not overtake it.
    full: Vec<Place>,
}

/// NOTIFYs of one session that are delivered in one turn.
const NOTICES_PER_TURN: u32 = 64;
/// How long a peer is left alone whose client has no room; it doubles, up to the second.
const PAUSE_NS: u64 = 1_000_000;
const PAUSE_NS_MAX: u64 = 16_000_000;

impl Notices {
    /// None, and room for those of so many batches.
    pub fn new(batches: u32) -> Notices {
        Notices { waiting: VecDeque::with_capacity(batches as usize), sent: 0, are_stuck: false }
    }

    pub fn add(&mut self, postponed: Postponed, notice: Notice) {
        self.waiting.push_back(Waiting { postponed, notice, way: Way::Unsent { from_ns: 0 }, pause_ns: PAUSE_NS });
    }

    /// Nobody hears of their outcome any more.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.are_stuck = false;
    }
}

impl Default for Desk {
    fn default() -> Desk {
        Desk { payload: Box::new([0; NOTIFY_BYTES_MAX as usize]), full: Vec::new() }
    }
}

impl Session {
    /// Who is told by a NOTIFY, if all that it names allows it.
    pub(super) fn recipient(&self, notice: &Notice) -> Result<Recipient, Fault> {
        let payload =
            |handle| self.granted(handle, Rights::READ)?.mapped().map(|r| r.bytes()).ok_or(Status::UNSUPPORTED);
        notice.check(payload, |handle| {
            let any = Rights { read: false, write: false };
            let named = self.regions.get(Handle(handle));
            let exporter = named.map_or(0, |granted| granted.exporter);
            match (self.granted(handle, any)?, named.and_then(|granted| granted.remote.as_ref())) {
                // A peer's memory may be mapped; who exported it is the peer's client all the same.
                (Memory::Remote(remote), _) | (Memory::Mapped(_), Some(remote)) => Ok(Recipient::Peer(remote.clone())),
                // Memory of the engine's own process.
                _ if exporter == 0 => Err(Status::UNSUPPORTED),
                _ => Ok(Recipient::Session(exporter)),
            }
        })
    }

    /// The next NOTIFY from `at` on that can be sent now, and who is told. Those that cannot be sent are over.
    fn next_due(&mut self, at: &mut usize, now_ns: u64) -> Option<(Notice, Recipient)> {
        while let Some(&Waiting { postponed, notice, way, .. }) = self.notices.waiting.get(*at) {
            let is_due = match self.ledger.readiness(postponed) {
                Readiness::Never => {
                    self.notices.waiting.remove(*at);
                    continue;
                }
                Readiness::Early => false,
                Readiness::Due => match way {
                    Way::Sent(_) => false,
                    Way::Unsent { from_ns } if now_ns < from_ns => {
                        self.notices.are_stuck = true;
                        false
                    }
                    Way::Unsent { .. } => true,
                },
            };
            if !is_due {
                *at += 1;
                continue;
            }
            // Regions may have been closed while it waited.
            match self.recipient(&notice) {
                Ok(recipient) => return Some((notice, recipient)),
                Err(fault) => self.conclude(*at, Err(fault), now_ns),
            }
        }
        None
    }

    /// The payload, as it is now.
    fn payload<'a>(&self, notice: &Notice, buffer: &'a mut [u8]) -> Result<&'a [u8], Fault> {
        let payload = &mut buffer[..notice.len as usize];
        if payload.is_empty() {
            return Ok(payload);
        }
        let fault = |status| Fault::new(status, Stage::PACK, Field::SRC_REGION, notice.src_region.into());
        let memory = self.granted(notice.src_region, Rights::READ).map_err(fault)?;
        let region = memory.mapped().ok_or(fault(Status::UNSUPPORTED))?;
        region.read_at(notice.src_offset, payload).map_err(|error| fault(error.status()))?;
        Ok(payload)
    }

    fn conclude(&mut self, at: usize, result: Result<(), Fault>, now_ns: u64) {
        if let Some(waiting) = self.notices.waiting.remove(at) {
            self.ledger.conclude(waiting.postponed, result, now_ns);
        }
    }

    /// Sends one to the engine of a peer, which will answer.
    fn send_to(&mut self, at: usize, remote: &Remote, told: &Told<'_>, remotes: &mut Remotes) -> Result<(), Status> {
        let number = self.notices.sent;
        let sent = remotes.notify(remote, told, PartId { slot: self.slot, session: self.id, part: number });
        sent.map_err(|no| match no {
            NoPart::Busy => Status::NOT_DONE,
            NoPart::Gone => Status::REGION_GONE,
        })?;
        self.notices.sent += 1;
        self.notices.waiting[at].way = Way::Sent(number);
        Ok(())
    }

    /// A peer's engine has answered.
    pub(super) fn notified(&mut self, number: u64, status: Status, now_ns: u64) {
        // Else its batch has ended meanwhile.
        let Some(at) = self.notices.waiting.iter().position(|waiting| waiting.way == Way::Sent(number)) else { return };
        let waiting = &mut self.notices.waiting[at];
        let notice = waiting.notice;
        match status {
            Status::OK => self.conclude(at, Ok(()), now_ns),
            Status::NOT_DONE => {
                waiting.way = Way::Unsent { from_ns: now_ns.saturating_add(waiting.pause_ns) };
                waiting.pause_ns = PAUSE_NS_MAX.min(2 * waiting.pause_ns);
            }
            status => self.conclude(at, Err(notice.refused(status)), now_ns),
        }
    }

    /// Events go before its client from now on.
    pub(super) fn take_events(&mut self, buffer: Arc<SharedPages>) {
        self.events = Some(buffer);
    }

    /// Puts an event before the client.
    ///
    /// # Errors
    /// [`Status::NOT_DONE`] if there is no place for it now; or why there never will be.
    fn tell(&mut self, told: &Told<'_>) -> Result<(), Status> {
        if self.state == State::Draining {
            return Err(Status::REGION_GONE);
        }
        let buffer = self.events.as_ref().ok_or(Status::NOT_ALLOWED)?;
        let position = match self.completions.event_position() {
            Ok(position) => position.ok_or(Status::NOT_DONE)?,
            Err(_) => return Err(self.broken()),
        };
        let slot_bytes = NOTIFY_BYTES_MAX as usize;
        let slot = position as usize & (buffer.bytes() / slot_bytes - 1);
        buffer.write_bytes(slot * slot_bytes, told.payload);
        let event = Span {
            first: told.offset,
            user_data: told.user_data,
            bytes: told.payload.len() as u64,
            flags: SpanFlags::EVENT,
            ..Span::ZERO
        };
        if self.completions.push_event(&event).is_err() {
            return Err(self.broken());
        }
        self.show_completions();
        stats::add(&self.stats.served.notifications, 1);
        Ok(())
    }

    fn broken(&mut self) -> Status {
        self.end(Status::BAD_RING);
        Status::REGION_GONE
    }
}

/// Tells the client of a session, by the session's number; `places` says where sessions are.
pub(super) fn tell(
    sessions: &mut [Option<Session>],
    places: &HashMap<u64, usize>,
    id: u64,
    told: &Told<'_>,
) -> Result<(), Status> {
    let place = places.get(&id).and_then(|place| sessions.get_mut(*place));
    let session = place.and_then(Option::as_mut).ok_or(Status::REGION_GONE)?;
    session.tell(told)
}

/// Sends what is due of the session in that place. True if anything was done.
pub(super) fn send_due(
    sessions: &mut [Option<Session>],
    slot: usize,
    places: &HashMap<u64, usize>,
    desk: &mut Desk,
    remotes: &mut Remotes,
    clock: Clock,
) -> bool {
    let Some(session) = sessions.get_mut(slot).and_then(Option::as_mut) else { return false };
    if session.notices.waiting.is_empty() {
        return false;
    }
    session.notices.are_stuck = false;
    desk.full.clear();
    let now_ns = clock.now_ns();
    let before = session.notices.waiting.len();
    let (mut at, mut left, mut sent) = (0, NOTICES_PER_TURN, false);
    while left > 0 {
        let Some(session) = sessions[slot].as_mut() else { break };
        let Some((notice, recipient)) = session.next_due(&mut at, now_ns) else { break };
        if desk.full.contains(&recipient.place()) {
            (at, session.notices.are_stuck) = (at + 1, true);
            continue;
        }
        let payload = match session.payload(&notice, &mut desk.payload[..]) {
            Ok(payload) => payload,
            Err(fault) => {
                session.conclude(at, Err(fault), now_ns);
                left -= 1;
                continue;
            }
        };
        let told = Told { user_data: notice.user_data, offset: notice.offset, payload };
        let result = match &recipient {
            Recipient::Session(id) => tell(sessions, places, *id, &told).map(|()| true),
            Recipient::Peer(remote) => session.send_to(at, remote, &told, remotes).map(|()| false),
        };
        let Some(session) = sessions[slot].as_mut() else { break };
        left -= u32::from(result != Err(Status::NOT_DONE));
        match result {
            Ok(true) => session.conclude(at, Ok(()), now_ns),
            // The peer's answer concludes it.
            Ok(false) => (at, sent) = (at + 1, true),
            Err(Status::NOT_DONE) => {
                (at, session.notices.are_stuck) = (at + 1, true);
                desk.full.push(recipient.place());
            }
            Err(status) => session.conclude(at, Err(notice.refused(status)), now_ns),
        }
    }
    let Some(session) = sessions[slot].as_mut() else { return true };
    let did = sent || session.notices.waiting.len() != before;
    if did && session.state != State::Draining {
        match session.publish() {
            Ok(()) => {}
            Err(PushError::BadPosition(_)) => session.end(Status::BAD_RING),
            Err(PushError::Full) => session.end(Status::INTERNAL),
        }
    }
    did
}
