//! Engines that reach each other's memory by RDMA verbs, or would if they could.

mod exported;
mod serving;
mod support;

use exported::{client, connect, exported, is_right};
use scatter_ring::engine::{Config, Engine, EngineError, PeerSettings, PeerTransport, RunningEngine};
use scatter_ring::region::Rights;
use scatter_ring::verbs::Library;
use support::hostile::{eventually, mapped_memory_files, open_fds};
use support::log::Lines;
use support::not_run;

fn settings(transport: PeerTransport, device: Option<&str>) -> PeerSettings {
    let listen = vec![([127, 0, 0, 1], 0).into()];
    let device = device.map(str::to_owned);
    PeerSettings { listen, transport, device, map_memory: false, ..PeerSettings::default() }
}

fn start(transport: PeerTransport, device: Option<&str>) -> Result<RunningEngine, EngineError> {
    let peers = Some(settings(transport, device));
    Engine::new(&Config { workers: 1, peers, ..Config::default() })?.start()
}

/// Rows of a table of one by a client of the other, through one connection.
fn are_connected(a: &RunningEngine, b: &RunningEngine) -> bool {
    let (owner, mut user) = (client(a), client(b));
    let _table = exported(&owner, "table", Rights::READ);
    let peer = connect(&user, a);
    let remote = user.open_at(peer, "table", Rights::READ).unwrap();
    is_right(&mut user, &remote)
}

fn has_devices() -> bool {
    Library::load().is_ok_and(|library| library.devices().is_ok())
}

#[test]
fn engines_without_a_device_say_so_once_and_meet_over_tcp() {
    let (lines, _alone) = Lines::new();
    if has_devices() {
        return not_run("this machine has RDMA devices");
    }
    let [a, b] = [(); 2].map(|()| start(PeerTransport::Auto, None).unwrap());
    assert_eq!(lines.with("no RDMA here: peers are reached over TCP").len(), 2, "one of each engine");
    assert!(are_connected(&a, &b));
    for engine in [&a, &b] {
        let counters = engine.counters();
        assert_eq!((counters.peers_by_tcp, counters.peers_by_verbs, counters.peers_fell_back), (1, 0, 0));
    }
    let said = lines.with("RDMA");
    assert!(said.len() == 2 && said.iter().all(|line| line.contains("INFO")), "{said:?}");
}

#[test]
fn an_engine_that_has_to_have_a_device_does_not_start_without_one_and_says_why() {
    let (lines, _alone) = Lines::new();
    if has_devices() {
        return not_run("this machine has RDMA devices");
    }
    let error = start(PeerTransport::Verbs, None).unwrap_err().to_string();
    assert!(error.starts_with("peers: transport = \"verbs\": no RDMA: "), "{error}");
    assert!(settings(PeerTransport::Verbs, None).check().is_err());
    // One that was named and is not needed is more than a line of information.
    drop(start(PeerTransport::Auto, Some("mlx5_0")).unwrap());
    assert!(lines.with("the RDMA device is not used")[0].contains("WARN"));
    let before = lines.with("").len();
    drop(start(PeerTransport::Tcp, Some("mlx5_0")).unwrap());
    assert_eq!(lines.with("").len(), before, "who does not want it does not hear of it");
    for (device, port, text) in [("", 1, "device: a name has from 1 to 63 bytes"), ("rxe0", 0, "device_port: 0")] {
        let wrong = PeerSettings { device_port: Some(port), ..settings(PeerTransport::Auto, Some(device)) };
        assert!(wrong.check().unwrap_err().to_string().contains(text));
    }
}

/// Devices of each kind, two at a time.
const PAIRS: [[&str; 2]; 2] = [["rxe0", "rxe1"], ["siw0", "siw1"]];

#[test]
#[ignore = "needs an RDMA device"]
fn engines_with_devices_reach_each_other_by_them() {
    let (lines, _alone) = Lines::new();
    for names in PAIRS {
        // rdma_cm keeps the devices that it has opened.
        drop(start(PeerTransport::Verbs, Some(names[0])));
        drop(start(PeerTransport::Verbs, Some(names[1])));
        for transport in [PeerTransport::Verbs, PeerTransport::Auto] {
            let (fds, files) = (open_fds(), mapped_memory_files());
            let [a, b] = names.map(|name| start(transport, Some(name)).unwrap());
            for _ in 0..2 {
                assert!(are_connected(&a, &b));
            }
            for engine in [&a, &b] {
                let counters = engine.counters();
                let by = (counters.peers_by_verbs, counters.peers_by_tcp, counters.peers_fell_back);
                assert_eq!(
                    (by, counters.peers_not_set_up),
                    ((1, 0, 0), 0),
                    "{names:?} {transport:?} {:#?}",
                    lines.with("")
                );
            }
            drop((a, b));
            eventually("everything is given back", || (open_fds(), mapped_memory_files()) == (fds, files));
        }
    }
    assert_eq!(lines.with("memory of this peer is reached by RDMA verbs").len(), 8);
}

