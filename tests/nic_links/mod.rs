//! Links between simulated devices.

// Each test file that shares this module uses another part of it.
#![allow(dead_code)]

pub mod run;

use crate::link_cases::{Connect, OPERATIONS, TASKS, Width};
use crate::linked;
use crate::nic::{Drive, Network, Profile};
use rustix::fd::OwnedFd;
use scatter_ring::link::verbs;
use scatter_ring::link::verbs::connect::{Role, Wanted};
use scatter_ring::link::verbs::nic::{Choice, Nic};
use scatter_ring::link::verbs::{Endpoint, Limits, Link, SetupError};
use scatter_ring::verbs::{Context, GlobalPath, Path, ProtectionDomain, QueuePair, RtrSettings, RtsSettings};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub type Side = linked::Side<Link>;

/// Links between devices of a kind. At the end nothing may have been done that hardware would not forgive.
#[derive(Clone)]
pub struct Simulated {
    profile: Profile,
    networks: Arc<Networks>,
}

#[derive(Default)]
struct Networks {
    all: Mutex<Vec<Network>>,
    seed: AtomicU64,
}

impl Drop for Networks {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let networks = self.all.get_mut().unwrap_or_else(PoisonError::into_inner);
            networks.iter().for_each(Network::assert_clean);
        }
    }
}

impl Simulated {
    pub fn new(profile: Profile) -> Simulated {
        Simulated { profile, networks: Arc::default() }
    }

    fn links(&self, lanes: usize, limits: &Limits, drive: Drive) -> (Side, Side) {
        let seed = self.networks.seed.fetch_add(1, Ordering::Relaxed);
        let network = Network::new(self.profile, drive, seed);
        let sides = pair(&network, lanes, limits);
        let mut networks = self.networks.all.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody uses any more are looked at now.
        for network in networks.extract_if(.., |network| !network.is_used()) {
            network.assert_clean();
        }
        networks.push(network);
        sides
    }
}

impl Connect for Simulated {
    type Link = Link;

    fn pair(&self, lanes: usize, width: Width) -> (Side, Side) {
        let limits = if width == Width::Wide { wide(&self.profile) } else { narrow() };
        self.links(lanes, &limits, Drive::Polls)
    }

    fn sleepers(&self, lanes: usize) -> (Side, Side) {
        self.links(lanes, &Limits { spin: Duration::ZERO, ..wide(&self.profile) }, Drive::Thread)
    }
}

/// As links are, as far as the device allows it.
pub fn wide(profile: &Profile) -> Limits {
    let usual = Limits::default();
    let requests = profile.max_qp_wr;
    Limits { depth: usual.depth.min(requests), messages: usual.messages.min(requests), ..usual }
}

/// Few of everything, so that every limit is met.
pub fn narrow() -> Limits {
    Limits {
        operations: OPERATIONS,
        messages: 4,
        tasks: TASKS,
        grants: 16,
        depth: 4,
        window: 3,
        signal_every: 2,
        spin: Duration::from_micros(20),
    }
}

/// A device, 0 or 1, as an engine uses it.
pub fn nic(network: &Network, device: usize) -> Arc<Nic> {
    let (library, name, profile) = (network.library(), network.device(device).to_owned(), network.profile());
    if !profile.is_stream {
        return Nic::open_of(&library, &Choice { device: Some(name), ..Choice::default() }).unwrap();
    }
    // The connection manager of these devices has no addresses to connect by, which an engine would look for.
    let context = Context::open(&library, &name).unwrap();
    let (port, entry, limits) = (context.port(1).unwrap(), context.gids(1).unwrap()[1], *context.limits());
    Arc::new(Nic {
        domain: ProtectionDomain::new(&context).unwrap(),
        port: 1,
        gid_index: entry.index as u8,
        gid: entry.gid,
        gid_type: entry.kind,
        lid: 0,
        link_layer: port.link_layer,
        mtu: port.active_mtu,
        is_iwarp: true,
        address: None,
        limits,
        reads_started: limits.reads_started.min(16) as u8,
        reads_served: limits.reads_served.min(16) as u8,
        inline_bytes: profile.max_inline,
        bits_per_s: 0,
        library,
        context,
    })
}

pub fn pair(network: &Network, lanes: usize, limits: &Limits) -> (Side, Side) {
    pair_of(&[nic(network, 0), nic(network, 1)], lanes, limits)
}

