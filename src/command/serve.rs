//! `scatter-ring serve`: the engine as a process of its own.

mod events;
mod file;
mod logs;
mod manager;
mod peers;
mod settings;
mod tables;

use super::Failure;
use events::Event;
use logs::{Format, Log};
use peers::Transport;
use ring_abi::Status;
use scatter_ring::engine::{Counters, Engine, RunningEngine};
use settings::Settings;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// Run the engine for the programs of this user, or of users that a configuration file names.
///
/// Programs attach through the socket, register memory, and describe in a ring what to move.
///
/// SIGTERM, SIGINT (Ctrl-C) and SIGHUP stop the engine: nobody can attach any more, batches under way are finished, for 5
/// seconds at most, and clients are told. A second signal ends it at once. SIGUSR1 writes to the log what it has done so
/// far. The configuration is read once, at the start.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Read settings from a TOML file; options given here win. No file is read without this option
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only check the settings and print them as a file; run it as the user that will serve
    #[arg(long)]
    check_config: bool,
    /// Where to listen [default: $XDG_RUNTIME_DIR/scatter-ring/socket; without that variable
    /// /run/scatter-ring/socket for root, else scatter-ring-UID/socket in the directory for temporary files]
    ///
    /// The socket's directory is made if it is not there, and must be this user's alone; if other users may attach, it
    /// may be open to a group (mode 0750).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Threads that copy, besides the one that serves the rings [default: processors - 1, at most 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=256))]
    workers: Option<u16>,
    /// How long threads without work spin before they sleep [default: 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    spin_us: Option<u32>,
    /// Most clients at a time [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    clients: Option<u16>,
    /// Serve a file's bytes as a table of this name, read-only; may be given several times
    #[arg(long = "table", value_name = "NAME=FILE", value_parser = name_and_file)]
    tables: Vec<(String, PathBuf)>,
    /// Let other engines connect at this address, as 192.0.2.7:7711, [::1]:7711 or 127.0.0.1:0; may be given several times
    ///
    /// Programs of those engines can then open what is exported here, and the other way round. What they connect by is
    /// printed in a line of its own. An address that other hosts can reach needs --peer-keys.
    #[arg(long, value_name = "ADDRESS")]
    peer_listen: Vec<SocketAddr>,
    /// The key that engines prove to each other: see `scatter-ring key`
    #[arg(long, value_name = "FILE")]
    peer_keys: Option<PathBuf>,
    /// The kernel's congestion control for connections to other engines [default: the system's]
    #[arg(long, value_name = "NAME")]
    peer_congestion: Option<String>,
    /// Send what engines on this host open at each other, and do not let it be mapped
    #[arg(long)]
    peer_no_mapping: bool,
    /// By which means memory of other engines is reached [default: auto]
    ///
    /// Engines meet over TCP in any case. With `verbs` this engine does not start without an RDMA device, and has no connection
    /// that cannot use it.
    #[arg(long, value_name = "MEANS")]
    peer_transport: Option<Transport>,
    /// The RDMA device for that, as `rdma link` lists it [default: the first with a port that is up]
    #[arg(long, value_name = "NAME")]
    peer_device: Option<String>,
    /// How the log on standard error looks
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log: Format,
    /// What the log says: off, error, warn, info, debug or trace [default: RUST_LOG, else info]
    #[arg(long, value_name = "LEVEL", value_parser = ["off", "error", "warn", "info", "debug", "trace"])]
    log_level: Option<String>,
    /// Stop when standard input ends, and remove the socket's directory.
    #[arg(long, hide = true)]
    with_parent: bool,
}

const EXAMPLES: &str = "\
Examples:
  scatter-ring serve
  scatter-ring serve --socket /tmp/mine/socket --workers 2
  scatter-ring serve --spin-us 0         Never spin: slower answers, no processor time while idle
  scatter-ring serve --table users=/data/users.bin
  scatter-ring serve --table users=/data/users.bin --peer-keys /etc/scatter-ring.key --peer-listen 192.0.2.7:7711
  scatter-ring serve --config /etc/scatter-ring.toml --check-config

Exit status: 0 stopped as asked, 1 failed or stopped by a second signal, 2 wrong options or settings";

