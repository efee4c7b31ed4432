//! What lanes say to each other by sends: a header, perhaps the key of a grant, and the bytes of a message. All numbers
//! are little-endian.
//!
//! ```text
//! header, 16 bytes: kind u8, credits u8, 0 u16, length u32, asked u32, acknowledged u32
//! key, 32 bytes:    grant u64, address u64, bytes u64, remote key u32, rights u32
//! message, `length` bytes
//! ```
//!
//! Every frame gives credits back: receive buffers that the sender of this frame has filled again. `asked` is a number that
//! the other side is to acknowledge once it has this frame, because then it has all writes before it; 0: nothing is asked.
//! `acknowledged` is the last such number that has come from the other side.

use super::super::{GrantId, MESSAGE_BYTES_MAX, Violation};
use super::there::Key;

pub(super) const HEADER_BYTES: usize = 16;
pub(super) const KEY_BYTES: usize = 32;
/// The longest frame, and the length of every buffer. Buffers begin with a page: see `job::SHORT_BYTES`.
pub(super) const FRAME_BYTES_MAX: usize = (HEADER_BYTES + KEY_BYTES + MESSAGE_BYTES_MAX).next_multiple_of(4096);

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only what every header has.
    Bare = 1,
    /// A message.
    Message = 2,
    /// A message, and the key of a grant that it names.
    Keyed = 3,
}

/// The head of a frame, and where its message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub credits: u8,
    pub asked: u32,
    pub acknowledged: u32,
    pub key: Option<Key>,
    /// `None`: a bare frame.
    pub message: Option<&'a [u8]>,
}

impl Frame<'_> {
    /// Writes the frame into `bytes`, which it clears before.
    pub fn write(&self, bytes: &mut Vec<u8>) {
        let message = self.message.unwrap_or_default();
        let kind = match (self.message, self.key) {
            (None, _) => Kind::Bare,
            (Some(_), None) => Kind::Message,
            (Some(_), Some(_)) => Kind::Keyed,
        };
        bytes.clear();
        bytes.extend_from_slice(&[kind as u8, self.credits, 0, 0]);
        [message.len() as u32, self.asked, self.acknowledged]
            .iter()
            .for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        if let (Some(_), Some(key)) = (self.message, self.key) {
            [key.grant.0, key.address, key.bytes].iter().for_each(|long| bytes.extend_from_slice(&long.to_le_bytes()));
            [key.remote_key, u32::from(key.is_usable)]
                .iter()
                .for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        }
        bytes.extend_from_slice(message);
    }

    /// The frame that these bytes are, all of them.
    ///
    /// # Errors
    /// What [`write`](Self::write) does not write.
    pub fn read(bytes: &[u8]) -> Result<Frame<'_>, Violation> {
        let short = Violation("a frame that ends too early");
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES).ok_or(short)?;
        let (length, asked, acknowledged) = (word(header, 4), word(header, 8), word(header, 12));
        if header[2..4] != [0, 0] {
            return Err(Violation("a header with unknown bits"));
        }
        let (key, message) = match header[0] {
            kind if kind == Kind::Bare as u8 => (None, None),
            kind if kind == Kind::Message as u8 => (None, Some(rest)),
            kind if kind == Kind::Keyed as u8 => {
                let (key, message) = rest.split_at_checked(KEY_BYTES).ok_or(short)?;
                (Some(read_key(key)?), Some(message))
            }
            _ => return Err(Violation("an unknown frame")),
        };
        let is_whole = message.map_or(rest.len() as u32 == length && length == 0, |m| m.len() as u32 == length);
        if !is_whole || length as usize > MESSAGE_BYTES_MAX {
            return Err(Violation("a frame that is not as long as it says"));
        }
        Ok(Frame { credits: header[1], asked, acknowledged, key, message })
    }
}

fn read_key(bytes: &[u8]) -> Result<Key, Violation> {
    let (grant, address, length) = (GrantId(long(bytes, 0)), long(bytes, 8), long(bytes, 16));
    let is_usable = match word(bytes, 28) {
        0 => false,
        1 => true,
        _ => return Err(Violation("a key with unknown bits")),
    };
    if length == 0 || address.checked_add(length).is_none() {
        return Err(Violation("a key for memory that nobody has"));
    }
    Ok(Key { grant, address, bytes: length, remote_key: word(bytes, 24), is_usable })
}

/// The word at a place that the caller knows to be inside.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key { grant: GrantId(3 << 32 | 7), address: 0x7000, bytes: 4096, remote_key: 9, is_usable: true };
    const BARE: Frame<'_> = Frame { credits: 3, asked: 0, acknowledged: 8, key: None, message: None };

    fn written(frame: &Frame<'_>) -> Vec<u8> {
        let mut bytes = vec![7];
        frame.write(&mut bytes);
        bytes
    }

    #[test]
    fn a_frame_says_after_the_wire_what_it_said_before() {
        let message = Frame { asked: 5, message: Some(b"so"), ..BARE };
        let unusable = Key { is_usable: false, ..KEY };
        let frames = [
            BARE,
            message,
            Frame { message: Some(b""), ..BARE },
            Frame { key: Some(KEY), ..message },
            Frame { key: Some(unusable), ..message },
        ];
        for frame in frames {
            assert_eq!(Frame::read(&written(&frame)), Ok(frame));
        }
        let longest = vec![1; MESSAGE_BYTES_MAX];
        let longest = written(&Frame { key: Some(KEY), message: Some(&longest), ..BARE });
        assert!(longest.len() <= FRAME_BYTES_MAX && Frame::read(&longest).is_ok());
    }

    #[test]
    fn what_nobody_writes_is_refused_at_every_length() {
        let frame = written(&Frame { key: Some(KEY), message: Some(b"message"), ..BARE });
        (0..frame.len()).for_each(|end| assert!(Frame::read(&frame[..end]).is_err(), "cut at {end}"));
        assert!(Frame::read(&[&frame[..], &[0]].concat()).is_err(), "a byte more");
        assert!(Frame::read(&[&written(&BARE)[..], &[0]].concat()).is_err(), "a bare frame and a byte");
        let with = |at: usize, byte: u8| {
            let mut frame = frame.clone();
            frame[at] = byte;
            Frame::read(&frame).is_err()
        };
        // Kind; reserved bytes; length; the key's rights; a range that ends behind the end of all memory.
        assert!(with(0, 0) && with(0, 4) && with(2, 1) && with(3, 1) && with(4, 6) && with(7, 1) && with(16 + 28, 2));
        let no_memory = Key { bytes: 0, ..KEY };
        let wraps = Key { address: u64::MAX, ..KEY };
        for key in [no_memory, wraps] {
            assert!(Frame::read(&written(&Frame { key: Some(key), message: Some(b""), ..BARE })).is_err());
        }
        let long = vec![0; MESSAGE_BYTES_MAX + 1];
        assert!(Frame::read(&written(&Frame { message: Some(&long), ..BARE })).is_err());
    }
}
