//! What was posted, on its way.

use super::memory::Move;
use super::task::Task;
use super::wire::{Load, QUANTUM_BYTES, ns};
use super::world::{Event, Input, World};
use super::{BarStage, Unreliable};
use crate::cost::Wire;
use crate::pipeline::{ChunkId, Reply, Request, WorkFault, WorkId};
use crate::plan;
use ring_abi::{Field, Stage, Status};
use std::rc::Rc;

/// The lists of a chunk, where bytes are really moved.
pub type Lists = Option<Rc<plan::Chunk>>;

/// What one doorbell posted.
#[derive(Debug)]
pub struct Flow {
    /// Number of the caller whose link it is on.
    pub link: usize,
    /// The host that posted it.
    pub host: usize,
    /// The bytes come to who posted it.
    pub is_read: bool,
    pub operations: u32,
    /// On the wire.
    pub bytes: u64,
    /// How much longer than the wire alone its bytes take to be read from memory.
    pub slower: f64,
    /// What its completion is called; nothing if it has none.
    pub work: Option<WorkId>,
    /// Delivered behind the bytes.
    pub message: Option<Message>,
    /// Whose payload it is, if it is any.
    pub chunk: Option<ChunkId>,
    /// It will fail, and none of it is carried out.
    pub fails: bool,
    /// Where its bytes are really moved.
    pub moves: Vec<Move>,
    /// How far it is.
    pub way: Way,
}

/// How far a flow is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// The device has begun with the last of its operations.
    begun_ns: u64,
    /// Bytes that no processor has moved, where processors do.
    unmoved: u64,
    /// Bytes that the wire has not carried.
    uncarried: u64,
    /// It has been on the wire since then, and until then.
    wire_ns: Option<u64>,
    end_ns: Option<u64>,
}

/// A message of one side's pipeline to the other's.
#[derive(Clone, Debug)]
pub enum Message {
    Request(Request, Lists),
    Reply(Reply),
}

impl Flow {
    /// A message alone.
    pub fn message(link: usize, host: usize, message: Message) -> Flow {
        Flow {
            link,
            host,
            is_read: false,
            operations: 1,
            bytes: message.bytes(),
            slower: 1.0,
            work: None,
            message: Some(message),
            chunk: None,
            fails: false,
            moves: Vec::new(),
            way: Way::default(),
        }
    }

    /// 0: to the callers, 1: to the owner.
    fn line(&self) -> usize {
        usize::from((self.host == 0) == self.is_read)
    }
}

impl Message {
    pub fn bytes(&self) -> u64 {
        match self {
            Message::Request(Request::Pack { chunk, .. } | Request::Unpack { chunk, .. }, _) => {
                MESSAGE_BYTES + u64::from(chunk.command_bytes)
            }
            _ => MESSAGE_BYTES,
        }
    }
}

