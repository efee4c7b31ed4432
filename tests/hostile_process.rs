//! Clients that are killed, fork, or meet an engine that gets no memory: R13, R18, R34.

mod support;

use ring_abi::{Kind, Status};
use rustix::fd::AsFd;
use scatter_ring::attach::Socket;
use scatter_ring::client::{Client, ClientError, Setup};
use scatter_ring::engine::{Config, Engine, Limits};
use scatter_ring::region::{Huge, Region, Rights};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use support::hostile::{alone, eventually, mapped_memory_files, open_fds, range};
use support::{Random, RawClient};

/// A process of this program that runs one ignored test.
fn another_process(test: &str, path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("SCATTER_RING_TEST_SOCKET", path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn connect(path: &str) -> Socket {
    let address = rustix::net::SocketAddrUnix::new(path).unwrap();
    let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, rustix::net::SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    Socket::new(socket)
}

#[test]
#[ignore = "is run by others, as a process of its own that is killed"]
fn a_client_that_will_be_killed() {
    let Ok(path) = std::env::var("SCATTER_RING_TEST_SOCKET") else { return };
    let mut random = Random(std::process::id().into());
    loop {
        let mut client = RawClient::attach(connect(&path), 64, 64, random.next());
        let (_memory, handle) = client.memory(1 << 20, Rights::READ_WRITE);
        let name = format!("of {}", std::process::id());
        client.ask(Kind::EXPORT, &[handle.into(), 3], &name, &[]);
        let opened = client.ask(Kind::OPEN, &[3], &name, &[]).args[0] as u32;
        println!("attached");
        for _ in 0..1000 {
            for _ in 0..16 {
                let len = 1 << random.below(20);
                client.try_push(&range((handle, 0), (opened, (1 << 20) - len), len as u32).to_entry());
            }
            client.publish();
            while client.reap().is_some() {}
            if random.one_in(50) {
                let (_more, handle) = client.memory(4096, Rights::READ_WRITE);
                client.send(Kind::CLOSE, &[handle.into()], "", &[]);
                client.answer();
            }
        }
    }
}

#[test]
fn a_client_that_is_killed_leaves_nothing_behind_and_disturbs_nobody() {
    let _alone = alone();
    let kills = if cfg!(debug_assertions) { 20 } else { 200 };
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let path = directory.path().join("socket");
    let engine = Engine::new(&Config { workers: 1, ..Config::default() }).unwrap().start().unwrap();
    engine.listen(&path).unwrap();
    let mut other = RawClient::attach(engine.connect().unwrap(), 64, 64, 0);
    let (memory, handle) = other.memory(8192, Rights::READ_WRITE);
    let mut random = Random(11);
    let serve = |other: &mut RawClient, byte: u8| {
        memory.write_at(0, &[byte; 4096]).unwrap();
        assert_eq!(other.done(&range((handle, 0), (handle, 4096), 4096)).status(), Status::OK);
        let mut bytes = [0; 4096];
        memory.read_at(4096, &mut bytes).unwrap();
        assert_eq!(bytes, [byte; 4096]);
    };
    serve(&mut other, 1);
    let before = (open_fds(), mapped_memory_files());
    for kill in 0..kills {
        let mut child = another_process("a_client_that_will_be_killed", &path);
        let mut output = child.stdout.take().unwrap();
        let mut line = [0; 64];
        let mut seen = String::new();
        while !seen.contains("attached") {
            let n = output.read(&mut line).unwrap();
            assert!(n > 0, "the client has ended by itself: {seen}");
            seen.push_str(std::str::from_utf8(&line[..n]).unwrap());
        }
        for _ in 0..random.below(200) {
            serve(&mut other, kill as u8);
        }
        child.kill().unwrap();
        serve(&mut other, 0xFF);
        child.wait().unwrap();
        drop(output);
        eventually("what the client had is gone", || (open_fds(), mapped_memory_files()) == before);
        serve(&mut other, 0x55);
    }
}

#[test]
#[ignore = "is run by others, as a process of its own: its memory is limited"]
fn an_engine_without_memory_says_so() {
    let Ok(_) = std::env::var("SCATTER_RING_TEST_SOCKET") else { return };
    // Whoever waits for this process waits no longer than that.
    // SAFETY: always allowed.
    unsafe { libc::alarm(30) };
    let limits = Limits { ring_slots: ring_abi::CAPACITY_MAX, ..Limits::default() };
    let engine = Engine::new(&Config { workers: 0, limits, ..Config::default() }).unwrap().start().unwrap();
    let mut client = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    let (_memory, handle) = client.memory(4096, Rights::READ_WRITE);
    let (file, fd) = Region::allocate(1 << 20, Huge::Never).unwrap();
    let huge = rustix::fs::memfd_create("huge", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&huge, 1 << 40).unwrap();
    rustix::fs::fcntl_add_seals(&huge, rustix::fs::SealFlags::SHRINK).unwrap();
    let limits =
        [(libc::RLIMIT_AS, "address space"), (libc::RLIMIT_FSIZE, "file size"), (libc::RLIMIT_NOFILE, "files")];
    for (resource, what) in limits {
        let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `old` is a place for a limit.
        assert_eq!(unsafe { libc::getrlimit(resource, &mut old) }, 0);
        let low = match resource {
            libc::RLIMIT_AS => 3 << 29,
            libc::RLIMIT_FSIZE => 1 << 20,
            _ => open_fds() as u64 + 3,
        };
        let limit = libc::rlimit { rlim_cur: low, ..old };
        // A file that is longer than allowed is an error, as in a daemon, and not a signal.
        // SAFETY: changes what this process may use, and how a signal is taken.
        assert_eq!(unsafe { (libc::signal(libc::SIGXFSZ, libc::SIG_IGN), libc::setrlimit(resource, &limit)).1 }, 0);
        let mut refused = 0;
        let mut held = Vec::new();
        let capacity = if resource == libc::RLIMIT_NOFILE { 8 } else { 1 << 20 };
        for _ in 0..20 {
            // With no file descriptor left there is no socket either.
            let Ok(socket) = engine.connect() else { break };
            socket.send(&ring_abi::Message::hello(ring_abi::Features(1), capacity, capacity, 0), &[]).unwrap();
            match socket.receive(true) {
                Ok(answer) if answer.as_ref().is_some_and(|a| a.message.status == Status::NO_MEMORY) => {
                    let text = answer.unwrap().message.name().to_owned();
                    println!("{what}: {text}");
                    assert!(text.contains(':'), "{text}");
                    refused += 1;
                }
                received => held.push((socket, received)),
            }
        }
        assert!(refused > 0 || resource == libc::RLIMIT_NOFILE, "{what}: never refused");
        assert_eq!(client.done(&range((handle, 0), (handle, 64), 64)).status(), Status::OK, "{what}");
        if resource == libc::RLIMIT_AS {
            let answer = client.ask(Kind::REGISTER, &[1 << 40, 3], "", &[huge.as_fd()]);
            assert_eq!(answer.status, Status::NO_MEMORY, "{}", answer.name());
        }
        drop(held);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setrlimit(resource, &old) }, 0);
        assert_eq!(client.ask(Kind::REGISTER, &[1 << 20, 3], "", &[fd.as_fd()]).status, Status::OK, "{what}");
    }
    drop(file);
    println!("went on");
}

