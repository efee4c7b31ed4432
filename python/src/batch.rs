//! `Batch`: operations that are described now and submitted together.

use crate::client::{distances, start};
use crate::describe::{self, Distances, Op, Way, missing_flag};
use crate::session::Session;
use crate::submit::Plan;
use crate::transfer::{Outcome, Transfer};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Any number of operations with one outcome: from `Client.batch`.
///
/// The methods have the arguments of those of `Client`, and only describe. Arrays of numbers are copied at once, except those
/// in a Buffer, which must not change until the transfer is done. `with client.batch() as batch: ...` submits at the end and
/// waits; `outcome` has the result. Or `submit()` it and wait, poll or await the Transfer. An error in the `with` block leaves
/// the batch unsubmitted.
///
/// Operations of one batch may run at the same time and in any order: one cannot use what another one moves.
#[pyclass(module = "scatter_ring", frozen)]
pub struct Batch {
    session: Arc<Session>,
    state: Mutex<State>,
}

struct State {
    plan: Plan,
    notifies: bool,
    submitted: bool,
    transfer: Option<Py<Transfer>>,
}

impl Batch {
    pub fn new(session: &Arc<Session>, deadline: Option<Duration>, fence: bool) -> PyResult<Batch> {
        let plan = Plan { ops: Vec::new(), deadline, fence };
        let state = Mutex::new(State { plan, notifies: false, submitted: false, transfer: None });
        Ok(Batch { session: session.clone(), state })
    }

    /// Nobody waits for anything with this lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<R>(&self, change: impl FnOnce(&mut State) -> PyResult<R>) -> PyResult<R> {
        let mut state = self.state();
        if state.submitted {
            return Err(PyRuntimeError::new_err("this batch was submitted already"));
        }
        change(&mut state)
    }

    fn add(&self, op: Op) -> PyResult<()> {
        let op = op.kept()?;
        self.change(|state| {
            if state.notifies {
                return Err(PyRuntimeError::new_err("notify is the last operation of a batch"));
            }
            state.notifies = matches!(op, Op::Notify { .. });
            state.plan.ops.push(op);
            Ok(())
        })
    }
}

#[pymethods]
impl Batch {
    /// As `Client.read_rows`.
    #[pyo3(signature = (table, ids, out, *, row_bytes = None, missing = None, table_offset = 0, table_stride = None))]
    #[allow(clippy::too_many_arguments)]
    fn read_rows(
        &self,
        table: &Bound<'_, PyAny>,
        ids: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        row_bytes: Option<u64>,
        missing: Option<&Bound<'_, PyAny>>,
        table_offset: u64,
        table_stride: Option<u64>,
    ) -> PyResult<()> {
        let (missing, distances) = (missing_flag(missing)?, Distances { offset: table_offset, stride: table_stride });
        self.add(describe::rows(&self.session, Way::Read, (table, ids, &distances), out, row_bytes, missing)?)
    }

    /// As `Client.write_rows`.
    #[pyo3(signature = (table, ids, rows, *, row_bytes = None, table_offset = 0, table_stride = None))]
    fn write_rows(
        &self,
        table: &Bound<'_, PyAny>,
        ids: &Bound<'_, PyAny>,
        rows: &Bound<'_, PyAny>,
        row_bytes: Option<u64>,
        table_offset: u64,
        table_stride: Option<u64>,
    ) -> PyResult<()> {
        let distances = Distances { offset: table_offset, stride: table_stride };
        self.add(describe::rows(&self.session, Way::Write, (table, ids, &distances), rows, row_bytes, 0)?)
    }

