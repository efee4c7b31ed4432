//! The keys that engines share, and the file they are in.

use super::mac::{self, Use};
use rustix::fs::{FileType, Mode, OFlags};
use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// One key, or two while keys are being changed: a responder takes either, an initiator means the first and then the
/// second. To change keys, add the new one to every engine's file as the second line, then make it the first, then
/// remove the old one. [`make_key_file`] makes a key, and so does `openssl rand -hex 32`.
#[derive(Debug)]
pub struct Keys {
    keys: [Option<Key>; 2],
}

/// A key. Its memory is cleared when it is dropped, and it never shows itself.
pub struct Key {
    secret: Zeroizing<[u8; KEY_BYTES]>,
    id: KeyId,
}

/// Names a key without telling anything of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyId(pub [u8; 16]);

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file is not one that a key may be in.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A line is not a key.
    #[error("{path}, line {line}: {reason}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The kernel refused.
    #[error("{path}: {source}")]
    System {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Writes a new key into a new file with mode 0600, and gives its name.
///
/// # Errors
/// The file exists already or cannot be written, or the system has no random numbers.
pub fn make_key_file(path: &Path) -> Result<KeyId, KeyError> {
    let system = |source: io::Error| KeyError::System { path: path.to_owned(), source };
    let mut secret = Zeroizing::new([0; KEY_BYTES]);
    getrandom::fill(&mut *secret).map_err(|error| system(error.into()))?;
    // One that is there may be in use by other engines.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| system(errno.into()))?;
    let mut line = Zeroizing::new([b'\n'; 2 * KEY_BYTES + 1]);
    for (pair, byte) in line.chunks_exact_mut(2).zip(&*secret) {
        let digit = |value: u8| b"0123456789abcdef"[usize::from(value & 15)];
        pair.copy_from_slice(&[digit(byte >> 4), digit(*byte)]);
    }
    std::fs::File::from(file).write_all(&*line).map_err(system)?;
    Ok(Key::new(&secret).id())
}

impl Keys {
    /// Reads a key file: one key a line, at most two, each 64 hexadecimal digits or 32 bytes in base 64; comments from
    /// `#`.
    ///
    /// # Errors
    /// A file that is not regular, belongs to somebody other than this user or root, or is open to group or others; a
    /// line that is not a key.
    pub fn read(path: &Path) -> Result<Keys, KeyError> {
        let text = read_private(path)?;
        Keys::parse(&text).map_err(|(line, reason)| match line {
            0 => KeyError::File { path: path.to_owned(), reason },
            line => KeyError::Line { path: path.to_owned(), line, reason },
        })
    }

    /// Keys that the caller has from elsewhere.
    #[must_use]
    pub fn new(first: Key, second: Option<Key>) -> Keys {
        Keys { keys: [Some(first), second] }
    }

    /// The key that an initiator means at its first try, `0`, or its second, `1`.
    pub(super) fn nth(&self, n: usize) -> Option<&Key> {
        self.keys.get(n)?.as_ref()
    }

    /// The key of that name.
    pub(super) fn find(&self, id: KeyId) -> Option<&Key> {
        self.keys.iter().flatten().find(|key| key.id == id)
    }

    /// The line, or 0 for the file as a whole, and what is wrong.
    fn parse(text: &[u8]) -> Result<Keys, (usize, &'static str)> {
        let mut keys = [None, None];
        for (n, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.split(|byte| *byte == b'#').next().unwrap_or_default().trim_ascii();
            if line.is_empty() {
                continue;
            }
            let wrong = |reason| (n + 1, reason);
            let key = Key::parse(line).map_err(wrong)?;
            if keys.iter().flatten().any(|known: &Key| known.id == key.id) {
                return Err(wrong("the same key again"));
            }
            match keys.iter_mut().find(|place| place.is_none()) {
                Some(place) => *place = Some(key),
                None => return Err(wrong("a third key; there are two at most")),
            }
        }
        match keys {
            [None, _] => Err((0, "no key in it; `openssl rand -hex 32` makes one")),
            keys => Ok(Keys { keys }),
        }
    }
}

impl Key {
    /// A key of 32 random bytes.
    #[must_use]
    pub fn new(secret: &[u8; KEY_BYTES]) -> Key {
        let mut id = KeyId([0; 16]);
        id.0.copy_from_slice(&mac::make(secret, Use::KeyId, &[])[..16]);
        Key { secret: Zeroizing::new(*secret), id }
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    pub(super) fn secret(&self) -> &[u8; KEY_BYTES] {
        &self.secret
    }

    fn parse(line: &[u8]) -> Result<Key, &'static str> {
        let mut secret = Zeroizing::new([0; KEY_BYTES]);
        let is_key = match line.len() {
            64 => hexadecimal(line, &mut secret),
            43 => super::base64::decode(line, super::base64::STANDARD, &mut *secret) == Some(KEY_BYTES),
            44 if line[43] == b'=' => {
                super::base64::decode(&line[..43], super::base64::STANDARD, &mut *secret) == Some(KEY_BYTES)
            }
            _ => false,
        };
        if !is_key {
            return Err("not a key: 64 hexadecimal digits, or 32 bytes in base 64");
        }
        if secret.iter().all(|byte| *byte == secret[0]) {
            return Err("not random: all bytes are the same; `openssl rand -hex 32` makes a key");
        }
        Ok(Key::new(&secret))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish_non_exhaustive()
    }
}

fn hexadecimal(line: &[u8], secret: &mut [u8; KEY_BYTES]) -> bool {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    line.chunks_exact(2).zip(secret).all(|(pair, byte)| match (digit(pair[0]), digit(pair[1])) {
        (Some(high), Some(low)) => {
            *byte = high << 4 | low;
            true
        }
        _ => false,
    })
}

/// The bytes of a file that nobody else can read. What is looked at is what was opened.
fn read_private(path: &Path) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let wrong = |reason| KeyError::File { path: path.to_owned(), reason };
    let system = |source: io::Error| KeyError::System { path: path.to_owned(), source };
    // A pipe would hold the open up without NONBLOCK.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| system(errno.into()))?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| system(errno.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(wrong("is not a regular file"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() && stat.st_uid != 0 {
        return Err(wrong("belongs to another user"));
    }
    if stat.st_mode & 0o077 != 0 {
        return Err(wrong("is open to its group or to others; chmod 600 closes it"));
    }
    // Of full size from the start: a vector that grows leaves copies behind.
    let mut text = Zeroizing::new(vec![0; FILE_BYTES_MAX + 1]);
    let mut file = std::fs::File::from(file);
    let mut len = 0;
    loop {
        match file.read(&mut text[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(system(error)),
        }
    }
    if len > FILE_BYTES_MAX {
        return Err(wrong("is longer than a key file can be (4 KiB)"));
    }
    text.truncate(len);
    Ok(text)
}

