//! Which plots there are: the memory that is tightest, with its limit and forecast, then GPU memory
//! and GPU load.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};

use super::bars::{gib, name_of};
use super::palette::{GPU, LINES, LOAD, MEMORY};
use super::plot::{PlotFuture, PlotSeries, TextPlot};
use super::view::{LiveView, MOST_GPUS, PlotPoint};
use crate::command::monitor::record::{MonitorPool, MonitorRecord, PoolOwner};

/// Lower than this, plots show nothing.
const LEAST_ROWS: u16 = 5;
/// Narrower than this, there is one plot.
const LEAST_COLUMNS: u16 = 60;
/// At least so many seconds are shown.
const LEAST_SPAN: f64 = 30.0;

pub(super) fn draw_plots(buffer: &mut Buffer, area: Rect, view: &LiveView) {
    let Some(record) = view.record.as_ref().filter(|_| area.height >= LEAST_ROWS) else { return };
    let subject = record.tightest();
    let first = subject.map(|pool| memory(view, record, &pool, true));
    if area.width < LEAST_COLUMNS {
        first.iter().for_each(|plot| plot.render(area, buffer));
        return;
    }
    let [left, _, right] = Layout::horizontal([
        Constraint::Percentage(58),
        Constraint::Length(2),
        Constraint::Fill(1),
    ])
    .areas(area);
    first.iter().for_each(|plot| plot.render(left, buffer));
    let mut others = beside(view, record, subject.as_ref());
    // As many as have room for a line.
    others.truncate(usize::from(area.height / 4).max(1));
    let places = Layout::vertical(vec![Constraint::Fill(1); others.len()]).split(right);
    let last = others.len().saturating_sub(1);
    for (at, (plot, place)) in others.iter_mut().zip(places.iter()).enumerate() {
        plot.axis = at == last && place.height >= 5;
        plot.render(*place, buffer);
    }
}

/// Those beside the first: GPU memory and load, and what the machine has instead.
fn beside(view: &LiveView, record: &MonitorRecord, subject: Option<&MonitorPool>) -> Vec<TextPlot> {
    let own: Vec<MonitorPool> =
        (0..record.gpus.len().min(MOST_GPUS)).filter_map(|at| record.own(at)).collect();
    let shown = |pool: &MonitorPool| Some(pool.owner) == subject.map(|subject| subject.owner);
    let mut plots = Vec::new();
    match own.as_slice() {
        [] if record.memory.gpu_share_bytes.is_some() => plots.push(share(view, record)),
        [] => {}
        [only] if shown(only) => {}
        [only] => plots.push(memory(view, record, only, false)),
        several => plots.push(shares(view, several)),
    }
    if record.gpus.iter().any(|gpu| gpu.percent.is_some()) {
        plots.push(load(view, record));
    }
    if let Some(system) = record.system().filter(|system| !shown(system)) {
        plots.push(memory(view, record, &system, false));
    }
    if plots.len() < 2 {
        plots.push(cpu(view, record));
    }
    if record.swap.total_bytes.is_some_and(|total| total > 0) && plots.len() < 2 {
        plots.push(swap(view, record));
    }
    plots
}

/// A plot of this history.
fn plot(view: &LiveView, title: String, top: f64, top_label: String) -> TextPlot {
    let last = view.history.back().map_or(0.0, |point| point.t);
    let first = view.history.front().map_or(last, |point| point.t);
    TextPlot {
        title,
        now: String::new(),
        series: Vec::new(),
        bottom: 0.0,
        bottom_label: "0".to_string(),
        top,
        top_label,
        limit: None,
        future: None,
        span: view.span.min((last - first).max(LEAST_SPAN)),
        last,
        axis: true,
    }
}

fn series(
    view: &LiveView,
    colour: ratatui::style::Color,
    of: impl Fn(&PlotPoint) -> Option<f64>,
) -> PlotSeries {
    let points = view.history.iter().map(|point| (point.t, of(point))).collect();
    PlotSeries { colour, points }
}

/// One memory in GiB, with its limit; with its forecast where it is the subject.
fn memory(view: &LiveView, record: &MonitorRecord, pool: &MonitorPool, subject: bool) -> TextPlot {
    let name = match pool.owner {
        PoolOwner::System if record.unified == Some(true) => "System memory".to_string(),
        PoolOwner::System => "System memory (RAM)".to_string(),
        owner => format!("{} memory", name_of(record, owner)),
    };
    let most = view.history.iter().filter_map(|point| point.used(pool.owner)).max().unwrap_or(0);
    // A limit stands below the top, so that what is above it can be seen.
    let top = match pool.limit {
        Some(limit) => (limit as f64 * 1.12).max(most as f64 * 1.02),
        None => pool.total as f64,
    };
    let colour = if pool.owner == PoolOwner::System { MEMORY } else { GPU };
    let mut plot = plot(view, format!("{name}, GiB"), top, gib(top as u64));
    plot.series =
        vec![series(view, colour, |point| point.used(pool.owner).map(|used| used as f64))];
    plot.now = format!("{} of {}", gib(pool.used), gib(pool.end()));
    plot.limit = pool.limit.map(|limit| (limit as f64, format!("limit {} GiB", gib(limit))));
    let below = pool.used < pool.end();
    plot.future = record.time_left.as_ref().filter(|_| subject && below).map(|left| PlotFuture {
        seconds: left.seconds,
        at_least: left.at_least_s,
        at_most: left.at_most_s,
        from: pool.used as f64,
    });
    if plot.future.is_some() {
        begin_at_the_least(&mut plot);
    }
    plot
}

