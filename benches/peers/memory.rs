//! What memory two engines take for a batch that is far larger than their slots. The engines are processes of their own, with
//! the settings that are to be seen here; the clients are in this one.

use super::Effort;
use super::place::{FILE_NAME, Place, settings, start};
use super::work::{How, ROW_BYTES, W5, Work};
use scatter_ring::client::Client;
use scatter_ring::engine::PeerSettings;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SLOT_BYTES: u32 = 16 << 10;
const SLOTS: u32 = 2;
const FRAGMENTS: u32 = 1 << 20;

/// Says that this process is an engine; the directory of its socket follows.
const ENGINE: &str = "--engine-at";

fn few_slots() -> PeerSettings {
    PeerSettings { slot_bytes: SLOT_BYTES, slots: SLOTS, owner_slots: SLOTS, ..settings() }
}

/// Where this process is to serve, if it was started for that.
pub fn directory_of_this_engine(arguments: &[String]) -> Option<&Path> {
    match arguments {
        [option, directory] if option == ENGINE => Some(Path::new(directory)),
        _ => None,
    }
}

/// An engine until nobody wants it any more.
pub fn serve(directory: &Path) {
    let engine = start(&few_slots());
    engine.listen(&directory.join("socket")).unwrap();
    println!("{}", engine.endpoint().unwrap());
    let _ = std::io::stdin().read(&mut [0]);
}

/// An engine in a process of its own, which ends when this is dropped.
struct EngineProcess {
    child: Child,
    endpoint: String,
    directory: tempfile::TempDir,
}

impl EngineProcess {
    fn start() -> EngineProcess {
        let parent = tempfile::tempdir().unwrap();
        // The engine makes it, for nobody else.
        let directory = parent.path().join("engine");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(ENGINE).arg(&directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut endpoint = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut endpoint).unwrap();
        EngineProcess { child, endpoint: endpoint.trim_end().to_owned(), directory: parent }
    }

    fn attach(&self) -> Client {
        Client::attach(self.directory.path().join("engine/socket")).unwrap()
    }

    /// Resident memory that no file is behind, in KiB. Cheap, so that looking does not slow down what is looked at.
    fn anonymous_kib(&self) -> u64 {
        let status = self.read("status");
        status.lines().find(|line| line.starts_with("RssAnon:")).map(kib).unwrap()
    }

    /// Resident memory but for the regions of clients, in KiB: with the slots and rings, which are memory files, and the
    /// program.
    fn own_kib(&self) -> u64 {
        let (mut own_kib, mut is_clients) = (0, false);
        for line in self.read("smaps").lines() {
            // A mapping's first line has its range, as 7f0000000000-7f0000001000, and its file.
            if line.split_whitespace().next().is_some_and(|word| word.contains('-')) {
                is_clients = line.contains("memfd:") && line.contains(FILE_NAME);
            } else if line.starts_with("Rss:") && !is_clients {
                own_kib += kib(line);
            }
        }
        own_kib
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap()
    }
}

/// The number in a line as "Rss:  16 kB".
fn kib(line: &str) -> u64 {
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Before the batch, at most while it is under way, and after it; beside what the settings allow.
pub fn memory(_: Effort) {
    let engines = [EngineProcess::start(), EngineProcess::start()];
    let mut place = Place::of_clients(engines[0].attach(), engines[1].attach(), &engines[1].endpoint);
    let gathering = How::forced_gather();
    let cases = [
        ("READ, its own choice", How::read()),
        ("READ, gather", gathering),
        ("WRITE, gather", How { writes: true, ..gathering }),
    ];
    for (name, how) in cases {
        // What is made once is there.
        drop(Work::new(&mut place, W5, how).verified(&mut place));
        let mut work = Work::new(&mut place, &[(FRAGMENTS, ROW_BYTES)], how);
        work.prepare(0);
        let [own_before, before] =
            [EngineProcess::own_kib, EngineProcess::anonymous_kib].map(|kib| engines.each_ref().map(kib));
        let ((time_us, route), most) = while_looking(&engines, || work.run(&mut place.client, 0));
        let [own_after, after] =
            [EngineProcess::own_kib, EngineProcess::anonymous_kib].map(|kib| engines.each_ref().map(kib));
        work.check(&mut place, 0);
        let mib = work.bytes() >> 20;
        let route = route.name().unwrap_or("?");
        println!("  {name}: 1,048,576 x 264 B ({mib} MiB), {:.0} ms, {route}, 1 run", time_us / 1e3);
        for (i, engine) in ["client's engine", "owner's engine"].into_iter().enumerate() {
            let more = most[i] as i64 - before[i] as i64;
            println!(
                "    {engine:<15}  RssAnon: {} KiB before, {} at most ({more:+}), {} after; \
                 all but clients' regions: {} KiB before, {} after",
                before[i], most[i], after[i], own_before[i], own_after[i],
            );
        }
    }
    let slots_kib = (SLOTS * SLOT_BYTES) >> 10;
    println!(
        "  slots of a connection: {slots_kib} KiB for each direction at either engine, and {slots_kib} KiB to pack in at each"
    );
}

/// With the most RssAnon of each that was seen meanwhile, in KiB.
fn while_looking<T>(engines: &[EngineProcess; 2], run: impl FnOnce() -> T) -> (T, [u64; 2]) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut most = [0; 2];
            while !is_over.load(Ordering::Relaxed) {
                let now = engines.each_ref().map(EngineProcess::anonymous_kib);
                most = [most[0].max(now[0]), most[1].max(now[1])];
                std::thread::sleep(Duration::from_millis(5));
            }
            most
        });
        let ran = run();
        is_over.store(true, Ordering::Relaxed);
        (ran, looking.join().unwrap())
    })
}
