//! The control thread's part that is about other engines: to whom clients want a connection, what they open there, and what
//! others open here.
//!
//! An engine is dialled while somebody waits for it, or while it was connected a moment ago: one that cannot be reached is
//! forgotten, so that the next who asks for it gets a new attempt, and so that dead engines do not fill the table of those that
//! are dialled. What the engine's own process wants is dialled for ever.

use super::FEATURES;
use super::control::{Control, Refusal};
use super::exports::{self, Export, Held};
use super::leases::{Leasing, this_host};
use super::mail::{Command, PeerExport};
use super::mapping::Mapping;
use super::memory::Memory;
use super::remote::{Remote, SeatId};
use super::verbs::Verbs;
use crate::link::Transport;
use crate::peer::{Connected, Endpoint, Event, Events, Failure, Identity, MAP_MEMORY, Peers};
use crate::region::{HandleTable, Region, Rights};
use crate::stats;
use crate::verbs::ProtectionDomain;
use ring_abi::{Features, Handle, Message, Status};
use rustix::fd::{AsFd, BorrowedFd};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the control thread knows of other engines.
pub(super) struct Peering {
    /// `None` once the engine stops.
    dialler: Option<(Peers, Events)>,
    own: Identity,
    /// Connections, by who is at the other end.
    seats: HashMap<Identity, SeatId>,
    /// Engines that clients have connected to, by number less 1: whoever goes by that number now.
    numbered: Vec<Identity>,
    /// Their numbers, by the identity in the endpoint that was asked for.
    numbers: HashMap<Identity, u64>,
    /// Those that the engine's own process wants.
    kept: HashSet<Identity>,
    connecting: Vec<Connecting>,
    /// Openings that the poller has not answered, by their number.
    opening: HashMap<u64, Asked>,
    /// `None`: this engine does not let others map its memory,
    pub leasing: Option<Leasing>,
    /// and does not map theirs.
    pub mapping: Option<Mapping>,
    /// `None`: all connections go by TCP.
    pub verbs: Option<Verbs>,
    last_request: u64,
    last_ticket: u64,
}

/// A question that waits for another engine.
pub(super) struct Asked {
    pub session: u64,
    pub question: Box<Message>,
    since: Instant,
}

/// A client that waits for a connection.
struct Connecting {
    asked: Asked,
    /// Whom it asked for.
    endpoint: Identity,
    /// Who answers there, once that is known.
    found: Identity,
}

/// A client's question is answered after so long, whatever a peer does. Clients wait for longer.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Questions of one session that wait for other engines.
const WAITING_MAX: usize = 64;
/// Engines with a number: as many as anybody would ever want, and an end.
const NUMBERS_MAX: usize = 1 << 16;
/// Events taken at once; clients come in between.
const EVENTS_PER_TURN: usize = 64;

impl Peering {
    /// `maps`: memory is shared with engines on this host.
    pub fn new(peers: Peers, events: Events, maps: bool, verbs: Option<Verbs>) -> Peering {
        let host = maps.then(this_host).flatten();
        Peering {
            own: peers.identity(),
            dialler: Some((peers, events)),
            seats: HashMap::new(),
            numbered: Vec::new(),
            numbers: HashMap::new(),
            kept: HashSet::new(),
            connecting: Vec::new(),
            opening: HashMap::new(),
            leasing: host.map(Leasing::new),
            mapping: host.map(Mapping::new),
            verbs,
            last_request: 0,
            last_ticket: 0,
        }
    }

