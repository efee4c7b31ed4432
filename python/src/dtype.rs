//! What the elements of an array are: those types that NumPy, the buffer protocol and DLPack have names for.

use crate::array;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::ffi::CStr;

/// The type of an array's elements.
#[derive(Clone, Copy, Debug)]
pub struct DType {
    /// As in NumPy.
    pub name: &'static str,
    pub bytes: usize,
    /// As in the `struct` module. `None`: the buffer protocol has no name for it.
    pub format: Option<&'static CStr>,
    /// As in DLPack.
    pub code: u8,
}

impl PartialEq for DType {
    fn eq(&self, other: &DType) -> bool {
        self.name == other.name
    }
}

const fn dtype(name: &'static str, bytes: usize, format: Option<&'static CStr>, code: u8) -> DType {
    DType { name, bytes, format, code }
}

/// Raw bytes.
pub const UINT8: DType = dtype("uint8", 1, Some(c"B"), 1);

const ALL: [DType; 15] = [
    dtype("bool", 1, Some(c"?"), 6),
    dtype("int8", 1, Some(c"b"), 0),
    dtype("int16", 2, Some(c"h"), 0),
    dtype("int32", 4, Some(c"i"), 0),
    dtype("int64", 8, Some(c"l"), 0),
    UINT8,
    dtype("uint16", 2, Some(c"H"), 1),
    dtype("uint32", 4, Some(c"I"), 1),
    dtype("uint64", 8, Some(c"L"), 1),
    dtype("float16", 2, Some(c"e"), 2),
    dtype("float32", 4, Some(c"f"), 2),
    dtype("float64", 8, Some(c"d"), 2),
    dtype("bfloat16", 2, None, 4),
    dtype("complex64", 8, Some(c"Zf"), 5),
    dtype("complex128", 16, Some(c"Zd"), 5),
];

impl DType {
    /// From what a caller gives: a name, anything that `numpy.dtype` takes, or a dtype of torch.
    pub fn of(wanted: &Bound<'_, PyAny>) -> PyResult<DType> {
        let text = wanted.str()?.to_string();
        if let Some(found) = Self::named(text.strip_prefix("torch.").unwrap_or(&text)) {
            return Ok(found);
        }
        let known = array::numpy(wanted.py())?.call_method1("dtype", (wanted,))?;
        let name: String = known.getattr("name")?.extract()?;
        let found =
            Self::named(&name).filter(|_| known.getattr("isnative").is_ok_and(|is| is.is_truthy().unwrap_or(false)));
        found.ok_or_else(|| {
            let names: Vec<_> = ALL.iter().map(|dtype| dtype.name).collect();
            PyTypeError::new_err(format!(
                "dtype: {text} is not one of {}; for others, allocate uint8 and take a view",
                names.join(", ")
            ))
        })
    }

    fn named(name: &str) -> Option<DType> {
        ALL.into_iter().find(|dtype| dtype.name == name)
    }

    /// From a buffer's format; `None` for what is no plain element of this machine's byte order.
    pub fn of_format(format: &CStr, bytes: usize) -> Option<DType> {
        let format = format.to_bytes();
        let format = match format {
            [b'@' | b'=' | b'<', rest @ ..] => rest,
            other => other,
        };
        // The two that are as wide.
        let format = match format {
            b"q" | b"n" => b"l",
            b"Q" | b"N" => b"L",
            other => other,
        };
        ALL.into_iter().find(|dtype| dtype.bytes == bytes && dtype.format.is_some_and(|name| name.to_bytes() == format))
    }

    /// From DLPack's numbers; `None` for what has no name here.
    pub fn of_dlpack(code: u8, bits: u8) -> Option<DType> {
        ALL.into_iter().find(|dtype| dtype.code == code && dtype.bytes * 8 == usize::from(bits))
    }
}
