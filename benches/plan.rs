//! What planning costs a fragment, and what following a list costs a row more than copying rows that are known.
//!
//! `cargo bench --bench plan -- pairs` prints the best and the median of many rounds that are run in turn, which a busy
//! machine moves least; without it, criterion measures the same.

mod windows;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use scatter_ring::pack::ListPacker;
use scatter_ring::plan::{Chunk, Numbers, Planner, Progress, Rules, Transfer, WINDOW};
use scatter_ring::region::copy::{RowPair, copy_rows};
use scatter_ring::region::{Huge, Region};
use windows::{ROW_BYTES, plan_rows};

const COUNTS: [usize; 3] = [1 << 10, 32 << 10, 1 << 20];
const SLOT: usize = 256 << 10;
const RULES: Rules = Rules {
    direct_from_bytes: 64 << 10,
    chunk_bytes: SLOT as u32,
    first_chunk_bytes: 64 << 10,
    window_operations: 128,
    window_bytes: u32::MAX,
};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let has = |arg: &str| args.iter().any(|a| a == arg);
    // Criterion runs everything once, to see that it works, unless it is told to measure.
    let measured = has("pairs") || has("--bench") && !has("--test");
    let counts = if measured { &COUNTS[..] } else { &COUNTS[..1] };
    let mut stage = Stage::new();
    if has("pairs") {
        println!("{:>9} {:<34} {:>8} {:>8}", "fragments", "", "best ns", "median");
        counts.iter().for_each(|&count| print_pairs(&mut stage, count));
        return;
    }
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let mut group = criterion.benchmark_group("plan");
    for &count in counts {
        let work = Work::new(&stage, count);
        group.throughput(Throughput::Elements(count as u64));
        for (name, run) in VARIANTS {
            group.bench_function(BenchmarkId::new(name, count), |b| b.iter(|| run(&mut stage, &work)));
        }
    }
    group.finish();
    criterion.final_summary();
}

fn print_pairs(stage: &mut Stage, count: usize) {
    let work = Work::new(stage, count);
    let mut times = vec![Vec::new(); VARIANTS.len()];
    let repeats = (100_000 / count).max(1);
    for _ in 0..40 {
        for ((_, run), times) in VARIANTS.iter().zip(&mut times) {
            let start = Instant::now();
            (0..repeats).for_each(|_| run(stage, &work));
            times.push(start.elapsed().as_secs_f64() * 1e9 / (count * repeats) as f64);
        }
    }
    for ((name, _), times) in VARIANTS.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        println!("{count:>9} {name:<34} {:>8.2} {:>8.2}", times[0], times[times.len() / 2]);
    }
}

type Variant = fn(&mut Stage, &Work);

const VARIANTS: [(&str, Variant); 7] = [
    ("rows to a contiguous destination", rows),
    ("pairs of rows", pairs),
    ("single-row descriptors", singles),
    ("pack known rows, in cache", |stage, work| pack_known(stage, &work.cached)),
    ("pack by a list, in cache", |stage, work| pack_list(stage, &work.cached)),
    ("pack known rows, scattered", |stage, work| pack_known(stage, &work.scattered)),
    ("pack by a list, scattered", |stage, work| pack_list(stage, &work.scattered)),
];

struct Stage {
    planner: Planner,
    chunk: Chunk,
    packer: ListPacker,
    table: Region,
    slot: Region,
    rows: Vec<RowPair>,
}

/// Row numbers of both sides, and the lists of packing them.
struct Work {
    src: Vec<u32>,
    dst: Vec<u32>,
    cached: Packing,
    scattered: Packing,
}

/// Lists of source rows, a chunk each, and the same rows as pairs.
struct Packing {
    lists: Vec<Vec<u8>>,
    rows: Vec<Vec<RowPair>>,
}

impl Stage {
    fn new() -> Stage {
        let allocate = |bytes| Region::allocate(bytes, Huge::Never).expect("memory").0;
        Stage {
            planner: Planner::new(),
            chunk: Chunk::new(),
            packer: ListPacker::default(),
            table: allocate(64 << 20),
            slot: allocate(SLOT as u64),
            rows: vec![RowPair::default(); WINDOW],
        }
    }
}

