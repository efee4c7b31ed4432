//! A transfer on its way: what has been cut into tasks, what came back.

use super::lookup::{index_arrays, load_numbers, load_record};
use super::{Done, TASK_BYTES, Task};
use crate::plan::{Fault, Missing, Place, Transfer};
use crate::region::{Region, copy, copy::Pending};
use ring_abi::{Field, IndexKind, Stage, Status};
use std::sync::Arc;

/// One transfer between two mapped regions. Keeps them, and the index region, mapped.
#[derive(Debug)]
pub struct Run {
    transfer: Transfer,
    src: Arc<Region>,
    dst: Arc<Region>,
    index: Option<Arc<Region>>,
    /// Next fragment to cut.
    next: u32,
    /// What is left of the fragment before it.
    rest: Option<Rest>,
    /// Nothing more is to be cut.
    exhausted: bool,
    given_up: bool,
    outstanding: u32,
    bytes: u64,
    fault: Option<Fault>,
    /// Rows that were gathered from many descriptors, to be copied by a worker.
    rows: Option<Box<RowList>>,
}

/// Rows between one pair of regions, gathered from descriptors that each describe one.
#[derive(Debug)]
pub struct RowList {
    rows: [Pending; RowList::CAPACITY],
    len: usize,
}

impl RowList {
    /// Rows that one list holds.
    pub const CAPACITY: usize = 256;

    /// Adds a row, which there must be room for.
    #[inline]
    pub fn push(&mut self, src: *const u8, dst: *mut u8, len: u32) {
        self.rows[self.len] = Pending { src, dst, len };
        self.len += 1;
    }
}

impl Default for RowList {
    fn default() -> Self {
        let none = Pending { src: std::ptr::null(), dst: std::ptr::null_mut(), len: 0 };
        RowList { rows: [none; RowList::CAPACITY], len: 0 }
    }
}

// SAFETY: the pointers are only used by a task of the run that has the list, which keeps the regions that they lead into.
unsafe impl Send for RowList {}

/// A piece of a transfer.
#[derive(Debug)]
pub enum Cut {
    /// For the poller or a worker.
    Task(Task),
    /// One small range, for the poller's row queue.
    Row {
        /// First byte.
        src: *const u8,
        /// Where it goes.
        dst: *mut u8,
        /// Bytes.
        len: u32,
    },
    /// A wide fragment that is missing and left as it is. Something all the same: a client can name millions of them,
    /// and a turn has its end.
    Missing,
}

/// The rest of one wide fragment: rows of `len` bytes, of which `byte` bytes of row `row` are cut.
#[derive(Clone, Copy, Debug)]
struct Rest {
    src: *const u8,
    dst: *mut u8,
    zero: bool,
    rows: u32,
    len: u32,
    strides: [u32; 2],
    row: u32,
    byte: u32,
}

/// Most pieces of one task: bounds its time where they are tiny.
const TASK_PIECES: u64 = 8192;

/// Fragments of at least so many bytes, or of more pieces than a task has, are looked up one at a time and cut on their
/// own.
const WIDE_BYTES: u64 = TASK_BYTES / 2;

impl Run {
    /// Nothing of it cut yet.
    #[must_use]
    pub fn new(transfer: Transfer, src: Arc<Region>, dst: Arc<Region>, index: Option<Arc<Region>>) -> Run {
        Run {
            transfer,
            src,
            dst,
            index,
            next: 0,
            rest: None,
            exhausted: false,
            given_up: false,
            outstanding: 0,
            bytes: 0,
            fault: None,
            rows: None,
        }
    }

    /// A run that is one task: the rows of a list, all of them between these two regions and checked.
    #[must_use]
    pub fn of_rows(rows: Box<RowList>, src: Arc<Region>, dst: Arc<Region>, id: u32) -> (Run, Task) {
        let list = std::ptr::from_ref(&rows.rows).cast();
        let to = rows.len as u32;
        let mut run = Run::new(Transfer::NOTHING, src, dst, None);
        run.rows = Some(rows);
        run.exhausted = true;
        run.outstanding = 1;
        (run, Task { src: list, list: true, to, id, ..Task::NOTHING })
    }

    /// The list of [`of_rows`](Self::of_rows), empty, to be used again.
    pub fn take_rows(&mut self) -> Option<Box<RowList>> {
        let mut rows = self.rows.take()?;
        rows.len = 0;
        Some(rows)
    }

