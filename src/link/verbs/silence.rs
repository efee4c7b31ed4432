//! How long nothing has come, as far as somebody looked: a poller that was stopped for a while has not waited.

/// Since something came.
#[derive(Debug, Default)]
pub(super) struct Silence {
    since_ns: u64,
    looks: u32,
}

/// So often must have been looked, besides.
const LOOKS_MIN: u32 = 64;

impl Silence {
    /// Something has come.
    pub fn end(&mut self) {
        self.looks = 0;
    }

    /// Nothing has come again. True if it has been so for so long.
    pub fn lasts(&mut self, now_ns: u64, ns: u64) -> bool {
        if self.looks == 0 {
            self.since_ns = now_ns;
        }
        self.looks = self.looks.saturating_add(1);
        self.looks > LOOKS_MIN && now_ns.saturating_sub(self.since_ns) > ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_looked_at_again_and_again_counts_as_silence() {
        let mut silence = Silence::default();
        assert!(!silence.lasts(1000, 10), "the first look");
        assert!(!silence.lasts(5000, 10), "one look after a long time");
        assert!((0..100).any(|_| silence.lasts(5001, 10)));
        silence.end();
        assert!(!(0..100).any(|_| silence.lasts(6000, 10)), "not long enough");
        assert!(silence.lasts(6011, 10));
    }
}
