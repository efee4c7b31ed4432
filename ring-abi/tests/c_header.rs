//! `include/scatter_ring_abi.h` is made from this crate: nothing is written twice, nothing is left out.

mod c_abi;

use c_abi::items::{NOT_IN_C, constants, structures};
use c_abi::sources::{What, found};
use c_abi::{c_constant, c_name, header};
use std::path::PathBuf;

fn committed() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("include/scatter_ring_abi.h")
}

#[test]
fn the_header_is_the_one_that_this_crate_makes() {
    let (made, path) = (header::header(), committed());
    if std::env::var_os("SCATTER_RING_WRITE").is_some_and(|value| value == "1") {
        std::fs::write(&path, &made).unwrap();
        return;
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = made.lines().zip(kept.lines().chain(std::iter::repeat(""))).enumerate().find(|(_, (a, b))| a != b);
    let how = "SCATTER_RING_WRITE=1 cargo test -p ring-abi --test c_header";
    if let Some((line, (made, kept))) = differs {
        panic!("{}:{}: {kept:?} should be {made:?}. To write it anew: {how}", path.display(), line + 1);
    }
    assert!(made == kept, "{} has more than it should. To write it anew: {how}", path.display());
}

/// Everything public in the sources is in C, or said not to be.
#[test]
fn no_constant_and_no_structure_is_left_out() {
    let (constants, structures) = (constants(), structures());
    let is_listed = |path: &str, what: What| match what {
        What::Constant => constants.iter().any(|constant| constant.path == path),
        What::Structure => structures.iter().any(|structure| structure.name == path),
        // In C it is what it holds; a group without constants would be nothing.
        What::Code => constants.iter().any(|constant| constant.path.starts_with(&format!("{path}::"))),
        What::Field => {
            let (of, field) = path.rsplit_once("::").unwrap();
            let structure = structures.iter().find(|structure| structure.name == of);
            structure.is_some_and(|structure| structure.members.iter().any(|member| member.name == field))
        }
        What::Alias => false,
        What::Module | What::Function => true,
    };
    let is_excused = |path: &str| NOT_IN_C.iter().any(|(excused, _)| *excused == path);
    let found = found();
    let missing: Vec<&str> = found
        .iter()
        .filter(|found| !is_listed(&found.path, found.what) && !is_excused(&found.path))
        .map(|found| found.path.as_str())
        .collect();
    assert!(missing.is_empty(), "not in tests/c_abi/items.rs, and so not in the C header: {missing:?}");
    for path in NOT_IN_C.iter().map(|(path, _)| *path).chain(constants.iter().map(|constant| constant.path)) {
        assert!(found.iter().any(|found| found.path == path), "the sources have no {path} (any more)");
    }
    assert!(constants.len() > 140 && structures.len() == 9, "{} {}", constants.len(), structures.len());
}

#[test]
fn every_listed_item_has_a_line_of_its_own_in_the_header() {
    let text = header::header();
    for constant in constants() {
        let start = format!("#define {} ", c_constant(constant.path));
        assert_eq!(text.lines().filter(|line| line.starts_with(&start)).count(), 1, "{start}");
    }
    for structure in structures() {
        let start = format!("typedef struct {} {{", c_name(structure.name));
        assert_eq!(text.lines().filter(|line| *line == start).count(), 1, "{start}");
    }
}

/// Member by member at its place, least significant byte first: the bytes that Rust itself writes.
#[test]
fn the_members_of_every_structure_are_where_rust_writes_them() {
    for structure in structures() {
        let mut bytes = vec![0; structure.bytes];
        let mut end = 0;
        for member in &structure.members {
            assert_eq!(member.offset, end, "{}: a gap before {}", structure.name, member.name);
            end += member.bytes;
            let element = member.bytes / member.values.len();
            for (place, value) in bytes[member.offset..end].chunks_exact_mut(element).zip(&member.values) {
                place.copy_from_slice(&value.to_le_bytes()[..element]);
            }
        }
        assert_eq!(end, structure.bytes, "{}: a gap at the end", structure.name);
        assert_eq!(bytes, structure.sample, "{}", structure.name);
    }
}

/// Diagrams are drawn by hand.
#[test]
fn the_numbers_in_the_diagrams_are_those_of_the_constants() {
    let text = header::header();
    for kind in constants().iter().filter(|constant| constant.path.starts_with("Kind::") && !constant.is_bits) {
        let row = format!(" * {:>2} {} ", kind.value, kind.path.trim_start_matches("Kind::"));
        assert_eq!(text.lines().filter(|line| format!("{line} ").starts_with(&row)).count(), 1, "{row:?}");
    }
    let areas =
        text.lines().skip_while(|line| !line.starts_with(" * submit area, written by the client      complete"));
    let areas: Vec<&str> = areas.skip(1).take_while(|line| !line.contains("@endverbatim")).collect();
    let column = |from: usize, to: usize| -> Vec<usize> {
        let cells = areas.iter().map(|line| line.get(from..to.min(line.len())).unwrap_or("").trim());
        cells.filter_map(|cell| cell.split(' ').next().unwrap().parse().ok()).collect()
    };
    use ring_abi::{complete, submit};
    assert_eq!(column(2, 40), [submit::TAIL, submit::HEAD, submit::SLEEP_WORD, submit::SLOTS]);
    let theirs = [0, complete::HEAD, complete::TAIL, complete::SLEEP_WORD, complete::STOP_WORD, complete::SLOTS];
    assert_eq!(column(40, usize::MAX), theirs);
}
