//! The cost model: its figures, how they move, and what is chosen by them.

mod seeded;
mod situations;

use scatter_ring::cost::{
    Bound, Budget, Choice, Class, CopyProfile, Direction, LinkProfile, Prediction, Route, Shortage, Situation, Verdict,
    Wire, choose, device_gathers_from, explain, predict,
};
use situations::{any_class, any_situation, any_work, plain, reference, rows, work};

const ALL_GATHERED: Choice = Choice { direct_from_bytes: u32::MAX, chunk_bytes: 128 << 10, slots: 4 };

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{found} is not {expected}");
}

#[test]
fn the_direct_route_takes_a_round_trip_and_the_longer_of_bytes_and_operations() {
    // 10,000 operations at 100 ns, 1 MB at 10 B/ns: the operations.
    let small = predict(&work(&[rows(10_000, 100)]), &plain(), Choice::DIRECT);
    close(small.total_ns, 2000.0 + 1e6);
    assert_eq!((small.bound_by, small.operations, small.doorbells), (Bound::Operations, 10_000, 157));
    // 10 operations, 10 MB: the bytes.
    let large = predict(&work(&[rows(10, 1_000_000)]), &plain(), Choice::DIRECT);
    close(large.total_ns, 2000.0 + 1e6);
    assert_eq!((large.bound_by, large.doorbells), (Bound::Wire, 1));
    // Both, one behind the other on the same wire.
    let both = predict(&work(&[rows(10_000, 100), rows(10, 1_000_000)]), &plain(), Choice::DIRECT);
    close(both.total_ns, 2000.0 + 2e6);
}

#[test]
fn a_full_queue_costs_a_round_trip_for_each_round_after_the_first() {
    let mut far = plain();
    far.link = LinkProfile { round_trip_ns: 1e6, queue_depth: 128, ..far.link };
    // 1,280 operations are 10 rounds of two windows of 64; a window is 6,400 ns on the wire, the last round 12,800.
    let predicted = predict(&work(&[rows(1280, 100)]), &far, Choice::DIRECT);
    close(predicted.total_ns, 9.0 * (1e6 + 6400.0) + 12_800.0 + 1e6);
    assert_eq!(predicted.bound_by, Bound::QueueDepth);
    // As many as the queue holds wait for one.
    close(predict(&work(&[rows(128, 100)]), &far, Choice::DIRECT).total_ns, 1e6 + 12_800.0);
}

#[test]
fn planning_doorbells_and_completions_are_the_pollers() {
    let mut slow = plain();
    slow.requester.plan_ns = 500.0;
    slow.link = LinkProfile { doorbell_ns: 700.0, completion_ns: 300.0, ..slow.link };
    // 6,400 fragments in 100 windows; the last window is 6,400 ns on the wire, and a round trip behind that.
    let predicted = predict(&work(&[rows(6400, 100)]), &slow, Choice::DIRECT);
    close(predicted.plan_ns, 6400.0 * 500.0 + 100.0 * 1000.0);
    close(predicted.total_ns, predicted.plan_ns + 6400.0 + 2000.0);
    assert_eq!(predicted.bound_by, Bound::Plan);
}

#[test]
fn an_operation_has_as_many_local_pieces_as_the_link_allows() {
    let mut wide = plain();
    wide.link.max_sge = 16;
    // READ of one run that lands in 1,600 pieces: 100 operations. A WRITE to 1,600 places: 1,600.
    let scattered = work(&[Class { fragments: 1600, segments: 1600, src_pieces: 1, dst_pieces: 1600, bytes: 160_000 }]);
    let gathered = work(&[rows(1600, 100)]);
    let write = Situation { direction: Direction::Write, ..wide };
    let operations = |work, situation| predict(work, situation, Choice::DIRECT).operations;
    assert_eq!([operations(&scattered, &wide), operations(&scattered, &write)], [100, 1600]);
    assert_eq!([operations(&gathered, &wide), operations(&gathered, &write)], [1600, 100]);
}

