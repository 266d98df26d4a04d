//! Doubts: reasons to trust a figure less.
//!
//! A benchmark must not hide its weak spots, and a warning that has scrolled away is hidden. So
//! a doubt is data: it has a kind that programs can look for, the numbers that it is based on,
//! and one text; and every format shows it.

use std::fmt;

use plimsoll::Bytes;
use serde::{Deserialize, Serialize};

use crate::stats::LatencySummary;

/// A reason to trust a figure less. In JSON `kind` names the variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Doubt {
    /// Fewer than ten frames are beyond a percentile.
    TooFewFrames {
        /// The percentile, 0 to 100.
        percentile: f64,
        /// How many frames there were.
        n: u64,
        /// What was timed: prepare, inference, decode or whole.
        stage: String,
    },
    /// The machine throttled.
    Throttled {
        /// The cause that it reports.
        why: String,
    },
    /// Clocks could change during the run.
    ClocksNotLocked,
    /// The machine does not report its power mode.
    PowerModeUnknown,
    /// The engine did not run where or as it was asked to.
    ProviderFallback {
        /// What it did instead.
        what: String,
    },
    /// Other programs used the machine.
    OtherLoad {
        /// Their share of all processors, in percent.
        percent: f64,
    },
    /// The last tenth of the frames took longer or shorter than the first.
    Drift {
        /// Median of the first tenth.
        first_ms: f64,
        /// Median of the last tenth.
        last_ms: f64,
    },
    /// Nothing measured memory.
    NoMemorySample {
        /// Why not.
        why: String,
    },
    /// Memory was read at intervals, so the true peak may be higher.
    MemorySampled {
        /// How often it was read.
        samples: u64,
    },
    /// Frames that could not be read were skipped.
    CorruptFrames {
        /// How many.
        n: u64,
    },
    /// Frames came faster than they could be taken.
    DroppedFrames {
        /// How many.
        n: u64,
        /// Of how many that were offered.
        offered: u64,
    },
    /// Frames of one camera had no partner in the other.
    UnpairedFrames {
        /// How many.
        n: u64,
    },
    /// The limit was not enforced for every allocation.
    LimitNotHard {
        /// What it was: soft or unavailable.
        limit_type: String,
    },
    /// The limit was set, but not verified by a request above it.
    LimitNotVerified,
    /// The estimate was below the limit, but the memory in use was above it.
    EstimateTooLow {
        /// What was estimated before the model was loaded.
        estimate_gb: f64,
        /// The most that was in use.
        peak_gb: f64,
        /// The limit.
        limit_gb: f64,
    },
    /// The source ended before the frames that were asked for.
    SourceEndedEarly {
        /// How many frames it gave.
        frames: u64,
        /// How many were asked for.
        wanted: u64,
    },
    /// The source disappeared before the frames that were asked for.
    SourceVanished {
        /// How many frames it gave.
        frames: u64,
        /// What is missing.
        why: String,
    },
    /// The model's output was not a number (NaN or infinite), so nothing could be found.
    NoNumbers {
        /// In how many frames.
        n: u64,
        /// Of how many.
        frames: u64,
    },
    /// Labels were given, and accuracy is not known all the same.
    NotJudged {
        /// Why not.
        why: String,
    },
    /// Some output could not be written.
    OutputIncomplete {
        /// What went wrong.
        why: String,
    },
}

/// A figure of a report, beside which doubts are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportFigure {
    /// Frames per second.
    Fps,
    /// The median latency.
    P50,
    /// The latency that 95 % of the frames keep.
    P95,
    /// The latency that 99 % of the frames keep.
    P99,
    /// Mean average precision.
    Map,
    /// Joules per frame.
    Energy,
    /// Peak memory.
    Memory,
    /// The engine and its device.
    Engine,
    /// How many frames there were, and from where.
    Frames,
}

impl ReportFigure {
    /// The figures that a report shows first, in this order.
    pub const SHOWN: [ReportFigure; 7] = [
        ReportFigure::Fps,
        ReportFigure::P50,
        ReportFigure::P95,
        ReportFigure::P99,
        ReportFigure::Map,
        ReportFigure::Energy,
        ReportFigure::Memory,
    ];

