//! Planning allocates nothing after its buffers: the one test of its binary, since the allocator counts for all of it.

mod counting;

use ring_abi::{FragmentRecord, IndexKind};
use scatter_ring::plan::{Chunk, Direction, Missing, Numbers, Planner, Progress, Rules, Transfer, Words, Work, survey};

#[test]
fn a_batch_of_any_geometry_is_planned_without_an_allocation() {
    let halves: Vec<u32> = (0..1024u32).map(|i| i.wrapping_mul(2_654_435_761) >> 12).collect();
    let far: Vec<u64> = halves.iter().map(|word| u64::from(*word) << 20).collect();
    let mut missing = halves.clone();
    missing.iter_mut().step_by(7).for_each(|word| *word = u32::MAX);
    let records: Vec<FragmentRecord> = far
        .iter()
        .map(|at| FragmentRecord { src: *at, dst: at / 3, len: 1 + (*at >> 20) as u32 % 9000, reserved: 0 })
        .collect();
    let (mut planner, mut chunk) = (Planner::new(), Chunk::new());
    let mut batch = |rules: Rules| {
        let mut chunks = 0;
        planner.begin(rules);
        for inner_count in [1, 3] {
            for (words, kind) in [
                (Words::Counted, IndexKind::None),
                (Words::U32(&halves), IndexKind::U32),
                (Words::U32(&missing), IndexKind::U32),
                (Words::U64(&far), IndexKind::U64),
            ] {
                let mut transfer = Transfer { src_max: Some(1 << 45), dst_max: Some(1 << 45), ..Transfer::NOTHING };
                transfer.shape.regions = [1, 2, 3];
                (transfer.shape.count, transfer.shape.len) = (1024, 300);
                (transfer.shape.strides, transfer.shape.inner_strides) = ([1200, 1200], [400, 300]);
                (transfer.shape.inner_count, transfer.shape.kinds[0]) = (inner_count, kind);
                transfer.shape.missing = if kind == IndexKind::U32 { Missing::Zero } else { Missing::Row };
                let numbers = Numbers::Rows { src: words, dst: Words::Counted };
                survey(&transfer, numbers, &mut Work::default());
                chunks += add(&mut planner, &mut chunk, &transfer, numbers);
            }
        }
        let mut transfer = Transfer { src_max: Some(1 << 45), dst_max: Some(1 << 45), ..Transfer::NOTHING };
        (transfer.shape.kinds, transfer.shape.count) = ([IndexKind::Fragments; 2], 1024);
        chunks += add(&mut planner, &mut chunk, &transfer, Numbers::Records(&records));
        while planner.finish() == Progress::Full {
            chunks += 1;
            assert!(planner.take(&mut chunk));
        }
        chunks
    };
    let rules = |direct_from_bytes| Rules {
        direct_from_bytes,
        chunk_bytes: 256 << 10,
        first_chunk_bytes: 64 << 10,
        window_operations: 128,
        window_bytes: u32::MAX,
    };
    let before = counting::own_allocations();
    let chunks = [u32::MAX, 4096, 0].map(|direct_from| batch(rules(direct_from)));
    assert_eq!(counting::own_allocations(), before, "{chunks:?} chunks");
    assert!(chunks.iter().all(|chunks| *chunks > 20), "{chunks:?}");
}

fn add(planner: &mut Planner, chunk: &mut Chunk, transfer: &Transfer, numbers: Numbers<'_>) -> u32 {
    let mut chunks = 0;
    while planner.add(transfer, 0, numbers) == Ok(Progress::Full) {
        assert!(planner.take(chunk));
        chunks += 1;
        let operations = chunk.operations(Direction::Read, 4).map(|operation| operation.bytes).sum::<u32>();
        assert!(operations <= chunk.bytes);
    }
    chunks
}
