//! Predicts when a memory runs out from how it grows.
//!
//! What counts is what cannot be had any more (total less available), so a page cache that
//! fills is no growth. The hard part is to tell growth that goes on from what looks like it
//! for a while. Nobody can know, but most cases can be distinguished by three questions, asked
//! of nine windows from 24 seconds to ten minutes at once:
//!
//! - *Does it go on?* The median of each quarter of the window lies above that of the
//!   quarter before, by its share. A model that is loaded rises once and fails this; a
//!   staircase passes in every window that has a step a quarter.
//! - *Is it more than noise?* The rise over the window is many times the scatter around it.
//! - *Did it turn back here before?* A memory that rose and fell, as between two requests,
//!   is believed to turn back again until it has passed where it turned.
//!
//! The shortest window that says yes decides, so growth that speeds up or slows down is
//! judged by what it does now; where it clearly bends, the bend is carried on. The level is
//! that of the highest values, as it is a peak that hits the ceiling and not a mean, and half
//! a step above them where growth comes in steps: what does not fit is the next one.
//!
//! Memory and work are bounded: a window keeps two dozen buckets, whatever the rate.

mod turns;
mod window;

use std::time::Duration;

use turns::Turns;
use window::{Trend, TrendWindow};

use crate::units::Bytes;

/// The windows, in seconds.
const WIDTHS: [f64; 9] = [24.0, 36.0, 54.0, 80.0, 120.0, 180.0, 270.0, 400.0, 600.0];
/// The last of a memory cannot be had: kernels and drivers kill and refuse before.
const RESERVE: f64 = 0.015;
/// What is further away than this is not worth telling.
const FURTHEST_S: f64 = 48.0 * 3600.0;
/// A hole in the samples this long starts everything anew.
const HOLE_S: f64 = 120.0;

/// When a memory runs out at its present growth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeLeft {
    /// The best guess, in seconds.
    pub seconds: f64,
    /// Likely not sooner.
    pub at_least: f64,
    /// Likely not later; `None` where it may never run out.
    pub at_most: Option<f64>,
    /// The growth that it was worked out from.
    pub bytes_per_second: f64,
}

/// Follows one memory.
///
/// ```
/// use plimsoll_machine::{Bytes, probe::Forecast};
/// let mut forecast = Forecast::default();
/// let left = |t: u64| Bytes::mib(4000 + 40 * t); // 40 MiB a second
/// let told = (0..60).filter_map(|t| forecast.push(t as f64, left(t), Bytes::mib(8000))).last();
/// assert!(told.is_some_and(|left| (35.0..45.0).contains(&left.seconds)));
/// ```
#[derive(Debug, Clone)]
pub struct Forecast {
    windows: Vec<TrendWindow>,
    turns: Turns,
    last: Option<f64>,
    /// The last three values.
    newest: [f64; 3],
    total: Bytes,
}

impl Default for Forecast {
    fn default() -> Forecast {
        let windows = WIDTHS.map(TrendWindow::new).to_vec();
        Forecast {
            windows,
            turns: Turns::default(),
            last: None,
            newest: [0.0; 3],
            total: Bytes::ZERO,
        }
    }
}

impl Forecast {
    /// The narrowest window: in less time nothing can be told.
    pub const NARROWEST: Duration = Duration::from_secs(WIDTHS[0] as u64);
    /// The widest window: what was before is not looked at.
    pub const WIDEST: Duration = Duration::from_secs(WIDTHS[WIDTHS.len() - 1] as u64);
    /// Samples that are further apart may be too few in every window.
    pub const LONGEST_STEP: Duration = Duration::from_secs(Self::WIDEST.as_secs() / 10);

    /// Takes a sample in: `t` in seconds by any clock, what is used and what there is. Tells
    /// when it runs out, where it does.
    pub fn push(&mut self, t: f64, used: Bytes, total: Bytes) -> Option<TimeLeft> {
        self.push_until(t, used, total, total.get() as f64 * (1.0 - RESERVE))
    }

    /// The same towards a limit that somebody has set, all of which can be had.
    pub fn push_to_limit(&mut self, t: f64, used: Bytes, limit: Bytes) -> Option<TimeLeft> {
        self.push_until(t, used, limit, limit.get() as f64)
    }

    fn push_until(&mut self, t: f64, used: Bytes, total: Bytes, end: f64) -> Option<TimeLeft> {
        let step = self.last.map_or(0.0, |last| t - last);
        if total != self.total || !(0.0..HOLE_S.max(self.usual_step() * 5.0)).contains(&step) {
            *self = Forecast { total, ..Forecast::default() };
        }
        self.last = Some(t);
        let value = used.get() as f64;
        for window in &mut self.windows {
            window.push(t, value);
        }
        self.newest.rotate_left(1);
        self.newest[2] = value;
        let size = total.get() as f64;
        if let Some((level, scatter)) = self.windows[0].recent() {
            self.turns.push(level, middle(self.newest), scatter, size);
        }
        let trend = self.windows.iter().find_map(|window| window.trend(size))?;
        if trend.is_left_behind(t, self.newest) {
            return None;
        }
        // Where growth would be is not where it has been: a long window still rises when the
        // memory has turned back already.
        let level = trend.level(t).min(self.windows[0].peak());
        if self.turns.expects_a_turn(level, end, size) {
            return None;
        }
        time_left(&trend, t, end)
    }

