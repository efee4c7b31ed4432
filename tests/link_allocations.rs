//! Once warm, a link allocates for no operation and no task, on any thread.
//!
//! One test in a binary of its own: the allocator counts for the whole process.

mod counting;
mod linked;
mod listed;
mod seeded;

use linked::{filled, limits, local, pair, region, remote};
use scatter_ring::link::{Event, Operation, Revoked, Transport, Use};

use scatter_ring::pack::{ListTask, Way};
use scatter_ring::region::Rights;

const BYTES: u64 = 300_000;

#[test]
fn an_operation_or_a_task_allocates_nothing() {
    let (mut a, mut b) = pair(3, &limits(), None);
    let (mine, theirs) = (filled(&[1; BYTES as usize]), region(BYTES));
    let here = [local(&mine, 0, 100_000), local(&mine, 100_000, 200_000)];
    let message = [5; 1000];
    let (packed, list) = (region(BYTES), listed::list(&[(1, 5, 1000), (1, 0, 100_000)]));
    let mut spare = Some(Box::new(ListTask::new()));
    let mut round = |round: u64| {
        for lane in 0..3 {
            let mut task = spare.take().unwrap();
            task.set(Way::Pack, &list, (packed.clone(), 0), BYTES as u32).unwrap();
            task.regions.push((1, mine.clone()));
            a.link.run(lane, task).unwrap();
            let grant = b.link.grants().grant(theirs.clone(), 0, BYTES, Rights::READ_WRITE, Use::Many).unwrap();
            let there = [remote(grant, 0, BYTES as u32)];
            let (mut done, mut received) = (0, 0);
            a.link
                .post(
                    lane,
                    &[
                        Operation::Write { id: 1, from: &here, to: &there, acknowledged: round.is_multiple_of(2) },
                        Operation::Send { bytes: &message, names: None },
                        Operation::Read { id: 2, from: &there, to: &here },
                    ],
                )
                .unwrap();
            while done < 2 || received < 1 || spare.is_none() {
                a.link.poll(&mut |event| match event {
                    Event::Completed { result, .. } => {
                        assert_eq!(result, Ok(()));
                        done += 1;
                    }
                    Event::Ran(mut task) => {
                        assert_eq!(task.result(), Ok(101_000));
                        task.finish();
                        spare = Some(task);
                    }
                    other => panic!("{other:?}"),
                });
                b.link.poll(&mut |event| match event {
                    Event::Received { bytes, .. } => {
                        assert_eq!(bytes, message);
                        received += 1;
                    }
                    other => panic!("{other:?}"),
                });
            }
            // Of a lane that has told that it is done; the call may not have returned.
            while b.link.grants().revoke(grant) == Ok(Revoked::Later) {
                std::thread::yield_now();
            }
        }
    };
    (0..50).for_each(&mut round);
    let before = counting::allocations();
    (50..500).for_each(&mut round);
    assert_eq!(counting::allocations() - before, 0, "allocations in 450 rounds on three lanes");
}
