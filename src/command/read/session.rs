//! The engine that reads, and how it comes to the table.

use super::super::{Failure, report};
use super::file;
use super::table::Table;
use scatter_ring::client::{Client, ClientError, Peer, Region, Setup};
use scatter_ring::engine::{Config, Endpoint, Engine, RunningEngine};
use scatter_ring::region::Rights;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// A client of an engine, in this process or elsewhere. Dropped from top to bottom.
pub struct Session {
    pub client: Client,
    /// The other engine that has the table, if it is another one.
    peer: Option<Peer>,
    /// The engine, if it is in this process.
    own: Option<RunningEngine>,
}

/// The name of a table in an engine of its own.
const TABLE: &str = "table";

/// Bytes of a table that are copied at a time.
const PIECE_BYTES: u64 = 1 << 20;

impl Session {
    /// With the engine that listens at a socket, or without one with an engine in this process. The first can connect to
    /// another one, by its endpoint.
    pub fn start(socket: Option<&Path>, peer: Option<&Endpoint>) -> Result<Session, Failure> {
        if let Some(socket) = socket {
            let client = Client::attach(socket)?;
            let peer = peer.map(|endpoint| client.connect(&endpoint.to_string())).transpose()?;
            return Ok(Session { client, peer, own: None });
        }
        let engine = Engine::new(&Config::default())?.start()?;
        let client = Client::over(engine.connect()?, &Setup::default())?;
        Ok(Session { client, peer: None, own: Some(engine) })
    }

    /// What is between this process and the table, as `bench` calls it.
    pub fn link(&self) -> &'static str {
        match (&self.own, self.peer) {
            (Some(_), _) => "local",
            (None, None) => "shm",
            (None, Some(_)) => "tcp",
        }
    }

    /// What somebody has exported by this name, at the other engine if there is one.
    pub fn open(&self, name: &str) -> Result<Region, ClientError> {
        match self.peer {
            Some(peer) => self.client.open_at(peer, name, Rights::READ),
            None => self.client.open(name, Rights::READ),
        }
    }

    /// The table of a file as a region, and where row 0 is in it. An engine in this process reads the file itself; to
    /// another one it is given as a copy in memory.
    pub fn table(&self, path: &Path, table: &Table) -> Result<(Region, u64), Failure> {
        match &self.own {
            Some(engine) => {
                engine.serve_file(TABLE, path, false)?;
                Ok((self.client.open(TABLE, Rights::READ)?, table.offset))
            }
            None => Ok((self.copy(path, table)?, 0)),
        }
    }

    fn copy(&self, path: &Path, table: &Table) -> Result<Region, Failure> {
        let failed = file::failed("reading the table", path);
        let region = self.client.allocate(table.bytes())?;
        let mut file = File::open(path).map_err(&failed)?;
        file.seek(SeekFrom::Start(table.offset)).map_err(&failed)?;
        let bar = report::bar(table.bytes(), "copying the table");
        let mut piece = vec![0; PIECE_BYTES as usize];
        for at in (0..table.bytes()).step_by(PIECE_BYTES as usize) {
            let piece = &mut piece[..(table.bytes() - at).min(PIECE_BYTES) as usize];
            file.read_exact(piece).map_err(&failed)?;
            region.write_at(at, piece)?;
            bar.set_position(at);
        }
        bar.finish_and_clear();
        Ok(region)
    }
}
