//! Queue pairs for a connection whose sockets are authenticated already.
//!
//! Over the first socket both sides say how they can be reached, connect their queue pairs, send a message by each of them
//! both ways, and say whether it came:
//!
//! ```text
//! connecting side                               listening side
//!     │ OFFER ───────────────────────────────────▶ │  both at once: where the queue pairs are, and how much they take
//!     │ ◀─────────────────────────────────── OFFER │
//!     │ ···· RTR, RTS; or rdma_cm ················ │  a queue pair for each lane
//!     │ READY ───────────────────────────────────▶ │  both at once: they can send
//!     │ ◀─────────────────────────────────── READY │
//!     │ ════ a message by each queue pair ═══════▶ │
//!     │ ◀═══ and its answer ══════════════════════ │
//!     │ VERDICT ─────────────────────────────────▶ │  both at once: it came
//!     │ ◀───────────────────────────────── VERDICT │
//! ```
//!
//! Each of these messages may say instead that its side does not go on, and why. Then nothing follows, and both are at the
//! same place of the stream: the connection can go on over its sockets. What cannot be brought there, as a side that says
//! nothing, or what no side says, ends the connection.
//!
//! The other side has proven that it has the key, and may still say anything. Its numbers are bounded, and what they name is
//! reached by its own queue pairs only: nothing here gives it memory.

mod managed;
mod offer;
mod talk;

use super::nic::Nic;
use super::{Disconnects, Endpoint, Limits, Link, SetupError};
use crate::link::{Bell, Event, MESSAGE_BYTES_MAX, Operation, Transport};
use crate::verbs::{Access, Gid, GlobalPath, LinkLayer, Mtu, Path, QueuePair, RtrSettings, RtsSettings, VerbsError};
use managed::Listening;
use offer::{LANES_MAX, Lanes, Number, Numbers, Offer, Step, Wire};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use talk::Talk;

/// What is to be connected.
pub struct Wanted<'a> {
    /// The connection's first socket, on which nothing was sent that was not read.
    pub socket: OwnedFd,
    /// `None`: this side has said that it has a device, and has lost it.
    pub nic: Option<&'a Arc<Nic>>,
    /// The other side has the other one.
    pub role: Role,
    /// Queue pairs: as many as the connection has sockets.
    pub lanes: usize,
    /// Of the link.
    pub limits: &'a Limits,
    /// For the link.
    pub bell: &'a Bell,
    /// This side does without the connection rather than without RDMA.
    pub requires: bool,
    /// When all of it is to be over.
    pub deadline: Instant,
}

/// Which side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It dialled.
    Connecting,
    /// It was dialled.
    Listening,
}

/// There is no link.
#[derive(Debug)]
pub struct Failed {
    /// Why not.
    pub why: NoVerbs,
    /// With which the connection can go on without RDMA. `None`: it is of no use any more, or a side does not want it so.
    pub socket: Option<OwnedFd>,
}

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum NoVerbs {
    /// This side gave up.
    #[error("{0}")]
    Ours(Trouble),
    /// The other side did.
    #[error("the other side {0}")]
    Theirs(Reason),
    /// The connection has ended.
    #[error("closed by the other side")]
    Closed,
    /// The other side has not said what was due.
    #[error("the other side says nothing")]
    TimedOut,
    /// The socket has failed.
    #[error("{0}")]
    System(io::Error),
    /// The other side does what none does.
    #[error("the other side broke the protocol: {0}")]
    Violation(&'static str),
}

/// What this side could not do.
#[derive(Clone, Debug, thiserror::Error)]
#[error("this side {reason}{}{text}", if .text.is_empty() { "" } else { ": " })]
pub struct Trouble {
    reason: Reason,
    text: String,
}

/// Why a side does not go on. It travels as a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// It offered the feature, and has lost the device since.
    #[error("has lost its RDMA device")]
    NoDevice,
    /// Queue pairs, or memory for them, cannot be had.
    #[error("cannot make queue pairs")]
    Setup,
    /// RoCE here, and iWARP there.
    #[error("has a device that does not speak to the other's")]
    Strangers,
    /// They were made, and could not be connected.
    #[error("cannot connect queue pairs")]
    Connect,
    /// They are connected, and a message did not come through.
    #[error("gets no message by its queue pairs")]
    Silent,
    /// It gives up because the other side did.
    #[error("follows the other")]
    Followed,
    /// A code of a later version.
    #[error("does not go on for a reason that this version does not know ({0})")]
    Unknown(u8),
}

