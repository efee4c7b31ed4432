//! Once warm, neither the engine nor its clients allocate for a batch, on any thread.
//!
//! One test in a binary of its own: the allocator counts for the whole process. Requests on the attach socket are none
//! of its concern: they go through channels that allocate a block for every 31 messages.

mod counting;

use ring_abi::{Descriptor, Extension, Opcode, Status};
use scatter_ring::client::{Batch, BatchError, Client, Missing, Region, Rows, Setup, Ticket, Tile};
use scatter_ring::engine::{Config, Engine};
use scatter_ring::owner::{self, Owner};
use scatter_ring::region::Rights;
use std::sync::Arc;
use std::time::Duration;

const ROW_BYTES: u32 = 264;
const ROWS: u32 = 1000;
const WARM_UP: u32 = 200;
const BATCHES: u32 = 1000;
/// So much that a worker gets part of it.
const LONG_BYTES: u64 = 2 << 20;

struct Stage {
    client: Client,
    memory: Arc<Memory>,
    numbers: Vec<u32>,
    /// Cancels that came before the end of what they were to cancel.
    cancelled: u32,
}

struct Memory {
    table: Region,
    out: Region,
    index: Region,
    lent: Region,
}

type Kind = (&'static str, fn(&mut Stage));

const KINDS: [Kind; 18] = [
    ("rows by an index", |stage| {
        let memory = stage.memory.clone();
        let rows = memory.rows();
        stage.succeed(|batch| batch.read_rows(&rows));
    }),
    ("rows by an index, into a table", |stage| {
        let memory = stage.memory.clone();
        let rows = memory.rows();
        stage.succeed(|batch| batch.write_rows(&rows));
    }),
    ("rows by an index, out of lent memory", |stage| {
        let memory = stage.memory.clone();
        let rows = Rows { missing: Missing::Zero, index_offset: 4 * u64::from(ROWS), ..memory.rows() };
        stage.succeed(|batch| batch.read_rows(&Rows { table: &memory.lent, ..rows }));
    }),
    ("rows by an index, into lent memory", |stage| {
        let memory = stage.memory.clone();
        let rows = memory.rows();
        stage.succeed(|batch| batch.write_rows(&Rows { table: &memory.lent, ..rows }));
    }),
    ("a long range within lent memory", |stage| {
        let lent = &stage.memory.clone().lent;
        stage.succeed(|batch| batch.read(lent, 0, lent, LONG_BYTES / 2, LONG_BYTES / 2));
    }),
    ("rows of which some are missing", |stage| {
        let memory = stage.memory.clone();
        let rows = Rows { index_offset: 4 * u64::from(ROWS), missing: Missing::Zero, ..memory.rows() };
        stage.succeed(|batch| batch.read_rows(&rows));
    }),
    ("rows by one call", |stage| {
        let Stage { client, memory, numbers, .. } = stage;
        client.read_rows(&memory.table, ROW_BYTES, numbers, &memory.out, 0).unwrap();
    }),
    ("1,000 single rows", |stage| {
        let Memory { table, out, .. } = &*stage.memory.clone();
        stage.succeed(|batch| {
            (0..u64::from(ROWS)).try_for_each(|i| {
                let at = i * u64::from(ROW_BYTES);
                batch.read(table, at, out, at, ROW_BYTES.into())
            })
        });
    }),
    ("a tile", |stage| {
        let Memory { table: src, out: dst, .. } = &*stage.memory.clone();
        let tile =
            Tile { src, src_offset: 0, src_stride: 1024, dst, dst_offset: 0, dst_stride: 512, len: 512, count: 64 };
        stage.succeed(|batch| batch.read_tile(&tile));
    }),
    ("tiles with extensions among plain ranges", |stage| {
        let Memory { table, out, .. } = &*stage.memory.clone();
        let tile = Descriptor { count: 8, src_stride: 4096, dst_stride: 2048, ..range(table, out, 128) };
        stage.succeed(|batch| {
            for _ in 0..8 {
                batch.push_extended(&tile, &Extension::new(16, 256, 128), &[table, out])?;
                batch.read(table, 0, out, 0, 64)?;
            }
            Ok(())
        });
    }),
    ("a long range, for a worker", |stage| {
        let Memory { table, out, .. } = &*stage.memory.clone();
        stage.succeed(|batch| batch.read(table, 0, out, 0, LONG_BYTES));
    }),
    ("a fence, a hint and a deadline", |stage| {
        let Memory { table, out, .. } = &*stage.memory.clone();
        let mut batch = stage.client.batch().fence().hint(1, 64).deadline(Duration::from_secs(60));
        batch.read(table, 0, out, 0, 64).unwrap();
        let ticket = batch.submit().unwrap();
        stage.client.wait(&ticket).unwrap();
    }),
    ("32 batches under way", |stage| {
        let Memory { table, out, .. } = &*stage.memory.clone();
        let tickets: [Ticket; 32] = std::array::from_fn(|i| {
            let mut batch = stage.client.batch();
            batch.read(table, 0, out, 64 * i as u64, 64).unwrap();
            batch.submit().unwrap()
        });
        for ticket in &tickets {
            stage.client.wait(ticket).unwrap();
        }
    }),
    ("a notification with a payload", |stage| {
        let Memory { table, out, .. } = &*stage.memory.clone();
        let mut batch = stage.client.batch();
        batch.read(table, 0, out, 0, 64).unwrap();
        let ticket = batch.notify(table, 0, Some((out, 0, 4096))).unwrap();
        stage.client.wait(&ticket).unwrap();
        assert_eq!(stage.client.next_notification().unwrap().unwrap().payload.len(), 4096);
    }),
    ("a descriptor outside its region", |stage| {
        let Memory { table, out, .. } = &*stage.memory.clone();
        stage.fail(Status::OUT_OF_RANGE, |batch| {
            batch.read(table, 0, out, 0, 64)?;
            batch.read(table, table.bytes() - 8, out, 0, 64)?;
            batch.read(table, 0, out, 0, 64)
        });
    }),
    ("a row number outside the table", |stage| {
        let memory = stage.memory.clone();
        let rows = Rows { index_offset: 4 * u64::from(ROWS), ..memory.rows() };
        stage.fail(Status::OUT_OF_RANGE, |batch| batch.read_rows(&rows));
    }),
    ("a deadline that passes", |stage| {
        let Memory { table, out, .. } = &*stage.memory.clone();
        let mut batch = stage.client.batch().deadline(Duration::from_nanos(1));
        for _ in 0..4 {
            batch.read(table, 0, out, 0, LONG_BYTES).unwrap();
        }
        let ticket = batch.submit().unwrap();
        assert_eq!(stage.client.wait(&ticket).unwrap_err().status, Status::TIMED_OUT);
        assert!(stage.client.wait_released(&ticket, None).unwrap());
    }),
    ("a cancel", |stage| {
        let Memory { table, out, .. } = &*stage.memory.clone();
        let mut batch = stage.client.batch();
        batch.read(table, 0, out, 0, LONG_BYTES).unwrap();
        let ticket = batch.submit().unwrap();
        let cancel = stage.client.cancel_in_ring(&ticket).unwrap();
        let found = stage.client.wait(&cancel).is_ok();
        assert_eq!(stage.client.wait(&ticket).is_err(), found);
        assert!(stage.client.wait_released(&ticket, None).unwrap());
        stage.cancelled += u32::from(found);
    }),
];

#[test]
fn a_warm_engine_and_its_client_allocate_nothing_per_batch() {
    let engine = Engine::new(&Config { workers: 1, ..Config::default() }).unwrap().start().unwrap();
    let setup = Setup { notifications: true, ..Setup::default() };
    let client = Client::over(engine.connect().unwrap(), &setup).unwrap();
    let owner = Owner::over(engine.connect().unwrap(), &owner::Setup::default()).unwrap();
    let mut private = vec![0; LONG_BYTES as usize];
    // SAFETY: the memory is freed after what is lent of it, and not looked at before.
    let _lent = unsafe { owner.lend("private", private.as_mut_ptr(), LONG_BYTES, Rights::READ_WRITE) }.unwrap();
    let mut stage = Stage::new(client);
    assert!(
        counting::allocations() > counting::own_allocations() && counting::own_allocations() > 0,
        "the allocator does not count all threads"
    );
    let mut allocating = Vec::new();
    for (name, batch) in KINDS {
        (0..WARM_UP).for_each(|_| batch(&mut stage));
        let before = (counting::allocations(), counting::own_allocations());
        (0..BATCHES).for_each(|_| batch(&mut stage));
        let (all, own) = (counting::allocations() - before.0, counting::own_allocations() - before.1);
        if all > 0 {
            allocating.push(format!("{name}: {own} by the client, {} by the engine", all - own));
        }
    }
    assert_eq!(allocating, Vec::<String>::new(), "allocations in {BATCHES} batches");
    assert!(stage.cancelled > 0, "no cancel came in time");
}

impl Memory {
    /// The packed table's rows in the order of the index.
    fn rows(&self) -> Rows<'_> {
        Rows::new(&self.table, ROW_BYTES, &self.index, ROWS, &self.out)
    }
}

