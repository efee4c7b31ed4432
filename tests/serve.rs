//! `scatter-ring serve` as operators and service managers use it.

mod support;

use ring_abi::{Descriptor, Kind, Opcode, Status};
use scatter_ring::attach::Socket;
use scatter_ring::client::{self, Client};
use scatter_ring::region::Rights;
use std::io::{BufRead, BufReader, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::time::Duration;
use support::RawClient;
use support::hostile::{NOP, eventually};

/// A directory for a socket and what else a test has.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { directory: tempfile::tempdir().unwrap() };
        set_mode(place.directory.path(), 0o700);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// `serve` at the socket of this place, with a configuration file if it is to say anything.
    fn serve(&self, config: &str) -> Command {
        let mut command = serve();
        command.arg("--socket").arg(self.socket());
        if !config.is_empty() {
            command.arg("--config").arg(self.file("config.toml", config));
        }
        command
    }
}

fn serve() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scatter-ring"));
    command.arg("serve").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for variable in ["RUST_LOG", "NOTIFY_SOCKET", "JOURNAL_STREAM"] {
        command.env_remove(variable);
    }
    // Who runs the tests may ignore hang-ups, and a child inherits that.
    // SAFETY: the call may be made between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            Ok(())
        });
    }
    command
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs a command that ends by itself.
fn output(command: &mut Command) -> Output {
    let mut engine = Engine::spawn(command);
    let status = engine.ended();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    engine.0.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    engine.0.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    Output { status, stdout, stderr }
}