    /// How long samples that are so far apart must be taken before anything can be told.
    #[must_use]
    pub fn first_after(step: Duration) -> Duration {
        Self::NARROWEST.max(step * window::LEAST as u32)
    }

    /// Whether any window has enough samples to tell growth from none.
    #[must_use]
    pub fn has_enough(&self) -> bool {
        self.windows.iter().any(|window| window.recent().is_some())
    }

    /// How far samples are apart.
    fn usual_step(&self) -> f64 {
        self.windows.last().and_then(TrendWindow::step).unwrap_or(0.0)
    }
}

/// The middle one of three.
fn middle(mut three: [f64; 3]) -> f64 {
    three.sort_unstable_by(f64::total_cmp);
    three[1]
}

fn time_left(trend: &Trend, t: f64, end: f64) -> Option<TimeLeft> {
    let (slope, bend) = (trend.slope_at(t), trend.bend);
    let seconds = carry_on(end - trend.level(t), slope, bend)?;
    if seconds > FURTHEST_S {
        return None;
    }
    let error = 2.0 * trend.slope_error;
    let at_least = reach(end - trend.highest(t), slope + error, bend.max(0.0)).unwrap_or(0.0);
    let at_most = reach(end - trend.middle(t), slope - error, bend.min(0.0));
    Some(TimeLeft {
        seconds,
        at_least: at_least.min(seconds),
        at_most: at_most.map(|most| most.max(seconds)).filter(|most| *most <= FURTHEST_S),
        bytes_per_second: slope,
    })
}

/// When growth has come so far if what it does goes on. Growth that speeds up is taken to
/// do so by the same share each second, as what feeds on itself does.
fn carry_on(room: f64, slope: f64, bend: f64) -> Option<f64> {
    if bend <= 0.0 || slope <= 0.0 || room <= 0.0 {
        return reach(room, slope, bend);
    }
    let share = bend / slope;
    Some((room * share / slope).ln_1p() / share)
}

/// When growth of this slope and bend has come so far; `None` for never.
fn reach(room: f64, slope: f64, bend: f64) -> Option<f64> {
    if room <= 0.0 {
        return Some(0.0);
    }
    let root = slope * slope + 2.0 * bend * room;
    if root < 0.0 || (slope <= 0.0 && bend <= 0.0) {
        return None;
    }
    // The usual formula turned around, which holds for a bend of nothing too.
    let time = 2.0 * room / (slope + root.sqrt());
    (time.is_finite() && time >= 0.0).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_can_be_used_up_and_a_memory_not_quite() {
        let (mut memory, mut limit) = (Forecast::default(), Forecast::default());
        let used = |t: u32| Bytes::mib(4000 + 20 * u64::from(t));
        let last = |told: Option<TimeLeft>| told.map_or(f64::NAN, |left| left.seconds);
        let (mut sooner, mut later) = (f64::NAN, f64::NAN);
        for t in 0..60 {
            sooner = last(memory.push(f64::from(t), used(t), Bytes::mib(8000)));
            later = last(limit.push_to_limit(f64::from(t), used(t), Bytes::mib(8000)));
        }
        // 1.5 % of 8000 MiB are 6 seconds of growth.
        assert!((later - sooner - 6.0).abs() < 0.1, "{sooner} {later}");
    }

    #[test]
    fn samples_so_far_apart_are_enough_after_so_long() {
        for step in [1u64, 2, 5, 20, 60] {
            let mut forecast = Forecast::default();
            let after = Forecast::first_after(Duration::from_secs(step)).as_secs();
            for t in (0..=after).step_by(step as usize) {
                let _calm = forecast.push(t as f64, Bytes::gib(1), Bytes::gib(8));
            }
            assert!(forecast.has_enough(), "every {step} s for {after} s");
        }
        assert_eq!(Forecast::first_after(Duration::from_millis(500)), Forecast::NARROWEST);
    }

    #[test]
    fn straight_and_bent_growth_reaches_where_it_should() {
        assert_eq!(reach(100.0, 10.0, 0.0), Some(10.0));
        assert_eq!(reach(-1.0, 10.0, 0.0), Some(0.0));
        assert_eq!(reach(100.0, 0.0, 2.0), Some(10.0));
        assert_eq!(reach(100.0, 10.0, -1.0), None, "it turns at 50");
        assert_eq!(reach(100.0, 0.0, 0.0), None);
        assert_eq!(reach(100.0, -1.0, 0.0), None);
    }
}
