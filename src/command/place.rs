//! The parties of a measurement: engines, an owner with a table, clients.

use super::owner::OwnerMemory;
use super::process::{Helper, PrivateDirectory};
use super::{Failure, owner, report, workload};
use scatter_ring::client::{Client, Region, Setup};
use scatter_ring::engine::{Config, Engine, Limits, RunningEngine};
use scatter_ring::region::Rights;
use std::ffi::OsStr;
use std::path::Path;

/// The name by which the table is exported.
pub const TABLE: &str = "table";
/// Most clients of a place.
pub const CLIENTS_MAX: u32 = 64;
/// Sessions of an engine: theirs, and the owner's.
const SESSIONS: &str = "65";

/// An engine and a table that clients of it can open, and what keeps them alive. Dropped from top to bottom.
pub enum Place {
    Shm { _owner: Helper, engine: EngineProcess },
    Peers { requesters: Vec<EngineProcess>, endpoint: String, _owner: Helper, _engine: EngineProcess },
    Local { _table: Region, _owner: Box<Client>, engine: RunningEngine },
}

/// A client that has opened the table.
pub struct Party {
    pub table: Region,
    pub client: Client,
}

/// An engine in a process of its own.
pub struct EngineProcess {
    process: Helper,
    directory: PrivateDirectory,
}

/// How engines of `--link tcp` and `--link verbs` are started.
#[derive(Clone, Copy)]
pub struct Peers<'a> {
    /// What they reach each other's memory by.
    pub transport: &'static str,
    /// The RDMA devices of the owner's engine and of the others.
    pub devices: [Option<&'a str>; 2],
    pub congestion: Option<&'a str>,
    pub config: Option<&'a Path>,
    /// Engines that clients attach to.
    pub requesters: u32,
}

impl Place {
    /// An engine and an owner, each in a process of its own.
    pub fn shm(table_bytes: u64, memory: OwnerMemory) -> Result<Place, Failure> {
        let engine = EngineProcess::start(&["--clients".as_ref(), SESSIONS.as_ref()])?;
        let owner = start_owner(&engine.directory, table_bytes, memory)?;
        Ok(Place::Shm { _owner: owner, engine })
    }

    /// The same, and requesters' engines that reach the owner's as their peer, each in a process of its own.
    pub fn peers(table_bytes: u64, peers: Peers<'_>) -> Result<Place, Failure> {
        let mut engine = EngineProcess::start(&peers.options(peers.devices[0]))?;
        let endpoint = engine.endpoint()?;
        let owner = start_owner(&engine.directory, table_bytes, OwnerMemory::Shared)?;
        let start = |_| EngineProcess::start(&peers.options(peers.devices[1]));
        let requesters = (0..peers.requesters).map(start).collect::<Result<_, _>>()?;
        Ok(Place::Peers { requesters, endpoint, _owner: owner, _engine: engine })
    }

    /// Everything in this process: the engine, an owner with a session of its own, the clients.
    pub fn local(table_bytes: u64) -> Result<Place, Failure> {
        let sessions = CLIENTS_MAX as usize + 1;
        let limits = Limits { sessions, sessions_per_user: sessions, ..Limits::default() };
        let engine = Engine::new(&Config { limits, ..Config::default() })?.start()?;
        let owner = Client::over(engine.connect()?, &Setup::default())?;
        let owned = owner.allocate(table_bytes)?;
        let bar = report::bar(table_bytes, "filling the table");
        workload::fill_table(&owned, |done| bar.set_position(done))?;
        bar.finish_and_clear();
        owner.export(&owned, TABLE, Rights::READ_WRITE)?;
        Ok(Place::Local { _table: owned, _owner: owner.into(), engine })
    }

    /// Another client. Where there are several requesters' engines they get clients in turn.
    pub fn party(&self, number: u32) -> Result<Party, Failure> {
        let (client, table) = match self {
            Place::Shm { engine, .. } => opened(Client::attach(engine.directory.socket())?)?,
            Place::Local { engine, .. } => opened(Client::over(engine.connect()?, &Setup::default())?)?,
            Place::Peers { requesters, endpoint, .. } => {
                let engine = &requesters[number as usize % requesters.len()];
                let client = Client::attach(engine.directory.socket())?;
                let peer = client.connect(endpoint)?;
                let table = client.open_at(peer, TABLE, Rights::READ_WRITE)?;
                (client, table)
            }
        };
        Ok(Party { table, client })
    }
}

fn opened(client: Client) -> Result<(Client, Region), Failure> {
    let table = client.open(TABLE, Rights::READ_WRITE)?;
    Ok((client, table))
}

impl<'a> Peers<'a> {
    /// What `serve` is told. A port of loopback always, so that no file has to say that there are peers. Nothing is mapped:
    /// the connection is what is measured.
    fn options(&self, device: Option<&'a str>) -> Vec<&'a OsStr> {
        let always = ["--clients", SESSIONS, "--peer-listen", "127.0.0.1:0", "--peer-no-mapping"];
        let mut options: Vec<&OsStr> = always.map(OsStr::new).into();
        options.extend(["--peer-transport", self.transport].map(OsStr::new));
        if let Some(device) = device {
            options.extend(["--peer-device", device].map(OsStr::new));
        }
        if let Some(congestion) = self.congestion {
            options.extend([OsStr::new("--peer-congestion"), OsStr::new(congestion)]);
        }
        if let Some(config) = self.config {
            options.extend([OsStr::new("--config"), config.as_os_str()]);
        }
        options
    }
}

impl EngineProcess {
    /// The next directory is looked for only when this engine has made its own: so they are different ones.
    fn start(options: &[&OsStr]) -> Result<EngineProcess, Failure> {
        let directory = PrivateDirectory::new();
        let process = serve(&directory, options)?;
        Ok(EngineProcess { process, directory })
    }

    /// How other engines reach it. Only once, and only if it listens: it is the second line that it prints.
    fn endpoint(&mut self) -> Result<String, Failure> {
        let line = self.process.line()?;
        let endpoint = line.trim_end().strip_prefix("scatter-ring: peers connect to ");
        endpoint.map(str::to_owned).ok_or_else(|| Failure::run(format!("the engine has no endpoint: {line}")))
    }
}

/// An engine that ends with this process.
pub fn start_engine(directory: &PrivateDirectory) -> Result<Helper, Failure> {
    serve(directory, &[])
}

fn serve(directory: &PrivateDirectory, options: &[&OsStr]) -> Result<Helper, Failure> {
    let socket = directory.socket();
    let always = ["serve", "--with-parent", "--log-level", "warn", "--socket"];
    let args: Vec<&OsStr> =
        always.iter().map(OsStr::new).chain([socket.as_os_str()]).chain(options.iter().copied()).collect();
    let mut engine = Helper::start("engine", &args)?;
    engine.line()?;
    Ok(engine)
}

/// A process with a full table that others can open.
pub fn start_owner(directory: &PrivateDirectory, table_bytes: u64, memory: OwnerMemory) -> Result<Helper, Failure> {
    let (socket, bytes) = (directory.socket(), table_bytes.to_string());
    let args = owner::arguments(&socket, TABLE, &bytes, memory);
    let mut owner = Helper::start("owner", &args)?;
    let bar = report::bar(table_bytes, "filling the table");
    owner.until_ready(|done, _| bar.set_position(done))?;
    bar.finish_and_clear();
    Ok(owner)
}
