//! A fixed number of decisions, for counting instructions: `ci/instructions.sh` runs it under callgrind.

use scatter_ring::cost::{Chooser, Class, Decision, Direction, Situation, Work, choose};
use scatter_ring::region::copy::Isa;
use scatter_ring::sim::profiles;
use std::hint::black_box;

const DECISIONS: u32 = 1000;

fn main() {
    let kind = std::env::args().nth(1).unwrap_or_default();
    let situation = profiles::named("roce-100g").expect("a profile of that name").situation(Direction::Read);
    let uniform = work(&[(98_304, 264)]);
    let mixed = work(&[(9000, 64), (7000, 264), (4000, 1024), (900, 16 << 10), (64, 512 << 10)]);
    match kind.as_str() {
        "uniform" => choose_afresh(&uniform, &situation),
        "mixed" => choose_afresh(&mixed, &situation),
        "kept" => choose_kept(&mut Chooser::new(), &mixed, &situation),
        _ => panic!("which count: uniform, mixed or kept"),
    }
    println!("isa {:?}\ndecisions {DECISIONS}", Isa::best());
}

#[inline(never)]
fn choose_afresh(work: &Work, situation: &Situation) {
    for _ in 0..DECISIONS {
        let decision: Decision = choose(black_box(work), situation);
        black_box(decision);
    }
}

#[inline(never)]
fn choose_kept(chooser: &mut Chooser, work: &Work, situation: &Situation) {
    for _ in 0..DECISIONS {
        black_box(chooser.choose(black_box(work), situation));
    }
}

/// Rows at random places that land one behind the other: count and length.
fn work(kinds: &[(u64, u64)]) -> Work {
    let mut work = Work::default();
    for &(count, len) in kinds {
        work.add(&Class { fragments: count, segments: count, src_pieces: count, dst_pieces: 1, bytes: count * len });
    }
    work
}
