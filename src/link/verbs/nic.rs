//! The RDMA device of an engine: which one, which of its ports, which address.

use super::addresses::address_of;
use crate::verbs::{
    CompletionQueue, Context, DeviceLimits, Gid, GidEntry, GidType, Library, LinkLayer, Mtu, NoRdma, Port, PortState,
    ProtectionDomain, QueuePair, QueuePairCaps, VerbsError,
};
use std::net::IpAddr;
use std::sync::Arc;

/// Which device, port and address to use. `None`: the first that works, and of addresses the one that most likely reaches
/// others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// By its name, as `rdma link` lists it.
    pub device: Option<String>,
    /// From 1.
    pub port: Option<u8>,
    /// The place of its address in the port's table of GIDs.
    pub gid_index: Option<u8>,
}

/// An opened device with all that connections have in common. One for an engine.
pub struct Nic {
    /// What it was opened with.
    pub library: Arc<Library>,
    /// The device.
    pub context: Arc<Context>,
    /// All memory that is registered, and all queue pairs, are in it.
    pub domain: Arc<ProtectionDomain>,
    /// The port, from 1.
    pub port: u8,
    /// The place of [`gid`](Self::gid) in the port's table.
    pub gid_index: u8,
    /// The port's address.
    pub gid: Gid,
    /// What the address is for.
    pub gid_type: GidType,
    /// Its address in an InfiniBand subnet, 0 elsewhere.
    pub lid: u16,
    /// What lies under the port.
    pub link_layer: LinkLayer,
    /// Most that a packet carries.
    pub mtu: Mtu,
    /// Queue pairs are connected by rdma_cm.
    pub is_iwarp: bool,
    /// Of an iWARP device: where rdma_cm reaches it.
    pub address: Option<IpAddr>,
    /// What the device allows.
    pub limits: DeviceLimits,
    /// READs that a queue pair may have under way.
    pub reads_started: u8,
    /// READs of the other side that a queue pair serves at a time.
    pub reads_served: u8,
    /// Bytes that a request can carry itself, as far as was tried.
    pub inline_bytes: u32,
    /// Of the port, as the kernel says it; 0 if it does not.
    pub bits_per_s: u64,
}

/// Why there is no device to use.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// This machine has no RDMA.
    #[error(transparent)]
    NoRdma(#[from] NoRdma),
    /// None has the name that was asked for.
    #[error("there is no RDMA device {wanted:?}; there are: {there}")]
    NoDevice {
        /// As it was asked for.
        wanted: String,
        /// The names that there are.
        there: String,
    },
    /// None can be used; why each cannot.
    #[error("no RDMA device can be used: {0}")]
    None(String),
}

/// Why a device, or a port of it, is not used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("{0}")]
    Failed(#[from] VerbsError),
    #[error("it has no port {0}")]
    NoPort(u8),
    #[error("port {0} is {1}")]
    Down(u8, PortState),
    #[error("port {port} has no GID {wanted}")]
    NoGid { port: u8, wanted: String },
    #[error("iWARP needs librdmacm.so.1, which is not installed")]
    NoCm,
    #[error("its interface has no IP address")]
    NoAddress,
}

impl Nic {
    /// Opens a device of this machine.
    ///
    /// # Errors
    /// There is none, none of that name, or none that works; the text says why.
    pub fn open(choice: &Choice) -> Result<Arc<Nic>, NicError> {
        Self::choose(&Library::load()?, choice, true)
    }

