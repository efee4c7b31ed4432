//! Memory that a client gives, names and takes back: R14, R15, R22, R24.

mod support;

use ring_abi::{Kind, Status};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use scatter_ring::engine::{Config, Engine};
use scatter_ring::region::{Huge, Region, Rights};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use support::hostile::{Guarded, NOP, StopsOnDrop, eventually, range};
use support::{RawClient, not_run};

fn engine(workers: usize) -> Engine {
    Engine::new(&Config { workers, ..Config::default() }).unwrap()
}

fn memory_file(bytes: u64, seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("zoo", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn opened(path: &str, flags: OFlags) -> OwnedFd {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// What the kernel cannot do here is said, and not passed over.
fn huge_file(seals: SealFlags) -> Option<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let fd = rustix::fs::memfd_create("zoo", flags).ok();
    let fd = fd.filter(|fd| rustix::fs::ftruncate(fd, 2 << 20).is_ok());
    if fd.is_none() {
        not_run("a memory file of huge pages cannot be made here");
    }
    fd.inspect(|fd| rustix::fs::fcntl_add_seals(fd, seals).unwrap())
}

#[test]
fn a_file_that_could_change_under_the_engine_is_refused_and_the_session_goes_on() {
    const BYTES: u64 = 8192;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, vec![0; BYTES as usize]).unwrap();
    let path = path.to_str().unwrap();
    let in_memory = tempfile::tempfile_in("/dev/shm").map(OwnedFd::from);
    if in_memory.is_err() {
        not_run("a file of a tmpfs: there is no /dev/shm here");
    }
    let (pipe, _other_end) = std::io::pipe().unwrap();
    let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
    let good = memory_file(BYTES, SealFlags::SHRINK);
    let itself = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&good));
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::empty()).unwrap();
    let both = Rights::READ_WRITE;
    let (bad, size) = (Status::BAD_FD, Status::INVALID_SETTING);
    let zoo: Vec<(&str, OwnedFd, u64, Rights, Status)> = vec![
        ("/dev/zero", opened("/dev/zero", OFlags::RDWR), BYTES, both, bad),
        ("a pipe", pipe.into(), BYTES, Rights::READ, bad),
        ("a socket", socket.into(), BYTES, both, bad),
        ("an eventfd", event, BYTES, both, bad),
        ("an epoll", epoll, BYTES, both, bad),
        ("a directory", opened("/", OFlags::RDONLY | OFlags::DIRECTORY), BYTES, Rights::READ, bad),
        ("a file on a disk", opened(path, OFlags::RDWR), BYTES, both, bad),
        ("a path only", opened(&itself, OFlags::PATH), BYTES, Rights::READ, bad),
        ("opened for reading", opened(&itself, OFlags::RDONLY), BYTES, both, bad),
        ("no seal", memory_file(BYTES, SealFlags::empty()), BYTES, both, bad),
        ("only a GROW seal", memory_file(BYTES, SealFlags::GROW), BYTES, both, bad),
        ("a WRITE seal", memory_file(BYTES, SealFlags::SHRINK | SealFlags::WRITE), BYTES, both, bad),
        ("a FUTURE_WRITE seal", memory_file(BYTES, SealFlags::SHRINK | SealFlags::FUTURE_WRITE), BYTES, both, bad),
        ("too small", memory_file(BYTES, SealFlags::SHRINK), BYTES + 1, both, size),
        ("nothing", memory_file(BYTES, SealFlags::SHRINK), 0, both, size),
        ("an empty file", memory_file(0, SealFlags::SHRINK), 1, both, size),
        ("everything", memory_file(BYTES, SealFlags::SHRINK), u64::MAX, both, Status::LIMIT_EXCEEDED),
        ("half of everything", memory_file(BYTES, SealFlags::SHRINK), 1 << 63, both, Status::LIMIT_EXCEEDED),
    ];
    let more = [("a file of a tmpfs", in_memory.ok()), ("huge pages, no seal", huge_file(SealFlags::empty()))];
    let more = more.into_iter().filter_map(|(what, fd)| Some((what, fd?, BYTES, both, bad)));

    let engine = engine(0).start().unwrap();
    let mut client = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    for (what, fd, bytes, rights, status) in zoo.into_iter().chain(more) {
        let answer = client.ask(Kind::REGISTER, &[bytes, rights.bits()], "", &[fd.as_fd()]);
        assert_eq!(answer.status, status, "{what}: {}", answer.name());
        assert!(answer.name().len() > 10, "{what}: refused without a reason: {:?}", answer.name());
        println!("{what}: {}", answer.name());
        assert!(!answer.name().contains('/'), "{what}: the refusal names a path: {}", answer.name());
    }
    for rights in [0, 4, 7, u64::MAX] {
        assert_eq!(client.ask(Kind::REGISTER, &[BYTES, rights], "", &[good.as_fd()]).status, Status::INVALID_SETTING);
    }
    for fds in [&[][..], &[good.as_fd(), good.as_fd()]] {
        assert_eq!(client.ask(Kind::REGISTER, &[BYTES, 3], "", fds).status, Status::BAD_FD);
    }
    // What is right is still taken, also when it is sealed against writing and only to be read.
    let written = memory_file(BYTES, SealFlags::SHRINK | SealFlags::WRITE);
    let read_only = client.ask(Kind::REGISTER, &[BYTES, 1], "", &[written.as_fd()]);
    let (_memory, handle) = client.memory(BYTES, both);
    assert_eq!(read_only.status, Status::OK, "{}", read_only.name());
    assert_eq!(client.done(&range((read_only.args[0] as u32, 0), (handle, 0), 64)).status(), Status::OK);
}

