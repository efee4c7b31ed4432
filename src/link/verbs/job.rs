//! What was posted to a lane, and how it is cut into work requests.
//!
//! A work request has one run of bytes at the other side and some pieces at this one. So pieces of the other side that lie one
//! behind the other go together, with as many pieces of this side as the device takes: it gathers what it writes, and
//! scatters what it reads.

use super::super::{BadOperation, GrantId, LocalPiece, Operation, RemotePiece, check};
use super::there::{Place, There};
use crate::verbs::Piece;

/// An operation or a message. Its storage goes round.
#[derive(Debug)]
pub(super) struct Job {
    pub kind: Kind,
    pub id: u64,
    local: Vec<LocalPiece>,
    remote: Vec<RemotePiece>,
    /// Of a message.
    pub bytes: Vec<u8>,
    /// Of a message: the grant whose key goes with it.
    pub names: Option<GrantId>,
    /// Where the next work request begins.
    here: Cursor,
    there: Cursor,
    /// It counts when the other side has said that it has everything up to this number.
    pub asked: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Write,
    /// Completes when the bytes are in place.
    WriteAcknowledged,
    Read,
    Message,
}

/// A place in a list of pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cursor {
    piece: usize,
    within: u32,
}

/// A work request without its pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub place: Place,
    pub bytes: u32,
    /// Nothing of the operation is left.
    pub ends: bool,
}

/// How far a cut may go.
#[derive(Clone, Copy, Debug)]
pub(super) struct CutLimits {
    pub write_pieces: usize,
    pub read_pieces: usize,
    pub bytes: u32,
    /// What is short must not be sent across the end of a page: see [`SHORT_BYTES`].
    pub splits_short: bool,
}

impl Job {
    pub fn new() -> Box<Job> {
        Box::new(Job {
            kind: Kind::Message,
            id: 0,
            local: Vec::new(),
            remote: Vec::new(),
            bytes: Vec::new(),
            names: None,
            here: Cursor::default(),
            there: Cursor::default(),
            asked: None,
        })
    }

    /// Becomes an operation that [`refusal`] has nothing against.
    pub fn post(&mut self, operation: &Operation<'_>) {
        self.clear();
        match *operation {
            Operation::Write { id, from, to, acknowledged } => {
                let kind = if acknowledged { Kind::WriteAcknowledged } else { Kind::Write };
                self.moves(kind, id, from, to);
            }
            Operation::Read { id, from, to } => self.moves(Kind::Read, id, to, from),
            Operation::Send { bytes, names } => {
                (self.kind, self.id, self.names) = (Kind::Message, 0, names);
                self.bytes.extend_from_slice(bytes);
            }
        }
    }

    fn moves(&mut self, kind: Kind, id: u64, local: &[LocalPiece], remote: &[RemotePiece]) {
        (self.kind, self.id) = (kind, id);
        self.local.extend_from_slice(local);
        self.remote.extend_from_slice(remote);
    }

    /// Lets go of the memory.
    pub fn clear(&mut self) {
        self.local.clear();
        self.remote.clear();
        self.bytes.clear();
        (self.names, self.asked) = (None, None);
        (self.here, self.there) = (Cursor::default(), Cursor::default());
    }

    /// The next work request; its pieces are put into `pieces`. Moves on, unless it gives an error.
    ///
    /// # Errors
    /// The other side has given another grant the place of one that is named here.
    pub fn cut(&mut self, there: &There, limits: &CutLimits, pieces: &mut Vec<Piece>) -> Result<Cut, BadOperation> {
        let start = (self.here, self.there);
        let cut = self.cut_at(there, limits, pieces)?;
        if !limits.splits_short || cut.bytes > SHORT_BYTES {
            return Ok(cut);
        }
        let sent_from =
            if self.kind == Kind::Read { cut.place.address } else { pieces.first().map_or(0, |p| p.address) };
        let in_page = PAGE_BYTES - (sent_from % u64::from(PAGE_BYTES)) as u32;
        if cut.bytes <= in_page || (self.kind != Kind::Read && pieces.len() > 1) {
            return Ok(cut);
        }
        (self.here, self.there) = start;
        self.cut_at(there, &CutLimits { bytes: in_page, ..*limits }, pieces)
    }