const FILE_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1F";
    const BASE64: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    #[test]
    fn the_two_ways_to_write_a_key_and_comments_are_read() {
        let keys = Keys::parse(format!("# both\n\n  {HEX} # old\r\n").as_bytes()).unwrap();
        assert_eq!(*keys.nth(0).unwrap().secret(), std::array::from_fn(|n| n as u8));
        assert!(keys.nth(1).is_none() && keys.nth(2).is_none());
        for text in [BASE64, &BASE64[..43]] {
            assert_eq!(Keys::parse(text.as_bytes()).unwrap().nth(0).unwrap().id(), keys.nth(0).unwrap().id());
        }
    }

    #[test]
    fn a_wrong_line_is_named_and_not_shown() {
        let other = HEX.replace("00", "77");
        for (text, line) in [
            (String::new(), 0),
            ("# nothing\n".into(), 0),
            (format!("\n{}", &HEX[1..]), 2),
            (format!("{HEX}0"), 1),
            (HEX.replace('a', "g"), 1),
            (BASE64.replace("h8=", "h9="), 1),
            ("0".repeat(64), 1),
            (format!("{HEX}\n{BASE64}"), 2),
            (format!("{HEX}\n{other}\n{}", HEX.replace("01", "88")), 3),
        ] {
            assert_eq!(Keys::parse(text.as_bytes()).unwrap_err().0, line, "{text}");
        }
        let shown = format!("{:?}", Keys::parse(format!("{HEX}\n{other}").as_bytes()).unwrap());
        assert!(!shown.contains("1e1F") && !shown.contains("30, 31") && !shown.contains("119"), "{shown}");
    }

    #[test]
    fn a_key_that_was_made_is_read_by_its_maker_alone_and_is_never_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("key"), folder.path().join("other"));
        let id = make_key_file(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Keys::read(&path).unwrap().nth(0).unwrap().id(), id);
        assert!(make_key_file(&path).unwrap_err().to_string().contains("exists"));
        assert_ne!(make_key_file(&other).unwrap(), id);
    }

    #[test]
    fn only_a_private_regular_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, HEX).unwrap();
        for (mode, is_private) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o610, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Keys::read(&path).is_ok(), is_private, "{mode:o}");
        }
        let fifo = folder.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR).unwrap();
        for other in [folder.path(), &fifo, Path::new("/dev/null"), &folder.path().join("absent")] {
            assert!(Keys::read(other).is_err(), "{other:?}");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, format!("{HEX}\n#{}", " ".repeat(5000))).unwrap();
        assert!(Keys::read(&path).unwrap_err().to_string().contains("longer"));
    }
}
