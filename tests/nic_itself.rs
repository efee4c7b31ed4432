//! The simulated network does what devices do, and notices what hardware would not forgive.

mod nic;
mod seeded;

use nic::{Drive, Network, Profile, Refusal, Twist};
use scatter_ring::verbs::abi::{IBV_QPS_ERR, IBV_WC_FATAL_ERR};
use scatter_ring::verbs::{
    Access, Completion, CompletionChannel, CompletionQueue, Context, EventKind, Gid, GlobalPath, MemoryRegion, Mtu,
    Path, Piece, PostFailed, PostStorage, ProtectionDomain, QueuePair, QueuePairCaps, RemoteAddress, RtrSettings,
    RtsSettings, WcOpcode, WcStatus,
};
use seeded::cases;
use std::sync::Arc;

const BYTES: usize = 64 << 10;

/// One end of a connection, with memory that the other one may read and write.
struct End {
    // Dropped in this order.
    pair: QueuePair,
    queue: CompletionQueue,
    channel: Arc<CompletionChannel>,
    registered: MemoryRegion,
    domain: Arc<ProtectionDomain>,
    context: Arc<Context>,
    memory: *mut u8,
    storage: PostStorage,
}

const CAPS: QueuePairCaps =
    QueuePairCaps { send_requests: 4, receive_requests: 4, send_pieces: 2, receive_pieces: 1, inline_bytes: 0 };

impl End {
    fn new(network: &Network, device: usize, caps: QueuePairCaps) -> End {
        let context = Context::open(&network.library(), network.device(device)).unwrap();
        let domain = ProtectionDomain::new(&context).unwrap();
        let channel = CompletionChannel::new(&context).unwrap();
        let depth = caps.send_requests + caps.receive_requests;
        let queue = CompletionQueue::new(&context, depth, Some(&channel)).unwrap();
        let memory = Box::leak(vec![0; BYTES].into_boxed_slice()).as_mut_ptr();
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        // SAFETY: it is leaked, and reached through the pointer only.
        let registered = unsafe { MemoryRegion::register(&domain, memory, BYTES, access) }.unwrap();
        let pair = QueuePair::new(&domain, &queue, caps).unwrap();
        let storage = PostStorage::new(16, 32, 256);
        End { pair, queue, channel, registered, domain, context, memory, storage }
    }

    fn fill(&self, at: usize, bytes: &[u8]) {
        // SAFETY: inside; nothing is under way there.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.add(at), bytes.len()) };
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: inside.
        unsafe { std::ptr::copy_nonoverlapping(self.memory.add(at), bytes.as_mut_ptr(), len) };
        bytes
    }

    fn piece(&self, at: usize, len: u32) -> Piece {
        Piece::new(self.memory.wrapping_add(at), len, self.registered.lkey())
    }

    fn remote(&self, at: usize) -> RemoteAddress {
        RemoteAddress { address: self.memory.expose_provenance() as u64 + at as u64, rkey: self.registered.rkey() }
    }

    fn receive(&mut self, id: u64, at: usize, len: u32) {
        // SAFETY: registered memory that is never freed.
        unsafe { self.pair.post_receive(id, self.memory.wrapping_add(at), len, self.registered.lkey()) }.unwrap();
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut room = [Completion::EMPTY; 16];
        self.queue.poll(&mut room).unwrap().to_vec()
    }

    /// Ids and statuses.
    fn outcomes(&mut self) -> Vec<(u64, WcStatus)> {
        self.poll().iter().map(|completion| (completion.id(), completion.status())).collect()
    }

    fn write(&mut self, id: u64, len: u32, to: RemoteAddress, signalled: bool) -> Result<(), PostFailed> {
        let piece = self.piece(0, len);
        let mut batch = self.pair.start(&mut self.storage);
        batch.write(id, &[piece], to, signalled).unwrap();
        // SAFETY: registered memory that is never freed.
        unsafe { batch.submit() }
    }

