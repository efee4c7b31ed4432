//! Errors that name the file.

use super::Failure;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;

/// Turns an error of the kernel into a sentence with what was tried, and with which file.
pub fn failed(doing: &str, path: &Path) -> impl Fn(io::Error) -> Failure {
    let what = format!("{doing} {}", path.display());
    move |error| Failure::run(format!("{what}: {error}"))
}

/// Finds out whether a file can be written, before the work whose outcome it is to hold. One that is there keeps its
/// contents.
pub fn try_to_write(path: &Path) -> Result<(), Failure> {
    let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    opened.map(drop).map_err(failed("writing", path))
}

/// Writes a whole file.
pub fn write(path: &Path, contents: &str) -> Result<(), Failure> {
    std::fs::write(path, contents).map_err(failed("writing", path))
}
