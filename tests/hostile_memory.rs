//! Memory that goes away while it is used: files that are cut short, pages that cannot be had. R14, R16.
//!
//! The engine of these tests is in this process, which has installed the guard as the daemon does.

mod support;

use ring_abi::{Descriptor, Flags, IndexKind, Kind, SpanFlags, Status};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use scatter_ring::client::{Client, ClientError, Setup};
use scatter_ring::engine::{Config, Engine, RunningEngine, guard_process};
use scatter_ring::region::{Huge, Region, RegionError, Rights, Trust, guard};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::hostile::{alone, range};
use support::{Random, RawClient, not_run};

const ROW: u32 = 256;
const ROWS: u32 = 2048;
const BYTES: u64 = ROW as u64 * ROWS as u64;
const BOTH: Rights = Rights::READ_WRITE;

fn trusting() -> RunningEngine {
    guard_process().unwrap();
    Engine::new(&Config { workers: 1, trust: Trust::SameUser, ..Config::default() }).unwrap().start().unwrap()
}

fn attach(engine: &RunningEngine) -> RawClient {
    RawClient::attach(engine.connect().unwrap(), 4096, 64, 0)
}

/// The table's bytes: never 0, and no two rows alike.
fn pattern() -> Vec<u8> {
    let mut random = Random(5);
    (0..BYTES).map(|_| 1 + random.below(255) as u8).collect()
}

/// The rows that every transfer asks for, in its order.
fn row_of(j: u32) -> u32 {
    ROWS - 1 - j
}

fn words() -> Vec<u8> {
    (0..ROWS).flat_map(|j| row_of(j).to_le_bytes()).collect()
}

fn records() -> Vec<u8> {
    let record = |j| [u64::from(row_of(j) * ROW), u64::from(j * ROW), ROW.into()];
    (0..ROWS).flat_map(record).flat_map(u64::to_le_bytes).collect()
}

fn tmpfs_file(contents: &[u8]) -> Option<OwnedFd> {
    let mut file = tempfile::tempfile_in("/dev/shm").ok()?;
    file.write_all(contents).ok()?;
    Some(file.into())
}

/// How a batch uses the memory that goes away.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    IndexRows,
    SingleRows,
    Range,
    Fragments,
    Index,
    Records,
    RangeTo,
    SingleRowsTo,
}

const WAYS: [Way; 8] = [
    Way::IndexRows,
    Way::SingleRows,
    Way::Range,
    Way::Fragments,
    Way::Index,
    Way::Records,
    Way::RangeTo,
    Way::SingleRowsTo,
];

impl Way {
    fn contents(self) -> Vec<u8> {
        match self {
            Way::Index => words(),
            Way::Records => records(),
            _ => pattern(),
        }
    }

    fn writes(self) -> bool {
        matches!(self, Way::RangeTo | Way::SingleRowsTo)
    }
}

/// A client that uses it.
struct User {
    client: RawClient,
    out: Region,
    out_handle: u32,
    table: u32,
    words: u32,
    records: u32,
    _mapped: [Region; 3],
}

impl User {
    fn new(engine: &RunningEngine) -> User {
        let mut client = attach(engine);
        let (out, out_handle) = client.memory(BYTES, BOTH);
        let mut filled = |bytes: &[u8]| {
            let (region, handle) = client.memory(bytes.len() as u64, BOTH);
            region.write_at(0, bytes).unwrap();
            (region, handle)
        };
        let [(a, table), (b, words), (c, records)] = [pattern(), words(), records()].map(|bytes| filled(&bytes));
        User { client, out, out_handle, table, words, records, _mapped: [a, b, c] }
    }

