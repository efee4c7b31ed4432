//! `T_gather`: packed, moved in bulk, unpacked, chunk by chunk.

use super::Bound;
use super::direct::Direct;
use super::model::{CHUNK_ELEMENTS, Stage};
use super::terms::{Copies, Gathered, Terms};

/// What chunks a load is cut into.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// `K`.
    pub chunks: f64,
    /// Chunks before the first that is about as long as the longest.
    growing: f64,
    /// These are parts of the whole, 0 to 1.
    first: f64,
    average: f64,
    largest: f64,
}

impl Shape {
    pub fn of(load: &Gathered, chunk_bytes: u32, first_chunk_bytes: u32) -> Shape {
        let bytes = load.bytes.max(1.0);
        let pieces = load.src_pieces.max(load.dst_pieces).max(1.0);
        let full = f64::from(chunk_bytes.max(1)).min(bytes * (f64::from(CHUNK_ELEMENTS) / pieces)).min(bytes);
        let first = f64::from(first_chunk_bytes.max(1)).min(full);
        let (mut size, mut left, mut chunks, mut largest) = (first, bytes, 0.0, first);
        while size < full && left > size {
            left -= size;
            chunks += 1.0;
            largest = size;
            size = (size * 2.0).min(full);
        }
        largest = largest.max(size.min(left));
        chunks += (left / size).ceil().max(1.0);
        Shape {
            chunks,
            growing: f64::from(((largest / first) as u64).max(1).ilog2()),
            first: first / bytes,
            average: 1.0 / chunks,
            largest: largest / bytes,
        }
    }

    /// The part that is before the largest chunk: if each is twice the one before it, the first less than its length.
    fn before_largest(&self) -> f64 {
        self.largest - self.first
    }
}

/// The gather route's stages.
#[derive(Clone, Copy, Debug)]
pub struct Gather {
    pub shape: Shape,
    /// The requester's poller.
    pub plan_ns: f64,
    /// READ: until the owner starts. WRITE sends its commands behind the bytes.
    pub command_ns: f64,
    /// All of it, by all workers.
    pub pack_ns: f64,
    pub wire_ns: f64,
    /// All of it, by all workers.
    pub unpack_ns: f64,
    pub before_wire_ns: f64,
    pub after_wire_ns: f64,
    read: bool,
    planning_ns: f64,
    /// What a chunk costs either poller.
    requester_chunk_ns: f64,
    owner_chunk_ns: f64,
    pack: Copying,
    unpack: Copying,
    /// From the end of a chunk's bytes until its receiver starts on them, and from there until the requester knows.
    arrive_ns: f64,
    answer_ns: f64,
    /// What the wire does for all bytes, and for a chunk whatever its bytes.
    bytes_ns: f64,
    chunk_operations_ns: f64,
    terms: Terms,
    /// Chunks that may be under way.
    in_flight: f64,
    bytes: f64,
}

/// One chunk's way.
#[derive(Clone, Copy, Debug)]
struct Way {
    plan_ns: f64,
    /// READ: the command, and the owner's poller.
    ask_ns: f64,
    pack_ns: f64,
    /// What processors do with it before the wire can start, where they move the bytes.
    moved_ns: f64,
    wire_ns: f64,
    arrive_ns: f64,
    unpack_ns: f64,
    answer_ns: f64,
}

impl Gather {
    pub fn of(load: &Gathered, terms: &Terms, shape: &Shape, slots: u32) -> Gather {
        let in_flight = f64::from(slots.max(1)).min(terms.queue_depth);
        let pack = Copying::of(load.src_pieces, load.bytes, &terms.sender, shape, in_flight);
        let unpack = Copying::of(load.dst_pieces, load.bytes, &terms.receiver, shape, in_flight);
        // WRITE ends with the completion of the write, or with an answer to the command to unpack.
        let answered = terms.read || unpack.all_ns > 0.0;
        let message_ns = terms.doorbell_ns + terms.completion_ns;
        let send_ns = terms.chunk_fixed_ns + message_ns;
        let (requester_chunk_ns, owner_chunk_ns) = match (terms.read, answered) {
            (true, _) => (message_ns, send_ns + terms.completion_ns),
            (false, true) => (send_ns + terms.completion_ns, message_ns),
            (false, false) => (send_ns, 0.0),
        };
        let half_trip_ns = terms.round_trip_ns / 2.0;
        let commanded_ns = half_trip_ns + terms.control_ns;
        let (command_ns, arrive_ns, answer_ns) = match (terms.read, answered) {
            (true, _) => (commanded_ns, half_trip_ns, 0.0),
            (false, true) => (0.0, commanded_ns, half_trip_ns),
            (false, false) => (0.0, half_trip_ns, half_trip_ns),
        };
        let list_bytes = if !terms.read && answered { load.dst_pieces * LIST_BYTES } else { 0.0 };
        let bytes_ns = (load.bytes + list_bytes) * terms.wire_ns_per_byte;
        // A message goes behind each chunk that is answered.
        let chunk_operations_ns = terms.operation_ns * if answered { 2.0 } else { 1.0 };
        let planning_ns = terms.plan_ns * load.listed;
        let mut gather = Gather {
            shape: *shape,
            plan_ns: planning_ns + shape.chunks * requester_chunk_ns,
            command_ns,
            pack_ns: pack.shared_ns,
            wire_ns: bytes_ns.max(shape.chunks * chunk_operations_ns),
            unpack_ns: unpack.shared_ns,
            before_wire_ns: 0.0,
            after_wire_ns: 0.0,
            read: terms.read,
            planning_ns,
            requester_chunk_ns,
            owner_chunk_ns,
            pack,
            unpack,
            arrive_ns,
            answer_ns: answer_ns + terms.completion_ns,
            bytes_ns,
            chunk_operations_ns,
            terms: *terms,
            in_flight,
            bytes: load.bytes,
        };
        let (first, largest) = (gather.way(shape.first), gather.way(shape.largest));
        gather.before_wire_ns = first.until_wire();
        gather.after_wire_ns = largest.after_wire();
        gather
    }

