//! Tasks that pack and unpack by lists: what they touch, what they refuse, and what they keep.

mod listed;

use listed::list;
use ring_abi::Status;
use rustix::fs::MemfdFlags;
use scatter_ring::pack::{ListPacker, ListTask, Way};
use scatter_ring::plan::{LIST_BYTES, Refusal};
use scatter_ring::region::{Huge, Region, Rights, guard};
use std::sync::Arc;

fn region(bytes: u64) -> Arc<Region> {
    Arc::new(Region::allocate(bytes, Huge::Never).unwrap().0)
}

fn bytes_of(region: &Region, from: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.read_at(from, &mut bytes).unwrap();
    bytes
}

fn refused(status: Status, piece: u32, detail: u64) -> Result<u32, Refusal> {
    Err(Refusal { status, piece, detail })
}

fn run(task: &mut ListTask) -> Result<u32, Refusal> {
    task.run(&mut ListPacker::default());
    task.result()
}

#[test]
fn pieces_go_into_the_slot_and_come_out_of_it() {
    let (memory, slots, into) = (region(4096), region(4096), region(4096));
    memory.write_at(0, b"abcdefgh").unwrap();
    let mut task = ListTask::new();
    task.id = 7;
    assert_eq!((task.result(), task.ns()), (refused(Status::NOT_DONE, 0, 0), 0));

    let pieces = list(&[(5, 6, 2), (5, 0, 3)]);
    task.set(Way::Pack, &pieces, (slots.clone(), 4000), 96).unwrap();
    task.regions.push((5, memory.clone()));
    assert_eq!(task.list(), pieces);
    assert_eq!(task.result(), refused(Status::NOT_DONE, 0, 0));
    assert_eq!(run(&mut task), Ok(5));
    assert!(task.ns() > 0);
    assert_eq!((bytes_of(&slots, 3999, 7), task.id), (b"\0ghabc\0".to_vec(), 7));

    task.finish();
    task.regions.extend([(9, into.clone()), (1, memory.clone())]);
    task.set(Way::Unpack, &list(&[(1, 4095, 1), (9, 0, 4)]), (slots.clone(), 4000), 5).unwrap();
    assert_eq!((task.result(), task.ns()), (refused(Status::NOT_DONE, 0, 0), 0), "what it was is forgotten");
    assert_eq!(run(&mut task), Ok(5));
    assert_eq!((bytes_of(&into, 0, 5), bytes_of(&memory, 4095, 1)), (b"habc\0".to_vec(), b"g".to_vec()));
}

#[test]
fn a_finished_task_holds_no_memory_and_does_nothing() {
    let (memory, slots) = (region(64), region(64));
    let mut task = ListTask::new();
    let room = task.list().len();
    task.set(Way::Pack, &list(&[(1, 0, 8)]), (slots.clone(), 0), 8).unwrap();
    task.regions.push((1, memory.clone()));
    assert_eq!(run(&mut task), Ok(8));
    assert_eq!((Arc::strong_count(&memory), Arc::strong_count(&slots)), (2, 2));
    task.finish();
    assert_eq!((Arc::strong_count(&memory), Arc::strong_count(&slots)), (1, 1));
    assert_eq!((task.list().len(), task.regions.len()), (room, 0));
    assert_eq!(run(&mut task), refused(Status::NOT_DONE, 0, 0));
}

#[test]
fn the_slot_lies_in_its_region_and_may_be_used() {
    let (fd, slots) = {
        let (region, fd) = Region::allocate(4096, Huge::Never).unwrap();
        (fd, Arc::new(region))
    };
    let mut task = ListTask::new();
    let mut set = |way, region: &Arc<Region>, offset, bytes| {
        task.set(way, &[], (region.clone(), offset), bytes).err().map(|refusal| refusal.status)
    };
    for way in [Way::Pack, Way::Unpack] {
        assert_eq!(set(way, &slots, 0, 4096), None);
        assert_eq!(set(way, &slots, 4095, 1), None);
        for (offset, bytes) in [(0, 4097), (4095, 2), (4097, 0), (u64::MAX, 1), (u64::MAX, 0), (0, u32::MAX)] {
            assert_eq!(set(way, &slots, offset, bytes), Some(Status::OUT_OF_RANGE), "{bytes} bytes at {offset}");
        }
    }
    let readable = Arc::new(Region::of_own_fd(&fd, 0, 4096, Rights::READ).unwrap());
    let writable = Arc::new(Region::of_own_fd(&fd, 0, 4096, Rights::WRITE).unwrap());
    assert_eq!((set(Way::Pack, &readable, 0, 1), set(Way::Unpack, &readable, 0, 1)), (Some(Status::NO_RIGHT), None));
    assert_eq!((set(Way::Pack, &writable, 0, 1), set(Way::Unpack, &writable, 0, 1)), (None, Some(Status::NO_RIGHT)));
    let long = task.set(Way::Pack, &[0; LIST_BYTES + 1], (slots.clone(), 0), 1);
    assert_eq!(long.map(|()| 0), refused(Status::LIMIT_EXCEEDED, 0, LIST_BYTES as u64 + 1));
    assert_eq!(run(&mut task), refused(Status::NOT_DONE, 0, 0), "what was refused is not run");
    assert_eq!(Arc::strong_count(&slots), 1);
}

