//! How an engine runs, and what its clients may take from it.

use super::EngineError;
use super::remote::RemoteConfig;
use crate::link::verbs::nic::{Choice, Nic};
use crate::peer::{self, Keys, LANES_MAX, MAP_MEMORY, VERBS};
use crate::region::Trust;
use crate::verbs::Library;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How an engine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Copy workers besides the poller.
    pub workers: usize,
    /// How long the poller and the workers spin, yielding, before they sleep. About what a wake-up costs is right: less
    /// and every pause costs a wake-up, more and an idle engine burns a core for longer.
    pub spin: Duration,
    /// Users besides the engine's own and root whose processes may attach. With any of them the socket's directory may be
    /// open to a group (0750), and the socket is.
    pub users: Vec<u32>,
    /// Whose memory files are accepted. [`Trust::SameUser`] needs [`guard_process`](super::guard_process) before.
    pub trust: Trust,
    /// What clients may take.
    pub limits: Limits,
    /// How this engine meets others. `None`: not at all, and whatever clients ask about peers is refused with
    /// [`UNSUPPORTED`](ring_abi::Status::UNSUPPORTED).
    pub peers: Option<PeerSettings>,
}

/// How an engine meets others, and what is made for each connection: `slots` slots of `slot_bytes` bytes on either side for
/// each direction, a thread for each lane but the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// Where to listen; without any, this engine only connects to others. Port 0 lets the kernel choose. Without a key file
    /// only loopback addresses.
    pub listen: Vec<SocketAddr>,
    /// What others are told to connect to ([`Endpoint`](super::Endpoint)). If empty, what is listened on; if that is an
    /// address that means every address, these must be given.
    pub advertise: Vec<SocketAddr>,
    /// The keys that engines share: one a line, 64 hexadecimal digits, or two while they are changed; readable by its owner
    /// alone. [`make_key_file`](super::make_key_file) makes one. `None`: nobody proves anything, and only loopback addresses
    /// are listened on and connected to.
    pub key_file: Option<PathBuf>,
    /// The kernel's congestion control for connections, by name. `None`: the system's choice.
    pub congestion: Option<String>,
    /// Sockets of a connection, 1 to 16: the poller drives the first, for what is small; the others have a thread each.
    pub lanes: u16,
    /// Bytes of a slot, and most that is moved at once: whole pages of 4,096 bytes, 16 KiB to 16 MiB.
    pub slot_bytes: u32,
    /// Slots of a connection for each direction, 1 to 1,024.
    pub slots: u32,
    /// Slots in which this engine packs what others ask for, all connections together, 1 to 4,096.
    pub owner_slots: u32,
    /// Connections at once, and engines that are dialled, 1 to 1,024.
    pub connections: u32,
    /// A connection on which nothing comes for so long although something should is given up: 50 ms to 2.5 s. Noticing it
    /// takes up to half a second more.
    pub dead_after: Duration,
    /// Where both engines run on one host, as one user: what clients of one open at the other is mapped, and transfers with it
    /// are copies within memory. Needs a [socket](super::RunningEngine::listen) of the engine whose memory it is, which then
    /// keeps a file descriptor for every region that is registered. Goes over the connection otherwise.
    pub map_memory: bool,
    /// By which means memory of other engines is reached.
    pub transport: PeerTransport,
    /// The RDMA device, by its name. `None`: the first with a port that is up.
    pub device: Option<String>,
    /// Its port, from 1. `None`: the first that is up.
    pub device_port: Option<u8>,
    /// The place of the port's address in its table of GIDs. `None`: of RoCE v2 before v1, of an IPv4 address before one of IPv6.
    pub gid_index: Option<u8>,
    /// Devices that a test plays, instead of this machine's.
    #[doc(hidden)]
    pub verbs_library: Option<VerbsLibrary>,
}

/// Functions that are not those of an installed library.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct VerbsLibrary(pub Arc<Library>);

impl PartialEq for VerbsLibrary {
    fn eq(&self, other: &VerbsLibrary) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for VerbsLibrary {}

/// By which means memory of other engines is reached. They meet over TCP in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PeerTransport {
    /// By RDMA verbs where both sides have a device and reach each other by it, else over TCP.
    #[default]
    Auto,
    /// By RDMA verbs only. An engine without a device does not start, and a connection that cannot be had so is refused or
    /// ended.
    Verbs,
    /// Over TCP only.
    Tcp,
}

