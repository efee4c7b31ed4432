//! The short way for single small ranges, the descriptors of a batch that is written row by row.
//!
//! They come by the hundred thousand, so all that can be done once for many is: regions are found once for rows that
//! name the same ones, and the ledger hears of a whole run of rows at a time.

use super::memory::Memory;
use super::session::{Clock, Session, Shared, task_id};
use crate::pack::{RowList, Run};
use crate::pipeline::TransferId;
use crate::plan::Fault;
use crate::region::Rights;
use crate::region::copy::{ROW_MAX, RowQueue};
use crate::ring::BadPosition;
use ring_abi::{Entry, Field, Flags, Handle, Opcode, Stage, Status};

/// Slots freed at a time, so that a producer that waits for room gets it while more is copied.
pub(super) const SLOTS_PER_RELEASE: u32 = 64;

/// The regions of the row before, found and granted. Good for the rest of a turn: regions are taken away between turns.
#[derive(Debug)]
pub(super) struct Pair {
    /// Both handles, as in the descriptor. 0 names no region, and into the pair that is none nothing fits.
    handles: u64,
    src: *const u8,
    src_bytes: u64,
    dst: *mut u8,
    dst_bytes: u64,
    /// One of the two regions may be: then rows count as done only if neither is lost after they were copied.
    may_be_lost: bool,
    /// Rows that named it one behind the other.
    rows: u32,
}

impl Default for Pair {
    fn default() -> Self {
        let (src, dst) = (std::ptr::null(), std::ptr::null_mut());
        Pair { handles: 0, src, src_bytes: 0, dst, dst_bytes: 0, may_be_lost: false, rows: 0 }
    }
}

/// Rows that were popped.
#[derive(Default)]
pub(super) struct Popped {
    pub count: u32,
    pub bytes: u64,
    pub first_user_data: u64,
    pub last_user_data: u64,
    /// The last one carries LAST.
    pub last: bool,
    /// The slot behind them, which was popped too: it is no row, or none for this run.
    pub other: Option<Entry>,
}

/// A batch of so many rows is worth a worker's help.
const LONG_BATCH_SLOTS: u64 = 2048;

/// So many slots must be known for a worker to be given what rows they have.
const SLOTS_FOR_WORKER: u32 = 128;

/// So many rows before them must have named one pair of regions, so that these can be expected to.
const ROWS_OF_A_PAIR: u32 = 512;

/// How long the rows of a ring have named the same pair of regions, neither of which may be lost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Streak {
    handles: u64,
    rows: u32,
}

impl Streak {
    /// After a turn whose last pair was this.
    pub(super) fn went_on(&mut self, pair: &Pair) {
        let before = if self.handles == pair.handles { self.rows } else { 0 };
        // What of a worker's list was copied before a region was lost, the ledger could not be told.
        let rows = if pair.may_be_lost { 0 } else { before.saturating_add(pair.rows) };
        *self = Streak { handles: pair.handles, rows };
    }
}

impl Session {
    /// Takes rows of the open batch up to its end or to the first slot that is no row, or no right one: that slot is
    /// returned. At most `budget` slots, and none beyond what is known to be published.
    pub(super) fn take_rows(
        &mut self,
        slot: u32,
        pair: &mut Pair,
        budget: &mut u32,
        shared: &mut Shared,
        clock: Clock,
        now_ns: u64,
    ) -> Result<Option<Entry>, BadPosition> {
        let most = self.sq.known().min(*budget);
        if let Some(popped) = self.rows_for_peer(most, shared, now_ns)? {
            *budget -= popped.count;
            return Ok(popped.other);
        }
        let help = most >= SLOTS_FOR_WORKER
            && self.streak.rows >= ROWS_OF_A_PAIR
            && self.ledger.open_slots() >= LONG_BATCH_SLOTS
            && shared.workers.have_room()
            // One for the list, one for the descriptor behind it, which is taken without asking again.
            && self.ledger.has_transfer_room(2);
        let list = if help { shared.lists.pop() } else { None };
        let popped = match list {
            Some(list) => self.rows_for_worker(slot, list, pair, most, shared, now_ns)?,
            None => self.rows_for_queue(pair, most, &mut shared.rows, clock, now_ns)?,
        };
        *budget -= popped.count;
        if popped.last {
            // What the batch has for peers is complete as well.
            self.parts.complete();
        }
        Ok(popped.other)
    }

