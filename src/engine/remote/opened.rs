//! Regions of this side that the peer has opened.
//!
//! ```text
//! OPEN ──▶ asking ──control thread──▶ open: number, grant ──CLOSE──▶ gone
//!                                       └──withdrawn here──▶ withdrawn ──CLOSE──▶ gone
//! ```
//!
//! Where the peer's device reaches regions by itself, a withdrawn one is taken back when the peer says that it has LEFT it:
//! to take it back earlier would break the connection, and everything that is under way on it.
//!
//! Numbers are counted, so that one that was closed names nothing rather than its successor. Every number that was given out
//! is closed by the peer, once.

use super::SeatId;
use super::line::{Line, REGIONS_MAX};
use super::seat::Violation;
use crate::engine::mail::{Event, Outbox, PeerExport};
use crate::link::{GrantError, GrantId, Grants, PIECES_MAX, Revoked, Use};
use crate::pack::ListTask;
use crate::peer::Message;
use crate::region::{Region, Rights};
use ring_abi::Status;
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Debug)]
pub struct Opened {
    seat: SeatId,
    grants: Grants,
    gathered_from_bytes: u32,
    /// What the peer is to be told, once, if it may map them.
    here: Option<Here>,
    /// In the order of their numbers.
    places: Vec<Place>,
    /// The last number that was given out.
    last: u32,
    /// Requests that the control thread has not answered.
    asking: Vec<u64>,
    /// What is to be said to the peer, each when there is room.
    answers: VecDeque<Answer>,
    withdrawn: VecDeque<u32>,
    /// Grants that were in use when they were taken back.
    leaving: Vec<(GrantId, Arc<Region>)>,
    /// Withdrawn regions that the peer's device may be at, by their numbers: it is to say that it has left them.
    unleft: Vec<(u32, Open)>,
    /// When the peer is taken to be one that does not do what it is to do. `None`: nothing is awaited.
    unleft_until_ns: Option<u64>,
}

/// Where the peer gets the files of regions that it has opened, if it is on the same host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Here {
    /// Which host: the kernel's number of its boot.
    pub host: [u8; 16],
    /// What it proves itself with: made for this connection.
    pub token: [u8; 16],
    /// Of the attach socket, absolute.
    pub path: String,
}

#[derive(Debug)]
struct Place {
    number: u32,
    /// `None`: withdrawn, and the peer has not closed it.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    region: Arc<Region>,
    rights: Rights,
    grant: GrantId,
    /// The session that has exported it, 0 for memory of the engine's process.
    exporter: u64,
}

#[derive(Debug)]
struct Answer {
    request: u64,
    result: Result<Given, (Status, String)>,
}

#[derive(Debug)]
struct Given {
    number: u32,
    grant: GrantId,
    bytes: u64,
}

/// OPENs of either side that are not answered.
pub const OPENS_MAX: usize = 64;

/// How long a peer may be at regions that were withdrawn: as long as its longest operation takes, and much longer.
const LEAVE_NS: u64 = 5_000_000_000;

impl Opened {
    /// None yet; `grants` are the connection's.
    ///
    /// `gathered_from_bytes`: a device of this side gathers pieces of this mean length for less than packing them costs.
    pub fn new(seat: SeatId, grants: Grants, gathered_from_bytes: u32) -> Opened {
        Opened {
            seat,
            grants,
            gathered_from_bytes,
            here: None,
            places: Vec::new(),
            last: 0,
            asking: Vec::with_capacity(OPENS_MAX),
            answers: VecDeque::with_capacity(OPENS_MAX),
            withdrawn: VecDeque::new(),
            leaving: Vec::new(),
            unleft: Vec::new(),
            unleft_until_ns: None,
        }
    }

    /// OPEN, CLOSE or LEFT.
    pub fn received(&mut self, lane: usize, message: Message<'_>, outbox: &Outbox) -> Result<(), Violation> {
        if lane != 0 {
            return Err(Violation("a message about regions by another lane than the first"));
        }
        match message {
            Message::Open { request, rights, name } => self.ask(request, rights, name, outbox),
            Message::Close { number } => self.close(number),
            Message::Left { number } => self.left(number),
            _ => Err(Violation("not a message about regions of this side")),
        }
    }

