//! Rows are copied whole, in order, and nothing beside them is read or written. Every mapping here ends at a page that
//! faults on both sides.

#![cfg(not(scatter_ring_loom))]

use scatter_ring::region::copy::*;

const PAGE: usize = 4096;

/// Lengths to leave out where every instruction is interpreted.
const STEP: usize = if cfg!(miri) { 97 } else { 1 };

/// Pages between two that cannot be touched.
struct Fenced {
    start: *mut u8,
    len: usize,
}

impl Fenced {
    fn new(pages: usize, flags: libc::c_int) -> Fenced {
        let len = pages * PAGE;
        if cfg!(miri) {
            return Fenced { start: vec![0u64; len / 8].leak().as_mut_ptr().cast(), len };
        }
        // SAFETY: a fresh mapping; its inner pages are opened after the pointer was checked.
        unsafe {
            let all = len + 2 * PAGE;
            let at = libc::mmap(std::ptr::null_mut(), all, libc::PROT_NONE, flags | libc::MAP_ANONYMOUS, -1, 0);
            assert!(at != libc::MAP_FAILED);
            let start = at.cast::<u8>().add(PAGE);
            assert_eq!(libc::mprotect(start.cast(), len, libc::PROT_READ | libc::PROT_WRITE), 0);
            Fenced { start, len }
        }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len);
        // SAFETY: inside the mapping or at its end.
        unsafe { self.start.add(offset) }
    }

    fn fill(&self, byte: impl Fn(usize) -> u8) {
        // SAFETY: inside the mapping, which nobody else knows.
        (0..self.len).for_each(|i| unsafe { self.at(i).write(byte(i)) });
    }

    /// Private copy of the bytes.
    fn bytes(&self) -> Vec<u8> {
        // SAFETY: the mapping is initialised, and nobody writes it while the slice lives.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }.to_vec()
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        if cfg!(miri) {
            return;
        }
        // SAFETY: the whole of the mapping of `new`, which nobody uses any more.
        unsafe { libc::munmap(self.start.sub(PAGE).cast(), self.len + 2 * PAGE) };
    }
}

fn private(pages: usize) -> Fenced {
    Fenced::new(pages, libc::MAP_PRIVATE)
}

fn pattern(i: usize) -> u8 {
    (i.wrapping_mul(0x9E37_79B9) >> 11) as u8
}

fn available() -> impl Iterator<Item = Isa> {
    [Isa::Portable, Isa::Avx2, Isa::Avx512].into_iter().filter(|isa| isa.is_available())
}

/// What the destination must hold: the naive copy of every row, and 0xEE elsewhere.
fn expected(src: &[u8], dst_len: usize, rows: &[RowPair], len: usize) -> Vec<u8> {
    let mut bytes = vec![0xEE; dst_len];
    for row in rows {
        let (from, to) = (row.src as usize, row.dst as usize);
        bytes[to..to + len].copy_from_slice(&src[from..from + len]);
    }
    bytes
}

/// Rows that begin and end with the mappings, and some between at odd places, `gap` bytes apart at the destination.
fn rows_of(src_len: usize, dst_len: usize, len: usize, gap: usize) -> Vec<RowPair> {
    let room = (src_len - len) as u64;
    let count = (dst_len / (len + gap).max(1)).min(LOOKAHEAD + 3);
    let mut rows: Vec<RowPair> =
        (0..count).map(|i| RowPair { src: (i as u64 * 7919) % (room + 1), dst: (i * (len + gap)) as u64 }).collect();
    if let [first, .., last] = &mut rows[..] {
        (first.src, last.src) = (room, 0);
        if gap > 0 {
            last.dst = (dst_len - len) as u64;
        }
    }
    rows
}

fn check(isa: Isa, src: &Fenced, dst: &Fenced, rows: &[RowPair], len: usize) {
    // SAFETY: the test owns the whole mapping.
    unsafe { dst.start.write_bytes(0xEE, dst.len) };
    // SAFETY: `rows_of` keeps the rows inside both mappings; the instructions are available.
    unsafe { copy_rows_with(isa, src.start, dst.start, rows, len) };
    let want = expected(&src.bytes(), dst.len, rows, len);
    assert!(dst.bytes() == want, "{isa:?}, rows of {len}, {} of them", rows.len());
}

