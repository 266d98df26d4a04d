//! The file of an engine: TensorRT's plan, and the header that Ultralytics writes before it.
//!
//! Ultralytics writes the length of a JSON text in four bytes, the text (names, stride,
//! task, image size) and then the plan. A plan by itself begins with `ftrt`, or with what
//! an older version had; the first byte of a JSON object tells the two apart.

use std::collections::BTreeMap;

use serde_json::Value;

/// The longest header that is read.
const LONGEST: usize = 4 << 20;

/// An engine's file, taken apart.
#[derive(Debug, PartialEq)]
pub(super) struct EnginePlan<'a> {
    /// The bytes for TensorRT.
    pub(super) plan: &'a [u8],
    /// The values of Ultralytics' header, each as in ONNX files.
    pub(super) metadata: BTreeMap<String, String>,
}

impl<'a> EnginePlan<'a> {
    pub(super) fn split(file: &'a [u8]) -> EnginePlan<'a> {
        EnginePlan::with_header(file)
            .unwrap_or(EnginePlan { plan: file, metadata: BTreeMap::new() })
    }

    fn with_header(file: &'a [u8]) -> Option<EnginePlan<'a>> {
        let (length, rest) = file.split_first_chunk::<4>()?;
        let length = usize::try_from(i32::from_le_bytes(*length)).ok()?;
        let (text, plan) = rest.split_at_checked(length).filter(|_| length <= LONGEST)?;
        if !text.starts_with(b"{") {
            return None;
        }
        let Value::Object(fields) = serde_json::from_slice(text).ok()? else { return None };
        let text = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let metadata = fields.into_iter().map(|(key, value)| (key, text(value))).collect();
        Some(EnginePlan { plan, metadata })
    }
}

/// The same header, for engines of ours: Ultralytics reads it back.
pub(super) fn header(metadata: &BTreeMap<String, String>) -> Vec<u8> {
    let names = metadata.get("names").and_then(|names| crate::decode::parse_names(names));
    let fields = metadata.iter().map(|(key, value)| {
        let value = match key.as_str() {
            "names" => names.as_ref().map(|names| {
                (0..)
                    .zip(names)
                    .map(|(n, name): (u32, _)| (n.to_string(), name.clone().into()))
                    .collect::<serde_json::Map<_, _>>()
                    .into()
            }),
            "imgsz" => serde_json::from_str(value).ok(),
            "stride" | "batch" | "channels" => value.parse::<u64>().ok().map(Value::from),
            "end2end" => Some(Value::Bool(value == "True")),
            // A Python dict, which JSON is not.
            "args" => Some(Value::Object(serde_json::Map::new())),
            _ => None,
        };
        (key.clone(), value.unwrap_or_else(|| Value::String(value_text(metadata, key))))
    });
    let text = Value::Object(fields.collect()).to_string();
    let mut header = i32::try_from(text.len()).unwrap_or(0).to_le_bytes().to_vec();
    header.extend_from_slice(text.as_bytes());
    header
}

fn value_text(metadata: &BTreeMap<String, String>, key: &str) -> String {
    metadata.get(key).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(json: &str, plan: &[u8]) -> Vec<u8> {
        [&(json.len() as i32).to_le_bytes(), json.as_bytes(), plan].concat()
    }

    #[test]
    fn the_header_of_ultralytics_is_taken_off() {
        let file = file(r#"{"stride": 32, "task": "detect", "names": {"0": "a"}}"#, b"ftrt..");
        let found = EnginePlan::split(&file);
        assert_eq!(found.plan, b"ftrt..");
        assert_eq!(found.metadata["stride"], "32");
        assert_eq!(found.metadata["task"], "detect");
        let names = crate::decode::parse_names(&found.metadata["names"]);
        assert_eq!(names, Some(vec!["a".to_string()]));
    }

    #[test]
    fn a_bare_plan_is_left_alone() {
        for bytes in [
            &b"ftrt123456"[..],
            b"",
            b"\x02",
            b"\x02\0\0\0{",
            b"\xff\xff\xff\xff{}",
            b"\x02\0\0\0[]x",
        ] {
            assert_eq!(
                EnginePlan::split(bytes),
                EnginePlan { plan: bytes, metadata: BTreeMap::new() }
            );
        }
        let broken = file("{not json", b"x");
        assert_eq!(EnginePlan::split(&broken).plan, &broken[..]);
    }

    #[test]
    fn our_header_is_read_back() {
        let metadata: BTreeMap<String, String> = [
            ("names", "{0: 'ship', 1: \"it's\"}"),
            ("stride", "32"),
            ("imgsz", "[64, 64]"),
            ("task", "detect"),
            ("args", "{'half': True}"),
        ]
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .into();
        let file = [header(&metadata), b"plan".to_vec()].concat();
        let found = EnginePlan::split(&file);
        assert_eq!(found.plan, b"plan");
        assert_eq!(found.metadata["imgsz"], "[64,64]");
        let names = crate::decode::parse_names(&found.metadata["names"]);
        assert_eq!(names, Some(vec!["ship".to_string(), "it's".to_string()]));
    }
}
