//! A queue pair: what was posted to it and what has come for it.

use super::Raw;
use super::wire::{Answer, Packet, Served};
use scatter_ring::verbs::abi::*;
use std::collections::VecDeque;

pub(super) struct QueuePair {
    pub raw: Raw<ibv_qp>,
    pub number: u32,
    /// Never twice, unlike the number.
    pub incarnation: u64,
    pub device: usize,
    pub domain: u32,
    pub send_queue: u32,
    pub receive_queue: u32,
    pub caps: ibv_qp_cap,
    pub state: u32,
    /// What the peer may do.
    pub access: u32,
    pub peer: Option<u32>,
    /// READs of its own at a time, and of the peer.
    pub reads_max: u32,
    pub reads_served_max: u32,
    pub rnr_retry: u8,

    /// Requests that were posted, and how many of the first are known to have ended. The others keep their places.
    posted: u64,
    freed: u64,
    /// The same for receives.
    receives_posted: u64,
    receives_freed: u64,
    /// The keys of what has a place, with its number.
    held: VecDeque<(bool, u64, u32)>,
    /// What has a place and will never be told: it was posted too late, or its completion is lost.
    untold: Vec<(bool, u64)>,

    /// Requests that have not left, those that have and have not ended, and receives.
    pub waiting: VecDeque<Request>,
    pub under_way: VecDeque<Request>,
    pub receives: VecDeque<Receive>,
    /// The id of a request that has ended, and that nobody was told of.
    pub silent: Option<u64>,

    /// Packets from the peer that ask for something, and those that answer.
    pub arriving: VecDeque<Packet>,
    pub answers: VecDeque<Answer>,
    /// READs of the peer that are being answered.
    pub serving: VecDeque<Served>,
    /// Bytes of a message that have come, and how often one found no receive.
    pub received: u64,
    pub not_ready: u32,
    /// Bytes that have come and are not in place: address, key and bytes.
    pub unplaced: Vec<(u64, u32, Vec<u8>)>,
    pub has_heard: bool,
    /// A packet was lost: the peer does not answer any more.
    pub is_unanswered: bool,
}

pub(super) struct Request {
    pub number: u64,
    pub id: u64,
    pub opcode: u32,
    pub flags: u32,
    pub pieces: Vec<ibv_sge>,
    /// Bytes that were taken by the post.
    pub inline: Option<Vec<u8>>,
    /// Of a message: what its bytes were when it was posted.
    pub sum: Option<u64>,
    pub bytes: u64,
    pub remote: u64,
    pub rkey: u32,
    /// Bytes that have left, or of a READ have come.
    pub moved: u64,
    pub is_done: bool,
}

pub(super) struct Receive {
    pub number: u64,
    pub id: u64,
    pub pieces: Vec<ibv_sge>,
}

impl Request {
    pub fn is_signalled(&self) -> bool {
        self.flags & IBV_SEND_SIGNALED != 0
    }

    pub fn is_read(&self) -> bool {
        self.opcode == IBV_WR_RDMA_READ
    }
}

/// What a new one is made with.
pub(super) struct Made {
    pub raw: Raw<ibv_qp>,
    pub number: u32,
    pub incarnation: u64,
    pub device: usize,
    pub domain: u32,
    pub send_queue: u32,
    pub receive_queue: u32,
    pub caps: ibv_qp_cap,
}

impl QueuePair {
    pub fn new(made: Made) -> QueuePair {
        let Made { raw, number, incarnation, device, domain, send_queue, receive_queue, caps } = made;
        QueuePair {
            raw,
            number,
            incarnation,
            device,
            domain,
            send_queue,
            receive_queue,
            caps,
            state: IBV_QPS_RESET,
            access: 0,
            peer: None,
            reads_max: 0,
            reads_served_max: 0,
            rnr_retry: 0,
            posted: 0,
            freed: 0,
            receives_posted: 0,
            receives_freed: 0,
            held: VecDeque::new(),
            untold: Vec::new(),
            waiting: VecDeque::new(),
            under_way: VecDeque::new(),
            receives: VecDeque::new(),
            silent: None,
            arriving: VecDeque::new(),
            answers: VecDeque::new(),
            serving: VecDeque::new(),
            received: 0,
            not_ready: 0,
            unplaced: Vec::new(),
            has_heard: false,
            is_unanswered: false,
        }
    }

    /// Whose memory it reaches.
    pub fn of(&self) -> (usize, u32) {
        (self.device, self.domain)
    }

    /// Places that are taken in the send queue.
    pub fn taken(&self) -> u64 {
        self.posted - self.freed
    }

    pub fn receives_taken(&self) -> u64 {
        self.receives_posted - self.receives_freed
    }

    /// What is not known to have ended, and could be.
    pub fn outstanding(&self) -> u64 {
        self.taken() + self.receives_taken() - self.untold.len() as u64
    }

    /// This one will not be told. Nobody can be asked to keep memory for it.
    pub fn is_untold(&mut self, is_receive: bool, number: u64) {
        let one = (is_receive, number);
        if !self.untold.contains(&one) {
            self.untold.push(one);
        }
        self.held.retain(|(of_receive, held, _)| (*of_receive, *held) != one);
    }

    /// Nor will those requests before it that nobody would be told of but by it.
    pub fn is_lost(&mut self, is_receive: bool, number: u64) {
        let first = if is_receive { number } else { self.freed };
        (first..=number).for_each(|number| self.is_untold(is_receive, number));
    }

    /// True if something was sent by it, or has come.
    pub fn was_used(&self) -> bool {
        self.posted > 0 || self.has_heard
    }

    /// Takes a place for a request or receive with these pieces; gives its number.
    pub fn take_place(&mut self, is_receive: bool, pieces: &[ibv_sge]) -> u64 {
        let posted = if is_receive { &mut self.receives_posted } else { &mut self.posted };
        let number = *posted;
        *posted += 1;
        self.held.extend(pieces.iter().map(|piece| (is_receive, number, piece.lkey)));
        number
    }

    /// It is known that this one has ended, and those before it in the same queue.
    pub fn free(&mut self, is_receive: bool, number: u64) {
        let freed = if is_receive { &mut self.receives_freed } else { &mut self.freed };
        *freed = (*freed).max(number + 1);
        self.held.retain(|(of_receive, held, _)| *of_receive != is_receive || *held > number);
        self.untold.retain(|(of_receive, untold)| *of_receive != is_receive || *untold > number);
    }

    /// True if a key is named by something that is not known to have ended.
    pub fn holds(&self, lkey: u32) -> bool {
        self.held.iter().any(|(_, _, held)| *held == lkey)
    }

    /// All that is posted or has come is forgotten, and every place is free.
    pub fn reset(&mut self) {
        let QueuePair { raw, number, incarnation, device, domain, send_queue, receive_queue, caps, .. } = *self;
        *self = QueuePair::new(Made { raw, number, incarnation, device, domain, send_queue, receive_queue, caps });
    }
}
