//! An engine that is killed under load and started again: R20, R21.

mod storm;
mod support;

use ring_abi::{Descriptor, Features, Flags, Message, Opcode, Status};
use rustix::event::{PollFd, PollFlags, Timespec};
use scatter_ring::attach::{AttachError, Socket};
use scatter_ring::client::{BatchError, Client, ClientError, PushError, Region, Setup, Ticket};
use scatter_ring::region::Rights;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};
use storm::{Running, by_build, middle_and_longest, private_directory};
use support::Random;

/// How long a call may take after the engine was killed. Half a second is promised to those who never sleep.
const LIMIT: Duration = Duration::from_secs(5);

const BYTES: u64 = 1 << 20;

/// A client with two regions, and what it was doing when the engine was killed.
struct Loaded {
    client: Client,
    from: Region,
    to: Region,
    pattern: u8,
    tickets: Vec<Ticket>,
}

/// Uses a client until a call fails, and says with what. `begun` is called when there is something under way.
type Use = fn(&mut Loaded, begun: &dyn Fn()) -> Status;

/// The ways to use a client in which the end of the engine can come, each with the settings for it.
const USES: [(&str, u32, Duration, Use); 8] = [
    ("waits asleep", 64, Duration::ZERO, |loaded, begun| {
        loaded.transfers(begun, |client, ticket| client.wait(ticket).map(drop))
    }),
    ("waits and spins", 64, Duration::from_secs(3600), |loaded, begun| {
        loaded.transfers(begun, |client, ticket| client.wait(ticket).map(drop))
    }),
    ("looks again and again", 64, Duration::ZERO, |loaded, begun| {
        loaded.transfers(begun, |client, ticket| {
            while client.wait_timeout(ticket, Duration::ZERO)?.is_none() {}
            Ok(())
        })
    }),
    ("pushes a batch that is longer than the ring", 8, Duration::from_micros(50), |loaded, begun| {
        begun();
        loop {
            let mut batch = loaded.client.batch();
            // By quarters, all of them: on a fast machine the batch succeeds before the kill, and is looked at.
            let pushed = (0..1000).try_for_each(|i| {
                let at = i % 4 * (BYTES / 4);
                batch.read(&loaded.from, at, &loaded.to, at, BYTES / 4)
            });
            match pushed.and_then(|()| batch.submit()) {
                Ok(ticket) => loaded.tickets.push(ticket),
                Err(error) => return error.status,
            }
        }
    }),
    ("pushes into a full ring and reaps", 8, Duration::ZERO, |loaded, begun| {
        begun();
        let raw = loaded.raw_transfer();
        loop {
            // SAFETY: the regions stay open, and nobody looks at what is in them.
            match unsafe { loaded.client.push(&raw) } {
                Ok(()) => {}
                Err(PushError::Full) => {
                    let looked = loaded.client.submit().and_then(|()| loaded.client.reap());
                    if let Err(error) = looked {
                        return error.status();
                    }
                }
                Err(PushError::Ended(status)) => return status,
                Err(error) => panic!("{error}"),
            }
        }
    }),
    ("waits in an event loop", 64, Duration::ZERO, |loaded, begun| {
        begun();
        loop {
            let submitted = loaded.submit();
            if let Err(error) = submitted.map_err(|e| e.status).and_then(|()| reap_by_poll(&mut loaded.client)) {
                return error;
            }
        }
    }),
    ("asks", 64, Duration::ZERO, |loaded, begun| {
        begun();
        loop {
            let client = &loaded.client;
            let name = format!("{:p}", client);
            let asked = client.allocate(4096).and_then(|region| {
                client.export(&region, &name, Rights::READ)?;
                client.open(&name, Rights::READ)?;
                client.close(&region)
            });
            if let Err(error) = asked {
                return error.status();
            }
        }
    }),
    ("does nothing, and then waits", 64, Duration::ZERO, |loaded, begun| {
        begun();
        std::thread::sleep(Duration::from_millis(50));
        loop {
            if let Err(error) = loaded.client.wait_any(Some(Duration::from_millis(10))) {
                return error.status();
            }
        }
    }),
];

/// One turn of an event loop.
fn reap_by_poll(client: &mut Client) -> Result<(), Status> {
    if client.arm() {
        let limit = Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 };
        rustix::event::poll(&mut [PollFd::new(client, PollFlags::IN)], Some(&limit)).unwrap();
    }
    client.disarm();
    while client.reap().map_err(|error| error.status())?.is_some() {}
    Ok(())
}

