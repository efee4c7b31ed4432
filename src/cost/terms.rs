//! The figures of a situation and the counts of a work, as numbers that arithmetic cannot break.

use super::{CopyProfile, Direction, Situation, Wire, Work, window_operations};

/// A situation whose every figure is finite, and every rate more than 0. What is not a number is taken for the worst.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// READ: the owner sends.
    pub read: bool,
    /// `1 / B_net`.
    pub wire_ns_per_byte: f64,
    /// `L`.
    pub round_trip_ns: f64,
    /// `1 / R_post`.
    pub operation_ns: f64,
    pub doorbell_ns: f64,
    pub completion_ns: f64,
    pub control_ns: f64,
    pub chunk_fixed_ns: f64,
    /// `Q`.
    pub queue_depth: f64,
    /// Operations of one doorbell.
    pub window: f64,
    pub max_sge: f64,
    /// Planning a fragment.
    pub plan_ns: f64,
    /// Where the bytes come from.
    pub sender: Copies,
    /// Where they go.
    pub receiver: Copies,
    /// Processor time a byte, and processors.
    pub processors: Option<(f64, f64)>,
}

/// A machine's copies out of lists, or into them.
#[derive(Clone, Copy, Debug)]
pub struct Copies {
    /// `1 / B_mem`.
    pub ns_per_byte: f64,
    /// `1 / R_copy`, and decoding.
    pub piece_ns: f64,
    pub workers: f64,
}

impl Terms {
    pub fn of(situation: &Situation) -> Terms {
        let Situation { direction, link, requester, owner, .. } = situation;
        let read = *direction == Direction::Read;
        let (sender, receiver) = if read { (owner, requester) } else { (requester, owner) };
        Terms {
            read,
            wire_ns_per_byte: 1.0 / rate(link.bytes_per_ns),
            round_trip_ns: time(link.round_trip_ns),
            operation_ns: time(link.operation_ns),
            doorbell_ns: time(link.doorbell_ns),
            completion_ns: time(link.completion_ns),
            control_ns: time(link.control_ns),
            chunk_fixed_ns: time(link.chunk_fixed_ns),
            queue_depth: f64::from(link.queue_depth.max(1)),
            window: f64::from(window_operations(link)),
            max_sge: f64::from(link.max_sge.max(1)),
            plan_ns: time(requester.plan_ns),
            sender: Copies::of(sender),
            receiver: Copies::of(receiver),
            processors: match link.wire {
                Wire::Nic => None,
                Wire::Cpu { ns_per_byte, cores } => Some((time(ns_per_byte), f64::from(cores.max(1)))),
            },
        }
    }
}

impl Terms {
    /// What a processor does for some bytes before the wire can start with them, where processors move the bytes.
    pub fn first_moved_ns(&self, bytes: f64, operations: f64) -> f64 {
        self.processors
            .map_or(0.0, |(ns_per_byte, _)| bytes.min(FIRST_MOVED_BYTES) * ns_per_byte + operations * self.operation_ns)
    }

    /// What the wire waits because the queue is full, if so many operations take it so long.
    fn paused_ns(&self, operations: f64, bytes: f64, wire_ns: f64) -> f64 {
        let windows = (operations / self.window).ceil().max(1.0);
        let rounds = (operations / self.queue_depth).ceil() - 1.0;
        let moved_ns = self.first_moved_ns(bytes / windows, operations / windows);
        let window_ns = self.round_trip_ns + moved_ns + wire_ns / windows;
        rounds.max(0.0) * (window_ns - wire_ns * self.queue_depth / operations.max(1.0)).max(0.0)
    }
}

impl Copies {
    fn of(profile: &CopyProfile) -> Copies {
        Copies {
            ns_per_byte: 1.0 / rate(profile.bytes_per_ns),
            piece_ns: time(profile.piece_ns) + time(profile.decode_ns),
            // A machine without workers copies on its poller.
            workers: f64::from(profile.workers.max(1)),
        }
    }
}

/// The two parts of a work that a threshold makes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// What is gathered.
    pub gather: Gathered,
    /// What goes directly.
    pub direct: Directed,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Gathered {
    pub fragments: f64,
    /// Those that planning looks at one by one.
    pub listed: f64,
    pub src_pieces: f64,
    pub dst_pieces: f64,
    pub bytes: f64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Directed {
    pub fragments: f64,
    /// Those that planning looks at one by one.
    pub listed: f64,
    pub bytes: f64,
    pub segments: f64,
    pub operations: f64,
    /// What the wire waits for a full queue: its first window is done after a round trip, and only then the next one starts.
    pub paused_ns: f64,
    /// All operations on the wire, one after the other: each takes as long as posting it or as its bytes.
    pub wire_ns: f64,
}

impl Load {
    /// Splits as [`Work::split`] does.
    pub fn of(work: &Work, terms: &Terms, direct_from_bytes: u32) -> Load {
        let mut load = Load::default();
        for (number, class) in work.classes() {
            let (fragments, bytes) = (class.fragments as f64, class.bytes as f64);
            // What is contiguous on both sides is most often one range, and not a list of its pieces.
            let listed = fragments.min(class.src_pieces.max(class.dst_pieces) as f64);
            if 1u64 << number < u64::from(direct_from_bytes) {
                load.gather.fragments += fragments;
                load.gather.listed += listed;
                load.gather.bytes += bytes;
                load.gather.src_pieces += class.src_pieces as f64;
                load.gather.dst_pieces += class.dst_pieces as f64;
                continue;
            }
            // An operation is contiguous on the remote side, and has several pieces on the local one.
            let remote = if terms.read { class.src_pieces } else { class.dst_pieces };
            let segments = class.segments.max(1) as f64;
            let runs = (remote.max(1) as f64).min(segments);
            let operations = (runs * (segments / runs / terms.max_sge).ceil()).min(segments);
            load.direct.fragments += fragments;
            load.direct.listed += listed;
            load.direct.bytes += bytes;
            load.direct.segments += segments;
            load.direct.operations += operations;
            let wire_ns = (operations * terms.operation_ns).max(bytes * terms.wire_ns_per_byte);
            load.direct.wire_ns += wire_ns;
            load.direct.paused_ns += terms.paused_ns(operations, bytes, wire_ns);
        }
        load
    }
}

fn rate(value: f64) -> f64 {
    if value.is_nan() { RATE_MIN } else { value.clamp(RATE_MIN, RATE_MAX) }
}

fn time(value: f64) -> f64 {
    if value.is_nan() { TIME_MAX } else { value.clamp(0.0, TIME_MAX) }
}

/// What a processor hands to the wire at once, at the most.
const FIRST_MOVED_BYTES: f64 = 65536.0;
/// 1 kB/s to 1 PB/s.
const RATE_MIN: f64 = 1e-6;
const RATE_MAX: f64 = 1e6;
/// A quarter of an hour for one step. Times the largest count of fragments it is still finite.
const TIME_MAX: f64 = 1e12;