pub fn pair_of(nics: &[Arc<Nic>; 2], lanes: usize, limits: &Limits) -> (Side, Side) {
    try_pair(nics, lanes, limits).unwrap()
}

/// # Errors
/// What a device refuses.
pub fn try_pair(nics: &[Arc<Nic>; 2], lanes: usize, limits: &Limits) -> Result<(Side, Side), SetupError> {
    let mut ends = [endpoint(&nics[0], lanes, limits)?, endpoint(&nics[1], lanes, limits)?];
    for lane in 0..lanes {
        let numbers = ends.each_mut().map(|end| end.queue_pair(lane).unwrap().number());
        for (end, to) in [0, 1].into_iter().zip([1, 0]) {
            connect(ends[end].queue_pair(lane).unwrap(), &nics[end], &nics[to], numbers[to])?;
        }
    }
    let (control_a, control_b) = UnixStream::pair().unwrap();
    let [a, b] = ends;
    let side = |end: Endpoint, control: UnixStream| {
        let (bell, receives) = (linked::bell(), end.receives());
        let mut link = end.into_link(None, receives, &bell).unwrap();
        link.end_with(OwnedFd::from(control));
        Side::of(link, bell)
    };
    Ok((side(a, control_a), side(b, control_b)))
}

fn endpoint(nic: &Arc<Nic>, lanes: usize, limits: &Limits) -> Result<Endpoint, SetupError> {
    let mut end = Endpoint::new(nic, lanes, limits)?;
    for _ in 0..lanes {
        let mut pair = QueuePair::new(&nic.domain, end.completion_queue(), end.caps())?;
        pair.to_init(nic.port, Endpoint::access())?;
        end.add_lane(pair)?;
    }
    Ok(end)
}

fn connect(pair: &mut QueuePair, own: &Nic, peer: &Nic, number: u32) -> Result<(), SetupError> {
    let global = Some(GlobalPath { gid: peer.gid, own_index: own.gid_index, hop_limit: 1, traffic_class: 0 });
    pair.to_rtr(&RtrSettings {
        path_mtu: own.mtu,
        dest_qp: number,
        rq_psn: 5,
        max_dest_rd_atomic: own.reads_served,
        min_rnr_timer: 12,
        path: Path { port: own.port, lid: 0, global, service_level: 0 },
    })?;
    let rts = RtsSettings {
        timeout: 14,
        retry_count: 6,
        rnr_retry: 1,
        sq_psn: 5,
        max_rd_atomic: own.reads_started.min(peer.reads_served),
    };
    Ok(pair.to_rts(&rts)?)
}

/// Links between two devices of this machine, connected as engines do it.
#[derive(Clone)]
pub struct Devices(pub [&'static str; 2]);

impl Devices {
    fn links(&self, lanes: usize, limits: &Limits) -> (Side, Side) {
        let (socket_a, socket_b) = linked::sockets(None);
        let ends = [(self.0[0], socket_a, Role::Connecting), (self.0[1], socket_b, Role::Listening)];
        let threads = ends.map(|(device, socket, role)| {
            let limits = limits.clone();
            std::thread::spawn(move || {
                let choice = Choice { device: Some(device.to_owned()), ..Choice::default() };
                let nic = Nic::open(&choice).unwrap_or_else(|why| panic!("{device}: {why}"));
                let bell = linked::bell();
                let wanted = Wanted {
                    socket: socket.into(),
                    nic: Some(&nic),
                    role,
                    lanes,
                    limits: &limits,
                    bell: &bell,
                    requires: true,
                    deadline: Instant::now() + Duration::from_secs(10),
                };
                let link = verbs::connect::connect(wanted).unwrap_or_else(|failed| panic!("{device}: {}", failed.why));
                Side::of(link, bell)
            })
        });
        let [a, b] = threads.map(|thread| thread.join().unwrap());
        (a, b)
    }
}

impl Connect for Devices {
    type Link = Link;

    fn pair(&self, lanes: usize, width: Width) -> (Side, Side) {
        self.links(lanes, &if width == Width::Wide { Limits::default() } else { narrow() })
    }

    fn sleepers(&self, lanes: usize) -> (Side, Side) {
        self.links(lanes, &Limits { spin: Duration::ZERO, ..Limits::default() })
    }
}
