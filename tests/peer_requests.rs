//! What clients ask about other engines, and what they are refused: R12, R17, R38.

mod serving;
mod support;

use ring_abi::{Features, Kind, NAME_BYTES_MAX, Status};
use scatter_ring::client::{Client, Setup};
use scatter_ring::engine::{
    Config, Endpoint, Engine, EngineError, Identity, PeerSettings, RunningEngine, make_key_file,
};
use scatter_ring::region::Rights;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use support::hostile::eventually;
use support::{RawClient, not_run};

fn loopback() -> Vec<SocketAddr> {
    vec![([127, 0, 0, 1], 0).into()]
}

/// An address of this host that only this process uses: a port of it that was free a moment ago is free now.
fn own_address() -> SocketAddr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    ([127, 1 + a % 200, b, c], 0).into()
}

fn start(peers: Option<PeerSettings>) -> Result<RunningEngine, EngineError> {
    Engine::new(&Config { workers: 0, peers, ..Config::default() })?.start()
}

fn engine() -> RunningEngine {
    start(Some(PeerSettings { listen: loopback(), ..PeerSettings::default() })).unwrap()
}

fn attach(engine: &RunningEngine) -> RawClient {
    RawClient::attach(engine.connect().unwrap(), 8, 8, 0)
}

fn client(engine: &RunningEngine) -> Client {
    Client::over(engine.connect().unwrap(), &Setup::default()).unwrap()
}

fn endpoint_at(addresses: &[SocketAddr]) -> Endpoint {
    Endpoint::new(Identity([7; 16]), None, addresses).unwrap()
}

/// An address where nobody listens, as long as it is kept.
struct Nobody(OwnedFd);

impl Nobody {
    fn new() -> Nobody {
        let (family, kind) = (rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM);
        let socket = rustix::net::socket_with(family, kind, rustix::net::SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &own_address()).unwrap();
        Nobody(socket)
    }

    fn address(&self) -> SocketAddr {
        rustix::net::getsockname(&self.0).unwrap().try_into().unwrap()
    }
}

#[test]
fn an_engine_without_peers_says_so() {
    let (engine, other) = (start(None).unwrap(), engine());
    let endpoint = other.endpoint().unwrap();
    assert_eq!(engine.endpoint(), None);
    assert!(matches!(engine.connect_peer(&endpoint), Err(EngineError::Refused(Status::UNSUPPORTED))));
    let mut raw = attach(&engine);
    assert_eq!(raw.features.0 & Features::PEERS, 0);
    for (kind, args) in [(Kind::CONNECT, &[][..]), (Kind::OPEN, &[1, 1]), (Kind::OPEN, &[1, u64::MAX])] {
        let answer = raw.ask(kind, args, &endpoint.to_string(), &[]);
        assert_eq!(answer.status, Status::UNSUPPORTED);
        assert!(
            answer.name().contains("--peer-listen") && answer.name().contains("Config::peers"),
            "{}",
            answer.name()
        );
    }
    let error = client(&engine).connect(&endpoint.to_string()).unwrap_err();
    assert!(error.to_string().contains("has no peers"), "{error}");
    assert_eq!(attach(&other).features.0 & Features::PEERS, Features::PEERS);
}

#[test]
fn who_listens_nowhere_connects_to_others_and_has_no_endpoint() {
    let (engine, other) = (start(Some(PeerSettings::default())).unwrap(), engine());
    assert_eq!(engine.endpoint(), None);
    let endpoint = other.endpoint().unwrap();
    assert_eq!(endpoint.key(), None);
    let peer = client(&engine).connect(&format!(" {endpoint}\n")).unwrap();
    assert_eq!(client(&engine).connect(&endpoint.to_string()).unwrap(), peer);
    assert!(engine.counters().peers_connected > 0);
    eventually("the other side counts it too", || other.counters().peers_connected > 0);
}

#[test]
fn an_engine_connects_to_others_for_its_own_process() {
    let (engine, other) = (start(Some(PeerSettings::default())).unwrap(), engine());
    engine.connect_peer(&other.endpoint().unwrap()).unwrap();
    eventually("there is a connection", || engine.counters().peers_connected > 0);
}

