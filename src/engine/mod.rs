//! The engine: one poller, a few copy workers, a control thread.
//!
//! The poller serves rings and nothing else: it makes no system call while it has work, and waits for nobody. Whatever
//! may take time (accepting, mapping, unmapping) is the control thread's; the two talk through channels.
//!
//! ```
//! use scatter_ring::client::{Client, Setup};
//! use scatter_ring::engine::{Config, Engine};
//! use scatter_ring::region::Rights;
//!
//! let engine = Engine::new(&Config::default())?.start()?;
//! let mut client = Client::over(engine.connect()?, &Setup::default())?;
//! let table = client.allocate(1 << 20)?;
//! table.write_at(264 * 7, b"row seven")?;
//! let out = client.allocate(264 * 2)?;
//! client.read_rows(&table, 264, &[7, 0], &out, 0)?;
//! let mut row = [0; 9];
//! out.read_at(0, &mut row)?;
//! assert_eq!(&row, b"row seven");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod admit;
mod config;
mod control;
mod crowd;
mod exports;
mod leases;
mod listen;
mod mail;
mod mapping;
mod memory;
mod notify;
mod part;
mod parts;
mod peers;
mod poller;
mod registering;
mod remote;
mod rows;
mod session;
mod staged;
mod staging;
mod start;
mod verbs;

pub use crate::pack::calibrate;
#[doc(inline)]
pub use crate::peer::{
    ADDRESSES_MAX, ENDPOINT_BYTES_MAX, Endpoint, EndpointError, Identity, KeyError, KeyId, StartError, make_key_file,
};
pub use crate::stats::Counters;
pub use config::{Config, Limits, PeerSettings, PeerTransport, VerbsLibrary};
pub use listen::{ListenError, check_listen};

use crate::attach::{AttachError, Socket};
use crate::peer::Peers;
pub use crate::region::guard::install as guard_process;
use crate::region::{
    Backing, ForkGuard, Region, RegionError, Rights, check_no_device_memory, find_backing, forget_threads,
};
use crate::stats::Stats;
use control::Control;
use mail::{ControlHandle, Request};
use peers::Peering;
use poller::Poller;
use ring_abi::{Features, Status};
use rustix::fs::{Mode, OFlags};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use verbs::Verbs;

/// What every engine offers its clients. One with [peers](Config::peers) offers [`Features::PEERS`] too.
pub const FEATURES: Features =
    Features(Features::LOCAL | Features::INDEX | Features::EXTENSION | Features::STAGED | Features::NOTIFY);

/// An engine whose poller is the caller's to drive: see [`poll_once`](Self::poll_once), or [`start`](Self::start) it on a
/// thread of its own.
pub struct Engine {
    poller: Poller,
    control: ControlHandle,
    control_thread: Option<JoinHandle<()>>,
    fork: Arc<ForkGuard>,
    stats: Arc<Stats>,
    shared: bool,
    meeting: Option<Meeting>,
}

/// That there are peers.
#[derive(Clone, Debug)]
struct Meeting {
    /// `None`: nothing is listened on.
    endpoint: Option<Endpoint>,
    /// Engines on this host may map what is exported.
    maps: bool,
}

/// An engine whose poller runs. Dropping it stops it.
#[derive(Debug)]
pub struct RunningEngine {
    control: ControlHandle,
    threads: Vec<JoinHandle<()>>,
    fork: Arc<ForkGuard>,
    stats: Arc<Stats>,
    /// Other users may attach.
    shared: bool,
    /// `None`: no peers.
    meeting: Option<Meeting>,
}

