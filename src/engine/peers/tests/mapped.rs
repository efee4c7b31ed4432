//! Memory that engines on one host map: what the control thread gives, and what it takes from whoever says that it is one.

use super::*;
use crate::attach::{AttachError, Received, connect};
use crate::engine::leases::words_of;
use crate::engine::listen;
use crate::engine::remote::Here;
use crate::peer::MAP_MEMORY;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A directory for sockets.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        std::fs::set_permissions(place.0.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        place
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("socket")
    }

    fn text(&self) -> String {
        self.socket().to_str().unwrap().to_owned()
    }
}

fn remote(seat: SeatId) -> Arc<Remote> {
    Arc::new(Remote::new(seat, 1, GrantId(8), 4096, false))
}

/// What an engine that lies is made of: a socket, and an answer to whoever asks.
fn engine_that_answers(place: &Place, answer: impl FnOnce(&Message) -> (Message, Vec<OwnedFd>) + Send + 'static) {
    let listener = listen::bind(&place.socket(), false).unwrap();
    rustix::io::ioctl_fionbio(&listener, false).unwrap();
    std::thread::spawn(move || {
        let socket = Socket::new(rustix::net::accept(&listener).unwrap());
        let question = socket.receive(true).unwrap().unwrap().message;
        assert_eq!(question.kind, Kind::FETCH);
        let (answer, fds) = answer(&question);
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        socket.send(&answer, &fds).unwrap();
    });
}

impl Bench {
    fn listens(&self, place: &Place) {
        let listener = listen::bind(&place.socket(), false).unwrap();
        self.control.send(Request::Listen { listener, path: place.socket() }).unwrap();
    }

    /// Another engine that dials this one and maps memory.
    fn maps_with(&self) -> (Peers, Events, SeatId) {
        let (peers, events) =
            Peers::start(peer::Config { offers: MAP_MEMORY, ..peer::Config::new().unwrap() }).unwrap();
        peers.connect(self.endpoint.clone());
        let Command::PeerUp(connected, None) = self.command() else { panic!("no connection") };
        let seat = SeatId(connected.epoch);
        // Its end is nobody's news here.
        std::mem::forget(connected);
        (peers, events, seat)
    }

    fn told(&self) -> (SeatId, Here) {
        let Command::PeerHere { seat, here } = self.command() else { panic!("the peer is not told") };
        (seat, here)
    }

    /// The file of a region, as an engine asks for it.
    fn fetched(&self, here: &Here, number: u64, found: Option<(Arc<Region>, Rights)>) -> (Socket, Received) {
        let socket = asks(here, number);
        let Command::PeerFetch { number: asked, session, .. } = self.command() else { panic!("nothing is looked for") };
        assert_eq!(u64::from(asked), number);
        self.tell(Told::PeerFetches { session, found });
        let received = socket.receive(true).unwrap().unwrap();
        (socket, received)
    }

    /// What a client that opens a region of a peer of this host is given.
    fn opens(&self, client: &mut Client, peer: &Other, rights: Rights) -> (Message, Arc<Remote>, Option<Memory>) {
        let question = client.ask(Kind::OPEN, &[rights.bits(), peer.number], "table");
        let Command::RemoteOpen { request, .. } = self.command() else { panic!("not opened") };
        let remote = remote(peer.seat());
        self.tell(Told::RemoteOpened { request, answer: Ok(remote.clone()) });
        let answer = client.answered(question);
        let memory = answer.status.is_ok().then(|| {
            let Command::Grant { granted, .. } = self.command() else { panic!("not granted") };
            granted.memory.unwrap()
        });
        (answer, remote, memory)
    }
}

fn asks(here: &Here, number: u64) -> Socket {
    let [low, high] = words_of(&here.token);
    let socket = connect(std::path::Path::new(&here.path)).unwrap();
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(LIMIT)).unwrap();
    socket.send(&Message::new(Kind::FETCH, 5, [low, high, number, 0, 0, 0, 0, 0]), &[]).unwrap();
    socket
}

fn refusal(socket: &Socket) -> (Status, String) {
    let answer = socket.receive(true).unwrap().unwrap();
    assert!(answer.fds.is_empty());
    assert!(matches!(socket.receive(true), Err(AttachError::Closed)), "the connection stays");
    (answer.message.status, answer.message.name().to_owned())
}

