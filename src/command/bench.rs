//! `scatter-ring bench`: workloads, timed and verified.

use super::Failure;
use super::file;
use super::machine;
use super::owner::OwnerMemory;
use super::place::{Party, Peers, Place};
use super::report::{self, Figures, Record};
use super::share::{self, Sharing};
use super::simulate;
use super::transfer::{How, Op, RouteChoice, Submit, Transfer};
use super::workload::{TABLE_BYTES, WORKLOADS, Workload};
use scatter_ring::cost::Direction;
use scatter_ring::engine::PeerSettings;
use scatter_ring::sim::{Profile, profiles};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
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
    /// What is between client and table: shm (client, engine and owner are three processes), tcp (client, its engine, the
    /// owner's engine and the owner are four, and the engines reach each other over loopback), verbs (the same, by RDMA),
    /// local (all in one process), sim:PROFILE (nothing is moved, all times are simulated)
    ///
    /// Profiles: reference, roce-25g, roce-100g, ib-400g, efa-100g, tcp-loopback, soft-roce. With them the matrix has one
    /// geometry more, and mixes, and each iteration has another seed.
    #[arg(long, default_value = "shm")]
    link: Link,
    /// Where the owner process of `--link shm` has the table: in a memory file that the engine maps, or in memory of its
    /// own, which it packs into slots of shared memory
    #[arg(long, value_enum, default_value_t = OwnerMemory::Shared)]
    owner_memory: OwnerMemory,
    /// The kernel's congestion control of both engines of `--link tcp` [default: the system's]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// The RDMA devices of `--link verbs`: of the owner's engine, and of its client's [default: the first one, for both]
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    devices: Vec<String>,
    /// Settings of both engines of `--link tcp` and `verbs`, for experiments.
    #[arg(long, hide = true, value_name = "FILE")]
    peer_config: Option<PathBuf>,
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
    #[arg(long, value_name = "N", default_value_t = 24, conflicts_with = "Sharing")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    iterations: u32,
    #[command(flatten)]
    sharing: Sharing,
    /// Only one of so many pieces of W1 to W5, for machines that are slow: `W1/8`
    #[arg(long, hide = true, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    divide: u32,
    /// Another number gives other lists
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// One JSON object a line instead of a table
    #[arg(long)]
    json: bool,
    /// With `--link sim:PROFILE` and one workload: a picture of what is under way when
    #[arg(long, value_name = "FILE.svg")]
    timeline: Option<PathBuf>,
    /// A smaller table, for tests.
    #[arg(long, hide = true, default_value_t = TABLE_BYTES >> 20, value_parser = clap::value_parser!(u64).range(1..=1024))]
    table_mib: u64,
}

const EXAMPLES: &str = "\
Examples:
  scatter-ring bench                                 All five workloads through a daemon
  scatter-ring bench W1 --submit rows                One descriptor a row
  scatter-ring bench W1 W4 --op write --json         For a program to read
  scatter-ring bench matrix --link local             Sizes, counts and geometries
  scatter-ring bench --link tcp --congestion cubic   Two engines, over loopback
  scatter-ring bench W1 --clients 8 --seconds 5      What each of eight clients gets
  scatter-ring bench W1 --link sim:roce-100g         What a link would do that is not here";

/// A word of the command line.
#[derive(Clone, Debug)]
enum Named {
    One(Workload),
    Matrix,
}

impl Named {
    fn word(&self) -> &str {
        match self {
            Named::One(workload) => &workload.name,
            Named::Matrix => "matrix",
        }
    }
}

fn parse_workload(word: &str) -> Result<Named, String> {
    if word == "matrix" {
        return Ok(Named::Matrix);
    }
    Workload::named(word).map(Named::One).ok_or_else(|| "there are W1, W2, W3, W4, W5 and matrix".to_owned())
}

/// What is between the client and the table.
#[derive(Clone, Debug)]
pub(super) enum Link {
    Shm,
    Tcp,
    Verbs,
    Local,
    Sim(&'static Profile),
}

impl FromStr for Link {
    type Err = String;

