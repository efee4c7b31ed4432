//! The binding with functions that write down what they are asked for: what reaches a device, what is believed of its
//! answers, and what is left alone in a forked child.

use scatter_ring::verbs::abi::*;
use scatter_ring::verbs::cm::EventChannel;
use scatter_ring::verbs::{
    Access, AsyncEvent, Completion, CompletionChannel, CompletionQueue, Context, EventKind, Functions, GidType,
    GlobalPath, Library, MemoryRegion, Mtu, NoRdma, NotAdded, Path, Piece, PostStorage, ProtectionDomain, QueuePair,
    QueuePairCaps, RemoteAddress, RtrSettings, RtsSettings, VerbsFunctions, WcOpcode, WcStatus,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd;
use std::ptr::null_mut;
use std::sync::Arc;

/// What the device of this thread was asked for, and how it will answer.
#[derive(Default)]
struct Device {
    calls: Vec<&'static str>,
    /// One entry per doorbell.
    posted: Vec<Vec<Seen>>,
    receives: Vec<Seen>,
    changes: Vec<(ibv_qp_attr, u32)>,
    /// What the next post returns, and where it says that it stopped.
    refusal: Option<(c_int, Bad)>,
    /// What the next poll finds, and what it returns if that is not their number.
    completions: Vec<ibv_wc>,
    poll_returns: Option<c_int>,
    events: VecDeque<(u32, *mut c_void)>,
    cq_events: u32,
    /// Refuse the next call that gives something, with this error number.
    refuse_next: c_int,
}

/// Where a refused post says that it stopped.
#[derive(Clone, Copy)]
enum Bad {
    At(usize),
    Null,
    Behind,
    Within,
}

/// A request as a device finds it.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    id: u64,
    opcode: u32,
    flags: u32,
    pieces: Vec<ibv_sge>,
    inline: Vec<u8>,
    remote: (u64, u32),
}

thread_local! {
    static DEVICE: RefCell<Device> = RefCell::default();
}

fn device<R>(with: impl FnOnce(&mut Device) -> R) -> R {
    DEVICE.with_borrow_mut(with)
}

fn called(call: &'static str) {
    device(|device| device.calls.push(call));
}

fn set_errno(number: c_int) {
    // SAFETY: the error number of this thread.
    unsafe { libc::__errno_location().write(number) };
}

/// True if the call is to be refused; sets errno.
fn is_refused() -> bool {
    let number = device(|device| std::mem::take(&mut device.refuse_next));
    set_errno(number);
    number != 0
}

/// A structure of zeros, with what a stub fills in. Leaked: tests are short.
fn made<T>(fill: impl FnOnce(&mut T)) -> *mut T {
    // SAFETY: the structures of the binding hold integers, pointers and optional functions: 0 is a value of each.
    let mut zeroed: Box<T> = Box::new(unsafe { std::mem::zeroed() });
    fill(&mut zeroed);
    Box::into_raw(zeroed)
}

const NAME: &str = "stub0";
const QP_NUMBER: u32 = 41;

extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    if is_refused() {
        return null_mut();
    }
    let device = made(|device: &mut ibv_device| {
        for (to, from) in device.name.iter_mut().zip(NAME.bytes()) {
            *to = from as _;
        }
    });
    // SAFETY: the place that the binding gave.
    unsafe { count.write(1) };
    Box::leak(Box::new([device, null_mut()])).as_mut_ptr()
}
extern "C" fn free_device_list(_: *mut *mut ibv_device) {}
extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap().into_raw_fd();
    made(|context: &mut ibv_context| {
        context.device = device;
        context.async_fd = fd;
        context.ops.poll_cq = Some(poll_cq);
        context.ops.req_notify_cq = Some(req_notify_cq);
        context.ops.post_send = Some(post_send);
        context.ops.post_recv = Some(post_recv);
    })
}
extern "C" fn close_device(_: *mut ibv_context) -> c_int {
    called("close_device");
    0
}
extern "C" fn query_device(_: *mut ibv_context, into: *mut ibv_device_attr) -> c_int {
    // SAFETY: the place that the binding gave, zeroed.
    unsafe {
        (*into).max_sge = 6;
        (*into).max_sge_rd = 1;
        (*into).max_qp_wr = -5;
        (*into).phys_port_cnt = 1;
    }
    0
}
extern "C" fn query_port(_: *mut ibv_context, _: u8, into: *mut ibv_port_attr) -> c_int {
    // SAFETY: the place that the binding gave.
    unsafe {
        // It leaves the last word alone.
        assert_eq!(((*into).flags, (*into).port_cap_flags2), (0, 0));
        (*into).state = 77;
        (*into).gid_tbl_len = 4;
        (*into).link_layer = IBV_LINK_LAYER_ETHERNET;
        (*into).active_mtu = IBV_MTU_4096;
    }
    0
}
extern "C" fn query_gid(_: *mut ibv_context, _: u8, index: c_int, into: *mut ibv_gid) -> c_int {
    // SAFETY: the place that the binding gave.
    unsafe { into.write([if index == 2 { 7 } else { 0 }; 16]) };
    0
}
extern "C" fn query_gid_ex(
    _: *mut ibv_context,
    _: u32,
    index: u32,
    into: *mut ibv_gid_entry,
    _: u32,
    bytes: usize,
) -> c_int {
    assert_eq!(bytes, size_of::<ibv_gid_entry>());
    if index != 3 {
        return libc::ENODATA;
    }
    // SAFETY: the place that the binding gave.
    unsafe {
        (*into).gid.raw = [9; 16];
        (*into).gid_type = 55;
    }
    0
}
extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    made(|pd: &mut ibv_pd| pd.context = context)
}
extern "C" fn dealloc_pd(_: *mut ibv_pd) -> c_int {
    called("dealloc_pd");
    0
}
extern "C" fn reg_mr(_: *mut ibv_pd, _: *mut c_void, _: usize, _: c_int) -> *mut ibv_mr {
    if is_refused() {
        return null_mut();
    }
    made(|mr: &mut ibv_mr| (mr.lkey, mr.rkey) = (21, 22))
}
extern "C" fn dereg_mr(_: *mut ibv_mr) -> c_int {
    called("dereg_mr");
    device(|device| std::mem::take(&mut device.refuse_next))
}
extern "C" fn create_comp_channel(_: *mut ibv_context) -> *mut ibv_comp_channel {
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap().into_raw_fd();
    made(|channel: &mut ibv_comp_channel| channel.fd = fd)
}
extern "C" fn destroy_comp_channel(_: *mut ibv_comp_channel) -> c_int {
    called("destroy_comp_channel");
    0
}
extern "C" fn create_cq(
    context: *mut ibv_context,
    entries: c_int,
    _: *mut c_void,
    _: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    made(|cq: &mut ibv_cq| (cq.context, cq.cqe) = (context, entries + 3))
}
extern "C" fn destroy_cq(_: *mut ibv_cq) -> c_int {
    called("destroy_cq");
    0
}
extern "C" fn get_cq_event(_: *mut ibv_comp_channel, queue: *mut *mut ibv_cq, _: *mut *mut c_void) -> c_int {
    if device(|device| device.cq_events == 0) {
        set_errno(libc::EAGAIN);
        return -1;
    }
    // SAFETY: the place that the binding gave.
    unsafe { queue.write(null_mut()) };
    0
}
extern "C" fn ack_cq_events(_: *mut ibv_cq, count: u32) {
    device(|device| device.cq_events -= count);
}
extern "C" fn create_qp(pd: *mut ibv_pd, settings: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: what the binding gave.
    let context = unsafe {
        assert_eq!(((*settings).qp_type, (*settings).sq_sig_all), (IBV_QPT_RC, 0));
        assert_eq!((*settings).send_cq, (*settings).recv_cq);
        (*settings).cap.max_inline_data = 32;
        (*pd).context
    };
    made(|qp: &mut ibv_qp| (qp.context, qp.qp_num) = (context, QP_NUMBER))
}
extern "C" fn modify_qp(_: *mut ibv_qp, settings: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: what the binding gave.
    device(|device| device.changes.push((unsafe { settings.read() }, mask as u32)));
    device(|device| std::mem::take(&mut device.refuse_next))
}
extern "C" fn destroy_qp(_: *mut ibv_qp) -> c_int {
    called("destroy_qp");
    0
}
extern "C" fn get_async_event(_: *mut ibv_context, into: *mut ibv_async_event) -> c_int {
    let Some((kind, element)) = device(|device| device.events.pop_front()) else {
        set_errno(libc::EAGAIN);
        return -1;
    };
    // SAFETY: the place that the binding gave.
    unsafe { into.write(ibv_async_event { element, event_type: kind }) };
    0
}
extern "C" fn ack_async_event(_: *mut ibv_async_event) {
    called("ack_async_event");
}
extern "C" fn fork_init() -> c_int {
    0
}

extern "C" fn poll_cq(_: *mut ibv_cq, room: c_int, into: *mut ibv_wc) -> c_int {
    called("poll_cq");
    device(|device| {
        let some: Vec<ibv_wc> = device.completions.drain(..device.completions.len().min(room as usize)).collect();
        for (i, completion) in some.iter().enumerate() {
            // SAFETY: the binding gave room for that many.
            unsafe { into.add(i).write(*completion) };
        }
        device.poll_returns.unwrap_or(some.len() as c_int)
    })
}
extern "C" fn req_notify_cq(_: *mut ibv_cq, solicited: c_int) -> c_int {
    assert_eq!(solicited, 0);
    called("req_notify_cq");
    0
}

