//! Owners that do not do what they say, played word by word.

use super::jobs::{Moves, rules};
use super::seeded::Random;
use super::{News, PartId, Times, World, contents, sockets};
use crate::engine::mail::Event;
use crate::engine::remote::peer_tests::{Engine, Heard, Peer, SLOT_BYTES, config, region};
use crate::engine::remote::{RemoteConfig, State};
use crate::link::{GrantId, LocalPiece, Operation, RemotePiece, Transport};
use crate::peer::Message;
use crate::pipeline::{BatchId, ChunkId};
use crate::plan::{Direction, Fault};
use crate::region::{Region, Rights};
use ring_abi::{Field, Stage, Status};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An engine with one part under way, of one gathered chunk, and the owner that it goes to.
struct Scene {
    engine: Engine,
    peer: Peer,
    batch: BatchId,
    /// Memory of the engine.
    local: Arc<Region>,
    fragment: u32,
    /// PACK's or UNPACK's.
    id: ChunkId,
    lane: usize,
    /// Of PACK.
    landing: GrantId,
    bytes: u32,
    failed: Option<Fault>,
    finished: Option<bool>,
    is_cancelled: bool,
}

const PART: PartId = PartId { slot: 1, session: 2, part: 3 };
const HANDLE: u32 = 0x5;
const FAULT: Fault = Fault::new(Status::NO_RIGHT, Stage::COMMAND, Field::NONE, 7);

impl Scene {
    /// Up to the command, which has come.
    fn new(direction: Direction, lands_in_slot: bool) -> Scene {
        Scene::by(config(), direction, lands_in_slot)
    }

    fn by(config: RemoteConfig, direction: Direction, lands_in_slot: bool) -> Scene {
        let mut engine = Engine::new(config);
        let mut peer = engine.connect(3);
        // Or else that would be what is awaited.
        match peer.next_by(&mut engine, |message| matches!(message, Message::Ping { .. })) {
            (lane, Heard::Ping(number)) => peer.say(lane, &Message::Pong { number }),
            other => panic!("{other:?}"),
        }
        let moves = Moves::irregular(&mut Random::from_seed(9), 30, [false, !lands_in_slot], 100);
        let is_read = direction == Direction::Read;
        let (here, there) =
            if is_read { (moves.dst_bytes, moves.src_bytes) } else { (moves.src_bytes, moves.dst_bytes) };
        let local = region(here as u64);
        local.write_at(0, &vec![0xEE; here]).unwrap();
        engine.remotes.open(peer.seat, 1, "theirs", Rights::READ_WRITE);
        peer.next(&mut engine, |message| matches!(message, Message::Open { .. }));
        let theirs = region(there as u64);
        let grant = peer.link.grants().grant(theirs, 0, there as u64, Rights::READ_WRITE, crate::link::Use::Many);
        let (grant, bytes) = (grant.unwrap().0, there as u64);
        peer.say(0, &Message::Opened { request: 1, status: Status::OK, number: 1, grant, bytes, text: "" });
        assert!(matches!(engine.event(&mut [&mut peer]), Event::RemoteOpened { answer: Ok(_), .. }));
        let regions = if is_read { [1, HANDLE] } else { [HANDLE, 1] };
        let mut planned = moves.plan(rules(u32::MAX, SLOT_BYTES), regions);
        let batch = engine.remotes.begin(peer.seat, direction, 2, false, PART).unwrap();
        let mut parcel = engine.remotes.parcel(peer.seat, batch).unwrap();
        std::mem::swap(&mut parcel.chunk, planned.back_mut().unwrap());
        parcel.regions.push((HANDLE, local.clone()));
        let (bytes, fragment) = (parcel.chunk.bytes, parcel.chunk.fragment);
        engine.remotes.add(peer.seat, batch, parcel);
        engine.remotes.close(peer.seat, batch);
        let (id, landing, lane) = command(&mut engine, &mut peer);
        let (failed, finished) = (None, None);
        Scene { engine, peer, batch, local, fragment, id, lane, landing, bytes, failed, finished, is_cancelled: false }
    }

    fn poll(&mut self) -> bool {
        let moved = self.engine.poll() | self.peer.poll();
        while let Some(news) = self.engine.remotes.next_news() {
            assert_eq!(self.finished, None, "something after the end");
            match news {
                News::Notified { .. } => panic!("nobody was told anything"),
                News::Failed { part, fault, .. } => {
                    assert_eq!((part, self.failed.replace(fault)), (PART, None));
                }
                News::Finished { part, done, times: Times { .. } } => {
                    assert_eq!(part, PART);
                    self.finished = Some(done);
                }
            }
        }
        moved
    }