/// Asserts that a command is refused as wrong use, with a text that has all of this.
fn refused(command: &mut Command, parts: &[&str]) {
    let output = output(command);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(output.stdout.is_empty());
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

/// A process that is killed at the end of a test.
struct Engine(Child);

impl Engine {
    fn spawn(command: &mut Command) -> Engine {
        Engine(command.spawn().unwrap())
    }

    /// Returns when it serves.
    fn start(command: &mut Command) -> Engine {
        let mut engine = Engine::spawn(command);
        let mut line = String::new();
        BufReader::new(engine.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        if !line.contains("serving at") {
            panic!("it does not serve: {}", engine.log().rest());
        }
        engine
    }

    fn log(&mut self) -> Log {
        Log(BufReader::new(self.0.stderr.take().unwrap()))
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.0.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn ended(&mut self) -> ExitStatus {
        eventually("the process ends", || self.0.try_wait().unwrap().is_some());
        self.0.wait().unwrap()
    }

    /// Stops it in good order and gives the rest of its log.
    fn stopped(&mut self, mut log: Log) -> String {
        self.signal(rustix::process::Signal::TERM);
        let rest = log.rest();
        assert_eq!(self.ended().code(), Some(0), "{rest}");
        rest
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Log(BufReader<ChildStderr>);

impl Log {
    /// The next line with this in it. The process's end is the limit.
    fn until(&mut self, part: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "no {part:?} in: {all}");
            if line.contains(part) {
                return line;
            }
            all += &line;
        }
    }

    fn rest(&mut self) -> String {
        let mut all = String::new();
        self.0.read_to_string(&mut all).unwrap();
        all
    }
}

fn connect(path: &Path) -> Socket {
    let address = rustix::net::SocketAddrUnix::new(path).unwrap();
    let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, rustix::net::SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    // An engine that is stuck fails a test, and does not hang it.
    let limit = Some(Duration::from_secs(10));
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, limit).unwrap();
    Socket::new(socket)
}

fn attach(path: &Path) -> RawClient {
    RawClient::attach(connect(path), 64, 64, 0)
}

const HALF: Descriptor = Descriptor { opcode: Opcode::NOP.0, ..Descriptor::ZERO };

/// Begins a batch whose LAST does not come yet, and returns when the engine has taken it.
fn begin(client: &mut RawClient) {
    client.submit(&HALF);
    eventually("the engine takes the slot", || client.areas.sq.free().unwrap() == 64);
}

#[test]
fn settings_come_from_the_file_and_options_win() {
    let place = Place::new();
    let table = place.file("users.bin", "rows");
    let config = format!(
        "workers = 3\nspin_us = 7\nstop_within_s = 9\nusers = [\"root\", 1234, \"nobody\"]\ntrust = \"sealed\"\n\
         [limits]\nsessions = 5\nregion_bytes = \"4 GiB\"\nheld_bytes = 4096\n[tables]\n\"the users\" = {table:?}\n"
    );
    let checked = |more: &[&str]| {
        let output = output(place.serve(&config).arg("--check-config").args(more));
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let said: toml::Table = checked(&[]).parse().unwrap();
    let nobody = said["users"][2].as_integer().unwrap();
    assert!(nobody > 1000, "{nobody}");
    let expected = format!(
        "socket = {:?}\nworkers = 3\nspin_us = 7\nstop_within_s = 9\nusers = [0, 1234, {nobody}]\ntrust = \"sealed\"\n\
         read_ahead = true\n[limits]\nsessions = 5\nsessions_per_user = 5\nring_slots = 65536\nregions = 4096\n\
         region_bytes = {}\nbatches = 1024\nheld_bytes = 4096\n[tables]\n\"the users\" = {table:?}\n",
        place.socket(),
        4u64 << 30
    );
    assert_eq!(said, expected.parse().unwrap());
    assert!(!place.socket().exists(), "it has only checked");

    let other = place.file("other.bin", "other rows");
    let option = format!("the users={}", other.display());
    let said: toml::Table =
        checked(&["--workers", "1", "--spin-us", "0", "--clients", "2", "--table", &option]).parse().unwrap();
    assert_eq!((said["workers"].as_integer(), said["spin_us"].as_integer()), (Some(1), Some(0)));
    assert_eq!(said["limits"]["sessions_per_user"].as_integer(), Some(2));
    assert_eq!(said["tables"]["the users"].as_str(), other.to_str());

    // What it prints is a file that says the same.
    let again = place.file("again.toml", &toml::to_string(&said).unwrap());
    let output = output(serve().arg("--check-config").arg("--config").arg(again));
    assert_eq!(text(&output.stdout).parse::<toml::Table>().unwrap(), said, "{}", text(&output.stderr));
}

#[test]
fn wrong_settings_are_refused_with_file_line_and_key() {
    let place = Place::new();
    place.file("empty", "");
    for (config, parts) in [
        ("\nworkers = 257\n", &["config.toml:2: workers = 257: must be from 0 to 256"][..]),
        ("workers = -1", &[":1: workers = -1: must be from 0 to 256"]),
        ("spin_us = 1_000_001", &[":1: spin_us = 1_000_001: must be from 0 to 1000000"]),
        ("stop_within_s = 3601", &["stop_within_s = 3601: must be from 0 to 3600"]),
        ("workers = \"2\"", &["config.toml: ", "line 1", "workers = \"2\"", "invalid type"]),
        ("workers = 1\nworker = 2", &["line 2", "unknown field `worker`", "`workers`"]),
        ("[limits]\nsession = 2", &["line 2", "unknown field `session`", "`sessions_per_user`"]),
        ("[limits]\nsessions = 0", &[":2: limits.sessions = 0: must be from 1 to 65536"]),
        ("[limits]\nsessions = 65537", &[":2: limits.sessions = 65537: must be from 1 to 65536"]),
        ("[limits]\nsessions_per_user = 0", &["limits.sessions_per_user = 0"]),
        ("[limits]\nring_slots = 3", &["limits.ring_slots = 3: must be from 4 to 1048576"]),
        ("[limits]\nregions = 4097", &["limits.regions = 4097: must be from 1 to 4096"]),
        ("[limits]\nbatches = 1025", &["limits.batches = 1025: must be from 1 to 1024"]),
        ("[limits]\n\nregion_bytes = \"4 potatoes\"", &[":3: limits.region_bytes = \"4 potatoes\": ", "\"4 GiB\""]),
        ("[limits]\nheld_bytes = -1", &[":2: limits.held_bytes = -1: must be from 1 to"]),
        ("[limits]\nheld_bytes = \"0 KiB\"", &["limits.held_bytes = \"0 KiB\": must be from 1 to"]),
        ("users = [1, \"no such one\"]", &[":1: users = \"no such one\": there is no user of this name"]),
        ("users = [-1]", &["line 1", "a user must be a name or a number"]),
        ("trust = \"blind\"", &["line 1", "unknown variant `blind`", "`sealed` or `same-uid`"]),
        ("[tables]\nrows = \"/no/such/file\"", &[":2: tables.rows = \"/no/such/file\": No such file"]),
        ("[tables]\nrows = \"/\"", &[":2: tables.rows = \"/\": is not a file"]),
        ("[tables]\n\"\" = \"/etc/passwd\"", &["a table's name has 1 to 168 bytes"]),
        ("workers = ", &["line 1"]),
    ] {
        refused(place.serve(config).arg("--check-config"), parts);
        refused(&mut place.serve(config), parts);
    }
    let empty = format!("rows={}", place.path("empty").display());
    refused(place.serve("").args(["--table", &empty]), &["--table rows=", "is empty"]);
    refused(place.serve("").args(["--table", "rows=/etc/passwd", "--table", "rows=/etc/group"]), &["given before"]);
    refused(place.serve("").args(["--table", "rows"]), &["must be NAME=FILE"]);
    refused(place.serve("").args(["--log", "poem"]), &["text, json"]);
    refused(place.serve("").env("RUST_LOG", "a=b=c"), &["RUST_LOG=a=b=c"]);
    refused(place.serve("").arg("--config").arg(place.path("none.toml")), &["none.toml: No such file"]);
}

#[test]
fn a_socket_that_could_not_be_listened_on_fails_the_check() {
    let place = Place::new();
    let inner = place.path("inner");
    let check = |config: &str| {
        let mut command = serve();
        command.arg("--check-config").arg("--socket").arg(inner.join("socket"));
        command.arg("--config").arg(place.file("config.toml", config));
        command
    };
    assert!(output(&mut check("")).status.success());
    assert!(!inner.exists(), "a check makes nothing");
    std::fs::create_dir(&inner).unwrap();
    for (mode, config, is_right) in [
        (0o700, "", true),
        (0o700, "users = [1234]", true),
        (0o750, "users = [1234]", true),
        (0o750, "", false),
        (0o755, "users = [1234]", false),
        (0o770, "users = [1234]", false),
    ] {
        set_mode(&inner, mode);
        if is_right {
            assert!(output(&mut check(config)).status.success(), "{mode:o} {config}");
        } else {
            refused(&mut check(config), &["is open to other users", "0700"]);
        }
    }
    set_mode(&inner, 0o700);
    let mut engine = Engine::start(serve().arg("--socket").arg(inner.join("socket")));
    assert!(output(&mut check("")).status.success(), "an engine that serves there is no reason against it");
    let log = engine.log();
    engine.stopped(log);
    std::fs::write(inner.join("socket"), "").unwrap();
    refused(&mut check(""), &["exists and is not a socket"]);
    let long = place.path(&"x".repeat(108));
    refused(serve().arg("--check-config").arg("--socket").arg(long), &["socket path"]);
}

/// The keys of a file, with their sections.
fn keys(table: &toml::Table) -> Vec<String> {
    let mut all = Vec::new();
    for (key, value) in table {
        all.push(key.clone());
        all.extend(value.as_table().into_iter().flat_map(keys).map(|inner| format!("{key}.{inner}")));
    }
    all.sort();
    all
}

#[test]
fn the_example_file_has_every_key_with_its_default() {
    let example = include_str!("../dist/scatter-ring.toml");
    // A line `#key = value` is a key; text for people has a space behind the mark.
    let is_key = |line: &&str| line.starts_with('#') && line[1..].starts_with(|c: char| c.is_ascii_lowercase());
    assert!(example.lines().filter(is_key).count() > 10);
    let lines = example.lines().map(|line| if is_key(&line) { &line[1..] } else { line });
    let uncommented = lines.collect::<Vec<_>>().join("\n");
    let place = Place::new();
    let check = |config: &str| {
        let output = output(place.serve(config).args(["--workers", "1", "--check-config"]));
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let defaults = check("");
    assert_eq!(check(&uncommented), defaults);
    assert_eq!(check(example), defaults, "as it is, it changes nothing");
    assert_eq!(keys(&uncommented.parse().unwrap()), keys(&defaults.parse().unwrap()));
}

#[test]
fn limits_of_the_file_are_enforced_and_named() {
    let place = Place::new();
    let config =
        "[limits]\nsessions = 3\nsessions_per_user = 2\nring_slots = 64\nregions = 2\nregion_bytes = \"1 MiB\"\n";
    let mut engine = Engine::start(&mut place.serve(config));
    let mut first = attach(&place.socket());
    let over = connect(&place.socket());
    over.send(&ring_abi::Message::hello(ring_abi::Features(0), 128, 64, 0), &[]).unwrap();
    let answer = over.receive(true).unwrap().unwrap().message;
    assert_eq!(answer.name(), "SQ capacity 128: at most 64 (limit ring_slots)");

    first.memory(1 << 19, Rights::READ_WRITE);
    let too_much = (1 << 19) + 4096;
    let (_region, fd) = scatter_ring::region::Region::allocate(too_much, scatter_ring::region::Huge::Never).unwrap();
    let answer = first.ask(Kind::REGISTER, &[too_much, 3], "", &[std::os::fd::AsFd::as_fd(&fd)]);
    assert!(answer.name().ends_with("at most 1048576 (limit region_bytes)"), "{}", answer.name());
    first.memory(4096, Rights::READ);
    let (_region, fd) = scatter_ring::region::Region::allocate(4096, scatter_ring::region::Huge::Never).unwrap();
    let answer = first.ask(Kind::REGISTER, &[4096, 1], "", &[std::os::fd::AsFd::as_fd(&fd)]);
    assert_eq!((answer.status, answer.name()), (Status::LIMIT_EXCEEDED, "2 regions (limit regions)"));

    let _second = attach(&place.socket());
    let error = Client::attach(place.socket()).unwrap_err().to_string();
    assert!(error.contains("has 2 sessions already (limit sessions_per_user)"), "{error}");
    let log = engine.log();
    assert!(engine.stopped(log).contains("refused=\"LIMIT_EXCEEDED 4\""));
}

#[test]
fn a_batch_under_way_gets_its_outcome_and_nobody_comes_any_more() {
    let place = Place::new();
    let mut engine = Engine::start(&mut place.serve(""));
    let mut log = engine.log();
    let mut client = attach(&place.socket());
    begin(&mut client);
    engine.signal(rustix::process::Signal::TERM);
    log.until("stopping");
    eventually("newcomers are refused", || {
        let error = Client::attach(place.socket()).map(drop).unwrap_err().to_string();
        error.contains("it does not take clients any more")
    });
    assert_eq!(client.stopped(), None, "the batch has time");
    client.submit(&NOP);
    let outcome = client.wait();
    assert_eq!((outcome.status(), outcome.count), (Status::OK, 2));
    assert_eq!(client.wait_stopped(), Status::STOPPING);
    assert_eq!(engine.ended().code(), Some(0));
    let rest = log.rest();
    assert!(rest.contains("batches=\"OK 1\"") && rest.contains("batches_cut=0"), "{rest}");
    assert!(rest.contains("refused=\"STOPPING "), "{rest}");
    assert!(!rest.contains("cut batches") && rest.contains("stopped"), "{rest}");
    assert!(!place.socket().exists());
}

#[test]
fn batches_without_an_end_are_cut_after_the_bound_and_their_clients_told() {
    let place = Place::new();
    let mut engine = Engine::start(&mut place.serve("stop_within_s = 1"));
    let log = engine.log();
    let mut clients: Vec<RawClient> = (0..2).map(|_| attach(&place.socket())).collect();
    let idle = attach(&place.socket());
    clients.iter_mut().for_each(begin);
    let rest = engine.stopped(log);
    assert!(clients.iter().all(|client| client.stopped() == Some(Status::STOPPING)));
    assert_eq!(idle.stopped(), Some(Status::STOPPING));
    assert!(rest.contains("WARN") && rest.contains("cut batches that had no outcome in time"), "{rest}");
    assert!(rest.contains("batches=2 sessions=2 after_s=1"), "{rest}");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let place = Place::new();
    let mut engine = Engine::start(&mut place.serve("stop_within_s = 600"));
    let mut log = engine.log();
    let mut client = attach(&place.socket());
    begin(&mut client);
    engine.signal(rustix::process::Signal::TERM);
    log.until("stopping");
    engine.signal(rustix::process::Signal::INT);
    assert_eq!(engine.ended().code(), Some(1));
}

#[test]
fn it_says_what_it_has_done_when_asked_and_hang_ups_stop_it_unless_they_are_ignored() {
    use rustix::process::Signal;
    let place = Place::new();
    let mut engine = Engine::start(&mut place.serve(""));
    let mut log = engine.log();
    let mut client = attach(&place.socket());
    client.done(&NOP);
    engine.signal(Signal::USR1);
    let line = log.until("served so far");
    for part in
        ["sessions=1", "attached=1", "descriptors=1", "batches=\"OK 1\"", "refused=\"none\"", "log_lines_lost=0"]
    {
        assert!(line.contains(part), "{part}: {line}");
    }
    engine.signal(Signal::HUP);
    log.until("SIGHUP");
    assert_eq!(engine.ended().code(), Some(0));

    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" serve --socket \"$1\"", env!("CARGO_BIN_EXE_scatter-ring")]);
    command.arg(place.socket()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut engine = Engine::start(&mut command);
    let mut log = engine.log();
    engine.signal(Signal::HUP);
    engine.signal(Signal::USR1);
    log.until("served so far");
    engine.stopped(log);
}

/// Fills a pipe, so that whoever writes to it waits for ever.
fn stuck_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    use rustix::fs::{OFlags, fcntl_setfl};
    let (reader, writer) = std::io::pipe().unwrap();
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&writer, &[b'x'; 4096]).is_ok() {}
    while rustix::io::write(&writer, b"x").is_ok() {}
    fcntl_setfl(&writer, OFlags::empty()).unwrap();
    (reader, writer)
}

#[test]
fn a_log_that_nobody_reads_holds_nobody_up() {
    let place = Place::new();
    let (_reader, writer) = stuck_pipe();
    // On a busy machine sessions end more slowly than new ones come.
    let mut engine = Engine::start(place.serve("[limits]\nsessions = 4096").stderr(writer));
    let mut working = attach(&place.socket());
    let refusals = if cfg!(debug_assertions) { 2_000 } else { 20_000 };
    for i in 0..refusals {
        // Each new session may say each kind of refusal once more.
        let mut client = attach(&place.socket());
        let answer = client.ask(Kind::OPEN, &[1], &format!("none {i}"), &[]);
        assert_eq!(answer.status, Status::NAME_UNKNOWN);
        if i % 5 == 0 {
            assert_eq!(working.done(&NOP).status(), Status::OK);
            engine.signal(rustix::process::Signal::USR1);
        }
    }
    engine.signal(rustix::process::Signal::TERM);
    assert_eq!(engine.ended().code(), Some(0));
    assert_eq!(working.stopped(), Some(Status::STOPPING));
}

#[test]
fn what_clients_write_is_quoted_in_the_log() {
    let place = Place::new();
    let name = "x\n2026-01-01T00:00:00Z ERROR forged\r\u{1b}[31m\u{9b}31m\u{202e}\0";
    for format in ["text", "json"] {
        let mut engine = Engine::start(place.serve("").args(["--log", format]));
        let log = engine.log();
        let mut client = attach(&place.socket());
        assert_eq!(client.ask(Kind::OPEN, &[1], name, &[]).status, Status::NAME_UNKNOWN);
        client.ask(Kind::OPEN, &[1], "another", &[]);
        let all = engine.stopped(log);
        assert_eq!(all.matches("forged").count(), 1, "each kind of refusal is said once: {all}");
        assert!(!all.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\r', '\0']), "{all:?}");
        for line in all.lines() {
            assert!(!line.starts_with("2026-01-01"), "{all}");
            if format == "json" {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                assert!(line["level"].is_string() && line["fields"]["message"].is_string(), "{line}");
            }
        }
    }
}

#[test]
fn the_level_is_the_options_then_the_environments_and_the_journal_has_its_own_clock() {
    let place = Place::new();
    let log_of = |command: &mut Command| {
        let mut engine = Engine::start(command);
        let log = engine.log();
        engine.stopped(log)
    };
    assert!(log_of(&mut place.serve("")).contains("INFO"));
    assert_eq!(log_of(place.serve("").args(["--log-level", "error"])), "");
    assert_eq!(log_of(place.serve("").env("RUST_LOG", "warn")), "");
    assert!(log_of(place.serve("").env("RUST_LOG", "warn").args(["--log-level", "info"])).contains("INFO"));

    let starts_with_level = |log: &str| log.lines().all(|line| line.trim_start().starts_with("INFO"));
    let (mut reader, writer) = std::io::pipe().unwrap();
    let stat = rustix::fs::fstat(&writer).unwrap();
    let mut command = place.serve("");
    command.stderr(writer).env("JOURNAL_STREAM", format!("{}:{}", stat.st_dev, stat.st_ino));
    let engine = Engine::start(&mut command);
    drop(command);
    engine.signal(rustix::process::Signal::TERM);
    let mut journal = String::new();
    reader.read_to_string(&mut journal).unwrap();
    assert!(journal.contains("stopped") && starts_with_level(&journal), "{journal}");
    let elsewhere = log_of(place.serve("").env("JOURNAL_STREAM", "1:1"));
    assert!(!starts_with_level(&elsewhere), "{elsewhere}");
}

#[test]
fn the_service_manager_is_told() {
    let place = Place::new();
    let path = place.path("notify");
    let name = format!("scatter-ring-test-{}", std::process::id());
    let named = SocketAddr::from_abstract_name(&name).unwrap();
    for (socket, variable) in [
        (UnixDatagram::bind(&path).unwrap(), path.to_str().unwrap().to_owned()),
        (UnixDatagram::bind_addr(&named).unwrap(), format!("@{name}")),
    ] {
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let next = || {
            let mut message = [0; 4096];
            let bytes = socket.recv(&mut message).unwrap();
            text(&message[..bytes])
        };
        let mut engine = Engine::start(place.serve("").env("NOTIFY_SOCKET", variable));
        let ready = next();
        assert!(ready.starts_with("READY=1\nSTATUS=serving at \"/"), "{ready}");
        // Not before it can be attached to.
        attach(&place.socket());
        engine.signal(rustix::process::Signal::TERM);
        let stopping = next();
        assert!(stopping.starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC=15000000\nSTATUS="), "{stopping}");
        assert_eq!(engine.ended().code(), Some(0));
    }
    // A manager that has gone is no reason to stop.
    let mut engine = Engine::start(place.serve("").env("NOTIFY_SOCKET", place.path("nobody")));
    let log = engine.log();
    assert!(engine.stopped(log).contains("the service manager cannot be told"));
}

#[test]
fn the_unit_is_one_that_systemd_understands() {
    let unit = include_str!("../dist/scatter-ring.service");
    for line in ["Type=notify", "Restart=on-failure", "RuntimeDirectory=scatter-ring", "RestartPreventExitStatus=2"] {
        assert!(unit.lines().any(|found| found == line), "{line}");
    }
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_scatter-ring");
    let file = place.file("scatter-ring.service", &unit.replace("/usr/bin/scatter-ring", program));
    let verify = Command::new("systemd-analyze").arg("verify").arg(file).output();
    let Ok(verify) = verify else { return eprintln!("NOT RUN: there is no systemd-analyze here") };
    let said = text(&verify.stderr);
    assert!(verify.status.success() && !said.contains("scatter-ring.service"), "{said}");
}

/// What a program of another user was told when it tried to attach; `Ok` if it could.
fn attach_as(user: u32, group: u32, program: &Path, socket: &Path) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(["owner", "--name", "t", "--bytes", "4096", "--socket"]).arg(socket).uid(user).gid(group);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Engine::spawn(&mut command);
    let mut line = String::new();
    BufReader::new(process.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    drop(process.0.stdin.take());
    let status = process.ended();
    if line.contains("Ready") && status.success() { Ok(()) } else { Err(process.log().rest()) }
}

#[test]
fn users_that_the_file_lists_may_attach_through_the_directorys_group() {
    const LISTED: u32 = 61_234;
    const OTHER: u32 = 61_235;
    const GROUP: u32 = 61_236;
    if !rustix::process::geteuid().is_root() {
        return eprintln!("NOT RUN: only root can be another user");
    }
    let place = Place::new();
    set_mode(place.directory.path(), 0o711);
    let program = place.path("scatter-ring");
    std::fs::copy(env!("CARGO_BIN_EXE_scatter-ring"), &program).unwrap();
    set_mode(&program, 0o755);
    let directory = place.path("shared");
    std::fs::create_dir(&directory).unwrap();
    chown(&directory, None, Some(GROUP)).unwrap();
    set_mode(&directory, 0o750);
    let socket = directory.join("socket");
    let config = place.file("config.toml", &format!("users = [{LISTED}]"));
    let mut engine = Engine::start(serve().arg("--socket").arg(&socket).arg("--config").arg(config));
    let log = engine.log();
    let stat = std::fs::symlink_metadata(&socket).unwrap();
    assert_eq!((stat.gid(), stat.mode() & 0o777), (GROUP, 0o660));

    assert_eq!(attach_as(LISTED, GROUP, &program, &socket), Ok(()));
    let told = attach_as(OTHER, GROUP, &program, &socket).unwrap_err();
    assert!(told.contains("user 61235 is not one that this engine serves"), "{told}");
    let told = attach_as(LISTED, 1, &program, &socket).unwrap_err();
    assert!(
        told.contains("get access to the socket and its directory"),
        "who is not in the group does not reach the socket: {told}"
    );
    let rest = engine.stopped(log);
    assert!(rest.contains("refused=\"NOT_ALLOWED 1\"") && rest.contains("user=61235"), "{rest}");
}

/// Rows of 8 bytes: what a client gets of some of them.
fn rows(client: &mut Client, table: &client::Region) -> Result<Vec<u8>, Status> {
    let out = client.allocate(24).unwrap();
    client.read_rows(table, 8, &[2, 0, 2], &out, 0).map_err(|error| error.status)?;
    let mut bytes = vec![0; 24];
    out.read_at(0, &mut bytes).unwrap();
    Ok(bytes)
}

#[test]
fn tables_are_served_by_name_and_one_that_is_cut_short_is_gone_and_nothing_else() {
    let place = Place::new();
    let (first, second) =
        (place.file("a.bin", "row zerorow one row two "), place.file("b.bin", "ROW ZEROROW ONE ROW TWO "));
    let table = format!("a={}", first.display());
    let config = format!("read_ahead = false\n[tables]\nb = {second:?}\n");
    let mut engine = Engine::start(place.serve(&config).args(["--table", &table]));
    let log = engine.log();
    let mut client = Client::attach(place.socket()).unwrap();
    let (a, b) = (client.open("a", Rights::READ).unwrap(), client.open("b", Rights::READ).unwrap());
    assert_eq!(rows(&mut client, &a).unwrap(), b"row two row zerorow two ");
    assert_eq!(rows(&mut client, &b).unwrap(), b"ROW TWO ROW ZEROROW TWO ");
    assert!(client.open("a", Rights::READ_WRITE).is_err(), "files are for reading");
    std::fs::File::options().write(true).open(&first).unwrap().set_len(0).unwrap();
    assert_eq!(rows(&mut client, &a), Err(Status::REGION_GONE));
    let out = client.allocate(24).unwrap();
    let told = client.read_rows(&a, 8, &[2], &out, 0).unwrap_err().to_string();
    assert!(told.contains("cut short"), "nobody has withdrawn it: {told}");
    assert_eq!(rows(&mut client, &b).unwrap(), b"ROW TWO ROW ZEROROW TWO ");
    assert!(client.open("a", Rights::READ).is_err(), "it is gone for those who come later too");
    let log = engine.stopped(log);
    assert!(log.contains("table served") && log.contains("REGION_GONE 2"), "{log}");
}

#[test]
fn memory_that_its_user_could_cut_short_is_mapped_where_the_settings_trust_him() {
    let file = rustix::fs::memfd_create("pool", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    for (config, is_trusted) in [("", false), ("trust = \"same-uid\"", true)] {
        let place = Place::new();
        let _engine = Engine::start(&mut place.serve(config));
        let client = Client::attach(place.socket()).unwrap();
        let registered = client.register(&file, 4096, Rights::READ_WRITE);
        assert_eq!(registered.is_ok(), is_trusted, "{config:?}: {registered:?}");
        if let Err(error) = registered {
            assert!(error.to_string().contains("trust = same-uid"), "{error}");
        }
    }
}

#[test]
fn help_has_examples_and_says_how_it_ends() {
    let help = text(&output(serve().arg("--help")).stdout);
    for part in ["--config", "--check-config", "--table", "Examples:", "Exit status: 0", "SIGUSR1", "SIGHUP"] {
        assert!(help.contains(part), "{part}: {help}");
    }
}
