//! `scatter-ring bench --clients N`: how much each of several clients gets while all of them ask.

use super::Failure;
use super::place::{CLIENTS_MAX, Party, Place};
use super::report;
use super::transfer::{How, Op, RouteChoice, Submit, Transfer};
use super::workload::Workload;
use comfy_table::Table;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Several clients at once. Each of the options alone asks for it.
#[derive(clap::Args)]
pub struct Sharing {
    /// So many clients at once, each with a thread, a buffer and lists of its own; says what each of them got
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(CLIENTS_MAX)))]
    clients: Option<u32>,
    /// With --link tcp or verbs: so many requesters' engines, each with so many clients
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8))]
    requesters: Option<u32>,
    /// How long several clients ask, a fraction if need be [default: 5]
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<f64>,
}

const SECONDS: f64 = 5.0;
const SECONDS_MAX: f64 = 3600.0;
/// All threads are there by then.
const START_AFTER: Duration = Duration::from_millis(100);

fn seconds(text: &str) -> Result<f64, String> {
    let parsed = text.parse().ok().filter(|seconds| (0.01..=SECONDS_MAX).contains(seconds));
    parsed.ok_or_else(|| format!("must be from 0.01 to {SECONDS_MAX}"))
}

impl Sharing {
    pub fn is_wanted(&self) -> bool {
        self.clients.is_some() || self.requesters.is_some() || self.seconds.is_some()
    }

    pub fn check(&self, has_peers: bool) -> Result<(), Failure> {
        let usage = |text: String| Err(Failure::Usage(text));
        if self.requesters.is_some() && !has_peers {
            return usage("--requesters is for --link tcp and verbs: elsewhere there is one engine".to_owned());
        }
        if self.all_clients() > CLIENTS_MAX {
            return usage(format!("{} clients of all requesters: at most {CLIENTS_MAX}", self.all_clients()));
        }
        Ok(())
    }

    pub fn requesters(&self) -> u32 {
        self.requesters.unwrap_or(1)
    }

    fn all_clients(&self) -> u32 {
        self.clients.unwrap_or(1) * self.requesters()
    }

    fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(SECONDS)
    }
}

/// What each client got; what `bench --clients --json` prints. The keys that `bench` has too mean the same.
#[derive(Debug, Serialize)]
pub struct Record {
    pub workload: String,
    pub link: String,
    pub op: Op,
    pub route: RouteChoice,
    pub submit: Submit,
    /// Of the first client's lists; the others' have the next ones.
    pub seed: u64,
    pub requesters: u32,
    /// Of all requesters.
    pub clients: u32,
    pub seconds: f64,
    pub fragments: u64,
    pub bytes: u64,
    /// Bytes of the batches that each client had back in this time.
    pub client_bytes: Vec<u64>,
    /// The client that got least beside the one that got most. Null if nobody got anything.
    pub least_over_most: Option<f64>,
    /// Of all clients together.
    pub useful_gbps: f64,
    pub verified: bool,
    /// Only where it is not the usual table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table_bytes: Option<u64>,
}

/// What all clients ask for.
pub struct Job<'a> {
    pub workload: &'a Workload,
    pub how: How,
    pub link: &'a str,
    pub seed: u64,
    pub table_bytes: Option<u64>,
}