    fn send(&mut self, id: u64, len: u32) -> Result<(), PostFailed> {
        let piece = self.piece(0, len);
        let mut batch = self.pair.start(&mut self.storage);
        batch.send(id, &[piece], true).unwrap();
        // SAFETY: as above.
        unsafe { batch.submit() }
    }

    fn read(&mut self, id: u64, pieces: &[Piece], from: RemoteAddress) -> Result<(), PostFailed> {
        let mut batch = self.pair.start(&mut self.storage);
        batch.read(id, pieces, from, true).unwrap();
        // SAFETY: as above.
        unsafe { batch.submit() }
    }
}

fn connect(a: &mut End, b: &mut End) {
    const BOTH: Access = Access::REMOTE_READ;
    for end in [&mut *a, &mut *b] {
        end.pair.to_init(1, BOTH | Access::REMOTE_WRITE).unwrap();
    }
    let (of_a, of_b) = (a.pair.number(), b.pair.number());
    for (end, other) in [(&mut a.pair, of_b), (&mut b.pair, of_a)] {
        end.to_rtr(&to(other)).unwrap();
        end.to_rts(&RtsSettings { timeout: 14, retry_count: 6, rnr_retry: 1, sq_psn: 1, max_rd_atomic: 1 }).unwrap();
    }
}

fn to(dest_qp: u32) -> RtrSettings {
    let global = Some(GlobalPath { gid: Gid([1; 16]), own_index: 1, hop_limit: 1, traffic_class: 0 });
    let path = Path { port: 1, lid: 0, global, service_level: 0 };
    RtrSettings { path_mtu: Mtu::BYTES_1024, dest_qp, rq_psn: 1, max_dest_rd_atomic: 1, min_rnr_timer: 12, path }
}

fn connected(profile: Profile) -> (Network, End, End) {
    let network = Network::new(profile, Drive::Hand, 7);
    let (mut a, mut b) = (End::new(&network, 0, CAPS), End::new(&network, 1, CAPS));
    connect(&mut a, &mut b);
    (network, a, b)
}

/// Brings both ends to the error state and takes everything home, so that they can be destroyed.
fn end(network: &Network, mut a: End, mut b: End) {
    for end in [&mut a, &mut b] {
        end.pair.to_error().unwrap();
    }
    network.settle();
    while !(a.poll().is_empty() && b.poll().is_empty()) {}
}

#[track_caller]
fn assert_violation(network: &Network, what: &str) {
    let violations = network.take_violations();
    assert!(violations.iter().any(|violation| violation.contains(what)), "{violations:#?}");
}

#[test]
fn bytes_go_where_they_are_sent_on_every_kind_of_device() {
    for profile in Profile::all() {
        let (network, mut a, mut b) = connected(profile);
        a.fill(0, &[1; 3000]);
        b.receive(50, 60_000, 100);
        let to = b.remote(20_000);
        a.write(1, 3000, to, false).unwrap();
        a.send(2, 100).unwrap();
        assert_eq!((a.outcomes(), b.bytes(20_000, 3000)), (vec![], vec![0; 3000]), "nothing happens by itself");
        network.settle();
        assert_eq!(a.outcomes(), [(2, WcStatus::SUCCESS)]);
        let received = b.poll();
        let success = received[0].success().unwrap();
        assert_eq!((received[0].id(), success.opcode(), success.byte_len()), (50, WcOpcode::RECEIVE, 100));
        assert_eq!((b.bytes(20_000, 3000), b.bytes(60_000, 100)), (vec![1; 3000], vec![1; 100]));
        let (from, into) = (b.remote(20_000), a.piece(40_000, 3000));
        a.read(3, &[into], from).unwrap();
        network.settle();
        assert_eq!((a.outcomes(), a.bytes(40_000, 3000)), (vec![(3, WcStatus::SUCCESS)], vec![1; 3000]));
        let counts = network.counts(0);
        assert_eq!((counts.doorbells, counts.writes, counts.sends, counts.reads, counts.signalled), (3, 1, 1, 1, 2));
        end(&network, a, b);
        network.assert_clean();
    }
}

