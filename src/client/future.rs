//! Waiting without blocking, on any runtime.

use super::session::Session;
use super::{BatchError, Client, ClientError, Outcome, Ticket};
use crate::region::forget_threads;
use ring_abi::Status;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

/// A client whose outcomes can be awaited, by any number of tasks of any runtime.
///
/// A thread of its own sleeps at the client's file descriptor while anybody waits, and wakes the tasks whose batches have
/// their outcome. (A program with an event loop of its own needs no thread: see [`Client::as_fd`].) Clones are the same
/// client; the session ends when all of them, and all [`Transfer`]s, are dropped.
///
/// ```
/// use scatter_ring::client::{AsyncClient, Client, Setup};
/// use scatter_ring::engine::{Config, Engine};
///
/// let engine = Engine::new(&Config::default())?.start()?;
/// let client = AsyncClient::new(Client::over(engine.connect()?, &Setup::default())?)?;
/// let (from, to) = client.with(|client| client.allocate(4096).and_then(|from| Ok((from, client.allocate(4096)?))))??;
/// let ticket = client.with(|client| {
///     let mut batch = client.batch();
///     batch.read(&from, 0, &to, 1024, 512)?;
///     batch.submit()
/// })??;
/// let transfer = client.transfer(ticket);
/// // In a task: transfer.await?
/// # struct Unpark(std::thread::Thread);
/// # impl std::task::Wake for Unpark {
/// #     fn wake(self: std::sync::Arc<Self>) {
/// #         self.0.unpark();
/// #     }
/// # }
/// # let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
/// # let mut transfer = Box::pin(transfer);
/// # let outcome = loop {
/// #     match transfer.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
/// #         std::task::Poll::Ready(outcome) => break outcome?,
/// #         std::task::Poll::Pending => std::thread::park(),
/// #     }
/// # };
/// assert_eq!(outcome.bytes, 512);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct AsyncClient(Arc<Owned>);

/// The outcome of a batch, to be awaited. Dropping it gives up the outcome, not the batch.
///
/// While notifications that nobody takes are in the way it fails, as [`Client::wait`] does, and the batch is under way: await
/// it by `&mut`, take them ([`Client::next_notification`]), and await it again.
///
/// A batch that ends with its buffers still held has its outcome ([`BatchError::reusable`] is false): look from time to time
/// with [`Client::wait_released`] and a timeout of 0.
#[derive(Debug)]
#[must_use = "nobody waits without `await`; the batch is under way all the same"]
pub struct Transfer {
    client: AsyncClient,
    ticket: Arc<Ticket>,
}

/// The thread ends with the last of its users.
#[derive(Debug)]
struct Owned {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// To be asked without the lock, which a thread may have held that a forked child does not have.
    session: Arc<Session>,
    state: Mutex<State>,
    /// Rung to wake the thread where no engine would.
    bell: OwnedFd,
    wake: OwnedFd,
}

#[derive(Debug)]
struct State {
    client: Client,
    waiting: Vec<Waiting>,
    /// The thread waits for its bell only, not at the client's descriptor.
    idle: bool,
    closing: bool,
}

#[derive(Debug)]
struct Waiting {
    ticket: Arc<Ticket>,
    waker: Waker,
}

impl AsyncClient {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the kernel refuses a thread or a file descriptor.
    pub fn new(client: Client) -> Result<AsyncClient, ClientError> {
        let system = |operation| move |source| ClientError::System { operation, source };
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| system("eventfd")(errno.into()))?;
        let wake = client.wake.try_clone().map_err(system("dup"))?;
        let session = client.session.clone();
        let state = State { client, waiting: Vec::new(), idle: true, closing: false };
        let shared = Arc::new(Shared { session, state: Mutex::new(state), bell, wake });
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("scatter-await".into())
            .spawn(move || for_thread.run())
            .map_err(system("starting a thread"))?;
        Ok(AsyncClient(Arc::new(Owned { shared, thread: Some(thread) })))
    }

    /// Uses the client: to describe and submit, to register memory. Tasks that share it wait meanwhile, so `use_it` should
    /// not wait for batches itself. Within it this client and its [`Transfer`]s must not be used, nor a transfer be dropped.
    ///
    /// # Errors
    /// [`ClientError::Forked`] in a forked child.
    pub fn with<R>(&self, use_it: impl FnOnce(&mut Client) -> R) -> Result<R, ClientError> {
        if self.0.shared.session.is_child() {
            return Err(ClientError::Forked);
        }
        let mut state = self.0.shared.lock();
        let result = catch_unwind(AssertUnwindSafe(|| use_it(&mut state.client)));
        // It may have taken the spans, and the announcement of the sleep, that somebody waits for.
        let due = state.settle();
        drop(state);
        wake(due);
        result.map_or_else(|panic| resume_unwind(panic), Ok)
    }

    /// The outcome of a batch of this client.
    pub fn transfer(&self, ticket: Ticket) -> Transfer {
        Transfer { client: self.clone(), ticket: Arc::new(ticket) }
    }
}

