//! The owner half of all connections: commands of peers come in, packed chunks and answers go out.
//!
//! What may be done when is [`Owner`]'s matter; here are the lists, the memory and the lanes that its actions speak of.
//! The number of a chunk's [`Order`] goes with it through the machine.

mod fences;
mod list;
mod order;

use super::RemoteConfig;

use super::line::{COMMANDS, Line, OWNER_QUEUE_DEPTH, OWNER_TASK, OWNER_WORK};
use super::opened::Opened;
use super::seat::{Seat, Violation};
use super::slots::SlotMemory;
use crate::link::{BadOperation, Failure, GrantId, LocalPiece, RemotePiece};
use crate::pack::{ListTask, Way};
use crate::peer::Message;
use crate::pipeline::{BatchId, Chunk, ChunkId, LINK_LOST, Landing, Lease, LinkId, Owner, OwnerAction, OwnerLimits};
use crate::pipeline::{Reply, Request, WorkFault, WorkId};
use crate::plan::Fault;
use crate::region::Region;
use crate::verbs::ProtectionDomain;
use fences::Fences;
use list::Listed;
use order::{Order, Orders, Place};
use ring_abi::{Field, Route, Stage, Status};
use std::sync::Arc;

pub struct Serving {
    machine: Owner,
    /// Where commands are packed. Made with the first connection.
    slots: Option<SlotMemory>,
    orders: Orders,
    links: Vec<Link>,
    config: RemoteConfig,
    /// Of the operation that is being posted.
    pieces: Vec<LocalPiece>,
    /// Actions wait that there was no time for.
    is_unfinished: bool,
}

/// What is known of a connection besides what the machine knows.
struct Link {
    id: LinkId,
    fences: Fences,
    /// Numbers of its orders.
    orders: Vec<u32>,
}

/// How long a command waits for a slot before it is refused.
const PATIENCE_NS: u64 = 2_000_000;
/// Commands of a connection, those included that are over and will be dropped within the turn.
const ORDERS: usize = (2 * COMMANDS + OWNER_QUEUE_DEPTH / 2) as usize;

impl Serving {
    pub fn new(config: &RemoteConfig) -> Serving {
        let machine = Owner::new(&OwnerLimits {
            links: config.connections,
            slots: config.owner_slots,
            link_slots: config.slots,
            commands: COMMANDS,
            queue_depth: OWNER_QUEUE_DEPTH,
            patience_ns: PATIENCE_NS,
        });
        let (slots, orders, links) = (None, Orders::default(), Vec::new());
        let pieces = Vec::with_capacity(crate::link::PIECES_MAX);
        Serving { machine, slots, orders, links, config: config.clone(), pieces, is_unfinished: false }
    }

    /// A connection of so many lanes is there, with the device that sends what is packed if one does. `None`: no room, or no
    /// memory for slots.
    pub fn open(&mut self, lanes: usize, domain: Option<&Arc<ProtectionDomain>>) -> Option<LinkId> {
        if self.slots.is_none() {
            self.slots = Some(SlotMemory::new(self.config.owner_slots, self.config.slot_bytes).ok()?);
        }
        self.slots.as_mut()?.register(domain, false).ok()?;
        let id = self.machine.open()?;
        self.links.push(Link { id, fences: Fences::new(lanes), orders: Vec::with_capacity(ORDERS) });
        self.orders.reserve(self.links.len() * ORDERS);
        Some(id)
    }

    /// PACK, UNPACK or CANCEL.
    ///
    /// # Errors
    /// What no engine sends.
    pub fn received(
        &mut self,
        link: LinkId,
        opened: &Opened,
        lane: usize,
        message: Message<'_>,
        now_ns: u64,
    ) -> Result<(), Violation> {
        match message {
            Message::Pack { id, bytes, landing, list } => {
                let place = Place::Packed { lease: None, landing: GrantId(landing) };
                self.command(link, Command { id, lane, bytes, place, list, way: Way::Pack, now_ns }, opened)
            }
            Message::Unpack { id, bytes, slot, list } => {
                let place = Place::Landed { slot };
                self.command(link, Command { id, lane, bytes, place, list, way: Way::Unpack, now_ns }, opened)
            }
            Message::Cancel { batch } => self.cancel(link, lane, batch, now_ns),
            _ => Err(Violation("not a command")),
        }
    }

