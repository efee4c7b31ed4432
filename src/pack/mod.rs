//! Copying: the part of a transfer that touches memory, on the poller's thread or on a worker's.
//!
//! A [`Run`] cuts a transfer into [`Task`]s. Uniform small fragments become tasks of many fragments, whose index words the
//! task reads, checks and follows window by window. Wide fragments and irregular ones are looked up one at a time while
//! cutting, and become tasks of plain bytes. Every index word is copied once into private memory, checked there, and not
//! looked at again.

mod run;
mod task;
mod workers;

pub use run::{Cut, RowList, Run};
pub use task::{Done, Task, Window};
pub use workers::{PollerBell, Workers};

/// Bytes per task, about: 10 to 20 us of copying, which bounds what one turn of the poller costs and what the last task
/// of a transfer makes the others wait.
pub const TASK_BYTES: u64 = 256 << 10;
