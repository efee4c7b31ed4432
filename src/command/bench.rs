//! `scatter-ring bench`: workloads, timed and verified.

use super::Failure;
use super::owner::OwnerMemory;
use super::place::Place;
use super::report::{self, Figures, Record};
use super::transfer::{How, Op, RouteChoice, Submit, Transfer};
use super::workload::{TABLE_BYTES, Workload};
use std::io::Write;
use std::str::FromStr;

/// Measure workloads, and verify every byte of them.
///
/// Pieces of a table of 1 GiB go to one buffer (or, with `--op write`, from the buffer into the table). The clock runs
/// from before the first descriptor is written until the last completion is read. Eight lists of random pieces are used
/// in turn (two if they are larger than 64 MiB), and each was verified once before, without the clock.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// W1 to W5, or `matrix` [default: W1 W2 W3 W4 W5]
    ///
    /// W1: 98,304 rows of 264 B. W2: 131,072 rows of 264 B. W3: 32,768 rows of 264 B and 64 pieces of 512 KiB. W4: 64
    /// pieces of 512 KiB. W5: 1,024 rows of 264 B. matrix: 64 B to 512 KiB, 1,024 to 131,072 pieces, as far as they are at
    /// most 512 MiB; three geometries; reading and writing.
    #[arg(value_name = "WORKLOAD", value_parser = parse_workload, hide_default_value = true)]
    workloads: Vec<Named>,
    /// What is between client and table: shm (client, engine and owner are three processes), local (all in one process);
    /// not built yet: tcp, verbs, sim:PROFILE
    #[arg(long, default_value = "shm")]
    link: Link,
    /// Where the owner process of `--link shm` has the table: in a memory file that the engine maps, or in memory of its
    /// own, which it packs into slots of shared memory
    #[arg(long, value_enum, default_value_t = OwnerMemory::Shared)]
    owner_memory: OwnerMemory,
    /// Which way; `matrix` does both if this is not given [default: read]
    #[arg(long)]
    op: Option<Op>,
    /// How the pieces travel
    #[arg(long, value_enum, default_value_t = RouteChoice::Auto)]
    route: RouteChoice,
    /// How they are described
    #[arg(long, value_enum, default_value_t = Submit::Index)]
    submit: Submit,
    /// How often each workload is timed
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    iterations: u32,
    /// Another number gives other lists
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// One JSON object a line instead of a table
    #[arg(long)]
    json: bool,
    /// A smaller table, for tests.
    #[arg(long, hide = true, default_value_t = TABLE_BYTES >> 20, value_parser = clap::value_parser!(u64).range(1..=1024))]
    table_mib: u64,
}

const EXAMPLES: &str = "\
Examples:
  scatter-ring bench                                 All five workloads through a daemon
  scatter-ring bench W1 --submit rows                One descriptor a row
  scatter-ring bench W1 W4 --op write --json         For a program to read
  scatter-ring bench matrix --link local             Sizes, counts and geometries";

/// A word of the command line.
#[derive(Clone, Debug)]
enum Named {
    One(Workload),
    Matrix,
}

fn parse_workload(word: &str) -> Result<Named, String> {
    if word == "matrix" {
        return Ok(Named::Matrix);
    }
    Workload::named(word).map(Named::One).ok_or_else(|| "there are W1, W2, W3, W4, W5 and matrix".to_owned())
}

/// What is between the client and the table.
#[derive(Clone, Debug)]
enum Link {
    Shm,
    Local,
    /// Known, but not there yet.
    NotBuilt(String),
}

impl FromStr for Link {
    type Err = String;

    fn from_str(word: &str) -> Result<Link, String> {
        const PROFILES: [&str; 7] =
            ["reference", "roce-25g", "roce-100g", "ib-400g", "efa-100g", "tcp-loopback", "soft-roce"];
        match word {
            "shm" => Ok(Link::Shm),
            "local" => Ok(Link::Local),
            "tcp" | "verbs" => Ok(Link::NotBuilt(word.to_owned())),
            _ => match word.strip_prefix("sim:") {
                Some(profile) if PROFILES.contains(&profile) => Ok(Link::NotBuilt(word.to_owned())),
                Some(_) => Err(format!("the simulator's profiles are {}", PROFILES.join(", "))),
                None => Err("there are shm, local, tcp, verbs and sim:PROFILE".to_owned()),
            },
        }
    }
}

/// One workload in one direction.
struct Case {
    workload: Workload,
    op: Op,
}

/// Largest payload of the matrix: with the table, as much memory as a small machine has to spare.
const PAYLOAD_MAX: u64 = 512 << 20;

