//! When a frame is due, when a run is over, and what part of it a frame belongs to.
//!
//! Under an offered load frame `k` is due `k / rate` seconds after the start, whether or
//! not anybody is ready: a loop that waits for its own last answer before it asks again
//! measures a machine that is never late. A frame that nobody took before the next was
//! due is dropped, as a camera with one buffer does; one that was due while the loop was
//! still busy is late; and latency counts from the time at which it was due.

use std::time::{Duration, Instant};

use super::plan::BenchPlan;
use crate::measure::Phase;

/// A frame's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameTurn {
    /// When it was due; `None` without an offered load.
    pub(super) due: Option<Instant>,
    /// Whether the loop was still busy then.
    pub(super) late: Option<bool>,
    /// Frames before it that nobody took.
    pub(super) dropped: u64,
}

#[derive(Debug)]
pub(super) struct FramePace {
    start: Instant,
    interval: Option<Duration>,
    frames: Option<u64>,
    duration: Option<Duration>,
    offered: u64,
}

/// The longest that a machine counts as cold.
const COLD: Duration = Duration::from_secs(10);

impl FramePace {
    pub(super) fn new(plan: &BenchPlan, start: Instant) -> FramePace {
        FramePace {
            start,
            interval: plan.rate.map(|rate| Duration::from_secs_f64(1.0 / rate)),
            frames: plan.frames(),
            duration: plan.duration,
            offered: 0,
        }
    }

    /// Whether there are no more turns.
    pub(super) fn over(&self, now: Instant) -> bool {
        self.frames.is_some_and(|frames| self.offered >= frames)
            || self.duration.is_some_and(|time| now.saturating_duration_since(self.start) >= time)
    }

    /// The next turn. Where it is due later, wait until then.
    pub(super) fn turn(&mut self, now: Instant) -> FrameTurn {
        let Some(interval) = self.interval else {
            self.offered += 1;
            return FrameTurn { due: None, late: None, dropped: 0 };
        };
        let since = now.saturating_duration_since(self.start);
        let newest = (since.as_nanos() / interval.as_nanos().max(1)) as u64;
        // The last frame that is offered at all; those after it are nobody's loss.
        let last = self.frames.map_or(u64::MAX, |frames| frames.saturating_sub(1));
        let taken = newest.min(last).max(self.offered);
        let dropped = taken - self.offered;
        self.offered = taken + 1;
        let due = self.start + interval.mul_f64(taken as f64);
        FrameTurn { due: Some(due), late: Some(now > due && taken > 0), dropped }
    }

    /// Whether a frame counts as cold. Only a run that is told how long or how fast it is
    /// to be is told apart; the rest is steady.
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
