//! The client: memory, batches, and their outcomes.
//!
//! A [`Client`] attaches to an engine, gives it [`Region`]s, and describes in [`Batch`]es what to move between them. The
//! descriptors go through a ring in shared memory: while the engine is awake, submitting and reaping are no system calls.
//!
//! ```no_run
//! use scatter_ring::client::{Client, Rows};
//! use scatter_ring::region::Rights;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut client = Client::attach("/run/scatter-ring/socket")?;
//! let table = client.open("embeddings", Rights::READ)?;
//! let out = client.allocate(3 * 264)?;
//!
//! // One call: three rows of 264 bytes.
//! client.read_rows(&table, 264, &[7, 0, 99_999], &out, 0)?;
//!
//! // The same as a batch, which may mix any number of descriptors.
//! let index = client.allocate(4096)?;
//! index.write_at(0, &[7u32, 0, 99_999].map(u32::to_le_bytes).concat())?;
//! let mut batch = client.batch().hint(3, 3 * 264);
//! batch.read_rows(&Rows::new(&table, 264, &index, 3, &out))?;
//! let ticket = batch.submit()?;
//! let outcome = client.wait(&ticket)?;
//! assert_eq!(outcome.bytes, 3 * 264);
//! # Ok(())
//! # }
//! ```
//!
//! Safe code cannot free or reuse memory that a batch may still touch. A batch holds its regions until nobody writes to
//! them any more, which can be later than its outcome (a deadline, a cancel); see [`Region`]. If the session ends before
//! a batch was released, its regions stay [busy](ClientError::Busy) for good.

mod batch;
mod calls;
mod error;
mod future;
mod memory;
mod notify;
mod outcome;
mod peer;
mod pending;
mod produce;
mod session;
mod shapes;
mod wait;

pub use batch::Batch;
pub use error::{BatchError, ClientError, PushError};
pub use future::{AsyncClient, Transfer};
pub use memory::Region;
pub use notify::Notification;
pub use outcome::{Outcome, Times};
pub use peer::Peer;
pub use pending::Ticket;
pub use shapes::{Blocks, Missing, Ranges, RowNumbers, Rows, Tile};

use crate::attach::{self, ClientAreas, Socket};
use crate::ring::{Sleeper, Waker};
use notify::Notifications;
use pending::Pending;
use produce::Building;
use ring_abi::{Features, Kind, Span, Status};
use rustix::fd::OwnedFd;
use session::Session;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a client asks for when it attaches.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Descriptors that the submission ring holds, a power of two. Batches may be longer.
    pub sq_capacity: u32,
    /// Spans that the completion ring holds, a power of two. A quarter of it is how many batches can be under way.
    pub cq_capacity: u32,
    /// Both rings start at this position. Anything but 0 is for tests that cross a wrap.
    pub start_position: u64,
    /// How long a wait spins before it sleeps. A wake costs some 20 us.
    pub spin: Duration,
    /// Other clients can tell this one that data is there: see [`Batch::notify`] and [`Client::next_notification`].
    pub notifications: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            sq_capacity: 4096,
            cq_capacity: 1024,
            start_position: 0,
            spin: Duration::from_micros(200),
            notifications: false,
        }
    }
}

/// One session with an engine: a ring pair and the memory registered with it.
///
/// `Send` but not `Sync`: one thread at a time. A program with several threads attaches several times; one with several
/// tasks wants an [`AsyncClient`]. When the client is dropped its session ends, whatever is under way. In a forked child every call fails.
///
/// ```compile_fail
/// fn shared_between_threads<T: Sync>() {}
/// shared_between_threads::<scatter_ring::client::Client>();
/// ```
#[derive(Debug)]
pub struct Client {
    session: Arc<Session>,
    areas: ClientAreas,
    doorbell: OwnedFd,
    wake: OwnedFd,
    waker: Waker,
    /// System calls made to wake the engine.
    doorbells: u64,
    sleeper: Sleeper,
    spin: Duration,
    pending: Pending,
    building: Building,
    /// Spans that no ticket accounts for, taken while waiting for something else.
    backlog: VecDeque<Span>,
    /// `None`: not asked for.
    notifications: Option<Notifications>,
    /// True once something was pushed without a batch.
    raw_used: bool,
    /// True while what was pushed so has no LAST yet.
    raw_open: bool,
    /// See [`index_region`](Self::index_region).
    index_regions: Vec<Region>,
    /// How often something was looked for since the last time that it came, and since when that goes on.
    looks_in_vain: u32,
    quiet_since: Option<Instant>,
    ended: Cell<Option<Ended>>,
    /// Number of the next question on the attach socket.
    requests: Cell<u64>,
    /// Questions whose answers came too late, if ever.
    given_up: RefCell<Vec<u64>>,
}