extern "C" fn post_send(_: *mut ibv_qp, first: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    let (mut seen, mut next) = (Vec::new(), first);
    let mut places = Vec::new();
    while !next.is_null() {
        // SAFETY: a list as the manual page describes it.
        let request = unsafe { next.read() };
        let pieces: Vec<ibv_sge> =
            // SAFETY: likewise.
            (0..request.num_sge as usize).map(|i| unsafe { request.sg_list.add(i).read() }).collect();
        let is_inline = request.send_flags & IBV_SEND_INLINE != 0;
        let copied = |piece: &ibv_sge| -> Vec<u8> {
            let at = std::ptr::with_exposed_provenance::<u8>(piece.addr as usize);
            // SAFETY: inline bytes are there during the call.
            (0..piece.length as usize).map(|i| unsafe { at.add(i).read() }).collect()
        };
        let inline = if is_inline { pieces.iter().flat_map(copied).collect() } else { Vec::new() };
        let remote = (request.rdma.remote_addr, request.rdma.rkey);
        let (id, opcode, flags) = (request.wr_id, request.opcode, request.send_flags);
        seen.push(Seen { id, opcode, flags, pieces, inline, remote });
        places.push(next);
        next = request.next;
    }
    let Some((returned, stopped)) = device(|device| device.refusal.take()) else {
        device(|device| device.posted.push(seen));
        return 0;
    };
    let place = match stopped {
        Bad::At(i) => places[i],
        Bad::Null => null_mut(),
        Bad::Behind => places.last().unwrap().wrapping_add(1),
        Bad::Within => places[0].wrapping_byte_add(8),
    };
    // SAFETY: the place that the binding gave.
    unsafe { bad.write(place) };
    set_errno(libc::EPIPE);
    returned
}
extern "C" fn post_recv(_: *mut ibv_qp, first: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: a list as the manual page describes it.
    let (request, pieces) = unsafe { (first.read(), vec![(*first).sg_list.read()]) };
    assert!(request.next.is_null() && request.num_sge == 1);
    let seen = Seen { id: request.wr_id, opcode: 0, flags: 0, pieces, inline: Vec::new(), remote: (0, 0) };
    device(|device| device.receives.push(seen));
    device(|device| std::mem::take(&mut device.refuse_next))
}

fn functions() -> Functions {
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
        ibv_create_comp_channel: create_comp_channel,
        ibv_destroy_comp_channel: destroy_comp_channel,
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
    Functions { verbs, cm: None }
}

fn library() -> Arc<Library> {
    // SAFETY: the functions above do what the binding may expect.
    unsafe { Library::from_functions(functions()) }
}

fn context() -> Arc<Context> {
    Context::open(&library(), NAME).unwrap()
}

const CAPS: QueuePairCaps =
    QueuePairCaps { send_requests: 8, receive_requests: 4, send_pieces: 3, receive_pieces: 1, inline_bytes: 16 };

fn pair() -> (QueuePair, CompletionQueue) {
    let context = context();
    let completions = CompletionQueue::new(&context, 16, None).unwrap();
    let domain = ProtectionDomain::new(&context).unwrap();
    (QueuePair::new(&domain, &completions, CAPS).unwrap(), completions)
}

const PIECES: [Piece; 3] = [
    Piece { address: 0x1000, bytes: 10, lkey: 1 },
    Piece { address: 0x2000, bytes: 20, lkey: 2 },
    Piece { address: 0x3000, bytes: 30, lkey: 3 },
];
const REMOTE: RemoteAddress = RemoteAddress { address: 0xabc000, rkey: 99 };

fn is_one_line(text: &str) -> bool {
    text.starts_with("no RDMA: ") && !text.contains('\n') && text.len() < 200
}

#[test]
fn a_library_that_is_not_there_is_no_failure_but_a_line() {
    let none = Library::load_files("libibverbs_of_nobody.so.1", "librdmacm_of_nobody.so.1").err().unwrap();
    assert!(matches!(none, NoRdma::NotInstalled { .. }), "{none:?}");
    let text = none.to_string();
    assert!(is_one_line(&text) && text.contains("libibverbs_of_nobody.so.1") && text.contains("install"), "{text}");
}

#[test]
fn a_library_that_lacks_a_function_is_named_with_it() {
    let none = Library::load_files("libc.so.6", "librdmacm_of_nobody.so.1").err().unwrap();
    assert!(matches!(none, NoRdma::TooOld { .. }), "{none:?}");
    let text = none.to_string();
    assert!(is_one_line(&text) && text.contains("libc.so.6 lacks ibv_get_device_list"), "{text}");
}

