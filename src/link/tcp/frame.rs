//! Frames: what is on the wire. All numbers are little-endian.
//!
//! ```text
//! header, 48 bytes: kind u8, flags u8, pieces u16, status u32, id u64, length u64, first piece
//! further pieces, 24 bytes each: grant u64, offset u64, len u32, 0 u32
//! payload, `length` bytes: of a WRITE, a REPLY or a SEND
//! trailer, 8 bytes, behind every payload: status u32, low half of the id u32
//! ```
//!
//! WRITE, READ and SEND are numbered one after the other; ACK and REPLY carry the number of what they answer, and answer
//! in the order of the questions. A header has room for one piece, so that a receiver can ask for a payload, its trailer
//! and the next header in one call, and never for payload before it knows where that goes.

use super::super::grants::Begun;
use super::super::{GrantId, MESSAGE_BYTES_MAX, OPERATION_BYTES_MAX, PIECES_MAX, RemotePiece, Violation};

pub(super) const HEADER_BYTES: usize = 48;
pub(super) const PIECE_BYTES: usize = 24;
pub(super) const TRAILER_BYTES: usize = 8;
/// Header and pieces together are never longer.
pub(super) const HEAD_BYTES_MAX: usize = HEADER_BYTES + (PIECES_MAX - 1) * PIECE_BYTES;
const _: () = assert!(HEAD_BYTES_MAX <= 64 << 10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Write,
    WriteAcknowledged,
    Read,
    Send,
    Ack,
    Reply,
}

impl Kind {
    const ALL: [Kind; 6] = [Kind::Write, Kind::WriteAcknowledged, Kind::Read, Kind::Send, Kind::Ack, Kind::Reply];

    fn code(self) -> u8 {
        self as u8 + 1
    }

    pub fn has_payload(self) -> bool {
        !matches!(self, Kind::Read | Kind::Ack)
    }

    pub fn is_answered(self) -> bool {
        matches!(self, Kind::WriteAcknowledged | Kind::Read)
    }

    pub fn is_answer(self) -> bool {
        matches!(self, Kind::Ack | Kind::Reply)
    }

    fn names_pieces(self) -> bool {
        matches!(self, Kind::Write | Kind::WriteAcknowledged | Kind::Read)
    }
}

/// How it went for the side that says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Good,
    /// Its region was lost.
    Lost,
    /// Its grant was taken back.
    Revoked,
}

impl Status {
    /// What is said of a question whose pieces were found so.
    pub fn of(begun: Begun) -> Status {
        match begun {
            Begun::Usable { .. } => Status::Good,
            Begun::Gone => Status::Revoked,
            Begun::Lost => Status::Lost,
        }
    }

