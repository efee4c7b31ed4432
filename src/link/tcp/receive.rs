//! The receiving half of a lane.

mod frames;

use super::super::{PIECES_MAX, Reason, RemotePiece};
use super::Limits;
use super::frame::{HEAD_BYTES_MAX, HEADER_BYTES, Header, Kind, PIECE_BYTES, Status, TRAILER_BYTES};
use super::job::{Buffer, Cursor, Job};
use super::lane::Lane;
use super::send::window;
use super::socket::{Socket, Vectors};
use rustix::io::Errno;

pub(super) struct Receiving {
    stage: Stage,
    /// The trailer of a frame and the header of the next: what stands between two payloads.
    edge: [u8; EDGE_BYTES],
    edge_got: usize,
    /// The bytes of the pieces behind the header.
    list: Box<[u8]>,
    list_got: usize,
    frame: Header,
    pieces: Vec<RemotePiece>,
    sink: Sink,
    /// Of a payload that goes to grants.
    cursor: Cursor,
    /// Bytes of the payload that have not come.
    left: u64,
    /// How it went here.
    status: Status,
    /// For the acknowledgement of the frame that is coming.
    reserved: Option<Box<Job>>,
    next_id: u64,
    /// Where the next messages go. Without one a message waits in the socket.
    pub spare: Vec<Buffer>,
    /// What nobody wants.
    scratch: Box<[u8]>,
    pub drained_bytes: u64,
    /// Bytes that are received page by page, after EFAULT.
    careful_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Header,
    Pieces,
    /// A message has come so far that it needs a buffer, and there is none.
    NoBuffer,
    Payload,
}

/// Where the payload goes.
#[derive(Debug)]
enum Sink {
    /// To the grants of `pieces`.
    Grants,
    /// To the pieces of the read that was posted first.
    Local,
    Message(Buffer),
    Scratch,
}

const EDGE_BYTES: usize = TRAILER_BYTES + HEADER_BYTES;
const NO_FRAME: Header = Header { kind: Kind::Ack, pieces: 0, status: Status::Good, id: 0, length: 0 };
const CALLS_PER_STEP: usize = 8;

impl Receiving {
    pub fn new(limits: &Limits) -> Receiving {
        Receiving {
            stage: Stage::Header,
            edge: [0; EDGE_BYTES],
            edge_got: TRAILER_BYTES,
            list: vec![0; HEAD_BYTES_MAX - HEADER_BYTES].into(),
            list_got: 0,
            frame: NO_FRAME,
            pieces: Vec::with_capacity(PIECES_MAX),
            sink: Sink::Scratch,
            cursor: Cursor::default(),
            left: 0,
            status: Status::Good,
            reserved: None,
            next_id: 0,
            spare: (0..limits.messages).map(|_| Buffer::new()).collect(),
            scratch: vec![0; 64 << 10].into(),
            drained_bytes: 0,
            careful_bytes: 0,
        }
    }

    pub fn clear(&mut self) {
        self.reserved = None;
        self.sink = Sink::Scratch;
    }

    /// False while a message waits for a buffer.
    pub fn is_open(&self) -> bool {
        self.stage != Stage::NoBuffer || !self.spare.is_empty()
    }

    fn list_bytes(&self) -> usize {
        (usize::from(self.frame.pieces).max(1) - 1) * PIECE_BYTES
    }

    /// The next frame's payload goes to `sink`.
    fn expect(&mut self, sink: Sink) {
        (self.stage, self.sink, self.cursor) = (Stage::Payload, sink, Cursor::default());
        (self.left, self.edge_got) = (self.frame.length, 0);
    }

    /// The frame has no payload: a header follows.
    fn expect_header(&mut self) {
        (self.stage, self.edge_got) = (Stage::Header, TRAILER_BYTES);
    }
}