    /// As `Client.read_blocks`.
    #[pyo3(signature = (src, src_ids, dst, dst_ids, *, block_bytes = None, missing = None, src_offset = 0, src_stride = None,
                        dst_offset = 0, dst_stride = None))]
    #[allow(clippy::too_many_arguments)]
    fn read_blocks(
        &self,
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
    ) -> PyResult<()> {
        let (in_src, in_dst) = distances(src_offset, src_stride, dst_offset, dst_stride);
        let (from, to) = ((src, src_ids, &in_src), (dst, dst_ids, &in_dst));
        self.add(describe::blocks(&self.session, Way::Read, from, to, block_bytes, missing_flag(missing)?)?)
    }

    /// As `Client.write_blocks`.
    #[pyo3(signature = (src, src_ids, dst, dst_ids, *, block_bytes = None, src_offset = 0, src_stride = None,
                        dst_offset = 0, dst_stride = None))]
    #[allow(clippy::too_many_arguments)]
    fn write_blocks(
        &self,
        src: &Bound<'_, PyAny>,
        src_ids: &Bound<'_, PyAny>,
        dst: &Bound<'_, PyAny>,
        dst_ids: &Bound<'_, PyAny>,
        block_bytes: Option<u64>,
        src_offset: u64,
        src_stride: Option<u64>,
        dst_offset: u64,
        dst_stride: Option<u64>,
    ) -> PyResult<()> {
        let (in_src, in_dst) = distances(src_offset, src_stride, dst_offset, dst_stride);
        let (from, to) = ((src, src_ids, &in_src), (dst, dst_ids, &in_dst));
        self.add(describe::blocks(&self.session, Way::Write, from, to, block_bytes, 0)?)
    }

    /// As `Client.read_ranges`.
    fn read_ranges(
        &self,
        src: &Bound<'_, PyAny>,
        src_offsets: Option<&Bound<'_, PyAny>>,
        dst: &Bound<'_, PyAny>,
        dst_offsets: Option<&Bound<'_, PyAny>>,
        lengths: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.add(describe::ranges(&self.session, Way::Read, (src, src_offsets), (dst, dst_offsets), lengths)?)
    }

    /// As `Client.write_ranges`.
    fn write_ranges(
        &self,
        src: &Bound<'_, PyAny>,
        src_offsets: Option<&Bound<'_, PyAny>>,
        dst: &Bound<'_, PyAny>,
        dst_offsets: Option<&Bound<'_, PyAny>>,
        lengths: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.add(describe::ranges(&self.session, Way::Write, (src, src_offsets), (dst, dst_offsets), lengths)?)
    }

    /// As `Client.read_tile`.
    #[pyo3(signature = (src, dst, *, count = None, piece_bytes = None, src_offset = 0, src_stride = None, dst_offset = 0,
                        dst_stride = None))]
    #[allow(clippy::too_many_arguments)]
    fn read_tile(
        &self,
        src: &Bound<'_, PyAny>,
        dst: &Bound<'_, PyAny>,
        count: Option<u64>,
        piece_bytes: Option<u64>,
        src_offset: u64,
        src_stride: Option<u64>,
        dst_offset: u64,
        dst_stride: Option<u64>,
    ) -> PyResult<()> {
        let (in_src, in_dst) = distances(src_offset, src_stride, dst_offset, dst_stride);
        self.add(describe::tile(&self.session, Way::Read, (src, &in_src), (dst, &in_dst), count, piece_bytes)?)
    }

    /// As `Client.write_tile`.
    #[pyo3(signature = (src, dst, *, count = None, piece_bytes = None, src_offset = 0, src_stride = None, dst_offset = 0,
                        dst_stride = None))]
    #[allow(clippy::too_many_arguments)]
    fn write_tile(
        &self,
        src: &Bound<'_, PyAny>,
        dst: &Bound<'_, PyAny>,
        count: Option<u64>,
        piece_bytes: Option<u64>,
        src_offset: u64,
        src_stride: Option<u64>,
        dst_offset: u64,
        dst_stride: Option<u64>,
    ) -> PyResult<()> {
        let (in_src, in_dst) = distances(src_offset, src_stride, dst_offset, dst_stride);
        self.add(describe::tile(&self.session, Way::Write, (src, &in_src), (dst, &in_dst), count, piece_bytes)?)
    }

    /// As `Client.read`.
    #[pyo3(signature = (src, dst, *, src_offset = 0, dst_offset = 0, nbytes = None))]
    fn read(
        &self,
        src: &Bound<'_, PyAny>,
        dst: &Bound<'_, PyAny>,
        src_offset: u64,
        dst_offset: u64,
        nbytes: Option<u64>,
    ) -> PyResult<()> {
        self.add(describe::range(&self.session, Way::Read, (src, src_offset), (dst, dst_offset), nbytes)?)
    }

    /// As `Client.write`.
    #[pyo3(signature = (src, dst, *, src_offset = 0, dst_offset = 0, nbytes = None))]
    fn write(
        &self,
        src: &Bound<'_, PyAny>,
        dst: &Bound<'_, PyAny>,
        src_offset: u64,
        dst_offset: u64,
        nbytes: Option<u64>,
    ) -> PyResult<()> {
        self.add(describe::range(&self.session, Way::Write, (src, src_offset), (dst, dst_offset), nbytes)?)
    }

    /// As `Client.notify`, when all the other operations are done, and never if one fails. It is the last of its batch.
    #[pyo3(signature = (region, *, offset = 0, user_data = 0, payload = None))]
    fn notify(&self, region: &Bound<'_, PyAny>, offset: u64, user_data: u64, payload: Option<&[u8]>) -> PyResult<()> {
        self.add(describe::notify(&self.session, region, offset, user_data, payload.unwrap_or_default())?)
    }

    /// Submits what was described. A batch is submitted once.
    fn submit<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Transfer>> {
        let plan = self.change(|state| {
            state.submitted = true;
            Ok(std::mem::take(&mut state.plan))
        })?;
        let transfer = start(py, &self.session, &plan)?;
        self.state().transfer = Some(transfer.clone().unbind());
        Ok(transfer)
    }

    /// What came of it, None if it was not submitted. Waits; raises as `Transfer.wait`.
    #[getter]
    fn outcome(&self, py: Python<'_>) -> PyResult<Option<Outcome>> {
        let transfer = self.state().transfer.as_ref().map(|transfer| transfer.bind(py).clone());
        transfer.map_or(Ok(None), |transfer| Transfer::wait_for(&transfer, None))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if !kind.is_none() {
            return Ok(());
        }
        let submitted = self.state().submitted;
        if !submitted {
            self.submit(py)?;
        }
        self.outcome(py).map(drop)
    }
}
