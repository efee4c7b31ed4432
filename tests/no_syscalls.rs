//! A warm client makes no system call while the engine is awake: the kernel kills it at the first one.
//!
//! The client is a process of its own, this test binary once more. It attaches, warms up, installs a seccomp filter that
//! permits nothing but its exit, and works. Nothing behind the filter may panic, because a panic prints: checks end the
//! process with a code.

use ring_abi::{Descriptor, Flags, Opcode, Span, SpanFlags};
use scatter_ring::client::{Client, PushError, Region, Setup};
use scatter_ring::engine::{Config, Engine, RunningEngine};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

const DESCRIPTORS: u64 = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
const WARM_UP: u64 = 20_000;
const PER_BATCH: u64 = 32;
/// Batches under way at most: neither ring is ever full, where a batch would wait.
const IN_FLIGHT: u64 = 64;
const ROW_BYTES: u64 = 64;
const TABLE_ROWS: u64 = 4096;
/// More rows than are under way at a time.
const OUT_ROWS: u64 = 4096;

/// Names the engine's socket to the process that is to be the client.
const SOCKET: &str = "SCATTER_RING_TEST_SOCKET";

#[test]
fn a_million_raw_descriptors_are_submitted_and_reaped_without_a_system_call() {
    if let Some(mut stage) = Stage::of_child() {
        stage.work(0, WARM_UP, push_raw);
        forbid_system_calls();
        stage.work(WARM_UP, DESCRIPTORS, push_raw);
        leave(0);
    }
    let status = run_child("a_million_raw_descriptors_are_submitted_and_reaped_without_a_system_call", AWAKE);
    assert_eq!(status.code(), Some(0), "{}", explain(status));
}

#[test]
fn a_million_descriptors_in_batches_are_submitted_and_reaped_without_a_system_call() {
    if let Some(mut stage) = Stage::of_child() {
        stage.work(0, WARM_UP, push_batch);
        forbid_system_calls();
        stage.work(WARM_UP, DESCRIPTORS, push_batch);
        leave(0);
    }
    let status = run_child("a_million_descriptors_in_batches_are_submitted_and_reaped_without_a_system_call", AWAKE);
    assert_eq!(status.code(), Some(0), "{}", explain(status));
}

/// Without this the other tests would pass with a filter that filters nothing.
#[test]
fn one_system_call_kills_the_client() {
    if std::env::var_os(SOCKET).is_some() {
        forbid_system_calls();
        // SAFETY: `getpid` has no arguments and no effect.
        unsafe { libc::syscall(libc::SYS_getpid) };
        leave(0);
    }
    let status = run_child("one_system_call_kills_the_client", AWAKE);
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{}", explain(status));
}

/// The library's own calls are caught as well: an engine that sleeps has to be rung.
#[test]
fn a_submission_to_an_engine_that_sleeps_is_a_system_call() {
    if let Some(mut stage) = Stage::of_child() {
        stage.work(0, WARM_UP, push_raw);
        std::thread::sleep(Duration::from_millis(200));
        forbid_system_calls();
        stage.work(WARM_UP, PER_BATCH, push_raw);
        leave(0);
    }
    let status = run_child("a_submission_to_an_engine_that_sleeps_is_a_system_call", Duration::ZERO);
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{}", explain(status));
}

/// A spin that outlasts every test.
const AWAKE: Duration = Duration::from_secs(600);

/// Runs the named test of this binary in a new process, whose client finds an engine here.
fn run_child(test: &str, spin: Duration) -> ExitStatus {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("engine").join("sock");
    let (_alone, _engine) = serve(&socket, spin);
    let binary = std::env::current_exe().unwrap();
    Command::new(binary).args(["--exact", test, "--nocapture"]).env(SOCKET, &socket).status().unwrap()
}

/// An engine; one at a time, because it and its client spin.
fn serve(socket: &Path, spin: Duration) -> (MutexGuard<'static, ()>, RunningEngine) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let engine = Engine::new(&Config { workers: 0, spin, ..Config::default() }).unwrap().start().unwrap();
    engine.listen(socket).unwrap();
    (alone, engine)
}

fn explain(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (_, Some(libc::SIGSYS)) => "a system call was made".into(),
        (Some(code), _) => format!("exit code {code}: see the checks in this file"),
        _ => format!("{status}"),
    }
}

const BAD_PUSH: i32 = 11;
const BAD_SUBMIT: i32 = 12;
const BAD_REAP: i32 = 13;
const BAD_SPAN: i32 = 14;
const SPAN_TWICE: i32 = 15;
const BAD_BYTES: i32 = 16;

/// The client process's side.
struct Stage {
    client: Client,
    table: Region,
    out: Region,
    /// Batches by number, modulo a power of two, that are under way.
    under_way: [bool; 2 * IN_FLIGHT as usize],
    /// Ring position of the next batch.
    position: u64,
}

impl Stage {
    /// `None` in the process that has the engine.
    fn of_child() -> Option<Stage> {
        let socket = std::env::var_os(SOCKET)?;
        let client = Client::attach_with(Path::new(&socket), &Setup::default()).unwrap();
        let table = client.allocate(TABLE_ROWS * ROW_BYTES).unwrap();
        let out = client.allocate(OUT_ROWS * ROW_BYTES).unwrap();
        for row in 0..TABLE_ROWS {
            table.write_at(row * ROW_BYTES, &row_of(row)).unwrap();
        }
        Some(Stage { client, table, out, under_way: [false; _], position: 0 })
    }

