//! One side of a chunk, encoded.

use super::decoder::{Decoder, Limits};
use super::section::{COUNT, Form, HEADER_BYTES, Header, LEN, ListPiece, SectionPieces};

/// The pieces of one side of one chunk, in the order of its bytes. Encoded as they come; its storage is allocated once.
#[derive(Clone, Debug)]
pub struct List {
    encoded: Vec<u8>,
    /// Sections and payload entries.
    elements: u32,
    /// Pieces that the sections spell.
    spelled: u32,
    /// The same, merged.
    pieces: u32,
    /// Where the first one is.
    first: ListPiece,
    /// Region and offset behind the last one, or `None` behind zeros.
    end: Option<(u32, u64)>,
    /// The last section, and where it starts in `encoded`.
    last: Option<(Header, usize)>,
}

/// The fragments of one side of a transfer, as a section has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub region: u32,
    /// Offset of number 0.
    pub base: u64,
    /// Bytes from one number to the next.
    pub step: u32,
    /// Bytes of a piece.
    pub len: u32,
    /// Pieces of a fragment: 1 where they lie one behind the other.
    pub inner_count: u32,
    pub inner_step: u32,
}

impl Lane {
    fn header(&self, form: Form, count: u32, base: u64) -> Header {
        let Lane { region, step, len, inner_count, inner_step, .. } = *self;
        // What does not matter is the same in all headers, so that they can be compared.
        let inner_step = if inner_count == 1 { 0 } else { inner_step };
        Header { form, zeros: false, count, region, len, base, step, inner_count, inner_step }
    }

    /// Where a number's fragment starts.
    pub fn at(&self, number: u64) -> u64 {
        self.base + number * u64::from(self.step)
    }

    /// Bytes of a fragment from its start to its end, gaps included.
    pub fn extent(&self) -> u64 {
        u64::from(self.inner_count - 1) * u64::from(self.inner_step) + u64::from(self.len)
    }

    /// How much a number is larger than the one before it if its fragment starts where that one's ends.
    pub fn adjacent_step(&self) -> Option<u32> {
        let extent = self.extent();
        let quotient = extent.checked_div(self.step.into())?;
        (quotient * u64::from(self.step) == extent).then(|| u32::try_from(quotient).ok()).flatten()
    }
}

impl List {
    /// No pieces.
    #[must_use]
    pub fn new() -> List {
        let first = ListPiece { region: 0, offset: 0, len: 0, zero: false };
        let encoded = Vec::with_capacity(LIST_BYTES);
        List { encoded, elements: 0, spelled: 0, pieces: 0, first, end: None, last: None }
    }

    /// What an owner gets, and a [`Decoder`] reads: at most [`LIST_BYTES`] bytes, [`LIST_ELEMENTS`] elements and
    /// [`LIST_PIECES`] pieces.
    #[must_use]
    pub fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// Pieces when neighbours that are adjacent, in order, are one: 1 if the side is contiguous, or zeros throughout.
    #[must_use]
    pub fn pieces(&self) -> u32 {
        self.pieces
    }

    /// Region and offset of a side that is one piece of memory. `None` also for zeros.
    #[must_use]
    pub fn contiguous(&self) -> Option<(u32, u64)> {
        (self.pieces == 1 && !self.first.zero).then_some((self.first.region, self.first.offset))
    }

