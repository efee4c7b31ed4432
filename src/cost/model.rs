//! How long a choice would take.
//!
//! The formulas are those of the project's cost model (`T_direct`, `T_pack`, `T_bulk`, `T_gather` over S bytes, N segments,
//! M pieces, chunks of C, P slots), with what they leave out:
//!
//! * Stages overlap, so a transfer takes as long as its longest stage and what comes before and behind that: the first
//!   chunk's way to it and the last chunk's way from it. The sum `C / B_mem + max(T_pack, T_bulk) + C / B_net` is an upper
//!   bound of that. Planning and decoding stream too: only their first chunk is in the way.
//! * The first chunk is small, and chunks double up to C. A chunk has at most [`CHUNK_ELEMENTS`] pieces.
//! * Packing runs on min(P, workers) workers, and P also bounds how many chunks are anywhere between command and
//!   completion.
//! * A chunk of one piece is neither packed nor unpacked. Of pieces longer than a chunk, only the borders are in some.
//! * Operations go in windows of one doorbell and one completion each. The queue holds Q: only the rounds after the first
//!   wait for a round trip, in which `ceil(N / Q) * L` counts one too many.
//! * Two routes of one transfer share the wire and the poller. A chunk is then on the wire for longer, and its slot is held
//!   for as long.
//! * Where the processors are the wire, nothing takes less than all their work, shared by all of them but for the last
//!   chunk's, which goes its whole way behind (Graham's bound for list scheduling).

use super::gather::{Gather, Shape};
use super::terms::{Load, Terms};
use super::{Budget, Choice, CopyProfile, Direction, LinkProfile, Wire, Work, direct::Direct};

/// What a prediction is made from besides the work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Situation {
    /// Which way the bytes go. READ: the owner packs and the requester unpacks; WRITE: the other way round.
    pub direction: Direction,
    /// What is between the two.
    pub link: LinkProfile,
    /// The machine that asks.
    pub requester: CopyProfile,
    /// The machine whose memory it is about.
    pub owner: CopyProfile,
    /// Of the side that packs.
    pub budget: Budget,
}

/// How long a choice would take, and what of. The stages overlap: `total_ns` is `fill_ns`, then the stage that
/// `bound_by` names, then `drain_ns`. Every figure is finite and at least 0, whatever the situation says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// From the first descriptor until the requester knows that the last byte is in place.
    pub total_ns: f64,
    /// The requester's poller: planning, doorbells, completions, messages.
    pub plan_ns: f64,
    /// The owner's poller: commands, doorbells, completions, messages.
    pub owner_ns: f64,
    /// From sending the first command until its owner starts on it.
    pub command_ns: f64,
    /// All packing, over the workers that share it, with decoding and checking.
    pub pack_ns: f64,
    /// All bytes and operations on the wire.
    pub wire_ns: f64,
    /// All unpacking, over the workers that share it.
    pub unpack_ns: f64,
    /// Before the longest stage can start: the first chunk's way to it.
    pub fill_ns: f64,
    /// After the longest stage has ended: the last chunk's way from it.
    pub drain_ns: f64,
    /// What the longest stage is.
    pub bound_by: Bound,
    /// Gathered chunks.
    pub chunks: u64,
    /// Operations of the direct route, and bulk writes.
    pub operations: u64,
    /// Doorbells that these operations need.
    pub doorbells: u64,
}

impl Prediction {
    /// What pollers and workers have to do for it, all of them together. Of two choices that take equally long the one with
    /// less of it has more room for what no formula knows.
    #[must_use]
    pub fn work_ns(&self) -> f64 {
        self.plan_ns + self.owner_ns + self.pack_ns + self.unpack_ns
    }
}

/// What a transfer waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// The requester's poller, planning.
    Plan,
    /// The owner's poller, chunk by chunk.
    Owner,
    /// The copy workers that pack.
    Pack,
    /// Bytes on the wire.
    #[default]
    Wire,
    /// Operations on the wire.
    Operations,
    /// The round trips of a full queue.
    QueueDepth,
    /// The round trips of all slots in use.
    Slots,
    /// The copy workers that unpack.
    Unpack,
    /// The processors, all together, where they move the bytes of the wire as well.
    Processors,
}

/// Predicts the time of a choice, whether or not the budget has room for it.
#[must_use]
pub fn predict(work: &Work, situation: &Situation, choice: Choice) -> Prediction {
    let terms = Terms::of(situation);
    predict_load(&Load::of(work, &terms, choice.direct_from_bytes), &terms, choice)
}

