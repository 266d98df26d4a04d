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
    let causes = causes(a, b);
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

/// What disturbed the runs, in words.
fn causes(a: (&BenchRecord, &ModelRecord), b: (&BenchRecord, &ModelRecord)) -> Vec<String> {
    let mut found = Vec::new();
    let loads: Vec<String> = doubts(a).chain(doubts(b)).filter_map(other_load).collect();
    if !loads.is_empty() {
        found.push(format!("other programs used {} of the processors", loads.join(" and ")));
    }
    for (which, side) in [("first", a), ("second", b)] {
        found.extend(doubts(side).find_map(|doubt| match doubt {
            Doubt::Throttled { why } => Some(format!("the {which} run throttled ({why})")),
            _ => None,
        }));
    }
    if found.is_empty() {
        for (which, side) in [("first", a), ("second", b)] {
            let warmup = (side.0.config.warmup * 5).max(50);
            found.extend(doubts(side).find_map(|doubt| match doubt {
                Doubt::Drift { first_ms, last_ms } => {
                    let percent = (last_ms / first_ms - 1.0) * 100.0;
                    Some(format!(
                        "the {which} run drifted by {percent:+.0} %: try --warmup {warmup}"
                    ))
                }
                _ => None,
            }));
        }
    }
    found
}

/// The doubts about a slot, those of its whole run included.
fn doubts<'a>(
    (record, model): (&'a BenchRecord, &'a ModelRecord),
) -> impl Iterator<Item = &'a Doubt> {
    let about = record.doubts.iter().filter(|d| d.slot.is_none_or(|slot| slot == model.slot));
    about.map(|doubt| &doubt.doubt)
}

fn other_load(doubt: &Doubt) -> Option<String> {
    match doubt {
        Doubt::OtherLoad { percent } => Some(format!("{percent:.0} %")),
        _ => None,
    }
}

/// Where there is no verdict at all because there is too little to judge.
fn few_frames(a: &ModelRecord, b: &ModelRecord) -> Option<String> {
    let frames = |model: &ModelRecord| model.performance.as_ref().map(|p| p.frames);
    let least = frames(a)?.min(frames(b)?);
    (least < 20).then(|| {
        format!(
            "a run has only {least} frames; try --max-frames 300, with --loop for a short source"
        )
    })
}
