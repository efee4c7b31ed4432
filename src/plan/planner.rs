//! Transfers in, chunks out.

mod ways;

use super::numbers::Words;
use super::open::Open;
use super::pending::Scratch;
use super::window::{Geometry, Way, Window, mark};
use super::{Chunk, Fault, Numbers, Shape, Transfer, WINDOW};
use ring_abi::{IndexKind, Route};

/// Cuts the transfers of one batch after the other into chunks. Allocates nothing after `new`.
///
/// Two chunks are open at a time: one gathers short segments, one collects those that are long enough for an operation of
/// their own. A segment is what is left when fragments that are adjacent at both ends, in order, are one, also across
/// descriptors; where the words of an index are copied in bulk, because few of its fragments are adjacent, its first and
/// its last one are not merged with what is outside.
///
/// ```
/// use ring_abi::IndexKind;
/// use scatter_ring::plan::{Chunk, Numbers, Planner, Progress, Rules, Shape, Transfer, Words};
///
/// // Rows 7, 2 and 5 of a table with rows of 64 bytes, one behind the other into a buffer.
/// let table = Shape { regions: [1, 2, 3], count: 3, len: 64, strides: [64, 64], ..Transfer::NOTHING.shape };
/// let rows = Shape { kinds: [IndexKind::U32, IndexKind::None], ..table };
/// let transfer = Transfer { shape: rows, src_max: Some(9), dst_max: Some(2) };
///
/// let mut planner = Planner::new();
/// let rules = Rules { direct_from_bytes: 4096, chunk_bytes: 1 << 18, first_chunk_bytes: 1 << 16, window_operations: 64, window_bytes: u32::MAX };
/// planner.begin(rules);
/// let numbers = Numbers::Rows { src: Words::U32(&[7, 2, 5]), dst: Words::Counted };
/// assert_eq!(planner.add(&transfer, 0, numbers), Ok(Progress::Taken));
/// assert_eq!(planner.finish(), Progress::Full);
/// let mut chunk = Chunk::new();
/// assert!(planner.take(&mut chunk));
/// assert_eq!((chunk.bytes, chunk.src.pieces(), chunk.dst.contiguous()), (192, 3, Some((2, 0))));
/// assert_eq!(planner.finish(), Progress::Taken);
/// ```
#[derive(Debug)]
pub struct Planner {
    rules: Rules,
    /// As in the rules; where no segment is so long, more than any can be.
    direct_from_bytes: u64,
    /// Gathered, direct.
    open: [Open; 2],
    /// The one of the two that is to be taken.
    complete: Option<usize>,
    /// The window that the last call had begun and not finished.
    window: Option<Window>,
    /// The segment that still grows.
    run: Run,
    /// Of `run` and of all that is pending.
    regions: [u32; 2],
    /// Of the transfer that is added.
    transfer: u32,
    scratch: Scratch,
    /// Numbers of 64 bits of a window, counted from the smallest.
    relative: [Box<[u32; WINDOW]>; 2],
}

/// How a batch is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Segments at least so long go by the direct route. 0: all; `u32::MAX`: none.
    pub direct_from_bytes: u32,
    /// C: most bytes of a gathered chunk, at least 1.
    pub chunk_bytes: u32,
    /// Most bytes of the first one, at least 1: small, so that the wire is busy early. Each later one may have twice as many.
    pub first_chunk_bytes: u32,
    /// Most segments of a direct chunk, at least 1.
    pub window_operations: u32,
    /// Most bytes of a direct chunk, at least 1: several sockets can then share long segments.
    pub window_bytes: u32,
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All of it is planned.
    Taken,
    /// A chunk is complete: [`take`](Planner::take) it and repeat the call.
    Full,
}

#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// All ones: zeros.
    src: u64,
    dst: u64,
    /// 0: there is none.
    len: u32,
    mark: u64,
}

/// Places in `open`.
const GATHER: usize = 0;
const DIRECT: usize = 1;

