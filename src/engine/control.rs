//! The control thread: everything about clients that is not work.

use super::admit::Peer;
use super::config::{Config, Limits};
use super::exports::{Answer, Closing, Export, Held};
use super::leases::{LEASE, Lease};
use super::mail::{Command, ControlHandle, Event, Inbox, Letter, Outbox, Request, Watcher, ring_bell};
use super::memory::Memory;
use super::peers::Peering;
use super::session::Shown;
use crate::attach::{AttachError, Received, Socket};
use crate::pace::Pace;
use crate::region::{HandleTable, Trust};
use crate::stats::Stats;
use ring_abi::{Kind, Message, NO_ANSWER, Status};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// A client as the control thread has it.
pub(super) struct Attached {
    pub(super) socket: Socket,
    since: Instant,
    /// HELLO was answered: the poller has the session.
    pub(super) greeted: bool,
    detaching: bool,
    pub(super) peer: Peer,
    /// Entries of its smaller ring, and of its completion ring.
    pub(super) ring_capacity: u32,
    pub(super) cq_capacity: u32,
    /// It is an owner session.
    pub(super) staged: bool,
    /// It has a notification buffer.
    pub(super) takes_events: bool,
    pub(super) handles: HandleTable<Held>,
    /// Bytes of regions that it has registered and that are still mapped.
    pub(super) region_bytes: u64,
    /// Names that it has given to regions.
    pub(super) exports: usize,
    /// It reaches memory of peers by the RDMA device, which therefore reaches all of its own.
    pub(super) uses_device: bool,
    /// It is no client's.
    pub(super) lease: Lease,
    /// Codes, by bit, of refusals that the log has.
    said: u128,
}

impl Attached {
    pub(super) fn new(socket: Socket, peer: Peer, regions_max: u32) -> Attached {
        Attached {
            socket,
            since: Instant::now(),
            greeted: false,
            detaching: false,
            peer,
            ring_capacity: 0,
            cq_capacity: 0,
            staged: false,
            takes_events: false,
            handles: HandleTable::new(regions_max),
            region_bytes: 0,
            exports: 0,
            uses_device: false,
            lease: Lease::None,
            said: 0,
        }
    }

    /// It lasts as long as another engine has memory of this one mapped.
    pub(super) fn is_lease(&self) -> bool {
        matches!(self.lease, Lease::Of(_))
    }

    /// It was not said what it is for.
    fn is_silent(&self) -> bool {
        !self.greeted && matches!(self.lease, Lease::None)
    }
}

/// Why a question is refused.
pub(super) struct Refusal(pub Status, pub String);

impl Refusal {
    pub(super) fn new(status: Status, text: impl Into<String>) -> Refusal {
        Refusal(status, text.into())
    }
}

/// A socket that clients find at a path.
pub(super) struct Listener {
    pub fd: OwnedFd,
    path: PathBuf,
    /// Which file is at the path: somebody may put another one there.
    file: Option<(u64, u64)>,
}

impl Listener {
    /// `None`: it is not UTF-8.
    pub fn absolute_path(&self) -> Option<String> {
        std::path::absolute(&self.path).ok()?.into_os_string().into_string().ok()
    }
}

