//! Lending memory that an engine cannot map: malloc'ed, a NumPy array, any private mapping of this process.
//!
//! An [`Owner`] is a session with an engine and a thread. The memory stays where it is: when a client of the engine reads
//! or writes it, the thread packs the pieces that are asked for into slots of shared memory, or unpacks what the engine
//! has put there, while the engine copies other slots. Clients open it by its name, like any other region. (Row numbers
//! cannot be in it: they are what the engine reads.)
//!
//! Memory that turns out to be a shared mapping of a file which the engine accepts (a memfd sealed against shrinking, or
//! any memory file if it trusts this user) is mapped by the engine instead, and costs this process nothing.
//!
//! ```
//! use scatter_ring::client::{Client, Setup};
//! use scatter_ring::engine::{Config, Engine};
//! use scatter_ring::owner::{self, Owner};
//! use scatter_ring::region::Rights;
//!
//! let engine = Engine::new(&Config::default())?.start()?;
//! // With an engine in another process: Owner::attach(the path of its socket)?
//! let owner = Owner::over(engine.connect()?, &owner::Setup::default())?;
//! let mut table: Vec<u8> = (0..=255).cycle().take(1_000 * 264).collect();
//! // SAFETY: the table is neither changed nor freed until `lent` is closed.
//! let lent = unsafe { owner.lend("table", table.as_mut_ptr(), table.len() as u64, Rights::READ)? };
//!
//! let mut client = Client::over(engine.connect()?, &Setup::default())?;
//! let (opened, out) = (client.open("table", Rights::READ)?, client.allocate(2 * 264)?);
//! client.read_rows(&opened, 264, &[7, 999], &out, 0)?;
//! let mut row = [0; 264];
//! out.read_at(264, &mut row)?;
//! lent.close();
//! assert_eq!(row, table[999 * 264..]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod serve;
mod table;

use crate::attach::{self, ANSWER_LIMIT, AttachError, Greeted, Socket};
use crate::region::{Backing, ForkGuard, Region, RegionError, Rights, SharedPages, find_backing, forget_threads};
use ring_abi::staged::LIST_BYTES;
use ring_abi::{Features, Handle, Kind, Message, NAME_BYTES_MAX, Status};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::Shutdown;
use serve::Server;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use table::Table;

/// What an owner asks for when it attaches.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Slots, 2 to 64. The engine may grant fewer.
    pub slots: u32,
    /// Bytes of each slot: 64 KiB to 1 MiB, in pages of 4096.
    pub slot_bytes: u32,
    /// How long the thread spins, yielding, before it sleeps. A wake costs some 20 us.
    pub spin: Duration,
}

impl Default for Setup {
    /// 8 slots of 256 KiB; 50 us.
    fn default() -> Self {
        Setup { slots: 8, slot_bytes: 256 << 10, spin: Duration::from_micros(50) }
    }
}

/// A session that lends memory, and the thread that serves it. May be used from every thread.
///
/// Dropping it takes everything back that it has lent. In a forked child every call fails and dropping does nothing.
#[derive(Debug)]
pub struct Owner {
    shared: Arc<Shared>,
    /// This end of the wake socket: shutting it down wakes the thread.
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// Memory that is lent. Dropping it takes it back.
#[derive(Debug)]
#[must_use = "dropping it takes the memory back"]
pub struct Lent {
    shared: Arc<Shared>,
    handle: Handle,
    is_mapped: bool,
}

static_assertions::assert_impl_all!(Owner: Send, Sync);
static_assertions::assert_impl_all!(Lent: Send, Sync);

#[derive(Debug)]
struct Shared {
    fork: ForkGuard,
    table: Table,
    socket: Socket,
    /// Number of the next question. Held while one is asked: there is one at a time.
    request: Mutex<u64>,
}

/// Why memory cannot be lent.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// Attaching failed, or the engine refused, or did not answer.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// No memory, or none that can be a region.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The engine is gone, or has ended the session.
    #[error("the engine is gone, or has ended the session: attach again")]
    Lost,
    /// A forked child used its parent's session.
    #[error("this session belongs to the parent process: attach again in the child")]
    Forked,
    /// The kernel refused.
    #[error("{operation}: {source}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
}

