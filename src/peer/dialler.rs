//! Who is wanted: dialling, one address after the other, and not too often.

use super::config::is_loopback;
use super::events::{Event, Failure};
use super::exchange::End;
use super::handshake::{Initiator, Joiner};
use super::listener::nonce;
use super::table::{Purpose, Socket, Stage};
use super::thread::Thread;
use super::{Endpoint, Identity, Refusal, socket};
use rustix::event::epoll::{self, EventData, EventFlags};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// An engine that is wanted.
#[derive(Debug)]
pub(super) struct Dial {
    endpoint: Endpoint,
    state: State,
    /// Rounds through all addresses without a connection.
    rounds: u32,
    /// Those of them that failed, and did not just meet another connection.
    failures: u32,
    /// Which address is next.
    address: usize,
    /// Which key is next: 0, or 1 when the other was refused.
    key: usize,
    last: Failure,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting {
        until_ns: u64,
    },
    Trying,
    /// There is a connection of this number, or it is put together.
    Connected(u64),
}

impl Thread {
    pub fn want(&mut self, endpoint: Endpoint) {
        let identity = endpoint.identity();
        let now_ns = self.now_ns();
        let unreachable = |refusal| {
            let failure = End::Ours(refusal).into();
            Event::Unreachable { identity, failure, retry_in: None }
        };
        if identity == self.local.identity {
            return self.desk.give(unreachable(Refusal::OwnIdentity));
        }
        if let Some(dial) = self.dials.get_mut(&identity) {
            dial.endpoint = endpoint;
            if let Some(event) = dial.down(now_ns) {
                self.desk.give(event);
            }
            return;
        }
        if self.dials.len() >= self.connections_max {
            return self.desk.give(unreachable(Refusal::TooMany));
        }
        let connection = self.table.connection_to(identity).map(|(number, _)| State::Connected(number));
        let state = connection.unwrap_or(State::Waiting { until_ns: now_ns });
        let dial = Dial { endpoint, state, rounds: 0, failures: 0, address: 0, key: 0, last: Failure::Abandoned };
        self.dials.insert(identity, dial);
    }

    pub fn forget(&mut self, identity: Identity) {
        if self.dials.remove(&identity).is_none() {
            return;
        }
        let sockets = self.table.sockets.iter().filter(|(_, socket)| socket.purpose == Purpose::Dial(identity));
        let sockets: Vec<u64> = sockets.map(|(number, _)| *number).collect();
        sockets.into_iter().for_each(|number| self.socket_failed(number, Failure::Abandoned));
        let pending = self.table.connections.iter().filter(|(_, c)| !c.is_given && c.dialled == Some(identity));
        let pending: Vec<u64> = pending.map(|(number, _)| *number).collect();
        pending.into_iter().for_each(|number| self.connection_failed(number, Failure::Abandoned));
    }

    pub fn next_dial_ns(&self) -> u64 {
        self.dials.values().map(Dial::due_ns).min().unwrap_or(u64::MAX)
    }

    pub fn dial_due(&mut self, now_ns: u64) {
        let due = self.dials.iter().filter(|(_, dial)| dial.due_ns() <= now_ns);
        let due: Vec<Identity> = due.map(|(identity, _)| *identity).collect();
        for identity in due {
            let Some(dial) = self.dials.get_mut(&identity) else { continue };
            let address = dial.endpoint.addresses().get(dial.address).copied();
            dial.state = State::Trying;
            let deadline_ns = now_ns.saturating_add(CONNECT_NS);
            let opened = match address {
                // The endpoint was changed under way: the next round begins at its start.
                None => Err(Failure::Abandoned),
                Some(address) => self.open(address, Purpose::Dial(identity), deadline_ns),
            };
            if let Err(failure) = opened {
                self.attempt_failed(identity, failure);
            }
        }
    }

    /// Opens the sockets that join a connection after its first.
    pub fn open_lanes(&mut self, number: u64) {
        let Some(connection) = self.table.connections.get(&number) else { return };
        let (peer, deadline_ns) = (connection.peer, connection.deadline_ns);
        for lane in 1..connection.agreed.limits.lanes {
            if let Err(failure) = self.open(peer, Purpose::Lane { connection: number, lane }, deadline_ns) {
                return self.connection_failed(number, failure);
            }
        }
    }

