//! Regions as a client sees them.

use super::session::Session;
use super::{Client, ClientError, Peer};
use crate::attach::{self, AttachError};
use crate::region::{self, Backing, Huge, RegionError, Rights};
use ring_abi::{Handle, Kind, Message, NAME_BYTES_MAX, Status};
use rustix::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Memory that the batches of one client can name. A cheap handle: clones are the same memory.
///
/// While a batch that uses it is under way the memory stays, whatever the program drops, and
/// [`read_at`](Region::read_at) and [`write_at`](Region::write_at) refuse what could not give a meaningful result. They
/// look once, before they copy: a thread that copies while another one submits gets a mixture.
///
/// When the last handle is dropped and no batch uses the memory any more, the engine is told to forget it.
#[derive(Clone, Debug)]
pub struct Region(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    session: Arc<Session>,
    handle: Handle,
    bytes: u64,
    rights: Rights,
    /// `None`: opened, the bytes are elsewhere.
    local: Option<region::Region>,
    /// Whose memory it is, if it is a peer's.
    peer: Option<Peer>,
    /// Batches under way that read it, and that write it.
    readers: AtomicU32,
    writers: AtomicU32,
    /// The last batch that was counted in `readers`, and in `writers`: each batch is counted once.
    last_reader: AtomicU64,
    last_writer: AtomicU64,
    closed: AtomicBool,
}

/// Where the bytes of a region are.
enum Memory {
    /// In this process.
    Local(region::Region),
    /// Elsewhere: at a peer, or at this client's own engine.
    Opened(Option<Peer>),
}

/// In the place of a peer's number.
const THIS_ENGINE: u64 = 0;

/// A batch's count on a region; the region stays as long as it lives.
#[derive(Debug)]
pub(super) struct Hold {
    region: Region,
    writes: bool,
}

impl Region {
    /// Bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// What its descriptors may do.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.0.rights
    }

    /// The number by which descriptors name it.
    #[must_use]
    #[inline]
    pub fn handle(&self) -> Handle {
        self.0.handle
    }

    /// The engine that it was opened at, `None` if that is this client's own, or if the memory is this process's.
    #[must_use]
    pub fn peer(&self) -> Option<Peer> {
        self.0.peer
    }

    /// The first byte in this process, `None` for an opened region.
    ///
    /// For the brave: nothing stops a batch from writing there at any time, so it must never become a reference while
    /// one may be under way, and it dangles once the last handle is dropped.
    #[must_use]
    pub fn as_ptr(&self) -> Option<*mut u8> {
        self.0.local.as_ref().map(region::Region::as_ptr)
    }

    /// True while a batch uses it.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.0.readers.load(Ordering::Acquire) > 0 || self.0.writers.load(Ordering::Acquire) > 0
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`ClientError::Busy`] while a batch that writes the region is under way, [`ClientError::NotLocal`] for an opened
    /// region, or a range outside it.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), ClientError> {
        let local = self.local()?;
        if self.0.writers.load(Ordering::Acquire) > 0 {
            return Err(ClientError::Busy);
        }
        Ok(local.read_at(offset, out)?)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`ClientError::Busy`] while a batch that reads or writes the region is under way, [`ClientError::NotLocal`] for
    /// an opened region, a range outside it, or memory that is mapped for reading only.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        let local = self.local()?;
        if self.is_busy() {
            return Err(ClientError::Busy);
        }
        Ok(local.write_at(offset, data)?)
    }

    fn local(&self) -> Result<&region::Region, ClientError> {
        if self.0.session.is_child() {
            return Err(ClientError::Forked);
        }
        self.0.local.as_ref().ok_or(ClientError::NotLocal)
    }

    fn new(session: &Arc<Session>, handle: Handle, bytes: u64, rights: Rights, memory: Memory) -> Region {
        let (local, peer) = match memory {
            Memory::Local(local) => (Some(local), None),
            Memory::Opened(peer) => (None, peer),
        };
        Region(Arc::new(Inner {
            session: session.clone(),
            handle,
            bytes,
            rights,
            local,
            peer,
            readers: AtomicU32::new(0),
            writers: AtomicU32::new(0),
            last_reader: AtomicU64::new(0),
            last_writer: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }))
    }

    /// True if the batch with this number, unique in the process, is counted already. Then the region was checked too.
    #[inline]
    pub(super) fn is_held_by(&self, batch: u64, writes: bool) -> bool {
        let last = if writes { &self.0.last_writer } else { &self.0.last_reader };
        last.load(Ordering::Relaxed) == batch
    }

    /// True if nobody but the caller has this memory in hand, batches that are under way included.
    pub(super) fn is_sole(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }

    /// Counts a batch of a session.
    pub(super) fn hold(&self, session: &Arc<Session>, batch: u64, writes: bool) -> Result<Hold, Status> {
        if !Arc::ptr_eq(&self.0.session, session) || self.is_closed() {
            return Err(Status::UNKNOWN_REGION);
        }
        let (count, last) = match writes {
            true => (&self.0.writers, &self.0.last_writer),
            false => (&self.0.readers, &self.0.last_reader),
        };
        count.fetch_add(1, Ordering::AcqRel);
        last.store(batch, Ordering::Relaxed);
        Ok(Hold { region: self.clone(), writes })
    }
}