impl World<'_> {
    /// Gives it to the device of its host, which begins with it when it is through with what came before.
    pub fn post(&mut self, mut flow: Flow, at_ns: u64) {
        let nic = if flow.host == 0 { &mut self.owner.nic } else { &mut self.callers[flow.host - 1].nic };
        let (from_ns, last_ns) = nic.begin(at_ns, flow.operations);
        // Not even nothing is carried in no time, and a load without bytes would never end.
        flow.bytes = flow.bytes.max(1);
        flow.way = Way { begun_ns: last_ns, unmoved: flow.bytes, uncarried: flow.bytes, ..Way::default() };
        // The owner's device hears of a read half a round trip later.
        let ready_ns = from_ns + if flow.is_read { self.half_trip_ns() } else { 0 };
        let at = self.free_flows.pop().unwrap_or_else(|| {
            self.flows.push(None);
            self.flows.len() - 1
        });
        if !flow.is_read {
            self.callers[flow.link].posted[usize::from(flow.host == 0)].push_back(at);
        }
        self.flows[at] = Some(flow);
        self.events.add(ready_ns, Event::Wire(at));
    }

    /// It could be on the wire now, for all that its device has to do.
    pub fn on_wire(&mut self, at: usize) {
        let Some(flow) = &self.flows[at] else { return };
        let (bytes, operations, slower) = (flow.bytes, flow.operations, flow.slower);
        // A message alone is sent by the poller.
        if let Wire::Cpu { cores, .. } = self.run.profile.link.wire
            && flow.chunk.is_some()
        {
            (0..cores.max(1)).for_each(|_| self.move_some(at));
            return self.start_tasks();
        }
        self.carry(at, Load { flow: at, bytes, operations, slower });
    }

    /// Gives the processors some of a flow's bytes to move, and its operations with the first of them.
    fn move_some(&mut self, at: usize) {
        let Some(flow) = &mut self.flows[at] else { return };
        let bytes = flow.way.unmoved.min(QUANTUM_BYTES);
        if bytes > 0 {
            let operations = if flow.way.unmoved == flow.bytes { flow.operations } else { 0 };
            flow.way.unmoved -= bytes;
            self.processors.add(None, Task::Transfer { flow: at, bytes, operations });
        }
    }

    /// How long a processor is busy with a part of a flow.
    pub fn transfer_ns(&self, bytes: u64, operations: u32) -> u64 {
        let Wire::Cpu { ns_per_byte, .. } = self.run.profile.link.wire else { return 0 };
        ns(bytes as f64 * ns_per_byte + f64::from(operations) * self.run.profile.link.operation_ns)
    }

    /// A processor has moved a part of a flow.
    pub fn moved(&mut self, at: usize, bytes: u64, operations: u32) {
        self.move_some(at);
        self.carry(at, Load { flow: at, bytes, operations, slower: 1.0 });
    }

    fn carry(&mut self, at: usize, load: Load) {
        let Some(flow) = &self.flows[at] else { return };
        // Of each link, what is answered and what is sent unasked.
        self.lines[flow.line()].add(2 * flow.link + usize::from(flow.is_read), load);
        self.start_line(flow.line());
    }

    fn start_line(&mut self, line: usize) {
        let now_ns = self.now_ns;
        if let Some((at, end_ns)) = self.lines[line].start(now_ns) {
            if let Some(flow) = &mut self.flows[at] {
                flow.way.wire_ns.get_or_insert(now_ns);
            }
            self.events.add(end_ns, Event::Line(line));
        }
    }

    /// The wire has carried something.
    pub fn line_ended(&mut self, line: usize) {
        let carried = self.lines[line].ended();
        self.start_line(line);
        let half_trip_ns = self.half_trip_ns();
        let Some((at, bytes)) = carried else { return };
        let Some(flow) = &mut self.flows[at] else { return };
        flow.way.uncarried -= bytes;
        if flow.way.uncarried > 0 {
            return;
        }
        let last_ns = flow.way.begun_ns + if flow.is_read { half_trip_ns } else { 0 };
        let end_ns = self.now_ns.max(last_ns);
        flow.way.end_ns = Some(end_ns);
        let (link, host, is_read) = (flow.link, flow.host, flow.is_read);
        if let (Some(id), Some(from_ns)) = (flow.chunk, flow.way.wire_ns) {
            self.tally.bar(link, host, id, BarStage::Wire, from_ns, end_ns);
        }
        if is_read {
            self.lands(at, end_ns);
        } else {
            self.land_in_order(link, host);
        }
    }

    /// What a host posted on a link lands in the order in which it was posted, also where several processors move it.
    fn land_in_order(&mut self, link: usize, host: usize) {
        let side = usize::from(host == 0);
        while let Some(first) = self.callers[link].posted[side].front().copied() {
            let Some(end_ns) = self.flows[first].as_ref().and_then(|flow| flow.way.end_ns) else { return };
            self.callers[link].posted[side].pop_front();
            self.lands(first, end_ns.max(self.now_ns));
        }
    }

    fn lands(&mut self, at: usize, end_ns: u64) {
        if self.memory.is_some() {
            self.events.add(end_ns, Event::Read(at));
        }
        self.events.add(end_ns + self.half_trip_ns(), Event::Landed(at));
    }

    /// The latest moment at which a device may read what it sends.
    pub fn read(&mut self, at: usize) {
        if let (Some(memory), Some(flow)) = (&mut self.memory, &mut self.flows[at]) {
            memory.take(flow.link, &mut flow.moves);
        }
    }

    pub fn landed(&mut self, at: usize) {
        let Some(flow) = self.flows[at].take() else { return };
        self.free_flows.push(at);
        let carried = !flow.fails && self.now_ns <= self.callers[flow.link].dead_ns;
        if carried {
            if let Some(memory) = &mut self.memory {
                memory.put(flow.link, &flow.moves);
            }
            if flow.chunk.is_some() {
                self.tally.last_data_ns = self.tally.last_data_ns.max(self.now_ns);
            }
            if let Some(message) = flow.message {
                self.deliver(flow.link, flow.host, message);
            }
        }
        let Some(work) = flow.work else { return };
        // A write is acknowledged; a read's own bytes say that it is done.
        let at_ns = self.now_ns + if flow.is_read { 0 } else { self.half_trip_ns() };
        let result = if carried { Ok(()) } else { Err(WorkFault { operation: 0, status: FLUSHED }) };
        let input = Input::Completed { link: flow.link, work, result };
        self.arrive(flow.host, flow.link, 0, input, at_ns, self.run.faults.completions);
    }

    /// Gives a message to the other side, later by what handing a command to its owner takes.
    fn deliver(&mut self, link: usize, from: usize, message: Message) {
        match message {
            Message::Request(request, lists) => {
                let is_cancel = matches!(request, Request::Cancel { .. });
                let control_ns = if is_cancel { 0 } else { ns(self.run.profile.link.control_ns) };
                let input = Input::Request { link, request, lists };
                self.arrive(0, link, 1, input, self.now_ns + control_ns, Unreliable::default());
            }
            Message::Reply(reply) => {
                debug_assert_eq!(from, 0, "only the owner replies");
                let reply = match reply {
                    Reply::Done(id) if self.random.happens(self.run.faults.replies.error) => {
                        Reply::Failed(id, plan::Fault::new(Status::FAULT, Stage::PACK, Field::NONE, 0))
                    }
                    other => other,
                };
                self.arrive(1 + link, link, 1, Input::Reply(reply), self.now_ns, self.run.faults.replies);
            }
        }
    }

    /// Brings something to a poller, behind what came before it in the same queue unless it is made late.
    fn arrive(&mut self, host: usize, link: usize, queue: usize, input: Input, at_ns: u64, bad: Unreliable) {
        let jitter_ns = self.random.up_to(self.run.profile.effects.jitter_ns);
        let last_ns = &mut self.callers[link].arrived_ns[usize::from(host == 0)][queue];
        *last_ns = (*last_ns).max(at_ns.saturating_add(jitter_ns));
        let at_ns = *last_ns;
        if self.random.happens(bad.lost) {
            return;
        }
        let late_ns = at_ns.saturating_add(self.run.faults.late_ns);
        if self.random.happens(bad.duplicate) {
            self.events.add(late_ns, Event::Arrive(host, input.clone()));
        }
        let at_ns = if self.random.happens(bad.late) { late_ns } else { at_ns };
        self.events.add(at_ns, Event::Arrive(host, input));
    }
}

/// A message's header, on the wire.
const MESSAGE_BYTES: u64 = 64;
/// What devices say of an operation that was not carried out because its queue is in error.
pub const FLUSHED: u32 = 5;
