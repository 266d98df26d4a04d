//! `report.md`: first a table of results, then the Memory Safety Summary, the slots or rows, and the
//! machine.

use plimsoll::text::one_line;

use super::accuracy;
use super::headline::Headline;
use super::sheet::{DASH, ModelSheet, ReportRow, ReportTone, Sheet};
use crate::doubt::ReportFigure;
use crate::record::BenchRecord;

/// The record as Markdown.
#[must_use]
pub fn render(record: &BenchRecord) -> String {
    let sheet = Sheet::new(record);
    let mut text = format!("# {}\n\n", plain(&sheet.title));
    if let Some(why) = &sheet.interruption {
        text += &format!("> **Interrupted**: {}. What was measured is kept.\n\n", plain(why));
    }
    results(&mut text, record);
    fusion(&mut text, record);
    safety(&mut text, &sheet);
    text += "## Models\n\n";
    sheet.models.iter().for_each(|model| model_section(&mut text, model));
    text += "## System\n\n";
    usage(&mut text, &sheet);
    rows(&mut text, &sheet.system, "");
    text += "\n## Doubts\n\n";
    match sheet.doubts.is_empty() {
        true => text += "None.\n",
        false => sheet.doubts.iter().for_each(|d| text += &format!("- {}\n", plain(d))),
    }
    text += "\n## About this run\n\n";
    rows(&mut text, &sheet.about, "");
    text
}

/// A line for each slot or row, with its figures.
fn results(text: &mut String, record: &BenchRecord) {
    let names = ReportFigure::SHOWN.map(ReportFigure::name);
    *text += &format!("| model | engine | input | {} |\n", names.join(" | "));
    *text += &format!("| --- | --- | --- |{}\n", " ---: |".repeat(names.len()));
    for line in Headline::of(record) {
        let figures: Vec<String> = ReportFigure::SHOWN.map(|figure| line.text(figure)).into();
        let what = [&line.label, &line.engine, &line.size].map(|word| plain(word));
        *text += &format!("| {} | {} |\n", what.join(" | "), figures.join(" | "));
    }
    *text += "\n";
}

/// What two cameras find together; nothing where they were not judged together.
fn fusion(text: &mut String, record: &BenchRecord) {
    let Some(fusion) = &record.fusion else { return };
    *text += "| camera | mAP | mAP at 0.50 | precision | recall |\n| --- |";
    *text += &(" ---: |".repeat(4) + "\n");
    for (name, one) in accuracy::fusion_rows(record) {
        let cells = [one.map, one.map50, one.precision, one.recall].map(accuracy::share);
        *text += &format!("| {} | {} |\n", plain(&name), cells.join(" | "));
    }
    let (truths, images) = (fusion.truths, fusion.images);
    let rule = plain(&fusion.rule);
    *text += &format!("\n{truths} objects in {images} pairs of images. {rule}\n\n");
}

fn mark(tone: ReportTone) -> &'static str {
    match tone {
        ReportTone::Good => "✅",
        ReportTone::Bad => "❌",
        ReportTone::Unknown => "❔",
    }
}

fn safety(text: &mut String, sheet: &Sheet) {
    let (tone, status) = &sheet.status;
    *text += "## Memory Safety Summary\n\n";
    *text += &format!("{} **Overall Status**: {}\n\n", mark(*tone), plain(status));
    rows(text, &sheet.safety, "");
    if !sheet.closest.is_empty() {
        *text += "\n**Models Closest to Memory Limit**:\n\n";
        for (at, ReportRow { label, value }) in sheet.closest.iter().enumerate() {
            *text += &format!("{}. **{}**: {}\n", at + 1, plain(label), plain(value));
        }
    }
    if !sheet.violations.is_empty() {
        *text += "\n**Violations**:\n\n";
        sheet.violations.iter().for_each(|v| *text += &format!("- {}\n", plain(v)));
    }
    *text += "\n";
}

/// The memory of the whole run, and how it relates to the system's.
fn usage(text: &mut String, sheet: &Sheet) {
    let (tone, title, figures) = &sheet.usage;
    *text += &format!("### {}\n\n", plain(title));
    *text += &format!("{} **Status**: {}\n\n", mark(*tone), plain(&sheet.status.1));
    rows(text, figures, "");
    let (title, figures) = &sheet.architecture;
    *text += &format!("\n### Architecture: {}\n\n", plain(title));
    rows(text, figures, "");
    *text += "\n### Machine\n\n";
}

fn model_section(text: &mut String, model: &ModelSheet) {
    *text += &format!("### {}\n\n- **Place**: {}\n", plain(&model.name), plain(&model.place));
    *text += &format!("- **Status**: {}\n", model.status);
    if let Some(reason) = &model.reason {
        *text += &format!("- **Reason**: {}\n", plain(reason));
    }
    rows(text, &model.facts, "");
    if model.latency.is_empty() {
        *text += "\n";
        return;
    }
    *text += &format!("- **{}** {}:\n", model.memory_title, mark(model.memory_tone));
    rows(text, &model.memory, "  ");
    *text += "\n";
    for (at, line) in model.latency.iter().enumerate() {
        *text += &format!("| {} |\n", line.join(" | "));
        if at == 0 {
            *text += &format!("| --- |{}\n", " ---: |".repeat(line.len() - 1));
        }
    }
    *text += "\n";
}

fn rows(text: &mut String, rows: &[ReportRow], indent: &str) {
    for ReportRow { label, value } in rows {
        let value = if value.is_empty() { DASH } else { value };
        *text += &format!("{indent}- **{}**: {}\n", plain(label), plain(value));
    }
}

/// Text that Markdown shows unchanged: without line breaks and markup.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in one_line(text).chars() {
        match c {
            '<' => out += "&lt;",
            '&' => out += "&amp;",
            '`' | '*' | '[' | ']' | '|' | '\\' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}
