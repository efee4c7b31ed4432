//! Transfers of all geometries at random, and what they move, byte by byte.

// Each test file that shares this module uses another part of it.
#![allow(dead_code)]

use crate::seeded::Random;
use ring_abi::{FragmentRecord, IndexKind};
use scatter_ring::plan::{Extent, Fault, Missing, Numbers, Shape, Transfer, Words};
use std::num::NonZeroU128;

/// One byte that moves: from where (`None`: it is 0), to where, and the fragment that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Byte {
    /// Offset, and the region above it.
    pub dst: u128,
    pub src: Option<NonZeroU128>,
}

pub fn at(region: u32, offset: u64) -> u128 {
    u128::from(region) << 64 | u128::from(offset)
}

/// A transfer with all its numbers.
#[derive(Debug)]
pub struct Job {
    pub transfer: Transfer,
    pub src: Vec<u64>,
    pub dst: Vec<u64>,
    pub records: Vec<FragmentRecord>,
}

/// Bytes of each region.
pub const MEMORY: usize = 200_000;

impl Job {
    pub fn is_counted(&self) -> bool {
        self.transfer.shape.kinds == [IndexKind::None; 2]
    }

    pub fn with_numbers<T>(&self, first: u32, count: u32, then: impl FnOnce(Numbers<'_>) -> T) -> T {
        let range = first as usize..(first + count) as usize;
        if self.transfer.shape.kinds[0] == IndexKind::Fragments {
            return then(Numbers::Records(&self.records[range]));
        }
        let halves = |all: &[u64]| -> Vec<u32> { all.iter().map(|word| *word as u32).collect() };
        let of = |kind: IndexKind, all: &Vec<u64>| {
            if kind == IndexKind::None { vec![] } else { all[range.clone()].to_vec() }
        };
        let [src_kind, dst_kind] = self.transfer.shape.kinds;
        let (src, dst) = (of(src_kind, &self.src), of(dst_kind, &self.dst));
        let (src_halves, dst_halves) = (halves(&src), halves(&dst));
        let src = words(src_kind, &src, &src_halves);
        let dst = words(dst_kind, &dst, &dst_halves);
        then(Numbers::Rows { src, dst })
    }
}

fn words<'a>(kind: IndexKind, words: &'a [u64], halves: &'a [u32]) -> Words<'a> {
    match kind {
        IndexKind::U32 => Words::U32(halves),
        IndexKind::U64 => Words::U64(words),
        _ => Words::Counted,
    }
}

/// The job and the fragment that name a byte.
pub type Mark = (usize, u32);

/// Every byte with its mark, up to the first fragment that cannot be done.
pub fn naive(jobs: &[Job]) -> (Vec<(Byte, Mark)>, Option<Fault>) {
    let mut bytes = Vec::new();
    for (number, job) in jobs.iter().enumerate() {
        let Job { transfer, src, dst, records } = job;
        let shape = &transfer.shape;
        let [src_region, dst_region, _] = shape.regions;
        let mut add = |fragment: u32, src: Option<u64>, dst: u64, len: u32| {
            for i in 0..u64::from(len) {
                let src = src.and_then(|src| NonZeroU128::new(at(src_region, src + i)));
                let byte = Byte { dst: at(dst_region, dst + i), src };
                bytes.push((byte, (number, fragment)));
            }
        };
        if transfer.is_empty() {
            continue;
        }
        for i in 0..shape.count {
            if shape.kinds[0] == IndexKind::Fragments {
                let record = &records[i as usize];
                if let Err(fault) = transfer.check_record(record) {
                    return (bytes, Some(Fault { fragment: i, ..fault }));
                }
                add(i, Some(shape.offsets[0] + record.src), shape.offsets[1] + record.dst, record.len);
                continue;
            }
            let number = |side: usize, all: &[u64]| {
                if shape.kinds[side] == IndexKind::None { i.into() } else { all[i as usize] }
            };
            match transfer.place([number(0, src), number(1, dst)]) {
                Err(fault) => return (bytes, Some(Fault { fragment: i, ..fault })),
                Ok(None) => {}
                Ok(Some(place)) => {
                    for k in 0..u64::from(shape.inner_count) {
                        let [src_step, dst_step] = shape.inner_strides.map(u64::from);
                        let src = (!place.zero).then(|| place.src + k * src_step);
                        add(i, src, place.dst + k * dst_step, shape.len);
                    }
                }
            }
        }
    }
    (bytes, None)
}

/// `near`: everything lies in the first [`MEMORY`] bytes of its region.
pub fn any_job(random: &mut Random, near: bool) -> Option<Job> {
    const KINDS: [IndexKind; 3] = [IndexKind::None, IndexKind::U32, IndexKind::U64];
    let len = match random.below(200) {
        0 => 20_000 + random.small(2000),
        1..10 => 100 + random.small(900),
        10..14 => 0,
        _ => 1 + random.small(40),
    };
    let count = match random.below(60) {
        0 if len < 50 => 1 + random.small(2000),
        1..20 => 1 + random.small(60),
        20..30 => 1,
        _ => 1 + random.small(8),
    };
    let count = if len > 10_000 { count.min(4) } else { count };
    let base = |random: &mut Random| {
        let at = random.below(5000);
        let far = random.pick(&[at, (1 << 32) - at, (7 << 33) + at, u64::MAX - 1_000_000 - at]);
        if near { at } else { far }
    };
    let gap = |random: &mut Random| if random.once_in(2) { 0 } else { random.small(30) };
    let mut kinds = [random.pick(&KINDS), random.pick(&KINDS)];
    let inner_count = if random.once_in(4) { 1 + random.small(5) } else { 1 };
    let inner_strides = [len + gap(random), len + gap(random)];
    let fragment_bytes = [0, 1].map(|side| len + (inner_count - 1) * inner_strides[side]);
    let any_stride = random.small(2 * len.max(1));
    let src_stride = random.pick(&[fragment_bytes[0], fragment_bytes[0], len / 2, any_stride, 0]);
    let mut shape = Shape {
        regions: [1 + random.small(2), 3 + random.small(2), 9],
        offsets: [base(random), base(random), 0],
        count,
        len,
        strides: [src_stride, fragment_bytes[1] + gap(random)],
        inner_count,
        inner_strides,
        kinds,
        missing: Missing::Row,
    };
    if random.once_in(8) {
        kinds = [IndexKind::Fragments; 2];
        shape = Shape { len: 0, strides: [0; 2], inner_count: 1, inner_strides: [0; 2], kinds, ..shape };
    }
    if matches!(kinds[0], IndexKind::U32 | IndexKind::U64) {
        shape.missing = random.pick(&[Missing::Row, Missing::Row, Missing::Zero, Missing::Skip]);
    }
    shape.offsets[2] = u64::from(shape.kinds == [IndexKind::U32, IndexKind::U64] && count % 2 == 1) * 4;
    let far_room = random.pick(&[1, 100, 100_000, 1 << 40]);
    let room = if near { random.below(20_000) } else { far_room };
    let extent = |side: usize| Extent {
        bytes: shape.offsets[side].saturating_add(u64::from(fragment_bytes[side])).saturating_add(room),
        misalignment: 0,
    };
    let index = shape.kinds.iter().any(|kind| *kind != IndexKind::None);
    let index = index.then_some(Extent { bytes: u64::MAX, misalignment: 0 });
    let transfer = shape.bounds(extent(0), extent(1), index).ok()?;
    let ones = [u32::MAX.into(), u64::MAX][usize::from(kinds[0] == IndexKind::U64)];
    let careless = random.once_in(6);
    let src = any_numbers(
        random,
        count,
        transfer.src_max,
        kinds[0],
        (shape.missing != Missing::Row).then_some(ones),
        careless,
    );
    let dst = any_numbers(random, count, transfer.dst_max, kinds[1], None, careless);
    let records = any_records(random, &transfer, careless);
    Some(Job { transfer, src, dst, records })
}

/// Runs of numbers that follow each other, and jumps.
fn any_numbers(
    random: &mut Random,
    count: u32,
    max: Option<u64>,
    kind: IndexKind,
    ones: Option<u64>,
    careless: bool,
) -> Vec<u64> {
    let top = if kind == IndexKind::U32 { u32::MAX.into() } else { u64::MAX };
    let max = max.unwrap_or(0).min(top);
    let spread = random.pick(&[4, 300, 70_000, u64::MAX]);
    let jumps = random.pick(&[1, 2, 10]);
    let mut number = random.below(max.saturating_add(1).max(1).min(spread));
    let jump = |random: &mut Random| match random.below(3) {
        0 => max - random.below(spread.min(max.saturating_add(1).max(1))),
        _ => random.below(max.saturating_add(1).max(1).min(spread)),
    };
    (0..count)
        .map(|_| {
            number = if random.once_in(jumps) || number >= max { jump(random) } else { number + 1 };
            match ones {
                Some(ones) if random.once_in(6) => ones,
                _ if careless && random.once_in(50) => max.saturating_add(random.below(3)).min(top),
                _ => number,
            }
        })
        .collect()
}

fn any_records(random: &mut Random, transfer: &Transfer, careless: bool) -> Vec<FragmentRecord> {
    let maxima = [transfer.src_max, transfer.dst_max].map(|max| max.unwrap_or(0));
    let mut ends = [0; 2];
    let equal = random.once_in(2);
    (0..transfer.shape.count)
        .map(|_| {
            let len = if equal { 8 } else { random.small(50) };
            let at = [0, 1].map(|side: usize| {
                let most = maxima[side].saturating_sub(len.into());
                if random.once_in(2) && ends[side] <= most {
                    ends[side]
                } else {
                    random.below(most.saturating_add(1).max(1))
                }
            });
            ends = [at[0].saturating_add(len.into()), at[1].saturating_add(len.into())];
            let reserved = if careless && random.once_in(40) { 5 } else { 0 };
            let beyond = |side: usize| maxima[side].saturating_add(1);
            match random.below(40) {
                0 if careless => FragmentRecord { src: beyond(0), dst: at[1], len, reserved },
                1 if careless => FragmentRecord { src: at[0], dst: beyond(1), len, reserved },
                _ => FragmentRecord { src: at[0], dst: at[1], len, reserved },
            }
        })
        .collect()
}
