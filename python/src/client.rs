//! `Client`: memory, operations, notifications. Long, because all methods of a Python class stand in one block, and each says
//! what its arguments are.

use crate::array::{Array, Layout};
use crate::batch::Batch;
use crate::buffer::{Buffer, Region};
use crate::describe::{self, Distances, Op, Way, missing_flag};
use crate::dtype::{DType, UINT8};
use crate::engine::{Lent, Running, adopted_name};
use crate::errors::Failure;
use crate::memory::{Memory, Origin};
use crate::session::Session;
use crate::state::Notice;
use crate::submit::Plan;
use crate::transfer::{Transfer, deadline, seconds};
use crate::wakeup::PyWakeup;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use ring_abi::Status;
use scatter_ring::attach::Socket;
use scatter_ring::client::{self, ClientError, Setup};
use scatter_ring::region::Rights;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// One session with an engine: from `attach`, or `Engine.client`.
///
/// Operations move bytes between memory of this client (`Buffer`s, and arrays of them) and memory that others have exported
/// (`Region`s), or within its own. Each waits, with the GIL released, and returns an `Outcome`; with `wait=False` it returns a
/// `Transfer` at once, which can be waited for, polled or awaited. Any thread may use a client; threads that submit much
/// want one each. A forked child has to attach again. The session ends with `close`, or when the client and everything that
/// came from it (memory, arrays, transfers) was dropped.
#[pyclass(module = "scatter_ring", frozen, weakref)]
pub struct Client {
    pub session: Arc<Session>,
}

/// Another engine that this client's engine is connected to: from `Client.connect`.
#[pyclass(module = "scatter_ring", frozen, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub struct Peer(client::Peer);

/// What another client has sent by `notify`: the data of its batch is in place.
#[pyclass(module = "scatter_ring", frozen)]
pub struct Notification(Notice);

/// Attaches to the engine that listens at `path`: the socket of `scatter-ring serve`, or of `Engine.listen`.
///
/// `sq_capacity`: descriptors that the submission ring holds, a power of two. `cq_capacity`: a power of two; a quarter of it
/// is how many batches can be under way. `spin_us`: how long a wait spins before it sleeps. `notifications`: others can tell
/// this client that data is there.
///
/// Raises AttachError, which says what to do: nobody listens there, it is not permitted, or the versions differ.
#[pyfunction]
#[pyo3(signature = (path, *, sq_capacity = 4096, cq_capacity = 1024, spin_us = 200, notifications = false))]
pub fn attach(
    py: Python<'_>,
    path: PathBuf,
    sq_capacity: u32,
    cq_capacity: u32,
    spin_us: u64,
    notifications: bool,
) -> PyResult<Client> {
    let setup = setup(sq_capacity, cq_capacity, spin_us, notifications);
    let session = py.detach(|| {
        let client = client::Client::attach_with(&path, &setup).map_err(Failure::Attach)?;
        Session::new(client, &setup, None)
    })?;
    Ok(Client { session })
}

pub fn setup(sq_capacity: u32, cq_capacity: u32, spin_us: u64, notifications: bool) -> Setup {
    Setup { sq_capacity, cq_capacity, spin: Duration::from_micros(spin_us), notifications, ..Setup::default() }
}

impl Client {
    /// Of an engine of this process.
    pub fn over(socket: Socket, setup: &Setup, engine: Arc<Running>) -> Result<Client, Failure> {
        let client = client::Client::over(socket, setup).map_err(Failure::Attach)?;
        Ok(Client { session: Session::new(client, setup, Some(engine))? })
    }

    /// Submits one operation, and waits if that is wanted.
    fn run(&self, py: Python<'_>, op: Op, time: Option<f64>, wait: bool) -> PyResult<Py<PyAny>> {
        let plan = Plan { ops: vec![op], deadline: deadline(time)?, fence: false };
        let transfer = start(py, &self.session, &plan)?;
        if !wait {
            return Ok(transfer.into_any().unbind());
        }
        let outcome = Transfer::wait_for(&transfer, None)?;
        Ok(Py::new(py, outcome.expect("a wait without a limit"))?.into_any())
    }

    fn buffer(&self, region: client::Region, writable: bool, origin: Origin, layout: Layout) -> Buffer {
        Buffer::new(Memory::new(&self.session, region, writable, origin), 0, layout)
    }
}

