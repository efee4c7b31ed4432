//! The control thread's part that is about regions: registering, exporting, opening, closing.
//!
//! A closing is answered when the poller has reported, for everybody who could use the memory, that nobody does.

use super::control::{Control, Refusal};
use super::leases::LEASE;
use super::mail::Command;
use super::memory::{Lent, Memory};
use super::remote::Remote;
use super::session::Granted;
use crate::region::{Region, Rights, Trust};
use crate::stats;
use ring_abi::{Handle, Message, NO_ANSWER, Status};
use rustix::fd::OwnedFd;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// The user half of a 57-bit address space: no region is longer.
const LENT_BYTES_MAX: u64 = 1 << 56;

/// A region that a client has registered, lent or opened.
pub(super) struct Held {
    /// `None`: opened, and withdrawn by its owner; a client that keeps the handle does not keep the memory.
    pub memory: Option<Memory>,
    pub rights: Rights,
    /// It was registered or lent by this client.
    pub own: bool,
    /// The session that is told by a NOTIFY about it: who registered it. 0: none here.
    pub exporter: u64,
    /// What its connection calls it, if it was opened at a peer, mapped or not.
    pub remote: Option<Arc<Remote>>,
}

pub(super) struct Export {
    /// 0 for memory of the engine's process.
    pub session: u64,
    pub memory: Memory,
    pub rights: Rights,
}

/// A closing that waits until nobody touches the memory.
pub(super) struct Closing {
    pub waiting: Vec<(u64, Handle)>,
    /// Peers may have it open: what the poller's answer is known by.
    pub peers: Option<u64>,
    pub answer: Answer,
    /// Whose registration it is; its bytes count until it is over.
    pub registered_by: Option<u64>,
    /// Unmapped when the last user is gone, and on this thread.
    pub memory: Option<Memory>,
    /// It was opened at a peer, which is told.
    pub remote: Option<Arc<Remote>>,
}

/// Who may use memory that its owner takes away.
#[derive(Default)]
struct Openers {
    /// Handles of clients.
    clients: Vec<(u64, Handle)>,
    /// Engines on this host that have mapped it, by their sessions.
    leases: Vec<u64>,
    /// See [`Closing::peers`].
    peers: Option<u64>,
}

pub(super) enum Answer {
    Nobody,
    Message { session: u64, question: Box<Message> },
    Channel(Sender<()>),
}

impl Control {
    pub(super) fn register(&mut self, id: u64, question: &Message, fds: &[OwnedFd]) -> Result<[u64; 8], Refusal> {
        let [fd] = fds else {
            return Err(Refusal::new(Status::BAD_FD, format!("{} file descriptors, 1 wanted", fds.len())));
        };
        let [bytes, rights_bits, offset, ..] = question.args;
        let rights = rights(rights_bits)?;
        self.has_bytes_for(id, bytes)?;
        let is_same_user = self.sessions.get(&id).is_some_and(|session| session.peer.is_own_user());
        let trust = if is_same_user { self.trust } else { Trust::Sealed };
        let region = Region::from_fd(fd, offset, bytes, rights, trust)
            .map_err(|error| Refusal::new(error.status(), error.to_string()))?;
        // Without a descriptor to spare it is sent to other engines, as to those on other hosts.
        let region = match fd.try_clone() {
            Ok(file) if self.keeps_files() => region.with_file(file, offset),
            _ => region,
        };
        let memory = Memory::Mapped(Arc::new(region));
        let handle = self.hold(id, |_| Held { memory: Some(memory), rights, own: true, exporter: id, remote: None })?;
        if let Some(session) = self.sessions.get_mut(&id) {
            session.region_bytes += bytes;
        }
        stats::add(&self.stats.attached.regions, 1);
        Ok([handle.0.into(), 0, 0, 0, 0, 0, 0, 0])
    }

