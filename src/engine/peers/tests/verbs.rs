//! Connections that are set up for RDMA verbs before anybody uses them, by an engine whose device has failed.

use super::*;
use crate::link::Bell;
use crate::link::verbs::connect::{self, Failed, Wanted};
use crate::peer::VERBS;
use crate::region::ForkGuard;
use rustix::fd::OwnedFd;
use std::io::{Read, Write};
use std::net::TcpStream;

impl Bench {
    fn offering(requires: bool) -> Bench {
        let (control, mut bench) = Bench::parts_with(8, Some(requires));
        bench.thread = Some(std::thread::spawn(move || control.run()));
        bench
    }
}

/// Another engine that offers it too.
fn offering() -> (Peers, Events) {
    Peers::start(peer::Config { listen: vec![own_address()], offers: VERBS, ..peer::Config::new().unwrap() }).unwrap()
}

/// The other side's part, which has no device either.
fn other_part(connected: &mut Connected, requires: bool) -> Failed {
    let limits = crate::engine::remote::verbs_limits(&PeerSettings::default().remote(Duration::ZERO));
    let bell = Bell {
        sleep: Arc::default(),
        bell: Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap()),
        fork: Arc::new(ForkGuard::new().unwrap()),
    };
    let (limits, bell) = (&limits, &bell);
    let lanes = connected.sockets.len();
    let socket = connected.sockets.remove(0);
    let role = match connected.role {
        Role::Initiator => connect::Role::Connecting,
        Role::Responder => connect::Role::Listening,
    };
    let deadline = Instant::now() + LIMIT;
    match connect::connect(Wanted { socket, nic: None, role, lanes, limits, bell, requires, deadline }) {
        Err(failed) => failed,
        Ok(_) => panic!("connected without a device"),
    }
}

/// Nothing of the connection is left at the other side.
fn is_closed(socket: OwnedFd) -> bool {
    let mut stream = TcpStream::from(socket);
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let ended = stream.read_to_end(&mut Vec::new());
    // What was sent there and not read makes a reset of an end.
    ended.map_or_else(|error| error.kind() == std::io::ErrorKind::ConnectionReset, |_| true)
}

#[test]
fn who_asks_for_a_connection_waits_until_it_is_set_up_and_has_it_over_tcp() {
    let bench = Bench::offering(false);
    let mut client = bench.attach();
    let (peers, events) = offering();
    let endpoint = peers.endpoint().unwrap().to_string();
    let question = client.ask(Kind::CONNECT, &[], &endpoint);
    let mut theirs = connected(&events);
    assert_eq!(theirs.features, VERBS);
    client.is_served();
    assert!(bench.is_quiet(), "it is not set up yet");
    let mut second = bench.attach();
    let other_question = second.ask(Kind::CONNECT, &[], &endpoint);
    second.is_served();

    let failed = other_part(&mut theirs, false);
    assert_eq!(failed.why.to_string(), "this side has lost its RDMA device");
    let Command::PeerUp(ours, None) = bench.command() else { panic!("no connection") };
    let number = client.answered(question).args[0];
    assert!(number > 0 && second.answered(other_question).args[0] == number);
    assert_eq!(ours.sockets.len(), usize::from(ours.limits.lanes));
    let (mut far, mut near) =
        (TcpStream::from(failed.socket.unwrap()), TcpStream::from(ours.sockets[0].try_clone().unwrap()));
    near.set_nonblocking(false).unwrap();
    far.write_all(b"frame").unwrap();
    let mut bytes = [0; 5];
    near.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"frame");
    let Counters { peers_connected, peers_by_tcp, peers_by_verbs, peers_fell_back, peers_not_set_up, .. } =
        bench.counters();
    assert_eq!((peers_connected, peers_by_tcp, peers_by_verbs), (1, 1, 0));
    assert_eq!((peers_fell_back, peers_not_set_up), (1, 0));
}

#[test]
fn an_engine_that_offers_nothing_is_reached_over_tcp_at_once() {
    let bench = Bench::offering(false);
    let mut client = bench.attach();
    let _peer = bench.peer(&mut client);
    assert_eq!((bench.counters().peers_fell_back, bench.counters().peers_by_tcp), (1, 1));
}

#[test]
fn a_connection_that_a_side_does_without_rather_than_without_verbs_is_ended() {
    for (ours, theirs) in [(true, false), (false, true)] {
        let bench = Bench::offering(ours);
        let mut client = bench.attach();
        let (peers, events) = offering();
        let question = client.ask(Kind::CONNECT, &[], &peers.endpoint().unwrap().to_string());
        // It is tried a few times, with pauses, before the client hears of it.
        for _ in 0..3 {
            assert!(other_part(&mut connected(&events), theirs).socket.is_none());
        }
        let answer = client.answered(question);
        assert_eq!(answer.status, Status::PEER_UNREACHABLE);
        assert!(answer.name().contains("by RDMA verbs it cannot be"), "{}", answer.name());
        assert!(bench.is_quiet(), "the poller has been given a connection");
        let counters = bench.counters();
        assert_eq!((counters.peers_not_set_up, counters.peers_connected, counters.peers_violated), (3, 0, 0));
    }
}

#[test]
fn what_no_engine_says_ends_the_connection_and_is_counted() {
    let bench = Bench::offering(false);
    let (peers, events) = offering();
    peers.connect(bench.endpoint.clone());
    let mut connected = connected(&events);
    let mut stream = TcpStream::from(connected.sockets.remove(0));
    stream.write_all(&[0x41; 4096]).unwrap();
    assert!(is_closed(connected.sockets.remove(0)) && is_closed(stream.into()));
    let start = Instant::now();
    while bench.counters().peers_not_set_up == 0 && start.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((bench.counters().peers_violated, bench.counters().peers_not_set_up), (1, 1));
    assert!(bench.is_quiet());
}

#[test]
fn an_engine_that_stops_does_not_wait_for_one_that_says_nothing() {
    let bench = Bench::offering(false);
    let mut client = bench.attach();
    let (peers, events) = offering();
    let _question = client.ask(Kind::CONNECT, &[], &peers.endpoint().unwrap().to_string());
    let mut connected = connected(&events);
    // Half of what is due.
    let socket = connected.sockets.remove(0);
    rustix::net::send(&socket, b"SRRD\x01\0", rustix::net::SendFlags::empty()).unwrap();
    client.is_served();
    let start = Instant::now();
    // Its thread is waited for.
    drop(bench);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(is_closed(socket) && connected.sockets.into_iter().all(is_closed));
}

#[test]
fn a_connection_that_is_superseded_while_it_is_set_up_never_comes_up() {
    let bench = Bench::offering(false);
    let (peers, events) = offering();
    peers.connect(bench.endpoint.clone());
    let first = connected(&events);
    // The other engine loses its end, and dials again. The old one is abandoned, the new one set up.
    drop(first);
    let mut second = connected(&events);
    let failed = other_part(&mut second, false);
    assert!(failed.socket.is_some());
    let up = loop {
        match bench.command() {
            Command::PeerUp(connected, None) => break connected,
            Command::PeerEnd(_) => {}
            _ => panic!("what else"),
        }
    };
    assert_eq!(up.epoch, second.peer_epoch);
    assert_eq!(bench.counters().peers_connected, 1);
}
