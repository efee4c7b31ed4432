//! What there is of a link before its queue pairs are connected.

use super::buffers::{LANE_SHIFT, RECEIVE};
use super::credits::{RECEIVES_MAX, RECEIVES_MIN};
use super::job::CutLimits;
use super::lane::{Desk, Lane, LaneSettings};
use super::nic::Nic;
use super::packers::Packer;
use super::silence::Silence;
use super::there::There;
use super::{COMPLETIONS_PER_POLL, Disconnects, HOME_NS, LANES_MAX, Limits, Link, LinkCounters, frame};
use crate::link::{Bell, Grants};
use crate::pack::ListPacker;
use crate::region::RegionError;
use crate::verbs::{Access, Completion, CompletionChannel, CompletionQueue, QueuePair, QueuePairCaps, VerbsError};
use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Instant;

/// Lanes with queue pairs that are to be connected.
pub struct Endpoint {
    nic: Arc<Nic>,
    limits: Limits,
    /// `None`: it has become a link.
    queue: Option<CompletionQueue>,
    channel: Arc<CompletionChannel>,
    lanes: Vec<Lane>,
    count: usize,
    generation: u32,
}

/// Why there are no queue pairs.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A limit that cannot be.
    #[error("{0}")]
    BadLimits(&'static str),
    /// No memory for frames.
    #[error("no memory for messages: {0}")]
    Memory(#[source] RegionError),
    /// The device or the kernel refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// Memory of this engine's own is not registered: a defect.
    #[error("memory was registered and has no key")]
    NoKey,
}

impl Endpoint {
    /// Of so many lanes, which are [added](Self::add_lane) one by one.
    ///
    /// # Errors
    /// A limit is not within its range, or what the device says.
    pub fn new(nic: &Arc<Nic>, lanes: usize, limits: &Limits) -> Result<Endpoint, SetupError> {
        let limits = within(nic, lanes, limits);
        let Limits { operations, messages, tasks, grants, depth, window, .. } = limits;
        if operations.min(tasks).min(grants).min(window) == 0 || operations.max(tasks) > COUNT_MAX {
            return Err(SetupError::BadLimits("a link needs room for operations, tasks and grants"));
        }
        if !(RECEIVES_MIN..=RECEIVES_MAX).contains(&messages) || !(2..=COUNT_MAX).contains(&depth) {
            return Err(SetupError::BadLimits("a lane needs 4 to 255 receives, and 2 to 65536 requests"));
        }
        if !(1..=LANES_MAX).contains(&lanes) {
            return Err(SetupError::BadLimits("a link has 1 to 64 lanes"));
        }
        let channel = CompletionChannel::new(&nic.context)?;
        // One for everything that can complete: a queue that runs over takes all queue pairs with it.
        let entries = lanes as u32 * (depth + messages);
        let queue = CompletionQueue::new(&nic.context, entries, Some(&channel))?;
        let (lanes_room, queue) = (Vec::with_capacity(lanes), Some(queue));
        // Without it an old completion could be taken for a new one, if a device ever told one.
        let generation = getrandom::u32().unwrap_or(0);
        Ok(Endpoint { nic: nic.clone(), limits, queue, channel, lanes: lanes_room, count: lanes, generation })
    }

    /// What its queue pairs are to be made with.
    #[must_use]
    pub fn caps(&self) -> QueuePairCaps {
        QueuePairCaps {
            send_requests: self.limits.depth,
            receive_requests: self.limits.messages,
            send_pieces: self.nic.limits.pieces.min(PIECES_MAX),
            receive_pieces: 1,
            inline_bytes: self.nic.inline_bytes,
        }
    }

    /// Where its queue pairs complete.
    #[must_use]
    pub fn completion_queue(&self) -> &CompletionQueue {
        self.queue.as_ref().expect("it is no link yet")
    }

    /// The device.
    #[must_use]
    pub fn nic(&self) -> &Arc<Nic> {
        &self.nic
    }

    /// What a queue pair that is not of a connection manager has to let the other side do.
    #[must_use]
    pub fn access() -> Access {
        Access::REMOTE_READ | Access::REMOTE_WRITE
    }

    /// The next lane: a queue pair made with [`caps`](Self::caps) that takes receives, which are posted.
    ///
    /// # Errors
    /// No memory for messages, or what the device says.
    pub fn add_lane(&mut self, queue_pair: QueuePair) -> Result<(), SetupError> {
        if self.lanes.len() == self.count {
            return Err(SetupError::BadLimits("more lanes than were asked for"));
        }
        let number = self.lanes.len();
        let (write_pieces, read_pieces) = (queue_pair.caps().send_pieces, queue_pair.read_pieces());
        let settings = LaneSettings {
            number,
            cut_limits: CutLimits {
                write_pieces: write_pieces.min(PIECES_MAX) as usize,
                read_pieces: read_pieces.min(PIECES_MAX) as usize,
                bytes: REQUEST_BYTES_MAX,
                splits_short: self.nic.is_iwarp,
            },
            inline_bytes: self.nic.inline_bytes.min(queue_pair.caps().inline_bytes) as usize,
            // A reliable connection of InfiniBand acknowledges a write when it is placed; TCP, below iWARP, when it has come.
            asks: self.nic.is_iwarp,
            generation: self.generation,
            fences: self.nic.is_iwarp,
        };
        self.lanes.push(Lane::new(queue_pair, &self.nic.domain, settings, &self.limits)?);
        Ok(self.lanes.last_mut().map_or(Ok(()), Lane::post_receives)?)
    }

    /// The queue pair of a lane, to be connected.
    pub fn queue_pair(&mut self, lane: usize) -> Option<&mut QueuePair> {
        self.lanes.get_mut(lane).and_then(Lane::queue_pair)
    }

    /// Receives of each lane, which the other side must know.
    #[must_use]
    pub fn receives(&self) -> u32 {
        self.limits.messages
    }

    /// The link, once all queue pairs are connected to those of one other endpoint. `receives_there`: what the other side's
    /// [`receives`](Self::receives) says.
    ///
    /// # Errors
    /// Lanes are missing, the other side's number cannot be, or a thread cannot be started.
    pub fn into_link(
        mut self,
        disconnects: Option<Box<dyn Disconnects>>,
        receives_there: u32,
        bell: &Bell,
    ) -> io::Result<Link> {
        if self.lanes.len() != self.count || !(RECEIVES_MIN..=RECEIVES_MAX).contains(&receives_there) {
            let what = "a link needs all of its lanes, and 4 to 255 receives at the other side";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let limits = &self.limits;
        self.lanes.iter_mut().for_each(|lane| lane.set_receives_there(receives_there, limits.messages));
        let threads = self.count - 1;
        let packers: io::Result<Vec<Packer>> =
            (0..threads).map(|number| Packer::start((number, threads), limits.tasks, limits.spin, bell)).collect();
        let pieces = self.nic.limits.pieces.min(PIECES_MAX) as usize;
        let packers = packers?;
        let grants = Grants::with_device(limits.grants, &self.nic.domain);
        let completions = vec![Completion::EMPTY; COMPLETIONS_PER_POLL].into();
        let queue = self.queue.take().expect("it is no link yet");
        Ok(Link {
            desk: Desk::new(limits.window, pieces, self.nic.inline_bytes as usize),
            there: There::new(limits.grants),
            tasks_max: limits.tasks as usize,
            depth: limits.depth,
            ran: VecDeque::with_capacity(limits.tasks as usize),
            lanes: ManuallyDrop::new(std::mem::take(&mut self.lanes)),
            queue: ManuallyDrop::new(queue),
            channel: self.channel.clone(),
            nic: self.nic.clone(),
            packers,
            packer: ListPacker::default(),
            grants,
            control: None,
            disconnects,
            bytes: Vec::with_capacity(frame::FRAME_BYTES_MAX),
            completions,
            fetched: 0,
            is_armed: false,
            is_down: false,
            silence: Silence::default(),
            is_stuck: false,
            untold: None,
            looked_ns: 0,
            counters: LinkCounters::default(),
            fork: bell.fork.clone(),
            started: Instant::now(),
        })
    }
}

impl Drop for Endpoint {
    /// Its receives may be in use: the other side's queue pair can be connected to one of this side's before this side knows.
    fn drop(&mut self) {
        let Some(mut queue) = self.queue.take() else { return };
        let (mut lanes, started) = (std::mem::take(&mut self.lanes), Instant::now());
        let (mut completions, mut bytes) = ([Completion::EMPTY; COMPLETIONS_PER_POLL], Vec::new());
        lanes.iter_mut().for_each(Lane::stop);
        while !lanes.iter().all(Lane::has_ended) {
            lanes.iter_mut().for_each(|lane| _ = lane.wind_up(started.elapsed().as_nanos() as u64, &mut |_| {}));
            let polled = queue.poll(&mut completions);
            let is_late = started.elapsed().as_nanos() > HOME_NS.into();
            let Some(polled) = polled.ok().filter(|_| !is_late) else {
                // As with a link: what the device may have for ever is never freed. A forked child has nothing to free.
                std::mem::forget((lanes, queue));
                return;
            };
            for completion in polled {
                let number = (completion.id() >> LANE_SHIFT) as usize & (LANES_MAX - 1);
                // Nothing was sent, so that all of them are receives, or not true.
                let lane = lanes.get_mut(number).filter(|_| completion.id() & RECEIVE != 0);
                let _ = lane.map(|lane| lane.received(completion, 0, &mut bytes));
            }
        }
    }
}

/// No more than the device has room for.
fn within(nic: &Nic, lanes: usize, limits: &Limits) -> Limits {
    let completions = nic.limits.completions / lanes.max(1) as u32;
    let messages = limits.messages.min(nic.limits.requests);
    let depth = limits.depth.min(nic.limits.requests).min(completions.saturating_sub(messages));
    Limits { messages, depth, ..limits.clone() }
}

/// Operations, tasks or requests of a lane.
const COUNT_MAX: u32 = 1 << 16;
/// Pieces of this side in one work request: more make a doorbell's storage large and no wire faster.
const PIECES_MAX: u32 = 32;
/// Bytes of one work request: longer operations are several, so that little is under way when one is cancelled.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
