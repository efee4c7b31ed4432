//! What the requester's machine wants is carried out.

use super::super::asked::Asked;
use super::super::line::Line;
use super::super::parcel::Parcels;
use super::super::{News, Times};
use super::parts::{Fence, Moved};
use super::window::{DEFECT, Stretch, fill_zeros, gone, local_piece, remote_piece};
use super::{Asking, Posted};
use crate::link::{BadOperation, GrantError, LocalPiece, RemotePiece, Use};
use crate::pack::Way;
use crate::peer::Message;
use crate::pipeline::WorkId;
use crate::pipeline::{BatchId, Chunk, ChunkId, LINK_LOST, Landing, Lease, Origin, Reply, Request, RequesterAction};
use crate::plan::{Direction, Fault};
use crate::region::{Region, Rights};
use ring_abi::{Field, Stage, Status};
use std::collections::VecDeque;
use std::sync::Arc;

/// What acting needs besides.
pub struct Hands<'a> {
    pub line: &'a mut Line,
    pub asked: &'a Asked,
    pub parcels: &'a mut Parcels,
    pub news: &'a mut VecDeque<News>,
    pub now_ns: u64,
}

impl Asking {
    /// Does all that is to be done. True if anything was.
    pub fn act(&mut self, hands: &mut Hands<'_>) -> bool {
        self.machine.advance(hands.now_ns);
        self.zero_budget = ZERO_TURN_BYTES;
        self.has_run = false;
        let mut did = self.go_on(hands);
        // What this thread itself has packed, for the first lane, leaves before it packs more.
        while !self.has_run
            && let Some(action) = self.machine.next_action()
        {
            did = true;
            self.carry_out(action, hands);
        }
        did
    }

    fn carry_out(&mut self, action: RequesterAction, hands: &mut Hands<'_>) {
        match action {
            RequesterAction::Post { chunk, first, count, work, .. } => self.post(&chunk, first, count, work, hands),
            RequesterAction::Pack { id, chunk, lease } => self.run(Way::Pack, id, &chunk, lease, hands),
            RequesterAction::Unpack { id, chunk, lease } => self.run(Way::Unpack, id, &chunk, lease, hands),
            RequesterAction::PostBulk { chunk, origin, landing, work, .. } => {
                self.post_bulk(&chunk, origin, landing, work, hands);
            }
            RequesterAction::Send(Request::Pack { id, chunk, landing }) => self.ask(id, &chunk, landing, hands),
            RequesterAction::Send(Request::Cancel { batch }) => self.send_cancel(batch, hands),
            // UNPACK goes behind its bulk write.
            RequesterAction::Send(Request::Unpack { .. }) => {}
            RequesterAction::Break => hands.line.shut_down(),
            RequesterAction::ChunkDone { chunk, .. } => self.drop_chunk(chunk.lists, true, hands),
            RequesterAction::ChunkDropped { chunk, .. } => self.drop_chunk(chunk.lists, false, hands),
            RequesterAction::Failed { batch, chunk, fault } => self.failed(batch, chunk, fault, hands),
            RequesterAction::Finished { batch, done } => self.finished(batch, done, hands),
        }
    }

    /// Goes on with windows that did not fit into one operation, or have zeros to be written.
    fn go_on(&mut self, hands: &mut Hands<'_>) -> bool {
        let mut did = false;
        // From the end, because one that ends gives its place to the last.
        for which in (0..self.posted.len()).rev() {
            if self.posted.get(which).is_some_and(|posted| !posted.is_out) {
                did = true;
                self.post_rest(which, hands);
            }
        }
        did
    }

    fn post(&mut self, chunk: &Chunk, first: u32, count: u32, work: WorkId, hands: &mut Hands<'_>) {
        let at = chunk.lists;
        let Some(lane) = self.start(at, hands.now_ns) else { return };
        let end = first.saturating_add(count);
        let rest = Stretch { next: first, skip: 0, end: if end >= chunk.operations { u32::MAX } else { end } };
        let is_read = self.part_of(at).is_some_and(|part| part.direction == Direction::Read);
        let zeros = (is_read && first == 0).then_some(Stretch::ALL);
        if let Some(carried) = self.chunks.get_mut(at) {
            carried.went_direct = true;
        }
        let number = self.next_post();
        self.posted.push(Posted { work, chunk: at, lane, rest: Some(rest), zeros, number, is_out: false });
        self.post_rest(self.posted.len() - 1, hands);
    }

