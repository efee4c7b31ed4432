//! iWARP: queue pairs are connected by rdma_cm, one connection for each lane. The side that was dialled listens at an address
//! of its device, at a port that it tells the other by the offer, with a token that who connects has to bring.

use super::offer::{Place, Step, TOKEN_BYTES};
use super::talk::{Talk, Woken};
use super::{RETRIES, Reason, Stop, Trouble};
use crate::link::verbs::nic::Nic;
use crate::link::verbs::{Disconnects, Endpoint};
use crate::verbs::cm::{CmEvent, CmId, CmKey, ConnectSettings, EventChannel};
use crate::verbs::{CmEventKind, VerbsError};
use rustix::fd::BorrowedFd;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The side that waits.
pub(super) struct Listening {
    listener: CmId,
    channel: Arc<EventChannel>,
    pub place: Place,
}

/// The connections of a link, which end with it.
struct Connections {
    channel: Arc<EventChannel>,
    ids: Vec<Arc<CmId>>,
}

impl Disconnects for Connections {
    fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    fn is_over(&mut self) -> bool {
        let is_ours = |key: CmKey| self.ids.iter().any(|id| id.key() == key);
        loop {
            match self.channel.next_event() {
                Ok(None) => return false,
                Ok(Some(event)) if is_an_end(event.kind) && is_ours(event.id) => return true,
                // Somebody who comes late is rejected when the event is dropped.
                Ok(Some(_)) => {}
                Err(_) => return true,
            }
        }
    }
}

/// A lane on its way.
struct Lane {
    id: Arc<CmId>,
    is_routed: bool,
    is_established: bool,
}

impl Listening {
    /// # Errors
    /// The device has no address, or what rdma_cm says.
    pub fn open(nic: &Nic, lanes: usize) -> Result<Listening, Trouble> {
        let Some(ip) = nic.address else { return Err(Trouble::new(Reason::Setup, "the device has no IP address")) };
        let channel = EventChannel::new(&nic.library)?;
        let listener = CmId::new(&channel)?;
        listener.bind(SocketAddr::new(ip, 0))?;
        listener.listen(lanes as i32)?;
        let mut token = [0; TOKEN_BYTES];
        getrandom::fill(&mut token).map_err(|error| Trouble::new(Reason::Setup, error.to_string()))?;
        let place = Place { address: SocketAddr::new(ip, listener.port()), token };
        Ok(Listening { listener, channel, place })
    }

    /// Takes a connection for each lane, from who brings the token.
    ///
    /// # Errors
    /// They do not come in time; or the other side gives up.
    pub fn accept(
        self,
        nic: &Nic,
        endpoint: &mut Endpoint,
        lanes: usize,
        reads_out: u8,
        talk: &mut Talk,
        until: Instant,
    ) -> Result<Box<dyn Disconnects>, Stop> {
        let ids = self.take_requests(lanes, talk, until)?;
        let accept = |id| Lane::accept(id, nic, endpoint, reads_out);
        let mut taken = ids.into_iter().map(accept).collect::<Result<Vec<Lane>, Stop>>()?;
        while !taken.iter().all(|lane| lane.is_established) {
            let event = next_event(&self.channel, talk, until)?;
            let known = taken.iter_mut().find(|lane| lane.id.key() == event.id);
            known.map_or(Ok(()), |lane| lane.take(&event))?;
        }
        Ok(finish(self.channel, taken))
    }

    /// A request for each lane, in the order of lanes.
    fn take_requests(&self, lanes: usize, talk: &mut Talk, until: Instant) -> Result<Vec<CmId>, Stop> {
        let mut taken: Vec<Option<CmId>> = (0..lanes).map(|_| None).collect();
        while !taken.iter().all(Option::is_some) {
            let event = next_event(&self.channel, talk, until)?;
            if event.kind != CmEventKind::CONNECT_REQUEST || event.id != self.listener.key() {
                continue;
            }
            let lane = lane_of(&event.private_data, &self.place.token).filter(|lane| *lane < lanes);
            let free = lane.and_then(|lane| taken.get_mut(lane)).filter(|place| place.is_none());
            // Dropping a request rejects it: that of a stranger, of a lane that there is already.
            if let Some(place) = free {
                *place = event.request;
            }
        }
        Ok(taken.into_iter().flatten().collect())
    }
}

/// Connects every lane to who listens there.
///
/// # Errors
/// Nobody does, or does not take them in time; or the other side gives up.
pub(super) fn connect(
    place: &Place,
    nic: &Nic,
    endpoint: &mut Endpoint,
    lanes: usize,
    reads_in: u8,
    talk: &mut Talk,
    until: Instant,
) -> Result<Box<dyn Disconnects>, Stop> {
    let channel = EventChannel::new(&nic.library)?;
    // Else the kernel chooses the device by the way to the other side, and there may be several.
    let own = nic.address.map(|ip| SocketAddr::new(ip, 0)).filter(|own| own.is_ipv4() == place.address.is_ipv4());
    let begin = |_| {
        let id = Arc::new(CmId::new(&channel)?);
        id.resolve_address(own, place.address, RESOLVE_WITHIN)?;
        Ok(Lane { id, is_routed: false, is_established: false })
    };
    let mut begun = (0..lanes).map(begin).collect::<Result<Vec<Lane>, VerbsError>>()?;
    let (mut errors, mut connecting) = (0, 0);
    while !begun.iter().all(|lane| lane.is_established) {
        let event = next_event(&channel, talk, until)?;
        let Some(lane) = begun.iter_mut().find(|lane| lane.id.key() == event.id) else { continue };
        match event.kind {
            CmEventKind::ADDRESS_RESOLVED => lane.id.resolve_route(left(until))?,
            CmEventKind::ROUTE_RESOLVED => lane.is_routed = true,
            CmEventKind::ADDRESS_ERROR if errors < ERRORS_MAX => {
                errors += 1;
                lane.id.resolve_address(own, place.address, RESOLVE_WITHIN)?;
            }
            _ => lane.take(&event)?,
        }
        // The lanes of an endpoint are added in their order.
        while let Some(lane) = begun.get(connecting).filter(|lane| lane.is_routed) {
            add(&lane.id, nic, endpoint)?;
            let hello = hello(connecting, &place.token);
            lane.id.connect(&settings(nic, &hello, nic.reads_started.min(reads_in)))?;
            connecting += 1;
        }
    }
    Ok(finish(channel, begun))
}

