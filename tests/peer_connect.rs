//! Engines that connect to each other over loopback, and strangers that try to be in the way.
//!
//! One test at a time: some count the file descriptors of the process.

use rustix::net::sockopt;
use scatter_ring::peer::{
    Config, Connected, Counters, End, Endpoint, Event, Events, Failure, Identity, Key, Keys, Peers, Refusal, Role,
    StartError, VERBS,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

static ALONE: Mutex<()> = Mutex::new(());

/// Holds the other tests off, and fails if the test leaves file descriptors behind.
struct Alone {
    fds: usize,
    _alone: MutexGuard<'static, ()>,
}

fn alone() -> Alone {
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    Alone { fds: fds(), _alone: guard }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(fds(), self.fds, "file descriptors are left");
        }
    }
}

fn fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

const LONG: Duration = Duration::from_secs(20);

fn loopback() -> Vec<SocketAddr> {
    vec![([127, 0, 0, 1], 0).into()]
}

fn key(n: u8) -> Key {
    Key::new(&[n; 32])
}

fn config(key_number: Option<u8>) -> Config {
    let mut config = Config::new().unwrap();
    config.listen = loopback();
    config.keys = key_number.map(|n| Keys::new(key(n), None));
    config
}

fn start(key_number: Option<u8>) -> (Peers, Events) {
    Peers::start(config(key_number)).unwrap()
}

fn endpoint(peers: &Peers) -> Endpoint {
    peers.endpoint().unwrap().clone()
}

fn address(peers: &Peers) -> SocketAddr {
    peers.endpoint().unwrap().addresses()[0]
}

/// Other events on the way are passed over.
fn connected(events: &Events) -> Connected {
    let until = Instant::now() + LONG;
    loop {
        match events.wait(until.saturating_duration_since(Instant::now())) {
            Some(Event::Connected(connected)) => return *connected,
            Some(_) => {}
            None => panic!("not connected"),
        }
    }
}

