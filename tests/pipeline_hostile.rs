//! Any sequence of events, from a peer, a device or workers that say anything: no panic, no lost slot, all limits held,
//! and, in the same runs, no allocation after the start.
//!
//! One test in a binary of its own: the allocator counts for the whole thread.

mod counting;
mod seeded;

use ring_abi::{Field, Route, Stage, Status};
use scatter_ring::pipeline::{
    BatchId, Chunk, ChunkId, Landing, Lease, LinkId, Owner, OwnerAction, OwnerLimits, Reply, Request, Requester,
    RequesterAction, RequesterLimits, WorkFault, WorkId,
};
use scatter_ring::plan::{Direction, Fault};
use seeded::{Random, cases};

/// More than one run can hear of.
const ROOM: usize = 512;

/// What was heard of, to be said again: the last of it, in any order.
struct Heard<T> {
    values: [Option<T>; ROOM],
    count: usize,
}

impl<T: Copy> Heard<T> {
    fn new() -> Heard<T> {
        Heard { values: [None; ROOM], count: 0 }
    }

    fn add(&mut self, value: T) {
        self.values[self.count % ROOM] = Some(value);
        self.count += 1;
    }

    fn any(&self, random: &mut Random) -> Option<T> {
        let back = random.below(self.count.clamp(1, 12) as u64) as usize;
        self.values[(self.count.max(1) - 1 - back) % ROOM]
    }
}

#[test]
fn no_sequence_of_events_panics_allocates_or_loses_a_slot() {
    cases(3_000, |random| {
        any_requester(random);
        any_owner(random);
    });
}

/// What a requester has said.
struct RequesterHeard {
    batches: Heard<BatchId>,
    works: Heard<WorkId>,
    tasks: Heard<(ChunkId, Lease)>,
    asked: Heard<ChunkId>,
}

impl RequesterHeard {
    fn hear(&mut self, action: RequesterAction) {
        match action {
            RequesterAction::Post { work, .. } => self.works.add(work),
            RequesterAction::PostBulk { id, work, .. } => {
                self.works.add(work);
                self.asked.add(id);
            }
            RequesterAction::Pack { id, lease, .. } | RequesterAction::Unpack { id, lease, .. } => {
                self.tasks.add((id, lease));
            }
            RequesterAction::Send(Request::Pack { id, .. }) => self.asked.add(id),
            _ => {}
        }
    }
}

fn any_requester(random: &mut Random) {
    let limits = RequesterLimits {
        batches: random.small(5),
        chunks: random.small(20),
        queue_depth: random.pick(&[0, 1, 2, 9]),
        window: random.pick(&[0, 1, 3, u32::MAX]),
        slots: random.small(5),
        owner_slots: random.small(4),
        commands: random.small(8),
        acknowledge_ns: random.pick(&[0, 5, u64::MAX]),
    };
    let mut requester = Requester::new(&limits);
    let before = counting::own_allocations();
    let mut heard =
        RequesterHeard { batches: Heard::new(), works: Heard::new(), tasks: Heard::new(), asked: Heard::new() };
    for _ in 0..random.below(400) {
        requester_event(&mut requester, &mut heard, random);
        while let Some(action) = requester.next_action() {
            heard.hear(action);
        }
        assert!(requester.leased() <= limits.slots && requester.outstanding() <= limits.queue_depth.max(1));
    }
    requester.quiesced();
    while requester.next_action().is_some() {}
    for (id, lease) in heard.tasks.values.into_iter().flatten() {
        requester.packed(id, lease, Ok(()), 0);
        requester.unpacked(id, lease, Ok(()), 0);
    }
    while requester.next_action().is_some() {}
    assert_eq!((requester.leased(), requester.batches(), requester.outstanding()), (0, 0, 0));
    assert_eq!(counting::own_allocations(), before, "allocations");
}

fn requester_event(requester: &mut Requester, heard: &mut RequesterHeard, random: &mut Random) {
    let now_ns = any_time(random);
    let batch = heard.batches.any(random).unwrap_or(BatchId(random.word()));
    let id = if random.once_in(4) { any_id(random) } else { heard.asked.any(random).unwrap_or(any_id(random)) };
    let work = heard.works.any(random).unwrap_or(WorkId(random.word()));
    let (task, lease) = heard.tasks.any(random).unwrap_or((id, any_lease(random)));
    let result = if random.once_in(8) { Err(any_fault(random)) } else { Ok(()) };
    match random.below(32) {
        0 | 1 => {
            if let Some(batch) = requester.begin(random.pick(&[Direction::Read, Direction::Write]), random.small(5)) {
                heard.batches.add(batch);
            }
        }
        2..12 => drop(requester.add(batch, any_chunk(random))),
        12 => requester.close(batch),
        13 if random.once_in(4) => requester.cancel(batch, now_ns),
        14..18 => requester.packed(task, lease, result, now_ns),
        18..20 => requester.unpacked(task, lease, result, now_ns),
        20..24 => requester.completed(work, Ok(()), now_ns),
        24 if random.once_in(4) => {
            let fault = WorkFault { operation: random.word() as u32, status: random.word() as u32 };
            requester.completed(work, Err(fault), now_ns);
        }
        25 if random.once_in(16) => requester.post_failed(work, random.small(9)),
        26 if random.once_in(64) => requester.down(),
        27 if random.once_in(64) => requester.quiesced(),
        28 if random.once_in(4) => requester.advance(now_ns),
        29 => requester.reply(Reply::Drained(batch), now_ns),
        30 if random.once_in(4) => requester.reply(Reply::Failed(id, any_fault(random)), now_ns),
        _ => requester.reply(random.pick(&[Reply::Done(id), Reply::Done(id), Reply::Refused(id)]), now_ns),
    }
}

