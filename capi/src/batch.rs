//! Batches: lists of descriptors that are replayed into the ring when they are submitted.

use crate::args::{alone, array, given, hand_over, place};
use crate::client::scatter_ring_client;
use crate::error::{Failure, run, scatter_ring_error};
use crate::region::{Named, scatter_ring_region};
use crate::shapes::{
    PIECE_BYTES, Shape, pieces, range, scatter_ring_blocks, scatter_ring_ranges, scatter_ring_rows, scatter_ring_tile,
};
use crate::wait::scatter_ring_ticket;
use ring_abi::{Descriptor, Extension, Flags, Opcode, Status};
use rust::client::{BatchError, Client, Region, Ticket};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// What to move, as a list of descriptors: one logical operation with one outcome. It is recorded first, and nothing
/// happens; then submitted, as often as is wanted, also while it is under way; it is cheap to clear and to use again.
/// One thread at a time may use it. It is bound to the client that it was made for, and keeps the regions that it
/// names.
pub struct scatter_ring_batch {
    client: u64,
    recorded: Mutex<Recorded>,
}

#[derive(Default)]
struct Recorded {
    steps: Vec<Step>,
    extensions: Vec<Extension>,
    regions: Vec<Arc<Named>>,
    user_data: u64,
    deadline_ns: u64,
    hint: Option<(u32, u64)>,
    fence: bool,
    notice: Option<Notice>,
}

/// A descriptor and the places of its regions in the list of them.
struct Step {
    descriptor: Descriptor,
    /// Source, destination, index.
    at: [u32; 3],
    /// The place of its extension.
    extension: u32,
}

/// In the place of a region, or of an extension.
const NONE: u32 = u32::MAX;

struct Notice {
    user_data: u64,
    other: u32,
    offset: u64,
    payload: Option<(u32, u64, u32)>,
}

impl scatter_ring_batch {
    fn enter(&self) -> Result<MutexGuard<'_, Recorded>, Failure> {
        alone(&self.recorded, "batch")
    }

    /// Records one descriptor, of a shape.
    fn add<'a>(&self, shape: impl FnOnce() -> Result<Shape<'a>, Failure>) -> Result<i32, Failure> {
        let mut recorded = self.enter()?;
        recorded.add(&shape()?, self.client)?;
        Ok(0)
    }
}

impl Recorded {
    fn add(&mut self, shape: &Shape<'_>, client: u64) -> Result<(), Failure> {
        self.check_open()?;
        let at = [
            self.region(shape.src, client, "the source")?,
            self.region(shape.dst, client, "the destination")?,
            shape.index.map_or(Ok(NONE), |index| self.region(index, client, "the index"))?,
        ];
        let descriptor = Descriptor { user_data: self.user_data, ..shape.descriptor };
        self.steps.push(Step { descriptor, at, extension: NONE });
        Ok(())
    }

    /// A descriptor as the caller has made it, with the regions whose handles it carries.
    fn add_raw(
        &mut self,
        descriptor: &Descriptor,
        regions: &[Option<&scatter_ring_region>],
        client: u64,
        extension: u32,
    ) -> Result<(), Failure> {
        let place = self.steps.len();
        if descriptor.flags & (Flags::LAST | Flags::EXTENDED) != 0 {
            let text = format!("descriptor {place}: LAST and EXTENDED are set by the library, where they belong");
            return Err(Failure::Misuse(Status::INVALID_FLAGS, text));
        }
        let named = [
            (descriptor.src_region, "src_region"),
            (descriptor.dst_region, "dst_region"),
            (descriptor.index_region, "index_region"),
        ];
        let mut at = [NONE; 3];
        for (at, (handle, field)) in at.iter_mut().zip(named) {
            if handle == 0 {
                continue;
            }
            let found = regions.iter().flatten().find(|region| region.0.region.handle().0 == handle);
            let unknown = || {
                let text = format!("descriptor {place}, {field}: none of the given regions has the handle {handle}");
                Failure::Misuse(Status::UNKNOWN_REGION, text)
            };
            *at = self.region(found.ok_or_else(unknown)?, client, field)?;
        }
        self.steps.push(Step { descriptor: *descriptor, at, extension });
        Ok(())
    }

