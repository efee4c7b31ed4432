//! What a client that stalls, or never has enough, takes from others that use the same peer: R11, R24, R35.

mod proxied;
mod support;

use proxied::Effect::{Plain, Stall};
use proxied::Which::All;
use proxied::{Proxy, Way};
use ring_abi::{Descriptor, Kind, Span, SpanFlags, Status};
use scatter_ring::engine::{Config, Endpoint, Engine, Limits, PeerSettings, RunningEngine};
use scatter_ring::region::{Region, Rights};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use support::RawClient;
use support::hostile::{alone, range};

const TABLE_BYTES: u64 = 8 << 20;
const NEAR_BYTES: u64 = 8 << 20;
/// Parts of batches that one connection carries at once.
const BATCHES: u32 = 16;

fn peers() -> PeerSettings {
    PeerSettings { listen: vec!["127.0.0.1:0".parse().unwrap()], ..PeerSettings::default() }
}

fn start(limits: Limits) -> RunningEngine {
    Engine::new(&Config { workers: 1, peers: Some(peers()), limits, ..Config::default() }).unwrap().start().unwrap()
}

/// An engine whose client exports a table.
struct Owner {
    client: RawClient,
    handle: u32,
    _table: Region,
    endpoint: Endpoint,
    _engine: RunningEngine,
}

impl Owner {
    fn new() -> Owner {
        let engine = start(Limits::default());
        let mut client = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
        let (table, handle) = client.memory(TABLE_BYTES, Rights::READ_WRITE);
        client.ask(Kind::EXPORT, &[handle.into(), Rights::READ_WRITE.bits()], "table", &[]);
        Owner { client, handle, _table: table, endpoint: engine.endpoint().unwrap(), _engine: engine }
    }

    fn behind(&self, proxy: &Proxy) -> Endpoint {
        Endpoint::new(self.endpoint.identity(), None, &[proxy.address()]).unwrap()
    }
}

/// A client that has the table of an owner, and memory of its own.
struct User {
    client: RawClient,
    _near: Region,
    near: u32,
    table: u32,
}

impl User {
    fn new(engine: &RunningEngine, endpoint: &Endpoint) -> User {
        let mut client = RawClient::attach(engine.connect().unwrap(), 1024, 1024, 0);
        let number = client.ask(Kind::CONNECT, &[], &endpoint.to_string(), &[]).args[0];
        let opened = client.ask(Kind::OPEN, &[Rights::READ_WRITE.bits(), number], "table", &[]);
        assert_eq!(opened.status, Status::OK, "{}", opened.name());
        let (near_memory, near) = client.memory(NEAR_BYTES, Rights::READ_WRITE);
        User { client, _near: near_memory, near, table: opened.args[0] as u32 }
    }

    fn read(&self, at: u64, len: u32) -> Descriptor {
        range((self.table, at), (self.near, at), len)
    }

    /// A batch that goes on, but for its LAST.
    fn unfinished(&self) -> Descriptor {
        Descriptor { flags: 0, ..self.read(0, 264) }
    }

    #[track_caller]
    fn wait_within(&mut self, time: Duration) -> Span {
        let start = Instant::now();
        loop {
            if let Some(span) = self.client.reap() {
                return span;
            }
            assert!(start.elapsed() < time, "no span after {time:?}; stopped: {:?}", self.client.stopped());
            std::thread::yield_now();
        }
    }
}

#[test]
fn clients_that_stall_in_the_middle_of_batches_keep_nobody_from_their_peer() {
    let _alone = alone();
    let (owner, engine) = (Owner::new(), start(Limits::default()));
    let mut stalled: Vec<User> = (0..BATCHES + 4).map(|_| User::new(&engine, &owner.endpoint)).collect();
    for user in &mut stalled {
        user.client.submit(&user.unfinished());
    }
    // All of them are taken, and decided on.
    std::thread::sleep(Duration::from_millis(50));
    let mut user = User::new(&engine, &owner.endpoint);
    user.client.submit(&user.read(0, 4096));
    assert_eq!(user.wait_within(Duration::from_secs(2)).status(), Status::OK);
    for user in &mut stalled {
        user.client.submit(&user.read(264, 264));
        let span = user.wait_within(Duration::from_secs(2));
        assert_eq!((span.status(), span.count, span.bytes), (Status::OK, 2, 528));
    }
}

