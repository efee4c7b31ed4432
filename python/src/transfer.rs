//! Batches that were submitted, and what came of them.

use crate::errors::Failure;
use crate::memory::Memory;
use crate::session::Session;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use scatter_ring::client::{self, Ticket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One batch that was submitted. Can be waited for, polled, or awaited in asyncio; from any thread. Dropping it gives up the
/// outcome, not the batch.
#[pyclass(module = "scatter_ring", frozen)]
pub struct Transfer {
    pub session: Arc<Session>,
    pub ticket: Ticket,
    /// What it uses stays.
    _memories: Vec<Arc<Memory>>,
}

/// A transfer that is done: every byte is in place.
#[pyclass(module = "scatter_ring", frozen)]
pub struct Outcome(client::Outcome);

const CANCEL_LIMIT: Duration = Duration::from_secs(1);
const CANCEL_PAUSE: Duration = Duration::from_millis(1);

impl Transfer {
    pub fn new(session: &Arc<Session>, ticket: Ticket, memories: Vec<Arc<Memory>>) -> Transfer {
        Transfer { session: session.clone(), ticket, _memories: memories }
    }

    /// Looks at the ring, and says what is known.
    fn look(&self, py: Python<'_>) -> PyResult<Option<Result<client::Outcome, client::BatchError>>> {
        Ok(self.session.with(py, |locked| {
            // What was taken before counts also when the session has ended.
            if let Some(outcome) = locked.outcome(&self.ticket) {
                return Ok(Some(outcome));
            }
            let ended = locked.take_spans();
            match locked.outcome(&self.ticket) {
                None => ended.map(|()| None),
                known => Ok(known),
            }
        })?)
    }

    pub fn wait_for(slf: &Bound<'_, Self>, timeout: Option<Duration>) -> PyResult<Option<Outcome>> {
        let this = slf.get();
        let outcome = this.session.wait(slf.py(), timeout, |state| state.outcome(&this.ticket))?;
        outcome.map(|outcome| Self::told(slf, outcome)).transpose()
    }

    fn told(slf: &Bound<'_, Self>, outcome: Result<client::Outcome, client::BatchError>) -> PyResult<Outcome> {
        outcome.map(Outcome).map_err(|error| {
            let error = PyErr::from(Failure::from(error));
            // To wait for the release of buffers that are still held.
            let _ = error.value(slf.py()).setattr("transfer", slf);
            error
        })
    }
}

#[pymethods]
impl Transfer {
    /// Waits for the outcome, with the GIL released: of any number of threads. `timeout`: seconds, None for ever.
    ///
    /// Raises TransferError or one of its kinds if the batch failed, and the built-in TimeoutError if it is still under way
    /// after `timeout`.
    #[pyo3(signature = (timeout = None))]
    fn wait(slf: &Bound<'_, Self>, timeout: Option<f64>) -> PyResult<Outcome> {
        let limit = seconds("timeout", timeout)?;
        Self::wait_for(slf, limit)?
            .ok_or_else(|| PyTimeoutError::new_err(format!("still under way after {} s", timeout.unwrap_or_default())))
    }

    /// The outcome if there is one, None if the transfer is under way. Raises as `wait`. Makes no system call.
    fn poll(slf: &Bound<'_, Self>) -> PyResult<Option<Outcome>> {
        slf.get().look(slf.py())?.map(|outcome| Self::told(slf, outcome)).transpose()
    }

    /// True once the outcome is known, or never will be because the session has ended. Makes no system call.
    #[getter]
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        if self.session.is_child() {
            return Err(Failure::Forked.into());
        }
        Ok(self.look(py).map_or(true, |outcome| outcome.is_some()))
    }

    /// The outcome of a transfer that is done. Raises as `wait`, and RuntimeError if it is still under way.
    #[getter]
    fn result(slf: &Bound<'_, Self>) -> PyResult<Outcome> {
        Self::poll(slf)?.ok_or_else(|| PyRuntimeError::new_err("still under way: wait() for it, or await it"))
    }

    /// Asks the engine to end the transfer. False: it has ended or is ending already. The outcome says what came of it. One
    /// that the engine has not begun is waited for, a second at most. An engine that does not answer at all is waited for 10 s.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        let until = Instant::now() + CANCEL_LIMIT;
        loop {
            let answer = self.session.without_gil(py, |locked| {
                if locked.client()?.cancel(&self.ticket)? {
                    return Ok(Some(true));
                }
                let ended = locked.take_spans();
                if locked.outcome(&self.ticket).is_some() { Ok(Some(false)) } else { ended.map(|()| None) }
            })?;
            match answer {
                Some(cancelled) => return Ok(cancelled),
                None if Instant::now() >= until => return Ok(false),
                // It is not under way yet, or its end is.
                None => py.detach(|| std::thread::sleep(CANCEL_PAUSE)),
            }
        }
    }

    /// Waits until nobody writes to the transfer's buffers any more, whatever its outcome: see `reusable` of the errors.
    /// False: not after `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn wait_released(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let timeout = seconds("timeout", timeout)?;
        let released = self.session.wait(py, timeout, |state| match state.outcome(&self.ticket)? {
            Ok(outcome) => outcome.reusable.then_some(()),
            Err(error) => error.reusable.then_some(()),
        })?;
        Ok(released.is_some())
    }

    /// `await transfer`: the outcome, or what `wait` raises. The event loop goes on meanwhile. Cancelling the task that
    /// awaits does not cancel the transfer: that is `cancel`.
    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let waiting = slf.py().import("scatter_ring._asyncio")?.call_method1("wait_for_transfer", (slf,))?;
        waiting.call_method0("__await__")
    }

    /// For `scatter_ring._asyncio`: True if there is something to see, without a look at the ring.
    fn _settled(&self, py: Python<'_>) -> bool {
        self.session.with(py, |locked| Ok(locked.is_settled(&self.ticket))).unwrap_or(true)
    }

    /// For `scatter_ring._asyncio`.
    fn _wakeup(&self) -> PyResult<crate::wakeup::PyWakeup> {
        crate::wakeup::PyWakeup::new(&self.session)
    }

    /// For `scatter_ring._asyncio`: a number of the session.
    #[getter]
    fn _session(&self) -> u64 {
        self.session.number
    }

    fn __repr__(&self) -> String {
        format!("<scatter_ring.Transfer {}>", self.ticket.position())
    }
}

