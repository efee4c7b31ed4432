//! Clients that are killed at every step of the protocol, or stopped and let go on: R18, R19.

mod storm;
mod support;

use ring_abi::{Descriptor, Features, Flags, Kind, Message, Opcode, Status};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::Signal;
use scatter_ring::attach::Socket;
use scatter_ring::client::{Client, Region, Setup};
use scatter_ring::region::{self, Huge, Rights};
use scatter_ring::sync::Ordering::Relaxed;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use storm::{Footprint, MemoryGroup, Running, by_build, middle_and_longest, private_directory, socket_of_this_client};
use support::hostile::{NOP, eventually, range};
use support::{Random, RawClient, not_run};

/// Names the point to the process that is to be killed there.
const POINT: &str = "SCATTER_RING_TEST_POINT";

/// Memory of a client that has transfers under way when it is killed, and its half, the length of each.
const LARGE_BYTES: u64 = 32 << 20;
const HALF: u32 = (LARGE_BYTES / 2) as u32;

/// What the parent exports, and what a killed client does.
const OF_THE_OTHER: &str = "of the other";
const OF_THE_VICTIM: &str = "of the victim";
const EXPORT_BYTES: u64 = 4 << 20;

/// What a client has when it is killed: dropped only if it is not.
type Kept = Box<dyn std::any::Any>;

/// How a client gets to the point where it dies.
type Way = fn(&Path) -> Kept;

/// Every step of the protocol at which a client can die.
const POINTS: [(&str, Way); 19] = [
    ("connected", |path| Box::new(connect(path))),
    ("half a message sent", |path| {
        let socket = connect(path);
        rustix::net::send(&socket, &[1; 17], rustix::net::SendFlags::empty()).unwrap();
        Box::new(socket)
    }),
    ("HELLO sent", |path| {
        let socket = connect(path);
        socket.send(&Message::hello(Features(Features::LOCAL), 64, 64, 0), &[]).unwrap();
        Box::new(socket)
    }),
    ("HELLO answered and nothing mapped", |path| {
        let socket = connect(path);
        socket.send(&Message::hello(Features(Features::LOCAL), 64, 64, 0), &[]).unwrap();
        let answer = socket.receive(true).unwrap();
        assert_eq!(answer.as_ref().unwrap().message.status, Status::OK);
        Box::new((socket, answer))
    }),
    ("REGISTER sent and not answered", |path| {
        let mut victim = Victim::new(path, 4096, 64);
        let (_memory, fd) = region::Region::allocate(1 << 20, Huge::Never).unwrap();
        victim.client.send(Kind::REGISTER, &[1 << 20, 3], "", &[fd.as_fd()]);
        Box::new(victim)
    }),
    ("registered", |path| Box::new(Victim::new(path, 1 << 20, 64))),
    ("exported, and another one's transfers read it", |path| {
        let mut victim = Victim::new(path, EXPORT_BYTES, 64);
        victim.memory.write_at(0, &[PATTERN; EXPORT_BYTES as usize]).unwrap();
        let answer = victim.client.ask(Kind::EXPORT, &[victim.handle.into(), 1], OF_THE_VICTIM, &[]);
        assert_eq!(answer.status, Status::OK, "{}", answer.name());
        Box::new(victim)
    }),
    ("another one's memory opened, and read by transfers", |path| {
        let mut victim = Victim::new(path, EXPORT_BYTES, 64);
        let opened = victim.client.ask(Kind::OPEN, &[1], OF_THE_OTHER, &[]).args[0] as u32;
        victim.push(16, &range((opened, 0), (victim.handle, 0), EXPORT_BYTES as u32));
        victim.client.publish();
        Box::new(victim)
    }),
    ("descriptors pushed and not published", |path| {
        let mut victim = Victim::new(path, 1 << 20, 64);
        victim.push(50, &range((victim.handle, 0), (victim.handle, 1 << 19), 4096));
        Box::new(victim)
    }),
    ("descriptors published", |path| {
        let mut victim = Victim::new(path, 1 << 20, 64);
        victim.push(60, &range((victim.handle, 0), (victim.handle, 1 << 19), 4096));
        victim.client.publish();
        Box::new(victim)
    }),
    ("engine asleep and its doorbell not rung", |path| {
        let mut victim = Victim::new(path, 1 << 20, 64);
        victim.push(10, &range((victim.handle, 0), (victim.handle, 1 << 19), 4096));
        eventually("the engine sleeps", || victim.client.areas.engine_sleep.load(Relaxed) != 0);
        victim.client.areas.sq.publish();
        Box::new(victim)
    }),
    ("half a batch", |path| {
        let mut victim = Victim::new(path, 1 << 20, 64);
        let row = range((victim.handle, 0), (victim.handle, 1 << 19), 4096);
        victim.push(30, &Descriptor { flags: 0, ..row });
        victim.client.publish();
        Box::new(victim)
    }),
    ("BEGIN with a deadline", |path| {
        let mut victim = Victim::new(path, 1 << 20, 64);
        let begin = Descriptor { opcode: Opcode::BEGIN.0, dst_offset: 3_600_000_000_000, ..Descriptor::ZERO };
        victim.push(1, &begin);
        victim.client.publish();
        Box::new(victim)
    }),
    ("EXTENDED without its extension", |path| {
        let mut victim = Victim::new(path, 1 << 20, 64);
        let row = range((victim.handle, 0), (victim.handle, 1 << 19), 64);
        victim.push(1, &Descriptor { flags: Flags::LAST | Flags::EXTENDED, ..row });
        victim.client.publish();
        Box::new(victim)
    }),
    ("a fenced batch waits behind transfers", |path| {
        let mut victim = Victim::with_transfers(path);
        victim.push(1, &Descriptor { flags: Flags::LAST | Flags::FENCE, ..victim.transfer() });
        victim.client.publish();
        Box::new(victim)
    }),
    ("transfers in flight on workers", |path| Box::new(Victim::with_transfers(path))),
    ("spans not reaped and the completion ring full", |path| {
        let mut victim = Victim::new(path, 4096, 16);
        victim.push(64, &NOP);
        victim.client.publish();
        eventually("it is full", || victim.client.areas.cq.available().unwrap() >= 13);
        Box::new(victim)
    }),
    ("CLOSE sent and not answered", |path| {
        let mut victim = Victim::with_transfers(path);
        victim.client.send(Kind::CLOSE, &[victim.handle.into()], "", &[]);
        Box::new(victim)
    }),
    ("CANCEL sent and not answered", |path| {
        let mut victim = Victim::with_transfers(path);
        victim.client.send(Kind::CANCEL, &[0], "", &[]);
        Box::new(victim)
    }),
];