#[test]
fn memory_that_a_stalled_batch_moves_to_or_from_a_peer_is_given_back_to_whoever_closes_it() {
    let _alone = alone();
    let (mut owner, engine) = (Owner::new(), start(Limits::default()));
    let mut other = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    let (_memory, handle) = other.memory(NEAR_BYTES, Rights::READ_WRITE);
    other.ask(Kind::EXPORT, &[handle.into(), Rights::READ_WRITE.bits()], "buffer", &[]);
    let mut user = User::new(&engine, &owner.endpoint);
    let opened = user.client.ask(Kind::OPEN, &[Rights::READ_WRITE.bits(), 0], "buffer", &[]);
    let d = Descriptor { dst_region: opened.args[0] as u32, ..user.unfinished() };
    user.client.submit(&d);
    std::thread::sleep(Duration::from_millis(20));
    let since = Instant::now();
    let limit = Some(Duration::from_secs(2));
    for socket in [&other.socket, &user.client.socket, &owner.client.socket] {
        rustix::net::sockopt::set_socket_timeout(socket.as_fd(), rustix::net::sockopt::Timeout::Recv, limit).unwrap();
    }
    assert_eq!(other.ask(Kind::CLOSE, &[handle.into()], "", &[]).status, Status::OK);
    // Likewise what the stalled client itself has opened, and the other end.
    let table = user.table;
    assert_eq!(user.client.ask(Kind::CLOSE, &[table.into()], "", &[]).status, Status::OK);
    let handle = owner.handle;
    assert_eq!(owner.client.ask(Kind::CLOSE, &[handle.into()], "", &[]).status, Status::OK);
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
}

#[test]
fn only_what_is_held_counts_as_held() {
    let _alone = alone();
    let owner = Owner::new();
    let proxy = Proxy::new(owner.endpoint.addresses()[0]);
    let engine = start(Limits { held_bytes: 1 << 20, ..Limits::default() });
    let mut user = User::new(&engine, &owner.behind(&proxy));
    proxy.apply(All, Way::Back, Stall(Duration::from_secs(1)));
    user.client.submit(&user.read(0, 4 << 20));
    user.client.submit(&user.read(4 << 20, 4096));
    std::thread::sleep(Duration::from_millis(20));
    let cancelled = user.client.ask(Kind::CANCEL, &[1], "", &[]);
    assert_eq!(cancelled.status, Status::OK);
    let spans: Vec<Span> = (0..3).map(|_| user.wait_within(Duration::from_secs(4))).collect();
    let (held, rest): (Vec<Span>, Vec<Span>) = spans.into_iter().partition(|span| span.first == 1);
    assert_eq!(held[0].status(), Status::CANCELLED);
    assert!(held[0].flags & SpanFlags::HELD != 0 && held[1].flags & SpanFlags::RELEASED != 0);
    assert_eq!((rest[0].status(), rest[0].bytes), (Status::OK, 4 << 20));
    proxy.apply_both(All, Plain);
}

/// Processor time of all threads of this process so far, in user mode and in the kernel.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists, and the kernel writes one `timespec`.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn who_waits_for_a_slow_peer_takes_no_time() {
    let _alone = alone();
    let owner = Owner::new();
    let proxy = Proxy::new(owner.endpoint.addresses()[0]);
    let engine = start(Limits::default());
    for (complete, unfinished) in [(BATCHES, true), (BATCHES, false), (200, false), (0, true)] {
        let mut user = User::new(&engine, &owner.behind(&proxy));
        proxy.apply(All, Way::Back, Stall(Duration::from_millis(900)));
        for i in 0..complete {
            user.client.submit(&user.read(u64::from(i) * 4096, 264));
        }
        if unfinished {
            user.client.submit(&user.unfinished());
        }
        std::thread::sleep(Duration::from_millis(150));
        let (cpu, wall) = (cpu_time(), Instant::now());
        std::thread::sleep(Duration::from_millis(400));
        let busy = (cpu_time() - cpu).as_secs_f64() / wall.elapsed().as_secs_f64();
        assert!(busy < 0.2, "{complete} batches, and one without its end: {unfinished}: busy {busy}");
        if unfinished {
            user.client.submit(&user.read(264, 264));
        }
        let mut left = complete + u32::from(unfinished);
        while left > 0 {
            assert_eq!(user.wait_within(Duration::from_secs(4)).status(), Status::OK);
            left -= 1;
        }
    }
}

