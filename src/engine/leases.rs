//! Memory of this engine that engines on the same host map, instead of having it sent.
//!
//! ```text
//! connection ──HERE: host, token, path──▶ the other engine ──connects to the path, FETCH: token, number──▶ here
//!                                                                  │
//!                     lease ◀──the file, by the poller's word──────┘
//! ```
//!
//! The connection that FETCH came by is the lease: it lasts until its end, which comes when the memory is unmapped over
//! there, or when that process has died. A region that is taken away is given back when its leases have ended as well.

use super::admit::Peer;
use super::control::{Control, Refusal};
use super::mail::Command;
use super::memory::Memory;
use super::remote::{Here, SeatId};
use crate::region::{Region, Rights};
use crate::stats;
use ring_abi::{Handle, Message, Status};
use rustix::fd::AsFd;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Whom this engine has told where its memory is to be had.
pub(super) struct Leasing {
    host: [u8; 16],
    /// Connections of which both sides map, and that are told when there is a socket.
    untold: Vec<SeatId>,
    tokens: HashMap<SeatId, [u8; 16]>,
}

/// What a connection has to do with memory that is mapped over there.
pub(super) enum Lease {
    /// It is, or will be, a client's.
    None,
    /// The poller is asked which region is meant.
    Asked(Box<Message>),
    /// As long as it lasts.
    Of(Arc<Region>),
}

/// Stands for a lease among the users of a region that a closing waits for. No region of a session has it.
pub(super) const LEASE: Handle = Handle(0);

/// A peer that has lost its connection lets go of memory as soon as its copies have ended: a stop does not wait for one that
/// does not.
const LEASE_WAIT: Duration = Duration::from_secs(5);

/// What the kernel calls this boot of this host. `None`: there is no /proc.
pub(super) fn this_host() -> Option<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32).map(u128::to_be_bytes)
}

impl Leasing {
    pub fn new(host: [u8; 16]) -> Leasing {
        Leasing { host, untold: Vec::new(), tokens: HashMap::new() }
    }

    pub fn connected(&mut self, seat: SeatId) {
        self.untold.push(seat);
    }

    /// Its token opens nothing any more; leases stay.
    pub fn down(&mut self, seat: SeatId) {
        self.untold.retain(|untold| *untold != seat);
        self.tokens.remove(&seat);
    }

    /// The connection that this token was made for. Takes as long for a wrong one as for a right one.
    fn seat_of(&self, words: [u64; 2]) -> Option<SeatId> {
        let differs = |token: &[u8; 16]| {
            let known = words_of(token);
            (known[0] ^ words[0]) | (known[1] ^ words[1])
        };
        self.tokens.iter().fold(None, |found, (seat, token)| if differs(token) == 0 { Some(*seat) } else { found })
    }
}

/// A token as FETCH carries it.
pub(super) fn words_of(token: &[u8; 16]) -> [u64; 2] {
    let all = u128::from_le_bytes(*token);
    [all as u64, (all >> 64) as u64]
}

impl Control {
    /// True if regions keep their files for other engines.
    pub(super) fn keeps_files(&self) -> bool {
        !self.listeners.is_empty() && self.peering.as_ref().is_some_and(|peering| peering.leasing.is_some())
    }

    /// Tells those peers that do not know it where memory of this engine is to be had.
    pub(super) fn tell_where(&mut self) {
        let Some(path) = self.listeners.first().and_then(|listener| listener.absolute_path()) else { return };
        let Some(leasing) = self.peering.as_mut().and_then(|peering| peering.leasing.as_mut()) else { return };
        let host = leasing.host;
        let mut told = Vec::new();
        for seat in std::mem::take(&mut leasing.untold) {
            let mut token = [0; 16];
            // Without random numbers nothing is mapped.
            if getrandom::fill(&mut token).is_ok() {
                leasing.tokens.insert(seat, token);
                told.push((seat, Here { host, token, path: path.clone() }));
            }
        }
        told.into_iter().for_each(|(seat, here)| self.command(Command::PeerHere { seat, here }));
    }

    /// The first message of somebody who says that he is an engine that has opened a region here.
    pub(super) fn fetch(&mut self, id: u64, question: &Message) {
        match self.may_fetch(id, question) {
            Ok((seat, number)) => {
                if let Some(attached) = self.sessions.get_mut(&id) {
                    attached.lease = Lease::Asked(Box::new(*question));
                }
                self.command(Command::PeerFetch { seat, number, session: id });
            }
            Err(refusal) => self.refuse_fetch(id, question, &refusal),
        }
    }

