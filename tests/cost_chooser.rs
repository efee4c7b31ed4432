//! Decisions that are kept: when they are used again, and when they are left.

mod seeded;
mod situations;

use scatter_ring::cost::{
    Budget, Choice, Chooser, Class, Decision, Direction, Geometry, Route, Situation, Work, choose, predict,
};
use situations::{any_situation, any_work, plain, reference, rows, work};

#[test]
fn equal_geometry_is_decided_once() {
    let mut chooser = Chooser::new();
    let first = chooser.choose(&work(&[rows(98_304, 264)]), &reference());
    assert_eq!(first, choose(&work(&[rows(98_304, 264)]), &reference()));
    // A layer of a few rows more or less is the same geometry, and predicted for itself.
    for count in [98_304, 98_305, 98_400, 99_000] {
        let rows = work(&[rows(count, 264)]);
        let again = chooser.choose(&rows, &reference());
        assert_eq!(again.choice, first.choice);
        assert_eq!(again.predicted, predict(&rows, &reference(), first.choice));
    }
    assert_eq!((chooser.counts().asked, chooser.counts().hits), (5, 4));
}

#[test]
fn other_work_is_decided_by_itself() {
    let mut chooser = Chooser::new();
    let read = reference();
    let works = [[rows(98_304, 264)], [rows(49_152, 264)], [rows(98_304, 132)], [rows(64, 512 << 10)]];
    for direction in [Direction::Read, Direction::Write] {
        let situation = Situation { direction, ..read };
        for classes in &works {
            assert_eq!(chooser.choose(&work(classes), &situation), choose(&work(classes), &situation));
        }
    }
    let less = Situation { budget: Budget { slots_max: 1, ..read.budget }, ..read };
    assert!(chooser.choose(&work(&works[0]), &less).choice.slots <= 1);
    assert_eq!(chooser.counts().hits, 0);
    // Both directions are remembered.
    for direction in [Direction::Read, Direction::Write] {
        chooser.choose(&work(&works[1]), &Situation { direction, ..read });
    }
    assert_eq!(chooser.counts().hits, 2);
}

/// Every figure times something within 3 % of 1.
fn noisy(situation: &Situation, random: &mut seeded::Random) -> Situation {
    let mut about = |value: &mut f64| *value *= 0.97 + random.below(6001) as f64 / 1e5;
    let mut noisy = *situation;
    let Situation { link, requester, owner, .. } = &mut noisy;
    let links = [&mut link.bytes_per_ns, &mut link.round_trip_ns, &mut link.operation_ns, &mut link.control_ns];
    links.into_iter().for_each(&mut about);
    for copies in [requester, owner] {
        [&mut copies.bytes_per_ns, &mut copies.piece_ns].into_iter().for_each(&mut about);
    }
    noisy
}

/// A count of rows at which both routes take about the same time.
fn crossing(situation: &Situation) -> u64 {
    let gathers = |count: &u64| choose(&work(&[rows(*count, 264)]), situation).choice.route() == Route::Gather;
    let least = (1..4096).find(gathers);
    least.expect("gathering pays somewhere")
}

#[test]
fn a_choice_does_not_flap_under_noise() {
    let mut without = 0;
    seeded::cases(50, |random| {
        let count = crossing(&reference());
        let rows = work(&[rows(count, 264)]);
        let mut chooser = Chooser::new();
        let (mut changes, mut flaps) = (0, 0);
        let first = chooser.choose(&rows, &reference()).choice.route();
        let (mut kept, mut fresh) = (first, first);
        for _ in 0..200 {
            let situation = noisy(&reference(), random);
            let now = chooser.choose(&rows, &situation).choice.route();
            changes += u32::from(now != kept);
            kept = now;
            let now = choose(&rows, &situation).choice.route();
            flaps += u32::from(now != fresh);
            fresh = now;
        }
        assert!(changes <= 1, "{changes} changes");
        without += flaps;
    });
    assert!(without > 50, "without a chooser there is no flapping to be prevented: {without}");
}

