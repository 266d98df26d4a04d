//! The estimate of a file for people.

use plimsoll::Bytes;

use super::answer::{FileEstimate, FitVerdict, OfLayers};
use super::page::{bare_line, gib, range_row, verdict_page};
use crate::output::Answer;
use crate::page::{TextCell, TextPage, TextTone};

impl Answer for FileEstimate {
    fn page(&self, page: &mut TextPage) {
        let model = self.model.as_ref().map_or_else(String::new, |model| format!(" of {model}"));
        page.heading(&format!("{}: {}{model}", self.file, self.format));
        page.table(&self.terms());
        self.details(page);
        for note in &self.notes {
            page.advice(&format!("note: {note}"));
        }
        self.verdict_page(page);
        self.fleet_page(page);
    }

    fn bare(&self, page: &mut TextPage) {
        bare_line(page, &size(self.total_bytes), self.against());
        self.fleet_page(page);
    }
}

impl FileEstimate {
    fn terms(&self) -> Vec<Vec<TextCell>> {
        // All in one unit, so that they can be added up by eye.
        let small = self.total_bytes < 1 << 30;
        let size = |bytes: u64| match small {
            true => format!("{:.2} MiB", Bytes(bytes).as_mib()),
            false => gib(bytes),
        };
        let row = |name: &str, bytes: Option<u64>, note: String| {
            vec![
                name.into(),
                TextCell::figure(bytes.map(size)),
                TextCell::new(note, TextTone::Faint),
            ]
        };
        let term = |name: &str, bytes: u64, note: String| row(name, Some(bytes), note);
        let types: Vec<String> = self
            .weights
            .iter()
            .map(|part| format!("{} {}", part.dtype, Bytes(part.bytes)))
            .collect();
        let cache = match (&self.kv_dtype, self.context) {
            (Some(kind), Some(context)) => {
                let trained = self
                    .trained_context
                    .map_or_else(String::new, |n| format!(" (trained for {n})"));
                format!("{kind}, {context} tokens{trained}")
            }
            _ if self.kv_cache_bytes.is_none() => "not known".to_string(),
            _ => "no language model: no cache".to_string(),
        };
        let activations = match (&self.peak, self.workspace_bytes) {
            (Some(peak), 0) => format!("at {}", peak.operator),
            (None, 0) if self.activation_bytes.is_none() => "not known".to_string(),
            (None, 0) => String::new(),
            (_, slack) => {
                // As the engine runs it, which is not as the file has it.
                let all = self.activation_bytes.unwrap_or_default();
                let live = Bytes(all.saturating_sub(slack));
                let who = self.engine.map_or("pool", |_| "engine");
                format!("{live} live at once, {} reserved by the {who} beyond", Bytes(slack))
            }
        };
        let trained = [
            term("gradients", self.gradient_bytes, String::new()),
            term("optimizer", self.optimizer_bytes, String::new()),
        ];
        let is_trained = self.gradient_bytes > 0;
        let cache = [row("KV cache", self.kv_cache_bytes, cache)];
        let mut rows = vec![term("weights", self.weights_bytes, types.join(", "))];
        rows.extend(if is_trained { trained.to_vec() } else { cache.to_vec() });
        rows.extend([
            row("activations", self.activation_bytes, activations),
            row("overhead", self.overhead_bytes, self.overhead.source.clone()),
            term("total", self.total_bytes, self.how.to_string()),
            range_row(&self.range, self.checked, &self.basis, size),
        ]);
        rows
    }

    fn details(&self, page: &mut TextPage) {
        if self.cache_by_layer.len() > 1 {
            page.heading("Cache by layer");
            let rows = self.cache_by_layer.iter().map(|row| {
                vec![TextCell::from(layers(row)), TextCell::figure(Some(Bytes(row.bytes_each)))]
            });
            let rows: Vec<_> = rows.take(24).collect();
            page.table(&rows);
            if self.cache_by_layer.len() > rows.len() {
                page.advice("… and so on; --json has all of them");
            }
        }
        if let Some(peak) = &self.peak {
            page.heading(&format!(
                "What lives at {} ({} of {})",
                peak.operator, peak.step, peak.steps
            ));
            let rows = peak.largest.iter().map(|tensor| {
                let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
                vec![
                    TextCell::from(tensor.name.clone()),
                    TextCell::figure(Some(Bytes(tensor.bytes))),
                    TextCell::new(format!("{} {}", tensor.dtype, shape.join("×")), TextTone::Faint),
                ]
            });
            page.table(&rows.collect::<Vec<_>>());
        }
        self.allocators(page);
    }

    fn allocators(&self, page: &mut TextPage) {
        let row = |name: &str, bytes: u64| {
            vec![TextCell::from(name), TextCell::figure(Some(Bytes(bytes)))]
        };
        if let Some(segments) = &self.segments {
            page.heading("PyTorch's allocator");
            page.table(&[
                row("reserved, weights among it", segments.reserved_bytes),
                row("allocated at most", segments.peak_bytes),
                row("set aside for cuBLAS", segments.cublas_bytes),
                row("allowed for cuDNN, at most", segments.cudnn_bytes),
            ]);
        }
        if let Some(arena) = &self.arena {
            page.heading("ONNX Runtime's arena");
            page.table(&[
                row("peak in use", arena.peak_bytes),
                row("reserved", arena.reserved_bytes),
                row("packed weights", arena.packed_weights_bytes),
                row("planned buffer", arena.pattern_bytes),
            ]);
        }
    }

    fn verdict_page(&self, page: &mut TextPage) {
        if let Some(room) = &self.room {
            page.heading(&format!("Room on {}", room.device));
            let row = |name: &str, bytes: Option<Bytes>| {
                vec![TextCell::from(name), TextCell::figure(bytes)]
            };
            page.table(&[
                row("available", room.available),
                row("largest single allocation", room.largest_single),
            ]);
            page.advice(&room.how);
        }
        let (Some(against), Some(verdict)) = (self.against(), self.verdict) else { return };
        let nothing = "No type, context, image size, batch or number of layers makes it fit.";
        verdict_page(page, (verdict, &against), &self.advice, (nothing, size));
    }

    /// The verdict as a sentence, where there is something to compare with.
    fn against(&self) -> Option<String> {
        let (limit, verdict) = self.limit_bytes.zip(self.verdict)?;
        Some(verdict.against(&size(limit), &self.overhead.besides()))
    }

    fn fleet_page(&self, page: &mut TextPage) {
        if self.fleet.is_empty() {
            return;
        }
        page.heading("On boards and GPUs");
        let rows = self.fleet.iter().map(|board| {
            let tone = match board.verdict {
                FitVerdict::Fits => TextTone::Good,
                FitVerdict::Tight => TextTone::Plain,
                FitVerdict::MayNotFit | FitVerdict::DoesNotFit | FitVerdict::Unknown => {
                    TextTone::Doubt
                }
            };
            let shared = match (board.unified, board.system_bytes) {
                (false, _) => String::new(),
                (true, 0) => ", shared with the system".to_string(),
                (true, kept) => format!(", of which {} stay with the system", size(kept)),
            };
            vec![
                TextCell::from(board.name.clone()),
                TextCell::figure(Some(gib(board.memory_bytes))),
                TextCell::new(board.verdict.words(), tone),
                TextCell::new(format!("as {}{shared}", board.memory_how), TextTone::Faint),
            ]
        });
        page.table(&rows.collect::<Vec<_>>());
    }
}

fn size(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

fn layers(row: &OfLayers) -> String {
    if row.first == row.last {
        format!("layer {}", row.first)
    } else {
        format!("layers {} to {}, each", row.first, row.last)
    }
}
