//! What the peer thread and the rest of the engine say to each other.

use super::exchange::End;
use super::{Agreed, Endpoint, Identity, Limits, Role, SessionKey, VERBS, Version};
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

/// A connection to another engine, all its sockets proven.
#[derive(Debug)]
pub struct Connected {
    /// The other engine.
    pub identity: Identity,
    /// The engine that was asked for, if this side dialled: another one if it was restarted.
    pub dialled: Option<Identity>,
    /// Who began.
    pub role: Role,
    /// This side's number of the connection, never used before. What the other sends must name it.
    pub epoch: u64,
    /// The other side's number of it.
    pub peer_epoch: u64,
    /// The version to speak.
    pub version: Version,
    /// Features that both offer.
    pub features: u64,
    /// The smaller of both sides'.
    pub limits: Limits,
    /// The secret of this connection.
    pub session: SessionKey,
    /// One per lane, in the same order on both sides. Non-blocking.
    pub sockets: Vec<OwnedFd>,
    /// To be dropped when the connection has ended: only then is the engine dialled again.
    pub hold: Hold,
}

/// Tells the peer thread, when dropped, that a connection that it gave out has ended.
#[derive(Debug)]
pub struct Hold {
    epoch: u64,
    is_settled: bool,
    post: Post,
}

impl Hold {
    /// What the two engines had to find out about the connection is settled, and it is used. One that ends before it is, of
    /// those that have something to find out ([`VERBS`]), counts as a failed attempt: the engine is dialled again after
    /// growing pauses, and called unreachable at last.
    pub fn settle(&mut self) {
        if !self.is_settled {
            self.is_settled = true;
            self.post.send(Letter::Settled(self.epoch));
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.post.send(Letter::Ended { epoch: self.epoch, is_settled: self.is_settled });
    }
}

/// What the peer thread gives out.
#[derive(Debug)]
pub enum Event {
    /// A connection, whoever dialled.
    Connected(Box<Connected>),
    /// Another connection to the same engine takes the place of the one with this epoch. It comes next; the old one is
    /// to be dropped.
    Superseded {
        /// The other engine.
        identity: Identity,
        /// This side's epoch of the old connection.
        epoch: u64,
    },
    /// An engine that was asked for is the one that a connection exists to already: it goes by another identity since
    /// it was restarted.
    Known {
        /// The engine that was asked for.
        dialled: Identity,
        /// The engine that answers there.
        identity: Identity,
    },
    /// An engine that was asked for cannot be reached. It is tried again, and an event says so if it comes back.
    Unreachable {
        /// The engine.
        identity: Identity,
        /// What happened last.
        failure: Failure,
        /// When it is tried again, `None` for never.
        retry_in: Option<Duration>,
    },
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A side refused.
    #[error(transparent)]
    Refused(#[from] End),
    /// No answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// The other side ended it without a word.
    #[error("closed by the other side")]
    Closed,
    /// The kernel refused; with its error number.
    #[error("{}", std::io::Error::from_raw_os_error(*.0))]
    System(i32),
    /// The address can only be used with a key.
    #[error("another host is only connected to with a key")]
    NeedsKey,
    /// Another connection of the same two engines is kept.
    #[error("another connection to this engine is kept")]
    Abandoned,
    /// It was connected, and then the engines could not agree how their memory is reached.
    #[error("it answers, but how its memory is reached could not be settled: by RDMA verbs it cannot be")]
    Unsettled,
}

impl From<rustix::io::Errno> for Failure {
    fn from(errno: rustix::io::Errno) -> Failure {
        Failure::System(errno.raw_os_error())
    }
}

/// The events of one peer thread. Its file descriptor is readable while there may be one.
#[derive(Debug)]
pub struct Events {
    events: Receiver<Event>,
    bell: Arc<OwnedFd>,
}

impl Events {
    /// The next one, `None` if there is none yet. Does not wait.
    pub fn next_event(&self) -> Option<Event> {
        self.events.try_recv().ok().or_else(|| {
            silence(&self.bell);
            // One may have come before the bell was silenced.
            self.events.try_recv().ok()
        })
    }

    /// The next one, waited for.
    #[must_use]
    pub fn wait(&self, time: Duration) -> Option<Event> {
        self.events.recv_timeout(time).ok()
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// What the peer thread is told.
#[derive(Debug)]
pub(super) enum Letter {
    Connect(Endpoint),
    Forget(Identity),
    Settled(u64),
    Ended { epoch: u64, is_settled: bool },
    Stop,
}

/// A way to the peer thread. Never waits.
#[derive(Clone, Debug)]
pub(super) struct Post {
    letters: Sender<Letter>,
    bell: Arc<OwnedFd>,
}

impl Post {
    pub fn send(&self, letter: Letter) {
        // A thread that is gone needs no news.
        if self.letters.send(letter).is_ok() {
            ring(&self.bell);
        }
    }
}

/// The peer thread's ends of both ways.
#[derive(Debug)]
pub(super) struct Desk {
    letters: Receiver<Letter>,
    letters_bell: Arc<OwnedFd>,
    events: Sender<Event>,
    events_bell: Arc<OwnedFd>,
    post: Post,
}

impl Desk {
    pub fn new() -> std::io::Result<(Desk, Events)> {
        let (letters_bell, events_bell) = (Arc::new(bell()?), Arc::new(bell()?));
        let (letters, letters_end) = mpsc::channel();
        let (events, events_end) = mpsc::channel();
        let post = Post { letters, bell: letters_bell.clone() };
        let desk = Desk { letters: letters_end, letters_bell, events, events_bell: events_bell.clone(), post };
        Ok((desk, Events { events: events_end, bell: events_bell }))
    }

    pub fn bell(&self) -> &OwnedFd {
        &self.letters_bell
    }

    pub fn post(&self) -> Post {
        self.post.clone()
    }

    pub fn silence(&self) {
        silence(&self.letters_bell);
    }

    pub fn letter(&self) -> Option<Letter> {
        self.letters.try_recv().ok()
    }

    pub fn give(&self, event: Event) {
        // Nobody may be there to take it: then it is dropped, sockets included.
        if self.events.send(event).is_ok() {
            ring(&self.events_bell);
        }
    }
}

impl Connected {
    pub(super) fn new(agreed: Agreed, dialled: Option<Identity>, sockets: Vec<OwnedFd>, post: Post) -> Connected {
        let Agreed { role, identity, epoch, peer_epoch, version, features, limits, session } = agreed;
        let hold = Hold { epoch, is_settled: features & VERBS == 0, post };
        Connected { identity, dialled, role, epoch, peer_epoch, version, features, limits, session, sockets, hold }
    }

    /// A connection that nobody has authenticated, and whose end is told to nobody.
    #[cfg(test)]
    pub(crate) fn of_sockets(epoch: u64, sockets: Vec<OwnedFd>) -> Connected {
        let limits = Limits { slot_bytes: 1 << 20, slots: 16, commands: 64, lanes: sockets.len() as u16 };
        let agreed = Agreed {
            role: Role::Responder,
            identity: Identity([9; 16]),
            epoch,
            peer_epoch: epoch,
            version: super::VERSION,
            features: 0,
            limits,
            session: SessionKey(Default::default()),
        };
        let bell = Arc::new(bell().expect("an eventfd"));
        Connected::new(agreed, None, sockets, Post { letters: mpsc::channel().0, bell })
    }
}

fn bell() -> std::io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn ring(bell: &OwnedFd) {
    // Fails only if the counter is full, which wakes as well.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

fn silence(bell: &OwnedFd) {
    // Fails only if it does not ring.
    let _ = rustix::io::read(bell, &mut [0; 8]);
}