/// Makes the queue pair of the next lane. Its receives are posted before it is connected: what is posted when the other side
/// has broken off already never comes back.
fn add(id: &Arc<CmId>, nic: &Nic, endpoint: &mut Endpoint) -> Result<(), Trouble> {
    let made = id.create_queue_pair(&nic.domain, endpoint.completion_queue(), endpoint.caps())?;
    Ok(endpoint.add_lane(made)?)
}

impl Lane {
    fn accept(id: CmId, nic: &Nic, endpoint: &mut Endpoint, reads_out: u8) -> Result<Lane, Stop> {
        let id = Arc::new(id);
        add(&id, nic, endpoint)?;
        id.accept(&ConnectSettings {
            responder_resources: nic.reads_served.min(reads_out),
            ..settings(nic, &[], nic.reads_started)
        })?;
        Ok(Lane { id, is_routed: true, is_established: false })
    }

    fn take(&mut self, event: &CmEvent) -> Result<(), Trouble> {
        match event.kind {
            CmEventKind::ESTABLISHED => self.is_established = true,
            kind if is_an_end(kind) => {
                return Err(Trouble::new(Reason::Connect, format!("{kind} (status {})", event.status)));
            }
            _ => {}
        }
        Ok(())
    }
}

fn finish(channel: Arc<EventChannel>, lanes: Vec<Lane>) -> Box<dyn Disconnects> {
    Box::new(Connections { channel, ids: lanes.into_iter().map(|lane| lane.id).collect() })
}

fn next_event(channel: &Arc<EventChannel>, talk: &mut Talk, until: Instant) -> Result<CmEvent, Stop> {
    loop {
        if let Some(event) = channel.next_event()? {
            return Ok(event);
        }
        if talk.wait(Step::Ready, &[channel.fd()], until)? == Woken::Late {
            return Err(Trouble::new(Reason::Connect, "rdma_cm gives no answer").into());
        }
    }
}

fn settings<'a>(nic: &Nic, private_data: &'a [u8], initiator_depth: u8) -> ConnectSettings<'a> {
    ConnectSettings {
        private_data,
        responder_resources: nic.reads_served,
        initiator_depth,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
    }
}

/// What ends a connection, or an attempt at one.
fn is_an_end(kind: CmEventKind) -> bool {
    const ENDS: [CmEventKind; 8] = [
        CmEventKind::ADDRESS_ERROR,
        CmEventKind::ROUTE_ERROR,
        CmEventKind::CONNECT_ERROR,
        CmEventKind::UNREACHABLE,
        CmEventKind::REJECTED,
        CmEventKind::DISCONNECTED,
        CmEventKind::DEVICE_REMOVAL,
        CmEventKind::TIMEWAIT_EXIT,
    ];
    ENDS.contains(&kind)
}

/// What who connects brings: which lane it is, and the token.
fn hello(lane: usize, token: &[u8; TOKEN_BYTES]) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..4].copy_from_slice(HELLO);
    bytes[4] = lane as u8;
    bytes[8..].copy_from_slice(token);
    bytes
}

/// The lane, if it is all as [`hello`] makes it. Some transports put zeros behind it.
fn lane_of(private_data: &[u8], token: &[u8; TOKEN_BYTES]) -> Option<usize> {
    let (brought, rest) = private_data.split_first_chunk::<HELLO_BYTES>()?;
    let lane = usize::from(brought[4]);
    (*brought == hello(lane, token) && rest.iter().all(|byte| *byte == 0)).then_some(lane)
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// A neighbour's answer that comes while it is asked for is missed by the kernel, which looks again when this time is over.
const RESOLVE_WITHIN: Duration = Duration::from_millis(200);
/// Of all lanes together.
const ERRORS_MAX: u32 = 32;
const HELLO: &[u8; 4] = b"SRRD";
const HELLO_BYTES: usize = 8 + TOKEN_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_bring_the_token_and_a_lane_is_nobody() {
        let token = [7; TOKEN_BYTES];
        let whole = hello(3, &token);
        assert_eq!(lane_of(&whole, &token), Some(3));
        assert_eq!(lane_of(&[&whole[..], &[0; 20]].concat(), &token), Some(3));
        assert_eq!(lane_of(&[&whole[..], &[0, 1]].concat(), &token), None);
        assert_eq!(lane_of(&whole, &[8; TOKEN_BYTES]), None);
        for at in (0..HELLO_BYTES).filter(|at| *at != 4) {
            let mut bytes = whole;
            bytes[at] ^= 1;
            assert_eq!(lane_of(&bytes, &token), None, "byte {at}");
            assert_eq!(lane_of(&whole[..at], &token), None, "{at} bytes");
        }
    }
}