fn unreachable(events: &Events) -> (Identity, Failure) {
    match events.wait(LONG) {
        Some(Event::Unreachable { identity, failure, .. }) => (identity, failure),
        other => panic!("{other:?}"),
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn streams(sockets: &[OwnedFd]) -> Vec<TcpStream> {
    let stream = |socket: &OwnedFd| {
        let stream = TcpStream::from(socket.try_clone().unwrap());
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
    };
    sockets.iter().map(stream).collect()
}

/// True if what one side writes to each lane arrives at the other's lane of that number, both ways.
fn are_joined(a: &Connected, b: &Connected) -> bool {
    a.sockets.len() == b.sockets.len()
        && streams(&a.sockets).into_iter().zip(streams(&b.sockets)).enumerate().all(|(lane, (mut a, mut b))| {
            let mut got = [0];
            let there = a.write_all(&[lane as u8]).and_then(|()| b.read_exact(&mut got)).is_ok() && got == [lane as u8];
            there && b.write_all(&[77]).and_then(|()| a.read_exact(&mut got)).is_ok() && got == [77]
        })
}

/// True once the other side has closed a socket that it was to close.
fn is_closed(stream: &mut TcpStream, within: Duration) -> bool {
    stream.set_read_timeout(Some(within)).unwrap();
    let mut buffer = [0; 256];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    }
}

#[test]
fn two_engines_have_one_connection_whose_lanes_are_the_same_on_both_sides() {
    let _alone = alone();
    for lanes in [1, 2, 16] {
        for key_number in [None, Some(1)] {
            let mut a = config(key_number);
            a.limits.lanes = lanes;
            let mut b = config(key_number);
            b.limits.lanes = 16;
            let ((a, a_events), (b, b_events)) = (Peers::start(a).unwrap(), Peers::start(b).unwrap());
            a.connect(endpoint(&b));
            let (x, y) = (connected(&a_events), connected(&b_events));
            assert_eq!((x.sockets.len(), x.limits), (usize::from(lanes), y.limits));
            assert!(are_joined(&x, &y));
            assert_eq!((x.role, y.role), (Role::Initiator, Role::Responder));
            assert_eq!((x.identity, x.dialled, y.identity), (b.identity(), Some(b.identity()), a.identity()));
            assert_eq!((x.epoch, x.peer_epoch), (y.peer_epoch, y.epoch));
            assert_eq!([a.counters().connected, b.counters().connected], [1, 1]);
        }
    }
}

#[test]
fn the_sockets_are_set_for_small_messages_and_for_finding_out_that_nobody_is_there() {
    let _alone = alone();
    let (mut a, mut b) = (config(Some(1)), config(Some(1)));
    (a.congestion, b.congestion) = (Some("reno".into()), Some("reno".into()));
    let ((a, a_events), (b, b_events)) = (Peers::start(a).unwrap(), Peers::start(b).unwrap());
    b.connect(endpoint(&a));
    for connection in [connected(&a_events), connected(&b_events)] {
        for socket in &connection.sockets {
            assert!(sockopt::tcp_nodelay(socket).unwrap());
            assert_eq!(sockopt::tcp_user_timeout(socket).unwrap(), 3000);
            assert!(sockopt::socket_keepalive(socket).unwrap());
            assert_eq!(sockopt::tcp_keepidle(socket).unwrap(), Duration::from_secs(1));
            assert_eq!(sockopt::tcp_congestion(socket).unwrap(), "reno");
            let flags = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", socket.as_raw_fd())).unwrap();
            let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim().to_owned();
            let flags = u32::from_str_radix(&flags, 8).unwrap();
            assert_eq!(flags & 0o2_004_000, 0o2_004_000, "CLOEXEC and NONBLOCK: {flags:o}");
            assert!(!is_watched(socket), "the peer thread still looks at it");
        }
    }
}

#[test]
fn a_connection_that_ends_before_its_engines_have_settled_it_is_a_failed_attempt() {
    let _alone = alone();
    let offering = || Peers::start(Config { offers: VERBS, ..config(Some(1)) }).unwrap();
    let ((a, a_events), (b, b_events)) = (offering(), offering());
    a.connect(endpoint(&b));
    let mut attempts = 0;
    let failure = loop {
        match a_events.wait(LONG) {
            Some(Event::Connected(connected)) => {
                assert_eq!((connected.features, attempts < 10), (VERBS, true));
                attempts += 1;
            }
            Some(Event::Unreachable { failure, retry_in: Some(_), .. }) => break failure,
            other => panic!("{other:?}"),
        }
        // The other side has to have let go too.
        drop(connected(&b_events));
    };
    assert_eq!((failure, attempts), (Failure::Unsettled, 3));

    // One that is settled begins anew: its loss is no failure.
    for _ in 0..4 {
        let (mut x, y) = (connected(&a_events), connected(&b_events));
        x.hold.settle();
        drop((x, y));
    }
    assert!(matches!(a_events.wait(LONG), Some(Event::Connected(_))));
}

/// Whether an epoll of this process has it.
fn is_watched(socket: &OwnedFd) -> bool {
    let is_it = |line: &str| {
        let target = line.strip_prefix("tfd:").and_then(|rest| rest.split_whitespace().next());
        target.is_some_and(|fd| fd.parse() == Ok(socket.as_raw_fd()))
    };
    // A file descriptor may be closed by another thread meanwhile.
    let infos = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    infos.filter_map(|info| std::fs::read_to_string(info.path()).ok()).any(|info| info.lines().any(is_it))
}

#[test]
fn an_unknown_congestion_control_is_a_clear_error() {
    let _alone = alone();
    let refused = Peers::start(Config { congestion: Some("carrier pigeon".into()), ..config(None) });
    let Err(error @ StartError::Congestion { .. }) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("carrier pigeon"), "{error}");
}

#[test]
fn without_a_key_nothing_but_loopback_is_listened_on_or_dialled() {
    let _alone = alone();
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[fe80::1]:0", "[::ffff:192.0.2.1]:0"] {
        let listen = vec![loopback()[0], listen.parse().unwrap()];
        let refused = Peers::start(Config { listen: listen.clone(), ..config(None) });
        assert!(matches!(refused, Err(StartError::NeedsKey(address)) if address == listen[1]), "{refused:?}");
    }
    let (everywhere, _events) =
        Peers::start(Config { listen: vec!["0.0.0.0:0".parse().unwrap()], ..config(Some(1)) }).unwrap();
    assert!(everywhere.endpoint().is_none(), "nobody can connect to every address");
    let (silent, _events) = Peers::start(Config::new().unwrap()).unwrap();
    assert!(silent.endpoint().is_none(), "it listens nowhere by default");
    let (a, events) = start(None);
    let other = Endpoint::new(Identity([9; 16]), None, &["192.0.2.1:7".parse().unwrap()]).unwrap();
    a.connect(other);
    assert_eq!(unreachable(&events), (Identity([9; 16]), Failure::NeedsKey));
}

