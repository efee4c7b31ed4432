//! Batches of requests, posted with one call.

use super::abi::{self, ibv_send_wr, ibv_send_wr_rdma, ibv_sge};
use super::completion::missing;
use super::error::VerbsError;
use super::queue_pair::QueuePair;

/// Where a batch is put together. It is made once and used again and again: a batch allocates nothing.
pub struct PostStorage {
    requests: Box<[ibv_send_wr]>,
    pieces: Box<[ibv_sge]>,
    inline: Box<[u8]>,
}

// SAFETY: the pointers inside are written and used within one call of `submit`, and are never read by Rust.
unsafe impl Send for PostStorage {}

/// A piece of registered memory of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Its address.
    pub address: u64,
    /// Its length.
    pub bytes: u32,
    /// The key of its registration.
    pub lkey: u32,
}

/// Registered memory of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddress {
    /// As the peer's process sees it.
    pub address: u64,
    /// The key that the peer gave.
    pub rkey: u32,
}

/// Why a request was not added to a batch. The batch is as it was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAdded {
    /// The storage or the queue pair holds no more requests, or the storage no more pieces.
    #[error("the batch is full")]
    Full,
    /// The device does not take so many pieces in a request of this kind.
    #[error("more pieces than the device takes in one request")]
    TooManyPieces,
    /// More bytes than a request can carry itself.
    #[error("more bytes than a request can carry inline")]
    InlineTooLong,
    /// More than 2 GiB, which no request can move.
    #[error("more bytes than one request can move")]
    TooLong,
}

/// A batch that was not posted, or not all of it.
#[derive(Debug, thiserror::Error)]
#[error("{posted} requests of the batch were posted, then: {error}")]
pub struct PostFailed {
    /// So many requests from the start of the batch were posted, and will complete; the others never will.
    pub posted: usize,
    /// False if the device did not say where it stopped. `posted` is then the whole batch: to wait for a request that
    /// will not end costs time, to reuse memory that the device still reads or writes costs data.
    pub is_exact: bool,
    /// Why.
    #[source]
    pub error: VerbsError,
}

/// A batch that is put together: the queue pair is borrowed until it is submitted or dropped.
///
/// ```no_run
/// # use scatter_ring::verbs::{Piece, PostStorage, QueuePair, RemoteAddress};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (mut queue_pair, own, peer): (QueuePair, [Piece; 2], RemoteAddress) = todo!();
/// let mut storage = PostStorage::new(16, 32, 256);
/// let mut batch = queue_pair.start(&mut storage);
/// batch.write(1, &own, peer, false)?;
/// batch.send_inline(2, b"there", true)?;
/// // SAFETY: the pieces are registered, and nobody touches them until the second request has completed.
/// unsafe { batch.submit()? };
/// # Ok(()) }
/// ```
///
/// Dropped without that, nothing is posted. There is one batch at a time on a queue pair:
///
/// ```compile_fail,E0499
/// # use scatter_ring::verbs::{PostStorage, QueuePair};
/// fn two(queue_pair: &mut QueuePair, one: &mut PostStorage, other: &mut PostStorage) {
///     let first = queue_pair.start(one);
///     let second = queue_pair.start(other);
///     drop((first, second));
/// }
/// ```
///
/// and nothing is added to what was submitted:
///
/// ```compile_fail,E0382
/// # use scatter_ring::verbs::{PostStorage, QueuePair};
/// fn late(queue_pair: &mut QueuePair, storage: &mut PostStorage) {
///     let mut batch = queue_pair.start(storage);
///     let _ = batch.send(1, &[], true);
///     // SAFETY: it names no memory.
///     let _ = unsafe { batch.submit() };
///     let _ = batch.send(2, &[], true);
/// }
/// ```
#[must_use = "a batch that is dropped posts nothing"]
pub struct PostBatch<'q> {
    queue_pair: &'q mut QueuePair,
    storage: &'q mut PostStorage,
    requests: usize,
    pieces: usize,
    inline: usize,
    /// Flags of the next request.
    flags: u32,
}

impl PostStorage {
    /// Room for a batch of so many requests, with so many pieces and inline bytes in all of them together.
    #[must_use]
    pub fn new(requests: usize, pieces: usize, inline_bytes: usize) -> PostStorage {
        // An inline request has a piece too.
        let pieces = pieces + if inline_bytes > 0 { requests } else { 0 };
        PostStorage {
            requests: vec![NO_REQUEST; requests].into_boxed_slice(),
            pieces: vec![NO_PIECE; pieces].into_boxed_slice(),
            inline: vec![0; inline_bytes].into_boxed_slice(),
        }
    }
}

impl Piece {
    /// So many bytes from an address on. A device will reach them through it.
    #[must_use]
    pub fn new(at: *const u8, bytes: u32, lkey: u32) -> Piece {
        Piece { address: at.expose_provenance() as u64, bytes, lkey }
    }
}

