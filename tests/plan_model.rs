//! Planning one descriptor, compared with the model's checks and with plain arithmetic.

mod model;
mod planned;
mod seeded;

use model::memory::Shape as ModelShape;
use model::{Memory, Region, Work, check};
use planned::{Planned, failure, plan};
use ring_abi::{Descriptor, Entry, Extension, Field, Flags, IndexKind, NOTIFY_BYTES_MAX, Opcode, Stage, Status};
use scatter_ring::plan::{Extent, Fault, Missing, Notice, Shape, Transfer};
use seeded::{Random, cases};

const BYTES: u32 = 256;
const SRC: u32 = 0x1001;
const DST: u32 = 0x1002;
const INDEX: u32 = 0x1003;
const NO_READ: u32 = 0x1004;
const NO_WRITE: u32 = 0x1005;
const GONE: u32 = 0x1006;
const GONE_NO_RIGHT: u32 = 0x1007;
const ENGINES: u32 = 0x1008;
const UNKNOWN: u32 = 0x2001;
const NUMBERS: [IndexKind; 3] = [IndexKind::None, IndexKind::U32, IndexKind::U64];

#[test]
fn a_descriptor_is_planned_or_refused_as_the_model_says() {
    let memory = memory();
    let mut refused = 0;
    cases(150_000, |random| {
        let (mut d, mut second) = well_formed(random);
        for _ in 0..random.below(4) {
            mutate(random, &mut d, &mut second);
        }
        let second = (d.flags & Flags::EXTENDED != 0).then_some(&second);
        let is_first = !random.once_in(4);
        let expected = check::check(&d, second, is_first, &memory);
        let planned = plan(&d, second, is_first, &memory);
        refused += u64::from(planned.is_err());
        let as_model = planned.map_err(failure).map(|planned| match planned {
            Planned::Nothing | Planned::Begin { .. } => Work::Nothing,
            Planned::Cancel { target } => Work::Cancel(target),
            Planned::Transfer(_) => Work::Transfer(d, second.map(Extension::from_entry)),
            Planned::Notify(_) => Work::Notify(d),
        });
        assert_eq!(as_model, expected, "{d:?} {second:x?} is_first: {is_first}");
        match planned {
            Ok(Planned::Begin { deadline_ns }) => assert_eq!(deadline_ns, d.dst_offset),
            Ok(Planned::Notify(notice)) => {
                let Notice { src_region, src_offset, len, dst_region, offset, user_data } = notice;
                let whole = Descriptor { src_region, src_offset, len, dst_region, user_data, ..Descriptor::ZERO };
                assert_eq!(Descriptor { opcode: d.opcode, flags: d.flags, dst_offset: offset, ..whole }, d);
            }
            Ok(Planned::Transfer(transfer)) => assert_transfer(random, &transfer, &d, second, &memory),
            _ => {}
        }
    });
    println!("{refused} refused");
}

#[test]
fn bounds_are_those_of_unlimited_arithmetic() {
    cases(100_000, |random| {
        let shape = any_shape(random);
        let extents = [0, 1, 2].map(|side| any_extent(random, shape.offsets[side]));
        let index = shape.kinds.iter().any(|kind| *kind != IndexKind::None).then_some(extents[2]);
        let bounds = shape.bounds(extents[0], extents[1], index);
        match (naive_bounds(&shape, extents), bounds) {
            (Some(expected), found) => assert_eq!(found, Err(expected), "{shape:?} {extents:?}"),
            (None, Err(fault)) => panic!("{fault:?} {shape:?} {extents:?}"),
            (None, Ok(transfer)) => {
                assert_eq!(transfer.shape, shape);
                for side in 0..2 {
                    let max = [transfer.src_max, transfer.dst_max][side];
                    for number in telling_numbers(random, max) {
                        let fits = naive_fits(&shape, side, number, extents[side]);
                        let is_allowed = max.is_some_and(|max| number <= max);
                        assert_eq!(is_allowed && !transfer.is_empty(), fits && !transfer.is_empty(), "{transfer:?}");
                    }
                }
            }
        }
    });
}