    /// Moves rows `from .. from + count`, and checks every span and what lies in the buffer at the end.
    fn work(&mut self, from: u64, count: u64, push: fn(&mut Stage, u64)) {
        let (mut pushed, mut done) = (0, 0);
        while done < count {
            if pushed < count && pushed - done < IN_FLIGHT * PER_BATCH {
                self.mark(self.position, true);
                push(self, from + pushed);
                self.position += PER_BATCH;
                pushed += PER_BATCH;
            }
            match self.client.reap() {
                Ok(Some(span)) => {
                    self.check(&span);
                    done += PER_BATCH;
                }
                Ok(None) => core::hint::spin_loop(),
                Err(_) => leave(BAD_REAP),
            }
        }
        let mut row = [0; ROW_BYTES as usize];
        let end = from + count;
        for i in end.saturating_sub(OUT_ROWS)..end {
            let read = self.out.read_at(i % OUT_ROWS * ROW_BYTES, &mut row);
            if read.is_err() || row != row_of(number(i)) {
                leave(BAD_BYTES);
            }
        }
    }

    fn check(&mut self, span: &Span) {
        let right = span.status().is_ok()
            && span.flags == SpanFlags::BATCH_DONE
            && u64::from(span.count) == PER_BATCH
            && span.bytes == PER_BATCH * ROW_BYTES
            && span.user_data == span.first;
        if !right {
            leave(BAD_SPAN);
        }
        self.mark(span.first, false);
    }

    fn mark(&mut self, first: u64, under_way: bool) {
        let batch = &mut self.under_way[(first / PER_BATCH % (2 * IN_FLIGHT)) as usize];
        if *batch == under_way || !first.is_multiple_of(PER_BATCH) {
            leave(SPAN_TWICE);
        }
        *batch = under_way;
    }
}

fn push_raw(stage: &mut Stage, from: u64) {
    for i in from..from + PER_BATCH {
        let descriptor = Descriptor {
            opcode: Opcode::READ.0,
            flags: if i + 1 == from + PER_BATCH { Flags::LAST } else { 0 },
            len: ROW_BYTES as u32,
            src_region: stage.table.handle().0,
            dst_region: stage.out.handle().0,
            src_offset: number(i) * ROW_BYTES,
            dst_offset: i % OUT_ROWS * ROW_BYTES,
            count: 1,
            user_data: stage.position,
            ..Descriptor::ZERO
        };
        // SAFETY: the regions stay open, and nobody looks at the buffer before all spans have come.
        match unsafe { stage.client.push(&descriptor) } {
            Ok(()) => {}
            Err(PushError::Full | PushError::Ended(_) | PushError::Forked) => leave(BAD_PUSH),
        }
    }
    if stage.client.submit().is_err() {
        leave(BAD_SUBMIT);
    }
}

fn push_batch(stage: &mut Stage, from: u64) {
    let mut batch = stage.client.batch();
    batch.user_data(stage.position);
    for i in from..from + PER_BATCH {
        let to = i % OUT_ROWS * ROW_BYTES;
        if batch.read(&stage.table, number(i) * ROW_BYTES, &stage.out, to, ROW_BYTES).is_err() {
            leave(BAD_PUSH);
        }
    }
    if batch.submit().is_err() {
        leave(BAD_SUBMIT);
    }
}

/// The row of the table that is moved as number `i`.
fn number(i: u64) -> u64 {
    i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 & (TABLE_ROWS - 1)
}

fn row_of(row: u64) -> [u8; ROW_BYTES as usize] {
    std::array::from_fn(|i| (row >> (i % 2 * 8)) as u8 ^ i as u8)
}

/// Ends the process without a system call but the last one.
fn leave(code: i32) -> ! {
    // SAFETY: the call does not return; nothing is left to be flushed or dropped.
    unsafe { libc::_exit(code) }
}

/// From here on this thread may only exit. (The test harness's own thread sleeps, and is not concerned.)
fn forbid_system_calls() {
    #[cfg(target_arch = "x86_64")]
    const ARCH: u32 = 0xC000_003E;
    #[cfg(target_arch = "aarch64")]
    const ARCH: u32 = 0xC000_00B7;
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    // Places in `seccomp_data`.
    const NUMBER_AT: u32 = 0;
    const ARCH_AT: u32 = 4;
    let step = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        step(LOAD, ARCH_AT, 0, 0),
        step(JUMP_EQUAL, ARCH, 0, 3),
        step(LOAD, NUMBER_AT, 0, 0),
        step(JUMP_EQUAL, libc::SYS_exit_group as u32, 2, 0),
        step(JUMP_EQUAL, libc::SYS_exit as u32, 1, 0),
        step(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
        step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: sets a flag of this thread; the unused arguments are 0 as they must be.
    let settled = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(settled, 0, "no_new_privs: {}", std::io::Error::last_os_error());
    // SAFETY: the program and its steps outlive the call, which copies them.
    let installed = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0) };
    assert_eq!(installed, 0, "seccomp: {}", std::io::Error::last_os_error());
}
