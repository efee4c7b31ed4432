//! What `bench --json` prints.

// Each test file that shares this module uses another part of it.
#![allow(dead_code)]

/// The keys that programs which read `bench --json` rely on.
pub const KEYS: [&str; 30] = [
    "workload",
    "link",
    "op",
    "route",
    "submit",
    "seed",
    "iterations",
    "chosen",
    "fragments",
    "bytes",
    "p50_us",
    "p95_us",
    "best_us",
    "useful_gbps",
    "window_gbps",
    "queue_us",
    "plan_us",
    "command_us",
    "owner_queue_us",
    "pack_us",
    "window_us",
    "complete_us",
    "predicted_direct_us",
    "predicted_gather_us",
    "doorbells",
    "operations",
    "signalled",
    "staging_peak_bytes",
    "verified",
    "simulated",
];

/// Those of figures: all but what was asked for, what was chosen, and what the last two say of the others.
pub fn figures() -> &'static [&'static str] {
    &KEYS[8..28]
}