#[test]
fn gathering_takes_the_longest_stage_and_what_is_before_and_behind_it() {
    // 1 MB: chunks of 16, 32, 64 KiB, and 885,312 B in 7 of at most 128 KiB. All packing is 10^6 / 5 + 10^4 * 20 ns, by
    // four workers 100 us; the wire 100 us.
    let many = work(&[rows(10_000, 100)]);
    let predicted = predict(&many, &plain(), ALL_GATHERED);
    assert_eq!((predicted.chunks, predicted.operations), (10, 10));
    close(predicted.pack_ns, 100_000.0);
    close(predicted.wire_ns, 100_000.0);
    close(predicted.command_ns, 2000.0);
    // One slot and one worker: a chunk every 40 us. Behind the first, whose turn is short, each of the other eight that wait
    // for the slot waits for the rest of a turn (command 2,000, packing 40,000, wire 10,000, half a trip 1,000).
    let predicted = predict(&many, &plain(), Choice { slots: 1, ..ALL_GATHERED });
    assert_eq!(predicted.bound_by, Bound::Slots);
    close(predicted.total_ns, 2000.0 + 6553.6 + 10.0 * 40_000.0 + 8.0 * 13_000.0 + 1000.0);
    // With eight slots and workers to fill them it is the wire: command, the first full chunk's packing (the ones
    // before it are sent by then), the bytes from there on, half a trip.
    let mut wide = plain();
    wide.owner.workers = 8;
    let predicted = predict(&many, &wide, Choice { slots: 8, ..ALL_GATHERED });
    assert_eq!(predicted.bound_by, Bound::Wire);
    close(predicted.fill_ns, 2000.0 + 52_428.8);
    close(predicted.total_ns, predicted.fill_ns + 100_000.0 - 11_468.8 + 1000.0);
}

#[test]
fn only_a_fragmented_side_is_copied() {
    let pieces = |src_pieces, dst_pieces| {
        let class = Class { fragments: 10_000, segments: 10_000, src_pieces, dst_pieces, bytes: 1_000_000 };
        let predicted = predict(&work(&[class]), &plain(), ALL_GATHERED);
        (predicted.pack_ns > 0.0, predicted.unpack_ns > 0.0)
    };
    assert_eq!(pieces(10_000, 1), (true, false));
    assert_eq!(pieces(1, 10_000), (false, true));
    assert_eq!(pieces(10_000, 10_000), (true, true));
    assert_eq!(pieces(1, 1), (false, false));
}

#[test]
fn the_side_that_sends_packs() {
    let mut uneven = plain();
    uneven.owner.bytes_per_ns = 0.5;
    let write = Situation { direction: Direction::Write, ..uneven };
    let many = work(&[rows(10_000, 100)]);
    let (read, write) = (predict(&many, &uneven, ALL_GATHERED), predict(&many, &write, ALL_GATHERED));
    close(write.pack_ns, 100_000.0);
    close(read.pack_ns, (1e6 / 0.5 + 10_000.0 * 20.0) / 4.0);
    // A write to one run needs no command: it is over with its completion.
    assert_eq!(write.command_ns, 0.0);
}

#[test]
fn packing_runs_on_as_many_workers_as_there_are_slots() {
    let many = work(&[rows(100_000, 100)]);
    let mut wide = plain();
    let pack_ns = |situation: &Situation, slots| predict(&many, situation, Choice { slots, ..ALL_GATHERED }).pack_ns;
    close(pack_ns(&wide, 2), 4e6 / 2.0);
    close(pack_ns(&wide, 4), 4e6 / 4.0);
    close(pack_ns(&wide, 8), 4e6 / 4.0);
    wide.owner.workers = 0;
    close(pack_ns(&wide, 8), 4e6);
}

#[test]
fn a_chunk_has_no_more_pieces_than_its_list() {
    let many = work(&[rows(4096 * 10, 64)]);
    let large = Choice { chunk_bytes: 4 << 20, ..ALL_GATHERED };
    assert_eq!(predict(&many, &plain(), large).chunks, 10);
    // The same bytes in longer rows are one chunk of C after three that are smaller.
    assert_eq!(predict(&work(&[rows(40, 64 << 10)]), &plain(), large).chunks, 3);
}