#[test]
fn keys_are_proven() {
    let directory = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| directory.path().join(name));
    let ids = [&first, &second].map(|path| make_key_file(path).unwrap());
    let with_key = |path| {
        let settings = PeerSettings { listen: loopback(), key_file: Some(path), ..PeerSettings::default() };
        start(Some(settings)).unwrap()
    };
    let (a, b, stranger) = (with_key(first.clone()), with_key(first), with_key(second));
    let endpoint = a.endpoint().unwrap();
    assert_eq!(endpoint.key(), Some(ids[0]));
    client(&b).connect(&endpoint.to_string()).unwrap();
    for (engine, why) in [(&stranger, "the responder does not have this key"), (&engine(), "one side has a key")] {
        let error = client(engine).connect(&endpoint.to_string()).unwrap_err();
        assert_eq!(error.status(), Status::PEER_UNREACHABLE);
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn an_engine_that_cannot_be_reached_is_tried_anew_for_each_who_asks() {
    let engine = engine();
    let client = client(&engine);
    let nobody = Nobody::new();
    let address = nobody.address();
    let endpoint = endpoint_at(&[address]).to_string();
    let since = Instant::now();
    for tries in 1..=3 {
        let error = client.connect(&endpoint).unwrap_err();
        assert_eq!(error.status(), Status::PEER_UNREACHABLE);
        assert!(error.to_string().contains("refused"), "{error}");
        assert_eq!(engine.counters().peers_unreachable, tries);
    }
    assert!(since.elapsed() < Duration::from_secs(10), "nobody answers at once, and is waited for");
    drop(nobody);
    // Then one is started there, by another identity, as the other side's could have been.
    let other = start(Some(PeerSettings { listen: vec![address], ..PeerSettings::default() })).unwrap();
    let peer = client.connect(&endpoint).unwrap();
    assert!(since.elapsed() < Duration::from_secs(10), "it was not tried at once");
    drop(other);
    assert_eq!(client.connect(&endpoint).map_or(peer, |again| again), peer);
}

#[test]
fn more_engines_that_nobody_is_at_than_there_may_be_connections_do_not_keep_one_out() {
    let settings = PeerSettings { connections: 2, ..PeerSettings::default() };
    let (engine, other) = (start(Some(settings)).unwrap(), engine());
    let mut raw = attach(&engine);
    let nobody = Nobody::new();
    let gone = [1, 2, 3, 4].map(|n| Endpoint::new(Identity([n; 16]), None, &[nobody.address()]).unwrap());
    gone.iter().for_each(|endpoint| raw.send(Kind::CONNECT, &[], &endpoint.to_string(), &[]));
    let texts = gone.map(|_| raw.answer()).map(|answer| {
        assert_eq!(answer.status, Status::PEER_UNREACHABLE);
        answer.name().to_owned()
    });
    assert_eq!(texts.iter().filter(|text| text.contains("too many connections")).count(), 2, "{texts:?}");
    client(&engine).connect(&other.endpoint().unwrap().to_string()).unwrap();
}

#[test]
fn what_is_no_endpoint_is_refused_with_what_to_do() {
    let engine = engine();
    let mut raw = attach(&engine);
    let own = engine.endpoint().unwrap().to_string();
    let wrong = ["", "x", "not an endpoint", &own[1..], &own[..own.len() - 2], &"A".repeat(NAME_BYTES_MAX)];
    for endpoint in wrong {
        let answer = raw.ask(Kind::CONNECT, &[], endpoint, &[]);
        assert_eq!(answer.status, Status::INVALID_SETTING, "{endpoint:?}");
        assert!(answer.name().contains("not an endpoint"), "{}", answer.name());
    }
    let answer = raw.ask(Kind::CONNECT, &[], &own, &[]);
    assert_eq!(answer.status, Status::INVALID_SETTING);
    assert!(answer.name().contains("the endpoint of this engine"), "{}", answer.name());
    // Its own address by another name: it finds out by asking.
    let led_to_itself = endpoint_at(engine.endpoint().unwrap().addresses());
    let answer = raw.ask(Kind::CONNECT, &[], &led_to_itself.to_string(), &[]);
    assert_eq!(answer.status, Status::PEER_UNREACHABLE);
    assert!(answer.name().contains("this engine itself"), "{}", answer.name());

    let client = client(&engine);
    let six: Vec<SocketAddr> = (1..=8).map(|n| SocketAddr::from(([0x20, n, 0, 0, 0, 0, 0, 1], 7711))).collect();
    let error = client.connect(&endpoint_at(&six).to_string()).unwrap_err();
    assert_eq!(error.status(), Status::INVALID_SETTING);
    assert!(error.to_string().contains("168") && error.to_string().contains("fewer addresses"), "{error}");
    let error = client.connect("  ").unwrap_err();
    assert!(error.to_string().contains("an endpoint is needed"), "{error}");
    // Most of what an endpoint can have fits.
    let eight: Vec<SocketAddr> = (1..=8).map(|n| SocketAddr::from(([192, 0, 2, n], 7711))).collect();
    for addresses in [&eight[..], &six[..4]] {
        let endpoint = endpoint_at(addresses).to_string();
        assert!(endpoint.len() <= NAME_BYTES_MAX, "{}", endpoint.len());
        let error = client.connect(&endpoint).unwrap_err();
        assert!(error.to_string().contains("only connected to with a key"), "{error}");
    }
}

#[test]
fn messages_about_peers_that_make_no_sense_are_refused_or_end_the_session() {
    let engine = engine();
    let nobody = Nobody::new();
    let endpoint = endpoint_at(&[nobody.address()]).to_string();
    for (kind, args) in
        [(Kind::CONNECT, vec![1]), (Kind::CONNECT, vec![0, 0, 0, 0, 0, 0, 0, 1]), (Kind::OPEN, vec![1, 0, 1])]
    {
        let mut raw = attach(&engine);
        let answer = raw.ask(kind, &args, &endpoint, &[]);
        assert_eq!((answer.status, answer.name()), (Status::INVALID_SETTING, "an argument without a meaning is not 0"));
    }
    let mut raw = attach(&engine);
    for number in [1, 2, 1 << 16, 1 << 32, u64::MAX] {
        let answer = raw.ask(Kind::OPEN, &[1, number], "table", &[]);
        assert_eq!(answer.status, Status::INVALID_SETTING);
        assert!(answer.name().contains(&format!("no peer has the number {number}")), "{}", answer.name());
    }
    // Rights come first, as for exports of this engine.
    assert_eq!(raw.ask(Kind::OPEN, &[4, 1], "table", &[]).name(), "rights 0x4");
    let file = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    raw.send(Kind::CONNECT, &[], &endpoint, &[file.as_fd()]);
    assert_eq!(raw.wait_stopped(), Status::BAD_MESSAGE);
    // A question without an answer is no reason for anything.
    let quiet = attach(&engine);
    let question = ring_abi::Message::new(Kind::CONNECT, ring_abi::NO_ANSWER, [0; 8]).with_name(&endpoint);
    (0..100).for_each(|_| quiet.socket.send(&question, &[]).unwrap());
    eventually("all were read", || {
        engine.counters().refused.iter().any(|(status, _)| *status == Status::LIMIT_EXCEEDED)
    });
    drop(quiet);
    assert!(client(&engine).open("none", Rights::READ).unwrap_err().to_string().contains("no such export"));
}

#[test]
fn a_stop_refuses_who_waits_for_a_connection() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let engine = engine();
    let mut raw = attach(&engine);
    raw.send(Kind::CONNECT, &[], &endpoint_at(&[silent.local_addr().unwrap()]).to_string(), &[]);
    assert_eq!(raw.ask(Kind::OPEN, &[1], "none", &[]).status, Status::NAME_UNKNOWN, "others do not wait");
    let since = Instant::now();
    let stopping = std::thread::spawn(move || engine.stop());
    assert_eq!(raw.answer().status, Status::STOPPING);
    stopping.join().unwrap();
    assert!(since.elapsed() < Duration::from_secs(3), "a stop does not wait for peers");
}