/// Work is not to be gone on with.
#[derive(Debug)]
enum Stop {
    /// The other side is to be told.
    Trouble(Trouble),
    /// It cannot be.
    Over(NoVerbs),
}

/// Connects queue pairs and returns when that has worked, or has not: on a thread that may wait.
///
/// # Errors
/// See [`Failed`]. Nothing is left of queue pairs that were made.
pub fn connect(wanted: Wanted<'_>) -> Result<Link, Failed> {
    let Wanted { socket, nic, role, lanes, limits, bell, requires, deadline } = wanted;
    // What is left of the time is for saying that there was not enough of it.
    let work_until = Instant::now() + deadline.saturating_duration_since(Instant::now()).mul_f32(WORK_SHARE);
    let mut talk = Talk::new(socket, deadline, requires);
    let setting = Setting { nic, role, lanes, limits, bell, until: work_until };
    match setting.connect(&mut talk) {
        Ok(mut link) => {
            // Until now it would have been the end of the socket too that the link's end is.
            link.end_with(talk.socket);
            Ok(link)
        }
        Err(why) => {
            let may_go_on = why.is_agreed() && !talk.requires && !talk.is_required;
            Err(Failed { socket: may_go_on.then_some(talk.socket), why })
        }
    }
}

/// What all steps go by.
struct Setting<'a> {
    nic: Option<&'a Arc<Nic>>,
    role: Role,
    lanes: usize,
    limits: &'a Limits,
    bell: &'a Bell,
    until: Instant,
}

/// This side's queue pairs before they are connected.
enum Ends {
    Named { endpoint: Endpoint, first_packets: Vec<u32> },
    Listening { endpoint: Endpoint, listening: Listening },
    Connecting { endpoint: Endpoint },
}

