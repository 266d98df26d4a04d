//! Detectors, measured honestly: measure → record → report.
//!
//! ```text
//! Pipeline::step ──→ measure ──→ record ──→ report
//!        FrameSample       BenchRecord      text, files
//! ```
//!
//! - [`stats`]: latencies in numbers, and when two runs differ;
//! - [`doubt`]: why a figure may say less than it seems to;
//! - [`record`]: everything that a run found out; `report.json` is this;
//! - [`measure`]: what the loop feeds, frame by frame, and what becomes of it;
//! - [`compare`]: two runs, and whether the second is faster;
//! - [`workload`]: the main job: two detectors on frames, from a plan to a record;
//! - [`report`]: the record as JSON, Markdown, HTML, CSV and on a terminal, and the folder.
//!
//! What is measured cannot see this crate: times are handed in as durations.

pub mod compare;
pub mod doubt;
pub mod measure;
pub mod record;
pub mod report;
pub mod stats;
pub mod workload;