    /// Queues rows, to be copied here before the turn ends; those of a region that may be lost are copied at once.
    // A function of its own, so that its loop has the registers for itself.
    #[inline(never)]
    fn rows_for_queue(
        &mut self,
        pair: &mut Pair,
        most: u32,
        queue: &mut RowQueue,
        clock: Clock,
        now_ns: u64,
    ) -> Result<Popped, BadPosition> {
        // SAFETY: both ranges lie in regions that this session keeps; the queue is flushed before this turn ends, and
        // regions are dropped between turns only.
        let popped = self.pop_rows(pair, most, None, |src, dst, len| unsafe { queue.push(src, dst, len) })?;
        if popped.count == 0 {
            return Ok(popped);
        }
        if pair.may_be_lost {
            // SAFETY: as above, still in this turn.
            unsafe { queue.flush() };
        }
        if let Some(fault) = self.lost(pair) {
            self.fail_rows(&popped, fault, now_ns);
        } else {
            self.ledger.took(popped.count, popped.last_user_data, popped.last, now_ns);
            self.ledger.complete(popped.bytes, true, if popped.last { clock.now_ns() } else { now_ns });
        }
        Ok(popped)
    }

    /// Which region of a pair was lost, if one that may be was.
    fn lost(&self, pair: &Pair) -> Option<Fault> {
        if !pair.may_be_lost {
            return None;
        }
        let sides = [(pair.handles as u32, Field::SRC_REGION), ((pair.handles >> 32) as u32, Field::DST_REGION)];
        let is_lost = |handle| {
            let region = self.regions.get(Handle(handle)).and_then(|granted| granted.memory.as_ref());
            region.is_some_and(Memory::is_lost)
        };
        let (handle, field) = sides.into_iter().find(|(handle, _)| is_lost(*handle))?;
        Some(Fault::new(Status::REGION_GONE, Stage::PACK, field, handle.into()))
    }

    /// Any of these rows may be the first that was copied after the loss, so none of them is done.
    #[cold]
    fn fail_rows(&mut self, rows: &Popped, fault: Fault, now_ns: u64) {
        let behind = rows.count - 1;
        self.ledger.took(1, rows.first_user_data, rows.last && behind == 0, now_ns);
        self.ledger.fail(fault, now_ns);
        if behind > 0 {
            self.ledger.took(behind, rows.last_user_data, rows.last, now_ns);
        }
    }

    /// Gathers rows between one pair of regions in a list, and gives it to a worker.
    fn rows_for_worker(
        &mut self,
        slot: u32,
        mut list: Box<RowList>,
        pair: &mut Pair,
        most: u32,
        shared: &mut Shared,
        now_ns: u64,
    ) -> Result<Popped, BadPosition> {
        let only = Some(self.streak.handles);
        let popped = self.pop_rows(pair, most, only, |src, dst, len| list.push(src, dst, len))?;
        if popped.count == 0 {
            shared.lists.push(list);
            return Ok(popped);
        }
        // They were there for the rows, and go between turns only.
        let kept =
            |handle| self.regions.get(Handle(handle)).and_then(|granted| granted.memory.as_ref()?.mapped().cloned());
        let (src, dst) = (kept(pair.handles as u32), kept((pair.handles >> 32) as u32));
        let (src, dst) = src.zip(dst).expect("regions of this turn");
        self.ledger.took(popped.count, popped.last_user_data, popped.last, now_ns);
        let TransferId(id) = self.ledger.start(now_ns);
        let (run, task) = Run::of_rows(list, src, dst, task_id(slot, id));
        self.runs[id as usize] = Some(run);
        shared.workers.give(&task);
        Ok(popped)
    }