    /// Writes a window's zeros, if there is time for all of them, and posts its next operation.
    fn post_rest(&mut self, which: usize, hands: &mut Hands<'_>) {
        match self.try_rest(which, hands) {
            Ok(true) => {}
            Ok(false) => self.end_post(which, Ok(()), hands),
            Err(fault) => self.end_post(which, Err(fault), hands),
        }
    }

    /// False: nothing is left of it.
    fn try_rest(&mut self, which: usize, hands: &mut Hands<'_>) -> Result<bool, Fault> {
        let mut posted = self.posted.get(which).copied().ok_or(DEFECT)?;
        let mut rest = posted.rest.ok_or(DEFECT)?;
        let direction = self.part_of(posted.chunk).ok_or(DEFECT)?.direction;
        let parcel = &self.chunks.get(posted.chunk).ok_or(DEFECT)?.parcel;
        let budget = &mut self.zero_budget;
        if let Some(mut zeros) = posted.zeros {
            fill_zeros(parcel, &mut zeros, budget)?;
            posted.zeros = (!zeros.is_over()).then_some(zeros);
            self.posted[which] = posted;
            if posted.zeros.is_some() {
                return Ok(true);
            }
        }
        self.pieces.cut(parcel, direction, &mut rest, hands.asked, &self.zeros)?;
        let (local, remote) = (&self.pieces.local, &self.pieces.remote);
        if local.is_empty() {
            return Ok(false);
        }
        let (id, operations) = (posted.work.0, local.len() as u64);
        let done = match direction {
            Direction::Read => hands.line.read(posted.lane, id, remote, local),
            Direction::Write => hands.line.write(posted.lane, id, local, remote, true, None),
        };
        self.pieces.clear();
        done.map_err(fault_of)?;
        self.posted[which] = Posted { rest: Some(rest), is_out: true, ..posted };
        self.awaited[posted.lane] += 1;
        if let Some(part) = self.part_of(posted.chunk) {
            part.moved.operations += operations;
        }
        Ok(true)
    }

    /// Nothing of a doorbell is under way.
    fn end_post(&mut self, which: usize, result: Result<(), Fault>, hands: &Hands<'_>) {
        let posted = self.posted.swap_remove(which);
        self.pieces.clear();
        let result = result.map_err(|fault| self.note(posted.chunk, fault));
        self.machine.completed(posted.work, result, hands.now_ns);
    }

    /// WRITE, from a slot or from where it lies, to where it belongs or to a landing slot with UNPACK behind it.
    fn post_bulk(&mut self, chunk: &Chunk, origin: Origin, landing: Landing, work: WorkId, hands: &mut Hands<'_>) {
        let at = chunk.lists;
        let Some(lane) = self.start(at, hands.now_ns) else { return };
        let number = self.next_post();
        self.posted.push(Posted { work, chunk: at, lane, rest: None, zeros: None, number, is_out: true });
        let ends = self.bulk_ends(chunk, origin, landing, hands.asked);
        let Some(carried) = self.chunks.get_mut(at) else { return };
        let done = ends.and_then(|(from, to)| {
            let list = carried.parcel.chunk.dst.encoded();
            let id = carried.id;
            let unpack = match landing {
                Landing::Destination => None,
                Landing::Slot(slot) => Some(Message::Unpack { id, bytes: chunk.bytes, slot, list }),
            };
            let is_asked = unpack.is_some();
            let posted = hands.line.write(lane, work.0, &[from], &[to], !is_asked, unpack.as_ref());
            posted.map(|()| is_asked).map_err(fault_of)
        });
        match done {
            Ok(is_asked) => {
                (carried.is_asked, carried.asked_ns) = (is_asked, hands.now_ns);
                self.awaited[lane] += 1 + u32::from(is_asked);
                if let Some(part) = self.part_of(at) {
                    part.moved.operations += 1;
                }
            }
            Err(fault) => self.end_post(self.posted.len() - 1, Err(fault), hands),
        }
    }

