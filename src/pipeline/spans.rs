//! What a batch's spans say.

use super::batch::{Batch, Phase, Stages};
use ring_abi::{Field, Route, Span, SpanFlags, Stage, Status};

impl Batch {
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.phase != Phase::Ended && self.deadline_ns.is_some_and(|d| d <= now_ns)
    }

    /// The one span of a batch that is done.
    pub(super) fn success(&self, now_ns: u64) -> Span {
        Span {
            bytes: self.done_bytes,
            user_data: self.done_user_data,
            flags: SpanFlags::BATCH_DONE,
            ..self.timed(self.first, self.taken, now_ns)
        }
    }

    /// The completed descriptors of a batch that has ended early.
    pub(super) fn done(&self, now_ns: u64) -> Option<Span> {
        if self.done_to == self.first {
            return None;
        }
        Some(Span {
            bytes: self.done_bytes,
            user_data: self.done_user_data,
            flags: self.held(),
            ..self.timed(self.first, self.done_to, now_ns)
        })
    }

    /// The failing descriptor, and those before it that had not finished when a deadline cut the drain short.
    pub(super) fn failing(&self, now_ns: u64) -> Option<Span> {
        let (taken, fault) = self.failure.as_ref()?;
        Some(Span {
            status: fault.status.0,
            user_data: taken.user_data,
            flags: self.held(),
            stage: fault.stage.0,
            queue_ns: fault.fragment,
            plan_ns: fault.detail as u32,
            command_ns: (fault.detail >> 32) as u32,
            total_ns: saturating(now_ns, self.taken_ns),
            field: fault.field.0,
            ..self.bare(self.done_to, taken.end())
        })
    }

    /// What had been taken and was not completed when the batch was stopped.
    pub(super) fn stopped(&self, status: Status, now_ns: u64) -> Option<Span> {
        if self.done_to == self.taken {
            return None;
        }
        Some(Span {
            status: status.0,
            user_data: self.current.user_data,
            flags: self.held(),
            stage: Stage::WAIT.0,
            total_ns: saturating(now_ns, self.taken_ns),
            field: Field::NONE.0,
            ..self.bare(self.done_to, self.taken)
        })
    }

    /// What nothing was done for, up to LAST.
    pub(super) fn rest(&self, held: u16, now_ns: u64) -> Option<Span> {
        if self.done_to == self.taken {
            return None;
        }
        let stage = if self.tail_status == Status::NOT_DONE { Stage::NONE } else { Stage::WAIT };
        Some(Span {
            status: self.tail_status.0,
            user_data: self.current.user_data,
            flags: SpanFlags::BATCH_DONE | held,
            stage: stage.0,
            total_ns: saturating(now_ns, self.taken_ns),
            field: Field::NONE.0,
            ..self.bare(self.done_to, self.taken)
        })
    }

    pub(super) fn released(&self, now_ns: u64) -> Span {
        Span {
            status: self.end_status.0,
            flags: SpanFlags::RELEASED,
            total_ns: saturating(now_ns, self.taken_ns),
            ..self.bare(self.first, self.first)
        }
    }

    pub(super) fn timed(&self, from: u64, to: u64, now_ns: u64) -> Span {
        let started = self.started_ns.unwrap_or(self.taken_ns);
        let route = self.done_by.route();
        let Stages { plan_ns, command_ns, pack_ns, window_ns } = self.stages;
        // On one host the copying is all there is.
        let window_ns = match (window_ns, route) {
            (0, Route::NONE) => 0,
            (0, _) => now_ns.saturating_sub(started),
            (known, _) => known,
        };
        Span {
            route: route.0,
            queue_ns: saturating(started, self.taken_ns),
            plan_ns: saturating(plan_ns, 0),
            command_ns: saturating(command_ns, 0),
            pack_ns: saturating(pack_ns, 0),
            window_ns: saturating(window_ns, 0),
            total_ns: saturating(now_ns, self.taken_ns),
            ..self.bare(from, to)
        }
    }

    pub(super) fn bare(&self, from: u64, to: u64) -> Span {
        Span { first: from, count: to.wrapping_sub(from) as u32, ..Span::ZERO }
    }

    pub(super) fn held(&self) -> u16 {
        if self.in_flight > 0 { SpanFlags::HELD } else { 0 }
    }
}

fn saturating(later_ns: u64, earlier_ns: u64) -> u32 {
    u32::try_from(later_ns.saturating_sub(earlier_ns)).unwrap_or(u32::MAX)
}
