//! The process of `demo` that asks for rows, and gathers them by itself for comparison.

use super::Failure;
use super::process::{self, Note};
use super::report::{median, micros, sorted};
use super::transfer::{How, Op, RouteChoice, Submit, Transfer};
use super::workload::{self, ROW_BYTES, Workload};
use scatter_ring::client::Client;
use scatter_ring::region::Rights;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Instant;

/// Reads rows in the two ways in which they can be described, and copies the same rows by itself.
#[derive(clap::Args)]
pub struct Args {
    #[arg(long)]
    socket: PathBuf,
    #[arg(long)]
    name: String,
    #[arg(long)]
    rows: u32,
    #[arg(long)]
    iterations: u32,
}

/// What it found.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    /// One descriptor and row numbers.
    pub index: Timing,
    /// One descriptor a row.
    pub rows: Timing,
    /// A copy of each row, from a table of this process to a buffer of this process.
    pub memcpy: Timing,
    /// Bytes that were compared.
    pub compared: u64,
}

/// Times of the same work.
#[derive(Debug, Serialize, Deserialize)]
pub struct Timing {
    pub p50_us: f64,
    pub best_us: f64,
    /// Median of what it took, divided by what `memcpy` took for the same rows right after.
    pub beside_memcpy: f64,
}

const INDEX: How = How { op: Op::Read, route: RouteChoice::Auto, submit: Submit::Index };
const ROWS: How = How { submit: Submit::Rows, ..INDEX };

pub fn run(args: &Args) -> Result<(), Failure> {
    process::at_end_of_parent(|| std::process::exit(1));
    let mut client = Client::attach(&args.socket)?;
    let table = client.open(&args.name, Rights::READ)?;
    let work = Workload::rows(args.rows);
    let mut transfer = Transfer::new(&mut client, &table, &work, 1)?;
    let steps = 1 + 2 * transfer.lists() as u64 + u64::from(args.iterations);
    let mut done = 0;
    let mut step = || {
        done += 1;
        // A parent that does not listen any more has ended, and so does this process.
        let _ = process::say(&Note::Progress(done, steps));
    };
    let mut own_table = vec![0; table.bytes() as usize];
    workload::fill(&mut own_table, 0, 0);
    let mut own_buffer = vec![0; work.bytes() as usize];
    step();
    transfer.verify(INDEX, &mut step)?;
    transfer.verify(ROWS, &mut step)?;
    for k in 0..transfer.lists() {
        gather(&own_table, transfer.list(k), &mut own_buffer);
        compare_own(&own_buffer, transfer.list(k))?;
    }

    let mut times = [vec![], vec![], vec![]];
    for i in 0..args.iterations as usize {
        let k = i % transfer.lists();
        times[0].push(micros(transfer.run(k, INDEX)?.time));
        times[1].push(micros(transfer.run(k, ROWS)?.time));
        let start = Instant::now();
        gather(&own_table, transfer.list(k), &mut own_buffer);
        times[2].push(micros(start.elapsed()));
        step();
    }
    // What the clock saw is right as well.
    transfer.verify_read((args.iterations as usize - 1) % transfer.lists(), 0)?;
    compare_own(&own_buffer, transfer.list((args.iterations as usize - 1) % transfer.lists()))?;
    let timing = |which: usize| Timing {
        p50_us: median(times[which].iter().copied()),
        best_us: sorted(times[which].iter().copied())[0],
        beside_memcpy: median(times[which].iter().zip(&times[2]).map(|(time, memcpy)| time / memcpy)),
    };
    let compared = 3 * transfer.lists() as u64 * work.bytes();
    process::say(&Note::Measured(Measured { index: timing(0), rows: timing(1), memcpy: timing(2), compared }))
}

/// What a program does that has the table itself.
fn gather(table: &[u8], list: &workload::List, out: &mut [u8]) {
    const ROW: usize = ROW_BYTES as usize;
    for (row, to) in list.parts[0].rows.iter().zip(out.chunks_exact_mut(ROW)) {
        let at = *row as usize * ROW;
        to.copy_from_slice(&table[at..at + ROW]);
    }
    std::hint::black_box(out);
}

fn compare_own(buffer: &[u8], list: &workload::List) -> Result<(), Failure> {
    let wrong = list.fragments().find(|fragment| {
        let at = fragment.buffer as usize;
        !workload::matches(&buffer[at..at + fragment.len as usize], fragment.table, 0)
    });
    wrong.map_or(Ok(()), |_| Err(Failure::run("the comparison copied wrong bytes")))
}
