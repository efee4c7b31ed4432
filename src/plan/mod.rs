//! What a descriptor means, whether it may be done, and in which chunks it is carried out.
//!
//! Pure: no I/O, no atomics, no unsafe. `check` looks at the descriptor alone, [`Shape::bounds`] at the regions it
//! names, whose lengths and rights come as values. What is left, a [`Transfer`], needs no check but that of the index
//! words, which is made while copying ([`Transfer::src_max`]) or while planning.
//!
//! For a link the stage gives three things:
//!
//! - to the cost model a [`Work`]: [`survey`](survey()) counts fragments, segments and pieces in a transfer's first window;
//! - to the pipeline [`Chunk`]s: a [`Planner`] takes the batch's windows as they come, checks every index word, merges what
//!   is adjacent, and parts short segments, which are gathered, from long ones, which are operations of their own. A chunk
//!   is the same bytes twice, as a [`List`] of source pieces and as one of destination pieces, either of which is what its
//!   owner gets;
//! - to an owner and to the copy workers the [`Decoder`] of those lists, which believes nothing: it gives pieces that lie
//!   inside what was granted.

mod bounds;
mod check;
mod chunk;
mod decoder;
mod list;
mod notice;
mod numbers;
mod open;
mod pending;
mod planner;
mod section;
mod survey;
mod window;
mod work;

pub use bounds::{Extent, Place, Transfer};
pub use check::{Missing, Request, Shape, check};
pub use chunk::{Chunk, Operation, Operations, Segment, Segments};
pub use decoder::{Decoder, Limits, Refusal};
pub use list::{LIST_BYTES, LIST_ELEMENTS, LIST_PIECES, List, ListPieces};
pub use notice::Notice;
pub use numbers::{Numbers, WINDOW, Words};
pub use planner::{Planner, Progress, Rules};
pub use section::{ListPiece, Section, SectionPieces};
pub use survey::survey;
pub use work::{Class, Direction, Work};

use ring_abi::{Field, Stage, Status};

/// Why a descriptor cannot be done: what, where, and the offending value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The code.
    pub status: Status,
    /// Where it was found.
    pub stage: Stage,
    /// The field that is wrong.
    pub field: Field,
    /// The first fragment that is wrong, 0 if the descriptor as a whole is.
    pub fragment: u32,
    /// The offending value.
    pub detail: u64,
}

impl Fault {
    /// A fault of the descriptor as a whole.
    #[must_use]
    pub const fn new(status: Status, stage: Stage, field: Field, detail: u64) -> Fault {
        Fault { status, stage, field, fragment: 0, detail }
    }
}
