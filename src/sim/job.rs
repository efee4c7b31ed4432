//! What is moved, and its planning window by window.

use crate::plan::{Chunk, Direction, Fault, Numbers, Planner, Progress, Rules, Transfer, WINDOW, Words, Work, survey};
use ring_abi::IndexKind;

/// One batch.
#[derive(Clone, Debug)]
pub struct Job {
    /// READ: the sources are the owner's. WRITE: the destinations are.
    pub direction: Direction,
    /// Its descriptors.
    pub parts: Vec<Part>,
}

/// One descriptor, and its index.
#[derive(Clone, Debug)]
pub struct Part {
    /// Checked against its regions. Not of irregular fragments.
    pub transfer: Transfer,
    /// Source row numbers, one a fragment. Empty: counted.
    pub src: Vec<u32>,
    /// Destination row numbers. Empty: counted.
    pub dst: Vec<u32>,
}

/// How a job is written into the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submit {
    /// One descriptor a part, and row numbers.
    Index,
    /// One descriptor a fragment: taking and planning cost more, the plan is the same.
    Rows,
}

impl Job {
    /// Payload.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(Part::bytes).sum()
    }

    /// Fragments of all parts.
    #[must_use]
    pub fn fragments(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.transfer.shape.count)).sum()
    }

    /// What the planner counts of it before it plans.
    #[must_use]
    pub fn work(&self) -> Work {
        let mut work = Work::default();
        for part in &self.parts {
            survey(&part.transfer, part.numbers(0), &mut work);
        }
        work
    }
}

impl Part {
    /// Payload.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.transfer.shape.count) * self.transfer.shape.fragment_bytes()
    }

    /// What one side's row numbers reach over: bytes from the start of its region to the end of what may be touched.
    #[must_use]
    pub fn table_bytes(&self, side: usize) -> u64 {
        let shape = &self.transfer.shape;
        let max = if side == 0 { self.transfer.src_max } else { self.transfer.dst_max };
        let largest = match shape.kinds[side] {
            IndexKind::None => u64::from(shape.count.saturating_sub(1)),
            _ => max.unwrap_or(0),
        };
        largest.saturating_mul(shape.strides[side].into()).saturating_add(shape.len.into())
    }

    /// Index words from a fragment on, at most a window of them.
    fn numbers(&self, from: u32) -> Numbers<'_> {
        let words = |numbers: &'_ [u32]| -> (usize, usize) {
            let from = (from as usize).min(numbers.len());
            (from, (from + WINDOW).min(numbers.len()))
        };
        let side = |numbers, kind| {
            let (from, to): (usize, usize) = words(numbers);
            if kind == IndexKind::None { Words::Counted } else { Words::U32(&numbers[from..to]) }
        };
        let kinds = self.transfer.shape.kinds;
        Numbers::Rows { src: side(&self.src, kinds[0]), dst: side(&self.dst, kinds[1]) }
    }

    fn has_index(&self) -> bool {
        self.transfer.shape.kinds.iter().any(|kind| *kind != IndexKind::None)
    }
}

/// Plans a job chunk by chunk.
#[derive(Debug)]
pub struct Feed<'a> {
    job: &'a Job,
    planner: Planner,
    part: usize,
    /// The first fragment of the window.
    fragment: u32,
    /// The planner has seen the window.
    begun: bool,
}

/// What a step of planning gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A chunk.
    Chunk,
    /// Nothing more is to come.
    End,
}

impl<'a> Feed<'a> {
    pub fn new(job: &'a Job, rules: Rules) -> Feed<'a> {
        let mut planner = Planner::new();
        planner.begin(rules);
        Feed { job, planner, part: 0, fragment: 0, begun: false }
    }

    /// The descriptor that is planned next.
    pub fn part(&self) -> usize {
        self.part
    }

    /// Plans up to the next chunk, and says how many fragments had to be looked at. A window that gives several chunks
    /// counts for the first; what is counted and not listed is not looked at one by one, unless each fragment is a
    /// descriptor.
    pub fn next(&mut self, chunk: &mut Chunk, submit: Submit) -> (Result<Step, Fault>, u64) {
        let mut looked = 0;
        while let Some(part) = self.job.parts.get(self.part) {
            let count = part.transfer.shape.count;
            let listed = part.has_index();
            let window = if listed { (count - self.fragment).min(WINDOW as u32) } else { count };
            if !self.begun {
                looked += if listed || submit == Submit::Rows { u64::from(window) } else { 1 };
                self.begun = true;
            }
            match self.planner.add(&part.transfer, self.fragment, part.numbers(self.fragment)) {
                Err(fault) => return (Err(fault), looked),
                Ok(Progress::Full) => {
                    self.planner.take(chunk);
                    return (Ok(Step::Chunk), looked);
                }
                Ok(Progress::Taken) => {
                    self.begun = false;
                    self.fragment += window;
                    if self.fragment >= count {
                        (self.part, self.fragment) = (self.part + 1, 0);
                    }
                }
            }
        }
        let step = match self.planner.finish() {
            Progress::Full => {
                self.planner.take(chunk);
                Step::Chunk
            }
            Progress::Taken => Step::End,
        };
        (Ok(step), looked)
    }
}
