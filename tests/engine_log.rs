//! What an engine says in the log: everything that clients cause is paced, and refusals are said once. R45.

mod support;

use ring_abi::{Kind, Status};
use scatter_ring::engine::{Config, Counters, Engine, Limits, RunningEngine};
use std::time::{Duration, Instant};
use support::RawClient;
use support::hostile::eventually;
use support::log::Lines;

fn engine() -> RunningEngine {
    let limits = Limits { sessions: 8, ..Limits::default() };
    Engine::new(&Config { workers: 0, limits, ..Config::default() }).unwrap().start().unwrap()
}

fn attach(engine: &RunningEngine) -> RawClient {
    RawClient::attach(engine.connect().unwrap(), 8, 8, 0)
}

#[test]
fn a_session_has_one_line_for_each_kind_of_refusal() {
    let (lines, _alone) = Lines::new();
    let engine = engine();
    for session in 1..=2 {
        let mut client = attach(&engine);
        for i in 0..500 {
            assert_eq!(client.ask(Kind::OPEN, &[1], &format!("none\n{i}"), &[]).status, Status::NAME_UNKNOWN);
            assert_eq!(client.ask(Kind::CLOSE, &[i], "", &[]).status, Status::UNKNOWN_REGION);
        }
        let of_session = lines.with(&format!("session={session} "));
        let said = |part| of_session.iter().filter(|line| line.contains(part)).count();
        let pid = format!("pid={}", std::process::id());
        assert_eq!((said("status=NAME_UNKNOWN"), said("status=UNKNOWN_REGION"), said("refused")), (1, 1, 2));
        assert_eq!(said(&pid), 3, "who it is stands in each line: {of_session:?}");
        assert_eq!(said("text=\"none\\n0\""), 1, "the first, and quoted: {of_session:?}");
    }
    assert_eq!(Counters::of(&engine.counters().refused, Status::NAME_UNKNOWN), 1000);
    engine.stop();
    assert_eq!(lines.with("session ended").len(), 2);
}

#[test]
fn a_flood_of_sessions_is_counted_whole_and_said_in_part() {
    const FLOOD: u64 = 500;
    let (lines, _alone) = Lines::new();
    let engine = engine();
    let start = Instant::now();
    for _ in 0..FLOOD {
        // Closes as soon as it has its answer; the places of the last ones may not be free yet.
        let before = engine.counters().sessions;
        drop(attach(&engine));
        eventually("the place is free", || {
            let ended = Counters::of(&engine.counters().sessions_ended, Status::OK);
            engine.counters().sessions == before + 1 && ended == before + 1
        });
    }
    let most = 40 + start.elapsed().as_millis() as usize / 250 + 1;
    let said = lines.with("session").len();
    assert!((40..=most).contains(&said), "{said} lines, at most {most}");

    // The next line after a pause says how many there would have been.
    std::thread::sleep(Duration::from_millis(300));
    let _last = attach(&engine);
    let all = lines.with("session");
    let unsaid: u64 = all
        .iter()
        .map(|line| line.split("unsaid=").nth(1).unwrap().split(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(all.len() as u64 + unsaid, 2 * FLOOD + 1, "a line for each beginning and each end");
    let counters = engine.counters();
    assert_eq!((counters.sessions, Counters::of(&counters.sessions_ended, Status::OK)), (FLOOD + 1, FLOOD));
}

#[test]
fn a_cut_batch_is_in_the_line_of_its_sessions_end() {
    let (lines, _alone) = Lines::new();
    let engine = engine();
    let mut client = attach(&engine);
    client.submit(&ring_abi::Descriptor { opcode: ring_abi::Opcode::NOP.0, ..ring_abi::Descriptor::ZERO });
    eventually("the slot is taken", || client.areas.sq.free().unwrap() == 8);
    engine.stop_within(Duration::from_millis(10));
    let ends = lines.with("session ended");
    assert!(ends.len() == 1 && ends[0].contains("reason=STOPPING") && ends[0].contains("batches_cut=1"), "{ends:?}");
}
