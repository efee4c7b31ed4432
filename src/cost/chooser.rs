//! Decisions that are kept.

use super::choose::rank;
use super::tried::Tries;
use super::{Budget, Class, CopyProfile, Decision, Direction, LinkProfile, Situation, Wire, Work, predict};

/// Decides for one link, and keeps decisions: work of equal geometry in the same situation gets the same choice without
/// comparing candidates again, and a choice stays unless another is better by a margin. Allocates nothing after `new`.
///
/// What choices really took, as told by [`measured`](Chooser::measured), corrects the predictions for their geometry. A
/// choice that could be better by as much as predictions are wrong is tried, during the first eight measured batches of a
/// geometry in a situation, and the one that turns out to be the best stays. Without measurements predictions alone decide.
#[derive(Clone, Debug)]
pub struct Chooser {
    /// By direction: what the kept choices were made for, and the situation before that.
    situations: [[Option<Situation>; 2]; 2],
    /// By direction: how often that has changed.
    eras: [u32; 2],
    /// The geometries of the kept decisions, apart from those so that looking through them is quick.
    geometries: [Geometry; KEPT],
    kept: Box<[Option<Kept>]>,
    /// The one that is given up next.
    oldest: usize,
    counts: ChooserCounts,
}

/// What a [`Chooser`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChooserCounts {
    /// Decisions asked for.
    pub asked: u64,
    /// Answered without comparing candidates.
    pub hits: u64,
    /// Compared again because the situation had changed, and the earlier choice stayed.
    pub stayed: u64,
}

/// A number for work of one direction that is the same but for little: each class of lengths has about as many bytes, segments
/// and pieces, within a quarter of an octave. Two different ones have the same number once in 2^64; that costs a choice
/// that is not the best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Geometry(u64);

/// One decision.
#[derive(Clone, Debug)]
struct Kept {
    budget: Budget,
    era: u32,
    decision: Decision,
    tries: Tries,
    /// Something was measured since the decision.
    measured: bool,
}

impl Default for Chooser {
    fn default() -> Chooser {
        Chooser {
            situations: [[None; 2]; 2],
            eras: [0; 2],
            geometries: [Geometry::default(); KEPT],
            kept: (0..KEPT).map(|_| None).collect(),
            oldest: 0,
            counts: ChooserCounts::default(),
        }
    }
}

impl Chooser {
    /// Without decisions.
    #[must_use]
    pub fn new() -> Chooser {
        Chooser::default()
    }

    /// Decides. `predicted` is for this very work also if the choice was kept; the times of the other routes are then
    /// those of the work that it was made for. All of them are uncorrected, as the model has them.
    pub fn choose(&mut self, work: &Work, situation: &Situation) -> Decision {
        self.counts.asked += 1;
        let era = self.era(situation);
        let place = self.place(Geometry::of(work, situation.direction));
        let earlier = self.kept[place].as_mut().filter(|kept| kept.budget == situation.budget);
        if let Some(kept) = earlier {
            if kept.era == era {
                self.counts.hits += 1;
            } else {
                let [_, before] = &self.situations[side(situation.direction)];
                let before = before.as_ref().filter(|_| kept.era.wrapping_add(1) == era);
                let stays = kept.compare_again(work, situation, before);
                kept.era = era;
                self.counts.stayed += u64::from(stays);
            }
            return kept.decide(work, situation);
        }
        let ranked = rank(work, situation);
        let (tries, decision) = (Tries::of(&ranked), ranked.decision);
        self.kept[place] = Some(Kept { budget: situation.budget, era, decision, tries, measured: false });
        decision
    }

    /// A transfer of such a geometry took so long by the choice of this decision. Left out if the time is not a positive
    /// number, or if nothing is kept of that geometry any more.
    pub fn measured(&mut self, geometry: Geometry, decision: &Decision, measured_ns: f64) {
        let place = self.geometries.iter().position(|known| *known == geometry);
        if let Some(kept) = place.and_then(|place| self.kept[place].as_mut()) {
            kept.tries.sample(decision.choice, measured_ns / decision.predicted.total_ns);
            kept.measured = true;
        }
    }