/// What clients may take from an engine. What goes beyond is refused with
/// [`LIMIT_EXCEEDED`](ring_abi::Status::LIMIT_EXCEEDED) and a text that names the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sessions at a time, at most 65,536. Each is one ring pair, of one thread of a client.
    pub sessions: usize,
    /// Of these, sessions of one user.
    pub sessions_per_user: usize,
    /// Slots of either ring of a session.
    pub ring_slots: u32,
    /// Regions of a session, registered and opened, at most 4,096; and names that it can give.
    pub regions: u32,
    /// Bytes of the regions that a session has registered. Opened regions count for their owner.
    pub region_bytes: u64,
    /// Batches of a session under way.
    pub batches: u32,
    /// Bytes of transfers whose batch has an outcome and that may still be written (HELD, not yet RELEASED). A session
    /// with more ends.
    pub held_bytes: u64,
}

impl Default for Config {
    /// One worker less than there are processors, at most 4; 200 us; this user and root only; sealed files only; no peers.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Config {
            workers: (processors - 1).min(4),
            spin: Duration::from_micros(200),
            users: Vec::new(),
            trust: Trust::Sealed,
            limits: Limits::default(),
            peers: None,
        }
    }
}

impl Default for PeerSettings {
    /// Listens nowhere, has no keys. 3 lanes; 16 slots of 256 KiB for each direction, and 16 to pack in; 64 connections; 2.5 s; maps
    /// memory; RDMA verbs where they work.
    fn default() -> Self {
        PeerSettings {
            listen: Vec::new(),
            advertise: Vec::new(),
            key_file: None,
            congestion: None,
            lanes: 3,
            slot_bytes: 256 << 10,
            slots: 16,
            owner_slots: 16,
            connections: 64,
            dead_after: DEAD_AFTER_MAX,
            map_memory: true,
            transport: PeerTransport::Auto,
            device: None,
            device_port: None,
            gid_index: None,
            verbs_library: None,
        }
    }
}

impl PeerSettings {
    /// Values of [`lanes`](Self::lanes).
    pub const LANES: RangeInclusive<u16> = 1..=LANES_MAX;
    /// Values of [`slot_bytes`](Self::slot_bytes), in steps of 4,096.
    pub const SLOT_BYTES: RangeInclusive<u32> = 16 << 10..=16 << 20;
    /// Values of [`slots`](Self::slots).
    pub const SLOTS: RangeInclusive<u32> = 1..=1024;
    /// Values of [`owner_slots`](Self::owner_slots).
    pub const OWNER_SLOTS: RangeInclusive<u32> = 1..=4096;
    /// Values of [`connections`](Self::connections).
    pub const CONNECTIONS: RangeInclusive<u32> = 1..=1024;

    /// Whether an engine could start with them, as far as can be seen without listening; reads the key file, and opens the RDMA
    /// device if there has to be one.
    ///
    /// # Errors
    /// A value out of its range, a key file that cannot be used, an address that needs a key, an unknown congestion control, no
    /// RDMA device where nothing else will do.
    pub fn check(&self) -> Result<(), EngineError> {
        self.peer_config(false)?.check()?;
        if self.transport == PeerTransport::Verbs {
            self.open_device()?;
        }
        Ok(())
    }

    /// The device for RDMA verbs, if they are to be used and there is one. Says what it finds, once.
    pub(super) fn open_device(&self) -> Result<Option<Arc<Nic>>, EngineError> {
        let Self { device, device_port, gid_index, verbs_library, .. } = self.clone();
        let choice = Choice { device, port: device_port, gid_index };
        if self.transport == PeerTransport::Tcp {
            return Ok(None);
        }
        let played = verbs_library.map(|VerbsLibrary(library)| Nic::open_of(&library, &choice));
        match played.unwrap_or_else(|| Nic::open(&choice)) {
            Ok(nic) => Ok(Some(nic)),
            Err(error) if self.transport == PeerTransport::Verbs => Err(EngineError::NoVerbs(error.to_string())),
            // Somebody has said that there is one.
            Err(error) if choice != Choice::default() => {
                tracing::warn!(reason = %error, "the RDMA device is not used: peers are reached over TCP");
                Ok(None)
            }
            Err(error) => {
                tracing::info!(reason = %error, "no RDMA here: peers are reached over TCP");
                Ok(None)
            }
        }
    }

