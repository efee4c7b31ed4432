//! Engines that are each other's peers, and batches between them of which every byte is known.

// Each test file that shares this module uses another part of it.
#![allow(dead_code)]

mod job;

use crate::seeded::Random;
pub use job::Job;
use ring_abi::Status;
use scatter_ring::client::{BatchError, Client, ClientError, Outcome, Region, Setup, Ticket};
use scatter_ring::engine::{Config, Endpoint, Engine, PeerSettings, RunningEngine};
use scatter_ring::region::Rights;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The memory that is read.
pub const TABLE_BYTES: u64 = 4 << 20;
/// The memory that is written has so many zones. Each batch has its own for a while, so that what comes late from one that
/// failed (nobody can call it back) is not taken for the work of another one.
pub const ZONES: u64 = 16;
pub const ZONE_BYTES: u64 = 2 << 20;
/// This side's memory.
pub const NEAR_BYTES: u64 = ZONE_BYTES;
/// What is there before a batch reads into it.
pub const UNTOUCHED: u8 = 0xEE;

/// A batch has its outcome, and is released, within this time, whatever happens.
pub const END_MAX: Duration = Duration::from_secs(4);
/// Longest wait for anything else.
pub const LONG: Duration = Duration::from_secs(30);

/// The number for a build without optimization, and the one for a build with it.
pub fn by_build(debug: u64, release: u64) -> u64 {
    if cfg!(debug_assertions) { debug } else { release }
}

pub fn settings() -> PeerSettings {
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    // Others would pace what goes over loopback.
    PeerSettings { listen, congestion: Some("reno".into()), ..PeerSettings::default() }
}

pub fn start(settings: PeerSettings) -> RunningEngine {
    Engine::new(&Config { workers: 1, peers: Some(settings), ..Config::default() }).unwrap().start().unwrap()
}

pub fn attach(engine: &RunningEngine) -> Client {
    Client::over(engine.connect().unwrap(), &Setup::default()).unwrap()
}

/// What the table contains: no two places are alike.
pub fn table_bytes() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let (mut random, mut bytes) = (Random::from_seed(7), vec![0; TABLE_BYTES as usize]);
        bytes.chunks_exact_mut(8).for_each(|place| place.copy_from_slice(&random.word().to_le_bytes()));
        bytes
    })
}

/// An engine whose client exports a table and a sink.
pub struct Owner {
    pub client: Client,
    pub table: Region,
    pub sink: Region,
    pub endpoint: Endpoint,
    pub engine: RunningEngine,
}

impl Owner {
    pub fn new(settings: PeerSettings) -> Owner {
        let engine = start(settings);
        let (client, endpoint) = (attach(&engine), engine.endpoint().unwrap());
        let (table, sink) = (client.allocate(TABLE_BYTES).unwrap(), client.allocate(ZONES * ZONE_BYTES).unwrap());
        table.write_at(0, table_bytes()).unwrap();
        client.export(&table, "table", Rights::READ).unwrap();
        client.export(&sink, "sink", Rights::READ_WRITE).unwrap();
        Owner { client, table, sink, endpoint, engine }
    }

    pub fn address(&self) -> SocketAddr {
        self.endpoint.addresses()[0]
    }

    /// Its endpoint, with another address.
    pub fn at(&self, address: SocketAddr) -> Endpoint {
        Endpoint::new(self.endpoint.identity(), self.endpoint.key(), &[address]).unwrap()
    }
}

/// A client that reads from an owner's table and writes to its sink, by way of its own engine.
pub struct Caller {
    pub client: Client,
    pub near: Region,
    index: Region,
    endpoint: String,
    /// As it is on this side; gone while there is no connection.
    far: Option<Far>,
    /// The owner's memory, where it is of this process.
    pub sink: Option<Region>,
    zones: Range<u64>,
    zone: u64,
    table: &'static [u8],
}

struct Far {
    table: Region,
    sink: Region,
}

