//! The process that has the table.

use super::process::{self, Note};
use super::{Failure, workload};
use scatter_ring::client::Client;
use scatter_ring::region::Rights;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Has a table with known contents, until its parent ends.
#[derive(clap::Args)]
pub struct Args {
    #[arg(long)]
    socket: PathBuf,
    #[arg(long)]
    name: String,
    #[arg(long)]
    bytes: u64,
}

/// How often progress is told, in bytes.
const TOLD: u64 = 32 << 20;

pub fn run(args: &Args) -> Result<(), Failure> {
    process::at_end_of_parent(|| std::process::exit(0));
    let client = Client::attach(&args.socket)?;
    let table = client.allocate(args.bytes)?;
    workload::fill_table(&table, |done| {
        if done.is_multiple_of(TOLD) {
            // A parent that does not listen any more has ended, and so does this process.
            let _ = process::say(&Note::Progress(done, args.bytes));
        }
    })?;
    client.export(&table, &args.name, Rights::READ_WRITE)?;
    process::say(&Note::Ready)?;
    loop {
        std::thread::park();
    }
}

/// The command line of such a process.
pub fn arguments<'a>(socket: &'a Path, name: &'a str, bytes: &'a str) -> [&'a OsStr; 7] {
    [
        "owner".as_ref(),
        "--socket".as_ref(),
        socket.as_ref(),
        "--name".as_ref(),
        name.as_ref(),
        "--bytes".as_ref(),
        bytes.as_ref(),
    ]
}
