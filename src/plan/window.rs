//! What is known of a window before its fragments are planned.

use super::list::Lane;
use super::numbers::{Words, adjacent};
use super::{Fault, Shape, Transfer};

/// The fragments of a transfer, in the fewest pieces on each side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    /// Bytes of one piece that is contiguous on both sides.
    pub len: u32,
    /// Pieces of a fragment.
    pub inner_count: u32,
    pub inner_steps: [u32; 2],
    pub lanes: [Lane; 2],
}

/// A window that is being planned, and how far that has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub geometry: Geometry,
    pub way: Way,
    /// The transfer's number, in the high half of all marks.
    pub transfer: u32,
    /// Number of the first fragment.
    pub first: u32,
    /// Fragments that can be done; behind them there is the fault.
    pub usable: u32,
    pub fault: Option<Fault>,
    /// Next fragment, next piece of it, next byte of that.
    pub at: u32,
    pub piece: u32,
    pub byte: u32,
    /// Number that the words of each side are counted from.
    pub word_base: [u64; 2],
    /// True if no fragment starts where the one before ends.
    pub scattered: [bool; 2],
}

/// How the fragments of a window become sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// One by one, those that are adjacent at both ends merged.
    Merge,
    /// As many at once as fit: their words are copied.
    Bulk,
    /// One by one, each as a tile: inner repeats whose numbers cannot be copied.
    Tiles,
}

impl Geometry {
    pub fn of(shape: &Shape) -> Geometry {
        let row_bytes = u32::try_from(shape.fragment_bytes()).ok();
        let inner_count = shape.inner_count;
        let lane = |side: usize| {
            let lane = Lane {
                region: shape.regions[side],
                base: shape.offsets[side],
                step: shape.strides[side],
                len: shape.len,
                inner_count,
                inner_step: shape.inner_strides[side],
            };
            match row_bytes {
                Some(len) if inner_count == 1 || shape.inner_strides[side] == shape.len => {
                    Lane { len, inner_count: 1, inner_step: 0, ..lane }
                }
                _ => lane,
            }
        };
        let lanes = [lane(0), lane(1)];
        let (len, inner_count) = match row_bytes {
            Some(len) if lanes[0].inner_count == 1 && lanes[1].inner_count == 1 => (len, 1),
            _ => (shape.len, inner_count),
        };
        Geometry { len, inner_count, inner_steps: shape.inner_strides, lanes }
    }

    pub fn fragment_bytes(&self) -> u64 {
        u64::from(self.len) * u64::from(self.inner_count)
    }

    /// Whether fragments that are counted on both sides lie one behind the other.
    pub fn is_contiguous(&self) -> bool {
        self.inner_count == 1 && self.lanes.iter().all(|lane| lane.step == lane.len)
    }

    pub fn adjacent_steps(&self) -> [Option<u32>; 2] {
        self.lanes.map(|lane| lane.adjacent_step())
    }
}

impl Window {
    /// All fragments of it are planned.
    pub fn taken(geometry: Geometry) -> Window {
        Window {
            geometry,
            way: Way::Merge,
            transfer: 0,
            first: 0,
            usable: 0,
            fault: None,
            at: 0,
            piece: 0,
            byte: 0,
            word_base: [0; 2],
            scattered: [true; 2],
        }
    }

    /// Looks at all numbers of a window. `relative` gets those of 64 bits, counted from the smallest.
    pub fn open(
        transfer: &Transfer,
        first: u32,
        words: [Words<'_>; 2],
        direct_from_bytes: u64,
        relative: &mut [Box<[u32; super::WINDOW]>; 2],
    ) -> Window {
        let geometry = Geometry::of(&transfer.shape);
        let count = words[0].len().min(words[1].len()).min(transfer.shape.count.saturating_sub(first) as usize);
        let words = words.map(|words| words.first(count));
        let mut window = Window { first, usable: count as u32, ..Window::taken(geometry) };
        let largest = words.map(Words::largest);
        let has_missing = transfer.missing().is_some_and(|(_, ones)| largest[0] == Some(ones));
        let outside =
            |side: usize, max: Option<u64>| largest[side].is_some_and(|number| max.is_none_or(|max| number > max));
        if outside(0, transfer.src_max) || outside(1, transfer.dst_max) {
            window.find_fault(transfer, words);
        }
        let one_by_one = if geometry.inner_count == 1 { Way::Merge } else { Way::Tiles };
        window.way = if has_missing { one_by_one } else { window.choose(words, direct_from_bytes) };
        for side in 0..2 {
            if window.way == Way::Bulk && !window.count_from_smallest(side, words[side], &mut relative[side]) {
                window.way = one_by_one;
            }
        }
        window
    }

    /// The fragment that is next, as a segment carries it.
    pub fn mark(&self) -> u64 {
        mark(self.transfer, self.first + self.at)
    }

    fn find_fault(&mut self, transfer: &Transfer, words: [Words<'_>; 2]) {
        for i in 0..self.usable {
            if let Err(fault) = transfer.place(words.map(|words| words.number(self.first, i))) {
                let fragment = self.first + i;
                (self.usable, self.fault) = (i, Some(Fault { fragment, ..fault }));
                return;
            }
        }
    }

    /// Words are copied where few fragments can be merged and merging cannot make any of them long enough for the direct
    /// route. A few fragments are better off together with those of other descriptors.
    fn choose(&mut self, words: [Words<'_>; 2], direct_from_bytes: u64) -> Way {
        let (geometry, count) = (&self.geometry, self.usable);
        let adjacent = adjacent(words, count as usize, geometry.adjacent_steps());
        self.scattered = adjacent.sides.map(|count| count == 0);
        if geometry.inner_count > 1 {
            return Way::Bulk;
        }
        let longest = (u64::from(adjacent.both) + 1) * u64::from(geometry.len);
        let reaches = u64::from(geometry.len) < direct_from_bytes && longest >= direct_from_bytes;
        let merge = count < BULK_MIN || reaches || u64::from(adjacent.both) * 2 >= u64::from(count);
        if merge { Way::Merge } else { Way::Bulk }
    }

    /// False if the numbers of one side are too far from each other for 32 bits.
    fn count_from_smallest(&mut self, side: usize, words: Words<'_>, relative: &mut [u32; super::WINDOW]) -> bool {
        let Words::U64(words) = words else { return true };
        let words = &words[..words.len().min(self.usable as usize)];
        let smallest = words.iter().copied().min().unwrap_or(0);
        let largest = words.iter().copied().max().unwrap_or(0);
        if words.len() > relative.len() || largest - smallest > u64::from(u32::MAX) {
            return false;
        }
        self.word_base[side] = smallest;
        relative.iter_mut().zip(words).for_each(|(to, word)| *to = (word - smallest) as u32);
        true
    }
}

/// Which fragment of which transfer.
pub(super) fn mark(transfer: u32, fragment: u32) -> u64 {
    u64::from(transfer) << 32 | u64::from(fragment)
}

/// Fragments from which on a section of their own is worth its header.
const BULK_MIN: u32 = 16;
