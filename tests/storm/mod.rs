//! What the storms share: an engine in a process of its own, clients in processes of theirs, and what a process has.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use rustix::process::{Pid, Signal};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Names the engine's socket to a client process.
const SOCKET: &str = "SCATTER_RING_TEST_SOCKET";

/// Longest wait for anything, generous because the machine may be busy with other things.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The number for a build with optimization, and the one for a debug build.
pub fn by_build(release: usize, debug: usize) -> usize {
    if cfg!(debug_assertions) { debug } else { release }
}

/// A process that is killed at the end of a test.
pub struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Running {
    pub fn start(command: &mut Command) -> Running {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Running { child, output }
    }

    /// `scatter-ring serve`, once it serves.
    pub fn engine(socket: &Path, args: &[&str]) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_scatter-ring"));
        let mut engine = Running::start(command.arg("serve").arg("--socket").arg(socket).args(args));
        engine.line("scatter-ring: serving at ");
        engine
    }

    /// This test program once more, to run one ignored test: see [`socket_of_this_client`].
    pub fn client(test: &str, socket: &Path, settings: &[(&str, &str)]) -> Running {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture"]).env(SOCKET, socket);
        Running::start(command.envs(settings.iter().copied()))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads up to the next line that contains this, and gives what stands behind it.
    pub fn line(&mut self, after: &str) -> String {
        let mut seen = String::new();
        loop {
            let start = seen.len();
            assert!(self.output.read_line(&mut seen).unwrap() > 0, "the process has ended without {after:?}: {seen}");
            if let Some((_, rest)) = seen[start..].split_once(after) {
                return rest.trim_end().to_owned();
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills it, and returns when the kernel has closed all that it had.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end by a signal.
    pub fn killed_by(&mut self) -> Option<i32> {
        self.child.wait().unwrap().signal()
    }

    /// Waits for an end by itself, which must be a good one.
    pub fn ended_well(&mut self) {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a process that was started as a client: where its engine is. `None` when all ignored tests are run by hand.
pub fn socket_of_this_client() -> Option<PathBuf> {
    let socket = std::env::var_os(SOCKET)?;
    // A client that is forgotten ends by itself.
    // SAFETY: always allowed.
    unsafe { libc::alarm(300) };
    Some(PathBuf::from(socket))
}

/// Builds what cargo does not always build for tests, and gives the directory where it is.
pub fn cargo_build(what: &[&str]) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().and_then(Path::parent).unwrap();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet", "--locked", "--target-dir"]);
    cargo.arg(built.parent().unwrap()).args(what);
    if built.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "{cargo:?}");
    built.to_owned()
}

/// A directory that an engine accepts for its socket.
pub fn private_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    directory
}

/// A group of processes whose memory is limited.
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// `None` where this user or this kernel cannot make one.
    pub fn new(limit_bytes: u64) -> Option<MemoryGroup> {
        let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"].map(Path::new);
        limits.into_iter().find_map(|limit| {
            let group = MemoryGroup(limit.with_file_name(format!("scatter-ring-test-{}", std::process::id())));
            std::fs::create_dir(&group.0).ok()?;
            let limit = group.0.join(limit.file_name().unwrap());
            // The kernel makes the file, where there is a limit.
            (limit.exists() && std::fs::write(limit, limit_bytes.to_string()).is_ok()).then_some(group)
        })
    }

    /// A process that writes 0 there becomes a member.
    pub fn members(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Members that have just ended may be counted for a moment. A group without members costs nothing.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// What a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    pub fds: usize,
    /// Mappings of memory files: rings and regions.
    pub memory_files: usize,
    /// All mappings, those of the allocator too.
    pub maps: usize,
    pub threads: usize,
    /// Resident memory of its own. Pages of memory files are not in it: the files are counted, and the kernel gives the
    /// pages of a mapping back a while after the mapping is gone.
    pub private_bytes: u64,
}

impl Footprint {
    pub fn of(pid: u32) -> Footprint {
        let count = |folder: &str| std::fs::read_dir(format!("/proc/{pid}/{folder}")).unwrap().count();
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
        let (maps, status) = (read("maps"), read("status"));
        let (_, private) = status.split_once("RssAnon:").unwrap();
        let private_kib: u64 = private.split_whitespace().next().unwrap().parse().unwrap();
        Footprint {
            fds: count("fd"),
            memory_files: maps.lines().filter(|line| line.contains("/memfd:")).count(),
            maps: maps.lines().count(),
            threads: count("task"),
            private_bytes: private_kib << 10,
        }
    }

    /// True if descriptors, memory files and threads are as they were.
    pub fn is_back_at(&self, before: &Footprint) -> bool {
        let counted = |f: &Footprint| (f.fds, f.memory_files, f.threads);
        counted(self) == counted(before)
    }

    /// Asserts that nothing was left behind. The slack is the allocator's: it may keep a few pages that it had given out
    /// at the busiest moment, and the mapping that they are in.
    pub fn assert_no_more_than(&self, before: &Footprint) {
        const SLACK_BYTES: u64 = 1 << 20;
        const SLACK_MAPS: usize = 4;
        assert!(self.is_back_at(before), "{self:?}, before {before:?}");
        assert!(self.maps <= before.maps + SLACK_MAPS, "{self:?}, before {before:?}");
        assert!(self.private_bytes <= before.private_bytes + SLACK_BYTES, "{self:?}, before {before:?}");
    }
}

/// Waits until a process has what it had before, and says how long that took.
pub fn wait_for_footprint(pid: u32, before: &Footprint) -> Duration {
    let start = Instant::now();
    loop {
        let now = Footprint::of(pid);
        if now.is_back_at(before) {
            return start.elapsed();
        }
        assert!(start.elapsed() < LIMIT, "{now:?}, before {before:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The signal stops the threads of a process one after the other.
pub fn wait_until_stopped(pid: u32) {
    let start = Instant::now();
    loop {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let stat = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let is_stopped = |stat: String| stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'));
        if threads.flatten().map(stat).all(is_stopped) {
            return;
        }
        assert!(start.elapsed() < LIMIT, "it does not stop");
        std::thread::yield_now();
    }
}

/// The middle one and the longest.
pub fn middle_and_longest(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    (times[times.len() / 2], times[times.len() - 1])
}
