//! Connections as the poller drives them, against peers that a test plays word by word.

mod notify;
mod owner;
mod regions;
mod violations;

use super::line;
use super::{RemoteConfig, Remotes, SeatId};
use crate::engine::mail::{self, Event, Inbox, Letter, PeerExport};
use crate::link::tcp::Link;
use crate::link::{self, Bell, GrantId, Operation, Transport, Use};

use crate::peer::{Connected, Message};
use crate::pipeline::{BatchId, ChunkId};
use crate::plan::Fault;
use crate::region::{ForkGuard, Huge, Region, Rights};
use crossbeam_utils::CachePadded;
use ring_abi::Status;
use rustix::event::{EventfdFlags, epoll};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Slots are small, so that their limits are met.
pub const SLOT_BYTES: u32 = 64 << 10;

/// The session that has exported what peers open.
pub const EXPORTER: u64 = 5;

pub fn config() -> RemoteConfig {
    RemoteConfig {
        connections: 4,
        slot_bytes: SLOT_BYTES,
        slots: 2,
        owner_slots: 2,
        dead_after_ns: 10_000_000_000,
        spin: Duration::from_micros(20),
    }
}

pub fn bell() -> Bell {
    Bell {
        sleep: Arc::new(CachePadded::new(crate::sync::AtomicU64::new(0))),
        bell: Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()),
        fork: Arc::new(ForkGuard::new().unwrap()),
    }
}

/// Connected sockets, the two ends of each.
pub fn sockets(lanes: usize) -> (Vec<OwnedFd>, Vec<OwnedFd>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let one = || {
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (OwnedFd::from(listener.accept().unwrap().0), OwnedFd::from(there))
    };
    (0..lanes).map(|_| one()).unzip()
}

pub fn region(bytes: u64) -> Arc<Region> {
    Arc::new(Region::allocate(bytes, Huge::Never).unwrap().0)
}

pub fn bytes_of(region: &Region, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    region.read_at(offset, &mut bytes).unwrap();
    bytes
}

/// Bytes of which no two neighbours are alike.
pub fn fill(region: &Region, seed: u64) {
    let bytes: Vec<u8> = (0..region.bytes()).map(|at| (at.wrapping_mul(151) ^ (at >> 8) ^ seed) as u8).collect();
    region.write_at(0, &bytes).unwrap();
}

