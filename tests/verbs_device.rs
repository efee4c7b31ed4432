//! The binding on real devices: what the manual pages promise holds, on each device that this machine has.
//!
//! Every test needs an RDMA device with an address of this machine: `cargo test --test verbs_device -- --ignored`.

use scatter_ring::verbs::cm::{CmEvent, CmId, CmKey, ConnectSettings, EventChannel};
use scatter_ring::verbs::{
    Access, AsyncEvent, CmEventKind, Completion, CompletionChannel, CompletionQueue, Context, EventKind, GidEntry,
    GidType, GlobalPath, Library, LinkLayer, MemoryRegion, Path, Piece, PortState, PostStorage, ProtectionDomain,
    QueuePair, QueuePairCaps, RemoteAddress, RtrSettings, RtsSettings, Transport, WcOpcode, WcStatus,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);
const BYTES: usize = 1 << 20;
/// More than any of the tests has under way, and no more than siw takes.
const CAPS: QueuePairCaps =
    QueuePairCaps { send_requests: 64, receive_requests: 16, send_pieces: 4, receive_pieces: 1, inline_bytes: 64 };

/// One end of a connection with memory that the other may read and write.
struct End {
    queue_pair: QueuePair,
    completions: CompletionQueue,
    channel: Arc<CompletionChannel>,
    storage: PostStorage,
    region: MemoryRegion,
    /// Never freed: the device may write it as long as the test runs.
    memory: *mut u8,
}

/// What an end is made of, before its queue pair.
struct Parts {
    domain: Arc<ProtectionDomain>,
    completions: CompletionQueue,
    channel: Arc<CompletionChannel>,
}

impl Parts {
    fn new(context: &Arc<Context>) -> Parts {
        let channel = CompletionChannel::new(context).unwrap();
        let completions = CompletionQueue::new(context, 256, Some(&channel)).unwrap();
        assert!(completions.depth() >= 256);
        Parts { domain: ProtectionDomain::new(context).unwrap(), completions, channel }
    }

    fn end(self, queue_pair: QueuePair) -> End {
        let memory = vec![0u8; BYTES].leak().as_mut_ptr();
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        // SAFETY: leaked memory, which is reached by its address only from here on.
        let region = unsafe { MemoryRegion::register(&self.domain, memory, BYTES, access) }.unwrap();
        let storage = PostStorage::new(64, 64, 256);
        End { queue_pair, completions: self.completions, channel: self.channel, storage, region, memory }
    }
}

impl End {
    fn fill(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= BYTES);
        // SAFETY: within the memory, and nothing is under way there.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.add(at), bytes.len()) };
    }

    fn bytes(&self, at: usize, count: usize) -> Vec<u8> {
        assert!(at + count <= BYTES);
        // SAFETY: within the memory; a device may write it, which is why each byte is read for itself.
        (at..at + count).map(|i| unsafe { self.memory.add(i).read_volatile() }).collect()
    }

    fn piece(&self, at: usize, bytes: usize) -> Piece {
        Piece::new(self.memory.wrapping_add(at), bytes as u32, self.region.lkey())
    }

    fn remote(&self, at: usize) -> RemoteAddress {
        RemoteAddress { address: self.memory.addr() as u64 + at as u64, rkey: self.region.rkey() }
    }

    fn receive(&mut self, id: u64, at: usize, bytes: usize) {
        let place = self.memory.wrapping_add(at);
        // SAFETY: registered memory that is never freed.
        unsafe { self.queue_pair.post_receive(id, place, bytes as u32, self.region.lkey()) }.unwrap();
    }

    /// The next completions, of which there must be so many in time.
    fn completions(&mut self, count: usize) -> Vec<Completion> {
        let start = Instant::now();
        let mut all = Vec::new();
        while all.len() < count {
            assert!(start.elapsed() < LIMIT, "{} of {count} completions: {all:?}", all.len());
            let mut some = [Completion::EMPTY; 8];
            all.extend_from_slice(self.completions.poll(&mut some).unwrap());
        }
        assert_eq!(all.len(), count, "{all:?}");
        all
    }

    fn completion(&mut self) -> Completion {
        self.completions(1)[0]
    }

    /// Posts one signalled request and waits for it.
    fn one(&mut self, add: impl FnOnce(&mut scatter_ring::verbs::PostBatch<'_>)) -> Completion {
        let mut batch = self.queue_pair.start(&mut self.storage);
        add(&mut batch);
        // SAFETY: registered memory that is never freed.
        unsafe { batch.submit() }.unwrap();
        self.completion()
    }
}