    fn cut_at(&mut self, there: &There, limits: &CutLimits, pieces: &mut Vec<Piece>) -> Result<Cut, BadOperation> {
        pieces.clear();
        let first = self.remote.get(self.there.piece).ok_or(BadOperation::PieceCount)?;
        let place = there.place(&RemotePiece {
            offset: first.offset + u64::from(self.there.within),
            len: first.len - self.there.within,
            ..*first
        })?;
        let pieces_max = if self.kind == Kind::Read { limits.read_pieces } else { limits.write_pieces };
        let (mut here, mut far, mut bytes) = (self.here, self.there, 0u32);
        while let (Some(local), Some(remote)) = (self.local.get(here.piece), self.remote.get(far.piece)) {
            let len = (local.len - here.within).min(remote.len - far.within).min(limits.bytes - bytes);
            if len == 0 {
                break;
            }
            let is_full = pieces.len() == pieces_max.max(1);
            match pieces.last_mut() {
                // It goes on, into the next piece of the other side.
                Some(last) if here.within > self.here_within(here.piece) => last.bytes += len,
                _ if is_full => break,
                _ => {
                    let at = local.at.wrapping_add(here.within as usize);
                    pieces.push(Piece::new(at, len, local.key().ok_or(BadOperation::NoKey)?));
                }
            }
            here.advance(len, &self.local, LocalPiece::len);
            far.advance(len, &self.remote, |piece| piece.len);
            bytes += len;
            if far.within == 0 && !self.goes_on_to(far.piece) {
                break;
            }
        }
        (self.here, self.there) = (here, far);
        Ok(Cut { place, bytes, ends: self.is_cut() })
    }

    /// All of it has been cut.
    pub fn is_cut(&self) -> bool {
        self.there.piece >= self.remote.len()
    }

    /// Where this work request begins in a piece of this side.
    fn here_within(&self, piece: usize) -> u32 {
        if piece == self.here.piece { self.here.within } else { 0 }
    }

    /// A piece of the other side lies behind the one before it.
    fn goes_on_to(&self, piece: usize) -> bool {
        let (Some(before), Some(next)) = (self.remote.get(piece - 1), self.remote.get(piece)) else { return false };
        next.grant == before.grant && before.offset + u64::from(before.len) == next.offset
    }
}

impl Cursor {
    /// Goes on by so many bytes, which are there.
    fn advance<P>(&mut self, mut bytes: u32, pieces: &[P], len: impl Fn(&P) -> u32) {
        while bytes > 0 {
            let Some(piece) = pieces.get(self.piece) else { return };
            let left = len(piece) - self.within;
            if bytes < left {
                self.within += bytes;
                return;
            }
            bytes -= left;
            *self = Cursor { piece: self.piece + 1, within: 0 };
        }
    }
}

/// Soft iWARP (siw) sends so little, or less, with the header of its packet, and takes it from the wrong place if it lies
/// across the end of a page and is one piece: `siw_try_1seg` of Linux 6.1 copies as many bytes of the first page as belong to
/// the second. So short pieces are cut there, which costs other devices of iWARP nothing to speak of.
pub(super) const SHORT_BYTES: u32 = 128;
/// No page is shorter.
const PAGE_BYTES: u32 = 4096;

/// What is wrong with an operation, here or there.
pub(super) fn refusal(operation: &Operation<'_>, there: &There) -> Result<(), BadOperation> {
    check(operation)?;
    let (local, remote) = match *operation {
        Operation::Write { from, to, .. } => (from, to),
        Operation::Read { from, to, .. } => (to, from),
        Operation::Send { .. } => return Ok(()),
    };
    if local.iter().any(|piece| piece.key().is_none()) {
        return Err(BadOperation::NoKey);
    }
    remote.iter().try_for_each(|piece| there.place(piece).map(|_| ()))
}

#[cfg(test)]
mod tests {
    use super::super::there::Key;
    use super::*;
    use crate::region::{Huge, Region};
    use std::sync::Arc;

    const LIMITS: CutLimits = CutLimits { write_pieces: 4, read_pieces: 2, bytes: 1 << 20, splits_short: false };