#[test]
fn settings_that_an_engine_cannot_have_are_named() {
    let default = PeerSettings::default;
    let cases = [
        (PeerSettings { lanes: 0, ..default() }, "lanes: 0, must be from 1 to 16"),
        (PeerSettings { lanes: 17, ..default() }, "lanes: 17"),
        (PeerSettings { slot_bytes: 4096, ..default() }, "slot_bytes: 4096, must be from 16384"),
        (PeerSettings { slot_bytes: (16 << 20) + 4096, ..default() }, "slot_bytes: 16781312"),
        (PeerSettings { slot_bytes: 20_000, ..default() }, "slot_bytes: 20000, must be a multiple of 4096"),
        (PeerSettings { slots: 0, ..default() }, "slots: 0"),
        (PeerSettings { owner_slots: 0, ..default() }, "owner_slots: 0"),
        (PeerSettings { connections: 1025, ..default() }, "connections: 1025"),
        (PeerSettings { dead_after: Duration::from_secs(3), ..default() }, "dead_after: 3s, must be from 50ms to 2.5s"),
        (PeerSettings { dead_after: Duration::ZERO, ..default() }, "dead_after: 0ns"),
        (PeerSettings { listen: vec![([0, 0, 0, 0], 0).into()], ..default() }, "`advertise`"),
        (PeerSettings { listen: vec![([192, 0, 2, 1], 1).into()], ..default() }, "needs a key file"),
        (PeerSettings { congestion: Some("none".to_owned()), ..default() }, "congestion control \"none\""),
        (PeerSettings { key_file: Some("/no/such".into()), ..default() }, "key file /no/such: No such file"),
    ];
    for (settings, why) in cases {
        for error in [settings.check().unwrap_err(), start(Some(settings.clone())).unwrap_err()] {
            assert!(error.to_string().contains(why), "{error}");
        }
    }
    // What others do at that moment is not looked at before.
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    let settings = PeerSettings { listen: vec![taken], ..default() };
    settings.check().unwrap();
    let error = start(Some(settings)).unwrap_err();
    assert!(error.to_string().contains(&format!("listening on {taken}: Address")), "{error}");
}

