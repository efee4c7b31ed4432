//! A chunk that is to be packed or unpacked by its list, as a value that goes from thread to thread.

use super::ListPacker;
use super::lists::Way;
use crate::plan::{LIST_BYTES, Refusal};
use crate::region::{Region, Rights};
use ring_abi::Status;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

/// Packing into a slot or unpacking out of it, by an encoded list. It has what it needs, and keeps the memory mapped that
/// it touches; in a box it goes round between who fills it and who runs it, and its buffers are allocated once.
#[derive(Debug)]
pub struct ListTask {
    /// Whose it is; opaque here.
    pub id: u64,
    /// The memory that the list may name, by the numbers in it. Filled by who [sets](Self::set) the task, before or after;
    /// emptied by [`finish`](Self::finish).
    pub regions: Vec<(u32, Arc<Region>)>,
    /// Which of them it did name.
    named: Vec<bool>,
    way: Way,
    list: Vec<u8>,
    /// Where the slot is.
    slot: Option<(Arc<Region>, u64)>,
    slot_bytes: u32,
    result: Result<u32, Refusal>,
    ns: u32,
}

/// Regions that a task has room for without allocating.
const USUAL_REGIONS: usize = 16;
const NOT_RUN: Refusal = Refusal { status: Status::NOT_DONE, piece: 0, detail: 0 };

impl Default for ListTask {
    fn default() -> Self {
        ListTask::new()
    }
}

impl ListTask {
    /// Nothing to do yet, and room for any list.
    #[must_use]
    pub fn new() -> ListTask {
        ListTask {
            id: 0,
            regions: Vec::with_capacity(USUAL_REGIONS),
            named: Vec::with_capacity(USUAL_REGIONS),
            way: Way::Pack,
            list: Vec::with_capacity(LIST_BYTES),
            slot: None,
            slot_bytes: 0,
            result: Err(NOT_RUN),
            ns: 0,
        }
    }

    /// What is to be done: a copy of the list, and the slot, which is `slot_bytes` bytes of a region from an offset on. A
    /// list may have fewer bytes than the slot and not more: what is behind them in the slot stays what it was.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED: a list longer than [`LIST_BYTES`]. OUT_OF_RANGE: the slot does not lie in its region. NO_RIGHT: the
    /// slot cannot be written, or read. The task then has nothing to do.
    pub fn set(&mut self, way: Way, list: &[u8], slot: (Arc<Region>, u64), slot_bytes: u32) -> Result<(), Refusal> {
        self.set_list(way, list)?;
        self.set_slot(slot, slot_bytes)
    }

    /// The half of [`set`](Self::set) that can be known before a slot is free.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED: a list longer than [`LIST_BYTES`].
    pub fn set_list(&mut self, way: Way, list: &[u8]) -> Result<(), Refusal> {
        self.reset();
        if list.len() > LIST_BYTES {
            return refuse(Status::LIMIT_EXCEEDED, list.len() as u64);
        }
        self.list.extend_from_slice(list);
        self.way = way;
        Ok(())
    }

    /// The other half, behind [`set_list`](Self::set_list).
    ///
    /// # Errors
    /// OUT_OF_RANGE and NO_RIGHT, as for [`set`](Self::set). The task then has nothing to do.
    pub fn set_slot(&mut self, slot: (Arc<Region>, u64), slot_bytes: u32) -> Result<(), Refusal> {
        let (region, offset) = &slot;
        let inside = offset.checked_add(slot_bytes.into()).is_some_and(|end| end <= region.bytes());
        let needed = if self.way == Way::Pack { Rights::WRITE } else { Rights::READ };
        let refused = match (inside, region.rights().covers(needed)) {
            (true, true) => {
                (self.slot, self.slot_bytes) = (Some(slot), slot_bytes);
                return Ok(());
            }
            (false, _) => refuse(Status::OUT_OF_RANGE, *offset),
            (true, false) => refuse(Status::NO_RIGHT, 0),
        };
        self.reset();
        refused
    }

    /// The list.
    #[must_use]
    pub fn list(&self) -> &[u8] {
        &self.list
    }

