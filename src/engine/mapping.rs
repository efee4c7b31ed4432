//! Memory of engines on this host, mapped here when a client opens it.
//!
//! The peer gives the file of a region to whoever has the token that it told this engine by their connection (HERE). A thread
//! of its own fetches and maps it, because either may take time; what cannot be mapped goes over the connection. The socket
//! that the file came by is kept open by the region, and closed when that has been unmapped: the owner waits for it.

use super::admit::Peer;
use super::control::{Control, Refusal};
use super::exports::{self, Answer, Closing};
use super::leases::words_of;
use super::mail::{Command, Event};
use super::peers::Asked;
use super::remote::{Here, Remote, SeatId};
use crate::attach::{AttachError, connect_within, granted, receive_until};
use crate::region::{Region, Rights, Trust};
use crate::stats;
use ring_abi::{Handle, Kind, Message, Status};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is known of engines on this host.
pub(super) struct Mapping {
    host: [u8; 16],
    places: HashMap<SeatId, Here>,
    /// Openings whose memory is being mapped, by their number.
    fetching: HashMap<u64, Fetching>,
    /// Threads that do it, those included that nobody waits for any more.
    threads: usize,
}

struct Fetching {
    asked: Asked,
    remote: Arc<Remote>,
}

/// An engine has to answer for so long.
const FETCH_WAIT: Duration = Duration::from_secs(1);
/// Threads that map at once. What is opened beyond that goes over the connection.
const THREADS_MAX: usize = 64;

impl Mapping {
    pub fn new(host: [u8; 16]) -> Mapping {
        Mapping { host, places: HashMap::new(), fetching: HashMap::new(), threads: 0 }
    }

    pub fn down(&mut self, seat: SeatId) {
        self.places.remove(&seat);
    }

    pub fn waiting(&self) -> impl Iterator<Item = &Asked> {
        self.fetching.values().map(|fetching| &fetching.asked)
    }

    /// Openings that have waited for long enough: they go over the connection.
    pub fn take_late(&mut self, is_late: impl Fn(&Asked) -> bool) -> Vec<(Asked, Arc<Remote>)> {
        let late = self.fetching.extract_if(|_, fetching| is_late(&fetching.asked));
        late.map(|(_, Fetching { asked, remote })| (asked, remote)).collect()
    }
}

impl Control {
    /// A peer says where its memory is to be had.
    pub(super) fn peer_here(&mut self, seat: SeatId, here: Here) {
        let Some(mapping) = self.peering.as_mut().and_then(|peering| peering.mapping.as_mut()) else { return };
        // Else it is on another host, or in a container that hides which one this is.
        if here.host == mapping.host && here.path.starts_with('/') {
            mapping.places.insert(seat, here);
        }
    }

    /// Has a region mapped that was opened at a peer; [`Event::RemoteMapped`] follows. Gives it back if it cannot be.
    pub(super) fn begin_mapping(
        &mut self,
        request: u64,
        asked: Asked,
        remote: Arc<Remote>,
    ) -> Result<(), (Asked, Arc<Remote>)> {
        let outbox = self.outbox();
        let mapping = self.peering.as_mut().and_then(|peering| peering.mapping.as_mut());
        let Some(mapping) = mapping.filter(|mapping| mapping.threads < THREADS_MAX) else {
            return Err((asked, remote));
        };
        let (place, rights) = (mapping.places.get(&remote.seat).cloned(), Rights::from_bits(asked.question.args[0]));
        let (Some(place), Some(rights)) = (place, rights) else { return Err((asked, remote)) };
        let (number, bytes) = (remote.number, remote.bytes);
        let thread = std::thread::Builder::new().name("scatter-map".into()).spawn(move || {
            let mapped = fetch(&place, number, bytes, rights);
            // An engine that has stopped drops it.
            outbox.send(Event::RemoteMapped { request, mapped });
        });
        if thread.is_err() {
            return Err((asked, remote));
        }
        mapping.threads += 1;
        mapping.fetching.insert(request, Fetching { asked, remote });
        Ok(())
    }