    /// Readable while there may be events.
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.dialler.as_ref().map(|(_, events)| events.as_fd())
    }

    /// Readable when something has happened to the RDMA device.
    pub fn device_bell(&self) -> Option<BorrowedFd<'_>> {
        self.verbs.as_ref().and_then(Verbs::bell)
    }

    /// The RDMA device's, if there is one that works.
    pub fn domain(&self) -> Option<Arc<ProtectionDomain>> {
        self.verbs.as_ref()?.domain()
    }

    /// The same, if this connection goes by it.
    pub fn domain_of(&self, seat: SeatId) -> Option<Arc<ProtectionDomain>> {
        self.verbs.as_ref()?.domain_of(seat)
    }

    /// For how long a stop waits for threads that set connections up, if there are any.
    pub fn patience(&self) -> Option<Duration> {
        self.verbs.as_ref().and_then(Verbs::patience)
    }

    /// For the withdrawal of a region from all peers.
    pub fn ticket(&mut self) -> u64 {
        self.last_ticket += 1;
        self.last_ticket
    }

    fn dial(&self, endpoint: Endpoint) {
        if let Some((peers, _)) = &self.dialler {
            peers.connect(endpoint);
        }
    }

    /// Stops dialling an engine that cannot be reached.
    fn forget(&self, identity: Identity) {
        if let Some((peers, _)) = self.dialler.as_ref().filter(|_| !self.kept.contains(&identity)) {
            peers.forget(identity);
        }
    }

    fn is_waited_for(&self, endpoint: Identity) -> bool {
        self.connecting.iter().any(|waiting| waiting.endpoint == endpoint)
    }

    /// Who is there now, if there is a connection.
    fn connected(&self, endpoint: Identity) -> Option<Identity> {
        let number = self.numbers.get(&endpoint);
        let identity = number.and_then(|number| self.by_number(*number)).unwrap_or(endpoint);
        self.seats.contains_key(&identity).then_some(identity)
    }

    fn by_number(&self, number: u64) -> Option<Identity> {
        let at = usize::try_from(number.checked_sub(1)?).ok()?;
        self.numbered.get(at).copied()
    }

    /// The number of an endpoint where that engine answers, a new one if it has none. `None`: there are too many.
    fn number(&mut self, endpoint: Identity, identity: Identity) -> Option<u64> {
        if !self.numbers.contains_key(&endpoint) && self.numbered.len() < NUMBERS_MAX {
            self.numbered.push(identity);
            self.numbers.insert(endpoint, self.numbered.len() as u64);
        }
        self.goes_by(endpoint, identity);
        self.numbers.get(&endpoint).copied()
    }

    /// Another engine answers where that one did: it was restarted, and has its number.
    fn goes_by(&mut self, endpoint: Identity, identity: Identity) {
        let number = self.numbers.get(&endpoint).and_then(|number| usize::try_from(number - 1).ok());
        if let Some(place) = number.and_then(|at| self.numbered.get_mut(at)) {
            *place = identity;
        }
    }

    /// Takes out who waits for an engine and has it now.
    fn take_connecting(&mut self, identity: Identity, dialled: Option<Identity>) -> Vec<Connecting> {
        let is_it = |asked: Identity| asked == identity || dialled == Some(asked);
        self.connecting.extract_if(.., |waiting| is_it(waiting.endpoint) || is_it(waiting.found)).collect()
    }

    fn waiting_of(&self, session: u64) -> usize {
        self.waiting().filter(|asked| asked.session == session).count()
    }

    fn next_late(&self) -> Option<Instant> {
        self.waiting().map(|asked| asked.since + ANSWER_WAIT).min()
    }

    fn waiting(&self) -> impl Iterator<Item = &Asked> {
        let connecting = self.connecting.iter().map(|waiting| &waiting.asked);
        let mapping = self.mapping.iter().flat_map(Mapping::waiting);
        connecting.chain(self.opening.values()).chain(mapping)
    }
}

impl Control {
    /// What clients are offered.
    pub(super) fn features(&self) -> Features {
        Features(FEATURES.0 | if self.peering.is_some() { Features::PEERS } else { 0 })
    }

