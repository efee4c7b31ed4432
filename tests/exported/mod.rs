//! Clients of two engines of this process, and a table with known bytes that one of them exports.

use scatter_ring::client::{BatchError, Client, Peer, Region, Setup};
use scatter_ring::engine::RunningEngine;
use scatter_ring::region::Rights;

pub const ROW: u64 = 264;
pub const ROWS: u64 = 4000;
pub const BYTES: u64 = ROW * ROWS;

pub fn client(engine: &RunningEngine) -> Client {
    Client::over(engine.connect().unwrap(), &Setup::default()).unwrap()
}

pub fn connect(client: &Client, other: &RunningEngine) -> Peer {
    client.connect(&other.endpoint().unwrap().to_string()).unwrap()
}

/// Byte `i` of a table.
fn byte(i: u64) -> u8 {
    (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

pub fn bytes(from: u64, len: u64) -> Vec<u8> {
    (from..from + len).map(byte).collect()
}

/// A table that a client exports as long as it is kept, with known bytes.
pub fn exported(client: &Client, name: &str, rights: Rights) -> Region {
    let table = client.allocate(BYTES).unwrap();
    table.write_at(0, &bytes(0, BYTES)).unwrap();
    client.export(&table, name, rights).unwrap();
    table
}

/// Rows by number, in batches of one descriptor.
pub fn rows(client: &mut Client, table: &Region, numbers: &[u32]) -> Result<Vec<u8>, BatchError> {
    let out = client.allocate(ROW * numbers.len() as u64).unwrap();
    client.read_rows(table, ROW as u32, numbers, &out, 0)?;
    let mut got = vec![0; ROW as usize * numbers.len()];
    out.read_at(0, &mut got).unwrap();
    Ok(got)
}

pub fn is_right(client: &mut Client, table: &Region) -> bool {
    let numbers: Vec<u32> = (0..300).map(|i| (i * 997) % ROWS as u32).collect();
    let expected: Vec<u8> = numbers.iter().flat_map(|n| bytes(u64::from(*n) * ROW, ROW)).collect();
    rows(client, table, &numbers).unwrap() == expected
}
