//! What engines do for each other by RDMA devices, whoever plays the devices: every byte is looked at.

use crate::peered::{Caller, Job, Owner, attach, start};
use crate::seeded::Random;
use ring_abi::{Route, Status};
use scatter_ring::client::{Client, Setup};
use scatter_ring::engine::{PeerSettings, RunningEngine};
use scatter_ring::region::Rights;
use std::time::{Duration, Instant};

/// Settings of the owner's engine, and of its clients'.
pub type Pair = [PeerSettings; 2];

fn begin([owner, caller]: &Pair) -> (Owner, RunningEngine) {
    (Owner::new(owner.clone()), start(caller.clone()))
}

pub fn batches_of_every_shape_and_route_have_every_byte_in_its_place(pair: &Pair) {
    let (owner, engine) = begin(pair);
    let mut caller = Caller::new(&engine, &owner, &owner.endpoint);
    let mut random = Random::from_seed(61);
    let (mut direct, mut gathered) = (0, 0);
    for _ in 0..60 {
        let job = caller.any_job(&mut random);
        let outcome = caller.run(job).unwrap();
        direct += u32::from(outcome.route == Route::DIRECT);
        gathered += u32::from(outcome.route == Route::GATHER);
    }
    assert!(direct > 0 && gathered > 0, "{direct} direct, {gathered} gathered");
    let counters = engine.counters();
    assert_eq!((counters.peers_by_verbs, counters.peers_by_tcp, counters.peers_fell_back), (1, 0, 0));
    assert!(counters.regions_registered >= 2, "{counters:?}");
}

pub fn several_clients_share_a_connection(pair: &Pair) {
    let (owner, engine) = begin(pair);
    std::thread::scope(|scope| {
        for number in 0..3u64 {
            let (engine, zones) = (&engine, number * 4..number * 4 + 4);
            let (endpoint, sink) = (owner.endpoint.clone(), Some(owner.sink.clone()));
            scope.spawn(move || {
                let mut caller = Caller::with_zones(engine, &endpoint, sink, zones);
                let mut random = Random::from_seed(number);
                for _ in 0..15 {
                    let job = caller.any_job(&mut random);
                    caller.run(job).unwrap();
                }
            });
        }
    });
    assert_eq!(engine.counters().peers_by_verbs, 1);
}

pub fn a_region_that_is_withdrawn_under_way_fails_its_batch_and_not_the_connection(pair: &Pair) {
    let (owner, engine) = begin(pair);
    let mut caller = Caller::new(&engine, &owner, &owner.endpoint);
    let mut random = Random::from_seed(5);
    caller.run(Job::large(&mut random, false)).unwrap();
    let batch = caller.submit(Job::large(&mut random, false), None);
    let started = Instant::now();
    // Returns when no peer reaches it any more.
    owner.client.close(&owner.table).unwrap();
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    if let Err(error) = caller.end(&batch) {
        assert_eq!(error.status, Status::REGION_GONE, "{error}");
    }
    let write = Job::gathered(&mut random, true);
    caller.run(write).unwrap();
    let counters = engine.counters();
    assert_eq!((counters.peers_connected, counters.peers_ended), (1, 0), "the connection was kept");
}

pub fn an_owner_that_goes_is_noticed_and_one_that_comes_back_is_used_again(pair: &Pair) {
    let (owner, engine) = begin(pair);
    let mut caller = Caller::new(&engine, &owner, &owner.endpoint);
    let mut random = Random::from_seed(6);
    caller.run(Job::large(&mut random, true)).unwrap();
    let batch = caller.submit(Job::large(&mut random, true), None);
    drop(owner.engine);
    let outcome = caller.end(&batch);
    if let Err(error) = outcome {
        assert_eq!(error.status, Status::REGION_GONE, "{error}");
    }
    let _ = attach(&engine);
}

pub fn the_owners_device_gathers_long_rows_and_its_processors_pack_short_ones(pair: &Pair) {
    let (owner, engine) = begin(pair);
    let mut caller = Caller::new(&engine, &owner, &owner.endpoint);
    let mut random = Random::from_seed(8);
    for (row_bytes, is_packed) in [(64, true), (264, true), (4096, false), (8192, false)] {
        let outcome = caller.run(Job::gathered_rows(&mut random, row_bytes)).unwrap();
        // A chunk that waits too long for a slot goes direct, which happens on slow machines.
        assert_ne!(outcome.route, Route::DIRECT);
        assert_eq!(outcome.times.pack > Duration::ZERO, is_packed, "{row_bytes}: {:?}", outcome.times);
    }
}

pub fn a_notification_comes_behind_the_data_of_its_batch(pair: &Pair) {
    const PIECE: u64 = 64 << 10;
    let (owner, engine) = begin(pair);
    let setup = Setup { notifications: true, ..Setup::default() };
    let mut told = Client::over(owner.engine.connect().unwrap(), &setup).unwrap();
    let inbox = told.allocate(20 * PIECE).unwrap();
    told.export(&inbox, "inbox", Rights::READ_WRITE).unwrap();
    let mut client = attach(&engine);
    let peer = client.connect(&owner.endpoint.to_string()).unwrap();
    let remote = client.open_at(peer, "inbox", Rights::READ_WRITE).unwrap();
    let from = client.allocate(PIECE).unwrap();
    for number in 0..20 {
        let bytes = vec![number as u8 + 1; PIECE as usize];
        from.write_at(0, &bytes).unwrap();
        let mut batch = client.batch();
        batch.write(&from, 0, &remote, number * PIECE, PIECE).unwrap();
        batch.user_data(number);
        let ticket = batch.notify(&remote, number * PIECE, None).unwrap();
        let event = told.wait_notification(Some(Duration::from_secs(10))).unwrap().expect("nobody was told");
        assert_eq!((event.user_data, event.offset), (number, number * PIECE));
        let mut got = vec![0; PIECE as usize];
        inbox.read_at(number * PIECE, &mut got).unwrap();
        assert!(got == bytes, "told before the data was there");
        assert_eq!(client.wait(&ticket).unwrap().bytes, PIECE);
    }
}
