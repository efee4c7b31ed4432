//! Which choice is the best.

use super::explain::Shortage;
use super::model::{CHUNK_ELEMENTS, predict_load};
use super::terms::{Load, Terms};
use super::{Budget, Prediction, Situation, Work};

/// How a window is to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Segments at least so long go by the direct route, shorter ones are gathered. 0: all direct. `u32::MAX`: all gathered.
    pub direct_from_bytes: u32,
    /// C: most bytes of a chunk.
    pub chunk_bytes: u32,
    /// P: slots in use at once.
    pub slots: u32,
}

/// A way of carrying work out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// One operation for each segment.
    Direct,
    /// Packed, moved in bulk, unpacked.
    Gather,
    /// The long segments directly, the short ones gathered.
    Hybrid,
}

/// The best choice, and what it was compared with. Times in ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// What is to be done.
    pub choice: Choice,
    /// How long that would take.
    pub predicted: Prediction,
    /// How long the direct route would take.
    pub direct_ns: f64,
    /// The best of all gathered; `None` if the budget has no slot.
    pub gather_ns: Option<f64>,
    /// The best of the mixed ones; `None` if there are none: one class of lengths, or no slot.
    pub hybrid_ns: Option<f64>,
}

impl Choice {
    /// All by the direct route.
    pub const DIRECT: Choice = Choice { direct_from_bytes: 0, chunk_bytes: 0, slots: 0 };

    /// What it is for any work that has both short and long segments.
    #[must_use]
    pub fn route(self) -> Route {
        match self.direct_from_bytes {
            0 => Route::Direct,
            u32::MAX => Route::Gather,
            _ => Route::Hybrid,
        }
    }

    /// Most bytes of the first chunk. Chunks double from it up to C, so that the wire has work early.
    #[must_use]
    pub fn first_chunk_bytes(self) -> u32 {
        (self.chunk_bytes / 8).max(CHUNK_BYTES_MIN).min(self.chunk_bytes)
    }
}

/// Chooses by the shortest predicted time. Gathering must beat the direct route by a margin of 5 %. Of choices that take equally
/// long, which is up to 1 %, one is taken that keeps pollers and workers less busy. Allocates nothing.
#[must_use]
pub fn choose(work: &Work, situation: &Situation) -> Decision {
    rank(work, situation).decision
}

/// A decision, and what it was taken from.
#[derive(Clone, Copy, Debug)]
pub struct Ranked {
    pub decision: Decision,
    /// The best of each route that there is: the direct one, gathering, both.
    pub of_routes: [Option<Choice>; 3],
}

/// [`choose`], with the best of each route.
pub fn rank(work: &Work, situation: &Situation) -> Ranked {
    let mut best: Option<(Choice, Prediction)> = None;
    let mut shortest_ns = f64::INFINITY;
    let mut shortest = [(f64::INFINITY, None); 3];
    let mut direct = Prediction::default();
    each(work, situation, false, |offer| {
        let total_ns = offer.predicted.total_ns;
        let of_route = &mut shortest[offer.choice.route() as usize];
        if total_ns < of_route.0 {
            *of_route = (total_ns, Some(offer.choice));
        }
        if offer.choice.route() == Route::Direct {
            direct = offer.predicted;
            return;
        }
        shortest_ns = shortest_ns.min(total_ns);
        let ties = |ns: f64| ns <= shortest_ns * (1.0 + TIE);
        let better = |(_, best): &(Choice, Prediction)| {
            !ties(best.total_ns) || (ties(total_ns) && offer.predicted.work_ns() < best.work_ns())
        };
        if best.as_ref().is_none_or(better) {
            best = Some((offer.choice, offer.predicted));
        }
    });
    let (choice, predicted) = best.filter(|_| beats(shortest_ns, direct.total_ns)).unwrap_or((Choice::DIRECT, direct));
    let mut of_routes = shortest.map(|(_, choice)| choice);
    of_routes[choice.route() as usize] = Some(choice);
    let ns_of = |route: Route| shortest[route as usize].1.map(|_| shortest[route as usize].0);
    let decision = Decision {
        choice,
        predicted,
        direct_ns: direct.total_ns,
        gather_ns: ns_of(Route::Gather),
        hybrid_ns: ns_of(Route::Hybrid),
    };
    Ranked { decision, of_routes }
}

/// Whether a time is shorter than another by the margin.
pub fn beats(ns: f64, other_ns: f64) -> bool {
    ns * (1.0 + MARGIN) < other_ns
}

/// A candidate.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    pub choice: Choice,
    pub predicted: Prediction,
    /// What the budget lacks for it.
    pub shortage: Option<Shortage>,
}

/// Predicts each candidate, the direct route first, and then those with less staging before those with more of the same
/// threshold and slots. More slots for the same chunks are never predicted to take longer, so that fewer than the budget has
/// room for are a candidate only if `all` are asked for, as are those that it has no room for.
pub fn each(work: &Work, situation: &Situation, all: bool, mut take: impl FnMut(&Offer)) {
    let terms = Terms::of(situation);
    let direct = Load::of(work, &terms, 0);
    take(&Offer { choice: Choice::DIRECT, predicted: predict_load(&direct, &terms, Choice::DIRECT), shortage: None });
    if direct.direct.fragments == 0.0 {
        return;
    }
    let (thresholds, count) = thresholds(work, &terms);
    for direct_from_bytes in &thresholds[..count] {
        let load = Load::of(work, &terms, *direct_from_bytes);
        let (least, most) = chunk_range(&load, &terms, &situation.budget);
        for slots in SLOTS {
            let mut chunk_bytes = least;
            while chunk_bytes <= most {
                let choice = Choice { direct_from_bytes: *direct_from_bytes, chunk_bytes, slots };
                let lacks = |slots| shortage(Choice { slots, ..choice }, &situation.budget);
                let shortage = lacks(slots);
                let has_more = SLOTS.into_iter().any(|more| more > slots && lacks(more).is_none());
                if all || (shortage.is_none() && !has_more) {
                    take(&Offer { choice, predicted: predict_load(&load, &terms, choice), shortage });
                }
                chunk_bytes *= 2;
            }
        }
    }
}

