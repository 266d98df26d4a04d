//! An hour of figures for pages that are opened later.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::command::monitor::record::MonitorRecord;

/// Older figures are dropped.
const LONGEST_S: f64 = 3600.0;
/// Figures are kept about this far apart; the newest is always there.
const STEP_S: f64 = 2.0;

/// What plots show of a record.
#[derive(Debug, Clone, Serialize)]
struct HistoryPoint {
    t: f64,
    /// What is used of each memory, by its name.
    pools: BTreeMap<String, u64>,
    /// The GPU's share of unified memory.
    share: Option<u64>,
    cpu: Option<f64>,
    loads: Vec<Option<f64>>,
}

/// The last hour, by the clock of the records.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct PageHistory {
    points: VecDeque<HistoryPoint>,
}

impl PageHistory {
    pub(super) fn push(&mut self, record: &MonitorRecord) {
        let t = record.t.unwrap_or_default();
        let point = HistoryPoint {
            t,
            pools: record.pools().map(|pool| (pool.owner.to_string(), pool.used)).collect(),
            share: record.memory.gpu_share_bytes,
            cpu: record.cpu.percent,
            loads: record.gpus.iter().map(|gpu| gpu.percent).collect(),
        };
        let before = self.points.len().checked_sub(2).and_then(|at| self.points.get(at));
        if before.is_some_and(|before| (0.0..STEP_S).contains(&(t - before.t))) {
            self.points.pop_back();
        }
        let old = |first: &HistoryPoint| t - first.t > LONGEST_S || first.t > t;
        while self.points.front().is_some_and(old) {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_kept_with_the_newest_and_no_more() {
        let mut history = PageHistory::default();
        for n in 0..16_000u32 {
            let t = Some(f64::from(n) / 2.0);
            history.push(&MonitorRecord { t, ..MonitorRecord::default() });
        }
        let times: Vec<f64> = history.points.iter().map(|point| point.t).collect();
        assert_eq!(times.last(), Some(&7999.5));
        // Between 1.5 and 2 seconds apart, as the samples come.
        assert!((1790..=2402).contains(&times.len()), "{}", times.len());
        assert!(times[0] <= 7999.5 - 3590.0, "{}", times[0]);
        // A clock that went back begins anew.
        history.push(&MonitorRecord { t: Some(1.0), ..MonitorRecord::default() });
        assert_eq!(history.points.len(), 1);
    }
}