    /// What it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ReportFigure::Fps => "fps",
            ReportFigure::P50 => "p50",
            ReportFigure::P95 => "p95",
            ReportFigure::P99 => "p99",
            ReportFigure::Map => "mAP",
            ReportFigure::Energy => "energy a frame",
            ReportFigure::Memory => "peak memory",
            ReportFigure::Engine => "engine",
            ReportFigure::Frames => "frames",
        }
    }
}

impl Doubt {
    /// The figures that it concerns; none where it concerns only what was written.
    #[must_use]
    pub fn concerns(&self) -> &'static [ReportFigure] {
        use ReportFigure::{Energy, Engine, Fps, Frames, Map, Memory, P50, P95, P99};
        match self {
            Doubt::TooFewFrames { percentile, .. } if *percentile <= 50.0 => &[P50, P95, P99],
            Doubt::TooFewFrames { percentile, .. } if *percentile <= 95.0 => &[P95, P99],
            Doubt::TooFewFrames { .. } => &[P99],
            Doubt::Throttled { .. } => &[Fps, Energy],
            Doubt::ClocksNotLocked
            | Doubt::PowerModeUnknown
            | Doubt::OtherLoad { .. }
            | Doubt::DroppedFrames { .. } => &[Fps],
            Doubt::Drift { .. } => &[P50],
            Doubt::ProviderFallback { .. } => &[Engine],
            Doubt::NoMemorySample { .. }
            | Doubt::MemorySampled { .. }
            | Doubt::LimitNotHard { .. }
            | Doubt::LimitNotVerified
            | Doubt::EstimateTooLow { .. } => &[Memory],
            Doubt::CorruptFrames { .. }
            | Doubt::UnpairedFrames { .. }
            | Doubt::SourceEndedEarly { .. }
            | Doubt::SourceVanished { .. } => &[Frames],
            Doubt::NoNumbers { .. } | Doubt::NotJudged { .. } => &[Map],
            Doubt::OutputIncomplete { .. } => &[],
        }
    }

    /// A few words, for a badge beside a figure.
    #[must_use]
    pub fn badge(&self) -> String {
        match self {
            Doubt::TooFewFrames { n, .. } => format!("only {n} frames"),
            Doubt::Throttled { .. } => "throttled".to_string(),
            Doubt::ClocksNotLocked => "clocks not locked".to_string(),
            Doubt::PowerModeUnknown => "power mode ?".to_string(),
            Doubt::ProviderFallback { .. } => "not as asked".to_string(),
            Doubt::OtherLoad { percent } => format!("other load {percent:.0}\u{a0}%"),
            Doubt::Drift { first_ms, last_ms } => {
                format!("drift {:+.0}\u{a0}%", (last_ms / first_ms - 1.0) * 100.0)
            }
            Doubt::NoMemorySample { .. } => "not measured".to_string(),
            Doubt::MemorySampled { .. } => "sampled".to_string(),
            Doubt::CorruptFrames { n } => format!("{n} corrupt"),
            Doubt::DroppedFrames { n, .. } => format!("{n} dropped"),
            Doubt::UnpairedFrames { n } => format!("{n} unpaired"),
            Doubt::LimitNotHard { limit_type } if limit_type == "unavailable" => {
                "limit not enforced".to_string()
            }
            Doubt::LimitNotHard { limit_type } => format!("{limit_type} limit"),
            Doubt::LimitNotVerified => "limit not verified".to_string(),
            Doubt::EstimateTooLow { .. } => "estimate too low".to_string(),
            Doubt::SourceEndedEarly { frames, wanted } => format!("{frames} of {wanted} frames"),
            Doubt::SourceVanished { .. } => "source vanished".to_string(),
            Doubt::NoNumbers { .. } => "not a number".to_string(),
            Doubt::NotJudged { .. } => "not judged".to_string(),
            Doubt::OutputIncomplete { .. } => "output incomplete".to_string(),
        }
    }

    /// The name of the kind, the same as in JSON.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Doubt::TooFewFrames { .. } => "too_few_frames",
            Doubt::Throttled { .. } => "throttled",
            Doubt::ClocksNotLocked => "clocks_not_locked",
            Doubt::PowerModeUnknown => "power_mode_unknown",
            Doubt::ProviderFallback { .. } => "provider_fallback",
            Doubt::OtherLoad { .. } => "other_load",
            Doubt::Drift { .. } => "drift",
            Doubt::NoMemorySample { .. } => "no_memory_sample",
            Doubt::MemorySampled { .. } => "memory_sampled",
            Doubt::CorruptFrames { .. } => "corrupt_frames",
            Doubt::DroppedFrames { .. } => "dropped_frames",
            Doubt::UnpairedFrames { .. } => "unpaired_frames",
            Doubt::LimitNotHard { .. } => "limit_not_hard",
            Doubt::LimitNotVerified => "limit_not_verified",
            Doubt::EstimateTooLow { .. } => "estimate_too_low",
            Doubt::SourceEndedEarly { .. } => "source_ended_early",
            Doubt::SourceVanished { .. } => "source_vanished",
            Doubt::NoNumbers { .. } => "no_numbers",
            Doubt::NotJudged { .. } => "not_judged",
            Doubt::OutputIncomplete { .. } => "output_incomplete",
        }
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doubt::TooFewFrames { percentile, n, stage } => write!(
                f,
                "p{percentile} of {stage} is based on {n} frames; at least {} are needed",
                (1000.0 / (100.0 - percentile)).ceil()
            ),
            Doubt::Throttled { why } => write!(f, "the machine throttled: {why}"),
            Doubt::ClocksNotLocked => f.write_str("clocks were not locked and may have changed"),
            Doubt::PowerModeUnknown => f.write_str("the power mode is not known"),
            Doubt::ProviderFallback { what } => write!(f, "not as asked: {what}"),
            Doubt::OtherLoad { percent } => {
                write!(f, "other programs used {percent:.0} % of the processors")
            }
            Doubt::Drift { first_ms, last_ms } => write!(
                f,
                "drift of {:+.1} %: median {first_ms:.2} ms in the first tenth, {last_ms:.2} ms in the last",
                (last_ms / first_ms - 1.0) * 100.0
            ),
            Doubt::NoMemorySample { why } => write!(f, "memory was not measured: {why}"),
            Doubt::MemorySampled { samples } => {
                write!(f, "memory was sampled {samples} times, not counted; the peak may be higher")
            }
            Doubt::CorruptFrames { n } => write!(f, "{n} corrupt frames were skipped"),
            Doubt::DroppedFrames { n, offered } => {
                write!(f, "{n} of {offered} offered frames were dropped")
            }
            Doubt::UnpairedFrames { n } => {
                write!(f, "{n} frames had no partner within the tolerance")
            }
            Doubt::LimitNotHard { limit_type } if limit_type == "unavailable" => {
                f.write_str("the memory limit was not enforced (unavailable), only watched")
            }
            Doubt::LimitNotHard { limit_type } => {
                write!(f, "the memory limit was {limit_type}, not hard")
            }
            Doubt::LimitNotVerified => {
                f.write_str("the memory limit was not verified by a request above it")
            }
            Doubt::EstimateTooLow { estimate_gb, peak_gb, limit_gb } => {
                let [estimate, peak, limit] = [estimate_gb, peak_gb, limit_gb].map(|gb| size(*gb));
                write!(
                    f,
                    "the estimate of {estimate} was below the limit of {limit}, but {peak} were in use"
                )
            }
            Doubt::SourceEndedEarly { frames, wanted } => {
                write!(f, "the source ended after {frames} of {wanted} frames")
            }
            Doubt::SourceVanished { frames, why } => {
                write!(f, "after {frames} frames: {why}")
            }
            Doubt::NoNumbers { n, frames } => write!(
                f,
                "the model's output was not a number (NaN or infinite) in {n} of {frames} frames, \
                 so nothing was detected in them"
            ),
            Doubt::NotJudged { why } => write!(f, "accuracy is not known: {why}"),
            Doubt::OutputIncomplete { why } => write!(f, "some output could not be written: {why}"),
        }
    }
}

