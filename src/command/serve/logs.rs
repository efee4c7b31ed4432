//! The log on standard error. Whoever should read it cannot hold the engine up: lines that do not fit are dropped and
//! counted.

use super::Args;
use crate::command::Failure;
use std::io::IsTerminal;
use std::os::linux::fs::MetadataExt;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::{Registry, fmt};

/// Writes what is left when it is dropped, for a second at most.
pub struct Log {
    lost: ErrorCounter,
    _writer: WorkerGuard,
}

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people; in colours on a terminal.
    Text,
    /// One object a line.
    Json,
}

/// Lines that wait for whoever reads them.
const LINES_WAITING_MAX: usize = 256;

impl Log {
    /// From now on events of all threads go to standard error, and panics too, as one line each.
    pub fn start(args: &Args) -> Result<Log, Failure> {
        let filter = filter(args)?;
        let (writer, guard) = NonBlockingBuilder::default()
            .lossy(true)
            .buffered_lines_limit(LINES_WAITING_MAX)
            .thread_name("scatter-log")
            .finish(std::io::stderr());
        let lost = writer.error_counter();
        let lines = fmt::layer().with_writer(writer).with_ansi(std::io::stderr().is_terminal()).with_target(false);
        let layer: Box<dyn Layer<Registry> + Send + Sync> = match (args.log, is_journal()) {
            (Format::Text, false) => lines.boxed(),
            (Format::Text, true) => lines.without_time().boxed(),
            (Format::Json, false) => lines.json().boxed(),
            (Format::Json, true) => lines.json().without_time().boxed(),
        };
        tracing::subscriber::set_global_default(Registry::default().with(layer.with_filter(filter)))?;
        // The usual hook writes to standard error itself: a poller could get stuck there, and its end be missed.
        std::panic::set_hook(Box::new(|panic| {
            let panic = panic.to_string();
            tracing::error!(?panic, "a bug in the engine: please report it");
        }));
        Ok(Log { lost, _writer: guard })
    }

    /// Lines that nobody read in time.
    pub fn lines_lost(&self) -> usize {
        self.lost.dropped_lines()
    }
}

/// What is said: the option, else `RUST_LOG`, else everything from info on.
fn filter(args: &Args) -> Result<Targets, Failure> {
    let from_environment = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let text = args.log_level.clone().or(from_environment).unwrap_or("info".to_owned());
    let wrong =
        |error| Failure::Usage(format!("RUST_LOG={text}: {error}; a level, or TARGET=LEVEL with commas between"));
    text.parse().map_err(wrong)
}

/// Whether standard error is systemd's journal, which notes times by itself. The variable alone says nothing: it is passed
/// on to programs whose output goes elsewhere.
fn is_journal() -> bool {
    let Ok(journal) = std::env::var("JOURNAL_STREAM") else { return false };
    let stderr = std::fs::metadata("/proc/self/fd/2");
    stderr.is_ok_and(|stderr| journal == format!("{}:{}", stderr.st_dev(), stderr.st_ino()))
}
