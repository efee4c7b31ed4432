//! One connection: its line, its two halves, and its life.
//!
//! A turn has two parts. First events are taken, by the halves and without the line, which is giving them; what they want to
//! say is noted. Then the halves act: they post and send.
//!
//! ```text
//! up ──line down, violation, silence──▶ going down ──line quiet──▶ quiet ──both halves wound up──▶ gone
//!                                           └──line never quiet──▶ stuck
//! ```

use super::asked::Asked;
use super::asking::{Asking, Hands, Zeros};
use super::heartbeat::Heartbeat;
use super::judging::Judging;
use super::line::{Line, OWNER_TASK, OWNER_WORK};
use super::opened::Opened;
use super::parcel::Parcels;
use super::serving::Serving;
use super::slots::SlotMemory;
use super::telling::Telling;
use super::{News, RemoteConfig, SeatId};
use crate::engine::mail::Event::PeerStuck as Stuck;
use crate::engine::mail::Outbox;
use crate::link::{Bell, Event, Reason, Transport, Use};
use crate::peer::{Connected, Hold, MAP_MEMORY, Message};
use crate::pipeline::LinkId;
use crate::region::Rights;
use std::collections::VecDeque;

/// A connection to another engine.
pub struct Seat {
    pub id: SeatId,
    pub state: State,
    pub line: Line,
    /// The requester half.
    pub asking: Asking,
    /// What the one owner half, of all seats, calls this one.
    pub owner: LinkId,
    /// Regions of this side that the peer has opened.
    pub opened: Opened,
    /// Regions of the peer that this side's clients have opened.
    pub asked: Asked,
    pub judging: Judging,
    /// NOTIFYs, both ways.
    pub telling: Telling,
    /// Where the peer's WRITEs land.
    pub landings: SlotMemory,
    /// Epoll watches lane 0's socket for room as well.
    pub watches_room: bool,
    /// The peer did what no engine does.
    pub is_violated: bool,
    heartbeat: Heartbeat,
    /// Dropped with the rest: the peer is not dialled again before.
    hold: Option<Hold>,
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Up,
    /// The line is shut down; lanes may be at memory still.
    GoingDown,
    /// Nothing moves any more; what the two machines have is being wound up.
    Quiet,
    /// The line will never be quiet. What it has is kept for ever, and whoever waits for it waits.
    Stuck,
}

/// The peer does what no engine does: its connection is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(pub &'static str);

/// What all seats have in common, for taking events.
pub struct Around<'a> {
    pub serving: &'a mut Serving,
    pub outbox: &'a Outbox,
    pub now_ns: u64,
}

impl Seat {
    /// `link`: its bytes do not travel by its sockets. `None`: there is no memory, no room or no thread for it.
    pub fn new(
        connected: Connected,
        link: Option<Box<dyn Transport>>,
        config: &RemoteConfig,
        bell: &Bell,
        zeros: &Zeros,
        serving: &mut Serving,
    ) -> Option<Seat> {
        let Connected { epoch, features, sockets, hold, .. } = connected;
        let id = SeatId(epoch);
        let mut line = match link {
            Some(link) => Line::over(link, config),
            None => Line::new(sockets, config, bell).ok()?,
        };
        let lanes = line.lanes();
        let grants = line.grants().clone();
        let mut landings = SlotMemory::new(config.slots, config.slot_bytes).ok()?;
        landings.register(grants.domain(), true).ok()?;
        let region = landings.region().clone();
        let bytes = region.bytes();
        let grant = grants.grant(region, 0, bytes, Rights::WRITE, Use::Many).ok()?;
        let asking = Asking::new(config, lanes, &grants, zeros).ok()?;
        // Last, because it is to be closed.
        let owner = serving.open(lanes, grants.domain())?;
        let (slots, slot_bytes) = (config.slots, config.slot_bytes);
        line.send(0, &Message::Slots { grant: grant.0, slots, slot_bytes });
        line.ring();
        let judging = Judging::new(config, lanes, line.mover());
        Some(Seat {
            id,
            state: State::Up,
            line,
            asking,
            owner,
            asked: Asked::new(id, features & MAP_MEMORY != 0, grants.are_of_device()),
            opened: Opened::new(id, grants, judging.gathered_from_bytes()),
            judging,
            telling: Telling::new(),
            landings,
            watches_room: false,
            is_violated: false,
            heartbeat: Heartbeat::new(lanes, config.dead_after_ns),
            hold: Some(hold),
        })
    }