impl Setting<'_> {
    fn connect(&self, talk: &mut Talk) -> Result<Link, NoVerbs> {
        let (ends, offered) = match self.open() {
            Ok((ends, offer)) => (Some(ends), Ok(offer)),
            Err(trouble) => (None, Err(trouble)),
        };
        let theirs = talk.offer(offered, self.lanes)?;
        let trouble = || Trouble::new(Reason::Setup, "");
        let linked = ends.ok_or_else(|| trouble().into()).and_then(|ends| self.link(ends, &theirs, talk));
        let mut link = talk.step(Step::Ready, to_be_told(linked)?)?;
        let greeted = self.greet(&mut link, talk);
        talk.step(Step::Verdict, to_be_told(greeted)?)?;
        Ok(link)
    }

    fn open(&self) -> Result<(Ends, Offer), Trouble> {
        let nic = self.nic.ok_or_else(|| Trouble::new(Reason::NoDevice, ""))?;
        if !(1..=LANES_MAX).contains(&self.lanes) {
            return Err(Trouble::new(Reason::Setup, "more lanes than there can be"));
        }
        let endpoint = Endpoint::new(nic, self.lanes, self.limits)?;
        if nic.is_iwarp { self.open_managed(nic, endpoint) } else { self.open_named(nic, endpoint) }
    }

    fn open_managed(&self, nic: &Nic, endpoint: Endpoint) -> Result<(Ends, Offer), Trouble> {
        let receives = endpoint.receives() as u16;
        let (ends, place) = match self.role {
            Role::Connecting => (Ends::Connecting { endpoint }, None),
            Role::Listening => {
                let listening = Listening::open(nic, self.lanes)?;
                let place = listening.place;
                (Ends::Listening { endpoint, listening }, Some(place))
            }
        };
        let lanes = Lanes::Managed { place, lanes: self.lanes as u8 };
        Ok((ends, self.sizes(nic, receives, lanes)))
    }

    fn open_named(&self, nic: &Nic, mut endpoint: Endpoint) -> Result<(Ends, Offer), Trouble> {
        let mut numbers = Vec::new();
        for _ in 0..self.lanes {
            let mut queue_pair = QueuePair::new(&nic.domain, endpoint.completion_queue(), endpoint.caps())?;
            queue_pair.to_init(nic.port, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
            let first_packet = random_word()? & PACKET_MASK;
            numbers.push(Number { queue_pair: queue_pair.number(), first_packet });
            endpoint.add_lane(queue_pair)?;
        }
        let first_packets = numbers.iter().map(|number| number.first_packet).collect();
        let numbers = Numbers::new(numbers).ok_or_else(|| Trouble::new(Reason::Setup, ""))?;
        let wire = if nic.link_layer == LinkLayer::INFINIBAND { Wire::InfiniBand } else { Wire::Roce };
        let lanes = Lanes::Named { wire, lid: nic.lid, gid: nic.gid.0, numbers };
        let offer = self.sizes(nic, endpoint.receives() as u16, lanes);
        Ok((Ends::Named { endpoint, first_packets }, offer))
    }

    fn sizes(&self, nic: &Nic, receives: u16, lanes: Lanes) -> Offer {
        Offer {
            mtu: nic.mtu.0 as u8,
            receives,
            message_bytes: super::MESSAGE_BYTES,
            words: super::WORDS,
            reads_out: nic.reads_started,
            reads_in: nic.reads_served,
            lanes,
        }
    }

    fn link(&self, ends: Ends, theirs: &Offer, talk: &mut Talk) -> Result<Link, Stop> {
        if theirs.words != super::WORDS || theirs.message_bytes != super::MESSAGE_BYTES {
            return Err(Trouble::new(Reason::Strangers, "another version of the link").into());
        }
        let nic = self.nic.ok_or_else(|| Trouble::new(Reason::NoDevice, ""))?;
        match (ends, &theirs.lanes) {
            (Ends::Named { endpoint, first_packets }, Lanes::Named { wire, lid, gid, numbers }) => {
                let is_band = nic.link_layer == LinkLayer::INFINIBAND;
                if is_band != (*wire == Wire::InfiniBand) {
                    return Err(Trouble::new(Reason::Strangers, "one is on Ethernet, and one on InfiniBand").into());
                }
                let path = path(nic, *lid, Gid(*gid), is_band);
                self.name(endpoint, &first_packets, theirs, numbers, path)
            }
            (Ends::Listening { mut endpoint, listening }, Lanes::Managed { place: None, .. }) => {
                let over = listening.accept(nic, &mut endpoint, self.lanes, theirs.reads_out, talk, self.until)?;
                self.complete(endpoint, Some(over), theirs)
            }
            (Ends::Connecting { mut endpoint }, Lanes::Managed { place: Some(place), .. }) => {
                let (lanes, reads) = (self.lanes, theirs.reads_in);
                let over = managed::connect(place, nic, &mut endpoint, lanes, reads, talk, self.until)?;
                self.complete(endpoint, Some(over), theirs)
            }
            (Ends::Listening { .. } | Ends::Connecting { .. }, Lanes::Managed { .. }) => {
                Err(Stop::Over(NoVerbs::Violation("both sides listen, or none")))
            }
            _ => Err(Trouble::new(Reason::Strangers, "one is iWARP").into()),
        }
    }

    fn complete(&self, endpoint: Endpoint, over: Option<Box<dyn Disconnects>>, theirs: &Offer) -> Result<Link, Stop> {
        let link = endpoint.into_link(over, theirs.receives.into(), self.bell);
        Ok(link.map_err(|error| Trouble::new(Reason::Setup, error.to_string()))?)
    }

    /// RoCE and InfiniBand: each queue pair is told the other's number.
    fn name(
        &self,
        mut endpoint: Endpoint,
        first_packets: &[u32],
        theirs: &Offer,
        numbers: &Numbers,
        path: Path,
    ) -> Result<Link, Stop> {
        let nic = self.nic.ok_or_else(|| Trouble::new(Reason::NoDevice, ""))?;
        for (lane, (number, first_packet)) in numbers.as_slice().iter().zip(first_packets).enumerate() {
            let Some(queue_pair) = endpoint.queue_pair(lane) else { continue };
            queue_pair.to_rtr(&RtrSettings {
                path_mtu: Mtu(nic.mtu.0.min(theirs.mtu.into())),
                dest_qp: number.queue_pair,
                rq_psn: number.first_packet,
                max_dest_rd_atomic: nic.reads_served.min(theirs.reads_out),
                min_rnr_timer: RNR_TIMER,
                path,
            })?;
            queue_pair.to_rts(&RtsSettings {
                timeout: TIMEOUT,
                retry_count: RETRIES,
                rnr_retry: RETRIES,
                sq_psn: *first_packet,
                max_rd_atomic: nic.reads_started.min(theirs.reads_in),
            })?;
        }
        self.complete(endpoint, None, theirs)
    }

    /// A message by each lane, and its answer: only then is it known that packets find their way in both directions. Who
    /// dialled begins, as iWARP wants it.
    fn greet(&self, link: &mut Link, talk: &mut Talk) -> Result<(), Stop> {
        let mut awaited: u32 = (0..self.lanes).map(|lane| 1 << lane).sum();
        if self.role == Role::Connecting {
            (0..self.lanes).try_for_each(|lane| say_hello(link, lane, self.role))?;
        }
        while awaited != 0 {
            let mut heard = Vec::new();
            let mut trouble = None;
            link.poll(&mut |event| match event {
                Event::Received { lane, bytes } => heard.push((lane, bytes.try_into().ok())),
                Event::Down(reason) => trouble = Some(Trouble::new(Reason::Silent, reason.to_string())),
                _ => {}
            });
            trouble.map_or(Ok(()), Err)?;
            for (lane, hello) in &heard {
                if *hello != Some(greeting(*lane, self.role.other())) || awaited & (1 << lane) == 0 {
                    return Err(Stop::Over(NoVerbs::Violation("a first message that is none")));
                }
                awaited &= !(1 << lane);
                if self.role == Role::Listening {
                    say_hello(link, *lane, self.role)?;
                }
            }
            if heard.is_empty() && !link.has_news() {
                if Instant::now() >= self.until {
                    return Err(Trouble::new(Reason::Silent, format!("lanes {awaited:#b}")).into());
                }
                let fds: Vec<BorrowedFd<'_>> = link.descriptors().into_iter().flatten().collect();
                talk.wait(Step::Verdict, &fds, self.until.min(Instant::now() + LOOK_EVERY))?;
            }
        }
        Ok(())
    }
}