#[test]
fn what_is_wrong_with_a_list_is_said_by_its_piece() {
    let (memory, slots) = (region(100), region(64));
    for way in [Way::Pack, Way::Unpack] {
        for (pieces, outcome) in [
            (vec![(1, 0, 8), (1, 93, 8)], refused(Status::OUT_OF_RANGE, 1, 93)),
            (vec![(1, 0, 8), (2, 0, 8)], refused(Status::UNKNOWN_REGION, 1, 2)),
            (vec![(1, 0, 32), (1, 0, 32), (1, 0, 1)], refused(Status::LIMIT_EXCEEDED, 2, 1)),
            (vec![], Ok(0)),
        ] {
            let mut task = ListTask::new();
            task.set(way, &list(&pieces), (slots.clone(), 0), 64).unwrap();
            task.regions.push((1, memory.clone()));
            assert_eq!(run(&mut task), outcome, "{way:?} {pieces:?}");
        }
    }
}

#[test]
fn memory_that_is_withdrawn_is_gone_if_the_list_names_it() {
    let (memory, withdrawn, slots) = (region(64), region(64), region(64));
    withdrawn.withdraw();
    let mut task = ListTask::new();
    for way in [Way::Pack, Way::Unpack] {
        for (pieces, outcome) in [
            (vec![(1, 0, 8), (3, 0, 8), (1, 0, 8)], refused(Status::REGION_GONE, 1, 3)),
            (vec![(1, 0, 8), (1, 0, 8)], Ok(16)),
        ] {
            task.set(way, &list(&pieces), (slots.clone(), 0), 64).unwrap();
            task.regions.extend([(1, memory.clone()), (3, withdrawn.clone())]);
            assert_eq!(run(&mut task), outcome, "{way:?}");
            task.finish();
        }
    }
}

/// Memory whose file has one page of two left.
fn cut_short() -> Arc<Region> {
    guard::install().unwrap();
    let fd = rustix::fs::memfd_create("cut", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, 8192).unwrap();
    let region = Arc::new(Region::of_own_fd(&fd, 0, 8192, Rights::READ_WRITE).unwrap());
    rustix::fs::ftruncate(&fd, 4096).unwrap();
    region
}

#[test]
fn memory_that_is_lost_while_it_is_copied_or_before_is_gone() {
    let (memory, slots) = (region(64), region(64));
    let mut task = ListTask::new();
    for way in [Way::Pack, Way::Unpack] {
        let lost = cut_short();
        let mut run_with = |pieces: &[(u32, u64, u32)]| {
            task.set(way, &list(pieces), (slots.clone(), 0), 64).unwrap();
            task.regions.extend([(1, memory.clone()), (3, lost.clone())]);
            let result = run(&mut task);
            task.finish();
            result
        };
        assert_eq!(run_with(&[(1, 0, 8), (3, 0, 8)]), Ok(16), "what is there is there");
        assert_eq!(run_with(&[(1, 0, 8), (3, 5000, 8), (1, 0, 8)]), refused(Status::REGION_GONE, 0, 3), "{way:?}");
        assert!(lost.is_lost());
        assert_eq!(run_with(&[(1, 0, 8), (3, 0, 8), (1, 0, 8)]), refused(Status::REGION_GONE, 1, 3), "{way:?}");
        assert_eq!(run_with(&[(1, 0, 8)]), Ok(8), "of another region");
        task.set(way, &list(&[(1, 0, 8)]), (cut_short(), 4096), 64).unwrap();
        task.regions.push((1, memory.clone()));
        assert_eq!(run(&mut task), refused(Status::FAULT, 0, 0), "the slot");
    }
}