    fn batch(&self, way: Way, evil: u32) -> Vec<Descriptor> {
        let rows = |src, kind, index| Descriptor {
            count: ROWS,
            index_kind: kind,
            index_region: index,
            src_stride: ROW,
            dst_stride: ROW,
            ..range((src, 0), (self.out_handle, 0), ROW)
        };
        let fragments = |src, index| Descriptor {
            len: 0,
            src_stride: 0,
            dst_stride: 0,
            ..rows(src, IndexKind::pack(IndexKind::Fragments, IndexKind::Fragments), index)
        };
        let by_word = IndexKind::pack(IndexKind::U32, IndexKind::None);
        let single = |src, dst| {
            let row = |j: u32| {
                let (from, to) = (u64::from(row_of(j) * ROW), u64::from(j * ROW));
                let flags = if j + 1 == ROWS { Flags::LAST } else { 0 };
                Descriptor { flags, user_data: j.into(), ..range((src, from), (dst, to), ROW) }
            };
            (0..ROWS).map(row).collect()
        };
        match way {
            Way::IndexRows => vec![rows(evil, by_word, self.words)],
            Way::SingleRows => single(evil, self.out_handle),
            Way::Range => vec![range((evil, 0), (self.out_handle, 0), BYTES as u32)],
            Way::Fragments => vec![fragments(evil, self.records)],
            Way::Index => vec![rows(self.table, by_word, evil)],
            Way::Records => vec![fragments(self.table, evil)],
            Way::RangeTo => vec![range((self.table, 0), (evil, 0), BYTES as u32)],
            Way::SingleRowsTo => single(self.table, evil),
        }
    }

    /// One batch: its status, and how many descriptors are said to be done.
    fn run(&mut self, batch: &[Descriptor]) -> (Status, usize) {
        for d in batch {
            assert!(self.client.try_push(&d.to_entry()));
        }
        self.client.publish();
        let (mut status, mut done, mut next) = (Status::OK, 0, None);
        loop {
            let span = self.client.wait();
            assert_eq!(span.first, *next.get_or_insert(span.first), "a hole between two spans");
            next = Some(span.first + u64::from(span.count));
            match span.status() {
                Status::OK => done += span.count as usize,
                Status::NOT_DONE => {}
                failed => {
                    assert_eq!((span.count, failed), (1, Status::REGION_GONE), "{span:?}");
                    assert_eq!(span.user_data, batch[done].user_data, "not the descriptor behind those that are done");
                    assert_ne!(span.detail(), 0, "it does not name the region");
                    status = failed;
                }
            }
            if span.flags & SpanFlags::BATCH_DONE != 0 {
                return (status, done);
            }
        }
    }

    /// Asserts that what is said to be done carries the table's bytes.
    fn verify(&self, way: Way, (status, done): (Status, usize), table: &[u8]) {
        let rows = match way {
            Way::RangeTo | Way::SingleRowsTo => return,
            Way::SingleRows => done as u32,
            _ if status.is_ok() => ROWS,
            _ => 0,
        };
        let mut out = vec![0; BYTES as usize];
        self.out.read_at(0, &mut out).unwrap();
        let row = |bytes: &[u8], i: u32| bytes[(i * ROW) as usize..][..ROW as usize].to_vec();
        for j in 0..rows {
            let from = if way == Way::Range { j } else { row_of(j) };
            assert!(row(&out, j) == row(table, from), "{way:?}: row {j} of {done} done is not the table's");
        }
        self.out.write_at(0, &vec![0; BYTES as usize]).unwrap();
    }

    /// Uses it until it is gone. A batch that was submitted after it was cut short is never done.
    fn storm(&mut self, way: Way, evil: u32, was_cut: &AtomicBool) {
        let (batch, table) = (self.batch(way, evil), pattern());
        loop {
            let must_fail = was_cut.load(Ordering::Acquire);
            let outcome = self.run(&batch);
            self.verify(way, outcome, &table);
            if outcome.0 == Status::REGION_GONE {
                break;
            }
            assert!(!must_fail, "{way:?}: a success after the file was cut short");
        }
        let again = self.run(&batch);
        assert_eq!(again, (Status::REGION_GONE, 0), "{way:?}: a region that is lost");
        if !way.writes() {
            // Nothing of it is touched, but it is refused all the same.
            let nothing = self.run(&[range((evil, 0), (self.out_handle, 0), 0)]);
            assert_eq!(nothing, (Status::REGION_GONE, 0), "{way:?}: a region that is lost is named");
        }
    }
}

