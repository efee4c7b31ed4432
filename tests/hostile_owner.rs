//! Owners of lent memory that do not do what they should, and what they can do to those who use it.

mod lent;
mod support;

use lent::{BYTES, client, deadline, ending, engine, open};
use ring_abi::staged::{LIST_BYTES, PIECES_MAX};
use ring_abi::{
    Command, CommandOp, CommandResult, Descriptor, Features, Field, IndexKind, Kind, Route, Span, Stage, Status,
};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::MemfdFlags;
use scatter_ring::attach::Socket;
use scatter_ring::engine::{Config, Engine, RunningEngine, guard_process};
use scatter_ring::region::{Region, Rights, SharedPages, Trust};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::RawClient;
use support::hostile::{eventually, range};

/// An owner that does what a test tells it.
struct RawOwner {
    client: RawClient,
    slots: Arc<SharedPages>,
    lists: Arc<SharedPages>,
    slot_bytes: usize,
    handle: u32,
}

impl RawOwner {
    fn attach(socket: Socket, name: &str, slots: u64) -> RawOwner {
        let mut client = RawClient::attach(socket, 64, 64, 0);
        client.send(Kind::STAGE, &[slots, 64 << 10], "", &[]);
        let received = client.socket.receive(true).unwrap().unwrap();
        let message = received.message;
        assert_eq!((message.status, message.args[..2].to_vec()), (Status::OK, vec![slots, 64 << 10]));
        let [slots_fd, lists_fd]: [OwnedFd; 2] = received.fds.try_into().unwrap();
        let slot_bytes = 64 << 10;
        let slots_map = SharedPages::map(&slots_fd, slots as usize * slot_bytes, true).unwrap();
        let lists = SharedPages::map(&lists_fd, slots as usize * LIST_BYTES, false).unwrap();
        assert!(SharedPages::map(&lists_fd, LIST_BYTES, true).is_err(), "the lists can be mapped for writing");
        for fd in [&slots_fd, &lists_fd] {
            assert!(rustix::fs::ftruncate(fd, 0).is_err() && rustix::fs::ftruncate(fd, 1 << 30).is_err());
        }
        let refused = client.ask(Kind::REGISTER, &[4096, 3], "", &[lists_fd.as_fd()]);
        assert_eq!(refused.status, Status::BAD_FD);
        let lent = client.ask(Kind::LEND, &[BYTES, 3], "", &[]);
        assert_eq!(lent.status, Status::OK, "{}", lent.name());
        let handle = lent.args[0] as u32;
        assert_eq!(client.ask(Kind::EXPORT, &[handle.into(), 3], name, &[]).status, Status::OK);
        RawOwner { client, slots: slots_map, lists, slot_bytes, handle }
    }

    fn take(&mut self) -> Option<Command> {
        let entry = self.client.areas.cq.pop().unwrap()?;
        self.client.areas.cq.release();
        Some(Command::from_entry(&entry))
    }

    fn command(&mut self) -> Command {
        let start = Instant::now();
        loop {
            if let Some(command) = self.take() {
                return command;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "no command; {:?}", self.client.stopped());
            std::thread::yield_now();
        }
    }

    fn send(&mut self, entry: &ring_abi::Entry) {
        assert!(self.client.try_push(entry));
        self.client.publish();
    }

    fn done(&mut self, command: &Command) {
        self.answer(command.chunk, Status::OK, 0);
    }

    fn answer(&mut self, chunk: u64, status: Status, detail: u64) {
        self.send(&CommandResult { chunk, status, piece: 0, detail }.to_entry());
    }

    fn write_slot(&self, slot: u32, word: u64) {
        for i in 0..self.slot_bytes / 8 {
            let word_at = self.slots.word(slot as usize * self.slot_bytes + 8 * i);
            word_at.store(word, std::sync::atomic::Ordering::Relaxed);
        }
    }

