//! Segments that wait to be encoded together, in the shortest form that fits all of them.

use super::list::{Lane, List};
use super::section::{Form, Header};

/// Segments of one pair of regions, in order. Source offsets of all ones are zeros.
#[derive(Debug)]
pub(super) struct Pending {
    waiting: Box<Waiting>,
    /// The oldest that waits, and behind the youngest.
    from: usize,
    to: usize,
    bytes: u64,
    /// To be encoded when `to` or `bytes` has come so far.
    due_to: usize,
    due_bytes: u64,
}

/// Together, so that one pointer leads to all of it.
#[derive(Debug)]
struct Waiting {
    offsets: [[u64; PENDING]; 2],
    lens: [u32; PENDING],
    marks: [u64; PENDING],
}

/// Those that are taken out together: offsets of both sides, lengths, and the mark of the first one.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    pub offsets: [&'a [u64]; 2],
    pub lens: &'a [u32],
    pub mark: u64,
}

/// Room for the pieces of one side while they are merged.
#[derive(Debug)]
pub(super) struct Scratch {
    offsets: Box<[u64; PENDING]>,
    lens: Box<[u32; PENDING]>,
}

const PENDING: usize = 1024;

impl Pending {
    pub fn new() -> Pending {
        let waiting = Waiting { offsets: [[0; PENDING]; 2], lens: [0; PENDING], marks: [0; PENDING] };
        Pending { waiting: Box::new(waiting), from: 0, to: 0, bytes: 0, due_to: 0, due_bytes: 0 }
    }

    pub fn clear(&mut self) {
        (self.from, self.to, self.bytes) = (0, 0, 0);
    }

    pub fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// Whether it should be encoded: it fills what it was told to, or there is no room for more.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.to >= self.due_to || self.bytes >= self.due_bytes
    }

    pub fn set_due(&mut self, bytes: u32, segments: u32) {
        self.due_to = self.from.saturating_add(segments as usize).min(PENDING - 1);
        self.due_bytes = bytes.into();
    }

    /// How many more there is room for before it is flushed; one place is kept for the segment that still grows.
    pub fn room(&self) -> u32 {
        (PENDING - 1).saturating_sub(self.to) as u32
    }

    /// Adds one. True if what waits should be encoded then.
    #[inline]
    pub fn push(&mut self, src: u64, dst: u64, len: u32, mark: u64) -> bool {
        let at = self.to % PENDING;
        self.waiting.offsets[0][at] = src;
        self.waiting.offsets[1][at] = dst;
        self.waiting.lens[at] = len;
        self.waiting.marks[at] = mark;
        self.to = at + 1;
        self.bytes += u64::from(len);
        self.is_due()
    }

    /// How many of the oldest are together not longer than `bytes`, and their bytes.
    pub fn fitting(&self, bytes: u32, most: u32) -> (u32, u32) {
        let lens = &self.waiting.lens[self.from..self.to];
        if self.bytes <= bytes.into() && lens.len() <= most as usize {
            return (lens.len() as u32, self.bytes as u32);
        }
        let (mut count, mut sum) = (0, 0);
        for len in lens.iter().take(most as usize) {
            if *len > bytes - sum {
                break;
            }
            (count, sum) = (count + 1, sum + len);
        }
        (count, sum)
    }

    /// The length of the oldest, 0 if there is none.
    pub fn front_len(&self) -> u32 {
        if self.is_empty() { 0 } else { self.waiting.lens[self.from] }
    }

    /// Takes the oldest `count`, which have so many bytes.
    pub fn take(&mut self, count: u32, bytes: u32) -> Taken<'_> {
        let range = self.from..self.to.min(self.from + count as usize);
        let lens = &self.waiting.lens[range.clone()];
        let mark = lens.first().map_or(0, |_| self.waiting.marks[self.from]);
        self.bytes -= u64::from(bytes);
        self.from = range.end;
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        }
        let [src, dst] = &self.waiting.offsets;
        Taken { offsets: [&src[range.clone()], &dst[range]], lens, mark }
    }

    /// Takes the first bytes of the oldest, which has more: their offsets and the mark.
    pub fn split(&mut self, len: u32) -> ([u64; 2], u64) {
        let [src, dst] = &mut self.waiting.offsets;
        let at = [src[self.from], dst[self.from]];
        if at[0] != u64::MAX {
            src[self.from] += u64::from(len);
        }
        dst[self.from] += u64::from(len);
        self.waiting.lens[self.from] -= len;
        self.bytes -= u64::from(len);
        (at, self.waiting.marks[self.from])
    }
}

impl Scratch {
    pub fn new() -> Scratch {
        Scratch { offsets: Box::new([0; PENDING]), lens: Box::new([0; PENDING]) }
    }

