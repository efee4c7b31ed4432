//! Both machines of a link, driven in random order with real bytes, with faults and without.

mod piped;
mod seeded;

use piped::{Faults, World};
use ring_abi::Route;
use scatter_ring::pipeline::{Chunk, OwnerLimits, RequesterLimits};
use scatter_ring::plan::Direction;
use seeded::{Random, cases};

/// Small limits, so that everything runs out.
fn any_world(random: &mut Random, faults: Faults) -> World {
    let commands = random.pick(&[0, 1, 2, 8]);
    let owner_slots = random.pick(&[0, 1, 3]);
    let queue_depth = random.pick(&[1, 2, 3, 8, 64]);
    let requester = RequesterLimits {
        batches: random.pick(&[1, 2, 4]),
        chunks: random.pick(&[1, 3, 16]),
        queue_depth,
        window: random.pick(&[1, 2, 4]),
        slots: random.pick(&[0, 1, 2, 4]),
        owner_slots,
        commands,
        acknowledge_ns: random.pick(&[0, 10, 1000]),
    };
    let owner = OwnerLimits {
        links: 2,
        slots: random.pick(&[0, 1, 2, 4]),
        link_slots: owner_slots,
        commands,
        queue_depth: random.pick(&[2, 3, 8]),
        patience_ns: random.pick(&[0, 20, 1000]),
    };
    World::new(1 + random.small(2), &requester, &owner, faults)
}

fn run(random: &mut Random, faults: Faults) -> World {
    let mut world = any_world(random, faults);
    world.begin_any(0, random);
    for _ in 0..random.below(120) {
        world.any_event(random);
    }
    world.run_to_the_end(random);
    world
}

#[test]
fn every_batch_is_done_with_the_right_bytes_if_nothing_fails() {
    cases(4_000, |random| {
        let world = run(random, Faults::default());
        for run in world.ends.iter().flat_map(|end| &end.runs) {
            assert_eq!(run.finished, Some(true));
            assert_eq!(run.added as usize, run.chunks.len());
        }
    });
}

#[test]
fn the_rules_hold_whatever_fails() {
    cases(8_000, |random| {
        let faults = Faults {
            operation: random.pick(&[0, 3, 20]),
            task: random.pick(&[0, 3, 20]),
            lost: 0,
            again: random.pick(&[0, 2]),
            post: random.pick(&[0, 0, 20]),
            cancel: random.pick(&[0, 10, 40]),
            down: random.pick(&[0, 0, 100]),
            made_up: random.pick(&[0, 5]),
        };
        run(random, faults);
    });
}

#[test]
fn the_rules_hold_whatever_is_lost() {
    cases(8_000, |random| {
        let faults = Faults {
            operation: random.pick(&[0, 20]),
            task: random.pick(&[0, 20]),
            lost: random.pick(&[2, 10, 50]),
            again: random.pick(&[0, 3]),
            post: random.pick(&[0, 0, 50]),
            cancel: random.pick(&[0, 40]),
            down: random.pick(&[0, 0, 100]),
            made_up: random.pick(&[0, 20]),
        };
        run(random, faults);
    });
}

/// Both directions, both routes, all four shapes; then the k-th operation, pack or unpack fails, for every k.
#[test]
fn whichever_element_fails_its_batch_fails_and_the_others_are_done() {
    cases(100, |random| {
        let shapes = [(1, 1), (1, 4), (4, 1), (4, 4)];
        let gathered = shapes.map(|(src, dst)| chunk(Route::GATHER, src, dst));
        let direct = shapes.map(|(src, dst)| chunk(Route::DIRECT, src, dst));
        let limits = RequesterLimits {
            batches: 2,
            chunks: 16,
            queue_depth: 6,
            window: 3,
            slots: 2,
            owner_slots: 2,
            commands: 3,
            acknowledge_ns: 1000,
        };
        let owner =
            OwnerLimits { links: 1, slots: 2, link_slots: 2, commands: 3, queue_depth: 4, patience_ns: u64::MAX };
        for fails_at in 1.. {
            let mut world = World::new(1, &limits, &owner, Faults::default());
            world.fails_at = Some(fails_at);
            for direction in [Direction::Read, Direction::Write] {
                world.begin(0, direction, 2, &[gathered, direct].concat(), random);
            }
            world.run_to_the_end(random);
            let runs = &world.ends[0].runs;
            let failed = runs.iter().filter(|run| run.has_failed).count();
            assert_eq!(failed, usize::from(fails_at <= world.elements));
            assert!(runs.iter().all(|run| run.finished == Some(!run.has_failed)));
            if failed == 0 {
                // 16 operations of each direct half; 4 bulk writes, 2 packs and 2 unpacks of each gathered one.
                assert_eq!(world.elements, 2 * (16 + 4 + 2 + 2));
                break;
            }
        }
    });
}

fn chunk(route: Route, src_pieces: u32, dst_pieces: u32) -> Chunk {
    Chunk { route, bytes: 8, src_pieces, dst_pieces, operations: 4, command_bytes: 16, lists: 0 }
}
