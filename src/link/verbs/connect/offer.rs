//! What two sides say to each other before they have queue pairs, as bytes: little-endian, of fixed length, every field
//! with its bounds. What a field may not be makes it no message, whoever sends it.
//!
//! ```text
//! OFFER    0 magic u32, 4 version u16, 6 kind u8, 7 flags u8
//!          8 why not u8, 9 wire u8, 10 path MTU u8, 11 lanes u8, 12 receives u16, 14 words u16, 16 message bytes u32
//!         20 reads out u8, 21 reads in u8, 22 LID u16, 24 GID [16], 40 address [16], 56 port u16, 58 zero [6]
//!         64 token [16], 80 for each of 16 lanes: queue pair u32, first packet u32        208 bytes
//! READY,   0 magic u32, 4 version u16, 6 kind u8, 7 flags u8
//! VERDICT  8 why not u8, 9 zero [7]                                                        16 bytes
//! ```

use super::Reason;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// How a side can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    /// Of the path from its port on, as verbs count it: 1 is 256 bytes, 5 is 4,096.
    pub mtu: u8,
    /// Receive buffers of each lane, and bytes of each.
    pub receives: u16,
    pub message_bytes: u32,
    /// Which words the link speaks.
    pub words: u16,
    /// READs that it may have under way on a lane, and that it answers at a time.
    pub reads_out: u8,
    pub reads_in: u8,
    pub lanes: Lanes,
}

/// Where its queue pairs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lanes {
    /// RoCE or InfiniBand: in INIT, to be named by the other side.
    Named { wire: Wire, lid: u16, gid: [u8; 16], numbers: Numbers },
    /// iWARP: to be connected to by rdma_cm, if the side that said this listens. `None`: it will connect.
    Managed { place: Option<Place>, lanes: u8 },
}

/// By what packets are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    Roce,
    InfiniBand,
}

/// The queue pairs of the lanes, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    count: usize,
    all: [Number; LANES_MAX],
}

/// A queue pair, and the number of the first packet that it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Number {
    pub queue_pair: u32,
    pub first_packet: u32,
}

/// Where a side listens, and what shows that who comes is who was told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub address: SocketAddr,
    pub token: [u8; TOKEN_BYTES],
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("address", &self.address).finish_non_exhaustive()
    }
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said<T> {
    /// The side does without RDMA, or there is no connection.
    pub requires: bool,
    pub what: Result<T, Reason>,
}

/// Which message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The queue pairs of this side can send.
    Ready,
    /// A message has come by each lane.
    Verdict,
}

/// What came is no message of these, or not the one that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotSaid(pub &'static str);

pub(super) const OFFER_BYTES: usize = 208;
pub(super) const STEP_BYTES: usize = 16;
pub(super) const TOKEN_BYTES: usize = 16;
/// Sockets of a connection, each with a queue pair beside it.
pub(super) const LANES_MAX: usize = 16;

const MAGIC: u32 = u32::from_le_bytes(*b"SRRD");
const VERSION: u16 = 1;
const OFFER: u8 = 1;
const READY: u8 = 2;
const VERDICT: u8 = 3;
/// In flags.
const REQUIRES: u8 = 1;
const ROCE: u8 = 1;
const INFINIBAND: u8 = 2;
const IWARP: u8 = 3;
/// Numbers of queue pairs and of packets have 24 bits; the first two are for management.
const NUMBER_MAX: u32 = (1 << 24) - 1;
const QUEUE_PAIR_MIN: u32 = 2;
/// From here on they name groups.
const LID_END: u16 = 0xc000;
const MTU_MAX: u8 = 5;
const RECEIVES_MAX: u16 = 1 << 14;
const MESSAGE_BYTES_MIN: u32 = 64;
const MESSAGE_BYTES_MAX: u32 = 1 << 20;

impl Numbers {
    /// `None`: there are none, or too many.
    pub fn new(numbers: impl IntoIterator<Item = Number>) -> Option<Numbers> {
        let mut all = [Number::default(); LANES_MAX];
        let mut count = 0;
        for number in numbers {
            *all.get_mut(count)? = number;
            count += 1;
        }
        (count > 0).then_some(Numbers { count, all })
    }

    pub fn as_slice(&self) -> &[Number] {
        &self.all[..self.count]
    }
}

#[cfg(test)]
impl Offer {
    pub fn lanes(&self) -> usize {
        match &self.lanes {
            Lanes::Named { numbers, .. } => numbers.count,
            Lanes::Managed { lanes, .. } => usize::from(*lanes),
        }
    }
}