/// Why an engine cannot do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The kernel refused something.
    #[error("{operation}: {source}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The socket cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The memory cannot be a region.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The file cannot be served.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: RegionError,
    },
    /// The name is taken, or this engine has no peers.
    #[error("{0}")]
    Refused(Status),
    /// A value of [`PeerSettings`] that an engine cannot have.
    #[error("peers: {0}")]
    PeerSetting(String),
    /// The key file cannot be used.
    #[error("key file {0}")]
    Key(#[from] KeyError),
    /// Other engines cannot be met this way.
    #[error("peers: {0}")]
    Peers(#[from] StartError),
    /// Peers are to be reached by RDMA verbs only, and here there are none.
    #[error("peers: transport = \"verbs\": {0}")]
    NoVerbs(String),
    /// The engine has stopped.
    #[error("the engine has stopped")]
    Stopped,
}

impl Engine {
    /// An engine without clients.
    ///
    /// # Errors
    /// If the kernel refuses a thread or a file descriptor, or peers cannot be had as [`Config::peers`] says.
    pub fn new(config: &Config) -> Result<Engine, EngineError> {
        let system = |operation| move |source| EngineError::System { operation, source };
        // First, because this is what can be wrong.
        let start = |settings: &PeerSettings| {
            // The values, before a device is opened with them.
            settings.peer_config(false)?;
            let device = settings.open_device()?;
            Ok::<_, EngineError>((Peers::start(settings.peer_config(device.is_some())?)?, device))
        };
        let (peers, device) = config.peers.as_ref().map(start).transpose()?.unzip();
        let maps = config.peers.as_ref().is_some_and(|settings| settings.map_memory);
        let meeting = peers.as_ref().map(|(peers, _)| Meeting { endpoint: peers.endpoint().cloned(), maps });
        let remote = config.peers.as_ref().map(|settings| settings.remote(config.spin));
        let fork = Arc::new(ForkGuard::new().map_err(system("making the fork guard"))?);
        let (commands, commands_in) = mpsc::channel();
        let (inbox, outbox) = mail::inbox().map_err(system("eventfd"))?;
        let poller = Poller::new(config.workers, config.spin, fork.clone(), commands_in, outbox, remote.clone())
            .map_err(system("starting the poller"))?;
        let verbs = remote.zip(device.flatten()).map(|(remote, nic)| {
            tracing::info!(device = nic.describe(), "peers that can are reached by RDMA verbs");
            let requires = config.peers.as_ref().is_some_and(|settings| settings.transport == PeerTransport::Verbs);
            Verbs::new(Some(nic), requires, &remote, poller.link_bell())
        });
        let stats = Arc::new(Stats::default());
        let peering = peers.map(|(peers, events)| Peering::new(peers, events, maps, verbs));
        let (control, handle) =
            Control::new(config, stats.clone(), commands, poller.bell(), inbox, peering).map_err(system("epoll"))?;
        let thread = std::thread::Builder::new()
            .name("scatter-control".into())
            .spawn(move || control.run())
            .map_err(system("starting the control thread"))?;
        Ok(Engine {
            poller,
            control: handle,
            control_thread: Some(thread),
            fork,
            stats,
            shared: !config.users.is_empty(),
            meeting,
        })
    }

    /// How other engines reach this one, from the start on: for [`Client::connect`](crate::client::Client::connect) of their
    /// clients. `None` if it listens nowhere.
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        self.meeting.as_ref().and_then(|meeting| meeting.endpoint.clone())
    }

    /// One turn for every client, on the caller's thread. True if anything was done.
    ///
    /// Requests on attach sockets are answered by the control thread; those that have to wait for transfers (closing a
    /// region, cancelling) are answered only while somebody calls this.
    pub fn poll_once(&mut self) -> bool {
        self.poller.poll_once()
    }

    /// A connected attach socket for a client in this process.
    ///
    /// # Errors
    /// If the kernel refuses a socket.
    pub fn connect(&self) -> Result<Socket, AttachError> {
        self.control.connect()
    }

    /// Runs the poller on a thread of its own.
    ///
    /// # Errors
    /// If the kernel refuses a thread.
    pub fn start(mut self) -> Result<RunningEngine, EngineError> {
        let (control, fork, stats) = (self.control.clone(), self.fork.clone(), self.stats.clone());
        let (control_thread, shared, meeting) = (self.control_thread.take(), self.shared, self.meeting.clone());
        let poller = std::thread::Builder::new()
            .name("scatter-poll".into())
            .spawn(move || self.poller.run())
            .map_err(|source| EngineError::System { operation: "starting the poller's thread", source })?;
        Ok(RunningEngine {
            control,
            threads: control_thread.into_iter().chain([poller]).collect(),
            fork,
            stats,
            shared,
            meeting,
        })
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A forked child has none of the threads, and the engine is not its own.
        if self.fork.is_child() {
            return forget_threads(self.control_thread.take());
        }
        // `start` has taken the thread, and the running engine stops it.
        if let Some(thread) = self.control_thread.take() {
            self.control.stop(Duration::ZERO);
            // The control thread may still wait for memory that is taken away from peers.
            while !(self.poller.is_finished() && thread.is_finished()) {
                if !self.poller.poll_once() {
                    std::thread::yield_now();
                }
            }
            let _ = thread.join();
        }
    }
}

impl RunningEngine {
    /// A connected attach socket for a client in this process.
    ///
    /// # Errors
    /// If the kernel refuses a socket.
    pub fn connect(&self) -> Result<Socket, AttachError> {
        self.control.connect()
    }

