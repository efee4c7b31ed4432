//! Memory that its owner packs and unpacks: every geometry, lending and taking back, processes that stop and die.

mod lent;
mod support;

use lent::{BYTES, Private, cases, client, deadline, ending, engine, open};
use ring_abi::{Descriptor, Extension, Flags, FragmentRecord, IndexKind, Kind, Message, Opcode, Route, Span, Status};
use scatter_ring::owner::{Owner, OwnerError, Setup};
use scatter_ring::region::{Huge, Region, Rights};
use std::process::{Child, Stdio};
use std::time::Duration;
use support::hostile::{eventually, range};
use support::{Random, RawClient};

const SMALL: Setup = Setup { slots: 2, slot_bytes: 64 << 10, spin: Duration::from_micros(50) };

/// Pushes a descriptor, with its extension if it has one, and waits for the spans of its batch.
fn carry_out(client: &mut RawClient, d: &Descriptor, extension: Option<&Extension>) -> Vec<Span> {
    assert!(client.try_push(&d.to_entry()));
    if let Some(extension) = extension {
        assert!(client.try_push(&extension.to_entry()));
    }
    client.publish();
    let mut spans = vec![client.wait()];
    while !spans.iter().any(Span::is_batch_done) {
        spans.push(client.wait());
    }
    spans
}

/// What does not depend on time, place in the ring, or the way that was taken.
fn outcome(span: &Span) -> Span {
    let times = Span { first: 0, route: 0, pack_ns: 0, window_ns: 0, total_ns: 0, ..*span };
    if span.status().is_ok() { Span { queue_ns: 0, plan_ns: 0, command_ns: 0, ..times } } else { times }
}

const INDEX_BYTES: u64 = 256 << 10;

/// A descriptor of any geometry, with pieces of a byte up to more than a slot, mostly right. Its regions are to be set.
fn any_geometry(random: &mut Random, index: &Region) -> (Descriptor, Option<Extension>) {
    let d = Descriptor { opcode: Opcode::READ.0, flags: Flags::LAST, count: 1, ..Descriptor::ZERO };
    let lens = [1, 8, 64, 264, 4096, 4097, 20_000, 70_000, 200_000];
    if random.one_in(5) {
        let most = random.pick(&[100, 70_000, 400_000]);
        let len = 1 + random.below(most);
        let (src_offset, dst_offset) = (random.below(BYTES - len), random.below(BYTES - len));
        return (Descriptor { len: len as u32, src_offset, dst_offset, ..d }, None);
    }
    if random.one_in(4) {
        return (records(random, index, d), None);
    }
    let len = random.pick(&lens);
    let inner = if random.one_in(3) { 1 + random.below(60_000 / (len + 1) + 3).min(5000) } else { 1 };
    let inner_dst = len + random.pick(&[0, 0, 3]);
    let extension = Extension::new(inner as u32, random.pick(&[len, len + 5, 0]) as u32, inner_dst as u32);
    let fragment = inner * inner_dst;
    let most = (BYTES / fragment.max(1)).clamp(1, 12_000);
    let count = 1 + random.below(most);
    let kinds = [IndexKind::None, IndexKind::U32, IndexKind::U64];
    let (src_kind, dst_kind) = (random.pick(&kinds), random.pick(&kinds));
    let (src_rows, wrong) = (BYTES / len.max(64), random.one_in(6));
    let mut flags = Flags::LAST;
    if src_kind != IndexKind::None {
        flags |= random.pick(&[0, 0, Flags::MISSING_ZERO, Flags::MISSING_SKIP]);
    }
    let mut words = Vec::new();
    let mut number = |kind: IndexKind, value: u64| match kind {
        IndexKind::U32 => words.extend((value as u32).to_le_bytes()),
        IndexKind::U64 => words.extend(value.to_le_bytes()),
        _ => {}
    };
    let bad = random.below(count);
    for i in 0..count {
        let missing = flags != Flags::LAST && random.one_in(3);
        let value = if missing { u64::MAX } else { random.below(src_rows / (inner + 1) + 1) };
        number(src_kind, if wrong && i == bad { 1 << 31 } else { value });
    }
    let reversed = random.one_in(2);
    for i in 0..count {
        number(dst_kind, if reversed { count - 1 - i } else { i });
    }
    if words.len() as u64 > INDEX_BYTES {
        return any_geometry(random, index);
    }
    // 64-bit numbers behind an odd number of 32-bit ones: aligned by where the array starts.
    let skew = if src_kind == IndexKind::U32 && dst_kind == IndexKind::U64 { 4 * (count % 2) } else { 0 };
    if words.len() as u64 + skew > INDEX_BYTES {
        return any_geometry(random, index);
    }
    index.write_at(skew, &words).unwrap();
    let indexed = !words.is_empty();
    let d = Descriptor {
        flags: flags | Flags::EXTENDED,
        index_kind: IndexKind::pack(src_kind, dst_kind),
        len: len as u32,
        count: count as u32,
        index_region: u32::from(indexed),
        index_offset: if indexed { skew } else { 0 },
        src_stride: random.pick(&[len, 0, len + 9]) as u32,
        dst_stride: fragment as u32,
        ..d
    };
    (d, Some(extension))
}

