//! Links by RDMA verbs when devices fail: no success that is none, one outcome for each operation, and memory that is free
//! only when everything that was posted is known to have ended.

mod link_cases;
mod linked;
mod listed;
mod nic;
mod nic_links;
mod seeded;

use nic::{Network, Profile, Refusal, Twist};
use nic_links::run::{Run, Stuck, end};
use nic_links::{narrow, nic, try_pair, wide};
use scatter_ring::link::verbs::Limits;
use scatter_ring::link::{Reason, Transport};
use scatter_ring::verbs::EventKind;
use scatter_ring::verbs::abi::{IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};
use seeded::cases;

const LANES: usize = 2;

/// Every second request is signalled, so that some are not.
fn limits(profile: &Profile) -> Limits {
    if profile.max_qp_wr == 4 {
        narrow()
    } else {
        Limits { messages: 8, window: 4, depth: 16, signal_every: 3, ..wide(profile) }
    }
}

fn run(label: String, profile: Profile, seed: u64) -> Run {
    Run::new(label, profile, LANES, &limits(&profile), seed)
}

/// A run for each completion of each device that there is, which is twisted.
fn twisted(profile: Profile, twist: Twist, mut look: impl FnMut(&Run)) -> Vec<Run> {
    let mut runs = Vec::new();
    for device in [0, 1] {
        for nth in 0.. {
            let mut run = run(format!("{profile:?}: {twist:?} of completion {nth} on device {device}"), profile, nth);
            run.network.twist(device, nth, twist);
            run.play(&mut |_, _| {});
            if run.network.has_twists() {
                // There are no more.
                assert!(nth > 5, "{nth} completions");
                run.assert_done();
                break;
            }
            look(&run);
            runs.push(run);
        }
    }
    runs
}

/// All kinds of devices, or, where the same takes longer, the one that meets its limits soonest.
fn profiles() -> Vec<Profile> {
    if cfg!(debug_assertions) { vec![Profile::tiny()] } else { Profile::all().into_iter().collect() }
}

/// So many of all moments, or of the [few](few).
fn least(moments: usize) -> usize {
    moments / 5
}

/// Every fifth moment up to the last.
fn few(moments: u64) -> impl Iterator<Item = u64> + Clone {
    (0..moments).step_by(5)
}

fn assert_none_stuck(stuck: &[Stuck]) {
    assert!(stuck.iter().all(|stuck| *stuck == [false, false]), "{stuck:?}");
}

#[test]
fn completions_that_come_twice_or_again_or_out_of_nowhere_change_nothing() {
    for profile in profiles() {
        let (mut stale, mut runs) = (0, Vec::new());
        for twist in [Twist::Twice, Twist::Garbage, Twist::Stale] {
            runs.extend(twisted(profile, twist, |run| {
                run.assert_done();
                stale += run.stale();
            }));
        }
        assert!(stale > 20, "{stale} of {} were not believed", runs.len());
        assert_none_stuck(&end(runs));
    }
}

#[test]
fn a_completion_that_nobody_asked_for_is_not_believed() {
    for profile in profiles() {
        let (mut met, mut runs) = (0, Vec::new());
        runs.extend(twisted(profile, Twist::Unasked, |run| {
            run.assert_done();
            let unasked: u64 = [0, 1].iter().map(|device| run.network.counts(*device).unasked).sum();
            assert_eq!(run.stale(), unasked, "{}", run.label);
            met += unasked;
        }));
        assert!(met > 0 || profile.max_qp_wr == 4, "{profile:?}: every request is signalled");
        assert_none_stuck(&end(runs));
    }
}

/// The completion of the request that failed is lost: those behind it are flushed, and it is not one that went well.
#[test]
fn requests_before_one_that_is_flushed_are_not_taken_for_done() {
    for profile in profiles() {
        let mut runs = Vec::new();
        for (polls, lost) in few(20).flat_map(|polls| (1..4).map(move |lost| (polls, lost))) {
            let mut run = run(format!("{profile:?}: cut at poll {polls}, and {lost} lost"), profile, polls);
            run.play(&mut |network, at| {
                if at == polls {
                    network.cut();
                    (0..lost).for_each(|nth| network.twist(0, nth, Twist::Lost));
                }
            });
            run.check();
            run.network.never_again();
            runs.push(run);
        }
        end(runs);
    }
}

