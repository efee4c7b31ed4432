//! Blocks of AVX2 and AVX-512, and the functions in which these instructions are enabled.

use core::arch::x86_64::*;

use super::blocks::{Blocks, pending_any, rows_any};
use super::{RowPair, queue::Pending};

/// Blocks of 32 bytes.
struct Avx2;

impl Blocks for Avx2 {
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
        // SAFETY: the caller's 32 bytes; no alignment is assumed.
        unsafe { _mm256_storeu_si256(dst.cast(), _mm256_loadu_si256(src.cast())) }
    }
}

/// Blocks of 64 bytes.
struct Avx512;

impl Blocks for Avx512 {
    #[inline(always)]
    unsafe fn copy_64(src: *const u8, dst: *mut u8) {
        // SAFETY: the caller's 64 bytes; no alignment is assumed.
        unsafe { _mm512_storeu_si512(dst.cast(), _mm512_loadu_si512(src.cast())) }
    }

    #[inline(always)]
    unsafe fn copy_32(src: *const u8, dst: *mut u8) {
        // SAFETY: the caller's 32 bytes; AVX-512 includes AVX2.
        unsafe { Avx2::copy_32(src, dst) }
    }
}

/// # Safety
///
/// As for [`super::copy_rows`]; the CPU has AVX2.
#[target_feature(enable = "avx2")]
pub unsafe fn rows_avx2(src: *const u8, dst: *mut u8, rows: &[RowPair], len: usize, scattered: bool) {
    // SAFETY: the caller's promise.
    unsafe { rows_any::<Avx2>(src, dst, rows, len, scattered) }
}

/// # Safety
///
/// As for [`super::copy_rows`]; the CPU has AVX2 and AVX-512F.
#[target_feature(enable = "avx2,avx512f")]
pub unsafe fn rows_avx512(src: *const u8, dst: *mut u8, rows: &[RowPair], len: usize, scattered: bool) {
    // SAFETY: the caller's promise.
    unsafe { rows_any::<Avx512>(src, dst, rows, len, scattered) }
}

/// # Safety
///
/// As for [`pending_any`]; the CPU has AVX2.
#[target_feature(enable = "avx2")]
pub unsafe fn pending_avx2(rows: &[Pending]) {
    // SAFETY: the caller's promise.
    unsafe { pending_any::<Avx2>(rows) }
}

/// # Safety
///
/// As for [`pending_any`]; the CPU has AVX2 and AVX-512F.
#[target_feature(enable = "avx2,avx512f")]
pub unsafe fn pending_avx512(rows: &[Pending]) {
    // SAFETY: the caller's promise.
    unsafe { pending_any::<Avx512>(rows) }
}

/// Asks for a line into the second-level cache.
#[inline(always)]
pub fn prefetch_line(p: *const u8) {
    // SAFETY: a hint, which cannot fault and changes nothing that a program can see.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
}

/// Asks for a line that will be written.
#[inline(always)]
pub fn prefetch_line_write(p: *const u8) {
    // The intrinsic becomes a prefetch for reading unless the whole build enables the instruction. A CPU without it
    // takes it as a no-op.
    // SAFETY: a hint, which cannot fault and changes nothing that a program can see.
    unsafe { core::arch::asm!("prefetchw [{}]", in(reg) p, options(nostack, preserves_flags, readonly)) }
}
