//! Steps: what the devices do with what was posted and with what comes by the wire.

use super::World;
use super::completions::{self, Entry, Place};
use super::memory::{self, Touch};
use super::post::sum;
use super::queue_pair::{Receive, Request};
use scatter_ring::verbs::abi::*;

/// What asks for something.
pub(super) enum Packet {
    Write {
        request: u64,
        at: u64,
        rkey: u32,
        bytes: Vec<u8>,
        is_last: bool,
    },
    Message {
        request: u64,
        bytes: Vec<u8>,
        is_last: bool,
    },
    Read {
        request: u64,
        at: u64,
        rkey: u32,
        bytes: u64,
    },
    /// The stream has ended.
    Closed,
}

/// What answers.
pub(super) enum Answer {
    /// This one and all before it have been done.
    Done {
        request: u64,
    },
    Refused {
        request: u64,
        status: u32,
    },
    Data {
        request: u64,
        bytes: Vec<u8>,
        is_last: bool,
    },
}

/// A READ that is being answered.
pub(super) struct Served {
    request: u64,
    at: u64,
    rkey: u32,
    bytes: u64,
    moved: u64,
}

/// Something that a queue pair can do now.
#[derive(Clone, Copy)]
pub(super) struct Choice {
    pair: u32,
    action: Action,
}

#[derive(Clone, Copy)]
enum Action {
    Transmit,
    Deliver,
    Serve,
    Hear,
    Place,
    GiveUp,
    Flush,
    FlushReceive,
}

impl World {
    /// One step of one queue pair. False: none can do anything.
    pub fn step(&mut self) -> bool {
        let mut choices = std::mem::take(&mut self.choices);
        choices.clear();
        for number in self.pairs.keys() {
            self.find_choices(*number, &mut choices);
        }
        let found = !choices.is_empty();
        if found {
            let Choice { pair, action } = choices[self.random.below(choices.len() as u64) as usize];
            match action {
                Action::Transmit => self.transmit(pair),
                Action::Deliver => self.deliver(pair),
                Action::Serve => self.serve(pair),
                Action::Hear => self.hear(pair),
                Action::Place => self.place_one(pair),
                Action::GiveUp => self.give_up(pair),
                Action::Flush => self.flush(pair),
                Action::FlushReceive => self.flush_receive(pair),
            }
        }
        self.choices = choices;
        found
    }

    fn find_choices(&self, number: u32, choices: &mut Vec<Choice>) {
        let pair = &self.pairs[&number];
        let (is_up, is_broken) = (pair.state == IBV_QPS_RTS, pair.state == IBV_QPS_ERR);
        let listens = pair.state >= IBV_QPS_RTR;
        let reports = is_broken && !self.faults.mute[pair.device];
        let can = [
            (Action::Transmit, is_up && self.can_transmit(number)),
            // READs are answered in their order, before what is behind them.
            (Action::Deliver, listens && !pair.arriving.is_empty() && pair.serving.is_empty()),
            (Action::Serve, listens && !pair.serving.is_empty()),
            (Action::Hear, listens && !pair.answers.is_empty()),
            // Lazy ones wait for what forces them, or for their end.
            (Action::Place, !pair.unplaced.is_empty() && is_broken),
            (Action::GiveUp, is_up && pair.is_unanswered && !pair.under_way.is_empty()),
            (Action::Flush, reports && !(pair.under_way.is_empty() && pair.waiting.is_empty())),
            (Action::FlushReceive, reports && !pair.receives.is_empty()),
        ];
        let found = can.iter().filter(|(_, can)| *can);
        choices.extend(found.map(|(action, _)| Choice { pair: number, action: *action }));
    }

