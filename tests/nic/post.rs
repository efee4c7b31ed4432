//! What is posted to a queue pair, and what of it is refused.

use super::World;
use super::memory::{self, Touch};
use super::queue_pair::{Receive, Request};
use scatter_ring::verbs::abi::*;

/// A refused post: which of the list, whether that is said, and what is returned.
pub(super) struct Refused {
    pub at: usize,
    pub names_it: bool,
    pub returned: i32,
}

impl Refused {
    fn new(at: usize, errno: i32) -> Refused {
        Refused { at, names_it: true, returned: errno }
    }
}

impl World {
    /// Takes the requests one after the other until one is refused.
    pub fn post_send(&mut self, number: u32, requests: Vec<Request>) -> Result<(), Refused> {
        let Some(device) = self.pairs.get(&number).map(|pair| pair.device) else {
            return Err(Refused::new(0, libc::EINVAL));
        };
        self.counts[device].doorbells += 1;
        let refusal = self.faults.of_post(device, requests.len());
        for (at, request) in requests.into_iter().enumerate() {
            if let Some(refusal) = refusal.filter(|refusal| refusal.at == at) {
                let returned = if refusal.is_negative { -refusal.errno } else { refusal.errno };
                return Err(Refused { at, names_it: refusal.names_it, returned });
            }
            self.take(number, request).map_err(|errno| Refused::new(at, errno))?;
        }
        Ok(())
    }

    fn take(&mut self, number: u32, mut request: Request) -> Result<(), i32> {
        if let Err((errno, why)) = self.check(number, &request) {
            self.violation(format!("post_send to queue pair {number}: {why}"));
            return Err(errno);
        }
        let Some(pair) = self.pairs.get_mut(&number) else { return Err(libc::EINVAL) };
        let held = if request.inline.is_some() { &[][..] } else { &request.pieces[..] };
        request.number = pair.take_place(false, held);
        let counts = &mut self.counts[pair.device];
        match request.opcode {
            IBV_WR_RDMA_WRITE => counts.writes += 1,
            IBV_WR_RDMA_READ => counts.reads += 1,
            _ => counts.sends += 1,
        }
        counts.signalled += u64::from(request.is_signalled());
        counts.inline += u64::from(request.inline.is_some());
        counts.pieces += request.pieces.len() as u64;
        counts.send_queue_peak = counts.send_queue_peak.max(pair.taken());
        let is_late = pair.state == IBV_QPS_ERR;
        // Where a device does not flush what comes too late, it takes it and never mentions it again.
        if !is_late || self.profile.flushes_late_posts || !self.profile.is_stream {
            let of = pair.of();
            if request.opcode == IBV_WR_SEND && request.inline.is_none() {
                request.sum = self.gather(of, &request.pieces, 0, request.bytes).map(|bytes| sum(&bytes));
            }
            if let Some(pair) = self.pairs.get_mut(&number) {
                pair.waiting.push_back(request);
            }
        } else if let Some(pair) = self.pairs.get_mut(&number) {
            pair.is_untold(false, request.number);
        }
        Ok(())
    }

    fn check(&self, number: u32, request: &Request) -> Result<(), (i32, String)> {
        let (pair, invalid) = (&self.pairs[&number], |why: String| Err((libc::EINVAL, why)));
        if !matches!(pair.state, IBV_QPS_RTS | IBV_QPS_ERR) {
            return invalid(format!("in state {}", pair.state));
        }
        if !matches!(request.opcode, IBV_WR_RDMA_WRITE | IBV_WR_RDMA_READ | IBV_WR_SEND) {
            return invalid(format!("opcode {}", request.opcode));
        }
        let known = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;
        if request.flags & !known != 0 {
            return invalid(format!("flags {:#x}", request.flags));
        }
        let (pieces, is_read) = (request.pieces.len() as u32, request.is_read());
        if pieces > pair.caps.max_send_sge {
            return invalid(format!("{pieces} pieces, of {}", pair.caps.max_send_sge));
        }
        if is_read && pieces > self.profile.max_sge_rd && !self.profile.fills_first_piece_only {
            return invalid(format!("{pieces} pieces of a READ, of {}", self.profile.max_sge_rd));
        }
        if request.inline.is_some() && (is_read || request.bytes > pair.caps.max_inline_data.into()) {
            return invalid(format!("{} bytes inline, of {}", request.bytes, pair.caps.max_inline_data));
        }
        if request.bytes > 1 << 31 {
            return invalid(format!("{} bytes", request.bytes));
        }
        // Hardware counts places that are not known to be free: what was not signalled is not free before something
        // behind it has completed, and its completion was polled.
        if pair.taken() >= pair.caps.max_send_wr.into() {
            let why = format!("the send queue of {} overran", pair.caps.max_send_wr);
            return Err((libc::ENOMEM, why));
        }
        Ok(())
    }

    pub fn post_receive(&mut self, number: u32, receive: Receive) -> Result<(), i32> {
        let Some(pair) = self.pairs.get(&number) else { return Err(libc::EINVAL) };
        let refused = if pair.state == IBV_QPS_RESET {
            Some((libc::EINVAL, "in its first state".to_owned()))
        } else if receive.pieces.len() as u32 > pair.caps.max_recv_sge {
            Some((libc::EINVAL, format!("{} pieces", receive.pieces.len())))
        } else if pair.receives_taken() >= pair.caps.max_recv_wr.into() {
            Some((libc::ENOMEM, format!("the receive queue of {} overran", pair.caps.max_recv_wr)))
        } else {
            None
        };
        if let Some((errno, why)) = refused {
            self.violation(format!("post_recv to queue pair {number}: {why}"));
            return Err(errno);
        }
        // The memory is the device's now: whoever still reads the last message there reads this.
        for piece in &receive.pieces {
            if self.memory.allows(pair.of(), Touch::Write, piece.lkey, piece.addr, piece.length.into()) {
                memory::write(piece.addr, &vec![0xDB; piece.length as usize]);
            }
        }
        let Some(pair) = self.pairs.get_mut(&number) else { return Err(libc::EINVAL) };
        let place = pair.take_place(true, &receive.pieces);
        self.counts[pair.device].receives += 1;
        if pair.state != IBV_QPS_ERR || self.profile.flushes_late_posts {
            pair.receives.push_back(Receive { number: place, ..receive });
        } else {
            pair.is_untold(true, place);
        }
        Ok(())
    }
}

/// To tell whether bytes are still what they were.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
}
