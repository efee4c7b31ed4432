//! The C library: the engine and its client behind functions that C, C++ and whatever can call C can use.
//!
//! `include/scatter_ring.h` is made from this crate: the comments here are the header's, and the types have the names
//! that they have in C. How it is built:
//!
//! * A handle is a box that C holds. References in the signatures are C's pointers, `None` is NULL, an
//!   `Option<Box<_>>` takes the handle over. Each function checks for NULL, and says so by name.
//! * What only one thread may use at a time is behind a mutex that nobody waits for: a second thread gets a status.
//! * Nothing unwinds into C: [`error::run`] is around every call that can fail, a panic becomes `INTERNAL`, and what
//!   it left half done is refused from then on, because its mutex is poisoned.
//! * A batch is a list that is replayed into the ring when it is submitted, so that it can be kept and submitted
//!   again, and so that nothing of it happens if it is not.

// The names are those of C.
#![allow(non_camel_case_types)]
// What callers owe is said in each comment, in the words of C; they cannot see what Rust calls a function.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

mod args;
mod error;
mod signals;

// From here on in the order of the header: cbindgen takes what it finds as it finds it.

mod engine;

mod owner;

mod client;

mod region;

mod shapes;

mod batch;

mod wait;

mod raw;

mod notify;

mod log;

use std::ffi::{CStr, c_char};

/// The version of this library, for example "0.1.0". Never NULL, never freed. Any thread, also in a forked child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version without a NUL"),
    };
    VERSION.as_ptr()
}