/// Two clients use what is exported as `name`, and a third one its own memory, while `cut` cuts the file short.
fn storm(users: &mut [User; 2], bystander: &mut User, way: Way, name: &str, cut: impl FnOnce() + Send) {
    let wanted = if way.writes() { Rights::WRITE } else { Rights::READ };
    let opened = users.each_mut().map(|user| {
        let opened = user.client.ask(Kind::OPEN, &[wanted.bits()], name, &[]);
        assert_eq!(opened.status, Status::OK, "{}", opened.name());
        opened.args[0] as u32
    });
    let (cut_short, over) = (&AtomicBool::new(false), &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let both: Vec<_> = users
            .iter_mut()
            .zip(opened)
            .map(|(user, evil)| scope.spawn(move || user.storm(way, evil, cut_short)))
            .collect();
        let goes_on = scope.spawn(|| {
            let (batch, table) = (bystander.batch(Way::SingleRows, bystander.table), pattern());
            while !over.load(Ordering::Acquire) {
                let outcome = bystander.run(&batch);
                assert_eq!(outcome, (Status::OK, ROWS as usize), "of a client that has nothing to do with it");
                bystander.verify(Way::SingleRows, outcome, &table);
            }
        });
        cut();
        cut_short.store(true, Ordering::Release);
        let ended: Vec<_> = both.into_iter().map(|thread| thread.join()).collect();
        over.store(true, Ordering::Release);
        goes_on.join().unwrap();
        ended.into_iter().for_each(|thread| thread.unwrap());
    });
    for (user, evil) in users.iter_mut().zip(opened) {
        assert_eq!(user.client.ask(Kind::OPEN, &[wanted.bits()], name, &[]).status, Status::REGION_GONE);
        assert_eq!(user.client.ask(Kind::CLOSE, &[evil.into()], "", &[]).status, Status::OK);
    }
}

fn rounds() -> usize {
    if cfg!(debug_assertions) { 2 } else { 20 }
}

#[test]
fn a_file_cut_short_under_transfers_fails_them_and_nothing_else() {
    let _alone = alone();
    let engine = trusting();
    let mut owner = attach(&engine);
    let (mut users, mut bystander) = ([User::new(&engine), User::new(&engine)], User::new(&engine));
    let (other, other_handle) = owner.memory(8192, BOTH);
    let mut random = Random(3);
    for (round, way) in (0..rounds()).flat_map(|round| WAYS.map(|way| (round, way))) {
        let Some(fd) = tmpfs_file(&way.contents()) else { return not_run("there is no /dev/shm here") };
        let bytes = way.contents().len() as u64;
        let name = format!("{way:?} {round}");
        let registered = owner.ask(Kind::REGISTER, &[bytes, 3], "", &[fd.as_fd()]);
        assert_eq!(registered.status, Status::OK, "{}", registered.name());
        assert_eq!(owner.ask(Kind::EXPORT, &[registered.args[0], 3], &name, &[]).status, Status::OK);
        let wait = Duration::from_micros(random.below(10_000));
        storm(&mut users, &mut bystander, way, &name, || {
            std::thread::sleep(wait);
            rustix::fs::ftruncate(&fd, 0).unwrap();
        });
        // Its owner goes on with his other memory, and can take it back.
        other.write_at(0, &[round as u8 + 1; 4096]).unwrap();
        assert_eq!(owner.done(&range((other_handle, 0), (other_handle, 4096), 4096)).status(), Status::OK);
        assert_eq!(owner.ask(Kind::CLOSE, &[registered.args[0]], "", &[]).status, Status::OK);
    }
}

#[test]
fn a_table_in_a_file_that_is_cut_short_fails_its_transfers_and_nothing_else() {
    let _alone = alone();
    let engine = trusting();
    let (mut users, mut bystander) = ([User::new(&engine), User::new(&engine)], User::new(&engine));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("table");
    for (i, way) in [Way::IndexRows, Way::SingleRows, Way::Range, Way::Fragments].into_iter().enumerate() {
        std::fs::write(&path, pattern()).unwrap();
        let name = format!("table {i}");
        engine.serve_file(&name, &path, i % 2 == 0).unwrap();
        let refused = users[0].client.ask(Kind::OPEN, &[3], &name, &[]);
        assert_eq!(refused.status, Status::NO_RIGHT, "a file that is served is for reading");
        storm(&mut users, &mut bystander, way, &name, || {
            std::thread::sleep(Duration::from_millis(3));
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
        });
        std::fs::remove_file(&path).unwrap();
    }
    for (what, path) in [("a directory", directory.path()), ("nothing", &path), ("a device", Path::new("/dev/zero"))] {
        let error = engine.serve_file("no", path, false).unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{what}: {error}");
    }
}

