//! Where a part is planned: a planner, the index words that it works on, parcels to plan into.

use crate::engine::remote::{Parcel, Remotes, SeatId};
use crate::pack::NumberWindow;
use crate::pipeline::BatchId;
use crate::plan::{Fault, Numbers, Planner, Progress, Rules, Transfer};
use crate::region::Region;
use ring_abi::{Field, Route, Stage, Status};
use std::sync::Arc;

/// What planning a part needs, and can be used by the next one.
#[derive(Debug, Default)]
pub(in crate::engine) struct Desk {
    pub(super) planner: Planner,
    window: NumberWindow,
    /// To be planned into. Each call of the planner may fill one on either route.
    #[expect(clippy::vec_box, reason = "parcels go round by pointer")]
    spares: Vec<Box<Parcel>>,
}

/// Those that no part has.
pub(in crate::engine) type Desks = Vec<Box<Desk>>;

/// A transfer that waits to be planned.
#[derive(Debug)]
pub(super) struct Queued {
    pub transfer: Transfer,
    pub index: Option<Arc<Region>>,
    /// Number of its flight in the part.
    pub flight: u32,
    /// The route that its descriptor asks for; NONE: any.
    pub forced: Route,
    /// Next fragment to plan.
    pub next: u32,
    /// The words from there on are in the desk's window.
    pub is_loaded: bool,
}

/// Where full parcels go.
pub(super) struct Way<'a> {
    pub remotes: &'a mut Remotes,
    pub seat: SeatId,
    pub batch: BatchId,
    pub regions: &'a [(u32, Arc<Region>)],
}

/// Parcels that one step of planning may fill.
const SPARES: usize = 2;

impl Desk {
    /// Copies the index words of the next fragments, unless they are there already.
    ///
    /// # Errors
    /// The index region is lost.
    pub(super) fn load(&mut self, queued: &mut Queued) -> Result<(), Fault> {
        if queued.is_loaded {
            return Ok(());
        }
        // SAFETY: the transfer was checked against the index region, which is kept with it.
        unsafe { self.window.load(&queued.transfer, queued.index.as_deref(), queued.next) };
        queued.is_loaded = true;
        let handle = queued.transfer.shape.regions[2];
        let is_lost = queued.index.as_ref().is_some_and(|index| index.is_lost());
        let lost = Fault::new(Status::REGION_GONE, Stage::PLAN, Field::INDEX_REGION, handle.into());
        if is_lost { Err(lost) } else { Ok(()) }
    }

    pub(super) fn numbers(&self) -> Numbers<'_> {
        self.window.numbers()
    }

    /// Plans what is loaded. `None`: the connection has no room for another parcel now. Else the fragments and the payload
    /// that were planned.
    ///
    /// # Errors
    /// The first fragment that cannot be done.
    pub(super) fn plan(
        &mut self,
        queued: &mut Queued,
        rules: Rules,
        way: &mut Way<'_>,
    ) -> Result<Option<(u32, u64)>, Fault> {
        let Queued { transfer, flight, forced, next, is_loaded, .. } = queued;
        self.planner.number(*flight);
        self.planner.set_rules(with_route(rules, *forced));
        loop {
            if !self.has_spares(way.seat, way.batch, way.remotes) {
                return Ok(None);
            }
            match self.planner.add(transfer, *next, self.window.numbers())? {
                Progress::Full => self.send(way),
                Progress::Taken => break,
            }
        }
        let (count, bytes) = (self.window.count(), self.window.bytes(transfer));
        *next = next.saturating_add(count);
        *is_loaded = false;
        Ok(Some((count, bytes)))
    }

    /// Plans a single range. There [are spares](Self::has_spares).
    #[inline]
    pub(super) fn plan_single(&mut self, single: &Transfer, way: &mut Way<'_>) {
        // It fills two parcels at most, one on either route.
        while self.planner.add(single, 0, Numbers::COUNTED) == Ok(Progress::Full) {
            self.send(way);
        }
    }

    /// Sends what is open. False: the connection has no room for another parcel now.
    pub(super) fn finish(&mut self, way: &mut Way<'_>) -> bool {
        loop {
            if !self.has_spares(way.seat, way.batch, way.remotes) {
                return false;
            }
            match self.planner.finish() {
                Progress::Full => self.send(way),
                Progress::Taken => return true,
            }
        }
    }

    /// Gives unused parcels back.
    pub(super) fn clear(&mut self, remotes: &mut Remotes) {
        self.spares.drain(..).for_each(|spare| remotes.give_back(spare));
    }

    /// True if there are parcels for what one call of the planner can fill.
    #[inline]
    pub(super) fn has_spares(&mut self, seat: SeatId, batch: BatchId, remotes: &mut Remotes) -> bool {
        while self.spares.len() < SPARES {
            let Some(parcel) = remotes.parcel(seat, batch) else { return false };
            self.spares.push(parcel);
        }
        true
    }

    #[cold]
    fn send(&mut self, way: &mut Way<'_>) {
        let Some(mut parcel) = self.spares.pop() else { return };
        self.planner.take(&mut parcel.chunk);
        parcel.regions.clear();
        parcel.regions.extend(way.regions.iter().cloned());
        way.remotes.add(way.seat, way.batch, parcel);
    }
}

fn with_route(rules: Rules, forced: Route) -> Rules {
    let direct_from_bytes = match forced {
        Route::DIRECT => 0,
        Route::GATHER => u32::MAX,
        _ => rules.direct_from_bytes,
    };
    Rules { direct_from_bytes, ..rules }
}
