//! What the cost model says of this machine's own memory, and which work it is asked about.

use scatter_ring::cost::{Budget, CopyProfile, Decision, Direction, LinkProfile, Situation, Wire, choose};
use scatter_ring::engine::calibrate;
use scatter_ring::sim::matrix::Cell;

/// Two processes or threads of this machine (`link`: shm or local). Its memory is the wire, and its copies, which are
/// measured the first time, are what an operation costs.
pub fn situation(link: &str, direction: Direction) -> Situation {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let copies: CopyProfile = calibrate((processors - 1).clamp(1, WORKERS_MAX));
    let copying = f64::from(copies.workers.min(processors));
    let round_trip_ns = if link == "local" { LOCAL_TRIP_NS } else { SHM_TRIP_NS };
    let link = LinkProfile {
        bytes_per_ns: copies.bytes_per_ns * copying,
        round_trip_ns,
        operation_ns: copies.piece_ns,
        doorbell_ns: 0.0,
        completion_ns: 0.0,
        queue_depth: u32::MAX,
        max_sge: 1,
        control_ns: 0.0,
        chunk_fixed_ns: round_trip_ns,
        wire: Wire::Cpu { ns_per_byte: 1.0 / copies.bytes_per_ns, cores: processors },
    };
    let budget = Budget { staging_bytes: 16 << 20, slots_max: 8, chunk_bytes_max: 2 << 20 };
    Situation { direction, link, requester: copies, owner: copies, budget }
}

/// What is chosen for a workload by its name there, and how long that and the other routes would take. `None` for a link
/// whose figures only its engines know, by measuring it.
pub fn predicted(workload: &str, direction: Direction, link: &str, seed: u64) -> Option<Decision> {
    if matches!(link, "tcp" | "verbs") {
        return None;
    }
    Some(choose(&cell(workload, direction)?.job(seed).work(), &situation(link, direction)))
}

/// W1 to W5, or a cell of the matrix.
pub fn cell(name: &str, direction: Direction) -> Option<Cell> {
    let of_matrix = || Cell::matrix().into_iter().find(|cell| cell.name == name && cell.direction == direction);
    Cell::named(name, direction).or_else(of_matrix)
}

/// From one process to another and back while both poll: estimates, small beside any work that is planned.
const SHM_TRIP_NS: f64 = 1000.0;
const LOCAL_TRIP_NS: f64 = 500.0;

/// As many as an engine starts by itself.
const WORKERS_MAX: u32 = 4;
