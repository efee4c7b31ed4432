//! One workload between a client and a table: its lists as batches, timed and verified.

use super::Failure;
use super::workload::{LISTS, List, Part, Workload, fill_buffer, verify_buffer};
use clap::ValueEnum;
use ring_abi::{Descriptor, Flags, IndexKind, Opcode, Span};
use scatter_ring::client::{Batch, BatchError, Client, Region, Rows};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Pieces of the table into the buffer.
    Read,
    /// The buffer into pieces of the table.
    Write,
}

/// Who chooses how the pieces travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteChoice {
    /// The engine chooses.
    Auto,
    /// One operation for each piece.
    Direct,
    /// Packed, moved in bulk.
    Gather,
}

/// How a list is described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Submit {
    /// One descriptor and row numbers in registered memory.
    Index,
    /// One descriptor for each piece.
    Rows,
}

/// What is to be done with a list.
#[derive(Clone, Copy, Debug)]
pub struct How {
    pub op: Op,
    pub route: RouteChoice,
    pub submit: Submit,
}

/// A workload with everything that its batches need.
pub struct Transfer<'a> {
    client: &'a mut Client,
    table: &'a Region,
    buffer: Region,
    index: Region,
    /// Each list, and where its numbers start in `index`.
    lists: Vec<(List, u64)>,
}

/// How one batch went.
#[derive(Debug)]
pub struct Run {
    /// From before the first descriptor is written until the last span is read.
    pub time: Duration,
    pub descriptors: u64,
    pub spans: u64,
    /// System calls of the client to wake the engine.
    pub doorbells: u64,
    /// The last one.
    pub span: Span,
}

/// Larger payloads do not live in a cache anyway, so that fewer lists do.
const LARGE_BYTES: u64 = 64 << 20;

impl<'a> Transfer<'a> {
    pub fn new(
        client: &'a mut Client,
        table: &'a Region,
        workload: &Workload,
        seed: u64,
    ) -> Result<Transfer<'a>, Failure> {
        let count = if workload.bytes() > LARGE_BYTES { 2 } else { LISTS };
        let mut lists = Vec::with_capacity(count);
        let mut bytes = Vec::new();
        for k in 0..count {
            let list = workload.list(k, seed, table.bytes())?;
            let at = bytes.len() as u64;
            bytes.extend(list.index());
            lists.push((list, at));
        }
        let buffer = client.allocate(workload.bytes())?;
        let index = client.allocate(bytes.len() as u64)?;
        index.write_at(0, &bytes)?;
        Ok(Transfer { client, table, buffer, index, lists })
    }

    /// How many lists there are.
    pub fn lists(&self) -> usize {
        self.lists.len()
    }

    pub fn list(&self, k: usize) -> &List {
        &self.lists[k].0
    }

    /// Carries one list out, with the clock running.
    pub fn run(&mut self, k: usize, how: How) -> Result<Run, Failure> {
        let (list, index_at) = &self.lists[k];
        let doorbells = self.client.doorbells();
        let start = Instant::now();
        let mut batch = self.client.batch();
        let mut descriptors = 0;
        let mut index_at = *index_at;
        for part in &list.parts {
            let sides = Sides { table: self.table, buffer: &self.buffer, index: &self.index, index_at };
            descriptors += sides.describe(&mut batch, part, how).map_err(|e| explain(&e, how))?;
            index_at += part.index_bytes();
        }
        let ticket = batch.submit().map_err(|e| explain(&e, how))?;
        let mut spans = 0;
        let span = loop {
            match self.client.reap()? {
                Some(span) => {
                    spans += 1;
                    if span.is_batch_done() {
                        break span;
                    }
                }
                None => drop(self.client.wait_any(None)?),
            }
        };
        let time = start.elapsed();
        // The spans that were read above tell its outcome already.
        self.client.wait(&ticket).map_err(|e| explain(&e, how))?;
        Ok(Run { time, descriptors, spans, doorbells: self.client.doorbells() - doorbells, span })
    }

    /// Carries every list out and compares every byte, without the clock. Says how many bytes that were.
    pub fn verify(&mut self, how: How, mut progress: impl FnMut()) -> Result<u64, Failure> {
        let mut compared = 0;
        for k in 0..self.lists.len() {
            // What was there before must not pass for what should have come.
            let salt = if how.op == Op::Write { (k as u64 + 1) << 32 } else { 0 };
            if how.op == Op::Write {
                fill_buffer(&self.buffer, &self.lists[k].0, salt)?;
                self.run(k, how)?;
            }
            self.poison()?;
            self.run(k, How { op: Op::Read, ..how })?;
            compared += self.verify_read(k, salt)?;
            progress();
        }
        Ok(compared)
    }

    /// Compares the buffer with what a list reads from the table, and says how many bytes that were.
    pub fn verify_read(&self, k: usize, salt: u64) -> Result<u64, Failure> {
        verify_buffer(&self.buffer, &self.lists[k].0, salt)
    }

    fn poison(&self) -> Result<(), Failure> {
        let piece = vec![0xEE; 1 << 20];
        for at in (0..self.buffer.bytes()).step_by(piece.len()) {
            let len = (self.buffer.bytes() - at).min(piece.len() as u64);
            self.buffer.write_at(at, &piece[..len as usize])?;
        }
        Ok(())
    }
}