    /// Opens a device of a library, which tests may have made: one of iWARP also if rdma_cm does not reach it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_of(library: &Arc<Library>, choice: &Choice) -> Result<Arc<Nic>, NicError> {
        Self::choose(library, choice, false)
    }

    fn choose(library: &Arc<Library>, choice: &Choice, is_strict: bool) -> Result<Arc<Nic>, NicError> {
        let mut names: Vec<String> = library.devices()?.into_iter().map(|device| device.name).collect();
        if let Some(wanted) = &choice.device {
            if !names.contains(wanted) {
                return Err(NicError::NoDevice { wanted: wanted.clone(), there: names.join(", ") });
            }
            names.retain(|name| name == wanted);
        }
        let mut reasons = Vec::new();
        for name in names {
            match Self::open_device(library, &name, choice) {
                Ok(nic) if is_strict && nic.is_iwarp && nic.address.is_none() => {
                    reasons.push(format!("{name}: {}", Unusable::NoAddress));
                }
                Ok(nic) => return Ok(Arc::new(nic)),
                Err(reason) => reasons.push(format!("{name}: {reason}")),
            }
        }
        Err(NicError::None(reasons.join("; ")))
    }

    fn open_device(library: &Arc<Library>, name: &str, choice: &Choice) -> Result<Nic, Unusable> {
        let context = Context::open(library, name)?;
        if context.needs_cm() && !library.has_cm() {
            return Err(Unusable::NoCm);
        }
        let last = context.limits().ports;
        let ports = match choice.port {
            Some(port) if port > last => return Err(Unusable::NoPort(port)),
            Some(port) => port..=port,
            None => 1..=last,
        };
        let mut unusable = Unusable::NoPort(1);
        for port in ports {
            match Self::open_port(library, &context, port, choice.gid_index) {
                Ok(nic) => return Ok(nic),
                Err(why) => unusable = why,
            }
        }
        Err(unusable)
    }

    fn open_port(
        library: &Arc<Library>,
        context: &Arc<Context>,
        number: u8,
        gid_index: Option<u8>,
    ) -> Result<Nic, Unusable> {
        let port = context.port(number)?;
        if port.state != PortState::ACTIVE {
            return Err(Unusable::Down(number, port.state));
        }
        let gid = choose_gid(context, number, &port, gid_index)?;
        // Without an address such a device can be tried, and not be met.
        let address = if context.needs_cm() { address_of(library, context.name()).ok().flatten() } else { None };
        let domain = ProtectionDomain::new(context)?;
        let limits = *context.limits();
        let credits = |reads: u32| reads.min(READS_MAX) as u8;
        Ok(Nic {
            library: library.clone(),
            address,
            port: number,
            gid_index: gid.index as u8,
            gid: gid.gid,
            gid_type: gid.kind,
            lid: if port.link_layer == LinkLayer::INFINIBAND { port.lid } else { 0 },
            link_layer: port.link_layer,
            mtu: Mtu(port.active_mtu.0.clamp(Mtu::BYTES_256.0, Mtu::BYTES_4096.0)),
            is_iwarp: context.needs_cm(),
            limits,
            reads_started: credits(limits.reads_started),
            reads_served: credits(limits.reads_served),
            inline_bytes: try_inline(context, &domain),
            bits_per_s: bits_per_s(context.name(), number),
            context: context.clone(),
            domain,
        })
    }

    /// For people: device, port and address.
    #[must_use]
    pub fn describe(&self) -> String {
        let kind = if self.is_iwarp { "iWARP".to_owned() } else { self.gid_type.to_string() };
        let address = match (self.address, self.gid.ipv4()) {
            (Some(address), _) => format!(", {address}"),
            (None, Some(address)) => format!(", GID {} = {address}", self.gid_index),
            (None, None) => format!(", GID {} = {}", self.gid_index, self.gid),
        };
        format!("{} port {} ({kind}{address})", self.context.name(), self.port)
    }
}

impl std::fmt::Debug for Nic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Nic").field(&self.describe()).finish()
    }
}

/// RoCE v2 before v1, an IPv4 address before an IPv6 one, and what is valid on one link only last: others reach it that way
/// most likely. On InfiniBand, and for iWARP, where rdma_cm goes by addresses, the first.
fn choose_gid(context: &Context, number: u8, port: &Port, wanted: Option<u8>) -> Result<GidEntry, Unusable> {
    let goes_by_gid = port.link_layer == LinkLayer::ETHERNET && !context.needs_cm();
    best_gid(&context.gids(number)?, wanted, goes_by_gid).ok_or_else(|| {
        let wanted = wanted.map_or("at all".to_owned(), |wanted| wanted.to_string());
        Unusable::NoGid { port: number, wanted }
    })
}

