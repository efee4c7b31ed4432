//! An opened device: its limits, ports, GIDs and events.
//!
//! ```no_run
//! # use scatter_ring::verbs::{Context, Library, PortState};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let library = Library::load()?;
//! for device in library.devices()? {
//!     let context = Context::open(&library, &device.name)?;
//!     for port in 1..=context.limits().ports {
//!         println!("{} port {port}: {}", context.name(), context.port(port)?.state);
//!     }
//! }
//! # Ok(()) }
//! ```

use super::abi::{self, ibv_async_event, ibv_context, ibv_device_attr, ibv_gid_entry, ibv_port_attr};
use super::error::VerbsError;
use super::library::Library;
use super::values::{EventKind, Gid, GidType, LinkLayer, Mtu, PortState, Transport};
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// An opened device.
pub struct Context {
    raw: NonNull<ibv_context>,
    library: Arc<Library>,
    name: String,
    transport: Transport,
    limits: DeviceLimits,
    /// False for the context of rdma_cm, which stays open as long as its library.
    closed_on_drop: bool,
}

// SAFETY: the functions of libibverbs may be called from any thread, on the same object too.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// What a device allows at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceLimits {
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Requests in one queue of a queue pair. Some devices refuse as many as they say.
    pub requests: u32,
    /// Pieces of local memory in one request.
    pub pieces: u32,
    /// The same in a READ.
    pub read_pieces: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Entries of a completion queue.
    pub completions: u32,
    /// Registered pieces of memory.
    pub memory_regions: u32,
    /// Bytes of one of them.
    pub memory_region_bytes: u64,
    /// READs of the peer that a queue pair serves at a time.
    pub reads_served: u32,
    /// Own READs that a queue pair has under way at a time.
    pub reads_started: u32,
    /// Ports, which are counted from 1.
    pub ports: u8,
}

/// The state of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Port {
    /// Only an active one carries anything.
    pub state: PortState,
    /// What packets carry now.
    pub active_mtu: Mtu,
    /// What the port could do.
    pub max_mtu: Mtu,
    /// Its address in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// Entries of its GID table, used or not.
    pub gids: u32,
    /// Bytes of one request.
    pub message_bytes: u32,
    /// What lies under it.
    pub link_layer: LinkLayer,
}

/// An entry of a port's GID table that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// Its place in the table.
    pub index: u32,
    /// The identifier.
    pub gid: Gid,
    /// What it is good for.
    pub kind: GidType,
}

/// Something that happened to a device or to what was made on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsyncEvent {
    /// What happened.
    pub kind: EventKind,
    /// The number of the queue pair that it is about, if it is about one.
    pub queue_pair: Option<u32>,
    /// The port that it is about, if it is about one.
    pub port: Option<u32>,
}

impl Context {
    /// Opens the device of that name. An iWARP device is opened as [`open_for_cm`](Context::open_for_cm) does it.
    ///
    /// # Errors
    /// There is no such device, it cannot be opened, or it is an iWARP device and librdmacm is not there.
    pub fn open(library: &Arc<Library>, name: &str) -> Result<Arc<Context>, VerbsError> {
        const CALL: &str = "ibv_open_device";
        let list = library.list().map_err(|none| VerbsError::new(CALL, io::Error::other(none.to_string())))?;
        let device = list.find(name).ok_or_else(|| no_device(CALL))?;
        // SAFETY: a device of the list, which is freed only at the end.
        if unsafe { (*device).transport_type } == abi::IBV_TRANSPORT_IWARP {
            return Context::open_for_cm(library, name);
        }
        // SAFETY: as above.
        let raw = unsafe { (library.verbs().ibv_open_device)(device) };
        Context::new(library, NonNull::new(raw).ok_or_else(|| VerbsError::last(CALL))?, true)
    }

    /// The context that rdma_cm has of the device, so that queue pairs of its connections can use what is made on it.
    ///
    /// It is one context however often it is opened: whoever asks for its events takes them from the others.
    ///
    /// # Errors
    /// There is no such device, it cannot be opened, or librdmacm is not there.
    pub fn open_for_cm(library: &Arc<Library>, name: &str) -> Result<Arc<Context>, VerbsError> {
        const CALL: &str = "rdma_get_devices";
        library.check(CALL)?;
        let cm = library.cm()?;
        let mut count = 0;
        // SAFETY: the list is freed below; the contexts stay.
        let list = unsafe { (cm.rdma_get_devices)(&raw mut count) };
        if list.is_null() {
            return Err(VerbsError::last(CALL));
        }
        let found = (0..usize::try_from(count).unwrap_or(0))
            // SAFETY: the list has that many entries.
            .filter_map(|i| NonNull::new(unsafe { list.add(i).read() }))
            .find(|context| device_of(*context).0 == name);
        // SAFETY: it came from the library, and is not used after this.
        unsafe { (cm.rdma_free_devices)(list) };
        Context::new(library, found.ok_or_else(|| no_device(CALL))?, false)
    }

