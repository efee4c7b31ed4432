//! What goes wrong on purpose.

use std::collections::BTreeMap;

/// What becomes of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twist {
    /// It never comes.
    Lost,
    /// It comes twice.
    Twice,
    /// It comes so many polls later, and behind what comes in between.
    Late(u32),
    /// It comes behind the next one.
    Swapped,
    /// One that is about nothing comes before it.
    Garbage,
    /// One that is about nothing comes instead of it.
    Spoiled,
    /// An old one of the same completion queue comes before it.
    Stale,
    /// One comes before it of a queue pair that is gone, which had the number that its own has now.
    Ghost,
    /// One comes before it of a request that is under way and has not asked for any.
    Unasked,
    /// It comes with an error, and its queue pair goes to the error state.
    Failed(u32),
}

impl Twist {
    pub const ALL: [Twist; 10] = [
        Twist::Lost,
        Twist::Twice,
        Twist::Late(20),
        Twist::Swapped,
        Twist::Garbage,
        Twist::Spoiled,
        Twist::Stale,
        Twist::Ghost,
        Twist::Unasked,
        Twist::Failed(scatter_ring::verbs::abi::IBV_WC_FATAL_ERR),
    ];
}

/// A post that the device does not take, or not all of.
#[derive(Clone, Copy, Debug)]
pub struct Refusal {
    /// Posts before it that are taken.
    pub after_posts: u64,
    /// Requests of it that are taken: 0 is none. If it has fewer, the next post is met, and so on.
    pub at: usize,
    pub errno: i32,
    /// It returns the negative of the number, as siw.
    pub is_negative: bool,
    /// It says which request it was, as it must.
    pub names_it: bool,
}

impl Refusal {
    /// No room for the request number `at` of the next post that has so many.
    pub fn no_memory(at: usize) -> Refusal {
        Refusal { after_posts: 0, at, errno: libc::ENOMEM, is_negative: false, names_it: true }
    }
}

#[derive(Default)]
pub(super) struct Faults {
    /// By the number of a completion.
    twists: [BTreeMap<u64, Twist>; 2],
    /// Completions that were made.
    made: [u64; 2],
    refusals: [Option<Refusal>; 2],
    pub refused_states: [Option<u32>; 2],
    pub registrations_left: [Option<u64>; 2],
    pub mute: [bool; 2],
    pub is_cut: bool,
}

impl Faults {
    pub fn twist(&mut self, device: usize, nth: u64, twist: Twist) {
        self.twists[device].insert(self.made[device] + nth, twist);
    }

    pub fn end(&mut self) {
        *self = Faults { made: self.made, ..Faults::default() };
    }

    pub fn has_twists(&self) -> bool {
        self.twists.iter().any(|twists| !twists.is_empty())
    }

    pub fn refuse_post(&mut self, device: usize, refusal: Refusal) {
        self.refusals[device] = Some(refusal);
    }

    pub fn refuses(&self, device: usize) -> bool {
        self.refusals[device].is_some()
    }

    /// A completion is made: what becomes of it.
    pub fn of_completion(&mut self, device: usize) -> Option<Twist> {
        let number = self.made[device];
        self.made[device] += 1;
        self.twists[device].remove(&number)
    }

    /// A post of so many requests: how it is refused.
    pub fn of_post(&mut self, device: usize, requests: usize) -> Option<Refusal> {
        let refusal = self.refusals[device].as_mut()?;
        if refusal.after_posts > 0 {
            refusal.after_posts -= 1;
            return None;
        }
        if refusal.at < requests { self.refusals[device].take() } else { None }
    }

    /// True if a registration fails.
    pub fn of_registration(&mut self, device: usize) -> bool {
        match &mut self.registrations_left[device] {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }
}
