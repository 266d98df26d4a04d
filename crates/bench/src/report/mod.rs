//! The record as text and files.
//!
//! Renderers are pure: a record goes in, text comes out. To make sure that no two formats
//! tell different numbers, figures become words in one place, [`sheet`]; Markdown, HTML
//! and the terminal lay the same words out, each in its way. JSON is the record itself.

pub mod console;
pub mod csv;
pub mod files;
pub mod html;
pub mod json;
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
    /// Renders everything. Fails only where a number is none (NaN), which JSON cannot say.
    pub fn new(
        record: &BenchRecord,
        pictures: &[html::Picture],
    ) -> Result<Rendered, serde_json::Error> {
        Ok(Rendered {
            json: json::render(record)?,
            markdown: markdown::render(record),
            html: html::render(record, pictures),
            csv: csv::render(record),
        })
    }
}