    fn command(&mut self, link: LinkId, command: Command<'_>, opened: &Opened) -> Result<(), Violation> {
        let Command { id, lane, now_ns, .. } = command;
        let known = self.links.iter_mut().find(|known| known.id == link && known.orders.len() < ORDERS);
        let (Some(known), Some((at, order))) = (known, self.orders.take()) else {
            return Err(Violation("more commands at once than are taken"));
        };
        known.orders.push(at);
        (order.link, order.id, order.lane, order.arrived_ns) = (Some(link), id, lane, now_ns);
        let request = order.begin(command, at, opened, self.config.slot_bytes);
        if !self.machine.request(link, request, now_ns) {
            self.drop_order(link, at);
            return Err(Violation("a command that may not be given"));
        }
        Ok(())
    }

    fn cancel(&mut self, link: LinkId, lane: usize, batch: BatchId, now_ns: u64) -> Result<(), Violation> {
        let known = self.links.iter_mut().find(|known| known.id == link);
        let fences = known.map(|known| &mut known.fences).ok_or(Violation("a CANCEL on no connection"))?;
        if fences.came_by(lane, batch).ok_or(Violation("a CANCEL that came by this lane before, or one too many"))? {
            let before = self.machine.counters().violations;
            self.machine.request(link, Request::Cancel { batch }, now_ns);
            if self.machine.counters().violations > before {
                return Err(Violation("a CANCEL of what is being cancelled"));
            }
        }
        Ok(())
    }

    /// Of an operation, without its [`OWNER_WORK`] bit. The answer went out behind it, so that there is nothing more to say:
    /// if the source was lost meanwhile, the other side's grant is spoiled.
    pub fn completed(&mut self, link: LinkId, work: u64, _: Result<(), Failure>) {
        self.machine.completed(link, WorkId(work), Ok(()));
    }

    /// A task came back.
    pub fn ran(&mut self, link: LinkId, task: Box<ListTask>, now_ns: u64) {
        let at = (task.id & !OWNER_TASK) as u32;
        let Some(order) = self.orders.get_mut(at).filter(|order| order.link == Some(link)) else { return };
        let result = match task.result() {
            Ok(bytes) if bytes == order.bytes => Ok(()),
            Ok(bytes) => Err(list::not_its_length(bytes)),
            Err(refusal) => Err(list::fault(refusal)),
        };
        order.pack_ns = task.ns();
        order.queue_ns = nanoseconds(now_ns.saturating_sub(order.arrived_ns).saturating_sub(task.ns().into()));
        order.task = Some(task);
        self.ended(link, at, result);
    }

    /// A task has ended, or never began.
    fn ended(&mut self, link: LinkId, at: u32, result: Result<(), Fault>) {
        let Some(order) = self.orders.get(at) else { return };
        match order.place {
            Place::Packed { lease: Some(lease), .. } => self.machine.packed(link, order.id, lease, result),
            Place::Landed { slot } => self.machine.unpacked(link, order.id, slot, result),
            Place::Packed { lease: None, .. } | Place::Piece { .. } | Place::Pieces { .. } | Place::None => {}
        }
    }

    pub fn down(&mut self, link: LinkId) {
        self.machine.down(link);
    }

