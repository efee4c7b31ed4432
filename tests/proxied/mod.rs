//! A wire that breaks things: a TCP proxy in this process, between whoever connects to it and a target.
//!
//! It passes everything on until it is told otherwise. What it does to each connection, in each direction, can be changed
//! while it runs, at once or at a byte that is named. Connections have numbers in the order in which they came.

// Each test file that shares this module uses another part of it.
#![allow(dead_code)]

mod pump;

use pump::{Orders, Pump};
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fd::OwnedFd;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Whom an order is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All connections that there are. What lasts also holds for those to come.
    All,
    /// The one with this number, also if it is still to come.
    One(usize),
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From whoever connected to the target.
    There,
    /// From the target.
    Back,
}

pub const WAYS: [Way; 2] = [Way::There, Way::Back];

/// What is done to the bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Everything passes again as it comes. Ends whatever lasts.
    Plain,
    /// Lasts: everything comes so much later, as fast as it came.
    Delay(Duration),
    /// Lasts: held back until there are so many bytes, or for so long, and then sent with one call.
    Coalesce { bytes: usize, time: Duration },
    /// Lasts: a black hole that reads, and throws away.
    Swallow,
    /// Lasts: a black hole that reads no more.
    Deaf,
    /// Lasts: so many bytes are read at most each time, with a pause between.
    Slow { bytes: usize, pause: Duration },
    /// The next so many bytes go one by one, each in a segment of its own. The receiver's kernel, which is late to
    /// acknowledge small segments, makes it slow.
    Dribble(u64),
    /// Nothing passes for so long, and then it goes on.
    Stall(Duration),
    /// The next so many bytes come twice.
    Repeat(usize),
    /// A bit of the next byte is turned over.
    Flip,
    /// This direction ends, whatever else comes; the other one goes on.
    Finish,
    /// Both directions end at once, in good order.
    Cut,
    /// Both ends get a reset at once.
    Reset,
}

/// See the module. When it is dropped, all its connections are cut.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    listener: TcpListener,
    target: SocketAddr,
    bell: OwnedFd,
    is_over: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connections: Vec<Arc<Connection>>,
    /// Orders for connections that are still to come.
    awaited: Vec<Order>,
    pumps: Vec<JoinHandle<()>>,
}

#[derive(Clone, Copy)]
struct Order {
    which: Which,
    way: Way,
    after_bytes: u64,
    effect: Effect,
}

/// What is known of a connection, also when it is over.
struct Connection {
    lines: [Line; 2],
    ends: Weak<Ends>,
    is_over: AtomicBool,
}

/// One direction of a connection.
#[derive(Default)]
struct Line {
    orders: Mutex<Orders>,
    /// Bytes that have come, and that were passed on.
    taken: AtomicU64,
    passed: AtomicU64,
}

