//! The engine in the process of C, and memory that it adopts.

use crate::args::{given, hand_over, place, sized, text};
use crate::error::{Failure, invalid, run, scatter_ring_error};
use crate::signals::Blocked;
use ring_abi::Status;
use rust::attach::Socket;
use rust::engine::{
    Adopted, Config, Counters, Endpoint, Engine, PeerSettings, PeerTransport, RunningEngine, guard_process,
};
use rust::region::{ForkGuard, Trust};
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::Path;
use std::sync::RwLock;
use std::time::Duration;

/// An engine in this process: it moves memory, on threads of its own, which block all signals, for clients of this
/// process, of others on this host, and of other engines. Any thread may use it, several at a time. In a forked child
/// every call returns SCATTER_RING_STATUS_FORKED.
pub struct scatter_ring_engine {
    fork: ForkGuard,
    /// `None` once it was stopped.
    running: RwLock<Option<RunningEngine>>,
}

/// Memory of this process that clients of an engine in this process can open by its name. Any thread may use it, one
/// at a time.
pub struct scatter_ring_adopted(Adopted);

/// How peers are reached: RDMA verbs where both sides have a device, else TCP.
pub const SCATTER_RING_TRANSPORT_AUTO: u32 = 0;
/// How peers are reached: RDMA verbs only.
pub const SCATTER_RING_TRANSPORT_VERBS: u32 = 1;
/// How peers are reached: TCP only.
pub const SCATTER_RING_TRANSPORT_TCP: u32 = 2;

/// How an engine runs. Set `size`, and whatever else is not to be as it is by itself: 0 and NULL are the default of
/// every field.
///
/// scatter_ring_engine_config config = { .size = sizeof(scatter_ring_engine_config) };
#[repr(C)]
pub struct scatter_ring_engine_config {
    /// sizeof(scatter_ring_engine_config).
    pub size: usize,
    /// Copy workers besides the poller. 0: one less than there are processors, at most 4. -1: none.
    pub workers: i32,
    /// 1: also unsealed memory files of this user are accepted as regions. Takes SIGBUS over: see
    /// scatter_ring_guard_process().
    pub trust_same_user: u32,
    /// How long the engine's threads spin before they sleep, in ns. 0: 200,000 ns.
    pub spin_ns: u64,
    /// Users besides this one and root whose processes may attach, by their numbers.
    pub users: *const u32,
    /// How many.
    pub user_count: usize,
    /// 1: this engine meets others. It does too if `peer_listen_count` is not 0.
    pub peers: u32,
    /// SCATTER_RING_TRANSPORT_...
    pub peer_transport: u32,
    /// Where to listen for other engines, each as "127.0.0.1:0" or "[::1]:4000"; port 0: the kernel chooses. Without a
    /// key file only loopback addresses.
    pub peer_listen: *const *const c_char,
    /// How many.
    pub peer_listen_count: usize,
    /// What others are told to connect to. None: what is listened on.
    pub peer_advertise: *const *const c_char,
    /// How many.
    pub peer_advertise_count: usize,
    /// The file with the key that engines share, as `scatter-ring key` makes it. NULL: none, loopback addresses only.
    pub peer_key_file: *const c_char,
    /// The RDMA device by its name. NULL: the first with a port that is up.
    pub peer_device: *const c_char,
    /// Sockets of a connection to another engine, 1 to 16. 0: 3.
    pub peer_lanes: u32,
    /// Slots of a connection for each direction, 1 to 1024. 0: 16.
    pub peer_slots: u32,
    /// Bytes of a slot: a multiple of 4096, 16 KiB to 16 MiB. 0: 256 KiB.
    pub peer_slot_bytes: u32,
    /// 1: memory of engines on the same host is not mapped: everything goes over the connection.
    pub peer_no_mapping: u32,
}

