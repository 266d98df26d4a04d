//! What is worked out from record to record: the time left, alerts, peaks and means.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use plimsoll::Bytes;
use plimsoll::probe::Forecast;

use super::flags::{Alert, FreeAlert};
use super::missing;
use super::record::{MonitorPool, MonitorRecord, MonitorTimeLeft, PoolOwner};
use super::summary::MonitorSummary;

/// An alert is raised again only after its reason has been gone for so long.
const ALERT_PAUSE_S: f64 = 60.0;
/// This many commands of alerts run at once at most; a command may hang.
const MOST_COMMANDS: usize = 4;

/// Follows a feed.
pub(super) struct MonitorWatch {
    limit: Option<Bytes>,
    /// Whether any record had a GPU with memory of its own, which the limit is then about.
    own_seen: bool,
    free: Option<FreeAlert>,
    within: Option<Duration>,
    command: Option<String>,
    running: Vec<Child>,
    forecasts: BTreeMap<PoolOwner, Forecast>,
    /// When each reason for an alert was last there.
    reasons: BTreeMap<(&'static str, PoolOwner), f64>,
    pub(super) raised: u64,
    /// Whether any record had memory that an alert could be about.
    judged: bool,
    /// Whether any memory was ever told of often enough for a forecast.
    foreseen: bool,
    pub(super) summary: MonitorSummary,
}

impl MonitorWatch {
    pub(super) fn new(alert: &Alert, limit: Option<Bytes>) -> MonitorWatch {
        MonitorWatch {
            limit,
            own_seen: false,
            free: alert.alert_free,
            within: alert.alert_within,
            command: alert.alert_exec.clone(),
            running: Vec::new(),
            forecasts: BTreeMap::new(),
            reasons: BTreeMap::new(),
            raised: 0,
            judged: false,
            foreseen: false,
            summary: MonitorSummary::default(),
        }
    }

    /// Takes a record in, and adds to it what follows from it and those before.
    pub(super) fn take(&mut self, record: &mut MonitorRecord) {
        self.set_limit(record);
        let t = record.t.unwrap_or_default();
        let pools: Vec<MonitorPool> = record.pools().collect();
        self.judged |= !pools.is_empty();
        // A run that is not there has ended; a memory that is not told in one sample is still there.
        let is_there = |owner: &PoolOwner| pools.iter().any(|pool| pool.owner == *owner);
        self.forecasts.retain(|owner, _| !matches!(owner, PoolOwner::Run(..)) || is_there(owner));
        let mut soonest: Option<MonitorTimeLeft> = None;
        for pool in pools {
            let forecast = self.forecasts.entry(pool.owner).or_default();
            let left = match pool.limit {
                Some(limit) => forecast.push_to_limit(t, Bytes(pool.used), Bytes(limit)),
                None => forecast.push(t, Bytes(pool.used), Bytes(pool.total)),
            };
            self.foreseen |= forecast.has_enough();
            if let Some(left) = left.map(|left| MonitorTimeLeft::new(&pool, left)) {
                self.judge_time(record, &pool, &left, t);
                if soonest.as_ref().is_none_or(|soonest| left.seconds < soonest.seconds) {
                    soonest = Some(left);
                }
            }
            self.judge_room(record, &pool, t);
        }
        record.time_left = soonest;
        // A log of ours says what its machine did not tell.
        if record.missing.is_empty() {
            record.missing = missing::missing(record);
        }
        self.summary.take(record);
        self.running.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        for alert in &record.alerts {
            self.raised += 1;
            run(self.command.as_deref(), alert, record, &mut self.running);
        }
    }

    /// The limit is about GPUs with memory of their own, or about the system's memory where the GPU
    /// uses it or there is none. A sample that lacks the GPU does not change which, and before any
    /// GPU was seen one may still answer.
    fn set_limit(&mut self, record: &mut MonitorRecord) {
        let Some(limit) = self.limit else { return };
        self.own_seen |= record.has_own();
        match self.own_seen {
            true => record.limit_own(limit.get()),
            false if record.awaits_gpu() => {}
            false => record.limit_system(limit.get()),
        }
    }

    /// Why an alert that was asked for could not be judged; `None` where it could.
    pub(super) fn blindness(&self) -> Option<String> {
        let asked = self.free.is_some() || self.within.is_some();
        if asked && !self.judged && self.summary.samples > 0 {
            let why = "no alert could be judged: no sample had memory in use and its size";
            return Some(why.to_string());
        }
        let long = self.summary.seconds >= Forecast::WIDEST.as_secs_f64();
        let blind = self.within.is_some() && !self.foreseen && long && self.raised == 0;
        blind.then(|| {
            let step = Forecast::LONGEST_STEP.as_secs();
            format!("--alert-within could not be judged: it needs samples at most {step} s apart")
        })
    }

    fn judge_time(
        &mut self,
        record: &mut MonitorRecord,
        pool: &MonitorPool,
        left: &MonitorTimeLeft,
        t: f64,
    ) {
        let Some(within) = self.within else { return };
        if left.seconds > within.as_secs_f64() || !self.is_new("within", pool.owner, t) {
            return;
        }
        let latest = left.at_most_s.map_or_else(|| "–".to_string(), |s| format!("{s:.0}"));
        let what = match left.limit_bytes {
            Some(limit) => format!("reaches its limit of {}", Bytes(limit)),
            None => "runs out".to_string(),
        };
        record.alerts.push(format!(
            "{} memory {what} in {:.0} s ({:.0} to {latest} s) at {}/s",
            left.memory,
            left.seconds,
            left.at_least_s,
            Bytes(left.bytes_per_s.max(0.0) as u64),
        ));
    }

    fn judge_room(&mut self, record: &mut MonitorRecord, pool: &MonitorPool, t: f64) {
        let Some(free) = self.free else { return };
        let least = free.of(pool.end());
        if pool.free() >= least || !self.is_new("free", pool.owner, t) {
            return;
        }
        record.alerts.push(format!(
            "{} memory: {} of {} left, less than {}",
            pool.owner,
            Bytes(pool.free()),
            Bytes(pool.end()),
            Bytes(least),
        ));
    }

    /// Whether a reason that is there now was not there a while ago.
    fn is_new(&mut self, kind: &'static str, owner: PoolOwner, t: f64) -> bool {
        let last = self.reasons.insert((kind, owner), t);
        last.is_none_or(|last| t - last > ALERT_PAUSE_S || t < last)
    }
}

/// Starts the command, which is not waited for.
fn run(command: Option<&str>, alert: &str, record: &MonitorRecord, running: &mut Vec<Child>) {
    let Some(command) = command else { return };
    if running.len() >= MOST_COMMANDS {
        tracing::warn!("--alert-exec is not run: {MOST_COMMANDS} earlier ones have not ended yet");
        return;
    }
    let left = record.time_left.as_ref().map(|left| left.seconds.to_string()).unwrap_or_default();
    let child = Command::new("sh")
        .arg("-c")
        .arg(command)
        .env("PLIMSOLL_ALERT", alert)
        .env("PLIMSOLL_TIME_LEFT_S", left)
        .env("PLIMSOLL_T", record.t.unwrap_or_default().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    match child {
        Ok(child) => running.push(child),
        Err(error) => tracing::warn!("--alert-exec cannot be run: {error}"),
    }
}