fn say_hello(link: &mut Link, lane: usize, role: Role) -> Result<(), Stop> {
    let bytes = greeting(lane, role);
    let posted = link.post(lane, &[Operation::Send { bytes: &bytes, names: None }]);
    Ok(posted.map_err(|error| Trouble::new(Reason::Silent, error.to_string()))?)
}

/// Which lane it is, and who says it: queue pairs that were crossed would be noticed.
fn greeting(lane: usize, role: Role) -> [u8; 8] {
    let who = if role == Role::Connecting { b'c' } else { b'l' };
    [b'h', b'e', b'l', b'l', b'o', b' ', who, lane as u8]
}

/// On InfiniBand the LID is enough within a subnet; everywhere else it is the GID.
fn path(nic: &Nic, lid: u16, gid: Gid, is_band: bool) -> Path {
    let by_lid = is_band && lid != 0;
    let global = GlobalPath { gid, own_index: nic.gid_index, hop_limit: HOP_LIMIT, traffic_class: 0 };
    Path { port: nic.port, lid, global: (!by_lid).then_some(global), service_level: 0 }
}

fn random_word() -> Result<u32, Trouble> {
    getrandom::u32().map_err(|error| Trouble::new(Reason::Setup, error.to_string()))
}

fn to_be_told<T>(work: Result<T, Stop>) -> Result<Result<T, Trouble>, NoVerbs> {
    match work {
        Ok(done) => Ok(Ok(done)),
        Err(Stop::Trouble(trouble)) => Ok(Err(trouble)),
        Err(Stop::Over(over)) => Err(over),
    }
}

