//! The decoder of lists against bytes of any kind, compared with a reading of them in unlimited arithmetic.

mod seeded;

use ring_abi::Status;
use scatter_ring::plan::{
    Chunk, Decoder, LIST_BYTES, LIST_ELEMENTS, LIST_PIECES, Limits, ListPiece, Numbers, Planner, Progress, Refusal,
    Rules, Section, Transfer, Words,
};
use seeded::{Random, cases};

const REGION: u32 = 7;
const OTHER: u32 = 8;

#[test]
fn nothing_outside_a_grant_is_ever_given_whatever_the_bytes() {
    let runs = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    let lists = lists();
    let (mut accepted, mut refused) = (0u32, [0u32; 6]);
    cases(runs, |random| {
        let list = any_list(random, &lists);
        let granted = random.pick(&[0, 64, 5000, 1 << 20, 1 << 40, u64::MAX]);
        let grants = |region: u32| match region {
            REGION => Some(granted),
            OTHER => Some(random_grant(granted)),
            _ => None,
        };
        let limits = Limits {
            bytes: random.pick(&[100, 5000, 1 << 20, u32::MAX]),
            pieces: random.pick(&[1, 50, LIST_PIECES]),
            zeros: random.once_in(2),
        };
        let (pieces, wrong) = naive(&list, limits, grants);
        let (given, refusal) = decode(&list, limits, grants);
        assert_eq!(given, pieces, "{limits:?} {granted} {list:?}");
        assert_eq!(refusal.map(|refusal| (refusal.status, refusal.piece)), wrong, "{limits:?} {granted} {list:?}");
        match refusal {
            None => accepted += 1,
            Some(refusal) => {
                let kinds =
                    [Status::OUT_OF_RANGE, Status::LIMIT_EXCEEDED, Status::INVALID_FIELD, Status::INVALID_COUNT];
                let kind = kinds.iter().position(|kind| *kind == refusal.status);
                refused[kind.unwrap_or(if refusal.status == Status::UNKNOWN_REGION { 4 } else { 5 })] += 1;
            }
        }
    });
    println!("{accepted} accepted, refused {refused:?}");
    assert!(std::env::var("SCATTER_RING_SEED").is_ok() || (accepted > 100 && refused.iter().all(|count| *count > 100)));
}

#[test]
fn each_form_may_touch_the_last_byte_of_a_grant_and_none_behind_it() {
    // The furthest of three pieces ends at byte 100.
    let (rows, mixed) = ([0u32, 35, 30], [0u32, 10, 35, 10, 39, 1]);
    let plain = [20u32, 0, 10, 0, 90, 0, 10, 0, 80, 0, 10, 0];
    for (form, len, base, step, payload) in
        [(1, 10, 20, 35, &[][..]), (2, 10, 20, 2, &rows), (3, 0, 20, 2, &mixed), (4, 0, 0, 0, &plain)]
    {
        let list = section(form, 3, len, base, step, payload);
        let (pieces, refusal) = decode(&list, LOOSE, |_| Some(100));
        assert_eq!((pieces.len(), refusal), (3, None), "form {form}");
        assert_eq!(pieces.iter().map(|piece| piece.offset + u64::from(piece.len)).max(), Some(100));
        let (_, refusal) = decode(&list, LOOSE, |_| Some(99));
        assert_eq!(refusal.map(|refusal| refusal.status), Some(Status::OUT_OF_RANGE), "form {form}");
    }
}

#[test]
fn what_a_plain_section_does_not_have_is_refused() {
    let plain = |base, step, reserved| section(4, 1, 0, base, step, &[20, 0, 10, reserved]);
    assert_eq!(decode(&plain(0, 0, 0), LOOSE, |_| Some(100)).1, None);
    for list in [plain(1, 0, 0), plain(0, 1, 0), plain(0, 0, 1)] {
        let (pieces, refusal) = decode(&list, LOOSE, |_| Some(100));
        assert_eq!((pieces.len(), refusal.map(|refusal| refusal.status)), (0, Some(Status::INVALID_FIELD)));
    }
}

#[test]
fn a_list_is_not_longer_than_the_longest_and_the_longest_is_read() {
    assert!(Decoder::new(&[0; LIST_BYTES], LOOSE).is_ok());
    let refusal = Decoder::new(&[0; LIST_BYTES + 1], LOOSE).unwrap_err();
    assert_eq!((refusal.status, refusal.detail), (Status::LIMIT_EXCEEDED, LIST_BYTES as u64 + 1));
    let rows = |count: u32| section(2, count, 1, 0, 1, &vec![7; count as usize]);
    assert_eq!(decode(&rows(LIST_ELEMENTS - 1), LOOSE, |_| Some(100)).1, None);
    let refusal = decode(&rows(LIST_ELEMENTS), LOOSE, |_| Some(100)).1;
    assert_eq!(refusal.map(|refusal| refusal.status), Some(Status::LIMIT_EXCEEDED));
}

