//! The control thread: everything about clients that is not work.

use super::FEATURES;
use super::config::{Config, Limits};
use super::exports::{Answer, Closing, Export, Held};
use super::log::Pace;
use super::mail::{Command, ControlHandle, Event, Inbox, Letter, Request, Watcher, ring_bell};
use super::memory::Memory;
use super::session::{Session, Shown, Wires};
use super::staging::Staging;
use crate::attach::{AttachError, EngineAreas, Received, Socket};
use crate::region::{HandleTable, Trust};
use crate::stats::{self, Stats};
use ring_abi::staged::{SLOT_BYTES_MAX, SLOT_BYTES_MIN, SLOTS_MAX, SLOTS_MIN, is_staging};
use ring_abi::{Features, Header, Kind, Message, NO_ANSWER, Status, abi_matches, abi_word};
use rustix::event::EventfdFlags;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A client as the control thread has it.
pub(super) struct Attached {
    socket: Socket,
    since: Instant,
    /// HELLO was answered: the poller has the session.
    greeted: bool,
    detaching: bool,
    pub(super) peer: Peer,
    /// Entries of its smaller ring.
    ring_capacity: u32,
    /// It is an owner session.
    pub(super) staged: bool,
    pub(super) handles: HandleTable<Held>,
    /// Bytes of regions that it has registered and that are still mapped.
    pub(super) region_bytes: u64,
    /// Names that it has given to regions.
    pub(super) exports: usize,
    /// Codes, by bit, of refusals that the log has.
    said: u128,
}

/// Who has connected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub user: u32,
    /// 0 where it cannot be seen from this namespace. For the log: the end of the socket is the sign of life.
    pid: i32,
}

impl Peer {
    fn of(socket: &OwnedFd) -> Option<Peer> {
        let peer = rustix::net::sockopt::socket_peercred(socket).ok()?;
        Some(Peer { user: peer.uid.as_raw(), pid: rustix::process::Pid::as_raw(Some(peer.pid)) })
    }

    pub fn is_own_user(&self) -> bool {
        self.user == rustix::process::geteuid().as_raw()
    }

    fn this_process() -> Peer {
        Peer { user: rustix::process::geteuid().as_raw(), pid: rustix::process::getpid().as_raw_nonzero().get() }
    }
}

impl Attached {
    fn new(socket: Socket, peer: Peer, regions_max: u32) -> Attached {
        Attached {
            socket,
            since: Instant::now(),
            greeted: false,
            detaching: false,
            peer,
            ring_capacity: 0,
            staged: false,
            handles: HandleTable::new(regions_max),
            region_bytes: 0,
            exports: 0,
            said: 0,
        }
    }
}

/// Why a question is refused.
pub(super) struct Refusal(Status, String);

impl Refusal {
    pub(super) fn new(status: Status, text: impl Into<String>) -> Refusal {
        Refusal(status, text.into())
    }
}

/// A socket that clients find at a path.
struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    /// Which file is at the path: somebody may put another one there.
    file: Option<(u64, u64)>,
}

