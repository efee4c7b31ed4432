//! The control thread with real connections to other engines, and a poller that the tests play.

mod mapped;
mod verbs;

use super::*;
use crate::attach::Socket;
use crate::engine::config::{Config, Limits, PeerSettings};
use crate::engine::mail::{self, ControlHandle, Event as Told, Outbox, Request};
use crate::engine::session::Session;
use crate::link::GrantId;
use crate::peer::{self, Role};
use crate::region::{Huge, Region};
use crate::stats::{Counters, Stats};
use ring_abi::Kind;
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;

/// No test takes so long.
const LIMIT: Duration = Duration::from_secs(20);

/// A control thread; what it tells the poller comes here.
struct Bench {
    control: ControlHandle,
    commands: Receiver<Command>,
    outbox: Outbox,
    stats: Arc<Stats>,
    endpoint: Endpoint,
    thread: Option<JoinHandle<()>>,
}

/// Another engine, the number that clients know it by, and the connection to it.
struct Other {
    peers: Peers,
    events: Events,
    number: u64,
    connected: Box<Connected>,
}

/// A client by its attach socket.
struct Client {
    id: u64,
    socket: Socket,
    session: Option<Box<Session>>,
    requests: u64,
}

impl Bench {
    fn new(regions: u32) -> Bench {
        let (control, mut bench) = Bench::parts(regions);
        bench.thread = Some(std::thread::spawn(move || control.run()));
        bench
    }

    /// The same with a control thread that does not run yet.
    fn parts(regions: u32) -> (Control, Bench) {
        Self::parts_with(regions, None)
    }

