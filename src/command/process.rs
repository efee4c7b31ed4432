//! Processes that help this one, and end with it.
//!
//! A helper holds the reading end of a pipe as its standard input. When the process that started it ends, in whatever
//! way, the pipe ends too, and the helper with it. A helper says on its standard output what its parent has to know, one
//! [`Note`] a line.

use super::Failure;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// What a helper says.
#[derive(Debug, Serialize, Deserialize)]
pub enum Note {
    /// So much of so much is done.
    Progress(u64, u64),
    /// It has done what others wait for.
    Ready,
    /// What `demo` measured.
    Measured(super::demo_client::Measured),
}

/// This program, started again.
#[derive(Debug)]
pub struct Helper {
    role: &'static str,
    child: Child,
    /// Open as long as the helper is to run.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

/// How long a helper may take to end before it is killed.
const END_LIMIT: Duration = Duration::from_secs(5);

impl Helper {
    /// Starts a subcommand of this program.
    pub fn start(role: &'static str, args: &[&OsStr]) -> Result<Helper, Failure> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("scatter-ring").args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        // Ctrl-C in a terminal goes to this process only; the helpers clean up and follow.
        command.process_group(0);
        let mut child =
            command.spawn().map_err(|e| Failure::run(format!("the {role} process cannot be started: {e}")))?;
        let stdin = child.stdin.take();
        let Some(stdout) = child.stdout.take() else {
            return Err(Failure::run("a helper without a pipe"));
        };
        Ok(Helper { role, child, stdin, stdout: BufReader::new(stdout) })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it prints.
    pub fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            self.stdin = None;
            let status = self.child.wait()?;
            return Err(Failure::run(format!("the {} process ended too early ({status})", self.role)));
        }
        Ok(line)
    }

    /// The next thing that it says.
    pub fn note(&mut self) -> Result<Note, Failure> {
        Ok(serde_json::from_str(&self.line()?)?)
    }

    /// Waits until it is ready, and passes on how far it is.
    pub fn until_ready(&mut self, mut progress: impl FnMut(u64, u64)) -> Result<(), Failure> {
        loop {
            match self.note()? {
                Note::Progress(done, all) => progress(done, all),
                Note::Ready => return Ok(()),
                Note::Measured(_) => return Err(Failure::run(format!("the {} process measured something", self.role))),
            }
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.stdin = None;
        let start = Instant::now();
        while start.elapsed() < END_LIMIT {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                _ => return,
            }
        }
        // It is gone already, or nothing more can be done about it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// For helpers: says something to the parent.
pub fn say(note: &Note) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, note)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// For helpers: calls `then` on another thread when the parent wants this process to end, or has ended itself.
pub fn at_end_of_parent(then: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while !matches!(std::io::stdin().read(&mut bytes), Ok(0) | Err(_)) {}
        then();
    });
}

/// A directory for the socket of an engine that ends with this process. The engine makes it, with mode 0700, and removes
/// it when it stops.
#[derive(Debug)]
pub struct PrivateDirectory(PathBuf);

impl PrivateDirectory {
    pub fn new() -> PrivateDirectory {
        let parent = std::env::temp_dir();
        let named = |attempt: u32| parent.join(format!("scatter-ring-{}-{attempt}", std::process::id()));
        let free = (0..).map(named).find(|path| path.symlink_metadata().is_err());
        PrivateDirectory(free.expect("one of four billion names is free"))
    }

    pub fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        // There is something left only if the engine was killed.
        let _ = std::fs::remove_file(self.socket());
        let _ = std::fs::remove_dir(&self.0);
    }
}