fn records(random: &mut Random, index: &Region, d: Descriptor) -> Descriptor {
    let mut words: Vec<u8> = Vec::new();
    let (mut dst, mut count) = (0, 0);
    while count < 2000 && (count == 0 || !random.one_in(300)) {
        let len = random.pick(&[0, 1, 17, 264, 5000, 16_384, 90_000]).min(BYTES - dst);
        let src = random.below(BYTES - len + 1) + if random.one_in(2000) { BYTES } else { 0 };
        let record = FragmentRecord { src, dst, len: len as u32, reserved: u32::from(random.one_in(3000)) };
        words.extend(record.to_words().iter().flat_map(|word| word.to_le_bytes()));
        dst += len;
        count += 1;
    }
    index.write_at(0, &words).unwrap();
    let index_kind = IndexKind::pack(IndexKind::Fragments, IndexKind::Fragments);
    Descriptor { index_kind, index_region: 1, count, ..d }
}

/// The same descriptor between mapped memory, which `engine_model.rs` compares with the model, and with sides that are
/// lent: same outcome, same bytes.
fn every_geometry(setup: &Setup, two_owners: bool, seeds: u64) {
    let engine = engine();
    let owner = Owner::over(engine.connect().unwrap(), setup).unwrap();
    let other = two_owners.then(|| Owner::over(engine.connect().unwrap(), &Setup::default()).unwrap());
    let pages = BYTES as usize / 4096;
    let src = Private::lend(&owner, "src", pages);
    let dst = Private::lend(other.as_ref().unwrap_or(&owner), "dst", pages);
    let mut client = client(&engine);
    let (mapped_src, mapped_src_handle) = client.memory(BYTES, Rights::READ_WRITE);
    let (mapped_dst, mapped_dst_handle) = client.memory(BYTES, Rights::READ_WRITE);
    let (index, index_handle) = client.memory(INDEX_BYTES, Rights::READ);
    let handles = [[mapped_src_handle, open(&mut client, "src")], [mapped_dst_handle, open(&mut client, "dst")]];
    let (mut failures, mut gathered) = (0, 0);
    let (mut expected, mut found) = (vec![0; BYTES as usize], vec![0; BYTES as usize]);
    for seed in 0..seeds {
        let mut random = Random(seed);
        src.fill(&mut random);
        mapped_src.write_at(0, &src.memory.bytes()).unwrap();
        let (mut d, extension) = any_geometry(&mut random, &index);
        d.index_region *= index_handle;
        if random.one_in(40) {
            d.src_offset = BYTES - 1;
        }
        let mut results = Vec::new();
        for [from, to] in [[0, 0], [1, 0], [0, 1], [1, 1]] {
            dst.memory.fill(0xEE);
            mapped_dst.write_at(0, &dst.memory.bytes()).unwrap();
            d.src_region = handles[0][from];
            d.dst_region = handles[1][to];
            let spans = carry_out(&mut client, &d, extension.as_ref());
            let is_gathered = spans[0].route == Route::GATHER.0;
            gathered += u64::from(is_gathered);
            assert!(!is_gathered || from + to > 0);
            let bytes = if to == 0 { &mut expected } else { &mut found };
            if to == 0 {
                mapped_dst.read_at(0, bytes).unwrap();
            } else {
                *bytes = dst.memory.bytes();
            }
            let outcomes: Vec<_> = spans.iter().map(outcome).collect();
            failures += u64::from(outcomes[0].status() != Status::OK);
            results.push((outcomes, bytes.clone()));
        }
        let ok = results[0].0.iter().all(|span| span.status().is_ok());
        for (i, (outcomes, bytes)) in results.iter().enumerate() {
            assert_eq!(outcomes, &results[0].0, "seed {seed}, way {i}: {d:?} {extension:?}");
            assert!(!ok || *bytes == results[0].1, "seed {seed}, way {i}: other bytes: {d:?} {extension:?}");
        }
    }
    assert!(gathered > seeds && failures > 0, "{gathered} gathered, {failures} failed in {seeds} cases");
}

