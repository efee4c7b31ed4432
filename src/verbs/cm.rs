//! Connections of rdma_cm, which iWARP devices need and the others allow.
//!
//! A [`CmId`] is one end of a connection, or listens for them; what it asks for is answered by events of its
//! [`EventChannel`]. The one that connects resolves address and route, makes its queue pair and connects; the one that
//! listens gets a request, which holds the new end, makes its queue pair and accepts. Both then see
//! [`ESTABLISHED`](super::CmEventKind::ESTABLISHED).
//!
//! ```no_run
//! # use scatter_ring::verbs::{cm::{CmId, EventChannel}, CmEventKind, Library};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let library = Library::load()?;
//! let channel = EventChannel::new(&library)?;
//! let listener = CmId::new(&channel)?;
//! listener.bind("10.0.0.1:0".parse()?)?;
//! listener.listen(8)?;
//! println!("port {}", listener.port());
//! // Whenever `channel.fd()` is readable:
//! while let Some(event) = channel.next_event()? {
//!     if event.kind == CmEventKind::CONNECT_REQUEST {
//!         let _new_end = event.request;
//!     }
//! }
//! # Ok(()) }
//! ```

use super::abi::{self, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel};
use super::completion::CompletionQueue;
use super::context::{device_of, set_nonblocking};
use super::error::VerbsError;
use super::functions::CmFunctions;
use super::library::Library;
use super::memory::ProtectionDomain;
use super::queue_pair::{QueuePair, QueuePairCaps, init_settings};
use super::values::CmEventKind;
use rustix::net::SocketAddrAny;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where the events of connections come.
pub struct EventChannel {
    raw: NonNull<rdma_event_channel>,
    library: Arc<Library>,
    /// Taking an event changes the connection that it is about: one call at a time for a channel and all of its ends.
    calls: Mutex<()>,
}

// SAFETY: a mutex lets one call at a time through.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

/// What happened to a connection.
#[derive(Debug)]
#[non_exhaustive]
pub struct CmEvent {
    /// What happened.
    pub kind: CmEventKind,
    /// Why, if it went wrong: the negative of an error number, or of a refused connection the transport's own number.
    pub status: i32,
    /// Whom it is about. Of a request it is the one that listens.
    pub id: CmKey,
    /// Of a request: the new end, to be accepted. Dropping it rejects the request.
    pub request: Option<CmId>,
    /// What the peer sent with its request, or with its answer. Some transports fill it up with zeros.
    pub private_data: Vec<u8>,
    /// READs of the peer that this side is asked to serve at a time; of an answer, that the peer serves.
    pub responder_resources: u8,
    /// READs of this side that the peer serves at a time; of an answer, that the peer has under way.
    pub initiator_depth: u8,
}

/// Tells the ends of connections apart, while they exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CmKey(usize);