    /// A client wants a connection. `Ok(None)`: the answer comes later.
    pub(super) fn connect(&mut self, id: u64, question: &Message) -> Result<Option<[u64; 8]>, Refusal> {
        self.may_use_peers(id)?;
        let endpoint: Endpoint = question
            .name()
            .parse()
            .map_err(|error| Refusal::new(Status::INVALID_SETTING, format!("the endpoint: {error}")))?;
        let peering = self.peering.as_mut().ok_or_else(no_peers)?;
        let identity = endpoint.identity();
        if identity == peering.own {
            return Err(Refusal::new(Status::INVALID_SETTING, "the endpoint of this engine: it is no peer of its own"));
        }
        // Also if there is a connection: from now on it is made again when it is lost.
        peering.dial(endpoint);
        if let Some(found) = peering.connected(identity) {
            return peering.number(identity, found).map(|number| Some(words(number))).ok_or_else(too_many_peers);
        }
        peering.connecting.push(Connecting {
            asked: Asked { session: id, question: Box::new(*question), since: Instant::now() },
            endpoint: identity,
            found: identity,
        });
        Ok(None)
    }

    /// A client wants to open an export of a peer. The answer comes later.
    pub(super) fn open_remote(&mut self, id: u64, question: &Message, rights: Rights) -> Result<(), Refusal> {
        self.may_use_peers(id)?;
        let peering = self.peering.as_mut().ok_or_else(no_peers)?;
        let number = question.args[1];
        let identity = peering.by_number(number).ok_or_else(|| {
            Refusal::new(Status::INVALID_SETTING, format!("no peer has the number {number}: CONNECT gives numbers"))
        })?;
        let seat = *peering.seats.get(&identity).ok_or_else(|| {
            Refusal::new(Status::PEER_UNREACHABLE, "the connection is lost: CONNECT waits for another one")
        })?;
        peering.last_request += 1;
        let request = peering.last_request;
        let asked = Asked { session: id, question: Box::new(*question), since: Instant::now() };
        peering.opening.insert(request, asked);
        self.command(Command::RemoteOpen { seat, request, name: question.name().to_owned(), rights });
        Ok(())
    }

    /// Other users of this host do not speak for this engine, which has the keys.
    fn may_use_peers(&self, id: u64) -> Result<(), Refusal> {
        let peering = self.peering.as_ref().ok_or_else(no_peers)?;
        if self.stopping {
            return Err(Refusal::new(Status::STOPPING, "it does not meet other engines any more"));
        }
        if !self.sessions.get(&id).is_some_and(|session| session.peer.is_engines()) {
            return Err(Refusal::new(Status::NOT_ALLOWED, "only programs of the engine's own user use its peers"));
        }
        if peering.waiting_of(id) >= WAITING_MAX {
            let text = format!("{WAITING_MAX} questions of this session wait for peers already");
            return Err(Refusal::new(Status::LIMIT_EXCEEDED, text));
        }
        Ok(())
    }

    /// The poller's answer to an opening.
    pub(super) fn remote_opened(&mut self, request: u64, answer: Result<Arc<Remote>, (Status, String)>) {
        let asked = self.peering.as_mut().and_then(|peering| peering.opening.remove(&request));
        let remote = match (answer, &asked) {
            (Ok(remote), Some(asked)) if self.sessions.contains_key(&asked.session) => remote,
            // Who asked is gone, or was told that it takes too long.
            (Ok(remote), _) => return self.command(Command::RemoteClose(remote)),
            (Err((status, text)), Some(asked)) => {
                let status = if status.is_ok() { Status::INTERNAL } else { status };
                return self.refuse(asked.session, &asked.question, &Refusal(status, text));
            }
            (Err(_), None) => return,
        };
        let Some(asked) = asked else { return };
        if let Err((asked, remote)) = self.begin_mapping(request, asked, remote) {
            self.answer_opening(&asked, &remote, None);
        }
    }

    /// A client gets what it has opened at a peer: mapped, or to be reached over the connection.
    pub(super) fn answer_opening(&mut self, asked: &Asked, remote: &Arc<Remote>, mapped: Option<Region>) {
        let Asked { session, question, .. } = asked;
        match self.hold_remote(*session, question, remote, mapped) {
            Ok(args) => self.answer(*session, question, Status::OK, args),
            Err(refusal) => {
                self.refuse(*session, question, &refusal);
                self.command(Command::RemoteClose(remote.clone()));
            }
        }
    }

