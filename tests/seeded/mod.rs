//! Random cases in a plain loop, far cheaper than a strategy that shrinks. A case is known by its seed.

// Each test file that shares this module uses another part of it.
#![allow(dead_code)]

use std::hash::{BuildHasher, RandomState};

/// A failing case is run alone by setting this to the seed that it printed.
const REPLAY: &str = "SCATTER_RING_SEED";

/// Runs that many cases, different ones each time, or the one that is to be replayed.
pub fn cases(count: u64, mut case: impl FnMut(&mut Random)) {
    let replayed = std::env::var(REPLAY).ok().map(|seed| seed.parse().expect("the seed is a decimal number"));
    let base = RandomState::new().hash_one(count);
    let seeds = if let Some(seed) = replayed { seed..=seed } else { 0..=count - 1 };
    for number in seeds {
        let seed = if replayed.is_some() { number } else { base.wrapping_add(number) };
        let _shown = ShownIfPanicking(seed);
        case(&mut Random(seed));
    }
}

/// Prints its seed if the case panics, wherever it does.
struct ShownIfPanicking(u64);

impl Drop for ShownIfPanicking {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this case again: {REPLAY}={}", self.0);
        }
    }
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn from_seed(seed: u64) -> Random {
        Random(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Less than `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.word() % end
    }

    pub fn small(&mut self, end: u32) -> u32 {
        self.below(end.into()) as u32
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
