//! What a batch costs by RDMA verbs, counted by the devices: work requests, doorbells, signalled requests, completions that
//! are polled, pieces. The numbers are those of the formula, exactly.

mod link_cases;
mod linked;
mod listed;
mod nic;
mod nic_links;
mod seeded;

use linked::{filled, local, poll_until, region, remote};
use nic::{Counts, Drive, Network, Profile};
use nic_links::{Side, pair};
use scatter_ring::link::verbs::Limits;
use scatter_ring::link::{GrantId, LocalPiece, Operation, RemotePiece, Transport};
use scatter_ring::region::{Region, Rights};
use std::sync::Arc;

/// A batch of `requests` work requests, `window` to a doorbell, one of `every` signalled and the last of each doorbell.
#[derive(Clone, Copy, Debug)]
struct Formula {
    requests: u64,
    window: u64,
    every: u64,
}

impl Formula {
    fn doorbells(&self) -> u64 {
        self.requests.div_ceil(self.window)
    }

    fn signalled(&self) -> u64 {
        let of_doorbell = |requests: u64| requests.div_ceil(self.every);
        let (full, rest) = (self.requests / self.window, self.requests % self.window);
        full * of_doorbell(self.window) + of_doorbell(rest)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// An operation for each fragment.
    Operations,
    /// One operation, whose fragments lie apart on both sides.
    Apart,
    /// One operation, whose fragments lie apart here and in one run there: the device gathers or scatters them.
    Gathered,
}

/// None lies across the end of a page, where some devices want a request more.
const FRAGMENT: u32 = 128;
const MOST: u64 = 64;

struct Bench {
    network: Network,
    a: Side,
    b: Side,
    mine: Arc<Region>,
    grant: GrantId,
    limits: Limits,
}

impl Bench {
    fn new(profile: Profile, window: u32, every: u32) -> Bench {
        let limits = Limits { window, signal_every: every, depth: 256, ..Limits::default() };
        let network = Network::new(profile, Drive::Polls, 3);
        let (mut a, mut b) = pair(&network, 1, &limits);
        let bytes = MOST * 2 * u64::from(FRAGMENT);
        let (mine, theirs) = (a.own(filled(&vec![1; bytes as usize])), region(bytes));
        let grant = b.lets(&mut a, &theirs, Rights::READ_WRITE);
        // Credits that go back are no part of a batch: everything of before is over.
        (0..1000).for_each(|_| _ = (a.poll(), b.poll()));
        network.set_drive(Drive::Hand);
        Bench { network, a, b, mine, grant, limits }
    }

    fn here(&self, i: u64) -> LocalPiece {
        local(&self.mine, i * 2 * u64::from(FRAGMENT), FRAGMENT)
    }

    fn there(&self, i: u64, is_apart: bool) -> RemotePiece {
        let stride = if is_apart { 2 } else { 1 };
        remote(self.grant, i * stride * u64::from(FRAGMENT), FRAGMENT)
    }