#[pymethods]
impl Outcome {
    /// Bytes written to destinations.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// How the bytes travelled: `"none"`, `"direct"`, `"gather"` or `"hybrid"`.
    #[getter]
    fn route(&self) -> &'static str {
        self.0.route.name().unwrap_or("unknown")
    }

    /// The `user_data` of the batch's last descriptor.
    #[getter]
    fn user_data(&self) -> u64 {
        self.0.user_data
    }

    /// True when nobody writes to the buffers any more.
    #[getter]
    fn reusable(&self) -> bool {
        self.0.reusable
    }

    /// From the first descriptor taken to the first work started, in ns. Times end at four seconds.
    #[getter]
    fn queue_ns(&self) -> u64 {
        nanoseconds(self.0.times.queue)
    }

    /// Planning, in ns.
    #[getter]
    fn plan_ns(&self) -> u64 {
        nanoseconds(self.0.times.plan)
    }

    /// Commands to a peer, in ns.
    #[getter]
    fn command_ns(&self) -> u64 {
        nanoseconds(self.0.times.command)
    }

    /// Packing, in ns.
    #[getter]
    fn pack_ns(&self) -> u64 {
        nanoseconds(self.0.times.pack)
    }

    /// From the first bulk operation to the last data in place, in ns.
    #[getter]
    fn window_ns(&self) -> u64 {
        nanoseconds(self.0.times.window)
    }

    /// From the first descriptor taken to the completion, in ns.
    #[getter]
    fn total_ns(&self) -> u64 {
        nanoseconds(self.0.times.total)
    }

    fn __repr__(&self) -> String {
        format!("<scatter_ring.Outcome {} B, route {}, {} ns>", self.bytes(), self.route(), self.total_ns())
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// A time that a caller gave, None for none.
pub fn seconds(what: &str, value: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(value) = value else { return Ok(None) };
    match Duration::try_from_secs_f64(value) {
        Ok(time) => Ok(Some(time)),
        // Longer than anybody waits.
        Err(_) if value > 0.0 => Ok(None),
        Err(_) => Err(PyValueError::new_err(format!("{what}: {value}; a time in seconds, 0 or more, or None"))),
    }
}

/// A deadline of a batch: longer than 0.
pub fn deadline(value: Option<f64>) -> PyResult<Option<Duration>> {
    match seconds("deadline", value)? {
        Some(Duration::ZERO) => Err(PyValueError::new_err("deadline: 0; a time in seconds, more than 0, or None")),
        other => Ok(other),
    }
}
