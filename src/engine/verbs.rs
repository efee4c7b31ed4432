//! Connections whose memory is reached by RDMA verbs: whether this engine has a device for them, and how a connection gets its
//! queue pairs before the poller has it.
//!
//! That takes moments, and may take seconds if the other side does not answer: a thread of its own does it. Until it has
//! ended the connection is nobody's: clients wait for it, and a stop of the engine, or another connection to the same
//! engine, ends it.

use super::control::Control;
use super::mail::{Command, Event, Outbox};
use super::remote::{RemoteConfig, SeatId, verbs_limits};
use crate::link::verbs::connect::{self, Failed, NoVerbs, Wanted};
use crate::link::verbs::nic::Nic;
use crate::link::{Bell, Transport};
use crate::peer::{Connected, Identity, Role, VERBS};
use crate::stats;
use crate::verbs::{EventKind, ProtectionDomain};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::net::Shutdown;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the control thread knows of connections by verbs. An engine without it offers none.
pub(super) struct Verbs {
    device: Device,
    /// Connections that cannot have it are ended.
    requires: bool,
    config: RemoteConfig,
    /// The poller's, for the links.
    bell: Bell,
    setups: HashMap<SeatId, Setup>,
    /// Connections that the poller has and that go by it.
    seats: HashSet<SeatId>,
    /// Engines of which it is said that they are reached over TCP.
    said: HashSet<Identity>,
}

/// The engine's device.
enum Device {
    Up(Arc<Nic>),
    /// Its port is down, and may come up again.
    Down(Arc<Nic>),
    /// It has failed.
    Gone,
}

/// A connection that is being set up.
struct Setup {
    /// Its first socket, to wake the thread by.
    socket: Option<OwnedFd>,
    /// When nobody needed it any more.
    abandoned: Option<Instant>,
}

impl Setup {
    fn abandon(&mut self) {
        self.abandoned.get_or_insert_with(Instant::now);
        // Fails if the other side was faster.
        let _ = self.socket.as_ref().map(|socket| rustix::net::shutdown(socket, Shutdown::Both));
    }
}

/// What became of one.
pub(super) struct SetUp {
    /// Without its sockets, unless it can go on with them.
    connected: Box<Connected>,
    link: Result<Box<dyn Transport>, NoVerbs>,
}

/// Sends the news of a setup also if its thread ends by a panic.
struct Report {
    seat: SeatId,
    outbox: Outbox,
    done: Option<Box<SetUp>>,
}

impl Drop for Report {
    fn drop(&mut self) {
        // An engine that has stopped drops it.
        self.outbox.send(Event::PeerSetUp { seat: self.seat, done: self.done.take() });
    }
}

/// All of it: offers, connecting, a message each way.
const SETUP_WITHIN: Duration = Duration::from_secs(5);
/// A thread has noticed that it is not needed after a moment, unless it waits for a device.
const PATIENCE: Duration = Duration::from_secs(3);
/// Engines of which something is said once; then from the start.
const SAID_MAX: usize = 4096;

impl Verbs {
    /// `nic`: `None` for a device that has failed already. `requires`: connections that cannot have it are ended.
    pub fn new(nic: Option<Arc<Nic>>, requires: bool, config: &RemoteConfig, bell: Bell) -> Verbs {
        Verbs {
            device: nic.map_or(Device::Gone, Device::Up),
            requires,
            config: config.clone(),
            bell,
            setups: HashMap::new(),
            seats: HashSet::new(),
            said: HashSet::new(),
        }
    }

