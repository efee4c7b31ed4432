//! Clients of one engine that use what clients of another export, over loopback.

mod exported;
mod serving;
mod support;

use exported::{BYTES, ROW, ROWS, bytes, client, connect, exported, is_right, rows};
use ring_abi::Status;
use scatter_ring::client::ClientError;
use scatter_ring::engine::{Config, Engine, PeerSettings, RunningEngine};
use scatter_ring::owner::Owner;
use scatter_ring::region::Rights;
use std::net::SocketAddr;
use support::hostile::eventually;

fn config(listen: SocketAddr) -> Config {
    let peers = PeerSettings { listen: vec![listen], ..PeerSettings::default() };
    Config { workers: 1, peers: Some(peers), ..Config::default() }
}

fn engine_at(address: SocketAddr) -> RunningEngine {
    Engine::new(&config(address)).unwrap().start().unwrap()
}

fn engine() -> RunningEngine {
    engine_at(([127, 0, 0, 1], 0).into())
}

/// An address of this host that only this process uses: a port of it that was free a moment ago is free now.
fn own_address() -> SocketAddr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    ([127, 1 + a % 200, b, c], 0).into()
}

fn status(error: &ClientError) -> Status {
    error.status()
}

#[test]
fn rows_of_another_engine_are_read_and_written_as_if_they_were_here() {
    let (a, b) = (engine(), engine());
    let (owner, mut user) = (client(&a), client(&b));
    let table = exported(&owner, "table", Rights::READ_WRITE);
    let peer = connect(&user, &a);
    let remote = user.open_at(peer, "table", Rights::READ_WRITE).unwrap();
    assert_eq!((remote.bytes(), remote.rights()), (BYTES, Rights::READ_WRITE));
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
    let all = user.allocate(BYTES).unwrap();
    user.read(&remote, 0, &all, 0, BYTES).unwrap();
    assert!(user.read(&remote, BYTES - 1, &all, 0, 2).unwrap_err().status == Status::OUT_OF_RANGE);
}

#[test]
fn a_failure_names_the_peer_whose_memory_the_batch_was_about() {
    let (a, c, b) = (engine(), engine(), engine());
    let (owner, other, mut user) = (client(&a), client(&c), client(&b));
    let _memory = (exported(&owner, "table", Rights::READ), exported(&other, "table", Rights::READ));
    let (at_a, at_c) = (connect(&user, &a), connect(&user, &c));
    let [of_a, of_c] = [at_a, at_c].map(|peer| user.open_at(peer, "table", Rights::READ).unwrap());
    let here = user.allocate(BYTES).unwrap();
    assert_eq!((of_a.peer(), here.peer()), (Some(at_a), None));
    assert_ne!(at_a.number(), at_c.number());
    // The last one is out of range.
    for (regions, expected) in
        [(vec![&of_a], Some(at_a)), (vec![&here, &of_c], Some(at_c)), (vec![&here], None), (vec![&of_a, &of_c], None)]
    {
        let mut batch = user.batch();
        for (i, region) in regions.iter().enumerate() {
            let offset = if i + 1 == regions.len() { BYTES } else { 0 };
            batch.read(region, offset, &here, 64, 8).unwrap();
        }
        let ticket = batch.submit().unwrap();
        let error = user.wait(&ticket).unwrap_err();
        assert_eq!((error.status, error.peer), (Status::OUT_OF_RANGE, expected));
    }
}

#[test]
fn both_engines_use_each_others_memory_by_one_connection() {
    let (a, b) = (engine(), engine());
    let (mut on_a, mut on_b) = (client(&a), client(&b));
    let _of_a = exported(&on_a, "of a", Rights::READ_WRITE);
    let _of_b = exported(&on_b, "of b", Rights::READ_WRITE);
    let (of_a, of_b) = (connect(&on_b, &a), connect(&on_a, &b));
    let of_a = on_b.open_at(of_a, "of a", Rights::READ).unwrap();
    let of_b = on_a.open_at(of_b, "of b", Rights::READ).unwrap();
    for _ in 0..20 {
        assert!(is_right(&mut on_a, &of_b) && is_right(&mut on_b, &of_a));
    }
    assert_eq!((a.counters().peers_connected, b.counters().peers_connected), (1, 1));
}