#[test]
fn every_geometry_gives_what_mapped_memory_gives_with_two_small_slots() {
    every_geometry(&SMALL, false, cases(600, 60));
}

#[test]
fn every_geometry_gives_what_mapped_memory_gives_between_two_owners() {
    every_geometry(&Setup { slots: 5, slot_bytes: 68 << 10, ..SMALL }, true, cases(600, 60));
}

#[test]
fn memory_is_taken_back_under_transfers() {
    let engine = engine();
    let owner = Owner::over(engine.connect().unwrap(), &SMALL).unwrap();
    let mut client = client(&engine);
    let (_memory, mapped) = client.memory(BYTES, Rights::READ_WRITE);
    let stays = Private::lend(&owner, "stays", 256);
    let stays_handle = open(&mut client, "stays");
    for i in 0..cases(300, 60) {
        let goes = Private::lend(&owner, "goes", 256);
        let lent = open(&mut client, "goes");
        let ends = [(lent, mapped), (mapped, lent), (lent, stays_handle)][i as usize % 3];
        (0..4).for_each(|_| client.submit(&range((ends.0, 0), (ends.1, 0), BYTES as u32)));
        std::thread::sleep(Duration::from_micros(40 * (i % 7)));
        let mut goes = goes;
        goes.lent.take().unwrap().close();
        // Whoever touches it now ends this process.
        goes.memory.protect(libc::PROT_NONE);
        for _ in 0..4 {
            let status = client.wait().status();
            assert!(matches!(status, Status::OK | Status::REGION_GONE), "{status}");
        }
        assert_eq!(client.done(&range((stays_handle, 0), (mapped, 0), BYTES as u32)).status(), Status::OK);
        goes.memory.protect(libc::PROT_READ | libc::PROT_WRITE);
        client.ask(Kind::CLOSE, &[lent.into()], "", &[]);
    }
    drop(stays);
}

#[test]
fn memory_of_a_file_that_the_engine_accepts_is_mapped_and_other_memory_goes_by_slots() {
    let engine = engine();
    let owner = Owner::over(engine.connect().unwrap(), &Setup::default()).unwrap();
    let mut client = client(&engine);
    let (out, out_handle) = client.memory(8192, Rights::READ_WRITE);
    let (sealed, _file) = Region::allocate(8192, Huge::Never).unwrap();
    let fd = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, 8192).unwrap();
    let unsealed = Region::of_own_fd(&fd, 0, 8192, Rights::READ_WRITE).unwrap();
    for (name, region, is_mapped) in [("sealed", &sealed, true), ("unsealed", &unsealed, false)] {
        region.write_at(1000, name.as_bytes()).unwrap();
        let base = region.as_ptr().wrapping_add(100);
        // SAFETY: it stays mapped longer than it is lent, and is read and written by regions only.
        let lent = unsafe { owner.lend(name, base, 8000, Rights::READ_WRITE) }.unwrap();
        assert_eq!(lent.is_mapped(), is_mapped, "{name}");
        let handle = open(&mut client, name);
        let span = client.done(&range((handle, 900), (out_handle, 0), name.len() as u32));
        let route = if is_mapped { Route::DIRECT } else { Route::GATHER };
        assert_eq!((span.status(), span.route), (Status::OK, route.0), "{name}");
        let mut bytes = vec![0; name.len()];
        out.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, name.as_bytes());
        lent.close();
        assert_eq!(client.done(&range((handle, 0), (out_handle, 0), 8)).status(), Status::REGION_GONE, "{name}");
        assert_eq!(client.ask(Kind::OPEN, &[1], name, &[]).status, Status::NAME_UNKNOWN);
    }
}

#[test]
fn an_owner_says_what_is_wrong_and_notices_the_end_of_its_engine() {
    let engine = engine();
    let owner = Owner::over(engine.connect().unwrap(), &Setup::default()).unwrap();
    let mut bytes = [0u8; 64];
    let mut lend = |owner: &Owner, name: &str, len| {
        // SAFETY: at most the bytes of an array that stays; nobody opens them.
        unsafe { owner.lend(name, bytes.as_mut_ptr(), len, Rights::READ) }
    };
    let kept = lend(&owner, "kept", 64).unwrap();
    for (name, len, status) in
        [("", 64, Status::INVALID_SETTING), ("kept", 64, Status::NAME_TAKEN), ("x", 0, Status::INVALID_SETTING)]
    {
        assert_eq!(lend(&owner, name, len).unwrap_err().status(), status, "{name:?}");
    }
    // What was not lent after all is no region either: the same name can be had.
    lend(&owner, "again", 64).unwrap().close();
    lend(&owner, "again", 64).unwrap().close();
    let refused = Owner::over(engine.connect().unwrap(), &Setup { slots: 1, ..SMALL }).unwrap_err();
    assert_eq!(refused.status(), Status::INVALID_SETTING, "{refused}");
    assert!(refused.to_string().contains("2 to 64 slots"), "{refused}");
    assert!(!owner.is_lost() && !owner.wait_lost(Duration::from_millis(1)));
    engine.stop();
    assert!(owner.wait_lost(Duration::from_secs(10)), "it does not notice");
    assert!(matches!(lend(&owner, "more", 64), Err(OwnerError::Lost)));
    drop(kept);
}