impl Hold {
    pub fn peer(&self) -> Option<Peer> {
        self.region.peer()
    }

    /// The batch is released: nobody touches the memory for it any more.
    ///
    /// A hold that is dropped instead leaves the region busy for good: the session ended before the batch did, and
    /// nobody can say when the memory is left alone.
    pub fn release(self) {
        let count = if self.writes { &self.region.0.writers } else { &self.region.0.readers };
        count.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !*self.closed.get_mut() {
            self.session.close_later(self.handle);
        }
    }
}

impl Client {
    /// New memory of this process, all 0, that batches may read and write. Uses reserved 2 MiB pages where there are
    /// enough of them.
    ///
    /// ```no_run
    /// # use scatter_ring::client::Client;
    /// let client = Client::attach("/run/scatter-ring/socket")?;
    /// let region = client.allocate(1 << 20)?;
    /// region.write_at(0, b"hello")?;
    /// # Ok::<(), scatter_ring::client::ClientError>(())
    /// ```
    ///
    /// # Errors
    /// No memory, or the engine refuses (a limit, for example).
    pub fn allocate(&self, bytes: u64) -> Result<Region, ClientError> {
        self.usable()?;
        let (local, fd) = region::Region::allocate(bytes, Huge::IfReserved)?;
        self.registered(&fd, 0, bytes, Rights::READ_WRITE, local)
    }

    /// The first `bytes` bytes of a memory file: what descriptors may do with them is `rights`. The file must be open for
    /// writing if `rights` say so, and sealed against shrinking (`F_SEAL_SHRINK`), unless the engine trusts its own user.
    ///
    /// # Errors
    /// A file that is not usable, or the engine refuses.
    pub fn register(&self, fd: impl AsFd, bytes: u64, rights: Rights) -> Result<Region, ClientError> {
        self.register_at(fd, 0, bytes, rights)
    }

    /// [`register`](Self::register) from byte `offset` of the file on, which may be any.
    ///
    /// # Errors
    /// As there.
    pub fn register_at(&self, fd: impl AsFd, offset: u64, bytes: u64, rights: Rights) -> Result<Region, ClientError> {
        self.usable()?;
        // This process may always read its own memory, and write it where the file allows, whatever descriptors may do.
        let local = match region::Region::of_own_fd(&fd, offset, bytes, Rights::READ_WRITE) {
            Err(RegionError::BadFd(_)) if !rights.write => region::Region::of_own_fd(&fd, offset, bytes, Rights::READ)?,
            other => other?,
        };
        self.registered(fd, offset, bytes, rights, local)
    }

    /// Memory that this process has mapped from a memory file, shared: the file is found by the mapping, and registered.
    /// Nothing is copied or mapped again in this process.
    ///
    /// # Safety
    /// The memory must stay mapped as long as a handle of the region exists, and no Rust reference to it may be held
    /// while a batch may write to it.
    ///
    /// # Errors
    /// [`ClientError::PrivateMemory`], or as [`register`](Self::register).
    pub unsafe fn adopt(&self, base: *mut u8, bytes: u64, rights: Rights) -> Result<Region, ClientError> {
        self.usable()?;
        // SAFETY: the caller's promise is the same.
        let local = unsafe { region::Region::adopt(base, bytes, rights) }?;
        let found = region::find_backing(base, bytes)
            .map_err(|source| ClientError::System { operation: "reading /proc/self/maps", source })?;
        let Backing { file, offset } = found.ok_or(ClientError::PrivateMemory)?;
        self.registered(file, offset, bytes, rights, local)
    }