fn library() -> Arc<Library> {
    Library::load().unwrap()
}

/// The names of the devices of a kind.
fn devices(library: &Library, of: Transport) -> Vec<String> {
    let devices = library.devices().unwrap().into_iter().filter(|device| device.transport == of);
    devices.map(|device| device.name).collect()
}

/// Everything that the binding does with a connection. `one` is the end that connected.
fn exercise(mut one: End, mut other: End) {
    writes_and_reads(&mut one, &mut other);
    messages(&mut one, &mut other);
    linked(&mut one, &mut other);
    inline(&mut one, &mut other);
    refusals(&mut one, &other);
    let made = other.queue_pair.number();
    let device = other.region.domain().context().name().to_owned();
    flushes(other);
    println!("{device}: queue pair {made} did all of it");
}

fn pattern(seed: u32, bytes: u32) -> Vec<u8> {
    (0..bytes).map(|i| (i.wrapping_mul(31).wrapping_add(seed) >> 3) as u8 | 1).collect()
}

fn writes_and_reads(one: &mut End, other: &mut End) {
    let number = one.queue_pair.number();
    let bytes = pattern(1, 4096);
    one.fill(0, &bytes);
    let (from, remote) = (one.piece(0, 4096), other.remote(100));
    // The end that connected sends first: iWARP demands it.
    let written = one.one(|batch| batch.write(7, &[from], remote, true).unwrap());
    assert_eq!((written.id(), written.status(), written.queue_pair()), (7, WcStatus::SUCCESS, number));
    assert_eq!(written.success().unwrap().opcode(), WcOpcode::WRITE);
    let into = one.piece(8192, 4096);
    let read = one.one(|batch| batch.read(8, &[into], remote, true).unwrap());
    assert_eq!((read.id(), read.success().unwrap().opcode()), (8, WcOpcode::READ));
    assert_eq!(one.bytes(8192, 4096), bytes);
    // What was read back had arrived, and nothing beside it.
    assert_eq!(other.bytes(100, 4096), bytes);
    assert_eq!((other.bytes(0, 100), other.bytes(4196, 100)), (vec![0; 100], vec![0; 100]));
    // Pieces are gathered one after the other.
    let pieces = [one.piece(3000, 10), one.piece(10, 20)];
    let gathered = one.one(|batch| {
        batch.write(9, &pieces, other.remote(20_000), false).unwrap();
        batch.read(10, &[one_again(into, 30)], other.remote(20_000), true).unwrap();
    });
    assert_eq!((gathered.id(), gathered.status()), (10, WcStatus::SUCCESS));
    assert_eq!(one.bytes(8192, 30), [&bytes[3000..3010], &bytes[10..30]].concat());
}

fn one_again(piece: Piece, bytes: u32) -> Piece {
    Piece { bytes, ..piece }
}

/// A message behind writes says that they have arrived, and wakes who waits for it.
fn messages(one: &mut End, other: &mut End) {
    let bytes = pattern(2, 50_000);
    one.fill(0, &bytes);
    other.receive(70, 200_000, 64);
    other.completions.request_notification().unwrap();
    let (data, text) = (one.piece(0, 50_000), one.piece(0, 64));
    let remote = other.remote(300_000);
    let sent = one.one(|batch| {
        batch.write(1, &[data], remote, false).unwrap();
        batch.send(2, &[text], true).unwrap();
    });
    assert_eq!((sent.id(), sent.success().unwrap().opcode()), (2, WcOpcode::SEND));
    let fd = other.channel.fd();
    let mut waits = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut waits, Some(&limit)).unwrap(), 1);
    assert_eq!(other.channel.take_events().unwrap(), 1);
    assert_eq!(other.channel.take_events().unwrap(), 0);
    let received = other.completion();
    let success = received.success().unwrap();
    assert_eq!((received.id(), success.opcode(), success.byte_len()), (70, WcOpcode::RECEIVE, 64));
    assert_eq!(received.queue_pair(), other.queue_pair.number());
    assert_eq!(other.bytes(300_000, 50_000), bytes);
    assert_eq!(other.bytes(200_000, 64), bytes[..64]);
}

