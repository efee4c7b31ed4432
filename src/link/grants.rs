//! What the other side may touch.
//!
//! A grant is in use only for the length of one system call: a lane pins the grants that a call names, makes the call, and
//! unpins them. So a peer that stops in the middle of a payload holds no memory, and a revocation waits for one call.

use super::{GrantId, RemotePiece, Violation};
use crate::region::{Region, Rights};
use crate::sync::{AtomicU64, Ordering};
use crate::verbs::{MemoryRegion, ProtectionDomain};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The grants of one link, shared by its lanes. A clone names the same ones.
#[derive(Clone, Debug)]
pub struct Grants {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    /// The device by which the other side reaches what is granted, if one does that.
    domain: Option<Arc<ProtectionDomain>>,
    /// Revocations that wait to be told; written with the table locked.
    ended: AtomicU64,
}

#[derive(Debug)]
struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    limit: u32,
    ended: VecDeque<Ended>,
}

#[derive(Debug)]
struct Slot {
    /// Of the grant that is here, or was last. An id with a lower one has been revoked.
    generation: u32,
    memory: Option<Memory>,
}

#[derive(Debug)]
struct Memory {
    /// By which the other side's device reaches it. Before the region, because it is dropped before it.
    registered: Option<Registered>,
    region: Arc<Region>,
    offset: u64,
    bytes: u64,
    rights: Rights,
    once: bool,
    used: bool,
    revoked: bool,
    spoiled: bool,
    /// An operation has written all of it, as one piece, to its end.
    filled: bool,
    /// Pieces of operations that write and have not come to their end.
    open: u32,
    /// Calls that name it at this moment.
    pins: u32,
}

#[derive(Debug)]
struct Ended {
    id: GrantId,
    spoiled: bool,
    /// Given up by whoever takes this, without the lock: the last one unmaps it.
    _region: Arc<Region>,
}

/// A registration for one grant, or one that all grants of a region with the same rights share.
#[derive(Debug)]
enum Registered {
    Alone(MemoryRegion),
    Shared(Arc<MemoryRegion>),
}

/// A grant as devices name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteKey {
    pub address: u64,
    pub bytes: u64,
    /// `None`: no device reaches it.
    pub remote_key: Option<u32>,
}

/// How often the other side may name a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// In one operation. Every later one finds it used up.
    Once,
    /// In any number.
    Many,
}

/// What has become of a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// Nobody touches the memory any more.
    Now {
        /// Bytes that came for it are not to be used: the source was lost while it was sent, or the destination was, or
        /// an operation that writes to it was not carried out to its end.
        spoiled: bool,
    },
    /// A call is moving bytes of it: [`Event::Revoked`](super::Event::Revoked) will say when it is over.
    Later,
}

/// Why memory is not granted, or a grant cannot be revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// The region is withdrawn or lost.
    #[error("the region is withdrawn or lost")]
    RegionGone,
    /// No bytes, or bytes outside the region.
    #[error("the range is not inside the region")]
    OutOfRange,
    /// The region does not have these rights.
    #[error("the region does not have these rights")]
    NoRight,
    /// The device does not take it.
    #[error("the region cannot be registered with the RDMA device")]
    NotRegistered,
    /// As many grants as the link can have.
    #[error("too many grants")]
    TooMany,
    /// Revoked before, or never granted.
    #[error("there is no such grant")]
    Unknown,
}

/// What a frame's pieces are, when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// All of them may be used.
    Usable {
        /// One of the regions may be lost, so that it must be asked at the end.
        may_be_lost: bool,
    },
    /// One has been revoked or used up, or its region is withdrawn.
    Gone,
    /// The region of one is lost.
    Lost,
}

impl Grants {
    /// At most `limit` grants at a time.
    #[must_use]
    pub(super) fn new(limit: u32) -> Grants {
        let (slots, ended) = (Vec::with_capacity(limit as usize), VecDeque::with_capacity(limit as usize));
        let table = Table { slots, free: Vec::with_capacity(limit as usize), limit, ended };
        Grants { shared: Arc::new(Shared { table: Mutex::new(table), domain: None, ended: AtomicU64::new(0) }) }
    }

