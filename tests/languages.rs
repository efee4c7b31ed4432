//! Producers in Rust, C, C++ and Python at one engine: at once, and killed.
//!
//! Each is a program of its own that moves single rows in batches and accounts for every completion: this test binary once
//! more, and `tests/languages/storm.*`. A language whose tools are not here is not run, which is said;
//! `SCATTER_RING_NEEDS_COMPILERS=1` makes that a failure for C and C++. Python is run where `SCATTER_RING_PYTHON` names an
//! interpreter that has the package, as `ci/python.sh` does.

mod serving;
mod storm;
mod support;

use rustix::process::Signal;
use scatter_ring::client::{Client, Region, Ticket};
use scatter_ring::region::Rights;
use serving::{Engine, Place};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use storm::{Footprint, Running, by_build, cargo_build, socket_of_this_client, wait_for_footprint};
use support::{Random, is_compiler, no_compiler, not_run};

const TABLE: &str = "storm-table";
const TABLE_ROWS: u64 = 4096;
const ROW_WORDS: u64 = 8;
const ROW_BYTES: u64 = 8 * ROW_WORDS;
const ROWS_MAX: u64 = 64;
const WINDOW: u64 = 32;

/// Tells the client of Rust how much to move: 0 for ever.
const DESCRIPTORS: &str = "SCATTER_RING_TEST_DESCRIPTORS";

type Storm = (&'static str, Box<dyn Fn(&Path, u64) -> Running>);

#[test]
fn producers_of_every_language_account_for_every_completion_at_one_engine_at_once() {
    let place = Place::new();
    let mut engine = Engine::start(&mut place.serve(""));
    let log = engine.log();
    let (_owner, _table) = exported(&place.socket());
    let each = by_build(2_500_000, 25_000) as u64;
    let storms = storms(&place);
    let mut running: Vec<_> = storms.iter().map(|(name, start)| (name, start(&place.socket(), each))).collect();
    let (mut batches, mut descriptors) = (0, 0);
    for (name, process) in &mut running {
        let done = process.line("done ");
        let counts: Vec<u64> = done.split(' ').map(|count| count.parse().unwrap()).collect();
        assert_eq!(counts[1..], [each, each * ROW_BYTES], "{name}: {done}");
        process.ended_well();
        batches += counts[0];
        descriptors += counts[1];
    }
    println!("{descriptors} descriptors in {batches} batches, from {} languages", running.len());
    // The engine counts as the producers do.
    let said = engine.stopped(log);
    let bytes = descriptors * ROW_BYTES;
    let expected = format!("descriptors={descriptors} bytes={bytes} batches=\"OK {batches}\" batches_cut=0");
    assert!(said.contains(&expected), "{expected} is not in: {said}");
}

#[test]
fn a_producer_of_any_language_that_is_killed_leaves_the_engine_and_the_others_as_they_were() {
    let place = Place::new();
    let engine = Running::engine(&place.socket(), &[]);
    let (mut bystander, table) = exported(&place.socket());
    let out = bystander.allocate(ROW_BYTES).unwrap();
    let mut random = Random(7);
    for (name, start) in storms(&place) {
        // The first one may leave what the engine keeps for the next.
        let mut before = None;
        for _ in 0..by_build(15, 5) {
            let mut victim = start(&place.socket(), 0);
            victim.line("begun");
            std::thread::sleep(Duration::from_micros(random.below(20_000)));
            victim.signal(Signal::KILL);
            assert_eq!(victim.killed_by(), Some(Signal::KILL.as_raw()), "{name} has ended by itself");
            match &before {
                Some(before) => drop(wait_for_footprint(engine.pid(), before)),
                None => before = Some(settled(engine.pid())),
            }
            let row = random.below(TABLE_ROWS);
            assert_eq!(bystander.read(&table, row * ROW_BYTES, &out, 0, ROW_BYTES).unwrap().bytes, ROW_BYTES);
            assert_eq!(words(&out, 0), row_words(row), "{name}");
        }
    }
}

#[test]
fn the_programs_of_the_readme_do_what_they_say() {
    let place = Place::new();
    let engine = Running::engine(&place.socket(), &[]);
    if let Some(mut compile) = compiler("CXX", "c++", "C++") {
        let (source, program) = (place.file("readme.cpp", &of_readme("cpp")), place.path("readme-cpp"));
        compile.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I"]).arg(root().join("ring-abi/include"));
        assert!(compile.arg(source).arg("-o").arg(&program).status().unwrap().success(), "{compile:?}");
        let said = Command::new(program).arg(place.socket()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout), "row seven\n");
    }
    if let Some(python) = python() {
        let program = place.file("readme.py", &of_readme("python"));
        assert!(Command::new(python).arg(program).status().unwrap().success());
    }
    drop(engine);
}

