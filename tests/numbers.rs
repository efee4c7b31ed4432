//! Windows of index words: what is copied of an index, and what it is said to move.

use ring_abi::{FragmentRecord, IndexKind, MISSING_U32, MISSING_U64};
use scatter_ring::pack::NumberWindow;
use scatter_ring::plan::{Missing, Numbers, Shape, Transfer, WINDOW, Words};
use scatter_ring::region::{Huge, Region};

/// Behind what is not of the index.
const OFFSET: u64 = 4096;
const LEN: u32 = 12;
/// Two windows, and some.
const COUNT: u32 = 2 * WINDOW as u32 + 10;

fn transfer(kinds: [IndexKind; 2], missing: Missing) -> Transfer {
    let shape = Shape {
        regions: [1, 2, 3],
        offsets: [0, 0, OFFSET],
        count: COUNT,
        len: LEN,
        strides: [16, 16],
        inner_count: 1,
        inner_strides: [0; 2],
        kinds,
        missing,
    };
    Transfer { shape, src_max: Some(u64::MAX), dst_max: Some(u64::MAX) }
}

/// An index region with these words, or halves, one array behind the other.
fn index(arrays: &[Vec<u8>]) -> Region {
    let bytes = arrays.concat();
    let (region, _) = Region::allocate(OFFSET + bytes.len() as u64, Huge::Never).unwrap();
    region.write_at(0, &[0xAA; OFFSET as usize]).unwrap();
    region.write_at(OFFSET, &bytes).unwrap();
    region
}

fn halves(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| (*number as u32).to_le_bytes()).collect()
}

