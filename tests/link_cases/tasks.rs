//! Tasks on the lanes of a link: each runs where it was given to and comes back once, whatever becomes of the link.

use super::{Connect, Width};
use crate::linked::{Side, contents, end, filled, local, pattern, poll_until, region, remote, until};
use crate::listed::list;
use ring_abi::Status;
use rustix::fs::{MemfdFlags, SealFlags};
use scatter_ring::link::{Operation, Reason, Transport};
use scatter_ring::pack::{ListTask, Way};
use scatter_ring::region::{Region, Rights};
use std::sync::Arc;

const LANES: usize = 3;
pub const BYTES: u32 = 1000;

fn task(
    id: u64,
    way: Way,
    slot: (&Arc<Region>, u64),
    memory: &Arc<Region>,
    pieces: &[(u32, u64, u32)],
) -> Box<ListTask> {
    let mut task = Box::new(ListTask::new());
    task.id = id;
    let bytes = pieces.iter().map(|(_, _, len)| len).sum();
    task.set(way, &list(pieces), (slot.0.clone(), slot.1), bytes).unwrap();
    task.regions.push((1, memory.clone()));
    task
}

/// Packs so many bytes in one piece.
pub fn packing(id: u64, slots: &Arc<Region>, memory: &Arc<Region>, bytes: u32) -> Box<ListTask> {
    task(id, Way::Pack, (slots, id * u64::from(bytes)), memory, &[(1, 0, bytes)])
}

fn ids<L>(side: &Side<L>) -> Vec<u64> {
    side.ran.iter().map(|task| task.id).collect()
}

/// Faults of this thread so far for pages that were not there.
fn page_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // The eighth behind the name, which may have anything in it.
    stat.rsplit(") ").next().unwrap().split(' ').nth(7).unwrap().parse().unwrap()
}

/// More than a lane does at once, for whatever comes behind them.
#[expect(clippy::vec_box, reason = "tasks go round by pointer")]
fn many(bytes: u32) -> (Arc<Region>, Vec<Box<ListTask>>) {
    const TASKS: u64 = 64;
    let (source, slots) = (filled(&vec![3; bytes as usize]), region(TASKS * u64::from(bytes)));
    let tasks = (0..TASKS).map(|id| packing(id, &slots, &source, bytes)).collect();
    (slots, tasks)
}

/// Whether a task has run: as a whole, or not at all.
fn came_to(task: &ListTask, slots: &Region) -> bool {
    let bytes = task.result().map_err(|refusal| refusal.status);
    let mut edges = [[0], [0]];
    let from = task.id * slots.bytes() / 64;
    slots.read_at(from, &mut edges[0]).unwrap();
    slots.read_at(from + slots.bytes() / 64 - 1, &mut edges[1]).unwrap();
    match bytes {
        Ok(bytes) => assert_eq!((u64::from(bytes), edges), (slots.bytes() / 64, [[3], [3]])),
        Err(status) => assert_eq!((status, edges, task.ns()), (Status::NOT_DONE, [[0], [0]], 0)),
    }
    bytes.is_ok()
}

pub fn a_chunk_is_packed_here_and_unpacked_there_on_its_lane(connect: &impl Connect) {
    let (mut a, mut b) = connect.pair(LANES, Width::Wide);
    let bytes = pattern(4096, 1);
    let (source, slots, landing, into) = (filled(&bytes), a.own(region(8192)), region(8192), region(4096));
    let grant = b.lets(&mut a, &landing, Rights::WRITE);
    for lane in 0..LANES {
        let pieces = [(1, 3000, 1000), (1, 0, 5), (1, 1000, 995)];
        a.link.run(lane, task(1, Way::Pack, (&slots, 100), &source, &pieces)).unwrap();
        poll_until(&mut a, &mut b, |a, _| !a.ran.is_empty());
        assert_eq!(a.ran.pop().map(|task| (task.id, task.result())), Some((1, Ok(2000))));
        let (from, to) = ([local(&slots, 100, 2000)], [remote(grant, 50, 2000)]);
        let write = Operation::Write { id: lane as u64, from: &from, to: &to, acknowledged: false };
        a.link.post(lane, &[write, Operation::Send { bytes: b"done", names: None }]).unwrap();
        poll_until(&mut a, &mut b, |a, b| b.received.len() == 1 && a.completed.len() == 1);
        b.link.run(lane, task(2, Way::Unpack, (&landing, 50), &into, &pieces)).unwrap();
        poll_until(&mut a, &mut b, |_, b| !b.ran.is_empty());
        assert_eq!(b.ran.pop().map(|task| (task.id, task.result())), Some((2, Ok(2000))));
        for (from, len) in [(3000, 1000), (0, 5), (1000, 995)] {
            assert!(contents(&into)[from..from + len] == bytes[from..from + len], "lane {lane}");
        }
        assert_eq!(contents(&into)[5..1000], [0; 995]);
        into.write_at(0, &[0; 4096]).unwrap();
        a.completed.clear();
        b.received.clear();
    }
}

