//! The parties of a measurement: an engine, an owner with a table, a client.

use super::owner::OwnerMemory;
use super::process::{Helper, PrivateDirectory};
use super::{Failure, owner, report, workload};
use scatter_ring::client::{Client, Region, Setup};
use scatter_ring::engine::{Config, Engine, RunningEngine};
use scatter_ring::region::Rights;
use std::ffi::OsStr;

/// The name by which the table is exported.
pub const TABLE: &str = "table";

/// A client that has opened the table, and what keeps both alive. Dropped from top to bottom.
pub struct Place {
    pub table: Region,
    pub client: Client,
    _others: Others,
}

enum Others {
    Processes { _owner: Helper, _engine: Helper, _directory: PrivateDirectory },
    Here { _table: Region, _owner: Box<Client>, _engine: RunningEngine },
}

impl Place {
    /// An engine and an owner, each in a process of its own.
    pub fn processes(table_bytes: u64, memory: OwnerMemory) -> Result<Place, Failure> {
        let directory = PrivateDirectory::new();
        let engine = start_engine(&directory)?;
        let owner = start_owner(&directory, table_bytes, memory)?;
        let client = Client::attach(directory.socket())?;
        let table = client.open(TABLE, Rights::READ_WRITE)?;
        Ok(Place {
            table,
            client,
            _others: Others::Processes { _owner: owner, _engine: engine, _directory: directory },
        })
    }

    /// Everything in this process: the engine, an owner with a session of its own, the client.
    pub fn here(table_bytes: u64) -> Result<Place, Failure> {
        let engine = Engine::new(&Config::default())?.start()?;
        let owner = Client::over(engine.connect()?, &Setup::default())?;
        let owned = owner.allocate(table_bytes)?;
        let bar = report::bar(table_bytes, "filling the table");
        workload::fill_table(&owned, |done| bar.set_position(done))?;
        bar.finish_and_clear();
        owner.export(&owned, TABLE, Rights::READ_WRITE)?;
        let client = Client::over(engine.connect()?, &Setup::default())?;
        let table = client.open(TABLE, Rights::READ_WRITE)?;
        Ok(Place { table, client, _others: Others::Here { _table: owned, _owner: owner.into(), _engine: engine } })
    }
}

/// An engine that ends with this process.
pub fn start_engine(directory: &PrivateDirectory) -> Result<Helper, Failure> {
    let socket = directory.socket();
    let options = ["serve", "--with-parent", "--log-level", "warn", "--socket"];
    let args: Vec<&OsStr> = options.iter().map(OsStr::new).chain([socket.as_os_str()]).collect();
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