impl<'q> PostBatch<'q> {
    pub(super) fn new(queue_pair: &'q mut QueuePair, storage: &'q mut PostStorage) -> PostBatch<'q> {
        PostBatch { queue_pair, storage, requests: 0, pieces: 0, inline: 0, flags: 0 }
    }

    /// Adds a write: the pieces, one after the other, go to the peer's memory.
    ///
    /// # Errors
    /// It does not fit.
    pub fn write(&mut self, id: u64, from: &[Piece], to: RemoteAddress, signalled: bool) -> Result<(), NotAdded> {
        self.add(Request { id, opcode: abi::IBV_WR_RDMA_WRITE, remote: Some(to), signalled }, from)
    }

    /// Adds a read: the peer's memory goes to the pieces, one after the other.
    ///
    /// # Errors
    /// It does not fit.
    pub fn read(&mut self, id: u64, into: &[Piece], from: RemoteAddress, signalled: bool) -> Result<(), NotAdded> {
        self.add(Request { id, opcode: abi::IBV_WR_RDMA_READ, remote: Some(from), signalled }, into)
    }

    /// Adds a message, which takes a receive of the peer.
    ///
    /// # Errors
    /// It does not fit.
    pub fn send(&mut self, id: u64, from: &[Piece], signalled: bool) -> Result<(), NotAdded> {
        self.add(Request { id, opcode: abi::IBV_WR_SEND, remote: None, signalled }, from)
    }

    /// Adds a message whose bytes are copied now.
    ///
    /// # Errors
    /// It does not fit.
    pub fn send_inline(&mut self, id: u64, bytes: &[u8], signalled: bool) -> Result<(), NotAdded> {
        self.add_inline(Request { id, opcode: abi::IBV_WR_SEND, remote: None, signalled }, bytes)
    }

    /// Adds a write whose bytes are copied now.
    ///
    /// # Errors
    /// It does not fit.
    pub fn write_inline(&mut self, id: u64, bytes: &[u8], to: RemoteAddress, signalled: bool) -> Result<(), NotAdded> {
        self.add_inline(Request { id, opcode: abi::IBV_WR_RDMA_WRITE, remote: Some(to), signalled }, bytes)
    }

    /// The next request starts only when all READs before it on this queue pair have ended.
    pub fn fence(&mut self) {
        self.flags |= abi::IBV_SEND_FENCE;
    }

    /// Has the last request that was added give a completion.
    pub fn signal_last(&mut self) {
        if let Some(last) = self.requests.checked_sub(1).and_then(|last| self.storage.requests.get_mut(last)) {
            last.send_flags |= abi::IBV_SEND_SIGNALED;
        }
    }

    /// How many requests it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests
    }

    /// True if it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// True if no request fits any more.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.requests == self.storage.requests.len().min(self.queue_pair.caps().send_requests as usize)
    }

    /// Posts the requests, in their order, with one call. An empty batch posts nothing and makes no call.
    ///
    /// # Safety
    /// Each piece is memory registered with its key, and stays so until its request, or a signalled one behind it, has
    /// completed or the queue pair has ended. Until then the device reads it, or writes it for a READ: nobody has a Rust
    /// reference that this would contradict.
    ///
    /// # Errors
    /// Not all of them were posted; it says how many were.
    pub unsafe fn submit(self) -> Result<(), PostFailed> {
        const CALL: &str = "ibv_post_send";
        let none = |error| PostFailed { posted: 0, is_exact: true, error };
        self.queue_pair.check(CALL).map_err(none)?;
        let count = self.requests;
        if count == 0 {
            return Ok(());
        }
        let first = self.storage.link(count);
        let mut bad = std::ptr::null_mut();
        let raw = self.queue_pair.raw();
        // SAFETY: the queue pair is open, so its context has an operation table. The list is copied before the call
        // returns; the caller vouches for the memory that it names.
        let returned = unsafe {
            let post = (*(*raw).context).ops.post_send.ok_or_else(|| none(missing(CALL)))?;
            post(raw, first, &raw mut bad)
        };
        let Err(error) = VerbsError::check(CALL, returned) else { return Ok(()) };
        let stopped_at = index_of(bad, first, count);
        Err(PostFailed { posted: stopped_at.unwrap_or(count), is_exact: stopped_at.is_some(), error })
    }

    fn add(&mut self, request: Request, pieces: &[Piece]) -> Result<(), NotAdded> {
        if self.is_full() || self.storage.pieces.len() - self.pieces < pieces.len() {
            return Err(NotAdded::Full);
        }
        let is_read = request.opcode == abi::IBV_WR_RDMA_READ;
        let most = if is_read { self.queue_pair.read_pieces() } else { self.queue_pair.caps().send_pieces };
        if pieces.len() > most as usize {
            return Err(NotAdded::TooManyPieces);
        }
        if pieces.iter().map(|piece| u64::from(piece.bytes)).sum::<u64>() > MESSAGE_BYTES_MAX {
            return Err(NotAdded::TooLong);
        }
        for (entry, piece) in self.storage.pieces[self.pieces..].iter_mut().zip(pieces) {
            *entry = ibv_sge { addr: piece.address, length: piece.bytes, lkey: piece.lkey };
        }
        self.put(request, pieces.len());
        Ok(())
    }

    fn add_inline(&mut self, request: Request, bytes: &[u8]) -> Result<(), NotAdded> {
        if bytes.len() > self.queue_pair.caps().inline_bytes as usize {
            return Err(NotAdded::InlineTooLong);
        }
        let room = self.storage.inline.len() - self.inline;
        if self.is_full() || self.pieces == self.storage.pieces.len() || room < bytes.len() {
            return Err(NotAdded::Full);
        }
        let end = self.inline + bytes.len();
        self.storage.inline[self.inline..end].copy_from_slice(bytes);
        // The address is filled in when the batch is submitted: here it is the place among the inline bytes.
        let (addr, length) = (self.inline as u64, bytes.len() as u32);
        self.storage.pieces[self.pieces] = ibv_sge { addr, length, lkey: 0 };
        self.inline = end;
        self.flags |= abi::IBV_SEND_INLINE;
        self.put(request, 1);
        Ok(())
    }

    fn put(&mut self, request: Request, pieces: usize) {
        let signalled = if request.signalled { abi::IBV_SEND_SIGNALED } else { 0 };
        let remote = request.remote.unwrap_or(RemoteAddress { address: 0, rkey: 0 });
        self.storage.requests[self.requests] = ibv_send_wr {
            wr_id: request.id,
            num_sge: pieces as i32,
            opcode: request.opcode,
            send_flags: std::mem::take(&mut self.flags) | signalled,
            rdma: ibv_send_wr_rdma { remote_addr: remote.address, rkey: remote.rkey, reserved: [0; 5] },
            ..NO_REQUEST
        };
        self.requests += 1;
        self.pieces += pieces;
    }
}

