//! The section `[peers]`, and the options that go before it.

use super::Args;
use super::file::{File, Keys};
use crate::command::Failure;
use scatter_ring::engine::{PeerSettings, PeerTransport};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use toml::Spanned;

/// How other engines are met. An empty text says that there is none.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct PeerSection {
    listen: Vec<SocketAddr>,
    advertise: Vec<SocketAddr>,
    key_file: PathBuf,
    congestion: String,
    lanes: u16,
    slot_bytes: u32,
    slots: u32,
    owner_slots: u32,
    connections: u32,
    map_memory: bool,
    transport: Transport,
    device: String,
    /// 0: any.
    device_port: u8,
    /// [`ANY_GID`]: the best.
    gid_index: i16,
}

const ANY_GID: i16 = -1;

/// By which means memory of other engines is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// By RDMA verbs where both sides have them, else over TCP
    Auto,
    /// By RDMA verbs, or not at all
    Verbs,
    /// Over TCP
    Tcp,
}

impl PeerSection {
    /// `None`: neither the file nor an option says anything of peers, and there are none.
    pub fn new(args: &Args, file: &File, keys: &Keys) -> Result<Option<PeerSection>, Failure> {
        let is_given = !args.peer_listen.is_empty()
            || args.peer_keys.is_some()
            || args.peer_congestion.is_some()
            || args.peer_no_mapping
            || args.peer_transport.is_some()
            || args.peer_device.is_some();
        let none = Default::default();
        let keys = match &keys.peers {
            Some(keys) => keys,
            None if is_given => &none,
            None => return Ok(None),
        };
        let default = PeerSettings::default();
        let listen = addresses(file, "peers.listen", keys.listen.as_deref())?;
        let lanes = file.number("peers.lanes", keys.lanes.as_ref(), PeerSettings::LANES)?;
        let slots = file.number("peers.slots", keys.slots.as_ref(), PeerSettings::SLOTS)?;
        let owner_slots = file.number("peers.owner_slots", keys.owner_slots.as_ref(), PeerSettings::OWNER_SLOTS)?;
        let connections = file.number("peers.connections", keys.connections.as_ref(), PeerSettings::CONNECTIONS)?;
        let slot_bytes = file.size("peers.slot_bytes", keys.slot_bytes.as_ref(), u32::MAX.into())?;
        let device_port = file.number("peers.device_port", keys.device_port.as_ref(), 0..=u8::MAX)?;
        let gid_index = file.number("peers.gid_index", keys.gid_index.as_ref(), ANY_GID..=u8::MAX.into())?;
        let section = PeerSection {
            listen: if args.peer_listen.is_empty() { listen } else { args.peer_listen.clone() },
            advertise: addresses(file, "peers.advertise", keys.advertise.as_deref())?,
            key_file: args.peer_keys.as_ref().or(keys.key_file.as_ref()).cloned().unwrap_or_default(),
            congestion: args.peer_congestion.as_ref().or(keys.congestion.as_ref()).cloned().unwrap_or_default(),
            lanes: lanes.unwrap_or(default.lanes),
            slot_bytes: slot_bytes.map_or(default.slot_bytes, |bytes| bytes as u32),
            slots: slots.unwrap_or(default.slots),
            owner_slots: owner_slots.unwrap_or(default.owner_slots),
            connections: connections.unwrap_or(default.connections),
            map_memory: !args.peer_no_mapping && keys.map_memory.unwrap_or(default.map_memory),
            transport: args.peer_transport.or(keys.transport).unwrap_or(Transport::Auto),
            device: args.peer_device.as_ref().or(keys.device.as_ref()).cloned().unwrap_or_default(),
            device_port: device_port.unwrap_or(0),
            gid_index: gid_index.unwrap_or(ANY_GID),
        };
        section.settings().check().map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(Some(section))
    }

    pub fn settings(&self) -> PeerSettings {
        PeerSettings {
            listen: self.listen.clone(),
            advertise: self.advertise.clone(),
            key_file: Some(self.key_file.clone()).filter(|path| !path.as_os_str().is_empty()),
            congestion: Some(self.congestion.clone()).filter(|name| !name.is_empty()),
            lanes: self.lanes,
            slot_bytes: self.slot_bytes,
            slots: self.slots,
            owner_slots: self.owner_slots,
            connections: self.connections,
            map_memory: self.map_memory,
            transport: match self.transport {
                Transport::Auto => PeerTransport::Auto,
                Transport::Verbs => PeerTransport::Verbs,
                Transport::Tcp => PeerTransport::Tcp,
            },
            device: Some(self.device.clone()).filter(|name| !name.is_empty()),
            device_port: Some(self.device_port).filter(|port| *port > 0),
            gid_index: u8::try_from(self.gid_index).ok(),
            ..PeerSettings::default()
        }
    }
}

fn addresses(file: &File, key: &str, found: Option<&[Spanned<String>]>) -> Result<Vec<SocketAddr>, Failure> {
    let address = |place: &Spanned<String>| {
        let parsed = place.get_ref().parse();
        parsed.map_err(|_| file.wrong(key, place, "must be an IP address and a port, as 127.0.0.1:7711 or [::1]:7711"))
    };
    found.unwrap_or_default().iter().map(address).collect()
}
