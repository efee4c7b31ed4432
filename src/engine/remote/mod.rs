//! Connections to other engines, as the poller drives them: chunks of this engine's batches go out, commands of others
//! come in.
//!
//! Sessions know the interface here and nothing of links; links know nothing of sessions.

mod asked;
mod asking;
mod heartbeat;
mod judging;
mod line;
mod opened;
mod parcel;
#[cfg(test)]
mod peer_tests;
mod region;
mod seat;
mod serving;
mod slots;
mod telling;

pub use line::verbs_limits;
pub use opened::Here;
pub use parcel::Parcel;
pub use region::Remote;

use super::mail::{Event, Outbox, PeerExport};
use super::notify::Told;
use crate::cost::{Chooser, Situation};
use crate::link::{Bell, Transport};
use crate::peer::Connected;
use crate::pipeline::BatchId;
use crate::plan::{Direction, Fault};
use crate::region::{Huge, Region, Rights};
use asking::Zeros;
use parcel::Parcels;
use ring_abi::Status;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{BorrowedFd, OwnedFd};
use seat::{Around, Seat, State};
use serving::Serving;
use std::collections::VecDeque;
use std::sync::Arc;

/// A connection: this side's epoch of it. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeatId(pub u64);

/// A part of a client's batch that goes one way over one connection, as its session names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartId {
    /// Place of the session in the poller.
    pub slot: u32,
    /// Number of the session, so that another one in that place does not hear of it.
    pub session: u64,
    /// The session's number for the part. Never used twice in a session.
    pub part: u64,
}

/// What the sessions are told.
#[derive(Clone, Copy, Debug)]
pub enum News {
    /// A chunk of the part has failed; nothing more of the part is started. Said once.
    Failed {
        /// Whose.
        part: PartId,
        /// The transfer that the chunk begins with, as given to the planner.
        transfer: u32,
        /// Why; its fragment is the one that the chunk begins with.
        fault: Fault,
    },
    /// Nothing of the part is under way any more, on either side. The last thing said of it.
    Finished {
        /// Whose.
        part: PartId,
        /// Everything was done.
        done: bool,
        /// Where its time went.
        times: Times,
    },
    /// What came of a NOTIFY.
    Notified {
        /// Which, by a number of its session's.
        notice: PartId,
        /// OK: whoever is to be told has it. NOT_DONE: he has no room for it now, and was not told. Or why he will not be.
        status: Status,
    },
}

impl News {
    /// The part, or the NOTIFY.
    pub fn about(&self) -> PartId {
        match self {
            News::Failed { part, .. } | News::Finished { part, .. } | News::Notified { notice: part, .. } => *part,
        }
    }
}

/// Where the time of a part went, and what it took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// From the first post or command to the last chunk's end.
    pub window_ns: u64,
    /// From the first command until its answer, less what the owner says that it waited and packed.
    pub command_ns: u64,
    /// Of chunks at the owner, before they were packed or unpacked: the longest.
    pub owner_queue_ns: u64,
    /// Packing and unpacking, on both sides, all chunks.
    pub pack_ns: u64,
    /// Chunks by the direct route, and gathered.
    pub direct_chunks: u64,
    /// See there.
    pub gathered_chunks: u64,
}

/// What is made for connections.
#[derive(Clone, Debug, Default)]
pub struct RemoteConfig {
    /// Connections at once.
    pub connections: u32,
    /// Largest chunk, C, and bytes of a slot.
    pub slot_bytes: u32,
    /// Slots of this side for each connection: READ lands in them, WRITE is packed into them; and as many for WRITEs of
    /// the other side to land in.
    pub slots: u32,
    /// Slots in which commands of others are packed, of all connections.
    pub owner_slots: u32,
    /// A connection on which nothing was heard for so long, though there was something to hear, is dead.
    pub dead_after_ns: u64,
    /// How long lanes spin before they sleep.
    pub spin: std::time::Duration,
}

/// Why a part cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPart {
    /// There is no room now.
    Busy,
    /// The connection is gone.
    Gone,
}

/// All connections. Used by the poller only; takes no lock and makes no system call but those of lane 0 and of wake-ups.
pub struct Remotes {
    config: RemoteConfig,
    bell: Bell,
    outbox: Outbox,
    seats: Vec<Seat>,
    /// The owner half of all of them.
    serving: Serving,
    parcels: Parcels,
    /// Made with the first connection.
    zeros: Option<Zeros>,
    news: VecDeque<News>,
    /// Something was asked for since the last poll.
    is_asked: bool,
}

