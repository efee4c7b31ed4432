//! A caller's batches as its ring sees them.

use super::Job;
use crate::pipeline::{Ledger, TransferId};
use crate::plan::Fault;
use ring_abi::{Span, SpanFlags};

/// The ledger of a caller's ring, and the spans that it gave.
pub struct Account {
    ledger: Ledger,
    /// Payload of each descriptor of a batch.
    bytes: Vec<u64>,
    batches: Vec<Known>,
    spans: Vec<Span>,
    next_position: u64,
}

/// What the ledger knows of a batch.
#[derive(Clone, Debug, Default)]
struct Known {
    first: Option<u64>,
    transfers: Vec<TransferId>,
}

impl Account {
    pub fn new(job: &Job, batches: u32) -> Account {
        let parts = job.parts.len() as u32;
        Account {
            ledger: Ledger::new(batches + 1, parts.saturating_mul(batches)),
            bytes: job.parts.iter().map(super::Part::bytes).collect(),
            batches: vec![Known::default(); batches as usize],
            spans: Vec::new(),
            next_position: u64::MAX - 2,
        }
    }

    /// All descriptors of a batch are taken, and started.
    pub fn begin(&mut self, batch: usize, now_ns: u64) {
        let known = &mut self.batches[batch];
        if known.first.is_some() {
            return;
        }
        known.first = Some(self.next_position);
        self.ledger.begin(self.next_position);
        for part in 0..self.bytes.len() {
            self.ledger.took(1, part as u64, part + 1 == self.bytes.len(), now_ns);
            known.transfers.push(self.ledger.start(now_ns));
        }
        self.next_position = self.next_position.wrapping_add(self.bytes.len() as u64);
    }

    /// The client cancels, or the deadline passes.
    pub fn cancel(&mut self, batch: usize, now_ns: u64) {
        self.begin(batch, now_ns);
        if let Some(first) = self.batches[batch].first {
            self.ledger.cancel(first, now_ns);
        }
        self.reap();
    }

    /// Nothing of the batch is under way. If it is not done and was not cancelled, its fault is that of a part.
    pub fn end(&mut self, batch: usize, done: bool, fault: Option<(usize, Fault)>, now_ns: u64) {
        let transfers = std::mem::take(&mut self.batches[batch].transfers);
        for (part, id) in transfers.into_iter().enumerate() {
            if done {
                self.ledger.finish(id, self.bytes[part], now_ns);
            } else {
                let fault = fault.filter(|(failed, _)| *failed == part).map(|(_, fault)| fault);
                self.ledger.abandon(id, fault, now_ns);
            }
        }
        self.reap();
    }

    fn reap(&mut self) {
        while let Some(outcome) = self.ledger.next_outcome() {
            self.spans.push(outcome.span);
        }
    }

    /// Batches whose spans do not cover each of their descriptors once, end once, and release what they held once. The
    /// memory of those that were called finished is to be released.
    pub fn wrong(&self) -> u32 {
        let parts = self.bytes.len() as u64;
        let is_wrong = |known: &Known| {
            let Some(first) = known.first else { return false };
            let of_batch = |span: &&Span| span.first.wrapping_sub(first) < parts;
            let mut covered = vec![0u32; parts as usize];
            let (mut ends, mut held, mut released) = (0, false, 0);
            for span in self.spans.iter().filter(of_batch) {
                let flags = |flag: u16| span.flags & flag != 0;
                if flags(SpanFlags::RELEASED) {
                    released += 1;
                    continue;
                }
                ends += u32::from(flags(SpanFlags::BATCH_DONE));
                held |= flags(SpanFlags::HELD);
                let from = span.first.wrapping_sub(first);
                (from..from + u64::from(span.count)).for_each(|at| {
                    if let Some(times) = covered.get_mut(at as usize) {
                        *times += 1;
                    }
                });
            }
            let is_over = known.transfers.is_empty();
            let covered_once = covered.iter().all(|times| *times == 1);
            is_over && !(covered_once && ends == 1 && released == u32::from(held))
        };
        self.batches.iter().filter(|known| is_wrong(known)).count() as u32
    }
}
