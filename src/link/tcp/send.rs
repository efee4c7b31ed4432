//! The sending half of a lane.

use super::super::grants::{Begun, Grants};
use super::super::{GrantId, Reason, RemotePiece};
use super::Limits;
use super::frame::{Kind, Status, encode_trailer};
use super::job::Job;
use super::lane::Lane;
use super::socket::{Socket, Vectors};
use rustix::io::Errno;
use std::collections::VecDeque;

pub(super) struct Sending {
    /// Posted, and not begun.
    pub queue: VecDeque<Box<Job>>,
    /// Answers that are not begun.
    pub answers: VecDeque<Box<Job>>,
    /// Begun, in the order of the wire; of all but the first no byte is sent.
    begun: VecDeque<Box<Job>>,
    /// Sent, and without an answer: in the order of the answers.
    pub awaiting: VecDeque<Box<Job>>,
    /// Answers that are not in use: as many as the other side may ask for.
    #[expect(clippy::vec_box, reason = "jobs go round by pointer, as in the other queues")]
    pub spare: Vec<Box<Job>>,
    /// Questions that are begun and have no answer.
    pub unanswered: u32,
    unanswered_max: u32,
    next_id: u64,
    /// Posts that the socket has as a whole.
    pub sent_posts: u64,
    /// Whether the frame begun last was an answer: the two kinds take turns.
    answered_last: bool,
    /// Bytes that are sent page by page, after EFAULT.
    careful_bytes: usize,
    /// The last call found the socket full.
    is_full: bool,
}

impl Sending {
    pub fn new(limits: &Limits) -> Sending {
        let (posts, answers) = (limits.operations as usize, limits.unanswered as usize);
        Sending {
            queue: VecDeque::with_capacity(posts),
            answers: VecDeque::with_capacity(answers),
            begun: VecDeque::with_capacity(FRAMES_PER_CALL),
            awaiting: VecDeque::with_capacity(posts),
            spare: (0..answers).map(|_| Job::for_answers()).collect(),
            unanswered: 0,
            unanswered_max: limits.unanswered,
            next_id: 0,
            sent_posts: 0,
            answered_last: false,
            careful_bytes: 0,
            is_full: false,
        }
    }

    pub fn clear(&mut self) {
        self.queue.clear();
        self.answers.clear();
        self.begun.clear();
        self.awaiting.clear();
    }

    /// True if the socket is full, and something waits for it.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// What goes next: of the two queues in turn, and no more questions than the other side answers.
    fn take_next(&mut self) -> Option<Box<Job>> {
        let may_ask = self.unanswered < self.unanswered_max;
        let has_post = self.queue.front().is_some_and(|job| may_ask || !job.kind.is_answered());
        let answer_first = !self.answers.is_empty() && (!self.answered_last || !has_post);
        self.answered_last = answer_first;
        if answer_first {
            self.answers.pop_front()
        } else if has_post {
            self.queue.pop_front()
        } else {
            None
        }
    }
}

impl Lane {
    /// Sends as much as the socket takes, for some calls at most. True: something was sent.
    pub(super) fn send(&mut self) -> Result<bool, Reason> {
        let mut moved = false;
        for _ in 0..CALLS_PER_STEP {
            self.gather();
            let bytes = self.vectors.bytes();
            if bytes == 0 {
                self.sending.is_full = false;
                break;
            }
            match self.call(Socket::send) {
                Ok(sent) => {
                    moved = true;
                    self.sending.careful_bytes = self.sending.careful_bytes.saturating_sub(sent);
                    self.sent(sent as u64);
                    self.spoke();
                    self.sending.is_full = sent < bytes;
                    if sent < bytes {
                        break;
                    }
                }
                Err(Errno::AGAIN) => {
                    self.sending.is_full = true;
                    break;
                }
                Err(Errno::FAULT) => self.source_fault(bytes)?,
                Err(errno) => return Err(Reason::System(errno)),
            }
        }
        Ok(moved)
    }

    /// Fills the call with what is begun, and begins more.
    fn gather(&mut self) {
        self.vectors.start(self.sending.careful_bytes > 0);
        for at in 0..FRAMES_PER_CALL {
            if at == self.sending.begun.len() && !self.begin_next() {
                break;
            }
            let Lane { sending, vectors, grants, pinned, .. } = self;
            if !gather_frame(&mut sending.begun[at], vectors, grants, pinned) {
                break;
            }
        }
    }

    fn begin_next(&mut self) -> bool {
        let Some(mut job) = self.sending.take_next() else { return false };
        if job.kind == Kind::Reply && job.status == Status::Good {
            // It may have waited for a while.
            match self.grants.still(&job.granted) {
                Begun::Usable { may_be_lost } => job.may_be_lost = may_be_lost,
                gone => job.status = Status::of(gone),
            }
        }
        if job.kind.is_answer() {
            job.begin_answer();
        } else {
            self.sending.unanswered += u32::from(job.kind.is_answered());
            job.begin_question(self.sending.next_id);
            self.sending.next_id = self.sending.next_id.wrapping_add(1);
        }
        self.sending.begun.push_back(job);
        true
    }