/// A size given in GiB.
fn size(gib: f64) -> Bytes {
    Bytes((gib * Bytes::gib(1).get() as f64) as u64)
}

/// The doubt of a latency summary: the lowest percentile with fewer than ten frames beyond it.
/// All higher percentiles then have fewer than ten, too.
#[must_use]
pub fn of_latency(stage: &str, summary: &LatencySummary) -> Option<Doubt> {
    let few = |percentile: f64| (summary.n as f64) * (100.0 - percentile) < 1000.0;
    let percentile = [50.0, 90.0, 95.0, 99.0].into_iter().find(|p| few(*p))?;
    Some(Doubt::TooFewFrames { percentile, n: summary.n, stage: stage.to_string() })
}

/// By how much the tenths must differ before it is a doubt.
const DRIFT: f64 = 0.05;

/// A doubt where the medians of the first and the last tenth differ by more than 5 %.
#[must_use]
pub fn of_tenths(first_ms: f64, last_ms: f64) -> Option<Doubt> {
    let apart = (last_ms / first_ms - 1.0).abs();
    (apart.is_finite() && apart > DRIFT).then_some(Doubt::Drift { first_ms, last_ms })
}

#[cfg(test)]
pub(crate) fn one_of_each() -> Vec<Doubt> {
    let why = "no sensor".to_string();
    vec![
        Doubt::TooFewFrames { percentile: 99.0, n: 300, stage: "whole".into() },
        Doubt::Throttled { why: why.clone() },
        Doubt::ClocksNotLocked,
        Doubt::PowerModeUnknown,
        Doubt::ProviderFallback { what: "cpu instead of cuda:0".into() },
        Doubt::OtherLoad { percent: 31.0 },
        Doubt::Drift { first_ms: 10.0, last_ms: 12.0 },
        Doubt::NoMemorySample { why: why.clone() },
        Doubt::MemorySampled { samples: 7 },
        Doubt::CorruptFrames { n: 2 },
        Doubt::DroppedFrames { n: 3, offered: 300 },
        Doubt::UnpairedFrames { n: 4 },
        Doubt::LimitNotHard { limit_type: "soft".into() },
        Doubt::LimitNotVerified,
        Doubt::EstimateTooLow { estimate_gb: 0.04, peak_gb: 0.1, limit_gb: 0.05 },
        Doubt::SourceEndedEarly { frames: 12, wanted: 300 },
        Doubt::SourceVanished { frames: 49, why: why.clone() },
        Doubt::NoNumbers { n: 300, frames: 300 },
        Doubt::NotJudged { why: why.clone() },
        Doubt::OutputIncomplete { why },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_those_of_json_and_texts_differ() {
        let mut texts = std::collections::BTreeSet::new();
        for doubt in one_of_each() {
            let json = serde_json::to_value(&doubt).unwrap();
            assert_eq!(json["kind"], doubt.kind());
            assert_eq!(serde_json::from_value::<Doubt>(json).unwrap(), doubt);
            assert!(texts.insert(doubt.to_string()));
            let badge = doubt.badge();
            assert!(!badge.is_empty() && badge.len() <= 20, "{badge}");
            let written = matches!(doubt, Doubt::OutputIncomplete { .. });
            assert_eq!(doubt.concerns().is_empty(), written, "{badge}");
        }
    }

    #[test]
    fn the_guide_says_what_to_do_about_each() {
        let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/benchmarking.md");
        let guide = std::fs::read_to_string(guide).unwrap();
        for doubt in one_of_each() {
            let row = format!("| `{}` | ", doubt.kind());
            assert!(guide.contains(&row), "no row with {row}");
        }
    }

    #[test]
    fn ten_frames_beyond_a_percentile() {
        let of = |n| LatencySummary {
            n,
            mean_ms: 1.0,
            p50_ms: 1.0,
            p90_ms: 1.0,
            p95_ms: 1.0,
            p99_ms: 1.0,
            min_ms: 1.0,
            max_ms: 1.0,
            std_ms: 0.0,
        };
        let percentile = |n| match of_latency("whole", &of(n)) {
            Some(Doubt::TooFewFrames { percentile, .. }) => Some(percentile),
            _ => None,
        };
        assert_eq!(percentile(1000), None);
        assert_eq!(percentile(999), Some(99.0));
        assert_eq!(percentile(200), Some(99.0));
        assert_eq!(percentile(199), Some(95.0));
        assert_eq!(percentile(99), Some(90.0));
        assert_eq!(percentile(19), Some(50.0));
        let text = of_latency("whole", &of(300)).unwrap().to_string();
        assert_eq!(text, "p99 of whole is based on 300 frames; at least 1000 are needed");
        assert!(of_tenths(10.0, 10.4).is_none() && of_tenths(10.0, 9.4).is_some());
        assert!(of_tenths(0.0, 0.0).is_none());
    }
}
