//! Memory that the batches of a session can name, and how it is found again by its address or its handle.

use crate::array::Keep;
use crate::engine::Lent;
use crate::errors::Failure;
use crate::session::Session;
use pyo3::prelude::*;
use ring_abi::Status;
use scatter_ring::client::Region;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// One region. Arrays, tensors and transfers that use it keep it, and so its mapping.
///
/// The fields are dropped in this order: what the memory is of is the last that goes.
pub struct Memory {
    pub region: Region,
    pub session: Arc<Session>,
    /// 0: opened, the bytes are elsewhere.
    pub address: usize,
    /// Views of it may be written.
    pub writable: bool,
    closed: AtomicBool,
    /// Private memory of this process, that its engine has adopted for it.
    _adopted: Option<Lent>,
    /// The array whose memory it is.
    _keep: Option<Keep>,
}

/// What adopted memory is of.
#[derive(Default)]
pub struct Origin {
    pub address: usize,
    pub adopted: Option<Lent>,
    pub keep: Option<Keep>,
}

/// All memory of a session, weakly.
#[derive(Default)]
pub struct Memories(Mutex<BTreeMap<Key, Weak<Memory>>>);

/// Address, and the handle, which tells apart what was opened, and what was adopted twice.
type Key = (usize, u32);

impl Memory {
    /// Memory of a region that is this process's, or, with an address of 0, is not.
    pub fn new(session: &Arc<Session>, region: Region, writable: bool, origin: Origin) -> Arc<Memory> {
        let Origin { address, adopted, keep } = origin;
        let address = region.as_ptr().map_or(address, |first| first.expose_provenance());
        let memory = Arc::new(Memory {
            region,
            session: session.clone(),
            address,
            writable,
            closed: AtomicBool::new(false),
            _adopted: adopted,
            _keep: keep,
        });
        session.memories.lock().insert(memory.key(), Arc::downgrade(&memory));
        memory
    }

    fn key(&self) -> Key {
        (self.address, self.region.handle().0)
    }

    pub fn bytes(&self) -> usize {
        self.region.bytes() as usize
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Ends the registration or the opening. Arrays stay what they are.
    pub fn close(&self, py: Python<'_>) -> Result<(), Failure> {
        if self.is_closed() {
            return Ok(());
        }
        let closed = self.session.without_gil(py, |locked| {
            locked.take_spans().ok();
            Ok(locked.client()?.close(&self.region)?)
        });
        match closed {
            // The session is over, and its regions with it.
            Err(Failure::Closed(_)) => {}
            Err(Failure::Request(error)) if error.status() == Status::ENGINE_LOST => {}
            other => other?,
        }
        self.closed.store(true, Ordering::Release);
        Ok(())
    }

    /// An error unless descriptors of this session may use it so.
    pub fn check(&self, session: &Arc<Session>, what: &str, writes: bool) -> Result<(), Failure> {
        if !Arc::ptr_eq(&self.session, session) {
            return Err(Failure::region(
                Status::UNKNOWN_REGION,
                format!("{what}: this memory belongs to another client"),
            ));
        }
        if self.is_closed() {
            return Err(Failure::Closed("this memory"));
        }
        let rights = self.region.rights();
        if writes && !rights.write {
            let text = format!("{what}: read-only: it was opened or registered without writable=True");
            return Err(Failure::region(Status::NO_RIGHT, text));
        }
        if !writes && !rights.read {
            return Err(Failure::region(Status::NO_RIGHT, format!("{what}: it may only be written")));
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Of a child the lock may be somebody's who is not there.
        if !self.session.is_child() {
            self.session.memories.lock().remove(&self.key());
        }
    }
}

impl Memories {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Weak<Memory>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory that these bytes of this process lie in; closed one only if there is no other.
    pub fn find(&self, address: usize, bytes: usize) -> Option<Arc<Memory>> {
        // An array of no elements may be nowhere.
        if address == 0 {
            return None;
        }
        // Dropped behind the lock: it may be the last that knows of some memory.
        let (mut others, mut closed) = (Vec::new(), None);
        let memories = self.lock();
        // Adopted memory may lie within other memory: the nearest start is not always the one.
        for memory in memories.range((1, 0)..=(address, u32::MAX)).rev().filter_map(|(_, memory)| memory.upgrade()) {
            match address - memory.address + bytes <= memory.bytes() {
                true if !memory.is_closed() => return Some(memory),
                true if closed.is_none() => closed = Some(memory),
                _ => others.push(memory),
            }
        }
        closed
    }

    /// The memory of a handle.
    pub fn of_handle(&self, handle: u32) -> Option<Arc<Memory>> {
        let memories = self.lock();
        memories.iter().find(|((_, other), _)| *other == handle).and_then(|(_, memory)| memory.upgrade())
    }
}