    /// Adds pieces of one region to a list that has room for them: adjacent ones as one, and all of them in the shortest
    /// form. Offsets of all ones are zeros.
    pub fn encode(&mut self, list: &mut List, region: u32, offsets: &[u64], lens: &[u32]) {
        let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else { return };
        let pairs = offsets.iter().zip(lens).zip(offsets.iter().skip(1));
        let (mut joins, mut repeats) = (0, 0);
        for ((offset, len), next) in pairs {
            joins += u32::from(offset.wrapping_add(u64::from(*len)) == *next);
            repeats += u32::from(offset == next);
        }
        // Behind zeros the sum wraps, and then the last one is below the first.
        if joins as usize == offsets.len() - 1 && first <= last && *last != u64::MAX {
            return list.push_range(region, *first, lens.iter().sum());
        }
        // Without either there are no neighbours to merge, zeros or not.
        let (offsets, lens) = if joins + repeats == 0 { (offsets, lens) } else { self.merge(offsets, lens) };
        let (Some(first), Some(first_len)) = (offsets.first(), lens.first()) else { return };
        if offsets.len() == 1 {
            return match *first {
                u64::MAX => list.push_zeros(region, *first_len),
                offset => list.push_range(region, offset, *first_len),
            };
        }
        let stats = Stats::of(offsets, lens);
        let count = offsets.len() as u32;
        if let Some(step) = stats.equal_distance(offsets) {
            let lane = Lane { region, base: 0, step, len: *first_len, inner_count: 1, inner_step: 0 };
            return list.push_tile(&lane, *first, count);
        }
        let shift = stats.differences.trailing_zeros().min(31);
        // All ones stay free for zeros.
        let fits = (stats.largest - stats.smallest) >> shift < u64::from(u32::MAX);
        let (form, len) = match (fits, stats.equal) {
            (true, true) => (Form::Rows, *first_len),
            (true, false) => (Form::Mixed, 0),
            (false, _) => (Form::Plain, 0),
        };
        let (base, step) = if fits { (stats.smallest, 1 << shift) } else { (0, 0) };
        let zeros = stats.zeros;
        let header = Header { form, zeros, count, region, len, base, step, inner_count: 1, inner_step: 0 };
        list.push_pieces(header, offsets, lens);
    }

    /// The same pieces, adjacent ones as one.
    fn merge(&mut self, offsets: &[u64], lens: &[u32]) -> (&[u64], &[u32]) {
        let mut to = 0;
        for (offset, len) in offsets.iter().zip(lens) {
            if to > 0 {
                let (last, last_len) = (self.offsets[to - 1], &mut self.lens[to - 1]);
                let goes_on = if last == u64::MAX || *offset == u64::MAX {
                    last == *offset
                } else {
                    last + u64::from(*last_len) == *offset
                };
                // What is taken at once has less than 2^32 bytes.
                if goes_on {
                    *last_len += len;
                    continue;
                }
            }
            (self.offsets[to], self.lens[to]) = (*offset, *len);
            to += 1;
        }
        (&self.offsets[..to], &self.lens[..to])
    }
}

/// What the shortest form depends on.
struct Stats {
    smallest: u64,
    largest: u64,
    /// Every bit that is set in a difference to the first offset.
    differences: u64,
    /// All lengths are.
    equal: bool,
    zeros: bool,
}

impl Stats {
    fn of(offsets: &[u64], lens: &[u32]) -> Stats {
        // All zeros would be one piece.
        let first = offsets.iter().copied().find(|offset| *offset != u64::MAX).unwrap_or(0);
        let first_len = lens.first().copied().unwrap_or(0);
        let mut stats = Stats { smallest: first, largest: first, differences: 0, equal: true, zeros: false };
        let mut unequal = 0;
        for (offset, len) in offsets.iter().zip(lens) {
            let zero = *offset == u64::MAX;
            let offset = if zero { first } else { *offset };
            stats.smallest = stats.smallest.min(offset);
            stats.largest = stats.largest.max(offset);
            stats.differences |= offset.wrapping_sub(first);
            stats.zeros |= zero;
            unequal |= len ^ first_len;
        }
        stats.equal = unequal == 0;
        stats
    }

    /// From each to the next, if it is the same for all and the lengths are, too.
    fn equal_distance(&self, offsets: &[u64]) -> Option<u32> {
        let [first, second, ..] = offsets else { return None };
        let step = second.checked_sub(*first).filter(|_| self.equal && !self.zeros)?;
        let mut pairs = offsets.iter().zip(offsets.iter().skip(1));
        let equal = pairs.all(|(before, offset)| offset.wrapping_sub(*before) == step);
        equal.then(|| u32::try_from(step).ok()).flatten()
    }
}