impl OwnerError {
    /// The code for it.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            OwnerError::Attach(e) => e.status(),
            OwnerError::Region(e) => e.status(),
            OwnerError::Lost => Status::ENGINE_LOST,
            OwnerError::Forked => Status::FORKED,
            OwnerError::System { .. } => Status::NO_MEMORY,
        }
    }
}

impl Owner {
    /// Attaches to the engine that listens at `path`.
    ///
    /// # Errors
    /// Nobody listens there, it is not permitted, the versions differ, or the engine cannot serve lent memory: each with
    /// what to do about it.
    pub fn attach(path: impl AsRef<Path>) -> Result<Owner, OwnerError> {
        Self::over(attach::connect(path.as_ref())?, &Setup::default())
    }

    /// Attaches over a connected socket, for an engine in this process, or with other settings.
    ///
    /// # Errors
    /// As [`attach`](Self::attach), and for settings that are not allowed.
    pub fn over(socket: Socket, setup: &Setup) -> Result<Owner, OwnerError> {
        let system = |operation| move |source| OwnerError::System { operation, source };
        let fork = ForkGuard::new().map_err(system("fork guard"))?;
        let capacity = setup.slots.clamp(ring_abi::CAPACITY_MIN, ring_abi::staged::SLOTS_MAX).next_power_of_two();
        let features = Features(Features::LOCAL | Features::STAGED);
        let Greeted { areas, doorbell, wake } =
            attach::hello(&socket, &Message::hello(features, capacity, capacity, 0))?;
        let shared = Arc::new(Shared { fork, table: Table::default(), socket, request: Mutex::new(1) });
        let asked = [setup.slots.into(), setup.slot_bytes.into()];
        let (answer, fds) = shared.ask(Kind::STAGE, &asked, "", &[])?;
        let [slot_count, slot_bytes, ..] = answer.args;
        if !(1..=asked[0]).contains(&slot_count) || !(1..=asked[1]).contains(&slot_bytes) {
            return Err(AttachError::BadMessage("more staging memory than was asked for, or none").into());
        }
        let Ok([slots, lists]) = <[OwnedFd; 2]>::try_from(fds) else {
            return Err(AttachError::BadMessage("the answer to STAGE comes with two file descriptors").into());
        };
        let map = |fd, slot_bytes, writable| SharedPages::map(fd, slot_count as usize * slot_bytes, writable);
        let slots = map(slots, slot_bytes as usize, true).map_err(system("mapping the slots"))?;
        let lists = map(lists, LIST_BYTES, false).map_err(system("mapping the lists"))?;
        let wake = Arc::new(wake);
        let staging = serve::Slots { slots, lists, count: slot_count as u32, bytes: slot_bytes as u32 };
        let server = Server::new(shared.clone(), areas, doorbell, wake.clone(), staging, setup.spin);
        let thread = std::thread::Builder::new()
            .name("scatter-owner".into())
            .spawn(move || server.run())
            .map_err(system("starting the owner's thread"))?;
        Ok(Owner { shared, wake, thread: Some(thread) })
    }

    /// Lends memory of this process under a name, by which clients of the engine can open it.
    ///
    /// # Safety
    /// `base .. base + bytes` must be readable, and writable if `rights` say so, until the [`Lent`] was dropped or
    /// [closed](Lent::close), or the owner was dropped. Until then nobody may hold a Rust reference to memory of it that a
    /// client may write to, and nobody may write to what clients may read.
    ///
    /// # Errors
    /// If `bytes` is 0, the name is taken, empty or too long, or the engine is gone.
    pub unsafe fn lend(&self, name: &str, base: *mut u8, bytes: u64, rights: Rights) -> Result<Lent, OwnerError> {
        self.shared.usable()?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let text = format!("a name has 1 to {NAME_BYTES_MAX} bytes");
            return Err(AttachError::Refused { status: Status::INVALID_SETTING, text }.into());
        }
        // SAFETY: the caller's promise; the region is out of the table before it ends.
        let region = unsafe { Region::adopt(base, bytes, rights) }?;
        let (handle, is_mapped) = match self.shared.register(&region)? {
            Some(handle) => (handle, true),
            None => {
                let (answer, _) = self.shared.ask(Kind::LEND, &[bytes, rights.bits()], "", &[])?;
                let handle = handle(&answer)?;
                self.shared.table.insert(handle, region);
                (handle, false)
            }
        };
        // From here on dropping it takes it back.
        let lent = Lent { shared: self.shared.clone(), handle, is_mapped };
        self.shared.ask(Kind::EXPORT, &[handle.0.into(), rights.bits()], name, &[])?;
        Ok(lent)
    }

    /// True once the engine is gone or has ended the session: nothing is served any more.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.shared.fork.is_child() || self.shared.table.is_lost()
    }

    /// Waits until [`is_lost`](Self::is_lost), at most for some time, and gives that.
    pub fn wait_lost(&self, timeout: Duration) -> bool {
        self.shared.fork.is_child() || self.shared.table.wait_lost(timeout)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.shared.fork.is_child() {
            return forget_threads(self.thread.take());
        }
        self.shared.table.stop();
        // Fails if the engine is gone: then the thread knows already.
        let _ = rustix::net::shutdown(&*self.wake, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked touches no memory any more.
            let _ = thread.join();
        }
        // The socket is shared with what is lent.
        let _ = rustix::net::shutdown(&self.shared.socket, Shutdown::Both);
    }
}

