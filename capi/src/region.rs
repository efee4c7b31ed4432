//! Memory that the batches of one client can name.

use crate::args::{given, hand_over, place, text};
use crate::client::{Inner, enter, scatter_ring_client};
use crate::engine::check_memory;
use crate::error::{Failure, run, scatter_ring_error};
use rust::client::{ClientError, Region};
use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory that the batches of one client can name. While a batch that uses it is under way the memory stays, whatever
/// handle is freed. Any thread may use the functions that take only a region, several at a time.
pub struct scatter_ring_region(pub Arc<Named>);

/// A region, also after its handle was freed.
pub struct Named {
    pub region: Region,
    /// The number of its client.
    pub client: u64,
    closed: AtomicBool,
}

impl Named {
    /// An error if batches of the client cannot name it.
    pub fn check(&self, client: u64) -> Result<(), ClientError> {
        if self.client != client {
            return Err(ClientError::Foreign);
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(ClientError::Closed);
        }
        Ok(())
    }
}

/// Makes a region of a client by a call, and hands it over.
fn made(
    client: Option<&scatter_ring_client>,
    place: &mut MaybeUninit<*mut scatter_ring_region>,
    make: impl FnOnce(&mut Inner) -> Result<Region, Failure>,
) -> Result<i32, Failure> {
    let region = make(&mut *enter(client)?)?;
    let client = given(client, "client")?.serial();
    let named = Named { region, client, closed: AtomicBool::new(false) };
    Ok(hand_over(place, scatter_ring_region(Arc::new(named))))
}

/// New memory of this process, all 0, that batches may read and write; scatter_ring_region_data() says where it is.
///
/// @param bytes At least 1.
/// @param region Set to a handle that the caller owns and ends with scatter_ring_region_free(); to NULL if the call
/// fails.
/// @return 0; SCATTER_RING_STATUS_NO_MEMORY, SCATTER_RING_STATUS_LIMIT_EXCEEDED, SCATTER_RING_STATUS_INVALID_SETTING
/// for 0 bytes.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_region_allocate(
    client: Option<&scatter_ring_client>,
    bytes: u64,
    region: Option<&mut MaybeUninit<*mut scatter_ring_region>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || made(client, place(region, "region")?, |inner| Ok(inner.client.allocate(bytes)?)))
}

/// Memory for row numbers or records, of at least so many bytes, that nobody else has in hand. The client keeps it, to
/// give it again once this handle is freed and the batches that use it are released: cheaper than new memory.
///
/// @param bytes, region As of scatter_ring_region_allocate(). The memory is not 0, and may be longer.
/// @return As scatter_ring_region_allocate().
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_region_for_index(
    client: Option<&scatter_ring_client>,
    bytes: u64,
    region: Option<&mut MaybeUninit<*mut scatter_ring_region>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || made(client, place(region, "region")?, |inner| Ok(inner.client.index_region(bytes)?)))
}

/// Bytes of a memory file (memfd_create, or a file of a tmpfs), which is mapped and registered.
///
/// @param fd Stays the caller's, who may close it after the call. Open for writing if `rights` say so, and sealed
/// against shrinking (F_SEAL_SHRINK) unless the engine trusts this user.
/// @param offset The first byte, any.
/// @param bytes At least 1.
/// @param rights SCATTER_RING_RIGHTS_READ, SCATTER_RING_RIGHTS_WRITE, or both: what descriptors may do.
/// @param region As of scatter_ring_region_allocate().
/// @return 0; SCATTER_RING_STATUS_BAD_FD for a file that is not usable, SCATTER_RING_STATUS_INVALID_SETTING for more
/// bytes than it has, SCATTER_RING_STATUS_LIMIT_EXCEEDED.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_region_register(
    client: Option<&scatter_ring_client>,
    fd: c_int,
    offset: u64,
    bytes: u64,
    rights: u64,
    region: Option<&mut MaybeUninit<*mut scatter_ring_region>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let region = place(region, "region")?;
        let rights = crate::args::rights(rights)?;
        crate::client::check_open(fd)?;
        // SAFETY: it is open, and stays so during the call, says the header.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        made(client, region, |inner| Ok(inner.client.register_at(fd, offset, bytes, rights)?))
    })
}

