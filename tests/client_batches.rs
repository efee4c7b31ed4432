//! What a batch puts into the ring, and what becomes of it.

mod fake;

use fake::{meet, ok, setup};
use ring_abi::{Descriptor, Extension, Field, Flags, IndexKind, Kind, Opcode, Span, SpanFlags, Stage, Status};
use scatter_ring::client::{Blocks, Missing, PushError, Ranges, RowNumbers, Rows, Setup, Tile};
use std::time::{Duration, Instant};

const NOW: Duration = Duration::ZERO;

fn nop() -> Descriptor {
    Descriptor { opcode: Opcode::NOP.0, ..Descriptor::ZERO }
}

fn failed(first: u64, status: Status, flags: u16) -> Span {
    Span { first, count: 1, status: status.0, flags, stage: Stage::PACK.0, field: Field::SRC_OFFSET.0, ..Span::ZERO }
}

#[test]
fn a_batch_of_all_shapes_carries_begin_fence_last_and_user_data() {
    let (mut client, mut fake) = meet(&setup(64, 64));
    let (a, b) = (client.allocate(4096).unwrap(), client.allocate(4096).unwrap());
    let mut batch = client.batch().deadline(Duration::from_micros(3)).hint(9, 99).fence();
    batch.user_data(5);
    batch.read(&a, 1, &b, 2, 3).unwrap();
    batch.write_rows(&Rows { buffer_offset: 8, ..Rows::new(&a, 16, &b, 2, &b) }).unwrap();
    let tile = Tile { src: &a, src_offset: 1, src_stride: 2, dst: &b, dst_offset: 3, dst_stride: 4, len: 4, count: 9 };
    batch.write_tile(&tile).unwrap();
    batch.push_extended(&nop(), &Extension::new(2, 3, 4), &[]).unwrap();
    batch.submit().unwrap();
    let taken: Vec<Descriptor> = fake.take_all().into_iter().map(|(_, d)| d).collect();
    let begin = Descriptor { opcode: Opcode::BEGIN.0, flags: Flags::FENCE, count: 9, ..Descriptor::ZERO };
    assert_eq!(taken[0], Descriptor { src_offset: 99, dst_offset: 3000, ..begin });
    let (a, b) = (a.handle().0, b.handle().0);
    let read = Descriptor { opcode: Opcode::READ.0, src_region: a, dst_region: b, count: 1, ..Descriptor::ZERO };
    assert_eq!(taken[1], Descriptor { src_offset: 1, dst_offset: 2, len: 3, user_data: 5, ..read });
    let kind = IndexKind::pack(IndexKind::None, IndexKind::U32);
    assert_eq!((taken[2].index_kind, taken[2].dst_region, taken[2].src_offset), (kind, a, 8));
    assert_eq!((taken[3].src_stride, taken[3].dst_stride, taken[3].len, taken[3].count), (2, 4, 4, 9));
    assert_eq!((taken[4].flags, taken[5].opcode), (Flags::LAST | Flags::EXTENDED, Opcode::EXTENSION.0));
    assert_eq!(taken.len(), 6);

    // An error names the descriptor as the program counts them: BEGIN and extension slots are none of its own.
    fake.span(Span { flags: 0, bytes: 7, ..ok(0, 4) });
    fake.span(Span { count: 2, ..failed(4, Status::CANCELLED, SpanFlags::BATCH_DONE) });
    assert!(client.reap().unwrap().is_some());
}