    /// Accepts clients of other processes on a Unix socket. Its directory is made with mode 0700 if it is not there, and
    /// must otherwise be this user's alone, or, if other users may attach ([`Config::users`]), this user's with mode 0750:
    /// then the socket belongs to the directory's group.
    ///
    /// # Errors
    /// If the directory or the socket is not ours, or another engine serves there.
    pub fn listen(&self, path: &Path) -> Result<(), EngineError> {
        let listener = listen::bind(path, self.shared)?;
        self.control.send(Request::Listen { listener, path: path.to_owned() })
    }

    /// As [`Engine::endpoint`].
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        self.meeting.as_ref().and_then(|meeting| meeting.endpoint.clone())
    }

    /// Wants a connection to that engine from now on, also after a loss: who then asks for it need not wait. Returns at once;
    /// what becomes of it is in the log and in the [counters](Counters::peers_connected).
    ///
    /// # Errors
    /// [`Status::UNSUPPORTED`] if this engine has no [peers](Config::peers).
    pub fn connect_peer(&self, endpoint: &Endpoint) -> Result<(), EngineError> {
        if self.meeting.is_none() {
            return Err(EngineError::Refused(Status::UNSUPPORTED));
        }
        self.control.send(Request::ConnectPeer(Box::new(endpoint.clone())))
    }

    /// Exports memory of this process by name. Clients of this engine, and of its peers, can then open it.
    ///
    /// # Safety
    /// As [`Region::adopt`]: the memory must stay, and no Rust reference to it may be held while a client may write to it,
    /// until [`Adopted::close`] returns.
    ///
    /// # Errors
    /// If `bytes` is 0, the name is taken, or it is [memory of a device](check_no_device_memory).
    pub unsafe fn adopt(&self, name: &str, base: *mut u8, bytes: u64, rights: Rights) -> Result<Adopted, EngineError> {
        // SAFETY: the caller's promise is the same.
        let region = unsafe { Region::adopt(base, bytes, rights) }?;
        // Without a file it is this process's alone, which is all that clients of this engine need.
        let backing = find_backing(base, bytes).unwrap_or(None);
        backing.as_ref().map_or(Ok(()), |backing| check_no_device_memory(&backing.file))?;
        let shared = backing.as_ref().filter(|_| self.maps());
        let region = match shared.map(|backing| (backing.file.try_clone(), backing.offset)) {
            Some((Ok(file), offset)) => region.with_file(file, offset),
            _ => region,
        };
        self.export(name, region)?;
        Ok(Adopted { name: name.to_owned(), backing, control: self.control.clone(), fork: self.fork.clone() })
    }

    /// Exports a file of any file system by name, for reading, also by clients of peers, until the engine stops. With `populate` all of it is read
    /// before this returns; else each page when it is first touched, for which the poller and every client then wait.
    ///
    /// A file that is cut short meanwhile is [lost](Region::is_lost): transfers from it fail with
    /// [`Status::REGION_GONE`].
    ///
    /// # Errors
    /// If [`guard_process`] was not called, the file is not a regular one with bytes in it or cannot be opened or mapped,
    /// or the name is taken.
    pub fn serve_file(&self, name: &str, path: &Path, populate: bool) -> Result<(), EngineError> {
        let failed = |source| EngineError::File { path: path.to_owned(), source };
        // A pipe that nobody writes to must not make this wait.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| failed(RegionError::System { operation: "open", source: errno.into() }))?;
        let region = Region::of_file(&file, populate).map_err(failed)?;
        self.export(name, if self.maps() { region.with_file(file, 0) } else { region })
    }

    fn maps(&self) -> bool {
        self.meeting.as_ref().is_some_and(|meeting| meeting.maps)
    }

    fn export(&self, name: &str, region: Region) -> Result<(), EngineError> {
        let (answer, answered) = mpsc::channel();
        self.control.send(Request::Export { name: name.to_owned(), region: region.into(), answer })?;
        match answered.recv().map_err(|_| EngineError::Stopped)? {
            Status::OK => Ok(()),
            status => Err(EngineError::Refused(status)),
        }
    }

    /// What it has done so far. Numbers of one batch may be seen one after the other.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.stats.read()
    }

    /// A way to wait, on another thread, for the end of this engine: a poller that died by a bug takes it down, and nobody
    /// can attach any more.
    #[must_use]
    pub fn watch(&self) -> Watch {
        let (watcher, watch) = mpsc::channel();
        // An engine that has ended drops the watcher, which is the news.
        let _ = self.control.send(Request::Watch(watcher));
        Watch(watch)
    }

    /// Stops in good order: nobody can attach any more and no batch is begun; those under way are finished, for so long at
    /// most. What has no outcome then is [cut](Counters::batches_cut), as by [`stop`](Self::stop). Returns when nobody
    /// touches any memory any more.
    pub fn stop_within(mut self, limit: Duration) -> Counters {
        self.end(limit);
        self.counters()
    }

    /// Stops at once: nothing more is taken, what is being copied is, clients see the end of their session.
    pub fn stop(self) {
        drop(self);
    }

    fn end(&mut self, limit: Duration) {
        // A forked child has none of the threads.
        if self.fork.is_child() {
            return forget_threads(self.threads.drain(..));
        }
        self.control.stop(limit);
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing left to wait for.
            let _ = thread.join();
        }
    }
}