impl Said<Offer> {
    pub fn to_bytes(self) -> [u8; OFFER_BYTES] {
        let mut writer = Writer::<OFFER_BYTES>::new(OFFER, self.requires);
        let Offer { mtu, receives, message_bytes, words, reads_out, reads_in, lanes } = match self.what {
            Ok(offer) => offer,
            Err(reason) => {
                writer.put(&[reason.code()]);
                return writer.bytes;
            }
        };
        let count = match &lanes {
            Lanes::Named { numbers, .. } => numbers.count as u8,
            Lanes::Managed { lanes, .. } => *lanes,
        };
        let (wire, lid, gid, place, numbers) = match lanes {
            Lanes::Named { wire, lid, gid, numbers } => {
                let wire = if wire == Wire::Roce { ROCE } else { INFINIBAND };
                (wire, lid, gid, None, numbers.all)
            }
            Lanes::Managed { place, .. } => (IWARP, 0, [0; 16], place, [Number::default(); LANES_MAX]),
        };
        writer.put(&[0, wire, mtu, count]).put(&receives.to_le_bytes()).put(&words.to_le_bytes());
        writer.put(&message_bytes.to_le_bytes()).put(&[reads_out, reads_in]).put(&lid.to_le_bytes()).put(&gid);
        let ip = |ip| match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        writer.put(&place.map_or([0; 16], |place| ip(place.address.ip())));
        writer.put(&place.map_or(0, |place| place.address.port()).to_le_bytes()).put(&[0; 6]);
        writer.put(&place.map_or([0; TOKEN_BYTES], |place| place.token));
        for Number { queue_pair, first_packet } in numbers {
            writer.put(&queue_pair.to_le_bytes()).put(&first_packet.to_le_bytes());
        }
        writer.bytes
    }

    /// # Errors
    /// It is none that a side sends which has so many lanes.
    pub fn parse(bytes: &[u8; OFFER_BYTES], lanes: usize) -> Result<Said<Offer>, NotSaid> {
        let mut reader = Reader::new(bytes, OFFER)?;
        let requires = reader.requires()?;
        if let Some(reason) = Reason::of(reader.byte()) {
            return if reader.is_zero() { Ok(Said { requires, what: Err(reason) }) } else { Err(NotSaid(BEHIND)) };
        }
        let (wire, mtu, count) = (reader.byte(), reader.byte(), reader.byte());
        let (receives, words, message_bytes) = (reader.short(), reader.short(), reader.word());
        let (reads_out, reads_in, lid, gid) = (reader.byte(), reader.byte(), reader.short(), reader.take::<16>());
        let (address, port, zero, token) =
            (reader.take::<16>(), reader.short(), reader.take::<6>(), reader.take::<TOKEN_BYTES>());
        let numbers = [(); LANES_MAX].map(|()| Number { queue_pair: reader.word(), first_packet: reader.word() });
        if usize::from(count) != lanes || !(1..=LANES_MAX).contains(&lanes) {
            return Err(NotSaid("an offer for another number of lanes"));
        }
        if !(1..=MTU_MAX).contains(&mtu) || !(1..=RECEIVES_MAX).contains(&receives) || zero != [0; 6] {
            return Err(NotSaid("an offer with a size that there is not"));
        }
        if !(MESSAGE_BYTES_MIN..=MESSAGE_BYTES_MAX).contains(&message_bytes) {
            return Err(NotSaid("an offer with a size that there is not"));
        }
        let has_place = address != [0; 16] || port != 0 || token != [0; TOKEN_BYTES];
        let lanes = match wire {
            ROCE | INFINIBAND => {
                if has_place {
                    return Err(NotSaid(BEHIND));
                }
                let wire = if wire == ROCE { Wire::Roce } else { Wire::InfiniBand };
                Lanes::Named { wire, lid, gid, numbers: checked(wire, lid, &gid, &numbers, lanes)? }
            }
            IWARP => {
                if lid != 0 || gid != [0; 16] || numbers != [Number::default(); LANES_MAX] {
                    return Err(NotSaid(BEHIND));
                }
                let place = has_place.then(|| place(address, port, token)).transpose()?;
                Lanes::Managed { place, lanes: count }
            }
            _ => return Err(NotSaid("an offer of a wire that there is not")),
        };
        let offer = Offer { mtu, receives, message_bytes, words, reads_out, reads_in, lanes };
        Ok(Said { requires, what: Ok(offer) })
    }
}

