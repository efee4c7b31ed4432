//! Memory as Python sees it: buffers that are arrays, and regions whose bytes are elsewhere.

use crate::array::{Layout, shape_text};
use crate::dlpack;
use crate::errors::Failure;
use crate::memory::Memory;
use pyo3::exceptions::{PyBufferError, PyIndexError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PySlice, PyTuple};
use scatter_ring::region::Rights;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Memory that batches can name and that this process sees: an array of a shape and a dtype.
///
/// From `Client.allocate`, `Client.register` and `Client.adopt`. `numpy()` and `torch.from_dlpack()` give arrays of the
/// same memory, without a copy; `buffer[2:5]` is the buffer of these rows. Arrays, tensors and transfers keep the memory
/// mapped as long as they live, also when the buffer was closed or dropped, or the client was closed.
///
/// Nothing stops a transfer from writing to memory that an array is of: look at it when the transfer is done.
#[pyclass(module = "scatter_ring", frozen)]
pub struct Buffer {
    pub memory: Arc<Memory>,
    /// Of its first byte in the region.
    pub offset: usize,
    /// Packed.
    pub layout: Layout,
    /// What the buffer protocol points to: shape, then strides.
    dimensions: Vec<ffi::Py_ssize_t>,
}

impl Buffer {
    pub fn new(memory: Arc<Memory>, offset: usize, layout: Layout) -> Buffer {
        let shape = layout.shape.iter().map(|length| *length as ffi::Py_ssize_t);
        let dimensions = shape.chain(layout.strides.iter().copied()).collect();
        Buffer { memory, offset, layout, dimensions }
    }

    fn address(&self) -> usize {
        self.memory.address + self.offset
    }

    /// An error once the memory was closed.
    pub fn check_open(&self) -> Result<(), Failure> {
        if self.memory.session.is_child() {
            return Err(Failure::Forked);
        }
        if self.memory.is_closed() { Err(Failure::Closed("this memory")) } else { Ok(()) }
    }

    fn dtype_name(&self) -> &'static str {
        self.layout.dtype.map_or("uint8", |dtype| dtype.name)
    }

    /// The part from row `first` on, of so many rows; without them, one row without its dimension.
    fn part(&self, first: usize, count: Option<usize>) -> Buffer {
        let mut layout = self.layout.clone();
        let offset = self.offset + first * layout.strides[0] as usize;
        match count {
            Some(count) => layout.shape[0] = count,
            None => {
                layout.shape.remove(0);
                layout.strides.remove(0);
            }
        }
        Buffer::new(self.memory.clone(), offset, layout)
    }
}

