//! Whether the other side is still there, lane by lane.
//!
//! A reset is seen at once. Of a host that is gone, or a network that swallows, nothing is seen at all: so where something is
//! to come and nothing comes, the other side is asked for a sign of life, and a lane that stays silent is dead. Lanes
//! on which nothing is to come are left alone. Anything that comes is a sign, and so is that the kernel goes on taking bytes
//! that wait to be sent.

use super::line::Line;
use super::seat::Violation;
use crate::peer::{LANES_MAX, Message};

/// The lanes of one connection. All times are by the poller's clock.
#[derive(Debug)]
pub struct Heartbeat {
    lanes: Box<[Lane]>,
    dead_after_ns: u64,
    /// When it was last looked, by any lane.
    looked_ns: u64,
    /// When it is to be looked again at the latest.
    next_ns: u64,
    /// PINGs so far.
    pings: u64,
    /// The lane by which is still to be asked, to measure how long the answer takes.
    measures: Option<usize>,
    round_trip_ns: Option<u64>,
    /// A lane owes an answer.
    owes: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    /// Since when something is to come, without a pause. `None`: nothing is.
    waits_since_ns: Option<u64>,
    /// The PING that was not answered, and when it was sent.
    asked: Option<(u64, u64)>,
    /// The PING of the other side that is to be answered.
    owed: Option<u64>,
    /// When it is to be looked at again.
    next_ns: u64,
}

/// What is known of a lane.
#[derive(Clone, Copy, Debug, Default)]
struct Signs {
    /// Something is to come by it, or waits to be sent.
    is_awaited: bool,
    /// When bytes last came by it.
    heard_ns: u64,
    /// When the kernel last took bytes.
    sent_ns: u64,
    /// Bytes that were posted wait for the kernel.
    is_sending: bool,
}

/// What is to be done about a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beat {
    /// Nothing.
    Fine,
    /// Send a PING of this number.
    Ping(u64),
    /// The other side is gone.
    Dead,
}

/// A lane is asked when it was silent for this part of the time after which it is dead.
const ASKED_AFTER: u64 = 4;

/// It is not looked more often than so often in the time after which a lane is dead.
const LOOKS: u64 = 16;

impl Heartbeat {
    /// Lanes that are dead when nothing came for so long though it should have.
    pub fn new(lanes: usize, dead_after_ns: u64) -> Heartbeat {
        let lane = Lane { next_ns: u64::MAX, ..Lane::default() };
        Heartbeat {
            lanes: vec![lane; lanes].into(),
            dead_after_ns: dead_after_ns.max(1),
            looked_ns: 0,
            next_ns: 0,
            pings: 0,
            // A lane with a thread, if there is one: what takes long goes by those.
            measures: Some(lanes.saturating_sub(1).min(1)),
            round_trip_ns: None,
            owes: false,
        }
    }

    /// PING or PONG.
    ///
    /// # Errors
    /// What no engine sends.
    pub fn received(&mut self, lane: usize, message: Message<'_>, now_ns: u64) -> Result<(), Violation> {
        match message {
            Message::Ping { number } => {
                let known = self.lanes.get_mut(lane).ok_or(Violation("a PING by no lane"))?;
                if known.owed.is_some() {
                    return Err(Violation("a PING before the last one was answered"));
                }
                (known.owed, self.owes) = (Some(number), true);
                Ok(())
            }
            Message::Pong { number } => {
                let took_ns = self.pong(lane, number, now_ns)?;
                self.round_trip_ns.get_or_insert(took_ns);
                Ok(())
            }
            _ => Err(Violation("neither PING nor PONG")),
        }
    }

    /// Sends what is due. False: the other side is gone. `awaits`: something is to come by that lane.
    pub fn act(&mut self, line: &mut Line, now_ns: u64, awaits: impl Fn(usize) -> bool) -> bool {
        if std::mem::take(&mut self.owes) {
            for (lane, known) in self.lanes.iter_mut().enumerate() {
                known.owed.take().into_iter().for_each(|number| line.send(lane, &Message::Pong { number }));
            }
        }
        if let Some(lane) = self.measures.take()
            && let Some(number) = self.ask(lane, now_ns)
        {
            line.send(lane, &Message::Ping { number });
        }
        let next_ns = self.looked_ns.saturating_add((self.dead_after_ns / LOOKS).max(1));
        if now_ns < next_ns {
            // What is awaited may be new. Where nothing is, nobody is to be woken.
            if (0..self.lanes.len()).any(|lane| awaits(lane) || line.is_sending(lane)) {
                self.next_ns = self.next_ns.min(next_ns);
            }
            return true;
        }
        // The link has a clock of its own.
        let (link_ns, mut pings) = (line.now_ns(), [None; LANES_MAX as usize]);
        let by_poller = |at_ns: u64| now_ns.saturating_sub(link_ns.saturating_sub(at_ns));
        let signs = |lane| Signs {
            is_awaited: awaits(lane),
            heard_ns: by_poller(line.lane_heard_ns(lane)),
            sent_ns: by_poller(line.lane_sent_ns(lane)),
            is_sending: line.is_sending(lane),
        };
        let is_alive = self
            .look(now_ns, signs, |lane, number| pings.get_mut(lane).into_iter().for_each(|ping| *ping = Some(number)));
        for (lane, number) in pings.into_iter().enumerate() {
            number.into_iter().for_each(|number| line.send(lane, &Message::Ping { number }));
        }
        is_alive
    }

