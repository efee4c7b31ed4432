//! The functions of the library, for the devices of all networks of this process.

mod cm;

use super::completions::{CompletionQueue, OLD_MAX};
use super::memory;
use super::queue_pair::{Made, QueuePair, Receive, Request};
use super::{Drive, Raw, Shared, World};
use libc::{c_int, c_void, size_t};
use scatter_ring::verbs::abi::*;
use scatter_ring::verbs::{Functions, VerbsFunctions};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// An opened device: what the library sees of it, and what it is.
#[repr(C)]
struct Opened {
    raw: ibv_context,
    shared: Arc<Shared>,
    device: usize,
}

/// The devices that there are.
static DEVICES: Mutex<Vec<Listed>> = Mutex::new(Vec::new());

struct Listed {
    /// Never freed: a list of devices that somebody still has names it.
    raw: Raw<ibv_device>,
    shared: Weak<Shared>,
    device: usize,
    /// The context that the connection manager gives out. It is never closed.
    of_cm: Option<Raw<ibv_context>>,
}

impl Listed {
    fn is_there(&self) -> bool {
        self.shared.upgrade().is_some_and(|shared| !shared.world().is_over)
    }
}

pub(super) fn new_names() -> [String; 2] {
    static NETWORKS: AtomicU32 = AtomicU32::new(0);
    let network = NETWORKS.fetch_add(1, Ordering::Relaxed);
    ["a", "b"].map(|device| format!("nic{network}{device}"))
}

pub(super) fn announce(shared: &Arc<Shared>) {
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    devices.retain(Listed::is_there);
    let is_stream = shared.world().profile.is_stream;
    for (device, name) in shared.names.iter().enumerate() {
        let mut raw: ibv_device = zeroed();
        for (to, from) in raw.name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        raw.node_type = 1;
        raw.transport_type = if is_stream { IBV_TRANSPORT_IWARP } else { IBV_TRANSPORT_IB };
        let raw = Raw(Box::into_raw(Box::new(raw)));
        devices.push(Listed { raw, shared: Arc::downgrade(shared), device, of_cm: None });
    }
}

pub(super) fn functions() -> Functions {
    let verbs = VerbsFunctions {
        ibv_get_device_list: get_device_list,
        ibv_free_device_list: free_device_list,
        ibv_open_device: open_device,
        ibv_close_device: close_device,
        ibv_query_device: query_device,
        ibv_query_port: query_port,
        ibv_query_gid: query_gid,
        ibv_alloc_pd: alloc_pd,
        ibv_dealloc_pd: dealloc_pd,
        ibv_reg_mr: reg_mr,
        ibv_dereg_mr: dereg_mr,
        ibv_create_comp_channel: create_channel,
        ibv_destroy_comp_channel: destroy_channel,
        ibv_create_cq: create_cq,
        ibv_destroy_cq: destroy_cq,
        ibv_get_cq_event: get_cq_event,
        ibv_ack_cq_events: ack_cq_events,
        ibv_create_qp: create_qp,
        ibv_modify_qp: modify_qp,
        ibv_destroy_qp: destroy_qp,
        ibv_get_async_event: get_async_event,
        ibv_ack_async_event: ack_async_event,
        ibv_fork_init: fork_init,
        _ibv_query_gid_ex: Some(query_gid_ex),
    };
    Functions { verbs, cm: Some(cm::functions()) }
}

/// A structure of integers, pointers that are null, and locks that nobody uses.
fn zeroed<T>() -> T {
    // SAFETY: it is used with the structures of the library only, for which zeros are a value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

fn fail(errno: i32) {
    // SAFETY: the word of this thread.
    unsafe { *libc::__errno_location() = errno };
}

fn new<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// # Safety
/// It came from [`new`], and is not used after this.
unsafe fn delete<T>(raw: *mut T) {
    // SAFETY: the caller vouches for it.
    drop(unsafe { Box::from_raw(raw) });
}

/// # Safety
/// It is an open context of [`open_device`].
unsafe fn opened<'a>(context: *mut ibv_context) -> &'a Opened {
    // SAFETY: the caller vouches for it; nothing changes it while it is open.
    unsafe { &*context.cast::<Opened>() }
}

impl Opened {
    fn world(&self) -> std::sync::MutexGuard<'_, World> {
        self.shared.world()
    }
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let list = devices.iter().filter(|listed| listed.is_there()).map(|listed| listed.raw.0).collect();
    // SAFETY: the caller's.
    unsafe { give_list(list, count) }
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: a list of above.
    unsafe { free_list(list) };
}