    /// A region of an owner session, which packs and unpacks it.
    pub(super) fn lend(&mut self, id: u64, question: &Message) -> Result<[u64; 8], Refusal> {
        let (bytes, rights) = (question.args[0], rights(question.args[1])?);
        if self.sessions.get(&id).is_none_or(|session| !session.staged) {
            return Err(Refusal::new(Status::NOT_ALLOWED, "only an owner session lends: STAGE comes first"));
        }
        if bytes == 0 || bytes > LENT_BYTES_MAX {
            return Err(Refusal::new(Status::INVALID_SETTING, format!("a region of {bytes} bytes")));
        }
        let lent = |handle| Memory::Lent(Arc::new(Lent { owner: id, handle, bytes }));
        let handle =
            self.hold(id, |handle| Held { memory: Some(lent(handle)), rights, own: true, exporter: id, remote: None })?;
        Ok([handle.0.into(), 0, 0, 0, 0, 0, 0, 0])
    }

    pub(super) fn has_bytes_for(&self, id: u64, bytes: u64) -> Result<(), Refusal> {
        let (limit, has) = (self.limits.region_bytes, self.sessions.get(&id).map_or(0, |session| session.region_bytes));
        if has.checked_add(bytes).is_none_or(|sum| sum > limit) {
            let text =
                format!("{bytes} bytes more than the {has} of its regions: at most {limit} (limit region_bytes)");
            return Err(Refusal::new(Status::LIMIT_EXCEEDED, text));
        }
        Ok(())
    }

    pub(super) fn export_for(&mut self, id: u64, question: &Message) -> Result<[u64; 8], Refusal> {
        let rights = rights(question.args[1])?;
        let held = self.held(id, question.args[0])?;
        if !held.own || !held.rights.covers(rights) {
            return Err(Refusal::new(Status::NO_RIGHT, "only a region of one's own, with rights that it has"));
        }
        let Some(memory) = held.memory.clone().filter(|memory| !memory.is_lost()) else {
            return Err(Refusal::new(Status::REGION_GONE, ""));
        };
        let names_max = self.limits.regions as usize;
        if self.sessions.get(&id).is_none_or(|session| session.exports >= names_max) {
            return Err(Refusal::new(Status::LIMIT_EXCEEDED, format!("{names_max} names (limit regions)")));
        }
        self.export(question.name(), Export { session: id, memory, rights })?;
        if let Some(session) = self.sessions.get_mut(&id) {
            session.exports += 1;
        }
        Ok([0; 8])
    }

    pub(super) fn export(&mut self, name: &str, export: Export) -> Result<(), Refusal> {
        if name.is_empty() {
            return Err(Refusal::new(Status::INVALID_SETTING, "an export needs a name"));
        }
        if self.exports.contains_key(name) {
            return Err(Refusal::new(Status::NAME_TAKEN, name));
        }
        self.exports.insert(name.to_owned(), export);
        Ok(())
    }

    /// `Ok(None)`: the answer comes later, from a peer.
    pub(super) fn open(&mut self, id: u64, question: &Message) -> Result<Option<[u64; 8]>, Refusal> {
        let wanted = rights(question.args[0])?;
        if question.args[1] != 0 {
            return self.open_remote(id, question, wanted).map(|()| None);
        }
        let Export { session: exporter, memory, .. } = self.exported(question.name(), wanted)?;
        let (exporter, memory) = (*exporter, memory.clone());
        let bytes = memory.extent().bytes;
        let handle =
            self.hold(id, |_| Held { memory: Some(memory), rights: wanted, own: false, exporter, remote: None })?;
        Ok(Some([handle.0.into(), bytes, wanted.bits(), 0, 0, 0, 0, 0]))
    }

    /// What has this name, if it may be opened so.
    pub(super) fn exported(&self, name: &str, wanted: Rights) -> Result<&Export, Refusal> {
        let export = self.exports.get(name).ok_or_else(|| Refusal::new(Status::NAME_UNKNOWN, name))?;
        if !export.rights.covers(wanted) {
            return Err(Refusal::new(Status::NO_RIGHT, "the export does not grant this"));
        }
        if export.memory.is_lost() {
            return Err(Refusal::new(Status::REGION_GONE, "its file was cut short, or has no memory for a page"));
        }
        Ok(export)
    }

