//! Receive buffers, counted on both sides: whoever sends knows that there is one.
//!
//! A send that finds no receive posted ends the connection on some devices and makes others try again and again. So a side
//! sends only what the other has said it has room for, and says how much room it has again with everything it sends. The
//! last credit is for frames that give credits back and nothing else: two sides that wait for each other can always do
//! that.

use super::super::Violation;

/// One lane's, in both directions.
#[derive(Debug)]
pub(super) struct Credits {
    /// Receives that the other side has posted, and this one has not used.
    room: u32,
    /// All that it has.
    room_max: u32,
    /// Receives that were posted again and not told.
    owed: u32,
    /// All that this side has.
    owed_max: u32,
    /// The last number that this side has asked to be acknowledged, and the last that was.
    asked: u32,
    acknowledged: u32,
    /// Something was posted that is to be asked for.
    asks: bool,
    /// The last number that the other side asked for, and whether it has been told.
    heard: u32,
    is_told: bool,
}

/// What a frame says besides its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub credits: u8,
    pub asked: u32,
    pub acknowledged: u32,
}

/// Fewer than these do not work: one for messages, one for credits, and what is under way.
pub(super) const RECEIVES_MIN: u32 = 4;
/// A credit count is one byte.
pub(super) const RECEIVES_MAX: u32 = 255;

impl Credits {
    /// Of so many receives there and here.
    pub fn new(there: u32, here: u32) -> Credits {
        Credits {
            room: there,
            room_max: there,
            owed: 0,
            owed_max: here,
            asked: 0,
            acknowledged: 0,
            asks: false,
            heard: 0,
            is_told: true,
        }
    }

    /// True if a message can be sent.
    pub fn has_room(&self) -> bool {
        self.room > 1
    }

    /// True if a frame without a message is to be sent, and can be: the other side waits for credits or an
    /// acknowledgement, or is to be asked for one.
    pub fn is_bare_due(&self) -> bool {
        let gives = self.owed * 2 >= self.owed_max || !self.is_told;
        (self.room > 0 && gives) || (self.room > 1 && self.asks)
    }

    /// The other side is to acknowledge what was posted until now; gives the number by which it will.
    pub fn ask(&mut self) -> u32 {
        if !self.asks {
            self.asks = true;
            // 0 means nothing.
            self.asked = self.asked.wrapping_add(1).max(1);
        }
        self.asked
    }

    /// A frame is posted: what it says.
    pub fn sent(&mut self) -> Told {
        debug_assert!(self.room > 0, "more sends than receives");
        self.room = self.room.saturating_sub(1);
        self.is_told = true;
        let credits = std::mem::take(&mut self.owed) as u8;
        let asked = if std::mem::take(&mut self.asks) { self.asked } else { 0 };
        Told { credits, asked, acknowledged: self.heard }
    }

    /// A frame has come, and its buffer is posted again.
    ///
    /// # Errors
    /// Credits that this side has not used, or the acknowledgement of what it has not asked.
    pub fn received(&mut self, told: Told) -> Result<(), Violation> {
        let room = self.room + u32::from(told.credits);
        if room > self.room_max {
            return Err(Violation("credits for receives that there are not"));
        }
        let (new, sent) =
            (told.acknowledged.wrapping_sub(self.acknowledged), self.asked.wrapping_sub(self.acknowledged));
        if new > sent || (self.asks && new == sent && new != 0) {
            return Err(Violation("an acknowledgement of what was not asked"));
        }
        (self.room, self.acknowledged) = (room, told.acknowledged);
        self.owed += 1;
        if told.asked != 0 {
            (self.heard, self.is_told) = (told.asked, false);
        }
        Ok(())
    }

    /// True if the other side has everything that was posted before this number was [asked](Self::ask).
    pub fn is_acknowledged(&self, asked: u32) -> bool {
        self.acknowledged.wrapping_sub(asked) < u32::MAX / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Two sides that send as fast as they may, by a wire that takes any time.
    #[test]
    fn two_sides_never_send_more_than_there_are_receives_and_never_wait_for_each_other() {
        let mut state = 7u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for receives in [RECEIVES_MIN, 5, 16, RECEIVES_MAX] {
            let mut sides = [Credits::new(receives, receives), Credits::new(receives, receives)];
            let mut wires: [VecDeque<Told>; 2] = [VecDeque::new(), VecDeque::new()];
            let (mut messages, mut bare) = (0, 0);
            while messages < 20_000 {
                let me = random(2) as usize;
                let mut moved = false;
                if random(3) == 0 && sides[me].has_room() {
                    if random(5) == 0 {
                        sides[me].ask();
                    }
                    let told = sides[me].sent();
                    wires[me].push_back(told);
                    messages += 1;
                    moved = true;
                }
                if sides[me].is_bare_due() {
                    let told = sides[me].sent();
                    wires[me].push_back(told);
                    bare += 1;
                    moved = true;
                }
                assert!(wires[me].len() as u32 <= receives, "a send without a receive");
                if random(3) > 0
                    && let Some(told) = wires[1 - me].pop_front()
                {
                    sides[me].received(told).unwrap();
                    moved = true;
                }
                if !moved && wires.iter().all(VecDeque::is_empty) {
                    let can = sides.iter().any(|side| side.has_room() || side.is_bare_due());
                    assert!(can, "both wait: {sides:?}");
                }
            }
            assert!(bare < messages, "{bare} frames for {messages} messages");
        }
    }

    #[test]
    fn an_acknowledgement_counts_for_what_was_asked_before_and_is_not_invented() {
        let mut credits = Credits::new(8, 8);
        let first = credits.ask();
        assert_eq!(credits.ask(), first, "one frame asks for both");
        assert!(!credits.is_acknowledged(first) && credits.is_bare_due());
        assert_eq!(credits.sent().asked, first);
        let second = credits.ask();
        assert_ne!(second, first);
        let acknowledge = |acknowledged| Told { credits: 0, asked: 0, acknowledged };
        assert!(credits.received(acknowledge(second)).is_err(), "that number was not sent");
        credits.received(acknowledge(first)).unwrap();
        assert!(credits.is_acknowledged(first) && !credits.is_acknowledged(second));
        assert!(credits.received(acknowledge(second + 1)).is_err());
        assert!(credits.received(acknowledge(0)).is_err(), "an old one");
        assert!(credits.received(Told { credits: 2, ..acknowledge(first) }).is_err(), "only one was used");
    }

    #[test]
    fn the_last_credit_is_kept_for_giving_credits() {
        let mut credits = Credits::new(4, 4);
        (0..3).for_each(|_| _ = credits.sent());
        assert!(!credits.has_room() && !credits.is_bare_due());
        credits.ask();
        assert!(!credits.is_bare_due(), "a question is no reason to use it");
        (0..2).for_each(|_| credits.received(Told { credits: 0, asked: 0, acknowledged: 0 }).unwrap());
        assert!(credits.is_bare_due());
        assert_eq!(credits.sent().credits, 2);
        assert!(!credits.is_bare_due() && !credits.has_room());
    }
}