    fn can_transmit(&self, number: u32) -> bool {
        let pair = &self.pairs[&number];
        let Some(head) = pair.waiting.front() else { return false };
        let reads = pair.under_way.iter().filter(|request| request.is_read()).count() as u32;
        let waits_for_reads = head.flags & IBV_SEND_FENCE != 0 && reads > 0;
        // READs of its own are throttled. None at all can be done with 0, which is found out.
        let waits_for_credit = head.is_read() && reads > 0 && reads >= pair.reads_max;
        // A peer that is not connected yet will be: the device tries again.
        let peer = pair.peer.and_then(|peer| self.pairs.get(&peer));
        let is_early = peer.is_some_and(|peer| peer.state < IBV_QPS_RTR && peer.peer.is_none());
        // What cannot be carried out fails behind what is under way.
        let waits_to_fail = !pair.under_way.is_empty() && self.local_error(number).is_some();
        !waits_for_reads && !waits_for_credit && !is_early && !waits_to_fail
    }

    /// The queue pair at the other end, if it is connected to this one.
    pub fn peer_of(&self, number: u32) -> Option<u32> {
        let peer = self.pairs.get(&number)?.peer?;
        (self.pairs.get(&peer)?.peer == Some(number)).then_some(peer)
    }

    /// Where a packet goes to; nowhere if the wire is cut or nobody is there.
    fn reach(&self, number: u32) -> Option<u32> {
        if self.faults.is_cut { None } else { self.peer_of(number) }
    }

    /// What is wrong with the request at the head of a send queue.
    fn local_error(&self, number: u32) -> Option<u32> {
        let pair = &self.pairs[&number];
        let request = pair.waiting.front()?;
        if request.is_read() && pair.reads_max == 0 {
            return Some(IBV_WC_LOC_QP_OP_ERR);
        }
        if request.inline.is_some() {
            return None;
        }
        let touch = if request.is_read() { Touch::Write } else { Touch::Read };
        let allows = |piece: &ibv_sge| {
            let bytes = u64::from(piece.length);
            bytes == 0 || self.memory.allows(pair.of(), touch, piece.lkey, piece.addr, bytes)
        };
        (!request.pieces.iter().all(allows)).then_some(IBV_WC_LOC_PROT_ERR)
    }

    /// The next packet of the request at the head.
    fn transmit(&mut self, number: u32) {
        if let Some(status) = self.local_error(number) {
            return self.fail_head(number, status);
        }
        let most = self.packet_bytes();
        let pair = &self.pairs[&number];
        let (of, request) = (pair.of(), &pair.waiting[0]);
        let (is_read, moved) = (request.is_read(), request.moved);
        let bytes = if is_read { request.bytes } else { (request.bytes - moved).min(most) };
        let is_last = moved + bytes == request.bytes;
        let data = match &request.inline {
            _ if is_read => Vec::new(),
            Some(inline) => inline[moved as usize..(moved + bytes) as usize].to_vec(),
            // The keys were looked at just now.
            None => self.gather(of, &request.pieces, moved, bytes).unwrap_or_default(),
        };
        let (id, rkey, at) = (request.number, request.rkey, request.remote + moved);
        let packet = match request.opcode {
            IBV_WR_RDMA_WRITE => Packet::Write { request: id, at, rkey, bytes: data, is_last },
            IBV_WR_RDMA_READ => Packet::Read { request: id, at, rkey, bytes },
            _ => Packet::Message { request: id, bytes: data, is_last },
        };
        let is_message = matches!(packet, Packet::Message { .. });
        // The source of a message is the sender's own buffer, which nobody else writes.
        let was_changed = is_message
            && moved == 0
            && request.sum.is_some_and(|before| {
                self.gather(of, &request.pieces, 0, request.bytes).is_some_and(|bytes| sum(&bytes) != before)
            });
        if was_changed {
            self.violation(format!("a message of queue pair {number} was changed before it had left"));
        }
        let peer = self.reach(number);
        if let Some(peer) = peer.and_then(|peer| self.pairs.get_mut(&peer)) {
            peer.arriving.push_back(packet);
        }
        let (is_stream, is_lost) = (self.profile.is_stream, peer.is_none());
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        pair.is_unanswered |= is_lost;
        let is_sent = is_last || is_read;
        if !is_read {
            pair.waiting[0].moved += bytes;
        }
        if is_sent && let Some(mut request) = pair.waiting.pop_front() {
            request.is_done = is_stream && !is_read;
            pair.under_way.push_back(request);
            self.finish(number);
        }
    }