#[test]
fn an_address_in_use_is_a_clear_error() {
    let _alone = alone();
    let (a, _events) = start(None);
    let refused = Peers::start(Config { listen: vec![address(&a)], ..config(None) });
    assert!(matches!(refused, Err(StartError::Listen { .. })), "{refused:?}");
}

#[test]
fn wrong_and_missing_keys_are_refused_and_counted_on_both_sides() {
    let _alone = alone();
    for (ours, theirs, refusal) in [
        (Some(1), Some(2), Refusal::KeyUnknown),
        (None, Some(2), Refusal::KeyMissing),
        (Some(1), None, Refusal::KeyMissing),
    ] {
        let ((a, a_events), (b, b_events)) = (start(ours), start(theirs));
        a.connect(endpoint(&b));
        assert_eq!(unreachable(&a_events).1, Failure::Refused(End::Theirs(refusal)));
        // Known from now on: who asks again need not wait.
        a.connect(endpoint(&b));
        assert_eq!(unreachable(&a_events), (b.identity(), Failure::Refused(End::Theirs(refusal))));
        assert!(b.counters().refused(refusal) >= 1 && a.counters().refused_by_peer(refusal) >= 1);
        assert!(b_events.next_event().is_none());
        assert_eq!([a.counters().connected, b.counters().connected], [0, 0]);
    }
}

#[test]
fn keys_are_changed_without_losing_anybody() {
    let _alone = alone();
    fn both(first: u8, second: u8) -> Keys {
        Keys::new(key(first), Some(key(second)))
    }
    // Old only; both, the old one first; both, the new one first; new only.
    let steps: [fn() -> Keys; 4] =
        [|| Keys::new(key(1), None), || both(1, 2), || both(2, 1), || Keys::new(key(2), None)];
    for (n, ours) in steps.iter().enumerate() {
        for (m, theirs) in steps.iter().enumerate() {
            let (a, a_events) = Peers::start(Config { keys: Some(ours()), ..config(None) }).unwrap();
            let (b, b_events) = Peers::start(Config { keys: Some(theirs()), ..config(None) }).unwrap();
            a.connect(endpoint(&b));
            if n.abs_diff(m) == 3 {
                assert_eq!(unreachable(&a_events).1, Failure::Refused(End::Theirs(Refusal::KeyUnknown)));
            } else {
                // Also where the first key is refused and the second is not.
                assert!(are_joined(&connected(&a_events), &connected(&b_events)));
            }
        }
    }
}

#[test]
fn an_engine_led_to_itself_notices() {
    let _alone = alone();
    let (a, events) = start(Some(1));
    a.connect(endpoint(&a));
    assert_eq!(unreachable(&events).1, Failure::Refused(End::Ours(Refusal::OwnIdentity)));
    a.connect(Endpoint::new(Identity([3; 16]), None, &[address(&a)]).unwrap());
    let (identity, failure) = unreachable(&events);
    assert_eq!((identity, failure), (Identity([3; 16]), Failure::Refused(End::Theirs(Refusal::OwnIdentity))));
}

#[test]
fn the_addresses_of_an_endpoint_are_tried_in_order() {
    let _alone = alone();
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ((a, a_events), (b, b_events)) = (start(Some(1)), start(Some(1)));
    a.connect(Endpoint::new(b.identity(), None, &[dead, dead, address(&b)]).unwrap());
    assert!(are_joined(&connected(&a_events), &connected(&b_events)));
    assert_eq!(a.counters().broken, 2);
}

