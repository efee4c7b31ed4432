//! Reads scattered rows out of a table that this program exports itself. Argument: the socket of `scatter-ring serve`.

use scatter_ring::client::{Client, Region};
use scatter_ring::region::Rights;

const ROWS: u64 = 1_000;
const ROW_BYTES: u32 = 264;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = std::env::args_os().nth(1).ok_or("usage: read_rows SOCKET")?;

    // Whoever has the table: allocates it, fills it, and gives it a name.
    let owner = Client::attach(&socket)?;
    let table = owner.allocate(ROWS * u64::from(ROW_BYTES))?;
    for number in 0..ROWS {
        table.write_at(number * u64::from(ROW_BYTES), &row(number))?;
    }
    let name = format!("example-table-{}", std::process::id());
    owner.export(&table, &name, Rights::READ)?;

    // Whoever wants rows of it, in most cases another process: opens it by its name.
    let mut client = Client::attach(&socket)?;
    let table = client.open(&name, Rights::READ)?;
    let numbers = [7, 3, 999, 7];
    let out = client.allocate(numbers.len() as u64 * u64::from(ROW_BYTES))?;
    let outcome = client.read_rows(&table, ROW_BYTES, &numbers, &out, 0)?;

    verify(&out, &numbers)?;
    println!("{} rows, {} bytes, verified", numbers.len(), outcome.bytes);
    Ok(())
}

/// Byte `j` of row `i` is `i + j`.
fn row(number: u64) -> [u8; ROW_BYTES as usize] {
    std::array::from_fn(|j| (number + j as u64) as u8)
}

fn verify(out: &Region, numbers: &[u32]) -> Result<(), Box<dyn std::error::Error>> {
    for (place, number) in numbers.iter().enumerate() {
        let mut got = [0; ROW_BYTES as usize];
        out.read_at(place as u64 * u64::from(ROW_BYTES), &mut got)?;
        if got != row((*number).into()) {
            return Err(format!("row {number} is wrong at place {place}").into());
        }
    }
    Ok(())
}