/// A client that will be killed, with a region of its own.
struct Victim {
    client: RawClient,
    memory: region::Region,
    handle: u32,
}

const PATTERN: u8 = 0x5A;

impl Victim {
    fn new(path: &Path, bytes: u64, cq_capacity: u32) -> Victim {
        let mut client = RawClient::attach(connect(path), 64, cq_capacity, 0);
        let (memory, handle) = client.memory(bytes, Rights::READ_WRITE);
        Victim { client, memory, handle }
    }

    /// With transfers under way that last longer than it takes to kill it.
    fn with_transfers(path: &Path) -> Victim {
        let mut victim = Victim::new(path, LARGE_BYTES, 256);
        victim.push(40, &victim.transfer());
        victim.client.publish();
        assert!(victim.client.areas.cq.available().unwrap() < 20, "they are done already");
        victim
    }

    fn transfer(&self) -> Descriptor {
        range((self.handle, 0), (self.handle, HALF.into()), HALF)
    }

    fn push(&mut self, times: usize, d: &Descriptor) {
        (0..times).for_each(|_| assert!(self.client.try_push(&d.to_entry())));
    }
}

fn connect(path: &Path) -> Socket {
    let address = rustix::net::SocketAddrUnix::new(path).unwrap();
    let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
    let socket: OwnedFd = rustix::net::socket_with(family, kind, rustix::net::SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    Socket::new(socket)
}

#[test]
#[ignore = "is run by others, as a process of its own that is killed"]
fn a_client_that_stops_at_a_point() {
    let (Some(path), Ok(point)) = (socket_of_this_client(), std::env::var(POINT)) else { return };
    let (_, go) = POINTS.iter().find(|(name, _)| *name == point).expect("a point");
    let _kept = go(&path);
    println!("at the point");
    loop {
        std::thread::park();
    }
}

/// The client that is served and verified all the time.
struct Other {
    client: Client,
    from: Region,
    to: Region,
    random: Random,
}

impl Other {
    fn new(path: &Path) -> Other {
        let client = Client::attach(path).unwrap();
        let (from, to) = (client.allocate(EXPORT_BYTES).unwrap(), client.allocate(EXPORT_BYTES).unwrap());
        client.export(&from, OF_THE_OTHER, Rights::READ).unwrap();
        Other { client, from, to, random: Random(1) }
    }

    fn is_served(&mut self) {
        let offset = self.random.below(EXPORT_BYTES - 4096);
        let bytes: Vec<u8> = (0..4096).map(|_| self.random.next() as u8).collect();
        self.from.write_at(offset, &bytes).unwrap();
        assert_eq!(self.client.read(&self.from, offset, &self.to, 0, 4096).unwrap().bytes, 4096);
        let mut got = vec![0; 4096];
        self.to.read_at(0, &mut got).unwrap();
        assert_eq!(got, bytes);
    }

    /// Reads the victim's export, with transfers that are under way when it dies; `kill` is called in the middle.
    fn reads_while(&mut self, kill: impl FnOnce()) {
        let opened = self.client.open(OF_THE_VICTIM, Rights::READ).unwrap();
        self.to.write_at(0, &[0; EXPORT_BYTES as usize]).unwrap();
        let tickets: Vec<_> = (0..8)
            .map(|_| {
                let mut batch = self.client.batch();
                batch.read(&opened, 0, &self.to, 0, EXPORT_BYTES).unwrap();
                batch.submit().unwrap()
            })
            .collect();
        kill();
        let outcomes: Vec<_> = tickets.iter().map(|ticket| self.client.wait(ticket)).collect();
        for error in outcomes.iter().filter_map(|outcome| outcome.err()) {
            assert_eq!(error.status, Status::REGION_GONE, "{error}");
        }
        let mut got = vec![0; EXPORT_BYTES as usize];
        self.to.read_at(0, &mut got).unwrap();
        let whole = outcomes.iter().any(|outcome| outcome.is_ok());
        assert!(got.iter().all(|byte| *byte == PATTERN || !whole && *byte == 0), "bytes from elsewhere");
    }
}

/// At least one of each point in debug, some 200 in release.
#[test]
fn a_client_that_is_killed_at_any_step_leaves_nothing_behind_and_disturbs_nobody() {
    let directory = private_directory();
    let path = directory.path().join("socket");
    let engine = Running::engine(&path, &["--workers", "2"]);
    let mut other = Other::new(&path);
    let mut times = Vec::new();
    let mut random = Random(5);
    let mut before = None;
    // The first round brings the allocator to its size.
    for round in 0..=by_build(11, 1) {
        for (point, _) in POINTS {
            let baseline = Footprint::of(engine.pid());
            let mut victim = Running::client("a_client_that_stops_at_a_point", &path, &[(POINT, point)]);
            victim.line("at the point");
            (0..random.below(5)).for_each(|_| other.is_served());
            if point.starts_with("exported") {
                other.reads_while(|| victim.kill());
            } else {
                victim.kill();
            }
            other.is_served();
            let time = storm::wait_for_footprint(engine.pid(), before.as_ref().unwrap_or(&baseline));
            assert!(time < Duration::from_secs(2), "{point}: noticed after {time:?}");
            times.push(time);
            other.is_served();
        }
        if round == 0 {
            before = Some(Footprint::of(engine.pid()));
        }
    }
    Footprint::of(engine.pid()).assert_no_more_than(&before.unwrap());
    let (kills, (middle, longest)) = (times.len(), middle_and_longest(times));
    println!("{kills} kills, everything freed after {middle:?} (p50), {longest:?} (longest)");
}

/// Names the file that makes the client a member of a group with little memory.
const GROUP: &str = "SCATTER_RING_TEST_GROUP";

#[test]
#[ignore = "is run by others, as a process of its own that the kernel kills"]
fn a_client_that_takes_more_memory_than_it_may() {
    let (Some(path), Ok(group)) = (socket_of_this_client(), std::env::var(GROUP)) else { return };
    std::fs::write(group, "0").unwrap();
    let mut client = Client::attach(&path).unwrap();
    let mut all = Vec::new();
    // The last is being allocated when the kernel has enough of it; transfers between the others are under way.
    for i in 0..64 {
        all.push(client.allocate(4 << 20).unwrap());
        let mut batch = client.batch();
        batch.read(&all[i / 2], 0, &all[i], 0, 4 << 20).unwrap();
        batch.submit().unwrap();
        println!("has {i}");
    }
    println!("has all");
}

/// Who allocates memory pays for it: what a client registers is the client's, and not the engine's.
#[test]
fn a_client_that_takes_more_memory_than_it_may_dies_alone() {
    let Some(group) = MemoryGroup::new(64 << 20) else {
        return not_run("a memory cgroup cannot be made here (root, and a writable cgroup hierarchy)");
    };
    let directory = private_directory();
    let path = directory.path().join("socket");
    let engine = Running::engine(&path, &["--workers", "1"]);
    let mut other = Other::new(&path);
    let before = Footprint::of(engine.pid());
    for _ in 0..3 {
        let members = group.members();
        let settings = [(GROUP, members.to_str().unwrap())];
        let mut victim = Running::client("a_client_that_takes_more_memory_than_it_may", &path, &settings);
        victim.line("has 3");
        (0..20).for_each(|_| other.is_served());
        assert_eq!(victim.killed_by(), Some(libc::SIGKILL));
        storm::wait_for_footprint(engine.pid(), &before);
        other.is_served();
    }
}

/// Seconds for which the stopped client is stopped; without it a fraction of one.
const STOP_SECONDS: &str = "SCATTER_RING_STOP_SECONDS";

/// What the stopped client exports and reads.
const STOPPED_BYTES: u64 = 1 << 20;

#[test]
#[ignore = "is run by others, as a process of its own that is stopped"]
fn a_client_that_is_stopped() {
    let Some(path) = socket_of_this_client() else { return };
    let mut client = Client::attach_with(&path, &Setup { cq_capacity: 16, ..Setup::default() }).unwrap();
    let mine = client.allocate(STOPPED_BYTES).unwrap();
    mine.write_at(0, &[PATTERN; STOPPED_BYTES as usize]).unwrap();
    client.export(&mine, OF_THE_VICTIM, Rights::READ).unwrap();
    let to = client.allocate(STOPPED_BYTES).unwrap();
    let mut random = Random(9);
    loop {
        let offset = random.below(STOPPED_BYTES / 2);
        to.write_at(offset, &[0; 1000]).unwrap();
        let tickets = [0, 250, 500, 750].map(|part| {
            let mut batch = client.batch();
            batch.read(&mine, part, &to, offset + part, 250).unwrap();
            batch.submit().unwrap()
        });
        tickets.iter().for_each(|ticket| assert_eq!(client.wait(ticket).unwrap().bytes, 250));
        let mut got = [0; 1000];
        to.read_at(offset, &mut got).unwrap();
        assert_eq!(got, [PATTERN; 1000]);
        if random.one_in(100) {
            println!("a round done at {}", now_ms());
        }
    }
}

/// The same in all processes.
fn now_ms() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()
}