impl Role {
    fn other(self) -> Role {
        match self {
            Role::Connecting => Role::Listening,
            Role::Listening => Role::Connecting,
        }
    }
}

impl NoVerbs {
    /// Both sides know it, and are at the same place of the stream.
    #[must_use]
    pub fn is_agreed(&self) -> bool {
        matches!(self, NoVerbs::Ours(_) | NoVerbs::Theirs(_))
    }

    /// The other side did what none does.
    #[must_use]
    pub fn is_violation(&self) -> bool {
        matches!(self, NoVerbs::Violation(_))
    }
}

impl Trouble {
    fn new(reason: Reason, text: impl Into<String>) -> Trouble {
        Trouble { reason, text: text.into() }
    }
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Stop {
        Stop::Trouble(trouble)
    }
}

impl From<NoVerbs> for Stop {
    fn from(over: NoVerbs) -> Stop {
        Stop::Over(over)
    }
}

impl From<SetupError> for Trouble {
    fn from(error: SetupError) -> Trouble {
        Trouble::new(Reason::Setup, error.to_string())
    }
}

impl From<VerbsError> for Trouble {
    fn from(error: VerbsError) -> Trouble {
        Trouble::new(Reason::Setup, error.to_string())
    }
}

impl From<VerbsError> for Stop {
    fn from(error: VerbsError) -> Stop {
        Stop::Trouble(Trouble::new(Reason::Connect, error.to_string()))
    }
}

impl Reason {
    fn code(self) -> u8 {
        match self {
            Reason::NoDevice => 1,
            Reason::Setup => 2,
            Reason::Strangers => 3,
            Reason::Connect => 4,
            Reason::Silent => 5,
            Reason::Followed => 6,
            Reason::Unknown(code) => code,
        }
    }

    /// 0 is no reason.
    fn of(code: u8) -> Option<Reason> {
        let known =
            [Reason::NoDevice, Reason::Setup, Reason::Strangers, Reason::Connect, Reason::Silent, Reason::Followed];
        let found = known.into_iter().find(|reason| reason.code() == code);
        (code != 0).then(|| found.unwrap_or(Reason::Unknown(code)))
    }
}

/// How much of the time the work may take.
const WORK_SHARE: f32 = 0.6;
/// Some of what a link has to say no descriptor shows.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// 67 ms, and 6 times again: a peer that is gone is noticed within half a second.
const TIMEOUT: u8 = 14;
/// 7 would be for ever on some devices.
const RETRIES: u8 = 6;
/// 0.64 ms.
const RNR_TIMER: u8 = 12;
const HOP_LIMIT: u8 = 64;
/// Numbers of packets have 24 bits.
const PACKET_MASK: u32 = 0xff_ffff;
const _: () = assert!(MESSAGE_BYTES_MAX >= 8);

#[cfg(test)]
mod tests {
    use super::offer::{OFFER_BYTES, Said};
    use super::*;
    use crate::region::ForkGuard;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    const LIMITS: Limits = Limits {
        operations: 8,
        messages: 8,
        tasks: 1,
        grants: 8,
        window: 8,
        depth: 64,
        signal_every: 16,
        spin: Duration::ZERO,
    };

