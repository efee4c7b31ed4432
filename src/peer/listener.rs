//! Who comes: accepting, and what a stranger may become.

use super::events::{Event, Failure};
use super::handshake::{Responder, SessionKey};
use super::table::{Purpose, Socket, Stage, Table};
use super::thread::{LISTENERS, Thread};
use super::wire::JoinClaim;
use super::{Identity, Refusal, Role, socket};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::net::SocketAddr;
use std::time::Instant;

/// A listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    pub fd: OwnedFd,
    /// Set while there is no use in accepting.
    pub paused_until_ns: Option<u64>,
}

impl Thread {
    /// Takes who waits; epoll comes back for more, so that a flood does not keep the others out.
    pub fn accept(&mut self, at: usize) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = self.listeners.get(at) else { return };
            match socket::accept(&listener.fd) {
                Ok(None) => return,
                Ok(Some(fd)) => self.greet(fd),
                Err(_) => return self.pause(at),
            }
        }
    }

    fn greet(&mut self, fd: OwnedFd) {
        // One that is gone already has no address.
        let Some(peer) = socket::peer_address(&fd).filter(|_| socket::settle(&fd).is_ok()) else { return };
        if self.table.unproven() >= UNPROVEN_MAX {
            self.count(|counters| counters.over_cap += 1);
            return self.turn_away(&fd, peer);
        }
        let Ok(nonce) = nonce() else { return self.turn_away(&fd, peer) };
        let number = self.table.number();
        let side = Box::new(Responder::new(&self.local, number, nonce, self.now_ns()));
        let deadline_ns = side.deadline_ns();
        let stage = Stage::Responding(side);
        if epoll::add(&self.epoll, &fd, EventData::new_u64(number), EventFlags::IN).is_err() {
            return self.turn_away(&fd, peer);
        }
        let socket = Socket { fd, stage, purpose: Purpose::Inbound, peer, deadline_ns, has_joined: false };
        self.table.sockets.insert(number, socket);
    }

    fn turn_away(&mut self, fd: &OwnedFd, address: SocketAddr) {
        // An empty socket has room for it.
        let _ = socket::send(fd, &Refusal::TooMany.to_bytes(self.local.version));
        socket::finish(fd);
        if let Some(unsaid) = self.pace.next(Instant::now()) {
            tracing::warn!(%address, unsaid, "turned away: too many connections have not proven themselves");
        }
    }

    /// Whether an engine that has proven itself gets a connection. Then nothing else is left of the two engines: see
    /// the rule at the head of the [module](super).
    pub fn admit_peer(&mut self, identity: Identity, number: u64) -> Result<(), Refusal> {
        if self.stopping {
            return Err(Refusal::Stopping);
        }
        if self.local.identity < identity && self.table.is_committed_to(identity, number) {
            return Err(Refusal::Crossed);
        }
        if self.table.is_full(self.connections_max, identity) {
            return Err(Refusal::TooMany);
        }
        while let Some((old, connection)) = self.table.connection_to(identity) {
            if connection.is_given {
                self.table.connections.remove(&old);
                self.dials_moved(old, number);
                self.desk.give(Event::Superseded { identity, epoch: old });
            } else {
                self.connection_failed(old, Failure::Abandoned);
            }
        }
        for dialled in self.table.dialled_to(identity) {
            self.socket_failed(dialled, Failure::Abandoned);
        }
        Ok(())
    }

    /// A socket that has proven that it belongs to a connection becomes a lane of it.
    pub fn claim_lane(&mut self, socket: &mut Socket, number: u64, lane: u16) {
        if let Some(connection) = self.table.connections.get_mut(&number) {
            connection.claim(lane);
        }
        socket.purpose = Purpose::Lane { connection: number, lane };
        socket.has_joined = true;
    }

    /// No file descriptors, or no memory: the same connection would be reported again and again.
    fn pause(&mut self, at: usize) {
        self.count(|counters| counters.not_accepted += 1);
        let until_ns = self.now_ns().saturating_add(PAUSE_NS);
        if let Some(listener) = self.listeners.get_mut(at) {
            listener.paused_until_ns = Some(until_ns);
            listen_for(&self.epoll, listener, at, EventFlags::empty());
        }
    }

    pub fn resume_listeners(&mut self, now_ns: u64) {
        for (at, listener) in self.listeners.iter_mut().enumerate() {
            if listener.paused_until_ns.is_some_and(|until_ns| until_ns <= now_ns) {
                listener.paused_until_ns = None;
                listen_for(&self.epoll, listener, at, EventFlags::IN);
            }
        }
    }

    pub fn next_resume_ns(&self) -> u64 {
        self.listeners.iter().filter_map(|listener| listener.paused_until_ns).min().unwrap_or(u64::MAX)
    }
}

impl Table {
    /// The connection that a JOIN means, if it waits for that lane, and what proves that.
    pub fn connection_of(&self, claim: JoinClaim) -> Option<(u64, SessionKey)> {
        let (number, connection) = self.connections.iter().find(|(_, connection)| {
            let agreed = &connection.agreed;
            let is_meant = agreed.identity == claim.identity && agreed.peer_epoch == claim.epoch;
            let has_room = agreed.limits.lanes == claim.lanes && connection.is_free(claim.lane);
            is_meant && has_room && agreed.role == Role::Responder && !connection.is_given
        })?;
        Some((*number, connection.agreed.session.clone()))
    }
}

/// Random bytes for one handshake.
pub(super) fn nonce() -> Result<[u8; 32], Failure> {
    let mut nonce = [0; 32];
    let failed = |error: getrandom::Error| Failure::System(error.raw_os_error().unwrap_or(0));
    getrandom::fill(&mut nonce).map_err(failed).map(|()| nonce)
}

fn listen_for(epoll: &OwnedFd, listener: &Listener, at: usize, flags: EventFlags) {
    // It was added; a change needs no memory.
    let _ = epoll::modify(epoll, &listener.fd, EventData::new_u64(LISTENERS | at as u64), flags);
}

/// Sockets that may be here without having proven anything (R38).
const UNPROVEN_MAX: usize = 64;
const ACCEPTS_PER_TURN: usize = 64;
const PAUSE_NS: u64 = 100_000_000;