#[test]
fn a_place_is_free_when_a_completion_behind_it_was_polled_and_not_before() {
    let (network, mut a, b) = connected(Profile::rxe());
    let to = b.remote(0);
    // Four that nobody hears of fill the queue for ever.
    for id in 0..4 {
        a.write(id, 10, to, false).unwrap();
        network.settle();
    }
    let refused = a.write(4, 10, to, true).unwrap_err();
    assert_eq!((refused.posted, refused.is_exact, refused.error.errno()), (0, true, Some(libc::ENOMEM)));
    assert_violation(&network, "the send queue of 4 overran");

    let (network, mut a, b) = connected(Profile::rxe());
    let to = b.remote(0);
    for round in 0..3 {
        for id in 0..4 {
            a.write(id, 10, to, id == 3).unwrap();
        }
        network.settle();
        assert_eq!(network.outstanding(0), 4, "it has completed, and was not polled");
        assert_eq!(a.outcomes(), [(3, WcStatus::SUCCESS)], "round {round}");
        assert_eq!(network.outstanding(0), 0);
    }
    network.assert_clean();
    // Of a batch that does not fit all, the first ones are taken.
    let piece = a.piece(0, 10);
    a.write(0, 10, to, false).unwrap();
    a.write(1, 10, to, false).unwrap();
    let mut batch = a.pair.start(&mut a.storage);
    for id in 2..6 {
        if batch.write(id, &[piece], to, true).is_err() {
            break;
        }
    }
    assert_eq!(batch.len(), 4, "the binding knows nothing of what is under way");
    // SAFETY: registered memory that is never freed.
    assert_eq!(unsafe { batch.submit() }.unwrap_err().posted, 2);
    assert_violation(&network, "overran");
    end(&network, a, b);
}

#[test]
fn a_full_completion_queue_is_noticed_before_and_when_it_overruns() {
    let network = Network::new(Profile::rxe(), Drive::Hand, 7);
    let mut a = End::new(&network, 0, CAPS);
    let mut b = End::new(&network, 1, CAPS);
    network.assert_clean();
    let small = CompletionQueue::new(&a.context, 2, None).unwrap();
    a.pair = QueuePair::new(&a.domain, &small, CAPS).unwrap();
    a.queue = small;
    assert_violation(&network, "a completion queue of 2 entries, for 8");
    connect(&mut a, &mut b);
    let to = b.remote(0);
    for id in 0..3 {
        a.write(id, 10, to, true).unwrap();
    }
    network.settle();
    assert_violation(&network, "the completion queue of 2 entries overran");
    assert!(a.queue.poll(&mut [Completion::EMPTY; 4]).is_err());
    assert_eq!(a.context.next_event().unwrap().unwrap().kind, EventKind::COMPLETION_QUEUE_ERROR);
}

#[test]
fn a_message_without_a_receive_is_noticed_and_given_up() {
    let (network, mut a, b) = connected(Profile::rxe());
    a.send(1, 10).unwrap();
    network.settle();
    assert_eq!(a.outcomes(), [(1, WcStatus::RNR_RETRY_EXCEEDED)]);
    assert_violation(&network, "has no receive");
    end(&network, a, b);
    // On a stream the connection ends, and the message is said to have been sent.
    let (network, mut a, mut b) = connected(Profile::siw());
    a.send(1, 10).unwrap();
    a.receive(9, 0, 10);
    network.settle();
    assert_eq!(a.outcomes(), [(1, WcStatus::SUCCESS), (9, WcStatus::FLUSHED)]);
    assert_violation(&network, "has no receive");
    assert!(b.outcomes().is_empty());
    end(&network, a, b);
}