/// Memory that this process has mapped from a memory file, shared: the file is found by the mapping, and registered.
/// Nothing is copied.
///
/// @param memory Stays the caller's. It must stay mapped until the region's handle was freed and no batch uses it.
/// @param bytes At least 1.
/// @param rights SCATTER_RING_RIGHTS_READ, SCATTER_RING_RIGHTS_WRITE, or both: what descriptors may do.
/// @param region As of scatter_ring_region_allocate().
/// @return 0; SCATTER_RING_STATUS_BAD_FD for private memory (malloc'ed, for example): adopt it in an engine of this
/// process, or lend it: scatter_ring_engine_adopt(), scatter_ring_owner_lend().
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_region_adopt(
    client: Option<&scatter_ring_client>,
    memory: *mut c_void,
    bytes: u64,
    rights: u64,
    region: Option<&mut MaybeUninit<*mut scatter_ring_region>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let region = place(region, "region")?;
        let rights = crate::args::rights(rights)?;
        check_memory(memory, bytes)?;
        made(client, region, |inner| {
            // SAFETY: the memory stays mapped, says the header. C has no references to it.
            Ok(unsafe { inner.client.adopt(memory.cast(), bytes, rights) }?)
        })
    })
}

/// Memory that somebody has exported under this name at the client's engine, for batches only.
///
/// @param rights SCATTER_RING_RIGHTS_READ, SCATTER_RING_RIGHTS_WRITE, or both: what is wanted of it.
/// @param region As of scatter_ring_region_allocate().
/// @return 0; SCATTER_RING_STATUS_NAME_UNKNOWN, SCATTER_RING_STATUS_NO_RIGHT, SCATTER_RING_STATUS_LIMIT_EXCEEDED.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_region_open(
    client: Option<&scatter_ring_client>,
    name: *const c_char,
    rights: u64,
    region: Option<&mut MaybeUninit<*mut scatter_ring_region>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let region = place(region, "region")?;
        // SAFETY: NULL or a string, says the header.
        let name = unsafe { text(name, "name") }?;
        let rights = crate::args::rights(rights)?;
        made(client, region, |inner| Ok(inner.client.open(name, rights)?))
    })
}

/// Memory that a client of another engine, or that engine's process itself, has exported under this name, for batches
/// only: as if it were exported here. When the peer is lost batches with it fail with SCATTER_RING_STATUS_REGION_GONE;
/// it is opened anew after the next scatter_ring_client_connect_peer().
///
/// @param peer What scatter_ring_client_connect_peer() of this client has given.
/// @param rights, region As of scatter_ring_region_open().
/// @return As scatter_ring_region_open(); SCATTER_RING_STATUS_PEER_UNREACHABLE.
///
/// Threads: one at a time with this client; it waits for the other engine. Fork: SCATTER_RING_STATUS_FORKED in a
/// child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_region_open_at(
    client: Option<&scatter_ring_client>,
    peer: u64,
    name: *const c_char,
    rights: u64,
    region: Option<&mut MaybeUninit<*mut scatter_ring_region>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let region = place(region, "region")?;
        // SAFETY: NULL or a string, says the header.
        let name = unsafe { text(name, "name") }?;
        let rights = crate::args::rights(rights)?;
        made(client, region, |inner| {
            let peer = inner.peer(peer)?;
            Ok(inner.client.open_at(peer, name, rights)?)
        })
    })
}

/// Gives a region a name by which other clients of the engine, and its peers, can open it, until it is closed or the
/// session ends.
///
/// @param name 1 to 168 bytes of UTF-8.
/// @param rights What they may do: no more than the region may itself.
/// @return 0; SCATTER_RING_STATUS_NAME_TAKEN, SCATTER_RING_STATUS_NO_RIGHT, SCATTER_RING_STATUS_UNKNOWN_REGION for a
/// region of another client or a closed one.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_region_export(
    client: Option<&scatter_ring_client>,
    region: Option<&scatter_ring_region>,
    name: *const c_char,
    rights: u64,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        // SAFETY: NULL or a string, says the header.
        let name = unsafe { text(name, "name") }?;
        let rights = crate::args::rights(rights)?;
        enter(client)?.client.export(&given(region, "region")?.0.region, name, rights)?;
        Ok(0)
    })
}

