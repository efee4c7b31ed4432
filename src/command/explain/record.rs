//! An explanation as one JSON object. Times in us.

use super::{About, Op, Subject};
use scatter_ring::cost::{
    Bound, Budget, Candidate, Class, CopyProfile, Decision, LinkProfile, Route, Shortage, Situation, Verdict, Wire,
};
use serde::Serialize;
use serde_json::{Value, json};

#[derive(Serialize)]
pub struct Record<'a> {
    workload: &'a str,
    link: &'a str,
    op: Op,
    /// Always: nothing here was measured but this machine's copies.
    predicted: bool,
    simulated: bool,
    calibration_us: Option<f64>,
    classes: Vec<Value>,
    situation: Value,
    chosen: Value,
    forced: Option<Value>,
    direct_us: f64,
    gather_us: Option<f64>,
    hybrid_us: Option<f64>,
    candidates: Vec<Value>,
}

impl Record<'_> {
    pub fn of<'a>(subject: &'a Subject) -> Record<'a> {
        let explanation = &subject.explanation;
        let Decision { direct_ns, gather_ns, hybrid_ns, .. } = explanation.decision;
        let is_chosen = |candidate: &&Candidate| candidate.verdict == Verdict::Chosen;
        let classes = explanation.work.classes().map(|(number, class)| {
            let Class { fragments, segments, src_pieces, dst_pieces, bytes } = *class;
            json!({
                "from_bytes": 1u64 << number, "fragments": fragments, "segments": segments,
                "src_pieces": src_pieces, "dst_pieces": dst_pieces, "bytes": bytes,
            })
        });
        Record {
            workload: subject.workload,
            link: &subject.link,
            op: subject.op,
            predicted: true,
            simulated: matches!(subject.about, About::Profile(_)),
            calibration_us: match subject.about {
                About::Calibrated(took) => Some(took.as_nanos() as f64 / 1e3),
                About::Profile(_) => None,
            },
            classes: classes.collect(),
            situation: situation(&explanation.situation),
            chosen: explanation.candidates.iter().find(is_chosen).map_or(Value::Null, candidate),
            forced: subject.forced.as_ref().map(candidate),
            direct_us: direct_ns / 1e3,
            gather_us: gather_ns.map(|ns| ns / 1e3),
            hybrid_us: hybrid_ns.map(|ns| ns / 1e3),
            candidates: explanation.candidates.iter().map(candidate).collect(),
        }
    }
}

fn candidate(candidate: &Candidate) -> Value {
    let Candidate { choice, predicted, .. } = candidate;
    let (verdict, by) = match candidate.verdict {
        Verdict::Chosen => ("chosen", None),
        Verdict::SlowerBy(part) => ("slower_by", Some(part)),
        Verdict::WithinMargin(part) => ("within_margin", Some(part)),
        Verdict::Busier(part) => ("busier", Some(part)),
        Verdict::NoBudget(Shortage::Slots) => ("no_budget_slots", None),
        Verdict::NoBudget(Shortage::ChunkBytes) => ("no_budget_chunk_bytes", None),
        Verdict::NoBudget(Shortage::StagingBytes) => ("no_budget_staging_bytes", None),
    };
    json!({
        "route": route(candidate.route),
        "direct_from_bytes": choice.direct_from_bytes,
        "chunk_bytes": choice.chunk_bytes,
        "slots": choice.slots,
        "total_us": predicted.total_ns / 1e3,
        "plan_us": predicted.plan_ns / 1e3,
        "command_us": predicted.command_ns / 1e3,
        "pack_us": predicted.pack_ns / 1e3,
        "wire_us": predicted.wire_ns / 1e3,
        "unpack_us": predicted.unpack_ns / 1e3,
        "fill_us": predicted.fill_ns / 1e3,
        "drain_us": predicted.drain_ns / 1e3,
        "bound_by": bound(predicted.bound_by),
        "chunks": predicted.chunks,
        "operations": predicted.operations,
        "doorbells": predicted.doorbells,
        "verdict": verdict,
        "by": by,
    })
}

fn situation(situation: &Situation) -> Value {
    let Situation { link, requester, owner, budget, .. } = situation;
    let copies = |copies: &CopyProfile| {
        json!({
            "bytes_per_ns": copies.bytes_per_ns, "piece_ns": copies.piece_ns, "decode_ns": copies.decode_ns,
            "plan_ns": copies.plan_ns, "workers": copies.workers,
        })
    };
    let Budget { staging_bytes, slots_max, chunk_bytes_max } = budget;
    json!({
        "link": self::link(link),
        "requester": copies(requester),
        "owner": copies(owner),
        "budget": { "staging_bytes": staging_bytes, "slots_max": slots_max, "chunk_bytes_max": chunk_bytes_max },
    })
}

fn link(link: &LinkProfile) -> Value {
    json!({
        "bytes_per_ns": link.bytes_per_ns, "round_trip_ns": link.round_trip_ns, "operation_ns": link.operation_ns,
        "doorbell_ns": link.doorbell_ns, "completion_ns": link.completion_ns, "queue_depth": link.queue_depth,
        "max_sge": link.max_sge, "control_ns": link.control_ns, "chunk_fixed_ns": link.chunk_fixed_ns,
        "wire": match link.wire {
            Wire::Nic => json!("nic"),
            Wire::Cpu { ns_per_byte, cores } => json!({ "ns_per_byte": ns_per_byte, "cores": cores }),
        },
    })
}

pub fn route(route: Route) -> &'static str {
    match route {
        Route::Direct => "direct",
        Route::Gather => "gather",
        Route::Hybrid => "hybrid",
    }
}

pub fn bound(bound: Bound) -> &'static str {
    match bound {
        Bound::Plan => "planning",
        Bound::Owner => "owner",
        Bound::Pack => "packing",
        Bound::Wire => "wire",
        Bound::Operations => "operations",
        Bound::QueueDepth => "queue depth",
        Bound::Slots => "slots",
        Bound::Unpack => "unpacking",
        Bound::Processors => "processors",
    }
}
