//! `scatter-ring key`: a key for engines that meet each other.

use super::Failure;
use scatter_ring::engine::make_key_file;
use std::path::PathBuf;

/// Make a key for engines that connect to each other.
///
/// Writes a new random key into a new file that only this user can read. Give every engine a copy of it (`serve
/// --peer-keys`). Who has the key can read and write what the engines export, and can pretend to be any of them; what is
/// sent is not encrypted.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where to write it; a file that is there stays as it is
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  scatter-ring key /etc/scatter-ring.key
  scatter-ring serve --peer-keys /etc/scatter-ring.key --peer-listen 192.0.2.7:7711

To change keys, write the new one into every engine's file as its second line and start the engines anew, then make it the
first, then remove the old one.";

pub fn run(args: &Args) -> Result<(), Failure> {
    make_key_file(&args.file)?;
    println!("scatter-ring: a new key is in {}", args.file.display());
    Ok(())
}
