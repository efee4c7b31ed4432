//! Whatever goes wrong and whenever: every part ends once, nothing is written after its end, and nothing is left.

use super::jobs::Job;
use super::moves::any_job;
use super::seeded::{Random, cases};
use super::{Pair, World, config, contents};
use crate::engine::remote::RemoteConfig;
use crate::plan::Direction;
use ring_abi::Status;
use std::sync::Arc;

/// Two nodes with a connection, another pair beside them, and some jobs on the first.
fn world(random: &mut Random) -> (World, Pair, Pair) {
    let configs = [0; 3].map(|_| RemoteConfig { owner_slots: random.pick(&[1, 4]), ..config() });
    let mut world = World::new(&configs);
    let lanes = 1 + random.below(3) as usize;
    let (pair, other) = (world.connect(0, 1, lanes), world.connect(2, 1, 2));
    for _ in 0..1 + random.below(3) {
        let job = any_job(random, &mut world, pair);
        world.nodes[0].jobs.push(job);
    }
    (world, pair, other)
}

fn some_turns(random: &mut Random, world: &mut World) {
    for _ in 0..random.below(60) {
        if !world.turn() && random.once_in(3) {
            std::thread::yield_now();
        }
    }
}

/// What is written from here on is written too late.
fn refill(world: &World) {
    for job in world.nodes.iter().flat_map(|node| &node.jobs) {
        job.dst.write_at(0, &vec![0x55; job.expected.len()]).unwrap();
    }
}

#[track_caller]
fn check_nothing_came(world: &World) {
    for job in world.nodes.iter().flat_map(|node| &node.jobs) {
        let late = contents(&job.dst).iter().position(|byte| *byte != 0x55);
        assert_eq!(late, None, "{:?} {:?}", job.direction, job.fault);
    }
}

#[test]
fn nothing_is_written_after_a_cancelled_part_has_ended() {
    cases(30, |random| {
        let (mut world, _, _) = world(random);
        some_turns(random, &mut world);
        let now_ns = world.now_ns();
        let super::Node { remotes, jobs, .. } = &mut world.nodes[0];
        let which = random.below(jobs.len() as u64) as usize;
        jobs[which].cancel(remotes, now_ns);
        world.finish();
        assert!(world.nodes[0].jobs.iter().all(|job| job.done || job.is_cancelled));
        refill(&world);
        world.check_idle();
        check_nothing_came(&world);
        assert_eq!(world.nodes[0].down.len() + world.nodes[1].down.len(), 0, "the connection stays");
    });
}

#[test]
fn a_region_that_its_owner_withdraws_is_left_alone() {
    cases(20, |random| {
        let (mut world, pair, _) = world(random);
        some_turns(random, &mut world);
        let job = &world.nodes[0].jobs[0];
        let (is_read, part) = (job.direction == Direction::Read, job.part);
        let region = if is_read { job.src.clone() } else { job.dst.clone() };
        world.nodes[pair.owner.0].remotes.withdraw(&region);
        world.until(|world| !world.nodes[pair.owner.0].remotes.uses(&region));
        if !is_read {
            region.write_at(0, &vec![0x55; region.bytes() as usize]).unwrap();
        }
        world.nodes[0].jobs.iter_mut().find(|job| job.part == part).unwrap().is_checked = is_read;
        world.finish();
        let job = world.nodes[0].job(part);
        assert!(job.done || job.fault.is_some_and(|fault| fault.status == Status::REGION_GONE), "{:?}", job.fault);
        assert!(world.nodes[0].jobs[1..].iter().all(|job| job.done), "others are not concerned");
        world.until(|world| world.nodes[0].job(part).remote.is_withdrawn());
        world.check_idle();
        if !is_read {
            assert!(contents(&region).iter().all(|byte| *byte == 0x55), "written after it was taken away");
        }
    });
}

#[test]
fn a_region_of_this_side_that_is_withdrawn_fails_its_part() {
    cases(20, |random| {
        let (mut world, _, _) = world(random);
        some_turns(random, &mut world);
        let job = &world.nodes[0].jobs[0];
        let region = if job.direction == Direction::Read { job.dst.clone() } else { job.src.clone() };
        region.withdraw();
        world.finish();
        let job = &world.nodes[0].jobs[0];
        assert!(job.done || job.fault.is_some_and(|fault| fault.status == Status::REGION_GONE), "{:?}", job.fault);
        assert!(world.nodes[0].jobs[1..].iter().all(|job| job.done), "others are not concerned");
        world.check_idle();
    });
}

/// What ends a connection.
fn break_one(random: &mut Random, world: &mut World, pair: Pair) {
    let (node, seat) = random.pick(&[pair.requester, pair.owner]);
    match random.small(3) {
        0 => {
            world.let_go(seat);
            world.nodes[node].remotes.end(seat);
        }
        _ => world.cut(seat, random.below(3) as usize),
    }
}

#[test]
fn a_connection_may_end_at_any_time() {
    cases(50, |random| {
        let (mut world, pair, other) = world(random);
        let beside = any_job(random, &mut world, other);
        world.nodes[2].jobs.push(beside);
        some_turns(random, &mut world);
        break_one(random, &mut world, pair);
        world.finish();
        for job in &world.nodes[0].jobs {
            let is_lost = job.fault.is_some_and(|fault| fault.status == Status::REGION_GONE);
            assert!(job.done || is_lost || job.is_refused, "{:?}", job.fault);
        }
        assert!(world.nodes[2].jobs[0].done, "another connection is not concerned");
        world.until(|world| [0, 1].iter().all(|node| world.nodes[*node].down.len() == 1));
        refill(&world);
        world.check_idle();
        check_nothing_came(&world);
        assert_eq!(world.nodes[0].down, [pair.requester.1]);
        assert_eq!(world.nodes[1].down, [pair.owner.1]);
        assert!(world.nodes[0].jobs.iter().all(|job| job.remote.is_withdrawn()));
        assert!(world.nodes[0].remotes.is_quiet() && world.nodes[0].remotes.next_timer_ns() == u64::MAX);
        for job in &world.nodes[0].jobs {
            check_let_go(job);
        }
    });
}

/// Only the job has its regions still.
#[track_caller]
fn check_let_go(job: &Job) {
    let (here, there) = if job.direction == Direction::Read { (&job.dst, &job.src) } else { (&job.src, &job.dst) };
    assert_eq!((Arc::strong_count(here), Arc::strong_count(there), Arc::strong_count(&job.remote)), (2, 1, 1));
}

#[test]
fn openings_that_nobody_can_answer_any_more_are_answered() {
    cases(20, |random| {
        let mut world = World::new(&[config(), config()]);
        let pair = world.connect(0, 1, 2);
        let requester = pair.requester.1;
        // Before SLOTS has come, after, and when the connection is gone.
        world.nodes[0].remotes.open(requester, 1, "one", crate::region::Rights::READ);
        some_turns(random, &mut world);
        world.nodes[0].remotes.open(requester, 2, "two", crate::region::Rights::READ);
        break_one(random, &mut world, pair);
        world.until(|world| world.nodes[0].down.len() == 1);
        world.nodes[0].remotes.open(requester, 3, "three", crate::region::Rights::READ);
        world.turn();
        let opened = &world.nodes[0].opened;
        assert_eq!(opened.len(), 3);
        for (request, answer) in opened {
            let status = answer.as_ref().map_err(|(status, _)| *status).unwrap_err();
            let lost = status == Status::REGION_GONE;
            assert!(lost || status == Status::NAME_UNKNOWN && *request < 3, "{request}: {status}");
        }
    });
}
