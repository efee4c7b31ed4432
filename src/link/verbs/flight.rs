//! Work requests of a send queue, from the doorbell until they are known to be over.
//!
//! Only some are signalled, which is the point: a completion says that everything before it is over too, because a queue
//! pair carries its requests out in order. So a place in the queue is free again when a signalled request behind it has
//! completed, and not before: at least one of the requests in a full queue must be signalled. Every doorbell's last one is,
//! and every one that has [`signal_every`](Flight::new) unsignalled ones before it.
//!
//! Completions are believed only if they can be true. A device, or what is between it and us, may say things twice, late, in
//! another order, or not at all.

/// Places of one send queue.
#[derive(Debug)]
pub(super) struct Flight {
    /// By number, masked: what was posted with it.
    works: Box<[Work]>,
    depth: u64,
    /// Numbers run on for ever; 56 bits of them are enough for any.
    posted: u64,
    done: u64,
    /// Behind the last signalled one.
    unsignalled: u64,
    signalled: u64,
    signal_every: u64,
}

/// What a work request was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// With it the operation has been posted to its end.
    pub ends: bool,
    pub is_read: bool,
    /// It is a send that has one of the send buffers.
    pub has_buffer: bool,
    pub bytes: u32,
    pub is_signalled: bool,
}

/// What a completion says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Good,
    Failed,
}

/// A completion that cannot be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stale;

impl Flight {
    /// For a send queue of `depth` places, at least 2, in which one of every `signal_every` requests is signalled. `generation`:
    /// where numbers begin, so that those of another link, whose queue pair had the same number, are not taken for them.
    pub fn new(depth: u32, signal_every: u32, generation: u32) -> Flight {
        let depth = depth.max(2);
        let first = u64::from(generation >> 9) << 32;
        Flight {
            works: vec![Work::default(); depth.next_power_of_two() as usize].into(),
            depth: depth.into(),
            posted: first,
            done: first,
            unsignalled: 0,
            signalled: 0,
            // Half of the queue at most: while one half is reported, the other is filled.
            signal_every: signal_every.clamp(1, depth / 2).into(),
        }
    }

    /// Requests that may be posted now.
    pub fn room(&self) -> usize {
        (self.depth - (self.posted - self.done)) as usize
    }

    /// Requests that are under way.
    pub fn len(&self) -> u64 {
        self.posted - self.done
    }