    fn bulk_ends(
        &self,
        chunk: &Chunk,
        origin: Origin,
        landing: Landing,
        asked: &Asked,
    ) -> Result<(LocalPiece, RemotePiece), Fault> {
        let parcel = &self.chunks.get(chunk.lists).ok_or(DEFECT)?.parcel;
        let from = match origin {
            Origin::Source => local_piece(parcel, parcel.chunk.src.contiguous().ok_or(DEFECT)?, chunk.bytes)?,
            Origin::Slot(slot) => self.slots.piece(slot, chunk.bytes).ok_or(DEFECT)?,
        };
        let to = match landing {
            Landing::Destination => remote_piece(asked, parcel.chunk.dst.contiguous().ok_or(DEFECT)?, chunk.bytes)?,
            Landing::Slot(slot) => {
                let there = self.owner_slots.ok_or(DEFECT)?;
                let offset = u64::from(slot) * u64::from(there.slot_bytes);
                RemotePiece { grant: there.grant, offset, len: chunk.bytes }
            }
        };
        Ok((from, to))
    }

    /// READ: lets the owner write to the landing, once, and sends PACK.
    fn ask(&mut self, id: ChunkId, chunk: &Chunk, landing: Landing, hands: &mut Hands<'_>) {
        let Some(lane) = self.start(chunk.lists, hands.now_ns) else { return };
        let granted = self.landing(chunk, landing).and_then(|(region, offset)| {
            let bytes = u64::from(chunk.bytes);
            let grant = match landing {
                Landing::Destination => self.grants.grant(region, offset, bytes, Rights::WRITE, Use::Once),
                Landing::Slot(_) => self.grants.grant_slot(&region, (offset, bytes), self.slots.exposed()),
            };
            grant.map_err(|error| match error {
                GrantError::RegionGone => gone(0),
                GrantError::NoRight => Fault::new(Status::NO_RIGHT, Stage::WINDOW, Field::NONE, 0),
                GrantError::NotRegistered => UNREACHED,
                _ => DEFECT,
            })
        });
        let Some(carried) = self.chunks.get_mut(chunk.lists) else { return };
        match granted {
            Ok(grant) => {
                (carried.landing, carried.is_asked, carried.asked_ns) = (Some(grant), true, hands.now_ns);
                self.awaited[lane] += 1;
                let list = carried.parcel.chunk.src.encoded();
                hands.line.send(lane, &Message::Pack { id, bytes: chunk.bytes, landing: grant.0, list });
            }
            Err(fault) => self.machine.reply(Reply::Failed(id, fault), hands.now_ns),
        }
    }

    fn landing(&self, chunk: &Chunk, landing: Landing) -> Result<(Arc<Region>, u64), Fault> {
        let parcel = &self.chunks.get(chunk.lists).ok_or(DEFECT)?.parcel;
        match landing {
            Landing::Destination => {
                let (handle, offset) = parcel.chunk.dst.contiguous().ok_or(DEFECT)?;
                Ok((parcel.region(handle).ok_or(gone(handle))?.clone(), offset))
            }
            Landing::Slot(slot) => self.slots.at(slot).ok_or(DEFECT),
        }
    }

    /// Packs a chunk into a slot, or unpacks it from there, on the thread of its lane.
    fn run(&mut self, way: Way, id: ChunkId, chunk: &Chunk, lease: Lease, hands: &mut Hands<'_>) {
        let ready = self.start(chunk.lists, hands.now_ns).zip(self.tasks.pop()).zip(self.slots.at(lease.slot));
        let Some((((lane, mut task), slot), carried)) = ready.zip(self.chunks.get_mut(chunk.lists)) else {
            return self.end_run(way, id, lease, DEFECT, hands);
        };
        let list = if way == Way::Pack { &carried.parcel.chunk.src } else { &carried.parcel.chunk.dst };
        task.id = chunk.lists.into();
        let set = task.set(way, list.encoded(), slot, chunk.bytes);
        let regions = carried.parcel.regions.iter().map(|(handle, region)| (*handle, region.clone()));
        task.regions.extend(regions);
        carried.lease = Some(lease);
        let ran = match set {
            Ok(()) => hands.line.run(lane, task).map_err(|task| (task, LINK_LOST)),
            Err(_) => Err((task, DEFECT)),
        };
        self.has_run |= lane == 0;
        if let Err((mut task, fault)) = ran {
            task.finish();
            self.tasks.push(task);
            carried.lease = None;
            self.end_run(way, id, lease, fault, hands);
        }
    }