    /// Cuts everything, and looks whether each byte goes where its operation says; gives pieces and bytes of each request.
    fn cut_all(local: &[(u64, u32)], remote: &[(u64, u32)], is_read: bool, limits: &CutLimits) -> Vec<(usize, u32)> {
        let region = Arc::new(Region::allocate(1 << 16, Huge::Never).unwrap().0);
        let base = region.as_ptr();
        let mut there = There::new(1);
        let grant = GrantId(1 << 32);
        there.learn(Key { grant, address: 1 << 40, bytes: 1 << 20, remote_key: 8, is_usable: true }).unwrap();
        let local_pieces: Vec<_> = local
            .iter()
            .map(|(at, len)| LocalPiece { key: Some(5), ..LocalPiece::of_region(&region, *at, *len).unwrap() })
            .collect();
        let remote_pieces: Vec<_> =
            remote.iter().map(|(offset, len)| RemotePiece { grant, offset: *offset, len: *len }).collect();
        let mut job = Job::new();
        let operation = match is_read {
            true => Operation::Read { id: 1, from: &remote_pieces, to: &local_pieces },
            false => Operation::Write { id: 1, from: &local_pieces, to: &remote_pieces, acknowledged: false },
        };
        assert_eq!(refusal(&operation, &there), Ok(()));
        job.post(&operation);
        let (mut shape, mut pairs, mut pieces) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let cut = job.cut(&there, limits, &mut pieces).unwrap();
            assert_eq!(cut.bytes, pieces.iter().map(|piece| piece.bytes).sum::<u32>());
            assert!(cut.bytes > 0 && cut.bytes <= limits.bytes);
            shape.push((pieces.len(), cut.bytes));
            let base = base.addr() as u64;
            let here = pieces.iter().flat_map(|p| (0..u64::from(p.bytes)).map(move |i| p.address + i - base));
            pairs.extend(here.zip(cut.place.address - (1 << 40)..));
            if cut.ends {
                break;
            }
        }
        let expand = |ranges: &[(u64, u32)]| -> Vec<u64> {
            ranges.iter().flat_map(|(at, len)| (0..u64::from(*len)).map(move |i| at + i)).collect()
        };
        let expected: Vec<_> = expand(local).into_iter().zip(expand(remote)).collect();
        assert!(pairs == expected, "bytes went elsewhere: {local:?} {remote:?}");
        shape
    }

    #[test]
    fn pieces_of_this_side_share_a_request_where_the_other_side_goes_on() {
        let rows: Vec<_> = (0..10).map(|i| (i * 100, 10)).collect();
        let one_behind_the_other: Vec<_> = (0..10).map(|i| (500 + i * 10, 10)).collect();
        assert_eq!(cut_all(&rows, &[(500, 100)], false, &LIMITS), [(4, 40), (4, 40), (2, 20)]);
        assert_eq!(cut_all(&rows, &one_behind_the_other, false, &LIMITS), [(4, 40), (4, 40), (2, 20)]);
        assert_eq!(cut_all(&rows, &[(500, 100)], true, &LIMITS), [(2, 20); 5]);
        assert_eq!(cut_all(&rows, &rows, false, &LIMITS), [(1, 10); 10]);
        assert_eq!(cut_all(&[(0, 100)], &one_behind_the_other, false, &LIMITS), [(1, 100)]);
    }

    #[test]
    fn no_request_is_longer_than_the_limit_and_every_byte_goes_where_it_belongs() {
        let mut state = 11u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..500 {
            let total = 1 + random(3000);
            let mut sides = [Vec::new(), Vec::new()];
            for side in &mut sides {
                let (mut left, mut at) = (total, random(100));
                while left > 0 {
                    let len = 1 + random(left.min(200));
                    side.push((at, len as u32));
                    at += len + random(2) * random(30);
                    left -= len;
                }
            }
            let limits = CutLimits {
                write_pieces: 1 + random(6) as usize,
                read_pieces: 1 + random(3) as usize,
                bytes: 1 + random(700) as u32,
                splits_short: random(2) == 0,
            };
            let is_read = random(2) == 0;
            let shape = cut_all(&sides[0], &sides[1], is_read, &limits);
            let most = if is_read { limits.read_pieces } else { limits.write_pieces };
            assert!(shape.iter().all(|(pieces, _)| *pieces <= most));
        }
    }

    #[test]
    fn short_pieces_are_not_sent_across_the_end_of_a_page_where_that_goes_wrong() {
        let limits = CutLimits { splits_short: true, ..LIMITS };
        assert_eq!(cut_all(&[(10, 30)], &[(4096 - 19, 30)], true, &limits), [(1, 19), (1, 11)]);
        assert_eq!(cut_all(&[(4096 - 19, 30)], &[(10, 30)], false, &limits), [(1, 19), (1, 11)]);
        // What is written lies here: where it goes does not matter.
        assert_eq!(cut_all(&[(10, 30)], &[(4096 - 19, 30)], false, &limits), [(1, 30)]);
        assert_eq!(cut_all(&[(4066, 30)], &[(10, 30)], false, &limits), [(1, 30)], "up to the end");
        let long = SHORT_BYTES + 1;
        assert_eq!(cut_all(&[(0, long)], &[(4000, long)], true, &limits), [(1, long)]);
        assert_eq!(cut_all(&[(10, 30)], &[(4096 - 19, 30)], true, &LIMITS), [(1, 30)]);
    }

    #[test]
    fn memory_without_a_key_is_refused_before_anything_is_posted() {
        let region = Arc::new(Region::allocate(4096, Huge::Never).unwrap().0);
        let (local, there) = (LocalPiece::of_region(&region, 0, 8).unwrap(), There::new(1));
        let remote = RemotePiece { grant: GrantId(1 << 32), offset: 0, len: 8 };
        let registered = LocalPiece { key: Some(1), ..local.clone() };
        for from in [local, registered] {
            let operation = Operation::Write { id: 1, from: &[from], to: &[remote], acknowledged: false };
            assert_eq!(refusal(&operation, &there), Err(BadOperation::NoKey));
        }
    }
}