/// Lends a private table of as many bytes as the tests use, whose words are all the same, until it is killed.
#[test]
#[ignore = "is run by others, as a process of its own that is killed"]
fn an_owner_that_will_be_killed() {
    let Ok(path) = std::env::var("SCATTER_RING_TEST_SOCKET") else { return };
    let owner = Owner::attach(path).unwrap();
    let table = Private::lend(&owner, "of a process", BYTES as usize / 4096);
    table.memory.fill(0xA5);
    println!("lent");
    owner.wait_lost(Duration::from_secs(60));
}

fn another_process(path: &std::path::Path) -> Child {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "an_owner_that_will_be_killed", "--ignored", "--nocapture"])
        .env("SCATTER_RING_TEST_SOCKET", path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert!(lines.map_while(Result::ok).any(|line| line.contains("lent")), "the owner process has ended");
    child
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

fn is_stopped(child: &Child) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let states = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default());
    states.into_iter().all(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')))
}

#[test]
fn an_owner_process_can_be_stopped_and_killed_at_any_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("engine").join("socket");
    let engine = engine();
    engine.listen(&path).unwrap();
    let mut client = client(&engine);
    let (memory, mapped) = client.memory(BYTES, Rights::READ_WRITE);
    for round in 0..cases(30, 6) {
        let mut child = another_process(&path);
        let lent = open(&mut client, "of a process");
        let read = range((lent, 0), (mapped, 0), BYTES as u32);
        memory.write_at(0, &vec![0; BYTES as usize]).unwrap();
        assert_eq!(client.done(&read).status(), Status::OK);
        let mut bytes = vec![0; BYTES as usize];
        memory.read_at(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0xA5), "other bytes");

        signal(&child, rustix::process::Signal::STOP);
        eventually("all its threads have stopped", || is_stopped(&child));
        deadline(&mut client, &read, Duration::from_millis(20));
        let span = ending(&mut client);
        assert_eq!(span.status(), Status::TIMED_OUT);
        assert!(!span.is_held() || client.wait().is_released());
        signal(&child, rustix::process::Signal::CONT);
        assert_eq!(client.done(&read).status(), Status::OK, "its slots did not come back");

        (0..8).for_each(|_| client.submit(&read));
        std::thread::sleep(Duration::from_micros(100 * (round % 6)));
        child.kill().unwrap();
        child.wait().unwrap();
        for _ in 0..8 {
            let status = client.wait().status();
            assert!(matches!(status, Status::OK | Status::REGION_GONE), "{status}");
        }
        eventually("the name is free again", || {
            client.ask(Kind::OPEN, &[1], "of a process", &[]).status == Status::NAME_UNKNOWN
        });
        client.ask(Kind::CLOSE, &[lent.into()], "", &[]);
    }
}

#[test]
fn a_forked_child_cannot_lend_and_takes_nothing_back() {
    let engine = engine();
    let owner = Owner::over(engine.connect().unwrap(), &Setup::default()).unwrap();
    let table = Private::lend(&owner, "table", 1);
    table.memory.fill(9);
    // SAFETY: the child makes no call but those of the owner, which refuse, and `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: never reached by clients: the call refuses.
        let refused = unsafe { owner.lend("child", table.memory.base(), 64, Rights::READ) };
        let right = matches!(refused, Err(OwnerError::Forked)) && owner.is_lost();
        drop((table, owner));
        // SAFETY: ends the child without running the test harness's exit.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was made above.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0);
    let mut client = client(&engine);
    let (_memory, mapped) = client.memory(4096, Rights::READ_WRITE);
    let lent = open(&mut client, "table");
    assert_eq!(client.done(&range((lent, 0), (mapped, 0), 4096)).status(), Status::OK);
    let answer: Message = client.ask(Kind::OPEN, &[1], "child", &[]);
    assert_eq!(answer.status, Status::NAME_UNKNOWN);
}