/// Waits until the client has done something from now on. (What it has said before may still be in the pipe.)
fn goes_on(victim: &mut Running) {
    let now = now_ms();
    while victim.line("a round done at ").parse::<u128>().unwrap() <= now {}
}

/// A client that is stopped is alive. Set SCATTER_RING_STOP_SECONDS=30 for a stop that is longer than any patience.
#[test]
fn a_stopped_client_keeps_all_that_it_has_and_goes_on_where_it_was() {
    let seconds = std::env::var(STOP_SECONDS).map_or(0.3, |s| s.parse().expect("a number of seconds"));
    let directory = private_directory();
    let path = directory.path().join("socket");
    let engine = Running::engine(&path, &["--workers", "1"]);
    let mut client = Client::attach(&path).unwrap();
    let to = client.allocate(STOPPED_BYTES).unwrap();
    let mut victim = Running::client("a_client_that_is_stopped", &path, &[]);
    let mut random = Random(2);
    for _ in 0..by_build(10, 3) {
        // At another point of its round each time.
        goes_on(&mut victim);
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        victim.signal(Signal::STOP);
        storm::wait_until_stopped(victim.pid());
        let before = Footprint::of(engine.pid());
        let stop = Instant::now();
        while stop.elapsed() < Duration::from_secs_f64(seconds) {
            to.write_at(0, &[0; STOPPED_BYTES as usize]).unwrap();
            let opened = client.open(OF_THE_VICTIM, Rights::READ).unwrap();
            client.read(&opened, 0, &to, 0, STOPPED_BYTES).unwrap();
            client.close(&opened).unwrap();
            let mut got = vec![0; STOPPED_BYTES as usize];
            to.read_at(0, &mut got).unwrap();
            assert!(got.iter().all(|byte| *byte == PATTERN), "what a stopped client exports is not what it was");
            std::thread::sleep(Duration::from_millis(20));
        }
        storm::wait_for_footprint(engine.pid(), &before);
        victim.signal(Signal::CONT);
        goes_on(&mut victim);
    }
}
