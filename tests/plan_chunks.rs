//! Chunks compared with a naive expansion of every fragment, byte by byte.

mod jobs;
mod seeded;

use jobs::{Byte, Job, MEMORY, Mark, any_job, at, naive};
use ring_abi::Route;
use scatter_ring::pack::ListPacker;
use scatter_ring::plan::{
    Chunk, Decoder, Direction, Fault, LIST_BYTES, LIST_PIECES, Limits, List, ListPiece, Planner, Progress, Rules,
    Segment, WINDOW,
};
use scatter_ring::region::{Region, Rights};
use seeded::{Random, cases};
use std::collections::HashMap;
use std::num::NonZeroU128;

#[test]
fn chunks_move_the_bytes_that_a_naive_expansion_moves_and_find_the_same_fault() {
    let runs = if cfg!(debug_assertions) { 500 } else { 20_000 };
    let mut found = Found::default();
    let mut planner = Planner::new();
    cases(runs, |random| {
        let rules = any_rules(random);
        let jobs: Vec<Job> = (0..1 + random.below(6)).filter_map(|_| any_job(random, false)).collect();
        let (expected, fault) = naive(&jobs);
        let rules = of_few_chunks(rules, expected.len());
        let begins = begins(&expected);
        let mut sorted: Vec<(Byte, usize)> = expected.iter().enumerate().map(|(at, (byte, _))| (*byte, at)).collect();
        sorted.sort_unstable();
        let (chunks, planned_fault) = plan(random, &mut planner, rules, &jobs);
        assert_eq!(planned_fault, fault, "{rules:?} {jobs:?}");
        let mut bytes = Vec::new();
        let mut gathered = 0;
        for chunk in &chunks {
            assert_limits(chunk, &rules, gathered);
            gathered += u32::from(chunk.route == Route::GATHER);
            assert_pieces(chunk);
            found.note(chunk);
            bytes.extend(chunk.segments().flat_map(bytes_of_segment));
            assert_first(chunk, &expected, &begins, &sorted);
            assert!(chunk.route == Route::GATHER || chunk.bytes <= rules.window_bytes, "{} {rules:?}", chunk.bytes);
            found.parted += u32::from(chunk.route == Route::DIRECT && chunk.bytes == rules.window_bytes);
        }
        bytes.sort_unstable();
        let is_equal = bytes.iter().eq(sorted.iter().map(|(byte, _)| byte));
        assert!(is_equal, "{rules:?} {jobs:?}\n{} of {} bytes", bytes.len(), expected.len());
        found.faults += u32::from(fault.is_some());
    });
    println!("{found:?}");
    assert!(std::env::var("SCATTER_RING_SEED").is_ok() || found.is_varied(), "{found:?}");
}

#[test]
fn packing_and_unpacking_by_the_lists_puts_every_byte_where_it_belongs_and_touches_no_other() {
    let runs = if cfg!(debug_assertions) { 100 } else { 3_000 };
    let (mut planner, mut packer) = (Planner::new(), ListPacker::default());
    let mut slot = vec![0u8; 200_000];
    cases(runs, |random| {
        let jobs: Vec<Job> = (0..1 + random.below(4)).filter_map(|_| any_job(random, true)).collect();
        let rules = any_rules(random);
        let (expected, _) = naive(&jobs);
        // Where it is all ones nothing goes by the direct route.
        let rules = Rules { direct_from_bytes: u32::MAX, ..of_few_chunks(rules, expected.len()) };
        let (chunks, _) = plan(random, &mut planner, rules, &jobs);
        let mut memory: Vec<Vec<u8>> = (0..5).map(|_| vec![0; MEMORY]).collect();
        memory[1..3].iter_mut().flatten().for_each(|byte| *byte = 1 + random.small(255) as u8);
        let sources = memory.clone();
        memory[3..].iter_mut().flatten().for_each(|byte| *byte = UNTOUCHED);
        let adopt = |bytes: &mut Vec<u8>| {
            // SAFETY: the memory outlives the region, and nobody refers to it while lists are followed.
            unsafe { Region::adopt(bytes.as_mut_ptr(), MEMORY as u64, Rights::READ_WRITE) }.unwrap()
        };
        let regions: Vec<Region> = memory.iter_mut().map(adopt).collect();
        for chunk in &chunks {
            let bytes = chunk.bytes;
            // SAFETY: the slot is longer than any chunk.
            let packed = unsafe {
                packer.pack(chunk.src.encoded(), |handle| regions.get(handle as usize), slot.as_mut_ptr(), bytes)
            };
            assert_eq!(packed, Ok(bytes));
            // SAFETY: as above.
            let unpacked = unsafe {
                packer.unpack(chunk.dst.encoded(), |handle| regions.get(handle as usize), slot.as_ptr(), bytes)
            };
            assert_eq!(unpacked, Ok(bytes));
        }
        drop(regions);
        // Where destinations overlap, any of them is right.
        let mut wanted: HashMap<usize, Vec<u8>> = HashMap::new();
        for (byte, _) in expected {
            let place = |at: u128| ((at >> 64) as usize, at as u64 as usize);
            let value = byte.src.map_or(0, |src| sources[place(src.get()).0][place(src.get()).1]);
            let (region, offset) = place(byte.dst);
            wanted.entry(region * MEMORY + offset).or_default().push(value);
        }
        for (at, values) in &wanted {
            let found = std::mem::replace(&mut memory[at / MEMORY][at % MEMORY], UNTOUCHED);
            assert!(
                values.contains(&found),
                "region {} byte {}: {found} {values:?}\n{jobs:?}",
                at / MEMORY,
                at % MEMORY
            );
        }
        let is_untouched = memory[3..].iter().flatten().all(|byte| *byte == UNTOUCHED);
        assert!(is_untouched, "a byte that no fragment names\n{jobs:?}");
        assert!(memory[..3] == sources[..3]);
    });
}