    pub(super) fn hold(&mut self, id: u64, held: impl FnOnce(Handle) -> Held) -> Result<Handle, Refusal> {
        let regions_max = self.limits.regions;
        let session = self.sessions.get_mut(&id).ok_or_else(|| Refusal::new(Status::STOPPING, ""))?;
        let handle = session
            .handles
            .insert_with(held)
            .ok_or_else(|| Refusal::new(Status::LIMIT_EXCEEDED, format!("{regions_max} regions (limit regions)")))?;
        let Held { memory, rights, exporter, remote, .. } = self.held(id, handle.0.into())?;
        let (memory, remote) = (memory.clone(), remote.clone());
        // Before the poller knows it.
        let (rights, exporter) = (*rights, *exporter);
        if let Some(region) = memory.as_ref().and_then(|memory| memory.mapped()) {
            self.register_for(id, region);
        }
        let granted = Granted { memory, rights, exporter, remote };
        self.command(Command::Grant { session: id, handle, granted });
        Ok(handle)
    }

    pub(super) fn held(&self, id: u64, handle: u64) -> Result<&Held, Refusal> {
        let handle = u32::try_from(handle).ok().map(Handle);
        let held = handle.and_then(|handle| self.sessions.get(&id)?.handles.get(handle));
        held.ok_or_else(|| Refusal::new(Status::UNKNOWN_REGION, "no such region in this session"))
    }

    pub(super) fn close(&mut self, id: u64, question: &Message) -> Result<(), Refusal> {
        self.held(id, question.args[0])?;
        let handle = Handle(question.args[0] as u32);
        let answer = if question.request == NO_ANSWER {
            Answer::Nobody
        } else {
            Answer::Message { session: id, question: Box::new(*question) }
        };
        let removed = self.sessions.get_mut(&id).and_then(|session| session.handles.remove(handle));
        let Some(held) = removed else { return Ok(()) };
        self.command(Command::Withdraw { session: id, handle, leave_mark: false });
        if let Some(memory) = held.memory.clone().filter(|_| held.own) {
            let names = self.exports.len();
            self.exports.retain(|_, export| !export.memory.is(&memory));
            let removed = names - self.exports.len();
            if let Some(session) = self.sessions.get_mut(&id) {
                session.exports -= removed;
            }
            if removed > 0 {
                self.withdraw_everywhere(memory, Some((id, handle)), answer);
            } else {
                // Without a name nobody else could open it.
                self.withdraw(memory, Openers::default(), Some((id, handle)), answer);
            }
        } else {
            let waiting = vec![(id, handle)];
            let Held { memory, remote, .. } = held;
            self.closings.push(Closing { waiting, peers: None, answer, registered_by: None, memory, remote });
        }
        Ok(())
    }

    /// Takes a region away from everybody who has opened it; `owner` has been told already.
    pub(super) fn withdraw_everywhere(&mut self, memory: Memory, owner: Option<(u64, Handle)>, answer: Answer) {
        let clients = self.take_openers(&HashSet::from([memory.key()])).remove(&memory.key()).unwrap_or_default();
        let (leases, peers) = (self.leases_of(&memory), self.withdraw_from_peers(&memory));
        self.withdraw(memory, Openers { clients, leases, peers }, owner, answer);
    }

    /// The same for all that a session has exported, which has ended: nobody else has anything of it.
    pub(super) fn withdraw_exports(&mut self, session: u64) {
        let gone = self.exports.extract_if(|_, export| export.session == session);
        let gone: HashMap<usize, Memory> = gone.map(|(_, export)| (export.memory.key(), export.memory)).collect();
        // One look at every handle for all of them: there may be thousands of both.
        let mut openers = self.take_openers(&gone.keys().copied().collect());
        for (key, memory) in gone {
            let clients = openers.remove(&key).unwrap_or_default();
            let (leases, peers) = (self.leases_of(&memory), self.withdraw_from_peers(&memory));
            self.withdraw(memory, Openers { clients, leases, peers }, None, Answer::Nobody);
        }
    }

    /// Takes regions out of everybody's handles, and says whose those were.
    fn take_openers(&mut self, keys: &HashSet<usize>) -> HashMap<usize, Vec<(u64, Handle)>> {
        let mut openers: HashMap<usize, Vec<(u64, Handle)>> = HashMap::new();
        if keys.is_empty() {
            return openers;
        }
        for (id, session) in &mut self.sessions {
            let key = |held: &Held| held.memory.as_ref().map(Memory::key).filter(|key| keys.contains(key));
            let opened: Vec<(usize, Handle)> =
                session.handles.iter().filter_map(|(handle, held)| Some((key(held)?, handle))).collect();
            for (key, handle) in opened {
                session.handles.get_mut(handle).and_then(|held| held.memory.take());
                openers.entry(key).or_default().push((*id, handle));
            }
        }
        openers
    }