/// With the library or without, with devices or without: it says which.
#[test]
fn this_machine_says_in_one_line_what_it_lacks() {
    match Library::load() {
        Err(none) => assert!(is_one_line(&none.to_string()), "{none}"),
        Ok(library) => match library.devices() {
            Ok(devices) => assert!(!devices.is_empty()),
            Err(none) => {
                assert!(matches!(none, NoRdma::NoDevices), "{none:?}");
                assert!(is_one_line(&none.to_string()), "{none}");
                let error = Context::open(&library, "mlx5_0").unwrap_err().to_string();
                assert!(error.contains("no RDMA device"), "{error}");
            }
        },
    }
}

#[test]
fn a_kernel_without_rdma_has_no_devices() {
    let library = library();
    device(|device| device.refuse_next = libc::ENOSYS);
    assert!(matches!(library.devices(), Err(NoRdma::NoDevices)));
    device(|device| device.refuse_next = libc::EACCES);
    let denied = library.devices().unwrap_err();
    assert!(matches!(&denied, NoRdma::Failed(error) if error.errno() == Some(libc::EACCES)), "{denied:?}");
    assert_eq!(library.devices().unwrap()[0].name, NAME);
}

#[test]
fn without_librdmacm_a_connection_says_so() {
    let error = EventChannel::new(&library()).unwrap_err().to_string();
    assert!(error.contains("librdmacm.so.1 is not installed"), "{error}");
    assert!(!library().has_cm());
}

#[test]
fn numbers_of_a_device_may_be_any() {
    let context = context();
    assert_eq!((context.limits().requests, context.limits().pieces, context.limits().read_pieces), (0, 6, 1));
    let port = context.port(1).unwrap();
    assert_eq!((port.state.name(), port.state.to_string()), (None, "unknown (77)".to_owned()));
    assert_eq!(port.active_mtu.bytes(), Some(4096));
    assert_eq!((Mtu(0).bytes(), Mtu(6).bytes(), Mtu(u32::MAX).bytes()), (None, None, None));
    assert_eq!((WcStatus(9999).name(), WcStatus::FLUSHED.name().is_some()), (None, true));
    // Entries that are not in use are left out.
    let gids = context.gids(1).unwrap();
    assert_eq!((gids.len(), gids[0].index, gids[0].gid.0, gids[0].kind), (1, 3, [9; 16], GidType(55)));
    let mut old = functions();
    old.verbs._ibv_query_gid_ex = None;
    // SAFETY: as in `library`.
    let gids = Context::open(&unsafe { Library::from_functions(old) }, NAME).unwrap().gids(1).unwrap();
    assert_eq!((gids.len(), gids[0].index, gids[0].kind), (1, 2, GidType::ROCE_V1));
}

#[test]
fn a_batch_is_one_list_and_one_call() {
    let (mut queue_pair, _completions) = pair();
    let mut storage = PostStorage::new(8, 8, 32);
    // Twice, because the storage of the first is used again.
    for round in 0..2 {
        let mut batch = queue_pair.start(&mut storage);
        batch.write(1, &PIECES, REMOTE, false).unwrap();
        batch.read(2, &PIECES[1..2], REMOTE, true).unwrap();
        batch.fence();
        batch.send(3, &[], false).unwrap();
        let mut bytes = *b"hello";
        batch.send_inline(4, &bytes, false).unwrap();
        bytes.fill(0);
        batch.write_inline(5, b"there", REMOTE, true).unwrap();
        assert_eq!((batch.len(), batch.is_full(), batch.is_empty()), (5, false, false));
        // SAFETY: the device of this test touches no memory.
        unsafe { batch.submit() }.unwrap();
        let posted = device(|device| device.posted.clone());
        assert_eq!(posted.len(), round + 1);
        let sge = |piece: &Piece| ibv_sge { addr: piece.address, length: piece.bytes, lkey: piece.lkey };
        let none = Seen { id: 0, opcode: 0, flags: 0, pieces: vec![], inline: vec![], remote: (0, 0) };
        let (to, signalled) = ((REMOTE.address, REMOTE.rkey), IBV_SEND_SIGNALED);
        let mut seen = posted.last().unwrap().clone();
        // Where the inline bytes lie is the binding's business.
        for request in seen.iter_mut().filter(|request| !request.inline.is_empty()) {
            assert_eq!((request.pieces.len(), request.pieces[0].length), (1, request.inline.len() as u32));
            request.pieces.clear();
        }
        let expected = [
            Seen {
                id: 1,
                opcode: IBV_WR_RDMA_WRITE,
                pieces: PIECES.iter().map(sge).collect(),
                remote: to,
                ..none.clone()
            },
            Seen {
                id: 2,
                opcode: IBV_WR_RDMA_READ,
                flags: signalled,
                pieces: vec![sge(&PIECES[1])],
                remote: to,
                ..none.clone()
            },
            Seen { id: 3, opcode: IBV_WR_SEND, flags: IBV_SEND_FENCE, ..none.clone() },
            Seen { id: 4, opcode: IBV_WR_SEND, flags: IBV_SEND_INLINE, inline: b"hello".to_vec(), ..none.clone() },
            Seen {
                id: 5,
                opcode: IBV_WR_RDMA_WRITE,
                flags: IBV_SEND_INLINE | signalled,
                inline: b"there".to_vec(),
                remote: to,
                ..none
            },
        ];
        assert_eq!(seen, expected);
    }
}

