//! A part as a session has it: planned chunk by chunk, carried, and compared with a naive copy.

use super::seeded::Random;
use super::{Pair, World, contents, region};
use crate::engine::remote::{News, NoPart, PartId, Remote, Remotes, SeatId, Times};
use crate::pipeline::BatchId;
use crate::plan::{self, Direction, Fault, Missing, Numbers, Planner, Progress, Rules, Shape, Transfer, Words};
use crate::region::{Region, Rights};
use ring_abi::{FragmentRecord, IndexKind};
use std::collections::VecDeque;
use std::sync::Arc;

/// What is to be moved from one region to another.
#[derive(Clone, Debug)]
pub struct Moves {
    /// Source (`None`: zeros), destination, bytes.
    pub fragments: Vec<(Option<u64>, u64, u32)>,
    transfer: Transfer,
    records: Vec<FragmentRecord>,
    rows: Vec<u32>,
    pub src_bytes: usize,
    pub dst_bytes: usize,
}

#[derive(Debug)]
pub struct Job {
    pub part: PartId,
    pub pair: Pair,
    pub direction: Direction,
    slots: u32,
    is_small: bool,
    pub src: Arc<Region>,
    pub dst: Arc<Region>,
    local: Arc<Region>,
    pub remote: Arc<Remote>,
    pub expected: Vec<u8>,
    /// What is still to be added.
    planned: VecDeque<plan::Chunk>,
    pub batch: Option<BatchId>,
    is_closed: bool,
    pub is_refused: bool,
    pub is_cancelled: bool,
    /// What is there when it is done is looked at.
    pub is_checked: bool,
    pub fault: Option<Fault>,
    pub finished: u32,
    pub done: bool,
    pub times: Times,
}

/// The handle of the region on this side.
const HANDLE: u32 = 0x70_0001;

impl Moves {
    /// Fragments of any lengths, each side of which may be contiguous.
    pub fn irregular(random: &mut Random, count: u32, contiguous: [bool; 2], len_max: u32) -> Moves {
        let (mut fragments, mut at) = (Vec::new(), [u64::from(random.small(20)), u64::from(random.small(20))]);
        for _ in 0..count {
            let len = 1 + random.small(len_max);
            fragments.push((Some(at[0]), at[1], len));
            for side in 0..2 {
                let gap = if contiguous[side] { 0 } else { u64::from(random.small(4)) * u64::from(random.small(50)) };
                at[side] += u64::from(len) + gap;
            }
        }
        if !contiguous[0] {
            // In any order.
            for i in (1..fragments.len()).rev() {
                let j = random.below(i as u64 + 1) as usize;
                let (a, b) = (fragments[i], fragments[j]);
                if a.2 == b.2 {
                    (fragments[i].0, fragments[j].0) = (b.0, a.0);
                }
            }
        }
        Moves::of_fragments(fragments, at)
    }

    /// Rows by their numbers, some of which may be missing.
    pub fn rows(random: &mut Random, count: u32, row_bytes: u32, with_zeros: bool) -> Moves {
        let table = 2 * count;
        let (mut rows, mut fragments) = (Vec::new(), Vec::new());
        for i in 0..count {
            let row = if with_zeros && random.once_in(3) { u32::MAX } else { random.small(table) };
            let src = (row != u32::MAX).then(|| u64::from(row) * u64::from(row_bytes));
            fragments.push((src, u64::from(i) * u64::from(2 * row_bytes), row_bytes));
            rows.push(row);
        }
        let missing = if with_zeros { Missing::Zero } else { Missing::Row };
        let (strides, kinds) = ([row_bytes, 2 * row_bytes], [IndexKind::U32, IndexKind::None]);
        let shape = Shape { count, len: row_bytes, strides, kinds, missing, ..Transfer::NOTHING.shape };
        let ends = [u64::from(table) * u64::from(row_bytes), u64::from(count) * u64::from(2 * row_bytes)];
        Moves::new(fragments, Vec::new(), rows, shape, ends)
    }