    fn open(&mut self, peer: SocketAddr, purpose: Purpose, deadline_ns: u64) -> Result<(), Failure> {
        if self.keys.is_none() && !is_loopback(peer.ip()) {
            return Err(Failure::NeedsKey);
        }
        let fd = socket::connect(peer, self.congestion.as_deref())?;
        let number = self.table.number();
        epoll::add(&self.epoll, &fd, EventData::new_u64(number), EventFlags::OUT)?;
        let socket = Socket { fd, stage: Stage::Connecting, purpose, peer, deadline_ns, has_joined: false };
        self.table.sockets.insert(number, socket);
        Ok(())
    }

    /// A socket has connected: it says HELLO, or JOIN.
    pub fn begin_side(&mut self, number: u64, socket: &mut Socket) -> Result<(), Failure> {
        let now_ns = self.now_ns();
        match socket.purpose {
            Purpose::Inbound => {}
            Purpose::Dial(identity) => {
                let keys = self.keys.as_ref();
                let key = keys.and_then(|keys| keys.nth(self.dials.get(&identity).map_or(0, |dial| dial.key)));
                let side = Initiator::new(&self.local, key, number, nonce()?, now_ns);
                socket.deadline_ns = side.deadline_ns();
                socket.stage = Stage::Initiating(Box::new(side));
            }
            Purpose::Lane { connection, lane } => {
                let connection = self.table.connections.get(&connection).ok_or(Failure::Abandoned)?;
                let side = Joiner::new(&connection.agreed, &self.local, lane, connection.deadline_ns);
                socket.stage = Stage::Joining(Box::new(side));
            }
        }
        Ok(())
    }

    /// Whether to go on with an engine that was dialled and answers: not if there is a connection to it, or will be.
    pub fn may_prove(&mut self, identity: Identity, number: u64, purpose: Purpose) -> bool {
        let Some((connection, _)) = self.table.connection_to(identity) else {
            return !self.table.is_committed_to(identity, number);
        };
        if let Purpose::Dial(dialled) = purpose
            && let Some(dial) = self.dials.get_mut(&dialled)
        {
            dial.state = State::Connected(connection);
            if dialled != identity {
                self.desk.give(Event::Known { dialled, identity });
            }
        }
        false
    }

    /// One attempt at one address came to nothing.
    pub fn attempt_failed(&mut self, identity: Identity, failure: Failure) {
        let now_ns = self.now_ns();
        let has_second_key = self.keys.as_ref().is_some_and(|keys| keys.nth(1).is_some());
        let Some(dial) = self.dials.get_mut(&identity) else { return };
        if matches!(dial.state, State::Connected(_)) {
            return;
        }
        dial.state = State::Waiting { until_ns: now_ns };
        match failure {
            Failure::Refused(End::Theirs(Refusal::KeyUnknown)) if has_second_key && dial.key == 0 => {
                dial.key = 1;
                return;
            }
            // Nothing is wrong with that engine: it keeps, or this one does, another connection.
            Failure::Abandoned | Failure::Refused(End::Theirs(Refusal::Crossed)) => {
                dial.start_over(now_ns);
                return;
            }
            failure => dial.last = failure,
        }
        dial.address += 1;
        dial.key = 0;
        if dial.address < dial.endpoint.addresses().len() {
            return;
        }
        let was_down = dial.is_down();
        let is_lasting = matches!(failure, Failure::NeedsKey)
            || matches!(failure, Failure::Refused(End::Ours(refusal) | End::Theirs(refusal)) if refusal.is_lasting());
        dial.failures = dial.failures.saturating_add(1).max(if is_lasting { DOWN_AFTER } else { 0 });
        dial.start_over(now_ns);
        if let Some(event) = dial.down(now_ns).filter(|_| !was_down) {
            self.desk.give(event);
            if let Some(unsaid) = self.pace.next(Instant::now()) {
                tracing::warn!(peer = %identity, reason = %failure, unsaid, "peer cannot be reached");
            }
        }
    }

