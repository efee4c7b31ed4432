//! How long lists are, and how long chunks: what the forms of sections are for.

use ring_abi::{FragmentRecord, IndexKind, Route};
use scatter_ring::plan::{Chunk, LIST_ELEMENTS, Missing, Numbers, Planner, Progress, Rules, Transfer, WINDOW, Words};

const HEADER: usize = 40;
const RULES: Rules = Rules {
    direct_from_bytes: u32::MAX,
    chunk_bytes: 1 << 20,
    first_chunk_bytes: 1 << 20,
    window_operations: 64,
    window_bytes: u32::MAX,
};

fn transfer(count: u32, len: u32) -> Transfer {
    let mut transfer = Transfer { src_max: Some(1 << 40), dst_max: Some(1 << 40), ..Transfer::NOTHING };
    transfer.shape.regions = [1, 2, 3];
    (transfer.shape.count, transfer.shape.len, transfer.shape.strides) = (count, len, [len; 2]);
    transfer
}

/// All chunks of a batch of one transfer.
fn chunks(rules: Rules, transfer: &Transfer, numbers: Numbers<'_>) -> Vec<Chunk> {
    chunks_of(rules, &[(*transfer, numbers)])
}

fn chunks_of(rules: Rules, windows: &[(Transfer, Numbers<'_>)]) -> Vec<Chunk> {
    let mut planner = Planner::new();
    let mut chunks = Vec::new();
    let mut take = |planner: &mut Planner| {
        let mut chunk = Chunk::new();
        assert!(planner.take(&mut chunk));
        chunks.push(chunk);
    };
    planner.begin(rules);
    for (transfer, numbers) in windows {
        while planner.add(transfer, 0, *numbers).unwrap() == Progress::Full {
            take(&mut planner);
        }
    }
    while planner.finish() == Progress::Full {
        take(&mut planner);
    }
    chunks
}

fn scattered(count: u32) -> Vec<u32> {
    (0..count).map(|i| i.wrapping_mul(2_654_435_761) >> 10).collect()
}

/// Encoded bytes of both lists of the only chunk.
fn bytes(chunks: &[Chunk]) -> [usize; 2] {
    assert_eq!(chunks.len(), 1);
    [chunks[0].src.encoded().len(), chunks[0].dst.encoded().len()]
}

#[test]
fn a_row_takes_four_bytes_a_contiguous_side_one_section_and_a_tile_too() {
    let words = scattered(1000);
    let mut rows = transfer(1000, 264);
    rows.shape.kinds[0] = IndexKind::U32;
    let numbers = Numbers::Rows { src: Words::U32(&words), dst: Words::Counted };
    assert_eq!(bytes(&chunks(RULES, &rows, numbers)), [HEADER + 4000, HEADER]);
    let mut pairs = rows;
    pairs.shape.kinds[1] = IndexKind::U32;
    let numbers = Numbers::Rows { src: Words::U32(&words), dst: Words::U32(&words) };
    assert_eq!(bytes(&chunks(RULES, &pairs, numbers)), [HEADER + 4000, HEADER + 4000]);
    // Pages of 16 pieces: one word a page, and one tile for all that are counted.
    let mut pages = transfer(60, 264);
    pages.shape.kinds[0] = IndexKind::U32;
    (pages.shape.inner_count, pages.shape.inner_strides) = (16, [512, 300]);
    pages.shape.strides = [8192, 4800];
    let numbers = Numbers::Rows { src: Words::U32(&words[..60]), dst: Words::Counted };
    assert_eq!(bytes(&chunks(RULES, &pages, numbers)), [HEADER + 240, HEADER]);
}

#[test]
fn windows_and_descriptors_that_go_on_share_a_section() {
    let words = scattered(3 * WINDOW as u32);
    let mut rows = transfer(3 * WINDOW as u32, 64);
    rows.shape.kinds[0] = IndexKind::U32;
    let mut planner = Planner::new();
    let mut chunk = Chunk::new();
    planner.begin(RULES);
    for (i, window) in words.chunks(WINDOW).enumerate() {
        let numbers = Numbers::Rows { src: Words::U32(window), dst: Words::Counted };
        assert_eq!(planner.add(&rows, (i * WINDOW) as u32, numbers), Ok(Progress::Taken));
    }
    planner.finish();
    assert!(planner.take(&mut chunk));
    assert_eq!([chunk.src.encoded().len(), chunk.dst.encoded().len()], [HEADER + 12 * WINDOW, HEADER]);
}

#[test]
fn single_ranges_take_the_shortest_form_that_fits() {
    let singles = |place: fn(u64) -> (u64, u32)| {
        let windows: Vec<(Transfer, Numbers<'_>)> = (0..500)
            .map(|i| {
                let (offset, len) = place(i);
                let mut single = transfer(1, len);
                single.shape.offsets = [offset, 5000 * i, 0];
                (single, Numbers::COUNTED)
            })
            .collect();
        bytes(&chunks_of(RULES, &windows))[0]
    };
    // One behind the other, at equal distances, of one length anywhere, of several lengths, and too far from each other.
    assert_eq!(singles(|i| (100 * i, 100)), HEADER);
    assert_eq!(singles(|i| (300 * i, 100)), HEADER);
    assert_eq!(singles(|i| (i * 7919 % 1000 * 1000, 264)), HEADER + 4 * 500);
    assert_eq!(singles(|i| (i * 7919 % 1000 * 1000, 64 + i as u32)), HEADER + 8 * 500);
    // Multiples of 8 bytes reach 32 GiB, odd ones 4.
    assert_eq!(singles(|i| ((i * 7919 % 1000) << 25, 64 + i as u32)), HEADER + 8 * 500);
    assert_eq!(singles(|i| (((i * 7919 % 1000) << 25) + i % 2, 64 + i as u32)), HEADER + 16 * 500);
}

#[test]
fn the_first_chunk_is_small_and_later_ones_grow_up_to_the_limit() {
    let words = scattered(1000);
    let mut rows = transfer(1000, 1024);
    rows.shape.kinds[0] = IndexKind::U32;
    let numbers = Numbers::Rows { src: Words::U32(&words), dst: Words::Counted };
    let rules = Rules { chunk_bytes: 256 << 10, first_chunk_bytes: 64 << 10, ..RULES };
    let planned: Vec<u32> = chunks(rules, &rows, numbers).iter().map(|chunk| chunk.bytes >> 10).collect();
    assert_eq!(planned, [64, 128, 256, 256, 256, 40]);
    // So many rows are all that one list can name.
    let words = scattered(1024);
    let tiny =
        Transfer { shape: scatter_ring::plan::Shape { count: 8192, len: 8, strides: [8, 8], ..rows.shape }, ..rows };
    let numbers = Numbers::Rows { src: Words::U32(&words), dst: Words::Counted };
    let windows: Vec<_> = (0..8).map(|_| (tiny, numbers)).collect();
    let pieces: Vec<u32> = chunks_of(RULES, &windows).iter().map(|chunk| chunk.src.pieces()).collect();
    assert_eq!(pieces.iter().sum::<u32>(), 8192);
    assert!(pieces[0] + 8 >= LIST_ELEMENTS && pieces.len() == 3, "{pieces:?}");
}

#[test]
fn long_records_go_by_themselves_and_short_ones_together() {
    let lens = [300, 90_000, 300, 90_000, 300];
    let records: Vec<FragmentRecord> = lens
        .iter()
        .zip(0..)
        .map(|(len, i)| FragmentRecord { src: i << 20, dst: i << 21, len: *len, reserved: 0 })
        .collect();
    let mut mixed = transfer(5, 0);
    mixed.shape.kinds = [IndexKind::Fragments; 2];
    let rules = Rules { direct_from_bytes: 1 << 16, ..RULES };
    let planned: Vec<(Route, u32, u32)> = chunks(rules, &mixed, Numbers::Records(&records))
        .iter()
        .map(|chunk| (chunk.route, chunk.bytes, chunk.segments().count() as u32))
        .collect();
    assert_eq!(planned, [(Route::GATHER, 900, 3), (Route::DIRECT, 180_000, 2)]);
}

#[test]
fn missing_rows_are_zeros_in_the_source_or_are_left_out() {
    let mut words = scattered(100);
    words.iter_mut().step_by(2).for_each(|word| *word = u32::MAX);
    let mut rows = transfer(100, 64);
    rows.shape.kinds[0] = IndexKind::U32;
    let numbers = Numbers::Rows { src: Words::U32(&words), dst: Words::Counted };
    rows.shape.missing = Missing::Zero;
    let zeros = chunks(RULES, &rows, numbers);
    assert_eq!((bytes(&zeros), zeros[0].bytes), ([HEADER + 400, HEADER], 6400));
    assert_eq!(zeros[0].segments().filter(|segment| segment.zero).count(), 50);
    rows.shape.missing = Missing::Skip;
    let skipped = chunks(RULES, &rows, numbers);
    assert_eq!((skipped[0].bytes, skipped[0].segments().any(|segment| segment.zero)), (3200, false));
}

#[test]
fn a_row_behind_zeros_is_not_taken_for_zeros_wherever_it_is() {
    // All ones and 64 bytes are 63 in wrapping arithmetic, and there the next row starts.
    let words = [u32::MAX, 0, u32::MAX, 0];
    let mut rows = transfer(4, 64);
    rows.shape.kinds[0] = IndexKind::U32;
    rows.shape.missing = Missing::Zero;
    rows.shape.offsets[0] = 63;
    let numbers = Numbers::Rows { src: Words::U32(&words), dst: Words::Counted };
    let planned = chunks(RULES, &rows, numbers);
    let zeros: Vec<(u64, bool)> = planned[0].segments().map(|segment| (segment.src, segment.zero)).collect();
    assert_eq!(zeros, [(0, true), (63, false), (0, true), (63, false)]);
}

#[test]
fn a_tile_at_the_end_of_all_addresses_is_not_gone_on_from() {
    // Where the first one's next row would start there is no address; what comes then lies before it.
    let step = 1 << 28;
    let mut rows = transfer(16, 8);
    rows.shape.strides = [step, step];
    let span = 15 * u64::from(step) + 8;
    let places = [u64::MAX - span, u64::MAX - 2 * span];
    let windows = places.map(|at| {
        rows.shape.offsets = [at, at, 0];
        (rows, Numbers::COUNTED)
    });
    let planned = chunks_of(RULES, &windows);
    let starts: Vec<u64> = planned[0].segments().map(|segment| segment.src).collect();
    let wanted = places.iter().flat_map(|at| (0..16).map(move |i| at + i * u64::from(step)));
    assert_eq!(starts, wanted.collect::<Vec<u64>>());
    assert_eq!(bytes(&planned), [2 * HEADER; 2]);
}