    /// The socket has so many bytes more.
    fn sent(&mut self, mut bytes: u64) {
        while let Some(job) = self.sending.begun.front_mut() {
            let taken = bytes.min(job.frame_bytes() - job.sent);
            job.advance(taken);
            bytes -= taken;
            if job.sent < job.frame_bytes() {
                return;
            }
            self.sending.begun.pop_front().into_iter().for_each(|job| self.frame_sent(job));
        }
    }

    fn frame_sent(&mut self, mut job: Box<Job>) {
        self.sending.sent_posts += u64::from(!job.kind.is_answer());
        match job.kind {
            Kind::Read | Kind::WriteAcknowledged => {
                job.cursor = super::job::Cursor::default();
                self.sending.awaiting.push_back(job);
            }
            Kind::Write | Kind::Send => {
                let result = job.result();
                self.done(job, result);
            }
            Kind::Ack | Kind::Reply => self.sending.spare.push(job),
        }
    }

    /// Memory could not be read. Which, is found by trying again page by page; the frame that it belongs to goes on with
    /// zeros, because its length is promised.
    fn source_fault(&mut self, bytes: usize) -> Result<(), Reason> {
        if self.sending.careful_bytes == 0 {
            self.sending.careful_bytes = bytes;
            return Ok(());
        }
        self.sending.careful_bytes = 0;
        let first = self.sending.begun.front_mut().filter(|job| job.status == Status::Good);
        // Of this process's own buffers none can be missing.
        let job = first.ok_or(Reason::System(Errno::FAULT))?;
        job.status = Status::Lost;
        Ok(())
    }
}

/// Adds what is not sent of a frame. False: nothing may follow it in this call.
fn gather_frame(job: &mut Job, vectors: &mut Vectors, grants: &Grants, pinned: &mut Vec<GrantId>) -> bool {
    let payload_start = job.head.len() as u64;
    let payload_end = payload_start + job.payload_bytes();
    if !vectors.add_slice(job.head.get(job.sent as usize..).unwrap_or_default()) {
        return false;
    }
    if job.payload_bytes() > 0 && job.sent < payload_end && !gather_payload(job, vectors, grants, pinned) {
        return false;
    }
    let trailer_sent = job.sent.saturating_sub(payload_end) as usize;
    if job.trailer_bytes() == 0 {
        return true;
    }
    if trailer_sent == 0 {
        if job.may_be_lost && job.sent < payload_end {
            // Whether the memory was there all the time is known when the kernel has the payload.
            return false;
        }
        let lost =
            job.may_be_lost && if job.kind == Kind::Reply { grants.any_lost(&job.granted) } else { job.is_lost_here() };
        if lost && job.status == Status::Good {
            job.status = Status::Lost;
        }
        job.trailer = encode_trailer(job.status, job.id);
    }
    vectors.add_slice(&job.trailer[trailer_sent..])
}

fn gather_payload(job: &mut Job, vectors: &mut Vectors, grants: &Grants, pinned: &mut Vec<GrantId>) -> bool {
    let Job { cursor, local, granted, status, .. } = job;
    let mut skip = cursor.within;
    if *status == Status::Good && job.kind != Kind::Reply {
        return local[cursor.piece..].iter().all(|piece| {
            let skipped = std::mem::take(&mut skip);
            vectors.add(piece.at.wrapping_add(skipped as usize), (piece.len - skipped) as usize)
        });
    }
    if *status == Status::Good {
        let window = window(&granted[cursor.piece..], skip, vectors);
        let mark = vectors.mark();
        let mut whole = true;
        let usable = grants.pin(window, pinned, |at, len| {
            let skipped = std::mem::take(&mut skip);
            whole = whole && vectors.add(at.wrapping_add(skipped as usize), (len - skipped) as usize);
        });
        if usable {
            return whole && cursor.piece + window.len() == granted.len();
        }
        vectors.back_to(mark);
        *status = Status::Revoked;
    }
    let mut left = job.head.len() as u64 + job.bytes - job.sent.max(job.head.len() as u64);
    while left > 0 {
        let some = left.min(ZEROES.len() as u64);
        if !vectors.add_slice(&ZEROES[..some as usize]) {
            return false;
        }
        left -= some;
    }
    true
}

/// The pieces that a call has room for, the first of them from byte `skip` on.
pub(super) fn window<'a>(pieces: &'a [RemotePiece], skip: u32, vectors: &Vectors) -> &'a [RemotePiece] {
    let mut room = vectors.bytes_room() as u64 + u64::from(skip);
    let count = pieces.iter().take(vectors.room()).take_while(|piece| {
        let fits = room > 0;
        room = room.saturating_sub(piece.len.into());
        fits
    });
    &pieces[..count.count()]
}

/// What is sent in the place of memory that is not there any more.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
/// Frames that one call sends.
const FRAMES_PER_CALL: usize = 64;
const CALLS_PER_STEP: usize = 4;
