//! A decision allocates nothing: the poller takes one for each batch.

mod counting;
mod seeded;
mod situations;

use scatter_ring::cost::{Accuracy, Chooser, Geometry, LinkMeasurements, choose};
use situations::{any_situation, any_work};

#[test]
fn a_decision_and_a_measurement_allocate_nothing() {
    let mut chooser = Chooser::new();
    let mut accuracy = Accuracy::new();
    seeded::cases(500, |random| {
        let (work, mut situation) = (any_work(random), any_situation(random));
        let mut measured = LinkMeasurements::new(situation.link);
        let before = counting::own_allocations();
        for ns in [900u32, 40_000, 3_000_000] {
            let decision = chooser.choose(&work, &situation);
            chooser.measured(Geometry::of(&work, situation.direction), &decision, f64::from(ns));
            accuracy.record(decision.predicted.total_ns, choose(&work, &situation).direct_ns);
            measured.window(1 << 20, 4, ns.into());
            measured.window(64_000, 1000, ns.into());
            measured.single(64, ns.into());
            measured.chunk(ns.into());
            situation.link = measured.profile();
            assert!(accuracy.median_ratio().is_some() && accuracy.worst_ratio().is_some());
        }
        assert_eq!(counting::own_allocations() - before, 0);
    });
}
