//! Engines and clients that are killed or stopped, and a wire that is cut, while RDMA devices move bytes: every batch has one
//! outcome, in time; memory that is released is left alone; nobody else notices; and nothing is left behind (R18, R19,
//! R24 to R27, R32). These tests need devices, as the guest has them (`ci/guest/run.sh`): `rxe0`, `rxe1`, `siw0`, `siw1`.

mod peered;
mod seeded;
mod storm;

use peered::{
    Bystander, Caller, END_MAX, Job, LONG, NEAR_BYTES, Owner, TABLE_BYTES, UnderWay, ZONE_BYTES, attach, start,
    table_bytes,
};
use ring_abi::{Flags, Status};
use rustix::process::Signal;
use scatter_ring::client::{Client, Region};
use scatter_ring::engine::{Endpoint, PeerSettings, PeerTransport, RunningEngine};
use scatter_ring::region::Rights;
use seeded::{Random, cases};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use storm::{Footprint, Running, private_directory, socket_of_this_client, wait_until_stopped};

/// The two devices of each kind are on the two ends of a wire.
const PAIRS: [[&str; 2]; 2] = [["rxe0", "rxe1"], ["siw0", "siw1"]];

/// Zones of a sink that is made anew for each kill.
const SINK_ZONES: u64 = 2;
/// Kills of each kind on each pair of devices, unless the environment says another number.
const KILLS: u64 = 2;
const KILLS_OF: &str = "SCATTER_RING_KILLS";
/// What is put into memory as soon as it is released.
const RELEASED: u8 = 0x5A;
/// What is late comes within this time, by far.
const LATE: Duration = Duration::from_millis(80);

fn settings(device: &str) -> PeerSettings {
    let device = Some(device.to_owned());
    // Both are on this host, and would map each other's memory.
    PeerSettings { transport: PeerTransport::Verbs, device, map_memory: false, slots: 4, ..peered::settings() }
}

