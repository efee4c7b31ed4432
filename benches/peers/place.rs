//! Two engines, an owner's client with a table and a sink at one of them, and a client that uses these at the other.

use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use scatter_ring::client::{Client, Peer, Region, Setup};
use scatter_ring::engine::{Config, Endpoint, Engine, PeerSettings, RunningEngine};
use scatter_ring::region::Rights;
use std::net::SocketAddr;
use std::sync::OnceLock;

/// Bytes of the table, and of the sink.
pub const TABLE_BYTES: u64 = 1 << 30;
/// The name of memory files of clients: so the memory of an engine can be told from theirs.
pub const FILE_NAME: &str = "peers-bench";

/// A memory file that clients register, with any number of engines.
pub struct File {
    fd: OwnedFd,
    bytes: u64,
}

/// Dropped from top to bottom: the clients before their engines.
pub struct Place {
    pub client: Client,
    /// Opened; reads come from it.
    pub table: Region,
    /// Once somebody writes.
    sink: Option<Sink>,
    _owned_table: Region,
    owner: Client,
    peer: Peer,
    /// The client's and the owner's, if they are in this process.
    pub engines: Vec<RunningEngine>,
}

/// What writes go to.
pub struct Sink {
    pub opened: Region,
    /// As its owner has it.
    pub owned: Region,
}

impl File {
    pub fn new(bytes: u64) -> File {
        let fd = rustix::fs::memfd_create(FILE_NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        // An engine fills its page tables when a file has its pages: no fault is timed.
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        File { fd, bytes }
    }

    /// What reads come from: no two places are alike.
    pub fn table() -> &'static File {
        static TABLE: OnceLock<File> = OnceLock::new();
        TABLE.get_or_init(|| {
            let (file, mut piece) = (File::new(TABLE_BYTES), vec![0; 1 << 20]);
            for offset in (0..TABLE_BYTES).step_by(piece.len()) {
                fill(&mut piece, offset, 0);
                assert_eq!(rustix::io::pwrite(&file.fd, &piece, offset).unwrap(), piece.len());
            }
            file
        })
    }

    /// The same memory for the sinks of all places.
    pub fn sink() -> &'static File {
        static SINK: OnceLock<File> = OnceLock::new();
        SINK.get_or_init(|| File::new(TABLE_BYTES))
    }

    pub fn register(&self, client: &Client, rights: Rights) -> Region {
        client.register(&self.fd, self.bytes, rights).unwrap()
    }
}

/// Bytes of a table from an offset on, a multiple of 8. Another salt gives another table.
pub fn fill(bytes: &mut [u8], offset: u64, salt: u64) {
    for (number, to) in (offset / 8..).zip(bytes.chunks_exact_mut(8)) {
        to.copy_from_slice(&(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ salt).to_le_bytes());
    }
}

/// The settings of both engines.
pub fn settings() -> PeerSettings {
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    // The system's choice may be one that paces what goes over loopback; this one is allowed to everybody.
    // Memory that is mapped does not travel.
    PeerSettings { listen, congestion: Some("reno".into()), map_memory: false, ..PeerSettings::default() }
}

pub fn start(settings: &PeerSettings) -> RunningEngine {
    let config = Config { peers: Some(settings.clone()), ..Config::default() };
    Engine::new(&config).unwrap().start().unwrap()
}

pub fn attach(engine: &RunningEngine) -> Client {
    Client::over(engine.connect().unwrap(), &Setup::default()).unwrap()
}

impl Place {
    pub fn new(settings: &PeerSettings) -> Place {
        Self::by_way_of(settings, |address| address)
    }

    /// The client's engine connects to the address that is made of the owner's.
    pub fn by_way_of(settings: &PeerSettings, way: impl FnOnce(SocketAddr) -> SocketAddr) -> Place {
        let engines = vec![start(settings), start(settings)];
        let endpoint = engines[1].endpoint().unwrap();
        let address = way(endpoint.addresses()[0]);
        let endpoint = Endpoint::new(endpoint.identity(), endpoint.key(), &[address]).unwrap();
        let (client, owner) = (attach(&engines[0]), attach(&engines[1]));
        Place { engines, ..Self::of_clients(client, owner, &endpoint.to_string()) }
    }

    /// Of clients that are attached to the two engines, with the endpoint of the second.
    pub fn of_clients(client: Client, owner: Client, endpoint: &str) -> Place {
        let owned_table = File::table().register(&owner, Rights::READ);
        owner.export(&owned_table, "table", Rights::READ).unwrap();
        let peer = client.connect(endpoint).unwrap();
        let table = client.open_at(peer, "table", Rights::READ).unwrap();
        Place { client, table, sink: None, _owned_table: owned_table, owner, peer, engines: Vec::new() }
    }

    pub fn sink(&mut self) -> &Sink {
        self.sink.get_or_insert_with(|| {
            let owned = File::sink().register(&self.owner, Rights::READ_WRITE);
            self.owner.export(&owned, "sink", Rights::READ_WRITE).unwrap();
            Sink { opened: self.client.open_at(self.peer, "sink", Rights::READ_WRITE).unwrap(), owned }
        })
    }
}