/// A batch under way.
#[must_use]
pub struct UnderWay {
    pub ticket: Ticket,
    pub since: Instant,
    job: Job,
    /// What was in this side's memory, and in the zone.
    near: Vec<u8>,
    zone: Vec<u8>,
    zone_at: u64,
}

impl Caller {
    /// With a connection, and both memories opened.
    pub fn new(engine: &RunningEngine, owner: &Owner, endpoint: &Endpoint) -> Caller {
        Self::with_zones(engine, endpoint, Some(owner.sink.clone()), 0..ZONES)
    }

    pub fn with_zones(engine: &RunningEngine, endpoint: &Endpoint, sink: Option<Region>, zones: Range<u64>) -> Caller {
        let mut caller = Self::of(attach(engine), endpoint, sink, zones);
        caller.open();
        caller
    }

    /// Without a connection yet.
    pub fn of(client: Client, endpoint: &Endpoint, sink: Option<Region>, zones: Range<u64>) -> Caller {
        let (near, index) = (client.allocate(NEAR_BYTES).unwrap(), client.allocate(job::INDEX_BYTES).unwrap());
        let (endpoint, table, zone) = (endpoint.to_string(), table_bytes(), zones.start);
        Caller { client, near, index, endpoint, far: None, sink, zones, zone, table }
    }

