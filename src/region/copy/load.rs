//! Index words: the one way in which this crate reads numbers that it will act on.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Copies words out of shared memory, loading each exactly once: what is checked afterwards is what is used.
///
/// # Safety
///
/// `src` is 4-byte aligned, and `src .. src + 4 * out.len()` is mapped, readable and not part of `out`.
#[inline]
pub unsafe fn load_u32s(src: *const u8, out: &mut [u32]) {
    // SAFETY: the caller's promise.
    unsafe { each_u32(src, out, |to, word| *to = word) };
}

/// [`load_u32s`] into something else: `take` gets each element of `out` with its word.
///
/// # Safety
///
/// As for [`load_u32s`].
#[inline(always)]
pub unsafe fn each_u32<T>(src: *const u8, out: &mut [T], mut take: impl FnMut(&mut T, u32)) {
    let src = src.cast_mut().cast::<u32>();
    for (i, element) in out.iter_mut().enumerate() {
        // SAFETY: inside the caller's range, aligned; other processes may write it, hence an atomic load.
        take(element, unsafe { AtomicU32::from_ptr(src.add(i)) }.load(Relaxed));
    }
}

/// [`load_u32s`] for words of 8 bytes.
///
/// # Safety
///
/// `src` is 8-byte aligned, and `src .. src + 8 * out.len()` is mapped, readable and not part of `out`.
#[inline]
pub unsafe fn load_u64s(src: *const u8, out: &mut [u64]) {
    let src = src.cast_mut().cast::<u64>();
    for (i, word) in out.iter_mut().enumerate() {
        // SAFETY: inside the caller's range, aligned; other processes may write it, hence an atomic load.
        *word = unsafe { AtomicU64::from_ptr(src.add(i)) }.load(Relaxed);
    }
}

/// [`load_u32s`] for records of three words of 8 bytes.
///
/// # Safety
///
/// `src` is 8-byte aligned, and `src .. src + 24 * out.len()` is mapped, readable and not part of `out`.
#[inline]
pub unsafe fn load_records(src: *const u8, out: &mut [[u64; 3]]) {
    // SAFETY: the caller's promise, for three times as many words.
    unsafe { load_u64s(src, out.as_flattened_mut()) }
}
