//! Index words for a planner, a window at a time: copied once into private memory, and not looked at again.

use super::lookup::index_arrays;
use crate::plan::{Missing, Numbers, Transfer, WINDOW, Words};
use crate::region::{Region, copy};
use ring_abi::{FragmentRecord, IndexKind};

/// Private memory for the words of one window; allocated once.
#[derive(Debug)]
pub struct NumberWindow {
    halves: [Box<[u32; WINDOW]>; 2],
    wholes: [Box<[u64; WINDOW]>; 2],
    words: Box<[[u64; 3]; WINDOW]>,
    records: Box<[FragmentRecord; WINDOW]>,
    kinds: [IndexKind; 2],
    count: u32,
}

impl Default for NumberWindow {
    fn default() -> Self {
        let (half, whole) = (|| Box::new([0; WINDOW]), || Box::new([0; WINDOW]));
        NumberWindow {
            halves: [half(), half()],
            wholes: [whole(), whole()],
            words: Box::new([[0; 3]; WINDOW]),
            records: Box::new([FragmentRecord::default(); WINDOW]),
            kinds: [IndexKind::None; 2],
            count: 0,
        }
    }
}

impl NumberWindow {
    /// Copies the words of the fragments from `from` on: of [`WINDOW`] of them at most, if there is an index.
    ///
    /// # Safety
    /// `index` is the mapped region that the transfer was checked against.
    pub unsafe fn load(&mut self, transfer: &Transfer, index: Option<&Region>, from: u32) {
        let shape = &transfer.shape;
        let left = shape.count.saturating_sub(from);
        self.kinds = shape.kinds;
        self.count = if self.kinds == [IndexKind::None; 2] { left } else { left.min(WINDOW as u32) };
        let (at, count) = (from as usize, self.count as usize);
        let arrays = index_arrays(index, shape);
        if self.kinds[0] == IndexKind::Fragments {
            // SAFETY: planning has found the array of records, of `shape.count` entries, inside the index region, aligned.
            unsafe { copy::load_records(arrays[0].add(at * RECORD_BYTES), &mut self.words[..count]) };
            let records = self.records.iter_mut().zip(&self.words[..count]);
            records.for_each(|(record, words)| *record = FragmentRecord::from_words(*words));
            return;
        }
        for (side, array) in arrays.into_iter().enumerate() {
            // SAFETY: as above, for arrays of words.
            unsafe {
                match self.kinds[side] {
                    IndexKind::U32 => copy::load_u32s(array.add(at * 4), &mut self.halves[side][..count]),
                    IndexKind::U64 => copy::load_u64s(array.add(at * 8), &mut self.wholes[side][..count]),
                    IndexKind::None | IndexKind::Fragments => {}
                }
            }
        }
    }

    /// Fragments of the window.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// What was copied.
    #[must_use]
    pub fn numbers(&self) -> Numbers<'_> {
        let count = self.count as usize;
        if self.kinds[0] == IndexKind::Fragments {
            return Numbers::Records(&self.records[..count]);
        }
        let words = |side: usize| match self.kinds[side] {
            IndexKind::U32 => Words::U32(&self.halves[side][..count]),
            IndexKind::U64 => Words::U64(&self.wholes[side][..count]),
            IndexKind::None | IndexKind::Fragments => Words::Counted,
        };
        Numbers::Rows { src: words(0), dst: words(1) }
    }

    /// Payload of the window's fragments: what will be in place when all of them are done.
    #[must_use]
    pub fn bytes(&self, transfer: &Transfer) -> u64 {
        let count = self.count as usize;
        if self.kinds[0] == IndexKind::Fragments {
            return self.records[..count].iter().map(|record| u64::from(record.len)).sum();
        }
        let skipped = match (transfer.missing(), self.kinds[0]) {
            (Some((Missing::Skip, ones)), IndexKind::U32) => {
                self.halves[0][..count].iter().filter(|word| u64::from(**word) == ones).count()
            }
            (Some((Missing::Skip, ones)), _) => self.wholes[0][..count].iter().filter(|word| **word == ones).count(),
            _ => 0,
        };
        transfer.shape.fragment_bytes().saturating_mul((count - skipped) as u64)
    }
}

const RECORD_BYTES: usize = size_of::<[u64; 3]>();
