//! What is known of a connection for decisions about it.

use super::RemoteConfig;
use super::asking::Moved;
use crate::cost::{Budget, Chooser, CopyProfile, LinkMeasurements, LinkProfile, Situation, Wire, device_gathers_from};
use crate::link::Mover;
use crate::plan::Direction;

/// A connection's decisions, and what they are made from.
#[derive(Debug)]
pub struct Judging {
    chooser: Chooser,
    measured: LinkMeasurements,
    copies: CopyProfile,
    budget: Budget,
    /// Pieces of this side in a request, by direction.
    pieces: [u32; 2],
    /// The first answer to a PING has told how far away the other side is.
    knows_round_trip: bool,
}

impl Judging {
    pub fn new(config: &RemoteConfig, lanes: usize, mover: Mover) -> Judging {
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        // Chunks are packed and unpacked by the threads of the lanes.
        let workers = (lanes as u32 - 1).max(1);
        let pieces = match mover {
            // The pieces of an operation of the link are what a machine's operations are.
            Mover::Processors => [1, 1],
            Mover::Device { read_pieces, write_pieces, .. } => [read_pieces, write_pieces],
        };
        Judging {
            chooser: Chooser::new(),
            measured: LinkMeasurements::new(prior(mover, cores)),
            copies: CopyProfile { workers, ..COPIES },
            budget: Budget {
                staging_bytes: u64::from(config.slots) * u64::from(config.slot_bytes),
                slots_max: config.slots,
                chunk_bytes_max: config.slot_bytes,
            },
            pieces,
            knows_round_trip: false,
        }
    }

    /// Situations for chunks of at most so many bytes.
    pub fn judge(&mut self, direction: Direction, chunk_bytes: u32) -> (&mut Chooser, Situation) {
        let budget = Budget { chunk_bytes_max: chunk_bytes, ..self.budget };
        let max_sge = self.pieces[usize::from(direction == Direction::Write)];
        let link = LinkProfile { max_sge, ..self.measured.profile() };
        (&mut self.chooser, Situation { direction, link, requester: self.copies, owner: self.copies, budget })
    }

    /// The mean length of pieces from which on this side's device gathers them for less than packing costs.
    pub fn gathered_from_bytes(&self) -> u32 {
        device_gathers_from(&self.measured.profile(), &self.copies)
    }

    /// A PING was answered. Only the first tells of the distance: it was sent when nothing else was under way.
    pub fn answered(&mut self, ns: u64) {
        if !self.knows_round_trip {
            self.knows_round_trip = true;
            self.measured = LinkMeasurements::new(LinkProfile { round_trip_ns: ns as f64, ..self.measured.profile() });
        }
    }

    /// A part was carried.
    pub fn carried(&mut self, moved: Moved, ns: u64) {
        self.measured.window(moved.bytes, moved.operations, ns);
    }
}

fn prior(mover: Mover, cores: u32) -> LinkProfile {
    match mover {
        Mover::Processors => prior_of_tcp(cores),
        Mover::Device { bits_per_s, write_pieces, depth, .. } => prior_of_device(bits_per_s, write_pieces, depth),
    }
}

/// What is believed of an RDMA device before anything was measured: the rate of its port, less a tenth for headers and
/// acknowledgements, and of requests what devices of 2020 do, some ten millions in a second with a doorbell for many.
fn prior_of_device(bits_per_s: u64, pieces: u32, depth: u32) -> LinkProfile {
    let bits_per_s = if bits_per_s == 0 { USUAL_BITS_PER_S } else { bits_per_s };
    LinkProfile {
        bytes_per_ns: bits_per_s as f64 / 8e9 * 0.9,
        round_trip_ns: 5_000.0,
        operation_ns: 100.0,
        doorbell_ns: 300.0,
        completion_ns: 100.0,
        queue_depth: depth,
        max_sge: pieces,
        control_ns: 3_000.0,
        // Registering where it lands, which is done for each.
        chunk_fixed_ns: 15_000.0,
        wire: Wire::Nic,
    }
}

/// A port that does not say how fast it is.
const USUAL_BITS_PER_S: u64 = 25_000_000_000;

/// What is believed of TCP before anything was measured: the figures of one machine with two processors. 64 x 512 KiB take 2.9
/// ms of both; 98,304 pieces, one by one, 40 ms; doorbell and completion are a system call each.
fn prior_of_tcp(cores: u32) -> LinkProfile {
    LinkProfile {
        bytes_per_ns: 12.0,
        round_trip_ns: 20_000.0,
        operation_ns: 400.0,
        doorbell_ns: 1_500.0,
        completion_ns: 1_500.0,
        queue_depth: 2048,
        max_sge: 1,
        control_ns: 5_000.0,
        chunk_fixed_ns: 5_000.0,
        wire: Wire::Cpu { ns_per_byte: 0.173, cores },
    }
}

/// The same machine's copies: 11 to 20 ns for rows of 64 to 512 B, 1.18 ms for 64 x 512 KiB.
const COPIES: CopyProfile = CopyProfile { bytes_per_ns: 28.4, piece_ns: 6.0, decode_ns: 1.5, plan_ns: 1.5, workers: 1 };

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn config() -> RemoteConfig {
        RemoteConfig {
            connections: 1,
            slot_bytes: 1 << 20,
            slots: 4,
            owner_slots: 4,
            dead_after_ns: 1,
            spin: Duration::ZERO,
        }
    }

    #[test]
    fn only_the_first_answer_tells_the_distance() {
        let mut judging = Judging::new(&config(), 3, Mover::Processors);
        assert_eq!(judging.judge(Direction::Read, 1 << 20).1.link.round_trip_ns, 20_000.0);
        judging.answered(70_000);
        judging.answered(7_000_000);
        let (_, situation) = judging.judge(Direction::Write, 4096);
        assert_eq!((situation.link.round_trip_ns, situation.requester.workers), (70_000.0, 2));
        assert_eq!((situation.budget.chunk_bytes_max, situation.budget.slots_max), (4096, 4));
    }

    #[test]
    fn the_rate_follows_what_was_carried() {
        let mut judging = Judging::new(&config(), 1, Mover::Processors);
        (0..40).for_each(|_| judging.carried(Moved { bytes: 64 << 20, operations: 16 }, 40_000_000));
        let rate = judging.judge(Direction::Read, 1 << 20).1.link.bytes_per_ns;
        assert!((1.5..2.0).contains(&rate), "{rate}");
    }
}
