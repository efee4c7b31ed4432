//! Describing a batch.

use super::{BatchError, Blocks, Client, Ranges, Region, Rows, Ticket, Tile};
use ring_abi::{Descriptor, Extension, Field, Flags, Opcode, Status};
use std::time::Duration;

/// A batch that is being built: one logical operation of any number of descriptors.
///
/// Descriptors are written into the ring as they come, and shown to the engine by [`submit`](Self::submit). A batch that
/// is longer than the ring is shown part by part, and a push then waits until the engine has taken some.
///
/// Dropped without `submit`, a batch of which the engine has seen nothing has never been. One of which it has seen a
/// part is ended with a NOP: the part may be carried out.
#[derive(Debug)]
#[must_use = "nothing happens without `submit`"]
pub struct Batch<'c> {
    client: &'c mut Client,
}

/// Longest piece of a range: longer ranges are described as a row of such pieces.
const PIECE_BYTES: u32 = 1 << 30;

impl<'c> Batch<'c> {
    pub(super) fn of(client: &'c mut Client) -> Batch<'c> {
        Batch { client }
    }

    /// The batch times out if it has no outcome this long after the engine took its first descriptor. To be called before
    /// the first descriptor.
    pub fn deadline(self, time: Duration) -> Self {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.beginning(|begin| begin.dst_offset = ns)
    }

    /// How much is to come, for the engine's planning; it need not be exact. To be called before the first descriptor.
    pub fn hint(self, fragments: u32, bytes: u64) -> Self {
        self.beginning(|begin| (begin.count, begin.src_offset) = (fragments, bytes))
    }

    /// The batch starts after all earlier ones have their outcome and release, whatever it is, and later ones do not
    /// overtake it. To be called before the first descriptor.
    pub fn fence(self) -> Self {
        self.client.building.fence = true;
        self.checked_first()
    }

    /// Sets [`Descriptor::user_data`] of the descriptors that follow.
    pub fn user_data(&mut self, user_data: u64) {
        self.client.building.user_data = user_data;
    }

    /// `len` bytes from `src` (usually opened) to `dst`. More than 1 GiB takes two descriptors.
    ///
    /// # Errors
    /// A region of another client, or a closed one; or the session has ended. Everything else is for the engine to
    /// check, and is part of the outcome.
    #[inline]
    pub fn read(
        &mut self,
        src: &Region,
        src_offset: u64,
        dst: &Region,
        dst_offset: u64,
        len: u64,
    ) -> Result<(), BatchError> {
        self.range(Opcode::READ, src, src_offset, dst, dst_offset, len)
    }

    /// The same with the words turned round: from `src` (mine) to `dst` (the other).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    #[inline]
    pub fn write(
        &mut self,
        src: &Region,
        src_offset: u64,
        dst: &Region,
        dst_offset: u64,
        len: u64,
    ) -> Result<(), BatchError> {
        self.range(Opcode::WRITE, src, src_offset, dst, dst_offset, len)
    }

    /// Rows out of a table, by number, into a buffer.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_rows(&mut self, rows: &Rows<'_>) -> Result<(), BatchError> {
        self.indexed(&rows.reading(), rows.table, rows.buffer, rows.index)
    }