#[test]
fn processors_that_are_the_wire_do_all_work_together() {
    let mut tcp = plain();
    tcp.link.wire = Wire::Cpu { ns_per_byte: 0.5, cores: 2 };
    // Packing is 400 us of work and the wire 500, on two processors.
    let predicted = predict(&work(&[rows(10_000, 100)]), &tcp, ALL_GATHERED);
    assert_eq!(predicted.bound_by, Bound::Processors);
    // Ten chunks have an operation of 100 ns each. The two share all of it but the last chunk of 128 KiB. Before it is the
    // command; behind it the last chunk is packed by one, moved up to its first 64 KiB, on the wire, and half a trip on its way.
    let (last_pack_ns, last_moving_ns) = (52_428.8, 65_536.0 + 100.0);
    let shared_ns = (901_000.0 - last_pack_ns - last_moving_ns) / 2.0;
    close(predicted.fill_ns, 2000.0);
    close(predicted.total_ns, 2000.0 + shared_ns + last_pack_ns + 32_868.0 + 13_107.2 + 1000.0);
}

#[test]
fn a_mixed_plan_shares_the_wire() {
    let mixed = work(&[rows(10_000, 100), rows(10, 1_000_000)]);
    let hybrid = Choice { direct_from_bytes: 1 << 19, ..ALL_GATHERED };
    let predicted = predict(&mixed, &plain(), hybrid);
    close(predicted.wire_ns, 100_000.0 + 1e6);
    assert_eq!((predicted.chunks, predicted.operations), (10, 20));
    // The long ones are on the wire while the first chunk is packed.
    close(predicted.total_ns, 1.1e6 + 2000.0);
}

#[test]
fn what_goes_directly_holds_up_the_chunks_beside_it() {
    let small = work(&[rows(10_000, 100)]);
    let mixed = work(&[rows(10_000, 100), rows(1, 1_000_000)]);
    let one_slot = Choice { direct_from_bytes: 1 << 19, slots: 1, ..ALL_GATHERED };
    let total_ns = |work, direction| predict(work, &Situation { direction, ..plain() }, one_slot).total_ns;
    // WRITE has one queue: whatever is posted directly goes first, 100 us.
    let alone_ns = total_ns(&small, Direction::Write);
    close(total_ns(&mixed, Direction::Write), alone_ns + 100_000.0);
    // READ takes turns: the wire has pauses in which some of it is sent.
    let alone_ns = total_ns(&small, Direction::Read);
    let beside_ns = total_ns(&mixed, Direction::Read);
    assert!(alone_ns + 10_000.0 < beside_ns && beside_ns < alone_ns + 90_000.0, "{alone_ns} {beside_ns}");
}

#[test]
fn the_reference_s_direct_control_is_predicted() {
    let w4 = choose(&work(&[rows(64, 512 << 10)]), &reference());
    let measured_ns = 3.384e6;
    let off = w4.direct_ns / measured_ns - 1.0;
    println!("W4: {:.3} ms predicted, 3.384 ms measured by others", w4.direct_ns / 1e6);
    assert!(off.abs() < 0.03, "{off}");
    assert_eq!(w4.choice, Choice::DIRECT);
}

#[test]
fn what_must_be_direct_is_direct() {
    for situation in [plain(), reference()] {
        for direction in [Direction::Read, Direction::Write] {
            let situation = Situation { direction, ..situation };
            for bytes in [1, 64, 4096, 1 << 20, 64 << 20] {
                assert_eq!(choose(&work(&[rows(1, bytes)]), &situation).choice, Choice::DIRECT, "one of {bytes}");
            }
            for len in [32 << 10, 512 << 10] {
                let decision = choose(&work(&[rows(64, len)]), &situation);
                assert!(decision.predicted.total_ns <= decision.direct_ns * 1.05, "few of {len}: {decision:?}");
            }
        }
    }
}

#[test]
fn many_small_pieces_are_gathered_on_a_device() {
    for situation in [plain(), reference()] {
        for (count, len) in [(98_304, 264), (131_072, 264), (32_768, 64), (98_304, 512)] {
            let decision = choose(&work(&[rows(count, len)]), &situation);
            assert_eq!(decision.choice.route(), Route::Gather, "{count} x {len}: {decision:?}");
            assert!(decision.predicted.total_ns < decision.direct_ns * 0.6);
        }
    }
}

