//! `scatter-ring read`: rows of somebody's own table, by number, into a file.

mod npy;
mod numbers;
mod output;
mod session;
mod table;
mod windows;

use super::{Failure, file, report};
use output::Output;
use scatter_ring::engine::Endpoint;
use serde::Serialize;
use session::Session;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;
use table::Table;
use windows::{Source, Totals};

/// Read rows of a table by number, and write them one behind the other.
///
/// As `table[rows]` in NumPy. The list of row numbers is held in memory, 8 bytes a row; table and output may be larger
/// than memory. Every number is checked before anything is written, and the output gets its name when it is whole.
///
/// The formats of files go by their extensions. Table: .npy (a row is what index 0 selects), .safetensors (the same, of
/// one tensor), anything else raw. Row numbers: .npy (integers of any type and shape), anything else text, one number a
/// line. Output: .npy (with the type and shape of the table's rows; bytes if the table is raw), anything else raw.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, group(clap::ArgGroup::new("what").required(true)))]
pub struct Args {
    /// The table
    #[arg(long, value_name = "FILE", group = "what")]
    table: Option<PathBuf>,
    /// Instead of a file: what the engine serves, or another process has exported, by this name
    #[arg(long, value_name = "NAME", group = "what", requires = "attach")]
    export: Option<String>,
    /// With --export: what is exported not by this engine but by another one, by the endpoint that it prints
    ///
    /// The engine at --attach connects to that one, and both must have been started for that: see `serve --peer-listen`.
    #[arg(long, value_name = "ENDPOINT", requires = "export")]
    peer: Option<Endpoint>,
    #[command(flatten)]
    layout: table::Layout,
    /// The row numbers, counted from 0; - is standard input
    #[arg(long, value_name = "FILE")]
    rows: PathBuf,
    /// How the row numbers are written [default: by the extension]
    #[arg(long, value_name = "FORMAT", value_enum)]
    rows_format: Option<numbers::Format>,
    /// Where the rows go, in place of what is there; - is standard output, raw
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Use the engine that serves there, and not one in this process
    ///
    /// A --table is then copied into memory that is registered with that engine, so that it must fit; an --export is not.
    #[arg(long, value_name = "SOCKET")]
    attach: Option<PathBuf>,
    /// One JSON object on standard output (on standard error with --out -) instead of a line for people
    #[arg(long)]
    json: bool,
    /// Smaller windows, for tests.
    #[arg(long, hide = true, default_value_t = 64 << 20)]
    window_bytes: u64,
}

const EXAMPLES: &str = "\
Examples:
  scatter-ring read --table table.npy --rows ids.npy --out rows.npy
  scatter-ring read --table model.safetensors --tensor embeddings.word_embeddings.weight --rows ids.txt --out rows.npy
  seq 0 2 99 | scatter-ring read --table table.bin --row-bytes 264 --rows - --out rows.bin
  scatter-ring read --attach /run/scatter-ring/socket --export table --row-bytes 264 --rows ids.npy --out rows.bin
  scatter-ring read --attach /run/scatter-ring/socket --peer \"$ENDPOINT\" --export table --row-bytes 264 \
      --rows ids.npy --out rows.bin";

/// The keys of `--json`: those of `bench --json` where it has them.
#[derive(Serialize)]
struct Record {
    link: &'static str,
    /// How the bytes travelled; null without a row.
    chosen: Option<String>,
    /// Rows that were read.
    fragments: u64,
    bytes: u64,
    row_bytes: u32,
    table_rows: u64,
    table_bytes: u64,
    /// From before the first row is asked for until the output is whole.
    total_us: f64,
    /// The part of it that the engine worked.
    engine_us: f64,
    /// Of the whole time.
    useful_gbps: f64,
    operations: u64,
    doorbells: u64,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let mut session = Session::start(args.attach.as_deref(), args.peer.as_ref())?;
    let (table, exported) = match &args.export {
        Some(name) => {
            let region = session.open(name)?;
            (Table::raw(format!("export {name}"), region.bytes(), &args.layout)?, Some(region))
        }
        None => (Table::in_file(args.table_path(), &args.layout)?, None),
    };
    let numbers = numbers::read(&args.rows, args.rows_format)?;
    table.check(&numbers)?;
    let (region, offset) = match exported {
        Some(region) => (region, table.offset),
        None => session.table(args.table_path(), &table)?,
    };
    let source = Source { table: region, offset, row_bytes: table.row_bytes };

    let start = Instant::now();
    let mut out = Output::create(&args.out)?;
    if npy::is_npy(&args.out) {
        if let Some(real) = &table.row.in_place_of {
            eprintln!("scatter-ring: NumPy has no {real}: the same bytes are written as {}", table.row.dtype.descr());
        }
        out.write(&npy::header(&table.row, numbers.len() as u64)?)?;
    }
    let totals = windows::read(&mut session.client, &source, &numbers, args.window_bytes, &mut out)?;
    out.finish()?;
    let record = record(&session, &table, numbers.len() as u64, &totals, report::micros(start.elapsed()));
    say(args, &record)
}

impl Args {
    /// Only without `--export`.
    fn table_path(&self) -> &std::path::Path {
        self.table.as_deref().expect("one of the two is there: clap has checked it")
    }
}

fn record(session: &Session, table: &Table, rows: u64, totals: &Totals, total_us: f64) -> Record {
    let bytes = rows * u64::from(table.row_bytes);
    Record {
        link: session.link(),
        chosen: totals.route.map(report::route),
        fragments: rows,
        bytes,
        row_bytes: table.row_bytes,
        table_rows: table.rows,
        table_bytes: table.bytes(),
        total_us,
        engine_us: report::micros(totals.engine),
        useful_gbps: report::gbps(bytes, total_us),
        operations: totals.operations,
        doorbells: session.client.doorbells(),
    }
}

/// How it went.
fn say(args: &Args, record: &Record) -> Result<(), Failure> {
    if args.json {
        let line = serde_json::to_string(record)?;
        match output::is_stdout(&args.out) {
            true => eprintln!("{line}"),
            false => writeln!(std::io::stdout(), "{line}")?,
        }
        return Ok(());
    }
    eprintln!(
        "scatter-ring: {} rows of {} B, {} in {} ({:.1} Gbit/s; the engine worked {})",
        report::count(record.fragments),
        report::count(record.row_bytes.into()),
        report::size(record.bytes),
        report::time(record.total_us),
        record.useful_gbps,
        report::time(record.engine_us)
    );
    Ok(())
}
