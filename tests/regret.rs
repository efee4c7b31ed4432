//! How far the planner's choices are from the best ones, in the simulator.
//!
//! In release every cell of the matrix on every profile; in debug some of the small ones. One planner knows the right
//! figures, and its first choice counts. Two others learn from 8 batches of each kind, one of them with figures that
//! are wrong by up to 20 %.

use scatter_ring::cost::Direction;
use scatter_ring::sim::matrix::{Cell, Mix};
use scatter_ring::sim::profiles;
use scatter_ring::sim::regret::{Regret, Trial, compare, summarize};
use std::sync::OnceLock;

const RIGHT: Trial = Trial { noise_percent: 0, batches: 0 };
const LEARNED: Trial = Trial { noise_percent: 0, batches: 8 };
const WRONG: Trial = Trial { noise_percent: 20, batches: 8 };

/// The cells whose first choice is farther than 10 % from the best, and how far it may be.
///
/// Their payloads are small, and a chunk more than there are slots, or a share of two processors, decides. The model
/// has neither the order in which waiting chunks get a processor nor that in which the owner's poller takes commands
/// and completions.
const FAR: &[(&str, Direction, &str, f64)] = &[
    // Nine chunks on eight slots: the ninth waits for a whole turn, which page walks make longer than predicted.
    ("ib-400g", Direction::Read, "1024x264-random", 0.19),
    // Eleven, and seven: unpacking waits behind packing for one of two processors, and slots with it.
    ("tcp-loopback", Direction::Read, "1024x1024-fragmented", 0.16),
    ("tcp-loopback", Direction::Read, "4096x128-random", 0.16),
    ("tcp-loopback", Direction::Write, "4096x128-fragmented", 0.13),
    ("soft-roce", Direction::Read, "1024x264-fragmented", 0.13),
    // Chunks of small rows take both processors far longer than others of the same bytes, and the last ones come late.
    ("soft-roce", Direction::Write, "98304x64+64x524288-random", 0.13),
    ("soft-roce", Direction::Write, "131072x64+64x524288-random", 0.14),
];

/// All of them takes minutes: `SCATTER_RING_ALL_CELLS=1 cargo test --release --test regret`.
fn cells() -> Vec<Cell> {
    let mut cells = Cell::matrix();
    if cfg!(debug_assertions) {
        cells.retain(|cell| cell.fragments() <= 5000 && cell.bytes() <= 4 << 20);
    } else if std::env::var_os("SCATTER_RING_ALL_CELLS").is_some() {
        return cells;
    }
    // No divisor of the cells of a geometry, so that all sizes and mixes occur.
    cells.into_iter().step_by(5).collect()
}

/// Of all three planners. Every best choice is looked for once.
fn regrets() -> &'static [Vec<Regret>] {
    static REGRETS: OnceLock<Vec<Vec<Regret>>> = OnceLock::new();
    REGRETS.get_or_init(|| {
        let cells = cells();
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let found = compare(&cells, profiles::all(), &[RIGHT, LEARNED, WRONG], 1, threads, &|| ());
        found.iter().for_each(|regrets| assert_eq!(regrets.len(), cells.len() * profiles::all().len()));
        found
    })
}

fn of_right_figures() -> &'static [Regret] {
    &regrets()[0]
}

fn print(regrets: &[Regret], what: &str) {
    for summary in summarize(regrets) {
        println!(
            "{what}, {:<14} {:>4} cells, median {:.4}, p95 {:.4}, worst {:.4}, few large over direct {:.4}",
            summary.profile,
            summary.cells,
            summary.median,
            summary.p95,
            summary.worst.regret(),
            summary.few_large
        );
    }
}

/// Prints each that is beyond its limit, and says how many those are.
fn beyond(regrets: &[Regret], what: &str, limit: impl Fn(&Regret) -> f64, part: impl Fn(&Regret) -> f64) -> usize {
    let beyond = regrets.iter().filter(|regret| part(regret) > limit(regret));
    let print = |regret: &Regret| {
        let Regret { cell, profile, chosen, chosen_ns, first_ns, best, best_ns, direct_ns } = regret;
        println!("{what} {:.4} on {profile}: {:?} {}", part(regret), cell.direction, cell.name);
        println!("    chosen {chosen_ns} ns {chosen:?}, at first {first_ns} ns");
        println!("    best   {best_ns} ns {best:?}");
        println!("    direct {direct_ns} ns");
    };
    beyond.inspect(|regret| print(regret)).count()
}

#[test]
fn every_choice_is_near_the_best_and_the_median_nearer() {
    let regrets = of_right_figures();
    print(regrets, "right figures");
    let listed = |regret: &Regret| {
        let is = |far: &&(&str, Direction, &str, f64)| {
            (far.0, far.1, far.2) == (regret.profile, regret.cell.direction, &*regret.cell.name)
        };
        FAR.iter().find(is).map(|far| far.3)
    };
    assert_eq!(beyond(regrets, "regret", |regret| listed(regret).unwrap_or(0.10), Regret::regret), 0);
    // What is not far any more is not to be listed.
    for regret in regrets.iter().filter(|regret| listed(regret).is_some()) {
        assert!(regret.regret() > 0.10, "{} {} is near the best", regret.profile, regret.cell.name);
    }
    for summary in summarize(regrets) {
        assert!(summary.median <= 0.03, "{}: the median is {:.4}", summary.profile, summary.median);
    }
}

#[test]
fn few_large_pieces_travel_as_well_as_by_the_direct_route() {
    let of_few = |regret: &&Regret| regret.cell.mix == Mix::FewLarge;
    let regrets: Vec<Regret> = of_right_figures().iter().filter(of_few).cloned().collect();
    assert!(regrets.len() >= profiles::all().len(), "a cell of each profile");
    assert_eq!(beyond(&regrets, "over direct", |_| 0.05, Regret::over_direct), 0);
}

/// Also of those that are listed above. Hiccups fall into some of the few measurements of short transfers, and lead one
/// of them (tcp-loopback READ 1024x512-fragmented, 11.3 %) a little beyond 10 %.
#[test]
fn with_right_figures_every_choice_is_near_the_best_after_eight_batches() {
    let learned = &regrets()[1];
    print(learned, "right figures, learned");
    assert_eq!(beyond(learned, "regret", |_| 0.12, Regret::regret), 0);
    let far = learned.iter().filter(|regret| regret.regret() > 0.10).count();
    assert!(far <= 1, "{far} of {} are more than 10 % from the best", learned.len());
}

#[test]
fn with_wrong_figures_every_choice_is_near_the_best_after_eight_batches() {
    let learned = &regrets()[2];
    print(learned, "wrong figures");
    let at_first = learned.iter().filter(|regret| regret.first_regret() > 0.15).count();
    println!("{at_first} of {} were more than 15 % from the best before the first measurement", learned.len());
    assert_eq!(beyond(learned, "regret", |_| 0.15, Regret::regret), 0);
}
