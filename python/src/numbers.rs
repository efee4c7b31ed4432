//! Row numbers, block numbers and ranges: arrays of integers that somebody else owns, and what becomes of them in the memory
//! that the engine reads them from.

use crate::array::{Array, shape_text};
use crate::errors::Failure;
use crate::memory::Memory;
use crate::session::Session;
use crate::side;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use ring_abi::{FragmentRecord, IndexKind};
use scatter_ring::region::copy::copy_range;
use std::sync::Arc;

/// A one-dimensional, packed array of integers.
pub struct Integers {
    /// The argument's name.
    pub what: &'static str,
    pub count: usize,
    array: Array,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    I32,
    U32,
    I64,
    U64,
}

/// So many are looked at in one go.
const BLOCK: usize = 1024;

impl Integers {
    pub fn of(object: &Bound<'_, PyAny>, what: &'static str) -> PyResult<Integers> {
        let array = Array::of_numbers(object, what)?;
        let kind = match array.layout.dtype.map(|dtype| dtype.name) {
            Some("int32") => Kind::I32,
            Some("uint32") => Kind::U32,
            Some("int64") => Kind::I64,
            Some("uint64") => Kind::U64,
            other => {
                let other = other.unwrap_or("of elements without a name");
                return Err(PyTypeError::new_err(format!("{what}: dtype {other}, not int32, uint32, int64 or uint64")));
            }
        };
        let [count] = array.layout.shape[..] else {
            let shape = shape_text(&array.layout.shape);
            return Err(PyValueError::new_err(format!("{what}: of shape {shape}, not one-dimensional")));
        };
        if u32::try_from(count).is_err() {
            return Err(PyValueError::new_err(format!("{what}: {count} of them; one operation takes 2**32 - 1")));
        }
        Ok(Integers { what, count, array, kind })
    }

    pub fn index_kind(&self) -> IndexKind {
        if self.width() == 4 { IndexKind::U32 } else { IndexKind::U64 }
    }

    fn width(&self) -> usize {
        if matches!(self.kind, Kind::I32 | Kind::U32) { 4 } else { 8 }
    }

    fn bytes(&self) -> usize {
        self.count * self.width()
    }

    /// Where they are, if the engine can read them there: in memory of this session.
    pub fn in_place(&self, session: &Arc<Session>) -> PyResult<Option<(Arc<Memory>, u64)>> {
        let found = side::find(session, &self.array)?;
        Ok(found.filter(|(memory, _)| {
            self.array.address.is_multiple_of(self.width()) && memory.check(session, self.what, false).is_ok()
        }))
    }

    /// Some of them from `first` on, as what they are in 64 bits: what is negative is beyond every size.
    fn read(&self, first: usize, out: &mut [u64]) {
        let address = self.array.address + first * self.width();
        // Each is looked at once: another thread may write to the array meanwhile.
        macro_rules! read_as {
            ($kind:ty) => {
                for (i, number) in out.iter_mut().enumerate() {
                    // SAFETY: the array has `count` numbers of this width, packed, and is kept; the caller asks for none
                    // behind them.
                    *number = unsafe { (address as *const $kind).add(i).read_unaligned() } as u64;
                }
            };
        }
        match self.kind {
            Kind::I32 => read_as!(i32),
            Kind::U32 => read_as!(u32),
            Kind::I64 => read_as!(i64),
            Kind::U64 => read_as!(u64),
        }
    }

    fn blocks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let count = self.count;
        (0..count).step_by(BLOCK).map(move |first| (first, BLOCK.min(count - first)))
    }

    /// An error if one of them is not below `limit`. All ones are, if they may mean a missing row.
    pub fn check_below(&self, limit: u64, missing: bool, of: &str) -> PyResult<()> {
        let mut block = [0; BLOCK];
        let all_ones = if self.kind == Kind::U32 { u64::from(u32::MAX) } else { u64::MAX };
        for (first, count) in self.blocks() {
            self.read(first, &mut block[..count]);
            let wrong = block[..count].iter().position(|number| *number >= limit && !(missing && *number == all_ones));
            if let Some(at) = wrong {
                let number = self.show(block[at]);
                return Err(PyValueError::new_err(format!(
                    "{}[{}] is {number}: {of} has {limit}",
                    self.what,
                    first + at
                )));
            }
        }
        Ok(())
    }

    /// As it was written.
    fn show(&self, number: u64) -> String {
        match self.kind {
            Kind::I32 | Kind::I64 => (number as i64).to_string(),
            Kind::U32 | Kind::U64 => number.to_string(),
        }
    }
}

/// What is written to index memory when the batch is submitted.
pub enum Filling {
    /// Numbers of the source's rows or blocks, and those of the destination's behind them.
    Numbers(Vec<Integers>),
    Records(Box<Records>),
    /// It was written already, for a batch that is submitted later.
    Bytes {
        bytes: Vec<u8>,
        offset: u64,
    },
}

