//! DLPack: memory to and from other libraries, without a copy.

use crate::array::{Array, Keep, Layout};
use crate::dtype::DType;
use crate::memory::Memory;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    /// Elements, not bytes. Null: packed.
    strides: *mut i64,
    byte_offset: u64,
}

const _: () = {
    assert!(size_of::<Tensor>() == 48 && size_of::<Managed>() == 64 && size_of::<Versioned>() == 80);
};

const HOST: i32 = 1;
/// Memory of the host that a GPU can reach too.
const HOST_PINNED: i32 = 3;
const READ_ONLY: u64 = 1;
/// The version of DLPack that is written here. A reader of the same major version understands it.
const VERSION: (u32, u32) = (1, 0);

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// The answer to `__dlpack_device__`.
pub const DEVICE: (i32, i32) = (HOST, 0);

/// What the two kinds of exported tensors keep.
struct Lent {
    _memory: Arc<Memory>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

impl Lent {
    fn new(memory: Arc<Memory>, layout: &Layout) -> Box<Lent> {
        let shape = layout.shape.iter().map(|length| *length as i64).collect();
        let strides = layout.strides.iter().map(|stride| *stride as i64 / layout.item_bytes as i64).collect();
        Box::new(Lent { _memory: memory, shape, strides })
    }

    fn tensor(&mut self, address: usize, dtype: DType) -> Tensor {
        Tensor {
            data: address as *mut c_void,
            device_type: HOST,
            device_id: 0,
            dimensions: self.shape.len() as i32,
            code: dtype.code,
            bits: (8 * dtype.bytes) as u8,
            lanes: 1,
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            byte_offset: 0,
        }
    }
}

/// What a caller of `__dlpack__` asks for.
pub struct Request {
    pub versioned: bool,
    pub readonly: bool,
}

impl Request {
    /// From the arguments of `__dlpack__`, as the Python array API standard has them.
    pub fn new(
        stream: Option<&Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        device: Option<(i32, i32)>,
        copy: Option<bool>,
        readonly: bool,
    ) -> PyResult<Request> {
        let refused = |text: &str| Err(PyBufferError::new_err(text.to_owned()));
        if stream.is_some() {
            return refused("memory of the host has no streams: stream must be None");
        }
        if device.is_some_and(|device| device != DEVICE) {
            return refused("this memory is the host's, and stays there: dl_device must be (1, 0)");
        }
        if copy == Some(true) {
            return refused("this memory is lent without a copy: copy it with NumPy or torch");
        }
        let versioned = max_version.is_some_and(|version| version >= VERSION);
        if readonly && !versioned {
            return refused("read-only memory needs DLPack 1.0 (max_version=(1, 0)), which can say so");
        }
        Ok(Request { versioned, readonly })
    }
}

/// Makes a capsule for memory that stays until whoever takes it frees it.
pub fn export<'py>(
    py: Python<'py>,
    memory: Arc<Memory>,
    address: usize,
    layout: &Layout,
    dtype: DType,
    request: &Request,
) -> PyResult<Bound<'py, PyAny>> {
    let mut lent = Lent::new(memory, layout);
    let tensor = lent.tensor(address, dtype);
    let context = Box::into_raw(lent).cast();
    let (pointer, name): (*mut c_void, _) = if request.versioned {
        let (major, minor) = VERSION;
        let flags = if request.readonly { READ_ONLY } else { 0 };
        let versioned = Versioned { major, minor, context, deleter: Some(free_versioned), flags, tensor };
        (Box::into_raw(Box::new(versioned)).cast(), VERSIONED)
    } else {
        (Box::into_raw(Box::new(Managed { tensor, context, deleter: Some(free_plain) })).cast(), PLAIN)
    };
    // SAFETY: a valid pointer, a name that lives for ever, and a destructor for both.
    let capsule = unsafe { ffi::PyCapsule_New(pointer, name.as_ptr(), Some(drop_capsule)) };
    // SAFETY: a new reference or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }.inspect_err(|_| {
        // SAFETY: nobody has got the tensor, which was made above.
        unsafe { free(pointer, request.versioned) }
    })
}

/// # Safety
/// `pointer` is a tensor of this module that nobody uses any more.
unsafe fn free(pointer: *mut c_void, versioned: bool) {
    // SAFETY: the caller's promise.
    unsafe { if versioned { free_versioned(pointer.cast()) } else { free_plain(pointer.cast()) } }
}

/// # Safety
/// `managed` was made by `export`, and this is called once.
unsafe extern "C" fn free_plain(managed: *mut Managed) {
    // SAFETY: the caller's promise; both were boxes.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Lent>()));
    }
}