/// Nothing but broken or exhausted memory takes the pages of a sealed file, so here the test does: it maps a file that is
/// cut short in the place of the engine's mapping.
#[test]
fn a_session_whose_sealed_memory_is_gone_ends_without_another_success() {
    let _alone = alone();
    let engine = trusting();
    let mut other = User::new(&engine);
    let mut user = User::new(&engine);
    let (mine, fd) = Region::allocate(BYTES, Huge::Never).unwrap();
    let handle = user.client.ask(Kind::REGISTER, &[BYTES, 3], "", &[fd.as_fd()]).args[0] as u32;
    let inode = rustix::fs::fstat(&fd).unwrap().st_ino.to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let starts = maps.lines().filter(|line| line.split(' ').nth(4) == Some(&inode));
    let starts = starts.map(|line| usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap());
    let engines: Vec<usize> = starts.filter(|start| *start != mine.as_ptr().addr()).collect();
    assert_eq!(engines.len(), 1);
    let file = tempfile::tempfile().unwrap();
    let fixed = libc::MAP_SHARED | libc::MAP_FIXED;
    let (base, access) = (engines[0] as *mut libc::c_void, libc::PROT_READ);
    // SAFETY: nobody uses the engine's mapping now, and it has the same length.
    let replaced = unsafe { libc::mmap(base, BYTES as usize, access, fixed, file.as_raw_fd(), 0) };
    assert_eq!(replaced, base);
    // Few enough for one turn, so that all of them count as done before it is seen that they are not.
    for d in &user.batch(Way::SingleRows, handle)[ROWS as usize - 100..] {
        assert!(user.client.try_push(&d.to_entry()));
    }
    user.client.publish();
    assert_eq!(user.client.wait_stopped(), Status::REGION_GONE);
    assert!(user.client.reap().is_none(), "rows of a page that is gone are said to be done");
    let batch = other.batch(Way::SingleRows, other.table);
    assert_eq!(other.run(&batch), (Status::OK, ROWS as usize));
}

#[test]
fn huge_pages_that_cannot_be_had_fail_their_transfers_only() {
    const POOL: &str = "/proc/sys/vm/nr_hugepages";
    const HUGE: u64 = 2 << 20;
    let _alone = alone();
    let engine = trusting();
    let mut user = User::new(&engine);
    let Ok(before) = std::fs::read_to_string(POOL) else { return not_run("there is no pool of huge pages here") };
    let wanted = before.trim().parse::<u64>().unwrap() + 2;
    if std::fs::write(POOL, wanted.to_string()).is_err() {
        return not_run("this user may not reserve huge pages");
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let fd = rustix::fs::memfd_create("huge", flags).unwrap();
    let made = rustix::fs::ftruncate(&fd, 2 * HUGE)
        .and_then(|()| rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, 2 * HUGE))
        .and_then(|()| rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK));
    if made.is_err() {
        std::fs::write(POOL, before).unwrap();
        return not_run("two huge pages cannot be had");
    }
    // From the middle of one page to the middle of the next.
    let registered = user.client.ask(Kind::REGISTER, &[HUGE, 3, HUGE / 2 + 3], "", &[fd.as_fd()]);
    assert_eq!(registered.status, Status::OK, "{}", registered.name());
    let evil = registered.args[0] as u32;
    let mut copy = |from: u64| user.run(&[range((evil, from), (user.out_handle, 0), 4096)]);
    assert_eq!(copy(HUGE - 4096), (Status::OK, 1));
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&fd, hole, 0, 2 * HUGE).unwrap();
    std::fs::write(POOL, before).unwrap();
    assert_eq!(copy(0), (Status::REGION_GONE, 0), "nothing is left of the pool");
    let batch = user.batch(Way::SingleRows, user.table);
    assert_eq!(user.run(&batch), (Status::OK, ROWS as usize));
}