    fn may_fetch(&self, id: u64, question: &Message) -> Result<(SeatId, u32), Refusal> {
        let leasing = self.peering.as_ref().and_then(|peering| peering.leasing.as_ref());
        let leasing = leasing
            .ok_or_else(|| Refusal::new(Status::UNSUPPORTED, "this engine gives no memory to others (map_memory)"))?;
        if !self.sessions.get(&id).is_some_and(|session| session.peer.is_engines()) {
            return Err(Refusal::new(Status::NOT_ALLOWED, "only engines of the engine's own user get memory"));
        }
        let [low, high, number, ..] = question.args;
        let seat = leasing.seat_of([low, high]);
        let seat = seat.ok_or_else(|| Refusal::new(Status::NOT_ALLOWED, "no connection has this token"))?;
        let leases = self.sessions.values().filter(|session| !matches!(session.lease, Lease::None)).count();
        // The other half stays for clients.
        let leases_max = self.limits.sessions.min(self.limits.sessions_per_user) / 2;
        if leases >= leases_max {
            let text = format!("{leases_max} regions are mapped by other engines (half of limit sessions)");
            return Err(Refusal::new(Status::LIMIT_EXCEEDED, text));
        }
        let number = u32::try_from(number).map_err(|_| Refusal::new(Status::UNKNOWN_REGION, "no such number"))?;
        Ok((seat, number))
    }

    /// The poller has said which region it is.
    pub(super) fn peer_fetches(&mut self, id: u64, found: Option<(Arc<Region>, Rights)>) {
        let Some(attached) = self.sessions.get_mut(&id) else { return };
        let Lease::Asked(question) = std::mem::replace(&mut attached.lease, Lease::None) else { return };
        if let Err(refusal) = self.lease(id, &question, found) {
            self.refuse_fetch(id, &question, &refusal);
        }
    }

    fn lease(&mut self, id: u64, question: &Message, found: Option<(Arc<Region>, Rights)>) -> Result<(), Refusal> {
        // It may have been taken away since the poller looked: whoever does that sees leases, and not this.
        let is_there = |(region, _): &(Arc<Region>, Rights)| !region.is_withdrawn() && !region.is_lost();
        let (region, rights) = found.filter(is_there).ok_or_else(|| Refusal::new(Status::REGION_GONE, ""))?;
        let file = region.file_for(rights).map_err(|error| Refusal::new(Status::NO_MEMORY, error.to_string()))?;
        let file =
            file.ok_or_else(|| Refusal::new(Status::UNSUPPORTED, "memory without a file that others can map"))?;
        let Some(attached) = self.sessions.get_mut(&id) else { return Ok(()) };
        let answer = question.answer(Status::OK, [file.offset, region.bytes(), rights.bits(), 0, 0, 0, 0, 0]);
        // Before it can be mapped.
        attached.lease = Lease::Of(region);
        stats::add(&self.stats.attached.peer_files_given, 1);
        if attached.socket.send(&answer, &[file.file.as_fd()]).is_err() {
            self.detach(id, Status::BAD_MESSAGE);
        }
        Ok(())
    }

    fn refuse_fetch(&mut self, id: u64, question: &Message, refusal: &Refusal) {
        self.refuse(id, question, refusal);
        self.forget(id);
    }

    /// Who has the memory mapped.
    pub(super) fn leases_of(&self, memory: &Memory) -> Vec<u64> {
        let Some(region) = memory.mapped() else { return Vec::new() };
        let is_of = |lease: &Lease| matches!(lease, Lease::Of(leased) if Arc::ptr_eq(leased, region));
        self.sessions.iter().filter(|(_, session)| is_of(&session.lease)).map(|(id, _)| *id).collect()
    }

    /// The engine stops: leases that last for longer than that are not waited for.
    pub(super) fn limit_leases(&mut self, within: Duration) {
        let limit = Instant::now().checked_add(within.saturating_add(LEASE_WAIT));
        self.leases_end = match (self.leases_end, limit) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }

    /// Gives leases up that a stop does not wait for any longer, and says when to look again.
    pub(super) fn end_leases(&mut self) -> Option<Duration> {
        let left = self.leases_end?.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Some(left);
        }
        self.leases_end = None;
        let leases = self.sessions.iter().filter(|(_, session)| session.is_lease());
        for id in leases.map(|(id, _)| *id).collect::<Vec<_>>() {
            if let Some(Peer { pid, .. }) = self.sessions.get(&id).map(|session| session.peer) {
                tracing::warn!(pid, "the engine stops although another one has memory of it mapped");
            }
            self.forget(id);
        }
        // There may be nothing left to wait for.
        Some(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_opens_its_own_connection_as_long_as_that_lasts() {
        let mut leasing = Leasing::new([1; 16]);
        let (first, second) = (SeatId(1), SeatId(2));
        leasing.tokens.extend([(first, [1; 16]), (second, [2; 16])]);
        assert_eq!(leasing.seat_of(words_of(&[1; 16])), Some(first));
        assert_eq!(leasing.seat_of(words_of(&[2; 16])), Some(second));
        for byte in 0..16 {
            let mut token = [1; 16];
            token[byte] ^= 0x10;
            assert_eq!(leasing.seat_of(words_of(&token)), None, "byte {byte}");
        }
        leasing.down(first);
        assert_eq!(leasing.seat_of(words_of(&[1; 16])), None);
        assert_eq!(leasing.seat_of(words_of(&[0; 16])), None);
    }

    #[test]
    fn a_host_has_one_number() {
        assert!(this_host().is_some_and(|host| host != [0; 16] && this_host() == Some(host)));
    }
}