#[test]
fn small_and_large_pieces_together_are_mixed() {
    let w3 = work(&[rows(32_768, 264), rows(64, 512 << 10)]);
    let decision = choose(&w3, &reference());
    assert_eq!(decision.choice.route(), Route::Hybrid, "{decision:?}");
    assert!(decision.choice.direct_from_bytes > 264 && decision.choice.direct_from_bytes <= 512 << 10);
}

#[test]
fn a_copy_more_is_no_gain_where_the_processors_are_the_wire() {
    // Memory that both map: the direct route copies once, at the price of a copy.
    let mut shared = plain();
    shared.link = LinkProfile {
        bytes_per_ns: 10.0,
        round_trip_ns: 100.0,
        operation_ns: 20.0,
        queue_depth: 1 << 16,
        wire: Wire::Cpu { ns_per_byte: 0.2, cores: 2 },
        ..shared.link
    };
    for (count, len) in [(98_304, 264), (1024, 64), (64, 512 << 10)] {
        assert_eq!(choose(&work(&[rows(count, len)]), &shared).choice, Choice::DIRECT, "{count} x {len}");
    }
}

#[test]
fn a_link_around_the_world_gets_chunks_as_large_as_the_budget_has() {
    let mut far = plain();
    far.link.round_trip_ns = 1e8;
    let decision = choose(&work(&[rows(98_304, 264)]), &far);
    assert_eq!(decision.choice.route(), Route::Gather);
    let Choice { chunk_bytes, slots, .. } = decision.choice;
    assert!(u64::from(chunk_bytes) * u64::from(slots) >= 8 << 20, "{decision:?}");
}

#[test]
fn nothing_to_move_takes_no_time() {
    for work in [work(&[]), work(&[Class::default()])] {
        let decision = choose(&work, &plain());
        assert_eq!((decision.choice, decision.predicted), (Choice::DIRECT, Prediction::default()));
        assert_eq!((decision.direct_ns, decision.gather_ns, decision.hybrid_ns), (0.0, None, None));
        assert_eq!(explain(&work, &plain()).candidates.len(), 1);
    }
}

#[test]
fn without_staging_nothing_is_gathered() {
    let many = work(&[rows(98_304, 264)]);
    let budgets = [
        (Shortage::Slots, Budget { slots_max: 0, ..plain().budget }),
        (Shortage::ChunkBytes, Budget { chunk_bytes_max: 0, ..plain().budget }),
        (Shortage::StagingBytes, Budget { staging_bytes: 0, ..plain().budget }),
    ];
    for (shortage, budget) in budgets {
        let situation = Situation { budget, ..plain() };
        let explained = explain(&many, &situation);
        assert_eq!((explained.decision.choice, explained.decision.gather_ns), (Choice::DIRECT, None));
        let refused = &explained.candidates[1..];
        assert!(
            !refused.is_empty() && refused.iter().all(|c| c.verdict == Verdict::NoBudget(shortage)),
            "{shortage:?}"
        );
    }
}

/// Every number that a profile may not have, in every place.
#[test]
fn figures_that_cannot_be_give_finite_times() {
    const ODD: [f64; 7] = [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE];
    seeded::cases(20_000, |random| {
        let mut situation = any_situation(random);
        for _ in 0..=random.below(4) {
            let value = random.pick(&ODD);
            let Situation { link, requester, owner, .. } = &mut situation;
            match random.below(12) {
                0 => link.bytes_per_ns = value,
                1 => link.round_trip_ns = value,
                2 => link.operation_ns = value,
                3 => link.doorbell_ns = value,
                4 => link.completion_ns = value,
                5 => (link.queue_depth, link.max_sge) = random.pick(&[(0, 0), (u32::MAX, u32::MAX)]),
                6 => link.control_ns = value,
                7 => link.chunk_fixed_ns = value,
                8 => requester.plan_ns = value,
                9 => owner.bytes_per_ns = value,
                10 => (requester.piece_ns, requester.workers) = (value, 0),
                _ => link.wire = Wire::Cpu { ns_per_byte: value, cores: 0 },
            }
        }
        let mut work = any_work(random);
        if random.once_in(4) {
            let most = u64::MAX / 2;
            work.add(&Class { fragments: most, segments: most, src_pieces: most, dst_pieces: most, bytes: most });
        }
        let explained = explain(&work, &situation);
        for candidate in &explained.candidates {
            let Prediction { total_ns, plan_ns, command_ns, pack_ns, wire_ns, unpack_ns, fill_ns, drain_ns, .. } =
                candidate.predicted;
            for ns in [total_ns, plan_ns, command_ns, pack_ns, wire_ns, unpack_ns, fill_ns, drain_ns] {
                assert!(ns.is_finite() && ns >= 0.0, "{candidate:?}");
            }
            if let Verdict::SlowerBy(part) | Verdict::WithinMargin(part) | Verdict::Busier(part) = candidate.verdict {
                assert!(part.is_finite() && part >= 0.0, "{candidate:?}");
            }
        }
    });
}

