//! Regions of the peer that this side's clients have opened.

use super::line::{Line, REGIONS_MAX};
use super::opened::{Here, OPENS_MAX};
use super::seat::Violation;
use super::{Remote, SeatId};
use crate::engine::mail::{Event, Outbox};
use crate::link::GrantId;
use crate::peer::Message;
use crate::region::Rights;
use ring_abi::Status;
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Debug)]
pub struct Asked {
    seat: SeatId,
    /// What could not be sent yet.
    waiting: VecDeque<Wanted>,
    closing: VecDeque<u32>,
    /// Requests that the peer has not answered.
    sent: Vec<u64>,
    /// In the order of their numbers.
    remotes: Vec<Arc<Remote>>,
    /// The highest number that the peer has given out.
    last: u32,
    /// Of those up to here it is known whether operations reach them.
    looked_at: u32,
    /// Both sides map memory, and the peer has not said how.
    may_hear_here: bool,
    /// A device of this side does what is done at regions of the peer.
    by_device: bool,
    /// Regions that the owner has withdrawn, and how many operations had been posted then: when those are over, it is told.
    leaving: VecDeque<(u32, u64)>,
    is_over: bool,
}

#[derive(Debug)]
struct Wanted {
    request: u64,
    name: String,
    rights: Rights,
}

/// Openings that wait for others; one more is refused.
const WAITING_MAX: usize = 1024;
/// The user half of a 57-bit address space: no region is longer.
const BYTES_MAX: u64 = 1 << 56;

impl Asked {
    /// None yet. `maps`: both sides offer to. `by_device`: devices reach memory by themselves.
    pub fn new(seat: SeatId, maps: bool, by_device: bool) -> Asked {
        Asked {
            seat,
            waiting: VecDeque::new(),
            closing: VecDeque::new(),
            sent: Vec::with_capacity(OPENS_MAX),
            remotes: Vec::new(),
            last: 0,
            looked_at: 0,
            may_hear_here: maps,
            by_device,
            leaving: VecDeque::new(),
            is_over: false,
        }
    }

    /// Asks for an export; [`Event::RemoteOpened`] answers, once.
    pub fn open(&mut self, request: u64, name: &str, rights: Rights, outbox: &Outbox) {
        if self.is_over {
            return refuse(request, outbox);
        }
        if self.waiting.len() == WAITING_MAX {
            let text = format!("{WAITING_MAX} openings wait for this peer");
            return outbox.send(Event::RemoteOpened { request, answer: Err((Status::LIMIT_EXCEEDED, text)) });
        }
        self.waiting.push_back(Wanted { request, name: name.to_owned(), rights });
    }

    /// It is not used any more.
    pub fn close(&mut self, remote: &Arc<Remote>) {
        if let Some(at) = self.find(remote.number)
            && let Some(known) = self.remotes.get(at)
            && Arc::ptr_eq(known, remote)
        {
            self.remotes.remove(at).withdraw();
            self.closing.push_back(remote.number);
        }
    }

    /// OPENED, WITHDRAWN or HERE, when so many operations have been posted.
    pub fn received(
        &mut self,
        lane: usize,
        message: Message<'_>,
        posts: u64,
        outbox: &Outbox,
    ) -> Result<(), Violation> {
        if lane != 0 {
            return Err(Violation("a message about regions by another lane than the first"));
        }
        match message {
            Message::Opened { request, status, number, grant, bytes, text } => {
                let at = self.sent.iter().position(|known| *known == request);
                let at = at.ok_or(Violation("an OPENED that no OPEN waits for"))?;
                let answer = match status.is_ok() {
                    true => Ok(self.opened(number, GrantId(grant), bytes)?),
                    false => Err((status, text.to_owned())),
                };
                self.sent.swap_remove(at);
                outbox.send(Event::RemoteOpened { request, answer });
                Ok(())
            }
            Message::Withdrawn { number } => self.withdrawn(number, posts, outbox),
            Message::Here { host, token, path } => {
                if !std::mem::take(&mut self.may_hear_here) {
                    return Err(Violation("a HERE that was not agreed on, or another one"));
                }
                let here = Here { host, token, path: path.to_owned() };
                outbox.send(Event::PeerHere { seat: self.seat, here });
                Ok(())
            }
            _ => Err(Violation("not a message about regions of the other side")),
        }
    }