    /// Counts of a batch of so many fragments.
    fn run(&mut self, fragments: u64, shape: Shape, is_read: bool) -> Counts {
        let here: Vec<_> = (0..fragments).map(|i| self.here(i)).collect();
        let there: Vec<_> = (0..fragments).map(|i| self.there(i, shape != Shape::Gathered)).collect();
        let whole = [remote(self.grant, 0, fragments as u32 * FRAGMENT)];
        let operation = |id, local, remote| match is_read {
            true => Operation::Read { id, from: remote, to: local },
            false => Operation::Write { id, from: local, to: remote, acknowledged: false },
        };
        let operations: Vec<_> = match shape {
            Shape::Operations => {
                (0..).zip(here.chunks(1).zip(there.chunks(1))).map(|(id, (l, r))| operation(id, l, r)).collect()
            }
            Shape::Apart => vec![operation(0, &here, &there)],
            Shape::Gathered => vec![operation(0, &here, &whole)],
        };
        let (before, counted) = (self.network.counts(0), self.a.link.lane_counters(0));
        self.a.link.post(0, &operations).unwrap();
        assert_eq!(self.network.counts(0).polls, before.polls, "a post polls nothing");
        let posted = self.network.counts(0);
        self.network.settle();
        poll_until(&mut self.a, &mut self.b, |a, _| a.completed.len() == operations.len());
        self.a.completed.clear();
        let after = self.network.counts(0);
        assert_eq!(after.doorbells, posted.doorbells, "all of it leaves with the post");
        let counts = difference(&after, &before);
        // What the link says of itself is what the device has counted.
        let now = self.a.link.lane_counters(0);
        let says = [
            now.doorbells - counted.doorbells,
            now.requests - counted.requests,
            now.signalled - counted.signalled,
            now.sent - counted.sent,
        ];
        assert_eq!(says, [counts.doorbells, counts.requests(), counts.signalled, counts.polled_requests]);
        counts
    }
}

fn difference(after: &Counts, before: &Counts) -> Counts {
    Counts {
        doorbells: after.doorbells - before.doorbells,
        writes: after.writes - before.writes,
        reads: after.reads - before.reads,
        sends: after.sends - before.sends,
        signalled: after.signalled - before.signalled,
        pieces: after.pieces - before.pieces,
        polled_requests: after.polled_requests - before.polled_requests,
        polled_receives: after.polled_receives - before.polled_receives,
        polled_errors: after.polled_errors - before.polled_errors,
        ..Counts::default()
    }
}

#[test]
fn a_batch_costs_what_the_formula_says() {
    for profile in [Profile::rxe(), Profile::siw(), Profile::hardware()] {
        for (window, every) in [1, 4, 16, 32].into_iter().flat_map(|window| [1, 3, 8, 64].map(|every| (window, every)))
        {
            let mut bench = Bench::new(profile, window, every);
            for (fragments, is_read) in [1, 2, 7, 16, 33, MOST].into_iter().flat_map(|n| [(n, false), (n, true)]) {
                for shape in [Shape::Operations, Shape::Apart, Shape::Gathered] {
                    let pieces = if is_read { profile.max_sge.min(profile.max_sge_rd) } else { profile.max_sge };
                    let requests = match shape {
                        Shape::Gathered => fragments.div_ceil(pieces.min(32).into()),
                        _ => fragments,
                    };
                    let formula = Formula { requests, window: window.into(), every: every.into() };
                    let counts = bench.run(fragments, shape, is_read);
                    let what = format!("{shape:?}, {fragments} fragments, read {is_read}: {formula:?}, {profile:?}");
                    let moved = if is_read { counts.reads } else { counts.writes };
                    assert_eq!((moved, counts.requests()), (requests, requests), "{what}");
                    assert_eq!(counts.doorbells, formula.doorbells(), "doorbells: {what}");
                    assert_eq!(counts.signalled, formula.signalled(), "signalled: {what}");
                    assert_eq!(counts.polled_requests, formula.signalled(), "polled: {what}");
                    assert_eq!(counts.pieces, fragments, "pieces: {what}");
                    assert_eq!((counts.polled_receives, counts.polled_errors), (0, 0), "{what}");
                }
            }
            bench.network.assert_clean();
            let Bench { network, mut a, mut b, .. } = bench;
            network.set_drive(Drive::Polls);
            linked::end(&mut a, &mut b);
        }
    }
}

/// A chunk of the gathering route is packed by its owner: one WRITE, and the message that says so, in one doorbell.
#[test]
fn a_packed_chunk_is_two_requests_and_one_doorbell() {
    let mut bench = Bench::new(Profile::rxe(), 32, 32);
    for chunk in 0..10 {
        let (from, to) = ([local(&bench.mine, 0, 10_000)], [remote(bench.grant, 0, 10_000)]);
        let before = [bench.network.counts(0), bench.network.counts(1)];
        let write = Operation::Write { id: chunk, from: &from, to: &to, acknowledged: false };
        bench.a.link.post(0, &[write, Operation::Send { bytes: b"there", names: None }]).unwrap();
        bench.network.settle();
        poll_until(&mut bench.a, &mut bench.b, |a, b| !a.completed.is_empty() && !b.received.is_empty());
        bench.a.completed.clear();
        bench.b.received.clear();
        let counts = difference(&bench.network.counts(0), &before[0]);
        assert_eq!((counts.writes, counts.sends, counts.doorbells, counts.signalled), (1, 1, 1, 1), "chunk {chunk}");
        let there = difference(&bench.network.counts(1), &before[1]);
        assert_eq!((there.polled_receives, there.polled_errors), (1, 0), "chunk {chunk}");
        bench.network.settle();
        // What goes back are credits: one message for several that have come.
        assert!(there.sends <= 1);
    }
    assert_eq!(bench.limits.messages, 16);
    let credits = bench.network.counts(1).sends;
    assert!(credits <= 3, "{credits} messages back for ten chunks");
    bench.network.assert_clean();
}

/// More than fits: as many as there is room for, and never more.
#[test]
fn a_queue_is_never_asked_for_more_than_it_has_and_half_of_it_is_reported_at_a_time() {
    for depth in [2, 4, 16] {
        let network = Network::new(Profile::rxe(), Drive::Polls, u64::from(depth));
        let limits = Limits { depth, window: 32, signal_every: 1000, ..Limits::default() };
        let (mut a, mut b) = pair(&network, 1, &limits);
        let (mine, theirs) = (a.own(filled(&[1; 64])), region(64));
        let grant = b.lets(&mut a, &theirs, Rights::WRITE);
        let pieces: Vec<_> = (0..64).map(|i| ([local(&mine, i, 1)], [remote(grant, i, 1)])).collect();
        for round in 0..20 {
            let writes: Vec<_> = (0..)
                .zip(&pieces)
                .map(|(id, (from, to))| Operation::Write { id, from, to, acknowledged: false })
                .collect();
            a.post(0, &writes, &mut b);
            poll_until(&mut a, &mut b, |a, _| a.completed.len() == 64);
            assert!(a.completed.drain().all(|(_, result)| result == Ok(())), "round {round}");
        }
        let counts = network.counts(0);
        assert_eq!(counts.send_queue_peak, u64::from(depth));
        assert!(counts.signalled * u64::from(depth / 2) >= counts.requests(), "{counts:?}");
        linked::end(&mut a, &mut b);
        drop((a, b));
        network.assert_clean();
    }
}
