//! `scatter-ring bench --link sim:PROFILE`: workloads in virtual time.

use super::Failure;
use super::chart::{Line, Span, Timeline};
use super::report::{self, Record};
use super::transfer::{Op, RouteChoice, Submit};
use ring_abi::Route;
use scatter_ring::cost::{self, Choice, Direction};
use scatter_ring::sim::matrix::Cell;
use scatter_ring::sim::{self, Bar, BarStage, Host, Job, Outcome, Profile, Report, Run};
use std::path::Path;

/// What is asked for besides the cell.
#[derive(Clone, Copy)]
pub struct How {
    pub profile: &'static Profile,
    pub route: RouteChoice,
    pub submit: Submit,
    pub iterations: u32,
    pub seed: u64,
}

/// A workload of the command line in one direction: W1 to W5, or every cell of the matrix.
pub fn cells(workload: &str, op: Option<Op>) -> Vec<Cell> {
    let direction = |op: Op| if op == Op::Read { Direction::Read } else { Direction::Write };
    match Cell::named(workload, direction(op.unwrap_or(Op::Read))) {
        Some(cell) => vec![cell],
        None => Cell::matrix().into_iter().filter(|cell| op.is_none_or(|op| direction(op) == cell.direction)).collect(),
    }
}

/// Simulates a cell so often, with another seed and another list each time.
pub fn measure(cell: &Cell, how: &How) -> Result<Record, Failure> {
    let jobs: Vec<Job> = (0..how.iterations.min(LISTS)).map(|k| cell.job(seed(how, k))).collect();
    let mut reports = Vec::with_capacity(how.iterations as usize);
    for (i, job) in (0..how.iterations).zip(jobs.iter().cycle()) {
        let run = Run { seed: seed(how, i), ..simulated(job, how)? };
        reports.push(done(sim::run(&run), cell)?);
    }
    Ok(record(cell, how, &reports))
}

/// Simulates a cell once, and draws what was under way when.
pub fn draw(cell: &Cell, how: &How, path: &Path) -> Result<(), Failure> {
    let job = cell.job(seed(how, 0));
    let run = Run { seed: seed(how, 0), record: true, ..simulated(&job, how)? };
    let report = done(sim::run(&run), cell)?;
    timeline(cell, how, &report).write(path)
}

/// No two iterations of a seed have the same, nor have two seeds at the same iteration; of seeds below 2^32 no two have any
/// in common.
fn seed(how: &How, iteration: u32) -> u64 {
    how.seed.rotate_left(32) ^ u64::from(iteration)
}

fn simulated<'a>(job: &'a Job, how: &How) -> Result<Run<'a>, Failure> {
    let submit = match how.submit {
        Submit::Index => sim::Submit::Index,
        Submit::Rows => sim::Submit::Rows,
    };
    Ok(Run { submit, forced: forced(job, how)?, ..Run::new(how.profile, job) })
}

/// The best choice of a route that is asked for.
fn forced(job: &Job, how: &How) -> Result<Option<Choice>, Failure> {
    match how.route {
        RouteChoice::Auto => Ok(None),
        RouteChoice::Direct => Ok(Some(Choice::DIRECT)),
        RouteChoice::Gather => {
            let chosen = cost::choose(&job.work(), &how.profile.situation(job.direction)).choice;
            if chosen.route() == cost::Route::Gather {
                return Ok(Some(chosen));
            }
            let explained = cost::explain(&job.work(), &how.profile.situation(job.direction));
            let possible = |candidate: &&cost::Candidate| {
                candidate.route == cost::Route::Gather && !matches!(candidate.verdict, cost::Verdict::NoBudget(_))
            };
            let gathered = explained.candidates.iter().filter(possible);
            let best = gathered.min_by(|a, b| a.predicted.total_ns.total_cmp(&b.predicted.total_ns));
            match best {
                Some(candidate) => Ok(Some(candidate.choice)),
                None => Err(Failure::run(format!("{} has no staging memory to gather in", how.profile.name))),
            }
        }
    }
}

fn done(report: Report, cell: &Cell) -> Result<Report, Failure> {
    match report.outcome {
        Outcome::Done => Ok(report),
        other => Err(Failure::run(format!("{}: the simulated batch ended as {other:?}", cell.name))),
    }
}