#[test]
fn keys_say_who_may_do_what_with_which_bytes() {
    let refused = |what: &dyn Fn(&mut End, &End)| {
        let (network, mut a, mut b) = connected(Profile::hardware());
        b.receive(70, 0, 10);
        what(&mut a, &b);
        let to = b.remote(0);
        a.write(2, 10, to, true).unwrap();
        network.settle();
        let outcomes = a.outcomes();
        assert_eq!((outcomes[0].0, outcomes[1]), (1, (2, WcStatus::FLUSHED)), "{outcomes:?}");
        let there = b.outcomes();
        assert_eq!(b.bytes(0, 10), [0xDB; 10]);
        end(&network, a, b);
        network.assert_clean();
        (outcomes[0].1, there)
    };
    let flushed = vec![(70, WcStatus::FLUSHED)];
    let behind = refused(&|a, b| a.write(1, 10, b.remote(BYTES - 9), false).unwrap());
    assert_eq!(behind, (WcStatus::REMOTE_ACCESS, flushed.clone()));
    let no_key = refused(&|a, b| {
        a.write(1, 10, RemoteAddress { rkey: b.registered.lkey(), ..b.remote(0) }, false).unwrap();
    });
    assert_eq!(no_key, (WcStatus::REMOTE_ACCESS, flushed.clone()));
    let no_right = refused(&|a, b| {
        // SAFETY: leaked memory.
        let read_only = unsafe { MemoryRegion::register(&b.domain, b.memory, 10, Access::REMOTE_READ) }.unwrap();
        a.write(1, 10, RemoteAddress { rkey: read_only.rkey(), ..b.remote(0) }, false).unwrap();
        std::mem::forget(read_only);
    });
    assert_eq!(no_right, (WcStatus::REMOTE_ACCESS, flushed.clone()));
    let other_domain = refused(&|a, b| {
        let other = ProtectionDomain::new(&b.context).unwrap();
        let access = Access::REMOTE_WRITE;
        // SAFETY: leaked memory.
        let region = unsafe { MemoryRegion::register(&other, b.memory, 10, access) }.unwrap();
        a.write(1, 10, RemoteAddress { rkey: region.rkey(), ..b.remote(0) }, false).unwrap();
        std::mem::forget(region);
    });
    assert_eq!(other_domain, (WcStatus::REMOTE_ACCESS, flushed));
    // What is wrong on this side never leaves it.
    let local = refused(&|a, b| {
        a.registered = {
            // SAFETY: leaked memory.
            let half = unsafe { MemoryRegion::register(&a.domain, a.memory, 5, Access::NONE) }.unwrap();
            let (from, to) = (Piece::new(a.memory, 10, half.lkey()), b.remote(0));
            let mut batch = a.pair.start(&mut a.storage);
            batch.write(1, &[from], to, false).unwrap();
            // SAFETY: as above.
            unsafe { batch.submit() }.unwrap();
            std::mem::forget(half);
            // SAFETY: as above.
            unsafe { MemoryRegion::register(&a.domain, a.memory, BYTES, Access::REMOTE_WRITE) }.unwrap()
        };
    });
    assert_eq!(local, (WcStatus::LOCAL_PROTECTION, vec![]));
}

#[test]
fn a_stream_says_that_a_write_was_done_which_the_other_side_refuses() {
    let (network, mut a, mut b) = connected(Profile::siw());
    a.receive(7, 0, 10);
    let to = b.remote(BYTES - 5);
    a.write(1, 10, to, true).unwrap();
    network.settle();
    assert_eq!(a.outcomes(), [(1, WcStatus::SUCCESS), (7, WcStatus::FLUSHED)]);
    let to = b.remote(0);
    // What comes too late is taken and never heard of.
    a.write(2, 10, to, true).unwrap();
    network.settle();
    assert!(a.outcomes().is_empty() && b.outcomes().is_empty());
    assert_eq!(b.context.next_event().unwrap().unwrap().kind, EventKind::QUEUE_PAIR_ACCESS_ERROR);
    assert_eq!(network.outstanding(0), 0, "it cannot be waited for");
    end(&network, a, b);
    network.assert_clean();
}