#[test]
fn a_batch_that_is_dropped_or_empty_posts_nothing() {
    let (mut queue_pair, _completions) = pair();
    let mut storage = PostStorage::new(8, 8, 0);
    let mut batch = queue_pair.start(&mut storage);
    batch.write(1, &PIECES, REMOTE, true).unwrap();
    drop(batch);
    // SAFETY: there is nothing in it.
    unsafe { queue_pair.start(&mut storage).submit() }.unwrap();
    assert!(device(|device| device.posted.is_empty()));
    // And the next one has only its own.
    let mut batch = queue_pair.start(&mut storage);
    batch.send(2, &PIECES[..1], true).unwrap();
    // SAFETY: the device of this test touches no memory.
    unsafe { batch.submit() }.unwrap();
    assert_eq!(device(|device| device.posted[0].iter().map(|request| request.id).collect::<Vec<_>>()), [2]);
}

#[test]
fn what_does_not_fit_is_not_added() {
    let (mut queue_pair, _completions) = pair();
    assert_eq!((queue_pair.caps().inline_bytes, queue_pair.read_pieces()), (32, 1));
    let mut storage = PostStorage::new(100, 30, 40);
    let mut batch = queue_pair.start(&mut storage);
    assert_eq!(batch.write(0, &[PIECES[0]; 4], REMOTE, true), Err(NotAdded::TooManyPieces));
    assert_eq!(batch.read(0, &PIECES[..2], REMOTE, true), Err(NotAdded::TooManyPieces));
    assert_eq!(batch.send_inline(0, &[0; 33], true), Err(NotAdded::InlineTooLong));
    let long = [Piece { bytes: u32::MAX, ..PIECES[0] }];
    assert_eq!(batch.write(0, &long, REMOTE, true), Err(NotAdded::TooLong));
    batch.send_inline(1, &[1; 32], true).unwrap();
    assert_eq!(batch.send_inline(0, &[0; 9], true), Err(NotAdded::Full));
    for id in 2..9 {
        batch.write(id, &PIECES[..1], REMOTE, false).unwrap();
    }
    // The queue pair takes 8, whatever the storage holds.
    assert!(batch.is_full());
    assert_eq!(batch.write(9, &[], REMOTE, true), Err(NotAdded::Full));
    // SAFETY: the device of this test touches no memory.
    unsafe { batch.submit() }.unwrap();
    assert_eq!(device(|device| device.posted[0].iter().map(|r| r.id).collect::<Vec<_>>()), [1, 2, 3, 4, 5, 6, 7, 8]);
    let mut small = PostStorage::new(8, 2, 0);
    let mut batch = queue_pair.start(&mut small);
    assert_eq!(batch.write(1, &PIECES, REMOTE, true), Err(NotAdded::Full));
    assert_eq!(batch.send_inline(1, &[1], true), Err(NotAdded::Full));
    batch.write(1, &PIECES[..2], REMOTE, true).unwrap();
}

/// What was posted before a refusal will complete, and the rest never will: the count decides who is waited for.
#[test]
fn a_refused_batch_says_exactly_how_many_were_posted() {
    let (mut queue_pair, _completions) = pair();
    let mut storage = PostStorage::new(8, 8, 0);
    let mut refused = |count: u64, returned: c_int, bad: Bad| {
        device(|device| device.refusal = Some((returned, bad)));
        let mut batch = queue_pair.start(&mut storage);
        for id in 0..count {
            batch.write(id, &PIECES[..1], REMOTE, true).unwrap();
        }
        // SAFETY: the device of this test touches no memory.
        let failed = unsafe { batch.submit() }.unwrap_err();
        (failed.posted as u64, failed.is_exact, failed.error.errno())
    };
    for count in 1..=8 {
        for stopped in 0..count {
            let posted = refused(count, libc::ENOMEM, Bad::At(stopped as usize));
            assert_eq!(posted, (stopped, true, Some(libc::ENOMEM)));
        }
        // Nobody knows: the whole batch may be under way.
        for bad in [Bad::Null, Bad::Behind, Bad::Within] {
            assert_eq!(refused(count, libc::EIO, bad), (count, false, Some(libc::EIO)));
        }
    }
    // siw gives the negative of an error number, others -1 and errno.
    assert_eq!(refused(2, -libc::EINVAL, Bad::At(0)), (0, true, Some(libc::EINVAL)));
    assert_eq!(refused(2, -1, Bad::At(1)), (1, true, Some(libc::EPIPE)));
    assert_eq!(refused(2, c_int::MIN, Bad::At(1)).0, 1);
    assert!(device(|device| device.posted.is_empty()));
}

