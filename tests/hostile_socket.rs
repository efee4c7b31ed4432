//! What a client can send to an engine: R12, R17, R40, R48.

mod support;

use ring_abi::{Features, Header, Kind, MESSAGE_BYTES, MESSAGE_FDS_MAX, Message, Status, abi_word, complete};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::FdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use scatter_ring::attach::{AttachError, ClientAreas, EngineAreas, Socket};
use scatter_ring::engine::{Config, Engine, RunningEngine};
use scatter_ring::region::{Rights, SharedPages};
use scatter_ring::sync::Ordering::Relaxed;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use support::hostile::{NOP, alone, eventually, open_fds, range};
use support::{Random, RawClient};

fn engine() -> RunningEngine {
    Engine::new(&Config { workers: 0, ..Config::default() }).unwrap().start().unwrap()
}

/// Any bytes with any number of file descriptors, without waiting. False if the kernel does not take them.
fn send_raw(socket: &Socket, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).is_ok()
}

/// Waits until the engine has closed the connection.
fn is_closed(socket: &Socket) -> bool {
    loop {
        match socket.receive(true) {
            Ok(_) => {}
            Err(AttachError::Closed) => return true,
            Err(_) => return false,
        }
    }
}

fn serves(engine: &RunningEngine) {
    let mut client = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    let (_memory, handle) = client.memory(4096, Rights::READ_WRITE);
    assert_eq!(client.done(&range((handle, 0), (handle, 64), 64)).status(), Status::OK);
}

fn question(kind: Kind, args: [u64; 8]) -> Message {
    Message::new(kind, 7, args)
}

#[test]
fn no_message_leaves_a_file_descriptor_behind() {
    let _alone = alone();
    let engine = engine();
    let file = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    let fds: Vec<BorrowedFd<'_>> = (0..253).map(|_| file.as_fd()).collect();
    let before = open_fds();
    serves(&engine);
    let mut random = Random(5);
    let mut kinds = [0u32; 3];
    let kinds_known = [Kind::HELLO, Kind::REGISTER, Kind::EXPORT, Kind::OPEN, Kind::CLOSE, Kind::CANCEL];
    for i in 0..1000 {
        let socket = engine.connect().unwrap();
        let greeted = random.one_in(2);
        let held = greeted.then(|| RawClient::attach(engine.connect().unwrap(), 4, 4, 0));
        let socket = held.as_ref().map_or(&socket, |client| &client.socket);
        let count = if i < 254 { i } else { random.below(7) as usize };
        let kind = random.pick(&kinds_known);
        let mut bytes = question(kind, std::array::from_fn(|_| random.below(3))).to_bytes().to_vec();
        match random.below(6) {
            0 => bytes.truncate(random.below(MESSAGE_BYTES as u64) as usize),
            1 => bytes.extend([0; 100]),
            2 => bytes.iter_mut().for_each(|byte| *byte = random.next() as u8),
            3 => bytes[random.below(MESSAGE_BYTES as u64) as usize] ^= 1 << random.below(8),
            _ => {}
        }
        // A socket that the engine has closed takes nothing any more.
        if !send_raw(socket, &bytes, &fds[..count]) {
            kinds[0] += 1;
            continue;
        }
        match socket.receive(true) {
            Ok(answer) => {
                assert!(answer.unwrap().message.status != Status::OK || count <= 1);
                kinds[1] += 1;
            }
            Err(_) => kinds[2] += 1,
        }
    }
    assert!(kinds[1] > 50 && kinds[2] > 50, "{kinds:?}");
    eventually("everything is closed", || open_fds() == before);
    serves(&engine);
}