/// The queue pairs of an offer, if they and where they are can be.
fn checked(
    wire: Wire,
    lid: u16,
    gid: &[u8; 16],
    numbers: &[Number; LANES_MAX],
    lanes: usize,
) -> Result<Numbers, NotSaid> {
    // A group's address would have one side's packets go to many.
    let is_reachable = match wire {
        Wire::Roce => lid == 0 && *gid != [0; 16],
        Wire::InfiniBand => lid < LID_END && (lid != 0 || *gid != [0; 16]),
    };
    if !is_reachable || gid[0] == 0xff {
        return Err(NotSaid("an offer with an address that no port has"));
    }
    let (used, unused) = numbers.split_at(lanes);
    let is_number = |n: &Number| (QUEUE_PAIR_MIN..=NUMBER_MAX).contains(&n.queue_pair) && n.first_packet <= NUMBER_MAX;
    let is_repeated = |(at, n): (usize, &Number)| used[..at].iter().any(|other| other.queue_pair == n.queue_pair);
    if !used.iter().all(is_number) || used.iter().enumerate().any(is_repeated) {
        return Err(NotSaid("an offer with a queue pair that there is not"));
    }
    if unused.iter().any(|n| *n != Number::default()) {
        return Err(NotSaid(BEHIND));
    }
    Numbers::new(used.iter().copied()).ok_or(NotSaid("an offer without a queue pair"))
}

fn place(address: [u8; 16], port: u16, token: [u8; TOKEN_BYTES]) -> Result<Place, NotSaid> {
    let ip = Ipv6Addr::from(address).to_canonical();
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    if port == 0 || token == [0; TOKEN_BYTES] || ip.is_unspecified() || ip.is_multicast() || is_broadcast {
        return Err(NotSaid("an offer with an address that no port has"));
    }
    Ok(Place { address: SocketAddr::new(ip, port), token })
}

impl Said<()> {
    pub fn to_bytes(self, step: Step) -> [u8; STEP_BYTES] {
        let mut writer = Writer::<STEP_BYTES>::new(step.kind(), self.requires);
        writer.put(&[self.what.map_or_else(Reason::code, |()| 0)]);
        writer.bytes
    }

    /// # Errors
    /// It is not the one that is due.
    pub fn parse(bytes: &[u8; STEP_BYTES], step: Step) -> Result<Said<()>, NotSaid> {
        let mut reader = Reader::new(bytes, step.kind())?;
        let requires = reader.requires()?;
        let what = Reason::of(reader.byte()).map_or(Ok(()), Err);
        if reader.is_zero() { Ok(Said { requires, what }) } else { Err(NotSaid(BEHIND)) }
    }
}

impl Step {
    fn kind(self) -> u8 {
        match self {
            Step::Ready => READY,
            Step::Verdict => VERDICT,
        }
    }
}

const BEHIND: &str = "bytes without a meaning that are not 0";

struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    fn new(kind: u8, requires: bool) -> Self {
        let mut writer = Writer { bytes: [0; N], at: 0 };
        let flags = if requires { REQUIRES } else { 0 };
        writer.put(&MAGIC.to_le_bytes()).put(&VERSION.to_le_bytes()).put(&[kind, flags]);
        writer
    }

    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }
}