/// What an engine has done since it started.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct scatter_ring_counters {
    /// Sessions that began.
    pub sessions: u64,
    /// Sessions that have ended, for whatever reason.
    pub sessions_ended: u64,
    /// Regions that were registered.
    pub regions: u64,
    /// Ring slots whose outcome was shown to their client.
    pub descriptors: u64,
    /// Bytes that clients were told are in place.
    pub bytes: u64,
    /// Batches that are done.
    pub batches_done: u64,
    /// Batches that have failed, by a deadline or a cancel too.
    pub batches_failed: u64,
    /// Batches that had no outcome when their session ended.
    pub batches_cut: u64,
    /// Notifications that were put before clients.
    pub notifications: u64,
    /// Connections to other engines that began.
    pub peers_connected: u64,
    /// Connections to other engines that have ended.
    pub peers_ended: u64,
    /// 0; later versions count more here.
    pub reserved: [u64; 5],
}

impl scatter_ring_engine {
    /// Does something with the engine, unless it was stopped or is the parent's.
    pub fn with<T>(&self, call: impl FnOnce(&RunningEngine) -> Result<T, Failure>) -> Result<T, Failure> {
        self.check_process()?;
        let running = self.running.read().unwrap_or_else(|e| e.into_inner());
        let stopped = || Failure::Misuse(Status::STOPPING, "this engine was stopped".into());
        call(running.as_ref().ok_or_else(stopped)?)
    }

    pub fn connect(&self) -> Result<Socket, Failure> {
        let refused = |error: rust::attach::AttachError| Failure::Client(error.into());
        self.with(|engine| engine.connect().map_err(refused))
    }

    fn check_process(&self) -> Result<(), Failure> {
        if self.fork.is_child() {
            let text = "this engine runs in the parent process: create one in the child";
            return Err(Failure::Misuse(Status::FORKED, text.into()));
        }
        Ok(())
    }
}

/// Starts an engine in this process.
///
/// @param config NULL: all defaults, no peers. Only read during the call, with all that it names.
/// @param engine Set to the engine, which the caller owns and ends with scatter_ring_engine_free(); to NULL if the
/// call fails.
/// @return 0; SCATTER_RING_STATUS_INVALID_SETTING for a setting that cannot be, SCATTER_RING_STATUS_NO_MEMORY if the
/// kernel refuses a thread or a file descriptor, SCATTER_RING_STATUS_UNSUPPORTED if RDMA verbs must be used and
/// cannot.
///
/// Threads: any. Fork: the engine stays in the parent; a child may create one of its own.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_engine_create(
    config: *const scatter_ring_engine_config,
    engine: Option<&mut MaybeUninit<*mut scatter_ring_engine>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let engine = place(engine, "engine")?;
        // SAFETY: NULL or a configuration with its size, says its comment.
        let config = unsafe { sized(config, "scatter_ring_engine_config") }?;
        let config = config_of(&config)?;
        if config.trust == Trust::SameUser {
            take_sigbus()?;
        }
        let _signals = Blocked::new();
        let running = Engine::new(&config)?.start()?;
        let system = |source| Failure::Engine(rust::engine::EngineError::System { operation: "fork guard", source });
        let fork = ForkGuard::new().map_err(system)?;
        Ok(hand_over(engine, scatter_ring_engine { fork, running: RwLock::new(Some(running)) }))
    })
}

/// Accepts clients of other processes on a Unix socket.
///
/// @param path The socket. Its directory is made with mode 0700 if it is not there; it must be this user's, and closed
/// to others.
/// @return 0; SCATTER_RING_STATUS_NOT_ALLOWED if the directory or the socket is not ours, or another engine serves
/// there.
///
/// Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_engine_listen(
    engine: Option<&scatter_ring_engine>,
    path: *const c_char,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        // SAFETY: NULL or a string, says the header.
        let path = unsafe { text(path, "path") }?;
        given(engine, "engine")?.with(|engine| Ok(engine.listen(Path::new(path))?))?;
        Ok(0)
    })
}

/// Writes down how other engines reach this one, for scatter_ring_client_connect_peer() of their clients: letters,
/// digits, "-" and "_", as long as the engine runs. Nothing in it is secret.
///
/// @param endpoint `capacity` bytes of the caller's, for the text and a NUL. 2048 are always enough.
/// @return Bytes of the text without its NUL; SCATTER_RING_STATUS_UNSUPPORTED if this engine does not listen for
/// others, SCATTER_RING_STATUS_INVALID_SETTING if `capacity` is too small.
///
/// Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_engine_endpoint(
    engine: Option<&scatter_ring_engine>,
    endpoint: *mut c_char,
    capacity: usize,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let found = given(engine, "engine")?.with(|engine| Ok(engine.endpoint()))?;
        let none = "this engine does not listen for others: set scatter_ring_engine_config.peer_listen";
        let text = found.ok_or_else(|| Failure::Misuse(Status::UNSUPPORTED, none.into()))?.to_string();
        if endpoint.is_null() || capacity <= text.len() {
            return Err(invalid(format!("the endpoint takes {} bytes, its NUL counted", text.len() + 1)));
        }
        // SAFETY: `capacity` bytes of the caller's, says the header, of which these are no more.
        unsafe {
            endpoint.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
            endpoint.add(text.len()).write(0);
        }
        Ok(text.len() as i32)
    })
}