#[test]
fn a_read_of_more_pieces_than_a_device_does_fills_the_first_or_is_refused() {
    // The binding has this limit from the device; a device that does not say it is another matter.
    let (network, mut a, b) = connected(Profile { max_sge_rd: 1, ..Profile::siw() });
    let pieces = [a.piece(0, 10), a.piece(100, 10)];
    let mut batch = a.pair.start(&mut a.storage);
    assert!(batch.read(1, &pieces, b.remote(0), true).is_err());
    drop(batch);
    end(&network, a, b);
    network.assert_clean();
}

#[test]
fn states_allow_what_they_allow() {
    let network = Network::new(Profile::hardware(), Drive::Hand, 7);
    let (mut a, b) = (End::new(&network, 0, CAPS), End::new(&network, 1, CAPS));
    let to_b = b.remote(0);
    let lkey = a.registered.lkey();
    // SAFETY: leaked memory.
    assert!(unsafe { a.pair.post_receive(1, a.memory, 10, lkey) }.is_err());
    assert_violation(&network, "in its first state");
    assert!(a.write(1, 10, to_b, true).is_err());
    assert_violation(&network, "in state 0");
    assert!(a.pair.to_rtr(&to(b.pair.number())).is_err());
    assert_violation(&network, "from state 0 to 2");
    a.pair.to_init(1, Access::REMOTE_WRITE).unwrap();
    a.receive(1, 0, 10);
    assert!(a.write(1, 10, to_b, true).is_err());
    assert_violation(&network, "in state 1");
    for id in 2..5 {
        a.receive(id, 0, 10);
    }
    // SAFETY: leaked memory.
    assert!(unsafe { a.pair.post_receive(5, a.memory, 10, lkey) }.is_err());
    assert_violation(&network, "the receive queue of 4 overran");
    a.pair.to_error().unwrap();
    network.settle();
    assert_eq!(a.outcomes(), (1..5).map(|id| (id, WcStatus::FLUSHED)).collect::<Vec<_>>());
    network.refuse_modify(1, Some(IBV_QPS_ERR));
    let mut b = b;
    assert!(b.pair.to_error().is_err());
    network.assert_clean();
}

#[test]
fn in_the_error_state_each_request_and_receive_comes_home_once_and_in_order() {
    cases(100, |random| {
        let profile = random.pick(&Profile::all());
        let network = Network::new(profile, Drive::Hand, random.word());
        let (mut a, mut b) = (End::new(&network, 0, CAPS), End::new(&network, 1, CAPS));
        connect(&mut a, &mut b);
        (0..4).for_each(|id| a.receive(100 + id, 0, 10));
        let to = b.remote(0);
        for id in 0..4 {
            a.write(id, 5000, to, true).unwrap();
        }
        for _ in 0..random.below(12) {
            network.step();
        }
        a.pair.to_error().unwrap();
        network.settle();
        let outcomes = a.outcomes();
        let sends: Vec<_> = outcomes.iter().filter(|(id, _)| *id < 100).collect();
        assert!(sends.iter().map(|(id, _)| *id).eq(0..4), "{outcomes:?}");
        assert!(sends.is_sorted_by_key(|(_, status)| *status == WcStatus::FLUSHED), "{outcomes:?}");
        let receives = outcomes.iter().filter(|(id, _)| *id >= 100);
        assert!(receives.eq([100, 101, 102, 103].map(|id| (id, WcStatus::FLUSHED)).iter()));
        assert_eq!(network.outstanding(0), 0);
        end(&network, a, b);
        network.assert_clean();
    });
}