/// Ranges, each with its own length.
pub struct Records {
    pub count: usize,
    /// `None`: one behind the other.
    pub src_offsets: Option<Integers>,
    pub dst_offsets: Option<Integers>,
    pub lengths: Lengths,
    /// What they have to lie in.
    pub src_bytes: u64,
    pub dst_bytes: u64,
}

pub enum Lengths {
    Each(Integers),
    All(u64),
}

const RECORD_BYTES: usize = size_of::<FragmentRecord>();

impl Filling {
    /// Of the memory that it needs.
    pub fn bytes(&self) -> u64 {
        let bytes = match self {
            Filling::Numbers(arrays) => arrays.iter().map(Integers::bytes).sum(),
            Filling::Records(records) => records.count * RECORD_BYTES,
            Filling::Bytes { bytes, .. } => return bytes.len() as u64,
        };
        self.offset() + bytes as u64
    }

    /// Where it starts there: an array of 8-byte numbers behind an odd number of 4-byte ones has to be aligned too.
    pub fn offset(&self) -> u64 {
        match self {
            Filling::Numbers(arrays) => match &arrays[..] {
                [first, second] if second.width() == 8 && first.bytes() % 8 != 0 => 4,
                _ => 0,
            },
            Filling::Records(_) => 0,
            Filling::Bytes { offset, .. } => *offset,
        }
    }

    /// Writes it, without the GIL.
    ///
    /// # Safety
    /// `to` points to [`bytes`](Self::bytes) bytes that may be written and that nobody else uses, aligned to 8.
    pub unsafe fn write(&self, to: *mut u8) -> Result<(), Failure> {
        match self {
            Filling::Numbers(arrays) => {
                let mut at = self.offset() as usize;
                for array in arrays {
                    // SAFETY: the array is kept; the room was counted by `bytes`.
                    unsafe { copy_range(array.array.address as *const u8, to.add(at), array.bytes()) };
                    at += array.bytes();
                }
                Ok(())
            }
            // SAFETY: the caller's promise.
            Filling::Records(records) => unsafe { records.write(to.cast()) },
            Filling::Bytes { bytes, .. } => {
                // SAFETY: as above.
                unsafe { copy_range(bytes.as_ptr(), to, bytes.len()) };
                Ok(())
            }
        }
    }

    /// The same, written now, so that the arrays may change before the batch is submitted.
    pub fn written(self) -> Result<Filling, Failure> {
        let mut words = vec![0u64; self.bytes().div_ceil(8) as usize];
        // SAFETY: memory of this size, of this function.
        unsafe { self.write(words.as_mut_ptr().cast()) }?;
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        bytes.truncate(self.bytes() as usize);
        Ok(Filling::Bytes { bytes, offset: self.offset() })
    }
}

impl Records {
    /// # Safety
    /// `to` points to room for `count` records.
    unsafe fn write(&self, to: *mut [u64; 3]) -> Result<(), Failure> {
        let (mut src, mut dst, mut lengths) = ([0; BLOCK], [0; BLOCK], [0; BLOCK]);
        let (mut src_next, mut dst_next) = (0u64, 0u64);
        if let Lengths::All(length) = self.lengths {
            lengths.fill(length);
        }
        for first in (0..self.count).step_by(BLOCK) {
            let count = BLOCK.min(self.count - first);
            if let Lengths::Each(each) = &self.lengths {
                each.read(first, &mut lengths[..count]);
            }
            self.offsets(&self.src_offsets, first, &lengths[..count], &mut src[..count], &mut src_next);
            self.offsets(&self.dst_offsets, first, &lengths[..count], &mut dst[..count], &mut dst_next);
            for i in 0..count {
                let fits = |offset: u64, all| offset.checked_add(lengths[i]).is_some_and(|end| end <= all);
                if lengths[i] > u64::from(u32::MAX) || !fits(src[i], self.src_bytes) || !fits(dst[i], self.dst_bytes) {
                    return Err(self.misfit(first + i, src[i], dst[i], lengths[i]));
                }
                let record = FragmentRecord { src: src[i], dst: dst[i], len: lengths[i] as u32, reserved: 0 };
                // SAFETY: the caller's promise; `first + i` is below `count`.
                unsafe { to.add(first + i).write(record.to_words()) };
            }
        }
        Ok(())
    }

    fn offsets(&self, given: &Option<Integers>, first: usize, lengths: &[u64], out: &mut [u64], next: &mut u64) {
        if let Some(given) = given {
            return given.read(first, out);
        }
        for (offset, length) in out.iter_mut().zip(lengths) {
            *offset = *next;
            *next = next.saturating_add(*length);
        }
    }

    fn misfit(&self, which: usize, src: u64, dst: u64, length: u64) -> Failure {
        let (src, dst, length) = (src as i64, dst as i64, length as i64);
        Failure::Argument(format!(
            "range {which}: {length} B at {src} of src ({} B) and at {dst} of dst ({} B): outside, or longer than 4 GiB",
            self.src_bytes, self.dst_bytes
        ))
    }
}
