//! A comparison as one HTML file.

use maud::{Markup, html};
use plimsoll::text::one_line;

use super::{CompareTone, Comparison, RecordedRun, SlotComparison};
use crate::report::html::{page, section};

impl Comparison {
    /// The comparison of these two runs as a page that opens offline.
    #[must_use]
    pub fn html(&self, a: &RecordedRun, b: &RecordedRun) -> String {
        let names = [a, b].map(|run| run.record.metadata.run_name.clone());
        let title = format!("{} against {}", names[0], names[1]);
        let body = html! {
            header {
                h1 { (one_line(&title)) }
                p.sub {
                    "Tolerance: the second run may be up to "
                    (format!("{:.1}", self.tolerance * 100.0)) " % slower."
                }
            }
            @for difference in &self.differences {
                p.note.unknown { "Different " (one_line(difference)) }
            }
            @for slot in &self.slots { (slot_section(slot, &names)) }
            (section("Runs", &runs(a, b)))
        };
        page(&title, &body)
    }
}

fn class(tone: CompareTone) -> &'static str {
    match tone {
        CompareTone::Better => "good",
        CompareTone::Worse => "bad",
        CompareTone::Same => "",
        CompareTone::Unsure => "unknown",
    }
}

fn slot_section(slot: &SlotComparison, names: &[String; 2]) -> Markup {
    let body = html! {
        p.note.(class(slot.tone())) { (one_line(&slot.verdict())) }
        @if let Some(advice) = &slot.advice { p.what { (one_line(advice)) } }
        div.wide {
            table.numbers {
                thead {
                    tr { th { } @for name in names { th { (one_line(name)) } } th { "change" } }
                }
                tbody {
                    @for figure in &slot.figures {
                        tr {
                            td { (figure.title()) }
                            td { (figure.text(figure.a)) }
                            td { (figure.text(figure.b)) }
                            td.(class(figure.tone)) { (figure.change_text()) }
                        }
                    }
                }
            }
        }
    };
    section(&slot.label, &body)
}

fn runs(a: &RecordedRun, b: &RecordedRun) -> Markup {
    let runs = [a, b].map(|run| (&run.record.metadata, &run.path));
    html! {
        div.two {
            @for (meta, path) in runs {
                table.facts {
                    tr { th { "Run" } td { (one_line(&meta.run_name)) } }
                    tr { th { "Started" } td { (one_line(&meta.started)) } }
                    tr { th { "Machine" } td { (one_line(meta.device_name.as_deref().unwrap_or("–"))) } }
                    tr { th { "Command" } td { (one_line(&meta.command_line.join(" "))) } }
                    tr { th { "Report" } td { (one_line(&path.display().to_string())) } }
                }
            }
        }
    }
}