/// What is not read yet. No message has fewer bytes than are taken of it.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8], kind: u8) -> Result<Reader<'a>, NotSaid> {
        let mut reader = Reader(bytes);
        if (reader.word(), reader.short()) != (MAGIC, VERSION) {
            return Err(NotSaid("bytes that are no message about queue pairs"));
        }
        if reader.byte() == kind { Ok(reader) } else { Err(NotSaid("a message about queue pairs that is not due")) }
    }

    fn requires(&mut self) -> Result<bool, NotSaid> {
        match self.byte() {
            0 => Ok(false),
            REQUIRES => Ok(true),
            _ => Err(NotSaid(BEHIND)),
        }
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((taken, rest)) = self.0.split_first_chunk() else { return [0; N] };
        self.0 = rest;
        *taken
    }

    fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.take())
    }

    fn short(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn is_zero(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Offer = Offer {
        mtu: 5,
        receives: 64,
        message_bytes: 4096,
        words: 1,
        reads_out: 16,
        reads_in: 128,
        lanes: Lanes::Managed { place: None, lanes: 3 },
    };

    fn named(wire: Wire, lid: u16, gid: [u8; 16]) -> Offer {
        let number = |n: u32| Number { queue_pair: 0x11 + n, first_packet: 0xff_fff0 + n };
        let numbers = Numbers::new((0..3).map(number)).unwrap();
        Offer { lanes: Lanes::Named { wire, lid, gid, numbers }, ..SIZES }
    }

    fn managed(address: Option<&str>) -> Offer {
        let place = address.map(|address| Place { address: address.parse().unwrap(), token: [7; TOKEN_BYTES] });
        Offer { lanes: Lanes::Managed { place, lanes: 3 }, ..SIZES }
    }

    fn offers() -> Vec<Said<Offer>> {
        let gid = std::array::from_fn(|n| n as u8 + 1);
        let offers = [
            named(Wire::Roce, 0, gid),
            named(Wire::InfiniBand, 7, [0; 16]),
            named(Wire::InfiniBand, 0, gid),
            named(Wire::InfiniBand, 0xbfff, gid),
            managed(None),
            managed(Some("192.0.2.7:4791")),
            managed(Some("[2001:db8::7]:1")),
        ];
        let said = offers.into_iter().map(|offer| Said { requires: offer.lanes() == 0, what: Ok(offer) });
        said.chain([Said { requires: true, what: Err(Reason::NoDevice) }]).collect()
    }

    #[test]
    fn what_is_said_comes_back_from_its_bytes() {
        for said in offers() {
            assert_eq!(Said::<Offer>::parse(&said.to_bytes(), 3), Ok(said));
        }
        for step in [Step::Ready, Step::Verdict] {
            for what in [Ok(()), Err(Reason::Silent), Err(Reason::Unknown(200))] {
                let said = Said { requires: false, what };
                assert_eq!(Said::<()>::parse(&said.to_bytes(step), step), Ok(said));
                let other = if step == Step::Ready { Step::Verdict } else { Step::Ready };
                assert!(Said::<()>::parse(&said.to_bytes(step), other).is_err());
            }
        }
    }

    /// Whatever a byte is changed to, it is refused, or says something that can be, and as it says it.
    #[test]
    fn every_byte_of_an_offer_is_bounded() {
        for said in offers() {
            let whole = said.to_bytes();
            for (at, bits) in (0..OFFER_BYTES).flat_map(|at| (1..=255u8).map(move |bits| (at, bits))) {
                let mut bytes = whole;
                bytes[at] ^= bits;
                let Ok(changed) = Said::<Offer>::parse(&bytes, 3) else { continue };
                assert_eq!(changed.to_bytes(), bytes, "byte {at} of {said:?} is not looked at");
                if let Ok(offer) = changed.what {
                    assert!((1..=5).contains(&offer.mtu) && offer.receives > 0 && offer.lanes() == 3, "{offer:?}");
                }
            }
            assert!(
                (0..=20)
                    .filter(|lanes| *lanes != 3)
                    .all(|lanes| { said.what.is_err() || Said::<Offer>::parse(&whole, lanes).is_err() })
            );
        }
        for at in 0..STEP_BYTES {
            let mut bytes = Said { requires: true, what: Ok(()) }.to_bytes(Step::Ready);
            bytes[at] ^= 0x80;
            let parsed = Said::<()>::parse(&bytes, Step::Ready);
            assert!(parsed.is_err() || at == 8 && parsed.is_ok_and(|said| said.what.is_err()), "byte {at}");
        }
    }

    #[test]
    fn what_no_port_has_is_refused_field_by_field() {
        let gid = [9; 16];
        let refused = |offer: Offer, at: usize, field: &[u8]| {
            let mut bytes = Said { requires: false, what: Ok(offer) }.to_bytes();
            bytes[at..at + field.len()].copy_from_slice(field);
            Said::<Offer>::parse(&bytes, 3).unwrap_err()
        };
        let roce = named(Wire::Roce, 0, gid);
        for (what, at, field) in [
            ("a wire of 0", 9, &[0][..]),
            ("an unknown wire", 9, &[4]),
            ("an MTU of 0", 10, &[0]),
            ("an MTU of 8,192", 10, &[6]),
            ("no lanes", 11, &[0]),
            ("too many lanes", 11, &[17]),
            ("no receives", 12, &[0, 0]),
            ("more receives than a queue has", 12, &[1, 64]),
            ("messages of 63 bytes", 16, &[63, 0, 0, 0]),
            ("messages of 2 GiB", 16, &[0, 0, 0, 0x80]),
            ("a LID on Ethernet", 22, &[1, 0]),
            ("no GID on Ethernet", 24, &[0; 16]),
            ("a GID of a group", 24, &[0xff]),
            ("an address beside it", 40, &[1]),
            ("a port beside it", 56, &[1]),
            ("a token beside it", 64, &[1]),
            ("the queue pair of the subnet manager", 80, &[0, 0, 0, 0]),
            ("that of the manager's agent", 80, &[1, 0, 0, 0]),
            ("a queue pair of 25 bits", 80, &[0, 0, 0, 1]),
            ("one queue pair twice", 80, &[0x12, 0, 0, 0]),
            ("a packet number of 25 bits", 84, &[0, 0, 0, 1]),
            ("a fourth queue pair", 80 + 3 * 8, &[9]),
        ] {
            refused(roce, at, field);
            assert!(!what.is_empty());
        }
        let band = named(Wire::InfiniBand, 7, gid);
        refused(band, 22, &[0, 0xc0]);
        refused(named(Wire::InfiniBand, 7, [0; 16]), 22, &[0, 0]);
        let here = managed(Some("192.0.2.7:4791"));
        for (at, field) in [(40, &[0; 16][..]), (56, &[0, 0]), (64, &[0; 16]), (22, &[1]), (24, &[1]), (80, &[9])] {
            refused(here, at, field);
        }
        for ip in [[0; 4], [224, 0, 0, 1], [255; 4]] {
            refused(here, 52, &ip);
        }
    }
}