    /// Connects and opens, as often as it takes.
    #[track_caller]
    pub fn open(&mut self) {
        let start = Instant::now();
        while let Err(error) = self.try_open() {
            let is_about_the_peer = matches!(error.status(), Status::PEER_UNREACHABLE | Status::REGION_GONE);
            assert!(is_about_the_peer, "{error}");
            assert!(start.elapsed() < LONG, "no connection: {error}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn try_open(&mut self) -> Result<(), ClientError> {
        if let Some(Far { table, sink }) = self.far.take() {
            // Gone or not, nothing of ours uses them.
            self.client.close(&table)?;
            self.client.close(&sink)?;
        }
        let peer = self.client.connect(&self.endpoint)?;
        let table = self.client.open_at(peer, "table", Rights::READ)?;
        let sink = self.client.open_at(peer, "sink", Rights::READ_WRITE)?;
        self.far = Some(Far { table, sink });
        Ok(())
    }

    /// Any batch; only reads where the owner's memory cannot be looked at.
    pub fn any_job(&self, random: &mut Random) -> Job {
        let writes = self.sink.is_some() && random.once_in(2);
        Job::any(random, writes)
    }

    pub fn submit(&mut self, job: Job, deadline: Option<Duration>) -> UnderWay {
        self.zone = if self.zone + 1 < self.zones.end { self.zone + 1 } else { self.zones.start };
        let zone_at = self.zone * ZONE_BYTES;
        let near = match job.writes {
            // Other bytes than what an earlier batch has left there.
            true => self.table[job.seed as usize % NEAR_BYTES as usize..][..NEAR_BYTES as usize].to_vec(),
            false => vec![UNTOUCHED; NEAR_BYTES as usize],
        };
        self.near.write_at(0, &near).unwrap();
        let zone = match (&self.sink, job.writes) {
            (Some(sink), true) => contents(sink, zone_at, ZONE_BYTES),
            _ => Vec::new(),
        };
        let words = job.index_words();
        if !words.is_empty() {
            self.index.write_at(0, &words).unwrap();
        }
        let far = self.far.as_ref().expect("it is open");
        let (far, far_at) = if job.writes { (&far.sink, zone_at) } else { (&far.table, 0) };
        let mut batch = self.client.batch();
        if let Some(time) = deadline {
            batch = batch.deadline(time);
        }
        job.describe(&mut batch, (far, far_at), &self.near, &self.index);
        let since = Instant::now();
        let ticket = batch.submit().unwrap();
        UnderWay { ticket, since, job, near, zone, zone_at }
    }

    /// Waits for the outcome and the release. A success has every byte in its place; and whatever the outcome, no byte is
    /// anywhere else.
    #[track_caller]
    pub fn end(&mut self, batch: &UnderWay) -> Result<Outcome, BatchError> {
        let outcome = self.outcome(batch);
        assert!(batch.since.elapsed() < END_MAX + Duration::from_secs(1), "{:?}", batch.since.elapsed());
        self.release(batch);
        self.check(batch, outcome.is_ok());
        if let Ok(outcome) = &outcome {
            assert_eq!(outcome.bytes, batch.job.bytes(), "{:?}", batch.job);
        }
        outcome
    }

    /// Waits for the outcome.
    #[track_caller]
    pub fn outcome(&mut self, batch: &UnderWay) -> Result<Outcome, BatchError> {
        let outcome = self.client.wait_timeout(&batch.ticket, END_MAX).transpose();
        outcome.unwrap_or_else(|| panic!("no outcome after {END_MAX:?}: {:?}", batch.job))
    }

    /// Waits for the release.
    #[track_caller]
    pub fn release(&mut self, batch: &UnderWay) {
        assert!(self.client.wait_released(&batch.ticket, Some(END_MAX)).unwrap(), "not released: {:?}", batch.job);
    }

    #[track_caller]
    pub fn check(&self, batch: &UnderWay, is_success: bool) {
        let job = &batch.job;
        let (mut got, before) = match (job.writes, &self.sink) {
            (false, _) => (contents(&self.near, 0, NEAR_BYTES), &batch.near),
            (true, Some(sink)) => (contents(sink, batch.zone_at, ZONE_BYTES), &batch.zone),
            (true, None) => return,
        };
        for (number, piece) in job.pieces.iter().enumerate() {
            let (src, dst) = if job.writes { (piece.near, piece.far) } else { (piece.far, piece.near) };
            let source = if job.writes { &batch.near } else { self.table };
            let (src, dst) = (src as usize..(src + piece.len) as usize, dst as usize..(dst + piece.len) as usize);
            let wrong = got[dst.clone()].iter().zip(&source[src]).position(|(got, wanted)| got != wanted);
            let is_right = wrong.is_none() || !is_success;
            assert!(is_right, "a success that is wrong from byte {wrong:?} of piece {number} on, {piece:?}: {job:?}");
            got[dst.clone()].copy_from_slice(&before[dst]);
        }
        assert!(got == *before, "bytes where none belong: {job:?}");
    }

    /// One batch.
    #[track_caller]
    pub fn run(&mut self, job: Job) -> Result<Outcome, BatchError> {
        let batch = self.submit(job, None);
        self.end(&batch)
    }
}

pub fn contents(region: &Region, offset: u64, bytes: u64) -> Vec<u8> {
    let mut all = vec![0; bytes as usize];
    region.read_at(offset, &mut all).unwrap();
    all
}

/// Somebody who must not notice anything: transfers without end, until it is stopped.
pub struct Bystander {
    stop: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<u64>,
}

impl Bystander {
    /// Another client of the engine, with another owner.
    pub fn start(engine: &RunningEngine, owner: &Owner) -> Bystander {
        Self::over(Caller::new(engine, owner, &owner.endpoint))
    }

    /// One that only reads, and does not mind what becomes of the sink.
    pub fn reading(engine: &RunningEngine, endpoint: &Endpoint) -> Bystander {
        Self::over(Caller::with_zones(engine, endpoint, None, 0..ZONES))
    }

    fn over(mut caller: Caller) -> Bystander {
        let (stop, stopped) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut random = Random::from_seed(11);
            let mut batches = 0;
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                let job = caller.any_job(&mut random);
                caller.run(job).expect("nothing is wrong with this connection");
                batches += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            batches
        });
        Bystander { stop, thread }
    }

    /// How many batches it had.
    pub fn stop(self) -> u64 {
        drop(self.stop);
        let batches = self.thread.join().expect("a bystander's batch failed");
        assert!(batches > 0);
        batches
    }
}
