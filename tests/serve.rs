//! `scatter-ring serve` as operators and service managers use it.

mod serving;
mod support;

use ring_abi::{Kind, Status};
use scatter_ring::client::{self, Client};
use scatter_ring::region::Rights;
use serving::{Engine, Place, attach, begin, output, serve, set_mode, text};
use std::io::{BufRead, BufReader, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::hostile::{NOP, eventually};
use support::{RawClient, not_run};

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
    // The same with what gives it a network.
    std::fs::create_dir(place.path("scatter-ring.service.d")).unwrap();
    place.file("scatter-ring.service.d/peers.conf", include_str!("../dist/scatter-ring-peers.conf"));
    place.file("scatter-ring.service.d/rdma.conf", include_str!("../dist/scatter-ring-rdma.conf"));
    let verify = Command::new("systemd-analyze").arg("verify").arg(file).output();
    let Ok(verify) = verify else { return not_run("there is no systemd-analyze here") };
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
        return not_run("only root can be another user");
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
