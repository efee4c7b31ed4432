//! How right predictions were.

/// Predicted and measured times: the last 64.
#[derive(Clone, Debug)]
pub struct Accuracy {
    /// Measured by predicted.
    ratios: [f64; KEPT],
    recorded: u64,
}

impl Default for Accuracy {
    fn default() -> Accuracy {
        Accuracy { ratios: [1.0; KEPT], recorded: 0 }
    }
}

impl Accuracy {
    /// None yet.
    #[must_use]
    pub fn new() -> Accuracy {
        Accuracy::default()
    }

    /// Takes a predicted and a measured time. Left out if one of them is not a positive number.
    pub fn record(&mut self, predicted_ns: f64, measured_ns: f64) {
        let ratio = measured_ns / predicted_ns;
        if ratio.is_finite() && ratio > 0.0 {
            self.ratios[(self.recorded % KEPT as u64) as usize] = ratio;
            self.recorded += 1;
        }
    }

    /// Pairs that were taken, also those that are not kept any more.
    #[must_use]
    pub fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Measured by predicted, the median; above 1 if transfers take longer than predicted. `None` before the first.
    #[must_use]
    pub fn median_ratio(&self) -> Option<f64> {
        let mut sorted = self.ratios;
        let kept = &mut sorted[..self.kept()];
        kept.sort_unstable_by(f64::total_cmp);
        kept.get(kept.len() / 2).copied()
    }

    /// The ratio that is farthest from 1, as a factor: 0.5 is as far as 2. `None` before the first.
    #[must_use]
    pub fn worst_ratio(&self) -> Option<f64> {
        let farness = |ratio: f64| ratio.max(1.0 / ratio);
        self.ratios[..self.kept()].iter().copied().max_by(|a, b| farness(*a).total_cmp(&farness(*b)))
    }

    fn kept(&self) -> usize {
        self.recorded.min(KEPT as u64) as usize
    }
}

/// Pairs that are kept.
const KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_the_worst_are_of_the_last_64() {
        let mut accuracy = Accuracy::new();
        assert_eq!((accuracy.median_ratio(), accuracy.worst_ratio()), (None, None));
        accuracy.record(100.0, 25.0);
        assert_eq!((accuracy.median_ratio(), accuracy.worst_ratio()), (Some(0.25), Some(0.25)));
        (0..40).for_each(|_| accuracy.record(100.0, 110.0));
        accuracy.record(100.0, 300.0);
        assert_eq!((accuracy.median_ratio(), accuracy.worst_ratio()), (Some(1.1), Some(0.25)));
        (0..22).for_each(|_| accuracy.record(100.0, 110.0));
        assert_eq!(accuracy.worst_ratio(), Some(0.25));
        accuracy.record(100.0, 110.0);
        assert_eq!((accuracy.recorded(), accuracy.worst_ratio()), (65, Some(3.0)));
    }

    #[test]
    fn what_is_no_ratio_is_left_out() {
        let mut accuracy = Accuracy::new();
        for (predicted, measured) in [(0.0, 1.0), (1.0, 0.0), (f64::NAN, 1.0), (1.0, f64::INFINITY), (-1.0, 1.0)] {
            accuracy.record(predicted, measured);
        }
        assert_eq!((accuracy.recorded(), accuracy.median_ratio()), (0, None));
    }
}
