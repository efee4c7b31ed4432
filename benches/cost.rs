//! What a decision costs.

use criterion::{Criterion, criterion_group, criterion_main};
use scatter_ring::cost::{Choice, Chooser, Class, Geometry, Work, choose, predict};
use scatter_ring::plan::Direction;
use scatter_ring::sim::profiles;
use std::hint::black_box;

fn decisions(criterion: &mut Criterion) {
    let Some(profile) = profiles::named("roce-100g") else { return };
    let situation = profile.situation(Direction::Read);
    let rows = |count: u64, len: u64| Class {
        fragments: count,
        segments: count,
        src_pieces: count,
        dst_pieces: 1,
        bytes: count * len,
    };
    let work = |classes: &[Class]| {
        let mut work = Work::default();
        classes.iter().for_each(|class| work.add(class));
        work
    };
    let uniform = work(&[rows(98_304, 264)]);
    let mixed = work(&[rows(9000, 64), rows(7000, 264), rows(4000, 1024), rows(900, 16 << 10), rows(64, 512 << 10)]);
    let gathered = Choice { direct_from_bytes: u32::MAX, chunk_bytes: 256 << 10, slots: 4 };

    let mut group = criterion.benchmark_group("cost");
    group.bench_function("predict", |b| b.iter(|| predict(black_box(&uniform), &situation, gathered)));
    group.bench_function("choose, one class", |b| b.iter(|| choose(black_box(&uniform), &situation)));
    group.bench_function("choose, five classes", |b| b.iter(|| choose(black_box(&mixed), &situation)));
    let mut chooser = Chooser::new();
    group.bench_function("chooser, kept", |b| b.iter(|| chooser.choose(black_box(&mixed), &situation)));
    let geometry = Geometry::of(&mixed, Direction::Read);
    group.bench_function("chooser, kept and measured", |b| {
        b.iter(|| {
            let decision = chooser.choose(black_box(&mixed), &situation);
            chooser.measured(geometry, &decision, decision.predicted.total_ns);
        });
    });
    group.finish();
}

criterion_group!(benches, decisions);
criterion_main!(benches);