#[test]
fn of_two_connections_that_cross_exactly_one_survives_and_it_is_the_same_for_both() {
    let _alone = alone();
    let mut crossed = 0;
    for round in 0..200u64 {
        let ((a, a_events), (b, b_events)) = (start(Some(1)), start(Some(1)));
        let (to_a, to_b) = (endpoint(&a), endpoint(&b));
        a.connect(to_b);
        // From both at once to the second one late, so that every message of one meets every message of the other.
        let late = Instant::now() + Duration::from_micros(round / 2 * 10);
        while Instant::now() < late {
            std::hint::spin_loop();
        }
        b.connect(to_a);
        let (x, y) = (connected(&a_events), connected(&b_events));
        assert_eq!((x.epoch, x.peer_epoch), (y.peer_epoch, y.epoch));
        assert!(x.role != y.role && are_joined(&x, &y));
        std::thread::sleep(Duration::from_millis(1));
        let more = (a_events.next_event(), b_events.next_event());
        assert!(matches!(more, (None, None)), "nothing was given out to be taken back: {more:?}");
        // At most one of the two was given up: had both been, they would have come again.
        let given_up = |counters: Counters| counters.abandoned + counters.refused_by_peer(Refusal::Crossed);
        let given_up = given_up(a.counters()) + given_up(b.counters());
        assert!(given_up <= 1, "{:?} {:?}", a.counters(), b.counters());
        crossed += given_up;
    }
    assert!(crossed > 0, "no two ever crossed");
    println!("{crossed} of 200 crossed");
}

/// A connection through the test, which passes the messages of its handshake on one at a time.
struct Wire {
    /// The dialling engine's socket and the other's, until one of them has ended.
    ends: Option<[TcpStream; 2]>,
    passed: usize,
}

impl Wire {
    fn new(relay: &TcpListener, to: SocketAddr) -> Wire {
        let (from, _) = relay.accept().unwrap();
        Wire { ends: Some([from, TcpStream::connect(to).unwrap()]), passed: 0 }
    }

    /// Passes on the next message, or the end.
    fn step(&mut self) {
        let Some(ends) = &mut self.ends else { return };
        let (from, to) = (self.passed % 2, 1 - self.passed % 2);
        let mut message = vec![0; 8];
        ends[from].set_read_timeout(Some(LONG)).unwrap();
        let arrived = ends[from].read_exact(&mut message).and_then(|()| {
            message.resize(u16::from_le_bytes([message[6], message[7]]).into(), 0);
            ends[from].read_exact(&mut message[8..])
        });
        let passed = arrived.and_then(|()| ends[to].write_all(&message));
        self.passed += 1;
        let is_refusal = message[4] == 9;
        // Until both engines have seen it: what comes next must not overtake it.
        std::thread::sleep(Duration::from_millis(1));
        if passed.is_err() || is_refusal {
            self.ends = None;
        }
    }
}

/// All orders in which four messages of one connection and four of the other can arrive.
#[test]
fn crossing_connections_end_in_the_same_one_in_every_order_of_their_messages() {
    let _alone = alone();
    let mut refused = 0;
    for order in (0..256u32).filter(|order| order.count_ones() == 4) {
        for identities in [[1, 2], [2, 1]] {
            let [(a, a_events), (b, b_events)] = identities.map(|identity| {
                let mut config = Config { identity: Identity([identity; 16]), ..config(Some(1)) };
                config.limits.lanes = 1;
                Peers::start(config).unwrap()
            });
            let relays = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
            let through = |peers: &Peers, relay: &TcpListener| {
                Endpoint::new(peers.identity(), None, &[relay.local_addr().unwrap()]).unwrap()
            };
            a.connect(through(&b, &relays[0]));
            b.connect(through(&a, &relays[1]));
            let mut wires = [Wire::new(&relays[0], address(&b)), Wire::new(&relays[1], address(&a))];
            for n in 0..8 {
                wires[(order >> n & 1) as usize].step();
            }
            let (x, y) = (connected(&a_events), connected(&b_events));
            assert_eq!((x.epoch, x.peer_epoch), (y.peer_epoch, y.epoch), "{order:08b} {identities:?}");
            assert_eq!(wires.iter().filter(|wire| wire.ends.is_some()).count(), 1, "{order:08b} {identities:?}");
            let more = (a_events.next_event(), b_events.next_event());
            assert!(matches!(more, (None, None)), "{order:08b} {identities:?}: {more:?}");
            refused += a.counters().refused(Refusal::Crossed) + b.counters().refused(Refusal::Crossed);
        }
    }
    assert!(refused > 0, "no two had both sent their proofs");
    println!("{refused} refused");
}

