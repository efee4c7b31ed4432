//! Outcomes that are awaited: no runtime of any kind is needed, and no task is forgotten.

mod fake;

use fake::{meet, ok, setup};
use ring_abi::{Descriptor, Opcode, Span, SpanFlags, Status};
use scatter_ring::client::{AsyncClient, Batch, BatchError, Client, ClientError, Outcome, Setup, Ticket, Transfer};
use scatter_ring::engine::{Config, Engine, RunningEngine};
use scatter_ring::region::Rights;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Longest wait for anything, generous because the machine may be busy with other things.
const LIMIT: Duration = Duration::from_secs(10);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A runtime of four lines. `None`: not woken in time.
fn block_on<F: Future>(future: F) -> Option<F::Output> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut future, until) = (pin!(future), Instant::now() + LIMIT);
    while Instant::now() < until {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        std::thread::park_timeout(until - Instant::now());
    }
    None
}

/// Counts how often a task is woken, and does nothing.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn engine() -> RunningEngine {
    // Without a spin: both sides sleep as often as they can.
    let config = Config { workers: 1, spin: Duration::ZERO, ..Config::default() };
    Engine::new(&config).unwrap().start().unwrap()
}

fn client(engine: &RunningEngine) -> AsyncClient {
    let client = Client::over(engine.connect().unwrap(), &Setup { spin: Duration::ZERO, ..Setup::default() }).unwrap();
    AsyncClient::new(client).unwrap()
}

fn nop(batch: &mut Batch<'_>, user_data: u64) {
    batch.push(&Descriptor { opcode: Opcode::NOP.0, user_data, ..Descriptor::ZERO }, &[]).unwrap();
}

fn submit(client: &AsyncClient, user_data: u64) -> Ticket {
    let submitted = client.with(|client| {
        let mut batch = client.batch();
        nop(&mut batch, user_data);
        batch.submit()
    });
    submitted.unwrap().unwrap()
}

fn start(client: &AsyncClient, user_data: u64) -> Transfer {
    client.transfer(submit(client, user_data))
}

#[test]
fn every_task_of_many_threads_gets_the_outcome_of_its_own_batch() {
    let engine = engine();
    let client = client(&engine);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let client = client.clone();
            scope.spawn(move || {
                for round in 0..200 {
                    let first = thread << 32 | round << 8;
                    let mut under_way: Vec<_> = (0..8).map(|i| (first + i, start(&client, first + i))).collect();
                    if round % 2 == 0 {
                        under_way.reverse();
                    }
                    for (user_data, transfer) in under_way {
                        let outcome = block_on(transfer).expect("the task was woken").unwrap();
                        assert_eq!(outcome.user_data, user_data);
                    }
                }
            });
        }
    });
}

#[test]
fn a_task_is_woken_although_somebody_else_took_its_span() {
    let (client, mut fake) = meet(&setup(64, 64));
    let client = AsyncClient::new(client).unwrap();
    let (mut task, other) = (pin!(start(&client, 1)), submit(&client, 2));
    let woken = Arc::new(Count::default());
    let waker = Waker::from(woken.clone());
    assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    fake.take_all();
    // Without a wake-up, so that nobody but the wait finds them.
    for position in 0..2 {
        fake.areas.cq.push(&ok(position, 1).to_entry()).unwrap();
    }
    fake.areas.cq.publish();
    client.with(|client| client.wait(&other)).unwrap().unwrap();
    assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

#[test]
fn a_task_is_woken_although_somebody_else_took_its_span_and_panicked() {
    let (client, mut fake) = meet(&setup(64, 64));
    let client = AsyncClient::new(client).unwrap();
    let (mut task, other) = (pin!(start(&client, 1)), submit(&client, 2));
    let woken = Arc::new(Count::default());
    let waker = Waker::from(woken.clone());
    assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    fake.take_all();
    for position in 0..2 {
        fake.areas.cq.push(&ok(position, 1).to_entry()).unwrap();
    }
    fake.areas.cq.publish();
    let panicked = std::panic::catch_unwind(AssertUnwindSafe(|| {
        client.with(|client| {
            client.wait(&other).unwrap();
            panic!("as the test wants it");
        })
    }));
    assert!(panicked.is_err() && woken.0.load(Ordering::SeqCst) == 1);
    assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

#[test]
fn a_waker_that_panics_keeps_nobody_else_asleep() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("as the test wants it");
        }
    }
    let (client, mut fake) = meet(&setup(64, 64));
    let client = AsyncClient::new(client).unwrap();
    let (mut first, second) = (pin!(start(&client, 1)), start(&client, 2));
    let panics = Waker::from(Arc::new(Panics));
    assert!(first.as_mut().poll(&mut Context::from_waker(&panics)).is_pending());
    fake.take_all();
    fake.span(ok(0, 1));
    fake.span(ok(1, 1));
    assert!(block_on(second).expect("the task was woken").is_ok());
    let third = start(&client, 3);
    std::thread::scope(|scope| {
        let third = scope.spawn(|| block_on(third));
        std::thread::sleep(Duration::from_millis(20));
        fake.take_all();
        fake.span(ok(2, 1));
        assert!(third.join().unwrap().expect("the task was woken").is_ok());
    });
}

