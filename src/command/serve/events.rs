//! What `serve` waits for.

use crate::command::{Failure, process};
use scatter_ring::engine::Watch;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::sync::mpsc::{self, Receiver, Sender};

/// Something that `serve` has to answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody wants it to stop; by which signal, if by one.
    Stop(&'static str),
    /// Somebody wants to know what it has done so far.
    Report,
    /// The engine has ended by itself.
    EngineEnded,
}

/// Events come out of it from now on. A second request to stop ends the process.
pub fn events(with_parent: bool, engine: Watch) -> Result<Receiver<Event>, Failure> {
    let (sender, events) = mpsc::channel();
    signals(sender.clone())?;
    if with_parent {
        let sender = sender.clone();
        process::at_end_of_parent(move || {
            let _ = sender.send(Event::Stop("the end of its parent"));
        });
    }
    std::thread::Builder::new().name("scatter-watch".into()).spawn(move || {
        engine.wait();
        // After a stop nobody listens any more.
        let _ = sender.send(Event::EngineEnded);
    })?;
    Ok(events)
}

fn signals(events: Sender<Event>) -> Result<(), Failure> {
    // Without a handler for SIGXFSZ a ring that a file size limit does not allow would end the process, and not just be
    // refused.
    let mut wanted = vec![SIGINT, SIGTERM, SIGUSR1, SIGXFSZ];
    if !is_ignored(SIGHUP) {
        wanted.push(SIGHUP);
    }
    let mut signals = Signals::new(wanted)?;
    std::thread::Builder::new().name("scatter-signal".into()).spawn(move || {
        let mut is_stopping = false;
        for signal in signals.forever() {
            let event = match signal {
                SIGXFSZ => continue,
                SIGUSR1 => Event::Report,
                // Somebody cannot wait for what is under way.
                _ if is_stopping => std::process::exit(1),
                SIGINT => Event::Stop("SIGINT"),
                SIGHUP => Event::Stop("SIGHUP"),
                _ => Event::Stop("SIGTERM"),
            };
            is_stopping |= matches!(event, Event::Stop(_));
            // Nobody listens any more once it stops.
            let _ = events.send(event);
        }
    })?;
    Ok(())
}

/// Whether this process was started with a signal ignored, as by `nohup`.
fn is_ignored(signal: i32) -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return false };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
