//! How the fragments of a window get into the chunks that are open. Each way goes as far as it can: it ends when a chunk is
//! complete, and goes on from there.

use super::{Planner, Words};
use crate::plan::open::Fragments;
use crate::plan::window::{Geometry, Window};
use crate::plan::{Fault, Missing, Transfer};
use ring_abi::FragmentRecord;

impl Planner {
    /// Fragments one by one; false if a chunk is complete.
    pub(super) fn merge(&mut self, transfer: &Transfer, words: [Words<'_>; 2], window: &mut Window) -> bool {
        let Geometry { lanes, len, .. } = window.geometry;
        let is_counted = matches!(words, [Words::Counted, Words::Counted]);
        // So many are one piece.
        let at_once = if is_counted && window.geometry.is_contiguous() { u32::MAX / len } else { 1 };
        let missing = transfer.missing();
        while window.at < window.usable {
            let room = self.open.iter().map(|open| open.pending.room()).min().unwrap_or(0);
            let until = window.usable.min(window.at.saturating_add(room));
            while window.at < until {
                let count = at_once.min(window.usable - window.at);
                let numbers = words.map(|words| words.number(window.first, window.at));
                let mark = window.mark();
                window.at += count;
                let src = match missing.filter(|(_, ones)| numbers[0] == *ones) {
                    // The destination's number is not looked at.
                    Some((Missing::Skip, _)) => continue,
                    Some(_) => u64::MAX,
                    None => lanes[0].at(numbers[0]),
                };
                self.push(src, lanes[1].at(numbers[1]), len * count, mark);
            }
            if !self.flush_due() {
                return false;
            }
        }
        true
    }

    /// Irregular fragments, one by one; false if a chunk is complete.
    pub(super) fn records(&mut self, transfer: &Transfer, records: &[FragmentRecord], window: &mut Window) -> bool {
        let [src, dst, _] = transfer.shape.offsets;
        while window.at < window.usable {
            let room = self.open.iter().map(|open| open.pending.room()).min().unwrap_or(0) as usize;
            let rest = records.get(window.at as usize..window.usable as usize).unwrap_or_default();
            for record in rest.iter().take(room) {
                let mark = window.mark();
                if let Err(fault) = transfer.check_record(record) {
                    window.fault = Some(Fault { fragment: window.first + window.at, ..fault });
                    window.usable = window.at;
                    break;
                }
                window.at += 1;
                if record.len > 0 {
                    self.push(src + record.src, dst + record.dst, record.len, mark);
                }
            }
            if !self.flush_due() {
                return false;
            }
        }
        true
    }

    /// As many fragments at once as fit into the chunk; false if it is complete.
    pub(super) fn bulk(&mut self, words: [Words<'_>; 2], window: &mut Window) -> bool {
        let geometry = window.geometry;
        let route = self.route(geometry.len);
        self.end_run();
        if !(self.flush_due() && self.flush(route)) {
            return false;
        }
        let open = &mut self.open[route];
        while window.at < window.usable {
            let count = open.fragments_left(&geometry).min(window.usable - window.at);
            let is_whole = window.piece == 0 && window.byte == 0;
            if is_whole && count > 0 {
                let range = window.at as usize..(window.at + count) as usize;
                let fragments = [0, 1].map(|side| {
                    let lane = &geometry.lanes[side];
                    match words[side] {
                        Words::Counted => Fragments::Tile(lane.at(words[side].number(window.first, window.at))),
                        Words::U32(words) => Fragments::Rows(lane.base, &words[range.clone()]),
                        Words::U64(_) => {
                            Fragments::Rows(lane.at(window.word_base[side]), &self.relative[side][range.clone()])
                        }
                    }
                });
                open.append(geometry.lanes, fragments, count, geometry.inner_count, window.scattered, window.mark());
                window.at += count;
            } else {
                let numbers = words.map(|words| words.number(window.first, window.at));
                if (is_whole && open.waits(geometry.fragment_bytes())) || !open.append_part(window, false, numbers) {
                    self.complete = Some(route);
                    return false;
                }
            }
            if open.is_full() {
                self.complete = Some(route);
                return false;
            }
        }
        true
    }

    /// Fragments that are several pieces, one by one; false if a chunk is complete.
    pub(super) fn tiles(&mut self, transfer: &Transfer, words: [Words<'_>; 2], window: &mut Window) -> bool {
        let geometry = window.geometry;
        let route = self.route(geometry.len);
        self.end_run();
        if !(self.flush_due() && self.flush(route)) {
            return false;
        }
        let open = &mut self.open[route];
        while window.at < window.usable {
            let numbers = words.map(|words| words.number(window.first, window.at));
            let missing = transfer.missing().filter(|(_, ones)| numbers[0] == *ones);
            if matches!(missing, Some((Missing::Skip, _))) {
                window.at += 1;
                continue;
            }
            let is_whole = window.piece == 0 && window.byte == 0;
            if is_whole && open.fragments_left(&geometry) > 0 {
                let src = if missing.is_some() {
                    Fragments::Zeros
                } else {
                    Fragments::Tile(geometry.lanes[0].at(numbers[0]))
                };
                let fragments = [src, Fragments::Tile(geometry.lanes[1].at(numbers[1]))];
                open.append(geometry.lanes, fragments, 1, geometry.inner_count, [true; 2], window.mark());
                window.at += 1;
            } else if (is_whole && open.waits(geometry.fragment_bytes()))
                || !open.append_part(window, missing.is_some(), numbers)
            {
                self.complete = Some(route);
                return false;
            }
            if open.is_full() {
                self.complete = Some(route);
                return false;
            }
        }
        true
    }
}