    /// Where the decision for a geometry is, or is to be.
    fn place(&mut self, geometry: Geometry) -> usize {
        if let Some(place) = self.geometries.iter().position(|known| *known == geometry) {
            return place;
        }
        let place = self.oldest;
        self.oldest = (self.oldest + 1) % KEPT;
        self.geometries[place] = geometry;
        self.kept[place] = None;
        place
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> ChooserCounts {
        self.counts
    }

    /// Counts the situations of a direction. Decisions of earlier ones are to be looked at again.
    fn era(&mut self, situation: &Situation) -> u32 {
        let side = side(situation.direction);
        let ([known, before], era) = (&mut self.situations[side], &mut self.eras[side]);
        if !known.is_some_and(|known| alike(&known, situation)) {
            *before = known.replace(*situation);
            *era = era.wrapping_add(1);
        }
        *era
    }
}

impl Kept {
    /// Compares all candidates in another situation. True if the choice stays.
    fn compare_again(&mut self, work: &Work, situation: &Situation, before: Option<&Situation>) -> bool {
        let ranked = rank(work, situation);
        let earlier = std::mem::replace(&mut self.tries, Tries::of(&ranked));
        self.tries.inherit(&earlier, work, before, situation);
        self.tries.settle(work, situation);
        self.measured = false;
        self.decision = ranked.decision;
        self.tries.choice() == earlier.choice()
    }

    fn decide(&mut self, work: &Work, situation: &Situation) -> Decision {
        if std::mem::take(&mut self.measured) {
            self.tries.settle(work, situation);
        }
        self.decision.choice = self.tries.choice();
        self.decision.predicted = predict(work, situation, self.decision.choice);
        self.decision
    }
}

impl Geometry {
    /// Of a work that goes that way.
    #[must_use]
    pub fn of(work: &Work, direction: Direction) -> Geometry {
        let mut sum = side(direction) as u64;
        for (number, class) in work.classes() {
            let Class { segments, src_pieces, dst_pieces, bytes, .. } = *class;
            let counts = [bytes, segments, src_pieces, dst_pieces].map(quarter_octaves);
            let word = counts.iter().fold(u64::from(number), |word, count| word << 8 | u64::from(*count));
            sum = (sum.rotate_left(5) ^ word).wrapping_mul(MIX);
            sum ^= sum >> 32;
        }
        Geometry(sum)
    }
}

fn side(direction: Direction) -> usize {
    usize::from(direction == Direction::Write)
}

/// Whether no figure differs by more than a few percent.
fn alike(a: &Situation, b: &Situation) -> bool {
    same_link(&a.link, &b.link) && same_copies(&a.requester, &b.requester) && same_copies(&a.owner, &b.owner)
}

fn same_link(a: &LinkProfile, b: &LinkProfile) -> bool {
    let wire = match (a.wire, b.wire) {
        (Wire::Nic, Wire::Nic) => true,
        (Wire::Cpu { ns_per_byte: x, cores: n }, Wire::Cpu { ns_per_byte: y, cores: m }) => near(x, y) && n == m,
        _ => false,
    };
    wire && (a.queue_depth, a.max_sge) == (b.queue_depth, b.max_sge)
        && near(a.bytes_per_ns, b.bytes_per_ns)
        && near(a.round_trip_ns, b.round_trip_ns)
        && near(a.operation_ns, b.operation_ns)
        && near(a.doorbell_ns, b.doorbell_ns)
        && near(a.completion_ns, b.completion_ns)
        && near(a.control_ns, b.control_ns)
        && near(a.chunk_fixed_ns, b.chunk_fixed_ns)
}

fn same_copies(a: &CopyProfile, b: &CopyProfile) -> bool {
    a.workers == b.workers
        && near(a.bytes_per_ns, b.bytes_per_ns)
        && near(a.piece_ns, b.piece_ns)
        && near(a.decode_ns, b.decode_ns)
        && near(a.plan_ns, b.plan_ns)
}

/// Equal bits are near, whatever they say: two that are not numbers too.
fn near(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || (a - b).abs() <= CHANGE * a.abs().min(b.abs())
}

/// The logarithm in steps of a quarter, from the number's length and its next two bits. Below 256.
fn quarter_octaves(count: u64) -> u8 {
    let length = count.max(1).ilog2();
    let next = (count.max(1) << (63 - length)) >> 61 & 3;
    (4 * length + next as u32) as u8
}

/// Decisions that are kept. An engine has a few kinds of work at a time.
const KEPT: usize = 64;

/// A figure that has changed by more makes decisions be taken again.
const CHANGE: f64 = 0.03;

/// An odd number without pattern: 2^64 divided by the golden ratio.
const MIX: u64 = 0x9E37_79B9_7F4A_7C15;