/// Zeros that are sent from one place.
const ZERO_BYTES: u64 = 64 << 10;

impl Remotes {
    /// None yet.
    pub fn new(config: &RemoteConfig, bell: Bell, outbox: Outbox) -> Remotes {
        Remotes {
            config: config.clone(),
            bell,
            outbox,
            seats: Vec::with_capacity(config.connections as usize),
            serving: Serving::new(config),
            parcels: Parcels::default(),
            zeros: None,
            news: VecDeque::new(),
            is_asked: false,
        }
    }

    /// How the threads of a link wake the poller.
    pub fn bell(&self) -> Bell {
        self.bell.clone()
    }

    // For the control thread, by way of commands.

    /// A connection that was just authenticated; its bytes travel by its sockets, or by `link`. If it cannot be used it is
    /// dropped, which the peer thread hears of, and [`Event::PeerDown`](super::mail::Event::PeerDown) follows at once.
    #[expect(clippy::boxed_local, reason = "as it comes by mail")]
    pub fn attach(&mut self, connected: Box<Connected>, link: Option<Box<dyn Transport>>, epoll: &OwnedFd) {
        let id = SeatId(connected.epoch);
        match self.seat(*connected, link, epoll) {
            Some(seat) => {
                self.seats.push(seat);
                self.parcels.add(line::chunks(&self.config));
                self.is_asked = true;
            }
            None => self.outbox.send(Event::PeerDown { seat: id, is_violated: false }),
        }
    }

    fn seat(&mut self, connected: Connected, link: Option<Box<dyn Transport>>, epoll: &OwnedFd) -> Option<Seat> {
        if self.seats.len() >= self.config.connections as usize {
            return None;
        }
        if self.zeros.is_none() {
            let (region, _) = Region::allocate(ZERO_BYTES, Huge::Never).ok()?;
            self.zeros = Some(Zeros::new(Arc::new(region)));
        }
        let zeros = self.zeros.as_ref()?;
        if let Some(domain) = link.as_ref().and_then(|link| link.grants().domain()) {
            zeros.register(domain).ok()?;
        }
        let seat = Seat::new(connected, link, &self.config, &self.bell, zeros, &mut self.serving)?;
        // Without this nothing that comes would wake the poller; with it nothing but what comes new does.
        let descriptors = seat.line.descriptors();
        let add = |fd: &BorrowedFd<'_>| epoll::add(epoll, fd, LANE, EventFlags::IN | EventFlags::ET).is_ok();
        let is_watched = descriptors[0].is_some() && descriptors.iter().flatten().all(add);
        if !is_watched {
            self.serving.down(seat.owner);
            self.serving.quiesced(seat.owner);
            return None;
        }
        Some(seat)
    }

    /// Ends a connection: another one takes its place, or nobody wants it any more.
    pub fn end(&mut self, seat: SeatId) {
        self.is_asked = true;
        self.find(seat).into_iter().for_each(|seat| seat.line.shut_down());
    }

    /// Asks the owner for an export; [`Event::RemoteOpened`](super::mail::Event::RemoteOpened) answers.
    pub fn open(&mut self, seat: SeatId, request: u64, name: &str, rights: Rights) {
        self.is_asked = true;
        match self.seats.iter_mut().find(|known| known.id == seat) {
            Some(seat) => seat.asked.open(request, name, rights, &self.outbox),
            None => {
                let answer = Err((Status::REGION_GONE, "the connection to its owner is lost".to_owned()));
                self.outbox.send(Event::RemoteOpened { request, answer });
            }
        }
    }

    /// The region is not used by this engine's clients any more.
    pub fn close_region(&mut self, remote: &Arc<Remote>) {
        self.is_asked = true;
        self.find(remote.seat).into_iter().for_each(|seat| seat.asked.close(remote));
    }

    /// Answers the peer's question for an export.
    pub fn opened(&mut self, seat: SeatId, request: u64, answer: Result<PeerExport, (Status, String)>) {
        self.is_asked = true;
        // Else the question is gone with who asked.
        if let Some(seat) = self.find(seat).filter(|seat| seat.state == State::Up) {
            seat.opened.answer(request, answer);
        }
    }