    /// True if this memory is read or written by it.
    #[must_use]
    pub fn uses(&self, region: &Arc<Region>) -> bool {
        let index = self.index.as_ref().is_some_and(|index| Arc::ptr_eq(index, region));
        Arc::ptr_eq(&self.src, region) || Arc::ptr_eq(&self.dst, region) || index
    }

    /// True if it is long enough to be worth waking a worker for. How much an array of fragment records describes is not
    /// known, so it counts as long.
    #[must_use]
    pub fn is_long(&self) -> bool {
        const LONG_BYTES: u64 = 4 * TASK_BYTES;
        let shape = &self.transfer.shape;
        shape.kinds[0] == IndexKind::Fragments
            || shape.fragment_bytes().saturating_mul(shape.count.into()) >= LONG_BYTES
    }

    /// The next piece. A task counts as outstanding until [`came_back`](Self::came_back); a row counts as written.
    pub fn cut(&mut self, id: u32) -> Option<Cut> {
        // What is written to a lost region costs this process memory, and is worth nothing.
        if self.exhausted || (self.dst.may_be_lost() && self.dst.is_lost()) {
            self.exhausted = true;
            return None;
        }
        let cut = self.cut_next(id);
        match &cut {
            Some(Cut::Task(_)) => self.outstanding += 1,
            Some(Cut::Row { len, .. }) => self.bytes = self.bytes.saturating_add((*len).into()),
            Some(Cut::Missing) => {}
            None => self.exhausted = true,
        }
        cut
    }

    /// Most bytes that its tasks may still write.
    #[must_use]
    pub fn outstanding_bytes(&self) -> u64 {
        u64::from(self.outstanding) * TASK_BYTES
    }

    /// Nothing more of it is to be started.
    pub fn give_up(&mut self) {
        self.given_up |= !self.exhausted;
        self.exhausted = true;
    }

    /// True unless it was given up before its end.
    #[must_use]
    pub fn was_cut_whole(&self) -> bool {
        !self.given_up
    }

    /// Takes the result of a task.
    pub fn came_back(&mut self, done: &Done) {
        self.outstanding -= 1;
        self.bytes = self.bytes.saturating_add(done.bytes);
        if let Some(fault) = done.fault {
            self.fail(fault);
        }
    }

