//! The estimate for people.

use plimsoll::Bytes;

use super::llm::Estimate;
use crate::output::Answer;
use crate::page::{Cell, Page, Tone};

impl Answer for Estimate {
    fn page(&self, page: &mut Page) {
        let term = |name: &str, bytes: u64, note: String| {
            vec![name.into(), Cell::figure(Some(gib(bytes))), Cell::new(note, Tone::Faint)]
        };
        let context = format!("{}, {} tokens", self.kv_dtype, self.context);
        page.table(&[
            term("weights", self.weights_bytes, self.dtype.clone()),
            term("KV cache", self.kv_cache_bytes, context),
            term("activations", self.activation_bytes, String::new()),
            term("overhead", self.overhead_bytes, "no engine or device is named".to_string()),
            term("total", self.total_bytes, self.how.to_string()),
        ]);
        let Some((verdict, fits)) = self.verdict() else { return };
        let tone = if fits { Tone::Good } else { Tone::Doubt };
        page.raw("\n");
        page.table(&[vec![Cell::new(verdict, tone)]]);
        if fits {
            return;
        }
        if self.advice.is_empty() {
            page.advice("No type, context or flash attention makes it fit; take a smaller model.");
            return;
        }
        page.advice("It would fit with:");
        for advice in &self.advice {
            page.advice(&format!("- {}: {}", advice.change, gib(advice.total_bytes)));
            page.advice(&format!("  {}", advice.command));
        }
    }

    fn bare(&self, page: &mut Page) {
        let verdict = self.verdict().map_or(String::new(), |(verdict, _)| format!(" {verdict}"));
        page.raw(&format!("{}{verdict}\n", gib(self.total_bytes)));
    }
}

impl Estimate {
    /// Whether it fits into the limit, in words and as a fact; nothing without a limit.
    fn verdict(&self) -> Option<(String, bool)> {
        let (limit, fits) = self.limit_bytes.zip(self.fits)?;
        let words = if fits { "fits into" } else { "does not fit into" };
        Some((format!("{words} {}", gib(limit)), fits))
    }
}

/// Every term in the same unit, so that they can be added up by eye.
pub(super) fn gib(bytes: u64) -> String {
    match Bytes(bytes) {
        Bytes::MAX => Bytes::MAX.to_string(),
        bytes => format!("{:.2} GiB", bytes.as_gib()),
    }
}