    /// Of the first PING that was answered, sent when the connection was made.
    pub fn round_trip_ns(&self) -> Option<u64> {
        self.round_trip_ns
    }

    /// When to act again at the latest, `u64::MAX` for never.
    pub fn next_timer_ns(&self) -> u64 {
        self.next_ns
    }

    /// Looks at all lanes. False: the other side is gone.
    fn look(&mut self, now_ns: u64, signs: impl Fn(usize) -> Signs, mut ping: impl FnMut(usize, u64)) -> bool {
        // Who did not look for so long, because it was stopped or starved, has not listened either.
        if now_ns.saturating_sub(self.looked_ns) > self.dead_after_ns / 2 {
            self.begin_anew(now_ns);
        }
        self.looked_ns = now_ns;
        for lane in 0..self.lanes.len() {
            match self.beat(lane, signs(lane), now_ns) {
                Beat::Fine => {}
                Beat::Ping(number) => ping(lane, number),
                Beat::Dead => return false,
            }
        }
        self.next_ns = self.lanes.iter().map(|lane| lane.next_ns).min().unwrap_or(u64::MAX);
        true
    }

    /// The number of a PING that is to be sent. `None`: one is on its way.
    fn ask(&mut self, lane: usize, now_ns: u64) -> Option<u64> {
        let known = self.lanes.get_mut(lane).filter(|known| known.asked.is_none())?;
        self.pings += 1;
        known.asked = Some((self.pings, now_ns));
        Some(self.pings)
    }

    /// A PONG: gives the nanoseconds since its PING.
    fn pong(&mut self, lane: usize, number: u64, now_ns: u64) -> Result<u64, Violation> {
        let known = self.lanes.get_mut(lane).ok_or(Violation("a PONG by no lane"))?;
        match known.asked {
            Some((asked, sent_ns)) if asked == number => {
                known.asked = None;
                Ok(now_ns.saturating_sub(sent_ns))
            }
            _ => Err(Violation("a PONG that no PING waits for")),
        }
    }

    fn beat(&mut self, lane: usize, signs: Signs, now_ns: u64) -> Beat {
        let Some(known) = self.lanes.get_mut(lane) else { return Beat::Fine };
        // An unanswered PING is something that is to come.
        if !signs.is_awaited && !signs.is_sending && known.asked.is_none() {
            (known.waits_since_ns, known.next_ns) = (None, u64::MAX);
            return Beat::Fine;
        }
        let since_ns = *known.waits_since_ns.get_or_insert(now_ns);
        let sent_ns = if signs.is_sending { signs.sent_ns } else { 0 };
        let silent_ns = now_ns.saturating_sub(since_ns.max(signs.heard_ns).max(sent_ns));
        let asked_after_ns = (self.dead_after_ns / ASKED_AFTER).max(1);
        known.next_ns = now_ns.saturating_add(asked_after_ns.saturating_sub(silent_ns).max(asked_after_ns / 2).max(1));
        if silent_ns >= self.dead_after_ns {
            return Beat::Dead;
        }
        if silent_ns < asked_after_ns || known.asked.is_some() {
            return Beat::Fine;
        }
        self.ask(lane, now_ns).map_or(Beat::Fine, Beat::Ping)
    }