    fn from_code(code: u32) -> Option<Status> {
        [Status::Good, Status::Lost, Status::Revoked].into_iter().find(|status| *status as u32 == code)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub kind: Kind,
    pub pieces: u16,
    pub status: Status,
    pub id: u64,
    /// Bytes that the frame is about; of an answer that is not good, 0.
    pub length: u64,
}

impl Header {
    /// The header's bytes, with a place for the first piece that is 0.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind.code();
        bytes[2..4].copy_from_slice(&self.pieces.to_le_bytes());
        bytes[4..8].copy_from_slice(&(self.status as u32).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Checks everything that can be checked without the pieces.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Violation> {
        let kind = Kind::ALL.into_iter().find(|kind| kind.code() == bytes[0]).ok_or(Violation("unknown frame"))?;
        let status = Status::from_code(word32(bytes, 4)).ok_or(Violation("unknown status"))?;
        let pieces = u16::from_le_bytes([bytes[2], bytes[3]]);
        let header = Header { kind, pieces, status, id: word64(bytes, 8), length: word64(bytes, 16) };
        let piece_count_fits = if kind.names_pieces() {
            (1..=PIECES_MAX).contains(&pieces.into())
        } else {
            pieces == 0 && bytes[24..].iter().all(|byte| *byte == 0)
        };
        let length_fits = match kind {
            Kind::Send => header.length <= MESSAGE_BYTES_MAX as u64,
            Kind::Ack => header.length == 0,
            Kind::Reply if status != Status::Good => header.length == 0,
            _ => (1..=OPERATION_BYTES_MAX).contains(&header.length),
        };
        if bytes[1] != 0 {
            Err(Violation("unknown flags"))
        } else if !piece_count_fits {
            Err(Violation("impossible number of pieces"))
        } else if !length_fits {
            Err(Violation("impossible length"))
        } else if !kind.is_answer() && status != Status::Good {
            Err(Violation("a status in a question"))
        } else {
            Ok(header)
        }
    }
}

pub(super) fn encode_piece(piece: &RemotePiece) -> [u8; PIECE_BYTES] {
    let mut bytes = [0; PIECE_BYTES];
    bytes[..8].copy_from_slice(&piece.grant.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&piece.offset.to_le_bytes());
    bytes[16..20].copy_from_slice(&piece.len.to_le_bytes());
    bytes
}

/// Reads pieces that are `total` bytes long together.
pub(super) fn decode_pieces<'a>(
    bytes: impl Iterator<Item = &'a [u8]>,
    total: u64,
    out: &mut Vec<RemotePiece>,
) -> Result<(), Violation> {
    out.clear();
    let mut sum = 0u64;
    for piece in bytes {
        let (len, reserved) = (word32(piece, 16), word32(piece, 20));
        if len == 0 || reserved != 0 {
            return Err(Violation("impossible piece"));
        }
        // At most 1,024 numbers of 32 bits.
        sum += u64::from(len);
        out.push(RemotePiece { grant: GrantId(word64(piece, 0)), offset: word64(piece, 8), len });
    }
    if sum == total { Ok(()) } else { Err(Violation("the pieces are not as long as the frame")) }
}

pub(super) fn encode_trailer(status: Status, id: u64) -> [u8; TRAILER_BYTES] {
    let mut bytes = [0; TRAILER_BYTES];
    bytes[..4].copy_from_slice(&(status as u32).to_le_bytes());
    bytes[4..].copy_from_slice(&(id as u32).to_le_bytes());
    bytes
}

pub(super) fn decode_trailer(bytes: &[u8], id: u64) -> Result<Status, Violation> {
    if word32(bytes, 4) != id as u32 {
        return Err(Violation("not the trailer of its frame"));
    }
    Status::from_code(word32(bytes, 0)).ok_or(Violation("unknown status"))
}

/// The word at a place that the caller knows to be inside.
fn word32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn word64(bytes: &[u8], at: usize) -> u64 {
    u64::from(word32(bytes, at)) | u64::from(word32(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Header = Header { kind: Kind::Write, pieces: 2, status: Status::Good, id: 7 << 40, length: 300 };

    #[test]
    fn a_header_says_after_the_wire_what_it_said_before() {
        for kind in Kind::ALL {
            let pieces = if kind.names_pieces() { 2 } else { 0 };
            let length = if kind == Kind::Ack { 0 } else { 300 };
            let header = Header { kind, pieces, length, ..GOOD };
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
        let refused = Header { kind: Kind::Reply, pieces: 0, status: Status::Revoked, length: 0, ..GOOD };
        assert_eq!(Header::decode(&refused.encode()), Ok(refused));
    }

    #[test]
    fn counts_and_lengths_beyond_the_limits_are_refused() {
        let refused = |header: Header| Header::decode(&header.encode()).is_err();
        for pieces in [0, PIECES_MAX as u16 + 1, u16::MAX] {
            assert!(refused(Header { pieces, ..GOOD }), "{pieces} pieces");
        }
        for length in [0, OPERATION_BYTES_MAX + 1, u64::MAX] {
            assert!(refused(Header { length, ..GOOD }), "{length} bytes");
        }
        assert!(refused(Header { kind: Kind::Send, pieces: 0, length: MESSAGE_BYTES_MAX as u64 + 1, ..GOOD }));
        assert!(refused(Header { kind: Kind::Send, ..GOOD }), "a message with pieces");
        assert!(refused(Header { kind: Kind::Ack, pieces: 0, ..GOOD }), "an acknowledgement with a length");
        assert!(refused(Header { status: Status::Lost, ..GOOD }), "a question with a status");
        assert!(refused(Header { kind: Kind::Reply, pieces: 0, status: Status::Lost, ..GOOD }));
        let mut flagged = GOOD.encode();
        flagged[1] = 1;
        assert!(Header::decode(&flagged).is_err());
    }

    #[test]
    fn pieces_are_as_long_as_their_frame_says() {
        let pieces = [1, u32::MAX].map(|len| RemotePiece { grant: GrantId(3), offset: u64::MAX, len });
        let bytes = pieces.map(|piece| encode_piece(&piece));
        let mut out = Vec::new();
        let mut decode = |total| decode_pieces(bytes.iter().map(|bytes| &bytes[..]), total, &mut out);
        assert_eq!(decode(1 << 32), Ok(()));
        assert!(decode((1 << 32) - 1).is_err() && decode(0).is_err());
        assert_eq!(out, pieces);
        let empty = encode_piece(&RemotePiece { len: 0, ..pieces[0] });
        assert!(decode_pieces([&empty[..]].into_iter(), 0, &mut out).is_err());
    }

    #[test]
    fn a_trailer_belongs_to_one_frame() {
        let bytes = encode_trailer(Status::Lost, 5);
        assert_eq!(decode_trailer(&bytes, 5), Ok(Status::Lost));
        assert!(decode_trailer(&bytes, 6).is_err());
        assert!(decode_trailer(&[3, 0, 0, 0, 5, 0, 0, 0], 5).is_err());
    }
}
