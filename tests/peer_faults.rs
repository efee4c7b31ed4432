//! What becomes of transfers between engines when the connection, or the other engine, fails in the middle: every batch has
//! one outcome, in time; a success is one; a buffer that is released is left alone; and nobody else notices (R24, R25, R31,
//! R32, R38, R39).

mod peered;
mod proxied;
mod seeded;
mod storm;

use peered::{
    Bystander, Caller, END_MAX, Job, LONG, NEAR_BYTES, Owner, TABLE_BYTES, ZONES, by_build, contents, settings, start,
    table_bytes,
};
use proxied::Effect::{Coalesce, Cut, Deaf, Delay, Dribble, Finish, Plain, Repeat, Reset, Slow, Stall, Swallow};
use proxied::Which::{All, One};
use proxied::{Effect, Proxy, WAYS, Way};
use ring_abi::Status;
use rustix::process::Signal;
use scatter_ring::engine::{Endpoint, PeerSettings, RunningEngine};
use scatter_ring::peer::{Config, Peers};
use scatter_ring::region::Rights;
use seeded::{Random, cases};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};
use storm::{Running, socket_of_this_client, wait_until_stopped};

/// An owner behind a proxy, and a client of another engine that reads and writes there.
struct Scene {
    caller: Caller,
    proxy: Proxy,
    engine: RunningEngine,
    _owner: Owner,
}

impl Scene {
    fn new(settings: PeerSettings) -> Scene {
        let owner = Owner::new(settings.clone());
        let proxy = Proxy::new(owner.address());
        let engine = start(settings);
        let caller = Caller::new(&engine, &owner, &owner.at(proxy.address()));
        Scene { caller, proxy, engine, _owner: owner }
    }

    /// A random socket of the connection, or of one that was lost before.
    fn any_lane(&self, random: &mut Random) -> usize {
        self.proxy.connections() - 1 - random.below(3) as usize
    }

    /// The connection is lost, and the proxy harmless again: connects and opens.
    fn heal(&mut self) {
        self.proxy.apply_both(All, Plain);
        self.caller.open();
    }
}

/// So that a connection that nobody ends is given up soon.
fn hasty() -> PeerSettings {
    PeerSettings { dead_after: Duration::from_millis(500), ..settings() }
}

/// How a batch fails when its connection is lost.
fn is_lost(status: Status) -> bool {
    status == Status::REGION_GONE
}

/// One of the ways to end a connection, at a moment that comes while a batch is under way or a little later.
fn end_somewhere(scene: &Scene, random: &mut Random) {
    let (effect, way) = (random.pick(&[Cut, Cut, Reset, Reset, Finish]), random.pick(&WAYS));
    let lane = One(scene.any_lane(random));
    match random.below(4) {
        0 => scene.proxy.apply(lane, way, effect),
        1 => scene.proxy.apply_after(lane, way, random.below(400), effect),
        _ => scene.proxy.apply_after(lane, way, random.below(300_000), effect),
    }
    if random.once_in(4) {
        disturb(scene, random);
    }
    // The next connection may fail too: in its handshake, or soon after.
    if random.once_in(4) {
        let next = scene.proxy.connections() + random.below(3) as usize;
        scene.proxy.apply_after(One(next), way, random.below(400), effect);
    }
}

/// What does not end anything, on all sockets of the connection.
fn disturb(scene: &Scene, random: &mut Random) {
    let time = Duration::from_micros(random.below(3000));
    let effect = match random.below(6) {
        0 => Delay(time),
        1 => Coalesce { bytes: 1 + random.below(100_000) as usize, time },
        2 => Dribble(1 + random.below(100)),
        3 => Stall(10 * time),
        4 => Slow { bytes: 50_000, pause: time },
        _ => Plain,
    };
    scene.proxy.apply(All, random.pick(&WAYS), effect);
}

