//! What stands behind a session's lock: the client, who sleeps, and what was taken for whom.

use crate::errors::Failure;
use crate::session::Session;
use crate::wakeup::Wakeup;
use scatter_ring::client::{BatchError, Client, ClientError, Outcome, Setup, Ticket};
use std::collections::VecDeque;
use std::sync::Arc;

pub struct State {
    /// `None`: closed.
    client: Option<Client>,
    /// A thread sleeps at the client's descriptor.
    pub sleeps: bool,
    /// Event loops that sleep.
    pub wakeups: Vec<Arc<Wakeup>>,
    /// `None`: not asked for.
    notices: Option<Notices>,
    /// How much had been taken when those who sleep were told last.
    told: u64,
    /// The last look said that the session has ended, or that notifications are in the way.
    failed: bool,
}

/// Notifications that were taken out of the client, so that they are not in the way of its sleep.
struct Notices {
    kept: VecDeque<Notice>,
    kept_max: usize,
}

/// What another client has sent.
#[derive(Debug)]
pub struct Notice {
    pub user_data: u64,
    pub offset: u64,
    pub payload: Vec<u8>,
}

impl State {
    pub fn new(client: Client, setup: &Setup) -> State {
        let notices =
            setup.notifications.then(|| Notices { kept: VecDeque::new(), kept_max: client.cq_capacity() as usize });
        State { client: Some(client), sleeps: false, wakeups: Vec::new(), notices, told: 0, failed: false }
    }

    pub fn is_closed(&self) -> bool {
        self.client.is_none()
    }

    /// The client, for somebody who drops it.
    pub fn close(&mut self) -> Option<Client> {
        self.client.take()
    }

    pub fn client(&mut self) -> Result<&mut Client, Failure> {
        self.client.as_mut().ok_or(Failure::Closed("the client"))
    }

    /// What became of a batch, as far as spans were taken.
    pub fn outcome(&self, ticket: &Ticket) -> Option<Result<Outcome, BatchError>> {
        self.client.as_ref()?.outcome(ticket)
    }

    pub fn notifications_on(&self) -> bool {
        self.notices.is_some()
    }

    pub fn notice(&mut self) -> Option<Notice> {
        self.notices.as_mut()?.kept.pop_front()
    }

    /// True if waiting for this batch is over: its outcome is known, or none will come.
    pub fn is_settled(&self, ticket: &Ticket) -> bool {
        self.failed || self.outcome(ticket).is_some()
    }

    /// True if waiting for a notification is over.
    pub fn has_notice(&self) -> bool {
        self.failed || self.notices.as_ref().is_none_or(|notices| !notices.kept.is_empty())
    }

    /// Grows whenever something is taken out of the ring, by whatever call.
    pub fn taken(&self) -> u64 {
        self.client.as_ref().map_or(0, Client::taken)
    }

    /// True if something was taken that somebody may wait for, whom the caller tells.
    pub fn take(&mut self) -> Result<bool, ClientError> {
        let took = self.take_all();
        self.failed = took.is_err();
        let unseen = self.taken() != self.told;
        self.told = self.taken();
        took.map(|took| took || unseen)
    }

    fn take_all(&mut self) -> Result<bool, ClientError> {
        let Some(client) = &mut self.client else { return Ok(false) };
        let mut took = false;
        if let Some(notices) = &mut self.notices {
            while notices.kept.len() < notices.kept_max {
                let Ok(Some(told)) = client.next_notification() else { break };
                let (user_data, offset, payload) = (told.user_data, told.offset, told.payload.to_vec());
                notices.kept.push_back(Notice { user_data, offset, payload });
                took = true;
            }
        }
        while client.reap()?.is_some() {}
        Ok(took)
    }

    pub fn somebody_sleeps(&self) -> bool {
        self.sleeps || !self.wakeups.is_empty()
    }

    /// Wakes all who sleep.
    pub fn nudge(&mut self, session: &Session) {
        session.wake_threads(self.sleeps);
        self.wakeups.drain(..).for_each(|wakeup| wakeup.nudge());
    }

    /// Announces the sleep of those who sleep anew, or wakes them.
    pub fn settle(&mut self, session: &Session) {
        if !self.somebody_sleeps() {
            return;
        }
        // A submission that had to wait for room took spans too.
        let unseen = self.taken() != self.told;
        let announced = !unseen && self.client.as_mut().is_some_and(Client::arm);
        if !announced {
            let _ = self.take();
            self.nudge(session);
        }
    }
}