fn best_gid(gids: &[GidEntry], wanted: Option<u8>, goes_by_gid: bool) -> Option<GidEntry> {
    let worth = |entry: &GidEntry| {
        let is_local = entry.gid.0[..2] == [0xfe, 0x80];
        (entry.kind == GidType::ROCE_V2, !is_local, entry.gid.ipv4().is_some())
    };
    let usable = gids.iter().filter(|entry| entry.index <= u32::from(u8::MAX));
    let chosen = match wanted {
        Some(wanted) => usable.into_iter().find(|entry| entry.index == u32::from(wanted)),
        // Of equals the first.
        None if goes_by_gid => usable.rev().max_by_key(|entry| worth(entry)),
        None => usable.min_by_key(|entry| entry.index),
    };
    chosen.copied()
}

/// The largest of some sizes with which a queue pair can be made: devices have a limit, and do not say it.
fn try_inline(context: &Arc<Context>, domain: &Arc<ProtectionDomain>) -> u32 {
    let works = |inline_bytes: &u32| {
        let caps = QueuePairCaps {
            send_requests: 1,
            receive_requests: 1,
            send_pieces: 1,
            receive_pieces: 1,
            inline_bytes: *inline_bytes,
        };
        let queue = CompletionQueue::new(context, 2, None);
        queue.is_ok_and(|queue| QueuePair::new(domain, &queue, caps).is_ok())
    };
    INLINE_SIZES.into_iter().find(works).unwrap_or(0)
}

/// As in "100 Gb/sec (4X EDR)".
fn bits_per_s(device: &str, port: u8) -> u64 {
    let text = std::fs::read_to_string(format!("/sys/class/infiniband/{device}/ports/{port}/rate"));
    let gigabits = text.ok().and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    gigabits.filter(|rate| (0.0..1e6).contains(rate)).map_or(0, |rate| (rate * 1e9) as u64)
}

/// More of them under way keep no more of a wire busy.
const READS_MAX: u32 = 128;
/// More is copied as fast by the device.
const INLINE_SIZES: [u32; 3] = [256, 128, 64];

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u32, kind: GidType, address: &str) -> GidEntry {
        let gid = address.parse::<std::net::Ipv6Addr>().unwrap().octets();
        GidEntry { index, gid: Gid(gid), kind }
    }

    #[test]
    fn of_a_ports_addresses_the_one_is_taken_that_reaches_furthest() {
        let gids = [
            entry(0, GidType::ROCE_V1, "fe80::1"),
            entry(1, GidType::ROCE_V2, "fe80::1"),
            entry(2, GidType::ROCE_V1, "::ffff:192.0.2.7"),
            entry(3, GidType::ROCE_V2, "2001:db8::7"),
            entry(4, GidType::ROCE_V2, "::ffff:192.0.2.7"),
            entry(5, GidType::ROCE_V2, "::ffff:192.0.2.8"),
            entry(300, GidType::ROCE_V2, "::ffff:192.0.2.9"),
        ];
        let chosen = |gids: &[GidEntry], wanted, goes_by_gid| best_gid(gids, wanted, goes_by_gid).map(|gid| gid.index);
        assert_eq!(chosen(&gids, None, true), Some(4));
        assert_eq!(chosen(&gids[..4], None, true), Some(3));
        assert_eq!(chosen(&gids[..3], None, true), Some(1));
        assert_eq!(chosen(&gids[..1], None, true), Some(0));
        assert_eq!(chosen(&gids, None, false), Some(0), "InfiniBand, and iWARP");
        assert_eq!(chosen(&gids, Some(2), true), Some(2));
        assert_eq!(chosen(&gids, Some(44), true), None, "300 is no number of 8 bits");
        assert_eq!((chosen(&gids, Some(9), true), chosen(&[], None, true)), (None, None));
    }
}