#[test]
fn writes_are_in_place_when_the_message_behind_them_has_come_and_not_before() {
    let mut was_late = 0;
    cases(100, |random| {
        let profile = random.pick(&[Profile::hardware(), Profile::siw()]);
        let network = Network::new(profile, Drive::Hand, random.word());
        let (mut a, mut b) = (End::new(&network, 0, CAPS), End::new(&network, 1, CAPS));
        connect(&mut a, &mut b);
        a.fill(0, &[1; 1000]);
        b.receive(9, 60_000, 10);
        let to = [0, 1000].map(|at| b.remote(20_000 + at));
        a.write(1, 1000, to[0], false).unwrap();
        a.write(2, 1000, to[1], false).unwrap();
        a.send(3, 10).unwrap();
        let mut outcomes = b.outcomes();
        while outcomes.is_empty() {
            let is_sent = !a.outcomes().is_empty();
            was_late += u64::from(is_sent && b.bytes(20_000, 2000) != [1; 2000]);
            assert!(network.step());
            outcomes = b.outcomes();
        }
        assert_eq!((outcomes, b.bytes(20_000, 2000)), (vec![(9, WcStatus::SUCCESS)], vec![1; 2000]));
        network.settle();
        end(&network, a, b);
        network.assert_clean();
    });
    assert!(was_late > 0, "a stream never said that it had sent what was not there yet");
}

#[test]
fn memory_is_not_to_be_touched_while_a_request_may_use_it() {
    let (network, mut a, b) = connected(Profile::rxe());
    let to = b.remote(0);
    a.write(1, 10, to, true).unwrap();
    // SAFETY: leaked memory.
    let other = unsafe { MemoryRegion::register(&a.domain, a.memory, 10, Access::NONE) }.unwrap();
    drop(std::mem::replace(&mut a.registered, other));
    assert_violation(&network, "memory was deregistered");
    drop(a);
    assert_violation(&network, "destroyed with 1 requests");
    let (network, mut a, mut b) = connected(Profile::rxe());
    b.receive(1, 0, 10);
    a.send(1, 10).unwrap();
    a.fill(5, &[1]);
    network.settle();
    assert_violation(&network, "was changed before it had left");
    assert_eq!((a.outcomes().len(), b.outcomes().len()), (1, 1));
    end(&network, a, b);
}

#[test]
fn a_peer_that_is_gone_or_cut_off_does_not_answer() {
    for cut in [true, false] {
        let (network, mut a, b) = connected(Profile::rxe());
        if cut {
            network.cut()
        } else {
            network.vanish(b.pair.number())
        }
        let to = b.remote(0);
        a.write(1, 10, to, false).unwrap();
        a.write(2, 10, to, true).unwrap();
        network.settle();
        assert_eq!(a.outcomes(), [(1, WcStatus::RETRY_EXCEEDED), (2, WcStatus::FLUSHED)]);
        drop((a, b));
        network.assert_clean();
    }
}

#[test]
fn each_twist_does_what_it_says() {
    let outcomes = |twist| {
        let (network, mut a, b) = connected(Profile::hardware());
        let to = b.remote(0);
        a.write(1, 10, to, true).unwrap();
        network.settle();
        let mut all = a.outcomes();
        network.twist(0, 0, twist);
        for id in [2, 3] {
            a.write(id, 10, to, true).unwrap();
        }
        network.settle();
        all.extend(a.outcomes());
        for _ in 0..300 {
            all.extend(a.outcomes());
        }
        assert!(!network.has_twists());
        end(&network, a, b);
        network.assert_clean();
        all.into_iter().map(|(id, status)| (id, status == WcStatus::SUCCESS)).collect::<Vec<_>>()
    };
    let (one, two, three) = ((1, true), (2, true), (3, true));
    assert_eq!(outcomes(Twist::Lost), [one, three]);
    assert_eq!(outcomes(Twist::Twice), [one, two, two, three]);
    assert_eq!(outcomes(Twist::Late(5)), [one, three, two]);
    assert_eq!(outcomes(Twist::Swapped), [one, three, two]);
    assert_eq!(outcomes(Twist::Stale), [one, one, two, three]);
    assert_eq!(outcomes(Twist::Failed(IBV_WC_FATAL_ERR))[..2], [one, (2, false)]);
    assert_eq!(outcomes(Twist::Ghost), [one, two, three], "there was no queue pair before");
    let garbage = outcomes(Twist::Garbage);
    assert_eq!((garbage.len(), garbage[2], garbage[3]), (4, two, three));
    assert_eq!((outcomes(Twist::Spoiled).len(), outcomes(Twist::Spoiled)[2]), (3, three));
}

