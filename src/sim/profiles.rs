//! The links and hosts that the simulator knows, as data. A figure without a source in `about` is an estimate, and says so.

use super::{Effects, Profile};
use crate::cost::{Budget, CopyProfile, LinkProfile, Wire};

/// All of them, in the order of the benchmark's documentation.
#[must_use]
pub fn all() -> &'static [Profile] {
    &ALL
}

/// One by its name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Profile> {
    ALL.iter().find(|profile| profile.name == name)
}

static ALL: [Profile; 7] = [REFERENCE, ROCE_25G, ROCE_100G, IB_400G, EFA_100G, TCP_LOOPBACK, SOFT_ROCE];

const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;

/// What an engine gives one batch if nobody configures it.
const BUDGET: Budget = Budget { staging_bytes: 16 << 20, slots_max: 8, chunk_bytes_max: 2 * MIB };

/// A server's core with four of its like for copying. Estimate: twice the time per piece that a fast desktop core was
/// measured to need (5 to 9 ns beyond the bytes for rows of 64 to 512 B at random in 1 GiB), long pieces at 12 GB/s.
const SERVER: CopyProfile =
    CopyProfile { bytes_per_ns: 12.0, piece_ns: 14.0, decode_ns: 2.0, plan_ns: 2.0, workers: 4 };

/// A server with one NIC. Estimates: copies of one socket saturate at 40 GB/s, 1 MiB of a chunk stays in a core's second
/// cache, calibration covered 64 MiB and the tables have 1 GiB.
const SERVER_EFFECTS: Effects = Effects {
    memory_bytes_per_ns: 40.0,
    cache_bytes: 1 << 20,
    beyond_cache: 0.15,
    first_touch_ns_per_byte: 0.01,
    translation_ns: 1.0,
    translation_reach_bytes: 64 << 20,
    gap_ns: 5.0,
    jitter_ns: 300,
    hiccup_every_ns: 10_000_000,
    hiccup_ns: 20_000,
};

const REFERENCE: Profile = Profile {
    name: "reference",
    about: "Two hosts with A10 GPUs and eRDMA, measured by somebody else. Bandwidth and round trip: fitted on 64 x 512 KiB \
            direct, 3.384 ms. Copies: 1.3 to 1.6 ms for 24,576 rows of 264 B by each of four workers. Command: 0.15 to \
            0.24 ms over a connection of its own there, half a round trip on the queue pair here. Queue depth and pieces \
            of an operation (one for READ): drivers/infiniband/hw/erdma/erdma_verbs.h of Linux. Operation, doorbell and \
            completion times: estimates. Planning and decoding: ours, at twice the time of the machine it was written on.",
    link: LinkProfile {
        bytes_per_ns: 10.0,
        round_trip_ns: 22_000.0,
        operation_ns: 200.0,
        doorbell_ns: 300.0,
        completion_ns: 150.0,
        queue_depth: 4096,
        max_sge: 1,
        control_ns: 2_000.0,
        chunk_fixed_ns: 2_000.0,
        wire: Wire::Nic,
    },
    requester: REFERENCE_HOST,
    owner: REFERENCE_HOST,
    budget: BUDGET,
    // Its bulk window carried 84 Gbit/s, more than the direct control: nothing is slower there for being longer.
    effects: Effects { beyond_cache: 0.0, jitter_ns: 1_000, ..SERVER_EFFECTS },
};

const REFERENCE_HOST: CopyProfile =
    CopyProfile { bytes_per_ns: 10.0, piece_ns: 30.0, decode_ns: 3.0, plan_ns: 3.0, workers: 4 };