fn wholes(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// One side's numbers, of no kind in particular. `None`: its own numbers.
fn numbers_of(words: Words<'_>) -> Option<Vec<u64>> {
    match words {
        Words::Counted => None,
        Words::U32(words) => Some(words.iter().map(|word| u64::from(*word)).collect()),
        Words::U64(words) => Some(words.to_vec()),
    }
}

/// Goes through all windows, with what each side has to be.
fn assert_windows(transfer: &Transfer, index: &Region, sides: [Option<&[u64]>; 2]) {
    let mut window = NumberWindow::default();
    let mut from = 0;
    let mut counts = Vec::new();
    while from < COUNT {
        // SAFETY: the arrays of the shape are in the region.
        unsafe { window.load(transfer, Some(index), from) };
        let Numbers::Rows { src, dst } = window.numbers() else { panic!("records") };
        let range = from as usize..(from + window.count()) as usize;
        let wanted = sides.map(|side| side.map(|numbers| numbers[range.clone()].to_vec()));
        assert!([numbers_of(src), numbers_of(dst)] == wanted, "from {from}");
        assert_eq!(window.bytes(transfer), u64::from(LEN) * u64::from(window.count()));
        counts.push(window.count());
        from += window.count();
    }
    assert_eq!(counts, [WINDOW as u32, WINDOW as u32, 10]);
}

#[test]
fn words_of_both_lengths_come_from_the_array_of_their_side() {
    let some: Vec<u64> = (0..u64::from(COUNT)).map(|i| i * 7 % 5003).collect();
    let others: Vec<u64> = (0..u64::from(COUNT)).map(|i| i * 11 % 6007).collect();
    let large: Vec<u64> = others.iter().map(|number| number << 33 | 1).collect();
    let (none, half, whole) = (IndexKind::None, IndexKind::U32, IndexKind::U64);
    for (kinds, arrays, sides) in [
        ([half, none], vec![halves(&some)], [Some(&some), None]),
        ([none, half], vec![halves(&some)], [None, Some(&some)]),
        ([whole, none], vec![wholes(&large)], [Some(&large), None]),
        ([none, whole], vec![wholes(&large)], [None, Some(&large)]),
        ([half, half], vec![halves(&some), halves(&others)], [Some(&some), Some(&others)]),
        ([whole, whole], vec![wholes(&large), wholes(&some)], [Some(&large), Some(&some)]),
        ([half, whole], vec![halves(&some), wholes(&large)], [Some(&some), Some(&large)]),
        ([whole, half], vec![wholes(&large), halves(&some)], [Some(&large), Some(&some)]),
    ] {
        let sides = sides.map(|side| side.map(|numbers| &numbers[..]));
        assert_windows(&transfer(kinds, Missing::Row), &index(&arrays), sides);
    }
}

#[test]
fn without_an_index_all_that_is_left_is_one_window() {
    let mut window = NumberWindow::default();
    let counted = transfer([IndexKind::None; 2], Missing::Row);
    // SAFETY: there is no index.
    unsafe { window.load(&counted, None, 10) };
    assert_eq!((window.count(), window.bytes(&counted)), (COUNT - 10, u64::from(COUNT - 10) * u64::from(LEN)));
    assert!(matches!(window.numbers(), Numbers::Rows { src: Words::Counted, dst: Words::Counted }));
    let most = Shape { count: u32::MAX, len: u32::MAX, inner_count: u32::MAX, ..counted.shape };
    let most = Transfer { shape: most, ..counted };
    // SAFETY: as above.
    unsafe { window.load(&most, None, 0) };
    assert_eq!((window.count(), window.bytes(&most)), (u32::MAX, u64::MAX), "as many as can be said");
}

#[test]
fn records_come_whole_and_move_what_they_say() {
    let record = |i: u64| FragmentRecord { src: i << 40 | 3, dst: i * 31, len: (i % 977) as u32, reserved: 0 };
    let records: Vec<FragmentRecord> = (0..u64::from(COUNT)).map(record).collect();
    let bytes =
        |r: &FragmentRecord| [&r.src.to_le_bytes()[..], &r.dst.to_le_bytes(), &r.len.to_le_bytes(), &[0; 4]].concat();
    let index = index(&[records.iter().flat_map(bytes).collect()]);
    let transfer = transfer([IndexKind::Fragments; 2], Missing::Row);
    let mut window = NumberWindow::default();
    for from in [0, WINDOW as u32, 2 * WINDOW as u32] {
        // SAFETY: the records are in the region.
        unsafe { window.load(&transfer, Some(&index), from) };
        let wanted = &records[from as usize..(from + window.count()) as usize];
        let Numbers::Records(found) = window.numbers() else { panic!("rows") };
        assert!(found == wanted, "from {from}");
        assert_eq!(window.bytes(&transfer), wanted.iter().map(|record| u64::from(record.len)).sum::<u64>());
    }
    assert_eq!(window.count(), 10);
}

#[test]
fn what_is_skipped_moves_nothing_and_what_becomes_zeros_does() {
    for (kind, ones) in [(IndexKind::U32, u64::from(MISSING_U32)), (IndexKind::U64, MISSING_U64)] {
        let src: Vec<u64> = (0..u64::from(COUNT)).map(|i| if i % 3 == 0 { ones } else { i }).collect();
        // Of the destination all ones is a number like any other.
        let dst = vec![ones; COUNT as usize];
        let write = |numbers| if kind == IndexKind::U32 { halves(numbers) } else { wholes(numbers) };
        let index = index(&[write(&src), write(&dst)]);
        for kinds in [[kind, IndexKind::None], [kind, kind]] {
            let mut window = NumberWindow::default();
            for from in [0, WINDOW as u32, 2 * WINDOW as u32] {
                let bytes = [Missing::Skip, Missing::Zero, Missing::Row].map(|missing| {
                    let transfer = transfer(kinds, missing);
                    // SAFETY: the arrays are in the region.
                    unsafe { window.load(&transfer, Some(&index), from) };
                    window.bytes(&transfer)
                });
                let range = from as usize..(from + window.count()) as usize;
                let skipped = src[range].iter().filter(|number| **number == ones).count() as u64;
                let all = u64::from(window.count()) * u64::from(LEN);
                assert_eq!(bytes, [all - skipped * u64::from(LEN), all, all], "{kinds:?} from {from}");
            }
        }
    }
}