    /// `verbs`: it offers RDMA verbs by a device that has failed, and may do without them or not.
    fn parts_with(regions: u32, verbs: Option<bool>) -> (Control, Bench) {
        let settings = PeerSettings { listen: vec![([127, 0, 0, 1], 0).into()], ..PeerSettings::default() };
        let (peers, events) = Peers::start(settings.peer_config(verbs.is_some()).unwrap()).unwrap();
        let endpoint = peers.endpoint().unwrap().clone();
        let (sender, commands) = mpsc::channel();
        let (inbox, outbox) = mail::inbox().unwrap();
        let bell = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap());
        let fork = Arc::new(crate::region::ForkGuard::new().unwrap());
        let link_bell = crate::link::Bell { sleep: Arc::default(), bell: bell.clone(), fork };
        let verbs = verbs.map(|requires| Verbs::new(None, requires, &settings.remote(Duration::ZERO), link_bell));
        let config = Config { limits: Limits { regions, ..Limits::default() }, ..Config::default() };
        let (stats, peering) = (Arc::new(Stats::default()), Some(Peering::new(peers, events, true, verbs)));
        let (control, handle) = Control::new(&config, stats.clone(), sender, bell, inbox, peering).unwrap();
        (control, Bench { control: handle, commands, outbox, stats, endpoint, thread: None })
    }

    fn command(&self) -> Command {
        self.commands.recv_timeout(LIMIT).expect("a command for the poller")
    }

    /// Nothing was said to the poller. Whoever has had an answer since knows that nothing is on its way.
    fn is_quiet(&self) -> bool {
        self.commands.try_recv().is_err()
    }

    fn tell(&self, event: Told) {
        self.outbox.send(event);
    }

    fn attach(&self) -> Client {
        let socket = self.control.connect().unwrap();
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(LIMIT)).unwrap();
        socket.send(&Message::hello(Features(Features::LOCAL | Features::PEERS), 8, 8, 0), &[]).unwrap();
        let answer = socket.receive(true).unwrap().unwrap().message;
        assert_eq!(answer.status, Status::OK, "{}", answer.name());
        let Command::Attach(session) = self.command() else { panic!("no session") };
        Client { id: session.id, socket, session: Some(session), requests: 0 }
    }

    /// A client with a region that it has exported.
    fn owner(&self, name: &str) -> (Client, u64, Arc<Region>) {
        let mut owner = self.attach();
        let (_memory, fd) = Region::allocate(4096, Huge::Never).unwrap();
        let question = Message::new(Kind::REGISTER, 1, [4096, Rights::READ_WRITE.bits(), 0, 0, 0, 0, 0, 0]);
        owner.socket.send(&question, &[fd.as_fd()]).unwrap();
        let handle = owner.answered(1).args[0];
        let Command::Grant { granted, .. } = self.command() else { panic!("nothing granted") };
        let Some(Memory::Mapped(region)) = granted.memory else { panic!("not mapped") };
        owner.done(Kind::EXPORT, &[handle, Rights::READ.bits()], name);
        (owner, handle, region)
    }

    /// Another engine that a client has connected to.
    fn peer(&self, client: &mut Client) -> Other {
        let (peers, events) = other();
        let number = client.done(Kind::CONNECT, &[], &peers.endpoint().unwrap().to_string())[0];
        let Command::PeerUp(connected, None) = self.command() else { panic!("no connection") };
        assert_eq!(connected.identity, peers.identity());
        Other { peers, events, number, connected }
    }

    /// A region of a peer that a client has opened.
    fn opened(&self, client: &mut Client, other: &Other) -> (u64, Arc<Remote>) {
        let question = client.ask(Kind::OPEN, &[1, other.number], "table");
        let Command::RemoteOpen { request, seat: asked, .. } = self.command() else { panic!("not opened") };
        assert_eq!(asked, other.seat());
        let remote = remote(other.seat());
        self.tell(Told::RemoteOpened { request, answer: Ok(remote.clone()) });
        let answer = client.answered(question);
        assert_eq!((answer.status, answer.args[1], answer.args[2]), (Status::OK, remote.bytes, 1), "{}", answer.name());
        let Command::Grant { session, handle, granted } = self.command() else { panic!("not granted") };
        assert_eq!((session, u64::from(handle.0), granted.rights), (client.id, answer.args[0], Rights::READ));
        assert!(granted.memory.unwrap().is(&Memory::Remote(remote.clone())));
        (answer.args[0], remote)
    }

    /// The client has gone, and the poller has drained its session.
    fn drained(&self, mut client: Client) {
        drop(client.socket);
        let Command::Detach { session, .. } = self.command() else { panic!("not detached") };
        assert_eq!(session, client.id);
        self.tell(Told::Detached(client.session.take().unwrap(), None));
    }

    fn counters(&self) -> Counters {
        self.stats.read()
    }

    /// What a peer that asks for an export is answered.
    fn asked(&self, name: &str, rights: Rights) -> Result<(Arc<Region>, Rights), (Status, String)> {
        self.tell(Told::PeerAsks { seat: SeatId(9), request: 3, rights, name: name.to_owned() });
        let Command::PeerOpened { seat, request, answer } = self.command() else { panic!("not answered") };
        assert_eq!((seat, request), (SeatId(9), 3));
        answer.map(|PeerExport { region, rights, .. }| (region, rights))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.tell(Told::PollerGone);
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(ended.is_none_or(|ended| ended.is_ok()), "the control thread has failed");
        }
    }
}

impl Client {
    fn ask(&mut self, kind: Kind, args: &[u64], name: &str) -> u64 {
        self.requests += 1;
        let mut words = [0; 8];
        words[..args.len()].copy_from_slice(args);
        let request = 100 + self.requests;
        self.socket.send(&Message::new(kind, request, words).with_name(name), &[]).unwrap();
        request
    }

    fn answered(&self, request: u64) -> Message {
        let answer = self.socket.receive(true).unwrap().expect("an answer").message;
        assert_eq!(answer.request, request, "{}", answer.name());
        answer
    }

    fn done(&mut self, kind: Kind, args: &[u64], name: &str) -> [u64; 8] {
        let request = self.ask(kind, args, name);
        let answer = self.answered(request);
        assert_eq!(answer.status, Status::OK, "{}", answer.name());
        answer.args
    }

    fn refused(&mut self, kind: Kind, args: &[u64], name: &str) -> (Status, String) {
        let request = self.ask(kind, args, name);
        let answer = self.answered(request);
        assert_ne!(answer.status, Status::OK);
        (answer.status, answer.name().to_owned())
    }

    /// Whoever is answered this knows that all that was sent before was read.
    fn is_served(&mut self) {
        assert_eq!(self.refused(Kind::CLOSE, &[u64::from(u32::MAX)], "").0, Status::UNKNOWN_REGION);
    }
}

