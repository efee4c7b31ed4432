//! The producer in C++: its programs under `tests/cpp`, its examples, and what becomes of the engine when it is killed.
//!
//! They are compiled here, by `CXX`, or by g++ and clang++ as far as they are there. Without a compiler they are not run;
//! `SCATTER_RING_NEEDS_COMPILERS=1` makes that a failure.

mod storm;
mod support;

use ring_abi::Status;
use rustix::process::Signal;
use scatter_ring::client::{Client, Region};
use scatter_ring::region::Rights;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use storm::{Footprint, Running, by_build, private_directory, wait_for_footprint};
use support::{Random, is_compiler, no_compiler};

const WARNINGS: &[&str] = &["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror"];
const SANITIZED: &[&str] = &["-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

#[test]
fn every_header_compiles_alone_in_each_standard_with_every_warning_an_error() {
    let includes = root().join("ring-abi/include");
    let parts = std::fs::read_dir(includes.join("scatter_ring")).unwrap();
    let mut headers: Vec<PathBuf> = parts.map(|entry| entry.unwrap().path()).collect();
    headers.push(includes.join("scatter_ring.hpp"));
    assert!(headers.len() > 8, "{headers:?}");
    for compiler in compilers() {
        for header in &headers {
            // With the whole behind it: nothing is defined twice, nor left for the other one.
            let program = format!("#include {header:?}\n#include \"scatter_ring.hpp\"\nint main() {{}}\n");
            let place = private_directory();
            let source = place.path().join("alone.cpp");
            std::fs::write(&source, program).unwrap();
            let variants: &[&[&str]] = match header.ends_with("scatter_ring.hpp") {
                true => &[&["-std=c++17"], &["-std=c++20"], &["-std=c++17", "-fno-exceptions", "-fno-rtti"]],
                false => &[&["-std=c++17"]],
            };
            for flags in variants {
                compile(&compiler, &source, &place.path().join("none"), &[*flags, &["-fsyntax-only"]].concat());
            }
        }
    }
}

/// Compiled only: its library does not run on every kernel.
#[test]
fn a_program_with_the_thread_sanitizer_compiles_without_a_warning() {
    let program = "#include \"scatter_ring.hpp\"\nint main(int, char **argv) {
        auto client = scatter_ring::Client::attach(argv[1]);
        const auto ticket = client.batch().submit();
        client.wait(ticket);
        return client.arm();\n}\n";
    for compiler in compilers() {
        let place = private_directory();
        let source = place.path().join("threads.cpp");
        std::fs::write(&source, program).unwrap();
        let flags = ["-std=c++17", "-O1", "-fsanitize=thread", "-c"];
        compile(&compiler, &source, &place.path().join("threads.o"), &flags);
    }
}

#[test]
fn two_parts_of_a_program_may_both_include_it() {
    for compiler in compilers() {
        let place = private_directory();
        let include = "#include \"scatter_ring.hpp\"\nscatter_ring::Region allocate(scatter_ring::Client &client);
            extern const void *of_other[2]";
        let tries = "scatter_ring::Client none;
            try { allocate(none); } catch (const scatter_ring::Exception &) { return same; }";
        // An inline function must mean the same constant in both.
        let constants = "{ &scatter_ring::forever, &scatter_ring::detail::sleep_max }";
        let same =
            format!("const void *of_main[2] = {constants}; int same = std::memcmp(of_main, of_other, sizeof of_main);");
        let other_part = format!(
            "const void *of_other[2] = {constants};
            scatter_ring::Region allocate(scatter_ring::Client &client) {{ return client.allocate(1); }}\n"
        );
        let (main, other) = (place.path().join("main.cpp"), place.path().join("other.cpp"));
        std::fs::write(&main, format!("{include};\nint main() {{ {same} {tries} return 1; }}\n")).unwrap();
        std::fs::write(&other, format!("{include};\n{other_part}")).unwrap();
        let program = place.path().join("program");
        compile(&compiler, &main, &program, &["-std=c++17", other.to_str().unwrap()]);
        assert!(run(&mut Command::new(program)).status.success());
    }
}

#[test]
fn every_operation_moves_what_a_naive_loop_moves_and_every_misuse_says_what_it_is() {
    for compiler in compilers() {
        let place = private_directory();
        let (_engine, socket) = serve(place.path(), &[]);
        for flags in [["-std=c++17", "-O2"], ["-std=c++20", "-O0"]] {
            let program = test_program(&compiler, place.path(), "functional", &flags);
            claims_hold(Command::new(program).arg(&socket), 24);
        }
        let program = test_program(&compiler, place.path(), "no_exceptions", &["-std=c++17", "-O2", "-fno-exceptions"]);
        claims_hold(Command::new(program).arg(&socket), 1);
    }
}