#[test]
fn an_earlier_route_stays_within_the_margin() {
    // Packing by one worker takes longer than the bytes, so that cheap operations can win by any factor.
    let (rows, mut usual) = (work(&[rows(98_304, 64)]), plain());
    usual.owner.workers = 1;
    let mut chooser = Chooser::new();
    let gathered = chooser.choose(&rows, &usual);
    assert_eq!(gathered.choice.route(), Route::Gather);
    // The price of an operation, at which the direct route is so many times as fast as gathering at its usual price.
    let faster = |times: f64| {
        let mut situation = usual;
        situation.link.operation_ns = (gathered.predicted.total_ns / times - 2000.0) / 98_304.0;
        situation
    };
    // Where the two are nearly as good, gathering a little better or a little worse.
    let between = |low: f64, high: f64| {
        let is_between = |situation: &Situation| {
            let decision = choose(&rows, situation);
            decision.gather_ns.is_some_and(|ns| (low..high).contains(&(ns / decision.direct_ns)))
        };
        let steps = (0..400).map(|step| faster(0.8 + f64::from(step) / 1000.0));
        steps.into_iter().find(is_between).expect("a price between")
    };
    let (better, worse) = (between(0.96, 0.99), between(1.01, 1.04));
    assert_eq!(choose(&rows, &worse).choice, Choice::DIRECT);
    assert_eq!(chooser.choose(&rows, &worse).choice.route(), Route::Gather);
    assert_eq!(chooser.choose(&rows, &faster(1.5)).choice, Choice::DIRECT);
    assert_eq!(chooser.choose(&rows, &better).choice, Choice::DIRECT);
    assert_eq!(chooser.counts().hits, 0);
    assert_eq!(chooser.choose(&rows, &usual).choice.route(), Route::Gather);
}

#[test]
fn a_choice_is_left_when_another_is_clearly_better() {
    let mut chooser = Chooser::new();
    let rows = work(&[rows(98_304, 264)]);
    assert_eq!(chooser.choose(&rows, &plain()).choice.route(), Route::Gather);
    // Operations cost nothing any more, and copies much.
    let mut turned = plain();
    turned.link.operation_ns = 1.0;
    turned.owner.bytes_per_ns = 0.5;
    assert_eq!(chooser.choose(&rows, &turned).choice, Choice::DIRECT);
    assert_eq!(chooser.choose(&rows, &plain()).choice.route(), Route::Gather);
    assert_eq!((chooser.counts().hits, chooser.counts().stayed), (0, 0));
}

#[test]
fn a_small_change_is_no_reason_to_compare_again() {
    let mut chooser = Chooser::new();
    let rows = work(&[rows(98_304, 264)]);
    chooser.choose(&rows, &plain());
    let mut drifted = plain();
    drifted.link.bytes_per_ns *= 1.02;
    chooser.choose(&rows, &drifted);
    assert_eq!(chooser.counts().hits, 1);
    // Slow drift adds up: it is compared with what the decision was made for.
    drifted.link.bytes_per_ns *= 1.02;
    chooser.choose(&rows, &drifted);
    assert_eq!((chooser.counts().hits, chooser.counts().stayed), (1, 1));
}

#[test]
fn a_kept_choice_is_near_the_best_and_within_the_budget() {
    seeded::cases(300, |random| {
        let (mut chooser, mut situation) = (Chooser::new(), any_situation(random));
        let kinds: Vec<_> = (0..4).map(|_| any_work(random)).collect();
        for _ in 0..50 {
            if random.once_in(10) {
                situation = noisy(&situation, random);
            }
            let work = random.pick(&kinds);
            let decision = chooser.choose(&work, &situation);
            let best = choose(&work, &situation);
            // Two margins, and what figures may change before they are looked at.
            let limit = best.predicted.total_ns * 1.05 * 1.05 * 1.07;
            assert!(decision.predicted.total_ns <= limit, "{decision:?} {best:?}");
            let Choice { chunk_bytes, slots, .. } = decision.choice;
            assert!(slots <= situation.budget.slots_max && chunk_bytes <= situation.budget.chunk_bytes_max);
        }
    });
}

/// Decides again and again, where each route takes so many times as long as predicted. The choices in turn.
fn batches(
    chooser: &mut Chooser,
    work: &Work,
    situation: &Situation,
    count: u32,
    times: impl Fn(u32, Route) -> f64,
) -> Vec<Choice> {
    let geometry = Geometry::of(work, situation.direction);
    let mut one = |batch| {
        let decision = chooser.choose(work, situation);
        let measured_ns = decision.predicted.total_ns * times(batch, decision.choice.route());
        chooser.measured(geometry, &decision, measured_ns);
        decision.choice
    };
    (0..count).map(&mut one).collect()
}

/// Where gathering is predicted to be hardly better than the direct route.
fn nearly_equal() -> Work {
    work(&[rows(crossing(&reference()), 264)])
}

#[test]
fn a_route_that_takes_longer_than_the_other_is_left_for_it() {
    let (work, mut chooser) = (nearly_equal(), Chooser::new());
    let slow_gather = |_, route| if route == Route::Direct { 1.0 } else { 1.2 };
    let choices = batches(&mut chooser, &work, &reference(), 20, slow_gather);
    assert_eq!(choices[0].route(), Route::Gather);
    assert!(choices[8..].iter().all(|choice| *choice == Choice::DIRECT), "{choices:?}");
    // The other way round: gathering was never tried, and is predicted to be worse by less than predictions may be wrong.
    let (count, mut chooser) = (crossing(&reference()) - 1, Chooser::new());
    let fast_gather = |_, route| if route == Route::Direct { 1.0 } else { 0.75 };
    let choices = batches(&mut chooser, &self::work(&[rows(count, 264)]), &reference(), 20, fast_gather);
    assert_eq!(choices[0], Choice::DIRECT);
    assert!(choices[8..].iter().all(|choice| choice.route() == Route::Gather), "{choices:?}");
}