/// # Safety
/// `count` is the caller's.
unsafe fn give_list<T>(mut list: Vec<*mut T>, count: *mut c_int) -> *mut *mut T {
    // SAFETY: as the caller says.
    unsafe { *count = list.len() as c_int };
    // It ends with a null pointer.
    list.push(std::ptr::null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

/// # Safety
/// It came from [`give_list`], and is not used after this.
unsafe fn free_list<T>(list: *mut *mut T) {
    // SAFETY: it ends with a null pointer.
    unsafe {
        let count = (0..).take_while(|i| !(*list.add(*i)).is_null()).count();
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, count + 1)));
    }
}

unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let listed = devices.iter().find(|listed| listed.raw.0 == device);
    let Some((shared, number)) = listed.and_then(|listed| Some((listed.shared.upgrade()?, listed.device))) else {
        fail(libc::ENODEV);
        return std::ptr::null_mut();
    };
    context_of(device, shared, number)
}

fn context_of(device: *mut ibv_device, shared: Arc<Shared>, number: usize) -> *mut ibv_context {
    let mut raw: ibv_context = zeroed();
    raw.device = device;
    raw.async_fd = shared.world().events[number].raw_fd();
    raw.num_comp_vectors = 1;
    raw.ops.poll_cq = Some(poll_cq);
    raw.ops.req_notify_cq = Some(req_notify_cq);
    raw.ops.post_send = Some(post_send);
    raw.ops.post_recv = Some(post_recv);
    new(Opened { raw, shared, device: number }).cast()
}

unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: it is open, and is not used after this.
    unsafe { delete(context.cast::<Opened>()) };
    0
}

unsafe extern "C" fn query_device(context: *mut ibv_context, device: *mut ibv_device_attr) -> c_int {
    // SAFETY: it is open.
    let profile = unsafe { opened(context) }.world().profile;
    let attributes = ibv_device_attr {
        max_mr_size: u64::MAX,
        max_qp: 1000,
        max_qp_wr: profile.max_qp_wr as i32,
        max_sge: profile.max_sge as i32,
        max_sge_rd: profile.max_sge_rd as i32,
        max_cq: 1000,
        max_cqe: profile.max_cqe as i32,
        max_mr: 1 << 20,
        max_pd: 1000,
        max_qp_rd_atom: profile.max_qp_rd_atom as i32,
        max_qp_init_rd_atom: profile.max_qp_rd_atom as i32,
        phys_port_cnt: 1,
        ..zeroed()
    };
    // SAFETY: the caller's.
    unsafe { device.write(attributes) };
    0
}

unsafe extern "C" fn query_port(_context: *mut ibv_context, number: u8, port: *mut ibv_port_attr) -> c_int {
    if number != 1 {
        return libc::EINVAL;
    }
    let attributes = ibv_port_attr {
        state: IBV_PORT_ACTIVE,
        max_mtu: IBV_MTU_4096,
        active_mtu: IBV_MTU_1024,
        gid_tbl_len: 4,
        max_msg_sz: 1 << 31,
        active_width: 2,
        active_speed: 32,
        phys_state: 5,
        link_layer: IBV_LINK_LAYER_ETHERNET,
        ..zeroed()
    };
    // SAFETY: the caller's.
    unsafe { port.write(attributes) };
    0
}