/// The one program of the README in a language. (Those in Rust are documentation tests.)
fn of_readme(language: &str) -> String {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let blocks: Vec<_> = readme.split(&format!("```{language}\n")).skip(1).collect();
    let [block] = blocks[..] else { panic!("{} programs in {language}", blocks.len()) };
    block.split("```").next().unwrap().to_owned()
}

/// What a process has when nothing of the last client is left.
fn settled(pid: u32) -> Footprint {
    let mut before = Footprint::of(pid);
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = Footprint::of(pid);
        if now.is_back_at(&before) {
            return now;
        }
        before = now;
    }
}

/// Those that can be run here.
fn storms(place: &Place) -> Vec<Storm> {
    let rust = "a_storm_of_rust";
    let in_rust = move |socket: &Path, descriptors: u64| {
        Running::client(rust, socket, &[(DESCRIPTORS, &descriptors.to_string())])
    };
    let mut storms: Vec<Storm> = vec![("Rust", Box::new(in_rust))];
    for (name, program) in [("C", c_program(place)), ("C++", cpp_program(place))] {
        if let Some(program) = program {
            storms
                .push((name, Box::new(move |socket, descriptors| with_arguments(&program, &[], socket, descriptors))));
        }
    }
    if let Some(python) = python() {
        let script = root().join("tests/languages/storm.py");
        let start = move |socket: &Path, descriptors| with_arguments(&python, &[&script], socket, descriptors);
        storms.push(("Python", Box::new(start)));
    }
    storms
}

/// An interpreter that has the package.
fn python() -> Option<PathBuf> {
    let python = std::env::var_os("SCATTER_RING_PYTHON").map(PathBuf::from);
    if python.is_none() {
        not_run("a program in Python: SCATTER_RING_PYTHON is not set (ci/python.sh sets it)");
    }
    python
}

fn with_arguments(program: &Path, before: &[&Path], socket: &Path, descriptors: u64) -> Running {
    Running::start(Command::new(program).args(before).arg(socket).arg(TABLE).arg(descriptors.to_string()))
}

/// With the library as programs of C have it.
fn c_program(place: &Place) -> Option<PathBuf> {
    let mut compile = compiler("CC", "cc", "C")?;
    let library = c_library(place);
    compile.args(["-std=c11", "-I"]).arg(root().join("capi/include"));
    compile.arg("-L").arg(&library).arg(format!("-Wl,-rpath,{}", library.display()));
    Some(compiled(compile, "storm.c", &["-lscatter_ring"], place.path("storm-c")))
}

/// With headers alone.
fn cpp_program(place: &Place) -> Option<PathBuf> {
    let mut compile = compiler("CXX", "c++", "C++")?;
    compile.arg("-std=c++17");
    Some(compiled(compile, "storm.cpp", &[], place.path("storm-cpp")))
}

fn compiler(variable: &str, name: &str, language: &str) -> Option<Command> {
    let name = std::env::var(variable).unwrap_or(name.to_owned());
    let is_there = is_compiler(&name);
    if !is_there {
        no_compiler(&format!("a producer in {language}: no compiler ({name}) here"));
    }
    is_there.then(|| Command::new(name))
}

fn compiled(mut compile: Command, source: &str, libraries: &[&str], program: PathBuf) -> PathBuf {
    compile.args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-I"]).arg(root().join("ring-abi/include"));
    compile.arg(root().join("tests/languages").join(source)).args(libraries).arg("-o").arg(&program);
    assert!(compile.status().unwrap().success(), "{compile:?}");
    program
}

