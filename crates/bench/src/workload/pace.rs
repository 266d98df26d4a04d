//! When a frame is due, when a run is over, and to which part of it a frame belongs.
//!
//! Under an offered load frame `k` is due `k / rate` seconds after the start, whether or
//! not the loop is ready. A loop that starts each frame after the last one has ended would never
//! be late, and so would hide the delay that a user sees. A frame that was not taken before the
//! next was due is dropped, as by a camera with one buffer. One that was due while the loop was
//! still busy is late. Latency counts from the time at which a frame was due.

use std::time::{Duration, Instant};

use super::plan::BenchPlan;
use crate::measure::Phase;

/// When a frame is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameTurn {
    /// When it was due; `None` without an offered load.
    pub(super) due: Option<Instant>,
    /// Whether the loop was still busy then.
    pub(super) late: Option<bool>,
    /// Frames before it that were dropped.
    pub(super) dropped: u64,
}

#[derive(Debug)]
pub(super) struct FramePace {
    start: Instant,
    interval: Option<Duration>,
    frames: Option<u64>,
    duration: Option<Duration>,
    most_time: Option<Duration>,
    offered: u64,
}

/// A machine counts as cold for at most so long.
const COLD: Duration = Duration::from_secs(10);

impl FramePace {
    pub(super) fn new(plan: &BenchPlan, start: Instant) -> FramePace {
        FramePace {
            start,
            interval: plan.rate.map(|rate| Duration::from_secs_f64(1.0 / rate)),
            frames: plan.frames(),
            duration: plan.duration,
            most_time: plan.most_time,
            offered: 0,
        }
    }

    /// Whether all frames, or all of the time, are used up.
    pub(super) fn over(&self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.start);
        let times = [self.duration, self.most_time];
        self.frames.is_some_and(|frames| self.offered >= frames)
            || times.into_iter().flatten().any(|time| since >= time)
    }

    /// The next frame. The caller waits until it is due.
    pub(super) fn turn(&mut self, now: Instant) -> FrameTurn {
        let Some(interval) = self.interval else {
            self.offered += 1;
            return FrameTurn { due: None, late: None, dropped: 0 };
        };
        let since = now.saturating_duration_since(self.start);
        let newest = (since.as_nanos() / interval.as_nanos().max(1)) as u64;
        // Frames after the last one that is offered are not dropped.
        let last = self.frames.map_or(u64::MAX, |frames| frames.saturating_sub(1));
        let taken = newest.min(last).max(self.offered);
        let dropped = taken - self.offered;
        self.offered = taken + 1;
        let due = self.start + interval.mul_f64(taken as f64);
        FrameTurn { due: Some(due), late: Some(now > due && taken > 0), dropped }
    }

    /// Whether a frame counts as cold. Only runs with a duration or a rate distinguish this; in
    /// others all frames are steady.
    pub(super) fn phase(&self, now: Instant) -> Phase {
        if self.duration.is_none() && self.interval.is_none() {
            return Phase::Steady;
        }
        let since = now.saturating_duration_since(self.start);
        let tenth = match (self.duration, self.frames) {
            (Some(time), _) => since < time / 10,
            (None, Some(frames)) => self.offered <= frames / 10,
            (None, None) => true,
        };
        if tenth && since < COLD { Phase::Cold } else { Phase::Steady }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_run_ends_in_time_and_is_no_run_with_a_duration() {
        let most_time = Some(Duration::from_secs(2));
        let plan = BenchPlan { most_time, ..BenchPlan::default() };
        let start = Instant::now();
        let pace = FramePace::new(&plan, start);
        let at = |ms| start + Duration::from_millis(ms);
        assert!(!pace.over(at(1999)) && pace.over(at(2000)));
        assert_eq!(pace.phase(start), Phase::Steady);
        assert!(plan.frames() == Some(300) && !plan.starts_over());
    }

    #[test]
    fn frames_are_due_by_the_clock_and_not_by_the_loop() {
        let plan = BenchPlan { rate: Some(100.0), max_frames: Some(10), ..BenchPlan::default() };
        let start = Instant::now();
        let mut pace = FramePace::new(&plan, start);
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(pace.turn(start), FrameTurn { due: Some(start), late: Some(false), dropped: 0 });
        // Ready early: it waits for its time.
        assert_eq!(
            pace.turn(at(4)),
            FrameTurn { due: Some(at(10)), late: Some(false), dropped: 0 }
        );
        // Busy until 25 ms: the frame of 20 ms is late, none is lost.
        assert_eq!(
            pace.turn(at(25)),
            FrameTurn { due: Some(at(20)), late: Some(true), dropped: 0 }
        );
        // Busy until 58 ms: those of 30 and 40 ms are lost.
        assert_eq!(
            pace.turn(at(58)),
            FrameTurn { due: Some(at(50)), late: Some(true), dropped: 2 }
        );
        assert!(!pace.over(at(58)));
        // Far behind: no more than those that were to be offered.
        let last = pace.turn(at(5000));
        assert_eq!((last.due, last.dropped), (Some(at(90)), 3));
        assert!(pace.over(at(5000)));
    }

    #[test]
    fn without_a_load_a_turn_is_now() {
        let plan = BenchPlan { max_frames: Some(1), ..BenchPlan::default() };
        let mut pace = FramePace::new(&plan, Instant::now());
        assert_eq!(pace.turn(Instant::now()), FrameTurn { due: None, late: None, dropped: 0 });
        assert!(pace.over(Instant::now()));
        assert_eq!(pace.phase(Instant::now()), Phase::Steady);
    }
}
