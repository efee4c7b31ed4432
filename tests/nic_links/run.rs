//! A short conversation of everything between two links, while something goes wrong; and what must be true after it.

use super::{Side, nic, pair_of};
use crate::linked::{contents, filled, local, pattern, region, remote};
use crate::nic::{Drive, Network, Profile};
use scatter_ring::link::verbs::Limits;
use scatter_ring::link::verbs::nic::Nic;
use scatter_ring::link::{Failure, GrantId, Operation, PostError, Transport};
use scatter_ring::region::{Region, Rights};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub struct Run {
    pub label: String,
    pub network: Network,
    pub nics: [Arc<Nic>; 2],
    pub sides: [Side; 2],
    /// The devices tell everything: nothing is to be given up as untold.
    pub expects_all: bool,
    players: [Player; 2],
    /// What was registered before there was a link, by device.
    registered_before: [u64; 2],
    lanes: usize,
}

/// One side of it.
struct Player {
    source: Arc<Region>,
    into: Arc<Region>,
    source_there: GrantId,
    into_there: GrantId,
    posted: Vec<u64>,
    messages: Vec<(usize, Vec<u8>)>,
}

/// Each operation has a place of its own.
const SLOT: u64 = 8192;
const GAP: u64 = 8;
const OPERATIONS: u64 = 12;
const BYTES: u64 = OPERATIONS * SLOT;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Acknowledged,
    Read,
    Send,
}

fn kind(id: u64) -> Kind {
    [Kind::Write, Kind::Send, Kind::Acknowledged, Kind::Read][id as usize % 4]
}

/// In two pieces here, and two there, which lie apart: two requests, of which not each is signalled.
fn len(id: u64) -> u32 {
    [40, 3000, 700, 4096][(id / 4) as usize % 4] - 3 * (id % 3) as u32
}

impl Run {
    pub fn new(label: String, profile: Profile, lanes: usize, limits: &Limits, seed: u64) -> Run {
        let network = Network::new(profile, Drive::Polls, seed);
        let nics = [nic(&network, 0), nic(&network, 1)];
        Run::on(label, network, nics, lanes, limits)
    }

    /// On devices that have been used before.
    pub fn on(label: String, network: Network, nics: [Arc<Nic>; 2], lanes: usize, limits: &Limits) -> Run {
        let registered_before = [0, 1].map(|device| network.counts(device).registrations);
        let (mut a, mut b) = pair_of(&nics, lanes, limits);
        let memory = |side: &Side, seed| (side.own(filled(&pattern(BYTES as usize, seed))), side.own(region(BYTES)));
        let (of_a, of_b) = (memory(&a, 1), memory(&b, 2));
        let there_a = [b.lets(&mut a, &of_b.0, Rights::READ), b.lets(&mut a, &of_b.1, Rights::WRITE)];
        let there_b = [a.lets(&mut b, &of_a.0, Rights::READ), a.lets(&mut b, &of_a.1, Rights::WRITE)];
        let player = |(source, into): (Arc<Region>, Arc<Region>), there: [GrantId; 2]| Player {
            source,
            into,
            source_there: there[0],
            into_there: there[1],
            posted: Vec::new(),
            messages: Vec::new(),
        };
        let players = [player(of_a, there_a), player(of_b, there_b)];
        Run { label, network, nics, sides: [a, b], expects_all: false, players, registered_before, lanes }
    }

    /// Polls both sides; true if something happened.
    pub fn poll(&mut self) -> bool {
        let before = self.progress();
        self.sides.iter_mut().for_each(|side| _ = side.poll());
        self.progress() != before
    }

    fn progress(&self) -> usize {
        let of = |side: &Side| side.completed.len() + side.received.len() + usize::from(side.down.is_some());
        self.sides.iter().map(of).sum()
    }

    /// Both sides post everything they have. It is over when all is done, a side is down, or nothing happens any more.
    /// `meanwhile` is called between polls.
    pub fn play(&mut self, meanwhile: &mut dyn FnMut(&Network, u64)) {
        let (mut idle, mut polls) = (0, 0);
        while idle < 300 && !self.is_done() && self.sides.iter().all(|side| side.down.is_none()) {
            let posted = self.post_next(0) | self.post_next(1);
            idle = if posted | self.poll() { 0 } else { idle + 1 };
            meanwhile(&self.network, polls);
            polls += 1;
        }
    }

