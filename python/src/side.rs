//! One side of an operation: which bytes of which region an argument means.

use crate::array::{Array, Layout, RowsOf};
use crate::buffer::{Buffer, Region};
use crate::dtype::{DType, UINT8};
use crate::errors::Failure;
use crate::memory::Memory;
use crate::session::Session;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use ring_abi::Status;
use std::sync::Arc;

/// An argument that was understood, and may be used in that way.
pub struct Side {
    /// The argument's name.
    pub what: &'static str,
    pub memory: Arc<Memory>,
    /// Of its first byte in the region.
    pub offset: u64,
    /// `None`: a region that was opened, which is bytes.
    pub layout: Option<Layout>,
}

/// Pieces of one size at even distances.
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    pub offset: u64,
    /// As many as there are.
    pub count: u64,
    pub bytes: u32,
    pub stride: u32,
}

impl Side {
    pub fn new(session: &Arc<Session>, object: &Bound<'_, PyAny>, what: &'static str, writes: bool) -> PyResult<Side> {
        if session.is_child() {
            return Err(Failure::Forked.into());
        }
        if let Ok(buffer) = object.cast::<Buffer>() {
            let buffer = buffer.get();
            buffer.memory.check(session, what, writes)?;
            let (memory, layout) = (buffer.memory.clone(), Some(buffer.layout.clone()));
            return Ok(Side { what, memory, offset: buffer.offset as u64, layout });
        }
        if let Ok(region) = object.cast::<Region>() {
            let memory = &region.get().memory;
            memory.check(session, what, writes)?;
            return Ok(Side { what, memory: memory.clone(), offset: 0, layout: None });
        }
        Self::of_array(session, &Array::of(object, what)?, what, writes)
    }

    fn of_array(session: &Arc<Session>, array: &Array, what: &'static str, writes: bool) -> PyResult<Side> {
        if writes && array.readonly {
            return Err(Failure::region(Status::NO_RIGHT, format!("{what}: this array is read-only")).into());
        }
        let (memory, offset) = find(session, array)?.ok_or_else(|| {
            PyValueError::new_err(format!(
                "{what}: this array is not in memory of this client: take one of client.allocate(...), or client.adopt it"
            ))
        })?;
        memory.check(session, what, writes)?;
        Ok(Side { what, memory, offset, layout: Some(array.layout.clone()) })
    }

    pub fn dtype(&self) -> Option<DType> {
        self.layout.as_ref()?.dtype
    }

    /// All of it, which has to be one run of bytes.
    pub fn bytes(&self) -> PyResult<u64> {
        match &self.layout {
            None => Ok(self.memory.region.bytes()),
            Some(layout) if layout.is_contiguous() => Ok(layout.bytes() as u64),
            Some(layout) => {
                Err(PyValueError::new_err(format!("{}: not C-contiguous: {}", self.what, layout.describe())))
            }
        }
    }

    /// Its own rows; `None`: it is bytes.
    pub fn rows(&self) -> PyResult<Option<RowsOf>> {
        self.layout.as_ref().map(|layout| layout.rows(self.what)).transpose()
    }

    /// Pieces of this size. An array whose rows have it keeps the distances of its rows; any other has to be packed.
    pub fn pieces(&self, piece_bytes: u64, offset: u64, stride: Option<u64>) -> PyResult<Pieces> {
        let small = |value: u64, name: &str| {
            u32::try_from(value)
                .map_err(|_| PyValueError::new_err(format!("{}: {name} of {value} B: more than 4 GiB", self.what)))
        };
        let bytes = small(piece_bytes, "pieces")?;
        let given = stride.is_some() || offset > 0;
        if let Some(rows) = self.rows().ok().flatten().filter(|rows| rows.bytes as u64 == piece_bytes && !given) {
            let (count, stride) = (rows.count as u64, small(rows.stride as u64, "rows at distances")?);
            return Ok(Pieces { offset: self.offset, count, bytes, stride });
        }
        let all = self.bytes()?;
        let stride = stride.unwrap_or(piece_bytes);
        if offset > all {
            return Err(PyValueError::new_err(format!("{}: offset {offset} of {all} B", self.what)));
        }
        let count = count_of(all - offset, piece_bytes, stride);
        Ok(Pieces { offset: self.offset + offset, count, bytes, stride: small(stride, "pieces at distances")? })
    }

    /// True if it is all of its region, so that what lies outside it is outside the region too.
    pub fn is_whole(&self) -> bool {
        match &self.layout {
            None => true,
            Some(layout) => {
                self.offset == 0 && layout.is_contiguous() && layout.bytes() as u64 == self.memory.region.bytes()
            }
        }
    }
}

/// How many pieces lie in so many bytes.
fn count_of(all: u64, bytes: u64, stride: u64) -> u64 {
    match all.checked_sub(bytes) {
        None => 0,
        Some(rest) => rest.checked_div(stride).map_or(u64::MAX, |more| more + 1),
    }
}

/// The memory of this session that an array lies in, and where.
pub fn find(session: &Arc<Session>, array: &Array) -> PyResult<Option<(Arc<Memory>, u64)>> {
    let layout = &array.layout;
    let extent = layout.shape.iter().zip(&layout.strides).try_fold(layout.item_bytes, |extent, (length, stride)| {
        let step = usize::try_from(*stride).ok()?;
        extent.checked_add(length.saturating_sub(1).checked_mul(step)?)
    });
    let Some(extent) = extent else {
        return Err(PyValueError::new_err(format!("an array that runs backwards: {}", layout.describe())));
    };
    let extent = if layout.bytes() == 0 { 0 } else { extent };
    let found = session.memories.find(array.address, extent);
    Ok(found.map(|memory| {
        let offset = (array.address - memory.address) as u64;
        (memory, offset)
    }))
}

/// An error if both have types that differ. Bytes are of any type.
pub fn check_dtypes(from: &Side, to: &Side) -> PyResult<()> {
    let (Some(in_from), Some(in_to)) = (&from.layout, &to.layout) else { return Ok(()) };
    let (a, b) = (in_from.dtype, in_to.dtype);
    if a == b || a == Some(UINT8) || b == Some(UINT8) {
        return Ok(());
    }
    // The other byte order, and structures: they have no name here.
    let name = |dtype: Option<DType>| dtype.map_or("an unusual one (take a view as uint8)", |dtype| dtype.name);
    let (a, b) = (name(a), name(b));
    let (from, to) = (from.what, to.what);
    Err(PyTypeError::new_err(format!("{from} is of dtype {a}, {to} of {b}: nothing is converted on the way")))
}