#[test]
fn a_connection_cut_anywhere_ends_each_batch_once_in_time_and_truly_and_nobody_elses() {
    let mut scene = Scene::new(hasty());
    let other = Owner::new(settings());
    let bystander = Bystander::start(&scene.engine, &other);
    let (mut done, mut lost) = (0, 0);
    let cuts = by_build(40, 300);
    cases(cuts, |random| {
        end_somewhere(&scene, random);
        // The cut comes in one of these batches, or between them.
        for _ in 0..3 {
            let job = scene.caller.any_job(random);
            match scene.caller.run(job) {
                Ok(_) => done += 1,
                Err(error) => {
                    assert!(is_lost(error.status), "{error}");
                    lost += 1;
                    scene.heal();
                    break;
                }
            }
        }
    });
    scene.proxy.apply(All, Way::There, Reset);
    scene.heal();
    let job = Job::large(&mut Random::from_seed(1), true);
    scene.caller.run(job).unwrap();
    let others = bystander.stop();
    println!("{cuts} faults: {done} batches done, {lost} failed; {others} of a bystander");
    assert!(done > 0 && lost > cuts / 5, "{done} done, {lost} failed");
}

#[test]
fn whatever_only_disturbs_a_connection_fails_no_batch() {
    let mut scene = Scene::new(settings());
    cases(by_build(25, 300), |random| {
        disturb(&scene, random);
        for _ in 0..2 {
            let job = scene.caller.any_job(random);
            scene.caller.run(job).unwrap();
        }
        scene.proxy.apply_both(All, Plain);
    });
}

/// R39: what was sent once and comes twice is another stream; a batch may fail, and the connection end.
#[test]
fn bytes_that_come_twice_make_no_wrong_success() {
    let mut scene = Scene::new(PeerSettings { dead_after: Duration::from_millis(100), ..settings() });
    let (mut done, mut failed) = (0, 0);
    cases(by_build(25, 300), |random| {
        // A whole header, a whole message, or any piece.
        let any = 1 + random.below(3000) as usize;
        let bytes = random.pick(&[48, 48, 64, 16, any]);
        let (lane, way) = (One(scene.any_lane(random)), random.pick(&WAYS));
        scene.proxy.apply_after(lane, way, random.below(100_000), Repeat(bytes));
        for _ in 0..3 {
            let job = scene.caller.any_job(random);
            match scene.caller.run(job) {
                Ok(_) => done += 1,
                Err(error) => {
                    assert!(is_lost(error.status) || error.status == Status::BAD_MESSAGE, "{error}");
                    failed += 1;
                    // Nothing that was left behind in the streams is to be met.
                    scene.proxy.apply(All, Way::There, Reset);
                    scene.heal();
                    break;
                }
            }
        }
    });
    assert!(done > 0 && failed > 0, "{done} done, {failed} failed");
}

/// R25.
#[test]
fn data_that_comes_after_a_deadline_or_a_cancel_does_not_touch_memory_that_was_released() {
    const RELEASED: u8 = 0x5A;
    let mut scene = Scene::new(settings());
    let buffers: Vec<_> = (0..4).map(|_| scene.caller.client.allocate(NEAR_BYTES).unwrap()).collect();
    buffers.iter().for_each(|buffer| buffer.write_at(0, &[RELEASED; NEAR_BYTES as usize]).unwrap());
    let assert_intact = |buffer: &scatter_ring::client::Region| {
        let got = contents(buffer, 0, NEAR_BYTES);
        assert!(got.iter().all(|byte| *byte == RELEASED), "written after it was released");
    };
    let (mut done, mut late, mut held, mut turn) = (0, 0, 0, 0);
    cases(by_build(50, 1000), |random| {
        let buffer = &buffers[turn % buffers.len()];
        turn += 1;
        // It was released some time ago: what was to come has come.
        assert_intact(buffer);
        scene.caller.near = buffer.clone();
        let delay_us = 200 + random.below(3000);
        scene.proxy.apply(All, Way::Back, Delay(Duration::from_micros(delay_us)));
        let job = Job::any(random, false);
        let time = Duration::from_micros(1 + random.below(3 * delay_us));
        let cancels = random.once_in(2);
        let batch = scene.caller.submit(job, (!cancels).then_some(time));
        if cancels {
            std::thread::sleep(time);
            scene.caller.client.cancel(&batch.ticket).unwrap();
        }
        match scene.caller.end(&batch) {
            Ok(_) => done += 1,
            Err(error) => {
                assert!(matches!(error.status, Status::TIMED_OUT | Status::CANCELLED), "{error}");
                late += 1;
                held += u32::from(!error.reusable);
            }
        }
        buffer.write_at(0, &[RELEASED; NEAR_BYTES as usize]).unwrap();
    });
    std::thread::sleep(Duration::from_millis(20));
    buffers.iter().for_each(assert_intact);
    println!("{done} done, {late} not, of which {held} were held for a while");
    assert!(late > 0);
    scene.proxy.apply_both(All, Plain);
    scene.caller.run(Job::large(&mut Random::from_seed(1), false)).unwrap();
}

