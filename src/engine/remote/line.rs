//! A connection's link, in the words of the protocol: messages, and operations with a message behind them.

use super::RemoteConfig;
use crate::link::tcp::{Limits, Link};
use crate::link::verbs;
use crate::link::{BadOperation, Bell, DESCRIPTORS, Event, GrantId, Grants, LocalPiece, Operation, PostError};
use crate::link::{Mover, RemotePiece, Transport};
use crate::pack::ListTask;
use crate::peer::Message;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::io;

/// A link whose posts are never refused for want of room: its limits are such that every lane has room for all that the
/// machines of both halves may have under way. Should one be refused nevertheless, the line is shut down.
pub struct Line {
    link: Box<dyn Transport>,
    grants: Grants,
    /// The message that is being sent.
    message: Vec<u8>,
    /// Room of a lane that is kept for the machines.
    reserved: usize,
    /// Lanes, a bit each, whose doorbell is to be rung.
    queued: u32,
}

/// The bit of an operation's number, and of a task's, that says that it is the owner half's.
pub const OWNER_WORK: u64 = 1 << 63;
/// The same, of a task's number.
pub const OWNER_TASK: u64 = 1 << 63;

impl Line {
    /// # Errors
    /// As [`Link::new`].
    pub fn new(sockets: Vec<OwnedFd>, config: &RemoteConfig, bell: &Bell) -> io::Result<Line> {
        Ok(Line::over(Box::new(Link::new(sockets, &limits(config), bell)?), config))
    }

    /// Over a link that was made within [`verbs_limits`].
    pub fn over(link: Box<dyn Transport>, config: &RemoteConfig) -> Line {
        let (grants, reserved) = (link.grants().clone(), (limits(config).operations - SPARE) as usize);
        Line { link, grants, message: Vec::with_capacity(crate::link::MESSAGE_BYTES_MAX), reserved, queued: 0 }
    }

    pub fn lanes(&self) -> usize {
        self.link.lanes()
    }

    /// Sends a message, behind what was posted to the lane before.
    pub fn send(&mut self, lane: usize, message: &Message<'_>) {
        self.message.clear();
        message.write(&mut self.message);
        self.queued |= 1 << lane;
        let posted = self.link.queue(lane, &[Operation::Send { bytes: &self.message, names: named(message) }]);
        // A message is never bad, but for a defect.
        let _ = self.came_of(posted);
    }

    /// Sends a message that counts when the last lane's has come: it overtakes nothing.
    pub fn send_on_all(&mut self, message: &Message<'_>) {
        for lane in 0..self.lanes() {
            self.send(lane, message);
        }
    }

    /// Posts a write and, by the same doorbell, a message behind it. [`Event::Completed`] with `work` follows if the link
    /// stays up.
    ///
    /// # Errors
    /// What is wrong with the operation, as that a region of this side was withdrawn. Nothing was posted.
    pub fn write(
        &mut self,
        lane: usize,
        work: u64,
        from: &[LocalPiece],
        to: &[RemotePiece],
        acknowledged: bool,
        then: Option<&Message<'_>>,
    ) -> Result<(), BadOperation> {
        let write = Operation::Write { id: work, from, to, acknowledged };
        self.queued |= 1 << lane;
        let Some(then) = then else {
            let posted = self.link.queue(lane, &[write]);
            return self.came_of(posted);
        };
        self.message.clear();
        then.write(&mut self.message);
        let posted = self.link.queue(lane, &[write, Operation::Send { bytes: &self.message, names: None }]);
        self.came_of(posted)
    }

    /// Posts a read. [`Event::Completed`] with `work` follows if the link stays up.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read(
        &mut self,
        lane: usize,
        work: u64,
        from: &[RemotePiece],
        to: &[LocalPiece],
    ) -> Result<(), BadOperation> {
        self.queued |= 1 << lane;
        let posted = self.link.queue(lane, &[Operation::Read { id: work, from, to }]);
        self.came_of(posted)
    }

    /// The doorbells: all that was sent and posted since the last time leaves, what goes by one lane together.
    pub fn ring(&mut self) {
        let queued = std::mem::take(&mut self.queued);
        (0..self.lanes()).filter(|lane| queued & 1 << lane != 0).for_each(|lane| self.link.ring(lane));
    }

    /// Has a task run by a lane, behind what it does now; [`Event::Ran`] gives it back.
    ///
    /// # Errors
    /// The task: the link is down.
    pub fn run(&mut self, lane: usize, task: Box<ListTask>) -> Result<(), Box<ListTask>> {
        // If there is no room the limits are wrong, and who asked hears that it did not run.
        self.link.run(lane, task).inspect_err(|_| self.link.shut_down())
    }

    fn came_of(&mut self, posted: Result<(), PostError>) -> Result<(), BadOperation> {
        match posted {
            // What is posted on a link that is down ends with it.
            Ok(()) | Err(PostError::Down) => Ok(()),
            Err(PostError::Bad { why, .. }) => Err(why),
            // The other side does not answer to the rules, or a limit is wrong here.
            Err(PostError::Full | PostError::NoLane) => {
                self.link.shut_down();
                Ok(())
            }
        }
    }

    /// True if lane 0 has room beyond what the machines may need: for what clients and peers cause at will, as opening and
    /// closing regions, and for answers to them, which wait until there is some.
    pub fn has_spare_room(&self, lane: usize) -> bool {
        self.link.room(lane) > self.reserved
    }

    /// What the other side may touch.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// See [`Transport::poll`].
    pub fn poll(&mut self, event: &mut dyn FnMut(Event<'_>)) -> bool {
        self.link.poll(event)
    }

    /// See [`Transport::reaches`].
    pub fn reaches(&self, grant: GrantId) -> bool {
        self.link.reaches(grant)
    }

    pub fn has_news(&mut self) -> bool {
        self.link.has_news()
    }

    /// See [`Transport::descriptors`].
    pub fn descriptors(&self) -> [Option<BorrowedFd<'_>>; DESCRIPTORS] {
        self.link.descriptors()
    }

    pub fn wants_to_send(&self) -> bool {
        self.link.wants_to_send()
    }

    /// Ends it; poll until it is quiet.
    pub fn shut_down(&mut self) {
        self.link.shut_down();
    }

    pub fn is_quiet(&self) -> bool {
        self.link.is_quiet()
    }

    /// See [`Transport::mover`].
    pub fn mover(&self) -> Mover {
        self.link.mover()
    }

    /// See [`Transport::is_stuck`].
    pub fn is_stuck(&self) -> bool {
        self.link.is_stuck()
    }

    /// See [`Transport::lane_heard_ns`].
    pub fn lane_heard_ns(&self, lane: usize) -> u64 {
        self.link.lane_heard_ns(lane)
    }

    /// See [`Transport::lane_sent_ns`].
    pub fn lane_sent_ns(&self, lane: usize) -> u64 {
        self.link.lane_sent_ns(lane)
    }

    /// See [`Transport::is_sending`].
    pub fn is_sending(&self, lane: usize) -> bool {
        self.link.is_sending(lane)
    }

    /// The link's clock, that of [`Transport::lane_heard_ns`].
    pub fn now_ns(&self) -> u64 {
        self.link.now_ns()
    }
}

