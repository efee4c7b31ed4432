//! Engines' pollers without engines: connections over real sockets, driven by one thread in turns, which move real bytes.

mod faults;
mod hostile;
mod jobs;
mod moves;
#[path = "../../../../tests/seeded/mod.rs"]
mod seeded;

use super::peer_tests::{bell, region};
use super::{News, PartId, Remote, RemoteConfig, Remotes, SeatId, Times};
use crate::engine::mail::{self, Event, Inbox, Letter, PeerExport};
use crate::link::Bell;
use crate::peer::Connected;
use crate::region::{Region, Rights};
use crate::ring::Sleeper;
use jobs::Job;
use ring_abi::Status;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A poller's connections, and what its control thread and its sessions would know.
struct Node {
    remotes: Remotes,
    inbox: Inbox,
    epoll: OwnedFd,
    bell: Bell,
    sleeper: Sleeper,
    is_awake: bool,
    exports: HashMap<String, (Arc<Region>, Rights)>,
    opened: HashMap<u64, Result<Arc<Remote>, (Status, String)>>,
    /// Connections that are gone.
    down: Vec<SeatId>,
    news: Vec<News>,
    jobs: Vec<Job>,
    /// Openings so far.
    requests: u64,
}

/// All nodes, and a clock that begins with them.
struct World {
    nodes: Vec<Node>,
    started: Instant,
    /// The nodes' ends of sockets, by the epoch of their connection: to be cut.
    sockets: HashMap<u64, Vec<TcpStream>>,
    epochs: u64,
    /// How much later it is, by the nodes' clock, after every turn.
    step_ns: u64,
    turns: u64,
}

/// A connection, by the seat of either end.
#[derive(Clone, Copy, Debug)]
struct Pair {
    requester: (usize, SeatId),
    owner: (usize, SeatId),
}

fn config() -> RemoteConfig {
    RemoteConfig {
        connections: 4,
        slot_bytes: 4096,
        slots: 4,
        owner_slots: 4,
        dead_after_ns: 10_000_000_000,
        spin: Duration::from_micros(20),
    }
}

impl Node {
    fn new(config: &RemoteConfig) -> Node {
        let (inbox, outbox) = mail::inbox().unwrap();
        let bell = bell();
        Node {
            remotes: Remotes::new(config, bell.clone(), outbox),
            bell,
            sleeper: Sleeper::default(),
            is_awake: true,
            inbox,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).unwrap(),
            exports: HashMap::new(),
            opened: HashMap::new(),
            down: Vec::new(),
            news: Vec::new(),
            jobs: Vec::new(),
            requests: 0,
        }
    }

    /// One turn of everything.
    fn turn(&mut self, now_ns: u64) -> bool {
        let did = self.remotes.poll(now_ns);
        while let Ok(letter) = self.inbox.letters.try_recv() {
            let Letter::Event(event) = letter else { continue };
            match event {
                Event::PeerAsks { seat, request, rights, name } => {
                    let found = self.exports.get(&name).filter(|(_, granted)| granted.covers(rights));
                    let none = || (Status::NAME_UNKNOWN, format!("no {name}"));
                    let answer = found.map(|(region, _)| PeerExport {
                        region: region.clone(),
                        rights,
                        exporter: 0,
                        exposed: None,
                    });
                    let answer = answer.ok_or_else(none);
                    self.remotes.opened(seat, request, answer);
                }
                Event::RemoteOpened { request, answer } => {
                    assert!(self.opened.insert(request, answer).is_none(), "answered twice");
                }
                Event::PeerDown { seat, .. } => self.down.push(seat),
                _ => {}
            }
        }
        while let Some(news) = self.remotes.next_news() {
            self.hear(news);
        }
        let mut jobs = std::mem::take(&mut self.jobs);
        jobs.iter_mut().for_each(|job| job.feed(&mut self.remotes));
        self.jobs = jobs;
        did
    }

    /// Announces a sleep, as the poller does. True: there is something to do instead.
    fn lies_down(&mut self) -> bool {
        self.sleeper.prepare(&self.bell.sleep);
        self.remotes.watch(&self.epoll);
        let has_work = self.remotes.has_work();
        if has_work {
            self.sleeper.awake(&self.bell.sleep);
        }
        has_work
    }

    fn gets_up(&mut self) {
        self.sleeper.awake(&self.bell.sleep);
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 8];
        let _ = epoll::wait(&self.epoll, &mut events[..], Some(&Timespec::default()));
        let _ = rustix::io::read(&*self.bell.bell, &mut [0; 8]);
    }

    fn hear(&mut self, news: News) {
        self.news.push(news);
        let part = news.about();
        let job = self.jobs.iter_mut().find(|job| job.part == part).expect("news of a part that there is");
        job.hear(news);
    }

    fn job(&self, part: PartId) -> &Job {
        self.jobs.iter().find(|job| job.part == part).unwrap()
    }

    /// Nothing is left of anything that was carried.
    #[track_caller]
    fn check_idle(&self) {
        let chunks = super::line::chunks(&self.remotes.config) as usize;
        assert_eq!(self.remotes.parcels.free(), chunks * self.remotes.seats.len(), "parcels");
        assert_eq!(self.remotes.serving.orders_out(), 0, "orders");
        assert_eq!(self.remotes.serving.leased(), 0, "leases");
        for seat in &self.remotes.seats {
            // Its landing slots, and the regions that are open.
            assert_eq!(seat.line.grants().len(), 1 + seat.opened.count(), "grants");
            seat.asking.check_idle();
        }
    }
}