fn name_and_file(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or("must be NAME=FILE")?;
    Ok((name.to_owned(), file.into()))
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let settings = Settings::new(args)?;
    if args.check_config {
        settings.check_place()?;
        return print(&toml::to_string(&settings)?);
    }
    let log = Log::start(args)?;
    let engine = Engine::new(&settings.engine())?.start()?;
    tables::serve(&engine, &settings)?;
    // Before anybody can know that there is something to stop.
    let events = events::events(args.with_parent, engine.watch())?;
    engine.listen(&settings.socket)?;
    let served = announce(&settings, &engine).and_then(|()| until_stop(&events, || report(&engine.counters(), &log)));
    // Clients of a parent that has ended have ended too.
    let within = if args.with_parent { Duration::ZERO } else { settings.stop_within() };
    match &served {
        Ok(cause) => stop(engine, cause, within, &log),
        Err(_) => engine.stop(),
    }
    if args.with_parent
        && let Some(directory) = settings.socket.parent()
    {
        // The parent may have been quicker.
        let _ = std::fs::remove_dir(directory);
    }
    served.map(|_| ())
}

fn announce(settings: &Settings, engine: &RunningEngine) -> Result<(), Failure> {
    let config = settings.engine();
    let (socket, sessions) = (settings.socket.display(), config.limits.sessions);
    let workers = config.workers;
    print(&format!("scatter-ring: serving at {socket} ({workers} copy workers, at most {sessions} clients)\n"))?;
    if let Some(endpoint) = engine.endpoint() {
        print(&format!("scatter-ring: peers connect to {endpoint}\n"))?;
    }
    // Quoted, so that nothing in it is a line of its own.
    manager::tell(&format!("READY=1\nSTATUS=serving at {:?}\n", settings.socket));
    Ok(())
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Answers events until one asks for a stop; says which.
fn until_stop(events: &Receiver<Event>, mut report: impl FnMut()) -> Result<&'static str, Failure> {
    loop {
        match events.recv()? {
            Event::Report => report(),
            Event::Stop(cause) => return Ok(cause),
            Event::EngineEnded => {
                tracing::error!("the engine has failed: nobody is served any more");
                return Err(Failure::Logged);
            }
        }
    }
}

/// Stops in good order, and says what that cut short.
fn stop(engine: RunningEngine, cause: &str, within: Duration, log: &Log) {
    let before = engine.counters();
    tracing::info!(cause, within_s = within.as_secs(), "stopping: batches under way are finished");
    // What comes after the waiting takes a moment too.
    let limit_us = (within + Duration::from_secs(10)).as_micros();
    manager::tell(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={limit_us}\nSTATUS=finishing batches under way\n"));
    let counters = engine.stop_within(within);
    let batches = counters.batches_cut - before.batches_cut;
    if batches > 0 {
        let (sessions, after_s) = (counters.sessions_cut - before.sessions_cut, within.as_secs());
        tracing::warn!(batches, sessions, after_s, "cut batches that had no outcome in time");
    }
    report(&counters, log);
    tracing::info!("stopped");
}

fn report(counters: &Counters, log: &Log) {
    let ended: u64 = counters.sessions_ended.iter().map(|(_, count)| count).sum();
    let by_status = |list: &[(Status, u64)]| {
        let texts: Vec<String> = list.iter().map(|(status, count)| format!("{status:?} {count}")).collect();
        if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
    };
    tracing::info!(
        sessions = counters.sessions,
        attached = counters.sessions.saturating_sub(ended),
        regions = counters.regions,
        descriptors = counters.descriptors,
        bytes = counters.bytes,
        batches = by_status(&counters.batches),
        batches_cut = counters.batches_cut,
        refused = by_status(&counters.refused),
        peers = counters.peers_connected.saturating_sub(counters.peers_ended),
        peers_connected = counters.peers_connected,
        peers_by_verbs = counters.peers_by_verbs,
        peers_by_tcp = counters.peers_by_tcp,
        peers_fell_back = counters.peers_fell_back,
        peers_not_set_up = counters.peers_not_set_up,
        peers_violated = counters.peers_violated,
        peers_unreachable = counters.peers_unreachable,
        peer_opens_refused = counters.peer_opens_refused,
        peer_regions_mapped = counters.peer_regions_mapped,
        peer_files_given = counters.peer_files_given,
        log_lines_lost = log.lines_lost(),
        "served so far"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn an_engine_that_ends_by_itself_is_a_failure_and_a_signal_is_not() {
        let until_stop_after = |all: Vec<Event>| {
            let (sender, events) = mpsc::channel();
            all.into_iter().for_each(|event| sender.send(event).unwrap());
            let mut reports = 0;
            let ended = until_stop(&events, || reports += 1);
            (ended.ok(), reports)
        };
        assert_eq!(until_stop_after(vec![Event::Report, Event::EngineEnded, Event::Stop("SIGTERM")]), (None, 1));
        assert_eq!(until_stop_after(vec![Event::Report, Event::Report, Event::Stop("SIGINT")]), (Some("SIGINT"), 2));
    }
}
