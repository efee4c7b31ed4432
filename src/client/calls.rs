//! One call for one operation: describe, submit, wait.

use super::{BatchError, Client, ClientError, Outcome, Region, Rows, Ticket};
use ring_abi::{Descriptor, Field, Opcode, Status};

/// Least bytes of a region for row numbers.
const INDEX_BYTES_MIN: u64 = 64 << 10;

/// Most regions for row numbers that are kept: of more batches than this under way, some register theirs anew.
const INDEX_REGIONS_MAX: usize = 64;

/// Row numbers turned into bytes at a time.
const NUMBERS_AT_ONCE: usize = 1024;

impl Client {
    /// Reads rows of `row_bytes` bytes of a packed table, by number, to `out_offset` of `out` and behind it, and waits.
    ///
    /// The numbers are copied into memory that the client keeps for that. To leave them where they are, to use wider
    /// strides, or to set a deadline, use [`Batch::read_rows`](super::Batch::read_rows).
    ///
    /// # Errors
    /// What the batch failed with. A row number outside the table is found while rows are copied: those before it are in
    /// place.
    pub fn read_rows(
        &mut self,
        table: &Region,
        row_bytes: u32,
        rows: &[u32],
        out: &Region,
        out_offset: u64,
    ) -> Result<Outcome, BatchError> {
        self.rows(rows, |batch, index, count| {
            batch.read_rows(&Rows { buffer_offset: out_offset, ..Rows::new(table, row_bytes, index, count, out) })
        })
    }

    /// Writes rows that lie packed at `from_offset` of `from` into a packed table, by number, and waits.
    ///
    /// # Errors
    /// As [`read_rows`](Self::read_rows).
    pub fn write_rows(
        &mut self,
        table: &Region,
        row_bytes: u32,
        rows: &[u32],
        from: &Region,
        from_offset: u64,
    ) -> Result<Outcome, BatchError> {
        self.rows(rows, |batch, index, count| {
            batch.write_rows(&Rows { buffer_offset: from_offset, ..Rows::new(table, row_bytes, index, count, from) })
        })
    }

    /// Reads one range, and waits.
    ///
    /// # Errors
    /// What the batch failed with.
    pub fn read(
        &mut self,
        src: &Region,
        src_offset: u64,
        dst: &Region,
        dst_offset: u64,
        len: u64,
    ) -> Result<Outcome, BatchError> {
        let mut batch = self.batch();
        batch.read(src, src_offset, dst, dst_offset, len)?;
        let ticket = batch.submit()?;
        self.wait(&ticket)
    }

    /// Writes one range, and waits.
    ///
    /// # Errors
    /// What the batch failed with.
    pub fn write(
        &mut self,
        src: &Region,
        src_offset: u64,
        dst: &Region,
        dst_offset: u64,
        len: u64,
    ) -> Result<Outcome, BatchError> {
        let mut batch = self.batch();
        batch.write(src, src_offset, dst, dst_offset, len)?;
        let ticket = batch.submit()?;
        self.wait(&ticket)
    }

    /// Cancels a batch by a descriptor in the ring, behind everything that was submitted before: a batch of its own,
    /// which fails with `NOT_FOUND` if the other one has ended or is ending.
    ///
    /// # Errors
    /// The session has ended.
    pub fn cancel_in_ring(&mut self, ticket: &Ticket) -> Result<Ticket, BatchError> {
        let target = ticket.position();
        let mut batch = self.batch();
        batch.push(&Descriptor { opcode: Opcode::CANCEL.0, src_offset: target, ..Descriptor::ZERO }, &[])?;
        batch.submit()
    }

    fn rows(
        &mut self,
        rows: &[u32],
        describe: impl FnOnce(&mut super::Batch<'_>, &Region, u32) -> Result<(), BatchError>,
    ) -> Result<Outcome, BatchError> {
        let Ok(count) = u32::try_from(rows.len()) else {
            return Err(self.refusal(Status::INVALID_COUNT, Field::COUNT, rows.len() as u64));
        };
        let index = match rows {
            [] => None,
            _ => Some(self.index(rows).map_err(|e| BatchError::whole(e.status(), self.areas.sq.position(), true))?),
        };
        let mut batch = self.batch();
        if let Some(index) = &index {
            describe(&mut batch, index, count)?;
        }
        let ticket = batch.submit()?;
        self.wait(&ticket)
    }

    /// Memory for row numbers or records, of at least so many bytes, that nobody else has in hand: no batch that is under
    /// way, and no caller before. The client keeps it, to give it again once the handle is dropped and its batches are
    /// released.
    ///
    /// ```
    /// # use scatter_ring::{client::{Client, Setup}, engine::{Config, Engine}};
    /// # let engine = Engine::new(&Config::default())?.start()?;
    /// # let mut client = Client::over(engine.connect()?, &Setup::default())?;
    /// let (first, second) = (client.index_region(4096)?, client.index_region(4096)?);
    /// assert_ne!(first.handle(), second.handle());
    /// let handle = first.handle();
    /// drop(first);
    /// assert_eq!(client.index_region(4096)?.handle(), handle);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn index_region(&mut self, bytes: u64) -> Result<Region, ClientError> {
        self.usable()?;
        let fits = |region: &&Region| region.bytes() >= bytes && region.is_sole() && !region.is_closed();
        if let Some(region) = self.index_regions.iter().find(fits) {
            return Ok(region.clone());
        }
        let region = self.allocate(bytes.checked_next_power_of_two().unwrap_or(bytes).max(INDEX_BYTES_MIN))?;
        // A larger one is of use wherever a smaller one is.
        let unused = self.index_regions.iter().position(Region::is_sole);
        match unused {
            Some(smaller) => self.index_regions[smaller] = region.clone(),
            None if self.index_regions.len() < INDEX_REGIONS_MAX => self.index_regions.push(region.clone()),
            None => {}
        }
        Ok(region)
    }

    /// A region with these numbers at its start.
    fn index(&mut self, rows: &[u32]) -> Result<Region, ClientError> {
        let region = self.index_region(4 * rows.len() as u64)?;
        let mut buffer = [0; 4 * NUMBERS_AT_ONCE];
        for (i, numbers) in rows.chunks(NUMBERS_AT_ONCE).enumerate() {
            for (to, number) in buffer.chunks_exact_mut(4).zip(numbers) {
                to.copy_from_slice(&number.to_le_bytes());
            }
            region.write_at((4 * NUMBERS_AT_ONCE * i) as u64, &buffer[..4 * numbers.len()])?;
        }
        Ok(region)
    }
}