    /// Takes what has happened. True if something has.
    pub fn take_events(&mut self, around: &mut Around<'_>) -> bool {
        let mut ends = End::None;
        let Seat { line, asking, owner, opened, asked, heartbeat, telling, .. } = self;
        let now_ns = around.now_ns;
        let mut ear = Ear { asking, owner: *owner, opened, asked, heartbeat, telling };
        let moved = line.poll(&mut |event| match event {
            // What comes behind a violation is not believed; tasks and completions are this side's own.
            Event::Received { lane, bytes } if ends == End::None => {
                let heard = Message::read(bytes).map_err(|bad| Violation(bad.0));
                if heard.and_then(|message| ear.hear(lane, message, around)).is_err() {
                    ends = End::Violation;
                }
            }
            Event::Received { .. } => {}
            Event::Completed { id, result } if id & OWNER_WORK != 0 => {
                around.serving.completed(ear.owner, id & !OWNER_WORK, result);
            }
            Event::Completed { id, result } => ear.asking.completed(id, result, now_ns),
            Event::Ran(task) if task.id & OWNER_TASK != 0 => around.serving.ran(ear.owner, task, now_ns),
            Event::Ran(task) => ear.asking.ran(task, now_ns),
            Event::Revoked { grant, spoiled } => {
                ear.asking.revoked(grant, spoiled, now_ns);
                ear.opened.revoked(grant);
            }
            Event::Down(Reason::Violation(_)) => ends = End::Violation,
            Event::Down(_) if ends == End::None => ends = End::Down,
            Event::Down(_) => {}
        });
        if ends != End::None && self.state == State::Up {
            self.is_violated = ends == End::Violation;
            self.go_down(around);
        }
        if self.state == State::GoingDown && self.line.is_quiet() {
            self.state = State::Quiet;
            self.asking.quiesced();
            self.opened.quiesced();
            around.serving.quiesced(self.owner);
        }
        if self.state == State::GoingDown && self.line.is_stuck() {
            self.state = State::Stuck;
            self.hold = None;
            around.outbox.send(Stuck(self.id));
        }
        moved
    }

    /// Nothing new starts, and everything that its regions were used for ends.
    fn go_down(&mut self, around: &mut Around<'_>) {
        self.state = State::GoingDown;
        self.line.shut_down();
        self.asking.down();
        around.serving.down(self.owner);
        self.asked.end(around.outbox);
        self.telling.end();
    }

    /// Does what is to be done. True if anything was.
    pub fn act(&mut self, parcels: &mut Parcels, news: &mut VecDeque<News>, now_ns: u64) -> bool {
        let Seat { line, asking, opened, asked, heartbeat, judging, telling, .. } = self;
        asked.act(line, asking.oldest_post());
        if !opened.act(line, now_ns) {
            line.shut_down();
        }
        telling.act(news);
        let did = asking.act(&mut Hands { line, asked, parcels, news, now_ns });
        asking.take_sample().into_iter().for_each(|(moved, ns)| judging.carried(moved, ns));
        heartbeat.round_trip_ns().into_iter().for_each(|ns| judging.answered(ns));
        if self.state == State::Up {
            let awaits_first = asked.is_waiting() || telling.is_waiting() || opened.is_waiting();
            let awaits = |lane| asking.awaits(lane) || lane == 0 && awaits_first;
            if !heartbeat.act(line, now_ns, awaits) {
                line.shut_down();
            }
        }
        did
    }

    /// True when nothing of it is left anywhere.
    pub fn is_gone(&self, serving: &Serving) -> bool {
        self.state == State::Quiet && self.asking.is_over() && serving.is_closed(self.owner)
    }

    /// On the poller's clock, `u64::MAX` for never.
    pub fn next_timer_ns(&self) -> u64 {
        let beat_ns = if self.state == State::Up { self.heartbeat.next_timer_ns() } else { u64::MAX };
        self.asking.next_timer_ns().min(beat_ns)
    }
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    None,
    Down,
    Violation,
}

/// All of a seat but the line, which is speaking.
struct Ear<'a> {
    asking: &'a mut Asking,
    owner: LinkId,
    opened: &'a mut Opened,
    asked: &'a mut Asked,
    heartbeat: &'a mut Heartbeat,
    telling: &'a mut Telling,
}

impl Ear<'_> {
    fn hear(&mut self, lane: usize, message: Message<'_>, around: &mut Around<'_>) -> Result<(), Violation> {
        // A side says SLOTS before anything else on lane 0, and other lanes may be faster.
        let is_first = lane == 0 && !self.asking.knows_slots();
        match message {
            Message::Slots { .. } => self.asking.received(lane, message, around.now_ns),
            _ if is_first => Err(Violation("something before SLOTS")),
            Message::Pack { .. } | Message::Unpack { .. } | Message::Cancel { .. } => {
                around.serving.received(self.owner, self.opened, lane, message, around.now_ns)
            }
            Message::Done { .. } | Message::Refused { .. } | Message::Failed { .. } | Message::Drained { .. } => {
                self.asking.received(lane, message, around.now_ns)
            }
            Message::Open { .. } | Message::Close { .. } | Message::Left { .. } => {
                self.opened.received(lane, message, around.outbox)
            }
            Message::Opened { .. } | Message::Withdrawn { .. } | Message::Here { .. } => {
                self.asked.received(lane, message, self.asking.posts(), around.outbox)
            }
            Message::Notify { .. } | Message::Notified { .. } => self.telling.received(lane, message, self.opened),
            Message::Ping { .. } | Message::Pong { .. } => self.heartbeat.received(lane, message, around.now_ns),
        }
    }
}