    fn list_word(&self, slot: u32, i: usize) -> u64 {
        let word = self.lists.word(slot as usize * LIST_BYTES + 8 * i);
        word.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Answers everything until a span comes.
    fn serve_until(&mut self, client: &mut RawClient) -> Span {
        let start = Instant::now();
        loop {
            while let Some(command) = self.take() {
                self.done(&command);
            }
            if let Some(span) = client.reap() {
                return span;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "no span");
            std::thread::yield_now();
        }
    }
}

/// A requester with mapped memory beside the table of a raw owner.
struct Pair {
    engine: RunningEngine,
    owner: RawOwner,
    client: RawClient,
    memory: Region,
    mapped: u32,
    lent: u32,
}

impl Pair {
    fn new(slots: u64) -> Pair {
        let engine = engine();
        let owner = RawOwner::attach(engine.connect().unwrap(), "table", slots);
        let mut client = client(&engine);
        let (memory, mapped) = client.memory(BYTES, Rights::READ_WRITE);
        let lent = open(&mut client, "table");
        Pair { engine, owner, client, memory, mapped, lent }
    }

    fn read(&self, len: u32) -> Descriptor {
        range((self.lent, 0), (self.mapped, 0), len)
    }

    fn write(&self, len: u32) -> Descriptor {
        range((self.mapped, 0), (self.lent, 0), len)
    }

    /// Uses every slot, more than once: whatever happened before has given them back.
    fn all_slots_work(&mut self) {
        self.client.submit(&self.read(BYTES as u32));
        let mut waiting = Vec::new();
        let mut seen = 0;
        let start = Instant::now();
        let span = loop {
            waiting.extend(self.owner.take());
            // All slots are out at once before the first comes back.
            if waiting.len() == 4 || seen >= 4 {
                seen += waiting.len();
                for command in waiting.drain(..) {
                    self.owner.done(&command);
                }
            }
            if let Some(span) = self.client.reap() {
                break span;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "{} commands wait, {seen} seen", waiting.len());
            std::thread::yield_now();
        };
        assert_eq!((span.status(), span.bytes, seen), (Status::OK, BYTES, 16));
    }
}

#[test]
fn commands_say_what_lies_where_and_may_be_answered_in_any_order() {
    let mut pair = Pair::new(4);
    let rows = Descriptor { count: 10, len: 264, src_stride: 1000, dst_stride: 264, ..pair.read(264) };
    pair.client.submit(&rows);
    let command = pair.owner.command();
    let expected = Command {
        slot: command.slot,
        chunk: command.chunk,
        ..Command { op: CommandOp::PACK, slot: 0, chunk: 0, region: pair.owner.handle, piece_bytes: 264, count: 10 }
    };
    assert_eq!(command, expected);
    assert!((0..10).all(|i| pair.owner.list_word(command.slot, i) == 1000 * i as u64));
    pair.owner.write_slot(command.slot, 0x0101_0101_0101_0101);
    pair.owner.done(&command);
    let span = pair.client.wait();
    assert_eq!((span.status(), span.bytes, span.route), (Status::OK, 2640, Route::GATHER.0));
    let mut bytes = [0; 2641];
    pair.memory.read_at(0, &mut bytes).unwrap();
    assert!(bytes[..2640].iter().all(|byte| *byte == 1) && bytes[2640] == 0);

    pair.client.submit(&pair.read(256 << 10));
    let mut commands: Vec<Command> = (0..4).map(|_| pair.owner.command()).collect();
    for (i, command) in commands.iter().enumerate() {
        assert_eq!((command.count, pair.owner.list_word(command.slot, 0)), (1, (i as u64) << 16));
        pair.owner.write_slot(command.slot, i as u64 + 1);
    }
    commands.reverse();
    commands.iter().for_each(|command| pair.owner.done(command));
    assert_eq!(pair.client.wait().status(), Status::OK);
    for i in 0..4u64 {
        let mut word = [0; 8];
        pair.memory.read_at((i << 16) + 1000, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), i + 1);
    }
    pair.all_slots_work();
}

