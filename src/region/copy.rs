//! Copying rows between shared pages, by raw pointer only.
//!
//! Another process may write these pages at any time, so no reference or slice to them is ever made, and no decision
//! here depends on their bytes. Numbers that a caller will act on are loaded by `load_*`, each once. Two regions may be the same memory, and a client may
//! describe ranges that overlap: every copy here is made of plain loads and stores of fixed blocks, or of a move that
//! allows overlap. What an overlapping destination holds afterwards is unspecified; nothing outside it is touched.
//!
//! Rows come from memory that is in no cache, so a row costs what its lines cost. Three things help: to ask for many
//! lines early ([`LOOKAHEAD`]), to ask for them into the second-level cache (the first level waits for 10 to 24 lines at
//! a time, the second for more: 264-byte rows take 0.85-0.9 of the time), and to choose the copy of a row once a call
//! and not once a row.

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86;

mod blocks;
mod load;
mod prefetch;
mod queue;

pub use load::{each_u32, load_records, load_u32s, load_u64s};
pub use prefetch::{prefetch_read, prefetch_write};
pub use queue::{Pending, ROW_MAX, RowQueue};

use blocks::{Words, rows_any};

/// Rows that are asked for before the oldest of them is copied. A power of two.
pub const LOOKAHEAD: usize = 32;

const LINE: usize = 64;

/// One row: where it is and where it goes, in bytes from the two bases of the call. Both ends have been checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowPair {
    /// Offset from the source base.
    pub src: u64,
    /// Offset from the destination base.
    pub dst: u64,
}

/// The instructions that a copy uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// What every machine of the target has.
    Portable,
    /// 32-byte blocks.
    Avx2,
    /// 64-byte blocks.
    Avx512,
}

impl Isa {
    /// What this machine copies rows with.
    #[inline]
    pub fn best() -> Isa {
        if Isa::Avx512.is_available() {
            Isa::Avx512
        } else if Isa::Avx2.is_available() {
            Isa::Avx2
        } else {
            Isa::Portable
        }
    }

    /// Whether this machine has these instructions. The answer of the CPU is cached by the standard library.
    #[inline]
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Isa::Avx2 => std::arch::is_x86_feature_detected!("avx2"),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Isa::Avx512 => std::arch::is_x86_feature_detected!("avx512f") && Isa::Avx2.is_available(),
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            _ => false,
        }
    }
}

/// Copies `len` bytes for every row.
///
/// # Safety
///
/// For every row, `src + row.src .. + len` is mapped and readable and `dst + row.dst .. + len` is mapped and writable.
/// No Rust reference to the destination bytes is alive.
pub unsafe fn copy_rows(src: *const u8, dst: *mut u8, rows: &[RowPair], len: usize) {
    // SAFETY: the caller's promise; `best` is available.
    unsafe { copy_rows_with(Isa::best(), src, dst, rows, len) }
}

/// [`copy_rows`] with chosen instructions.
///
/// # Safety
///
/// As for [`copy_rows`], and `isa` is available.
pub unsafe fn copy_rows_with(isa: Isa, src: *const u8, dst: *mut u8, rows: &[RowPair], len: usize) {
    // Only rows that are scattered at the destination are worth asking for there: the hardware sees a forward run.
    // They too are asked for as if to be read: far ahead that is faster than asking for them to be written.
    let scattered = rows.iter().zip(rows.iter().skip(1)).take(4).any(|(a, b)| b.dst != a.dst.wrapping_add(len as u64));
    // SAFETY: the caller's promise.
    unsafe {
        match isa {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Isa::Avx2 => x86::rows_avx2(src, dst, rows, len, scattered),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Isa::Avx512 => x86::rows_avx512(src, dst, rows, len, scattered),
            _ => rows_any::<Words>(src, dst, rows, len, scattered),
        }
    }
}

/// Copies one range of any length.
///
/// # Safety
///
/// `src .. src + len` is mapped and readable, `dst .. dst + len` is mapped and writable, and no Rust reference to the
/// destination bytes is alive.
pub unsafe fn copy_range(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller's promise. A move: the ranges may overlap.
    unsafe { core::ptr::copy(src, dst, len) }
}

/// Writes `len` zero bytes.
///
/// # Safety
///
/// `dst .. dst + len` is mapped and writable, and no Rust reference to it is alive.
pub unsafe fn zero_range(dst: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { core::ptr::write_bytes(dst, 0, len) }
}