    /// The place of a region in the list.
    fn region(&mut self, region: &scatter_ring_region, client: u64, what: &str) -> Result<u32, Failure> {
        // The last ones are the likely ones.
        if let Some(at) = self.regions.iter().rposition(|known| Arc::ptr_eq(known, &region.0)) {
            return Ok(at as u32);
        }
        let wrong = |error: rust::client::ClientError| Failure::Misuse(error.status(), format!("{what}: {error}"));
        region.0.check(client).map_err(wrong)?;
        self.regions.push(region.0.clone());
        Ok(self.regions.len() as u32 - 1)
    }

    /// Keeps the lists' memory, and nothing else.
    fn clear(&mut self) {
        self.steps.clear();
        self.extensions.clear();
        self.regions.clear();
        (self.user_data, self.deadline_ns, self.hint, self.fence, self.notice) = (0, 0, None, false, None);
    }

    fn check_open(&self) -> Result<(), Failure> {
        if self.notice.is_some() {
            let text = "the batch ends with its notification: clear it to record another one";
            return Err(Failure::Misuse(Status::BAD_SEQUENCE, text.into()));
        }
        Ok(())
    }

    /// Before anything of it is shown to the engine: a batch that cannot be submitted has never been.
    fn check_regions(&self, client: u64) -> Result<(), Failure> {
        let closed = self.regions.iter().find_map(|region| region.check(client).err());
        closed.map_or(Ok(()), |error| Err(error.into()))
    }

    fn replay(&self, client: &mut Client) -> Result<Ticket, BatchError> {
        let mut batch = client.batch();
        if self.deadline_ns > 0 {
            batch = batch.deadline(Duration::from_nanos(self.deadline_ns));
        }
        if let Some((fragments, bytes)) = self.hint {
            batch = batch.hint(fragments, bytes);
        }
        if self.fence {
            batch = batch.fence();
        }
        for step in &self.steps {
            // In a place that names no region any one does: it is not asked for.
            let first = step.at.into_iter().find(|at| *at != NONE);
            let named = first.map(|first| step.at.map(|at| self.at(if at == NONE { first } else { at })));
            let regions: &[&Region] = named.as_ref().map_or(&[], |named| named);
            match self.extensions.get(step.extension as usize) {
                Some(extension) => batch.push_extended(&step.descriptor, extension, regions)?,
                None => batch.push(&step.descriptor, regions)?,
            }
        }
        let Some(notice) = &self.notice else { return batch.submit() };
        batch.user_data(notice.user_data);
        let payload = notice.payload.map(|(at, offset, len)| (self.at(at), offset, len));
        batch.notify(self.at(notice.other), notice.offset, payload)
    }

    fn at(&self, place: u32) -> &Region {
        &self.regions[place as usize].region
    }
}

/// A new, empty batch of a client.
///
/// @param batch Set to a handle that the caller owns and ends with scatter_ring_batch_free(); to NULL if the call
/// fails.
/// @return 0, or a status below 0.
///
/// Threads: any. Fork: a child may use it, and cannot submit it.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_new(
    client: Option<&scatter_ring_client>,
    batch: Option<&mut MaybeUninit<*mut scatter_ring_batch>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let batch = place(batch, "batch")?;
        let client = given(client, "client")?.serial();
        Ok(hand_over(batch, scatter_ring_batch { client, recorded: Mutex::default() }))
    })
}

/// Discards a batch. What was submitted goes on.
///
/// @param batch The handle, which is gone afterwards. NULL: nothing happens.
///
/// Threads: any, once, when no other call with it is under way. Fork: in a child only the child's handle is freed.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_free(batch: Option<Box<scatter_ring_batch>>) {
    run(None, || {
        drop(batch);
        Ok(0)
    });
}

/// Makes a batch empty, as a new one; its memory is kept, its regions are not.
///
/// @return 0, or a status below 0.
///
/// Threads: one at a time with this batch. Fork: a child has a copy of its own, which it cannot submit.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_clear(
    batch: Option<&scatter_ring_batch>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        given(batch, "batch")?.enter()?.clear();
        Ok(0)
    })
}

/// Sets what is handed back with the descriptors that are added from now on. At first it is 0.
///
/// @return 0, or a status below 0.
///
/// Threads: one at a time with this batch. Fork: a child has a copy of its own, which it cannot submit.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_set_user_data(
    batch: Option<&scatter_ring_batch>,
    user_data: u64,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        given(batch, "batch")?.enter()?.user_data = user_data;
        Ok(0)
    })
}

