//! No more log lines than people read, whatever others do.
//!
//! For the threads that deal with others' messages. The poller and the workers never write a line: whoever takes them must
//! not be able to hold them up.

use std::time::{Duration, Instant};

/// Lines in hand and lines held back. Everything that clients and peers can cause passes it; counters know of all.
#[derive(Debug)]
pub(crate) struct Pace {
    lines: u32,
    refilled: Instant,
    unsaid: u64,
}

/// So many lines at once.
const LINES_MAX: u32 = 40;
/// Then one in so long.
const LINE_EVERY: Duration = Duration::from_millis(250);

impl Pace {
    pub fn new() -> Pace {
        Pace { lines: LINES_MAX, refilled: Instant::now(), unsaid: 0 }
    }

    /// May one more line be said? Then with how many were not said before it.
    pub fn next(&mut self, now: Instant) -> Option<u64> {
        let earned = now.saturating_duration_since(self.refilled).as_nanos() / LINE_EVERY.as_nanos();
        if earned > 0 {
            self.lines = LINES_MAX.min(self.lines.saturating_add(u32::try_from(earned).unwrap_or(LINES_MAX)));
            self.refilled = now;
        }
        if self.lines == 0 {
            self.unsaid += 1;
            return None;
        }
        self.lines -= 1;
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_says_a_few_lines_and_then_how_many_it_did_not_say() {
        let mut pace = Pace::new();
        let start = pace.refilled;
        let said = (0..1000).filter(|_| pace.next(start).is_some()).count();
        assert_eq!(said, LINES_MAX as usize);
        assert_eq!(pace.next(start + LINE_EVERY), Some(1000 - u64::from(LINES_MAX)));
        assert_eq!(pace.next(start + LINE_EVERY), None);
        assert_eq!(pace.next(start + 3600 * LINE_EVERY), Some(1));
        let again = (0..1000).filter(|_| pace.next(start + 3600 * LINE_EVERY).is_some()).count();
        assert_eq!(again, LINES_MAX as usize - 1);
    }
}
