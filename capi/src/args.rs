//! What C hands over: pointers that may be NULL, texts, arrays, times.

use crate::error::{Failure, invalid};
use ring_abi::Status;
use rust::region::Rights;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// What a pointer names, which must not be NULL.
pub fn given<T>(pointer: Option<T>, name: &str) -> Result<T, Failure> {
    pointer.ok_or_else(|| invalid(format!("{name} is NULL")))
}

/// The place for a handle, NULL from now on if the call fails.
pub fn place<'a, T>(
    pointer: Option<&'a mut MaybeUninit<*mut T>>,
    name: &str,
) -> Result<&'a mut MaybeUninit<*mut T>, Failure> {
    let place = given(pointer, name)?;
    place.write(std::ptr::null_mut());
    Ok(place)
}

/// Hands a value over to C, in a box that the matching `_free` takes back.
pub fn hand_over<T>(place: &mut MaybeUninit<*mut T>, value: T) -> i32 {
    place.write(Box::into_raw(Box::new(value)));
    0
}

/// A text, which must not be NULL and must be UTF-8.
///
/// # Safety
/// NULL, or a string with a NUL at its end that stays as it is for `'a`.
pub unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(invalid(format!("{name} is NULL")));
    }
    // SAFETY: the caller's promise; it is not NULL.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| invalid(format!("{name} is not UTF-8")))
}

/// An array. One of no elements may be NULL.
///
/// # Safety
/// NULL, or `count` elements that stay as they are for `'a`.
pub unsafe fn array<'a, T>(pointer: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(invalid(format!("{name} is NULL, with a count of {count}")));
    }
    if !pointer.is_aligned() || count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(invalid(format!("{name} is not aligned, or has more elements than memory can have")));
    }
    // SAFETY: the caller's promise; it is neither NULL nor misaligned nor too long.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// An array to be written. One of no elements may be NULL.
///
/// # Safety
/// NULL, or memory for `count` elements that nobody else uses for `'a`, and whose bytes may be anything.
pub unsafe fn array_mut<'a, T>(pointer: *mut T, count: usize, name: &str) -> Result<&'a mut [T], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: the caller's promise. This looks at the pointer and the count, and at no element.
    unsafe { array(pointer.cast_const(), count, name) }?;
    // SAFETY: the caller's promise; it is neither NULL nor misaligned nor too long.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count) })
}

/// Reads a structure whose first field is the size that the caller was compiled with: an older one is shorter, and
/// what it does not have is 0; a newer one is longer, which is refused if it has something there.
///
/// # Safety
/// NULL, or as many readable bytes as its first field says. All bytes of `T` may be 0, or anything.
pub unsafe fn sized<T>(pointer: *const T, name: &str) -> Result<T, Failure> {
    // SAFETY: the caller's promise about `T`.
    let mut known: T = unsafe { std::mem::zeroed() };
    if pointer.is_null() {
        return Ok(known);
    }
    // SAFETY: the first field is a size.
    let size = unsafe { pointer.cast::<usize>().read() };
    if size < size_of::<usize>() || size > SIZE_MAX {
        return Err(invalid(format!("{name}.size is {size}: set it to sizeof({name})")));
    }
    // SAFETY: as many bytes are there, by the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), size) };
    if bytes.iter().skip(size_of::<T>()).any(|byte| *byte != 0) {
        return Err(Failure::Misuse(
            Status::UNSUPPORTED,
            format!("{name} has settings that this version ({}) does not know", env!("CARGO_PKG_VERSION")),
        ));
    }
    let copied = size.min(size_of::<T>());
    // SAFETY: both have so many bytes, and `known` is this function's own.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut known).cast(), copied) };
    Ok(known)
}

/// No structure of settings will ever be longer: a size beyond it was never set.
const SIZE_MAX: usize = 4096;

pub fn rights(bits: u64) -> Result<Rights, Failure> {
    Rights::from_bits(bits).ok_or_else(|| {
        invalid(format!("rights {bits}: SCATTER_RING_RIGHTS_READ, SCATTER_RING_RIGHTS_WRITE, or both with |"))
    })
}

/// A time that may be without end: below 0.
pub fn timeout(ns: i64) -> Option<Duration> {
    u64::try_from(ns).ok().map(Duration::from_nanos)
}

/// Takes what one thread at a time may use; nobody waits for it.
pub fn alone<'a, T>(mutex: &'a Mutex<T>, name: &str) -> Result<MutexGuard<'a, T>, Failure> {
    match mutex.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::WouldBlock) => Err(Failure::Misuse(
            Status::NOT_ALLOWED,
            format!("another thread is in a call with this {name}: one thread at a time"),
        )),
        Err(TryLockError::Poisoned(_)) => Err(Failure::Panicked),
    }
}
