//! Numbers that follow from a seed.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// From 0 to `most`.
    pub fn up_to(&mut self, most: u64) -> u64 {
        if most == 0 { 0 } else { self.word() % most.saturating_add(1) }
    }

    /// True with a rate out of 1,000. No number is drawn for a rate of 0, so that a run without faults does not depend on
    /// how many kinds of faults there are.
    pub fn happens(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.word() % 1000 < u64::from(per_mille)
    }
}