// A client is one producer and one consumer; regions may be used from everywhere.
static_assertions::assert_impl_all!(Client: Send);
static_assertions::assert_not_impl_any!(Client: Sync, Clone);
static_assertions::assert_impl_all!(Region: Send, Sync, Clone);
static_assertions::assert_impl_all!(AsyncClient: Send, Sync, Clone);
static_assertions::assert_impl_all!(Transfer: Send, Future<Output = Result<Outcome, BatchError>>);

/// Why there is no session any more.
#[derive(Clone, Copy, Debug)]
enum Ended {
    /// The engine said so.
    Stopped(Status),
    /// The engine's ends of the sockets are closed.
    Gone,
    /// The engine did what it must not.
    Broken(&'static str),
}

impl Client {
    /// Attaches to the engine that listens at `path`.
    ///
    /// # Errors
    /// Nobody listens there, it is not permitted, or the versions differ: each with what to do about it.
    ///
    /// ```
    /// let error = scatter_ring::client::Client::attach("/nowhere/sock").unwrap_err();
    /// assert!(error.to_string().contains("is `scatter-ring serve` running"));
    /// ```
    pub fn attach(path: impl AsRef<Path>) -> Result<Client, ClientError> {
        Self::attach_with(path, &Setup::default())
    }

    /// The same with settings.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_with(path: impl AsRef<Path>, setup: &Setup) -> Result<Client, ClientError> {
        Self::over(attach::connect(path.as_ref())?, setup)
    }

    /// Attaches over a connected socket, for an engine in this process.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn over(socket: Socket, setup: &Setup) -> Result<Client, ClientError> {
        let session::Attached { session, areas, doorbell, wake } = session::hello(socket, setup)?;
        let mut client = Client {
            session: Arc::new(session),
            areas,
            doorbell,
            wake,
            waker: Waker::default(),
            doorbells: 0,
            sleeper: Sleeper::default(),
            spin: setup.spin,
            pending: Pending::default(),
            building: Building::default(),
            backlog: VecDeque::new(),
            notifications: None,
            raw_used: false,
            raw_open: false,
            index_regions: Vec::new(),
            looks_in_vain: 0,
            quiet_since: None,
            ended: Cell::new(None),
            requests: Cell::new(1),
            given_up: RefCell::default(),
        };
        if setup.notifications {
            client.enable_notifications()?;
        }
        Ok(client)
    }

    /// What the engine offers.
    #[must_use]
    pub fn features(&self) -> Features {
        self.areas.features()
    }

    /// How often the engine slept and this client had to wake it by a system call.
    #[must_use]
    pub fn doorbells(&self) -> u64 {
        self.doorbells
    }

    /// Descriptors that the submission ring holds.
    #[must_use]
    pub fn sq_capacity(&self) -> u32 {
        self.areas.header.sq_capacity
    }

    /// Spans that the completion ring holds.
    #[must_use]
    pub fn cq_capacity(&self) -> u32 {
        self.areas.header.cq_capacity
    }

    /// Cancels a batch, by the attach socket: this also works while the ring is full. False: it is not under way, or is
    /// ending already. The batch's outcome then says what came of it.
    ///
    /// # Errors
    /// The session has ended, or the ticket is another client's.
    pub fn cancel(&mut self, ticket: &Ticket) -> Result<bool, ClientError> {
        self.usable()?;
        if self.pending.get(ticket).is_none() {
            return Err(ClientError::Foreign);
        }
        match self.ask(Kind::CANCEL, &[ticket.position()], "", &[]) {
            Ok(_) => Ok(true),
            Err(error) if error.status() == Status::NOT_FOUND => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// An error once the session has ended or in a forked child.
    fn usable(&self) -> Result<(), ClientError> {
        if self.session.is_child() {
            return Err(ClientError::Forked);
        }
        self.ended.get().map_or(Ok(()), |ended| Err(ended.into()))
    }

    /// Notes why the session has ended: the first reason stays.
    #[cold]
    fn end(&self, why: Ended) {
        if self.ended.get().is_none() {
            self.ended.set(Some(why));
            self.session.end();
        }
    }

    #[cold]
    fn broken(&self, what: &'static str) -> ClientError {
        self.end(Ended::Broken(what));
        ClientError::Broken(what)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.session.end();
    }
}

impl Ended {
    fn status(self) -> Status {
        match self {
            Ended::Stopped(status) => status,
            Ended::Gone => Status::ENGINE_LOST,
            Ended::Broken(_) => Status::BAD_RING,
        }
    }
}

impl From<Ended> for ClientError {
    fn from(ended: Ended) -> ClientError {
        match ended {
            Ended::Broken(what) => ClientError::Broken(what),
            other => ClientError::Ended(other.status()),
        }
    }
}
