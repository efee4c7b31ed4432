//! The chunks that a connection carries, by the number that the machine keeps with each.

use super::super::parcel::Parcel;
use crate::link::GrantId;
use crate::pipeline::{ChunkId, Lease};
use crate::plan::Fault;

/// A chunk on its way.
#[derive(Debug)]
pub struct Carried {
    pub id: ChunkId,
    pub parcel: Box<Parcel>,
    /// It keeps to it.
    pub lane: usize,
    /// A command of it is at the owner, whose answer is awaited by the lane.
    pub is_asked: bool,
    /// READ: what the owner may write to.
    pub landing: Option<GrantId>,
    /// READ: it was answered, and that counts when nobody is at the landing any more.
    pub revoking: Option<Revoking>,
    /// It went direct.
    pub went_direct: bool,
    /// Under way on a lane's thread.
    pub lease: Option<Lease>,
    /// Why it has failed, if this side knows better than the machine.
    pub fault: Option<Fault>,
    /// When its command was sent.
    pub asked_ns: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Revoking {
    pub grant: GrantId,
    /// `None`: only DRAINED waits for it.
    pub answer: Option<Answer>,
    /// All of it was written.
    pub is_whole: bool,
}

/// How the owner has answered a command.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    Done,
    Refused,
    Failed(Fault),
}

/// As many places as the machine has for chunks.
#[derive(Debug)]
pub struct Table {
    places: Vec<Option<Carried>>,
    free: Vec<u32>,
}

impl Table {
    pub fn new(capacity: u32) -> Table {
        Table { places: (0..capacity).map(|_| None).collect(), free: (0..capacity).rev().collect() }
    }

    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Where the next one will be put.
    pub fn next(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Puts it at [`next`](Self::next).
    pub fn put(&mut self, carried: Carried) {
        if let Some(at) = self.free.pop()
            && let Some(place) = self.places.get_mut(at as usize)
        {
            *place = Some(carried);
        }
    }

    pub fn get(&self, at: u32) -> Option<&Carried> {
        self.places.get(at as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, at: u32) -> Option<&mut Carried> {
        self.places.get_mut(at as usize)?.as_mut()
    }

    pub fn remove(&mut self, at: u32) -> Option<Carried> {
        let carried = self.places.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(carried)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Carried)> {
        self.places.iter().zip(0..).filter_map(|(place, at)| Some((at, place.as_ref()?)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Carried)> {
        self.places.iter_mut().zip(0..).filter_map(|(place, at)| Some((at, place.as_mut()?)))
    }

    pub fn find(&self, id: ChunkId) -> Option<u32> {
        self.iter().find(|(_, carried)| carried.id == id).map(|(at, _)| at)
    }
}
