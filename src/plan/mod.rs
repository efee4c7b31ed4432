//! What a descriptor means, and whether it may be done.
//!
//! Pure: no I/O, no atomics, no unsafe. `check` looks at the descriptor alone, [`Shape::bounds`] at the regions it
//! names, whose lengths and rights come as values. What is left, a [`Transfer`], needs no check but that of the index
//! words, which is made while copying ([`Transfer::src_max`]).

mod bounds;
mod check;

pub use bounds::{Extent, Place, Transfer};
pub use check::{Missing, Request, Shape, check};

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