    fn ask(&mut self, request: u64, rights: u64, name: &str, outbox: &Outbox) -> Result<(), Violation> {
        let rights = Rights::from_bits(rights).ok_or(Violation("an OPEN for rights that there are not"))?;
        if self.asking.len() + self.answers.len() >= OPENS_MAX {
            return Err(Violation("more OPENs at once than are taken"));
        }
        if self.asking.contains(&request) {
            return Err(Violation("an OPEN with the number of another"));
        }
        self.asking.push(request);
        outbox.send(Event::PeerAsks { seat: self.seat, request, rights, name: name.to_owned() });
        Ok(())
    }

    fn close(&mut self, number: u32) -> Result<(), Violation> {
        let at = self.find(number).ok_or(Violation("a CLOSE of what is not open"))?;
        if let Some(open) = self.places.remove(at).open {
            self.revoke(open);
        }
        Ok(())
    }

    fn left(&mut self, number: u32) -> Result<(), Violation> {
        let at = self.unleft.iter().position(|(known, _)| *known == number);
        let (_, open) = self.unleft.swap_remove(at.ok_or(Violation("a LEFT of what was not withdrawn"))?);
        self.revoke(open);
        Ok(())
    }

    /// The control thread's answer to an OPEN.
    pub fn answer(&mut self, request: u64, answer: Result<PeerExport, (Status, String)>) {
        let Some(at) = self.asking.iter().position(|known| *known == request) else { return };
        self.asking.swap_remove(at);
        let result = answer.and_then(|export| self.give(export));
        self.answers.push_back(Answer { request, result });
    }

    fn give(&mut self, export: PeerExport) -> Result<Given, (Status, String)> {
        let PeerExport { region, rights, exporter, exposed: _exposed } = export;
        if self.places.len() + self.leaving.len() >= REGIONS_MAX as usize {
            let text = format!("{REGIONS_MAX} regions are open by this connection");
            return Err((Status::LIMIT_EXCEEDED, text));
        }
        let Some(number) = self.last.checked_add(1) else {
            return Err((Status::LIMIT_EXCEEDED, "all numbers of this connection are used up".to_owned()));
        };
        let bytes = region.bytes();
        let grant = self.grants.grant(region.clone(), 0, bytes, rights, Use::Many).map_err(|error| match error {
            GrantError::RegionGone => (Status::REGION_GONE, error.to_string()),
            GrantError::NoRight => (Status::NO_RIGHT, error.to_string()),
            _ => (Status::LIMIT_EXCEEDED, error.to_string()),
        })?;
        self.last = number;
        self.places.push(Place { number, open: Some(Open { region, rights, grant, exporter }) });
        Ok(Given { number, grant, bytes })
    }

    /// The region that the peer knows by that number, for such use.
    ///
    /// # Errors
    /// [`Status::REGION_GONE`] also for a number that was never given out: it may have been closed since.
    pub fn find_for(&self, number: u32, wanted: Rights) -> Result<&Arc<Region>, Status> {
        let place = self.find(number).and_then(|at| self.places.get(at));
        let open = place.and_then(|place| place.open.as_ref()).ok_or(Status::REGION_GONE)?;
        if open.rights.covers(wanted) { Ok(&open.region) } else { Err(Status::NO_RIGHT) }
    }

    /// The session that is told by a NOTIFY about the region of that number.
    ///
    /// # Errors
    /// [`Status::REGION_GONE`], as by [`find_for`](Self::find_for); [`Status::UNSUPPORTED`] if it is memory of the engine's
    /// own process.
    pub fn exporter(&self, number: u32) -> Result<u64, Status> {
        let place = self.find(number).and_then(|at| self.places.get(at));
        match place.and_then(|place| place.open.as_ref()).map(|open| open.exporter) {
            None => Err(Status::REGION_GONE),
            Some(0) => Err(Status::UNSUPPORTED),
            Some(exporter) => Ok(exporter),
        }
    }

    /// The peer is to be told; both sides offer it.
    pub fn tell(&mut self, here: Here) {
        self.here = Some(here);
    }