impl Lent {
    /// True if the engine has mapped the memory by its file: then nothing goes through slots, and this process has no part
    /// in transfers.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.is_mapped
    }

    /// Takes the memory back: refuses new use, and returns when nobody touches it any more.
    pub fn close(self) {
        drop(self);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.shared.fork.is_child() {
            return;
        }
        self.shared.table.remove(self.handle);
        if self.shared.usable().is_ok() {
            // Also frees the name. An engine that does not answer has the memory no less taken away, or has a mapping of
            // its own.
            let _ = self.shared.ask(Kind::CLOSE, &[self.handle.0.into()], "", &[]);
        }
    }
}

impl Shared {
    fn usable(&self) -> Result<(), OwnerError> {
        if self.fork.is_child() {
            return Err(OwnerError::Forked);
        }
        if self.table.is_lost() { Err(OwnerError::Lost) } else { Ok(()) }
    }

    /// Registers memory that is a shared mapping of a file, so that the engine can map it too. `None`: it is private, or
    /// of a file that the engine does not accept.
    fn register(&self, region: &Region) -> Result<Option<Handle>, OwnerError> {
        let (bytes, rights) = (region.bytes(), region.rights());
        // Where it cannot be found out the memory goes by slots.
        let Ok(Some(Backing { file, offset })) = find_backing(region.as_ptr(), bytes) else { return Ok(None) };
        match self.ask(Kind::REGISTER, &[bytes, rights.bits(), offset], "", &[file.as_fd()]) {
            Ok((answer, _)) => handle(&answer).map(Some),
            Err(OwnerError::Attach(AttachError::Refused { status: Status::BAD_FD, .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// One question and its answer. An engine that is gone, does not answer or answers something else loses the session.
    fn ask(
        &self,
        kind: Kind,
        args: &[u64],
        name: &str,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Message, Vec<OwnedFd>), OwnerError> {
        let mut words = [0; 8];
        words[..args.len()].copy_from_slice(args);
        let mut request = self.request.lock().unwrap_or_else(|e| e.into_inner());
        let question = Message::new(kind, *request, words).with_name(name);
        *request += 1;
        let until = Instant::now() + ANSWER_LIMIT;
        let received = attach::send_until(&self.socket, &question, fds, until)
            .and_then(|()| attach::receive_until(&self.socket, until))
            .and_then(|received| {
                let answers = received.message.kind == kind.answer() && received.message.request == question.request;
                if answers { Ok(received) } else { Err(AttachError::BadMessage("an answer to something else")) }
            });
        let received = received.inspect_err(|_| {
            // What else comes could not be told from the answers of later questions.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
            self.table.lose();
        });
        match received {
            Err(AttachError::Closed) => Err(OwnerError::Lost),
            Err(error) => Err(error.into()),
            Ok(received) => {
                attach::granted(&received.message)?;
                Ok((received.message, received.fds))
            }
        }
    }
}

fn handle(answer: &Message) -> Result<Handle, OwnerError> {
    attach::handle(answer).ok_or_else(|| AttachError::BadMessage("an answer without a region handle").into())
}