impl Other {
    fn seat(&self) -> SeatId {
        SeatId(self.connected.epoch)
    }

    fn endpoint(&self) -> String {
        self.peers.endpoint().unwrap().to_string()
    }
}

/// An address of this host that only this process uses: a port of it that was free a moment ago is free now.
fn own_address() -> std::net::SocketAddr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    ([127, 1 + a % 200, b, c], 0).into()
}

fn other() -> (Peers, Events) {
    let config = peer::Config { listen: vec![own_address()], ..peer::Config::new().unwrap() };
    Peers::start(config).unwrap()
}

fn remote(seat: SeatId) -> Arc<Remote> {
    Arc::new(Remote::new(seat, 7, GrantId(8), 12_345, false))
}

/// The next connection that an engine gives out.
fn connected(events: &Events) -> Box<Connected> {
    loop {
        match events.wait(LIMIT) {
            Some(Event::Connected(connected)) => return connected,
            Some(_) => {}
            None => panic!("not connected"),
        }
    }
}

#[test]
fn an_engine_has_one_number_for_all_clients_and_another_has_another() {
    let bench = Bench::new(8);
    let (mut first, mut second) = (bench.attach(), bench.attach());
    let (peer, other) = (bench.peer(&mut first), bench.peer(&mut second));
    assert!(peer.number > 0 && other.number > 0 && peer.number != other.number);
    assert_eq!(second.done(Kind::CONNECT, &[], &peer.endpoint())[0], peer.number);
    assert_eq!(first.done(Kind::CONNECT, &[], &peer.endpoint())[0], peer.number);
    assert!(bench.is_quiet(), "the connection that is there is enough");
    assert_eq!(bench.counters().peers_connected, 2);
}

#[test]
fn what_a_client_opens_at_a_peer_is_its_own_until_it_closes_it_and_nobody_uses_it() {
    let bench = Bench::new(8);
    let mut client = bench.attach();
    let peer = bench.peer(&mut client);
    let question = client.ask(Kind::OPEN, &[3, peer.number], "the table");
    let Command::RemoteOpen { seat, request, name, rights } = bench.command() else { panic!("not opened") };
    assert_eq!((seat, name.as_str(), rights), (peer.seat(), "the table", Rights::READ_WRITE));
    // Meanwhile the session goes on.
    client.is_served();
    bench.tell(Told::RemoteOpened { request, answer: Err((Status::NAME_UNKNOWN, "the table".to_owned())) });
    let answer = client.answered(question);
    assert_eq!((answer.status, answer.name()), (Status::NAME_UNKNOWN, "the table"));

    let (handle, opened) = bench.opened(&mut client, &peer);
    let closing = client.ask(Kind::CLOSE, &[handle], "");
    let Command::Withdraw { session, handle: named, leave_mark: false } = bench.command() else { panic!("not closed") };
    assert_eq!((session, u64::from(named.0)), (client.id, handle));
    client.is_served();
    assert!(bench.is_quiet(), "it may be in use");
    bench.tell(Told::Withdrawn { session, handle: named });
    assert_eq!(client.answered(closing).status, Status::OK);
    let Command::RemoteClose(closed) = bench.command() else { panic!("the owner is not told") };
    assert!(Arc::ptr_eq(&closed, &opened));
    assert!(bench.is_quiet(), "closed twice");
}

