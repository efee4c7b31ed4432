//! What the threads of an engine write to each other. Nobody waits for an answer but the process that has the engine.

use super::EngineError;
use super::remote::{Here, Remote, SeatId};
use super::session::{Granted, Session};
use super::staging::Staging;
use super::verbs::SetUp;
use crate::attach::{AttachError, Socket};
use crate::link::Transport;
use crate::peer::{Connected, Endpoint};
use crate::region::{Region, Rights, SharedPages};
use crate::verbs::MemoryRegion;
use ring_abi::{Handle, Status};
use rustix::event::EventfdFlags;
use rustix::fd::OwnedFd;
use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

/// From the control thread to the poller.
pub(super) enum Command {
    Attach(Box<Session>),
    /// Makes it an owner session.
    Stage {
        session: u64,
        staging: Box<Staging>,
    },
    /// Its client asked for a notification buffer: this one.
    Notifications {
        session: u64,
        buffer: Arc<SharedPages>,
    },
    Grant {
        session: u64,
        handle: Handle,
        granted: Granted,
    },
    /// `leave_mark`: the handle stays, as one whose owner has withdrawn the region.
    Withdraw {
        session: u64,
        handle: Handle,
        leave_mark: bool,
    },
    Cancel {
        session: u64,
        request: u64,
        first: u64,
    },
    Detach {
        session: u64,
        reason: Status,
    },
    /// A connection to another engine. Its memory is reached by the link that comes with it, else over its sockets.
    PeerUp(Box<Connected>, Option<Box<dyn Transport>>),
    /// It is not wanted any more, or another one takes its place.
    PeerEnd(SeatId),
    /// A client wants to open a peer's export; [`Event::RemoteOpened`] answers.
    RemoteOpen {
        seat: SeatId,
        request: u64,
        name: String,
        rights: Rights,
    },
    /// No client has the region any more.
    RemoteClose(Arc<Remote>),
    /// Answers [`Event::PeerAsks`].
    PeerOpened {
        seat: SeatId,
        request: u64,
        answer: Result<PeerExport, (Status, String)>,
    },
    /// Tells a peer where it gets the files of regions that it opens. Sent for connections of which both sides offer it.
    PeerHere {
        seat: SeatId,
        here: Here,
    },
    /// Asks which region a peer has open by that number; [`Event::PeerFetches`] answers.
    PeerFetch {
        seat: SeatId,
        number: u32,
        session: u64,
    },
    /// Takes a region away from all peers; [`Event::PeersLeft`] answers when none touches it any more.
    PeerWithdraw {
        region: Arc<Region>,
        ticket: u64,
    },
    /// No batch is begun any more; what has no outcome after `within` is cut. [`Event::PeersLeft`] follows when there is no
    /// connection, if there may be any.
    Stop {
        within: Duration,
        peers: Option<u64>,
    },
}

/// What a peer is given.
pub(super) struct PeerExport {
    pub region: Arc<Region>,
    pub rights: Rights,
    /// The session that has exported it, 0 for memory of the engine's process.
    pub exporter: u64,
    /// By which the peer's device reaches it; kept until the poller has granted it.
    pub exposed: Option<Arc<MemoryRegion>>,
}

/// From the poller to the control thread.
pub(super) enum Event {
    /// Nobody of that session uses the region any more.
    Withdrawn {
        session: u64,
        handle: Handle,
    },
    Cancelled {
        session: u64,
        request: u64,
        status: Status,
    },
    /// The session has drained; with its slots, if it was an owner's.
    Detached(Box<Session>, Option<Box<Staging>>),
    /// A connection is gone, and its memory is never free.
    PeerStuck(SeatId),
    /// A peer wants to open an export.
    PeerAsks {
        seat: SeatId,
        request: u64,
        rights: Rights,
        name: String,
    },
    /// The answer to a client's opening of a peer's export.
    RemoteOpened {
        request: u64,
        answer: Result<Arc<Remote>, (Status, String)>,
    },
    /// The peer's owner has withdrawn it. Said once.
    RemoteWithdrawn(Arc<Remote>),
    /// Where the peer says that files of its regions are to be had.
    PeerHere {
        seat: SeatId,
        here: Here,
    },
    /// What the engine that has connected as that session may map.
    PeerFetches {
        session: u64,
        found: Option<(Arc<Region>, Rights)>,
    },
    /// What became of an attempt to map a peer's region; from the thread that made it.
    RemoteMapped {
        request: u64,
        mapped: Result<Region, AttachError>,
    },
    /// What became of the setup of a connection; from the thread that did it. `None`: nothing, and the connection is gone.
    PeerSetUp {
        seat: SeatId,
        done: Option<Box<SetUp>>,
    },
    /// No peer touches the region any more, or any.
    PeersLeft {
        ticket: u64,
    },
    /// A connection is gone: the regions that were opened on it are, too.
    PeerDown {
        seat: SeatId,
        /// Because the peer did what no engine does.
        is_violated: bool,
    },
    /// The poller is gone, in good order or by a panic, and its workers with it.
    PollerGone,
}

/// From the process that has the engine.
pub(super) enum Request {
    Connect(Socket),
    Listen { listener: OwnedFd, path: PathBuf },
    Export { name: String, region: Arc<Region>, answer: Sender<Status> },
    Unadopt { name: String, answer: Sender<()> },
    ConnectPeer(Box<Endpoint>),
    Stop { within: Duration },
    Watch(Watcher),
}

/// Goes with the control thread; whoever has the other end sees that.
pub(super) type Watcher = Sender<Infallible>;

pub(super) enum Letter {
    Event(Event),
    Request(Request),
}

/// What the poller writes to the control thread with. Never blocks.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    letters: Sender<Letter>,
    bell: Arc<OwnedFd>,
}

/// The control thread's end of it.
pub(super) struct Inbox {
    pub letters: Receiver<Letter>,
    pub bell: Arc<OwnedFd>,
    pub sender: Outbox,
}

pub(super) fn inbox() -> io::Result<(Inbox, Outbox)> {
    let bell = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, letters) = mpsc::channel();
    let outbox = Outbox { letters: sender, bell: bell.clone() };
    Ok((Inbox { letters, bell, sender: outbox.clone() }, outbox))
}

impl Outbox {
    pub fn send(&self, event: Event) {
        // A control thread that is gone needs no news.
        let _ = self.post(Letter::Event(event));
    }

    fn post(&self, letter: Letter) -> Result<(), EngineError> {
        self.letters.send(letter).map_err(|_| EngineError::Stopped)?;
        ring_bell(&self.bell);
        Ok(())
    }
}

/// How the process that has the engine talks to the control thread.
#[derive(Clone, Debug)]
pub(super) struct ControlHandle(pub Outbox);

impl ControlHandle {
    pub fn connect(&self) -> Result<Socket, AttachError> {
        let (client, engine) = Socket::pair()?;
        self.send(Request::Connect(engine)).map_err(|_| AttachError::Closed)?;
        Ok(client)
    }

    pub fn send(&self, request: Request) -> Result<(), EngineError> {
        self.0.post(Letter::Request(request))
    }

    pub fn stop(&self, within: Duration) {
        // An engine that has stopped already is what was asked for.
        let _ = self.send(Request::Stop { within });
    }
}

pub(super) fn ring_bell(bell: &OwnedFd) {
    // Fails only if the counter is full, which wakes as well.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}