#[test]
fn an_owner_that_answers_what_it_was_not_asked_loses_its_session_and_no_other() {
    type Lie = fn(&Command) -> Vec<ring_abi::Entry>;
    let lies: &[(&str, Lie)] = &[
        ("an unknown chunk", |c| vec![entry(c.chunk + 64, Status::OK, 0, 0)]),
        ("a chunk of another slot", |c| vec![entry(c.chunk ^ 1, Status::OK, 0, 0)]),
        ("a slot that there is not", |c| vec![entry(c.chunk | 63, Status::OK, 0, 0)]),
        ("the same twice", |c| vec![entry(c.chunk, Status::OK, 0, 0); 2]),
        ("a status that there is not", |c| vec![entry(c.chunk, Status(12), 0, 0)]),
        ("a piece that there is not", |c| vec![entry(c.chunk, Status::OUT_OF_RANGE, c.count, 0)]),
        ("a success with a detail", |c| vec![entry(c.chunk, Status::OK, 0, 1)]),
        ("a reserved word", |c| vec![[c.chunk, 0, 0, 0, 0, 0, 0, 1]]),
        ("a descriptor", |c| vec![range((1, 0), (2, c.chunk), 64).to_entry()]),
    ];
    for (what, lie) in lies {
        let mut pair = Pair::new(4);
        let mut bystander = RawOwner::attach(pair.engine.connect().unwrap(), "other", 2);
        let other = open(&mut pair.client, "other");
        pair.client.submit(&pair.read(64));
        let command = pair.owner.command();
        lie(&command).iter().for_each(|entry| pair.owner.send(entry));
        assert_eq!(pair.owner.client.wait_stopped(), Status::BAD_RING, "{what}");
        let span = pair.client.wait();
        let twice = *what == "the same twice";
        assert!(twice || (span.status(), span.stage) == (Status::REGION_GONE, Stage::PACK.0), "{what}: {span:?}");
        eventually("its region is gone", || {
            let read = pair.read(64);
            pair.client.done(&read).status() == Status::REGION_GONE
        });
        pair.client.submit(&range((other, 0), (pair.mapped, 0), 64));
        assert_eq!(bystander.serve_until(&mut pair.client).status(), Status::OK, "{what}");
    }
}

fn entry(chunk: u64, status: Status, piece: u32, detail: u64) -> ring_abi::Entry {
    CommandResult { chunk, status, piece, detail }.to_entry()
}

#[test]
fn what_an_owner_refuses_fails_as_its_memory_and_the_slots_come_back() {
    let mut pair = Pair::new(4);
    for (said, status) in [
        (Status::UNKNOWN_REGION, Status::REGION_GONE),
        (Status::OUT_OF_RANGE, Status::FAULT),
        (Status::CANCELLED, Status::FAULT),
    ] {
        for (d, field) in [(pair.read(BYTES as u32), Field::SRC_REGION), (pair.write(BYTES as u32), Field::DST_REGION)]
        {
            pair.client.submit(&d);
            let commands: Vec<Command> = (0..4).map(|_| pair.owner.command()).collect();
            pair.owner.answer(commands[0].chunk, Status::OK, 0);
            pair.owner.answer(commands[1].chunk, said, 7);
            if field == Field::DST_REGION {
                // What is being unpacked must end before the batch does.
                assert!(pair.client.reap().is_none());
            } else {
                let span = pair.client.wait();
                assert_eq!((span.status(), span.field(), span.is_held()), (status, field, false));
            }
            commands[2..].iter().for_each(|command| pair.owner.done(command));
            // Commands that were begun before the refusal was read.
            if field == Field::DST_REGION {
                let span = pair.owner.serve_until(&mut pair.client);
                assert_eq!((span.status(), span.field(), span.is_held()), (status, field, false));
            }
            while let Some(command) = pair.owner.take() {
                pair.owner.done(&command);
            }
        }
    }
    std::thread::sleep(Duration::from_millis(5));
    while let Some(command) = pair.owner.take() {
        pair.owner.done(&command);
    }
    pair.all_slots_work();
}

#[test]
fn an_owner_that_does_not_answer_makes_its_users_wait_and_nobody_else() {
    let mut pair = Pair::new(4);
    let mut bystander = RawOwner::attach(pair.engine.connect().unwrap(), "other", 2);
    let other = open(&mut pair.client, "other");
    let read = pair.read(BYTES as u32);
    deadline(&mut pair.client, &read, Duration::from_millis(30));
    let commands: Vec<Command> = (0..4).map(|_| pair.owner.command()).collect();
    // Transfers of the same session and of others go on.
    pair.client.submit(&range((pair.mapped, 0), (pair.mapped, 1 << 19), 4096));
    assert_eq!(pair.client.wait().status(), Status::OK);
    pair.client.submit(&range((other, 0), (pair.mapped, 0), 64));
    assert_eq!(bystander.serve_until(&mut pair.client).status(), Status::OK);
    // Nobody but the poller writes to mapped memory, so that it is free at once, or one turn later.
    let span = ending(&mut pair.client);
    assert_eq!(span.status(), Status::TIMED_OUT);
    let released = pair.client.wait();
    assert!(span.is_held() && released.is_released(), "{span:?} {released:?}");
    pair.memory.write_at(0, &[0x77; 4096]).unwrap();
    // The slots are not given to anybody before the late answers come.
    pair.client.submit(&pair.read(64));
    std::thread::sleep(Duration::from_millis(10));
    assert!(pair.owner.take().is_none(), "a slot that its owner may still touch was used again");
    for command in &commands {
        pair.owner.write_slot(command.slot, u64::MAX);
        pair.owner.done(command);
    }
    let next = pair.owner.command();
    pair.owner.write_slot(next.slot, 0x5555_5555_5555_5555);
    pair.owner.done(&next);
    assert_eq!(pair.client.wait().status(), Status::OK);
    let mut bytes = [0; 4096];
    pair.memory.read_at(0, &mut bytes).unwrap();
    assert!(bytes[..64].iter().all(|byte| *byte == 0x55) && bytes[64..].iter().all(|byte| *byte == 0x77));
    pair.all_slots_work();
}