/// An encoded list of pieces: region, offset, bytes. `None` for an offset is zeros.
pub fn list(pieces: &[(u32, Option<u64>, u32)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (region, offset, len) in pieces {
        // PLAIN, with the bit of zeros where there are any.
        let form = if offset.is_some() { 4 } else { 0x84 };
        let offset = offset.unwrap_or(u64::MAX);
        for word in [form, 1, *region, 0, 0, 0, 0, 1, 0, 0, offset as u32, (offset >> 32) as u32, *len, 0] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

pub fn chunk(batch: u64, number: u32) -> ChunkId {
    ChunkId { batch: BatchId(batch), number }
}

/// Connections that are gone, as the control thread is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    pub ended: u32,
    pub violations: u32,
}

/// One engine's connections, and the control thread's end of its mail.
pub struct Engine {
    pub remotes: Remotes,
    pub counters: Gone,
    /// What the control thread has to read.
    pub events: VecDeque<Event>,
    inbox: Inbox,
    pub config: RemoteConfig,
    /// Agreed on by the connections that are made.
    pub features: u64,
    epoll: OwnedFd,
    started: Instant,
    epochs: u64,
}

impl Engine {
    pub fn new(config: RemoteConfig) -> Engine {
        let (inbox, outbox) = mail::inbox().unwrap();
        let remotes = Remotes::new(&config, bell(), outbox);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        Engine {
            remotes,
            counters: Gone::default(),
            events: VecDeque::new(),
            inbox,
            config,
            features: 0,
            epoll,
            started: Instant::now(),
            epochs: 0,
        }
    }

    pub fn now_ns(&self) -> u64 {
        1 + self.started.elapsed().as_nanos() as u64
    }

    pub fn poll(&mut self) -> bool {
        let now_ns = self.now_ns();
        let moved = self.remotes.poll(now_ns);
        while let Ok(letter) = self.inbox.letters.try_recv() {
            let Letter::Event(event) = letter else { continue };
            if let Event::PeerDown { is_violated, .. } = event {
                self.counters.ended += 1;
                self.counters.violations += u32::from(is_violated);
            }
            self.events.push_back(event);
        }
        moved
    }

    /// A connection, whose other end is the test's.
    pub fn connect(&mut self, lanes: usize) -> Peer {
        let (here, there) = sockets(lanes);
        self.epochs += 1;
        let connected = Connected { features: self.features, ..Connected::of_sockets(self.epochs, here) };
        self.remotes.attach(Box::new(connected), None, &self.epoll);
        let link = Link::new(there, &line::limits(&self.config), &bell()).unwrap();
        let mut peer =
            Peer { link, seat: SeatId(self.epochs), heard: Vec::new(), completed: Vec::new(), is_down: false };
        // Before anything else.
        let landings = region(2 * u64::from(SLOT_BYTES));
        let grant = peer.link.grants().grant(landings, 0, 2 * u64::from(SLOT_BYTES), Rights::WRITE, Use::Many).unwrap();
        peer.say(0, &Message::Slots { grant: grant.0, slots: 2, slot_bytes: SLOT_BYTES });
        self.until(&mut [&mut peer], |_, peers| peers[0].heard.iter().any(|(_, bytes)| is_slots(bytes)));
        peer
    }

    /// Polls everybody until it is true.
    #[track_caller]
    pub fn until(&mut self, peers: &mut [&mut Peer], mut done: impl FnMut(&mut Engine, &mut [&mut Peer]) -> bool) {
        let begun = Instant::now();
        while !done(self, peers) {
            assert!(begun.elapsed() < Duration::from_secs(20), "it hangs");
            let mut moved = self.poll();
            peers.iter_mut().for_each(|peer| moved |= peer.poll());
            if !moved {
                std::thread::yield_now();
            }
        }
    }

    /// The next thing that the control thread is told.
    #[track_caller]
    pub fn event(&mut self, peers: &mut [&mut Peer]) -> Event {
        let mut found = None;
        self.until(peers, |engine, _| {
            found = engine.events.pop_front();
            found.is_some()
        });
        found.unwrap()
    }

    /// Opens a region for the peer, and gives its number and its grant.
    #[track_caller]
    pub fn open(&mut self, peer: &mut Peer, region: &Arc<Region>, rights: Rights) -> (u32, GrantId) {
        let request = peer.heard.len() as u64 + 1000;
        peer.say(0, &Message::Open { request, rights: rights.bits(), name: "table" });
        let event = self.event(&mut [peer]);
        let Event::PeerAsks { seat, request: asked, rights: wanted, name } = event else { panic!("another event") };
        assert_eq!((seat, asked, wanted, &name[..]), (peer.seat, request, rights, "table"));
        self.remotes.opened(
            seat,
            asked,
            Ok(PeerExport { region: region.clone(), rights, exporter: EXPORTER, exposed: None }),
        );
        match peer.next(self, |message| matches!(message, Message::Opened { .. })) {
            Heard::Opened { status: Status::OK, number, grant, bytes } => {
                assert_eq!(bytes, region.bytes());
                (number, GrantId(grant))
            }
            other => panic!("{other:?}"),
        }
    }

    /// Nothing of anybody is left.
    #[track_caller]
    pub fn until_quiet(&mut self, peers: &mut [&mut Peer]) {
        self.until(peers, |engine, _| engine.remotes.is_quiet());
    }
}

/// The other end of a connection.
pub struct Peer {
    pub link: Link,
    /// What the engine calls it.
    pub seat: SeatId,
    /// Messages that have come and were not looked at, by their lanes.
    pub heard: Vec<(usize, Vec<u8>)>,
    /// Operations.
    pub completed: Vec<(u64, bool)>,
    pub is_down: bool,
}

/// A message, without what it borrows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Done(ChunkId, u32, u32),
    Refused(ChunkId),
    Failed(ChunkId, Fault),
    Drained(BatchId),
    Opened { status: Status, number: u32, grant: u64, bytes: u64 },
    Withdrawn(u32),
    Open(u64),
    Close(u32),
    Ping(u64),
    Pong(u64),
    Slots { grant: u64 },
    Notify { request: u64, number: u32, payload_bytes: usize },
    Notified(u64, Status),
    Other,
}

impl Peer {
    pub fn poll(&mut self) -> bool {
        let Peer { link, heard, completed, is_down, .. } = self;
        link.poll(&mut |event| match event {
            link::Event::Received { lane, bytes } => heard.push((lane, bytes.to_vec())),
            link::Event::Completed { id, result } => completed.push((id, result.is_ok())),
            link::Event::Down(_) => *is_down = true,
            link::Event::Revoked { .. } | link::Event::Ran(_) => {}
        })
    }

    pub fn say(&mut self, lane: usize, message: &Message<'_>) {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        self.say_bytes(lane, &bytes);
    }

    pub fn say_bytes(&mut self, lane: usize, bytes: &[u8]) {
        // A link that is down says nothing.
        let _ = self.link.post(lane, &[Operation::Send { bytes, names: None }]);
    }

    /// Polls until such a message has come, and takes it.
    #[track_caller]
    pub fn next(&mut self, engine: &mut Engine, is_it: impl Fn(&Message<'_>) -> bool) -> Heard {
        self.next_by(engine, is_it).1
    }

    /// The same, with its lane.
    #[track_caller]
    pub fn next_by(&mut self, engine: &mut Engine, is_it: impl Fn(&Message<'_>) -> bool) -> (usize, Heard) {
        let find = |peer: &Peer| peer.heard.iter().position(|(_, bytes)| is_it(&Message::read(bytes).unwrap()));
        engine.until(&mut [self], |_, peers| find(peers[0]).is_some() || peers[0].is_down);
        let (lane, bytes) = self.heard.remove(find(self).expect("the connection has ended"));
        (lane, heard(&Message::read(&bytes).unwrap()))
    }

    /// The answer to a chunk's command, and the lane that it came by.
    #[track_caller]
    pub fn answer(&mut self, engine: &mut Engine, wanted: ChunkId) -> (usize, Heard) {
        self.next_by(engine, |message| match message {
            Message::Done { id, .. } | Message::Refused { id } | Message::Failed { id, .. } => *id == wanted,
            _ => false,
        })
    }

    /// A place for a chunk to land in, once.
    pub fn landing(&self, bytes: u32) -> (Arc<Region>, u64) {
        let memory = region(u64::from(bytes) + 8);
        let grant = self.link.grants().grant(memory.clone(), 0, bytes.into(), Rights::WRITE, Use::Once).unwrap();
        (memory, grant.0)
    }

    /// Where WRITEs land.
    pub fn slots(&self) -> GrantId {
        let slots = self.heard.iter().find(|(_, bytes)| is_slots(bytes)).unwrap();
        match heard(&Message::read(&slots.1).unwrap()) {
            Heard::Slots { grant } => GrantId(grant),
            other => panic!("{other:?}"),
        }
    }
}

fn is_slots(bytes: &[u8]) -> bool {
    matches!(Message::read(bytes), Ok(Message::Slots { .. }))
}

pub fn heard(message: &Message<'_>) -> Heard {
    match *message {
        Message::Done { id, queue_ns, pack_ns } => Heard::Done(id, queue_ns, pack_ns),
        Message::Refused { id } => Heard::Refused(id),
        Message::Failed { id, fault } => Heard::Failed(id, fault),
        Message::Drained { batch } => Heard::Drained(batch),
        Message::Opened { status, number, grant, bytes, .. } => Heard::Opened { status, number, grant, bytes },
        Message::Withdrawn { number } => Heard::Withdrawn(number),
        Message::Open { request, .. } => Heard::Open(request),
        Message::Close { number } => Heard::Close(number),
        Message::Ping { number } => Heard::Ping(number),
        Message::Pong { number } => Heard::Pong(number),
        Message::Slots { grant, .. } => Heard::Slots { grant },
        Message::Notify { request, number, payload, .. } => {
            Heard::Notify { request, number, payload_bytes: payload.len() }
        }
        Message::Notified { request, status } => Heard::Notified(request, status),
        Message::Pack { .. }
        | Message::Unpack { .. }
        | Message::Cancel { .. }
        | Message::Here { .. }
        | Message::Left { .. } => Heard::Other,
    }
}
