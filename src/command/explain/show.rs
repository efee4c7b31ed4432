//! An explanation for people.

use super::record::{bound, route};
use super::report::{count, gbps, size, table, time};
use super::{About, Op, Subject};
use scatter_ring::cost::{
    Candidate, Class, CopyProfile, LinkProfile, Prediction, Route, Shortage, Situation, Verdict, Wire, Work,
};
use std::fmt::Write;

/// Everything but the end of the last line is there even if a part is empty.
pub fn text(subject: &Subject, all: bool) -> String {
    let explanation = &subject.explanation;
    let mut out = String::new();
    let op = if subject.op == Op::Read { "READ" } else { "WRITE" };
    line(&mut out, format_args!("{} as a {op} over {}. All times are predicted.", subject.workload, subject.link));
    match subject.about {
        About::Profile(about) => line(&mut out, format_args!("Simulated link, not measured here: {about}")),
        About::Calibrated(took) => {
            let us = took.as_nanos() as f64 / 1e3;
            line(&mut out, format_args!("This machine's copies were measured in {}.", time(us)));
        }
    }
    section(&mut out, "Work", &work(&explanation.work));
    section(&mut out, "Situation", &situation(&explanation.situation));
    let shown = shown(&explanation.candidates, all);
    let left_out = explanation.candidates.len() - shown.len();
    let title = match left_out {
        0 => "Candidates".to_owned(),
        _ => format!("Candidates, the best of each route ({left_out} more with --all)"),
    };
    section(&mut out, &title, &candidates(&shown));
    let bytes = explanation.work.classes().map(|(_, class)| class.bytes).sum();
    let direct_ns = explanation.decision.direct_ns;
    if let Some(chosen) = explanation.candidates.iter().find(|c| c.verdict == Verdict::Chosen) {
        line(&mut out, format_args!("\nChosen: {}", plan(chosen, bytes, direct_ns)));
    }
    if let Some(forced) = &subject.forced {
        line(&mut out, format_args!("Forced: {}", plan(forced, bytes, direct_ns)));
    }
    out
}

fn line(out: &mut String, text: std::fmt::Arguments) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{text}");
}

fn section(out: &mut String, title: &str, body: &str) {
    line(out, format_args!("\n{title}\n{body}"));
}

fn work(work: &Work) -> String {
    let header = ["length", "fragments", "segments", "source pieces", "destination pieces", "bytes"];
    let row = |name: String, class: &Class| {
        let Class { fragments, segments, src_pieces, dst_pieces, bytes } = *class;
        vec![name, count(fragments), count(segments), count(src_pieces), count(dst_pieces), size(bytes)]
    };
    let rows = work.classes().map(|(number, class)| row(format!("{} or more", size(1 << number)), class));
    table(&header, 1, rows).trim_fmt()
}

fn situation(situation: &Situation) -> String {
    let Situation { link, requester, owner, budget, .. } = situation;
    let staging = format!(
        "{}, at most {} of at most {}",
        size(budget.staging_bytes),
        some(budget.slots_max.into(), "slot"),
        size(budget.chunk_bytes_max.into())
    );
    let lines = [
        ("link", self::link(link)),
        ("", messages(link)),
        ("requester", copies(requester)),
        ("owner", copies(owner)),
        ("staging", staging),
    ];
    lines.map(|(name, text)| format!(" {name:<11}{text}")).join("\n")
}

fn link(link: &LinkProfile) -> String {
    let wire = match link.wire {
        Wire::Nic => "a device moves the bytes".to_owned(),
        Wire::Cpu { ns_per_byte, cores } => {
            format!("the processors ({cores}) move the bytes, {:.0} us a MiB", ns_per_byte * (1 << 20) as f64 / 1e3)
        }
    };
    let depth = match link.queue_depth {
        u32::MAX => "no limit of operations".to_owned(),
        depth => format!("{} operations at once", count(depth.into())),
    };
    format!(
        "{:.1} Gbit/s, round trip {}, {:.0} ns an operation of at most {}, {depth}; {wire}",
        link.bytes_per_ns * 8.0,
        time(link.round_trip_ns / 1e3),
        link.operation_ns,
        some(link.max_sge.into(), "piece")
    )
}

fn messages(link: &LinkProfile) -> String {
    format!(
        "doorbell {:.0} ns, completion {:.0} ns, command {}, chunk {}",
        link.doorbell_ns,
        link.completion_ns,
        time(link.control_ns / 1e3),
        time(link.chunk_fixed_ns / 1e3)
    )
}