/// What a connection has as long as it is there: the socket of whoever connected and the target's, and what wakes the
/// threads of the two directions.
struct Ends {
    sockets: [TcpStream; 2],
    bells: [OwnedFd; 2],
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bell() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn ring(bell: &OwnedFd) {
    // Full: it rings already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

impl Proxy {
    pub fn new(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (is_over, state) = (AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(Shared { listener, target, bell: bell(), is_over, state });
        let acceptor = shared.clone();
        let acceptor = std::thread::Builder::new().name("proxy".into()).spawn(move || acceptor.accept_all()).unwrap();
        Proxy { address, shared, acceptor: Some(acceptor) }
    }

    /// Where to connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections there have been. One is counted, and obeys, a moment after both sides have connected.
    pub fn connections(&self) -> usize {
        lock(&self.shared.state).connections.len()
    }

    /// Does so from now on.
    pub fn apply(&self, which: Which, way: Way, effect: Effect) {
        self.apply_after(which, way, 0, effect);
    }

    /// Does so when that many bytes more have come in this direction.
    pub fn apply_after(&self, which: Which, way: Way, after_bytes: u64, effect: Effect) {
        let order = Order { which, way, after_bytes, effect };
        let mut state = lock(&self.shared.state);
        let State { connections, awaited, .. } = &mut *state;
        match which {
            Which::All => {
                connections.iter().for_each(|connection| connection.obey(order));
                if effect.is_lasting() && after_bytes == 0 {
                    awaited.push(order);
                }
            }
            Which::One(number) => match connections.get(number) {
                Some(connection) => connection.obey(order),
                None => awaited.push(order),
            },
        }
    }

    /// The same in both directions.
    pub fn apply_both(&self, which: Which, effect: Effect) {
        WAYS.into_iter().for_each(|way| self.apply(which, way, effect));
    }

    /// Bytes that have come in, of all connections or of one.
    pub fn taken(&self, which: Which, way: Way) -> u64 {
        self.sum(which, way, |line| &line.taken)
    }

    /// Bytes that were passed on.
    pub fn passed(&self, which: Which, way: Way) -> u64 {
        self.sum(which, way, |line| &line.passed)
    }

    fn sum(&self, which: Which, way: Way, count: fn(&Line) -> &AtomicU64) -> u64 {
        let state = lock(&self.shared.state);
        let chosen = state.connections.iter().enumerate().filter(|(number, _)| which.is(*number));
        chosen.map(|(_, connection)| count(&connection.lines[way as usize]).load(Ordering::Acquire)).sum()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        ring(&self.shared.bell);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        // The acceptor is gone: no pump is added any more.
        let State { connections, pumps, .. } = std::mem::take(&mut *lock(&self.shared.state));
        connections.iter().for_each(|connection| connection.end(Effect::Cut));
        for pump in pumps {
            let _ = pump.join();
        }
    }
}

impl Shared {
    fn accept_all(&self) {
        while !self.is_over.load(Ordering::Acquire) {
            match self.listener.accept() {
                Ok((socket, _)) => self.join(socket),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let mut fds = [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
                    let _ = rustix::event::poll(&mut fds, None);
                }
                // Whoever connected has given up.
                Err(_) => {}
            }
        }
    }

    /// Connects to the target, and starts to pass things on.
    fn join(&self, socket: TcpStream) {
        let Ok(target) = TcpStream::connect_timeout(&self.target, Duration::from_secs(5)) else {
            // Nobody is there, and that is what whoever connected sees.
            let _ = rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
            return;
        };
        let sockets = [socket, target];
        for socket in &sockets {
            socket.set_nonblocking(true).unwrap();
            socket.set_nodelay(true).unwrap();
            // The system's choice may be one that paces what goes over loopback.
            let _ = rustix::net::sockopt::set_tcp_congestion(socket, "reno");
        }
        let ends = Arc::new(Ends { sockets, bells: [bell(), bell()] });
        let connection = Arc::new(Connection {
            lines: Default::default(),
            ends: Arc::downgrade(&ends),
            is_over: AtomicBool::new(false),
        });
        let mut state = lock(&self.state);
        let number = state.connections.len();
        state.awaited.iter().filter(|order| order.which.is(number)).for_each(|order| connection.obey(*order));
        state.awaited.retain(|order| order.which != Which::One(number));
        state.connections.push(connection.clone());
        // A thread that nobody waits for keeps its stack.
        state.pumps.retain(|pump| !pump.is_finished());
        for way in WAYS {
            let pump = Pump::new(connection.clone(), ends.clone(), way);
            let name = format!("proxy {number} {way:?}");
            state.pumps.push(std::thread::Builder::new().name(name).spawn(move || pump.run()).unwrap());
        }
    }
}

impl Connection {
    fn obey(&self, order: Order) {
        if order.effect.ends_all() && order.after_bytes == 0 {
            return self.end(order.effect);
        }
        let line = &self.lines[order.way as usize];
        let mut orders = lock(&line.orders);
        match order.after_bytes {
            0 => orders.apply(order.effect),
            bytes => orders.mark(line.taken.load(Ordering::Acquire) + bytes, order.effect),
        }
        drop(orders);
        if let Some(ends) = self.ends.upgrade() {
            ring(&ends.bells[order.way as usize]);
        }
    }

    /// Ends both directions at once.
    fn end(&self, effect: Effect) {
        let Some(ends) = self.ends.upgrade() else { return };
        if self.is_over.swap(true, Ordering::AcqRel) {
            return;
        }
        for socket in &ends.sockets {
            // Either fails only where the other side was faster.
            let _ = match effect {
                Effect::Reset => rustix::net::connect_unspec(socket).map_err(Into::into),
                _ => socket.shutdown(Shutdown::Both),
            };
        }
        ends.bells.iter().for_each(ring);
    }
}

impl Which {
    fn is(self, number: usize) -> bool {
        self == Which::All || self == Which::One(number)
    }
}

impl Way {
    fn other(self) -> Way {
        WAYS[1 - self as usize]
    }
}

impl Effect {
    fn is_lasting(self) -> bool {
        use Effect::{Coalesce, Deaf, Delay, Plain, Slow, Swallow};
        matches!(self, Plain | Delay(_) | Coalesce { .. } | Swallow | Deaf | Slow { .. })
    }

    fn ends_all(self) -> bool {
        matches!(self, Effect::Cut | Effect::Reset)
    }

    /// True if it is done when the bytes before it have been passed on, and not when they have come.
    fn is_late(self) -> bool {
        use Effect::{Cut, Dribble, Finish, Reset, Stall};
        matches!(self, Cut | Reset | Finish | Dribble(_) | Stall(_))
    }
}
