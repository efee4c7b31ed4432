//! What the choices for one geometry really took.

use super::choose::{Ranked, beats, neighbors};
use super::{Choice, Moving, Situation, Work, predict};

/// The choices that are looked at for one geometry: the best of each route by prediction, and sizes of chunks beside the one
/// in use. A prediction cannot be right where two choices look equal and are not; how long each really took decides.
#[derive(Clone, Debug)]
pub struct Tries {
    tries: [Try; TRIES],
    count: usize,
    /// The one in use.
    current: usize,
    /// Decisions that hoped.
    hopes: u32,
    /// Decisions so far.
    settled: u32,
}

/// A choice, and how long it took.
#[derive(Clone, Debug)]
struct Try {
    choice: Choice,
    samples: u32,
    /// Measured by predicted.
    ratio: Moving,
}

impl Tries {
    /// Nothing was measured yet.
    pub fn of(ranked: &Ranked) -> Tries {
        let mut tries = Tries { tries: [const { Try::NONE }; TRIES], count: 0, current: 0, hopes: 0, settled: 0 };
        ranked.of_routes.iter().flatten().for_each(|choice| tries.add(*choice));
        tries.current = tries.position(ranked.decision.choice).unwrap_or(0);
        tries
    }

    /// The one in use.
    pub fn choice(&self) -> Choice {
        self.tries[self.current].choice
    }

    /// A choice took so many times as long as predicted.
    pub fn sample(&mut self, choice: Choice, ratio: f64) {
        if let Some(at) = self.position(choice) {
            self.tries[at].sample(ratio);
        }
    }

    /// Goes over to another choice if that is expected to be shorter by the margin. One that was not tried is expected to take
    /// as much less as its prediction may be wrong, and one that was tried once no more than predicted: so each that could be
    /// the best is tried, and no single bad measurement rules one out. That ends after [`HOPES`] decisions: from there on only
    /// what was measured counts. More and more seldom it is hoped once more: what was measured in a bad moment, or when
    /// everything was cold, is not to count for ever.
    pub fn settle(&mut self, work: &Work, situation: &Situation) {
        self.settled = self.settled.saturating_add(1);
        if self.settled >= RENEWED && self.settled.is_power_of_two() {
            self.hopes = HOPES - 1;
            let others = (0..self.count).filter(|at| *at != self.current);
            others.for_each(|at| self.tries[at].samples = self.tries[at].samples.min(1));
        }
        let current = &self.tries[self.current];
        let measured = current.samples > 0;
        let hopes = measured && self.hopes < HOPES;
        let predicted_ns = |one: &Try| predict(work, situation, one.choice).total_ns;
        let expected_ns = |one: &Try| predicted_ns(one) * one.ratio.value();
        let current_ns = expected_ns(current);
        // Sizes beside one that is not the best are not looked at, nor chunks that would not be filled.
        let measured_others = self.tries[..self.count].iter().filter(|one| one.samples > 0);
        if hopes && measured_others.map(expected_ns).all(|ns| ns >= current_ns) {
            let choice = current.choice;
            let gathered_bytes = work.split(choice.direct_from_bytes).0.bytes;
            neighbors(choice, &situation.budget)
                .filter(|other| u64::from(other.chunk_bytes) < gathered_bytes.saturating_mul(2))
                .for_each(|other| self.add(other));
        }
        let hoped_ns = |one: &Try| if hopes { predicted_ns(one) * one.hoped() } else { expected_ns(one) };
        let counts = |at: &usize| *at != self.current && (hopes || !measured || self.tries[*at].samples > 0);
        let others = (0..self.count).filter(counts).map(|at| (at, hoped_ns(&self.tries[at])));
        let best = others.min_by(|(_, a), (_, b)| a.total_cmp(b));
        if let Some((at, _)) = best.filter(|(_, ns)| beats(*ns, current_ns)) {
            self.current = at;
        }
        self.hopes += u32::from(hopes);
    }

    /// Takes over what was measured in another situation, as far as that still says something: the more a prediction has
    /// changed, the less. `before` is `None` if nobody knows that situation any more. The choice in use stays.
    pub fn inherit(&mut self, earlier: &Tries, work: &Work, before: Option<&Situation>, situation: &Situation) {
        self.add(earlier.choice());
        self.current = self.position(earlier.choice()).unwrap_or(self.current);
        let Some(before) = before else { return };
        for one in &mut self.tries[..self.count] {
            let Some(at) = earlier.position(one.choice) else { continue };
            let times = predict(work, situation, one.choice).total_ns / predict(work, before, one.choice).total_ns;
            let kept = 1.0 - ((times.max(1.0 / times) - 1.0) / FORGOTTEN).min(1.0);
            // What is not a number keeps nothing.
            if kept > 0.0 {
                let known = &earlier.tries[at];
                let samples = if kept < 0.5 { known.samples.min(1) } else { known.samples };
                let ratio = 1.0 + (known.ratio.value() - 1.0) * kept;
                if at == earlier.current && kept >= 0.5 {
                    self.hopes = earlier.hopes;
                }
                *one = Try { choice: one.choice, samples, ratio: Moving::new(ratio) };
            }
        }
    }

    fn position(&self, choice: Choice) -> Option<usize> {
        self.tries[..self.count].iter().position(|one| one.choice == choice)
    }

    fn add(&mut self, choice: Choice) {
        if self.count < TRIES && self.position(choice).is_none() {
            self.tries[self.count] = Try { choice, ..Try::NONE };
            self.count += 1;
        }
    }
}

impl Try {
    const NONE: Try = Try { choice: Choice::DIRECT, samples: 0, ratio: Moving::ONE };

    fn sample(&mut self, ratio: f64) {
        if !(ratio.is_finite() && ratio > 0.0) {
            return;
        }
        let ratio = ratio.clamp(1.0 / RATIO_MAX, RATIO_MAX);
        match self.samples {
            0 => self.ratio = Moving::new(ratio),
            // Much makes one transfer slower than others, and next to nothing makes it faster.
            1 => self.ratio = Moving::new(ratio.min(self.ratio.value())),
            _ => self.ratio.sample(ratio),
        }
        self.samples = self.samples.saturating_add(1);
    }

    /// The least ratio that it may turn out to have.
    fn hoped(&self) -> f64 {
        match self.samples {
            0 => 1.0 - WRONG,
            1 => self.ratio.value().min(1.0),
            _ => self.ratio.value(),
        }
    }
}

/// Choices that are looked at for one geometry.
const TRIES: usize = 6;

/// Enough for five others and for two that were held up; the eighth measurement decides.
const HOPES: u32 = 7;

/// After so many decisions one more hopes, and after twice as many the next.
const RENEWED: u32 = 32;

/// The part by which a prediction may be wrong: its figures are.
const WRONG: f64 = 0.2;

/// A prediction that has changed by this part says that nothing is as it was measured.
const FORGOTTEN: f64 = 0.5;

/// What takes longer by more was not the transfer.
const RATIO_MAX: f64 = 1000.0;