pub fn lanes_with_a_thread_run_tasks_there_and_lane_0_at_once(connect: &impl Connect) {
    const PAGES: u64 = 256;
    let (mut a, mut b) = connect.pair(2, Width::Wide);
    let slots = filled(&pattern(PAGES as usize * 4096, 3));
    for lane in [1, 0] {
        // Its pages come when they are touched, and are counted for the thread that does.
        let fd = rustix::fs::memfd_create("fresh", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, PAGES * 4096).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let fresh = Arc::new(Region::of_own_fd(&fd, 0, PAGES * 4096, Rights::READ_WRITE).unwrap());
        let pieces: Vec<_> = (0..PAGES).map(|page| (1, page * 4096, 4096)).collect();
        let unpacking = task(1, Way::Unpack, (&slots, 0), &fresh, &pieces);
        let before = page_faults();
        a.link.run(lane, unpacking).unwrap();
        poll_until(&mut a, &mut b, |a, _| a.ran.len() == 1);
        let was_here = page_faults() - before >= PAGES;
        assert_eq!(was_here, lane == 0, "{} faults on lane {lane}", page_faults() - before);
        assert!(contents(&fresh) == contents(&slots));
        assert!(a.ran.pop().is_some_and(|task| task.ns() > 0 && task.result() == Ok(PAGES as u32 * 4096)));
    }
    let slot = region(10);
    a.link.run(0, task(9, Way::Pack, (&slot, 0), &filled(&[7; 10]), &[(1, 0, 10)])).unwrap();
    assert_eq!(contents(&slot), [7; 10], "before any poll");
    assert!(a.link.has_news(), "no sleep before it is told");
    poll_until(&mut a, &mut b, |a, _| ids(a) == [9]);
}

pub fn tasks_of_a_lane_run_in_their_order_and_no_more_of_them_than_the_limit(connect: &impl Connect) {
    let (mut a, mut b) = connect.pair(LANES, Width::Narrow);
    let (source, slots) = (filled(&pattern(BYTES as usize, 2)), region(1 << 20));
    for lane in 0..LANES {
        for round in 0..20 {
            for id in [0, 1] {
                a.link.run(lane, packing(2 * round + id, &slots, &source, BYTES)).unwrap();
            }
            let refused = a.link.run(lane, packing(99, &slots, &source, BYTES)).unwrap_err();
            assert_eq!((refused.id, refused.result().is_err()), (99, true));
            poll_until(&mut a, &mut b, |a, _| a.ran.len() == 2);
            assert_eq!(ids(&a), [2 * round, 2 * round + 1], "lane {lane}");
            assert!(a.ran.drain(..).all(|task| task.result() == Ok(BYTES)));
        }
    }
    assert_eq!(a.link.run(LANES, packing(98, &slots, &source, BYTES)).unwrap_err().id, 98, "no such lane");
}

pub fn tasks_that_had_not_begun_when_the_link_went_down_come_back_as_they_were(connect: &impl Connect) {
    for lane in [1, 0] {
        // How far the lane gets before it hears of the end is not known, but not each time to the last task.
        until(|| {
            let (mut a, mut b) = connect.pair(2, Width::Wide);
            let (slots, tasks) = many(256 << 10);
            tasks.into_iter().for_each(|task| a.link.run(lane, task).unwrap());
            a.link.shut_down();
            let late = a.link.run(lane, packing(0, &slots, &slots, 10));
            assert!(late.is_err(), "it is not told yet, but down");
            drop(late);
            end(&mut a, &mut b);
            let mut ids = ids(&a);
            ids.sort_unstable();
            assert_eq!(ids, (0..64).collect::<Vec<u64>>(), "each of them once");
            assert_eq!(a.down, Some(Reason::ShutDown));
            let ran = a.ran.iter().filter(|task| came_to(task, &slots)).count();
            let back = a.link.run(1 - lane, packing(0, &slots, &slots, 10)).unwrap_err();
            assert_eq!(
                (back.id, Arc::strong_count(&slots)),
                (0, 64 + 3),
                "tasks keep their memory until they are finished"
            );
            if lane == 0 { ran == 64 } else { ran < 64 }
        });
    }
}

pub fn a_link_that_is_dropped_lets_go_of_its_tasks(connect: &impl Connect) {
    let (mut a, b) = connect.pair(LANES, Width::Wide);
    let (slots, tasks) = many(64 << 10);
    for (lane, task) in (0..LANES).cycle().zip(tasks) {
        a.link.run(lane, task).unwrap();
    }
    drop((a, b));
    assert_eq!(Arc::strong_count(&slots), 1);
}
