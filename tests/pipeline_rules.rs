//! What the machines of a link say and count, case by case.

mod seeded;

use ring_abi::{Field, Route, Stage, Status};
use scatter_ring::pipeline::{
    BatchId, Chunk, ChunkId, LINK_LOST, Landing, Origin, Owner, OwnerAction, OwnerLimits, Reply, Request, Requester,
    RequesterAction, RequesterLimits, WorkFault, WorkId,
};
use scatter_ring::plan::{Direction, Fault};
use seeded::cases;

const FAULT: Fault = Fault::new(Status::OUT_OF_RANGE, Stage::PACK, Field::SRC_OFFSET, 7);

const LIMITS: RequesterLimits = RequesterLimits {
    batches: 4,
    chunks: 64,
    queue_depth: 32,
    window: 16,
    slots: 4,
    owner_slots: 4,
    commands: 8,
    acknowledge_ns: 1000,
};

const OWNER_LIMITS: OwnerLimits =
    OwnerLimits { links: 3, slots: 2, link_slots: 2, commands: 4, queue_depth: 16, patience_ns: 100 };

fn direct(operations: u32) -> Chunk {
    Chunk {
        route: Route::DIRECT,
        bytes: operations,
        src_pieces: operations,
        dst_pieces: operations,
        operations,
        command_bytes: 0,
        lists: 0,
    }
}

fn gather(src_pieces: u32, dst_pieces: u32) -> Chunk {
    Chunk { route: Route::GATHER, src_pieces, dst_pieces, ..direct(src_pieces.max(dst_pieces)) }
}

fn actions(requester: &mut Requester) -> Vec<RequesterAction> {
    std::iter::from_fn(|| requester.next_action()).collect()
}

fn owner_actions(owner: &mut Owner) -> Vec<OwnerAction> {
    std::iter::from_fn(|| owner.next_action()).collect()
}

fn id(batch: u64, number: u32) -> ChunkId {
    ChunkId { batch: BatchId(batch), number }
}

fn pack(number: u32) -> Request {
    Request::Pack { id: id(0, number), chunk: gather(9, 1), landing: Landing::Destination }
}

fn works(actions: &[RequesterAction]) -> Vec<(ChunkId, u32, WorkId)> {
    let posted = |action: &RequesterAction| match *action {
        RequesterAction::Post { id, count, work, .. } => Some((id, count, work)),
        RequesterAction::PostBulk { id, work, .. } => Some((id, 1, work)),
        _ => None,
    };
    actions.iter().filter_map(posted).collect()
}

#[test]
fn n_operations_in_windows_of_w_ring_n_over_w_doorbells_rounded_up_and_signal_one_of_each() {
    cases(500, |random| {
        let (operations, window) = (1 + random.small(500), 1 + random.small(20));
        let limits = RequesterLimits { window, queue_depth: window + random.small(3 * window), ..LIMITS };
        let mut requester = Requester::new(&limits);
        let batch = requester.begin(Direction::Read, 1).unwrap();
        requester.add(batch, direct(operations)).unwrap();
        requester.close(batch);
        let mut next = 0;
        let mut outstanding = Vec::new();
        loop {
            for action in actions(&mut requester) {
                match action {
                    RequesterAction::Post { first, count, work, .. } => {
                        assert_eq!(first, next);
                        next += count;
                        outstanding.push(work);
                    }
                    RequesterAction::ChunkDone { .. } => assert_eq!(next, operations),
                    RequesterAction::Finished { done, .. } => assert!(done),
                    other => panic!("{other:?}"),
                }
            }
            if outstanding.is_empty() {
                break;
            }
            let work = outstanding.swap_remove(random.below(outstanding.len() as u64) as usize);
            requester.completed(work, Ok(()), 0);
        }
        let counters = requester.counters();
        let expected = u64::from(operations.div_ceil(window));
        assert_eq!((counters.doorbells, counters.signalled), (expected, expected));
        assert_eq!((counters.operations, requester.batches()), (operations.into(), 0));
    });
}