/// The second entry of the table is of an IPv4 address, as in a software device; the others are not used.
fn gid(device: usize, index: u32) -> ibv_gid {
    match index {
        0 => std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1 + device as u16).octets(),
        1 => std::net::Ipv4Addr::new(10, 77, 0, 1 + device as u8).to_ipv6_mapped().octets(),
        _ => [0; 16],
    }
}

unsafe extern "C" fn query_gid(context: *mut ibv_context, _port: u8, index: c_int, to: *mut ibv_gid) -> c_int {
    // SAFETY: it is open, and the caller's.
    unsafe { to.write(gid(opened(context).device, index as u32)) };
    0
}

unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    _flags: u32,
    _bytes: size_t,
) -> c_int {
    // SAFETY: it is open.
    let raw = gid(unsafe { opened(context) }.device, gid_index);
    if raw == [0; 16] {
        return libc::ENODATA;
    }
    let (gid, gid_type) = (ibv_gid_aligned { raw }, IBV_GID_TYPE_ROCE_V2);
    // SAFETY: the caller's.
    unsafe { entry.write(ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex: 1 }) };
    0
}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: it is open.
    let handle = unsafe { opened(context) }.world().new_handle();
    new(ibv_pd { context, handle })
}

unsafe extern "C" fn dealloc_pd(domain: *mut ibv_pd) -> c_int {
    // SAFETY: it is there, and so is its context.
    let (context, handle) = unsafe { (opened((*domain).context), (*domain).handle) };
    let mut world = context.world();
    if world.memory.uses_domain(handle) || world.pairs.values().any(|pair| pair.domain == handle) {
        world.violation("a protection domain was freed while it was used".to_owned());
        return libc::EBUSY;
    }
    drop(world);
    // SAFETY: it is not used after this.
    unsafe { delete(domain) };
    0
}

unsafe extern "C" fn reg_mr(domain: *mut ibv_pd, addr: *mut c_void, length: size_t, access: c_int) -> *mut ibv_mr {
    // SAFETY: it is there, and so is its context.
    let (raw, number) = unsafe { ((*domain).context, (*domain).handle) };
    // SAFETY: as above.
    let context = unsafe { opened(raw) };
    let (device, mut world) = (context.device, context.world());
    let at = addr.expose_provenance() as u64;
    let handle = world.new_handle();
    let is_failing = world.faults.of_registration(device);
    if is_failing || !world.memory.register(handle, (device, number), (at, length as u64), access as u32) {
        fail(if is_failing { libc::ENOMEM } else { libc::EINVAL });
        return std::ptr::null_mut();
    }
    let counts = &mut world.counts[device];
    counts.registered += 1;
    counts.registrations += 1;
    counts.registrations_peak = counts.registrations_peak.max(counts.registrations);
    let (lkey, rkey) = (memory::lkey(handle), memory::rkey(handle));
    new(ibv_mr { context: raw, pd: domain, addr, length, handle, lkey, rkey })
}

unsafe extern "C" fn dereg_mr(region: *mut ibv_mr) -> c_int {
    // SAFETY: it is there, and so is its context.
    let (context, handle) = unsafe { (opened((*region).context), (*region).handle) };
    let mut world = context.world();
    // What names it and is not known to have ended may still touch it.
    if world.pairs.values().any(|pair| pair.device == context.device && pair.holds(memory::lkey(handle))) {
        world.violation("memory was deregistered that a request names which is not known to have ended".to_owned());
    }
    world.memory.deregister(handle);
    world.counts[context.device].registrations -= 1;
    drop(world);
    // SAFETY: it is not used after this.
    unsafe { delete(region) };
    0
}

unsafe extern "C" fn create_channel(raw: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: it is open.
    let context = unsafe { opened(raw) };
    let mut world = context.world();
    let handle = world.new_handle();
    let fd = world.events[context.device].open_channel(handle);
    // The count is the library's own: here it is the handle.
    new(ibv_comp_channel { context: raw, fd, refcnt: handle as c_int })
}

