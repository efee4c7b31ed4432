//! How much work a transfer is, from its first window.

use super::numbers::{Words, adjacent};
use super::window::Geometry;
use super::{Class, Missing, Numbers, Transfer, Work};

/// Adds a transfer to `work`, from the numbers of its first fragments: exact for those, and in proportion for the rest.
/// Without an index, exact. Numbers that may not be followed count like others: planning finds them.
///
/// Fragments and segments, and the pieces of both sides, are those of this transfer alone. Zeros count as pieces of the
/// source: somebody has to write them.
pub fn survey(transfer: &Transfer, numbers: Numbers<'_>, work: &mut Work) {
    if transfer.is_empty() {
        return;
    }
    let geometry = Geometry::of(&transfer.shape);
    let count = transfer.shape.count;
    match numbers {
        Numbers::Records(records) => {
            let [src, dst, _] = transfer.shape.offsets;
            let mut tally = Tally::default();
            for record in records.iter().filter(|record| record.len > 0) {
                tally.push([src.wrapping_add(record.src), dst.wrapping_add(record.dst)], record.len, false);
            }
            tally.add_to(work, records.len() as u32, count);
        }
        Numbers::Rows { src, dst } => {
            let seen = src.len().min(dst.len()).min(count as usize);
            let words = [src.first(seen), dst.first(seen)];
            let has_missing = transfer.missing().is_some_and(|(_, ones)| words[0].largest() == Some(ones));
            let adjacent = adjacent(words, seen, geometry.adjacent_steps());
            let seen = seen as u32;
            let is_even = adjacent.both == 0 || adjacent.both + 1 == seen;
            if geometry.inner_count == 1 && (has_missing || !is_even) {
                tally(transfer, &geometry, words, seen).add_to(work, seen, count);
                return;
            }
            let skipped = if has_missing { skipped(transfer, words[0]) } else { 0 };
            let fragments = u64::from(count) - scale(skipped, seen, count);
            let pieces = |inner_count: u32, adjacent: u32| {
                let followers = scale(adjacent.into(), seen.saturating_sub(1), count.saturating_sub(1));
                (fragments * u64::from(inner_count)).saturating_sub(followers)
            };
            work.add(&Class {
                fragments,
                segments: pieces(geometry.inner_count, adjacent.both),
                src_pieces: pieces(geometry.lanes[0].inner_count, adjacent.sides[0]),
                dst_pieces: pieces(geometry.lanes[1].inner_count, adjacent.sides[1]),
                bytes: fragments.saturating_mul(geometry.fragment_bytes()),
            });
        }
    }
}

/// Of fragments that are one piece each, some of which are missing or adjacent.
fn tally(transfer: &Transfer, geometry: &Geometry, words: [Words<'_>; 2], seen: u32) -> Tally {
    let missing = transfer.missing();
    let mut tally = Tally::default();
    for i in 0..seen {
        let numbers = words.map(|words| words.number(0, i));
        let missing = missing.filter(|(_, ones)| numbers[0] == *ones).map(|(missing, _)| missing);
        if missing == Some(Missing::Skip) {
            continue;
        }
        // Numbers that may not be followed can lead anywhere.
        let at = [0, 1].map(|side| {
            let lane = &geometry.lanes[side];
            lane.base.wrapping_add(numbers[side].wrapping_mul(lane.step.into()))
        });
        tally.push(at, geometry.len, missing.is_some());
    }
    tally
}

fn skipped(transfer: &Transfer, src: Words<'_>) -> u64 {
    match (transfer.missing(), src) {
        (Some((Missing::Skip, ones)), Words::U32(words)) => {
            words.iter().filter(|word| u64::from(**word) == ones).count() as u64
        }
        (Some((Missing::Skip, ones)), Words::U64(words)) => words.iter().filter(|word| **word == ones).count() as u64,
        _ => 0,
    }
}

/// What of `seen` was found to be so much is so much of `count`.
fn scale(amount: u64, seen: u32, count: u32) -> u64 {
    let scaled = u128::from(amount) * u128::from(count);
    scaled.checked_div(seen.into()).map_or(0, |scaled| u64::try_from(scaled).unwrap_or(u64::MAX))
}

/// Segments by the logarithm of their lengths.
#[derive(Default)]
struct Tally {
    /// What begins anew at a segment is counted here, but for the first segment.
    classes: [Class; Work::CLASSES],
    first: Option<usize>,
    run: Option<Run>,
}

struct Run {
    at: [u64; 2],
    bytes: u64,
    fragments: u64,
    zero: bool,
    /// Whether it goes on where the run before ends: source, destination.
    joins: [bool; 2],
    is_first: bool,
}

impl Tally {
    fn push(&mut self, at: [u64; 2], len: u32, zero: bool) {
        let mut joins = [false; 2];
        if let Some(run) = &mut self.run {
            let ends = |side: usize| run.at[side].wrapping_add(run.bytes) == at[side];
            joins = [run.zero == zero && (zero || ends(0)), ends(1)];
            if joins == [true; 2] {
                run.bytes += u64::from(len);
                run.fragments += 1;
                return;
            }
        }
        let is_first = self.run.is_none();
        self.end();
        self.run = Some(Run { at, bytes: len.into(), fragments: 1, zero, joins, is_first });
    }

    fn end(&mut self) {
        let Some(run) = self.run.take() else { return };
        let at = (run.bytes.max(1).ilog2() as usize).min(Work::CLASSES - 1);
        let class = &mut self.classes[at];
        class.fragments += run.fragments;
        class.bytes += run.bytes;
        if run.is_first {
            self.first = Some(at);
            return;
        }
        class.segments += 1;
        class.src_pieces += u64::from(!run.joins[0]);
        class.dst_pieces += u64::from(!run.joins[1]);
    }

    /// The first segment is there once, however many fragments follow: a side that is contiguous stays one piece.
    fn add_to(mut self, work: &mut Work, seen: u32, count: u32) {
        self.end();
        let later = |amount: u64| scale(amount, seen.saturating_sub(1), count.saturating_sub(1));
        for (at, class) in self.classes.iter().enumerate().filter(|(_, class)| class.fragments > 0) {
            let first = u64::from(self.first == Some(at));
            work.add(&Class {
                fragments: scale(class.fragments, seen, count),
                segments: later(class.segments) + first,
                src_pieces: later(class.src_pieces) + first,
                dst_pieces: later(class.dst_pieces) + first,
                bytes: scale(class.bytes, seen, count),
            });
        }
    }
}
