//! The live view: records as they come, or a log at the pace at which it was written.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use jiff::tz::TimeZone;

use super::Monitor;
use super::feed::Item;
use super::flags::Args;
use super::record::MonitorRecord;
use crate::output::colour_on;
use crate::tui::{KeyAction, LiveView, Screen, ViewSettings};

/// How long to wait for a key at most, and at least, before looking for the next record.
const LONGEST_POLL: Duration = Duration::from_millis(100);
const SHORTEST_POLL: Duration = Duration::from_millis(10);
/// A hole in a log is not waited out.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

impl Monitor {
    /// Shows records until the user has seen enough.
    pub(super) fn live(&mut self, args: &Args) -> anyhow::Result<()> {
        let mut view = LiveView::new(ViewSettings {
            source: self.source(args),
            interval: args.interval,
            colour: colour_on(true),
            zone: TimeZone::system(),
        });
        let mut pace = ReplayPace::new(args.replay.speed);
        let mut screen = Screen::take().context("cannot take the terminal; try --format table")?;
        let mut stale = true;
        while !self.stop.load(Ordering::Relaxed) {
            stale |= self.look(&mut view, &mut pace, args);
            if std::mem::take(&mut stale) {
                screen.show(&view).context("cannot draw on the terminal")?;
            }
            // To wake up often costs more than to draw.
            let wait = (view.interval() / 4).clamp(SHORTEST_POLL, LONGEST_POLL);
            let wait = pace.wait().map_or(wait, |due| due.clamp(SHORTEST_POLL, wait));
            match screen.next_action(wait, &view).context("cannot read keys")? {
                Some(KeyAction::Quit) => break,
                Some(wish) => {
                    view.grant(wish);
                    self.feed.set_interval(view.interval());
                    stale = true;
                }
                None => {}
            }
            // With a duration it also ends with the log.
            if self.is_over(args) || pace.ended && args.duration.is_some() {
                break;
            }
        }
        Ok(())
    }

    fn source(&self, args: &Args) -> String {
        let what = match &args.replay.file {
            Some(path) => {
                format!("REPLAY of {}", path.file_name().unwrap_or_default().display())
            }
            None if args.root == std::path::Path::new("/") => String::new(),
            None => "a recorded machine".to_string(),
        };
        match &self.server {
            Some(server) => format!("{what} {}", server.url()),
            None => what,
        }
    }

    /// Takes what is there into the view; whether there was anything.
    fn look(&mut self, view: &mut LiveView, pace: &mut ReplayPace, args: &Args) -> bool {
        let mut news = false;
        // A log gives as fast as it is asked: the pace says when to ask again.
        while pace.is_due() && !pace.ended && !self.is_over(args) {
            match self.next(Duration::ZERO) {
                Item::Record(record) => {
                    if !self.feed.is_live() {
                        pace.follow(&record);
                    }
                    view.take(*record);
                }
                Item::Nonsense { line, why } => view.warn(format!("line {line}: {why}")),
                Item::Nothing => return news,
                Item::End => {
                    pace.ended = true;
                    view.end();
                }
            }
            news = true;
        }
        news
    }
}

/// When the next line of a log is due.
pub(super) struct ReplayPace {
    speed: f64,
    last: Option<f64>,
    next: Instant,
    ended: bool,
}

impl ReplayPace {
    pub(super) fn new(speed: f64) -> ReplayPace {
        ReplayPace { speed, last: None, next: Instant::now(), ended: false }
    }

    fn is_due(&self) -> bool {
        self.wait().is_none()
    }

    /// How long until the next line is due; nothing where it is.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.next.checked_duration_since(Instant::now()).filter(|wait| !wait.is_zero())
    }

    /// The line after this one comes as long after it as this one came after the last.
    pub(super) fn follow(&mut self, record: &MonitorRecord) {
        let t = record.t.unwrap_or_default();
        let step = self.last.map_or(0.0, |last| (t - last).max(0.0)) / self.speed;
        self.last = Some(t);
        let step = Duration::try_from_secs_f64(step).unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT);
        self.next += step;
    }
}