    /// Pops rows and puts each where they go. With `only` all of them are between these two regions, and rows of a region
    /// that may be lost are always between the same two.
    #[inline]
    fn pop_rows(
        &mut self,
        pair: &mut Pair,
        most: u32,
        only: Option<u64>,
        mut put: impl FnMut(*const u8, *mut u8, u32),
    ) -> Result<Popped, BadPosition> {
        // Each a variable of its own, and not a field of what is returned: the loop keeps them in registers.
        let (mut count, mut bytes, mut last, mut other) = (0u32, 0u64, false, None);
        let (mut first_user_data, mut last_user_data) = (0, 0);
        while count < most && !last {
            let Some(entry) = self.sq.pop()? else { break };
            let is_other_pair = only.is_some_and(|handles| entry[1] != handles);
            let row = if is_other_pair { None } else { self.row(&entry, pair, count) };
            let Some((src, dst, len)) = row else {
                other = Some(entry);
                break;
            };
            put(src, dst, len);
            last_user_data = entry[7];
            if count == 0 {
                first_user_data = last_user_data;
            }
            count += 1;
            bytes += u64::from(len);
            last = entry[0] & u64::from(Flags::LAST) << 16 != 0;
            if count.is_multiple_of(SLOTS_PER_RELEASE) {
                self.sq.release();
            }
        }
        pair.rows = pair.rows.wrapping_add(count);
        let popped = Popped { count, bytes, first_user_data, last_user_data, last, other };
        Ok(popped)
    }

    /// The range that a slot describes. `None`: it is something else, or wrong, which is for the long way to say, or does
    /// not belong to the run of `before` rows that it follows.
    #[inline]
    fn row(&self, entry: &Entry, pair: &mut Pair, before: u32) -> Option<(*const u8, *mut u8, u32)> {
        // Opcode, index kinds and flags in one; then count and index region, and index offset.
        let kind = entry[0] as u32 & !(u32::from(Flags::LAST) << 16);
        let len = (entry[0] >> 32) as u32;
        let is_row = (kind == u32::from(Opcode::READ.0) || kind == u32::from(Opcode::WRITE.0))
            && (1..=ROW_MAX as u32).contains(&len)
            && entry[4] == 1
            && entry[5] == 0;
        if !is_row {
            return None;
        }
        if entry[1] != pair.handles {
            *pair = self.next_pair(entry[1], pair, before)?;
        }
        let fits = |offset: u64, bytes: u64| offset.checked_add(len.into()).is_some_and(|end| end <= bytes);
        if !fits(entry[2], pair.src_bytes) || !fits(entry[3], pair.dst_bytes) {
            return None;
        }
        Some((pair.src.wrapping_add(entry[2] as usize), pair.dst.wrapping_add(entry[3] as usize), len))
    }

    #[cold]
    fn next_pair(&self, handles: u64, last: &Pair, before: u32) -> Option<Pair> {
        let src = self.granted(handles as u32, Rights::READ).ok()?.mapped()?;
        let dst = self.granted((handles >> 32) as u32, Rights::WRITE).ok()?.mapped()?;
        let may_be_lost = src.may_be_lost() || dst.may_be_lost();
        if before > 0 && (may_be_lost || last.may_be_lost) {
            return None;
        }
        Some(Pair {
            handles,
            src: src.as_ptr(),
            src_bytes: src.bytes(),
            dst: dst.as_ptr(),
            dst_bytes: dst.bytes(),
            may_be_lost,
            // Counted at the end of the run, with those before it.
            rows: 0u32.wrapping_sub(before),
        })
    }
}
