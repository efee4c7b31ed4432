//! The thread "scatter-peer": one loop around epoll.

use super::config::Config;
use super::dialler::Dial;
use super::events::{Connected, Desk, Event, Events, Failure, Letter, Post};
use super::exchange::End;
use super::handshake::{Agreed, InitiatorStep, Local, ResponderStep, Role};
use super::listener::Listener;
use super::table::{Connection, Purpose, Socket, Stage, Table};
use super::{Counters, Endpoint, Identity, Keys, Refusal, StartError, VERBS, socket};
use crate::pace::Pace;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Everything that the thread has.
#[derive(Debug)]
pub(super) struct Thread {
    pub local: Local,
    pub keys: Option<Keys>,
    pub congestion: Option<String>,
    pub connections_max: usize,
    pub epoll: OwnedFd,
    pub desk: Desk,
    pub counters: Arc<Mutex<Counters>>,
    pub pace: Pace,
    pub start: Instant,
    pub listeners: Vec<Listener>,
    pub table: Table,
    pub dials: HashMap<Identity, Dial>,
    pub stopping: bool,
}

/// A thread that can run, and what others get of it.
pub(super) struct Prepared {
    pub thread: Thread,
    pub events: Events,
    pub post: Post,
    pub endpoint: Option<Endpoint>,
}