#[test]
fn memory_that_cannot_be_had_is_an_answer_and_the_engine_goes_on() {
    let _alone = alone();
    let child = another_process("an_engine_without_memory_says_so", Path::new("unused"));
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("went on"), "{}: {text}", output.status);
}

#[test]
fn a_forked_child_gets_an_error_and_its_parent_goes_on_as_before() {
    let _alone = alone();
    let engine = Engine::new(&Config { workers: 1, ..Config::default() }).unwrap().start().unwrap();
    let mut client = Client::over(engine.connect().unwrap(), &Setup::default()).unwrap();
    let (from, to) = (client.allocate(8192).unwrap(), client.allocate(8192).unwrap());
    from.write_at(0, &[6; 8192]).unwrap();
    client.read(&from, 0, &to, 0, 64).unwrap();
    let driven = Engine::new(&Config { workers: 1, ..Config::default() }).unwrap();
    // SAFETY: the child only makes calls that refuse at once, and leaves by `_exit`, or by a signal if it hangs.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: always allowed.
        unsafe { libc::alarm(10) };
        let mut refused = client.batch().submit().is_err_and(|error| error.status == Status::FORKED);
        refused &= matches!(client.reap(), Err(ClientError::Forked));
        refused &= matches!(client.allocate(4096), Err(ClientError::Forked));
        // Threads that a child does not have are not waited for.
        drop((from, to, client, driven, engine));
        // SAFETY: always allowed.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    for _ in 0..100 {
        client.read(&from, 0, &to, 0, 4096).unwrap();
    }
    let mut status = 0;
    // SAFETY: `child` is a child of this process, `status` a place for its status.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "a call went through in the child");
    client.read(&from, 0, &to, 0, 8192).unwrap();
    let mut bytes = [0; 8192];
    to.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [6; 8192]);
    client.allocate(4096).unwrap();
}
