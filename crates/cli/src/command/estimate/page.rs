//! The estimate for people.

use plimsoll::Bytes;

use super::advice::Advice;
use super::answer::{BESIDES, FitVerdict, OfRange};
use super::llm::LlmEstimate;
use crate::output::Answer;
use crate::page::{TextCell, TextPage, TextTone};

impl Answer for LlmEstimate {
    fn page(&self, page: &mut TextPage) {
        let row = |name: &str, bytes: Option<u64>, note: String| {
            vec![
                name.into(),
                TextCell::figure(bytes.map(gib)),
                TextCell::new(note, TextTone::Faint),
            ]
        };
        let term = |name: &str, bytes: u64, note: String| row(name, Some(bytes), note);
        let context = format!("{}, {} tokens", self.kv_dtype, self.context);
        page.table(&[
            term("weights", self.weights_bytes, self.dtype.clone()),
            term("KV cache", self.kv_cache_bytes, context),
            term("activations", self.activation_bytes, String::new()),
            row("overhead", self.overhead_bytes, "no engine is counted here".to_string()),
            term("total", self.total_bytes, self.how.to_string()),
            range_row(&self.range, self.checked, &self.basis, gib),
        ]);
        let (Some(limit), Some(verdict)) = (self.limit_bytes, self.verdict) else { return };
        let nothing = "No type, context or flash attention makes it fit; take a smaller model.";
        let against = verdict.against(&gib(limit), BESIDES);
        verdict_page(page, (verdict, &against), &self.advice, (nothing, gib));
    }

    fn bare(&self, page: &mut TextPage) {
        let verdict = self.limit_bytes.zip(self.verdict);
        let against = verdict.map(|(limit, verdict)| verdict.against(&gib(limit), BESIDES));
        bare_line(page, &gib(self.total_bytes), against);
    }
}

/// The upper end of the range, the lower one, and what they rest on.
pub(super) fn range_row(
    range: &OfRange,
    checked: bool,
    basis: &str,
    size: impl Fn(u64) -> String,
) -> Vec<TextCell> {
    let said = if checked { "checked" } else { "not checked" };
    let note = format!("at least {}; {said}: {basis}", size(range.low_bytes));
    vec![
        "at most".into(),
        TextCell::figure(Some(size(range.high_bytes))),
        TextCell::new(note, TextTone::Faint),
    ]
}

/// The bare answer: the total, and whether it fits where there is a limit.
pub(super) fn bare_line(page: &mut TextPage, total: &str, against: Option<String>) {
    let words = against.map(|words| format!(" {words}"));
    page.raw(&format!("{total}{}\n", words.unwrap_or_default()));
}

/// Whether it fits, and what would make it fit; `nothing` where nothing does.
pub(super) fn verdict_page(
    page: &mut TextPage,
    (verdict, against): (FitVerdict, &str),
    advice: &[Advice],
    (nothing, size): (&str, fn(u64) -> String),
) {
    page.raw("\n");
    let tone = if verdict == FitVerdict::Fits { TextTone::Good } else { TextTone::Doubt };
    page.table(&[vec![TextCell::new(against.to_string(), tone)]]);
    if verdict.fits() || verdict == FitVerdict::Unknown {
        return;
    }
    page.advice(if advice.is_empty() { nothing } else { "It would fit with:" });
    for advice in advice {
        page.advice(&format!("- {}: {}", advice.change, size(advice.total_bytes)));
        page.advice(&format!("  {}", advice.command));
    }
}

/// Every term in the same unit, so that they can be added up by eye.
pub(super) fn gib(bytes: u64) -> String {
    match Bytes(bytes) {
        Bytes::MAX => Bytes::MAX.to_string(),
        bytes => format!("{:.2} GiB", bytes.as_gib()),
    }
}