fn on_each(test: impl Fn([&'static str; 2])) {
    for pair in PAIRS {
        let started = Instant::now();
        test(pair);
        println!("{pair:?}: {:.1} s", started.elapsed().as_secs_f32());
    }
}

fn kills() -> u64 {
    std::env::var(KILLS_OF).map_or(KILLS, |kills| kills.parse().expect("a number"))
}

/// What a batch is about that somebody does not survive: the same bytes by other means.
const KINDS: [(&str, bool); 6] = [
    ("large pieces directly", false),
    ("rows directly", false),
    ("rows gathered", false),
    ("large pieces directly", true),
    ("rows directly", true),
    ("rows gathered", true),
];

fn job((what, writes): (&str, bool), random: &mut Random) -> Job {
    match what {
        "rows gathered" => Job::gathered(random, writes),
        "rows directly" => Job::gathered(random, writes).by(Flags::DIRECT),
        _ => Job::large(random, writes).by(Flags::DIRECT),
    }
}

/// `scatter-ring serve`.
fn serve(place: &Path, device: &str, listen: &str) -> (Running, Endpoint) {
    let config = place.join("config.toml");
    std::fs::write(&config, "[peers]\nslots = 4\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_scatter-ring"));
    command.arg("serve").arg("--config").arg(config).arg("--socket").arg(place.join("socket"));
    command.args(["--workers", "1", "--log-level", "error", "--peer-transport", "verbs", "--peer-device", device]);
    command.args(["--peer-no-mapping", "--peer-congestion", "reno", "--peer-listen", listen]);
    let mut engine = Running::start(&mut command);
    engine.line("serving at ");
    let endpoint = engine.line("peers connect to ").parse().unwrap();
    (engine, endpoint)
}

/// An owner whose engine is a process that can be killed. Its client is in this one, and stays.
struct Victim {
    engine: Running,
    endpoint: Endpoint,
    _client: Client,
    _table: Region,
    sink: Region,
}

impl Victim {
    fn start(place: &Path, device: &str, listen: &str) -> Victim {
        let (engine, endpoint) = serve(place, device, listen);
        let client = Client::attach(place.join("socket")).unwrap();
        let (table, sink) = (client.allocate(TABLE_BYTES).unwrap(), client.allocate(SINK_ZONES * ZONE_BYTES).unwrap());
        table.write_at(0, table_bytes()).unwrap();
        client.export(&table, "table", Rights::READ).unwrap();
        client.export(&sink, "sink", Rights::READ_WRITE).unwrap();
        Victim { engine, endpoint, _client: client, _table: table, sink }
    }
}

/// A requester's engine of this process, a client of it, and an owner whose engine is killed and comes back.
struct Scene {
    place: tempfile::TempDir,
    devices: [&'static str; 2],
    victim: Option<Victim>,
    caller: Caller,
    engine: RunningEngine,
    /// Where the victim listens, always the same.
    address: String,
    /// What this process and its device have when the victim is dead.
    before: Option<(Footprint, Resources)>,
}

impl Scene {
    fn new(devices: [&'static str; 2]) -> Scene {
        let place = private_directory();
        let engine = start(settings(devices[1]));
        let victim = Victim::start(place.path(), devices[0], "127.0.0.1:0");
        let address = victim.endpoint.addresses()[0].to_string();
        let caller = Caller::of(attach(&engine), &victim.endpoint, None, 0..SINK_ZONES);
        Scene { place, devices, victim: Some(victim), caller, engine, address, before: None }
    }

    fn victim(&mut self) -> &mut Victim {
        let Scene { place, devices, victim, caller, address, .. } = self;
        let victim = victim.get_or_insert_with(|| Victim::start(place.path(), devices[0], address));
        caller.sink = Some(victim.sink.clone());
        victim
    }

    fn bury(&mut self) {
        self.caller.sink = None;
        self.victim.take().into_iter().for_each(|mut victim| victim.engine.kill());
    }

    /// With the victim gone, this process and its device have what they had when it was gone before.
    fn assert_nothing_is_left(&mut self) {
        self.bury();
        let device = self.devices[1];
        let before = self.before.get_or_insert_with(|| settled(device, None));
        settled(device, Some(before));
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:?}: {:?}", self.devices, self.engine.counters());
        }
    }
}

/// What this process and a device have, as soon as that is no more than before. The first time: what they have at least
/// during a second, because a bystander's landings come and go.
fn settled(device: &str, before: Option<&(Footprint, Resources)>) -> (Footprint, Resources) {
    let started = Instant::now();
    let look = || (Footprint::of(std::process::id()), resources(device));
    let Some(before) = before else {
        let mut least = look();
        while started.elapsed() < Duration::from_secs(1) {
            let (footprint, counts) = look();
            least.0 = footprint;
            least.1.iter_mut().zip(counts).for_each(|(least, count)| least.1 = least.1.min(count.1));
            std::thread::sleep(Duration::from_millis(20));
        }
        return least;
    };
    loop {
        let now = look();
        let is_no_more = now.1.iter().zip(&before.1).all(|(now, before)| now.0 == before.0 && now.1 <= before.1);
        // A few mappings are the allocator's.
        if is_no_more && now.0.is_back_at(&before.0) && now.0.maps <= before.0.maps + 8 {
            return now;
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{now:?}, before {before:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How many of each kind.
type Resources = Vec<(String, u32)>;

/// What the kernel has for a device: protection domains, queues, queue pairs, registrations.
fn resources(device: &str) -> Resources {
    let output = Command::new("rdma").args(["resource", "show"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| line.split_once(&format!(" {device}: ")));
    let words: Vec<&str> = line.unwrap_or_else(|| panic!("no {device} in: {text}")).1.split_whitespace().collect();
    words.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].parse().unwrap())).collect()
}

/// The longest of what was measured.
#[derive(Default)]
struct Worst {
    outcome: Duration,
    release: Duration,
    done: u32,
    failed: u32,
}

/// How long a batch of a kind takes when nobody dies: it is one that is right.
fn time_of(caller: &mut Caller, job: &Job) -> Duration {
    let batch = caller.submit(job.clone(), None);
    caller.outcome(&batch).unwrap();
    let lasts = batch.since.elapsed();
    caller.release(&batch);
    caller.check(&batch, true);
    lasts
}

/// Any moment of it, or one after its end: the next one of a kind may be faster.
fn wait_for_some_of(lasts: Duration, random: &mut Random) {
    let until = Instant::now() + Duration::from_nanos(random.below(lasts.as_nanos() as u64));
    // Sleeping takes too long for this.
    while Instant::now() < until {
        std::thread::yield_now();
    }
}

/// Its owner was killed or stopped: it has one outcome, which is true, and its memory is left alone once it is released.
#[track_caller]
fn ends_well(caller: &mut Caller, batch: &UnderWay, since: Instant, worst: &mut Worst) {
    let outcome = caller.outcome(batch);
    worst.outcome = worst.outcome.max(since.elapsed());
    assert!(since.elapsed() < END_MAX, "an outcome after {:?}", since.elapsed());
    caller.release(batch);
    worst.release = worst.release.max(since.elapsed());
    caller.check(batch, outcome.is_ok());
    match outcome {
        Ok(_) => worst.done += 1,
        Err(error) => {
            assert_eq!(error.status, Status::REGION_GONE, "{error}");
            worst.failed += 1;
        }
    }
    caller.near.write_at(0, &[RELEASED; NEAR_BYTES as usize]).unwrap();
}

#[track_caller]
fn assert_intact(region: &Region, bytes: u64) {
    let got = peered::contents(region, 0, bytes);
    let wrong = got.iter().filter(|byte| **byte != RELEASED).count();
    assert_eq!(wrong, 0, "bytes were written after the memory was released");
}

/// Connections whose device has never given everything back.
fn report(devices: [&str; 2], what: &str, worst: &Worst, engine: &RunningEngine) {
    let Worst { outcome, release, done, failed } = worst;
    let (outcome, release, stuck) = (outcome.as_millis(), release.as_millis(), engine.counters().peers_stuck);
    println!(
        "{devices:?} {what}: {done} done, {failed} failed; outcome {outcome} ms, release {release} ms at most; \
         {stuck} stuck"
    );
}

#[test]
#[ignore = "needs RDMA devices"]
fn an_owner_killed_at_any_moment_of_a_batch_is_noticed_and_its_requester_loses_nothing() {
    on_each(|devices| {
        let mut scene = Scene::new(devices);
        let other = Owner::new(settings(devices[0]));
        let bystander = Bystander::start(&scene.engine, &other);
        for kind in KINDS {
            let mut worst = Worst::default();
            cases(kills(), |random| {
                scene.victim();
                scene.caller.open();
                let job = job(kind, random);
                let lasts = time_of(&mut scene.caller, &job);
                let batch = scene.caller.submit(job, None);
                wait_for_some_of(lasts, random);
                scene.victim().engine.signal(Signal::KILL);
                ends_well(&mut scene.caller, &batch, Instant::now(), &mut worst);
                scene.bury();
                std::thread::sleep(LATE);
                assert_intact(&scene.caller.near, NEAR_BYTES);
            });
            report(devices, &format!("{kind:?}"), &worst, &scene.engine);
            scene.assert_nothing_is_left();
        }
        println!("{} batches of a bystander", bystander.stop());
        assert_eq!(scene.engine.counters().peers_stuck, 0);
    });
}

#[test]
#[ignore = "needs RDMA devices"]
fn an_owner_killed_while_it_is_met_or_opened_or_memory_is_registered_is_met_when_it_is_back() {
    on_each(|devices| {
        let mut scene = Scene::new(devices);
        let other = Owner::new(settings(devices[0]));
        let bystander = Bystander::start(&scene.engine, &other);
        let started = Instant::now();
        scene.caller.open();
        let lasts = started.elapsed();
        let (mut worst, mut met) = (Duration::ZERO, 0);
        let mut round = 0;
        cases((3 * kills()).div_ceil(2), |random| {
            scene.bury();
            scene.victim();
            round += 1;
            let registers = round % 3 == 0;
            if registers {
                scene.caller.open();
            }
            let Scene { caller, victim, .. } = &mut scene;
            let took = std::thread::scope(|scope| {
                let caller = &mut *caller;
                let work = scope.spawn(move || {
                    let done = if registers { register(caller) } else { caller.try_open().is_ok() };
                    (done, Instant::now())
                });
                wait_for_some_of(lasts, random);
                let killed = Instant::now();
                victim.as_ref().unwrap().engine.signal(Signal::KILL);
                let (done, ended) = work.join().unwrap();
                met += u32::from(done);
                ended.saturating_duration_since(killed)
            });
            worst = worst.max(took);
            // Clients are answered after 5 s.
            assert!(took < Duration::from_secs(6), "{took:?}");
            scene.assert_nothing_is_left();
            scene.victim();
            let since = Instant::now();
            scene.caller.open();
            assert!(since.elapsed() < LONG / 3, "{:?}", since.elapsed());
            scene.caller.run(Job::gathered(random, random.clone().once_in(2))).unwrap();
        });
        let stuck = scene.engine.counters().peers_stuck;
        println!(
            "{devices:?} while it is met ({lasts:.0?}): {met} met, an end after {worst:.0?} at most; {stuck} stuck"
        );
        println!("{} batches of a bystander", bystander.stop());
        assert_eq!(scene.engine.counters().peers_stuck, 0);
    });
}

/// Memory that takes a while to register.
fn register(caller: &Caller) -> bool {
    let region = caller.client.allocate(32 << 20).unwrap();
    region.write_at(0, &[1; 4096]).unwrap();
    caller.client.close(&region).unwrap();
    true
}

#[test]
#[ignore = "needs RDMA devices"]
fn a_requester_killed_at_any_moment_of_a_batch_leaves_the_owners_memory_alone() {
    on_each(|devices| {
        let place = private_directory();
        let mut owner = Owner::new(settings(devices[0]));
        let third = start(settings(devices[1]));
        let bystander = Bystander::reading(&third, &owner.endpoint);
        owner.client.close(&owner.sink).unwrap();
        let mut before = None;
        for kind in KINDS {
            let mut worst = Worst::default();
            cases(kills().div_ceil(2), |random| {
                owner.sink = owner.client.allocate(SINK_ZONES * ZONE_BYTES).unwrap();
                owner.client.export(&owner.sink, "sink", Rights::READ_WRITE).unwrap();
                let (mut engine, _) = serve(place.path(), devices[1], "127.0.0.1:0");
                let client = Client::attach(place.path().join("socket")).unwrap();
                let mut caller = Caller::of(client, &owner.endpoint, Some(owner.sink.clone()), 0..SINK_ZONES);
                caller.open();
                let job = job(kind, random);
                let lasts = time_of(&mut caller, &job);
                let (ended, batch) = (owner.engine.counters().peers_ended, caller.submit(job, None));
                wait_for_some_of(lasts, random);
                engine.signal(Signal::KILL);
                let killed = Instant::now();
                let outcome = caller.outcome(&batch);
                if random.once_in(2) {
                    while owner.engine.counters().peers_ended == ended {
                        assert!(killed.elapsed() < END_MAX, "the owner does not notice it");
                        std::thread::yield_now();
                    }
                    worst.outcome = worst.outcome.max(killed.elapsed());
                }
                // Returns when no peer reaches it any more.
                owner.client.close(&owner.sink).unwrap();
                worst.release = worst.release.max(killed.elapsed());
                assert!(killed.elapsed() < END_MAX, "{:?}", killed.elapsed());
                if let Ok(outcome) = &outcome {
                    caller.check(&batch, true);
                    assert!(outcome.bytes > 0);
                }
                owner.sink.write_at(0, &[RELEASED; (SINK_ZONES * ZONE_BYTES) as usize]).unwrap();
                std::thread::sleep(LATE);
                assert_intact(&owner.sink, SINK_ZONES * ZONE_BYTES);
                match outcome {
                    Ok(_) => worst.done += 1,
                    Err(error) => {
                        assert_eq!(error.status, Status::ENGINE_LOST, "{error}");
                        worst.failed += 1;
                    }
                }
                engine.kill();
            });
            report(devices, &format!("{kind:?} of who is killed"), &worst, &owner.engine);
            settled(devices[0], Some(before.get_or_insert_with(|| settled(devices[0], None))));
        }
        println!("{} batches of a bystander", bystander.stop());
        assert_eq!(owner.engine.counters().peers_stuck, 0);
    });
}

#[test]
#[ignore = "needs RDMA devices"]
fn an_owner_that_is_stopped_is_given_up_and_what_it_does_later_goes_nowhere() {
    on_each(|devices| {
        let mut scene = Scene::new(devices);
        let other = Owner::new(settings(devices[0]));
        let bystander = Bystander::start(&scene.engine, &other);
        scene.victim();
        for kind in [KINDS[2], KINDS[3]] {
            let mut worst = Worst::default();
            cases(kills().div_ceil(2), |random| {
                scene.caller.open();
                let job = job(kind, random);
                let lasts = time_of(&mut scene.caller, &job);
                let batch = scene.caller.submit(job, None);
                wait_for_some_of(lasts / 4, random);
                let victim = scene.victim();
                victim.engine.signal(Signal::STOP);
                let stopped = Instant::now();
                wait_until_stopped(victim.engine.pid());
                ends_well(&mut scene.caller, &batch, stopped, &mut worst);
                scene.victim().engine.signal(Signal::CONT);
                std::thread::sleep(2 * LATE);
                assert_intact(&scene.caller.near, NEAR_BYTES);
            });
            report(devices, &format!("{kind:?} of who is stopped"), &worst, &scene.engine);
        }
        println!("{} batches of a bystander", bystander.stop());
        assert_eq!(scene.engine.counters().peers_stuck, 0);
    });
}

/// The wire between two devices, cut in both directions.
struct CutWire([&'static str; 2]);

impl CutWire {
    fn new(devices: [&'static str; 2]) -> CutWire {
        match devices {
            ["rxe0", "rxe1"] => {
                devices
                    .iter()
                    .for_each(|device| tool("tc", &format!("qdisc add dev {device}-net root netem loss 100%")));
            }
            // Connecting without an answer, siw waits in the kernel for as long as TCP does. Without a route it does not.
            _ => tool("ip", "rule add pref 0 to 10.78.0.0/24 blackhole"),
        }
        CutWire(devices)
    }
}

impl Drop for CutWire {
    fn drop(&mut self) {
        match self.0 {
            ["rxe0", "rxe1"] => {
                self.0.iter().for_each(|device| tool("tc", &format!("qdisc del dev {device}-net root")));
            }
            _ => tool("ip", "rule del pref 0 to 10.78.0.0/24"),
        }
    }
}

fn tool(name: &str, args: &str) {
    let status = Command::new(name).args(args.split(' ')).status().unwrap();
    assert!(status.success() || std::thread::panicking(), "{name} {args}");
}

/// The sockets of the connection go by loopback, and stay as they are.
#[test]
#[ignore = "needs RDMA devices"]
fn a_wire_that_is_cut_fails_what_is_under_way_and_is_used_again_when_it_is_whole() {
    on_each(|devices| {
        let owner = Owner::new(settings(devices[0]));
        let engine = start(settings(devices[1]));
        let mut caller = Caller::new(&engine, &owner, &owner.endpoint);
        for kind in [KINDS[0], KINDS[4]] {
            let mut worst = Worst::default();
            cases(kills().div_ceil(2), |random| {
                caller.open();
                let cutter = std::thread::spawn(move || (CutWire::new(devices), Instant::now()));
                let mut last = UNCUT_MAX;
                let failed = worst.failed;
                while worst.failed == failed {
                    let batch = caller.submit(job(kind, random), None);
                    last = last.checked_sub(1).expect("batches go on without a wire");
                    // Nobody can say at which moment it was cut.
                    ends_well(&mut caller, &batch, Instant::now(), &mut worst);
                }
                let (wire, cut) = cutter.join().unwrap();
                if kind == KINDS[0] {
                    let error = caller.try_open().unwrap_err();
                    assert_eq!(error.status(), Status::PEER_UNREACHABLE, "{error}");
                }
                assert!(cut.elapsed() < LONG);
                drop(wire);
                std::thread::sleep(LATE);
                assert_intact(&caller.near, NEAR_BYTES);
            });
            report(devices, &format!("{kind:?} when the wire is cut"), &worst, &engine);
        }
        caller.open();
        caller.run(Job::large(&mut Random::from_seed(1), true)).unwrap();
        assert_eq!((engine.counters().peers_stuck, owner.engine.counters().peers_stuck), (0, 0));
    });
}

/// Batches that end while a wire is being cut.
const UNCUT_MAX: u32 = 50;

#[test]
#[ignore = "needs RDMA devices"]
fn engines_whose_wire_is_cut_go_on_over_tcp_if_they_may() {
    on_each(|devices| {
        let auto = |device| PeerSettings { transport: PeerTransport::Auto, ..settings(device) };
        let owner = Owner::new(auto(devices[0]));
        let engine = start(auto(devices[1]));
        let mut caller = Caller::new(&engine, &owner, &owner.endpoint);
        let mut random = Random::from_seed(3);
        caller.run(Job::large(&mut random, false)).unwrap();
        let _wire = CutWire::new(devices);
        let batch = caller.submit(Job::large(&mut random, false), None);
        let mut worst = Worst::default();
        ends_well(&mut caller, &batch, Instant::now(), &mut worst);
        assert_eq!(worst.failed, 1);
        let started = Instant::now();
        caller.open();
        println!("{devices:?}: over TCP after {:.0?}", started.elapsed());
        caller.run(Job::gathered(&mut random, true)).unwrap();
        let counters = engine.counters();
        assert_eq!((counters.peers_by_verbs, counters.peers_by_tcp, counters.peers_fell_back), (1, 1, 1));
    });
}

/// Names the owner to a client process.
const ENDPOINT: &str = "SCATTER_RING_TEST_ENDPOINT";
/// The kind of its batches.
const KIND: &str = "SCATTER_RING_TEST_KIND";

/// Not a test: a client that can be killed.
#[test]
#[ignore = "another test runs it in a process of its own"]
fn a_client_in_a_process_of_its_own() {
    let Some(socket) = socket_of_this_client() else { return };
    let endpoint = std::env::var(ENDPOINT).unwrap().parse().unwrap();
    let kind = KINDS[std::env::var(KIND).unwrap().parse::<usize>().unwrap()];
    let mut caller = Caller::of(Client::attach(socket).unwrap(), &endpoint, None, 0..SINK_ZONES);
    caller.open();
    let mut random = Random::from_seed(9);
    let lasts = time_of(&mut caller, &job(kind, &mut random));
    println!("moving {}", lasts.as_nanos());
    loop {
        caller.run(job(kind, &mut random)).unwrap();
    }
}

/// The memory that a process's batches move bytes from and to.
fn near_memory_of(pid: u32) -> File {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let range = maps.lines().filter(|line| line.contains("memfd:")).find_map(|line| {
        let (range, _) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let bytes = u64::from_str_radix(to, 16).ok()? - u64::from_str_radix(from, 16).ok()?;
        (bytes == NEAR_BYTES).then_some(range)
    });
    let range = range.unwrap_or_else(|| panic!("no memory of {NEAR_BYTES} bytes: {maps}"));
    let path = format!("/proc/{pid}/map_files/{range}");
    File::options().read(true).write(true).open(path).unwrap()
}

fn is_mapped_here(file: &File) -> bool {
    let inode = file.metadata().unwrap().ino().to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| line.contains("memfd:") && line.split_whitespace().nth(4) == Some(&inode))
}

/// R24, R18: its memory is unmapped and unregistered when nobody is at it any more; else the connection that others share
/// would break.
#[test]
#[ignore = "needs RDMA devices"]
fn a_client_killed_at_any_moment_of_a_batch_takes_its_memory_along_when_all_is_home() {
    on_each(|devices| {
        let place = private_directory();
        let owner = Owner::new(settings(devices[0]));
        let engine = start(settings(devices[1]));
        let socket = place.path().join("socket");
        engine.listen(&socket).unwrap();
        // By the same connection.
        let bystander = Bystander::reading(&engine, &owner.endpoint);
        let observer = attach(&engine);
        let endpoint = owner.endpoint.to_string();
        let (mut before, mut longest) = (None, Duration::ZERO);
        for kind in 0..KINDS.len() {
            cases(kills().div_ceil(2), |random| {
                let settings = [(ENDPOINT, endpoint.as_str()), (KIND, &kind.to_string())];
                let mut client = Running::client("a_client_in_a_process_of_its_own", &socket, &settings);
                let lasts = Duration::from_nanos(client.line("moving ").parse().unwrap());
                let memory = near_memory_of(client.pid());
                assert!(is_mapped_here(&memory));
                wait_for_some_of(4 * lasts, random);
                client.signal(Signal::KILL);
                let killed = Instant::now();
                while is_mapped_here(&memory) {
                    assert!(killed.elapsed() < END_MAX, "its memory stays");
                    std::thread::yield_now();
                }
                longest = longest.max(killed.elapsed());
                client.kill();
                let again = observer.register(&memory, NEAR_BYTES, Rights::READ_WRITE).unwrap();
                again.write_at(0, &[RELEASED; NEAR_BYTES as usize]).unwrap();
                std::thread::sleep(LATE);
                assert_intact(&again, NEAR_BYTES);
                observer.close(&again).unwrap();
            });
            settled(devices[1], Some(before.get_or_insert_with(|| settled(devices[1], None))));
        }
        println!("{devices:?} a client killed: unmapped after {longest:.0?} at most");
        println!("{} batches of a bystander", bystander.stop());
        let counters = engine.counters();
        assert_eq!((counters.peers_connected, counters.peers_ended), (1, 0), "the connection was kept");
    });
}
