//! Sessions with an engine.

use crate::args::{alone, given, hand_over, place, sized, text};
use crate::engine::scatter_ring_engine;
use crate::error::{Failure, invalid, run, scatter_ring_error};
use ring_abi::Status;
use rust::attach::Socket;
use rust::client::{Client, ClientError, Peer, Setup};
use rust::region::ForkGuard;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// One session with an engine: a ring pair, and the memory registered with it. One thread at a time may use it, any: a
/// second one that comes while the first is in a call gets SCATTER_RING_STATUS_NOT_ALLOWED. A program with several
/// threads attaches several times. In a forked child every call returns SCATTER_RING_STATUS_FORKED.
pub struct scatter_ring_client {
    fork: ForkGuard,
    serial: u64,
    wake: RawFd,
    inner: Mutex<Inner>,
}

pub struct Inner {
    pub client: Client,
    /// Those that it has asked for.
    peers: Vec<Peer>,
}

/// What a client asks for when it attaches. Set `size`, and whatever else is not to be as it is by itself: 0 is the
/// default of every field.
///
/// scatter_ring_client_setup setup = { .size = sizeof(scatter_ring_client_setup) };
#[repr(C)]
pub struct scatter_ring_client_setup {
    /// sizeof(scatter_ring_client_setup).
    pub size: usize,
    /// Descriptors that the submission ring holds, a power of two from 4 to 1,048,576. Batches may be longer. 0: 4096.
    pub sq_capacity: u32,
    /// Spans that the completion ring holds, a power of two; a quarter of it is how many batches can be under way. 0:
    /// 1024.
    pub cq_capacity: u32,
    /// How long a wait spins before it sleeps, in ns; a wake-up costs some 20,000 ns. 0: 200,000 ns.
    pub spin_ns: u64,
    /// 1: other clients can tell this one that data is there: scatter_ring_client_next_notification().
    pub notifications: u32,
    /// 0.
    pub reserved: u32,
    /// Both rings start at this position. Anything but 0 is for tests that cross the end of the numbers.
    pub start_position: u64,
}

/// What a client has, in numbers.
#[repr(C)]
pub struct scatter_ring_client_info {
    /// What the engine offers: SCATTER_RING_FEATURES_... bits.
    pub features: u64,
    /// How often the engine slept and this client had to wake it by a system call.
    pub doorbells: u64,
    /// Descriptors that the submission ring holds.
    pub sq_capacity: u32,
    /// Spans that the completion ring holds.
    pub cq_capacity: u32,
    /// 0; later versions tell more here.
    pub reserved: [u64; 5],
}

impl scatter_ring_client {
    fn of(client: Client) -> Result<scatter_ring_client, Failure> {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let fork = ForkGuard::new()
            .map_err(|source| Failure::Client(ClientError::System { operation: "fork guard", source }))?;
        Ok(scatter_ring_client {
            fork,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            wake: client.as_fd().as_raw_fd(),
            inner: Mutex::new(Inner { client, peers: Vec::new() }),
        })
    }

    /// A number that no other client of this process has.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Its file descriptor to wait on.
    pub fn wake(&self) -> RawFd {
        self.wake
    }

    pub fn enter(&self) -> Result<MutexGuard<'_, Inner>, Failure> {
        // First, because a thread that does not exist in a child may have been in a call.
        if self.fork.is_child() {
            return Err(ClientError::Forked.into());
        }
        alone(&self.inner, "client")
    }
}

/// What every function that uses a client begins with.
pub fn enter(client: Option<&scatter_ring_client>) -> Result<MutexGuard<'_, Inner>, Failure> {
    given(client, "client")?.enter()
}

/// Attaches to the engine that listens at `path`.
///
/// @param setup NULL: all defaults. Only read during the call.
/// @param client Set to the client, which the caller owns and ends with scatter_ring_client_free(); to NULL if the
/// call fails.
/// @return 0; SCATTER_RING_STATUS_ENGINE_LOST if nobody listens there, SCATTER_RING_STATUS_NOT_ALLOWED,
/// SCATTER_RING_STATUS_VERSION_MISMATCH, SCATTER_RING_STATUS_INVALID_SETTING, SCATTER_RING_STATUS_LIMIT_EXCEEDED: the
/// message says what to do.
///
/// Threads: any. Fork: the session stays the parent's; a child attaches by itself.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_attach(
    path: *const c_char,
    setup: *const scatter_ring_client_setup,
    client: Option<&mut MaybeUninit<*mut scatter_ring_client>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let client = place(client, "client")?;
        let setup = setup_of(setup)?;
        // SAFETY: NULL or a string, says the header.
        let path = unsafe { text(path, "path") }?;
        Ok(hand_over(client, scatter_ring_client::of(Client::attach_with(path, &setup)?)?))
    })
}

/// Attaches to an engine in this process.
///
/// @param setup NULL: all defaults. Only read during the call.
/// @param client As of scatter_ring_client_attach(). It may outlive the engine: its session then ends.
/// @return As scatter_ring_client_attach().
///
/// Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child of the engine's process.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_attach_engine(
    engine: Option<&scatter_ring_engine>,
    setup: *const scatter_ring_client_setup,
    client: Option<&mut MaybeUninit<*mut scatter_ring_client>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let client = place(client, "client")?;
        let setup = setup_of(setup)?;
        let socket = given(engine, "engine")?.connect()?;
        Ok(hand_over(client, scatter_ring_client::of(Client::over(socket, &setup)?)?))
    })
}

