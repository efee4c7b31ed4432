//! From operations to a batch in the ring. Runs with the session's lock and without the GIL.

use crate::describe::{Index, Op, Raw};
use crate::errors::Failure;
use crate::memory::Memory;
use ring_abi::{Descriptor, Extension, Flags};
use scatter_ring::client::{Batch, BatchError, Client, Region, Ticket};
use std::sync::Arc;
use std::time::Duration;

/// A batch that was described, and may be submitted.
#[derive(Default)]
pub struct Plan {
    pub ops: Vec<Op>,
    pub deadline: Option<Duration>,
    pub fence: bool,
}

/// Each operation's part of the index memory starts at a multiple of it.
const ALIGNMENT: u64 = 8;

impl Plan {
    pub fn submit(&self, client: &mut Client) -> Result<Ticket, Failure> {
        let index = self.write_index(client)?;
        let mut batch = client.batch();
        if let Some(deadline) = self.deadline {
            batch = batch.deadline(deadline);
        }
        if self.fence {
            batch = batch.fence();
        }
        let mut at = 0;
        for op in &self.ops {
            let start = at;
            at += op.index_bytes();
            if let Op::Notify { other, offset, user_data, payload } = op {
                batch.user_data(*user_data);
                let payload =
                    index.as_ref().filter(|_| !payload.is_empty()).map(|region| (region, start, payload.len() as u32));
                return Ok(batch.notify(&other.region, *offset, payload)?);
            }
            op.push(&mut batch, index.as_ref(), start)?;
        }
        Ok(batch.submit()?)
    }

    /// What it uses.
    pub fn memories(&self) -> Vec<Arc<Memory>> {
        let mut all = Vec::new();
        for op in &self.ops {
            match op {
                Op::Nothing => {}
                Op::Range { src, dst, .. } => all.extend([src.clone(), dst.clone()]),
                Op::Transfer { src, dst, index, .. } => {
                    all.extend([src.clone(), dst.clone()]);
                    if let Index::InPlace(memory) = index {
                        all.push(memory.clone());
                    }
                }
                Op::Notify { other, .. } => all.push(other.clone()),
                Op::Raw(raw) => all.extend(raw.memories.iter().cloned()),
            }
        }
        all
    }

    fn index_bytes(&self) -> u64 {
        self.ops.iter().map(Op::index_bytes).sum()
    }

    /// True if memory is needed for what the engine reads besides descriptors.
    pub fn needs_index(&self) -> bool {
        self.index_bytes() > 0
    }

    /// Writes what the operations have for the engine to read, into one region for all of them.
    fn write_index(&self, client: &mut Client) -> Result<Option<Region>, Failure> {
        let bytes = self.index_bytes();
        if bytes == 0 {
            return Ok(None);
        }
        let region = client.index_region(bytes)?;
        let mut at = 0;
        for op in &self.ops {
            let base = region.as_ptr().expect("index memory is this process's");
            match op {
                Op::Transfer { index: Index::Filling(filling), .. } => {
                    // SAFETY: the region has room for all of them, starts at a page, and is nobody else's.
                    unsafe { filling.write(base.add(at as usize)) }?;
                }
                Op::Notify { payload, .. } => region.write_at(at, payload)?,
                _ => {}
            }
            at += op.index_bytes();
        }
        Ok(Some(region))
    }
}

impl Op {
    /// The same for a batch that is submitted later: the caller may change his arrays meanwhile.
    pub fn kept(self) -> Result<Op, Failure> {
        Ok(match self {
            Op::Transfer { descriptor, src, dst, index: Index::Filling(filling) } => {
                Op::Transfer { descriptor, src, dst, index: Index::Filling(filling.written()?) }
            }
            other => other,
        })
    }

    fn index_bytes(&self) -> u64 {
        let bytes = match self {
            Op::Transfer { index: Index::Filling(filling), .. } => filling.bytes(),
            Op::Notify { payload, .. } => payload.len() as u64,
            _ => 0,
        };
        bytes.next_multiple_of(ALIGNMENT)
    }

    /// `start`: where this operation's part of the index memory is.
    fn push(&self, batch: &mut Batch<'_>, index_memory: Option<&Region>, start: u64) -> Result<(), BatchError> {
        match self {
            Op::Nothing | Op::Notify { .. } => Ok(()),
            Op::Range { write, src, src_offset, dst, dst_offset, bytes } => {
                let (src, dst) = (&src.region, &dst.region);
                match write {
                    false => batch.read(src, *src_offset, dst, *dst_offset, *bytes),
                    true => batch.write(src, *src_offset, dst, *dst_offset, *bytes),
                }
            }
            Op::Transfer { descriptor, src, dst, index } => {
                let (index, index_offset) = match index {
                    Index::None => (None, 0),
                    Index::InPlace(memory) => (Some(&memory.region), descriptor.index_offset),
                    Index::Filling(filling) => (index_memory, start + filling.offset()),
                };
                let index_region = index.map_or(0, |region| region.handle().0);
                let descriptor = Descriptor { index_region, index_offset, ..*descriptor };
                let (src, dst) = (&src.region, &dst.region);
                batch.push(&descriptor, &[src, dst, index.unwrap_or(src)])
            }
            Op::Raw(raw) => raw.push(batch),
        }
    }
}

impl Raw {
    fn push(&self, batch: &mut Batch<'_>) -> Result<(), BatchError> {
        let regions: Vec<&Region> = self.memories.iter().map(|memory| &memory.region).collect();
        let mut which = 0;
        while which < self.count {
            let descriptor = Descriptor::from_entry(&self.entry(which));
            // LAST is the batch's to set.
            let descriptor = Descriptor { flags: descriptor.flags & !Flags::LAST, ..descriptor };
            which += 1;
            if descriptor.flags & Flags::EXTENDED == 0 {
                batch.push(&descriptor, &regions)?;
                continue;
            }
            // Another thread may have changed the array since it was looked through.
            if which == self.count {
                return batch.push(&descriptor, &regions);
            }
            let extension = Extension::from_entry(&self.entry(which));
            which += 1;
            batch.push_extended(&descriptor, &extension, &regions)?;
        }
        Ok(())
    }
}