#[test]
fn serve_says_how_it_is_reached_and_is_reached_so() {
    let place = serving::Place::new();
    let mut command = place.serve("");
    command.args(["--peer-listen", "127.0.0.1:0"]);
    let mut process = serving::Engine::spawn(&mut command);
    let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("scatter-ring: serving at "));
    let line = lines.next().unwrap().unwrap();
    let endpoint = line.strip_prefix("scatter-ring: peers connect to ").unwrap();
    assert!(endpoint.parse::<Endpoint>().unwrap().addresses()[0].ip().is_loopback());
    let engine = engine();
    client(&engine).connect(endpoint).unwrap();
    let log = process.log();
    let rest = process.stopped(log);
    assert!(rest.contains("peers_connected=") && rest.contains("peer_opens_refused=0"), "{rest}");
    // One that does not listen has nothing to say.
    let mut process = serving::Engine::spawn(&mut place.serve("[peers]\n"));
    let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("scatter-ring: serving at "));
    let log = process.log();
    process.stopped(log);
    assert!(lines.next().is_none());
}

/// Makes a system call by which only the calling thread changes its user or group: the C library's change the process.
fn become_other(group: u32, user: u32) {
    let keep = u32::MAX;
    // SAFETY: calls without pointers.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setresgid, keep, group, keep), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, keep, user, keep), 0);
    }
}

#[test]
fn other_users_do_not_make_the_engine_speak_for_them() {
    const USER: u32 = 61_237;
    const GROUP: u32 = 61_238;
    if !rustix::process::geteuid().is_root() {
        return not_run("only root can be another user");
    }
    let place = serving::Place::new();
    serving::set_mode(place.directory.path(), 0o711);
    let directory = place.path("shared");
    std::fs::create_dir(&directory).unwrap();
    std::os::unix::fs::chown(&directory, None, Some(GROUP)).unwrap();
    serving::set_mode(&directory, 0o750);
    let config = Config { users: vec![USER], peers: Some(PeerSettings::default()), workers: 0, ..Config::default() };
    let engine = Engine::new(&config).unwrap().start().unwrap();
    let socket = directory.join("socket");
    engine.listen(&socket).unwrap();
    let other = self::engine();
    let endpoint = other.endpoint().unwrap().to_string();
    let path = socket.clone();
    let theirs = std::thread::spawn(move || {
        become_other(GROUP, USER);
        serving::connect(&path)
    });
    let mut theirs = RawClient::attach(theirs.join().unwrap(), 8, 8, 0);
    let mut ours = RawClient::attach(serving::connect(&socket), 8, 8, 0);
    let refused = |raw: &mut RawClient, kind, args: &[u64]| {
        let answer = raw.ask(kind, args, &endpoint, &[]);
        assert_eq!(answer.status, Status::NOT_ALLOWED);
        assert!(answer.name().contains("engine's own user"), "{}", answer.name());
    };
    refused(&mut theirs, Kind::CONNECT, &[]);
    let number = ours.ask(Kind::CONNECT, &[], &endpoint, &[]).args[0];
    assert_eq!(number, 1);
    refused(&mut theirs, Kind::CONNECT, &[]);
    refused(&mut theirs, Kind::OPEN, &[1, number]);
}
