//! A lane: one queue pair, what waits to be posted to it, and what is under way.

use super::super::{Event, Failure, GrantId, Operation, Reason, Violation};
use super::buffers::{Came, LANE_SHIFT, Receives, Sends};
use super::credits::{Credits, Told};
use super::flight::{Flight, Outcome, Work};
use super::frame::Frame;
use super::job::{CutLimits, Job, Kind};
use super::silence::Silence;
use super::there::{Key, There};
use super::{LaneCounters, Limits, SetupError};
use crate::verbs::{
    Completion, Piece, PostBatch, PostStorage, ProtectionDomain, QueuePair, RemoteAddress, VerbsError, WcStatus,
};
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) struct Lane {
    /// Gone once the lane has ended without everything having come home.
    queue_pair: Option<QueuePair>,
    queue_pair_number: u32,
    free: Jobs,
    sending: Sending,
    receives: Receives,
    /// Carried out, as far as this side's device knows; the other side has not said that it has them.
    unacknowledged: VecDeque<Box<Job>>,
    window: usize,
    /// A request has failed, or the lane was stopped: what is under way comes home, and nothing else happens.
    is_failed: bool,
    /// The queue pair was brought to the error state, and has flushed a receive since.
    is_flushing: bool,
    /// Since something came home.
    silence: Silence,
    /// Everything has come home, and every operation has its outcome.
    has_ended: bool,
    pub counters: LaneCounters,
    pub heard_ns: u64,
    pub sent_ns: u64,
}

type Jobs = Vec<Box<Job>>;

/// What a lane is made for, besides the link's limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneSettings {
    pub number: usize,
    pub cut_limits: CutLimits,
    pub inline_bytes: usize,
    /// A write that has completed may not be in place at the other side: that has to say so.
    pub asks: bool,
    /// Requests behind a READ may complete before it. Those of other kinds are held back until it has, so that a completion
    /// covers everything before it.
    pub fences: bool,
    /// Any number, which no other link is likely to have.
    pub generation: u32,
}

/// What all lanes of a link use while they post.
pub(super) struct Desk {
    storage: PostStorage,
    frame: Vec<u8>,
    pieces: Vec<Piece>,
}

/// What a frame says that has come.
pub(super) struct Heard<'a> {
    pub key: Option<Key>,
    pub message: Option<&'a [u8]>,
}

/// A completion that cannot be true.
pub(super) struct Stale;

/// The half that posts.
struct Sending {
    settings: LaneSettings,
    /// Not cut to their end.
    waiting: VecDeque<Box<Job>>,
    /// Cut to their end, in the order in which the queue pair carries them out.
    posted: VecDeque<Box<Job>>,
    flight: Flight,
    bytes_out: u64,
    credits: Credits,
    buffers: Sends,
    /// READs under way.
    reads_out: u32,
}

/// One more request was put into a doorbell, or why not.
enum Next {
    Added,
    /// There is nothing that can be posted now.
    Nothing,
    Broken(Reason),
}

/// After so long without a word of what was flushed there are no more.
const LATE_NS: u64 = 400_000_000;

/// Bytes under way at once, unless one request is longer: more do not make a wire faster, and what was posted cannot be
/// taken back.
const OUTSTANDING_BYTES: u64 = 8 << 20;

impl Desk {
    /// For doorbells of so many requests, each of so many pieces, with so many bytes inline.
    pub fn new(window: u32, pieces: usize, inline_bytes: usize) -> Desk {
        let window = window.max(1) as usize;
        Desk {
            storage: PostStorage::new(window, window * pieces.max(1), window * inline_bytes),
            frame: Vec::with_capacity(super::frame::FRAME_BYTES_MAX),
            pieces: Vec::with_capacity(pieces),
        }
    }
}

impl Lane {
    /// On a queue pair that takes receives, of which none is posted yet.
    pub fn new(
        queue_pair: QueuePair,
        domain: &Arc<ProtectionDomain>,
        settings: LaneSettings,
        limits: &Limits,
    ) -> Result<Lane, SetupError> {
        let room = limits.operations as usize;
        let sending = Sending {
            settings,
            waiting: VecDeque::with_capacity(room),
            posted: VecDeque::with_capacity(room),
            flight: Flight::new(limits.depth, limits.signal_every, settings.generation),
            bytes_out: 0,
            credits: Credits::new(limits.messages, limits.messages),
            buffers: Sends::new(domain, limits.messages)?,
            reads_out: 0,
        };
        let receives = Receives::new(domain, settings.number, limits.messages, settings.generation)?;
        Ok(Lane {
            queue_pair_number: queue_pair.number(),
            queue_pair: Some(queue_pair),
            free: (0..room).map(|_| Job::new()).collect(),
            sending,
            receives,
            unacknowledged: VecDeque::with_capacity(room),
            window: limits.window.max(1) as usize,
            is_failed: false,
            is_flushing: false,
            silence: Silence::default(),
            has_ended: false,
            counters: LaneCounters::default(),
            heard_ns: 0,
            sent_ns: 0,
        })
    }