impl Drop for RunningEngine {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// Knows when an engine has ended: see [`RunningEngine::watch`].
#[derive(Debug)]
pub struct Watch(mpsc::Receiver<Infallible>);

impl Watch {
    /// Returns when the engine has ended, in good order or by a failure, and no client of it is attached any more.
    pub fn wait(&self) {
        // Nothing is ever sent: it returns when the other end is gone.
        let _ = self.0.recv();
    }
}

/// Memory of this process that clients can open. Dropping it closes it.
#[derive(Debug)]
pub struct Adopted {
    name: String,
    backing: Option<Backing>,
    control: ControlHandle,
    fork: Arc<ForkGuard>,
}

impl Adopted {
    /// True if it is mapped from a file that other processes could map too, and not private to this process.
    #[must_use]
    pub fn is_shareable(&self) -> bool {
        self.backing.is_some()
    }

    /// Takes the memory back: refuses new use, and returns when nobody touches it any more.
    pub fn close(self) {
        drop(self);
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        if self.fork.is_child() {
            return;
        }
        let (answer, answered) = mpsc::channel();
        if self.control.send(Request::Unadopt { name: std::mem::take(&mut self.name), answer }).is_ok() {
            // An engine that stops has drained too: the channel is closed then.
            let _ = answered.recv();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring_abi::{Kind, Message};
    use rustix::fd::AsFd;

    /// What a panic on the poller's thread does: the poller is dropped with all that it has.
    #[test]
    fn clients_and_callers_of_a_poller_that_is_gone_do_not_wait_for_ever() {
        let config = Config { workers: 1, ..Config::default() };
        let mut engine = Engine::new(&config).unwrap();
        let socket = engine.connect().unwrap();
        socket.send(&Message::hello(Features(Features::LOCAL), 8, 8, 0), &[]).unwrap();
        let mut answer = socket.receive(true).unwrap().unwrap();
        assert_eq!(answer.message.status, Status::OK);
        engine.poll_once();
        socket.send(&Message::new(Kind::CANCEL, 1, [0; 8]), &[]).unwrap();

        // A test that fails does not wait for ever either.
        for fd in [answer.fds[3].as_fd(), socket.as_fd()] {
            let limit = Some(Duration::from_secs(10));
            rustix::net::sockopt::set_socket_timeout(fd, rustix::net::sockopt::Timeout::Recv, limit).unwrap();
        }
        let (_, no_commands) = mpsc::channel();
        let (_inbox, outbox) = mail::inbox().unwrap();
        drop(std::mem::replace(
            &mut engine.poller,
            Poller::new(0, config.spin, engine.fork.clone(), no_commands, outbox, None).unwrap(),
        ));

        let wake = answer.fds.pop().unwrap();
        let mut byte = [0];
        let (ended, _) = rustix::net::recv(&wake, &mut byte[..], rustix::net::RecvFlags::empty()).unwrap();
        assert_eq!(ended, 0, "a client that waits is not told");
        assert!(matches!(socket.receive(true), Err(AttachError::Closed)), "a question stays without an answer");
        engine.control_thread.take().unwrap().join().unwrap();
        assert!(engine.connect().is_err(), "a client can still come");
    }

    #[test]
    fn who_watches_an_engine_sees_its_poller_die_and_not_before() {
        let mut engine = Engine::new(&Config { workers: 0, ..Config::default() }).unwrap();
        let (_, no_commands) = mpsc::channel();
        let (_inbox, outbox) = mail::inbox().unwrap();
        let other = Poller::new(0, Duration::ZERO, engine.fork.clone(), no_commands, outbox, None).unwrap();
        let poller = std::mem::replace(&mut engine.poller, other);
        let engine = engine.start().unwrap();
        let watch = engine.watch();
        assert_eq!(watch.0.recv_timeout(Duration::from_millis(20)), Err(mpsc::RecvTimeoutError::Timeout));
        drop(poller);
        let limit = Duration::from_secs(10);
        assert_eq!(watch.0.recv_timeout(limit), Err(mpsc::RecvTimeoutError::Disconnected));
        engine.watch().wait();
    }
}
