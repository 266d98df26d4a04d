//! The published schema is the one of the types.

use std::path::Path;

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::BenchRecord;

/// Types whose numbers may be negative, such as temperatures; all others are amounts.
const SIGNED: [&str; 3] = ["TimePoint", "Spread", "Interval"];

/// The schema of `report.json`, from the types.
fn from_types() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema = settings.into_generator().into_root_schema_for::<BenchRecord>().to_value();
    schema["$id"] = json!("report.schema.json");
    schema["title"] = json!("plimsoll bench: report.json");
    tighten(&mut schema, false);
    schema
}

/// Makes the schema as strict as the program: no field that the types do not have, and no
/// negative amount. Formats such as `uint64` go, as validators may reject ones they do not know.
fn tighten(schema: &mut Value, signed: bool) {
    if let Value::Array(all) = schema {
        all.iter_mut().for_each(|one| tighten(one, signed));
    }
    let Value::Object(rules) = schema else { return };
    if let Some(Value::Object(all)) = rules.get_mut("$defs") {
        all.iter_mut().for_each(|(name, one)| tighten(one, SIGNED.contains(&name.as_str())));
    }
    for key in ["properties", "patternProperties"] {
        let members = rules.get_mut(key).and_then(Value::as_object_mut);
        members.into_iter().flatten().for_each(|(_, one)| tighten(one, signed));
    }
    for key in ["items", "anyOf", "additionalProperties"] {
        rules.get_mut(key).into_iter().for_each(|one| tighten(one, signed));
    }
    rules.remove("format");
    let is_number = rules.get("type").is_some_and(|kind| kind.to_string().contains("\"number\""));
    if is_number && !signed {
        rules.insert("minimum".to_string(), json!(0));
    }
    // The variants of a flattened enum know nothing of the fields beside them.
    let variants = rules.get_mut("oneOf").and_then(Value::as_array_mut);
    let closed = if variants.is_some() { "unevaluatedProperties" } else { "additionalProperties" };
    for variant in variants.into_iter().flatten() {
        tighten(variant, signed);
        variant.as_object_mut().and_then(|rules| rules.remove("additionalProperties"));
    }
    if rules.contains_key("properties") {
        rules.insert(closed.to_string(), json!(false));
    }
}

#[test]
fn the_published_schema_is_that_of_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema/report.schema.json");
    let schema = from_types();
    if std::env::var_os("PLIMSOLL_WRITE_SCHEMA").is_some() {
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        std::fs::write(&path, text).unwrap();
    }
    let published: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(published, schema, "PLIMSOLL_WRITE_SCHEMA=1 and this test write it again");
}
