//! No more log lines than people read, whatever strangers do.

/// Lines in hand, and how many were not said.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the lines said so far would have been earned, one by one.
    earned_ns: u64,
    unsaid: u64,
}

/// One line in so long.
const LINE_EVERY_NS: u64 = 250_000_000;
/// And so many at once.
const LINES_MAX: u64 = 40;

impl Pace {
    /// May one more line be said? Then with how many were not said before it.
    pub fn next(&mut self, now_ns: u64) -> Option<u64> {
        let now_ns = now_ns.saturating_add(LINE_EVERY_NS * LINES_MAX);
        let earned_ns = self.earned_ns.max(now_ns - LINE_EVERY_NS * LINES_MAX).saturating_add(LINE_EVERY_NS);
        if earned_ns > now_ns {
            self.unsaid = self.unsaid.saturating_add(1);
            return None;
        }
        self.earned_ns = earned_ns;
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_says_a_few_lines_and_then_how_many_it_did_not_say() {
        let mut pace = Pace::default();
        assert_eq!((0..1000).filter(|_| pace.next(5).is_some()).count() as u64, LINES_MAX);
        assert_eq!(pace.next(5 + LINE_EVERY_NS), Some(1000 - LINES_MAX));
        assert_eq!(pace.next(5 + LINE_EVERY_NS), None);
        let later_ns = 3600 * LINE_EVERY_NS;
        assert_eq!((0..1000).filter(|_| pace.next(later_ns).is_some()).count() as u64, LINES_MAX);
    }
}
