//! What connections between engines leave behind, and what they take: R18, R34, R35, R37.

mod peered;
mod proxied;
mod seeded;
mod support;

use peered::{Caller, END_MAX, Job, Owner, by_build, settings, start};
use proxied::Effect::{Cut, Deaf, Plain, Reset, Slow};
use proxied::Which::All;
use proxied::{Proxy, Way};
use ring_abi::{Descriptor, IndexKind, Opcode, Status};
use scatter_ring::client::{Client, Region};
use scatter_ring::engine::{PeerSettings, RunningEngine};
use scatter_ring::region::Rights;
use seeded::Random;
use std::time::{Duration, Instant};
use support::hostile::{alone, eventually, open_fds};

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Resident memory of this process: its own, or all.
fn resident_bytes(which: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let (_, bytes) = status.split_once(which).unwrap();
    bytes.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

fn slow() -> proxied::Effect {
    Slow { bytes: 1000, pause: Duration::from_millis(1) }
}

/// Engines that stop in the middle of batches, on either side, end in time and leave nothing.
#[test]
fn engines_that_stop_with_transfers_under_way_end_in_time_and_leave_nothing() {
    let _alone = alone();
    let mut before = None;
    for round in 0..by_build(6, 24) {
        let owner = Owner::new(settings());
        let proxy = Proxy::new(owner.address());
        let engine = start(settings());
        let mut caller = Caller::new(&engine, &owner, &owner.at(proxy.address()));
        let effect = match round % 3 {
            0 => Plain,
            1 => slow(),
            _ => Deaf,
        };
        proxy.apply_both(All, effect);
        let mut random = Random::from_seed(round);
        let batch = caller.submit(Job::large(&mut random, round % 2 == 0), None);
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        let since = Instant::now();
        match round / 3 % 4 {
            0 => engine.stop(),
            1 => drop(engine.stop_within(Duration::from_millis(50))),
            2 => {
                let Owner { engine: other, client, .. } = owner;
                other.stop();
                assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
                drop(client);
                engine.stop();
            }
            _ => {
                let Owner { engine: other, .. } = owner;
                drop(other.stop_within(Duration::from_millis(50)));
                engine.stop();
            }
        }
        assert!(since.elapsed() < Duration::from_secs(3), "round {round}: {:?}", since.elapsed());
        drop((batch, caller, proxy));
        if round >= 3 {
            let (wanted_threads, wanted_fds) = *before.get_or_insert((threads(), open_fds()));
            eventually("its threads are gone", || threads() <= wanted_threads);
            eventually("its files are closed", || open_fds() <= wanted_fds);
        }
    }
}

/// What is allocated, used or not.
fn allocated_bytes() -> u64 {
    // SAFETY: it counts.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as u64
}

/// Slots come on top of it. What there is are lists: one for each command of the other side, two for each chunk.
#[test]
fn a_connection_takes_a_bounded_amount_of_memory_besides_its_slots() {
    let _alone = alone();
    let (owner, engine) = (Owner::new(settings()), start(settings()));
    let client = peered::attach(&engine);
    let before = allocated_bytes();
    let peer = client.connect(&owner.endpoint.to_string()).unwrap();
    client.open_at(peer, "table", Rights::READ).unwrap();
    let bytes = (allocated_bytes() - before) / 2;
    println!("{bytes} bytes for an end of a connection");
    assert!(bytes < 48 << 20, "{bytes} bytes for an end of a connection");
}

#[test]
fn connections_that_come_and_go_leave_nothing() {
    let _alone = alone();
    let owner = Owner::new(settings());
    let proxy = Proxy::new(owner.address());
    let engine = start(settings());
    let mut caller = Caller::new(&engine, &owner, &owner.at(proxy.address()));
    let mut random = Random::from_seed(9);
    let mut baseline = None;
    let cuts = by_build(45, 100);
    for round in 0..cuts {
        let job = caller.any_job(&mut random);
        let batch = caller.submit(job, None);
        let time = random.below(2000);
        std::thread::sleep(Duration::from_micros(time));
        proxy.apply(All, Way::There, if round % 2 == 0 { Cut } else { Reset });
        // The cut may have come later.
        let _ = caller.end(&batch);
        caller.open();
        if round == 30 {
            baseline = Some((threads(), open_fds(), allocated_bytes(), resident_bytes("RssShmem:")));
        }
    }
    let (wanted_threads, wanted_fds, anon, shmem) = baseline.unwrap();
    eventually("its threads are gone", || threads() <= wanted_threads);
    eventually("its files are closed", || open_fds() <= wanted_fds);
    let (anon_now, shmem_now) = (allocated_bytes(), resident_bytes("RssShmem:"));
    assert!(anon_now < anon + (4 << 20), "{anon} bytes after 30 cuts, {anon_now} after {cuts}");
    assert!(shmem_now < shmem + (4 << 20), "{shmem} bytes after 30 cuts, {shmem_now} after {cuts}");
    println!("{anon} -> {anon_now}, {shmem} -> {shmem_now}");
}

const FRAGMENT: u64 = 24;

/// A batch with so many fragments that no list of them is short.
fn fragments(user: &Client, count: u32) -> (Region, Region) {
    let index = user.allocate(u64::from(count) * 4).unwrap();
    let words: Vec<u8> = (0..count).flat_map(|i| (i.wrapping_mul(7919) % count).to_ne_bytes()).collect();
    index.write_at(0, &words).unwrap();
    (index, user.allocate(u64::from(count) * FRAGMENT).unwrap())
}

/// Chunks, and the lists in them, are bounded by what the engine was told to have, however long a batch is.
#[test]
fn a_batch_of_a_million_fragments_takes_no_more_memory_than_is_configured() {
    let _alone = alone();
    let count: u32 = by_build(300_007, 1_000_003) as u32;
    for slots in [1, 2] {
        let few = PeerSettings { slots, owner_slots: slots, slot_bytes: 16 << 10, ..settings() };
        let owner = Owner::new(few.clone());
        let engine = start(few);
        let mut user = peered::attach(&engine);
        let table = owner.client.allocate(u64::from(count) * FRAGMENT).unwrap();
        let words: Vec<u8> =
            (0..u64::from(count) * FRAGMENT / 8).flat_map(|i| (i * 0x9E37_79B9 + 1).to_ne_bytes()).collect();
        table.write_at(0, &words).unwrap();
        owner.client.export(&table, "long", Rights::READ_WRITE).unwrap();
        let (index, near) = fragments(&user, count);
        near.write_at(0, &vec![0; (u64::from(count) * FRAGMENT) as usize]).unwrap();
        let peer = user.connect(&owner.endpoint.to_string()).unwrap();
        let far = user.open_at(peer, "long", Rights::READ_WRITE).unwrap();
        let before = resident_bytes("RssAnon:");
        for gathers in [ring_abi::Flags::GATHER, 0] {
            let d = Descriptor {
                opcode: Opcode::READ.0,
                flags: gathers,
                index_kind: IndexKind::pack(IndexKind::U32, IndexKind::None),
                src_region: far.handle().0,
                dst_region: near.handle().0,
                index_region: index.handle().0,
                len: FRAGMENT as u32,
                count,
                src_stride: FRAGMENT as u32,
                dst_stride: FRAGMENT as u32,
                ..Descriptor::ZERO
            };
            let mut batch = user.batch();
            batch.push(&d, &[&far, &near, &index]).unwrap();
            let ticket = batch.submit().unwrap();
            let mut most = 0;
            let since = Instant::now();
            let outcome = loop {
                if let Some(outcome) = user.wait_timeout(&ticket, Duration::from_millis(5)).unwrap() {
                    break outcome;
                }
                most = most.max(resident_bytes("RssAnon:"));
                assert!(since.elapsed() < Duration::from_secs(60), "it takes too long");
            };
            assert_eq!(outcome.bytes, u64::from(count) * FRAGMENT);
            println!(
                "{slots} slots: {} bytes more, {:?}, {:?}",
                most.saturating_sub(before),
                outcome.route,
                since.elapsed()
            );
            assert!(most < before + (24 << 20), "{slots} slots: {before} bytes before, {most} meanwhile");
        }
        let mut got = vec![0; (u64::from(count) * FRAGMENT) as usize];
        near.read_at(0, &mut got).unwrap();
        for i in 0..count {
            let from = (i.wrapping_mul(7919) % count) as usize * FRAGMENT as usize;
            let to = i as usize * FRAGMENT as usize;
            assert!(got[to..to + FRAGMENT as usize] == words[from..from + FRAGMENT as usize], "fragment {i}");
        }
    }
}

/// R34: a child has the sockets, and that must keep nothing up.
#[test]
fn a_forked_child_that_goes_on_keeps_no_connection_up() {
    let _alone = alone();
    let owner = Owner::new(settings());
    let engine = start(settings());
    let mut caller = Caller::new(&engine, &owner, &owner.endpoint);
    let mut random = Random::from_seed(2);
    caller.run(Job::large(&mut random, false)).unwrap();
    // SAFETY: the child makes no call but one that is safe after a fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: it waits for a signal, for no longer than the test takes.
        unsafe {
            libc::alarm(8);
            loop {
                libc::pause();
            }
        }
    }
    for _ in 0..10 {
        caller.run(Job::any(&mut random, true)).unwrap();
    }
    let Owner { engine: other, .. } = owner;
    let since = Instant::now();
    other.stop();
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
    eventually("the connection is gone", || engine.counters().peers_ended == 1);
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
    let error = caller.run(Job::large(&mut random, false)).unwrap_err();
    assert_eq!(error.status, Status::REGION_GONE);
    engine.stop();
    // SAFETY: a child of ours.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert!(since.elapsed() < END_MAX);
}

/// And one that lets go of all it has ends nothing of its parent's.
#[test]
fn a_forked_child_that_drops_its_engine_ends_nothing() {
    let _alone = alone();
    let owner = Owner::new(settings());
    let engine = start(settings());
    let mut caller = Caller::new(&engine, &owner, &owner.endpoint);
    let mut random = Random::from_seed(2);
    caller.run(Job::large(&mut random, false)).unwrap();
    let engines: [RunningEngine; 2] = [engine, owner.engine];
    // SAFETY: the child uses what the engine says may be used, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(engines);
        drop(caller);
        // SAFETY: ends the child without its parent's destructors.
        unsafe { libc::_exit(0) };
    }
    let since = Instant::now();
    let mut status = 0;
    let mut has_ended = || {
        // SAFETY: a child of ours.
        unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) != 0 }
    };
    while !has_ended() {
        assert!(since.elapsed() < Duration::from_secs(10), "the child hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(status, 0, "how the child ended");
    for _ in 0..10 {
        caller.run(Job::any(&mut random, true)).unwrap();
    }
    drop(engines);
}