    #[track_caller]
    fn until(&mut self, done: impl Fn(&mut Scene) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            assert!(begun.elapsed().as_secs() < 20, "it hangs");
            if !self.poll() {
                std::thread::yield_now();
            }
        }
    }

    fn say(&mut self, lane: usize, message: &Message<'_>) {
        self.peer.say(lane, message);
    }

    fn cancel(&mut self) -> u64 {
        let now_ns = self.engine.now_ns();
        self.engine.remotes.cancel(self.peer.seat, self.batch, now_ns);
        self.is_cancelled = true;
        self.poll();
        now_ns
    }

    fn done(&self) -> Message<'static> {
        Message::Done { id: self.id, queue_ns: 1, pack_ns: 2 }
    }

    /// Writes so many bytes to the landing, from so far on.
    fn write(&mut self, offset: u64, len: u32) {
        let source = region(1 << 20);
        source.write_at(0, &vec![0x77; len as usize]).unwrap();
        let from = [LocalPiece::of_region(&source, 0, len).unwrap()];
        let to = [RemotePiece { grant: self.landing, offset, len }];
        let write = Operation::Write { id: 9, from: &from, to: &to, acknowledged: false };
        self.peer.link.post(self.lane, &[write]).unwrap();
    }

    /// It fails, and the connection stays.
    #[track_caller]
    fn fails(mut self, status: Status) {
        self.until(|scene| scene.finished.is_some());
        assert_eq!((self.finished, self.failed.map(|fault| fault.status)), (Some(false), Some(status)));
        assert_eq!(self.failed.unwrap().fragment, self.fragment);
        assert_eq!(self.engine.counters.ended, 0);
        self.check_untouched();
        self.engine.remotes.seats[0].asking.check_idle();
    }

    /// The connection ends, and with it the part.
    #[track_caller]
    fn ends(mut self, what: &str) {
        self.until(|scene| scene.engine.remotes.is_quiet());
        assert_eq!(self.engine.counters.violations, 1, "{what}");
        let has_reason = self.finished == Some(true) || self.failed.is_some() || self.is_cancelled;
        assert!(self.finished.is_some() && has_reason, "{what}");
        assert_eq!(self.engine.remotes.parcels.free(), 0, "{what}");
        assert_eq!(Arc::strong_count(&self.local), 1, "{what}");
    }

    #[track_caller]
    fn check_untouched(&self) {
        assert!(contents(&self.local).iter().all(|byte| *byte == 0xEE), "somebody wrote there");
    }
}

