//! The TCP link beside a plain blocking copy through a socket, in one process, on one and on two lanes.
//!
//! `cargo bench --bench link`. W1: 99 writes of 256 KiB out of a packed slot, and a message behind them. W5: a message,
//! answered by a write of 270 KiB and a message. A pass of the plain socket stands directly before each of a link's, so that what
//! the machine does meanwhile meets both; printed is the median of the ratios, below 1 if the link is faster.

use crossbeam_utils::CachePadded;
use rustix::event::EventfdFlags;
use rustix::fd::OwnedFd;
use scatter_ring::link::tcp::{Limits, Link};
use scatter_ring::link::{Bell, Event, GrantId, LocalPiece, Operation, PostError, RemotePiece, Transport, Use};

use scatter_ring::region::{ForkGuard, Huge, Region, Rights};
use scatter_ring::sync::AtomicU64;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const CHUNK: usize = 256 << 10;
const CHUNKS: usize = 99;
const REPLY: usize = 270 << 10;
const PASSES: usize = 40;

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("only with --bench: it takes half a minute");
        return;
    }
    let mut plain = Plain::start();
    println!("                     plain ms   link ms   ratio");
    for lanes in [1, 2] {
        for (name, lane_0) in [("lane 0", true), ("threads", false)] {
            // Lane 0 is for what is small; the others carry the data where there are any.
            let first = if lane_0 { 0 } else { 1 };
            if lane_0 && lanes > 1 {
                continue;
            }
            let mut linked = Linked::start(first + lanes, first);
            compare(&format!("W1 {name} x{lanes}"), || plain.w1(), || linked.w1());
            compare(&format!("W5 {name} x{lanes}"), || plain.w5(), || linked.w5());
        }
    }
}

fn compare(name: &str, mut plain: impl FnMut(), mut linked: impl FnMut()) {
    let time = |run: &mut dyn FnMut()| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64() * 1e3
    };
    let passes: Vec<_> = (0..PASSES).map(|_| (time(&mut plain), time(&mut linked))).collect();
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    println!(
        "{name:<20} {:>8.3}  {:>8.3}  {:>6.2}",
        median(passes.iter().map(|pass| pass.0).collect()),
        median(passes.iter().map(|pass| pass.1).collect()),
        median(passes.iter().map(|pass| pass.1 / pass.0).collect()),
    );
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let b = listener.accept().unwrap().0;
    for socket in [&a, &b] {
        socket.set_nodelay(true).unwrap();
        // The same on every machine: some pace the loopback by default.
        let _ = rustix::net::sockopt::set_tcp_congestion(socket, "cubic");
    }
    (a, b)
}

/// A thread that answers requests by blocking writes.
struct Plain {
    socket: TcpStream,
    into: Vec<u8>,
}

impl Plain {
    fn start() -> Plain {
        let (socket, mut other) = sockets();
        std::thread::spawn(move || {
            let (slot, mut request) = (vec![1u8; REPLY], [0; 1]);
            while other.read_exact(&mut request).is_ok() {
                let (count, bytes) = if request[0] == 1 { (CHUNKS, CHUNK) } else { (1, REPLY) };
                for _ in 0..count {
                    if other.write_all(&slot[..bytes]).is_err() {
                        return;
                    }
                }
            }
        });
        Plain { socket, into: vec![0; CHUNK * CHUNKS] }
    }

    fn w1(&mut self) {
        self.socket.write_all(&[1]).unwrap();
        self.socket.read_exact(&mut self.into).unwrap();
    }

    fn w5(&mut self) {
        for _ in 0..PER_PASS {
            self.socket.write_all(&[5]).unwrap();
            self.socket.read_exact(&mut self.into[..REPLY]).unwrap();
        }
    }
}

/// W5 is too short to be timed by itself.
const PER_PASS: usize = 20;

/// A link whose other end answers requests on a thread of its own: the other engine's poller.
struct Linked {
    link: Link,
    first: usize,
    over: Arc<AtomicBool>,
    owner: Option<std::thread::JoinHandle<()>>,
    _into: Arc<Region>,
}

impl Linked {
    fn start(lanes: usize, first: usize) -> Linked {
        let (a, b): (Vec<_>, Vec<_>) =
            (0..lanes).map(|_| sockets()).map(|(a, b)| (OwnedFd::from(a), OwnedFd::from(b))).unzip();
        let [link, other] = [a, b].map(|lanes| Link::new(lanes, &Limits::default(), &bell()).unwrap());
        let (into, slot) = (memory(CHUNK * CHUNKS), memory(REPLY));
        let grant = link.grants().grant(into.clone(), 0, into.bytes(), Rights::WRITE, Use::Many).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let stops = over.clone();
        let owner = std::thread::spawn(move || serve(other, first, grant, &slot, &stops));
        Linked { link, first, over, owner: Some(owner), _into: into }
    }

    fn ask(&mut self, request: u8, answers: usize) {
        self.link.post(0, &[Operation::Send { bytes: &[request], names: None }]).unwrap();
        let mut received = 0;
        while received < answers {
            let moved = self.link.poll(&mut |event| match event {
                Event::Received { .. } => received += 1,
                other => panic!("{other:?}"),
            });
            if !moved {
                std::thread::yield_now();
            }
        }
    }

    fn w1(&mut self) {
        let answers = self.link.lanes() - self.first;
        self.ask(1, answers);
    }

    fn w5(&mut self) {
        for _ in 0..PER_PASS {
            self.ask(5, 1);
        }
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.owner.take().map(|owner| owner.join());
    }
}

fn serve(mut link: Link, first: usize, grant: GrantId, slot: &Arc<Region>, over: &AtomicBool) {
    let lanes = link.lanes() - first;
    let piece = |len: usize| [LocalPiece::of_region(slot, 0, len as u32).unwrap()];
    let (chunk, reply) = (piece(CHUNK), piece(REPLY));
    let to = |at: usize, len: usize| [RemotePiece { grant, offset: at as u64, len: len as u32 }];
    while !over.load(Ordering::Relaxed) {
        let mut request = None;
        if !link.poll(&mut |event| {
            if let Event::Received { bytes, .. } = event {
                request = bytes.first().copied();
            }
        }) {
            std::thread::yield_now();
        }
        let Some(request) = request else { continue };
        if request == 5 {
            let (to, write) = (to(0, REPLY), |to| Operation::Write { id: 0, from: &reply, to, acknowledged: false });
            link.post(first, &[write(&to), Operation::Send { bytes: &[5], names: None }]).unwrap();
            continue;
        }
        for i in 0..CHUNKS {
            let to = to(i * CHUNK, CHUNK);
            let write = Operation::Write { id: 0, from: &chunk, to: &to, acknowledged: false };
            post(&mut link, first + i % lanes, write);
        }
        for lane in 0..lanes {
            post(&mut link, first + lane, Operation::Send { bytes: &[1], names: None });
        }
    }
}

fn post(link: &mut Link, lane: usize, operation: Operation<'_>) {
    while link.post(lane, &[operation]) == Err(PostError::Full) {
        if !link.poll(&mut |_| {}) {
            std::thread::yield_now();
        }
    }
}

fn memory(bytes: usize) -> Arc<Region> {
    Arc::new(Region::allocate(bytes as u64, Huge::Never).unwrap().0)
}

fn bell() -> Bell {
    Bell {
        sleep: Arc::new(CachePadded::new(AtomicU64::new(0))),
        bell: Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()),
        fork: Arc::new(ForkGuard::new().unwrap()),
    }
}
