//! What happened to connections, in numbers.

use super::{Failure, Refusal, exchange::End};

/// Numbers of what happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections refused by this side, by [`Refusal::kind`].
    pub refused: [u64; Refusal::KINDS],
    /// Refused by other sides, likewise.
    pub refused_by_peer: [u64; Refusal::KINDS],
    /// Sockets closed because their deadline passed.
    pub timed_out: u64,
    /// Sockets closed at once because too many others had not proven themselves.
    pub over_cap: u64,
    /// Sockets that ended or failed before the connection was there.
    pub broken: u64,
    /// Given up because another connection of the same two engines is kept.
    pub abandoned: u64,
    /// Connections given out.
    pub connected: u64,
    /// Of those, given back because they ended.
    pub lost: u64,
    /// Times that a listener could not accept: no file descriptors, no memory.
    pub not_accepted: u64,
}

impl Counters {
    /// This side's refusals of the kind of `refusal`.
    #[must_use]
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.refused.get(refusal.kind()).copied().unwrap_or(0)
    }

    /// Other sides' refusals of that kind.
    #[must_use]
    pub fn refused_by_peer(&self, refusal: Refusal) -> u64 {
        self.refused_by_peer.get(refusal.kind()).copied().unwrap_or(0)
    }

    pub(super) fn count(&mut self, failure: Failure) {
        let of = |numbers: &mut [u64; Refusal::KINDS], refusal: Refusal| {
            if let Some(number) = numbers.get_mut(refusal.kind()) {
                *number += 1;
            }
        };
        match failure {
            Failure::TimedOut | Failure::Refused(End::Ours(Refusal::TimedOut)) => self.timed_out += 1,
            Failure::Refused(End::Ours(refusal)) => of(&mut self.refused, refusal),
            Failure::Refused(End::Theirs(refusal)) => of(&mut self.refused_by_peer, refusal),
            Failure::Abandoned => self.abandoned += 1,
            Failure::Closed | Failure::System(_) | Failure::NeedsKey | Failure::Unsettled => self.broken += 1,
        }
    }
}
