//! Which value to try next: pure, so that it is tested without a program.
//!
//! A search knows the tries that were made. It looks for two neighbours, the largest value that ran
//! and the smallest that failed, on the assumption that a program that fails at a value fails at all
//! larger ones. Bisection alone would take twelve tries for 4,096 values. Each try that ran also
//! gives its peak, and memory mostly grows by the same amount with every step: a line through two
//! peaks (a parabola through three, where they bend) says where it reaches the limit, and the next
//! try is there. What is found is always tried; the line only chooses the order.
//!
//! Peaks of tries in which a request was refused are not used for the line. A program that frees
//! its cache at a refusal, as PyTorch does, peaks at the limit whatever it needs.

use std::fmt;

/// Rounding of peaks that a line through them must allow for: PyTorch takes memory in pieces of up
/// to 20 MiB.
const GRAIN: f64 = (20u64 << 20) as f64;
/// After this many tries the line has not helped, and the rest is bisection.
const GUIDED_TRIES: usize = 9;

/// The values that may be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FitRange {
    low: u64,
    high: u64,
    step: u64,
}

impl FitRange {
    /// From `low` in steps to at most `high`.
    pub(super) fn new(low: u64, high: u64, step: u64) -> Result<FitRange, String> {
        match (low, step) {
            (0, _) => Err("the smallest value must be above 0".to_string()),
            (_, 0) => Err("the step must be above 0".to_string()),
            _ if low > high => Err(format!("{low} is more than {high}; say {high}..{low}")),
            _ => Ok(FitRange { low, high: high - (high - low) % step, step }),
        }
    }

    /// The smallest value.
    pub(super) fn low(&self) -> u64 {
        self.low
    }

    /// The largest value that the steps reach.
    pub(super) fn high(&self) -> u64 {
        self.high
    }

    /// The distance of two neighbours.
    pub(super) fn step(&self) -> u64 {
        self.step
    }

    /// Whether a value is one of them.
    pub(super) fn has(&self, value: u64) -> bool {
        (self.low..=self.high).contains(&value) && (value - self.low).is_multiple_of(self.step)
    }
}

impl fmt::Display for FitRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.low, self.high)?;
        if self.step == 1 { Ok(()) } else { write!(f, " in steps of {}", self.step) }
    }
}

/// What a try showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SearchPoint {
    pub(super) value: u64,
    /// The peak, where the program ran to its end.
    pub(super) ran: Option<u64>,
    /// Whether a request was refused.
    pub(super) refused: bool,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextTry {
    Value(u64),
    /// The largest value that ran and the smallest that failed are neighbours, or one of them is at
    /// the end of the range.
    Found {
        largest: Option<u64>,
        smallest_failed: Option<u64>,
    },
}

/// A search in progress: the range, the most that a program may have allocated, and what is known.
#[derive(Debug)]
pub(super) struct FitSearch<'a> {
    pub(super) range: FitRange,
    /// The limit less the driver headroom: an allocation past it is refused.
    pub(super) room: u64,
    pub(super) guess: Option<u64>,
    pub(super) tries: &'a [SearchPoint],
}

/// The values that are still open, between what ran and what failed.
#[derive(Debug, Clone, Copy)]
struct OpenValues {
    best: Option<u64>,
    worst: Option<u64>,
    low: u64,
    high: u64,
}

