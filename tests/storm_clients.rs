//! Many clients at once, and clients that come and go by the thousand: R17, R18.

mod storm;
mod support;

use ring_abi::{Descriptor, Extension, Features, FragmentRecord, IndexKind, Kind, Message, Opcode, Status};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use scatter_ring::attach::Socket;
use scatter_ring::client::{Batch, Client, Missing, Region, Rows, Setup, Ticket, Tile};
use scatter_ring::engine::{Config, Counters, Engine, Limits};
use scatter_ring::region::{self, Huge, Rights};
use std::path::Path;
use storm::{Footprint, Running, by_build, private_directory, socket_of_this_client};
use support::hostile::{alone, eventually};
use support::{Random, RawClient};

/// Bytes of the table and of each buffer of a client.
const BYTES: usize = 64 << 10;
/// Bytes of the row numbers or fragment records of a batch.
const INDEX_BYTES: u64 = 4096;
/// Rows and fragments of a batch, and the longest of them.
const PIECES: usize = 64;
const PIECE_BYTES: usize = 256;
/// Batches under way, each with a buffer of its own.
const UNDER_WAY: usize = 4;

/// Descriptors, batches and bytes: by a client's own reckoning, or by what it was answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Account {
    batches: u64,
    failed: u64,
    slots: u64,
    bytes: u64,
}

impl Account {
    fn to_line(self) -> String {
        format!("account {} {} {} {}", self.batches, self.failed, self.slots, self.bytes)
    }

    /// What stands behind the first word of such a line.
    fn from_line(line: &str) -> Account {
        let numbers: Vec<u64> = line.split_whitespace().map(|n| n.parse().unwrap()).collect();
        let [batches, failed, slots, bytes] = numbers[..] else { panic!("{line}") };
        Account { batches, failed, slots, bytes }
    }

    fn add(&mut self, more: Account) {
        self.batches += more.batches;
        self.failed += more.failed;
        self.slots += more.slots;
        self.bytes += more.bytes;
    }
}

/// A buffer and what it must contain when its batch is done.
struct Lane {
    buffer: Region,
    index: Region,
    expected: Vec<u8>,
    /// Of the batch.
    slots: u64,
    bytes: u64,
    fails: bool,
    ticket: Option<Ticket>,
}

impl Lane {
    /// The batch copies this piece of the table.
    fn expect(&mut self, table: &Table, src: usize, dst: usize, len: usize) {
        self.expected[dst..dst + len].copy_from_slice(&table.bytes[src..src + len]);
        self.bytes += len as u64;
    }

    /// One for each shape of a descriptor.
    fn describe(&mut self, batch: &mut Batch<'_>, table: &Table, random: &mut Random) {
        match random.below(5) {
            0 => self.ranges(batch, table, random),
            1 => self.rows(batch, table, random),
            2 => self.fragments(batch, table, random),
            3 => self.tile(batch, table, random),
            _ => self.extended(batch, table, random),
        }
    }

    /// Often more than the ring holds.
    fn ranges(&mut self, batch: &mut Batch<'_>, table: &Table, random: &mut Random) {
        for i in 0..1 + random.below(200) as usize {
            let len = 1 + random.below(300) as usize;
            let (src, dst) = (random.below((BYTES - len) as u64) as usize, 300 * i);
            batch.read(&table.region, src as u64, &self.buffer, dst as u64, len as u64).unwrap();
            self.expect(table, src, dst, len);
            self.slots += 1;
        }
    }

    fn rows(&mut self, batch: &mut Batch<'_>, table: &Table, random: &mut Random) {
        let missing = random.pick(&[Missing::Zero, Missing::Skip]);
        let numbers: Vec<u32> =
            (0..PIECES).map(|_| if random.one_in(5) { u32::MAX } else { random.below(256) as u32 }).collect();
        self.index.write_at(0, &numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>()).unwrap();
        let rows = Rows::new(&table.region, PIECE_BYTES as u32, &self.index, PIECES as u32, &self.buffer);
        batch.read_rows(&Rows { missing, ..rows }).unwrap();
        self.slots += 1;
        for (i, number) in numbers.into_iter().enumerate() {
            let dst = i * PIECE_BYTES;
            if number != u32::MAX {
                self.expect(table, number as usize * PIECE_BYTES, dst, PIECE_BYTES);
            } else if missing == Missing::Zero {
                self.expected[dst..dst + PIECE_BYTES].fill(0);
                self.bytes += PIECE_BYTES as u64;
            }
        }
    }