/// The batch times out if it has no outcome so long after the engine took its first descriptor.
///
/// @param deadline_ns In ns; 0: none.
/// @return 0, or a status below 0.
///
/// Threads: one at a time with this batch. Fork: a child has a copy of its own, which it cannot submit.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_set_deadline(
    batch: Option<&scatter_ring_batch>,
    deadline_ns: u64,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        given(batch, "batch")?.enter()?.deadline_ns = deadline_ns;
        Ok(0)
    })
}

/// How much the batch will be, for the engine's planning; it need not be exact.
///
/// @param fragments, bytes Of all descriptors together. 0 and 0: no hint.
/// @return 0, or a status below 0.
///
/// Threads: one at a time with this batch. Fork: a child has a copy of its own, which it cannot submit.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_set_hint(
    batch: Option<&scatter_ring_batch>,
    fragments: u32,
    bytes: u64,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        given(batch, "batch")?.enter()?.hint = (fragments != 0 || bytes != 0).then_some((fragments, bytes));
        Ok(0)
    })
}

/// The batch starts after all earlier ones of its client have their outcome and are released, whatever it is; later
/// ones do not overtake it.
///
/// @param fence Not 0: so. 0: not, as at first.
/// @return 0, or a status below 0.
///
/// Threads: one at a time with this batch. Fork: a child has a copy of its own, which it cannot submit.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_set_fence(
    batch: Option<&scatter_ring_batch>,
    fence: i32,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        given(batch, "batch")?.enter()?.fence = fence != 0;
        Ok(0)
    })
}

/// Adds: `len` bytes from `src` (usually opened) to `dst`. More than 1 GiB takes two descriptors.
///
/// @param src_offset, dst_offset, len In bytes.
/// @return 0; SCATTER_RING_STATUS_UNKNOWN_REGION for a region of another client or a closed one. Everything else is
/// for the engine to check, and is part of the outcome.
///
/// Threads: one at a time with this batch. Fork: a child has a copy of its own, which it cannot submit. The regions
/// stay the caller's, who may free their handles: the batch keeps the memory.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_read(
    batch: Option<&scatter_ring_batch>,
    src: Option<&scatter_ring_region>,
    src_offset: u64,
    dst: Option<&scatter_ring_region>,
    dst_offset: u64,
    len: u64,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || add_range(batch, Opcode::READ, (src, src_offset), (dst, dst_offset), len))
}

/// Adds: `len` bytes from `src` (mine) to `dst` (the other).
///
/// @param src_offset, dst_offset, len In bytes.
/// @return As scatter_ring_batch_read().
///
/// Threads, fork, regions: as scatter_ring_batch_read().
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_write(
    batch: Option<&scatter_ring_batch>,
    src: Option<&scatter_ring_region>,
    src_offset: u64,
    dst: Option<&scatter_ring_region>,
    dst_offset: u64,
    len: u64,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || add_range(batch, Opcode::WRITE, (src, src_offset), (dst, dst_offset), len))
}

/// Adds: rows out of a table, by number, into a buffer.
///
/// @param rows Only read during the call.
/// @return As scatter_ring_batch_read(); SCATTER_RING_STATUS_INVALID_SETTING for NULL or a value that is none.
///
/// Threads, fork, regions: as scatter_ring_batch_read().
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_read_rows(
    batch: Option<&scatter_ring_batch>,
    rows: Option<&scatter_ring_rows<'_>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || given(batch, "batch")?.add(|| given(rows, "rows")?.reading()))
}

/// Adds: rows out of a buffer into a table, by number.
///
/// @param rows Only read during the call.
/// @return As scatter_ring_batch_read_rows().
///
/// Threads, fork, regions: as scatter_ring_batch_read().
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_write_rows(
    batch: Option<&scatter_ring_batch>,
    rows: Option<&scatter_ring_rows<'_>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || given(batch, "batch")?.add(|| given(rows, "rows")?.writing()))
}

/// Adds: blocks to blocks by number, into mine.
///
/// @param blocks Only read during the call.
/// @return As scatter_ring_batch_read_rows().
///
/// Threads, fork, regions: as scatter_ring_batch_read().
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_read_blocks(
    batch: Option<&scatter_ring_batch>,
    blocks: Option<&scatter_ring_blocks<'_>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || given(batch, "batch")?.add(|| given(blocks, "blocks")?.shape(Opcode::READ)))
}