fn file_at(path: &Path) -> Option<(u64, u64)> {
    rustix::fs::lstat(path).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

pub(super) struct Control {
    pub(super) sessions: HashMap<u64, Attached>,
    users: Vec<u32>,
    pub(super) limits: Limits,
    pub(super) trust: Trust,
    pub(super) stats: Arc<Stats>,
    pace: Pace,
    next_session: u64,
    pub(super) exports: HashMap<String, Export>,
    pub(super) closings: Vec<Closing>,
    commands: Sender<Command>,
    poller_bell: Arc<OwnedFd>,
    inbox: Inbox,
    epoll: OwnedFd,
    listeners: Vec<Listener>,
    watchers: Vec<Watcher>,
    stopping: bool,
}

/// A connection that has not said HELLO for so long is closed.
const HELLO_WAIT: Duration = Duration::from_secs(5);

/// How long to leave a listener alone when no descriptor or memory is left for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Tasks carry the number of their session in 16 bits.
const SESSIONS_MAX: usize = 1 << 16;

/// Tokens of the bell and of listeners among session numbers in epoll events.
const BELL: u64 = u64::MAX;
const LISTENERS: u64 = 1 << 63;

impl Control {
    pub fn new(
        config: &Config,
        stats: Arc<Stats>,
        commands: Sender<Command>,
        poller_bell: Arc<OwnedFd>,
        inbox: Inbox,
    ) -> io::Result<(Control, ControlHandle)> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*inbox.bell, EventData::new_u64(BELL), EventFlags::IN)?;
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
            commands,
            poller_bell,
            inbox,
            epoll,
            listeners: Vec::new(),
            watchers: Vec::new(),
            stopping: false,
        };
        Ok((control, handle))
    }

    pub fn run(mut self) {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 64];
        while !(self.stopping && self.sessions.is_empty()) {
            let timeout = self.forget_silent();
            // An interrupted wait found nothing.
            let n = epoll::wait(&self.epoll, &mut events, timeout.as_ref()).unwrap_or(0);
            for event in &events[..n] {
                match event.data.u64() {
                    BELL => self.read_letters(),
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

    /// Closes connections that have not said HELLO in time, and says when to look again: whoever is allowed to connect
    /// must not keep others out by saying nothing.
    fn forget_silent(&mut self) -> Option<Timespec> {
        let is_silent = |session: &Attached| !session.greeted && session.since.elapsed() >= HELLO_WAIT;
        let silent: Vec<u64> = self.sessions.iter().filter(|(_, s)| is_silent(s)).map(|(id, _)| *id).collect();
        for id in silent {
            self.refused(id, &Refusal::new(Status::BAD_MESSAGE, "no HELLO in time"));
            self.forget(id);
        }
        let waits = self.sessions.values().any(|session| !session.greeted);
        waits.then_some(Timespec { tv_sec: 1, tv_nsec: 0 })
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
            Event::PollerGone => self.poller_gone(),
        }
    }

    /// Nobody touches any memory any more: what waits for that is answered, and clients see the end of their sockets.
    fn poller_gone(&mut self) {
        self.stopping = true;
        let all: Vec<u64> = self.sessions.keys().copied().collect();
        all.into_iter().for_each(|id| self.forget(id));
        self.closings.iter_mut().for_each(|closing| closing.waiting.clear());
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
            Request::Watch(watcher) => self.watchers.push(watcher),
            Request::Stop { within } => {
                self.stopping = true;
                self.command(Command::Stop { within });
                let ungreeted: Vec<u64> = self.sessions.iter().filter(|(_, s)| !s.greeted).map(|(id, _)| *id).collect();
                ungreeted.into_iter().for_each(|id| self.forget(id));
            }
        }
    }

    fn add_listener(&mut self, listener: OwnedFd, path: PathBuf) {
        let token = LISTENERS | self.listeners.len() as u64;
        if epoll::add(&self.epoll, &listener, EventData::new_u64(token), EventFlags::IN).is_ok() {
            let file = file_at(&path);
            self.listeners.push(Listener { fd: listener, path, file });
        }
    }

    fn accept(&mut self, listener: usize) {
        let Some(Listener { fd, .. }) = self.listeners.get(listener) else { return };
        let socket = match rustix::net::accept_with(fd, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            // A client that is gone again.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => return,
            // It stays in the queue, and epoll would tell of it at once.
            Err(_) => return std::thread::sleep(ACCEPT_PAUSE),
        };
        let peer = Peer::of(&socket);
        let socket = Socket::new(socket);
        match self.admit(peer.as_ref()) {
            Ok(peer) => self.add_socket(socket, peer),
            Err(refusal) => {
                self.refuse_connection(socket, peer, &refusal);
            }
        }
    }

    /// Whether somebody may attach at all.
    fn admit(&self, peer: Option<&Peer>) -> Result<Peer, Refusal> {
        let Some(peer) = peer else {
            return Err(Refusal::new(Status::NOT_ALLOWED, "the kernel does not say who connects"));
        };
        let own = rustix::process::geteuid().as_raw();
        if peer.user != own && peer.user != 0 && !self.users.contains(&peer.user) {
            let text = format!("user {} is not one that this engine serves", peer.user);
            return Err(Refusal::new(Status::NOT_ALLOWED, text));
        }
        Ok(*peer)
    }

    fn add_socket(&mut self, socket: Socket, peer: Peer) {
        if self.stopping {
            let refusal = Refusal::new(Status::STOPPING, "it does not take clients any more");
            return self.refuse_connection(socket, Some(peer), &refusal);
        }
        if let Err(refusal) = self.has_room_for(peer) {
            return self.refuse_connection(socket, Some(peer), &refusal);
        }
        let id = self.next_session;
        self.next_session += 1;
        if epoll::add(&self.epoll, &socket, EventData::new_u64(id), EventFlags::IN).is_ok() {
            self.sessions.insert(id, Attached::new(socket, peer, self.limits.regions));
        }
    }

    fn has_room_for(&self, peer: Peer) -> Result<(), Refusal> {
        let limit = |text| Err(Refusal::new(Status::LIMIT_EXCEEDED, text));
        let Limits { sessions, sessions_per_user, .. } = self.limits;
        if self.sessions.len() >= sessions.min(SESSIONS_MAX) {
            return limit(format!("{sessions} sessions are attached already (limit sessions)"));
        }
        if self.sessions.values().filter(|session| session.peer.user == peer.user).count() >= sessions_per_user {
            let user = peer.user;
            return limit(format!("user {user} has {sessions_per_user} sessions already (limit sessions_per_user)"));
        }
        Ok(())
    }

    fn refuse_connection(&mut self, socket: Socket, peer: Option<Peer>, refusal: &Refusal) {
        let Refusal(status, text) = refusal;
        self.stats.attached.refused.count(*status);
        let answer = Message::new(Kind::HELLO, 0, [0; 8]).answer(*status, [0; 8]);
        // It is refused either way.
        let _ = socket.send(&answer.with_name(text), &[]);
        socket.discard();
        if let Some(unsaid) = self.pace.next(Instant::now()) {
            let (user, pid) = peer.map_or((None, None), |peer| (Some(peer.user), Some(peer.pid)));
            tracing::warn!(user, pid, ?status, unsaid, "connection refused: {text}");
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
        let Some(greeted) = self.sessions.get(&id).map(|session| session.greeted) else { return };
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
            (true, Kind::REGISTER) => self.register(id, &question, &received.fds),
            (true, Kind::EXPORT) => self.export_for(id, &question),
            (true, Kind::OPEN) => self.open(id, &question),
            (true, Kind::STAGE) => return self.stage(id, &question),
            (true, Kind::LEND) => self.lend(id, &question),
            (true, Kind::CLOSE) => match self.close(id, &question) {
                Ok(()) => return,
                Err(refusal) => Err(refusal),
            },
            (true, Kind::CANCEL) => {
                self.command(Command::Cancel { session: id, request: question.request, first: question.args[0] });
                return;
            }
            _ => return self.detach(id, Status::BAD_MESSAGE),
        };
        match outcome {
            Ok(args) => self.answer(id, &question, Status::OK, args),
            Err(refusal) => self.refuse(id, &question, &refusal),
        }
    }

    /// Makes a session of a connection.
    fn greet(&mut self, id: u64, question: &Message) {
        match self.make_session(id, question) {
            Ok((session, answer, fds)) => {
                let Some(attached) = self.sessions.get_mut(&id) else { return };
                attached.greeted = true;
                let Peer { user, pid } = attached.peer;
                stats::add(&self.stats.attached.sessions, 1);
                if let Some(unsaid) = self.pace.next(Instant::now()) {
                    tracing::info!(session = id, user, pid, unsaid, "session begun");
                }
                attached.ring_capacity = (question.args[3] as u32).min((question.args[3] >> 32) as u32);
                self.command(Command::Attach(Box::new(session)));
                let fds = [fds[0].as_fd(), fds[1].as_fd(), fds[2].as_fd(), fds[3].as_fd()];
                let sent = self.sessions[&id].socket.send(&answer, &fds);
                if sent.is_err() {
                    self.detach(id, Status::BAD_MESSAGE);
                }
            }
            Err(refusal) => {
                self.refuse(id, question, &refusal);
                self.forget(id);
            }
        }
    }

    fn make_session(&self, id: u64, question: &Message) -> Result<(Session, Message, [OwnedFd; 4]), Refusal> {
        let [magic, abi, features, capacities, start_position, ..] = question.args;
        if magic != ring_abi::MAGIC {
            return Err(Refusal::new(Status::BAD_MESSAGE, "not a scatter-ring client"));
        }
        if !abi_matches(abi) {
            let text = format!("client ABI {:#x}, engine ABI {:#x}", abi, abi_word());
            return Err(Refusal::new(Status::VERSION_MISMATCH, text));
        }
        let missing = Features(features).missing_in(FEATURES);
        if !missing.is_empty() {
            return Err(Refusal::new(Status::MISSING_FEATURE, format!("feature bits {:#x}", missing.0)));
        }
        let (sq_capacity, cq_capacity) = (capacities as u32, (capacities >> 32) as u32);
        for (name, capacity) in [("SQ", sq_capacity), ("CQ", cq_capacity)] {
            if !Header::is_capacity(capacity) {
                let (min, max) = (ring_abi::CAPACITY_MIN, ring_abi::CAPACITY_MAX);
                let text = format!("{name} capacity {capacity}: must be a power of two from {min} to {max}");
                return Err(Refusal::new(Status::INVALID_SETTING, text));
            }
            let most = self.limits.ring_slots;
            if capacity > most {
                let text = format!("{name} capacity {capacity}: at most {most} (limit ring_slots)");
                return Err(Refusal::new(Status::LIMIT_EXCEEDED, text));
            }
        }
        let header = Header::new(sq_capacity, cq_capacity, FEATURES, epoch(id), start_position);
        let no_memory = |error: AttachError| Refusal::new(Status::NO_MEMORY, error.to_string());
        let failed = |operation| move |errno| no_memory(AttachError::system(operation)(errno));
        let (areas, [submit, complete]) = EngineAreas::create(&header).map_err(no_memory)?;
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(failed("creating the doorbell"))?;
        let doorbell_for_client =
            rustix::io::fcntl_dupfd_cloexec(&doorbell, 0).map_err(failed("creating the doorbell"))?;
        let (wake, wake_for_client) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(failed("creating the wake socket"))?;
        let wires = Wires { doorbell, wake };
        let session = Session::new(id, areas, wires, cq_capacity, &self.limits, self.stats.clone());
        let answer = question.answer(Status::OK, [abi_word(), FEATURES.0, capacities, header.epoch, 0, 0, 0, 0]);
        Ok((session, answer, [submit, complete, doorbell_for_client, wake_for_client]))
    }

    /// Makes an owner session of a session.
    fn stage(&mut self, id: u64, question: &Message) {
        let [slots, slot_bytes, ..] = question.args;
        if self.sessions.get(&id).is_none_or(|attached| attached.staged) {
            return self.detach(id, Status::BAD_MESSAGE);
        }
        if let Err(refusal) = self.has_bytes_for(id, slots.saturating_mul(slot_bytes)) {
            return self.refuse(id, question, &refusal);
        }
        let Some(attached) = self.sessions.get_mut(&id) else { return };
        let made = if is_staging(slots, slot_bytes) {
            Staging::create(slots, slot_bytes as u32, attached.ring_capacity)
                .map_err(|error| Refusal::new(Status::NO_MEMORY, error.to_string()))
        } else {
            let text = format!(
                "{slots} slots of {slot_bytes} bytes: {SLOTS_MIN} to {SLOTS_MAX} slots of {SLOT_BYTES_MIN} to \
                 {SLOT_BYTES_MAX} bytes, in pages of 4096"
            );
            Err(Refusal::new(Status::INVALID_SETTING, text))
        };
        match made {
            Err(refusal) => self.refuse(id, question, &refusal),
            Ok((staging, [slots, lists])) => {
                attached.staged = true;
                attached.region_bytes += u64::from(staging.slot_count()) * slot_bytes;
                let granted = [staging.slot_count().into(), slot_bytes, 0, 0, 0, 0, 0, 0];
                let answer = question.answer(Status::OK, granted);
                // First, so that the poller knows before the owner can.
                self.command(Command::Stage { session: id, staging: Box::new(staging) });
                if self.sessions[&id].socket.send(&answer, &[slots.as_fd(), lists.as_fd()]).is_err() {
                    self.detach(id, Status::BAD_MESSAGE);
                }
            }
        }
    }

    /// The client is gone, or is to go: nothing of it is used any more once the poller has drained it.
    fn detach(&mut self, id: u64, reason: Status) {
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
    fn forget(&mut self, id: u64) {
        let Some(session) = self.sessions.remove(&id) else { return };
        self.exports.retain(|_, export| export.session != id);
        for closing in &mut self.closings {
            closing.waiting.retain(|user| user.0 != id);
        }
        for memory in session.handles.iter().filter(|(_, held)| held.own).filter_map(|(_, held)| held.memory.clone()) {
            self.withdraw_everywhere(memory, None, Answer::Nobody);
        }
        self.finish_closings();
        session.socket.discard();
    }

    pub(super) fn answer(&mut self, id: u64, question: &Message, status: Status, args: [u64; 8]) {
        if question.request != NO_ANSWER {
            self.send(id, &question.answer(status, args));
        }
    }

    fn refuse(&mut self, id: u64, question: &Message, refusal: &Refusal) {
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
        Kind::REGISTER => Some(3),
        Kind::EXPORT | Kind::STAGE | Kind::LEND => Some(2),
        Kind::OPEN | Kind::CLOSE | Kind::CANCEL => Some(1),
        _ => None,
    }
}

/// Never 0, and different for every session of every engine on a machine whose clock runs.
fn epoch(session: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    now.wrapping_add(session) | 1
}
