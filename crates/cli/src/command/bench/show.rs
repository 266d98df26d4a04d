//! How far a run is: a bar a slot on a terminal, plain lines elsewhere. All on stderr, so
//! that stdout has the answer alone.

use std::path::Path;
use std::time::{Duration, Instant};

use plimsoll::Bytes;
use plimsoll::text::one_line;
use plimsoll_bench::record::{MemorySafety, ModelRecord, Status};
use plimsoll_bench::report::console;
use plimsoll_bench::workload::{BenchProgress, SlotProgress};
use plimsoll_infer::engine::messages::shortened;

use crate::output::{can_rewrite, note, note_line, rewrite, terminal_width};

/// How often a plain line is worth its space.
const LINE_INTERVAL: Duration = Duration::from_secs(2);
const BAR: usize = 24;

pub(super) struct Show {
    on: bool,
    on_gpu: bool,
    terminal: bool,
    last: Option<Instant>,
    open: bool,
}

impl Show {
    /// `on_gpu` says that the user named a GPU.
    pub(super) fn new(on: bool, on_gpu: bool) -> Show {
        Show { on, on_gpu, terminal: can_rewrite(), last: None, open: false }
    }

    /// Leaves the last bar standing.
    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.open) {
            note("");
        }
    }

    fn line(&mut self, text: &str) {
        if self.on {
            self.end();
            // Each line passes by itself, so that text from outside cannot begin one.
            let width = self.terminal.then(terminal_width);
            console::wrapped(&one_line(text), width, "  ").lines().for_each(note_line);
        }
    }
}

impl BenchProgress for Show {
    fn started(&mut self, folder: &Path, safety: &MemorySafety, backends: &[(String, String)]) {
        let half = Bytes((safety.effective_limit_gb * (1u64 << 29) as f64) as u64);
        if self.on {
            note(&console::start(safety, self.on_gpu, Some(half), backends));
        }
        self.line(&format!("Writing to {}", folder.display()));
    }

    fn trying(&mut self, name: &str, weights: &Path) {
        self.line(&format!("{name}: trying {} in a process of its own", weights.display()));
    }

    fn estimated(&mut self, name: &str, estimate: &str) {
        self.line(&format!("{name}: {estimate}"));
    }

    fn opened(&mut self, name: &str, backend: &str) {
        self.line(&format!("{name}: {}", shortened(backend)));
    }

    fn frames(&mut self, view: &SlotProgress<'_>) {
        if !self.on {
            return;
        }
        if self.terminal {
            rewrite(&bar(view, terminal_width()), false);
            self.open = true;
        } else if self.last.is_none_or(|last| last.elapsed() >= LINE_INTERVAL) {
            self.last = Some(Instant::now());
            note_line(&plain(view));
        }
    }

    fn judging(&mut self, name: &str, images: u64, of: Option<u64>) {
        if !self.on {
            return;
        }
        let of = of.map_or(String::new(), |of| format!("/{of}"));
        let text = format!("{name}: accuracy, {images}{of} images");
        if self.terminal {
            rewrite(&text, false);
            self.open = true;
        } else if self.last.is_none_or(|last| last.elapsed() >= LINE_INTERVAL) {
            self.last = Some(Instant::now());
            note_line(&text);
        }
    }

    fn ended(&mut self, model: &ModelRecord) {
        if model.status != Status::Completed {
            let why = model.reason.as_deref().unwrap_or_default();
            self.line(&format!("{} {}: {why}", model.label(), model.status));
        }
        self.end();
    }

    fn warning(&mut self, text: &str) {
        self.end();
        note_line(&format!("warning: {text}"));
    }
}

fn plain(view: &SlotProgress<'_>) -> String {
    let of = view.of.map_or(String::new(), |of| format!("/{of}"));
    let fps = view.fps.map_or("–".to_string(), |fps| format!("{fps:.1}"));
    let left = left(view.left).map_or(String::new(), |left| format!(", {left} left"));
    let memory = console::memory_progress(view.what, view.memory, view.limit_gb);
    format!("{}: {}{of} frames, {fps} fps{left}, {memory}", name(view), view.frames)
}