#[test]
fn rows_of_every_length_are_copied_and_nothing_else_is_touched() {
    let (src, dst) = (private(2), private(10));
    src.fill(pattern);
    for isa in available() {
        for len in (0..=1100).step_by(STEP) {
            // Contiguous, or with a gap that shows a byte too many.
            check(isa, &src, &dst, &rows_of(src.len, dst.len, len, 3 * (len % 2)), len);
        }
    }
}

#[test]
fn scattered_and_contiguous_rows_hold_the_same_bytes() {
    let (src, dst) = (private(2), private(12));
    src.fill(pattern);
    for isa in available() {
        for len in [1, 8, 63, 64, 65, 128, 264, 512, 1023, 1024, 1087, 1088, 1089, 2048, 4096] {
            for gap in [0, 1, 40, 64] {
                check(isa, &src, &dst, &rows_of(src.len, dst.len, len, gap), len);
            }
        }
    }
}

#[test]
fn long_rows_are_copied() {
    let (src, dst) = (private(40), private(80));
    src.fill(pattern);
    for len in [4096, 5000, 70_001] {
        check(Isa::best(), &src, &dst, &rows_of(src.len, dst.len, len, 5), len);
    }
}

#[test]
fn no_row_and_one_row_are_fine() {
    let (src, dst) = (private(1), private(1));
    src.fill(pattern);
    for isa in available() {
        check(isa, &src, &dst, &[], 264);
        check(isa, &src, &dst, &[RowPair { src: (PAGE - 264) as u64, dst: (PAGE - 264) as u64 }], 264);
    }
}

#[test]
fn overlapping_rows_touch_nothing_but_the_destination() {
    let region = private(2);
    for isa in available() {
        for len in [5, 40, 64, 100, 264, 1000, 1500] {
            region.fill(pattern);
            let before = region.bytes();
            // SAFETY: both rows lie inside the mapping.
            unsafe { copy_rows_with(isa, region.start, region.start, &[RowPair { src: 100, dst: 103 }], len) };
            let after = region.bytes();
            assert_eq!(after[..103], before[..103]);
            assert_eq!(after[103 + len..], before[103 + len..]);
        }
    }
}

#[test]
fn a_range_is_copied_and_zeroed_up_to_the_last_byte_of_the_mapping() {
    let (src, dst) = (private(20), private(20));
    src.fill(pattern);
    for len in [0, 1, 63, 264, 1100, 4096, 10_001, 20 * PAGE] {
        dst.fill(|_| 0xEE);
        let at = src.len - len;
        // SAFETY: the last `len` bytes of both mappings.
        unsafe { copy_range(src.at(at), dst.at(at), len) };
        let bytes = dst.bytes();
        assert!(bytes[at..] == src.bytes()[at..] && bytes[..at].iter().all(|&b| b == 0xEE), "{len}");
        // SAFETY: as above.
        unsafe { zero_range(dst.at(at), len) };
        let bytes = dst.bytes();
        assert!(bytes[at..].iter().all(|&b| b == 0) && bytes[..at].iter().all(|&b| b == 0xEE), "{len}");
    }
}

#[test]
fn a_hint_never_faults() {
    let page = private(1);
    for p in [std::ptr::null(), page.start.wrapping_sub(64), page.start.wrapping_add(PAGE), usize::MAX as *const u8] {
        for len in [0, 1, 64, 264, 100_000] {
            prefetch_read(p, len);
            prefetch_write(p, len);
        }
    }
}

#[test]
fn the_queue_copies_old_rows_when_enough_are_pending_and_the_rest_at_a_flush() {
    let (src, dst) = (private(1), private(1));
    for isa in available() {
        src.fill(|i| i as u8 | 1);
        dst.fill(|_| 0);
        let mut queue = RowQueue::with(isa).unwrap();
        let copied = || dst.bytes().iter().take_while(|&&b| b != 0).count();
        for i in 1..=3 * LOOKAHEAD {
            // SAFETY: one byte inside each mapping.
            unsafe { queue.push(src.at(i - 1), dst.at(i - 1), 1) };
            assert_eq!(queue.pending() + copied(), i, "a row is lost, or was copied twice");
            assert!(queue.pending() < LOOKAHEAD, "too many rows wait");
            assert!(queue.pending() >= i.min(LOOKAHEAD / 2), "a row was copied before it can have been fetched");
        }
        // SAFETY: the mappings are still there.
        unsafe { queue.flush() };
        assert_eq!((queue.pending(), copied()), (0, 3 * LOOKAHEAD));
    }
}

