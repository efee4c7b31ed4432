//! Completion queues.

use super::{Raw, Twist, World};
use crate::seeded::Random;
use scatter_ring::verbs::abi::*;
use std::collections::VecDeque;

pub(super) struct CompletionQueue {
    pub raw: Raw<ibv_cq>,
    pub device: usize,
    pub channel: Option<u32>,
    pub depth: usize,
    entries: VecDeque<Entry>,
    /// Completions that come later than they should.
    late: Vec<Late>,
    /// Some of what there was, for those that come again.
    pub old: VecDeque<Entry>,
    is_armed: bool,
    /// It had no room once: it says nothing any more.
    pub has_failed: bool,
    /// Events that were taken and are not acknowledged.
    pub unacknowledged: u32,
}

#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub wc: ibv_wc,
    /// What it says of places in a queue; nothing if it was made up.
    pub place: Option<Place>,
}

/// A place in a queue of a queue pair.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub pair: u32,
    /// Numbers of queue pairs come back.
    pub incarnation: u64,
    pub number: u64,
    pub is_receive: bool,
}

struct Late {
    entry: Entry,
    polls: u32,
    /// It comes at once when another one has come.
    is_behind_next: bool,
}

/// More than anybody polls before something else happens, so that what is swapped with nothing comes in the end.
const POLLS_UNTIL_NEXT: u32 = 200;
pub(super) const OLD_MAX: usize = 256;

impl CompletionQueue {
    pub fn new(raw: Raw<ibv_cq>, device: usize, channel: Option<u32>, depth: usize) -> CompletionQueue {
        CompletionQueue {
            raw,
            device,
            channel,
            depth,
            entries: VecDeque::new(),
            late: Vec::new(),
            old: VecDeque::new(),
            is_armed: false,
            has_failed: false,
            unacknowledged: 0,
        }
    }
}

impl World {
    /// A request or receive has ended: its completion, unless a fault wants it otherwise.
    pub fn complete(&mut self, queue: u32, entry: Entry) {
        let Some(device) = self.queues.get(&queue).map(|queue| queue.device) else { return };
        if self.faults.mute[device] {
            return;
        }
        match self.faults.of_completion(device) {
            None => self.put(queue, entry),
            Some(Twist::Lost) => self.lose(&entry),
            Some(Twist::Twice) => {
                self.put(queue, entry);
                self.put(queue, Entry { place: None, ..entry });
            }
            Some(Twist::Late(polls)) => self.put_late(queue, Late { entry, polls, is_behind_next: false }),
            Some(Twist::Swapped) => {
                self.put_late(queue, Late { entry, polls: POLLS_UNTIL_NEXT, is_behind_next: true });
            }
            Some(Twist::Garbage) => {
                let wc = garbage(&mut self.random);
                self.put(queue, Entry { wc, place: None });
                self.put(queue, entry);
            }
            Some(Twist::Spoiled) => {
                self.lose(&entry);
                let wc = garbage(&mut self.random);
                self.put(queue, Entry { wc, place: None });
            }
            Some(Twist::Stale) => {
                let old = &self.queues[&queue].old;
                if !old.is_empty() {
                    let wc = old[self.random.below(old.len() as u64) as usize].wc;
                    self.put(queue, Entry { wc, place: None });
                }
                self.put(queue, entry);
            }
            Some(Twist::Ghost) => {
                let number = entry.wc.qp_num;
                let ghosts: Vec<_> = self.ghosts[device].iter().filter(|wc| wc.qp_num == number).collect();
                if !ghosts.is_empty() {
                    let wc = *ghosts[self.random.below(ghosts.len() as u64) as usize];
                    self.put(queue, Entry { wc, place: None });
                }
                self.put(queue, entry);
            }
            Some(Twist::Unasked) => {
                if let Some(wc) = self.unasked(entry.wc.qp_num) {
                    self.put(queue, Entry { wc, place: None });
                }
                self.put(queue, entry);
            }
            Some(Twist::Failed(status)) => {
                let failed = error(entry.wc.wr_id, status, entry.wc.qp_num, &mut self.random);
                self.put(queue, Entry { wc: failed, ..entry });
                self.break_off(entry.wc.qp_num);
            }
        }
    }

    /// A success of a request that is not signalled, and that no completion has covered.
    fn unasked(&mut self, number: u32) -> Option<ibv_wc> {
        let pair = self.pairs.get(&number)?;
        let mut waiting = pair.under_way.iter().chain(&pair.waiting);
        let id = pair.silent.or_else(|| Some(waiting.find(|request| !request.is_signalled())?.id))?;
        self.counts[pair.device].unasked += 1;
        Some(success(id, IBV_WC_RDMA_WRITE, None, number, &mut self.random))
    }

    fn lose(&mut self, entry: &Entry) {
        if let Some(Place { pair, number, is_receive, .. }) = entry.place
            && let Some(pair) = self.pairs.get_mut(&pair)
        {
            pair.is_lost(is_receive, number);
        }
    }

