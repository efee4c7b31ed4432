//! Attaching, and the rare requests on the attach socket.

use super::{Client, ClientError, Ended, Setup};
use crate::attach::{self, ANSWER_LIMIT, AttachError, ClientAreas, Greeted, Received, Socket};
use crate::region::ForkGuard;
use ring_abi::{Features, Handle, Kind, Message, NO_ANSWER};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What a client's regions need of its session, also after the client is gone.
#[derive(Debug)]
pub(super) struct Session {
    guard: ForkGuard,
    socket: Socket,
    over: AtomicBool,
    /// Closes that the socket's queue had no room for.
    unsent: Mutex<Vec<Handle>>,
}

/// What the engine handed out when the client attached.
pub(super) struct Attached {
    pub session: Session,
    pub areas: ClientAreas,
    pub doorbell: OwnedFd,
    pub wake: OwnedFd,
}

impl Session {
    #[inline]
    pub fn is_child(&self) -> bool {
        self.guard.is_child()
    }

    /// Nothing is asked any more, and the engine sees the end of the connection.
    pub fn end(&self) {
        if !self.is_child() && !self.over.swap(true, Ordering::AcqRel) {
            // The connection is shared with the regions that outlive the client, so it is ended and not only dropped.
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }

    /// Ends a registration that nobody can name any more. Never waits: what cannot be sent now goes with the next
    /// request.
    pub fn close_later(&self, handle: Handle) {
        if self.is_child() || self.over.load(Ordering::Acquire) {
            return;
        }
        let message = Message::new(Kind::CLOSE, NO_ANSWER, [u64::from(handle.0), 0, 0, 0, 0, 0, 0, 0]);
        if let Err(AttachError::System { .. }) = self.socket.send(&message, &[]) {
            self.unsent.lock().unwrap_or_else(|e| e.into_inner()).push(handle);
        }
    }

    fn close_unsent(&self) {
        let handles = std::mem::take(&mut *self.unsent.lock().unwrap_or_else(|e| e.into_inner()));
        handles.into_iter().for_each(|handle| self.close_later(handle));
    }
}

/// Agrees on a session and maps its areas.
pub(super) fn hello(socket: Socket, setup: &Setup) -> Result<Attached, ClientError> {
    let guard = ForkGuard::new().map_err(|source| ClientError::System { operation: "fork guard", source })?;
    let features = Features(Features::LOCAL | if setup.notifications { Features::NOTIFY } else { 0 });
    let hello = Message::hello(features, setup.sq_capacity, setup.cq_capacity, setup.start_position);
    let Greeted { areas, doorbell, wake } = attach::hello(&socket, &hello)?;
    let session = Session { guard, socket, over: AtomicBool::new(false), unsent: Mutex::default() };
    Ok(Attached { session, areas, doorbell, wake })
}

impl Client {
    /// One question and its answer.
    pub(super) fn ask(
        &self,
        kind: Kind,
        args: &[u64],
        name: &str,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Message, ClientError> {
        self.ask_for(kind, args, name, fds).map(|received| received.message)
    }

    /// The same without arguments, for an answer that comes with file descriptors.
    pub(super) fn ask_for_files(&self, kind: Kind) -> Result<Received, ClientError> {
        self.ask_for(kind, &[], "", &[])
    }

    fn ask_for(&self, kind: Kind, args: &[u64], name: &str, fds: &[BorrowedFd<'_>]) -> Result<Received, ClientError> {
        self.usable()?;
        self.session.close_unsent();
        let request = self.requests.get();
        self.requests.set(request + 1);
        let mut words = [0; 8];
        words[..args.len()].copy_from_slice(args);
        let question = Message::new(kind, request, words).with_name(name);
        let until = Instant::now() + ANSWER_LIMIT;
        let sent = attach::send_until(&self.session.socket, &question, fds, until).map_err(ClientError::from);
        let answer = sent.and_then(|()| self.answer_to(&question, until)).inspect_err(|error| match error {
            ClientError::Attach(AttachError::Closed) => self.end(Ended::Gone),
            ClientError::Attach(AttachError::BadMessage(what)) => self.end(Ended::Broken(what)),
            _ => {}
        })?;
        attach::granted(&answer.message)?;
        Ok(answer)
    }

    /// What nobody waits for any more must not stay registered or open.
    fn give_back(&self, answer: &Message) {
        let has_region = [Kind::REGISTER, Kind::OPEN].iter().any(|kind| answer.kind == kind.answer());
        if let Some(handle) = attach::handle(answer).filter(|_| has_region && answer.status.is_ok()) {
            self.session.close_later(handle);
        }
    }

    fn answer_to(&self, question: &Message, until: Instant) -> Result<Received, ClientError> {
        loop {
            let received = match attach::receive_until(&self.session.socket, until) {
                Ok(received) => received,
                Err(error) => {
                    if matches!(error, AttachError::NoAnswer { .. }) {
                        self.given_up.borrow_mut().push(question.request);
                    }
                    return Err(error.into());
                }
            };
            let answer = &received.message;
            if answer.request == question.request && answer.kind == question.kind.answer() {
                return Ok(received);
            }
            let mut given_up = self.given_up.borrow_mut();
            match given_up.iter().position(|request| *request == answer.request) {
                Some(late) => {
                    given_up.swap_remove(late);
                    self.give_back(answer);
                }
                None => return Err(AttachError::BadMessage("an answer to nothing that was asked").into()),
            }
        }
    }
}