#[test]
fn a_receive_is_posted_as_it_was_asked_for() {
    let (mut queue_pair, _completions) = pair();
    let mut memory = [0u8; 64];
    let at = memory.as_mut_ptr();
    // SAFETY: the device of this test touches no memory.
    unsafe { queue_pair.post_receive(77, at, 64, 5) }.unwrap();
    let seen = device(|device| device.receives.remove(0));
    assert_eq!((seen.id, seen.pieces), (77, vec![ibv_sge { addr: at.addr() as u64, length: 64, lkey: 5 }]));
    device(|device| device.refuse_next = libc::ENOMEM);
    // SAFETY: as above.
    let full = unsafe { queue_pair.post_receive(78, at, 64, 5) }.unwrap_err();
    assert_eq!((full.call(), full.errno()), ("ibv_post_recv", Some(libc::ENOMEM)));
}

fn garbage(status: u32) -> ibv_wc {
    ibv_wc {
        wr_id: 5,
        status,
        opcode: 0xdead,
        vendor_err: 4,
        byte_len: 0xdead_beef,
        imm_data: 1,
        qp_num: QP_NUMBER,
        src_qp: 2,
        wc_flags: 3,
        pkey_index: 4,
        slid: 5,
        sl: 6,
        dlid_path_bits: 7,
    }
}

#[test]
fn of_an_error_only_what_is_valid_can_be_read() {
    let (_queue_pair, mut completions) = pair();
    device(|device| device.completions = vec![garbage(IBV_WC_REM_ACCESS_ERR), garbage(IBV_WC_SUCCESS), garbage(4711)]);
    let mut room = [Completion::EMPTY; 2];
    let found = completions.poll(&mut room).unwrap();
    assert_eq!(found.len(), 2);
    let (error, success) = (found[0], found[1]);
    assert_eq!((error.id(), error.status(), error.queue_pair()), (5, WcStatus::REMOTE_ACCESS, QP_NUMBER));
    assert_eq!(error.vendor_error(), 4);
    assert!(error.success().is_none());
    let text = format!("{error:?}");
    assert!(!text.contains("byte_len") && !text.contains("3735928559") && !text.contains("opcode"), "{text}");
    let rest = success.success().unwrap();
    assert_eq!((rest.opcode(), rest.opcode().name(), rest.byte_len()), (WcOpcode(0xdead), None, 0xdead_beef));
    // An unknown status is an error, whatever it means.
    let found = completions.poll(&mut room).unwrap();
    assert_eq!((found.len(), found[0].status().to_string()), (1, "unknown (4711)".to_owned()));
    assert!(found[0].success().is_none());
    assert!(completions.poll(&mut room).unwrap().is_empty());
    assert!(completions.poll(&mut []).unwrap().is_empty());
}

#[test]
fn a_completion_queue_that_fails_or_lies_is_an_error() {
    let (_queue_pair, mut completions) = pair();
    assert_eq!(completions.depth(), 19);
    for returned in [-1, -22, 3, c_int::MAX, c_int::MIN] {
        device(|device| device.poll_returns = Some(returned));
        let error = completions.poll(&mut [Completion::EMPTY; 2]).unwrap_err();
        assert_eq!(error.call(), "ibv_poll_cq");
    }
}

