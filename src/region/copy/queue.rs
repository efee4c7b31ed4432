//! Rows that arrive one at a time.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::x86;
use super::{
    Isa, LOOKAHEAD,
    blocks::{Words, pending_any},
    prefetch_read,
};

/// The longest row that a [`RowQueue`] takes.
pub const ROW_MAX: usize = 4096;

/// Rows of any length up to [`ROW_MAX`] that arrive one at a time: each is asked for when it arrives and copied when
/// enough younger ones have arrived, or at a flush. Rows are copied in the order of their arrival.
///
/// They are copied sixteen at a time, so that choosing the instructions and getting into the loop costs little per row.
///
/// What is pending when the queue is dropped is not copied.
#[derive(Debug)]
pub struct RowQueue {
    isa: Isa,
    /// The oldest pending row is the first of the other half if `older` is set, else of the half that is being filled.
    half: usize,
    older: bool,
    filled: usize,
    halves: [[Pending; CHUNK]; 2],
}

/// A row that was asked for and not copied.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// First byte.
    pub src: *const u8,
    /// Where it goes.
    pub dst: *mut u8,
    /// Bytes.
    pub len: u32,
}

/// Rows copied at a time: a row waits for at least so many and for less than twice as many younger ones.
const CHUNK: usize = LOOKAHEAD / 2;

// SAFETY: the pointers are only used by `push` and `flush`, whose callers owe that they are valid where they run.
unsafe impl Send for RowQueue {}

impl Default for RowQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl RowQueue {
    /// An empty queue.
    pub fn new() -> Self {
        Self::with(Isa::best()).unwrap_or_else(|| unreachable!("the best instructions are available"))
    }

    /// An empty queue that copies with chosen instructions, if this machine has them.
    pub fn with(isa: Isa) -> Option<Self> {
        let none = Pending { src: core::ptr::null(), dst: core::ptr::null_mut(), len: 0 };
        let queue = Self { isa, half: 0, older: false, filled: 0, halves: [[none; CHUNK]; 2] };
        isa.is_available().then_some(queue)
    }

    /// Rows pushed and not copied yet.
    #[inline]
    pub fn pending(&self) -> usize {
        self.filled + if self.older { CHUNK } else { 0 }
    }

    /// Takes a row, and copies the oldest sixteen if there is no room for another.
    ///
    /// # Safety
    ///
    /// Until this row is copied: `src .. src + len` is mapped and readable, `dst .. dst + len` is mapped and writable,
    /// and no Rust reference to the destination bytes is alive when `push` or `flush` is called.
    #[inline]
    pub unsafe fn push(&mut self, src: *const u8, dst: *mut u8, len: u32) {
        debug_assert!(len as usize <= ROW_MAX);
        prefetch_read(src, len as usize);
        self.halves[self.half][self.filled] = Pending { src, dst, len };
        self.filled += 1;
        if self.filled == CHUNK {
            // SAFETY: what was promised for every pending row still holds.
            unsafe { self.turn() };
        }
    }

    /// Copies all that is pending.
    ///
    /// # Safety
    ///
    /// What the callers of [`RowQueue::push`] promised still holds.
    pub unsafe fn flush(&mut self) {
        let (half, older) = (self.half, self.older);
        self.older = false;
        let filled = core::mem::take(&mut self.filled);
        // SAFETY: what was promised for every pending row still holds.
        unsafe {
            if older {
                self.copy(1 - half, CHUNK);
            }
            self.copy(half, filled);
        }
    }

    /// One half is full: makes room in the other one.
    ///
    /// # Safety
    ///
    /// What was promised for every pending row still holds.
    #[inline(never)]
    unsafe fn turn(&mut self) {
        self.half = 1 - self.half;
        self.filled = 0;
        if self.older {
            // SAFETY: the caller's promise.
            unsafe { self.copy(self.half, CHUNK) };
        }
        self.older = true;
    }

    /// # Safety
    ///
    /// What was promised for the first `count` rows of this half still holds.
    unsafe fn copy(&self, half: usize, count: usize) {
        let rows = &self.halves[half][..count];
        // SAFETY: the caller's promise; `with` has checked that `isa` is available.
        unsafe {
            match self.isa {
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                Isa::Avx2 => x86::pending_avx2(rows),
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                Isa::Avx512 => x86::pending_avx512(rows),
                _ => pending_any::<Words>(rows),
            }
        }
    }
}