impl Loaded {
    fn attach(path: &Path, sq_capacity: u32, spin: Duration, pattern: u8) -> Loaded {
        let setup = Setup { sq_capacity, cq_capacity: 64, spin, ..Setup::default() };
        let client = Client::attach_with(path, &setup).unwrap();
        let (from, to) = (client.allocate(BYTES).unwrap(), client.allocate(BYTES).unwrap());
        from.write_at(0, &[pattern; BYTES as usize]).unwrap();
        Loaded { client, from, to, pattern, tickets: Vec::new() }
    }

    fn submit(&mut self) -> Result<(), BatchError> {
        let mut batch = self.client.batch();
        batch.read(&self.from, 0, &self.to, 0, BYTES)?;
        let ticket = batch.submit()?;
        self.tickets.push(ticket);
        Ok(())
    }

    fn raw_transfer(&self) -> Descriptor {
        Descriptor {
            opcode: Opcode::READ.0,
            flags: Flags::LAST,
            len: BYTES as u32,
            count: 1,
            src_region: self.from.handle().0,
            dst_region: self.to.handle().0,
            ..Descriptor::ZERO
        }
    }

    /// Four batches under way at all times; each success is looked at.
    fn transfers(&mut self, begun: &dyn Fn(), wait: fn(&mut Client, &Ticket) -> Result<(), BatchError>) -> Status {
        loop {
            while self.tickets.len() < 4 {
                if let Err(error) = self.submit() {
                    return error.status;
                }
            }
            begun();
            let waited = wait(&mut self.client, &self.tickets[0]);
            if let Err(error) = waited {
                return error.status;
            }
            self.tickets.remove(0);
            self.check_success();
        }
    }

    /// All of a batch that succeeded is in place. (Another one may write the same bytes there now, so it is looked at
    /// through the pointer.)
    fn check_success(&self) {
        for offset in [0, BYTES / 2, BYTES - 1] {
            // SAFETY: inside the region, which is mapped; only the engine writes there, and no reference is made.
            let byte = unsafe { self.to.as_ptr().unwrap().add(offset as usize).read_volatile() };
            assert_eq!(byte, self.pattern, "a success that is not true, at {offset}");
        }
    }

    /// After the end: every batch gets an answer, and every call an error.
    fn check_dead(&mut self) {
        let (mut done, mut lost) = (0, 0);
        for ticket in &self.tickets {
            match self.client.wait(ticket) {
                Ok(_) => done += 1,
                Err(error) => {
                    assert_eq!((error.status, error.reusable), (Status::ENGINE_LOST, false), "{error}");
                    lost += 1;
                }
            }
        }
        if done > 0 {
            self.check_success();
        }
        assert!(lost > 0 || self.tickets.len() == done);
        while let Ok(Some(_)) = self.client.reap() {}
        let errors = [
            self.client.submit().unwrap_err().status(),
            self.client.reap().unwrap_err().status(),
            self.client.allocate(4096).unwrap_err().status(),
            self.client.batch().submit().unwrap_err().status,
            self.client.open("anything", Rights::READ).unwrap_err().status(),
        ];
        assert_eq!(errors, [Status::ENGINE_LOST; 5]);
    }
}

/// What a client's thread says.
enum Said {
    Begun,
    /// A call has failed since then.
    Lost {
        what: &'static str,
        status: Status,
        at: Instant,
        loaded: Box<Loaded>,
    },
}

fn start_client(which: usize, path: PathBuf, pattern: u8, say: Sender<Said>) {
    let (what, sq_capacity, spin, go) = USES[which];
    std::thread::spawn(move || {
        let mut loaded = Box::new(Loaded::attach(&path, sq_capacity, spin, pattern));
        let has_begun = std::cell::Cell::new(false);
        let begun = || {
            if !has_begun.replace(true) {
                // Whoever does not listen any more has failed.
                let _ = say.send(Said::Begun);
            }
        };
        let status = go(&mut loaded, &begun);
        let _ = say.send(Said::Lost { what, status, at: Instant::now(), loaded });
    });
}

fn next(said: &Receiver<Said>, what: &str) -> Said {
    said.recv_timeout(LIMIT + LIMIT).unwrap_or_else(|_| panic!("a client hangs, or has panicked: {what}"))
}

/// A client of the new engine: nothing of the old one means anything to it.
fn check_new(path: &Path, old: &mut Loaded) {
    let mut new = Loaded::attach(path, 64, Duration::ZERO, 0x33);
    for ticket in &old.tickets {
        assert_eq!(new.client.wait(ticket).unwrap_err().status, Status::NOT_FOUND);
    }
    let mut batch = new.client.batch();
    let refused = batch.read(&old.from, 0, &new.to, 0, 64).unwrap_err();
    assert_eq!(refused.status, Status::UNKNOWN_REGION);
    drop(batch);
    assert!(matches!(new.client.close(&old.to), Err(ClientError::Foreign)));
    new.submit().unwrap();
    let ticket = new.tickets.pop().unwrap();
    assert_eq!(new.client.wait(&ticket).unwrap().bytes, BYTES);
    new.check_success();
}

