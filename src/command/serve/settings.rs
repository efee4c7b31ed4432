//! What `serve` is to do: the command line, then the file, then the defaults.

use super::Args;
use super::file::{File, Keys, User};
use super::peers::PeerSection;
use crate::command::Failure;
use nix::unistd::User as Account;
use scatter_ring::engine::{self, Limits};
use scatter_ring::region;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Everything that `serve` goes by. Written out as TOML it is a file that says the same.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    pub socket: PathBuf,
    workers: u16,
    spin_us: u32,
    stop_within_s: u32,
    users: Vec<u32>,
    trust: Trust,
    pub read_ahead: bool,
    limits: LimitSettings,
    #[serde(skip_serializing_if = "Option::is_none")]
    peers: Option<PeerSection>,
    pub tables: BTreeMap<String, PathBuf>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct LimitSettings {
    sessions: u32,
    sessions_per_user: u32,
    ring_slots: u32,
    regions: u32,
    region_bytes: u64,
    batches: u32,
    held_bytes: u64,
}

/// Which memory of clients is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// Memory that nobody can make shorter.
    Sealed,
    /// Also what the engine's own user may still make shorter.
    SameUid,
}

/// How long a stop waits for batches under way.
const STOP_WITHIN_S: u32 = 5;

const WORKERS_MAX: u16 = 256;
const SPIN_US_MAX: u32 = 1_000_000;
const STOP_WITHIN_S_MAX: u32 = 3600;
const SESSIONS_MAX: u32 = 1 << 16;
/// TOML's integers end there.
const BYTES_MAX: u64 = i64::MAX as u64;

impl Settings {
    /// Reads and checks the file, if there is one, and puts the command line's options over it.
    pub fn new(args: &Args) -> Result<Settings, Failure> {
        let file = &args.config.as_deref().map_or(Ok(File::none()), File::read)?;
        let keys = file.keys()?;
        let default = engine::Config::default();
        let number = |key, found, most| file.number(key, found, 0..=most);
        let workers = file.number("workers", keys.workers.as_ref(), 0..=WORKERS_MAX)?;
        let spin_us = number("spin_us", keys.spin_us.as_ref(), SPIN_US_MAX)?;
        let stop_within_s = number("stop_within_s", keys.stop_within_s.as_ref(), STOP_WITHIN_S_MAX)?;
        let users = users(file, &keys)?;
        let limits = LimitSettings::new(args, file, &keys)?;
        let peers = PeerSection::new(args, file, &keys)?;
        let tables = tables(args, file, &keys)?;
        Ok(Settings {
            socket: args.socket.clone().or(keys.socket).unwrap_or_else(default_socket),
            workers: args.workers.or(workers).unwrap_or(default.workers as u16),
            spin_us: args.spin_us.or(spin_us).unwrap_or(default.spin.as_micros() as u32),
            stop_within_s: stop_within_s.unwrap_or(STOP_WITHIN_S),
            users,
            trust: keys.trust.unwrap_or(Trust::Sealed),
            read_ahead: keys.read_ahead.unwrap_or(true),
            limits,
            peers,
            tables,
        })
    }

    pub fn engine(&self) -> engine::Config {
        let limits = &self.limits;
        engine::Config {
            workers: self.workers.into(),
            spin: Duration::from_micros(self.spin_us.into()),
            users: self.users.clone(),
            trust: match self.trust {
                Trust::Sealed => region::Trust::Sealed,
                Trust::SameUid => region::Trust::SameUser,
            },
            limits: Limits {
                sessions: limits.sessions as usize,
                sessions_per_user: limits.sessions_per_user as usize,
                ring_slots: limits.ring_slots,
                regions: limits.regions,
                region_bytes: limits.region_bytes,
                batches: limits.batches,
                held_bytes: limits.held_bytes,
            },
            peers: self.peers.as_ref().map(PeerSection::settings),
        }
    }

    pub fn stop_within(&self) -> Duration {
        Duration::from_secs(self.stop_within_s.into())
    }

    /// Checks what else can be seen without serving.
    pub fn check_place(&self) -> Result<(), Failure> {
        engine::check_listen(&self.socket, !self.users.is_empty()).map_err(|error| Failure::Usage(error.to_string()))
    }
}