fn file_at(path: &Path) -> Option<(u64, u64)> {
    rustix::fs::lstat(path).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

pub(super) struct Control {
    pub(super) sessions: HashMap<u64, Attached>,
    pub(super) users: Vec<u32>,
    pub(super) limits: Limits,
    pub(super) trust: Trust,
    pub(super) stats: Arc<Stats>,
    pub(super) pace: Pace,
    pub(super) next_session: u64,
    pub(super) exports: HashMap<String, Export>,
    pub(super) closings: Vec<Closing>,
    /// `None`: this engine meets no others.
    pub(super) peering: Option<Peering>,
    commands: Sender<Command>,
    poller_bell: Arc<OwnedFd>,
    inbox: Inbox,
    pub(super) epoll: OwnedFd,
    pub(super) listeners: Vec<Listener>,
    watchers: Vec<Watcher>,
    pub(super) stopping: bool,
    /// Leases are not waited for any longer. `None`: without end.
    pub(super) leases_end: Option<Instant>,
}

/// A connection that has not said HELLO for so long is closed.
const HELLO_WAIT: Duration = Duration::from_secs(5);

/// Tokens of the bells and of listeners among session numbers in epoll events.
const BELL: u64 = u64::MAX;
const PEERS: u64 = u64::MAX - 1;
const DEVICE: u64 = u64::MAX - 2;
const LISTENERS: u64 = 1 << 63;

impl Control {
    pub fn new(
        config: &Config,
        stats: Arc<Stats>,
        commands: Sender<Command>,
        poller_bell: Arc<OwnedFd>,
        inbox: Inbox,
        peering: Option<Peering>,
    ) -> io::Result<(Control, ControlHandle)> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*inbox.bell, EventData::new_u64(BELL), EventFlags::IN)?;
        if let Some(bell) = peering.as_ref().and_then(Peering::bell) {
            epoll::add(&epoll, bell, EventData::new_u64(PEERS), EventFlags::IN)?;
        }
        if let Some(bell) = peering.as_ref().and_then(Peering::device_bell) {
            epoll::add(&epoll, bell, EventData::new_u64(DEVICE), EventFlags::IN)?;
        }
        let handle = ControlHandle(inbox.sender.clone());
        let control = Control {
            sessions: HashMap::new(),
            users: config.users.clone(),
            limits: config.limits.clone(),
            trust: config.trust,
            stats,
            pace: Pace::new(),
            next_session: 1,
            exports: HashMap::new(),
            closings: Vec::new(),
            peering,
            commands,
            poller_bell,
            inbox,
            epoll,
            listeners: Vec::new(),
            watchers: Vec::new(),
            stopping: false,
            leases_end: None,
        };
        Ok((control, handle))
    }

    pub fn run(mut self) {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 64];
        // A closing can wait for peers, whom the poller knows.
        while !self.is_over() {
            let patience = self.patience().filter(|_| self.stopping);
            let timeouts = [self.forget_silent(), self.refuse_late(), self.end_leases(), patience];
            let timeout = timeouts.into_iter().flatten().min();
            let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
            // An interrupted wait found nothing.
            let n = epoll::wait(&self.epoll, &mut events, timeout.as_ref()).unwrap_or(0);
            for event in &events[..n] {
                match event.data.u64() {
                    BELL => self.read_letters(),
                    PEERS => self.read_peer_events(),
                    DEVICE => self.read_device_events(),
                    token if token & LISTENERS != 0 => self.accept((token & !LISTENERS) as usize),
                    session => self.read_socket(session),
                }
            }
        }
        for Listener { path, file, .. } in &self.listeners {
            if file.is_some() && file_at(path) == *file {
                // Somebody may be removing it too.
                let _ = rustix::fs::unlink(path);
            }
        }
    }

    fn is_over(&self) -> bool {
        // Threads that set connections up have memory and the poller's bell.
        let is_setting_up = self.patience().is_some();
        self.stopping && self.sessions.is_empty() && self.closings.is_empty() && !is_setting_up
    }

    /// For how long a stop waits for them, if there are any.
    fn patience(&self) -> Option<Duration> {
        self.peering.as_ref().and_then(Peering::patience)
    }

    /// Closes connections that have not said HELLO in time, and says when to look again: whoever is allowed to connect
    /// must not keep others out by saying nothing.
    fn forget_silent(&mut self) -> Option<Duration> {
        let is_silent = |session: &Attached| session.is_silent() && session.since.elapsed() >= HELLO_WAIT;
        let silent: Vec<u64> = self.sessions.iter().filter(|(_, s)| is_silent(s)).map(|(id, _)| *id).collect();
        for id in silent {
            self.refused(id, &Refusal::new(Status::BAD_MESSAGE, "no HELLO, and no FETCH, in time"));
            self.forget(id);
        }
        let waits = self.sessions.values().any(Attached::is_silent);
        waits.then_some(Duration::from_secs(1))
    }

    fn read_letters(&mut self) {
        let mut count = [0; 8];
        // Non-blocking, and nobody else reads it.
        let _ = rustix::io::read(&*self.inbox.bell, &mut count);
        while let Ok(letter) = self.inbox.letters.try_recv() {
            match letter {
                Letter::Event(event) => self.on_event(event),
                Letter::Request(request) => self.on_request(request),
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Withdrawn { session, handle } => self.withdrawn(session, handle),
            Event::Cancelled { session, request, status } => {
                let question = Message::new(Kind::CANCEL, request, [0; 8]);
                self.answer(session, &question, status, [0; 8]);
            }
            Event::Detached(session, staging) => {
                let (id, shown) = (session.id, session.shown);
                drop((session, staging));
                self.session_ended(id, &shown);
                self.forget(id);
            }
            Event::PeerAsks { seat, request, rights, name } => self.peer_asks(seat, request, &name, rights),
            Event::RemoteOpened { request, answer } => self.remote_opened(request, answer),
            Event::RemoteWithdrawn(remote) => self.remote_withdrawn(&remote),
            Event::RemoteMapped { request, mapped } => self.remote_mapped(request, mapped),
            Event::PeerHere { seat, here } => self.peer_here(seat, here),
            Event::PeerFetches { session, found } => self.peer_fetches(session, found),
            Event::PeersLeft { ticket } => self.peers_left(ticket),
            Event::PeerSetUp { seat, done } => self.peer_set_up(seat, done),
            Event::PeerDown { seat, is_violated } => self.peer_down(seat, is_violated),
            Event::PeerStuck(seat) => self.peer_stuck(seat),
            Event::PollerGone => self.poller_gone(),
        }
    }

    /// Nobody touches any memory any more, but for engines that have mapped it: what waits for that is answered, and clients
    /// see the end of their sockets.
    fn poller_gone(&mut self) {
        self.stopping = true;
        self.stop_peering();
        self.limit_leases(Duration::ZERO);
        let clients = self.sessions.iter().filter(|(_, session)| !session.is_lease());
        let clients: Vec<u64> = clients.map(|(id, _)| *id).collect();
        clients.into_iter().for_each(|id| self.forget(id));
        for closing in &mut self.closings {
            closing.waiting.retain(|(_, handle)| *handle == LEASE);
            closing.peers = None;
        }
        self.finish_closings();
    }

    fn on_request(&mut self, request: Request) {
        match request {
            Request::Connect(socket) => self.add_socket(socket, Peer::this_process()),
            Request::Listen { listener, path } => self.add_listener(listener, path),
            Request::Export { name, region, answer } => {
                let rights = region.rights();
                let status = match self.export(&name, Export { session: 0, memory: Memory::Mapped(region), rights }) {
                    Ok(()) => Status::OK,
                    Err(refusal) => refusal.0,
                };
                // A caller that does not wait for the answer gets none.
                let _ = answer.send(status);
            }
            Request::Unadopt { name, answer } => {
                if let Some(export) = self.exports.remove(&name) {
                    self.withdraw_everywhere(export.memory, None, Answer::Channel(answer));
                }
            }
            Request::ConnectPeer(endpoint) => self.keep_peer(*endpoint),
            Request::Watch(watcher) => self.watchers.push(watcher),
            Request::Stop { within } => {
                let peers = if self.stopping { None } else { self.wait_for_peers() };
                self.stopping = true;
                self.stop_peering();
                self.limit_leases(within);
                self.command(Command::Stop { within, peers });
                let is_nobodys = |session: &Attached| !session.greeted && !session.is_lease();
                let nobodys = self.sessions.iter().filter(|(_, session)| is_nobodys(session));
                let nobodys: Vec<u64> = nobodys.map(|(id, _)| *id).collect();
                nobodys.into_iter().for_each(|id| self.forget(id));
            }
        }
    }

    fn add_listener(&mut self, listener: OwnedFd, path: PathBuf) {
        let token = LISTENERS | self.listeners.len() as u64;
        if epoll::add(&self.epoll, &listener, EventData::new_u64(token), EventFlags::IN).is_ok() {
            let file = file_at(&path);
            self.listeners.push(Listener { fd: listener, path, file });
            self.tell_where();
        }
    }

    /// One message of a client; epoll comes back if there are more, so that a flooder does not keep others out.
    fn read_socket(&mut self, id: u64) {
        let Some(session) = self.sessions.get(&id) else { return };
        if session.detaching {
            return;
        }
        match session.socket.receive(false) {
            Ok(None) => {}
            Ok(Some(received)) => self.on_message(id, received),
            Err(AttachError::Closed) => self.detach(id, Status::OK),
            Err(_) => self.detach(id, Status::BAD_MESSAGE),
        }
    }

    fn on_message(&mut self, id: u64, received: Received) {
        let question = received.message;
        let Some(session) = self.sessions.get(&id) else { return };
        let greeted = session.greeted;
        // A lease has nothing more to say.
        if !greeted && !session.is_silent() {
            return self.detach(id, Status::BAD_MESSAGE);
        }
        if !received.fds.is_empty() && question.kind != Kind::REGISTER {
            return self.detach(id, Status::BAD_MESSAGE);
        }
        if question.status != Status::OK || arguments(question.kind).is_some_and(|n| question.args[n..] != [0; 8][n..])
        {
            let refusal = Refusal::new(Status::INVALID_SETTING, "an argument without a meaning is not 0");
            self.refuse(id, &question, &refusal);
            if !greeted {
                self.forget(id);
            }
            return;
        }
        let outcome = match (greeted, question.kind) {
            (false, Kind::HELLO) => return self.greet(id, &question),
            (false, Kind::FETCH) => return self.fetch(id, &question),
            (true, Kind::REGISTER) => self.register(id, &question, &received.fds).map(Some),
            (true, Kind::EXPORT) => self.export_for(id, &question).map(Some),
            (true, Kind::OPEN) => self.open(id, &question),
            (true, Kind::STAGE) => return self.stage(id, &question),
            (true, Kind::NOTIFICATIONS) => return self.notifications(id, &question),
            (true, Kind::LEND) => self.lend(id, &question).map(Some),
            (true, Kind::CONNECT) => self.connect(id, &question),
            (true, Kind::CLOSE) => self.close(id, &question).map(|()| None),
            (true, Kind::CANCEL) => {
                self.command(Command::Cancel { session: id, request: question.request, first: question.args[0] });
                return;
            }
            _ => return self.detach(id, Status::BAD_MESSAGE),
        };
        match outcome {
            Ok(Some(args)) => self.answer(id, &question, Status::OK, args),
            // The answer comes later.
            Ok(None) => {}
            Err(refusal) => self.refuse(id, &question, &refusal),
        }
    }

    /// The client is gone, or is to go: nothing of it is used any more once the poller has drained it.
    pub(super) fn detach(&mut self, id: u64, reason: Status) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if session.detaching {
            return;
        }
        session.detaching = true;
        // A closed socket stays readable; there is nothing more to read.
        let _ = epoll::delete(&self.epoll, &session.socket);
        if session.greeted {
            self.command(Command::Detach { session: id, reason });
        } else {
            self.forget(id);
        }
    }

    /// Drops everything of a session that the poller does not have, or has given back.
    pub(super) fn forget(&mut self, id: u64) {
        let Some(mut session) = self.sessions.remove(&id) else { return };
        // First, so that memory is unmapped before its owner is told.
        session.lease = Lease::None;
        self.forget_remotes(id, &session.handles);
        for closing in &mut self.closings {
            closing.waiting.retain(|user| user.0 != id);
        }
        self.withdraw_exports(id);
        self.finish_closings();
        session.socket.discard();
    }

    pub(super) fn answer(&mut self, id: u64, question: &Message, status: Status, args: [u64; 8]) {
        if question.request != NO_ANSWER {
            self.send(id, &question.answer(status, args));
        }
    }

    pub(super) fn refuse(&mut self, id: u64, question: &Message, refusal: &Refusal) {
        self.refused(id, refusal);
        if question.request != NO_ANSWER {
            self.send(id, &question.answer(refusal.0, [0; 8]).with_name(&refusal.1));
        }
    }

    /// Counts a refusal, and says each kind of it once per session.
    fn refused(&mut self, id: u64, refusal: &Refusal) {
        let Refusal(status, text) = refusal;
        self.stats.attached.refused.count(*status);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let bit = 1u128 << status.0.unsigned_abs().min(127);
        let is_said = session.said & bit != 0;
        session.said |= bit;
        if !is_said && let Some(unsaid) = self.pace.next(Instant::now()) {
            let Peer { user, pid } = session.peer;
            // The text can hold what the client wrote: as a quoted string nothing in it is a line of its own.
            tracing::warn!(
                session = id,
                user,
                pid,
                ?status,
                ?text,
                unsaid,
                "refused; further ones like it are only counted"
            );
        }
    }

    fn session_ended(&mut self, id: u64, shown: &Shown) {
        let Shown { descriptors, bytes, batches_cut, reason } = *shown;
        let reason = reason.unwrap_or(Status::OK);
        self.stats.attached.ended.count(reason);
        let Some(unsaid) = self.pace.next(Instant::now()) else { return };
        let end = |text: &str| match reason {
            Status::OK | Status::STOPPING => {
                tracing::info!(session = id, ?reason, descriptors, bytes, batches_cut, unsaid, "{text}");
            }
            _ => tracing::warn!(session = id, ?reason, descriptors, bytes, batches_cut, unsaid, "{text}"),
        };
        end(if reason.is_ok() { "session ended by its client" } else { "session ended" });
    }

    /// A client that does not read its answers loses its session.
    fn send(&mut self, id: u64, message: &Message) {
        let Some(session) = self.sessions.get(&id) else { return };
        if session.socket.send(message, &[]).is_err() {
            self.detach(id, Status::BAD_MESSAGE);
        }
    }

    /// For threads that have something to tell this one.
    pub(super) fn outbox(&self) -> Outbox {
        self.inbox.sender.clone()
    }

    pub(super) fn command(&self, command: Command) {
        // A poller that is gone has drained everything.
        let _ = self.commands.send(command);
        ring_bell(&self.poller_bell);
    }
}

/// How many arguments a question has; `None` for one that is not known.
fn arguments(kind: Kind) -> Option<usize> {
    match kind {
        Kind::HELLO => Some(5),
        Kind::REGISTER | Kind::FETCH => Some(3),
        Kind::EXPORT | Kind::OPEN | Kind::STAGE | Kind::LEND => Some(2),
        Kind::CLOSE | Kind::CANCEL => Some(1),
        Kind::CONNECT | Kind::NOTIFICATIONS => Some(0),
        _ => None,
    }
}
