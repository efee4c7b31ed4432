//! Attaching, as the one who attaches does it: connecting, HELLO, questions and their answers.

use super::{AttachError, ClientAreas, Received, Socket};
use ring_abi::{Features, Handle, Kind, Message, Status, abi_matches, abi_word};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the engine may take for an answer.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// What the engine handed out.
pub(crate) struct Greeted {
    pub areas: ClientAreas,
    pub doorbell: OwnedFd,
    pub wake: OwnedFd,
}

/// Connects to the engine's socket.
pub(crate) fn connect(path: &Path) -> Result<Socket, AttachError> {
    connect_within(path, ANSWER_LIMIT)
}

/// The same, waiting for no longer than this.
pub(crate) fn connect_within(path: &Path, limit: Duration) -> Result<Socket, AttachError> {
    let address = SocketAddrUnix::new(path).map_err(AttachError::system("the socket's path"))?;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(AttachError::system("socket"))?;
    // A listener that accepts nobody must not hold this process up.
    rustix::net::sockopt::set_socket_timeout(&fd, rustix::net::sockopt::Timeout::Send, Some(limit))
        .map_err(AttachError::system("setsockopt"))?;
    let path = || path.to_path_buf();
    match rustix::io::retry_on_intr(|| rustix::net::connect(&fd, &address)) {
        Ok(()) => Ok(Socket::new(fd)),
        Err(Errno::NOENT | Errno::NOTDIR) => Err(AttachError::NoSocket { path: path() }),
        Err(Errno::CONNREFUSED | Errno::PROTOTYPE) => Err(AttachError::NobodyListens { path: path() }),
        Err(Errno::AGAIN) => Err(AttachError::NoAnswer { seconds: limit.as_secs() }),
        Err(Errno::ACCESS | Errno::PERM) => Err(AttachError::NotPermitted { path: path() }),
        Err(e) => Err(AttachError::system("connect")(e)),
    }
}

/// Agrees on a session and maps its areas.
pub(crate) fn hello(socket: &Socket, hello: &Message) -> Result<Greeted, AttachError> {
    match socket.send(hello, &[]) {
        // An engine that refuses whoever connects says why, and closes before it is asked.
        Ok(()) | Err(AttachError::Closed) => {}
        Err(error) => return Err(error),
    }
    let Received { message, fds } = receive_until(socket, Instant::now() + ANSWER_LIMIT)?;
    if message.kind != Kind::HELLO.answer() || message.request != hello.request {
        return Err(AttachError::BadMessage("the first answer is not about HELLO"));
    }
    let [engine_abi, offered, capacities, epoch, ..] = message.args;
    if message.status == Status::VERSION_MISMATCH || (message.status.is_ok() && !abi_matches(engine_abi)) {
        return Err(AttachError::Version { engine: version(engine_abi), client: version(abi_word()) });
    }
    granted(&message)?;
    let missing = Features(hello.args[2]).missing_in(Features(offered));
    if !missing.is_empty() {
        let text = format!("the engine lacks the feature bits {:#x}", missing.0);
        return Err(AttachError::Refused { status: Status::MISSING_FEATURE, text });
    }
    let Ok([submit, complete, doorbell, wake]) = <[OwnedFd; 4]>::try_from(fds) else {
        return Err(AttachError::BadMessage("the answer to HELLO comes with four file descriptors"));
    };
    if !is_doorbell(&doorbell) || kind(&wake) != Some(FileType::Socket) {
        return Err(AttachError::BadMessage("a doorbell or a wake socket that is something else"));
    }
    let areas = ClientAreas::map(submit, complete, capacities as u32, (capacities >> 32) as u32)?;
    if areas.header.epoch != epoch {
        return Err(AttachError::BadMessage("header and answer disagree on the epoch"));
    }
    if areas.header.start_position != hello.args[4] {
        return Err(AttachError::BadMessage("the rings do not start where they were asked to"));
    }
    Ok(Greeted { areas, doorbell, wake })
}

/// True if a descriptor can be rung: to write to a pipe or to a socket can end this process by a signal.
fn is_doorbell(fd: &OwnedFd) -> bool {
    kind(fd).is_some_and(|kind| !matches!(kind, FileType::Fifo | FileType::Socket))
}

fn kind(fd: &OwnedFd) -> Option<FileType> {
    rustix::fs::fstat(fd).ok().map(|about| FileType::from_raw_mode(about.st_mode))
}

/// An error if the answer is a refusal.
pub(crate) fn granted(answer: &Message) -> Result<(), AttachError> {
    if answer.status.is_ok() {
        return Ok(());
    }
    Err(AttachError::Refused { status: answer.status, text: answer.name().to_owned() })
}

/// The region that an answer is about, if it is about one.
pub(crate) fn handle(answer: &Message) -> Option<Handle> {
    u32::try_from(answer.args[0]).map(Handle).ok().filter(|handle| handle.generation() != 0)
}

/// Sends a message, waiting for room in the socket's queue.
pub(crate) fn send_until(
    socket: &Socket,
    message: &Message,
    fds: &[BorrowedFd<'_>],
    until: Instant,
) -> Result<(), AttachError> {
    loop {
        match socket.send(message, fds) {
            Err(AttachError::System { source, .. }) if source.kind() == std::io::ErrorKind::WouldBlock => {
                ready(socket, PollFlags::OUT, until)?;
            }
            other => return other,
        }
    }
}

/// Waits for the next message.
pub(crate) fn receive_until(socket: &Socket, until: Instant) -> Result<Received, AttachError> {
    loop {
        if let Some(received) = socket.receive(false)? {
            return Ok(received);
        }
        ready(socket, PollFlags::IN, until)?;
    }
}

fn ready(socket: &Socket, flags: PollFlags, until: Instant) -> Result<(), AttachError> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(AttachError::NoAnswer { seconds: ANSWER_LIMIT.as_secs() });
    }
    poll(socket.as_fd(), flags, left).map_err(AttachError::system("poll"))
}

/// Waits for a file descriptor. Returns early when interrupted by a signal.
pub(crate) fn poll(fd: BorrowedFd<'_>, flags: PollFlags, time: Duration) -> Result<(), Errno> {
    let time = rustix::event::Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    match rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&time)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(e),
    }
}

fn version(abi: u64) -> String {
    match abi {
        0 => "of another version".to_owned(),
        _ => format!("{}.{} with entries of {} bytes", abi as u16, (abi >> 16) as u16, (abi >> 32) as u16),
    }
}
