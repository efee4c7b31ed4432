//! Whatever goes wrong, nothing is leaked, promised twice, or called reusable too early: batches over a simulated link whose
//! bytes are really moved, at the times at which hardware would, also after a cancel.

mod seeded;

use ring_abi::IndexKind;
use scatter_ring::cost::{Budget, Choice, CopyProfile, Direction, LinkProfile, Wire};
use scatter_ring::plan::{Extent, Missing, Shape};
use scatter_ring::sim::{Effects, Faults, Job, Outcome, Part, Profile, Report, Run, Unreliable, run};
use seeded::Random;

/// Seeds; each is tried with every kind of fault.
const SEEDS: u64 = if cfg!(debug_assertions) { 100 } else { 1000 };

/// By when everything is over, whatever happens: the deadline, the wait for an answer to a cancel, and what hardware and
/// workers may take besides.
const BOUND_NS: u64 = DEADLINE_NS + 20_000_000;
const DEADLINE_NS: u64 = 20_000_000;

#[test]
fn every_run_ends_as_it_should_whatever_goes_wrong() {
    let mut seen = Seen::default();
    seeded::cases(SEEDS, |random| {
        let case = Case::random(random);
        for (name, faults) in faults(random) {
            let report = case.run(faults, random);
            case.check(name, &report);
            seen.add(&report);
        }
    });
    println!("{seen:?}");
    // A single case that is run again need not have met everything.
    if seen.runs > 1000 {
        assert!(seen.done > 0 && seen.failed > 0 && seen.cancelled > 0, "{seen:?}");
        assert!(seen.routes.iter().all(|runs| *runs > 0), "{seen:?}");
    }
}

#[derive(Debug, Default)]
struct Seen {
    runs: u32,
    done: u32,
    failed: u32,
    cancelled: u32,
    /// Direct, gather, hybrid.
    routes: [u32; 3],
}

impl Seen {
    fn add(&mut self, report: &Report) {
        self.runs += 1;
        match report.outcome {
            Outcome::Done => self.done += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::Cancelled => self.cancelled += 1,
        }
        if let Some(runs) = (report.chosen.0 as usize).checked_sub(1).and_then(|at| self.routes.get_mut(at)) {
            *runs += 1;
        }
    }
}

/// A job, and what carries it out.
struct Case {
    profile: Profile,
    job: Job,
    choice: Choice,
    callers: u32,
    batches: u32,
    owner_slots: Option<u32>,
}

impl Case {
    fn random(random: &mut Random) -> Case {
        let chunk_bytes = 64 << random.below(5);
        let choice = Choice {
            direct_from_bytes: random.pick(&[0, 64, 64, u32::MAX, u32::MAX]),
            chunk_bytes,
            slots: 1 + random.small(4),
        };
        let owner_slots = random.once_in(3).then(|| random.small(3));
        Case {
            profile: profile(random),
            job: job(random),
            choice,
            callers: 1 + random.small(3),
            batches: 1 + random.small(4),
            owner_slots,
        }
    }

    fn run(&self, faults: Faults, random: &mut Random) -> Report {
        run(&Run {
            forced: Some(self.choice),
            callers: self.callers,
            batches: self.batches,
            owner_slots: self.owner_slots,
            seed: random.word(),
            faults,
            data: true,
            ..Run::new(&self.profile, &self.job)
        })
    }

    fn check(&self, fault: &str, report: &Report) {
        let audit = &report.audit;
        let shown = || {
            let Case { callers, batches, owner_slots, choice, .. } = self;
            let ran = format!("{callers} callers, {batches} batches, {owner_slots:?} slots of the owner, {choice:?}");
            format!("with {fault}: {audit:?} {:?}, {} ns; {ran}; {:?}", report.outcome, report.total_ns, self.job)
        };
        // Without a deadline, each chunk may be refused after a wait.
        let in_time = fault == "nothing" || report.total_ns < BOUND_NS;
        assert!(!audit.cut_off && in_time, "did not end in time, {}", shown());
        assert_eq!(audit.not_finished_once, 0, "a batch was not finished once, {}", shown());
        assert_eq!(audit.spans_wrong, 0, "a batch's spans do not cover it once, {}", shown());
        assert_eq!(audit.leases_left, 0, "a lease leaked, {}", shown());
        assert_eq!(audit.lists_left, 0, "a chunk's lists leaked, {}", shown());
        assert_eq!(audit.slots_beyond, 0, "more staging than P x C, {}", shown());
        assert_eq!(audit.bytes_right, Some(true), "done, and the bytes are wrong, {}", shown());
        assert_eq!(audit.late_writes, 0, "written to after it was called reusable, {}", shown());
        if fault == "nothing" {
            assert_eq!(report.outcome, Outcome::Done, "nothing went wrong, {}", shown());
        }
    }
}