    /// Tells the peer where it gets the files of regions of this side. Both sides offer it.
    pub fn say_where(&mut self, seat: SeatId, here: Here) {
        self.is_asked = true;
        if let Some(seat) = self.find(seat) {
            seat.opened.tell(here);
        }
    }

    /// A region that the peer has open under this number, and with which rights.
    pub fn opened_as(&mut self, seat: SeatId, number: u32) -> Option<(Arc<Region>, Rights)> {
        self.find(seat).filter(|seat| seat.state == State::Up)?.opened.open(number)
    }

    /// Takes a region away from all peers that have opened it. [`uses`](Self::uses) says when nobody touches it any more.
    pub fn withdraw(&mut self, region: &Arc<Region>) {
        self.is_asked = true;
        self.seats.iter_mut().for_each(|seat| seat.opened.withdraw(region));
    }

    /// True while a command, an operation or a grant of any peer may touch the region.
    pub fn uses(&self, region: &Arc<Region>) -> bool {
        self.serving.uses(region) || self.seats.iter().any(|seat| seat.opened.uses(region))
    }

    // For sessions.

    /// Begins a part, which may use so many slots of this side at once. `is_small`: it is complete, and so little that
    /// the poller carries it by itself.
    ///
    /// # Errors
    /// See [`NoPart`].
    pub fn begin(
        &mut self,
        seat: SeatId,
        direction: Direction,
        slots: u32,
        is_small: bool,
        part: PartId,
    ) -> Result<BatchId, NoPart> {
        let seat = self.find(seat).filter(|seat| seat.state == State::Up).ok_or(NoPart::Gone)?;
        seat.asking.begin(direction, slots, is_small, part)
    }

    /// An empty parcel, if the connection has room for another chunk of the part.
    pub fn parcel(&mut self, seat: SeatId, batch: BatchId) -> Option<Box<Parcel>> {
        let seat = self.seats.iter_mut().find(|known| known.id == seat)?;
        if !seat.asking.promise(batch) {
            return None;
        }
        let Some(mut parcel) = self.parcels.take() else {
            seat.asking.unpromise();
            return None;
        };
        parcel.place = Some(seat.id);
        Some(parcel)
    }

    /// Gives a planned parcel to the part that it belongs to. A part that has ended drops it.
    pub fn add(&mut self, seat: SeatId, batch: BatchId, parcel: Box<Parcel>) {
        self.is_asked = true;
        let known = self.seats.iter_mut().find(|known| known.id == seat && parcel.place == Some(seat));
        let added = match known {
            Some(seat) => seat.asking.add(batch, parcel, &seat.asked),
            None => Err(parcel),
        };
        added.unwrap_or_else(|parcel| self.parcels.give_back(parcel));
    }

    /// Takes an unused parcel back.
    pub fn give_back(&mut self, parcel: Box<Parcel>) {
        let place = parcel.place;
        self.seats.iter_mut().filter(|seat| Some(seat.id) == place).for_each(|seat| seat.asking.unpromise());
        self.parcels.give_back(parcel);
    }

    /// No more parcels will come for the part.
    pub fn close(&mut self, seat: SeatId, batch: BatchId) {
        self.is_asked = true;
        self.find(seat).into_iter().for_each(|seat| seat.asking.close(batch));
    }

    /// Starts nothing more of the part; [`News::Finished`] follows when nothing of it is under way.
    pub fn cancel(&mut self, seat: SeatId, batch: BatchId, now_ns: u64) {
        self.is_asked = true;
        self.find(seat).into_iter().for_each(|seat| seat.asking.cancel(batch, now_ns));
    }

    /// Tells the client that exported a region; [`News::Notified`] follows.
    ///
    /// # Errors
    /// See [`NoPart`].
    pub fn notify(&mut self, remote: &Remote, told: &Told<'_>, notice: PartId) -> Result<(), NoPart> {
        self.is_asked = true;
        let Seat { telling, line, .. } =
            self.find(remote.seat).filter(|seat| seat.state == State::Up).ok_or(NoPart::Gone)?;
        telling.send(line, remote.number, told, notice)
    }

