//! A link and its two hosts, as data.

use crate::cost::{Budget, CopyProfile, LinkProfile, Situation};
use crate::plan::Direction;

/// A link and its two hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// As on the command line.
    pub name: &'static str,
    /// Where the figures are from.
    pub about: &'static str,
    /// The link.
    pub link: LinkProfile,
    /// Copies of the requester's host.
    pub requester: CopyProfile,
    /// Copies of the owner's host.
    pub owner: CopyProfile,
    /// What one batch may use.
    pub budget: Budget,
    /// What the planner does not know.
    pub effects: Effects,
}

/// What happens on a link and its hosts beyond the planner's formulas. Without them the simulator would be the cost model
/// again, and their agreement would mean nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effects {
    /// Memory bandwidth of a host, read and written bytes counted once, in bytes per ns: busy workers share it, so that
    /// the second adds less than the first. Infinite for none.
    pub memory_bytes_per_ns: f64,
    /// What of a chunk stays in the cache between packing and sending. The bytes beyond are packed and sent from memory.
    pub cache_bytes: u64,
    /// How much longer those bytes take, packed and sent: 0.3 is 30 % more.
    pub beyond_cache: f64,
    /// What the first use of a slot in a run costs per byte, in ns: its pages and lines are cold.
    pub first_touch_ns_per_byte: f64,
    /// What a piece costs more for each doubling of its table beyond `translation_reach_bytes`: page walks miss deeper.
    pub translation_ns: f64,
    /// What address translation covers without misses.
    pub translation_reach_bytes: u64,
    /// What one message or operation takes on the wire beyond its payload: headers and the gap behind it.
    pub gap_ns: f64,
    /// Completions and messages are late by up to this, evenly spread.
    pub jitter_ns: u64,
    /// Time from one hiccup of a poller to the next, on average: it is descheduled, or a page fault takes it. 0 for none.
    pub hiccup_every_ns: u64,
    /// How long one is.
    pub hiccup_ns: u64,
}

impl Effects {
    /// None: what is left are the planner's own formulas, played out event by event.
    pub const NONE: Effects = Effects {
        memory_bytes_per_ns: f64::INFINITY,
        cache_bytes: u64::MAX,
        beyond_cache: 0.0,
        first_touch_ns_per_byte: 0.0,
        translation_ns: 0.0,
        translation_reach_bytes: u64::MAX,
        gap_ns: 0.0,
        jitter_ns: 0,
        hiccup_every_ns: 0,
        hiccup_ns: 0,
    };
}

impl Profile {
    /// What a planner believes that knows all of this but the effects.
    #[must_use]
    pub fn situation(&self, direction: Direction) -> Situation {
        Situation { direction, link: self.link, requester: self.requester, owner: self.owner, budget: self.budget }
    }
}