#[test]
fn a_planner_fills_a_list_and_not_more_than_that() {
    let (mut planner, mut chunk) = (Planner::new(), Chunk::new());
    planner.begin(Rules { chunk_bytes: 1 << 20, first_chunk_bytes: 1 << 20, ..RULES });
    // Of other regions first: the sections behind them do not end where the list does.
    let singles = (0..5000u64).map(|i| {
        let mut single = Transfer { src_max: Some(0), dst_max: Some(0), ..Transfer::NOTHING };
        single.shape.regions = if i < 24 { [OTHER, OTHER, 0] } else { [REGION, OTHER, 0] };
        (single.shape.count, single.shape.len) = (1, 4 + (i % 2) as u32);
        single.shape.offsets = [i * 7919 % 5000 * 16, i * 16, 0];
        single
    });
    let full = singles.map(|single| planner.add(&single, 0, Numbers::COUNTED)).find(|p| *p == Ok(Progress::Full));
    assert!(full.is_some() && planner.take(&mut chunk));
    let (mut decoder, mut elements) = (Decoder::new(chunk.src.encoded(), LOOSE).unwrap(), 0);
    while let Some(section) = decoder.next_section(|_| Some(1 << 40)).unwrap() {
        elements += 1 + section.count();
    }
    assert_eq!(elements, LIST_ELEMENTS);
    // And of what needs no entries, so many pieces.
    let mut tile = Transfer { src_max: Some(1 << 20), dst_max: Some(1 << 20), ..Transfer::NOTHING };
    (tile.shape.count, tile.shape.len, tile.shape.strides) = (LIST_PIECES + 2, 1, [2, 1]);
    planner.begin(Rules { chunk_bytes: 1 << 20, first_chunk_bytes: 1 << 20, ..RULES });
    assert_eq!(planner.add(&tile, 0, Numbers::COUNTED), Ok(Progress::Full));
    assert!(planner.take(&mut chunk));
    let (pieces, refusal) = decode(chunk.src.encoded(), LOOSE, |_| Some(1 << 40));
    assert_eq!((pieces.len(), refusal), (LIST_PIECES as usize, None));
}

const LOOSE: Limits = Limits { bytes: u32::MAX, pieces: LIST_PIECES, zeros: true };
const RULES: Rules = Rules {
    direct_from_bytes: u32::MAX,
    chunk_bytes: 5000,
    first_chunk_bytes: 5000,
    window_operations: 1,
    window_bytes: u32::MAX,
};

/// A section whose fragments are one piece each.
fn section(form: u8, count: u32, len: u32, base: u64, step: u32, payload: &[u32]) -> Vec<u8> {
    let [low, high] = [base as u32, (base >> 32) as u32];
    let header = [u32::from(form), count, REGION, len, low, high, step, 1, 0, 0];
    header.iter().chain(payload).flat_map(|word| word.to_le_bytes()).collect()
}

fn random_grant(granted: u64) -> u64 {
    granted / 3
}

/// All pieces up to the first that is refused.
fn decode(list: &[u8], limits: Limits, grants: impl Fn(u32) -> Option<u64>) -> (Vec<ListPiece>, Option<Refusal>) {
    let mut pieces = Vec::new();
    let mut decoder = match Decoder::new(list, limits) {
        Ok(decoder) => decoder,
        Err(refusal) => return (pieces, Some(refusal)),
    };
    loop {
        match decoder.next_section(&grants) {
            Err(refusal) => {
                assert!(matches!(decoder.next_section(&grants), Ok(None)), "nothing comes behind a refusal");
                return (pieces, Some(refusal));
            }
            Ok(None) => return (pieces, None),
            Ok(Some(section)) => {
                assert_offsets(&section);
                for piece in section.pieces() {
                    match piece {
                        Ok(piece) => pieces.push(piece),
                        Err(refusal) => return (pieces, Some(refusal)),
                    }
                }
            }
        }
    }
}

