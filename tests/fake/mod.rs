//! An engine for the client's tests: simple, and wrong on request.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use ring_abi::{
    Descriptor, Features, Flags, Handle, Header, IndexKind, Kind, Message, Opcode, Span, SpanFlags, Status,
};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use scatter_ring::attach::{AttachError, EngineAreas, Socket};
use scatter_ring::client::{Client, ClientError, Setup};
use scatter_ring::region::{HandleTable, Region, Rights};
use scatter_ring::ring::{Waker, stop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The ring side of the fake, driven by the test.
pub struct Fake {
    pub areas: EngineAreas,
    waker: Waker,
    wake: Option<OwnedFd>,
    pub doorbell: OwnedFd,
    pub office: Arc<Office>,
    pub wakes: u32,
    batch: Option<(u64, u64)>,
}

/// The socket side of the fake, which answers in a thread of its own.
#[derive(Default)]
pub struct Office {
    pub memory: Mutex<HandleTableOf>,
    pub asked: Mutex<Vec<Message>>,
    pub closed: AtomicBool,
    /// Changes answers before they are sent.
    pub twist: Mutex<Option<fn(&mut Message)>>,
}

pub struct HandleTableOf(pub HandleTable<Region>);

impl Default for HandleTableOf {
    fn default() -> Self {
        HandleTableOf(HandleTable::new(64))
    }
}

/// How the fake says hello.
#[derive(Clone, Copy)]
pub struct Manners {
    pub start: u64,
    pub twist: fn(&mut Message),
    /// Sends the doorbell and the wake socket in each other's place.
    pub swaps: bool,
}

impl Default for Manners {
    fn default() -> Self {
        Manners { start: 0, twist: |_| {}, swaps: false }
    }
}

pub fn setup(sq_capacity: u32, cq_capacity: u32) -> Setup {
    Setup { sq_capacity, cq_capacity, ..Setup::default() }
}

/// A client and its engine.
pub fn meet(setup: &Setup) -> (Client, Fake) {
    let (client, fake) = meet_with(setup, Manners::default());
    (client.expect("attached"), fake)
}

pub fn meet_with(setup: &Setup, manners: Manners) -> (Result<Client, ClientError>, Fake) {
    let (ours, theirs) = Socket::pair().unwrap();
    let engine = std::thread::spawn(move || Fake::welcome(theirs, manners));
    let client = Client::over(ours, setup);
    (client, engine.join().unwrap())
}

impl Fake {
    fn welcome(socket: Socket, manners: Manners) -> Fake {
        let hello = socket.receive(true).unwrap().unwrap().message;
        assert_eq!(hello.kind, Kind::HELLO);
        let [_, abi, _, capacities, start, ..] = hello.args;
        let epoch = 77;
        let offered = Features(Features::LOCAL | Features::INDEX | Features::EXTENSION);
        let header = Header::new(capacities as u32, (capacities >> 32) as u32, offered, epoch, start + manners.start);
        let (areas, [submit, complete]) = EngineAreas::create(&header).unwrap();
        let doorbell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let (wake, client_wake) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut answer = hello.answer(Status::OK, [abi, offered.0, capacities, epoch, 0, 0, 0, 0]);
        (manners.twist)(&mut answer);
        let mut fds = [submit.as_fd(), complete.as_fd(), doorbell.as_fd(), client_wake.as_fd()];
        if manners.swaps {
            fds.swap(2, 3);
        }
        socket.send(&answer, &fds).unwrap();
        let office = Arc::new(Office::default());
        let desk = office.clone();
        std::thread::spawn(move || desk.serve(&socket));
        Fake { areas, waker: Waker::default(), wake: Some(wake), doorbell, office, wakes: 0, batch: None }
    }

    /// The next descriptor with its position, if there is one.
    pub fn take(&mut self) -> Option<(u64, Descriptor)> {
        let position = self.areas.sq.position();
        let entry = self.areas.sq.pop().unwrap()?;
        self.areas.sq.release();
        Some((position, Descriptor::from_entry(&entry)))
    }

    /// Everything that is published now.
    pub fn take_all(&mut self) -> Vec<(u64, Descriptor)> {
        std::iter::from_fn(|| self.take()).collect()
    }

    pub fn span(&mut self, span: Span) {
        self.areas.cq.push(&span.to_entry()).unwrap();
        self.areas.cq.publish();
        if self.waker.must_wake(&self.areas.client_sleep) {
            self.wakes += 1;
            rustix::net::send(self.wake.as_ref().unwrap(), &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).unwrap();
        }
    }

    pub fn done(&mut self, first: u64, count: u32) {
        self.span(ok(first, count));
    }

    /// As if the process had died.
    pub fn die(&mut self) {
        self.wake = None;
    }

    pub fn stop(&mut self, reason: Status) {
        stop(&self.areas.stop, reason);
    }

    /// Carries out what is published, honestly but for MISSING, extensions and failures.
    pub fn work(&mut self) -> bool {
        let mut some = false;
        while let Some((position, descriptor)) = self.take() {
            some = true;
            let (first, mut bytes) = self.batch.take().unwrap_or((position, 0));
            bytes += self.carry_out(&descriptor);
            if descriptor.flags & Flags::LAST == 0 {
                self.batch = Some((first, bytes));
                continue;
            }
            let count = (position.wrapping_sub(first) + 1) as u32;
            self.span(Span { bytes, user_data: descriptor.user_data, ..ok(first, count) });
        }
        some
    }

    fn carry_out(&self, d: &Descriptor) -> u64 {
        if d.opcode != Opcode::READ.0 && d.opcode != Opcode::WRITE.0 {
            return 0;
        }
        let memory = self.office.memory.lock().unwrap();
        let region = |handle| memory.0.get(Handle(handle)).expect("known region");
        let (src_kind, dst_kind) = IndexKind::unpack(d.index_kind).unwrap();
        let step = |kind: IndexKind, i: u32| match kind {
            IndexKind::U32 => {
                let mut number = [0; 4];
                region(d.index_region).read_at(d.index_offset + 4 * u64::from(i), &mut number).unwrap();
                u64::from(u32::from_le_bytes(number))
            }
            _ => u64::from(i),
        };
        let mut piece = vec![0; d.len as usize];
        for i in 0..d.count {
            let from = d.src_offset + step(src_kind, i) * u64::from(d.src_stride);
            let to = d.dst_offset + step(dst_kind, i) * u64::from(d.dst_stride);
            region(d.src_region).read_at(from, &mut piece).unwrap();
            region(d.dst_region).write_at(to, &piece).unwrap();
        }
        u64::from(d.len) * u64::from(d.count)
    }

    /// Works until the client has gone.
    pub fn work_in_background(mut self) -> JoinHandle<Fake> {
        std::thread::spawn(move || {
            while !self.office.closed.load(Ordering::Acquire) {
                if !self.work() {
                    std::thread::yield_now();
                }
            }
            self
        })
    }
}

impl Office {
    fn serve(&self, socket: &Socket) {
        loop {
            let received = match socket.receive(true) {
                Ok(received) => received.unwrap(),
                Err(AttachError::Closed) => break self.closed.store(true, Ordering::Release),
                Err(e) => panic!("{e}"),
            };
            let question = received.message;
            self.asked.lock().unwrap().push(question);
            let mut memory = self.memory.lock().unwrap();
            let handle = Handle(question.args[0] as u32);
            let args = match question.kind {
                Kind::REGISTER => {
                    let rights = Rights::from_bits(question.args[1]).unwrap();
                    let region = Region::of_own_fd(&received.fds[0], 0, question.args[0], Rights::READ_WRITE)
                        .or_else(|_| Region::of_own_fd(&received.fds[0], 0, question.args[0], rights));
                    let handle = memory.0.insert(region.unwrap()).unwrap();
                    [u64::from(handle.0), 0, 0, 0, 0, 0, 0, 0]
                }
                Kind::OPEN => {
                    let (region, _) = Region::allocate(4096, scatter_ring::region::Huge::Never).unwrap();
                    let handle = memory.0.insert(region).unwrap();
                    [u64::from(handle.0), 4096, question.args[0], 0, 0, 0, 0, 0]
                }
                Kind::CLOSE => {
                    memory.0.remove(handle).expect("closed once");
                    [0; 8]
                }
                _ => [0; 8],
            };
            drop(memory);
            let mut answer = question.answer(Status::OK, args);
            if let Some(twist) = *self.twist.lock().unwrap() {
                twist(&mut answer);
            }
            if question.request != ring_abi::NO_ANSWER {
                let _ = socket.send(&answer, &[]);
            }
        }
    }

    pub fn closes(&self) -> usize {
        self.asked.lock().unwrap().iter().filter(|m| m.kind == Kind::CLOSE).count()
    }
}

/// A batch that is done.
pub fn ok(first: u64, count: u32) -> Span {
    Span { first, count, flags: SpanFlags::BATCH_DONE, ..Span::ZERO }
}

/// Waits for something that another thread does.
pub fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(3);
    while !check() {
        assert!(Instant::now() < until, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