    /// Readable when something has happened to the device.
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        match &self.device {
            Device::Up(nic) | Device::Down(nic) => Some(nic.context.event_fd()),
            Device::Gone => None,
        }
    }

    /// How long threads of connections that nobody needs are waited for, if there are any: a driver may hold one up.
    pub fn patience(&self) -> Option<Duration> {
        let left = |setup: &Setup| {
            let since = setup.abandoned.map_or(Duration::ZERO, |abandoned| abandoned.elapsed());
            PATIENCE.checked_sub(since)
        };
        self.setups.values().filter_map(left).max()
    }

    pub fn down(&mut self, seat: SeatId) {
        self.seats.remove(&seat);
    }

    pub fn domain(&self) -> Option<Arc<ProtectionDomain>> {
        self.nic().map(|nic| nic.domain.clone())
    }

    pub fn domain_of(&self, seat: SeatId) -> Option<Arc<ProtectionDomain>> {
        self.seats.contains(&seat).then(|| self.domain())?
    }

    fn nic(&self) -> Option<&Arc<Nic>> {
        if let Device::Up(nic) = &self.device { Some(nic) } else { None }
    }

    /// Nobody needs a connection any more that may be under way: its thread is about to notice.
    pub fn abandon(&mut self, seat: SeatId) {
        self.setups.get_mut(&seat).into_iter().for_each(Setup::abandon);
    }

    /// Likewise all of them.
    pub fn abandon_all(&mut self) {
        self.setups.values_mut().for_each(Setup::abandon);
    }
}

impl Control {
    /// Has a connection set up of which both sides offer it; [`Event::PeerSetUp`] follows. Gives any other back.
    pub(super) fn begin_setup(&mut self, connected: Box<Connected>) -> Option<Box<Connected>> {
        let outbox = self.outbox();
        let verbs = self.peering.as_mut().and_then(|peering| peering.verbs.as_mut());
        let Some(verbs) = verbs.filter(|_| connected.features & VERBS != 0) else { return Some(connected) };
        let seat = SeatId(connected.epoch);
        let socket = connected.sockets.first().and_then(|socket| socket.try_clone().ok());
        verbs.setups.insert(seat, Setup { socket, abandoned: None });
        let (nic, requires) = (verbs.nic().cloned(), verbs.requires);
        let (config, bell) = (verbs.config.clone(), verbs.bell.clone());
        let report = Report { seat, outbox, done: None };
        // Without a thread the connection goes, and the report says so.
        let _ = std::thread::Builder::new().name("scatter-verbs".into()).spawn(move || {
            // All of it comes along.
            let mut report = report;
            report.done = set_up(connected, nic.as_ref(), requires, &config, &bell).map(Box::new);
        });
        None
    }

    /// What became of it.
    pub(super) fn peer_set_up(&mut self, seat: SeatId, done: Option<Box<SetUp>>) {
        let stopping = self.stopping;
        let Some(verbs) = self.peering.as_mut().and_then(|peering| peering.verbs.as_mut()) else { return };
        let is_wanted = verbs.setups.remove(&seat).is_some_and(|setup| setup.abandoned.is_none()) && !stopping;
        let Some(SetUp { connected, link }) = done.map(|done| *done).filter(|_| is_wanted) else { return };
        let identity = connected.identity;
        match link {
            Ok(link) => {
                verbs.seats.insert(seat);
                // Should it fall back some day, that is news.
                verbs.said.remove(&identity);
                if let Some(unsaid) = self.pace.next(Instant::now()) {
                    tracing::info!(peer = %identity, epoch = seat.0, unsaid, "memory of this peer is reached by RDMA verbs");
                }
                self.peer_up(connected, Some(link));
            }
            Err(why) if !connected.sockets.is_empty() => {
                self.fell_back(identity, &why.to_string());
                self.peer_up(connected, None);
            }
            Err(why) => {
                stats::add(&self.stats.attached.peers_not_set_up, 1);
                if why.is_violation() {
                    stats::add(&self.stats.attached.peers_violated, 1);
                }
                if let Some(unsaid) = self.pace.next(Instant::now()) {
                    tracing::warn!(peer = %identity, epoch = seat.0, reason = %why, unsaid,
                        "no RDMA verbs with this peer, and its connection is ended");
                }
            }
        }
    }