/// The engine with the higher identity has sent its proof when the other's connection comes to be. The proof is still
/// on its way when that connection ends at the other engine, which then believes it.
#[test]
fn a_proof_that_was_overtaken_makes_no_second_connection() {
    let _alone = alone();
    let [(a, a_events), (b, b_events)] = [1, 2].map(|identity| {
        let mut config = Config { identity: Identity([identity; 16]), ..config(Some(1)) };
        config.limits.lanes = 1;
        Peers::start(config).unwrap()
    });
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    b.connect(Endpoint::new(a.identity(), None, &[relay.local_addr().unwrap()]).unwrap());
    let mut overtaken = Wire::new(&relay, address(&a));
    overtaken.step();
    overtaken.step();
    a.connect(endpoint(&b));
    let (x, y) = (connected(&a_events), connected(&b_events));
    a.forget(b.identity());
    drop(x);
    until("let go", || a.counters().lost == 1);
    overtaken.step();
    overtaken.step();
    assert!(b_events.wait(Duration::from_millis(100)).is_none(), "beside the one that it holds");
    drop(y);
}

#[test]
fn an_engine_that_is_asked_for_by_an_old_name_is_known_by_its_connection() {
    let _alone = alone();
    let ((a, a_events), (b, b_events)) = (start(Some(1)), start(Some(1)));
    a.connect(endpoint(&b));
    let (x, y) = (connected(&a_events), connected(&b_events));
    let old = Identity([7; 16]);
    a.connect(Endpoint::new(old, None, &[address(&b)]).unwrap());
    let event = a_events.wait(LONG);
    let is_known =
        matches!(&event, Some(Event::Known { dialled, identity }) if *dialled == old && *identity == b.identity());
    assert!(is_known, "{event:?}");
    assert!(b_events.wait(Duration::from_millis(50)).is_none() && are_joined(&x, &y));
}

#[test]
fn a_recorded_join_makes_no_second_lane_and_none_of_a_later_connection() {
    let _alone = alone();
    let [(a, a_events), (b, b_events)] = [1, 2].map(|identity| {
        let mut config = Config { identity: Identity([identity; 16]), ..config(Some(1)) };
        config.limits.lanes = 3;
        Peers::start(config).unwrap()
    });
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    a.connect(Endpoint::new(b.identity(), None, &[relay.local_addr().unwrap()]).unwrap());
    let mut first = Wire::new(&relay, address(&b));
    (0..4).for_each(|_| first.step());
    let mut joins = [(); 2].map(|()| Wire::new(&relay, address(&b)));
    let mut recorded = [0; 72];
    // Looked at, and left where it is.
    until("it is there", || joins[0].ends.as_ref().unwrap()[0].peek(&mut recorded).unwrap() == 72);
    joins[0].step();
    let replay = || {
        let mut stranger = TcpStream::connect(address(&b)).unwrap();
        stranger.write_all(&recorded).unwrap();
        let mut said = Vec::new();
        stranger.read_to_end(&mut said).unwrap();
        assert_eq!((said.len(), said.get(8)), (24, Some(&12)), "a REFUSAL: no lane");
    };
    replay();
    joins[0].step();
    (0..2).for_each(|_| joins[1].step());
    let (x, y) = (connected(&a_events), connected(&b_events));
    assert_eq!((x.sockets.len(), y.sockets.len()), (3, 3));
    replay();
    assert_eq!(b.counters().refused(Refusal::NoLane), 2);
}