/// Submits a batch, without the GIL.
pub fn start<'py>(py: Python<'py>, session: &Arc<Session>, plan: &Plan) -> PyResult<Bound<'py, Transfer>> {
    let ticket = session.without_gil(py, |locked| {
        if plan.needs_index() {
            // Index memory is used again once its batch was seen to be done, and nobody may have looked for long. What is
            // wrong is for the submission to say.
            let _ = locked.take_spans();
        }
        plan.submit(locked.client()?)
    })?;
    Bound::new(py, Transfer::new(session, ticket, plan.memories()))
}

#[pymethods]
impl Client {
    /// New memory of this process, all 0, that batches may read and write: as a buffer of this shape and dtype. An integer
    /// as shape is one dimension; without a dtype it is bytes.
    #[pyo3(signature = (shape, dtype = None))]
    fn allocate(&self, py: Python<'_>, shape: &Bound<'_, PyAny>, dtype: Option<&Bound<'_, PyAny>>) -> PyResult<Buffer> {
        let layout = layout(shape, dtype)?;
        let bytes = layout.bytes() as u64;
        let region = self.session.without_gil(py, |locked| Ok(locked.client()?.allocate(bytes)?))?;
        Ok(self.buffer(region, true, Origin::default(), layout))
    }

    /// The memory of a memory file (a file descriptor, or anything with `fileno()`), from byte `offset` on. The file must be
    /// open for writing if `writable`, and sealed against shrinking (`fcntl.F_SEAL_SHRINK`), unless the engine trusts its
    /// own user. It may be closed afterwards.
    #[pyo3(signature = (fd, shape, dtype = None, *, offset = 0, writable = true))]
    fn register(
        &self,
        py: Python<'_>,
        fd: &Bound<'_, PyAny>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        offset: u64,
        writable: bool,
    ) -> PyResult<Buffer> {
        let layout = layout(shape, dtype)?;
        let (bytes, rights) = (layout.bytes() as u64, rights(writable));
        // SAFETY: a borrowed reference to a live object.
        let number = unsafe { ffi::PyObject_AsFileDescriptor(fd.as_ptr()) };
        if number < 0 {
            return Err(PyErr::fetch(py));
        }
        // SAFETY: not -1; the caller's object keeps it open, and one that is not open is an error of the kernel's.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        let region =
            self.session.without_gil(py, |locked| Ok(locked.client()?.register_at(file, offset, bytes, rights)?))?;
        Ok(self.buffer(region, writable, Origin::default(), layout))
    }

    /// Memory of an array that exists (NumPy, torch on the CPU), as a buffer that keeps the array. Nothing is copied. It has
    /// to be C-contiguous; `writable`: batches may write it.
    ///
    /// Memory that is a shared mapping of a file, of any attached client; private memory (what NumPy and torch allocate)
    /// only of a client of an engine in this process.
    #[pyo3(signature = (array, *, writable = false))]
    fn adopt(&self, py: Python<'_>, array: &Bound<'_, PyAny>, writable: bool) -> PyResult<Buffer> {
        let array = adoptable(array, writable)?;
        let layout = match array.layout.dtype {
            Some(_) => array.layout.clone(),
            None => Layout::packed(vec![array.layout.bytes()], UINT8),
        };
        let (address, bytes, rights) = (array.address, array.layout.bytes() as u64, rights(writable));
        let shared = self.session.without_gil(py, |locked| {
            // SAFETY: the buffer keeps the array, and with it the memory. There are no Rust references to it.
            match unsafe { locked.client()?.adopt(address as *mut u8, bytes, rights) } {
                Ok(region) => Ok(Some(region)),
                Err(ClientError::PrivateMemory | ClientError::System { .. }) => Ok(None),
                Err(error) => Err(error.into()),
            }
        })?;
        let (region, adopted) = match (shared, &self.session.engine) {
            (Some(region), _) => (region, None),
            (None, Some(engine)) => {
                let name = adopted_name();
                let adopted = py.detach(|| {
                    // SAFETY: as above; the memory is closed before the array is let go.
                    engine.with(|engine| Ok(unsafe { engine.adopt(&name, address as *mut u8, bytes, rights) }?))
                })?;
                let adopted = Lent::new(adopted);
                let opened = self.session.without_gil(py, |locked| Ok(locked.client()?.open(&name, rights)?));
                (opened?, Some(adopted))
            }
            (None, None) => {
                let text = "this memory is private to the process, where an engine in another one cannot reach it: copy it into \
                     client.allocate(...), or use an Engine in this process";
                return Err(Failure::region(Status::BAD_FD, text).into());
            }
        };
        let origin = Origin { address, adopted, keep: Some(array.keep) };
        Ok(self.buffer(region, writable, origin, layout))
    }