/// Requests are as good as told by a later one. Receives are filled in their order: a gap is a message that is lost.
#[test]
fn completions_that_come_late_change_nothing_or_end_the_link() {
    for profile in profiles() {
        let (mut done, mut runs) = (0, Vec::new());
        for twist in [Twist::Late(20), Twist::Swapped] {
            runs.extend(twisted(profile, twist, |run| {
                run.check();
                done += u64::from(run.is_done());
                let found_out = run.sides.iter().any(|side| matches!(side.down, Some(Reason::Device(_))));
                assert!(run.is_done() || found_out, "{}", run.label);
            }));
        }
        assert!(done > 5, "{done} of {}", runs.len());
        assert_none_stuck(&end(runs));
    }
}

#[test]
fn completions_of_a_link_that_is_gone_are_not_taken_for_those_of_the_next() {
    let profile = Profile { reuses_numbers: true, ..Profile::hardware() };
    for (device, nth) in (0..2).flat_map(|device| few(20).map(move |nth| (device, nth))) {
        let label = format!("a ghost before completion {nth} on device {device}");
        let mut first = run(label.clone(), profile, nth);
        first.play(&mut |_, _| {});
        first.assert_done();
        let Run { network, nics, mut sides, .. } = first;
        let [a, b] = &mut sides;
        linked::end(a, b);
        drop(sides);
        let mut second = Run::on(label, network, nics, LANES, &limits(&profile));
        for ghost in nth..nth + 3 {
            second.network.twist(device, ghost, Twist::Ghost);
        }
        second.play(&mut |_, _| {});
        second.assert_done();
        assert!(second.stale() > 0 || second.network.has_twists(), "{}: none came", second.label);
        end(vec![second]);
    }
}

#[test]
fn a_completion_that_is_lost_is_no_success_and_its_memory_is_not_given_back_without_it() {
    for profile in profiles() {
        let mut runs = Vec::new();
        for twist in [Twist::Lost, Twist::Spoiled] {
            runs.extend(twisted(profile, twist, Run::check));
        }
        let (count, stuck) = (runs.len(), end(runs));
        // Some are made up for by the next one; a receive never is.
        let stuck = stuck.iter().filter(|stuck| **stuck != [false, false]).count();
        assert!(stuck > 0 && stuck < count, "{stuck} of {count}");
    }
}

#[test]
fn a_request_that_fails_ends_the_link_and_the_failure_is_its_own() {
    for profile in profiles() {
        let twist = Twist::ALL.into_iter().find(|twist| matches!(twist, Twist::Failed(_))).unwrap();
        let runs = twisted(profile, twist, |run| {
            assert!(run.sides.iter().any(|side| side.down.is_some()), "{}", run.label);
            run.check();
        });
        assert_none_stuck(&end(runs));
    }
}

/// R28: the device takes so many requests of a doorbell, and no more.
#[test]
fn a_doorbell_that_is_cut_short_fails_what_was_not_posted_and_nothing_is_lost() {
    for profile in profiles() {
        let window = limits(&profile).window as usize;
        let mut runs = Vec::new();
        for (device, at, after_posts) in
            (0..2).flat_map(|device| (0..window).flat_map(move |at| (0..12).map(move |posts| (device, at, posts))))
        {
            let label = format!("{profile:?}: doorbell {after_posts} of device {device} is cut at request {at}");
            let mut run = run(label, profile, after_posts);
            let is_negative = profile.is_stream;
            run.network.refuse_post(device, Refusal { after_posts, is_negative, ..Refusal::no_memory(at) });
            run.play(&mut |_, _| {});
            run.check();
            if run.network.refuses(device) {
                run.assert_done();
            } else {
                assert!(run.sides[device].down.is_some(), "{}", run.label);
            }
            run.expects_all = profile.flushes_late_posts;
            runs.push(run);
        }
        assert_none_stuck(&end(runs));
    }
}