    /// Every fragment goes on from the one before on one side, and on the other it does not, in turn.
    pub fn woven(count: u32) -> Moves {
        let (mut fragments, mut at) = (Vec::new(), [0, 0]);
        for i in 0..count {
            fragments.push((Some(at[0]), at[1], 5));
            at[0] += if i % 2 == 0 { 5 } else { 9 };
            at[1] += if i % 2 == 0 { 9 } else { 5 };
        }
        Moves::of_fragments(fragments, at)
    }

    /// One piece.
    pub fn one(len: u32) -> Moves {
        let shape = Shape { count: 1, len, strides: [len; 2], ..Transfer::NOTHING.shape };
        Moves::new(vec![(Some(0), 0, len)], Vec::new(), Vec::new(), shape, [u64::from(len); 2])
    }

    fn of_fragments(fragments: Vec<(Option<u64>, u64, u32)>, ends: [u64; 2]) -> Moves {
        let records: Vec<_> = fragments
            .iter()
            .map(|(src, dst, len)| FragmentRecord { src: src.unwrap(), dst: *dst, len: *len, reserved: 0 })
            .collect();
        let count = fragments.len() as u32;
        let kinds = [IndexKind::Fragments; 2];
        Moves::new(fragments, records, Vec::new(), Shape { count, len: 0, kinds, ..Transfer::NOTHING.shape }, ends)
    }

    fn new(
        fragments: Vec<(Option<u64>, u64, u32)>,
        records: Vec<FragmentRecord>,
        rows: Vec<u32>,
        shape: Shape,
        ends: [u64; 2],
    ) -> Moves {
        let [src_bytes, dst_bytes] = ends.map(|end| end as usize + 64);
        let extent = |bytes: usize| plan::Extent { bytes: bytes as u64, misalignment: 0 };
        let index = (shape.kinds != [IndexKind::None; 2]).then(|| extent(1 << 30));
        let transfer = shape.bounds(extent(src_bytes), extent(dst_bytes), index).unwrap();
        Moves { fragments, transfer, records, rows, src_bytes, dst_bytes }
    }

    pub fn plan(&self, rules: Rules, regions: [u32; 2]) -> VecDeque<plan::Chunk> {
        let mut transfer = self.transfer;
        (transfer.shape.regions[0], transfer.shape.regions[1]) = (regions[0], regions[1]);
        let (mut planner, mut planned) = (Planner::new(), VecDeque::new());
        planner.begin(rules);
        let mut take = |planner: &mut Planner| {
            let mut chunk = plan::Chunk::new();
            assert!(planner.take(&mut chunk));
            planned.push_back(chunk);
        };
        let count = transfer.shape.count;
        let mut first = 0;
        while first < count {
            let (from, to) = (first as usize, (first as usize + plan::WINDOW).min(count as usize));
            let numbers = match transfer.shape.kinds[0] {
                IndexKind::Fragments => Numbers::Records(&self.records[from..to]),
                IndexKind::None => Numbers::COUNTED,
                _ => Numbers::Rows { src: Words::U32(&self.rows[from..to]), dst: Words::Counted },
            };
            match planner.add(&transfer, first, numbers).unwrap() {
                Progress::Full => take(&mut planner),
                Progress::Taken => first = to as u32,
            }
        }
        while planner.finish() == Progress::Full {
            take(&mut planner);
        }
        planned
    }
}