    /// Does it, and keeps the result and the time. A panic is this task's failure, and nobody else's.
    pub fn run(&mut self, packer: &mut ListPacker) {
        self.run_caught(packer, ListTask::copy);
    }

    /// Bytes in the slot that the list describes, or why it could not be followed: what is wrong with it by the number of
    /// the piece; REGION_GONE with the region's number for memory that was withdrawn before or lost by then; FAULT for a
    /// slot that is lost; INTERNAL; NOT_DONE if it has not run.
    pub fn result(&self) -> Result<u32, Refusal> {
        self.result
    }

    /// Time that [`run`](Self::run) took, at most `u32::MAX`; 0 if it has not run.
    #[must_use]
    pub fn ns(&self) -> u32 {
        self.ns
    }

    /// Lets go of the memory. What is left has nothing to do.
    pub fn finish(&mut self) {
        self.regions.clear();
        self.reset();
    }

    fn reset(&mut self) {
        self.list.clear();
        (self.slot, self.slot_bytes, self.result, self.ns) = (None, 0, Err(NOT_RUN), 0);
    }

    fn run_caught(
        &mut self,
        packer: &mut ListPacker,
        act: impl FnOnce(&mut ListTask, &mut ListPacker) -> Result<u32, Refusal>,
    ) {
        let started = Instant::now();
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| act(self, packer)));
        self.result = outcome.unwrap_or_else(|_| {
            packer.forget();
            Err(Refusal { status: Status::INTERNAL, ..NOT_RUN })
        });
        self.ns = u32::try_from(started.elapsed().as_nanos()).unwrap_or(u32::MAX);
    }

    fn copy(&mut self, packer: &mut ListPacker) -> Result<u32, Refusal> {
        let ListTask { regions, named, way, list, slot, slot_bytes, .. } = self;
        let Some((slot, offset)) = slot else { return Err(NOT_RUN) };
        named.clear();
        named.resize(regions.len(), false);
        let mut gone = false;
        let find = |number| {
            let place = regions.iter().position(|(known, _)| *known == number)?;
            let region = &*regions[place].1;
            named[place] = true;
            // What is written to a lost region costs this process memory, and is worth nothing.
            gone = region.is_withdrawn() || region.is_lost();
            (!gone).then_some(region)
        };
        let at = slot.as_ptr().wrapping_add(*offset as usize);
        // SAFETY: the slot lies in its region, which has the right that the way needs and stays mapped as long as the task
        // has it; shared pages are never behind a Rust reference.
        let copied = unsafe { packer.run(*way, list, find, at, *slot_bytes) };
        if gone {
            return copied.map_err(|refusal| Refusal { status: Status::REGION_GONE, ..refusal });
        }
        let bytes = copied?;
        self.look_for_losses()?;
        Ok(bytes)
    }

    /// To be asked when all is copied: what was copied from or to memory that is lost by now is worth nothing.
    fn look_for_losses(&self) -> Result<(), Refusal> {
        let mut named = self.regions.iter().zip(&self.named).filter(|(_, named)| **named);
        if let Some(((number, _), _)) = named.find(|((_, region), _)| region.is_lost()) {
            return Err(Refusal { status: Status::REGION_GONE, piece: 0, detail: (*number).into() });
        }
        match &self.slot {
            Some((slot, _)) if slot.is_lost() => Err(Refusal { status: Status::FAULT, ..NOT_RUN }),
            _ => Ok(()),
        }
    }
}

fn refuse(status: Status, detail: u64) -> Result<(), Refusal> {
    Err(Refusal { status, piece: 0, detail })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Huge;

    #[test]
    fn a_panic_is_the_failure_of_one_task() {
        let region = Arc::new(Region::allocate(4096, Huge::Never).unwrap().0);
        let (mut task, mut packer) = (ListTask::new(), ListPacker::default());
        task.set(Way::Pack, &[], (region.clone(), 0), 10).unwrap();
        task.run_caught(&mut packer, |_, _| panic!("on purpose"));
        assert_eq!(task.result().map_err(|refusal| refusal.status), Err(Status::INTERNAL));
        task.set(Way::Pack, &[], (region, 0), 10).unwrap();
        task.run(&mut packer);
        assert_eq!(task.result(), Ok(0));
    }
}