    /// The same, for another side whose device reaches this side's memory by itself: what is granted is registered, and what
    /// is taken back is so no more. How often a grant is used is the other side's matter then.
    #[must_use]
    pub(super) fn with_device(limit: u32, domain: &Arc<ProtectionDomain>) -> Grants {
        let mut grants = Grants::new(limit);
        if let Some(shared) = Arc::get_mut(&mut grants.shared) {
            shared.domain = Some(domain.clone());
        }
        grants
    }

    /// The device by which the other side reaches what is granted, if one does that.
    #[must_use]
    pub fn domain(&self) -> Option<&Arc<ProtectionDomain>> {
        self.shared.domain.as_ref()
    }

    /// True if the other side's device reaches what is granted by itself. Then taking a grant back that is in use ends the
    /// link: the other side must be known to have left it.
    #[must_use]
    pub fn are_of_device(&self) -> bool {
        self.shared.domain.is_some()
    }

    /// Lets the other side touch `bytes` bytes of a region from `offset` on.
    ///
    /// # Errors
    /// See [`GrantError`].
    pub fn grant(
        &self,
        region: Arc<Region>,
        offset: u64,
        bytes: u64,
        rights: Rights,
        usage: Use,
    ) -> Result<GrantId, GrantError> {
        check(&region, (offset, bytes), rights)?;
        let registered = self.register(&region, (offset, bytes), rights, usage)?;
        self.insert(region, (offset, bytes), rights, usage, registered)
    }

    /// As [`grant`](Self::grant), for one WRITE into memory that is there for this link only: the other side's device
    /// reaches all of it by a registration that is made once.
    ///
    /// # Errors
    /// See [`GrantError`].
    pub fn grant_slot(
        &self,
        slots: &Arc<Region>,
        (offset, bytes): (u64, u64),
        made: Option<&Arc<MemoryRegion>>,
    ) -> Result<GrantId, GrantError> {
        check(slots, (offset, bytes), Rights::WRITE)?;
        if self.are_of_device() && made.is_none() {
            return Err(GrantError::NotRegistered);
        }
        let registered = made.cloned().map(Registered::Shared);
        self.insert(slots.clone(), (offset, bytes), Rights::WRITE, Use::Once, registered)
    }

    fn insert(
        &self,
        region: Arc<Region>,
        (offset, bytes): (u64, u64),
        rights: Rights,
        usage: Use,
        registered: Option<Registered>,
    ) -> Result<GrantId, GrantError> {
        // What a device has written nobody else has seen: its message behind the writes is all there is to go by.
        let filled = registered.is_some();
        let memory = Memory {
            registered,
            region,
            offset,
            bytes,
            rights,
            once: usage == Use::Once,
            used: false,
            revoked: false,
            spoiled: false,
            filled,
            open: 0,
            pins: 0,
        };
        self.table().insert(memory).ok_or(GrantError::TooMany)
    }

    /// Has the other side's device reach it. Landings are registered by themselves, so that nothing else of their regions is
    /// reached; what is granted for long has one registration for all who may do the same with it.
    fn register(
        &self,
        region: &Arc<Region>,
        range: (u64, u64),
        rights: Rights,
        usage: Use,
    ) -> Result<Option<Registered>, GrantError> {
        let Some(domain) = &self.shared.domain else { return Ok(None) };
        let is_whole = range == (0, region.bytes());
        match usage {
            Use::Many if is_whole => Ok(region.share(domain, rights).ok().map(Registered::Shared)),
            Use::Many => Ok(region.expose(domain, range, rights).ok().map(Registered::Alone)),
            // Without it nothing can land there.
            Use::Once => match region.expose(domain, range, rights) {
                Ok(made) => Ok(Some(Registered::Alone(made))),
                Err(_) => Err(GrantError::NotRegistered),
            },
        }
    }