#[test]
fn what_an_owner_still_unpacks_is_held_until_it_has_answered() {
    let mut pair = Pair::new(4);
    let write = pair.write(128 << 10);
    deadline(&mut pair.client, &write, Duration::from_millis(30));
    let commands = [pair.owner.command(), pair.owner.command()];
    assert!(commands.iter().all(|command| command.op == CommandOp::UNPACK));
    let span = ending(&mut pair.client);
    assert!(span.status() == Status::TIMED_OUT && span.is_held(), "{span:?}");
    pair.owner.done(&commands[1]);
    std::thread::sleep(Duration::from_millis(20));
    assert!(pair.client.reap().is_none(), "released while its owner unpacks");
    pair.owner.done(&commands[0]);
    assert!(pair.client.wait().is_released());
    pair.all_slots_work();
    // The same for a cancel, and an owner that goes instead of answering.
    pair.client.submit(&pair.write(64));
    pair.owner.command();
    let first = pair.client.areas.sq.published() - 1;
    assert_eq!(pair.client.ask(Kind::CANCEL, &[first], "", &[]).status, Status::OK);
    let span = pair.client.wait();
    assert!(span.status() == Status::CANCELLED && span.is_held(), "{span:?}");
    assert!(pair.client.reap().is_none());
    rustix::net::shutdown(&pair.owner.client.socket, rustix::net::Shutdown::Both).unwrap();
    assert!(pair.client.wait().is_released());
}

#[test]
fn a_requester_that_goes_leaves_no_slot_behind() {
    for op in [0, 1] {
        let mut pair = Pair::new(4);
        let mut going = client(&pair.engine);
        let (_memory, mapped) = going.memory(BYTES, Rights::READ_WRITE);
        let lent = open(&mut going, "table");
        let (src, dst) = if op == 0 { (lent, mapped) } else { (mapped, lent) };
        going.submit(&range((src, 0), (dst, 0), BYTES as u32));
        let commands: Vec<Command> = (0..4).map(|_| pair.owner.command()).collect();
        // Its session ends although the owner has not answered: it waits for nobody.
        going.send(Kind(99), &[], "", &[]);
        assert_eq!(going.wait_stopped(), Status::BAD_MESSAGE);
        eventually("the engine forgets the session", || going.socket.receive(false).is_err());
        pair.client.submit(&pair.read(64));
        commands.iter().for_each(|command| pair.owner.done(command));
        assert_eq!(pair.owner.serve_until(&mut pair.client).status(), Status::OK);
        pair.all_slots_work();
    }
}

#[test]
fn a_region_is_closed_when_its_owner_has_answered_what_names_it() {
    let mut pair = Pair::new(4);
    pair.client.submit(&pair.read(64));
    let command = pair.owner.command();
    let handle = pair.owner.handle;
    pair.owner.client.send(Kind::CLOSE, &[handle.into()], "", &[]);
    std::thread::sleep(Duration::from_millis(20));
    assert!(pair.owner.client.socket.receive(false).unwrap().is_none(), "closed while a chunk names it");
    pair.owner.done(&command);
    assert_eq!(pair.client.wait().status(), Status::OK);
    assert_eq!(pair.owner.client.answer().status, Status::OK);
    assert_eq!(pair.client.done(&pair.read(64)).status(), Status::REGION_GONE);
    assert_eq!(pair.client.ask(Kind::OPEN, &[1], "table", &[]).status, Status::NAME_UNKNOWN);
}

