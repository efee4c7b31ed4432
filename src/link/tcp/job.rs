//! A frame of one's own: posted, or the answer to the other side's.

use super::super::{Failure, LocalPiece, MESSAGE_BYTES_MAX, Operation, PIECES_MAX, Reason, RemotePiece};
use super::frame::{HEADER_BYTES, Header, Kind, PIECE_BYTES, Status, TRAILER_BYTES, encode_piece};
use crate::pack::ListTask;

/// Its storage is made once and goes round: filled by a post, sent, given back with the outcome.
#[derive(Debug)]
pub(super) struct Job {
    /// The poller's number for it.
    pub number: u32,
    pub kind: Kind,
    /// Its own number on the wire, or that of the question it answers.
    pub id: u64,
    /// Header and pieces; of a message, its bytes too.
    pub head: Vec<u8>,
    /// Memory of this side: where the payload is, or where that of the answer goes.
    pub local: Vec<LocalPiece>,
    /// The same, of an answer.
    pub granted: Vec<RemotePiece>,
    /// Bytes of the pieces.
    pub bytes: u64,
    /// One of its regions may be lost, which is to be looked at when the payload is through.
    pub may_be_lost: bool,
    pub status: Status,
    pub trailer: [u8; TRAILER_BYTES],
    /// Bytes of the frame that the socket has.
    pub sent: u64,
    /// Where in the pieces that is, or how far the answer has come.
    pub cursor: Cursor,
}

impl Job {
    /// Storage for any operation. It grows to what its operations have needed: at its largest for every operation that a
    /// lane may have, a connection would take a hundred times its slots.
    pub fn for_posts(number: u32) -> Box<Job> {
        let mut job = Job::for_answers();
        job.number = number;
        job.granted = Vec::new();
        job
    }

    /// Storage for any answer.
    pub fn for_answers() -> Box<Job> {
        Box::new(Job {
            number: 0,
            kind: Kind::Ack,
            id: 0,
            head: Vec::with_capacity(HEADER_BYTES),
            local: Vec::new(),
            granted: Vec::with_capacity(PIECES_MAX),
            bytes: 0,
            may_be_lost: false,
            status: Status::Good,
            trailer: [0; TRAILER_BYTES],
            sent: 0,
            cursor: Cursor::default(),
        })
    }

    fn reset(&mut self, kind: Kind, id: u64) {
        self.head.clear();
        self.local.clear();
        self.granted.clear();
        (self.kind, self.id, self.bytes, self.may_be_lost, self.status) = (kind, id, 0, false, Status::Good);
        (self.sent, self.cursor) = (0, Cursor::default());
    }

    /// Becomes an operation that [`check`](super::super::check) has passed. Its number on the wire is filled in when it is begun.
    pub fn post(&mut self, operation: &Operation<'_>) {
        let (kind, local, remote) = match *operation {
            Operation::Write { from, to, acknowledged: false, .. } => (Kind::Write, from, to),
            Operation::Write { from, to, acknowledged: true, .. } => (Kind::WriteAcknowledged, from, to),
            Operation::Read { from, to, .. } => (Kind::Read, to, from),
            Operation::Send { bytes, .. } => {
                self.reset(Kind::Send, 0);
                self.write_header(0, bytes.len() as u64);
                self.head.extend_from_slice(bytes);
                return;
            }
        };
        self.reset(kind, 0);
        self.bytes = remote.iter().map(|piece| u64::from(piece.len)).sum();
        self.may_be_lost = local.iter().any(LocalPiece::may_be_lost);
        self.local.extend_from_slice(local);
        self.write_header(remote.len() as u16, self.bytes);
        if let Some((first, rest)) = remote.split_first() {
            self.head[HEADER_BYTES - PIECE_BYTES..].copy_from_slice(&encode_piece(first));
            rest.iter().for_each(|piece| self.head.extend_from_slice(&encode_piece(piece)));
        }
    }

    /// Becomes the question's answer; a reply's pieces are `granted`, which the caller fills.
    pub fn answer(&mut self, kind: Kind, id: u64) {
        self.reset(kind, id);
    }