#[test]
fn two_engines_that_want_each_other_come_together_whichever_of_them_lets_go() {
    let _alone = alone();
    let ((a, a_events), (b, b_events)) = (start(Some(1)), start(Some(1)));
    a.connect(endpoint(&b));
    b.connect(endpoint(&a));
    let mut held: [Option<Connected>; 2] = [None, None];
    for round in 0..30 {
        until("they come together", || {
            for (events, held) in [&a_events, &b_events].into_iter().zip(&mut held) {
                if held.as_ref().is_some_and(has_ended) {
                    *held = None;
                }
                while let Some(event) = events.next_event() {
                    match event {
                        Event::Connected(connected) => *held = Some(*connected),
                        Event::Superseded { epoch, .. } => drop(held.take_if(|held| held.epoch == epoch)),
                        other => panic!("{other:?}"),
                    }
                }
            }
            matches!(&held, [Some(x), Some(y)] if x.epoch == y.peer_epoch && x.peer_epoch == y.epoch)
        });
        if let [Some(x), Some(y)] = &held {
            assert!(are_joined(x, y));
        }
        match round % 3 {
            2 => held = [None, None],
            one => held[one] = None,
        }
    }
}

/// True if the other side has let go.
fn has_ended(connection: &Connected) -> bool {
    let mut buffer = [0];
    match rustix::net::recv(&connection.sockets[0], &mut buffer, rustix::net::RecvFlags::DONTWAIT) {
        Ok((bytes, _)) => bytes == 0,
        Err(errno) => errno != rustix::io::Errno::AGAIN,
    }
}

#[test]
fn an_engine_that_was_restarted_is_connected_to_again() {
    let _alone = alone();
    let (a, a_events) = start(Some(1));
    let (b, b_events) = start(Some(1));
    let (first_identity, at) = (b.identity(), address(&b));
    a.connect(endpoint(&b));
    let (x, y) = (connected(&a_events), connected(&b_events));
    drop((b, b_events, y));
    assert!(is_closed(&mut streams(&x.sockets)[0], LONG));
    drop(x);
    // Nobody is there for a while: after some failures whoever asks is told at once.
    assert_eq!(unreachable(&a_events).0, first_identity);
    let (b, b_events) = Peers::start(Config { listen: vec![at], ..config(Some(1)) }).unwrap();
    let (x, y) = (connected(&a_events), connected(&b_events));
    assert_eq!((x.identity, x.dialled), (b.identity(), Some(first_identity)));
    assert!(are_joined(&x, &y));
    assert_eq!(a.counters().lost, 1);
    // Also by its other name it is the one that is connected.
    a.connect(endpoint(&b));
    std::thread::sleep(Duration::from_millis(50));
    assert!(a_events.next_event().is_none() && a.counters().connected == 2);
}

#[test]
fn a_connection_that_is_dropped_is_made_again_until_it_is_forgotten() {
    let _alone = alone();
    let ((a, a_events), (b, b_events)) = (start(Some(1)), start(Some(1)));
    a.connect(endpoint(&b));
    let mut last = 0;
    for _ in 0..5 {
        let (x, y) = (connected(&a_events), connected(&b_events));
        assert!(x.epoch > last, "an epoch came again");
        last = x.epoch;
        assert!(are_joined(&x, &y));
    }
    a.forget(b.identity());
    until("forgotten", || {
        while a_events.next_event().is_some() || b_events.next_event().is_some() {}
        a.counters().connected == a.counters().lost
    });
    let connected = a.counters().connected;
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(a.counters().connected, connected);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "waits for the handshake's deadline of 5 s: in release")]
fn an_honest_engine_connects_in_bounded_time_beside_200_half_open_and_20_slow_strangers() {
    let _alone = alone();
    let ((a, a_events), (b, b_events)) = (start(Some(1)), start(Some(1)));
    let at = address(&b);
    let half_open: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(at).unwrap()).collect();
    let slow: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(at).unwrap()).collect();
    until("all are taken or turned away", || b.counters().over_cap >= 220 - 64);
    assert_eq!(b.counters().over_cap, 220 - 64);
    let begin = Instant::now();
    a.connect(endpoint(&b));
    let x = std::thread::scope(|scope| {
        scope.spawn(|| {
            // One byte a second; whoever is turned away meanwhile cannot write.
            for byte in b"SRPR\x01\0\x80\0" {
                slow.iter().for_each(|mut stream| drop(stream.write(&[*byte])));
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        connected(&a_events)
    });
    // The strangers' deadline, and the longest pause that the dialler has come to until then.
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    assert!(are_joined(&x, &connected(&b_events)));
    until("the strangers are gone", || b.counters().timed_out + b.counters().broken >= 64);
    drop(half_open);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "waits for the handshake's deadline of 5 s: in release")]
fn a_stranger_is_closed_at_the_deadline_however_slowly_it_goes_on() {
    let _alone = alone();
    let (b, _events) = start(Some(1));
    let begin = Instant::now();
    let mut silent = TcpStream::connect(address(&b)).unwrap();
    let mut slow = TcpStream::connect(address(&b)).unwrap();
    let mut drip = slow.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Each byte would extend a deadline that is not absolute.
            for byte in b"SRPR\x01\0\x80\0\x01\0\0\0" {
                let _ = drip.write(&[*byte]);
                std::thread::sleep(Duration::from_millis(600));
            }
        });
        assert!(is_closed(&mut silent, LONG) && is_closed(&mut slow, LONG));
        let took = begin.elapsed();
        assert!(took >= Duration::from_millis(4900) && took < Duration::from_secs(8), "{took:?}");
    });
    assert_eq!(b.counters().timed_out, 2);
}

