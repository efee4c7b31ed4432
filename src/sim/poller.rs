//! A poller: one thread that does one thing after the other.

use super::Effects;
use super::random::Random;
use std::collections::VecDeque;

/// What waits for a poller, and until when it is busy.
#[derive(Debug)]
pub struct Poller<I> {
    pub inbox: VecDeque<I>,
    /// It is busy until then.
    pub free_ns: u64,
    /// Its next turn is among the events.
    pub woken: bool,
    /// When its machine wants to know the time, as the events have it.
    pub timer_ns: Option<u64>,
    next_hiccup_ns: u64,
}

impl<I> Poller<I> {
    pub fn new(effects: &Effects, random: &mut Random) -> Poller<I> {
        let next_hiccup_ns = match effects.hiccup_every_ns {
            0 => u64::MAX,
            every => random.up_to(every.saturating_mul(2)),
        };
        Poller { inbox: VecDeque::new(), free_ns: 0, woken: false, timer_ns: None, next_hiccup_ns }
    }

    /// When a turn that is due now really begins. A hiccup that comes while the poller has nothing to do harms nobody.
    pub fn begins(&mut self, now_ns: u64, effects: &Effects, random: &mut Random) -> u64 {
        let mut begins = now_ns;
        while self.next_hiccup_ns <= now_ns {
            let over = self.next_hiccup_ns.saturating_add(effects.hiccup_ns);
            begins = begins.max(over);
            let pause = 1 + random.up_to(effects.hiccup_every_ns.saturating_mul(2));
            self.next_hiccup_ns = over.saturating_add(pause);
        }
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hiccup_delays_the_turns_that_fall_into_it_and_no_others() {
        let effects = Effects { hiccup_every_ns: 1_000, hiccup_ns: 300, ..Effects::NONE };
        let mut random = Random::new(7);
        let mut poller = Poller::<()>::new(&effects, &mut random);
        let delays: Vec<u64> = (0..100_000).map(|now| poller.begins(now, &effects, &mut random) - now).collect();
        assert!(delays.iter().all(|delay| *delay <= 300));
        let begun = delays.windows(2).filter(|pair| pair[0] == 0 && pair[1] > 0).count();
        assert!((60..100).contains(&begun), "one in 1,300 ns on average: {begun}");
        let mut calm = Poller::<()>::new(&Effects::NONE, &mut random);
        assert_eq!(calm.begins(1 << 40, &Effects::NONE, &mut random), 1 << 40);
    }
}
