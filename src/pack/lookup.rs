//! Looking fragments up in index arrays: each word is copied once, into private memory.

use crate::plan::{Fault, Shape, Transfer};
use crate::region::{Region, copy};
use ring_abi::{FragmentRecord, IndexKind};

/// The index arrays of a transfer, source and destination. Null without an index.
pub(super) fn index_arrays(index: Option<&Region>, shape: &Shape) -> [*const u8; 2] {
    let Some(index) = index else { return [std::ptr::null(); 2] };
    let src = index.as_ptr().wrapping_add(shape.offsets[2] as usize);
    let dst = src.wrapping_add(shape.index_bytes()[0] as usize);
    [src, dst]
}

/// Copies the numbers of fragments `from ..` on one side, as many as there is room for. Without an index a fragment's
/// number is its own. `half` is as long as `numbers`.
///
/// # Safety
/// The side's array, if it has one, is naturally aligned, and readable for so many entries from `from` on.
#[inline]
pub(super) unsafe fn load_numbers(kind: IndexKind, array: *const u8, from: u32, half: &mut [u32], numbers: &mut [u64]) {
    match kind {
        IndexKind::U32 => {
            // SAFETY: the caller's promise.
            unsafe { copy::load_u32s(array.add(from as usize * 4), half) };
            numbers.iter_mut().zip(half).for_each(|(to, from)| *to = u64::from(*from));
        }
        // SAFETY: as above.
        IndexKind::U64 => unsafe { copy::load_u64s(array.add(from as usize * 8), numbers) },
        IndexKind::None | IndexKind::Fragments => {
            numbers.iter_mut().zip(u64::from(from)..).for_each(|(to, number)| *to = number);
        }
    }
}

/// One irregular fragment, checked.
///
/// # Errors
/// As [`Transfer::check_record`].
///
/// # Safety
/// The array of records is aligned to 8, and readable for this fragment's.
pub(super) unsafe fn load_record(
    transfer: &Transfer,
    array: *const u8,
    fragment: u32,
) -> Result<FragmentRecord, Fault> {
    let mut words = [[0; 3]];
    // SAFETY: the caller's promise.
    unsafe { copy::load_records(array.add(fragment as usize * 24), &mut words) };
    let record = FragmentRecord::from_words(words[0]);
    transfer.check_record(&record)?;
    Ok(record)
}