const ROCE_25G: Profile = Profile {
    name: "roce-25g",
    about: "ConnectX-4 Lx at 25 Gbit/s, RoCE v2. Payload: 25 Gbit/s less the headers of 1 KiB packets. Round trip: 2.9 us \
            for a READ on that card (Kalia et al., Datacenter RPCs can be General and Fast, NSDI 2019). Operation: 2.55 M \
            small READs a second on one queue pair (ucx issue 8852, perftest). Pieces of an operation: 30 (mlx5). Queue \
            depth: what an engine sets up, of 32,768 possible. The other times: estimates.",
    link: LinkProfile {
        bytes_per_ns: 2.9,
        round_trip_ns: 2_900.0,
        operation_ns: 390.0,
        doorbell_ns: 250.0,
        completion_ns: 100.0,
        queue_depth: 1024,
        max_sge: 30,
        control_ns: 1_000.0,
        chunk_fixed_ns: 1_500.0,
        wire: Wire::Nic,
    },
    requester: SERVER,
    owner: SERVER,
    budget: BUDGET,
    effects: Effects { gap_ns: 20.0, ..SERVER_EFFECTS },
};

const ROCE_100G: Profile = Profile {
    name: "roce-100g",
    about: "ConnectX-5 at 100 Gbit/s. Payload: 11,728 MiB/s with large operations (perftest issue 225). Round trip: 2.0 us \
            for a READ on that card (Kalia et al., NSDI 2019). Operation: 7.5 M a second with lists of 128 on one queue \
            pair (perftest issue 273). Pieces of an operation: 30 (mlx5). Queue depth: what an engine sets up, of 32,768 \
            possible (ompi issue 9087). The other times: estimates.",
    link: LinkProfile {
        bytes_per_ns: 12.3,
        round_trip_ns: 2_000.0,
        operation_ns: 133.0,
        doorbell_ns: 250.0,
        completion_ns: 100.0,
        queue_depth: 1024,
        max_sge: 30,
        control_ns: 1_000.0,
        chunk_fixed_ns: 1_500.0,
        wire: Wire::Nic,
    },
    requester: SERVER,
    owner: SERVER,
    budget: BUDGET,
    effects: SERVER_EFFECTS,
};

const IB_400G: Profile = Profile {
    name: "ib-400g",
    about: "ConnectX-7, NDR InfiniBand at 400 Gbit/s (NVIDIA ConnectX-7 user manual). Payload: 97 % of that, estimate. Round \
            trip: as the card before it, 2.0 us. Operation: 10 M a second on one queue pair, estimate (one core's small \
            RPCs, eRPC README). Host: eight workers of a newer socket, estimate.",
    link: LinkProfile {
        bytes_per_ns: 48.5,
        round_trip_ns: 2_000.0,
        operation_ns: 100.0,
        doorbell_ns: 200.0,
        completion_ns: 80.0,
        queue_depth: 1024,
        max_sge: 30,
        control_ns: 1_000.0,
        chunk_fixed_ns: 1_000.0,
        wire: Wire::Nic,
    },
    requester: CopyProfile { bytes_per_ns: 15.0, piece_ns: 10.0, decode_ns: 1.5, plan_ns: 1.5, workers: 8 },
    owner: CopyProfile { bytes_per_ns: 15.0, piece_ns: 10.0, decode_ns: 1.5, plan_ns: 1.5, workers: 8 },
    budget: Budget { staging_bytes: 32 << 20, slots_max: 8, chunk_bytes_max: 4 * MIB },
    effects: Effects { memory_bytes_per_ns: 100.0, cache_bytes: 2 << 20, gap_ns: 2.0, ..SERVER_EFFECTS },
};

const EFA_100G: Profile = Profile {
    name: "efa-100g",
    about: "An EFA interface at 100 Gbit/s (SRD: Shalev et al., A Cloud-Optimized Transport Protocol, IEEE Micro 2020; no \
            order between operations, so that a data-ready message costs a round trip of its own). Payload, round trip, \
            operation: estimates, by that paper's order of 20 us between hosts. One remote and two local pieces of an \
            operation: the efa provider's limits (efadv_query_device: max_sq_sge, max_wr_rdma_sge).",
    link: LinkProfile {
        bytes_per_ns: 12.0,
        round_trip_ns: 25_000.0,
        operation_ns: 250.0,
        doorbell_ns: 400.0,
        completion_ns: 150.0,
        queue_depth: 512,
        max_sge: 1,
        control_ns: 10_000.0,
        chunk_fixed_ns: 3_000.0,
        wire: Wire::Nic,
    },
    requester: SERVER,
    owner: SERVER,
    budget: BUDGET,
    effects: Effects { jitter_ns: 2_000, ..SERVER_EFFECTS },
};