#[test]
fn a_peer_refuses_what_its_own_engine_would() {
    let (a, b) = (engine(), engine());
    let (owner, user) = (client(&a), client(&b));
    let table = owner.allocate(4096).unwrap();
    owner.export(&table, "table", Rights::READ).unwrap();
    let lender = Owner::over(a.connect().unwrap(), &scatter_ring::owner::Setup::default()).unwrap();
    let mut private = vec![0; 4096];
    // SAFETY: nobody uses it, and it stays for as long as it is lent.
    let lent = unsafe { lender.lend("lent", private.as_mut_ptr(), 4096, Rights::READ) }.unwrap();
    let peer = connect(&user, &a);
    let refused = |name, rights| user.open_at(peer, name, rights).unwrap_err();
    let unknown = refused("chair", Rights::READ);
    assert!(status(&unknown) == Status::NAME_UNKNOWN && unknown.to_string().contains("chair"), "{unknown}");
    assert_eq!(status(&refused("table", Rights::READ_WRITE)), Status::NO_RIGHT);
    let error = refused("lent", Rights::READ);
    assert!(status(&error) == Status::UNSUPPORTED && error.to_string().contains("owner's engine only"), "{error}");
    assert_eq!(a.counters().peer_opens_refused, 3);
    user.open_at(peer, "table", Rights::READ).unwrap();
    drop(lent);
}

#[test]
fn what_was_opened_is_closed_and_can_be_opened_again_without_end() {
    let mut limited = config(([127, 0, 0, 1], 0).into());
    limited.limits.regions = 4;
    let (a, b) = (engine(), Engine::new(&limited).unwrap().start().unwrap());
    let (owner, mut user) = (client(&a), client(&b));
    let _table = exported(&owner, "table", Rights::READ_WRITE);
    let peer = connect(&user, &a);
    for round in 0..300 {
        let table = user.open_at(peer, "table", Rights::READ).unwrap();
        if round % 100 == 0 {
            assert!(is_right(&mut user, &table));
        }
        // Either way: closed and waited for, or just let go of.
        if round % 2 == 0 {
            user.close(&table).unwrap();
        }
    }
    // Several handles of one export are several regions.
    let (first, second) =
        (user.open_at(peer, "table", Rights::READ).unwrap(), user.open_at(peer, "table", Rights::READ).unwrap());
    user.close(&first).unwrap();
    assert!(is_right(&mut user, &second));
}

#[test]
fn an_export_that_is_withdrawn_is_gone_for_peers_when_its_owner_has_it_back() {
    let (a, b) = (engine(), engine());
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
        batch.write(&new, 0, &remote, 0, BYTES).unwrap();
        let ticket = batch.submit().unwrap();
        let memory = table.as_ptr().unwrap();
        owner.close(&table).unwrap();
        // SAFETY: the region is mapped as long as `table` is there; nobody else may write to it any more.
        unsafe { memory.write_bytes(1, BYTES as usize) };
        let outcome = user.wait(&ticket);
        assert!(
            outcome.as_ref().is_ok_and(|done| done.bytes == BYTES)
                || outcome.as_ref().is_err_and(|e| e.status == Status::REGION_GONE),
            "{outcome:?}"
        );
        // SAFETY: as above.
        let is_untouched = (0..BYTES as usize).all(|i| unsafe { memory.add(i).read_volatile() } == 1);
        assert!(is_untouched, "round {round}: written after its owner had it back");
        let error = rows(&mut user, &remote, &[1]).unwrap_err();
        assert_eq!(error.status, Status::REGION_GONE);
        user.close(&remote).unwrap();
        assert_eq!(status(&user.open_at(peer, &name, Rights::READ).unwrap_err()), Status::NAME_UNKNOWN);
    }
}