/// Ends a registration or an opening, and returns when nobody touches the memory any more. The handle stays, useless
/// for batches: scatter_ring_region_free().
///
/// @return 0; SCATTER_RING_STATUS_NOT_ALLOWED while a batch of this client uses it, SCATTER_RING_STATUS_UNKNOWN_REGION
/// for a region of another client or a closed one.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_region_close(
    client: Option<&scatter_ring_client>,
    region: Option<&scatter_ring_region>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let entered = enter(client)?;
        let named = &given(region, "region")?.0;
        let closed = entered.client.close(&named.region);
        // Busy, or of another client: nothing has happened to it.
        if !matches!(&closed, Err(ClientError::Busy | ClientError::Foreign | ClientError::Forked)) {
            named.closed.store(true, Ordering::Release);
        }
        closed?;
        Ok(0)
    })
}

/// Frees a region's handle. When no batch uses the memory any more and no recorded one names it, the engine is told to
/// forget it, and memory that the library has mapped is unmapped: scatter_ring_region_data() dangles.
///
/// @param region The handle, which is gone afterwards. NULL: nothing happens.
///
/// Threads: any, once. Fork: in a child only the child's handle is freed.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_region_free(region: Option<Box<scatter_ring_region>>) {
    run(None, || {
        drop(region);
        Ok(0)
    });
}

/// The first byte of a region in this process; NULL for an opened one, whose bytes are elsewhere.
///
/// The memory is the region's: valid until its handle is freed. A batch that is under way may write it at any time:
/// read what a batch has written only after its outcome, and do not write what a batch reads or writes before that.
///
/// Threads: any. Fork: in a child the memory is still shared with the parent: leave it alone. NULL: NULL.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_region_data(region: Option<&scatter_ring_region>) -> *mut c_void {
    region.and_then(|region| region.0.region.as_ptr()).map_or(std::ptr::null_mut(), |data| data.cast())
}

/// Bytes of a region. NULL: 0. Threads: any, also in a forked child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_region_bytes(region: Option<&scatter_ring_region>) -> u64 {
    region.map_or(0, |region| region.0.region.bytes())
}

/// What descriptors may do with a region: SCATTER_RING_RIGHTS_... bits. NULL: 0. Threads: any, also in a forked child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_region_rights(region: Option<&scatter_ring_region>) -> u64 {
    region.map_or(0, |region| region.0.region.rights().bits())
}

/// The number by which descriptors name a region, never 0. NULL: 0. Threads: any, also in a forked child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_region_handle(region: Option<&scatter_ring_region>) -> u32 {
    region.map_or(0, |region| region.0.region.handle().0)
}

/// True while a batch that is under way uses a region. (Raw descriptors are not counted.) NULL: false. Threads: any,
/// also in a forked child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_region_is_busy(region: Option<&scatter_ring_region>) -> bool {
    region.is_some_and(|region| region.0.region.is_busy())
}

/// Copies bytes out of a region, checked.
///
/// @param offset, bytes Which, in bytes.
/// @param out `bytes` bytes of the caller's, outside of every region.
/// @return 0; SCATTER_RING_STATUS_NOT_ALLOWED while a batch that writes the region is under way,
/// SCATTER_RING_STATUS_NO_RIGHT for an opened region, SCATTER_RING_STATUS_OUT_OF_RANGE.
///
/// Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_region_read(
    region: Option<&scatter_ring_region>,
    offset: u64,
    out: *mut c_void,
    bytes: usize,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let region = &given(region, "region")?.0.region;
        // SAFETY: the caller's memory for so many bytes, which may be anything, says the header.
        let out = unsafe { crate::args::array_mut(out.cast::<u8>(), bytes, "out") }?;
        region.read_at(offset, out)?;
        Ok(0)
    })
}

/// Copies bytes into a region, checked.
///
/// @param offset, bytes Where to, in bytes.
/// @param data `bytes` bytes of the caller's, outside of every region.
/// @return 0; SCATTER_RING_STATUS_NOT_ALLOWED while a batch that uses the region is under way,
/// SCATTER_RING_STATUS_NO_RIGHT for an opened region or memory that is mapped for reading only,
/// SCATTER_RING_STATUS_OUT_OF_RANGE.
///
/// Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_region_write(
    region: Option<&scatter_ring_region>,
    offset: u64,
    data: *const c_void,
    bytes: usize,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let region = &given(region, "region")?.0.region;
        // SAFETY: so many bytes of the caller's, says the header.
        let data = unsafe { crate::args::array(data.cast::<u8>(), bytes, "data") }?;
        region.write_at(offset, data)?;
        Ok(0)
    })
}