#[pymethods]
impl Buffer {
    /// The shape, as in NumPy.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.layout.shape)
    }

    /// The name of the dtype: `"float32"`, for example. NumPy and torch take it as a dtype.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype_name()
    }

    /// Bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.layout.bytes()
    }

    /// Bytes from the start of its region to its first byte: not 0 for a part of a buffer.
    #[getter]
    fn offset(&self) -> usize {
        self.offset
    }

    /// The number by which descriptors name its region.
    #[getter]
    fn handle(&self) -> u32 {
        self.memory.region.handle().0
    }

    /// True if batches may write it.
    #[getter]
    fn writable(&self) -> bool {
        self.memory.region.rights().write
    }

    /// True once its memory was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.memory.is_closed()
    }

    /// An array of this memory, without a copy. It keeps the memory.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let this = slf.get();
        this.check_open()?;
        if this.layout.dtype.is_some_and(|dtype| dtype.format.is_none()) {
            return Err(PyTypeError::new_err(format!(
                "NumPy has no {}: use torch.from_dlpack(buffer), or allocate uint16",
                this.dtype_name()
            )));
        }
        crate::array::numpy(slf.py())?.call_method1("asarray", (slf,))
    }

    /// Gives the whole region, of which this may be a part, a name by which other clients of the engine, and its peers, can
    /// open it: for reading, or, if `writable`, for reading and writing. They can as long as the buffer, or an array of it,
    /// lives and is not closed.
    #[pyo3(signature = (name, *, writable = false))]
    fn export(&self, py: Python<'_>, name: &str, writable: bool) -> PyResult<()> {
        self.check_open()?;
        let rights = if writable { Rights::READ_WRITE } else { Rights::READ };
        let memory = &self.memory;
        memory.session.without_gil(py, |locked| Ok(locked.client()?.export(&memory.region, name, rights)?))?;
        Ok(())
    }

    /// Ends the registration of the whole region, and returns when nobody touches it any more. Arrays of it stay as they
    /// are. RegionError while a batch of this client uses it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.memory.close(py)?)
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

    fn __len__(&self) -> PyResult<usize> {
        self.layout
            .shape
            .first()
            .copied()
            .ok_or_else(|| PyTypeError::new_err("a buffer without dimensions has no length"))
    }

    /// `buffer[2:5]`: rows 2, 3 and 4. `buffer[2]`: row 2, without the first dimension.
    fn __getitem__(&self, which: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        let rows = self.__len__()?;
        if let Ok(slice) = which.cast::<PySlice>() {
            let indices = slice.indices(rows as isize)?;
            if indices.step != 1 {
                return Err(PyValueError::new_err(
                    "parts of buffers have step 1; strided rows: take a part of buffer.numpy()",
                ));
            }
            return Ok(self.part(indices.start as usize, Some(indices.slicelength)));
        }
        let row: isize = which.extract().map_err(|_| PyTypeError::new_err("buffer[row] or buffer[first:end]"))?;
        let row = if row < 0 { row + rows as isize } else { row };
        if row < 0 || row as usize >= rows {
            return Err(PyIndexError::new_err(format!("row {row} of a buffer of {rows} rows")));
        }
        Ok(self.part(row as usize, None))
    }

    fn __repr__(&self) -> String {
        let closed = if self.memory.is_closed() { ", closed" } else { "" };
        format!("<scatter_ring.Buffer {}, {}{closed}>", shape_text(&self.layout.shape), self.dtype_name())
    }

    /// For `torch.from_dlpack` and others.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check_open()?;
        let request = dlpack::Request::new(stream, max_version, dl_device, copy, !self.memory.writable)?;
        let dtype = self.layout.dtype.unwrap_or(crate::dtype::UINT8);
        dlpack::export(py, self.memory.clone(), self.address(), &self.layout, dtype, &request)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::DEVICE
    }

    /// The buffer protocol.
    ///
    /// # Safety
    /// Python calls it, with a `Py_buffer` to fill.
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        if let Err(failure) = this.check_open() {
            return Err(PyBufferError::new_err(PyErr::from(failure).value(slf.py()).to_string()));
        }
        let Some(format) = this.layout.dtype.and_then(|dtype| dtype.format) else {
            return Err(PyBufferError::new_err(format!("the buffer protocol has no {}", this.dtype_name())));
        };
        if flags & ffi::PyBUF_WRITABLE != 0 && !this.memory.writable {
            return Err(PyBufferError::new_err("this memory is read-only"));
        }
        let asked = |flag| flags & flag == flag;
        let first = this.dimensions.as_ptr().cast_mut();
        let rank = this.layout.shape.len();
        // SAFETY: `view` is to be filled; what it points to belongs to the buffer object, which is frozen, and which the
        // view keeps, and with it the mapping.
        unsafe {
            (*view).obj = slf.clone().into_any().into_ptr();
            (*view).buf = this.address() as *mut c_void;
            (*view).len = this.layout.bytes() as ffi::Py_ssize_t;
            (*view).readonly = c_int::from(!this.memory.writable);
            (*view).itemsize = this.layout.item_bytes as ffi::Py_ssize_t;
            (*view).format = if asked(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { std::ptr::null_mut() };
            (*view).ndim = rank as c_int;
            (*view).shape = if asked(ffi::PyBUF_ND) { first } else { std::ptr::null_mut() };
            (*view).strides = if asked(ffi::PyBUF_STRIDES) { first.add(rank) } else { std::ptr::null_mut() };
            (*view).suboffsets = std::ptr::null_mut();
            (*view).internal = std::ptr::null_mut();
        }
        Ok(())
    }
}

/// Memory that somebody else has exported: its bytes are elsewhere, and move by batches only. From `Client.open`.
#[pyclass(module = "scatter_ring", frozen)]
pub struct Region {
    pub memory: Arc<Memory>,
    pub name: String,
}

#[pymethods]
impl Region {
    /// The name that it was opened by.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.bytes()
    }

    /// The number by which descriptors name it.
    #[getter]
    fn handle(&self) -> u32 {
        self.memory.region.handle().0
    }

    /// True if batches may write it.
    #[getter]
    fn writable(&self) -> bool {
        self.memory.region.rights().write
    }

    /// True once it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.memory.is_closed()
    }

    /// Ends the opening, and returns when no batch touches the memory for it any more. RegionError while a batch of this
    /// client uses it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.memory.close(py)?)
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
        let closed = if self.memory.is_closed() { ", closed" } else { "" };
        format!("<scatter_ring.Region {:?}, {} B{closed}>", self.name, self.memory.bytes())
    }
}
