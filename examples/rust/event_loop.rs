//! Awaits batches in an event loop that has something else to do meanwhile. Argument: the socket of `scatter-ring serve`.
//!
//! The loop is tokio's; any other one does.

use scatter_ring::client::{AsyncClient, BatchError, Client, Rows, Transfer};
use std::cell::Cell;
use std::error::Error;
use std::time::Duration;

const BATCHES: u64 = 100;
const ROWS: u32 = 32;
const ROW_BYTES: u32 = 264;

fn main() -> Result<(), Box<dyn Error>> {
    let socket = std::env::args_os().nth(1).ok_or("usage: event_loop SOCKET")?;
    let client = AsyncClient::new(Client::attach(&socket)?)?;
    let transfers = client.with(describe)??;
    let transfers: Vec<Transfer> = transfers.into_iter().map(|ticket| client.transfer(ticket)).collect();

    let ticks = Cell::new(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let bytes = runtime.block_on(async {
        tokio::select! {
            bytes = all(transfers, &ticks) => bytes,
            () = heartbeat(&ticks) => unreachable!("it beats for ever"),
        }
    })?;
    if bytes != BATCHES * u64::from(ROWS * ROW_BYTES) {
        return Err(format!("{bytes} bytes have arrived").into());
    }
    println!("{BATCHES} batches, {} rows, heartbeat went on", BATCHES * u64::from(ROWS));
    Ok(())
}

/// Submits all batches. Each has its own part of `out` and its own row numbers.
fn describe(client: &mut Client) -> Result<Vec<scatter_ring::client::Ticket>, Box<dyn Error>> {
    let table = client.allocate(1_000 * u64::from(ROW_BYTES))?;
    let out = client.allocate(BATCHES * u64::from(ROWS * ROW_BYTES))?;
    let index = client.allocate(BATCHES * u64::from(ROWS) * 4)?;
    let numbers: Vec<u8> = (0..BATCHES as u32 * ROWS).flat_map(|i| (i * 7 % 1_000).to_le_bytes()).collect();
    index.write_at(0, &numbers)?;
    let mut tickets = Vec::new();
    for number in 0..BATCHES {
        let rows = Rows {
            index_offset: number * u64::from(ROWS) * 4,
            buffer_offset: number * u64::from(ROWS * ROW_BYTES),
            ..Rows::new(&table, ROW_BYTES, &index, ROWS, &out)
        };
        let mut batch = client.batch();
        batch.read_rows(&rows)?;
        tickets.push(batch.submit()?);
    }
    Ok(tickets)
}

/// Awaits one after the other; they are all under way. Then one more beat of the other task.
async fn all(transfers: Vec<Transfer>, ticks: &Cell<u64>) -> Result<u64, BatchError> {
    let mut bytes = 0;
    for transfer in transfers {
        bytes += transfer.await?.bytes;
    }
    let before = ticks.get();
    while ticks.get() == before {
        tokio::task::yield_now().await;
    }
    Ok(bytes)
}

async fn heartbeat(ticks: &Cell<u64>) {
    loop {
        ticks.set(ticks.get() + 1);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