#[test]
fn a_file_without_pages_costs_the_engine_none() {
    const BYTES: u64 = 256 << 20;
    let engine = engine(0).start().unwrap();
    let mut client = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    let file = memory_file(BYTES, SealFlags::SHRINK);
    let answer = client.ask(Kind::REGISTER, &[BYTES, 3], "", &[file.as_fd()]);
    assert_eq!(answer.status, Status::OK);
    let pages = rustix::fs::fstat(&file).unwrap().st_blocks / 8;
    assert_eq!(pages, 0, "registering a file has filled it");
    let (_memory, handle) = client.memory(4096, Rights::READ_WRITE);
    assert_eq!(client.done(&range((handle, 0), (answer.args[0] as u32, BYTES - 64), 64)).status(), Status::OK);
}

#[test]
fn holes_punched_under_a_transfer_harm_nobody_else() {
    let engine = engine(1).start().unwrap();
    let mut client = RawClient::attach(engine.connect().unwrap(), 64, 64, 0);
    let (_region, fd) = Region::allocate(1 << 20, Huge::Never).unwrap();
    let punched = client.ask(Kind::REGISTER, &[1 << 20, 3], "", &[fd.as_fd()]).args[0] as u32;
    let (_to, to) = client.memory(1 << 20, Rights::READ_WRITE);
    let mut other = RawClient::attach(engine.connect().unwrap(), 64, 64, 0);
    let (own, own_handle) = other.memory(8192, Rights::READ_WRITE);
    own.write_at(0, &[5; 4096]).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            while !stop.load(Ordering::Relaxed) {
                rustix::fs::fallocate(&fd, punch, 0, 1 << 20).unwrap();
            }
        });
        let _stops = StopsOnDrop(&stop);
        let least = if cfg!(debug_assertions) { Duration::ZERO } else { Duration::from_secs(10) };
        let start = Instant::now();
        for i in 0.. {
            if i >= 300 && start.elapsed() >= least {
                break;
            }
            let way = if i % 2 == 0 { (punched, to) } else { (to, punched) };
            assert_eq!(client.done(&range((way.0, 0), (way.1, 0), 1 << 20)).status(), Status::OK);
            assert_eq!(other.done(&range((own_handle, 0), (own_handle, 4096), 4096)).status(), Status::OK);
        }
    });
    let mut bytes = [0; 4096];
    own.read_at(4096, &mut bytes).unwrap();
    assert_eq!(bytes, [5; 4096]);
}

