//! What was measured, for programs and for people.

use super::transfer::{Op, RouteChoice, Run, Submit};
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ring_abi::Route;
use serde::Serialize;
use std::time::Duration;

/// One workload's figures; the keys of `bench --json`. What was not measured is null, never 0.
#[derive(Debug, Serialize)]
pub struct Record {
    pub workload: String,
    pub link: String,
    pub op: Op,
    pub route: RouteChoice,
    pub submit: Submit,
    pub seed: u64,
    pub iterations: u32,
    pub chosen: String,
    pub fragments: u64,
    pub bytes: u64,
    pub p50_us: f64,
    pub p95_us: f64,
    pub best_us: f64,
    pub useful_gbps: f64,
    pub window_gbps: Option<f64>,
    pub queue_us: Option<f64>,
    pub plan_us: Option<f64>,
    pub command_us: Option<f64>,
    pub owner_queue_us: Option<f64>,
    pub pack_us: Option<f64>,
    pub window_us: Option<f64>,
    pub complete_us: Option<f64>,
    pub predicted_direct_us: Option<f64>,
    pub predicted_gather_us: Option<f64>,
    pub doorbells: Option<u64>,
    pub operations: Option<u64>,
    pub signalled: Option<u64>,
    pub staging_peak_bytes: Option<u64>,
    pub verified: bool,
    pub simulated: bool,
    /// Only where it is not the usual table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table_bytes: Option<u64>,
}

/// Figures of the runs of one workload.
#[derive(Debug)]
pub struct Figures {
    pub p50_us: f64,
    pub p95_us: f64,
    pub best_us: f64,
    pub queue_us: Option<f64>,
    pub plan_us: Option<f64>,
    pub command_us: Option<f64>,
    pub pack_us: Option<f64>,
    pub window_us: Option<f64>,
    pub chosen: String,
    pub operations: u64,
    pub signalled: u64,
    pub doorbells: u64,
}

impl Figures {
    /// # Panics
    /// Without any run.
    pub fn of(runs: &[Run]) -> Figures {
        let times = sorted(runs.iter().map(|run| micros(run.time)));
        // A stage that the engine does not have, or does not time, is 0 in every span.
        let stage = |ns: fn(&Run) -> u32| {
            let measured = runs.iter().any(|run| ns(run) != 0);
            measured.then(|| median(runs.iter().map(|run| f64::from(ns(run)) / 1e3)))
        };
        Figures {
            p50_us: times[times.len() / 2],
            p95_us: times[(times.len() * 95 / 100).min(times.len() - 1)],
            best_us: times[0],
            queue_us: stage(|run| run.span.queue_ns),
            plan_us: stage(|run| run.span.plan_ns),
            command_us: stage(|run| run.span.command_ns),
            pack_us: stage(|run| run.span.pack_ns),
            window_us: stage(|run| run.span.window_ns),
            chosen: chosen(runs),
            operations: median(runs.iter().map(|run| run.descriptors as f64)) as u64,
            signalled: median(runs.iter().map(|run| run.spans as f64)) as u64,
            doorbells: median(runs.iter().map(|run| run.doorbells as f64)) as u64,
        }
    }
}

/// What was done most often.
fn chosen(runs: &[Run]) -> String {
    let mut counts = [0; 256];
    runs.iter().for_each(|run| counts[usize::from(run.span.route)] += 1);
    let most = (0..=255u8).max_by_key(|route| counts[usize::from(*route)]).unwrap_or(0);
    route(Route(most))
}

/// The name of a way that bytes travel.
pub fn route(route: Route) -> String {
    route.name().map_or_else(|| format!("route {}", route.0), str::to_owned)
}

pub fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

pub fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let values = sorted(values);
    values[values.len() / 2]
}

pub fn gbps(bytes: u64, us: f64) -> f64 {
    bytes as f64 * 8.0 / us / 1e3
}

/// A time in a unit that fits it.
pub fn time(us: f64) -> String {
    match us {
        us if us < 100.0 => format!("{us:.1} us"),
        us if us < 1e3 => format!("{us:.0} us"),
        us if us < 1e6 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

/// Bytes in a unit that fits them.
pub fn size(bytes: u64) -> String {
    let (unit, word) = match bytes {
        bytes if bytes < 1 << 10 => (1, "B"),
        bytes if bytes < 1 << 20 => (1 << 10, "KiB"),
        bytes if bytes < 1 << 30 => (1 << 20, "MiB"),
        _ => (1 << 30, "GiB"),
    };
    if bytes.is_multiple_of(unit) {
        return format!("{} {word}", bytes / unit);
    }
    format!("{:.1} {word}", bytes as f64 / unit as f64)
}

/// A count with separators.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A table whose first columns are words and whose others are figures.
pub fn table(header: &[&str], words: usize, rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let cells = |texts: Vec<String>| {
        texts.into_iter().enumerate().map(move |(i, text)| {
            Cell::new(text).set_alignment(if i < words { CellAlignment::Left } else { CellAlignment::Right })
        })
    };
    table.set_header(cells(header.iter().map(|text| (*text).to_owned()).collect()));
    table.add_rows(rows.into_iter().map(cells));
    table
}

/// The figures of `bench` for people.
pub fn records(records: &[Record]) -> Table {
    let header = [
        "workload",
        "op",
        "submit",
        "route",
        "bytes",
        "p50",
        "p95",
        "best",
        "Gbit/s",
        "window",
        "operations",
        "verified",
    ];
    let rows = records.iter().map(|r| {
        vec![
            r.workload.clone(),
            lower(r.op),
            lower(r.submit),
            r.chosen.clone(),
            size(r.bytes),
            time(r.p50_us),
            time(r.p95_us),
            time(r.best_us),
            format!("{:.1}", r.useful_gbps),
            r.window_gbps.map_or_else(|| "-".to_owned(), |gbps| format!("{gbps:.1}")),
            r.operations.map_or_else(|| "-".to_owned(), count),
            match r {
                Record { simulated: true, .. } => "simulated",
                Record { verified: true, .. } => "yes",
                _ => "NO",
            }
            .to_owned(),
        ]
    });
    table(&header, 4, rows)
}

fn lower(word: impl std::fmt::Debug) -> String {
    format!("{word:?}").to_lowercase()
}

/// A bar on standard error if that is a terminal, else nothing.
pub fn bar(length: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent:>3} %");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_message(what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_units_and_separators() {
        assert_eq!(time(7.04), "7.0 us");
        assert_eq!(time(4321.0), "4.32 ms");
        assert_eq!(size(98_304 * 264), "24.8 MiB");
        assert_eq!(size(1 << 30), "1 GiB");
        assert_eq!(count(98_304), "98,304");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(12), "12");
    }
}
