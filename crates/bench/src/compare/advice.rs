//! What would help where two runs cannot be told apart.

use super::CompareEvidence;
use crate::doubt::Doubt;
use crate::record::{BenchRecord, ModelRecord};
use crate::stats::{Judgement, SpeedVerdict};

/// What two runs did that makes them hard to tell apart, and what to do about it; `None` where they
/// can be told apart.
pub(super) fn advice(
    judgement: Option<Judgement>,
    evidence: Option<CompareEvidence>,
    a: (&BenchRecord, &ModelRecord),
    b: (&BenchRecord, &ModelRecord),
) -> Option<String> {
    let reach = match judgement {
        Some(found) if found.verdict != SpeedVerdict::CannotSay => return None,
        Some(Judgement { interval, .. }) => (interval.high / interval.low).sqrt() - 1.0,
        None => return few_frames(a.1, b.1),
    };
    let sides = [("first", a), ("second", b)];
    let causes: Vec<String> = sides.iter().filter_map(|(which, side)| cause(which, *side)).collect();
    let repeats = evidence == Some(CompareEvidence::Repeats);
    let more = a.0.config.repeat.max(b.0.config.repeat);
    let remedy = match (repeats, evidence) {
        (true, _) => format!("try --repeat {}", (more * 2).max(5)),
        (_, Some(CompareEvidence::Summary)) => {
            "keep metrics.jsonl beside report.json, or try --repeat 5".to_string()
        }
        _ => "try --repeat 5".to_string(),
    };
    let seen = format!("a difference of less than {:.1} % cannot be seen here", reach * 100.0);
    let mut parts = causes;
    parts.push(if parts.is_empty() { format!("{seen}; {remedy}") } else { remedy });
    Some(parts.join("; "))
}

/// What disturbed a run most, in words.
fn cause(which: &str, (record, model): (&BenchRecord, &ModelRecord)) -> Option<String> {
    let doubts = || {
        let about = record.doubts.iter().filter(|d| d.slot.is_none_or(|slot| slot == model.slot));
        about.map(|doubt| &doubt.doubt)
    };
    let throttled = doubts().find_map(|doubt| match doubt {
        Doubt::Throttled { why } => Some(format!("the {which} run throttled ({why}): cool it")),
        _ => None,
    });
    let load = doubts().find_map(|doubt| match doubt {
        Doubt::OtherLoad { percent } => Some(format!(
            "other programs used {percent:.0} % of the processors in the {which} run: stop them"
        )),
        _ => None,
    });
    let drift = doubts().find_map(|doubt| match doubt {
        Doubt::Drift { first_ms, last_ms } => Some(format!(
            "the {which} run drifted by {:+.0} %: try --warmup {}",
            (last_ms / first_ms - 1.0) * 100.0,
            (record.config.warmup * 5).max(50)
        )),
        _ => None,
    });
    throttled.or(load).or(drift)
}

/// Where there is no verdict at all because there is too little to judge.
fn few_frames(a: &ModelRecord, b: &ModelRecord) -> Option<String> {
    let frames = |model: &ModelRecord| model.performance.as_ref().map(|p| p.frames);
    let least = frames(a)?.min(frames(b)?);
    (least < 20).then(|| format!("a run has only {least} frames; try --max-frames 300, with --loop for a short source"))
}