#[test]
fn events_are_taken_until_there_are_none() {
    let context = context();
    let channel = CompletionChannel::new(&context).unwrap();
    let completions = CompletionQueue::new(&context, 4, Some(&channel)).unwrap();
    completions.request_notification().unwrap();
    assert_eq!(channel.take_events().unwrap(), 0);
    device(|device| device.cq_events = 3);
    assert_eq!(channel.take_events().unwrap(), 3);
    // Not for ever, if more come than one queue could give.
    device(|device| device.cq_events = 100);
    assert_eq!((channel.take_events().unwrap(), channel.take_events().unwrap()), (64, 36));
    for fd in [channel.fd(), context.event_fd()] {
        assert!(rustix::fs::fcntl_getfl(fd).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
    }
}

#[test]
fn a_device_event_names_what_it_is_about_and_is_acknowledged() {
    let context = context();
    assert_eq!(context.next_event().unwrap(), None);
    let queue_pair: *mut ibv_qp = made(|qp: &mut ibv_qp| qp.qp_num = 1234);
    let port = std::ptr::without_provenance_mut(0x5555_0000_0003);
    device(|device| {
        device.events.extend([
            (IBV_EVENT_QP_ACCESS_ERR, queue_pair.cast()),
            (IBV_EVENT_QP_LAST_WQE_REACHED, queue_pair.cast()),
            (IBV_EVENT_PORT_ERR, port),
            (IBV_EVENT_GID_CHANGE, port),
            (IBV_EVENT_CQ_ERR, std::ptr::dangling_mut()),
            (IBV_EVENT_SRQ_ERR, std::ptr::dangling_mut()),
            (IBV_EVENT_DEVICE_FATAL, null_mut()),
            (777, std::ptr::dangling_mut()),
        ]);
    });
    let events: Vec<AsyncEvent> = std::iter::from_fn(|| context.next_event().unwrap()).collect();
    let about: Vec<_> = events.iter().map(|event| (event.queue_pair, event.port)).collect();
    let (pair, port, none) = ((Some(1234), None), (None, Some(3)), (None, None));
    assert_eq!(about, [pair, pair, port, port, none, none, none, none]);
    assert_eq!(events[0].kind, EventKind::QUEUE_PAIR_ACCESS_ERROR);
    assert_eq!(events[7].kind.to_string(), "unknown (777)");
    assert_eq!(device(|device| device.calls.iter().filter(|call| **call == "ack_async_event").count()), 8);
}

#[test]
fn each_state_is_reached_with_what_it_needs() {
    let (mut queue_pair, _completions) = pair();
    queue_pair.to_init(2, Access::REMOTE_READ).unwrap();
    let global = GlobalPath { gid: scatter_ring::verbs::Gid([3; 16]), own_index: 4, hop_limit: 5, traffic_class: 6 };
    let path = Path { port: 2, lid: 8, global: Some(global), service_level: 1 };
    let settings = RtrSettings {
        path_mtu: Mtu::BYTES_1024,
        dest_qp: 9,
        rq_psn: 10,
        max_dest_rd_atomic: 11,
        min_rnr_timer: 12,
        path,
    };
    queue_pair.to_rtr(&settings).unwrap();
    queue_pair.to_rtr(&RtrSettings { path: Path { global: None, ..path }, ..settings }).unwrap();
    let last = RtsSettings { timeout: 13, retry_count: 6, rnr_retry: 5, sq_psn: 14, max_rd_atomic: 15 };
    queue_pair.to_rts(&last).unwrap();
    queue_pair.to_error().unwrap();
    let changes = device(|device| std::mem::take(&mut device.changes));
    let masks: Vec<(u32, u32)> = changes.iter().map(|(settings, mask)| (settings.qp_state, *mask)).collect();
    // As the manual page of ibv_modify_qp lists them for reliable connections.
    let init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    let rtr = [IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_DEST_QPN, IBV_QP_RQ_PSN].into_iter().sum::<u32>()
        + IBV_QP_STATE
        + IBV_QP_MAX_DEST_RD_ATOMIC
        + IBV_QP_MIN_RNR_TIMER;
    let rts = [IBV_QP_SQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY].into_iter().sum::<u32>()
        + IBV_QP_STATE
        + IBV_QP_TIMEOUT;
    let states = [(IBV_QPS_INIT, init), (IBV_QPS_RTR, rtr), (IBV_QPS_RTR, rtr), (IBV_QPS_RTS, rts)];
    assert_eq!(masks, [&states[..], &[(IBV_QPS_ERR, IBV_QP_STATE)]].concat());
    let (first, second, third, fourth) = (&changes[0].0, &changes[1].0, &changes[2].0, &changes[3].0);
    assert_eq!((first.port_num, first.qp_access_flags), (2, IBV_ACCESS_REMOTE_READ));
    assert_eq!((second.path_mtu, second.dest_qp_num, second.rq_psn), (IBV_MTU_1024, 9, 10));
    assert_eq!((second.max_dest_rd_atomic, second.min_rnr_timer), (11, 12));
    let way = second.ah_attr;
    assert_eq!((way.port_num, way.dlid, way.sl, way.is_global), (2, 8, 1, 1));
    assert_eq!((way.grh.dgid.raw, way.grh.sgid_index, way.grh.hop_limit, way.grh.traffic_class), ([3; 16], 4, 5, 6));
    assert_eq!((third.ah_attr.is_global, third.ah_attr.grh.dgid.raw), (0, [0; 16]));
    assert_eq!((fourth.timeout, fourth.retry_cnt, fourth.rnr_retry), (13, 6, 5));
    assert_eq!((fourth.sq_psn, fourth.max_rd_atomic), (14, 15));
    device(|device| device.refuse_next = libc::EINVAL);
    let refused = queue_pair.to_error().unwrap_err();
    assert!(refused.to_string().starts_with("ibv_modify_qp to ERR: "), "{refused}");
}

/// Whatever order they are dropped in, they are destroyed from the top down.
#[test]
fn each_handle_keeps_what_it_stands_on() {
    let context = context();
    let channel = CompletionChannel::new(&context).unwrap();
    let completions = CompletionQueue::new(&context, 4, Some(&channel)).unwrap();
    let domain = ProtectionDomain::new(&context).unwrap();
    let queue_pair = QueuePair::new(&domain, &completions, CAPS).unwrap();
    let mut memory = [0u8; 8];
    // SAFETY: the device of this test touches no memory.
    let region = unsafe { MemoryRegion::register(&domain, memory.as_mut_ptr(), 8, Access::NONE) }.unwrap();
    assert_eq!((region.lkey(), region.rkey()), (21, 22));
    assert!(!format!("{region:?}").contains("22"));
    drop((context, channel, completions, domain));
    assert!(device(|device| device.calls.is_empty()));
    drop(region);
    drop(queue_pair);
    let calls = device(|device| std::mem::take(&mut device.calls));
    let place = |call| calls.iter().position(|made| *made == call).unwrap_or_else(|| panic!("{call}: {calls:?}"));
    assert_eq!(calls.len(), 6);
    assert!(place("dereg_mr") < place("dealloc_pd") && place("destroy_qp") < place("dealloc_pd"));
    assert!(place("destroy_qp") < place("destroy_cq") && place("destroy_cq") < place("destroy_comp_channel"));
    assert_eq!(calls.last(), Some(&"close_device"));
}

#[test]
fn a_refused_registration_says_what_may_be_wrong() {
    let domain = ProtectionDomain::new(&context()).unwrap();
    let mut memory = [0u8; 8];
    device(|device| device.refuse_next = libc::ENOMEM);
    // SAFETY: the device of this test touches no memory.
    let refused = unsafe { MemoryRegion::register(&domain, memory.as_mut_ptr(), 8, Access::NONE) }.unwrap_err();
    assert!(refused.to_string().contains("ulimit -l"), "{refused}");
    // SAFETY: as above.
    let region = unsafe { MemoryRegion::register(&domain, memory.as_mut_ptr(), 8, Access::REMOTE_WRITE) }.unwrap();
    device(|device| device.refuse_next = libc::EBUSY);
    assert_eq!(region.deregister().unwrap_err().errno(), Some(libc::EBUSY));
    // It was tried once, and not again by dropping it.
    assert_eq!(device(|device| device.calls.clone()), ["dereg_mr"]);
}

#[test]
fn devices_are_not_mixed() {
    let [one, other] = [context(), context()];
    let channel = CompletionChannel::new(&one).unwrap();
    assert!(CompletionQueue::new(&other, 4, Some(&channel)).is_err());
    let completions = CompletionQueue::new(&one, 4, Some(&channel)).unwrap();
    let domain = ProtectionDomain::new(&other).unwrap();
    let error = QueuePair::new(&domain, &completions, CAPS).unwrap_err();
    assert!(error.to_string().contains("another device"), "{error}");
    assert!(CompletionQueue::new(&one, u32::MAX, None).is_err());
}

/// A forked child shares the device's memory with its parent: one call of it would corrupt both.
#[test]
fn a_forked_child_is_refused_and_destroys_nothing() {
    let library = library();
    let (mut queue_pair, mut completions) = pair();
    let context = completions.context().clone();
    let channel = CompletionChannel::new(&context).unwrap();
    // SAFETY: the child calls only what is listed here, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut storage = PostStorage::new(2, 2, 0);
            let mut batch = queue_pair.start(&mut storage);
            batch.send(1, &[], true).unwrap();
            // SAFETY: nothing is posted.
            let failed = unsafe { batch.submit() }.unwrap_err();
            assert!(failed.posted == 0 && failed.is_exact && failed.error.to_string().contains("fork"));
            assert!(completions.poll(&mut [Completion::EMPTY; 2]).is_err());
            assert!(completions.request_notification().is_err());
            assert!(channel.take_events().is_err() && context.next_event().is_err() && context.port(1).is_err());
            assert!(queue_pair.to_error().is_err() && ProtectionDomain::new(&context).is_err());
            assert!(library.devices().is_err());
            drop((queue_pair, completions, channel, context));
            assert!(device(|device| device.calls.is_empty() && device.posted.is_empty()));
            // What it opens itself is its own.
            let (mut own, mut own_completions) = pair();
            own.to_error().unwrap();
            assert!(own_completions.poll(&mut [Completion::EMPTY; 2]).unwrap().is_empty());
        }));
        // SAFETY: it ends without running what the parent registered.
        unsafe { libc::_exit(i32::from(refused.is_err())) };
    }
    let mut status = 0;
    // SAFETY: the child of above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child failed: {status}");
    // The parent goes on.
    queue_pair.to_error().unwrap();
    assert!(completions.poll(&mut [Completion::EMPTY; 2]).unwrap().is_empty());
}