    /// What became of it.
    pub(super) fn remote_mapped(&mut self, request: u64, mapped: Result<Region, AttachError>) {
        let Some(mapping) = self.peering.as_mut().and_then(|peering| peering.mapping.as_mut()) else { return };
        mapping.threads = mapping.threads.saturating_sub(1);
        let Some(Fetching { asked, remote }) = mapping.fetching.remove(&request) else { return };
        if !self.sessions.contains_key(&asked.session) {
            return self.command(Command::RemoteClose(remote));
        }
        if remote.is_withdrawn() {
            let refusal = Refusal::new(Status::REGION_GONE, "its owner has withdrawn it, or is lost");
            self.refuse(asked.session, &asked.question, &refusal);
            return self.command(Command::RemoteClose(remote));
        }
        if let Err(error) = &mapped
            && let Some(unsaid) = self.pace.next(Instant::now())
        {
            let (epoch, reason) = (remote.seat.0, error.to_string());
            tracing::info!(epoch, ?reason, unsaid, "memory of an engine on this host is not mapped; it is sent");
        }
        if mapped.is_ok() {
            stats::add(&self.stats.attached.peer_regions_mapped, 1);
        }
        self.answer_opening(&asked, &remote, mapped.ok());
    }

    /// Its owner takes a region away that may be mapped here. What is not is refused by the poller already.
    pub(super) fn remote_withdrawn(&mut self, remote: &Arc<Remote>) {
        self.unmap(|mapped| Arc::ptr_eq(mapped, remote), true);
    }

    /// Takes mapped regions of peers out of clients' handles, and unmaps them when nobody uses them any more. `tells`: the
    /// peer is told then.
    pub(super) fn unmap(&mut self, is_it: impl Fn(&Arc<Remote>) -> bool, tells: bool) {
        let mut closings = Vec::new();
        for (id, session) in &mut self.sessions {
            let is_mapped = |held: &exports::Held| {
                held.remote.as_ref().is_some_and(&is_it)
                    && held.memory.as_ref().is_some_and(|memory| memory.mapped().is_some())
            };
            let handles: Vec<Handle> =
                session.handles.iter().filter(|(_, held)| is_mapped(held)).map(|(handle, _)| handle).collect();
            for handle in handles {
                let Some(held) = session.handles.get_mut(handle) else { continue };
                let (memory, remote) = (held.memory.take(), held.remote.take().filter(|_| tells));
                memory.iter().for_each(super::memory::Memory::withdraw);
                let waiting = vec![(*id, handle)];
                closings.push(Closing {
                    waiting,
                    peers: None,
                    answer: Answer::Nobody,
                    registered_by: None,
                    memory,
                    remote,
                });
            }
        }
        for closing in closings {
            for (session, handle) in closing.waiting.iter().copied() {
                self.command(Command::Withdraw { session, handle, leave_mark: true });
            }
            self.closings.push(closing);
        }
    }
}

/// Gets a region's file from its engine and maps it. The peer is not believed: neither who it is nor what it gives.
fn fetch(place: &Here, number: u32, bytes: u64, wanted: Rights) -> Result<Region, AttachError> {
    let until = Instant::now() + FETCH_WAIT;
    let socket = connect_within(Path::new(&place.path), FETCH_WAIT)?;
    if !Peer::of(&socket).is_some_and(|peer| peer.is_engines()) {
        return Err(AttachError::BadMessage("the socket is another user's"));
    }
    let [low, high] = words_of(&place.token);
    let question = Message::new(Kind::FETCH, 1, [low, high, number.into(), 0, 0, 0, 0, 0]);
    match socket.send(&question, &[]) {
        // An engine that refuses whoever connects says why, and closes before it is asked.
        Ok(()) | Err(AttachError::Closed) => {}
        Err(error) => return Err(error),
    }
    let received = receive_until(&socket, until)?;
    granted(&received.message)?;
    let [offset, given_bytes, given_rights, ..] = received.message.args;
    if received.message.kind != Kind::FETCH.answer() || received.message.request != question.request {
        return Err(AttachError::BadMessage("the answer is not about FETCH"));
    }
    let [file] = &received.fds[..] else {
        return Err(AttachError::BadMessage("the answer to FETCH comes with one file descriptor"));
    };
    if given_bytes != bytes || !Rights::from_bits(given_rights).is_some_and(|given| given.covers(wanted)) {
        return Err(AttachError::BadMessage("the memory is not what was opened"));
    }
    // Files that can be cut short only in a process that survives that.
    let region = Region::from_fd(file, offset, bytes, wanted, Trust::SameUser)?;
    Ok(region.leased_by(socket.into()))
}
