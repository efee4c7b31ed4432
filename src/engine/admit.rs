//! Who may attach, and what is made for him.

use super::config::Limits;
use super::control::{Attached, Control, Listener, Refusal};
use super::mail::Command;
use super::session::{Session, Wires};
use super::staging::Staging;
use crate::attach::{AttachError, EngineAreas, Socket};
use crate::region::SharedPages;
use crate::stats;
use ring_abi::staged::{SLOT_BYTES_MAX, SLOT_BYTES_MIN, SLOTS_MAX, SLOTS_MIN, is_staging};
use ring_abi::{Features, Header, Kind, Message, NOTIFY_BYTES_MAX, Status, abi_matches, abi_word};
use rustix::event::EventfdFlags;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Who has connected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub user: u32,
    /// 0 where it cannot be seen from this namespace. For the log: the end of the socket is the sign of life.
    pub pid: i32,
}

impl Peer {
    pub fn of(socket: impl AsFd) -> Option<Peer> {
        let peer = rustix::net::sockopt::socket_peercred(socket).ok()?;
        Some(Peer { user: peer.uid.as_raw(), pid: rustix::process::Pid::as_raw(Some(peer.pid)) })
    }

    pub fn is_own_user(&self) -> bool {
        self.user == rustix::process::geteuid().as_raw()
    }

    /// An engine with which this one shares memory, or a program that may use its keys.
    pub fn is_engines(&self) -> bool {
        self.is_own_user() || self.user == 0
    }

    pub fn this_process() -> Peer {
        Peer { user: rustix::process::geteuid().as_raw(), pid: rustix::process::getpid().as_raw_nonzero().get() }
    }
}

/// How long to leave a listener alone when no descriptor or memory is left for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Tasks carry the number of their session in 16 bits.
const SESSIONS_MAX: usize = 1 << 16;

impl Control {
    pub(super) fn accept(&mut self, listener: usize) {
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
        if !peer.is_own_user() && peer.user != 0 && !self.users.contains(&peer.user) {
            let text = format!("user {} is not one that this engine serves", peer.user);
            return Err(Refusal::new(Status::NOT_ALLOWED, text));
        }
        Ok(*peer)
    }

    pub(super) fn add_socket(&mut self, socket: Socket, peer: Peer) {
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

    /// Makes a session of a connection.
    pub(super) fn greet(&mut self, id: u64, question: &Message) {
        match self.make_session(id, question) {
            Ok((session, answer, fds)) => {
                let Some(attached) = self.sessions.get_mut(&id) else { return };
                attached.greeted = true;
                let Peer { user, pid } = attached.peer;
                stats::add(&self.stats.attached.sessions, 1);
                if let Some(unsaid) = self.pace.next(Instant::now()) {
                    tracing::info!(session = id, user, pid, unsaid, "session begun");
                }
                attached.cq_capacity = (question.args[3] >> 32) as u32;
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
        let offered = self.features();
        let missing = Features(features).missing_in(offered);
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
        let header = Header::new(sq_capacity, cq_capacity, offered, epoch(id), start_position);
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
        let answer = question.answer(Status::OK, [abi_word(), offered.0, capacities, header.epoch, 0, 0, 0, 0]);
        Ok((session, answer, [submit, complete, doorbell_for_client, wake_for_client]))
    }

    /// Makes an owner session of a session.
    pub(super) fn stage(&mut self, id: u64, question: &Message) {
        let [slots, slot_bytes, ..] = question.args;
        if self.sessions.get(&id).is_none_or(|attached| attached.staged) {
            return self.detach(id, Status::BAD_MESSAGE);
        }
        if self.sessions.get(&id).is_some_and(|attached| attached.takes_events) {
            let refusal = Refusal::new(Status::NOT_ALLOWED, "a session with a notification buffer is no owner session");
            return self.refuse(id, question, &refusal);
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

    /// Makes a notification buffer for a session: a slot for each place of its completion ring.
    pub(super) fn notifications(&mut self, id: u64, question: &Message) {
        let Some(attached) = self.sessions.get(&id).filter(|attached| !attached.takes_events) else {
            return self.detach(id, Status::BAD_MESSAGE);
        };
        let (slots, slot_bytes) = (attached.cq_capacity, NOTIFY_BYTES_MAX);
        let bytes = u64::from(slots) * u64::from(slot_bytes);
        let made = if attached.staged {
            Err(Refusal::new(Status::NOT_ALLOWED, "an owner session is not notified: its rings carry commands"))
        } else {
            self.has_bytes_for(id, bytes).and_then(|()| {
                // As of the complete area: no client can map it for writing.
                SharedPages::create("scatter-ring-notifications", bytes as usize, SealFlags::FUTURE_WRITE)
                    .map_err(|error| Refusal::new(Status::NO_MEMORY, error.to_string()))
            })
        };
        let (buffer, file) = match made {
            Ok(made) => made,
            Err(refusal) => return self.refuse(id, question, &refusal),
        };
        let Some(attached) = self.sessions.get_mut(&id) else { return };
        attached.takes_events = true;
        attached.region_bytes += bytes;
        // First, so that whoever hears from the client that it is ready finds it so.
        self.command(Command::Notifications { session: id, buffer });
        let answer = question.answer(Status::OK, [slots.into(), slot_bytes.into(), 0, 0, 0, 0, 0, 0]);
        if self.sessions[&id].socket.send(&answer, &[file.as_fd()]).is_err() {
            self.detach(id, Status::BAD_MESSAGE);
        }
    }
}

/// Never 0, and different for every session of every engine on a machine whose clock runs.
fn epoch(session: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    now.wrapping_add(session) | 1
}