#[test]
fn the_sanitizers_find_nothing_while_every_operation_is_carried_out() {
    let Some(compiler) = sanitizing_compiler() else { return };
    let place = private_directory();
    let (_engine, socket) = serve(place.path(), &[]);
    let program = test_program(&compiler, place.path(), "functional", &[&["-std=c++17"], SANITIZED].concat());
    claims_hold(Command::new(program).arg(&socket), 24);
}

#[test]
fn an_engine_that_lies_is_an_error_and_the_sanitizers_find_nothing() {
    let Some(compiler) = sanitizing_compiler() else { return };
    let place = private_directory();
    let program = test_program(&compiler, place.path(), "hostile", &[&["-std=c++17"], SANITIZED].concat());
    claims_hold(&mut Command::new(program), 23);
}

/// The engine spins for a second before it sleeps, and the program never lets it.
#[test]
fn submitting_and_reaping_make_no_system_call_while_the_engine_is_awake() {
    for compiler in compilers().into_iter().take(1) {
        let place = private_directory();
        let (awake, socket) = serve(place.path(), &["--spin-us", "1000000", "--workers", "0"]);
        let program = test_program(&compiler, place.path(), "seccomp", &["-std=c++17", "-O2"]);
        let descriptors = by_build(1_000_000, 200_000).to_string();
        let run = |what: &str, socket: &Path| {
            let status = Command::new(&program).arg(socket).args([what, &descriptors]).status().unwrap();
            (status.code(), status.signal())
        };
        for what in ["raw", "batch"] {
            // A client whose engine got no processor for half a second looks for it, which is a call: such a run says nothing.
            let ended = (0..5).map(|_| run(what, &socket)).find(|ended| ended.1.is_none());
            assert_eq!(ended, Some((Some(0), None)), "{what}");
        }
        // Without these two the ones above would pass with a filter that filters nothing.
        assert_eq!(run("control", &socket), (None, Some(libc::SIGSYS)), "one system call");
        drop(awake);
        let sleeping = private_directory();
        let (_sleeping, socket) = serve(sleeping.path(), &["--spin-us", "0"]);
        assert_eq!(run("asleep", &socket), (None, Some(libc::SIGSYS)), "an engine that has to be woken");
    }
}

#[test]
fn a_producer_that_is_killed_at_any_moment_leaves_the_engine_and_others_as_they_were() {
    for compiler in compilers().into_iter().take(1) {
        let place = private_directory();
        let (engine, socket) = serve(place.path(), &["--workers", "1"]);
        let program = test_program(&compiler, place.path(), "killed", &["-std=c++17", "-O2"]);
        let mut other = Bystander::attach(&socket);
        other.work(1);
        let before = Footprint::of(engine.pid());
        let mut random = Random(30);
        for round in 0..30 {
            let mut producer = Running::start(Command::new(&program).arg(&socket));
            producer.line("working");
            let export = format!("killed-{}", producer.pid());
            other.client.open(&export, Rights::READ).expect("it has exported its table");
            std::thread::sleep(Duration::from_micros(random.below(10_000)));
            producer.kill();
            other.work(round);
            wait_for_footprint(engine.pid(), &before);
            let error = other.client.open(&export, Rights::READ).expect_err("nobody exports it any more");
            assert_eq!(error.status(), Status::NAME_UNKNOWN);
        }
    }
}

#[test]
fn a_producer_whose_engine_is_killed_is_told_by_every_call() {
    for compiler in compilers().into_iter().take(1) {
        let place = private_directory();
        let program = test_program(&compiler, place.path(), "killed", &["-std=c++17", "-O2"]);
        let (engine, socket) = serve(place.path(), &[]);
        let mut producer = Running::start(Command::new(&program).arg(&socket).arg("engine"));
        producer.line("working");
        std::thread::sleep(Duration::from_millis(20));
        engine.signal(Signal::KILL);
        producer.line("engine lost (ENGINE_LOST)");
        producer.ended_well();
    }
}

#[test]
fn a_table_of_another_engine_is_read_until_that_one_is_killed_and_the_error_names_it() {
    for compiler in compilers().into_iter().take(1) {
        let place = private_directory();
        let program = test_program(&compiler, place.path(), "peers", &["-std=c++17", "-O1"]);
        let (table, config) = (place.path().join("rows.bin"), place.path().join("config.toml"));
        let bytes: Vec<u8> = (0..64 << 10).map(|i| (i % 251) as u8).collect();
        std::fs::write(&table, bytes).unwrap();
        std::fs::write(&config, "[peers]\n").unwrap();
        let (_engine, socket) = serve(place.path(), &["--config", config.to_str().unwrap()]);
        let elsewhere = private_directory();
        let table = format!("rows={}", table.display());
        let (mut owner, _) = serve(elsewhere.path(), &["--table", &table, "--peer-listen", "127.0.0.1:0"]);
        let endpoint = owner.line("peers connect to ");
        let mut producer = Running::start(Command::new(&program).arg(&socket).arg(endpoint));
        producer.line("reading");
        owner.kill();
        producer.line("the region is gone");
        producer.ended_well();
    }
}

