//! `scatter-ring serve`: the engine as a process of its own.

use super::{Failure, process};
use scatter_ring::engine::{Config, Engine, Limits};
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// Run the engine for the programs of this user.
///
/// Programs attach through the socket, register memory, and describe in a ring what to move. SIGTERM and Ctrl-C stop the
/// engine: what is under way is finished, and its clients are told.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where to listen [default: $XDG_RUNTIME_DIR/scatter-ring/socket; without that variable
    /// /run/scatter-ring/socket for root, else scatter-ring-UID/socket in the directory for temporary files]
    ///
    /// The socket's directory is made if it is not there, and must be this user's alone.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Threads that copy, besides the one that serves the rings [default: processors - 1, at most 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=256))]
    workers: Option<u16>,
    /// How long threads without work spin before they sleep [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    spin_us: Option<u32>,
    /// Most clients at a time [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    clients: Option<u16>,
    /// Stop when standard input ends, and remove the socket's directory.
    #[arg(long, hide = true)]
    with_parent: bool,
}

const EXAMPLES: &str = "\
Examples:
  scatter-ring serve
  scatter-ring serve --socket /tmp/mine/socket --workers 2
  scatter-ring serve --spin-us 0       Never spin: slower answers, no processor time while idle";

pub fn run(args: &Args) -> Result<(), Failure> {
    let (socket, config) = (args.socket.clone().unwrap_or_else(default_socket), config(args));
    // Before anybody can know that there is something to stop.
    let stop = stop_requests(args.with_parent)?;
    let engine = Engine::new(&config)?.start()?;
    engine.listen(&socket)?;
    let announced = announce(&socket, &config);
    if announced.is_ok() {
        stop.recv()?;
    }
    // A second signal from now on ends the process at once.
    drop(stop);
    engine.stop();
    if args.with_parent
        && let Some(directory) = socket.parent()
    {
        // The parent may have been quicker.
        let _ = std::fs::remove_dir(directory);
    }
    announced
}

fn announce(socket: &Path, config: &Config) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let Config { workers, limits, .. } = config;
    let sessions = limits.sessions;
    let socket = socket.display();
    writeln!(out, "scatter-ring: serving at {socket} ({workers} copy workers, at most {sessions} clients)")?;
    Ok(out.flush()?)
}

fn config(args: &Args) -> Config {
    let default = Config::default();
    Config {
        workers: args.workers.map_or(default.workers, usize::from),
        spin: args.spin_us.map_or(default.spin, |us| Duration::from_micros(us.into())),
        limits: Limits { sessions: args.clients.map_or(default.limits.sessions, usize::from), ..default.limits },
        ..default
    }
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

/// Something comes out of it when the engine is to stop.
fn stop_requests(with_parent: bool) -> Result<mpsc::Receiver<()>, Failure> {
    let (stop, stopped) = mpsc::channel();
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGXFSZ])?;
    let by_signal = stop.clone();
    std::thread::spawn(move || {
        // Without a handler a ring that a file size limit does not allow would end the process, and not just be refused.
        for _ in signals.forever().filter(|signal| *signal != SIGXFSZ) {
            if by_signal.send(()).is_err() {
                // It is stopping already, and somebody cannot wait for what is under way.
                std::process::exit(1);
            }
        }
    });
    if with_parent {
        process::at_end_of_parent(move || {
            let _ = stop.send(());
        });
    }
    Ok(stopped)
}
