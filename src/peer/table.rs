//! What the peer thread keeps account of: sockets under way, and connections.

use super::handshake::{Agreed, Initiator, Joiner, Responder};
use super::{Identity, Role};
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Sockets under way and connections, by numbers that are never used twice. A connection's number is that of its first
/// socket, and its epoch on this side.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub sockets: BTreeMap<u64, Socket>,
    pub connections: BTreeMap<u64, Connection>,
    /// Connections given out that have not been given back, superseded ones too.
    pub given: usize,
    last: u64,
}

/// A socket that is not yet, or not yet wholly, part of a connection.
#[derive(Debug)]
pub(super) struct Socket {
    pub fd: OwnedFd,
    pub stage: Stage,
    pub purpose: Purpose,
    pub peer: SocketAddr,
    pub deadline_ns: u64,
    /// It has joined its connection as soon as its output is sent.
    pub has_joined: bool,
}

#[derive(Debug)]
pub(super) enum Stage {
    Connecting,
    Initiating(Box<Initiator>),
    Responding(Box<Responder>),
    Joining(Box<Joiner>),
}

/// Who is concerned if a socket fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Nobody: a stranger came.
    Inbound,
    /// Who wants this engine.
    Dial(Identity),
    /// A connection of this number.
    Lane { connection: u64, lane: u16 },
}

/// A connection whose first socket is proven.
#[derive(Debug)]
pub(super) struct Connection {
    pub agreed: Agreed,
    /// The engine that was asked for, if this side dialled.
    pub dialled: Option<Identity>,
    /// Where its first socket went, or came from.
    pub peer: SocketAddr,
    /// Its sockets by lane, while it is put together.
    pub lanes: Vec<Option<OwnedFd>>,
    /// Lanes that a socket has, or is about to have: one bit each.
    pub claimed: u32,
    /// When it must be together.
    pub deadline_ns: u64,
    pub is_given: bool,
}

impl Table {
    /// A number for a socket.
    pub fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Sockets of strangers.
    pub fn unproven(&self) -> usize {
        self.sockets.values().filter(|socket| socket.purpose == Purpose::Inbound).count()
    }

    /// True if there can be no more connections. One to `except` does not count: it would be replaced.
    pub fn is_full(&self, connections_max: usize, except: Identity) -> bool {
        let pending = self.connections.values().filter(|c| !c.is_given && c.agreed.identity != except).count();
        self.given + pending >= connections_max
    }

    /// The connection to that engine, and its number.
    pub fn connection_to(&self, identity: Identity) -> Option<(u64, &Connection)> {
        let (number, connection) = self.connections.iter().find(|(_, c)| c.agreed.identity == identity)?;
        Some((*number, connection))
    }

    /// True if that engine may have, or may come to have, a connection that this side initiated and will keep.
    /// `except`: a socket that is not meant.
    pub fn is_committed_to(&self, identity: Identity, except: u64) -> bool {
        let connected = self.connection_to(identity).is_some_and(|(_, c)| c.agreed.role == Role::Initiator);
        connected || self.sockets.iter().any(|(number, socket)| *number != except && socket.is_committed_to(identity))
    }

    /// Sockets that were dialled to reach that engine.
    pub fn dialled_to(&self, identity: Identity) -> Vec<u64> {
        let is_for = |socket: &Socket| match socket.purpose {
            Purpose::Dial(dialled) => dialled == identity || socket.answers() == Some(identity),
            _ => false,
        };
        self.sockets.iter().filter(|(_, socket)| is_for(socket)).map(|(number, _)| *number).collect()
    }

    /// Sockets that belong to a connection that is put together.
    pub fn lanes_of(&self, number: u64) -> Vec<u64> {
        let is_lane =
            |socket: &Socket| matches!(socket.purpose, Purpose::Lane { connection, .. } if connection == number);
        self.sockets.iter().filter(|(_, socket)| is_lane(socket)).map(|(number, _)| *number).collect()
    }

    /// What is too late at `now_ns`: sockets, then connections that are not together.
    pub fn late(&self, now_ns: u64) -> (Vec<u64>, Vec<u64>) {
        let sockets = self.sockets.iter().filter(|(_, socket)| socket.deadline_ns <= now_ns);
        let connections = self.connections.iter().filter(|(_, c)| !c.is_given && c.deadline_ns <= now_ns);
        (sockets.map(|(number, _)| *number).collect(), connections.map(|(number, _)| *number).collect())
    }

    /// The next deadline, `u64::MAX` for none.
    pub fn next_deadline_ns(&self) -> u64 {
        let sockets = self.sockets.values().map(|socket| socket.deadline_ns);
        let pending = self.connections.values().filter(|c| !c.is_given).map(|c| c.deadline_ns);
        sockets.chain(pending).min().unwrap_or(u64::MAX)
    }
}

impl Socket {
    fn is_committed_to(&self, identity: Identity) -> bool {
        matches!(&self.stage, Stage::Initiating(side) if side.is_committed() && side.peer() == Some(identity))
    }

    fn answers(&self) -> Option<Identity> {
        if let Stage::Initiating(side) = &self.stage { side.peer() } else { None }
    }

    /// Bytes to be sent.
    pub fn output(&self) -> &[u8] {
        match &self.stage {
            Stage::Connecting => &[],
            Stage::Initiating(side) => side.output(),
            Stage::Responding(side) => side.output(),
            Stage::Joining(side) => side.output(),
        }
    }

    /// So many of them have been sent.
    pub fn sent(&mut self, bytes: usize) {
        match &mut self.stage {
            Stage::Connecting => {}
            Stage::Initiating(side) => side.sent(bytes),
            Stage::Responding(side) => side.sent(bytes),
            Stage::Joining(side) => side.sent(bytes),
        }
    }

    /// The socket, and where what it receives goes.
    pub fn room(&mut self) -> (&OwnedFd, &mut [u8]) {
        let room = match &mut self.stage {
            Stage::Connecting => &mut [],
            Stage::Initiating(side) => side.room(),
            Stage::Responding(side) => side.room(),
            Stage::Joining(side) => side.room(),
        };
        (&self.fd, room)
    }
}

impl Connection {
    /// True if there is a lane of that number and no socket has it, or is about to.
    pub fn is_free(&self, lane: u16) -> bool {
        usize::from(lane) < self.lanes.len() && self.claimed & bit(lane) == 0
    }

    /// Takes a lane for a socket.
    pub fn claim(&mut self, lane: u16) {
        self.claimed |= bit(lane);
    }
}

fn bit(lane: u16) -> u32 {
    1u32.checked_shl(lane.into()).unwrap_or(0)
}