/// Wants a connection to another engine from now on, also after a loss. Returns at once; clients that ask for it with
/// scatter_ring_client_connect_peer() need not wait then.
///
/// @param endpoint What scatter_ring_engine_endpoint() or `scatter-ring serve` of the other has given.
/// @return 0; SCATTER_RING_STATUS_INVALID_SETTING for a text that is no endpoint, SCATTER_RING_STATUS_UNSUPPORTED if
/// this engine has no peers.
///
/// Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_engine_connect_peer(
    engine: Option<&scatter_ring_engine>,
    endpoint: *const c_char,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        // SAFETY: NULL or a string, says the header.
        let endpoint = unsafe { text(endpoint, "endpoint") }?;
        let endpoint: Endpoint = endpoint.parse().map_err(|error| invalid(format!("endpoint: {error}")))?;
        given(engine, "engine")?.with(|engine| Ok(engine.connect_peer(&endpoint)?))?;
        Ok(0)
    })
}

/// A connected attach socket of this engine, for a client that attaches by itself: the header-only C++ producer's
/// Client::over, or scatter_ring_client_over().
///
/// @return A file descriptor, which is the caller's to close or to hand over; or a status below 0.
///
/// Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_engine_connect(
    engine: Option<&scatter_ring_engine>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || Ok(OwnedFd::from(given(engine, "engine")?.connect()?).into_raw_fd()))
}

/// Exports memory of this process by name: clients of this engine, and of its peers, can open it. Nothing is copied;
/// the memory may be malloc'ed, static, or mapped.
///
/// @param memory Stays the caller's. It must stay where it is until scatter_ring_adopted_release() or
/// scatter_ring_engine_stop() has returned; until then clients may read it at any time and, with that right, write it.
/// @param bytes At least 1.
/// @param rights SCATTER_RING_RIGHTS_READ, SCATTER_RING_RIGHTS_WRITE, or both: what clients may do.
/// @param adopted Set to a handle that the caller owns and ends with scatter_ring_adopted_release(); to NULL if the
/// call fails.
/// @return 0; SCATTER_RING_STATUS_NAME_TAKEN; SCATTER_RING_STATUS_INVALID_SETTING for 0 bytes or rights that are none.
///
/// Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_engine_adopt(
    engine: Option<&scatter_ring_engine>,
    name: *const c_char,
    memory: *mut c_void,
    bytes: u64,
    rights: u64,
    adopted: Option<&mut MaybeUninit<*mut scatter_ring_adopted>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let adopted = place(adopted, "adopted")?;
        // SAFETY: NULL or a string, says the header.
        let name = unsafe { text(name, "name") }?;
        let rights = crate::args::rights(rights)?;
        check_memory(memory, bytes)?;
        let region = given(engine, "engine")?.with(|engine| {
            // SAFETY: the memory stays until it was released, says the header. C has no references to it.
            Ok(unsafe { engine.adopt(name, memory.cast(), bytes, rights) }?)
        })?;
        Ok(hand_over(adopted, scatter_ring_adopted(region)))
    })
}

/// True if the memory is mapped from a file that other processes could map too, and not private to this process.
///
/// Threads: any. Fork: as in the parent. NULL: false.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_adopted_is_shareable(adopted: Option<&scatter_ring_adopted>) -> bool {
    adopted.is_some_and(|adopted| adopted.0.is_shareable())
}

