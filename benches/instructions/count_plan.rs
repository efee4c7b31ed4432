//! A fixed amount of planning and of decoding, for counting instructions: `ci/instructions.sh` runs it under callgrind.

#[path = "../windows/mod.rs"]
mod windows;

use scatter_ring::plan::{Chunk, Decoder, LIST_PIECES, Limits, Numbers, Planner, Progress, Rules, Transfer, WINDOW};
use scatter_ring::region::copy::Isa;
use std::hint::black_box;
use windows::{ROW_BYTES, plan_rows};

/// Fragments, in whole windows.
const FRAGMENTS: usize = 1 << 17;
const RULES: Rules = Rules {
    direct_from_bytes: 64 << 10,
    chunk_bytes: 256 << 10,
    first_chunk_bytes: 64 << 10,
    window_operations: 128,
    window_bytes: u32::MAX,
};

fn main() {
    let kind = std::env::args().nth(1).unwrap_or_default();
    let src: Vec<u32> = (0..FRAGMENTS as u32).map(number).collect();
    let dst: Vec<u32> = (0..FRAGMENTS as u32).map(|i| number(i ^ 0x5555)).collect();
    let mut planner = Planner::new();
    let mut chunk = Chunk::new();
    planner.begin(RULES);
    match kind.as_str() {
        "rows" => plan_windows(&mut planner, &mut chunk, &src, None),
        "pairs" => plan_windows(&mut planner, &mut chunk, &src, Some(&dst)),
        "singles" => plan_singles(&mut planner, &mut chunk, &src),
        "decode" => {
            plan_windows(&mut planner, &mut chunk, &src[..WINDOW], None);
            let rows = u64::from(chunk.src.pieces());
            let rounds = FRAGMENTS as u64 / rows;
            let mut offsets = vec![0; WINDOW];
            (0..rounds).for_each(|_| decode_list(chunk.src.encoded(), &mut offsets));
            println!("isa {:?}\nrows {}", Isa::best(), rounds * rows);
            return;
        }
        _ => panic!("which count: rows, pairs, singles or decode"),
    }
    println!("isa {:?}\nrows {FRAGMENTS}", Isa::best());
}

#[inline(never)]
fn plan_windows(planner: &mut Planner, chunk: &mut Chunk, src: &[u32], dst: Option<&[u32]>) {
    plan_rows(planner, src, dst, |planner| assert!(planner.take(chunk)));
}

#[inline(never)]
fn plan_singles(planner: &mut Planner, chunk: &mut Chunk, src: &[u32]) {
    let mut transfer = Transfer { src_max: Some(0), dst_max: Some(0), ..Transfer::NOTHING };
    transfer.shape.regions = [1, 2, 0];
    transfer.shape.count = 1;
    transfer.shape.len = ROW_BYTES;
    for (&src, dst) in src.iter().zip(0u64..) {
        transfer.shape.offsets = [u64::from(src) * u64::from(ROW_BYTES), dst * u64::from(ROW_BYTES), 0];
        while planner.add(black_box(&transfer), 0, Numbers::COUNTED) == Ok(Progress::Full) {
            assert!(planner.take(chunk));
        }
    }
    while planner.finish() == Progress::Full {
        assert!(planner.take(chunk));
    }
}

/// As packing does, without the copy.
#[inline(never)]
fn decode_list(list: &[u8], offsets: &mut [u64]) {
    let limits = Limits { bytes: u32::MAX, pieces: LIST_PIECES, zeros: true };
    let mut decoder = Decoder::new(list, limits).expect("a short list");
    while let Some(section) = decoder.next_section(|_| Some(1 << 40)).expect("a planner's section") {
        let offsets = &mut offsets[..WINDOW.min(section.count() as usize)];
        section.offsets(0, offsets, |to, offset| *to = offset).expect("a planner's rows");
        black_box(&*offsets);
    }
}

fn number(i: u32) -> u32 {
    i.wrapping_mul(2_654_435_761) >> 8
}