#[test]
fn trying_ends_and_what_cannot_be_the_best_is_not_tried() {
    seeded::cases(300, |random| {
        let (work, situation, mut chooser) = (any_work(random), any_situation(random), Chooser::new());
        let best_ns = choose(&work, &situation).predicted.total_ns;
        let choices = batches(&mut chooser, &work, &situation, 40, |_, _| 1.0);
        for choice in &choices {
            let ns = predict(&work, &situation, *choice).total_ns;
            assert!(ns <= best_ns / 0.8, "{ns} of {choice:?} for {best_ns}");
        }
        // Six are looked at, each twice at the most.
        assert!(choices[12..].iter().all(|choice| *choice == choices[12]), "{choices:?}");
        assert!(predict(&work, &situation, choices[12]).total_ns <= best_ns * 1.05 * 1.05);
    });
}

/// A hint of a client's is believed as far as planning goes, and can be anything.
#[test]
fn work_that_cannot_be_counted_is_decided_like_any_other() {
    seeded::cases(300, |random| {
        let mut any = || random.pick(&[1, 1000, 1 << 40, u64::MAX / 2, u64::MAX - 1, u64::MAX]);
        let classes: [_; 6] = std::array::from_fn(|_| Class {
            fragments: any(),
            segments: any(),
            src_pieces: any(),
            dst_pieces: any(),
            bytes: any(),
        });
        let (work, situation) = (work(&classes), any_situation(random));
        batches(&mut Chooser::new(), &work, &situation, 80, |_, _| 1.0);
    });
}

#[test]
fn bad_measurements_do_not_change_a_choice_for_good() {
    // Gathering is several times as fast as the direct route, and there is one size of chunks. Whichever batch is held up,
    // alone or with every eighth after it.
    let (rows, mut plain) = (work(&[rows(98_304, 264)]), plain());
    plain.budget.chunk_bytes_max = 16 << 10;
    let best = choose(&rows, &plain);
    assert!(best.predicted.total_ns * 1.5 < best.direct_ns);
    for bad in 0..16 {
        for every in [8, 100] {
            let held_up = |batch: u32, _| if batch >= bad && (batch - bad).is_multiple_of(every) { 50.0 } else { 1.0 };
            let choices = batches(&mut Chooser::new(), &rows, &plain, 60, held_up);
            assert!(choices[24..].iter().all(|choice| *choice == best.choice), "{bad} {every}: {choices:?}");
        }
    }
}

#[test]
fn another_situation_forgets_what_was_measured_in_proportion() {
    let work = nearly_equal();
    let learned = || {
        let mut chooser = Chooser::new();
        batches(&mut chooser, &work, &reference(), 12, |_, route| if route == Route::Direct { 1.0 } else { 1.4 });
        chooser
    };
    let with_trips = |times: f64| {
        let mut situation = reference();
        situation.link.round_trip_ns *= times;
        situation.link.operation_ns *= times;
        situation
    };
    // Five percent change little: what was left is not tried again.
    let near = with_trips(1.05);
    assert_eq!(choose(&work, &near).choice.route(), Route::Gather);
    let gathers = |choices: &[Choice]| choices.iter().filter(|choice| choice.route() == Route::Gather).count();
    let slow_gather = |_, route| if route == Route::Direct { 1.0 } else { 1.4 };
    assert_eq!(gathers(&batches(&mut learned(), &work, &near, 10, slow_gather)), 0);
    // Nobody knows what it is like on a link that is twice as far.
    assert_eq!(learned().choose(&work, &with_trips(2.0)).choice.route(), Route::Gather);
}

#[test]
fn what_is_no_measurement_changes_nothing() {
    let (work, mut chooser) = (nearly_equal(), Chooser::new());
    let geometry = Geometry::of(&work, Direction::Read);
    let first = chooser.choose(&work, &reference());
    for ns in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        chooser.measured(geometry, &first, ns);
    }
    let never = Decision { choice: Choice { chunk_bytes: 12_345, ..first.choice }, ..first };
    chooser.measured(geometry, &never, 1e12);
    chooser.measured(Geometry::of(&work, Direction::Write), &first, 1e12);
    assert_eq!(chooser.choose(&work, &reference()), first);
}