impl EventChannel {
    /// A new one, which does not block.
    ///
    /// # Errors
    /// librdmacm is not there, the kernel lacks rdma_ucm, or what the library says.
    pub fn new(library: &Arc<Library>) -> Result<Arc<EventChannel>, VerbsError> {
        const CALL: &str = "rdma_create_event_channel";
        library.check(CALL)?;
        // SAFETY: it may be called at any time.
        let raw = unsafe { (library.cm()?.rdma_create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last(CALL))?;
        let channel = EventChannel { raw, library: Arc::clone(library), calls: Mutex::new(()) };
        set_nonblocking(channel.fd())?;
        Ok(Arc::new(channel))
    }

    /// Readable when there is an event.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }

    /// The next event, if there is one. It does not wait.
    ///
    /// # Errors
    /// What the library says.
    pub fn next_event(self: &Arc<EventChannel>) -> Result<Option<CmEvent>, VerbsError> {
        let (cm, _one) = self.call("rdma_get_cm_event")?;
        let mut event = std::ptr::null_mut();
        // SAFETY: the channel is open and does not block.
        let returned = unsafe { (cm.rdma_get_cm_event)(self.raw.as_ptr(), &raw mut event) };
        match VerbsError::check("rdma_get_cm_event", returned) {
            Err(error) if error.is_empty() => return Ok(None),
            other => other?,
        }
        // SAFETY: got just now; copied before it is given back, and given back once.
        let copied = unsafe { self.copy(event) };
        // SAFETY: as above.
        unsafe { (cm.rdma_ack_cm_event)(event) };
        Ok(Some(copied))
    }

    /// # Safety
    /// `event` is an event of this channel that was not given back.
    unsafe fn copy(self: &Arc<EventChannel>, event: *mut rdma_cm_event) -> CmEvent {
        // SAFETY: the caller vouches for the event.
        let (kind, status, id, listener, given) =
            unsafe { (CmEventKind((*event).event), (*event).status, (*event).id, (*event).listen_id, (*event).conn) };
        let is_request = kind == CmEventKind::CONNECT_REQUEST;
        // The end that a request holds is new, and nobody else's.
        let new_end = || NonNull::new(id).map(|raw| CmId { raw, channel: Arc::clone(self) });
        CmEvent {
            kind,
            status,
            id: CmKey(if is_request { listener.addr() } else { id.addr() }),
            request: is_request.then(new_end).flatten(),
            // SAFETY: as above; the event holds that many bytes.
            private_data: unsafe { private_data(&given) },
            responder_resources: given.responder_resources,
            initiator_depth: given.initiator_depth,
        }
    }

    fn call(&self, call: &'static str) -> Result<(&CmFunctions, MutexGuard<'_, ()>), VerbsError> {
        self.library.check(call)?;
        Ok((self.library.cm()?, self.calls.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// # Safety
/// The parameters are of an event that is not given back yet.
unsafe fn private_data(given: &rdma_conn_param) -> Vec<u8> {
    let bytes = usize::from(given.private_data_len);
    if given.private_data.is_null() {
        return Vec::new();
    }
    let mut data = vec![0; bytes];
    // SAFETY: the caller vouches for the source; the destination is as long.
    unsafe { std::ptr::copy_nonoverlapping(given.private_data.cast::<u8>(), data.as_mut_ptr(), bytes) };
    data
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        if let Ok((cm, _one)) = self.call("rdma_destroy_event_channel") {
            // SAFETY: its ends keep it alive, so there are none left.
            unsafe { (cm.rdma_destroy_event_channel)(self.raw.as_ptr()) };
        }
    }
}

impl std::fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventChannel").finish_non_exhaustive()
    }
}

/// One end of a connection, or what listens for them.
pub struct CmId {
    raw: NonNull<rdma_cm_id>,
    channel: Arc<EventChannel>,
}

// SAFETY: the mutex of its channel lets one call at a time through.
unsafe impl Send for CmId {}
// SAFETY: as above.
unsafe impl Sync for CmId {}

/// How two ends are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectSettings<'a> {
    /// For the peer, with the request or the answer. 56 bytes at most, which is what all transports carry.
    pub private_data: &'a [u8],
    /// READs of the peer that this side serves at a time.
    pub responder_resources: u8,
    /// Own READs that are under way at a time.
    pub initiator_depth: u8,
    /// How often a packet is sent again, to 7. The one that accepts takes what the other asked for.
    pub retry_count: u8,
    /// The same when the peer has no receive; 7 never gives up.
    pub rnr_retry_count: u8,
}

impl CmId {
    /// A new end, without an address.
    ///
    /// # Errors
    /// What the library says.
    pub fn new(channel: &Arc<EventChannel>) -> Result<CmId, VerbsError> {
        const CALL: &str = "rdma_create_id";
        let (cm, _one) = channel.call(CALL)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the channel is open, and stays so.
        let returned =
            unsafe { (cm.rdma_create_id)(channel.raw.as_ptr(), &raw mut raw, std::ptr::null_mut(), abi::RDMA_PS_TCP) };
        VerbsError::check(CALL, returned)?;
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::invalid(CALL, "the library gave nothing"))?;
        Ok(CmId { raw, channel: Arc::clone(channel) })
    }

    /// What events call it.
    #[must_use]
    pub fn key(&self) -> CmKey {
        CmKey(self.raw.as_ptr().addr())
    }

    /// Where its events come.
    #[must_use]
    pub fn channel(&self) -> &Arc<EventChannel> {
        &self.channel
    }

    /// Gives it an own address. With port 0 the kernel chooses one; see [`port`](CmId::port).
    ///
    /// # Errors
    /// What the library says.
    pub fn bind(&self, address: SocketAddr) -> Result<(), VerbsError> {
        let address = SocketAddrAny::from(address);
        // SAFETY: both are there; the address is only read.
        self.checked("rdma_bind_addr", |cm, id| unsafe { (cm.rdma_bind_addr)(id, raw_address(&address)) })
    }

    /// Lets peers connect.
    ///
    /// # Errors
    /// What the library says.
    pub fn listen(&self, backlog: i32) -> Result<(), VerbsError> {
        // SAFETY: it is there.
        self.checked("rdma_listen", |cm, id| unsafe { (cm.rdma_listen)(id, backlog) })
    }

    /// Its own port, or 0.
    #[must_use]
    pub fn port(&self) -> u16 {
        match self.channel.call("rdma_get_src_port") {
            // SAFETY: it is there.
            Ok((cm, _one)) => u16::from_be(unsafe { (cm.rdma_get_src_port)(self.raw.as_ptr()) }),
            Err(_) => 0,
        }
    }