    /// Whoever keeps the lane waits for them until the lane [has ended](Self::has_ended), also if this fails.
    pub fn post_receives(&mut self) -> Result<(), VerbsError> {
        self.queue_pair.as_mut().map_or(Ok(()), |queue_pair| self.receives.post_all(queue_pair))
    }

    pub fn queue_pair(&mut self) -> Option<&mut QueuePair> {
        self.queue_pair.as_mut()
    }

    /// Pieces of this side in one request: one that reads, and one that writes.
    pub fn pieces(&self) -> (u32, u32) {
        let CutLimits { write_pieces, read_pieces, .. } = self.sending.settings.cut_limits;
        (read_pieces as u32, write_pieces as u32)
    }

    /// The other side has posted so many receives; said once, before anything is sent.
    pub fn set_receives_there(&mut self, there: u32, here: u32) {
        self.sending.credits = Credits::new(there, here);
    }

    /// Operations that there is room for.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Takes an operation; there is [room](Self::room).
    pub fn queue(&mut self, operation: &Operation<'_>) {
        let Some(mut job) = self.free.pop() else { return };
        job.post(operation);
        self.sending.waiting.push_back(job);
    }

    /// Something that was posted has not left, or is not known to have.
    pub fn is_sending(&self) -> bool {
        !self.sending.waiting.is_empty() || !self.sending.posted.is_empty()
    }

    /// Posts what can be posted, a window with each doorbell.
    ///
    /// # Errors
    /// The device does not take it: the link is to end.
    pub fn pump(
        &mut self,
        there: &There,
        key_of: &dyn Fn(GrantId) -> Option<Key>,
        desk: &mut Desk,
    ) -> Result<(), Reason> {
        while !self.is_failed && self.ring_once(there, key_of, desk)? {}
        Ok(())
    }

    /// One doorbell. False: there was nothing to post.
    fn ring_once(
        &mut self,
        there: &There,
        key_of: &dyn Fn(GrantId) -> Option<Key>,
        desk: &mut Desk,
    ) -> Result<bool, Reason> {
        let Desk { storage, frame, pieces } = desk;
        let Some(queue_pair) = &mut self.queue_pair else { return Ok(false) };
        let mut batch = queue_pair.start(storage);
        let mut hands = Hands { batch: &mut batch, there, key_of, frame, pieces };
        while hands.batch.len() < self.window && !hands.batch.is_full() {
            match self.sending.add_next(&mut hands) {
                Next::Added => {}
                Next::Nothing => break,
                Next::Broken(reason) => {
                    // What is in the doorbell is not posted.
                    let count = hands.batch.len();
                    self.sending.take_back(count);
                    return Err(reason);
                }
            }
        }
        let count = batch.len();
        if count == 0 {
            return Ok(false);
        }
        self.sending.flight.signal_last();
        batch.signal_last();
        // SAFETY: the pieces lie in regions that their jobs keep, and in this lane's own buffers, until every request is
        // known to be over; if that cannot be known all of them are leaked.
        let posted = unsafe { batch.submit() };
        let taken = posted.as_ref().map_or_else(|failed| failed.posted, |()| count);
        self.sending.take_back(count - taken);
        let counters = &mut self.counters;
        (counters.doorbells, counters.requests) = (counters.doorbells + 1, counters.requests + taken as u64);
        counters.signalled = self.sending.flight.signalled();
        posted.map(|()| true).map_err(|_| Reason::Device("it does not take a request (ibv_post_send)"))
    }