/// All gathered, and at most [`BOUNDARIES`] boundaries between classes: those around the length at which an operation
/// keeps the wire busy by its bytes for as long as it takes to be posted. Longer segments gain little by being gathered.
fn thresholds(work: &Work, terms: &Terms) -> ([u32; 1 + BOUNDARIES], usize) {
    let mut thresholds = [u32::MAX; 1 + BOUNDARIES];
    let mut count = 1;
    let balance = terms.operation_ns / terms.wire_ns_per_byte;
    let shorter = work.classes().filter(|(number, _)| ((1u64 << number) as f64) < balance).count();
    let boundaries = work.classes().count().saturating_sub(1);
    // Boundary k lies below the class after the k-th.
    let first = shorter.clamp(1, boundaries.max(1)) - 1;
    let first = first.saturating_sub(1).min(boundaries.saturating_sub(BOUNDARIES));
    for (number, _) in work.classes().skip(1 + first).take(BOUNDARIES) {
        thresholds[count] = 1 << number;
        count += 1;
    }
    (thresholds, count)
}

/// The least and the most C to look at, both powers of two.
///
/// `C_min = max(B_net * L, B_net * T_chunk_fixed / epsilon)`: a shorter chunk is on the wire for less than its round trip,
/// or for so little that its fixed cost is no small part. But where the bytes of all are few, more chunks than one let more
/// workers pack, and where the staging is small, more slots fit.
/// `C_max`: all bytes, as far as a chunk's list holds them, and no more steps than [`CHUNK_STEPS`].
fn chunk_range(load: &Load, terms: &Terms, budget: &Budget) -> (u32, u32) {
    let gather = &load.gather;
    let pieces = gather.src_pieces.max(gather.dst_pieces).max(1.0);
    let list_bytes = gather.bytes * (f64::from(CHUNK_ELEMENTS) / pieces);
    let most = power_at_least(gather.bytes.min(list_bytes));
    let full = terms.round_trip_ns.max(terms.chunk_fixed_ns / EPSILON) / terms.wire_ns_per_byte;
    let slots = SLOTS[0];
    let room = (budget.staging_bytes / u64::from(slots)).min(budget.chunk_bytes_max.into());
    let least = power_at_least(full)
        .min(power_at_least(gather.bytes / f64::from(slots)))
        .min(1 << room.max(1).ilog2().min(30))
        .min(most);
    let least = (least / FINER).max(CHUNK_BYTES_MIN);
    (least, most.min(least.saturating_mul(1 << (CHUNK_STEPS - 1))))
}

/// The lowest power of two that is not below, from [`CHUNK_BYTES_MIN`] to 1 GiB.
fn power_at_least(bytes: f64) -> u32 {
    (bytes.ceil() as u32).clamp(CHUNK_BYTES_MIN, 1 << 30).next_power_of_two()
}

/// The same choice with chunks twice as large, and with chunks half as large, as far as the budget has room for them.
pub fn neighbors(choice: Choice, budget: &Budget) -> impl Iterator<Item = Choice> {
    let sizes = [choice.chunk_bytes.saturating_mul(2), choice.chunk_bytes / 2];
    let choices = sizes.map(|chunk_bytes| Choice { chunk_bytes, ..choice });
    let budget = *budget;
    choices.into_iter().filter(move |one| one.chunk_bytes >= CHUNK_BYTES_MIN && shortage(*one, &budget).is_none())
}

fn shortage(choice: Choice, budget: &Budget) -> Option<Shortage> {
    if choice.slots > budget.slots_max {
        Some(Shortage::Slots)
    } else if choice.chunk_bytes > budget.chunk_bytes_max {
        Some(Shortage::ChunkBytes)
    } else if u64::from(choice.chunk_bytes) * u64::from(choice.slots) > budget.staging_bytes {
        Some(Shortage::StagingBytes)
    } else {
        None
    }
}

/// A route is left only for one that is better by this part: predictions are not better than that.
pub const MARGIN: f64 = 0.05;

/// Times that differ by no more than this part are the same: of such choices the one with more room for what no formula
/// knows is better.
pub const TIE: f64 = 0.01;

/// P.
const SLOTS: [u32; 4] = [8, 4, 2, 1];

/// Boundaries between classes that are looked at.
const BOUNDARIES: usize = 4;

/// Powers of two that are looked at as C.
const CHUNK_STEPS: u32 = 7;

/// How far below the least C that keeps the wire busy by itself others are looked at: several workers pack shorter chunks
/// at the same time, and the last one is shorter.
const FINER: u32 = 8;

/// The part of a chunk's time on the wire that its fixed cost may be.
const EPSILON: f64 = 0.1;

/// Below this a chunk is hardly more than the messages about it.
const CHUNK_BYTES_MIN: u32 = 16 << 10;