#[test]
fn a_handle_of_another_session_or_of_before_names_nothing() {
    let engine = engine(0).start().unwrap();
    let mut a = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    let mut b = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    let (_mine, mine) = a.memory(4096, Rights::READ_WRITE);
    let _first = b.memory(4096, Rights::READ_WRITE);
    let (theirs, of_b) = b.memory(4096, Rights::READ_WRITE);
    theirs.write_at(0, &[3; 64]).unwrap();
    for d in [range((of_b, 0), (mine, 0), 64), range((mine, 0), (of_b, 0), 64)] {
        assert_eq!(a.done(&d).status(), Status::UNKNOWN_REGION);
    }
    for kind in [Kind::CLOSE, Kind::EXPORT] {
        let args = if kind == Kind::CLOSE { &[u64::from(of_b)][..] } else { &[u64::from(of_b), 1] };
        assert_eq!(a.ask(kind, args, "x", &[]).status, Status::UNKNOWN_REGION);
        let wide = [u64::from(mine) | 1 << 32, 1];
        assert_eq!(a.ask(kind, &wide[..args.len()], "x", &[]).status, Status::UNKNOWN_REGION);
    }
    let mut handle = mine;
    for _ in 0..100 {
        assert_eq!(a.ask(Kind::CLOSE, &[handle.into()], "", &[]).status, Status::OK);
        assert_eq!(a.ask(Kind::CLOSE, &[handle.into()], "", &[]).status, Status::UNKNOWN_REGION);
        let (_again, again) = a.memory(4096, Rights::READ_WRITE);
        assert_eq!(a.done(&range((handle, 0), (again, 0), 64)).status(), Status::UNKNOWN_REGION);
        assert_eq!(a.done(&range((again, 0), (again, 64), 64)).status(), Status::OK);
        handle = again;
    }
    assert_eq!(b.done(&range((of_b, 0), (of_b, 64), 64)).status(), Status::OK);
}

#[test]
fn a_handle_used_while_it_is_closed_and_registered_again_never_reads_a_successor() {
    // Each is a registration and a closing, and as many uses fall between them as the engine has time for: a million
    // together in release.
    let turns = if cfg!(debug_assertions) { 10_000 } else { 350_000 };
    let engine = engine(1).start().unwrap();
    let RawClient { socket, mut areas, doorbell, mut waker, .. } =
        RawClient::attach(engine.connect().unwrap(), 64, 64, 0);
    let register = |bytes: u64, fd: &OwnedFd| {
        socket.send(&ring_abi::Message::new(Kind::REGISTER, 1, [bytes, 3, 0, 0, 0, 0, 0, 0]), &[fd.as_fd()]).unwrap();
        let answer = socket.receive(true).unwrap().unwrap().message;
        assert_eq!(answer.status, Status::OK, "{}", answer.name());
        answer.args[0] as u32
    };
    let (out, out_fd) = Region::allocate(4096, Huge::Never).unwrap();
    let out_handle = register(4096, &out_fd);
    let (names, stop) = ([const { AtomicU32::new(0) }; 8], AtomicBool::new(false));
    let (names, stop, register, socket) = (&names, &stop, &register, &socket);
    let mut met = [0u32; 2];
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _stops = StopsOnDrop(stop);
            for turn in 0..turns {
                let (region, fd) = Region::allocate(64, Huge::Never).unwrap();
                let handle = register(64, &fd);
                // Whoever reads through a handle must read that handle.
                region.write_at(0, &handle.to_le_bytes()).unwrap();
                names[turn % 8].store(handle, Ordering::Release);
                let close = [u64::from(names[(turn + 3) % 8].load(Ordering::Relaxed)), 0, 0, 0, 0, 0, 0, 0];
                socket.send(&ring_abi::Message::new(Kind::CLOSE, 2, close), &[]).unwrap();
                let closed = socket.receive(true).unwrap().unwrap().message.status;
                assert!(closed.is_ok() || turn < 8, "{closed}");
            }
        });
        let mut i = 0;
        while !stop.load(Ordering::Acquire) {
            i += 1;
            let handle = names[i % 8].load(Ordering::Acquire);
            out.write_at(0, &[0; 4]).unwrap();
            areas.sq.push(&range((handle, 0), (out_handle, 0), 4).to_entry()).unwrap();
            areas.sq.publish();
            if waker.must_wake(&areas.engine_sleep) {
                rustix::io::write(&doorbell, &1u64.to_ne_bytes()).unwrap();
            }
            let span = loop {
                if let Some(entry) = areas.cq.pop().unwrap() {
                    break ring_abi::Span::from_entry(&entry);
                }
                assert_eq!(scatter_ring::ring::stop_seen(&areas.stop), None);
                std::thread::yield_now();
            };
            areas.cq.release();
            if span.status().is_ok() {
                let mut bytes = [0; 4];
                out.read_at(0, &mut bytes).unwrap();
                assert_eq!(u32::from_le_bytes(bytes), handle, "read through a handle what another one names");
            } else {
                // Withdrawn already, and taken away from the session a moment later.
                let refused = [Status::UNKNOWN_REGION, Status::REGION_GONE];
                assert!(refused.contains(&span.status()), "{span:?}");
            }
            met[usize::from(span.status().is_ok())] += 1;
        }
    });
    assert!(met.iter().all(|n| *n > 100), "{met:?}");
    println!("{turns} registrations and closings, {met:?} uses refused and done");
}

