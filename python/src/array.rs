//! Memory of other libraries' arrays: NumPy's and whatever else has the buffer protocol, torch's and whatever else has
//! DLPack. Only where it is and how it is laid out: nobody reads it here.

use crate::buffer::Buffer;
use crate::dlpack;
use crate::dtype::DType;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// An array of somebody, kept as it is (alive, and not resized) as long as this lives.
pub struct Array {
    pub address: usize,
    pub layout: Layout,
    pub readonly: bool,
    pub keep: Keep,
}

/// Shape and strides.
#[derive(Clone, Debug)]
pub struct Layout {
    pub shape: Vec<usize>,
    /// Bytes.
    pub strides: Vec<isize>,
    pub item_bytes: usize,
    /// `None`: elements that have no name here.
    pub dtype: Option<DType>,
}

/// What keeps the memory. Nobody looks at it.
pub enum Keep {
    Buffer {
        _buffer: PyUntypedBuffer,
    },
    /// A DLPack capsule that was not taken from: it frees the memory when it is dropped.
    Capsule {
        _capsule: Py<PyAny>,
    },
}

/// An array as rows: its first dimension counts them, the others are one run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsOf {
    pub count: usize,
    pub bytes: usize,
    /// Bytes from one row to the next, at least those of a row.
    pub stride: usize,
}

impl Array {
    /// The memory of an object. `what` is the name of the argument.
    pub fn of(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Array> {
        if let Ok(buffer) = object.cast::<Buffer>() {
            buffer.get().check_open()?;
        }
        // SAFETY: a borrowed reference to a live object.
        if unsafe { pyo3::ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0 {
            return Self::of_buffer(object, what);
        }
        if let Some(array) = dlpack::import(object, what)? {
            return Ok(array);
        }
        Err(PyTypeError::new_err(format!(
            "{what}: a Buffer, a NumPy array or another array in memory of the host is needed, not {}",
            object.get_type().name()?
        )))
    }

    fn of_buffer(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Array> {
        // They have no shape to be looked at.
        if object.getattr("ndim").is_ok_and(|ndim| ndim.extract().is_ok_and(|ndim: usize| ndim == 0)) {
            return Err(PyValueError::new_err(format!("{what}: an array without dimensions")));
        }
        let buffer = PyUntypedBuffer::get(object).map_err(|error| {
            PyTypeError::new_err(format!(
                "{what}: {} (arrays of unusual types: take a view as uint8)",
                error.value(object.py())
            ))
        })?;
        if buffer.suboffsets().is_some_and(|offsets| offsets.iter().any(|offset| *offset >= 0)) {
            return Err(PyTypeError::new_err(format!("{what}: an array of pointers")));
        }
        let item_bytes = buffer.item_size();
        let layout = Layout {
            shape: buffer.shape().to_vec(),
            strides: buffer.strides().to_vec(),
            item_bytes,
            dtype: DType::of_format(buffer.format(), item_bytes),
        };
        Ok(Array {
            address: buffer.buf_ptr().expose_provenance(),
            layout,
            readonly: buffer.readonly(),
            keep: Keep::Buffer { _buffer: buffer },
        })
    }

    /// What `sequence` is as an array of NumPy, if it is none yet.
    pub fn of_numbers(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Array> {
        // SAFETY: a borrowed reference to a live object.
        let has_memory = unsafe { pyo3::ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0;
        let array = if has_memory || object.hasattr("__dlpack__")? {
            Self::of(object, what)?
        } else {
            let array = numpy(object.py())?.call_method1("asarray", (object,))?;
            if array.getattr("ndim")?.extract::<usize>()? == 0 {
                let given = object.get_type().name()?.to_string();
                return Err(PyTypeError::new_err(format!(
                    "{what}: integers in an array or a list are needed, not {given}"
                )));
            }
            // A list without numbers has no type that says that they would be integers.
            let array = if array.len()? == 0 { array.call_method1("astype", ("int64",))? } else { array };
            Self::of_buffer(&array, what)?
        };
        if array.layout.is_contiguous() {
            return Ok(array);
        }
        let packed = numpy(object.py())?.call_method1("ascontiguousarray", (object,))?;
        Self::of_buffer(&packed, what)
    }

    /// Bytes of a packed array; an error for another.
    pub fn contiguous_bytes(&self, what: &str) -> PyResult<usize> {
        if self.layout.is_contiguous() {
            return Ok(self.layout.bytes());
        }
        Err(PyValueError::new_err(format!("{what}: not C-contiguous: {}", self.layout.describe())))
    }
}

impl Layout {
    /// Packed in the order of C.
    pub fn packed(shape: Vec<usize>, dtype: DType) -> Layout {
        let mut strides = vec![0; shape.len()];
        let mut step = dtype.bytes;
        for (stride, length) in strides.iter_mut().zip(&shape).rev() {
            *stride = step as isize;
            step *= length;
        }
        Layout { shape, strides, item_bytes: dtype.bytes, dtype: Some(dtype) }
    }

    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.item_bytes
    }

    pub fn is_contiguous(&self) -> bool {
        self.is_packed_from(0)
    }

    /// True if the dimensions from this one on are one run of bytes.
    fn is_packed_from(&self, dimension: usize) -> bool {
        let mut step = self.item_bytes as isize;
        let lengths = self.shape[dimension..].iter().zip(&self.strides[dimension..]);
        self.bytes() == 0
            || lengths.rev().all(|(length, stride)| {
                let fits = *length == 1 || *stride == step;
                step *= *length as isize;
                fits
            })
    }

    pub fn rows(&self, what: &str) -> PyResult<RowsOf> {
        let Some((&count, inner)) = self.shape.split_first() else {
            return Err(PyValueError::new_err(format!("{what}: an array without dimensions")));
        };
        let bytes = inner.iter().product::<usize>() * self.item_bytes;
        let stride = if count > 1 { self.strides[0] } else { bytes as isize };
        if !self.is_packed_from(1) || stride < bytes as isize {
            return Err(PyValueError::new_err(format!(
                "{what}: each row must be one run of bytes, and rows must follow each other: {}",
                self.describe()
            )));
        }
        Ok(RowsOf { count, bytes, stride: stride as usize })
    }

    /// For messages.
    pub fn describe(&self) -> String {
        let dtype = self.dtype.map_or("elements", |dtype| dtype.name);
        format!("{dtype} of shape {}, strides {:?} B", shape_text(&self.shape), self.strides)
    }
}

pub fn shape_text(shape: &[usize]) -> String {
    match shape {
        [one] => format!("({one},)"),
        _ => format!("({})", shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

pub fn numpy(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    static NUMPY: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    NUMPY.get_or_try_init(py, || py.import("numpy").map(Bound::unbind)).map(|module| module.bind(py).clone())
}
