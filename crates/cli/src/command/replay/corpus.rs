//! `--corpus N` and `--variants N`: many programs through the pool, beside the rules of other allocators.
//!
//! Single recordings flatter a pool that was tuned on them. Here the mean and the worst of many
//! count, made up or like a recorded one, and each row says which seed was the worst, so that it can be
//! replayed by itself (`plimsoll replay corpus:SEED`, or `--variants 1 --first-seed SEED`).

use plimsoll::Bytes;
use plimsoll::trace::peers::PeerRule;
use plimsoll::trace::{Trace, corpus};
use serde::Serialize;

use super::measure::{self, ReplayMeasured};
use super::stand::Setup;
use crate::output::{Answer, ProgressLine};
use crate::page::{TextCell, TextPage};

/// What the default packing is to reserve at most: 1.05 of what is live and 8 MiB.
const QUICK_BOUND: (f64, u64) = (1.05, 8 << 20);
/// The same for tight packing: 1.02 of what is live, or 6 MiB more.
const TIGHT_BOUND: (f64, u64) = (1.02, 6 << 20);

#[derive(Debug, Serialize)]
pub(super) struct CorpusReport {
    pub(super) traces: u64,
    /// The recording that they are like; null for made-up ones.
    pub(super) variants_of: Option<String>,
    pub(super) first_seed: u64,
    pub(super) backend: String,
    pub(super) passes: u32,
    pub(super) rows: Vec<CorpusRow>,
}

/// What one allocator did on all traces.
#[derive(Debug, Serialize)]
pub(super) struct CorpusRow {
    pub(super) who: String,
    /// Peak reserved over peak live: the geometric mean, the worst, and the seed of that.
    pub(super) ratio_mean: f64,
    pub(super) ratio_worst: f64,
    pub(super) worst_seed: u64,
    /// Traces on which it reserved more than the bound of its packing; null for others' rules.
    pub(super) over_bound: Option<u64>,
    /// Nanoseconds an event, where they were measured.
    pub(super) cold_ns_mean: Option<f64>,
    pub(super) warm_ns_mean: Option<f64>,
    pub(super) warm_ns_worst: Option<f64>,
}

/// Sums of logarithms, and the worst.
#[derive(Debug, Default)]
struct CorpusSums {
    ratio: f64,
    worst: (f64, u64),
    over: u64,
    cold: f64,
    warm: f64,
    warm_worst: f64,
}

/// The programs of this many seeds.
pub(super) struct Programs {
    pub(super) first_seed: u64,
    pub(super) count: u64,
    /// Variants of a recording, with its name; made-up programs without.
    pub(super) like: Option<(String, Trace)>,
}

/// Replays all of them.
pub(super) fn run(
    setup: &Setup,
    programs: Programs,
    passes: u32,
    progress: &mut ProgressLine,
) -> anyhow::Result<CorpusReport> {
    let Programs { first_seed, count, like } = programs;
    let mut ours = [CorpusSums::default(), CorpusSums::default()];
    let mut peers = PeerRule::ALL.map(|_| CorpusSums::default());
    for done in 0..count {
        progress.show_part(&format!("trace {} of {count}", done + 1), done, count);
        let seed = first_seed.wrapping_add(done);
        let trace = match &like {
            Some((_, recorded)) => corpus::variant(recorded, seed)?,
            None => corpus::trace(seed)?,
        };
        for (sums, tight) in ours.iter_mut().zip([false, true]) {
            let setup = Setup { tight, ..setup.clone() };
            let measured = measure::run(&setup.open()?, &trace, passes, &mut |_, _| {})?;
            if let Some(failure) = &measured.failure {
                anyhow::bail!("the trace of seed {seed} does not fit: {}", failure.why);
            }
            sums.add_measured(seed, &trace, &measured, tight);
        }
        for (sums, rule) in peers.iter_mut().zip(PeerRule::ALL) {
            sums.add(seed, &trace, rule.peak_reserved(&trace));
        }
    }
    let mut rows = Vec::new();
    for (sums, name) in ours.iter().zip(["Plimsoll, quick", "Plimsoll, tight"]) {
        rows.push(sums.row(name, count, true));
    }
    for (sums, rule) in peers.iter().zip(PeerRule::ALL) {
        rows.push(sums.row(rule.name(), count, false));
    }
    Ok(CorpusReport {
        traces: count,
        variants_of: like.map(|(name, _)| name),
        first_seed,
        backend: setup.backend.to_string(),
        passes,
        rows,
    })
}