impl World {
    fn new(configs: &[RemoteConfig]) -> World {
        let nodes = configs.iter().map(Node::new).collect();
        World { nodes, started: Instant::now(), sockets: HashMap::new(), epochs: 0, step_ns: 0, turns: 0 }
    }

    /// Connects two nodes by so many lanes.
    fn connect(&mut self, requester: usize, owner: usize, lanes: usize) -> Pair {
        let (here, there) = (0..lanes).map(|_| sockets()).unzip();
        Pair { requester: (requester, self.attach(requester, here)), owner: (owner, self.attach(owner, there)) }
    }

    fn attach(&mut self, node: usize, sockets: Vec<TcpStream>) -> SeatId {
        self.epochs += 1;
        let copies = sockets.iter().map(|socket| socket.try_clone().unwrap()).collect();
        self.sockets.insert(self.epochs, copies);
        let connected = Connected::of_sockets(self.epochs, sockets.into_iter().map(OwnedFd::from).collect());
        let Node { remotes, epoll, .. } = &mut self.nodes[node];
        remotes.attach(Box::new(connected), None, epoll);
        SeatId(self.epochs)
    }

    fn turn(&mut self) -> bool {
        self.turns += 1;
        let now_ns = self.now_ns();
        self.nodes.iter_mut().fold(false, |did, node| node.turn(now_ns) | did)
    }

    /// One turn of every node that is awake. One that has nothing to do sleeps until its bell rings or bytes come; when all
    /// sleep, that is waited for, and it panics if it takes too long.
    fn turn_or_sleep(&mut self) {
        let now_ns = self.now_ns();
        for node in self.nodes.iter_mut().filter(|node| node.is_awake) {
            if !node.turn(now_ns) {
                node.is_awake = node.lies_down();
            }
        }
        if self.nodes.iter().any(|node| node.is_awake) {
            return;
        }
        let timers = self.nodes.iter().map(|node| node.remotes.next_timer_ns());
        let wait_ns = timers.min().unwrap().saturating_sub(now_ns).min(5_000_000_000);
        let wait = Timespec { tv_sec: (wait_ns / 1_000_000_000) as i64, tv_nsec: (wait_ns % 1_000_000_000) as i64 };
        let fds = self.nodes.iter().flat_map(|node| [node.epoll.as_fd(), node.bell.bell.as_fd()]);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let woken = rustix::event::poll(&mut fds, Some(&wait)).unwrap();
        assert!(woken > 0 || wait_ns < 5_000_000_000, "nobody wakes the pollers");
        let rung: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (node, rung) in self.nodes.iter_mut().zip(rung.chunks(2)) {
            node.is_awake = woken == 0 || rung.contains(&true);
            if node.is_awake {
                node.gets_up();
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64 + self.turns * self.step_ns
    }

    /// Repeats until it is true, for half a minute at most.
    #[track_caller]
    fn until(&mut self, mut done: impl FnMut(&mut World) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < Duration::from_secs(30), "it hangs");
            if !self.turn() {
                std::thread::yield_now();
            }
        }
    }

    /// Exports a region at the owner and opens it at the requester.
    #[track_caller]
    fn open(&mut self, pair: Pair, region: &Arc<Region>, rights: Rights) -> Arc<Remote> {
        let (owner, requester) = (pair.owner.0, pair.requester.0);
        let name = format!("{:p}", Arc::as_ptr(region));
        self.nodes[owner].exports.insert(name.clone(), (region.clone(), Rights::READ_WRITE));
        let node = &mut self.nodes[requester];
        node.requests += 1;
        let request = node.requests;
        node.remotes.open(pair.requester.1, request, &name, rights);
        self.until(|world| world.nodes[requester].opened.contains_key(&request));
        self.nodes[owner].exports.remove(&name);
        self.nodes[requester].opened.remove(&request).unwrap().unwrap()
    }

    /// All jobs are finished.
    #[track_caller]
    fn finish(&mut self) {
        self.until(|world| world.nodes.iter().all(|node| node.jobs.iter().all(|job| job.finished == 1)));
    }

    /// Turns until the nodes have nothing to say to each other any more, and then looks whether anything is left.
    #[track_caller]
    fn check_idle(&mut self) {
        let mut quiet = 0;
        self.until(|world| {
            let did = world.turn();
            quiet = if did { 0 } else { quiet + 1 };
            quiet > 50 && world.nodes.iter().all(|node| node.remotes.serving.orders_out() == 0)
        });
        self.nodes.iter().for_each(Node::check_idle);
    }

    /// Cuts a connection at one of its lanes.
    fn cut(&mut self, seat: SeatId, lane: usize) {
        let sockets = self.let_go(seat);
        let _ = sockets[lane % sockets.len()].shutdown(std::net::Shutdown::Both);
    }

    /// The test's copies of the sockets, which keep them open as long as they are there.
    fn let_go(&mut self, seat: SeatId) -> Vec<TcpStream> {
        self.sockets.remove(&seat.0).unwrap()
    }
}

/// As the peer thread gives them out.
fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let b = listener.accept().unwrap().0;
    for socket in [&a, &b] {
        socket.set_nonblocking(true).unwrap();
        socket.set_nodelay(true).unwrap();
        // So that much is more than they hold.
        rustix::net::sockopt::set_socket_send_buffer_size(socket, 64 << 10).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(socket, 64 << 10).unwrap();
    }
    (a, b)
}

fn contents(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.bytes() as usize];
    region.read_at(0, &mut bytes).unwrap();
    bytes
}