    /// Nothing moves any more on the connection, and every task has come back.
    pub fn quiesced(&mut self, link: LinkId) {
        // A task that did not is lost with its thread, which has ended: a defect, but no reason to wait for ever.
        let orders = self.links.iter().find(|known| known.id == link).map_or(&[][..], |known| &known.orders);
        let lost: Vec<u32> = orders
            .iter()
            .copied()
            .filter(|at| self.orders.get(*at).is_some_and(|order| order.task.is_none()))
            .collect();
        lost.into_iter().for_each(|at| self.ended(link, at, Err(LINK_LOST)));
        self.machine.quiesced(link);
    }

    /// Time has passed; carries out what the machine wants, on the seats' lines. True if something was done. A Break, or a
    /// violation that is found here, is answered by `seat.line.shut_down()`: the event of that makes the seat go down.
    pub fn act(&mut self, seats: &mut [Seat], now_ns: u64) -> bool {
        self.machine.advance(now_ns);
        let (mut acted, mut here_bytes) = (false, 0);
        self.is_unfinished = true;
        // What the poller itself has packed, for a first lane, leaves before it packs more.
        while here_bytes == 0 {
            let Some(action) = self.machine.next_action() else {
                self.is_unfinished = false;
                break;
            };
            here_bytes += self.carry_out(action, seats, now_ns);
            acted = true;
        }
        acted
    }

    /// Bytes that were packed or unpacked on this thread.
    fn carry_out(&mut self, action: OwnerAction, seats: &mut [Seat], now_ns: u64) -> u64 {
        match action {
            OwnerAction::Pack { link, id, chunk, lease } => return self.pack(link, id, &chunk, lease, seats),
            OwnerAction::Unpack { link, chunk, slot, .. } => return self.unpack(link, &chunk, slot, seats),
            OwnerAction::PostBulk { link, chunk, work, .. } => {
                if let Err(fault) = self.post(link, &chunk, work, seats, now_ns) {
                    self.orders.get_mut(chunk.lists).into_iter().for_each(|order| order.fault = Some(fault));
                    // What it says of the device is replaced by the order's fault.
                    self.machine.completed(link, work, Err(WorkFault { operation: 0, status: 0 }));
                }
            }
            OwnerAction::Send { link, reply } => self.send(link, reply, seats),
            OwnerAction::Drop { link, chunk, .. } => self.drop_order(link, chunk.lists),
            OwnerAction::Break { link } => line(seats, link).into_iter().for_each(Line::shut_down),
            OwnerAction::Closed { link } => self.links.retain(|known| known.id != link),
        }
        0
    }

    fn pack(&mut self, link: LinkId, id: ChunkId, chunk: &Chunk, lease: Lease, seats: &mut [Seat]) -> u64 {
        let slot = self.slots.as_ref().and_then(|slots| slots.at(lease.slot));
        let (Some(order), Some(line)) = (self.orders.get_mut(chunk.lists), line(seats, link)) else {
            self.machine.packed(link, id, lease, Err(LINK_LOST));
            return 0;
        };
        if let Place::Packed { lease: leased, .. } = &mut order.place {
            *leased = Some(lease);
        }
        let started = order.start(chunk.lists, slot, line);
        started.unwrap_or_else(|fault| {
            self.ended(link, chunk.lists, Err(fault));
            0
        })
    }

    fn unpack(&mut self, link: LinkId, chunk: &Chunk, slot: u32, seats: &mut [Seat]) -> u64 {
        let seat = seats.iter_mut().find(|seat| seat.owner == link);
        let started = match (self.orders.get_mut(chunk.lists), seat) {
            (Some(Order { fault: Some(fault), .. }), _) => Err(*fault),
            (Some(order), Some(seat)) => order.start(chunk.lists, seat.landings.at(slot), &mut seat.line),
            _ => Err(LINK_LOST),
        };
        started.unwrap_or_else(|fault| {
            self.ended(link, chunk.lists, Err(fault));
            0
        })
    }

