//! Enough of JSON Schema to check our own: a keyword that is not known here is a failure,
//! so that the schema cannot outgrow its checker.

use serde_json::Value;

pub(crate) fn check(
    root: &Value,
    schema: &Value,
    value: &Value,
    at: &str,
    wrong: &mut Vec<String>,
) {
    let Some(keys) = schema.as_object() else {
        return wrong.push(format!("{at}: a schema must be an object"));
    };
    for (key, rule) in keys {
        match key.as_str() {
            "$schema" | "$id" | "$defs" | "title" | "description" | "required" => {}
            "$ref" => {
                let place = rule.as_str().unwrap_or_default().trim_start_matches('#');
                match root.pointer(place) {
                    Some(target) => check(root, target, value, at, wrong),
                    None => wrong.push(format!("{at}: no {rule}")),
                }
            }
            "type" => {
                let fits = match rule {
                    Value::Array(all) => all.iter().any(|one| is(one, value)),
                    one => is(one, value),
                };
                if !fits {
                    wrong.push(format!("{at}: {value} is not {rule}"));
                }
            }
            "const" if rule == value => {}
            "enum" if rule.as_array().is_some_and(|all| all.contains(value)) => {}
            "const" | "enum" => wrong.push(format!("{at}: {value} is not of {rule}")),
            "minimum" | "maximum" => {
                let (Some(limit), Some(n)) = (rule.as_f64(), value.as_f64()) else { continue };
                if (key == "minimum" && n < limit) || (key == "maximum" && n > limit) {
                    wrong.push(format!("{at}: {n} breaks {key} {limit}"));
                }
            }
            "minItems" | "maxItems" => {
                let (Some(limit), Some(all)) = (rule.as_u64(), value.as_array()) else { continue };
                let n = all.len() as u64;
                if (key == "minItems" && n < limit) || (key == "maxItems" && n > limit) {
                    wrong.push(format!("{at}: {n} items break {key} {limit}"));
                }
            }
            "items" => {
                for (n, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, rule, item, &format!("{at}/{n}"), wrong);
                }
            }
            "properties" | "additionalProperties" => {}
            "anyOf" | "oneOf" => alternatives(root, key, rule, value, at, wrong),
            other => wrong.push(format!("{at}: the checker does not know {other}")),
        }
    }
    members(root, schema, value, at, wrong);
}

fn alternatives(
    root: &Value,
    key: &str,
    rule: &Value,
    value: &Value,
    at: &str,
    wrong: &mut Vec<String>,
) {
    let fits = |one: &&Value| {
        let mut wrong = Vec::new();
        check(root, one, value, at, &mut wrong);
        wrong.is_empty()
    };
    let n = rule.as_array().into_iter().flatten().filter(fits).count();
    if n == 0 || (key == "oneOf" && n > 1) {
        wrong.push(format!("{at}: {n} of {key} fit {value}"));
    }
}

fn members(root: &Value, schema: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    let Some(object) = value.as_object() else { return };
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !object.contains_key(name) {
            wrong.push(format!("{at}: {name} is missing"));
        }
    }
    for (name, member) in object {
        let place = format!("{at}/{name}");
        match (schema["properties"].get(name), &schema["additionalProperties"]) {
            (Some(rule), _) => check(root, rule, member, &place, wrong),
            (None, Value::Bool(false)) => wrong.push(format!("{place}: not in the schema")),
            (None, rule @ Value::Object(_)) => check(root, rule, member, &place, wrong),
            _ => {}
        }
    }
}

fn is(name: &Value, value: &Value) -> bool {
    match name.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("number") => value.is_number(),
        Some("integer") => value.is_u64() || value.is_i64(),
        _ => false,
    }
}