#[test]
fn more_descriptors_than_a_message_has_or_any_where_none_belong_end_the_session() {
    let _alone = alone();
    let engine = engine();
    let file = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    let bytes = question(Kind::REGISTER, [4096, 3, 0, 0, 0, 0, 0, 0]).to_bytes();
    for count in [MESSAGE_FDS_MAX + 1, 8, 253] {
        let client = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
        assert!(send_raw(&client.socket, &bytes, &vec![file.as_fd(); count]));
        assert_eq!(client.wait_stopped(), Status::BAD_MESSAGE, "{count}");
        assert!(is_closed(&client.socket), "{count}");
    }
    for kind in [Kind::OPEN, Kind::EXPORT, Kind::CLOSE, Kind::CANCEL] {
        let client = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
        assert!(send_raw(&client.socket, &question(kind, [0; 8]).to_bytes(), &[file.as_fd()]));
        assert_eq!(client.wait_stopped(), Status::BAD_MESSAGE, "{kind:?}");
    }
    serves(&engine);
}

#[test]
fn file_descriptors_are_not_inherited_by_programs_that_either_side_starts() {
    let _alone = alone();
    let (ours, theirs) = Socket::pair().unwrap();
    let file = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    ours.send(&question(Kind::REGISTER, [0; 8]), &[file.as_fd(); 4]).unwrap();
    let received = theirs.receive(true).unwrap().unwrap();
    assert_eq!(received.fds.len(), 4);
    let close_on_exec = |fd: &OwnedFd| rustix::io::fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC);
    assert!(received.fds.iter().all(close_on_exec));

    // Everything that an engine and a client have: only what this test made so may be without the mark.
    let engine = engine();
    let client = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    assert!(close_on_exec(&client.doorbell) && close_on_exec(&client.wake));
    let inherited: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| {
            let number = entry.unwrap().file_name().into_string().unwrap();
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim().to_owned();
            let flags = u32::from_str_radix(&flags, 8).unwrap();
            let target = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?.display().to_string();
            let ours = target.contains("memfd") || target.contains("eventpoll") || target.contains("socket");
            (flags & libc::O_CLOEXEC as u32 == 0 && ours && number.parse::<u32>().unwrap() > 2).then_some(target)
        })
        .collect();
    assert!(inherited.is_empty(), "{inherited:?}");
}

#[test]
fn only_hello_opens_a_session_and_only_once() {
    let _alone = alone();
    let engine = engine();
    for kind in [0, 2, 3, 4, 5, 6, 7, 8, 9, 0x8001, 0xFFFF] {
        let socket = engine.connect().unwrap();
        assert!(send_raw(&socket, &question(Kind(kind), [0; 8]).to_bytes(), &[]));
        assert!(is_closed(&socket), "kind {kind} before HELLO");
    }
    let twice = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    twice.socket.send(&Message::hello(Features(1), 8, 8, 0), &[]).unwrap();
    assert_eq!(twice.wait_stopped(), Status::BAD_MESSAGE);
    let answer = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    answer.socket.send(&question(Kind::OPEN, [1; 8]).answer(Status::OK, [0; 8]), &[]).unwrap();
    assert_eq!(answer.wait_stopped(), Status::BAD_MESSAGE);
    serves(&engine);
}

#[test]
fn packets_that_are_no_message_end_the_session() {
    let _alone = alone();
    let engine = engine();
    let good = question(Kind::OPEN, [1, 0, 0, 0, 0, 0, 0, 0]).with_name("x").to_bytes();
    let changed = |at: usize, to: u8| {
        let mut bytes = good.to_vec();
        bytes[at] = to;
        bytes
    };
    let mut cases = vec![good[1..].to_vec(), [&good[..], &[0]].concat(), vec![1], vec![0xFF; MESSAGE_BYTES]];
    cases.extend([changed(2, 1), changed(84, 1), changed(80, 169), changed(83, 1), changed(88, 0xFF), changed(200, 1)]);
    for bytes in cases {
        let client = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
        assert!(send_raw(&client.socket, &bytes, &[]));
        assert_eq!(client.wait_stopped(), Status::BAD_MESSAGE, "{bytes:?}");
        assert!(is_closed(&client.socket));
    }
    serves(&engine);
}