impl LimitSettings {
    fn new(args: &Args, file: &File, keys: &Keys) -> Result<LimitSettings, Failure> {
        let (default, keys) = (Limits::default(), &keys.limits);
        let number = |key, found, most| file.number(key, found, 1..=most);
        let sessions = number("limits.sessions", keys.sessions.as_ref(), SESSIONS_MAX)?;
        let per_user = number("limits.sessions_per_user", keys.sessions_per_user.as_ref(), SESSIONS_MAX)?;
        let slots = ring_abi::CAPACITY_MIN..=ring_abi::CAPACITY_MAX;
        let ring_slots = file.number("limits.ring_slots", keys.ring_slots.as_ref(), slots)?;
        let regions = number("limits.regions", keys.regions.as_ref(), default.regions)?;
        let region_bytes = file.size("limits.region_bytes", keys.region_bytes.as_ref(), BYTES_MAX)?;
        let batches = number("limits.batches", keys.batches.as_ref(), default.batches)?;
        let held_bytes = file.size("limits.held_bytes", keys.held_bytes.as_ref(), BYTES_MAX)?;
        let sessions = args.clients.map(u32::from).or(sessions).unwrap_or(default.sessions as u32);
        Ok(LimitSettings {
            sessions,
            // One user's programs may take them all, if nobody says otherwise.
            sessions_per_user: per_user.unwrap_or(sessions),
            ring_slots: ring_slots.unwrap_or(default.ring_slots),
            regions: regions.unwrap_or(default.regions),
            region_bytes: region_bytes.unwrap_or(default.region_bytes),
            batches: batches.unwrap_or(default.batches),
            held_bytes: held_bytes.unwrap_or(default.held_bytes),
        })
    }
}

fn users(file: &File, keys: &Keys) -> Result<Vec<u32>, Failure> {
    let mut found = Vec::new();
    for user in keys.users.iter().flatten() {
        found.push(match user.get_ref() {
            User::Number(number) => *number,
            User::Name(name) => match Account::from_name(name) {
                Ok(Some(account)) => account.uid.as_raw(),
                Ok(None) => return Err(file.wrong("users", user, "there is no user of this name")),
                Err(errno) => return Err(file.wrong("users", user, format!("cannot be looked up: {errno}"))),
            },
        });
    }
    Ok(found)
}

/// The tables of the file and of the command line, which wins where both have a name.
fn tables(args: &Args, file: &File, keys: &Keys) -> Result<BTreeMap<String, PathBuf>, Failure> {
    let mut tables = BTreeMap::new();
    for (name, path) in &keys.tables {
        let key = format!("tables.{name}");
        check_name(name).map_err(|why| file.wrong(&key, path, why))?;
        if !args.tables.iter().any(|(given, _)| given == name) {
            check_file(path.get_ref()).map_err(|why| file.wrong(&key, path, why))?;
        }
        tables.insert(name.clone(), path.get_ref().clone());
    }
    for (i, (name, path)) in args.tables.iter().enumerate() {
        let wrong = |why| Failure::Usage(format!("--table {name}={}: {why}", path.display()));
        check_name(name).and_then(|()| check_file(path)).map_err(wrong)?;
        if args.tables[..i].iter().any(|(earlier, _)| earlier == name) {
            return Err(wrong("this name was given before".to_owned()));
        }
        tables.insert(name.clone(), path.clone());
    }
    Ok(tables)
}

fn check_name(name: &str) -> Result<(), String> {
    let most = ring_abi::NAME_BYTES_MAX;
    if name.is_empty() || name.len() > most {
        return Err(format!("a table's name has 1 to {most} bytes"));
    }
    Ok(())
}

fn check_file(path: &Path) -> Result<(), String> {
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    // Before it is opened: a pipe would wait for its writer.
    if !metadata.is_file() {
        return Err("is not a file".to_owned());
    }
    if metadata.len() == 0 {
        return Err("is empty".to_owned());
    }
    std::fs::File::open(path).map(drop).map_err(|error| error.to_string())
}

fn default_socket() -> PathBuf {
    let user = rustix::process::geteuid();
    let directory = match std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) {
        Some(runtime) => PathBuf::from(runtime).join("scatter-ring"),
        None if user.is_root() => PathBuf::from("/run/scatter-ring"),
        None => std::env::temp_dir().join(format!("scatter-ring-{}", user.as_raw())),
    };
    directory.join("socket")
}
