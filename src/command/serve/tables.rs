//! Files that the engine serves by name.

use super::manager;
use super::settings::Settings;
use crate::command::{Failure, report};
use scatter_ring::engine::RunningEngine;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

/// Serves all of them; the first that cannot be served ends it.
pub fn serve(engine: &RunningEngine, settings: &Settings) -> Result<(), Failure> {
    for (name, path) in &settings.tables {
        let failed = |why: String| Failure::Run(format!("table {name:?} = {path:?}: {why}"));
        if settings.read_ahead {
            read_ahead(name, path).map_err(|error| failed(error.to_string()))?;
        }
        engine.serve_file(name, path, settings.read_ahead).map_err(|error| failed(error.to_string()))?;
        tracing::info!(table = ?name, file = ?path, "table served");
    }
    Ok(())
}

/// How much is read at once.
const PIECE_BYTES: usize = 1 << 20;
/// How often the service manager is told how far it is, and by how much the limit for starting then moves.
const TOLD_EVERY: Duration = Duration::from_secs(1);
const MORE_TIME: Duration = Duration::from_secs(30);

/// Brings a file into the kernel's cache, and shows how far it is: mapping it would be silent, for minutes if it is large.
fn read_ahead(name: &str, path: &Path) -> std::io::Result<()> {
    let file = std::fs::File::open(path)?;
    let all_bytes = file.metadata()?.len();
    // One that grows meanwhile is not followed.
    let mut file = file.take(all_bytes);
    let bar = report::bar(all_bytes, &format!("reading table {name:?}"));
    let mut piece = vec![0; PIECE_BYTES];
    let (mut done_bytes, mut told) = (0, Instant::now());
    loop {
        match file.read(&mut piece)? {
            0 => break,
            bytes => done_bytes += bytes as u64,
        }
        bar.set_position(done_bytes);
        if told.elapsed() >= TOLD_EVERY {
            told = Instant::now();
            let percent = 100 * done_bytes / all_bytes.max(1);
            let more_us = MORE_TIME.as_micros();
            let status = format!("reading table {name:?}: {percent} %");
            manager::tell(&format!("EXTEND_TIMEOUT_USEC={more_us}\nSTATUS={status}\n"));
        }
    }
    bar.finish_and_clear();
    Ok(())
}