pub fn run(args: &Args) -> Result<(), Failure> {
    let link = match &args.link {
        Link::Shm => "shm",
        Link::Local => "local",
        Link::NotBuilt(link) => {
            return Err(Failure::Usage(format!("--link {link} is not built yet: there are shm and local")));
        }
    };
    if link == "local" && args.owner_memory == OwnerMemory::Private {
        return Err(Failure::Usage(
            "--owner-memory private is for --link shm: with local there is no owner process".into(),
        ));
    }
    let cases = cases(args);
    let mut place = if link == "shm" {
        Place::processes(args.table_bytes(), args.owner_memory)?
    } else {
        Place::here(args.table_bytes())?
    };
    let mut records = Vec::new();
    let progress = report::bar(cases.len() as u64, "measuring");
    for case in &cases {
        progress.set_message(case.workload.name.clone());
        let record = measure(&mut place, case, link, args)?;
        progress.inc(1);
        if args.json {
            let line = serde_json::to_string(&record)?;
            progress.suspend(|| writeln!(std::io::stdout(), "{line}"))?;
        } else {
            records.push(record);
        }
    }
    progress.finish_and_clear();
    if !args.json {
        writeln!(std::io::stdout(), "{}", report::records(&records).trim_fmt())?;
    }
    Ok(())
}

impl Args {
    fn table_bytes(&self) -> u64 {
        self.table_mib << 20
    }
}

fn cases(args: &Args) -> Vec<Case> {
    let names = ["W1", "W2", "W3", "W4", "W5"];
    let all: Vec<Named> = names.into_iter().filter_map(Workload::named).map(Named::One).collect();
    let mut cases = Vec::new();
    for named in if args.workloads.is_empty() { &all } else { &args.workloads } {
        match named {
            Named::One(workload) => {
                cases.push(Case { workload: workload.clone(), op: args.op.unwrap_or(Op::Read) });
            }
            Named::Matrix => cases.extend(matrix(args)),
        }
    }
    // What is read is what the table contains at first: writing changes that.
    cases.sort_by_key(|case| case.op == Op::Write);
    cases
}

fn matrix(args: &Args) -> Vec<Case> {
    let limit = PAYLOAD_MAX.min(args.table_bytes());
    let (fits, skipped): (Vec<_>, Vec<_>) = Workload::matrix().into_iter().partition(|w| w.bytes() <= limit);
    if !skipped.is_empty() {
        let mut sizes: Vec<&str> = skipped.iter().filter_map(|w| Some(w.name.rsplit_once('-')?.0)).collect();
        sizes.dedup();
        eprintln!("matrix: skipped, because they are more than {}: {}", report::size(limit), sizes.join(" "));
    }
    let both = [Op::Read, Op::Write];
    let ops = args.op.map_or(&both[..], |op| if op == Op::Read { &both[..1] } else { &both[1..] });
    let with = |op: &Op| fits.iter().map(|workload| Case { workload: workload.clone(), op: *op }).collect::<Vec<_>>();
    ops.iter().flat_map(with).collect()
}

fn measure(place: &mut Place, case: &Case, link: &str, args: &Args) -> Result<Record, Failure> {
    let Case { workload, op } = case;
    let how = How { op: *op, route: args.route, submit: args.submit };
    let mut transfer = Transfer::new(&mut place.client, &place.table, workload, args.seed)?;
    let compared = transfer.verify(how, || ())?;
    let mut runs = Vec::with_capacity(args.iterations as usize);
    for i in 0..args.iterations as usize {
        runs.push(transfer.run(i % transfer.lists(), how)?);
    }
    if *op == Op::Read {
        // What the clock saw is right as well.
        transfer.verify_read((runs.len() - 1) % transfer.lists(), 0)?;
    }
    let figures = Figures::of(&runs);
    Ok(Record {
        workload: workload.name.clone(),
        link: link.to_owned(),
        op: *op,
        route: args.route,
        submit: args.submit,
        seed: args.seed,
        iterations: args.iterations,
        chosen: figures.chosen,
        fragments: workload.fragments(),
        bytes: workload.bytes(),
        p50_us: figures.p50_us,
        p95_us: figures.p95_us,
        best_us: figures.best_us,
        useful_gbps: report::gbps(workload.bytes(), figures.p50_us),
        window_gbps: figures.window_us.map(|us| report::gbps(workload.bytes(), us)),
        queue_us: figures.queue_us,
        plan_us: figures.plan_us,
        command_us: figures.command_us,
        owner_queue_us: None,
        pack_us: figures.pack_us,
        window_us: figures.window_us,
        complete_us: None,
        predicted_direct_us: None,
        predicted_gather_us: None,
        doorbells: Some(figures.doorbells),
        operations: Some(figures.operations),
        signalled: Some(figures.signalled),
        staging_peak_bytes: None,
        verified: compared == workload.bytes() * transfer.lists() as u64,
        simulated: false,
        table_bytes: (args.table_bytes() != TABLE_BYTES).then(|| args.table_bytes()),
    })
}
