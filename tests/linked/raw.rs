//! A peer that sends any bytes: frames as the protocol's page has them, written down a second time.

use super::{Side, sockets};
use scatter_ring::link::GrantId;
use scatter_ring::link::tcp::Limits;
use std::io::{Read, Write};
use std::net::TcpStream;

pub const WRITE: u8 = 1;
pub const WRITE_ACKNOWLEDGED: u8 = 2;
pub const READ: u8 = 3;
pub const SEND: u8 = 4;
pub const ACK: u8 = 5;
pub const REPLY: u8 = 6;
pub const KINDS: [u8; 6] = [WRITE, WRITE_ACKNOWLEDGED, READ, SEND, ACK, REPLY];

#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub count: u16,
    pub status: u32,
    pub id: u64,
    pub length: u64,
    /// Grant, offset, length, and what must be 0.
    pub pieces: Vec<(u64, u64, u32, u32)>,
    pub payload: Vec<u8>,
    /// Status and the id's lower half.
    pub trailer: Option<(u32, u32)>,
}

impl Frame {
    pub fn new(kind: u8, id: u64) -> Frame {
        let (pieces, payload) = (Vec::new(), Vec::new());
        Frame { kind, flags: 0, count: 0, status: 0, id, length: 0, pieces, payload, trailer: None }
    }

    pub fn write(id: u64, pieces: &[(GrantId, u64, u32)], payload: &[u8]) -> Frame {
        let length = payload.len() as u64;
        let pieces: Vec<_> = pieces.iter().map(|(grant, offset, len)| (grant.0, *offset, *len, 0)).collect();
        let (count, trailer) = (pieces.len() as u16, Some((0, id as u32)));
        Frame { count, length, pieces, payload: payload.to_vec(), trailer, ..Frame::new(WRITE, id) }
    }

    pub fn read(id: u64, pieces: &[(GrantId, u64, u32)]) -> Frame {
        let length = pieces.iter().map(|piece| u64::from(piece.2)).sum();
        Frame { kind: READ, length, trailer: None, ..Frame::write(id, pieces, &[]) }
    }

    pub fn send(id: u64, payload: &[u8]) -> Frame {
        Frame { kind: SEND, ..Frame::write(id, &[], payload) }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind, self.flags];
        bytes.extend(self.count.to_le_bytes());
        bytes.extend(self.status.to_le_bytes());
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.length.to_le_bytes());
        for (grant, offset, len, zero) in &self.pieces {
            bytes.extend(grant.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
            bytes.extend(len.to_le_bytes());
            bytes.extend(zero.to_le_bytes());
        }
        bytes.resize(bytes.len().max(48), 0);
        bytes.extend(&self.payload);
        if let Some((status, id)) = self.trailer {
            bytes.extend(status.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }
}

pub struct RawPeer {
    pub socket: TcpStream,
}

impl RawPeer {
    /// A link of one lane, and its peer.
    pub fn new(limits: &Limits) -> (Side, RawPeer) {
        let (a, socket) = sockets(None);
        socket.set_nodelay(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        (Side::new(vec![a], limits), RawPeer { socket })
    }

    /// Sends bytes and lets the link take them, for as long as it is up.
    pub fn give(&mut self, side: &mut Side, mut bytes: &[u8]) {
        while side.down.is_none() {
            if !bytes.is_empty() {
                bytes = &bytes[self.socket.write(bytes).unwrap_or(0)..];
            }
            let moved = side.poll();
            self.take();
            if bytes.is_empty() && !moved {
                break;
            }
        }
    }

    /// What the link has sent.
    pub fn take(&mut self) -> Vec<u8> {
        let (mut all, mut some) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = self.socket.read(&mut some) {
            all.extend(&some[..count]);
        }
        all
    }
}