/// R32: what is not answered any more is given up, and only that.
fn falls_into(hole: Effect) {
    let mut scene = Scene::new(settings());
    let other = Owner::new(settings());
    let bystander = Bystander::start(&scene.engine, &other);
    let mut random = Random::from_seed(3);
    scene.caller.run(Job::large(&mut random, false)).unwrap();
    for way in WAYS {
        // In the middle of the batch.
        scene.proxy.apply_after(All, way, 100, hole);
    }
    let batch = scene.caller.submit(Job::large(&mut random, false), None);
    let error = scene.caller.end(&batch).unwrap_err();
    assert!(is_lost(error.status), "{error}");
    assert!(batch.since.elapsed() < END_MAX, "{:?}", batch.since.elapsed());
    // Who has begun to dial into the hole begins again.
    scene.proxy.apply_both(All, Plain);
    scene.proxy.apply(All, Way::There, Reset);
    scene.heal();
    scene.caller.run(Job::large(&mut random, true)).unwrap();
    bystander.stop();
}

#[test]
fn a_batch_whose_peer_is_in_a_black_hole_that_reads_fails_within_four_seconds() {
    falls_into(Swallow);
}

#[test]
fn a_batch_whose_peer_is_in_a_black_hole_that_does_not_read_fails_within_four_seconds() {
    falls_into(Deaf);
}

/// Not a test: an owner that can be stopped and killed.
#[test]
#[ignore = "another test runs it in a process of its own"]
fn an_owner_in_a_process_of_its_own() {
    if socket_of_this_client().is_none() {
        return;
    }
    let owner = Owner::new(settings());
    println!("endpoint {}", owner.endpoint);
    loop {
        std::thread::park();
    }
}

#[test]
fn an_owner_that_is_stopped_is_given_up_and_one_that_is_killed_at_once() {
    let mut process = Running::client("an_owner_in_a_process_of_its_own", Path::new("/"), &[]);
    let endpoint: Endpoint = process.line("endpoint ").parse().unwrap();
    let engine = start(settings());
    let other = Owner::new(settings());
    let bystander = Bystander::start(&engine, &other);
    let mut caller = Caller::with_zones(&engine, &endpoint, None, 0..ZONES);
    let mut random = Random::from_seed(4);
    caller.run(Job::large(&mut random, false)).unwrap();

    process.signal(Signal::STOP);
    wait_until_stopped(process.pid());
    let batch = caller.submit(Job::large(&mut random, false), None);
    let error = caller.end(&batch).unwrap_err();
    assert!(is_lost(error.status), "{error}");
    assert!(batch.since.elapsed() < END_MAX, "{:?}", batch.since.elapsed());
    process.signal(Signal::CONT);
    caller.open();
    caller.run(Job::large(&mut random, false)).unwrap();

    let failed = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let start = Instant::now();
            loop {
                match caller.run(Job::any(&mut random, false)) {
                    Ok(_) => assert!(start.elapsed() < LONG, "batches go on without their owner"),
                    Err(error) => {
                        assert!(is_lost(error.status), "{error}");
                        return Instant::now();
                    }
                }
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        let killed = Instant::now();
        process.kill();
        reader.join().unwrap() - killed
    });
    assert!(failed < Duration::from_secs(1), "{failed:?}");
    let error = caller.try_open().unwrap_err();
    assert_eq!(error.status(), Status::PEER_UNREACHABLE, "{error}");
    bystander.stop();
}

