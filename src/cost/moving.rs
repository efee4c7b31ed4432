//! Estimates that follow real traffic.

use super::LinkProfile;

/// An estimate of a rate or a time, from samples of which some are bad: a poller that was descheduled sees a thousandth
/// of a rate, or a wire that was faster than there is.
///
/// The estimate goes towards the median of the last nine samples, at each sample by a factor of at most 1.25.
/// The median does not see bad samples as long as they are fewer than half; a mean would see each of them. The bound on
/// the step keeps what is left of a burst small. A real change is followed after half a window, and then by a factor of
/// 1.25^n in n samples.
#[derive(Clone, Debug)]
pub struct Moving {
    estimate: f64,
    window: [f64; WINDOW],
    next: usize,
}

impl Moving {
    /// Believed to be 1.
    pub(super) const ONE: Moving = Moving { estimate: 1.0, window: [1.0; WINDOW], next: 0 };

    /// Starts from what is believed before the first sample, a positive number: it counts as a full window.
    /// Anything else is left for the first sample.
    #[must_use]
    pub fn new(prior: f64) -> Moving {
        Moving { estimate: prior, window: [prior; WINDOW], next: 0 }
    }

    /// Takes one sample. One that is not a positive number is left out.
    pub fn sample(&mut self, value: f64) {
        if !(value.is_finite() && value > 0.0) {
            return;
        }
        if !(self.estimate.is_finite() && self.estimate > 0.0) {
            *self = Moving::new(value);
            return;
        }
        self.window[self.next] = value;
        self.next = (self.next + 1) % WINDOW;
        let mut sorted = self.window;
        sorted.sort_unstable_by(f64::total_cmp);
        self.estimate = sorted[WINDOW / 2].clamp(self.estimate / STEP, self.estimate * STEP);
    }

    /// The estimate.
    #[must_use]
    pub fn value(&self) -> f64 {
        self.estimate
    }
}

/// A link's figures by real traffic. A sample is taken for a figure only if it tells something about that figure: a
/// rate from what kept the link busy for much longer than a round trip, a round trip from what was hardly more than
/// that.
#[derive(Clone, Debug)]
pub struct LinkMeasurements {
    prior: LinkProfile,
    bytes_per_ns: Moving,
    round_trip_ns: Moving,
    operation_ns: Moving,
    chunk_fixed_ns: Moving,
}

impl LinkMeasurements {
    /// Starts from what is believed of the link.
    #[must_use]
    pub fn new(prior: LinkProfile) -> LinkMeasurements {
        LinkMeasurements {
            prior,
            bytes_per_ns: Moving::new(prior.bytes_per_ns),
            round_trip_ns: Moving::new(prior.round_trip_ns),
            operation_ns: Moving::new(prior.operation_ns),
            chunk_fixed_ns: Moving::new(prior.chunk_fixed_ns),
        }
    }

    /// So many bytes in so many operations were under way without a pause, from the first post to the last completion.
    pub fn window(&mut self, bytes: u64, operations: u64, ns: u64) {
        let (bytes, operations, ns) = (bytes as f64, operations as f64, ns as f64);
        // One round trip is in every window, and is no part of the rate.
        let busy_ns = (ns - self.round_trip_ns.value()).max(ns / 2.0);
        let wire_ns = bytes / self.bytes_per_ns.value();
        let posting_ns = operations * self.operation_ns.value();
        let long_ns = LONG_TRIPS * self.round_trip_ns.value();
        if wire_ns >= 2.0 * posting_ns && wire_ns >= long_ns && bytes >= BULK_BYTES {
            self.bytes_per_ns.sample(bytes / busy_ns);
        } else if posting_ns >= 2.0 * wire_ns && posting_ns >= long_ns {
            self.operation_ns.sample(busy_ns / operations);
        }
    }

    /// One operation or message of so many bytes was alone on the link, from posting to completion.
    pub fn single(&mut self, bytes: u64, ns: u64) {
        if bytes <= SINGLE_BYTES {
            self.round_trip_ns.sample(ns as f64);
        }
    }

    /// The sender spent so long on a chunk, besides packing it.
    pub fn chunk(&mut self, ns: u64) {
        self.chunk_fixed_ns.sample(ns as f64);
    }

    /// The link as it is by now. What is not measured is as it was believed.
    #[must_use]
    pub fn profile(&self) -> LinkProfile {
        LinkProfile {
            bytes_per_ns: self.bytes_per_ns.value(),
            round_trip_ns: self.round_trip_ns.value(),
            operation_ns: self.operation_ns.value(),
            chunk_fixed_ns: self.chunk_fixed_ns.value(),
            ..self.prior
        }
    }
}

