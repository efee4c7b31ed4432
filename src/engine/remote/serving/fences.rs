//! What counts when it has come by every lane.

use super::super::line::BATCHES;
use crate::pipeline::BatchId;

/// Messages that come once by every lane of a connection, as CANCEL does: lanes are not ordered among each other, and so
/// nothing that was sent before is still to come when the last one is there.
#[derive(Debug)]
pub struct Fences {
    lanes: usize,
    /// By which lanes it came, a bit each. No more at once than there are batches.
    coming: Vec<(BatchId, u64)>,
}

impl Fences {
    pub fn new(lanes: usize) -> Fences {
        Fences { lanes, coming: Vec::with_capacity(BATCHES as usize) }
    }

    /// One has come. True: it was the last. `None`: it came by this lane before, or there are more at once than can be.
    pub fn came_by(&mut self, lane: usize, batch: BatchId) -> Option<bool> {
        let bit = 1u64.checked_shl(u32::try_from(lane).ok()?).filter(|_| lane < self.lanes)?;
        let at = match self.coming.iter().position(|(known, _)| *known == batch) {
            Some(at) => at,
            None if self.coming.len() < BATCHES as usize => {
                self.coming.push((batch, 0));
                self.coming.len() - 1
            }
            None => return None,
        };
        let (_, came) = self.coming.get_mut(at)?;
        if *came & bit != 0 {
            return None;
        }
        *came |= bit;
        let all = came.count_ones() as usize == self.lanes;
        if all {
            self.coming.swap_remove(at);
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_come_by_every_lane_has_come() {
        let mut fences = Fences::new(3);
        let (a, b) = (BatchId(7), BatchId(8));
        let came: Vec<_> = [(1, a), (0, b), (0, a), (1, b), (2, a), (2, b)]
            .map(|(lane, batch)| fences.came_by(lane, batch).unwrap())
            .into();
        assert_eq!(came, [false, false, false, false, true, true]);
        assert_eq!(fences.came_by(0, a), Some(false), "it begins anew");
        assert_eq!(fences.came_by(0, a), None, "twice by one lane");
        assert_eq!((fences.came_by(3, a), fences.came_by(64, a)), (None, None), "no such lane");
        assert_eq!(Fences::new(1).came_by(0, a), Some(true));
    }

    #[test]
    fn there_are_no_more_at_once_than_batches() {
        let mut fences = Fences::new(2);
        for batch in 0..BATCHES.into() {
            assert_eq!(fences.came_by(0, BatchId(batch)), Some(false));
        }
        assert_eq!(fences.came_by(0, BatchId(99)), None);
        assert_eq!(fences.came_by(1, BatchId(3)), Some(true));
        assert_eq!(fences.came_by(0, BatchId(99)), Some(false));
    }
}