    fn packet_bytes(&mut self) -> u64 {
        let most = self.profile.packet_bytes as u64;
        if self.random.once_in(4) { 1 + self.random.below(most) } else { most }
    }

    /// Completions of what is done, in the order of the send queue. On a stream, what follows a READ does not wait for it,
    /// unless it is fenced.
    fn finish(&mut self, number: u32) {
        let is_stream = self.profile.is_stream;
        loop {
            let Some(pair) = self.pairs.get_mut(&number) else { return };
            let done = pair.under_way.iter().position(|request| request.is_done);
            let Some(place) = done.filter(|place| pair.state == IBV_QPS_RTS && (is_stream || *place == 0)) else {
                return;
            };
            let Some(request) = pair.under_way.remove(place) else { return };
            if !request.is_signalled() {
                pair.silent = Some(request.id);
            } else {
                // By a completion everything before it is in place; on a stream it says nothing of the other side.
                if !is_stream && let Some(peer) = self.peer_of(number) {
                    self.place_all(peer);
                }
                self.report(number, &request, IBV_WC_SUCCESS);
                self.pairs.get_mut(&number).into_iter().for_each(|pair| pair.silent = None);
            }
        }
    }

    fn report(&mut self, number: u32, request: &Request, status: u32) {
        let pair = &self.pairs[&number];
        let (queue, incarnation) = (pair.send_queue, pair.incarnation);
        let wc = if status == IBV_WC_SUCCESS {
            let (opcode, bytes) = match request.opcode {
                IBV_WR_RDMA_WRITE => (IBV_WC_RDMA_WRITE, None),
                IBV_WR_RDMA_READ => (IBV_WC_RDMA_READ, Some(request.bytes as u32)),
                _ => (IBV_WC_SEND, None),
            };
            completions::success(request.id, opcode, bytes, number, &mut self.random)
        } else {
            completions::error(request.id, status, number, &mut self.random)
        };
        let place = Some(Place { pair: number, incarnation, number: request.number, is_receive: false });
        self.complete(queue, Entry { wc, place });
    }

    fn report_receive(&mut self, number: u32, receive: &Receive, result: Result<u64, u32>) {
        let pair = &self.pairs[&number];
        let (queue, incarnation) = (pair.receive_queue, pair.incarnation);
        let random = &mut self.random;
        let wc = match result {
            Ok(bytes) => completions::success(receive.id, IBV_WC_RECV, Some(bytes as u32), number, random),
            Err(status) => completions::error(receive.id, status, number, random),
        };
        let place = Some(Place { pair: number, incarnation, number: receive.number, is_receive: true });
        self.complete(queue, Entry { wc, place });
    }

    /// The oldest request fails, and the queue pair with it. A request that fails has a completion, signalled or not.
    fn fail_head(&mut self, number: u32, status: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let head = pair.under_way.pop_front().or_else(|| pair.waiting.pop_front());
        self.break_off(number);
        if let Some(request) = head {
            self.report(number, &request, status);
        }
    }

    /// The other side does not answer.
    fn give_up(&mut self, number: u32) {
        if self.profile.is_stream { self.break_off(number) } else { self.fail_head(number, IBV_WC_RETRY_EXC_ERR) }
    }

    fn flush(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let head = pair.under_way.pop_front().or_else(|| pair.waiting.pop_front());
        if let Some(request) = head {
            self.report(number, &request, IBV_WC_WR_FLUSH_ERR);
        }
    }