impl Lane {
    /// Receives what is there, for some calls at most. True: something was received.
    pub(super) fn receive(&mut self) -> Result<bool, Reason> {
        let mut moved = false;
        for _ in 0..CALLS_PER_STEP {
            // A message may have been waiting for a buffer.
            self.advance_frames()?;
            if !self.receiving.is_open() {
                break;
            }
            self.scatter();
            let bytes = self.vectors.bytes();
            match self.call(Socket::receive) {
                Ok(0) => return Err(Reason::Closed),
                Ok(received) => {
                    moved = true;
                    self.receiving.careful_bytes = self.receiving.careful_bytes.saturating_sub(received);
                    self.arrived(received);
                    self.heard();
                    self.advance_frames()?;
                    if received < bytes {
                        // The socket is empty.
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::FAULT) => self.destination_fault(bytes)?,
                Err(errno) => return Err(Reason::System(errno)),
            }
        }
        Ok(moved)
    }

    /// Fills the call with where the next bytes go.
    fn scatter(&mut self) {
        let Lane { receiving, vectors, grants, pinned, sending, .. } = self;
        vectors.start(receiving.careful_bytes > 0);
        let whole = match receiving.stage {
            Stage::Header | Stage::NoBuffer => true,
            Stage::Pieces => {
                let end = receiving.list_bytes();
                let rest = &mut receiving.list[receiving.list_got..end];
                vectors.add(rest.as_mut_ptr(), rest.len());
                false
            }
            Stage::Payload if receiving.left == 0 => true,
            Stage::Payload => match &mut receiving.sink {
                Sink::Message(buffer) => {
                    let from = (receiving.frame.length - receiving.left) as usize;
                    let rest = &mut buffer.bytes[from..receiving.frame.length as usize];
                    vectors.add(rest.as_mut_ptr(), rest.len())
                }
                Sink::Local => sending.awaiting.front().is_some_and(|job| {
                    let mut skip = job.cursor.within;
                    job.local[job.cursor.piece..].iter().all(|piece| {
                        let skipped = std::mem::take(&mut skip);
                        vectors.add(piece.at.wrapping_add(skipped as usize), (piece.len - skipped) as usize)
                    })
                }),
                Sink::Grants => {
                    let Cursor { piece, within: mut skip } = receiving.cursor;
                    let window = window(&receiving.pieces[piece..], skip, vectors);
                    let mark = vectors.mark();
                    let mut fits = true;
                    let usable = grants.pin(window, pinned, |at, len| {
                        let skipped = std::mem::take(&mut skip);
                        fits = fits && vectors.add(at.wrapping_add(skipped as usize), (len - skipped) as usize);
                    });
                    if usable {
                        fits && piece + window.len() == receiving.pieces.len()
                    } else {
                        vectors.back_to(mark);
                        receiving.status = Status::Revoked;
                        receiving.sink = Sink::Scratch;
                        scratch_for(receiving.left, &mut receiving.scratch, vectors)
                    }
                }
                Sink::Scratch => scratch_for(receiving.left, &mut receiving.scratch, vectors),
            },
        };
        if whole {
            let edge = &mut receiving.edge[receiving.edge_got..];
            vectors.add(edge.as_mut_ptr(), edge.len());
        }
    }

    /// So many bytes more have come.
    fn arrived(&mut self, bytes: usize) {
        let Lane { receiving, sending, .. } = self;
        if receiving.stage == Stage::Pieces {
            receiving.list_got += bytes;
            return;
        }
        let payload = if receiving.stage == Stage::Payload { receiving.left.min(bytes as u64) } else { 0 };
        receiving.left -= payload;
        receiving.edge_got += bytes - payload as usize;
        match receiving.sink {
            Sink::Grants => receiving.cursor.advance(payload, &receiving.pieces, |piece| piece.len),
            Sink::Local => {
                if let Some(job) = sending.awaiting.front_mut() {
                    job.cursor.advance(payload, &job.local, |piece| piece.len);
                }
            }
            Sink::Scratch => receiving.drained_bytes += payload,
            Sink::Message(_) => {}
        }
    }

    /// Memory could not be written. Which, is found by trying again page by page; the rest of the payload goes nowhere.
    fn destination_fault(&mut self, bytes: usize) -> Result<(), Reason> {
        let receiving = &mut self.receiving;
        if receiving.careful_bytes == 0 {
            receiving.careful_bytes = bytes;
            return Ok(());
        }
        receiving.careful_bytes = 0;
        if receiving.left == 0 || !matches!(receiving.sink, Sink::Grants | Sink::Local) {
            // Of this process's own buffers none can be missing.
            return Err(Reason::System(Errno::FAULT));
        }
        receiving.status = Status::Lost;
        receiving.sink = Sink::Scratch;
        Ok(())
    }
}

/// Fills the call with the scratch block, as often as it takes.
fn scratch_for(mut left: u64, scratch: &mut [u8], vectors: &mut Vectors) -> bool {
    while left > 0 {
        let some = left.min(scratch.len() as u64);
        if !vectors.add(scratch.as_mut_ptr(), some as usize) {
            return false;
        }
        left -= some;
    }
    true
}