    /// Takes an export away from all peers. The number by which [`peers_left`](Self::peers_left) will say that none uses it;
    /// `None`: none can.
    fn withdraw_from_peers(&mut self, memory: &Memory) -> Option<u64> {
        let (region, peering) = (memory.mapped()?.clone(), self.peering.as_mut()?);
        let ticket = peering.ticket();
        // First, so that nothing new is begun.
        region.withdraw();
        self.command(Command::PeerWithdraw { region, ticket });
        Some(ticket)
    }

    /// No peer uses a region any more that was taken away from them.
    pub(super) fn peers_left(&mut self, ticket: u64) {
        for closing in self.closings.iter_mut().filter(|closing| closing.peers == Some(ticket)) {
            closing.peers = None;
        }
        self.finish_closings();
    }

    /// Memory of the engine's own process is given back by this thread, which stays until no peer can touch any.
    pub(super) fn wait_for_peers(&mut self) -> Option<u64> {
        let peers = Some(self.peering.as_mut()?.ticket());
        let (waiting, answer) = (Vec::new(), Answer::Nobody);
        self.closings.push(Closing { waiting, peers, answer, registered_by: None, memory: None, remote: None });
        peers
    }

    fn withdraw(&mut self, memory: Memory, openers: Openers, owner: Option<(u64, Handle)>, answer: Answer) {
        memory.withdraw();
        let Openers { clients, leases, peers } = openers;
        for (session, handle) in clients.iter().copied() {
            self.command(Command::Withdraw { session, handle, leave_mark: true });
        }
        let mut waiting: Vec<(u64, Handle)> = owner.into_iter().chain(clients).collect();
        // Who has closed it already may still have transfers under way; the poller has been told.
        let of_region = |closing: &&Closing| closing.memory.as_ref().is_some_and(|m| m.is(&memory));
        waiting.extend(self.closings.iter().filter(of_region).flat_map(|closing| closing.waiting.iter().copied()));
        waiting.extend(leases.into_iter().map(|lease| (lease, LEASE)));
        if waiting.is_empty() && peers.is_none() {
            self.closed(answer);
        } else {
            let registered_by = owner.map(|(session, _)| session);
            self.closings.push(Closing { waiting, peers, answer, registered_by, memory: Some(memory), remote: None });
        }
    }

    pub(super) fn withdrawn(&mut self, session: u64, handle: Handle) {
        for closing in &mut self.closings {
            closing.waiting.retain(|user| *user != (session, handle));
        }
        self.finish_closings();
    }

    pub(super) fn finish_closings(&mut self) {
        let is_over = |closing: &mut Closing| closing.waiting.is_empty() && closing.peers.is_none();
        for closing in self.closings.extract_if(.., is_over).collect::<Vec<_>>() {
            let registered_by = closing.registered_by.and_then(|id| self.sessions.get_mut(&id));
            if let (Some(Memory::Mapped(region)), Some(session)) = (&closing.memory, registered_by) {
                session.region_bytes -= region.bytes();
            }
            // Each opening of a peer's export is a region of its own.
            closing.remote.into_iter().for_each(|remote| self.command(Command::RemoteClose(remote)));
            // Unmapped, so that an engine whose memory it is knows it, before anybody is told.
            drop(closing.memory);
            self.closed(closing.answer);
        }
    }

    pub(super) fn closed(&mut self, answer: Answer) {
        match answer {
            Answer::Nobody => {}
            Answer::Message { session, question } => self.answer(session, &question, Status::OK, [0; 8]),
            // Whoever asked may have stopped waiting.
            Answer::Channel(sender) => drop(sender.send(())),
        }
    }
}

pub(super) fn rights(bits: u64) -> Result<Rights, Refusal> {
    Rights::from_bits(bits).ok_or_else(|| Refusal::new(Status::INVALID_SETTING, format!("rights {bits:#x}")))
}
