//! `examples/c/producer.c`: a producer in C that needs no library, with a daemon, without one, and with engines that do
//! what no engine should.

mod serving;
mod support;

use ring_abi::{Features, Header, Kind, Message, Span, SpanFlags, Status, abi_word};
use scatter_ring::attach::{EngineAreas, Socket};
use scatter_ring::ring::{Words, stop};
use serving::{Engine, Place, output, text};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::hostile::eventually;
use support::{is_compiler, no_compiler};

/// What the producer says when all went well.
const GATHERED: &str = "1000 rows of 264 bytes are in one block";

/// The compiled producer, `None` where nothing can compile it.
fn producer(place: &Place) -> Option<PathBuf> {
    if !is_compiler("cc") {
        no_compiler("no C compiler (cc) here for examples/c/producer.c");
        return None;
    }
    let (root, binary) = (Path::new(env!("CARGO_MANIFEST_DIR")), place.path("producer"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"]).arg(&binary);
    let compiled =
        compiler.arg("-I").arg(root.join("ring-abi/include")).arg(root.join("examples/c/producer.c")).output();
    let compiled = compiled.unwrap();
    assert!(compiled.status.success(), "{}", text(&compiled.stderr));
    Some(binary)
}

fn at(producer: &Path, socket: &Path) -> Command {
    let mut command = Command::new(producer);
    command.arg(socket).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_page_of_c_gathers_rows_through_a_daemon_and_leaves_it_clean() {
    let place = Place::new();
    let Some(producer) = producer(&place) else { return };
    let mut engine = Engine::start(&mut place.serve(""));
    let log = engine.log();
    for _ in 0..3 {
        let output = output(&mut at(&producer, &place.socket()));
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(text(&output.stdout).starts_with(GATHERED), "{}", text(&output.stdout));
    }
    let rest = engine.stopped(log);
    assert!(rest.contains("batches=\"OK 3\"") && rest.contains("batches_cut=0"), "{rest}");
}

#[test]
fn without_a_daemon_it_says_what_is_missing() {
    let place = Place::new();
    let Some(producer) = producer(&place) else { return };
    for socket in [place.socket(), place.file("no_socket", "")] {
        let output = output(&mut at(&producer, &socket));
        let (error, path) = (text(&output.stderr), socket.to_str().unwrap());
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(path) && error.contains("is `scatter-ring serve` running?"), "{error}");
        assert!(output.stdout.is_empty());
    }
    let output = output(&mut at(&producer, Path::new(&"long/".repeat(40))));
    assert!(text(&output.stderr).contains("too long for a socket's path"), "{}", text(&output.stderr));
}

/// An engine that a test plays.
struct Played {
    socket: Socket,
    areas: Option<(EngineAreas, OwnedFd)>,
}

impl Played {
    fn question(&self, kind: Kind) -> Message {
        let question = self.socket.receive(true).unwrap().expect("a question").message;
        assert_eq!(question.kind, kind);
        question
    }

    fn greet(&mut self, change: impl FnOnce(&mut Header)) {
        let question = self.question(Kind::HELLO);
        let [_, _, features, capacities, ..] = question.args;
        let mut header = Header::new(64, 64, Features(Features::LOCAL), 1, 0);
        change(&mut header);
        assert_eq!((features, capacities), (Features::LOCAL, 64 | 64 << 32));
        let (areas, [submit, complete]) = EngineAreas::create(&header).unwrap();
        let doorbell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let (wake, theirs) = Socket::pair().unwrap();
        let answer = question.answer(Status::OK, [abi_word(), Features::LOCAL, capacities, 1, 0, 0, 0, 0]);
        let fds = [submit.as_fd(), complete.as_fd(), doorbell.as_fd(), theirs.as_fd()];
        self.socket.send(&answer, &fds).unwrap();
        self.areas = Some((areas, wake.into()));
    }

    fn register(&self) {
        let question = self.question(Kind::REGISTER);
        self.socket.send(&question.answer(Status::OK, [0x1000, 0, 0, 0, 0, 0, 0, 0]), &[]).unwrap();
    }

    /// Up to where the producer waits.
    fn attach(&mut self) -> &mut EngineAreas {
        if self.areas.is_none() {
            self.greet(|_| {});
            self.register();
        }
        let (areas, _) = self.areas.as_mut().unwrap();
        eventually("a descriptor comes", || areas.sq.available() == Ok(1));
        areas
    }

    fn complete(&mut self, span: &Span) {
        let areas = self.attach();
        areas.cq.push(&span.to_entry()).unwrap();
        areas.cq.publish();
        let (_, wake) = self.areas.as_ref().unwrap();
        rustix::net::send(wake, &[1], rustix::net::SendFlags::NOSIGNAL).unwrap();
    }
}

/// What becomes of a producer whose engine does this, and then goes away.
fn against(producer: &Path, place: &Place, act: impl FnOnce(&mut Played)) -> Output {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
    let _ = std::fs::remove_file(place.socket());
    let listener =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(place.socket()).unwrap()).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let mut running = Engine::spawn(&mut at(producer, &place.socket()));
    let socket = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_secs(10))).unwrap();
    let mut played = Played { socket: Socket::new(socket), areas: None };
    act(&mut played);
    drop(played);
    let (mut stdout, mut stderr, status) = (Vec::new(), Vec::new(), running.ended());
    running.0.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    running.0.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    Output { status, stdout, stderr }
}

