//! Where growth turned back before.

use std::collections::VecDeque;

/// This many turns are remembered.
const MOST: usize = 16;
/// A fall of this share of the memory is a turn, if it is no noise.
const LEAST_FALL: f64 = 0.03;
/// Or of this share of the rise before it, where that is more.
const OF_THE_RISE: f64 = 0.3;
/// And this many times the scatter.
const ABOVE_SCATTER: f64 = 4.0;
/// Growth is new when it is this share of the memory above all turns, or this share of the
/// highest rise that turned, but never more than half of the way to the end.
const NEW_SHARE: f64 = 0.01;
const NEW_RISE: f64 = 0.15;

/// Rises and falls so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Turns {
    /// Lowest and highest since the last turn.
    now: Option<(f64, f64)>,
    /// Where it turned, and how far it had risen.
    turned: VecDeque<(f64, f64)>,
}

impl Turns {
    /// `level` is where the last seconds lie, `newest` where the last values do: a steep
    /// tooth has its peak far above the former.
    pub(super) fn push(&mut self, level: f64, newest: f64, scatter: f64, size: f64) {
        let Some((low, high)) = &mut self.now else {
            self.now = Some((level, level));
            return;
        };
        *high = high.max(newest);
        let rise = *high - *low;
        let fall = (LEAST_FALL * size).max(OF_THE_RISE * rise).max(ABOVE_SCATTER * scatter);
        // After a jump up the last seconds lie as low as after a fall: the newest tell.
        if *high - level.max(newest) > fall {
            if rise > LEAST_FALL * size {
                self.turned.push_back((*high, rise));
            }
            if self.turned.len() > MOST {
                self.turned.pop_front();
            }
            self.now = Some((level, level));
        } else if level < *low {
            *low = level;
        }
    }

    /// Whether it is lower than where it turned back before.
    pub(super) fn expects_a_turn(&self, level: f64, end: f64, size: f64) -> bool {
        let highest = self.turned.iter().map(|(high, _)| *high).fold(f64::MIN, f64::max);
        let rise = self.turned.iter().map(|(_, rise)| *rise).fold(0.0, f64::max);
        let margin = (NEW_SHARE * size).max(NEW_RISE * rise).min((end - highest) / 2.0);
        level < highest + margin
    }
}