    /// Begins an answer: its header says how the question went.
    pub fn begin_answer(&mut self) {
        if self.status != Status::Good {
            self.bytes = 0;
        }
        self.write_header(0, self.bytes);
    }

    /// Begins a question.
    pub fn begin_question(&mut self, id: u64) {
        self.id = id;
        self.head[8..16].copy_from_slice(&id.to_le_bytes());
    }

    fn write_header(&mut self, pieces: u16, length: u64) {
        let status = if self.kind.is_answer() { self.status } else { Status::Good };
        self.head.extend_from_slice(&Header { kind: self.kind, pieces, status, id: self.id, length }.encode());
    }

    /// Bytes of payload that come from the pieces.
    pub fn payload_bytes(&self) -> u64 {
        if self.kind == Kind::Read { 0 } else { self.bytes }
    }

    pub fn trailer_bytes(&self) -> u64 {
        // A reply that is not good when it begins has no payload at all.
        let is_refusal = self.kind == Kind::Reply && self.bytes == 0;
        if self.kind.has_payload() && !is_refusal { TRAILER_BYTES as u64 } else { 0 }
    }

    pub fn frame_bytes(&self) -> u64 {
        self.head.len() as u64 + self.payload_bytes() + self.trailer_bytes()
    }

    /// The socket has so many bytes more of it.
    pub fn advance(&mut self, bytes: u64) {
        let (from, to) = (self.head.len() as u64, self.head.len() as u64 + self.payload_bytes());
        let payload = (self.sent + bytes).clamp(from, to) - self.sent.clamp(from, to);
        self.sent += bytes;
        if self.kind == Kind::Reply {
            self.cursor.advance(payload, &self.granted, |piece| piece.len);
        } else {
            self.cursor.advance(payload, &self.local, LocalPiece::len);
        }
    }

    pub fn is_lost_here(&self) -> bool {
        self.local.iter().any(LocalPiece::is_lost)
    }

    /// What it comes to on this side.
    pub fn result(&self) -> Result<(), Failure> {
        if self.status == Status::Good { Ok(()) } else { Err(Failure::Lost) }
    }
}

/// A place in a list of pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    pub piece: usize,
    pub within: u32,
}

impl Cursor {
    /// Goes on by so many bytes, which are there.
    pub fn advance<P>(&mut self, mut bytes: u64, pieces: &[P], len: impl Fn(&P) -> u32) {
        while bytes > 0 {
            let Some(piece) = pieces.get(self.piece) else { return };
            let left = u64::from(len(piece) - self.within);
            if bytes < left {
                self.within += bytes as u32;
                return;
            }
            bytes -= left;
            *self = Cursor { piece: self.piece + 1, within: 0 };
        }
    }
}

/// The bytes of a message on their way to whoever polls.
#[derive(Debug)]
pub(super) struct Buffer {
    pub bytes: Box<[u8]>,
    pub len: usize,
}

impl Buffer {
    pub fn new() -> Buffer {
        Buffer { bytes: vec![0; MESSAGE_BYTES_MAX].into(), len: 0 }
    }
}

/// What the poller has for a lane.
#[derive(Debug)]
pub(super) enum Order {
    Post(Box<Job>),
    Run(Box<ListTask>),
    /// The poller has read a message.
    Read(Buffer),
    Stop,
}

/// What a lane has for the poller.
#[derive(Debug)]
pub(super) enum News {
    Done(Box<Job>, Result<(), Failure>),
    Ran(Box<ListTask>),
    Message(Buffer),
    Down(Reason),
    /// The last: the lane touches nothing any more, and operations that are not done never will be.
    Quiet,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_where_the_bytes_before_it_end() {
        let pieces = [3u32, 1, 4, 1, 5];
        for total in 0..=14u64 {
            for first in 0..=total {
                let mut cursor = Cursor::default();
                cursor.advance(first, &pieces, |len| *len);
                cursor.advance(total - first, &pieces, |len| *len);
                let before: u32 = pieces[..cursor.piece].iter().sum();
                assert_eq!(u64::from(before + cursor.within), total);
                assert!(
                    pieces.get(cursor.piece).is_none_or(|len| cursor.within < *len),
                    "behind a piece, not at its end"
                );
            }
        }
    }
}