#[test]
fn a_region_is_not_closed_before_the_answers_that_nobody_waits_for() {
    let mut pair = Pair::new(4);
    let read = pair.read(64);
    deadline(&mut pair.client, &read, Duration::from_millis(10));
    let command = pair.owner.command();
    assert_eq!(ending(&mut pair.client).status(), Status::TIMED_OUT);
    assert!(pair.client.wait().is_released());
    let handle = pair.owner.handle;
    pair.owner.client.send(Kind::CLOSE, &[handle.into()], "", &[]);
    std::thread::sleep(Duration::from_millis(20));
    assert!(pair.owner.client.socket.receive(false).unwrap().is_none(), "closed while its owner may pack it");
    pair.owner.done(&command);
    assert_eq!(pair.owner.client.answer().status, Status::OK);
}

/// Whose memory it is does not matter to it: it is the owner who must not change that while a chunk names it.
#[test]
fn who_has_opened_a_region_closes_it_whatever_others_do_with_it() {
    let mut pair = Pair::new(4);
    let mut other = client(&pair.engine);
    let opened = open(&mut other, "table");
    pair.client.submit(&pair.read(64));
    let command = pair.owner.command();
    other.send(Kind::CLOSE, &[opened.into()], "", &[]);
    eventually("the handle is closed", || other.socket.receive(false).unwrap().is_some());
    pair.owner.done(&command);
    assert_eq!(pair.client.wait().status(), Status::OK);
}

#[test]
fn who_has_opened_a_region_closes_it_although_its_owner_takes_it_back_and_does_not_answer() {
    let mut pair = Pair::new(4);
    let read = pair.read(64);
    deadline(&mut pair.client, &read, Duration::from_millis(10));
    let command = pair.owner.command();
    assert_eq!(ending(&mut pair.client).status(), Status::TIMED_OUT);
    let handle = pair.owner.handle;
    pair.owner.client.send(Kind::CLOSE, &[handle.into()], "", &[]);
    eventually("its name is gone", || pair.client.ask(Kind::OPEN, &[1], "table", &[]).status == Status::NAME_UNKNOWN);
    pair.client.send(Kind::CLOSE, &[pair.lent.into()], "", &[]);
    eventually("the handle is closed", || pair.client.socket.receive(false).unwrap().is_some());
    assert!(pair.owner.client.socket.receive(false).unwrap().is_none(), "closed while its owner may pack it");
    pair.owner.done(&command);
    assert_eq!(pair.owner.client.answer().status, Status::OK);
}

#[test]
fn a_stop_in_good_order_waits_for_what_owners_have_to_do() {
    for write in [false, true] {
        let mut pair = Pair::new(4);
        // More chunks than slots, so that owners are told of some after the stop.
        let d = if write { pair.write(BYTES as u32) } else { pair.read(BYTES as u32) };
        pair.client.submit(&d);
        let command = pair.owner.command();
        let Pair { engine, mut owner, mut client, .. } = pair;
        let stop = std::thread::spawn(move || engine.stop_within(Duration::from_secs(60)));
        std::thread::sleep(Duration::from_millis(20));
        owner.done(&command);
        let span = owner.serve_until(&mut client);
        assert_eq!((span.status(), span.bytes), (Status::OK, BYTES), "write: {write}");
        assert_eq!(stop.join().unwrap().batches_cut, 0);
        assert_eq!((client.wait_stopped(), owner.client.wait_stopped()), (Status::STOPPING, Status::STOPPING));
    }
}

#[test]
fn a_transfer_into_memory_that_is_lost_does_not_go_on() {
    guard_process().unwrap();
    let trusting = Config { workers: 1, trust: Trust::SameUser, ..Config::default() };
    let engine = Engine::new(&trusting).unwrap().start().unwrap();
    let mut owner = RawOwner::attach(engine.connect().unwrap(), "table", 2);
    let mut client = client(&engine);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("cut short", flags).unwrap();
    rustix::fs::ftruncate(&file, BYTES).unwrap();
    let registered = client.ask(Kind::REGISTER, &[BYTES, 3], "", &[file.as_fd()]);
    assert_eq!(registered.status, Status::OK, "{}", registered.name());
    let table = open(&mut client, "table");
    client.submit(&range((table, 0), (registered.args[0] as u32, 0), BYTES as u32));
    let first = owner.command();
    rustix::fs::ftruncate(&file, 0).unwrap();
    owner.done(&first);
    let (mut commands, start) = (1, Instant::now());
    let span = loop {
        while let Some(command) = owner.take() {
            commands += 1;
            owner.done(&command);
        }
        if let Some(span) = client.reap() {
            break span;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "no span after {commands} commands");
        std::thread::yield_now();
    };
    assert_eq!((span.status(), span.stage), (Status::REGION_GONE, Stage::PACK.0));
    assert!(commands < 8, "{commands} commands of 16, for memory that is lost");
}