/// Adds: blocks to blocks by number, out of mine.
///
/// @param blocks Only read during the call.
/// @return As scatter_ring_batch_read_rows().
///
/// Threads, fork, regions: as scatter_ring_batch_read().
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_write_blocks(
    batch: Option<&scatter_ring_batch>,
    blocks: Option<&scatter_ring_blocks<'_>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || given(batch, "batch")?.add(|| given(blocks, "blocks")?.shape(Opcode::WRITE)))
}

/// Adds: ranges of any lengths, into mine.
///
/// @param ranges Only read during the call.
/// @return As scatter_ring_batch_read_rows().
///
/// Threads, fork, regions: as scatter_ring_batch_read().
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_read_ranges(
    batch: Option<&scatter_ring_batch>,
    ranges: Option<&scatter_ring_ranges<'_>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || given(batch, "batch")?.add(|| given(ranges, "ranges")?.shape(Opcode::READ)))
}

/// Adds: ranges of any lengths, out of mine.
///
/// @param ranges Only read during the call.
/// @return As scatter_ring_batch_read_rows().
///
/// Threads, fork, regions: as scatter_ring_batch_read().
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_write_ranges(
    batch: Option<&scatter_ring_batch>,
    ranges: Option<&scatter_ring_ranges<'_>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || given(batch, "batch")?.add(|| given(ranges, "ranges")?.shape(Opcode::WRITE)))
}

/// Adds: pieces at even distances, into mine.
///
/// @param tile Only read during the call.
/// @return As scatter_ring_batch_read_rows().
///
/// Threads, fork, regions: as scatter_ring_batch_read().
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_read_tile(
    batch: Option<&scatter_ring_batch>,
    tile: Option<&scatter_ring_tile<'_>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || given(batch, "batch")?.add(|| given(tile, "tile")?.shape(Opcode::READ)))
}

/// Adds: pieces at even distances, out of mine.
///
/// @param tile Only read during the call.
/// @return As scatter_ring_batch_read_rows().
///
/// Threads, fork, regions: as scatter_ring_batch_read().
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_write_tile(
    batch: Option<&scatter_ring_batch>,
    tile: Option<&scatter_ring_tile<'_>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || given(batch, "batch")?.add(|| given(tile, "tile")?.shape(Opcode::WRITE)))
}

/// Adds any descriptors, many in one call. If one is refused, those before it were added: the message says which.
///
/// @param descriptors `count` of them, copied. LAST and EXTENDED are set by the library. Their user_data is used as it
/// is.
/// @param regions `region_count` regions, among which those must be whose handles the descriptors carry.
/// @return 0; SCATTER_RING_STATUS_UNKNOWN_REGION for a handle that none of the regions has,
/// SCATTER_RING_STATUS_INVALID_FLAGS for LAST or EXTENDED.
///
/// Threads, fork, regions: as scatter_ring_batch_read().
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_push(
    batch: Option<&scatter_ring_batch>,
    descriptors: *const Descriptor,
    count: usize,
    regions: *const Option<&scatter_ring_region>,
    region_count: usize,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        // SAFETY: so many descriptors and regions of the caller's, says the header.
        let (descriptors, regions) =
            unsafe { (array(descriptors, count, "descriptors")?, array(regions, region_count, "regions")?) };
        let batch = given(batch, "batch")?;
        let mut recorded = batch.enter()?;
        recorded.check_open()?;
        recorded.steps.reserve(descriptors.len());
        for descriptor in descriptors {
            recorded.add_raw(descriptor, regions, batch.client, NONE)?;
        }
        Ok(0)
    })
}

/// Adds a descriptor with an inner repeat: every fragment becomes `inner_count` pieces.
///
/// @param descriptor, extension Copied. EXTENDED is set by the library.
/// @param regions As of scatter_ring_batch_push().
/// @return As scatter_ring_batch_push().
///
/// Threads, fork, regions: as scatter_ring_batch_read().
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_push_extended(
    batch: Option<&scatter_ring_batch>,
    descriptor: Option<&Descriptor>,
    extension: Option<&Extension>,
    regions: *const Option<&scatter_ring_region>,
    region_count: usize,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        // SAFETY: so many regions of the caller's, says the header.
        let regions = unsafe { array(regions, region_count, "regions") }?;
        let (descriptor, extension) = (given(descriptor, "descriptor")?, given(extension, "extension")?);
        let batch = given(batch, "batch")?;
        let mut recorded = batch.enter()?;
        recorded.check_open()?;
        let at = recorded.extensions.len() as u32;
        recorded.add_raw(descriptor, regions, batch.client, at)?;
        recorded.extensions.push(*extension);
        Ok(0)
    })
}