    fn hold_remote(
        &mut self,
        session: u64,
        question: &Message,
        remote: &Arc<Remote>,
        mapped: Option<Region>,
    ) -> Result<[u64; 8], Refusal> {
        let rights = exports::rights(question.args[0])?;
        let bytes = remote.bytes;
        if bytes == 0 {
            return Err(Refusal::new(Status::BAD_MESSAGE, "the peer gave a region without bytes"));
        }
        if remote.by_device && mapped.is_none() {
            self.register_session(session);
        }
        let memory = mapped.map_or_else(|| Memory::Remote(remote.clone()), |region| Memory::Mapped(Arc::new(region)));
        let held = Held { memory: Some(memory), rights, own: false, exporter: 0, remote: Some(remote.clone()) };
        let handle = self.hold(session, |_| held)?;
        Ok([handle.0.into(), bytes, rights.bits(), 0, 0, 0, 0, 0])
    }

    /// A connection is gone, and all that clients had opened on it, as if its owner had withdrawn it.
    pub(super) fn peer_down(&mut self, seat: SeatId, is_violated: bool) {
        let Some(peering) = &mut self.peering else { return };
        peering.seats.retain(|_, other| *other != seat);
        peering.leasing.iter_mut().for_each(|leasing| leasing.down(seat));
        peering.mapping.iter_mut().for_each(|mapping| mapping.down(seat));
        peering.verbs.iter_mut().for_each(|verbs| verbs.down(seat));
        stats::add(&self.stats.attached.peers_ended, 1);
        self.unmap(|mapped| mapped.seat == seat, false);
        if is_violated {
            stats::add(&self.stats.attached.peers_violated, 1);
            if let Some(unsaid) = self.pace.next(Instant::now()) {
                tracing::warn!(epoch = seat.0, unsaid, "a peer does what no engine does, and its connection is ended");
            }
        }
        let mut lost = Vec::new();
        for (id, session) in &mut self.sessions {
            let is_lost = |held: &Held| held.remote.as_ref().is_some_and(|remote| remote.seat == seat);
            let handles: Vec<Handle> =
                session.handles.iter().filter(|(_, held)| is_lost(held)).map(|(handle, _)| handle).collect();
            for handle in handles {
                if let Some(held) = session.handles.get_mut(handle) {
                    held.memory.take().into_iter().for_each(|memory| memory.withdraw());
                    held.remote = None;
                }
                lost.push((*id, handle));
            }
        }
        for (session, handle) in lost {
            self.command(Command::Withdraw { session, handle, leave_mark: true });
        }
    }

    /// A peer wants to open an export of this engine.
    pub(super) fn peer_asks(&mut self, seat: SeatId, request: u64, name: &str, rights: Rights) {
        let answer = self.export_for_peer(seat, name, rights);
        let answer = answer.map_err(|Refusal(status, text)| (status, text));
        if let Err((status, _)) = &answer {
            stats::add(&self.stats.attached.peer_opens_refused, 1);
            if let Some(unsaid) = self.pace.next(Instant::now()) {
                tracing::warn!(epoch = seat.0, ?name, ?status, unsaid, "a peer's opening of an export is refused");
            }
        }
        self.command(Command::PeerOpened { seat, request, answer });
    }

    fn export_for_peer(&mut self, seat: SeatId, name: &str, rights: Rights) -> Result<PeerExport, Refusal> {
        if self.stopping {
            return Err(Refusal::new(Status::STOPPING, ""));
        }
        let Export { session, memory, .. } = self.exported(name, rights)?;
        let exporter = *session;
        let region = memory.mapped().cloned().ok_or_else(|| {
            Refusal::new(Status::UNSUPPORTED, "memory that its owner packs is for clients of the owner's engine only")
        })?;
        let exposed = self.expose(seat, &region, rights);
        Ok(PeerExport { region, rights, exporter, exposed })
    }