/// Between two owners, of which one goes in either half of the way.
#[test]
fn what_is_between_two_owners_ends_with_either_of_them_and_leaves_no_slot_behind() {
    for (source_goes, packed) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut pair = Pair::new(4);
        let mut other = RawOwner::attach(pair.engine.connect().unwrap(), "other", 4);
        let other_handle = open(&mut pair.client, "other");
        let (src, dst) = if source_goes { (other_handle, pair.lent) } else { (pair.lent, other_handle) };
        pair.client.submit(&range((src, 0), (dst, 0), BYTES as u32));
        let (source, keeper) = if source_goes { (&mut other, &mut pair.owner) } else { (&mut pair.owner, &mut other) };
        let packs: Vec<Command> = (0..4).map(|_| source.command()).collect();
        let mut unpacks = Vec::new();
        if packed {
            packs.iter().for_each(|command| source.done(command));
            unpacks = (0..4).map(|_| keeper.command()).collect();
        }
        rustix::net::shutdown(&other.client.socket, rustix::net::Shutdown::Both).unwrap();
        other.client.wait_stopped();
        if source_goes && packed {
            // The other one still writes to the destination.
            std::thread::sleep(Duration::from_millis(10));
            assert!(pair.client.reap().is_none(), "ended while its destination is written");
        }
        unpacks.iter().filter(|_| source_goes).for_each(|command| pair.owner.done(command));
        let span = pair.client.wait();
        assert_eq!((span.status(), span.stage), (Status::REGION_GONE, Stage::PACK.0), "{source_goes} {packed}");
        let field = if source_goes { Field::SRC_REGION } else { Field::DST_REGION };
        assert_eq!((span.field(), span.detail()), (field, other_handle.into()));
        if !source_goes && !packed {
            packs.iter().for_each(|command| pair.owner.done(command));
        }
        while let Some(command) = pair.owner.take() {
            pair.owner.done(&command);
        }
        pair.all_slots_work();
    }
}

#[test]
fn owner_sessions_are_made_once_and_before_any_descriptor() {
    let engine = engine();
    let mut early = client(&engine);
    assert_eq!(early.ask(Kind::LEND, &[64, 3], "", &[]).status, Status::NOT_ALLOWED);
    for (slots, bytes) in [(0, 64 << 10), (1, 64 << 10), (65, 64 << 10), (8, 4096), (8, 2 << 20), (8, (64 << 10) + 8)] {
        assert_eq!(early.ask(Kind::STAGE, &[slots, bytes], "", &[]).status, Status::INVALID_SETTING);
    }
    assert!(early.features.0 & Features::STAGED != 0);
    assert_eq!(early.done(&support::hostile::NOP).status(), Status::OK);
    assert_eq!(early.ask(Kind::STAGE, &[8, 64 << 10], "", &[]).status, Status::OK);
    assert_eq!(early.wait_stopped(), Status::BAD_SEQUENCE);

    let mut twice = RawOwner::attach(engine.connect().unwrap(), "twice", 2);
    twice.client.send(Kind::STAGE, &[2, 64 << 10], "", &[]);
    assert_eq!(twice.client.wait_stopped(), Status::BAD_MESSAGE);

    // Fewer slots than asked for: 16 MiB, and as many as the rings have places.
    let mut greedy = RawClient::attach(engine.connect().unwrap(), 64, 64, 0);
    assert_eq!(greedy.ask(Kind::STAGE, &[64, 1 << 20], "", &[]).args[..2], [16, 1 << 20]);
    let mut narrow = RawClient::attach(engine.connect().unwrap(), 64, 4, 0);
    assert_eq!(narrow.ask(Kind::STAGE, &[64, 64 << 10], "", &[]).args[..2], [4, 64 << 10]);
    for bytes in [0, u64::MAX] {
        assert_eq!(narrow.ask(Kind::LEND, &[bytes, 3], "", &[]).status, Status::INVALID_SETTING);
    }
}