    fn flush_receive(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let head = pair.receives.pop_front();
        if pair.receives.is_empty() {
            // From the last one on, nothing touches memory of this side any more.
            pair.unplaced.clear();
            pair.arriving.clear();
            self.leave_unanswered(number);
        }
        if let Some(receive) = head {
            self.report_receive(number, &receive, Err(IBV_WC_WR_FLUSH_ERR));
        }
    }

    /// The peer waits for an answer that does not come.
    fn leave_unanswered(&mut self, number: u32) {
        if let Some(peer) = self.peer_of(number).and_then(|peer| self.pairs.get_mut(&peer)) {
            peer.is_unanswered = true;
        }
    }

    fn deliver(&mut self, number: u32) {
        let is_cut = self.faults.is_cut;
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        pair.has_heard = true;
        if is_cut || pair.state == IBV_QPS_ERR {
            let Some(packet) = pair.arriving.pop_front() else { return };
            // In the error state a packet may still be put in place, as long as not all receives are flushed.
            if let Packet::Write { at, rkey, bytes, .. } = packet
                && !is_cut
                && !pair.receives.is_empty()
                && self.random.once_in(2)
            {
                self.put_in_place(number, at, rkey, &bytes);
            }
            return self.leave_unanswered(number);
        }
        match pair.arriving.front() {
            Some(Packet::Message { bytes, .. }) => {
                let bytes = bytes.len() as u64;
                self.deliver_message(number, bytes);
            }
            _ => match pair.arriving.pop_front() {
                Some(Packet::Write { request, at, rkey, bytes, is_last }) => {
                    self.deliver_write(number, request, (at, rkey), bytes, is_last);
                }
                Some(Packet::Read { request, at, rkey, bytes }) => {
                    self.deliver_read(number, request, (at, rkey), bytes)
                }
                _ => self.break_off(number),
            },
        }
    }

