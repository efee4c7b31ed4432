//! Registered memory: who may do what with which bytes.

use super::World;
use scatter_ring::verbs::abi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, ibv_sge};
use std::collections::BTreeMap;

/// Registrations by their handles. The keys of a registration differ, so that one is not taken for the other.
#[derive(Default)]
pub(super) struct Memory {
    registrations: BTreeMap<u32, Registration>,
}

struct Registration {
    device: usize,
    domain: u32,
    at: u64,
    bytes: u64,
    access: u32,
}

/// What is to be done with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    /// By a request of its own side.
    Read,
    Write,
    /// By one of the other side.
    RemoteRead,
    RemoteWrite,
}

const REMOTE: u32 = 1 << 31;

pub(super) fn lkey(handle: u32) -> u32 {
    handle << 8
}

pub(super) fn rkey(handle: u32) -> u32 {
    handle << 8 | REMOTE
}

fn handle(key: u32) -> u32 {
    (key & !REMOTE) >> 8
}

impl Memory {
    /// As the kernel does it: no bytes, or writing for the other side only, is refused.
    pub fn register(
        &mut self,
        handle: u32,
        (device, domain): (usize, u32),
        (at, bytes): (u64, u64),
        access: u32,
    ) -> bool {
        let known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
        let is_remote_only = access & IBV_ACCESS_REMOTE_WRITE != 0 && access & IBV_ACCESS_LOCAL_WRITE == 0;
        if bytes == 0 || access & !known != 0 || is_remote_only || at.checked_add(bytes).is_none() {
            return false;
        }
        self.registrations.insert(handle, Registration { device, domain, at, bytes, access });
        true
    }

    pub fn deregister(&mut self, handle: u32) {
        self.registrations.remove(&handle);
    }

    /// True if something of the domain is registered.
    pub fn uses_domain(&self, domain: u32) -> bool {
        self.registrations.values().any(|registration| registration.domain == domain)
    }

    /// True if a queue pair of the device and domain may do it: the key is one of the right kind, of the same domain, the
    /// bytes are inside, and it has the right.
    pub fn allows(&self, of: (usize, u32), touch: Touch, key: u32, at: u64, bytes: u64) -> bool {
        let is_remote = matches!(touch, Touch::RemoteRead | Touch::RemoteWrite);
        let Some(memory) = self.registrations.get(&handle(key)) else { return false };
        let is_key = key == if is_remote { rkey(handle(key)) } else { lkey(handle(key)) };
        let has_right = match touch {
            Touch::Read => true,
            Touch::Write => memory.access & IBV_ACCESS_LOCAL_WRITE != 0,
            Touch::RemoteRead => memory.access & IBV_ACCESS_REMOTE_READ != 0,
            Touch::RemoteWrite => memory.access & IBV_ACCESS_REMOTE_WRITE != 0,
        };
        let end = at.checked_add(bytes);
        let is_inside = at >= memory.at && end.is_some_and(|end| end <= memory.at + memory.bytes);
        is_key && has_right && is_inside && (memory.device, memory.domain) == of
    }
}

/// The part of pieces that `bytes` from `offset` on, of all of them together, lie in.
pub(super) fn cut(pieces: &[ibv_sge], offset: u64, bytes: u64) -> impl Iterator<Item = ibv_sge> {
    let (mut start, end) = (0, offset + bytes);
    pieces.iter().filter_map(move |piece| {
        let (from, to) = (start.max(offset), (start + u64::from(piece.length)).min(end));
        let at = piece.addr + from.saturating_sub(start);
        start += u64::from(piece.length);
        (from < to).then(|| ibv_sge { addr: at, length: (to - from) as u32, lkey: piece.lkey })
    })
}

pub(super) fn total(pieces: &[ibv_sge]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.length)).sum()
}

impl World {
    /// Bytes of pieces, or `None`: the keys do not allow it.
    pub fn gather(&self, of: (usize, u32), pieces: &[ibv_sge], offset: u64, bytes: u64) -> Option<Vec<u8>> {
        let mut gathered = Vec::with_capacity(bytes as usize);
        for piece in cut(pieces, offset, bytes) {
            if !self.memory.allows(of, Touch::Read, piece.lkey, piece.addr, piece.length.into()) {
                return None;
            }
            gathered.extend(read(piece.addr, piece.length.into()));
        }
        Some(gathered)
    }

    /// Puts bytes into pieces, if the keys allow it.
    pub fn scatter(&self, of: (usize, u32), pieces: &[ibv_sge], offset: u64, mut bytes: &[u8]) -> bool {
        for piece in cut(pieces, offset, bytes.len() as u64) {
            if !self.memory.allows(of, Touch::Write, piece.lkey, piece.addr, piece.length.into()) {
                return false;
            }
            let (now, rest) = bytes.split_at(piece.length as usize);
            write(piece.addr, now);
            bytes = rest;
        }
        bytes.is_empty()
    }
}

/// What is at an address that [`Memory::allows`].
pub(super) fn read(at: u64, bytes: u64) -> Vec<u8> {
    let mut copy = vec![0; bytes as usize];
    let from = std::ptr::with_exposed_provenance::<u8>(at as usize);
    // SAFETY: registered memory, which stays mapped, and to which nobody has a reference while a request is under way.
    unsafe { std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), copy.len()) };
    copy
}

/// As [`read`].
pub(super) fn write(at: u64, bytes: &[u8]) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(at as usize);
    // SAFETY: as above.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}