    /// Finds the device that reaches an address: [`ADDRESS_RESOLVED`](CmEventKind::ADDRESS_RESOLVED) comes, or
    /// [`ADDRESS_ERROR`](CmEventKind::ADDRESS_ERROR).
    ///
    /// # Errors
    /// What the library says.
    pub fn resolve_address(
        &self,
        own: Option<SocketAddr>,
        peer: SocketAddr,
        timeout: Duration,
    ) -> Result<(), VerbsError> {
        let (own, peer) = (own.map(SocketAddrAny::from), SocketAddrAny::from(peer));
        let own = own.as_ref().map_or(std::ptr::null_mut(), raw_address);
        let (peer, timeout) = (raw_address(&peer), milliseconds(timeout));
        // SAFETY: all are there; the addresses are only read.
        self.checked("rdma_resolve_addr", |cm, id| unsafe { (cm.rdma_resolve_addr)(id, own, peer, timeout) })
    }

    /// Finds the way to the address: [`ROUTE_RESOLVED`](CmEventKind::ROUTE_RESOLVED) comes, or
    /// [`ROUTE_ERROR`](CmEventKind::ROUTE_ERROR).
    ///
    /// # Errors
    /// What the library says.
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), VerbsError> {
        let timeout = milliseconds(timeout);
        // SAFETY: it is there.
        self.checked("rdma_resolve_route", |cm, id| unsafe { (cm.rdma_resolve_route)(id, timeout) })
    }

    /// The name of its device, once an address gave it one.
    #[must_use]
    pub fn device(&self) -> Option<String> {
        let (_, _one) = self.channel.call("rdma_cm_id").ok()?;
        NonNull::new(self.verbs()).map(|context| device_of(context).0)
    }

    /// Makes its queue pair, which can take receives at once. The domain must be of the context that rdma_cm has of the
    /// device: [`Context::open_for_cm`](super::Context::open_for_cm).
    ///
    /// # Errors
    /// It has no device yet, has a queue pair, or has another device; or what the library says.
    pub fn create_queue_pair(
        self: &Arc<CmId>,
        domain: &Arc<ProtectionDomain>,
        completions: &CompletionQueue,
        caps: QueuePairCaps,
    ) -> Result<QueuePair, VerbsError> {
        const CALL: &str = "rdma_create_qp";
        let (cm, _one) = self.channel.call(CALL)?;
        let mut settings = init_settings(CALL, domain, completions, caps)?;
        if self.verbs() != domain.context().raw() {
            return Err(VerbsError::invalid(CALL, "the connection goes through another device than its memory"));
        }
        if !self.queue_pair().is_null() {
            return Err(VerbsError::invalid(CALL, "the connection has a queue pair"));
        }
        // SAFETY: all are there, and the queue pair keeps them alive.
        let returned = unsafe { (cm.rdma_create_qp)(self.raw.as_ptr(), domain.raw(), &raw mut settings) };
        VerbsError::check(CALL, returned)?;
        let raw = NonNull::new(self.queue_pair()).ok_or_else(|| VerbsError::invalid(CALL, "it made none"))?;
        // SAFETY: made just now by this connection, for this domain and these completions.
        Ok(unsafe { QueuePair::of(raw, Some(Arc::clone(self)), settings.cap, domain, completions) })
    }

    /// Asks the peer for a connection: [`ESTABLISHED`](CmEventKind::ESTABLISHED) comes, or an event that says why not.
    ///
    /// iWARP drivers may wait here for the peer's host, as long as TCP does. Nothing else can be done with the channel in
    /// that time, so it should have one of its own, and a thread that may wait.
    ///
    /// # Errors
    /// What the library says. On some devices this is how a refusal shows.
    pub fn connect(&self, settings: &ConnectSettings<'_>) -> Result<(), VerbsError> {
        let mut settings = settings.parameters("rdma_connect")?;
        // SAFETY: it is there, and the parameters are copied before the call returns.
        self.checked("rdma_connect", |cm, id| unsafe { (cm.rdma_connect)(id, &raw mut settings) })
    }

    /// Takes a request: [`ESTABLISHED`](CmEventKind::ESTABLISHED) comes when the peer knows.
    ///
    /// # Errors
    /// What the library says.
    pub fn accept(&self, settings: &ConnectSettings<'_>) -> Result<(), VerbsError> {
        let mut settings = settings.parameters("rdma_accept")?;
        // SAFETY: it is there, and the parameters are copied before the call returns.
        self.checked("rdma_accept", |cm, id| unsafe { (cm.rdma_accept)(id, &raw mut settings) })
    }

    /// Refuses a request, with a reason for the peer.
    ///
    /// # Errors
    /// What the library says.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), VerbsError> {
        let (data, bytes) = (private_data.as_ptr().cast(), private_data_len("rdma_reject", private_data)?);
        // SAFETY: both are there.
        self.checked("rdma_reject", |cm, id| unsafe { (cm.rdma_reject)(id, data, bytes) })
    }

    /// Ends the connection: the own queue pair goes to the error state, and both ends see
    /// [`DISCONNECTED`](CmEventKind::DISCONNECTED). Not all devices stop the peer's queue pair: who gets that event calls
    /// this too, or [`to_error`](QueuePair::to_error).
    ///
    /// # Errors
    /// What the library says.
    pub fn disconnect(&self) -> Result<(), VerbsError> {
        // SAFETY: it is there.
        self.checked("rdma_disconnect", |cm, id| unsafe { (cm.rdma_disconnect)(id) })
    }

    /// After how long a packet is sent again: 4.096 us times two to the power of this. Before
    /// [`resolve_route`](CmId::resolve_route) or [`connect`](CmId::connect); iWARP has no such thing.
    ///
    /// # Errors
    /// What the library says.
    pub fn set_ack_timeout(&self, exponent: u8) -> Result<(), VerbsError> {
        let mut value = exponent;
        let (level, option) = (abi::RDMA_OPTION_ID, abi::RDMA_OPTION_ID_ACK_TIMEOUT);
        // SAFETY: it is there, and the option is a byte.
        self.checked("rdma_set_option", |cm, id| unsafe {
            (cm.rdma_set_option)(id, level, option, (&raw mut value).cast(), size_of::<u8>())
        })
    }

    /// Moves it, with the events that wait for it, to another channel: from the one that listens to the one of who
    /// works with the connection. Before it has a queue pair.
    ///
    /// # Errors
    /// What the library says.
    pub fn migrate(&mut self, to: &Arc<EventChannel>) -> Result<(), VerbsError> {
        let raw = to.raw.as_ptr();
        // SAFETY: both are there, and stay so.
        self.checked("rdma_migrate_id", |cm, id| unsafe { (cm.rdma_migrate_id)(id, raw) })?;
        self.channel = Arc::clone(to);
        Ok(())
    }

    pub(super) fn destroy_queue_pair(&self) {
        if let Ok((cm, _one)) = self.channel.call("rdma_destroy_qp") {
            // SAFETY: its queue pair is there, and nobody uses it after this.
            unsafe { (cm.rdma_destroy_qp)(self.raw.as_ptr()) };
        }
    }

    fn checked(
        &self,
        call: &'static str,
        made: impl FnOnce(&CmFunctions, *mut rdma_cm_id) -> i32,
    ) -> Result<(), VerbsError> {
        let (cm, _one) = self.channel.call(call)?;
        VerbsError::check(call, made(cm, self.raw.as_ptr()))
    }

    /// The caller holds the mutex of the channel.
    fn verbs(&self) -> *mut abi::ibv_context {
        // SAFETY: it is there, and nobody changes it now.
        unsafe { (*self.raw.as_ptr()).verbs }
    }

    /// The caller holds the mutex of the channel.
    fn queue_pair(&self) -> *mut abi::ibv_qp {
        // SAFETY: it is there, and nobody changes it now.
        unsafe { (*self.raw.as_ptr()).qp }
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        if let Ok((cm, _one)) = self.channel.call("rdma_destroy_id") {
            // SAFETY: its queue pair keeps it alive, so there is none; all events were given back.
            unsafe { (cm.rdma_destroy_id)(self.raw.as_ptr()) };
        }
    }
}

impl std::fmt::Debug for CmId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CmId").field("key", &self.key()).finish_non_exhaustive()
    }
}

impl ConnectSettings<'_> {
    fn parameters(&self, call: &'static str) -> Result<rdma_conn_param, VerbsError> {
        Ok(rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: private_data_len(call, self.private_data)?,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 0,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: 0,
            qp_num: 0,
        })
    }
}

fn private_data_len(call: &'static str, data: &[u8]) -> Result<u8, VerbsError> {
    let fits = u8::try_from(data.len()).ok().filter(|bytes| *bytes <= PRIVATE_DATA_BYTES_MAX);
    fits.ok_or_else(|| VerbsError::invalid(call, "more private data than all transports carry"))
}

fn raw_address(address: &SocketAddrAny) -> *mut libc::sockaddr {
    address.as_ptr().cast_mut().cast()
}

fn milliseconds(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX)
}

/// InfiniBand's connection request leaves this many.
const PRIVATE_DATA_BYTES_MAX: u8 = 56;