#[test]
fn k_gathered_chunks_of_a_write_are_k_bulk_posts_and_of_a_read_k_commands() {
    let mut requester = Requester::new(&LIMITS);
    let write = requester.begin(Direction::Write, 4).unwrap();
    for _ in 0..9 {
        requester.add(write, gather(9, 1)).unwrap();
    }
    let read = requester.begin(Direction::Read, 8).unwrap();
    for _ in 0..9 {
        requester.add(read, gather(9, 1)).unwrap();
    }
    let (mut packed, mut posted) = (0, 0);
    loop {
        let found = actions(&mut requester);
        if found.is_empty() {
            break;
        }
        for action in found {
            match action {
                RequesterAction::Pack { id, lease, .. } => {
                    packed += 1;
                    requester.packed(id, lease, Ok(()), 0);
                }
                RequesterAction::PostBulk { work, origin: Origin::Slot(_), landing: Landing::Destination, .. } => {
                    posted += 1;
                    requester.completed(work, Ok(()), 0);
                }
                RequesterAction::Send(Request::Pack { id, landing: Landing::Destination, .. }) => {
                    requester.reply(Reply::Done(id), 0);
                }
                RequesterAction::ChunkDone { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    let counters = requester.counters();
    assert_eq!((packed, posted, counters.doorbells, counters.operations, counters.messages), (9, 9, 9, 9, 9));
}

#[test]
fn batches_share_the_queue_in_turn_and_a_window_does_not_starve_behind_small_posts() {
    let mut requester = Requester::new(&RequesterLimits { queue_depth: 16, ..LIMITS });
    let [long, small] = [0, 1].map(|_| requester.begin(Direction::Write, 4).unwrap());
    requester.add(small, gather(1, 1)).unwrap();
    let [(_, 1, first)] = works(&actions(&mut requester))[..] else { panic!("one bulk write is posted") };
    requester.add(long, direct(64)).unwrap();
    for _ in 0..20 {
        requester.add(small, gather(1, 1)).unwrap();
    }
    assert_eq!(works(&actions(&mut requester)), [], "the window's turn, and 15 of its 16 are free");
    requester.completed(first, Ok(()), 0);
    let order = works(&actions(&mut requester));
    assert_eq!(order.iter().map(|(id, count, _)| (id.batch, *count)).collect::<Vec<_>>(), [(long, 16)]);
    requester.completed(order[0].2, Ok(()), 0);
    let after = works(&actions(&mut requester));
    assert_eq!(after.iter().map(|(id, ..)| id.batch).collect::<Vec<_>>(), [small], "then the next window's turn");
}

#[test]
fn a_batch_uses_no_more_than_its_p_at_either_side() {
    let mut requester = Requester::new(&LIMITS);
    let read = requester.begin(Direction::Read, 2).unwrap();
    for _ in 0..5 {
        requester.add(read, gather(9, 9)).unwrap();
    }
    assert_eq!(actions(&mut requester).len(), 2);
    assert_eq!(requester.leased(), 2);
    requester.reply(Reply::Done(id(0, 0)), 0);
    let [RequesterAction::Unpack { id: landed, lease, .. }] = actions(&mut requester)[..] else { panic!("unpack") };
    requester.unpacked(landed, lease, Ok(()), 0);
    assert_eq!(actions(&mut requester).len(), 2, "one is done, and the next asked for");
    assert_eq!(requester.leased_peak(), 2);
}

#[test]
fn a_refused_chunk_gives_its_slot_back_and_goes_direct() {
    let mut requester = Requester::new(&LIMITS);
    let batch = requester.begin(Direction::Read, 1).unwrap();
    let chunk = requester.add(batch, gather(20, 20)).unwrap();
    actions(&mut requester);
    requester.reply(Reply::Refused(chunk), 0);
    assert_eq!(requester.leased(), 0);
    let windows = works(&actions(&mut requester));
    assert_eq!(windows.iter().map(|(id, count, _)| (*id, *count)).collect::<Vec<_>>(), [(chunk, 16), (chunk, 4)]);
    assert_eq!(requester.counters().refused, 1);
}

#[test]
fn a_chunk_that_could_never_get_what_it_needs_goes_direct() {
    let without = [
        (Direction::Read, RequesterLimits { slots: 0, ..LIMITS }, 1),
        (Direction::Read, RequesterLimits { commands: 0, ..LIMITS }, 1),
        (Direction::Read, LIMITS, 0),
        (Direction::Write, RequesterLimits { slots: 0, ..LIMITS }, 1),
        (Direction::Write, RequesterLimits { commands: 0, ..LIMITS }, 1),
        (Direction::Write, RequesterLimits { owner_slots: 0, ..LIMITS }, 1),
        (Direction::Write, RequesterLimits { queue_depth: 1, ..LIMITS }, 1),
    ];
    for (direction, limits, slots) in without {
        let mut requester = Requester::new(&limits);
        let batch = requester.begin(direction, slots).unwrap();
        requester.add(batch, gather(9, 9)).unwrap();
        let first = requester.next_action();
        assert!(matches!(first, Some(RequesterAction::Post { .. })), "{limits:?} gives {first:?}");
    }
}

#[test]
fn a_failure_is_said_at_once_and_the_batch_finishes_when_the_owner_has_drained_it() {
    let mut requester = Requester::new(&LIMITS);
    let batch = requester.begin(Direction::Read, 3).unwrap();
    let chunks = [0, 1, 2, 3].map(|_| requester.add(batch, gather(9, 1)).unwrap());
    assert_eq!(actions(&mut requester).len(), 3);
    requester.reply(Reply::Failed(chunks[1], FAULT), 5);
    let mut said = actions(&mut requester);
    assert_eq!(said.remove(0), RequesterAction::Failed { batch, chunk: 1, fault: FAULT });
    let cancel = RequesterAction::Send(Request::Cancel { batch });
    assert_eq!(said.iter().filter(|action| **action == cancel).count(), 1);
    let is_dropped = |action: &&RequesterAction| matches!(action, RequesterAction::ChunkDropped { .. });
    assert_eq!(said.iter().filter(is_dropped).count(), 2, "the failed one, and the one that had not started");
    requester.reply(Reply::Done(chunks[0]), 6);
    requester.reply(Reply::Done(chunks[2]), 6);
    assert_eq!(actions(&mut requester).len(), 2, "the batch waits for the last message of it");
    requester.reply(Reply::Drained(batch), 7);
    assert_eq!(actions(&mut requester), [RequesterAction::Finished { batch, done: false }]);
    assert_eq!(requester.next_timer_ns().map(|_| requester.advance(9999)), Some(()));
    assert_eq!((actions(&mut requester), requester.next_timer_ns()), (vec![], None), "nothing is awaited");
}

#[test]
fn a_link_that_does_not_acknowledge_a_cancel_in_time_is_broken_and_nothing_is_finished_before_it_is_quiet() {
    let mut requester = Requester::new(&LIMITS);
    let batch = requester.begin(Direction::Read, 3).unwrap();
    let [asked, waiting] = [gather(9, 9), gather(9, 9)].map(|chunk| requester.add(batch, chunk).unwrap());
    let other = requester.begin(Direction::Write, 3).unwrap();
    let packing = requester.add(other, gather(9, 1)).unwrap();
    let found = actions(&mut requester);
    let lease = found.iter().find_map(|action| match action {
        RequesterAction::Pack { lease, .. } => Some(*lease),
        _ => None,
    });
    requester.cancel(batch, 50);
    actions(&mut requester);
    assert_eq!(requester.next_timer_ns(), Some(1050));
    requester.advance(1049);
    assert_eq!(actions(&mut requester), []);
    requester.advance(1050);
    assert_eq!(actions(&mut requester), [RequesterAction::Break]);
    assert!(!requester.has_batch_room() && requester.begin(Direction::Read, 1).is_none());
    requester.quiesced();
    let said = actions(&mut requester);
    assert!(said.contains(&RequesterAction::Failed { batch: other, chunk: packing.number, fault: LINK_LOST }));
    assert!(said.contains(&RequesterAction::Finished { batch, done: false }));
    assert!(!said.contains(&RequesterAction::Finished { batch: other, done: false }), "a worker packs for it");
    for id in [asked, waiting] {
        assert!(said.contains(&RequesterAction::ChunkDropped { id, chunk: gather(9, 9) }));
    }
    assert_eq!(requester.leased(), 1);
    requester.packed(packing, lease.expect("it was packed"), Ok(()), 0);
    let after = actions(&mut requester);
    assert_eq!(after.last(), Some(&RequesterAction::Finished { batch: other, done: false }));
    assert_eq!((after.len(), requester.leased()), (2, 0));
}

#[test]
fn an_operation_that_fails_is_named_by_its_number_in_the_chunk() {
    let mut requester = Requester::new(&LIMITS);
    let batch = requester.begin(Direction::Read, 1).unwrap();
    requester.add(batch, direct(20)).unwrap();
    let windows = works(&actions(&mut requester));
    requester.completed(windows[1].2, Err(WorkFault { operation: 3, status: 12 }), 0);
    let fault = Fault { fragment: 19, ..Fault::new(Status::FAULT, Stage::WINDOW, Field::NONE, 12) };
    assert_eq!(actions(&mut requester), [RequesterAction::Failed { batch, chunk: 0, fault }]);
    requester.completed(windows[0].2, Ok(()), 0);
    assert_eq!(actions(&mut requester).len(), 2, "the chunk and the batch end when the other window has");
}

#[test]
fn a_partial_post_breaks_the_link_and_only_what_was_posted_counts() {
    let mut requester = Requester::new(&LIMITS);
    let batch = requester.begin(Direction::Read, 1).unwrap();
    requester.add(batch, direct(16)).unwrap();
    let [(_, 16, work)] = works(&actions(&mut requester))[..] else { panic!("one window") };
    requester.post_failed(work, 5);
    assert_eq!(actions(&mut requester), [RequesterAction::Break]);
    requester.completed(work, Ok(()), 0);
    assert_eq!((requester.counters().stale_completions, requester.outstanding()), (1, 5));
    assert_eq!((requester.counters().operations, requester.counters().signalled), (5, 0));
    requester.quiesced();
    assert_eq!((actions(&mut requester).len(), requester.outstanding()), (3, 0));
}

#[test]
fn a_reply_is_believed_only_of_what_was_sent() {
    let mut requester = Requester::new(&LIMITS);
    let batch = requester.begin(Direction::Write, 2).unwrap();
    let chunk = requester.add(batch, gather(9, 9)).unwrap();
    let [RequesterAction::Pack { lease, .. }] = actions(&mut requester)[..] else { panic!("pack") };
    for reply in [Reply::Done(chunk), Reply::Refused(chunk), Reply::Failed(chunk, FAULT), Reply::Drained(batch)] {
        requester.reply(reply, 0);
    }
    assert_eq!((requester.counters().stale_replies, actions(&mut requester)), (4, vec![]));
    requester.packed(chunk, lease, Ok(()), 0);
    let [(.., work)] = works(&actions(&mut requester))[..] else { panic!("the bulk write") };
    requester.reply(Reply::Done(chunk), 0);
    assert_eq!(actions(&mut requester), [], "its slot is still read from");
    requester.completed(work, Ok(()), 0);
    assert_eq!(actions(&mut requester).len(), 1);
}

#[test]
fn links_get_the_owners_slots_in_turn() {
    let mut owner = Owner::new(&OwnerLimits { slots: 1, ..OWNER_LIMITS });
    let links = [0, 1, 2].map(|_| owner.open().unwrap());
    assert_eq!(owner.open(), None);
    for number in 0..4 {
        assert!(owner.request(links[0], pack(number), 0));
    }
    assert!(owner.request(links[1], pack(0), 0) && owner.request(links[2], pack(0), 0));
    let mut order = Vec::new();
    while let Some(action) = owner.next_action() {
        match action {
            OwnerAction::Pack { link, id, lease, .. } => {
                order.push((link, id.number));
                owner.packed(link, id, lease, Ok(()));
            }
            OwnerAction::PostBulk { link, work, .. } => owner.completed(link, work, Ok(())),
            OwnerAction::Drop { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    let [a, b, c] = links;
    assert_eq!(order, [(a, 0), (b, 0), (c, 0), (a, 1), (a, 2), (a, 3)]);
}

#[test]
fn a_command_is_refused_when_it_has_waited_too_long_for_a_slot_and_one_that_needs_none_is_not() {
    let mut owner = Owner::new(&OwnerLimits { slots: 0, ..OWNER_LIMITS });
    let link = owner.open().unwrap();
    assert!(owner.request(link, pack(0), 10));
    let contiguous = Request::Pack { id: id(0, 1), chunk: gather(1, 1), landing: Landing::Destination };
    assert!(owner.request(link, contiguous, 10));
    assert!(matches!(owner_actions(&mut owner)[..], [OwnerAction::PostBulk { origin: Origin::Source, .. }]));
    assert_eq!(owner.next_timer_ns(), Some(110));
    owner.advance(109);
    assert_eq!(owner_actions(&mut owner), []);
    owner.advance(110);
    let refused = OwnerAction::Send { link, reply: Reply::Refused(id(0, 0)) };
    assert_eq!(owner_actions(&mut owner)[0], refused);
    assert_eq!((owner.next_timer_ns(), owner.counters().refused, owner.commands(link)), (None, 1, 0));
}

#[test]
fn a_requester_that_breaks_the_rules_loses_its_link_and_no_other() {
    let bad_slot = |slot| Request::Unpack { id: id(0, 9), chunk: gather(9, 9), slot };
    let nowhere = Request::Pack { id: id(0, 9), chunk: gather(9, 9), landing: Landing::Destination };
    let good = [pack(0), Request::Unpack { id: id(1, 0), chunk: gather(9, 9), slot: 1 }];
    let cancel = Request::Cancel { batch: BatchId(1) };
    let later = Request::Pack { id: id(1, 5), chunk: gather(1, 1), landing: Landing::Destination };
    let rows: [&[Request]; 8] = [
        &[pack(0)],
        &[bad_slot(1)],
        &[bad_slot(2)],
        &[bad_slot(u32::MAX)],
        &[nowhere],
        &[pack(1), pack(2), pack(3)],
        &[cancel, cancel],
        &[cancel, later],
    ];
    for bad in rows {
        let mut owner = Owner::new(&OWNER_LIMITS);
        let [link, other] = [0, 1].map(|_| owner.open().unwrap());
        assert!(good.iter().all(|request| owner.request(link, *request, 0)));
        assert!(owner.request(other, pack(0), 0));
        let tasks = owner_actions(&mut owner);
        assert_eq!(tasks.len(), 3);
        let (last, before) = bad.split_last().unwrap();
        for request in before {
            owner.request(link, *request, 0);
        }
        assert_eq!(owner.counters().violations, 0);
        assert!(!owner.request(link, *last, 0), "{last:?}");
        assert_eq!(owner.counters().violations, 1, "{last:?}");
        assert!(owner_actions(&mut owner).contains(&OwnerAction::Break { link }));
        assert!(!owner.request(link, pack(7), 0), "nothing is taken from it any more");
        owner.quiesced(link);
        for task in tasks {
            match task {
                OwnerAction::Pack { link, id, lease, .. } => owner.packed(link, id, lease, Ok(())),
                OwnerAction::Unpack { link, id, slot, .. } => owner.unpacked(link, id, slot, Ok(())),
                other => panic!("{other:?}"),
            }
        }
        let said = owner_actions(&mut owner);
        assert!(said.contains(&OwnerAction::Closed { link }));
        assert!(said.iter().any(|a| matches!(a, OwnerAction::PostBulk { link, .. } if *link == other)));
        assert_eq!(owner.leased(), 1, "the other link's");
    }
}

#[test]
fn a_link_that_was_closed_is_unknown_and_its_place_is_used_again() {
    let mut owner = Owner::new(&OwnerLimits { links: 1, ..OWNER_LIMITS });
    let old = owner.open().unwrap();
    owner.request(old, Request::Pack { id: id(0, 0), chunk: gather(1, 1), landing: Landing::Destination }, 0);
    let OwnerAction::PostBulk { work, .. } = owner.next_action().unwrap() else { panic!("posted at once") };
    owner.down(old);
    owner.quiesced(old);
    assert_eq!(owner_actions(&mut owner).last(), Some(&OwnerAction::Closed { link: old }));
    let link = owner.open().unwrap();
    assert_ne!(link, old);
    owner.completed(old, work, Ok(()));
    owner.completed(link, work, Ok(()));
    assert_eq!(owner.counters().stale_completions, 2);
    assert!(!owner.request(old, pack(0), 0) && owner.request(link, pack(0), 0));
}

#[test]
fn a_cancelled_batch_is_answered_once_and_last_and_an_unknown_one_at_once() {
    let mut owner = Owner::new(&OwnerLimits { slots: 3, ..OWNER_LIMITS });
    let link = owner.open().unwrap();
    let drained = |batch| OwnerAction::Send { link, reply: Reply::Drained(BatchId(batch)) };
    owner.request(link, Request::Cancel { batch: BatchId(7) }, 0);
    assert_eq!(owner_actions(&mut owner), [drained(7)]);

    (0..4).for_each(|number| assert!(owner.request(link, pack(number), 0)));
    let tasks = owner_actions(&mut owner);
    let pack = |number: usize| match tasks[number] {
        OwnerAction::Pack { id, lease, .. } => (id, lease),
        other => panic!("{other:?}"),
    };
    let [(a, in_a), (b, in_b), (c, in_c)] = [0, 1, 2].map(pack);
    owner.packed(link, a, in_a, Ok(()));
    let OwnerAction::PostBulk { work, .. } = owner.next_action().unwrap() else { panic!("posted") };
    assert!(matches!(owner_actions(&mut owner)[..], []), "the fourth waits for a slot");
    let only_drops = |said: Vec<OwnerAction>| said.iter().all(|action| matches!(action, OwnerAction::Drop { .. }));
    owner.request(link, Request::Cancel { batch: BatchId(0) }, 0);
    assert!(only_drops(owner_actions(&mut owner)));
    owner.packed(link, b, in_b, Ok(()));
    assert!(only_drops(owner_actions(&mut owner)), "it is not posted");
    owner.packed(link, c, in_c, Err(FAULT));
    assert!(only_drops(owner_actions(&mut owner)), "nor answered");
    owner.completed(link, work, Ok(()));
    assert_eq!(owner_actions(&mut owner)[0], drained(0));
}

#[test]
fn a_slot_whose_write_was_posted_without_its_message_is_kept_until_the_link_is_quiet() {
    for (posted, kept) in [(0, 0), (1, 1)] {
        let mut owner = Owner::new(&OWNER_LIMITS);
        let link = owner.open().unwrap();
        owner.request(link, pack(0), 0);
        let Some(OwnerAction::Pack { id, lease, .. }) = owner.next_action() else { panic!("packed first") };
        owner.packed(link, id, lease, Ok(()));
        let Some(OwnerAction::PostBulk { work, .. }) = owner.next_action() else { panic!("then posted") };
        owner.post_failed(link, work, posted);
        assert!(owner_actions(&mut owner).contains(&OwnerAction::Break { link }));
        assert_eq!(owner.leased(), kept, "{posted} posted");
        owner.quiesced(link);
        assert_eq!(owner_actions(&mut owner).last(), Some(&OwnerAction::Closed { link }));
        assert_eq!(owner.leased(), 0);
    }
}
