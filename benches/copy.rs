//! What a row costs: random rows of a 1 GiB table, gathered into a contiguous destination in windows of 1,024 ids, from
//! ids to offsets to bytes. Both sides are shared mappings with 4 KiB pages.
//!
//! `cargo bench --bench copy -- pairs [LEN]` prints medians of pairs run in turn, which a busy machine moves least; without
//! it, criterion measures the same.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use scatter_ring::region::copy::{Isa, LOOKAHEAD, RowPair, RowQueue, copy_rows, copy_rows_with};

const LENS: [usize; 6] = [64, 128, 264, 512, 1024, 4096];
const WINDOW: usize = 1024;
/// The row of the C baseline, and how many of them a round copies.
const ROW: usize = 264;
const ROWS: usize = 98_304;
const OUT: usize = 64 << 20;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let has = |arg: &str| args.iter().any(|a| a == arg);
    // Criterion runs everything once, to see that it works, unless it is told to measure.
    let measured = has("pairs") || has("--bench") && !has("--test");
    let table = Shared::new(if measured { 1 << 30 } else { 16 << 20 });
    let out = Shared::new(OUT);
    if has("pairs") {
        let only: Option<usize> = args.iter().find_map(|arg| arg.parse().ok());
        LENS.into_iter()
            .filter(|&len| only.is_none_or(|only| only == len))
            .for_each(|len| print_pairs(&table, &out, len));
    } else {
        let mut criterion = Criterion::default()
            .sample_size(20)
            .warm_up_time(Duration::from_millis(300))
            .measurement_time(Duration::from_secs(1))
            .configure_from_args();
        benches(&mut criterion, &table, &out);
        criterion.final_summary();
    }
}

fn benches(criterion: &mut Criterion, table: &Shared, out: &Shared) {
    let mut group = criterion.benchmark_group("gather");
    for len in LENS {
        let lists = lists(table, len);
        group.throughput(Throughput::Elements(lists[0].ids.len() as u64));
        for (name, gather) in variants(len) {
            let mut turn = lists.iter().cycle();
            group.bench_function(BenchmarkId::new(name, len), |b| {
                b.iter(|| {
                    let list = turn.next().unwrap_or_else(|| unreachable!("a cycle does not end"));
                    gather(table, out, list, len)
                })
            });
        }
    }
}

/// Every variant beside the first one, in turn.
fn print_pairs(table: &Shared, out: &Shared, len: usize) {
    println!("{:>5} {:<24} {:>8} {:>18}", "row", "", "ns/row", "ratio to the first");
    let lists = lists(table, len);
    let variants = variants(len);
    let mut results = vec![(Vec::new(), Vec::new()); variants.len()];
    let mut turn = lists.iter().cycle();
    let mut run = |gather: Gather| {
        let list = turn.next().unwrap_or_else(|| unreachable!("a cycle does not end"));
        time(|| gather(table, out, list, len))
    };
    for _ in 0..24 {
        for ((_, gather), (ns, ratios)) in variants.iter().zip(&mut results) {
            let base = run(variants[0].1);
            let this = run(*gather);
            ns.push(this * 1e9 / lists[0].ids.len() as f64);
            ratios.push(this / base);
        }
    }
    for ((name, _), (ns, ratios)) in variants.iter().zip(&mut results) {
        println!("{len:>5} {name:<24} {:>8.1} {:>18.3}", median(ns), median(ratios));
    }
}

type Gather = fn(&Shared, &Shared, &List, usize);