#[test]
fn what_nobody_can_have_any_more_is_closed_at_its_owner() {
    let bench = Bench::new(1);
    let mut client = bench.attach();
    let peer = bench.peer(&mut client);
    let begin = |client: &mut Client| {
        let question = client.ask(Kind::OPEN, &[1, peer.number], "table");
        let Command::RemoteOpen { request, .. } = bench.command() else { panic!("not opened") };
        (question, request)
    };
    let closed = |remote: &Arc<Remote>| {
        let Command::RemoteClose(closed) = bench.command() else { panic!("the owner is not told") };
        assert!(Arc::ptr_eq(&closed, remote));
    };
    // Its client has gone before the answer came.
    let mut gone = bench.attach();
    let (_, request) = begin(&mut gone);
    bench.drained(gone);
    let late = remote(peer.seat());
    bench.tell(Told::RemoteOpened { request, answer: Ok(late.clone()) });
    closed(&late);
    // Its client is going.
    let mut going = bench.attach();
    let (_, request) = begin(&mut going);
    drop(going.socket);
    assert!(matches!(bench.command(), Command::Detach { .. }));
    let late = remote(peer.seat());
    bench.tell(Told::RemoteOpened { request, answer: Ok(late.clone()) });
    assert!(matches!(bench.command(), Command::Grant { .. }));
    client.is_served();
    assert!(bench.is_quiet(), "the poller has not drained the session");
    bench.tell(Told::Detached(going.session.take().unwrap(), None));
    closed(&late);
    // The client has as many regions as it may.
    let (_, opened) = bench.opened(&mut client, &peer);
    let (question, request) = begin(&mut client);
    let over = remote(peer.seat());
    bench.tell(Told::RemoteOpened { request, answer: Ok(over.clone()) });
    assert_eq!(client.answered(question).status, Status::LIMIT_EXCEEDED);
    closed(&over);
    // A peer that does not know what a region is.
    let mut other = bench.attach();
    let (question, request) = begin(&mut other);
    let empty = Arc::new(Remote::new(peer.seat(), 1, GrantId(1), 0, false));
    bench.tell(Told::RemoteOpened { request, answer: Ok(empty.clone()) });
    assert_eq!(other.answered(question).status, Status::BAD_MESSAGE);
    closed(&empty);
    // An answer that nobody has asked for.
    let stray = remote(peer.seat());
    bench.tell(Told::RemoteOpened { request, answer: Ok(stray.clone()) });
    closed(&stray);
    // Its client has gone with it.
    bench.drained(client);
    closed(&opened);
    other.is_served();
    assert!(bench.is_quiet());
}

#[test]
fn a_connection_that_is_lost_takes_what_was_opened_on_it_and_nothing_else() {
    let bench = Bench::new(8);
    let (mut first, mut second) = (bench.attach(), bench.attach());
    let (peer, other) = (bench.peer(&mut first), bench.peer(&mut second));
    let (handle, lost) = bench.opened(&mut first, &peer);
    let (_, also_lost) = bench.opened(&mut second, &peer);
    let (_, kept) = bench.opened(&mut first, &other);
    bench.tell(Told::PeerDown { seat: peer.seat(), is_violated: true });
    let withdrawn = [(); 2].map(|()| match bench.command() {
        Command::Withdraw { session, leave_mark: true, .. } => session,
        _ => panic!("a region is not taken away"),
    });
    assert_eq!(HashSet::from(withdrawn), HashSet::from([first.id, second.id]));
    assert!(lost.is_withdrawn() && also_lost.is_withdrawn() && !kept.is_withdrawn());
    let (status, text) = first.refused(Kind::OPEN, &[1, peer.number], "table");
    assert!(status == Status::PEER_UNREACHABLE && text.contains("CONNECT waits"), "{text}");
    bench.opened(&mut first, &other);

    // The mark can be closed; there is nobody to be told.
    let closing = first.ask(Kind::CLOSE, &[handle], "");
    let Command::Withdraw { session, handle: named, .. } = bench.command() else { panic!("not closed") };
    bench.tell(Told::Withdrawn { session, handle: named });
    assert_eq!(first.answered(closing).status, Status::OK);
    first.is_served();
    assert!(bench.is_quiet());

    // Who asks for the engine has it again when it is connected again, by the same number.
    let question = first.ask(Kind::CONNECT, &[], &peer.endpoint());
    first.is_served();
    let Other { peers, events: _events, number, connected } = peer;
    drop(connected);
    let Command::PeerUp(connected, None) = bench.command() else { panic!("not connected again") };
    assert_eq!((connected.identity, first.answered(question).args[0]), (peers.identity(), number));
    bench.opened(&mut first, &Other { peers, events: _events, number, connected });
    assert_eq!((bench.counters().peers_ended, bench.counters().peers_violated), (1, 1));
}