    /// Rows out of a buffer into a table, by number.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write_rows(&mut self, rows: &Rows<'_>) -> Result<(), BatchError> {
        self.indexed(&rows.writing(), rows.buffer, rows.table, rows.index)
    }

    /// Blocks to blocks by number, into mine.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_blocks(&mut self, blocks: &Blocks<'_>) -> Result<(), BatchError> {
        self.indexed(&blocks.descriptor(Opcode::READ), blocks.src, blocks.dst, blocks.index)
    }

    /// Blocks to blocks by number, out of mine.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write_blocks(&mut self, blocks: &Blocks<'_>) -> Result<(), BatchError> {
        self.indexed(&blocks.descriptor(Opcode::WRITE), blocks.src, blocks.dst, blocks.index)
    }

    /// Ranges of any lengths, into mine.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_ranges(&mut self, ranges: &Ranges<'_>) -> Result<(), BatchError> {
        self.indexed(&ranges.descriptor(Opcode::READ), ranges.src, ranges.dst, ranges.records)
    }

    /// Ranges of any lengths, out of mine.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write_ranges(&mut self, ranges: &Ranges<'_>) -> Result<(), BatchError> {
        self.indexed(&ranges.descriptor(Opcode::WRITE), ranges.src, ranges.dst, ranges.records)
    }

    /// Pieces at even distances, into mine.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_tile(&mut self, tile: &Tile<'_>) -> Result<(), BatchError> {
        self.transfer(&tile.descriptor(Opcode::READ), tile.src, tile.dst)
    }

    /// Pieces at even distances, out of mine.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write_tile(&mut self, tile: &Tile<'_>) -> Result<(), BatchError> {
        self.transfer(&tile.descriptor(Opcode::WRITE), tile.src, tile.dst)
    }

    /// Ends the batch and submits it; when all of it is done, the client that exported `other` is told: it gets
    /// [`user_data`](Self::user_data), `offset` (of any meaning) and the bytes of `payload` (region, offset, length; at most
    /// 4096), as they are then. See [`Client::next_notification`]. If the batch fails or ends before, nobody is told.
    ///
    /// While the other client has no room for it the batch waits, as long as its [`deadline`](Self::deadline) allows. It fails
    /// with [`NOT_ALLOWED`](Status::NOT_ALLOWED) if that client takes no notifications, with
    /// [`REGION_GONE`](Status::REGION_GONE) if it is gone. If the other client is one of another engine, a batch that ends
    /// while the notification is on its way to it may have told it.
    ///
    /// ```no_run
    /// # use scatter_ring::client::{BatchError, Client, Region};
    /// # fn example(client: &mut Client, blocks: &Region, inbox: &Region) -> Result<(), BatchError> {
    /// let mut batch = client.batch();
    /// batch.write(blocks, 0, inbox, 4096, 65_536)?;
    /// batch.user_data(65_536);
    /// let ticket = batch.notify(inbox, 4096, None)?;
    /// client.wait(&ticket)?; // the data is in place, and the other client knows it
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`read`](Self::read) and [`submit`](Self::submit).
    pub fn notify(
        mut self,
        other: &Region,
        offset: u64,
        payload: Option<(&Region, u64, u32)>,
    ) -> Result<Ticket, BatchError> {
        self.check_process()?;
        // What is told of is not touched, but it has to stay open.
        self.hold(other, false, Field::DST_REGION)?;
        let mut descriptor = Descriptor {
            opcode: Opcode::NOTIFY.0,
            dst_region: other.handle().0,
            dst_offset: offset,
            user_data: self.client.building.user_data,
            ..Descriptor::ZERO
        };
        if let Some((region, offset, len)) = payload.filter(|(.., len)| *len > 0) {
            self.hold(region, false, Field::SRC_REGION)?;
            (descriptor.src_region, descriptor.src_offset, descriptor.len) = (region.handle().0, offset, len);
        }
        self.client.add(&descriptor.to_entry())?;
        self.submit()
    }

    /// Any descriptor, with the regions whose handles it carries. [`user_data`](Self::user_data) is not used.
    ///
    /// ```no_run
    /// # use scatter_ring::client::{Batch, BatchError, Region};
    /// # use ring_abi::{Descriptor, IndexKind, Opcode};
    /// # fn example(mut batch: Batch<'_>, from: &Region, to: &Region, pages: &Region) -> Result<(), BatchError> {
    /// // 16 pages to 16 pages: the numbers of both sides lie behind each other in `pages`.
    /// let page = 64 << 10;
    /// let descriptor = Descriptor {
    ///     opcode: Opcode::READ.0,
    ///     index_kind: IndexKind::pack(IndexKind::U32, IndexKind::U32),
    ///     len: page,
    ///     src_region: from.handle().0,
    ///     dst_region: to.handle().0,
    ///     index_region: pages.handle().0,
    ///     count: 16,
    ///     src_stride: page,
    ///     dst_stride: page,
    ///     ..Descriptor::ZERO
    /// };
    /// batch.push(&descriptor, &[from, to, pages])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A handle that is none of the regions, LAST (the batch puts it where it belongs) or EXTENDED; or as
    /// [`read`](Self::read).
    pub fn push(&mut self, descriptor: &Descriptor, regions: &[&Region]) -> Result<(), BatchError> {
        if descriptor.flags & (Flags::LAST | Flags::EXTENDED) != 0 {
            let flags = u64::from(descriptor.flags);
            return Err(self.client.refusal(Status::INVALID_FLAGS, Field::FLAGS, flags));
        }
        self.hold_all(descriptor, regions)?;
        self.client.add(&descriptor.to_entry())
    }

    /// The same with an inner repeat. EXTENDED is set here.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_extended(
        &mut self,
        descriptor: &Descriptor,
        extension: &Extension,
        regions: &[&Region],
    ) -> Result<(), BatchError> {
        if descriptor.flags & Flags::LAST != 0 {
            let flags = u64::from(descriptor.flags);
            return Err(self.client.refusal(Status::INVALID_FLAGS, Field::FLAGS, flags));
        }
        self.hold_all(descriptor, regions)?;
        let extended = Descriptor { flags: descriptor.flags | Flags::EXTENDED, ..*descriptor };
        self.client.add_slowly(extended.to_entry(), Some(extension.to_entry()))
    }

    /// Ends the batch and shows it to the engine. An empty batch is one NOP.
    ///
    /// # Errors
    /// The session has ended; or [`deadline`](Self::deadline), [`hint`](Self::hint) or [`fence`](Self::fence) came too
    /// late; or raw descriptors without LAST stand before the batch (then nothing was submitted).
    pub fn submit(self) -> Result<Ticket, BatchError> {
        self.client.finish()
    }

    #[inline]
    fn range(
        &mut self,
        opcode: Opcode,
        src: &Region,
        mut src_offset: u64,
        dst: &Region,
        mut dst_offset: u64,
        len: u64,
    ) -> Result<(), BatchError> {
        let mut rest = len;
        if rest > u64::from(PIECE_BYTES) {
            let pieces = rest / u64::from(PIECE_BYTES);
            let Ok(count) = u32::try_from(pieces) else {
                return Err(self.client.refusal(Status::OUT_OF_RANGE, Field::LEN, len));
            };
            let (src_stride, dst_stride) = (PIECE_BYTES, PIECE_BYTES);
            let tile = Tile { src, src_offset, src_stride, dst, dst_offset, dst_stride, len: PIECE_BYTES, count };
            self.transfer(&tile.descriptor(opcode), src, dst)?;
            let moved = pieces * u64::from(PIECE_BYTES);
            rest -= moved;
            if rest == 0 {
                return Ok(());
            }
            src_offset = src_offset.saturating_add(moved);
            dst_offset = dst_offset.saturating_add(moved);
        }
        let descriptor = Descriptor {
            opcode: opcode.0,
            len: rest as u32,
            src_region: src.handle().0,
            dst_region: dst.handle().0,
            src_offset,
            dst_offset,
            count: 1,
            ..Descriptor::ZERO
        };
        self.transfer(&descriptor, src, dst)
    }

    /// Pushes a descriptor whose handles are those of the two regions.
    #[inline]
    fn transfer(&mut self, descriptor: &Descriptor, src: &Region, dst: &Region) -> Result<(), BatchError> {
        self.check_process()?;
        self.hold(src, false, Field::SRC_REGION)?;
        self.hold(dst, true, Field::DST_REGION)?;
        let user_data = self.client.building.user_data;
        self.client.add(&Descriptor { user_data, ..*descriptor }.to_entry())
    }

    fn indexed(
        &mut self,
        descriptor: &Descriptor,
        src: &Region,
        dst: &Region,
        index: &Region,
    ) -> Result<(), BatchError> {
        self.check_process()?;
        self.hold(index, false, Field::INDEX_REGION)?;
        self.transfer(descriptor, src, dst)
    }

    fn hold_all(&mut self, descriptor: &Descriptor, regions: &[&Region]) -> Result<(), BatchError> {
        self.check_process()?;
        let named = [
            (descriptor.src_region, false, Field::SRC_REGION),
            (descriptor.dst_region, true, Field::DST_REGION),
            (descriptor.index_region, false, Field::INDEX_REGION),
        ];
        for (handle, writes, field) in named {
            if handle == 0 {
                continue;
            }
            let Some(region) = regions.iter().find(|region| region.handle().0 == handle) else {
                return Err(self.client.refusal(Status::UNKNOWN_REGION, field, u64::from(handle)));
            };
            self.hold(region, writes, field)?;
        }
        Ok(())
    }

    /// The region stays, and is busy, until the batch is released.
    #[inline]
    fn hold(&mut self, region: &Region, writes: bool, field: Field) -> Result<(), BatchError> {
        if region.is_held_by(self.client.building.serial, writes) {
            return Ok(());
        }
        self.hold_first(region, writes, field)
    }

    #[cold]
    fn hold_first(&mut self, region: &Region, writes: bool, field: Field) -> Result<(), BatchError> {
        let client = &mut *self.client;
        match region.hold(&client.session, client.building.serial, writes) {
            Ok(hold) => {
                client.hold_for_batch(hold);
                Ok(())
            }
            Err(status) => Err(client.refusal(status, field, u64::from(region.handle().0))),
        }
    }

    /// Without this a child that inherited the batch would write into its parent's ring.
    #[inline]
    fn check_process(&self) -> Result<(), BatchError> {
        if self.client.session.is_child() {
            return Err(BatchError::whole(Status::FORKED, self.client.building.first, false));
        }
        Ok(())
    }

    fn beginning(self, change: impl FnOnce(&mut Descriptor)) -> Self {
        let begin = Descriptor { opcode: Opcode::BEGIN.0, ..Descriptor::ZERO };
        change(self.client.building.begin.get_or_insert(begin));
        self.checked_first()
    }

    /// What has to stand before the first descriptor and comes later makes `submit` fail.
    fn checked_first(self) -> Self {
        if self.client.has_begun() && self.client.building.refused.is_none() {
            let refused = self.client.refusal(Status::BAD_SEQUENCE, Field::NONE, 0);
            self.client.building.refused = Some(refused);
        }
        self
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.client.abandon();
    }
}