    /// The way of a chunk that is such a part of the whole.
    fn way(&self, part: f64) -> Way {
        Way {
            plan_ns: self.planning_ns * part + self.requester_chunk_ns,
            ask_ns: if self.read { self.command_ns + self.owner_chunk_ns } else { 0.0 },
            pack_ns: self.pack.one_ns * part,
            moved_ns: self.terms.first_moved_ns(self.bytes * part, 1.0),
            wire_ns: (self.bytes_ns * part).max(self.chunk_operations_ns),
            arrive_ns: self.arrive_ns,
            unpack_ns: self.unpack.one_ns * part,
            answer_ns: self.answer_ns,
        }
    }

    pub fn stages(&self) -> [Stage; 7] {
        let Shape { chunks, growing, first, largest, .. } = self.shape;
        let (first, last) = (self.way(first), self.way(largest));
        let wire = if self.wire_ns > self.bytes_ns { Bound::Operations } else { Bound::Wire };
        let owner = if self.read {
            Stage { bound: Bound::Owner, head: first.plan_ns + self.command_ns, time: 0.0, tail: last.after_ask() }
        } else {
            Stage { bound: Bound::Owner, head: first.until_unpack(), time: 0.0, tail: last.after_arrival() }
        };
        // The wire runs dry if the largest chunk is packed, and moved, for longer than those before it are sent.
        let dry = Stage {
            bound: wire,
            head: first.until_pack() + last.pack_ns + last.moved_ns,
            time: (self.bytes_ns * (1.0 - self.shape.before_largest()))
                .max(self.chunk_operations_ns * (chunks - growing)),
            tail: self.after_wire_ns,
        };
        [
            Stage { bound: wire, head: self.before_wire_ns, time: self.wire_ns, tail: self.after_wire_ns },
            dry,
            Stage { bound: Bound::Plan, head: 0.0, time: self.plan_ns, tail: last.after_plan() },
            Stage { time: self.owner_ns(), ..owner },
            Stage {
                bound: Bound::Pack,
                head: first.until_pack(),
                time: self.pack_ns,
                tail: last.wire_ns + last.after_wire(),
            },
            Stage {
                bound: Bound::Slots,
                head: self.before_wire_ns,
                time: self.wire_ns.max(chunks * self.chunk_ns(0.0)),
                tail: self.after_wire_ns,
            },
            Stage { bound: Bound::Unpack, head: first.until_unpack(), time: self.unpack_ns, tail: self.answer_ns },
        ]
    }

    /// The owner's poller.
    pub fn owner_ns(&self) -> f64 {
        self.shape.chunks * self.owner_chunk_ns
    }

    /// From one chunk to the next, if each is held up on the wire for so long: what its slowest stage takes, which staggers
    /// chunks. Those that wait for a slot start when one before them is done: after as many as there are slots everything
    /// pauses for as long as a slot is kept beyond their stagger. READ asks for no more chunks than that either; what WRITE
    /// sends from where it lies to where it belongs needs no slot.
    fn chunk_ns(&self, held_up_ns: f64) -> f64 {
        let chunks = self.shape.chunks;
        let (first, average) = (self.way(self.shape.first), self.way(self.shape.average));
        let copying_ns = self.pack.shared_ns.max(self.unpack.shared_ns) / chunks;
        let polling_ns = self.requester_chunk_ns.max(self.owner_chunk_ns);
        let stagger_ns = (average.wire_ns + held_up_ns).max(polling_ns).max(copying_ns);
        let needing = if self.read { 1.0 } else { self.pack.copied.max(self.unpack.copied) };
        let pause_ns = |way: &Way| (way.slot_ns(self.read) + held_up_ns - self.in_flight * stagger_ns).max(0.0);
        let pauses_ns = match ((chunks - 1.0) / self.in_flight).floor() {
            0.0 => 0.0,
            // The first chunks are short, and so is the first pause.
            rounds => pause_ns(&first) + (rounds - 1.0) * pause_ns(&average),
        };
        stagger_ns + needing * pauses_ns / chunks
    }