fn any_choice(random: &mut seeded::Random) -> Choice {
    let direct_from_bytes = random.pick(&[0, u32::MAX, 256, 4096, 65_536]);
    Choice { direct_from_bytes, chunk_bytes: 1 << (12 + random.below(12)), slots: 1 << random.below(4) }
}

/// By more than a hundredth. A prediction is the longest stage and what is before and behind it, and which stage
/// that is may change with the work and with the link.
fn not_faster(slower: f64, faster: f64) -> bool {
    slower >= faster * (1.0 - 0.01)
}

#[test]
fn more_of_the_same_is_never_faster() {
    seeded::cases(20_000, |random| {
        let (situation, choice, class) = (any_situation(random), any_choice(random), any_class(random));
        let more = |n: u64| Class {
            fragments: class.fragments * n,
            segments: class.segments * n,
            src_pieces: if class.src_pieces == 1 { 1 } else { class.src_pieces * n },
            dst_pieces: if class.dst_pieces == 1 { 1 } else { class.dst_pieces * n },
            bytes: class.bytes * n,
        };
        let few = 1 + random.below(8);
        let many = few + 1 + random.below(8);
        let time = |n| predict(&work(&[more(n)]), &situation, choice).total_ns;
        assert!(not_faster(time(many), time(few)), "{class:?} {few} {many} {situation:?} {choice:?}");
    });
}

#[test]
fn a_better_link_or_machine_is_never_slower() {
    seeded::cases(40_000, |random| {
        let (work, choice, worse) = (any_work(random), any_choice(random), any_situation(random));
        let mut better = worse;
        let factor = 1.0 + random.below(1000) as f64 / 100.0;
        let more = 1 + random.small(8);
        let Situation { link, requester, owner, .. } = &mut better;
        let which = random.below(11);
        match which {
            0 => link.bytes_per_ns *= factor,
            1 => link.round_trip_ns /= factor,
            2 => link.operation_ns /= factor,
            3 => link.doorbell_ns /= factor,
            4 => link.control_ns /= factor,
            5 => link.chunk_fixed_ns /= factor,
            6 => owner.workers += more,
            7 => requester.workers += more,
            8 => owner.bytes_per_ns *= factor,
            9 => requester.piece_ns /= factor,
            _ => requester.plan_ns /= factor,
        }
        let (slow, fast) = (predict(&work, &worse, choice).total_ns, predict(&work, &better, choice).total_ns);
        assert!(not_faster(slow, fast), "{which} by {factor}: {slow} {fast} {work:?} {worse:?} {choice:?}");
    });
}