impl std::fmt::Debug for PostBatch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostBatch").field("requests", &self.requests).finish_non_exhaustive()
    }
}

/// A request without its pieces.
struct Request {
    id: u64,
    opcode: u32,
    remote: Option<RemoteAddress>,
    signalled: bool,
}

impl PostStorage {
    /// Ties the first requests to each other and to their pieces. Returns the first one.
    fn link(&mut self, count: usize) -> *mut ibv_send_wr {
        let inline = self.inline.as_mut_ptr().expose_provenance() as u64;
        let mut next_piece = 0;
        for request in &self.requests[..count] {
            let end = next_piece + request.num_sge as usize;
            if request.send_flags & abi::IBV_SEND_INLINE != 0 {
                self.pieces[next_piece].addr += inline;
            }
            next_piece = end;
        }
        let (first, pieces) = (self.requests.as_mut_ptr(), self.pieces.as_mut_ptr());
        let mut next_piece = 0;
        for i in 0..count {
            let next = if i + 1 < count { first.wrapping_add(i + 1) } else { std::ptr::null_mut() };
            // SAFETY: a request of the batch; only raw pointers reach it from here on.
            unsafe {
                let request = first.add(i);
                (*request).next = next;
                (*request).sg_list = pieces.wrapping_add(next_piece);
                next_piece += (*request).num_sge as usize;
            }
        }
        first
    }
}

impl std::fmt::Debug for PostStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostStorage").field("requests", &self.requests.len()).finish_non_exhaustive()
    }
}

/// Which request of the batch the device stopped at. `None` if it named none, or something else: siw names none when all
/// were put in its queue and only its doorbell failed.
fn index_of(bad: *mut ibv_send_wr, first: *mut ibv_send_wr, count: usize) -> Option<usize> {
    let offset = bad.addr().checked_sub(first.addr())?;
    let index = offset / size_of::<ibv_send_wr>();
    (offset % size_of::<ibv_send_wr>() == 0 && index < count).then_some(index)
}

const NO_PIECE: ibv_sge = ibv_sge { addr: 0, length: 0, lkey: 0 };

const NO_REQUEST: ibv_send_wr = ibv_send_wr {
    wr_id: 0,
    next: std::ptr::null_mut(),
    sg_list: std::ptr::null_mut(),
    num_sge: 0,
    opcode: 0,
    send_flags: 0,
    imm_data: 0,
    rdma: ibv_send_wr_rdma { remote_addr: 0, rkey: 0, reserved: [0; 5] },
    xrc_remote_srqn: 0,
    bind_mw: [0; 6],
};

/// 2 GiB, the limit of a message of InfiniBand.
const MESSAGE_BYTES_MAX: u64 = 1 << 31;