/// Attaches over a connected socket: what scatter_ring_engine_connect() of this or another process has given.
///
/// @param fd Is the client's from now on, and closed if the call fails; except for a number that is no open file
/// descriptor.
/// @param setup NULL: all defaults. Only read during the call.
/// @param client As of scatter_ring_client_attach().
/// @return As scatter_ring_client_attach(); SCATTER_RING_STATUS_BAD_FD for a number that is no open file descriptor.
///
/// Threads: any. Fork: the session is that of the process that has attached.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_over(
    fd: c_int,
    setup: *const scatter_ring_client_setup,
    client: Option<&mut MaybeUninit<*mut scatter_ring_client>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        check_open(fd)?;
        // SAFETY: it is open, and the caller hands it over, says the header.
        let socket = Socket::new(unsafe { OwnedFd::from_raw_fd(fd) });
        let client = place(client, "client")?;
        let setup = setup_of(setup)?;
        Ok(hand_over(client, scatter_ring_client::of(Client::over(socket, &setup)?)?))
    })
}

/// Ends a session, whatever is under way, and frees the client. Its regions and tickets are freed by themselves,
/// before or after. Memory of a batch that had no outcome is kept until its region's handle is freed too.
///
/// @param client The handle, which is gone afterwards. NULL: nothing happens.
///
/// Threads: any, once, when no other call with it is under way. Fork: in a child only the child's handle is freed.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_free(client: Option<Box<scatter_ring_client>>) {
    run(None, || {
        drop(client);
        Ok(0)
    });
}

/// What this client has, in numbers.
///
/// @param info The caller's, filled.
/// @return 0, or a status below 0.
///
/// Threads: one at a time. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_get_info(
    client: Option<&scatter_ring_client>,
    info: Option<&mut MaybeUninit<scatter_ring_client_info>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let info = given(info, "info")?;
        let entered = enter(client)?;
        let client = &entered.client;
        info.write(scatter_ring_client_info {
            features: client.features().0,
            doorbells: client.doorbells(),
            sq_capacity: client.sq_capacity(),
            cq_capacity: client.cq_capacity(),
            reserved: [0; 5],
        });
        Ok(0)
    })
}

/// Another engine, by its endpoint's text. Returns when this client's engine has a connection to it; the engine keeps
/// it, for all its clients, and dials again when it is lost.
///
/// @param endpoint What scatter_ring_engine_endpoint() or `scatter-ring serve` of the other has given.
/// @param peer Set to a number for scatter_ring_region_open_at(), never 0.
/// @return 0; SCATTER_RING_STATUS_PEER_UNREACHABLE if there is no connection after some attempts or 5 s,
/// SCATTER_RING_STATUS_UNSUPPORTED if the engine has no peers, SCATTER_RING_STATUS_INVALID_SETTING for a text that is
/// no endpoint.
///
/// Threads: one at a time; it waits. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_connect_peer(
    client: Option<&scatter_ring_client>,
    endpoint: *const c_char,
    peer: Option<&mut MaybeUninit<u64>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        // SAFETY: NULL or a string, says the header.
        let endpoint = unsafe { text(endpoint, "endpoint") }?;
        let number = given(peer, "peer")?;
        let mut entered = enter(client)?;
        let peer = entered.client.connect(endpoint)?;
        number.write(entered.number(peer));
        Ok(0)
    })
}

impl Inner {
    /// Remembers a peer by its number, which is what C has of it.
    fn number(&mut self, peer: Peer) -> u64 {
        if !self.peers.contains(&peer) {
            self.peers.push(peer);
        }
        peer.number()
    }

    /// The peer with this number.
    pub fn peer(&self, number: u64) -> Result<Peer, Failure> {
        self.peers.iter().copied().find(|peer| peer.number() == number).ok_or_else(|| {
            invalid(format!("{number} is no peer of this client: take what scatter_ring_client_connect_peer has given"))
        })
    }
}

/// A file descriptor of the caller's that is open.
pub fn check_open(fd: c_int) -> Result<(), Failure> {
    // SAFETY: asks for flags, whatever the number is.
    if fd < 0 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(Failure::Misuse(Status::BAD_FD, format!("{fd} is no open file descriptor")));
    }
    Ok(())
}

fn setup_of(given: *const scatter_ring_client_setup) -> Result<Setup, Failure> {
    // SAFETY: NULL or a structure with its size, says its comment.
    let given = unsafe { sized(given, "scatter_ring_client_setup") }?;
    let mut setup =
        Setup { notifications: given.notifications != 0, start_position: given.start_position, ..Setup::default() };
    if given.sq_capacity != 0 {
        setup.sq_capacity = given.sq_capacity;
    }
    if given.cq_capacity != 0 {
        setup.cq_capacity = given.cq_capacity;
    }
    if given.spin_ns != 0 {
        setup.spin = Duration::from_nanos(given.spin_ns);
    }
    Ok(setup)
}