    /// How long it takes beside a direct part, which may come behind it. `alone` is its longest stage without one.
    ///
    /// WRITE has one queue for both: what was posted directly goes before all chunks that are packed meanwhile. Of READ the
    /// device sends both in turn, a quantum of each, so that every chunk is held up by one of the direct part while that
    /// lasts. No more chunks than [`CHUNKS_AHEAD`] are planned ahead, and so the direct part may start that late.
    pub fn beside(&self, direct: &Direct, alone: Stage) -> Stage {
        if !self.read {
            return Stage { time: alone.time + direct.wire_ns, ..alone };
        }
        let alone_ns = alone.total() / self.shape.chunks;
        let chunks = self.shape.chunks;
        let chunk_bytes = self.bytes * self.shape.average;
        let quantum_ns = direct.quantum_ns(QUANTUM_BYTES) * (chunk_bytes / QUANTUM_BYTES).ceil();
        let held_up_ns = self.chunk_ns(quantum_ns).max(alone_ns);
        let behind = chunks.min(CHUNKS_AHEAD + 4.0 * self.in_flight);
        let wire_ns = self.way(self.shape.average).wire_ns;
        // While both are under way the direct part has what the chunks leave of the wire.
        let both_ns = direct.wire_ns / (1.0 - wire_ns / held_up_ns).max(0.01);
        let time = if behind * held_up_ns < both_ns {
            direct.wire_ns + behind * wire_ns
        } else {
            both_ns + (behind - both_ns / held_up_ns) * alone_ns
        };
        Stage { bound: alone.bound, head: 0.0, time: (chunks - behind) * alone_ns + time, tail: 0.0 }
    }

    /// The processors' stage where they are the wire; the pollers have their own. They share all work but the last chunk's,
    /// which one after the other of them does while the rest have nothing left.
    pub fn processors(&self, ns_per_byte: f64, cores: f64) -> Stage {
        let first = self.way(self.shape.first);
        let last = self.way(self.shape.largest);
        let moving_ns = self.bytes * ns_per_byte + self.shape.chunks * self.terms.operation_ns;
        let last_moving_ns = self.bytes * self.shape.largest * ns_per_byte + self.terms.operation_ns;
        let all_ns = self.pack.all_ns + self.unpack.all_ns + moving_ns;
        let last_ns = self.pack.copied * last.pack_ns + self.unpack.copied * last.unpack_ns + last_moving_ns;
        Stage {
            bound: Bound::Processors,
            head: first.until_pack(),
            time: (all_ns - last_ns).max(0.0) / cores,
            tail: last.after_ask(),
        }
    }
}

impl Way {
    fn until_pack(&self) -> f64 {
        self.plan_ns + self.ask_ns
    }

    fn until_wire(&self) -> f64 {
        self.until_pack() + self.pack_ns + self.moved_ns
    }

    fn until_unpack(&self) -> f64 {
        self.until_wire() + self.wire_ns + self.arrive_ns
    }

    fn after_arrival(&self) -> f64 {
        self.unpack_ns + self.answer_ns
    }

    fn after_wire(&self) -> f64 {
        self.arrive_ns + self.after_arrival()
    }

    fn after_ask(&self) -> f64 {
        self.pack_ns + self.moved_ns + self.wire_ns + self.after_wire()
    }

    fn after_plan(&self) -> f64 {
        self.ask_ns + self.after_ask()
    }

    /// How long a chunk keeps a slot. WRITE has one on either side, the sender's until the write is known to be complete.
    fn slot_ns(&self, read: bool) -> f64 {
        if read {
            return self.after_plan();
        }
        let sender = self.pack_ns + self.moved_ns + self.wire_ns + self.arrive_ns + self.answer_ns;
        sender.max(self.moved_ns + self.wire_ns + self.after_wire())
    }
}

/// Packing or unpacking.
#[derive(Clone, Copy, Debug, Default)]
struct Copying {
    /// The part of the chunks that are.
    copied: f64,
    /// Processor time if every chunk is copied: `S / B_mem + M / R_copy`. Its part is that of a chunk which is.
    one_ns: f64,
    /// Processor time of all chunks that are.
    all_ns: f64,
    /// `T_pack`: over the workers, but no shorter than the largest chunk, which is one worker's.
    shared_ns: f64,
}

impl Copying {
    /// A chunk is copied if it has more than one piece. Pieces that are longer than chunks have their borders in some.
    fn of(pieces: f64, bytes: f64, copies: &Copies, shape: &Shape, in_flight: f64) -> Copying {
        let copied = ((pieces - 1.0) / shape.chunks).clamp(0.0, 1.0);
        if copied == 0.0 {
            return Copying::default();
        }
        let one_ns = bytes * copies.ns_per_byte + pieces * copies.piece_ns;
        let all_ns = copied * one_ns;
        Copying {
            copied,
            one_ns,
            all_ns,
            shared_ns: (all_ns / in_flight.min(copies.workers)).max(one_ns * shape.largest),
        }
    }
}

/// What a device sends of one queue before it looks at another.
const QUANTUM_BYTES: f64 = 65536.0;

/// Chunks that a requester plans before those that have a slot, at the least.
const CHUNKS_AHEAD: f64 = 64.0;

/// A piece of a list, at its shortest.
const LIST_BYTES: f64 = 4.0;
