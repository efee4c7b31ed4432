//! Rows by number, a window at a time: while one window is written to the output, the engine reads the next.

use super::super::{Failure, report};
use super::output::Output;
use scatter_ring::client::{Client, Outcome, Region, RowNumbers, Rows, Ticket};
use std::time::Duration;

/// A table that an engine has.
pub struct Source {
    pub table: Region,
    /// Where row 0 starts.
    pub offset: u64,
    pub row_bytes: u32,
}

/// What the engine did.
#[derive(Default)]
pub struct Totals {
    pub operations: u64,
    /// Time of the batches, added up.
    pub engine: Duration,
    /// How the bytes of the last one travelled.
    pub route: Option<ring_abi::Route>,
}

/// Memory of one window.
struct Buffer {
    index: Region,
    rows: Region,
}

/// A window that the engine is reading.
struct Flying<'a> {
    ticket: Ticket,
    buffer: &'a Buffer,
    /// Its part of the list.
    first: usize,
    count: usize,
}

/// Bytes of a row number in an index region.
const NUMBER_BYTES: u64 = 8;

/// Bytes that are copied at a time between regions and private memory.
const PIECE_BYTES: usize = 1 << 20;

/// Writes the rows of these numbers, in their order. `window_bytes` bounds the memory: two windows are under way, of so
/// many bytes of rows and so many of row numbers, or of one row if that is longer.
pub fn read(
    client: &mut Client,
    source: &Source,
    numbers: &[u64],
    window_bytes: u64,
    out: &mut Output,
) -> Result<Totals, Failure> {
    let mut totals = Totals::default();
    let per_window = (window_bytes / NUMBER_BYTES.max(source.row_bytes.into())).max(1);
    let per_window = per_window.min(numbers.len() as u64);
    if per_window == 0 {
        return Ok(totals);
    }
    let buffers = [Buffer::new(client, per_window, source)?, Buffer::new(client, per_window, source)?];
    let bar = report::bar(numbers.len() as u64, "reading rows");
    let mut flying: Option<Flying<'_>> = None;
    for (k, window) in numbers.chunks(per_window as usize).enumerate() {
        let (first, count, buffer) = (k * per_window as usize, window.len(), &buffers[k % 2]);
        let ticket = buffer.submit(client, source, window)?;
        if let Some(before) = flying.replace(Flying { ticket, buffer, first, count }) {
            bar.set_position(first as u64);
            totals.add(&before.finish(client, source, out)?);
        }
    }
    if let Some(last) = flying {
        totals.add(&last.finish(client, source, out)?);
    }
    bar.finish_and_clear();
    Ok(totals)
}

impl Buffer {
    fn new(client: &Client, rows: u64, source: &Source) -> Result<Buffer, Failure> {
        let index = client.allocate(rows * NUMBER_BYTES)?;
        Ok(Buffer { index, rows: client.allocate(rows * u64::from(source.row_bytes))? })
    }

    fn submit(&self, client: &mut Client, source: &Source, numbers: &[u64]) -> Result<Ticket, Failure> {
        for (k, numbers) in numbers.chunks(PIECE_BYTES / NUMBER_BYTES as usize).enumerate() {
            let piece: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            self.index.write_at((k * PIECE_BYTES) as u64, &piece)?;
        }
        let mut batch = client.batch();
        batch.read_rows(&Rows {
            table_offset: source.offset,
            numbers: RowNumbers::U64,
            ..Rows::new(&source.table, source.row_bytes, &self.index, numbers.len() as u32, &self.rows)
        })?;
        Ok(batch.submit()?)
    }
}

impl Flying<'_> {
    /// Waits until it is read, and writes it.
    fn finish(self, client: &mut Client, source: &Source, out: &mut Output) -> Result<Outcome, Failure> {
        let outcome = client.wait(&self.ticket).map_err(|e| {
            let last = self.first + self.count - 1;
            Failure::run(format!("reading the rows at positions {} to {last}: {e}", self.first))
        })?;
        let bytes = self.count * source.row_bytes as usize;
        let mut piece = vec![0; PIECE_BYTES.min(bytes)];
        for at in (0..bytes).step_by(PIECE_BYTES) {
            let piece = &mut piece[..PIECE_BYTES.min(bytes - at)];
            self.buffer.rows.read_at(at as u64, piece)?;
            out.write(piece)?;
        }
        Ok(outcome)
    }
}

impl Totals {
    fn add(&mut self, outcome: &Outcome) {
        self.operations += 1;
        self.engine += outcome.times.total;
        self.route = Some(outcome.route);
    }
}
