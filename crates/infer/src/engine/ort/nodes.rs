//! Which provider ran how many nodes: read from the profile of one run.
//!
//! ONNX Runtime hands what a provider cannot do to the next one, and says so only in its
//! log. The profile names the provider of every kernel that really ran, in every version
//! that we load; the newer interface for it tells what was planned, and only from 1.24 on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

/// The largest profile that is read.
const LARGEST: u64 = 256 << 20;

/// The nodes that ran, by provider. `None` where the text is no profile.
pub(super) fn count(profile: &[u8]) -> Option<BTreeMap<String, u64>> {
    let events: Value = serde_json::from_slice(profile).ok()?;
    let mut nodes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for event in events.as_array()? {
        // A node has several events, and a run that is recorded into a graph has several
        // runs: what counts is that its kernel ran at all.
        let name = event["name"].as_str().and_then(|name| name.strip_suffix("_kernel_time"));
        if let (Some(name), Some(provider)) = (name, event["args"]["provider"].as_str()) {
            nodes.entry(provider.to_string()).or_default().insert(name.to_string());
        }
    }
    Some(nodes.into_iter().map(|(provider, names)| (provider, names.len() as u64)).collect())
}

/// The same, from a file.
pub(super) fn count_in(path: &Path) -> Option<BTreeMap<String, u64>> {
    let mut text = Vec::new();
    File::open(path).ok()?.take(LARGEST).read_to_end(&mut text).ok()?;
    count(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_counted_once_by_provider() {
        let text = br#"[
            {"cat":"Session","name":"model_run","args":{}},
            {"cat":"Node","name":"a_fence_before","args":{"op_name":"Conv"}},
            {"cat":"Node","name":"a_kernel_time","args":{"provider":"CUDAExecutionProvider"}},
            {"cat":"Node","name":"a_kernel_time","args":{"provider":"CUDAExecutionProvider"}},
            {"cat":"Node","name":"b_kernel_time","args":{"provider":"CUDAExecutionProvider"}},
            {"cat":"Node","name":"c_kernel_time","args":{"provider":"CPUExecutionProvider"}}
        ]"#;
        let nodes = count(text).expect("a profile");
        assert_eq!(nodes["CUDAExecutionProvider"], 2);
        assert_eq!(nodes["CPUExecutionProvider"], 1);
    }

    #[test]
    fn what_is_no_profile_is_unknown() {
        assert_eq!(count(b""), None);
        assert_eq!(count(b"{}"), None);
        assert_eq!(count(b"[1, null, {}]"), Some(BTreeMap::new()));
    }
}