    /// A client is gone: nobody waits for its answers, and nobody has what it opened.
    pub(super) fn forget_remotes(&mut self, id: u64, handles: &HandleTable<Held>) {
        let Some(peering) = &mut self.peering else { return };
        peering.connecting.retain(|waiting| waiting.asked.session != id);
        peering.opening.retain(|_, asked| asked.session != id);
        for remote in handles.iter().filter_map(|(_, held)| held.remote.as_ref()) {
            self.command(Command::RemoteClose(remote.clone()));
        }
    }

    /// Refuses what has waited for too long, and says for how long nothing else will have.
    pub(super) fn refuse_late(&mut self) -> Option<Duration> {
        let peering = self.peering.as_mut()?;
        let now = Instant::now();
        let is_late = |asked: &Asked| now.saturating_duration_since(asked.since) >= ANSWER_WAIT;
        let connecting: Vec<Connecting> =
            peering.connecting.extract_if(.., |waiting| is_late(&waiting.asked)).collect();
        let opening: Vec<(u64, Asked)> = peering.opening.extract_if(|_, asked| is_late(asked)).collect();
        let mapping = peering.mapping.as_mut().map(|mapping| mapping.take_late(is_late)).unwrap_or_default();
        for Connecting { endpoint, .. } in &connecting {
            if !peering.is_waited_for(*endpoint) {
                peering.forget(*endpoint);
            }
        }
        let next = peering.next_late().map(|late| late.saturating_duration_since(now));
        let seconds = ANSWER_WAIT.as_secs();
        let refusal = |what| Refusal::new(Status::PEER_UNREACHABLE, format!("{what} within {seconds} s"));
        for Connecting { asked, .. } in connecting {
            self.refuse(asked.session, &asked.question, &refusal("no connection"));
        }
        for (_, asked) in opening {
            self.refuse(asked.session, &asked.question, &refusal("no answer of the peer"));
        }
        for (asked, remote) in mapping {
            self.answer_opening(&asked, &remote, None);
        }
        next
    }

    /// The engine's own process wants a connection, for good.
    pub(super) fn keep_peer(&mut self, endpoint: Endpoint) {
        if let Some(peering) = &mut self.peering {
            peering.kept.insert(endpoint.identity());
            peering.dial(endpoint);
        }
    }

    /// Nobody is met any more. What goes over connections that there are is the poller's matter.
    pub(super) fn stop_peering(&mut self) {
        let Some(peering) = &mut self.peering else { return };
        peering.verbs.iter_mut().for_each(Verbs::abandon_all);
        // Its thread has nothing to wait for, and so has who waits for it here.
        peering.dialler = None;
        for Connecting { asked, .. } in std::mem::take(&mut peering.connecting) {
            self.refuse(
                asked.session,
                &asked.question,
                &Refusal::new(Status::STOPPING, "it does not meet other engines any more"),
            );
        }
    }

    /// What the thread that listens and dials has to say.
    pub(super) fn read_peer_events(&mut self) {
        for _ in 0..EVENTS_PER_TURN {
            let dialler = self.peering.as_ref().and_then(|peering| peering.dialler.as_ref());
            match dialler.and_then(|(_, events)| events.next_event()) {
                Some(Event::Connected(connected)) => self.peer_connected(connected),
                Some(Event::Superseded { identity, epoch }) => self.peer_superseded(identity, SeatId(epoch)),
                Some(Event::Known { dialled, identity }) => self.peer_known(dialled, identity),
                Some(Event::Unreachable { identity, failure, retry_in }) => {
                    self.peer_unreachable(identity, failure, retry_in);
                }
                None => return,
            }
        }
    }

    /// A connection is there, and usable at once, or as soon as it is settled how memory is reached.
    fn peer_connected(&mut self, connected: Box<Connected>) {
        if let Some(connected) = self.begin_setup(connected) {
            self.fell_back(connected.identity, "it offers none");
            self.peer_up(connected, None);
        }
    }

