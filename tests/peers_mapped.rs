//! Engines on one host: what a client of one exports is mapped by the other when a client of that opens it, and everything is as
//! if it went over their connection, which it does where it cannot be mapped.

mod exported;
mod serving;
mod storm;
mod support;

use exported::{BYTES, ROW, ROWS, bytes, client, connect, exported, is_right, rows};
use ring_abi::Status;
use rustix::fd::AsFd;
use scatter_ring::client::{Client, Region, Setup};
use scatter_ring::engine::{Config, Engine, PeerSettings, RunningEngine};
use scatter_ring::region::Rights;
use serving::Place;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::hostile::eventually;

fn start(map_memory: bool) -> RunningEngine {
    let listen = vec![([127, 0, 0, 1], 0).into()];
    let peers = PeerSettings { listen, map_memory, ..PeerSettings::default() };
    Engine::new(&Config { workers: 1, peers: Some(peers), ..Config::default() }).unwrap().start().unwrap()
}

/// An engine that other engines of this host find.
fn owner(place: &Place) -> RunningEngine {
    let engine = start(true);
    engine.listen(&place.socket()).unwrap();
    engine
}

fn is_gone(client: &mut Client, table: &Region) -> bool {
    rows(client, table, &[1]).is_err_and(|error| error.status == Status::REGION_GONE)
}

/// How many regions one engine has mapped, and the other has given.
fn mapped(user: &RunningEngine, owner: &RunningEngine) -> (u64, u64) {
    (user.counters().peer_regions_mapped, owner.counters().peer_files_given)
}

#[test]
fn what_an_engine_on_this_host_exports_is_mapped() {
    let place = Place::new();
    let (a, b) = (owner(&place), start(true));
    let (owner, mut user) = (client(&a), client(&b));
    let table = exported(&owner, "table", Rights::READ_WRITE);
    let peer = connect(&user, &a);
    let remote = user.open_at(peer, "table", Rights::READ_WRITE).unwrap();
    assert_eq!((remote.bytes(), remote.rights()), (BYTES, Rights::READ_WRITE));
    assert_eq!(mapped(&b, &a), (1, 1));
    assert!(is_right(&mut user, &remote));

    let new = user.allocate(ROW * 3).unwrap();
    new.write_at(0, &[7; 3 * ROW as usize]).unwrap();
    user.write_rows(&remote, ROW as u32, &[5, 1, 3999], &new, 0).unwrap();
    for row in 0..ROWS {
        let mut got = vec![0; ROW as usize];
        table.read_at(row * ROW, &mut got).unwrap();
        let expected = if [5, 1, 3999].contains(&row) { vec![7; ROW as usize] } else { bytes(row * ROW, ROW) };
        assert_eq!(got, expected, "row {row}");
    }
    // What no connection can do: both sides are the other engine's.
    user.read(&remote, 5 * ROW, &remote, 0, ROW).unwrap();
    let mut got = [0; ROW as usize];
    table.read_at(0, &mut got).unwrap();
    assert_eq!(got, [7; ROW as usize]);

    let read_only = user.open_at(peer, "table", Rights::READ).unwrap();
    assert_eq!(user.write(&new, 0, &read_only, 0, 1).unwrap_err().status, Status::NO_RIGHT);
    assert!(user.read(&read_only, BYTES - 1, &new, 0, 2).unwrap_err().status == Status::OUT_OF_RANGE);
    assert_eq!(mapped(&b, &a), (2, 2));
    // The other way round nothing was told: this engine has no socket.
    let peer = connect(&owner, &b);
    let of_user = exported(&user, "of user", Rights::READ);
    let mut on_a = client(&a);
    let of_user_there = on_a.open_at(peer, "of user", Rights::READ).unwrap();
    assert!(is_right(&mut on_a, &of_user_there));
    assert_eq!(mapped(&a, &b), (0, 0));
    drop(of_user);
}

/// The bytes take the short way, and what tells of them the long one.
#[test]
fn who_exports_what_is_mapped_is_told_when_something_is_there() {
    let place = Place::new();
    let (a, b) = (owner(&place), start(true));
    let setup = Setup { notifications: true, ..Setup::default() };
    let mut told = Client::over(a.connect().unwrap(), &setup).unwrap();
    let mut user = client(&b);
    let table = exported(&told, "table", Rights::READ_WRITE);
    let peer = connect(&user, &a);
    let remote = user.open_at(peer, "table", Rights::READ_WRITE).unwrap();
    assert_eq!(mapped(&b, &a), (1, 1));
    let new = user.allocate(ROW).unwrap();
    new.write_at(0, &[7; ROW as usize]).unwrap();
    let mut batch = user.batch();
    batch.write(&new, 0, &remote, ROW, ROW).unwrap();
    let ticket = batch.notify(&remote, ROW, None).unwrap();
    user.wait(&ticket).unwrap();
    let notification = told.wait_notification(Some(Duration::from_secs(20))).unwrap().expect("nobody is told");
    let mut got = [0; ROW as usize];
    table.read_at(notification.offset, &mut got).unwrap();
    assert_eq!((notification.offset, got), (ROW, [7; ROW as usize]));
}