/// The command of the part's chunk, with its landing and its lane.
fn command(engine: &mut Engine, peer: &mut Peer) -> (ChunkId, GrantId, usize) {
    let mut found = None;
    engine.until(&mut [peer], |_, peers| {
        found = peers[0].heard.iter().find_map(|(lane, bytes)| match Message::read(bytes) {
            Ok(Message::Pack { id, landing, .. }) => Some((id, GrantId(landing), *lane)),
            Ok(Message::Unpack { id, .. }) => Some((id, GrantId(0), *lane)),
            _ => None,
        });
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn an_owner_that_says_done_has_written_all_of_it() {
    for lands_in_slot in [true, false] {
        let mut scene = Scene::new(Direction::Read, lands_in_slot);
        let (bytes, lane, done) = (scene.bytes, scene.lane, scene.done());
        scene.write(0, bytes);
        scene.say(lane, &done);
        scene.until(|scene| scene.finished == Some(true));
        let landed = contents(&scene.local).iter().filter(|byte| **byte == 0x77).count();
        assert_eq!((landed, scene.failed), (bytes as usize, None));
    }
}

#[test]
fn an_owner_that_says_done_and_has_not_written_all_of_it_is_not_believed() {
    for part in 0..3 {
        let mut scene = Scene::new(Direction::Read, true);
        let (bytes, lane, done) = (scene.bytes, scene.lane, scene.done());
        match part {
            0 => {}
            1 => scene.write(0, bytes - 1),
            _ => scene.write(1, bytes - 1),
        }
        scene.say(lane, &done);
        // What was in the slot before stays there.
        scene.fails(Status::REGION_GONE);
    }
}

#[test]
fn what_an_owner_writes_when_the_part_has_ended_goes_nowhere() {
    for lands_in_slot in [true, false] {
        let mut scene = Scene::new(Direction::Read, lands_in_slot);
        let (id, bytes, lane) = (scene.id, scene.bytes, scene.lane);
        scene.say(lane, &Message::Failed { id, fault: FAULT });
        scene.until(|scene| scene.finished.is_some());
        scene.write(0, bytes);
        for _ in 0..1000 {
            scene.poll();
        }
        scene.fails(Status::NO_RIGHT);
    }
}

#[test]
fn a_cancelled_part_ends_when_every_lane_has_said_so() {
    let mut scene = Scene::new(Direction::Read, false);
    let batch = scene.batch;
    scene.cancel();
    let is_cancel = |bytes: &Vec<u8>| matches!(Message::read(bytes), Ok(Message::Cancel { .. }));
    scene.until(|scene| scene.peer.heard.iter().filter(|(_, bytes)| is_cancel(bytes)).count() == 3);
    for lane in [2, 0] {
        scene.say(lane, &Message::Drained { batch });
        (0..1000).for_each(|_| _ = scene.poll());
        assert_eq!(scene.finished, None);
    }
    scene.say(1, &Message::Drained { batch });
    scene.until(|scene| scene.finished == Some(false));
    assert_eq!(scene.failed, None);
    let bytes = scene.bytes;
    scene.write(0, bytes);
    (0..1000).for_each(|_| _ = scene.poll());
    scene.check_untouched();
    scene.engine.remotes.seats[0].asking.check_idle();
}

#[test]
fn an_owner_that_does_not_answer_a_cancel_loses_the_connection() {
    let mut scene = Scene::new(Direction::Read, true);
    let now_ns = scene.cancel();
    let timer_ns = scene.engine.remotes.next_timer_ns();
    assert!(timer_ns <= now_ns + 1_000_000_000, "it looks in time");
    scene.engine.remotes.poll(now_ns + 1_000_000_001);
    scene.until(|scene| scene.engine.remotes.is_quiet());
    assert_eq!((scene.finished, scene.engine.counters.violations), (Some(false), 0));
}

#[test]
fn an_owner_that_is_silent_is_dead() {
    for (direction, lands_in_slot) in [(Direction::Read, true), (Direction::Read, false), (Direction::Write, true)] {
        let config = RemoteConfig { dead_after_ns: 100_000_000, ..config() };
        let mut scene = Scene::by(config, direction, lands_in_slot);
        let begun = Instant::now();
        while !scene.engine.remotes.is_quiet() {
            assert!(begun.elapsed().as_secs() < 20, "it is waited for");
            let timer_ns = scene.engine.remotes.next_timer_ns();
            let is_up = scene.engine.remotes.seats.iter().any(|seat| seat.state == State::Up);
            let looks = timer_ns < scene.engine.now_ns() + 100_000_000 || scene.engine.remotes.has_work();
            assert!(looks || !is_up, "nobody will look");
            scene.engine.poll();
        }
        scene.poll();
        let status = scene.failed.map(|fault| fault.status);
        assert_eq!((scene.finished, status), (Some(false), Some(Status::REGION_GONE)));
        assert_eq!(scene.engine.counters.violations, 0);
    }
}

#[test]
fn an_owner_that_never_names_its_slots_is_dead() {
    let config = RemoteConfig { dead_after_ns: 100_000_000, ..config() };
    let mut world = World::new(&[config]);
    let (here, there) = (0..2).map(|_| sockets()).unzip::<_, _, Vec<_>, Vec<_>>();
    let seat = world.attach(0, here);
    let begun = Instant::now();
    world.until(|world| world.nodes[0].down == [seat]);
    assert!(begun.elapsed() >= Duration::from_millis(100));
    drop(there);
}

#[test]
fn answers_out_of_place_end_the_connection() {
    let read = |what: &str, act: &dyn Fn(&mut Scene)| {
        let mut scene = Scene::new(Direction::Read, true);
        act(&mut scene);
        scene.ends(what);
    };
    read("by another lane", &|scene| scene.say(3 - scene.lane, &scene.done()));
    read("twice", &|scene| {
        let (bytes, lane, done) = (scene.bytes, scene.lane, scene.done());
        scene.write(0, bytes);
        scene.say(lane, &done);
        scene.say(lane, &done);
    });
    read("of another chunk", &|scene| {
        let id = ChunkId { number: scene.id.number + 1, ..scene.id };
        scene.say(scene.lane, &Message::Refused { id });
    });
    read("of another batch", &|scene| {
        let id = ChunkId { batch: BatchId(77), ..scene.id };
        scene.say(scene.lane, &Message::Failed { id, fault: FAULT });
    });
    read("no CANCEL was sent", &|scene| scene.say(0, &Message::Drained { batch: scene.batch }));
    read("the end of a cancel twice", &|scene| {
        scene.cancel();
        (0..2).for_each(|_| scene.say(1, &Message::Drained { batch: scene.batch }));
    });
    let mut scene = Scene::new(Direction::Write, true);
    let (id, lane) = (scene.id, scene.lane);
    scene.say(lane, &Message::Refused { id });
    scene.ends("an UNPACK refused");
}

#[test]
fn an_unpack_that_fails_or_is_done_ends_its_part() {
    let mut scene = Scene::new(Direction::Write, true);
    let (id, lane) = (scene.id, scene.lane);
    scene.say(lane, &Message::Failed { id, fault: FAULT });
    scene.fails(Status::NO_RIGHT);
    let mut scene = Scene::new(Direction::Write, true);
    let (lane, done) = (scene.lane, scene.done());
    scene.say(lane, &done);
    scene.until(|scene| scene.finished == Some(true));
    scene.engine.remotes.seats[0].asking.check_idle();
}