    /// A region that the peer has open, and how.
    pub fn open(&self, number: u32) -> Option<(Arc<Region>, Rights)> {
        let place = self.find(number).and_then(|at| self.places.get(at));
        place.and_then(|place| place.open.as_ref()).map(|open| (open.region.clone(), open.rights))
    }

    /// Takes a region away from the peer.
    pub fn withdraw(&mut self, region: &Arc<Region>) {
        for at in 0..self.places.len() {
            let Some(place) = self.places.get_mut(at) else { return };
            if let Some(open) = place.open.take_if(|open| Arc::ptr_eq(&open.region, region)) {
                let number = place.number;
                self.withdrawn.push_back(number);
                if self.grants.are_of_device() {
                    self.unleft.push((number, open));
                } else {
                    self.revoke(open);
                }
            }
        }
    }

    fn revoke(&mut self, open: Open) {
        if self.grants.revoke(open.grant) == Ok(Revoked::Later) {
            self.leaving.push((open.grant, open.region));
        }
    }

    /// A grant that was in use when it was taken back is so no more.
    pub fn revoked(&mut self, grant: GrantId) {
        self.leaving.retain(|(leaving, _)| *leaving != grant);
    }

    /// True while the peer may touch it by operations of its own.
    pub fn uses(&self, region: &Arc<Region>) -> bool {
        let open = self.places.iter().filter_map(|place| place.open.as_ref()).map(|open| &open.region);
        let unleft = self.unleft.iter().map(|(_, open)| &open.region);
        let mut all = open.chain(self.leaving.iter().map(|(_, region)| region)).chain(unleft);
        all.any(|known| Arc::ptr_eq(known, region))
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.places.iter().filter(|place| place.open.is_some()).count()
    }

    /// True if a device of this side can send what the task's list names from where it lies.
    pub fn sends_from(&self, task: &ListTask) -> bool {
        !self.grants.are_of_device() || task.regions.iter().all(|(_, region)| region.local_key().is_some())
    }

    /// True if a device of this side is to gather what the list names: so many pieces, long enough for that to cost less than
    /// packing them.
    pub fn gathers(&self, task: &ListTask, bytes: u32, pieces: u32) -> bool {
        let are_long = bytes / pieces.max(1) >= self.gathered_from_bytes;
        self.grants.are_of_device() && are_long && pieces as usize <= PIECES_MAX && self.sends_from(task)
    }

    /// Something is to come by lane 0.
    pub fn is_waiting(&self) -> bool {
        !self.unleft.is_empty()
    }

    /// Sends what waits, as far as there is spare room on lane 0. False: the peer does not leave what was withdrawn.
    pub fn act(&mut self, line: &mut Line, now_ns: u64) -> bool {
        self.say(line);
        if self.unleft.is_empty() {
            self.unleft_until_ns = None;
            return true;
        }
        now_ns < *self.unleft_until_ns.get_or_insert(now_ns.saturating_add(LEAVE_NS))
    }

    fn say(&mut self, line: &mut Line) {
        while line.has_spare_room(0) {
            // Before any answer, so that the first region can be mapped. Then answers: a region may be withdrawn before the
            // peer has heard that it is open.
            if let Some(Here { host, token, path }) = self.here.take() {
                line.send(0, &Message::Here { host, token, path: &path });
            } else if let Some(answer) = self.answers.pop_front() {
                line.send(0, &answer.message());
            } else if let Some(number) = self.withdrawn.pop_front() {
                line.send(0, &Message::Withdrawn { number });
            } else {
                return;
            }
        }
    }

    /// The connection is quiet: nobody touches anything by it any more.
    pub fn quiesced(&mut self) {
        self.places.clear();
        self.leaving.clear();
        self.unleft.clear();
    }

    fn find(&self, number: u32) -> Option<usize> {
        self.places.binary_search_by_key(&number, |place| place.number).ok()
    }
}

impl Answer {
    fn message(&self) -> Message<'_> {
        let request = self.request;
        match &self.result {
            Ok(Given { number, grant, bytes }) => {
                let (number, grant, bytes) = (*number, grant.0, *bytes);
                Message::Opened { request, status: Status::OK, number, grant, bytes, text: "" }
            }
            Err((status, text)) => Message::Opened { request, status: *status, number: 0, grant: 0, bytes: 0, text },
        }
    }
}