    fn deliver_write(&mut self, number: u32, request: u64, to: (u64, u32), bytes: Vec<u8>, is_last: bool) {
        let (at, rkey) = to;
        let pair = &self.pairs[&number];
        let has_access = pair.access & IBV_ACCESS_REMOTE_WRITE != 0;
        let len = bytes.len() as u64;
        if len > 0 && !(has_access && self.memory.allows(pair.of(), Touch::RemoteWrite, rkey, at, len)) {
            return self.refuse(number, request, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
        }
        if self.profile.is_lazy {
            if let Some(pair) = self.pairs.get_mut(&number) {
                pair.unplaced.push((at, rkey, bytes));
            }
        } else {
            memory::write(at, &bytes);
        }
        if is_last {
            self.answer(number, Answer::Done { request });
        }
    }

    fn deliver_read(&mut self, number: u32, request: u64, from: (u64, u32), bytes: u64) {
        let (at, rkey) = from;
        // A READ sees what was written before it.
        self.place_all(number);
        let pair = &self.pairs[&number];
        let has_access = pair.access & IBV_ACCESS_REMOTE_READ != 0;
        let peer = self.peer_of(number).and_then(|peer| self.pairs.get(&peer));
        let reads = peer.map_or(0, |peer| peer.under_way.iter().filter(|request| request.is_read()).count());
        if reads as u32 > pair.reads_served_max {
            self.violation(format!("{reads} READs at a time to queue pair {number}"));
            return self.refuse(number, request, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
        }
        if bytes > 0 && !(has_access && self.memory.allows(pair.of(), Touch::RemoteRead, rkey, at, bytes)) {
            return self.refuse(number, request, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
        }
        if let Some(pair) = self.pairs.get_mut(&number) {
            pair.serving.push_back(Served { request, at, rkey, bytes, moved: 0 });
        }
    }

    /// The message at the head, of which so many bytes have come.
    fn deliver_message(&mut self, number: u32, bytes: u64) {
        // What was written before it is in place first.
        self.place_all(number);
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let Some(receive) = pair.receives.front() else { return self.not_ready(number) };
        let (room, received, of) = (memory::total(&receive.pieces), pair.received, pair.of());
        pair.not_ready = 0;
        let Some(Packet::Message { request, bytes: data, is_last }) = pair.arriving.pop_front() else { return };
        if received + bytes > room {
            let receive = pair.receives.pop_front();
            self.violation(format!("a message of more than {room} bytes to queue pair {number}"));
            self.break_off(number);
            if let Some(receive) = receive {
                self.report_receive(number, &receive, Err(IBV_WC_LOC_LEN_ERR));
            }
            return self.answer(number, Answer::Refused { request, status: IBV_WC_REM_INV_REQ_ERR });
        }
        let pieces = receive_pieces(&pair.receives);
        if !self.scatter(of, &pieces, received, &data) {
            let receive = self.pairs.get_mut(&number).and_then(|pair| pair.receives.pop_front());
            self.break_off(number);
            if let Some(receive) = receive {
                self.report_receive(number, &receive, Err(IBV_WC_LOC_PROT_ERR));
            }
            return self.answer(number, Answer::Refused { request, status: IBV_WC_REM_OP_ERR });
        }
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        pair.received = if is_last { 0 } else { received + bytes };
        if is_last && let Some(receive) = pair.receives.pop_front() {
            self.report_receive(number, &receive, Ok(received + bytes));
            self.answer(number, Answer::Done { request });
        }
    }

    /// A message finds no receive. Whoever counts receives never has this happen.
    fn not_ready(&mut self, number: u32) {
        let retries = self.peer_of(number).and_then(|peer| self.pairs.get(&peer)).map_or(0, |peer| peer.rnr_retry);
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let is_first = pair.not_ready == 0;
        pair.not_ready += 1;
        let (tries, device) = (pair.not_ready, pair.device);
        self.counts[device].not_ready += 1;
        if is_first {
            self.violation(format!("a message to queue pair {number}, which has no receive"));
        }
        if self.profile.is_stream {
            return self.break_off(number);
        }
        // 7 is for ever.
        if retries < 7 && tries > u32::from(retries) * 8 {
            let Some(pair) = self.pairs.get_mut(&number) else { return };
            if let Some(Packet::Message { request, .. }) = pair.arriving.pop_front() {
                self.answer(number, Answer::Refused { request, status: IBV_WC_RNR_RETRY_EXC_ERR });
            }
        }
    }

    /// A request of the peer that may not be: it is told, and this queue pair has ended too.
    fn refuse(&mut self, number: u32, request: u64, status: u32, event: u32) {
        let device = self.pairs[&number].device;
        self.happens(device, event, number);
        if !self.profile.is_stream {
            self.answer(number, Answer::Refused { request, status });
        }
        self.break_off(number);
    }

    fn answer(&mut self, number: u32, answer: Answer) {
        // On a stream nothing but the data of READs is answered.
        if self.profile.is_stream && !matches!(answer, Answer::Data { .. }) {
            return;
        }
        if let Some(peer) = self.peer_of(number).and_then(|peer| self.pairs.get_mut(&peer)) {
            peer.answers.push_back(answer);
        }
    }

    /// Some more of the READ at the head.
    fn serve(&mut self, number: u32) {
        let most = self.packet_bytes();
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let of = pair.of();
        let Some(served) = pair.serving.front_mut() else { return };
        let (request, at, rkey) = (served.request, served.at + served.moved, served.rkey);
        let bytes = (served.bytes - served.moved).min(most);
        served.moved += bytes;
        let is_last = served.moved == served.bytes;
        if bytes > 0 && !self.memory.allows(of, Touch::RemoteRead, rkey, at, bytes) {
            return self.refuse(number, request, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
        }
        if is_last {
            pair.serving.pop_front();
        }
        self.answer(number, Answer::Data { request, bytes: memory::read(at, bytes), is_last });
    }

    fn hear(&mut self, number: u32) {
        let is_cut = self.faults.is_cut;
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let Some(answer) = pair.answers.pop_front() else { return };
        if is_cut {
            pair.is_unanswered = true;
            return;
        }
        let is_broken = pair.state == IBV_QPS_ERR;
        match answer {
            // In the error state data may still come, as long as its request is not flushed.
            Answer::Data { bytes, request, .. } if is_broken => {
                if self.random.once_in(2) {
                    let _ = self.take_data(number, request, &bytes);
                }
            }
            _ if is_broken => {}
            Answer::Done { request } => {
                let before = |other: &&mut Request| other.number <= request && !other.is_read();
                pair.under_way.iter_mut().filter(before).for_each(|request| request.is_done = true);
                self.finish(number);
            }
            Answer::Refused { request, status } => {
                while pair.under_way.front().is_some_and(|head| head.number < request) {
                    // Its answer came before, as answers do.
                    pair.under_way.pop_front();
                }
                self.fail_head(number, status);
            }
            Answer::Data { request, bytes, is_last } => {
                if !self.take_data(number, request, &bytes) {
                    return self.fail_head(number, IBV_WC_LOC_PROT_ERR);
                }
                let Some(pair) = self.pairs.get_mut(&number) else { return };
                if is_last && let Some(read) = pair.under_way.iter_mut().find(|other| other.number == request) {
                    read.is_done = true;
                    self.finish(number);
                }
            }
        }
    }

    /// Puts data of a READ in its place.
    fn take_data(&mut self, number: u32, request: u64, bytes: &[u8]) -> bool {
        let first_only = self.profile.fills_first_piece_only;
        let most = self.profile.max_sge_rd as usize;
        let Some(pair) = self.pairs.get_mut(&number) else { return true };
        let of = pair.of();
        let Some(read) = pair.under_way.iter_mut().find(|other| other.number == request) else { return true };
        let moved = read.moved;
        read.moved += bytes.len() as u64;
        let mut pieces = read.pieces.clone();
        if first_only && pieces.len() > most {
            pieces.truncate(most);
            let room = memory::total(&pieces).saturating_sub(moved).min(bytes.len() as u64);
            self.violation(format!("a READ of queue pair {number} has more pieces than are filled"));
            return self.scatter(of, &pieces, moved, &bytes[..room as usize]);
        }
        self.scatter(of, &pieces, moved, bytes)
    }

    fn put_in_place(&mut self, number: u32, at: u64, rkey: u32, bytes: &[u8]) {
        let of = self.pairs[&number].of();
        if self.memory.allows(of, Touch::RemoteWrite, rkey, at, bytes.len() as u64) {
            memory::write(at, bytes);
        }
    }

    /// Writes of one queue pair that do not lie over each other may be put in place in any order.
    fn place_one(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        if pair.unplaced.is_empty() {
            return;
        }
        let chosen = self.random.below(pair.unplaced.len() as u64) as usize;
        let overlaps = |a: &(u64, u32, Vec<u8>), b: &(u64, u32, Vec<u8>)| {
            a.0 < b.0 + b.2.len() as u64 && b.0 < a.0 + a.2.len() as u64
        };
        let first = (0..chosen).find(|i| overlaps(&pair.unplaced[*i], &pair.unplaced[chosen]));
        let (at, rkey, bytes) = pair.unplaced.remove(first.unwrap_or(chosen));
        self.put_in_place(number, at, rkey, &bytes);
    }

    pub fn place_all(&mut self, number: u32) {
        while self.pairs.get(&number).is_some_and(|pair| !pair.unplaced.is_empty()) {
            self.place_one(number);
        }
    }
}

fn receive_pieces(receives: &std::collections::VecDeque<Receive>) -> Vec<ibv_sge> {
    receives.front().map(|receive| receive.pieces.clone()).unwrap_or_default()
}