fn variants(len: usize) -> Vec<(&'static str, Gather)> {
    let mut all: Vec<(&'static str, Gather)> = vec![("memcpy", memcpy)];
    #[cfg(target_arch = "x86_64")]
    if len == ROW && std::arch::is_x86_feature_detected!("avx512f") {
        all.insert(0, ("constant 264, 16 ahead", constant));
    }
    all.push(("copy_rows", |t, o, i, n| windows(t, o, i, n, best)));
    all.push(("copy_rows, portable", |t, o, i, n| windows(t, o, i, n, with::<0>)));
    if Isa::Avx2.is_available() {
        all.push(("copy_rows, AVX2", |t, o, i, n| windows(t, o, i, n, with::<1>)));
    }
    if Isa::Avx512.is_available() {
        all.push(("copy_rows, AVX-512", |t, o, i, n| windows(t, o, i, n, with::<2>)));
    }
    all.push(("memcpy, scattered", scatter_memcpy));
    all.push(("copy_rows, scattered", scatter));
    all.push(("RowQueue", queue));
    all
}

fn best(src: *const u8, dst: *mut u8, rows: &[RowPair], len: usize) {
    // SAFETY: `windows` has checked the rows.
    unsafe { copy_rows(src, dst, rows, len) }
}

fn with<const ISA: usize>(src: *const u8, dst: *mut u8, rows: &[RowPair], len: usize) {
    // SAFETY: `windows` has checked the rows, and `variants` the instructions.
    unsafe { copy_rows_with([Isa::Portable, Isa::Avx2, Isa::Avx512][ISA], src, dst, rows, len) }
}

/// The real path: the ids of a window are checked, become offsets, and are copied.
fn windows(
    table: &Shared,
    out: &Shared,
    list: &List,
    len: usize,
    copy: impl Fn(*const u8, *mut u8, &[RowPair], usize),
) {
    let mut rows = [RowPair::default(); WINDOW];
    let count = (table.len / len) as u32;
    for (at, window) in list.ids.chunks(WINDOW).enumerate() {
        let rows = &mut rows[..window.len()];
        let mut largest = 0;
        for (i, (row, &id)) in rows.iter_mut().zip(window).enumerate() {
            largest = largest.max(id);
            *row = RowPair { src: id as u64 * len as u64, dst: ((at * WINDOW + i) * len) as u64 };
        }
        assert!(largest < count);
        copy(table.ptr, out.ptr, rows, len);
    }
}

fn memcpy(table: &Shared, out: &Shared, list: &List, len: usize) {
    windows(table, out, list, len, |src, dst, rows, len| {
        for row in rows {
            // SAFETY: `windows` has checked the row.
            unsafe { dst.add(row.dst as usize).copy_from_nonoverlapping(src.add(row.src as usize), black_box(len)) };
        }
    });
}

/// The other way: contiguous rows to random places.
fn scatter(table: &Shared, out: &Shared, list: &List, len: usize) {
    windows(table, out, list, len, |src, dst, rows, len| {
        let mut turned = [RowPair::default(); WINDOW];
        turned.iter_mut().zip(rows).for_each(|(t, r)| *t = RowPair { src: r.dst, dst: r.src });
        // SAFETY: `windows` has checked the rows; the table is as writable as the destination.
        unsafe { copy_rows(dst, src.cast_mut(), &turned[..rows.len()], len) };
    });
}

fn scatter_memcpy(table: &Shared, out: &Shared, list: &List, len: usize) {
    windows(table, out, list, len, |src, dst, rows, len| {
        for row in rows {
            let (from, to) = (dst.wrapping_add(row.dst as usize), src.wrapping_add(row.src as usize).cast_mut());
            // SAFETY: `windows` has checked the row; the table is as writable as the destination.
            unsafe { to.copy_from_nonoverlapping(from, black_box(len)) };
        }
    });
}

fn queue(table: &Shared, out: &Shared, list: &List, len: usize) {
    let mut queue = RowQueue::new();
    for (i, &id) in list.ids.iter().enumerate() {
        assert!((id as usize) < table.len / len);
        // SAFETY: both rows lie in their mappings, which outlive the queue.
        unsafe { queue.push(table.ptr.add(id as usize * len), out.ptr.add(i * len), len as u32) };
    }
    // SAFETY: as above.
    unsafe { queue.flush() };
}

/// What a compiler makes of a loop that knows the length of a row.
#[cfg(target_arch = "x86_64")]
fn constant(table: &Shared, out: &Shared, list: &List, _len: usize) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,bmi2")]
    unsafe fn inner(table: *const u8, out: *mut u8, pieces: &[(u64, u32)]) {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let mut to = out;
        for (i, &(offset, len)) in pieces.iter().enumerate() {
            if let Some(&(next, _)) = pieces.get(i + 16) {
                for line in 0..5 {
                    _mm_prefetch::<_MM_HINT_T0>(table.wrapping_add(next as usize + 64 * line).cast());
                }
            }
            // SAFETY: the caller has checked the row.
            unsafe {
                let from = table.add(offset as usize);
                if len as usize == ROW {
                    to.copy_from_nonoverlapping(from, ROW);
                } else {
                    to.copy_from_nonoverlapping(from, len as usize);
                }
                to = to.add(len as usize);
            }
        }
    }
    // SAFETY: `variants` has checked the instructions, and every id of a list names a row of the table.
    unsafe { inner(table.ptr, out.ptr, &list.pieces) }
}

/// A mapping as the product has them, with every page present.
struct Shared {
    ptr: *mut u8,
    len: usize,
}

impl Shared {
    fn new(len: usize) -> Shared {
        // SAFETY: a fresh mapping of a fresh file; the pointer is checked.
        unsafe {
            let fd = libc::memfd_create(c"bench".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0 && libc::ftruncate(fd, len as libc::off_t) == 0);
            let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
            let ptr = libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0);
            assert!(ptr != libc::MAP_FAILED);
            libc::madvise(ptr, len, libc::MADV_NOHUGEPAGE);
            libc::close(fd);
            // Pages that were only populated may all be the same zero page.
            let shared = Shared { ptr: ptr.cast(), len };
            (0..len).step_by(8).for_each(|i| shared.ptr.add(i).cast::<u64>().write(i as u64));
            shared
        }
    }
}

/// Random rows of the table.
struct List {
    ids: Vec<u32>,
    /// What the C baseline is given: offset and length.
    pieces: Vec<(u64, u32)>,
}

/// Eight lists, used in turn, so that the rows of one round are not in a cache from the round before.
fn lists(table: &Shared, len: usize) -> Vec<List> {
    let mut state = len as u64;
    let mut random = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let rows = ROWS.min(OUT / len);
    let count = (table.len / len) as u64;
    let mut list = || {
        let ids: Vec<u32> = (0..rows).map(|_| (random() % count) as u32).collect();
        let pieces = ids.iter().map(|&id| (id as u64 * len as u64, len as u32)).collect();
        List { ids, pieces }
    };
    (0..8).map(|_| list()).collect()
}

fn time(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

const _: () = assert!(LOOKAHEAD.is_power_of_two());