#[test]
fn an_engine_that_listens_later_is_found_from_then_on() {
    let place = Place::new();
    let (a, b) = (start(true), start(true));
    let (owner, mut user) = (client(&a), client(&b));
    let before = exported(&owner, "before", Rights::READ);
    let peer = connect(&user, &a);
    let sent = user.open_at(peer, "before", Rights::READ).unwrap();
    a.listen(&place.socket()).unwrap();
    let after = exported(&owner, "after", Rights::READ);
    for (name, counts) in [("after", (1, 1)), ("before", (1, 1))] {
        let table = user.open_at(peer, name, Rights::READ).unwrap();
        assert!(is_right(&mut user, &table) && is_right(&mut user, &sent));
        // The file of what was registered before was not kept.
        assert_eq!(mapped(&b, &a), counts, "{name}");
    }
    drop((before, after));
}

#[test]
fn where_it_cannot_be_mapped_it_goes_over_the_connection() {
    for (map_memory, there, removed) in [(false, true, false), (true, false, false), (true, true, true)] {
        let place = Place::new();
        let (a, b) = (start(there), start(map_memory));
        a.listen(&place.socket()).unwrap();
        let (owner, mut user) = (client(&a), client(&b));
        let peer = connect(&user, &a);
        let table = exported(&owner, "table", Rights::READ_WRITE);
        if removed {
            std::fs::remove_file(place.socket()).unwrap();
        }
        let remote = user.open_at(peer, "table", Rights::READ_WRITE).unwrap();
        assert!(is_right(&mut user, &remote));
        assert_eq!(mapped(&b, &a), (0, 0), "{map_memory} {there} {removed}");
        owner.close(&table).unwrap();
        assert!(is_gone(&mut user, &remote));
    }
}

#[test]
fn an_export_is_gone_for_who_has_mapped_it_when_its_owner_has_it_back() {
    let place = Place::new();
    let (a, b) = (owner(&place), start(true));
    let (owner, mut user) = (client(&a), client(&b));
    for round in 0..20 {
        let name = format!("table {round}");
        let table = exported(&owner, &name, Rights::READ_WRITE);
        let peer = connect(&user, &a);
        let remote = user.open_at(peer, &name, Rights::READ_WRITE).unwrap();
        let new = user.allocate(BYTES).unwrap();
        assert!(is_right(&mut user, &remote));
        // While it is written.
        let mut batch = user.batch();
        (0..20).for_each(|_| batch.write(&new, 0, &remote, 0, BYTES).unwrap());
        let ticket = batch.submit().unwrap();
        let memory = table.as_ptr().unwrap();
        owner.close(&table).unwrap();
        // SAFETY: the region is mapped as long as `table` is there; nobody else may write to it any more.
        unsafe { memory.write_bytes(1, BYTES as usize) };
        let outcome = user.wait(&ticket);
        assert!(outcome.is_ok_and(|done| done.bytes == 20 * BYTES) || is_gone(&mut user, &remote));
        // SAFETY: as above.
        let is_untouched = (0..BYTES as usize).all(|i| unsafe { memory.add(i).read_volatile() } == 1);
        assert!(is_untouched, "round {round}: written after its owner had it back");
        assert!(is_gone(&mut user, &remote));
        user.close(&remote).unwrap();
        assert_eq!(user.open_at(peer, &name, Rights::READ).unwrap_err().status(), Status::NAME_UNKNOWN);
    }
    assert_eq!(mapped(&b, &a), (20, 20));
}

#[test]
fn what_was_mapped_is_closed_and_can_be_opened_again_without_end() {
    let place = Place::new();
    let (a, b) = (owner(&place), start(true));
    let (owner, mut user) = (client(&a), client(&b));
    let table = exported(&owner, "table", Rights::READ);
    let peer = connect(&user, &a);
    for round in 0..100 {
        let remote = user.open_at(peer, "table", Rights::READ).unwrap();
        if round % 20 == 0 {
            assert!(is_right(&mut user, &remote));
        }
        user.close(&remote).unwrap();
    }
    assert_eq!(mapped(&b, &a), (100, 100));
    // More at once than others may have: some are mapped, and clients still find room.
    let opened: Vec<Region> = (0..40).map(|_| user.open_at(peer, "table", Rights::READ).unwrap()).collect();
    let (regions, _) = mapped(&b, &a);
    assert!((130..140).contains(&regions), "{regions} regions");
    assert!(opened.iter().all(|remote| is_right(&mut user, remote)));
    let others: Vec<Client> = (0..20).map(|_| client(&a)).collect();
    // One close for all of them.
    owner.close(&table).unwrap();
    assert!(opened.iter().all(|remote| is_gone(&mut user, remote)));
    drop(others);
}

