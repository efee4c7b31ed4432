//! `scatter-ring regret`: how much longer the planner's choices take than the best ones, simulated.

use super::Failure;
use super::chart::{HeatMap, Panel, Row};
use super::file;
use super::report;
use scatter_ring::cost::{Choice, Direction};
use scatter_ring::sim::matrix::{Cell, Geometry, Mix};
use scatter_ring::sim::regret::{Regret, Summary, Trial, compare, summarize};
use scatter_ring::sim::{Profile, profiles};
use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;

/// Compare the planner's choices with the best ones, in the simulator.
///
/// Every cell of the validation matrix is simulated on every profile: as the planner chooses, all direct, and with every
/// route, size of chunks and number of slots of a grid. Regret is the part by which the planner's choice takes longer than
/// the best of them. Nothing is measured: the times are those of a simulator that has effects which the planner does not
/// know.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Only these profiles [default: all]
    #[arg(value_name = "PROFILE", value_parser = parse_profile, hide_default_value = true)]
    profiles: Vec<&'static Profile>,
    /// The planner's figures are wrong by up to so many percent, and it has learned from eight batches of each kind
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=90))]
    noise: u32,
    /// Another number gives other lists, and other noise
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// A row for each cell, with both choices
    #[arg(long, value_name = "FILE.csv")]
    table: Option<PathBuf>,
    /// A heat map
    #[arg(long, value_name = "FILE.svg")]
    map: Option<PathBuf>,
    /// Fewer cells, for tests: the first of so many.
    #[arg(long, hide = true, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    one_in: u16,
    /// What is printed: a table, or one JSON object a line and profile
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  scatter-ring regret --map regret.svg --table regret.csv
  scatter-ring regret --noise 20                   With wrong figures
  scatter-ring regret roce-100g ib-400g";

fn parse_profile(word: &str) -> Result<&'static Profile, String> {
    profiles::named(word).ok_or_else(|| {
        let names: Vec<&str> = profiles::all().iter().map(|profile| profile.name).collect();
        format!("the simulator's profiles are {}", names.join(", "))
    })
}

pub fn run(args: &Args) -> Result<(), Failure> {
    [&args.table, &args.map].into_iter().flatten().try_for_each(|path| file::try_to_write(path))?;
    let all: Vec<&Profile> = profiles::all().iter().collect();
    let profiles: Vec<Profile> =
        if args.profiles.is_empty() { all } else { args.profiles.clone() }.into_iter().copied().collect();
    let cells: Vec<Cell> = Cell::matrix().into_iter().step_by(args.one_in.into()).collect();
    let trial = Trial { noise_percent: args.noise, batches: if args.noise == 0 { 0 } else { BATCHES } };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let progress = report::bar(cells.len() as u64, "simulating");
    let mut tried = compare(&cells, &profiles, &[trial], args.seed, threads, &|| progress.inc(1));
    let regrets = tried.pop().unwrap_or_default();
    progress.finish_and_clear();
    let summaries = summarize(&regrets);
    let mut out = std::io::stdout();
    if args.json {
        for summary in &summaries {
            writeln!(out, "{}", json(summary, args))?;
        }
    } else {
        let noise = wrong(args, "its");
        writeln!(out, "Regret of the planner's choice{noise}. Simulated: no time here was measured.")?;
        writeln!(out, "{}", table(&summaries).trim_fmt())?;
    }
    if let Some(path) = &args.table {
        file::write(path, &csv(&regrets))?;
    }
    match &args.map {
        Some(path) => heat_map(&regrets, &profiles, args).write(path),
        None => Ok(()),
    }
}

fn wrong(args: &Args, whose: &str) -> String {
    match args.noise {
        0 => String::new(),
        percent => format!(", {whose} figures wrong by up to {percent} %, after {BATCHES} batches of each kind"),
    }
}

fn table(summaries: &[Summary]) -> comfy_table::Table {
    let header = [
        "profile",
        "worst cell",
        "chosen there",
        "best there",
        "cells",
        "median",
        "p95",
        "worst",
        "few large / direct",
    ];
    let rows = summaries.iter().map(|summary| {
        vec![
            summary.profile.to_owned(),
            format!("{} {}", way(summary.worst.cell.direction), summary.worst.cell.name),
            choice(summary.worst.chosen),
            choice(summary.worst.best),
            summary.cells.to_string(),
            percent(summary.median),
            percent(summary.p95),
            percent(summary.worst.regret()),
            percent(summary.few_large),
        ]
    });
    report::table(&header, 4, rows)
}

