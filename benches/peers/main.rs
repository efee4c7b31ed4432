//! Transfers between two engines that reach each other by TCP over loopback.
//!
//! `cargo bench --bench peers` measures everything, in about a minute; `-- linear far` only those parts. Both engines, the client
//! of each and (for `far`) the proxy are threads of this process, the engines with all threads that `scatter-ring serve`
//! gives them; only for `memory` the engines are processes of their own. The clock runs from before the first descriptor is
//! written until the client has the outcome. What is compared is run in turn, so that what the machine does meanwhile meets
//! all of it; each list is verified once, outside the clock.

mod far;
mod memory;
mod place;
#[path = "../../tests/proxied/mod.rs"]
mod proxied;
mod rates;
mod work;

use scatter_ring::engine::PeerSettings;
use std::process::ExitCode;

/// A name, and what measures and prints.
type Part = (&'static str, fn(Effort));

/// In the order in which they run.
const PARTS: [Part; 7] = [
    ("linear", rates::linear),
    ("pieces", rates::pieces),
    ("routes", rates::routes),
    ("spread", rates::spread),
    ("slots", rates::slots),
    ("far", far::far),
    ("memory", memory::memory),
];

/// How often something is done.
#[derive(Clone, Copy)]
struct Effort {
    /// Only to see that it works: the figures mean nothing.
    is_smoke: bool,
}

impl Effort {
    fn times(self, wanted: usize) -> usize {
        if self.is_smoke { 1 } else { wanted }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(directory) = memory::directory_of_this_engine(&arguments) {
        memory::serve(directory);
        return ExitCode::SUCCESS;
    }
    let has = |option: &str| arguments.iter().any(|argument| argument == option);
    if !has("--bench") {
        println!("only with --bench: it takes a minute");
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_known = |name: &String| PARTS.iter().any(|(part, _)| part == name);
    if let Some(unknown) = wanted.iter().find(|name| !is_known(name)) {
        let known: Vec<&str> = PARTS.iter().map(|(part, _)| *part).collect();
        eprintln!("no part {unknown}: there are {}", known.join(", "));
        return ExitCode::from(2);
    }
    let effort = Effort { is_smoke: has("--test") };
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let PeerSettings { lanes, slot_bytes, slots, owner_slots, .. } = place::settings();
    println!(
        "{processors} processors; {lanes} lanes, slots of {slot_bytes} B: {slots} for each direction, {owner_slots} to pack in"
    );
    for (part, measure) in PARTS {
        if wanted.is_empty() || wanted.iter().any(|name| *name == part) {
            println!("\n{part}");
            measure(effort);
        }
    }
    ExitCode::SUCCESS
}

/// The value below which that part of all lies, 0 to 1.
fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}

fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}