/// Offsets in bulk are those of the pieces, or the first refusal of those.
fn assert_offsets(section: &Section<'_>) {
    let Some((len, inner_count, _)) = section.uniform() else { return };
    let from = section.count() / 3;
    let most = 20.min(section.count() - from) as usize;
    let mut starts = vec![u64::MAX; most];
    let outcome = section.offsets(from, &mut starts, |start, offset| *start = offset);
    let mut expected = Ok(());
    for (i, piece) in section.pieces().enumerate() {
        let fragment = i / inner_count as usize;
        match piece {
            // Pieces end at the first refusal, which offsets from further on do not meet.
            Err(refusal) if fragment >= from as usize && fragment < from as usize + most => expected = Err(refusal),
            Err(_) => return,
            Ok(piece) => {
                assert_eq!(piece.len, len);
                if i % inner_count as usize == 0 && fragment >= from as usize && fragment < from as usize + most {
                    assert!(outcome.is_err() || starts[fragment - from as usize] == piece.offset);
                }
            }
        }
    }
    assert_eq!(outcome, expected);
}

/// The pieces that may be followed, and why and where that ends.
fn naive(list: &[u8], limits: Limits, grants: impl Fn(u32) -> Option<u64>) -> (Vec<ListPiece>, Option<(Status, u32)>) {
    let mut pieces = Vec::new();
    if list.len() > 65_536 {
        return (pieces, Some((Status::LIMIT_EXCEEDED, 0)));
    }
    let (mut at, mut elements, mut bytes) = (0, 0u64, 0u128);
    while at < list.len() {
        let first = pieces.len() as u32;
        let stop = |pieces, status| (pieces, Some((status, first)));
        let word = |from: usize| {
            list[at + from..at + from + 4].iter().rev().fold(0u32, |sum, byte| sum << 8 | u32::from(*byte))
        };
        if list.len() - at < 40 {
            return stop(pieces, Status::BAD_MESSAGE);
        }
        let (form, zeros) = (list[at] & 0x7f, list[at] >= 0x80);
        let [count, region, len, step, inner_count, inner_step] = [4, 8, 12, 24, 28, 32].map(word);
        let base = u128::from(word(16)) + (u128::from(word(20)) << 32);
        let equal = form == 1 || form == 2;
        let unused = !equal && (len != 0 || inner_step != 0) || form == 4 && (base != 0 || step != 0);
        if form == 0 || form > 4 || word(0) >> 8 != 0 || word(36) != 0 || unused {
            return stop(pieces, Status::INVALID_FIELD);
        }
        if count == 0 || inner_count == 0 || !equal && inner_count != 1 {
            return stop(pieces, Status::INVALID_COUNT);
        }
        if equal && len == 0 || zeros && !limits.zeros {
            return stop(pieces, Status::INVALID_FIELD);
        }
        let entries = if form == 1 { 0 } else { u64::from(count) };
        elements += 1 + entries;
        if elements > LIST_ELEMENTS.into() {
            return stop(pieces, Status::LIMIT_EXCEEDED);
        }
        let entry = [0, 0, 4, 8, 16][form as usize];
        let payload = at + 40;
        if payload + entry * entries as usize > list.len() {
            return stop(pieces, Status::BAD_MESSAGE);
        }
        let word = |from: usize| {
            list[payload + from..payload + from + 4].iter().rev().fold(0u32, |sum, byte| sum << 8 | u32::from(*byte))
        };
        let spelled = u128::from(count) * u128::from(inner_count);
        if pieces.len() as u128 + spelled > limits.pieces.into() {
            return stop(pieces, Status::LIMIT_EXCEEDED);
        }
        let len_of = |i: usize| match form {
            3 => word(8 * i + 4),
            4 => word(16 * i + 8),
            _ => len,
        };
        if !equal && (0..count as usize).any(|i| len_of(i) == 0 || form == 4 && word(16 * i + 12) != 0) {
            return stop(pieces, Status::INVALID_FIELD);
        }
        bytes +=
            if equal { spelled * u128::from(len) } else { (0..count as usize).map(|i| u128::from(len_of(i))).sum() };
        if bytes > limits.bytes.into() {
            return stop(pieces, Status::LIMIT_EXCEEDED);
        }
        let Some(granted) = grants(region) else { return stop(pieces, Status::UNKNOWN_REGION) };
        let mut section = Vec::new();
        for i in 0..count as usize {
            let far = |word: u32| (base + u128::from(word) * u128::from(step), word == u32::MAX);
            let (start, ones) = match form {
                1 => (far(i as u32).0, true),
                2 => far(word(4 * i)),
                3 => far(word(8 * i)),
                _ => {
                    let offset = u64::from(word(16 * i)) + (u64::from(word(16 * i + 4)) << 32);
                    (offset.into(), offset == u64::MAX)
                }
            };
            let zero = zeros && ones;
            let end = start + u128::from(inner_count - 1) * u128::from(inner_step) + u128::from(len_of(i));
            if !zero && end > granted.into() {
                let piece = first + i as u32 * inner_count;
                // A tile is refused before any of its pieces is given.
                pieces.extend(if form == 1 { vec![] } else { section });
                return (pieces, Some((Status::OUT_OF_RANGE, piece)));
            }
            for k in 0..inner_count {
                let offset = if zero { 0 } else { (start + u128::from(k) * u128::from(inner_step)) as u64 };
                section.push(ListPiece { region, offset, len: len_of(i), zero });
            }
        }
        pieces.extend(section);
        at = payload + entry * entries as usize;
    }
    (pieces, None)
}

