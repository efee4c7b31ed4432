//! Situations and works for the tests of the cost model.

// Each test file that shares this module uses another part of it.
#![allow(dead_code)]

use crate::seeded::Random;
use scatter_ring::cost::{Budget, Class, CopyProfile, Direction, LinkProfile, Situation, Wire, Work};

/// A link with round figures, so that times can be computed by hand: 10 B/ns, a round trip of 2 us, 100 ns an
/// operation; four workers that copy 5 B/ns and need 20 ns a piece.
pub fn plain() -> Situation {
    let copies = CopyProfile { bytes_per_ns: 5.0, piece_ns: 20.0, decode_ns: 0.0, plan_ns: 0.0, workers: 4 };
    Situation {
        direction: Direction::Read,
        link: LinkProfile {
            bytes_per_ns: 10.0,
            round_trip_ns: 2000.0,
            operation_ns: 100.0,
            doorbell_ns: 0.0,
            completion_ns: 0.0,
            queue_depth: 1024,
            max_sge: 1,
            control_ns: 1000.0,
            chunk_fixed_ns: 0.0,
            wire: Wire::Nic,
        },
        requester: copies,
        owner: copies,
        budget: Budget { staging_bytes: 32 << 20, slots_max: 8, chunk_bytes_max: 4 << 20 },
    }
}

/// The pair of hosts of the reference measurements. Bandwidth and round trip are fitted on W4 alone.
pub fn reference() -> Situation {
    let copies = CopyProfile { bytes_per_ns: 10.0, piece_ns: 30.0, decode_ns: 3.0, plan_ns: 3.0, workers: 4 };
    let plain = plain();
    Situation {
        link: LinkProfile {
            bytes_per_ns: 10.0,
            round_trip_ns: 22_000.0,
            operation_ns: 200.0,
            doorbell_ns: 300.0,
            completion_ns: 150.0,
            queue_depth: 4096,
            control_ns: 2000.0,
            chunk_fixed_ns: 2000.0,
            ..plain.link
        },
        requester: copies,
        owner: copies,
        ..plain
    }
}

/// Rows at random places, that land one behind the other.
pub fn rows(count: u64, len: u64) -> Class {
    Class { fragments: count, segments: count, src_pieces: count, dst_pieces: 1, bytes: count * len }
}

pub fn work(classes: &[Class]) -> Work {
    let mut work = Work::default();
    classes.iter().for_each(|class| work.add(class));
    work
}

/// Anything a link or a machine may be, over orders of magnitude.
pub fn any_situation(random: &mut Random) -> Situation {
    let mut between = |low: f64, high: f64| {
        // Even over the cube root: small values come often.
        let part = random.below(1 << 20) as f64 / (1u64 << 20) as f64;
        low + (high - low) * part * part * part
    };
    let mut copies = || CopyProfile {
        bytes_per_ns: between(0.5, 50.0),
        piece_ns: between(1.0, 300.0),
        decode_ns: between(0.0, 20.0),
        plan_ns: between(0.5, 30.0),
        workers: 1 + between(0.0, 15.0) as u32,
    };
    let (requester, owner) = (copies(), copies());
    let link = LinkProfile {
        bytes_per_ns: between(0.1, 100.0),
        round_trip_ns: between(100.0, 1e6),
        operation_ns: between(5.0, 3000.0),
        doorbell_ns: between(0.0, 1000.0),
        completion_ns: between(0.0, 1000.0),
        queue_depth: 1 + between(0.0, 8000.0) as u32,
        max_sge: 1 + between(0.0, 30.0) as u32,
        control_ns: between(0.0, 1e5),
        chunk_fixed_ns: between(0.0, 1e4),
        wire: Wire::Nic,
    };
    let cores = 1 + between(0.0, 31.0) as u32;
    let wire = Wire::Cpu { ns_per_byte: between(0.01, 1.0), cores };
    let short = random.once_in(4);
    let budget = Budget {
        staging_bytes: 1 << if short { random.below(28) } else { 20 + random.below(10) },
        slots_max: if short { random.small(10) } else { 8 },
        chunk_bytes_max: 1 << if short { random.below(24) } else { 18 + random.below(6) },
    };
    let link = if random.once_in(2) { LinkProfile { wire, ..link } } else { link };
    let direction = random.pick(&[Direction::Read, Direction::Write]);
    Situation { direction, link, requester, owner, budget }
}

/// One to five kinds of pieces.
pub fn any_work(random: &mut Random) -> Work {
    let classes: Vec<Class> = (0..=random.below(5)).map(|_| any_class(random)).collect();
    work(&classes)
}

pub fn any_class(random: &mut Random) -> Class {
    let most = 1 << random.below(18);
    let fragments = 1 + random.below(most);
    let segments = if random.once_in(3) { 1 + random.below(fragments) } else { fragments };
    let pieces = |random: &mut Random| match random.below(3) {
        0 => 1,
        1 => segments,
        _ => 1 + random.below(segments),
    };
    let longest = 1 << random.below(20);
    let len = 1 + random.below(longest);
    Class { fragments, segments, src_pieces: pieces(random), dst_pieces: pieces(random), bytes: fragments * len }
}