/// Exports `region` of one client and opens it as another.
fn shared(owner: &mut RawClient, user: &mut RawClient, handle: u32) -> u32 {
    assert_eq!(owner.ask(Kind::EXPORT, &[handle.into(), 3], "shared", &[]).status, Status::OK);
    let opened = user.ask(Kind::OPEN, &[3], "shared", &[]);
    assert_eq!(opened.status, Status::OK);
    opened.args[0] as u32
}

#[test]
fn a_region_that_its_owner_closes_is_gone_for_new_use_and_closed_when_the_old_has_drained() {
    const BYTES: u32 = 64 << 20;
    for (opener_closes_too, opener_is_first) in [(false, false), (true, false), (true, true)] {
        let mut engine = engine(0);
        let mut owner = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
        let mut user = RawClient::attach(engine.connect().unwrap(), 64, 64, 0);
        let (memory, handle) = owner.memory(BYTES.into(), Rights::READ_WRITE);
        memory.write_at(u64::from(BYTES) - 1, &[8]).unwrap();
        let (copy, own) = user.memory(BYTES.into(), Rights::READ_WRITE);
        let opened = shared(&mut owner, &mut user, handle);
        user.submit(&range((opened, 0), (own, 0), BYTES));
        user.submit(&NOP);
        eventually("the transfer is under way", || {
            engine.poll_once();
            user.areas.cq.available().unwrap() == 1
        });
        assert_eq!(user.reap().unwrap().first, 1);
        let mut closes = vec![(&mut owner, handle)];
        if opener_closes_too {
            closes.insert(usize::from(!opener_is_first), (&mut user, opened));
        }
        for (client, handle) in closes {
            client.send(Kind::CLOSE, &[handle.into()], "", &[]);
            // Questions are read in their order: one that is answered says that the close was read.
            assert_eq!(client.ask(Kind::OPEN, &[1], "nothing", &[]).status, Status::NAME_UNKNOWN);
        }
        user.submit(&range((opened, 0), (own, 0), 1));
        engine.poll_once();
        engine.poll_once();
        let refused = user.reap().expect("one turn is enough for a refusal");
        let gone = if opener_closes_too { Status::UNKNOWN_REGION } else { Status::REGION_GONE };
        assert_eq!((refused.first, refused.status()), (2, gone));
        let mut answered = 0;
        loop {
            let closed = [&owner, &user].map(|client| client.socket.receive(false).unwrap());
            answered += closed.iter().flatten().count();
            if let Some(span) = user.reap() {
                assert_eq!((span.first, span.status(), span.bytes), (0, Status::OK, BYTES.into()));
                break;
            }
            assert_eq!(answered, 0, "closed while a transfer was in flight");
            engine.poll_once();
        }
        let mut last = [0];
        copy.read_at(u64::from(BYTES) - 1, &mut last).unwrap();
        assert_eq!(last, [8]);
        let wanted = 1 + usize::from(opener_closes_too);
        eventually("every close is answered", || {
            engine.poll_once();
            let closed = [&owner, &user].map(|client| client.socket.receive(false).unwrap());
            answered += closed.iter().flatten().count();
            answered == wanted
        });
    }
}