fn with_file(bytes: u64) -> (Arc<Region>, OwnedFd) {
    let (region, fd) = Region::allocate(bytes, Huge::Never).unwrap();
    (Arc::new(region.with_file(fd.try_clone().unwrap(), 0)), fd)
}

fn is_mapped(memory: &Memory) -> bool {
    memory.mapped().is_some()
}

#[test]
fn a_peer_is_told_once_and_when_there_is_something_to_tell() {
    let (bench, place) = (Bench::new(8), Place::new());
    let mut client = bench.attach();
    let plain = bench.peer(&mut client);
    let (_peers, _events, seat) = bench.maps_with();
    client.is_served();
    assert!(bench.is_quiet(), "there is no socket yet");
    bench.listens(&place);
    let (told, here) = bench.told();
    assert_eq!((told, here.path.as_str()), (seat, place.text().as_str()));
    client.is_served();
    assert!(bench.is_quiet(), "told twice, or to one that does not map ({:?})", plain.seat());
    let (_other, _events, second) = bench.maps_with();
    let (told, other) = bench.told();
    assert_eq!(told, second);
    assert!(here.host == other.host && here.token != other.token && here.token != [0; 16]);
}

#[test]
fn a_file_is_open_for_no_more_than_was_opened_and_for_nobody_without_the_token() {
    let (bench, place) = (Bench::new(8), Place::new());
    bench.listens(&place);
    let (_peers, _events, seat) = bench.maps_with();
    let (_, here) = bench.told();
    let (region, _fd) = with_file(8192);
    for rights in [Rights::READ, Rights::READ_WRITE] {
        let (_lease, Received { message, fds }) = bench.fetched(&here, 7, Some((region.clone(), rights)));
        assert_eq!((message.kind, message.status, message.request), (Kind::FETCH.answer(), Status::OK, 5));
        assert_eq!(message.args, [0, 8192, rights.bits(), 0, 0, 0, 0, 0]);
        let mode = rustix::fs::fcntl_getfl(&fds[0]).unwrap() & OFlags::ACCMODE;
        assert_eq!(mode, if rights.write { OFlags::RDWR } else { OFlags::RDONLY });
        assert_eq!(rustix::io::pwrite(&fds[0], &[1], 0).is_ok(), rights.write);
        assert!(Region::from_fd(&fds[0], 0, 8192, rights, crate::region::Trust::Sealed).is_ok());
    }
    assert_eq!(bench.counters().peer_files_given, 2);

    let (private, _) = Region::allocate(4096, Huge::Never).unwrap();
    let (_, answer) = bench.fetched(&here, 7, Some((Arc::new(private), Rights::READ)));
    assert_eq!((answer.message.status, answer.fds.len()), (Status::UNSUPPORTED, 0));
    let (_, answer) = bench.fetched(&here, 8, None);
    assert_eq!(answer.message.status, Status::REGION_GONE);
    region.withdraw();
    let (_, answer) = bench.fetched(&here, 7, Some((region, Rights::READ)));
    assert_eq!(answer.message.status, Status::REGION_GONE, "it was taken away meanwhile");

    let before = bench.counters();
    let wrong = Here { token: [9; 16], ..here.clone() };
    let (status, text) = refusal(&asks(&wrong, 7));
    assert!(status == Status::NOT_ALLOWED && text.contains("token"), "{text}");
    assert_eq!(Counters::of(&bench.counters().refused, status), Counters::of(&before.refused, status) + 1);
    assert_eq!(refusal(&asks(&here, 1 << 32)).0, Status::UNKNOWN_REGION);
    bench.tell(Told::PeerDown { seat, is_violated: false });
    let mut witness = bench.attach();
    witness.is_served();
    assert_eq!(refusal(&asks(&here, 7)).0, Status::NOT_ALLOWED, "the token outlives its connection");
    assert!(bench.is_quiet());
}

