//! `scatter-ring serve` as a process of a test.

// Each test file that shares this module uses another part of it.
#![allow(dead_code)]

use crate::support::RawClient;
use crate::support::hostile::eventually;
use ring_abi::{Descriptor, Opcode};
use scatter_ring::attach::Socket;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

/// A directory for a socket and what else a test has.
pub struct Place {
    pub directory: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        let place = Place { directory: tempfile::tempdir().unwrap() };
        set_mode(place.directory.path(), 0o700);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// `serve` at the socket of this place, with a configuration file if it is to say anything.
    pub fn serve(&self, config: &str) -> Command {
        let mut command = serve();
        command.arg("--socket").arg(self.socket());
        if !config.is_empty() {
            command.arg("--config").arg(self.file("config.toml", config));
        }
        command
    }
}

pub fn serve() -> Command {
    let mut command = scatter_ring();
    command.arg("serve");
    command
}

pub fn scatter_ring() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scatter-ring"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
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

pub fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs a command that ends by itself.
pub fn output(command: &mut Command) -> Output {
    let mut engine = Engine::spawn(command);
    let status = engine.ended();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    engine.0.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    engine.0.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    Output { status, stdout, stderr }
}

/// Asserts that a command is refused as wrong use, with a text that has all of this.
pub fn refused(command: &mut Command, parts: &[&str]) {
    let output = output(command);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(output.stdout.is_empty());
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

/// A process that is killed at the end of a test.
pub struct Engine(pub Child);

impl Engine {
    pub fn spawn(command: &mut Command) -> Engine {
        Engine(command.spawn().unwrap())
    }

    /// Returns when it serves.
    pub fn start(command: &mut Command) -> Engine {
        let mut engine = Engine::spawn(command);
        let mut line = String::new();
        BufReader::new(engine.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        if !line.contains("serving at") {
            panic!("it does not serve: {}", engine.log().rest());
        }
        engine
    }

    pub fn log(&mut self) -> Log {
        Log(BufReader::new(self.0.stderr.take().unwrap()))
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.0.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub fn ended(&mut self) -> ExitStatus {
        eventually("the process ends", || self.0.try_wait().unwrap().is_some());
        self.0.wait().unwrap()
    }

    /// Stops it in good order and gives the rest of its log.
    pub fn stopped(&mut self, mut log: Log) -> String {
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

pub struct Log(BufReader<ChildStderr>);

impl Log {
    /// The next line with this in it. The process's end is the limit.
    pub fn until(&mut self, part: &str) -> String {
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

    pub fn rest(&mut self) -> String {
        let mut all = String::new();
        self.0.read_to_string(&mut all).unwrap();
        all
    }
}

pub fn connect(path: &Path) -> Socket {
    let address = rustix::net::SocketAddrUnix::new(path).unwrap();
    let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, rustix::net::SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    // An engine that is stuck fails a test, and does not hang it.
    let limit = Some(Duration::from_secs(10));
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, limit).unwrap();
    Socket::new(socket)
}

pub fn attach(path: &Path) -> RawClient {
    RawClient::attach(connect(path), 64, 64, 0)
}

pub const HALF: Descriptor = Descriptor { opcode: Opcode::NOP.0, ..Descriptor::ZERO };

/// Begins a batch whose LAST does not come yet, and returns when the engine has taken it.
pub fn begin(client: &mut RawClient) {
    client.submit(&HALF);
    eventually("the engine takes the slot", || client.areas.sq.free().unwrap() == 64);
}
