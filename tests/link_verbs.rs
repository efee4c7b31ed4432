//! The link by RDMA verbs, between simulated devices that forgive nothing, and between real ones.

mod link_cases;
mod linked;
mod listed;
mod nic;
mod nic_links;
mod seeded;

use nic::Profile;
use nic_links::{Devices, Simulated};

link_cases!(on_simulated_soft_roce, Simulated::new(Profile::rxe()));
link_cases!(on_simulated_soft_iwarp, Simulated::new(Profile::siw()));
link_cases!(on_simulated_hardware, Simulated::new(Profile::hardware()));
link_cases!(on_simulated_tiny_devices, Simulated::new(Profile::tiny()));

// The devices of the guest (`ci/guest/run.sh`).
link_cases!(
    #[ignore = "needs RDMA devices"]
    on_real_soft_roce,
    Devices(["rxe0", "rxe1"])
);
link_cases!(
    #[ignore = "needs RDMA devices"]
    on_real_soft_iwarp,
    Devices(["siw0", "siw1"])
);
