//! Everything arrives, by every route and whatever it looks like.

use super::jobs::{Job, Moves, rules};
use super::seeded::{Random, cases};
use super::{Pair, World, config};
use crate::engine::remote::RemoteConfig;
use crate::plan::{Direction, Rules};

pub const DIRECTIONS: [Direction; 2] = [Direction::Read, Direction::Write];

pub fn any_moves(random: &mut Random) -> Moves {
    let count = 1 + random.small(300);
    let way = random.small(6);
    match way {
        0 => {
            let len = 1 + random.small(50_000);
            Moves::one(len)
        }
        1 | 2 => {
            let len = 1 + random.small(300);
            Moves::rows(random, count, len, way == 2)
        }
        _ => Moves::irregular(random, count, [way == 3, way == 4], 400),
    }
}

/// One that is put into the world by whoever asked for it.
pub fn any_job(random: &mut Random, world: &mut World, pair: Pair) -> Job {
    let direction = random.pick(&DIRECTIONS);
    let moves = any_moves(random);
    let rules = rules(random.pick(&[0, 100, u32::MAX]), random.pick(&[300, 1000, 4096]));
    let slots = random.pick(&[1, 2, 4]);
    let is_small = random.once_in(4);
    Job::new(world, pair, direction, &moves, rules).with(slots, is_small)
}

fn run_one(config: &RemoteConfig, lanes: usize, direction: Direction, moves: &Moves, direct_from: u32) -> Job {
    let mut world = World::new(&[config.clone(), config.clone()]);
    let pair = world.connect(0, 1, lanes);
    let job = Job::new(&mut world, pair, direction, moves, rules(direct_from, 4096));
    world.nodes[0].jobs.push(job);
    world.finish();
    world.check_idle();
    let job = world.nodes[0].jobs.pop().unwrap();
    assert!(job.done, "{:?}", job.fault);
    job
}

#[test]
fn each_route_is_taken_when_it_is_planned() {
    let mut random = Random::from_seed(1);
    let scattered = Moves::irregular(&mut random, 200, [false; 2], 400);
    for direction in DIRECTIONS {
        let times = run_one(&config(), 3, direction, &scattered, u32::MAX).times;
        assert!(times.gathered_chunks > 1 && times.direct_chunks == 0 && times.pack_ns > 0, "{times:?}");
        assert!(times.window_ns > 0 && times.command_ns > 0, "{times:?}");
        let times = run_one(&config(), 3, direction, &scattered, 0).times;
        assert!(times.gathered_chunks == 0 && times.direct_chunks > 1 && times.pack_ns == 0, "{times:?}");
        let times = run_one(&config(), 3, direction, &scattered, 200).times;
        assert!(times.gathered_chunks > 0 && times.direct_chunks > 0, "{times:?}");
    }
}

#[test]
fn contiguous_ends_need_no_packing() {
    let mut random = Random::from_seed(2);
    let to_one = Moves::irregular(&mut random, 100, [false, true], 300);
    let from_one = Moves::irregular(&mut random, 100, [true, false], 300);
    for moves in [&to_one, &from_one, &Moves::one(4000)] {
        for direction in DIRECTIONS {
            run_one(&config(), 2, direction, moves, u32::MAX);
        }
    }
}

#[test]
fn zeros_come_by_every_route() {
    let mut random = Random::from_seed(3);
    let moves = Moves::rows(&mut random, 200, 64, true);
    for direction in DIRECTIONS {
        for direct_from in [0, u32::MAX] {
            run_one(&config(), 2, direction, &moves, direct_from);
        }
    }
}

#[test]
fn one_lane_carries_everything() {
    let mut random = Random::from_seed(4);
    let moves = Moves::irregular(&mut random, 300, [false; 2], 400);
    for direction in DIRECTIONS {
        for direct_from in [0, 200, u32::MAX] {
            run_one(&config(), 1, direction, &moves, direct_from);
        }
    }
}

#[test]
fn long_pieces_and_windows_of_many_pieces_go_direct() {
    for direction in DIRECTIONS {
        run_one(&config(), 2, direction, &Moves::one(3 << 20), 0);
        let many = Moves::rows(&mut Random::from_seed(5), 5000, 16, true);
        run_one(&config(), 2, direction, &many, 0);
    }
}

#[test]
fn a_window_of_more_pieces_than_either_side_has_goes_by_several_operations() {
    let moves = Moves::woven(3000);
    for direction in DIRECTIONS {
        let mut world = World::new(&[config(), config()]);
        let pair = world.connect(0, 1, 2);
        let rules = Rules { window_operations: 4096, ..rules(0, 4096) };
        let job = Job::new(&mut world, pair, direction, &moves, rules);
        world.nodes[0].jobs.push(job);
        world.finish();
        world.check_idle();
        let job = &world.nodes[0].jobs[0];
        assert!(job.done && job.times.direct_chunks == 1, "{:?} {:?}", job.fault, job.times);
    }
}