    fn fragments(&mut self, batch: &mut Batch<'_>, table: &Table, random: &mut Random) {
        let mut words = Vec::new();
        for i in 0..PIECES {
            let len = 1 + random.below(PIECE_BYTES as u64) as usize;
            let (src, dst) = (random.below((BYTES - len) as u64) as usize, i * PIECE_BYTES);
            let record = FragmentRecord { src: src as u64, dst: dst as u64, len: len as u32, reserved: 0 };
            words.extend(record.to_words().map(u64::to_le_bytes).concat());
            self.expect(table, src, dst, len);
        }
        self.index.write_at(0, &words).unwrap();
        let descriptor = Descriptor {
            index_kind: IndexKind::pack(IndexKind::Fragments, IndexKind::Fragments),
            index_region: self.index.handle().0,
            count: PIECES as u32,
            ..self.reading(table)
        };
        batch.push(&descriptor, &[&table.region, &self.buffer, &self.index]).unwrap();
        self.slots += 1;
    }

    fn tile(&mut self, batch: &mut Batch<'_>, table: &Table, random: &mut Random) {
        let (len, src_stride, dst_stride) = (1 + random.below(256) as usize, 700, 300);
        let (src, dst, count) = (&table.region, &self.buffer, 90);
        let (src_offset, dst_offset) = (random.below(1000), 5);
        let tile = Tile { src, src_offset, src_stride, dst, dst_offset, dst_stride, len: len as u32, count };
        batch.read_tile(&tile).unwrap();
        self.slots += 1;
        for i in 0..count as usize {
            self.expect(table, src_offset as usize + 700 * i, 5 + 300 * i, len);
        }
    }

    fn extended(&mut self, batch: &mut Batch<'_>, table: &Table, random: &mut Random) {
        let (count, inner, len) = (20, 3, 1 + random.below(100) as usize);
        let descriptor =
            Descriptor { len: len as u32, count, src_stride: 1000, dst_stride: 500, ..self.reading(table) };
        let extension = Extension::new(inner, 200, 100);
        batch.push_extended(&descriptor, &extension, &[&table.region, &self.buffer]).unwrap();
        self.slots += 2;
        for (i, k) in (0..count as usize).flat_map(|i| (0..inner as usize).map(move |k| (i, k))) {
            self.expect(table, 1000 * i + 200 * k, 500 * i + 100 * k, len);
        }
    }

    fn reading(&self, table: &Table) -> Descriptor {
        let (src_region, dst_region) = (table.region.handle().0, self.buffer.handle().0);
        Descriptor { opcode: Opcode::READ.0, src_region, dst_region, ..Descriptor::ZERO }
    }
}

/// What a client reads from, and a copy of its bytes.
struct Table {
    region: Region,
    bytes: Vec<u8>,
}

/// A client that compares every byte.
struct Careful {
    client: Client,
    table: Table,
    random: Random,
    /// Of the next batch.
    position: u64,
    submitted: Account,
    answered: Account,
}

impl Careful {
    fn new(path: &Path, seed: u64) -> (Careful, [Lane; UNDER_WAY]) {
        // Small rings, so that batches are longer than one, and wait for places in the other.
        let setup = Setup { sq_capacity: 64, cq_capacity: 16, start_position: seed.wrapping_neg(), ..Setup::default() };
        let client = Client::attach_with(path, &setup).unwrap();
        let mut random = Random(seed);
        let region = client.allocate(BYTES as u64).unwrap();
        let bytes: Vec<u8> = (0..BYTES).map(|_| random.next() as u8).collect();
        region.write_at(0, &bytes).unwrap();
        let lanes = std::array::from_fn(|_| Lane {
            buffer: client.allocate(BYTES as u64).unwrap(),
            index: client.allocate(INDEX_BYTES).unwrap(),
            expected: vec![0; BYTES],
            slots: 0,
            bytes: 0,
            fails: false,
            ticket: None,
        });
        let table = Table { region, bytes };
        let (position, submitted, answered) = (setup.start_position, Account::default(), Account::default());
        (Careful { client, table, random, position, submitted, answered }, lanes)
    }

