//! The native module of the Python package `scatter_ring`: the Rust client and engine, and nothing of their own.
//!
//! From Python's arguments to the ring: `array` says where an object's memory is, `side` which bytes of which region an
//! argument means, `numbers` what becomes of row numbers and ranges, `describe` makes descriptors of it and finds
//! whatever is wrong, `submit` puts a batch into the ring. `session` is how threads and event loops share a client.
//!
//! What is Python's own (the exceptions, asyncio) is written in Python, beside this.

mod array;
mod batch;
mod buffer;
mod client;
mod describe;
mod dlpack;
mod dtype;
mod engine;
mod errors;
mod memory;
mod numbers;
mod session;
mod side;
mod state;
mod submit;
mod transfer;
mod wakeup;

use pyo3::prelude::*;

#[pymodule(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(client::attach, module)?)?;
    module.add_class::<client::Client>()?;
    module.add_class::<client::Peer>()?;
    module.add_class::<client::Notification>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<buffer::Region>()?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<engine::Adopted>()?;
    module.add_class::<transfer::Transfer>()?;
    module.add_class::<transfer::Outcome>()?;
    module.add_class::<wakeup::PyWakeup>()
}