    /// What is known of a connection for decisions, and the decisions that are kept. `None`: it is gone.
    pub fn judge(&mut self, seat: SeatId, direction: Direction) -> Option<(&mut Chooser, Situation)> {
        let Seat { asking, judging, .. } = self.find(seat).filter(|seat| seat.state == State::Up)?;
        Some(judging.judge(direction, asking.slot_bytes()))
    }

    /// Bytes of a part that may still be written.
    pub fn outstanding_bytes(&self, seat: SeatId, batch: BatchId) -> u64 {
        let known = self.seats.iter().find(|known| known.id == seat);
        known.map_or(0, |seat| seat.asking.outstanding_bytes(batch))
    }

    // For the poller.

    /// Moves what can be moved without waiting. True if anything was done.
    pub fn poll(&mut self, now_ns: u64) -> bool {
        self.is_asked = false;
        let Remotes { seats, serving, parcels, news, outbox, .. } = self;
        let mut around = Around { serving, outbox, now_ns };
        let mut did = false;
        for seat in &mut *seats {
            did |= seat.take_events(&mut around);
        }
        did |= serving.act(seats, now_ns);
        for seat in &mut *seats {
            did |= seat.act(parcels, news, now_ns);
            // Once, for both halves.
            seat.line.ring();
        }
        self.drop_gone();
        did
    }

    /// Has `tell` tell clients of this engine what peers want them to be told, by the numbers of their sessions: to be
    /// called after each poll.
    pub fn deliver(&mut self, tell: &mut impl FnMut(u64, &Told<'_>) -> Result<(), Status>) {
        for seat in self.seats.iter_mut().filter(|seat| seat.state == State::Up) {
            seat.telling.tell(&mut seat.line, tell);
        }
    }

    fn drop_gone(&mut self) {
        while let Some(at) = self.seats.iter().position(|seat| seat.is_gone(&self.serving)) {
            let seat = self.seats.swap_remove(at);
            self.parcels.remove(line::chunks(&self.config));
            self.outbox.send(Event::PeerDown { seat: seat.id, is_violated: seat.is_violated });
        }
    }

    /// The next thing for a session.
    pub fn next_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// To be asked when a sleep was announced: is there anything that a poll would do?
    pub fn has_work(&mut self) -> bool {
        let is_busy = self.is_asked || !self.news.is_empty() || self.serving.has_work();
        is_busy || self.seats.iter_mut().any(|seat| seat.line.has_news() || seat.asking.has_work())
    }

    /// True while there are connections: what is waited for comes from threads that may need this core.
    pub fn are_connected(&self) -> bool {
        !self.seats.is_empty()
    }

    /// Makes epoll watch for room in the sockets that need it; to be called before a sleep.
    pub fn watch(&mut self, epoll: &OwnedFd) {
        for seat in &mut self.seats {
            let Some(socket) = seat.line.descriptors()[0].filter(|_| seat.line.wants_to_send() != seat.watches_room)
            else {
                continue;
            };
            let room = if seat.watches_room { EventFlags::empty() } else { EventFlags::OUT };
            if epoll::modify(epoll, socket, LANE, EventFlags::IN | EventFlags::ET | room).is_ok() {
                seat.watches_room = !seat.watches_room;
            }
        }
    }

    /// When the next poll must come at the latest, `u64::MAX` for never.
    pub fn next_timer_ns(&self) -> u64 {
        let seats = self.seats.iter().map(Seat::next_timer_ns);
        seats.min().unwrap_or(u64::MAX).min(self.serving.next_timer_ns())
    }

    /// Ends all connections.
    pub fn stop(&mut self) {
        self.is_asked = true;
        self.seats.iter_mut().for_each(|seat| seat.line.shut_down());
    }

    /// True if there is no connection, but for those that will be there for ever.
    pub fn is_quiet(&self) -> bool {
        self.seats.iter().all(|seat| seat.state == State::Stuck)
    }

    fn find(&mut self, seat: SeatId) -> Option<&mut Seat> {
        self.seats.iter_mut().find(|known| known.id == seat)
    }
}

/// Data of a lane 0 socket among the doorbells in epoll events: this bit, and nothing that matters.
pub const LANE_EVENT: u64 = 1 << 62;

/// As epoll takes it.
const LANE: EventData = EventData::new_u64(LANE_EVENT);

#[cfg(test)]
mod tests;