#[test]
fn a_hello_of_another_version_or_with_unknown_wishes_is_refused_by_name() {
    let _alone = alone();
    let engine = engine();
    let hello = |abi: u64, features: u64, capacities: u64, more: u64| {
        question(Kind::HELLO, [ring_abi::MAGIC, abi, features, capacities, 0, more, 0, 0])
    };
    let (abi, sizes) = (abi_word(), 8 | 8 << 32);
    let magic = question(Kind::HELLO, [ring_abi::MAGIC ^ 1, abi, 1, sizes, 0, 0, 0, 0]);
    let mut cases = vec![
        (magic, Status::BAD_MESSAGE, "not a scatter-ring client"),
        (hello(abi + 1, 1, sizes, 0), Status::VERSION_MISMATCH, "ABI"),
        (hello(abi - 1, 1, sizes, 0), Status::VERSION_MISMATCH, "ABI"),
        (hello(abi + (1 << 32), 1, sizes, 0), Status::VERSION_MISMATCH, "ABI"),
        (hello(abi + (1 << 48), 1, sizes, 0), Status::VERSION_MISMATCH, "ABI"),
        (hello(0, 1, sizes, 0), Status::VERSION_MISMATCH, "ABI"),
        (hello(abi, Features::PEERS, sizes, 0), Status::MISSING_FEATURE, "0x10"),
        (hello(abi, 1, sizes, 1), Status::INVALID_SETTING, "argument"),
    ];
    cases.extend((6..64).map(|bit| (hello(abi, 1 << bit, sizes, 0), Status::MISSING_FEATURE, "feature")));
    for capacity in [0, 1, 2, 3, 9, 1 << 21, 1 << 31, u64::from(u32::MAX)] {
        cases.push((hello(abi, 1, capacity | 8 << 32, 0), Status::INVALID_SETTING, "SQ capacity"));
        cases.push((hello(abi, 1, 8 | capacity << 32, 0), Status::INVALID_SETTING, "CQ capacity"));
    }
    for (message, status, named) in cases {
        let socket = engine.connect().unwrap();
        socket.send(&message, &[]).unwrap();
        let answer = socket.receive(true).unwrap().unwrap();
        assert!(answer.fds.is_empty());
        assert_eq!((answer.message.status, answer.message.request), (status, 7), "{:?}", message.args);
        assert!(answer.message.name().contains(named), "{} does not name {named}", answer.message.name());
        assert!(is_closed(&socket));
    }
    // A newer minor version is not a reason.
    let socket = engine.connect().unwrap();
    socket.send(&hello(abi + (9 << 16), 1, sizes, 0), &[]).unwrap();
    assert_eq!(socket.receive(true).unwrap().unwrap().message.status, Status::OK);
}

#[test]
fn a_client_refuses_a_header_that_differs_in_any_field_it_relies_on() {
    let _alone = alone();
    let good = Header::new(8, 8, Features(1), 1, 0);
    let mut refused = 0;
    for word in 0..ring_abi::HEADER_WORDS {
        for bit in 0..64 {
            let mut words = good.to_words();
            words[word] ^= 1 << bit;
            let header = Header::from_words(&words);
            if header.check().is_ok() {
                // Only what may differ: minor version, features, epoch, start position.
                let same = Header {
                    abi_minor: good.abi_minor,
                    features: good.features,
                    epoch: good.epoch,
                    start_position: good.start_position,
                    ..header
                };
                let other_capacity = (header.sq_capacity, header.cq_capacity) != (8, 8);
                assert!(same == good || other_capacity, "{header:?}");
                continue;
            }
            let Err((status, field)) = header.check() else { unreachable!() };
            assert!(!field.is_empty() && status != Status::OK);
            refused += 1;
            // The areas of a lying engine: the right sizes, the wrong header.
            if bit % 8 == 0 && Header::is_capacity(header.sq_capacity) && Header::is_capacity(header.cq_capacity) {
                let (_areas, [submit, complete]) = EngineAreas::create(&header).unwrap();
                let error = ClientAreas::map(&submit, &complete, 8, 8).unwrap_err();
                assert!(error.to_string().contains("header"), "{error}");
            }
        }
    }
    assert!(refused > 300, "{refused}");
}