    /// A peer is reached over TCP although this engine has a device.
    pub(super) fn fell_back(&mut self, identity: Identity, reason: &str) {
        let Some(verbs) = self.peering.as_mut().and_then(|peering| peering.verbs.as_mut()) else { return };
        stats::add(&self.stats.attached.peers_fell_back, 1);
        if verbs.said.len() >= SAID_MAX {
            verbs.said.clear();
        }
        if verbs.said.insert(identity)
            && let Some(unsaid) = self.pace.next(Instant::now())
        {
            tracing::warn!(peer = %identity, reason, unsaid, "no RDMA verbs with this peer: it is reached over TCP");
        }
    }

    /// What has happened to the device.
    pub(super) fn read_device_events(&mut self) {
        for _ in 0..EVENTS_PER_TURN {
            let Some(verbs) = self.peering.as_mut().and_then(|peering| peering.verbs.as_mut()) else { return };
            let (Device::Up(nic) | Device::Down(nic)) = &verbs.device else { return };
            let (nic, is_up) = (nic.clone(), matches!(verbs.device, Device::Up(_)));
            let is_ours = |port: Option<u32>| port == Some(nic.port.into());
            let event = match nic.context.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => return,
                // A descriptor that stays readable and gives nothing would keep this thread busy.
                Err(error) => return self.device_lost(Device::Gone, &error.to_string()),
            };
            match event.kind {
                EventKind::DEVICE_FATAL => return self.device_lost(Device::Gone, "device fatal error"),
                EventKind::PORT_ERROR if is_ours(event.port) && is_up => {
                    self.device_lost(Device::Down(nic), "port down")
                }
                EventKind::PORT_ACTIVE if is_ours(event.port) && !is_up => {
                    verbs.device = Device::Up(nic);
                    tracing::info!("the port of the RDMA device is active again: new connections can use it");
                }
                // What is about a queue pair or its queue, completions say too.
                _ => {}
            }
        }
    }

    /// Connections by it are ended. Who is wanted is dialled again, and then reached in another way.
    fn device_lost(&mut self, device: Device, reason: &str) {
        let Some(peering) = &mut self.peering else { return };
        let Some(verbs) = &mut peering.verbs else { return };
        if let Some(bell) = verbs.bell().filter(|_| matches!(device, Device::Gone)) {
            // It was added.
            let _ = rustix::event::epoll::delete(&self.epoll, bell);
        }
        verbs.device = device;
        let seats: Vec<SeatId> = verbs.seats.iter().copied().collect();
        verbs.abandon_all();
        tracing::error!(reason, connections = seats.len(), "the RDMA device is lost: its connections are ended");
        seats.into_iter().for_each(|seat| self.command(Command::PeerEnd(seat)));
    }
}

/// On a thread of its own. Nothing: the connection's first socket is missing.
fn set_up(
    mut connected: Box<Connected>,
    nic: Option<&Arc<Nic>>,
    requires: bool,
    config: &RemoteConfig,
    bell: &Bell,
) -> Option<SetUp> {
    let lanes = connected.sockets.len();
    let mut others = connected.sockets.drain(..);
    let socket = others.next()?;
    let others: Vec<OwnedFd> = others.collect();
    let role = match connected.role {
        Role::Initiator => connect::Role::Connecting,
        Role::Responder => connect::Role::Listening,
    };
    let limits = verbs_limits(config);
    let deadline = Instant::now() + SETUP_WITHIN;
    let wanted = Wanted { socket, nic, role, lanes, limits: &limits, bell, requires, deadline };
    let link = match connect::connect(wanted) {
        Ok(link) => Ok(Box::new(link) as Box<dyn Transport>),
        Err(Failed { why, socket }) => {
            if let Some(socket) = socket {
                connected.sockets = [socket].into_iter().chain(others).collect();
            }
            Err(why)
        }
    };
    Some(SetUp { connected, link })
}

/// Events taken at once; clients come in between.
const EVENTS_PER_TURN: usize = 64;
