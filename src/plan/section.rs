//! Sections, of which encoded lists are made.
//!
//! ```text
//!        0        1        2        3        4        5        6        7
//!  0 |  form  |        0 (3 bytes)       |              count               |
//!  8 |              region               |               len                |
//! 16 |                                base                                  |
//! 24 |               step                |           inner_count            |
//! 32 |            inner_step             |                0                 |
//! 40    payload, by the form:
//!       1 TILE   none     fragment i starts at base + i * step
//!       2 ROWS   u32      fragment i starts at base + word i * step
//!       3 MIXED  u32 u32  piece i starts at base + first word * step, its bytes are the second
//!       4 PLAIN  u64 u32  piece i starts at the first, its bytes are the second; 4 bytes of 0
//! ```
//!
//! A fragment of TILE and ROWS is `inner_count` pieces of `len` bytes, `inner_step` apart. MIXED and PLAIN have a `len` of
//! 0 and an `inner_count` of 1, PLAIN also a `base` and a `step` of 0. Bit 7 of the form says that there are zeros: with
//! it every piece of a TILE, else every fragment whose word or offset is all ones.

use super::decoder::Refusal;
use ring_abi::Status;

/// Some pieces of one region, out of a list. Its header and the lengths are checked; its offsets are checked as they are
/// read.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    pub(super) header: Header,
    pub(super) payload: &'a [u8],
    /// Bytes of the region that may be touched.
    pub(super) granted: u64,
    /// How many numbers, from 0, a fragment may have.
    pub(super) fits: u64,
    /// Pieces of the list before it.
    pub(super) first_piece: u32,
}

/// One contiguous piece of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListPiece {
    /// Handle of the region, as the list's sender knows it.
    pub region: u32,
    /// Bytes from its start; 0 if `zero`.
    pub offset: u64,
    /// Bytes, at least 1.
    pub len: u32,
    /// Zeros, which are nowhere.
    pub zero: bool,
}

/// The pieces of a section, each checked. Ends behind the first that may not be touched.
#[derive(Clone, Copy, Debug)]
pub struct SectionPieces<'a> {
    section: Section<'a>,
    /// Next fragment.
    next: u32,
    /// The one before it, of which `left` pieces are to come, the next one at `fragment.offset`.
    fragment: ListPiece,
    left: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub form: Form,
    pub zeros: bool,
    pub count: u32,
    pub region: u32,
    pub len: u32,
    pub base: u64,
    pub step: u32,
    pub inner_count: u32,
    pub inner_step: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Form {
    Tile = 1,
    Rows = 2,
    Mixed = 3,
    Plain = 4,
}

impl Form {
    /// Bytes of one payload entry.
    pub const fn entry_bytes(self) -> usize {
        match self {
            Form::Tile => 0,
            Form::Rows => 4,
            Form::Mixed => 8,
            Form::Plain => 16,
        }
    }
}

impl Header {
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let zeros = if self.zeros { ZEROS } else { 0 };
        bytes[0] = self.form as u8 | zeros;
        for (at, word) in [
            (COUNT, self.count),
            (8, self.region),
            (LEN, self.len),
            (24, self.step),
            (28, self.inner_count),
            (32, self.inner_step),
        ] {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[16..24].copy_from_slice(&self.base.to_le_bytes());
        bytes
    }

    /// # Errors
    /// A form without meaning, or a field that this form does not have: the status and the offending value.
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<Header, (Status, u64)> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let form = match bytes[0] & !ZEROS {
            1 => Form::Tile,
            2 => Form::Rows,
            3 => Form::Mixed,
            4 => Form::Plain,
            _ => return Err((Status::INVALID_FIELD, bytes[0].into())),
        };
        let base = u64::from(word(16)) | u64::from(word(20)) << 32;
        let header = Header {
            form,
            zeros: bytes[0] & ZEROS != 0,
            count: word(COUNT),
            region: word(8),
            len: word(LEN),
            base,
            step: word(24),
            inner_count: word(28),
            inner_step: word(32),
        };
        let equal = matches!(form, Form::Tile | Form::Rows);
        for (value, must_be_zero) in [
            (u64::from(word(0) >> 8), true),
            (word(36).into(), true),
            (header.len.into(), !equal),
            (header.inner_step.into(), !equal),
            (base, form == Form::Plain),
            (header.step.into(), form == Form::Plain),
        ] {
            if must_be_zero && value != 0 {
                return Err((Status::INVALID_FIELD, value));
            }
        }
        if header.count == 0 || header.inner_count == 0 || (!equal && header.inner_count != 1) {
            return Err((Status::INVALID_COUNT, header.inner_count.into()));
        }
        if equal && header.len == 0 {
            return Err((Status::INVALID_FIELD, 0));
        }
        Ok(header)
    }

    /// Bytes of one fragment from its start to its end, gaps included.
    pub fn extent(&self) -> u64 {
        u64::from(self.inner_count - 1) * u64::from(self.inner_step) + u64::from(self.len)
    }

    /// How many numbers, from 0, lie inside so many bytes.
    pub fn fits(&self, granted: u64) -> u64 {
        let room = self.base.checked_add(self.extent()).and_then(|end| granted.checked_sub(end));
        match room {
            None => 0,
            Some(room) => room.checked_div(self.step.into()).map_or(u64::MAX, |max| max.saturating_add(1)),
        }
    }
}

