//! The `scatter-ring` command.

mod command;

use clap::{CommandFactory, Parser, Subcommand};
use command::Failure;
use std::process::ExitCode;

/// Move many small pieces of memory between processes and hosts, described in a shared-memory ring.
#[derive(Parser)]
#[command(version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    Serve(command::serve::Args),
    Read(command::read::Args),
    Demo(command::demo::Args),
    Bench(command::bench::Args),
    Explain(command::explain::Args),
    Regret(command::regret::Args),
    Key(command::key::Args),
    Devices(command::devices::Args),
    /// The process that has the table, of `demo` and `bench`.
    #[command(hide = true)]
    Owner(command::owner::Args),
    /// The process that asks for rows, of `demo`.
    #[command(hide = true)]
    DemoClient(command::demo_client::Args),
}

const EXAMPLES: &str = "\
Examples:
  scatter-ring demo                      See it work: three processes, a 1 GiB table, timings
  scatter-ring serve                     Run the engine for the programs of this user
  scatter-ring read --help               Rows of your own table, by number, into a file
  scatter-ring bench W1 --submit rows    Measure one workload
  scatter-ring explain W3                What the planner would do with it, and why

Exit status: 0 done, 1 failed, 2 asked for something that there is not";

fn main() -> ExitCode {
    let command = Cli::parse().command;
    if let Err(error) = scatter_ring::engine::guard_process() {
        eprintln!("scatter-ring: a file that is cut short while it is used will end this process: {error}");
    }
    let done = match command {
        None => Cli::command().print_help().map_err(Failure::from),
        Some(Command::Serve(args)) => command::serve::run(&args),
        Some(Command::Read(args)) => command::read::run(&args),
        Some(Command::Demo(args)) => command::demo::run(&args),
        Some(Command::Bench(args)) => command::bench::run(&args),
        Some(Command::Explain(args)) => command::explain::run(&args),
        Some(Command::Regret(args)) => command::regret::run(&args),
        Some(Command::Key(args)) => command::key::run(&args),
        Some(Command::Devices(args)) => command::devices::run(&args),
        Some(Command::Owner(args)) => command::owner::run(&args),
        Some(Command::DemoClient(args)) => command::demo_client::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure @ Failure::Logged) => failure.exit_code(),
        Err(failure) => {
            eprintln!("scatter-ring: {failure}");
            failure.exit_code()
        }
    }
}