impl Planner {
    /// One that has nothing to do.
    #[must_use]
    pub fn new() -> Planner {
        let relative = || Box::new([0; WINDOW]);
        let rules = Rules {
            direct_from_bytes: u32::MAX,
            chunk_bytes: 1 << 18,
            first_chunk_bytes: 1 << 16,
            window_operations: 1,
            window_bytes: u32::MAX,
        };
        let mut planner = Planner {
            rules,
            direct_from_bytes: u64::MAX,
            open: [Open::new(Route::GATHER), Open::new(Route::DIRECT)],
            complete: None,
            window: None,
            run: Run::default(),
            regions: [0; 2],
            transfer: 0,
            scratch: Scratch::new(),
            relative: [relative(), relative()],
        };
        planner.begin(rules);
        planner
    }

    /// Starts a batch. What was left of the one before is gone.
    pub fn begin(&mut self, rules: Rules) {
        self.open.iter_mut().for_each(Open::clear);
        (self.complete, self.window, self.run, self.transfer) = (None, None, Run::default(), 0);
        self.open[GATHER].set_limits(rules.first_chunk_bytes, u32::MAX);
        self.set_rules(rules);
    }

    /// From here on these rules. Chunks that are open already keep what they have, and sizes grow on from where they are.
    pub fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
        self.direct_from_bytes = match rules.direct_from_bytes {
            u32::MAX => u64::MAX,
            from => from.into(),
        };
        let [gather, direct] = &mut self.open;
        gather.set_limits(gather.limit_bytes().min(rules.chunk_bytes), u32::MAX);
        direct.set_limits(rules.window_bytes, rules.window_operations);
    }

    /// What is added from here on is the transfer of this number: chunks say which one they begin with.
    pub fn number(&mut self, transfer: u32) {
        self.transfer = transfer;
    }

    /// Plans the fragments of a window, `first_fragment` being the number of its first one. After `Full` the call is to be
    /// repeated with the same arguments: the planner knows how far it got.
    ///
    /// # Errors
    /// As [`Transfer::place`] and [`Transfer::check_record`], with the number of the first fragment that cannot be done.
    /// Those before it are planned. The next call may be [`begin`](Self::begin) or [`finish`](Self::finish).
    #[inline]
    pub fn add(&mut self, transfer: &Transfer, first_fragment: u32, numbers: Numbers<'_>) -> Result<Progress, Fault> {
        let shape = &transfer.shape;
        let is_single = shape.count == 1 && shape.inner_count == 1 && shape.kinds == [IndexKind::None; 2];
        let is_next = self.complete.is_none() && self.window.is_none();
        if is_single && is_next && shape.len > 0 && self.regions == [shape.regions[0], shape.regions[1]] {
            return Ok(self.add_single(shape));
        }
        self.add_window(transfer, first_fragment, numbers)
    }

    /// Completes the chunks that are open, one a call: `Full` for each, `Taken` when there is none left. More may be added
    /// to the batch afterwards.
    pub fn finish(&mut self) -> Progress {
        self.window = None;
        if self.complete.is_some() {
            return Progress::Full;
        }
        self.end_run();
        for route in [GATHER, DIRECT] {
            if !self.flush(route) {
                return Progress::Full;
            }
            if !self.open[route].is_empty() {
                self.complete = Some(route);
                return Progress::Full;
            }
        }
        Progress::Taken
    }

    /// Swaps the complete chunk with `chunk`, whose contents are lost and whose buffers are used again. False, and nothing
    /// happens, if none is complete.
    pub fn take(&mut self, chunk: &mut Chunk) -> bool {
        let Some(route) = self.complete.take() else { return false };
        let open = &mut self.open[route];
        open.swap(chunk);
        if route == GATHER {
            open.set_limits(open.limit_bytes().saturating_mul(2).min(self.rules.chunk_bytes), u32::MAX);
        }
        true
    }

    /// The short way of a single range whose regions are those of what came before.
    fn add_single(&mut self, shape: &Shape) -> Progress {
        let is_due = self.push(shape.offsets[0], shape.offsets[1], shape.len, mark(self.transfer, 0));
        if is_due { self.flush_behind_single(shape) } else { Progress::Taken }
    }

    /// A function of its own, so that the usual way needs no stack.
    #[cold]
    fn flush_behind_single(&mut self, shape: &Shape) -> Progress {
        if self.flush_due() {
            return Progress::Taken;
        }
        // The repeated call has nothing left to plan.
        self.window = Some(Window::taken(Geometry::of(shape)));
        Progress::Full
    }

    fn add_window(&mut self, transfer: &Transfer, first: u32, numbers: Numbers<'_>) -> Result<Progress, Fault> {
        if self.complete.is_some() {
            return Ok(Progress::Full);
        }
        let mut window = match self.window.take() {
            Some(window) => window,
            None if transfer.is_empty() => return Ok(Progress::Taken),
            None => Window { transfer: self.transfer, ..self.open_window(transfer, first, numbers) },
        };
        let taken = match numbers {
            _ if !self.turn_to([transfer.shape.regions[0], transfer.shape.regions[1]]) => false,
            Numbers::Records(records) => self.records(transfer, records, &mut window),
            Numbers::Rows { src, dst } => match window.way {
                Way::Merge => self.merge(transfer, [src, dst], &mut window),
                Way::Bulk => self.bulk([src, dst], &mut window),
                Way::Tiles => self.tiles(transfer, [src, dst], &mut window),
            },
        };
        if !taken || self.complete.is_some() {
            self.window = Some(window);
            return Ok(Progress::Full);
        }
        window.fault.map_or(Ok(Progress::Taken), Err)
    }

    fn open_window(&mut self, transfer: &Transfer, first: u32, numbers: Numbers<'_>) -> Window {
        match numbers {
            Numbers::Records(records) => {
                let window = Window::taken(Geometry::of(&transfer.shape));
                Window { first, usable: records.len() as u32, ..window }
            }
            Numbers::Rows { src, dst } => {
                Window::open(transfer, first, [src, dst], self.direct_from_bytes, &mut self.relative)
            }
        }
    }

    /// Encodes what is of other regions; false if a chunk is complete.
    fn turn_to(&mut self, regions: [u32; 2]) -> bool {
        if self.regions == regions {
            return true;
        }
        self.end_run();
        if !(self.flush(GATHER) && self.flush(DIRECT)) {
            return false;
        }
        self.regions = regions;
        true
    }

    /// Adds a segment to the one that grows, or ends that one. There is room for one more on both routes; true if what waits
    /// should be encoded then.
    #[inline]
    fn push(&mut self, src: u64, dst: u64, len: u32, mark: u64) -> bool {
        let run = self.run;
        let end = u64::from(run.len);
        let src_goes_on = match src {
            u64::MAX => run.src == u64::MAX,
            _ => run.src.wrapping_add(end) == src && run.src != u64::MAX,
        };
        if src_goes_on
            && run.dst + end == dst
            && run.len > 0
            && let Some(sum) = run.len.checked_add(len)
        {
            self.run.len = sum;
            return false;
        }
        self.run = Run { src, dst, len, mark };
        self.put(run)
    }

    fn end_run(&mut self) {
        let run = std::mem::take(&mut self.run);
        self.put(run);
    }

    #[inline]
    fn put(&mut self, run: Run) -> bool {
        run.len > 0 && self.open[self.route(run.len)].pending.push(run.src, run.dst, run.len, run.mark)
    }

    #[inline]
    fn route(&self, segment_bytes: u32) -> usize {
        usize::from(u64::from(segment_bytes) >= self.direct_from_bytes)
    }

    /// Encodes what is pending where that fills a chunk or there is no room for more; false if a chunk is complete. Else
    /// there is room on both routes afterwards.
    #[inline]
    fn flush_due(&mut self) -> bool {
        (!self.open[GATHER].pending.is_due() || self.flush(GATHER))
            && (!self.open[DIRECT].pending.is_due() || self.flush(DIRECT))
    }

    /// Encodes what is pending; false if the chunk is complete.
    #[inline(never)]
    fn flush(&mut self, route: usize) -> bool {
        let open = &mut self.open[route];
        let all = open.flush(self.regions, &mut self.scratch);
        if !all || (!open.is_empty() && open.is_full()) {
            self.complete = Some(route);
            return false;
        }
        true
    }
}

impl Default for Planner {
    fn default() -> Self {
        Planner::new()
    }
}