#[test]
fn clients_find_room_whatever_engines_map_and_a_lease_says_no_more() {
    let (bench, place) = (Bench::new(8), Place::new());
    bench.listens(&place);
    let (_peers, _events, _seat) = bench.maps_with();
    let (_, here) = bench.told();
    let (region, _fd) = with_file(4096);
    let leases_max = Limits::default().sessions_per_user / 2;
    let leases: Vec<Socket> =
        (0..leases_max).map(|_| bench.fetched(&here, 1, Some((region.clone(), Rights::READ))).0).collect();
    assert_eq!(refusal(&asks(&here, 1)).0, Status::LIMIT_EXCEEDED);
    let clients: Vec<Client> = (0..leases_max).map(|_| bench.attach()).collect();
    drop(clients);
    // Whoever speaks on a lease gives it up.
    leases[0].send(&Message::new(Kind::FETCH, 6, [0; 8]), &[]).unwrap();
    assert!(matches!(leases[0].receive(true), Err(AttachError::Closed)));
    let (_again, answer) = bench.fetched_beside(&here, &region);
    assert_eq!(answer.message.status, Status::OK);
}

impl Bench {
    /// The same as [`fetched`](Self::fetched) while clients go.
    fn fetched_beside(&self, here: &Here, region: &Arc<Region>) -> (Socket, Received) {
        let socket = asks(here, 1);
        let session = loop {
            if let Command::PeerFetch { session, .. } = self.command() {
                break session;
            }
        };
        self.tell(Told::PeerFetches { session, found: Some((region.clone(), Rights::READ)) });
        let received = socket.receive(true).unwrap().unwrap();
        (socket, received)
    }
}

#[test]
fn memory_is_given_back_when_its_leases_have_ended_as_well() {
    let (bench, place) = (Bench::new(8), Place::new());
    bench.listens(&place);
    let (_peers, _events, seat) = bench.maps_with();
    let (_, here) = bench.told();
    let (mut owner, handle, region) = bench.owner("table");
    let found = Some((region.clone(), Rights::READ));
    let (first, _) = bench.fetched(&here, 1, found.clone());
    let (second, _) = bench.fetched(&here, 2, found);
    let closing = owner.ask(Kind::CLOSE, &[handle], "");
    let Command::Withdraw { session, handle: named, .. } = bench.command() else { panic!("not withdrawn") };
    let Command::PeerWithdraw { ticket, .. } = bench.command() else { panic!("peers keep it") };
    bench.tell(Told::Withdrawn { session, handle: named });
    bench.tell(Told::PeersLeft { ticket });
    // Not even if the connection is lost.
    bench.tell(Told::PeerDown { seat, is_violated: false });
    drop(first);
    (0..20).for_each(|_| owner.is_served());
    drop(second);
    assert_eq!(owner.answered(closing).status, Status::OK);
    assert_eq!(Arc::strong_count(&region), 1, "it stays mapped");

    // Who has gone by himself leaves it to his engine to wait.
    let (owner, _, region) = bench.owner("table");
    let (_peers, _events, _) = bench.maps_with();
    let (_, here) = bench.told();
    let (lease, _) = bench.fetched(&here, 1, Some((region.clone(), Rights::READ)));
    bench.drained(owner);
    let Command::PeerWithdraw { ticket, region: left } = bench.command() else { panic!("peers keep it") };
    drop(left);
    bench.tell(Told::PeersLeft { ticket });
    let mut witness = bench.attach();
    witness.is_served();
    assert_eq!(Arc::strong_count(&region), 3, "it is unmapped while another engine has it");
    drop(lease);
    let begun = Instant::now();
    while Arc::strong_count(&region) > 1 {
        assert!(begun.elapsed() < LIMIT, "it stays mapped");
        witness.is_served();
    }
}