/// What the descriptors of a part name.
struct Sides<'a> {
    table: &'a Region,
    buffer: &'a Region,
    index: &'a Region,
    index_at: u64,
}

impl Sides<'_> {
    /// Adds a part to a batch, and counts its descriptors.
    fn describe(&self, batch: &mut Batch<'_>, part: &Part, how: How) -> Result<u64, BatchError> {
        let plain = how.route == RouteChoice::Auto;
        match how.submit {
            Submit::Index if plain && part.places.is_none() => {
                let rows = Rows {
                    index_offset: self.index_at,
                    buffer_offset: part.offset,
                    ..Rows::new(self.table, part.len, self.index, part.rows.len() as u32, self.buffer)
                };
                match how.op {
                    Op::Read => batch.read_rows(&rows)?,
                    Op::Write => batch.write_rows(&rows)?,
                }
                Ok(1)
            }
            Submit::Index => {
                batch.push(&self.indexed(part, how), &[self.table, self.buffer, self.index])?;
                Ok(1)
            }
            Submit::Rows => {
                let len = u64::from(part.len);
                for (i, row) in part.rows.iter().enumerate() {
                    let (table_at, buffer_at) = (u64::from(*row) * len, part.offset + part.place(i) * len);
                    match how.op {
                        _ if !plain => {
                            let single = Descriptor { len: part.len, count: 1, ..Descriptor::ZERO };
                            let single = self.directed(single, table_at, buffer_at, how);
                            batch.push(&single, &[self.table, self.buffer])?;
                        }
                        Op::Read => batch.read(self.table, table_at, self.buffer, buffer_at, len)?,
                        Op::Write => batch.write(self.buffer, buffer_at, self.table, table_at, len)?,
                    }
                }
                Ok(part.rows.len() as u64)
            }
        }
    }

    fn indexed(&self, part: &Part, how: How) -> Descriptor {
        let kinds = match (&part.places, how.op) {
            (Some(_), _) => IndexKind::pack(IndexKind::U32, IndexKind::U32),
            (None, Op::Read) => IndexKind::pack(IndexKind::U32, IndexKind::None),
            (None, Op::Write) => IndexKind::pack(IndexKind::None, IndexKind::U32),
        };
        // With numbers on both sides the source's come first.
        let places_first = part.places.is_some() && how.op == Op::Write;
        let skipped = if places_first { 4 * part.rows.len() as u64 } else { 0 };
        let descriptor = Descriptor {
            index_kind: kinds,
            len: part.len,
            count: part.rows.len() as u32,
            index_region: self.index.handle().0,
            index_offset: self.index_at + skipped,
            src_stride: part.len,
            dst_stride: part.len,
            ..Descriptor::ZERO
        };
        self.directed(descriptor, 0, part.offset, how)
    }

    /// Adds the way it goes: opcode, regions, offsets, the forced route.
    fn directed(&self, descriptor: Descriptor, table_at: u64, buffer_at: u64, how: How) -> Descriptor {
        let (table, buffer) = (self.table.handle().0, self.buffer.handle().0);
        let flags = match how.route {
            RouteChoice::Auto => 0,
            RouteChoice::Direct => Flags::DIRECT,
            RouteChoice::Gather => Flags::GATHER,
        };
        let (opcode, src, dst) = match how.op {
            Op::Read => (Opcode::READ, (table, table_at), (buffer, buffer_at)),
            Op::Write => (Opcode::WRITE, (buffer, buffer_at), (table, table_at)),
        };
        Descriptor {
            opcode: opcode.0,
            flags,
            src_region: src.0,
            src_offset: src.1,
            dst_region: dst.0,
            dst_offset: dst.1,
            ..descriptor
        }
    }
}

fn explain(error: &BatchError, how: How) -> Failure {
    if error.status == ring_abi::Status::UNSUPPORTED && how.route == RouteChoice::Gather {
        let text = "the engine refuses --route gather (UNSUPPORTED): where it has mapped both sides, as on one host, \
                    there is nothing to pack";
        return Failure::Usage(text.to_owned());
    }
    Failure::Run(error.to_string())
}