#[test]
fn the_cap_is_64_and_a_stranger_that_leaves_makes_room() {
    let _alone = alone();
    let (b, _events) = start(None);
    let mut strangers: Vec<TcpStream> = (0..64).map(|_| TcpStream::connect(address(&b)).unwrap()).collect();
    for round in 1..=10 {
        let mut further = TcpStream::connect(address(&b)).unwrap();
        let mut said = Vec::new();
        further.read_to_end(&mut said).unwrap();
        assert_eq!((said.len(), said[4], said[8]), (24, 9, 11), "a REFUSAL: too many");
        assert_eq!(b.counters().over_cap, round);
        let broken = b.counters().broken;
        drop(strangers.pop());
        until("its place is free", || b.counters().broken > broken);
        strangers.push(TcpStream::connect(address(&b)).unwrap());
    }
}

#[test]
fn an_address_where_somebody_accepts_and_says_nothing_is_given_up_at_the_deadline() {
    let _alone = alone();
    let black_hole = TcpListener::bind("127.0.0.1:0").unwrap();
    let ((a, a_events), (b, b_events)) = (start(Some(1)), start(Some(1)));
    let addresses = [black_hole.local_addr().unwrap(), address(&b)];
    let begin = Instant::now();
    a.connect(Endpoint::new(b.identity(), None, &addresses).unwrap());
    let x = connected(&a_events);
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(4900) && took < Duration::from_secs(8), "{took:?}");
    assert_eq!(a.counters().timed_out, 1);
    assert!(are_joined(&x, &connected(&b_events)));
}

#[test]
fn garbage_costs_a_stranger_its_socket_and_nobody_else_anything() {
    let _alone = alone();
    let ((a, a_events), (b, b_events)) = (start(Some(1)), start(Some(1)));
    a.connect(endpoint(&b));
    let (x, y) = (connected(&a_events), connected(&b_events));
    let mut word = 1u64;
    for n in 0..500 {
        let mut stranger = TcpStream::connect(address(&b)).unwrap();
        let mut bytes = [0; 400];
        bytes.fill_with(|| {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(n);
            (word >> 33) as u8
        });
        if n % 2 == 0 {
            bytes[..12].copy_from_slice(&[b'S', b'R', b'P', b'R', 1, 0, 128, 0, 1, 0, 0, 0]);
        }
        // It may be closed before all is written.
        let _ = stranger.write_all(&bytes);
        assert!(is_closed(&mut stranger, LONG));
    }
    assert!(are_joined(&x, &y));
    until("counted", || b.counters().refused.iter().sum::<u64>() == 500);
    assert!(b.counters().refused(Refusal::BadMessage) >= 250);
}

#[test]
fn more_connections_than_may_be_are_refused_until_one_ends() {
    let _alone = alone();
    let (b, b_events) = Peers::start(Config { connections_max: 1, ..config(Some(1)) }).unwrap();
    let ((a, a_events), (c, c_events)) = (start(Some(1)), start(Some(1)));
    a.connect(endpoint(&b));
    let (x, y) = (connected(&a_events), connected(&b_events));
    c.connect(endpoint(&b));
    assert_eq!(unreachable(&c_events).1, Failure::Refused(End::Theirs(Refusal::TooMany)));
    assert!(b.counters().refused(Refusal::TooMany) >= 3);
    a.forget(b.identity());
    drop((x, y));
    assert!(are_joined(&connected(&c_events), &connected(&b_events)));
}