fn memory() -> Memory {
    let region = |handle| Region {
        handle,
        bytes: vec![0; BYTES as usize],
        read: true,
        write: true,
        gone: false,
        engines_own: false,
    };
    let regions = vec![
        region(SRC),
        region(DST),
        region(INDEX),
        Region { read: false, ..region(NO_READ) },
        Region { write: false, ..region(NO_WRITE) },
        Region { gone: true, ..region(GONE) },
        Region { gone: true, read: false, write: false, ..region(GONE_NO_RIGHT) },
        Region { engines_own: true, ..region(ENGINES) },
    ];
    Memory { regions }
}

const OTHERS: [Opcode; 4] = [Opcode::NOP, Opcode::BEGIN, Opcode::CANCEL, Opcode::NOTIFY];

/// A descriptor that passes all checks as a batch's first one, and a slot to stand behind it if it is EXTENDED.
fn well_formed(random: &mut Random) -> (Descriptor, Entry) {
    let moves = Opcode(random.pick(&[Opcode::READ.0, Opcode::WRITE.0]));
    let opcode = if random.once_in(5) { random.pick(&OTHERS) } else { moves };
    let fence = if random.once_in(4) { Flags::FENCE } else { 0 };
    let must_be_last = opcode == Opcode::CANCEL || opcode == Opcode::NOTIFY;
    let last = if random.once_in(2) || must_be_last { Flags::LAST } else { 0 };
    let mut d = Descriptor { opcode: opcode.0, flags: fence | last, user_data: random.word(), ..Descriptor::ZERO };
    match opcode {
        Opcode::NOP => {}
        Opcode::BEGIN => {
            (d.count, d.src_offset, d.dst_offset) = (random.small(9), random.below(99), random.below(99));
        }
        Opcode::CANCEL => d.src_offset = random.word(),
        Opcode::NOTIFY => {
            (d.dst_region, d.dst_offset) = (random.pick(&[DST, NO_WRITE, NO_READ]), random.word());
            d.len = random.small(3) * 128;
            (d.src_region, d.src_offset) = if d.len > 0 { (SRC, u64::from(BYTES - d.len)) } else { (0, 0) };
        }
        _ => well_formed_transfer(random, &mut d),
    }
    let inner_stride = d.len + random.small(4);
    (d, Extension::new(1 + random.small(3), random.small(12), inner_stride).to_entry())
}

fn well_formed_transfer(random: &mut Random, d: &mut Descriptor) {
    d.src_region = SRC;
    d.dst_region = DST;
    d.src_offset = random.below(64);
    d.dst_offset = random.below(64);
    d.count = 1 + random.small(4);
    d.flags |= if random.once_in(4) { Flags::DIRECT } else { 0 };
    if random.once_in(6) {
        d.index_kind = IndexKind::pack(IndexKind::Fragments, IndexKind::Fragments);
    } else {
        d.index_kind = IndexKind::pack(random.pick(&NUMBERS), random.pick(&NUMBERS));
        d.len = 1 + random.small(8);
        d.src_stride = random.small(32);
        d.dst_stride = d.len + random.small(24);
        d.flags |= if random.once_in(3) { Flags::EXTENDED } else { 0 };
        if d.index_kind & 15 != 0 {
            d.flags |= random.pick(&[0, 0, Flags::MISSING_ZERO, Flags::MISSING_SKIP]);
        }
    }
    if d.index_kind != 0 {
        let odd_halves = d.index_kind == IndexKind::pack(IndexKind::U32, IndexKind::U64) && d.count % 2 == 1;
        d.index_region = INDEX;
        d.index_offset = 8 * random.below(8) + if odd_halves { 4 } else { 0 };
    }
}