#[test]
fn what_the_same_user_is_trusted_with_is_memory_files_only() {
    let _alone = alone();
    let engine = trusting();
    let mut client = attach(&engine);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, vec![1; 8192]).unwrap();
    let open = |path: &str, flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let memfd = || {
        let fd = rustix::fs::memfd_create("zoo", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, 8192).unwrap();
        fd
    };
    let good = memfd();
    let itself = format!("/proc/self/fd/{}", good.as_raw_fd());
    let (pipe, _other_end) = std::io::pipe().unwrap();
    let whole = [8192, 3, 0];
    let mut zoo: Vec<(&str, OwnedFd, [u64; 3], Status)> = vec![
        ("a file on a disk", open(path.to_str().unwrap(), OFlags::RDWR), whole, Status::BAD_FD),
        ("a device", open("/dev/zero", OFlags::RDWR), whole, Status::BAD_FD),
        ("a pipe", pipe.into(), [8192, 1, 0], Status::BAD_FD),
        ("a directory", open("/dev", OFlags::RDONLY | OFlags::DIRECTORY), [8192, 1, 0], Status::BAD_FD),
        ("a path only", open(&itself, OFlags::PATH), [8192, 1, 0], Status::BAD_FD),
        ("opened for reading", open(&itself, OFlags::RDONLY), whole, Status::BAD_FD),
        ("one byte too many", memfd(), [8192, 3, 1], Status::INVALID_SETTING),
        ("behind its end", memfd(), [1, 3, 8192], Status::INVALID_SETTING),
        ("an offset that overflows", memfd(), [2, 3, u64::MAX], Status::INVALID_SETTING),
    ];
    if rustix::process::geteuid().is_root() {
        let strangers = memfd();
        rustix::fs::fchown(&strangers, Some(rustix::fs::Uid::from_raw(65_534)), None).unwrap();
        zoo.push(("another user's", strangers, whole, Status::BAD_FD));
    } else {
        not_run("a file of another user: this is not root");
    }
    for (what, fd, args, status) in zoo {
        let answer = client.ask(Kind::REGISTER, &args, "", &[fd.as_fd()]);
        assert_eq!(answer.status, status, "{what}: {}", answer.name());
    }
    // From any byte on, and what is there is what is read.
    rustix::io::pwrite(&good, &pattern()[..8192], 0).unwrap();
    let (out, out_handle) = client.memory(8192, BOTH);
    for offset in [0u64, 1, 4095, 4096, 5000, 8191] {
        let answer = client.ask(Kind::REGISTER, &[8192 - offset, 3, offset], "", &[good.as_fd()]);
        assert_eq!(answer.status, Status::OK, "{}", answer.name());
        let len = 8192 - offset as u32;
        assert_eq!(client.done(&range((answer.args[0] as u32, 0), (out_handle, 0), len)).status(), Status::OK);
        let mut read = vec![0; len as usize];
        out.read_at(0, &mut read).unwrap();
        assert!(read == pattern()[offset as usize..8192], "from byte {offset}");
    }
}

#[test]
fn an_engine_that_trusts_nobody_says_what_to_do() {
    let _alone = alone();
    guard_process().unwrap();
    let engine = Engine::new(&Config::default()).unwrap().start().unwrap();
    let client = Client::over(engine.connect().unwrap(), &Setup::default()).unwrap();
    let fd = rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, 4096).unwrap();
    let refusal = client.register(&fd, 4096, BOTH).unwrap_err().to_string();
    assert!(refusal.contains("F_SEAL_SHRINK") && refusal.contains("trust = same-uid"), "{refusal}");
}

#[test]
fn memory_that_is_mapped_from_a_file_is_registered_without_a_copy() {
    let _alone = alone();
    let engine = trusting();
    let mut client = Client::over(engine.connect().unwrap(), &Setup::default()).unwrap();
    let fd = rustix::fs::memfd_create("pool", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, 8192).unwrap();
    let pool = Region::of_own_fd(&fd, 0, 8192, BOTH).unwrap();
    let from_there = pool.as_ptr().wrapping_add(100);
    // SAFETY: `pool` stays mapped until the end, and is read and written as a region only.
    let adopted = unsafe { client.adopt(from_there, 4096, BOTH) }.unwrap();
    let other = client.allocate(4096).unwrap();
    other.write_at(0, b"over there").unwrap();
    client.read(&other, 0, &adopted, 7, 10).unwrap();
    let mut bytes = [0; 10];
    rustix::io::pread(&fd, &mut bytes, 107).unwrap();
    assert_eq!(&bytes, b"over there");
    let mut private = vec![0u8; 4096];
    // SAFETY: refused, so that nobody uses it.
    let refused = unsafe { client.adopt(private.as_mut_ptr(), 4096, BOTH) }.unwrap_err();
    assert!(matches!(refused, ClientError::PrivateMemory) && refused.to_string().contains("lend"), "{refused}");
    for (what, base, shareable) in [("a pool", from_there, true), ("a vector", private.as_mut_ptr(), false)] {
        // SAFETY: as above; nobody opens it.
        let adopted = unsafe { engine.adopt(what, base, 4096, BOTH) }.unwrap();
        assert_eq!(adopted.is_shareable(), shareable, "{what}");
    }
}