unsafe extern "C" fn destroy_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: it is there, and so is its context.
    let (context, handle) = unsafe { (opened((*channel).context), (*channel).refcnt as u32) };
    let mut world = context.world();
    if world.queues.values().any(|queue| queue.channel == Some(handle)) {
        world.violation("a completion channel was destroyed while it was used".to_owned());
        return libc::EBUSY;
    }
    world.events[context.device].close_channel(handle);
    drop(world);
    // SAFETY: it is not used after this.
    unsafe { delete(channel) };
    0
}

unsafe extern "C" fn create_cq(
    raw: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: it is open.
    let context = unsafe { opened(raw) };
    let mut world = context.world();
    if entries < 1 || entries as u32 > world.profile.max_cqe || vector != 0 {
        fail(libc::EINVAL);
        return std::ptr::null_mut();
    }
    let handle = world.new_handle();
    let queue = new(ibv_cq { context: raw, channel, cq_context, handle, cqe: entries, ..zeroed() });
    // SAFETY: the caller's, if there is one.
    let channel = (!channel.is_null()).then(|| unsafe { (*channel).refcnt as u32 });
    let made = CompletionQueue::new(Raw(queue), context.device, channel, entries as usize);
    world.queues.insert(handle, made);
    queue
}

unsafe extern "C" fn destroy_cq(queue: *mut ibv_cq) -> c_int {
    // SAFETY: it is there, and so is its context.
    let (context, handle) = unsafe { (opened((*queue).context), (*queue).handle) };
    let mut world = context.world();
    if world.pairs.values().any(|pair| pair.send_queue == handle || pair.receive_queue == handle) {
        world.violation("a completion queue was destroyed while it was used".to_owned());
        return libc::EBUSY;
    }
    let gone = world.queues.remove(&handle);
    if let Some(gone) = &gone {
        let ghosts = &mut world.ghosts[context.device];
        ghosts.extend(gone.old.iter().map(|entry| entry.wc));
        let too_many = ghosts.len().saturating_sub(4 * OLD_MAX);
        ghosts.drain(..too_many);
    }
    let unacknowledged = gone.map_or(0, |queue| queue.unacknowledged);
    if unacknowledged > 0 {
        // The library would wait for ever.
        world.violation("a completion queue was destroyed whose events are not acknowledged".to_owned());
    }
    world.events[context.device].forget(queue.addr());
    drop(world);
    // SAFETY: it is not used after this.
    unsafe { delete(queue) };
    0
}

unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    user: *mut *mut c_void,
) -> c_int {
    // SAFETY: it is there, and so is its context.
    let (context, handle) = unsafe { (opened((*channel).context), (*channel).refcnt as u32) };
    let mut world = context.world();
    let Some(next) = world.events[context.device].next_of_channel(handle) else {
        fail(libc::EAGAIN);
        return -1;
    };
    if let Some(queue) = world.queues.values_mut().find(|queue| queue.raw.0 == next.0) {
        queue.unacknowledged += 1;
    }
    // SAFETY: the caller's; the queue is there, because its events are not acknowledged.
    unsafe {
        queue.write(next.0);
        user.write((*next.0).cq_context);
    }
    0
}

unsafe extern "C" fn ack_cq_events(queue: *mut ibv_cq, count: u32) {
    // SAFETY: it is there, and so is its context.
    let (context, handle) = unsafe { (opened((*queue).context), (*queue).handle) };
    let mut world = context.world();
    let Some(queue) = world.queues.get_mut(&handle) else { return };
    if queue.unacknowledged < count {
        world.violation("more events were acknowledged than were told".to_owned());
    } else {
        queue.unacknowledged -= count;
    }
}

unsafe extern "C" fn poll_cq(queue: *mut ibv_cq, most: c_int, into: *mut ibv_wc) -> c_int {
    // SAFETY: it is there, and so is its context.
    let (context, handle) = unsafe { (opened((*queue).context), (*queue).handle) };
    let mut world = context.world();
    if world.drive == Drive::Polls {
        for _ in 0..1 + world.random.below(STEPS_OF_A_POLL) {
            world.step();
        }
    }
    let Some(completions) = world.poll(handle, usize::try_from(most).unwrap_or(0)) else { return -1 };
    for (i, completion) in completions.iter().enumerate() {
        // SAFETY: the caller has room for as many as it asked for.
        unsafe { into.add(i).write(*completion) };
    }
    completions.len() as c_int
}