/// Bytes at random, or a real list with something changed.
fn any_list(random: &mut Random, lists: &[Vec<u8>]) -> Vec<u8> {
    if random.once_in(4) {
        let mut list: Vec<u8> = (0..random.below(120)).map(|_| random.word() as u8).collect();
        if random.once_in(2) && list.len() > 40 {
            // A header that is not refused at once.
            list[0] = random.pick(&[1, 2, 3, 4, 0x81, 0x82, 0x83, 0x84]);
            list[1..4].fill(0);
            list[4..8].copy_from_slice(&(1 + random.small(4)).to_le_bytes());
            list[8..12].copy_from_slice(&REGION.to_le_bytes());
            list[36..40].fill(0);
            let equal = list[0] & 3 != 3 && list[0] & 4 == 0;
            list[28..32].copy_from_slice(&if equal { 1 + random.small(3) } else { 1 }.to_le_bytes());
            if !equal {
                list[12..16].fill(0);
                list[32..36].fill(0);
            }
        }
        return list;
    }
    let mut list = lists[random.below(lists.len() as u64) as usize].clone();
    for _ in 0..random.below(3) {
        if list.is_empty() {
            break;
        }
        let at = random.below(list.len() as u64) as usize;
        match random.below(6) {
            0 => list[at] ^= 1 << random.below(8),
            1 => list.truncate(at),
            2 => list[at] = random.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            3 => list.extend_from_within(..at.min(100)),
            _ => {
                let at = at / 4 * 4;
                let word = random.pick(&[0, 1, u32::MAX, u32::MAX - 1, 1 << 31, 4096, 4097, REGION, OTHER, 9]);
                if let Some(bytes) = list.get_mut(at..at + 4) {
                    bytes.copy_from_slice(&word.to_le_bytes());
                }
            }
        }
    }
    list
}

/// Lists of all forms, short ones.
fn lists() -> Vec<Vec<u8>> {
    let mut lists = Vec::new();
    let mut planner = Planner::new();
    let mut random = 1u64;
    let mut next = |end: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % end
    };
    for _ in 0..300 {
        let kind = next(4);
        planner.begin(RULES);
        for _ in 0..1 + next(3) {
            let mut transfer = Transfer { src_max: Some(u64::MAX), dst_max: Some(u64::MAX), ..Transfer::NOTHING };
            transfer.shape.regions = [REGION, OTHER, 0];
            transfer.shape.len = 8;
            transfer.shape.strides = [16, 24];
            if kind == 3 {
                transfer.shape.inner_count = 2;
                transfer.shape.inner_strides = [10, 12];
            }
            if kind < 2 {
                transfer.shape.count = 1;
                for _ in 0..20 {
                    let scale = if kind == 0 { 1 } else { 1 << 36 };
                    transfer.shape.offsets = [next(500) * scale, next(500) * 3, 0];
                    transfer.shape.len = 1 + next(9) as u32;
                    planner.add(&transfer, 0, Numbers::COUNTED).unwrap();
                }
                continue;
            }
            transfer.shape.count = 20;
            let words: Vec<u32> = (0..20).map(|_| if next(5) == 0 { u32::MAX } else { next(100) as u32 }).collect();
            transfer.shape.kinds[0] = ring_abi::IndexKind::U32;
            transfer.shape.missing = scatter_ring::plan::Missing::Zero;
            let numbers = Numbers::Rows { src: Words::U32(&words), dst: Words::Counted };
            planner.add(&transfer, 0, numbers).unwrap();
        }
        planner.finish();
        let mut chunk = Chunk::new();
        assert!(planner.take(&mut chunk));
        lists.extend([chunk.src.encoded().to_vec(), chunk.dst.encoded().to_vec()]);
    }
    lists
}