    fn post(
        &mut self,
        link: LinkId,
        chunk: &Chunk,
        work: WorkId,
        seats: &mut [Seat],
        now_ns: u64,
    ) -> Result<(), Fault> {
        let (Some(order), Some(line)) = (self.orders.get_mut(chunk.lists), line(seats, link)) else {
            return Err(LINK_LOST);
        };
        if let Some(fault) = order.fault {
            return Err(fault);
        }
        let pieces = &mut self.pieces;
        pieces.clear();
        let (from, grant) = match &order.place {
            Place::Pieces { landing } => {
                order.queue_ns = nanoseconds(now_ns.saturating_sub(order.arrived_ns));
                let task = order.task.as_ref().ok_or(LINK_LOST)?;
                list::local_pieces(task, order.bytes, pieces)?;
                (None, *landing)
            }
            Place::Piece { region, offset, landing } => {
                order.queue_ns = nanoseconds(now_ns.saturating_sub(order.arrived_ns));
                (LocalPiece::of_region(region, *offset, order.bytes), *landing)
            }
            Place::Packed { lease: Some(lease), landing } => {
                (self.slots.as_ref().and_then(|slots| slots.piece(lease.slot, order.bytes)), *landing)
            }
            Place::Packed { lease: None, .. } | Place::Landed { .. } | Place::None => return Err(LINK_LOST),
        };
        pieces.extend(from);
        if pieces.is_empty() {
            return Err(Fault::new(Status::OUT_OF_RANGE, Stage::WINDOW, Field::NONE, 0));
        }
        let to = RemotePiece { grant, offset: 0, len: order.bytes };
        let done = Message::Done { id: order.id, queue_ns: order.queue_ns, pack_ns: order.pack_ns };
        let written = line.write(order.lane, OWNER_WORK | work.0, pieces, &[to], false, Some(&done));
        pieces.clear();
        written.map_err(|why| {
            let status = match why {
                BadOperation::RegionGone => Status::REGION_GONE,
                BadOperation::NoRight => Status::NO_RIGHT,
                _ => Status::BAD_MESSAGE,
            };
            Fault::new(status, Stage::WINDOW, Field::NONE, 0)
        })
    }

    fn send(&mut self, link: LinkId, reply: Reply, seats: &mut [Seat]) {
        let Some(line) = line(seats, link) else { return };
        let id = match reply {
            Reply::Drained(batch) => return line.send_on_all(&Message::Drained { batch }),
            Reply::Done(id) | Reply::Refused(id) | Reply::Failed(id, _) => id,
        };
        let known = self.links.iter().find(|known| known.id == link).map_or(&[][..], |known| &known.orders);
        let Some(order) = known.iter().filter_map(|at| self.orders.get(*at)).find(|order| order.id == id) else {
            return;
        };
        let message = match reply {
            Reply::Refused(_) => Message::Refused { id },
            Reply::Failed(_, fault) => Message::Failed { id, fault: order.fault.unwrap_or(fault) },
            Reply::Done(_) | Reply::Drained(_) => {
                Message::Done { id, queue_ns: order.queue_ns, pack_ns: order.pack_ns }
            }
        };
        line.send(order.lane, &message);
    }

    fn drop_order(&mut self, link: LinkId, at: u32) {
        if let Some(known) = self.links.iter_mut().find(|known| known.id == link) {
            known.orders.retain(|known| *known != at);
        }
        self.orders.give_back(at);
    }

    /// True when nothing of it is under way any more, and nothing more will be said of it.
    pub fn is_closed(&self, link: LinkId) -> bool {
        self.links.iter().all(|known| known.id != link)
    }

    /// A command under way touches it.
    pub fn uses(&self, region: &Arc<Region>) -> bool {
        let address = Arc::as_ptr(region).addr();
        self.orders.iter().any(|order| order.named.contains(&address))
    }

    #[cfg(test)]
    pub fn orders_out(&self) -> usize {
        self.orders.len()
    }

    #[cfg(test)]
    pub fn leased(&self) -> u32 {
        self.machine.leased()
    }