/// # Safety
/// As `free_plain`.
unsafe extern "C" fn free_versioned(versioned: *mut Versioned) {
    // SAFETY: the caller's promise; both were boxes.
    unsafe {
        let versioned = Box::from_raw(versioned);
        drop(Box::from_raw(versioned.context.cast::<Lent>()));
    }
}

/// Frees what nobody has taken: who takes a tensor renames its capsule.
///
/// # Safety
/// Called by Python for a capsule of `export`.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    for (name, versioned) in [(PLAIN, false), (VERSIONED, true)] {
        // SAFETY: a live capsule and a valid name; the pointer is that of `export`, and still the capsule's own.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) != 0 {
                free(ffi::PyCapsule_GetPointer(capsule, name.as_ptr()), versioned);
            }
        }
    }
}

/// The memory of an object that has DLPack; `None` if it has not.
pub fn import(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Option<Array>> {
    if !object.hasattr("__dlpack__")? {
        return Ok(None);
    }
    let (device, _): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    if device != HOST && device != HOST_PINNED {
        return Err(PyTypeError::new_err(format!(
            "{what}: in memory of a device (DLPack device type {device}); only memory of the host can be used"
        )));
    }
    let capsule = capsule_of(object)?;
    let (tensor, readonly) = tensor_in(&capsule, what)?;
    let dimensions = usize::try_from(tensor.dimensions).unwrap_or(0);
    let item_bits = usize::from(tensor.bits) * usize::from(tensor.lanes);
    if item_bits == 0 || !item_bits.is_multiple_of(8) {
        return Err(PyTypeError::new_err(format!("{what}: elements of {item_bits} bits; whole bytes are moved")));
    }
    let item_bytes = item_bits / 8;
    // SAFETY: DLPack says that there are so many, or, where nothing is packed otherwise, no strides at all.
    let (shape, strides) = unsafe { (numbers(tensor.shape, dimensions), numbers(tensor.strides, dimensions)) };
    let shape: Vec<usize> = shape.unwrap_or_default().iter().map(|length| *length as usize).collect();
    let dtype = DType::of_dlpack(tensor.code, tensor.bits).filter(|_| tensor.lanes == 1);
    let mut packed = item_bytes as isize;
    let mut strides = strides.map_or_else(Vec::new, |s| s.iter().map(|s| *s as isize * item_bytes as isize).collect());
    if strides.is_empty() {
        for length in shape.iter().rev() {
            strides.insert(0, packed);
            packed *= *length as isize;
        }
    }
    let address = tensor.data.expose_provenance() + tensor.byte_offset as usize;
    let layout = Layout { shape, strides, item_bytes, dtype };
    Ok(Some(Array { address, layout, readonly, keep: Keep::Capsule { _capsule: capsule.unbind() } }))
}

/// # Safety
/// `first` is null or points to so many numbers.
unsafe fn numbers(first: *const i64, count: usize) -> Option<Vec<i64>> {
    // SAFETY: the caller's promise.
    (!first.is_null()).then(|| unsafe { std::slice::from_raw_parts(first, count) }.to_vec())
}

fn capsule_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let options = PyDict::new(object.py());
    options.set_item("max_version", VERSION)?;
    match object.call_method("__dlpack__", (), Some(&options)) {
        // Those that were written before there were versions.
        Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => object.call_method0("__dlpack__"),
        other => other,
    }
}

fn tensor_in<'a>(capsule: &'a Bound<'_, PyAny>, what: &str) -> PyResult<(&'a Tensor, bool)> {
    // SAFETY: a live object and valid names; a capsule of this name has a tensor of this kind, which stays as long as the
    // capsule, from which nobody else can take it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), VERSIONED.as_ptr()) != 0 {
            let pointer = ffi::PyCapsule_GetPointer(capsule.as_ptr(), VERSIONED.as_ptr()).cast::<Versioned>();
            // Only these two fields are the same in every version.
            if (*pointer).major != VERSION.0 {
                let major = (*pointer).major;
                return Err(PyTypeError::new_err(format!("{what}: of DLPack {major}; {} is understood", VERSION.0)));
            }
            return Ok((&(*pointer).tensor, (*pointer).flags & READ_ONLY != 0));
        }
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), PLAIN.as_ptr()) != 0 {
            let pointer = ffi::PyCapsule_GetPointer(capsule.as_ptr(), PLAIN.as_ptr()).cast::<Managed>();
            return Ok((&(*pointer).tensor, false));
        }
    }
    Err(PyTypeError::new_err(format!("{what}: its __dlpack__ gives no tensor")))
}
