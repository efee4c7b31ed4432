//! `T_direct`: one operation for each segment, in windows of one doorbell and one completion.

use super::Bound;
use super::model::Stage;
use super::terms::{Directed, Terms};

/// The direct route's stages.
#[derive(Clone, Copy, Debug)]
pub struct Direct {
    pub operations: f64,
    pub windows: f64,
    /// Planning, and a doorbell and a completion for each window.
    pub plan_ns: f64,
    pub wire_ns: f64,
    /// Until the first window is posted.
    pub before_wire_ns: f64,
    /// From the last byte until its completion is known.
    pub after_wire_ns: f64,
    bytes: f64,
    paused_ns: f64,
    /// The wire has more to do with the operations than with the bytes.
    by_operations: bool,
}

impl Direct {
    pub fn of(load: &Directed, terms: &Terms) -> Direct {
        let operations = load.operations.max(1.0);
        let windows = (operations / terms.window).ceil();
        let planning_ns = terms.plan_ns * load.listed;
        let first = terms.window.min(operations);
        let moved_ns = terms.first_moved_ns(load.bytes * (first / operations), first);
        Direct {
            operations,
            windows,
            plan_ns: planning_ns + windows * (terms.doorbell_ns + terms.completion_ns),
            wire_ns: load.wire_ns,
            before_wire_ns: planning_ns * (terms.window / operations).min(1.0) + terms.doorbell_ns + moved_ns,
            after_wire_ns: terms.round_trip_ns + terms.completion_ns,
            bytes: load.bytes,
            paused_ns: load.paused_ns,
            by_operations: operations * terms.operation_ns > load.bytes * terms.wire_ns_per_byte,
        }
    }

    pub fn stages(&self, terms: &Terms) -> [Stage; 3] {
        let last_window_ns = self.wire_ns / self.windows;
        let wire = if self.by_operations { Bound::Operations } else { Bound::Wire };
        let queue_ns = self.wire_ns + self.paused_ns;
        [
            Stage { bound: wire, head: self.before_wire_ns, time: self.wire_ns, tail: self.after_wire_ns },
            Stage { bound: Bound::Plan, head: 0.0, time: self.plan_ns, tail: last_window_ns + terms.round_trip_ns },
            Stage { bound: Bound::QueueDepth, head: self.before_wire_ns, time: queue_ns, tail: self.after_wire_ns },
        ]
    }

    /// The wire's time for so many of the bytes, or for all if they are less.
    pub fn quantum_ns(&self, bytes: f64) -> f64 {
        self.wire_ns * (bytes / self.bytes.max(1.0)).min(1.0)
    }

    /// The processors' stage where they are the wire; the pollers have their own.
    pub fn processors(&self, ns_per_byte: f64, cores: f64, terms: &Terms) -> Stage {
        Stage {
            bound: Bound::Processors,
            head: self.before_wire_ns,
            time: (self.operations * terms.operation_ns + self.bytes * ns_per_byte) / cores,
            tail: self.after_wire_ns,
        }
    }
}