#[test]
fn a_connection_that_takes_the_place_of_another_ends_it() {
    let bench = Bench::new(8);
    let mut client = bench.attach();
    let (peers, events) = other();
    peers.connect(bench.endpoint.clone());
    let Command::PeerUp(old, None) = bench.command() else { panic!("no connection") };
    let number = client.done(Kind::CONNECT, &[], &peers.endpoint().unwrap().to_string())[0];
    // The other engine loses its end, which nobody here has noticed yet, and dials again.
    drop(connected(&events));
    let Command::PeerEnd(ended) = bench.command() else { panic!("the old one stays") };
    assert_eq!(ended, SeatId(old.epoch));
    let Command::PeerUp(connected, None) = bench.command() else { panic!("no other one comes") };
    let peer = Other { peers, events, number, connected };
    assert_eq!(client.done(Kind::CONNECT, &[], &peer.endpoint())[0], peer.number);
    bench.opened(&mut client, &peer);
    // The end of the old one is no end of the new one.
    bench.tell(Told::PeerDown { seat: ended, is_violated: false });
    bench.opened(&mut client, &peer);
}

#[test]
fn an_engine_that_was_restarted_keeps_its_number() {
    let bench = Bench::new(8);
    let mut client = bench.attach();
    let peer = bench.peer(&mut client);
    let (before, endpoint) = (peer.endpoint(), peer.peers.endpoint().unwrap().clone());
    let Other { peers, events, number, connected } = peer;
    drop((peers, events));
    bench.tell(Told::PeerDown { seat: SeatId(connected.epoch), is_violated: false });
    let config = peer::Config { listen: endpoint.addresses().to_vec(), ..peer::Config::new().unwrap() };
    let (peers, events) = Peers::start(config).unwrap();
    drop(connected);
    // Nobody has to ask for it.
    let Command::PeerUp(connected, None) = bench.command() else { panic!("no connection") };
    assert_eq!((connected.identity, connected.dialled), (peers.identity(), Some(endpoint.identity())));
    let peer = Other { peers, events, number, connected };
    bench.opened(&mut client, &peer);
    assert_eq!(client.done(Kind::CONNECT, &[], &before)[0], number);
    assert!(bench.is_quiet(), "the connection that is there is enough");
    // By its new name it is another one, for the same connection.
    let other = client.done(Kind::CONNECT, &[], &peer.endpoint())[0];
    assert_ne!(other, number);
    bench.opened(&mut client, &Other { number: other, ..peer });
}

/// An engine can have been connected from the other side since it was restarted: then nobody dials it by its old name, and who
/// does finds that out.
#[test]
fn an_engine_that_is_connected_by_another_name_is_found_by_its_old_one() {
    let bench = Bench::new(8);
    let mut client = bench.attach();
    let (peers, events) = other();
    peers.connect(bench.endpoint.clone());
    let Command::PeerUp(connected, None) = bench.command() else { panic!("no connection") };
    assert_eq!(connected.role, Role::Responder);
    let endpoint = peers.endpoint().unwrap();
    let old = Endpoint::new(Identity([9; 16]), None, endpoint.addresses()).unwrap();
    let number = client.done(Kind::CONNECT, &[], &old.to_string())[0];
    assert!(bench.is_quiet(), "one connection is enough");
    bench.opened(&mut client, &Other { peers, events, number, connected });
}

/// Such a connection may be put together at that moment: who waits has it when it is.
#[test]
fn who_waits_by_an_old_name_has_the_connection_that_comes_by_the_new_one() {
    let (mut control, _bench) = Bench::parts(8);
    let [old, new, other] = [1, 2, 3].map(|n| Identity([n; 16]));
    let peering = control.peering.as_mut().unwrap();
    let asked = Asked { session: 1, question: Box::new(Message::new(Kind::CONNECT, 1, [0; 8])), since: Instant::now() };
    peering.connecting.push(Connecting { asked, endpoint: old, found: old });
    control.peer_known(old, new);
    control.answer_connecting(other, Some(other));
    assert_eq!(control.peering.as_ref().unwrap().connecting.len(), 1);
    control.answer_connecting(new, None);
    let peering = control.peering.as_ref().unwrap();
    assert!(peering.connecting.is_empty());
    assert_eq!((peering.numbers.get(&old), peering.by_number(1)), (Some(&1), Some(new)));
    assert_eq!((peering.by_number(0), peering.by_number(2)), (None, None));
}