    /// Memory that another client, of this engine or of `peer`, has exported under this name, or that `Engine.adopt` has
    /// given: to be moved by batches only.
    #[pyo3(signature = (name, *, writable = false, peer = None))]
    fn open(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyAny>,
        writable: bool,
        peer: Option<&Bound<'_, Peer>>,
    ) -> PyResult<Region> {
        let name: String = match name.cast::<PyString>() {
            Ok(name) => name.to_string(),
            Err(_) => name.getattr("name").and_then(|name| name.extract()).map_err(|_| {
                PyTypeError::new_err(
                    "name: a text is needed, or what has one as its name, as engine.adopt(...) gives it",
                )
            })?,
        };
        let (rights, peer) = (rights(writable), peer.map(|peer| peer.get().0));
        let region = self.session.without_gil(py, |locked| {
            let client = locked.client()?;
            Ok(match peer {
                Some(peer) => client.open_at(peer, &name, rights)?,
                None => client.open(&name, rights)?,
            })
        })?;
        Ok(Region { memory: Memory::new(&self.session, region, false, Origin::default()), name })
    }

    /// Another engine, by its endpoint's text: `Engine.endpoint`, or what `scatter-ring serve` prints. Returns when this
    /// client's engine has a connection to it.
    fn connect(&self, py: Python<'_>, endpoint: &str) -> PyResult<Peer> {
        Ok(Peer(self.session.without_gil(py, |locked| Ok(locked.client()?.connect(endpoint)?))?))
    }