    /// The pieces as its sections spell them, which may be more than [`pieces`](Self::pieces).
    #[must_use]
    pub fn iter(&self) -> ListPieces<'_> {
        let limits = Limits { bytes: u32::MAX, pieces: LIST_PIECES, zeros: true };
        ListPieces { decoder: Decoder::new(&self.encoded, limits).ok(), section: None }
    }

    pub(super) fn clear(&mut self) {
        self.encoded.clear();
        (self.elements, self.spelled, self.pieces) = (0, 0, 0);
        (self.end, self.last) = (None, None);
    }

    /// How many entries of so many bytes one more section can have: 0 if there is no room for it.
    pub(super) fn entries_left(&self, entry_bytes: usize) -> u32 {
        let bytes = (LIST_BYTES - self.encoded.len()).saturating_sub(HEADER_BYTES);
        let elements = (LIST_ELEMENTS - self.elements).saturating_sub(1);
        elements.min((bytes / entry_bytes) as u32).min(self.pieces_left())
    }

    /// How many more pieces its sections may spell.
    pub(super) fn pieces_left(&self) -> u32 {
        LIST_PIECES - self.spelled
    }

    /// Adds one contiguous piece.
    pub(super) fn push_range(&mut self, region: u32, offset: u64, len: u32) {
        let goes_on = self.joins(region, offset);
        let end = Some((region, offset + u64::from(len)));
        if let Some((header, at)) = &mut self.last
            && goes_on
            && header.form == Form::Tile
            && header.count == 1
            && header.inner_count == 1
            && let Some(sum) = header.len.checked_add(len)
        {
            header.len = sum;
            self.end = end;
            patch(&mut self.encoded, *at + LEN, sum);
            return;
        }
        let lane = Lane { region, base: offset, step: 0, len, inner_count: 1, inner_step: 0 };
        self.note(1, ListPiece { region, offset, len, zero: false }, end);
        self.start(lane.header(Form::Tile, 1, offset));
        self.spelled += 1;
    }

    /// Adds bytes that are nowhere.
    pub(super) fn push_zeros(&mut self, region: u32, len: u32) {
        if let Some((header, at)) = &mut self.last
            && header.zeros
            && header.form == Form::Tile
            && header.region == region
            && let Some(sum) = header.len.checked_add(len)
        {
            header.len = sum;
            patch(&mut self.encoded, *at + LEN, sum);
            return;
        }
        let lane = Lane { region, base: 0, step: 0, len, inner_count: 1, inner_step: 0 };
        self.note(1, ListPiece { region, offset: 0, len, zero: true }, None);
        self.start(Header { zeros: true, ..lane.header(Form::Tile, 1, 0) });
        self.spelled += 1;
    }

    /// Adds fragments at equal distances, the first one at `offset`.
    pub(super) fn push_tile(&mut self, lane: &Lane, offset: u64, count: u32) {
        let Lane { region, step, len, inner_count, .. } = *lane;
        if inner_count == 1 && (step == len || count == 1) {
            return self.push_range(region, offset, len * count);
        }
        let spelled = count * inner_count;
        let last = offset + u64::from(count - 1) * u64::from(step);
        let adjacent = if lane.extent() == u64::from(step) { count - 1 } else { 0 };
        self.note(
            spelled - adjacent,
            ListPiece { region, offset, len, zero: false },
            Some((region, last + lane.extent())),
        );
        self.spelled += spelled;
        if let Some((header, at)) = &mut self.last {
            // Where its next fragment would start, which may be beyond any address.
            let next = header.base.checked_add(u64::from(header.count) * u64::from(step));
            if *header == lane.header(Form::Tile, header.count, header.base) && next == Some(offset) {
                header.count += count;
                return patch(&mut self.encoded, *at + COUNT, header.count);
            }
        }
        self.start(lane.header(Form::Tile, count, offset));
    }

    /// Adds fragments by their numbers from `base` on; `adjacent` of them start where the one before ends.
    pub(super) fn push_rows(&mut self, lane: &Lane, base: u64, words: &[u32], adjacent: u32) {
        let (count, [first, .., last]) = (words.len() as u32, words) else {
            return words.iter().for_each(|word| self.push_tile(lane, base + lane_bytes(lane, *word), 1));
        };
        let start = base + lane_bytes(lane, *first);
        if lane.inner_count == 1 && adjacent == count - 1 {
            return self.push_range(lane.region, start, lane.len * count);
        }
        let Lane { region, len, .. } = *lane;
        let spelled = count * lane.inner_count;
        let end = base + lane_bytes(lane, *last) + lane.extent();
        self.note(spelled - adjacent, ListPiece { region, offset: start, len, zero: false }, Some((region, end)));
        self.spelled += spelled;
        match &mut self.last {
            Some((header, at)) if *header == lane.header(Form::Rows, header.count, base) => {
                header.count += count;
                patch(&mut self.encoded, *at + COUNT, header.count);
            }
            _ => self.start(lane.header(Form::Rows, count, base)),
        }
        self.payload(words.iter().map(|word| word.to_le_bytes()));
        self.elements += count;
    }

    /// Adds pieces, none of which is adjacent to the one before, in a section of its own: ROWS, MIXED or PLAIN. An offset
    /// of all ones is zeros. For ROWS and MIXED `step` is a power of two that divides what offsets are above `base`.
    pub(super) fn push_pieces(&mut self, header: Header, offsets: &[u64], lens: &[u32]) {
        let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else { return };
        let (Some(first_len), Some(last_len)) = (lens.first(), lens.last()) else { return };
        let region = header.region;
        let zero = *first == u64::MAX;
        let end = (*last != u64::MAX).then(|| (region, last + u64::from(*last_len)));
        let piece = ListPiece { region, offset: if zero { 0 } else { *first }, len: *first_len, zero };
        self.note(header.count, piece, end);
        self.start(header);
        let (base, shift) = (header.base, header.step.checked_ilog2().unwrap_or(0));
        // Of all ones, all ones.
        let word = |offset: u64| if offset == u64::MAX { u32::MAX } else { ((offset - base) >> shift) as u32 };
        match header.form {
            Form::Tile => {}
            Form::Rows => self.payload(offsets.iter().map(|offset| word(*offset).to_le_bytes())),
            Form::Mixed => self.payload(
                offsets
                    .iter()
                    .zip(lens)
                    .map(|(offset, len)| (u64::from(word(*offset)) | u64::from(*len) << 32).to_le_bytes()),
            ),
            Form::Plain => self.payload(
                offsets
                    .iter()
                    .zip(lens)
                    .map(|(offset, len)| (u128::from(*offset) | u128::from(*len) << 64).to_le_bytes()),
            ),
        }
        self.elements += header.count;
        self.spelled += header.count;
    }

    /// Whether a piece there would go on where the last one ends.
    fn joins(&self, region: u32, offset: u64) -> bool {
        self.end == Some((region, offset))
    }

    /// Counts what is added: so many pieces, where the first one is, and where the last one ends.
    fn note(&mut self, pieces: u32, first: ListPiece, end: Option<(u32, u64)>) {
        if self.pieces == 0 {
            self.first = first;
        }
        let behind_zeros = self.pieces > 0 && self.end.is_none();
        let joins = if first.zero { behind_zeros } else { self.joins(first.region, first.offset) };
        self.pieces += pieces - u32::from(joins);
        self.end = end;
    }

    fn start(&mut self, header: Header) {
        self.last = Some((header, self.encoded.len()));
        self.encoded.extend_from_slice(&header.to_bytes());
        self.elements += 1;
    }

    fn payload<const N: usize>(&mut self, entries: impl ExactSizeIterator<Item = [u8; N]>) {
        let from = self.encoded.len();
        self.encoded.resize(from + N * entries.len(), 0);
        let (room, _) = self.encoded[from..].as_chunks_mut::<N>();
        room.iter_mut().zip(entries).for_each(|(to, entry)| *to = entry);
    }
}

impl Default for List {
    fn default() -> Self {
        List::new()
    }
}

fn lane_bytes(lane: &Lane, word: u32) -> u64 {
    u64::from(word) * u64::from(lane.step)
}

fn patch(encoded: &mut [u8], at: usize, word: u32) {
    encoded[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

/// See [`List::iter`].
#[derive(Clone, Debug)]
pub struct ListPieces<'a> {
    decoder: Option<Decoder<'a>>,
    section: Option<SectionPieces<'a>>,
}

impl Iterator for ListPieces<'_> {
    type Item = ListPiece;

    fn next(&mut self) -> Option<ListPiece> {
        loop {
            if let Some(piece) = self.section.as_mut().and_then(Iterator::next) {
                return piece.ok();
            }
            // A list's own sections are never refused.
            self.section = Some(self.decoder.as_mut()?.next_section(|_| Some(u64::MAX)).ok()??.pieces());
        }
    }
}

/// Most bytes of an encoded list.
pub const LIST_BYTES: usize = 64 << 10;
/// Most sections and payload entries of a list, together.
pub const LIST_ELEMENTS: u32 = 4096;
/// Most pieces that a list may spell: inner repeats let few bytes say many.
pub const LIST_PIECES: u32 = 64 << 10;