#[test]
fn the_queue_copies_in_order_of_arrival() {
    let (src, dst) = (private(1), private(1));
    src.fill(pattern);
    let mut queue = RowQueue::new();
    // Every row goes to the same place, so the last to be copied stays.
    for i in 0..LOOKAHEAD + 7 {
        // SAFETY: inside both mappings.
        unsafe { queue.push(src.at(i), dst.at(PAGE - 264), 264) };
    }
    // SAFETY: the mappings are still there.
    unsafe { queue.flush() };
    assert_eq!(dst.bytes()[PAGE - 264..], src.bytes()[LOOKAHEAD + 6..][..264]);
}

#[test]
fn the_queue_takes_rows_of_every_length() {
    let (src, dst) = (private(2), private(1024));
    src.fill(pattern);
    for isa in available() {
        dst.fill(|_| 0xEE);
        let mut queue = RowQueue::with(isa).unwrap();
        let mut want = vec![0xEE; dst.len];
        let mut at = dst.len;
        for len in (0..=1100).step_by(STEP).chain([2000, ROW_MAX]) {
            at -= len;
            // SAFETY: the end of the source, and the part of the destination that was taken off its end.
            unsafe { queue.push(src.at(src.len - len), dst.at(at), len as u32) };
            want[at..at + len].copy_from_slice(&src.bytes()[src.len - len..]);
            at -= 3;
        }
        // SAFETY: the mappings are still there.
        unsafe { queue.flush() };
        assert!(dst.bytes() == want, "{isa:?}");
    }
}

#[test]
fn index_words_are_loaded_up_to_the_end_of_the_mapping() {
    let src = private(1);
    src.fill(pattern);
    let bytes = src.bytes();
    for count in [0, 1, 2, 7, 100] {
        let mut small = vec![0u32; count];
        let at = PAGE - 4 * count;
        // SAFETY: the last words of the mapping, aligned.
        unsafe { load_u32s(src.at(at), &mut small) };
        assert!(small.iter().flat_map(|w| w.to_le_bytes()).eq(bytes[at..].iter().copied()));

        let mut large = vec![0u64; count];
        let at = PAGE - 8 * count;
        // SAFETY: the last words of the mapping, aligned.
        unsafe { load_u64s(src.at(at), &mut large) };
        assert!(large.iter().flat_map(|w| w.to_le_bytes()).eq(bytes[at..].iter().copied()));

        let mut records = vec![[0u64; 3]; count];
        let at = PAGE - 24 * count;
        // SAFETY: the last records of the mapping, aligned.
        unsafe { load_records(src.at(at), &mut records) };
        assert!(records.as_flattened().iter().flat_map(|w| w.to_le_bytes()).eq(bytes[at..].iter().copied()));
    }
}

/// A word that was read twice could differ between the two reads; one that was read once is one of the values written.
#[test]
fn words_that_are_written_meanwhile_are_loaded_whole() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
    let src = Fenced::new(1, libc::MAP_SHARED);
    src.fill(|_| 0);
    let stop = AtomicBool::new(false);
    let address = src.start as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0u64;
            while !stop.load(Relaxed) {
                value = !value;
                for i in 0..PAGE / 8 {
                    // SAFETY: inside the mapping, aligned, and only used through atomics meanwhile.
                    unsafe { AtomicU64::from_ptr((address as *mut u64).add(i)) }.store(value, Relaxed);
                }
            }
        });
        let mut words = [0u64; PAGE / 8];
        for _ in 0..2000 {
            // SAFETY: the whole mapping, aligned.
            unsafe { load_u64s(src.start, &mut words) };
            assert!(words.iter().all(|&w| w == 0 || w == u64::MAX));
        }
        stop.store(true, Relaxed);
    });
}
