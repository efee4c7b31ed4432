//! What is kept of a command as long as the owner's machine has it.

use crate::link::GrantId;
use crate::pack::ListTask;
use crate::pipeline::{BatchId, ChunkId, Lease, LinkId};
use crate::plan::Fault;
use crate::region::Region;
use std::sync::Arc;

/// A command. Where it stands is the machine's matter.
#[derive(Debug)]
pub struct Order {
    /// `None`: it is free.
    pub link: Option<LinkId>,
    pub id: ChunkId,
    /// That it came by; its bytes and its answer go by the same.
    pub lane: usize,
    pub bytes: u32,
    pub place: Place,
    /// The list, and the memory that it names. `None` while it is being packed or unpacked.
    pub task: Option<Box<ListTask>>,
    /// Addresses of the regions that the list names, also while the task is out.
    pub named: Vec<usize>,
    pub arrived_ns: u64,
    /// Until somebody packed or unpacked it.
    pub queue_ns: u32,
    pub pack_ns: u32,
    /// Why it cannot be done, if that is known.
    pub fault: Option<Fault>,
}

/// Where the bytes are, and where they go.
#[derive(Clone, Debug)]
pub enum Place {
    /// Nowhere: there is no command.
    None,
    /// READ, from one piece of a region.
    Piece { region: Arc<Region>, offset: u64, landing: GrantId },
    /// READ, from pieces of regions: the device gathers them.
    Pieces { landing: GrantId },
    /// READ, from a slot of the pool.
    Packed { lease: Option<Lease>, landing: GrantId },
    /// WRITE, from a landing slot.
    Landed { slot: u32 },
}

/// Room for the commands of all connections. Made as connections come, and kept.
#[derive(Debug, Default)]
pub struct Orders {
    orders: Vec<Order>,
    free: Vec<u32>,
}

impl Orders {
    /// Makes sure that there is room for so many.
    pub fn reserve(&mut self, count: usize) {
        while self.orders.len() < count {
            self.free.push(self.orders.len() as u32);
            self.orders.push(Order::new());
        }
    }

    /// A free one, with its number.
    pub fn take(&mut self) -> Option<(u32, &mut Order)> {
        let at = self.free.pop()?;
        Some((at, self.orders.get_mut(at as usize)?))
    }

    pub fn get(&self, at: u32) -> Option<&Order> {
        self.orders.get(at as usize)
    }

    pub fn get_mut(&mut self, at: u32) -> Option<&mut Order> {
        self.orders.get_mut(at as usize)
    }

    /// Frees one, and lets go of its memory.
    pub fn give_back(&mut self, at: u32) {
        let Some(order) = self.orders.get_mut(at as usize).filter(|order| order.link.is_some()) else { return };
        order.clear();
        self.free.push(at);
    }

    /// Those that are not free.
    pub fn iter(&self) -> impl Iterator<Item = &Order> {
        self.orders.iter().filter(|order| order.link.is_some())
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.orders.len() - self.free.len()
    }
}

impl Order {
    fn new() -> Order {
        Order {
            link: None,
            id: ChunkId { batch: BatchId(0), number: 0 },
            lane: 0,
            bytes: 0,
            place: Place::None,
            task: Some(Box::default()),
            named: Vec::new(),
            arrived_ns: 0,
            queue_ns: 0,
            pack_ns: 0,
            fault: None,
        }
    }

    /// Notes which regions are used, for as long as the order is there.
    pub fn name_regions(&mut self) {
        self.named.clear();
        let Some(task) = &self.task else { return };
        self.named.extend(task.regions.iter().map(|(_, region)| Arc::as_ptr(region).addr()));
    }

    fn clear(&mut self) {
        (self.link, self.place, self.fault) = (None, Place::None, None);
        (self.queue_ns, self.pack_ns) = (0, 0);
        self.named.clear();
        // One that is lost with its thread is made anew.
        self.task.get_or_insert_default().finish();
    }
}