/// A directory with the library as it is installed. Cargo does not build it for tests of this package.
fn c_library(place: &Place) -> PathBuf {
    let built = cargo_build(&["-p", "scatter-ring-c"]);
    for name in ["libscatter_ring.so", concat!("libscatter_ring.so.", env!("CARGO_PKG_VERSION_MAJOR"))] {
        std::os::unix::fs::symlink(built.join("libscatter_ring.so"), place.path(name)).unwrap();
    }
    place.directory.path().to_owned()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A table of rows that say which they are, and its owner.
fn exported(socket: &Path) -> (Client, Region) {
    let owner = Client::attach(socket).unwrap();
    let table = owner.allocate(TABLE_ROWS * ROW_BYTES).unwrap();
    for row in 0..TABLE_ROWS {
        table.write_at(row * ROW_BYTES, &row_words(row).map(u64::to_le_bytes).concat()).unwrap();
    }
    owner.export(&table, TABLE, Rights::READ).unwrap();
    (owner, table)
}

fn row_words(row: u64) -> [u64; ROW_WORDS as usize] {
    std::array::from_fn(|word| row * ROW_WORDS + word as u64)
}

fn words(region: &Region, offset: u64) -> [u64; ROW_WORDS as usize] {
    let mut bytes = [0; ROW_BYTES as usize];
    region.read_at(offset, &mut bytes).unwrap();
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|word| u64::from_le_bytes(words[word]))
}

#[test]
#[ignore = "a client process of other tests"]
fn a_storm_of_rust() {
    let Some(socket) = socket_of_this_client() else { return };
    let total: u64 = std::env::var(DESCRIPTORS).unwrap().parse().unwrap();
    let mut client = Client::attach(socket).unwrap();
    let table = client.open(TABLE, Rights::READ).unwrap();
    println!("begun");
    // Memory that a batch writes cannot be looked at, so each place has its own.
    let mut places: Vec<Slot> =
        (0..WINDOW).map(|_| Slot { out: client.allocate(ROWS_MAX * ROW_BYTES).unwrap(), under_way: None }).collect();
    let (mut submitted, mut completed, mut bytes, mut batches) = (0, 0, 0, 0);
    while total == 0 || submitted < total {
        let place = &mut places[(batches % WINDOW) as usize];
        let (rows, moved) = place.collect(&mut client);
        (completed, bytes) = (completed + rows, bytes + moved);
        let rows = 1 + batches * 37 % ROWS_MAX;
        let rows = if total > 0 { rows.min(total - submitted) } else { rows };
        let mut batch = client.batch();
        batch.user_data(batches);
        for i in 0..rows {
            batch.read(&table, row_of(batches, i) * ROW_BYTES, &place.out, i * ROW_BYTES, ROW_BYTES).unwrap();
        }
        place.under_way = Some((batch.submit().unwrap(), batches, rows));
        (batches, submitted) = (batches + 1, submitted + rows);
    }
    for place in &mut places {
        let (rows, moved) = place.collect(&mut client);
        (completed, bytes) = (completed + rows, bytes + moved);
    }
    println!("done {batches} {completed} {bytes}");
}

/// A place of the window.
struct Slot {
    out: Region,
    /// A batch, its number and its rows.
    under_way: Option<(Ticket, u64, u64)>,
}

impl Slot {
    /// Waits for the batch and verifies its rows. Says how many rows and bytes that were.
    fn collect(&mut self, client: &mut Client) -> (u64, u64) {
        let Some((ticket, batch, rows)) = self.under_way.take() else { return (0, 0) };
        let outcome = client.wait(&ticket).unwrap();
        assert_eq!((outcome.user_data, outcome.bytes, outcome.reusable), (batch, rows * ROW_BYTES, true));
        for i in 0..rows {
            assert_eq!(words(&self.out, i * ROW_BYTES), row_words(row_of(batch, i)), "row {i} of batch {batch}");
        }
        (rows, outcome.bytes)
    }
}

fn row_of(batch: u64, i: u64) -> u64 {
    (batch * 131 + i * 17) % TABLE_ROWS
}