/// 33 requests in one call, of which only the last says something.
fn linked(one: &mut End, other: &mut End) {
    let bytes = pattern(3, 33 * 264);
    one.fill(0, &bytes);
    let mut batch = one.queue_pair.start(&mut one.storage);
    for i in 0..33 {
        let from = Piece::new(one.memory.wrapping_add(i * 264), 264, one.region.lkey());
        batch.write(i as u64, &[from], other.remote(400_000 + i * 4096), i == 32).unwrap();
    }
    assert_eq!(batch.len(), 33);
    // SAFETY: registered memory that is never freed.
    unsafe { batch.submit() }.unwrap();
    assert_eq!((one.completion().id(), one.more()), (32, 0));
    // A read behind them returns when they have arrived.
    let into = one.piece(500_000, 8);
    assert_eq!(one.one(|batch| batch.read(33, &[into], other.remote(0), true).unwrap()).status(), WcStatus::SUCCESS);
    for i in 0..33 {
        assert_eq!(other.bytes(400_000 + i * 4096, 264), bytes[i * 264..(i + 1) * 264]);
    }
}

/// Bytes that the request carries itself need no registration.
fn inline(one: &mut End, other: &mut End) {
    other.receive(80, 600_000, 64);
    let bytes = pattern(4, 64);
    let sent = one.one(|batch| {
        batch.write_inline(1, &bytes[..40], other.remote(601_000), false).unwrap();
        batch.send_inline(2, &bytes, true).unwrap();
    });
    assert_eq!((sent.id(), sent.status()), (2, WcStatus::SUCCESS));
    assert_eq!(other.completion().success().unwrap().byte_len(), 64);
    assert_eq!((other.bytes(600_000, 64), other.bytes(601_000, 40)), (bytes.clone(), bytes[..40].to_vec()));
}

/// What the device would refuse, or take and do wrong, is refused before.
fn refusals(one: &mut End, other: &End) {
    let (most, reads) = (one.queue_pair.caps().send_pieces as usize, one.queue_pair.read_pieces() as usize);
    let limits = *one.region.domain().context().limits();
    assert!(most >= 4 && reads >= 1 && reads <= limits.read_pieces as usize);
    let pieces = vec![one.piece(0, 1); 40];
    let mut batch = one.queue_pair.start(&mut one.storage);
    let too_many = scatter_ring::verbs::NotAdded::TooManyPieces;
    assert_eq!(batch.write(1, &pieces[..most + 1], other.remote(0), true), Err(too_many));
    assert_eq!(batch.read(1, &pieces[..reads + 1], other.remote(0), true), Err(too_many));
    assert!(batch.is_empty());
    drop(batch);
    assert_eq!(one.more(), 0);
}

/// What waits in a queue pair ends when it goes to the error state.
fn flushes(mut end: End) {
    for id in 0..4 {
        end.receive(900 + id, 0, 64);
    }
    end.queue_pair.to_error().unwrap();
    let flushed = end.completions(4);
    let ids: Vec<u64> = flushed.iter().map(Completion::id).collect();
    assert_eq!(ids, [900, 901, 902, 903]);
    for completion in &flushed {
        assert_eq!((completion.status(), completion.queue_pair()), (WcStatus::FLUSHED, end.queue_pair.number()));
        assert!(completion.success().is_none());
    }
    drop(end.queue_pair);
    end.region.deregister().unwrap();
}

impl End {
    /// What completes within a short time, without anybody having asked.
    fn more(&mut self) -> usize {
        std::thread::sleep(Duration::from_millis(20));
        self.completions.poll(&mut [Completion::EMPTY; 8]).unwrap().len()
    }
}

/// The GID that packets of RoCE v2 over IPv4 go by, or whatever there is.
fn gid(context: &Context) -> GidEntry {
    let gids = context.gids(1).unwrap();
    let best = gids.iter().find(|gid| gid.kind == GidType::ROCE_V2 && gid.gid.ipv4().is_some());
    *best.or(gids.first()).unwrap()
}