    fn new(library: &Arc<Library>, raw: NonNull<ibv_context>, own: bool) -> Result<Arc<Context>, VerbsError> {
        let (name, transport) = device_of(raw);
        let limits = DeviceLimits::NONE;
        // What is opened is closed again if one of the next steps fails.
        let mut context = Context { raw, library: Arc::clone(library), name, transport, limits, closed_on_drop: own };
        context.limits = context.query_limits()?;
        set_nonblocking(context.event_fd())?;
        Ok(Arc::new(context))
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What carries the operations of the device.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// True if its queue pairs must be connected by rdma_cm.
    #[must_use]
    pub fn needs_cm(&self) -> bool {
        self.transport == Transport::IWARP
    }

    /// What the device allows at most.
    #[must_use]
    pub fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    /// A port, from 1 to the number of ports.
    ///
    /// # Errors
    /// What the library says.
    pub fn port(&self, number: u8) -> Result<Port, VerbsError> {
        const CALL: &str = "ibv_query_port";
        self.check(CALL)?;
        // The function behind the symbol does not fill the last bytes.
        let mut port = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: the context is open, and the structure has the size of the library's.
        let returned = unsafe { (self.library.verbs().ibv_query_port)(self.raw(), number, port.as_mut_ptr()) };
        VerbsError::check(CALL, returned)?;
        // SAFETY: integers, which were zeroed.
        let port = unsafe { port.assume_init() };
        Ok(Port {
            state: PortState(port.state),
            active_mtu: Mtu(port.active_mtu),
            max_mtu: Mtu(port.max_mtu),
            lid: port.lid,
            gids: u32::try_from(port.gid_tbl_len).unwrap_or(0),
            message_bytes: port.max_msg_sz,
            link_layer: LinkLayer(port.link_layer),
        })
    }

    /// The entries of a port's GID table that are in use.
    ///
    /// # Errors
    /// What the library says.
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        let state = self.port(port)?;
        let entries = state.gids.min(GIDS_MAX);
        let is_roce = state.link_layer == LinkLayer::ETHERNET && self.transport == Transport::INFINIBAND;
        let read = |index| self.gid(port, index, is_roce).transpose();
        (0..entries).filter_map(read).collect()
    }

    fn gid(&self, port: u8, index: u32, is_roce: bool) -> Result<Option<GidEntry>, VerbsError> {
        let entry = match self.library.verbs()._ibv_query_gid_ex {
            Some(query) => {
                let mut entry = MaybeUninit::<ibv_gid_entry>::zeroed();
                let bytes = size_of::<ibv_gid_entry>();
                // SAFETY: the context is open, and the structure has the size that is given.
                let returned = unsafe { query(self.raw(), port.into(), index, entry.as_mut_ptr(), 0, bytes) };
                match VerbsError::check("ibv_query_gid_ex", returned) {
                    // An entry that is not in use.
                    Err(error) if error.errno() == Some(libc::ENODATA) => return Ok(None),
                    other => other?,
                }
                // SAFETY: integers, which were zeroed.
                let entry = unsafe { entry.assume_init() };
                GidEntry { index, gid: Gid(entry.gid.raw), kind: GidType(entry.gid_type) }
            }
            None => {
                let mut gid = [0; 16];
                let query = self.library.verbs().ibv_query_gid;
                // SAFETY: the context is open; a GID has 16 bytes.
                VerbsError::check("ibv_query_gid", unsafe { query(self.raw(), port, index as i32, &raw mut gid) })?;
                GidEntry { index, gid: Gid(gid), kind: gid_type_of_file(&self.name, port, index, is_roce) }
            }
        };
        Ok((!entry.gid.is_zero()).then_some(entry))
    }