/// The descriptors that a client gets are all it has: none of them, and no way around them, lets it write spans.
#[test]
fn no_descriptor_of_a_real_session_lets_its_client_write_the_complete_area() {
    let _alone = alone();
    let engine = engine();
    let socket = engine.connect().unwrap();
    socket.send(&Message::hello(Features(1), 8, 8, 0), &[]).unwrap();
    let received = socket.receive(true).unwrap().unwrap();
    let [submit, complete, ..]: [OwnedFd; 4] = received.fds.try_into().unwrap();
    let bytes = complete::bytes(8);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&complete));
    let opened = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, rustix::fs::Mode::empty());
    let again = [Some(complete), opened.ok()];
    for fd in again.iter().flatten() {
        assert!(SharedPages::map(fd, bytes, true).is_err(), "mapped for writing");
        assert!(rustix::io::pwrite(fd, &[1], 4096).is_err(), "written through the file");
        assert!(rustix::fs::ftruncate(fd, 0).is_err() && rustix::fs::ftruncate(fd, 1 << 20).is_err(), "resized");
        for flags in [FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, FallocateFlags::empty()] {
            let _ = rustix::fs::fallocate(fd, flags, 0, 4096);
        }
        assert!(rustix::fs::fcntl_add_seals(fd, rustix::fs::SealFlags::WRITE).is_err(), "sealed once more");
    }
    let header = ClientAreas::map(&submit, again[0].as_ref().unwrap(), 8, 8).unwrap().header;
    assert_eq!(header.check(), Ok(()), "a hole was punched into the header");
    assert!(rustix::fs::ftruncate(&submit, 0).is_err(), "the submit area was shrunk under the engine");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // Of its own area a client may make holes: they read as 0.
    rustix::fs::fallocate(&submit, punch, 0, 4096).unwrap();
    // R23: nor is what the engine handed out memory to register.
    let mut client = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    let refused = client.ask(Kind::REGISTER, &[4096, 3], "", &[again[0].as_ref().unwrap().as_fd()]);
    assert_eq!(refused.status, Status::BAD_FD, "{}", refused.name());
    serves(&engine);
}