impl CorpusSums {
    fn add(&mut self, seed: u64, trace: &Trace, reserved: Bytes) {
        let ratio = reserved.get() as f64 / trace.peak_live().get().max(1) as f64;
        self.ratio += ratio.ln();
        if ratio > self.worst.0 {
            self.worst = (ratio, seed);
        }
    }

    fn add_measured(&mut self, seed: u64, trace: &Trace, measured: &ReplayMeasured, tight: bool) {
        self.add(seed, trace, measured.peak);
        let (live, peak) = (trace.peak_live().get() as f64, measured.peak.get() as f64);
        let within = if tight {
            peak <= (live * TIGHT_BOUND.0).max(live + TIGHT_BOUND.1 as f64)
        } else {
            peak <= live * QUICK_BOUND.0 + QUICK_BOUND.1 as f64
        };
        self.over += u64::from(!within);
        let events = trace.events().len().max(1) as f64;
        let nanos = |pass: &measure::ReplayPass| pass.total().as_nanos() as f64 / events;
        self.cold += measured.cold.as_ref().map_or(0.0, |pass| nanos(pass).ln());
        let warm = measured.warm.as_ref().map_or(1.0, nanos);
        self.warm += warm.ln();
        self.warm_worst = self.warm_worst.max(warm);
    }

    fn row(&self, who: &str, count: u64, measured: bool) -> CorpusRow {
        let mean = |sum: f64| (sum / count.max(1) as f64).exp();
        CorpusRow {
            who: who.to_string(),
            ratio_mean: mean(self.ratio),
            ratio_worst: self.worst.0,
            worst_seed: self.worst.1,
            over_bound: measured.then_some(self.over),
            cold_ns_mean: measured.then(|| mean(self.cold)),
            warm_ns_mean: measured.then(|| mean(self.warm)),
            warm_ns_worst: measured.then_some(self.warm_worst),
        }
    }
}

impl Answer for CorpusReport {
    fn bare(&self, page: &mut TextPage) {
        for row in &self.rows {
            page.raw(&format!("{}: {:.4} reserved / live\n", row.who, row.ratio_mean));
        }
    }

    fn page(&self, page: &mut TextPage) {
        let what = match &self.variants_of {
            Some(name) => format!("variants of {name}"),
            None => "made-up programs".to_string(),
        };
        page.line(&format!("{} {what} on {}", self.traces, self.backend));
        page.heading("Reserved / live");
        let memory = |row: &CorpusRow| {
            let over = row.over_bound.map(|over| format!(", over the bound on {over}"));
            vec![
                row.who.as_str().into(),
                TextCell::figure(Some(format!("{:.4}", row.ratio_mean))),
                format!(
                    "worst {:.3}, seed {}{}",
                    row.ratio_worst,
                    row.worst_seed,
                    over.unwrap_or_default()
                )
                .into(),
            ]
        };
        page.table(&self.rows.iter().map(memory).collect::<Vec<_>>());
        page.heading("Time an event");
        let time = |row: &CorpusRow| {
            let (cold, warm, worst) = (row.cold_ns_mean?, row.warm_ns_mean?, row.warm_ns_worst?);
            Some(vec![
                row.who.as_str().into(),
                TextCell::figure(Some(format!("cold {cold:.0} ns"))),
                format!("warm {warm:.0} ns, worst {worst:.0} ns").into(),
            ])
        };
        page.table(&self.rows.iter().filter_map(time).collect::<Vec<_>>());
        page.advice(
            "Means are geometric. Others' rules say what they reserve, not how fast they are.",
        );
    }
}