#[test]
fn a_peer_opens_what_a_client_of_this_engine_could_but_for_lent_memory() {
    let bench = Bench::new(8);
    let (_owner, _, region) = bench.owner("table");
    let (found, rights) = bench.asked("table", Rights::READ).unwrap();
    assert!(Arc::ptr_eq(&found, &region));
    assert_eq!(rights, Rights::READ);
    let refusal = |name, rights| bench.asked(name, rights).unwrap_err();
    assert_eq!(refusal("chair", Rights::READ), (Status::NAME_UNKNOWN, "chair".to_owned()));
    assert_eq!(refusal("", Rights::READ).0, Status::NAME_UNKNOWN);
    assert_eq!(refusal("table", Rights::READ_WRITE).0, Status::NO_RIGHT);

    let mut lender = bench.attach();
    lender.done(Kind::STAGE, &[2, 65536], "");
    assert!(matches!(bench.command(), Command::Stage { .. }));
    let handle = lender.done(Kind::LEND, &[4096, 3], "")[0];
    assert!(matches!(bench.command(), Command::Grant { .. }));
    lender.done(Kind::EXPORT, &[handle, 3], "lent");
    let (status, text) = refusal("lent", Rights::READ);
    assert!(status == Status::UNSUPPORTED && text.contains("owner's engine only"), "{text}");
    assert_eq!(bench.counters().peer_opens_refused, 4);
}

#[test]
fn memory_is_given_back_when_peers_have_left_it_as_well() {
    let bench = Bench::new(8);
    let mut witness = bench.attach();
    for peers_first in [true, false] {
        let (mut owner, handle, region) = bench.owner("table");
        let closing = owner.ask(Kind::CLOSE, &[handle], "");
        let Command::Withdraw { session, handle: named, .. } = bench.command() else { panic!("not withdrawn") };
        let Command::PeerWithdraw { region: left, ticket } = bench.command() else { panic!("peers keep it") };
        assert!(Arc::ptr_eq(&left, &region) && region.is_withdrawn());
        assert_eq!(bench.asked("table", Rights::READ).unwrap_err().0, Status::NAME_UNKNOWN);
        bench.tell(Told::PeersLeft { ticket: ticket + 1 });
        let (first, last) = (Told::PeersLeft { ticket }, Told::Withdrawn { session, handle: named });
        let (first, last) = if peers_first { (first, last) } else { (last, first) };
        bench.tell(first);
        bench.asked("table", Rights::READ).unwrap_err();
        owner.is_served();
        bench.tell(last);
        assert_eq!(owner.answered(closing).status, Status::OK);
        bench.drained(owner);
    }
    // So is what a client leaves behind.
    let (owner, _, region) = bench.owner("table");
    bench.drained(owner);
    let Command::PeerWithdraw { region: left, ticket } = bench.command() else { panic!("peers keep it") };
    assert!(Arc::ptr_eq(&left, &region));
    drop(left);
    witness.is_served();
    assert_eq!(Arc::strong_count(&region), 2, "it is unmapped while peers have it");
    bench.tell(Told::PeersLeft { ticket });
    bench.asked("table", Rights::READ).unwrap_err();
    assert_eq!(Arc::strong_count(&region), 1);
    // And memory of the engine's own process.
    let (region, _fd) = Region::allocate(4096, Huge::Never).unwrap();
    let (answer, answered) = mpsc::channel();
    bench.control.send(Request::Export { name: "own".to_owned(), region: region.into(), answer }).unwrap();
    assert_eq!(answered.recv(), Ok(Status::OK));
    bench.asked("own", Rights::READ).unwrap();
    let (answer, answered) = mpsc::channel();
    bench.control.send(Request::Unadopt { name: "own".to_owned(), answer }).unwrap();
    let Command::PeerWithdraw { ticket, .. } = bench.command() else { panic!("peers keep it") };
    bench.asked("own", Rights::READ).unwrap_err();
    assert_eq!(answered.try_recv(), Err(mpsc::TryRecvError::Empty));
    bench.tell(Told::PeersLeft { ticket });
    assert_eq!(answered.recv(), Ok(()));
}