unsafe extern "C" fn req_notify_cq(queue: *mut ibv_cq, _solicited_only: c_int) -> c_int {
    // SAFETY: it is there, and so is its context.
    let (context, handle) = unsafe { (opened((*queue).context), (*queue).handle) };
    context.world().arm(handle);
    0
}

unsafe extern "C" fn create_qp(domain: *mut ibv_pd, settings: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: it is there, and so is its context; the settings are the caller's.
    let (raw_context, handle, settings) = unsafe { ((*domain).context, (*domain).handle, &*settings) };
    // SAFETY: as above.
    let context = unsafe { opened(raw_context) };
    // SAFETY: the queues are there.
    let (send_queue, receive_queue) = unsafe { ((*settings.send_cq).handle, (*settings.recv_cq).handle) };
    let (mut world, caps) = (context.world(), settings.cap);
    let limits = world.profile;
    let is_possible = settings.qp_type == IBV_QPT_RC
        && settings.sq_sig_all == 0
        && caps.max_send_wr.max(caps.max_recv_wr) <= limits.max_qp_wr
        && caps.max_send_sge.max(caps.max_recv_sge) <= limits.max_sge
        && caps.max_inline_data <= limits.max_inline;
    if !is_possible {
        fail(libc::EINVAL);
        return std::ptr::null_mut();
    }
    world.next_incarnation += 1;
    let (incarnation, number) = (world.next_incarnation, world.new_number());
    let raw = new(ibv_qp {
        context: raw_context,
        pd: domain,
        send_cq: settings.send_cq,
        recv_cq: settings.recv_cq,
        handle: incarnation as u32,
        qp_num: number,
        qp_type: IBV_QPT_RC,
        ..zeroed()
    });
    let made = Made {
        raw: Raw(raw),
        number,
        incarnation,
        device: context.device,
        domain: handle,
        send_queue,
        receive_queue,
        caps,
    };
    world.pairs.insert(number, QueuePair::new(made));
    for queue in [send_queue, receive_queue] {
        world.check_depth(queue);
    }
    raw
}

unsafe extern "C" fn modify_qp(pair: *mut ibv_qp, settings: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: it is there, and so is its context; the settings are the caller's.
    let (context, number, settings) = unsafe { (opened((*pair).context), (*pair).qp_num, &*settings) };
    let mut world = context.world();
    if !world.is_same(number, pair) {
        return libc::EIO;
    }
    world.modify(number, settings, mask as u32).err().unwrap_or(0)
}

unsafe extern "C" fn destroy_qp(pair: *mut ibv_qp) -> c_int {
    // SAFETY: it is there, and so is its context.
    let (context, number) = unsafe { (opened((*pair).context), (*pair).qp_num) };
    let mut world = context.world();
    // One that has vanished is no more to be accounted for, and its number may be another one's.
    if world.is_same(number, pair) {
        world.leave(number, "destroyed");
        world.tell_peer_of_end(number);
        world.pairs.remove(&number);
    }
    world.events[context.device].forget(pair.addr());
    drop(world);
    // SAFETY: it is not used after this.
    unsafe { delete(pair) };
    0
}

unsafe extern "C" fn post_send(pair: *mut ibv_qp, first: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: it is there, and so is its context.
    let (context, number) = unsafe { (opened((*pair).context), (*pair).qp_num) };
    let (mut requests, mut places, mut next) = (Vec::new(), Vec::new(), first);
    while !next.is_null() {
        places.push(next);
        // SAFETY: a request of the caller's list.
        unsafe {
            requests.push(request(&*next));
            next = (*next).next;
        }
    }
    let mut world = context.world();
    if !world.is_same(number, pair) {
        // SAFETY: the caller's.
        unsafe { bad.write(first) };
        return libc::EIO;
    }
    match world.post_send(number, requests) {
        Ok(()) => 0,
        Err(refused) => {
            if refused.names_it {
                // SAFETY: the caller's.
                unsafe { bad.write(places[refused.at]) };
            }
            refused.returned
        }
    }
}

