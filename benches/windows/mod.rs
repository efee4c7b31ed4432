//! Plans the rows of an index as an engine does, a window of its words at a time.

use ring_abi::IndexKind;
use scatter_ring::plan::{Numbers, Planner, Progress, Transfer, WINDOW, Words};

pub const ROW_BYTES: u32 = 264;

/// Rows of a table, into a contiguous destination or to other rows. Complete chunks are to be taken.
pub fn plan_rows(planner: &mut Planner, src: &[u32], dst: Option<&[u32]>, mut take: impl FnMut(&mut Planner)) {
    let mut transfer = Transfer { src_max: Some(1 << 30), dst_max: Some(1 << 30), ..Transfer::NOTHING };
    transfer.shape.regions = [1, 2, 3];
    transfer.shape.count = src.len() as u32;
    transfer.shape.len = ROW_BYTES;
    transfer.shape.strides = [ROW_BYTES, ROW_BYTES];
    transfer.shape.kinds[0] = IndexKind::U32;
    if dst.is_some() {
        transfer.shape.kinds[1] = IndexKind::U32;
    }
    for (window, words) in src.chunks(WINDOW).enumerate() {
        let first = window * WINDOW;
        let dst = dst.map_or(Words::Counted, |dst| Words::U32(&dst[first..first + words.len()]));
        let numbers = Numbers::Rows { src: Words::U32(words), dst };
        while planner.add(&transfer, first as u32, numbers) == Ok(Progress::Full) {
            take(planner);
        }
    }
    while planner.finish() == Progress::Full {
        take(planner);
    }
}
