//! Tests of the batch rules' model itself. Each name is the rule.

mod model;

use model::{Model, Region, Told};
use proptest::prelude::*;
use ring_abi::{Descriptor, Entry, Extension, Field, Flags, FragmentRecord, IndexKind, Opcode, Route, Span, SpanFlags};
use ring_abi::{NOTIFY_BYTES_MAX, Stage, Status};

const SRC: u32 = 0x1001;
const DST: u32 = 0x1002;
const INDEX: u32 = 0x1003;
const NO_READ: u32 = 0x1004;
const NO_WRITE: u32 = 0x1005;
const GONE: u32 = 0x1006;
const ENGINES: u32 = 0x1007;
const UNKNOWN: u32 = 0x2001;
const BYTES: usize = 256;

const U32_SRC: u8 = IndexKind::pack(IndexKind::U32, IndexKind::None);
const U32_DST: u8 = IndexKind::pack(IndexKind::None, IndexKind::U32);
const U32_BOTH: u8 = IndexKind::pack(IndexKind::U32, IndexKind::U32);
const RECORDS: u8 = IndexKind::pack(IndexKind::Fragments, IndexKind::Fragments);

const NOP: Descriptor = Descriptor { opcode: Opcode::NOP.0, ..Descriptor::ZERO };
const BEGIN: Descriptor = Descriptor { opcode: Opcode::BEGIN.0, ..Descriptor::ZERO };
/// Four bytes from 8 on, because of a region that was opened for reading only.
const NOTIFY: Descriptor = Descriptor {
    opcode: Opcode::NOTIFY.0,
    flags: Flags::LAST,
    len: 4,
    src_region: SRC,
    src_offset: 8,
    dst_region: NO_WRITE,
    dst_offset: 77,
    ..Descriptor::ZERO
};
/// Eight bytes from 0 to 0.
const READ: Descriptor = Descriptor {
    opcode: Opcode::READ.0,
    len: 8,
    src_region: SRC,
    dst_region: DST,
    count: 1,
    src_stride: 8,
    dst_stride: 8,
    ..Descriptor::ZERO
};

fn region(handle: u32, bytes: Vec<u8>) -> Region {
    Region { handle, bytes, read: true, write: true, gone: false, engines_own: false }
}

fn regions(index: &[u8]) -> Vec<Region> {
    let mut index = index.to_vec();
    index.resize(BYTES, 0);
    vec![
        region(SRC, (0..BYTES).map(|i| i as u8).collect()),
        region(DST, vec![0xee; BYTES]),
        region(INDEX, index),
        Region { read: false, ..region(NO_READ, vec![1; BYTES]) },
        Region { write: false, ..region(NO_WRITE, vec![2; BYTES]) },
        Region { gone: true, ..region(GONE, vec![3; BYTES]) },
        Region { engines_own: true, ..region(ENGINES, vec![4; BYTES]) },
    ]
}

fn model() -> Model {
    Model::new(regions(&[]), 64, 0)
}

