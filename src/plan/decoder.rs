//! Encoded lists, read by who does not trust their sender.

use super::list::{LIST_BYTES, LIST_ELEMENTS};
use super::section::{Form, HEADER_BYTES, Header, Section};
use ring_abi::Status;

/// Why a list is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The code.
    pub status: Status,
    /// The piece that is wrong, counted from 0; of a section that is wrong as a whole its first.
    pub piece: u32,
    /// The offending value.
    pub detail: u64,
}

/// What a list may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of all pieces: those of the slot.
    pub bytes: u32,
    /// Most pieces; [`LIST_PIECES`](super::LIST_PIECES) takes every list that a planner makes.
    pub pieces: u32,
    /// Whether zeros may be among them: only where a source is described.
    pub zeros: bool,
}

/// Reads a list section by section. Allocates nothing, and panics on no bytes.
///
/// ```
/// use scatter_ring::plan::{Decoder, Limits};
/// let limits = Limits { bytes: 4096, pieces: 100, zeros: false };
/// let mut decoder = Decoder::new(&[7; 40], limits).unwrap();
/// assert!(decoder.next_section(|_| Some(1 << 20)).is_err());
/// ```
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
    /// Not used up yet.
    limits: Limits,
    elements: u32,
    pieces: u32,
}

impl<'a> Decoder<'a> {
    /// # Errors
    /// More bytes than a list can have.
    pub fn new(list: &'a [u8], limits: Limits) -> Result<Decoder<'a>, Refusal> {
        if list.len() > LIST_BYTES {
            return Err(Refusal { status: Status::LIMIT_EXCEEDED, piece: 0, detail: list.len() as u64 });
        }
        Ok(Decoder { rest: list, limits, elements: LIST_ELEMENTS, pieces: 0 })
    }

    /// The next section, `None` behind the last. `granted` says how many bytes of a region may be touched.
    ///
    /// # Errors
    /// The first thing that is wrong with its header or its lengths. Nothing comes behind it.
    pub fn next_section(&mut self, granted: impl FnMut(u32) -> Option<u64>) -> Result<Option<Section<'a>>, Refusal> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let section = self.section(granted);
        if section.is_err() {
            self.rest = &[];
        }
        section.map(Some)
    }

    /// Pieces of all sections so far.
    #[must_use]
    pub fn pieces(&self) -> u32 {
        self.pieces
    }

    fn section(&mut self, mut granted: impl FnMut(u32) -> Option<u64>) -> Result<Section<'a>, Refusal> {
        let first_piece = self.pieces;
        let refuse = |status, detail| Refusal { status, piece: first_piece, detail };
        let (head, rest) =
            self.rest.split_first_chunk::<HEADER_BYTES>().ok_or(refuse(Status::BAD_MESSAGE, self.rest.len() as u64))?;
        let header = Header::from_bytes(head).map_err(|(status, detail)| refuse(status, detail))?;
        if header.zeros && !self.limits.zeros {
            return Err(refuse(Status::INVALID_FIELD, head[0].into()));
        }
        let entries = if header.form == Form::Tile { 0 } else { header.count };
        self.elements = entries
            .checked_add(1)
            .and_then(|elements| self.elements.checked_sub(elements))
            .ok_or(refuse(Status::LIMIT_EXCEEDED, header.count.into()))?;
        let payload_bytes = entries as usize * header.form.entry_bytes();
        let (payload, rest) =
            rest.split_at_checked(payload_bytes).ok_or(refuse(Status::BAD_MESSAGE, payload_bytes as u64))?;
        let pieces = u64::from(header.count) * u64::from(header.inner_count);
        if pieces > u64::from(self.limits.pieces) {
            return Err(refuse(Status::LIMIT_EXCEEDED, pieces));
        }
        let bytes = payload_lengths(&header, payload).map_err(|(status, detail)| refuse(status, detail))?;
        let bytes = bytes.unwrap_or_else(|| pieces.saturating_mul(header.len.into()));
        if bytes > u64::from(self.limits.bytes) {
            return Err(refuse(Status::LIMIT_EXCEEDED, bytes));
        }
        let granted = granted(header.region).ok_or(refuse(Status::UNKNOWN_REGION, header.region.into()))?;
        let section = Section { header, payload, granted, fits: header.fits(granted), first_piece };
        if header.form == Form::Tile && !header.zeros && u64::from(header.count) > section.fits {
            let at = header.base.saturating_add(section.fits.saturating_mul(header.step.into()));
            return Err(section.outside(section.fits as u32, at));
        }
        self.rest = rest;
        self.limits.pieces -= pieces as u32;
        self.limits.bytes -= bytes as u32;
        self.pieces += pieces as u32;
        Ok(section)
    }
}

/// Bytes of all pieces whose lengths stand in the payload. None of them may be 0, nor a reserved word be anything else.
fn payload_lengths(header: &Header, payload: &[u8]) -> Result<Option<u64>, (Status, u64)> {
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
    let (mut sum, mut shortest, mut reserved) = (0u64, u32::MAX, 0);
    match header.form {
        Form::Tile | Form::Rows => return Ok(None),
        Form::Mixed => {
            for entry in payload.as_chunks::<8>().0 {
                let len = word(&entry[4..]);
                (sum, shortest) = (sum + u64::from(len), shortest.min(len));
            }
        }
        Form::Plain => {
            for entry in payload.as_chunks::<16>().0 {
                let len = word(&entry[8..]);
                (sum, shortest, reserved) = (sum + u64::from(len), shortest.min(len), reserved | word(&entry[12..]));
            }
        }
    }
    if shortest == 0 || reserved != 0 {
        return Err((Status::INVALID_FIELD, reserved.into()));
    }
    Ok(Some(sum))
}