impl FitSearch<'_> {
    /// What to try next.
    pub(super) fn next(&self) -> NextTry {
        let open = self.open();
        if open.low > open.high {
            return NextTry::Found { largest: open.best, smallest_failed: open.worst };
        }
        NextTry::Value(self.snap(self.target(open), open))
    }

    /// About how many tries are left.
    pub(super) fn tries_left(&self) -> u32 {
        let open = self.open();
        if open.low > open.high {
            return 0;
        }
        // Between what ran and what failed it is bisection at worst.
        let values = (open.high - open.low) / self.range.step + 1;
        let bisection = u64::BITS - values.leading_zeros();
        let guided = GUIDED_TRIES.saturating_sub(self.tries.len() + 2).max(2) as u32;
        let is_between = open.best.is_some() && open.worst.is_some();
        if is_between { bisection } else { bisection.min(guided) }
    }

    fn open(&self) -> OpenValues {
        let ran = self.tries.iter().filter(|point| point.ran.is_some());
        let failed = self.tries.iter().filter(|point| point.ran.is_none());
        let best = ran.map(|point| point.value).max();
        let worst = failed.map(|point| point.value).min();
        let step = self.range.step;
        OpenValues {
            best,
            worst,
            low: best.map_or(self.range.low, |best| best.saturating_add(step)),
            high: worst.map_or(self.range.high, |worst| worst.saturating_sub(step)),
        }
    }

    /// The value of the range at or below this one, among those that are open.
    fn snap(&self, target: f64, open: OpenValues) -> u64 {
        // `as` keeps to the ends of u64 where the line points past them.
        let value = (target as u64).clamp(open.low, open.high);
        value - (value - self.range.low) % self.range.step
    }

    fn target(&self, open: OpenValues) -> f64 {
        let step = self.range.step as f64;
        let Some(best) = open.best.map(|best| best as f64) else { return self.first(open) };
        let middle = (open.low as f64 + open.high as f64) / 2.0;
        let worst = open.worst.map(|worst| worst as f64);
        let between = |otherwise: f64| if worst.is_some() { middle } else { otherwise };
        if self.tries.len() >= GUIDED_TRIES {
            return between(best * 4.0);
        }
        let Some(crossing) = self.crossing() else { return between(best * 2.0) };
        let target = crossing.target(best, step);
        let line_says_more = target >= open.low as f64;
        match worst {
            _ if !line_says_more => self.beyond(best, crossing.at).min(between(f64::INFINITY)),
            Some(worst) if target >= worst => {
                // The line was wrong; by how much is not known, and less where it was short.
                let part = if worst > 2.0 * best { 4.0 } else { 8.0 };
                let doublings = self.tries.iter().filter(|point| point.ran.is_none()).count() - 1;
                let back = (worst - best) / part * 2f64.powi(doublings as i32);
                (worst - back.max(step)).max(middle)
            }
            _ => target,
        }
    }

    /// Where nothing has run yet: the guess, then ever further below what failed.
    fn first(&self, open: OpenValues) -> f64 {
        let failed = self.tries.iter().map(|point| point.value).max();
        match failed {
            None => self.guess.unwrap_or(open.low) as f64,
            Some(failed) => {
                let failed = failed as f64;
                let part = 4f64.powi(self.tries.len() as i32 - 1) / 16.0;
                failed - (failed * part).max(self.range.step as f64)
            }
        }
    }

    /// Past the value that the line gives as the largest: neighbours first, then further away. A
    /// program that goes on after refusals goes on for a while.
    fn beyond(&self, best: f64, line: f64) -> f64 {
        let step = self.range.step as f64;
        let ran = || self.tries.iter().filter(|point| point.ran.is_some());
        match ran().filter(|point| point.refused).count() {
            0 => {
                let past = ran().filter(|point| point.value as f64 >= line.min(best)).count();
                best + step * 4f64.powi(past.saturating_sub(1) as i32)
            }
            recovered => best + (best / 16.0).max(step) * 2f64.powi(recovered as i32 - 1),
        }
    }

    /// Where the peaks reach the room; `None` where they do not grow.
    fn crossing(&self) -> Option<LineCrossing> {
        let mut clean: Vec<(f64, f64)> = self
            .tries
            .iter()
            .filter(|point| !point.refused)
            .filter_map(|point| Some((point.value as f64, point.ran? as f64)))
            .collect();
        clean.sort_by(|a, b| a.0.total_cmp(&b.0));
        let room = self.room as f64;
        match clean.as_slice() {
            // Only tries in which something was refused: the largest of them is all there is.
            [] => {
                let best = self.open().best? as f64;
                Some(LineCrossing::at(best))
            }
            [(value, peak)] => {
                // What does not grow with the value makes this too low, and never too high.
                let at = (value * room / peak.max(1.0)).max(value + self.range.step as f64);
                let at = if self.guess.is_some() { at } else { at.max(value * 8.0) };
                Some(LineCrossing::at(at))
            }
            [.., last] => through(&clean, *last, room),
        }
    }
}

/// Where a line through peaks reaches the room.
#[derive(Debug, Clone, Copy)]
struct LineCrossing {
    at: f64,
    /// The same if rounding made the line too flat.
    at_least: f64,
    /// Whether it is so far past the peaks that half of the way is tried first.
    is_far: bool,
    /// Whether there are so many peaks that rounding no longer matters.
    is_settled: bool,
}

impl LineCrossing {
    fn at(value: f64) -> LineCrossing {
        LineCrossing { at: value, at_least: value, is_far: false, is_settled: true }
    }

    /// What to try: the crossing itself where rounding matters little.
    fn target(&self, best: f64, step: f64) -> f64 {
        let half = best + (self.at - best) / 2.0;
        let target = if self.is_far {
            half
        } else if self.is_settled || self.at - self.at_least <= step.max(self.at / 64.0) {
            self.at
        } else {
            half.max(self.at_least)
        };
        // Half of a short way is no step at all.
        if target < best + step { self.at } else { target }
    }
}

/// The crossing of the line through the last peak and one well below it; of the parabola through
/// a third where the peaks bend upwards by more than rounding.
fn through(clean: &[(f64, f64)], (x2, p2): (f64, f64), room: f64) -> Option<LineCrossing> {
    let well_below = |value: f64| clean.iter().rev().copied().find(|(x, _)| x * 8.0 <= value * 7.0);
    let (x1, p1) = well_below(x2).or(clean.first().copied())?;
    let slope = (p2 - p1) / (x2 - x1);
    if slope <= 0.0 {
        return None;
    }
    let left = room - p2;
    let mut at = x2 + left / slope;
    if let Some((x0, p0)) = well_below(x1).filter(|(_, p0)| left > 0.0 && p1 - p0 > 4.0 * GRAIN) {
        let bend = (slope - (p1 - p0) / (x1 - x0)) / (x2 - x0);
        if bend * (x2 - x1) * (x2 - x0) > GRAIN {
            let steepest = slope + bend * (x2 - x1);
            at = x2 + ((steepest.powi(2) + 4.0 * bend * left).sqrt() - steepest) / (2.0 * bend);
        }
    }
    let at_least = x2 + left.max(0.0) * (x2 - x1) / (p2 - p1 + GRAIN);
    let (is_far, is_settled) = (at > 8.0 * x2, clean.len() > 3);
    Some(LineCrossing { at, at_least: at_least.min(at), is_far, is_settled })
}

#[cfg(test)]
mod tests;
