//! The pipeline that the reference measurements are of, simulated: does the simulator's wire and its workers give what was
//! measured on them?
//!
//! It plans all of a call, then sends the rows' numbers to four shards over connections of their own, each of which decodes
//! all of them, then packs all of them, then posts one bulk write. Long pieces go directly, as soon as planning is over.
//! One shard after the other would have been the same sum; the four run at once, on four workers.
//!
//! Wire and workers are those of the profile, whose bandwidth is fitted on W4. Planning, the command and decoding are the
//! middles of what was measured of W1. W1 to W3 are predictions.

use super::Profile;
use super::events::Events;
use super::task::{beyond_cache, worker_ns};
use super::wire::{self, Line, Nic, ns};

/// A workload, as it was measured and as it is simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// W1 to W4.
    pub workload: &'static str,
    /// Median of the measurements.
    pub measured_ns: u64,
    /// Simulated.
    pub simulated_ns: u64,
    /// From the first bulk post to the last data, simulated.
    pub window_ns: u64,
}

impl Row {
    /// By how much the simulation is off, as a part of what was measured: 0.1 is 10 % too long.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.simulated_ns as f64 / self.measured_ns as f64 - 1.0
    }
}

/// What is moved: rows of the table, and long pieces.
#[derive(Clone, Copy, Debug)]
struct Load {
    workload: &'static str,
    measured_ns: u64,
    rows: u32,
    long: u32,
}

/// All workloads, in order.
#[must_use]
pub fn table(profile: &Profile) -> Vec<Row> {
    LOADS.iter().map(|load| simulate(profile, load)).collect()
}

fn simulate(profile: &Profile, load: &Load) -> Row {
    let half_trip_ns = ns(profile.link.round_trip_ns / 2.0);
    let completion_ns = ns(profile.link.completion_ns);
    let planned_ns = ns(f64::from(load.rows + load.long) * PLAN_NS);
    // What is posted when, what of it is ready for the wire when, and whether it is a read's answer.
    let mut posts = Vec::new();
    if load.long > 0 {
        let (posted_ns, _) = Nic::new(&profile.link).begin(planned_ns, load.long);
        let bytes = u64::from(load.long) * LONG_BYTES;
        posts.push((posted_ns, posted_ns + half_trip_ns, 0, bytes, load.long));
    }
    let mut owner = Nic::new(&profile.link);
    for shard in 0..SHARDS.min(load.rows) {
        let rows = load.rows / SHARDS + u32::from(shard < load.rows % SHARDS);
        let bytes = u64::from(rows) * ROW_BYTES;
        let alone = worker_ns(&profile.owner, &profile.effects, bytes, rows, TABLE_BYTES);
        let decoding = f64::from(rows) * (DECODE_NS - profile.owner.decode_ns);
        let shared = (bytes * u64::from(SHARDS)) as f64 / profile.effects.memory_bytes_per_ns;
        let packed_ns = planned_ns + COMMAND_NS + ns(alone.max(shared) + decoding);
        let (posted_ns, _) = owner.begin(packed_ns, 1);
        posts.push((posted_ns, posted_ns, 1, bytes, 1));
    }
    let first_post_ns = posts.iter().map(|(posted_ns, ..)| *posted_ns).min().unwrap_or(0);
    let last_data_ns = carry(profile, &posts) + half_trip_ns;
    Row {
        workload: load.workload,
        measured_ns: load.measured_ns,
        simulated_ns: last_data_ns + completion_ns,
        window_ns: last_data_ns - first_post_ns,
    }
}

/// When the wire has carried all of it.
fn carry(profile: &Profile, posts: &[(u64, u64, usize, u64, u32)]) -> u64 {
    let mut line = Line::new(&profile.link, profile.effects.gap_ns, 2);
    let mut events = Events::new();
    for (flow, (_, ready_ns, ..)) in posts.iter().enumerate() {
        events.add(*ready_ns, Some(flow));
    }
    let mut end_ns = 0;
    while let Some((now_ns, event)) = events.next() {
        match event.map(|flow| (flow, posts[flow])) {
            Some((flow, (_, _, queue, bytes, operations))) => {
                let slower = if queue == 0 { 1.0 } else { beyond_cache(bytes, &profile.effects) };
                line.add(queue, wire::Load { flow, bytes, operations, slower });
            }
            None => {
                line.ended();
                end_ns = now_ns;
            }
        }
        if let Some((_, at_ns)) = line.start(now_ns) {
            events.add(at_ns, None);
        }
    }
    end_ns
}

const LOADS: [Load; 4] = [
    Load { workload: "W1", measured_ns: 5_920_000, rows: 98_304, long: 0 },
    Load { workload: "W2", measured_ns: 8_004_000, rows: 131_072, long: 0 },
    Load { workload: "W3", measured_ns: 4_817_000, rows: 32_768, long: 64 },
    Load { workload: "W4", measured_ns: 3_384_000, rows: 0, long: 64 },
];

const SHARDS: u32 = 4;
const ROW_BYTES: u64 = 264;
const LONG_BYTES: u64 = 512 << 10;
const TABLE_BYTES: u64 = 1 << 30;

/// 1.25 to 1.60 ms for 98,304 rows.
const PLAN_NS: f64 = 14.5;
/// 0.15 to 0.24 ms for a shard.
const COMMAND_NS: u64 = 195_000;
/// 0.16 to 0.33 ms for 24,576 rows.
const DECODE_NS: f64 = 10.0;
