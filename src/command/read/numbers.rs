//! Lists of row numbers.

use super::super::Failure;
use super::{file, npy};
use clap::ValueEnum;
use npyz::{DType, NpyFile, Order, TypeChar};
use std::fmt::Display;
use std::io::Read;
use std::path::Path;

/// How a list of row numbers is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Decimal numbers with white space between them
    Text,
    /// A NumPy array of integers
    Npy,
    /// Raw little-endian numbers of 4 bytes
    U32,
    /// Raw little-endian numbers of 8 bytes
    U64,
}

/// All numbers of a list; `-` is standard input. `format`: `None` is by the extension.
pub fn read(path: &Path, format: Option<Format>) -> Result<Vec<u64>, Failure> {
    let failed = file::failed("reading the row numbers", path);
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().read_to_end(&mut bytes).map_err(failed)?;
    } else {
        bytes = std::fs::read(path).map_err(failed)?;
    }
    let by_name = if npy::is_npy(path) { Format::Npy } else { Format::Text };
    let numbers = match format.unwrap_or(by_name) {
        Format::Text => of_text(bytes),
        Format::Npy => of_npy(&bytes),
        Format::U32 => of_raw(&bytes, |number: [u8; 4]| u32::from_le_bytes(number).into()),
        Format::U64 => of_raw(&bytes, u64::from_le_bytes),
    };
    numbers.map_err(|why| Failure::run(format!("{}: {why}", path.display())))
}

fn of_text(bytes: Vec<u8>) -> Result<Vec<u64>, String> {
    let Ok(text) = String::from_utf8(bytes) else {
        return Err("not text: for raw numbers give --rows-format u32 or u64".to_owned());
    };
    let number = |(position, word): (usize, &str)| {
        let not_one = |_| format!("'{word}' at position {position} is not a row number");
        word.parse().map_err(not_one)
    };
    text.split_ascii_whitespace().enumerate().map(number).collect()
}

fn of_raw<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> u64) -> Result<Vec<u64>, String> {
    let (numbers, rest) = bytes.as_chunks::<N>();
    if !rest.is_empty() {
        return Err(format!("{} bytes are not a number of row numbers of {N} bytes", bytes.len()));
    }
    Ok(numbers.iter().map(|bytes| number(*bytes)).collect())
}

fn of_npy(mut bytes: &[u8]) -> Result<Vec<u64>, String> {
    let array = NpyFile::with_header(npy::read_header(&mut bytes)?, bytes);
    if array.order() == Order::Fortran && array.shape().len() > 1 {
        return Err("the row numbers are in Fortran order: save them again with numpy.ascontiguousarray".to_owned());
    }
    let dtype = array.dtype();
    let DType::Plain(element) = &dtype else { return Err(not_integers(&dtype)) };
    match (element.type_char(), element.size_field()) {
        (TypeChar::Uint, 1) => elements::<u8>(array),
        (TypeChar::Uint, 2) => elements::<u16>(array),
        (TypeChar::Uint, 4) => elements::<u32>(array),
        (TypeChar::Uint, 8) => elements::<u64>(array),
        (TypeChar::Int, 1) => elements::<i8>(array),
        (TypeChar::Int, 2) => elements::<i16>(array),
        (TypeChar::Int, 4) => elements::<i32>(array),
        (TypeChar::Int, 8) => elements::<i64>(array),
        _ => Err(not_integers(&dtype)),
    }
}

fn not_integers(dtype: &DType) -> String {
    format!("row numbers must be integers, and these are {}", dtype.descr())
}

fn elements<T: npyz::Deserialize + TryInto<u64> + Copy + Display>(array: NpyFile<&[u8]>) -> Result<Vec<u64>, String> {
    let elements = array.data::<T>().map_err(|e| e.to_string())?;
    let number = |(position, element): (usize, std::io::Result<T>)| {
        let element = element.map_err(|e| format!("cut short at position {position}: {e}"))?;
        element.try_into().map_err(|_| format!("row number {element} at position {position} is negative"))
    };
    elements.enumerate().map(number).collect()
}