#[test]
fn every_example_verifies_what_it_has_moved_and_says_so_if_there_is_no_engine() {
    let said = [
        ("read_rows", "4 rows, 1056 bytes, verified"),
        ("write_tiles", "64 pieces, 8192 bytes, verified"),
        ("event_loop", "100 batches, 3200 rows, heartbeat went on"),
    ];
    for compiler in compilers().into_iter().take(1) {
        let place = private_directory();
        let (_engine, socket) = serve(place.path(), &[]);
        for (name, expected) in said {
            let program = place.path().join(name);
            let source = root().join("examples/cpp").join(format!("{name}.cpp"));
            compile(&compiler, &source, &program, &["-std=c++17", "-O1"]);
            let output = run(Command::new(&program).arg(&socket));
            assert_eq!(text(&output.stdout).trim_end(), expected, "{name}: {}", text(&output.stderr));
            let alone = run(Command::new(&program).arg("/nowhere/socket"));
            assert!(
                !alone.status.success() && text(&alone.stderr).contains("is `scatter-ring serve` running"),
                "{name}"
            );
        }
    }
}

#[test]
fn the_rate_of_the_raw_producer_can_be_measured() {
    for compiler in compilers().into_iter().take(1) {
        let place = private_directory();
        let (_engine, socket) = serve(place.path(), &[]);
        let program = place.path().join("rate");
        compile(&compiler, &root().join("benches/producers/rate.cpp"), &program, &["-std=c++17", "-O2"]);
        let output = run(Command::new(&program).arg(&socket).arg("10000"));
        assert!(text(&output.stdout).starts_with("cpp ns_per_descriptor "), "{}", text(&output.stderr));
    }
}

/// A client that goes on whatever becomes of another one.
struct Bystander {
    client: Client,
    from: Region,
    to: Region,
}

impl Bystander {
    fn attach(socket: &Path) -> Bystander {
        let client = Client::attach(socket).unwrap();
        let (from, to) = (client.allocate(4096).unwrap(), client.allocate(4096).unwrap());
        Bystander { client, from, to }
    }

    fn work(&mut self, byte: u8) {
        self.from.write_at(0, &[byte; 4096]).unwrap();
        self.client.read(&self.from, 0, &self.to, 0, 4096).unwrap();
        let mut got = [!byte; 4096];
        self.to.read_at(0, &mut got).unwrap();
        assert_eq!(got, [byte; 4096]);
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn serve(place: &Path, args: &[&str]) -> (Running, PathBuf) {
    let socket = place.join("socket");
    (Running::engine(&socket, args), socket)
}

/// What there is, each of which has to compile everything. None: said loudly.
fn compilers() -> Vec<String> {
    let named = std::env::var("CXX").ok();
    let known = || ["g++", "clang++"].map(str::to_owned).to_vec();
    let asked = named.map_or_else(known, |compiler| vec![compiler]);
    let found: Vec<String> = asked.into_iter().filter(|compiler| is_compiler(compiler)).collect();
    if found.is_empty() {
        no_compiler("no C++ compiler (CXX, g++ or clang++)");
    }
    found
}

/// One with the libraries of both sanitizers.
fn sanitizing_compiler() -> Option<String> {
    let place = private_directory();
    let source = place.path().join("probe.cpp");
    std::fs::write(&source, "int main() {}\n").unwrap();
    let found = compilers().into_iter().find(|compiler| {
        let mut command = Command::new(compiler);
        command.args(SANITIZED).arg("-o").arg(place.path().join("probe")).arg(&source);
        command.output().is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        no_compiler("no C++ compiler with AddressSanitizer and UndefinedBehaviorSanitizer");
    }
    found
}

fn test_program(compiler: &str, place: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let program = place.join(name);
    compile(compiler, &root().join("tests/cpp").join(format!("{name}.cpp")), &program, flags);
    program
}

fn compile(compiler: &str, source: &Path, program: &Path, flags: &[&str]) {
    let mut command = Command::new(compiler);
    command.args(WARNINGS).args(flags).arg("-pthread").arg("-I").arg(root().join("ring-abi/include"));
    let output = run(command.arg(source).arg("-o").arg(program));
    assert!(output.status.success(), "{compiler} {flags:?} {}: {}", source.display(), text(&output.stderr));
}

/// Runs a program of claims, and asserts that so many hold: fewer would be claims that nobody has checked.
fn claims_hold(command: &mut Command, least: usize) {
    let output = run(command);
    let (said, complaint) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}: {said}{complaint}", output.status);
    let held = said.lines().filter(|line| line.starts_with("holds: ")).count();
    assert!(held >= least, "{held} of {least} claims: {said}");
}

fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
