//! A piece of copying that one thread does in one go.

use super::lookup::load_numbers;
use crate::plan::{Fault, Missing};
use crate::region::copy::{self, Pending, RowPair, RowQueue};
use ring_abi::{Entry, Field, IndexKind, Stage, Status};
use std::panic::AssertUnwindSafe;

/// Fragments `from .. to` of a transfer between two mapped regions, whose pointers it carries.
///
/// Plain data, so that it can travel to a worker through a ring.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// Byte 0 of fragment number 0 at the source.
    pub src: *const u8,
    /// Byte 0 of fragment number 0 at the destination.
    pub dst: *mut u8,
    /// The index arrays, source and destination; null without one.
    pub index: [*const u8; 2],
    /// The largest number that may be followed; only for an indexed side.
    pub max: [Option<u64>; 2],
    /// Bytes per piece.
    pub len: u32,
    /// Bytes per step of a number, source and destination.
    pub strides: [u32; 2],
    /// Pieces per fragment.
    pub inner_count: u32,
    /// Bytes per piece step, source and destination.
    pub inner_strides: [u32; 2],
    /// First fragment.
    pub from: u32,
    /// Behind the last fragment.
    pub to: u32,
    /// NONE, U32 or U64 for either side.
    pub kinds: [IndexKind; 2],
    /// What an all-ones source number means.
    pub missing: Missing,
    /// Fill the destination with 0; there is no source.
    pub zero: bool,
    /// `src` leads to a list of [`Pending`] rows, `from .. to` of which are to be copied; nothing else counts.
    pub list: bool,
    /// Whose task it is; handed back.
    pub id: u32,
}

/// What became of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Whose task it was.
    pub id: u32,
    /// Bytes written.
    pub bytes: u64,
    /// The lowest fragment that could not be done; those before it are done.
    pub fault: Option<Fault>,
}

/// Private memory for the numbers and the rows of one window. One per thread that runs tasks.
#[derive(Debug)]
pub struct Window {
    half: Box<[u32; ROWS]>,
    numbers: [Box<[u64; ROWS]>; 2],
    rows: Box<[RowPair; ROWS]>,
    /// Empty between tasks.
    queue: RowQueue,
}

/// Rows per window: enough to make the lookahead's start and end cheap, small enough for the first-level cache.
const ROWS: usize = 1024;

impl Default for Window {
    fn default() -> Self {
        let numbers = || Box::new([0; ROWS]);
        Window {
            half: Box::new([0; ROWS]),
            numbers: [numbers(), numbers()],
            rows: Box::new([RowPair { src: 0, dst: 0 }; ROWS]),
            queue: RowQueue::new(),
        }
    }
}

impl Task {
    /// No fragments.
    pub(super) const NOTHING: Task = Task {
        src: std::ptr::null(),
        dst: std::ptr::null_mut(),
        index: [std::ptr::null(); 2],
        max: [None; 2],
        len: 0,
        strides: [0; 2],
        inner_count: 1,
        inner_strides: [0; 2],
        from: 0,
        to: 0,
        kinds: [IndexKind::None; 2],
        missing: Missing::Row,
        zero: false,
        list: false,
        id: 0,
    };

    /// Pieces to be copied or left alone.
    #[must_use]
    pub fn pieces(&self) -> u64 {
        u64::from(self.to - self.from) * u64::from(self.inner_count)
    }

