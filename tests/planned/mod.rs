//! Planning against the model's memory, in the order in which a session asks for regions.

// Each test file that shares this module uses another part of it.
#![allow(dead_code)]

use crate::model::{Failure, Memory, Region};
use ring_abi::{Descriptor, Entry, Field, IndexKind, Stage, Status};
use scatter_ring::plan::{self, Extent, Fault, Notice, Request, Shape, Transfer};

/// What a descriptor turned out to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planned {
    Nothing,
    Begin { deadline_ns: u64 },
    Cancel { target: u64 },
    Transfer(Transfer),
    Notify(Notice),
}

pub fn plan(d: &Descriptor, second: Option<&Entry>, is_first: bool, memory: &Memory) -> Result<Planned, Fault> {
    Ok(match plan::check(d, second, is_first, false)? {
        Request::Nop => Planned::Nothing,
        Request::Begin { deadline_ns, .. } => Planned::Begin { deadline_ns },
        Request::Cancel { target } => Planned::Cancel { target },
        Request::Transfer(shape) => {
            let transfer = resolve(&shape, memory)?;
            if transfer.is_empty() { Planned::Nothing } else { Planned::Transfer(transfer) }
        }
        Request::Notify(notice) => {
            find_notice(&notice, memory)?;
            Planned::Notify(notice)
        }
    })
}

fn resolve(shape: &Shape, memory: &Memory) -> Result<Transfer, Fault> {
    let find = |which: usize, field: Field, grants: fn(&Region) -> bool| {
        let handle = shape.regions[which];
        let region = match memory.find(handle) {
            None => Err(Status::UNKNOWN_REGION),
            Some(region) if region.gone => Err(Status::REGION_GONE),
            Some(region) if !grants(region) => Err(Status::NO_RIGHT),
            Some(region) => Ok(Extent { bytes: region.bytes.len() as u64, misalignment: 0 }),
        };
        region.map_err(|status| Fault::new(status, Stage::PLAN, field, handle.into()))
    };
    let src = find(0, Field::SRC_REGION, |region| region.read);
    let dst = find(1, Field::DST_REGION, |region| region.write);
    let has_index = shape.kinds.iter().any(|kind| *kind != IndexKind::None);
    let index = has_index.then(|| find(2, Field::INDEX_REGION, |region| region.read)).transpose();
    // All three must exist before rights are looked at.
    for fault in [src.err(), dst.err(), index.err()].into_iter().flatten() {
        if fault.status != Status::NO_RIGHT {
            return Err(fault);
        }
    }
    shape.bounds(src?, dst?, index?)
}

pub fn find_notice(notice: &Notice, memory: &Memory) -> Result<(), Fault> {
    notice.check(
        |handle| match memory.find(handle) {
            None => Err(Status::UNKNOWN_REGION),
            Some(region) if region.gone => Err(Status::REGION_GONE),
            Some(region) if !region.read => Err(Status::NO_RIGHT),
            Some(region) => Ok(region.bytes.len() as u64),
        },
        |handle| match memory.find(handle) {
            None => Err(Status::UNKNOWN_REGION),
            Some(region) if region.gone => Err(Status::REGION_GONE),
            Some(region) if region.engines_own => Err(Status::UNSUPPORTED),
            Some(_) => Ok(()),
        },
    )
}

pub fn failure(fault: Fault) -> Failure {
    let Fault { status, stage, field, fragment, detail } = fault;
    Failure { status, stage, field, fragment, detail }
}

pub fn fault(failure: Failure) -> Fault {
    let Failure { status, stage, field, fragment, detail } = failure;
    Fault { status, stage, field, fragment, detail }
}