    fn from_str(word: &str) -> Result<Link, String> {
        match word {
            "shm" => Ok(Link::Shm),
            "tcp" => Ok(Link::Tcp),
            "local" => Ok(Link::Local),
            "verbs" => Ok(Link::Verbs),
            _ => match word.strip_prefix("sim:") {
                Some(name) => profiles::named(name).map(Link::Sim).ok_or_else(|| {
                    let names: Vec<&str> = profiles::all().iter().map(|profile| profile.name).collect();
                    format!("the simulator's profiles are {}", names.join(", "))
                }),
                None => Err("there are shm, tcp, local, verbs and sim:PROFILE".to_owned()),
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
        Link::Tcp => "tcp",
        Link::Local => "local",
        Link::Verbs => "verbs",
        Link::Sim(_) => "sim",
    };
    args.check(link)?;
    if let Link::Sim(profile) = args.link {
        return run_simulated(profile, args);
    }
    let cases = cases(args);
    let place = match link {
        "tcp" => Place::peers(args.table_bytes(), args.peers("tcp"))?,
        "verbs" => Place::peers(args.table_bytes(), args.peers("verbs"))?,
        "shm" => Place::shm(args.table_bytes(), args.owner_memory)?,
        _ => Place::local(args.table_bytes())?,
    };
    if args.sharing.is_wanted() {
        return share(&place, &cases, link, args);
    }
    let mut party = place.party(0)?;
    let records = each(&cases, |case| &case.workload.name, args.json, |case| measure(&mut party, case, link, args))?;
    if !args.json {
        writeln!(std::io::stdout(), "{}", report::records(&records).trim_fmt())?;
    }
    Ok(())
}

fn share(place: &Place, cases: &[Case], link: &str, args: &Args) -> Result<(), Failure> {
    let measure = |Case { workload, op }: &Case| {
        let (how, seed, table_bytes) = (args.how(*op), args.seed, args.unusual_table());
        share::measure(place, &share::Job { workload, how, link, seed, table_bytes }, &args.sharing)
    };
    let records = each(cases, |case| &case.workload.name, args.json, measure)?;
    if !args.json {
        let mut out = std::io::stdout();
        writeln!(out, "{}\n", share::table(&records).trim_fmt())?;
        records.iter().try_for_each(|record| writeln!(out, "{}", share::sum(record)))?;
    }
    Ok(())
}

fn run_simulated(profile: &'static Profile, args: &Args) -> Result<(), Failure> {
    let how =
        simulate::How { profile, route: args.route, submit: args.submit, iterations: args.iterations, seed: args.seed };
    let words: Vec<&str> = args.workloads.iter().map(Named::word).collect();
    let words = if words.is_empty() { WORKLOADS.to_vec() } else { words };
    let cells: Vec<_> = words.into_iter().flat_map(|word| simulate::cells(word, args.op)).collect();
    if args.timeline.is_some() && cells.len() != 1 {
        return Err(Failure::Usage("--timeline is of one workload: name it".into()));
    }
    args.timeline.as_deref().map_or(Ok(()), file::try_to_write)?;
    let records = each(&cells, |cell| &cell.name, args.json, |cell| simulate::measure(cell, &how))?;
    if !args.json {
        let mut out = std::io::stdout();
        writeln!(out, "Simulated: no figure here was measured, and no byte was moved. Link: {}.", profile.name)?;
        writeln!(out, "{}", report::records(&records).trim_fmt())?;
    }
    match (&args.timeline, cells.first()) {
        (Some(path), Some(cell)) => simulate::draw(cell, &how, path),
        _ => Ok(()),
    }
}

/// Measures each, and shows how far that is. As JSON each record is written at once, else they are handed back.
fn each<T, R: Serialize>(
    cases: &[T],
    name: impl Fn(&T) -> &String,
    json: bool,
    mut measure: impl FnMut(&T) -> Result<R, Failure>,
) -> Result<Vec<R>, Failure> {
    let mut records = Vec::new();
    let progress = report::bar(cases.len() as u64, "measuring");
    for case in cases {
        progress.set_message(name(case).clone());
        let record = measure(case)?;
        progress.inc(1);
        if json {
            let line = serde_json::to_string(&record)?;
            progress.suspend(|| writeln!(std::io::stdout(), "{line}"))?;
        } else {
            records.push(record);
        }
    }
    progress.finish_and_clear();
    Ok(records)
}

impl Args {
    fn table_bytes(&self) -> u64 {
        self.table_mib << 20
    }

    /// Said only where figures cannot be compared with others.
    fn unusual_table(&self) -> Option<u64> {
        Some(self.table_bytes()).filter(|bytes| *bytes != TABLE_BYTES)
    }

    fn how(&self, op: Op) -> How {
        How { op, route: self.route, submit: self.submit }
    }

    fn peers(&self, transport: &'static str) -> Peers<'_> {
        let device = |at: usize| self.devices.get(at).or(self.devices.last()).map(String::as_str);
        Peers {
            transport,
            devices: [device(0), device(1)],
            congestion: self.congestion.as_deref(),
            config: self.peer_config.as_deref(),
            requesters: self.sharing.requesters(),
        }
    }

    /// What one option says of another.
    fn check(&self, link: &str) -> Result<(), Failure> {
        let usage = |text: String| Err(Failure::Usage(text));
        let is_private = self.owner_memory == OwnerMemory::Private;
        match link {
            "shm" => {}
            "tcp" | "verbs" if is_private => {
                let why = "memory that its owner packs is for clients of the owner's engine only";
                return usage(format!("--owner-memory private is for --link shm: {why}"));
            }
            _ if is_private => {
                return usage(format!(
                    "--owner-memory private is for --link shm: with {link} there is no owner process"
                ));
            }
            _ => {}
        }
        if self.timeline.is_some() && link != "sim" {
            return usage("--timeline is for --link sim:PROFILE".to_owned());
        }
        let is_peered = matches!(link, "tcp" | "verbs");
        if !is_peered && (self.congestion.is_some() || self.peer_config.is_some()) {
            return usage("--congestion and --peer-config are for --link tcp and verbs".to_owned());
        }
        if self.devices.len() > 2 {
            return usage("--devices: the owner's, and its client's".to_owned());
        }
        if link != "verbs" && !self.devices.is_empty() {
            return usage("--devices is for --link verbs".to_owned());
        }
        if self.sharing.is_wanted() {
            self.check_sharing(link)?;
        }
        // Else both engines would say it, in the middle of everything.
        let settings = PeerSettings { congestion: self.congestion.clone(), ..PeerSettings::default() };
        settings.check().map_err(|error| Failure::Usage(format!("--congestion: {error}")))
    }

    fn check_sharing(&self, link: &str) -> Result<(), Failure> {
        let usage = |text: &str| Err(Failure::Usage(text.to_owned()));
        if link == "sim" {
            return usage("--clients, --requesters and --seconds are not for --link sim:PROFILE");
        }
        if self.workloads.iter().any(|named| matches!(named, Named::Matrix)) {
            return usage("each of several clients has a buffer of its own: name workloads, and not the matrix");
        }
        self.sharing.check(matches!(link, "tcp" | "verbs"))
    }
}

fn cases(args: &Args) -> Vec<Case> {
    let all: Vec<Named> = WORKLOADS.into_iter().filter_map(Workload::named).map(Named::One).collect();
    let mut cases = Vec::new();
    for named in if args.workloads.is_empty() { &all } else { &args.workloads } {
        match named {
            Named::One(workload) => {
                let workload = workload.clone().divided(args.divide);
                cases.push(Case { workload, op: args.op.unwrap_or(Op::Read) });
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

fn measure(party: &mut Party, case: &Case, link: &str, args: &Args) -> Result<Record, Failure> {
    let Case { workload, op } = case;
    let how = args.how(*op);
    let mut transfer = Transfer::new(&mut party.client, &party.table, workload, args.seed)?;
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
    let direction = if *op == Op::Read { Direction::Read } else { Direction::Write };
    let predicted = machine::predicted(&workload.name, direction, link, args.seed);
    let (direct_ns, gather_ns) = (predicted.map(|d| d.direct_ns), predicted.and_then(|d| d.gather_ns));
    // On one host what the engine maps is never gathered, and what only its owner reaches always is.
    let (direct_ns, gather_ns) = match args.owner_memory {
        _ if matches!(link, "tcp" | "verbs") => (direct_ns, gather_ns),
        OwnerMemory::Shared => (direct_ns, None),
        OwnerMemory::Private => (None, gather_ns),
    };
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
        predicted_direct_us: direct_ns.map(|ns| ns / 1e3),
        predicted_gather_us: gather_ns.map(|ns| ns / 1e3),
        doorbells: Some(figures.doorbells),
        operations: Some(figures.operations),
        signalled: Some(figures.signalled),
        staging_peak_bytes: None,
        verified: compared == workload.bytes() * transfer.lists() as u64,
        simulated: false,
        table_bytes: args.unusual_table(),
    })
}