#[test]
fn an_owner_that_goes_takes_its_exports_with_it() {
    let (a, b) = (engine(), engine());
    let mut user = client(&b);
    let owner = client(&a);
    let _table = exported(&owner, "table", Rights::READ_WRITE);
    let peer = connect(&user, &a);
    let table = user.open_at(peer, "table", Rights::READ).unwrap();
    assert!(is_right(&mut user, &table));
    drop(owner);
    eventually("the region is gone", || {
        rows(&mut user, &table, &[1]).is_err_and(|error| error.status == Status::REGION_GONE)
    });
    let owner = client(&a);
    let _table = exported(&owner, "table", Rights::READ_WRITE);
    let table = user.open_at(peer, "table", Rights::READ).unwrap();
    assert!(is_right(&mut user, &table));
}

#[test]
fn an_engine_that_stops_is_lost_and_comes_back_by_the_same_endpoint() {
    let (a, b) = (engine_at(own_address()), engine());
    let mut user = client(&b);
    let (endpoint, address) = (a.endpoint().unwrap().to_string(), a.endpoint().unwrap().addresses()[0]);
    let owner = client(&a);
    let _table = exported(&owner, "table", Rights::READ_WRITE);
    let peer = user.connect(&endpoint).unwrap();
    let table = user.open_at(peer, "table", Rights::READ).unwrap();
    assert!(is_right(&mut user, &table));
    drop(owner);
    a.stop();
    eventually("the region is gone", || {
        rows(&mut user, &table, &[1]).is_err_and(|error| error.status == Status::REGION_GONE)
    });
    eventually("the connection is gone", || {
        user.open_at(peer, "table", Rights::READ).is_err_and(|error| status(&error) == Status::PEER_UNREACHABLE)
    });
    assert_eq!(b.counters().peers_ended, 1);
    user.close(&table).unwrap();
    assert_eq!(status(&user.connect(&endpoint).unwrap_err()), Status::PEER_UNREACHABLE);

    let again = engine_at(address);
    let owner = client(&again);
    let _table = exported(&owner, "table", Rights::READ_WRITE);
    assert_eq!(user.connect(&endpoint).unwrap(), peer);
    let table = user.open_at(peer, "table", Rights::READ).unwrap();
    assert!(is_right(&mut user, &table));
}

#[test]
fn files_and_memory_of_the_engines_own_process_are_exports_like_others() {
    scatter_ring::engine::guard_process().unwrap();
    let (a, b) = (engine(), engine());
    let mut user = client(&b);
    let place = serving::Place::new();
    let file = place.path("table");
    std::fs::write(&file, bytes(0, BYTES)).unwrap();
    a.serve_file("file", &file, true).unwrap();
    let mut own = bytes(0, BYTES);
    // SAFETY: nobody uses it until it is closed.
    let adopted = unsafe { a.adopt("own", own.as_mut_ptr(), BYTES, Rights::READ) }.unwrap();
    let peer = connect(&user, &a);
    for name in ["file", "own"] {
        let table = user.open_at(peer, name, Rights::READ).unwrap();
        assert!(is_right(&mut user, &table), "{name}");
    }
    assert_eq!(status(&user.open_at(peer, "file", Rights::READ_WRITE).unwrap_err()), Status::NO_RIGHT);
    let table = user.open_at(peer, "own", Rights::READ).unwrap();
    adopted.close();
    own.fill(0);
    assert_eq!(rows(&mut user, &table, &[1]).unwrap_err().status, Status::REGION_GONE);
}

#[test]
fn an_engine_that_its_process_drives_ends_with_its_connections() {
    let mut a = Engine::new(&config(([127, 0, 0, 1], 0).into())).unwrap();
    let b = engine();
    let endpoint = a.endpoint().unwrap().to_string();
    let user = client(&b);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = support::hostile::StopsOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Acquire) {
                a.poll_once();
            }
        });
        let peer = user.connect(&endpoint).unwrap();
        assert_eq!(status(&user.open_at(peer, "none", Rights::READ).unwrap_err()), Status::NAME_UNKNOWN);
    });
    drop(a);
    eventually("the connection is gone", || b.counters().peers_ended == 1);
}