    /// What the other side's device has to know of a grant.
    pub(super) fn key(&self, id: GrantId) -> Option<RemoteKey> {
        let mut table = self.table();
        let memory = table.memory(id).ok().flatten()?;
        let address = (memory.region.as_ptr().addr() as u64).checked_add(memory.offset)?;
        let remote_key = memory.registered.as_ref().map(|registered| match registered {
            Registered::Alone(made) => made.rkey(),
            Registered::Shared(made) => made.rkey(),
        });
        Some(RemoteKey { address, bytes: memory.bytes, remote_key })
    }

    /// Takes a grant back. From here on bytes that come for it go nowhere.
    ///
    /// # Errors
    /// [`GrantError::Unknown`].
    pub fn revoke(&self, id: GrantId) -> Result<Revoked, GrantError> {
        let mut table = self.table();
        let memory = table.memory(id).ok().flatten().ok_or(GrantError::Unknown)?;
        memory.spoiled |= memory.open > 0;
        if memory.pins > 0 {
            memory.revoked = true;
            return Ok(Revoked::Later);
        }
        let ended = table.remove(id);
        drop(table);
        Ok(Revoked::Now { spoiled: ended.is_some_and(|ended| ended.spoiled) })
    }

    /// Whether bytes that came for it are not to be used, as [`Revoked::Now`] would say.
    ///
    /// # Errors
    /// [`GrantError::Unknown`].
    pub fn is_spoiled(&self, id: GrantId) -> Result<bool, GrantError> {
        self.table().memory(id).ok().flatten().map(|memory| memory.spoiled).ok_or(GrantError::Unknown)
    }

    /// Whether all of it was written by one operation, as one piece, and what is there can be used. Who waits for as much
    /// does not use what somebody else has left in this memory before.
    #[must_use]
    pub fn is_filled(&self, id: GrantId) -> bool {
        self.table().memory(id).ok().flatten().is_some_and(|memory| memory.filled && !memory.spoiled)
    }

    /// Grants that have not been revoked, or are still in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table().slots.iter().filter(|slot| slot.memory.is_some()).count()
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks a frame's pieces and uses up what is for one use.
    pub(super) fn begin(&self, pieces: &[RemotePiece], wanted: Rights) -> Result<Begun, Violation> {
        let mut table = self.table();
        let (mut may_be_lost, mut gone, mut lost) = (false, false, false);
        for piece in pieces {
            let Some(memory) = table.memory(piece.grant)? else {
                gone = true;
                continue;
            };
            if !memory.rights.covers(wanted) {
                return Err(Violation("not the right that was granted"));
            }
            let inside = piece.offset.checked_add(piece.len.into()).is_some_and(|end| end <= memory.bytes);
            if !inside {
                return Err(Violation("a piece outside its grant"));
            }
            gone |= (memory.once && memory.used) || memory.region.is_withdrawn();
            lost |= memory.region.is_lost();
            may_be_lost |= memory.region.may_be_lost();
        }
        for piece in pieces {
            if let Some(memory) = table.memory(piece.grant)? {
                memory.used = true;
                memory.open += u32::from(wanted.write);
            }
        }
        Ok(if gone {
            Begun::Gone
        } else if lost {
            Begun::Lost
        } else {
            Begun::Usable { may_be_lost }
        })
    }

    /// What has become of pieces that have begun.
    pub(super) fn still(&self, pieces: &[RemotePiece]) -> Begun {
        let mut table = self.table();
        let mut may_be_lost = false;
        for piece in pieces {
            match table.memory(piece.grant) {
                Ok(Some(memory)) if memory.region.is_lost() => return Begun::Lost,
                Ok(Some(memory)) => may_be_lost |= memory.region.may_be_lost(),
                _ => return Begun::Gone,
            }
        }
        Begun::Usable { may_be_lost }
    }