#[test]
fn posts_registrations_and_devices_fail_where_they_are_told_to() {
    let (network, mut a, b) = connected(Profile::rxe());
    let (to, piece) = (b.remote(0), a.piece(0, 10));
    for at in 0..4 {
        network.refuse_post(0, Refusal { names_it: at != 3, ..Refusal::no_memory(at) });
        let mut batch = a.pair.start(&mut a.storage);
        (0..4).for_each(|id| batch.write(id, &[piece], to, true).unwrap());
        // SAFETY: registered memory that is never freed.
        let failed = unsafe { batch.submit() }.unwrap_err();
        let (posted, is_exact) = if at == 3 { (4, false) } else { (at, true) };
        assert_eq!((failed.posted, failed.is_exact, failed.error.errno()), (posted, is_exact, Some(libc::ENOMEM)));
        network.settle();
        assert_eq!(a.outcomes().len(), at);
    }
    network.refuse_registrations(0, Some(1));
    // SAFETY: leaked memory.
    let register = || unsafe { MemoryRegion::register(&a.domain, a.memory, 10, Access::NONE) };
    let (first, second) = (register(), register());
    assert_eq!((first.is_ok(), second.unwrap_err().errno()), (true, Some(libc::ENOMEM)));
    network.be_mute(0, true);
    a.write(1, 10, to, true).unwrap();
    network.settle();
    assert!(a.outcomes().is_empty());
    network.happens(0, EventKind::PORT_ERROR, 1);
    network.happens(0, EventKind::QUEUE_PAIR_FATAL, a.pair.number());
    network.happens(0, EventKind::DEVICE_FATAL, 0);
    let events: Vec<_> = std::iter::from_fn(|| a.context.next_event().unwrap()).collect();
    let kinds = [EventKind::PORT_ERROR, EventKind::QUEUE_PAIR_FATAL, EventKind::DEVICE_FATAL];
    assert_eq!(events.iter().map(|event| event.kind).collect::<Vec<_>>(), kinds);
    assert_eq!((events[0].port, events[1].queue_pair), (Some(1), Some(a.pair.number())));
    network.assert_clean();
    std::mem::forget(a);
}

#[test]
fn a_channel_tells_once_of_a_completion_that_was_asked_for() {
    let (network, mut a, b) = connected(Profile::rxe());
    let to = b.remote(0);
    a.queue.request_notification().unwrap();
    assert_eq!(a.channel.take_events().unwrap(), 0);
    for id in 0..2 {
        a.write(id, 10, to, true).unwrap();
    }
    network.settle();
    assert_eq!((a.channel.take_events().unwrap(), a.channel.take_events().unwrap()), (1, 0));
    assert_eq!(a.outcomes().len(), 2);
    // One that is never taken goes with its queue.
    a.queue.request_notification().unwrap();
    a.write(3, 10, to, true).unwrap();
    network.settle();
    end(&network, a, b);
    network.assert_clean();
}

#[test]
fn devices_are_named_and_have_what_a_link_looks_for() {
    let network = Network::new(Profile::tiny(), Drive::Hand, 1);
    let names: Vec<_> = network.library().devices().unwrap().into_iter().map(|device| device.name).collect();
    assert!([0, 1].iter().all(|device| names.iter().any(|name| name == network.device(*device))));
    let context = Context::open(&network.library(), network.device(1)).unwrap();
    assert_eq!((context.limits().requests, context.limits().read_pieces), (4, 1));
    let gids = context.gids(1).unwrap();
    assert_eq!(gids[1].gid.ipv4(), Some(std::net::Ipv4Addr::new(10, 77, 0, 2)));
    assert!(Context::open(&network.library(), "nic").is_err() && context.port(2).is_err());
}
