//! The record as text and files.
//!
//! Renderers are pure functions from a record to text. So that no two formats show different
//! numbers, figures become words in one place, [`sheet`]; Markdown, HTML and the terminal only
//! arrange these words. `report.json` is the record itself, in the form of
//! `docs/schema/report.schema.json`.

pub mod console;
pub mod csv;
pub mod files;
pub mod html;
pub mod markdown;
mod memory;
pub mod sheet;
pub mod svg;

use crate::record::BenchRecord;

/// Every file of a report, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// `report.json`.
    pub json: String,
    /// `report.md`.
    pub markdown: String,
    /// `report.html`.
    pub html: String,
    /// `summary.csv`.
    pub csv: String,
}

impl Rendered {
    /// Renders every file. This fails only for a number that JSON does not have (NaN).
    pub fn new(
        record: &BenchRecord,
        pictures: &[html::Picture],
    ) -> Result<Rendered, serde_json::Error> {
        Ok(Rendered {
            json: json(record)?,
            markdown: markdown::render(record),
            html: html::render(record, pictures),
            csv: csv::render(record),
        })
    }
}

/// The record as JSON, ending with a line break.
fn json(record: &BenchRecord) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(record).map(|text| plimsoll::text::json(&text).into_owned() + "\n")
}
