//! How far a run is: a bar a slot on a terminal, plain lines elsewhere. All on stderr, so
//! that stdout has the answer alone.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use plimsoll::Bytes;
use plimsoll_bench::record::{MemorySafety, ModelRecord, Status};
use plimsoll_bench::report::console;
use plimsoll_bench::workload::{BenchProgress, SlotProgress};
use plimsoll_infer::engine::messages::shortened;

use crate::output::{note, note_line, rewrite};

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
        Show { on, on_gpu, terminal: io::stderr().is_terminal(), last: None, open: false }
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
            note_line(text);
        }
    }
}

impl BenchProgress for Show {
    fn started(&mut self, folder: &Path, safety: &MemorySafety, backends: [&str; 2]) {
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
            rewrite(&bar(view), false);
            self.open = true;
        } else if self.last.is_none_or(|last| last.elapsed() >= LINE_INTERVAL) {
            self.last = Some(Instant::now());
            note_line(&plain(view));
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
    let memory = console::memory_progress(view.what, view.memory, view.limit_gb);
    format!("{}: {}{of} frames, {fps} fps, {memory}", view.name, view.frames)
}

fn bar(view: &SlotProgress<'_>) -> String {
    let share = view.of.filter(|of| *of > 0).map_or(0.0, |of| view.frames as f64 / of as f64);
    let full = ((share * BAR as f64) as usize).min(BAR);
    let (done, rest) = ("█".repeat(full), "░".repeat(BAR - full));
    let of = view.of.map_or(String::new(), |of| format!("/{of}"));
    let fps = view.fps.map_or("–".to_string(), |fps| format!("{fps:.1}"));
    let memory = console::memory_progress(view.what, view.memory, view.limit_gb);
    format!("{:<15} {done}{rest} {}{of} {fps} fps {memory}", view.name, view.frames)
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
            name: "yolo11n.onnx (slot 0)",
            frames: 150,
            of: Some(300),
            fps: Some(41.26),
            what: MeasuredWhat::GpuAllocations,
            memory,
            limit_gb: Some(8.0),
        };
        let text = "yolo11n.onnx (slot 0): 150/300 frames, 41.3 fps, GPU_MEM: 5.23/8.00GiB";
        assert_eq!(plain(&view), text);
        assert!(bar(&view).contains("████████████░"), "{}", bar(&view));
        let host = SlotProgress { what: MeasuredWhat::ProcessMemory, ..view };
        assert!(plain(&host).ends_with(" fps, MEM: 5.23/8.00GiB"), "{}", plain(&host));
        assert!(!bar(&host).contains("GPU"), "{}", bar(&host));
        let uncompared = SlotProgress { limit_gb: None, ..host };
        assert!(plain(&uncompared).ends_with(" fps, MEM: 5.23GiB"), "{}", plain(&uncompared));
        let endless = SlotProgress { of: None, fps: None, memory: None, ..view };
        assert_eq!(plain(&endless), "yolo11n.onnx (slot 0): 150 frames, – fps, GPU_MEM: –/8.00GiB");
    }
}
