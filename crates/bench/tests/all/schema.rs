//! Every kind of record against the published schema, and nothing unknown without a reason.

use std::sync::LazyLock;

use crate::made_up;
use jsonschema::Validator;
use plimsoll_bench::record::BenchRecord;
use serde_json::{Value, json};

static SCHEMA: LazyLock<Validator> = LazyLock::new(|| {
    let text = include_str!("../../../../docs/schema/report.schema.json");
    jsonschema::validator_for(&serde_json::from_str(text).unwrap()).unwrap()
});

/// What is wrong with a report by the published schema.
pub(crate) fn wrong(value: &Value) -> Vec<String> {
    let say =
        |error: jsonschema::ValidationError<'_>| format!("{}: {error}", error.instance_path());
    SCHEMA.iter_errors(value).map(say).collect()
}

#[test]
fn every_kind_of_record_fits_and_comes_back() {
    for (kind, record) in made_up::every_kind() {
        let value = serde_json::to_value(&record).unwrap();
        assert_eq!(wrong(&value), Vec::<String>::new(), "{kind}");
        let back: BenchRecord = serde_json::from_value(value).unwrap();
        assert_eq!(back, record, "{kind}");
        let mut again = record.clone();
        again.settle();
        assert_eq!(again, record, "{kind}: settling twice changes nothing");
    }
}

#[test]
fn what_is_wrong_is_found() {
    let (_, record) = made_up::every_kind().remove(0);
    let good = serde_json::to_value(&record).unwrap();
    let spoil = |at: &str, bad: Value| {
        let mut value = good.clone();
        *value.pointer_mut(at).unwrap() = bad;
        assert!(!wrong(&value).is_empty(), "{at}");
    };
    spoil("/schema_version", json!("9.9"));
    spoil("/models/0/status", json!("fine"));
    spoil("/models/1/gpu_memory/limit_type", json!("medium"));
    spoil("/memory_safety/total_violations", json!(-1));
    spoil("/doubts/0", json!({"kind": "too_few_frames", "text": "x", "slot": null}));
    let mut third = good.clone();
    let model = third["models"][0].clone();
    third["models"].as_array_mut().unwrap().push(model);
    assert!(!wrong(&third).is_empty(), "a third model");
    assert!(serde_json::from_value::<BenchRecord>(third).is_err());
    let mut missing = good.clone();
    missing.as_object_mut().unwrap().remove("doubts");
    assert!(!wrong(&missing).is_empty());
}

/// Nulls that mean "does not apply" and need no reason.
const PLAIN: [&str; 31] = [
    "fusion",
    "box_accuracy",
    "weights_type",
    "slot_name",
    "row",
    "imgsz",
    "reason",
    "finished",
    "host",
    "device_name",
    "interruption",
    "slot",
    "max_frames",
    "rate_fps",
    "duration_s",
    "keep_free_gb",
    "profile",
    "sync_tolerance_ms",
    "frames",
    "unpaired",
    "input_size",
    "classes",
    "engine_version",
    "workspace_bytes",
    "offered_fps",
    "late",
    "dropped",
    "cold",
    "steady",
    "throttled",
    "repeats_interval_ms",
];

fn unexplained(value: &Value, at: &str, found: &mut Vec<String>) {
    if let Value::Array(all) = value {
        all.iter().for_each(|one| unexplained(one, at, found));
    }
    let Value::Object(all) = value else { return };
    for (name, member) in all {
        let reason = value["unknown"].get(name).or_else(|| value.get("reason"));
        let told = reason.and_then(Value::as_str).is_some_and(|why| !why.is_empty());
        if member.is_null() && !PLAIN.contains(&name.as_str()) && !told {
            found.push(format!("{at}/{name}"));
        }
        unexplained(member, &format!("{at}/{name}"), found);
    }
}

#[test]
fn what_is_unknown_has_a_reason() {
    for (kind, record) in made_up::every_kind() {
        let mut found = Vec::new();
        unexplained(&serde_json::to_value(&record).unwrap(), "", &mut found);
        assert_eq!(found, Vec::<String>::new(), "{kind}");
    }
}
