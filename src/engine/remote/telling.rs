//! NOTIFYs to clients of the peer, and of clients of the peer.
//!
//! Nothing is kept for whoever has no room: the answer says so at once, and who asked asks again, as with RNR in RDMA.

use super::line::{Line, NOTICES};
use super::opened::Opened;
use super::seat::Violation;
use super::{News, NoPart, PartId};
use crate::engine::notify::Told;
use crate::peer::Message;
use ring_abi::{NOTIFY_BYTES_MAX, Status};
use std::collections::VecDeque;

#[derive(Debug)]
pub struct Telling {
    /// NOTIFYs that the peer has not answered.
    sent: Vec<(u64, PartId)>,
    /// What it has answered, for the sessions.
    answered: Vec<(PartId, Status)>,
    last_request: u64,
    /// What the peer wants somebody here to be told, in this turn of the poller.
    came: Vec<Came>,
    payloads: Box<[u8]>,
}

/// One NOTIFY of the peer.
#[derive(Debug)]
struct Came {
    request: u64,
    /// The session that is to be told, if there is one.
    exporter: Result<u64, Status>,
    user_data: u64,
    offset: u64,
    payload_bytes: usize,
}

const SLOT_BYTES: usize = NOTIFY_BYTES_MAX as usize;

impl Telling {
    /// Nobody is told anything.
    pub fn new() -> Telling {
        let most = NOTICES as usize;
        Telling {
            sent: Vec::with_capacity(most),
            answered: Vec::with_capacity(most),
            last_request: 0,
            came: Vec::with_capacity(most),
            payloads: vec![0; most * SLOT_BYTES].into(),
        }
    }

    /// Sends a NOTIFY about a region of the peer; [`News::Notified`] follows, once.
    ///
    /// # Errors
    /// [`NoPart::Busy`]: others are not answered.
    pub fn send(&mut self, line: &mut Line, number: u32, told: &Told<'_>, notice: PartId) -> Result<(), NoPart> {
        if self.sent.len() + self.answered.len() >= NOTICES as usize {
            return Err(NoPart::Busy);
        }
        self.last_request += 1;
        let (request, Told { user_data, offset, payload }) = (self.last_request, *told);
        self.sent.push((request, notice));
        line.send(0, &Message::Notify { request, number, user_data, offset, payload });
        Ok(())
    }

    /// NOTIFY or NOTIFIED.
    pub fn received(&mut self, lane: usize, message: Message<'_>, opened: &Opened) -> Result<(), Violation> {
        if lane != 0 {
            return Err(Violation("a notification by another lane than the first"));
        }
        match message {
            Message::Notify { request, number, user_data, offset, payload } => {
                let at = self.came.len();
                let slot = self.payloads.chunks_exact_mut(SLOT_BYTES).nth(at).and_then(|s| s.get_mut(..payload.len()));
                slot.ok_or(Violation("more notifications at once than are taken"))?.copy_from_slice(payload);
                let exporter = opened.exporter(number);
                self.came.push(Came { request, exporter, user_data, offset, payload_bytes: payload.len() });
                Ok(())
            }
            Message::Notified { request, status } => {
                let at = self.sent.iter().position(|(known, _)| *known == request);
                let at = at.ok_or(Violation("a NOTIFIED that no NOTIFY waits for"))?;
                let (_, notice) = self.sent.swap_remove(at);
                self.answered.push((notice, believed(status)));
                Ok(())
            }
            _ => Err(Violation("not a notification")),
        }
    }

    /// Has `tell` tell those who are to be told, by the numbers of their sessions, and answers the peer.
    pub fn tell(&mut self, line: &mut Line, tell: &mut impl FnMut(u64, &Told<'_>) -> Result<(), Status>) {
        for (came, payload) in self.came.drain(..).zip(self.payloads.chunks_exact(SLOT_BYTES)) {
            let Came { request, exporter, user_data, offset, payload_bytes } = came;
            let told = Told { user_data, offset, payload: &payload[..payload_bytes] };
            let result = exporter.and_then(|session| tell(session, &told));
            line.send(0, &Message::Notified { request, status: result.err().unwrap_or(Status::OK) });
        }
    }

    /// Tells the sessions what came of their NOTIFYs.
    pub fn act(&mut self, news: &mut VecDeque<News>) {
        news.extend(self.answered.drain(..).map(|(notice, status)| News::Notified { notice, status }));
    }

    /// The connection goes: who is told there, and whether, nobody will say.
    pub fn end(&mut self) {
        self.came.clear();
        self.answered.extend(self.sent.drain(..).map(|(_, notice)| (notice, Status::REGION_GONE)));
    }

    /// An answer is awaited on lane 0.
    pub fn is_waiting(&self) -> bool {
        !self.sent.is_empty()
    }
}

/// What a peer may say of a NOTIFY, and nothing that would mean something else to the one who asked.
fn believed(status: Status) -> Status {
    match status {
        Status::OK | Status::NOT_DONE | Status::NOT_ALLOWED | Status::REGION_GONE | Status::UNSUPPORTED => status,
        _ => Status::INTERNAL,
    }
}
