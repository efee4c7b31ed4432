//! The life of a batch, as a state machine without I/O.
//!
//! Events go in (a descriptor was taken, a transfer finished or failed, a deadline passed, a cancel came); outcomes come
//! out as spans. The rules are those of the executable model in `tests/model`, with which property tests compare it.

mod batch;
mod ledger;
mod slab;
mod spans;

pub use ledger::{Ledger, Outcome, TransferId};