#[test]
fn a_stop_waits_for_engines_that_have_memory_mapped() {
    let (mut bench, place) = (Bench::new(8), Place::new());
    bench.listens(&place);
    let (_peers, _events, _) = bench.maps_with();
    let (_, here) = bench.told();
    let (region, _fd) = with_file(4096);
    let (answer, answered) = mpsc::channel();
    bench.control.send(Request::Export { name: "own".to_owned(), region: region.clone(), answer }).unwrap();
    assert_eq!(answered.recv(), Ok(Status::OK));
    let (lease, _) = bench.fetched(&here, 1, Some((region, Rights::READ)));
    let (answer, answered) = mpsc::channel();
    bench.control.send(Request::Unadopt { name: "own".to_owned(), answer }).unwrap();
    assert!(matches!(bench.command(), Command::PeerWithdraw { .. }));
    bench.control.stop(Duration::ZERO);
    assert!(matches!(bench.command(), Command::Stop { .. }));
    bench.tell(Told::PollerGone);
    let thread = bench.thread.take().unwrap();
    assert_eq!(answered.recv_timeout(Duration::from_millis(50)), Err(mpsc::RecvTimeoutError::Timeout));
    assert!(!thread.is_finished(), "it says that nobody touches the memory");
    drop(lease);
    assert_eq!(answered.recv(), Ok(()));
    thread.join().unwrap();
}

/// Five seconds, after which who has connected and said nothing is sent away.
#[test]
#[cfg_attr(debug_assertions, ignore = "waits for the 5 s of a HELLO: in release")]
fn a_lease_lasts() {
    let (bench, place) = (Bench::new(8), Place::new());
    bench.listens(&place);
    let (_peers, _events, _) = bench.maps_with();
    let (_, here) = bench.told();
    let (region, _fd) = with_file(4096);
    let (lease, _) = bench.fetched(&here, 1, Some((region, Rights::READ)));
    let silent = connect(&place.socket()).unwrap();
    rustix::net::sockopt::set_socket_timeout(&silent, rustix::net::sockopt::Timeout::Recv, Some(LIMIT)).unwrap();
    assert!(matches!(silent.receive(true), Err(AttachError::Closed)));
    assert!(matches!(lease.receive(false), Ok(None)), "it has ended");
}