#[test]
fn a_client_that_never_has_enough_does_not_keep_another_one_from_its_peer() {
    let _alone = alone();
    let (owner, engine) = (Owner::new(), start(Limits::default()));
    let mut flooder = User::new(&engine, &owner.endpoint);
    let mut user = User::new(&engine, &owner.endpoint);
    let mut under_way = 0;
    let mut most = 0;
    for probe in 0..30 {
        user.client.submit(&user.read(probe * 4096, 64));
        let mut others = 0;
        let since = Instant::now();
        loop {
            // Before each of the other's: this thread may not have run for a while, in which both have got theirs.
            if let Some(span) = user.client.reap() {
                assert_eq!(span.status(), Status::OK);
                break;
            }
            if let Some(span) = flooder.client.reap() {
                assert_eq!(span.status(), Status::OK);
                (under_way, others) = (under_way - 1, others + 1);
                continue;
            }
            while under_way < 256 && flooder.client.try_push(&flooder.read(0, 64 << 10).to_entry()) {
                under_way += 1;
            }
            flooder.client.publish();
            assert!(since.elapsed() < Duration::from_secs(3), "{others} batches of another client in the meantime");
        }
        most = most.max(others);
    }
    // The 256 under way when it asks may come first, and a turn of those after: a wait that ends, whatever follows them.
    assert!(most < 2 * 256, "{most} batches of another client came first");
}

/// A batch that goes to two owners has one outcome when one of them dies, and what it uses of the other is free again.
#[test]
fn a_batch_at_two_owners_of_which_one_dies_fails_once_and_the_other_goes_on() {
    let _alone = alone();
    let (first, second, engine) = (Owner::new(), Owner::new(), start(Limits::default()));
    let proxy = Proxy::new(first.endpoint.addresses()[0]);
    let mut user = User::new(&engine, &first.behind(&proxy));
    let number = user.client.ask(Kind::CONNECT, &[], &second.endpoint.to_string(), &[]).args[0];
    let other = user.client.ask(Kind::OPEN, &[Rights::READ.bits(), number], "table", &[]).args[0] as u32;
    proxy.apply(All, Way::Back, Stall(Duration::from_millis(300)));
    for i in 0..100 {
        let d = user.read(i * 4096, 4096);
        let src_region = if i % 2 == 0 { d.src_region } else { other };
        let flags = if i == 99 { d.flags } else { 0 };
        assert!(user.client.try_push(&Descriptor { src_region, flags, ..d }.to_entry()));
    }
    user.client.publish();
    std::thread::sleep(Duration::from_millis(50));
    proxy.apply(All, Way::There, proxied::Effect::Reset);
    let (mut covered, mut failed) = (0, 0);
    while covered < 100 {
        let span = user.wait_within(Duration::from_secs(4));
        assert_eq!(span.first, covered);
        covered += u64::from(span.count);
        failed += u32::from(span.status() == Status::REGION_GONE);
        assert!(span.status() != Status::OK || span.flags & SpanFlags::BATCH_DONE == 0);
    }
    assert_eq!(failed, 1);
    user.client.submit(&Descriptor { src_region: other, ..user.read(0, 4096) });
    assert_eq!(user.wait_within(Duration::from_secs(2)).status(), Status::OK);
    assert_eq!(user.client.ask(Kind::CLOSE, &[other.into()], "", &[]).status, Status::OK);
}