impl Transfer {
    /// The batch.
    #[must_use]
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }
}

impl Future for Transfer {
    type Output = Result<Outcome, BatchError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = &self.client.0.shared;
        if shared.session.is_child() {
            return Poll::Ready(Err(BatchError::whole(Status::FORKED, self.ticket.position(), false)));
        }
        let mut state = shared.lock();
        let before = state.forget(&self.ticket);
        let outcome = match state.client.wait_timeout(&self.ticket, Duration::ZERO) {
            Ok(None) => {
                state.waiting.push(Waiting { ticket: self.ticket.clone(), waker: context.waker().clone() });
                None
            }
            Ok(Some(outcome)) => Some(Ok(outcome)),
            Err(error) => Some(Err(error)),
        };
        let due = state.settle();
        if state.idle && !state.waiting.is_empty() {
            state.idle = false;
            shared.ring();
        }
        drop(state);
        drop(before);
        wake(due);
        outcome.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let shared = &self.client.0.shared;
        if !shared.session.is_child() {
            let before = shared.lock().forget(&self.ticket);
            drop(before);
        }
    }
}

/// Not to be called under the lock. A waker that panics must not keep the others asleep, nor end the thread.
fn wake(due: Vec<Waker>) {
    for waker in due {
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn ring(&self) {
        // A counter that is full is a bell that was rung.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn run(&self) {
        loop {
            let mut state = self.lock();
            if state.closing {
                return;
            }
            state.client.disarm();
            let due = state.settle();
            state.idle = state.waiting.is_empty();
            let idle = state.idle;
            drop(state);
            wake(due);
            self.sleep(idle);
        }
    }

    /// Until the bell is rung, or, unless nobody waits, the engine has woken the client or some time has passed.
    fn sleep(&self, idle: bool) {
        let mut fds = [PollFd::new(&self.bell, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
        // Fails when interrupted, and the look that follows does no harm.
        let _ = match idle {
            true => rustix::event::poll(&mut fds[..1], None),
            false => rustix::event::poll(&mut fds, Some(&SLEEP_MAX)),
        };
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }
}

impl State {
    /// Nobody waits with this ticket any more. What did is to be dropped without the lock: a waker can own its task, and that
    /// one transfers of this client.
    fn forget(&mut self, ticket: &Arc<Ticket>) -> Option<Waiting> {
        let at = self.waiting.iter().position(|waiting| Arc::ptr_eq(&waiting.ticket, ticket))?;
        Some(self.waiting.swap_remove(at))
    }

    /// Takes spans, and says who has something to see now. For the others the engine wakes the thread.
    fn settle(&mut self) -> Vec<Waker> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let over = !self.client.doze();
        let client = &self.client;
        let due = self.waiting.extract_if(.., |waiting| over || client.is_done(&waiting.ticket));
        let due = due.map(|waiting| waiting.waker).collect();
        if self.waiting.is_empty() {
            self.client.rouse();
        }
        due
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // A forked child has no such thread.
        if self.shared.session.is_child() {
            return forget_threads(self.thread.take());
        }
        self.shared.lock().closing = true;
        self.shared.ring();
        if let Some(thread) = self.thread.take() {
            // A waker can own the last handle, and the thread drops it.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// Longest sleep without a look at the ring, in case an engine forgets to wake.
const SLEEP_MAX: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