    fn registered(
        &self,
        fd: impl AsFd,
        offset: u64,
        bytes: u64,
        rights: Rights,
        local: region::Region,
    ) -> Result<Region, ClientError> {
        let answer = self.ask(Kind::REGISTER, &[bytes, rights.bits(), offset], "", &[fd.as_fd()])?;
        let handle = self.handle(&answer)?;
        Ok(Region::new(&self.session, handle, bytes, rights, Memory::Local(local)))
    }

    /// Memory that somebody else has exported under this name, for batches only.
    ///
    /// # Errors
    /// No such export, or it does not grant what is wanted.
    pub fn open(&self, name: &str, rights: Rights) -> Result<Region, ClientError> {
        self.open_of(None, name, rights)
    }

    /// Memory that a client of a peer, or the peer itself, has exported under this name, for batches only: as if it were
    /// this engine's. A peer that is lost takes its regions with it: batches then fail with
    /// [`REGION_GONE`](Status::REGION_GONE), and the export is opened anew when there is [a connection](Self::connect) again.
    ///
    /// ```no_run
    /// use scatter_ring::client::Client;
    /// use scatter_ring::region::Rights;
    ///
    /// let mut client = Client::attach("/run/scatter-ring/socket")?;
    /// // What `scatter-ring serve` on the other host has printed, or `Engine::endpoint` has given.
    /// let peer = client.connect(&std::env::var("TABLES_ENDPOINT")?)?;
    /// let table = client.open_at(peer, "embeddings", Rights::READ)?;
    /// let out = client.allocate(3 * 264)?;
    /// client.read_rows(&table, 264, &[7, 0, 99_999], &out, 0)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`open`](Self::open); [`PEER_UNREACHABLE`](Status::PEER_UNREACHABLE) if there is no connection any more.
    pub fn open_at(&self, peer: Peer, name: &str, rights: Rights) -> Result<Region, ClientError> {
        self.open_of(Some(peer), name, rights)
    }

    fn open_of(&self, peer: Option<Peer>, name: &str, rights: Rights) -> Result<Region, ClientError> {
        check_name(name)?;
        let at = peer.map_or(THIS_ENGINE, Peer::number);
        let answer = self.ask(Kind::OPEN, &[rights.bits(), at], name, &[])?;
        let handle = self.handle(&answer)?;
        let bytes = answer.args[1];
        let granted = Rights::from_bits(answer.args[2]).filter(|granted| granted.covers(rights));
        match granted {
            Some(granted) if bytes > 0 => Ok(Region::new(&self.session, handle, bytes, granted, Memory::Opened(peer))),
            _ => Err(self.broken("an opened region without bytes or without the rights asked for")),
        }
    }

    /// Gives a region a name by which other clients of the engine, and its peers, can open it.
    ///
    /// # Errors
    /// The name is taken or too long, or the region does not have these rights itself.
    pub fn export(&self, region: &Region, name: &str, rights: Rights) -> Result<(), ClientError> {
        self.check_mine(region)?;
        check_name(name)?;
        self.ask(Kind::EXPORT, &[u64::from(region.handle().0), rights.bits()], name, &[])?;
        Ok(())
    }

    /// Ends a registration or an opening, and returns when nobody touches the memory any more. All handles of the region
    /// are useless for batches from then on.
    ///
    /// # Errors
    /// [`ClientError::Busy`] while a batch of this client uses it.
    pub fn close(&self, region: &Region) -> Result<(), ClientError> {
        self.check_mine(region)?;
        if region.is_busy() {
            return Err(ClientError::Busy);
        }
        region.0.closed.store(true, Ordering::Release);
        self.ask(Kind::CLOSE, &[u64::from(region.handle().0)], "", &[])?;
        Ok(())
    }

    fn check_mine(&self, region: &Region) -> Result<(), ClientError> {
        self.usable()?;
        if !Arc::ptr_eq(&region.0.session, &self.session) {
            return Err(ClientError::Foreign);
        }
        if region.is_closed() {
            return Err(ClientError::Closed);
        }
        Ok(())
    }

    fn handle(&self, answer: &Message) -> Result<Handle, ClientError> {
        attach::handle(answer).ok_or_else(|| self.broken("an answer without a region handle"))
    }
}

fn check_name(name: &str) -> Result<(), ClientError> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        let text = format!("a name has 1 to {NAME_BYTES_MAX} bytes");
        return Err(AttachError::Refused { status: Status::INVALID_SETTING, text }.into());
    }
    Ok(())
}