fn json(summary: &Summary, args: &Args) -> serde_json::Value {
    serde_json::json!({
        "profile": summary.profile,
        "seed": args.seed,
        "noise_percent": args.noise,
        "cells": summary.cells,
        "median": summary.median,
        "p95": summary.p95,
        "worst": summary.worst.regret(),
        "worst_cell": summary.worst.cell.name,
        "worst_op": way(summary.worst.cell.direction),
        "few_large_over_direct": summary.few_large,
        "simulated": true,
    })
}

/// A row for each cell and profile, the first names the columns.
fn csv(regrets: &[Regret]) -> String {
    let mut text = "profile,op,cell,bytes,regret,first_regret,over_direct,chosen_us,best_us,direct_us,\
                    chosen_direct_from,chosen_chunk,chosen_slots,best_direct_from,best_chunk,best_slots,simulated\n"
        .to_owned();
    for regret in regrets {
        let Regret { cell, profile, chosen, best, .. } = regret;
        let us = |ns: u64| ns as f64 / 1e3;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{profile},{},{},{},{:.4},{:.4},{:.4},{:.1},{:.1},{:.1},{},{},{},{},{},{},true",
            way(cell.direction),
            cell.name,
            cell.bytes(),
            regret.regret(),
            regret.first_regret(),
            regret.over_direct(),
            us(regret.chosen_ns),
            us(regret.best_ns),
            us(regret.direct_ns),
            chosen.direct_from_bytes,
            chosen.chunk_bytes,
            chosen.slots,
            best.direct_from_bytes,
            best.chunk_bytes,
            best.slots,
        );
    }
    text
}

fn heat_map(regrets: &[Regret], profiles: &[Profile], args: &Args) -> HeatMap {
    let noise = wrong(args, "planner's");
    let kinds = [
        (Mix::Equal, "Pieces of one size; columns: how many"),
        (Mix::SmallAndLarge, "Small pieces, and 64 of 512 KiB; columns: how many small ones"),
        (Mix::FewLarge, "Few pieces of 512 KiB; columns: how many"),
    ];
    HeatMap {
        title: format!("Regret against the best choice of the grid (simulated){noise}"),
        panels: kinds.into_iter().map(|(mix, title)| panel(mix, title, regrets, profiles)).collect(),
    }
}

/// Everything of one kind: rows by direction, geometry and size, columns by profile and count.
fn panel(mix: Mix, title: &str, regrets: &[Regret], profiles: &[Profile]) -> Panel {
    let regrets: Vec<&Regret> = regrets.iter().filter(|regret| regret.cell.mix == mix).collect();
    let mut counts: Vec<u32> = regrets.iter().map(|regret| regret.cell.groups[0].count).collect();
    counts.sort_unstable();
    counts.dedup();
    // In the order of the matrix.
    let mut keys: Vec<(Direction, Geometry, u32)> = Vec::new();
    for regret in &regrets {
        if !keys.contains(&key(&regret.cell)) {
            keys.push(key(&regret.cell));
        }
    }
    let value = |of: (Direction, Geometry, u32), profile: &Profile, count: u32| {
        let found = regrets.iter().find(|regret| {
            regret.profile == profile.name && key(&regret.cell) == of && regret.cell.groups[0].count == count
        });
        found.map(|regret| regret.regret())
    };
    let row = |of: (Direction, Geometry, u32)| Row {
        label: format!("{} {} {}", way(of.0), format!("{:?}", of.1).to_lowercase(), report::size(of.2.into())),
        values: profiles.iter().flat_map(|p| counts.iter().map(move |count| value(of, p, *count))).collect(),
    };
    Panel {
        title: title.to_owned(),
        groups: profiles.iter().map(|profile| profile.name.to_owned()).collect(),
        columns: counts.iter().map(|count| short(*count)).collect(),
        rows: keys.into_iter().map(row).collect(),
    }
}

fn key(cell: &Cell) -> (Direction, Geometry, u32) {
    (cell.direction, cell.geometry, cell.groups[0].len)
}

fn way(direction: Direction) -> &'static str {
    match direction {
        Direction::Read => "read",
        Direction::Write => "write",
    }
}

fn choice(choice: Choice) -> String {
    let gathered = || format!("{} x {}", report::size(choice.chunk_bytes.into()), choice.slots);
    match choice.direct_from_bytes {
        0 => "direct".to_owned(),
        u32::MAX => format!("gather {}", gathered()),
        from => format!("direct from {}, gather {}", report::size(from.into()), gathered()),
    }
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// A count in at most four letters.
fn short(count: u32) -> String {
    if count < 1024 { count.to_string() } else { format!("{}K", count / 1024) }
}

/// So often a planner with wrong figures decides before its choice is looked at.
const BATCHES: u32 = 8;