#[test]
fn a_client_that_makes_its_descriptors_block_holds_nobody_up() {
    let _alone = alone();
    let engine = engine();
    let mut evil = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    let make_it_block = |fd: &OwnedFd| {
        let flags = rustix::fs::fcntl_getfl(fd).unwrap();
        rustix::fs::fcntl_setfl(fd, flags & !OFlags::NONBLOCK).unwrap();
    };
    make_it_block(&evil.wake);
    // The wake socket towards the client: one byte for every sleep that the engine has to end, more than it holds.
    for sleep in 1..=2000 {
        evil.areas.client_sleep.store(sleep, Relaxed);
        assert_eq!(evil.done(&NOP).status(), Status::OK);
    }
    let mut waiting = 0;
    let mut byte = [0];
    while rustix::net::recv(&evil.wake, &mut byte[..], rustix::net::RecvFlags::DONTWAIT).is_ok_and(|(n, _)| n > 0) {
        waiting += 1;
    }
    assert!((100..2000).contains(&waiting), "the socket was not full: {waiting} bytes");
    // The doorbell's counter: the next write of anybody would wait. If the engine has slept it is not 0 yet, and there is
    // no room for this.
    let _ = rustix::io::read(&evil.doorbell, &mut [0; 8]);
    rustix::io::write(&evil.doorbell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    make_it_block(&evil.doorbell);
    rustix::net::send(&evil.wake, &[0; 1 << 20], SendFlags::DONTWAIT).ok();
    for sleep in 3000..3100 {
        evil.areas.client_sleep.store(sleep, Relaxed);
        evil.areas.sq.push(&NOP.to_entry()).unwrap();
        evil.areas.sq.publish();
        serves(&engine);
        while evil.reap().is_some() {}
    }
    // The attach socket: questions whose answers nobody reads.
    let deaf = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    let open = question(Kind::OPEN, [1, 0, 0, 0, 0, 0, 0, 0]).with_name("nothing").to_bytes();
    eventually("a client that does not listen loses its session", || {
        send_raw(&deaf.socket, &open, &[]);
        deaf.stopped().is_some()
    });
    serves(&engine);
}

#[test]
fn names_are_not_kept_without_end() {
    let _alone = alone();
    let engine = engine();
    let mut client = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    let (_memory, handle) = client.memory(4096, Rights::READ_WRITE);
    let mut refused = None;
    for i in 0..5000 {
        let answer = client.ask(Kind::EXPORT, &[handle.into(), 1], &format!("name {i}"), &[]);
        if answer.status != Status::OK {
            refused = Some((i, answer.status));
            break;
        }
    }
    assert_eq!(refused, Some((4096, Status::LIMIT_EXCEEDED)));
    // They end with their region.
    assert_eq!(client.ask(Kind::CLOSE, &[handle.into()], "", &[]).status, Status::OK);
    let (_memory, handle) = client.memory(4096, Rights::READ_WRITE);
    assert_eq!(client.ask(Kind::EXPORT, &[handle.into(), 1], "name 0", &[]).status, Status::OK);
}

/// A TCP socket with unsent data whose close waits for an hour, or rather for a minute.
fn lingering() -> (std::net::TcpStream, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other_end, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut &socket, &[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&socket, Some(std::time::Duration::from_secs(60))).unwrap();
    (socket, other_end)
}

#[test]
fn a_descriptor_whose_close_waits_holds_nobody_up() {
    let _alone = alone();
    let engine = engine();
    let register = question(Kind::REGISTER, [4096, 3, 0, 0, 0, 0, 0, 0]).to_bytes();
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    // Alone; as the last of more than a message may have; in a message behind one that ends the session.
    for (before, bytes) in [(0, &[][..]), (252, &[]), (5, &[]), (0, &[1])] {
        let client = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
        let (slow, _other_end) = lingering();
        if !bytes.is_empty() {
            // Both are there before the engine looks.
            send_raw(&client.socket, bytes, &[]);
        }
        let mut fds = vec![event.as_fd(); before];
        fds.push(slow.as_fd());
        send_raw(&client.socket, &register, &fds);
        drop(fds);
        drop(slow);
        let start = std::time::Instant::now();
        serves(&engine);
        drop(client);
        serves(&engine);
        assert!(start.elapsed() < std::time::Duration::from_secs(5), "{before} before it");
    }
}

#[test]
fn an_engine_that_stops_leaves_the_socket_of_another_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("own/socket");
    let first = engine();
    let second = engine();
    let listen = |engine: &scatter_ring::engine::RunningEngine| {
        engine.listen(&path).unwrap();
        // The control thread reads its letters in order: when this client is attached it has the listener.
        drop(RawClient::attach(engine.connect().unwrap(), 8, 8, 0));
    };
    listen(&first);
    std::fs::remove_file(&path).unwrap();
    listen(&second);
    first.stop();
    assert!(path.exists(), "the socket of the second engine is gone");
    second.stop();
    assert!(!path.exists(), "a socket that nobody listens on is left");
}

/// Whoever may connect could keep everybody else out by saying nothing.
#[test]
fn a_connection_that_says_nothing_is_closed_in_time() {
    let _alone = alone();
    let engine = engine();
    let silent = engine.connect().unwrap();
    let client = RawClient::attach(engine.connect().unwrap(), 8, 8, 0);
    let since = std::time::Instant::now();
    assert!(matches!(silent.receive(true), Err(scatter_ring::attach::AttachError::Closed)));
    let waited = since.elapsed().as_secs();
    assert!((4..9).contains(&waited), "closed after {waited} s");
    assert_eq!(client.stopped(), None, "a session that was greeted has ended too");
}