/// Samples that the median is taken of: four of nine may be bad.
const WINDOW: usize = 9;

/// The largest change by one sample, as a factor.
const STEP: f64 = 1.25;

/// Below this a window's time is more overhead than wire.
const BULK_BYTES: f64 = (256u32 << 10) as f64;

/// Round trips that the link must have been busy for.
const LONG_TRIPS: f64 = 4.0;

/// Up to here a message's bytes take no time beside its round trip.
const SINGLE_BYTES: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Wire;

    /// Within 4 % of 10, in no order.
    fn usual(i: u32) -> f64 {
        10.0 + f64::from(i * 7 % 9) / 10.0 - 0.4
    }

    #[test]
    fn bad_samples_do_not_poison_an_estimate() {
        for bad in [0.01, 0.3, 100.0, 1e4, 1e300, f64::MIN_POSITIVE] {
            // Three of eight, and a burst of four.
            for is_bad in [|i| matches!(i % 8, 1 | 4 | 6), |i| i % 50 < 4] {
                let mut moving = Moving::new(10.0);
                for i in 0..10_000 {
                    moving.sample(if is_bad(i) { bad } else { usual(i) });
                    assert!((moving.value() - 10.0).abs() <= 0.5, "{bad}: {} after {i}", moving.value());
                }
            }
            // More than that, but not for long: one step for each sample too many.
            let mut moving = Moving::new(10.0);
            (0..6).for_each(|_| moving.sample(bad));
            assert!((10.0 / 1.6..=10.0 * 1.6).contains(&moving.value()), "{bad}: {}", moving.value());
        }
    }

    #[test]
    fn what_is_not_a_positive_number_is_no_sample() {
        let mut moving = Moving::new(10.0);
        for _ in 0..100 {
            [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY].into_iter().for_each(|value| moving.sample(value));
        }
        assert_eq!(moving.value(), 10.0);
        for prior in [0.0, f64::NAN, f64::INFINITY, -3.0] {
            let mut moving = Moving::new(prior);
            moving.sample(7.0);
            assert_eq!(moving.value(), 7.0, "{prior}");
        }
    }

    #[test]
    fn a_real_change_is_followed_in_a_bounded_number_of_samples() {
        for (to, samples) in [(20.0, 4 + 4), (5.0, 4 + 4), (1000.0, 4 + 21), (0.1, 4 + 21)] {
            let mut moving = Moving::new(10.0);
            (0..samples).for_each(|_| moving.sample(to));
            assert!((moving.value() / to - 1.0).abs() < 1e-9, "{to}: {} after {samples}", moving.value());
        }
    }

    fn link() -> LinkProfile {
        LinkProfile {
            bytes_per_ns: 10.0,
            round_trip_ns: 5000.0,
            operation_ns: 100.0,
            doorbell_ns: 100.0,
            completion_ns: 100.0,
            queue_depth: 128,
            max_sge: 1,
            control_ns: 1000.0,
            chunk_fixed_ns: 1000.0,
            wire: Wire::Nic,
        }
    }

    #[test]
    fn only_samples_that_tell_something_are_taken() {
        let mut measured = LinkMeasurements::new(link());
        for _ in 0..100 {
            // Few bytes, or a window that is hardly more than its round trip, or neither bytes nor operations alone.
            measured.window(64 << 10, 1, 1_000_000);
            measured.window(100_000, 1, 900_000);
            measured.window(10_000, 100, 1_000_000);
            measured.window(1_000_000, 1000, 5_000_000);
            measured.window(0, 0, 0);
            // A long message.
            measured.single(1 << 20, 900_000);
        }
        assert_eq!(measured.profile(), link());
    }

    #[test]
    fn a_link_s_figures_follow_its_traffic() {
        let mut measured = LinkMeasurements::new(link());
        for _ in 0..30 {
            measured.single(64, 10_000);
            measured.chunk(700);
        }
        for _ in 0..30 {
            // 5 B/ns and 250 ns an operation, behind a round trip.
            measured.window(10_000_000, 20, 2_000_000 + 10_000);
            measured.window(64_000, 1000, 250_000 + 10_000);
        }
        let expected = LinkProfile {
            bytes_per_ns: 5.0,
            round_trip_ns: 10_000.0,
            operation_ns: 250.0,
            chunk_fixed_ns: 700.0,
            ..link()
        };
        assert_eq!(measured.profile(), expected);
    }
}
