//! Writes a tile of a matrix into the middle of another one. Argument: the socket of `scatter-ring serve`.

use scatter_ring::client::{Client, Tile};

/// Both matrices: 64 rows of 512 bytes.
const ROWS: u32 = 64;
const ROW_BYTES: u32 = 512;

/// The tile: 128 bytes of each row, from column 32 here to column 192 there.
const TILE_BYTES: u32 = 128;
const FROM: u64 = 32;
const TO: u64 = 192;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = std::env::args_os().nth(1).ok_or("usage: write_tiles SOCKET")?;
    let mut client = Client::attach(&socket)?;
    let matrix_bytes = (ROWS * ROW_BYTES) as usize;
    let (mine, other) = (client.allocate(matrix_bytes as u64)?, client.allocate(matrix_bytes as u64)?);
    let before: Vec<u8> = (0..matrix_bytes).map(|i| (i % 251) as u8).collect();
    mine.write_at(0, &before)?;

    // One descriptor for all pieces. A batch can have any number of them.
    let tile = Tile {
        src: &mine,
        src_offset: FROM,
        src_stride: ROW_BYTES,
        dst: &other,
        dst_offset: TO,
        dst_stride: ROW_BYTES,
        len: TILE_BYTES,
        count: ROWS,
    };
    let mut batch = client.batch();
    batch.write_tile(&tile)?;
    let ticket = batch.submit()?;
    let outcome = client.wait(&ticket)?;

    let mut expected = vec![0; matrix_bytes];
    for row in (0..matrix_bytes).step_by(ROW_BYTES as usize) {
        let (from, to) = (row + FROM as usize, row + TO as usize);
        expected[to..to + TILE_BYTES as usize].copy_from_slice(&before[from..from + TILE_BYTES as usize]);
    }
    let mut got = vec![0; matrix_bytes];
    other.read_at(0, &mut got)?;
    if got != expected {
        return Err("the tile is not where it belongs, or something else has changed".into());
    }
    println!("{ROWS} pieces, {} bytes, verified", outcome.bytes);
    Ok(())
}