#[test]
fn an_engine_that_stops_takes_what_was_mapped_of_it_with_it() {
    let place = Place::new();
    let (a, b) = (owner(&place), start(true));
    let (owner, mut user) = (client(&a), client(&b));
    let kept = [exported(&owner, "table", Rights::READ), exported(&owner, "kept", Rights::READ)];
    let peer = connect(&user, &a);
    let table = user.open_at(peer, "table", Rights::READ).unwrap();
    let other = user.open_at(peer, "kept", Rights::READ).unwrap();
    assert!(is_right(&mut user, &table) && is_right(&mut user, &other));
    assert_eq!(mapped(&b, &a), (2, 2));
    a.stop();
    // Nobody touches it any more when that has returned.
    eventually("the regions are gone", || is_gone(&mut user, &table) && is_gone(&mut user, &other));
    user.close(&table).unwrap();
    // Its own memory is as it was.
    let own = exported(&user, "own", Rights::READ);
    assert!(is_right(&mut user, &own));
    drop((owner, kept));
}

#[test]
fn memory_of_the_engines_own_process_is_mapped_if_others_can_map_it_safely() {
    let place = Place::new();
    let (a, b) = (owner(&place), start(true));
    let mut user = client(&b);
    let peer = connect(&user, &a);
    let shared = |is_sealed: bool| {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
        let fd = memfd_create("table", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 4096 + BYTES).unwrap();
        if is_sealed {
            fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        }
        let map = memmap2::MmapOptions::new().len(4096 + BYTES as usize).map_raw(&fd).unwrap();
        rustix::io::pwrite(fd.as_fd(), &bytes(0, BYTES), 4096).unwrap();
        map
    };
    // This process has no guard against files that are cut short.
    let (sealed, unsealed, mut private) = (shared(true), shared(false), bytes(0, BYTES));
    let behind = |map: &memmap2::MmapRaw| map.as_mut_ptr().wrapping_add(4096);
    let exports = [
        ("sealed", behind(&sealed), true, 1),
        ("unsealed", behind(&unsealed), true, 1),
        ("private", private.as_mut_ptr(), false, 1),
    ];
    for (name, base, is_shareable, regions_mapped) in exports {
        // SAFETY: nobody uses it until it is closed.
        let adopted = unsafe { a.adopt(name, base, BYTES, Rights::READ) }.unwrap();
        assert_eq!(adopted.is_shareable(), is_shareable);
        let table = user.open_at(peer, name, Rights::READ).unwrap();
        assert!(is_right(&mut user, &table), "{name}");
        assert_eq!(b.counters().peer_regions_mapped, regions_mapped, "{name}");
        adopted.close();
        assert!(is_gone(&mut user, &table), "{name}");
    }
}

/// A process of this program that has an engine, maps a table of another one, and reads it until it is killed.
fn another_engine(endpoint: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "an_engine_that_will_be_killed", "--ignored", "--nocapture"])
        .env("SCATTER_RING_TEST_ENDPOINT", endpoint)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("mapped")), "it has not mapped the table");
    child
}

#[test]
#[ignore = "is run by others, as a process of its own that is killed"]
fn an_engine_that_will_be_killed() {
    let Ok(endpoint) = std::env::var("SCATTER_RING_TEST_ENDPOINT") else { return };
    let engine = start(true);
    let mut user = client(&engine);
    let peer = user.connect(&endpoint).unwrap();
    let table = user.open_at(peer, "table", Rights::READ_WRITE).unwrap();
    assert_eq!(engine.counters().peer_regions_mapped, 1);
    println!("mapped");
    while is_right(&mut user, &table) {}
}

#[test]
fn memory_comes_back_from_an_engine_that_was_killed_and_not_before() {
    let place = Place::new();
    let a = owner(&place);
    let owner = client(&a);
    let endpoint = a.endpoint().unwrap().to_string();
    for stops in [false, true] {
        let table = exported(&owner, "table", Rights::READ_WRITE);
        let mut child = another_engine(&endpoint);
        let is_killed = AtomicBool::new(false);
        let wait = Duration::from_millis(if stops { 100 } else { 0 });
        std::thread::scope(|scope| {
            if stops {
                let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
                storm::wait_until_stopped(child.id());
            }
            let killer = scope.spawn(|| {
                std::thread::sleep(wait);
                is_killed.store(true, Ordering::SeqCst);
                child.kill().unwrap();
                child.wait().unwrap();
            });
            if !stops {
                killer.join().unwrap();
            }
            owner.close(&table).unwrap();
            assert!(is_killed.load(Ordering::SeqCst), "it is called free while a stopped process has it mapped");
        });
    }
    assert_eq!(a.counters().peer_files_given, 2);
}
