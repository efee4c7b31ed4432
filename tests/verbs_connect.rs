//! Connections that get queue pairs, or go on without them: on simulated devices, and, where that is said, on real ones: two of a
//! kind, rxe or siw, that reach each other.

mod nic;
mod seeded;

use nic::{Drive, Network, Profile};
use scatter_ring::link::verbs::Limits;
use scatter_ring::link::verbs::connect::{Failed, Role, Wanted, connect};
use scatter_ring::link::verbs::nic::{Choice, Nic};
use scatter_ring::link::{Bell, Event, Operation, Transport};
use scatter_ring::region::ForkGuard;
use scatter_ring::verbs::{Library, abi};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Link = scatter_ring::link::verbs::Link;

const LANES: usize = 3;
const LONG: Duration = Duration::from_secs(5);

fn nic(name: &str) -> Arc<Nic> {
    let nic = Nic::open(&Choice { device: Some(name.to_owned()), ..Choice::default() }).unwrap();
    println!("{} {nic:?} inline {} reads {}", name, nic.inline_bytes, nic.reads_started);
    nic
}

/// Devices of one kind, two at a time.
fn pairs() -> Vec<[Arc<Nic>; 2]> {
    let library = Library::load().unwrap();
    let names: Vec<String> = library.devices().unwrap().into_iter().map(|device| device.name).collect();
    let of = |kind: &str| names.iter().filter(|name| name.starts_with(kind)).map(|name| nic(name)).collect::<Vec<_>>();
    ["rxe", "siw"].map(of).iter().map(|nics| [nics[0].clone(), nics[1].clone()]).collect()
}

fn sockets() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [dialled, listener.accept().unwrap().0]
}

fn bell() -> Bell {
    Bell {
        sleep: Arc::default(),
        bell: Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap()),
        fork: Arc::new(ForkGuard::new().unwrap()),
    }
}

fn side(nic: Option<&Arc<Nic>>, socket: TcpStream, role: Role) -> Result<Link, Failed> {
    let (limits, bell, deadline) = (&Limits::default(), &bell(), Instant::now() + LONG);
    let requires = false;
    connect(Wanted { socket: socket.into(), nic, role, lanes: LANES, limits, bell, requires, deadline })
}

/// Both sides at once.
fn both(nics: [Option<&Arc<Nic>>; 2]) -> [Result<Link, Failed>; 2] {
    let [here, there] = sockets();
    std::thread::scope(|scope| {
        let far = scope.spawn(|| side(nics[1], there, Role::Listening));
        let near = side(nics[0], here, Role::Connecting);
        [near, far.join().unwrap()]
    })
}

fn received(link: &mut Link, wanted: usize) -> Vec<(usize, Vec<u8>)> {
    let (mut all, start) = (Vec::new(), Instant::now());
    while all.len() < wanted {
        link.poll(&mut |event| {
            if let Event::Received { lane, bytes } = event {
                all.push((lane, bytes.to_vec()));
            }
        });
        assert!(start.elapsed() < LONG, "{all:?}");
    }
    all.sort();
    all
}

/// A message by each lane, both ways, and the end of one side is the other's.
fn are_connected(mut a: Link, mut b: Link) {
    for lane in 0..LANES {
        for link in [&mut a, &mut b] {
            let bytes = [lane as u8; 9];
            link.post(lane, &[Operation::Send { bytes: &bytes, names: None }]).unwrap();
        }
    }
    let expected: Vec<_> = (0..LANES).map(|lane| (lane, vec![lane as u8; 9])).collect();
    assert_eq!((received(&mut a, LANES), received(&mut b, LANES)), (expected.clone(), expected));
    drop(a);
    let (mut is_down, start) = (false, Instant::now());
    while !(is_down && b.is_quiet()) {
        b.poll(&mut |event| is_down |= matches!(event, Event::Down(_)));
        assert!(start.elapsed() < LONG, "down: {is_down}");
    }
}

fn go_on_over_tcp(failed: [Failed; 2]) {
    let [mut a, mut b] = failed.map(|failed| TcpStream::from(failed.socket.expect("the connection goes on")));
    a.write_all(b"frame").unwrap();
    let mut bytes = [0; 5];
    b.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"frame");
}

