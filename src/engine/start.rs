//! From a descriptor to something under way: what it means, whether the regions that it names are there, its first step.

use super::memory::Memory;
use super::parts::RemoteTransfer;
use super::session::Session;
use super::staged::StagedRun;
use crate::pack::Run;
use crate::pipeline::TransferId;
use crate::plan::{self, Direction, Fault, Notice, Request, Shape, Transfer};
use crate::region::{Region, Rights};
use ring_abi::{Descriptor, Entry, Field, Flags, Handle, Route, Stage, Status};
use std::sync::Arc;

/// A descriptor that may be started.
pub(super) enum Checked {
    Nothing,
    Begin { deadline_ns: u64, hint_bytes: u64 },
    Cancel { target: u64 },
    Transfer(Transfer, Memory, Memory, Option<Arc<Region>>),
    Remote(RemoteTransfer),
    Notify(Notice),
}

fn unsupported(shape: &Shape, which: usize, field: Field) -> Fault {
    Fault::new(Status::UNSUPPORTED, Stage::PLAN, field, shape.regions[which].into())
}

/// The route that a descriptor asks for.
fn forced(d: &Descriptor) -> Route {
    match d.flags & (Flags::DIRECT | Flags::GATHER) {
        Flags::DIRECT => Route::DIRECT,
        Flags::GATHER => Route::GATHER,
        _ => Route::NONE,
    }
}

impl Session {
    pub(super) fn check(&self, d: &Descriptor, extension: Option<&Entry>, first: bool) -> Result<Checked, Fault> {
        let has_peer =
            d.flags & Flags::GATHER != 0 && [d.src_region, d.dst_region].into_iter().any(|h| self.is_remote(h));
        match plan::check(d, extension, first, has_peer)? {
            Request::Nop => Ok(Checked::Nothing),
            Request::Begin { deadline_ns, hint_bytes } => Ok(Checked::Begin { deadline_ns, hint_bytes }),
            Request::Cancel { target } => Ok(Checked::Cancel { target }),
            Request::Transfer(shape) => self.resolve(&shape, forced(d)),
            Request::Notify(notice) => self.recipient(&notice).map(|_| Checked::Notify(notice)),
        }
    }

    fn is_remote(&self, handle: u32) -> bool {
        let granted = self.regions.get(Handle(handle));
        // What is gone may have been.
        granted.is_some_and(|granted| granted.memory.as_ref().is_none_or(|memory| memory.remote().is_some()))
    }

    /// Finds the regions of a transfer and checks it against them.
    fn resolve(&self, shape: &Shape, forced: Route) -> Result<Checked, Fault> {
        let find = |which: usize, rights, field| {
            let handle = shape.regions[which];
            self.granted(handle, rights)
                .map(|region| (region, handle))
                .map_err(|status| (status, Fault::new(status, Stage::PLAN, field, handle.into())))
        };
        let has_index = shape.kinds.iter().any(|kind| *kind != ring_abi::IndexKind::None);
        let src = find(0, Rights::READ, Field::SRC_REGION);
        let dst = find(1, Rights::WRITE, Field::DST_REGION);
        let index = has_index.then(|| find(2, Rights::READ, Field::INDEX_REGION)).transpose();
        // All three must exist before rights are looked at.
        for found in [src.as_ref().err(), dst.as_ref().err(), index.as_ref().err()].into_iter().flatten() {
            if found.0 != Status::NO_RIGHT {
                return Err(found.1);
            }
        }
        let (src, dst, index) = (src.map_err(|e| e.1)?.0, dst.map_err(|e| e.1)?.0, index.map_err(|e| e.1)?);
        let index = index.map(|found| found.0);
        // Only what is mapped can be read by the poller.
        let mapped = |memory: &Memory| memory.mapped().cloned();
        let region = index.map(|index| mapped(index).ok_or_else(|| unsupported(shape, 2, Field::INDEX_REGION)));
        let index_region = region.transpose()?;
        let transfer = shape.bounds(src.extent(), dst.extent(), index.map(Memory::extent))?;
        if transfer.is_empty() {
            return Ok(Checked::Nothing);
        }
        let (remote, other, direction) = match (src.remote(), dst.remote()) {
            (None, None) => return Ok(Checked::Transfer(transfer, src.clone(), dst.clone(), index_region)),
            (Some(remote), _) => (remote, dst, Direction::Read),
            (None, Some(remote)) => (remote, src, Direction::Write),
        };
        // What neither side of a connection can reach by itself takes two steps.
        let local = mapped(other).ok_or_else(|| match direction {
            Direction::Read => unsupported(shape, 1, Field::DST_REGION),
            Direction::Write => unsupported(shape, 0, Field::SRC_REGION),
        })?;
        let (remote, forced) = (remote.clone(), remote.route(&local, forced));
        Ok(Checked::Remote(RemoteTransfer { transfer, remote, local, direction, index: index_region, forced }))
    }

    #[inline]
    pub(super) fn granted(&self, handle: u32, rights: Rights) -> Result<&Memory, Status> {
        let granted = self.regions.get(Handle(handle)).ok_or(Status::UNKNOWN_REGION)?;
        let is_there = |memory: &&Memory| !memory.is_withdrawn() && !memory.is_lost();
        let memory = granted.memory.as_ref().filter(is_there).ok_or(Status::REGION_GONE)?;
        if granted.rights.covers(rights) { Ok(memory) } else { Err(Status::NO_RIGHT) }
    }

    pub(super) fn start(&mut self, checked: Checked, now_ns: u64) {
        match checked {
            Checked::Nothing | Checked::Begin { .. } => self.ledger.complete(0, false, now_ns),
            Checked::Cancel { target } => {
                if self.ledger.cancel_from_ring(target, now_ns) {
                    self.ledger.complete(0, false, now_ns);
                } else {
                    let fault = Fault::new(Status::NOT_FOUND, Stage::TAKE, Field::SRC_OFFSET, target);
                    self.ledger.fail(fault, now_ns);
                }
            }
            Checked::Transfer(transfer, Memory::Mapped(src), Memory::Mapped(dst), index) => {
                let TransferId(id) = self.ledger.start(now_ns);
                self.runs[id as usize] = Some(Run::new(transfer, src, dst, index));
                self.to_cut.push_back(id);
            }
            Checked::Remote(wanted) => self.start_remote(wanted, now_ns),
            Checked::Notify(notice) => {
                let postponed = self.ledger.postpone();
                self.notices.add(postponed, notice);
            }
            Checked::Transfer(transfer, src, dst, index) => {
                let id = self.ledger.start(now_ns);
                self.start_staged(id, StagedRun::new(transfer, src, dst, index));
            }
        }
    }
}
