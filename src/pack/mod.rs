//! Copying: the part of a transfer that touches memory, on the poller's thread or on a worker's.
//!
//! A [`Run`] cuts a transfer into [`Task`]s. Uniform small fragments become tasks of many fragments, whose index words the
//! task reads, checks and follows window by window. Wide fragments and irregular ones are looked up one at a time while
//! cutting, and become tasks of plain bytes. Every index word is copied once into private memory, checked there, and not
//! looked at again.
//!
//! Memory that this process cannot map goes through staging slots: an [`Expansion`] gives a transfer's [`Pieces`], a chunk
//! at a time; its owner packs or unpacks them ([`Packer`]), and [`copy_segments`] is the copy on the other side of the slot.
//! Chunks of [`plan`](crate::plan) come as encoded lists, which [`ListPacker`] follows; a
//! [`ListTask`] is one of them with its memory, for any thread.

mod calibrate;
mod expansion;
mod list_task;
mod lists;
mod lookup;
mod numbers;
mod pieces;
mod run;
mod task;
mod workers;

pub use crate::plan::Refusal;
pub use calibrate::calibrate;
pub use expansion::{Expansion, Piece, Pieces};

pub use list_task::ListTask;
pub use lists::{ListPacker, Way};
pub use numbers::NumberWindow;
pub use pieces::{Packer, Segment, Side, copy_segments, owner_list, segments};
pub use run::{Cut, RowList, Run};
pub use task::{Done, Task, Window};
pub use workers::{PollerBell, Workers};

/// Bytes per task, about: 10 to 20 us of copying, which bounds what one turn of the poller costs and what the last task
/// of a transfer makes the others wait.
pub const TASK_BYTES: u64 = 256 << 10;