    /// Pins the grants of `pieces`, which have begun, for one call: says where each piece is, and notes in `pinned` what to
    /// [unpin](Self::unpin). False: one is revoked; nothing was pinned, and what was said is not to be used.
    pub(super) fn pin(
        &self,
        pieces: &[RemotePiece],
        pinned: &mut Vec<GrantId>,
        mut each: impl FnMut(*mut u8, u32),
    ) -> bool {
        let mut table = self.table();
        let before = pinned.len();
        for piece in pieces {
            let Ok(Some(memory)) = table.memory(piece.grant) else {
                while pinned.len() > before {
                    pinned.pop().and_then(|id| table.slot(id)).into_iter().for_each(|memory| memory.pins -= 1);
                }
                return false;
            };
            if pinned.last() != Some(&piece.grant) || pinned.len() == before {
                memory.pins += 1;
                pinned.push(piece.grant);
            }
            let at = memory.region.as_ptr().wrapping_add((memory.offset + piece.offset) as usize);
            each(at, piece.len);
        }
        true
    }

    /// Gives back all that is pinned. True: a revocation is over, and the poller should hear of it.
    pub(super) fn unpin(&self, pinned: &mut Vec<GrantId>) -> bool {
        if pinned.is_empty() {
            return false;
        }
        let mut table = self.table();
        let before = table.ended.len();
        for id in pinned.drain(..) {
            let Some(memory) = table.slot(id) else { continue };
            memory.pins -= 1;
            if memory.revoked
                && memory.pins == 0
                && let Some(ended) = table.remove(id)
            {
                table.ended.push_back(ended);
            }
        }
        self.shared.ended.store(table.ended.len() as u64, Ordering::Relaxed);
        table.ended.len() > before
    }

    /// The end of a frame that began with the right to write: true if memory of it is lost. What is lost or `bad` is
    /// spoiled.
    pub(super) fn finish(&self, pieces: &[RemotePiece], bad: bool) -> bool {
        let lost = self.any_lost(pieces);
        let mut table = self.table();
        for piece in pieces {
            // Of a grant that was revoked meanwhile that has said it.
            if let Ok(Some(memory)) = table.memory(piece.grant) {
                memory.open = memory.open.saturating_sub(1);
                memory.spoiled |= lost || bad;
                memory.filled |= piece.offset == 0 && u64::from(piece.len) == memory.bytes;
            }
        }
        lost
    }

    pub(super) fn any_lost(&self, pieces: &[RemotePiece]) -> bool {
        let mut table = self.table();
        pieces.iter().any(|piece| table.slot(piece.grant).is_some_and(|memory| memory.region.is_lost()))
    }