/// Takes adopted memory back: refuses new use, returns when nobody touches the memory any more, and frees the handle.
/// Batches that still name it fail with SCATTER_RING_STATUS_REGION_GONE.
///
/// @param adopted The handle, which is gone afterwards. NULL: nothing happens.
///
/// Threads: any, once. Fork: in a child only the child's handle is freed.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_adopted_release(adopted: Option<Box<scatter_ring_adopted>>) {
    run(None, || {
        drop(adopted);
        Ok(0)
    });
}

/// Takes SIGBUS over, for good, for scatter_ring_engine_serve_file(): a page that cannot be had makes a transfer fail,
/// and not the process. A fault in other memory does what it would have done before. Calling it again does nothing.
///
/// @return 0, or SCATTER_RING_STATUS_NO_MEMORY if the kernel refuses.
///
/// Threads: any. Fork: a child inherits it.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_guard_process(error: Option<&mut MaybeUninit<scatter_ring_error>>) -> i32 {
    run(error, || take_sigbus().map(|()| 0))
}

/// Exports a file by name, for reading, until the engine stops. Needs scatter_ring_guard_process().
///
/// @param populate Not 0: all of the file is read before this returns; else each page when it is first touched.
/// @return 0; SCATTER_RING_STATUS_BAD_FD for something that is no regular file with bytes in it, or if SIGBUS was not
/// taken over; SCATTER_RING_STATUS_NAME_TAKEN; SCATTER_RING_STATUS_NO_MEMORY if it cannot be opened or mapped.
///
/// Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_engine_serve_file(
    engine: Option<&scatter_ring_engine>,
    name: *const c_char,
    path: *const c_char,
    populate: i32,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        // SAFETY: NULL or strings, says the header.
        let (name, path) = unsafe { (text(name, "name")?, text(path, "path")?) };
        given(engine, "engine")?.with(|engine| Ok(engine.serve_file(name, Path::new(path), populate != 0)?))?;
        Ok(0)
    })
}

/// What the engine has done so far. Counters of one batch may be seen one after the other.
///
/// @param counters The caller's, filled.
/// @return 0; SCATTER_RING_STATUS_STOPPING after scatter_ring_engine_stop(), which gives the last ones.
///
/// Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_engine_counters(
    engine: Option<&scatter_ring_engine>,
    counters: Option<&mut MaybeUninit<scatter_ring_counters>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let counters = given(counters, "counters")?;
        let read = given(engine, "engine")?.with(|engine| Ok(engine.counters()))?;
        counters.write((&read).into());
        Ok(0)
    })
}

/// Stops the engine in good order: nobody can attach any more and no batch is begun; those under way are finished, for
/// so long at most; then clients see the end of their session. Returns when nobody touches any memory any more. The
/// handle stays: scatter_ring_engine_free().
///
/// @param limit_ns How long to wait for batches that are under way, in ns.
/// @param counters NULL, or the caller's, filled with the last counters.
/// @return 0; SCATTER_RING_STATUS_STOPPING if it was stopped before.
///
/// Threads: any; other calls with this engine end first. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_engine_stop(
    engine: Option<&scatter_ring_engine>,
    limit_ns: u64,
    counters: Option<&mut MaybeUninit<scatter_ring_counters>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let engine = given(engine, "engine")?;
        engine.check_process()?;
        let running = engine.running.write().unwrap_or_else(|e| e.into_inner()).take();
        let stopped = || Failure::Misuse(Status::STOPPING, "this engine was stopped before".into());
        let last = running.ok_or_else(stopped)?.stop_within(Duration::from_nanos(limit_ns));
        if let Some(counters) = counters {
            counters.write((&last).into());
        }
        Ok(0)
    })
}

/// Frees an engine; one that was not stopped is stopped at once, and clients see the end of their session. Adopted
/// memory may be released before or after it, and nobody touches it after it.
///
/// @param engine The handle, which is gone afterwards. NULL: nothing happens.
///
/// Threads: any, once, when no other call with it is under way. Fork: in a child only the child's handle is freed.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_engine_free(engine: Option<Box<scatter_ring_engine>>) {
    run(None, || {
        drop(engine);
        Ok(0)
    });
}