/// As one that owns the last handle of its task, and so what the task has.
#[test]
fn a_waker_may_use_the_client_when_it_is_dropped() {
    struct Uses(AsyncClient, mpsc::Sender<()>);
    impl Wake for Uses {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Uses {
        fn drop(&mut self) {
            self.0.with(|_| ()).unwrap();
            self.1.send(()).unwrap();
        }
    }
    let (client, _fake) = meet(&setup(64, 64));
    let client = AsyncClient::new(client).unwrap();
    let (dropped, is_dropped) = mpsc::channel();
    // Not joined: it hangs if it is not so.
    std::thread::spawn(move || {
        let mut task = Box::pin(start(&client, 1));
        for _ in 0..2 {
            let waker = Waker::from(Arc::new(Uses(client.clone(), dropped.clone())));
            assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        drop(task);
    });
    for which in ["polled anew", "given up"] {
        assert_eq!(is_dropped.recv_timeout(LIMIT), Ok(()), "{which}");
    }
}

#[test]
fn only_the_task_whose_batch_is_done_is_woken() {
    let (client, mut fake) = meet(&setup(64, 64));
    let client = AsyncClient::new(client).unwrap();
    let (done, not_done) = (Arc::new(Count::default()), Arc::new(Count::default()));
    let (mut first, mut second) = (pin!(start(&client, 1)), pin!(start(&client, 2)));
    let second_waker = Waker::from(not_done.clone());
    assert!(second.as_mut().poll(&mut Context::from_waker(&second_waker)).is_pending());
    let first_waker = Waker::from(done.clone());
    // Polled twice, as a task that was woken for something else is: it waits once.
    for _ in 0..2 {
        assert!(first.as_mut().poll(&mut Context::from_waker(&first_waker)).is_pending());
    }
    fake.take_all();
    fake.span(ok(0, 1));
    let since = Instant::now();
    while done.0.load(Ordering::SeqCst) == 0 {
        assert!(since.elapsed() < LIMIT, "the task was not woken");
        std::thread::yield_now();
    }
    assert!(first.as_mut().poll(&mut Context::from_waker(&first_waker)).is_ready());
    assert_eq!((done.0.load(Ordering::SeqCst), not_done.0.load(Ordering::SeqCst)), (1, 0));
}

#[test]
fn spans_that_are_nobodys_do_not_keep_the_thread_busy() {
    let (client, mut fake) = meet(&setup(64, 64));
    let client = AsyncClient::new(client).unwrap();
    let raw = Descriptor { opcode: Opcode::NOP.0, flags: ring_abi::Flags::LAST, ..Descriptor::ZERO };
    // SAFETY: the descriptor names no memory.
    client.with(|client| unsafe { client.push(&raw) }).unwrap().unwrap();
    let task = start(&client, 7);
    std::thread::scope(|scope| {
        let task = scope.spawn(|| block_on(task));
        fake.take_all();
        // Reaped by nobody.
        fake.span(ok(0, 1));
        // The number of its sleep: a thread that finds the span again and again never sleeps, or has many.
        let sleep = || fake.areas.client_sleep.load(std::sync::atomic::Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(50));
        let number = sleep();
        std::thread::sleep(Duration::from_millis(50));
        assert!(number != 0 && sleep() == number, "the thread spins");
        fake.span(ok(1, 1));
        assert!(task.join().unwrap().expect("the task was woken").is_ok());
    });
    assert_eq!(client.with(|client| client.reap()).unwrap().unwrap().unwrap().first, 0);
}

#[test]
fn a_failure_is_the_output() {
    let (client, mut fake) = meet(&setup(64, 64));
    let client = AsyncClient::new(client).unwrap();
    let task = start(&client, 1);
    fake.take_all();
    fake.span(Span { status: Status::CANCELLED.0, flags: SpanFlags::BATCH_DONE, ..ok(0, 1) });
    assert_eq!(failure(block_on(task)), Status::CANCELLED);
}

#[test]
fn tasks_learn_that_the_engine_is_gone() {
    for is_killed in [false, true] {
        let (client, mut fake) = meet(&setup(64, 64));
        let client = AsyncClient::new(client).unwrap();
        let tasks = [start(&client, 1), start(&client, 2)];
        std::thread::scope(|scope| {
            let tasks = tasks.map(|task| scope.spawn(|| block_on(task)));
            std::thread::sleep(Duration::from_millis(20));
            fake.take_all();
            let expected = if is_killed {
                fake.die();
                Status::ENGINE_LOST
            } else {
                fake.stop(Status::STOPPING);
                Status::STOPPING
            };
            for task in tasks {
                assert_eq!(failure(task.join().unwrap()), expected);
            }
        });
    }
}

fn failure(output: Option<Result<Outcome, BatchError>>) -> Status {
    output.expect("the task was woken").unwrap_err().status
}

#[test]
fn the_session_lives_as_long_as_somebody_waits_in_it() {
    let engine = engine();
    let client = client(&engine);
    let task = start(&client, 1);
    drop(client);
    let ended = || engine.counters().sessions_ended.iter().map(|(_, count)| count).sum::<u64>();
    assert!(block_on(task).expect("the task was woken").is_ok());
    let since = Instant::now();
    while ended() == 0 {
        assert!(since.elapsed() < LIMIT, "the session goes on");
        std::thread::yield_now();
    }
}

#[test]
fn a_task_that_notifications_are_in_the_way_of_can_await_its_batch_again() {
    let engine = engine();
    let setup = Setup { cq_capacity: 4, notifications: true, ..Setup::default() };
    let told = Client::over(engine.connect().unwrap(), &setup).unwrap();
    let inbox = told.allocate(64).unwrap();
    told.export(&inbox, "inbox", Rights::READ).unwrap();
    let told = AsyncClient::new(told).unwrap();
    let mut teller = Client::over(engine.connect().unwrap(), &Setup::default()).unwrap();
    let opened = teller.open("inbox", Rights::READ).unwrap();
    // As many as it keeps, and as many as its ring holds.
    for number in 0..8 {
        let ticket = teller.batch().notify(&opened, number, None).unwrap();
        teller.wait(&ticket).unwrap();
        let _ = told.with(|told| told.reap()).unwrap();
    }
    let mut task = start(&told, 7);
    assert_eq!(failure(block_on(&mut task)), Status::LIMIT_EXCEEDED);
    for number in 0..8 {
        assert_eq!(told.with(|told| told.next_notification().unwrap().unwrap().offset).unwrap(), number);
    }
    assert_eq!(block_on(&mut task).expect("the task was woken").unwrap().user_data, 7);
}

/// Even if the lock was another thread's when the process was forked, and although there is no thread to wait for.
#[test]
fn a_forked_child_is_told_so_and_leaves_the_parent_alone() {
    let (client, mut fake) = meet(&setup(64, 64));
    let client = AsyncClient::new(client).unwrap();
    let mut all = Some((Box::pin(start(&client, 1)), client));
    let (holds, is_held) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let holder = all.as_ref().unwrap().1.clone();
        scope.spawn(move || {
            holder.with(|_| {
                holds.send(()).unwrap();
                released.recv().unwrap();
            })
        });
        is_held.recv().unwrap();
        in_a_child(|| {
            let (task, client) = all.as_mut().unwrap();
            let output = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let refused = matches!(output, Poll::Ready(Err(error)) if error.status == Status::FORKED);
            refused && matches!(client.with(|_| ()), Err(ClientError::Forked))
        });
        release.send(()).unwrap();
    });
    in_a_child(|| {
        drop(all.take());
        true
    });
    let (task, _client) = all.unwrap();
    fake.take_all();
    fake.span(ok(0, 1));
    assert!(block_on(task).expect("the task was woken").is_ok());
}

/// Runs a check in a forked child and expects it to hold there, in time.
fn in_a_child(check: impl FnOnce() -> bool) {
    // SAFETY: the child only makes calls that take no lock of another thread, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let holds = check();
        // SAFETY: always allowed.
        unsafe { libc::_exit(if holds { 0 } else { 1 }) };
    }
    let (mut status, since) = (0, Instant::now());
    // SAFETY: `child` is a child of this process, `status` a place for its status.
    let mut ended = || unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } != 0;
    while !ended() {
        if since.elapsed() > LIMIT {
            // SAFETY: it has not been waited for, so that its number is nobody else's.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(status, 0, "a call went through in the child, or waits");
}