    fn opened(&mut self, number: u32, grant: GrantId, bytes: u64) -> Result<Arc<Remote>, Violation> {
        if number <= self.last {
            return Err(Violation("an OPENED with a number of before"));
        }
        if bytes == 0 || bytes > BYTES_MAX {
            return Err(Violation("an OPENED with a length that no region has"));
        }
        if self.remotes.len() >= REGIONS_MAX as usize {
            return Err(Violation("more regions than a connection can have"));
        }
        let remote = Arc::new(Remote::new(self.seat, number, grant, bytes, self.by_device));
        self.last = number;
        self.remotes.push(remote.clone());
        Ok(remote)
    }

    fn withdrawn(&mut self, number: u32, posts: u64, outbox: &Outbox) -> Result<(), Violation> {
        if number == 0 || number > self.last {
            return Err(Violation("a WITHDRAWN of what was never open"));
        }
        if self.by_device {
            self.leaving.push_back((number, posts));
        }
        // It may have been closed meanwhile.
        if let Some(remote) = self.remote(number).filter(|remote| !remote.is_withdrawn()) {
            remote.withdraw();
            // It may be mapped, which is the control thread's matter.
            outbox.send(Event::RemoteWithdrawn(remote.clone()));
        }
        Ok(())
    }

    /// The peer's region with that number.
    pub fn remote(&self, number: u32) -> Option<&Arc<Remote>> {
        self.remotes.get(self.find(number)?)
    }

    /// Sends what waits, as far as there is spare room on lane 0. `oldest_post`: the number of the first operation that is
    /// not over, or that will be posted.
    pub fn act(&mut self, line: &mut Line, oldest_post: u64) {
        // Before a client can use it.
        let reached = self.remotes.partition_point(|remote| remote.number <= self.looked_at);
        for remote in self.remotes.iter().skip(reached).filter(|remote| !line.reaches(remote.grant)) {
            remote.set_unreached();
        }
        self.looked_at = self.last;
        while line.has_spare_room(0) {
            let has_left = self.leaving.front().is_some_and(|(_, posts)| *posts <= oldest_post);
            if has_left && let Some((number, _)) = self.leaving.pop_front() {
                line.send(0, &Message::Left { number });
            } else if let Some(number) = self.closing.pop_front() {
                line.send(0, &Message::Close { number });
            } else if self.sent.len() < OPENS_MAX
                && let Some(Wanted { request, name, rights }) = self.waiting.pop_front()
            {
                self.sent.push(request);
                line.send(0, &Message::Open { request, rights: rights.bits(), name: &name });
            } else {
                return;
            }
        }
    }

    /// An answer is awaited on lane 0.
    pub fn is_waiting(&self) -> bool {
        !self.sent.is_empty()
    }

    /// The connection goes: all are withdrawn, and what waits for an answer gets
    /// [`REGION_GONE`](ring_abi::Status::REGION_GONE).
    pub fn end(&mut self, outbox: &Outbox) {
        self.is_over = true;
        self.remotes.drain(..).for_each(|remote| remote.withdraw());
        self.closing.clear();
        self.leaving.clear();
        let waiting = self.waiting.drain(..).map(|wanted| wanted.request);
        self.sent.drain(..).chain(waiting).for_each(|request| refuse(request, outbox));
    }

    fn find(&self, number: u32) -> Option<usize> {
        self.remotes.binary_search_by_key(&number, |remote| remote.number).ok()
    }
}

fn refuse(request: u64, outbox: &Outbox) {
    let answer = Err((Status::REGION_GONE, "the connection to its owner is lost".to_owned()));
    outbox.send(Event::RemoteOpened { request, answer });
}
