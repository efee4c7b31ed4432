//! The headers of NumPy's files.

use super::table::RowType;
use npyz::{NpyHeader, WriterBuilder};
use std::io::Read;
use std::path::Path;

/// What is read of a header at most: real ones have a few hundred bytes.
const HEADER_BYTES_MAX: u64 = 64 << 10;

/// The crate's parser takes twice as long for each level of brackets. Types of types of types have six.
const NESTING_MAX: usize = 10;

/// True if a file is one of NumPy's by its name.
pub fn is_npy(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "npy")
}

/// Reads a header and nothing behind it. The product of its dimensions does not overflow.
pub fn read_header(file: impl Read) -> Result<NpyHeader, String> {
    let bytes = header_bytes(&mut file.take(HEADER_BYTES_MAX))
        .map_err(|error| format!("not a .npy file that can be read: {error}"))?;
    if nesting(&bytes) > NESTING_MAX {
        return Err("not a .npy file that can be read: its type is nested too deep".to_owned());
    }
    let header = NpyHeader::from_reader(&bytes[..]).map_err(|e| {
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

/// The bytes of a header: magic and version, its length, as much text (NumPy's format, versions 1 to 3). What does not
/// begin so is for the crate to refuse.
fn header_bytes(file: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; 10];
    file.read_exact(&mut bytes)?;
    let mut text_bytes = u64::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    if bytes[6] > 1 {
        let mut high = [0; 2];
        file.read_exact(&mut high)?;
        bytes.extend(high);
        text_bytes |= u64::from(u16::from_le_bytes(high)) << 16;
    }
    file.take(text_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// How deep brackets are nested at most, those in quotes included.
fn nesting(text: &[u8]) -> usize {
    let (mut depth, mut most) = (0usize, 0);
    for byte in text {
        match byte {
            b'[' | b'(' | b'{' => depth += 1,
            b']' | b')' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        most = most.max(depth);
    }
    most
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
