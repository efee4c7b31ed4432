//! Engines that reach each other's memory by RDMA devices: devices that this process plays, and, where a machine has them as
//! the guest does (`ci/guest/run.sh`), `rxe0`, `rxe1`, `siw0` and `siw1`.

mod engine_cases;
mod nic;
mod peered;
mod seeded;

use engine_cases::Pair;
use nic::{Drive, Network, Profile};
use scatter_ring::engine::{PeerSettings, PeerTransport, VerbsLibrary};
use std::time::Instant;

fn settings(device: &str) -> PeerSettings {
    let device = Some(device.to_owned());
    // Both are on this host, and would map each other's memory.
    PeerSettings { transport: PeerTransport::Verbs, device, map_memory: false, slots: 4, ..peered::settings() }
}

/// Devices of this process that forgive nothing: whatever hardware would not have taken fails the test at its end.
fn on_simulated(case: fn(&Pair)) {
    let network = Network::new(Profile::rxe(), Drive::Thread, 1);
    let library = Some(VerbsLibrary(network.library()));
    case(&[0, 1].map(|device| PeerSettings { verbs_library: library.clone(), ..settings(network.device(device)) }));
    network.assert_clean();
}

/// Soft RoCE, which connects by numbers that are exchanged, and soft iWARP, which connects by rdma_cm. The two devices of each
/// kind are on the two ends of a wire.
fn on_devices(case: fn(&Pair)) {
    for pair in [["rxe0", "rxe1"], ["siw0", "siw1"]] {
        let started = Instant::now();
        case(&pair.map(settings));
        println!("{pair:?}: {:.1} s", started.elapsed().as_secs_f32());
    }
}

macro_rules! cases {
    ($($case:ident,)*) => {
        mod on_simulated_devices {
            $(#[test]
            fn $case() {
                super::on_simulated(super::engine_cases::$case);
            })*
        }

        mod on_devices {
            $(#[test]
            #[ignore = "needs RDMA devices"]
            fn $case() {
                super::on_devices(super::engine_cases::$case);
            })*
        }
    };
}

cases! {
    a_notification_comes_behind_the_data_of_its_batch,
    batches_of_every_shape_and_route_have_every_byte_in_its_place,
    several_clients_share_a_connection,
    a_region_that_is_withdrawn_under_way_fails_its_batch_and_not_the_connection,
    an_owner_that_goes_is_noticed_and_one_that_comes_back_is_used_again,
    the_owners_device_gathers_long_rows_and_its_processors_pack_short_ones,
}
