//! Attaching, and the rare requests on the attach socket.

use super::{Client, ClientError, Ended, Setup};
use crate::attach::{AttachError, ClientAreas, Received, Socket};
use crate::region::ForkGuard;
use ring_abi::{Features, Handle, Kind, Message, NO_ANSWER, Status, abi_matches, abi_word};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the engine may take for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// What a client's regions need of its session, also after the client is gone.
#[derive(Debug)]
pub(super) struct Session {
    guard: ForkGuard,
    socket: Socket,
    over: AtomicBool,
    /// Closes that the socket's queue had no room for.
    unsent: Mutex<Vec<Handle>>,
}

/// What the engine handed out when the client attached.
pub(super) struct Attached {
    pub session: Session,
    pub areas: ClientAreas,
    pub doorbell: OwnedFd,
    pub wake: OwnedFd,
}

impl Session {
    #[inline]
    pub fn is_child(&self) -> bool {
        self.guard.is_child()
    }

    /// Nothing is asked any more, and the engine sees the end of the connection.
    pub fn end(&self) {
        if !self.is_child() && !self.over.swap(true, Ordering::AcqRel) {
            // The connection is shared with the regions that outlive the client, so it is ended and not only dropped.
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }

    /// Ends a registration that nobody can name any more. Never waits: what cannot be sent now goes with the next
    /// request.
    pub fn close_later(&self, handle: Handle) {
        if self.is_child() || self.over.load(Ordering::Acquire) {
            return;
        }
        let message = Message::new(Kind::CLOSE, NO_ANSWER, [u64::from(handle.0), 0, 0, 0, 0, 0, 0, 0]);
        if let Err(AttachError::System { .. }) = self.socket.send(&message, &[]) {
            self.unsent.lock().unwrap_or_else(|e| e.into_inner()).push(handle);
        }
    }

    fn close_unsent(&self) {
        let handles = std::mem::take(&mut *self.unsent.lock().unwrap_or_else(|e| e.into_inner()));
        handles.into_iter().for_each(|handle| self.close_later(handle));
    }
}

/// Connects to the engine's socket.
pub(super) fn connect(path: &Path) -> Result<Socket, ClientError> {
    let address = SocketAddrUnix::new(path).map_err(ClientError::system("the socket's path"))?;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(ClientError::system("socket"))?;
    // A listener that accepts nobody must not hold this process up.
    rustix::net::sockopt::set_socket_timeout(&fd, rustix::net::sockopt::Timeout::Send, Some(ANSWER_LIMIT))
        .map_err(ClientError::system("setsockopt"))?;
    let path = || path.to_path_buf();
    match rustix::io::retry_on_intr(|| rustix::net::connect(&fd, &address)) {
        Ok(()) => Ok(Socket::new(fd)),
        Err(Errno::NOENT | Errno::NOTDIR) => Err(ClientError::NoSocket { path: path() }),
        Err(Errno::CONNREFUSED | Errno::PROTOTYPE) => Err(ClientError::NobodyListens { path: path() }),
        Err(Errno::AGAIN) => Err(ClientError::NoAnswer { seconds: ANSWER_LIMIT.as_secs() }),
        Err(Errno::ACCESS | Errno::PERM) => Err(ClientError::NotPermitted { path: path() }),
        Err(e) => Err(ClientError::system("connect")(e)),
    }
}

/// Agrees on a session and maps its areas.
pub(super) fn hello(socket: Socket, setup: &Setup) -> Result<Attached, ClientError> {
    let guard = ForkGuard::new().map_err(|source| ClientError::System { operation: "fork guard", source })?;
    let features = Features(Features::LOCAL);
    let hello = Message::hello(features, setup.sq_capacity, setup.cq_capacity, setup.start_position);
    socket.send(&hello, &[])?;
    let Received { message, fds } = receive(&socket, Instant::now() + ANSWER_LIMIT)?;
    if message.kind != Kind::HELLO.answer() || message.request != hello.request {
        return Err(AttachError::BadMessage("the first answer is not about HELLO").into());
    }
    let [engine_abi, offered, capacities, epoch, ..] = message.args;
    if message.status == Status::VERSION_MISMATCH || (message.status.is_ok() && !abi_matches(engine_abi)) {
        return Err(ClientError::Version { engine: version(engine_abi), client: version(abi_word()) });
    }
    granted(&message)?;
    if !features.missing_in(Features(offered)).is_empty() {
        return Err(refused(Status::MISSING_FEATURE, "the engine cannot move memory on this host"));
    }
    let Ok([submit, complete, doorbell, wake]) = <[OwnedFd; 4]>::try_from(fds) else {
        return Err(AttachError::BadMessage("the answer to HELLO comes with four file descriptors").into());
    };
    let areas = ClientAreas::map(submit, complete, capacities as u32, (capacities >> 32) as u32)?;
    if areas.header.epoch != epoch {
        return Err(AttachError::BadMessage("header and answer disagree on the epoch").into());
    }
    if areas.header.start_position != setup.start_position {
        return Err(AttachError::BadMessage("the rings do not start where they were asked to").into());
    }
    let session = Session { guard, socket, over: AtomicBool::new(false), unsent: Mutex::default() };
    Ok(Attached { session, areas, doorbell, wake })
}

impl Client {
    /// One question and its answer.
    pub(super) fn ask(
        &self,
        kind: Kind,
        args: &[u64],
        name: &str,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Message, ClientError> {
        self.usable()?;
        self.session.close_unsent();
        let request = self.requests.get();
        self.requests.set(request + 1);
        let mut words = [0; 8];
        words[..args.len()].copy_from_slice(args);
        let question = Message::new(kind, request, words).with_name(name);
        let until = Instant::now() + ANSWER_LIMIT;
        let answer = send(&self.session.socket, &question, fds, until)
            .and_then(|()| self.answer_to(&question, until))
            .inspect_err(|error| match error {
                ClientError::Attach(AttachError::Closed) => self.end(Ended::Gone),
                ClientError::Attach(AttachError::BadMessage(what)) => self.end(Ended::Broken(what)),
                _ => {}
            })?;
        granted(&answer)?;
        Ok(answer)
    }

    fn answer_to(&self, question: &Message, until: Instant) -> Result<Message, ClientError> {
        loop {
            let answer = match receive(&self.session.socket, until) {
                Ok(received) => received.message,
                Err(error) => {
                    if matches!(error, ClientError::NoAnswer { .. }) {
                        self.given_up.borrow_mut().push(question.request);
                    }
                    return Err(error);
                }
            };
            if answer.request == question.request && answer.kind == question.kind.answer() {
                return Ok(answer);
            }
            let mut given_up = self.given_up.borrow_mut();
            match given_up.iter().position(|request| *request == answer.request) {
                Some(late) => drop(given_up.swap_remove(late)),
                None => return Err(AttachError::BadMessage("an answer to nothing that was asked").into()),
            }
        }
    }
}

fn send(socket: &Socket, message: &Message, fds: &[BorrowedFd<'_>], until: Instant) -> Result<(), ClientError> {
    loop {
        match socket.send(message, fds) {
            Err(AttachError::System { source, .. }) if source.kind() == std::io::ErrorKind::WouldBlock => {
                ready(socket, PollFlags::OUT, until)?;
            }
            other => return Ok(other?),
        }
    }
}

fn receive(socket: &Socket, until: Instant) -> Result<Received, ClientError> {
    loop {
        if let Some(received) = socket.receive(false)? {
            return Ok(received);
        }
        ready(socket, PollFlags::IN, until)?;
    }
}

fn ready(socket: &Socket, flags: PollFlags, until: Instant) -> Result<(), ClientError> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ClientError::NoAnswer { seconds: ANSWER_LIMIT.as_secs() });
    }
    poll(socket.as_fd(), flags, left).map_err(ClientError::system("poll"))
}

/// Waits for a file descriptor. Returns early when interrupted by a signal.
pub(super) fn poll(fd: BorrowedFd<'_>, flags: PollFlags, time: Duration) -> Result<(), Errno> {
    let time = rustix::event::Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    match rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&time)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(e),
    }
}

fn granted(answer: &Message) -> Result<(), ClientError> {
    if answer.status.is_ok() { Ok(()) } else { Err(refused(answer.status, answer.name())) }
}

fn refused(status: Status, text: &str) -> ClientError {
    AttachError::Refused { status, text: text.to_owned() }.into()
}

fn version(abi: u64) -> String {
    match abi {
        0 => "of another version".to_owned(),
        _ => format!("{}.{} with entries of {} bytes", abi as u16, (abi >> 16) as u16, (abi >> 32) as u16),
    }
}
