//! The file that the rows go to: under its name only when it is whole.

use super::super::Failure;
use super::file;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

pub struct Output {
    to: To,
    /// As it was given, for messages.
    name: PathBuf,
}

enum To {
    /// Standard output, a device, a pipe.
    Stream(File),
    /// A file beside the one that is to be.
    Beside(NamedTempFile, PathBuf),
}

impl Output {
    pub fn create(name: &Path) -> Result<Output, Failure> {
        let failed = file::failed("creating", name);
        let to = if is_stdout(name) {
            To::Stream(std::io::stdout().as_fd().try_clone_to_owned().map_err(failed)?.into())
        } else if name.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            To::Stream(OpenOptions::new().write(true).open(name).map_err(failed)?)
        } else {
            // What a link points to is replaced, and not the link.
            let path = name.canonicalize().unwrap_or_else(|_| name.to_owned());
            To::Beside(beside(&path).map_err(failed)?, path)
        };
        Ok(Output { to, name: name.to_owned() })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let mut file = match &self.to {
            To::Stream(file) => file,
            To::Beside(file, _) => file.as_file(),
        };
        file.write_all(bytes).map_err(file::failed("writing", &self.name))
    }

    /// Everything is written: puts the file under its name.
    pub fn finish(self) -> Result<(), Failure> {
        match self.to {
            To::Stream(_) => Ok(()),
            To::Beside(file, path) => {
                file.persist(path).map_err(|e| file::failed("putting into place", &self.name)(e.error))?;
                Ok(())
            }
        }
    }
}

pub fn is_stdout(name: &Path) -> bool {
    name == Path::new("-")
}

/// A file in the same directory, which is removed if this process does not get to its end: also by a signal.
fn beside(path: &Path) -> std::io::Result<NamedTempFile> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGXFSZ])?;
    let file = tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(".part")
        // As any new file: what the umask leaves of it.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory)?;
    let part = file.path().to_owned();
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // It is in place already, or nothing more can be done about it.
            let _ = std::fs::remove_file(part);
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
    Ok(file)
}