    /// A connection can be used. `link`: in another way than over its sockets.
    pub(super) fn peer_up(&mut self, mut connected: Box<Connected>, link: Option<Box<dyn Transport>>) {
        let Some(peering) = &mut self.peering else { return };
        connected.hold.settle();
        let (identity, dialled, seat) = (connected.identity, connected.dialled, SeatId(connected.epoch));
        peering.seats.insert(identity, seat);
        if connected.features & MAP_MEMORY != 0 {
            peering.leasing.iter_mut().for_each(|leasing| leasing.connected(seat));
        }
        if let Some(dialled) = dialled {
            peering.goes_by(dialled, identity);
        }
        let counters = &self.stats.attached;
        stats::add(&counters.peers_connected, 1);
        stats::add(if link.is_some() { &counters.peers_by_verbs } else { &counters.peers_by_tcp }, 1);
        // First, so that the poller knows the connection before a client can name it.
        self.command(Command::PeerUp(connected, link));
        self.tell_where();
        self.answer_connecting(identity, dialled);
    }

    fn peer_superseded(&mut self, identity: Identity, seat: SeatId) {
        let Some(peering) = &mut self.peering else { return };
        if peering.seats.get(&identity) == Some(&seat) {
            peering.seats.remove(&identity);
        }
        peering.verbs.iter_mut().for_each(|verbs| verbs.abandon(seat));
        self.command(Command::PeerEnd(seat));
    }

    fn peer_known(&mut self, dialled: Identity, identity: Identity) {
        let Some(peering) = &mut self.peering else { return };
        peering.goes_by(dialled, identity);
        for waiting in peering.connecting.iter_mut().filter(|waiting| waiting.endpoint == dialled) {
            waiting.found = identity;
        }
        let is_connected = peering.seats.contains_key(&identity);
        if let Some(unsaid) = self.pace.next(Instant::now()) {
            tracing::info!(asked = %dialled, peer = %identity, unsaid, "peer is known by another identity: it was restarted");
        }
        // Else it is put together at this moment.
        if is_connected {
            self.answer_connecting(identity, Some(dialled));
        }
    }

    fn peer_unreachable(&mut self, identity: Identity, failure: Failure, retry_in: Option<Duration>) {
        let Some(peering) = &mut self.peering else { return };
        let waiting = peering.connecting.extract_if(.., |waiting| waiting.endpoint == identity);
        let waiting: Vec<Connecting> = waiting.collect();
        peering.forget(identity);
        stats::add(&self.stats.attached.peers_unreachable, 1);
        // Of those that it tries again the thread that dials has said it.
        if retry_in.is_none()
            && let Some(unsaid) = self.pace.next(Instant::now())
        {
            tracing::warn!(peer = %identity, reason = %failure, unsaid, "peer is not dialled");
        }
        for Connecting { asked, .. } in waiting {
            let refusal = Refusal::new(Status::PEER_UNREACHABLE, failure.to_string());
            self.refuse(asked.session, &asked.question, &refusal);
        }
    }

    fn answer_connecting(&mut self, identity: Identity, dialled: Option<Identity>) {
        let Some(peering) = &mut self.peering else { return };
        let connecting = peering.take_connecting(identity, dialled);
        let numbers: Vec<Option<u64>> =
            connecting.iter().map(|waiting| peering.number(waiting.endpoint, identity)).collect();
        for (Connecting { asked, .. }, number) in connecting.into_iter().zip(numbers) {
            match number {
                Some(number) => self.answer(asked.session, &asked.question, Status::OK, words(number)),
                None => self.refuse(asked.session, &asked.question, &too_many_peers()),
            }
        }
    }
}

fn no_peers() -> Refusal {
    let text = "this engine has no peers: start it with --peer-listen, or with [peers] in its file (Config::peers)";
    Refusal::new(Status::UNSUPPORTED, text)
}

fn too_many_peers() -> Refusal {
    Refusal::new(Status::LIMIT_EXCEEDED, format!("{NUMBERS_MAX} peers have a number"))
}

/// A peer's number as an answer.
fn words(number: u64) -> [u64; 8] {
    [number, 0, 0, 0, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests;