#[test]
fn blocks_and_ranges_name_both_sides_by_one_array() {
    let (mut client, mut fake) = meet(&setup(64, 64));
    let [src, dst, index] = std::array::from_fn(|_| client.allocate(4096).unwrap());
    let blocks = Blocks {
        src_offset: 1,
        src_stride: 2,
        dst_offset: 3,
        dst_stride: 20,
        index_offset: 8,
        numbers: RowNumbers::U64,
        missing: Missing::Skip,
        ..Blocks::new(&src, &dst, 16, &index, 5)
    };
    let ranges = Ranges { src_offset: 6, dst_offset: 7, records_offset: 24, ..Ranges::new(&src, &dst, &index, 9) };
    let mut batch = client.batch();
    batch.user_data(4);
    batch.read_blocks(&blocks).unwrap();
    batch.write_blocks(&Blocks::new(&src, &dst, 16, &index, 1)).unwrap();
    batch.read_ranges(&ranges).unwrap();
    batch.write_ranges(&Ranges::new(&src, &dst, &index, 1)).unwrap();
    batch.submit().unwrap();
    assert!(index.is_busy() && src.is_busy() && dst.is_busy());
    let taken: Vec<Descriptor> = fake.take_all().into_iter().map(|(_, d)| d).collect();
    let regions = Descriptor {
        src_region: src.handle().0,
        dst_region: dst.handle().0,
        index_region: index.handle().0,
        user_data: 4,
        ..Descriptor::ZERO
    };
    let read_blocks = Descriptor {
        opcode: Opcode::READ.0,
        index_kind: IndexKind::pack(IndexKind::U64, IndexKind::U64),
        flags: Flags::MISSING_SKIP,
        len: 16,
        src_offset: 1,
        src_stride: 2,
        dst_offset: 3,
        dst_stride: 20,
        count: 5,
        index_offset: 8,
        ..regions
    };
    let write_blocks = Descriptor {
        opcode: Opcode::WRITE.0,
        index_kind: IndexKind::pack(IndexKind::U32, IndexKind::U32),
        len: 16,
        src_stride: 16,
        dst_stride: 16,
        count: 1,
        ..regions
    };
    let index_kind = IndexKind::pack(IndexKind::Fragments, IndexKind::Fragments);
    let read_ranges = Descriptor {
        opcode: Opcode::READ.0,
        index_kind,
        src_offset: 6,
        dst_offset: 7,
        count: 9,
        index_offset: 24,
        ..regions
    };
    let flags = Flags::LAST;
    let write_ranges = Descriptor { opcode: Opcode::WRITE.0, index_kind, flags, count: 1, ..regions };
    assert_eq!(taken, [read_blocks, write_blocks, read_ranges, write_ranges]);
}

#[test]
fn an_error_says_what_and_where_in_one_sentence() {
    let (mut client, mut fake) = meet(&setup(64, 64));
    let mut batch = client.batch().hint(1, 1);
    for i in 0..6 {
        match i % 3 {
            2 => batch.push(&nop(), &[]).unwrap(),
            _ => batch.push_extended(&nop(), &Extension::new(1, 1, 1), &[]).unwrap(),
        }
    }
    let ticket = batch.submit().unwrap();
    // Slots: BEGIN, 2, 2, 1, 2, 2, 1. The failing one is descriptor 4, at slot 8.
    fake.span(Span { flags: 0, bytes: 640, ..ok(0, 8) });
    let detail = Span { queue_ns: 17, plan_ns: 99_999, count: 2, ..failed(8, Status::OUT_OF_RANGE, 0) };
    fake.span(detail);
    fake.span(Span { count: 1, ..failed(10, Status::NOT_DONE, SpanFlags::BATCH_DONE) });
    let error = client.wait(&ticket).unwrap_err();
    assert_eq!(
        error.to_string(),
        "descriptor 4 of the batch, fragment 17, src_offset: outside the region (OUT_OF_RANGE), value 99999; \
         buffers are reusable"
    );
    assert_eq!((error.position, error.bytes_done, error.stage), (8, 640, Stage::PACK));
}

#[test]
fn a_release_may_come_before_the_tail_of_a_batch() {
    let (mut client, mut fake) = meet(&setup(4, 64));
    let to = client.allocate(64).unwrap();
    let mut batch = client.batch();
    batch.read(&to, 0, &to, 0, 1).unwrap();
    batch.push(&nop(), &[]).unwrap();
    let ticket = batch.submit().unwrap();
    fake.span(failed(0, Status::CANCELLED, SpanFlags::HELD));
    fake.span(Span { first: 0, flags: SpanFlags::RELEASED, ..Span::ZERO });
    assert!(client.wait_timeout(&ticket, NOW).unwrap().is_none());
    assert!(!to.is_busy(), "released");
    fake.span(failed(1, Status::NOT_DONE, SpanFlags::BATCH_DONE));
    assert_eq!(client.wait(&ticket).unwrap_err().status, Status::CANCELLED);
    assert!(client.wait_released(&ticket, Some(NOW)).unwrap());
}

#[test]
fn an_outcome_is_told_without_a_look_at_the_ring_and_says_later_that_buffers_are_reusable() {
    let (mut client, mut fake) = meet(&setup(64, 64));
    let (mut other, _fake) = meet(&setup(64, 64));
    let ticket = client.batch().submit().unwrap();
    fake.take_all();
    let held = SpanFlags::BATCH_DONE | SpanFlags::HELD;
    fake.span(Span { stage: Stage::WAIT.0, ..failed(0, Status::TIMED_OUT, held) });
    assert!(client.outcome(&ticket).is_none(), "it has looked");
    client.reap().unwrap().unwrap();
    let error = client.outcome(&ticket).unwrap().unwrap_err();
    assert_eq!((error.status, error.reusable), (Status::TIMED_OUT, false));
    fake.span(Span { flags: SpanFlags::RELEASED, ..Span::ZERO });
    client.reap().unwrap().unwrap();
    assert!(client.outcome(&ticket).unwrap().unwrap_err().reusable);
    let foreign = other.batch().submit().unwrap();
    assert!(client.outcome(&foreign).is_none());
}