#[test]
#[cfg_attr(debug_assertions, ignore = "waits for the handshake's deadline of 5 s: in release")]
fn a_silent_lane_ends_the_connection_that_waits_for_it() {
    let _alone = alone();
    // A relay that passes the first socket on, and swallows those that would join.
    let (a, a_events) = start(Some(1));
    let (b, b_events) = start(Some(1));
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay_at = relay.local_addr().unwrap();
    a.connect(Endpoint::new(b.identity(), None, &[relay_at]).unwrap());
    let (here, _) = relay.accept().unwrap();
    let there = TcpStream::connect(address(&b)).unwrap();
    std::thread::scope(|scope| {
        for (mut from, mut to) in [(&here, &there), (&there, &here)] {
            scope.spawn(move || drop(std::io::copy(&mut from, &mut to)));
        }
        let _swallowed = relay.accept().unwrap();
        until("both give it up", || a.counters().timed_out >= 1 && b.counters().timed_out + b.counters().broken >= 1);
        a.forget(b.identity());
        for stream in [&here, &there] {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    });
    assert!(a_events.next_event().is_none() && b_events.next_event().is_none());
    assert_eq!([a.counters().connected, b.counters().connected], [0, 0]);
}

#[test]
fn an_engine_that_stops_says_so_to_who_is_in_between() {
    let _alone = alone();
    let (b, _events) = start(None);
    let mut stranger = TcpStream::connect(address(&b)).unwrap();
    stranger.write_all(b"SRPR").unwrap();
    until("taken", || {
        std::thread::sleep(Duration::from_millis(20));
        true
    });
    drop(b);
    let mut said = Vec::new();
    let _ = stranger.read_to_end(&mut said);
    assert_eq!((said.len(), said.get(8)), (24, Some(&14)), "a REFUSAL: shutting down");
}

#[test]
fn a_connection_that_the_other_side_gave_up_is_superseded_by_its_next() {
    let _alone = alone();
    let ((a, a_events), (b, b_events)) = (start(Some(1)), start(Some(1)));
    a.connect(endpoint(&b));
    let (x, old) = (connected(&a_events), connected(&b_events));
    // The other side does not notice.
    drop(x);
    let x = connected(&a_events);
    let event = b_events.wait(LONG);
    let is_old = |epoch: &u64, identity: &Identity| *epoch == old.epoch && *identity == a.identity();
    assert!(matches!(&event, Some(Event::Superseded { epoch, identity }) if is_old(epoch, identity)), "{event:?}");
    let y = connected(&b_events);
    // Letting go of the old one, however late, leaves the next alone.
    drop(old);
    until("lost", || b.counters().lost == 1);
    assert!(are_joined(&x, &y));
    drop((x, y));
    let (x, y) = (connected(&a_events), connected(&b_events));
    assert!(are_joined(&x, &y));
}

#[test]
fn a_flood_of_strangers_is_counted_and_makes_few_log_lines_with_nothing_of_theirs_in_them() {
    let _alone = alone();
    tracing_subscriber::fmt().with_writer(|| Log).with_ansi(false).init();
    let (b, _events) = start(Some(0x5a));
    let (a, a_events) = start(Some(0x5a));
    a.connect(endpoint(&b));
    let x = connected(&a_events);
    for _ in 0..300 {
        let mut stranger = TcpStream::connect(address(&b)).unwrap();
        stranger.write_all(b"\x1b[31m\nforged line\n").unwrap();
        assert!(is_closed(&mut stranger, LONG));
    }
    until("counted", || b.counters().refused(Refusal::BadMessage) == 300);
    let log = String::from_utf8(std::mem::take(&mut *LOG.lock().unwrap())).unwrap();
    let about = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    assert_eq!(about("peer connected"), 2, "{log}");
    assert!((20..60).contains(&about("does not belong here")), "{log}");
    assert_eq!(log.lines().count(), about("peer connected") + about("does not belong here"));
    assert!(!log.contains('\x1b') && !log.contains("forged") && !log.contains("5a5a"), "{log}");
    drop(x);
}

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