/// [`predict`] with what many choices have in common.
pub fn predict_load(load: &Load, terms: &Terms, choice: Choice) -> Prediction {
    let direct = (load.direct.fragments > 0.0).then(|| Direct::of(&load.direct, terms));
    let gather = (load.gather.fragments > 0.0).then(|| {
        let shape = Shape::of(&load.gather, choice.chunk_bytes, choice.first_chunk_bytes());
        Gather::of(&load.gather, terms, &shape, choice.slots)
    });
    let mut longest = Stage::default();
    direct.iter().for_each(|direct| longest.or(&direct.stages(terms)));
    if let Some(gather) = &gather {
        let mut alone = Stage::default();
        alone.or(&gather.stages());
        longest.or(&[direct.as_ref().map_or(alone, |direct| gather.beside(direct, alone))]);
    }
    let mut parts = Prediction::default();
    if let Some(direct) = &direct {
        parts.plan_ns += direct.plan_ns;
        parts.wire_ns += direct.wire_ns;
        parts.operations += direct.operations as u64;
        parts.doorbells += direct.windows as u64;
    }
    if let Some(gather) = &gather {
        parts.plan_ns += gather.plan_ns;
        parts.wire_ns += gather.wire_ns;
        parts.owner_ns = gather.owner_ns();
        parts.command_ns = gather.command_ns;
        parts.pack_ns = gather.pack_ns;
        parts.unpack_ns = gather.unpack_ns;
        parts.chunks = gather.shape.chunks as u64;
        parts.operations = parts.operations.saturating_add(parts.chunks);
        parts.doorbells = parts.doorbells.saturating_add(parts.chunks);
    }
    if let (Some(direct), Some(gather)) = (&direct, &gather) {
        longest.or(&shared(direct, gather, &parts));
    }
    if let Some((ns_per_byte, cores)) = terms.processors {
        let direct = direct.map(|direct| direct.processors(ns_per_byte, cores, terms));
        let gather = gather.map(|gather| gather.processors(ns_per_byte, cores));
        let both = match (direct, gather) {
            (Some(direct), Some(gather)) => Stage { time: direct.time + gather.time, ..gather },
            (one, other) => one.or(other).unwrap_or_default(),
        };
        longest.or(&[both]);
    }
    Prediction {
        total_ns: longest.total(),
        fill_ns: longest.head,
        drain_ns: longest.tail,
        bound_by: longest.bound,
        ..parts
    }
}

/// What the two routes of one transfer have in common: the poller that plans, and the wire.
fn shared(direct: &Direct, gather: &Gather, parts: &Prediction) -> [Stage; 2] {
    let tail = direct.after_wire_ns.max(gather.after_wire_ns);
    [
        Stage { bound: Bound::Plan, head: 0.0, time: parts.plan_ns, tail },
        Stage { bound: Bound::Wire, head: direct.before_wire_ns.min(gather.before_wire_ns), time: parts.wire_ns, tail },
    ]
}

/// A stage of a pipeline: what comes before its first chunk, all its work, what comes behind its last chunk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stage {
    pub bound: Bound,
    pub head: f64,
    pub time: f64,
    pub tail: f64,
}

impl Stage {
    pub fn total(&self) -> f64 {
        self.head + self.time + self.tail
    }

    /// Becomes the longest of itself and others.
    fn or(&mut self, others: &[Stage]) {
        for other in others {
            if other.total() > self.total() {
                *self = *other;
            }
        }
    }
}

/// Operations of one doorbell of the direct route. Two windows fit into the queue, so that one is posted while the other
/// is under way.
#[must_use]
pub fn window_operations(link: &LinkProfile) -> u32 {
    (link.queue_depth / 2).clamp(1, WINDOW_OPERATIONS)
}

/// Segments that fill a doorbell of the direct route: an operation may have several local pieces where the remote side is
/// contiguous.
#[must_use]
pub fn window_segments(work: &Work, situation: &Situation, choice: Choice) -> u32 {
    let terms = Terms::of(situation);
    let direct = Load::of(work, &terms, choice.direct_from_bytes).direct;
    let segments = terms.window * (direct.segments / direct.operations.max(1.0)).max(1.0);
    (segments.ceil() as u32).clamp(1, CHUNK_ELEMENTS)
}

/// The mean length of pieces from which on a device that takes several in a request gathers them for less than packing costs:
/// packing is `1 / R_copy` and the bytes by `B_mem` for each piece, spread over the workers; the device's part is its share of
/// a request, and an entry that it fetches. `u32::MAX` where processors move the bytes, or the device takes one piece.
#[must_use]
pub fn device_gathers_from(link: &LinkProfile, copies: &CopyProfile) -> u32 {
    if link.wire != Wire::Nic || link.max_sge < 2 {
        return u32::MAX;
    }
    let by_device_ns = link.operation_ns / f64::from(link.max_sge) + ENTRY_NS;
    let bytes_ns = by_device_ns * f64::from(copies.workers.max(1)) - copies.piece_ns - copies.decode_ns;
    // A float that does not fit becomes the nearest number.
    (bytes_ns * copies.bytes_per_ns).max(GATHERED_BYTES_MIN).ceil() as u32
}

/// What a device takes to fetch one piece of a request more: a read over PCIe, most of which overlaps with others.
const ENTRY_NS: f64 = 10.0;
/// Shorter pieces are packed whatever the figures say: below a cache line or four the device moves more of headers than of
/// them.
const GATHERED_BYTES_MIN: f64 = 256.0;

/// Most pieces of one side of a chunk. Rows of 64 bytes make chunks of at most 256 KiB, whatever C is.
pub const CHUNK_ELEMENTS: u32 = 4096;

/// A doorbell for so many costs next to nothing for each, and more of them would have their completion later.
const WINDOW_OPERATIONS: u32 = 64;