/// # Safety
/// Its pieces are there, and those of an inline one can be read.
unsafe fn request(posted: &ibv_send_wr) -> Request {
    let count = usize::try_from(posted.num_sge).unwrap_or(0);
    // SAFETY: the caller vouches for it.
    let pieces: Vec<ibv_sge> = (0..count).map(|i| unsafe { *posted.sg_list.add(i) }).collect();
    let is_inline = posted.send_flags & IBV_SEND_INLINE != 0;
    let inline = is_inline.then(|| pieces.iter().flat_map(|p| memory::read(p.addr, p.length.into())).collect());
    Request {
        number: 0,
        id: posted.wr_id,
        opcode: posted.opcode,
        flags: posted.send_flags,
        bytes: memory::total(&pieces),
        pieces,
        inline,
        sum: None,
        remote: posted.rdma.remote_addr,
        rkey: posted.rdma.rkey,
        moved: 0,
        is_done: false,
    }
}

unsafe extern "C" fn post_recv(pair: *mut ibv_qp, first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: it is there, and so is its context.
    let (context, number) = unsafe { (opened((*pair).context), (*pair).qp_num) };
    let mut world = context.world();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: a receive of the caller's list, whose pieces are there.
        let (receive, after) = unsafe {
            let posted = &*next;
            let count = usize::try_from(posted.num_sge).unwrap_or(0);
            let pieces = (0..count).map(|i| *posted.sg_list.add(i)).collect();
            (Receive { number: 0, id: posted.wr_id, pieces }, posted.next)
        };
        let taken = if world.is_same(number, pair) { world.post_receive(number, receive) } else { Err(libc::EIO) };
        if let Err(errno) = taken {
            // SAFETY: the caller's.
            unsafe { bad.write(next) };
            return errno;
        }
        next = after;
    }
    0
}

unsafe extern "C" fn get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    // SAFETY: it is open.
    let context = unsafe { opened(context) };
    let Some(next) = context.world().events[context.device].next() else {
        fail(libc::EAGAIN);
        return -1;
    };
    // SAFETY: the caller's.
    unsafe { event.write(next) };
    0
}

unsafe extern "C" fn ack_async_event(_event: *mut ibv_async_event) {}

unsafe extern "C" fn fork_init() -> c_int {
    0
}

impl World {
    /// True if the number is that of this queue pair still.
    fn is_same(&self, number: u32, raw: *mut ibv_qp) -> bool {
        self.pairs.get(&number).is_some_and(|pair| pair.raw.0 == raw)
    }

    fn new_number(&mut self) -> u32 {
        const FIRST: u32 = 0x11;
        if self.profile.reuses_numbers {
            let free = (FIRST..).find(|number| !self.pairs.contains_key(number));
            return free.unwrap_or(FIRST);
        }
        FIRST + self.next_incarnation as u32
    }

    /// A completion queue has an entry for everything that can complete: on an error each request and receive does.
    fn check_depth(&mut self, queue: u32) {
        let Some(depth) = self.queues.get(&queue).map(|queue| queue.depth as u64) else { return };
        let of_pair = |pair: &QueuePair| {
            let sends = if pair.send_queue == queue { pair.caps.max_send_wr } else { 0 };
            let receives = if pair.receive_queue == queue { pair.caps.max_recv_wr } else { 0 };
            u64::from(sends) + u64::from(receives)
        };
        let needed: u64 = self.pairs.values().map(of_pair).sum();
        if needed > depth {
            self.violation(format!("a completion queue of {depth} entries, for {needed} requests and receives"));
        }
    }
}

/// Few, so that polls find all there can be between two posts.
const STEPS_OF_A_POLL: u64 = 16;
