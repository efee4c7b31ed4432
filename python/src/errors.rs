//! Failures as Python's exceptions. Their classes are written in Python (`scatter_ring/_errors.py`).

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use ring_abi::Status;
use scatter_ring::client::{BatchError, ClientError};
use scatter_ring::engine::EngineError;

/// Why something was not done. Made without the GIL, and turned into an exception with it.
#[derive(Debug)]
pub enum Failure {
    /// An argument that cannot be meant so.
    Argument(String),
    /// `close` was called on the client, the engine or the memory.
    Closed(&'static str),
    Forked,
    Attach(ClientError),
    /// A request about memory, exports or peers.
    Request(ClientError),
    Batch(BatchError),
    Engine(EngineError),
    Region {
        status: Status,
        text: String,
    },
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        match error {
            ClientError::Forked => Failure::Forked,
            error => Failure::Request(error),
        }
    }
}

impl From<BatchError> for Failure {
    fn from(error: BatchError) -> Failure {
        match error.status {
            Status::FORKED => Failure::Forked,
            _ => Failure::Batch(error),
        }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        Failure::Engine(error)
    }
}

impl Failure {
    pub fn region(status: Status, text: impl Into<String>) -> Failure {
        Failure::Region { status, text: text.into() }
    }

    fn exception(&self, py: Python<'_>) -> PyResult<PyErr> {
        let details = PyDict::new(py);
        let (class, status, message) = match self {
            Failure::Argument(text) => return Ok(PyValueError::new_err(text.clone())),
            Failure::Closed(what) => ("ClosedError", Status::UNKNOWN_REGION, format!("{what} was closed")),
            Failure::Forked => (
                "ForkedError",
                Status::FORKED,
                "this belongs to the parent process: attach again, or make an engine, in the child".to_owned(),
            ),
            Failure::Attach(error) => ("AttachError", error.status(), error.to_string()),
            Failure::Request(error) => {
                // Nobody can say when the memory of what was under way is left alone.
                details.set_item("reusable", class_of_request(error) != "EngineLost")?;
                (class_of_request(error), error.status(), error.to_string())
            }
            Failure::Region { status, text } => ("RegionError", *status, text.clone()),
            Failure::Engine(error) => engine(error),
            Failure::Batch(error) => {
                describe(&details, error)?;
                (class_of_batch(error.status), error.status, error.to_string())
            }
        };
        details.set_item("code", status.0)?;
        details.set_item("name", status.name().unwrap_or("UNKNOWN"))?;
        let made = class_named(py, class)?.call((message,), Some(&details))?;
        Ok(PyErr::from_value(made))
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        Python::attach(|py| failure.exception(py).unwrap_or_else(|error| error))
    }
}

fn class_named<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let errors = ERRORS.get_or_try_init(py, || py.import("scatter_ring._errors").map(Bound::unbind))?;
    Ok(errors.bind(py).getattr(name)?.cast_into::<PyType>()?)
}

fn is_lost(status: Status) -> bool {
    matches!(status, Status::ENGINE_LOST | Status::STOPPING | Status::BAD_RING)
}

fn class_of_request(error: &ClientError) -> &'static str {
    match error.status() {
        status if is_lost(status) || matches!(error, ClientError::Ended(_)) => "EngineLost",
        Status::PEER_UNREACHABLE => "PeerError",
        _ => "RegionError",
    }
}

fn class_of_batch(status: Status) -> &'static str {
    match status {
        status if is_lost(status) => "EngineLost",
        Status::TIMED_OUT => "TimedOut",
        Status::CANCELLED => "Cancelled",
        _ => "TransferError",
    }
}

fn engine(error: &EngineError) -> (&'static str, Status, String) {
    let status = match error {
        EngineError::Refused(status) => *status,
        EngineError::Region(error) => error.status(),
        EngineError::Stopped => Status::STOPPING,
        EngineError::System { .. } => Status::NO_MEMORY,
        _ => Status::INVALID_SETTING,
    };
    (if is_lost(status) { "EngineLost" } else { "EngineError" }, status, error.to_string())
}

fn describe(details: &Bound<'_, PyDict>, error: &BatchError) -> PyResult<()> {
    details.set_item("stage", error.stage.name().filter(|name| *name != "none"))?;
    details.set_item("descriptor", error.descriptor)?;
    details.set_item("fragment", error.descriptor.map(|_| error.fragment))?;
    details.set_item("field", error.field.name().filter(|_| error.descriptor.is_some()))?;
    details.set_item("detail", error.descriptor.map(|_| error.detail))?;
    details.set_item("bytes_done", error.bytes_done)?;
    details.set_item("peer", error.peer.map(|peer| peer.number()))?;
    details.set_item("reusable", error.reusable)
}
