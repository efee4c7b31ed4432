//! Errors that name the file.

use super::super::Failure;
use std::io;
use std::path::Path;

/// Turns an error of the kernel into a sentence with what was tried, and with which file.
pub fn failed(doing: &str, path: &Path) -> impl Fn(io::Error) -> Failure {
    let what = format!("{doing} {}", path.display());
    move |error| Failure::run(format!("{what}: {error}"))
}
