//! What copies cost on this machine, measured once for each process.

use crate::cost::CopyProfile;
use crate::region::copy::{RowPair, copy_range, copy_rows};
use std::sync::OnceLock;
use std::time::Instant;

/// Measures this machine's copies, the first time that a process asks: for some milliseconds, on the calling thread,
/// with 9 MiB of memory that are given back. Later calls give the same figures at once. `workers` goes into the profile
/// as it is.
///
/// Each figure is the best of several: a thread that is descheduled meanwhile makes some of them slow, never all. One
/// worker is measured alone, as if others took nothing from it.
#[must_use]
pub fn calibrate(workers: u32) -> CopyProfile {
    static MEASURED: OnceLock<CopyProfile> = OnceLock::new();
    CopyProfile { workers, ..*MEASURED.get_or_init(measure) }
}

fn measure() -> CopyProfile {
    // Every page is written: one that never was would be read from the one page of zeros.
    let table = vec![0x5A_u8; TABLE_BYTES];
    let mut slot = vec![0x5A_u8; RANGE_BYTES];
    let parts = (0..TABLE_BYTES / RANGE_BYTES).cycle().take(RANGE_TRIALS);
    let range_ns = best(parts.map(|part| copy_part(&table, part, &mut slot)));
    let byte_ns = range_ns / RANGE_BYTES as f64;
    let mut random = 1;
    let row_ns = best((0..ROW_TRIALS).map(|_| copy_random(&table, &mut random, &mut slot))) / ROWS as f64;
    CopyProfile {
        bytes_per_ns: 1.0 / byte_ns,
        piece_ns: (row_ns - ROW_BYTES as f64 * byte_ns).max(PIECE_NS_MIN),
        decode_ns: DECODE_NS,
        plan_ns: PLAN_NS,
        workers: 0,
    }
}

/// Times one long piece.
fn copy_part(table: &[u8], part: usize, slot: &mut [u8]) -> f64 {
    let from = &table[part * RANGE_BYTES..][..RANGE_BYTES];
    flush(from);
    let start = Instant::now();
    // SAFETY: both are as long as that; the slot is borrowed for this alone.
    unsafe { copy_range(from.as_ptr(), slot.as_mut_ptr(), RANGE_BYTES) };
    elapsed_ns(start)
}

/// Times [`ROWS`] rows from anywhere in the table, one behind the other into the slot.
fn copy_random(table: &[u8], random: &mut u64, slot: &mut [u8]) -> f64 {
    let mut rows = [RowPair::default(); ROWS];
    for (i, row) in rows.iter_mut().enumerate() {
        // A full-period generator's high bits (Knuth, MMIX).
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = (*random >> 32) % (TABLE_BYTES / ROW_BYTES) as u64;
        let src = number as usize * ROW_BYTES;
        *row = RowPair { src: src as u64, dst: (i * ROW_BYTES) as u64 };
        flush(&table[src..][..ROW_BYTES]);
    }
    debug_assert!(ROWS * ROW_BYTES <= slot.len() && table.len() == TABLE_BYTES);
    let start = Instant::now();
    // SAFETY: each row lies inside the table, all of them fit into the slot, which is borrowed for this alone.
    unsafe { copy_rows(table.as_ptr(), slot.as_mut_ptr(), &rows, ROW_BYTES) };
    elapsed_ns(start)
}

/// Takes bytes out of all caches, so that they are read as rarely used ones of a large table are, however large the
/// last cache is. Where there is no instruction for it, the figures are those of the cache that holds the table.
fn flush(bytes: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in bytes.chunks(64).chain(bytes.last_chunk::<1>().map(|last| &last[..])) {
        // SAFETY: every such processor has the instruction, the address is of a byte that may be read, and nothing is
        // written but what the cache holds.
        unsafe { core::arch::x86_64::_mm_clflush(line.as_ptr()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = bytes;
}

/// At least one, so that it can be divided by.
fn elapsed_ns(start: Instant) -> f64 {
    (start.elapsed().as_nanos() as f64).max(1.0)
}

fn best(times: impl Iterator<Item = f64>) -> f64 {
    times.fold(f64::INFINITY, f64::min)
}

/// More would take longer to be written for the first time than all that is measured.
const TABLE_BYTES: usize = 8 << 20;

/// A long piece, and the slot.
const RANGE_BYTES: usize = 1 << 20;
const RANGE_TRIALS: usize = 16;

/// A row of the workload that this is for; and what a packing task copies at a time.
const ROW_BYTES: usize = 264;
const ROWS: usize = 992;
const ROW_TRIALS: usize = 24;

/// No machine copies a piece for less.
const PIECE_NS_MIN: f64 = 0.5;

/// What planning a fragment and decoding a piece may cost at most: the project's limits for uniform rows, which its
/// benchmarks hold on the machine that it was written on. They are small beside a copy.
const PLAN_NS: f64 = 1.5;
const DECODE_NS: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_measured_once_and_can_be_used() {
        let (first, again) = (calibrate(3), calibrate(5));
        assert_eq!(first, CopyProfile { workers: 3, ..again });
        let CopyProfile { bytes_per_ns, piece_ns, decode_ns, plan_ns, workers } = again;
        assert_eq!(workers, 5);
        for figure in [bytes_per_ns, piece_ns, decode_ns, plan_ns] {
            assert!(figure.is_finite() && figure > 0.0, "{again:?}");
        }
        // A page of zeros or a clock that stands still would give more than any memory has.
        assert!((0.01..1000.0).contains(&bytes_per_ns) && piece_ns < 1e5, "{again:?}");
    }

    #[test]
    fn the_best_of_several_does_not_see_the_slow_ones() {
        assert_eq!(best([9e9, 5.0, 7.0, 1e6].into_iter()), 5.0);
    }
}