/// Five seconds, after which it stops although somebody has memory mapped.
#[test]
#[cfg_attr(debug_assertions, ignore = "waits for the 5 s of a stop: in release")]
fn a_stop_does_not_wait_for_ever() {
    let (mut bench, place) = (Bench::new(8), Place::new());
    bench.listens(&place);
    let (_peers, _events, _) = bench.maps_with();
    let (_, here) = bench.told();
    let (region, _fd) = with_file(4096);
    let (_lease, _) = bench.fetched(&here, 1, Some((region, Rights::READ)));
    bench.tell(Told::PollerGone);
    let begun = Instant::now();
    bench.thread.take().unwrap().join().unwrap();
    assert!(begun.elapsed() > Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[test]
fn what_a_peer_on_this_host_gives_is_mapped_until_nobody_uses_it() {
    let (bench, place) = (Bench::new(8), Place::new());
    let mut client = bench.attach();
    let peer = bench.peer(&mut client);
    let host = crate::engine::leases::this_host().unwrap();
    let here = Here { host, token: *b"0123456789abcdef", path: place.text() };
    bench.tell(Told::PeerHere { seat: peer.seat(), here });
    let (owned, fd) = Region::allocate(4096, Huge::Never).unwrap();
    owned.write_at(0, b"theirs").unwrap();
    let (lease, leased) = mpsc::channel();
    let listener = listen::bind(&place.socket(), false).unwrap();
    rustix::io::ioctl_fionbio(&listener, false).unwrap();
    std::thread::spawn(move || {
        loop {
            let socket = Socket::new(rustix::net::accept(&listener).unwrap());
            let question = socket.receive(true).unwrap().unwrap().message;
            assert_eq!(question.args, [0x3736_3534_3332_3130, 0x6665_6463_6261_3938, 1, 0, 0, 0, 0, 0]);
            socket.send(&question.answer(Status::OK, [0, 4096, 3, 0, 0, 0, 0, 0]), &[fd.as_fd()]).unwrap();
            lease.send(socket).unwrap();
        }
    });
    let ended = |lease: &Socket| matches!(lease.receive(true), Err(AttachError::Closed));
    let open = |client: &mut Client| {
        let (answer, remote, memory) = bench.opens(client, &peer, Rights::READ);
        assert_eq!((answer.status, answer.args[1], answer.args[2]), (Status::OK, 4096, 1));
        let region = memory.unwrap().mapped().expect("it is not mapped").clone();
        let mut bytes = [0; 6];
        region.read_at(0, &mut bytes).unwrap();
        assert_eq!((&bytes, region.rights()), (b"theirs", Rights::READ));
        (answer.args[0], remote, region, leased.recv_timeout(LIMIT).unwrap())
    };
    let still_there = |lease: &Socket| matches!(lease.receive(false), Ok(None));

    // Closed by its client.
    let (handle, remote, region, lease) = open(&mut client);
    let closing = client.ask(Kind::CLOSE, &[handle], "");
    let Command::Withdraw { session, handle: named, .. } = bench.command() else { panic!("not closed") };
    drop(region);
    client.is_served();
    assert!(still_there(&lease), "it may be in use");
    bench.tell(Told::Withdrawn { session, handle: named });
    assert_eq!(client.answered(closing).status, Status::OK);
    assert!(ended(&lease));
    let closed = |remote: &Arc<Remote>| {
        let Command::RemoteClose(closed) = bench.command() else { panic!("the owner is not told") };
        assert!(Arc::ptr_eq(&closed, remote));
    };
    closed(&remote);

    // Withdrawn by its owner.
    let (handle, remote, region, lease) = open(&mut client);
    bench.tell(Told::RemoteWithdrawn(remote.clone()));
    let Command::Withdraw { session, handle: named, leave_mark: true } = bench.command() else { panic!("it stays") };
    assert!((session, u64::from(named.0)) == (client.id, handle) && region.is_withdrawn());
    drop(region);
    client.is_served();
    assert!(still_there(&lease) && bench.is_quiet(), "it may be in use");
    bench.tell(Told::Withdrawn { session, handle: named });
    closed(&remote);
    assert!(ended(&lease));

    // Its connection lost.
    let (_, _, region, lease) = open(&mut client);
    bench.tell(Told::PeerDown { seat: peer.seat(), is_violated: false });
    let Command::Withdraw { session, handle: named, leave_mark: true } = bench.command() else { panic!("it stays") };
    assert!(region.is_withdrawn());
    drop(region);
    client.is_served();
    assert!(still_there(&lease), "it may be in use");
    bench.tell(Told::Withdrawn { session, handle: named });
    assert!(ended(&lease));
    client.is_served();
    assert!(bench.is_quiet(), "there is nobody to be told");
    assert_eq!(bench.counters().peer_regions_mapped, 3);
}

#[test]
fn a_region_that_is_withdrawn_while_it_is_fetched_is_not_opened() {
    let (bench, place) = (Bench::new(8), Place::new());
    let mut client = bench.attach();
    let peer = bench.peer(&mut client);
    let host = crate::engine::leases::this_host().unwrap();
    bench.tell(Told::PeerHere { seat: peer.seat(), here: Here { host, token: [1; 16], path: place.text() } });
    let gone = remote(peer.seat());
    let withdrawn = gone.clone();
    let (_owned, fd) = Region::allocate(4096, Huge::Never).unwrap();
    engine_that_answers(&place, move |question| {
        withdrawn.withdraw();
        (question.answer(Status::OK, [0, 4096, 3, 0, 0, 0, 0, 0]), vec![fd])
    });
    let question = client.ask(Kind::OPEN, &[1, peer.number], "table");
    let Command::RemoteOpen { request, .. } = bench.command() else { panic!("not opened") };
    bench.tell(Told::RemoteOpened { request, answer: Ok(gone.clone()) });
    assert_eq!(client.answered(question).status, Status::REGION_GONE);
    let Command::RemoteClose(closed) = bench.command() else { panic!("the owner is not told") };
    assert!(Arc::ptr_eq(&closed, &gone));
}

#[test]
fn who_lies_about_memory_on_this_host_is_reached_by_the_connection() {
    let host = crate::engine::leases::this_host().unwrap();
    let memory = |bytes: u64| Region::allocate(bytes, Huge::Never).unwrap().1;
    let ok = |args: [u64; 3], fds: Vec<OwnedFd>| {
        let [offset, bytes, rights] = args;
        move |question: &Message| (question.answer(Status::OK, [offset, bytes, rights, 0, 0, 0, 0, 0]), fds)
    };
    type Answer = Box<dyn FnOnce(&Message) -> (Message, Vec<OwnedFd>) + Send>;
    let socket = OwnedFd::from(Socket::pair().unwrap().0);
    let plain = OwnedFd::from(tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap());
    rustix::fs::ftruncate(&plain, 4096).unwrap();
    let read_only = {
        use std::os::fd::AsRawFd;
        let file = memory(4096);
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::open(path, OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap()
    };
    let lies: Vec<(&str, Answer)> = vec![
        ("a refusal", Box::new(|question| (question.answer(Status::NOT_ALLOWED, [0; 8]), vec![]))),
        ("another answer", Box::new(|_| (Message::new(Kind::HELLO.answer(), 1, [0, 4096, 3, 0, 0, 0, 0, 0]), vec![]))),
        ("no file", Box::new(ok([0, 4096, 3], vec![]))),
        ("two files", Box::new(ok([0, 4096, 3], vec![memory(4096), memory(4096)]))),
        ("fewer bytes", Box::new(ok([0, 4095, 3], vec![memory(4096)]))),
        ("more bytes", Box::new(ok([0, 8192, 3], vec![memory(8192)]))),
        ("a file that is too short", Box::new(ok([4096, 4096, 3], vec![memory(4096)]))),
        ("an offset that wraps", Box::new(ok([u64::MAX, 4096, 3], vec![memory(4096)]))),
        ("fewer rights", Box::new(ok([0, 4096, 1], vec![memory(4096)]))),
        ("no rights", Box::new(ok([0, 4096, 0], vec![memory(4096)]))),
        ("a file for reading", Box::new(ok([0, 4096, 3], vec![read_only]))),
        ("a socket", Box::new(ok([0, 4096, 3], vec![socket]))),
        ("a file of a disk", Box::new(ok([0, 4096, 3], vec![plain]))),
    ];
    let bench = Bench::new(64);
    let mut client = bench.attach();
    let peer = bench.peer(&mut client);
    for (what, answer) in lies {
        let place = Place::new();
        bench.tell(Told::PeerHere { seat: peer.seat(), here: Here { host, token: [1; 16], path: place.text() } });
        engine_that_answers(&place, answer);
        let (answer, remote, memory) = bench.opens(&mut client, &peer, Rights::READ_WRITE);
        assert_eq!(answer.status, Status::OK, "{what}");
        assert!(memory.unwrap().is(&Memory::Remote(remote)), "{what}");
    }
    // Places at which nobody is, and another host: its path can be somebody else's here.
    let place = Place::new();
    let theirs = memory(4096);
    engine_that_answers(&place, move |question| {
        (question.answer(Status::OK, [0, 4096, 3, 0, 0, 0, 0, 0]), vec![theirs])
    });
    let (relative, other_host) = ("socket".to_owned(), [!host[0]; 16]);
    for (host, path) in
        [(host, relative), (host, "/\0".to_owned()), (host, "/none".to_owned()), (other_host, place.text())]
    {
        bench.tell(Told::PeerHere { seat: peer.seat(), here: Here { host, token: [1; 16], path } });
        let (_, _, memory) = bench.opens(&mut client, &peer, Rights::READ_WRITE);
        assert!(!is_mapped(&memory.unwrap()));
    }
    assert_eq!(bench.counters().peer_regions_mapped, 0);
}

/// A second, for which the client waits.
#[test]
fn an_engine_that_does_not_answer_is_reached_by_the_connection() {
    let (bench, place) = (Bench::new(8), Place::new());
    let mut client = bench.attach();
    let peer = bench.peer(&mut client);
    let host = crate::engine::leases::this_host().unwrap();
    let _nobody_accepts = listen::bind(&place.socket(), false).unwrap();
    bench.tell(Told::PeerHere { seat: peer.seat(), here: Here { host, token: [1; 16], path: place.text() } });
    let question = client.ask(Kind::OPEN, &[1, peer.number], "table");
    let Command::RemoteOpen { request, .. } = bench.command() else { panic!("not opened") };
    bench.tell(Told::RemoteOpened { request, answer: Ok(remote(peer.seat())) });
    let mut other = bench.attach();
    other.is_served();
    assert_eq!(client.answered(question).status, Status::OK);
    let Command::Grant { granted, .. } = bench.command() else { panic!("not granted") };
    assert!(!is_mapped(&granted.memory.unwrap()));
}