/// Each kind of fault alone, and all at once.
fn faults(random: &mut Random) -> Vec<(&'static str, Faults)> {
    let none = Faults { late_ns: random.below(300_000), deadline_ns: Some(DEADLINE_NS), ..Faults::default() };
    let rate = 1 + random.small(100);
    let soon = 2_000 + random.below(100_000);
    let unreliable = |part: u32| {
        let mut bad = Unreliable::default();
        *[&mut bad.lost, &mut bad.late, &mut bad.duplicate, &mut bad.error][part as usize] = rate;
        bad
    };
    let mut all = vec![("nothing", Faults::default())];
    for (part, completions, replies) in [
        (0, "lost completions", "lost replies"),
        (1, "late completions", "late replies"),
        (2, "duplicate completions", "duplicate replies"),
        (3, "error completions", "error replies"),
    ] {
        all.push((completions, Faults { completions: unreliable(part), ..none }));
        all.push((replies, Faults { replies: unreliable(part), ..none }));
    }
    all.push(("errors that stop the device", Faults { completions: unreliable(3), errors_break: true, ..none }));
    all.push(("half posted doorbells", Faults { post_fails: rate, ..none }));
    all.push(("refusing workers", Faults { pack_fails: rate, ..none }));
    all.push(("one refusing worker", Faults { pack_fails_at: Some(random.small(20)), ..none }));
    all.push(("a slow owner", Faults { stalls: 10 * rate, stall_ns: random.below(6_000_000), ..none }));
    all.push(("a link that goes down", Faults { down_at_ns: Some(soon), ..none }));
    all.push(("a cancel", Faults { cancel_at_ns: Some(soon), ..none }));
    let cancelled = Faults { cancel_at_ns: Some(soon), completions: unreliable(1), replies: unreliable(0), ..none };
    all.push(("a cancel that is not answered", cancelled));
    let mixed = Unreliable { lost: rate / 8, late: rate / 4, duplicate: rate / 4, error: rate / 8 };
    all.push((
        "everything",
        Faults {
            completions: mixed,
            replies: mixed,
            errors_break: random.once_in(2),
            post_fails: rate / 8,
            pack_fails: rate / 8,
            stalls: rate,
            stall_ns: random.below(1_000_000),
            down_at_ns: random.once_in(4).then_some(2 * soon),
            cancel_at_ns: random.once_in(4).then_some(soon),
            ..none
        },
    ));
    all
}

fn profile(random: &mut Random) -> Profile {
    let copies = |random: &mut Random| CopyProfile {
        bytes_per_ns: 1.0,
        piece_ns: random.small(200).into(),
        decode_ns: 2.0,
        plan_ns: 2.0,
        workers: 1 + random.small(3),
    };
    let wire = if random.once_in(4) { Wire::Cpu { ns_per_byte: 1.0, cores: 1 + random.small(3) } } else { Wire::Nic };
    let round_trip_ns = (100 + random.below(20_000)) as f64;
    Profile {
        name: "random",
        about: "random",
        link: LinkProfile {
            bytes_per_ns: 0.1 + random.small(20) as f64 / 10.0,
            round_trip_ns,
            operation_ns: random.small(300).into(),
            doorbell_ns: random.small(300).into(),
            completion_ns: random.small(300).into(),
            queue_depth: 2 + random.small(40),
            max_sge: 1 + random.small(4),
            control_ns: random.small(3_000).into(),
            chunk_fixed_ns: random.small(1_000).into(),
            wire,
        },
        requester: copies(random),
        owner: copies(random),
        budget: Budget { staging_bytes: 1 << 20, slots_max: 8, chunk_bytes_max: 1 << 16 },
        effects: Effects {
            memory_bytes_per_ns: 2.0,
            cache_bytes: 256,
            beyond_cache: 0.5,
            jitter_ns: random.below(3_000),
            hiccup_every_ns: random.pick(&[0, 20_000]),
            hiccup_ns: 5_000,
            gap_ns: 5.0,
            ..Effects::NONE
        },
    }
}

/// A few descriptors whose destinations do not overlap.
fn job(random: &mut Random) -> Job {
    let direction = random.pick(&[Direction::Read, Direction::Write]);
    let mut free = random.below(100);
    let parts = (0..1 + random.below(8)).map(|_| part(random, &mut free)).collect();
    Job { direction, parts }
}

fn part(random: &mut Random, free: &mut u64) -> Part {
    let indexed = [random.once_in(2), random.once_in(3)];
    let most = if random.once_in(4) { 4 } else { 40 };
    let count = 1 + random.small(most);
    let most = if random.once_in(3) { 300 } else { 60 };
    let len = 1 + random.small(most);
    let inner_count = if random.once_in(5) { 1 + random.small(4) } else { 1 };
    let gap = |random: &mut Random| if random.once_in(2) { 0 } else { random.small(20) };
    let inner = [len + gap(random), len + gap(random)];
    let extent = |side: usize| (inner_count - 1) * inner[side] + len;
    let strides = [extent(0) + gap(random), extent(1) + gap(random)];
    let rows = 2 * count;
    let missing = if indexed[0] { random.pick(&[Missing::Row, Missing::Zero, Missing::Skip]) } else { Missing::Row };
    let src: Vec<u32> =
        if indexed[0] { (0..count).map(|_| source(random, rows, missing)).collect() } else { Vec::new() };
    let dst: Vec<u32> = if indexed[1] { shuffled(random, count) } else { Vec::new() };
    let kind = |indexed| if indexed { IndexKind::U32 } else { IndexKind::None };
    let offsets = [random.below(50), *free, 0];
    *free += u64::from(strides[1]) * u64::from(count) + random.below(2) * random.below(30);
    let shape = Shape {
        regions: [1, 2, if indexed[0] || indexed[1] { 3 } else { 0 }],
        offsets,
        count,
        len,
        strides,
        inner_count,
        inner_strides: inner,
        kinds: [kind(indexed[0]), kind(indexed[1])],
        missing,
    };
    let bytes = |side: usize, rows: u32| offsets[side] + u64::from(strides[side]) * u64::from(rows);
    let extent = |bytes| Extent { bytes, misalignment: 0 };
    let transfer = shape.bounds(extent(bytes(0, rows)), extent(bytes(1, count)), Some(extent(1 << 20))).unwrap();
    Part { transfer, src, dst }
}

fn source(random: &mut Random, rows: u32, missing: Missing) -> u32 {
    if missing != Missing::Row && random.once_in(8) { u32::MAX } else { random.small(rows) }
}

fn shuffled(random: &mut Random, count: u32) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..count).collect();
    for i in (1..numbers.len()).rev() {
        numbers.swap(i, random.below(i as u64 + 1) as usize);
    }
    numbers
}