impl<'a> Section<'a> {
    /// All of them, in order.
    #[must_use]
    pub fn pieces(&self) -> SectionPieces<'a> {
        let fragment = ListPiece { region: self.header.region, offset: 0, len: 0, zero: false };
        SectionPieces { section: *self, next: 0, fragment, left: 0 }
    }

    /// Handle of the region, as the list's sender knows it.
    #[must_use]
    pub fn region(&self) -> u32 {
        self.header.region
    }

    /// Zeros may be among its pieces.
    #[must_use]
    pub fn may_have_zeros(&self) -> bool {
        self.header.zeros
    }

    /// Fragments: pieces where they are not repeated.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.header.count
    }

    /// Bytes of every piece, pieces of a fragment, and bytes from one of those to the next. `None` if the lengths differ or
    /// there may be zeros: then [`pieces`](Self::pieces) is the way.
    #[must_use]
    pub fn uniform(&self) -> Option<(u32, u32, u32)> {
        let Header { form, zeros, len, inner_count, inner_step, .. } = self.header;
        (!zeros && matches!(form, Form::Tile | Form::Rows)).then_some((len, inner_count, inner_step))
    }

    /// Gives the offsets of fragments `from ..` of a [`uniform`](Self::uniform) section, one for each element of `out`: all
    /// are checked before the first is given. There must be so many.
    ///
    /// # Errors
    /// The first that may not be touched.
    #[inline]
    pub fn offsets<T>(&self, from: u32, out: &mut [T], mut give: impl FnMut(&mut T, u64)) -> Result<(), Refusal> {
        let Header { form, base, step, .. } = self.header;
        if form == Form::Tile {
            // That the last one fits was checked with the header.
            let offsets = (u64::from(from)..).map(|i| base + i * u64::from(step));
            out.iter_mut().zip(offsets).for_each(|(element, offset)| give(element, offset));
            return Ok(());
        }
        let (words, _) = self.payload.as_chunks::<4>();
        let words = words.get(from as usize..).unwrap_or_default();
        let words = &words[..words.len().min(out.len())];
        let largest = words.iter().fold(0, |largest, word| u32::from_le_bytes(*word).max(largest));
        if u64::from(largest) >= self.fits {
            let wrong = words.iter().position(|word| u64::from(u32::from_le_bytes(*word)) >= self.fits).unwrap_or(0);
            let word = words.get(wrong).map_or(0, |word| u32::from_le_bytes(*word));
            return Err(self.outside(from + wrong as u32, self.at(word)));
        }
        for (element, word) in out.iter_mut().zip(words) {
            give(element, base + u64::from(u32::from_le_bytes(*word)) * u64::from(step));
        }
        Ok(())
    }

    /// Fragment `i`'s first piece, or the refusal of the fragment.
    fn fragment(&self, i: u32) -> Result<ListPiece, Refusal> {
        let Header { form, zeros, region, len, base, step, .. } = self.header;
        let word = |at: usize| {
            let bytes = self.payload.get(at..).and_then(|rest| rest.first_chunk::<4>());
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        let at = i as usize * form.entry_bytes();
        let number = |word: u32| ListPiece {
            region,
            offset: base.wrapping_add(u64::from(word) * u64::from(step)),
            len,
            zero: false,
        };
        let (piece, inside) = match form {
            Form::Tile if zeros => return Ok(ListPiece { region, offset: 0, len, zero: true }),
            Form::Tile => (number(i), true),
            Form::Rows if zeros && word(at) == u32::MAX => return Ok(ListPiece { region, offset: 0, len, zero: true }),
            Form::Rows => (number(word(at)), u64::from(word(at)) < self.fits),
            Form::Mixed => {
                let (word, len) = (word(at), word(at + 4));
                if zeros && word == u32::MAX {
                    return Ok(ListPiece { region, offset: 0, len, zero: true });
                }
                // Less than 2^64, whatever the three are.
                let end = u64::from(word) * u64::from(step) + u64::from(len);
                let inside = self.granted.checked_sub(base).is_some_and(|room| end <= room);
                (ListPiece { len, ..number(word) }, inside)
            }
            Form::Plain => {
                let (offset, len) = (u64::from(word(at)) | u64::from(word(at + 4)) << 32, word(at + 8));
                if zeros && offset == u64::MAX {
                    return Ok(ListPiece { region, offset: 0, len, zero: true });
                }
                let inside = offset.checked_add(len.into()).is_some_and(|end| end <= self.granted);
                (ListPiece { region, offset, len, zero: false }, inside)
            }
        };
        if inside { Ok(piece) } else { Err(self.outside(i, piece.offset)) }
    }

    fn at(&self, word: u32) -> u64 {
        self.header.base.wrapping_add(u64::from(word) * u64::from(self.header.step))
    }

    pub(super) fn outside(&self, fragment: u32, offset: u64) -> Refusal {
        let piece = self.first_piece.saturating_add(fragment.saturating_mul(self.header.inner_count));
        Refusal { status: Status::OUT_OF_RANGE, piece, detail: offset }
    }
}

impl Iterator for SectionPieces<'_> {
    type Item = Result<ListPiece, Refusal>;

    #[inline]
    fn next(&mut self) -> Option<Result<ListPiece, Refusal>> {
        if self.left == 0 {
            if self.next == self.section.header.count {
                return None;
            }
            match self.section.fragment(self.next) {
                Ok(fragment) => (self.fragment, self.left) = (fragment, self.section.header.inner_count),
                Err(refusal) => {
                    self.next = self.section.header.count;
                    return Some(Err(refusal));
                }
            }
            self.next += 1;
        }
        let piece = self.fragment;
        self.left -= 1;
        if self.left > 0 && !piece.zero {
            self.fragment.offset += u64::from(self.section.header.inner_step);
        }
        Some(Ok(piece))
    }
}

pub(super) const HEADER_BYTES: usize = 40;

/// Where `count` and `len` are in a header: they grow while it is the last one.
pub(super) const COUNT: usize = 4;
pub(super) const LEN: usize = 12;

/// The bit of the form byte.
const ZEROS: u8 = 0x80;