/// Lets all clients ask for some time, and verifies every list of each of them before.
pub fn measure(place: &Place, job: &Job<'_>, sharing: &Sharing) -> Result<Record, Failure> {
    let Job { workload, how, .. } = *job;
    let mut parties = (0..sharing.all_clients()).map(|k| place.party(k)).collect::<Result<Vec<Party>, _>>()?;
    let mut transfers = Vec::with_capacity(parties.len());
    let (mut compared, mut expected) = (0, 0);
    for (party, seed) in parties.iter_mut().zip(job.seed..) {
        let mut transfer = Transfer::new(&mut party.client, &party.table, workload, seed)?;
        compared += transfer.verify(how, || ())?;
        expected += workload.bytes() * transfer.lists() as u64;
        transfers.push(transfer);
    }
    let seconds = sharing.seconds();
    let batches = ask_at_once(&mut transfers, how, Duration::from_secs_f64(seconds))?;
    let client_bytes: Vec<u64> = batches.iter().map(|batches| batches * workload.bytes()).collect();
    Ok(Record {
        workload: workload.name.clone(),
        link: job.link.to_owned(),
        op: how.op,
        route: how.route,
        submit: how.submit,
        seed: job.seed,
        requesters: sharing.requesters(),
        clients: sharing.all_clients(),
        seconds,
        fragments: workload.fragments(),
        bytes: workload.bytes(),
        least_over_most: least_over_most(&client_bytes),
        useful_gbps: report::gbps(client_bytes.iter().sum(), seconds * 1e6),
        client_bytes,
        verified: compared == expected,
        table_bytes: job.table_bytes,
    })
}

fn least_over_most(bytes: &[u64]) -> Option<f64> {
    let (least, most) = (bytes.iter().min()?, bytes.iter().max()?);
    (*most > 0).then(|| *least as f64 / *most as f64)
}

/// Says how many batches each of them had back in time.
fn ask_at_once(transfers: &mut [Transfer<'_>], how: How, time: Duration) -> Result<Vec<u64>, Failure> {
    let start = Instant::now() + START_AFTER;
    std::thread::scope(|scope| {
        let ask = |transfer| scope.spawn(move || ask(transfer, how, start, start + time));
        let threads: Vec<_> = transfers.iter_mut().map(ask).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|asked| asked.unwrap_or_else(|_| Err(Failure::run("the thread of a client has failed")))).collect()
    })
}

fn ask(transfer: &mut Transfer<'_>, how: How, start: Instant, end: Instant) -> Result<u64, Failure> {
    std::thread::sleep(start.saturating_duration_since(Instant::now()));
    let (mut batches, mut last) = (0, None);
    for k in (0..transfer.lists()).cycle() {
        if Instant::now() >= end {
            break;
        }
        transfer.run(k, how)?;
        last = Some(k);
        // All go on to the end, so that nobody has it easier then; what comes later does not count.
        batches += u64::from(Instant::now() < end);
    }
    match last {
        Some(last) if how.op == Op::Read => transfer.verify_read(last, 0).map(|_| batches),
        _ => Ok(batches),
    }
}

/// The same for people, a line for each client.
pub fn table(records: &[Record]) -> Table {
    let rows = records.iter().flat_map(|record| {
        let seconds = record.seconds;
        let of_client = move |(k, bytes): (usize, &u64)| {
            let batches = bytes / record.bytes;
            vec![
                record.workload.clone(),
                format!("{k}"),
                report::count(batches),
                report::size(*bytes),
                format!("{:.1}", report::gbps(*bytes, seconds * 1e6)),
                if record.verified { "yes" } else { "NO" }.to_owned(),
            ]
        };
        record.client_bytes.iter().enumerate().map(of_client)
    });
    report::table(&["workload", "client", "batches", "bytes", "Gbit/s", "verified"], 1, rows)
}

/// What the lines of a record come to.
pub fn sum(record: &Record) -> String {
    let ratio = record.least_over_most.map_or_else(|| "nobody got anything".to_owned(), |r| format!("{r:.3}"));
    format!("{}: {:.1} Gbit/s in all; least beside most: {ratio}", record.workload, record.useful_gbps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_of_the_extremes_and_nothing_is_not_a_number() {
        assert_eq!(least_over_most(&[40, 10, 20]), Some(0.25));
        assert_eq!(least_over_most(&[7]), Some(1.0));
        assert_eq!(least_over_most(&[0, 7]), Some(0.0));
        assert_eq!(least_over_most(&[0, 0]), None);
    }

    #[test]
    fn a_run_lasts_some_time_but_not_for_ever() {
        assert_eq!((seconds("0.2"), seconds("3600")), (Ok(0.2), Ok(3600.0)));
        for wrong in ["0", "-1", "nan", "inf", "3601", "1s", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