const UNTOUCHED: u8 = 0xee;

/// What the cases had, so that they cannot all be of one kind.
#[derive(Debug, Default)]
struct Found {
    faults: u32,
    direct: u32,
    gathered: u32,
    /// Direct chunks that are full of bytes.
    parted: u32,
    zeros: u32,
    forms: [u32; 5],
}

impl Found {
    fn note(&mut self, chunk: &Chunk) {
        self.direct += u32::from(chunk.route == Route::DIRECT);
        self.gathered += u32::from(chunk.route == Route::GATHER);
        self.zeros += u32::from(chunk.segments().any(|segment| segment.zero));
        for list in [&chunk.src, &chunk.dst] {
            let mut rest = list.encoded();
            while let [form, ..] = rest {
                let count = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
                self.forms[(form & 0x7f) as usize] += 1;
                rest = &rest[40 + [0, 0, 4, 8, 16][(form & 0x7f) as usize] * count..];
            }
        }
    }

    fn is_varied(&self) -> bool {
        let least = [self.faults, self.direct, self.gathered, self.parted, self.zeros]
            .into_iter()
            .chain(self.forms[1..].to_vec());
        // A ninth of the debug build's runs have a fault, 57 on average.
        least.min() > Some(20)
    }
}

#[test]
fn segments_go_by_the_route_that_their_merged_length_says_also_across_descriptors() {
    let mut planner = Planner::new();
    let mut found = [0usize; 2];
    cases(if cfg!(debug_assertions) { 400 } else { 10_000 }, |random| {
        // More fragments than this may be planned in bulk, which does not merge across windows.
        let is_merged = |job: &Job| job.transfer.shape.count < 16 && job.transfer.shape.inner_count == 1;
        let jobs: Vec<Job> = (0..20).filter_map(|_| any_job(random, true)).filter(is_merged).collect();
        let (expected, _) = naive(&jobs);
        let rules = of_few_chunks(any_rules(random), expected.len());
        let rules = Rules { chunk_bytes: 1000, first_chunk_bytes: 1000, ..rules };
        let (chunks, _) = plan(random, &mut planner, rules, &jobs);
        let mut direct: Vec<Byte> = Vec::new();
        let mut run: Vec<Byte> = Vec::new();
        let mut end = |run: &mut Vec<Byte>| {
            let is_direct = rules.direct_from_bytes != u32::MAX && run.len() >= rules.direct_from_bytes as usize;
            if is_direct { direct.append(run) } else { run.clear() }
        };
        for (byte, _) in expected {
            if run.last().is_some_and(|last| !goes_on(*last, byte)) {
                end(&mut run);
            }
            run.push(byte);
        }
        end(&mut run);
        let chunks = chunks.iter().filter(|chunk| chunk.route == Route::DIRECT);
        let mut planned: Vec<Byte> = chunks.flat_map(|chunk| chunk.segments().flat_map(bytes_of_segment)).collect();
        found[usize::from(direct.is_empty())] += 1;
        planned.sort_unstable();
        direct.sort_unstable();
        assert!(planned == direct, "{} and {} bytes\n{rules:?} {jobs:?}", planned.len(), direct.len());
    });
    assert!(found.iter().all(|count| *count > 10) || std::env::var("SCATTER_RING_SEED").is_ok(), "{found:?}");
}

