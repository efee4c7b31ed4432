//! Tables, lists of rows, and `scatter-ring read` run on them, for `read.rs` and `read_refused.rs`.
//!
//! The files of NumPy and of safetensors are made here by hand, and not with the crates that the command uses.

// Each test file that shares this module uses another part of it.
#![allow(dead_code)]

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Rows of the table of most tests, 24 bytes each: six floats, or two by three of them.
pub const ROWS: usize = 1000;
pub const ROW_BYTES: usize = 24;
/// Not in order, and some of them twice.
pub const NUMBERS: [u64; 9] = [7, 999, 0, 7, 500, 499, 0, 7, 998];

/// A directory for the files of a test, and the command run in it.
pub struct Place(pub tempfile::TempDir);

impl Place {
    pub fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn put(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    pub fn read(&self, args: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_scatter-ring"));
        command.arg("read").args(args.split_whitespace()).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    /// Runs it successfully, and returns what it says on standard error.
    pub fn reads(&self, args: &str) -> String {
        let output = self.read(args).output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.success(), "{args}: {said}");
        said
    }

    /// Asserts that it fails so and says all of this, and that the output `out.bin` or `out.npy` is not there, nor a part
    /// of it.
    pub fn fails(&self, args: &str, code: i32, parts: &[&str]) {
        let output = self.read(args).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args}: {said}");
        for part in parts {
            assert!(said.contains(part), "{args}: {part:?} is not in {said}");
        }
        self.has_no_output(args);
    }

    pub fn has_no_output(&self, what: &str) {
        let names = std::fs::read_dir(self.0.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let left: Vec<String> = names.filter(|name| name.contains("out.")).collect();
        assert!(left.is_empty(), "{what}: {left:?}");
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Bytes that tell where they are.
pub fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u64 / 4).flat_map(|i| (i as u32).wrapping_mul(0x9E37_79B9).to_le_bytes()).collect()
}

pub fn rows_of(table: &[u8], numbers: &[u64], row_bytes: usize) -> Vec<u8> {
    numbers.iter().flat_map(|row| table[*row as usize * row_bytes..][..row_bytes].iter().copied()).collect()
}

pub fn expected() -> Vec<u8> {
    rows_of(&pattern(ROWS * ROW_BYTES), &NUMBERS, ROW_BYTES)
}

pub fn npy(descr: &str, shape: &str, fortran: bool, data: &[u8]) -> Vec<u8> {
    let fortran = if fortran { "True" } else { "False" };
    let dict = format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}");
    let len = (10 + dict.len() + 1).next_multiple_of(64) - 10;
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((len as u16).to_le_bytes());
    file.extend(format!("{dict:<width$}\n", width = len - 1).as_bytes());
    file.extend(data);
    file
}

/// A file with these tensors: name, type, shape, data.
pub fn safetensors(tensors: &[(&str, &str, &str, &[u8])]) -> Vec<u8> {
    let mut at = 0;
    let mut entries = vec![r#""__metadata__":{"format":"pt"}"#.to_owned()];
    for (name, dtype, shape, data) in tensors {
        let end = at + data.len();
        entries.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{at},{end}]}}"#));
        at = end;
    }
    let header = format!("{{{}}}", entries.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    tensors.iter().for_each(|tensor| file.extend(tensor.3));
    file
}

pub fn lines(numbers: &[u64]) -> String {
    numbers.iter().map(|number| format!("{number}\n")).collect()
}

pub fn little<const N: usize>(bytes: impl Fn(u64) -> [u8; N]) -> Vec<u8> {
    NUMBERS.iter().flat_map(|number| bytes(*number)).collect()
}

/// All tables in all formats with the same rows, and the row numbers in all formats.
pub fn all_formats() -> Place {
    let place = Place::new();
    let data = pattern(ROWS * ROW_BYTES);
    place.put("table.bin", &data);
    place.put("with-header.bin", [&b"skipped"[..], &data].concat());
    place.put("table.npy", npy("'<f4'", "(1000, 2, 3)", false, &data));
    let others = ("bias", "F32", "[6]", &data[..24]);
    place.put("table.safetensors", safetensors(&[others, ("weight", "F32", "[1000,6]", &data)]));
    place.put("rows.txt", lines(&NUMBERS));
    place.put("rows.u32", little(|n| (n as u32).to_le_bytes()));
    place.put("rows.u64", little(u64::to_le_bytes));
    place.put("rows.npy", npy("'<i8'", "(3, 3)", false, &little(u64::to_le_bytes)));
    place
}