fn any_owner(random: &mut Random) {
    let limits = OwnerLimits {
        links: random.small(4),
        slots: random.small(4),
        link_slots: random.small(3),
        commands: random.small(16),
        queue_depth: random.pick(&[0, 2, 5]),
        patience_ns: random.pick(&[0, 5, u64::MAX]),
    };
    let mut owner = Owner::new(&limits);
    let before = counting::own_allocations();
    let mut links = Heard::<LinkId>::new();
    let mut works = Heard::<WorkId>::new();
    let mut tasks = Heard::<(LinkId, ChunkId, Lease)>::new();
    let mut kept = 0_i64;
    for number in 0..random.small(400) {
        // Mostly as a good requester counts: a link does not live long otherwise.
        let id = if random.once_in(16) { any_id(random) } else { ChunkId { number, ..any_id(random) } };
        kept += i64::from(owner_event(&mut owner, id, &mut links, &works, &tasks, random));
        while let Some(action) = owner.next_action() {
            kept -= owner_action(action, &mut works, &mut tasks);
        }
        assert!(owner.leased() <= limits.slots);
    }
    for _ in 0..2 {
        for link in links.values.into_iter().flatten() {
            owner.quiesced(link);
        }
        for (link, id, lease) in tasks.values.into_iter().flatten() {
            owner.packed(link, id, lease, Ok(()));
            owner.unpacked(link, id, lease.slot, Ok(()));
        }
        while let Some(action) = owner.next_action() {
            kept -= owner_action(action, &mut works, &mut tasks);
        }
    }
    assert_eq!((owner.leased(), kept), (0, 0));
    for link in links.values.into_iter().flatten() {
        assert_eq!(owner.commands(link), 0);
    }
    assert_eq!(counting::own_allocations(), before, "allocations");
}

/// 1 if the action drops a chunk's lists.
fn owner_action(action: OwnerAction, works: &mut Heard<WorkId>, tasks: &mut Heard<(LinkId, ChunkId, Lease)>) -> i64 {
    match action {
        OwnerAction::PostBulk { work, .. } => works.add(work),
        OwnerAction::Pack { link, id, lease, .. } => tasks.add((link, id, lease)),
        OwnerAction::Unpack { link, id, slot, .. } => tasks.add((link, id, Lease { slot, generation: u32::MAX })),
        OwnerAction::Drop { .. } => return 1,
        _ => {}
    }
    0
}

fn owner_event(
    owner: &mut Owner,
    id: ChunkId,
    links: &mut Heard<LinkId>,
    works: &Heard<WorkId>,
    tasks: &Heard<(LinkId, ChunkId, Lease)>,
    random: &mut Random,
) -> bool {
    let link = links.any(random).unwrap_or(LinkId(random.word()));
    let work = works.any(random).unwrap_or(WorkId(random.word()));
    let (of, task, lease) = tasks.any(random).unwrap_or((link, id, any_lease(random)));
    let result = if random.once_in(8) { Err(any_fault(random)) } else { Ok(()) };
    let chunk = any_chunk(random);
    let slot = if random.once_in(16) { random.pick(&[2, u32::MAX]) } else { random.small(2) };
    match random.below(32) {
        0 => {
            if let Some(link) = owner.open() {
                links.add(link);
            }
        }
        1..6 => owner.packed(of, task, lease, result),
        6..9 => owner.unpacked(of, task, lease.slot, result),
        9..15 => owner.completed(link, work, Ok(())),
        15 => owner.completed(link, work, Err(WorkFault { operation: u32::MAX, status: u32::MAX })),
        16 if random.once_in(32) => owner.post_failed(link, work, random.small(3)),
        17 if random.once_in(32) => owner.down(link),
        18 if random.once_in(32) => owner.quiesced(link),
        19 if random.once_in(4) => owner.advance(any_time(random)),
        20 if random.once_in(4) => return owner.request(link, Request::Cancel { batch: id.batch }, any_time(random)),
        21 | 22 => return owner.request(link, Request::Unpack { id, chunk, slot }, any_time(random)),
        _ => {
            let landing = if chunk.dst_pieces > 1 { Landing::Slot(slot) } else { Landing::Destination };
            return owner.request(link, Request::Pack { id, chunk, landing }, any_time(random));
        }
    }
    false
}

fn any_time(random: &mut Random) -> u64 {
    random.pick(&[0, 1, 7, 30, u64::MAX - 1, u64::MAX])
}

fn any_id(random: &mut Random) -> ChunkId {
    ChunkId { batch: BatchId(random.below(4)), number: random.pick(&[0, 1, 2, 3, 4, u32::MAX]) }
}

fn any_lease(random: &mut Random) -> Lease {
    Lease { slot: random.pick(&[0, 1, u32::MAX]), generation: random.small(2) }
}

fn any_fault(random: &mut Random) -> Fault {
    let fault = Fault::new(Status(random.word() as i32), Stage::PACK, Field(random.word() as u32), random.word());
    Fault { fragment: random.word() as u32, ..fault }
}

fn any_chunk(random: &mut Random) -> Chunk {
    let pieces = [0, 1, 2, 9, u32::MAX];
    Chunk {
        route: random.pick(&[Route::NONE, Route::DIRECT, Route::GATHER, Route::GATHER, Route::GATHER, Route(200)]),
        bytes: random.pick(&pieces),
        src_pieces: random.pick(&pieces),
        dst_pieces: random.pick(&pieces),
        operations: random.pick(&pieces),
        command_bytes: random.pick(&pieces),
        lists: random.pick(&pieces),
    }
}