    fn bell() -> Bell {
        Bell {
            sleep: Arc::default(),
            bell: Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap()),
            fork: Arc::new(ForkGuard::new().unwrap()),
        }
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (here, listener.accept().unwrap().0)
    }

    /// A side that has lost its device.
    fn without(socket: TcpStream, role: Role, requires: bool, within: Duration) -> Failed {
        let deadline = Instant::now() + within;
        let (limits, bell) = (&LIMITS, &bell());
        let wanted = Wanted { socket: socket.into(), nic: None, role, lanes: 2, limits, bell, requires, deadline };
        let Err(failed) = connect(wanted) else { panic!("connected") };
        failed
    }

    const LONG: Duration = Duration::from_secs(5);

    #[test]
    fn sides_without_a_device_go_on_over_their_sockets_unless_either_does_without() {
        for (ours, theirs) in [(false, false), (false, true), (true, false)] {
            let (here, there) = pair();
            let far = std::thread::spawn(move || without(there, Role::Listening, theirs, LONG));
            let near = without(here, Role::Connecting, ours, LONG);
            let far = far.join().unwrap();
            assert_eq!(near.why.to_string(), "this side has lost its RDMA device");
            let goes_on = !ours && !theirs;
            assert_eq!([near.socket.is_some(), far.socket.is_some()], [goes_on; 2], "{ours} {theirs}");
            if let (Some(near), Some(far)) = (near.socket, far.socket) {
                let (mut near, mut far) = (TcpStream::from(near), TcpStream::from(far));
                near.write_all(b"frame").unwrap();
                let mut bytes = [0; 5];
                far.read_exact(&mut bytes).unwrap();
                assert_eq!(&bytes, b"frame", "nothing is left of what was said before");
            }
        }
    }

    #[test]
    fn what_comes_behind_an_offer_is_left_where_it_is() {
        let (here, mut there) = pair();
        let mut sent = Said::<Offer> { requires: false, what: Err(Reason::Unknown(77)) }.to_bytes().to_vec();
        sent.extend(b"behind");
        there.write_all(&sent).unwrap();
        let failed = without(here, Role::Connecting, false, LONG);
        let mut offer = [0; OFFER_BYTES];
        there.read_exact(&mut offer).unwrap();
        let said = Said::<Offer>::parse(&offer, 2).unwrap();
        assert_eq!(said.what, Err(Reason::NoDevice));
        let mut bytes = [0; 6];
        TcpStream::from(failed.socket.unwrap()).read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"behind");
    }

    /// Of every offer that differs in one byte: it is refused, and the connection ends, or it goes on as TCP.
    #[test]
    fn no_offer_makes_more_of_a_side_than_an_end() {
        let whole = Said::<Offer> { requires: false, what: Err(Reason::Setup) }.to_bytes();
        for at in 0..OFFER_BYTES {
            let (here, mut there) = pair();
            let mut bytes = whole;
            bytes[at] ^= 0x41;
            there.write_all(&bytes).unwrap();
            let failed = without(here, Role::Listening, false, LONG);
            // Why not is the only byte that may be anything.
            assert_eq!((failed.socket.is_some(), failed.why.is_violation()), (at == 8, at != 8), "byte {at}");
        }
        let (here, mut there) = pair();
        there.write_all(&whole[..OFFER_BYTES - 1]).unwrap();
        let failed = without(here, Role::Listening, false, Duration::from_millis(50));
        assert!(failed.socket.is_none() && !failed.why.is_violation(), "{}", failed.why);
    }

    #[test]
    fn a_reason_has_one_code() {
        assert_eq!(Reason::of(0), None);
        for code in 1..=u8::MAX {
            assert_eq!(Reason::of(code).map(Reason::code), Some(code));
        }
        assert_eq!(Reason::of(7), Some(Reason::Unknown(7)), "the next one: says it here, in `of` and in `code`");
    }
}