    /// Reads rows of `table` into `out`: `out[i] = table[ids[i]]`.
    ///
    /// `table`: a Region (bytes), a Buffer, or an array of one, of shape (rows, ...). `ids`: shape (n,), int32, uint32, int64
    /// or uint64; a Buffer or an array of one is read in place and must not change until the transfer is done, anything else
    /// is copied once. `out`: a Buffer, or an array of one, of shape (n or more, ...); a part (`buffer[10:20]`) will do, and
    /// rows may lie apart.
    ///
    /// A row has the bytes of a row of `out`, or of `table`, or `row_bytes`. Rows of the table start at `table_offset` bytes,
    /// one each `table_stride` bytes (default: the bytes of a row). `missing`: what an id of -1 (all ones) means: ZERO fills
    /// its row with 0, SKIP leaves it, None refuses it. `deadline`: seconds, after which the transfer fails with TimedOut.
    #[pyo3(signature = (table, ids, out, *, row_bytes = None, missing = None, table_offset = 0, table_stride = None,
                        deadline = None, wait = true))]
    #[allow(clippy::too_many_arguments)]
    fn read_rows(
        &self,
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        ids: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        row_bytes: Option<u64>,
        missing: Option<&Bound<'_, PyAny>>,
        table_offset: u64,
        table_stride: Option<u64>,
        deadline: Option<f64>,
        wait: bool,
    ) -> PyResult<Py<PyAny>> {
        let (missing, distances) = (missing_flag(missing)?, Distances { offset: table_offset, stride: table_stride });
        let op = describe::rows(&self.session, Way::Read, (table, ids, &distances), out, row_bytes, missing)?;
        self.run(py, op, deadline, wait)
    }

    /// Writes rows into `table`: `table[ids[i]] = rows[i]`. Arguments as those of `read_rows`. If an id is there twice, either
    /// row may win.
    #[pyo3(signature = (table, ids, rows, *, row_bytes = None, table_offset = 0, table_stride = None, deadline = None,
                        wait = true))]
    #[allow(clippy::too_many_arguments)]
    fn write_rows(
        &self,
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        ids: &Bound<'_, PyAny>,
        rows: &Bound<'_, PyAny>,
        row_bytes: Option<u64>,
        table_offset: u64,
        table_stride: Option<u64>,
        deadline: Option<f64>,
        wait: bool,
    ) -> PyResult<Py<PyAny>> {
        let distances = Distances { offset: table_offset, stride: table_stride };
        let op = describe::rows(&self.session, Way::Write, (table, ids, &distances), rows, row_bytes, 0)?;
        self.run(py, op, deadline, wait)
    }

    /// Reads blocks by number on both sides: `dst[dst_ids[i]] = src[src_ids[i]]`, pages of a KV cache for example.
    ///
    /// `src`, `dst`: as `table` and `out` of `read_rows`. `src_ids`, `dst_ids`: shape (n,), integers, copied once. A block has
    /// the bytes of a row of `dst` or `src`, or `block_bytes`. If a block of `dst` is there twice, either may win.
    #[pyo3(signature = (src, src_ids, dst, dst_ids, *, block_bytes = None, missing = None, src_offset = 0, src_stride = None,
                        dst_offset = 0, dst_stride = None, deadline = None, wait = true))]
    #[allow(clippy::too_many_arguments)]
    fn read_blocks(
        &self,
        py: Python<'_>,
        src: &Bound<'_, PyAny>,
        src_ids: &Bound<'_, PyAny>,
        dst: &Bound<'_, PyAny>,
        dst_ids: &Bound<'_, PyAny>,
        block_bytes: Option<u64>,
        missing: Option<&Bound<'_, PyAny>>,
        src_offset: u64,
        src_stride: Option<u64>,
        dst_offset: u64,
        dst_stride: Option<u64>,
        deadline: Option<f64>,
        wait: bool,
    ) -> PyResult<Py<PyAny>> {
        let (in_src, in_dst) = distances(src_offset, src_stride, dst_offset, dst_stride);
        let (from, to) = ((src, src_ids, &in_src), (dst, dst_ids, &in_dst));
        let op = describe::blocks(&self.session, Way::Read, from, to, block_bytes, missing_flag(missing)?)?;
        self.run(py, op, deadline, wait)
    }

    /// Writes blocks by number on both sides: `dst[dst_ids[i]] = src[src_ids[i]]`, where `src` is this client's. Arguments as
    /// those of `read_blocks`.
    #[pyo3(signature = (src, src_ids, dst, dst_ids, *, block_bytes = None, src_offset = 0, src_stride = None,
                        dst_offset = 0, dst_stride = None, deadline = None, wait = true))]
    #[allow(clippy::too_many_arguments)]
    fn write_blocks(
        &self,
        py: Python<'_>,
        src: &Bound<'_, PyAny>,
        src_ids: &Bound<'_, PyAny>,
        dst: &Bound<'_, PyAny>,
        dst_ids: &Bound<'_, PyAny>,
        block_bytes: Option<u64>,
        src_offset: u64,
        src_stride: Option<u64>,
        dst_offset: u64,
        dst_stride: Option<u64>,
        deadline: Option<f64>,
        wait: bool,
    ) -> PyResult<Py<PyAny>> {
        let (in_src, in_dst) = distances(src_offset, src_stride, dst_offset, dst_stride);
        let (from, to) = ((src, src_ids, &in_src), (dst, dst_ids, &in_dst));
        let op = describe::blocks(&self.session, Way::Write, from, to, block_bytes, 0)?;
        self.run(py, op, deadline, wait)
    }

    /// Reads ranges of any lengths: `lengths[i]` bytes at byte `src_offsets[i]` of `src` to byte `dst_offsets[i]` of `dst`.
    ///
    /// Offsets and lengths: shape (n,), integers; `lengths` may be one integer. Offsets that are None lie one behind the other
    /// from the start on. `src`, `dst`: a Region, or a packed Buffer or array of one. All of them are checked before anything
    /// is submitted; none is longer than 4 GiB - 1. A million take one call and no loop.
    #[pyo3(signature = (src, src_offsets, dst, dst_offsets, lengths, *, deadline = None, wait = true))]
    #[allow(clippy::too_many_arguments)]
    fn read_ranges(
        &self,
        py: Python<'_>,
        src: &Bound<'_, PyAny>,
        src_offsets: Option<&Bound<'_, PyAny>>,
        dst: &Bound<'_, PyAny>,
        dst_offsets: Option<&Bound<'_, PyAny>>,
        lengths: &Bound<'_, PyAny>,
        deadline: Option<f64>,
        wait: bool,
    ) -> PyResult<Py<PyAny>> {
        let op = describe::ranges(&self.session, Way::Read, (src, src_offsets), (dst, dst_offsets), lengths)?;
        self.run(py, op, deadline, wait)
    }

    /// Writes ranges of any lengths from `src`, which is this client's, to `dst`. Arguments as those of `read_ranges`.
    #[pyo3(signature = (src, src_offsets, dst, dst_offsets, lengths, *, deadline = None, wait = true))]
    #[allow(clippy::too_many_arguments)]
    fn write_ranges(
        &self,
        py: Python<'_>,
        src: &Bound<'_, PyAny>,
        src_offsets: Option<&Bound<'_, PyAny>>,
        dst: &Bound<'_, PyAny>,
        dst_offsets: Option<&Bound<'_, PyAny>>,
        lengths: &Bound<'_, PyAny>,
        deadline: Option<f64>,
        wait: bool,
    ) -> PyResult<Py<PyAny>> {
        let op = describe::ranges(&self.session, Way::Write, (src, src_offsets), (dst, dst_offsets), lengths)?;
        self.run(py, op, deadline, wait)
    }

    /// Reads `count` pieces of `piece_bytes` bytes, `src_stride` bytes apart in `src` and `dst_stride` in `dst`.
    ///
    /// An array of a Buffer says it by itself: `client.read_tile(region, out.numpy()[:, 192:320], src_offset=32,
    /// src_stride=512)` reads 128 columns of each row. For bytes (a Region, a one-dimensional Buffer) pieces start at
    /// `src_offset` or `dst_offset`, and lie one behind the other without a stride.
    #[pyo3(signature = (src, dst, *, count = None, piece_bytes = None, src_offset = 0, src_stride = None, dst_offset = 0,
                        dst_stride = None, deadline = None, wait = true))]
    #[allow(clippy::too_many_arguments)]
    fn read_tile(
        &self,
        py: Python<'_>,
        src: &Bound<'_, PyAny>,
        dst: &Bound<'_, PyAny>,
        count: Option<u64>,
        piece_bytes: Option<u64>,
        src_offset: u64,
        src_stride: Option<u64>,
        dst_offset: u64,
        dst_stride: Option<u64>,
        deadline: Option<f64>,
        wait: bool,
    ) -> PyResult<Py<PyAny>> {
        let (in_src, in_dst) = distances(src_offset, src_stride, dst_offset, dst_stride);
        let op = describe::tile(&self.session, Way::Read, (src, &in_src), (dst, &in_dst), count, piece_bytes)?;
        self.run(py, op, deadline, wait)
    }

    /// Writes `count` pieces of `src`, which is this client's, to `dst`. Arguments as those of `read_tile`.
    #[pyo3(signature = (src, dst, *, count = None, piece_bytes = None, src_offset = 0, src_stride = None, dst_offset = 0,
                        dst_stride = None, deadline = None, wait = true))]
    #[allow(clippy::too_many_arguments)]
    fn write_tile(
        &self,
        py: Python<'_>,
        src: &Bound<'_, PyAny>,
        dst: &Bound<'_, PyAny>,
        count: Option<u64>,
        piece_bytes: Option<u64>,
        src_offset: u64,
        src_stride: Option<u64>,
        dst_offset: u64,
        dst_stride: Option<u64>,
        deadline: Option<f64>,
        wait: bool,
    ) -> PyResult<Py<PyAny>> {
        let (in_src, in_dst) = distances(src_offset, src_stride, dst_offset, dst_stride);
        let op = describe::tile(&self.session, Way::Write, (src, &in_src), (dst, &in_dst), count, piece_bytes)?;
        self.run(py, op, deadline, wait)
    }

    /// Reads one range: `nbytes` bytes (default: all of `dst`) from byte `src_offset` of `src` to byte `dst_offset` of `dst`.
    #[pyo3(signature = (src, dst, *, src_offset = 0, dst_offset = 0, nbytes = None, deadline = None, wait = true))]
    #[allow(clippy::too_many_arguments)]
    fn read(
        &self,
        py: Python<'_>,
        src: &Bound<'_, PyAny>,
        dst: &Bound<'_, PyAny>,
        src_offset: u64,
        dst_offset: u64,
        nbytes: Option<u64>,
        deadline: Option<f64>,
        wait: bool,
    ) -> PyResult<Py<PyAny>> {
        let op = describe::range(&self.session, Way::Read, (src, src_offset), (dst, dst_offset), nbytes)?;
        self.run(py, op, deadline, wait)
    }

    /// Writes one range: `nbytes` bytes (default: all of `src`) from byte `src_offset` of `src`, which is this client's, to byte
    /// `dst_offset` of `dst`.
    #[pyo3(signature = (src, dst, *, src_offset = 0, dst_offset = 0, nbytes = None, deadline = None, wait = true))]
    #[allow(clippy::too_many_arguments)]
    fn write(
        &self,
        py: Python<'_>,
        src: &Bound<'_, PyAny>,
        dst: &Bound<'_, PyAny>,
        src_offset: u64,
        dst_offset: u64,
        nbytes: Option<u64>,
        deadline: Option<f64>,
        wait: bool,
    ) -> PyResult<Py<PyAny>> {
        let op = describe::range(&self.session, Way::Write, (src, src_offset), (dst, dst_offset), nbytes)?;
        self.run(py, op, deadline, wait)
    }

    /// Tells the client that exported `region`: it gets `user_data` and `offset` (64-bit numbers of any meaning) and the bytes
    /// of `payload`, at most 4096. Behind other operations, so that their data is in place before: `Batch.notify`.
    #[pyo3(signature = (region, *, offset = 0, user_data = 0, payload = None, deadline = None, wait = true))]
    #[allow(clippy::too_many_arguments)]
    fn notify(
        &self,
        py: Python<'_>,
        region: &Bound<'_, PyAny>,
        offset: u64,
        user_data: u64,
        payload: Option<&[u8]>,
        deadline: Option<f64>,
        wait: bool,
    ) -> PyResult<Py<PyAny>> {
        let op = describe::notify(&self.session, region, offset, user_data, payload.unwrap_or_default())?;
        self.run(py, op, deadline, wait)
    }

    /// Submits descriptors that were made elsewhere, as one batch: a packed array of `DESCRIPTOR_DTYPE`, 64 bytes each. They name
    /// memory by the `handle` of a Buffer or Region. LAST is set on the last one.
    #[pyo3(signature = (descriptors, *, deadline = None, wait = true))]
    fn submit_descriptors(
        &self,
        py: Python<'_>,
        descriptors: &Bound<'_, PyAny>,
        deadline: Option<f64>,
        wait: bool,
    ) -> PyResult<Py<PyAny>> {
        let op = describe::raw(&self.session, descriptors)?;
        self.run(py, op, deadline, wait)
    }

    /// A batch: any number of operations with one outcome. `deadline`: seconds. `fence`: it starts after all earlier batches of
    /// this client have ended, and later ones do not overtake it.
    #[pyo3(signature = (*, deadline = None, fence = false))]
    fn batch(&self, deadline: Option<f64>, fence: bool) -> PyResult<Batch> {
        Batch::new(&self.session, crate::transfer::deadline(deadline)?, fence)
    }

    /// Waits for a notification: None if none has come after `timeout` seconds (None: for ever, 0: looks without a system call).
    #[pyo3(signature = (timeout = None))]
    fn wait_notification(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Notification>> {
        let timeout = seconds("timeout", timeout)?;
        let on = self.session.with(py, |locked| Ok(locked.notifications_on()))?;
        if !on {
            return Err(
                Failure::region(Status::NOT_ALLOWED, "notifications are off: attach with notifications=True").into()
            );
        }
        let notice = if timeout == Some(Duration::ZERO) {
            self.session.with(py, |locked| {
                let ended = locked.take_spans();
                match locked.notice() {
                    None => ended.map(|()| None),
                    some => Ok(some),
                }
            })?
        } else {
            self.session.wait(py, timeout, |state| state.notice())?
        };
        Ok(notice.map(Notification))
    }

    /// `async for notification in client.notifications()`: as they come, until the session ends (EngineLost) or the client is
    /// closed.
    fn notifications<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("scatter_ring._asyncio")?.call_method1("Notifications", (slf,))
    }

    /// How often the engine slept and this client had to wake it by a system call.
    #[getter]
    fn doorbells(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.session.with(py, |locked| Ok(locked.client()?.doorbells()))?)
    }

    /// True once `close` was called.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        match self.session.with(py, |_| Ok(())) {
            Err(Failure::Closed(_)) => Ok(true),
            other => Ok(other.map(|()| false)?),
        }
    }

    /// The client's file descriptor: readable when the engine has woken it, or is gone. `await` and `wait` look after it
    /// themselves.
    fn fileno(&self) -> i32 {
        self.session.wake_fd().as_raw_fd()
    }

    /// Ends the session, whatever is under way. Arrays of its memory stay as they are.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.session.is_child() {
            return Err(Failure::Forked.into());
        }
        py.detach(|| self.session.close());
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }

    /// For `scatter_ring._asyncio`.
    fn _wakeup(&self) -> PyResult<PyWakeup> {
        PyWakeup::new(&self.session)
    }

    /// For `scatter_ring._asyncio`: a number of the session.
    #[getter]
    fn _session(&self) -> u64 {
        self.session.number
    }

    /// For `scatter_ring._asyncio`: True if there is a notification, or never will be one.
    fn _settled(&self, py: Python<'_>) -> bool {
        self.session.with(py, |locked| Ok(locked.has_notice())).unwrap_or(true)
    }
}