    pub fn is_done(&self) -> bool {
        (0..2).all(|me| {
            let (player, other) = (&self.players[me], &self.players[1 - me]);
            player.posted.len() + player.messages.len() == OPERATIONS as usize
                && self.sides[me].completed.len() == player.posted.len()
                && self.sides[me].received.len() == other.messages.len()
        })
    }

    /// The next operation of a side, if there is one and it has room.
    fn post_next(&mut self, me: usize) -> bool {
        let (player, side) = (&mut self.players[me], &mut self.sides[me]);
        let id = (player.posted.len() + player.messages.len()) as u64;
        if id == OPERATIONS || side.down.is_some() {
            return false;
        }
        let (lane, at, len) = (id as usize % self.lanes, id * SLOT, len(id));
        let half = len / 2;
        let pieces = |memory: &Arc<Region>| [local(memory, at, half), local(memory, at + u64::from(half), len - half)];
        let message = pattern(len as usize, id);
        let there = |grant| [remote(grant, at, 1), remote(grant, at + 1 + GAP, len - 1)];
        let (from_there, to_there) = (there(player.source_there), there(player.into_there));
        let (from, to) = (pieces(&player.source), pieces(&player.into));
        let operation = match kind(id) {
            Kind::Send => Operation::Send { bytes: &message, names: None },
            Kind::Read => Operation::Read { id, from: &from_there, to: &to },
            kind => Operation::Write { id, from: &from, to: &to_there, acknowledged: kind == Kind::Acknowledged },
        };
        match side.link.post(lane, &[operation]) {
            Ok(()) if kind(id) == Kind::Send => player.messages.push((lane, message)),
            Ok(()) => player.posted.push(id),
            Err(PostError::Full | PostError::Down) => return false,
            Err(refused) => panic!("{}: {refused}", self.label),
        }
        true
    }

    /// What is said to have been done has been, and what has come was sent.
    pub fn check(&self) {
        for (me, other) in [(0, 1), (1, 0)] {
            let (side, player) = (&self.sides[me], &self.players[me]);
            for (id, _) in side.completed.iter().filter(|(_, result)| result.is_ok()) {
                let (from, to) = match kind(*id) {
                    // By READ it is in place here, by an acknowledged WRITE there.
                    Kind::Read => (&self.players[other].source, &player.into),
                    Kind::Acknowledged => (&player.source, &self.players[other].into),
                    _ => continue,
                };
                let (at, len) = ((*id * SLOT) as usize, len(*id) as usize);
                let apart = |memory: &[u8]| [&memory[at..=at], &memory[at + 1 + GAP as usize..][..len - 1]].concat();
                let together = |memory: &[u8]| memory[at..at + len].to_vec();
                let (from, to) = (contents(from), contents(to));
                let is_there = match kind(*id) {
                    Kind::Read => apart(&from) == together(&to),
                    _ => together(&from) == apart(&to),
                };
                assert!(is_there, "{}: side {me} takes {id} for done", self.label);
            }
            assert!(
                side.completed.values().all(|result| matches!(result, Ok(()) | Err(Failure::Down))),
                "{}",
                self.label
            );
            for lane in 0..self.lanes {
                let on_lane = |messages: &[(usize, Vec<u8>)]| -> Vec<Vec<u8>> {
                    messages.iter().filter(|(by, _)| *by == lane).map(|(_, bytes)| bytes.clone()).collect()
                };
                let (came, sent) = (on_lane(&side.received), on_lane(&self.players[other].messages));
                assert!(sent.starts_with(&came), "{}: messages of lane {lane} to side {me}", self.label);
            }
        }
    }

    /// Everything went well, as if nothing were wrong.
    #[track_caller]
    pub fn assert_done(&self) {
        self.check();
        let downs = self.sides.each_ref().map(|side| side.down);
        assert!(self.is_done(), "{}: not done, {downs:?}", self.label);
        assert!(self.sides.iter().all(|side| side.completed.values().all(Result::is_ok)), "{}", self.label);
        assert_eq!(downs, [None, None], "{}", self.label);
    }

    /// Completions that a side could not believe.
    pub fn stale(&self) -> u64 {
        self.sides.iter().map(|side| side.link.counters().stale).sum()
    }