    /// A connection begins: whoever wants that engine has it.
    pub fn relink_dials(&mut self, identity: Identity, dialled: Option<Identity>, number: u64) {
        for wanted in [Some(identity), dialled].into_iter().flatten() {
            if let Some(dial) = self.dials.get_mut(&wanted) {
                dial.state = State::Connected(number);
            }
        }
    }

    /// Another connection takes the place of one.
    pub fn dials_moved(&mut self, old: u64, new: u64) {
        for dial in self.dials.values_mut().filter(|dial| dial.state == State::Connected(old)) {
            dial.state = State::Connected(new);
        }
    }

    /// A connection is whole, and nothing about it is left to be found out.
    pub fn dials_succeeded(&mut self, number: u64) {
        for dial in self.dials.values_mut().filter(|dial| dial.state == State::Connected(number)) {
            (dial.rounds, dial.failures) = (0, 0);
        }
    }

    /// A connection is gone: by a failure while it was put together, or after it was.
    pub fn dials_lost(&mut self, number: u64, failure: Option<Failure>) {
        let now_ns = self.now_ns();
        let mut failed = Vec::new();
        for (identity, dial) in self.dials.iter_mut().filter(|(_, dial)| dial.state == State::Connected(number)) {
            match failure {
                None => dial.start_over(now_ns),
                Some(failure) => {
                    dial.state = State::Trying;
                    failed.push((*identity, failure));
                }
            }
        }
        failed.into_iter().for_each(|(identity, failure)| self.attempt_failed(identity, failure));
    }
}

impl Dial {
    fn is_down(&self) -> bool {
        self.failures >= DOWN_AFTER
    }

    /// What a request is answered while this engine is known to be unreachable.
    fn down(&self, now_ns: u64) -> Option<Event> {
        let identity = self.endpoint.identity();
        let wait_ns = self.due_ns().saturating_sub(now_ns);
        let retry_in = Some(Duration::from_nanos(if self.state == State::Trying { 0 } else { wait_ns }));
        let is_connected = matches!(self.state, State::Connected(_));
        (self.is_down() && !is_connected).then_some(Event::Unreachable { identity, failure: self.last, retry_in })
    }

    fn due_ns(&self) -> u64 {
        if let State::Waiting { until_ns } = self.state { until_ns } else { u64::MAX }
    }

    /// The next attempt is at the first address, after a pause.
    fn start_over(&mut self, now_ns: u64) {
        (self.address, self.key) = (0, 0);
        self.rounds = self.rounds.saturating_add(1);
        self.state = State::Waiting { until_ns: now_ns.saturating_add(pause_ns(self.rounds, random())) };
    }
}

/// How long to wait after so many rounds: twice as long each time, and up to half of it less, so that engines which
/// lost each other at one moment do not all come back at one moment.
fn pause_ns(rounds: u32, random: u64) -> u64 {
    let doublings = rounds.saturating_sub(1).min(20);
    let longest_ns = (PAUSE_MIN_NS << doublings).min(PAUSE_MAX_NS);
    longest_ns / 2 + random % (longest_ns / 2)
}

fn random() -> u64 {
    // Without random numbers engines may come at one moment, and that is all.
    getrandom::u64().unwrap_or(0)
}

/// How long connecting to one address may take.
const CONNECT_NS: u64 = 1_000_000_000;
const PAUSE_MIN_NS: u64 = 100_000_000;
const PAUSE_MAX_NS: u64 = 30_000_000_000;
/// After so many rounds an engine is called unreachable: whoever asks for it need not wait.
const DOWN_AFTER: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_from_a_tenth_of_a_second_to_thirty_seconds_less_up_to_half() {
        for (failures, longest_ms) in
            [(0, 100), (1, 100), (2, 200), (3, 400), (9, 25_600), (10, 30_000), (4000, 30_000)]
        {
            assert_eq!(pause_ns(failures, 0), longest_ms * 500_000);
            let longest_ns = (0..1000).map(|n| pause_ns(failures, n * longest_ms * 500)).max().unwrap();
            assert!(longest_ns < longest_ms * 1_000_000 && longest_ns > longest_ms * 990_000, "{longest_ns}");
        }
    }
}
