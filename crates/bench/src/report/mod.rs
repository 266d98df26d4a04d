//! The record as text and files.
//!
//! Renderers are pure functions from a record to text. So that no two formats show different
//! numbers, figures become words in one place, [`sheet`]; Markdown, HTML and the terminal only
//! arrange these words. `report.json` is the record itself, in the form of
//! `docs/schema/report.schema.json`.

pub(crate) mod accuracy;
pub mod console;
pub mod csv;
pub mod files;
pub mod headline;
pub mod html;
pub mod markdown;
mod memory;
pub mod sheet;
pub mod svg;

pub use files::Rendered;
