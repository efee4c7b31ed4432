//! How fast the engines are, and how that depends on what is asked for.

use super::place::{Place, settings};
use super::work::{How, ROW_BYTES, W1, W3, W4, W5, Work};
use super::{Effort, quantile};
use scatter_ring::engine::PeerSettings;

/// Rounds of each comparison. All that is compared is run once a round at least.
const ROUNDS: usize = 9;

/// Runs each so often a round, one after the other.
fn in_turn(place: &mut Place, works: &mut [(Work, usize)], effort: Effort, rounds: usize) {
    for _ in 0..effort.times(rounds) {
        for (work, runs) in &mut *works {
            work.round(&mut place.client, effort.times(*runs));
        }
    }
}

fn with_commas(number: u32) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Time a fragment, by how many there are, against that of 131,072 which are described alike; and of single rows, against
/// that of as many in one descriptor.
pub fn linear(effort: Effort) {
    const SIZES: [(u32, usize); 4] = [(1024, 16), (32_768, 4), (131_072, 2), (1 << 20, 1)];
    const SINGLES: [(u32, usize); 2] = [(1024, 16), (131_072, 2)];
    let mut place = Place::new(&settings());
    for writes in [false, true] {
        let mut work = |(count, runs): (u32, usize), are_single| {
            let how = How { writes, are_single, route: 0 };
            (Work::new(&mut place, &[(count, ROW_BYTES)], how).verified(&mut place), runs)
        };
        let mut works: Vec<_> = SIZES.iter().map(|size| work(*size, false)).collect();
        works.extend(SINGLES.iter().map(|size| work(*size, true)));
        in_turn(&mut place, &mut works, effort, ROUNDS);
        let per_fragment = |i: usize| works[i].0.ns_per_fragment();
        for (i, (count, _)) in SIZES.into_iter().enumerate() {
            let remark = format!("{:.2} x that of 131,072", per_fragment(i) / per_fragment(2));
            works[i].0.print(&format!("{} rows, one descriptor", with_commas(count)), &remark);
        }
        for (i, (count, _)) in SINGLES.into_iter().enumerate() {
            let (single, indexed) = (&works[SIZES.len() + i].0, &works[2 * i].0);
            let remark = format!("{:.2} x that of one descriptor", single.ratio_to(indexed));
            single.print(&format!("{} rows, as many descriptors", with_commas(count)), &remark);
        }
    }
}

/// The same bytes in more and more pieces.
pub fn pieces(effort: Effort) {
    const BYTES: u32 = 131_072 * ROW_BYTES;
    let mut place = Place::new(&settings());
    let counts = [1, 4096, 131_072];
    let mut work = |count| Work::new(&mut place, &[(count, BYTES / count)], How::read()).verified(&mut place);
    let mut works = counts.map(|count| (work(count), 1));
    in_turn(&mut place, &mut works, effort, 4 * ROUNDS);
    for (count, (work, _)) in counts.into_iter().zip(&works) {
        work.print(&format!("{} pieces of {} B", with_commas(count), with_commas(BYTES / count)), "");
    }
    let by_speed = |a: &&(Work, usize), b: &&(Work, usize)| a.0.p50_us().total_cmp(&b.0.p50_us());
    if let (Some((best, _)), Some((worst, _))) = (works.iter().min_by(by_speed), works.iter().max_by(by_speed)) {
        println!("  goodput of the worst: {:.2} of the best", best.ratio_to(worst));
    }
}

/// What the engine chooses, against what it can be told to do.
pub fn routes(effort: Effort) {
    let mut place = Place::new(&settings());
    let cases = [
        ("W3, its own choice", W3, How::read()),
        ("W3, direct", W3, How::forced_direct()),
        ("W3, gather", W3, How::forced_gather()),
        ("W4, its own choice", W4, How::read()),
        ("W4, direct", W4, How::forced_direct()),
    ];
    let mut works = Vec::new();
    for (_, groups, how) in cases {
        works.push((Work::new(&mut place, groups, how).verified(&mut place), 1));
    }
    in_turn(&mut place, &mut works, effort, 4 * ROUNDS);
    for ((name, ..), (work, _)) in cases.iter().zip(&works) {
        work.print(name, "");
    }
    let (direct, gather) = (&works[1].0, &works[2].0);
    let better = if direct.p50_us() < gather.p50_us() { direct } else { gather };
    println!("  W3: its own choice takes {:.2} x the better of the others", works[0].0.ratio_to(better));
    println!("  W4: its own choice takes {:.2} x direct", works[3].0.ratio_to(&works[4].0));
}

/// How even the times are.
pub fn spread(effort: Effort) {
    const RUNS: usize = 200;
    let mut place = Place::new(&settings());
    for (name, groups) in [("W1", W1), ("W5", W5)] {
        let mut works = [(Work::new(&mut place, groups, How::read()).verified(&mut place), RUNS)];
        in_turn(&mut place, &mut works, effort, 1);
        let work = &works[0].0;
        work.print(name, &format!("p95 / p50: {:.2}", quantile(&work.times(), 0.95) / work.p50_us()));
    }
}

/// W1 with few slots and with many, at both engines.
pub fn slots(effort: Effort) {
    const SLOTS: [u32; 5] = [1, 2, 4, 8, 16];
    let mut each = SLOTS.map(|slots| {
        let mut place = Place::new(&PeerSettings { slots, owner_slots: slots, ..settings() });
        let work = Work::new(&mut place, W1, How::read()).verified(&mut place);
        (place, work)
    });
    for _ in 0..effort.times(ROUNDS) {
        for (place, work) in &mut each {
            work.round(&mut place.client, effort.times(4));
        }
    }
    let most = &each[SLOTS.len() - 1].1;
    for (slots, (_, work)) in SLOTS.into_iter().zip(&each) {
        let remark = format!("{:.2} x that of {}", work.ratio_to(most), SLOTS[SLOTS.len() - 1]);
        work.print(&format!("W1, slots and owner_slots: {slots}"), &remark);
    }
}
