//! Copying rows by fixed blocks: the loops, and how a row of any length is made of blocks.

use super::prefetch::{prefetch_blocks, prefetch_line, prefetch_read};
use super::{LINE, LOOKAHEAD, RowPair, copy_range, queue::Pending};

/// Rows up to here are copied by unrolled 64-byte blocks; longer ones as ranges.
const BLOCKS_MAX: usize = 16;

/// Copies blocks of 64 and of 32 bytes. Implemented by what a machine has.
pub trait Blocks {
    /// # Safety
    ///
    /// 64 bytes are readable at `src` and writable at `dst`; the machine has the instructions.
    unsafe fn copy_64(src: *const u8, dst: *mut u8);

    /// # Safety
    ///
    /// 32 bytes are readable at `src` and writable at `dst`; the machine has the instructions.
    unsafe fn copy_32(src: *const u8, dst: *mut u8);
}

/// Blocks of plain words, on every target.
pub struct Words;

impl Blocks for Words {
    #[inline(always)]
    unsafe fn copy_64(src: *const u8, dst: *mut u8) {
        // SAFETY: two halves of the caller's 64 bytes.
        unsafe {
            Self::copy_32(src, dst);
            Self::copy_32(src.add(32), dst.add(32));
        }
    }

    #[inline(always)]
    unsafe fn copy_32(src: *const u8, dst: *mut u8) {
        // SAFETY: two halves of the caller's 32 bytes.
        unsafe {
            copy_word::<u128>(src, dst);
            copy_word::<u128>(src.add(16), dst.add(16));
        }
    }
}

/// # Safety
///
/// `size_of::<T>()` bytes are readable at `src` and writable at `dst`; `T` is a plain integer.
#[inline(always)]
unsafe fn copy_word<T: Copy>(src: *const u8, dst: *mut u8) {
    // SAFETY: the caller's promise; no alignment is assumed.
    unsafe { dst.cast::<T>().write_unaligned(src.cast::<T>().read_unaligned()) }
}

/// Calls `$body` with `$n`, 0 to 16, as a constant.
macro_rules! with_block_count {
    ($count:expr, $n:ident => $body:expr) => {
        with_block_count!(@ $count, $n => $body; 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16)
    };
    (@ $count:expr, $n:ident => $body:expr; $($i:literal)*) => {
        match $count {
            $($i => { const $n: usize = $i; $body })*
            _ => { const $n: usize = 0; $body }
        }
    };
}

/// The loop of [`copy_rows`](super::copy_rows), to be inlined where the instructions of `B` are enabled.
///
/// # Safety
///
/// As for [`copy_rows`](super::copy_rows); the machine has the instructions of `B`.
#[inline(always)]
pub unsafe fn rows_any<B: Blocks>(src: *const u8, dst: *mut u8, rows: &[RowPair], len: usize, scattered: bool) {
    // SAFETY: the caller's promise; the block count is that of `len`.
    unsafe {
        if len / LINE > BLOCKS_MAX {
            return long_rows(src, dst, rows, len);
        }
        with_block_count!(len / LINE, N => if scattered {
            rows_of::<B, N, true>(src, dst, rows, len)
        } else {
            rows_of::<B, N, false>(src, dst, rows, len)
        })
    }
}

/// # Safety
///
/// As for [`rows_any`], and `len / 64 == N`.
#[inline(always)]
unsafe fn rows_of<B: Blocks, const N: usize, const SCATTERED: bool>(
    src: *const u8,
    dst: *mut u8,
    rows: &[RowPair],
    len: usize,
) {
    let ask = |row: &RowPair| {
        prefetch_blocks::<N>(src.wrapping_add(row.src as usize), len, prefetch_line);
        if SCATTERED {
            prefetch_blocks::<N>(dst.wrapping_add(row.dst as usize), len, prefetch_line);
        }
    };
    let (first, later) = rows.split_at(rows.len().min(LOOKAHEAD));
    first.iter().for_each(ask);
    for (i, row) in rows.iter().enumerate() {
        if let Some(next) = later.get(i) {
            ask(next);
        }
        // SAFETY: the caller's promise for every row.
        unsafe { copy_blocks::<B, N>(src.add(row.src as usize), dst.add(row.dst as usize), len) };
    }
}

