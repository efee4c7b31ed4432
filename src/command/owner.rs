//! The process that has the table.

use super::process::{self, Note};
use super::{Failure, workload};
use clap::ValueEnum;
use scatter_ring::client::Client;
use scatter_ring::owner::Owner;
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
    #[arg(long, value_enum, default_value = "shared")]
    memory: OwnerMemory,
}

/// Where the table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OwnerMemory {
    /// In a memory file, which the engine maps.
    Shared,
    /// In memory of its process alone, which packs and unpacks it.
    Private,
}

/// How often progress is told, in bytes.
const TOLD: u64 = 32 << 20;

pub fn run(args: &Args) -> Result<(), Failure> {
    process::at_end_of_parent(|| std::process::exit(0));
    match args.memory {
        OwnerMemory::Shared => share(args),
        OwnerMemory::Private => lend(args),
    }
}

fn share(args: &Args) -> Result<(), Failure> {
    let client = Client::attach(&args.socket)?;
    let table = client.allocate(args.bytes)?;
    workload::fill_table(&table, |done| tell(done, args))?;
    client.export(&table, &args.name, Rights::READ_WRITE)?;
    serve()
}

fn lend(args: &Args) -> Result<(), Failure> {
    let owner = Owner::attach(&args.socket)?;
    let mut table = vec![0; usize::try_from(args.bytes)?];
    let mut done = 0;
    for piece in table.chunks_mut(1 << 20) {
        workload::fill(piece, done, 0);
        done += piece.len() as u64;
        tell(done, args);
    }
    // SAFETY: nobody uses the table but its owner until this process ends.
    let _lent = unsafe { owner.lend(&args.name, table.as_mut_ptr(), args.bytes, Rights::READ_WRITE)? };
    serve()
}

/// A parent that does not listen any more has ended, and so does this process.
fn tell(done: u64, args: &Args) {
    if done.is_multiple_of(TOLD) {
        let _ = process::say(&Note::Progress(done, args.bytes));
    }
}

fn serve() -> Result<(), Failure> {
    process::say(&Note::Ready)?;
    loop {
        std::thread::park();
    }
}

/// The command line of such a process.
pub fn arguments<'a>(socket: &'a Path, name: &'a str, bytes: &'a str, memory: OwnerMemory) -> [&'a OsStr; 9] {
    let memory = match memory {
        OwnerMemory::Shared => "shared",
        OwnerMemory::Private => "private",
    };
    [
        "owner".as_ref(),
        "--socket".as_ref(),
        socket.as_ref(),
        "--name".as_ref(),
        name.as_ref(),
        "--bytes".as_ref(),
        bytes.as_ref(),
        "--memory".as_ref(),
        memory.as_ref(),
    ]
}
