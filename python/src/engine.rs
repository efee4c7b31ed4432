//! `Engine`: an engine in this process.

use crate::array::Keep;
use crate::client::{Client, adoptable, rights, setup};
use crate::errors::Failure;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use scatter_ring::engine::{self, Config, PeerSettings, PeerTransport, RunningEngine};
use scatter_ring::region::ForkGuard;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The engine itself, as long as somebody uses it.
pub struct Running {
    /// Asked before the lock: a child has the lock as it was when it was forked.
    fork: ForkGuard,
    /// `None`: closed.
    engine: Mutex<Option<RunningEngine>>,
}

impl Running {
    /// Not to be called with the GIL: others may have it wait.
    pub fn with<R>(&self, use_it: impl FnOnce(&RunningEngine) -> Result<R, Failure>) -> Result<R, Failure> {
        if self.fork.is_child() {
            return Err(Failure::Forked);
        }
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        use_it(engine.as_ref().ok_or(Failure::Closed("the engine"))?)
    }

    fn take(&self) -> Result<Option<RunningEngine>, Failure> {
        if self.fork.is_child() {
            return Err(Failure::Forked);
        }
        Ok(self.engine.lock().unwrap_or_else(PoisonError::into_inner).take())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop_without_gil(self.engine.get_mut().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// Memory of an array that an engine of this process has adopted. Dropping it returns when nobody touches the memory any more.
pub struct Lent(Option<engine::Adopted>);

impl Lent {
    pub fn new(adopted: engine::Adopted) -> Lent {
        Lent(Some(adopted))
    }

    /// Not to be called with the GIL.
    fn close(mut self) {
        drop(self.0.take());
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        drop_without_gil(self.0.take());
    }
}

/// Drops what waits for the engine's threads. An object of Python is dropped with the GIL, and others shall go on.
fn drop_without_gil<T: Send>(mut value: Option<T>) {
    if value.is_some() {
        Python::try_attach(|py| py.detach(|| drop(value.take())));
    }
}

/// An engine in this process: a thread that serves rings, and a few that copy. For clients of this process (`client`), of
/// others on this host (`listen`), and for engines of other hosts.
///
/// `workers`: threads that copy, besides the one that serves (None: one less than there are processors, at most 4).
/// `spin_us`: how long threads spin before they sleep. `users`: numeric ids of users, besides this one and root, whose
/// processes may attach.
///
/// `peers`: this engine can connect to others, and others to it at the addresses `peer_listen` ("127.0.0.1:0": any free port;
/// not loopback: only with keys). `peer_advertise`: what others are told to connect to, if that differs. `peer_keys`: a key
/// file that both have, from `scatter-ring key`. `peer_transport`: "auto", "verbs" or "tcp".
///
/// It stops when it is closed, or when it and its clients are dropped. A forked child has none of its threads.
#[pyclass(module = "scatter_ring", frozen)]
pub struct Engine(Arc<Running>);

/// Memory of an array that clients of the engine can open by its name: from `Engine.adopt`. It keeps the array until it is
/// closed or dropped.
#[pyclass(module = "scatter_ring", frozen)]
pub struct Adopted {
    name: String,
    bytes: usize,
    /// Dropped in this order: first nobody touches the memory any more.
    held: Mutex<Option<(Lent, Keep)>>,
    engine: Arc<Running>,
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (*, workers = None, spin_us = 200, users = Vec::new(), peers = false, peer_listen = Vec::new(),
                        peer_advertise = Vec::new(), peer_keys = None, peer_transport = "auto"))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        workers: Option<usize>,
        spin_us: u64,
        users: Vec<u32>,
        peers: bool,
        peer_listen: Vec<String>,
        peer_advertise: Vec<String>,
        peer_keys: Option<PathBuf>,
        peer_transport: &str,
    ) -> PyResult<Engine> {
        let transport = match peer_transport {
            "auto" => PeerTransport::Auto,
            "verbs" => PeerTransport::Verbs,
            "tcp" => PeerTransport::Tcp,
            other => return Err(PyValueError::new_err(format!("peer_transport: {other:?}, not auto, verbs or tcp"))),
        };
        let (listen, advertise) =
            (addresses("peer_listen", &peer_listen)?, addresses("peer_advertise", &peer_advertise)?);
        let wanted = peers || !listen.is_empty();
        let settings = PeerSettings { listen, advertise, key_file: peer_keys, transport, ..PeerSettings::default() };
        let defaults = Config::default();
        let config = Config {
            workers: workers.unwrap_or(defaults.workers),
            spin: Duration::from_micros(spin_us),
            users,
            peers: wanted.then_some(settings),
            ..defaults
        };
        let running = py.detach(|| -> Result<_, Failure> {
            let fork =
                ForkGuard::new().map_err(|source| engine::EngineError::System { operation: "fork guard", source })?;
            let engine = Mutex::new(Some(engine::Engine::new(&config)?.start()?));
            Ok(Running { fork, engine })
        })?;
        Ok(Engine(Arc::new(running)))
    }

    /// A client of this process. Settings as those of `attach`.
    #[pyo3(signature = (*, sq_capacity = 4096, cq_capacity = 1024, spin_us = 200, notifications = false))]
    fn client(
        &self,
        py: Python<'_>,
        sq_capacity: u32,
        cq_capacity: u32,
        spin_us: u64,
        notifications: bool,
    ) -> PyResult<Client> {
        let setup = setup(sq_capacity, cq_capacity, spin_us, notifications);
        Ok(py.detach(|| {
            let socket = self.0.with(|engine| engine.connect().map_err(|error| Failure::Attach(error.into())))?;
            Client::over(socket, &setup, self.0.clone())
        })?)
    }

    /// Accepts clients of other processes, for `attach(path)`. The socket's directory is made with mode 0700 if it is not
    /// there, and must otherwise be this user's alone.
    fn listen(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        Ok(py.detach(|| self.0.with(|engine| Ok(engine.listen(&path)?)))?)
    }

    /// The text by which clients of other engines reach this one: `Client.connect`. None: it does not listen for engines.
    #[getter]
    fn endpoint(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(py.detach(|| self.0.with(|engine| Ok(engine.endpoint().map(|endpoint| endpoint.to_string()))))?)
    }

    /// Lets clients of this engine, and of its peers, open the memory of an array (NumPy, torch on the CPU) by a name, without
    /// a copy: for reading, or, if `writable`, for reading and writing. The array has to be C-contiguous, and must not be
    /// changed while somebody reads it. Without a name it gets one.
    #[pyo3(signature = (array, name = None, *, writable = false))]
    fn adopt(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        name: Option<String>,
        writable: bool,
    ) -> PyResult<Adopted> {
        let array = adoptable(array, writable)?;
        let name = name.unwrap_or_else(adopted_name);
        let (address, bytes) = (array.address, array.layout.bytes());
        let adopted = py.detach(|| {
            // SAFETY: the array is kept until nobody touches its memory any more. There are no Rust references to it.
            self.0
                .with(|engine| Ok(unsafe { engine.adopt(&name, address as *mut u8, bytes as u64, rights(writable)) }?))
        })?;
        let held = Mutex::new(Some((Lent::new(adopted), array.keep)));
        Ok(Adopted { name, bytes, held, engine: self.0.clone() })
    }

    /// True once `close` was called.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        match py.detach(|| self.0.with(|_| Ok(()))) {
            Err(Failure::Closed(_)) => Ok(true),
            other => Ok(other.map(|()| false)?),
        }
    }

    /// Stops the engine: batches under way are finished, for `timeout` seconds at most. Clients see the end of their session.
    #[pyo3(signature = (timeout = 0.0))]
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let limit = crate::transfer::seconds("timeout", Some(timeout))?.unwrap_or(Duration::MAX);
        let stopped: Result<(), Failure> = py.detach(|| {
            if let Some(engine) = self.0.take()? {
                engine.stop_within(limit);
            }
            Ok(())
        });
        Ok(stopped?)
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
        self.close(py, 0.0)
    }
}

#[pymethods]
impl Adopted {
    /// By which clients open it.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes
    }

    /// True once it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Takes the memory back: returns when nobody touches it any more, and lets the array go.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.engine.fork.is_child() {
            return Err(Failure::Forked.into());
        }
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((adopted, keep)) = held {
            py.detach(|| adopted.close());
            drop(keep);
        }
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

    fn __repr__(&self) -> String {
        format!("<scatter_ring.Adopted {:?}, {} B>", self.name, self.bytes)
    }
}

/// A name that nobody else in this process has, for memory that was given none.
pub fn adopted_name() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    format!("adopted-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

fn addresses(what: &str, texts: &[String]) -> PyResult<Vec<SocketAddr>> {
    let parse = |text: &String| {
        text.parse().map_err(|_| PyValueError::new_err(format!("{what}: {text:?} is not ADDRESS:PORT, as 127.0.0.1:0")))
    };
    texts.iter().map(parse).collect()
}
