//! `scatter-ring explain`: what the planner would do with a workload, and why not something else.

mod record;
mod show;

use super::Failure;
use super::bench::Link;
use super::machine;
use super::report;
use super::transfer::{Op, RouteChoice};
use record::Record;
use scatter_ring::cost::{Candidate, Direction, Explanation, Route, Situation, Verdict, explain};
use std::io::Write;
use std::time::{Duration, Instant};

/// Show what the planner would do with a workload, and why not something else.
///
/// Nothing is moved. Every time is a prediction, from the figures of the link and of this machine's copies, or of the
/// profile.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// W1 to W5, or a cell of the matrix by its name, as `bench` gives it: 4096x512-fragmented
    #[arg(default_value = "W1")]
    workload: String,
    /// Between which hosts: shm, local (this machine, whose copies are measured first), or sim:PROFILE
    #[arg(long, default_value = "shm")]
    link: Link,
    /// Which way
    #[arg(long, value_enum, default_value_t = Op::Read)]
    op: Op,
    /// Also how long this route would take at best
    #[arg(long, value_enum, default_value_t = RouteChoice::Auto)]
    route: RouteChoice,
    /// All candidates, not only the best few of each route
    #[arg(long)]
    all: bool,
    /// Another number gives another list
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// One JSON object, with all candidates
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  scatter-ring explain                                       This machine's memory
  scatter-ring explain W3 --link sim:roce-100g               A link that is not here
  scatter-ring explain W4 --link sim:reference --route gather  What gathering would cost
  scatter-ring explain W1 --link sim:reference --all --json  For a program to read";

/// What is explained, and where its figures are from.
struct Subject<'a> {
    workload: &'a str,
    link: String,
    op: Op,
    /// The profile's sources, or how long this machine's copies were measured.
    about: About,
    explanation: Explanation,
    /// The best of the route that was asked for.
    forced: Option<Candidate>,
}

enum About {
    Profile(&'static str),
    Calibrated(Duration),
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let direction = if args.op == Op::Read { Direction::Read } else { Direction::Write };
    let cell = machine::cell(&args.workload, direction).ok_or_else(|| {
        Failure::Usage(format!("there is no workload {}: W1 to W5, or a name that `bench matrix` gives", args.workload))
    })?;
    let (link, about, situation) = match &args.link {
        Link::Sim(profile) => {
            (format!("sim:{}", profile.name), About::Profile(profile.about), profile.situation(direction))
        }
        Link::Shm => this_machine("shm", direction),
        Link::Local => this_machine("local", direction),
        Link::Tcp | Link::Verbs => {
            let (name, like) = match &args.link {
                Link::Tcp => ("tcp", "tcp-loopback"),
                _ => ("verbs", "roce-25g"),
            };
            let text = format!(
                "--link {name} cannot be predicted here: sim:{like} is like it, and bench --link {name} measures it"
            );
            return Err(Failure::Usage(text));
        }
    };
    let explanation = explain(&cell.job(args.seed).work(), &situation);
    let forced = forced(&explanation, args.route)?;
    let subject = Subject { workload: &args.workload, link, op: args.op, about, explanation, forced };
    let mut out = std::io::stdout();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&Record::of(&subject))?)?;
    } else {
        write!(out, "{}", show::text(&subject, args.all))?;
    }
    Ok(())
}

/// The best candidate of a route.
fn forced(explanation: &Explanation, route: RouteChoice) -> Result<Option<Candidate>, Failure> {
    let route = match route {
        RouteChoice::Auto => return Ok(None),
        RouteChoice::Direct => Route::Direct,
        RouteChoice::Gather => Route::Gather,
    };
    let possible = |c: &&Candidate| c.route == route && !matches!(c.verdict, Verdict::NoBudget(_));
    let of_route = explanation.candidates.iter().filter(possible);
    let best = of_route.min_by(|a, b| a.predicted.total_ns.total_cmp(&b.predicted.total_ns)).copied();
    best.map(Some).ok_or_else(|| Failure::run("the budget has no staging memory to gather in"))
}

/// Measures this machine's copies, and says how long that took.
fn this_machine(link: &str, direction: Direction) -> (String, About, Situation) {
    let start = Instant::now();
    let situation = machine::situation(link, direction);
    (link.to_owned(), About::Calibrated(start.elapsed()), situation)
}