fn failed(results: [Result<Link, Failed>; 2]) -> [Failed; 2] {
    results.map(|result| match result {
        Err(failed) => failed,
        Ok(_) => panic!("connected"),
    })
}

fn opened(network: &Network, device: usize) -> Arc<Nic> {
    let choice = Choice { device: Some(network.device(device).to_owned()), ..Choice::default() };
    Nic::open_of(&network.library(), &choice).unwrap()
}

fn simulated(profile: Profile) -> (Network, [Arc<Nic>; 2]) {
    let network = Network::new(profile, Drive::Thread, 7);
    let nics = [0, 1].map(|device| opened(&network, device));
    (network, nics)
}

/// Both sides know why not, the connection goes on, and nothing is left of queue pairs and memory.
fn falls_back(network: &Network, nics: &[Arc<Nic>; 2], expected: &str) {
    let failed = failed(both([Some(&nics[0]), Some(&nics[1])]));
    let texts = failed.each_ref().map(|failed| failed.why.to_string());
    assert!(texts.iter().all(|text| text.contains(expected)), "{texts:?}, not {expected}");
    go_on_over_tcp(failed);
    let left = [0, 1].map(|device| network.counts(device).registrations);
    assert_eq!((network.is_used(), left), (false, [0, 0]), "{texts:?}");
    network.assert_clean();
}

#[test]
fn simulated_devices_are_connected() {
    for profile in [Profile::rxe(), Profile::hardware()] {
        let (network, [a, b]) = simulated(profile);
        for nics in [[&a, &b], [&b, &a]] {
            let [near, far] = both(nics.map(Some)).map(|side| side.unwrap_or_else(|failed| panic!("{}", failed.why)));
            are_connected(near, far);
            assert!(!network.is_used());
        }
        network.assert_clean();
    }
}

#[test]
fn whatever_a_device_refuses_leaves_the_connection_to_tcp() {
    for device in 0..2 {
        let (network, nics) = simulated(Profile::hardware());
        for state in [abi::IBV_QPS_RTR, abi::IBV_QPS_RTS] {
            network.refuse_modify(device, Some(state));
            falls_back(&network, &nics, "cannot connect queue pairs");
        }
        network.refuse_modify(device, Some(abi::IBV_QPS_INIT));
        falls_back(&network, &nics, "cannot make queue pairs");
        network.refuse_modify(device, None);
        for nth in 0..3 {
            network.refuse_registrations(device, Some(nth));
            falls_back(&network, &nics, "cannot make queue pairs");
        }
        network.refuse_registrations(device, None);
        let [near, far] = both([Some(&nics[0]), Some(&nics[1])]).map(|side| side.unwrap());
        are_connected(near, far);
    }
}

#[test]
fn lanes_have_no_longer_queues_than_a_device_has() {
    let (network, nics) = simulated(Profile::tiny());
    let [near, far] = both([Some(&nics[0]), Some(&nics[1])]).map(|side| side.unwrap());
    are_connected(near, far);
    network.assert_clean();
}

#[test]
fn queue_pairs_by_which_nothing_comes_leave_the_connection_to_tcp() {
    let (network, nics) = simulated(Profile::hardware());
    network.cut();
    let start = Instant::now();
    falls_back(&network, &nics, "gets no message by its queue pairs");
    assert!(start.elapsed() < LONG);
}