impl Thread {
    /// Makes everything that can fail.
    pub fn prepare(config: Config, counters: Arc<Mutex<Counters>>) -> Result<Prepared, StartError> {
        config.check()?;
        let system = |operation| move |source: io::Error| StartError::System { operation, source };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| system("epoll_create")(e.into()))?;
        let (desk, events) = Desk::new().map_err(system("eventfd"))?;
        epoll::add(&epoll, desk.bell(), EventData::new_u64(BELL), EventFlags::IN)
            .map_err(|e| system("epoll_ctl")(e.into()))?;
        let mut listeners = Vec::new();
        let mut bound = Vec::new();
        for address in &config.listen {
            let failed = |e: rustix::io::Errno| StartError::Listen { address: *address, source: e.into() };
            let fd = socket::listen(*address, config.congestion.as_deref()).map_err(failed)?;
            bound.push(socket::local_address(&fd).map_err(failed)?);
            let token = EventData::new_u64(LISTENERS | listeners.len() as u64);
            epoll::add(&epoll, &fd, token, EventFlags::IN).map_err(failed)?;
            listeners.push(Listener { fd, paused_until_ns: None });
        }
        let advertised = if config.advertise.is_empty() { &bound } else { &config.advertise };
        let is_everywhere = advertised.is_empty() || advertised.iter().any(|address| address.ip().is_unspecified());
        let key = config.keys.as_ref().and_then(|keys| keys.nth(0)).map(super::Key::id);
        let endpoint = match is_everywhere {
            true => None,
            false => Some(Endpoint::new(config.identity, key, advertised)?),
        };
        let thread = Thread {
            local: config.local(),
            keys: config.keys,
            congestion: config.congestion,
            connections_max: config.connections_max,
            epoll,
            counters,
            pace: Pace::new(),
            start: Instant::now(),
            listeners,
            table: Table::default(),
            dials: HashMap::new(),
            stopping: false,
            desk,
        };
        Ok(Prepared { post: thread.desk.post(), thread, events, endpoint })
    }

    pub fn run(mut self) {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 64];
        while !self.stopping {
            let timeout = self.keep_time();
            // An interrupted wait found nothing.
            let n = epoll::wait(&self.epoll, &mut events, timeout.as_ref()).unwrap_or(0);
            for event in events.get(..n).unwrap_or_default() {
                match event.data.u64() {
                    BELL => self.read_letters(),
                    token if token & LISTENERS != 0 => self.accept((token & !LISTENERS) as usize),
                    number => self.on_socket(number),
                }
            }
        }
        let all: Vec<u64> = self.table.sockets.keys().copied().collect();
        for number in all {
            self.refuse(number, Refusal::Stopping);
        }
    }

    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Ends what is too late and dials what is due; then how long there is nothing to do.
    fn keep_time(&mut self) -> Option<Timespec> {
        loop {
            let now_ns = self.now_ns();
            let (sockets, connections) = self.table.late(now_ns);
            sockets.into_iter().for_each(|number| self.socket_failed(number, Failure::TimedOut));
            connections.into_iter().for_each(|number| self.connection_failed(number, Failure::TimedOut));
            self.resume_listeners(now_ns);
            self.dial_due(now_ns);
            let next_ns = self.table.next_deadline_ns().min(self.next_dial_ns()).min(self.next_resume_ns());
            if next_ns == u64::MAX {
                return None;
            }
            let wait_ns = next_ns.saturating_sub(self.now_ns());
            if wait_ns > 0 {
                let (seconds, ns) = (wait_ns / 1_000_000_000, wait_ns % 1_000_000_000);
                return Some(Timespec { tv_sec: seconds as i64, tv_nsec: ns as i64 });
            }
        }
    }

    fn read_letters(&mut self) {
        self.desk.silence();
        while let Some(letter) = self.desk.letter() {
            match letter {
                Letter::Connect(endpoint) => self.want(endpoint),
                Letter::Forget(identity) => self.forget(identity),
                Letter::Settled(epoch) => self.dials_succeeded(epoch),
                Letter::Ended { epoch, is_settled } => self.connection_ended(epoch, is_settled),
                Letter::Stop => self.stopping = true,
            }
        }
    }

    /// Something happened on a socket, or on one that waits for the other lanes: nothing may come there yet but an end.
    fn on_socket(&mut self, number: u64) {
        if let Some(mut socket) = self.table.sockets.remove(&number) {
            match self.drive(number, &mut socket) {
                Ok(()) if socket.has_joined && socket.output().is_empty() => self.lane_ready(socket),
                Ok(()) => self.watch(number, socket),
                Err(failure) => self.failed(socket, failure),
            }
        } else if self.table.connections.get(&number).is_some_and(|connection| !connection.is_given) {
            self.connection_failed(number, Failure::Closed);
        }
    }

    /// Sends and receives until one of both has to wait. It ends: no handshake has more than a few hundred bytes.
    fn drive(&mut self, number: u64, socket: &mut Socket) -> Result<(), Failure> {
        if matches!(socket.stage, Stage::Connecting) {
            if !socket::connected(&socket.fd)? {
                return Ok(());
            }
            self.begin_side(number, socket)?;
        }
        loop {
            while !socket.output().is_empty() {
                match socket::send(&socket.fd, socket.output())? {
                    0 => return Ok(()),
                    sent => socket.sent(sent),
                }
            }
            let (fd, room) = socket.room();
            if room.is_empty() {
                return Ok(());
            }
            match socket::receive(fd, room)? {
                None => return Ok(()),
                Some(0) => return Err(Failure::Closed),
                Some(bytes) => self.on_bytes(number, socket, bytes)?,
            }
        }
    }

    fn on_bytes(&mut self, number: u64, socket: &mut Socket, bytes: usize) -> Result<(), Failure> {
        let now_ns = self.now_ns();
        match &mut socket.stage {
            Stage::Connecting => Ok(()),
            Stage::Initiating(side) => match side.filled(bytes, now_ns)? {
                InitiatorStep::Wait => Ok(()),
                InitiatorStep::Greeted(identity) => {
                    if self.may_prove(identity, number, socket.purpose) {
                        side.prove();
                        return Ok(());
                    }
                    Err(Failure::Abandoned)
                }
                InitiatorStep::Agreed(agreed) => {
                    self.begin_connection(number, socket, agreed);
                    Ok(())
                }
            },
            Stage::Responding(side) => match side.filled(bytes, self.keys.as_ref(), now_ns)? {
                ResponderStep::Wait => Ok(()),
                ResponderStep::Proven(identity) => match self.admit_peer(identity, number) {
                    Ok(()) => {
                        let agreed = side.accept()?;
                        self.begin_connection(number, socket, agreed);
                        Ok(())
                    }
                    Err(refusal) => Err(side.refuse(refusal).into()),
                },
                ResponderStep::Join(claim) => match self.table.connection_of(claim) {
                    Some((connection, session)) => {
                        side.admit(&session)?;
                        self.claim_lane(socket, connection, claim.lane);
                        Ok(())
                    }
                    None => Err(side.refuse(Refusal::NoLane).into()),
                },
            },
            Stage::Joining(side) => {
                socket.has_joined = side.filled(bytes, now_ns)?;
                Ok(())
            }
        }
    }

    /// The first socket is proven: it is lane 0.
    fn begin_connection(&mut self, number: u64, socket: &mut Socket, agreed: Agreed) {
        let dialled = if let Purpose::Dial(identity) = socket.purpose { Some(identity) } else { None };
        let lanes = (0..agreed.limits.lanes).map(|_| None).collect();
        self.relink_dials(agreed.identity, dialled, number);
        let connection = Connection {
            agreed,
            dialled,
            peer: socket.peer,
            lanes,
            claimed: 1,
            deadline_ns: socket.deadline_ns,
            is_given: false,
        };
        self.table.connections.insert(number, connection);
        socket.purpose = Purpose::Lane { connection: number, lane: 0 };
        socket.has_joined = true;
    }

    /// A socket has become a lane. The first makes the initiator open the others; the last makes the connection whole.
    fn lane_ready(&mut self, socket: Socket) {
        let Purpose::Lane { connection: number, lane } = socket.purpose else { return };
        let Some(connection) = self.table.connections.get_mut(&number) else { return };
        // Whichever lane ends before all are there ends the connection.
        let token = EventData::new_u64(number);
        if let Err(errno) = epoll::modify(&self.epoll, &socket.fd, token, EventFlags::RDHUP) {
            return self.connection_failed(number, errno.into());
        }
        if let Some(place) = connection.lanes.get_mut(usize::from(lane)) {
            *place = Some(socket.fd);
        }
        if connection.lanes.iter().all(Option::is_some) {
            self.give_out(number);
        } else if lane == 0 && connection.agreed.role == Role::Initiator {
            self.open_lanes(number);
        }
    }

    fn give_out(&mut self, number: u64) {
        let Some(connection) = self.table.connections.get_mut(&number) else { return };
        let sockets: Vec<OwnedFd> = connection.lanes.drain(..).flatten().collect();
        for fd in &sockets {
            // It was added.
            let _ = epoll::delete(&self.epoll, fd);
        }
        connection.is_given = true;
        let (agreed, dialled, peer) = (connection.agreed.clone(), connection.dialled, connection.peer);
        self.table.given += 1;
        self.count(|counters| counters.connected += 1);
        // Else that is known when the two have found out what they have to.
        if agreed.features & VERBS == 0 {
            self.dials_succeeded(number);
        }
        if let Some(unsaid) = self.pace.next(Instant::now()) {
            let Agreed { identity, epoch, role, .. } = agreed;
            let lanes = sockets.len();
            tracing::info!(peer = %identity, address = %peer, epoch, ?role, lanes, unsaid, "peer connected");
        }
        self.desk.give(Event::Connected(Box::new(Connected::new(agreed, dialled, sockets, self.desk.post()))));
    }

    /// The engine has let go of a connection that it was given.
    fn connection_ended(&mut self, epoch: u64, is_settled: bool) {
        self.table.given = self.table.given.saturating_sub(1);
        self.count(|counters| counters.lost += 1);
        // One that was superseded is gone from the table already.
        if let Some(connection) = self.table.connections.remove(&epoch) {
            self.dials_lost(epoch, (!is_settled).then_some(Failure::Unsettled));
            if let Some(unsaid) = self.pace.next(Instant::now()) {
                tracing::info!(peer = %connection.agreed.identity, epoch, unsaid, "peer lost");
            }
        }
    }

    /// A connection that was not together yet will not be.
    pub fn connection_failed(&mut self, number: u64, failure: Failure) {
        if self.table.connections.remove(&number).is_none() {
            return;
        }
        self.count(|counters| counters.count(failure));
        self.table.lanes_of(number).into_iter().for_each(|lane| drop(self.table.sockets.remove(&lane)));
        self.dials_lost(number, Some(failure));
    }

    pub fn socket_failed(&mut self, number: u64, failure: Failure) {
        if let Some(socket) = self.table.sockets.remove(&number) {
            self.failed(socket, failure);
        }
    }

    /// Ends a socket that is answering, with a reason.
    pub fn refuse(&mut self, number: u64, refusal: Refusal) {
        let Some(mut socket) = self.table.sockets.remove(&number) else { return };
        let failure = match &mut socket.stage {
            Stage::Responding(side) => side.refuse(refusal).into(),
            _ => Failure::Abandoned,
        };
        self.failed(socket, failure);
    }

    /// A socket is of no use any more. It is closed when it has said why, if it can say so at once.
    fn failed(&mut self, socket: Socket, failure: Failure) {
        // First, so that who sees a refusal, or a socket's end, finds it counted. A lane's counts with its connection.
        if !matches!(socket.purpose, Purpose::Lane { .. }) {
            self.count(|counters| counters.count(failure));
        }
        if matches!(failure, Failure::Refused(End::Ours(_))) {
            // Who does not read it does not learn it.
            let _ = socket::send(&socket.fd, socket.output());
            socket::finish(&socket.fd);
        }
        match socket.purpose {
            Purpose::Inbound => self.say_refused(socket.peer, failure),
            Purpose::Dial(identity) => self.attempt_failed(identity, failure),
            Purpose::Lane { connection, .. } => self.connection_failed(connection, failure),
        }
    }

    fn say_refused(&mut self, address: SocketAddr, failure: Failure) {
        if let Some(unsaid) = self.pace.next(Instant::now()) {
            tracing::warn!(%address, reason = %failure, unsaid, "no connection with who came from there");
        }
    }

    /// Waits for what the socket needs next.
    pub fn watch(&mut self, number: u64, socket: Socket) {
        let is_sending = matches!(socket.stage, Stage::Connecting) || !socket.output().is_empty();
        let flags = if is_sending { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        match epoll::modify(&self.epoll, &socket.fd, EventData::new_u64(number), flags) {
            Ok(()) => drop(self.table.sockets.insert(number, socket)),
            Err(errno) => self.failed(socket, errno.into()),
        }
    }

    pub fn count(&self, how: impl FnOnce(&mut Counters)) {
        how(&mut self.counters.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

const BELL: u64 = 0;
/// Marks the tokens of listeners.
pub(super) const LISTENERS: u64 = 1 << 63;