/// Where most of the plot would be full, the way that is left would have a row or none: then the
/// plot begins below the least that is shown, and says where.
fn begin_at_the_least(plot: &mut TextPlot) {
    let from = plot.last - plot.span;
    let shown = plot.series.iter().flat_map(|series| &series.points).filter(|(t, _)| *t >= from);
    let least = shown.filter_map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
    if least.is_finite() && least > plot.top / 2.0 {
        plot.bottom = least - 0.15 * (plot.top - least);
        plot.bottom_label = gib(plot.bottom as u64);
    }
}

/// The GPU's share of unified memory.
fn share(view: &LiveView, record: &MonitorRecord) -> TextPlot {
    let total = record.memory.total_bytes.unwrap_or_default();
    let mut plot = plot(view, "GPU memory, GiB".to_string(), total as f64, gib(total));
    let used = record.memory.gpu_share_bytes;
    plot.now =
        used.map_or("not known".to_string(), |used| format!("{} of {}", gib(used), gib(total)));
    plot.series = vec![series(view, GPU, |point| point.share.map(|used| used as f64))];
    plot
}

/// The memories of several GPUs, in percent of each.
fn shares(view: &LiveView, pools: &[MonitorPool]) -> TextPlot {
    let mut plot = percents(view, "GPU memory, %");
    plot.series = pools
        .iter()
        .zip(LINES)
        .map(|(pool, colour)| {
            series(view, colour, |point| {
                Some(100.0 * point.used(pool.owner)? as f64 / pool.total.max(1) as f64)
            })
        })
        .collect();
    let percent = |pool: &MonitorPool| Some(100.0 * pool.used as f64 / pool.total.max(1) as f64);
    plot.now = each(pools.iter().map(percent));
    let limit = |pool: &MonitorPool| pool.limit.map(|limit| limit * 100 / pool.total.max(1));
    let first = pools.first().and_then(limit);
    plot.limit = first
        .filter(|_| pools.iter().all(|pool| limit(pool) == first))
        .map(|percent| (percent as f64, format!("limit {percent} %")));
    plot
}

fn percents(view: &LiveView, title: &str) -> TextPlot {
    plot(view, title.to_string(), 100.0, "100".to_string())
}

/// The figure of one, or of each by its number.
fn each(all: impl Iterator<Item = Option<f64>>) -> String {
    let word = |percent: Option<f64>| percent.map_or("–".to_string(), |p| format!("{p:.0} %"));
    let all: Vec<String> = all.map(word).collect();
    match all.as_slice() {
        [one] => one.clone(),
        several => {
            let numbered = several.iter().enumerate().map(|(at, word)| format!("{at}: {word}"));
            numbered.collect::<Vec<_>>().join("  ").replace(" %", "")
        }
    }
}

fn load(view: &LiveView, record: &MonitorRecord) -> TextPlot {
    let mut plot = percents(view, "GPU load, %");
    let gpus = record.gpus.len().min(MOST_GPUS);
    let colour = |at: usize| if gpus == 1 { LOAD } else { LINES[at] };
    let line = |at| series(view, colour(at), move |point| point.loads.get(at).copied().flatten());
    plot.series = (0..gpus).map(line).collect();
    plot.now = each(record.gpus.iter().take(MOST_GPUS).map(|gpu| gpu.percent));
    plot
}

fn cpu(view: &LiveView, record: &MonitorRecord) -> TextPlot {
    let mut plot = percents(view, "CPU load, %");
    plot.series = vec![series(view, LOAD, |point| point.cpu)];
    plot.now = each(std::iter::once(record.cpu.percent));
    plot
}

/// Swap, which fills when memory has.
fn swap(view: &LiveView, record: &MonitorRecord) -> TextPlot {
    let total = record.swap.total_bytes.unwrap_or_default();
    let mut plot = plot(view, "Swap, GiB".to_string(), total as f64, gib(total));
    plot.series = vec![series(view, MEMORY, |point| point.swap.map(|used| used as f64))];
    let used = record.swap.used_bytes;
    plot.now =
        used.map_or("not known".to_string(), |used| format!("{} of {}", gib(used), gib(total)));
    plot
}