#[test]
fn the_device_that_is_asked_for_is_taken_or_it_is_said_why_not() {
    let (network, [first, second]) = simulated(Profile::hardware());
    assert_eq!([first.context.name(), second.context.name()], [network.device(0), network.device(1)]);
    assert_eq!((first.port, first.is_iwarp, first.address), (1, false, None));
    assert!(first.reads_started <= 16 && first.inline_bytes == 128, "{} of 220", first.inline_bytes);
    let device = Some(network.device(0).to_owned());
    let refused = |choice: Choice| Nic::open_of(&network.library(), &choice).unwrap_err().to_string();
    let none = refused(Choice { device: Some("mlx5_9".to_owned()), ..Choice::default() });
    assert!(none.contains("no RDMA device \"mlx5_9\"") && none.contains(network.device(1)), "{none}");
    let none = refused(Choice { device: device.clone(), port: Some(9), ..Choice::default() });
    assert!(none.contains("it has no port 9"), "{none}");
    let none = refused(Choice { device: device.clone(), gid_index: Some(77), ..Choice::default() });
    assert!(none.contains("port 1 has no GID 77"), "{none}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn two_devices_of_a_kind_are_connected_over_the_socket_of_their_engines() {
    for [a, b] in pairs() {
        for nics in [[&a, &b], [&b, &a], [&a, &a]] {
            let start = Instant::now();
            let [near, far] = both(nics.map(Some)).map(|side| side.unwrap_or_else(|failed| panic!("{}", failed.why)));
            println!("{a:?}: {:?}", start.elapsed());
            are_connected(near, far);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn devices_that_do_not_speak_to_each_other_leave_the_connection_to_tcp() {
    let [[rxe, _], [siw, _]]: [[Arc<Nic>; 2]; 2] = pairs().try_into().unwrap();
    for nics in [[&rxe, &siw], [&siw, &rxe]] {
        let failed = failed(both(nics.map(Some)));
        assert!(failed[0].why.to_string().contains("does not speak to the other's"), "{}", failed[0].why);
        go_on_over_tcp(failed);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_side_that_has_lost_its_device_leaves_the_connection_to_tcp() {
    for nic in pairs().iter().flatten() {
        for nics in [[Some(nic), None], [None, Some(nic)]] {
            let failed = failed(both(nics));
            let texts = failed.each_ref().map(|failed| failed.why.to_string());
            assert!(texts.iter().all(|text| text.contains("has lost its RDMA device")), "{texts:?}");
            go_on_over_tcp(failed);
        }
    }
}

/// The other side names queue pairs that are not its own, or nobody that listens: packets go nowhere.
#[test]
#[ignore = "needs an RDMA device"]
fn queue_pairs_that_do_not_answer_leave_the_connection_to_tcp_in_time() {
    for pair in pairs() {
        // Sends what its real counterpart sends, but for where it is.
        for role in [Role::Connecting, Role::Listening] {
            let ([here, there], [near, far]) = (sockets(), sockets());
            if pair[0].is_iwarp && role == Role::Listening {
                // Who is to connect to the other finds nobody: that is the other's to say.
                continue;
            }
            let is_iwarp = pair[0].is_iwarp;
            let relay = std::thread::spawn(move || relayed(there, far, is_iwarp));
            let other = if role == Role::Connecting { Role::Listening } else { Role::Connecting };
            let start = Instant::now();
            let results = std::thread::scope(|scope| {
                let honest = scope.spawn(|| side(Some(&pair[1]), near, other));
                [side(Some(&pair[0]), here, role), honest.join().unwrap()]
            });
            assert!(start.elapsed() < LONG + Duration::from_secs(3));
            let failed = failed(results);
            println!("{:?} {:?}: {} / {}", pair[0], start.elapsed(), failed[0].why, failed[1].why);
            assert!(failed.iter().all(|failed| failed.socket.is_some()));
            drop(failed);
            relay.join().unwrap();
        }
    }
}

/// Passes bytes on both ways, but changes where one side's queue pairs are.
fn relayed(mut a: TcpStream, mut b: TcpStream, is_iwarp: bool) {
    let mut offer = [0; 208];
    a.read_exact(&mut offer).unwrap();
    b.write_all(&offer).unwrap();
    b.read_exact(&mut offer).unwrap();
    if is_iwarp {
        // A port where nobody listens.
        offer[56..58].copy_from_slice(&1u16.to_le_bytes());
    } else {
        for lane in 0..LANES {
            offer[80 + lane * 8] ^= 0x55;
        }
    }
    a.write_all(&offer).unwrap();
    let back = [a.try_clone().unwrap(), b.try_clone().unwrap()];
    let pump = |mut from: TcpStream, mut to: TcpStream| {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(std::net::Shutdown::Write);
    };
    std::thread::scope(|scope| {
        let [c, d] = back;
        scope.spawn(move || pump(c, b));
        pump(d, a);
    });
}