#[test]
fn what_is_chosen_is_the_best_of_what_is_explained() {
    let mut routes = [0; 3];
    seeded::cases(5000, |random| {
        let (situation, work) = (any_situation(random), any_work(random));
        let explained = explain(&work, &situation);
        let decision = choose(&work, &situation);
        assert_eq!(decision, explained.decision);
        let affordable = || explained.candidates.iter().filter(|c| !matches!(c.verdict, Verdict::NoBudget(_)));
        let total = |route| affordable().filter(|c| c.route == route).map(|c| c.predicted.total_ns).reduce(f64::min);
        // Fewer slots than there is room for are no candidate, and never shorter but for rounding.
        let same =
            |a: Option<f64>, b: Option<f64>| a == b || a.zip(b).is_some_and(|(a, b)| (a / b - 1.0).abs() < 1e-12);
        assert!(same(Some(decision.direct_ns), total(Route::Direct)));
        assert!(same(decision.gather_ns, total(Route::Gather)), "{decision:?} {:?}", total(Route::Gather));
        assert!(same(decision.hybrid_ns, total(Route::Hybrid)), "{decision:?} {:?}", total(Route::Hybrid));
        let best = [decision.gather_ns, decision.hybrid_ns].into_iter().flatten().reduce(f64::min);
        let expected = best.filter(|ns| ns * 1.05 < decision.direct_ns).unwrap_or(decision.direct_ns);
        let chosen_ns = decision.predicted.total_ns;
        assert!(expected <= chosen_ns && chosen_ns <= expected * 1.01, "{decision:?}, the shortest is {expected}");
        assert_eq!(decision.predicted, predict(&work, &situation, decision.choice));
        let chosen: Vec<_> = explained.candidates.iter().filter(|c| c.verdict == Verdict::Chosen).collect();
        assert!(chosen.len() == 1 && chosen[0].choice == decision.choice, "{chosen:?}");
        for candidate in affordable() {
            let ns = candidate.predicted.total_ns;
            match candidate.verdict {
                Verdict::Chosen => {}
                Verdict::SlowerBy(_) => assert!(ns >= expected * (1.0 - 1e-12)),
                Verdict::WithinMargin(part) => assert!(ns < expected && part <= 0.05, "{candidate:?}"),
                Verdict::Busier(part) => assert!(ns < chosen_ns && part <= 0.01, "{candidate:?}"),
                Verdict::NoBudget(_) => unreachable!(),
            }
            let Choice { chunk_bytes, slots, .. } = candidate.choice;
            let budget = situation.budget;
            assert!(slots <= budget.slots_max && chunk_bytes <= budget.chunk_bytes_max);
            assert!(u64::from(slots) * u64::from(chunk_bytes) <= budget.staging_bytes);
        }
        assert!(explained.candidates.len() <= 1 + 5 * 4 * 8, "{}", explained.candidates.len());
        routes[decision.choice.route() as usize] += 1;
    });
    if std::env::var_os("SCATTER_RING_SEED").is_none() {
        assert!(routes.iter().all(|count| *count > 100), "the cases are too much alike: {routes:?}");
    }
}

#[test]
fn a_first_chunk_is_small_and_none_is_larger_than_c() {
    for bits in 0..32 {
        let choice = Choice { chunk_bytes: 1 << bits, ..ALL_GATHERED };
        let first = choice.first_chunk_bytes();
        assert!(first >= 1 && first <= choice.chunk_bytes && first <= (choice.chunk_bytes / 8).max(16 << 10));
    }
}

#[test]
fn a_machine_without_figures_is_taken_for_the_worst() {
    let mut unknown = plain();
    unknown.owner = CopyProfile { bytes_per_ns: f64::NAN, ..unknown.owner };
    assert_eq!(choose(&work(&[rows(98_304, 264)]), &unknown).choice, Choice::DIRECT);
}

#[test]
fn a_device_gathers_what_is_long_enough_and_has_several_pieces_in_a_request() {
    let copies = CopyProfile { bytes_per_ns: 20.0, piece_ns: 6.0, decode_ns: 1.0, plan_ns: 1.0, workers: 2 };
    let link = LinkProfile { operation_ns: 100.0, max_sge: 30, wire: Wire::Nic, ..plain().link };
    let from = device_gathers_from(&link, &copies);
    assert!((256..2048).contains(&from), "{from}");
    let slower = device_gathers_from(&LinkProfile { operation_ns: 20_000.0, ..link }, &copies);
    assert!(slower > 8 * from, "requests that cost more are for longer pieces: {slower}");
    let more_workers = device_gathers_from(&link, &CopyProfile { workers: 8, ..copies });
    assert!(more_workers > from, "more of them pack more: {more_workers}");
    assert_eq!(device_gathers_from(&LinkProfile { max_sge: 1, ..link }, &copies), u32::MAX);
    let by_processors = LinkProfile { wire: Wire::Cpu { ns_per_byte: 0.1, cores: 2 }, ..link };
    assert_eq!(device_gathers_from(&by_processors, &copies), u32::MAX);
}