    /// Everything that was posted has its outcome.
    fn assert_ended(&self, me: usize) {
        let (side, player) = (&self.sides[me], &self.players[me]);
        assert_eq!(side.completed.len(), player.posted.len(), "{}: side {me} has no outcome of some", self.label);
        assert!(side.down.is_some(), "{}", self.label);
    }

    fn is_over(&self) -> bool {
        self.sides.iter().all(|side| side.link.is_quiet() || side.link.is_stuck())
    }
}

/// Ends of runs: which sides are to be stuck for ever.
pub type Stuck = [bool; 2];

/// Shuts both sides of all runs down, all at once because that takes a time. A side that is quiet has everything back, and
/// nothing touches its memory any more; one that is stuck keeps all of it for ever. Says which are stuck, by run.
pub fn end(mut runs: Vec<Run>) -> Vec<Stuck> {
    for side in runs.iter_mut().flat_map(|run| &mut run.sides) {
        side.link.shut_down();
    }
    let started = Instant::now();
    while !runs.iter().all(Run::is_over) {
        let late: Vec<_> = runs.iter().filter(|run| !run.is_over()).map(|run| &run.label).collect();
        assert!(started.elapsed() < Duration::from_secs(10), "neither quiet nor stuck: {late:?}");
        runs.iter_mut().filter(|run| !run.is_over()).for_each(|run| _ = run.poll());
        std::thread::yield_now();
    }
    runs.into_iter().map(end_of_one).collect()
}

fn end_of_one(run: Run) -> Stuck {
    run.check();
    let stuck = run.sides.each_ref().map(|side| side.link.is_stuck());
    for me in [0, 1] {
        let Run { label, network, sides, players, .. } = &run;
        if stuck[me] {
            assert!(!sides[me].link.is_quiet(), "{label}");
            continue;
        }
        run.assert_ended(me);
        let untold = sides[me].link.counters().untold;
        assert!(untold == 0 || !run.expects_all, "{label}: side {me} gave up {untold} requests");
        assert_eq!(
            network.outstanding(me),
            0,
            "{label}: side {me} is quiet, and not everything is known to have ended"
        );
        // Of operations nobody has the memory any more: what this side gave the other is kept by its grants.
        let counts = [Arc::strong_count(&players[me].source), Arc::strong_count(&players[me].into)];
        assert_eq!(counts, [2, 2], "{label}: side {me} is quiet and keeps memory");
        let mark = vec![0xEE; BYTES as usize];
        players[me].into.write_at(0, &mark).unwrap();
        network.settle();
        assert!(contents(&players[me].into) == mark, "{label}: written after side {me} was quiet");
    }
    drop_all(run, stuck);
    stuck
}

fn drop_all(run: Run, stuck: Stuck) {
    let Run { label, network, nics, sides, players, registered_before, lanes, .. } = run;
    let started = Instant::now();
    let memory = players.map(|player| [player.source, player.into]);
    drop(sides);
    assert!(started.elapsed() < Duration::from_millis(500), "{label}: it waits for what does not come");
    for me in [0, 1] {
        let now = network.counts(me).registrations - registered_before[me];
        if stuck[me] {
            // A queue pair lives on, with all that it may reach.
            assert!(!network.queue_pairs(me).is_empty(), "{label}: side {me}");
            assert!(now > 0, "{label}: side {me} was stuck and has given memory back");
        } else {
            assert_eq!(network.queue_pairs(me).len(), 0, "{label}: side {me}");
        }
    }
    for (me, regions) in memory.into_iter().enumerate().filter(|(me, _)| !stuck[*me]) {
        let counts = regions.each_ref().map(Arc::strong_count);
        assert_eq!(counts, [1, 1], "{label}: side {me} is gone and keeps memory");
        drop(regions);
        assert_eq!(network.counts(me).registrations, registered_before[me], "{label}: side {me} left something");
    }
    network.assert_clean();
    // What comes after it on the same devices finds them as they were.
    if stuck == [false, false] && !network.is_spoiled() {
        after(label, network, nics, lanes);
    }
}

fn after(label: String, network: Network, nics: [Arc<Nic>; 2], lanes: usize) {
    let limits = super::narrow();
    network.calm();
    let mut run = Run::on(format!("{label}; after it"), network, nics, lanes, &limits);
    run.play(&mut |_, _| {});
    run.assert_done();
    let Run { network, mut sides, .. } = run;
    let [a, b] = &mut sides;
    crate::linked::end(a, b);
    drop(sides);
    network.assert_clean();
}