impl Stage {
    fn new(client: Client) -> Stage {
        let (table, out) = (client.allocate(LONG_BYTES).unwrap(), client.allocate(LONG_BYTES).unwrap());
        let index = client.allocate(8 * u64::from(ROWS)).unwrap();
        let lent = client.open("private", Rights::READ_WRITE).unwrap();
        let numbers: Vec<u32> = (0..ROWS).map(|i| i * 7919 % ROWS).collect();
        let with_missing = numbers.iter().map(|number| if number % 5 == 0 { u32::MAX } else { *number });
        let bytes: Vec<u8> = numbers.iter().copied().chain(with_missing).flat_map(u32::to_le_bytes).collect();
        index.write_at(0, &bytes).unwrap();
        Stage { client, memory: Arc::new(Memory { table, out, index, lent }), numbers, cancelled: 0 }
    }

    fn succeed(&mut self, describe: impl FnOnce(&mut Batch<'_>) -> Result<(), BatchError>) {
        self.run(describe).unwrap();
    }

    fn fail(&mut self, status: Status, describe: impl FnOnce(&mut Batch<'_>) -> Result<(), BatchError>) {
        assert_eq!(self.run(describe).unwrap_err().status, status);
    }

    fn run(&mut self, describe: impl FnOnce(&mut Batch<'_>) -> Result<(), BatchError>) -> Result<(), BatchError> {
        let mut batch = self.client.batch();
        describe(&mut batch)?;
        let ticket = batch.submit()?;
        self.client.wait(&ticket).map(drop)
    }
}

fn range(src: &Region, dst: &Region, len: u32) -> Descriptor {
    Descriptor {
        opcode: Opcode::READ.0,
        len,
        src_region: src.handle().0,
        dst_region: dst.handle().0,
        count: 1,
        ..Descriptor::ZERO
    }
}