    fn put(&mut self, handle: u32, entry: Entry) {
        let Some(queue) = self.queues.get_mut(&handle) else { return };
        let device = queue.device;
        // A queue that has no room is lost with all that is in it: hardware does not make it wait.
        if queue.entries.len() >= queue.depth && entry.place.is_some() {
            let depth = queue.depth;
            if !std::mem::replace(&mut queue.has_failed, true) {
                self.violation(format!("the completion queue of {depth} entries overran"));
                self.happens(device, IBV_EVENT_CQ_ERR, handle);
            }
            return;
        }
        queue.entries.push_back(entry);
        let peak = &mut self.counts[device].completion_queue_peak;
        *peak = (*peak).max(queue.entries.len() as u64);
        for i in (0..queue.late.len()).rev() {
            if queue.late[i].is_behind_next {
                let late = queue.late.remove(i);
                queue.entries.push_back(late.entry);
            }
        }
        queue.old.push_back(Entry { place: None, ..entry });
        if queue.old.len() > OLD_MAX {
            queue.old.pop_front();
        }
        self.tell(handle);
    }

    fn put_late(&mut self, queue: u32, late: Late) {
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.late.push(late);
        }
        // A sleeper wakes, polls, and finds nothing: then it polls on.
        self.tell(queue);
    }

    /// The event that was asked for.
    fn tell(&mut self, handle: u32) {
        let Some(queue) = self.queues.get_mut(&handle) else { return };
        if let (true, Some(channel)) = (queue.is_armed, queue.channel) {
            queue.is_armed = false;
            let (device, raw) = (queue.device, queue.raw);
            self.events[device].tell_channel(channel, raw);
        }
    }

    /// The next completions, at most so many; `None`: the queue has failed. What is polled has its places free.
    pub fn poll(&mut self, handle: u32, most: usize) -> Option<Vec<ibv_wc>> {
        let queue = self.queues.get_mut(&handle)?;
        let counts = &mut self.counts[queue.device];
        counts.polls += 1;
        if queue.has_failed {
            return None;
        }
        for i in (0..queue.late.len()).rev() {
            queue.late[i].polls = queue.late[i].polls.saturating_sub(1);
            if queue.late[i].polls == 0 {
                let late = queue.late.remove(i);
                queue.entries.push_back(late.entry);
            }
        }
        let taken: Vec<Entry> = queue.entries.drain(..most.min(queue.entries.len())).collect();
        for entry in &taken {
            let is_receive = entry.place.is_some_and(|place| place.is_receive);
            counts.polled_receives += u64::from(is_receive);
            counts.polled_requests += u64::from(!is_receive);
            counts.polled_errors += u64::from(entry.wc.status != IBV_WC_SUCCESS);
            // A completion of a request says that all before it in its queue have ended too: their places are free when
            // it is polled, and not before. So an unsignalled one keeps its place until a later one is signalled.
            let place = entry.place.and_then(|place| Some((place, self.pairs.get_mut(&place.pair)?)));
            if let Some((place, pair)) = place
                && pair.incarnation == place.incarnation
            {
                pair.free(place.is_receive, place.number);
            }
        }
        Some(taken.into_iter().map(|entry| entry.wc).collect())
    }

    /// Asks for an event when the next completion comes; one that is there already gives none.
    pub fn arm(&mut self, queue: u32) {
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.is_armed = true;
        }
    }
}

/// A completion of which only these fields and one of the vendor mean something.
pub(super) fn error(id: u64, status: u32, pair: u32, random: &mut Random) -> ibv_wc {
    ibv_wc { wr_id: id, status, qp_num: pair, ..garbage(random) }
}

/// One of a request that went well. How many bytes there were is said of receives and READs only.
pub(super) fn success(id: u64, opcode: u32, bytes: Option<u32>, pair: u32, random: &mut Random) -> ibv_wc {
    let garbage = garbage(random);
    let byte_len = bytes.unwrap_or(garbage.byte_len);
    ibv_wc { wr_id: id, status: IBV_WC_SUCCESS, opcode, byte_len, qp_num: pair, ..garbage }
}

fn garbage(random: &mut Random) -> ibv_wc {
    // Small numbers as well, which are more likely to be taken for something.
    let id = random.word() >> random.pick(&[0, 8, 32, 56, 60]);
    ibv_wc {
        wr_id: id,
        status: random.pick(&[IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, IBV_WC_RETRY_EXC_ERR, 9999]),
        opcode: random.pick(&[IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ, IBV_WC_RECV, 77]),
        vendor_err: random.word() as u32,
        byte_len: random.word() as u32,
        imm_data: random.word() as u32,
        qp_num: random.word() as u32,
        src_qp: random.word() as u32,
        wc_flags: random.word() as u32,
        pkey_index: random.word() as u16,
        slid: random.word() as u16,
        sl: random.word() as u8,
        dlid_path_bits: random.word() as u8,
    }
}
