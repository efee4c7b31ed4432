//! Lending memory of this process to an engine in another one.

use crate::args::{given, hand_over, place, text};
use crate::engine::{check_memory, scatter_ring_engine};
use crate::error::{Failure, run, scatter_ring_error};
use crate::signals::Blocked;
use rust::owner::{Lent, Owner, Setup};
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

/// A session that lends memory of this process to an engine that cannot map it (malloc'ed memory and a daemon), and
/// the thread that packs and unpacks what clients ask for. Any thread may use it, several at a time. In a forked child
/// every call returns SCATTER_RING_STATUS_FORKED.
pub struct scatter_ring_owner(Owner);

/// Memory that is lent. Any thread may use it, one at a time.
pub struct scatter_ring_lent(#[expect(dead_code, reason = "it is there to be dropped")] Lent);

/// Attaches to the engine that listens at `path`, to lend memory.
///
/// @param owner Set to a handle that the caller owns and ends with scatter_ring_owner_free(); to NULL if the call
/// fails.
/// @return 0; SCATTER_RING_STATUS_ENGINE_LOST if nobody listens there, SCATTER_RING_STATUS_NOT_ALLOWED,
/// SCATTER_RING_STATUS_VERSION_MISMATCH, SCATTER_RING_STATUS_MISSING_FEATURE if the engine cannot serve lent memory.
///
/// Threads: any. Fork: the session stays the parent's; a child attaches by itself.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_owner_attach(
    path: *const c_char,
    owner: Option<&mut MaybeUninit<*mut scatter_ring_owner>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let owner = place(owner, "owner")?;
        // SAFETY: NULL or a string, says the header.
        let path = unsafe { text(path, "path") }?;
        let _signals = Blocked::new();
        Ok(hand_over(owner, scatter_ring_owner(Owner::attach(path)?)))
    })
}

/// The same for an engine in this process. (Its own memory it adopts without this: scatter_ring_engine_adopt().)
///
/// @return As scatter_ring_owner_attach().
///
/// Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child of the engine's process.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_owner_attach_engine(
    engine: Option<&scatter_ring_engine>,
    owner: Option<&mut MaybeUninit<*mut scatter_ring_owner>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let owner = place(owner, "owner")?;
        let socket = given(engine, "engine")?.connect()?;
        let _signals = Blocked::new();
        Ok(hand_over(owner, scatter_ring_owner(Owner::over(socket, &Setup::default())?)))
    })
}

/// Lends memory under a name, by which clients of the engine can open it. Nothing is copied before somebody asks.
///
/// @param memory Stays the caller's. It must stay where it is until scatter_ring_lent_release() or
/// scatter_ring_owner_free() has returned; until then clients may read it at any time and, with that right, write it.
/// @param bytes At least 1.
/// @param rights SCATTER_RING_RIGHTS_READ, SCATTER_RING_RIGHTS_WRITE, or both.
/// @param lent Set to a handle that the caller owns and ends with scatter_ring_lent_release(); to NULL if the call
/// fails.
/// @return 0; SCATTER_RING_STATUS_NAME_TAKEN, SCATTER_RING_STATUS_INVALID_SETTING, SCATTER_RING_STATUS_ENGINE_LOST.
///
/// Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_owner_lend(
    owner: Option<&scatter_ring_owner>,
    name: *const c_char,
    memory: *mut c_void,
    bytes: u64,
    rights: u64,
    lent: Option<&mut MaybeUninit<*mut scatter_ring_lent>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let lent = place(lent, "lent")?;
        // SAFETY: NULL or a string, says the header.
        let name = unsafe { text(name, "name") }?;
        let rights = crate::args::rights(rights)?;
        check_memory(memory, bytes)?;
        // SAFETY: the memory stays until it was released, says the header. C has no references to it.
        let memory =
            unsafe { given(owner, "owner")?.0.lend(name, memory.cast(), bytes, rights) }.map_err(Failure::from)?;
        Ok(hand_over(lent, scatter_ring_lent(memory)))
    })
}

/// True once the engine is gone or has ended the session: nothing is served any more, and the memory is left alone.
///
/// Threads: any. Fork: true in a child. NULL: true.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_owner_is_lost(owner: Option<&scatter_ring_owner>) -> bool {
    owner.is_none_or(|owner| owner.0.is_lost())
}

/// Takes lent memory back: refuses new use, returns when nobody touches the memory any more, and frees the handle.
///
/// @param lent The handle, which is gone afterwards. NULL: nothing happens.
///
/// Threads: any, once. Fork: in a child only the child's handle is freed.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_lent_release(lent: Option<Box<scatter_ring_lent>>) {
    run(None, || {
        drop(lent);
        Ok(0)
    });
}

/// Ends a session that lends memory, and takes all of it back. Its handles of lent memory may be released before or
/// after.
///
/// @param owner The handle, which is gone afterwards. NULL: nothing happens.
///
/// Threads: any, once, when no other call with it is under way. Fork: in a child only the child's handle is freed.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_owner_free(owner: Option<Box<scatter_ring_owner>>) {
    run(None, || {
        drop(owner);
        Ok(0)
    });
}