#[test]
fn extensions_stay_with_their_descriptors_in_a_batch_that_streams() {
    for last_extended in [false, true] {
        let (mut client, mut fake) = meet(&setup(4, 16));
        let is_extended = move |i: u64| i % 3 == 1 || i % 7 < 2 || (i == 299 && last_extended);
        let engine = std::thread::spawn(move || {
            let mut taken = Vec::new();
            loop {
                taken.extend(fake.take_all().into_iter().map(|(_, d)| d));
                if let Some(end) = taken.iter().position(|d: &Descriptor| d.flags & Flags::LAST != 0) {
                    let extended = taken[end].flags & Flags::EXTENDED != 0;
                    if taken.len() == end + 1 + usize::from(extended) {
                        return (fake, taken);
                    }
                }
                std::thread::yield_now();
            }
        });
        let mut batch = client.batch().hint(1, 1);
        for user_data in 0..300 {
            let descriptor = Descriptor { user_data, ..nop() };
            match is_extended(user_data) {
                true => batch.push_extended(&descriptor, &Extension::new(user_data as u32, 1, 1), &[]).unwrap(),
                false => batch.push(&descriptor, &[]).unwrap(),
            }
        }
        let ticket = batch.submit().unwrap();
        let (mut fake, taken) = engine.join().unwrap();
        let mut slots = taken.iter().skip(1);
        for i in 0..300 {
            let descriptor = slots.next().unwrap();
            assert_eq!((descriptor.user_data, descriptor.flags & Flags::LAST != 0), (i, i == 299));
            assert_eq!(descriptor.flags & Flags::EXTENDED != 0, is_extended(i));
            if is_extended(i) {
                let extension = Extension::from_entry(&slots.next().unwrap().to_entry());
                assert_eq!(extension, Extension::new(i as u32, 1, 1));
            }
        }
        assert_eq!(slots.next(), None);
        let at = taken.iter().position(|d| d.user_data == 200 && d.opcode == Opcode::NOP.0).unwrap() as u64;
        fake.span(Span { flags: 0, ..ok(0, at as u32) });
        fake.span(failed(at, Status::OUT_OF_RANGE, 0));
        fake.span(Span {
            count: taken.len() as u32 - at as u32 - 1,
            ..failed(at + 1, Status::NOT_DONE, SpanFlags::BATCH_DONE)
        });
        assert_eq!(client.wait(&ticket).unwrap_err().descriptor, Some(200));
    }
}

#[test]
fn batches_finish_in_any_order_across_the_wrap_of_positions() {
    let start = u64::MAX - 2;
    let (mut client, mut fake) = meet(&Setup { start_position: start, ..setup(8, 32) });
    let tickets: Vec<_> = (0..6).map(|_| client.batch().submit().unwrap()).collect();
    assert_eq!(fake.take_all().len(), 6);
    for i in [3, 5, 0, 4, 1, 2] {
        assert!(client.wait_timeout(&tickets[i], NOW).unwrap().is_none());
        fake.span(Span { bytes: i as u64, ..ok(start.wrapping_add(i as u64), 1) });
        assert_eq!(client.wait(&tickets[i]).unwrap().bytes, i as u64);
    }
}

#[test]
fn a_batch_longer_than_the_ring_streams_through_it() {
    let (mut client, fake) = meet(&setup(16, 16));
    let engine = fake.work_in_background();
    let (table, out) = (client.allocate(256).unwrap(), client.allocate(40_000).unwrap());
    table.write_at(0, &core::array::from_fn::<u8, 256, _>(|i| i as u8)).unwrap();
    let other = client.batch().submit().unwrap();
    let mut batch = client.batch();
    for i in 0..10_000u64 {
        batch.read(&table, i % 64 * 4, &out, i * 4, 4).unwrap();
    }
    let ticket = batch.submit().unwrap();
    assert_eq!(client.wait(&ticket).unwrap().bytes, 40_000);
    client.wait(&other).unwrap();
    let mut last = [0; 4];
    out.read_at(39_996, &mut last).unwrap();
    assert_eq!(last, [60, 61, 62, 63]);
    drop(client);
    engine.join().unwrap();
}

