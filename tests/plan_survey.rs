//! What a survey counts, compared with counting piece by piece.

mod jobs;
mod seeded;

use jobs::{Job, any_job, naive};
use ring_abi::IndexKind;
use scatter_ring::plan::{Class, Missing, Numbers, Transfer, Words, Work, survey};
use seeded::cases;

#[test]
fn a_survey_of_all_numbers_is_exact() {
    let mut counted = 0;
    cases(if cfg!(debug_assertions) { 3_000 } else { 50_000 }, |random| {
        let near = random.once_in(2);
        let Some(job) = any_job(random, near) else { return };
        let shape = &job.transfer.shape;
        let (_, fault) = naive(std::slice::from_ref(&job));
        // Inner repeats of zeros are counted as if they were pieces.
        if fault.is_some() || shape.missing != Missing::Row && shape.inner_count > 1 {
            return;
        }
        let mut work = Work::default();
        job.with_numbers(0, shape.count, |numbers| survey(&job.transfer, numbers, &mut work));
        let (short, long) = work.split(u32::MAX);
        assert_eq!(long, Class::default());
        assert_eq!(short, count(&job), "{job:?}");
        counted += 1;
    });
    assert!(counted > 1000 || std::env::var("SCATTER_RING_SEED").is_ok(), "{counted}");
}

#[test]
fn a_survey_of_a_first_window_is_in_proportion() {
    let words: Vec<u32> = (0..1024u32).map(|i| i.wrapping_mul(2_654_435_761) >> 8).collect();
    let mut transfer = Transfer { src_max: Some(1 << 32), dst_max: Some(1 << 32), ..Transfer::NOTHING };
    transfer.shape.kinds[0] = IndexKind::U32;
    (transfer.shape.count, transfer.shape.len, transfer.shape.strides) = (98_304, 264, [264, 264]);
    let mut work = Work::default();
    survey(&transfer, Numbers::Rows { src: Words::U32(&words), dst: Words::Counted }, &mut work);
    let rows = Class { fragments: 98_304, segments: 98_304, src_pieces: 98_304, dst_pieces: 1, bytes: 98_304 * 264 };
    assert_eq!(work.classes().collect::<Vec<_>>(), [(8, &rows)]);
}

/// The pieces of a transfer, one after the other.
fn count(job: &Job) -> Class {
    let shape = &job.transfer.shape;
    let mut class = Class::default();
    if job.transfer.is_empty() {
        return class;
    }
    // Ends of the piece before; a source of `None` is zeros.
    let mut ends: Option<(Option<u64>, u64)> = None;
    let mut piece = |class: &mut Class, src: Option<u64>, dst: u64, len: u32| {
        let src_joins = ends.is_some_and(|(end, _)| end == src);
        let dst_joins = ends.is_some_and(|(_, end)| end == dst);
        class.segments += u64::from(!(src_joins && dst_joins));
        class.src_pieces += u64::from(!src_joins);
        class.dst_pieces += u64::from(!dst_joins);
        class.bytes += u64::from(len);
        ends = Some((src.map(|src| src + u64::from(len)), dst + u64::from(len)));
    };
    for i in 0..shape.count as usize {
        if shape.kinds[0] == IndexKind::Fragments {
            let record = &job.records[i];
            if record.len > 0 {
                class.fragments += 1;
                let [src, dst, _] = shape.offsets;
                piece(&mut class, Some(src + record.src), dst + record.dst, record.len);
            }
            continue;
        }
        let number = |side: usize, all: &[u64]| if shape.kinds[side] == IndexKind::None { i as u64 } else { all[i] };
        let place = job.transfer.place([number(0, &job.src), number(1, &job.dst)]).unwrap();
        let Some(place) = place else { continue };
        class.fragments += 1;
        for k in 0..u64::from(shape.inner_count) {
            let src = (!place.zero).then(|| place.src + k * u64::from(shape.inner_strides[0]));
            piece(&mut class, src, place.dst + k * u64::from(shape.inner_strides[1]), shape.len);
        }
    }
    class
}