/// Ends the batch with a notification: when all of it is done, the client that exported `other` is told; it gets the
/// user data that is set, `offset` (of any meaning) and the bytes of the payload, as they are then. If the batch fails
/// or ends before, nobody is told. While the other client has no room for it the batch waits, as long as its deadline
/// allows. Nothing can be added behind it.
///
/// @param payload The region of the payload, or NULL: none.
/// @param payload_offset, payload_bytes Where it is; at most 4096 bytes.
/// @return As scatter_ring_batch_read(); SCATTER_RING_STATUS_BAD_SEQUENCE if there is one already.
///
/// Threads, fork, regions: as scatter_ring_batch_read().
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_notify(
    batch: Option<&scatter_ring_batch>,
    other: Option<&scatter_ring_region>,
    offset: u64,
    payload: Option<&scatter_ring_region>,
    payload_offset: u64,
    payload_bytes: u32,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let batch = given(batch, "batch")?;
        let mut recorded = batch.enter()?;
        recorded.check_open()?;
        let other = recorded.region(given(other, "other")?, batch.client, "other")?;
        let payload = match payload {
            Some(payload) => Some((recorded.region(payload, batch.client, "payload")?, payload_offset, payload_bytes)),
            None => None,
        };
        let user_data = recorded.user_data;
        recorded.notice = Some(Notice { user_data, other, offset, payload });
        Ok(0)
    })
}

/// Submits a batch: all that was added, once. It stays as it is, to be submitted again or cleared. An empty one is one
/// NOP. No system call while the engine is awake and the ring has room; a batch that is longer than the ring waits for
/// the engine.
///
/// @param client The one that the batch was made for.
/// @param ticket Set to a handle for the outcome, which the caller owns and ends with scatter_ring_ticket_free(); to
/// NULL if the call fails.
/// @return 0; SCATTER_RING_STATUS_UNKNOWN_REGION for a batch of another client, or a region that was closed meanwhile
/// (nothing was submitted then); or why the session has ended.
///
/// Threads: one at a time with this client, and with this batch. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_batch_submit(
    client: Option<&scatter_ring_client>,
    batch: Option<&scatter_ring_batch>,
    ticket: Option<&mut MaybeUninit<*mut scatter_ring_ticket>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let ticket = place(ticket, "ticket")?;
        let client = given(client, "client")?;
        let batch = given(batch, "batch")?;
        let mut entered = client.enter()?;
        if batch.client != client.serial() {
            return Err(rust::client::ClientError::Foreign.into());
        }
        let recorded = batch.enter()?;
        recorded.check_regions(batch.client)?;
        Ok(hand_over(ticket, scatter_ring_ticket(recorded.replay(&mut entered.client)?)))
    })
}

fn add_range(
    batch: Option<&scatter_ring_batch>,
    opcode: Opcode,
    (src, src_offset): (Option<&scatter_ring_region>, u64),
    (dst, dst_offset): (Option<&scatter_ring_region>, u64),
    len: u64,
) -> Result<i32, Failure> {
    let batch = given(batch, "batch")?;
    let (src, dst) = (given(src, "src")?, given(dst, "dst")?);
    let mut recorded = batch.enter()?;
    if len <= u64::from(PIECE_BYTES) {
        recorded.add(&range(opcode, (src, src_offset), (dst, dst_offset), len as u32), batch.client)?;
        return Ok(0);
    }
    let (row, moved) = pieces(opcode, (src, src_offset), (dst, dst_offset), len)?;
    recorded.add(&row, batch.client)?;
    let rest = (len - moved) as u32;
    if rest > 0 {
        // What is beyond all memory the engine refuses.
        let (src_offset, dst_offset) = (src_offset.saturating_add(moved), dst_offset.saturating_add(moved));
        recorded.add(&range(opcode, (src, src_offset), (dst, dst_offset), rest), batch.client)?;
    }
    Ok(0)
}