#[test]
fn a_poller_that_is_gone_has_left_all_memory() {
    let bench = Bench::new(8);
    let (region, _fd) = Region::allocate(4096, Huge::Never).unwrap();
    let (answer, answered) = mpsc::channel();
    bench.control.send(Request::Export { name: "own".to_owned(), region: region.into(), answer }).unwrap();
    assert_eq!(answered.recv(), Ok(Status::OK));
    let (answer, answered) = mpsc::channel();
    bench.control.send(Request::Unadopt { name: "own".to_owned(), answer }).unwrap();
    assert!(matches!(bench.command(), Command::PeerWithdraw { .. }));
    // Nobody is attached, and still the control thread waits for the poller.
    bench.control.stop(Duration::ZERO);
    assert!(matches!(bench.command(), Command::Stop { .. }));
    assert_eq!(answered.recv_timeout(Duration::from_millis(20)), Err(mpsc::RecvTimeoutError::Timeout));
    bench.tell(Told::PollerGone);
    assert_eq!(answered.recv(), Ok(()));
}

#[test]
fn an_engine_that_stops_gives_memory_back_only_when_no_peer_touches_it() {
    let bench = Bench::new(8);
    let (region, _fd) = Region::allocate(4096, Huge::Never).unwrap();
    let (answer, answered) = mpsc::channel();
    bench.control.send(Request::Export { name: "own".to_owned(), region: region.into(), answer }).unwrap();
    assert_eq!(answered.recv(), Ok(Status::OK));
    // Nobody is attached, and still the control thread waits for the poller, which has peers perhaps.
    bench.control.stop(Duration::ZERO);
    let Command::Stop { peers: Some(all), .. } = bench.command() else { panic!("nobody says when peers are gone") };
    std::thread::sleep(Duration::from_millis(20));
    let (answer, answered) = mpsc::channel();
    bench.control.send(Request::Unadopt { name: "own".to_owned(), answer }).unwrap();
    let Command::PeerWithdraw { ticket, .. } = bench.command() else { panic!("peers keep it") };
    bench.tell(Told::PeersLeft { ticket: all });
    assert_eq!(answered.recv_timeout(Duration::from_millis(20)), Err(mpsc::RecvTimeoutError::Timeout));
    bench.tell(Told::PeersLeft { ticket });
    assert_eq!(answered.recv(), Ok(()));
}

/// Five seconds, in which a client could wait for as many answers as it may.
#[test]
fn questions_that_wait_for_peers_are_bounded_in_number_and_in_time() {
    let bench = Bench::new(8);
    let (mut first, mut second) = (bench.attach(), bench.attach());
    let peer = bench.peer(&mut first);
    // It takes connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = Endpoint::new(Identity([1; 16]), None, &[silent.local_addr().unwrap()]).unwrap().to_string();
    let since = Instant::now();
    let open = first.ask(Kind::OPEN, &[1, peer.number], "table");
    let Command::RemoteOpen { request, .. } = bench.command() else { panic!("not opened") };
    let waiting: Vec<u64> = (1..WAITING_MAX).map(|_| first.ask(Kind::CONNECT, &[], &endpoint)).collect();
    for (kind, args) in [(Kind::CONNECT, &[][..]), (Kind::OPEN, &[1, peer.number])] {
        let (status, text) = first.refused(kind, args, &endpoint);
        assert!(status == Status::LIMIT_EXCEEDED && text.contains("64 questions"), "{text}");
    }
    let question = second.ask(Kind::CONNECT, &[], &endpoint);
    let refused = |client: &Client, question| {
        let answer = client.answered(question);
        assert_eq!(answer.status, Status::PEER_UNREACHABLE);
        answer.name().to_owned()
    };
    for question in waiting {
        assert!(refused(&first, question).contains("within 5 s"));
    }
    assert!(refused(&first, open).contains("no answer of the peer within 5 s"));
    refused(&second, question);
    assert!(since.elapsed() >= ANSWER_WAIT);
    // What comes too late is closed, and there is room for other questions.
    let late = remote(peer.seat());
    bench.tell(Told::RemoteOpened { request, answer: Ok(late.clone()) });
    let Command::RemoteClose(closed) = bench.command() else { panic!("the owner is not told") };
    assert!(Arc::ptr_eq(&closed, &late));
    bench.opened(&mut first, &peer);
}