fn numbers(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

fn last(d: Descriptor) -> Descriptor {
    Descriptor { flags: d.flags | Flags::LAST, ..d }
}

fn with(d: Descriptor, flags: u16) -> Descriptor {
    Descriptor { flags: d.flags | flags, ..d }
}

fn tagged(d: Descriptor, user_data: u64) -> Descriptor {
    Descriptor { user_data, ..d }
}

fn deadline(ns: u64) -> Descriptor {
    Descriptor { dst_offset: ns, ..BEGIN }
}

fn cancel(position: u64) -> Descriptor {
    last(Descriptor { opcode: Opcode::CANCEL.0, src_offset: position, ..Descriptor::ZERO })
}

/// Pushes and takes all that can be taken; nothing in flight ends.
fn take_all(model: &mut Model, descriptors: &[Descriptor]) {
    for d in descriptors {
        model.push(d.to_entry());
    }
    while model.take(0) {}
    model.assert_invariants();
}

/// Runs one batch of one descriptor and gives its only span, or the last of several.
fn run_one(index: &[u8], entries: &[Entry]) -> (Span, Model) {
    let mut m = Model::new(regions(index), 64, 0);
    entries.iter().for_each(|&e| m.push(e));
    m.run(0);
    m.assert_invariants();
    assert!(m.is_idle());
    let spans = m.reap();
    assert_eq!(spans.len(), 1, "{spans:#?}");
    (spans[0], m)
}

/// Status, field, detail, fragment and stage of a descriptor that fails.
fn failure_with(index: &[u8], entries: &[Entry]) -> (Status, Field, u64, u32, Stage) {
    let span = run_one(index, entries).0;
    assert!(!span.status().is_ok());
    (span.status(), span.field(), span.detail(), span.fragment(), Stage(span.stage))
}

/// The same of a descriptor that fails its checks, without index and extension; always about fragment 0.
fn failure(d: Descriptor) -> (Status, Field, u64) {
    let (status, field, detail, fragment, _) = failure_with(&[], &[last(d).to_entry()]);
    assert_eq!(fragment, 0);
    (status, field, detail)
}

/// first, count, status, flags
fn brief(spans: &[Span]) -> Vec<(u64, u32, Status, u16)> {
    spans.iter().map(|s| (s.first, s.count, s.status(), s.flags)).collect()
}

const DONE: u16 = SpanFlags::BATCH_DONE;
const HELD: u16 = SpanFlags::HELD;
const RELEASED: u16 = SpanFlags::RELEASED;

// Framing and success.

#[test]
fn a_success_is_one_span_over_all_slots() {
    let mut m = model();
    take_all(&mut m, &[tagged(NOP, 1), tagged(READ, 2), last(tagged(NOP, 3))]);
    assert_eq!(m.reap(), []);
    m.complete(1, 0);
    let expected =
        Span { first: 0, count: 3, bytes: 8, user_data: 3, flags: DONE, route: Route::DIRECT.0, ..Span::ZERO };
    assert_eq!(m.reap(), [expected]);
    assert_eq!(m.memory.region(DST).bytes[..9], [0, 1, 2, 3, 4, 5, 6, 7, 0xee]);
}

#[test]
fn a_batch_without_transfers_has_no_route() {
    assert_eq!(run_one(&[], &[last(NOP).to_entry()]).0.route, Route::NONE.0);
    assert_eq!(run_one(&[], &[last(Descriptor { len: 0, ..READ }).to_entry()]).0.route, Route::NONE.0);
}

#[test]
fn an_extended_descriptor_is_taken_only_with_both_its_slots() {
    let mut m = model();
    m.push(last(with(READ, Flags::EXTENDED)).to_entry());
    assert!(!m.take(0));
    m.push(Extension::new(2, 16, 8).to_entry());
    m.run(0);
    let spans = m.reap();
    assert_eq!((spans[0].count, spans[0].bytes), (2, 16));
    assert_eq!(m.memory.region(DST).bytes[..16], [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23]);
}

#[test]
fn framing_holds_for_descriptors_that_are_malformed() {
    let mut m = model();
    let unknown = with(Descriptor { opcode: 99, ..Descriptor::ZERO }, Flags::LAST | Flags::EXTENDED);
    take_all(&mut m, &[unknown, last(NOP), last(NOP)]);
    let expected = [(0, 2, Status::INVALID_OPCODE, DONE), (2, 1, Status::OK, DONE)];
    assert_eq!(brief(&m.reap()), expected, "the second slot belongs to the descriptor, whatever it is");
}

#[test]
fn positions_wrap_within_a_batch() {
    for start in [u64::MAX, u64::MAX - 1, u32::MAX.into(), i32::MAX as u64] {
        let mut m = Model::new(regions(&[]), 64, start);
        take_all(&mut m, &[READ, last(READ)]);
        assert_eq!(m.in_flight(), [start, start.wrapping_add(1)]);
        m.run(0);
        m.assert_invariants();
        assert_eq!(brief(&m.reap()), [(start, 2, Status::OK, DONE)]);
    }
}

// Checks, in their order.

#[test]
fn opcodes_are_checked_first() {
    let d = Descriptor { flags: 0xff80, ..Descriptor::ZERO };
    assert_eq!(failure(Descriptor { opcode: 0, ..d }), (Status::INVALID_OPCODE, Field::OPCODE, 0));
    assert_eq!(failure(Descriptor { opcode: 8, ..d }), (Status::INVALID_OPCODE, Field::OPCODE, 8));
    assert_eq!(failure(Descriptor { opcode: 7, ..d }), (Status::BAD_SEQUENCE, Field::OPCODE, 7));
}

#[test]
fn begin_cancel_and_fence_stand_only_where_they_can() {
    let cases =
        [(last(BEGIN), Field::OPCODE), (cancel(0), Field::OPCODE), (last(with(NOP, Flags::FENCE)), Field::FLAGS)];
    for (second, field) in cases {
        let mut m = model();
        take_all(&mut m, &[NOP, second]);
        let spans = m.reap();
        assert_eq!(brief(&spans), [(0, 1, Status::OK, 0), (1, 1, Status::BAD_SEQUENCE, DONE)]);
        assert_eq!(spans[1].field(), field);
    }
    let mut m = model();
    take_all(&mut m, &[Descriptor { flags: 0, ..cancel(0) }, last(NOP)]);
    assert_eq!(brief(&m.reap()), [(0, 1, Status::BAD_SEQUENCE, 0), (1, 1, Status::NOT_DONE, DONE)]);
}

#[test]
fn the_second_slot_must_be_an_extension_with_nothing_reserved_in_use() {
    let first = last(with(READ, Flags::EXTENDED)).to_entry();
    let of = |second: Entry| failure_with(&[], &[first, second]);
    let expected = (Status::BAD_SEQUENCE, Field::EXTENSION_OPCODE, 1, 0, Stage::TAKE);
    assert_eq!(of(NOP.to_entry()), expected);
    let e = Extension::new(2, 8, 8);
    let expected = (Status::INVALID_FIELD, Field::EXTENSION_RESERVED, 0x0900_0000, 0, Stage::TAKE);
    assert_eq!(of(Extension { reserved: [0, 0, 9], reserved_words: [5; 6], ..e }.to_entry()), expected);
    let expected = (Status::INVALID_FIELD, Field::EXTENSION_RESERVED, 5, 0, Stage::TAKE);
    assert_eq!(of(Extension { reserved_words: [0, 0, 5, 0, 0, 6], ..e }.to_entry()), expected);
    let expected = (Status::INVALID_COUNT, Field::INNER_COUNT, 0, 0, Stage::TAKE);
    assert_eq!(of(Extension { inner_count: 0, ..e }.to_entry()), expected);
    let expected = (Status::INVALID_STRIDE, Field::INNER_DST_STRIDE, 7, 0, Stage::TAKE);
    assert_eq!(of(Extension { inner_dst_stride: 7, ..e }.to_entry()), expected);
    let one_piece = Extension { inner_count: 1, inner_dst_stride: 7, ..e };
    assert!(run_one(&[], &[first, one_piece.to_entry()]).0.status().is_ok());
}

#[test]
fn flags_are_known_belong_here_and_do_not_contradict_each_other() {
    let indexed = Descriptor { index_kind: U32_SRC, index_region: INDEX, ..READ };
    let both_missing = Flags::MISSING_ZERO | Flags::MISSING_SKIP;
    let cases = [
        with(NOP, 0x80),
        with(NOP, Flags::DIRECT),
        with(BEGIN, Flags::MISSING_ZERO),
        with(READ, Flags::DIRECT | Flags::GATHER),
        with(READ, Flags::MISSING_ZERO),
        with(Descriptor { index_kind: U32_DST, ..READ }, Flags::MISSING_SKIP),
        with(Descriptor { index_kind: RECORDS, ..READ }, Flags::MISSING_SKIP),
        with(indexed, both_missing),
    ];
    for d in cases {
        assert_eq!(failure(d), (Status::INVALID_FLAGS, Field::FLAGS, u64::from(last(d).flags)));
    }
    let forced = with(READ, Flags::GATHER);
    assert_eq!(failure(forced), (Status::UNSUPPORTED, Field::FLAGS, u64::from(last(forced).flags)));
    assert!(run_one(&[], &[last(with(READ, Flags::DIRECT)).to_entry()]).0.status().is_ok());
    let extended_nop = last(with(NOP, Flags::EXTENDED)).to_entry();
    let second = Extension::new(1, 0, 0).to_entry();
    assert_eq!(failure_with(&[], &[extended_nop, second]).0, Status::INVALID_FLAGS);
}

#[test]
fn fields_without_a_meaning_are_zero_and_the_lowest_is_named() {
    let full = Descriptor {
        opcode: 0,
        index_kind: 1,
        flags: 0,
        len: 2,
        src_region: 3,
        dst_region: 4,
        src_offset: 5,
        dst_offset: 6,
        count: 7,
        index_region: 8,
        index_offset: 9,
        src_stride: 10,
        dst_stride: 11,
        user_data: 12,
    };
    let nop = |d: Descriptor| failure(Descriptor { opcode: Opcode::NOP.0, ..d });
    assert_eq!(nop(full), (Status::INVALID_FIELD, Field::INDEX_KIND, 1));
    assert_eq!(nop(Descriptor { index_kind: 0, ..full }), (Status::INVALID_FIELD, Field::LEN, 2));
    let tail = Descriptor { index_kind: 0, len: 0, src_region: 0, dst_region: 0, src_offset: 0, ..full };
    assert_eq!(nop(tail), (Status::INVALID_FIELD, Field::DST_OFFSET, 6));
    let begin = Descriptor { opcode: Opcode::BEGIN.0, ..tail };
    assert_eq!(failure(begin), (Status::INVALID_FIELD, Field::INDEX_REGION, 8));
    assert_eq!(failure(Descriptor { src_offset: 1, ..begin }).1, Field::INDEX_REGION);
    let cancel = Descriptor { opcode: Opcode::CANCEL.0, src_offset: 3, ..tail };
    assert_eq!(failure(cancel), (Status::INVALID_FIELD, Field::DST_OFFSET, 6));

    assert_eq!(failure(Descriptor { index_region: 8, ..READ }), (Status::INVALID_FIELD, Field::INDEX_REGION, 8));
    assert_eq!(failure(Descriptor { index_offset: 8, ..READ }), (Status::INVALID_FIELD, Field::INDEX_OFFSET, 8));
    let records = Descriptor { index_kind: RECORDS, index_region: INDEX, ..READ };
    assert_eq!(failure(records), (Status::INVALID_FIELD, Field::LEN, 8));
    assert_eq!(failure(Descriptor { len: 0, ..records }), (Status::INVALID_FIELD, Field::SRC_STRIDE, 8));
    let records = Descriptor { len: 0, src_stride: 0, ..records };
    assert_eq!(failure(records), (Status::INVALID_FIELD, Field::DST_STRIDE, 8));
}

#[test]
fn the_index_kind_is_checked_before_the_fields_that_depend_on_it() {
    for kind in [0x03, 0x13, 0x30, 0x04, 0x40, 0xff] {
        let d = Descriptor { index_kind: kind, index_offset: 1, count: 0, ..READ };
        assert_eq!(failure(d), (Status::INVALID_INDEX_KIND, Field::INDEX_KIND, kind.into()));
    }
    let d = last(with(Descriptor { index_kind: RECORDS, ..READ }, Flags::EXTENDED));
    let found = failure_with(&[], &[d.to_entry(), Extension::new(1, 0, 0).to_entry()]);
    assert_eq!(found, (Status::INVALID_FLAGS, Field::FLAGS, d.flags.into(), 0, Stage::TAKE));
}

#[test]
fn a_count_of_zero_is_an_error() {
    assert_eq!(failure(Descriptor { count: 0, dst_stride: 0, ..READ }), (Status::INVALID_COUNT, Field::COUNT, 0));
}

#[test]
fn the_destinations_step_is_not_smaller_than_the_length() {
    let expected = (Status::INVALID_STRIDE, Field::DST_STRIDE, 7);
    assert_eq!(failure(Descriptor { count: 2, dst_stride: 7, src_region: UNKNOWN, ..READ }), expected);
    assert_eq!(failure(Descriptor { index_kind: U32_DST, index_region: INDEX, dst_stride: 7, ..READ }), expected);
    assert!(run_one(&[], &[last(Descriptor { dst_stride: 0, ..READ }).to_entry()]).0.status().is_ok());
    let src_step = last(Descriptor { count: 3, src_stride: 1, ..READ });
    assert!(run_one(&[], &[src_step.to_entry()]).0.status().is_ok(), "sources may overlap");
}

#[test]
fn regions_exist_are_not_withdrawn_and_grant_the_access() {
    let unknown = u64::from(UNKNOWN);
    let d = Descriptor { src_region: UNKNOWN, dst_region: UNKNOWN, src_offset: u64::MAX, ..READ };
    assert_eq!(failure(d), (Status::UNKNOWN_REGION, Field::SRC_REGION, unknown));
    let d = Descriptor { src_region: NO_READ, ..d };
    assert_eq!(failure(d), (Status::UNKNOWN_REGION, Field::DST_REGION, unknown), "existence goes before rights");
    let d = Descriptor { dst_region: GONE, ..d };
    assert_eq!(failure(d), (Status::REGION_GONE, Field::DST_REGION, GONE.into()));
    let d = Descriptor { dst_region: NO_WRITE, ..d };
    assert_eq!(failure(d), (Status::NO_RIGHT, Field::SRC_REGION, NO_READ.into()));
    let d = Descriptor { src_region: SRC, ..d };
    assert_eq!(failure(d), (Status::NO_RIGHT, Field::DST_REGION, NO_WRITE.into()));
    let d = Descriptor { dst_region: DST, index_kind: U32_SRC, index_region: 0, ..d };
    assert_eq!(failure(d), (Status::UNKNOWN_REGION, Field::INDEX_REGION, 0));
    let d = Descriptor { index_region: NO_READ, ..d };
    assert_eq!(failure(d), (Status::NO_RIGHT, Field::INDEX_REGION, NO_READ.into()));
}

#[test]
fn index_arrays_are_aligned_and_within_their_region() {
    let d = Descriptor { index_kind: U32_SRC, index_region: INDEX, count: 2, src_offset: u64::MAX, ..READ };
    let misaligned = |at: u64| (Status::MISALIGNED_INDEX, Field::INDEX_OFFSET, at);
    let outside = |at: u64| (Status::OUT_OF_RANGE, Field::INDEX_OFFSET, at);
    assert_eq!(failure(Descriptor { index_offset: u64::MAX, ..d }), misaligned(u64::MAX));
    assert_eq!(failure(Descriptor { index_offset: u64::MAX - 3, ..d }), outside(u64::MAX - 3));
    assert_eq!(failure(Descriptor { index_offset: 252, ..d }), outside(252));
    assert_eq!(failure(Descriptor { index_kind: U32_DST, index_offset: 254, ..d }), misaligned(254));
    assert_eq!(failure(Descriptor { index_kind: U32_BOTH, index_offset: 244, ..d }), outside(244));
    // Three 4-byte entries put the destination's 8-byte entries at 12.
    let mixed = Descriptor { index_kind: IndexKind::pack(IndexKind::U32, IndexKind::U64), count: 3, ..d };
    assert_eq!(failure(mixed), misaligned(0));
    let at_4 = last(Descriptor { index_offset: 4, src_offset: 0, ..mixed });
    assert!(run_one(&[], &[at_4.to_entry()]).0.status().is_ok());
    assert_eq!(failure(Descriptor { index_offset: 240, ..mixed }), outside(240), "the range before the second array");
    let records = Descriptor { index_kind: RECORDS, len: 0, src_stride: 0, dst_stride: 0, count: 1, ..d };
    assert_eq!(failure(Descriptor { index_offset: 4, ..records }), misaligned(4));
    assert_eq!(failure(Descriptor { index_offset: 240, ..records }), outside(240));
}

#[test]
fn a_length_of_zero_succeeds_whatever_ranges_and_numbers_say() {
    let d = Descriptor { len: 0, src_offset: u64::MAX, dst_offset: u64::MAX, ..READ };
    let span = run_one(&[], &[last(d).to_entry()]).0;
    assert_eq!((span.status(), span.bytes), (Status::OK, 0));
    let indexed = Descriptor { index_kind: U32_BOTH, index_region: INDEX, ..d };
    assert!(run_one(&[0xff; 8], &[last(indexed).to_entry()]).0.status().is_ok());
    assert_eq!(failure(Descriptor { src_region: UNKNOWN, ..d }).0, Status::UNKNOWN_REGION);
}

#[test]
fn a_side_without_an_index_is_checked_before_anything_is_copied() {
    let of = |d: Descriptor| failure_with(&[], &[last(d).to_entry()]);
    let at = |field, detail, fragment| (Status::OUT_OF_RANGE, field, detail, fragment, Stage::PLAN);
    assert_eq!(of(Descriptor { src_offset: 249, ..READ }), at(Field::SRC_OFFSET, 249, 0));
    assert_eq!(of(Descriptor { src_offset: 232, count: 5, ..READ }), at(Field::SRC_OFFSET, 256, 3));
    let both = Descriptor { src_offset: 232, dst_offset: 240, count: 5, ..READ };
    assert_eq!(of(both), at(Field::DST_OFFSET, 256, 2), "the lower fragment");
    assert_eq!(of(Descriptor { src_offset: 240, ..both }), at(Field::SRC_OFFSET, 256, 2), "the source before");
    assert_eq!(of(Descriptor { dst_offset: u64::MAX, ..READ }), at(Field::DST_OFFSET, u64::MAX, 0));
    let huge = Descriptor { src_offset: u64::MAX - 7, src_stride: u32::MAX, count: u32::MAX, ..READ };
    assert_eq!(of(huge), at(Field::SRC_OFFSET, u64::MAX - 7, 0));

    // The index would fail at fragment 0, and is not looked at.
    let indexed = Descriptor { index_kind: U32_SRC, index_region: INDEX, dst_offset: 240, count: 3, ..READ };
    let (span, m) = run_one(&[0xff; 12], &[last(indexed).to_entry()]);
    assert_eq!((span.field(), span.fragment(), span.detail()), (Field::DST_OFFSET, 2, 256));
    assert_eq!(m.memory.region(DST).bytes, [0xee; BYTES]);
}

#[test]
fn inner_pieces_count_for_the_range() {
    let d = last(with(Descriptor { src_offset: 200, ..READ }, Flags::EXTENDED)).to_entry();
    assert!(run_one(&[], &[d, Extension::new(4, 16, 8).to_entry()]).0.status().is_ok());
    let found = failure_with(&[], &[d, Extension::new(4, 17, 8).to_entry()]);
    assert_eq!(found, (Status::OUT_OF_RANGE, Field::SRC_OFFSET, 200, 0, Stage::PLAN));
}

#[test]
fn numbers_of_an_index_are_checked_while_copying() {
    let d = Descriptor { index_kind: U32_BOTH, index_region: INDEX, count: 3, ..READ };
    let (span, m) = run_one(&numbers(&[4, 32, 99, 1, 2, 3]), &[last(d).to_entry()]);
    assert_eq!(
        (span.status(), span.field(), span.fragment(), span.detail()),
        (Status::OUT_OF_RANGE, Field::SRC_OFFSET, 1, 32)
    );
    assert_eq!((Stage(span.stage), span.bytes), (Stage::PACK, 0));
    assert_eq!(m.memory.region(DST).bytes[8..17], [32, 33, 34, 35, 36, 37, 38, 39, 0xee], "fragments before it");
    let found = failure_with(&numbers(&[4, 5, 6, 1, u32::MAX, 3]), &[last(d).to_entry()]);
    assert_eq!(found, (Status::OUT_OF_RANGE, Field::DST_OFFSET, u32::MAX.into(), 1, Stage::PACK));
    let found = failure_with(&numbers(&[u32::MAX]), &[last(Descriptor { index_kind: U32_SRC, ..d }).to_entry()]);
    assert_eq!(found, (Status::OUT_OF_RANGE, Field::SRC_OFFSET, u32::MAX.into(), 0, Stage::PACK));
}

#[test]
fn a_missing_row_is_zeroed_or_skipped() {
    let d = Descriptor { index_kind: U32_BOTH, index_region: INDEX, count: 3, ..READ };
    let index = numbers(&[4, u32::MAX, 6, 1, 2, 3]);
    let (span, m) = run_one(&index, &[last(with(d, Flags::MISSING_ZERO)).to_entry()]);
    assert_eq!((span.status(), span.bytes), (Status::OK, 24));
    assert_eq!(m.memory.region(DST).bytes[16..24], [0; 8]);
    let (span, m) = run_one(&index, &[last(with(d, Flags::MISSING_SKIP)).to_entry()]);
    assert_eq!((span.status(), span.bytes), (Status::OK, 16));
    assert_eq!(m.memory.region(DST).bytes[16..24], [0xee; 8]);

    let index = numbers(&[4, u32::MAX, 6, 1, 77, 3]);
    let found = failure_with(&index, &[last(with(d, Flags::MISSING_ZERO)).to_entry()]);
    assert_eq!(found, (Status::OUT_OF_RANGE, Field::DST_OFFSET, 77, 1, Stage::PACK));
    assert!(run_one(&index, &[last(with(d, Flags::MISSING_SKIP)).to_entry()]).0.status().is_ok());

    let wide = Descriptor { index_kind: IndexKind::pack(IndexKind::U64, IndexKind::None), count: 1, ..d };
    let (span, _) = run_one(&[0xff; 8], &[last(with(wide, Flags::MISSING_SKIP)).to_entry()]);
    assert_eq!((span.status(), span.bytes, span.route), (Status::OK, 0, Route::DIRECT.0));
}

#[test]
fn records_give_each_fragment_its_own_place_and_length() {
    let d = last(Descriptor {
        index_kind: RECORDS,
        index_region: INDEX,
        len: 0,
        src_stride: 0,
        dst_stride: 0,
        src_offset: 100,
        dst_offset: 50,
        count: 2,
        ..READ
    });
    let records = |second: FragmentRecord| -> Vec<u8> {
        let first = FragmentRecord { src: 1, dst: 2, len: 3, reserved: 0 };
        [first, second].iter().flat_map(|r| r.to_words()).flat_map(u64::to_le_bytes).collect()
    };
    let ok = FragmentRecord { src: 156, dst: 206, len: 0, reserved: 0 };
    let (span, m) = run_one(&records(ok), &[d.to_entry()]);
    assert_eq!((span.status(), span.bytes), (Status::OK, 3));
    assert_eq!(m.memory.region(DST).bytes[51..56], [0xee, 101, 102, 103, 0xee]);
    let of = |r: FragmentRecord| failure_with(&records(r), &[d.to_entry()]);
    let reserved = FragmentRecord { src: u64::MAX, reserved: 9, ..ok };
    assert_eq!(of(reserved), (Status::INVALID_FIELD, Field::INDEX_OFFSET, 9, 1, Stage::PACK));
    let both = FragmentRecord { src: u64::MAX, dst: u64::MAX, ..ok };
    assert_eq!(of(both), (Status::OUT_OF_RANGE, Field::SRC_OFFSET, u64::MAX, 1, Stage::PACK));
    assert_eq!(of(FragmentRecord { dst: 207, ..ok }), (Status::OUT_OF_RANGE, Field::DST_OFFSET, 207, 1, Stage::PACK));
}

// Notify.

#[test]
fn a_notify_stands_last_and_only_with_fields_that_mean_something() {
    let mut m = model();
    take_all(&mut m, &[Descriptor { flags: 0, ..NOTIFY }, last(NOP)]);
    assert_eq!(brief(&m.reap())[0], (0, 1, Status::BAD_SEQUENCE, 0));
    let empty = Descriptor { len: 0, src_region: 0, src_offset: 0, ..NOTIFY };
    let most = Descriptor { len: NOTIFY_BYTES_MAX, ..NOTIFY };
    let cases = [
        (Descriptor { index_kind: 1, ..most }, Field::INDEX_KIND, 1),
        (Descriptor { len: NOTIFY_BYTES_MAX + 1, count: 1, ..NOTIFY }, Field::LEN, 4097),
        (Descriptor { src_region: SRC, src_offset: 1, ..empty }, Field::SRC_REGION, SRC.into()),
        (Descriptor { src_offset: 1, ..empty }, Field::SRC_OFFSET, 1),
        (Descriptor { count: 1, ..NOTIFY }, Field::COUNT, 1),
        (Descriptor { index_region: 2, ..empty }, Field::INDEX_REGION, 2),
        (Descriptor { index_offset: 3, ..NOTIFY }, Field::INDEX_OFFSET, 3),
        (Descriptor { src_stride: 4, ..NOTIFY }, Field::SRC_STRIDE, 4),
        (Descriptor { dst_stride: 5, ..NOTIFY }, Field::DST_STRIDE, 5),
    ];
    for (d, field, detail) in cases {
        assert_eq!(failure(d), (Status::INVALID_FIELD, field, detail));
    }
    assert_eq!(failure(with(NOTIFY, Flags::DIRECT)).0, Status::INVALID_FLAGS);
    assert!(run_one(&[], &[empty.to_entry()]).0.status().is_ok());
}

#[test]
fn the_regions_of_a_notify_are_checked_like_those_of_a_transfer_but_for_the_right_to_write() {
    let cases = [
        (Descriptor { src_region: UNKNOWN, dst_region: UNKNOWN, ..NOTIFY }, Status::UNKNOWN_REGION, Field::SRC_REGION),
        (Descriptor { src_region: NO_READ, dst_region: GONE, ..NOTIFY }, Status::REGION_GONE, Field::DST_REGION),
        (Descriptor { src_region: NO_READ, dst_region: ENGINES, ..NOTIFY }, Status::NO_RIGHT, Field::SRC_REGION),
        (Descriptor { dst_region: 0, ..NOTIFY }, Status::UNKNOWN_REGION, Field::DST_REGION),
        (Descriptor { src_offset: 253, dst_region: ENGINES, ..NOTIFY }, Status::OUT_OF_RANGE, Field::SRC_OFFSET),
        (Descriptor { src_offset: u64::MAX, ..NOTIFY }, Status::OUT_OF_RANGE, Field::SRC_OFFSET),
        (Descriptor { dst_region: ENGINES, ..NOTIFY }, Status::UNSUPPORTED, Field::DST_REGION),
    ];
    for (d, status, field) in cases {
        let found = failure_with(&[], &[d.to_entry()]);
        let detail = if field == Field::SRC_OFFSET {
            d.src_offset
        } else {
            u64::from(if field == Field::SRC_REGION { d.src_region } else { d.dst_region })
        };
        assert_eq!(found, (status, field, detail, 0, Stage::PLAN), "{d:?}");
    }
}

#[test]
fn a_notify_is_sent_when_all_else_of_its_batch_is_done() {
    let mut m = model();
    take_all(&mut m, &[READ, tagged(READ, 1), tagged(NOTIFY, 9), last(NOP)]);
    m.complete(1, 0);
    assert_eq!((m.due(), m.in_flight()), (vec![], vec![0]));
    m.complete(0, 0);
    assert_eq!(m.due(), [2]);
    assert_eq!(brief(&m.reap()), [(3, 1, Status::OK, DONE)]);
    m.memory.region_mut(SRC).bytes[8] = 99;
    m.deliver(2, None, 0);
    let span = Span { first: 0, count: 3, bytes: 16, user_data: 9, flags: DONE, route: Route::DIRECT.0, ..Span::ZERO };
    assert_eq!(m.reap(), [span]);
    assert_eq!(m.told, [Told { region: NO_WRITE, offset: 77, user_data: 9, payload: vec![99, 9, 10, 11] }]);
    m.assert_invariants();
    assert_eq!(run_one(&[], &[NOTIFY.to_entry()]).0.route, Route::NONE.0);
}

#[test]
fn a_batch_that_fails_or_ends_before_tells_nobody() {
    let mut m = Model::new(regions(&[0xff; 8]), 64, 0);
    let outside = Descriptor { index_kind: U32_SRC, index_region: INDEX, ..READ };
    take_all(&mut m, &[outside, NOTIFY, deadline(10), READ, NOTIFY, READ, NOTIFY]);
    m.complete(0, 0);
    assert_eq!(brief(&m.reap()), [(0, 1, Status::OUT_OF_RANGE, 0), (1, 1, Status::NOT_DONE, DONE)]);
    assert_eq!(m.cancel(5, 0), Status::OK);
    assert_eq!(brief(&m.reap()), [(5, 2, Status::CANCELLED, HELD | DONE)]);
    m.tick(10);
    assert_eq!(brief(&m.reap()), [(2, 1, Status::OK, HELD), (3, 2, Status::TIMED_OUT, HELD | DONE)]);
    m.run(10);
    assert_eq!((m.due(), &m.told[..]), (vec![], &[][..]));
    m.assert_invariants();
}

#[test]
fn a_notify_that_waits_holds_nothing() {
    let mut m = model();
    take_all(&mut m, &[deadline(10), READ, NOTIFY]);
    m.complete(1, 0);
    m.tick(10);
    assert_eq!(brief(&m.reap()), [(0, 2, Status::OK, 0), (2, 1, Status::TIMED_OUT, DONE)]);
    assert!(m.is_idle() && m.due().is_empty());
}

#[test]
fn a_notify_that_cannot_be_delivered_is_the_failing_descriptor() {
    for status in [Status::NOT_ALLOWED, Status::REGION_GONE] {
        let mut m = model();
        take_all(&mut m, &[READ, NOTIFY]);
        m.complete(0, 0);
        m.deliver(1, Some(status), 0);
        let spans = m.reap();
        assert_eq!(brief(&spans), [(0, 1, Status::OK, 0), (1, 1, status, DONE)]);
        assert_eq!((spans[1].field(), spans[1].detail()), (Field::DST_REGION, NO_WRITE.into()));
        assert_eq!((Stage(spans[1].stage), &m.told[..]), (Stage::COMMAND, &[][..]));
    }
    let mut m = model();
    take_all(&mut m, &[NOTIFY]);
    m.memory.region_mut(NO_WRITE).gone = true;
    m.deliver(0, None, 0);
    assert_eq!(m.reap()[0].status(), Status::REGION_GONE, "it is checked again");
}

#[test]
fn a_fence_waits_for_a_notify_and_a_notify_waits_at_a_fence() {
    let mut m = model();
    take_all(&mut m, &[NOTIFY, with(NOTIFY, Flags::FENCE), last(NOP)]);
    assert_eq!(m.due(), [0]);
    m.deliver(0, None, 0);
    assert_eq!(m.due(), [1]);
    m.deliver(1, None, 0);
    assert!(m.take(0));
    assert_eq!(brief(&m.reap()), [0, 1, 2].map(|at| (at, 1, Status::OK, DONE)));
}

// Failures of a batch.

const BAD: Descriptor = Descriptor { src_region: UNKNOWN, ..READ };

#[test]
fn a_failure_is_reported_after_the_drain_and_before_last() {
    let mut m = model();
    take_all(&mut m, &[tagged(READ, 1), tagged(READ, 2), tagged(BAD, 3), tagged(READ, 4)]);
    assert_eq!(m.in_flight(), [0, 1], "nothing starts behind a known failure");
    m.complete(1, 0);
    assert_eq!(m.reap(), []);
    m.complete(0, 0);
    let spans = m.reap();
    assert_eq!(brief(&spans), [(0, 2, Status::OK, 0), (2, 1, Status::UNKNOWN_REGION, 0)]);
    assert_eq!((spans[0].bytes, spans[0].user_data, spans[1].user_data), (16, 2, 3));
    take_all(&mut m, &[last(tagged(NOP, 5))]);
    let spans = m.reap();
    assert_eq!(brief(&spans), [(3, 2, Status::NOT_DONE, DONE)]);
    assert_eq!((spans[0].user_data, spans[0].field(), spans[0].stage), (5, Field::NONE, 0));
}

#[test]
fn the_failing_descriptor_is_the_one_with_the_lowest_position() {
    let outside = Descriptor { index_kind: U32_SRC, index_region: INDEX, ..READ };
    let mut m = Model::new(regions(&[0xff; 8]), 64, 0);
    take_all(&mut m, &[READ, outside, READ, outside, READ, last(BAD)]);
    for position in [3, 4, 1, 0] {
        m.complete(position, 0);
        assert_eq!(m.reap(), []);
    }
    m.complete(2, 0);
    m.assert_invariants();
    let expected = [(0, 1, Status::OK, 0), (1, 1, Status::OUT_OF_RANGE, 0), (2, 4, Status::NOT_DONE, DONE)];
    assert_eq!(brief(&m.reap()), expected);
}

#[test]
fn a_failing_last_descriptor_ends_the_batch() {
    let mut m = model();
    take_all(&mut m, &[last(BAD), last(NOP)]);
    assert_eq!(brief(&m.reap()), [(0, 1, Status::UNKNOWN_REGION, DONE), (1, 1, Status::OK, DONE)]);
}

// Deadlines and cancels.

#[test]
fn a_deadline_ends_a_batch_at_once_and_holds_its_buffers() {
    let mut m = model();
    take_all(&mut m, &[deadline(10), READ, READ, last(READ)]);
    m.complete(1, 5);
    m.complete(3, 5);
    m.tick(9);
    assert_eq!(m.reap(), []);
    m.tick(10);
    let spans = m.reap();
    assert_eq!(brief(&spans), [(0, 2, Status::OK, HELD), (2, 2, Status::TIMED_OUT, HELD | DONE)]);
    assert_eq!((Stage(spans[1].stage), spans[1].field(), spans[0].bytes), (Stage::WAIT, Field::NONE, 8));
    m.memory.region_mut(DST).bytes.fill(0xee);
    m.complete(2, 11);
    assert_eq!(m.memory.region(DST).bytes[0], 0, "a held buffer may still be written");
    let released = Span { first: 0, status: Status::TIMED_OUT.0, flags: RELEASED, ..Span::ZERO };
    assert_eq!(m.reap(), [released]);
    m.assert_invariants();
}

#[test]
fn without_transfers_in_flight_nothing_is_held() {
    let mut m = model();
    take_all(&mut m, &[deadline(10), NOP]);
    m.tick(10);
    assert_eq!(brief(&m.reap()), [(0, 2, Status::OK, 0)]);
    take_all_at(&mut m, &[NOP, last(NOP)], 10);
    assert_eq!(brief(&m.reap()), [(2, 2, Status::TIMED_OUT, DONE)], "no batch looks successful that was not");
}

fn take_all_at(m: &mut Model, descriptors: &[Descriptor], now_ns: u64) {
    descriptors.iter().for_each(|d| m.push(d.to_entry()));
    while m.take(now_ns) {}
    m.assert_invariants();
}

#[test]
fn the_rest_of_a_batch_that_timed_out_is_not_done_and_may_follow_the_release() {
    for release_first in [false, true] {
        let mut m = model();
        take_all(&mut m, &[deadline(10), READ]);
        m.tick(10);
        assert_eq!(brief(&m.reap()), [(0, 1, Status::OK, HELD), (1, 1, Status::TIMED_OUT, HELD)]);
        if release_first {
            m.complete(1, 10);
        }
        take_all_at(&mut m, &[last(READ)], 10);
        assert!(m.in_flight().len() <= 1, "what follows is discarded");
        if !release_first {
            m.complete(1, 10);
        }
        let mut expected = [(0, 0, Status::TIMED_OUT, RELEASED), (2, 1, Status::NOT_DONE, DONE)];
        if !release_first {
            expected.reverse();
        }
        assert_eq!(brief(&m.reap()), expected);
        m.assert_invariants();
        assert!(m.is_idle());
    }
}

#[test]
fn a_deadline_does_not_wait_for_the_drain_of_a_failed_batch() {
    let mut m = model();
    take_all(&mut m, &[deadline(10), READ, tagged(READ, 2), tagged(BAD, 3), last(NOP)]);
    m.complete(1, 0);
    m.tick(10);
    let spans = m.reap();
    let expected =
        [(0, 2, Status::OK, HELD), (2, 2, Status::UNKNOWN_REGION, HELD), (4, 1, Status::NOT_DONE, HELD | DONE)];
    assert_eq!(brief(&spans), expected);
    assert_eq!(spans[1].user_data, 3, "the failing descriptor is the last one of its span");
    m.complete(2, 10);
    assert_eq!(brief(&m.reap()), [(0, 0, Status::UNKNOWN_REGION, RELEASED)]);
    m.assert_invariants();
}

#[test]
fn a_deadline_after_the_outcome_is_nothing() {
    let mut m = model();
    take_all(&mut m, &[deadline(10), last(NOP)]);
    m.tick(10);
    assert_eq!(brief(&m.reap()), [(0, 2, Status::OK, DONE)]);
    assert_eq!(m.cancel(0, 10), Status::NOT_FOUND);
}

#[test]
fn a_cancel_ends_a_batch_that_is_under_way() {
    let mut m = model();
    take_all(&mut m, &[READ, last(READ), cancel(0)]);
    let expected = [(0, 2, Status::CANCELLED, HELD | DONE), (2, 1, Status::OK, DONE)];
    assert_eq!(brief(&m.reap()), expected);
    m.run(0);
    assert_eq!(brief(&m.reap()), [(0, 0, Status::CANCELLED, RELEASED)]);
    m.assert_invariants();
}

#[test]
fn a_cancel_finds_no_batch_that_is_ending_nor_itself_nor_a_slot_inside_one() {
    let mut m = model();
    take_all(&mut m, &[READ, last(BAD), cancel(0), READ, last(READ), cancel(4), cancel(6)]);
    let spans = m.reap();
    assert_eq!(brief(&spans), [2, 5, 6].map(|at| (at, 1, Status::NOT_FOUND, DONE)));
    assert_eq!((spans[1].field(), spans[1].detail(), Stage(spans[1].stage)), (Field::SRC_OFFSET, 4, Stage::TAKE));
}

#[test]
fn the_attach_socket_cancels_a_batch_without_last() {
    let mut m = model();
    take_all(&mut m, &[NOP]);
    assert_eq!(m.cancel(0, 0), Status::OK);
    assert_eq!(m.cancel(0, 0), Status::NOT_FOUND);
    take_all(&mut m, &[last(READ)]);
    assert_eq!(brief(&m.reap()), [(0, 1, Status::OK, 0), (1, 1, Status::CANCELLED, DONE)]);
}

// Fences and completion places.

#[test]
fn a_fence_waits_for_outcome_and_release_of_all_earlier_batches() {
    let mut m = model();
    take_all(&mut m, &[deadline(10), last(READ), with(READ, Flags::FENCE), last(NOP), last(READ)]);
    assert_eq!(m.in_flight(), [1], "neither the fenced batch nor a later one starts");
    m.tick(10);
    assert!(!m.take(10), "the first batch has its outcome, its buffers are not released");
    m.complete(1, 10);
    assert_eq!(m.in_flight(), [2]);
    m.run(10);
    let spans: Vec<u64> = m.reap().iter().filter(|s| s.is_batch_done()).map(|s| s.first).collect();
    assert_eq!(spans, [1, 2, 4]);
}

#[test]
fn a_deadline_ends_a_batch_that_waits_for_a_fence_and_opens_the_ring() {
    let mut m = model();
    take_all(&mut m, &[last(READ), with(deadline(10), Flags::FENCE), last(READ), last(NOP)]);
    m.tick(10);
    while m.take(10) {}
    let expected = [(1, 1, Status::TIMED_OUT, 0), (2, 1, Status::NOT_DONE, DONE), (3, 1, Status::OK, DONE)];
    assert_eq!(brief(&m.reap()), expected);
    assert_eq!(m.in_flight(), [0]);
    m.assert_invariants();
}

#[test]
fn a_malformed_fence_fails_at_once() {
    let mut m = model();
    take_all(&mut m, &[last(READ), last(with(BAD, Flags::FENCE)), last(NOP)]);
    assert_eq!(brief(&m.reap()), [(1, 1, Status::UNKNOWN_REGION, DONE), (2, 1, Status::OK, DONE)]);
}

#[test]
fn a_batch_is_taken_only_if_its_places_are_free() {
    let mut m = Model::new(regions(&[]), 8, 0);
    take_all(&mut m, &[last(READ), last(READ), last(NOP), last(NOP)]);
    assert_eq!(m.in_flight(), [0, 1]);
    assert!(!m.take(0), "eight places are reserved");
    m.complete(1, 0);
    assert!(!m.take(0), "one is in use, four are reserved, three are free");
    assert_eq!(m.reap().len(), 1);
    assert!(m.take(0));
    assert!(!m.take(0));
    m.assert_invariants();
}

// Everything at once.

#[derive(Clone, Debug)]
enum Event {
    Push(Descriptor, Option<Entry>),
    Take,
    Complete(usize),
    /// Whoever is to be told has it, or takes none.
    Deliver(usize, bool),
    Tick(u64),
    Cancel(u64),
    Reap,
}

fn any_transfer() -> impl Strategy<Value = (Descriptor, Option<Entry>)> {
    let kinds = prop::sample::select(vec![0, 0, U32_SRC, U32_DST, U32_BOTH, 0x12, 0x22, RECORDS]);
    let missing = prop::sample::select(vec![0, 0, Flags::MISSING_ZERO, Flags::MISSING_SKIP]);
    let extension = prop::option::weighted(0.3, (1..4_u32, 0..24_u32, 0..24_u32));
    let places = (0..64_u64, 0..64_u64, 0..3_u64);
    let shape = (0..17_u32, 1..6_u32, 0..32_u32, 0..16_u32);
    (kinds, missing, extension, places, shape).prop_map(|(kind, missing, extension, places, shape)| {
        let (len, count, src_stride, more) = shape;
        let mut d = Descriptor { len, count, src_stride, dst_stride: len + more, index_kind: kind, ..READ };
        (d.src_offset, d.dst_offset) = (places.0, places.1);
        if kind != 0 {
            (d.index_region, d.index_offset) = (INDEX, places.2 * 8);
        }
        if matches!(IndexKind::unpack(kind), Some((IndexKind::U32 | IndexKind::U64, _))) {
            d.flags |= missing;
        }
        if kind == RECORDS {
            (d.len, d.src_stride, d.dst_stride) = (0, 0, 0);
            return (d, None);
        }
        if extension.is_some() {
            d.flags |= Flags::EXTENDED;
        }
        (d, extension.map(|(n, src, dst)| Extension::new(n, src, len + dst).to_entry()))
    })
}

/// A descriptor with any one field overwritten.
fn malformed() -> impl Strategy<Value = (Descriptor, Option<Entry>)> {
    let value = prop_oneof![any::<u64>(), 0..16_u64, Just(u64::MAX), Just(GONE.into()), Just(NO_WRITE.into())];
    (any_transfer(), 0..12_u8, value).prop_map(|((mut d, extension), field, value)| {
        match field {
            0 => d.opcode = value as u8,
            1 => d.index_kind = value as u8,
            2 => d.flags |= value as u16 & !(Flags::LAST | Flags::EXTENDED),
            3 => d.len = value as u32,
            4 => d.src_region = value as u32,
            5 => d.dst_region = value as u32,
            6 => d.src_offset = value,
            7 => d.dst_offset = value,
            8 => d.count = value as u32,
            9 => d.index_offset = value,
            10 => d.dst_stride = value as u32,
            _ => return (d, extension.map(|mut e| (e[0] ^= value, e).1)),
        }
        (d, extension)
    })
}

fn any_event() -> impl Strategy<Value = Event> {
    let small = prop_oneof![
        4 => Just(NOP),
        2 => (0..40_u64).prop_map(deadline),
        2 => (0..40_u64).prop_map(|n| Descriptor { opcode: Opcode::CANCEL.0, src_offset: n, ..Descriptor::ZERO }),
    ];
    let descriptor = prop_oneof![
        8 => any_transfer(),
        1 => malformed(),
        2 => (0..9_u32, 0..256_u64).prop_map(|(len, src_offset)| {
            let src_region = if len > 0 { SRC } else { 0 };
            (Descriptor { len, src_region, src_offset: if len > 0 { src_offset } else { 0 }, ..NOTIFY }, None)
        }),
        4 => small.prop_map(|d| (d, None)),
    ];
    let flags = prop::sample::select(vec![0, 0, 0, Flags::LAST, Flags::LAST, Flags::FENCE, Flags::FENCE | Flags::LAST]);
    prop_oneof![
        8 => (descriptor, flags).prop_map(|((d, e), flags)| Event::Push(with(d, flags), e)),
        8 => Just(Event::Take),
        5 => any::<usize>().prop_map(Event::Complete),
        3 => any::<(usize, bool)>().prop_map(|(n, told)| Event::Deliver(n, told)),
        1 => (0..20_u64).prop_map(Event::Tick),
        1 => (0..40_u64).prop_map(Event::Cancel),
        2 => Just(Event::Reap),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn promises_hold_for_any_descriptors_in_any_order_of_events(
        start in prop::sample::select(vec![0, u64::MAX - 3, u32::MAX as u64 - 3, i32::MAX as u64 - 3]),
        cq_capacity in prop::sample::select(vec![4_u32, 8, 64]),
        index in prop::collection::vec(prop_oneof![6 => 0..12_u32, 1 => Just(u32::MAX)], 16..40),
        events in prop::collection::vec(any_event(), 0..80),
    ) {
        let mut m = Model::new(regions(&numbers(&index)), cq_capacity, start);
        let others = [SRC, INDEX, NO_READ, NO_WRITE, GONE, ENGINES].map(|h| m.memory.region(h).clone());
        let (mut now_ns, mut pushed, mut covered) = (0, 0_u64, 0_u64);
        let mut reap = |m: &mut Model| covered += m.reap().iter().map(|s| u64::from(s.count)).sum::<u64>();
        for event in events {
            match event {
                // Targets count from the start, so that they hit.
                Event::Push(mut d, second) => {
                    if d.opcode == Opcode::CANCEL.0 {
                        d.src_offset = d.src_offset.wrapping_add(start);
                    }
                    m.push(d.to_entry());
                    second.into_iter().for_each(|e| m.push(e));
                    pushed += if second.is_some() { 2 } else { 1 };
                }
                Event::Take => drop(m.take(now_ns)),
                Event::Complete(n) => {
                    let in_flight = m.in_flight();
                    if !in_flight.is_empty() {
                        m.complete(in_flight[n % in_flight.len()], now_ns);
                    }
                }
                Event::Deliver(n, told) => {
                    let due = m.due();
                    if !due.is_empty() {
                        let refused = (!told).then_some(Status::NOT_ALLOWED);
                        m.deliver(due[n % due.len()], refused, now_ns);
                    }
                }
                Event::Tick(ns) => {
                    now_ns += ns;
                    m.tick(now_ns);
                }
                Event::Cancel(n) => drop(m.cancel(start.wrapping_add(n), now_ns)),
                Event::Reap => reap(&mut m),
            }
            m.assert_invariants();
        }
        // Every batch ends: one LAST and enough time is all it takes.
        m.push(last(NOP).to_entry());
        pushed += 1;
        for _ in 0..pushed + 1 {
            m.run(now_ns);
            reap(&mut m);
        }
        m.assert_invariants();
        prop_assert!(m.is_idle());
        prop_assert_eq!(covered, pushed);
        for region in others {
            let now = m.memory.region(region.handle);
            prop_assert!(region.handle == DST || *now == region, "written without the right: {:x}", region.handle);
        }
    }
}