/// An engine that touches the memory after `close` has returned writes into what is somebody else's by then.
#[test]
fn adopted_memory_is_its_owners_again_when_close_returns() {
    let engine = engine(1).start().unwrap();
    for round in 0..20 {
        let memory = Guarded::new(4096);
        let name = format!("of round {round}");
        // SAFETY: the memory is used by nobody else before it was closed.
        let adopted = unsafe { engine.adopt(&name, memory.base(), memory.len() as u64, Rights::READ_WRITE) }.unwrap();
        let mut client = RawClient::attach(engine.connect().unwrap(), 64, 128, 0);
        let (source, from) = client.memory(memory.len() as u64, Rights::READ_WRITE);
        source.write_at(0, &vec![7; memory.len()]).unwrap();
        let opened = client.ask(Kind::OPEN, &[3], &name, &[]).args[0] as u32;
        for _ in 0..8 {
            client.submit(&range((from, 0), (opened, 0), memory.len() as u32));
        }
        assert!(client.done(&NOP).status().is_ok(), "taken behind the transfers, done before them");
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| adopted.close());
            if round % 2 == 0 {
                // The name is free when the engine has begun to close; then the opener closes too.
                while !client.ask(Kind::EXPORT, &[from.into(), 3], &name, &[]).status.is_ok() {}
                client.ask(Kind::CLOSE, &[opened.into()], "", &[]);
            }
            closing.join().unwrap();
        });
        memory.fill(0xA5);
        for _ in 0..8 {
            assert!([Status::OK, Status::REGION_GONE].contains(&client.wait().status()));
        }
        assert!(memory.bytes().iter().all(|byte| *byte == 0xA5), "written after it was closed, round {round}");
        memory.protect(libc::PROT_NONE);
    }
}

/// Rows that are wide and missing cost a look each and move nothing: they too have to end a turn.
#[test]
fn millions_of_missing_rows_do_not_hold_others_up() {
    use ring_abi::{Descriptor, Flags, IndexKind};
    const COUNT: u32 = 2 << 20;
    let mut engine = engine(0);
    let mut evil = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    let (index, numbers) = evil.memory(8 * u64::from(COUNT), Rights::READ_WRITE);
    index.write_at(0, &vec![0xFF; 8 * COUNT as usize]).unwrap();
    let (_memory, handle) = evil.memory(1 << 20, Rights::READ_WRITE);
    let mut other = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    let both = IndexKind::pack(IndexKind::U32, IndexKind::U32);
    for len in [8, 1 << 20] {
        let flags = Flags::LAST | Flags::MISSING_SKIP;
        let d = range((handle, 0), (handle, 0), len);
        let d = Descriptor { flags, index_kind: both, index_region: numbers, count: COUNT, dst_stride: len, ..d };
        evil.submit(&d);
        eventually("taken", || {
            engine.poll_once();
            evil.areas.sq.free().unwrap() == 8
        });
        let mut turns = 0;
        while evil.reap().is_none() {
            other.submit(&NOP);
            engine.poll_once();
            let _ = engine.poll_once();
            assert!(other.reap().is_some());
            turns += 1;
        }
        assert!(turns > 50, "{COUNT} rows of {len} bytes were passed in {turns} turns");
    }
}