#[test]
fn row_numbers_cannot_be_in_lent_memory() {
    let mut pair = Pair::new(2);
    let d = Descriptor {
        index_kind: IndexKind::pack(IndexKind::U32, IndexKind::None),
        index_region: pair.lent,
        src_stride: 64,
        dst_stride: 64,
        ..range((pair.mapped, 0), (pair.mapped, 4096), 64)
    };
    let span = pair.client.done(&d);
    assert_eq!((span.status(), span.field(), span.stage), (Status::UNSUPPORTED, Field::INDEX_REGION, Stage::PLAN.0));
    assert_eq!(span.detail(), u64::from(pair.lent));
}

#[test]
fn a_command_never_has_more_pieces_than_a_list() {
    let mut pair = Pair::new(4);
    let tile = Descriptor { count: 20_000, len: 1, src_stride: 7, dst_stride: 2, ..pair.read(1) };
    pair.client.submit(&tile);
    let mut pieces = 0;
    while pieces < 20_000 {
        let command = pair.owner.command();
        assert!(command.count <= PIECES_MAX && command.piece_bytes == 1);
        pieces += command.count;
        pair.owner.done(&command);
    }
    assert_eq!((pair.client.wait().bytes, pieces), (20_000, 20_000));
}

#[test]
fn requesters_of_one_owner_get_their_turns() {
    let mut pair = Pair::new(4);
    const REQUESTERS: usize = 6;
    let mut others: Vec<(RawClient, Region, Descriptor)> = (0..REQUESTERS)
        .map(|i| {
            let mut client = client(&pair.engine);
            let (memory, mapped) = client.memory(BYTES, Rights::READ_WRITE);
            let lent = open(&mut client, "table");
            // Each has a part of the table of its own, by which its commands are known.
            (client, memory, range((lent, (i as u64) << 16), (mapped, 0), 64 << 10))
        })
        .collect();
    // Each keeps many transfers under way, so that it always wants another slot.
    for (client, _, d) in &mut others {
        (0..40).for_each(|_| client.submit(d));
    }
    let mut served = [0u32; REQUESTERS];
    for _ in 0..REQUESTERS * 20 {
        let command = pair.owner.command();
        served[(pair.owner.list_word(command.slot, 0) >> 16) as usize] += 1;
        pair.owner.done(&command);
    }
    let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
    assert!(*least >= 10 && *most <= 30, "of one owner's commands the requesters got {served:?}");
}

/// One that needs two slots of an owner at once, beside one that takes every slot as it becomes free.
#[test]
fn a_requester_that_needs_two_slots_gets_its_turn_too() {
    let mut pair = Pair::new(4);
    let mut copying = client(&pair.engine);
    let lent = open(&mut copying, "table");
    (0..40).for_each(|_| pair.client.submit(&pair.read(BYTES as u32)));
    let first = pair.owner.command();
    copying.submit(&range((lent, 0), (lent, BYTES / 2), 64));
    pair.owner.done(&first);
    // One is answered when all slots are out, or when the engine has had time enough to fill those that are not: so two
    // are free at once only if the engine leaves one so.
    let mut out = std::collections::VecDeque::new();
    let mut answered = 0;
    while copying.reap().is_none() {
        let start = Instant::now();
        while out.len() < 4 && start.elapsed() < Duration::from_millis(20) {
            out.extend(pair.owner.take());
            std::thread::yield_now();
        }
        pair.owner.done(&out.pop_front().expect("the engine asks its owner"));
        answered += 1;
        assert!(answered < 200, "200 commands, and none of the requester that needs two slots");
    }
}

#[test]
fn a_transfer_that_ends_while_slots_are_kept_for_it_leaves_them_to_others() {
    let mut pair = Pair::new(4);
    let mut copying = client(&pair.engine);
    let lent = open(&mut copying, "table");
    pair.client.submit(&pair.read(BYTES as u32));
    let out: Vec<Command> = (0..4).map(|_| pair.owner.command()).collect();
    deadline(&mut copying, &range((lent, 0), (lent, BYTES / 2), 64), Duration::from_millis(20));
    assert_eq!(ending(&mut copying).status(), Status::TIMED_OUT);
    out.iter().for_each(|command| pair.owner.done(command));
    assert_eq!(pair.owner.serve_until(&mut pair.client).bytes, BYTES);
}
