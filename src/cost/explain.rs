//! Every candidate, and why it was not chosen.

use super::choose::each;
use super::{Choice, Decision, Prediction, Route, Situation, Work, choose};

/// A decision with all that it was taken from.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// What is to be moved.
    pub work: Work,
    /// Where.
    pub situation: Situation,
    /// What [`choose`](super::choose) gives.
    pub decision: Decision,
    /// All candidates in the order in which they are compared, the direct route first.
    pub candidates: Vec<Candidate>,
}

/// One way that was looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Which.
    pub choice: Choice,
    /// Its kind.
    pub route: Route,
    /// How long it would take.
    pub predicted: Prediction,
    /// What became of it.
    pub verdict: Verdict,
}

/// What became of a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// It is the choice.
    Chosen,
    /// It takes longer than the choice by this part: 0.1 is 10 %.
    SlowerBy(f64),
    /// It takes less than the direct route by this part, which is not enough to leave that.
    WithinMargin(f64),
    /// It takes less than the choice by this part, which is next to nothing, and keeps pollers and workers busier.
    Busier(f64),
    /// There is not the memory for it.
    NoBudget(Shortage),
}

/// What a budget lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// So many slots.
    Slots,
    /// Slots so large.
    ChunkBytes,
    /// So many slots times so large.
    StagingBytes,
}

/// Explains what [`choose`](super::choose) does.
#[must_use]
pub fn explain(work: &Work, situation: &Situation) -> Explanation {
    let decision = choose(work, situation);
    let mut candidates = Vec::new();
    each(work, situation, true, |offer| {
        candidates.push(Candidate {
            choice: offer.choice,
            route: offer.choice.route(),
            predicted: offer.predicted,
            verdict: offer
                .shortage
                .map_or_else(|| verdict(offer.choice, &offer.predicted, &decision), Verdict::NoBudget),
        });
    });
    Explanation { work: *work, situation: *situation, decision, candidates }
}

/// What became of a candidate that the budget has room for.
fn verdict(choice: Choice, predicted: &Prediction, decision: &Decision) -> Verdict {
    let (own_ns, chosen_ns) = (predicted.total_ns, decision.predicted.total_ns);
    if choice == decision.choice {
        return Verdict::Chosen;
    }
    if own_ns < chosen_ns {
        let part = (chosen_ns - own_ns) / chosen_ns;
        return if decision.choice == Choice::DIRECT { Verdict::WithinMargin(part) } else { Verdict::Busier(part) };
    }
    Verdict::SlowerBy(if chosen_ns > 0.0 { (own_ns - chosen_ns) / chosen_ns } else { 0.0 })
}
