//! A wire and the devices at its ends: what each is busy with, and until when.

use crate::cost::LinkProfile;
use std::collections::VecDeque;

/// One direction of the wire. Queues share it in turn, a quantum at a time, as devices send packets of several queues in
/// turn: a long read does not hold up the writes beside it. Within a queue everything goes in order.
#[derive(Clone, Debug)]
pub struct Line {
    bytes_per_ns: f64,
    gap_ns: f64,
    queues: Vec<VecDeque<Load>>,
    /// The queue whose first load has its turn, until when, and how many bytes of it are carried then.
    busy: Option<(usize, u64, u64)>,
    /// Where to look first for the next one.
    next: usize,
}

/// Bytes that wait for a line.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Whose they are.
    pub flow: usize,
    pub bytes: u64,
    /// Those that they belong to. Their gaps come first.
    pub operations: u32,
    /// How much longer than the wire alone the bytes take.
    pub slower: f64,
}

/// The queue of a device: operations are begun in order, one after the other.
#[derive(Clone, Debug)]
pub struct Nic {
    operation_ns: f64,
    free_ns: u64,
}

impl Line {
    pub fn new(link: &LinkProfile, gap_ns: f64, queues: usize) -> Line {
        let queues = vec![VecDeque::new(); queues];
        Line { bytes_per_ns: link.bytes_per_ns, gap_ns, queues, busy: None, next: 0 }
    }

    pub fn add(&mut self, queue: usize, load: Load) {
        self.queues[queue].push_back(load);
    }

    /// Carries something if it was idle and there is something: the flow that it is of, and when that will have
    /// [`ended`](Self::ended).
    pub fn start(&mut self, now_ns: u64) -> Option<(usize, u64)> {
        if self.busy.is_some() {
            return None;
        }
        let waiting = (0..self.queues.len()).map(|i| (self.next + i) % self.queues.len());
        let queue = waiting.into_iter().find(|queue| !self.queues[*queue].is_empty())?;
        let load = self.queues[queue].front_mut()?;
        let bytes = load.bytes.min(QUANTUM_BYTES);
        let gaps_ns = f64::from(std::mem::take(&mut load.operations)) * self.gap_ns;
        let end_ns = now_ns.saturating_add(ns(bytes as f64 / self.bytes_per_ns * load.slower + gaps_ns));
        self.busy = Some((queue, end_ns, bytes));
        self.next = queue + 1;
        Some((load.flow, end_ns))
    }

    /// What it carried: the flow, and how many bytes of it.
    pub fn ended(&mut self) -> Option<(usize, u64)> {
        let (queue, _, bytes) = self.busy.take()?;
        let load = self.queues[queue].front_mut()?;
        load.bytes -= bytes;
        let flow = load.flow;
        if load.bytes == 0 {
            self.queues[queue].pop_front();
        }
        Some((flow, bytes))
    }
}

impl Nic {
    pub fn new(link: &LinkProfile) -> Nic {
        Nic { operation_ns: link.operation_ns, free_ns: 0 }
    }

    /// Begins so many operations: the first one then, the last one then.
    pub fn begin(&mut self, posted_ns: u64, operations: u32) -> (u64, u64) {
        let from = self.free_ns.max(posted_ns);
        self.free_ns = from.saturating_add(ns(f64::from(operations) * self.operation_ns));
        (from, self.free_ns)
    }
}

/// A time as the clock has it. What is not a number or negative is 0, what is infinite is the end of time.
pub fn ns(time: f64) -> u64 {
    (time + 0.5) as u64
}

/// What a queue sends in its turn.
pub const QUANTUM_BYTES: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Wire;

    const LINK: LinkProfile = LinkProfile {
        bytes_per_ns: 10.0,
        round_trip_ns: 2_000.0,
        operation_ns: 100.0,
        doorbell_ns: 0.0,
        completion_ns: 0.0,
        queue_depth: 128,
        max_sge: 1,
        control_ns: 0.0,
        chunk_fixed_ns: 0.0,
        wire: Wire::Nic,
    };

    const ONE: Load = Load { flow: 0, bytes: 1_000, operations: 2, slower: 1.0 };

    #[test]
    fn a_line_is_busy_for_the_bytes_and_the_gaps_of_what_it_carries() {
        let mut line = Line::new(&LINK, 5.0, 1);
        line.add(0, ONE);
        line.add(0, Load { flow: 1, operations: 0, slower: 1.5, ..ONE });
        assert_eq!(line.start(50), Some((0, 160)));
        assert_eq!(line.start(60), None, "busy");
        assert_eq!(line.ended(), Some((0, 1_000)));
        assert_eq!(line.start(160), Some((1, 310)), "slower, without gaps");
        assert_eq!(line.ended(), Some((1, 1_000)));
        assert_eq!((line.start(400), line.ended()), (None, None));
    }

    #[test]
    fn a_long_load_lets_the_other_queues_have_their_turns() {
        let mut line = Line::new(&LINK, 0.0, 2);
        line.add(0, Load { flow: 7, bytes: 2 * QUANTUM_BYTES + 10, ..ONE });
        line.add(0, Load { flow: 8, ..ONE });
        line.add(1, Load { flow: 9, ..ONE });
        let mut order = Vec::new();
        while let Some((_, end_ns)) = line.start(0) {
            let (flow, bytes) = line.ended().unwrap();
            assert_eq!(end_ns, ns(bytes as f64 / 10.0));
            order.push((flow, bytes));
        }
        assert_eq!(order, [(7, QUANTUM_BYTES), (9, 1_000), (7, QUANTUM_BYTES), (7, 10), (8, 1_000)]);
    }

    #[test]
    fn a_device_begins_operations_in_order_at_its_rate() {
        let mut nic = Nic::new(&LINK);
        assert_eq!(nic.begin(10, 3), (10, 310));
        assert_eq!(nic.begin(10, 1), (310, 410));
        assert_eq!(nic.begin(1_000, 1), (1_000, 1_100));
    }

    #[test]
    fn times_that_make_no_sense_do_not_wrap() {
        assert_eq!([ns(f64::NAN), ns(-3.0), ns(1.5), ns(f64::INFINITY)], [0, 0, 2, u64::MAX]);
    }
}