#[pymethods]
impl Peer {
    /// The same for every client of one engine, and not 0.
    #[getter]
    fn number(&self) -> u64 {
        self.0.number()
    }

    fn __repr__(&self) -> String {
        format!("<scatter_ring.Peer {}>", self.0.number())
    }
}

#[pymethods]
impl Notification {
    /// The sender's `user_data`.
    #[getter]
    fn user_data(&self) -> u64 {
        self.0.user_data
    }

    /// The sender's `offset`: in most cases where in the region the data is.
    #[getter]
    fn offset(&self) -> u64 {
        self.0.offset
    }

    /// At most 4096 bytes.
    #[getter]
    fn payload<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.payload)
    }

    fn __repr__(&self) -> String {
        let Notice { user_data, offset, payload } = &self.0;
        format!("<scatter_ring.Notification user_data={user_data} offset={offset} payload of {} B>", payload.len())
    }
}

pub fn rights(writable: bool) -> Rights {
    if writable { Rights::READ_WRITE } else { Rights::READ }
}

/// An array whose memory can be adopted.
pub fn adoptable(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Array> {
    let array = Array::of(object, "array")?;
    let bytes = array.contiguous_bytes("array")?;
    if bytes == 0 {
        return Err(PyValueError::new_err("array: of 0 bytes"));
    }
    if writable && array.readonly {
        return Err(Failure::region(Status::NO_RIGHT, "array: this array is read-only").into());
    }
    Ok(array)
}

pub fn distances(
    src_offset: u64,
    src_stride: Option<u64>,
    dst_offset: u64,
    dst_stride: Option<u64>,
) -> (Distances, Distances) {
    (Distances { offset: src_offset, stride: src_stride }, Distances { offset: dst_offset, stride: dst_stride })
}

fn layout(shape: &Bound<'_, PyAny>, dtype: Option<&Bound<'_, PyAny>>) -> PyResult<Layout> {
    let wrong = || PyTypeError::new_err("shape: an integer, or a sequence of integers, of 1 or more");
    let shape: Vec<usize> = match shape.extract::<usize>() {
        Ok(length) => vec![length],
        Err(_) => shape.extract().map_err(|_| wrong())?,
    };
    let dtype = dtype.map(DType::of).transpose()?.unwrap_or(UINT8);
    let bytes = shape.iter().try_fold(dtype.bytes, |bytes, length| bytes.checked_mul(*length));
    match bytes {
        Some(1..) => Ok(Layout::packed(shape, dtype)),
        Some(0) => Err(PyValueError::new_err("shape: memory of 0 bytes")),
        None => Err(PyValueError::new_err("shape: more bytes than can be counted")),
    }
}