const TCP_LOOPBACK: Profile = Profile {
    name: "tcp-loopback",
    about: "TCP on one machine with two processors, measured there. Processor time: 64 x 512 KiB take 2.9 ms of both, two \
            lanes. Operation: 98,304 pieces by writev in 20.8 ms. Round trip: 1,024 rows of 264 B by a packing server in 40 \
            us with both ends polling. Copies: 11 to 20 ns for rows of 64 to 512 B, 1.18 ms for 64 x 512 KiB. Doorbell \
            and completion: a system call each, estimate.",
    link: LinkProfile {
        bytes_per_ns: 12.0,
        round_trip_ns: 20_000.0,
        operation_ns: 200.0,
        doorbell_ns: 1_500.0,
        completion_ns: 1_500.0,
        queue_depth: 1024,
        max_sge: 1024,
        control_ns: 5_000.0,
        chunk_fixed_ns: 5_000.0,
        wire: Wire::Cpu { ns_per_byte: 0.173, cores: 2 },
    },
    requester: LOOPBACK_HOST,
    owner: LOOPBACK_HOST,
    budget: Budget { staging_bytes: 8 << 20, slots_max: 8, chunk_bytes_max: MIB },
    effects: Effects {
        memory_bytes_per_ns: 45.0,
        cache_bytes: 512 << 10,
        beyond_cache: 0.1,
        jitter_ns: 2_000,
        hiccup_every_ns: 5_000_000,
        hiccup_ns: 50_000,
        ..SERVER_EFFECTS
    },
};

const LOOPBACK_HOST: CopyProfile =
    CopyProfile { bytes_per_ns: 28.4, piece_ns: 6.0, decode_ns: 1.5, plan_ns: 1.5, workers: 2 };

const SOFT_ROCE: Profile = Profile {
    name: "soft-roce",
    about: "The kernel's rdma_rxe between two devices of one emulated machine with two processors, tried there: 64 writes of \
            256 KiB in about 100 ms, tens of thousands of small operations a second, packed rows of 264 B at 4 to 14 us. \
            It tells nothing of hardware. Depth and window as the cancel rules for such devices ask: few operations \
            outstanding. The split of the times is an estimate.",
    link: LinkProfile {
        bytes_per_ns: 0.2,
        round_trip_ns: 150_000.0,
        operation_ns: 25_000.0,
        doorbell_ns: 20_000.0,
        completion_ns: 10_000.0,
        queue_depth: 16,
        max_sge: 32,
        control_ns: 50_000.0,
        chunk_fixed_ns: 40_000.0,
        wire: Wire::Cpu { ns_per_byte: 6.0, cores: 2 },
    },
    requester: EMULATED_HOST,
    owner: EMULATED_HOST,
    budget: Budget { staging_bytes: 4 << 20, slots_max: 8, chunk_bytes_max: 256 * KIB },
    effects: Effects {
        memory_bytes_per_ns: 2.0,
        cache_bytes: 256 << 10,
        beyond_cache: 0.1,
        first_touch_ns_per_byte: 0.1,
        translation_ns: 50.0,
        gap_ns: 1_000.0,
        jitter_ns: 20_000,
        hiccup_every_ns: 20_000_000,
        hiccup_ns: 500_000,
        ..SERVER_EFFECTS
    },
};

const EMULATED_HOST: CopyProfile =
    CopyProfile { bytes_per_ns: 0.8, piece_ns: 1_500.0, decode_ns: 150.0, plan_ns: 150.0, workers: 2 };