    /// What the thread that listens and dials is started with.
    pub(super) fn peer_config(&self, has_device: bool) -> Result<peer::Config, EngineError> {
        self.check_values()?;
        let keys = self.key_file.as_deref().map(Keys::read).transpose()?;
        Ok(peer::Config {
            listen: self.listen.clone(),
            advertise: self.advertise.clone(),
            keys,
            limits: peer::Limits {
                slot_bytes: self.slot_bytes.into(),
                slots: self.slots,
                commands: COMMANDS,
                lanes: self.lanes,
            },
            congestion: self.congestion.clone(),
            connections_max: self.connections as usize,
            offers: if self.map_memory { MAP_MEMORY } else { 0 } | if has_device { VERBS } else { 0 },
            requires: if self.transport == PeerTransport::Verbs { VERBS } else { 0 },
            ..peer::Config::new()?
        })
    }

    /// What the poller makes for connections.
    pub(super) fn remote(&self, spin: Duration) -> RemoteConfig {
        RemoteConfig {
            connections: self.connections,
            slot_bytes: self.slot_bytes,
            slots: self.slots,
            owner_slots: self.owner_slots,
            dead_after_ns: self.dead_after.as_nanos() as u64,
            spin,
        }
    }

    fn check_values(&self) -> Result<(), EngineError> {
        let wrong = |text: String| Err(EngineError::PeerSetting(text));
        if !Self::LANES.contains(&self.lanes) {
            return wrong(format!("lanes: {}, must be from 1 to {LANES_MAX}", self.lanes));
        }
        let numbers = [
            ("slot_bytes", self.slot_bytes, Self::SLOT_BYTES),
            ("slots", self.slots, Self::SLOTS),
            ("owner_slots", self.owner_slots, Self::OWNER_SLOTS),
            ("connections", self.connections, Self::CONNECTIONS),
        ];
        if let Some((name, value, range)) = numbers.into_iter().find(|(_, value, range)| !range.contains(value)) {
            return wrong(format!("{name}: {value}, must be from {} to {}", range.start(), range.end()));
        }
        if !self.slot_bytes.is_multiple_of(PAGE_BYTES) {
            return wrong(format!("slot_bytes: {}, must be a multiple of {PAGE_BYTES}", self.slot_bytes));
        }
        if !(DEAD_AFTER_MIN..=DEAD_AFTER_MAX).contains(&self.dead_after) {
            let (least, most) = (DEAD_AFTER_MIN, DEAD_AFTER_MAX);
            return wrong(format!("dead_after: {:?}, must be from {least:?} to {most:?}", self.dead_after));
        }
        if self.device.as_ref().is_some_and(|name| name.is_empty() || name.len() > DEVICE_BYTES_MAX) {
            return wrong(format!("device: a name has from 1 to {DEVICE_BYTES_MAX} bytes"));
        }
        if self.device_port == Some(0) {
            return wrong("device_port: 0, ports are counted from 1".to_owned());
        }
        if self.advertise.is_empty()
            && let Some(address) = self.listen.iter().find(|address| address.ip().is_unspecified())
        {
            return wrong(format!(
                "listen: {address} means every address of this host: say in `advertise` which ones others connect to"
            ));
        }
        Ok(())
    }
}

/// As the kernel has them.
const DEVICE_BYTES_MAX: usize = 63;
/// Commands of one peer outstanding.
const COMMANDS: u32 = 64;
const PAGE_BYTES: u32 = 4096;
const DEAD_AFTER_MIN: Duration = Duration::from_millis(50);
/// A peer that is gone is to be noticed within three seconds, and looking for it takes some of them.
const DEAD_AFTER_MAX: Duration = Duration::from_millis(2500);

impl Default for Limits {
    /// 64 sessions; rings of 65,536 slots; 4,096 regions of as many bytes as a machine can have; 1,024 batches; 1 GiB held.
    fn default() -> Self {
        Limits {
            sessions: 64,
            sessions_per_user: 64,
            ring_slots: 1 << 16,
            regions: ring_abi::Handle::INDEX_MAX + 1,
            region_bytes: 1 << 56,
            batches: 1024,
            held_bytes: 1 << 30,
        }
    }
}