/// The grant that a message gives: the other side hears of it by no other.
fn named(message: &Message<'_>) -> Option<GrantId> {
    match message {
        Message::Pack { landing: grant, .. } | Message::Slots { grant, .. } => Some(GrantId(*grant)),
        Message::Opened { status, grant, .. } if status.is_ok() => Some(GrantId(*grant)),
        _ => None,
    }
}

/// Chunks of a connection that are planned and not finished: what its slots hold, and some that are planned ahead. Long
/// pieces may come behind many small ones, and are to travel while those are packed.
pub fn chunks(config: &RemoteConfig) -> u32 {
    config.slots.saturating_mul(4).saturating_add(CHUNKS_AHEAD).min(CHUNKS_MAX)
}

/// Room for all that may be under way on one lane, on which everything of a connection may happen to be.
pub fn limits(config: &RemoteConfig) -> Limits {
    // The requester half: one operation of each window or bulk write at a time, of which there are no more than chunks
    // and full windows; a message behind each bulk write into a landing slot; commands; cancels.
    // NOTIFYs and the answers to those of the other side come on top.
    let windows = QUEUE_DEPTH / WINDOW;
    let requester = chunks(config) + windows + config.slots + COMMANDS + BATCHES;
    // The owner half: bulk writes with a message behind each; the answers to commands, which count until their requester
    // has seen the answer; answers to cancels.
    let owner = OWNER_QUEUE_DEPTH + COMMANDS + BATCHES;
    Limits {
        operations: requester + owner + HEARTBEAT + 2 * NOTICES + SPARE,
        unanswered: UNANSWERED,
        messages: MESSAGES,
        // A landing for each command, and as many that were revoked while a lane was at them; all slots; regions.
        grants: 2 * COMMANDS + 1 + REGIONS_MAX,
        // A task for each slot, of either side's batches, and for each slot of the owner half.
        tasks: config.slots.saturating_mul(2).saturating_add(config.owner_slots).clamp(1, TASKS_MAX),
        spin: config.spin,
    }
}

/// The same for queue pairs.
pub fn verbs_limits(config: &RemoteConfig) -> verbs::Limits {
    let Limits { operations, tasks, grants, spin, .. } = limits(config);
    verbs::Limits { operations, tasks, grants, spin, ..verbs::Limits::default() }
}

/// Batches of this side under way at once on one connection.
pub const BATCHES: u32 = 16;
/// Gathered chunks that either side may have at the other.
pub const COMMANDS: u32 = 64;
/// Pieces of direct operations outstanding, and bulk writes.
pub const QUEUE_DEPTH: u32 = 4096;
/// Pieces of one operation, at most.
pub const WINDOW: u32 = crate::link::PIECES_MAX as u32;
/// NOTIFYs that either side has sent and the other has not answered.
pub const NOTICES: u32 = 32;
/// Bulk writes of the owner half outstanding, and the messages behind them.
pub const OWNER_QUEUE_DEPTH: u32 = 2 * COMMANDS;
/// Regions of this side that a peer has open at once, its revoked ones that are still in use included.
pub const REGIONS_MAX: u32 = 4096;

/// More slots than that of a connection are of no use.
const TASKS_MAX: u32 = 1 << 14;
const CHUNKS_AHEAD: u32 = 64;
const CHUNKS_MAX: u32 = 4096;
/// A PING and a PONG.
const HEARTBEAT: u32 = 2;
/// Messages about regions that may wait for the socket.
const SPARE: u32 = 64;
/// Both sides have to have the same.
const UNANSWERED: u32 = 16;
/// Of a lane, that came and wait for the poller.
const MESSAGES: u32 = 8;
