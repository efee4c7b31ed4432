//! What the subcommands do.

pub mod bench;
mod chart;
pub mod demo;
pub mod demo_client;
pub mod devices;
pub mod explain;
mod file;
pub mod key;
mod machine;
pub mod owner;
mod place;
mod process;
pub mod read;
pub mod regret;
mod report;
pub mod serve;
mod share;
mod simulate;
mod transfer;
mod workload;

use std::fmt;
use std::process::ExitCode;

/// Why a subcommand did not do what it was asked for, in a sentence.
#[derive(Debug)]
pub enum Failure {
    /// It was asked for something that there is not.
    Usage(String),
    /// It went wrong.
    Run(String),
    /// It went wrong, and the log says how: whoever reads standard error may be stuck, and must not be waited for.
    Logged,
}

impl Failure {
    fn run(text: impl Into<String>) -> Failure {
        Failure::Run(text.into())
    }

    /// 2 for wrong use, as clap does, else 1.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Usage(_) => 2,
            Failure::Run(_) | Failure::Logged => 1,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text) | Failure::Run(text) => f.write_str(text),
            Failure::Logged => f.write_str("see the log"),
        }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Run(error.to_string())
    }
}