/// R38.
#[test]
fn half_open_and_slow_connections_do_not_keep_an_honest_peer_from_being_served() {
    let owner = Owner::new(settings());
    let engine = start(settings());
    let mut caller = Caller::new(&engine, &owner, &owner.endpoint);
    // Those who have something to say, and say a byte every now and then.
    let slowly = Proxy::new(owner.address());
    slowly.apply(All, Way::There, Slow { bytes: 1, pause: Duration::from_millis(50) });
    let slow: Vec<_> = (0..20).map(|_| Peers::start(Config::new().unwrap()).unwrap()).collect();
    slow.iter().for_each(|(peers, _)| peers.connect(owner.at(slowly.address())));
    let mut silent = Vec::new();
    let mut random = Random::from_seed(5);
    for _ in 0..40 {
        silent.extend((0..5).map(|_| TcpStream::connect(owner.address()).unwrap()));
        let job = caller.any_job(&mut random);
        caller.run(job).unwrap();
    }
    assert!(slowly.connections() > 0 && silent.len() == 200);
}

/// R24.
#[test]
fn memory_that_its_owner_closes_is_not_read_any_more_and_batches_say_so() {
    let owner = Owner::new(settings());
    let engine = start(settings());
    let mut caller = Caller::new(&engine, &owner, &owner.endpoint);
    let mut table = owner.table.clone();
    cases(by_build(4, 50), |random| {
        caller.open();
        let lasts = Duration::from_micros(random.below(10_000));
        let mut random = random.clone();
        let caller = &mut caller;
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let start = Instant::now();
                loop {
                    // Each success is looked at: it has what was there before.
                    match caller.run(Job::any(&mut random, false)) {
                        Ok(_) => assert!(start.elapsed() < LONG, "it can still be read"),
                        Err(error) => break assert_eq!(error.status, Status::REGION_GONE, "{error}"),
                    }
                }
                let error = caller.run(Job::any(&mut random, false)).unwrap_err();
                assert_eq!(error.status, Status::REGION_GONE, "{error}");
                // The connection and what else was opened are as they were.
                caller.run(Job::any(&mut random, true)).unwrap();
            });
            std::thread::sleep(lasts);
            owner.client.close(&table).unwrap();
            table.write_at(0, &[0; TABLE_BYTES as usize]).unwrap();
            reader.join().unwrap();
        });
        table = owner.client.allocate(TABLE_BYTES).unwrap();
        table.write_at(0, table_bytes()).unwrap();
        owner.client.export(&table, "table", Rights::READ).unwrap();
    });
}

#[test]
fn two_engines_share_the_few_slots_of_an_owner() {
    for owner_slots in [1, 2, 4, 8] {
        let owner = Owner::new(PeerSettings { owner_slots, ..settings() });
        let engines = [start(settings()), start(settings())];
        std::thread::scope(|scope| {
            for (n, engine) in (0..).zip(&engines) {
                let (endpoint, sink) = (&owner.endpoint, owner.sink.clone());
                let zones = n * ZONES / 2..(n + 1) * ZONES / 2;
                scope.spawn(move || {
                    let mut caller = Caller::with_zones(engine, endpoint, Some(sink), zones);
                    let mut random = Random::from_seed(n);
                    for _ in 0..by_build(10, 100) {
                        let writes = random.once_in(4);
                        caller.run(Job::gathered(&mut random, writes)).unwrap();
                    }
                });
            }
        });
    }
}