#[test]
#[ignore = "needs an RDMA device"]
fn an_engine_falls_back_to_tcp_and_says_so_once_for_each_peer() {
    let (lines, _alone) = Lines::new();
    for (ours, theirs) in [(Some("rxe0"), Some("siw0")), (Some("siw0"), Some("rxe0")), (Some("rxe1"), None)] {
        let transport = if theirs.is_some() { PeerTransport::Auto } else { PeerTransport::Tcp };
        let (a, b) = (start(PeerTransport::Auto, ours).unwrap(), start(transport, theirs).unwrap());
        assert!(are_connected(&a, &b));
        let counters = a.counters();
        assert_eq!((counters.peers_by_tcp, counters.peers_by_verbs, counters.peers_fell_back), (1, 0, 1));
        assert_eq!(b.counters().peers_fell_back, u64::from(theirs.is_some()));
    }
    assert_eq!(lines.with("no RDMA verbs with this peer: it is reached over TCP").len(), 5);
}

#[test]
#[ignore = "needs an RDMA device"]
fn who_wants_verbs_only_is_not_met_by_who_has_none() {
    let (_lines, _alone) = Lines::new();
    let verbs = start(PeerTransport::Verbs, Some("rxe0")).unwrap();
    for other in [start(PeerTransport::Tcp, None), start(PeerTransport::Auto, Some("siw0"))] {
        let other = other.unwrap();
        for (asked, user) in [(&verbs, client(&other)), (&other, client(&verbs))] {
            let error = user.connect(&asked.endpoint().unwrap().to_string()).unwrap_err().to_string();
            assert!(error.contains("RDMA verbs"), "{error}");
        }
        assert_eq!((other.counters().peers_connected, verbs.counters().peers_connected), (0, 0));
    }
}

fn interface_of(device: &str) -> String {
    let port = format!("/sys/class/infiniband/{device}/ports/1/gid_attrs/ndevs/0");
    std::fs::read_to_string(port).unwrap().trim().to_owned()
}

fn ip(arguments: &[&str]) -> String {
    let said = std::process::Command::new("ip").args(arguments).output().unwrap();
    assert!(said.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8(said.stdout).unwrap()
}

/// Routes of an interface, as `ip` lists them. The kernel has made some of them again itself.
fn restore_routes(interface: &str, routes: &str) {
    for route in routes.lines() {
        let words = route.split_whitespace().filter(|word| *word != "linkdown");
        let mut ip = std::process::Command::new("ip");
        ip.args(["route", "replace"]).args(words).args(["dev", interface]);
        ip.output().unwrap();
    }
}

/// A cable that is pulled: of one engine of two, and of its port.
#[test]
#[ignore = "needs an RDMA device"]
fn a_port_that_goes_down_leaves_its_peers_to_tcp_until_it_is_up_again() {
    let (lines, _alone) = Lines::new();
    let [a, b] = ["rxe0", "rxe1"].map(|name| start(PeerTransport::Auto, Some(name)).unwrap());
    assert!(are_connected(&a, &b));
    assert_eq!((a.counters().peers_by_verbs, b.counters().peers_by_verbs), (1, 1));
    // The way over the wire goes with the interface.
    let interface = interface_of("rxe1");
    let routes = ip(&["-4", "route", "show", "table", "all", "dev", &interface]);
    ip(&["link", "set", &interface, "down"]);
    eventually("the connection is ended", || a.counters().peers_ended == 1 && b.counters().peers_ended == 1);
    assert_eq!(lines.with("the RDMA device is lost: its connections are ended").len(), 2, "a veth has two ends");
    assert!(are_connected(&a, &b));
    assert!(a.counters().peers_by_tcp > 0 && a.counters().peers_fell_back == a.counters().peers_by_tcp);
    ip(&["link", "set", &interface, "up"]);
    restore_routes(&interface, &routes);
    eventually("they are up again", || lines.with("is active again").len() == 2);
    // What goes by TCP goes on.
    assert!(are_connected(&a, &b));
}