    /// Nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.posted == self.done
    }

    /// The next request, which there is [room](Self::room) for: its number, and whether it is to be signalled.
    pub fn add(&mut self, work: Work) -> (u64, bool) {
        debug_assert!(self.room() > 0, "the send queue would overrun");
        let is_signalled = self.unsignalled + 1 >= self.signal_every;
        self.posted += 1;
        self.unsignalled = if is_signalled { 0 } else { self.unsignalled + 1 };
        self.signalled += u64::from(is_signalled);
        *self.place(self.posted) = Work { is_signalled, ..work };
        (self.posted, is_signalled)
    }

    /// The last request is the last of its doorbell, and is signalled.
    pub fn signal_last(&mut self) {
        let last = self.posted;
        if !std::mem::replace(&mut self.place(last).is_signalled, true) {
            self.signalled += 1;
        }
        self.unsignalled = 0;
    }

    /// Requests that were signalled so far.
    pub fn signalled(&self) -> u64 {
        self.signalled
    }

    /// The last `count` requests were not taken by the device; gives them.
    pub fn take_back(&mut self, count: u64) -> impl Iterator<Item = Work> {
        let last = self.posted;
        self.posted = self.done.max(last.saturating_sub(count));
        let (works, mask) = (&self.works, self.works.len() as u64 - 1);
        let taken = (self.posted + 1..=last).map(move |number| works[(number & mask) as usize]);
        self.signalled -= taken.clone().filter(|work| work.is_signalled).count() as u64;
        taken
    }

    /// A completion of request `number`. Gives the requests that are over by it, in their order: all that it says is true of
    /// the last one, and those before it have done what they were to do.
    ///
    /// # Errors
    /// [`Stale`]: nothing changes.
    pub fn completed(&mut self, number: u64, outcome: Outcome) -> Result<impl Iterator<Item = Work>, Stale> {
        if number <= self.done || number > self.posted {
            return Err(Stale);
        }
        // A failed request is always reported, one that went well only if it is signalled.
        if outcome == Outcome::Good && !self.place(number).is_signalled {
            return Err(Stale);
        }
        let first = self.done + 1;
        self.done = number;
        let (works, mask) = (&self.works, self.works.len() as u64 - 1);
        Ok((first..=number).map(move |number| works[(number & mask) as usize]))
    }

    fn place(&mut self, number: u64) -> &mut Work {
        let mask = self.works.len() as u64 - 1;
        &mut self.works[(number & mask) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Work = Work { ends: false, is_read: false, has_buffer: false, bytes: 1, is_signalled: false };

    /// Doorbells of `window` requests as long as there is room; gives which of them were signalled.
    fn fill(flight: &mut Flight, window: usize) -> Vec<(u64, bool)> {
        let mut all = Vec::new();
        while flight.room() > 0 {
            let count = window.min(flight.room());
            all.extend((0..count).map(|_| flight.add(WORK)));
            flight.signal_last();
            all.last_mut().into_iter().for_each(|last: &mut (u64, bool)| last.1 = true);
        }
        all
    }

    #[test]
    fn a_full_queue_always_has_a_signalled_request_whatever_the_window() {
        for depth in 2..40 {
            for (window, every) in (1..50).flat_map(|window| [1, 4, 16, 1000].map(|every| (window, every))) {
                let mut flight = Flight::new(depth, every, 0);
                for _ in 0..5 {
                    let posted = fill(&mut flight, window);
                    let last = posted.iter().rfind(|(_, signalled)| *signalled).expect("none is signalled");
                    assert!(flight.completed(last.0, Outcome::Good).is_ok(), "{depth} {window} {every}");
                    assert!(flight.room() > 0);
                }
            }
        }
    }

    #[test]
    fn signalled_are_the_last_of_each_doorbell_and_every_so_many() {
        let mut flight = Flight::new(64, 4, 0);
        let signalled: Vec<u64> = (0..10).map(|_| flight.add(WORK)).filter(|(_, s)| *s).map(|(n, _)| n).collect();
        assert_eq!(signalled, [4, 8]);
        flight.signal_last();
        assert_eq!(flight.signalled(), 3);
        assert_eq!([0; 4].map(|_| flight.add(WORK).1), [false, false, false, true]);
        assert!(flight.completed(10, Outcome::Good).is_ok() && flight.completed(11, Outcome::Good).is_err());
    }

    #[test]
    fn what_cannot_be_true_changes_nothing() {
        let mut flight = Flight::new(8, 4, 0);
        let mut count = |number, outcome| flight.completed(number, outcome).map(Iterator::count);
        assert_eq!(count(1, Outcome::Good), Err(Stale), "nothing was posted");
        (0..6).for_each(|_| _ = flight.add(WORK));
        flight.signal_last();
        let mut count = |number, outcome| flight.completed(number, outcome).map(Iterator::count);
        assert_eq!(count(3, Outcome::Good), Err(Stale), "it is not signalled");
        assert_eq!(count(7, Outcome::Good), Err(Stale), "it was never posted");
        assert_eq!(count(u64::MAX, Outcome::Failed), Err(Stale));
        assert_eq!(count(4, Outcome::Good), Ok(4), "and those before it");
        assert_eq!(count(4, Outcome::Good), Err(Stale), "twice");
        assert_eq!(count(2, Outcome::Failed), Err(Stale), "late");
        assert_eq!(count(5, Outcome::Failed), Ok(1), "one that fails is told though it is not signalled");
        assert_eq!(count(6, Outcome::Failed), Ok(1));
        assert!(flight.is_empty() && flight.room() == 8);
    }

    #[test]
    fn the_unposted_tail_of_a_doorbell_is_taken_back_to_the_request() {
        for taken in 0..=5 {
            let mut flight = Flight::new(8, 8, 0);
            (0..5).for_each(|_| _ = flight.add(Work { ends: true, ..WORK }));
            flight.signal_last();
            assert_eq!(flight.take_back(5 - taken).count() as u64, 5 - taken);
            assert_eq!(flight.room(), 8 - taken as usize);
            let over = flight.completed(taken, Outcome::Failed).map(Iterator::count);
            assert_eq!(over, if taken == 0 { Err(Stale) } else { Ok(taken as usize) });
            assert!(flight.is_empty());
        }
    }
}