    /// A revocation that is over and has not been told.
    pub(super) fn take_ended(&self) -> Option<(GrantId, bool)> {
        if !self.has_ended() {
            return None;
        }
        let mut table = self.table();
        let ended = table.ended.pop_front();
        self.shared.ended.store(table.ended.len() as u64, Ordering::Relaxed);
        drop(table);
        ended.map(|ended| (ended.id, ended.spoiled))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Relaxed) != 0
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.shared.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether memory can be granted so.
fn check(region: &Region, (offset, bytes): (u64, u64), rights: Rights) -> Result<(), GrantError> {
    let inside = bytes > 0 && offset.checked_add(bytes).is_some_and(|end| end <= region.bytes());
    if !inside {
        Err(GrantError::OutOfRange)
    } else if !region.rights().covers(rights) {
        Err(GrantError::NoRight)
    } else if region.is_withdrawn() || region.is_lost() {
        Err(GrantError::RegionGone)
    } else {
        Ok(())
    }
}

impl Table {
    fn insert(&mut self, memory: Memory) -> Option<GrantId> {
        // Revocations that nobody has taken count, so that their queue never grows.
        if self.ended.len() as u32 >= self.limit {
            return None;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if (self.slots.len() as u32) < self.limit => {
                self.slots.push(Slot { generation: 0, memory: None });
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[index as usize];
        slot.generation += 1;
        slot.memory = Some(memory);
        Some(GrantId(u64::from(slot.generation) << 32 | u64::from(index)))
    }

    /// The memory of a grant that has not been revoked; `None` of one that has been.
    fn memory(&mut self, id: GrantId) -> Result<Option<&mut Memory>, Violation> {
        let (index, generation) = ((id.0 as u32) as usize, (id.0 >> 32) as u32);
        let slot = self.slots.get_mut(index).ok_or(Violation("an unknown grant"))?;
        if generation == 0 || generation > slot.generation {
            return Err(Violation("an unknown grant"));
        }
        let is_current = generation == slot.generation;
        Ok(slot.memory.as_mut().filter(|memory| is_current && !memory.revoked))
    }

    /// The memory of a grant that is not over, even if it is revoked.
    fn slot(&mut self, id: GrantId) -> Option<&mut Memory> {
        let slot = self.slots.get_mut((id.0 as u32) as usize)?;
        if slot.generation == (id.0 >> 32) as u32 { slot.memory.as_mut() } else { None }
    }

    fn remove(&mut self, id: GrantId) -> Option<Ended> {
        let index = id.0 as u32;
        let slot = self.slots.get_mut(index as usize)?;
        let memory = slot.memory.take()?;
        // A slot whose generations are used up is retired.
        if slot.generation < u32::MAX {
            self.free.push(index);
        }
        Some(Ended { id, spoiled: memory.spoiled, _region: memory.region })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Huge;

    const BOTH: Rights = Rights::READ_WRITE;

    fn region() -> Arc<Region> {
        Arc::new(Region::allocate(4096, Huge::Never).unwrap().0)
    }

    fn piece(grant: GrantId, offset: u64, len: u32) -> [RemotePiece; 1] {
        [RemotePiece { grant, offset, len }]
    }

    #[test]
    fn an_id_is_given_out_once_and_an_old_one_is_gone_and_not_unknown() {
        let grants = Grants::new(2);
        let mut ids = std::collections::HashSet::new();
        for _ in 0..1000 {
            let id = grants.grant(region(), 0, 10, BOTH, Use::Many).unwrap();
            assert!(ids.insert(id));
            assert_eq!(grants.begin(&piece(id, 0, 10), Rights::READ), Ok(Begun::Usable { may_be_lost: false }));
            assert_eq!(grants.revoke(id), Ok(Revoked::Now { spoiled: false }));
            assert_eq!(grants.revoke(id), Err(GrantError::Unknown));
            assert_eq!(grants.begin(&piece(id, 0, 10), BOTH), Ok(Begun::Gone));
        }
        let newest = ids.iter().max().unwrap().0;
        for unknown in [GrantId(newest + (1 << 32)), GrantId(newest + 1), GrantId(0), GrantId(u64::MAX)] {
            assert!(grants.begin(&piece(unknown, 0, 1), BOTH).is_err(), "{unknown:?}");
        }
    }

    #[test]
    fn a_grant_is_for_its_range_its_rights_and_its_number_of_uses() {
        let grants = Grants::new(4);
        let id = grants.grant(region(), 4000, 96, Rights::READ, Use::Once).unwrap();
        for (offset, len) in [(0, 97), (96, 1), (u64::MAX, 1), (1, 96), (1 << 40, 1)] {
            assert!(grants.begin(&piece(id, offset, len), Rights::READ).is_err(), "{len} bytes at {offset}");
        }
        assert!(grants.begin(&piece(id, 0, 1), Rights::WRITE).is_err());
        assert_eq!(grants.begin(&piece(id, 95, 1), Rights::READ), Ok(Begun::Usable { may_be_lost: false }));
        assert_eq!(grants.begin(&piece(id, 95, 1), Rights::READ), Ok(Begun::Gone), "used up");
    }

    #[test]
    fn a_grant_is_spoiled_by_what_did_not_end_well_or_not_at_all() {
        let grants = Grants::new(1);
        for (finished, bad, spoiled) in [(true, false, false), (true, true, true), (false, false, true)] {
            let id = grants.grant(region(), 0, 10, BOTH, Use::Many).unwrap();
            grants.begin(&piece(id, 0, 10), Rights::WRITE).unwrap();
            if finished {
                assert!(!grants.finish(&piece(id, 0, 10), bad));
                assert_eq!(grants.is_spoiled(id), Ok(spoiled));
            }
            grants.begin(&piece(id, 0, 10), Rights::READ).unwrap();
            assert_eq!(grants.revoke(id), Ok(Revoked::Now { spoiled }), "finished {finished}, bad {bad}");
        }
    }

    #[test]
    fn a_grant_is_filled_by_one_piece_that_is_all_of_it() {
        let grants = Grants::new(1);
        for (offset, len, bad, filled) in
            [(0, 10, false, true), (0, 10, true, false), (0, 9, false, false), (1, 9, false, false)]
        {
            let id = grants.grant(region(), 0, 10, BOTH, Use::Once).unwrap();
            assert!(!grants.is_filled(id));
            grants.begin(&piece(id, offset, len), Rights::WRITE).unwrap();
            assert!(!grants.is_filled(id), "it has only begun");
            grants.finish(&piece(id, offset, len), bad);
            assert_eq!(grants.is_filled(id), filled, "{len} bytes at {offset}, bad {bad}");
            grants.revoke(id).unwrap();
            assert!(!grants.is_filled(id));
        }
    }

    #[test]
    fn what_is_withdrawn_or_not_there_is_not_granted() {
        let (grants, withdrawn) = (Grants::new(1), region());
        withdrawn.withdraw();
        let ask = |region: &Arc<Region>, offset, bytes| grants.grant(region.clone(), offset, bytes, BOTH, Use::Many);
        assert_eq!(ask(&withdrawn, 0, 1), Err(GrantError::RegionGone));
        for (offset, bytes) in [(0, 0), (0, 4097), (4096, 1), (u64::MAX, 2)] {
            assert_eq!(ask(&region(), offset, bytes), Err(GrantError::OutOfRange));
        }
        let kept = region();
        let id = ask(&kept, 0, 1).unwrap();
        assert_eq!(ask(&region(), 0, 1), Err(GrantError::TooMany));
        kept.withdraw();
        assert_eq!(grants.begin(&piece(id, 0, 1), BOTH), Ok(Begun::Gone), "withdrawn after it was granted");
    }

    #[test]
    fn a_revocation_ends_with_the_last_pin_and_keeps_the_memory_until_then() {
        let (grants, memory) = (Grants::new(3), region());
        let ids = [0, 8].map(|offset| grants.grant(memory.clone(), offset, 8, BOTH, Use::Many).unwrap());
        let pieces = [0, 0, 1].map(|i| RemotePiece { grant: ids[i], offset: 1, len: 2 });
        let (mut first, mut second, mut places) = (Vec::new(), Vec::new(), Vec::new());
        assert!(grants.pin(&pieces, &mut first, |at, len| places.push((at, len))));
        assert_eq!(places, [1, 1, 9].map(|offset| (memory.as_ptr().wrapping_add(offset), 2)));
        assert!(grants.pin(&pieces[2..], &mut second, |_, _| {}));
        assert_eq!(grants.revoke(ids[1]), Ok(Revoked::Later));
        assert_eq!(grants.revoke(ids[1]), Err(GrantError::Unknown), "once");
        let mut third = Vec::new();
        assert!(!grants.pin(&pieces, &mut third, |_, _| {}) && third.is_empty());
        assert!(!grants.unpin(&mut first));
        assert_eq!((grants.take_ended(), Arc::strong_count(&memory)), (None, 3));
        assert!(grants.unpin(&mut second));
        assert_eq!(grants.take_ended(), Some((ids[1], false)));
        assert_eq!((grants.take_ended(), Arc::strong_count(&memory)), (None, 2));
        assert_eq!(grants.revoke(ids[0]), Ok(Revoked::Now { spoiled: false }), "a pin that was not taken");
    }
}
