//! States of queue pairs.

use super::World;
use super::wire::Packet;
use scatter_ring::verbs::abi::*;

/// What must be given for a state.
fn needed(from: u32, to: u32) -> Option<u32> {
    Some(match (from, to) {
        (IBV_QPS_RESET, IBV_QPS_INIT) => IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        (IBV_QPS_INIT, IBV_QPS_RTR) => {
            IBV_QP_STATE
                | IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER
        }
        (IBV_QPS_RTR, IBV_QPS_RTS) => {
            IBV_QP_STATE
                | IBV_QP_SQ_PSN
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_MAX_QP_RD_ATOMIC
        }
        (_, IBV_QPS_ERR | IBV_QPS_RESET) => IBV_QP_STATE,
        _ => return None,
    })
}

impl World {
    pub fn modify(&mut self, number: u32, settings: &ibv_qp_attr, mask: u32) -> Result<(), i32> {
        let Some(pair) = self.pairs.get(&number) else { return Err(libc::EINVAL) };
        let (from, to, device) = (pair.state, settings.qp_state, pair.device);
        if self.faults.refused_states[device] == Some(to) {
            return Err(libc::EIO);
        }
        if needed(from, to) != Some(mask) || !self.can_be(to, settings) {
            self.violation(format!("queue pair {number} from state {from} to {to} with {mask:#x}"));
            return Err(libc::EINVAL);
        }
        match to {
            IBV_QPS_ERR => self.break_off(number),
            IBV_QPS_RESET => self.start_again(number),
            _ => self.connect(number, settings),
        }
        Ok(())
    }

    fn can_be(&self, state: u32, settings: &ibv_qp_attr) -> bool {
        let reads_max = self.profile.max_qp_rd_atom;
        match state {
            IBV_QPS_INIT => settings.port_num == 1,
            // On Ethernet there is no way but by GIDs.
            IBV_QPS_RTR => {
                settings.ah_attr.is_global == 1
                    && settings.ah_attr.port_num == 1
                    && (IBV_MTU_256..=IBV_MTU_4096).contains(&settings.path_mtu)
                    && u32::from(settings.max_dest_rd_atomic) <= reads_max
            }
            IBV_QPS_RTS => u32::from(settings.max_rd_atomic) <= reads_max && settings.retry_cnt <= 7,
            _ => true,
        }
    }

    fn connect(&mut self, number: u32, settings: &ibv_qp_attr) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        pair.state = settings.qp_state;
        match settings.qp_state {
            IBV_QPS_INIT => pair.access = settings.qp_access_flags,
            IBV_QPS_RTR => {
                pair.peer = Some(settings.dest_qp_num);
                pair.reads_served_max = settings.max_dest_rd_atomic.into();
            }
            _ => {
                pair.reads_max = settings.max_rd_atomic.into();
                pair.rnr_retry = settings.rnr_retry;
            }
        }
    }

    /// What is posted will be flushed, in steps. What has left still arrives, and what has come may still be put in place
    /// until the last receive is flushed.
    pub fn break_off(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        if std::mem::replace(&mut pair.state, IBV_QPS_ERR) != IBV_QPS_ERR {
            pair.serving.clear();
            self.tell_peer_of_end(number);
        }
    }

    /// The connection is a stream, whose other side sees its end behind everything that was sent.
    pub fn tell_peer_of_end(&mut self, number: u32) {
        if self.profile.is_stream
            && let Some(peer) = self.peer_of(number)
            && let Some(peer) = self.pairs.get_mut(&peer)
        {
            peer.arriving.push_back(Packet::Closed);
        }
    }

    fn start_again(&mut self, number: u32) {
        self.leave(number, "reset");
        if let Some(pair) = self.pairs.get_mut(&number) {
            pair.reset();
        }
    }

    /// A queue pair is to be reset or destroyed: what was posted must be known to have ended, if anything ever went by it.
    pub fn leave(&mut self, number: u32, how: &str) {
        let Some(pair) = self.pairs.get(&number) else { return };
        let outstanding = pair.outstanding();
        if outstanding > 0 && pair.was_used() {
            self.violation(format!("queue pair {number} was {how} with {outstanding} requests not accounted for"));
        }
    }

    /// As if its process were killed.
    pub fn vanish(&mut self, number: u32) {
        self.tell_peer_of_end(number);
        // What it has acknowledged is in place.
        self.place_all(number);
        self.pairs.remove(&number);
    }
}