type Act = fn(&mut Played);

/// What an engine does, and what the producer says to it.
const WRONG: &[(&str, Act)] = &[
    ("no answer: the engine is gone", |engine| _ = engine.question(Kind::HELLO)),
    ("not allowed: full up", |engine| {
        let refusal = engine.question(Kind::HELLO).answer(Status::NOT_ALLOWED, [0; 8]).with_name("full up");
        engine.socket.send(&refusal, &[]).unwrap();
    }),
    ("without its four descriptors", |engine| {
        let answer = engine.question(Kind::HELLO).answer(Status::OK, [0; 8]);
        engine.socket.send(&answer, &[std::io::stdin().as_fd()]).unwrap();
    }),
    ("another version: abi_major", |engine| engine.greet(|header| header.abi_major += 1)),
    ("other capacities than were asked for", |engine| engine.greet(|header| header.sq_capacity = 128)),
    ("the session has ended: the engine is gone", |engine| _ = engine.attach()),
    ("the session has ended: engine is stopping", |engine| stop(&engine.attach().stop, Status::STOPPING)),
    ("an impossible position", |engine| engine.attach().cq.words().tail().store(65, Ordering::Release)),
    ("the batch: outside the region", |engine| {
        let failed = Span { count: 1, status: Status::OUT_OF_RANGE.0, flags: SpanFlags::BATCH_DONE, ..Span::ZERO };
        engine.complete(&failed);
        // What was published before the end is seen.
        stop(&engine.areas.as_ref().unwrap().0.stop, Status::STOPPING);
    }),
    // It says that all is done, and has moved nothing.
    ("row 0 is wrong", |engine| {
        let areas = engine.attach();
        eventually("the producer sleeps", || areas.client_sleep.load(Ordering::SeqCst) != 0);
        engine.complete(&Span { count: 1, flags: SpanFlags::BATCH_DONE, ..Span::ZERO });
    }),
];

#[test]
fn what_an_engine_does_wrong_or_refuses_ends_it_with_a_reason() {
    let place = Place::new();
    let Some(producer) = producer(&place) else { return };
    for (expected, act) in WRONG {
        let output = against(&producer, &place, act);
        let error = text(&output.stderr);
        assert!(error.starts_with("producer: ") && error.contains(expected), "{expected:?} is not in {error:?}");
        assert_eq!(output.status.code(), Some(1), "{expected}");
        assert!(output.stdout.is_empty(), "{expected}");
    }
}