/// The number that tells one ring from all others.
fn epoch(path: &Path) -> u64 {
    let address = rustix::net::SocketAddrUnix::new(path).unwrap();
    let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, rustix::net::SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    let socket = Socket::new(socket);
    socket.send(&Message::hello(Features(Features::LOCAL), 8, 8, 0), &[]).unwrap();
    socket.receive(true).unwrap().unwrap().message.args[3]
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// 50 times in release.
#[test]
fn an_engine_that_is_killed_under_load_is_noticed_by_everybody_and_can_be_started_again() {
    let directory = private_directory();
    let path = directory.path().join("socket");
    let shared_memory = names_in(Path::new("/dev/shm"));
    let mut random = Random(8);
    let mut times = vec![Vec::new(); USES.len()];
    let mut epochs = HashSet::new();
    let mut old: Vec<Box<Loaded>> = Vec::new();
    let kills = by_build(50, 4);
    for kill in 0..kills {
        let mut engine = Running::engine(&path, &["--workers", "1"]);
        old.drain(..).for_each(|mut old| check_new(&path, &mut old));
        assert!(epochs.insert(epoch(&path)), "an epoch came twice");
        let (say, said) = mpsc::channel();
        (0..USES.len()).for_each(|which| start_client(which, path.clone(), kill as u8 | 1, say.clone()));
        (0..USES.len()).for_each(|_| assert!(matches!(next(&said, "at the start"), Said::Begun)));
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        let killed = Instant::now();
        engine.kill();
        for _ in 0..USES.len() {
            let Said::Lost { what, status, at, mut loaded } = next(&said, "after the engine was killed") else {
                panic!()
            };
            let time = at.saturating_duration_since(killed);
            assert_eq!(status, Status::ENGINE_LOST, "{what}");
            assert!(time < LIMIT, "{what}: noticed after {time:?}");
            times[USES.iter().position(|(name, ..)| *name == what).unwrap()].push(time);
            loaded.check_dead();
            old.push(loaded);
        }
        let error = Client::attach(&path).unwrap_err();
        assert!(matches!(error, ClientError::Attach(AttachError::NobodyListens { .. })), "{error}");
    }
    let mut engine = Running::engine(&path, &["--workers", "1"]);
    assert_eq!(names_in(directory.path()), ["socket"]);
    engine.signal(rustix::process::Signal::TERM);
    engine.ended_well();
    assert_eq!(names_in(directory.path()), [""; 0]);
    assert_eq!(names_in(Path::new("/dev/shm")), shared_memory);
    for ((what, ..), times) in USES.iter().zip(times) {
        let (middle, longest) = middle_and_longest(times);
        println!("{kills} kills: a client that {what} knows after {middle:?} (p50), {longest:?} (longest)");
    }
}

/// Programs that attach just when the engine dies, or is not there yet.
#[test]
fn whoever_attaches_while_the_engine_dies_gets_a_session_or_an_error() {
    let directory = private_directory();
    let path = directory.path().join("socket");
    let (say, said) = mpsc::channel();
    let socket = path.clone();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    std::thread::spawn(move || {
        let (mut attached, mut refused) = (0u32, 0u32);
        while !stopped.load(std::sync::atomic::Ordering::Acquire) {
            let start = Instant::now();
            match Client::attach(&socket) {
                Ok(client) => {
                    attached += 1;
                    // Dead already, or alive: a definite answer either way.
                    match client.allocate(4096) {
                        Ok(_) => {}
                        Err(error) => assert_eq!(error.status(), Status::ENGINE_LOST, "{error}"),
                    }
                }
                Err(error) => {
                    refused += 1;
                    assert_eq!(error.status(), Status::ENGINE_LOST, "{error}");
                }
            }
            assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
        }
        let _ = say.send((attached, refused));
    });
    for _ in 0..by_build(30, 4) {
        let mut engine = Running::engine(&path, &["--workers", "0"]);
        std::thread::sleep(Duration::from_millis(5));
        engine.kill();
    }
    stop.store(true, std::sync::atomic::Ordering::Release);
    let (attached, refused) = said.recv_timeout(LIMIT + LIMIT).expect("a client hangs, or has panicked");
    assert!(attached > 0 && refused > 0, "{attached} attached, {refused} not");
}
