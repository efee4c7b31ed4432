//! The headers of NumPy's files.

use super::table::RowType;
use npyz::{NpyHeader, WriterBuilder};
use std::io::Read;
use std::path::Path;

/// What is read of a header at most: real ones have a few hundred bytes.
const HEADER_BYTES_MAX: u64 = 64 << 10;

/// True if a file is one of NumPy's by its name.
pub fn is_npy(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "npy")
}

/// Reads a header and nothing behind it. The product of its dimensions does not overflow.
pub fn read_header(file: impl Read) -> Result<NpyHeader, String> {
    let header = NpyHeader::from_reader(file.take(HEADER_BYTES_MAX)).map_err(|e| {
        let error = e.to_string();
        // The lines behind the first one repeat the whole header.
        format!("not a .npy file that can be read: {}", error.lines().next().unwrap_or_default().trim_end())
    })?;
    // The crate multiplies without looking.
    match header.shape().iter().try_fold(1u64, |product, n| product.checked_mul(*n)) {
        Some(_) => Ok(header),
        None => Err(format!("not a .npy file that can be read: a shape of {:?}", header.shape())),
    }
}

/// What stands before the data of a file with so many rows.
pub fn header(row: &RowType, rows: u64) -> std::io::Result<Vec<u8>> {
    let shape: Vec<u64> = [rows].into_iter().chain(row.shape.iter().copied()).collect();
    let mut header = Vec::new();
    npyz::WriteOptions::new_header_only()
        .dtype(row.dtype.clone())
        .shape(&shape)
        .writer(&mut header)
        .write_header_only()?;
    Ok(header)
}