impl Work {
    fn new(stage: &Stage, count: usize) -> Work {
        let table_rows = stage.table.bytes() / u64::from(ROW_BYTES);
        let mut random = 1u64;
        let mut next = |rows: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((random >> 33) % rows) as u32
        };
        let src: Vec<u32> = (0..count).map(|_| next(table_rows)).collect();
        let dst = (0..count).map(|_| next(1 << 20)).collect();
        let near: Vec<u32> = (0..count).map(|_| next(512)).collect();
        Work { cached: Packing::new(&near), scattered: Packing::new(&src), src, dst }
    }
}

impl Packing {
    fn new(numbers: &[u32]) -> Packing {
        let (mut lists, mut rows) = (Vec::new(), Vec::new());
        let mut planner = Planner::new();
        let mut chunk = Chunk::new();
        planner.begin(RULES);
        let mut keep = |planner: &mut Planner| {
            planner.take(&mut chunk);
            lists.push(chunk.src.encoded().to_vec());
            let starts = (0..).map(|i: u64| i * u64::from(ROW_BYTES));
            let offsets = chunk.src.iter().map(|piece| piece.offset);
            rows.push(offsets.zip(starts).map(|(src, dst)| RowPair { src, dst }).collect());
        };
        plan_rows(&mut planner, numbers, None, &mut keep);
        Packing { lists, rows }
    }
}

fn rows(stage: &mut Stage, work: &Work) {
    stage.planner.begin(RULES);
    let chunk = &mut stage.chunk;
    plan_rows(&mut stage.planner, &work.src, None, |planner| assert!(planner.take(chunk)));
    black_box(&stage.chunk);
}

fn pairs(stage: &mut Stage, work: &Work) {
    stage.planner.begin(RULES);
    let chunk = &mut stage.chunk;
    plan_rows(&mut stage.planner, &work.src, Some(&work.dst), |planner| assert!(planner.take(chunk)));
    black_box(&stage.chunk);
}

fn singles(stage: &mut Stage, work: &Work) {
    let Stage { planner, chunk, .. } = stage;
    planner.begin(RULES);
    let mut transfer = Transfer { src_max: Some(0), dst_max: Some(0), ..Transfer::NOTHING };
    transfer.shape.regions = [1, 2, 0];
    transfer.shape.count = 1;
    transfer.shape.len = ROW_BYTES;
    for (&src, dst) in work.src.iter().zip(0u64..) {
        transfer.shape.offsets = [u64::from(src) * u64::from(ROW_BYTES), dst * u64::from(ROW_BYTES), 0];
        while planner.add(black_box(&transfer), 0, Numbers::COUNTED) == Ok(Progress::Full) {
            assert!(planner.take(chunk));
        }
    }
    while planner.finish() == Progress::Full {
        assert!(planner.take(chunk));
    }
    black_box(&*chunk);
}

/// The rows are known and need no check; only the array that the copy reads is made, as when a list is followed.
fn pack_known(stage: &mut Stage, packing: &Packing) {
    let Stage { table, slot, rows, .. } = stage;
    for known in &packing.rows {
        for window in known.chunks(WINDOW) {
            rows[..window.len()].copy_from_slice(window);
            // SAFETY: the planner's rows lie in the table, and a chunk's in the slot; both stay mapped.
            unsafe { copy_rows(table.as_ptr(), slot.as_ptr(), &rows[..window.len()], ROW_BYTES as usize) };
        }
    }
}

fn pack_list(stage: &mut Stage, packing: &Packing) {
    let Stage { table, slot, packer, .. } = stage;
    for list in &packing.lists {
        // SAFETY: the slot stays mapped.
        let packed = unsafe { packer.pack(list, |_| Some(&*table), slot.as_ptr(), SLOT as u32) };
        assert!(packed.is_ok());
    }
}