/// Ties two queue pairs to each other, as their processes would after they exchanged numbers.
fn tie(queue_pair: &mut QueuePair, own: GidEntry, peer: GidEntry, number: u32) {
    let port = queue_pair.domain().context().port(1).unwrap();
    let global = GlobalPath { gid: peer.gid, own_index: own.index as u8, hop_limit: 64, traffic_class: 0 };
    queue_pair.to_init(1, Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
    queue_pair
        .to_rtr(&RtrSettings {
            path_mtu: port.active_mtu,
            dest_qp: number,
            rq_psn: 77,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            path: Path { port: 1, lid: port.lid, global: Some(global), service_level: 0 },
        })
        .unwrap();
    let timeouts = RtsSettings { timeout: 14, retry_count: 6, rnr_retry: 6, sq_psn: 77, max_rd_atomic: 16 };
    queue_pair.to_rts(&timeouts).unwrap();
}

fn exchanged(one: &Arc<Context>, other: &Arc<Context>) -> (End, End) {
    let parts = [Parts::new(one), Parts::new(other)];
    let [mut a, mut b] = parts.map(|parts| {
        let queue_pair = QueuePair::new(&parts.domain, &parts.completions, CAPS).unwrap();
        parts.end(queue_pair)
    });
    let (numbers, gids) = ([a.queue_pair.number(), b.queue_pair.number()], [gid(one), gid(other)]);
    tie(&mut a.queue_pair, gids[0], gids[1], numbers[1]);
    tie(&mut b.queue_pair, gids[1], gids[0], numbers[0]);
    (a, b)
}

/// IPv4 addresses of this machine, but not of its loopback.
fn addresses() -> Vec<Ipv4Addr> {
    let table = std::fs::read_to_string("/proc/net/fib_trie").unwrap();
    let lines: Vec<&str> = table.lines().collect();
    let local = lines.windows(2).filter(|pair| pair[1].contains("/32 host LOCAL"));
    let mut found: Vec<Ipv4Addr> = local.filter_map(|pair| pair[0].trim().strip_prefix("|-- ")?.parse().ok()).collect();
    found.sort();
    found.dedup();
    found.retain(|address| !address.is_loopback());
    found
}

/// An address that reaches each device.
fn device_addresses(library: &Arc<Library>) -> Vec<(String, Ipv4Addr)> {
    let channel = EventChannel::new(library).unwrap();
    let device = |address: Ipv4Addr| {
        let id = CmId::new(&channel).unwrap();
        id.bind(SocketAddr::from((address, 0))).ok()?;
        Some((id.device()?, address))
    };
    addresses().into_iter().filter_map(device).collect()
}

fn event(channel: &Arc<EventChannel>, kind: CmEventKind, id: CmKey) -> CmEvent {
    let start = Instant::now();
    loop {
        if let Some(event) = channel.next_event().unwrap() {
            assert_eq!((event.kind, event.id), (kind, id), "{event:?}");
            return event;
        }
        assert!(start.elapsed() < LIMIT, "no event: {kind}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

const SETTINGS: ConnectSettings<'static> = ConnectSettings {
    private_data: b"a token",
    responder_resources: 16,
    initiator_depth: 16,
    retry_count: 6,
    rnr_retry_count: 6,
};

/// A connection with itself, over an address of this machine.
fn connected(
    library: &Arc<Library>,
    context: &Arc<Context>,
    own: Ipv4Addr,
    peer: Ipv4Addr,
) -> (End, End, [Arc<CmId>; 2]) {
    let [listening, connecting, accepting] = [(); 3].map(|()| EventChannel::new(library).unwrap());
    let listener = CmId::new(&listening).unwrap();
    listener.bind(SocketAddr::from((peer, 0))).unwrap();
    listener.listen(4).unwrap();
    assert_ne!(listener.port(), 0);

    let id = Arc::new(CmId::new(&connecting).unwrap());
    let (own, peer) = (SocketAddr::from((own, 0)), SocketAddr::from((peer, listener.port())));
    id.resolve_address(Some(own), peer, LIMIT).unwrap();
    event(&connecting, CmEventKind::ADDRESS_RESOLVED, id.key());
    assert_eq!(id.device().as_deref(), Some(context.name()));
    id.resolve_route(LIMIT).unwrap();
    event(&connecting, CmEventKind::ROUTE_RESOLVED, id.key());
    let parts = Parts::new(context);
    let queue_pair = id.create_queue_pair(&parts.domain, &parts.completions, CAPS).unwrap();
    let second = id.create_queue_pair(&parts.domain, &parts.completions, CAPS);
    assert!(second.unwrap_err().to_string().contains("has a queue pair"));
    let a = parts.end(queue_pair);
    id.connect(&SETTINGS).unwrap();

    let request = event(&listening, CmEventKind::CONNECT_REQUEST, listener.key());
    assert_eq!(request.private_data[..7], *b"a token");
    assert_eq!((request.responder_resources, request.initiator_depth), (16, 16));
    let mut accepted = request.request.unwrap();
    accepted.migrate(&accepting).unwrap();
    let accepted = Arc::new(accepted);
    let their_context = Context::open_for_cm(library, &accepted.device().unwrap()).unwrap();
    let parts = Parts::new(&their_context);
    let queue_pair = accepted.create_queue_pair(&parts.domain, &parts.completions, CAPS).unwrap();
    let b = parts.end(queue_pair);
    accepted.accept(&ConnectSettings { private_data: b"well", ..SETTINGS }).unwrap();
    let established = event(&connecting, CmEventKind::ESTABLISHED, id.key());
    assert_eq!(established.private_data[..4], *b"well");
    event(&accepting, CmEventKind::ESTABLISHED, accepted.key());
    (a, b, [id, accepted])
}

/// The device as a library of before rdma-core 33 shows it.
fn old_context(library: &Library, device: &str) -> Arc<Context> {
    let mut functions = library.functions();
    functions.verbs._ibv_query_gid_ex = None;
    // SAFETY: the functions of the library, without one that older ones do not have.
    Context::open(&unsafe { Library::from_functions(functions) }, device).unwrap()
}

#[test]
#[ignore = "needs an RDMA device"]
fn every_device_opens_and_says_what_it_can() {
    let library = library();
    assert!(library.has_cm());
    for device in library.devices().unwrap() {
        let context = Context::open(&library, &device.name).unwrap();
        assert_eq!((context.name(), context.transport()), (&*device.name, device.transport));
        let limits = context.limits();
        assert!(limits.requests >= 64 && limits.pieces >= 1 && limits.completions >= 256 && limits.ports >= 1);
        let port = context.port(1).unwrap();
        assert_eq!((port.state, port.link_layer), (PortState::ACTIVE, LinkLayer::ETHERNET));
        assert!(port.active_mtu.bytes().is_some(), "{port:?}");
        let gids = context.gids(1).unwrap();
        println!("{} {} {limits:?} {port:?} {gids:?}", device.name, device.transport);
        assert!(!gids.is_empty());
        assert_eq!(old_context(&library, &device.name).gids(1).unwrap(), gids);
        assert!(context.needs_cm() || gids.iter().any(|gid| gid.kind == GidType::ROCE_V2));
        // Whatever happened so far, it ends.
        while let Some(event) = context.next_event().unwrap() {
            println!("{event:?}");
        }
        assert!(context.port(99).is_err());
    }
    let none = Context::open(&library, "no_such_device").unwrap_err();
    assert!(none.to_string().contains("no device of this name"), "{none}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_device_connects_to_itself_by_exchanged_numbers() {
    let library = library();
    for name in devices(&library, Transport::INFINIBAND) {
        let context = Context::open(&library, &name).unwrap();
        let (one, other) = exchanged(&context, &context);
        exercise(one, other);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn two_devices_connect_by_exchanged_numbers() {
    let library = library();
    let names = devices(&library, Transport::INFINIBAND);
    for pair in names.windows(2) {
        let [one, other] = [&pair[0], &pair[1]].map(|name| Context::open(&library, name).unwrap());
        let (one, other) = exchanged(&one, &other);
        exercise(one, other);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn every_device_connects_through_rdma_cm() {
    let library = library();
    let addresses = device_addresses(&library);
    for device in library.devices().unwrap() {
        let (_, address) = addresses.iter().find(|(name, _)| *name == device.name).unwrap();
        let context = Context::open_for_cm(&library, &device.name).unwrap();
        let (one, other, ids) = connected(&library, &context, *address, *address);
        exercise(one, other);
        drop(ids);
    }
}

/// rxe0 to rxe1, siw0 to siw1.
#[test]
#[ignore = "needs an RDMA device"]
fn two_devices_of_a_kind_connect_through_rdma_cm() {
    let library = library();
    let addresses = device_addresses(&library);
    for kind in [Transport::INFINIBAND, Transport::IWARP] {
        for pair in devices(&library, kind).windows(2) {
            let address = |device| addresses.iter().find(|(name, _)| name == device).unwrap().1;
            let context = Context::open_for_cm(&library, &pair[0]).unwrap();
            let (one, other, ids) = connected(&library, &context, address(&pair[0]), address(&pair[1]));
            exercise(one, other);
            drop(ids);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn who_is_disconnected_is_told() {
    let library = library();
    for (device, address) in device_addresses(&library) {
        let context = Context::open_for_cm(&library, &device).unwrap();
        let (mut one, mut other, ids) = connected(&library, &context, address, address);
        let bytes = one.piece(0, 1);
        one.one(|batch| batch.write(1, &[bytes], other.remote(0), true).unwrap());
        other.receive(5, 0, 64);
        ids[0].disconnect().unwrap();
        event(ids[1].channel(), CmEventKind::DISCONNECTED, ids[1].key());
        // Some devices have done that, others leave it to who gets the event.
        other.queue_pair.to_error().unwrap();
        let flushed = other.completion();
        assert_eq!((flushed.id(), flushed.status()), (5, WcStatus::FLUSHED), "{device}");
    }
}

/// A refusal is an event on one kind of device and an error of the call on the other.
#[test]
#[ignore = "needs an RDMA device"]
fn nobody_listens_and_it_says_so() {
    let library = library();
    for (device, address) in device_addresses(&library) {
        let channel = EventChannel::new(&library).unwrap();
        let id = Arc::new(CmId::new(&channel).unwrap());
        id.resolve_address(None, SocketAddr::from((address, 1)), LIMIT).unwrap();
        event(&channel, CmEventKind::ADDRESS_RESOLVED, id.key());
        id.resolve_route(LIMIT).unwrap();
        event(&channel, CmEventKind::ROUTE_RESOLVED, id.key());
        let parts = Parts::new(&Context::open_for_cm(&library, &device).unwrap());
        let queue_pair = id.create_queue_pair(&parts.domain, &parts.completions, CAPS).unwrap();
        match id.connect(&SETTINGS) {
            Ok(()) => println!("{device}: {:?}", event(&channel, CmEventKind::REJECTED, id.key())),
            Err(error) => assert_eq!(error.errno(), Some(libc::ECONNREFUSED), "{device}"),
        }
        drop(queue_pair);
    }
}

/// Access that was not given ends the connection, and reaches no byte.
#[test]
#[ignore = "needs an RDMA device"]
fn a_wrong_key_reaches_nothing() {
    let library = library();
    for name in devices(&library, Transport::INFINIBAND) {
        let context = Context::open(&library, &name).unwrap();
        let (mut one, other) = exchanged(&context, &context);
        one.fill(0, &[9; 64]);
        let (piece, mut remote) = (one.piece(0, 64), other.remote(0));
        remote.rkey ^= 0x5a00;
        let refused = one.one(|batch| batch.write(3, &[piece], remote, true).unwrap());
        assert_eq!((refused.id(), refused.status()), (3, WcStatus::REMOTE_ACCESS));
        assert!(refused.success().is_none());
        assert_eq!(other.bytes(0, 64), [0; 64]);
        // What the device says of it to the other side differs; rxe says nothing.
        std::thread::sleep(Duration::from_millis(50));
        while let Some(event) = context.next_event().unwrap() {
            println!("{name}: {event:?}");
        }
    }
}

/// On a machine whose links may be taken down, which the test must be told: SCATTER_RING_MAY_TAKE_LINKS_DOWN=1.
#[test]
#[ignore = "needs an RDMA device, and takes its link down"]
fn a_port_that_goes_down_is_an_event() {
    if std::env::var_os("SCATTER_RING_MAY_TAKE_LINKS_DOWN").is_none_or(|value| value != "1") {
        eprintln!("NOT RUN: nobody said that links may be taken down");
        return;
    }
    let library = library();
    // siw does not say which network device it is on.
    for device in devices(&library, Transport::INFINIBAND) {
        let context = Context::open(&library, &device).unwrap();
        let netdev = format!("/sys/class/infiniband/{}/ports/1/gid_attrs/ndevs/0", device);
        let netdev = std::fs::read_to_string(netdev).unwrap();
        let set = |state| Command::new("ip").args(["link", "set", netdev.trim(), state]).status().unwrap();
        while context.next_event().unwrap().is_some() {}
        assert!(set("down").success());
        let start = Instant::now();
        let mut seen = Vec::new();
        while !seen.iter().any(|event: &AsyncEvent| event.kind == EventKind::PORT_ERROR) {
            seen.extend(context.next_event().unwrap());
            assert!(start.elapsed() < LIMIT, "{}: {seen:?}", device);
        }
        assert!(set("up").success());
        println!("{}: {seen:?}", device);
        assert!(seen.iter().all(|event| event.port == Some(1) && event.queue_pair.is_none()));
    }
}