    /// A completion of the send queue.
    ///
    /// # Errors
    /// [`Stale`]: it changes nothing.
    pub fn sent(
        &mut self,
        number: u64,
        completion: &Completion,
        now_ns: u64,
        event: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<Reason>, Stale> {
        let status = completion.status();
        let is_good = status == WcStatus::SUCCESS;
        let outcome = if is_good { Outcome::Good } else { Outcome::Failed };
        if completion.queue_pair() != self.queue_pair_number || self.has_ended {
            return Err(Stale);
        }
        let Sending { flight, posted, buffers, bytes_out, reads_out, .. } = &mut self.sending;
        let mut over = flight.completed(number, outcome).map_err(|_| Stale)?.peekable();
        while let Some(work) = over.next() {
            *bytes_out -= u64::from(work.bytes);
            *reads_out -= u32::from(work.is_read);
            if work.has_buffer {
                buffers.give_back();
            }
            // The completion is about the last one. Those before it have done what they were to do, unless the lane had
            // failed: then they were flushed, and their operations fail when all is home. A request that is flushed
            // says nothing of those before it: the one that failed is among them, and its completion is lost.
            let went_well = !self.is_failed && (is_good || (over.peek().is_some() && status != WcStatus::FLUSHED));
            if work.ends
                && went_well
                && let Some(job) = posted.pop_front()
            {
                self.unacknowledged.push_back(job);
            }
        }
        drop(over);
        self.sent_ns = now_ns;
        self.silence.end();
        self.conclude(event);
        if is_good || self.is_failed {
            return Ok(None);
        }
        self.is_failed = true;
        Ok(Some(Reason::Request { status: status.0, vendor: completion.vendor_error() }))
    }

    /// Operations that are carried out and need no word of the other side, or have it, are done.
    fn conclude(&mut self, event: &mut dyn FnMut(Event<'_>)) {
        let credits = &self.sending.credits;
        let is_done = |job: &Job| job.asked.is_none_or(|asked| credits.is_acknowledged(asked));
        while self.unacknowledged.front().is_some_and(|job| is_done(job))
            && let Some(job) = self.unacknowledged.pop_front()
        {
            give_back(job, Ok(()), &mut self.free, event);
        }
    }

    /// A completion of a receive: the frame's bytes are put into `bytes`, and the buffer is posted again. `None`: nothing has
    /// come, because the lane is at its end.
    ///
    /// # Errors
    /// [`Stale`], as above.
    pub fn received(
        &mut self,
        completion: &Completion,
        now_ns: u64,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<Result<(), Reason>>, Stale> {
        if completion.queue_pair() != self.queue_pair_number || self.has_ended {
            return Err(Stale);
        }
        let Came { buffer, is_early } = self.receives.came(completion.id()).ok_or(Stale)?;
        self.silence.end();
        let Some(success) = completion.success() else {
            let was_failed = std::mem::replace(&mut self.is_failed, true);
            self.is_flushing |= completion.status() == WcStatus::FLUSHED;
            let (status, vendor) = (completion.status().0, completion.vendor_error());
            return Ok((!was_failed).then_some(Err(Reason::Request { status, vendor })));
        };
        if self.is_failed {
            return Ok(None);
        }
        if is_early {
            return Ok(Some(Err(Reason::Device("it leaves out a receive, or reports them in another order"))));
        }
        self.heard_ns = now_ns;
        if !self.receives.read(buffer, success.byte_len() as usize, bytes) {
            return Ok(Some(Err(Reason::Device("it says that more has come than there was room for"))));
        }
        let posted = self.queue_pair.as_mut().map_or(Ok(()), |queue_pair| self.receives.post(queue_pair, buffer));
        Ok(Some(posted.map_err(|_| Reason::Device("it does not take a receive (ibv_post_recv)"))))
    }

    /// What a frame says that has come.
    ///
    /// # Errors
    /// What no other side says.
    pub fn hear<'b>(&mut self, bytes: &'b [u8], event: &mut dyn FnMut(Event<'_>)) -> Result<Heard<'b>, Violation> {
        let Frame { credits, asked, acknowledged, key, message } = Frame::read(bytes)?;
        self.sending.credits.received(Told { credits, asked, acknowledged })?;
        self.conclude(event);
        Ok(Heard { key, message })
    }

    /// Nothing more is posted, and what is under way is to come home.
    pub fn stop(&mut self) {
        self.is_failed = true;
        // If it cannot be brought there nothing comes home, which will be noticed.
        let _ = self.queue_pair.as_mut().map(QueuePair::to_error);
    }

    /// Ends the lane if nothing of it is under way any more, in either direction: what has no outcome yet never had one. Gives
    /// how much had to be given up for that.
    pub fn wind_up(&mut self, now_ns: u64, event: &mut dyn FnMut(Event<'_>)) -> u64 {
        if self.has_ended {
            return 0;
        }
        let is_home = self.sending.flight.is_empty() && self.receives.are_home();
        if is_home {
            self.end(event);
        } else if self.are_only_late_ones_left(now_ns) {
            // The last fence that there is: from here on the device knows nothing of what was posted.
            self.queue_pair = None;
            self.end(event);
            return self.sending.flight.len() + self.receives.len();
        }
        0
    }

    /// Some devices break off a connection by themselves, and take what is posted after that without ever mentioning it
    /// again. A device flushes in the order of the posts: if it has begun with that, and goes no further, what is left was
    /// posted too late.
    fn are_only_late_ones_left(&mut self, now_ns: u64) -> bool {
        self.silence.lasts(now_ns, LATE_NS) && self.is_flushing && !self.receives.lacks_one()
    }

    fn end(&mut self, event: &mut dyn FnMut(Event<'_>)) {
        self.has_ended = true;
        let Sending { waiting, posted, .. } = &mut self.sending;
        for job in self.unacknowledged.drain(..).chain(posted.drain(..)).chain(waiting.drain(..)) {
            give_back(job, Err(Failure::Down), &mut self.free, event);
        }
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended
    }
}

/// What adding a request needs besides.
struct Hands<'h, 'q> {
    batch: &'h mut PostBatch<'q>,
    there: &'h There,
    key_of: &'h dyn Fn(GrantId) -> Option<Key>,
    frame: &'h mut Vec<u8>,
    pieces: &'h mut Vec<Piece>,
}

impl Sending {
    fn add_next(&mut self, hands: &mut Hands<'_, '_>) -> Next {
        let reads_next = self.waiting.front().is_some_and(|job| job.kind == Kind::Read);
        let waits_for_reads = self.settings.fences && self.reads_out > 0 && !reads_next;
        if self.flight.room() == 0 || waits_for_reads {
            return Next::Nothing;
        }
        match self.waiting.front() {
            Some(job) if job.kind == Kind::Message && self.credits.has_room() && self.buffers.has_room() => {
                self.add_message(hands)
            }
            Some(job) if job.kind != Kind::Message && self.bytes_out < OUTSTANDING_BYTES => self.add_cut(hands),
            // Credits do not wait behind what waits for them.
            _ if self.credits.is_bare_due() && self.buffers.has_room() => self.add_frame(None, None, false, hands),
            _ => Next::Nothing,
        }
    }

    /// The next work request of the operation that is first in line.
    fn add_cut(&mut self, hands: &mut Hands<'_, '_>) -> Next {
        let Some(job) = self.waiting.front_mut() else { return Next::Nothing };
        let Ok(cut) = job.cut(hands.there, &self.settings.cut_limits, hands.pieces) else {
            return Next::Broken(Reason::Violation("a grant was named anew while it was in use"));
        };
        let is_read = job.kind == Kind::Read;
        if cut.ends && job.kind == Kind::WriteAcknowledged && self.settings.asks {
            job.asked = Some(self.credits.ask());
        }
        if cut.ends
            && let Some(job) = self.waiting.pop_front()
        {
            self.posted.push_back(job);
        }
        self.bytes_out += u64::from(cut.bytes);
        self.reads_out += u32::from(is_read);
        let (number, signalled) =
            self.flight.add(Work { ends: cut.ends, is_read, bytes: cut.bytes, ..Work::default() });
        let (id, place) = (self.id(number), RemoteAddress { address: cut.place.address, rkey: cut.place.remote_key });
        let added = match is_read {
            true => hands.batch.read(id, hands.pieces, place, signalled),
            false => hands.batch.write(id, hands.pieces, place, signalled),
        };
        added.map_or(Next::Broken(DOES_NOT_FIT), |()| Next::Added)
    }

    fn add_message(&mut self, hands: &mut Hands<'_, '_>) -> Next {
        let Some(job) = self.waiting.pop_front() else { return Next::Nothing };
        let key = job.names.and_then(hands.key_of);
        let next = self.add_frame(Some(&job.bytes), key, true, hands);
        self.posted.push_back(job);
        next
    }

    fn add_frame(&mut self, message: Option<&[u8]>, key: Option<Key>, ends: bool, hands: &mut Hands<'_, '_>) -> Next {
        let Told { credits, asked, acknowledged } = self.credits.sent();
        Frame { credits, asked, acknowledged, key, message }.write(hands.frame);
        let is_inline = hands.frame.len() <= self.settings.inline_bytes;
        let piece = if is_inline { None } else { self.buffers.fill(hands.frame) };
        let (number, signalled) = self.flight.add(Work { ends, has_buffer: piece.is_some(), ..Work::default() });
        let id = self.id(number);
        let added = match piece {
            Some(piece) => hands.batch.send(id, &[piece], signalled),
            None => hands.batch.send_inline(id, hands.frame, signalled),
        };
        added.map_or(Next::Broken(DOES_NOT_FIT), |()| Next::Added)
    }

    /// The last requests were not taken by the device: nothing of them will come home.
    fn take_back(&mut self, count: usize) {
        for work in self.flight.take_back(count as u64) {
            self.bytes_out -= u64::from(work.bytes);
            self.reads_out -= u32::from(work.is_read);
            self.buffers.take_back(u32::from(work.has_buffer));
        }
    }

    fn id(&self, number: u64) -> u64 {
        (self.settings.number as u64) << LANE_SHIFT | number
    }
}

/// An operation has its outcome; its memory is given up.
fn give_back(mut job: Box<Job>, result: Result<(), Failure>, free: &mut Jobs, event: &mut dyn FnMut(Event<'_>)) {
    let (kind, id) = (job.kind, job.id);
    job.clear();
    free.push(job);
    if kind != Kind::Message {
        event(Event::Completed { id, result });
    }
}

/// The storage for doorbells has room for a window of the longest requests, and requests are cut to what devices take.
const DOES_NOT_FIT: Reason = Reason::Defect;