#[test]
fn the_poller_writes_zeros_a_turn_at_a_time() {
    let moves = Moves::rows(&mut Random::from_seed(6), 8, 700_000, true);
    let zeros = moves.fragments.iter().filter(|(src, _, _)| src.is_none()).count() as u64 * 700_000;
    for direction in DIRECTIONS {
        let mut world = World::new(&[config(), config()]);
        let pair = world.connect(0, 1, 2);
        let job = Job::new(&mut world, pair, direction, &moves, rules(0, 4096));
        world.nodes[0].jobs.push(job);
        let before = world.turns;
        world.finish();
        assert!(world.nodes[0].jobs[0].done);
        let least = if direction == Direction::Read { zeros / (256 << 10) } else { 1 };
        assert!(zeros > 1 << 20 && world.turns - before >= least, "in {} turns", world.turns - before);
        world.check_idle();
    }
}

#[test]
fn a_chunk_that_is_longer_than_a_slot_of_either_side_goes_direct() {
    let moves = Moves::irregular(&mut Random::from_seed(7), 200, [false; 2], 400);
    for (ours, theirs) in [(4096, 8192), (8192, 4096)] {
        for direction in DIRECTIONS {
            let mut world = World::new(&[ours, theirs].map(|slot_bytes| RemoteConfig { slot_bytes, ..config() }));
            let pair = world.connect(0, 1, 2);
            let job = Job::new(&mut world, pair, direction, &moves, rules(u32::MAX, 8192));
            world.nodes[0].jobs.push(job);
            world.finish();
            let job = &world.nodes[0].jobs[0];
            assert!(job.done && job.times.direct_chunks > 0, "{:?}", job.fault);
            world.check_idle();
        }
    }
}

#[test]
fn there_are_only_so_many_connections() {
    let mut world = World::new(&[RemoteConfig { connections: 2, ..config() }, config()]);
    (0..2).for_each(|_| _ = world.connect(0, 1, 2));
    let refused = world.connect(0, 1, 2);
    world.sockets.clear();
    world.until(|world| !world.nodes[1].down.is_empty());
    assert_eq!(
        (&world.nodes[0].down[..], &world.nodes[1].down[..]),
        (&[refused.requester.1][..], &[refused.owner.1][..])
    );
    assert_eq!(world.nodes[0].remotes.seats.len(), 2);
    world.check_idle();
}

#[test]
fn pollers_that_sleep_are_woken() {
    cases(10, |random| {
        // No heartbeat wakes them.
        let mut world = World::new(&[0; 2].map(|_| RemoteConfig { dead_after_ns: 1 << 60, ..config() }));
        let lanes = 1 + random.below(3) as usize;
        let pair = world.connect(0, 1, lanes);
        // The second is longer than what the sockets hold.
        for (moves, direct_from) in [(any_moves(random), random.pick(&[100, u32::MAX])), (Moves::one(2 << 20), 0)] {
            let rules = rules(direct_from, 4096);
            let job = Job::new(&mut world, pair, random.pick(&DIRECTIONS), &moves, rules).with(2, random.once_in(2));
            world.nodes[0].jobs.push(job);
        }
        while !world.nodes[0].jobs.iter().all(|job| job.done) {
            world.turn_or_sleep();
        }
        world.check_idle();
    });
}

#[test]
fn any_parts_at_once_arrive() {
    cases(30, |random| {
        let slots = random.pick(&[1, 2, 4]);
        let configs = [0, 1].map(|_| RemoteConfig { slots, owner_slots: random.pick(&[1, 2, 4]), ..config() });
        let mut world = World::new(&configs);
        let lanes = 1 + random.below(3) as usize;
        let pair = world.connect(0, 1, lanes);
        let back = Pair { requester: pair.owner, owner: pair.requester };
        for _ in 0..1 + random.below(4) {
            let way = random.pick(&[pair, back]);
            let job = any_job(random, &mut world, way);
            world.nodes[way.requester.0].jobs.push(job);
        }
        world.finish();
        assert!(world.nodes.iter().all(|node| node.jobs.iter().all(|job| job.done)));
        world.check_idle();
    });
}

#[test]
fn two_requesters_share_one_slot_of_an_owner() {
    let mut refused = 0;
    cases(10, |random| {
        let configs = [0, 1, 2].map(|i| RemoteConfig { owner_slots: if i == 2 { 1 } else { 4 }, ..config() });
        let mut world = World::new(&configs);
        let pairs = [world.connect(0, 2, 2), world.connect(1, 2, 2)];
        for pair in pairs {
            let moves = Moves::irregular(random, 300, [false; 2], 100);
            let job = Job::new(&mut world, pair, Direction::Read, &moves, rules(u32::MAX, 1000)).with(4, false);
            world.nodes[pair.requester.0].jobs.push(job);
        }
        // No command waits for longer than a turn.
        world.step_ns = 3_000_000;
        world.finish();
        assert!(world.nodes.iter().all(|node| node.jobs.iter().all(|job| job.done)));
        world.check_idle();
        refused += world.nodes[..2].iter().map(|node| node.remotes.seats[0].asking.counters().refused).sum::<u64>();
    });
    assert!(refused > 0, "nobody had to go another way");
}