#[test]
fn operations_are_contiguous_at_the_remote_side_and_have_few_local_pieces() {
    let mut planner = Planner::new();
    let mut grouped = 0;
    cases(if cfg!(debug_assertions) { 400 } else { 10_000 }, |random| {
        let jobs: Vec<Job> = (0..4).filter_map(|_| any_job(random, true)).collect();
        let rules = of_few_chunks(any_rules(random), naive(&jobs).0.len());
        let rules = Rules { direct_from_bytes: 0, window_operations: 200, ..rules };
        let (chunks, _) = plan(random, &mut planner, rules, &jobs);
        let max_sge = 1 + random.small(4);
        for (chunk, direction) in chunks.iter().flat_map(|c| [(c, Direction::Read), (c, Direction::Write)]) {
            let is_read = direction == Direction::Read;
            let mut segments = chunk.segments().filter(|segment| !(is_read && segment.zero));
            for operation in chunk.operations(direction, max_sge) {
                assert!((1..=max_sge).contains(&operation.segments));
                grouped += u32::from(operation.segments > 1);
                let mut at = (operation.region, operation.offset);
                for segment in segments.by_ref().take(operation.segments as usize) {
                    let remote = (segment.src_region, segment.src);
                    assert_eq!(if is_read { remote } else { (segment.dst_region, segment.dst) }, at);
                    at.1 += u64::from(segment.len);
                }
                assert_eq!(at.1, operation.offset + u64::from(operation.bytes));
            }
            assert_eq!(segments.next(), None, "a segment in no operation");
        }
    });
    assert!(grouped > 100 || std::env::var("SCATTER_RING_SEED").is_ok(), "{grouped}");
}

fn plan(random: &mut Random, planner: &mut Planner, rules: Rules, jobs: &[Job]) -> (Vec<Chunk>, Option<Fault>) {
    let mut chunks = Vec::new();
    let mut take = |planner: &mut Planner| {
        let mut chunk = Chunk::new();
        assert!(planner.take(&mut chunk));
        assert!(!planner.take(&mut Chunk::new()));
        chunks.push(chunk);
    };
    planner.begin(rules);
    let mut fault = None;
    'batch: for (number, job) in jobs.iter().enumerate() {
        planner.number(number_of(number));
        let mut first = 0;
        while first < job.transfer.shape.count {
            let window = random.pick(&[3, 30, WINDOW as u32]);
            let most = if job.is_counted() { u32::MAX } else { 1 + random.small(window) };
            let count = most.min(job.transfer.shape.count - first);
            let taken = job.with_numbers(first, count, |numbers| {
                loop {
                    match planner.add(&job.transfer, first, numbers) {
                        Ok(Progress::Taken) => return Ok(()),
                        Ok(Progress::Full) => take(planner),
                        Err(fault) => return Err(fault),
                    }
                }
            });
            if let Err(found) = taken {
                fault = Some(found);
                break 'batch;
            }
            first += count;
        }
        if random.once_in(20) {
            planner.set_rules(rules);
        }
    }
    while planner.finish() == Progress::Full {
        take(planner);
    }
    (chunks, fault)
}

/// What a transfer is called.
fn number_of(job: usize) -> u32 {
    3 * job as u32 + 1
}

/// The transfer and the fragment of a chunk are those of its first byte, or of one before it in the same segment.
fn assert_first(chunk: &Chunk, expected: &[(Byte, Mark)], begins: &[usize], sorted: &[(Byte, usize)]) {
    let first = bytes_of_segment(chunk.segments().next().unwrap())[0];
    let same = &sorted[sorted.partition_point(|(byte, _)| *byte < first)..];
    let mut places = same.iter().take_while(|(byte, _)| *byte == first).map(|(_, at)| *at);
    let mark = (chunk.transfer, chunk.fragment);
    let called = |at: usize| (number_of(expected[at].1.0), expected[at].1.1);
    let is_right = places.any(|at| (called(begins[at])..=called(at)).contains(&mark));
    assert!(is_right, "fragment {} of transfer {}", chunk.fragment, chunk.transfer);
}

