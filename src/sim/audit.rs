//! What has to hold at the end of a run.

use super::Audit;
use super::world::World;

impl World<'_> {
    pub fn audit(&self) -> Audit {
        let mut audit = Audit { cut_off: self.tally.cut_off, ..Audit::default() };
        let slots = self.choice.slots.max(1);
        for caller in &self.callers {
            for batch in &caller.batches {
                let begun = u32::from(batch.id.is_some());
                audit.not_finished_once += u32::from(batch.finished != begun);
            }
            audit.spans_wrong += caller.account.wrong();
            audit.leases_left += caller.machine.leased();
            audit.lists_left += caller.lists_left() as u32;
        }
        audit.leases_left += self.owner.machine.leased();
        audit.lists_left += self.owner.lists.len() as u32;
        let batches = self.run.batches.clamp(1, super::caller::BATCHES);
        let owner_slots = self.run.owner_slots.unwrap_or(slots * self.run.callers.max(1));
        audit.slots_beyond = self.tally.caller_peak.saturating_sub(slots * batches);
        audit.slots_beyond += self.tally.owner_peak.saturating_sub(owner_slots);
        if let Some(memory) = &self.memory {
            let (right, late_writes) = memory.verdict();
            audit.bytes_right = Some(right);
            audit.late_writes = late_writes;
        }
        audit
    }
}
