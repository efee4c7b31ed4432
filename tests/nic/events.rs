//! What a descriptor tells: events of a device, and events of completion queues on a channel.

use super::{Raw, World};
use rustix::event::EventfdFlags;
use rustix::fd::{AsRawFd, OwnedFd};
use scatter_ring::verbs::abi::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_LID_CHANGE, ibv_async_event, ibv_cq,
};
use std::collections::{BTreeMap, VecDeque};

/// Of one device.
pub(super) struct Events {
    fd: OwnedFd,
    waiting: VecDeque<(u32, usize)>,
    channels: BTreeMap<u32, Channel>,
}

/// A completion channel.
struct Channel {
    fd: OwnedFd,
    waiting: VecDeque<Raw<ibv_cq>>,
}

/// One read takes one event.
fn descriptor() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE).expect("a descriptor")
}

fn add_one(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Does not wait, if whoever has the descriptor said so. False: there is none.
fn take_one(fd: &OwnedFd) -> bool {
    rustix::io::read(fd, &mut [0; 8]).is_ok()
}

impl Events {
    pub fn new() -> Events {
        Events { fd: descriptor(), waiting: VecDeque::new(), channels: BTreeMap::new() }
    }

    pub fn raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    pub fn next(&mut self) -> Option<ibv_async_event> {
        // The descriptor first: without an event it says that there is none.
        if !take_one(&self.fd) {
            return None;
        }
        let (event_type, element) = self.waiting.pop_front()?;
        Some(ibv_async_event { element: std::ptr::with_exposed_provenance_mut(element), event_type })
    }

    pub fn open_channel(&mut self, handle: u32) -> i32 {
        let channel = Channel { fd: descriptor(), waiting: VecDeque::new() };
        let fd = channel.fd.as_raw_fd();
        self.channels.insert(handle, channel);
        fd
    }

    pub fn close_channel(&mut self, handle: u32) {
        self.channels.remove(&handle);
    }

    pub fn tell_channel(&mut self, handle: u32, queue: Raw<ibv_cq>) {
        if let Some(channel) = self.channels.get_mut(&handle) {
            channel.waiting.push_back(queue);
            add_one(&channel.fd);
        }
    }

    pub fn next_of_channel(&mut self, handle: u32) -> Option<Raw<ibv_cq>> {
        let channel = self.channels.get_mut(&handle)?;
        if take_one(&channel.fd) { channel.waiting.pop_front() } else { None }
    }

    /// Events about what is gone are not told.
    pub fn forget(&mut self, element: usize) {
        let before = self.waiting.len();
        self.waiting.retain(|(_, about)| *about != element);
        (self.waiting.len()..before).for_each(|_| _ = take_one(&self.fd));
        for channel in self.channels.values_mut() {
            let before = channel.waiting.len();
            channel.waiting.retain(|queue| queue.0.addr() != element);
            (channel.waiting.len()..before).for_each(|_| _ = take_one(&channel.fd));
        }
    }
}

impl World {
    /// An event about a completion queue by its handle, a queue pair by its number, or a port.
    pub fn happens(&mut self, device: usize, kind: u32, about: u32) {
        let element = match kind {
            IBV_EVENT_CQ_ERR => self.queues.get(&about).map(|queue| queue.raw.0.expose_provenance()),
            IBV_EVENT_DEVICE_FATAL..=IBV_EVENT_LID_CHANGE => Some(about as usize),
            _ => self.pairs.get(&about).map(|pair| pair.raw.0.expose_provenance()),
        };
        // One about what is gone is not told.
        let Some(element) = element else { return };
        self.events[device].waiting.push_back((kind, element));
        add_one(&self.events[device].fd);
    }
}