/// Puts a value in one field that is likely to be just right, just wrong or far off.
fn mutate(random: &mut Random, d: &mut Descriptor, second: &mut Entry) {
    let from_end = |bytes: u64| u64::from(BYTES).wrapping_sub(bytes);
    let inside = random.below(BYTES.into());
    let value = random.pick(&[
        0,
        1,
        u64::from(d.len).wrapping_sub(1),
        d.len.into(),
        u64::from(d.len) + 1,
        from_end(d.len.into()),
        from_end(d.len.into()).wrapping_add(1),
        from_end(4 * u64::from(d.count)),
        from_end(8 * u64::from(d.count)),
        from_end(24 * u64::from(d.count)),
        from_end(1),
        from_end(0),
        from_end(0) + 1,
        1 << 31,
        (1 << 32) - 1,
        NOTIFY_BYTES_MAX.into(),
        u64::from(NOTIFY_BYTES_MAX) + 1,
        1 << 63,
        u64::MAX,
        inside,
    ]);
    let region = random.pick(&[SRC, DST, INDEX, NO_READ, NO_WRITE, GONE, GONE_NO_RIGHT, ENGINES, UNKNOWN, 0]);
    match random.below(18) {
        0 => d.opcode = random.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 255]),
        1 => d.index_kind = random.pick(&[0, 1, 2, 3, 0x10, 0x11, 0x12, 0x20, 0x21, 0x22, 0x33, 0x13, 4, 0x44, 0xff]),
        2 => d.flags ^= 1 << random.below(8),
        3 => d.flags ^= random.word() as u16,
        4 => d.len = value as u32,
        5 => d.src_region = region,
        6 => d.dst_region = region,
        7 => d.src_offset = value,
        8 => d.dst_offset = value,
        9 => d.count = value as u32,
        10 => d.index_region = region,
        11 => d.index_offset = value,
        12 => d.src_stride = value as u32,
        13 => d.dst_stride = value as u32,
        14 => second[0] = second[0] & !0xffff_ffff | random.pick(&[0, 1, 7, 8, 0x0107, 0x8000_0007]),
        15 => second[0] = second[0] & 0xffff_ffff | value << 32,
        16 => {
            second[1] =
                random.pick(&[value << 32 | second[1] & 0xffff_ffff, value & 0xffff_ffff | second[1] & !0xffff_ffff])
        }
        _ => second[2 + random.below(6) as usize] = value,
    }
}

fn assert_transfer(random: &mut Random, t: &Transfer, d: &Descriptor, second: Option<&Entry>, memory: &Memory) {
    let missing = match d.flags & (Flags::MISSING_ZERO | Flags::MISSING_SKIP) {
        Flags::MISSING_ZERO => Some(Missing::Zero),
        Flags::MISSING_SKIP => Some(Missing::Skip),
        _ => None,
    };
    let all_ones = if d.index_kind & 15 == 1 { u32::MAX.into() } else { u64::MAX };
    assert_eq!(t.missing(), missing.map(|missing| (missing, all_ones)), "{d:?}");
    if t.shape.kinds[0] == IndexKind::Fragments {
        return;
    }
    let (src, dst) = ModelShape::both(d, second.map(Extension::from_entry).as_ref());
    for (shape, handle, max) in [(src, d.src_region, t.src_max), (dst, d.dst_region, t.dst_max)] {
        for number in telling_numbers(random, max) {
            let is_allowed = max.is_some_and(|max| number <= max);
            assert_eq!(is_allowed, shape.fits(number, memory.region(handle)), "{number} {t:?}");
        }
    }
}

fn telling_numbers(random: &mut Random, max: Option<u64>) -> [u64; 8] {
    let max = max.unwrap_or(0);
    let any = random.word() >> random.below(64);
    [0, 1, max.saturating_sub(1), max, max.saturating_add(1), u32::MAX.into(), any, u64::MAX]
}

/// Numbers of all sizes, and those near powers of 2.
fn any_word(random: &mut Random, bits: u64) -> u64 {
    let word = random.word() >> (64 - bits) >> random.below(bits);
    match random.below(4) {
        0 => (1 << random.below(bits)) - random.below(2),
        1 => u64::MAX >> (64 - bits),
        _ => word,
    }
}

