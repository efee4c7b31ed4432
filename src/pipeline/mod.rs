//! State machines without I/O and without a clock: events go in, and what is to be done comes out.
//!
//! * [`Ledger`]: the life of a batch in spans. A descriptor was taken, a transfer finished or failed, a deadline passed, a
//!   cancel came; outcomes come out. The rules are those of the executable model in `tests/model`, with which property tests
//!   compare it.
//! * [`Requester`] and [`Owner`]: the two ends of a link, over which chunks of batches go by their routes. Requests, replies,
//!   completions and finished copies go in; doorbells, copies and messages come out. Whoever drives them, with workers and a
//!   link or in virtual time, carries these out.

mod batch;
mod ledger;
mod list;
mod messages;
mod owner;
mod requester;
mod slab;
mod slots;
mod spans;
mod works;

pub use batch::Stages;
pub use ledger::{Ledger, Outcome, Postponed, Readiness, TransferId};
pub use messages::{BatchId, Chunk, ChunkId, LINK_LOST, Landing, Origin, Reply, Request, WorkFault, WorkId};
pub use owner::{LinkId, Owner, OwnerAction, OwnerCounters, OwnerLimits};
pub use requester::{Requester, RequesterAction, RequesterCounters, RequesterLimits};
pub use slots::{Lease, Slots};

use requester::LinkState;