impl Job {
    /// Plans it, and opens the region of the owner.
    pub fn new(world: &mut World, pair: Pair, direction: Direction, moves: &Moves, rules: Rules) -> Job {
        let (src, dst) = (region(moves.src_bytes as u64), region(moves.dst_bytes as u64));
        let stuff: Vec<u8> = (0..moves.src_bytes).map(|i| (i * 31 + i / 251) as u8 | 1).collect();
        src.write_at(0, &stuff).unwrap();
        let mut expected = vec![0xEE; moves.dst_bytes];
        dst.write_at(0, &expected).unwrap();
        for (src, dst, len) in &moves.fragments {
            let (dst, len) = (*dst as usize, *len as usize);
            match src {
                Some(src) => expected[dst..dst + len].copy_from_slice(&stuff[*src as usize..*src as usize + len]),
                None => expected[dst..dst + len].fill(0),
            }
        }
        let (local, theirs, rights) = match direction {
            Direction::Read => (&dst, &src, Rights::READ),
            Direction::Write => (&src, &dst, Rights::WRITE),
        };
        let remote = world.open(pair, theirs, rights);
        let regions = match direction {
            Direction::Read => [remote.number, HANDLE],
            Direction::Write => [HANDLE, remote.number],
        };
        let node = &world.nodes[pair.requester.0];
        let part = PartId { slot: 3, session: 9, part: node.jobs.len() as u64 };
        Job {
            part,
            pair,
            direction,
            slots: 2,
            is_small: false,
            planned: moves.plan(rules, regions),
            local: local.clone(),
            src,
            dst,
            remote,
            expected,
            batch: None,
            is_closed: false,
            is_refused: false,
            is_cancelled: false,
            is_checked: true,
            fault: None,
            finished: 0,
            done: false,
            times: Times::default(),
        }
    }

    pub fn with(mut self, slots: u32, is_small: bool) -> Job {
        (self.slots, self.is_small) = (slots, is_small);
        self
    }

    /// Its session begins it, and plans as much as there is room for.
    pub fn feed(&mut self, remotes: &mut Remotes) {
        let seat: SeatId = self.pair.requester.1;
        if self.finished > 0 || self.is_closed {
            return;
        }
        let batch = match self.batch {
            Some(batch) => batch,
            None => match remotes.begin(seat, self.direction, self.slots, self.is_small, self.part) {
                Ok(batch) => *self.batch.insert(batch),
                Err(NoPart::Busy) => return,
                Err(NoPart::Gone) => {
                    (self.is_refused, self.finished) = (true, 1);
                    return;
                }
            },
        };
        while let Some(chunk) = self.planned.front_mut() {
            let Some(mut parcel) = remotes.parcel(seat, batch) else { return };
            std::mem::swap(&mut parcel.chunk, chunk);
            parcel.regions.push((HANDLE, self.local.clone()));
            self.planned.pop_front();
            remotes.add(seat, batch, parcel);
        }
        self.is_closed = true;
        remotes.close(seat, batch);
    }

    pub fn cancel(&mut self, remotes: &mut Remotes, now_ns: u64) {
        if let (Some(batch), 0) = (self.batch, self.finished) {
            (self.is_cancelled, self.is_closed) = (true, true);
            remotes.cancel(self.pair.requester.1, batch, now_ns);
        }
    }

    pub fn hear(&mut self, news: News) {
        assert_eq!(self.finished, 0, "something after the end");
        match news {
            News::Notified { .. } => panic!("nobody was told anything"),
            News::Failed { fault, .. } => assert!(self.fault.replace(fault).is_none(), "failed twice"),
            News::Finished { done, times, .. } => {
                (self.finished, self.done, self.times) = (1, done, times);
                assert!(!done || self.fault.is_none(), "failed and done");
                assert!(done || self.fault.is_some() || self.is_cancelled, "ended for no reason");
                if done && self.is_checked {
                    self.check();
                }
            }
        }
    }

    /// Every byte is where it belongs, and no other was touched.
    pub fn check(&self) {
        let got = contents(&self.dst);
        let wrong = got.iter().zip(&self.expected).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "the first wrong byte of {}; {:?}", got.len(), self.times);
    }
}

/// Direct, gathered, or both by the length of segments.
pub fn rules(direct_from_bytes: u32, chunk_bytes: u32) -> Rules {
    Rules {
        direct_from_bytes,
        chunk_bytes,
        first_chunk_bytes: chunk_bytes.div_ceil(4),
        window_operations: 64,
        window_bytes: u32::MAX,
    }
}