/// Rows that are too long to unroll. The hardware asks for the lines after the first ones, and a long move writes its
/// lines without reading them first, so nothing is asked for at the destination.
///
/// # Safety
///
/// As for [`copy_rows`](super::copy_rows).
unsafe fn long_rows(src: *const u8, dst: *mut u8, rows: &[RowPair], len: usize) {
    for (i, row) in rows.iter().enumerate() {
        if let Some(next) = rows.get(i + LONG_LOOKAHEAD) {
            prefetch_read(src.wrapping_add(next.src as usize), len);
        }
        // SAFETY: the caller's promise for every row.
        unsafe { copy_range(src.add(row.src as usize), dst.add(row.dst as usize), len) };
    }
}

/// As [`LOOKAHEAD`], for rows that are too long to unroll.
const LONG_LOOKAHEAD: usize = 8;

/// Copies rows of any lengths, to be inlined where the instructions of `B` are enabled.
///
/// # Safety
///
/// As for [`copy_range`] for every row; the machine has the instructions of `B`.
#[inline(always)]
pub unsafe fn pending_any<B: Blocks>(rows: &[Pending]) {
    for row in rows {
        let (src, dst, len) = (row.src, row.dst, row.len as usize);
        // SAFETY: the caller's promise; the block count is that of `len`.
        unsafe {
            if len / LINE > BLOCKS_MAX {
                copy_range(src, dst, len);
                continue;
            }
            with_block_count!(len / LINE, N => copy_blocks::<B, N>(src, dst, len));
        }
    }
}

/// # Safety
///
/// `len / 64 == N`, `len` bytes are readable at `src` and writable at `dst`; the machine has the instructions of `B`.
#[inline(always)]
unsafe fn copy_blocks<B: Blocks, const N: usize>(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: N blocks of 64 fit into `len`, and what is left is shorter than 64.
    unsafe {
        if N == 0 {
            return copy_short(src, dst, len);
        }
        let mut i = 0;
        while i < N {
            B::copy_64(src.add(i * LINE), dst.add(i * LINE));
            i += 1;
        }
        copy_tail::<B>(src, dst, len, len % LINE);
    }
}

/// Copies the last `tail` bytes of a row of at least 64 by the smallest block that covers them: it overlaps what is
/// copied already, and ends with the row. A smaller block crosses fewer cache lines.
///
/// # Safety
///
/// `tail < 64 <= len`; `len` bytes are readable at `src` and writable at `dst`; the machine has the instructions.
#[inline(always)]
unsafe fn copy_tail<B: Blocks>(src: *const u8, dst: *mut u8, len: usize, tail: usize) {
    // SAFETY: no block here is longer than `len`.
    unsafe {
        let end = |width: usize| (src.add(len - width), dst.add(len - width));
        match tail {
            0 => {}
            1..=8 => copy_word::<u64>(end(8).0, end(8).1),
            9..=16 => copy_word::<u128>(end(16).0, end(16).1),
            17..=32 => B::copy_32(end(32).0, end(32).1),
            _ => B::copy_64(end(64).0, end(64).1),
        }
    }
}

/// Copies fewer than 64 bytes, by two blocks that may overlap.
///
/// # Safety
///
/// `len < 64`; `len` bytes are readable at `src` and writable at `dst`.
#[inline(always)]
unsafe fn copy_short(src: *const u8, dst: *mut u8, len: usize) {
    /// # Safety
    ///
    /// `size_of::<T>() <= len`, and as for [`copy_short`].
    #[inline(always)]
    unsafe fn both_ends<T: Copy>(src: *const u8, dst: *mut u8, len: usize) {
        let last = len - size_of::<T>();
        // SAFETY: both blocks lie inside the row.
        unsafe {
            copy_word::<T>(src, dst);
            copy_word::<T>(src.add(last), dst.add(last));
        }
    }
    // SAFETY: each block is no longer than `len`, and two of them cover it.
    unsafe {
        match len {
            0 => {}
            1 => copy_word::<u8>(src, dst),
            2..=3 => both_ends::<u16>(src, dst, len),
            4..=7 => both_ends::<u32>(src, dst, len),
            8..=15 => both_ends::<u64>(src, dst, len),
            16..=31 => both_ends::<u128>(src, dst, len),
            _ => both_ends::<[u128; 2]>(src, dst, len),
        }
    }
}