/// Any shape that passes the checks of its descriptor.
fn any_shape(random: &mut Random) -> Shape {
    let scale = random.below(2);
    let mut half = || any_word(random, 32) as u32;
    let (mut len, mut strides, mut inner_strides) = (half(), [half(), half()], [half(), half()]);
    let (count, mut inner_count) = (half().max(1), half().max(1));
    let mut kinds = [random.pick(&NUMBERS), random.pick(&NUMBERS)];
    if random.once_in(8) {
        (len, strides, inner_count, inner_strides) = (0, [0; 2], 1, [0; 2]);
        kinds = [IndexKind::Fragments; 2];
    } else if random.once_in(2) {
        (inner_count, inner_strides) = (1, [0; 2]);
    }
    strides[1] = strides[1].max(len);
    Shape {
        regions: [SRC, DST, INDEX],
        offsets: [any_word(random, 64), any_word(random, 64), any_word(random, 64)].map(|offset| offset >> scale),
        count,
        len,
        strides,
        inner_count,
        inner_strides,
        kinds,
        missing: Missing::Row,
    }
}

/// A region that may well end somewhere behind the offset, at any address.
fn any_extent(random: &mut Random, offset: u64) -> Extent {
    let behind = any_word(random, 64);
    let bytes = if random.once_in(4) { behind } else { offset.saturating_add(behind) };
    Extent { bytes, misalignment: if random.once_in(2) { 0 } else { random.below(8) } }
}

fn naive_fits(shape: &Shape, side: usize, number: u64, extent: Extent) -> bool {
    let start = u128::from(shape.offsets[side]);
    if shape.kinds[0] == IndexKind::Fragments {
        return start + u128::from(number) <= u128::from(extent.bytes);
    }
    let step = u128::from(number) * u128::from(shape.strides[side]);
    let inner = u128::from(shape.inner_count - 1) * u128::from(shape.inner_strides[side]);
    start + step + inner + u128::from(shape.len) <= u128::from(extent.bytes)
}

/// The first rule of the order of checks that is broken.
fn naive_bounds(shape: &Shape, extents: [Extent; 3]) -> Option<Fault> {
    let [src, dst] = shape.kinds;
    let records = src == IndexKind::Fragments;
    let at_index = |status| Some(Fault::new(status, Stage::PLAN, Field::INDEX_OFFSET, shape.offsets[2]));
    let second_array = u128::from(shape.offsets[2]) + u128::from(shape.count) * u128::from(src.entry_bytes());
    let array_end = second_array + u128::from(shape.count) * u128::from(if records { 0 } else { dst.entry_bytes() });
    let aligned = |kind: IndexKind, offset: u128| {
        let entry = if kind == IndexKind::U32 { 4 } else { 8 };
        kind == IndexKind::None || (offset + u128::from(extents[2].misalignment)).is_multiple_of(entry)
    };
    let first = if src == IndexKind::None { dst } else { src };
    if !aligned(first, shape.offsets[2].into()) {
        return at_index(Status::MISALIGNED_INDEX);
    }
    if first != IndexKind::None && array_end > u128::from(extents[2].bytes) {
        return at_index(Status::OUT_OF_RANGE);
    }
    if !records && !aligned(dst, second_array) {
        return at_index(Status::MISALIGNED_INDEX);
    }
    if records || shape.len == 0 {
        return None;
    }
    let lowest = |side: usize| {
        let fits = |number: u32| naive_fits(shape, side, number.into(), extents[side]);
        if shape.kinds[side] != IndexKind::None || fits(shape.count - 1) {
            return None;
        }
        let (mut from, mut to) = (0, shape.count - 1);
        while from < to {
            let middle = from + (to - from) / 2;
            (from, to) = if fits(middle) { (middle + 1, to) } else { (from, middle) };
        }
        Some(from)
    };
    let sides = [(0, Field::SRC_OFFSET), (1, Field::DST_OFFSET)];
    let found = sides.into_iter().filter_map(|(side, field)| Some((lowest(side)?, side, field)));
    let (fragment, side, field) = found.min_by_key(|(fragment, side, _)| (*fragment, *side))?;
    let at = u128::from(shape.offsets[side]) + u128::from(fragment) * u128::from(shape.strides[side]);
    let detail = u64::try_from(at).unwrap_or(u64::MAX);
    Some(Fault { fragment, ..Fault::new(Status::OUT_OF_RANGE, Stage::PLAN, field, detail) })
}