    fn end_run(&mut self, way: Way, id: ChunkId, lease: Lease, fault: Fault, hands: &Hands<'_>) {
        match way {
            Way::Pack => self.machine.packed(id, lease, Err(fault), hands.now_ns),
            Way::Unpack => self.machine.unpacked(id, lease, Err(fault), hands.now_ns),
        }
    }

    fn send_cancel(&mut self, batch: BatchId, hands: &mut Hands<'_>) {
        let lanes = hands.line.lanes();
        if let Some(part) = self.part_mut(batch) {
            part.fence = Fence::Lanes(u32::MAX >> (u32::BITS as usize - lanes));
        }
        hands.line.send_on_all(&Message::Cancel { batch });
    }

    fn failed(&mut self, batch: BatchId, number: u32, fault: Fault, hands: &mut Hands<'_>) {
        let at = self.chunks.find(ChunkId { batch, number });
        let carried = at.and_then(|at| self.chunks.get(at));
        let (transfer, fragment) = carried.map_or((0, 0), |c| (c.parcel.chunk.transfer, c.parcel.chunk.fragment));
        let fault = Fault { fragment, ..carried.and_then(|carried| carried.fault).unwrap_or(fault) };
        let Some(part) = self.part_mut(batch) else { return };
        part.is_stopped = true;
        hands.news.push_back(News::Failed { part: part.id, transfer, fault });
    }

    fn finished(&mut self, batch: BatchId, done: bool, hands: &mut Hands<'_>) {
        let Some(which) = self.parts.iter().position(|part| part.batch == batch) else { return };
        let part = self.parts.swap_remove(which);
        let window_ns = part.started_ns.map_or(0, |since_ns| hands.now_ns.saturating_sub(since_ns));
        if done {
            self.sample = Some((part.moved, window_ns));
        }
        let times = Times { window_ns, ..part.times };
        hands.news.push_back(News::Finished { part: part.id, done, times });
    }

    fn drop_chunk(&mut self, at: u32, done: bool, hands: &mut Hands<'_>) {
        let Some(carried) = self.chunks.remove(at) else { return };
        // Nobody was asked, or the owner has answered: else the machine would keep it.
        debug_assert!(carried.landing.is_none() && carried.revoking.is_none() && !carried.is_asked);
        if let Some(part) = self.part_mut(carried.id.batch) {
            let bytes = u64::from(carried.parcel.chunk.bytes);
            (part.chunks, part.bytes) = (part.chunks - 1, part.bytes - bytes);
            if done {
                part.moved = Moved { bytes: part.moved.bytes + bytes, ..part.moved };
                part.times.direct_chunks += u64::from(carried.went_direct);
                part.times.gathered_chunks += u64::from(!carried.went_direct);
            }
        }
        hands.parcels.give_back(carried.parcel);
    }

    /// Something of a chunk starts; gives its lane.
    fn start(&mut self, at: u32, now_ns: u64) -> Option<usize> {
        self.part_of(at)?.started(now_ns);
        self.chunks.get(at).map(|carried| carried.lane)
    }
}

/// Zeros that the poller writes before it looks at others.
const ZERO_TURN_BYTES: u32 = 256 << 10;

/// Why an operation cannot be posted.
fn fault_of(why: BadOperation) -> Fault {
    match why {
        BadOperation::RegionGone => gone(0),
        BadOperation::NoRight => Fault::new(Status::NO_RIGHT, Stage::WINDOW, Field::NONE, 0),
        BadOperation::NoKey => UNREACHED,
        _ => DEFECT,
    }
}

/// Memory that no device reaches was to be reached by one: its descriptor asks for the direct route.
const UNREACHED: Fault = Fault::new(Status::UNSUPPORTED, Stage::WINDOW, Field::NONE, 0);