/// All of it is waited for then; when the queue pair is gone it is known that nothing more will come.
#[test]
fn a_doorbell_of_which_it_is_not_said_what_was_posted_ends_with_its_queue_pair() {
    for profile in profiles() {
        let mut run = run(format!("{profile:?}: nobody knows what was posted"), profile, 1);
        run.network.refuse_post(0, Refusal { after_posts: 3, names_it: false, ..Refusal::no_memory(0) });
        run.play(&mut |_, _| {});
        assert!(!run.network.refuses(0));
        assert_none_stuck(&end(vec![run]));
    }
}

#[test]
fn a_device_that_reports_nothing_more_keeps_what_it_may_touch_and_other_links_go_on() {
    for profile in profiles() {
        let mut runs = Vec::new();
        for polls in few(20) {
            let mut run = run(format!("{profile:?}: mute from poll {polls} on"), profile, polls);
            let mut is_mute = false;
            run.play(&mut |network, at| {
                if at == polls {
                    network.be_mute(0, true);
                    is_mute = true;
                }
            });
            run.check();
            if !is_mute {
                // All was done before.
                break;
            }
            runs.push(run);
        }
        assert!(runs.len() > least(5), "{}", runs.len());
        let stuck = end(runs);
        assert!(stuck.iter().all(|stuck| stuck[0] && !stuck[1]), "{stuck:?}");
    }
    // Of two links on a device that is mute for a while, the later one is as if nothing had been.
    let profile = Profile::rxe();
    let first = run("mute for a while".to_owned(), profile, 1);
    let Run { network, nics, sides, .. } = first;
    network.be_mute(0, true);
    drop(sides);
    network.be_mute(0, false);
    assert!(network.outstanding(0) > 0, "its queue pairs are kept");
    let mut later = Run::on("after a mute device".to_owned(), network, nics, LANES, &limits(&profile));
    later.play(&mut |_, _| {});
    later.assert_done();
}

#[test]
fn a_wire_that_is_cut_at_any_moment_ends_both_links() {
    for profile in profiles() {
        let mut runs = Vec::new();
        for polls in few(25) {
            let mut run = run(format!("{profile:?}: cut at poll {polls}"), profile, polls);
            run.play(&mut |network, at| {
                if at == polls {
                    network.cut();
                }
            });
            run.check();
            runs.push(run);
        }
        let ended = runs.iter().filter(|run| run.sides.iter().any(|side| side.down.is_some())).count();
        assert!(ended > least(5), "{ended} of {}", runs.len());
        end_cut(runs);
    }
}

/// What is cut off stays so: there is nothing after it.
fn end_cut(runs: Vec<Run>) {
    for run in &runs {
        run.network.never_again();
    }
    assert_none_stuck(&end(runs));
}

#[test]
fn queue_pairs_that_break_at_any_moment_end_the_link_and_all_comes_home() {
    for profile in profiles() {
        let (mut ended, mut runs) = (0, Vec::new());
        for (device, polls) in (0..2).flat_map(|device| few(25).map(move |polls| (device, polls))) {
            let label = format!("{profile:?}: a queue pair of device {device} breaks at poll {polls}");
            let mut run = run(label, profile, polls);
            let mut is_broken = false;
            run.play(&mut |network, at| {
                if at == polls {
                    let pairs = network.queue_pairs(device);
                    network.break_pair(pairs[polls as usize % pairs.len()]);
                    is_broken = true;
                }
            });
            run.check();
            let is_down = run.sides.iter().any(|side| side.down.is_some());
            assert!(is_down || run.is_done() || !is_broken, "{}", run.label);
            ended += u64::from(is_down);
            runs.push(run);
        }
        assert!(ended as usize > least(10), "{ended} of {}", runs.len());
        assert_none_stuck(&end(runs));
    }
}