    fn submit(&mut self, lane: &mut Lane) {
        (lane.slots, lane.bytes, lane.fails) = (0, 0, self.random.one_in(8));
        let mut batch = self.client.batch();
        if self.random.one_in(5) {
            batch = batch.fence();
        }
        lane.describe(&mut batch, &self.table, &mut self.random);
        if lane.fails {
            // In the last place: all before it is done.
            batch.read(&self.table.region, BYTES as u64 - 7, &lane.buffer, 0, 8).unwrap();
            lane.slots += 1;
        }
        let ticket = batch.submit().unwrap();
        assert_eq!(ticket.position(), self.position, "the batch before it had another length");
        self.position = self.position.wrapping_add(lane.slots);
        lane.ticket = Some(ticket);
        self.submitted.batches += 1;
        self.submitted.failed += u64::from(lane.fails);
        self.submitted.slots += lane.slots;
        self.submitted.bytes += lane.bytes;
    }
    /// Waits for a lane's batch, and compares all of its buffer.
    fn finish(&mut self, lane: &mut Lane) {
        let Some(ticket) = lane.ticket.take() else { return };
        let bytes = match self.client.wait(&ticket) {
            Ok(outcome) => {
                assert!(!lane.fails, "a descriptor outside the table was a success");
                outcome.bytes
            }
            Err(error) => {
                assert_eq!((error.status, lane.fails), (Status::OUT_OF_RANGE, true), "{error}");
                assert!(self.client.wait_released(&ticket, None).unwrap());
                self.answered.failed += 1;
                error.bytes_done
            }
        };
        assert_eq!(bytes, lane.bytes);
        self.answered.batches += 1;
        self.answered.slots += lane.slots;
        self.answered.bytes += bytes;
        let mut got = vec![0; BYTES];
        lane.buffer.read_at(0, &mut got).unwrap();
        let differs = got.iter().zip(&lane.expected).position(|(got, expected)| got != expected);
        assert_eq!(differs, None, "where the buffer is not what it must be");
    }
}

#[test]
#[ignore = "is run by others, as a process of its own"]
fn a_careful_client() {
    let Some(path) = socket_of_this_client() else { return };
    let (mut careful, mut lanes) = Careful::new(&path, std::process::id().into());
    println!("attached");
    for _ in 0..by_build(300, 30) {
        for lane in &mut lanes {
            careful.finish(lane);
            careful.submit(lane);
        }
    }
    lanes.iter_mut().for_each(|lane| careful.finish(lane));
    assert_eq!(careful.answered, careful.submitted);
    println!("{}", careful.submitted.to_line());
}

/// 64 of them in release.
#[test]
fn many_clients_at_once_each_get_every_byte_and_every_outcome() {
    let _alone = alone();
    let clients = by_build(64, 12);
    let directory = private_directory();
    let path = directory.path().join("socket");
    let limits = Limits { sessions: clients, sessions_per_user: clients, ..Limits::default() };
    let engine = Engine::new(&Config { workers: 2, limits, ..Config::default() }).unwrap().start().unwrap();
    engine.listen(&path).unwrap();
    let before = Footprint::of(std::process::id());
    let mut running: Vec<Running> = (0..clients).map(|_| Running::client("a_careful_client", &path, &[])).collect();
    running.iter_mut().for_each(|client| drop(client.line("attached")));
    let mut sum = Account::default();
    for client in &mut running {
        sum.add(Account::from_line(&client.line("account ")));
        client.ended_well();
    }
    let batches = clients * UNDER_WAY * by_build(300, 30);
    assert_eq!(sum.batches, batches as u64);
    assert!(sum.failed > 0 && sum.bytes > 0);
    println!("{clients} clients: {sum:?}");
    // The engine's books say the same, to the last descriptor and the last byte.
    let counters = engine.counters();
    let done = Counters::of(&counters.batches, Status::OK);
    let all: u64 = counters.batches.iter().map(|(_, count)| count).sum();
    let books = Account { batches: all, failed: all - done, slots: counters.descriptors, bytes: counters.bytes };
    assert_eq!(books, sum);
    assert_eq!((counters.sessions, counters.batches_cut, counters.refused), (clients as u64, 0, Vec::new()));
    drop(running);
    eventually("what the clients had is gone", || {
        let now = Footprint::of(std::process::id());
        (now.fds, now.memory_files) == (before.fds, before.memory_files)
    });
}