    /// Readable when there is an event.
    #[must_use]
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).async_fd) }
    }

    /// The next event, if there is one. It does not wait.
    ///
    /// # Errors
    /// What the library says.
    pub fn next_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        const CALL: &str = "ibv_get_async_event";
        self.check(CALL)?;
        let verbs = self.library.verbs();
        let mut event = ibv_async_event { element: std::ptr::null_mut(), event_type: u32::MAX };
        // SAFETY: the context is open, and its descriptor does not block.
        let returned = unsafe { (verbs.ibv_get_async_event)(self.raw(), &raw mut event) };
        match VerbsError::check(CALL, returned) {
            Err(error) if error.is_empty() => return Ok(None),
            other => other?,
        }
        let kind = EventKind(event.event_type);
        // SAFETY: an event of this kind names a queue pair, which cannot be destroyed before the event is acknowledged.
        let number = |qp: *mut abi::ibv_qp| unsafe { (*qp).qp_num };
        let queue_pair = kind.is_of_queue_pair().then(|| number(event.element.cast()));
        // The low half of the union.
        let port = kind.is_of_port().then(|| event.element.addr() as u32);
        // SAFETY: it was got just now, and is acknowledged once.
        unsafe { (verbs.ibv_ack_async_event)(&raw mut event) };
        Ok(Some(AsyncEvent { kind, queue_pair, port }))
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    pub(super) fn library(&self) -> &Arc<Library> {
        &self.library
    }

    #[inline]
    pub(super) fn check(&self, call: &'static str) -> Result<(), VerbsError> {
        self.library.check(call)
    }

    fn query_limits(&self) -> Result<DeviceLimits, VerbsError> {
        let mut device = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and the structure has the size of the library's.
        let returned = unsafe { (self.library.verbs().ibv_query_device)(self.raw(), device.as_mut_ptr()) };
        VerbsError::check("ibv_query_device", returned)?;
        // SAFETY: integers, which were zeroed.
        Ok(DeviceLimits::of(&unsafe { device.assume_init() }))
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("name", &self.name).field("transport", &self.transport).finish_non_exhaustive()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.closed_on_drop && self.library.is_ours() {
            // SAFETY: whatever was made on it keeps it alive, so there is nothing left.
            unsafe { (self.library.verbs().ibv_close_device)(self.raw()) };
        }
    }
}

impl DeviceLimits {
    const NONE: DeviceLimits = DeviceLimits {
        queue_pairs: 0,
        requests: 0,
        pieces: 0,
        read_pieces: 0,
        completion_queues: 0,
        completions: 0,
        memory_regions: 0,
        memory_region_bytes: 0,
        reads_served: 0,
        reads_started: 0,
        ports: 0,
    };

    fn of(device: &ibv_device_attr) -> DeviceLimits {
        let count = |number: i32| u32::try_from(number).unwrap_or(0);
        let pieces = count(device.max_sge);
        // Some drivers leave it 0, which would be no READ at all.
        let read_pieces = if device.max_sge_rd > 0 { count(device.max_sge_rd).min(pieces) } else { pieces.min(1) };
        DeviceLimits {
            queue_pairs: count(device.max_qp),
            requests: count(device.max_qp_wr),
            pieces,
            read_pieces,
            completion_queues: count(device.max_cq),
            completions: count(device.max_cqe),
            memory_regions: count(device.max_mr),
            memory_region_bytes: device.max_mr_size,
            reads_served: count(device.max_qp_rd_atom),
            reads_started: count(device.max_qp_init_rd_atom),
            ports: device.phys_port_cnt,
        }
    }
}

pub(super) fn device_of(context: NonNull<ibv_context>) -> (String, Transport) {
    // SAFETY: an open context names a device that stays with it, whose name ends with 0.
    unsafe {
        let device = (*context.as_ptr()).device;
        let name = CStr::from_ptr((&raw const (*device).name).cast());
        (name.to_string_lossy().into_owned(), Transport((*device).transport_type))
    }
}

fn no_device(call: &'static str) -> VerbsError {
    VerbsError::new(call, io::Error::new(io::ErrorKind::NotFound, "there is no device of this name"))
}

/// What the kernel says of a GID, for libraries that do not ask it.
fn gid_type_of_file(device: &str, port: u8, index: u32, is_roce: bool) -> GidType {
    let file = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}");
    match std::fs::read_to_string(file) {
        Ok(text) if text.starts_with("RoCE v2") => GidType::ROCE_V2,
        // The text is the same for both, and for iWARP: "IB/RoCE v1".
        _ if is_roce => GidType::ROCE_V1,
        _ => GidType::INFINIBAND,
    }
}

pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), VerbsError> {
    let fd: RawFd = fd.as_raw_fd();
    // SAFETY: the flags of an open descriptor.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(VerbsError::last("fcntl"));
    }
    Ok(())
}

/// A device with more says something wrong, or wants more calls than this is worth.
const GIDS_MAX: u32 = 1024;