    /// Does it. A panic is this task's failure, and nobody else's.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    pub unsafe fn run_caught(&self, window: &mut Window) -> Done {
        // SAFETY: the caller's promise.
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| unsafe { self.run(window) }));
        outcome.unwrap_or_else(|_| {
            // Rows that were pending belong to nobody now.
            window.queue = RowQueue::new();
            let fault = Fault::new(Status::INTERNAL, Stage::PACK, Field::NONE, 0);
            Done { id: self.id, bytes: 0, fault: Some(Fault { fragment: self.from, ..fault }) }
        })
    }

    /// Does it.
    ///
    /// # Safety
    /// The pointers must be those of regions that stay mapped during the call, in which un-indexed sides lie as a whole
    /// and indexed ones for every number up to the maximum; index arrays must be naturally aligned, have entries
    /// `from .. to`, and be readable. Of a list: its rows lie in such regions, and nobody changes it during the call.
    pub unsafe fn run(&self, window: &mut Window) -> Done {
        if self.list {
            // SAFETY: the caller's promise.
            return unsafe { self.run_list(window) };
        }
        let inner = self.inner_count as usize;
        let per_window = if inner <= ROWS { (ROWS / inner) as u32 } else { 1 };
        let mut bytes = 0;
        let mut from = self.from;
        while from < self.to {
            let n = per_window.min(self.to - from);
            // SAFETY: the caller's promise covers every sub-range of `from .. to`.
            let (moved, fault) = unsafe { self.run_window(window, from, n as usize) };
            bytes += moved;
            if fault.is_some() {
                return Done { id: self.id, bytes, fault };
            }
            from += n;
        }
        Done { id: self.id, bytes, fault: None }
    }

    /// # Safety
    /// As [`run`](Self::run), for a list.
    unsafe fn run_list(&self, window: &mut Window) -> Done {
        let mut bytes = 0;
        for i in self.from..self.to {
            // SAFETY: the list has rows `from .. to`; each may be copied until the flush below.
            unsafe {
                let row = self.src.cast::<Pending>().add(i as usize).read();
                window.queue.push(row.src, row.dst, row.len);
                bytes += u64::from(row.len);
            }
        }
        // SAFETY: as above.
        unsafe { window.queue.flush() };
        Done { id: self.id, bytes, fault: None }
    }

    /// `n` fragments from `from` on, at most a window full of pieces (or one fragment).
    ///
    /// # Safety
    /// As [`run`](Self::run).
    unsafe fn run_window(&self, window: &mut Window, from: u32, n: usize) -> (u64, Option<Fault>) {
        if self.inner_count == 1 && self.missing == Missing::Row {
            match self.kinds {
                [IndexKind::U32, IndexKind::None] if self.strides[0] != 0 => {
                    // SAFETY: the caller's promise; the source's stride is not 0.
                    return unsafe { self.run_rows::<0>(window, from, n) };
                }
                [IndexKind::None, IndexKind::U32] if self.strides[1] != 0 => {
                    // SAFETY: the caller's promise; the destination's stride is not 0.
                    return unsafe { self.run_rows::<1>(window, from, n) };
                }
                _ => {}
            }
        }
        for side in 0..2 {
            let (half, numbers) = (&mut window.half[..n], &mut window.numbers[side][..n]);
            // SAFETY: the arrays have entries for `from .. from + n`.
            unsafe { load_numbers(self.kinds[side], self.index[side], from, half, numbers) };
        }
        let (good, fault) = self.check_numbers(window, from, n);
        // SAFETY: the first `good` numbers of both sides have been checked.
        let bytes = unsafe { self.move_checked(window, good) };
        (bytes, fault)
    }

    /// The short way for whole rows with 32-bit numbers on one side, the layer of an embedding table: one pass makes the
    /// rows out of the numbers, and finds the largest one to check.
    ///
    /// # Safety
    /// As [`run`](Self::run), for `n` fragments from `from` on. The side's stride is not 0.
    unsafe fn run_rows<const SIDE: usize>(&self, window: &mut Window, from: u32, n: usize) -> (u64, Option<Fault>) {
        let strides = self.strides.map(u64::from);
        let rows = &mut window.rows[..n];
        let mut other = u64::from(from) * strides[1 - SIDE];
        let mut largest = 0;
        let row_of = |row: &mut RowPair, number: u32| {
            largest = largest.max(number);
            let at = u64::from(number) * strides[SIDE];
            *row = if SIDE == 0 { RowPair { src: at, dst: other } } else { RowPair { src: other, dst: at } };
            other += strides[1 - SIDE];
        };
        // SAFETY: the array has entries for `from .. from + n`.
        unsafe { copy::each_u32(self.index[SIDE].add(from as usize * 4), rows, row_of) };
        let max = self.max[SIDE];
        let mut good = n;
        let mut fault = None;
        if max.is_none_or(|max| u64::from(largest) > max) {
            // The numbers are not to be read again.
            let number = |row: &RowPair| (if SIDE == 0 { row.src } else { row.dst }) / strides[SIDE];
            good = rows.iter().position(|row| max.is_none_or(|max| number(row) > max)).unwrap_or(n);
            let field = if SIDE == 0 { Field::SRC_OFFSET } else { Field::DST_OFFSET };
            fault = rows.get(good).map(|row| Fault {
                fragment: from + good as u32,
                ..Fault::new(Status::OUT_OF_RANGE, Stage::PACK, field, number(row))
            });
        }
        // SAFETY: the first `good` numbers have been checked; the other side lies in its region as a whole.
        unsafe { copy::copy_rows(self.src, self.dst, &rows[..good], self.len as usize) };
        (good as u64 * u64::from(self.len), fault)
    }

    /// How many fragments from the first on may be followed, and why not more.
    fn check_numbers(&self, window: &Window, from: u32, n: usize) -> (usize, Option<Fault>) {
        let mut good = n;
        let mut fault = None;
        let missing = self.all_ones();
        // The source is looked at last, because it is named first where both are wrong.
        for (side, field) in [(1, Field::DST_OFFSET), (0, Field::SRC_OFFSET)] {
            if self.kinds[side] == IndexKind::None {
                continue;
            }
            let numbers = &window.numbers[side][..(good + 1).min(n)];
            let fits = |number: u64| self.max[side].is_some_and(|max| number <= max);
            let largest = numbers.iter().copied().fold(0, u64::max);
            if fits(largest) && self.max[side].is_some() {
                continue;
            }
            let is_missing = |i: usize| missing.is_some_and(|ones| window.numbers[0][i] == ones);
            let skipped = |i: usize| is_missing(i) && (side == 0 || self.missing == Missing::Skip);
            let bad = numbers.iter().enumerate().find(|(i, number)| !fits(**number) && !skipped(*i));
            if let Some((i, number)) = bad {
                good = i;
                let at = Fault::new(Status::OUT_OF_RANGE, Stage::PACK, field, *number);
                fault = Some(Fault { fragment: from + i as u32, ..at });
            }
        }
        (good, fault)
    }

    /// # Safety
    /// The numbers of the first `n` fragments have been checked, but for missing ones.
    unsafe fn move_checked(&self, window: &mut Window, n: usize) -> u64 {
        let Some(ones) = self.all_ones().filter(|ones| window.numbers[0][..n].contains(ones)) else {
            // SAFETY: none is missing, so all are checked.
            return unsafe { self.move_rows(window, 0, n) };
        };
        let mut bytes = 0;
        let mut start = 0;
        while start < n {
            let present = window.numbers[0][start..n].iter().take_while(|number| **number != ones).count();
            // SAFETY: those are checked and not missing.
            bytes += unsafe { self.move_rows(window, start, start + present) };
            start += present;
            while start < n && window.numbers[0][start] == ones {
                if self.missing == Missing::Zero {
                    // SAFETY: the destination's number has been checked.
                    bytes += unsafe { self.zero_fragment(window.numbers[1][start]) };
                }
                start += 1;
            }
        }
        bytes
    }

    /// # Safety
    /// The numbers `from .. to` of the window have been checked on both sides.
    unsafe fn move_rows(&self, window: &mut Window, from: usize, to: usize) -> u64 {
        let [src_stride, dst_stride] = self.strides.map(u64::from);
        let [inner_src, inner_dst] = self.inner_strides.map(u64::from);
        let len = self.len as usize;
        let pieces = (to - from) as u64 * u64::from(self.inner_count);
        if self.zero {
            for i in from..to {
                // SAFETY: the destination's number has been checked.
                unsafe { self.zero_fragment(window.numbers[1][i]) };
            }
        } else if self.inner_count == 1 {
            let numbers = window.numbers[0][from..to].iter().zip(&window.numbers[1][from..to]);
            for (row, (src, dst)) in window.rows.iter_mut().zip(numbers) {
                *row = RowPair { src: src * src_stride, dst: dst * dst_stride };
            }
            // SAFETY: checked numbers times strides, plus the length, lie inside the regions.
            unsafe { copy::copy_rows(self.src, self.dst, &window.rows[..to - from], len) };
        } else {
            for i in from..to {
                let (src, dst) = (window.numbers[0][i] * src_stride, window.numbers[1][i] * dst_stride);
                let mut k = 0;
                while k < u64::from(self.inner_count) {
                    let n = (u64::from(self.inner_count) - k).min(ROWS as u64);
                    for (row, k) in window.rows.iter_mut().zip(k..k + n) {
                        *row = RowPair { src: src + k * inner_src, dst: dst + k * inner_dst };
                    }
                    // SAFETY: a checked number's whole fragment, all its pieces, lies inside the regions.
                    unsafe { copy::copy_rows(self.src, self.dst, &window.rows[..n as usize], len) };
                    k += n;
                }
            }
        }
        pieces * u64::from(self.len)
    }

    /// # Safety
    /// The number has been checked at the destination.
    unsafe fn zero_fragment(&self, number: u64) -> u64 {
        let start = number * u64::from(self.strides[1]);
        for k in 0..u64::from(self.inner_count) {
            let at = start + k * u64::from(self.inner_strides[1]);
            // SAFETY: a checked number's whole fragment lies inside the region.
            unsafe { copy::zero_range(self.dst.add(at as usize), self.len as usize) };
        }
        u64::from(self.len) * u64::from(self.inner_count)
    }

    fn all_ones(&self) -> Option<u64> {
        match (self.missing, self.kinds[0]) {
            (Missing::Row, _) => None,
            (_, IndexKind::U32) => Some(u64::from(ring_abi::MISSING_U32)),
            _ => Some(ring_abi::MISSING_U64),
        }
    }

    /// Two ring entries that carry it.
    #[must_use]
    pub fn to_entries(self) -> [Entry; 2] {
        let pair = |a: u32, b: u32| u64::from(a) | u64::from(b) << 32;
        let small = self.kinds[0] as u64
            | (self.kinds[1] as u64) << 8
            | (self.missing as u64) << 16
            | u64::from(self.zero) << 24
            | u64::from(self.max[0].is_some()) << 25
            | u64::from(self.max[1].is_some()) << 26
            | u64::from(self.list) << 27;
        [
            [
                self.src.expose_provenance() as u64,
                self.dst.expose_provenance() as u64,
                self.index[0].expose_provenance() as u64,
                self.index[1].expose_provenance() as u64,
                self.max[0].unwrap_or(0),
                self.max[1].unwrap_or(0),
                pair(self.strides[0], self.strides[1]),
                pair(self.inner_strides[0], self.inner_strides[1]),
            ],
            [pair(self.len, self.inner_count), pair(self.from, self.to), small, u64::from(self.id), 0, 0, 0, 0],
        ]
    }

    /// The task that two entries of [`to_entries`](Self::to_entries) carry.
    #[must_use]
    pub fn from_entries(entries: &[Entry; 2]) -> Task {
        let [a, b] = entries;
        let halves = |word: u64| [word as u32, (word >> 32) as u32];
        let kind = |shift: u32| match b[2] >> shift & 0xFF {
            1 => IndexKind::U32,
            2 => IndexKind::U64,
            _ => IndexKind::None,
        };
        let max = |bit: u32, value: u64| (b[2] >> bit & 1 != 0).then_some(value);
        let [len, inner_count] = halves(b[0]);
        let [from, to] = halves(b[1]);
        let pointer = |word: u64| std::ptr::with_exposed_provenance::<u8>(word as usize);
        Task {
            src: pointer(a[0]),
            dst: std::ptr::with_exposed_provenance_mut(a[1] as usize),
            index: [pointer(a[2]), pointer(a[3])],
            max: [max(25, a[4]), max(26, a[5])],
            len,
            strides: halves(a[6]),
            inner_count,
            inner_strides: halves(a[7]),
            from,
            to,
            kinds: [kind(0), kind(8)],
            missing: match b[2] >> 16 & 0xFF {
                1 => Missing::Zero,
                2 => Missing::Skip,
                _ => Missing::Row,
            },
            zero: b[2] >> 24 & 1 != 0,
            list: b[2] >> 27 & 1 != 0,
            id: b[3] as u32,
        }
    }
}

impl Done {
    /// The ring entry that carries it.
    #[must_use]
    pub fn to_entry(self) -> Entry {
        let none = Fault::new(Status::OK, Stage::NONE, Field::NONE, 0);
        let fault = self.fault.as_ref().unwrap_or(&none);
        let codes = u64::from(fault.status.0 as u32) | u64::from(fault.stage.0) << 32;
        let place = u64::from(fault.field.0) | u64::from(fault.fragment) << 32;
        [u64::from(self.id), self.bytes, codes, place, fault.detail, 0, 0, 0]
    }

    /// What an entry of [`to_entry`](Self::to_entry) carries.
    #[must_use]
    pub fn from_entry(entry: &Entry) -> Done {
        let fault = Fault {
            status: Status(entry[2] as u32 as i32),
            stage: Stage((entry[2] >> 32) as u8),
            field: Field(entry[3] as u32),
            fragment: (entry[3] >> 32) as u32,
            detail: entry[4],
        };
        Done { id: entry[0] as u32, bytes: entry[1], fault: (!fault.status.is_ok()).then_some(fault) }
    }
}