    /// True when everything was cut that will be, and has come back.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.exhausted && self.outstanding == 0
    }

    /// Bytes written, or the lowest fragment that could not be done. To be asked when it is drained: what was copied from
    /// or to a region that is lost by now, and what was read from its index, is worth nothing.
    pub fn result(&self) -> Result<u64, Fault> {
        self.lost().or(self.fault).map_or(Ok(self.bytes), Err)
    }

    fn lost(&self) -> Option<Fault> {
        let used = [Some(&self.src), Some(&self.dst), self.index.as_ref()];
        let fields = [Field::SRC_REGION, Field::DST_REGION, Field::INDEX_REGION];
        let which = used.iter().position(|region| region.is_some_and(|region| region.is_lost()))?;
        let handle = self.transfer.shape.regions[which];
        Some(Fault::new(Status::REGION_GONE, Stage::PACK, fields[which], handle.into()))
    }

    fn fail(&mut self, fault: Fault) {
        if self.fault.is_none_or(|known| fault.fragment < known.fragment) {
            self.fault = Some(fault);
        }
        self.exhausted = true;
    }

    fn cut_next(&mut self, id: u32) -> Option<Cut> {
        loop {
            if let Some(rest) = &mut self.rest {
                if let Some(task) = rest.cut(id) {
                    return Some(Cut::Task(task));
                }
                self.rest = None;
            }
            let shape = &self.transfer.shape;
            if self.next == shape.count {
                return None;
            }
            let is_wide = shape.fragment_bytes() >= WIDE_BYTES || u64::from(shape.inner_count) > TASK_PIECES;
            if shape.kinds[0] != IndexKind::Fragments && !is_wide {
                return Some(Cut::Task(self.cut_uniform(id)));
            }
            let fragment = self.next;
            self.next += 1;
            let looked_up =
                if shape.kinds[0] == IndexKind::Fragments { self.record(fragment) } else { self.wide(fragment) };
            match looked_up {
                Ok(Some(rest)) if rest.is_row() => {
                    return Some(Cut::Row { src: rest.src, dst: rest.dst, len: rest.len });
                }
                Ok(Some(rest)) => self.rest = Some(rest),
                Ok(None) => return Some(Cut::Missing),
                Err(fault) => {
                    self.fail(Fault { fragment, ..fault });
                    return None;
                }
            }
        }
    }

    /// As many small uniform fragments as make a task.
    fn cut_uniform(&mut self, id: u32) -> Task {
        let shape = self.transfer.shape;
        let pieces = TASK_PIECES / u64::from(shape.inner_count);
        let per_task = (TASK_BYTES / shape.fragment_bytes().max(1)).min(pieces).max(1) as u32;
        let from = self.next;
        self.next = from + per_task.min(shape.count - from);
        Task {
            src: self.src.as_ptr().wrapping_add(shape.offsets[0] as usize),
            dst: self.dst.as_ptr().wrapping_add(shape.offsets[1] as usize),
            index: self.index_arrays(),
            max: [self.transfer.src_max, self.transfer.dst_max],
            len: shape.len,
            strides: shape.strides,
            inner_count: shape.inner_count,
            inner_strides: shape.inner_strides,
            from,
            to: self.next,
            kinds: shape.kinds,
            missing: shape.missing,
            zero: false,
            list: false,
            id,
        }
    }

    /// Looks one wide fragment up. `Ok(None)`: it is missing and left as it is.
    fn wide(&self, fragment: u32) -> Result<Option<Rest>, Fault> {
        let shape = &self.transfer.shape;
        let Some(place) = self.transfer.place([self.number(0, fragment), self.number(1, fragment)])? else {
            return Ok(None);
        };
        let (rows, len, strides) = (shape.inner_count, shape.len, shape.inner_strides);
        Ok(Some(self.rest(place, rows, len, strides)))
    }

    /// Looks one irregular fragment up.
    fn record(&self, fragment: u32) -> Result<Option<Rest>, Fault> {
        // SAFETY: planning checked that the array of `count` records is aligned and inside the index region.
        let record = unsafe { load_record(&self.transfer, self.index_arrays()[0], fragment) }?;
        let [src, dst, _] = self.transfer.shape.offsets;
        let place = Place { src: src + record.src, dst: dst + record.dst, zero: false };
        Ok(Some(self.rest(place, 1, record.len, [0, 0])))
    }

    fn rest(&self, Place { src, dst, zero }: Place, rows: u32, len: u32, strides: [u32; 2]) -> Rest {
        let src = self.src.as_ptr().wrapping_add(src as usize).cast_const();
        let dst = self.dst.as_ptr().wrapping_add(dst as usize);
        Rest { src, dst, zero, rows, len, strides, row: 0, byte: 0 }
    }

    /// The number of a fragment on one side, read once.
    fn number(&self, side: usize, fragment: u32) -> u64 {
        let (mut half, mut number) = ([0], [0]);
        let (kind, array) = (self.transfer.shape.kinds[side], self.index_arrays()[side]);
        // SAFETY: planning checked that the array of `count` numbers is aligned and inside the index region.
        unsafe { load_numbers(kind, array, fragment, &mut half, &mut number) };
        number[0]
    }

    fn index_arrays(&self) -> [*const u8; 2] {
        index_arrays(self.index.as_deref(), &self.transfer.shape)
    }
}

impl Rest {
    fn is_row(&self) -> bool {
        self.rows == 1 && !self.zero && self.len as usize <= copy::ROW_MAX
    }

    /// The next rows, or part of a long row.
    fn cut(&mut self, id: u32) -> Option<Task> {
        if self.row == self.rows || self.len == 0 {
            return None;
        }
        let (len, rows) = if u64::from(self.len) > TASK_BYTES {
            ((self.len - self.byte).min(TASK_BYTES as u32), 1)
        } else {
            (self.len, (TASK_BYTES / u64::from(self.len)).min(TASK_PIECES) as u32)
        };
        let task = Task {
            src: self.src.wrapping_add(self.byte as usize),
            dst: self.dst.wrapping_add(self.byte as usize),
            index: [std::ptr::null(); 2],
            max: [None; 2],
            len,
            strides: self.strides,
            inner_count: 1,
            inner_strides: [0; 2],
            from: self.row,
            to: self.row + rows.min(self.rows - self.row),
            kinds: [IndexKind::None; 2],
            missing: Missing::Row,
            zero: self.zero,
            list: false,
            id,
        };
        if self.byte + len < self.len {
            self.byte += len;
        } else {
            self.byte = 0;
            self.row = task.to;
        }
        Some(task)
    }
}

// SAFETY: the pointers lead into regions that the run keeps mapped, and are used by the copy routines only.
unsafe impl Send for Run {}