fn copies(copies: &CopyProfile) -> String {
    format!(
        "{}, each {:.1} GB/s and {:.1} ns a piece, {:.1} ns to decode one; {:.1} ns to plan a fragment",
        some(copies.workers.into(), "worker"),
        copies.bytes_per_ns,
        copies.piece_ns,
        copies.decode_ns,
        copies.plan_ns
    )
}

/// The best few of each route, and what was chosen, in the order of their times.
fn shown(candidates: &[Candidate], all: bool) -> Vec<&Candidate> {
    let mut sorted: Vec<&Candidate> = candidates.iter().collect();
    sorted.sort_by(|a, b| a.predicted.total_ns.total_cmp(&b.predicted.total_ns));
    let mut of_route = [0; 3];
    sorted.retain(|candidate| {
        let place = &mut of_route[candidate.route as usize];
        // A candidate without budget is shown if it would have been among the best.
        *place += usize::from(!matches!(candidate.verdict, Verdict::NoBudget(_)));
        all || *place <= BEST || candidate.verdict == Verdict::Chosen
    });
    sorted
}

fn candidates(candidates: &[&Candidate]) -> String {
    let header = [
        "route",
        "direct from",
        "verdict",
        "C",
        "P",
        "total",
        "plan",
        "command",
        "pack",
        "wire",
        "unpack",
        "fill",
        "drain",
        "bound by",
    ];
    let rows = candidates.iter().map(|candidate| {
        let Candidate { choice, predicted, .. } = candidate;
        let us = |ns: f64| if ns > 0.0 { time(ns / 1e3) } else { "-".to_owned() };
        let gathers = candidate.route != Route::Direct;
        let if_gathered = |text: String| if gathers { text } else { "-".to_owned() };
        let Prediction { plan_ns, command_ns, pack_ns, wire_ns, unpack_ns, fill_ns, drain_ns, .. } = *predicted;
        let mut row = vec![
            route(candidate.route).to_owned(),
            if candidate.route == Route::Hybrid { size(choice.direct_from_bytes.into()) } else { "-".to_owned() },
            verdict(candidate.verdict),
            if_gathered(size(choice.chunk_bytes.into())),
            if_gathered(choice.slots.to_string()),
            time(predicted.total_ns / 1e3),
        ];
        row.extend([plan_ns, command_ns, pack_ns, wire_ns, unpack_ns, fill_ns, drain_ns].map(us));
        row.push(bound(predicted.bound_by).to_owned());
        row
    });
    table(&header, 3, rows).trim_fmt()
}

fn verdict(verdict: Verdict) -> String {
    match verdict {
        Verdict::Chosen => "chosen".to_owned(),
        Verdict::SlowerBy(part) if part < 1.0 => format!("{:.1} % slower", part * 100.0),
        Verdict::SlowerBy(part) => format!("{:.1} times as long", part + 1.0),
        Verdict::WithinMargin(part) => format!("only {:.1} % faster", part * 100.0),
        Verdict::Busier(part) => format!("{:.1} % faster, but busier", part * 100.0),
        Verdict::NoBudget(Shortage::Slots) => "too many slots".to_owned(),
        Verdict::NoBudget(Shortage::ChunkBytes) => "slots too large".to_owned(),
        Verdict::NoBudget(Shortage::StagingBytes) => "too much staging".to_owned(),
    }
}

fn plan(candidate: &Candidate, bytes: u64, direct_ns: f64) -> String {
    let Candidate { choice, predicted, .. } = candidate;
    let us = predicted.total_ns / 1e3;
    let how = match candidate.route {
        Route::Direct => format!("direct, {}", some(predicted.operations, "operation")),
        Route::Gather => {
            format!("gather, {} of up to {}", some(predicted.chunks, "chunk"), size(choice.chunk_bytes.into()))
        }
        Route::Hybrid => format!(
            "segments from {} on directly, {}; the others gathered, {} of up to {}",
            size(choice.direct_from_bytes.into()),
            some(predicted.operations.saturating_sub(predicted.chunks), "operation"),
            some(predicted.chunks, "chunk"),
            size(choice.chunk_bytes.into())
        ),
    };
    let slots = if candidate.route == Route::Direct {
        String::new()
    } else {
        format!(", {}", some(choice.slots.into(), "slot"))
    };
    let goodput = if us > 0.0 { format!(", {:.1} Gbit/s end to end", gbps(bytes, us)) } else { String::new() };
    let gain = direct_ns / predicted.total_ns;
    let gain = if gain > 1.0 { format!(", direct takes {gain:.1} times as long") } else { String::new() };
    format!("{how}{slots}; {}{goodput}{gain}", time(us))
}

/// A number of things.
fn some(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", count(number))
}

/// Of each route.
const BEST: usize = 4;