/// Where the segment begins that each byte belongs to.
fn begins(expected: &[(Byte, Mark)]) -> Vec<usize> {
    let mut begin = 0;
    let pairs = expected.iter().zip(expected.iter().skip(1)).zip(1..);
    let later = pairs.map(|((last, byte), at)| {
        begin = if goes_on(last.0, byte.0) { begin } else { at };
        begin
    });
    std::iter::once(0).chain(later).collect()
}

/// Whether a byte is the next one on both sides.
fn goes_on(last: Byte, byte: Byte) -> bool {
    last.dst + 1 == byte.dst && last.src.and_then(|at| at.checked_add(1)) == byte.src
}

fn bytes_of_segment(segment: Segment) -> Vec<Byte> {
    let byte = |i: u64| Byte {
        dst: at(segment.dst_region, segment.dst + i),
        src: NonZeroU128::new(at(segment.src_region, segment.src + i)).filter(|_| !segment.zero),
    };
    (0..segment.len.into()).map(byte).collect()
}

fn assert_limits(chunk: &Chunk, rules: &Rules, gathered_before: u32) {
    let segments = chunk.segments().count() as u32;
    assert!(chunk.bytes > 0 && segments > 0);
    assert_eq!(chunk.bytes, chunk.segments().map(|segment| segment.len).sum::<u32>());
    if chunk.route == Route::DIRECT {
        assert!(segments <= rules.window_operations, "{segments} {rules:?}");
    } else {
        let grown = u64::from(rules.first_chunk_bytes) << gathered_before.min(31);
        assert!(u64::from(chunk.bytes) <= grown.min(rules.chunk_bytes.into()), "{} {rules:?}", chunk.bytes);
    }
    for (list, zeros) in [(&chunk.src, true), (&chunk.dst, false)] {
        assert!(list.encoded().len() <= LIST_BYTES);
        let limits = Limits { bytes: chunk.bytes, pieces: LIST_PIECES, zeros };
        let mut decoder = Decoder::new(list.encoded(), limits).unwrap();
        while let Some(section) = decoder.next_section(|_| Some(u64::MAX)).unwrap() {
            section.pieces().for_each(|piece| assert!(piece.is_ok(), "{piece:?}"));
        }
    }
}

/// What a list says of itself, and what its pieces say.
fn assert_pieces(chunk: &Chunk) {
    for list in [&chunk.src, &chunk.dst] {
        let merged = merged(list);
        assert_eq!(list.pieces(), merged.len() as u32, "{merged:?}");
        let contiguous = (merged.len() == 1 && !merged[0].zero).then(|| (merged[0].region, merged[0].offset));
        assert_eq!(list.contiguous(), contiguous);
        assert_eq!(list.iter().map(|piece| piece.len).sum::<u32>(), chunk.bytes);
    }
}

fn merged(list: &List) -> Vec<ListPiece> {
    let mut merged: Vec<ListPiece> = Vec::new();
    for piece in list.iter() {
        match merged.last_mut() {
            Some(last) if last.zero && piece.zero => last.len += piece.len,
            Some(last)
                if !last.zero
                    && !piece.zero
                    && last.region == piece.region
                    && last.offset + u64::from(last.len) == piece.offset =>
            {
                last.len += piece.len;
            }
            _ => merged.push(piece),
        }
    }
    merged
}

fn any_rules(random: &mut Random) -> Rules {
    let chunk_bytes = random.pick(&[1, 7, 100, 1000, 4096, 100_000]);
    Rules {
        direct_from_bytes: random.pick(&[0, 1, 8, 40, 64, 300, 5000, u32::MAX]),
        chunk_bytes,
        first_chunk_bytes: random.pick(&[1, 50, chunk_bytes]).min(chunk_bytes),
        window_operations: random.pick(&[1, 2, 16, 5000]),
        window_bytes: random.pick(&[1, 7, 60, 1000, 4000, u32::MAX, u32::MAX]),
    }
}

/// The same, but that a test can keep all chunks of so many bytes.
fn of_few_chunks(rules: Rules, bytes: usize) -> Rules {
    let least = (bytes / 2000) as u32;
    Rules {
        chunk_bytes: rules.chunk_bytes.max(least),
        first_chunk_bytes: rules.first_chunk_bytes.max(least),
        window_operations: rules.window_operations.max(least),
        window_bytes: rules.window_bytes.max(least),
        ..rules
    }
}