#[test]
fn a_peer_that_dies_at_any_moment_is_noticed_and_everything_comes_home() {
    for profile in profiles() {
        for polls in few(25) {
            let mut run = run(format!("{profile:?}: the peer dies at poll {polls}"), profile, polls);
            run.play(&mut |network, at| {
                if at == polls {
                    network.queue_pairs(1).into_iter().for_each(|pair| network.vanish(pair));
                }
            });
            run.check();
            let Run { network, sides: [mut a, b], label, .. } = run;
            // Its process is gone, with all that it had.
            b.die();
            linked::until(|| {
                a.poll();
                a.down.is_some() && a.link.is_quiet()
            });
            assert_eq!((network.outstanding(0), a.link.is_stuck()), (0, false), "{label}");
            drop(a);
            network.assert_clean();
        }
    }
}

#[test]
fn a_device_that_does_not_stop_a_queue_pair_keeps_what_it_may_touch() {
    let profile = Profile::rxe();
    let mut run = run("no way to the error state".to_owned(), profile, 1);
    run.network.refuse_modify(0, Some(IBV_QPS_ERR));
    run.play(&mut |_, _| {});
    run.assert_done();
    assert_eq!(end(vec![run]), [[true, false]]);
}

#[test]
fn what_cannot_be_set_up_leaves_nothing_behind() {
    for profile in profiles() {
        let network = Network::new(profile, nic::Drive::Polls, 1);
        let nics = [nic(&network, 0), nic(&network, 1)];
        let limits = limits(&profile);
        let assert_nothing_left = |what: &str| {
            for device in [0, 1] {
                assert_eq!((network.queue_pairs(device).len(), network.counts(device).registrations), (0, 0), "{what}");
            }
            network.assert_clean();
        };
        for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
            network.refuse_modify(1, Some(state));
            assert!(try_pair(&nics, LANES, &limits).is_err(), "state {state}");
            assert_nothing_left("a state");
        }
        network.refuse_modify(1, None);
        let mut refused = 0;
        for nth in 0.. {
            network.refuse_registrations(0, Some(nth));
            if let Ok((mut a, mut b)) = try_pair(&nics, LANES, &limits) {
                network.refuse_registrations(0, None);
                linked::end(&mut a, &mut b);
                break;
            }
            refused += 1;
            assert_nothing_left("a registration");
        }
        assert!(refused >= 2 * LANES as u64, "{refused}");
        assert_nothing_left("a link");
    }
}

#[test]
fn events_of_a_device_disturb_nobody_who_is_not_meant() {
    let mut run = run("events".to_owned(), Profile::hardware(), 1);
    run.play(&mut |network, at| {
        if at == 3 {
            network.happens(0, EventKind::PORT_ERROR, 1);
            network.happens(0, EventKind::PORT_ACTIVE, 1);
            network.happens(1, EventKind::GID_CHANGE, 1);
            network.happens(1, EventKind::QUEUE_PAIR_REQUEST_ERROR, network.queue_pairs(1)[0]);
        }
    });
    run.assert_done();
    assert_none_stuck(&end(vec![run]));
}

/// R25, R26: what a link has been given back is not written any more, whatever happened to it and whenever.
#[test]
fn whatever_goes_wrong_no_byte_is_written_to_memory_that_was_given_back() {
    let mut runs = Vec::new();
    let finish = |runs: &mut Vec<Run>| end(std::mem::take(runs));
    cases(if cfg!(debug_assertions) { 15 } else { 300 }, |random| {
        let profile = random.pick(&Profile::all());
        let mut run = run(format!("{profile:?} at random"), profile, random.word());
        let mut has_failure = false;
        for _ in 0..1 + random.below(3) {
            let twist = random.pick(&Twist::ALL);
            run.network.twist(random.below(2) as usize, random.below(20), twist);
            has_failure |= matches!(twist, Twist::Failed(_));
        }
        let (at, what) = (random.below(30), random.below(5));
        let device = random.below(2) as usize;
        run.play(&mut |network, polls| {
            if polls == at {
                match what {
                    0 => network.break_pair(network.queue_pairs(device)[0]),
                    // One that tells some of what it flushes and no more is no device: its queue pair's end is believed.
                    1 if !has_failure => network.be_mute(device, true),
                    2 => network.refuse_post(device, Refusal::no_memory(1)),
                    _ => {}
                }
            }
        });
        run.check();
        run.network.never_again();
        runs.push(run);
        if runs.len() == 50 {
            finish(&mut runs);
        }
    });
    finish(&mut runs);
}