    /// There is something to do that no event will show.
    pub fn has_work(&self) -> bool {
        self.is_unfinished
    }

    pub fn next_timer_ns(&self) -> u64 {
        self.machine.next_timer_ns().unwrap_or(u64::MAX)
    }

    /// Orders and leases.
    #[cfg(test)]
    pub fn left(&self) -> (usize, u32) {
        (self.orders.len(), self.machine.leased())
    }
}

/// PACK or UNPACK.
struct Command<'a> {
    id: ChunkId,
    lane: usize,
    bytes: u32,
    place: Place,
    list: &'a [u8],
    way: Way,
    now_ns: u64,
}

impl Order {
    /// Notes what is to be done, and says what the machine needs to know. An order that cannot be carried out goes through it
    /// like any other, as one that needs no slot.
    fn begin(&mut self, command: Command<'_>, at: u32, opened: &Opened, slot_bytes: u32) -> Request {
        let Command { id, bytes, place, list, way, .. } = command;
        (self.bytes, self.place) = (bytes, place);
        let task = self.task.get_or_insert_default();
        let listed = task.set_list(way, list).map_err(list::fault);
        let listed = listed.and_then(|()| list::look_through(task, way, bytes, opened));
        let listed = listed.and_then(|listed| match (listed, way) {
            (Listed::Piece(_), Way::Pack) if opened.sends_from(task) => Ok(listed),
            (Listed::Piece(_), _) if bytes <= slot_bytes => Ok(Listed::Pieces(1)),
            _ if bytes <= slot_bytes => Ok(listed),
            _ => Err(Fault::new(Status::LIMIT_EXCEEDED, Stage::COMMAND, Field::NONE, bytes.into())),
        });
        self.fault = listed.err();
        let mut needs_slot = matches!(listed, Ok(Listed::Pieces(_) | Listed::Zeros));
        if let (Ok(Listed::Pieces(count)), Place::Packed { landing, .. }) = (&listed, &self.place)
            && opened.gathers(task, bytes, *count)
        {
            self.place = Place::Pieces { landing: *landing };
            needs_slot = false;
        }
        if let (Ok(Listed::Piece(piece)), Place::Packed { landing, .. }, [(_, region)]) =
            (&listed, &self.place, &task.regions[..])
        {
            self.place = Place::Piece { region: region.clone(), offset: piece.offset, landing: *landing };
            needs_slot = false;
        }
        self.name_regions();
        let (route, command_bytes) = (Route::GATHER, list.len() as u32);
        let src_pieces = if needs_slot { 2 } else { 1 };
        let chunk = Chunk { route, bytes, src_pieces, dst_pieces: 1, operations: 1, command_bytes, lists: at };
        match self.place {
            Place::Landed { slot } => Request::Unpack { id, chunk, slot },
            _ => Request::Pack { id, chunk, landing: Landing::Destination },
        }
    }

    /// Has it packed or unpacked by its lane. Gives the bytes that were copied on this thread.
    fn start(&mut self, at: u32, slot: Option<(Arc<Region>, u64)>, line: &mut Line) -> Result<u64, Fault> {
        let (Some(slot), Some(task)) = (slot, &mut self.task) else { return Err(LINK_LOST) };
        task.id = OWNER_TASK | u64::from(at);
        task.set_slot(slot, self.bytes).map_err(list::fault)?;
        match self.task.take().map(|task| line.run(self.lane, task)) {
            Some(Err(task)) => {
                self.task = Some(task);
                Err(LINK_LOST)
            }
            _ => Ok(if self.lane == 0 { self.bytes.into() } else { 0 }),
        }
    }
}

fn line(seats: &mut [Seat], link: LinkId) -> Option<&mut Line> {
    seats.iter_mut().find(|seat| seat.owner == link).map(|seat| &mut seat.line)
}

fn nanoseconds(ns: u64) -> u32 {
    u32::try_from(ns).unwrap_or(u32::MAX)
}