fn record(cell: &Cell, how: &How, reports: &[Report]) -> Record {
    let us = |ns: u64| ns as f64 / 1e3;
    let times = report::sorted(reports.iter().map(|report| us(report.total_ns)));
    let median_ns = |ns: fn(&Report) -> Option<u64>| {
        let values: Option<Vec<f64>> = reports.iter().map(|report| ns(report).map(us)).collect();
        values.map(|values| report::median(values.into_iter()))
    };
    let count = |of: fn(&Report) -> u64| Some(report::median(reports.iter().map(|report| of(report) as f64)) as u64);
    let predicted = |ns: fn(&Report) -> Option<f64>| {
        let values: Option<Vec<f64>> = reports.iter().map(|report| ns(report).map(|ns| ns / 1e3)).collect();
        values.map(|values| report::median(values.into_iter()))
    };
    let window_us = median_ns(|report| report.window_ns);
    let p50_us = times[times.len() / 2];
    Record {
        workload: cell.name.clone(),
        link: format!("sim:{}", how.profile.name),
        op: if cell.direction == Direction::Read { Op::Read } else { Op::Write },
        route: how.route,
        submit: how.submit,
        seed: how.seed,
        iterations: how.iterations,
        chosen: most_often(reports),
        fragments: cell.fragments(),
        bytes: cell.bytes(),
        p50_us,
        p95_us: times[(times.len() * 95 / 100).min(times.len() - 1)],
        best_us: times[0],
        useful_gbps: report::gbps(cell.bytes(), p50_us),
        window_gbps: window_us.map(|us| report::gbps(cell.bytes(), us)),
        queue_us: median_ns(|report| report.stages.queue_ns),
        plan_us: median_ns(|report| report.stages.plan_ns),
        command_us: median_ns(|report| report.stages.command_ns),
        owner_queue_us: median_ns(|report| report.stages.owner_queue_ns),
        pack_us: median_ns(|report| report.stages.pack_ns),
        window_us,
        complete_us: median_ns(|report| report.stages.complete_ns),
        predicted_direct_us: predicted(|report| Some(report.predicted.direct_ns)),
        predicted_gather_us: predicted(|report| report.predicted.gather_ns),
        doorbells: count(|report| report.doorbells),
        operations: count(|report| report.operations),
        signalled: count(|report| report.signalled),
        staging_peak_bytes: count(|report| report.staging_peak_bytes),
        // There are no bytes to compare.
        verified: false,
        simulated: true,
        table_bytes: None,
    }
}

fn most_often(reports: &[Report]) -> String {
    let count = |route: Route| reports.iter().filter(|report| report.chosen == route).count();
    let most = reports.iter().map(|report| report.chosen).max_by_key(|route| count(*route));
    most.map_or_else(|| "-".to_owned(), report::route)
}

fn timeline(cell: &Cell, how: &How, report: &Report) -> Timeline {
    let mut lines = Vec::new();
    for (stage, host, label) in LINES {
        let mut bars: Vec<&Bar> = report.timeline.iter().filter(|bar| bar.stage == stage && bar.host == host).collect();
        bars.sort_unstable_by_key(|bar| (bar.from_ns, bar.chunk));
        let first = lines.len();
        for bar in bars {
            // Several at once, as of several workers, are below each other.
            let end = |line: &Line| line.bars.last().map_or(0.0, |span| span.to_us);
            let (from_us, to_us) = (bar.from_ns as f64 / 1e3, bar.to_ns as f64 / 1e3);
            let free = lines[first..].iter().position(|line| end(line) <= from_us);
            let at = free.map_or(lines.len(), |at| first + at);
            if at == lines.len() {
                let label = if at == first { label.to_owned() } else { String::new() };
                lines.push(Line { label, color: stage as usize, bars: Vec::new() });
            }
            lines[at].bars.push(Span { from_us, to_us, number: bar.chunk });
        }
    }
    let window =
        report.window_ns.map_or_else(String::new, |ns| format!(", of it the window {}", report::time(ns as f64 / 1e3)));
    let total_us = report.total_ns as f64 / 1e3;
    Timeline {
        title: format!("{} on {}, chunk by chunk (simulated)", cell.name, how.profile.name),
        caption: format!(
            "{}, chunks of at most {}, {} slots; end to end {}{window}; simulated, not measured",
            report::route(report.chosen),
            report::size(report.choice.chunk_bytes.into()),
            report.choice.slots,
            report::time(total_us),
        ),
        lines,
        end_us: total_us,
    }
}

/// Lists that are used in turn.
const LISTS: u32 = 8;

/// The lines of a timeline from above, in the order in which a chunk goes through them.
const LINES: [(BarStage, Host, &str); 12] = [
    (BarStage::Plan, Host::Requester, "requester: plan"),
    (BarStage::Command, Host::Requester, "command"),
    (BarStage::Command, Host::Owner, "command"),
    (BarStage::Queue, Host::Requester, "requester: queue"),
    (BarStage::Queue, Host::Owner, "owner: queue"),
    (BarStage::Pack, Host::Requester, "requester: pack"),
    (BarStage::Pack, Host::Owner, "owner: pack"),
    (BarStage::Wire, Host::Requester, "wire, from requester"),
    (BarStage::Wire, Host::Owner, "wire, from owner"),
    (BarStage::Unpack, Host::Owner, "owner: unpack"),
    (BarStage::Unpack, Host::Requester, "requester: unpack"),
    (BarStage::Plan, Host::Owner, "owner: plan"),
];