    fn begin_anew(&mut self, now_ns: u64) {
        for lane in self.lanes.iter_mut().filter(|lane| lane.waits_since_ns.is_some()) {
            lane.waits_since_ns = Some(now_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD_NS: u64 = 1000;
    const IDLE: Signs = Signs { is_awaited: false, heard_ns: 0, sent_ns: 0, is_sending: false };
    const AWAITED: Signs = Signs { is_awaited: true, ..IDLE };

    /// Looks whenever it is to, until `until_ns`; gives the PINGs as (time, lane, number), and when it was dead.
    fn run(
        beat: &mut Heartbeat,
        from_ns: u64,
        until_ns: u64,
        signs: impl Fn(usize, u64) -> Signs,
    ) -> (Vec<(u64, usize, u64)>, Option<u64>) {
        let (mut now_ns, mut pings) = (from_ns, Vec::new());
        while now_ns < until_ns {
            if !beat.look(now_ns, |lane| signs(lane, now_ns), |lane, number| pings.push((now_ns, lane, number))) {
                return (pings, Some(now_ns));
            }
            now_ns = beat.next_ns.max(now_ns + 1);
        }
        (pings, None)
    }

    #[test]
    fn a_lane_on_which_nothing_is_awaited_is_left_alone() {
        let mut beat = Heartbeat::new(3, DEAD_NS);
        assert_eq!(run(&mut beat, 0, 1 << 40, |_, _| IDLE), (vec![], None));
        assert_eq!(beat.next_ns, u64::MAX);
    }

    #[test]
    fn a_silent_lane_is_asked_once_and_then_dead() {
        let mut beat = Heartbeat::new(2, DEAD_NS);
        let (pings, dead_ns) = run(&mut beat, 5000, 10_000, |lane, _| if lane == 1 { AWAITED } else { IDLE });
        assert!(matches!(pings[..], [(5250..=5400, 1, 1)]), "{pings:?}");
        assert!(dead_ns.is_some_and(|at| (6000..=6200).contains(&at)), "{dead_ns:?}");
    }

    #[test]
    fn whatever_comes_is_a_sign_of_life() {
        let mut beat = Heartbeat::new(1, DEAD_NS);
        let heard = |_, now_ns: u64| Signs { heard_ns: now_ns - now_ns % 900, ..AWAITED };
        let (pings, dead_ns) = run(&mut beat, 0, 20_000, heard);
        assert_eq!((pings.len(), dead_ns), (1, None), "asked once, and not again while that is not answered");
        assert!(beat.pong(0, 1, 20_000).is_ok());
        let (pings, _) = run(&mut beat, 20_000, 20_700, heard);
        assert_eq!(pings.len(), 1, "and then anew");
    }

    #[test]
    fn bytes_that_the_kernel_takes_are_one_only_while_more_wait() {
        let mut beat = Heartbeat::new(1, DEAD_NS);
        let sending = |_, now_ns: u64| Signs { sent_ns: now_ns, is_sending: true, ..IDLE };
        assert_eq!(run(&mut beat, 0, 20_000, sending), (vec![], None));
        let stuck = |_, _| Signs { sent_ns: 20_000, is_sending: true, ..IDLE };
        assert!(run(&mut beat, 20_000, 30_000, stuck).1.is_some_and(|at| (21_000..=21_200).contains(&at)));
        let mut beat = Heartbeat::new(1, DEAD_NS);
        let sent = |_, now_ns: u64| Signs { sent_ns: now_ns, ..AWAITED };
        assert!(run(&mut beat, 0, 20_000, sent).1.is_some(), "all is sent, and no answer comes");
    }

    #[test]
    fn time_in_which_nobody_looked_does_not_count() {
        let mut beat = Heartbeat::new(1, DEAD_NS);
        assert!(beat.look(0, |_| AWAITED, |_, _| {}));
        assert!(beat.look(100_000, |_| AWAITED, |_, _| {}), "this side was stopped");
        let (pings, dead_ns) = run(&mut beat, 100_001, 110_000, |_, _| AWAITED);
        assert_eq!(pings.len(), 1);
        assert!(dead_ns.is_some_and(|at| (101_000..=101_200).contains(&at)));
    }

    #[test]
    fn a_pause_in_which_nothing_is_awaited_begins_it_anew() {
        let mut beat = Heartbeat::new(1, DEAD_NS);
        for at in 0..100 {
            let signs = if at % 2 == 0 { AWAITED } else { IDLE };
            assert!(beat.look(at * 200, |_| signs, |_, _| panic!("asked")));
        }
    }

    #[test]
    fn a_pong_is_for_its_ping() {
        let mut beat = Heartbeat::new(2, DEAD_NS);
        assert!(beat.pong(0, 1, 0).is_err() && beat.pong(7, 1, 0).is_err());
        assert_eq!(beat.ask(1, 100), Some(1));
        assert_eq!(beat.ask(1, 100), None, "one at a time");
        assert!(beat.pong(1, 2, 0).is_err() && beat.pong(0, 1, 0).is_err());
        assert_eq!(beat.pong(1, 1, 175), Ok(75));
        assert!(beat.pong(1, 1, 175).is_err(), "twice");
        // One that is not answered is awaited.
        assert_eq!(beat.ask(1, 200), Some(2));
        assert!(run(&mut beat, 200, 5000, |_, _| IDLE).1.is_some());
    }
}