impl From<&Counters> for scatter_ring_counters {
    fn from(counters: &Counters) -> scatter_ring_counters {
        let all = |list: &[(Status, u64)]| list.iter().map(|(_, count)| count).sum::<u64>();
        let batches_done = Counters::of(&counters.batches, Status::OK);
        scatter_ring_counters {
            sessions: counters.sessions,
            sessions_ended: all(&counters.sessions_ended),
            regions: counters.regions,
            descriptors: counters.descriptors,
            bytes: counters.bytes,
            batches_done,
            batches_failed: all(&counters.batches) - batches_done,
            batches_cut: counters.batches_cut,
            notifications: counters.notifications,
            peers_connected: counters.peers_connected,
            peers_ended: counters.peers_ended,
            reserved: [0; 5],
        }
    }
}

/// Memory that C hands over must be somewhere, and end somewhere.
pub fn check_memory(memory: *mut c_void, bytes: u64) -> Result<(), Failure> {
    if memory.is_null() {
        return Err(invalid("memory is NULL"));
    }
    let end = usize::try_from(bytes).ok().and_then(|bytes| memory.addr().checked_add(bytes));
    end.map(|_| ()).ok_or_else(|| invalid(format!("{bytes} bytes from {memory:p} on: no memory is so long")))
}

fn take_sigbus() -> Result<(), Failure> {
    let refused = |source| Failure::Engine(rust::engine::EngineError::System { operation: "sigaction", source });
    guard_process().map_err(refused)
}

fn config_of(given: &scatter_ring_engine_config) -> Result<Config, Failure> {
    let mut config = Config::default();
    match given.workers {
        0 => {}
        -1 => config.workers = 0,
        workers => {
            config.workers =
                usize::try_from(workers).map_err(|_| invalid(format!("workers {workers}: -1 means none")))?;
        }
    }
    if given.spin_ns > 0 {
        config.spin = Duration::from_nanos(given.spin_ns);
    }
    if given.trust_same_user != 0 {
        config.trust = Trust::SameUser;
    }
    // SAFETY: so many users are there, says the comment of the structure.
    config.users = unsafe { crate::args::array(given.users, given.user_count, "users") }?.to_vec();
    if given.peers != 0 || given.peer_listen_count > 0 {
        config.peers = Some(peers_of(given)?);
    }
    Ok(config)
}

fn peers_of(given: &scatter_ring_engine_config) -> Result<PeerSettings, Failure> {
    let mut settings = PeerSettings {
        listen: addresses(given.peer_listen, given.peer_listen_count, "peer_listen")?,
        advertise: addresses(given.peer_advertise, given.peer_advertise_count, "peer_advertise")?,
        transport: match given.peer_transport {
            SCATTER_RING_TRANSPORT_AUTO => PeerTransport::Auto,
            SCATTER_RING_TRANSPORT_VERBS => PeerTransport::Verbs,
            SCATTER_RING_TRANSPORT_TCP => PeerTransport::Tcp,
            other => return Err(invalid(format!("peer_transport {other}: one of SCATTER_RING_TRANSPORT_..."))),
        },
        map_memory: given.peer_no_mapping == 0,
        ..PeerSettings::default()
    };
    if !given.peer_key_file.is_null() {
        // SAFETY: a string, says the comment of the structure.
        settings.key_file = Some(unsafe { text(given.peer_key_file, "peer_key_file") }?.into());
    }
    if !given.peer_device.is_null() {
        // SAFETY: as above.
        settings.device = Some(unsafe { text(given.peer_device, "peer_device") }?.to_owned());
    }
    if given.peer_lanes != 0 {
        // What does not fit is out of its range as well, and named by the check of it.
        settings.lanes = u16::try_from(given.peer_lanes).unwrap_or(u16::MAX);
    }
    if given.peer_slots != 0 {
        settings.slots = given.peer_slots;
    }
    if given.peer_slot_bytes != 0 {
        settings.slot_bytes = given.peer_slot_bytes;
    }
    Ok(settings)
}

fn addresses(texts: *const *const c_char, count: usize, name: &str) -> Result<Vec<SocketAddr>, Failure> {
    // SAFETY: so many strings are there, says the comment of the structure.
    let texts = unsafe { crate::args::array(texts, count, name) }?;
    let address = |pointer: &*const c_char| {
        // SAFETY: as above.
        let text = unsafe { text(*pointer, name) }?;
        text.parse().map_err(|_| invalid(format!("{name}: {text:?} is no address with a port, as 127.0.0.1:4000")))
    };
    texts.iter().map(address).collect()
}
