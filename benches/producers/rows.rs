//! What reading the rows of W1 takes with the Rust client, to be compared with `rows.py` in the same run. Argument: the socket
//! of `scatter-ring serve`. Prints one line of JSON; times are medians in nanoseconds.

use scatter_ring::client::{Client, Rows};
use std::error::Error;
use std::time::Instant;

const ROWS: u32 = 98_304;
const ROW_BYTES: u32 = 264;
const TABLE_BYTES: u64 = 256 << 20;
const REPEAT: usize = 51;

fn main() -> Result<(), Box<dyn Error>> {
    let socket = std::env::args_os().nth(1).ok_or("usage: rows SOCKET")?;
    let mut client = Client::attach(&socket)?;
    let table = client.allocate(TABLE_BYTES)?;
    let out = client.allocate(u64::from(ROWS * ROW_BYTES))?;
    let numbers = numbers(TABLE_BYTES / u64::from(ROW_BYTES));
    let index = client.allocate(4 * u64::from(ROWS))?;
    index.write_at(0, &numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>())?;

    let copied = median_ns(|| {
        client.read_rows(&table, ROW_BYTES, &numbers, &out, 0)?;
        Ok(())
    })?;
    let in_place = median_ns(|| {
        let mut batch = client.batch();
        batch.read_rows(&Rows::new(&table, ROW_BYTES, &index, ROWS, &out))?;
        let ticket = batch.submit()?;
        client.wait(&ticket)?;
        Ok(())
    })?;
    println!(
        "{{\"client\": \"rust\", \"rows\": {ROWS}, \"row_bytes\": {ROW_BYTES}, \"read_rows_p50_ns\": {copied}, \
         \"read_rows_in_place_p50_ns\": {in_place}}}"
    );
    Ok(())
}

/// Rows at random (splitmix64).
fn numbers(table_rows: u64) -> Vec<u32> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    (0..ROWS).map(|_| (next() % table_rows) as u32).collect()
}

fn median_ns(mut action: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<u128, Box<dyn Error>> {
    let mut times = Vec::new();
    for _ in 0..REPEAT {
        let start = Instant::now();
        action()?;
        times.push(start.elapsed().as_nanos());
    }
    times.sort();
    Ok(times[REPEAT / 2])
}
