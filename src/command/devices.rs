//! `scatter-ring devices`: the RDMA devices of this machine.

use super::{Failure, report};
use scatter_ring::verbs::{Context, Device, GidEntry, Library, NoRdma, Port, VerbsError};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::Arc;

/// Show the RDMA devices of this machine.
///
/// One row a port, with what a device and a GID are chosen by: the state, what carries the operations, the MTU, and the
/// most that the device takes. A machine without RDMA is no failure: one line says what it lacks.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Print one JSON object per port, for a program to read; what is lacking then goes to standard error
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  scatter-ring devices           For people
  scatter-ring devices --json    For programs: one line a port, no line without a device

Exit status: 0 also if there is no device, 1 if one cannot be opened";

pub fn run(args: &Args) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    let (library, devices) = match found() {
        Ok(found) => found,
        Err(NoRdma::Failed(error)) => return Err(error.into()),
        Err(none) if args.json => {
            eprintln!("scatter-ring: {none}");
            return Ok(());
        }
        Err(none) => return Ok(writeln!(out, "{none}")?),
    };
    let opened: Vec<(Device, Result<Opened, VerbsError>)> = devices
        .into_iter()
        .map(|device| {
            let opened = Opened::of(&library, &device);
            (device, opened)
        })
        .collect();
    let ports = || opened.iter().filter_map(|(_, opened)| opened.as_ref().ok()).flat_map(Opened::ports);
    if args.json {
        for (context, port) in ports() {
            writeln!(out, "{}", record(context, port))?;
        }
    } else if ports().next().is_some() {
        writeln!(out, "{}", report::table(&HEADER, WORDS, ports().map(row)).trim_fmt())?;
    }
    let failed: Vec<String> = opened
        .iter()
        .filter_map(|(device, opened)| Some(format!("{}: {}", device.name, opened.as_ref().err()?)))
        .collect();
    if failed.is_empty() { Ok(()) } else { Err(Failure::run(failed.join("; "))) }
}

/// A device with its ports.
struct Opened {
    context: Arc<Context>,
    ports: Vec<NumberedPort>,
}

struct NumberedPort {
    number: u8,
    port: Port,
    gids: Vec<GidEntry>,
}

impl Opened {
    fn of(library: &Arc<Library>, device: &Device) -> Result<Opened, VerbsError> {
        let context = Context::open(library, &device.name)?;
        let read = |number| Ok(NumberedPort { number, port: context.port(number)?, gids: context.gids(number)? });
        let ports = (1..=context.limits().ports).map(read).collect::<Result<_, VerbsError>>()?;
        Ok(Opened { context, ports })
    }

    fn ports(&self) -> impl Iterator<Item = (&Context, &NumberedPort)> {
        self.ports.iter().map(|port| (&*self.context, port))
    }
}

fn found() -> Result<(Arc<Library>, Vec<Device>), NoRdma> {
    let library = Library::load()?;
    let devices = library.devices()?;
    Ok((library, devices))
}

const HEADER: [&str; 12] = [
    "device",
    "port",
    "transport",
    "link layer",
    "state",
    "GIDs",
    "MTU",
    "requests",
    "pieces",
    "pieces of a READ",
    "READs",
    "completions",
];

/// The columns before the figures.
const WORDS: usize = 6;

fn row((context, port): (&Context, &NumberedPort)) -> Vec<String> {
    let limits = context.limits();
    let gids: Vec<String> =
        port.gids.iter().map(|entry| format!("{} {} {}", entry.index, entry.gid, entry.kind)).collect();
    vec![
        context.name().to_owned(),
        port.number.to_string(),
        context.transport().to_string(),
        port.port.link_layer.to_string(),
        port.port.state.to_string(),
        gids.join("\n"),
        port.port.active_mtu.to_string(),
        limits.requests.to_string(),
        limits.pieces.to_string(),
        limits.read_pieces.to_string(),
        limits.reads_started.min(limits.reads_served).to_string(),
        limits.completions.to_string(),
    ]
}

fn record(context: &Context, port: &NumberedPort) -> Value {
    let limits = context.limits();
    let gid = |entry: &GidEntry| {
        json!({
            "index": entry.index,
            "gid": entry.gid.to_string(),
            "type": entry.kind.to_string(),
        })
    };
    json!({
        "device": context.name(),
        "port": port.number,
        "transport": context.transport().to_string(),
        "rdma_cm_only": context.needs_cm(),
        "link_layer": port.port.link_layer.to_string(),
        "state": port.port.state.to_string(),
        "active_mtu": port.port.active_mtu.bytes(),
        "max_mtu": port.port.max_mtu.bytes(),
        "lid": port.port.lid,
        "max_message_bytes": port.port.message_bytes,
        "gids": port.gids.iter().map(gid).collect::<Vec<Value>>(),
        "max_queue_pairs": limits.queue_pairs,
        "max_requests": limits.requests,
        "max_pieces": limits.pieces,
        "max_read_pieces": limits.read_pieces,
        "max_completions": limits.completions,
        "max_memory_regions": limits.memory_regions,
        "max_memory_region_bytes": limits.memory_region_bytes,
        "max_reads_served": limits.reads_served,
        "max_reads_started": limits.reads_started,
    })
}
