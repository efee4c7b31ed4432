//! `scatter-ring demo`: three processes, and what it costs to get rows from one to another.

use super::Failure;
use super::demo_client::{Measured, Timing};
use super::owner::OwnerMemory;
use super::place::{TABLE, start_engine, start_owner};
use super::process::{Helper, Note, PrivateDirectory};
use super::report::{self, count, gbps, size, time};
use super::workload::{ROW_BYTES, TABLE_BYTES};
use std::ffi::OsStr;
use std::io::Write;

/// See it work: three processes, a table of 1 GiB, and timings beside plain memcpy.
///
/// Starts an engine, a process that has a table, and a process that asks for random rows of 264 B of it. Every byte is
/// compared. Takes some seconds and 2.1 GiB of memory; nothing is left behind.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Rows that are asked for at a time
    #[arg(long, value_name = "N", default_value_t = 98_304, value_parser = clap::value_parser!(u32).range(1..=262_144))]
    rows: u32,
    /// How often they are asked for
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=1000))]
    iterations: u32,
    /// A smaller table, for tests.
    #[arg(long, hide = true, default_value_t = TABLE_BYTES >> 20, value_parser = clap::value_parser!(u64).range(1..=1024))]
    table_mib: u64,
}

const EXAMPLES: &str = "\
Examples:
  scatter-ring demo
  scatter-ring demo --rows 1024        Few rows: what a single request costs";

pub fn run(args: &Args) -> Result<(), Failure> {
    let table_bytes = args.table_mib << 20;
    let directory = PrivateDirectory::new();
    let engine = start_engine(&directory)?;
    let owner = start_owner(&directory, table_bytes, OwnerMemory::Shared)?;
    let mut client = start_client(&directory, args)?;
    let bar = report::bar(1, "reading rows");
    let measured = loop {
        match client.note()? {
            Note::Progress(done, all) => {
                bar.set_length(all);
                bar.set_position(done);
            }
            Note::Measured(measured) => break measured,
            Note::Ready => {}
        }
    };
    bar.finish_and_clear();
    let text = report(args, table_bytes, [owner.pid(), engine.pid(), client.pid()], &measured);
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn start_client(directory: &PrivateDirectory, args: &Args) -> Result<Helper, Failure> {
    let (socket, rows, iterations) = (directory.socket(), args.rows.to_string(), args.iterations.to_string());
    let args: [&OsStr; 9] = [
        "demo-client".as_ref(),
        "--socket".as_ref(),
        socket.as_ref(),
        "--name".as_ref(),
        TABLE.as_ref(),
        "--rows".as_ref(),
        rows.as_ref(),
        "--iterations".as_ref(),
        iterations.as_ref(),
    ];
    Helper::start("client", &args)
}

fn report(args: &Args, table_bytes: u64, [owner, engine, client]: [u32; 3], measured: &Measured) -> String {
    let payload = u64::from(args.rows) * u64::from(ROW_BYTES);
    let rows = count(args.rows.into());
    let row = |how: String, timing: &Timing| {
        let rows_per_second = f64::from(args.rows) / timing.p50_us;
        vec![
            how,
            time(timing.p50_us),
            time(timing.best_us),
            format!("{rows_per_second:.1} M"),
            format!("{:.1}", gbps(payload, timing.p50_us)),
            format!("{:.2} x", timing.beside_memcpy),
        ]
    };
    let header = ["", "p50", "best", "rows/s", "Gbit/s", "time beside memcpy"];
    let table = report::table(
        &header,
        1,
        [
            row(format!("1 descriptor with {rows} row numbers"), &measured.index),
            row(format!("{rows} descriptors, one a row"), &measured.rows),
            row("plain memcpy, row by row".to_owned(), &measured.memcpy),
        ],
    );
    format!(
        "\
Three processes:
  owner   (pid {owner}) has a table of {} in memory, in rows of {ROW_BYTES} B
  engine  (pid {engine}) serves the others: `scatter-ring serve` on a socket of its own
  client  (pid {client}) asks for {rows} random rows at a time, {}, {} times each way

{}

The client writes descriptors into a ring in shared memory; the engine copies the rows straight from the owner's memory
to the client's, and answers with one completion. Descriptors, rows and answers do not pass through the kernel. (Who has
nothing to do for a while sleeps, and is then woken by a system call.)

plain memcpy: the client's own thread copies the same rows out of a private copy of the table that it made for this
comparison: what it would cost to have all of it in each process. The three were timed in turn; the last column is the
median of what one took divided by what plain memcpy took right after.

Every byte was compared with what the owner wrote: {} in 8 random lists, each way. All correct.
",
        size(table_bytes),
        size(payload),
        args.iterations,
        table.trim_fmt(),
        size(measured.compared),
    )
}