#[test]
fn a_batch_dropped_unseen_has_never_been_and_one_seen_in_part_is_ended() {
    let (mut client, mut fake) = meet(&setup(4, 16));
    let memory = client.allocate(64).unwrap();
    let mut batch = client.batch();
    batch.read(&memory, 0, &memory, 0, 1).unwrap();
    batch.read(&memory, 0, &memory, 0, 1).unwrap();
    drop(batch);
    assert!(!memory.is_busy());
    std::mem::forget(client.batch());
    let mut batch = client.batch();
    batch.push(&nop(), &[]).unwrap();
    batch.push(&nop(), &[]).unwrap();
    std::mem::forget(batch);
    client.submit().unwrap();
    assert!(fake.take().is_none());

    let engine = fake.work_in_background();
    let mut batch = client.batch();
    for _ in 0..50 {
        batch.read(&memory, 0, &memory, 32, 1).unwrap();
    }
    drop(batch);
    let after = client.batch().submit().unwrap();
    assert!(after.position() >= 46, "{}", after.position());
    client.wait(&after).unwrap();
    assert!(!memory.is_busy());
    drop(client);
    engine.join().unwrap();
}

#[test]
fn a_dead_engine_is_noticed_while_a_batch_streams() {
    let (mut client, mut fake) = meet(&setup(4, 8));
    let death = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(10));
        fake.die();
        fake
    });
    let start = Instant::now();
    let mut batch = client.batch();
    let error = (0..100).find_map(|_| batch.push(&nop(), &[]).err()).expect("nobody takes them");
    assert_eq!(error.status, Status::ENGINE_LOST);
    assert_eq!(batch.submit().unwrap_err().status, Status::ENGINE_LOST);
    assert!(start.elapsed() < Duration::from_secs(1));
    death.join().unwrap();
}

#[test]
fn cancelling_goes_by_the_socket_or_by_the_ring() {
    let (mut client, mut fake) = meet(&setup(8, 8));
    let ticket = client.batch().submit().unwrap();
    assert!(client.cancel(&ticket).unwrap());
    let asked = fake.office.asked.lock().unwrap().last().copied().unwrap();
    assert_eq!((asked.kind, asked.args[0]), (Kind::CANCEL, 0));
    *fake.office.twist.lock().unwrap() = Some(|answer| answer.status = Status::NOT_FOUND);
    assert!(!client.cancel(&ticket).unwrap());
    client.cancel_in_ring(&ticket).unwrap();
    let (_, cancel) = fake.take_all()[1];
    assert_eq!((cancel.opcode, cancel.flags, cancel.src_offset), (Opcode::CANCEL.0, Flags::LAST, 0));
}

#[test]
fn raw_descriptors_go_to_the_ring_as_they_are_and_their_spans_come_from_reap() {
    let (mut client, mut fake) = meet(&setup(4, 16));
    let last = Descriptor { flags: Flags::LAST, user_data: 9, ..nop() };
    // SAFETY: these descriptors name no memory.
    unsafe {
        client.push(&nop()).unwrap();
        client.push(&last).unwrap();
        client.push(&last).unwrap();
        assert_eq!(client.push_extended(&last, &Extension::new(1, 1, 1)), Err(PushError::Full));
        client.push(&last).unwrap();
        assert_eq!(client.push(&last), Err(PushError::Full));
    }
    assert!(fake.take().is_none());
    client.submit().unwrap();
    assert_eq!(fake.take_all().last(), Some(&(3, last)));
    let ticket = client.batch().submit().unwrap();
    fake.done(0, 2);
    fake.done(4, 1);
    client.wait(&ticket).unwrap();
    fake.done(2, 1);
    // The first was taken while waiting for something else, and kept.
    assert_eq!(client.reap().unwrap(), Some(ok(0, 2)));
    assert_eq!(client.reap().unwrap(), Some(ok(2, 1)));
    // SAFETY: as above.
    unsafe { client.push(&nop()).unwrap() };
    let refused = client.batch().submit().unwrap_err();
    assert_eq!(refused.status, Status::BAD_SEQUENCE, "a batch would have become a part of the raw one");
}

#[test]
fn a_deadline_after_the_first_descriptor_fails_the_submit() {
    let (mut client, mut fake) = meet(&setup(8, 8));
    let mut batch = client.batch();
    batch.push(&nop(), &[]).unwrap();
    let error = batch.deadline(Duration::from_secs(1)).submit().unwrap_err();
    assert_eq!(error.status, Status::BAD_SEQUENCE);
    assert!(fake.take().is_none());
}