/// The ways to attach and to leave again. A message that nobody waits for is among them, and one that is none.
const VISITS: [fn(&Path, &mut Random); 7] = [
    |path, _| drop(connect(path)),
    |path, random| {
        let socket = connect(path);
        let bytes = vec![0xA5; 1 + random.below(300) as usize];
        rustix::net::send(&socket, &bytes, SendFlags::empty()).unwrap();
    },
    |path, _| Socket::new(connect(path)).send(&hello(), &[]).unwrap(),
    |path, random| {
        let socket = Socket::new(connect(path));
        socket.send(&hello(), &[]).unwrap();
        // Part of a HELLO's answer is four file descriptors, which die in the socket if nobody takes them.
        if random.one_in(2) {
            assert_eq!(socket.receive(true).unwrap().unwrap().message.status, Status::OK);
        }
    },
    |path, _| drop(RawClient::attach(Socket::new(connect(path)), 64, 64, 0)),
    |path, _| {
        let mut client = RawClient::attach(Socket::new(connect(path)), 64, 64, 0);
        let (_region, fd) = region::Region::allocate(1 << 16, Huge::Never).unwrap();
        for _ in 0..3 {
            client.send(Kind::REGISTER, &[1 << 16, 3], "", &[fd.as_fd()]);
        }
    },
    |path, random| {
        let mut client = Client::attach(path).unwrap();
        let (from, to) = (client.allocate(8192).unwrap(), client.allocate(8192).unwrap());
        // The visitor before may not be forgotten yet.
        client.export(&from, &random.next().to_string(), Rights::READ).unwrap();
        from.write_at(0, &[7; 8192]).unwrap();
        client.read(&from, 0, &to, 0, 8192).unwrap();
        if random.one_in(2) {
            let mut batch = client.batch();
            batch.read(&from, 0, &to, 0, 8192).unwrap();
            batch.submit().unwrap();
        }
    },
];

fn connect(path: &Path) -> OwnedFd {
    let address = SocketAddrUnix::new(path).unwrap();
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    socket
}

fn hello() -> Message {
    Message::hello(Features(Features::LOCAL), 64, 64, 0)
}

/// 5,000 of them in release.
#[test]
fn clients_that_come_and_go_leave_nothing_behind() {
    let _alone = alone();
    let directory = private_directory();
    let path = directory.path().join("socket");
    let engine = Running::engine(&path, &["--workers", "1", "--clients", "8"]);
    let empty = Footprint::of(engine.pid());
    let mut random = Random(21);
    let mut before = None;
    // The first hundred bring the allocator to its size.
    for visit in 0..by_build(5100, 400) {
        if visit == 100 {
            storm::wait_for_footprint(engine.pid(), &empty);
            before = Some(Footprint::of(engine.pid()));
        }
        VISITS[random.below(VISITS.len() as u64) as usize](&path, &mut random);
        if visit % 4 == 3 {
            // Fewer at a time than the engine takes.
            storm::wait_for_footprint(engine.pid(), &empty);
        }
    }
    storm::wait_for_footprint(engine.pid(), &empty);
    Footprint::of(engine.pid()).assert_no_more_than(&before.unwrap());
    drop(RawClient::attach(Socket::new(connect(&path)), 64, 64, 0));
}