#[test]
fn a_lost_region_is_an_error_to_who_reads_and_writes_it_here() {
    let _alone = alone();
    guard_process().unwrap();
    let fd = rustix::fs::memfd_create("cut", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, 8192).unwrap();
    let [read, written] = [0; 2].map(|_| Region::of_own_fd(&fd, 4096, 4096, BOTH).unwrap());
    rustix::fs::ftruncate(&fd, 4096).unwrap();
    assert!(!read.is_lost(), "not touched yet");
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = 77 };
    assert!(matches!(read.read_at(0, &mut [0; 8]), Err(RegionError::Lost)));
    // SAFETY: as above.
    assert_eq!(unsafe { *libc::__errno_location() }, 77, "the handler changes errno");
    assert!(read.is_lost() && !written.is_lost());
    assert!(matches!(written.write_at(0, &[1; 8]), Err(RegionError::Lost)));
}

#[test]
fn mappings_that_are_gone_leave_no_trace() {
    let _alone = alone();
    let turns = if cfg!(debug_assertions) { 10_000 } else { 100_000 };
    let before = guard::mappings();
    let (kept, fd) = Region::allocate(4096, Huge::Never).unwrap();
    assert_eq!(guard::mappings(), before + 1);
    for _ in 0..turns {
        Region::from_fd(&fd, 0, 4096, BOTH, Trust::Sealed).unwrap();
    }
    assert_eq!(guard::mappings(), before + 1);
    drop(kept);
    assert_eq!(guard::mappings(), before);
}

#[test]
#[ignore = "is run by another, as a process of its own that dies"]
fn a_fault_in_memory_that_is_no_region() {
    let Ok(how) = std::env::var("SCATTER_RING_TEST_FAULT") else { return };
    let engine = Engine::new(&Config { trust: Trust::SameUser, ..Config::default() }).unwrap().start().unwrap();
    let mut client = attach(&engine);
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    let unsealed = rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    let refused = client.ask(Kind::REGISTER, &[4096, 3], "", &[unsealed.as_fd()]);
    assert_eq!(refused.status, Status::BAD_FD, "trusted without the guard");
    assert!(engine.serve_file("no", Path::new("/proc/self/exe"), false).is_err(), "served without the guard");
    // What a process does that is not Rust's; Rust's own handler passes over a signal that was sent once.
    // SAFETY: gives the signal back to the kernel.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    guard_process().unwrap();
    guard_process().unwrap();
    // A region that does fault first: the handler stays.
    let region = Region::of_own_fd(&unsealed, 0, 4096, BOTH).unwrap();
    rustix::fs::ftruncate(&unsealed, 0).unwrap();
    assert!(region.read_at(0, &mut [0]).is_err());
    let (access, shared) = (libc::PROT_READ, libc::MAP_SHARED);
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, shared, file.as_raw_fd(), 0) };
    file.set_len(0).unwrap();
    println!("about to die");
    if how == "touch" {
        // SAFETY: mapped; that its page is gone is the point.
        let byte = unsafe { mapped.cast::<u8>().read_volatile() };
        println!("survived: {byte}");
    } else {
        // The handler before ours is that of Rust's runtime, which lets the first one pass and steps back.
        // SAFETY: always allowed.
        unsafe { (libc::raise(libc::SIGBUS), libc::raise(libc::SIGBUS)) };
        println!("survived");
    }
}

#[test]
fn a_fault_in_memory_that_is_no_region_ends_the_process_as_before() {
    for how in ["touch", "sent"] {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_fault_in_memory_that_is_no_region", "--ignored", "--nocapture"])
            .env("SCATTER_RING_TEST_FAULT", how)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("about to die") && !text.contains("survived"), "{how}: {text}");
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{how}: {}", output.status);
    }
}
