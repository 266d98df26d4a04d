//! Measures object detectors: latency, memory, accuracy, and reasons to doubt the figures.
//!
//! ```text
//! Pipeline::step ──→ measure ──→ record ──→ report
//!        FrameSample    BenchRecord    text, files
//! ```
//!
//! - [`workload`]: the main job: two detectors on frames, from a plan to a record;
//! - [`measure`]: takes samples and gives figures; *start here to add a metric*;
//! - [`record`]: everything that a run found out, as `report.json` has it; *start here to add a
//!   field of the report*;
//! - [`report`]: the record as JSON, Markdown, HTML, CSV and on a terminal, and the run's folder;
//! - [`stats`]: summaries of latencies, and when two runs differ;
//! - [`doubt`]: reasons to trust a figure less;
//! - [`compare`]: two runs, and whether the second is faster.
//!
//! The code that is measured does not depend on this crate and does not read the clock.

pub mod compare;
pub mod doubt;
pub mod measure;
pub mod record;
pub mod report;
pub mod stats;
pub mod workload;