/// A line with a bar that takes what the other words leave of the terminal's width.
fn bar(view: &SlotProgress<'_>, width: usize) -> String {
    let of = view.of.map_or(String::new(), |of| format!("/{of}"));
    let fps = view.fps.map_or("–".to_string(), |fps| format!("{fps:.1}"));
    let left = left(view.left).map_or(String::new(), |left| format!(" {left} left"));
    let memory = console::memory_progress(view.what, view.memory, view.limit_gb);
    let after = format!("{}{of} {fps} fps{left} {memory}", view.frames);
    let name = name(view);
    let taken = name.chars().count() + after.chars().count() + 3;
    let room = width.saturating_sub(taken).min(BAR);
    if room < 4 {
        return format!("{name} {after}");
    }
    let share = view.of.filter(|of| *of > 0).map_or(0.0, |of| view.frames as f64 / of as f64);
    let full = ((share * room as f64) as usize).min(room);
    let (done, rest) = ("█".repeat(full), "░".repeat(room - full));
    format!("{name} {done}{rest} {after}")
}

/// What runs, and which of how many it is where that is not known by its slot.
fn name(view: &SlotProgress<'_>) -> String {
    match view.slots {
        0..=2 => view.name.to_string(),
        slots => format!("{}/{slots} {}", view.slot + 1, view.name),
    }
}

/// A time as people say it: `8 s`, `2 min 5 s`, `1 h 10 min`.
fn left(time: Option<Duration>) -> Option<String> {
    let seconds = time.filter(|time| !time.is_zero())?.as_secs_f64().ceil() as u64;
    Some(match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s} s"),
        (h, m, _) => format!("{h} h {m} min"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_bench::record::MeasuredWhat;

    #[test]
    fn a_line_says_frames_speed_and_memory() {
        let memory = Some(Bytes::mib(5356));
        let view = SlotProgress {
            slot: 0,
            slots: 2,
            name: "yolo11n.onnx (slot 0)",
            frames: 150,
            of: Some(300),
            fps: Some(41.26),
            left: Some(Duration::from_millis(3640)),
            what: MeasuredWhat::GpuAllocations,
            memory,
            limit_gb: Some(8.0),
        };
        let text =
            "yolo11n.onnx (slot 0): 150/300 frames, 41.3 fps, 4 s left, GPU_MEM: 5.23/8.00GiB";
        assert_eq!(plain(&view), text);
        let bar = |view: &SlotProgress<'_>| super::bar(view, 200);
        assert!(bar(&view).contains("████████████░"), "{}", bar(&view));
        for width in [60, 80, 100] {
            let line = super::bar(&view, width);
            assert!(line.chars().count() <= width.max(75), "{line}");
        }
        let row = SlotProgress { slot: 2, slots: 5, name: "a.onnx, ort", ..view };
        assert!(plain(&row).starts_with("3/5 a.onnx, ort: 150"), "{}", plain(&row));
        assert_eq!(left(Some(Duration::ZERO)), None);
        for (seconds, text) in [(1, "1 s"), (61, "1 min 1 s"), (4210, "1 h 10 min")] {
            assert_eq!(left(Some(Duration::from_secs(seconds))).as_deref(), Some(text));
        }
        let host = SlotProgress { what: MeasuredWhat::ProcessMemory, ..view };
        assert!(plain(&host).ends_with(" s left, MEM: 5.23/8.00GiB"), "{}", plain(&host));
        assert!(!bar(&host).contains("GPU"), "{}", bar(&host));
        let uncompared = SlotProgress { limit_gb: None, ..host };
        assert!(plain(&uncompared).ends_with(" s left, MEM: 5.23GiB"), "{}", plain(&uncompared));
        let endless = SlotProgress { of: None, fps: None, left: None, memory: None, ..view };
        assert_eq!(plain(&endless), "yolo11n.onnx (slot 0): 150 frames, – fps, GPU_MEM: –/8.00GiB");
    }
}
