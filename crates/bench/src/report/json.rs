//! `report.json`: the record itself. Its form is published as `docs/schema/report.schema.json`.

use crate::record::BenchRecord;

/// The record as JSON, ending with a line break.
pub fn render(record: &BenchRecord) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(record).map(|text| plimsoll::text::json(&text).into_owned() + "\n")
}

/// A record from its JSON.
pub fn read(text: &str) -> Result<BenchRecord, serde_json::Error> {
    serde_json::from_str(text)
}
